//! Programs on several clients are killed in the middle of what they do: whatever they leave behind, nobody waits for it, nobody is
//! evicted, and their record locks exclude each other.
//!
//! `CORAL_SEED=n cargo test -p coral-client --test one_mdt dropped::` repeats a run; `CORAL_SEEDS=n` makes it so many runs.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::common::simulated::{number, on_own_clock};
use crate::common::*;
use coral_client::FileHandle;
use coral_client::llite::types::{FileLock, LockKind, SetAttr};
use coral_lnet::LinkModel;
use coral_wire::Errno;
use tokio::time::{Instant, sleep, timeout};

const CLIENTS: u64 = 3;
const PROGRAMS: u64 = 3;
const FILES: u64 = 3;
/// Operations of a program.
const STEPS: u64 = 60;
/// Nothing takes longer: the time that a server waits for a lock is much more.
const STUCK: Duration = Duration::from_secs(30);
/// Seeds of every test run.
const SEEDS: u64 = 6;

/// Polls `work` so often at most: the program is killed when it is woken once more.
async fn until_poll<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut left) = (pin!(work), polls);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// What is true of a file.
#[derive(Default)]
struct Seat {
    /// Who has its lock, 0: nobody.
    holder: AtomicU64,
    /// The number in it.
    count: AtomicU64,
}

/// One program of a client.
struct Program {
    u: User,
    rng: Rng,
    /// Its name among all.
    id: u64,
    seats: Arc<[Seat; FILES as usize]>,
}

impl Program {
    async fn run(mut self) {
        for step in 0..STEPS {
            let begun = Instant::now();
            let kind = self.rng.below(8);
            self.step(kind).await;
            let took = begun.elapsed();
            let id = self.id;
            assert!(
                took < STUCK,
                "program {id}, step {step}, kind {kind}: {took:?}"
            );
        }
    }

    /// Does `work`, or is killed before it is done.
    async fn maybe<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        match self.rng.below(4) {
            0 => until_poll(1 + self.rng.below(8), work).await,
            1 => timeout(Duration::from_micros(self.rng.below(3000)), work)
                .await
                .ok(),
            _ => Some(work.await),
        }
    }

    async fn step(&mut self, kind: u64) {
        let u = User {
            fs: self.u.fs.clone(),
            cred: self.u.cred.clone(),
        };
        let n = self.rng.below(FILES);
        let name = format!("f{n}");
        match kind {
            0..4 => self.under_lock(&u, n, &name).await,
            4 => drop(self.maybe(u.stat(&name)).await),
            5 => drop(self.maybe(u.names("")).await),
            6 => {
                let other = format!("o{}", self.rng.below(3));
                let _ = self.maybe(u.put(&other, b"something")).await;
                let _ = self.maybe(u.unlink(&other)).await;
            }
            _ => {
                let Some(fid) = self.maybe(u.fid(&name)).await.and_then(Result::ok) else {
                    return;
                };
                let set = SetAttr {
                    mode: Some(0o600 + self.rng.below(8) as u32),
                    ..SetAttr::default()
                };
                let _ = self.maybe(u.fs.setattr(&u.cred, fid, set, None)).await;
            }
        }
    }

    /// Opens, locks, writes under the lock and closes, or is killed anywhere in it; the kernel then closes the file.
    async fn under_lock(&mut self, u: &User, n: u64, name: &str) {
        let flags = libc::O_RDWR;
        let Some(Ok(fh)) = self.maybe(u.create(name, flags)).await else {
            return;
        };
        let owner = self.id * 1000 + self.rng.below(2);
        let (kind, wait) = (self.rng.below(2), self.rng.below(3) > 0);
        let lock = FileLock {
            start: 0,
            end: u64::MAX,
            kind: LockKind::Write,
            pid: self.id as u32,
        };
        let got = match kind {
            0 => self.maybe(u.fs.flock(&fh, LockKind::Write, wait)).await,
            _ => self.maybe(u.fs.setlk(&fh, owner, lock, wait)).await,
        };
        match got {
            Some(Ok(())) => self.count(u, n, &fh).await,
            Some(Err(e)) => assert_eq!(e.errno(), Errno::EAGAIN, "program {}: its lock", self.id),
            None => {}
        }
        u.fs.flush(&fh, owner).await.expect("a close");
        u.close(&fh).await.expect("the last close");
    }

    /// Adds one to the number in the file, under the lock. A system call that changes something is done whoever is killed.
    async fn count(&mut self, u: &User, n: u64, fh: &FileHandle) {
        let (seat, id) = (self.seats.clone(), self.id);
        let seat = &seat[n as usize];
        let was = seat.holder.swap(id, Ordering::Relaxed);
        assert_eq!(was, 0, "program {id}: two hold the lock of file {n}");
        let told = u.read(fh, 0, 8).await.expect("a read");
        let told = told.try_into().map_or(0, u64::from_le_bytes);
        let count = seat.count.load(Ordering::Relaxed);
        assert_eq!(told, count, "program {id}: file {n}");
        if self.rng.below(2) == 0 {
            sleep(Duration::from_micros(self.rng.below(2000))).await;
        }
        let next = (count + 1).to_le_bytes();
        u.write(fh, 0, &next).await.expect("a write");
        seat.count.store(count + 1, Ordering::Relaxed);
        seat.holder.store(0, Ordering::Relaxed);
    }
}

