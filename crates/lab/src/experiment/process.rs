//! Running the commands of a step, all from one instant.
//!
//! Each command is a shell that waits for a line and then becomes the program. All wait at the same pipe, so that one write
//! releases all of them at once, after the time that starting processes takes. Beside each, in its process group, another shell
//! waits for the end of the laboratory and kills the group then: what a command has started ends with a laboratory that is killed.
//! When the commands have ended, or are ended, the laboratory itself kills their groups: what they left in the background ends too.
//! The guards are members until then, so that the number of a group is no other group's. What leaves its group, as a daemon does,
//! goes on.

use crate::clock;
use crate::load::launch::RECORD;
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Ticks per second of the times in /proc: USER_HZ, which is 100 on every architecture that Coral is built for.
const USER_HZ: f64 = 100.0;
/// Between looks at whether time is up.
const LOOK: Duration = Duration::from_millis(50);
/// Commands end together where no more than this lies between their ends.
const APART: Duration = Duration::from_millis(150);
/// How long what was killed may take to end. A process that waits in the kernel, as for a mount whose server is gone, ends no sooner
/// than its wait.
const KILLED: Duration = Duration::from_secs(20);
/// How long a program may take that the laboratory asks for something: as long as starting a file system may take.
const ANSWER: Duration = Duration::from_secs(600);
/// Waits for the start, then becomes the command. Without a start the laboratory is gone.
const HELD: &str = "read _ && exec \"$@\" </dev/null";
/// Says that it is there, and waits for the laboratory to let it go, or to be gone. It stays when the group is told to end: what
/// does not obey is killed with it.
const GUARD: &str = "trap '' TERM INT HUP; echo; read _ || kill -KILL 0";

/// A command to be run.
#[derive(Debug, Clone)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where its output goes.
    pub stdout: PathBuf,
    /// Where its errors go.
    pub stderr: PathBuf,
    /// Where a load generator leaves its record.
    pub record: Option<PathBuf>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// From the common start to its end, seconds.
    pub seconds: f64,
    /// CPU time of it and its children, seconds.
    pub cpu_s: f64,
    /// It was ended because it took too long.
    pub timed_out: bool,
}

/// What commands that run together have come to.
pub enum Moment<'a> {
    /// They are about to be released; these are their pids.
    Ready(&'a [u32]),
    /// Some have ended, and others have gone on since then for [`APART`]: what all of them did together is over. This comes once.
    Apart,
    /// All have ended, and can be read in /proc still.
    Ended,
}

/// The program exists: a path, or a name on the path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let runs = |p: &Path| rustix::fs::access(p, rustix::fs::Access::EXEC_OK).is_ok() && p.is_file();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|p| runs(p));
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|d| d.join(name))
        .find(|p| runs(p))
}

/// Children that are killed with their groups when this is dropped: a step leaves nothing running, however it ends.
struct Held {
    commands: Vec<Child>,
    guards: Vec<Guard>,
}

/// What kills a process group when the laboratory is gone. It is told by a socket: a write to one that nobody reads is an error there,
/// and no signal that would end this program.
struct Guard {
    shell: Child,
    tell: UnixStream,
}

impl Guard {
    /// The group may go on without the laboratory.
    fn let_go(&self) {
        let _ = send(&self.tell, b"\n", SendFlags::NOSIGNAL);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.let_go();
        reap(&mut self.shell, clock::now() + KILLED);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A command without a guard was not waited for: then it is what keeps the number of the group.
        for c in &self.commands {
            kill_group(c.id());
        }
        self.guards.iter().for_each(Guard::let_go);
        let until = clock::now() + KILLED;
        for c in &mut self.commands {
            reap(c, until);
        }
    }
}

/// Waits for a child that ends by itself, and not forever.
fn reap(child: &mut Child, until: Instant) {
    while matches!(child.try_wait(), Ok(None)) && clock::now() < until {
        clock::pause(LOOK / 10);
    }
}

