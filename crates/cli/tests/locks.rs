//! File locks of programs on two mounts of one file system.

#![allow(
    unsafe_code,
    reason = "fcntl(2) locks and setitimer(2) have no safe wrapper here"
)]

mod common;

use common::two::Two;
use common::{Rng, coral, in_network_namespace, ok, pause, until};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::SeekFrom;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long a lock must stay refused before it counts as blocked, milliseconds.
const BLOCKED_MS: u64 = 300;
/// Programs on both mounts lock a file, seek to its end and write a record there, while others follow it as `tail -f` does: each
/// finds the end where it is, reads all up to it, and writes over nobody's record.
#[test]
fn records_at_the_end_are_not_written_over() {
    in_network_namespace("records_at_the_end_are_not_written_over", || {
        let two = Two::start();
        for (kind, records) in [(Kind::Fcntl, 2000), (Kind::Flock, 500)] {
            follow_and_append(&two.mounts, kind, records);
        }
        two.stop();
    });
}

fn follow_and_append(mounts: &[PathBuf; 2], kind: Kind, records: u64) {
    const RECORD: usize = 100;
    const FOLLOWERS: usize = 3;
    let name = format!("{kind:?}");
    File::create(mounts[0].join(&name)).unwrap();
    let done = AtomicBool::new(false);
    // who has the lock: the end of the file, 1 more while somebody is at it
    let truth = AtomicU64::new(0);
    // opened here and closed at the end: a close drops all of a process's fcntl locks on the file
    let open = |m: &PathBuf| {
        let follow = (0..FOLLOWERS).map(|_| File::open(m.join(&name)).unwrap());
        (open_rw(&m.join(&name)), follow.collect::<Vec<_>>())
    };
    let files: Vec<_> = mounts.iter().map(open).collect();
    std::thread::scope(|s| {
        let writers: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(m, (file, follow))| {
                for f in follow {
                    let done = &done;
                    s.spawn(move || follow_until(f, done));
                }
                let (mount, name, truth) = (&mounts[m], &name, &truth);
                s.spawn(move || {
                    let reader = File::open(mount.join(name)).unwrap();
                    let mut seen = 0;
                    for n in 0..records {
                        lock(file, kind, true, true, 0, 0).unwrap();
                        let is = truth.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(is % 2, 0, "{kind:?}: two have the lock");
                        let end = std::io::Seek::seek(&mut &*file, SeekFrom::End(0)).unwrap();
                        let stat = || file.metadata().unwrap().len();
                        assert_eq!(end, is, "{kind:?}: the end; then stat {}", stat());
                        let mut new = vec![0; (end - seen) as usize];
                        reader
                            .read_exact_at(&mut new, seen)
                            .expect("what lies before the end can be read");
                        assert!(
                            new.chunks(RECORD).all(|r| r[RECORD - 1] == b'\n'),
                            "{kind:?}: no record where one was written"
                        );
                        file.write_all_at(&line(2 * n + m as u64, RECORD), end)
                            .unwrap();
                        seen = end;
                        truth.store(end + RECORD as u64, Ordering::SeqCst);
                        lock(file, kind, false, true, 0, 0).unwrap();
                    }
                    reader
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
    });
    let expected: BTreeSet<Vec<u8>> = (0..2 * records).map(|n| line(n, RECORD)).collect();
    for m in mounts {
        let got = std::fs::read(m.join(&name)).unwrap();
        let found: BTreeSet<Vec<u8>> = got.chunks(RECORD).map(<[u8]>::to_vec).collect();
        assert_eq!(
            (got.len(), found.len()),
            (2 * records as usize * RECORD, expected.len()),
            "{kind:?}, {}: bytes and different records",
            m.display()
        );
        assert!(found == expected, "{kind:?}: a record is torn");
    }
}

/// Looks at the file's size and reads what is new, again and again.
fn follow_until(file: &File, done: &AtomicBool) {
    let (mut at, mut buf) = (0, vec![0; 64 << 10]);
    while !done.load(Ordering::Relaxed) {
        if file.metadata().unwrap().len() > at {
            at += file.read_at(&mut buf, at).unwrap() as u64;
        }
        pause(1);
    }
}

/// Record `n`, a line of `len` bytes.
fn line(n: u64, len: usize) -> Vec<u8> {
    format!("{n:0>width$}\n", width = len - 1).into_bytes()
}

/// The kinds of locks: of a whole file, and of byte ranges by process or by open file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Flock,
    Fcntl,
    Ofd,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Flock, Kind::Fcntl, Kind::Ofd];

    fn named(name: &str) -> Kind {
        let kind = Kind::ALL.into_iter().find(|k| format!("{k:?}") == name);
        kind.expect("a kind of lock")
    }
}

/// Takes (exclusive) or drops a lock; `start..start+len` counts for byte ranges only.
fn lock(
    file: &File,
    kind: Kind,
    take: bool,
    wait: bool,
    start: i64,
    len: i64,
) -> std::io::Result<()> {
    let done = match kind {
        Kind::Flock => {
            let op = if take { libc::LOCK_EX } else { libc::LOCK_UN }
                | if wait { 0 } else { libc::LOCK_NB };
            // SAFETY: the descriptor is open as long as `file` is borrowed.
            unsafe { libc::flock(file.as_raw_fd(), op) }
        }
        Kind::Fcntl | Kind::Ofd => {
            let l_type = if take { libc::F_WRLCK } else { libc::F_UNLCK } as i16;
            let l = libc::flock {
                l_type,
                l_whence: libc::SEEK_SET as i16,
                l_start: start,
                l_len: len,
                l_pid: 0,
            };
            let cmd = match (kind, wait) {
                (Kind::Ofd, true) => libc::F_OFD_SETLKW,
                (Kind::Ofd, false) => libc::F_OFD_SETLK,
                (_, true) => libc::F_SETLKW,
                (_, false) => libc::F_SETLK,
            };
            // SAFETY: the descriptor is open as long as `file` is borrowed, and `l` outlives the call.
            unsafe { libc::fcntl(file.as_raw_fd(), cmd, &l) }
        }
    };
    if done == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn open_rw(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

/// Holds a lock until killed, when the environment asks for it (the locks test starts itself so).
#[test]
fn lock_holder() {
    let Ok(path) = std::env::var("CORAL_HOLD") else {
        return;
    };
    let kind = Kind::named(&std::env::var("CORAL_HOLD_KIND").unwrap());
    let f = open_rw(Path::new(&path));
    lock(&f, kind, true, true, 0, 0).unwrap();
    std::fs::write(format!("{path}.held"), "").unwrap();
    if let Ok(go) = std::env::var("CORAL_HOLD_UNTIL") {
        until("it is told to cut the file", || Path::new(&go).exists());
        f.set_len(0).unwrap();
    }
    pause(600_000);
}

fn refused(file: &File, kind: Kind, start: i64, len: i64) {
    let e = lock(file, kind, true, false, start, len).expect_err("two holders of one lock");
    assert!(
        matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)),
        "{kind:?}: {e}"
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test whose threads make system calls on a mount"
)]
fn exclude(near: &Path, far: &Path, kind: Kind) {
    let (a, b) = (open_rw(near), open_rw(far));
    lock(&a, kind, true, false, 0, 100).unwrap();
    refused(&b, kind, 50, 100);
    if kind != Kind::Flock {
        lock(&b, kind, true, false, 100, 50).expect("ranges that do not overlap");
        refused(&a, kind, 120, 1);
        lock(&b, kind, false, false, 0, 0).unwrap();
    }
    // a blocking one waits, and gets it when the holder closes
    let got = Arc::new(AtomicBool::new(false));
    let waiter = {
        let (b, got) = (b.try_clone().unwrap(), got.clone());
        std::thread::spawn(move || {
            lock(&b, kind, true, true, 0, 100).unwrap();
            got.store(true, Ordering::Relaxed);
            b // closing any descriptor would drop the process's fcntl locks
        })
    };
    pause(BLOCKED_MS);
    assert!(
        !got.load(Ordering::Relaxed),
        "{kind:?}: a blocking lock was granted beside another"
    );
    drop(a);
    until("the waiter has its lock after the holder's close", || {
        got.load(Ordering::Relaxed)
    });
    let _open = waiter.join().unwrap();
    let a = open_rw(near);
    refused(&a, kind, 0, 100);
    lock(&b, kind, false, false, 0, 0).unwrap();
    lock(&a, kind, true, false, 0, 100).unwrap();
    lock(&a, kind, false, false, 0, 0).unwrap();
    drop((a, b));
    release_on_exit(near, far, kind);
}

fn release_on_exit(near: &Path, far: &Path, kind: Kind) {
    let held = PathBuf::from(format!("{}.held", far.display()));
    let _ = std::fs::remove_file(&held);
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder
        .args(["--exact", "lock_holder", "--nocapture"])
        .env("CORAL_HOLD", near)
        .env("CORAL_HOLD_KIND", format!("{kind:?}"))
        .stdout(Stdio::null());
    let mut holder = holder.spawn().unwrap();
    until("the other process holds the lock", || held.exists());
    let b = open_rw(far);
    refused(&b, kind, 0, 10);
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the dead process's lock is free", || {
        lock(&b, kind, true, false, 0, 10).is_ok()
    });
}

