//! What separates the first cause from the next one, and what came out of it. Pure: who makes the trial is elsewhere.
//!
//! - [`trial`]: the one change or look that tells the first cause from the second.
//! - [`Windows`]: the operations of programs before a change, with it, and after it was put back.
//! - [`alone`]: operations of the trial itself, made one after the other on every target, judged by the rules of the verdict.
//!
//! # Invariants
//! - A change is believed only where it moves the time by more than the time moves by itself: what lies between the two windows
//!   without the change is the noise. Of a load that ended before, the outcome says that the noise is not known.
//! - Times are compared for each name of operation apart, so that another mix of operations is no change.

use serde_json::{Value, json};

use super::explain::Verdict;
use super::facts::{Facts, OpKind};
use super::lock_waits::GIVE_BACK;
use super::rules::{Cause, CauseKind, FAR, ms};
use super::seen::Seen;
use super::slots::IN_FLIGHT;
use crate::attribution::Segment;

/// Operations in a window below which nothing is said.
pub const LEAST_COUNT: u64 = 10;
/// Share of what is predicted from which on a change was the right one.
pub(super) const ENOUGH: f64 = 0.5;
/// Share of what is predicted below which it was not.
const TOO_LITTLE: f64 = 0.25;
/// So many times the noise a change has to be.
const TIMES_NOISE: f64 = 2.0;
/// A thread with such a share of its core has no room.
const THREAD_BUSY: f64 = 0.9;

/// What is done to tell the first cause from the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// A parameter of mounts is set, and put back: a pattern as `lctl set_param` takes it, and the value.
    Parameter(String, String),
    /// A router gets so many large buffers, and has the old number again afterwards.
    RouterBuffers(String, u64),
    /// Mounts give back their locks, and with them what they cache. It fills again by itself.
    ClearCache,
    /// Small files are made and written on every target in turn, by one program, and removed.
    Probe,
    /// Small files are written by one program, and by two at once, and removed.
    Concurrency,
    /// Nothing is changed: locks are counted.
    CountLocks,
    /// Nothing is changed: threads are watched.
    WatchThreads,
    /// Nothing is changed: the same is looked at once more.
    LookAgain,
}

/// The trial of a verdict's first cause, or of how many operations are under way at once; None: there is nothing to try.
pub fn trial(v: &Verdict) -> Option<Trial> {
    let Some(cause) = v.causes.first() else {
        return v.at_once.as_ref().map(|_| Trial::Concurrency);
    };
    Some(match cause.kind {
        // A trial needs operations that end.
        CauseKind::StandsStill => return None,
        CauseKind::Window if cause.subject == FAR => Trial::Concurrency,
        CauseKind::Window if advised_slots(&cause.change).is_some() => {
            // of all: operations that wait for this OST now wait for the next one then
            let value = advised_slots(&cause.change).unwrap_or_default();
            Trial::Parameter(IN_FLIGHT.to_owned(), value.to_owned())
        }
        // The trial's own requests may be of other kinds.
        CauseKind::SlowLink if cause.is_of_kinds() => Trial::LookAgain,
        CauseKind::Window | CauseKind::SlowStorage | CauseKind::SlowLink => Trial::Probe,
        CauseKind::RouterBuffers => {
            let more = cause.change.split_whitespace().find_map(|w| w.parse().ok());
            Trial::RouterBuffers(cause.subject.clone(), more.unwrap_or(1024))
        }
        CauseKind::FixedConcurrency => Trial::Concurrency,
        CauseKind::LockPingPong => Trial::CountLocks,
        CauseKind::LockWait if cause.change.contains(GIVE_BACK) => Trial::ClearCache,
        CauseKind::LockWait => Trial::LookAgain,
        CauseKind::BusyCore => Trial::WatchThreads,
        CauseKind::Swap => Trial::ClearCache,
        CauseKind::NoAnswer
        | CauseKind::Resends
        | CauseKind::Credits
        | CauseKind::Grants
        | CauseKind::ColdCache
        | CauseKind::SaturatedNetwork => Trial::LookAgain,
    })
}

