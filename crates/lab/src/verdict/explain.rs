//! The verdict.

use crate::attribution::Segment;

use super::facts::{Facts, Host, Path, Transfers};
use super::going::Going;
use super::hosts::{CORE_BUSY, OTHERS_LEAST, nearly_full, needs_processors};
use super::lock_waits::own_directories;
use super::notes::{ahead, notes};
use super::paging::out_of_memory;
use super::queue::{Queued, queue};
use super::rules::{Cause, CauseKind, SHARE_LEAST, causes, ms, slots_hold};
use super::trial::LEAST_COUNT;

/// How far Little's law may be off before the stamps are not believed.
const LITTLE_OFF: f64 = 0.1;
/// Operations under way below which it is their number that holds the rate down: as many as a client may have RPCs in flight to one
/// target.
const FEW_AT_ONCE: f64 = 8.0;
/// An operation under way is told when it is so old, seconds, and so many times as old as those that have ended took.
const GOING_S: f64 = 1.0;
const GOING_TIMES: f64 = 3.0;
/// With fewer there is no load.
const IDLE: f64 = 0.1;
/// Nor with fewer operations than this, so thin.
const LEAST_LOAD: u64 = 200;
/// Nor where so few took so small a part of the time that was looked at: a handful in a burst is dense by itself.
const IDLE_OF_ALL: f64 = 0.02;
/// Nor where a handful took less than this together, seconds.
const BURST_S: f64 = 0.1;
/// While others end, one that does not end is told as standing still when it is so old, seconds.
const STILL_S: f64 = 5.0;
/// What has so much of the time has nearly all of it.
const NEARLY_ALL: f64 = 0.95;
/// Share of the time on processors below which it does not matter that they are nearly full.
pub(super) const FULL_SHARE: f64 = 0.05;
/// By how much a rate can rise with more at once, by Little's law: none of them takes less time than before.
const TWICE: &str = "twice as many at once do twice as much at most";
/// What tells more where the servers have not told their part.
const ASK_SERVERS: &str = "ask the servers and routers too: name their directories";
/// What is to do where they were asked, and have forgotten.
const FORGOTTEN: &str = "the servers were asked, and their records of these requests have made room for later ones: ask while the other load on them rests, or sooner after this one";
/// What is to do without a load.
const PUT_LOAD: &str = "put load on it, and ask again";
/// What tells more where all have told, and nobody has stamped it.
const SEE_TRACE: &str = "see with `coral trace` which operations these are: no stamp tells for what they waited, as of a task that waits for a processor";
/// Why nothing is said where no client was asked, and what is to do.
const ONLY_SERVERS: &str = "only servers were asked, which do not know the operations of programs";
const NAME_MOUNTS: &str = "name the mounts too: `coral explain MOUNT DIR`";
/// Why nothing is said where programs only wait for each other.
const ONLY_LOCKS: &str =
    "programs wait for locks that programs have (fcntl, flock), and do nothing else";
/// Share of the time not placed, or in network and server together, from which on the verdict is 'unknown'.
const UNKNOWN_SHARE: f64 = 0.4;

/// Little's law: operations under way = rate x time of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Little {
    /// Operations in a second.
    pub rate: f64,
    /// Seconds of one.
    pub time_s: f64,
    /// Operations under way, counted.
    pub counted: f64,
    /// Operations in a second that were answered at once, without an RPC or a wait: no other figure has them. None: nobody counted.
    pub at_once_per_s: Option<f64>,
}

impl Little {
    /// What should be under way.
    pub fn expected(&self) -> f64 {
        self.rate * self.time_s
    }

    /// Whether the two agree.
    pub fn holds(&self) -> bool {
        let off = (self.expected() - self.counted).abs();
        off <= (LITTLE_OFF * self.expected()).max(0.1)
    }
}

/// What limits a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Checked first.
    pub little: Little,
    /// Causes, the weightiest first.
    pub causes: Vec<Cause>,
    /// Segments with their share of the operations' time, the largest first.
    pub shares: Vec<(Segment, f64)>,
    /// Why nothing can be said.
    pub unknown: Option<String>,
    /// There are too few operations for a load.
    pub is_idle: bool,
    /// A machine that has hardly any room, where no cause is named.
    pub nearly_full: Option<String>,
    /// What holds the rate down where nobody is slow and nothing is full: how many operations the programs have under way at once.
    pub at_once: Option<String>,
    /// What is no cause, and worth a line.
    pub notes: Vec<String>,
    /// Why more RPCs with data are under way than operations.
    pub ahead: Option<&'static str>,
    /// The directory in which names are made or removed one at a time, for most of the time.
    pub directory: Option<(u64, u32, u32)>,
    /// RPCs with data: of what size they were, and how many at once.
    pub transfers: Option<Transfers>,
    /// Operations that are left out because programs waited in them for locks that programs have, and their seconds.
    pub program_locks: (u64, f64),
    /// Operations that have been under way for long when it was asked, without those that wait in a queue that moves.
    pub going: Option<Going>,
    /// These.
    pub queued: Option<Queued>,
    /// By what share processors let the time of an operation fall, 0 to 1, where all of it is on one machine. None: it is not known.
    pub room: Option<f64>,
    /// The one thing to do next.
    pub next: String,
}

