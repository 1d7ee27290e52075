//! Dirty data of write(2): what it saves, what others see of it, what becomes of it when things go wrong.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use coral_client::{FileHandle, Llite, MountOptions, SeekWhence, SetAttr, SetTime, Timespec};
use coral_osd::Fault;
use coral_wire::Errno;
use coral_wire::layout::{CompEntry, CompMd, LOV_OFFSET_DEFAULT, Layout, LovMd};
use rand::SeedableRng;
use rand::seq::SliceRandom;

const STRIPE: u32 = 65536;
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(240);

/// A parameter of all OSTs, summed.
fn param(fs: &Arc<Llite>, what: &str) -> u64 {
    let all = fs.params();
    all.iter()
        .filter(|(n, _)| n.starts_with("osc.") && n.ends_with(what))
        .map(|(_, v)| v.parse::<u64>().unwrap())
        .sum()
}

/// Bytes dirty.
fn dirty(fs: &Arc<Llite>) -> u64 {
    param(fs, ".cur_dirty_bytes")
}

/// A handle whose further writes are dirty: the first are not. They write 2 bytes.
async fn writer(u: &User, path: &str) -> Arc<FileHandle> {
    let fh = u.create(path, libc::O_RDWR).await.unwrap();
    for i in 0..2 {
        u.write(&fh, i, b"x").await.unwrap();
    }
    fh
}

/// A layout of two components, the first of one stripe and `first` bytes, the second of two stripes.
fn components(first: u64) -> bytes::Bytes {
    let comp = |from, to, count| {
        CompEntry::new(
            0,
            0,
            from,
            to,
            LovMd::request(STRIPE, count, LOV_OFFSET_DEFAULT, None),
        )
    };
    Layout::Composite(CompMd::new(
        0,
        0,
        0,
        vec![comp(0, first, 1), comp(first, u64::MAX, 2)],
    ))
    .encode()
}

#[tokio::test(start_paused = true)]
async fn many_small_writes_are_few_requests() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = u.create("f", libc::O_RDWR).await.unwrap();
    let (_, n) = rpcs(&fs, async {
        for i in 0..1000u64 {
            u.write(&fh, i * 4096, &[i as u8; 4096]).await.unwrap();
        }
    })
    .await;
    assert_eq!(
        n,
        counts(&[("LDLM_ENQUEUE", 1), ("OST_WRITE", 1)]),
        "what a new file begins with goes first, then a lock is taken"
    );
    assert_eq!(dirty(&fs), 984 * 4096);
    let (_, n) = rpcs(&fs, u.fs.fsync(&fh, false)).await;
    assert_eq!(
        n,
        counts(&[("MDS_SYNC", 1), ("OST_SYNC", 1), ("OST_WRITE", 1)])
    );
    assert_eq!(dirty(&fs), 0);
    let all = u.read(&fh, 0, 1000 * 4096).await.unwrap();
    assert!(
        all.chunks(4096)
            .enumerate()
            .all(|(i, p)| p == [i as u8; 4096])
    );
    // a small file costs what it did
    let d = u.mkdir("d").await.unwrap();
    u.put("d/0", b"x").await.unwrap();
    u.names("d").await.unwrap();
    let (_, n) = rpcs(&fs, async {
        let (_, fh) = fs
            .create(&u.cred, d, b"f", 0o644, libc::O_RDWR as u32)
            .await
            .unwrap();
        u.write(&fh, 0, &[1; 1024]).await.unwrap();
        u.close(&fh).await.unwrap();
    })
    .await;
    assert_eq!(
        n,
        counts(&[("LDLM_ENQUEUE", 1), ("MDS_CLOSE", 1), ("OST_WRITE", 1)])
    );
    c.stop().await;
}

/// A log that a program appends to, small record by small record.
#[tokio::test(start_paused = true)]
async fn many_small_appends_are_few_requests() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, o) = (User::root(&fs), User::root(&other));
    u.put("log", b"before").await.unwrap();
    let mut want = b"before".to_vec();
    let log = u
        .open("log", libc::O_WRONLY | libc::O_APPEND)
        .await
        .unwrap();
    let record = |n: u32| vec![n as u8; 1 + n as usize % 300];
    let (_, n) = rpcs(&fs, async {
        for n in 0..1000 {
            u.write(&log, 0, &record(n)).await.unwrap();
            want.extend(record(n));
        }
    })
    .await;
    let few = [
        ("LDLM_CANCEL", 4),
        ("LDLM_ENQUEUE", 6),
        ("OST_GETATTR", 6),
        ("OST_WRITE", 6),
    ];
    assert!(
        n.iter()
            .all(|(what, n)| few.iter().any(|f| f.0 == what && *n <= f.1)),
        "two are synchronous, then locks are taken: {n:?}"
    );
    assert!(dirty(&fs) > 0);
    assert_eq!(u.stat("log").await.unwrap().size, want.len() as u64);
    // another handle, a plain write behind the end, and another client
    let second = u.open("log", libc::O_RDWR).await.unwrap();
    for n in 0..20 {
        u.write(&second, want.len() as u64 + 10, &[7; 20])
            .await
            .unwrap();
        want.extend([0; 10]);
        want.extend([7; 20]);
        u.write(&log, 0, &record(n)).await.unwrap();
        want.extend(record(n));
    }
    assert!(dirty(&fs) > 0);
    assert!(o.get("log").await.unwrap() == want);
    let theirs = o
        .open("log", libc::O_WRONLY | libc::O_APPEND)
        .await
        .unwrap();
    for n in 0..60 {
        let (who, log) = if n % 20 < 10 {
            (&o, &theirs)
        } else {
            (&u, &log)
        };
        who.write(log, 0, &record(n)).await.unwrap();
        want.extend(record(n));
    }
    // cut while something is dirty
    let set = SetAttr {
        size: Some(100),
        ..Default::default()
    };
    fs.setattr(&u.cred, log.fid(), set, Some(&log))
        .await
        .unwrap();
    want.truncate(100);
    u.write(&log, 0, b"end").await.unwrap();
    want.extend(b"end");
    assert!(o.get("log").await.unwrap() == want && u.get("log").await.unwrap() == want);
    c.stop().await;
}

