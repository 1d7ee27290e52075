//! Requests of some kinds that are held up on the way to a target, while others to it are not: a rule of LNet for one portal does that.

use std::collections::BTreeMap;

use coral_wire::opc;

use super::alike::{Alike, SlowTo};
use super::clients::View;
use super::facts::Path;
use super::requests::{Requests, Spent};
use super::rules::{Cause, RTT_NEAR_S, TIMES_PEERS, ms};

/// What tells of rules that hold back some kinds of messages.
pub(super) const DELAY_RULES: &str = "lctl net_delay_list";

/// Kinds of requests of a client that are slow on the way to a target.
pub(super) struct SlowKinds<'a> {
    target: &'a str,
    opcs: Vec<u32>,
    /// Seconds on the way of one, in the mean, and the least there and back of one of the kinds.
    way_s: f64,
    least_s: f64,
    /// Least of all requests to the target.
    others_s: f64,
    /// Share of all operations' time.
    share: f64,
    /// NIDs of the clients; none: it is all of them.
    from: &'a [String],
}

/// Those of a path, of which the quickest request takes so long there and back.
pub(super) fn slow_kinds<'a>(
    v: &'a View<'a>,
    (p, there): (&'a Path, f64),
) -> Option<SlowKinds<'a>> {
    let is_slow = |s: f64| s.is_finite() && s > TIMES_PEERS * there && s - there > RTT_NEAR_S;
    // Where TCP was not asked, the line may be slow.
    let of_line = |r: &Requests| match v.knows_tcp() {
        true => 0.0,
        false => r.on_slow_line_s(),
    };
    let slow: Vec<_> = v
        .kinds(p)
        .filter(|(_, r, least)| is_slow(least - of_line(r)))
        .collect();
    let way = |of: fn(&Requests) -> &Spent| -> f64 {
        slow.iter().map(|(_, r, _)| p.way_of(r, of(r))).sum()
    };
    let (all_s, waited_s) = (way(|r| &r.all), way(|r| &r.waited));
    let count: u64 = slow.iter().map(|(_, r, _)| r.all.count).sum();
    // Nothing waits for the others itself; but slots are waited for that they have.
    let on_way = v.on_way(p) * waited_s / p.way_waited_s().max(1e-12);
    (!slow.is_empty()).then(|| SlowKinds {
        target: &p.target,
        opcs: slow.iter().map(|(opc, ..)| *opc).collect(),
        way_s: all_s / count.max(1) as f64,
        least_s: slow.iter().map(|(.., s)| *s).fold(f64::INFINITY, f64::min),
        others_s: there,
        share: on_way + v.queued_for_way(p, all_s),
        from: v.nids,
    })
}

