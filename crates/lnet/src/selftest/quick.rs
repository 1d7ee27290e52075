//! `coral lst quick`: ping, bulk read and bulk write between two nodes, one after the other, measured.

use std::time::Duration;

use coral_wire::srpc::StatReply;

use super::console::{Console, ConsoleError, NodeError, TestSpec};
use super::{BrwParams, Check, Rw, TestParams};
use crate::Nid;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct QuickOptions {
    /// How long each test is measured.
    pub time: Duration,
    /// Bytes of each bulk.
    pub size_bytes: u32,
    /// Loops.
    pub concurrency: u32,
    /// Check of the data.
    pub check: Check,
    /// Only the test of this name.
    pub only: Option<&'static str>,
}

/// Names of the tests.
pub const TESTS: [&str; 3] = ["ping", "brw read", "brw write"];

/// One test's result.
#[derive(Clone, Copy, Debug)]
pub struct QuickRow {
    /// `ping`, `brw read` or `brw write`.
    pub name: &'static str,
    /// RPCs a second.
    pub rpcs_per_s: f64,
    /// Megabytes (10^6) of bulk a second.
    pub mb_per_s: f64,
    /// RPCs that failed, on both nodes.
    pub errors: u64,
    /// RPCs of the whole batch, with what was not measured at its begin and end.
    pub total_rpcs: u64,
    /// Bulk bytes of the whole batch.
    pub total_bytes: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum QuickError {
    /// The console refused.
    #[error(transparent)]
    Console(#[from] ConsoleError),
    /// A node did not do its part.
    #[error("{nid} does not take part: {}", why(.error))]
    Node {
        /// Which.
        nid: Nid,
        /// Why.
        error: NodeError,
    },
}

fn why(e: &NodeError) -> String {
    match e {
        NodeError::Rpc(e) => format!("no answer ({e})"),
        NodeError::Remote(e) if e.0 == libc::EBUSY => "it is in another self-test session".into(),
        NodeError::Remote(e) => format!("it answered {e}"),
    }
}

fn all<T>(results: Vec<super::console::NodeResult<T>>) -> Result<Vec<T>, QuickError> {
    results
        .into_iter()
        .map(|r| {
            r.result
                .map_err(|error| QuickError::Node { nid: r.nid, error })
        })
        .collect()
}

/// The three tests.
fn plan(o: &QuickOptions) -> [(&'static str, TestParams); 3] {
    let brw = |rw| {
        TestParams::Brw(BrwParams {
            rw,
            check: o.check,
            len_bytes: o.size_bytes,
            offset_bytes: 0,
        })
    };
    let [ping, read, write] = TESTS;
    [
        (ping, TestParams::Ping),
        (read, brw(Rw::Read)),
        (write, brw(Rw::Write)),
    ]
}

/// Runs the tests with `client` sending to `server`. The console must be attached; its session is left as it is.
pub async fn run(
    console: &Console,
    client: Nid,
    server: Nid,
    o: QuickOptions,
    mut row: impl FnMut(QuickRow),
) -> Result<(), QuickError> {
    for (name, nid) in [("client", client), ("server", server)] {
        console.add_group(name)?;
        all(console.add_nodes(name, &[nid]).await?)?;
    }
    for (name, params) in plan(&o)
        .into_iter()
        .filter(|p| o.only.is_none_or(|only| only == p.0))
    {
        console.add_batch(name)?;
        let (from, to) = ("client".to_owned(), "server".to_owned());
        let spec = TestSpec {
            from,
            to,
            count: None,
            concurrency: o.concurrency,
            dist: 1,
            span: 1,
            params,
        };
        all(console.add_test(name, spec).await?)?;
        let nodes = [client, server];
        let limit = super::console::ROUND_TIMEOUT;
        let begin = all(console.stat(&nodes, limit).await?)?;
        all(console.run(name).await?)?;
        // The first RPCs open connections.
        tokio::time::sleep(o.time / 10).await;
        let before = all(console.stat(&nodes, limit).await?)?;
        tokio::time::sleep(o.time).await;
        let after = all(console.stat(&nodes, limit).await?)?;
        all(console.stop(name, false).await?)?;
        while all(console.query(name, 0, false, limit).await?)?
            .iter()
            .any(|n| *n > 0)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let end = all(console.stat(&nodes, limit).await?)?;
        let total = moved(params, &begin[1], &end[1]);
        row(QuickRow {
            total_rpcs: total.0,
            total_bytes: total.1,
            ..measure(name, params, &before, &after)
        });
    }
    Ok(())
}

/// RPCs and bulk bytes a server has served between two looks at its counters.
fn moved(params: TestParams, before: &StatReply, after: &StatReply) -> (u64, u64) {
    let sum = |s: &StatReply| {
        { s.rpc_bulk }
            .iter()
            .map(|h| h[0] as u64 | (h[1] as u64) << 32)
            .sum::<u64>()
    };
    let bytes = sum(after).wrapping_sub(sum(before));
    match params {
        // What it received, the console's few questions included.
        TestParams::Ping => (
            { after.rpc }[2].wrapping_sub({ before.rpc }[2]) as u64,
            bytes,
        ),
        TestParams::Brw(p) => (bytes / p.len_bytes as u64, bytes),
    }
}

fn measure(
    name: &'static str,
    params: TestParams,
    before: &[StatReply],
    after: &[StatReply],
) -> QuickRow {
    let secs = { after[1].fw }[0].wrapping_sub({ before[1].fw }[0]).max(1) as f64 / 1000.0;
    let (rpcs, bytes) = moved(params, &before[1], &after[1]);
    let errors = |s: &StatReply| { s.fw }[3] as u64 + { s.fw }[4] as u64 + { s.rpc }[0] as u64;
    let errors = after
        .iter()
        .map(errors)
        .sum::<u64>()
        .saturating_sub(before.iter().map(errors).sum());
    QuickRow {
        name,
        rpcs_per_s: rpcs as f64 / secs,
        mb_per_s: bytes as f64 / 1e6 / secs,
        errors,
        total_rpcs: 0,
        total_bytes: 0,
    }
}
