//! Whether operations wait less for locks since mounts have given theirs back.
//!
//! # Invariants
//! - Only operations that have ended, of the names that waited before, say that the waits are over: what still waits is in no record.
//! - Each name is compared by itself, with as many operations as there were before, so that another mix of operations is no change.

use std::collections::BTreeMap;

use coral_stopwatch::{Begun, Dump, Wait};

use super::facts::{seconds, waits_for_a_program};
use super::going::is_server;
use super::rules::{SHARE_LEAST, ms};
use super::seen::Seen;
use super::trial::{ENOUGH, LEAST_COUNT, Outcome, Was};
use crate::attribution::{Joined, Segment};

/// A request that is not answered may wait for a lock when it is so many times as old as an operation of its name took before.
const TIMES_OLD: f64 = 3.0;

/// Operations of one name that have ended, with their waits for locks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LockKind {
    /// How many.
    pub count: u64,
    /// Seconds of all together.
    pub seconds: f64,
    /// Those that waited for a lock.
    pub waits: u64,
    /// Seconds that these waited.
    pub waited_s: f64,
}

/// An operation that has not ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// Its name.
    pub op: String,
    /// Seconds that it has waited.
    pub seconds: f64,
    /// For a lock, as it was told; else for an answer of a server, where it may wait for one.
    pub for_lock: bool,
}

/// Waits for locks in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LockWindow {
    /// Operations that have ended, by name.
    pub kinds: BTreeMap<String, LockKind>,
    /// Operations that had not ended when it was asked.
    pub waiting: Vec<Waiting>,
}

impl LockWindow {
    /// Of what was seen, without waits for locks that programs have.
    pub fn of(seen: &Seen, joined: &Joined) -> LockWindow {
        let mut all = LockWindow::default();
        for o in joined.ops.iter().filter(|o| !waits_for_a_program(o)) {
            let waited = o.in_segment(Segment::LockWait);
            let k = all.kinds.entry(o.op.op.to_string()).or_default();
            k.count += 1;
            k.seconds += seconds(o.ns());
            k.waits += u64::from(waited > 0);
            k.waited_s += seconds(waited);
        }
        let clients = seen.dumps.iter().filter(|d| !is_server(d));
        all.waiting = clients.flat_map(waiting).collect();
        all
    }

    /// The names whose operations have a good part of the waits.
    fn waited(&self) -> impl Iterator<Item = (&str, &LockKind)> {
        let all: f64 = self.kinds.values().map(|k| k.waited_s).sum();
        let most = move |k: &LockKind| k.waited_s > 0.0 && k.waited_s >= SHARE_LEAST * all;
        let kinds = self.kinds.iter().map(|(op, k)| (op.as_str(), k));
        kinds.filter(move |(_, k)| most(k))
    }

