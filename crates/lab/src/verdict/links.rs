//! What nodes sent each other over TCP while they were watched, and which of these ways were full.
//!
//! A way is full when data wait for it all the time, the receiver has room for them and has read what came, and the round trip has
//! grown to several times its least: then packets stand in a queue before something that lets no more of them through. Who does not
//! read, and distance, show otherwise: the one by what lies unread, the other by a round trip that is its least. The round trip alone
//! does not tell them apart, because a receiver may acknowledge late what it reads late.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What a node sends over one connection: as a Coral process tells it.
pub use coral_lnet::show::LinkShow as Tcp;
use serde::{Deserialize, Serialize};

use super::facts::{Facts, Path};
use super::rules::{Cause, CauseKind, SHARE_LEAST, ms, queued_for, rate};
use crate::attribution::Segment;

/// Share of the time in which data were on the way or waited to be, of all ways together whose data stand in a queue: it may be one
/// queue before which they take turns.
const BUSY: f64 = 0.7;
/// Share of that time in which the peer had no room, from which on it is the peer that holds the sender up.
const PEER_FULL: f64 = 0.3;
/// Bytes that wait, of a way that is full: with less it waits for others' data, not for its own.
const WAITING_LEAST: f64 = 32_768.0;
/// A receiver reads what comes if less than this lies unread, or less than one part in so many of what waits: its socket holds a few
/// MiB at most, and before the sender's there may be more.
const UNREAD_LEAST: f64 = 65_536.0;
const UNREAD_PART: f64 = 8.0;
/// How many times the least the round trip is, and how much longer: a queue of a megabyte or two before 10 Gb/s.
const RTT_TIMES: f64 = 3.0;
const RTT_MORE_S: f64 = 0.001;

/// Looks of a watch at which every second one goes: an odd number, so that the first and the last stay.
const LOOKS_MAX: usize = 17;
/// Shortest watch that tells a rate, seconds.
const WATCH_LEAST_S: f64 = 0.05;

/// All connections at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Seconds since some moment, the same for all looks of a watch.
    pub at_s: f64,
    /// Connections.
    pub tcp: Vec<Tcp>,
}

/// Connections of each process that was asked, by its socket; none where it did not answer.
pub type Answers = BTreeMap<PathBuf, Option<Vec<Tcp>>>;

/// Looks of a watch, evenly spread over it and fewer than [`LOOKS_MAX`]: when there are more, every second one goes, and the next ones
/// come half as often.
///
/// # Invariants
/// - A connection that is in one look and not in the one before has begun between them: so a process is in all looks from its first
///   answer on, or in none.
#[derive(Clone, Debug)]
pub struct Looks {
    looks: Vec<Look>,
    pause_s: f64,
    answered: BTreeSet<PathBuf>,
    /// Who was silent before an answer.
    left_out: BTreeSet<PathBuf>,
}

impl Looks {
    /// Of a watch that begins now; so many seconds are between looks at first.
    pub fn every(pause_s: f64) -> Looks {
        Looks {
            looks: vec![],
            pause_s,
            answered: BTreeSet::new(),
            left_out: BTreeSet::new(),
        }
    }

    /// Seconds until the next look.
    pub fn pause_s(&self) -> f64 {
        self.pause_s
    }

    /// Takes in what processes answered at a moment. There is no look where one of them is silent that answered before, or all are.
    pub fn take(&mut self, at_s: f64, answers: Answers) {
        if answers.values().all(Option::is_none) {
            return;
        }
        let silent = answers.iter().filter(|(_, told)| told.is_none());
        let (before, never): (Vec<_>, Vec<_>) = silent
            .map(|(who, _)| who.clone())
            .partition(|who| self.answered.contains(who));
        self.left_out.extend(never);
        if !before.is_empty() {
            return;
        }
        let mut tcp = vec![];
        for (who, told) in answers {
            if !self.left_out.contains(&who) {
                tcp.extend(told.unwrap_or_default());
                self.answered.insert(who);
            }
        }
        self.looks.push(Look { at_s, tcp });
        if self.looks.len() == LOOKS_MAX {
            let mut nth = 0;
            self.looks.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.pause_s *= 2.0;
        }
    }

