//! `lst quick`: ping, bulk read and write between two nodes, in one line.
//!
//! A node whose address is this machine's and where nobody listens is started here, for the time it takes.

use super::Failed;
use super::node::Ways;
use super::options::{self, Spec};
use coral_lnet::selftest::console::Console;
use coral_lnet::selftest::quick::{QuickOptions, QuickRow};
use coral_lnet::selftest::{Check, Selftest, quick};
use coral_lnet::{MemNet, Nid, Node, NodeConfig, StartError, local_nid_on};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const SPEC: Spec = Spec {
    with_value: &[
        ('t', "time"),
        ('s', "size"),
        ('c', "concurrency"),
        ('k', "check"),
        ('o', "only"),
        ('p', "port"),
        ('n', "nid"),
        ('\0', "route"),
        ('\0', "routes"),
        ('\0', "accept"),
    ],
    flags: &[('j', "json")],
    words: (0, 2),
};
/// TCP port of nodes we start for a run without NIDs: one that needs no privilege.
const OWN_PORT: u16 = 20_988;
/// How long a node may take to answer an LNet ping, and then the first self-test message.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

struct Table {
    json: bool,
    rows: Vec<serde_json::Value>,
}

impl Table {
    fn head(&self, what: &str) {
        if !self.json {
            say(what);
            say(&format!(
                "{:<12} {:>10} {:>10} {:>7}",
                "", "MB/s", "RPC/s", "errors"
            ));
        }
    }

    fn row(&mut self, what: &str, r: QuickRow) {
        if self.json {
            let QuickRow {
                name,
                rpcs_per_s,
                mb_per_s,
                errors,
                total_rpcs,
                total_bytes,
            } = r;
            self.rows.push(serde_json::json!({
                "between": what, "test": name, "mb_per_s": mb_per_s, "rpcs_per_s": rpcs_per_s, "errors": errors,
                "total_rpcs": total_rpcs, "total_bytes": total_bytes,
            }));
        } else {
            say(&format!(
                "{:<12} {:>10.1} {:>10.0} {:>7}",
                r.name, r.mb_per_s, r.rpcs_per_s, r.errors
            ));
        }
    }
}

/// Prints a line. Nobody may be reading any more: the nodes are left in order all the same.
fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A test's name: `ping`, `read`, `write`.
fn only(text: &str) -> Result<&'static str, Failed> {
    let found = quick::TESTS
        .into_iter()
        .find(|t| t.split(' ').next_back() == Some(text));
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
    let nid = |t: &String| {
        t.parse::<Nid>()
            .map_err(|_| Failed(format!("'{t}' is no NID")))
    };
    let console = g.text("nid").map(|t| nid(&t.to_owned())).transpose()?;
    let nids = g
        .words
        .iter()
        .map(nid)
        .collect::<Result<Vec<Nid>, Failed>>()?;
    let mut table = Table {
        json: g.has("json"),
        rows: Vec::new(),
    };
    let runtime = crate::runtime().map_err(Failed)?;
    match nids[..] {
        [] => runtime.block_on(here(o, Ways::of(&g, OWN_PORT)?, &mut table))?,
        [a, b] => runtime.block_on(between(
            a,
            b,
            console,
            Ways::of(&g, coral_node::net::DEFAULT_PORT)?,
            o,
            &mut table,
        ))?,
        _ => return Err(Failed("quick takes two NIDs, or none".into())),
    }
    if table.json {
        say(&serde_json::to_string_pretty(&table.rows)?);
    }
    Ok(())
}

/// Two nodes of this process: in memory, then over loopback TCP.
async fn here(o: QuickOptions, ways: Ways, table: &mut Table) -> Result<(), Failed> {
    if !ways.routes.is_empty() {
        return Err(Failed(
            "quick without NIDs stays in this process: a route is of no use to it".into(),
        ));
    }
    let mem = MemNet::new();
    let mut nodes = Vec::new();
    for nid in ["1@lo", "2@lo"] {
        let nid: Nid = nid.parse().map_err(|_| "no NID")?;
        nodes.push(
            Node::start(
                NodeConfig {
                    nids: vec![nid],
                    seed: nid.0,
                    ..NodeConfig::default()
                },
                Some(mem.clone()),
            )
            .await?,
        );
    }
    measure(&nodes[0], &nodes[1], "memlnd, one process", o, table).await?;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let nid = local_nid_on("127.0.0.1@tcp".parse().map_err(|_| "no NID")?, ways.port)?;
        nodes.push(ways.start(nid, true).await?);
    }
    measure(&nodes[0], &nodes[1], "loopback TCP, one process", o, table).await
}

async fn measure(
    a: &Arc<Node>,
    b: &Arc<Node>,
    what: &str,
    o: QuickOptions,
    table: &mut Table,
) -> Result<(), Failed> {
    let _served = Selftest::serve(b);
    session(a, &Selftest::serve(a), a.nid(), b.nid(), what, o, table).await?;
    if !table.json {
        let sum = |f: fn(&coral_lnet::NodeStats) -> u64| f(a.stats()) + f(b.stats());
        let (copied, received) = (
            sum(|s| s.copied_bytes.value()),
            sum(|s| s.received_bytes.value()),
        );
        say(&format!(
            "copied between buffers: {copied} of {received} bytes received"
        ));
    }
    for n in [a, b] {
        n.shutdown().await;
    }
    Ok(())
}

