//! This machine, watched for a while: how busy it is, who keeps it busy, and how long Coral waits for a processor.
//!
//! # Invariants
//! - Processes of Coral, what this process has started, and what had a mount in use at any time count as Coral with its load.
//!   All others are other programs.
//! - What a child took that has ended counts for who has waited for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::facts::Host;
use super::users::{InUse, Users};
use crate::collect::{Cores, Host as Machine, Reading, Source};

/// Clock ticks in a second, as `/proc` counts CPU time.
const USER_HZ: f64 = 100.0;
/// Cores below which a program is not worth a name.
const NOTICED: f64 = 0.05;
/// Least pause between two looks at who uses a mount, where nothing is measured meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Processors from one moment on.
pub struct Processors {
    begun: Instant,
    busy_s: f64,
    cores: Cores,
    programs: BTreeMap<u32, Program>,
    waited_ns: BTreeMap<(u32, u32), u64>,
    users: Users,
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
    /// Share of the whole time that the core was busy that was busiest in it.
    pub busiest_core: f64,
    /// Threads that waited in the kernel for the lock of a directory or a file, as [`Host::lock_waiters`] has it.
    pub lock_waiters: Option<f64>,
}

impl Used {
    /// This machine, of which so many cores were busy, and which read so much from swap in a second.
    pub(crate) fn here(self, busy_cores: f64, swap_in_per_s: f64) -> Host {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        Host {
            name: "this machine".to_owned(),
            busiest_core: self.busiest_core,
            // Processors and their time are counted one after the other.
            cores: (busy_cores / count as f64).min(1.0),
            core_count: count as u32,
            swap_in_per_s,
            cpu_wait: self.cpu_wait,
            ours: self.ours,
            others: self.others,
            other: self.other,
            lock_waiters: self.lock_waiters,
            paging: vec![],
        }
    }

    /// So many cores were busy. What nobody was seen to take others took. More than all were busy is taken together where a process
    /// waits for one that it has taken in from another, as the first process does: then all that one ever took is counted at once.
    fn within(&mut self, busy: f64) {
        self.ours = self.ours.min(busy);
        self.others = busy - self.ours;
    }
}

/// A process, as it was at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) parent: u32,
    pub(super) is_coral: bool,
    /// Its first thread waits in the kernel, and no signal ends that.
    pub(super) is_blocked: bool,
    /// Its threads.
    pub(super) threads: u32,
    /// When it was started, in clock ticks: with its pid it tells it from all others.
    pub(super) begun: u64,
    /// CPU seconds of its own.
    pub(super) cpu_s: f64,
    /// CPU seconds of its children that have ended.
    pub(super) children_s: f64,
}

impl Program {
    /// CPU seconds with those of children.
    pub(super) fn all_s(&self) -> f64 {
        self.cpu_s + self.children_s
    }
}

impl Processors {
    /// From now on. What has files open below `mounts`, or had, is load; it is looked for with pauses of `pause` at least. Mounts are
    /// named as the kernel names them.
    pub fn begin(mounts: &[PathBuf], pause: Duration) -> Processors {
        let users = Users::watch(mounts, pause);
        let (programs, waited_ns) = (programs(), cpu_waits_ns());
        // Last, because what comes before keeps a core busy for a while.
        let mut cores = Cores::default();
        cores.busiest(&stat());
        Processors {
            begun: crate::clock::now(),
            busy_s: busy_s(),
            cores,
            programs,
            waited_ns,
            users,
        }
    }

    /// Until now.
    pub fn end(mut self) -> Used {
        let s = crate::clock::now().duration_since(self.begun).as_secs_f64();
        let busy = busy_s() - self.busy_s;
        let busiest_core = self.cores.busiest(&stat());
        let waited: u64 = (cpu_waits_ns().iter())
            .map(|(t, ns)| ns.saturating_sub(self.waited_ns.get(t).copied().unwrap_or(*ns)))
            .sum();
        let in_use = self.users.end();
        let mut used = shared_out(&self.programs, &programs(), s, std::process::id(), &in_use);
        used.within(busy / s.max(1e-9));
        used.cpu_wait = waited as f64 / 1e9 / s.max(1e-9);
        used.busiest_core = busiest_core.unwrap_or(0.0);
        used.lock_waiters = in_use.lock_waiters();
        used
    }
}