    /// All that are kept, in their order.
    pub fn all(self) -> Vec<Look> {
        self.looks
    }
}

/// The way from one node to another, from the first look to the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// NID of the sender.
    pub from: String,
    /// NID of the receiver.
    pub to: String,
    /// Bytes in a second, between one look and the next.
    pub rates: Vec<f64>,
    /// The same from the first look to the last.
    pub bytes_per_s: f64,
    /// Share of the time in which data were on the way, of the connection that carried most.
    pub busy: f64,
    /// Share of the time in which the receiver had no room for them.
    pub peer_full: f64,
    /// Round trip, mean of the looks, seconds.
    pub rtt_s: f64,
    /// The least round trip, seconds.
    pub least_rtt_s: f64,
    /// Bytes that waited to be sent or were on the way, mean of the looks.
    pub waiting_bytes: f64,
    /// Bytes that lay unread at the receiver, mean of the looks; 0 where it was not asked.
    pub unread_bytes: f64,
}

impl Link {
    /// Something waits on it, before it is sent or before it is read: what comes then is late for that.
    pub(super) fn has_queue(&self) -> bool {
        self.waiting_bytes >= WAITING_LEAST || self.unread_bytes >= UNREAD_LEAST
    }

    /// Both ends, whichever sends.
    pub(super) fn ends(&self) -> [&str; 2] {
        let mut ends = [self.from.as_str(), self.to.as_str()];
        ends.sort_unstable();
        ends
    }

    /// What it carries stands in a queue.
    fn is_queued(&self) -> bool {
        self.peer_full < PEER_FULL * self.busy
            && self.waiting_bytes >= WAITING_LEAST
            && self.unread_bytes < UNREAD_LEAST.max(self.waiting_bytes / UNREAD_PART)
            && self.rtt_s >= RTT_TIMES * self.least_rtt_s
            && self.rtt_s - self.least_rtt_s >= RTT_MORE_S
    }
}

/// What went on between the looks; of fewer than two nothing is known.
pub(super) fn links(looks: &[Look]) -> Vec<Link> {
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        return vec![];
    };
    let seconds = last.at_s - first.at_s;
    if seconds < WATCH_LEAST_S {
        return vec![];
    }
    let pairs: BTreeSet<(&str, &str)> = (last.tcp.iter())
        .map(|t| (t.from.as_str(), t.to.as_str()))
        .collect();
    pairs
        .into_iter()
        .map(|pair| link(pair, looks, seconds))
        .collect()
}

