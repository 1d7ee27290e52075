//! What is no cause and yet worth a line: a client that the figures of all together hide, and a share whose name misleads.

use super::clients::{Clients, who};
use super::explain::FULL_SHARE;
use super::facts::{Facts, OpKind, Transfers};
use super::hosts::{nearly_full, needs_processors};
use super::rules::{Cause, CauseKind, MORE_LEAST_S, SHARE_LEAST, ms};
use super::trial::LEAST_COUNT;
use crate::attribution::Segment;

/// A client is told whose operations take so many times as long as those of the others.
const TIMES_OTHERS: f64 = 5.0;
/// What began so long before the time that is judged is told, seconds.
const EARLIER_LEAST_S: f64 = 1.0;
/// More is under way than operations where it is so many times as much.
const TIMES_OPERATIONS: f64 = 1.5;

pub(super) fn notes(f: &Facts, causes: &[Cause]) -> Vec<String> {
    let mut out = slow_clients(f, causes);
    out.extend(no_way(f, causes));
    if causes.is_empty() {
        out.extend(full_for_nothing(f));
    }
    out.extend(earlier(f));
    out
}

/// Of operations that began long before the time that is judged a part counts.
fn earlier(f: &Facts) -> Option<String> {
    let e = f.earlier;
    (e.oldest_s >= EARLIER_LEAST_S && e.seconds >= SHARE_LEAST * f.op_s()).then(|| {
        let (operations, oldest) = match e.count {
            1 => ("operation", "it".to_owned()),
            _ => ("operations", "the oldest".to_owned()),
        };
        format!(
            "{} {operations} that ended in the time that is judged began before it, {oldest} {} before: only what is in it counts",
            e.count,
            ms(e.oldest_s)
        )
    })
}

/// Clients whose operations take many times as long as those of the same names of the others, however little of the time they have; the
/// slowest first.
fn slow_clients(f: &Facts, causes: &[Cause]) -> Vec<String> {
    let far = f.far_views();
    let mut all: Vec<(f64, String)> = vec![];
    for c in f.clients.iter().filter(|c| c.count >= LEAST_COUNT) {
        let (own, others) = beside_others(f, c);
        let named = |n: &String| causes.iter().any(|cause| cause.figure.contains(n.as_str()));
        if own < TIMES_OTHERS * others || own - others < MORE_LEAST_S || c.nids.iter().any(named) {
            continue;
        }
        // What its quickest RPC took: of what LNet holds back where it arrives TCP knows nothing.
        let way = far.iter().find(|v| v.nids == c.nids);
        let used = way.into_iter().flat_map(|v| v.paths).filter(|p| p.rpcs > 0);
        let nearest = used.map(|p| p.rtt_s).min_by(f64::total_cmp);
        let way = nearest.map(|s| format!(": every server is {} there and back from it", ms(s)));
        let text = format!(
            "operations of {} take {} each, where those of the others take {}{}",
            who(&c.nids).unwrap_or_default(),
            ms(own),
            ms(others),
            way.unwrap_or_default()
        );
        all.push((own / others.max(1e-12), text));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().map(|(_, text)| text).collect()
}

/// Seconds of an operation of a client in the mean, and what the same ones take that others have made; none of these: 0 and 0.
fn beside_others(f: &Facts, c: &Clients) -> (f64, f64) {
    let (mut count, mut own_s, mut others_s) = (0, 0.0, 0.0);
    for k in &c.ops {
        let all = f.ops.iter().find(|o| o.op == k.op);
        let others = all.map(|o| (o.count - k.count.min(o.count), o.seconds - k.seconds));
        if let Some((others @ 1.., seconds)) = others {
            count += k.count;
            own_s += k.seconds;
            others_s += k.count as f64 * seconds.max(0.0) / others as f64;
        }
    }
    match count {
        LEAST_COUNT.. => (own_s / count as f64, others_s / count as f64),
        _ => (0.0, 0.0),
    }
}

/// On one machine whose cores are busy the network is no way.
fn no_way(f: &Facts, causes: &[Cause]) -> Option<String> {
    let share = f.share(Segment::Network, None);
    let ways = [
        CauseKind::SaturatedNetwork,
        CauseKind::SlowLink,
        CauseKind::FixedConcurrency,
    ];
    let is_way = causes.iter().any(|c| ways.contains(&c.kind));
    let full = nearly_full(f).filter(|_| f.is_one_machine && !is_way && share >= SHARE_LEAST)?;
    Some(format!(
        "both ends are on one machine, whose cores are {:.0}% busy: the {:.0}% in the network are the work of the connections, and their wait for a processor",
        100.0 * full.cores.min(1.0),
        100.0 * share
    ))
}

/// A machine whose cores are nearly full, where hardly anything waits for them.
fn full_for_nothing(f: &Facts) -> Option<String> {
    let share = needs_processors(f);
    let h = nearly_full(f).filter(|_| share < FULL_SHARE && f.count() > 0)?;
    Some(format!(
        "all cores of {} are {:.0}% busy in the mean, and only {:.1}% of the time is on processors or waits for one",
        h.name,
        100.0 * h.cores.min(1.0),
        100.0 * share
    ))
}

/// Of RPCs with data, where more of them are under way than operations: who has begun them.
pub(super) fn ahead(f: &Facts, t: &Transfers, operations: f64) -> Option<&'static str> {
    let reading: f64 = f.paths.iter().map(|p| p.reading_s).sum();
    let all: f64 = f.paths.iter().map(|p| p.data.inside_s).sum();
    (t.under_way > TIMES_OPERATIONS * operations && t.under_way > 1.0).then(|| {
        match reading > all / 2.0 {
            true => "data are read ahead",
            false => "data are written behind",
        }
    })
}

