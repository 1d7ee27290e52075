//! `lst quick`: ping, bulk read and write between two nodes, in one line.
//!
//! A node whose address is this machine's and where nobody listens is started here, for the time it takes.

use super::Failed;
use super::options::{self, Spec};
use coral_lnet::selftest::console::Console;
use coral_lnet::selftest::quick::{QuickOptions, QuickRow};
use coral_lnet::selftest::{Check, Selftest, quick};
use coral_lnet::{MemNet, Nid, Node, NodeConfig, StartError, local_nid_on};
use std::sync::Arc;
use std::time::Duration;

const SPEC: Spec = Spec {
    with_value: &[('t', "time"), ('s', "size"), ('c', "concurrency"), ('k', "check"), ('o', "only"), ('p', "port"), ('n', "nid")],
    flags: &[('j', "json")],
    words: (0, 2),
};
/// TCP port of nodes we start for a run without NIDs: one that needs no privilege.
const OWN_PORT: u16 = 20_988;

struct Table {
    json: bool,
    rows: Vec<serde_json::Value>,
}

impl Table {
    fn head(&self, what: &str) {
        if !self.json {
            println!("{what}");
            println!("{:<12} {:>10} {:>10} {:>7}", "", "MB/s", "RPC/s", "errors");
        }
    }

    fn row(&mut self, what: &str, r: QuickRow) {
        if self.json {
            let QuickRow { name, rpcs_per_s, mb_per_s, errors, total_rpcs, total_bytes } = r;
            self.rows.push(serde_json::json!({
                "between": what, "test": name, "mb_per_s": mb_per_s, "rpcs_per_s": rpcs_per_s, "errors": errors,
                "total_rpcs": total_rpcs, "total_bytes": total_bytes,
            }));
        } else {
            println!("{:<12} {:>10.1} {:>10.0} {:>7}", r.name, r.mb_per_s, r.rpcs_per_s, r.errors);
        }
    }
}

/// A test's name: `ping`, `read`, `write`.
fn only(text: &str) -> Result<&'static str, Failed> {
    let found = quick::TESTS.into_iter().find(|t| t.split(' ').next_back() == Some(text));
    found.ok_or_else(|| Failed(format!("--only '{text}' is none of ping, read, write")))
}

pub(crate) fn run(args: Vec<String>) -> Result<(), Failed> {
    let g = options::parse("quick", &SPEC, &args)?;
    let o = QuickOptions {
        time: Duration::from_secs(g.positive("time", 5)? as u64),
        size_bytes: g.text("size").map_or(Ok(1 << 20), options::size)?,
        concurrency: g.positive("concurrency", 8)?,
        check: g.text("check").map_or(Ok(Check::Simple), options::check)?,
        only: g.text("only").map(only).transpose()?,
    };
    let nid = |t: &String| t.parse::<Nid>().map_err(|_| Failed(format!("'{t}' is no NID")));
    let console = g.text("nid").map(|t| nid(&t.to_owned())).transpose()?;
    let nids = g.words.iter().map(nid).collect::<Result<Vec<Nid>, Failed>>()?;
    let mut table = Table { json: g.has("json"), rows: Vec::new() };
    let port = g.number("port")?;
    let runtime = crate::runtime().map_err(Failed)?;
    match nids[..] {
        [] => runtime.block_on(here(o, port.unwrap_or(OWN_PORT), &mut table))?,
        [a, b] => runtime.block_on(between(a, b, console, port.unwrap_or(988), o, &mut table))?,
        _ => return Err(Failed("quick takes two NIDs, or none".into())),
    }
    if table.json {
        println!("{}", serde_json::to_string_pretty(&table.rows)?);
    }
    Ok(())
}

async fn start(nid: Nid, mem: Option<Arc<MemNet>>, listen: Option<u16>, connect_port: u16) -> Result<Arc<Node>, StartError> {
    Node::start(NodeConfig { nids: vec![nid], listen_port: listen, connect_port, seed: nid.0, ..NodeConfig::default() }, mem).await
}

/// Two nodes of this process: in memory, then over loopback TCP.
async fn here(o: QuickOptions, port: u16, table: &mut Table) -> Result<(), Failed> {
    let mem = MemNet::new();
    let mut nodes = Vec::new();
    for nid in ["1@lo", "2@lo"] {
        nodes.push(start(nid.parse().map_err(|_| "no NID")?, Some(mem.clone()), None, port).await?);
    }
    measure(&nodes[0], &nodes[1], "memlnd, one process", o, table).await?;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let nid = local_nid_on("127.0.0.1@tcp".parse().map_err(|_| "no NID")?, port)?;
        nodes.push(start(nid, None, Some(port), port).await?);
    }
    measure(&nodes[0], &nodes[1], "loopback TCP, one process", o, table).await
}

async fn measure(a: &Arc<Node>, b: &Arc<Node>, what: &str, o: QuickOptions, table: &mut Table) -> Result<(), Failed> {
    let _served = Selftest::serve(b);
    session(a, &Selftest::serve(a), a.nid(), b.nid(), what, o, table).await?;
    if !table.json {
        let sum = |f: fn(&coral_lnet::NodeStats) -> u64| f(a.stats()) + f(b.stats());
        let (copied, received) = (sum(|s| s.copied_bytes.value()), sum(|s| s.received_bytes.value()));
        println!("copied between buffers: {copied} of {received} bytes received");
    }
    for n in [a, b] {
        n.shutdown().await;
    }
    Ok(())
}

async fn session(node: &Arc<Node>, st: &Arc<Selftest>, a: Nid, b: Nid, what: &str, o: QuickOptions, table: &mut Table) -> Result<(), Failed> {
    let (secs, nanos) = node.wall_time();
    let console = Console::new("quick", false, coral_lnet::selftest::FEATS_MASK, secs as u64 * 1000 + nanos as u64 / 1_000_000)?;
    console.attach(node.clone(), st.clone());
    table.head(what);
    let done = quick::run(&console, a, b, o, |r| table.row(what, r)).await;
    console.end().await;
    Ok(done?)
}

/// The node `nid` if it is to be started here; None: somebody else is it.
async fn ours(nid: Nid, port: u16) -> Result<Option<Arc<Node>>, Failed> {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};
    match start(nid, None, Some(port), port).await {
        Ok(node) => Ok(Some(node)),
        Err(StartError::Listen { source, .. }) if matches!(source.kind(), AddrInUse | AddrNotAvailable) => Ok(None),
        Err(e) => Err(Failed(format!("{e}: ports below 1024 need root, --port gives another"))),
    }
}

/// Two given nodes.
async fn between(a: Nid, b: Nid, console: Option<Nid>, port: u16, o: QuickOptions, table: &mut Table) -> Result<(), Failed> {
    let mut here = Vec::new();
    for nid in if a == b { vec![a] } else { vec![a, b] } {
        if let Some(node) = ours(nid, port).await? {
            here.push((Selftest::serve(&node), node));
        }
    }
    // The console speaks through the client, if that is ours, else through a node of its own.
    let own = here.iter().find(|h| h.1.nid() == a).cloned();
    let (st, node) = match own.filter(|_| console.is_none()) {
        Some(own) => own,
        None => {
            let nid = console.map_or_else(|| local_nid_on(a, port), Ok)?;
            let node = super::console::start_node(nid, port).await?;
            here.push((Selftest::serve(&node), node.clone()));
            (here[here.len() - 1].0.clone(), node)
        }
    };
    let done = session(&node, &st, a, b, &format!("{a} -> {b}"), o, table).await;
    for (_, n) in here {
        n.shutdown().await;
    }
    done
}