fn kill_group(leader: u32) {
    if let Some(pid) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Runs `roles` from one instant on, and waits for all. `at` is called right before they are released and when they have ended. What
/// takes longer than `timeout` is killed with its process group; so is everything once `stop` says why, once the laboratory is gone,
/// and what the commands have left in their groups when all have ended.
pub fn run_together(
    roles: &[Role],
    timeout: Duration,
    stop: &dyn Fn() -> Option<String>,
    mut at: impl FnMut(Moment<'_>),
) -> io::Result<Vec<Ended>> {
    let (gate, mut release) = io::pipe()?;
    let mut held = Held {
        commands: vec![],
        guards: vec![],
    };
    for r in roles {
        let command = spawn(r, gate.try_clone()?)?;
        let leader = command.id();
        held.commands.push(command);
        held.guards.push(guard(leader)?);
    }
    let pids: Vec<u32> = held.commands.iter().map(Child::id).collect();
    at(Moment::Ready(&pids));
    if let Some(why) = stop() {
        return Err(io::Error::new(io::ErrorKind::Interrupted, why));
    }
    let begin = clock::now();
    release.write_all(&b"\n".repeat(roles.len()))?;
    let (tx, rx) = mpsc::channel();
    for (i, pid) in pids.iter().copied().enumerate() {
        let tx = tx.clone();
        clock::spawn("lab-wait", move || {
            let _ = tx.send((i, wait(pid, begin)));
        })?;
    }
    let mut ends: Vec<Option<(f64, f64)>> = vec![None; roles.len()];
    let mut timed_out = vec![false; roles.len()];
    let deadline = begin + timeout;
    let (mut killed, mut is_apart) = (None, false);
    while ends.iter().any(Option::is_none) {
        match rx.recv_timeout(LOOK) {
            Ok((i, end)) => ends[i] = Some(end?),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("a command's end was not seen"));
            }
        }
        if let Some(why) = stop() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, why));
        }
        let now = clock::now();
        let first = ends
            .iter()
            .flatten()
            .map(|e| e.0)
            .fold(f64::INFINITY, f64::min);
        let others = ends.iter().any(Option::is_none);
        if !is_apart && others && (now - begin).as_secs_f64() >= first + APART.as_secs_f64() {
            is_apart = true;
            at(Moment::Apart);
        }
        if killed.is_none() && now >= deadline {
            killed = Some(now);
            for i in (0..roles.len()).filter(|i| ends[*i].is_none()) {
                timed_out[i] = true;
                kill_group(pids[i]);
            }
        }
        if killed.is_some_and(|at| now >= at + KILLED) {
            let left = (0..roles.len()).find(|i| ends[*i].is_none());
            return Err(io::Error::other(format!(
                "{} took longer than {} s, was killed and does not end: it waits in the kernel, as for a mount whose server is gone",
                left.map_or("", |i| &roles[i].name),
                timeout.as_secs()
            )));
        }
    }
    at(Moment::Ended);
    let mut out = vec![];
    for (i, c) in held.commands.iter_mut().enumerate() {
        let (seconds, cpu_s) = ends[i].unwrap_or_default();
        out.push(Ended {
            status: c.wait()?,
            seconds,
            cpu_s,
            timed_out: timed_out[i],
        });
    }
    Ok(out)
}

/// Guards the process group of `leader`, which has not been waited for. Returns when the guard is on its post.
fn guard(leader: u32) -> io::Result<Guard> {
    let (tell, told) = UnixStream::pair()?;
    let shell = Command::new("sh")
        .args(["-c", GUARD])
        .stdin(OwnedFd::from(told.try_clone()?))
        .stdout(OwnedFd::from(told))
        .stderr(Stdio::null())
        .process_group(leader as i32)
        .spawn()?;
    let mut guard = Guard { shell, tell };
    guard.tell.read_exact(&mut [0])?;
    Ok(guard)
}

