//! The time that is judged: which operations are of it, and which part of them.
//!
//! # Invariants
//! - All nodes are cut at the same moments, on one clock.
//! - An operation counts that ended in the time, with the part of it that is within; of a step only what began with it or later.

use std::collections::BTreeSet;

use coral_stopwatch::Dump;
use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::going::{is_server, tops};
use super::seen::{Seen, is_lossy, oldest, tells};
use super::stray::{LEAST_LOAD, Stray, stray};
use super::trial::LEAST_COUNT;
use crate::attribution::to_one_clock;

/// Operations that began before the time that is judged and ended in it: the part of them counts that is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// How many.
    pub count: u64,
    /// Seconds of them that were before, all together.
    pub seconds: f64,
    /// Seconds from the beginning of the oldest to that of the time that is judged.
    pub oldest_s: f64,
}

/// The time that operations are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Its seconds.
    pub seconds: f64,
    /// Seconds that were asked for.
    pub asked_s: f64,
    /// The commands of a step were of unequal length: it is the time in which all ran.
    #[serde(default)]
    pub is_common: bool,
    /// Operations before it that a long idle time parts from it, and the seconds of that.
    #[serde(default)]
    pub before: (u64, f64),
    /// Operations, and RPCs in the background, that began before the step and had not ended with it; and seconds from the beginning of
    /// the oldest to that of the step.
    #[serde(default)]
    pub left: (u64, f64),
    /// Operations long after the load, which are none, and the seconds from its end to the first of them.
    #[serde(default)]
    pub after: (u64, f64),
}

impl std::fmt::Display for Span {
    /// A line, where it is not simply all that was asked for.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_cut = self.seconds < NEARLY_WHOLE * self.asked_s;
        let (seconds, asked) = (self.seconds, self.asked_s);
        match (self.is_common, is_cut) {
            (false, false) => {}
            (true, false) => writeln!(
                out,
                "operations of the {asked:.1} s in which all commands ran"
            )?,
            (true, true) => writeln!(
                out,
                "operations of the last {seconds:.2} s of {asked:.1} s in which all commands ran: the records reach back no further"
            )?,
            (false, true) => writeln!(
                out,
                "operations of the last {seconds:.2} s of {asked:.1} s: the records reach back no further"
            )?,
        }
        if let (count @ 1.., idle_s) = self.before {
            writeln!(
                out,
                "left out: {count} operations before the load, from which {idle_s:.1} s without any part it"
            )?;
        }
        if let (count @ 1.., pause_s) = self.after {
            let operations = match count {
                1 => "operation",
                _ => "operations",
            };
            writeln!(
                out,
                "left out: {count} {operations} after the load, {pause_s:.1} s or more after its end"
            )?;
        }
        if let (count @ 1.., oldest_s) = self.left {
            let (what, which) = match count {
                1 => ("operation that was", "it began"),
                _ => ("operations that were", "the oldest began"),
            };
            writeln!(
                out,
                "left out: {count} {what} under way all the time; {which} {oldest_s:.1} s before the commands"
            )?;
        }
        Ok(())
    }
}

/// A time is all that was asked for when it is so large a part of it.
const NEARLY_WHOLE: f64 = 0.95;
/// Operations that so long a time without any parts from what comes after them are of another load, seconds; as long as they are fewer
/// than one in so many.
const IDLE_S: f64 = 1.0;
const FEW_OF: usize = 10;
/// Or where [`LEAST_LOAD`] come after it, without a pause that is longer than this part of it.
const TIMES_PAUSE: f64 = 3.0;

impl Seen {
    /// Operations of the last `seconds` before the last dump was made, with what belongs to them: see [`Self::recent`].
    pub fn last(&self, seconds: f64) -> Seen {
        self.until_now(seconds).0
    }

    /// The same, with how many seconds that are, and how long ago the last of these operations ended.
    pub fn until_now(&self, seconds: f64) -> (Seen, f64, f64) {
        let seen = self.on_one_clock();
        let (last, seconds) = seen.before(seen.now(), seen.until(), seconds, i64::MIN);
        let (last, seconds) = last.after_a_pause(seen.now(), seconds);
        let ops = last.dumps.iter().flat_map(|d| &d.ops);
        let ended = ops.map(|o| o.span.1).max();
        let ago = ended.map_or(seconds, |at| seen.since(at));
        (last, seconds, ago)
    }