async fn run(seed: u64) {
    let c = Cluster::start_seeded(2, 2, 65536, seed, "").await;
    let link = LinkModel {
        delay: Duration::from_micros(200),
        jitter: Duration::from_micros(100),
        ..LinkModel::default()
    };
    let seats = Arc::new(std::array::from_fn(|_| Seat::default()));
    let mut programs = tokio::task::JoinSet::new();
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        // one beside the servers, the others far away
        let fs = match n {
            0 => c.client().await,
            _ => c.remote_client().await,
        };
        if n > 0 {
            c.net.set_link(fs.node().nid(), nid(SERVER), link, seed + n);
        }
        for p in 0..PROGRAMS {
            let id = 1 + n * PROGRAMS + p;
            let program = Program {
                u: User::root(&fs),
                rng: Rng((seed << 8 | id).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
                id,
                seats: Arc::clone(&seats),
            };
            programs.spawn(program.run());
        }
        clients.push(fs);
    }
    while let Some(done) = programs.join_next().await {
        done.expect("a program");
    }
    let osts = c.osts();
    let targets = std::iter::once(&c.mdt().target).chain(&osts);
    let evictions: u64 = targets.map(|t| t.stats().evictions.value()).sum();
    assert_eq!(evictions, 0, "evictions");
    // whoever comes now gets everything at once
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    for (n, seat) in seats.iter().enumerate() {
        let name = format!("f{n}");
        let all = async {
            let fh = u.create(&name, libc::O_RDWR).await.expect("an open");
            let free = u.fs.flock(&fh, LockKind::Write, false).await;
            free.expect("a lock that nobody has");
            let told = u.read(&fh, 0, 8).await.expect("a read");
            let told = told.try_into().map_or(0, u64::from_le_bytes);
            assert_eq!(told, seat.count.load(Ordering::Relaxed), "file {n}");
            u.close(&fh).await.expect("a close");
        };
        timeout(STUCK, all).await.expect("nobody is waited for");
    }
    assert!(seats.iter().any(|s| s.count.load(Ordering::Relaxed) > 10));
    clients.push(fs);
    for fs in clients {
        fs.umount().await;
    }
    c.stop().await;
}

#[test]
fn nobody_waits_for_what_killed_programs_leave() {
    let seeds = match number("CORAL_SEED", 0) {
        0 => 1..=number("CORAL_SEEDS", SEEDS),
        seed => seed..=seed,
    };
    for seed in seeds {
        let again =
            format!("CORAL_SEED={seed} cargo test -p coral-client --test one_mdt dropped::");
        on_own_clock(move || run(seed), &again);
    }
}