/// A stream goes out in whole RPCs while it is written, and never more than the limit is dirty.
#[tokio::test]
async fn a_stream_is_written_out_behind_the_writer() {
    let c = Cluster::start(2, 2, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = u.create("f", libc::O_RDWR).await.unwrap();
    let limit = param(&fs, ".max_dirty_mb") << 20;
    let data = vec![7; 1 << 20];
    let (_, n) = rpcs(&fs, async {
        for i in 0..128u64 {
            u.write(&fh, i << 20, &data).await.unwrap();
            assert!(dirty(&fs) <= limit);
        }
        u.fs.fsync(&fh, false).await.unwrap();
    })
    .await;
    let writes = n.iter().find(|(o, _)| o == "OST_WRITE").unwrap().1;
    assert!(
        (32..48).contains(&writes),
        "128 MiB in RPCs of 4 MiB: {n:?}"
    );
    assert_eq!(u.stat("f").await.unwrap().size, 128 << 20);
    c.stop().await;
}

/// Pages that lie far apart share requests: as many as the same pages in a row would take, and a fifth more at most.
#[tokio::test(start_paused = true)]
async fn pages_in_random_order_fill_their_requests() {
    const PAGES: u64 = 32_768;
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = writer(&u, "f").await;
    let page = |n: u64| n.to_le_bytes().repeat(512);
    let mut order: Vec<u64> = (0..PAGES).collect();
    order.shuffle(&mut rand::rngs::StdRng::seed_from_u64(7));
    let (_, n) = rpcs(&fs, async {
        for n in &order {
            u.write(&fh, n * 4096, &page(*n)).await.unwrap();
        }
        u.fs.fsync(&fh, false).await.unwrap();
    })
    .await;
    let writes = n.iter().find(|(o, _)| o == "OST_WRITE").unwrap().1;
    let full = PAGES * 4096 / (4 << 20);
    assert!(
        writes >= full && 5 * writes <= 6 * full,
        "{writes} requests for {full}: {n:?}"
    );
    let other = User::root(&c.remote_client().await);
    let (got, fh) = (&other, other.open("f", libc::O_RDONLY).await.unwrap());
    for n in (0..PAGES).step_by(256) {
        let all = got.read(&fh, n * 4096, 256 * 4096).await.unwrap();
        let want: Vec<u8> = (n..n + 256).flat_map(page).collect();
        assert!(all == want, "from page {n}");
    }
    c.stop().await;
}

/// It goes out by itself, also after the last close.
#[tokio::test(start_paused = true)]
async fn nothing_is_dirty_for_long() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = writer(&u, "f").await;
    u.write(&fh, 10, &[1; 100_000]).await.unwrap();
    assert!(dirty(&fs) > 0);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(dirty(&fs), 0);
    u.write(&fh, 10, &[2; 100_000]).await.unwrap();
    u.close(&fh).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        (dirty(&fs), fs.covered_files()),
        (0, 0),
        "the last writer closed"
    );
    assert_eq!(u.get("f").await.unwrap()[10..], [2; 100_000]);
    // and with the mount
    let fh = writer(&u, "g").await;
    u.write(&fh, 10, &[3; 100_000]).await.unwrap();
    fs.umount().await;
    let v = User::root(&c.client().await);
    assert_eq!(v.get("g").await.unwrap()[10..], [3; 100_000]);
    c.stop().await;
}

/// Another client is told how big a file is and when it was written, and the writer keeps its lock; a reader gets the bytes.
#[tokio::test]
async fn others_see_dirty_data() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let (a, b) = (c.client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    let fh = writer(&ua, "f").await;
    ua.write(&fh, 10, &[1; 200_000]).await.unwrap();
    let own = ua.stat("f").await.unwrap();
    let theirs = ub.stat("f").await.unwrap();
    assert_eq!(
        (own.size, theirs.size, own.mtime),
        (200_010, 200_010, theirs.mtime)
    );
    assert!(dirty(&a) > 0, "they were told without it");
    assert_eq!(ub.get("f").await.unwrap()[10..], [1; 200_000]);
    assert_eq!(dirty(&a), 0);
    assert_eq!(ub.stat("f").await.unwrap().mtime, own.mtime);
    // who has to share a file asks for its lock again, and keeps back what it writes
    let (_, n) = rpcs(&a, async {
        for i in 0..8 {
            ua.write(&fh, 10 + i, b"z").await.unwrap();
        }
    })
    .await;
    assert_eq!(n, [("LDLM_ENQUEUE".to_owned(), 1)]);
    c.stop().await;
}