    /// Operations that began in the time from `from_s` to `to_s` seconds before the last dump was made, and ended in it: of a step, in
    /// which all its commands ran.
    pub fn within(&self, from_s: f64, to_s: f64, is_common: bool) -> Seen {
        let seen = self.on_one_clock();
        let at = seen.now() - (to_s * 1e9) as i64;
        let asked_s = from_s - to_s;
        let began = at.saturating_sub((asked_s * 1e9) as i64);
        let (mut within, seconds) = seen.before(at, seen.until().min(at), asked_s, began);
        let left = within.leave_to(began, at);
        within.span = Some(Span {
            seconds,
            asked_s,
            is_common,
            left,
            ..Span::default()
        });
        within
    }

    /// Operations of a file, as far as all processes have told of them, and without those of long before the load. What was chosen
    /// already stays.
    pub fn of_file(self) -> Seen {
        if self.span.is_some() {
            return self;
        }
        let (mut recent, _, _) = self.recent(f64::INFINITY);
        let mut spans: Vec<(i64, i64)> = recent.op_spans().collect();
        spans.sort_unstable();
        let all: Vec<(i64, i64)> = self.on_one_clock().op_spans().collect();
        let whole = |spans: &[(i64, i64)]| {
            let from = spans.iter().map(|s| s.0).min().unwrap_or(0);
            let to = spans.iter().map(|s| s.1).max().unwrap_or(0);
            (to - from) as f64 / 1e9
        };
        let mut before = (0, 0.0);
        let mut until = i64::MIN;
        for (i, (begun, ended)) in spans.iter().enumerate() {
            let idle_s = begun.saturating_sub(until) as f64 / 1e9;
            if i > 0 && idle_s >= IDLE_S && i * FEW_OF <= spans.len() {
                before = (i as u64, idle_s);
            }
            until = until.max(*ended);
        }
        let rest = &spans[before.0 as usize..];
        if let (1.., Some((from, _))) = (before.0, rest.first()) {
            recent = recent.cut(*from, i64::MAX, *from);
        }
        let seconds = whole(rest);
        let lost = all.len() > spans.len();
        recent.span = Some(Span {
            seconds,
            asked_s: if lost && before.0 == 0 {
                whole(&all)
            } else {
                seconds
            },
            before,
            ..Span::default()
        });
        recent
    }

    /// Without what was before a pause in which no operation was under way: of what has come since then there is enough for a load of its
    /// own, and it makes no such pauses. `seconds` are those up to `at`.
    fn after_a_pause(mut self, at: i64, seconds: f64) -> (Seen, f64) {
        let begun = self.dumps.iter().flat_map(|d| &d.under_way);
        let begun = begun.filter(|b| b.opc.is_none()).map(|b| (b.begun, at));
        let ended: Vec<(i64, i64)> = self.op_spans().collect();
        let mut spans: Vec<(i64, i64)> = ended.iter().copied().chain(begun).collect();
        spans.sort_unstable();
        let mut pauses: Vec<(i64, f64)> = vec![];
        let mut until = spans.first().map_or(0, |s| s.1);
        for (begun, ended) in spans {
            pauses.push((begun, (begun - until) as f64 / 1e9));
            until = until.max(ended);
        }
        let mut longest_s = 0.0_f64;
        for (from, idle_s) in pauses.into_iter().rev() {
            let before = ended.iter().filter(|s| s.0 < from).count();
            let is_another = idle_s >= IDLE_S.max(TIMES_PAUSE * longest_s);
            if is_another && ended.len() - before >= LEAST_LOAD {
                self = self.cut(from, i64::MAX, i64::MIN);
                let seconds = (at - from) as f64 / 1e9;
                self.span = Some(Span {
                    seconds,
                    asked_s: seconds,
                    before: (before as u64, idle_s),
                    ..Span::default()
                });
                return (self, seconds);
            }
            longest_s = longest_s.max(idle_s);
        }
        (self, seconds)
    }

    fn op_spans(&self) -> impl Iterator<Item = (i64, i64)> {
        self.dumps.iter().flat_map(|d| &d.ops).map(|o| o.span)
    }

    /// When the first operation began of which anybody has told, on the clock to which [`Self::recent`] sets all.
    pub fn first_begun(&self) -> Option<i64> {
        self.on_one_clock().op_spans().map(|s| s.0).min()
    }