fn link(pair: (&str, &str), looks: &[Look], seconds: f64) -> Link {
    let of = |look: &Look, pair: (&str, &str)| -> Vec<Tcp> {
        let tcp = look.tcp.iter();
        tcp.filter(|t| (t.from.as_str(), t.to.as_str()) == pair)
            .cloned()
            .collect()
    };
    let back = looks[1..].iter().map(|l| of(l, (pair.1, pair.0)));
    let unread = back.map(|tcp| tcp.iter().map(|t| t.unread_bytes).sum::<u64>());
    let unread_bytes = unread.sum::<u64>() as f64 / (looks.len() - 1).max(1) as f64;
    let looks: Vec<(f64, Vec<Tcp>)> = looks.iter().map(|l| (l.at_s, of(l, pair))).collect();
    let mut all: BTreeMap<(u16, u16), Tcp> = BTreeMap::new();
    let mut rates = vec![];
    for two in looks.windows(2) {
        let ((from_s, before), (to_s, after)) = (&two[0], &two[1]);
        let mut bytes = 0;
        for t in after {
            let more = since(before, t);
            bytes += more.acked_bytes;
            let sum = all.entry(t.ports).or_default();
            sum.acked_bytes += more.acked_bytes;
            sum.busy_us += more.busy_us;
            sum.peer_full_us += more.peer_full_us;
        }
        rates.push(bytes as f64 / (to_s - from_s).max(1e-9));
    }
    let most = all.iter().max_by_key(|(_, t)| t.acked_bytes);
    let (ports, most) = most.map_or_else(Default::default, |(p, t)| (*p, t.clone()));
    let later = &looks[1..];
    let mean = |of: &dyn Fn(&[Tcp]) -> Option<f64>| {
        let values: Vec<f64> = later.iter().filter_map(|(_, tcp)| of(tcp)).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    let rtt_of = |tcp: &[Tcp]| {
        let carrier = tcp.iter().find(|t| t.ports == ports)?;
        Some(f64::from(carrier.rtt_us) / 1e6)
    };
    let waiting = |tcp: &[Tcp]| Some(tcp.iter().map(|t| t.waiting_bytes).sum::<u64>() as f64);
    let least = looks.iter().flat_map(|(_, tcp)| tcp);
    let least = least.map(|t| t.least_rtt_us).filter(|us| *us > 0).min();
    let share = |us: u64| us as f64 / 1e6 / seconds;
    Link {
        from: pair.0.to_owned(),
        to: pair.1.to_owned(),
        rates,
        bytes_per_s: all.values().map(|t| t.acked_bytes).sum::<u64>() as f64 / seconds,
        busy: share(most.busy_us),
        peer_full: share(most.peer_full_us),
        rtt_s: mean(&rtt_of),
        least_rtt_s: f64::from(least.unwrap_or(0)) / 1e6,
        waiting_bytes: mean(&waiting),
        unread_bytes,
    }
}

/// What a connection counted since it was among `before`. One that is new, also where an old one had its ports, has counted all.
fn since(before: &[Tcp], t: &Tcp) -> Tcp {
    let old = before.iter().find(|b| b.ports == t.ports);
    let old = old.filter(|b| b.acked_bytes <= t.acked_bytes && b.busy_us <= t.busy_us);
    let mut more = t.clone();
    if let Some(old) = old {
        more.acked_bytes -= old.acked_bytes;
        more.busy_us -= old.busy_us;
        more.peer_full_us = more.peer_full_us.saturating_sub(old.peer_full_us);
    }
    more
}

/// A network that lets no more through, with the targets whose RPCs have to pass it.
pub(super) fn saturated(f: &Facts) -> Option<(Cause, Vec<String>)> {
    let queued = f.links.iter().filter(|l| l.is_queued());
    let full: Vec<&Link> = queued.collect();
    if full.iter().map(|l| l.busy).sum::<f64>() < BUSY {
        return None;
    }
    let ends: BTreeSet<&str> = (f.links.iter())
        .flat_map(|l| [l.from.as_str(), l.to.as_str()])
        .collect();
    let passes = |p: &&Path| {
        let at_an_end = |l: &&&Link| l.from == p.peer || l.to == p.peer;
        // Where no connection leads to its server, routers are between.
        !full.is_empty() && (!ends.contains(p.peer.as_str()) || full.iter().any(|l| at_an_end(&l)))
    };
    let behind: Vec<&Path> = f.paths.iter().filter(passes).collect();
    let share: f64 = behind.iter().map(|p| on_way_or_waiting(f, p)).sum();
    let most = (full.iter()).max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s))?;
    if share < SHARE_LEAST {
        return None;
    }
    let senders: BTreeSet<&str> = full.iter().map(|l| l.from.as_str()).collect();
    let receivers: BTreeSet<&str> = full.iter().map(|l| l.to.as_str()).collect();
    // What shares the way with them, full or not, is part of what goes through.
    type Shares = fn(&Link, &Link) -> bool;
    let (subject, shares): (String, Shares) = match (senders.len(), receivers.len()) {
        (1, 1) => (format!("{} to {}", most.from, most.to), |l, m| {
            l.from == m.from && l.to == m.to
        }),
        (1, _) => (format!("what {} sends", most.from), |l, m| l.from == m.from),
        (_, 1) => (format!("what {} receives", most.to), |l, m| l.to == m.to),
        _ => {
            let subject = format!("{} ways between {} nodes", full.len(), ends.len());
            (subject, |_, _| true)
        }
    };
    let sharing: Vec<&Link> = f.links.iter().filter(|l| shares(l, most)).collect();
    let through = sharing.iter().map(|l| l.bytes_per_s).sum();
    let cause = Cause {
        kind: CauseKind::SaturatedNetwork,
        subject,
        fid: None,
        share: share.min(1.0),
        figure: format!("{}{}", rate(through), figure(&sharing, most)),
        ceiling: Some(format!(
            "{} go through, with whatever settings",
            rate(through)
        )),
        change: format!(
            "measure the way from {} to {} alone with `lst`: it is what it lets through that counts",
            most.from, most.to
        ),
    };
    let behind = behind.iter().map(|p| p.target.clone()).collect();
    Some((cause, behind))
}