/// What is said where the verdict on the last `seconds`, more than the trial looks at, names another cause first.
pub fn elsewhen(longer: &Verdict, seconds: f64, v: &Verdict) -> Option<String> {
    let (other, tried) = (longer.causes.first()?, v.causes.first()?);
    (!other.is_same(tried)).then(|| {
        format!(
            "of the last {seconds:.1} s it is {} ({}) with {:.0}% of the time: the load is not the same all the time, and what is tried is the first cause of the shorter time",
            other.kind.name(),
            other.subject,
            100.0 * other.share.min(1.0)
        )
    })
}

/// The value that a change gives to the number of RPCs in flight.
fn advised_slots(change: &str) -> Option<&str> {
    let (_, value) = change.split_once(IN_FLIGHT)?;
    let value = value.strip_prefix('=')?;
    value.split(|c: char| !c.is_ascii_digit()).next()
}

/// Which cause it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// The first.
    First,
    /// Not the first; the second, where there is one.
    Second,
    /// The trial does not tell.
    Open,
    /// The load did not go on in the trial, so that it says nothing.
    Ended,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Which cause it was.
    pub was: Was,
    /// The figures.
    pub figures: Vec<String>,
    /// Why it does not tell.
    pub why: Option<String>,
}

impl Outcome {
    pub(super) fn of(was: Was, figures: Vec<String>) -> Outcome {
        Outcome {
            was,
            figures,
            why: None,
        }
    }

    pub(super) fn open(figures: Vec<String>, why: String) -> Outcome {
        Outcome {
            was: Was::Open,
            figures,
            why: Some(why),
        }
    }

    /// The load had no part in the trial, or not in all of it.
    pub fn ended(why: String) -> Outcome {
        Outcome {
            was: Was::Ended,
            figures: vec![],
            why: Some(why),
        }
    }

    /// No trial is made: why.
    pub fn untried(why: String) -> Outcome {
        Outcome::open(vec![], why)
    }

    /// As text, with the causes that were told apart.
    pub fn text(&self, v: &Verdict) -> String {
        let mut out: String = self.figures.iter().map(|f| format!("  {f}\n")).collect();
        let named = |c: &Cause| format!("{} ({})", c.kind.name(), c.subject);
        let at_once = "the number of operations at once".to_owned();
        let first = v.causes.first().map_or(at_once, named);
        out += &match (self.was, v.causes.get(1)) {
            (Was::First, _) => format!("it is {first}\n"),
            (Was::Second, Some(second)) => {
                format!("it is not {first}; what is left is {}\n", named(second))
            }
            (Was::Second, None) => format!("it is not {first}, and no other cause stands out\n"),
            (Was::Ended, _) => format!(
                "{}: nothing can be said of {first}\n",
                self.why.as_deref().unwrap_or("")
            ),
            (Was::Open, _) => format!(
                "it does not tell whether it is {first}: {}\n",
                self.why.as_deref().unwrap_or("")
            ),
        };
        out
    }

    /// As JSON.
    pub fn json(&self, v: &Verdict) -> Value {
        let name = |i: usize| (v.causes.get(i)).map(|c: &Cause| json!([c.kind.name(), c.subject]));
        let was = match self.was {
            Was::First => name(0),
            Was::Second => name(1),
            Was::Open | Was::Ended => None,
        };
        let settled = matches!(self.was, Was::First | Was::Second);
        json!({
            "was": was, "settled": settled, "load_ended": self.was == Was::Ended,
            "figures": self.figures, "why": self.why,
        })
    }
}

/// Operations of programs in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Operations that ended, per second of the part of the window that the records reach back to.
    pub rate: f64,
    /// Operations by name.
    pub ops: Vec<OpKind>,
}

impl Window {
    /// Of the last `seconds` of what was seen.
    pub fn of(seen: &Seen, seconds: f64) -> Window {
        let last = seen.last(seconds);
        Window {
            rate: seen.dumps.iter().map(|d| d.rate(seconds)).sum(),
            ops: last.facts(&last.joined()).ops,
        }
    }

    fn count(&self) -> u64 {
        self.ops.iter().map(|o| o.count).sum()
    }

    fn mean_s(&self) -> f64 {
        self.ops.iter().map(|o| o.seconds).sum::<f64>() / self.count().max(1) as f64
    }

    fn text(&self, what: &str) -> String {
        format!(
            "{what}: {:.1} operations/s, {} each",
            self.rate,
            ms(self.mean_s())
        )
    }