#[test]
fn locks_exclude_across_mounts() {
    in_network_namespace("locks_exclude_across_mounts", || {
        let two = Two::start();
        let [a, b] = [two.mounts[0].join("lock"), two.mounts[1].join("lock")];
        for kind in Kind::ALL {
            println!("{kind:?}: held by the local mount");
            exclude(&a, &b, kind);
            println!("{kind:?}: held by the remote mount");
            exclude(&b, &a, kind);
        }
        two.stop();
    });
}

/// What a process of [`processes_take_turns`] does, read from its environment.
struct Turns {
    /// The file that is locked, on both mounts: they take turns.
    files: [PathBuf; 2],
    kind: Kind,
    /// A file outside of the mounts: holds the number of the process whose turn it is, or 0.
    seat: PathBuf,
    id: u64,
    turns: u64,
    /// A timer's signal comes again and again.
    signals: bool,
}

impl Turns {
    fn read() -> Option<Turns> {
        let all = std::env::var("CORAL_TURNS").ok()?;
        let mut words = all.split(' ');
        let mut next = || words.next().expect("seven words");
        Some(Turns {
            files: [next().into(), next().into()],
            kind: Kind::named(next()),
            seat: next().into(),
            id: next().parse().unwrap(),
            turns: next().parse().unwrap(),
            signals: next() == "true",
        })
    }

