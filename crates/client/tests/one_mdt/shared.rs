//! One file of several writers, each of which locks the ranges it writes: what they see agrees with a plain vector, and they come
//! to rest where they write parts of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::simulated::number;
use crate::common::*;
use coral_client::{FileHandle, Llite, SetAttr};
use coral_metrics::{Point, Snapshot};
use coral_wire::Errno;

const STRIPE: u32 = 65536;
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(240);

/// What the lock clients of a mount's node counted.
pub(crate) fn counted(fs: &Llite, name: &str) -> u64 {
    let mut s = Snapshot::default();
    s.add(fs.node().metrics(), &[]);
    let osts = s.of(name).into_iter().flatten();
    let osts = osts.filter(|(labels, _)| labels.iter().any(|(_, v)| v.contains("OST")));
    osts.map(|(_, point)| match point {
        Point::Count(n) => *n,
        Point::Recorded(r) => r.count(),
    })
    .sum()
}

/// Locks asked for of the OSTs, and locks these asked back.
fn locks(users: &[User]) -> (u64, u64) {
    let all = |name| users.iter().map(|u| counted(&u.fs, name)).sum();
    (
        all("coral_ldlm_client_enqueue_seconds"),
        all("coral_ldlm_client_bl_callbacks_total"),
    )
}

/// Bytes dirty.
fn dirty(fs: &Arc<Llite>) -> u64 {
    let all = fs.params();
    all.iter()
        .filter(|(n, _)| n.starts_with("osc.") && n.ends_with(".cur_dirty_bytes"))
        .map(|(_, v)| v.parse::<u64>().unwrap())
        .sum()
}

async fn users(c: &Cluster, count: usize) -> Vec<User> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(User::root(&c.remote_client().await));
    }
    all
}

/// A handle of each on one file; their further writes may stay dirty.
async fn opened(users: &[User], path: &str) -> Vec<Arc<FileHandle>> {
    users[0].put(path, b"").await.unwrap();
    let mut all = Vec::new();
    for u in users {
        let fh = u.open(path, libc::O_RDWR).await.unwrap();
        for _ in 0..2 {
            u.write(&fh, 0, b"x").await.unwrap();
        }
        all.push(fh);
    }
    all
}

/// Everybody writes a part of his own in small steps, at the same time: few locks are asked for and fewer asked back, and what
/// is written goes out in few requests.
#[tokio::test]
async fn writers_of_their_own_parts_come_to_rest() {
    for (clients, osts) in [(2, 1), (2, 2), (4, 1)] {
        come_to_rest(clients, osts, false).await;
    }
}

/// The same where the steps of all alternate: each has a lock on its own.
#[tokio::test]
async fn writers_of_alternating_blocks_come_to_rest() {
    for (clients, osts) in [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2)] {
        come_to_rest(clients, osts, true).await;
    }
}

