//! This machine, watched for a while: how busy it is, who keeps it busy, and how long Coral waits for a processor.
//!
//! # Invariants
//! - Processes of Coral, what this process has started, and what has a mount in use count as Coral with its load. All others are
//!   other programs.
//! - What a child took that has ended counts for who has waited for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::facts::Host;
use crate::collect::{Host as Machine, Reading, Source};

/// Clock ticks in a second, as `/proc` counts CPU time.
const USER_HZ: f64 = 100.0;
/// Cores below which nobody is asked what files a process has open.
const NOTICED: f64 = 0.05;

/// Processors from one moment on.
pub struct Processors {
    begun: Instant,
    busy_s: f64,
    programs: BTreeMap<u32, Program>,
    waited_ns: BTreeMap<(u32, u32), u64>,
}

/// Who used processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    /// Cores that Coral and its load took.
    pub ours: f64,
    /// Cores that other programs took, also those that cannot be seen from here.
    pub others: f64,
    /// The one that took most of them, if it can be seen.
    pub other: Option<String>,
    /// Seconds in a second that threads of Coral's processes waited for a processor.
    pub cpu_wait: f64,
}

/// A process, as it was at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
struct Program {
    name: String,
    parent: u32,
    is_coral: bool,
    /// CPU seconds, with those of children that have ended.
    cpu_s: f64,
}

impl Processors {
    /// From now on.
    pub fn begin() -> Processors {
        Processors {
            begun: crate::clock::now(),
            busy_s: busy_s(),
            programs: programs(),
            waited_ns: cpu_waits_ns(),
        }
    }

    /// Until now. What has files open below `mounts` is load.
    pub fn end(self, mounts: &[PathBuf]) -> Used {
        let s = crate::clock::now().duration_since(self.begun).as_secs_f64();
        let busy = busy_s() - self.busy_s;
        let waited: u64 = (cpu_waits_ns().iter())
            .map(|(t, ns)| ns.saturating_sub(self.waited_ns.get(t).copied().unwrap_or(*ns)))
            .sum();
        let mounts: Vec<PathBuf> = mounts
            .iter()
            .filter_map(|m| m.canonicalize().ok())
            .collect();
        let uses = |pid: u32| uses(pid, &mounts);
        let mut used = shared_out(&self.programs, &programs(), s, std::process::id(), uses);
        let unseen = busy / s.max(1e-9) - used.ours - used.others;
        used.others += unseen.max(0.0);
        used.cpu_wait = waited as f64 / 1e9 / s.max(1e-9);
        used
    }
}

/// Whose the CPU time between two moments was; `me` is this process.
fn shared_out(
    before: &BTreeMap<u32, Program>,
    after: &BTreeMap<u32, Program>,
    seconds: f64,
    me: u32,
    uses_a_mount: impl Fn(u32) -> bool,
) -> Used {
    let cores = |pid: &u32, p: &Program| {
        // A child that was there before, and has ended, is in what its parent has now.
        let gone = (before.iter()).filter(|(c, b)| b.parent == *pid && !after.contains_key(c));
        let was = before.get(pid).filter(|b| b.parent == p.parent);
        let was = was.map_or(0.0, |b| b.cpu_s) + gone.map(|(_, b)| b.cpu_s).sum::<f64>();
        (p.cpu_s - was).max(0.0) / seconds.max(1e-9)
    };
    let started_here = |pid: u32| {
        let mut at = pid;
        // A chain of parents ends: pids do not repeat in it unless one was given anew meanwhile.
        for _ in 0..after.len() {
            match after.get(&at) {
                _ if at == me => return true,
                Some(p) => at = p.parent,
                None => return false,
            }
        }
        false
    };
    let mut used = Used::default();
    let mut others: BTreeMap<&str, f64> = BTreeMap::new();
    for (pid, p) in after {
        let took = cores(pid, p);
        if p.is_coral || started_here(*pid) || (took >= NOTICED && uses_a_mount(*pid)) {
            used.ours += took;
        } else {
            used.others += took;
            *others.entry(&p.name).or_default() += took;
        }
    }
    let most = others.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    used.other = most.filter(|m| m.1 >= NOTICED).map(|m| m.0.to_owned());
    used
}

/// This machine, watched while `wait` waits. What has files open below `mounts` is load.
pub fn this_host(mounts: &[PathBuf], wait: impl FnOnce()) -> Host {
    let mut machine = Machine::new(false);
    let mut missing = Vec::new();
    let begun = crate::clock::now();
    let before = machine.read(&mut missing);
    let processors = Processors::begin();
    wait();
    let used = processors.end(mounts);
    let after = machine.read(&mut missing);
    let s = crate::clock::now().duration_since(begun).as_secs_f64();
    let value =
        |of: &[Reading], name: &str| of.iter().find(|r| r.name == name).map_or(0.0, |r| r.value);
    let rate = |name: &str| (value(&after, name) - value(&before, name)) / s.max(1e-9);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    Host {
        name: "this machine".to_owned(),
        busiest_core: value(&after, "busiest_core"),
        cores: rate("cpu_busy") / count as f64,
        core_count: count as u32,
        swap_in_per_s: rate("swap_in"),
        cpu_wait: used.cpu_wait,
        ours: used.ours,
        others: used.others,
        other: used.other,
    }
}

