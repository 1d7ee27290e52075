//! Clients of this machine that stand still because their pages are on disk.
//!
//! Such a client looks like one without a load: it does not come to take the requests that programs wait for, and no operation of it
//! begins or ends. What tells them apart are its threads that take the kernel's requests: without requests they sleep, and need no page.
//! What a machine reads from swap for others, and what a client needs to answer whoever looks at it, says nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Host};
use super::hosts::SWAP_LEAST;
use super::rules::{Cause, CauseKind, ms};

/// Threads of a mount that take the kernel's requests, by the beginning of their names.
const TAKERS: &str = "coral-fuse-";
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// A client stands still whose threads are at work, or wait for pages, at so many of the looks while no operation ends.
const AWAKE_LEAST: f64 = 0.2;
/// Pages in a second for which its threads have to have waited: a disk that is busy with all of them needs a tenth of a second each.
const FAULTS_LEAST: f64 = 2.0;
/// Seconds without the end of an operation that are told.
const QUIET_LEAST_S: f64 = 1.0;

/// A mount of this machine, watched from outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paging {
    /// Its process, as a user knows it.
    pub client: String,
    /// Share of the looks at which a thread that takes the kernel's requests was at work, or waited for a page: not asleep.
    pub awake: f64,
    /// Pages that these threads had to wait for, in a second.
    pub faults_per_s: f64,
    /// Bytes of the process that are in swap.
    pub swapped_bytes: u64,
    /// Whether requests of programs waited at any look; None: the kernel does not show that.
    #[serde(default)]
    pub requests: Option<bool>,
}

impl Paging {
    /// It stands still for want of its pages.
    fn stands_still(&self) -> bool {
        let waits = self.awake >= AWAKE_LEAST && self.faults_per_s >= FAULTS_LEAST;
        waits && self.swapped_bytes > 0 && self.requests != Some(false)
    }
}

impl Host {
    /// A client on it that stands still because its pages are on disk.
    pub fn paged_out(&self) -> Option<&Paging> {
        let swaps = self.swap_in_per_s >= SWAP_LEAST;
        let all = self.paging.iter().filter(|p| swaps && p.stands_still());
        all.max_by(|a, b| a.awake.total_cmp(&b.awake))
    }
}

/// No operation ends, and a client stands still because its pages are on disk.
pub(super) fn out_of_memory(f: &Facts) -> Option<Cause> {
    let quiet_s = f.quiet_s;
    let (h, p) = (f.hosts.iter()).find_map(|h| h.paged_out().map(|p| (h, p)))?;
    let since = match quiet_s.is_finite() {
        true => format!("no operation has ended for {}", ms(quiet_s)),
        false => "no operation has ended".to_owned(),
    };
    (quiet_s >= QUIET_LEAST_S).then(|| Cause {
        kind: CauseKind::Swap,
        subject: h.name.clone(),
        fid: None,
        share: match quiet_s.is_finite() {
            true => quiet_s / (quiet_s + f.window_s).max(1e-12),
            false => 1.0,
        },
        figure: format!(
            "{since}; {:.0} pages/s come back from swap, and the threads of {} that take requests were not asleep {:.0}% of the time, and waited for {:.0} of their pages in a second; {:.1} MiB of it are in swap",
            h.swap_in_per_s,
            p.client,
            100.0 * p.awake,
            p.faults_per_s,
            p.swapped_bytes as f64 / (1 << 20) as f64
        ),
        ceiling: None,
        change: format!("give {} more memory, or its client less to cache", h.name),
    })
}

/// A thread at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taker {
    is_awake: bool,
    faults: u64,
}

/// What `/proc/PID/task/TID/stat` says of a thread that takes requests; None: it is another one.
fn taker(stat: &str) -> Option<Taker> {
    let (front, rest) = stat.rsplit_once(") ")?;
    let (_, name) = front.split_once('(')?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some(Taker {
        is_awake: fields.first() != Some(&"S"),
        faults: fields.get(9)?.parse().ok()?,
    })
    .filter(|_| name.starts_with(TAKERS))
}

fn takers(pid: u32) -> BTreeMap<u32, Taker> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let one = |task: std::fs::DirEntry| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        Some((tid, taker(&stat)?))
    };
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(one).collect()
}

/// Bytes of a process in swap, by its `/proc/PID/status`.
fn swapped_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|l| l.strip_prefix("VmSwap:"));
    let kb = line.and_then(|l| l.trim().split(' ').next()?.parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}

/// Requests that wait at these mounts, as the kernel counts them where its `fusectl` is mounted.
fn requests(mounts: &[PathBuf]) -> Option<u64> {
    let connections = Path::new("/sys/fs/fuse/connections");
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let minors = minors(&table, mounts);
    let waiting = |minor: &u32| {
        let file = connections.join(minor.to_string()).join("waiting");
        std::fs::read_to_string(file)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let all: Option<Vec<u64>> = minors.iter().map(waiting).collect();
    all.filter(|all| !all.is_empty())
        .map(|all| all.iter().sum())
}

/// Device numbers of these mounts, the minor ones, of a table of mounts.
fn minors(table: &str, mounts: &[PathBuf]) -> Vec<u32> {
    let one = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (_, minor) = fields.get(2)?.split_once(':')?;
        let at = Path::new(fields.get(4)?);
        mounts.iter().any(|m| m == at).then(|| minor.parse().ok())?
    };
    table.lines().filter_map(one).collect()
}

/// Looks at clients until its end, on a thread of its own.
pub struct PagingWatch {
    stop: Sender<()>,
    looks: Option<JoinHandle<Vec<Paging>>>,
}