fn figure(sharing: &[&Link], most: &Link) -> String {
    // Together, moment by moment: what one way has less, another may have more.
    let slices = sharing.iter().map(|l| l.rates.len()).min().unwrap_or(0);
    let sums = (0..slices).map(|i| sharing.iter().map(|l| l.rates[i]).sum::<f64>());
    let sums: Vec<f64> = sums.collect();
    let least = sums.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = sums.iter().copied().fold(0.0, f64::max);
    let steady = match slices {
        0 | 1 => String::new(),
        n => format!(
            ", {} to {} between {} looks",
            rate(least),
            rate(greatest),
            n + 1
        ),
    };
    format!(
        "{steady}; from {} to {} data waited or were on the way {:.0}% of the time, {:.0} KiB of them; a round trip takes {}, {} at least",
        most.from,
        most.to,
        100.0 * most.busy.min(1.0),
        most.waiting_bytes / 1024.0,
        ms(most.rtt_s),
        ms(most.least_rtt_s)
    )
}

/// Segments that are on the way to a server and back.
pub(super) const WAY: [Segment; 6] = [
    Segment::Credit,
    Segment::Send,
    Segment::Network,
    Segment::Bulk,
    Segment::ReplyOut,
    Segment::Remote,
];

/// Share of the operations' time in which RPCs to a target were on the way, or waited for those that were.
fn on_way_or_waiting(f: &Facts, p: &Path) -> f64 {
    let own: f64 = WAY.iter().filter_map(|s| p.seconds.get(s)).sum();
    let at = |s: &Segment| f.share(*s, Some(&p.target));
    WAY.iter().map(at).sum::<f64>() + queued_for(f, p, own)
}

#[cfg(test)]
mod tests {
    use super::super::facts::OpKind;
    use super::*;

    /// A connection that has sent so much, with data on the way for so long.
    fn tcp(from: &str, to: &str, acked_bytes: u64, busy_us: u64, rtt_us: u32) -> Tcp {
        Tcp {
            from: from.to_owned(),
            to: to.to_owned(),
            ports: (1000, 988),
            acked_bytes,
            waiting_bytes: 1 << 20,
            unread_bytes: 0,
            busy_us,
            peer_full_us: 0,
            rtt_us,
            least_rtt_us: 50,
        }
    }

    fn look(at_s: f64, tcp: Vec<Tcp>) -> Look {
        Look { at_s, tcp }
    }

    /// Two seconds in which `c` wrote to `s`, 10 MB/s, and got little back.
    fn slow() -> Vec<Look> {
        let at = |s: u64| {
            let us = s * 980_000;
            let there = tcp("c", "s", 7_000_000 + s * 10_000_000, 1_000_000 + us, 9_000);
            let mut back = tcp("s", "c", 5000 + s * 1000, us / 50, 60);
            back.ports = (988, 1000);
            look(100.0 + s as f64, vec![there, back])
        };
        (0..3).map(at).collect()
    }

