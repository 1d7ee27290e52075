//! Causes that are locks: those that clients take from each other, and the one that the kernel has for each directory.

use super::facts::Facts;
use super::rules::{Cause, CauseKind, SHARE_LEAST, ms};
use super::sharing::OneDirectory;
use crate::attribution::Segment;

/// Threads in the mean that wait for a directory, from which on it is they that are told.
const WAITERS_LEAST: f64 = 0.5;
/// Locks given back in an operation, from which on clients take them from each other.
pub(super) const CALLBACKS_LEAST: f64 = 0.2;

/// What is known of who waits for a directory in which one operation goes on at a time, and what helps.
pub(super) fn own_directories(f: &Facts, d: &OneDirectory) -> (String, String) {
    let (seq, oid, ver) = d.fid;
    let seen = f.hosts.iter().filter_map(|h| h.lock_waiters);
    let waiters = seen.max_by(f64::total_cmp);
    let said = format!(
        "; {:.0}% of the time is {} and the like in one directory, [{seq:#x}:{oid:#x}:{ver:#x}], by one mount, one at a time",
        100.0 * (d.seconds / f.op_s().max(1e-12)).min(1.0),
        d.op
    );
    match waiters {
        Some(n) if n >= WAITERS_LEAST => (
            format!("{said}: {n:.1} threads wait meanwhile in the kernel, which lets one in at a time"),
            "give each program a directory of its own".to_owned(),
        ),
        // Seen, and nobody waits: it is one program that does one thing at a time.
        Some(_) => (
            format!("{said}; nobody waits for it in the kernel"),
            "more programs, each in a directory of its own".to_owned(),
        ),
        None => (
            format!("{said}: the kernel lets one in at a time, however many programs wait there"),
            "if several programs work in that directory, give each one of its own; if it is one, more programs, each in its own".to_owned(),
        ),
    }
}

/// A lock that is taken away costs the wait of whoever wants it, and an enqueue of whoever had it.
pub(super) fn lock_ping_pong(f: &Facts) -> Option<Cause> {
    let (asked, clients) = f.callbacks;
    let (enqueues, enqueue_s) = f.enqueues;
    let again = enqueue_s * (asked as f64 / enqueues.max(1) as f64).min(1.0);
    let share = f.share(Segment::LockWait, None) + again / f.op_s().max(1e-12);
    let per_op = asked as f64 / f.count().max(1) as f64;
    let worst = f.contended.iter().find(|c| c.clients > 1)?;
    let (seq, oid, ver) = worst.fid;
    let named = share >= SHARE_LEAST && clients > 1 && per_op >= CALLBACKS_LEAST;
    named.then(|| Cause {
        kind: CauseKind::LockPingPong,
        subject: format!("[{seq:#x}:{oid:#x}:{ver:#x}]"),
        fid: Some(worst.fid),
        share: share.min(1.0),
        figure: format!(
            "{clients} clients gave {asked} locks back, {per_op:.2} an operation; {} waited for its lock {} times, {} each",
            worst.clients,
            worst.waits,
            ms(worst.wait_s / worst.waits.max(1) as f64)
        ),
        ceiling: None,
        change: "give each client a file or a directory of its own".to_owned(),
    })
}

/// Several clients write one file: the servers take its locks for them, and every write and read goes out at once.
pub(super) fn shared_file(f: &Facts) -> Option<Cause> {
    let waits = |fid| f.contended.iter().find(|c| c.fid == fid && c.clients > 1);
    let (s, waits) = (f.shared.iter()).find_map(|s| Some((s, waits(s.fid)?)))?;
    let share = s.seconds / f.op_s().max(1e-12);
    let (seq, oid, ver) = s.fid;
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::LockPingPong,
        subject: format!("[{seq:#x}:{oid:#x}:{ver:#x}]"),
        fid: Some(s.fid),
        share: share.min(1.0),
        figure: format!(
            "{} clients write it; {} writes and reads went past their caches, and {} waited for its lock, {} each",
            s.writers,
            s.at_once,
            waits.waits,
            ms(waits.wait_s / waits.waits.max(1) as f64)
        ),
        ceiling: None,
        change: "give each client a file of its own".to_owned(),
    })
}