    fn command(&self) -> Command {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "turn_taker", "--nocapture"]).env(
            "CORAL_TURNS",
            format!(
                "{} {} {:?} {} {} {} {}",
                self.files[0].display(),
                self.files[1].display(),
                self.kind,
                self.seat.display(),
                self.id,
                self.turns,
                self.signals
            ),
        );
        c
    }

    /// Opens, locks, counts, and gives back by turns with an unlock and with the close alone.
    fn take(&self) {
        let seat = open_rw(&self.seat);
        let sit = |from: u64, to: u64| {
            let mut was = [0; 8];
            seat.read_exact_at(&mut was, 0).unwrap();
            assert_eq!(u64::from_ne_bytes(was), from, "two hold the lock");
            seat.write_all_at(&to.to_ne_bytes(), 0).unwrap();
        };
        let mut refused = 0;
        let mut turn = 0;
        while turn < self.turns {
            let file = open_rw(&self.files[(self.id + turn) as usize % 2]);
            let wait = !turn.is_multiple_of(3);
            let locked = loop {
                match lock(&file, self.kind, true, wait, 0, 0) {
                    Err(e) if self.signals && e.kind() == std::io::ErrorKind::Interrupted => {}
                    done => break done,
                }
            };
            match locked {
                Ok(()) => {}
                Err(e) if !wait && e.kind() == std::io::ErrorKind::WouldBlock => {
                    refused += 1;
                    turn += u64::from(refused % 4 == 0);
                    continue;
                }
                Err(e) => panic!("turn {turn}: {e}"),
            }
            sit(0, self.id);
            add_record(&seat, &file);
            sit(self.id, 0);
            if turn.is_multiple_of(2) {
                lock(&file, self.kind, false, true, 0, 0).unwrap();
            }
            turn += 1;
        }
    }
}

