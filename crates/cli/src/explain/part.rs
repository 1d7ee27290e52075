//! Which part of a file of stopwatches is judged: what belongs together at its end, as of processes that are asked now.

use super::RECENT_S;
use coral_lab::verdict::Seen;
use serde_json::{Value, json};
use std::fmt;

/// A part of the operations of a file, of which others are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    /// Seconds from the beginning of the first operation of the file to that of the part.
    begins_s: f64,
    /// How long it is.
    seconds: f64,
    /// Operations that are judged, and those of the file that are not.
    judged: usize,
    left_out: usize,
    /// Those of the latter that came long after the load, and seconds from its end to the first of them.
    after: (u64, f64),
}

impl Part {
    /// The last load of what was kept; None: it is all that there is, as far as all processes have told of it. What was chosen already
    /// stays.
    pub(super) fn last(seen: Seen) -> (Seen, Option<Part>) {
        if seen.span.is_some() {
            return (seen, None);
        }
        let count = |seen: &Seen| seen.dumps.iter().map(|d| d.ops.len()).sum::<usize>();
        let of_file = count(&seen);
        let begun = seen.first_begun().unwrap_or_default();
        let all = seen.of_file();
        let (last, _, _) = all.recent(RECENT_S);
        let judged = count(&last);
        if judged == count(&all) {
            return (all, None);
        }
        let spans = |seen: &Seen| {
            let ops = seen.dumps.iter().flat_map(|d| &d.ops);
            let first = ops.clone().map(|o| o.span.0).min().unwrap_or_default();
            (first, ops.map(|o| o.span.1).max().unwrap_or(first))
        };
        let (first, ended) = spans(&last);
        let part = Part {
            begins_s: (first - begun) as f64 / 1e9,
            seconds: (ended - first) as f64 / 1e9,
            judged,
            left_out: of_file - judged,
            after: last.span.unwrap_or_default().after,
        };
        (last, Some(part))
    }

    /// As JSON, like that of the time which a step of a run is of.
    pub(super) fn json(&self) -> Value {
        json!({
            "begins_s": self.begins_s, "seconds": self.seconds, "asked_s": RECENT_S,
            "operations": self.judged, "left_out": self.left_out,
            "after": self.after,
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.seconds < 1.0 { 3 } else { 1 };
        write!(
            out,
            "operations of {:.digits$} s, which begin {:.1} s after the first of the file: {} are judged, as its last load, of {RECENT_S:.0} s at most; {} are left out",
            self.seconds, self.begins_s, self.judged, self.left_out
        )?;
        if let (count @ 1.., pause_s) = self.after {
            write!(
                out,
                ", {count} of them {pause_s:.1} s or more after its end"
            )?;
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_stopwatch::{Dump, Kind, Op, Passage};

    /// A client with operations of 5 ms every 10 ms in these times, seconds.
    fn seen(times: &[(f64, f64)]) -> Seen {
        let ns = |s: f64| (s * 1e9) as i64;
        let begins = times.iter().flat_map(|(from, to)| {
            let count = ((to - from) * 100.0).round() as i64;
            (0..count).map(move |i| ns(*from) + i * 10_000_000)
        });
        let op = |(i, begin): (usize, i64)| Op {
            id: i as u64 + 1,
            op: "READ".into(),
            fid: (1, 1, 0),
            span: (begin, begin + 5_000_000),
            run_ns: 0,
            waits: vec![],
        };
        let dump = Dump {
            nids: vec![1],
            names: vec!["1@tcp".into()],
            now: ns(1000.0),
            ops: begins.enumerate().map(op).collect(),
            ..Dump::default()
        };
        Seen {
            dumps: vec![dump],
            ..Seen::default()
        }
    }

    #[test]
    fn of_a_file_the_last_load_is_judged() {
        let told = |times: &[(f64, f64)]| Part::last(seen(times)).1.map(|p| p.to_string());
        let part = |seconds: &str, begins: &str, judged: i32, left_out: i32| {
            Some(format!(
                "operations of {seconds} s, which begin {begins} s after the first of the file: {judged} are judged, as its last load, of 10 s at most; {left_out} are left out\n"
            ))
        };
        assert_eq!(told(&[(1.0, 8.0)]), None, "it is all one load");
        assert_eq!(
            told(&[(1.0, 5.0), (8.0, 11.0)]),
            part("3.0", "7.0", 300, 400)
        );
        assert_eq!(
            told(&[(1.0, 5.0), (100.0, 102.0)]),
            part("2.0", "99.0", 200, 400)
        );
        assert_eq!(told(&[(1.0, 31.0)]), part("10.0", "20.0", 1000, 2000));
        // A few operations long after a load are none.
        let stray = |times| told(times).unwrap();
        assert_eq!(
            stray(&[(1.0, 61.0), (76.0, 76.01)]),
            "operations of 10.0 s, which begin 50.0 s after the first of the file: 1000 are judged, as its last load, of 10 s at most; 5001 are left out, 1 of them 15.0 s or more after its end\n"
        );
        assert!(
            stray(&[(1.0, 5.0), (100.0, 100.5)])
                .ends_with("400 are judged, as its last load, of 10 s at most; 50 are left out, 50 of them 95.0 s or more after its end\n")
        );
        // A pause that such a load makes, too.
        assert_eq!(told(&[(1.0, 2.0), (3.5, 4.5), (6.0, 7.0)]), None);
        let (last, Some(part)) = Part::last(seen(&[(1.0, 5.0), (8.0, 11.0)])) else {
            panic!("a part is left out")
        };
        assert_eq!(last.dumps[0].ops.len(), 300);
        assert_eq!(
            (&part.json()["operations"], &part.json()["left_out"]),
            (&json!(300), &json!(400))
        );
        let (again, none) = Part::last(Seen {
            span: Some(Default::default()),
            ..seen(&[(1.0, 5.0), (8.0, 11.0)])
        });
        assert_eq!(
            (again.dumps[0].ops.len(), none),
            (700, None),
            "it was chosen already"
        );
    }

    /// A router has forgotten what it forwarded in the first 39 s.
    #[test]
    fn a_part_begins_after_the_first_of_the_file_also_where_records_are_lost() {
        let mut seen = seen(&[(1.0, 61.0)]);
        let at = 40_000_000_000;
        seen.dumps[0].lost = 1;
        seen.dumps[0].passages = vec![Passage {
            from: 1,
            to: 2,
            kind: Kind::Put,
            portal: 0,
            mbits: 0,
            bytes: 1,
            arrived: at,
            admitted: at,
            whole: at,
            passed: at,
        }];
        let part = Part::last(seen).1.unwrap();
        assert_eq!((part.begins_s, part.judged), (50.0, 1000));
    }
}