/// All of them as one cause: what holds up such requests does so to each of these targets.
pub(super) fn held_up(all: &[SlowKinds]) -> Option<Cause> {
    let mut by_target: BTreeMap<&str, SlowTo<'_>> = BTreeMap::new();
    for k in all {
        let to = by_target
            .entry(k.target)
            .or_insert_with(|| SlowTo::new(k.target));
        to.add(k.share, k.from);
    }
    let alike = Alike::of(by_target.into_values().collect())?;
    let own = all.iter().filter(|k| k.target == alike.most);
    let worst = own.max_by(|a, b| a.share.total_cmp(&b.share))?;
    let kinds: Vec<&str> = (worst.opcs.iter())
        .map(|o| opc::name(*o).unwrap_or("an RPC"))
        .collect();
    let figure = format!(
        "{}: {} on the way each, {} at least there and back; other requests to {}{} take {} at least",
        kinds.join(", "),
        ms(worst.way_s),
        ms(worst.least_s),
        worst.target,
        if alike.targets.len() > 1 {
            ", for one,"
        } else {
            ""
        },
        ms(worst.others_s),
    );
    let change = format!(
        "see what holds up these requests and no others: `{DELAY_RULES}` at both ends tells of LNet's rules for some kinds of messages or portals"
    );
    alike.cause(figure, change)
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Facts, Host, OpKind};
    use super::super::links::Link;
    use super::super::rules::{CauseKind, causes};
    use super::super::trial::{Trial, trial};
    use super::super::{Verdict, explain};
    use super::*;
    use crate::attribution::Segment;

    /// Requests of a kind, each of which is sent so late at least and takes so long in the mean until it is sent.
    fn kind(opc: u32, count: u64, least_s: f64, mean_s: f64) -> (u32, Requests) {
        let all = Spent {
            count,
            seconds: [
                (Segment::Send, mean_s * count as f64),
                (Segment::Network, 0.000_2 * count as f64),
            ]
            .into(),
        };
        let requests = Requests {
            waited: all.clone(),
            all,
            bytes: 0,
            rtt_s: least_s + 0.000_1,
            send_s: least_s,
            answered_s: least_s + 0.000_1,
            is_by_answers: false,
        };
        (opc, requests)
    }

    fn path(target: &str, kinds: Vec<(u32, Requests)>) -> Path {
        let mut seconds: BTreeMap<Segment, f64> = BTreeMap::new();
        for (s, v) in kinds.iter().flat_map(|(_, r)| &r.all.seconds) {
            *seconds.entry(*s).or_default() += v;
        }
        let least = |of: fn(&Requests) -> f64| {
            let all = kinds.iter().map(|(_, r)| of(r));
            all.fold(f64::INFINITY, f64::min)
        };
        Path {
            target: target.into(),
            rpcs: kinds.iter().map(|(_, r)| r.all.count).sum(),
            service_s: seconds.values().sum(),
            rtt_s: least(|r| r.rtt_s),
            send_s: least(|r| r.send_s),
            seconds,
            kinds: kinds.into_iter().collect(),
            ..Path::default()
        }
    }

    /// Operations that wait for these requests alone, on a machine without room.
    fn full(paths: Vec<Path>) -> Facts {
        let of = |p: &Path| {
            let of = p.seconds.iter();
            of.map(|(s, v)| ((*s, p.target.clone()), *v))
                .collect::<Vec<_>>()
        };
        let seconds = paths.iter().map(|p| p.service_s).sum();
        Facts {
            window_s: 1.0,
            under_way: seconds,
            ops: vec![OpKind {
                op: "FSYNC".into(),
                count: 100,
                seconds,
            }],
            seconds: paths.iter().flat_map(of).collect(),
            paths,
            hosts: vec![Host {
                name: "this machine".into(),
                busiest_core: 1.0,
                cores: 1.0,
                core_count: 2,
                cpu_wait: 1.5,
                ours: 0.6,
                others: 1.4,
                ..Host::default()
            }],
            ..Facts::default()
        }
    }

    /// What is written to an OST is held back for so long, and the syncs that follow are not.
    fn held(target: &str, least_s: f64, mean_s: f64) -> Path {
        let sync = kind(opc::OST_SYNC, 100, 0.000_05, 0.000_1);
        path(
            target,
            vec![kind(opc::OST_WRITE, 100, least_s, mean_s), sync],
        )
    }

    fn mdt() -> Path {
        path(
            "fs-MDT0000",
            vec![kind(opc::MDS_REINT, 100, 0.000_05, 0.000_1)],
        )
    }

    #[test]
    fn what_is_held_back_of_one_kind_is_no_wait_for_a_processor() {
        let v = explain(&full(vec![held("fs-OST0000", 0.02, 0.021), mdt()]));
        let kinds: Vec<_> = v.causes.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::SlowLink], "{v}");
        let c = &v.causes[0];
        assert_eq!(c.subject, "fs-OST0000");
        assert!(c.share > 0.9, "{c:?}");
        let told = "OST_WRITE: 20.20 ms on the way each, 20.10 ms at least there and back; other requests to fs-OST0000 take 150.0 us at least";
        assert_eq!(c.figure, told);
        assert_eq!(trial(&v), Some(Trial::LookAgain));
    }

    #[test]
    fn where_some_are_sent_at_once_a_kind_waits_for_a_processor() {
        let v = explain(&full(vec![held("fs-OST0000", 0.000_1, 0.021), mdt()]));
        let kinds: Vec<_> = v.causes.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::BusyCore], "{v}");
    }

    /// Of few requests even the quickest may have waited.
    #[test]
    fn of_a_few_of_a_kind_nothing_is_known() {
        let few = path(
            "fs-OST0000",
            vec![
                kind(opc::OST_WRITE, 9, 0.02, 0.021),
                kind(opc::OST_SYNC, 100, 0.000_05, 0.000_1),
            ],
        );
        let v = explain(&full(vec![few, mdt()]));
        let kinds: Vec<_> = v.causes.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::BusyCore], "{v}");
    }

    /// Each writes so much, which stands in a queue if there is one, and takes long on a slow line.
    fn writing(bytes: u64, least_s: f64) -> Facts {
        let mut ost = held("fs-OST0000", least_s, 0.021);
        ost.peer = "s@tcp".into();
        for r in ost.kinds.values_mut() {
            r.bytes = r.all.count * bytes;
        }
        full(vec![ost, mdt()])
    }

    /// A line of 100 Mbit/s takes 5 ms for 64 KiB, and hardly any time for what has no data.
    #[test]
    fn a_slow_line_is_no_rule_for_a_kind() {
        let is_named = |bytes, least_s| {
            let named = causes(&writing(bytes, least_s));
            named.iter().any(|c| c.kind == CauseKind::SlowLink)
        };
        assert!(!is_named(64 << 10, 0.006) && is_named(64 << 10, 0.02));
        assert!(is_named(4 << 10, 0.006));
    }

    #[test]
    fn what_holds_up_data_is_told_where_tcp_knows_of_no_queue() {
        let mut f = writing(1 << 20, 0.02);
        assert!(explain(&f).causes.is_empty());
        f.links = vec![Link {
            from: "c@tcp".into(),
            to: "s@tcp".into(),
            least_rtt_s: 0.000_1,
            ..Link::default()
        }];
        assert_eq!(explain(&f).causes[0].kind, CauseKind::SlowLink);
    }

    /// Writes that are held back, and that no operation waits for; operations with other requests to the same OST, which take so long
    /// in these segments.
    fn behind(segments: [(Segment, f64); 2]) -> Facts {
        let mut ost = held("fs-OST0000", 0.02, 0.021);
        let writes = ost.kinds.get_mut(&opc::OST_WRITE).unwrap();
        writes.waited = Spent::default();
        let mut f = full(vec![ost, mdt()]);
        let at = |(s, v): (Segment, f64)| ((s, "fs-OST0000".to_owned()), v);
        f.seconds = segments.map(at).into();
        let seconds = segments.iter().map(|(_, v)| v).sum();
        (f.ops[0].seconds, f.under_way) = (seconds, seconds);
        f
    }

    #[test]
    fn what_no_operation_waits_for_is_no_slow_link() {
        let mut f = behind([(Segment::Network, 0.2), (Segment::ServerCpu, 0.2)]);
        f.hosts.clear();
        let named = causes(&f);
        assert!(named.is_empty(), "{named:?}");
        // Slots that they have are waited for.
        let queue = (Segment::ClientQueue, "fs-OST0000".to_owned());
        f.seconds.insert(queue, 0.4);
        (f.ops[0].seconds, f.under_way) = (0.8, 0.8);
        let named = causes(&f);
        let link = named.iter().find(|c| c.kind == CauseKind::SlowLink);
        assert!(
            link.is_some_and(|c| (0.4..0.5).contains(&c.share)),
            "{named:?}"
        );
    }

    #[test]
    fn what_no_operation_waits_for_hides_no_busy_core() {
        let named = causes(&behind([(Segment::Send, 0.3), (Segment::Network, 0.1)]));
        let kinds: Vec<_> = named.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [CauseKind::BusyCore], "{named:?}");
        assert!(named[0].share > 0.7, "{named:?}");
    }

    /// Of two targets one has hardly any of the time, and another client.
    #[test]
    fn only_what_is_named_counts() {
        let nids = ["a@tcp", "b@tcp"].map(|nid| vec![nid.to_owned()]);
        let of = |target, share, from| SlowKinds {
            target,
            opcs: vec![opc::OST_WRITE],
            way_s: 0.02,
            least_s: 0.02,
            others_s: 0.000_1,
            share,
            from,
        };
        let all = [
            of("fs-OST0000", 0.6, &nids[0][..]),
            of("fs-OST0001", 0.1, &nids[1][..]),
        ];
        let c = held_up(&all).unwrap();
        assert_eq!((c.subject.as_str(), c.share), ("fs-OST0000", 0.6));
        assert!(c.figure.ends_with("; from a@tcp"), "{c:?}");
        // Two clients to one target: together they have as much as the other.
        let all = [
            of("fs-OST0000", 0.5, &nids[0][..]),
            of("fs-OST0001", 0.1, &nids[0][..]),
            of("fs-OST0001", 0.1, &nids[1][..]),
        ];
        let c = held_up(&all).unwrap();
        assert_eq!(c.targets().count(), 2, "{c:?}");
        assert!((c.share - 0.7).abs() < 1e-9, "{c:?}");
    }

    /// A tenth of the time is of each target.
    #[test]
    fn what_holds_up_a_kind_on_the_way_to_many_targets_is_one_cause() {
        let of = |i: u32| held(&format!("fs-OST{i:04x}"), 0.02, 0.021);
        let all = causes(&full((0..10).map(of).chain([mdt()]).collect()));
        let link = &all[0];
        assert_eq!(link.kind, CauseKind::SlowLink);
        assert_eq!(link.targets().count(), 10, "{link:?}");
        assert!(link.share > 0.9, "{link:?}");
        assert!(
            link.figure.contains(", for one, take 150.0 us at least"),
            "{link:?}"
        );
    }

    /// The second look has too few requests to one of the targets.
    #[test]
    fn it_is_the_same_cause_where_one_target_has_it_still() {
        let of = |all: &[&str]| -> Verdict {
            let paths = all.iter().map(|t| held(t, 0.02, 0.021));
            explain(&full(paths.chain([mdt()]).collect()))
        };
        let first = of(&["fs-OST0000", "fs-OST0001"]);
        let is = |v: &Verdict| super::super::again(v, &first.causes[0]).was;
        assert_eq!(is(&of(&["fs-OST0001"])), super::super::Was::First);
        assert_eq!(is(&of(&["fs-OST0002"])), super::super::Was::Second);
        // Later the way to one of them is slow for all messages.
        let mut far = of(&["fs-OST0001"]);
        far.causes[0].change = "measure the way to fs-OST0001 alone with `lst`".into();
        assert_eq!(is(&far), super::super::Was::Second);
    }
}
