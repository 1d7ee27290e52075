//! Counters of a kernel Lustre on this machine, from the files it shows.

use super::sampler::{Reading, Source};
use super::text::{arcstats, histograms, lnet_stats, stats_file, yaml_number};
use std::path::{Path, PathBuf};

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A `*.stats` file.
    Stats,
    /// Histograms.
    Histograms,
    /// LNet's eleven numbers.
    Lnet,
    /// ZFS's arcstats.
    Arc,
    /// YAML of an import: RPCs in flight and waiting time.
    Import,
    /// One number.
    Number,
}

/// What is read: short name, file below `/proc/fs/lustre`, `/sys/fs/lustre` or `/sys/kernel/debug` (`*` for any text), how.
const FILES: &[(&str, &str, Kind)] = &[
    ("llite", "lustre/llite/*/stats", Kind::Stats),
    (
        "llite_readahead",
        "lustre/llite/*/read_ahead_stats",
        Kind::Stats,
    ),
    ("osc", "lustre/osc/*/stats", Kind::Stats),
    ("osc_rpc", "lustre/osc/*/rpc_stats", Kind::Histograms),
    ("osc_import", "lustre/osc/*/import", Kind::Import),
    ("mdc", "lustre/mdc/*/stats", Kind::Stats),
    ("mdc_import", "lustre/mdc/*/import", Kind::Import),
    ("mdt", "lustre/mdt/*/md_stats", Kind::Stats),
    ("ost", "lustre/obdfilter/*/stats", Kind::Stats),
    (
        "osd_brw",
        "lustre/osd-ldiskfs/*/brw_stats",
        Kind::Histograms,
    ),
    (
        "osd_zfs_brw",
        "lustre/osd-zfs/*/brw_stats",
        Kind::Histograms,
    ),
    ("ost_service", "lustre/ost/OSS/*/stats", Kind::Stats),
    ("mdt_service", "lustre/mds/MDS/*/stats", Kind::Stats),
    ("locks", "lustre/ldlm/namespaces/*/lock_count", Kind::Number),
    ("lnet", "lnet/stats", Kind::Lnet),
    ("arc", "spl/kstat/zfs/arcstats", Kind::Arc),
];

/// Places where the files are, by version of Lustre and kind of file.
const ROOTS: &[&str] = &["proc/fs", "sys/fs", "sys/kernel/debug", "proc/sys", "proc"];

/// Names of what this collector reads.
pub const CLAIMED: [&str; FILES.len()] = {
    let mut names = [""; FILES.len()];
    let mut i = 0;
    while i < FILES.len() {
        names[i] = FILES[i].0;
        i += 1;
    }
    names
};

/// The kernel's Lustre.
#[derive(Debug)]
pub struct KernelLustre {
    root: PathBuf,
    files: Vec<(String, PathBuf, Kind)>,
    absent: Vec<&'static str>,
}

impl KernelLustre {
    /// Below `root`, which is `/` except where files were copied from another machine. What mounts later is not seen.
    pub fn under(root: &Path) -> KernelLustre {
        let (mut files, mut absent): (Vec<(String, PathBuf, Kind)>, _) = (vec![], vec![]);
        for (name, pattern, kind) in FILES {
            let found: Vec<PathBuf> = ROOTS
                .iter()
                .flat_map(|r| matching(&root.join(r), pattern))
                .collect();
            if found.is_empty() {
                absent.push(*name);
            }
            for f in found {
                // The target's name: the part that the star stood for.
                let at = pattern.split('/').rev().position(|p| p == "*");
                let target = at
                    .and_then(|n| f.components().rev().nth(n))
                    .map(|c| c.as_os_str().to_string_lossy().into_owned());
                let name = target.map_or_else(|| (*name).to_owned(), |t| format!("{name}_{t}"));
                // Some versions show a file in two places: it is read once.
                if files.iter().all(|(known, ..)| *known != name) {
                    files.push((name, f, *kind));
                }
            }
        }
        KernelLustre {
            root: root.to_owned(),
            files,
            absent,
        }
    }

    /// There is something to read.
    pub fn is_there(&self) -> bool {
        !self.files.is_empty()
    }
}