/// Writes a record behind those in the file, whose number stands behind the id in `seat`: the file's size must say the same.
fn add_record(seat: &File, file: &File) {
    const RECORD: u64 = 32;
    let mut count = [0; 8];
    seat.read_exact_at(&mut count, 8).unwrap();
    let count = u64::from_ne_bytes(count);
    let size = file.metadata().unwrap().len();
    let right = count * RECORD;
    assert_eq!(
        size,
        right,
        "fstat under the lock; {}",
        sizes_now(file, right)
    );
    file.write_all_at(&[b'r'; RECORD as usize], size).unwrap();
    seat.write_all_at(&(count + 1).to_ne_bytes(), 8).unwrap();
}

/// What a wrong size looks like to other questions: whether the kernel remembers it, the mount does, or the servers have it.
fn sizes_now(file: &File, right: u64) -> String {
    let ask = |flags| {
        let found = rustix::fs::statx(file, "", flags, rustix::fs::StatxFlags::SIZE);
        found.unwrap().stx_size
    };
    let empty = rustix::fs::AtFlags::EMPTY_PATH;
    let known = ask(empty | rustix::fs::AtFlags::STATX_DONT_SYNC);
    let asked = ask(empty | rustix::fs::AtFlags::STATX_FORCE_SYNC);
    let mut data = vec![0; right as usize + 1];
    let read = file.read_at(&mut data, 0).unwrap();
    pause(1000);
    let later = ask(empty);
    format!(
        "statx without asking {known}, asking {asked}, bytes read {read}, fstat a second later {later}"
    )
}

/// Takes its turns, when the environment asks for it (the test below starts itself so).
#[test]
fn turn_taker() {
    let Some(turns) = Turns::read() else {
        return;
    };
    if turns.signals {
        every_millisecond();
    }
    turns.take();
}

/// From here on a signal that does nothing comes every millisecond, and what it interrupts is not restarted.
fn every_millisecond() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler touches nothing, and both structures outlive their calls.
    unsafe {
        let mut act: libc::sigaction = std::mem::zeroed();
        act.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &act, std::ptr::null_mut()),
            0
        );
        let each = libc::timeval {
            tv_sec: 0,
            tv_usec: 1000,
        };
        let timer = libc::itimerval {
            it_interval: each,
            it_value: each,
        };
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()),
            0
        );
    }
}