fn spawn(r: &Role, gate: io::PipeReader) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", HELD, "held"])
        .args(&r.command)
        .stdin(gate)
        .stdout(File::create(&r.stdout)?)
        .stderr(File::create(&r.stderr)?)
        .envs(r.record.iter().map(|p| (RECORD, p)))
        .process_group(0)
        .spawn()
}

/// Waits for a child without reaping it, so that its times can still be read.
fn wait(pid: u32, begin: Instant) -> io::Result<(f64, f64)> {
    let id = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("a pid that is none"))?;
    loop {
        match waitid(
            WaitId::Pid(id),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok((seconds, cpu_seconds(&stat).unwrap_or(0.0)))
}

/// User and system time of a process and of the children it waited for, from its line in /proc.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name before may hold anything, also spaces and brackets.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks: f64 = fields
        .get(11..15)?
        .iter()
        .filter_map(|f| f.parse::<f64>().ok())
        .sum();
    Some(ticks / USER_HZ)
}

/// Of intervals from one start: the share of the time until the last end in which all ran.
pub(crate) fn overlap(ends: &[f64]) -> Option<f64> {
    let last = ends.iter().copied().fold(0.0, f64::max);
    let first = ends.iter().copied().fold(f64::INFINITY, f64::min);
    (ends.len() > 1 && last > 0.0).then(|| first / last)
}

/// Runs a command to its end and returns what it printed; an error says what it said.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    output_unless(command, &|| false)
}

/// The same, of a command that is killed with its process group once `stop` says so.
pub(crate) fn output_unless(
    command: &mut Command,
    stop: &dyn Fn() -> bool,
) -> Result<String, String> {
    output_within(command, ANSWER, stop)
}

/// The same, of a command that is killed also after `limit`. It is killed as well when the laboratory is gone; what a command that
/// ended in order has left in its group goes on.
pub(crate) fn output_within(
    command: &mut Command,
    limit: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<String, String> {
    let name = format!("{command:?}");
    let failed = |e: io::Error| format!("{name}: {e}");
    let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = pipes.stdin(Stdio::null()).process_group(0).spawn();
    let child = child.map_err(failed)?;
    let leader = child.id();
    // It is waited for when it has a guard, or else its number may be another's when the group is killed.
    let guard = guard(leader);
    let ended = match &guard {
        Ok(_) => ended_within(child, limit, stop),
        Err(e) => Err(format!("its guard: {e}")),
    };
    if ended.is_err() {
        kill_group(leader);
    }
    let out = ended.map_err(|why| format!("{name}: {why}"))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        let said = [&out.stdout, &out.stderr].map(|b| String::from_utf8_lossy(b).trim().to_owned());
        Err(format!("{name}: {}: {}", out.status, said.join(" ").trim()))
    }
}