    /// Time of the operations of `self` if each took what it takes in `other`, over what they took: 1 is no change.
    fn times(&self, other: &Window) -> Option<f64> {
        let (mut before, mut with) = (0.0, 0.0);
        for o in &self.ops {
            let there = other.ops.iter().find(|p| p.op == o.op && p.count > 0);
            if let Some(p) = there {
                before += o.seconds;
                with += p.seconds / p.count as f64 * o.count as f64;
            }
        }
        (before > 0.0).then(|| with / before)
    }
}

/// By which share of what it was a time fell, or rose.
fn moved(fall: f64) -> String {
    let percent = (100.0 * fall).round();
    match percent < 0.0 {
        true => format!("rose by {:.0}%", -percent),
        false => format!("fell by {:.0}%", percent.abs()),
    }
}

/// Before a change, with it, and after it was put back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Windows {
    /// Before.
    pub before: Window,
    /// With it.
    pub with: Window,
    /// Put back.
    pub after: Window,
}

impl Windows {
    /// Whether the change took away what the first cause accounts for, as far as processors have room for more: `room` is
    /// [`Verdict::room`].
    pub fn outcome(&self, first: &Cause, room: Option<f64>) -> Outcome {
        let share = first.share.min(1.0).min(room.unwrap_or(1.0));
        let mut figures = vec![
            self.before.text("before"),
            self.with.text("with it"),
            self.after.text("put back"),
        ];
        let needed = [&self.before, &self.with];
        if let Some(w) = needed.iter().find(|w| w.count() < LEAST_COUNT) {
            let why = format!("a window has {} operations only", w.count());
            return Outcome::open(figures, why);
        }
        let Some(to) = self.before.times(&self.with) else {
            return Outcome::open(figures, "the programs did other operations then".to_owned());
        };
        if self.after.count() < LEAST_COUNT {
            return self.ended(share, 1.0 - to, figures);
        }
        let Some(back) = self.before.times(&self.after) else {
            return Outcome::open(figures, "the programs did other operations then".to_owned());
        };
        // Against the mean of the two windows without it, whose distance is the noise.
        let usual = (1.0 + back) / 2.0;
        let (fall, noise) = (1.0 - to / usual, (1.0 - back).abs() / usual);
        figures.push(format!(
            "the time of an operation {}, a fall of up to {:.0}% was expected; by itself it moved by {:.0}%",
            moved(fall),
            100.0 * share,
            100.0 * noise
        ));
        let most = self.before.rate.max(self.after.rate);
        if fall >= ENOUGH * share && fall >= TIMES_NOISE * noise {
            Outcome::of(Was::First, figures)
        } else if fall < 0.0 && self.with.rate > most {
            let why = "more ended with it, also what had waited for long before, so that each took longer";
            Outcome::open(figures, why.to_owned())
        } else if fall <= TOO_LITTLE * share && noise <= TOO_LITTLE * share {
            Outcome::of(Was::Second, figures)
        } else {
            let why = match fall < TIMES_NOISE * noise {
                true => "the time moves too much by itself",
                false => "it fell by a part of that",
            };
            Outcome::open(figures, why.to_owned())
        }
    }

    /// The same where the load ended before the third window had enough of it.
    fn ended(&self, share: f64, fall: f64, mut figures: Vec<String>) -> Outcome {
        figures.push(format!(
            "the load ended: the last window has {} operations only, and by how much the time moves by itself is not known",
            self.after.count()
        ));
        figures.push(format!(
            "the time of an operation {}, a fall of up to {:.0}% was expected",
            moved(fall),
            100.0 * share
        ));
        if fall >= ENOUGH * share {
            Outcome::of(Was::First, figures)
        } else if fall <= TOO_LITTLE * share {
            Outcome::of(Was::Second, figures)
        } else {
            Outcome::open(figures, "it fell by a part of that".to_owned())
        }
    }
}