    /// Operations of the last `seconds` of the load: before the last of them ended, whenever that was. Also how many seconds that are,
    /// and how long ago it ended. A few operations long after a load are none, see [`stray`].
    ///
    /// Dumps are made one after the other. So all moments are taken to one clock first, and operations that ended after a server
    /// or a router had told its part are left out. Where one of these has lost records, it is only as far back as it reaches: of
    /// older operations nobody knows where their time went.
    pub fn recent(&self, seconds: f64) -> (Seen, f64, f64) {
        let seen = self.on_one_clock();
        let until = seen.until();
        let ops = seen.dumps.iter().flat_map(|d| &d.ops);
        let ends = ops.map(|o| o.span.1).filter(|at| *at <= until);
        let Some(ended) = ends.max() else {
            return (self.clone(), 0.0, 0.0);
        };
        if seconds.is_infinite() {
            let (recent, seconds) = seen.before(ended, until, seconds, i64::MIN);
            return (recent, seconds, seen.since(ended));
        }
        let stray = seen.stray(until, seconds);
        let (ended, until) = stray.map_or((ended, until), |s| (s.load_ended, s.load_ended));
        let (recent, seconds) = seen.before(ended, until, seconds, i64::MIN);
        let (mut recent, seconds) = recent.after_a_pause(ended, seconds);
        if let Some(s) = stray {
            let all = Span {
                seconds,
                asked_s: seconds,
                ..Span::default()
            };
            recent.span.get_or_insert(all).after = (s.count, s.pause_s);
        }
        (recent, seconds, seen.since(ended))
    }

    /// Operations that ended by `until` and are no load, after one. Where something is under way nobody knows what it will be.
    fn stray(&self, until: i64, seconds: f64) -> Option<Stray> {
        if self.is_under_way() {
            return None;
        }
        let spans = self.op_spans().filter(|s| s.1 <= until).collect();
        stray(spans, seconds, self.reach().unwrap_or(i64::MIN))
    }

    /// Since when all records are there, where some have gone.
    fn reach(&self) -> Option<i64> {
        let lossy = self.dumps.iter().filter(|d| is_lossy(d));
        lossy.filter_map(oldest).max()
    }

    /// Seconds from this moment to the last one of which it is known which operations had ended: when the last client of the load told, or
    /// before that the first of those that tell what became of an RPC. On a busy machine others tell much later, and the load goes on.
    fn since(&self, at: i64) -> f64 {
        let clients = self.dumps.iter().filter(|d| !d.ops.is_empty());
        let known = clients.map(|d| d.now).max().unwrap_or_else(|| self.now());
        (known.min(self.until()) - at).max(0) as f64 / 1e9
    }

    /// The same with the clocks of all dumps set to one.
    fn on_one_clock(&self) -> Seen {
        let mut seen = self.clone();
        let by = to_one_clock(&seen.dumps);
        seen.dumps
            .iter_mut()
            .zip(by)
            .for_each(|(d, by)| shift(d, by));
        seen
    }

    /// When the last dump was made.
    pub(super) fn now(&self) -> i64 {
        self.dumps.iter().map(|d| d.now).max().unwrap_or(0)
    }

    /// When the first of those was made that tell what became of an RPC.
    fn until(&self) -> i64 {
        let tell = self.dumps.iter().filter(|d| tells(d));
        tell.map(|d| d.now).min().unwrap_or_else(|| self.now())
    }

    /// What operations did in the `seconds` before `at`, or since all records are there, of those that began at `began` or later and
    /// ended by `until`; and how many seconds that are.
    fn before(&self, at: i64, until: i64, seconds: f64, began: i64) -> (Seen, f64) {
        let from = at.saturating_sub((seconds * 1e9) as i64);
        let since = self.reach().map_or(from, |r| r.clamp(from, at.max(from)));
        let seen = self.cut(since, until, began);
        let count: usize = seen.dumps.iter().map(|d| d.ops.len()).sum();
        match (count as u64) < LEAST_COUNT {
            true => (self.cut(from, until, began), seconds),
            false => (seen, at.saturating_sub(since) as f64 / 1e9),
        }
    }