/// By name, as [`Facts::ops`] has them.
pub(super) fn kind_of<'a>(all: &'a mut Vec<OpKind>, op: &str) -> &'a mut OpKind {
    let at = all.iter().position(|k| k.op == op).unwrap_or_else(|| {
        all.push(OpKind {
            op: op.to_owned(),
            ..OpKind::default()
        });
        all.len() - 1
    });
    &mut all[at]
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Data, Host, Path};
    use super::*;

    fn reads(count: u64, each_s: f64) -> OpKind {
        OpKind {
            op: "READ".into(),
            count,
            seconds: count as f64 * each_s,
        }
    }

    /// Two clients: the second one's reads take so long, and those of the first 0.7 ms.
    fn two(count: u64, each_s: f64, rtt_s: f64) -> Facts {
        let client = |nid: &str, count, each_s: f64, rtt_s| Clients {
            nids: vec![nid.to_owned()],
            count,
            seconds: count as f64 * each_s,
            ops: vec![reads(count, each_s)],
            paths: vec![Path {
                target: "fs-OST0000".into(),
                rpcs: count,
                rtt_s,
                ..Path::default()
            }],
            ..Clients::default()
        };
        let both = [
            client("near@tcp", 10_000, 0.000_7, 0.000_1),
            client("far@tcp", count, each_s, rtt_s),
        ];
        let all = both.iter().flat_map(|c| &c.ops);
        let all = all.fold((0, 0.0), |a, k| (a.0 + k.count, a.1 + k.seconds));
        Facts {
            window_s: 10.0,
            ops: vec![OpKind {
                op: "READ".into(),
                count: all.0,
                seconds: all.1,
            }],
            clients: both.to_vec(),
            ..Facts::default()
        }
    }

    #[test]
    fn a_far_client_is_told_behind_a_busier_one() {
        let told = notes(&two(100, 0.05, 0.048), &[]);
        let text = "operations of far@tcp take 50.00 ms each, where those of the others take 700.0 us: every server is 48.00 ms there and back from it";
        assert_eq!(told, [text]);
        let near = notes(&two(100, 0.05, 0.000_1), &[]);
        assert!(near[0].ends_with("take 700.0 us"), "{near:?}");
        assert_eq!(notes(&two(9, 0.05, 0.048), &[]), [""; 0], "too few");
        assert_eq!(notes(&two(100, 0.002, 0.001), &[]), [""; 0]);
    }

    #[test]
    fn the_network_of_one_busy_machine_is_no_way() {
        let told = |is_one_machine: bool, cores: f64| {
            let f = Facts {
                ops: vec![reads(100, 0.01)],
                seconds: [((Segment::Network, "fs-OST0000".to_owned()), 0.54)].into(),
                hosts: vec![Host {
                    cores,
                    ..Host::default()
                }],
                is_one_machine,
                ..Facts::default()
            };
            let mut told = notes(&f, &[]).into_iter();
            told.find(|n| n.starts_with("both ends"))
        };
        let text = "both ends are on one machine, whose cores are 93% busy: the 54% in the network are the work of the connections, and their wait for a processor";
        assert_eq!(told(true, 0.93).as_deref(), Some(text));
        assert_eq!((told(false, 0.93), told(true, 0.6)), (None, None));
    }

    #[test]
    fn what_is_read_ahead_is_told() {
        let of = |under_way: f64, reading: f64| {
            let data = Data {
                inside_s: under_way,
                ..Data::default()
            };
            let f = Facts {
                paths: vec![Path {
                    data,
                    reading_s: reading * under_way,
                    ..Path::default()
                }],
                ..Facts::default()
            };
            let t = Transfers {
                under_way,
                ..Transfers::default()
            };
            ahead(&f, &t, 0.9)
        };
        assert_eq!(of(22.0, 1.0), Some("data are read ahead"));
        assert_eq!(of(22.0, 0.0), Some("data are written behind"));
        assert_eq!(of(1.2, 1.0), None);
    }
}