async fn session(
    node: &Arc<Node>,
    st: &Arc<Selftest>,
    a: Nid,
    b: Nid,
    what: &str,
    o: QuickOptions,
    table: &mut Table,
) -> Result<(), Failed> {
    let (secs, nanos) = node.wall_time();
    let console = Console::new(
        "quick",
        false,
        coral_lnet::selftest::FEATS_MASK,
        secs as u64 * 1000 + nanos as u64 / 1_000_000,
    )?;
    console.attach(node.clone(), st.clone());
    table.head(what);
    let done = quick::run(&console, a, b, o, |r| table.row(what, r)).await;
    console.end().await;
    Ok(done?)
}

/// The node `nid` if it is to be started here; None: somebody else is it.
async fn ours(nid: Nid, ways: &Ways) -> Result<Option<Arc<Node>>, Failed> {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};
    match ways.of_node(nid).start(nid, true).await {
        Ok(node) => Ok(Some(node)),
        Err(StartError::Listen { source, .. })
            if matches!(source.kind(), AddrInUse | AddrNotAvailable) =>
        {
            Ok(None)
        }
        Err(e) => Err(Failed(format!(
            "{e}: ports below 1024 need root, --port gives another"
        ))),
    }
}

/// Two given nodes.
async fn between(
    a: Nid,
    b: Nid,
    console: Option<Nid>,
    ways: Ways,
    o: QuickOptions,
    table: &mut Table,
) -> Result<(), Failed> {
    let mut here = Vec::new();
    for nid in if a == b { vec![a] } else { vec![a, b] } {
        if let Some(node) = ours(nid, &ways).await? {
            here.push((Selftest::serve(&node), node));
        }
    }
    // The console speaks through the client, if that is ours, else through a node of its own.
    let own = here.iter().find(|h| h.1.nid() == a).cloned();
    let (st, node) = match own.filter(|_| console.is_none()) {
        Some(own) => own,
        None => {
            let nid = console.map_or_else(|| ways.local(a), Ok)?;
            match here.iter().find(|h| h.1.nid() == nid).cloned() {
                Some(own) => own,
                None => {
                    let node = ways.of_node(nid).start_node(nid).await?;
                    here.push((Selftest::serve(&node), node.clone()));
                    (here[here.len() - 1].0.clone(), node)
                }
            }
        }
    };
    let done = async {
        of_use(&ways, &here)?;
        for nid in BTreeSet::from([a, b]) {
            ready(&node, &st, nid, &ways).await?;
        }
        session(&node, &st, a, b, &format!("{a} -> {b}"), o, table).await
    };
    let done = done.await;
    for (_, n) in here {
        n.shutdown().await;
    }
    done
}

/// A route that none of the nodes here can use is a mistake.
fn of_use(ways: &Ways, here: &[(Arc<Selftest>, Arc<Node>)]) -> Result<(), Failed> {
    let used = |gateway: Nid| here.iter().any(|(_, n)| n.nid().net() == gateway.net());
    match ways.routes.iter().find(|r| !used(r.gateway)) {
        None => Ok(()),
        Some(r) => {
            let nids: Vec<String> = here.iter().map(|(_, n)| n.nid().to_string()).collect();
            Err(Failed(format!(
                "the gateway {} is on {}, where no node started here is ({})",
                r.gateway,
                coral_lnet::net_name(r.gateway.net()),
                nids.join(", ")
            )))
        }
    }
}

/// Whether `nid` answers at all, and then whether it serves self-tests: either is said before the half minute a session would wait.
async fn ready(node: &Arc<Node>, st: &Arc<Selftest>, nid: Nid, ways: &Ways) -> Result<(), Failed> {
    ways.of_node(node.nid()).check(node, nid)?;
    if node.nids().contains(&nid) {
        return Ok(());
    }
    match tokio::time::timeout(FIRST_ANSWER, node.ping(nid)).await {
        Ok(Ok(_)) => {}
        Ok(Err(e)) => {
            return Err(Failed(format!(
                "{nid} does not answer an LNet ping: {e}{}",
                way_back(node, nid)
            )));
        }
        Err(_) => {
            return Err(Failed(format!(
                "{nid} does not answer an LNet ping{}",
                way_back(node, nid)
            )));
        }
    }
    let (secs, nanos) = node.wall_time();
    let console = Console::new(
        "probe",
        false,
        coral_lnet::selftest::FEATS_MASK,
        secs as u64 * 1000 + nanos as u64 / 1_000_000,
    )?;
    console.attach(node.clone(), st.clone());
    let answers = console.ping(&[nid], FIRST_ANSWER).await?;
    match answers.iter().any(|r| {
        matches!(
            r.result,
            Err(coral_lnet::selftest::console::NodeError::Rpc(_))
        )
    }) {
        false => Ok(()),
        true => Err(Failed(format!(
            "{nid} answers LNet pings but no self-tests: a node that serves or mounts a file system does not; run `lst serve` there on another address"
        ))),
    }
}

fn way_back(node: &Node, nid: Nid) -> &'static str {
    match node.nids().iter().any(|n| n.net() == nid.net()) {
        true => "",
        false => "; or it has no route back to this node's network",
    }
}