/// Two clients do one thing after another to one file, each through two handles: at every step each sees what a plain vector
/// would have. How many appends were dirty.
async fn as_a_vector(seed: u64, stripes: u16, plain: bool) -> u32 {
    const SIZE: u64 = 400_000;
    let c = Cluster::start(2, stripes, STRIPE).await;
    let mut users = Vec::new();
    for _ in 0..2 {
        let fs = c.remote_client().await;
        users.push(User::root(&fs));
    }
    if seed % 4 == 1 {
        users[0]
            .fs
            .setxattr(
                &users[0].cred,
                users[0].fs.root(),
                b"lustre.lov",
                components(2 * STRIPE as u64),
                0,
            )
            .await
            .unwrap();
    }
    users[0].put("f", b"").await.unwrap();
    let (mut open, mut logs) = (Vec::new(), Vec::new());
    for u in &users {
        open.push([
            u.open("f", libc::O_RDWR).await.unwrap(),
            u.open("f", libc::O_RDWR).await.unwrap(),
        ]);
        logs.push(u.open("f", libc::O_WRONLY | libc::O_APPEND).await.unwrap());
    }
    let (mut rng, mut model, mut last, mut kept, mut kept_appends) =
        (Rng(seed), Vec::<u8>::new(), 0, 0, 0);
    for step in 0..600 {
        // runs of one client, so that it comes to keep things back
        if rng.below(12) == 0 {
            last = 1 - last;
        }
        let (u, fh) = (&users[last], &open[last][rng.below(2) as usize]);
        let most = if rng.below(4) == 0 { 90_000 } else { 5000 };
        let (at, len) = (rng.below(SIZE), 1 + rng.below(most));
        let what = rng.below(if plain { 14 } else { 20 });
        match what {
            0..8 => {
                let (value, end) = (rng.below(255) as u8 + 1, (at + len) as usize);
                u.write(fh, at, &vec![value; len as usize]).await.unwrap();
                if model.len() < end {
                    model.resize(end, 0);
                }
                model[at as usize..end].fill(value);
                kept += (dirty(&u.fs) > 0) as u32;
            }
            8..13 => {
                let got = u.read(fh, at, len as u32).await.unwrap();
                let (from, to) = (
                    model.len().min(at as usize),
                    model.len().min((at + len) as usize),
                );
                assert!(
                    got == model[from..to],
                    "seed {seed} step {step}: read {at}+{len}, file {}",
                    model.len()
                );
            }
            13 | 14 => {
                let size =
                    u.fs.getattr(&u.cred, fh.fid(), None)
                        .await
                        .unwrap()
                        .attr
                        .size;
                assert_eq!(size, model.len() as u64, "seed {seed} step {step}");
            }
            15 => {
                let set = SetAttr {
                    size: Some(at),
                    ..Default::default()
                };
                u.fs.setattr(&u.cred, fh.fid(), set, Some(fh))
                    .await
                    .unwrap();
                model.resize(at as usize, 0);
            }
            16 => {
                for i in 0..rng.below(5) as u8 {
                    let len = 1 + rng.below(2000) as usize;
                    u.write(&logs[last], 0, &vec![step as u8 ^ i; len])
                        .await
                        .unwrap();
                    model.extend(vec![step as u8 ^ i; len]);
                    kept_appends += (dirty(&u.fs) > 0) as u32;
                }
            }
            17 => u.fs.fsync(fh, true).await.unwrap(),
            18 => {
                // KEEP_SIZE and PUNCH_HOLE
                u.fs.fallocate(&u.cred, fh, 3, at, len).await.unwrap();
                let (from, to) = (
                    model.len().min(at as usize),
                    model.len().min((at + len) as usize),
                );
                model[from..to].fill(0);
            }
            _ if !model.is_empty() => {
                let found =
                    u.fs.lseek(fh, model.len() as u64 - 1, SeekWhence::Hole)
                        .await
                        .unwrap();
                assert!(found == model.len() as u64 || found == model.len() as u64 - 1);
            }
            _ => {}
        }
    }
    assert!(kept > 20, "seed {seed}: only {kept} writes were dirty");
    for u in &users {
        assert!(
            u.get("f").await.unwrap() == model,
            "seed {seed}, at the end"
        );
    }
    c.stop().await;
    kept_appends
}

#[tokio::test]
async fn two_clients_and_a_vector_agree() {
    let mut kept = 0;
    for seed in 1..=12 {
        kept += tokio::time::timeout(
            HANGS,
            as_a_vector(seed, 1 + (seed % 2) as u16, seed % 3 == 0),
        )
        .await
        .expect("it hangs");
    }
    assert!(kept > 20, "{kept} appends were dirty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_clients_and_a_vector_agree_on_threads() {
    let mut kept = 0;
    for seed in 101..=106 {
        kept += tokio::time::timeout(HANGS, as_a_vector(seed, 2, false))
            .await
            .expect("it hangs");
    }
    assert!(kept > 20, "{kept} appends were dirty");
}

/// Writers and readers of two clients at once on a few files: each word only grows, nobody waits in a circle, and what a
/// write acknowledged is there for a read that begins after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contention_is_coherent() {
    contention(false).await;
}

/// The same with servers taken for kernel ones, which do not tell where a file ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contention_is_coherent_as_with_kernel_servers() {
    contention(true).await;
}

