//! Rates out of counters, and errors, as the kernel's `lst` prints them.

use super::console::Session;
use super::options::{self, Spec};
use super::socket::Out;
use super::{Failed, show};
use coral_lnet::Nid;
use coral_lnet::selftest::console::{ConsoleError, NodeResult};
use coral_lnet::selftest::nids;
use coral_wire::srpc::StatReply;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const STAT: Spec = Spec {
    with_value: &[('t', "timeout"), ('d', "delay"), ('o', "count")],
    flags: &[
        ('l', "lnet"),
        ('b', "bw"),
        ('a', "rate"),
        ('r', "read"),
        ('w', "write"),
        ('g', "avg"),
        ('n', "min"),
        ('x', "max"),
        ('m', "mbs"),
    ],
    words: (1, usize::MAX),
};
const ERRORS: Spec = Spec {
    with_value: &[],
    flags: &[('s', "session")],
    words: (1, usize::MAX),
};

/// Nodes of a group, or those a word of NIDs stands for.
pub(crate) fn resolve(s: &Session, name: &str) -> Result<Vec<Nid>, Failed> {
    match s.console.group(name) {
        Ok(nodes) => Ok(nodes.into_iter().map(|n| n.0).collect()),
        Err(missing @ ConsoleError::NoGroup(_)) if !name.contains('@') => Err(missing.into()),
        Err(_) => Ok(nids::expand(name)?),
    }
}

/// What is shown.
struct Shown {
    rates: bool,
    bandwidth: bool,
    read: bool,
    write: bool,
    avg_min_max: [bool; 3],
    mbs: bool,
}

/// Average, least and most over the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread([f64; 3]);

impl Spread {
    fn of(values: &[f64]) -> Spread {
        let sum: f64 = values.iter().sum();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        Spread([
            sum / values.len() as f64,
            least,
            values.iter().copied().fold(0.0, f64::max),
        ])
    }
}

/// Messages and bytes a second, received and sent.
#[derive(Clone, Copy, Debug)]
struct Speed {
    msgs: [f64; 2],
    bytes: [f64; 2],
}

fn speed(old: &StatReply, new: &StatReply) -> Speed {
    let secs = new.fw[0].wrapping_sub(old.fw[0]).max(1) as f64 / 1000.0;
    // Sent is third of the counts and first of the bytes; received follows.
    let msgs = |i: usize| { new.lnet }[i].wrapping_sub({ old.lnet }[i]) as f64 / secs;
    let whole = |v: [u32; 2]| v[0] as u64 | (v[1] as u64) << 32;
    let bytes = |i: usize| {
        whole({ new.lnet_bytes }[i]).wrapping_sub(whole({ old.lnet_bytes }[i])) as f64 / secs
    };
    Speed {
        msgs: [msgs(4), msgs(3)],
        bytes: [bytes(1), bytes(0)],
    }
}

fn lines(name: &str, speeds: &[Speed], shown: &Shown) -> Vec<String> {
    let mut out = Vec::new();
    let directions = [('R', 0, shown.read), ('W', 1, shown.write)];
    let titles = ["Avg: ", "Min: ", "Max: "];
    if shown.rates {
        out.push(format!("[LNet Rates of {name}]"));
        for (letter, d, _) in directions.iter().filter(|d| d.2) {
            let spread = Spread::of(&speeds.iter().map(|s| s.msgs[*d]).collect::<Vec<_>>());
            let mut line = format!("[{letter}] ");
            for i in (0..3).filter(|i| shown.avg_min_max[*i]) {
                line += &format!(
                    "{}{:<8.0} RPC/s{}",
                    titles[i],
                    spread.0[i],
                    if i < 2 { " " } else { "" }
                );
            }
            out.push(line);
        }
    }
    if shown.bandwidth {
        let (divisor, unit) = if shown.mbs {
            (1e6, "MB/s  ")
        } else {
            (1_048_576.0, "MiB/s ")
        };
        out.push(format!("[LNet Bandwidth of {name}]"));
        for (letter, d, _) in directions.iter().filter(|d| d.2) {
            let spread = Spread::of(
                &speeds
                    .iter()
                    .map(|s| s.bytes[*d] / divisor)
                    .collect::<Vec<_>>(),
            );
            let mut line = format!("[{letter}] ");
            for i in (0..3).filter(|i| shown.avg_min_max[*i]) {
                line += &format!("{}{:<8.2} {unit}", titles[i], spread.0[i]);
            }
            out.push(line);
        }
    }
    out
}

type Snapshot = BTreeMap<Nid, StatReply>;

/// Counters of those that answered, and how many did not.
fn snapshot(results: Vec<NodeResult<StatReply>>) -> (Snapshot, usize) {
    let all = results.len();
    let got: Snapshot = results
        .into_iter()
        .filter_map(|r| Some((r.nid, r.result.ok()?)))
        .collect();
    let failed = all - got.len();
    (got, failed)
}