/// What a child printed, and how it ended; an error says why that is not known.
fn ended_within(child: Child, limit: Duration, stop: &dyn Fn() -> bool) -> Result<Output, String> {
    let until = clock::now() + limit;
    let (tx, rx) = mpsc::channel();
    let wait = move || {
        let _ = tx.send(child.wait_with_output());
    };
    clock::spawn("lab-output", wait).map_err(|e| e.to_string())?;
    loop {
        match rx.recv_timeout(LOOK) {
            Ok(out) => return out.map_err(|e| e.to_string()),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err("its end was not seen".into()),
            Err(mpsc::RecvTimeoutError::Timeout) if stop() => return Err("interrupted".into()),
            Err(mpsc::RecvTimeoutError::Timeout) if clock::now() >= until => {
                return Err(format!("no answer for {} s", limit.as_secs()));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::{Processes, Sampler, Source};

    fn role(dir: &Path, name: &str, script: &str) -> Role {
        Role {
            name: name.into(),
            command: vec!["sh".into(), "-c".into(), script.into()],
            stdout: dir.join(format!("{name}.out")),
            stderr: dir.join(format!("{name}.err")),
            record: None,
        }
    }

    #[test]
    fn all_start_when_all_are_there() {
        let tmp = tempfile::tempdir().unwrap();
        // each says when it began; nothing may begin before the release
        let stamp = "date +%s%N; echo trouble >&2; exit 3";
        let roles: Vec<Role> = (0..4)
            .map(|i| role(tmp.path(), &format!("r{i}"), stamp))
            .collect();
        let released = std::cell::Cell::new(0);
        let ends = run_together(&roles, Duration::from_secs(60), &|| None, |at| {
            let Moment::Ready(pids) = at else { return };
            assert_eq!(pids.len(), 4);
            clock::pause(Duration::from_millis(200));
            released.set(clock::unix_ms());
        })
        .unwrap();
        for (r, e) in roles.iter().zip(&ends) {
            let began: u64 = std::fs::read_to_string(&r.stdout)
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            assert!(began / 1_000_000 >= released.get());
            assert_eq!((e.status.code(), e.timed_out), (Some(3), false));
            assert_eq!(std::fs::read_to_string(&r.stderr).unwrap(), "trouble\n");
        }
    }

    #[test]
    fn what_takes_too_long_is_killed_with_its_children() {
        let tmp = tempfile::tempdir().unwrap();
        let roles = [
            role(tmp.path(), "long", "echo $$; sleep 300; echo late"),
            role(tmp.path(), "short", "true"),
        ];
        let ends = run_together(&roles, Duration::from_millis(500), &|| None, |_| ()).unwrap();
        assert!(ends[0].timed_out && ends[0].status.code().is_none());
        assert!(!ends[1].timed_out && ends[1].status.success());
        let other = [role(tmp.path(), "other", "sleep 300")];
        let stopped = run_together(
            &other,
            Duration::from_secs(300),
            &|| Some("interrupted".into()),
            |_| (),
        );
        assert_eq!(stopped.unwrap_err().kind(), io::ErrorKind::Interrupted);
        let group: u32 = std::fs::read_to_string(&roles[0].stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(!lives(group), "a process of the killed group is left");
    }

    /// A process of the group goes on a while after it was killed: what was killed is waited for.
    fn lives(group: u32) -> bool {
        let group = group.to_string();
        let member = || {
            std::fs::read_dir("/proc").unwrap().flatten().any(|e| {
                std::fs::read_to_string(e.path().join("stat")).is_ok_and(|s| {
                    let fields: Vec<&str> = s
                        .rsplit_once(") ")
                        .map_or(vec![], |(_, r)| r.split(' ').collect());
                    fields.first() != Some(&"Z") && fields.get(2) == Some(&group.as_str())
                })
            })
        };
        let until = clock::now() + KILLED;
        while member() && clock::now() < until {
            clock::pause(LOOK);
        }
        member()
    }

    #[test]
    fn what_a_command_leaves_in_the_background_ends_with_it() {
        let tmp = tempfile::tempdir().unwrap();
        // the leader has ended when the others are told to end, and the guard with them
        let script = "echo $$; trap '' TERM; sleep 300 & kill -TERM 0; exit 0";
        let roles = [role(tmp.path(), "leaves", script)];
        let ends = run_together(&roles, Duration::from_secs(60), &|| None, |_| ()).unwrap();
        assert!(ends[0].status.success() && !ends[0].timed_out);
        let group = std::fs::read_to_string(&roles[0].stdout).unwrap();
        assert!(!lives(group.trim().parse().unwrap()), "the sleep is left");
    }

    #[test]
    fn a_program_that_does_not_answer_is_not_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let note = tmp.path().join("group");
        let sleeps = || {
            let mut c = Command::new("sh");
            let script = "echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; sleep 300; true";
            c.args(["-c", script]).arg(&note);
            c
        };
        let gone = || {
            let group = std::fs::read_to_string(&note).unwrap();
            std::fs::remove_file(&note).unwrap();
            assert!(!lives(group.trim().parse().unwrap()), "the group is left");
        };
        let limit = Duration::from_secs(2);
        let why = output_within(&mut sleeps(), limit, &|| false).unwrap_err();
        assert!(why.contains("no answer for 2 s"), "{why}");
        gone();
        let why = output_unless(&mut sleeps(), &|| note.exists()).unwrap_err();
        assert!(why.ends_with("interrupted"), "{why}");
        gone();
        let said = output(Command::new("sh").args(["-c", "echo one; echo two >&2"]));
        assert_eq!(said, Ok("one\n".into()));
    }

    #[test]
    fn cpu_time_is_that_of_the_command() {
        let tmp = tempfile::tempdir().unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let ends = run_together(
            &[
                role(tmp.path(), "busy", busy),
                role(tmp.path(), "idle", "sleep 0.2"),
            ],
            Duration::from_secs(120),
            &|| None,
            |_| (),
        )
        .unwrap();
        assert!(
            ends[0].cpu_s > 0.0 && ends[0].cpu_s <= ends[0].seconds + 0.1,
            "{ends:?}"
        );
        assert!(ends[1].cpu_s < 0.1, "{ends:?}");
        assert_eq!(
            cpu_seconds("7 (a) b) R 1 1 1 0 -1 0 0 0 0 0 150 50 20 30 20 0"),
            Some(2.5)
        );
        assert_eq!(cpu_seconds("nothing"), None);
    }

    /// One has ended long before the other, and neither takes as long as the sampler waits between two looks.
    #[test]
    fn series_have_all_that_short_commands_did() {
        const WRITTEN: f64 = 3e6;
        let tmp = tempfile::tempdir().unwrap();
        let roles = [
            role(tmp.path(), "short", "head -c 3000000 /dev/zero"),
            role(
                tmp.path(),
                "long",
                "sleep 0.4; exec head -c 3000000 /dev/zero",
            ),
        ];
        let (mut sampler, mut samples) = (None, None);
        run_together(&roles, Duration::from_secs(60), &|| None, |at| match at {
            Moment::Ready(pids) => {
                let named = roles.iter().map(|r| r.name.clone());
                let named = named.zip(pids.iter().copied()).collect();
                let sources: Vec<Box<dyn Source>> = vec![Box::new(Processes::new(named))];
                sampler = Sampler::start(sources, Duration::from_secs(60), &|| false).ok();
            }
            Moment::Apart => {}
            Moment::Ended => samples = sampler.take().map(|s| s.stop(&|| false)),
        })
        .unwrap();
        let samples = samples.unwrap();
        for role in ["short", "long"] {
            let series = &samples.series[&format!("proc/{role}_written")];
            let written = series.bins.iter().map(|b| b.sum).sum::<f64>() * 60.0;
            assert!((written - WRITTEN).abs() < 1.0, "{role}: {written}");
        }
    }

    #[test]
    fn the_end_of_what_all_did_together_is_told_once() {
        let tmp = tempfile::tempdir().unwrap();
        let told = |scripts: &[&str]| {
            let roles = scripts.iter().enumerate();
            let roles: Vec<Role> = roles
                .map(|(i, script)| role(tmp.path(), &format!("r{i}"), script))
                .collect();
            let mut told = 0;
            run_together(&roles, Duration::from_secs(60), &|| None, |at| {
                told += u32::from(matches!(at, Moment::Apart));
            })
            .unwrap();
            told
        };
        assert_eq!(told(&["true", "sleep 0.3", "sleep 0.6"]), 1);
        assert_eq!(told(&["sleep 0.3"]), 0);
    }

    #[test]
    fn programs_are_found_and_overlaps_are_shares() {
        assert!(find_program("sh").is_some() && find_program("/bin/sh").is_some());
        assert!(
            find_program("no-such-program-of-any-kind").is_none()
                && find_program("/etc/passwd").is_none()
        );
        assert_eq!(overlap(&[3.0, 4.0]), Some(0.75));
        assert_eq!(overlap(&[3.0]), None);
    }
}