async fn contention(plain: bool) {
    const WORDS: u64 = 40;
    const SPACING: u64 = 10_000;
    let c = Cluster::start(2, 2, STRIPE).await;
    let options = || MountOptions {
        plain,
        ..c.mount_options()
    };
    let fss = [
        c.remote_client_with(options()).await,
        c.remote_client_with(options()).await,
    ];
    for f in 0..2 {
        User::root(&fss[0])
            .put(&format!("f{f}"), b"")
            .await
            .unwrap();
    }
    let written: Arc<Vec<std::sync::atomic::AtomicU64>> =
        Arc::new((0..2 * WORDS).map(|_| Default::default()).collect());
    let mut jobs = tokio::task::JoinSet::new();
    for (id, fs) in [0, 1, 0, 1].map(|i| fss[i].clone()).into_iter().enumerate() {
        let written = written.clone();
        jobs.spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            let (u, mut rng) = (User::root(&fs), Rng(77 + id as u64));
            let open = [
                u.open("f0", libc::O_RDWR).await.unwrap(),
                u.open("f1", libc::O_RDWR).await.unwrap(),
            ];
            for n in 1..400u64 {
                let (f, word) = (rng.below(2), rng.below(WORDS));
                let (fh, slot) = (&open[f as usize], &written[(f * WORDS + word) as usize]);
                // words are one writer's each
                if word % 4 == id as u64 {
                    u.write(fh, word * SPACING, &n.to_le_bytes()).await.unwrap();
                    slot.store(n, SeqCst);
                } else {
                    let least = slot.load(SeqCst);
                    let got = u.read(fh, word * SPACING, 8).await.unwrap();
                    let got = got.try_into().map_or(0, u64::from_le_bytes);
                    assert!(
                        got >= least,
                        "file {f} word {word}: {got} read, {least} was written"
                    );
                }
                if n % 50 == 0 {
                    u.fs.fsync(fh, true).await.unwrap();
                }
            }
        });
    }
    let all = async { while jobs.join_next().await.transpose().unwrap().is_some() {} };
    tokio::time::timeout(HANGS, all)
        .await
        .expect("something waits in a circle");
    c.stop().await;
}

/// Times are those of the last write or of who set them, whenever the bytes go out.
#[tokio::test(start_paused = true)]
async fn times_are_those_of_the_write() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (a, b) = (c.client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    let fh = writer(&ua, "f").await;
    ua.write(&fh, 0, &[1; 5000]).await.unwrap();
    let before = ua.stat("f").await.unwrap().mtime;
    tokio::time::sleep(Duration::from_millis(300)).await;
    ua.fs.fsync(&fh, false).await.unwrap();
    assert_eq!(
        (
            ua.stat("f").await.unwrap().mtime,
            ub.stat("f").await.unwrap().mtime
        ),
        (before, before)
    );
    let old = Timespec {
        secs: 1_000_000_000,
        nanos: 7,
    };
    ua.write(&fh, 0, &[2; 5000]).await.unwrap();
    let set = SetAttr {
        mtime: Some(SetTime::At(old)),
        ..Default::default()
    };
    a.setattr(&ua.cred, fh.fid(), set, None).await.unwrap();
    assert_eq!(
        (
            ua.stat("f").await.unwrap().mtime,
            ub.stat("f").await.unwrap().mtime
        ),
        (old, old)
    );
    ua.close(&fh).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(ub.stat("f").await.unwrap().mtime, old);
    c.stop().await;
}

/// An OST that fails to store dirty data: each handle that was open is told by fsync, once, whatever a write or a close of it said.
#[tokio::test(start_paused = true)]
async fn each_handle_is_told_what_was_lost() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = writer(&u, "f").await;
    let (second, third) = (
        u.open("f", libc::O_RDWR).await.unwrap(),
        u.open("f", libc::O_RDWR).await.unwrap(),
    );
    // the OST has counted what its owner uses, and writes nothing of its own meanwhile
    tokio::time::sleep(Duration::from_secs(10)).await;
    u.write(&fh, 0, &[1; 5000]).await.unwrap();
    c.disks.osts[0].inject(Fault::FailWrite(1));
    assert_eq!(
        u.fs.fsync(&fh, false).await.map_err(Errno::from),
        Err(Errno::EIO)
    );
    assert_eq!(u.fs.fsync(&fh, false).await, Ok(()));
    assert_eq!(u.write(&fh, 0, b"w").await, Ok(1), "fsync told it");
    let closes = async |fh: &_| u.fs.flush(fh, 5).await.map_err(Errno::from);
    assert_eq!(closes(&fh).await, Ok(()));
    assert_eq!(u.write(&second, 0, b"x").await, Err(Errno::EIO));
    assert_eq!(u.write(&second, 0, b"y").await, Ok(1), "it was told once");
    for other in [&second, &third, &third] {
        assert_eq!(
            closes(other).await,
            Err(Errno::EIO),
            "any process may close it"
        );
    }
    for other in [&second, &third] {
        assert_eq!(
            u.fs.fsync(other, false).await.map_err(Errno::from),
            Err(Errno::EIO),
            "the program heard a short write, or nothing"
        );
        assert_eq!(u.fs.fsync(other, false).await, Ok(()));
        assert_eq!(closes(other).await, Ok(()));
    }
    let late = u.open("f", libc::O_RDWR).await.unwrap();
    assert_eq!(u.fs.fsync(&late, false).await, Ok(()));
    assert_eq!(u.get("f").await.unwrap(), b"yx");
    c.stop().await;
}

