//! Too few RPCs in flight: slots that are waited for, and distance that what is on the way does not fill.

use std::collections::BTreeSet;

use super::clients::{View, who};
use super::facts::{Data, Facts, Path, is_ost};
use super::far::{carry_little, far_least};
use super::rules::{
    Cause, CauseKind, FAR, PROGRAMS, RTT_NEAR_S, SHARE_LEAST, TIMES_PEERS, ms, rate,
};
use crate::attribution::Segment;

/// RPCs in flight that Lustre has by default.
const IN_FLIGHT_DEFAULT: u32 = 8;
/// The parameter of a mount that says how many RPCs may be in flight to an OST. For an MDT there is none.
pub(super) const IN_FLIGHT: &str = "osc.*.max_rpcs_in_flight";
/// Most that it takes.
const IN_FLIGHT_MOST: u32 = 256;

/// What goes through is what was seen where it is so large a part of it.
const NEARLY: f64 = 0.9;

/// So much of the waits for so many slots would be left with as many as Lustre has by default; the rest is of the slots alone.
pub(super) fn part_of_default(max: u32) -> f64 {
    match max {
        0 => 1.0, // nobody has told how many
        few => f64::from(few.min(IN_FLIGHT_DEFAULT)) / f64::from(IN_FLIGHT_DEFAULT),
    }
}

/// How more RPCs than `max` may be in flight to these targets.
pub(super) fn more_slots<'a>(targets: impl IntoIterator<Item = &'a str>, max: u32) -> String {
    let (osts, mdts): (Vec<&str>, Vec<&str>) = targets.into_iter().partition(|t| is_ost(t));
    let more = max
        .saturating_mul(2)
        .clamp(IN_FLIGHT_DEFAULT, IN_FLIGHT_MOST);
    let of_osts = match more > max {
        true => format!("lctl set_param {IN_FLIGHT}={more}"),
        false => format!("more mounts, each of which has {max} RPCs in flight to an OST at most"),
    };
    let of_mdts = "more mounts, each of which has as many RPCs in flight to an MDT: no parameter changes that";
    match (osts.is_empty(), mdts.is_empty()) {
        (_, true) => of_osts,
        (true, false) => of_mdts.to_owned(),
        (false, false) => format!("{of_osts}; {of_mdts}"),
    }
}

/// How many RPCs had taken one of so many places: what is under a lock of the client's own needs none.
pub(super) fn of_places(taken: f64, places: u32) -> String {
    match taken > 0.0 {
        true => format!("with {taken:.1} of {places} places"),
        false => "none of which needs a place".to_owned(),
    }
}

pub(super) fn window(f: &Facts) -> Option<Cause> {
    let share = f.share(Segment::ClientQueue, None);
    let waited = |p: &Path| p.seconds.get(&Segment::ClientQueue).copied().unwrap_or(0.0);
    // The path whose slots were waited for most, and those whose slots were waited for about as much: which of these is the first is
    // chance.
    let views = f.views();
    // Most of the wait is that of clients whose own slots are too few, however many clients share it.
    let too_few = |p: &&Path| {
        let own = views.iter().flat_map(|v| v.paths);
        let own = own.filter(|o| o.target == p.target && slots_are_too_few(f, o));
        own.map(waited).sum::<f64>() >= waited(p) / 2.0
    };
    let most = f.paths.iter().map(waited).fold(0.0, f64::max);
    let alike = |p: &&Path| waited(p) > 0.0 && waited(p) >= most / TIMES_PEERS;
    let mut all: Vec<&Path> = f.paths.iter().filter(alike).filter(too_few).collect();
    all.sort_by(|a, b| a.target.cmp(&b.target));
    let p = *all.iter().max_by(|a, b| waited(a).total_cmp(&waited(b)))?;
    let names: Vec<&str> = all.iter().map(|p| p.target.as_str()).collect();
    let at = match all.len() {
        1 => String::new(),
        _ => format!(", most of all at {}", p.target),
    };
    let (ceiling, size) = full_window(f, p);
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::Window,
        subject: names.join(", "),
        fid: None,
        share,
        figure: format!(
            "{:.1} RPCs{size} in flight, {} may be; {} waiting for a slot an RPC{at}",
            in_flight(f, p),
            p.in_flight_max,
            ms(p.mean_s(Segment::ClientQueue))
        ),
        ceiling,
        change: more_slots(names.iter().copied(), p.in_flight_max),
    })
}

