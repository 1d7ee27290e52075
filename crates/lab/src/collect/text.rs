//! The texts in which Lustre shows its counters, read.
//!
//! Formats: `*.stats` (obdclass/lprocfs_status.c), `job_stats`, histograms as in `brw_stats` and `rpc_stats`, LNet's `stats`
//! (lnet/lnet/lnet_debugfs.c), the YAML of `import`, and ZFS's arcstats. Lines that are none of a format's are passed over, so that a
//! newer Lustre with more of them is read all the same.

/// A line of a `*.stats` file.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsLine {
    /// What is counted, as in `read_bytes`.
    pub name: String,
    /// How often.
    pub samples: u64,
    /// Unit, as in `bytes` or `usecs`.
    pub unit: String,
    /// Smallest, largest and sum, where the line has them.
    pub min_max_sum: Option<(f64, f64, f64)>,
    /// Sum of squares, where the line has it.
    pub sum_squares: Option<f64>,
}

/// `NAME  N samples [UNIT] MIN MAX SUM SUMSQ`; also the times on top, whose lines have other words, are passed over.
pub fn stats_file(text: &str) -> Vec<StatsLine> {
    text.lines()
        .filter_map(|l| {
            let w: Vec<&str> = l.split_whitespace().collect();
            if w.get(2) != Some(&"samples") {
                return None;
            }
            let numbers: Vec<f64> = w[3..]
                .iter()
                .skip(1)
                .map_while(|n| n.parse().ok())
                .collect();
            Some(StatsLine {
                name: w[0].to_owned(),
                samples: w[1].parse().ok()?,
                unit: w.get(3)?.strip_prefix('[')?.strip_suffix(']')?.to_owned(),
                min_max_sum: match numbers[..] {
                    [min, max, sum, ..] => Some((min, max, sum)),
                    _ => None,
                },
                sum_squares: numbers.get(3).copied(),
            })
        })
        .collect()
}

/// Of `job_stats`: job, counter, samples and sum.
pub fn job_stats(text: &str) -> Vec<(String, String, u64, f64)> {
    let mut out = vec![];
    let mut job = String::new();
    for l in text.lines() {
        let Some((key, rest)) = l.trim_start_matches(['-', ' ']).split_once(':') else {
            continue;
        };
        if key.trim() == "job_id" {
            job = rest.trim().trim_matches('"').to_owned();
        } else if let Some(fields) = rest.trim().strip_prefix('{') {
            let field = |name: &str| {
                fields
                    .split([',', '}'])
                    .filter_map(|f| f.split_once(':'))
                    .find(|(k, _)| k.trim() == name)
                    .map(|(_, v)| v.trim())
            };
            if let Some(samples) = field("samples").and_then(|v| v.parse().ok()) {
                let sum = field("sum").and_then(|v| v.parse().ok()).unwrap_or(0.0);
                out.push((job.clone(), key.trim().to_owned(), samples, sum));
            }
        }
    }
    out
}

/// A histogram: heading, and by bucket the numbers of the two directions.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Its heading, as in `disk I/O size`.
    pub name: String,
    /// Bucket, as in `128` or `4K`, with what was counted for reads and writes.
    pub buckets: Vec<(String, u64, u64)>,
}

/// The histograms of `brw_stats` and `rpc_stats`: `BUCKET:  COUNT % CUM% | COUNT % CUM%` below a heading.
pub fn histograms(text: &str) -> Vec<Histogram> {
    let mut out: Vec<Histogram> = vec![];
    for l in text.lines() {
        let bucket = l.split_once(':').and_then(|(bucket, rest)| {
            let (left, right) = rest.split_once('|').unwrap_or((rest, ""));
            let first = |t: &str| t.split_whitespace().next().map(str::parse::<u64>);
            let read = first(left)?.ok()?;
            let is_row = left.split_whitespace().count() == 3;
            is_row.then(|| {
                (
                    bucket.trim().to_owned(),
                    read,
                    first(right).and_then(Result::ok).unwrap_or(0),
                )
            })
        });
        match (bucket, out.last_mut()) {
            (Some(b), Some(h)) => h.buckets.push(b),
            (None, _) => {
                // A heading: words before the names of the columns.
                let name = l
                    .split("  ")
                    .next()
                    .unwrap_or("")
                    .split('\t')
                    .next()
                    .unwrap_or("")
                    .trim();
                let words = l
                    .split_whitespace()
                    .any(|w| matches!(w, "rpcs" | "ios" | "%"));
                if words && !name.is_empty() {
                    out.push(Histogram {
                        name: name.to_owned(),
                        buckets: vec![],
                    });
                }
            }
            (Some(_), None) => {}
        }
    }
    out.retain(|h| !h.buckets.is_empty());
    out
}

/// Names of the eleven numbers of LNet's `stats`, in their order.
const LNET: [&str; 11] = [
    "msgs_alloc",
    "msgs_max",
    "errors",
    "send_count",
    "recv_count",
    "route_count",
    "drop_count",
    "send_length",
    "recv_length",
    "route_length",
    "drop_length",
];

/// LNet's `stats`: eleven numbers in one line.
pub fn lnet_stats(text: &str) -> Option<Vec<(&'static str, f64)>> {
    let n: Vec<f64> = text
        .split_whitespace()
        .map(|w| w.parse().ok())
        .collect::<Option<_>>()?;
    (n.len() == LNET.len()).then(|| LNET.iter().copied().zip(n).collect())
}

