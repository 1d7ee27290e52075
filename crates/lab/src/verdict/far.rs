//! Clients that are far from every server: how much of the time their way needs to be told, and whether bytes matter on it.

use super::clients::View;
use super::facts::Facts;
use super::rules::SHARE_LEAST;

/// Part of the time of clients that are far which has to be on the way.
const FAR_PART: f64 = 0.5;

/// Share of all operations' time from which on the way of these clients is told: half of what their own operations take, as nobody
/// else's wait for it, and as much as any cause needs.
pub(super) fn far_least(f: &Facts, far: &[View]) -> f64 {
    let own = far.iter().map(|v| v.seconds).sum::<f64>() / f.op_s().max(1e-12);
    SHARE_LEAST.max(FAR_PART * own)
}

/// Whether the RPCs that their operations wait for carry so little that their bytes do not matter on the way.
pub(super) fn carry_little(far: &[View]) -> bool {
    let sum = |of: fn(&View) -> f64| far.iter().map(of).sum::<f64>();
    2.0 * sum(|v| v.waited.1) <= sum(|v| v.waited.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::clients::Clients;
    use super::super::facts::{Data, Host, OpKind, Path};
    use super::super::rules::{Cause, CauseKind, causes};
    use super::*;
    use crate::attribution::Segment;

    /// A client whose RPCs to one OST have these seconds, and whose operations take as long.
    fn client(
        nid: &str,
        rpcs: u64,
        floor_s: f64,
        seconds: &[(Segment, f64)],
        large: bool,
    ) -> Clients {
        let all: BTreeMap<Segment, f64> = seconds.iter().copied().collect();
        let took = all.values().sum::<f64>();
        let data = Data {
            rpcs,
            bytes: rpcs << if large { 20 } else { 12 },
            seconds: took,
            inside_s: took,
            placed_s: took,
        };
        let path = Path {
            target: "fs-OST0000".into(),
            peer: "s@tcp".into(),
            rpcs,
            service_s: took,
            seconds: all.clone(),
            op_seconds: all,
            rtt_s: floor_s,
            send_s: floor_s,
            data,
            large: if large { data } else { Data::default() },
            in_flight_max: 8,
            places: 8,
            ..Path::default()
        };
        Clients {
            nids: vec![nid.to_owned()],
            count: rpcs,
            seconds: took,
            ops: vec![],
            waited: (took, if large { took } else { 0.0 }),
            paths: vec![path],
        }
    }

    /// Replies to the first client are held back for 20 ms each; the second one is near, and both wait for processors that others fill.
    fn far_and_near(far_rpcs: u64, far_is_large: bool, near_is_large: bool) -> Vec<Cause> {
        let held = 0.02 * far_rpcs as f64;
        let far = [(Segment::ReplyOut, held), (Segment::ClientCpu, 0.1 * held)];
        let near = [
            (Segment::ServerCpu, 0.2),
            (Segment::Storage, 0.3),
            (Segment::NotPlaced, 0.1),
        ];
        let clients = vec![
            client("far@tcp", far_rpcs, 0.02, &far, far_is_large),
            client("near@tcp", 400, 0.000_1, &near, near_is_large),
        ];
        let mut seconds = BTreeMap::new();
        for (s, v) in far.into_iter().chain(near) {
            *seconds.entry((s, "fs-OST0000".to_owned())).or_default() += v;
        }
        let f = Facts {
            window_s: 1.0,
            ops: vec![OpKind {
                op: "WRITE".into(),
                count: far_rpcs + 400,
                seconds: clients.iter().map(|c| c.seconds).sum(),
            }],
            seconds,
            waited: clients
                .iter()
                .fold((0.0, 0.0), |w, c| (w.0 + c.waited.0, w.1 + c.waited.1)),
            hosts: vec![Host {
                name: "this machine".into(),
                busiest_core: 1.0,
                cores: 1.0,
                core_count: 2,
                cpu_wait: 2.5,
                ours: 0.8,
                others: 1.2,
                ..Host::default()
            }],
            clients,
            ..Facts::default()
        };
        let mut all = causes(&f);
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        all
    }

    fn kinds(of: &[Cause]) -> Vec<CauseKind> {
        of.iter().map(|c| c.kind).collect()
    }

    #[test]
    fn a_far_client_is_told_though_most_of_the_time_is_of_others() {
        let all = far_and_near(25, false, false);
        let both = [CauseKind::FixedConcurrency, CauseKind::BusyCore];
        assert_eq!(kinds(&all), both);
        assert!((all[0].share - 0.5 / 1.15).abs() < 0.001, "{all:?}");
        assert!(
            all[0]
                .figure
                .contains("; that is far@tcp, and others are near"),
            "{all:?}"
        );
        let few = far_and_near(6, false, false);
        assert_eq!(
            kinds(&few),
            [CauseKind::BusyCore],
            "a fifth of the time is needed"
        );
    }

    #[test]
    fn whether_bytes_matter_is_a_matter_of_the_far_clients_own() {
        let first = |far, near| far_and_near(40, far, near).remove(0);
        for near in [false, true] {
            let c = first(false, near);
            assert!(c.figure.contains(" operations under way"), "{c:?}");
            let c = first(true, near);
            assert!(c.figure.contains(" RPCs of 1024 KiB under way"), "{c:?}");
        }
    }
}
