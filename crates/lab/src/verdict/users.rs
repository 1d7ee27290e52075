//! Programs that use mounts: looked for again and again, because one that opens a file only now and then has none open at many
//! a moment.
//!
//! # Invariants
//! - A program that was seen once counts for the whole time.
//! - Looking takes at most one part in [`IDLE_TIMES`] of a core. Where a program sleeps nobody looks at it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::machine::{Program, programs};

/// A pause is so many times as long as the look before it.
const IDLE_TIMES: u32 = 50;

/// Who uses the mounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct InUse {
    /// Programs.
    pub(super) programs: BTreeSet<u32>,
    /// Whoever started them, and who started that: what their children took that have ended is load too, as of a shell that runs
    /// short commands one after the other.
    pub(super) parents: BTreeSet<u32>,
    /// Threads that waited in the kernel for the lock of a directory, of all looks together.
    pub(super) waits: u64,
    /// Looks.
    pub(super) looks: u64,
}

impl InUse {
    /// Threads that waited at once in the kernel for the lock of a directory below the mounts, in the mean; None: it cannot be seen.
    pub(super) fn lock_waiters(&self) -> Option<f64> {
        let is_seen = self.looks > 0 && (self.waits > 0 || shows_waits());
        is_seen.then(|| self.waits as f64 / self.looks as f64)
    }

    /// Takes in who waits now: of programs that have one thread that is known by the look at it.
    fn look_at_waits(&mut self, now: &BTreeMap<u32, Program>, waits: impl Fn(u32) -> u64) {
        let some = now.iter().filter(|(_, p)| p.is_blocked || p.threads > 1);
        self.waits += some.map(|(pid, _)| waits(*pid)).sum::<u64>();
        self.looks += 1;
    }
}

/// Looks on a thread of its own until its end.
pub(super) struct Users {
    stop: Sender<()>,
    looks: Option<JoinHandle<InUse>>,
}

impl Users {
    /// From now on, with pauses of `least` at least. Without mounts nobody uses any. They are given as the kernel names them: asking
    /// for that here would be an operation on what is measured.
    pub(super) fn watch(mounts: &[PathBuf], least: Duration) -> Users {
        let mounts = mounts.to_vec();
        let mounts_count = mounts.len();
        let (stop, stopped) = channel();
        let look = move || {
            let (first, mut in_use) = (programs(), InUse::default());
            loop {
                let begun = crate::clock::now();
                let now = programs();
                in_use.look(&first, &now, |pid| uses(pid, &mounts));
                in_use.look_at_waits(&now, |pid| lock_waits(pid, &mounts));
                let took = crate::clock::now().duration_since(begun);
                let pause = stopped.recv_timeout(least.max(took * IDLE_TIMES));
                if pause != Err(RecvTimeoutError::Timeout) {
                    in_use.look(&first, &programs(), |pid| uses(pid, &mounts));
                    return in_use;
                }
            }
        };
        let looks = match mounts_count {
            0 => None,
            _ => crate::clock::spawn("users", look).ok(),
        };
        Users { stop, looks }
    }

    /// Until now.
    pub(super) fn end(self) -> InUse {
        let _ = self.stop.send(());
        let looked = self.looks.and_then(|t| t.join().ok());
        looked.unwrap_or_default()
    }
}

impl InUse {
    /// Takes in who uses a mount now, of those that have run since `first`.
    fn look(
        &mut self,
        first: &BTreeMap<u32, Program>,
        now: &BTreeMap<u32, Program>,
        uses: impl Fn(u32) -> bool,
    ) {
        for (pid, p) in now {
            let has_run = first.get(pid).is_none_or(|f| f.all_s() < p.all_s());
            if !has_run || self.programs.contains(pid) || !uses(*pid) {
                continue;
            }
            self.programs.insert(*pid);
            let mut above = p.parent;
            // The first process is everybody's ancestor. Pids do not repeat in a chain unless one was given anew meanwhile.
            while above > 1 && self.parents.insert(above) {
                above = now.get(&above).map_or(0, |p| p.parent);
            }
        }
    }
}

/// Where the kernel waits for the lock of a directory or a file: in the lock itself, or in what takes it, where it has no frame of its
/// own (`fs/namei.c`).
const LOCKS: [&str; 7] = [
    "rwsem",
    "path_openat",
    "filename_create",
    "unlinkat",
    "rmdir",
    "rename",
    "lookup",
];
/// Longest path that a program gives to a system call.
const PATH_MAX: usize = 4096;

/// Whether it can be seen for what other processes wait in the kernel.
fn shows_waits() -> bool {
    let parent = std::os::unix::process::parent_id();
    let at = std::fs::read_to_string(format!("/proc/{parent}/wchan"));
    at.is_ok_and(|at| !at.is_empty() && at != "0")
}

/// Threads of a process that wait for one of the kernel's locks with a path below one of `mounts`.
fn lock_waits(pid: u32, mounts: &[PathBuf]) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let waits = |task: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        let stat = read("stat")?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let at = rest.starts_with('D').then(|| read("wchan"))??;
        LOCKS.iter().find(|l| at.contains(**l))?;
        let path = path_in_call(pid, &read("syscall")?)?;
        mounts.iter().find(|m| path.starts_with(m))
    };
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(waits).count() as u64
}