/// Files below `root` that match a pattern whose parts may be `*`.
fn matching(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    for part in pattern.split('/') {
        found = found
            .into_iter()
            .flat_map(|dir| match part {
                "*" => {
                    let mut all: Vec<PathBuf> = std::fs::read_dir(&dir)
                        .into_iter()
                        .flatten()
                        .flatten()
                        .map(|e| e.path())
                        .collect();
                    all.sort();
                    all
                }
                name => vec![dir.join(name)],
            })
            .filter(|p| p.exists())
            .collect();
    }
    found.retain(|p| p.is_file());
    found
}

fn readings(name: &str, kind: Kind, text: &str) -> Vec<Reading> {
    match kind {
        Kind::Stats => stats_file(text)
            .into_iter()
            .flat_map(|l| {
                let count = Reading::counter(format!("{name}/{}", l.name), "1", l.samples as f64);
                let sum = l.min_max_sum.map(|(_, _, sum)| {
                    let unit = if l.unit == "bytes" {
                        "bytes"
                    } else if l.unit.starts_with("usec") {
                        "us"
                    } else {
                        "1"
                    };
                    Reading::counter(format!("{name}/{}.sum", l.name), unit, sum)
                });
                std::iter::once(count).chain(sum)
            })
            .collect(),
        Kind::Histograms => histograms(text)
            .into_iter()
            .flat_map(|h| {
                let title = h.name.replace([' ', '/'], "_");
                let name = name.to_owned();
                h.buckets
                    .into_iter()
                    .flat_map(move |(bucket, read, write)| {
                        let series = |way: &str, n: u64| {
                            Reading::counter(
                                format!("{name}/{title}.{bucket}.{way}"),
                                "1",
                                n as f64,
                            )
                        };
                        [series("read", read), series("write", write)]
                    })
            })
            .collect(),
        Kind::Lnet => lnet_stats(text)
            .into_iter()
            .flatten()
            .map(|(what, v)| match what {
                "msgs_alloc" | "msgs_max" => Reading::gauge(format!("{name}/{what}"), "1", v),
                _ => Reading::counter(
                    format!("{name}/{what}"),
                    if what.ends_with("length") {
                        "bytes"
                    } else {
                        "1"
                    },
                    v,
                ),
            })
            .collect(),
        Kind::Arc => arcstats(text)
            .into_iter()
            .map(|(what, v)| {
                let level =
                    what == "c" || what == "p" || what.contains("size") || what.starts_with("c_");
                let key = format!("{name}/{what}");
                if level {
                    Reading::gauge(key, "bytes", v)
                } else {
                    Reading::counter(key, "1", v)
                }
            })
            .collect(),
        Kind::Import => [("inflight", "1"), ("avg_waittime", "us"), ("timeouts", "1")]
            .iter()
            .filter_map(|(key, unit)| {
                Some(Reading::gauge(
                    format!("{name}/{key}"),
                    unit,
                    yaml_number(text, key)?,
                ))
            })
            .collect(),
        Kind::Number => text
            .trim()
            .parse()
            .ok()
            .map(|v| Reading::gauge(name, "1", v))
            .into_iter()
            .collect(),
    }
}

/// What such a file shows where nothing has happened yet: times, and of histograms their headings too, without a row.
fn is_unused(kind: Kind, text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let is_time = |l: &str| {
        let times = ["snapshot_time", "start_time", "elapsed_time"];
        times.iter().any(|t| l.starts_with(t))
    };
    // As in `16K: 3`. What is in flight has a name before the colon.
    let is_row = |l: &str| {
        l.split_once(':')
            .is_some_and(|(bucket, _)| bucket.starts_with(|c: char| c.is_ascii_digit()))
    };
    let begins = lines.next().is_some_and(is_time);
    begins
        && match kind {
            Kind::Stats => lines.all(is_time),
            Kind::Histograms => !lines.any(is_row),
            Kind::Lnet | Kind::Arc | Kind::Import | Kind::Number => false,
        }
}

impl Source for KernelLustre {
    fn name(&self) -> String {
        "lustre".into()
    }

    fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
        missing.extend(
            self.absent
                .iter()
                .map(|a| format!("{a}: no such file below {}", self.root.display())),
        );
        let mut out = vec![];
        for (name, file, kind) in &self.files {
            match std::fs::read_to_string(file) {
                Ok(text) => {
                    let r = readings(name, *kind, &text);
                    if r.is_empty() && !is_unused(*kind, &text) {
                        missing.push(format!(
                            "'{}' has nothing that is understood",
                            file.display()
                        ));
                    }
                    out.extend(r);
                }
                Err(e) => missing.push(format!("'{}': {e}", file.display())),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with every file that is claimed, each with contents of its format.
    fn machine(root: &Path, leave_out: &str) {
        for (name, pattern, kind) in FILES.iter().filter(|(n, ..)| *n != leave_out) {
            let base = match *kind {
                Kind::Arc => "proc",
                Kind::Number => "sys/fs",
                Kind::Stats if name.starts_with("mdt") => "proc/fs",
                _ => "sys/kernel/debug",
            };
            let file = root
                .join(base)
                .join(pattern.replace('*', "scratch-OST0001"));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let text = match kind {
                Kind::Stats => {
                    "snapshot_time 1.0 secs.nsecs\nread_bytes 5 samples [bytes] 1 2 8 10\nreq_waittime 9 samples [usecs] 1 2 70 90\n"
                }
                Kind::Histograms => {
                    "\t\tread\t\twrite\nrpcs in flight        rpcs   % cum % |       rpcs   % cum %\n8:\t\t 3  30  30   |   4 100 100\n"
                }
                Kind::Lnet => "3 20 0 100 200 50 1 1000 2000 500 10\n",
                Kind::Arc => "13 1\nname type data\nhits 4 12\nsize 4 99\n",
                Kind::Import => {
                    "import:\n    rpcs:\n       inflight: 5\n       timeouts: 0\n       avg_waittime: 812 usec\n"
                }
                Kind::Number => "42\n",
            };
            std::fs::write(file, text).unwrap();
        }
    }

    #[test]
    fn everything_that_is_claimed_is_read() {
        let tmp = tempfile::tempdir().unwrap();
        machine(tmp.path(), "");
        let mut k = KernelLustre::under(tmp.path());
        let mut missing = vec![];
        let r = k.read(&mut missing);
        assert_eq!(missing, Vec::<String>::new());
        for name in CLAIMED {
            assert!(
                r.iter().any(|r| r.name == name
                    || r.name.starts_with(&format!("{name}_scratch-OST0001"))
                    || r.name.starts_with(&format!("{name}/"))),
                "{name}: {r:?}"
            );
        }
        let v = |n: &str| {
            r.iter()
                .find(|r| r.name == n)
                .unwrap_or_else(|| panic!("{n} in {r:?}"))
        };
        assert_eq!(
            (
                v("lnet/route_length").value,
                &*v("lnet/route_length").unit,
                v("lnet/route_length").counter
            ),
            (500.0, "bytes", true)
        );
        assert_eq!(
            (
                v("ost_scratch-OST0001/read_bytes.sum").value,
                v("ost_scratch-OST0001/read_bytes").value
            ),
            (8.0, 5.0)
        );
        assert_eq!(
            v("osc_rpc_scratch-OST0001/rpcs_in_flight.8.write").value,
            4.0
        );
        assert_eq!(
            (
                v("osc_import_scratch-OST0001/inflight").value,
                v("arc/size").counter,
                v("locks_scratch-OST0001").value
            ),
            (5.0, false, 42.0)
        );
    }

    /// Files of a client and a server of Lustre 2.17.57, as they showed them: every number in them is read, counted here by its looks.
    #[test]
    fn every_number_that_a_kernel_showed_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel");
        let mut kernel = KernelLustre::under(&root);
        let mut missing = vec![];
        let read = kernel.read(&mut missing);
        let not_there: Vec<&str> = missing.iter().filter_map(|m| m.split(':').next()).collect();
        assert_eq!(
            not_there,
            ["osc", "osd_zfs_brw", "lnet", "arc"],
            "{missing:?}"
        );
        for name in CLAIMED.iter().filter(|c| !not_there.contains(c)) {
            let of = format!("{name}_");
            assert!(
                kernel.files.iter().any(|(n, ..)| n.starts_with(&of)),
                "{name}"
            );
        }
        for (name, file, kind) in &kernel.files {
            let text = std::fs::read_to_string(file).unwrap();
            let shown = |l: &str| match kind {
                // a count, and a sum where there are more numbers behind the unit
                Kind::Stats if l.contains(" samples [") => 1 + usize::from(!l.ends_with(']')),
                Kind::Histograms if l.contains(":\t") && l.contains('|') => 2,
                Kind::Import => ["inflight:", "avg_waittime:", "timeouts:"]
                    .iter()
                    .filter(|k| l.trim_start().starts_with(**k))
                    .count(),
                Kind::Number => 1,
                _ => 0,
            };
            let all: usize = text.lines().map(shown).sum();
            let of = format!("{name}/");
            let of = |r: &&Reading| r.name == *name || r.name.starts_with(&of);
            assert_eq!(read.iter().filter(of).count(), all, "{name}");
        }
        let is = |name: &str, value: f64| {
            let found = read.iter().find(|r| r.name == name);
            assert_eq!(found.map(|r| r.value), Some(value), "{name}");
        };
        is("llite_lfs-ffff000000000000/open.sum", 237_828.0);
        is("llite_lfs-ffff000000000000/ioctl", 511.0);
        let osc = "lfs-OST0000-osc-ffff000000000000";
        is(&format!("osc_rpc_{osc}/pages_per_rpc.512.write"), 1.0);
        is(&format!("osc_rpc_{osc}/RPC_latency_(us).262144.write"), 1.0);
        is(&format!("osc_import_{osc}/avg_waittime"), 45_565.0);
        let mdc = "mdc_lfs-MDT0000-mdc-ffff000000000000";
        is(&format!("{mdc}/mds_getattr.sum"), 344_623.0);
        is("locks_lfs-OST0001-osc-ffff000000000000", 3.0);
    }

    #[test]
    fn what_is_unused_has_times_and_nothing_else() {
        let times = "snapshot_time:   1767225600.1 secs.nsecs\nstart_time:  1.0 secs\nelapsed_time: 2.0 secs\n";
        let heads = "read RPCs in flight:  0\n\n\t\tread\t\twrite\npages per rpc         rpcs   % cum % |       rpcs   % cum %\n";
        let foreign = "read_bytes: 5 calls, 8 bytes\n";
        let row = "16K: 3 of 9\n";
        for (name, dir, parts, unused) in [
            ("stats", "llite", [times, "\n"], true),
            ("stats", "llite", [times, foreign], false),
            ("stats", "llite", [foreign, times], false),
            ("stats", "llite", ["", ""], false),
            ("rpc_stats", "osc", [times, heads], true),
            ("rpc_stats", "osc", [times, row], false),
            ("rpc_stats", "osc", [heads, times], false),
            ("import", "osc", [times, ""], false),
        ] {
            let tmp = tempfile::tempdir().unwrap();
            let at = tmp.path().join("proc/fs/lustre").join(dir).join("x");
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join(name), parts.concat()).unwrap();
            let mut missing = vec![];
            let read = KernelLustre::under(tmp.path()).read(&mut missing);
            let said = format!(
                "'{}' has nothing that is understood",
                at.join(name).display()
            );
            assert!(read.is_empty(), "{read:?}");
            assert_eq!(missing.contains(&said), !unused, "{parts:?}: {missing:?}");
        }
    }