/// Dirty data has room; where there is none, the write itself is told. What is granted is never more than what is free,
/// and comes back at unmount.
#[tokio::test]
async fn a_full_disk_is_told_by_the_write() {
    const CAPACITY: u64 = 24 << 20;
    let c = Cluster::start_bounded(1, CAPACITY).await;
    let (a, b) = (c.client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    let (fa, fb) = (writer(&ua, "a").await, writer(&ub, "b").await);
    let (mut at, mut ends) = (0, [false; 2]);
    while ends != [true; 2] && at < 2 * CAPACITY {
        for (i, (u, fh)) in [(&ua, &fa), (&ub, &fb)].into_iter().enumerate() {
            let granted = param(&a, ".cur_grant_bytes") + param(&b, ".cur_grant_bytes");
            assert!(granted <= CAPACITY, "{granted} granted");
            if !ends[i] {
                match u.write(fh, at, &[5; 100_000]).await {
                    Ok(n) => assert_eq!(n, 100_000),
                    Err(e) => {
                        assert_eq!(e, Errno::ENOSPC);
                        ends[i] = true;
                    }
                }
            }
        }
        at += 100_000;
    }
    assert_eq!(ends, [true; 2]);
    for (u, fh) in [(&ua, &fa), (&ub, &fb)] {
        u.fs.fsync(fh, false)
            .await
            .expect("all that was taken has room");
    }
    for (u, name) in [(&ua, "a"), (&ub, "b")] {
        u.unlink(name).await.unwrap();
    }
    for (u, fh) in [(&ua, &fa), (&ub, &fb)] {
        u.close(fh).await.unwrap();
    }
    a.umount().await;
    b.umount().await;
    // a new client is promised an eighth of what is free and not promised
    tokio::time::timeout(HANGS, async {
        loop {
            let late = c.client().await;
            let granted = param(&late, ".cur_grant_bytes");
            late.umount().await;
            if granted > CAPACITY / 10 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("grants and space come back");
    c.stop().await;
}

/// A write far behind the end finds no room: the next append goes where the file ends, and not behind what was never stored.
#[tokio::test(start_paused = true)]
async fn an_append_after_a_write_without_room_leaves_no_hole() {
    let c = Cluster::start_bounded(1, 24 << 20).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, o) = (User::root(&fs), User::root(&other));
    let plain = writer(&u, "log").await;
    let log = u
        .open("log", libc::O_WRONLY | libc::O_APPEND)
        .await
        .unwrap();
    let mut want = b"xx".to_vec();
    let record = |n: u32| vec![n as u8 + 1; 20];
    for n in 0..10 {
        u.write(&log, 0, &record(n)).await.unwrap();
        want.extend(record(n));
    }
    assert!(dirty(&fs) > 0);
    let full = o.create("full", libc::O_RDWR).await.unwrap();
    let mut at = 0;
    while o.write(&full, at, &[5; 65536]).await.is_ok() {
        at += 65536;
    }
    assert_eq!(
        u.write(&plain, 1 << 30, &vec![1; 16 << 20]).await,
        Err(Errno::ENOSPC)
    );
    for n in 0..10 {
        u.write(&log, 0, &record(n)).await.unwrap();
        want.extend(record(n));
    }
    fs.fsync(&log, false).await.unwrap();
    assert_eq!(u.stat("log").await.unwrap().size, want.len() as u64);
    assert!(o.get("log").await.unwrap() == want);
    // and until there is no room for appends either: each is there or was refused
    let long = |n: u32| vec![1 + (n % 250) as u8; 3000];
    for n in 0..3000 {
        match u.write(&log, 0, &long(n)).await {
            Ok(_) => want.extend(long(n)),
            Err(e) => assert_eq!(e, Errno::ENOSPC),
        }
    }
    fs.fsync(&log, false).await.unwrap();
    assert!(want.len() < 24 << 20 && o.get("log").await.unwrap() == want);
    c.stop().await;
}

/// A write over two objects of one OST that needs more than may stay dirty there goes out at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_to_two_objects_of_one_ost_needs_room_for_both() {
    const MIB: u64 = 1 << 20;
    let c = Cluster::start(1, 1, STRIPE).await;
    let fs = c.remote_client().await;
    let u = Arc::new(User::root(&fs));
    let d = u.mkdir("d").await.unwrap();
    let comp = |from, to| {
        CompEntry::new(
            0,
            0,
            from,
            to,
            LovMd::request(STRIPE, 1, LOV_OFFSET_DEFAULT, None),
        )
    };
    let layout = Layout::Composite(CompMd::new(
        0,
        0,
        0,
        vec![comp(0, MIB), comp(MIB, u64::MAX)],
    ));
    fs.setxattr(&u.cred, d, b"lustre.lov", layout.encode(), 0)
        .await
        .unwrap();
    let limit = fs
        .params()
        .into_iter()
        .find(|p| p.0.ends_with(".max_dirty_mb"))
        .unwrap()
        .0;
    fs.set_param(&limit, "1").await.unwrap();
    let fh = writer(&u, "d/f").await;
    u.write(&fh, 2 * MIB, &[1; 10]).await.unwrap();
    u.write(&fh, 2 * MIB, &[1; 10]).await.unwrap();
    assert!(dirty(&fs) > 0);
    for (at, len) in [(MIB / 2 + 100, MIB), (MIB / 4, MIB)] {
        let (v, fh) = (u.clone(), fh.clone());
        let write =
            tokio::spawn(async move { v.write(&fh, at, &vec![at as u8; len as usize]).await });
        let done = tokio::time::timeout(HANGS, write)
            .await
            .expect("it has an end");
        assert_eq!(done.unwrap(), Ok(len as usize));
    }
    let all = u.get("d/f").await.unwrap();
    assert!(
        all[MIB as usize / 4..][..MIB as usize]
            .iter()
            .all(|b| *b == (MIB / 4) as u8)
    );
    c.stop().await;
}

/// Files of several objects that others append to: what is read is never zeros where records are, and a truncate cuts all of
/// the file or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_log_on_several_objects_has_no_holes() {
    const RECORD: usize = 1111;
    let c = Cluster::start(4, 4, STRIPE).await;
    let (a, b, d) = (
        c.remote_client().await,
        c.remote_client().await,
        c.remote_client().await,
    );
    let u = User::root(&a);
    let pfl = u.mkdir("pfl").await.unwrap();
    u.fs.setxattr(
        &u.cred,
        pfl,
        b"lustre.lov",
        components(2 * STRIPE as u64),
        0,
    )
    .await
    .unwrap();
    u.dom_dir("dom", 2).await;
    for path in ["striped", "pfl/f", "dom/f"] {
        u.put(path, b"").await.unwrap();
        let append = |fs: &Arc<Llite>, n: u32| {
            let fs = fs.clone();
            tokio::spawn(async move {
                let u = User::root(&fs);
                let log = u.open(path, libc::O_WRONLY | libc::O_APPEND).await.unwrap();
                for i in 0..n {
                    u.write(&log, 0, &[1 + (i % 250) as u8; RECORD])
                        .await
                        .unwrap();
                }
                u.close(&log).await.unwrap();
            })
        };
        // readers, of whom one has the file open for writing and gets nothing from the kernel's pages
        let writers = [append(&a, 300), append(&b, 300)];
        let reader = User::root(&d);
        let fh = reader.open(path, libc::O_RDWR).await.unwrap();
        let mut least = 0;
        while writers.iter().any(|w| !w.is_finished()) {
            let got = reader.read(&fh, 0, 1 << 20).await.unwrap();
            let zeros = got.iter().filter(|b| **b == 0).count();
            assert_eq!(zeros, 0, "{path}: of {} bytes", got.len());
            assert!(got.len() >= least, "{path}: {} after {least}", got.len());
            least = got.len();
        }
        for w in writers {
            w.await.unwrap();
        }
        assert_eq!(reader.get(path).await.unwrap().len(), 600 * RECORD);
        if path.starts_with("dom") {
            continue;
        }
        for _ in 0..8 {
            let writers = [append(&a, 200), append(&b, 200)];
            for _ in 0..3 {
                while reader.stat(path).await.unwrap().size < 100_000
                    && writers.iter().any(|w| !w.is_finished())
                {}
                let set = SetAttr {
                    size: Some(0),
                    ..Default::default()
                };
                reader
                    .fs
                    .setattr(&reader.cred, fh.fid(), set, None)
                    .await
                    .unwrap();
            }
            for w in writers {
                w.await.unwrap();
            }
            let left = reader.get(path).await.unwrap();
            let zeros = left.iter().filter(|b| **b == 0).count();
            assert_eq!(
                (zeros, left.len() % RECORD),
                (0, 0),
                "{path}: of {} bytes",
                left.len()
            );
        }
        reader.close(&fh).await.unwrap();
    }
    c.stop().await;
}

/// A file on OST 0 of the cluster and on OST 1 at `far`, of which a cluster knows; what is written next to it is dirty.
async fn on_two(u: &User, path: &str) -> Arc<FileHandle> {
    let d = u.mkdir("two").await.unwrap();
    u.fs.setxattr(
        &u.cred,
        d,
        b"lustre.lov",
        LovMd::request(STRIPE, 2, 0, None).encode(),
        0,
    )
    .await
    .unwrap();
    writer(u, path).await
}

/// An OST is dead: dirty data for it holds up no lock of the others.
#[tokio::test(start_paused = true)]
async fn a_dead_ost_keeps_no_lock_of_another() {
    const FAR: &str = "10.0.9.1@tcp";
    const LEN: usize = 2 * STRIPE as usize;
    let c = Cluster::start(1, 1, STRIPE).await;
    let osd = coral_osd::OsdSim::default();
    let far = c.serve_ost(1, &osd, FAR, FAR).await;
    c.knows_ost_at(1, FAR);
    let (a, b) = (c.remote_client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    let fa = on_two(&ua, "two/f").await;
    let fb = ub.open("two/f", libc::O_RDWR).await.unwrap();
    ua.write(&fa, 0, &[1; LEN]).await.unwrap();
    assert_eq!(dirty(&a), LEN as u64);
    far.kill().await;
    let write = ub.write(&fb, 0, &[2; 10]);
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(600), write)
            .await
            .expect("the lock comes back"),
        Ok(10)
    );
    assert_eq!(
        (c.ost(0).stats().evictions.value(), dirty(&a)),
        (0, STRIPE as u64),
        "what is for the dead one waits for it"
    );

    let far = c.serve_ost(1, &osd, FAR, FAR).await;
    tokio::time::timeout(Duration::from_secs(600), a.fsync(&fa, false))
        .await
        .expect("it is back")
        .unwrap();
    let all = ub.get("two/f").await.unwrap();
    assert!(all.len() == LEN && all[..10] == [2; 10] && all[10..].iter().all(|b| *b == 1));
    a.umount().await;
    b.umount().await;
    far.stop().await;
    c.stop().await;
}