fn numbers(dir: String) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
}

/// Seconds that all processors have run programs, and the kernel for them; without interrupts, which are nobody's.
fn busy_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default().split_whitespace();
    all.skip(1)
        .take(3)
        .filter_map(|n| n.parse::<f64>().ok())
        .sum::<f64>()
        / USER_HZ
}

fn programs() -> BTreeMap<u32, Program> {
    let one = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, program(&stat, is_coral(pid))?))
    };
    numbers("/proc".to_owned()).filter_map(one).collect()
}

/// What `/proc/PID/stat` says.
fn program(stat: &str, is_coral: bool) -> Option<Program> {
    let (front, rest) = stat.rsplit_once(") ")?;
    let (_, name) = front.split_once('(')?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some(Program {
        name: name.to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        is_coral,
        cpu_s: (ticks(11)? + ticks(12)? + ticks(13)? + ticks(14)?) / USER_HZ,
    })
}

/// Whether it is a Coral process: of a program of that name, or of this one.
fn is_coral(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    program(&pid.to_string()).is_some_and(|p| {
        p.file_name().is_some_and(|n| n == "coral") || program("self").is_some_and(|own| own == p)
    })
}

/// Whether it works in a directory, or has a file open, below one of `mounts`.
fn uses(pid: u32, mounts: &[PathBuf]) -> bool {
    let below = |link: PathBuf| {
        let to = std::fs::read_link(link);
        to.is_ok_and(|to| mounts.iter().any(|m| to.starts_with(m)))
    };
    let dir = Path::new("/proc").join(pid.to_string());
    let files = std::fs::read_dir(dir.join("fd"));
    let mut files = files.into_iter().flatten().flatten();
    !mounts.is_empty() && (below(dir.join("cwd")) || files.any(|f| below(f.path())))
}

/// Nanoseconds that each thread of a Coral process of this user has waited for a processor.
fn cpu_waits_ns() -> BTreeMap<(u32, u32), u64> {
    let mut all = BTreeMap::new();
    for pid in numbers("/proc".to_owned()).filter(|pid| is_coral(*pid)) {
        for tid in numbers(format!("/proc/{pid}/task")) {
            let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat"));
            let waited = text.ok().and_then(|t| t.split(' ').nth(1)?.parse().ok());
            all.insert((pid, tid), waited.unwrap_or(0));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(all: &[(u32, u32, &str, f64)]) -> BTreeMap<u32, Program> {
        let one = |(pid, parent, name, cpu_s): &(u32, u32, &str, f64)| {
            let program = Program {
                name: (*name).to_owned(),
                parent: *parent,
                is_coral: *name == "coral",
                cpu_s: *cpu_s,
            };
            (*pid, program)
        };
        all.iter().map(one).collect()
    }

    /// A compiler beside Coral, whose children come and go; a load that this process has started, and one that has not.
    #[test]
    fn processors_are_shared_out_among_coral_its_load_and_others() {
        let before = at(&[
            (1, 0, "init", 5.0),
            (10, 1, "cargo", 100.0),
            (11, 10, "rustc", 30.0),
            (20, 1, "coral", 7.0),
            (30, 1, "lab", 1.0),
            (40, 1, "dd", 2.0),
        ]);
        let after = at(&[
            (1, 0, "init", 5.0),
            // the rustc of before has ended after two more seconds, and there is another one
            (10, 1, "cargo", 132.0),
            (12, 10, "rustc", 1.0),
            (20, 1, "coral", 7.5),
            (30, 1, "lab", 1.0),
            (31, 30, "fio", 0.25),
            (40, 1, "dd", 2.25),
        ]);
        let used = shared_out(&before, &after, 2.0, 30, |pid| pid == 40);
        assert_eq!((used.ours, used.others), (0.5, 1.5));
        assert_eq!(used.other.as_deref(), Some("cargo"));
    }

    #[test]
    fn this_machine_is_watched() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194304 1 1 0 0 100 50 20 10 20 0 1 0 5 6 7";
        let p = program(stat, false).unwrap();
        assert_eq!((p.name.as_str(), p.parent, p.cpu_s), ("a) b", 3, 1.8));
        let mine = std::process::id();
        let here = std::env::current_dir().unwrap();
        assert!(uses(mine, &[here]) && !uses(mine, &[]) && !uses(mine, &["/no".into()]));
        let host = this_host(&[], || {});
        assert!(host.core_count > 0 && host.swap_in_per_s >= 0.0);
        assert!(host.ours >= 0.0 && host.others >= 0.0);
    }
}
