//! This machine: CPU, memory, network, disks, pressure, TCP, from the files of /proc.

use super::sampler::{Reading, Source};
use crate::experiment::find_program;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Ticks per second of the times in /proc.
const USER_HZ: f64 = 100.0;
/// Bytes of the sectors that /proc/diskstats counts, whatever the disk's own are.
const SECTOR_BYTES: f64 = 512.0;
/// Most threads looked at in a sample.
const MAX_THREADS: usize = 20_000;
/// Threads named at the end.
const NAMED_THREADS: usize = 5;

/// The machine that this process runs on.
#[derive(Debug)]
pub struct Host {
    proc: PathBuf,
    cores: Cores,
    threads: BTreeMap<u64, (f64, String)>,
    /// CPU ticks by thread name since the start.
    by_name: BTreeMap<String, f64>,
    at: Option<std::time::Instant>,
    rtt: bool,
    /// All threads of the machine are seen, and not those of one PID namespace alone.
    sees_machine: bool,
}

/// Inode of the PID namespace that Linux begins with (include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

impl Host {
    /// Of /proc; `rtt`: also asks ss(8), where it is installed, for the round trips of TCP connections.
    pub fn new(rtt: bool) -> Host {
        Host::under(Path::new("/proc"), rtt)
    }

    fn under(proc: &Path, rtt: bool) -> Host {
        Host {
            proc: proc.to_owned(),
            cores: Cores::default(),
            threads: BTreeMap::new(),
            by_name: BTreeMap::new(),
            at: None,
            rtt,
            sees_machine: std::fs::metadata(proc.join("self/ns/pid"))
                .is_ok_and(|m| m.ino() == FIRST_PID_NAMESPACE),
        }
    }

    fn file(&self, name: &str, missing: &mut Vec<String>) -> String {
        std::fs::read_to_string(self.proc.join(name)).unwrap_or_else(|e| {
            missing.push(format!("{}: {e}", self.proc.join(name).display()));
            String::new()
        })
    }

    /// The busiest thread since the last reading: its share of the time.
    fn busiest_thread(&mut self, missing: &mut Vec<String>) -> Option<f64> {
        let now = crate::clock::now();
        let since = self
            .at
            .replace(now)
            .map(|t| now.duration_since(t).as_secs_f64());
        let mut seen = BTreeMap::new();
        let mut most: f64 = 0.0;
        for (tid, ticks, name) in threads(&self.proc) {
            if seen.len() == MAX_THREADS {
                missing.push(format!("threads beyond the first {MAX_THREADS}"));
                break;
            }
            // One that is new began with nothing, except at the first look.
            let before = self
                .threads
                .get(&tid)
                .map(|(t, _)| *t)
                .or_else(|| since.map(|_| 0.0));
            let used = before.map_or(0.0, |b| (ticks - b).max(0.0));
            most = most.max(used);
            if used > 0.0 {
                *self.by_name.entry(name.clone()).or_default() += used;
            }
            seen.insert(tid, (ticks, name));
        }
        self.threads = seen;
        since.filter(|s| *s > 0.0).map(|s| most / USER_HZ / s)
    }
}

/// CPU time of each core when it was read last: busy, and all.
#[derive(Debug, Default)]
pub(crate) struct Cores(BTreeMap<String, (f64, f64)>);

impl Cores {
    /// The busiest core since the last reading of `/proc/stat`: its share of the time. It need not be the one of the reading before.
    pub(crate) fn busiest(&mut self, stat: &str) -> Option<f64> {
        let mut most = None;
        for l in stat
            .lines()
            .filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "))
        {
            let name = l.split(' ').next().unwrap_or_default().to_owned();
            let t = cpu_times(l);
            let (busy, all) = (t.busy, t.busy + t.idle + t.iowait);
            if let Some((b, a)) = self.0.insert(name, (busy, all))
                && all > a
            {
                let share = (busy - b) / (all - a);
                most = most.max(Some(OrderedF64(share)));
            }
        }
        most.map(|m| m.0)
    }
}

