//! Requests from a server to a client's callback service: a tiny RPC without import state (`lustre/ldlm/ldlm_lockd.c`).

use std::sync::Arc;
use std::time::Duration;

use coral_lnet::{Nid, Node};

use crate::{Reply, Request, RpcError};

/// Sends `rq` (usually to portal 15) to a client and waits for its reply; once, no resend.
/// `client_handle` is what the client gave at connect, `conn_cnt` that of its connection.
pub async fn send_ast(
    node: &Arc<Node>,
    client: Nid,
    client_handle: u64,
    conn_cnt: u32,
    rq: Request,
    timeout: Duration,
) -> Result<Reply, RpcError> {
    let _ = (node, client, client_handle, conn_cnt, rq, timeout);
    todo!()
}
