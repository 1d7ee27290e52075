//! Requests from a server to a client's callback service: a tiny RPC without import state (`lustre/ldlm/ldlm_lockd.c`).

use std::sync::Arc;
use std::time::Duration;

use coral_lnet::{Nid, Node};
use tokio::time::Instant;

use crate::attempt::{Attempt, Ids, Outcome};
use crate::import::Conn;
use crate::xid::XidSource;
use crate::{Call, Reply, Request, RpcError};

/// A client that has not answered for so long is told of by the stopwatch: somebody waits for it.
const TOLD_AFTER: Duration = Duration::from_millis(500);

/// Sends `rq` (usually to portal 15) to a client and waits for its reply; once, no resend.
/// `client_handle` is what the client gave at connect, `conn_cnt` that of its connection. `timeout` counts in whole seconds.
pub async fn send_ast(
    node: &Arc<Node>,
    client: Nid,
    client_handle: u64,
    conn_cnt: u32,
    rq: Request,
    timeout: Duration,
) -> Result<Reply, RpcError> {
    let xid = XidSource::of(node).next();
    let attempt = Attempt {
        node,
        request: &rq,
        conn: Conn {
            nid: client,
            handle: client_handle,
            conn_cnt,
            rep_mbits: false,
            at: false,
            tags: false,
        },
        ids: Ids {
            xid,
            mbits: xid,
            tag: 0,
            last_xid: 0,
            flags: 0,
            transno: 0,
            pre_versions: [0; 4],
        },
        secflvr: 0,
        timeout_s: timeout.as_secs().clamp(1, u32::MAX as u64) as u32,
        op_flags: 0,
        at: false,
        stats: None,
    };
    let call = || Call {
        target: Arc::default(),
        nid: client,
        opc: rq.opc,
        xid,
        fid: rq.fid(),
    };
    let begun = Instant::now();
    let mut run = std::pin::pin!(attempt.run(None));
    let outcome = match tokio::time::timeout(TOLD_AFTER, &mut run).await {
        Ok(outcome) => outcome,
        Err(_) => {
            // From now on it is told as under way, with the client that is waited for.
            let stopwatch = node.stopwatch();
            let part = stopwatch.part(begun);
            let _entry = part.map(|mut part| {
                let name = stopwatch.name(&client.to_string());
                stopwatch.rpc_begins(&part.watch(), rq.opc, name, rq.fid(), begun)
            });
            run.await
        }
    };
    match outcome {
        Outcome::Done(r) => Ok(*r),
        Outcome::TimedOut => Err(RpcError::Timeout(call())),
        Outcome::Garbage(what) => Err(RpcError::Proto { call: call(), what }),
        Outcome::Unsent(_) | Outcome::Superseded => Err(RpcError::Unreachable(call())),
    }
}