#[derive(PartialEq, PartialOrd)]
struct OrderedF64(f64);
impl Eq for OrderedF64 {}
#[expect(
    clippy::derive_ord_xor_partial_ord,
    reason = "a total order of the same numbers"
)]
impl Ord for OrderedF64 {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Thread id, CPU ticks and name of every thread.
fn threads(proc: &Path) -> impl Iterator<Item = (u64, f64, String)> {
    let entries = |p: &Path| std::fs::read_dir(p).into_iter().flatten().flatten();
    entries(proc)
        .filter(|e| {
            e.file_name()
                .to_string_lossy()
                .bytes()
                .all(|b| b.is_ascii_digit())
        })
        .flat_map(move |p| entries(&p.path().join("task")))
        .filter_map(|t| {
            let tid = t.file_name().to_string_lossy().parse().ok()?;
            let stat = std::fs::read_to_string(t.path().join("stat")).ok()?;
            let (head, rest) = stat.rsplit_once(") ")?;
            let name = head.split_once('(')?.1.to_owned();
            let f: Vec<&str> = rest.split(' ').collect();
            Some((
                tid,
                f.get(11)?.parse::<f64>().ok()? + f.get(12)?.parse::<f64>().ok()?,
                name,
            ))
        })
}

#[derive(Default)]
struct CpuTimes {
    busy: f64,
    idle: f64,
    iowait: f64,
    steal: f64,
}

/// A line `cpuN user nice system idle iowait irq softirq steal guest guest_nice`; guests are in user already.
fn cpu_times(line: &str) -> CpuTimes {
    let n: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|w| w.parse().ok())
        .collect();
    let at = |i: usize| n.get(i).copied().unwrap_or(0.0);
    CpuTimes {
        busy: at(0) + at(1) + at(2) + at(5) + at(6) + at(7),
        idle: at(3),
        iowait: at(4),
        steal: at(7),
    }
}

fn cpu(stat: &str) -> Vec<Reading> {
    let Some(all) = stat.lines().find(|l| l.starts_with("cpu ")) else {
        return vec![];
    };
    let t = cpu_times(all);
    vec![
        Reading::counter("cpu_busy", "core-s", t.busy / USER_HZ),
        Reading::counter("cpu_iowait", "core-s", t.iowait / USER_HZ),
        Reading::counter("cpu_steal", "core-s", t.steal / USER_HZ),
    ]
}

fn memory(meminfo: &str) -> Vec<Reading> {
    [
        ("MemAvailable", "mem_available"),
        ("Cached", "mem_cached"),
        ("Dirty", "mem_dirty"),
        ("Writeback", "mem_writeback"),
        ("SwapFree", "swap_free"),
    ]
    .iter()
    .filter_map(|(key, name)| {
        let kib: f64 = meminfo
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?
            .split_whitespace()
            .next()?
            .parse()
            .ok()?;
        Some(Reading::gauge(*name, "MiB", kib / 1024.0))
    })
    .collect()
}

fn network(dev: &str) -> Vec<Reading> {
    let mut out = vec![];
    for l in dev.lines() {
        let Some((name, rest)) = l.split_once(':') else {
            continue;
        };
        let n: Vec<f64> = rest
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect();
        if n.len() >= 12 {
            let name = name.trim();
            out.push(Reading::counter(format!("net_{name}_rx"), "bytes", n[0]));
            out.push(Reading::counter(format!("net_{name}_tx"), "bytes", n[8]));
            out.push(Reading::counter(
                format!("net_{name}_drops"),
                "1",
                n[3] + n[11],
            ));
        }
    }
    out
}

/// Whole disks only: partitions and mapped devices would count the same bytes again.
fn disks(diskstats: &str) -> Vec<Reading> {
    let whole = |name: &str| {
        let numbered = name.starts_with("nvme") || name.starts_with("mmcblk");
        let part = if numbered {
            name.contains('p')
                && name
                    .rsplit('p')
                    .next()
                    .is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit()))
                && name.contains('n')
                && name.starts_with("nvme")
                || name.starts_with("mmcblk") && name.contains('p')
        } else {
            name.ends_with(|c: char| c.is_ascii_digit())
        };
        !part
            && ["sd", "vd", "xvd", "hd", "nvme", "mmcblk"]
                .iter()
                .any(|p| name.starts_with(p))
    };
    let mut out = vec![];
    for l in diskstats.lines() {
        let w: Vec<&str> = l.split_whitespace().collect();
        let n = |i: usize| w.get(i).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
        if w.len() >= 14 && whole(w[2]) {
            out.push(Reading::counter(
                format!("disk_{}_read", w[2]),
                "bytes",
                n(5) * SECTOR_BYTES,
            ));
            out.push(Reading::counter(
                format!("disk_{}_write", w[2]),
                "bytes",
                n(9) * SECTOR_BYTES,
            ));
            out.push(Reading::counter(
                format!("disk_{}_busy", w[2]),
                "s",
                n(12) / 1000.0,
            ));
        }
    }
    out
}

/// Pages that came back from swap, in /proc/vmstat.
fn swap_in(vmstat: &str) -> Option<Reading> {
    let pages = vmstat.lines().find_map(|l| l.strip_prefix("pswpin "))?;
    Some(Reading::counter("swap_in", "pages", pages.parse().ok()?))
}

/// `some avg10=… total=MICROSECONDS`: the share of the time in which someone waited.
fn pressure(what: &str, text: &str) -> Option<Reading> {
    let some = text.lines().find(|l| l.starts_with("some "))?;
    let total: f64 = some.split("total=").nth(1)?.trim().parse().ok()?;
    Some(Reading::counter(
        format!("psi_{what}_some"),
        "s",
        total / 1e6,
    ))
}

