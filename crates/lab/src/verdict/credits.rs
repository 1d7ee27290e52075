//! A cause that is LNet's: messages that wait for a credit before they are sent.

use coral_lnet::Limits;

use super::facts::{Facts, Path};
use super::rules::{Cause, CauseKind, NOT_BELOW, SHARE_LEAST, TIMES_PEERS, ms};
use crate::attribution::Segment;

/// Messages wait for credits of a peer: as many as there are have not been written yet.
pub(super) fn credits(f: &Facts) -> Option<Cause> {
    let share = f.share(Segment::Credit, None);
    let waited = |p: &Path| p.seconds.get(&Segment::Credit).copied().unwrap_or(0.0);
    let most = f.paths.iter().map(waited).fold(0.0, f64::max);
    // As many as share the wait: several targets may be one peer's.
    let alike = |p: &&Path| waited(p) > 0.0 && waited(p) >= most / TIMES_PEERS;
    let mut all: Vec<&Path> = f.paths.iter().filter(alike).collect();
    all.sort_by(|a, b| a.target.cmp(&b.target));
    let p = *all.iter().max_by(|a, b| waited(a).total_cmp(&waited(b)))?;
    let names: Vec<&str> = all.iter().map(|p| p.target.as_str()).collect();
    let limits = Limits::default();
    let of_client = 2.0 * p.own_credit_s >= waited(p);
    let way = match of_client {
        true => format!("to {} ({})", p.target, p.peer),
        false => format!("from {} ({}), with data,", p.target, p.peer),
    };
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::Credits,
        subject: names.join(", "),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "messages {way} waited {} an RPC for one of the {} credits that a node has for each peer, of {} for all: a message has one until its connection has taken it whole{}",
            ms(waited(p) / p.rpcs.max(1) as f64),
            limits.peer_credits,
            limits.ni_credits,
            match of_client {
                true => format!(", here {}", ms(p.mean_s(Segment::Send))),
                false => String::new(),
            }
        ),
        ceiling: of_client.then(|| ceiling(f, p, limits.peer_credits)).flatten(),
        change: "give client and server one more interface (--nid once more at each), or spread the programs over more mounts: each pair of NIDs of each mount has credits of its own (a stock node: lnetctl net add --peer-credits)".to_owned(),
    })
}