impl Verdict {
    /// Of a record: whoever was not asked then cannot be asked any more.
    pub fn of_record(mut self) -> Verdict {
        if self.next == ASK_SERVERS {
            self.next = "what was not recorded cannot be asked for afterwards, and a file or a run is explained alone: run the load again, and ask its mount and its servers meanwhile".to_owned();
        }
        self
    }
}

/// Judges.
pub fn explain(f: &Facts) -> Verdict {
    let count = f.count();
    let little = Little {
        rate: count as f64 / f.window_s.max(1e-12),
        time_s: f.op_s() / count.max(1) as f64,
        counted: f.under_way,
        at_once_per_s: f.at_once_per_s,
    };
    let mut shares: Vec<(Segment, f64)> = (Segment::ALL.iter())
        .map(|s| (*s, f.whole_share(*s)))
        .filter(|(_, share)| *share > 0.0)
        .collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut found = causes(f);
    found.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.kind.cmp(&b.kind)));
    let going = (f.going.clone())
        .filter(|g| count == 0 || g.oldest_s >= GOING_S.max(GOING_TIMES * little.time_s));
    let still = going.as_ref().and_then(|g| stands_still(f, g));
    let others_s = going.as_ref().map_or(0.0, |g| g.seconds);
    let waits = (!found.iter().any(|c| c.kind == CauseKind::Window))
        .then(|| queue(f, others_s))
        .flatten();
    let paging = out_of_memory(f);
    let is_idle = paging.is_none() && is_idle(f, &little, going.as_ref());
    let no_end = [&paging, &still, &waits];
    let unknown = match no_end.iter().all(|c| c.is_none()) {
        true => unknown(f, &little, &found, going.as_ref(), is_idle),
        false => None,
    };
    if count == 0 || is_idle || !little.holds() {
        found.clear();
    }
    if paging.is_some() {
        found.retain(|c| c.kind != CauseKind::Swap);
    }
    if let Some(waits) = waits {
        found.retain(|c| c.kind != CauseKind::FixedConcurrency || !slots_hold(f, &waits));
        let at = found.iter().position(|c| c.share < waits.share);
        found.insert(at.unwrap_or(found.len()), waits);
    }
    found.splice(0..0, paging.into_iter().chain(still));
    let stands_out = !found.is_empty() || unknown.is_some();
    let full = nearly_full(f).filter(|_| !stands_out && needs_processors(f) >= FULL_SHARE);
    let at_once = (!stands_out && full.is_none())
        .then(|| at_once(f, &little))
        .flatten();
    let transfers = Transfers::of(f);
    let mut verdict = Verdict {
        is_idle,
        nearly_full: full.map(|h| room(h, &little)),
        notes: if stands_out && found.is_empty() {
            vec![]
        } else {
            notes(f, &found)
        },
        ahead: transfers.and_then(|t| ahead(f, &t, little.counted)),
        directory: (f.one_directory.as_ref().filter(|_| !is_idle)).map(|d| d.fid),
        little,
        causes: found,
        shares,
        unknown,
        at_once,
        transfers,
        program_locks: f.program_locks,
        room: processors_left(f),
        queued: f.queued.clone().filter(|q| q.oldest_s >= GOING_S),
        going,
        next: String::new(),
    };
    verdict.next = what_next(f, &verdict, full);
    verdict
}

/// Share of the operations' time of which it is not known where it was, 0 to 1.
fn missing(f: &Facts) -> f64 {
    f.share(Segment::NotPlaced, None) + f.share(Segment::Remote, None)
}

/// Why nothing can be said, where that is so; `found` are the causes that break a rule, also those of too few operations.
fn unknown(
    f: &Facts,
    little: &Little,
    found: &[Cause],
    going: Option<&Going>,
    is_idle: bool,
) -> Option<String> {
    let count = f.count();
    if count == 0 {
        return Some(match going {
            None if f.program_locks.0 > 0 => ONLY_LOCKS.to_owned(),
            Some(g) if g.of_programs => ONLY_LOCKS.to_owned(),
            None if f.only_servers => ONLY_SERVERS.to_owned(),
            None => "no operation was seen".to_owned(),
            Some(_) => "no operation has ended".to_owned(),
        });
    }
    if !little.holds() {
        return Some(format!(
            "{:.2} operations were under way, {:.1}/s x {} make {:.2}: clocks or counts are wrong",
            little.counted,
            little.rate,
            ms(little.time_s),
            little.expected()
        ));
    }
    if is_idle {
        return Some(format!(
            "there is no load: {count} operations in {}",
            ms(f.asked_s.max(f.window_s))
        ));
    }
    if !found.is_empty() {
        return None;
    }
    if let Some((why, _)) = unsized_syncs(f) {
        return Some(why);
    }
    let missing = missing(f);
    (missing >= UNKNOWN_SHARE).then(|| {
        format!(
            "{:.0}% of the time is placed nowhere, or in network and server together",
            100.0 * missing
        )
    })
}