fn take_turns(two: &Two, kind: Kind, takers: u64, signals: bool, turns: u64) {
    let seat = two.place.path(&format!("seat-{kind:?}"));
    std::fs::write(&seat, [0; 16]).unwrap();
    let path = |m: usize| two.mounts[m].join(format!("turns-{kind:?}-{signals}"));
    let started: Vec<_> = (1..=takers)
        .map(|id| {
            let t = Turns {
                files: [path(0), path(1)],
                kind,
                seat: seat.clone(),
                id,
                turns,
                signals,
            };
            t.command().stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let failed = started
        .into_iter()
        .filter_map(|mut t| (!t.wait().unwrap().success()).then_some(()))
        .count();
    assert_eq!(failed, 0, "{kind:?}, signals: {signals}: processes failed");
}

/// A program that is killed while it cuts the file under its lock is gone, and its lock is free, when the file is cut: nobody who
/// has the lock after it sees the file change.
#[test]
fn what_a_killed_program_did_under_its_lock_is_done_when_others_have_it() {
    let name = "what_a_killed_program_did_under_its_lock_is_done_when_others_have_it";
    in_network_namespace(name, || {
        let two = Two::start();
        for kind in Kind::ALL {
            kill_while_cutting(&two, kind);
        }
        two.stop();
    });
}

fn kill_while_cutting(two: &Two, kind: Kind) {
    let [near, far] = two.mounts.each_ref().map(|m| m.join(format!("{kind:?}")));
    std::fs::write(&near, "0123456789").unwrap();
    let go = two.place.path(&format!("go-{kind:?}"));
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder
        .args(["--exact", "lock_holder", "--nocapture"])
        .env("CORAL_HOLD", &far)
        .env("CORAL_HOLD_KIND", format!("{kind:?}"))
        .env("CORAL_HOLD_UNTIL", &go)
        .stdout(Stdio::null());
    let mut holder = holder.spawn().unwrap();
    let held = PathBuf::from(format!("{}.held", near.display()));
    until("the other process holds the lock", || held.exists());
    let lctl = |rule: &[&str]| {
        let mut lctl = coral();
        ok(lctl.arg("lctl").arg("--dir").arg(&two.mounts[1]).args(rule));
    };
    for portal in ["6", "28"] {
        let late = ["-m", "PUT", "-p", portal, "-r", "1", "-l", "3"];
        lctl(&[&["net_delay_add", "-s", "*", "-d", "*"], &late[..]].concat());
    }
    std::fs::write(&go, "").unwrap();
    // long enough for the request to be on its way
    pause(700);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let file = open_rw(&near);
    lock(&file, kind, true, true, 0, 0).unwrap();
    let size = file.metadata().unwrap().len();
    assert_eq!(
        size, 0,
        "{kind:?}: it has the lock, and the file was not cut"
    );
    lctl(&["net_delay_del", "-a"]);
}

/// Programs that open a file, lock it, do something and close it, again and again, never hold the lock at once, and see no
/// error. The kernel gives the next open file the owner's number of the last one before it tells of that one's close.
#[test]
fn processes_take_turns() {
    in_network_namespace("processes_take_turns", || {
        let two = Two::start();
        for kind in Kind::ALL {
            take_turns(&two, kind, 6, false, 3000);
        }
        two.stop();
    });
}

/// The same while names come and go beside the file on both mounts, so that each open asks for its name and attributes anew: the
/// file's size under the lock is that of now.
#[test]
fn sizes_under_a_lock_are_right() {
    in_network_namespace("sizes_under_a_lock_are_right", || {
        let two = Two::start();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            for (n, m) in two.mounts.iter().enumerate() {
                let (done, name) = (&done, m.join(format!("comes-and-goes{n}")));
                s.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        drop(open_rw(&name));
                        std::fs::remove_file(&name).unwrap();
                        pause(3);
                    }
                });
            }
            let all = Kind::ALL.map(|kind| {
                let two = &two;
                s.spawn(move || take_turns(two, kind, 3, false, 6000))
            });
            let ended = all.map(|t| t.join().is_ok());
            done.store(true, Ordering::Relaxed);
            assert_eq!(ended, [true; 3]);
        });
        two.stop();
    });
}

/// The same while signals end their waits, which are begun anew.
#[test]
fn signals_between_take_no_turn() {
    in_network_namespace("signals_between_take_no_turn", || {
        let two = Two::start();
        for kind in Kind::ALL {
            take_turns(&two, kind, 6, true, 1000);
        }
        two.stop();
    });
}

/// Who closes a file has given its lock back when the next one asks without waiting. The kernel tells of a close without waiting for
/// the answer; for one that it tells too late, a lock in a hundred may be refused.
#[test]
fn what_was_closed_can_be_locked_at_once() {
    in_network_namespace("what_was_closed_can_be_locked_at_once", || {
        let two = Two::start();
        for (kind, mount) in Kind::ALL.into_iter().flat_map(|k| [(k, 0), (k, 1)]) {
            let at_once = || {
                let file = open_rw(&two.mounts[mount].join("closed"));
                lock(&file, kind, true, false, 0, 0).is_ok()
            };
            let refused = (0..500).filter(|_| !at_once()).count();
            assert!(
                refused <= 5,
                "{kind:?}, mount {mount}: {refused} of 500 refused"
            );
        }
        two.stop();
    });
}

/// How long a program may wait for anything; the servers evict who keeps a lock for 100 s.
const STUCK_S: u64 = 30;
/// Programs at a time in [`killed_programs_keep_no_lock`].
const PROGRAMS: usize = 9;
/// Bytes of their records.
const RECORD: u64 = 32;

/// What a process of [`killed_programs_keep_no_lock`] is told by its environment, in words.
struct Killed {
    mounts: [PathBuf; 2],
    /// A directory outside of the mounts: a seat for each kind of lock, and how far each program is.
    seats: PathBuf,
    place: usize,
    seed: u64,
}

/// The holder's process, and how many records are in the file.
type Seat = [u64; 2];

