//! RPCs that wait for a slot while others to the same target end: a queue moves, however old what stands in it is, and is no standstill.

use std::collections::{BTreeMap, BTreeSet};

use coral_stopwatch::{Begun, Dump, Wait};

use super::facts::{Facts, seconds};
use super::going::{is_server, tops};
use super::rules::{Cause, CauseKind, SHARE_LEAST, ms};
use super::slots::more_slots;

/// A queue moves when an RPC to its target has ended in so many nanoseconds.
const MOVES_NS: i64 = 1_000_000_000;

/// RPCs to one target that wait for a slot while others to it end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queued {
    /// The target.
    pub target: String,
    /// Operations whose RPC waits.
    pub operations: u64,
    /// RPCs of no operation that wait, for which no program does.
    pub background: u64,
    /// Seconds since the oldest of all these began.
    pub oldest_s: f64,
    /// Seconds since each of the operations began, all together.
    pub seconds: f64,
    /// RPCs to the target that ended in a second, lately.
    pub ended_per_s: f64,
    /// RPCs that a client may have in flight to it.
    pub in_flight_max: u32,
}

impl Queued {
    /// What waits, in words.
    pub(super) fn counted(&self) -> String {
        let (operations, background) = (self.operations, self.background);
        let words = |n: u64, what: &str| match n {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        let operations = (operations > 0).then(|| words(operations, "operation"));
        let background = (background > 0).then(|| words(background, "RPC") + " in the background");
        let all: Vec<String> = operations.into_iter().chain(background).collect();
        let verb = if self.operations + self.background == 1 {
            "waits"
        } else {
            "wait"
        };
        format!("{} {verb}", all.join(" and "))
    }
}

impl std::fmt::Display for Queued {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} for an RPC slot of {}, the oldest for {}; meanwhile {:.1} RPCs to it end in a second",
            self.counted(),
            self.target,
            ms(self.oldest_s),
            self.ended_per_s
        )
    }
}

/// RPCs of a client to one target that have ended lately.
#[derive(Clone, Copy, Debug, Default)]
struct Moving {
    per_s: f64,
    /// The longest of them, with its wait for a slot.
    longest_ns: i64,
    in_flight_max: u32,
}

/// By target, as the records of a client name it: those to which RPCs end.
fn moving(d: &Dump) -> BTreeMap<&str, Moving> {
    let recent = d.rpcs.iter().filter(|r| d.now - r.span.1 < MOVES_NS);
    let first = d.rpcs.iter().map(|r| r.span.1).min().unwrap_or(d.now);
    let reach_s = seconds((d.now - first).clamp(1, MOVES_NS));
    let mut all: BTreeMap<&str, Moving> = BTreeMap::new();
    for r in recent {
        let m = all.entry(&r.target).or_default();
        m.per_s += 1.0 / reach_s;
        m.longest_ns = m.longest_ns.max(r.span.1 - r.span.0);
        m.in_flight_max = m.in_flight_max.max(r.in_flight_max);
    }
    all
}

/// Of each operation under way its RPC that began first.
pub(super) fn first_rpcs(all: &[Begun]) -> BTreeMap<u64, &Begun> {
    let mut first: BTreeMap<u64, &Begun> = BTreeMap::new();
    for r in all.iter().filter(|b| b.opc.is_some() && b.op != 0) {
        let of = first.entry(r.op).or_insert(r);
        if r.begun < of.begun {
            *of = r;
        }
    }
    first
}

/// What stands in a queue that moves, of what a client has under way, by number of the operation and when it began. What has just left
/// the queue is as old as what stands in it, and moves too.
pub(super) fn in_queue(d: &Dump) -> BTreeSet<(u64, i64)> {
    let (moving, first) = (moving(d), first_rpcs(&d.under_way));
    let mut all: BTreeSet<(u64, i64)> = BTreeSet::new();
    let mut queues: BTreeSet<&str> = BTreeSet::new();
    for (b, target) in waiting(d) {
        all.insert((b.op, b.begun));
        queues.insert(target);
    }
    let has_left = |b: &&Begun| {
        let Some(rpc) = first_rpc(b, &first).filter(|r| queues.contains(&*r.target)) else {
            return false;
        };
        let longest = moving.get(&*rpc.target).map_or(0, |m| m.longest_ns);
        rpc.waits.is_none() && d.now - rpc.begun < longest + MOVES_NS
    };
    all.extend(tops(&d.under_way).filter(has_left).map(|b| (b.op, b.begun)));
    all
}

/// The RPC of an operation that began first; or itself, where it is one of none.
fn first_rpc<'a>(b: &'a Begun, first: &BTreeMap<u64, &'a Begun>) -> Option<&'a Begun> {
    match b.opc {
        Some(_) => Some(b),
        None => first.get(&b.op).copied(),
    }
}

/// Operations, and RPCs of none, that wait for a slot of a target whose RPCs end; each with that target.
pub(super) fn waiting(d: &Dump) -> impl Iterator<Item = (&Begun, &str)> {
    let (moving, first) = (moving(d), first_rpcs(&d.under_way));
    tops(&d.under_way).filter_map(move |b| {
        let rpc = first_rpc(b, &first)?;
        let waits = rpc.waits.is_some_and(|(wait, _)| wait == Wait::Slot);
        let moves = moving.contains_key(&*rpc.target);
        (waits && moves).then_some((b, &*rpc.target))
    })
}