/// The one thing to do next: what tells the first causes apart, where nothing else has to be done before. `full` is a machine that
/// has hardly any room, where no cause is named.
fn what_next(f: &Facts, v: &Verdict, full: Option<&Host>) -> String {
    let mut next = next(&v.causes, &v.shares, v.unknown.as_deref(), v.room);
    if f.only_servers && v.causes.is_empty() {
        next = NAME_MOUNTS.to_owned();
    } else if v.is_idle && v.causes.is_empty() {
        next = PUT_LOAD.to_owned();
    } else if next == ASK_SERVERS && f.share(Segment::Remote, None) == 0.0 {
        next = SEE_TRACE.to_owned();
    }
    if let (0, Some(g), []) = (f.count(), &v.going, &v.causes[..]) {
        next = what_holds(g);
    }
    if let Some((why, instead)) = unsized_syncs(f)
        && v.unknown.as_ref() == Some(&why)
    {
        next = instead;
    }
    let forgotten = f.forgotten_s / f.op_s().max(1e-12);
    if next == ASK_SERVERS && forgotten > 0.0 && 2.0 * forgotten >= missing(f) {
        next = FORGOTTEN.to_owned();
    }
    if v.at_once.is_some() {
        // There is a load, so that a directory tells something.
        match &f.one_directory {
            Some(d) => format!("{}; {next}", own_directories(f, d).1),
            None => format!("more programs at once, or more operations at once by each; {next}"),
        }
    } else if let Some(h) = full {
        format!("{}; {next}", relieve(h))
    } else {
        next
    }
}

/// What to do with a machine that has hardly any room.
fn relieve(h: &Host) -> String {
    if h.others >= OTHERS_LEAST.max(h.ours) {
        let others = match &h.other {
            Some(other) => format!("'{other}'"),
            None => "other programs".to_owned(),
        };
        return format!("measure again without {others} on {}", h.name);
    }
    format!(
        "more programs on {} gain little: give it more cores, or measure with clients on other machines",
        h.name
    )
}

/// Too few operations, or too little of the time in them, for a load; and none that programs wait for since long.
fn is_idle(f: &Facts, little: &Little, going: Option<&Going>) -> bool {
    let waits = going.is_some_and(|g| !g.of_programs && !g.in_background && g.oldest_s >= GOING_S);
    if waits || f.queued.as_ref().is_some_and(|q| q.operations > 0) {
        return false;
    }
    let (count, op_s) = (f.count(), f.op_s());
    let thin = little.expected() < IDLE || op_s < IDLE_OF_ALL * f.asked_s;
    (thin && count < LEAST_LOAD) || (count < LEAST_COUNT && op_s < BURST_S)
}

/// Operations that do not end, while others do not end either, or for long: beside it all else is past.
fn stands_still(f: &Facts, g: &Going) -> Option<Cause> {
    // Of those that have ended only what was in the time that is judged counts; so it does of these, where both are.
    let judged_s = f.asked_s.max(f.window_s) * g.count as f64;
    let of_time = if g.quiet_s < GOING_S {
        g.seconds.min(judged_s)
    } else {
        g.seconds
    };
    let share = of_time / (of_time + f.op_s()).max(1e-12);
    let is_long = g.oldest_s >= GOING_S.max(GOING_TIMES * g.usual_s);
    let all = g.quiet_s >= GOING_S && !g.in_background;
    let some = g.oldest_s >= STILL_S && share >= SHARE_LEAST;
    let others = match g.quiet_s.is_finite() {
        true if all => format!("none has ended for {}", ms(g.quiet_s)),
        true if g.quiet_s >= GOING_S => "none ends".to_owned(),
        true => "others end".to_owned(),
        false => "none has ended".to_owned(),
    };
    (is_long && (all || some) && !g.of_programs).then(|| Cause {
        kind: CauseKind::StandsStill,
        subject: match (&g.holder, &g.target) {
            (Some(h), _) => h.client.clone(),
            (None, Some(t)) => t.clone(),
            (None, None) => g.client.clone(),
        },
        fid: None,
        share,
        figure: format!(
            "{} under way, the oldest for {}, and {others}: {}{}",
            g.counted(),
            ms(g.oldest_s),
            g.oldest,
            match &g.holder {
                Some(h) => format!("; {h}"),
                None => String::new(),
            }
        ),
        ceiling: None,
        change: what_holds(g),
    })
}