impl Killed {
    fn read() -> Option<Killed> {
        let all = std::env::var("CORAL_KILLED").ok()?;
        let words: Vec<&str> = all.split(' ').collect();
        let [near, far, seats, place, seed] = words[..] else {
            panic!("five words, not {all}")
        };
        Some(Killed {
            mounts: [near.into(), far.into()],
            seats: seats.into(),
            place: place.parse().unwrap(),
            seed: seed.parse().unwrap(),
        })
    }

    fn start(&self) -> std::process::Child {
        let Killed {
            mounts: [near, far],
            seats,
            place,
            seed,
        } = self;
        let said = File::create(seats.join(format!("said-{place}"))).unwrap();
        let words = [near.display(), far.display(), seats.display()];
        let words = format!("{} {} {} {place} {seed}", words[0], words[1], words[2]);
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "killed_program", "--nocapture"])
            .env("CORAL_KILLED", words)
            .stdout(said.try_clone().unwrap())
            .stderr(said);
        c.spawn().unwrap()
    }

    /// Takes locks of all kinds through both mounts, until it is killed.
    fn run(&self) {
        let mut rng = Rng::seeded(self.seed);
        if rng.below(2) == 0 {
            every_millisecond();
        }
        let progress = open_rw(&self.seats.join("progress"));
        for step in 1.. {
            let at = self.place as u64 * 8;
            let now = (self.seed << 32 | step).to_ne_bytes();
            progress.write_all_at(&now, at).unwrap();
            let mount = &self.mounts[rng.below(2) as usize];
            match rng.below(8) {
                0 => {
                    let name = format!("comes-and-goes-{}", self.place);
                    let file = open_rw(&mount.join(&name));
                    if let Err(e) = std::fs::remove_file(mount.join(&name)) {
                        let has = self.mounts.each_ref().map(|m| m.join(&name).exists());
                        panic!("{e}: {:?}, step {step}, is there: {has:?}", file.metadata());
                    }
                }
                1 => {
                    let names = std::fs::read_dir(mount).unwrap();
                    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
                    let names: Vec<String> = names.collect();
                    let all = Kind::ALL.iter().all(|k| names.contains(&format!("{k:?}")));
                    assert!(all, "{names:?}");
                }
                _ => self.under_lock(mount, &mut rng),
            }
        }
    }

    fn under_lock(&self, mount: &Path, rng: &mut Rng) {
        let kind = Kind::ALL[rng.below(3) as usize];
        let (wait, name) = (rng.below(4) > 0, format!("{kind:?}"));
        let file = open_rw(&mount.join(&name));
        let locked = loop {
            match lock(&file, kind, true, wait, 0, 0) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        match locked {
            Ok(()) => {}
            Err(e) if !wait && e.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(e) => panic!("{name}: {e}"),
        }
        let seat = open_rw(&self.seats.join(&name));
        let me = u64::from(std::process::id());
        let (size, [holder, mut records]) = (file.metadata().unwrap().len(), seat_of(&seat));
        if holder != 0 {
            assert!(is_ending(holder), "{name}: {me} and {holder} hold the lock");
            // what it wrote last may not be counted
            records += u64::from(size == (records + 1) * RECORD);
        }
        assert_eq!(size, records * RECORD, "{name}: bytes under the lock");
        sit(&seat, [me, records]);
        let record = line(records, RECORD as usize);
        file.write_all_at(&record, size).unwrap();
        sit(&seat, [0, records + 1]);
        if rng.below(2) == 0 {
            lock(&file, kind, false, true, 0, 0).unwrap();
        }
    }
}

fn seat_of(seat: &File) -> Seat {
    let mut all = [0; 16];
    seat.read_exact_at(&mut all, 0).unwrap();
    let (holder, records) = all.split_at(8);
    [holder, records].map(|n| u64::from_ne_bytes(n.try_into().unwrap()))
}

fn sit(seat: &File, now: Seat) {
    let all: Vec<u8> = now.into_iter().flat_map(u64::to_ne_bytes).collect();
    seat.write_all_at(&all, 0).unwrap();
}

/// The process is being ended, or has ended: its files may be closed already (`PF_EXITING`).
fn is_ending(pid: u64) -> bool {
    const EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // the flags are the seventh word behind the name, which is in brackets
    let words = stat.rsplit_once(')').map(|(_, rest)| rest.split(' '));
    let flags = words.and_then(|mut w| w.nth(7)?.parse::<u64>().ok());
    flags.is_none_or(|f| f & EXITING != 0)
}