/// The path that a thread has given to the system call in which it is: its first or its second argument, which a descriptor of a
/// directory may precede.
fn path_in_call(pid: u32, call: &str) -> Option<PathBuf> {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let arguments: Vec<u64> = call.split(' ').skip(1).take(2).map_while(number).collect();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let text = |at: u64| {
        let mut bytes = vec![0; PATH_MAX];
        // Short where the page behind it is not there.
        let len = memory.read_at(&mut bytes, at).ok()?;
        let end = bytes[..len].iter().position(|b| *b == 0)?;
        bytes.truncate(end);
        (end > 0).then(|| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
    };
    let (first, second) = (*arguments.first()?, arguments.get(1));
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
    match text(first) {
        Some(path) => Some(link("cwd")?.join(path)),
        None => {
            let path = text(*second?)?;
            let of = link(&format!("fd/{first}")).or_else(|| link("cwd"))?;
            Some(of.join(path))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_directory_is_used_by_who_works_in_it() {
        let mine = std::process::id();
        let here = std::env::current_dir().unwrap();
        assert!(uses(mine, &[here]) && !uses(mine, &[]) && !uses(mine, &["/no".into()]));
    }

    /// It has a file open for a part of the time only, and has none open when the watch ends.
    #[test]
    fn who_opens_a_file_now_and_then_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        // It says when it has opened and closed the file, and spins between.
        let body = "n=0; while read go; do exec 3<\"$0\"; while [ $n -lt 20000 ]; do n=$((n+1)); done; exec 3<&-; n=0; echo done; done";
        let mut opener = Command::new("sh");
        let opener = opener.args(["-c", body]).arg(&file);
        let opener = opener.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut opener = Ended(opener.spawn().unwrap());
        let pid = opener.0.id();
        let mut go = opener.0.stdin.take().unwrap();
        let mut said = std::io::BufReader::new(opener.0.stdout.take().unwrap());
        let mounts = [dir.path().canonicalize().unwrap()];
        let mut seen = false;
        // Not every time: the thread that looks may get no processor while the file is open.
        for _ in 0..200 {
            let users = Users::watch(&mounts, Duration::from_millis(1));
            for _ in 0..5 {
                std::io::Write::write_all(&mut go, b"go\n").unwrap();
                std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
            }
            assert!(!uses(pid, &mounts), "it has closed the file");
            let in_use = users.end();
            if in_use.programs.contains(&pid) {
                assert!(in_use.parents.contains(&std::process::id()));
                seen = true;
                break;
            }
        }
        assert!(seen);
    }

    /// Two looks at programs with one thread and with several.
    #[test]
    fn threads_that_wait_for_a_directory_are_counted() {
        let program = |threads, is_blocked| Program {
            threads,
            is_blocked,
            ..Program::default()
        };
        let all = [
            (5, program(8, false)),
            (6, program(1, true)),
            (7, program(1, false)),
        ];
        let all: BTreeMap<u32, Program> = all.into();
        let mut in_use = InUse::default();
        assert_eq!(in_use.lock_waiters(), None, "nobody has looked");
        in_use.look_at_waits(&all, |pid| if pid == 7 { 99 } else { u64::from(pid) - 3 });
        in_use.look_at_waits(&all, |_| 0);
        assert_eq!(in_use.lock_waiters(), Some(2.5));
        assert_eq!(lock_waits(std::process::id(), &["/".into()]), 0);
    }

    /// As the kernel shows the calls of this process, with the paths where they are.
    #[test]
    fn the_path_of_a_system_call_is_read() {
        let mine = std::process::id();
        let (path, name) = (c"/mnt/d/f".as_ptr() as usize, c"sub/f".as_ptr() as usize);
        let here = std::env::current_dir().unwrap();
        let of = |call: &str| path_in_call(mine, call).map(|p| p.display().to_string());
        assert_eq!(
            of(&format!("85 {path:#x} 0x1a4 0x0")).as_deref(),
            Some("/mnt/d/f")
        );
        let below = here.join("sub/f").display().to_string();
        let cwd = "0xffffffffffffff9c";
        assert_eq!(
            of(&format!("257 {cwd} {name:#x} 0x42 0x1a4")),
            Some(below.clone())
        );
        assert_eq!(of(&format!("83 {name:#x} 0x1ff")), Some(below));
        let dir = std::fs::File::open("/proc").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
        let of_dir = of(&format!("258 {fd:#x} {name:#x} 0x1ff"));
        assert_eq!(of_dir.as_deref(), Some("/proc/sub/f"));
        assert_eq!((of("running"), of("202 0x0 0x0")), (None, None));
    }

    #[test]
    fn who_sleeps_is_not_looked_at_and_once_seen_is_seen() {
        let program = |parent, cpu_s| Program {
            parent,
            cpu_s,
            ..Program::default()
        };
        let all = |cpu_s: f64| -> BTreeMap<u32, Program> {
            let all = [
                (1, program(0, 9.0)),
                (5, program(1, 1.0)),
                (6, program(5, 1.0)),
                (7, program(6, cpu_s)),
                (8, program(1, 3.0)),
            ];
            all.into()
        };
        let mut in_use = InUse::default();
        in_use.look(&all(0.0), &all(0.0), |_| true);
        assert_eq!(in_use, InUse::default(), "nobody has run");
        in_use.look(&all(0.0), &all(0.5), |pid| pid == 7);
        in_use.look(&all(0.0), &all(0.5), |_| false);
        assert_eq!(in_use.programs, [7].into());
        assert_eq!(in_use.parents, [5, 6].into(), "and not the first process");
    }
}