/// The queue with most of the time, of all clients together; None: nothing waits.
pub(super) fn queued(dumps: &[Dump]) -> Option<Queued> {
    let mut all: BTreeMap<String, Queued> = BTreeMap::new();
    for d in dumps.iter().filter(|d| !is_server(d)) {
        let moving = moving(d);
        let mut own: BTreeSet<&str> = BTreeSet::new();
        for (b, target) in waiting(d) {
            let q = all.entry(target.to_owned()).or_default();
            let age_s = seconds(d.now - b.begun).max(0.0);
            q.oldest_s = q.oldest_s.max(age_s);
            match b.opc {
                Some(_) => q.background += 1,
                None => {
                    q.operations += 1;
                    q.seconds += age_s;
                }
            }
            own.insert(target);
        }
        for target in own {
            let q = all.entry(target.to_owned()).or_default();
            let m = moving.get(target).copied().unwrap_or_default();
            q.target = target.trim_end_matches("_UUID").to_owned();
            q.ended_per_s += m.per_s;
            q.in_flight_max = q.in_flight_max.max(m.in_flight_max);
        }
    }
    let most = |q: &Queued| (q.seconds, (q.operations + q.background) as f64);
    all.into_values().max_by(|a, b| {
        most(a)
            .partial_cmp(&most(b))
            .unwrap_or(std::cmp::Ordering::Equal)
    })
}

/// Operations that stand in a queue have most of the time, and those that have ended do not show it.
pub(super) fn queue(f: &Facts, others_s: f64) -> Option<Cause> {
    let q = f.queued.as_ref().filter(|q| q.operations > 0)?;
    // As those that have ended: what was before the time that is judged does not count.
    let judged_s = f.asked_s.max(f.window_s);
    let waited_s = match judged_s > 0.0 {
        true => q.seconds.min(judged_s * q.operations as f64),
        false => q.seconds,
    };
    let share = waited_s / (waited_s + f.op_s() + others_s).max(1e-12);
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::Window,
        subject: q.target.clone(),
        fid: None,
        share,
        figure: format!("{q}; {} may be in flight", q.in_flight_max),
        ceiling: None,
        change: more_slots([q.target.as_str()], q.in_flight_max),
    })
}

#[cfg(test)]
mod tests {
    use super::super::going::going;
    use super::*;
    use crate::attribution::rpc_of;
    use coral_wire::opc;

    const S: i64 = 1_000_000_000;

    fn begun(op: u64, opc: Option<u32>, age_s: i64, waits: bool) -> Begun {
        Begun {
            op,
            name: if opc.is_none() { "CREATE" } else { "" }.into(),
            opc,
            target: "fs-MDT0000_UUID".into(),
            fid: (5, 6, 0),
            begun: (100 - age_s) * S,
            waits: waits.then_some((Wait::Slot, (100 - age_s) * S)),
        }
    }

    /// A client at 100 s: programs wait for a slot of the MDT since so many seconds each, and as many closes in the background; the last
    /// RPC to it ended so long ago, after it had waited for 60 s too.
    fn backlog(ages_s: &[i64], quiet_ms: i64) -> Dump {
        let end = 100 * S - quiet_ms * 1_000_000;
        let ended = (0..20).map(|n| coral_stopwatch::Rpc {
            target: "fs-MDT0000_UUID".into(),
            in_flight_max: 8,
            ..rpc_of(opc::MDS_CLOSE, n, (end - 60 * S - n as i64, end - n as i64))
        });
        let waits = ages_s.iter().enumerate().flat_map(|(i, age_s)| {
            let op = i as u64 + 1;
            [
                begun(op, None, *age_s, false),
                begun(op, Some(opc::LDLM_ENQUEUE), *age_s, true),
                begun(0, Some(opc::MDS_CLOSE), *age_s + 1, true),
            ]
        });
        Dump {
            now: 100 * S,
            names: vec!["c@tcp".into()],
            rpcs: ended.collect(),
            under_way: waits.collect(),
            ..Dump::default()
        }
    }

    #[test]
    fn what_waits_for_a_slot_while_others_end_is_a_queue() {
        let d = backlog(&[64, 50, 2], 200);
        let q = queued(std::slice::from_ref(&d)).unwrap();
        let told = "3 operations and 3 RPCs in the background wait for an RPC slot of fs-MDT0000, the oldest for 65.00 s; meanwhile ";
        assert!(q.to_string().starts_with(told), "{q}");
        assert_eq!((q.seconds, q.in_flight_max), (116.0, 8));
        assert_eq!(going(&[d]), None, "none of it stands still");
        // nobody comes out of it
        let stuck = backlog(&[64, 50, 2], 5000);
        assert_eq!(queued(std::slice::from_ref(&stuck)), None);
        let g = going(&[stuck]).unwrap();
        assert_eq!((g.count, g.oldest_s), (6, 65.0));
    }

    /// Those that have a slot waited for it as long as the oldest do that have none.
    #[test]
    fn what_has_just_got_a_slot_is_no_older_than_the_queue() {
        let mut d = backlog(&[59, 58], 200);
        let sent = |op, age_s| {
            [
                begun(op, None, age_s, false),
                begun(op, Some(opc::LDLM_ENQUEUE), age_s, false),
            ]
        };
        d.under_way.extend(sent(10, 60));
        assert_eq!(going(std::slice::from_ref(&d)), None);
        assert_eq!(
            queued(std::slice::from_ref(&d)).unwrap().operations,
            2,
            "it waits no longer"
        );
        // one of them is not answered, and others go past it
        d.under_way.extend(sent(11, 70));
        let g = going(std::slice::from_ref(&d)).unwrap();
        assert_eq!((g.count, g.oldest_s), (1, 70.0));
        // without a queue it has been on its way since it began
        let mut alone = backlog(&[], 200);
        alone.under_way.extend(sent(12, 60));
        assert_eq!(going(&[alone]).unwrap().count, 1);
    }
}