/// CPU seconds, from before the first moment, of children of `pid` that were there then and have ended: these are in what it has now.
/// So are those of their children that have ended as well.
fn gone_s(before: &BTreeMap<u32, Program>, after: &BTreeMap<u32, Program>, pid: u32) -> f64 {
    let (mut sum, mut parents, mut left) = (0.0, vec![pid], before.len());
    while let (Some(parent), true) = (parents.pop(), left > 0) {
        let is_gone = |(c, b): &(&u32, &Program)| b.parent == parent && !is_there(after, **c, b);
        for (child, b) in before.iter().filter(is_gone) {
            sum += b.all_s();
            parents.push(*child);
            left = left.saturating_sub(1);
        }
    }
    sum
}

/// Whether the process is there still, and not another one that was given its pid.
fn is_there(after: &BTreeMap<u32, Program>, pid: u32, was: &Program) -> bool {
    let now = after.get(&pid);
    now.is_some_and(|p| p.begun == was.begun)
}

/// Whose the CPU time between two moments was; `me` is this process.
fn shared_out(
    before: &BTreeMap<u32, Program>,
    after: &BTreeMap<u32, Program>,
    seconds: f64,
    me: u32,
    in_use: &InUse,
) -> Used {
    // Cores of a program itself, and of its children that have ended.
    let cores = |pid: &u32, p: &Program| {
        let gone = gone_s(before, after, *pid);
        let was = before.get(pid).filter(|b| b.begun == p.begun);
        let (own, children) = was.map_or((0.0, 0.0), |b| (b.cpu_s, b.children_s));
        let in_a_second = |s: f64| s.max(0.0) / seconds.max(1e-9);
        (
            in_a_second(p.cpu_s - own),
            in_a_second(p.children_s - children - gone),
        )
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
        let (own, children) = cores(pid, p);
        let is_ours = p.is_coral || started_here(*pid);
        let is_load = is_ours || in_use.programs.contains(pid);
        let has_load = is_load || in_use.parents.contains(pid);
        for (took, is_ours) in [(own, is_load), (children, has_load)] {
            if is_ours {
                used.ours += took;
            } else {
                used.others += took;
                *others.entry(&p.name).or_default() += took;
            }
        }
    }
    let most = others.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    used.other = most.filter(|m| m.1 >= NOTICED).map(|m| m.0.to_owned());
    used
}

/// This machine, watched while `wait` waits. What has files open below `mounts`, or had meanwhile, is load.
pub fn this_host(mounts: &[PathBuf], wait: impl FnOnce()) -> Host {
    let mut machine = Machine::new(false);
    let mut missing = Vec::new();
    let begun = crate::clock::now();
    let before = machine.read(&mut missing);
    let processors = Processors::begin(mounts, LOOK_PAUSE);
    wait();
    let used = processors.end();
    let after = machine.read(&mut missing);
    let s = crate::clock::now().duration_since(begun).as_secs_f64();
    let value =
        |of: &[Reading], name: &str| of.iter().find(|r| r.name == name).map_or(0.0, |r| r.value);
    let rate = |name: &str| (value(&after, name) - value(&before, name)) / s.max(1e-9);
    used.here(rate("cpu_busy"), rate("swap_in"))
}

fn numbers(dir: String) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
}

fn stat() -> String {
    std::fs::read_to_string("/proc/stat").unwrap_or_default()
}

/// Seconds that all processors have run programs, and the kernel for them; without interrupts, which are nobody's.
fn busy_s() -> f64 {
    let text = stat();
    let all = text.lines().next().unwrap_or_default().split_whitespace();
    all.skip(1)
        .take(3)
        .filter_map(|n| n.parse::<f64>().ok())
        .sum::<f64>()
        / USER_HZ
}