    #[test]
    fn a_file_in_two_places_is_read_once() {
        let tmp = tempfile::tempdir().unwrap();
        machine(tmp.path(), "");
        let mut missing = vec![];
        let once = KernelLustre::under(tmp.path()).read(&mut missing).len();
        for (from, to) in [
            ("sys/kernel/debug/lnet", "proc/sys/lnet"),
            ("proc/fs", "sys/fs"),
        ] {
            let (from, to) = (tmp.path().join(from), tmp.path().join(to));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            let mut copy = std::process::Command::new("cp");
            let copied = copy.arg("-rT").arg(from).arg(to).status();
            assert!(copied.unwrap().success());
        }
        assert_eq!(
            KernelLustre::under(tmp.path()).read(&mut missing).len(),
            once
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        for absent in CLAIMED {
            let tmp = tempfile::tempdir().unwrap();
            machine(tmp.path(), absent);
            let mut missing = vec![];
            KernelLustre::under(tmp.path()).read(&mut missing);
            assert_eq!(missing.len(), 1, "{absent}: {missing:?}");
            assert!(missing[0].starts_with(&format!("{absent}: no such file")));
        }
        let tmp = tempfile::tempdir().unwrap();
        assert!(!KernelLustre::under(tmp.path()).is_there());
        machine(tmp.path(), "");
        std::fs::write(tmp.path().join("sys/kernel/debug/lnet/stats"), "nonsense").unwrap();
        let mut missing = vec![];
        KernelLustre::under(tmp.path()).read(&mut missing);
        assert!(missing.len() == 1 && missing[0].contains("lnet/stats' has nothing"));
    }
}