/// What goes to a target with all slots in use, and of what size an RPC is. Of what went faster it is no ceiling: it had no slot.
fn full_window(f: &Facts, p: &Path) -> (Option<String>, String) {
    let (max, mean) = (f64::from(p.in_flight_max), p.placed_s());
    let clients = (f64::from(p.places) / max.max(1.0)).max(1.0);
    let seen = p.rpcs as f64 / clients / f.window_s.max(1e-12);
    let most = max / mean.max(1e-12);
    let holds = most >= seen;
    // A few that carry data tell nothing of the others.
    if 2 * p.data.rpcs < p.rpcs || p.data.rpcs == 0 {
        let text = format!(
            "{max:.0} in flight / {} = {most:.0} RPCs/s a client; {seen:.0} were seen",
            ms(mean)
        );
        return (holds.then_some(text), String::new());
    }
    let size = p.data.mean_bytes();
    let (mean, kib) = (p.data.mean_s(), size / 1024.0);
    let most = max * size / mean.max(1e-12);
    let seen = p.data.bytes as f64 / clients / f.window_s.max(1e-12);
    let text = format!(
        "{max:.0} in flight x {kib:.0} KiB / {} = {} a client and target",
        ms(mean),
        rate(most)
    );
    ((most >= seen).then_some(text), format!(" of {kib:.0} KiB"))
}

/// Its slots are all in use, and fewer than Lustre has; where they are as many, they are too few only when distance fills them.
fn slots_are_too_few(f: &Facts, p: &Path) -> bool {
    let mean = p.service_s / p.rpcs.max(1) as f64;
    let is_far = p.rtt_s.is_finite() && p.rtt_s > RTT_NEAR_S;
    let is_few = p.in_flight_max < IN_FLIGHT_DEFAULT || (is_far && distance(p) > mean / 2.0);
    is_few && in_flight(f, p) >= 0.7 * f64::from(p.in_flight_max)
}

/// RPCs of a client in flight to a target: as each RPC found it, or in the mean over the time, whichever is more. RPCs that come in
/// bursts find fewer than there are right after, and where there are pauses between bursts the mean is less than what they find.
fn in_flight(f: &Facts, p: &Path) -> f64 {
    let max = f64::from(p.in_flight_max);
    let clients = (f64::from(p.places) / max.max(1.0)).max(1.0);
    let mean = p.placed.1 / clients / f.window_s.max(1e-12);
    p.in_flight.max(mean.min(max))
}

/// Seconds of an RPC, in the mean, that are the way: twice there and back where it has bulk data, for these and for the reply.
fn distance(p: &Path) -> f64 {
    p.rtt_s * (1.0 + p.bulk_rpcs as f64 / p.rpcs.max(1) as f64)
}

