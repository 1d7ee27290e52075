//! The causes, each with the rule by which it is named.
//!
//! A target is slow when its peers are not, or, where it has none, when it is slower than solid-state storage or a network within
//! a building is. The limits stand at the top, each with its reason.

use crate::attribution::Segment;

use super::clients::View;
use super::credits::credits;
use super::facts::{Facts, Path};
use super::far::{carry_little, far_least};
use super::hosts::{hosts, is_full};
use super::links::saturated;
use super::lock_waits::{lock_ping_pong, lock_wait, own_directories, shared_file};
use super::resends::{no_answer, resends};
use super::sharing::OneDirectory;
use super::slots::{far_window, who_is_far, window};
use super::slow_kinds::DELAY_RULES;
use super::slow_links::slow_links;
use super::stood::stood_still;

/// Share of the operations' time below which nobody is accused.
pub(super) const SHARE_LEAST: f64 = 0.2;
/// A target is slow that takes so many times the median of its peers.
pub(super) const TIMES_PEERS: f64 = 3.0;
/// Seconds more than its peers below which it does not matter.
pub(super) const MORE_LEAST_S: f64 = 0.000_5;
/// Seconds of storage an RPC may take where there are no peers: what a solid-state disk's sync takes, five times over.
const STORAGE_ALONE_S: f64 = 0.005;
/// Bytes that storage stores in a second beside that: what a solid-state disk does, by five.
const STORAGE_BYTES_PER_S: f64 = 200e6;
/// Seconds there and back within a building; more is distance.
pub(super) const RTT_NEAR_S: f64 = 0.002;
/// Share of the RPCs with bulk data from which on these are told.
const BULK_LEAST: f64 = 0.05;
/// Share of the writes without a grant.
const GRANTLESS_SHARE: f64 = 0.25;
/// What is computed in two ways may differ by so little.
pub(super) const NOT_BELOW: f64 = 0.999;
/// A cache warms that answers so many times faster in the second half.
const WARMS_TIMES: f64 = 3.0;

/// Where requests are too few for the way to servers that are all far.
pub(super) const FAR: &str = "the OSTs";
/// Where it is they that have too few operations under way.
pub(super) const PROGRAMS: &str = "the programs";

/// What may limit a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CauseKind {
    /// Operations that do not end.
    StandsStill,
    /// The storage of one target.
    SlowStorage,
    /// A network that lets no more through.
    SaturatedNetwork,
    /// The way to one server.
    SlowLink,
    /// Too few RPCs in flight.
    Window,
    /// Clients take locks from each other.
    LockPingPong,
    /// Locks that others have are waited for.
    LockWait,
    /// One core has no room.
    BusyCore,
    /// A target answers nobody for a time.
    NoAnswer,
    /// Requests are sent again.
    Resends,
    /// Messages wait for a credit of their peer.
    Credits,
    /// A router has too few buffers.
    RouterBuffers,
    /// Distance, with small requests one after the other.
    FixedConcurrency,
    /// A client has too little memory.
    Swap,
    /// Writes without a grant go out one by one.
    Grants,
    /// A cache is cold at first.
    ColdCache,
}

impl CauseKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            CauseKind::StandsStill => "stands still",
            CauseKind::SlowStorage => "slow storage",
            CauseKind::SaturatedNetwork => "saturated network",
            CauseKind::SlowLink => "slow link",
            CauseKind::Window => "RPCs in flight",
            CauseKind::LockPingPong => "lock ping-pong",
            CauseKind::LockWait => "lock wait",
            CauseKind::BusyCore => "busy core",
            CauseKind::NoAnswer => "no answer",
            CauseKind::Resends => "lost messages",
            CauseKind::Credits => "LNet credits",
            CauseKind::RouterBuffers => "router buffers",
            CauseKind::FixedConcurrency => "fixed concurrency",
            CauseKind::Swap => "swapping",
            CauseKind::Grants => "grants",
            CauseKind::ColdCache => "cold cache",
        }
    }
}

/// A cause with what speaks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Which.
    pub kind: CauseKind,
    /// Where: a target, a router, a machine or a file.
    pub subject: String,
    /// The file, where it is one.
    pub fid: Option<(u64, u32, u32)>,
    /// Share of the operations' time that it accounts for, 0 to 1.
    pub share: f64,
    /// The figure.
    pub figure: String,
    /// What it comes to, where that can be said: the ceiling.
    pub ceiling: Option<String>,
    /// The one change that would show it.
    pub change: String,
}

impl Cause {
    /// Its targets, where it is of targets.
    pub(super) fn targets(&self) -> impl Iterator<Item = &str> {
        self.subject.split(", ")
    }

    /// Whether it is of some kinds of messages only.
    pub(super) fn is_of_kinds(&self) -> bool {
        self.change.contains(DELAY_RULES)
    }

    /// Whether another verdict means the same. Of links that are slow together, one may have too few requests to be told there; one that
    /// is slow for all messages is none that is slow for some kinds.
    pub(super) fn is_same(&self, other: &Cause) -> bool {
        let both_have = || self.targets().any(|t| other.targets().any(|o| o == t));
        match self.kind == other.kind {
            true if self.kind == CauseKind::SlowLink => {
                self.is_of_kinds() == other.is_of_kinds() && both_have()
            }
            is_kind => is_kind && self.subject == other.subject,
        }
    }

    /// More of it at once takes as long, so that the rate rises; all else makes operations shorter.
    pub(super) fn raises_the_rate(&self) -> bool {
        self.kind == CauseKind::FixedConcurrency
    }
}