pub(crate) async fn stat(s: &Session, args: &[String], out: &mut Out) -> Result<bool, Failed> {
    let g = options::parse("stat", &STAT, args)?;
    let limit = Duration::from_secs(g.positive("timeout", 5)? as u64);
    let delay = Duration::from_secs(g.positive("delay", 5)? as u64);
    let count: Option<u32> = g
        .number::<i64>("count")?
        .and_then(|n| u32::try_from(n).ok());
    let either = |a: &str, b: &str| g.has(a) || !g.has(b);
    let any = ["avg", "min", "max"].iter().any(|f| g.has(f));
    let shown = Shown {
        rates: either("rate", "bw"),
        bandwidth: either("bw", "rate"),
        read: either("read", "write"),
        write: either("write", "read"),
        avg_min_max: ["avg", "min", "max"].map(|f| g.has(f) || !any),
        mbs: g.has("mbs"),
    };
    let mut groups = Vec::new();
    for name in &g.words {
        groups.push((name, resolve(s, name)?, Snapshot::new()));
    }
    let mut next = Instant::now();
    let mut left = count;
    // One more than asked for: the first only begins.
    for round in 0u64.. {
        tokio::time::sleep_until(next).await;
        next = Instant::now() + delay;
        for (name, nodes, old) in &mut groups {
            let (new, failed) = snapshot(s.console.stat(nodes, limit).await?);
            if failed > 0 {
                out.out(format!("Failed to stat on {failed} nodes")).await?;
            }
            let speeds: Vec<Speed> = new
                .iter()
                .filter_map(|(nid, n)| Some(speed(old.get(nid)?, n)))
                .collect();
            if !speeds.is_empty() {
                for line in lines(name, &speeds, &shown) {
                    out.out(line).await?;
                }
            }
            *old = new;
        }
        if round > 0 {
            left = left.map(|n| n.saturating_sub(1));
        }
        if left == Some(0) {
            break;
        }
    }
    Ok(true)
}

pub(crate) async fn show_error(
    s: &Session,
    args: &[String],
    out: &mut Out,
) -> Result<bool, Failed> {
    let g = options::parse("show_error", &ERRORS, args)?;
    let session_only = g.has("session");
    for name in &g.words {
        let results = s
            .console
            .stat(&resolve(s, name)?, Duration::from_secs(10))
            .await?;
        out.out(format!("{name}:")).await?;
        let mut nodes = 0;
        for r in results {
            let id = show::id(r.nid);
            let line = match r.result {
                Err(coral_lnet::selftest::console::NodeError::Rpc(_)) => {
                    Some(format!("RPC failure, can't show error on {id}"))
                }
                Err(_) => Some(format!("Framework failure, can't show error on {id}")),
                Ok(stat) => errors(&stat, session_only).map(|e| format!("{id}: {e}")),
            };
            if let Some(line) = line {
                nodes += 1;
                out.err(line).await?;
            }
        }
        out.out(format!("Total {nodes} error nodes in {name}"))
            .await?;
    }
    Ok(true)
}

/// A node's errors in words; None: it has none that are to be shown.
fn errors(s: &StatReply, session_only: bool) -> Option<String> {
    let ([_, _, _, brw, ping], [rpc, _, _, dropped, expired]) = ({ s.fw }, { s.rpc });
    let own = brw > 0 || ping > 0;
    let first = format!("[Session {brw} brw errors, {ping} ping errors]");
    match session_only {
        true => own.then_some(first),
        false => (own || rpc > 0)
            .then(|| format!("{first} [RPC: {rpc} errors, {dropped} dropped, {expired} expired]")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ms: u32, sent: u32, received: u32, out: u32, into: u32) -> StatReply {
        let lnet = [0, 0, 0, sent, received, 0, 0];
        StatReply {
            fw: [ms, 0, 0, 0, 0],
            lnet,
            lnet_bytes: [[out, 0], [into, 0], [0, 0], [0, 0]],
            ..StatReply::default()
        }
    }

    #[test]
    fn lines_are_the_kernel_tools() {
        let all = Shown {
            rates: true,
            bandwidth: true,
            read: true,
            write: true,
            avg_min_max: [true; 3],
            mbs: false,
        };
        let one = [speed(
            &stat(0, 0, 0, 0, 0),
            &stat(1000, 26, 47, 524_288, 13_516_145),
        )];
        // As recorded from the kernel's lst.
        assert_eq!(
            lines("clients", &one, &all),
            [
                "[LNet Rates of clients]",
                "[R] Avg: 47       RPC/s Min: 47       RPC/s Max: 47       RPC/s",
                "[W] Avg: 26       RPC/s Min: 26       RPC/s Max: 26       RPC/s",
                "[LNet Bandwidth of clients]",
                "[R] Avg: 12.89    MiB/s Min: 12.89    MiB/s Max: 12.89    MiB/s ",
                "[W] Avg: 0.50     MiB/s Min: 0.50     MiB/s Max: 0.50     MiB/s ",
            ]
        );
        let two = [
            one[0],
            speed(&stat(0, 5, u32::MAX, 0, 0), &stat(500, 6, 4, 0, 0)),
        ];
        let part = Shown {
            bandwidth: false,
            write: false,
            avg_min_max: [true, false, true],
            ..all
        };
        assert_eq!(
            lines("c", &two, &part),
            [
                "[LNet Rates of c]",
                "[R] Avg: 28       RPC/s Max: 47       RPC/s"
            ]
        );
    }

    #[test]
    fn errors_are_said_when_there_are_some() {
        let mut s = stat(1, 0, 0, 0, 0);
        assert_eq!(errors(&s, false), None);
        s.rpc = [2, 9, 9, 1, 0];
        assert_eq!(errors(&s, true), None);
        assert_eq!(
            errors(&s, false).unwrap(),
            "[Session 0 brw errors, 0 ping errors] [RPC: 2 errors, 1 dropped, 0 expired]"
        );
        s.fw = [1, 0, 0, 3, 4];
        assert_eq!(
            errors(&s, true).unwrap(),
            "[Session 3 brw errors, 4 ping errors]"
        );
    }
}
