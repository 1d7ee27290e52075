//! Causes that are machines: one that swaps, and one with a full core, by Coral or by others.

use super::facts::{Facts, Host, Path};
use super::rules::{Cause, CauseKind, SHARE_LEAST, SlowStorage};
use crate::attribution::Segment;

/// Where all cores are so busy there is hardly any room.
const NEARLY_FULL: f64 = 0.85;
/// A core so busy has no room.
pub(super) const CORE_BUSY: f64 = 0.95;
/// Seconds in a second that Coral's threads wait for a processor, from which on messages lie about for want of one.
pub(super) const CPU_WAIT: f64 = 0.2;
/// Cores that other programs take, from which on a core may be full because of them.
pub(super) const OTHERS_LEAST: f64 = 0.25;
/// Pages from swap in a second that tell of too little memory.
pub(super) const SWAP_LEAST: f64 = 100.0;

/// What happens on processors, or where somebody waits for one.
fn of_processors(f: &Facts) -> f64 {
    let all = [
        Segment::ClientCpu,
        Segment::ServerCpu,
        Segment::ServerQueue,
        Segment::Send,
        Segment::ReplyOut,
        Segment::WakeUp,
        Segment::NotPlaced,
    ];
    let all: f64 = all.iter().map(|s| f.share(*s, None)).sum();
    // Where even the quickest of a kind is sent late, that is the way, not a processor.
    let views = f.views();
    let held = views.iter().flat_map(|v| v.paths.iter().map(|p| v.held(p)));
    all - held.sum::<f64>()
}

/// Time on the way beyond the least: whoever has to read a message from the socket waits for a processor first. Where a link is
/// slow, it is that which takes the time.
fn unread(f: &Facts, slow_links: &[String]) -> f64 {
    let views = f.views();
    let ways = views.iter().flat_map(|v| v.paths);
    let paths = ways.filter(|p| !slow_links.contains(&p.target));
    let all = paths.map(Path::beyond_least_s).sum::<f64>() / f.op_s().max(1e-12);
    // RPCs in the background hold up no operation.
    all.min(f.share(Segment::Network, None))
}

/// Of the time at storage that is slow, what may be the wait for a processor of who syncs: no more than threads waited for one while all
/// cores of their machine were full. What is slow beside its peers on the same machine is so for a reason of its own.
fn not_run(f: &Facts, storage: &[SlowStorage]) -> f64 {
    let waits = f.hosts.iter().filter(|h| is_full(h)).map(|h| h.cpu_wait);
    let waited = waits.sum::<f64>() * f.window_s / f.op_s().max(1e-12);
    let alone = storage.iter().filter(|s| s.is_alone);
    alone.map(|s| s.cause.share).sum::<f64>().min(waited)
}

/// All cores are full, and threads of Coral's wait for them.
pub(super) fn is_full(h: &Host) -> bool {
    h.cores >= CORE_BUSY && h.cpu_wait >= CPU_WAIT
}

/// A machine whose cores are all nearly full, whoever fills them.
pub(super) fn nearly_full(f: &Facts) -> Option<&Host> {
    let busy = f.hosts.iter().filter(|h| h.cores >= NEARLY_FULL);
    busy.max_by(|a, b| a.cores.total_cmp(&b.cores))
}

/// Share of the operations' time that is on processors, or where somebody may wait for one; on one machine the network is that too.
pub(super) fn needs_processors(f: &Facts) -> f64 {
    let network = match f.is_one_machine {
        true => f.share(Segment::Network, None),
        false => unread(f, &[]),
    };
    (of_processors(f) + network).min(1.0)
}

pub(super) fn hosts(f: &Facts, slow_links: &[String], storage: &[SlowStorage]) -> Vec<Cause> {
    // What is on the way waits for a processor at most as long as anybody does.
    let waited = (f.hosts.iter()).map(|h| h.cpu_wait).fold(0.0, f64::max);
    let unread = match waited >= CPU_WAIT {
        true => unread(f, slow_links) * waited.min(1.0),
        false => 0.0,
    };
    let share = (of_processors(f) + unread + not_run(f, storage)).min(1.0);
    let mut out = Vec::new();
    for h in f.hosts.iter().filter(|_| share >= SHARE_LEAST) {
        if h.swap_in_per_s >= SWAP_LEAST {
            out.push(Cause {
                kind: CauseKind::Swap,
                subject: h.name.clone(),
                fid: None,
                share,
                figure: format!("{:.0} pages/s come back from swap", h.swap_in_per_s),
                ceiling: None,
                change: format!("give {} more memory, or its client less to cache", h.name),
            });
        } else if h.busiest_core >= CORE_BUSY {
            out.extend(busy_core(f, h, share));
        }
    }
    out
}

/// A full core. Where other programs fill it, Coral is not accused of it, and it matters only if Coral waits for them.
fn busy_core(f: &Facts, h: &Host, share: f64) -> Option<Cause> {
    let by_others = h.others >= OTHERS_LEAST && h.ours < CORE_BUSY;
    if by_others && h.cpu_wait < CPU_WAIT {
        return None;
    }
    let busy = format!(
        "its busiest core {:.0}% busy, {} cores {:.0}% in the mean; threads waited {:.2} s for one in a second",
        100.0 * h.busiest_core,
        h.core_count,
        100.0 * h.cores.min(1.0),
        h.cpu_wait
    );
    let other = match &h.other {
        Some(name) => format!("other programs, most of all '{name}',"),
        None => "other programs".to_owned(),
    };
    let taken = match h.others >= OTHERS_LEAST {
        true => format!(
            "; {other} take {:.2} cores, Coral and its load {:.2}",
            h.others, h.ours
        ),
        false => String::new(),
    };
    let rate = f.count() as f64 / f.window_s.max(1e-12);
    // Where several cores share the work, and not all of them are full, it is not known how much of it the full one has to do.
    let ceiling = match h.cores >= CORE_BUSY && h.core_count > 1 {
        true => Some(format!(
            "{:.0} operations/s, as long as these {} cores do it",
            rate / h.cores.min(1.0),
            h.core_count
        )),
        false => (h.ours <= 1.0).then(|| {
            format!(
                "{:.0} operations/s, as long as one core does it",
                rate / h.busiest_core
            )
        }),
    };
    Some(Cause {
        kind: CauseKind::BusyCore,
        subject: match by_others {
            true => format!("{}, by other programs", h.name),
            false => h.name.clone(),
        },
        fid: None,
        share,
        figure: busy + &taken,
        ceiling: ceiling.filter(|_| !by_others),
        change: match (by_others, &h.other) {
            (true, Some(name)) => format!("measure again without '{name}' on {}", h.name),
            (true, None) => format!("measure again without other programs on {}", h.name),
            (false, _) => format!("see which thread fills a core of {}", h.name),
        },
    })
}