/// All causes that break a rule, in no order.
pub(super) fn causes(f: &Facts) -> Vec<Cause> {
    let mut out = Vec::new();
    // What stands in a queue before a full network looks far and slow, and holds slots and buffers.
    let (full, behind) = saturated(f).unzip();
    let behind = behind.unwrap_or_default();
    let storage: Vec<SlowStorage> = f.paths.iter().filter_map(|p| slow_storage(f, p)).collect();
    out.extend(slow_links(f, &behind));
    let is_behind = |c: &Cause| c.targets().all(|s| behind.iter().any(|b| b == s));
    let is_far = |c: &Cause| [FAR, PROGRAMS].contains(&c.subject.as_str());
    let is_queue = |c: &Cause| full.is_some() && (is_far(c) || is_behind(c));
    out.extend(window(f).or_else(|| far_window(f)).filter(|c| !is_queue(c)));
    let links = out.iter().filter(|c| c.kind == CauseKind::SlowLink);
    let links = links.flat_map(Cause::targets);
    let links: Vec<String> = links.map(str::to_owned).collect();
    let no_way: Vec<String> = links.iter().cloned().chain(behind).collect();
    let hosts = hosts(f, &no_way, &storage);
    if full.is_none() {
        let few_slots = out.iter().any(|c| slots_hold(f, c));
        out.extend(fixed_concurrency(f).filter(|_| !few_slots));
        // What waits at a router without room holds the credits of who sent it.
        let routers = router_buffers(f);
        let is_held = |c: &Cause| !routers.is_empty() || is_held_elsewhere(c, &links, &hosts);
        if let Some(credits) = credits(f).filter(|c| !is_held(c)) {
            // More at once would wait for these too, where they are most of it.
            out.retain(|c| c.subject != PROGRAMS || c.share >= credits.share);
            out.push(credits);
        }
        out.extend(routers);
    }
    let locks = lock_ping_pong(f).or_else(|| shared_file(f));
    out.extend(locks.or_else(|| lock_wait(f)));
    out.extend(hosts);
    out.extend(storage.into_iter().map(|s| s.cause));
    out.extend(full);
    out.extend(no_answer(f));
    out.extend(stood_still(f));
    out.extend(resends(f));
    out.extend(grants(f));
    out.extend(cold_cache(f));
    out
}

/// A message has its credit for as long as a slow way holds it up, or whoever has to read it has no processor: credits that are waited for
/// then are no cause by themselves. `links` are the targets to which the way is slow.
fn is_held_elsewhere(credits: &Cause, links: &[String], hosts: &[Cause]) -> bool {
    let mut targets = credits.targets();
    targets.any(|t| links.iter().any(|l| l == t))
        || hosts.iter().any(|c| c.kind == CauseKind::BusyCore)
}

pub(super) fn ms(s: f64) -> String {
    crate::attribution::time((s * 1e9) as i64)
}

pub(super) fn rate(bytes_per_s: f64) -> String {
    match bytes_per_s {
        b if b < 1e6 => format!("{:.1} kB/s", b / 1e3),
        b => format!("{:.1} MB/s", b / 1e6),
    }
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len().checked_sub(1)? / 2).copied()
}

/// The median of what other targets of the same kind have that did something `alike`, of these paths.
pub(super) fn peers(
    paths: &[Path],
    of: &Path,
    alike: impl Fn(&Path) -> bool,
    what: impl Fn(&Path) -> f64,
) -> Option<f64> {
    let others = paths.iter().filter(|p| p.target != of.target);
    let alike = others.filter(|p| p.is_ost() == of.is_ost() && p.rpcs > 0 && alike(p));
    median(alike.map(what).collect())
}

/// Bytes of an RPC, in the mean.
pub(super) fn mean_bytes(p: &Path) -> f64 {
    p.data.bytes as f64 / p.rpcs.max(1) as f64
}

/// Waits for slots of a target, which are those of whatever its RPCs spend their time on: `what`, seconds of them.
pub(super) fn queued_for(f: &Facts, p: &Path, what: f64) -> f64 {
    f.share(Segment::ClientQueue, Some(&p.target)) * what / p.service_s.max(1e-12)
}

/// Seconds that an RPC to it may wait for storage at most, with as many bytes to store.
fn usual_storage_s(p: &Path) -> f64 {
    let bytes = p.storage_bytes as f64 / p.storage_rpcs.max(1) as f64;
    STORAGE_ALONE_S + bytes / STORAGE_BYTES_PER_S
}

/// Storage that is slow.
pub(super) struct SlowStorage {
    pub cause: Cause,
    /// It has no peers, so that nothing tells its disk from its machine.
    pub is_alone: bool,
}

fn slow_storage(f: &Facts, p: &Path) -> Option<SlowStorage> {
    let mean = p.storage_s();
    let share = f.share(Segment::Storage, Some(&p.target)) * p.sized_share()
        + queued_for(f, p, p.storage_all_s());
    let usual = usual_storage_s(p);
    // What they would take with as many bytes.
    let times = |o: &Path| o.storage_s() / usual_storage_s(o);
    let peers = peers(&f.paths, p, |o| o.storage_rpcs > 0, times).map(|t| t * usual);
    let (is_slow, against) = match peers {
        Some(m) => (
            mean > TIMES_PEERS * m && mean - m > MORE_LEAST_S,
            format!("its peers {}", ms(m)),
        ),
        None => (mean > usual, format!("{} are usual at most", ms(usual))),
    };
    let without = match p.unsized_syncs.0 {
        0 => String::new(),
        1 => "; a sync is left out whose writes are not seen".to_owned(),
        n => format!("; {n} syncs are left out whose writes are not seen"),
    };
    let full = f.hosts.iter().find(|h| peers.is_none() && is_full(h));
    let full = full.map(|h| {
        format!(
            "; all cores of {} are full, and threads waited {:.2} s for one in a second, also those that sync",
            h.name, h.cpu_wait
        )
    });
    let cause = || Cause {
        kind: CauseKind::SlowStorage,
        subject: p.target.clone(),
        fid: None,
        share,
        figure: format!(
            "storage takes {} an RPC, {against}{without}{}",
            ms(mean),
            full.unwrap_or_default()
        ),
        ceiling: None,
        change: match f.paths.iter().filter(|o| o.is_ost()).count() {
            2.. if p.is_ost() => format!("leave {} out, or give it a faster disk", p.target),
            _ => format!("give {} a faster disk", p.target),
        },
    };
    (is_slow && share >= SHARE_LEAST).then(|| SlowStorage {
        cause: cause(),
        is_alone: peers.is_none(),
    })
}