/// All servers are far from clients, and what these have on the way at once does not fill it, whoever bounds
/// that: slots, what is read ahead, or the programs.
pub(super) fn far_window(f: &Facts) -> Option<Cause> {
    let views = f.far_views();
    let share = (views.iter()).map(|v| v.share(Segment::ClientQueue) + in_flight_share(v));
    let share = share.sum::<f64>();
    let used = views.iter().flat_map(|v| v.paths);
    let known = used.filter(|p| p.rtt_s.is_finite());
    let large: Vec<&Path> = known.filter(|p| p.large.rpcs > 0).collect();
    let targets: BTreeSet<&str> = large.iter().map(|p| p.target.as_str()).collect();
    let all = large.iter().fold(Data::default(), |d, p| d.with(p.large));
    let (size, mean) = (all.mean_bytes(), all.mean_s());
    let way = large.iter().map(|p| 2.0 * p.rtt_s * p.large.rpcs as f64);
    let way = (way.sum::<f64>() / all.rpcs.max(1) as f64).min(mean);
    let under_way = all.inside_s / f.window_s.max(1e-12);
    let in_flight = all.placed_s / f.window_s.max(1e-12);
    let places: u32 = large.iter().map(|p| p.places).sum();
    let max = large.iter().map(|p| p.in_flight_max).max()?;
    let is_far = way > mean / 2.0;
    // As much as was seen, unless much of it was under way for a part of the time only.
    let seen = all.bytes as f64 / f.window_s.max(1e-12);
    let goes = under_way * size / mean.max(1e-12) >= NEARLY * seen;
    let is_full = in_flight >= 0.7 * f64::from(places);
    // Where there are places left it is not their number that limits.
    let (kind, subject) = match is_full {
        true => (CauseKind::Window, FAR),
        false => (CauseKind::FixedConcurrency, PROGRAMS),
    };
    let is_named = share >= far_least(f, &views) && is_far && !carry_little(&views);
    is_named.then(|| Cause {
        kind,
        subject: subject.to_owned(),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "{under_way:.1} RPCs of {:.0} KiB under way to {}, {}; {} an RPC, of which twice there and back {}{}",
            size / 1024.0,
            match targets.len() {
                1 => "one OST".to_owned(),
                n => format!("{n} OSTs"),
            },
            of_places(in_flight, places),
            ms(mean),
            ms(way),
            who_is_far(f, &views)
        ),
        ceiling: goes.then(|| format!(
            "{under_way:.1} under way x {:.0} KiB / {} = {}{}",
            size / 1024.0,
            ms(mean),
            rate(under_way * size / mean),
            match in_flight > 0.0 && under_way < f64::from(places) {
                true => format!(
                    "; {places} under way x {:.0} KiB / {}, the way alone, would be {}",
                    size / 1024.0,
                    ms(way),
                    rate(f64::from(places) * size / way)
                ),
                false => String::new(),
            }
        )),
        change: match is_full {
            true => more_slots(targets.iter().copied(), max),
            false => more_at_once(f, targets.len()),
        },
    })
}

/// What clients have on the way, with whatever waits before it is sent.
fn in_flight_share(v: &View) -> f64 {
    let parts = [Segment::Send, Segment::Network, Segment::Bulk];
    let sent: f64 = parts.iter().map(|s| v.share(*s)).sum();
    sent.max(v.paths.iter().map(|p| v.on_way(p)).sum())
}

/// Names the clients that are far, where others are not.
pub(super) fn who_is_far(f: &Facts, far: &[View]) -> String {
    let nids = far.iter().flat_map(|v| v.nids);
    match who(nids) {
        Some(who) if f.views().len() > far.len() => {
            format!("; that is {who}, and others are near")
        }
        _ => String::new(),
    }
}

/// How to have more on the way than goes to so many OSTs now.
fn more_at_once(f: &Facts, used: usize) -> String {
    match f.osts {
        all if all > used => format!(
            "more at once: more programs, or files over more OSTs (lfs setstripe -c {})",
            all.min(2 * used)
        ),
        _ => "more at once: more programs".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_place_leaves_none_free() {
        assert_eq!(of_places(0.4, 32), "with 0.4 of 32 places");
        assert_eq!(of_places(0.0, 32), "none of which needs a place");
    }

    #[test]
    fn what_is_advised_can_be_set() {
        assert_eq!(
            more_slots(["fs-OST0000"], 1),
            "lctl set_param osc.*.max_rpcs_in_flight=8"
        );
        assert_eq!(
            more_slots(["fs-OST0000"], 200),
            "lctl set_param osc.*.max_rpcs_in_flight=256"
        );
        assert!(more_slots(["fs-OST0000"], 256).starts_with("more mounts"));
        assert!(!more_slots(["fs-MDT0000"], 8).contains("set_param"));
        let both = more_slots(["fs-MDT0000", "fs-OST0000"], 8);
        assert!(
            both.starts_with("lctl set_param osc.*.max_rpcs_in_flight=16; more mounts"),
            "{both}"
        );
    }
}