impl PagingWatch {
    /// From now on, of these processes, each with what a user knows it by. Of one that takes no requests nothing is told. `mounts` are
    /// theirs, as the kernel names them.
    pub fn begin(clients: Vec<(u32, String)>, mounts: Vec<PathBuf>) -> PagingWatch {
        let (stop, stopped) = channel();
        let look = move || {
            let begun = crate::clock::now();
            let first: Vec<_> = clients.iter().map(|(pid, _)| takers(*pid)).collect();
            let mut awake = vec![0_u32; clients.len()];
            let (mut looks, mut waited) = (0_u32, None::<bool>);
            loop {
                looks += 1;
                for (n, (pid, _)) in awake.iter_mut().zip(&clients) {
                    *n += u32::from(takers(*pid).values().any(|t| t.is_awake));
                }
                if let Some(n) = requests(&mounts) {
                    waited = Some(waited.unwrap_or(false) || n > 0);
                }
                if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            let s = crate::clock::now().duration_since(begun).as_secs_f64();
            let all = clients.into_iter().zip(first).zip(awake);
            let told = all.map(|(((pid, client), first), awake)| {
                let before = |tid: &u32| first.get(tid).map_or(0, |t| t.faults);
                let faults = takers(pid).into_iter();
                let faults = faults.map(|(tid, t)| t.faults.saturating_sub(before(&tid)));
                let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
                Paging {
                    client,
                    awake: f64::from(awake) / f64::from(looks),
                    faults_per_s: faults.sum::<u64>() as f64 / s.max(1e-9),
                    swapped_bytes: swapped_bytes(&status.unwrap_or_default()),
                    requests: waited,
                }
            });
            told.collect()
        };
        PagingWatch {
            stop,
            looks: crate::clock::spawn("pages", look).ok(),
        }
    }

    /// Until now.
    pub fn end(self) -> Vec<Paging> {
        let _ = self.stop.send(());
        let looked = self.looks.and_then(|t| t.join().ok());
        looked.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_take_requests_are_read() {
        let stat = |name: &str, state: &str| {
            format!("7 ({name}) {state} 3 7 7 0 -1 4194304 1 1 42 0 100 50 20 10 20 0 1 0 5 6 7")
        };
        let is = |is_awake| {
            Some(Taker {
                is_awake,
                faults: 42,
            })
        };
        assert_eq!(taker(&stat("coral-fuse-3", "D")), is(true));
        assert_eq!(taker(&stat("coral-fuse-0", "S")), is(false));
        assert_eq!(taker(&stat("tokio-rt-worker", "D")), None);
        assert_eq!(
            swapped_bytes("VmRSS:\t 9 kB\nVmSwap:\t     440 kB\n"),
            440 << 10
        );
        assert_eq!(swapped_bytes(""), 0);
        let table = "31 1 0:53 / /mnt rw - fuse.coral x rw\n32 1 0:54 / /mnt/b rw - fuse y rw\n";
        assert_eq!(minors(table, &["/mnt".into()]), [53]);
        assert_eq!(requests(&[]), None);
    }

    #[test]
    fn a_process_that_takes_no_requests_is_never_awake() {
        let me = (std::process::id(), "me".to_owned());
        let told = PagingWatch::begin(vec![me], vec![]).end();
        assert_eq!(
            (told.len(), told[0].awake, told[0].faults_per_s),
            (1, 0.0, 0.0)
        );
    }

    fn client(awake: f64, faults_per_s: f64, requests: Option<bool>) -> Host {
        Host {
            name: "this machine".into(),
            swap_in_per_s: 3000.0,
            paging: vec![Paging {
                client: "process 7 (coral mount)".into(),
                awake,
                faults_per_s,
                swapped_bytes: 5 << 20,
                requests,
            }],
            ..Host::default()
        }
    }

    /// Operations of 1.7 s, the last of which ended 3 s ago: since then nobody has taken what the programs asked for.
    #[test]
    fn a_client_whose_pages_are_on_disk_is_no_load_that_has_ended() {
        let judged = |h: Host, quiet_s: f64| {
            super::super::explain(&Facts {
                window_s: 1.7,
                under_way: 1.0,
                ops: vec![super::super::OpKind {
                    op: "CREATE".into(),
                    count: 500,
                    seconds: 1.7,
                }],
                quiet_s,
                hosts: vec![h],
                ..Facts::default()
            })
        };
        for requests in [None, Some(true)] {
            let v = judged(client(0.97, 60.0, requests), 3.0);
            let told = "verdict: swapping (this machine)\n1. swapping (this machine): 64% of the time\n   no operation has ended for 3.00 s; 3000 pages/s come back from swap, and the threads of process 7 (coral mount) that take requests were not asleep 97% of the time, and waited for 60 of their pages in a second; 5.0 MiB of it are in swap\n";
            assert!(v.to_string().contains(told), "{v}");
        }
        // the load is over, and the machine swaps for others
        assert!(judged(client(0.02, 0.0, None), 3.0).causes.is_empty());
        assert!(
            judged(client(0.97, 60.0, Some(false)), 3.0)
                .causes
                .is_empty()
        );
        let few = Host {
            swap_in_per_s: 5.0,
            ..client(0.97, 60.0, None)
        };
        assert!(judged(few, 3.0).causes.is_empty());
        // operations end: the share of their time tells
        assert!(judged(client(0.97, 60.0, None), 0.01).causes.is_empty());
        let none = super::super::explain(&Facts {
            quiet_s: f64::INFINITY,
            hosts: vec![client(0.97, 60.0, None)],
            ..Facts::default()
        });
        assert_eq!(
            (none.unknown.as_deref(), none.causes.len()),
            (None, 1),
            "{none}"
        );
        assert!(
            none.next.starts_with("give this machine more memory"),
            "{none}"
        );
    }
}