/// What to look at where operations do not end.
fn what_holds(g: &Going) -> String {
    match (&g.holder, &g.target) {
        _ if g.of_programs => "see which program has the lock that is waited for: it is the programs' own affair how long it keeps it".to_owned(),
        (Some(h), _) => format!(
            "see what the client {} does: it has a lock that is wanted back",
            h.client
        ),
        (None, None) => "see with `coral trace` what it needed when it has ended".to_owned(),
        (None, Some(t)) if g.wants_lock => format!(
            "ask {t} too (name its directory): it knows which client it has asked for the lock; or see whether its server answers (`lctl ping NID`)"
        ),
        (None, Some(t)) => format!(
            "see whether the server of {t} answers (`lctl ping NID`), or ask again with its directory when one has ended"
        ),
    }
}

/// Syncs that take much of the time, of which it cannot be said whether they are slow; and what would tell it.
fn unsized_syncs(f: &Facts) -> Option<(String, String)> {
    let share = |p: &Path| f.share(Segment::Storage, Some(&p.target)) * (1.0 - p.sized_share());
    let most = (f.paths.iter()).max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let (count, seconds) = most.unsized_syncs;
    (share(most) >= SHARE_LEAST).then(|| {
        (
            format!(
                "{:.0}% of the time is in {count} syncs at {}, {} each, whose writes are in the records no longer: how much they had to store is not known",
                100.0 * share(most),
                most.target,
                ms(seconds / count.max(1) as f64)
            ),
            format!(
                "ask about a shorter run, so that the writes are in the records too, or measure the disk of {} alone",
                most.target
            ),
        )
    })
}

/// Where no machine has a full core, and few operations are under way, more at once would be done as quickly.
fn at_once(f: &Facts, little: &Little) -> Option<String> {
    let busiest = f.hosts.iter().map(|h| h.busiest_core);
    // one that was not watched, or too briefly, is not busy at all
    let busiest = busiest.max_by(f64::total_cmp).filter(|b| *b > 0.0)?;
    let is_few = (IDLE..FEW_AT_ONCE).contains(&little.expected());
    (busiest < CORE_BUSY && is_few).then(|| {
        format!(
            "{:.2} operations are under way at once, {} each; the busiest core is {:.0}% busy",
            little.expected(),
            ms(little.time_s),
            // Not rounded up to what would be full.
            (100.0 * busiest + 1e-9).floor()
        )
    })
}

/// A machine without room.
fn room(h: &Host, little: &Little) -> String {
    let taken = match h.ours + h.others > 0.0 {
        true => format!(
            ", by Coral and its load {:.2} of them, by other programs {:.2}",
            h.ours, h.others
        ),
        false => String::new(),
    };
    format!(
        "the {} cores of {} are {:.0}% busy in the mean{taken}; {:.2} operations are under way at once, {} each",
        h.core_count,
        h.name,
        100.0 * h.cores.min(1.0),
        little.expected(),
        ms(little.time_s)
    )
}

/// What would tell the first two apart.
fn next(
    causes: &[Cause],
    shares: &[(Segment, f64)],
    unknown: Option<&str>,
    room: Option<f64>,
) -> String {
    match (causes, shares.first()) {
        ([still, ..], _) if still.kind == CauseKind::StandsStill => still.change.clone(),
        ([], None) => PUT_LOAD.to_owned(),
        ([], Some(_)) if unknown.is_some() => ASK_SERVERS.to_owned(),
        ([], Some((s, share))) => format!(
            "nothing stands out: {} is the largest part with {:.0}%",
            s.name(),
            100.0 * share
        ),
        ([one], _) if one.raises_the_rate() => {
            format!("{}; then the rate should rise: {TWICE}", one.change)
        }
        ([one, two, ..], _) if one.raises_the_rate() => format!(
            "{}: {TWICE}; if the rate hardly rises, it is {} ({})",
            one.change,
            two.kind.name(),
            two.subject
        ),
        ([one], _) => format!("{}; then the time should {}", one.change, fall(one, room)),
        ([one, two, ..], _) => format!(
            "{}; if the time does not {}, it is {} ({})",
            one.change,
            fall(one, room),
            two.kind.name(),
            two.subject
        ),
    }
}

/// By how much a time falls without a cause: something always stays, and where locks go to and fro, more goes with them than the waits. More
/// at once need processors.
fn fall(c: &Cause, room: Option<f64>) -> String {
    let share = c.share.min(1.0);
    match room.filter(|room| c.kind == CauseKind::Window && *room < share) {
        Some(room) => format!(
            "fall by up to {:.0}%, which is what the processors have left",
            100.0 * room
        ),
        None if c.kind == CauseKind::LockPingPong => {
            format!("fall by at least {:.0}%", 100.0 * share)
        }
        None if share < NEARLY_ALL => format!("fall by up to {:.0}%", 100.0 * share),
        None => "fall to a small part of it".to_owned(),
    }
}