/// What the trial's own operations show, which had every target for themselves one after the other: `found` is the verdict on
/// them.
pub fn alone(found: &Verdict, facts: &Facts, v: &Verdict) -> Outcome {
    let mut figures: Vec<String> = (facts.paths.iter())
        .filter(|p| p.rpcs > 0)
        .map(|p| {
            // Those that wait for storage are a part of them, and the others are quicker.
            let all = p.seconds.get(&Segment::Storage).copied().unwrap_or(0.0);
            let way = (p.service_s - all) / p.rpcs as f64;
            format!(
                "{}, one at a time: storage {} an RPC that waits for it, all else {} an RPC",
                p.target,
                ms(p.storage_s()),
                ms(way.max(0.0))
            )
        })
        .collect();
    figures.sort();
    let is = |c: &Cause, i: usize| v.causes.get(i).is_some_and(|o| o.is_same(c));
    let has = |i: usize| found.causes.iter().any(|c| is(c, i));
    if facts.count() < LEAST_COUNT {
        let why = format!("it made {} operations only", facts.count());
        return Outcome::open(figures, why);
    }
    match (has(0), has(1)) {
        (true, _) => Outcome::of(Was::First, figures),
        (false, true) => Outcome::of(Was::Second, figures),
        (false, false) => Outcome::open(
            figures,
            "alone nothing of it is slow: it comes with the load".to_owned(),
        ),
    }
}

/// Operations in a second of a trial's own programs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Of one program.
    pub one: f64,
    /// Of two at once, each in a directory of its own.
    pub two: f64,
    /// Of two at once in the directory in which the load works; None: it works in none that is known.
    pub there: Option<f64>,
}

/// What one program and two at once can do.
pub fn two_at_once(r: Rates) -> Outcome {
    // Twice as much is expected of two, where nothing else limits them.
    let more_than = |rate: f64| r.two / rate.max(1e-12) - 1.0;
    let raises = more_than(r.one);
    let mut figures = vec![
        format!("one program: {:.1} operations/s", r.one),
        format!("two at once: {:.1} operations/s", r.two),
    ];
    if let Some(there) = r.there {
        figures.push(format!(
            "two at once in the directory of the load: {there:.1} operations/s"
        ));
        figures.extend(match raises {
            r if r <= TOO_LITTLE => Some("so it is not that directory alone".to_owned()),
            r if r < ENOUGH => None,
            _ if more_than(there) >= ENOUGH => Some("so a directory of its own for each program raises the rate, and more programs in that one do not".to_owned()),
            _ => Some("so that directory lets more programs through".to_owned()),
        });
    }
    match raises {
        r if r >= ENOUGH => Outcome::of(Was::First, figures),
        r if r <= TOO_LITTLE => Outcome::of(Was::Second, figures),
        _ => Outcome::open(figures, "two did a part of what two can".to_owned()),
    }
}

/// Operations on the file whose lock is wanted, beside those on others.
pub fn locks(f: &Facts, on_it: &OpKind, others: &OpKind, v: &Verdict) -> Outcome {
    let mean = |k: &OpKind| k.seconds / k.count.max(1) as f64;
    let (asked, clients) = f.callbacks;
    let figures = vec![
        format!("{clients} clients gave {asked} locks back meanwhile"),
        format!("on it {} operations, {} each", on_it.count, ms(mean(on_it))),
        format!("on others {}, {} each", others.count, ms(mean(others))),
    ];
    let named = v.causes.first().map_or("", |c| c.subject.as_str());
    if on_it.count < LEAST_COUNT {
        let why = format!("there were {} operations on {named} only", on_it.count);
        return Outcome::open(figures, why);
    }
    let per_op = asked as f64 / on_it.count as f64;
    let given_back = clients > 1 && per_op >= super::lock_waits::CALLBACKS_LEAST;
    let first = v.causes.first().and_then(|c| c.fid);
    match given_back || f.shared.iter().any(|s| Some(s.fid) == first) {
        true => Outcome::of(Was::First, figures),
        false => Outcome::of(Was::Second, figures),
    }
}

/// Pages that came back from swap in a second: before mounts gave back what they cache, and after.
pub fn swap(before: f64, after: f64) -> Outcome {
    let figures = vec![
        format!("before: {before:.0} pages/s come back from swap"),
        format!("after: {after:.0} pages/s"),
    ];
    match after <= ENOUGH * before {
        true => Outcome::of(Was::First, figures),
        false => Outcome::of(Was::Second, figures),
    }
}