fn fixed_concurrency(f: &Facts) -> Option<Cause> {
    // Distance to all of them: else it is one link.
    let views = f.far_views();
    let on_way = |v: &View| v.paths.iter().map(|p| v.on_way(p)).sum::<f64>();
    let share: f64 = views.iter().map(on_way).sum();
    let used = || {
        let all = views.iter().flat_map(|v| v.paths);
        all.filter(|p| p.rpcs > 0 && p.rtt_s.is_finite())
    };
    let rpcs: u64 = used().map(|p| p.rpcs).sum();
    let rtt = used().map(|p| p.rtt_s * p.rpcs as f64).sum::<f64>() / rpcs.max(1) as f64;
    let op_s: f64 = views.iter().map(|v| v.seconds).sum();
    let n = op_s / f.window_s.max(1e-12);
    let count = views.iter().map(|v| v.count).sum::<u64>().max(1) as f64;
    let r = op_s / count;
    // Many operations need several RPCs, and many none: what is on the way of one in the mean is less than it takes.
    let on_it = (share * f.op_s() / count).min(r);
    let bulk = used().map(|p| p.bulk_rpcs).sum::<u64>() as f64 / rpcs.max(1) as f64;
    let own = |d: &&OneDirectory| {
        views
            .iter()
            .any(|v| v.nids.is_empty() || v.nids.contains(&d.client))
    };
    let directory = f.one_directory.as_ref().filter(own);
    let (in_one, change) = directory.map(|d| own_directories(f, d)).unzip();
    (share >= far_least(f, &views) && carry_little(&views)).then(|| Cause {
        kind: CauseKind::FixedConcurrency,
        subject: PROGRAMS.to_owned(),
        fid: None,
        share,
        figure: format!(
            "{n:.1} operations under way, {} each, {} of it on the way; an RPC is there and back {}{}{}{}",
            ms(r),
            ms(on_it),
            ms(rtt),
            match bulk {
                b if b >= BULK_LEAST => format!(
                    ", and as long again for the bulk data that {:.0}% of them have",
                    100.0 * b
                ),
                _ => String::new(),
            },
            who_is_far(f, &views),
            in_one.unwrap_or_default()
        ),
        ceiling: (n / on_it.max(1e-12) >= count / f.window_s.max(1e-12) * NOT_BELOW).then(|| format!(
            "{n:.1} at once / {} on the way = {:.0} operations/s{} at most with so many at once, however quick all else is",
            ms(on_it),
            n / on_it.max(1e-12),
            match f.views().len() > views.len() {
                true => " of the far clients",
                false => "",
            }
        )),
        change: change.unwrap_or_else(|| "more operations at once, as by more programs".to_owned()),
    })
}

/// Its slots hold up most of what is on the way: more operations at once would only wait for them, and at most as much goes through as
/// they let.
pub(super) fn slots_hold(f: &Facts, c: &Cause) -> bool {
    let on_way = |at: Option<&str>| -> f64 {
        let way = [
            Segment::Send,
            Segment::Network,
            Segment::Bulk,
            Segment::ReplyOut,
        ];
        way.iter().map(|s| f.share(*s, at)).sum()
    };
    let at_its: f64 = c.targets().map(|t| on_way(Some(t))).sum();
    c.kind == CauseKind::Window && (c.subject == FAR || 2.0 * at_its >= on_way(None))
}

fn router_buffers(f: &Facts) -> Vec<Cause> {
    // A sender whose message is not read waits in its socket, and then for credits: where it was on the way while the router had no
    // room, the router is what it waited for.
    let way = [
        Segment::Network,
        Segment::Bulk,
        Segment::Send,
        Segment::ReplyOut,
        Segment::Credit,
        Segment::RouterQueue,
    ];
    let on_way: f64 = way.iter().map(|s| f.share(*s, None)).sum();
    let of = f.routers.iter().filter_map(|r| {
        let own = f.share(Segment::RouterQueue, Some(&r.name));
        let share = own.max(r.starved * on_way);
        (r.least_free == 0 && share >= SHARE_LEAST).then(|| Cause {
            kind: CauseKind::RouterBuffers,
            subject: r.name.clone(),
            fid: None,
            share,
            figure: format!(
                "all of its {} large buffers were taken; messages waited for room {:.0}% of the time",
                r.buffers,
                100.0 * r.starved
            ),
            ceiling: Some(format!("{} messages of up to 1 MiB at once", r.buffers)),
            change: format!(
                "lnetctl set large_buffers {} on {}",
                4 * r.buffers.max(256),
                r.name
            ),
        })
    });
    of.collect()
}

fn grants(f: &Facts) -> Option<Cause> {
    let (without, all) = f.grantless;
    let part = without as f64 / all.max(1) as f64;
    let writes = f.ops.iter().filter(|o| o.op.eq_ignore_ascii_case("write"));
    let share = writes.map(|o| o.seconds).sum::<f64>() / f.op_s().max(1e-12) * part;
    (part >= GRANTLESS_SHARE && share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::Grants,
        subject: "the OSTs".to_owned(),
        fid: None,
        share,
        figure: format!("{without} of {all} writes had no grant and went out at once"),
        ceiling: None,
        change: "free space on the OSTs, or fewer clients".to_owned(),
    })
}