async fn come_to_rest(clients: usize, osts: u32, strided: bool) {
    const STEP: u64 = 4096;
    const STEPS: u64 = 1000;
    let owner = move |block: u64| match strided {
        true => block % clients as u64,
        false => block / STEPS,
    };
    let c = Cluster::start(osts, osts as u16, 1 << 20).await;
    let users = users(&c, clients).await;
    let open = opened(&users, "f").await;
    let (asked, back) = locks(&users);
    let mut jobs = tokio::task::JoinSet::new();
    for (i, fh) in open.iter().enumerate() {
        let (fs, fh) = (users[i].fs.clone(), fh.clone());
        jobs.spawn(async move {
            let u = User::root(&fs);
            let (_, n) = rpcs(&fs, async {
                for step in 0..STEPS {
                    let at = STEP
                        * match strided {
                            true => step * clients as u64 + i as u64,
                            false => i as u64 * STEPS + step,
                        };
                    u.write(&fh, at, &[i as u8 + 1; STEP as usize])
                        .await
                        .unwrap();
                    // a lock that is asked back is given back meanwhile
                    match step % 10 {
                        9 => tokio::time::sleep(Duration::from_millis(2)).await,
                        _ => tokio::task::yield_now().await,
                    }
                }
                fs.fsync(&fh, true).await.unwrap();
            })
            .await;
            n.iter()
                .find(|(o, _)| o == "OST_WRITE")
                .map_or(0, |(_, c)| *c)
        });
    }
    let mut writes = 0;
    let all = async {
        while let Some(n) = jobs.join_next().await {
            writes += n.unwrap();
        }
    };
    tokio::time::timeout(HANGS, all).await.expect("it hangs");
    let (asked, back) = (locks(&users).0 - asked, locks(&users).1 - back);
    println!(
        "{clients} clients, {osts} OSTs, strided: {strided}: {asked} locks asked for, {back} back, {writes} writes"
    );
    let most = 8 * clients as u64 * u64::from(osts);
    assert!(asked <= most && back <= most, "{asked} asked, {back} back");
    assert!(writes <= 40 * clients as u64, "{writes} requests");
    let data = User::root(&c.remote_client().await).get("f").await.unwrap();
    let right = |i: usize| u64::from(data[i]) == owner(i as u64 / STEP) + 1;
    assert_eq!(data.len() as u64, clients as u64 * STEPS * STEP);
    assert!((0..data.len()).all(right));
    c.stop().await;
}

/// Of three pages two clients write one each; the servers are killed, or the OSTs lose power, and both go on. Each has the lock on his own
/// as before: one who writes the third is in nobody's way.
#[tokio::test(start_paused = true)]
async fn locks_on_alternating_blocks_come_back_after_a_restart() {
    const STEP: u64 = 4096;
    const STEPS: u64 = 200;
    for power in [false, true] {
        let mut c = Cluster::start(1, 1, 1 << 20).await;
        let users = users(&c, 3).await;
        let open = opened(&users, "f").await;
        let place = |who: u64, step: u64| (3 * step + who) * STEP;
        let write = async |who: usize, step: u64| {
            let (u, value) = (&users[who], [who as u8 + 1; STEP as usize]);
            let wrote = u.write(&open[who], place(who as u64, step), &value);
            wrote.await.unwrap();
        };
        let mut before = (0, 0);
        for round in 0..3 {
            before = locks(&users);
            for step in round * STEPS..(round + 1) * STEPS {
                write(0, step).await;
                write(1, step).await;
            }
            assert!(users[..2].iter().all(|u| dirty(&u.fs) > 0));
            c = match (round, power) {
                (2, _) => c,
                (_, false) => c.kill_and_restart().await,
                (_, true) => c.osts_lose_power().await,
            };
        }
        assert_eq!(locks(&users), before, "each has a lock already");
        for (u, fh) in users.iter().zip(&open) {
            u.fs.fsync(fh, true).await.unwrap();
        }
        for step in 0..3 * STEPS {
            write(2, step).await;
        }
        let (asked, back) = (locks(&users).0 - before.0, locks(&users).1 - before.1);
        assert!(asked <= 4 && back == 0, "{asked} asked, {back} back");
        let data = User::root(&c.remote_client().await).get("f").await.unwrap();
        assert_eq!(data.len() as u64, 3 * 3 * STEPS * STEP);
        let right = |i: usize| u64::from(data[i]) == i as u64 / STEP % 3 + 1;
        assert!((0..data.len()).all(right));
        c.stop().await;
    }
}