/// The busiest threads, each with its share of a core, and seconds in a second that Coral's threads waited for one.
pub fn threads(busiest: &[(String, f64)], waited: f64) -> Outcome {
    let text = |(name, share): &(String, f64)| format!("{name}: {:.0}% of a core", 100.0 * share);
    let mut figures: Vec<String> = busiest.iter().take(3).map(text).collect();
    figures.push(format!(
        "Coral's threads waited {waited:.2} s for a core in a second"
    ));
    match busiest.first() {
        None => Outcome::open(figures, "no thread was seen".to_owned()),
        Some((_, share)) if *share >= THREAD_BUSY || waited >= super::hosts::CPU_WAIT => {
            Outcome::of(Was::First, figures)
        }
        Some(_) => Outcome::of(Was::Second, figures),
    }
}

/// The same cause is looked for in a second verdict, with nothing changed.
pub fn again(second: &Verdict, first: &Cause) -> Outcome {
    let same = second.causes.iter().find(|c| first.is_same(c));
    let text = |when: &str, c: Option<&Cause>| match c {
        None => format!("{when}: not named"),
        Some(c) => format!(
            "{when}: {:.0}% of the time; {}",
            100.0 * c.share.min(1.0),
            c.figure
        ),
    };
    let figures = vec![text("before", Some(first)), text("later", same)];
    // A cache that was cold is warm by then; what else it was is still there.
    match (first.kind == CauseKind::ColdCache) == same.is_none() {
        true => Outcome::of(Was::First, figures),
        false => Outcome::of(Was::Second, figures),
    }
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::{Dump, Op};

    use super::*;

    fn cause(kind: CauseKind, subject: &str, share: f64) -> Cause {
        Cause {
            kind,
            subject: subject.to_owned(),
            share,
            figure: "a figure".to_owned(),
            ceiling: None,
            fid: None,
            change: "lctl set_param osc.*.max_rpcs_in_flight=8".to_owned(),
        }
    }

    fn verdict(causes: Vec<Cause>) -> Verdict {
        Verdict {
            causes,
            ..super::super::explain(&Facts::default())
        }
    }

    fn window(count: u64, each_s: f64) -> Window {
        let op = |op: &str, count: u64, each: f64| OpKind {
            op: op.to_owned(),
            count,
            seconds: count as f64 * each,
        };
        Window {
            rate: 3.0 * count as f64,
            ops: vec![op("WRITE", count, each_s), op("READ", 2 * count, 1e-6)],
        }
    }

    fn windows(each_s: [f64; 3]) -> Windows {
        Windows {
            before: window(100, each_s[0]),
            // another mix of operations is no change
            with: window(350, each_s[1]),
            after: window(90, each_s[2]),
        }
    }

    /// A fall of 87 % was the slots' share, and the processors have room for one of 40 %.
    #[test]
    fn a_change_is_judged_by_what_the_processors_have_left() {
        let c = cause(CauseKind::Window, "fs-OST0000", 0.87);
        let was = |room| windows([0.010, 0.007_1, 0.010]).outcome(&c, room).was;
        assert_eq!(was(Some(0.4)), Was::First);
        assert_eq!(was(None), Was::Open);
    }

    #[test]
    fn a_rate_is_over_what_the_records_reach_back_to() {
        let op = |n: i64| Op {
            id: n as u64,
            op: "READ".into(),
            fid: (1, 0, 0),
            span: (n * 1_000_000, n * 1_000_000 + 1),
            run_ns: 0,
            waits: vec![],
        };
        let seen = |lost_ops| Seen {
            dumps: vec![Dump {
                now: 1_000_000_000,
                lost: 7,
                lost_ops,
                // the last one waited for all of that time
                ops: (900..999)
                    .map(op)
                    .chain([Op {
                        span: (0, 999_000_000),
                        ..op(999)
                    }])
                    .collect(),
                ..Dump::default()
            }],
            ..Seen::default()
        };
        // a hundred in a tenth of a second; what ended before is not known, or was nothing
        assert_eq!(Window::of(&seen(1), 1.0).rate.round(), 1000.0);
        assert_eq!(Window::of(&seen(0), 1.0).rate.round(), 100.0);
        assert_eq!(Window::of(&seen(1), 0.05).rate.round(), 1000.0);
    }

    #[test]
    fn a_load_that_ends_in_the_third_window_is_judged_by_the_others() {
        let c = cause(CauseKind::Window, "fs-OST0000", 0.8);
        let ended = |with_s: f64| {
            let all = Windows {
                after: window(1, 0.01),
                ..windows([0.01, with_s, 0.01])
            };
            let Outcome { was, figures, .. } = all.outcome(&c, None);
            let told = "the load ended: the last window has 3 operations only";
            assert!(figures.iter().any(|f| f.starts_with(told)), "{figures:?}");
            was
        };
        assert_eq!(ended(0.003), Was::First);
        assert_eq!(ended(0.0098), Was::Second);
        assert_eq!(ended(0.007), Was::Open);
    }

    #[test]
    fn a_change_is_believed_beyond_the_noise_only() {
        let c = cause(CauseKind::Window, "fs-OST0000", 0.8);
        let was = |each| windows(each).outcome(&c, None).was;
        assert_eq!(was([0.010, 0.003, 0.011]), Was::First);
        assert_eq!(was([0.010, 0.0098, 0.0101]), Was::Second);
        // it fell, and stayed there when it was put back
        assert_eq!(was([0.010, 0.003, 0.003]), Was::Open);
        assert_eq!(was([0.010, 0.007, 0.010]), Was::Open);
        // a queue goes on more quickly, and what stood in it for long ends
        assert_eq!(was([0.010, 0.05, 0.010]), Was::Open);
        let no_more = Windows {
            with: window(90, 0.05),
            ..windows([0.010, 0.05, 0.010])
        };
        assert_eq!(no_more.outcome(&c, None).was, Was::Second);
        let few = Windows {
            with: window(1, 0.01),
            ..windows([0.01, 0.003, 0.01])
        };
        assert_eq!(few.outcome(&c, None).was, Was::Open);
        let v = verdict(vec![
            c.clone(),
            cause(CauseKind::SlowStorage, "fs-OST0000", 0.3),
        ]);
        let text = windows([0.010, 0.0098, 0.0101]).outcome(&c, None).text(&v);
        assert!(
            text.contains("it is not RPCs in flight (fs-OST0000); what is left is slow storage"),
            "{text}"
        );
        assert!(text.contains("before: 300.0 operations/s"), "{text}");
    }

    #[test]
    fn a_time_that_rose_did_not_fall() {
        for (fall, told) in [
            (0.33, "fell by 33%"),
            (-0.33, "rose by 33%"),
            (0.0, "fell by 0%"),
            (-0.001, "fell by 0%"),
        ] {
            assert_eq!(moved(fall), told);
        }
        let c = cause(CauseKind::Window, "fs-OST0000", 0.8);
        let slower = windows([0.010, 0.013, 0.010]).outcome(&c, None);
        let rose = "the time of an operation rose by 30%, a fall of up to 80% was expected";
        assert!(
            slower.figures.iter().any(|f| f.starts_with(rose)),
            "{slower:?}"
        );
    }

    #[test]
    fn of_a_load_that_has_ended_nothing_is_said() {
        let v = verdict(vec![cause(CauseKind::ColdCache, "the servers", 0.5)]);
        let o = Outcome::ended("the load had ended before".into());
        let told = "the load had ended before: nothing can be said of cold cache (the servers)\n";
        assert_eq!(o.text(&v), told);
        let json = o.json(&v);
        assert_eq!(
            (&json["settled"], &json["load_ended"]),
            (&json!(false), &json!(true))
        );
        assert!(json["was"].is_null());
    }

    #[test]
    fn every_cause_has_a_trial() {
        use CauseKind::*;
        let of = |kind, subject: &str| trial(&verdict(vec![cause(kind, subject, 0.5)]));
        assert_eq!(
            of(Window, "fs-OST0001"),
            Some(Trial::Parameter(
                "osc.*.max_rpcs_in_flight".into(),
                "8".into()
            ))
        );
        let mut of_mdt = cause(Window, "fs-MDT0000", 0.5);
        of_mdt.change = super::super::slots::more_slots(["fs-MDT0000"], 8);
        assert_eq!(trial(&verdict(vec![of_mdt])), Some(Trial::Probe));
        let mut of_both = cause(Window, "fs-MDT0000, fs-OST0001", 0.5);
        of_both.change = super::super::slots::more_slots(["fs-MDT0000", "fs-OST0001"], 8);
        let of_osts = Trial::Parameter("osc.*.max_rpcs_in_flight".into(), "16".into());
        assert_eq!(trial(&verdict(vec![of_both])), Some(of_osts));
        let mut buffers = cause(RouterBuffers, "10.0.0.1@tcp", 0.5);
        buffers.change = "lnetctl set large_buffers 1024 on 10.0.0.1@tcp".into();
        assert_eq!(
            trial(&verdict(vec![buffers])),
            Some(Trial::RouterBuffers("10.0.0.1@tcp".into(), 1024))
        );
        for kind in [
            SlowStorage,
            SlowLink,
            LockPingPong,
            LockWait,
            NoAnswer,
            Resends,
            Credits,
            BusyCore,
            FixedConcurrency,
            Swap,
            Grants,
            ColdCache,
        ] {
            assert!(of(kind, "x").is_some());
        }
        assert_eq!(trial(&verdict(vec![])), None);
    }

    #[test]
    fn another_cause_at_another_time_is_told() {
        let of = |kind| verdict(vec![cause(kind, "the programs", 0.91)]);
        let tried = of(CauseKind::FixedConcurrency);
        let said = elsewhen(&of(CauseKind::Window), 10.0, &tried).unwrap();
        let told = "of the last 10.0 s it is RPCs in flight (the programs) with 91% of the time: ";
        assert!(said.starts_with(told), "{said}");
        assert_eq!(elsewhen(&tried, 10.0, &tried), None);
        assert_eq!(elsewhen(&verdict(vec![]), 10.0, &tried), None);
    }

    #[test]
    fn what_is_alone_is_judged_by_the_same_rules() {
        let first = cause(CauseKind::SlowLink, "fs-OST0000", 0.5);
        let second = cause(CauseKind::SlowStorage, "fs-OST0000", 0.4);
        let v = verdict(vec![first.clone(), second.clone()]);
        let facts = Facts {
            ops: window(100, 0.01).ops,
            ..Facts::default()
        };
        let was = |found| alone(&verdict(found), &facts, &v).was;
        assert_eq!(was(vec![second.clone(), first]), Was::First);
        assert_eq!(was(vec![second]), Was::Second);
        assert_eq!(was(vec![]), Was::Open);
        let none = alone(&v, &Facts::default(), &v);
        assert_eq!(none.was, Was::Open);
        assert_eq!(none.json(&v)["settled"], false);
    }

    #[test]
    fn looks_without_a_change() {
        let rates = |two, there| {
            let one = 50.0;
            two_at_once(Rates { one, two, there })
        };
        assert_eq!(rates(99.0, None).was, Was::First);
        assert_eq!(rates(55.0, None).was, Was::Second);
        assert_eq!(rates(70.0, None).was, Was::Open);
        let said = |two, there| rates(two, Some(there)).figures.pop().unwrap();
        assert!(said(99.0, 12.0).starts_with("so a directory of its own"));
        assert!(said(99.0, 90.0).starts_with("so that directory lets more"));
        assert!(said(55.0, 12.0).starts_with("so it is not that directory"));
        assert_eq!(swap(1000.0, 10.0).was, Was::First);
        assert_eq!(swap(1000.0, 900.0).was, Was::Second);
        assert_eq!(threads(&[("a".into(), 0.97)], 0.0).was, Was::First);
        assert_eq!(threads(&[("a".into(), 0.5)], 0.4).was, Was::First);
        assert_eq!(threads(&[("a".into(), 0.5)], 0.0).was, Was::Second);
        let cold = cause(CauseKind::ColdCache, "the servers", 0.5);
        assert_eq!(again(&verdict(vec![]), &cold).was, Was::First);
        assert_eq!(again(&verdict(vec![cold.clone()]), &cold).was, Was::Second);
        let v = verdict(vec![cause(CauseKind::LockPingPong, "[0x1:0x2:0x0]", 0.5)]);
        let ops = |count| OpKind {
            op: String::new(),
            count,
            seconds: 1.0,
        };
        let f = |asked, clients| Facts {
            callbacks: (asked, clients),
            ..Facts::default()
        };
        assert_eq!(locks(&f(50, 2), &ops(100), &ops(5), &v).was, Was::First);
        assert_eq!(locks(&f(1, 1), &ops(100), &ops(5), &v).was, Was::Second);
        assert_eq!(locks(&f(50, 2), &ops(3), &ops(5), &v).was, Was::Open);
    }
}