/// What goes through to a peer with all credits taken: of what went faster it is no ceiling.
fn ceiling(f: &Facts, p: &Path, credits: usize) -> Option<String> {
    let to_it = || f.paths.iter().filter(|o| o.peer == p.peer);
    let rpcs = to_it().map(|o| o.rpcs).sum::<u64>() as f64;
    let sent_s = to_it().filter_map(|o| o.seconds.get(&Segment::Send));
    let held = sent_s.sum::<f64>() / rpcs.max(1.0);
    let clients = (f64::from(p.places) / f64::from(p.in_flight_max.max(1))).max(1.0);
    let seen = rpcs / clients / f.window_s.max(1e-12);
    let most = credits as f64 / held.max(1e-12);
    (held > 0.0 && most >= NOT_BELOW * seen).then(|| {
        format!(
            "{credits} messages / {} = {most:.0} requests/s a client and peer; {seen:.0} were seen",
            ms(held)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Host, OpKind};
    use super::super::rules::{PROGRAMS, causes};
    use super::*;

    /// Requests that wait 6 ms for a credit, each of which is held for 4 ms; of these waits so much is the client's own.
    fn waits(credit_s: f64, own: f64) -> Facts {
        let seconds = [(Segment::Credit, 1000.0 * credit_s), (Segment::Send, 4.0)];
        let path = Path {
            target: "fs-OST0000".into(),
            peer: "s@tcp".into(),
            rpcs: 1000,
            service_s: 10.0,
            own_credit_s: 1000.0 * credit_s * own,
            rtt_s: 0.000_1,
            in_flight_max: 8,
            places: 8,
            seconds: seconds.into(),
            ..Path::default()
        };
        Facts {
            window_s: 1.0,
            under_way: 10.0,
            ops: vec![OpKind {
                op: "WRITE".into(),
                count: 1000,
                seconds: 10.0,
            }],
            seconds: (seconds.into_iter())
                .map(|(s, v)| ((s, path.target.clone()), v))
                .collect(),
            paths: vec![path],
            ..Facts::default()
        }
    }

    fn named(f: &Facts) -> Option<Cause> {
        causes(f).into_iter().find(|c| c.kind == CauseKind::Credits)
    }

    fn kinds(f: &Facts) -> Vec<CauseKind> {
        causes(f).into_iter().map(|c| c.kind).collect()
    }

    #[test]
    fn credits_that_are_waited_for_are_named_with_what_holds_them() {
        let c = named(&waits(0.006, 1.0)).unwrap();
        assert_eq!(c.subject, "fs-OST0000");
        let told = "messages to fs-OST0000 (s@tcp) waited 6.00 ms an RPC for one of the 8 credits that a node has for each peer, of 256 for all: ";
        assert!(c.figure.starts_with(told), "{c:?}");
        assert!(c.figure.ends_with("whole, here 4.00 ms"), "{c:?}");
        let most = "8 messages / 4.00 ms = 2000 requests/s a client and peer; 1000 were seen";
        assert_eq!(c.ceiling.as_deref(), Some(most));
        let mut two = waits(0.006, 1.0);
        let more = Path {
            target: "fs-OST0001".into(),
            ..two.paths[0].clone()
        };
        two.paths.push(more);
        let of_both = named(&two).unwrap().ceiling.unwrap();
        assert!(
            of_both.ends_with("a client and peer; 2000 were seen"),
            "{of_both}"
        );
        assert_eq!(named(&waits(0.001, 1.0)), None, "a tenth of the time");
    }

    #[test]
    fn a_server_that_waits_for_credits_sends_data() {
        let c = named(&waits(0.006, 0.0)).unwrap();
        assert!(
            c.figure
                .starts_with("messages from fs-OST0000 (s@tcp), with data, waited"),
            "{c:?}"
        );
        assert_eq!(c.ceiling, None);
    }

    /// Four times as many went through as with all credits taken: some needed none.
    #[test]
    fn no_ceiling_is_below_what_was_seen() {
        let mut f = waits(0.006, 1.0);
        f.paths[0].rpcs = 8000;
        f.paths[0].seconds.insert(Segment::Send, 80.0);
        assert_eq!(named(&f).unwrap().ceiling, None);
    }

    /// One target is far, and what is sent there has its credit for long; the other one is near.
    #[test]
    fn credits_that_a_slow_way_holds_are_no_cause_of_their_own() {
        let named_kinds = |way_s: f64| {
            let mut f = waits(0.006, 1.0);
            let near = Path {
                target: "fs-OST0001".into(),
                peer: "t@tcp".into(),
                rtt_s: 0.000_1,
                rpcs: 1000,
                ..Path::default()
            };
            let far = &mut f.paths[0];
            far.rtt_s = way_s;
            far.seconds.insert(Segment::Network, 1000.0 * way_s);
            let at = (Segment::Network, far.target.clone());
            f.seconds.insert(at, 1000.0 * way_s);
            f.paths.push(near);
            kinds(&f)
        };
        assert_eq!(named_kinds(0.004), [CauseKind::SlowLink]);
        assert_eq!(named_kinds(0.000_1), [CauseKind::Credits]);
    }

    #[test]
    fn credits_that_a_reader_without_a_processor_holds_are_no_cause_of_their_own() {
        let mut f = waits(0.006, 1.0);
        f.seconds
            .insert((Segment::ServerQueue, "fs-OST0000".into()), 3.0);
        assert_eq!(kinds(&f), [CauseKind::Credits]);
        f.hosts = vec![Host {
            name: "server".into(),
            busiest_core: 1.0,
            cores: 1.0,
            core_count: 2,
            cpu_wait: 1.0,
            ours: 2.0,
            ..Host::default()
        }];
        assert_eq!(kinds(&f), [CauseKind::BusyCore]);
    }

    /// All servers are far, and of each request so much is on the way and so much a wait for a credit.
    #[test]
    fn more_programs_are_advised_where_credits_have_the_smaller_part() {
        let named = |way_s: f64, credit_s: f64| {
            let mut f = waits(credit_s, 1.0);
            f.paths[0].rtt_s = way_s;
            f.paths[0].seconds.insert(Segment::Network, 1000.0 * way_s);
            let at = (Segment::Network, f.paths[0].target.clone());
            f.seconds.insert(at, 1000.0 * way_s);
            let has = |c: &Cause| (c.kind, c.subject == PROGRAMS);
            let mut all: Vec<_> = causes(&f).iter().map(has).collect();
            all.sort_unstable();
            all
        };
        let both = [
            (CauseKind::Credits, false),
            (CauseKind::FixedConcurrency, true),
        ];
        assert_eq!(named(0.007, 0.002_5), both);
        assert_eq!(named(0.005, 0.006), [(CauseKind::Credits, false)]);
    }
}