    fn facts(looks: &[Look]) -> Facts {
        let network = 0.8;
        Facts {
            window_s: 1.0,
            ops: vec![OpKind {
                op: "WRITE".into(),
                count: 100,
                seconds: 1.0,
            }],
            seconds: [((Segment::Bulk, "fs-OST0000".to_owned()), network)].into(),
            paths: vec![Path {
                target: "fs-OST0000".into(),
                peer: "s".into(),
                rpcs: 100,
                service_s: 1.0,
                seconds: [(Segment::Bulk, network)].into(),
                ..Path::default()
            }],
            links: links(looks),
            ..Facts::default()
        }
    }

    #[test]
    fn a_full_way_is_named_with_its_rate() {
        let (cause, behind) = saturated(&facts(&slow())).unwrap();
        assert_eq!(cause.subject, "c to s");
        assert_eq!(
            (cause.share, &behind[..]),
            (0.8, &["fs-OST0000".to_owned()][..])
        );
        for part in [
            "10.0 MB/s, 10.0 MB/s to 10.0 MB/s between 3 looks",
            "98% of the time, 1024 KiB of them",
            "takes 9.00 ms, 50.0 us at least",
        ] {
            assert!(cause.figure.contains(part), "{part}: {}", cause.figure);
        }
        assert_eq!(
            cause.ceiling.unwrap(),
            "10.0 MB/s go through, with whatever settings"
        );
        // two looks are enough, and one tells nothing
        let two = [slow()[0].clone(), slow()[2].clone()];
        assert!(saturated(&facts(&two)).is_some());
        assert_eq!(links(&slow()[..1]), []);
    }

    #[test]
    fn what_only_looks_like_it_is_not_accused() {
        let changed = |change: fn(&mut Tcp)| {
            let mut looks = slow();
            let all = looks.iter_mut().flat_map(|l| &mut l.tcp);
            all.filter(|t| t.from == "c").for_each(change);
            saturated(&facts(&looks))
        };
        assert!(changed(|_| ()).is_some());
        let distance = changed(|t| t.least_rtt_us = t.rtt_us);
        assert_eq!(distance, None, "far, and nobody queues");
        let quick = changed(|t| t.rtt_us = 400);
        assert_eq!(quick, None, "grown by less than anybody notices");
        let full = changed(|t| t.peer_full_us = t.busy_us / 2);
        assert_eq!(full, None, "the peer has no room");
        let unread = {
            let mut looks = slow();
            let back = looks.iter_mut().flat_map(|l| &mut l.tcp);
            back.filter(|t| t.from == "s")
                .for_each(|t| t.unread_bytes = 1 << 18);
            saturated(&facts(&looks))
        };
        assert_eq!(unread, None, "the peer does not read");
        let little = changed(|t| t.waiting_bytes = 500);
        assert_eq!(little, None, "it is others' data that stand before it");
        let idle = changed(|t| t.busy_us /= 2);
        assert_eq!(idle, None, "there is room half of the time");
        let in_turns = {
            let mut looks = slow();
            for l in &mut looks {
                l.tcp[0].busy_us /= 2;
                let other = Tcp {
                    to: "t".to_owned(),
                    ..l.tcp[0].clone()
                };
                l.tcp.push(other);
            }
            saturated(&facts(&looks))
        };
        assert!(
            in_turns.is_some(),
            "another one is on the way in the other half"
        );
        let mut elsewhere = facts(&slow());
        elsewhere.seconds = [((Segment::Storage, "fs-OST0000".to_owned()), 0.8)].into();
        assert_eq!(saturated(&elsewhere), None, "nobody waits for it");
    }

