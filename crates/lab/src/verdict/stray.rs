//! A few operations long after a load, as one `ls`: they are no load, and it is the load before them that is judged.

/// Seconds without any operation that part what comes after them from a load.
const PAUSE_S: f64 = 1.0;
/// So many operations are a load.
pub(super) const LEAST_LOAD: usize = 200;

/// What came after a load, and is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stray {
    /// When the load ended.
    pub load_ended: i64,
    /// Operations since then.
    pub count: u64,
    /// Seconds from the end of the load to the first of these.
    pub pause_s: f64,
}

/// Of operations that have ended, with their beginning and end: those at the end that are few and took less time than the load in the
/// last `seconds` before them, of which all is known since `reach`. None where the last `seconds` of all of them are a load.
pub(super) fn stray(mut spans: Vec<(i64, i64)>, seconds: f64, reach: i64) -> Option<Stray> {
    let looked = (seconds * 1e9) as i64;
    let last = spans.iter().map(|s| s.1).max()?;
    let since = last.saturating_sub(looked);
    if spans.iter().filter(|s| s.1 > since).count() >= LEAST_LOAD {
        return None;
    }
    spans.sort_unstable();
    let mut until = i64::MIN;
    let mut pauses: Vec<(usize, i64)> = vec![];
    for (i, (begun, ended)) in spans.iter().enumerate() {
        if i > 0 && (begun.saturating_sub(until)) as f64 / 1e9 >= PAUSE_S {
            pauses.push((i, until));
        }
        until = until.max(*ended);
    }
    let time = |of: &[(i64, i64)], from: i64| -> f64 {
        of.iter().map(|s| (s.1 - s.0.max(from)) as f64 / 1e9).sum()
    };
    let last = pauses.into_iter().rev();
    let few = last.take_while(|(i, _)| spans.len() - i < LEAST_LOAD);
    few.map(|(i, load_ended)| {
        let (before, after) = spans.split_at(i);
        let from = load_ended.saturating_sub(looked).max(reach);
        let load: Vec<(i64, i64)> = before.iter().copied().filter(|s| s.1 > from).collect();
        let is_load = load.len() >= LEAST_LOAD && time(&load, from) > time(after, i64::MIN);
        let stray = Stray {
            load_ended,
            count: after.len() as u64,
            pause_s: (after[0].0 - load_ended) as f64 / 1e9,
        };
        is_load.then_some(stray)
    })
    .find_map(|s| s)
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::{Begun, Dump, Op};

    use super::super::seen::Seen;
    use super::*;

    const MS: i64 = 1_000_000;

    /// An operation of so many milliseconds every 10 ms, from a moment on.
    fn ops(from_ms: i64, count: i64, took_ms: i64) -> Vec<(i64, i64)> {
        let one = |i: i64| {
            let at = (from_ms + 10 * i) * MS;
            (at, at + took_ms * MS)
        };
        (0..count).map(one).collect()
    }

    fn left_out(parts: &[Vec<(i64, i64)>]) -> Option<(u64, f64)> {
        stray(parts.concat(), 10.0, i64::MIN).map(|s| (s.count, s.pause_s))
    }

    #[test]
    fn one_operation_after_a_load_is_none() {
        let load = || ops(0, 6000, 5);
        let one = || ops(75_000, 1, 5);
        assert_eq!(left_out(&[load(), one()]), Some((1, 15.005)));
        assert_eq!(
            left_out(&[load(), one(), ops(95_000, 3, 5)]),
            Some((4, 15.005))
        );
        let ended = stray([load(), one()].concat(), 10.0, i64::MIN).unwrap();
        assert_eq!(ended.load_ended, 59_995 * MS);
        // of the load nothing is known any more
        let reach = 59_000 * MS;
        assert_eq!(stray([load(), one()].concat(), 10.0, reach), None);
    }

    #[test]
    fn a_load_that_is_slow_or_goes_on_is_judged() {
        let load = || ops(0, 6000, 5);
        assert_eq!(left_out(&[load()]), None);
        assert_eq!(left_out(&[load(), ops(75_000, 200, 5)]), None);
        assert_eq!(left_out(&[load(), ops(75_000, 100, 900)]), None, "slow");
        assert_eq!(
            left_out(&[load(), ops(63_000, 1, 5)]),
            None,
            "both are of the last 10 s"
        );
        assert_eq!(left_out(&[ops(0, 100, 5), ops(75_000, 1, 5)]), None);
        assert_eq!(left_out(&[]), None);
    }

    /// As processes tell it that still run.
    #[test]
    fn the_load_is_judged_and_what_came_after_it_is_told() {
        let spans = [ops(0, 6000, 5), ops(75_000, 1, 5)].concat();
        let op = |(i, span): (usize, (i64, i64))| Op {
            id: i as u64 + 1,
            op: "READ".into(),
            fid: (1, 1, 0),
            span,
            run_ns: 0,
            waits: vec![],
        };
        let mut seen = Seen {
            dumps: vec![Dump {
                now: 77_000 * MS,
                ops: spans.into_iter().enumerate().map(op).collect(),
                ..Dump::default()
            }],
            ..Seen::default()
        };
        let (load, seconds, ago) = seen.recent(10.0);
        assert_eq!(
            (load.dumps[0].ops.len(), seconds, ago),
            (1000, 10.0, 17.005)
        );
        let told = "left out: 1 operation after the load, 15.0 s or more after its end\n";
        assert_eq!(load.span.unwrap().to_string(), told);
        seen.dumps[0].under_way.push(Begun {
            op: 9999,
            name: "READ".into(),
            opc: None,
            target: "".into(),
            fid: (1, 1, 0),
            begun: 76_000 * MS,
            waits: None,
        });
        let (goes_on, ..) = seen.recent(10.0);
        assert_eq!(goes_on.dumps[0].ops.len(), 1);
    }
}
