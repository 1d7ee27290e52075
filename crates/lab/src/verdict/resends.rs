//! A cause that is lost messages: requests that nothing answered, so that they were sent again.

use super::facts::{Facts, Path};
use super::rules::{Cause, CauseKind, SHARE_LEAST, TIMES_PEERS, ms};
use crate::attribution::Segment;

/// Operations wait for requests to be sent again.
pub(super) fn resends(f: &Facts) -> Option<Cause> {
    let share = f.share(Segment::Resend, None);
    let waited = |p: &Path| p.seconds.get(&Segment::Resend).copied().unwrap_or(0.0);
    let most = f.paths.iter().map(waited).fold(0.0, f64::max);
    let alike = |p: &&Path| p.resent > 0 && waited(p) >= most / TIMES_PEERS;
    let mut all: Vec<&Path> = f.paths.iter().filter(alike).collect();
    all.sort_by(|a, b| a.target.cmp(&b.target));
    let names: Vec<&str> = all.iter().map(|p| p.target.as_str()).collect();
    let sum = |of: fn(&Path) -> u64| all.iter().map(|p| of(p)).sum::<u64>();
    let (resent, rpcs) = (sum(|p| p.resent), sum(|p| p.rpcs));
    let seconds: f64 = all.iter().map(|p| waited(p)).sum();
    (share >= SHARE_LEAST && resent > 0).then(|| Cause {
        kind: CauseKind::Resends,
        subject: names.join(", "),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "{resent} of {rpcs} requests were sent more than once, {} later each: a message or its answer was lost, or the server had asked to be asked again",
            ms(seconds / resent as f64)
        ),
        ceiling: None,
        change: "see where messages are lost: `lnetctl stats show` at both ends counts what was dropped, `lctl net_drop_list` tells of rules that drop them, `lctl ping NID` tries the way".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::OpKind;
    use super::super::rules::causes;
    use super::*;

    /// Two of a hundred requests wait so long before they are sent again.
    fn lost(each_s: f64) -> Facts {
        let path = Path {
            target: "fs-MDT0000".into(),
            rpcs: 100,
            resent: 2,
            rtt_s: 0.000_1,
            seconds: [(Segment::Resend, 2.0 * each_s)].into(),
            ..Path::default()
        };
        Facts {
            window_s: 1.0,
            under_way: 1.0,
            ops: vec![OpKind {
                op: "MKNOD".into(),
                count: 100,
                seconds: 1.0 + 2.0 * each_s,
            }],
            seconds: [((Segment::Resend, path.target.clone()), 2.0 * each_s)].into(),
            paths: vec![path],
            ..Facts::default()
        }
    }

    #[test]
    fn requests_that_are_sent_again_are_named() {
        let all = causes(&lost(5.0));
        let c = all.iter().find(|c| c.kind == CauseKind::Resends).unwrap();
        assert_eq!(c.subject, "fs-MDT0000");
        let told = "2 of 100 requests were sent more than once, 5.00 s later each: ";
        assert!(c.figure.starts_with(told), "{c:?}");
        assert!(c.share > 0.9);
        let few = causes(&lost(0.01));
        assert!(few.iter().all(|c| c.kind != CauseKind::Resends), "{few:?}");
    }
}