/// Who has a lock on every second page, from when another wrote the others, and now writes all, is given a lock on all.
#[tokio::test]
async fn a_lock_on_blocks_goes_for_one_on_what_lies_between() {
    const STEP: u64 = 4096;
    let c = Cluster::start(1, 1, 1 << 20).await;
    let users = users(&c, 2).await;
    let open = opened(&users, "f").await;
    for step in 0..40 {
        for (who, (u, fh)) in (0..).zip(users.iter().zip(&open)) {
            let wrote = u.write(fh, (2 * step + who) * STEP, &[1; STEP as usize]);
            wrote.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let before = locks(&users);
    assert!(before.0 <= 12, "each has a lock on blocks: {}", before.0);
    let u = &users[0];
    for page in 0..600 {
        u.write(&open[0], page * STEP, &[2; STEP as usize])
            .await
            .unwrap();
    }
    let (asked, back) = (locks(&users).0 - before.0, locks(&users).1 - before.1);
    println!("{asked} asked, {back} back");
    assert!(asked <= 4 && back <= 4, "{asked} asked, {back} back");
    let data = users[1].get("f").await.unwrap();
    assert!(data.len() as u64 == 600 * STEP && data.iter().all(|b| *b == 2));
    c.stop().await;
}

/// Another client changes the mode of a file that is being written: the writer asks for its layout once more, and goes on as before.
#[tokio::test(start_paused = true)]
async fn a_layout_that_was_lost_is_asked_for_once() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let users = users(&c, 2).await;
    let open = opened(&users, "f").await;
    let (a, b) = (&users[0], &users[1]);
    let mode = SetAttr {
        mode: Some(0o600),
        ..Default::default()
    };
    let changed = b.fs.setattr(&b.cred, open[1].fid(), mode, None).await;
    changed.unwrap();
    let (_, n) = rpcs(&a.fs, async {
        for block in 0..100 {
            a.write(&open[0], block * 4096, &[1; 4096]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        a.fs.fsync(&open[0], true).await.unwrap();
    })
    .await;
    let of = |name| n.iter().find(|(o, _)| o == name).map_or(0, |(_, c)| *c);
    println!("{n:?}");
    assert!(of("LDLM_ENQUEUE") <= 6 && of("OST_WRITE") <= 6, "{n:?}");
    c.stop().await;
}

/// How one client of a model picks the places of its writes.
#[derive(Clone, Copy)]
enum How {
    /// In a part of its own.
    Part,
    /// Blocks that alternate with those of the other clients.
    Stride,
    /// The same, mostly one after the other.
    Steady,
    /// Anywhere.
    Random,
}

/// Several clients write, read, cut and append, one after the other: each step sees what a vector would have. How many writes were
/// dirty.
async fn as_a_vector(seed: u64, clients: usize, stripes: u16, how: How) -> u32 {
    const SIZE: u64 = 600_000;
    let c = Cluster::start(2, stripes, STRIPE).await;
    let users = users(&c, clients).await;
    let open = opened(&users, "f").await;
    let mut logs = Vec::new();
    for u in &users {
        logs.push(u.open("f", libc::O_WRONLY | libc::O_APPEND).await.unwrap());
    }
    let (mut rng, mut model, mut kept) = (Rng(seed), b"x".to_vec(), 0);
    let mut steady = vec![0; clients];
    let block = [512, 4096, 10_000, 65_536][rng.below(4) as usize];
    let fail = |what: &str, step: u32| format!("seed {seed} step {step}: {what}");
    for step in 0..500u32 {
        let who = rng.below(clients as u64) as usize;
        let (u, fh, fs) = (&users[who], &open[who], &users[who].fs);
        let (count, blocks) = (clients as u64, SIZE / block);
        let part = blocks / count;
        let at = block
            * match how {
                How::Part => who as u64 * part + rng.below(part),
                How::Stride => who as u64 + count * rng.below(part),
                How::Steady => {
                    let n = &mut steady[who];
                    *n = match rng.below(12) {
                        0 => rng.below(part),
                        _ => (*n + 1) % part,
                    };
                    who as u64 + count * *n
                }
                How::Random => rng.below(blocks),
            };
        let odd = !matches!(how, How::Steady) && rng.below(4) == 0 || rng.below(16) == 0;
        let (at, len) = match odd {
            true => (at + rng.below(block), 1 + rng.below(block)),
            false => (at, block),
        };
        match rng.below(40) {
            0..24 => {
                let (value, end) = (rng.below(255) as u8 + 1, (at + len) as usize);
                u.write(fh, at, &vec![value; len as usize]).await.unwrap();
                model.resize(model.len().max(end), 0);
                model[at as usize..end].fill(value);
                kept += (dirty(fs) > 0) as u32;
            }
            24..33 => {
                let got = u.read(fh, at, len as u32).await.unwrap();
                let cut = |n: u64| model.len().min(n as usize);
                let right = got == model[cut(at)..cut(at + len)];
                assert!(right, "{}", fail("a read", step));
            }
            33 => {
                let set = SetAttr {
                    size: Some(rng.below(SIZE)),
                    ..Default::default()
                };
                fs.setattr(&u.cred, fh.fid(), set, Some(fh)).await.unwrap();
                model.resize(set.size.unwrap() as usize, 0);
            }
            34 => {
                for i in 0..rng.below(4) as u8 {
                    let data = vec![step as u8 ^ i; 1 + rng.below(3000) as usize];
                    u.write(&logs[who], 0, &data).await.unwrap();
                    model.extend(data);
                }
            }
            35 => u.fs.fsync(fh, true).await.unwrap(),
            _ => {
                let size = u.stat("f").await.unwrap().size;
                assert_eq!(size, model.len() as u64, "{}", fail("the size", step));
            }
        }
    }
    for u in &users {
        let right = u.get("f").await.unwrap() == model;
        assert!(right, "{}", fail("the whole", 500));
    }
    c.stop().await;
    kept
}

const HOWS: [How; 4] = [How::Part, How::Stride, How::Random, How::Steady];

#[tokio::test]
async fn clients_and_a_vector_agree() {
    let mut kept = 0;
    for seed in 1..=number("CORAL_SEEDS", 16) {
        let (clients, stripes) = (2 + seed as usize / 4 % 2, 1 + (seed / 8 % 2) as u16);
        let one = as_a_vector(seed, clients, stripes, HOWS[seed as usize % 4]);
        kept += tokio::time::timeout(HANGS, one).await.expect("it hangs");
    }
    assert!(kept > 150, "{kept} writes were dirty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_and_a_vector_agree_on_threads() {
    for seed in 101..101 + number("CORAL_SEEDS", 8) {
        let one = as_a_vector(seed, 3, 1 + (seed % 2) as u16, HOWS[seed as usize % 4]);
        tokio::time::timeout(HANGS, one).await.expect("it hangs");
    }
}

/// Several write blocks of their own at the same time, cut the file or append in between, and read what others wrote: no byte is
/// lost, and nobody waits in a circle.
async fn at_once(seed: u64, clients: usize, stripes: u16) {
    let c = Cluster::start(2, stripes, STRIPE).await;
    let users = users(&c, clients).await;
    let open = opened(&users, "f").await;
    let (mut rng, mut model) = (Rng(seed), b"x".to_vec());
    for round in 0..12u64 {
        let block = [512, 4096, 5000, 65_536][rng.below(4) as usize];
        let (strided, count) = (rng.below(2) == 0, 40);
        let base = match rng.below(2) {
            0 => rng.below(200_000),
            _ => rng.below(50) * 4096,
        };
        let place = move |who: usize, i: u64| {
            let n = match strided {
                true => i * clients as u64 + who as u64,
                false => who as u64 * count + i,
            };
            base + n * block
        };
        let mut jobs = tokio::task::JoinSet::new();
        for (who, fh) in open.iter().enumerate() {
            let (fs, fh) = (users[who].fs.clone(), fh.clone());
            let value = (round * 8 + who as u64 + 1) as u8;
            jobs.spawn(async move {
                let u = User::root(&fs);
                for i in 0..count {
                    let at = place(who, i);
                    u.write(&fh, at, &vec![value; block as usize])
                        .await
                        .unwrap();
                    if i % 7 == 3 {
                        let got = u.read(&fh, at, block as u32).await.unwrap();
                        assert!(got == vec![value; block as usize], "seed {seed}");
                    }
                    if i % 16 == 5 {
                        u.stat("f").await.unwrap();
                    }
                }
            });
            let end = (0..count).map(|i| place(who, i) + block).max().unwrap();
            model.resize(model.len().max(end as usize), 0);
            for i in 0..count {
                let at = place(who, i) as usize;
                model[at..at + block as usize].fill(value);
            }
        }
        while jobs.join_next().await.transpose().unwrap().is_some() {}
        let who = rng.below(clients as u64) as usize;
        let (u, fh) = (&users[who], &open[who]);
        match rng.below(3) {
            0 => {
                let size = rng.below(model.len() as u64);
                let set = SetAttr {
                    size: Some(size),
                    ..Default::default()
                };
                u.fs.setattr(&u.cred, fh.fid(), set, Some(fh))
                    .await
                    .unwrap();
                model.resize(size as usize, 0);
            }
            1 => {
                let log = u.open("f", libc::O_WRONLY | libc::O_APPEND).await.unwrap();
                for _ in 0..4 {
                    u.write(&log, 0, &[9; 700]).await.unwrap();
                    model.extend([9; 700]);
                }
            }
            _ => {}
        }
        let reader = &users[rng.below(clients as u64) as usize];
        let right = reader.get("f").await.unwrap() == model;
        assert!(right, "seed {seed} round {round}, {stripes} stripes");
    }
    c.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_between_writers() {
    for seed in 1..=number("CORAL_SEEDS", 6) {
        let one = at_once(seed, 2 + seed as usize % 2, 1 + (seed / 2 % 2) as u16);
        let ended = tokio::time::timeout(HANGS, one).await;
        ended.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}

/// Each has locks of its own within what all write then at once: nobody waits in a circle, and all see the same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_writes_over_small_locks_end() {
    const BLOCK: u64 = 4096;
    const CLIENTS: u64 = 3;
    const BLOCKS: u64 = 6 * CLIENTS;
    let all = async {
        for stripes in [1, 2] {
            let c = Cluster::start(2, stripes, STRIPE).await;
            let users = users(&c, CLIENTS as usize).await;
            let open = opened(&users, "f").await;
            for round in 0..15u64 {
                for block in 0..BLOCKS {
                    let who = (block % CLIENTS) as usize;
                    let data = [who as u8 + 1; BLOCK as usize];
                    let wrote = users[who].write(&open[who], block * BLOCK, &data).await;
                    wrote.unwrap();
                }
                let mut jobs = tokio::task::JoinSet::new();
                for (who, fh) in open.iter().enumerate() {
                    let (fs, fh) = (users[who].fs.clone(), fh.clone());
                    jobs.spawn(async move {
                        let u = User::root(&fs);
                        let at = (who as u64 + round) % CLIENTS * BLOCK;
                        let data = vec![who as u8 + 1; ((BLOCKS - CLIENTS) * BLOCK) as usize];
                        u.write(&fh, at, &data).await.unwrap();
                    });
                }
                while jobs.join_next().await.transpose().unwrap().is_some() {}
            }
            let seen = users[0].get("f").await.unwrap();
            assert!(seen.iter().all(|b| (1..=CLIENTS as u8).contains(b)));
            for u in &users {
                assert!(u.get("f").await.unwrap() == seen, "{stripes} stripes");
            }
            let evicted: u64 = (0..2).map(|i| c.ost(i).stats().evictions.value()).sum();
            assert_eq!(evicted, 0);
            c.stop().await;
        }
    };
    tokio::time::timeout(HANGS, all).await.expect("it hangs");
}

/// A writes over all of a range again and again, parts of which it has locked, while B writes small pieces within it: the writes of both end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_partly_over_its_own_locks_ends_beside_another_writer() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 16;
    let all = async {
        for stripes in [1, 2] {
            let c = Cluster::start(2, stripes, BLOCK as u32 * 4).await;
            let users = users(&c, 2).await;
            let open = opened(&users, "f").await;
            let (ended, pieces) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (fs, fh) = (users[1].fs.clone(), open[1].clone());
            let (until, count) = (ended.clone(), pieces.clone());
            let beside = tokio::spawn(async move {
                let u = User::root(&fs);
                let mut n = 0;
                while until.load(Ordering::Relaxed) == 0 {
                    n = (n + 5) % BLOCKS;
                    let at = n * BLOCK + 100;
                    u.write(&fh, at, &[2; 500]).await.unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                    // what was woken on this thread is run by no other
                    tokio::task::yield_now().await;
                }
            });
            let (a, mut round) = (&users[0], 0);
            // both go on, and neither waits for the other to end
            while round < 100 || pieces.load(Ordering::Relaxed) < 100 {
                round += 1;
                let own = round % BLOCKS * BLOCK;
                a.write(&open[0], own, &[1; BLOCK as usize]).await.unwrap();
                let over = a.write(&open[0], 0, &[1; (BLOCKS * BLOCK) as usize]);
                over.await.unwrap();
            }
            ended.store(1, Ordering::Relaxed);
            beside.await.unwrap();
            let data = users[1].get("f").await.unwrap();
            assert_eq!(data.len() as u64, BLOCKS * BLOCK);
            let piece = |i: usize| (100..600).contains(&(i as u64 % BLOCK));
            let right = |i: usize| data[i] == 1 || data[i] == 2 && piece(i);
            assert!((0..data.len()).all(right), "{stripes} stripes");
            c.stop().await;
        }
    };
    tokio::time::timeout(HANGS, all).await.expect("it hangs");
}

/// Several clients make a file longer at once, each with several locks on every object: nobody is told a size that is smaller than what
/// was written before he asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_sees_a_size_without_what_was_written() {
    const BLOCK: u64 = 4096;
    const CLIENTS: u64 = 3;
    for stripes in [1, 2] {
        let c = Cluster::start(2, stripes, STRIPE).await;
        let users = users(&c, CLIENTS as usize).await;
        let open = opened(&users, "f").await;
        let watcher = User::root(&c.remote_client().await);
        let written = Arc::new(AtomicU64::new(1));
        let mut jobs = tokio::task::JoinSet::new();
        for (who, fh) in open.iter().enumerate() {
            let (fs, fh, written) = (users[who].fs.clone(), fh.clone(), written.clone());
            jobs.spawn(async move {
                let u = User::root(&fs);
                for step in 0..150u64 {
                    // the part of each moves on and comes back, so that it takes many locks
                    let at = (step * CLIENTS + (who as u64 + step / 8) % CLIENTS) * BLOCK;
                    u.write(&fh, at, &[7; BLOCK as usize]).await.unwrap();
                    written.fetch_max(at + BLOCK, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            });
        }
        let watch = async {
            while !jobs.is_empty() {
                let least = written.load(Ordering::SeqCst);
                let size = watcher.stat("f").await.unwrap().size;
                assert!(size >= least, "{size} of {least}, {stripes} stripes");
                while jobs.try_join_next().transpose().unwrap().is_some() {}
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANGS, watch).await.expect("it hangs");
        let size = watcher.stat("f").await.unwrap().size;
        assert_eq!(size, written.load(Ordering::SeqCst));
        c.stop().await;
    }
}

/// An eviction by one OST loses what was dirty for it under the locks on ranges there, and no more. The client asks for new locks on the same
/// bytes and goes on.
#[tokio::test(start_paused = true)]
async fn an_eviction_loses_what_was_under_the_ranges_of_that_ost() {
    const STRIPE_BYTES: usize = STRIPE as usize;
    const PART: usize = 4 * STRIPE_BYTES;
    let c = Cluster::start(2, 2, STRIPE).await;
    let users = users(&c, 2).await;
    let open = opened(&users, "f").await;
    let (a, b) = (&users[0], &users[1]);
    for (value, offset, who) in [(1, 0, 0), (3, PART, 1), (2, 0, 0)] {
        a.fs.fsync(&open[0], false).await.unwrap();
        let data = vec![value; PART];
        let wrote = users[who].write(&open[who], offset as u64, &data).await;
        wrote.unwrap();
    }
    assert_eq!(dirty(&a.fs), PART as u64);
    b.fs.fsync(&open[1], false).await.unwrap();
    let mut exports = c.ost(0).exports().into_iter();
    let of_a = exports.find(|e| e.nid() == a.fs.node().nid());
    c.ost(0).evict(of_a.expect("connected").cookie, "a test");
    let told = a.fs.fsync(&open[0], false).await.map_err(Errno::from);
    assert_eq!(told, Err(Errno::EIO));
    assert_eq!(a.fs.fsync(&open[0], false).await, Ok(()));
    assert_eq!(dirty(&a.fs), 0);
    let all = b.get("f").await.unwrap();
    assert!(all.len() == 2 * PART && all[PART..].iter().all(|b| *b == 3));
    let stripes: Vec<u8> = all[..PART].chunks(STRIPE_BYTES).map(|s| s[0]).collect();
    assert!(
        all[..PART]
            .chunks(STRIPE_BYTES)
            .all(|s| s.iter().all(|b| *b == s[0]))
    );
    let lost_on_one = stripes == [1, 2, 1, 2] || stripes == [2, 1, 2, 1];
    assert!(lost_on_one, "{stripes:?}");
    a.write(&open[0], 0, &[4; PART]).await.unwrap();
    a.fs.fsync(&open[0], false).await.unwrap();
    let all = b.get("f").await.unwrap();
    assert!(all[..PART].iter().all(|b| *b == 4) && all[PART..].iter().all(|b| *b == 3));
    c.stop().await;
}

/// Lets the tasks run that can, once each.
async fn others() {
    let mut ran = false;
    let once = |cx: &mut std::task::Context<'_>| {
        cx.waker().wake_by_ref();
        match std::mem::replace(&mut ran, true) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    };
    std::future::poll_fn(once).await;
}

/// A hole is read before data that another client keeps dirty under a lock of its own, far behind what the OST has stored: it is as long as was
/// asked for, for who holds a lock on it, for who wrote that data, and for who holds none. B asks again while A waits for what B gives
/// back; how far that is then is tried in small steps.
#[tokio::test(start_paused = true)]
async fn a_hole_does_not_end_before_what_is_dirty_behind_it() {
    const FAR: u64 = 2 << 20;
    const HOLE: u64 = 8192;
    let c = Cluster::start(1, 1, STRIPE).await;
    let users = users(&c, 3).await;
    let (a, b) = (&users[0], &users[1]);
    let mut apart = 0;
    for reader in 0..3 {
        for steps in 0..60 {
            let path = format!("f{reader}.{steps}");
            let open = opened(&users[..2], &path).await;
            b.write(&open[1], 0, &[2; 50]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let (fs, fh) = (b.fs.clone(), open[1].clone());
            let far = tokio::spawn(async move {
                for _ in 0..steps {
                    others().await;
                }
                User::root(&fs).write(&fh, FAR, &[3; 4096]).await.unwrap();
            });
            a.write(&open[0], 0, &[1; 100]).await.unwrap();
            far.await.unwrap();
            apart += (dirty(&a.fs) > 0 && dirty(&b.fs) > 0) as u32;
            let fh = match open.get(reader) {
                Some(fh) => fh.clone(),
                None => users[2].open(&path, libc::O_RDONLY).await.unwrap(),
            };
            let got = users[reader].read(&fh, HOLE, 4096).await.unwrap();
            assert!(got == [0; 4096], "reader {reader}, {steps}: {}", got.len());
            let size = users[reader].stat(&path).await.unwrap().size;
            assert_eq!(size, FAR + 4096);
            for (u, fh) in users.iter().zip(&open) {
                u.fs.fsync(fh, false).await.unwrap();
            }
        }
    }
    assert!(apart > 3, "both were dirty {apart} times");
    c.stop().await;
}