fn cold_cache(f: &Facts) -> Option<Cause> {
    let warms = |p: &&Path| {
        let (first, second) = p.storage_halves_s;
        p.is_ost() && first > WARMS_TIMES * second && first - second > MORE_LEAST_S
    };
    let osts = f.paths.iter().filter(|p| p.is_ost() && p.rpcs > 0).count();
    let warm: Vec<&Path> = f.paths.iter().filter(warms).collect();
    let share: f64 = warm
        .iter()
        .map(|p| f.share(Segment::Storage, Some(&p.target)))
        .sum();
    let p = warm.first()?;
    (2 * warm.len() > osts && share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::ColdCache,
        subject: "the servers".to_owned(),
        fid: None,
        share,
        figure: format!(
            "storage took {} an RPC in the first half, {} in the second",
            ms(p.storage_halves_s.0),
            ms(p.storage_halves_s.1)
        ),
        ceiling: None,
        change: "read all once before, and measure then".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::clients::Clients;
    use super::super::facts::{Data, Host, OpKind};
    use super::super::links::Link;
    use super::*;

    /// Few RPCs that all stood in a queue tell of no slow link, however many targets there are.
    #[test]
    fn of_few_rpcs_no_way_is_known() {
        let of = |rpcs: u64| {
            let way = |(i, s): (usize, f64)| {
                let mut p = path(&format!("fs-OST{i:04x}"), 4096, s, s);
                p.rpcs = rpcs;
                p.service_s = s * rpcs as f64;
                p.seconds = [(Segment::Network, p.service_s)].into();
                p
            };
            links(
                [0.000_1, 0.02, 0.000_1]
                    .into_iter()
                    .enumerate()
                    .map(way)
                    .collect(),
            )
        };
        assert_eq!(of(100), ["fs-OST0001"]);
        assert!(of(2).is_empty());
    }

    /// RPCs of so many bytes to a target, each so long on the way.
    fn path(target: &str, bytes: u64, way_s: f64, rtt_s: f64) -> Path {
        Path {
            target: target.to_owned(),
            peer: format!("{target}@tcp"),
            rpcs: 100,
            service_s: 100.0 * way_s,
            seconds: [(Segment::Network, 100.0 * way_s)].into(),
            rtt_s,
            data: Data {
                rpcs: if bytes > 0 { 100 } else { 0 },
                bytes: 100 * bytes,
                ..Data::default()
            },
            bulk_rpcs: if bytes > 0 { 100 } else { 0 },
            ..Path::default()
        }
    }

    fn links(paths: Vec<Path>) -> Vec<String> {
        with_tcp(paths, &[])
    }

    /// The same where TCP knows the least round trip to these targets.
    fn with_tcp(paths: Vec<Path>, least: &[(&str, f64)]) -> Vec<String> {
        let op_s = paths.iter().map(|p| p.service_s).sum();
        let f = Facts {
            window_s: op_s,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 100,
                seconds: op_s,
            }],
            seconds: (paths.iter())
                .map(|p| ((Segment::Network, p.target.clone()), p.service_s))
                .collect(),
            paths,
            links: (least.iter())
                .map(|(target, s)| Link {
                    from: "client@tcp".into(),
                    to: format!("{target}@tcp"),
                    least_rtt_s: *s,
                    waiting_bytes: 1e6,
                    ..Link::default()
                })
                .collect(),
            ..Facts::default()
        };
        let slow = causes(&f)
            .into_iter()
            .filter(|c| c.kind == CauseKind::SlowLink);
        slow.map(|c| c.subject).collect()
    }

    #[test]
    fn a_link_is_slow_beside_those_that_carry_as_much() {
        let mib = 1 << 20;
        let mdt = || path("fs-MDT0000", 0, 0.000_1, 0.000_1);
        let busy = || path("fs-OST0000", mib, 0.008, 0.001);
        // one file lies on one OST, and the others are asked for nothing but locks
        assert!(
            links(vec![
                mdt(),
                busy(),
                path("fs-OST0001", 0, 0.000_06, 0.000_06)
            ])
            .is_empty()
        );
        let quick = path("fs-OST0001", mib, 0.000_4, 0.000_2);
        assert_eq!(links(vec![mdt(), busy(), quick]), ["fs-OST0000"]);
        // far for whatever it carries
        assert_eq!(
            links(vec![mdt(), path("fs-OST0000", mib, 0.03, 0.02)]),
            ["fs-OST0000"]
        );
    }

    /// What these paths took, all together.
    fn seconds_of<'a>(
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> BTreeMap<(Segment, String), f64> {
        let of = |p: &Path| {
            let of = p.seconds.iter();
            of.map(|(s, v)| ((*s, p.target.clone()), *v))
                .collect::<Vec<_>>()
        };
        paths.into_iter().flat_map(of).collect()
    }

    /// What is sent there is held back for 20 ms: each request, and the data that half of them carry.
    #[test]
    fn what_is_held_back_before_it_is_sent_is_the_way() {
        let near = path("fs-OST0000", 1 << 16, 0.000_2, 0.000_2);
        let mut held = path("fs-OST0001", 1 << 16, 0.000_2, 0.020_2);
        held.service_s = 3.02;
        held.send_s = 0.02;
        let sent = [(Segment::Send, 2.0), (Segment::Bulk, 1.0)];
        held.seconds.extend(sent);
        let f = Facts {
            window_s: 1.0,
            ops: vec![OpKind {
                op: "WRITE".into(),
                count: 200,
                seconds: 3.04,
            }],
            seconds: seconds_of([&near, &held]),
            paths: vec![near, held],
            ..Facts::default()
        };
        let named = causes(&f);
        let link = named
            .iter()
            .find(|c| c.kind == CauseKind::SlowLink)
            .unwrap();
        assert_eq!(link.subject, "fs-OST0001");
        assert!(link.share > 0.98, "{}", link.share);
        let told =
            "30.20 ms on the way an RPC, 20.20 ms at least there and back; the nearest server";
        assert!(link.figure.starts_with(told), "{}", link.figure);
    }

    /// Half a millisecond of an RPC is the way, and of two OSTs one takes 1.5 ms more of each for something else.
    #[test]
    fn what_servers_routers_and_processors_take_is_not_the_way() {
        let with = |more: Segment| {
            let near = path("fs-OST0000", 1 << 16, 0.000_5, 0.000_1);
            let mut other = path("fs-OST0001", 1 << 16, 0.000_5, 0.000_1);
            other.seconds.insert(more, 0.15);
            other.service_s += 0.15;
            let mut f = Facts {
                window_s: 1.0,
                ops: vec![OpKind {
                    op: "READ".into(),
                    count: 200,
                    seconds: near.service_s + other.service_s,
                }],
                seconds: seconds_of([&near, &other]),
                paths: vec![near, other],
                ..Facts::default()
            };
            // This much of the time it would have to be.
            f.seconds
                .insert((Segment::Network, "fs-OST0001".into()), 0.1);
            causes(&f).into_iter().map(|c| c.subject).next()
        };
        assert_eq!(with(Segment::Bulk).as_deref(), Some("fs-OST0001"));
        for other in [
            Segment::Remote,
            Segment::Router,
            Segment::RouterQueue,
            Segment::Send,
            Segment::ReplyOut,
        ] {
            assert_eq!(with(other), None, "{other:?}");
        }
    }

    /// Only the client, and one of two servers, were asked.
    #[test]
    fn a_way_that_nobody_knows_is_not_the_nearest() {
        let known = || path("fs-OST0000", 1 << 16, 0.002, 0.001);
        let mut unknown = path("fs-OST0001", 1 << 16, 0.0, f64::INFINITY);
        unknown.service_s = 0.3;
        unknown.seconds = [(Segment::Remote, 0.3)].into();
        assert!(links(vec![known(), unknown]).is_empty());
    }

    /// As S2 has it without a delay: all data of a busy link stand in a queue, and none is quick.
    #[test]
    fn a_queue_is_no_distance() {
        let mdt = || path("fs-MDT0000", 0, 0.000_1, 0.000_1);
        let queued = || path("fs-OST0000", 4 << 20, 0.03, 0.02);
        let near = [("fs-MDT0000", 0.000_02), ("fs-OST0000", 0.000_03)];
        assert_eq!(with_tcp(vec![mdt(), queued()], &[]), ["fs-OST0000"]);
        assert!(with_tcp(vec![mdt(), queued()], &near).is_empty());
        let far = [("fs-MDT0000", 0.000_02), ("fs-OST0000", 0.019)];
        assert_eq!(with_tcp(vec![mdt(), queued()], &far), ["fs-OST0000"]);
        // LNet holds back what TCP sends at once
        let mut held = queued();
        held.send_s = 0.009_5;
        assert_eq!(with_tcp(vec![mdt(), held], &near), ["fs-OST0000"]);
    }

    /// Small requests to servers that are all 20 ms away each way: LNet holds back what is sent, and the answers are late.
    fn held_back(out_s: f64, in_s: f64) -> Facts {
        let way = |target: &str| {
            let mut p = path(target, 4096, in_s, out_s + in_s);
            p.service_s += 100.0 * out_s;
            p.send_s = out_s;
            p.seconds.insert(Segment::Send, 100.0 * out_s);
            p
        };
        let (a, b) = (way("fs-OST0000"), way("fs-OST0001"));
        Facts {
            window_s: 10.0,
            ops: vec![OpKind {
                op: "WRITE".into(),
                count: 200,
                seconds: 200.0 * (out_s + in_s + 0.0025),
            }],
            seconds: seconds_of([&a, &b]),
            waited: (1.0, 0.0),
            osts: 2,
            paths: vec![a, b],
            ..Facts::default()
        }
    }

    #[test]
    fn what_lnet_holds_back_is_distance_for_small_requests_too() {
        for (out_s, in_s) in [(0.02, 0.02), (0.004, 0.004), (0.005, 0.0), (0.0, 0.021)] {
            let named = causes(&held_back(out_s, in_s));
            let kinds: Vec<_> = named.iter().map(|c| c.kind).collect();
            assert_eq!(kinds, [CauseKind::FixedConcurrency], "{out_s}, {in_s}");
            let share = (out_s + in_s) / (out_s + in_s + 0.0025);
            assert!((named[0].share - share).abs() < 0.01, "{:?}", named[0]);
            assert!(named[0].raises_the_rate());
        }
    }

    /// Half of the operations need no RPC, so that one in the mean takes less than the way there and back.
    #[test]
    fn no_part_is_larger_than_the_whole() {
        let mut f = held_back(0.02, 0.02);
        f.ops[0].count = 400;
        let c = causes(&f).remove(0);
        let told = "0.8 operations under way, 21.25 ms each, 20.00 ms of it on the way; an RPC is there and back 40.00 ms, and as long again for the bulk data that 100% of them have";
        assert_eq!(c.figure, told);
        let ceiling = "0.8 at once / 20.00 ms on the way = 42 operations/s at most with so many at once, however quick all else is";
        assert_eq!(c.ceiling.as_deref(), Some(ceiling));
    }

    #[test]
    fn who_waits_for_one_directory_is_told() {
        let of = |lock_waiters| {
            let mut f = held_back(0.02, 0.02);
            f.hosts = vec![Host {
                lock_waiters,
                ..Host::default()
            }];
            f.one_directory = Some(OneDirectory {
                fid: (2, 3, 0),
                client: "c@tcp".into(),
                op: "CREATE".into(),
                seconds: f.op_s(),
            });
            let c = causes(&f).remove(0);
            (c.figure, c.change)
        };
        let (figure, change) = of(Some(7.1));
        let told = "; 100% of the time is CREATE and the like in one directory, [0x2:0x3:0x0], by one mount, one at a time: 7.1 threads wait meanwhile in the kernel, which lets one in at a time";
        assert!(figure.ends_with(told), "{figure}");
        assert_eq!(change, "give each program a directory of its own");
        let (figure, change) = of(None);
        assert!(
            figure.ends_with("however many programs wait there"),
            "{figure}"
        );
        assert!(change.starts_with("if several programs"), "{change}");
        assert!(of(Some(0.0)).1.starts_with("more programs, each in"));
    }

    #[test]
    fn all_osts_with_too_few_slots_are_named_together() {
        let slots = |target: &str, waited: f64| {
            let mut p = path(target, 1 << 16, 0.002, 0.000_1);
            (p.in_flight, p.in_flight_max, p.places) = (1.0, 1, 1);
            p.seconds.insert(Segment::ClientQueue, waited);
            p
        };
        let of = |paths: Vec<Path>| {
            let f = Facts {
                window_s: 1.0,
                ops: vec![OpKind {
                    op: "WRITE".into(),
                    count: 100,
                    seconds: 4.0,
                }],
                seconds: seconds_of(&paths),
                paths,
                ..Facts::default()
            };
            let mut all = causes(&f);
            all.retain(|c| c.kind == CauseKind::Window);
            all.pop().map(|c| (c.subject, c.figure))
        };
        let (subject, figure) = of(vec![
            slots("fs-OST0002", 0.9),
            slots("fs-OST0000", 1.0),
            slots("fs-OST0001", 0.8),
        ])
        .unwrap();
        assert_eq!(subject, "fs-OST0000, fs-OST0001, fs-OST0002");
        assert!(
            figure.ends_with("waiting for a slot an RPC, most of all at fs-OST0000"),
            "{figure}"
        );
        let one = of(vec![slots("fs-OST0000", 1.0), slots("fs-OST0001", 0.1)]);
        assert_eq!(
            one.unwrap().0,
            "fs-OST0000",
            "hardly anybody waits for the other"
        );
    }

    /// RPCs without a place are quicker than those with one, and many: what goes through is more than the places let through.
    #[test]
    fn no_ceiling_is_below_what_was_seen() {
        let with = |in_flight_s: f64, bytes: u64, of_data: u64| {
            let mut p = path("fs-OST0000", bytes, 0.002, 0.000_1);
            p.data.rpcs = p.data.rpcs.min(of_data);
            (p.in_flight, p.in_flight_max, p.places) = (1.0, 1, 1);
            p.placed = (50, 50.0 * in_flight_s);
            p.data.seconds = 100.0 * in_flight_s;
            p.seconds.insert(Segment::ClientQueue, 4.0);
            let f = Facts {
                window_s: 1.0,
                ops: vec![OpKind {
                    op: "WRITE".into(),
                    count: 100,
                    seconds: 4.2,
                }],
                seconds: seconds_of([&p]),
                paths: vec![p],
                ..Facts::default()
            };
            causes(&f)
                .into_iter()
                .find(|c| c.kind == CauseKind::Window)
                .unwrap()
                .ceiling
        };
        let of = |in_flight_s, bytes| with(in_flight_s, bytes, 100);
        let few = with(0.005, 1 << 16, 3).unwrap();
        assert!(few.contains("RPCs/s a client"), "three carry data: {few}");
        let told = "1 in flight / 5.00 ms = 200 RPCs/s a client; 100 were seen";
        assert_eq!(of(0.005, 0).as_deref(), Some(told));
        assert_eq!(of(0.02, 0), None, "100 were seen, and these are 50");
        assert_eq!(of(0.02, 1 << 16), None);
        assert!(
            of(0.005, 1 << 16)
                .unwrap()
                .ends_with("= 13.1 MB/s a client and target")
        );
    }

    /// So many clients that are alike, each with one RPC in flight to one OST, and waiting for its slot.
    #[test]
    fn slots_are_too_few_for_however_many_clients() {
        let own = |clients: f64| {
            let mut p = path("fs-OST0000", 1 << 16, 0.002, 0.000_1);
            (p.in_flight, p.in_flight_max, p.places) = (1.0, 1, clients as u32);
            p.service_s *= clients;
            p.rpcs = (100.0 * clients) as u64;
            p.seconds = [(Segment::ClientQueue, clients)].into();
            p.op_seconds = p.seconds.clone();
            p
        };
        let named = |clients: u64, few: u64| {
            let of = |i: u64| {
                let mut p = own(1.0);
                if i >= few {
                    (p.in_flight_max, p.places) = (8, 8);
                }
                Clients {
                    nids: vec![format!("c{i}@tcp")],
                    count: 100,
                    seconds: 1.2,
                    ops: vec![],
                    paths: vec![p],
                    ..Clients::default()
                }
            };
            let all = own(clients as f64);
            let f = Facts {
                window_s: 1.2,
                ops: vec![OpKind {
                    op: "WRITE".into(),
                    count: 100 * clients,
                    seconds: 1.2 * clients as f64,
                }],
                seconds: seconds_of([&all]),
                clients: (0..clients).map(of).collect(),
                paths: vec![all],
                ..Facts::default()
            };
            causes(&f).iter().any(|c| c.kind == CauseKind::Window)
        };
        assert!(named(1, 1) && named(4, 4) && named(40, 40));
        assert!(named(40, 20) && !named(40, 19), "whose slots are most");
    }

    /// Requests that wait for slots of an OST to which the way is slow: with fewer slots than Lustre has these come first.
    #[test]
    fn a_slow_link_is_to_blame_for_the_waits_that_enough_slots_would_leave() {
        let first = |slots: u32| {
            let mut far = path("fs-OST0001", 1 << 16, 0.02, 0.02);
            far.seconds.insert(Segment::ClientQueue, 20.0);
            (far.in_flight, far.in_flight_max, far.places) = (f64::from(slots), slots, slots);
            let paths = vec![path("fs-OST0000", 1 << 16, 0.000_1, 0.000_1), far];
            let f = Facts {
                window_s: 2.0,
                ops: vec![OpKind {
                    op: "WRITE".into(),
                    count: 200,
                    seconds: 22.01,
                }],
                seconds: seconds_of(&paths),
                paths,
                ..Facts::default()
            };
            let mut all = causes(&f);
            all.sort_by(|a, b| b.share.total_cmp(&a.share));
            all.first().map(|c| (c.kind, c.subject.clone()))
        };
        let of = |kind| Some((kind, "fs-OST0001".to_owned()));
        assert_eq!(first(1), of(CauseKind::Window));
        assert_eq!(first(4), of(CauseKind::Window));
        assert_eq!(first(8), of(CauseKind::SlowLink));
        assert_eq!(first(32), of(CauseKind::SlowLink));
    }

    /// Small requests that wait for the one slot of an OST, as far as so much of what is on the way goes to another one.
    #[test]
    fn more_operations_at_once_are_no_help_where_slots_are_too_few() {
        let named = |elsewhere: u64| {
            let mut few = path("fs-OST0000", 0, 0.02, 0.02);
            few.seconds.insert(Segment::ClientQueue, 2.0);
            few.service_s = 2.0;
            (few.in_flight, few.in_flight_max, few.places) = (1.0, 1, 1);
            let mut other = path("fs-OST0001", 0, 0.02, 0.02);
            (other.rpcs, other.in_flight_max, other.places) = (elsewhere, 8, 8);
            other.service_s = 0.02 * elsewhere as f64;
            other.seconds = [(Segment::Network, other.service_s)].into();
            let paths = vec![few, other];
            let f = Facts {
                window_s: 2.0,
                ops: vec![OpKind {
                    op: "READ".into(),
                    count: 100 + elsewhere,
                    seconds: 4.0 + 0.02 * elsewhere as f64,
                }],
                seconds: seconds_of(&paths),
                waited: (1.0, 0.0),
                paths,
                ..Facts::default()
            };
            let kinds = causes(&f).into_iter().map(|c| c.kind);
            kinds.collect::<Vec<_>>()
        };
        assert_eq!(named(50), [CauseKind::Window]);
        let both = [CauseKind::Window, CauseKind::FixedConcurrency];
        assert_eq!(named(150), both, "most of the way is another one");
    }

    /// Large requests to far OSTs, of which so many are under way at once, with eight places at each.
    fn far_osts(used: usize, known: usize, in_flight: f64) -> Cause {
        let far = |i: usize| {
            let mut p = path(&format!("fs-OST{i:04}"), 1 << 20, 0.05, 0.024);
            (p.in_flight_max, p.places, p.in_flight) = (8, 8, in_flight);
            p.data.seconds = p.service_s;
            p.data.placed_s = in_flight * 10.0;
            p.data.inside_s = in_flight * 10.0;
            p.large = p.data;
            p
        };
        let paths: Vec<Path> = (0..used).map(far).collect();
        let f = Facts {
            window_s: 10.0,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 100,
                seconds: paths.iter().map(|p| p.service_s).sum(),
            }],
            seconds: (paths.iter())
                .map(|p| ((Segment::Network, p.target.clone()), p.service_s))
                .collect(),
            waited: (1.0, 1.0),
            osts: known,
            paths,
            ..Facts::default()
        };
        causes(&f).remove(0)
    }

    #[test]
    fn no_more_osts_are_advised_than_there_are() {
        let c = far_osts(3, 3, 0.6);
        assert_eq!(
            (c.kind, c.subject.as_str()),
            (CauseKind::FixedConcurrency, PROGRAMS)
        );
        assert_eq!(c.change, "more at once: more programs");
        let formula = "1.8 under way x 1024 KiB / 50.00 ms = 37.7 MB/s; 24 under way x 1024 KiB / 48.00 ms, the way alone, would be 524.3 MB/s";
        assert_eq!(c.ceiling.as_deref(), Some(formula));
        assert!(far_osts(2, 3, 0.6).change.ends_with("(lfs setstripe -c 3)"));
        assert!(far_osts(2, 9, 0.6).change.ends_with("(lfs setstripe -c 4)"));
        let full = far_osts(3, 3, 7.9);
        assert_eq!((full.kind, full.subject.as_str()), (CauseKind::Window, FAR));
        assert!(full.change.contains("max_rpcs_in_flight=16"), "{full:?}");
    }

    #[test]
    fn an_mdt_is_not_to_be_left_out() {
        let slow = |target: &str| Path {
            target: target.to_owned(),
            rpcs: 100,
            storage_rpcs: 100,
            service_s: 2.0,
            seconds: [(Segment::Storage, 2.0)].into(),
            ..Path::default()
        };
        let quick = |target: &str| Path {
            seconds: [(Segment::Storage, 0.01)].into(),
            service_s: 0.01,
            ..slow(target)
        };
        let change = |paths: Vec<Path>| {
            let f = Facts {
                window_s: 1.0,
                ops: vec![OpKind {
                    op: "CREATE".into(),
                    count: 100,
                    seconds: 2.0,
                }],
                seconds: [((Segment::Storage, paths[0].target.clone()), 2.0)].into(),
                paths,
                ..Facts::default()
            };
            causes(&f).remove(0).change
        };
        assert_eq!(
            change(vec![slow("fs-MDT0000")]),
            "give fs-MDT0000 a faster disk"
        );
        assert_eq!(
            change(vec![slow("fs-OST0000")]),
            "give fs-OST0000 a faster disk"
        );
        let beside = change(vec![slow("fs-OST0000"), quick("fs-OST0001")]);
        assert_eq!(beside, "leave fs-OST0000 out, or give it a faster disk");
    }

    /// An MDT whose syncs take 20 ms each, beside processors for which threads wait so long in a second.
    fn slow_mdt(cores: f64, cpu_wait: f64) -> Vec<Cause> {
        let p = Path {
            target: "fs-MDT0000".to_owned(),
            rpcs: 100,
            storage_rpcs: 100,
            service_s: 2.0,
            seconds: [(Segment::Storage, 2.0)].into(),
            ..Path::default()
        };
        let f = Facts {
            window_s: 2.0,
            ops: vec![OpKind {
                op: "CREATE".into(),
                count: 100,
                seconds: 2.2,
            }],
            seconds: [
                ((Segment::Storage, p.target.clone()), 2.0),
                ((Segment::ServerCpu, p.target.clone()), 0.2),
            ]
            .into(),
            hosts: vec![Host {
                cores,
                ..full(1.9, 0.1, cpu_wait, None)
            }],
            paths: vec![p],
            ..Facts::default()
        };
        let mut all = causes(&f);
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        all
    }

    #[test]
    fn syncs_that_get_no_core_are_no_slow_disk_first() {
        let first = |cores, cpu_wait| slow_mdt(cores, cpu_wait).remove(0).kind;
        let all = slow_mdt(1.0, 1.5);
        let kinds: Vec<_> = all.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::BusyCore, CauseKind::SlowStorage]);
        let told = "; all cores of this machine are full, and threads waited 1.50 s for one in a second, also those that sync";
        assert!(all[1].figure.ends_with(told), "{}", all[1].figure);
        // it has a core to itself, or nobody waits for long enough
        assert_eq!(first(0.6, 1.5), CauseKind::SlowStorage);
        assert_eq!(first(1.0, 0.3), CauseKind::SlowStorage);
    }

    /// The sync at the end of a file, of `mib`, which takes so long.
    fn synced(osts: &[(u64, f64)]) -> Vec<String> {
        let path = |(i, (mib, s)): (usize, &(u64, f64))| Path {
            target: format!("fs-OST{i:04}"),
            rpcs: 100,
            storage_rpcs: 1,
            storage_bytes: mib << 20,
            service_s: *s,
            seconds: [(Segment::Storage, *s)].into(),
            ..Path::default()
        };
        let paths: Vec<Path> = osts.iter().enumerate().map(path).collect();
        let f = Facts {
            window_s: 1.0,
            ops: vec![OpKind {
                op: "FSYNC".into(),
                count: 1,
                seconds: osts.iter().map(|(_, s)| s).sum(),
            }],
            seconds: (paths.iter())
                .map(|p| ((Segment::Storage, p.target.clone()), p.service_s))
                .collect(),
            paths,
            ..Facts::default()
        };
        causes(&f).into_iter().map(|c| c.subject).collect()
    }

    #[test]
    fn a_sync_is_judged_by_what_it_had_to_store() {
        assert!(synced(&[(300, 0.265)]).is_empty());
        assert_eq!(synced(&[(300, 3.0)]), ["fs-OST0000"]);
        assert_eq!(synced(&[(0, 0.265)]), ["fs-OST0000"]);
        // as the others of a file in two parts, of which one is small
        assert!(synced(&[(300, 0.265), (1, 0.002)]).is_empty());
        assert_eq!(synced(&[(300, 1.9), (300, 0.265)]), ["fs-OST0000"]);
    }

    /// One sync of a second whose writes are not seen, and so many others of 10 ms each.
    #[test]
    fn a_sync_without_its_writes_is_left_out_and_counted() {
        let slow = |others: u64| {
            let seconds = 1.0 + 0.01 * others as f64;
            let path = Path {
                target: "fs-OST0000".into(),
                rpcs: 1 + others,
                storage_rpcs: others,
                unsized_syncs: (1, 1.0),
                service_s: seconds,
                seconds: [(Segment::Storage, seconds)].into(),
                ..Path::default()
            };
            let f = Facts {
                window_s: 1.0,
                seconds: [((Segment::Storage, path.target.clone()), seconds)].into(),
                ops: vec![OpKind {
                    op: "FSYNC".into(),
                    count: 1,
                    seconds,
                }],
                paths: vec![path],
                ..Facts::default()
            };
            causes(&f).into_iter().map(|c| c.figure).next()
        };
        assert_eq!(slow(0), None);
        let told = "storage takes 10.00 ms an RPC, 5.00 ms are usual at most; a sync is left out whose writes are not seen";
        assert_eq!(slow(50).as_deref(), Some(told));
    }

    /// A machine with two cores that are both busy.
    fn full(ours: f64, others: f64, cpu_wait: f64, other: Option<&str>) -> Host {
        Host {
            name: "this machine".to_owned(),
            busiest_core: 1.0,
            cores: 1.0,
            core_count: 2,
            cpu_wait,
            ours,
            others,
            other: other.map(str::to_owned),
            ..Host::default()
        }
    }

    /// As a step of S3 was recorded while a compiler ran beside it, and with the figures changed.
    fn busy(ours: f64, others: f64, cpu_wait: f64, other: Option<&str>) -> Option<Cause> {
        let mut f = Facts {
            window_s: 1.0,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 925,
                seconds: 0.5,
            }],
            seconds: [
                ((Segment::Network, "fs1-OST0000".to_owned()), 0.3),
                ((Segment::ClientCpu, "client".to_owned()), 0.2),
            ]
            .into(),
            ..Facts::default()
        };
        f.hosts = vec![full(ours, others, cpu_wait, other)];
        let mut causes = causes(&f);
        assert!(causes.len() < 2, "{causes:?}");
        causes.pop()
    }

    #[test]
    fn a_core_that_others_keep_busy_is_not_laid_at_coral_s_door() {
        assert_eq!(
            busy(0.24, 1.76, 0.0, Some("rustc")),
            None,
            "it disturbs nobody"
        );
        let c = busy(0.24, 1.76, 0.5, Some("rustc")).unwrap();
        assert_eq!(c.subject, "this machine, by other programs");
        let told = "other programs, most of all 'rustc', take 1.76 cores, Coral and its load 0.24";
        assert!(c.figure.ends_with(told), "{}", c.figure);
        assert_eq!(c.change, "measure again without 'rustc' on this machine");
        assert_eq!(c.ceiling, None);
        let c = busy(0.24, 1.76, 0.5, None).unwrap();
        assert!(
            c.figure.contains("; other programs take 1.76 cores"),
            "{}",
            c.figure
        );
        let c = busy(1.6, 0.4, 0.0, None).unwrap();
        assert_eq!(c.subject, "this machine", "a core is full without them");
        let all = "925 operations/s, as long as these 2 cores do it";
        assert_eq!(c.ceiling.as_deref(), Some(all));
        // as it was recorded before anybody knew who it was
        let c = busy(0.0, 0.0, 0.0, None).unwrap();
        assert_eq!(c.subject, "this machine");
        assert!(!c.figure.contains("other programs"), "{}", c.figure);
    }

    /// Of two cores one is full, and Coral has used so many in several processes.
    #[test]
    fn what_one_core_can_do_is_said_where_one_core_does_it() {
        let ceiling = |ours: f64| {
            let f = Facts {
                window_s: 1.0,
                ops: vec![OpKind {
                    op: "READ".into(),
                    count: 1000,
                    seconds: 0.5,
                }],
                seconds: [((Segment::ClientCpu, "client".to_owned()), 0.5)].into(),
                hosts: vec![Host {
                    cores: 0.7,
                    ..full(ours, 0.0, 0.0, None)
                }],
                ..Facts::default()
            };
            causes(&f).remove(0).ceiling
        };
        let one = "1000 operations/s, as long as one core does it";
        assert_eq!(ceiling(0.98).as_deref(), Some(one));
        assert_eq!(ceiling(1.4), None);
    }

    /// As `explain` saw a far server while other programs kept both cores busy.
    #[test]
    fn the_way_of_a_slow_link_is_no_wait_for_a_processor() {
        let near = || path("fs-MDT0000", 0, 0.001, 0.000_1);
        let far = path("fs-OST0001", 1 << 16, 0.09, 0.06);
        let op_s = 0.1 + 9.0;
        let mut f = Facts {
            window_s: 2.0,
            ops: vec![OpKind {
                op: "WRITE".into(),
                count: 100,
                seconds: op_s,
            }],
            seconds: [
                ((Segment::Network, far.target.clone()), 6.8),
                ((Segment::NotPlaced, "client".to_owned()), 2.2),
            ]
            .into(),
            paths: vec![near(), far],
            ..Facts::default()
        };
        f.hosts = vec![full(0.3, 1.7, 1.5, Some("rustc"))];
        let mut causes = causes(&f);
        causes.sort_by(|a, b| b.share.total_cmp(&a.share));
        let named: Vec<_> = causes.iter().map(|c| c.subject.as_str()).collect();
        assert_eq!(named, ["fs-OST0001", "this machine, by other programs"]);
    }
}
