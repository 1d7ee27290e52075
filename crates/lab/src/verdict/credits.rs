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
    use super::super::facts::OpKind;
    use super::super::rules::causes;
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
}