/// What more at once may gain before the machine is full on which all of it is: what is free goes to the load, which then does the more.
fn processors_left(f: &Facts) -> Option<f64> {
    let of = |h: &Host| {
        let free = f64::from(h.core_count) * (1.0 - h.cores).clamp(0.0, 1.0);
        (h.ours > 0.0).then(|| free / (free + h.ours))
    };
    let known = f.hosts.iter().filter(|_| f.is_one_machine).filter_map(of);
    known.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Data, OpKind};
    use super::super::{Holder, Trial, trial};
    use super::*;

    /// One program that reads again and again, near by: 0.8 operations are under way.
    fn one_reader(busiest_core: f64) -> Verdict {
        explain(&facts_of_one_reader(busiest_core))
    }

    fn facts_of_one_reader(busiest_core: f64) -> Facts {
        let host = Host {
            busiest_core,
            ..Host::default()
        };
        Facts {
            window_s: 1.0,
            under_way: 0.8,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 8000,
                seconds: 0.8,
            }],
            seconds: [
                ((Segment::ClientCpu, "client".to_owned()), 0.1),
                ((Segment::Network, "fs1-OST0000".to_owned()), 0.7),
            ]
            .into(),
            hosts: vec![host],
            ..Facts::default()
        }
    }

    #[test]
    fn the_size_of_rpcs_is_the_one_that_was_measured() {
        let path = |target: &str, rpcs: u64, bytes: u64| Path {
            target: target.to_owned(),
            rpcs: rpcs + 5,
            data: Data {
                rpcs,
                bytes,
                seconds: 0.01 * rpcs as f64,
                inside_s: 0.01 * rpcs as f64,
                placed_s: 0.005 * rpcs as f64,
            },
            in_flight_max: 8,
            places: 16,
            ..Path::default()
        };
        let v = explain(&Facts {
            window_s: 0.5,
            paths: vec![
                path("fs-OST0000", 30, 30 << 20),
                path("fs-OST0001", 10, 50 << 20),
                path("fs-MDT0000", 0, 0),
            ],
            ..Facts::default()
        });
        let told = "RPCs with data: 2048 KiB each in the mean, 0.8 under way to 2 targets, with 0.4 of 32 places; 10.00 ms each\n";
        assert!(v.to_string().contains(told), "{v}");
        assert_eq!(explain(&Facts::default()).transfers, None);
    }

    #[test]
    fn a_few_operations_now_and_then_are_no_load() {
        let of = |count: u64, window_s: f64| {
            let seconds = 0.001 * count as f64;
            let op = "LOOKUP".into();
            explain(&Facts {
                window_s,
                under_way: seconds / window_s,
                ops: vec![OpKind { op, count, seconds }],
                seconds: [((Segment::ClientCpu, "c".to_owned()), seconds)].into(),
                hosts: vec![Host {
                    name: "h".into(),
                    busiest_core: 1.0,
                    ..Host::default()
                }],
                ..Facts::default()
            })
        };
        let idle = of(7, 10.0);
        assert!(idle.causes.is_empty());
        let text = idle.to_string();
        assert!(
            text.contains("verdict: unknown: there is no load: 7 operations in 10.00 s\n"),
            "{text}"
        );
        let few = "Little's law is not asked: there are too few operations, 1.00 ms each\n";
        assert!(text.starts_with(few), "{text}");
        assert_eq!(idle.next, PUT_LOAD);
        assert_eq!(of(700, 1.0).unknown, None, "they are one after the other");
    }

    #[test]
    fn a_machine_that_is_nearly_full_needs_no_more_programs() {
        let of = |cores: f64| {
            let mut f = facts_of_one_reader(0.89);
            f.hosts[0] = Host {
                name: "this machine".into(),
                cores,
                core_count: 2,
                ours: 1.6,
                others: 0.15,
                ..f.hosts[0].clone()
            };
            explain(&f)
        };
        let full = of(0.88);
        let told = "verdict: nobody is slow, and a machine is nearly full: the 2 cores of this machine are 88% busy in the mean, by Coral and its load 1.60 of them, by other programs 0.15; 0.80 operations are under way at once, 100.0 us each\n";
        assert!(full.to_string().contains(told), "{full}");
        assert!(
            full.next
                .starts_with("more programs on this machine gain little")
        );
        assert_eq!((full.at_once.clone(), trial(&full)), (None, None));
        let mut of_others = facts_of_one_reader(0.89);
        let h = &mut of_others.hosts[0];
        (h.name, h.cores, h.ours, h.others) = ("here".into(), 0.99, 0.3, 1.6);
        h.other = Some("rustc".into());
        let next = explain(&of_others).next;
        assert!(
            next.starts_with("measure again without 'rustc' on here; "),
            "{next}"
        );
        // the time is elsewhere
        let mut away = facts_of_one_reader(0.89);
        (away.hosts[0].cores, away.hosts[0].name) = (0.99, "here".into());
        away.seconds
            .remove(&(Segment::ClientCpu, "client".to_owned()));
        let away = explain(&away);
        assert_eq!(away.nearly_full, None);
        let told = "all cores of here are 99% busy in the mean, and only 0.0% of the time is on processors or waits for one";
        assert_eq!(away.notes, [told]);
        let half = of(0.7);
        assert!(half.at_once.is_some() && half.nearly_full.is_none());
    }

    #[test]
    fn what_no_stamp_tells_no_server_tells_either() {
        let of = |s: Segment| {
            let mut f = facts_of_one_reader(0.5);
            f.seconds = [((s, "fs1-OST0000".to_owned()), 0.7)].into();
            explain(&f).next
        };
        assert_eq!(of(Segment::Remote), ASK_SERVERS);
        assert_eq!(of(Segment::NotPlaced), SEE_TRACE);
    }

    /// As eight programs look that make files in one directory.
    #[test]
    fn where_one_directory_is_worked_in_more_programs_are_not_all_that_helps() {
        let next = |lock_waiters| {
            let mut f = facts_of_one_reader(0.5);
            f.hosts[0].lock_waiters = lock_waiters;
            f.one_directory = Some(super::super::OneDirectory {
                fid: (2, 3, 0),
                client: "c@tcp".into(),
                op: "CREATE".into(),
                seconds: 0.7,
            });
            let v = explain(&f);
            assert_eq!(v.directory, Some((2, 3, 0)));
            v.next
        };
        assert!(next(Some(7.0)).starts_with("give each program a directory of its own; "));
        assert!(next(Some(0.0)).starts_with("more programs, each in a directory of its own; "));
        assert!(next(None).starts_with("if several programs work in that directory, "));
    }

    #[test]
    fn a_handful_in_a_burst_is_no_load() {
        let of = |count: u64, asked_s: f64| {
            let op_s = 0.0005 * count as f64;
            explain(&Facts {
                window_s: op_s,
                asked_s,
                under_way: 1.0,
                ops: vec![OpKind {
                    op: "LOOKUP".into(),
                    count,
                    seconds: op_s,
                }],
                seconds: [((Segment::Network, "fs-MDT0000".to_owned()), op_s)].into(),
                ..Facts::default()
            })
        };
        let told = |count, asked_s| of(count, asked_s).unknown.unwrap_or_default();
        assert_eq!(told(2, 10.0), "there is no load: 2 operations in 10.00 s");
        assert!(told(2, 0.0).starts_with("there is no load"), "of a record");
        assert!(
            told(60, 10.0).starts_with("there is no load"),
            "somebody lists a directory"
        );
        assert_eq!(told(400, 1.0), "", "it has just begun");
    }

    /// Reads of 1 ms have ended until `quiet_s` ago, and one has not.
    fn still(oldest_s: f64, quiet_s: f64, holder: Option<Holder>) -> Verdict {
        let seconds = [((Segment::Network, "fs-OST0000".to_owned()), 0.9)];
        explain(&Facts {
            window_s: 1.0,
            under_way: 1.0,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 1000,
                seconds: 1.0,
            }],
            seconds: seconds.into(),
            going: Some(Going {
                count: 3,
                oldest_s,
                oldest: "READ on c@tcp: its LDLM_ENQUEUE to fs-OST0001 is sent".into(),
                target: Some("fs-OST0001".into()),
                client: "c@tcp".into(),
                seconds: 3.0 * oldest_s,
                usual_s: 0.002,
                quiet_s,
                in_background: false,
                wants_lock: true,
                of_programs: false,
                holder,
            }),
            ..Facts::default()
        })
    }

    #[test]
    fn a_load_that_stands_still_is_the_verdict() {
        let v = still(12.0, 11.0, None);
        assert_eq!(v.causes[0].kind, CauseKind::StandsStill);
        let text = v.to_string();
        assert!(
            text.contains("verdict: stands still (fs-OST0001)\n"),
            "{text}"
        );
        let told = "3 operations are under way, the oldest for 12.00 s, and none has ended for 11.00 s: READ on c@tcp";
        assert!(text.contains(told), "{text}");
        assert!(v.next.starts_with("ask fs-OST0001 too"), "{}", v.next);
        assert_eq!((v.unknown, trial(&still(12.0, 11.0, None))), (None, None));
        // others end: one of them may take long
        assert!(still(3.0, 0.01, None).causes.is_empty());
        let v = still(8.0, 0.01, None);
        assert!(v.causes[0].figure.contains("and others end: "), "{v}");
        // it has just begun to
        assert!(still(0.5, 0.5, None).causes.is_empty());
    }

    /// What is in the background holds up nobody by itself, and nothing has ended beside it for long.
    #[test]
    fn where_the_last_one_ended_long_ago_none_ends() {
        let figure = |quiet_s| {
            let v = explain(&Facts {
                asked_s: 10.0,
                going: Some(Going {
                    count: 38,
                    oldest_s: 75.0,
                    seconds: 2850.0,
                    quiet_s,
                    in_background: true,
                    ..Going::default()
                }),
                ..Facts::default()
            });
            assert_eq!(v.causes[0].kind, CauseKind::StandsStill);
            v.causes[0].figure.clone()
        };
        let told = "38 operations are under way, the oldest for 75.00 s, and ";
        assert!(figure(69.0).starts_with(&format!("{told}none ends: ")));
        assert!(figure(0.5).starts_with(&format!("{told}others end: ")));
        assert!(figure(f64::INFINITY).starts_with(&format!("{told}none has ended: ")));
    }

    /// Two quick operations have ended in 10 s, and a program waits for another one since 2 s.
    #[test]
    fn what_programs_wait_for_is_a_load() {
        let idle = |of_programs, in_background, oldest_s| {
            let seconds = 0.002;
            let v = explain(&Facts {
                window_s: 9.0,
                asked_s: 10.0,
                under_way: seconds / 9.0,
                ops: vec![OpKind {
                    op: "STAT".into(),
                    count: 2,
                    seconds,
                }],
                going: Some(Going {
                    count: 1,
                    oldest_s,
                    seconds: oldest_s,
                    usual_s: 5.0,
                    quiet_s: 0.2,
                    of_programs,
                    in_background,
                    ..Going::default()
                }),
                ..Facts::default()
            });
            assert!(v.causes.is_empty(), "{v}");
            v.is_idle
        };
        assert!(!idle(false, false, 2.0));
        assert!(idle(true, false, 2.0) && idle(false, true, 2.0) && idle(false, false, 0.1));
    }

    /// Others end all the time: of one that waits long only what is within the time that is judged is compared with them.
    #[test]
    fn a_long_wait_counts_no_more_than_the_time_that_is_judged() {
        let still = |asked_s: f64| {
            let v = explain(&Facts {
                window_s: asked_s,
                asked_s,
                under_way: 8.0,
                ops: vec![OpKind {
                    op: "READ".into(),
                    count: 8000,
                    seconds: 8.0 * asked_s,
                }],
                going: Some(Going {
                    count: 1,
                    oldest_s: 640.0,
                    seconds: 640.0,
                    usual_s: 0.1,
                    quiet_s: 0.01,
                    ..Going::default()
                }),
                ..Facts::default()
            });
            v.causes.iter().any(|c| c.kind == CauseKind::StandsStill)
        };
        assert!(!still(10.0), "10 s of 90 s are one in nine");
        assert!(still(600.0) == still(10.0));
    }

    #[test]
    fn a_program_that_waits_for_a_program_is_no_stall() {
        let going = Going {
            count: 1,
            oldest_s: 10.0,
            oldest: "SETLKW on c@tcp: in 'lock wait' for 10.00 s".into(),
            client: "c@tcp".into(),
            seconds: 10.0,
            quiet_s: 10.0,
            wants_lock: true,
            of_programs: true,
            ..Going::default()
        };
        let v = explain(&Facts {
            going: Some(going.clone()),
            ..Facts::default()
        });
        assert!(v.causes.is_empty(), "{v}");
        let told = "for 10.00 s: SETLKW on c@tcp: in 'lock wait' for 10.00 s; a program has that lock, so it is no stall\n";
        assert!(v.to_string().contains(told), "{v}");
        assert_eq!(v.unknown.as_deref(), Some(ONLY_LOCKS));
        assert!(v.next.starts_with("see which program"), "{v}");
        let v = explain(&Facts {
            going: Some(Going {
                of_programs: false,
                ..going
            }),
            ..Facts::default()
        });
        assert_eq!(v.causes[0].kind, CauseKind::StandsStill);
    }

    #[test]
    fn who_has_the_lock_is_named() {
        let holder = Holder {
            client: "b@tcp".into(),
            server: "s@tcp".into(),
            asked_s: 11.5,
        };
        let v = still(12.0, 11.0, Some(holder));
        assert_eq!(v.causes[0].subject, "b@tcp");
        let told =
            "; b@tcp has the lock, and has not given it back since s@tcp asked for it 11.50 s ago";
        assert!(v.causes[0].figure.ends_with(told), "{v}");
        assert!(v.next.contains("the client b@tcp"), "{v}");
    }

    #[test]
    fn a_change_says_what_it_can_change() {
        let cause = |kind, share| Cause {
            kind,
            subject: "s".into(),
            fid: None,
            share,
            figure: String::new(),
            ceiling: None,
            change: "do it".into(),
        };
        let shares = [(Segment::Network, 0.9)];
        let said = |kind, share| next(&[cause(kind, share)], &shares, None, None);
        let window = CauseKind::Window;
        assert_eq!(
            said(window, 0.5),
            "do it; then the time should fall by up to 50%"
        );
        assert_eq!(
            said(window, 1.0),
            "do it; then the time should fall to a small part of it"
        );
        let with = |room| next(&[cause(window, 0.87)], &shares, None, Some(room));
        assert_eq!(
            with(0.4),
            "do it; then the time should fall by up to 40%, which is what the processors have left"
        );
        assert_eq!(with(0.9), "do it; then the time should fall by up to 87%");
        assert_eq!(
            said(CauseKind::LockPingPong, 0.45),
            "do it; then the time should fall by at least 45%"
        );
        assert_eq!(
            said(CauseKind::FixedConcurrency, 0.9),
            "do it; then the rate should rise: twice as many at once do twice as much at most"
        );
    }

    #[test]
    fn of_a_record_nobody_is_to_be_asked() {
        let f = Facts {
            window_s: 1.0,
            under_way: 1.0,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 500,
                seconds: 1.0,
            }],
            seconds: [((Segment::Remote, "fs-OST0000".to_owned()), 0.9)].into(),
            ..Facts::default()
        };
        assert_eq!(explain(&f).next, ASK_SERVERS);
        let next = explain(&f).of_record().next;
        assert!(
            next.contains("a file or a run is explained alone"),
            "{next}"
        );
    }

    #[test]
    fn what_has_not_ended_is_told() {
        let going = Going {
            count: 4,
            oldest_s: 2.5,
            oldest: "READ on c@tcp: its OST_READ to fs-OST0001 is sent".to_owned(),
            target: Some("fs-OST0001".to_owned()),
            ..Going::default()
        };
        let told = "not ended: 4 operations are under way, the oldest for 2.50 s: READ on c@tcp";
        let none_ended = explain(&Facts {
            going: Some(going.clone()),
            ..Facts::default()
        });
        let text = none_ended.to_string();
        assert!(
            text.contains("verdict: unknown: no operation has ended\n"),
            "{text}"
        );
        assert!(
            text.contains(told) && none_ended.next.contains("fs-OST0001"),
            "{text}"
        );
        assert!(!text.contains("where the time is"), "it is nowhere: {text}");
        let among = |time_s: f64| {
            explain(&Facts {
                window_s: time_s,
                under_way: 1.0,
                ops: vec![OpKind {
                    op: "READ".into(),
                    count: 1,
                    seconds: time_s,
                }],
                going: Some(going.clone()),
                ..Facts::default()
            })
        };
        assert!(among(0.1).to_string().contains(told));
        assert_eq!(among(2.0).going, None, "others took as long");
        let nothing = explain(&Facts::default()).to_string();
        assert!(!nothing.contains("-0"), "{nothing}");
        assert!(nothing.contains("no operation was seen") && !nothing.contains("not ended"));
    }

    /// All of it is syncs, of which so many seconds of ten are of ones whose writes are seen.
    fn synced(sized_s: f64) -> Verdict {
        let path = Path {
            target: "fs-OST0000".into(),
            rpcs: 10,
            storage_rpcs: (10.0 * sized_s) as u64,
            unsized_syncs: (10, 10.0 - sized_s),
            service_s: 10.0,
            seconds: [(Segment::Storage, 10.0)].into(),
            ..Path::default()
        };
        explain(&Facts {
            window_s: 10.0,
            under_way: 1.0,
            ops: vec![OpKind {
                op: "FSYNC".into(),
                count: 10,
                seconds: 10.0,
            }],
            seconds: [((Segment::Storage, path.target.clone()), 10.0)].into(),
            paths: vec![path],
            ..Facts::default()
        })
    }

    #[test]
    fn syncs_whose_writes_are_not_seen_are_told_to_be_unknown() {
        let told = "verdict: unknown: 100% of the time is in 10 syncs at fs-OST0000, 1.00 s each, whose writes are in the records no longer";
        let v = synced(0.0);
        assert!(v.to_string().contains(told), "{v}");
        assert!(v.next.contains("the disk of fs-OST0000"), "{v}");
        let v = synced(9.0);
        assert_eq!(v.unknown, None);
        assert_eq!(v.causes[0].share, 0.9, "only those that are judged");
        assert!(
            synced(1.0).causes.is_empty(),
            "too little of the time is of those that are slow"
        );
    }

    #[test]
    fn where_nothing_is_full_the_operations_at_once_are_told() {
        let v = one_reader(0.6);
        let told = "verdict: nobody is slow and nothing is full: 0.80 operations are under way at once, 100.0 us each; the busiest core is 60% busy\n";
        assert!(v.to_string().contains(told), "{v}");
        assert!(v.causes.is_empty() && v.next.starts_with("more programs at once"));
        assert_eq!(trial(&v), Some(Trial::Concurrency));
        let nearly = one_reader(0.9496).to_string();
        assert!(nearly.contains("core is 94% busy\n"), "{nearly}");
        let full = one_reader(0.97);
        assert!(
            full.to_string().contains("verdict: nothing stands out\n"),
            "{full}"
        );
        assert_eq!(trial(&full), None);
    }
}