/// Locks and writes until it is killed, when the environment asks for it (the test below starts itself so).
#[test]
fn killed_program() {
    if let Some(killed) = Killed::read() {
        killed.run();
    }
}

/// Programs on both mounts take locks of all kinds, with and without signals and waiting, write records under them, and are
/// killed at any moment: no two hold a lock, no record is lost, nobody waits for long, and no mount is evicted.
///
/// `CORAL_KILLS=n` sets how many are killed, `CORAL_SEED=n` the order.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "it watches processes on a machine's clock"
)]
fn killed_programs_keep_no_lock() {
    in_network_namespace("killed_programs_keep_no_lock", || {
        let kills = std::env::var("CORAL_KILLS").map_or(300, |n| n.parse().expect("a number"));
        let (two, mut rng) = (Two::start(), Rng::from_env());
        let seats = two.place.make("seats");
        for kind in Kind::ALL {
            let name = format!("{kind:?}");
            std::fs::write(seats.join(&name), [0; 16]).unwrap();
            drop(open_rw(&two.mounts[0].join(&name)));
        }
        let progress = seats.join("progress");
        std::fs::write(&progress, [0; 8 * PROGRAMS]).unwrap();
        let start = |place, n: u64| {
            let killed = Killed {
                mounts: two.mounts.clone(),
                seats: seats.clone(),
                place,
                seed: n,
            };
            killed.start()
        };
        let mut programs: Vec<_> = (0..PROGRAMS).map(|p| start(p, 1 + p as u64)).collect();
        let mut seen = vec![(Vec::new(), std::time::Instant::now()); PROGRAMS];
        let mut dying = [false; PROGRAMS];
        let (mut killed, mut started) = (0, PROGRAMS as u64);
        while killed < kills || dying.contains(&true) {
            pause(rng.below(15));
            let now = std::fs::read(&progress).unwrap();
            for (p, (at, since)) in seen.iter_mut().enumerate() {
                let here = now[8 * p..8 * p + 8].to_vec();
                if let Some(status) = programs[p].try_wait().unwrap() {
                    let said = seats.join(format!("said-{p}"));
                    let said = std::fs::read_to_string(said).unwrap_or_default();
                    assert!(dying[p], "program {p} ended with {status}: {said}");
                    started += 1;
                    programs[p] = start(p, started);
                    (dying[p], *since) = (false, std::time::Instant::now());
                } else if here != *at {
                    (*at, *since) = (here, std::time::Instant::now());
                }
                let waits = since.elapsed().as_secs();
                let is = std::fs::read_to_string(format!("/proc/{}/stack", programs[p].id()));
                assert!(waits < STUCK_S, "program {p}, killed: {}: {is:?}", dying[p]);
            }
            let p = rng.below(PROGRAMS as u64) as usize;
            if killed < kills && !dying[p] && !seen[p].0.iter().all(|b| *b == 0) {
                programs[p].kill().unwrap();
                (dying[p], killed) = (true, killed + 1);
            }
        }
        for mut p in programs {
            p.kill().unwrap();
            p.wait().unwrap();
        }
        check_records(&two, &seats);
        for log in ["data.log", "far-client.log"] {
            let log = std::fs::read_to_string(two.place.path(log)).unwrap();
            assert!(!log.contains("evict"), "{log}");
        }
        two.stop();
    });
}

/// Each file has its records one behind the other, through both mounts.
fn check_records(two: &Two, seats: &Path) {
    for kind in Kind::ALL {
        let name = format!("{kind:?}");
        let counted = seat_of(&open_rw(&seats.join(&name)))[1];
        for m in &two.mounts {
            let got = std::fs::read(m.join(&name)).unwrap();
            let records = got.len() as u64 / RECORD;
            let all: Vec<u8> = (0..records)
                .flat_map(|n| line(n, RECORD as usize))
                .collect();
            assert!(
                got == all,
                "{name}: a record is torn, missing or there twice"
            );
            assert!(
                [counted, counted + 1].contains(&records),
                "{name}: {records} of {counted}"
            );
        }
        println!("{name}: {counted} records");
    }
}