/// The number behind `KEY:` in a text that looks like YAML, as `import` is; the first such key.
pub fn yaml_number(text: &str, key: &str) -> Option<f64> {
    text.lines().find_map(|l| {
        let (k, v) = l.split_once(':')?;
        (k.trim() == key).then(|| v.trim().split(' ').next()?.parse().ok())?
    })
}

/// ZFS's arcstats: two lines of heading, then `NAME TYPE VALUE`.
pub fn arcstats(text: &str) -> Vec<(String, f64)> {
    text.lines()
        .skip(2)
        .filter_map(|l| {
            let w: Vec<&str> = l.split_whitespace().collect();
            match w[..] {
                [name, kind, value] if kind.bytes().all(|b| b.is_ascii_digit()) => {
                    Some((name.to_owned(), value.parse().ok()?))
                }
                _ => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stats_file_is_read_with_and_without_sums() {
        let s = stats_file(
            "snapshot_time             1767225600.123456789 secs.nsecs\n\
             start_time                1767220000.000000000 secs.nsecs\n\
             elapsed_time              5600.123456789 secs.nsecs\n\
             read_bytes                120 samples [bytes] 4096 1048576 62914560 32985348833280\n\
             open                      7 samples [usecs] 10 90 300 20000\n\
             ping                      44 samples [reqs]\n\
             odd line\n",
        );
        assert_eq!(s.len(), 3);
        assert_eq!(
            (s[0].name.as_str(), s[0].samples, s[0].unit.as_str()),
            ("read_bytes", 120, "bytes")
        );
        assert_eq!(s[0].min_max_sum, Some((4096.0, 1_048_576.0, 62_914_560.0)));
        assert_eq!(s[1].sum_squares, Some(20_000.0));
        assert_eq!(
            (s[2].name.as_str(), s[2].samples, s[2].min_max_sum),
            ("ping", 44, None)
        );
    }

    #[test]
    fn jobs_are_told_apart() {
        let j = job_stats(
            "job_stats:\n- job_id:          dd.0\n  snapshot_time:   1767225600.5 secs.nsecs\n\
             \x20 read_bytes:      { samples:          12, unit: bytes, min:    4096, max: 1048576, sum:        12000, sumsq: 5 }\n\
             \x20 getattr:         { samples:           0, unit: usecs }\n\
             - job_id:          \"cp.1000\"\n  write_bytes:     { samples: 3, unit: bytes, min: 1, max: 2, sum: 5, hist: { 4K: 2 } }\n",
        );
        assert_eq!(
            j,
            [
                ("dd.0".into(), "read_bytes".into(), 12, 12000.0),
                ("dd.0".into(), "getattr".into(), 0, 0.0),
                ("cp.1000".into(), "write_bytes".into(), 3, 5.0),
            ]
        );
    }

    #[test]
    fn histograms_have_their_headings() {
        let h = histograms(
            "snapshot_time:         1767225600.1 (secs.nsecs)\nread RPCs in flight:  0\nwrite RPCs in flight: 2\n\n\
             \t\t\tread\t\t\twrite\n\
             pages per rpc         rpcs   % cum % |       rpcs   % cum %\n\
             1:\t\t         5  50  50   |          0   0   0\n\
             256:\t\t         5  50 100   |         40 100 100\n\n\
             \t\t\tread\t\t\twrite\n\
             rpcs in flight        rpcs   % cum % |       rpcs   % cum %\n\
             8:\t\t         3  30  30   |         40 100 100\n",
        );
        assert_eq!(h.len(), 2, "{h:?}");
        assert_eq!(
            (h[0].name.as_str(), &h[0].buckets[1]),
            ("pages per rpc", &("256".to_owned(), 5, 40))
        );
        assert_eq!(
            (h[1].name.as_str(), &h[1].buckets[..]),
            ("rpcs in flight", &[("8".to_owned(), 3, 40)][..])
        );
        let b = histograms(
            "                           read      |     write\ndisk I/O size          ios   % cum % |  ios         % cum %\n4K:\t\t        12  60  60   |    7  70  70\n1M:\t\t         8  40 100   |    3  30 100\n",
        );
        assert_eq!(
            (b[0].name.as_str(), b[0].buckets.len()),
            ("disk I/O size", 2)
        );
    }

    #[test]
    fn lnet_import_and_arc() {
        let s = lnet_stats("3 20 0 100 200 50 1 1000 2000 500 10\n").unwrap();
        assert_eq!(
            (s[5], s[9]),
            (("route_count", 50.0), ("route_length", 500.0))
        );
        assert_eq!(lnet_stats("1 2 3"), None);
        assert_eq!(lnet_stats("a b c d e f g h i j k"), None);
        let import = "import:\n    name: x-OST0000-osc\n    state: FULL\n    rpcs:\n       inflight: 5\n       avg_waittime: 812 usec\n";
        assert_eq!(
            (
                yaml_number(import, "inflight"),
                yaml_number(import, "avg_waittime"),
                yaml_number(import, "state")
            ),
            (Some(5.0), Some(812.0), None)
        );
        let arc = arcstats(
            "13 1 0x01 98 26656 1 2\nname                            type data\nhits                            4    12345\nsize                            4    999\n",
        );
        assert_eq!(
            arc,
            [("hits".to_owned(), 12345.0), ("size".to_owned(), 999.0)]
        );
    }

    proptest! {
        /// Whatever the text is, it is read or passed over.
        #[test]
        fn no_text_is_fatal(text in "[ -~\t\n]{0,400}") {
            stats_file(&text);
            job_stats(&text);
            histograms(&text);
            lnet_stats(&text);
            yaml_number(&text, "a");
            arcstats(&text);
        }
    }
}