/// /proc/net/snmp: a line of names and a line of numbers for each protocol.
fn tcp(snmp: &str) -> Vec<Reading> {
    let lines: Vec<&str> = snmp.lines().filter(|l| l.starts_with("Tcp:")).collect();
    let [names, values] = lines[..] else {
        return vec![];
    };
    let value = |key: &str| {
        let at = names.split(' ').position(|n| n == key)?;
        values.split(' ').nth(at)?.parse::<f64>().ok()
    };
    [
        ("RetransSegs", "tcp_retransmits"),
        ("OutSegs", "tcp_segments_out"),
        ("InErrs", "tcp_errors_in"),
    ]
    .iter()
    .filter_map(|(key, name)| Some(Reading::counter(*name, "1", value(key)?)))
    .collect()
}

/// Round trips in the output of `ss -tin`, `rtt:MEAN/DEVIATION` in milliseconds: their mean and the largest.
fn round_trips(ss: &str) -> Vec<Reading> {
    let all: Vec<f64> = ss
        .split_whitespace()
        .filter_map(|w| w.strip_prefix("rtt:")?.split('/').next()?.parse().ok())
        .collect();
    if all.is_empty() {
        return vec![];
    }
    let most = all.iter().copied().fold(0.0, f64::max);
    vec![
        Reading::gauge(
            "tcp_rtt_mean",
            "ms",
            all.iter().sum::<f64>() / all.len() as f64,
        ),
        Reading::gauge("tcp_rtt_max", "ms", most),
    ]
}

impl Source for Host {
    fn name(&self) -> String {
        "host".into()
    }

    fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
        let stat = self.file("stat", missing);
        let mut out = cpu(&stat);
        out.extend(
            self.cores
                .busiest(&stat)
                .map(|v| Reading::gauge("busiest_core", "of a core", v)),
        );
        out.extend(
            self.busiest_thread(missing)
                .map(|v| Reading::gauge("busiest_thread", "of a core", v)),
        );
        out.extend(memory(&self.file("meminfo", missing)));
        out.extend(swap_in(&self.file("vmstat", missing)));
        out.extend(network(&self.file("net/dev", missing)));
        out.extend(disks(&self.file("diskstats", missing)));
        for what in ["cpu", "io", "memory"] {
            out.extend(pressure(
                what,
                &self.file(&format!("pressure/{what}"), missing),
            ));
        }
        out.extend(tcp(&self.file("net/snmp", missing)));
        if self.rtt {
            match find_program("ss") {
                None => missing.push("ss(8), for round trips of TCP".into()),
                Some(ss) => {
                    let said = Command::new(ss)
                        .arg("-tin")
                        .stdin(Stdio::null())
                        .stderr(Stdio::null())
                        .output();
                    out.extend(
                        said.map(|o| round_trips(&String::from_utf8_lossy(&o.stdout)))
                            .unwrap_or_default(),
                    );
                }
            }
        }
        out
    }

    fn notes(&mut self) -> Vec<String> {
        let mut names: Vec<(&String, &f64)> = self.by_name.iter().collect();
        names.sort_by(|a, b| b.1.total_cmp(a.1));
        let text: Vec<String> = names
            .iter()
            .take(NAMED_THREADS)
            .map(|(n, t)| format!("{n} {:.2} s", *t / USER_HZ))
            .collect();
        if text.is_empty() {
            return vec![];
        }
        let all = match self.sees_machine {
            true => "of this machine",
            false => "in the PID namespace of the laboratory",
        };
        vec![format!(
            "CPU time by thread name, of all programs {all}, also of those that are not of the run: {}",
            text.join(", ")
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(r: &[Reading], name: &str) -> f64 {
        r.iter()
            .find(|r| r.name == name)
            .unwrap_or_else(|| panic!("{name} in {r:?}"))
            .value
    }

    #[test]
    fn the_files_of_proc_are_read() {
        let r = cpu("cpu  100 10 50 1000 30 5 5 20 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        assert_eq!(
            (
                value(&r, "cpu_busy"),
                value(&r, "cpu_iowait"),
                value(&r, "cpu_steal")
            ),
            (1.9, 0.3, 0.2)
        );
        let r = memory(
            "MemTotal: 4096 kB\nMemAvailable:   2048 kB\nCached: 1024 kB\nSwapCached: 5 kB\nDirty: 512 kB\n",
        );
        assert_eq!(
            (
                value(&r, "mem_available"),
                value(&r, "mem_cached"),
                value(&r, "mem_dirty")
            ),
            (2.0, 1.0, 0.5)
        );
        let r = network(
            "Inter-| Receive\n face |bytes packets\n  eth0: 1000 5 0 2 0 0 0 0 2000 6 0 1 0 0 0 0\n",
        );
        assert_eq!(
            (
                value(&r, "net_eth0_rx"),
                value(&r, "net_eth0_tx"),
                value(&r, "net_eth0_drops")
            ),
            (1000.0, 2000.0, 3.0)
        );
        let r =
            tcp("Ip: A B\nIp: 1 2\nTcp: RtoAlgorithm OutSegs RetransSegs InErrs\nTcp: 1 900 7 2\n");
        assert_eq!(
            (value(&r, "tcp_retransmits"), value(&r, "tcp_segments_out")),
            (7.0, 900.0)
        );
        assert_eq!(
            pressure(
                "io",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0 total=1\n"
            )
            .unwrap()
            .value,
            2.5
        );
        let r = round_trips(
            "ESTAB 0 0 a b\n\t cubic rtt:19.5/2.25 cwnd:10 minrtt:1\nESTAB\n\t rtt:0.5/0.25\n",
        );
        assert_eq!(
            (value(&r, "tcp_rtt_mean"), value(&r, "tcp_rtt_max")),
            (10.0, 19.5)
        );
    }

    #[test]
    fn whole_disks_are_counted_once() {
        let line =
            |name: &str| format!(" 254 0 {name} 10 0 2048 5 20 0 4096 7 0 1500 12 0 0 0 0\n");
        let text: String = [
            "vda",
            "vda1",
            "nvme0n1",
            "nvme0n1p2",
            "mmcblk0",
            "mmcblk0p1",
            "dm-0",
            "loop0",
            "sdb",
            "sdb3",
        ]
        .iter()
        .map(|n| line(n))
        .collect();
        let r = disks(&text);
        let names: Vec<&str> = r
            .iter()
            .filter_map(|r| r.name.strip_suffix("_read"))
            .collect();
        assert_eq!(
            names,
            ["disk_vda", "disk_nvme0n1", "disk_mmcblk0", "disk_sdb"]
        );
        assert_eq!(
            (
                value(&r, "disk_vda_read"),
                value(&r, "disk_vda_write"),
                value(&r, "disk_vda_busy")
            ),
            (2048.0 * 512.0, 4096.0 * 512.0, 1.5)
        );
    }

    #[test]
    fn the_busiest_core_and_thread_are_found_behind_an_idle_average() {
        let tmp = tempfile::tempdir().unwrap();
        let mut h = Host::under(tmp.path(), false);
        let stat = |busy: u32, idle: u32| {
            format!(
                "cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 {idle} 0 0 0 0\ncpu1 {busy} 0 0 1000 0 0 0 0\n"
            )
        };
        assert_eq!(h.cores.busiest(&stat(0, 1000)), None);
        assert_eq!(h.cores.busiest(&stat(100, 1100)), Some(1.0));
        let thread = |pid: u32, tid: u32, name: &str, ticks: u32| {
            let d = tmp.path().join(format!("{pid}/task/{tid}"));
            std::fs::create_dir_all(&d).unwrap();
            std::fs::write(
                d.join("stat"),
                format!("{tid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0"),
            )
            .unwrap();
        };
        thread(5, 5, "idle one", 1000);
        thread(5, 6, "a) busy", 0);
        assert_eq!(h.busiest_thread(&mut vec![]), None);
        crate::clock::pause(std::time::Duration::from_millis(100));
        thread(5, 6, "a) busy", 50);
        thread(5, 7, "new", 10);
        let share = h.busiest_thread(&mut vec![]).unwrap();
        assert!(
            share > 0.0 && share <= 5.0 + 0.1,
            "50 ticks in 0.1 s or more: {share}"
        );
        assert_eq!(
            h.notes(),
            [
                "CPU time by thread name, of all programs in the PID namespace of the laboratory, also of those that are not of the run: a) busy 0.50 s, new 0.10 s"
            ]
        );
        h.sees_machine = true;
        assert!(h.notes()[0].contains("of all programs of this machine, also"));
    }

    #[test]
    fn this_machine_is_read_and_what_is_not_there_is_said() {
        let mut missing = vec![];
        let r = Host::new(false).read(&mut missing);
        assert!(value(&r, "cpu_busy") > 0.0 && value(&r, "mem_available") > 0.0);
        assert!(r.iter().any(|r| r.name == "net_lo_rx"));
        let tmp = tempfile::tempdir().unwrap();
        let mut missing = vec![];
        Host::under(tmp.path(), false).read(&mut missing);
        for file in [
            "stat",
            "meminfo",
            "net/dev",
            "diskstats",
            "pressure/io",
            "net/snmp",
        ] {
            assert!(
                missing.iter().any(|m| m.contains(&format!("/{file}:"))),
                "{file}: {missing:?}"
            );
        }
    }
}