    /// Operations that began at `began` or later and ended from `from` to `until`, and what went on since then. Of one that began before
    /// `from` the rest counts: it was under way, however long it had been.
    fn cut(&self, from: i64, until: i64, began: i64) -> Seen {
        let mut seen = self.clone();
        let mut earlier = Earlier::default();
        for d in &mut seen.dumps {
            let counts = |(begun, ended): (i64, i64)| begun >= began && ended > from;
            d.ops
                .retain(|o| o.span.1 <= until && (o.span.0 >= from || counts(o.span)));
            for o in d.ops.iter_mut().filter(|o| o.span.0 < from) {
                let before_s = (from - o.span.0) as f64 / 1e9;
                earlier.count += 1;
                earlier.seconds += before_s;
                earlier.oldest_s = earlier.oldest_s.max(before_s);
                let took = (o.span.1 - o.span.0).max(1) as f64;
                let left = (o.span.1 - from) as f64 / took;
                // Nobody knows when in it that was.
                o.run_ns = (o.run_ns as f64 * left) as u64;
                o.span.0 = from;
            }
            let ids: BTreeSet<u64> = d.ops.iter().map(|o| o.id).collect();
            let fids: BTreeSet<_> = d.ops.iter().map(|o| o.fid).collect();
            // What is in the background may be what an operation on that file waits for.
            let is_needed = |r: &coral_stopwatch::Rpc| match r.op {
                0 => r.span.0 >= began || fids.contains(&r.fid),
                op => ids.contains(&op),
            };
            d.rpcs
                .retain(|r| r.span.0 >= from || (r.span.1 >= from && is_needed(r)));
            d.served.retain(|s| s.replied >= from);
            d.passages.retain(|p| p.passed >= from);
        }
        seen.earlier = (earlier.count > 0).then_some(earlier);
        seen
    }

    /// Leaves to others what was under way of clients and did not begin from `began` to `until`. What had begun before: how many, and
    /// how many seconds before the oldest.
    fn leave_to(&mut self, began: i64, until: i64) -> (u64, f64) {
        let mut left = (0, 0.0_f64);
        for d in self.dumps.iter_mut().filter(|d| !is_server(d)) {
            let all = std::mem::take(&mut d.under_way);
            let (own, others): (Vec<_>, Vec<_>) =
                (all.into_iter()).partition(|b| (began..=until).contains(&b.begun));
            d.under_way = own;
            for b in tops(&others).filter(|b| b.begun < began) {
                left.0 += 1;
                left.1 = left.1.max((began - b.begun) as f64 / 1e9);
            }
        }
        left
    }
}

impl Facts {
    /// Seconds that its operations are of, from the first one's beginning to the last one's end, where `looked_s` were looked at: a load
    /// may be younger.
    pub fn of_s(&self, looked_s: f64) -> f64 {
        match self.window_s > 0.0 {
            true => looked_s.min(self.window_s),
            false => looked_s,
        }
    }
}

/// Sets the clock of a dump forward.
fn shift(d: &mut Dump, by: i64) {
    if by == 0 {
        return;
    }
    let waits = |waits: &mut coral_stopwatch::Waits| {
        for (_, from, to) in waits {
            (*from, *to) = (*from + by, *to + by);
        }
    };
    d.now += by;
    if let Some(machine) = &mut d.machine {
        machine.base_ns -= by;
    }
    for o in &mut d.ops {
        (o.span.0, o.span.1) = (o.span.0 + by, o.span.1 + by);
        waits(&mut o.waits);
    }
    for r in &mut d.rpcs {
        let (begun, ended) = (&mut r.span.0, &mut r.span.1);
        let all = [begun, ended, &mut r.sending, &mut r.sent, &mut r.reply];
        all.into_iter().for_each(|at| *at += by);
        waits(&mut r.waits);
    }
    for s in &mut d.served {
        let all = [
            &mut s.arrived,
            &mut s.begun,
            &mut s.replying,
            &mut s.replied,
        ];
        all.into_iter().for_each(|at| *at += by);
        waits(&mut s.waits);
    }
    for p in &mut d.passages {
        let all = [&mut p.arrived, &mut p.admitted, &mut p.whole, &mut p.passed];
        all.into_iter().for_each(|at| *at += by);
    }
    for u in &mut d.under_way {
        u.begun += by;
        if let Some((_, since)) = &mut u.waits {
            *since += by;
        }
    }
}