/// An eviction by one OST loses dirty data for it, and no more.
#[tokio::test(start_paused = true)]
async fn an_eviction_by_one_ost_loses_what_lay_there() {
    const STRIPE_BYTES: usize = STRIPE as usize;
    let c = Cluster::start(2, 1, STRIPE).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let f = on_two(&u, "two/f").await;
    u.write(&f, 0, &vec![1; 2 * STRIPE_BYTES]).await.unwrap();
    u.fs.fsync(&f, false).await.unwrap();
    let d = u.mkdir("one").await.unwrap();
    u.fs.setxattr(
        &u.cred,
        d,
        b"lustre.lov",
        LovMd::request(STRIPE, 1, 0, None).encode(),
        0,
    )
    .await
    .unwrap();
    u.put("one/g", b"there").await.unwrap();
    let g = u.open("one/g", libc::O_RDONLY).await.unwrap();

    u.write(&f, 0, &vec![2; 2 * STRIPE_BYTES]).await.unwrap();
    assert_eq!(dirty(&fs), 2 * STRIPE as u64);
    let of_client = c
        .ost(0)
        .exports()
        .into_iter()
        .find(|e| e.nid() == fs.node().nid())
        .expect("connected");
    c.ost(0).evict(of_client.cookie, "a test");
    // noticed before anything is written out
    assert_eq!(u.read(&g, 0, 10).await, Err(Errno::EIO));
    assert_eq!(
        u.fs.fsync(&f, false).await.map_err(Errno::from),
        Err(Errno::EIO)
    );
    assert_eq!((u.fs.fsync(&f, false).await, dirty(&fs)), (Ok(()), 0));
    let all = u.get("two/f").await.unwrap();
    assert!(all[..STRIPE_BYTES].iter().all(|b| *b == 1), "lost");
    assert!(
        all[STRIPE_BYTES..].iter().all(|b| *b == 2),
        "of another OST"
    );
    fs.umount().await;
    c.stop().await;
}