    /// Of operations that have not ended the one that has waited longest, of those that wait longer than others of their name did
    /// `before`.
    fn still_waits(&self, before: &LockWindow) -> Option<&Waiting> {
        let kinds: BTreeMap<&str, &LockKind> = before.waited().collect();
        let is_longer = |w: &&Waiting| {
            kinds.get(w.op.as_str()).is_some_and(|k| match w.for_lock {
                true => w.seconds > k.waited_s / k.waits.max(1) as f64,
                false => w.seconds > TIMES_OLD * k.seconds / k.count.max(1) as f64,
            })
        };
        let longer = self.waiting.iter().filter(is_longer);
        longer.max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// Operations of a client that have been told to wait for a lock, or have a request that is sent and not answered.
fn waiting(d: &Dump) -> impl Iterator<Item = Waiting> {
    let of = |b: &Begun| {
        let sent = |r: &&Begun| r.opc.is_some() && r.op == b.op && r.waits.is_none();
        let sent = d.under_way.iter().filter(sent).map(|r| r.begun).min();
        let (since, for_lock) = match b.waits {
            Some((Wait::Lock, since)) => (since, true),
            _ => (sent?, false),
        };
        Some(Waiting {
            op: b.name.to_string(),
            seconds: seconds((d.now - since).max(0)),
            for_lock,
        })
    };
    let ops = d.under_way.iter().filter(|b| b.opc.is_none());
    ops.filter_map(of)
}

/// Waits for locks before mounts gave back those that they had, and after.
pub fn given_back(before: &LockWindow, after: &LockWindow) -> Outcome {
    let none = LockKind::default();
    let (mut before_s, mut after_s, mut count, mut ended) = (0.0, 0.0, 0, 0);
    let mut missing = None;
    for (op, was) in before.waited() {
        let is = after.kinds.get(op).unwrap_or(&none);
        (count, ended) = (count + was.count, ended + is.count);
        before_s += was.waited_s;
        after_s += is.waited_s / is.count.max(1) as f64 * was.count as f64;
        missing = missing.or((is.count == 0).then_some(op));
    }
    let each = |s: f64| ms(s / count.max(1) as f64);
    let figures = vec![
        format!("before: an operation waits {} for locks", each(before_s)),
        match ended {
            0 => "after: none of those that waited before has ended".to_owned(),
            _ => format!("after: {}", each(after_s)),
        },
    ];
    if ended < LEAST_COUNT {
        let why = format!("{ended} operations of those that waited before ended after it");
        return Outcome::open(figures, why);
    }
    if let Some(op) = missing {
        let why = format!("{op} waited for locks before, and none ended after it");
        return Outcome::open(figures, why);
    }
    if let Some(w) = after.still_waits(before) {
        let what = match w.for_lock {
            true => "a lock",
            false => "an answer, maybe for a lock at the server",
        };
        let why = format!(
            "{} under way has waited {} for {what}: longer than before",
            w.op,
            ms(w.seconds)
        );
        return Outcome::open(figures, why);
    }
    match after_s <= ENOUGH * before_s {
        true => Outcome::of(Was::First, figures),
        false => Outcome::open(
            figures,
            "locks that are taken anew all the time are waited for as before".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::Op;
    use coral_wire::opc;

    use super::*;

    /// So many operations of each name, of 10 ms each, which waited so long for locks.
    fn window(kinds: &[(&str, u64, f64)]) -> LockWindow {
        let kind = |(op, count, each_s): &(&str, u64, f64)| {
            let k = LockKind {
                count: *count,
                seconds: 0.01 * *count as f64,
                waits: if *each_s > 0.0 { *count } else { 0 },
                waited_s: each_s * *count as f64,
            };
            ((*op).to_owned(), k)
        };
        LockWindow {
            kinds: kinds.iter().map(kind).collect(),
            waiting: vec![],
        }
    }

    fn was(before: &[(&str, u64, f64)], after: &[(&str, u64, f64)]) -> Was {
        given_back(&window(before), &window(after)).was
    }

    #[test]
    fn operations_that_wait_no_more_tell_that_it_was_these_locks() {
        let before = [("UNLINK", 100, 0.009), ("READ", 1000, 0.000_001)];
        assert_eq!(was(&before, &[("UNLINK", 100, 0.000_1)]), Was::First);
        assert_eq!(was(&before, &[("UNLINK", 100, 0.008)]), Was::Open);
        // that more of others end is no change
        let others = [("UNLINK", 10, 0.008), ("READ", 9000, 0.0)];
        assert_eq!(was(&before, &others), Was::Open);
    }

    #[test]
    fn without_operations_that_ended_nothing_is_told() {
        let before = [("UNLINK", 100, 0.009), ("READ", 1000, 0.0)];
        assert_eq!(was(&before, &[]), Was::Open);
        assert_eq!(was(&before, &[("READ", 1000, 0.0)]), Was::Open);
        assert_eq!(was(&before, &[("UNLINK", 9, 0.0)]), Was::Open);
        assert_eq!(was(&before, &[("UNLINK", 10, 0.0)]), Was::First);
        let two = [("UNLINK", 100, 0.009), ("RENAME", 100, 0.009)];
        assert_eq!(was(&two, &[("UNLINK", 100, 0.0)]), Was::Open);
        let none = given_back(&window(&before), &window(&[]));
        let told = "after: none of those that waited before has ended";
        assert_eq!(none.figures[1], told);
        assert_eq!(was(&[], &before), Was::Open);
    }

    #[test]
    fn while_one_waits_longer_than_before_nothing_is_told() {
        let of = |op: &str, seconds: f64, for_lock: bool| {
            let mut after = window(&[("UNLINK", 100, 0.0)]);
            after.waiting = vec![Waiting {
                op: op.to_owned(),
                seconds,
                for_lock,
            }];
            given_back(&window(&[("UNLINK", 100, 0.009)]), &after)
        };
        let still = of("UNLINK", 5.0, true);
        assert_eq!(still.was, Was::Open);
        let told = "UNLINK under way has waited 5.00 s for a lock: longer than before";
        assert_eq!(still.why.as_deref(), Some(told));
        assert_eq!(of("UNLINK", 0.008, true).was, Was::First);
        assert_eq!(of("READ", 5.0, true).was, Was::First);
        // at a server it may be on its way, or run
        assert_eq!(of("UNLINK", 0.02, false).was, Was::First);
        assert_eq!(of("UNLINK", 5.0, false).was, Was::Open);
    }

    /// Of two operations under way one was told to wait for a lock, and the other one has a request that is not answered.
    #[test]
    fn who_waits_under_way_is_known() {
        const S: i64 = 1_000_000_000;
        let begun = |op: u64, opc: Option<u32>, waits| Begun {
            op,
            name: if opc.is_none() { "UNLINK" } else { "" }.into(),
            opc,
            target: "fs-MDT0000_UUID".into(),
            fid: (5, 6, 0),
            begun: 6 * S,
            waits,
        };
        let seen = Seen {
            dumps: vec![Dump {
                now: 10 * S,
                names: vec!["c@tcp".into()],
                ops: vec![Op {
                    id: 9,
                    op: "UNLINK".into(),
                    fid: (5, 6, 0),
                    span: (0, S),
                    run_ns: 0,
                    waits: vec![],
                }],
                under_way: vec![
                    begun(1, None, Some((Wait::Lock, 7 * S))),
                    begun(2, None, None),
                    begun(2, Some(opc::MDS_REINT), None),
                    begun(3, None, None),
                    begun(3, Some(opc::MDS_REINT), Some((Wait::Slot, 6 * S))),
                ],
                ..Dump::default()
            }],
            ..Seen::default()
        };
        let of = LockWindow::of(&seen, &seen.joined());
        assert_eq!((of.kinds["UNLINK"].count, of.kinds["UNLINK"].waits), (1, 0));
        let waits: Vec<(f64, bool)> = of.waiting.iter().map(|w| (w.seconds, w.for_lock)).collect();
        assert_eq!(waits, [(3.0, true), (4.0, false)]);
    }
}