    #[test]
    fn a_way_that_several_share_is_named_by_who_they_are() {
        let with = |more: &[(&str, &str)]| {
            let mut looks = slow();
            for l in &mut looks {
                let old = l.tcp[0].clone();
                l.tcp.extend(more.iter().map(|(from, to)| Tcp {
                    from: (*from).to_owned(),
                    to: (*to).to_owned(),
                    ..old.clone()
                }));
            }
            let cause = saturated(&facts(&looks)).unwrap().0;
            (cause.subject, cause.ceiling.unwrap())
        };
        let is = |(subject, ceiling): (String, String), wanted: &str, rate: &str| {
            assert!(
                subject == wanted && ceiling.starts_with(rate),
                "{subject}, {ceiling}"
            );
        };
        is(with(&[("c", "t")]), "what c sends", "20.0 MB/s");
        is(with(&[("d", "s")]), "what s receives", "20.0 MB/s");
        // with the little that goes back
        is(
            with(&[("d", "t"), ("e", "t")]),
            "3 ways between 5 nodes",
            "30.0 MB/s",
        );
        // the server is behind a router, to which alone there is a connection
        let mut f = facts(&slow());
        f.paths[0].peer = "far".into();
        assert!(saturated(&f).is_some());
    }

    #[test]
    fn looks_are_bounded_and_the_first_and_the_last_stay() {
        let mut looks = Looks::every(1.0);
        let mut at_s = 0.0;
        for _ in 0..1000 {
            looks.take(at_s, [("p".into(), Some(vec![]))].into());
            assert!(looks.looks.len() <= LOOKS_MAX);
            assert_eq!(
                (looks.looks[0].at_s, looks.looks.last().unwrap().at_s),
                (0.0, at_s)
            );
            at_s += looks.pause_s();
        }
        let at: Vec<f64> = looks.all().iter().map(|l| l.at_s).collect();
        assert!(at.len() > LOOKS_MAX / 2);
        let gap = at[1] - at[0];
        assert!(at.windows(2).all(|w| w[1] - w[0] == gap), "{at:?}");
    }

    /// Two processes send 10 MB/s each, and have sent 7 MB before. In the looks with a name, that one is silent.
    fn watched(silent: &[&str]) -> Vec<(String, f64)> {
        let mut looks = Looks::every(1.0);
        for (s, silent) in (0..).zip(silent) {
            let sent = 7_000_000 + s * 10_000_000;
            let answer = |who: &&str| {
                let told = (who != silent).then(|| vec![tcp(who, "s", sent, 1000 * s, 60)]);
                (PathBuf::from(*who), told)
            };
            looks.take(s as f64, ["c", "d"].iter().map(answer).collect());
        }
        let links = links(&looks.all()).into_iter();
        links.map(|l| (l.from, l.bytes_per_s)).collect()
    }

    #[test]
    fn a_process_that_is_silent_for_a_look_has_sent_no_more_for_that() {
        let both = ["c", "d"].map(|who| (who.to_owned(), 10e6));
        for silent in [["", "", ""], ["", "d", ""], ["", "c", "c"]] {
            let all = watched(&silent);
            match silent {
                ["", "c", "c"] => assert_eq!(all, [], "one look tells nothing"),
                _ => assert_eq!(all, both, "{silent:?}"),
            }
        }
        assert_eq!(watched(&["", "", "d"]), both, "its way is still there");
        for silent in [["d", "d", "d"], ["d", "", ""]] {
            assert_eq!(watched(&silent), both[..1], "{silent:?}: only who answers");
        }
    }

    #[test]
    fn a_new_connection_with_old_ports_has_counted_all() {
        let looks = [
            look(0.0, vec![tcp("c", "s", 9_000_000, 500_000, 60)]),
            look(1.0, vec![tcp("c", "s", 1_000_000, 300_000, 60)]),
        ];
        let all = links(&looks);
        assert_eq!((all[0].bytes_per_s, all[0].busy), (1e6, 0.3));
    }
}