/// A client keeps what it was promised when its connection breaks, and when the OST starts anew.
#[tokio::test(start_paused = true)]
async fn grants_outlive_connections_and_restarts() {
    const CUT_OFF: &str = "10.9.0.1@tcp";
    let c = Cluster::start(1, 1, STRIPE).await;
    let fs = c.client_at(CUT_OFF, "").await;
    let u = User::root(&fs);
    let fh = writer(&u, "f").await;
    let first = param(&fs, ".cur_grant_bytes");
    let write = async |n: u64| {
        for i in 0..n {
            u.write(&fh, i << 20, &vec![i as u8; 1 << 20])
                .await
                .unwrap();
        }
        u.fs.fsync(&fh, false).await.unwrap();
    };
    write(16).await;
    let held = param(&fs, ".cur_grant_bytes");
    assert!(held > first, "a writer is given more: {first}, {held}");
    let evictions = |c: &Cluster| c.ost(0).stats().evictions.value();

    let (there, server) = (CUT_OFF.parse().unwrap(), SERVER.parse().unwrap());
    c.net.cut(there, server, true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    c.net.cut(there, server, false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(c.ost(0).stats().reconnects.value() > 0 && evictions(&c) == 0);
    assert_eq!(
        param(&fs, ".cur_grant_bytes"),
        held,
        "the connection is another"
    );
    let c = c.kill_and_restart().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    u.stat("f").await.unwrap();
    assert_eq!(
        (param(&fs, ".cur_grant_bytes"), evictions(&c)),
        (held, 0),
        "the OST is another"
    );
    write(16).await;
    fs.umount().await;
    c.stop().await;
}

/// A client that was cut off loses its dirty data: EIO once, and it goes on.
#[tokio::test(start_paused = true)]
async fn who_is_evicted_is_told_once_and_goes_on() {
    const CUT_OFF: &str = "10.9.0.1@tcp";
    let c = Cluster::start(1, 1, STRIPE).await;
    let (a, b) = (c.remote_client().await, c.client_at(CUT_OFF, "").await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    let fh = writer(&ub, "f").await;
    let idle = ub.open("f", libc::O_RDWR).await.unwrap();
    ub.write(&fh, 0, b"kept").await.unwrap();
    ub.fs.fsync(&fh, false).await.unwrap();
    ub.write(&fh, 0, b"lost").await.unwrap();
    let (there, server) = (CUT_OFF.parse().unwrap(), SERVER.parse().unwrap());
    c.net.cut(there, server, true);
    let w = ua.open("f", libc::O_WRONLY).await.unwrap();
    ua.write(&w, 4, b"other").await.unwrap();
    assert_eq!(ua.get("f").await.unwrap(), b"keptother");
    c.net.cut(there, server, false);
    let told = async {
        loop {
            match ub.fs.fsync(&fh, false).await {
                Ok(()) => tokio::time::sleep(Duration::from_secs(1)).await,
                Err(e) => return e,
            }
        }
    };
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(600), told)
            .await
            .expect("it is told")
            .errno(),
        Errno::EIO
    );
    assert_eq!(ub.write(&idle, 0, b"").await, Ok(0));
    assert_eq!(ub.write(&idle, 0, b"x").await, Err(Errno::EIO));
    assert_eq!(
        ub.read(&fh, 0, 100).await.unwrap(),
        b"keptother",
        "nothing of it went out late"
    );
    for i in 0..40 {
        ub.write(&fh, i, b"n").await.unwrap();
    }
    assert_eq!(ua.get("f").await.unwrap(), [b'n'; 40]);
    assert_eq!(dirty(&b), 0);
    c.stop().await;
}

/// Servers that are killed and come back: dirty data goes to them, under the locks that were replayed.
#[tokio::test(start_paused = true)]
async fn dirty_data_outlives_the_ost() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let fh = writer(&u, "f").await;
    u.write(&fh, 2, &[1; 300_000]).await.unwrap();
    assert!(dirty(&fs) > 0);
    let c = c.kill_and_restart().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    u.fs.fsync(&fh, false).await.unwrap();
    let v = User::root(&c.remote_client().await);
    assert_eq!(v.get("f").await.unwrap()[2..], [1; 300_000]);
    fs.umount().await;
    c.stop().await;
}