pub(super) fn programs() -> BTreeMap<u32, Program> {
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
        is_blocked: fields.first() == Some(&"D"),
        threads: fields.get(17)?.parse().ok()?,
        begun: fields.get(19)?.parse().ok()?,
        cpu_s: (ticks(11)? + ticks(12)?) / USER_HZ,
        children_s: (ticks(13)? + ticks(14)?) / USER_HZ,
    })
}

/// Whether it is a Coral process: of a program of that name, or of this one.
fn is_coral(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    program(&pid.to_string()).is_some_and(|p| {
        p.file_name().is_some_and(|n| n == "coral") || program("self").is_some_and(|own| own == p)
    })
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
            let children_s = if *name == "cargo" || *name == "sh" {
                *cpu_s
            } else {
                0.0
            };
            let program = Program {
                name: (*name).to_owned(),
                parent: *parent,
                is_coral: *name == "coral",
                is_blocked: false,
                threads: 1,
                begun: 0,
                cpu_s: cpu_s - children_s,
                children_s,
            };
            (*pid, program)
        };
        all.iter().map(one).collect()
    }

    /// What `cargo` and `sh` took, their children did. A compiler beside Coral, whose children come and go; a load that this process has started, and one that has not.
    #[test]
    fn processors_are_shared_out_among_coral_its_load_and_others() {
        let before = at(&[
            (1, 0, "init", 5.0),
            (10, 1, "cargo", 100.0),
            (11, 10, "rustc", 30.0),
            (20, 1, "coral", 7.0),
            (30, 1, "lab", 1.0),
            (40, 1, "dd", 2.0),
            (50, 1, "sh", 1.0),
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
            (50, 1, "sh", 1.75),
        ]);
        let in_use = InUse {
            programs: [40].into(),
            parents: [50].into(),
            ..InUse::default()
        };
        let used = shared_out(&before, &after, 2.0, 30, &in_use);
        assert_eq!((used.ours, used.others), (0.875, 1.5));
        assert_eq!(used.other.as_deref(), Some("cargo"));
        let unseen = shared_out(&before, &after, 2.0, 30, &InUse::default());
        assert_eq!((unseen.ours, unseen.others), (0.375, 2.0));
    }

    /// A shell has waited for `make`, which had waited for a compiler: all three took their time long before.
    #[test]
    fn what_grandchildren_took_before_is_not_of_this_second() {
        let one = |parent, begun, cpu_s, children_s| Program {
            name: "p".into(),
            parent,
            is_coral: false,
            is_blocked: false,
            threads: 1,
            begun,
            cpu_s,
            children_s,
        };
        let before: BTreeMap<u32, Program> = [
            (10, one(1, 1, 0.0, 1.0)),
            (11, one(10, 2, 0.5, 20.0)),
            (12, one(11, 3, 40.0, 0.0)),
            (13, one(11, 4, 30.0, 0.0)),
        ]
        .into();
        // another process has the pid 13 now; they have taken half a second more
        let after: BTreeMap<u32, Program> =
            [(10, one(1, 1, 0.0, 92.0)), (13, one(1, 9, 0.25, 0.0))].into();
        let used = shared_out(&before, &after, 1.0, 99, &InUse::default());
        assert_eq!((used.ours, used.others), (0.0, 0.75));
    }

    #[test]
    fn no_more_is_taken_than_was_busy() {
        for (seen, is) in [
            ((0.5, 0.5), (0.5, 1.5)),
            ((0.5, 4.0), (0.5, 1.5)),
            ((3.0, 1.0), (2.0, 0.0)),
        ] {
            let (ours, others) = seen;
            let mut used = Used {
                ours,
                others,
                ..Used::default()
            };
            used.within(2.0);
            assert_eq!((used.ours, used.others), is);
        }
    }

    #[test]
    fn this_machine_is_watched() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194304 1 1 0 0 100 50 20 10 20 0 1 0 5 6 7";
        let p = program(stat, false).unwrap();
        assert_eq!((p.name.as_str(), p.parent), ("a) b", 3));
        assert_eq!((p.cpu_s, p.children_s), (1.5, 0.3));
        let host = this_host(&[], || {});
        assert!(host.core_count > 0 && host.swap_in_per_s >= 0.0);
        assert!(host.ours >= 0.0 && host.others >= 0.0);
    }
}