/// A writer that needs more room than what is on its way frees waits for what is started when that has landed, and not for the
/// timer by which everything goes out.
#[tokio::test(start_paused = true)]
async fn a_writer_without_room_waits_for_no_timer() {
    use coral_lnet::{FaultAction, FaultRule};
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let (name, _) = fs
        .params()
        .into_iter()
        .find(|(n, _)| n.ends_with(".max_dirty_mb"))
        .unwrap();
    fs.set_param(&name, "1").await.unwrap();
    let fh = writer(&u, "f").await;
    c.node().faults().add(
        FaultRule::all(FaultAction::Delay(Duration::from_millis(20)))
            .portal(coral_wire::portal::OSC_REPLY),
    );
    // every second page: the limit is reached and no RPC is whole
    for i in 0..256u64 {
        u.write(&fh, i * 8192, &[1; 4096]).await.unwrap();
    }
    assert_eq!(dirty(&fs), 1 << 20);
    let reads =
        futures_util::future::join_all((0..4u64).map(|i| u.read(&fh, i * 8192 + 100, 5000)));
    let more = async {
        while c.node().faults().hits() < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        u.write(&fh, 512 * 8192, &[2; 512 << 10]).await
    };
    let began = tokio::time::Instant::now();
    let (_, wrote) = tokio::join!(reads, more);
    assert_eq!(wrote, Ok(512 << 10));
    assert!(
        began.elapsed() < Duration::from_millis(800),
        "the paused clock went on to the timer: {:?}",
        began.elapsed()
    );
    assert_eq!(u.get("f").await.unwrap()[512 * 8192..], [2; 512 << 10]);
    fs.umount().await;
    c.stop().await;
}

/// A writer that is interrupted while it asks for the lock leaves nothing behind that others wait for.
#[tokio::test]
async fn a_dropped_write_holds_nobody_up() {
    let c = Cluster::start(1, 1, STRIPE).await;
    let (a, b) = (c.client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    let fh = writer(&ua, "f").await;
    let other = ub.open("f", libc::O_RDWR).await.unwrap();
    for polls in 0..20 {
        ub.read(&other, 0, 1).await.unwrap();
        let mut w = Box::pin(ua.write(&fh, 0, b"q"));
        for _ in 0..polls {
            if futures_util::poll!(&mut w).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(w);
        let both = async {
            ua.write(&fh, 100, &[polls; 10]).await.unwrap();
            assert_eq!(ub.read(&other, 100, 10).await.unwrap(), [polls; 10]);
        };
        tokio::time::timeout(HANGS, both).await.expect("it hangs");
    }
    c.stop().await;
}

/// A file with components, in one of which it grows: all of it is there, whenever it is looked at, here and elsewhere.
#[tokio::test]
async fn files_with_components_come_back_whole() {
    let c = Cluster::start(4, 1, STRIPE).await;
    let (fs, other) = (c.client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    let d = u.mkdir("d").await.unwrap();
    fs.setxattr(&u.cred, d, b"lustre.lov", components(1 << 20), 0)
        .await
        .unwrap();
    let data: Vec<u8> = (0..2_500_000u32).map(|i| (i % 251) as u8).collect();
    for close in [true, false] {
        let name = format!("d/f{close}");
        let fh = u.create(&name, libc::O_RDWR).await.unwrap();
        for (i, part) in data.chunks(1 << 20).enumerate() {
            u.write(&fh, (i as u64) << 20, part).await.unwrap();
        }
        assert!(dirty(&fs) > 0, "something is dirty");
        if close {
            u.close(&fh).await.unwrap();
        }
        assert_eq!(
            u.stat(&name).await.unwrap().size,
            data.len() as u64,
            "closed: {close}"
        );
        assert!(u.get(&name).await.unwrap() == data, "closed: {close}");
        assert_eq!(
            v.stat(&name).await.unwrap().size,
            data.len() as u64,
            "closed: {close}"
        );
        assert!(v.get(&name).await.unwrap() == data, "closed: {close}");
    }
    c.stop().await;
}

/// An OST says at connect how large an object may be: a byte behind it is refused by write(2), dirty or not, and what was
/// dirty before lands.
#[tokio::test]
async fn more_than_an_ost_holds_is_refused_by_the_write() {
    const MOST: u64 = 1 << 20;
    for stripes in [1, 2] {
        let c = Cluster::start(2, stripes, STRIPE).await;
        c.disks.osts.iter().for_each(|o| o.set_max_bytes(MOST));
        let fs = c.client().await;
        let u = User::root(&fs);
        let fh = writer(&u, "f").await;
        let end = u64::from(stripes as u32) * MOST;
        u.write(&fh, end - 10, &[1; 10]).await.unwrap();
        assert!(dirty(&fs) > 0, "dirty");
        for (at, len) in [(end, 1), (end - 5, 10), (1 << 40, 1)] {
            assert_eq!(
                u.write(&fh, at, &vec![1; len]).await.err(),
                Some(Errno::EFBIG),
                "{len} bytes at {at}"
            );
        }
        u.fs.fsync(&fh, false).await.unwrap();
        assert_eq!(u.stat("f").await.unwrap().size, end);
        let size = |size| SetAttr {
            size: Some(size),
            ..Default::default()
        };
        let f = u.fid("f").await.unwrap();
        assert_eq!(
            u.fs.setattr(&u.cred, f, size(end + 1), None)
                .await
                .err()
                .map(Errno::from),
            Some(Errno::EFBIG)
        );
        assert_eq!(u.stat("f").await.unwrap().size, end);
        u.fs.setattr(&u.cred, f, size(end - 1), None).await.unwrap();
        u.fs.setattr(&u.cred, f, size(end), None).await.unwrap();
        // the first writes of a handle are not dirty
        let fresh = u.open("f", libc::O_RDWR).await.unwrap();
        assert_eq!(u.write(&fresh, end, b"x").await.err(), Some(Errno::EFBIG));
        u.close(&fresh).await.unwrap();
        u.close(&fh).await.unwrap();
        c.stop().await;
    }
}
