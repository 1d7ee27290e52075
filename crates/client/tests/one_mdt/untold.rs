//! Files that everyone may read are opened without a word to the MDT, and stay readable as an open file does: whoever removes, replaces,
//! moves or forbids them meanwhile. `CORAL_SEEDS=n` makes the random tests try so many orders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::simulated::number;
use crate::common::*;
use coral_client::{FileHandle, SetAttr};
use coral_wire::Errno;
use coral_wire::fid::Fid;

async fn open(u: &User, fid: Fid) -> Result<Arc<FileHandle>> {
    u.fs.open(&u.cred, fid, libc::O_RDONLY as u32)
        .await
        .map_err(Errno::from)
}

async fn set(u: &User, fid: Fid, set: SetAttr) {
    u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
}

fn objects(c: &Cluster) -> usize {
    c.disks.osts.iter().map(|d| d.objects().len()).sum()
}

async fn nothing_is_left(c: &Cluster) {
    for _ in 0..60 {
        if objects(c) == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(objects(c), 0);
    assert!(c.mdt().ops.core.read().opens.is_empty());
}

/// What it is that the file has.
fn content(n: u32) -> Vec<u8> {
    let word = n.to_le_bytes();
    word.iter().copied().cycle().take(200_000).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_opened_and_closed_for_nothing() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    let f = v.put("f", b"what is in it").await.unwrap();
    u.stat("f").await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        for _ in 0..10 {
            let fh = open(&u, f).await.unwrap();
            assert_eq!(u.read(&fh, 0, 100).await.unwrap(), b"what is in it");
            u.close(&fh).await.unwrap();
        }
    })
    .await;
    assert_eq!(n, counts(&[("OST_READ", 10)]));
    assert!(c.mdt().ops.core.read().opens.is_empty());
    // the access time is told when it counts, and by one request
    tokio::time::sleep(Duration::from_secs(100)).await;
    let before = u.stat("f").await.unwrap().atime;
    let (_, n) = rpcs(&u.fs, async {
        let fh = open(&u, f).await.unwrap();
        u.read(&fh, 0, 100).await.unwrap();
        u.close(&fh).await.unwrap();
    })
    .await;
    assert_eq!(n, counts(&[("MDS_CLOSE", 1), ("OST_READ", 1)]));
    let w = User::root(&c.remote_client().await);
    assert!(w.stat("f").await.unwrap().atime > before);
    c.stop().await;
}

/// Who may not read is not let in, and what not everyone may read is asked for.
#[tokio::test(start_paused = true)]
async fn only_what_everyone_may_read_is_opened_so() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let mount = c.remote_client().await;
    let (root, u) = (User::root(&mount), User::new(&mount, 1000, 1000));
    let f = root.put("f", b"1").await.unwrap();
    for (mode, may) in [(0o444, true), (0o440, false), (0o404, true), (0o644, true)] {
        let chmod = SetAttr {
            mode: Some(mode),
            ..Default::default()
        };
        set(&root, f, chmod).await;
        root.stat("f").await.unwrap();
        let (opened, n) = rpcs(&mount, open(&u, f)).await;
        assert_eq!(opened.is_ok(), may, "{mode:o}");
        let untold = mode & 0o444 == 0o444;
        let asked = n.iter().any(|(o, _)| o == "LDLM_ENQUEUE");
        assert_eq!(asked, !untold, "{mode:o}: {n:?}");
        if let Ok(fh) = opened {
            u.close(&fh).await.unwrap();
        }
    }
    c.stop().await;
}

/// Removed, replaced or given to its owner alone, by this client or another: it is read all the same by who has it open, and its space
/// comes back when it is closed.
#[tokio::test(start_paused = true)]
async fn what_is_open_stays() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let mount = c.remote_client().await;
    let (root, v) = (User::root(&mount), User::root(&c.remote_client().await));
    let u = User::new(&mount, 1000, 1000);
    for who in [&root, &v] {
        for how in 0..4 {
            let f = v.put("f", &content(how)).await.unwrap();
            u.stat("f").await.unwrap();
            let fh = open(&u, f).await.unwrap();
            assert!(c.mdt().ops.core.read().opens.is_empty());
            match how {
                0 => who.unlink("f").await.unwrap(),
                1 => {
                    who.put("g", b"2").await.unwrap();
                    who.rename("g", "f", 0).await.unwrap();
                    who.unlink("f").await.unwrap();
                }
                2 => {
                    who.rename("f", "g", 0).await.unwrap();
                    who.unlink("g").await.unwrap();
                }
                _ => {
                    let secret = SetAttr {
                        mode: Some(0),
                        uid: Some(7),
                        ..Default::default()
                    };
                    set(who, f, secret).await;
                    who.unlink("f").await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_secs(40)).await;
            let read = u.read(&fh, 0, 1 << 20).await.unwrap();
            assert!(read == content(how), "{how}");
            u.close(&fh).await.unwrap();
            nothing_is_left(&c).await;
        }
    }
    c.stop().await;
}

/// Whoever asks may change the root directory.
async fn open_to_all(root: &User) {
    let chmod = SetAttr {
        mode: Some(0o777),
        ..Default::default()
    };
    set(root, root.fs.root(), chmod).await;
}

/// What somebody has open, and what it has to read there.
type Open = Vec<(Arc<FileHandle>, u32)>;

/// One step of who makes, reads, removes, replaces and forbids files of a few names. What each file has is its own.
async fn step(
    rng: &mut Rng,
    u: &User,
    made: &parking_lot::Mutex<BTreeMap<Fid, u32>>,
    open: &mut Open,
) {
    let name = format!("f{}", rng.below(3));
    match rng.below(10) {
        0 | 1 => {
            let n = rng.below(1 << 31) as u32;
            // by another name, so that nobody sees it half written
            let new = format!("new{n}");
            if let Ok(fid) = u.put(&new, &content(n)).await {
                made.lock().insert(fid, n);
                let _ = u.rename(&new, &name, 0).await;
            }
        }
        2 => {
            let _ = u.unlink(&name).await;
        }
        3 => {
            let _ = u.rename(&name, &format!("f{}", rng.below(3)), 0).await;
        }
        4 => {
            if let Ok(f) = u.fid(&name).await {
                let chmod = SetAttr {
                    mode: Some(0o600 | (rng.below(2) as u32 * 0o044)),
                    ..Default::default()
                };
                let _ = u.fs.setattr(&u.cred, f, chmod, None).await;
            }
        }
        5 => {
            let _ = u.link(&name, &format!("f{}", rng.below(3))).await;
        }
        6 if !open.is_empty() => {
            let at = rng.below(open.len() as u64) as usize;
            let (fh, _) = open.swap_remove(at);
            u.close(&fh).await.unwrap();
        }
        7 if !open.is_empty() => {
            let (fh, n) = &open[rng.below(open.len() as u64) as usize];
            let at = rng.below(100_000);
            let read = u.read(fh, at, 4096).await.unwrap();
            assert!(read == content(*n)[at as usize..][..4096], "{name}");
        }
        _ => {
            if let Ok(fh) = u.open(&name, libc::O_RDONLY).await {
                let n = made.lock().get(&fh.fid()).copied();
                let n = n.expect("it was made before it got its name");
                open.push((fh, n));
            }
        }
    }
}

async fn work(c: &Cluster, seed: u64, users: &[User], steps: u32, pause: Duration) {
    let made = parking_lot::Mutex::default();
    let work = users.iter().enumerate().map(|(i, u)| {
        let made = &made;
        async move {
            let mut rng = Rng((seed * 4 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let mut open = Vec::new();
            for _ in 0..steps {
                step(&mut rng, u, made, &mut open).await;
                tokio::time::sleep(pause * rng.below(3) as u32).await;
            }
            for (fh, n) in open {
                let read = u.read(&fh, 0, 1 << 20).await.unwrap();
                assert!(read == content(n), "seed {seed}");
                u.close(&fh).await.unwrap();
            }
        }
    });
    futures_util::future::join_all(work).await;
    for name in users[0].names("").await.unwrap() {
        users[0].unlink(&name).await.unwrap();
    }
    nothing_is_left(c).await;
}

#[tokio::test(start_paused = true)]
async fn in_any_order_what_is_open_is_read() {
    for seed in 0..number("CORAL_SEEDS", 40) {
        let c = Cluster::start_seeded(2, 1, 1 << 20, seed, "").await;
        let (near, far) = (c.client().await, c.remote_client().await);
        // three programs of one mount, and one of another
        let users = [
            User::root(&near),
            User::root(&near),
            User::new(&near, 1000, 1000),
            User::root(&far),
        ];
        open_to_all(&users[0]).await;
        let pause = Duration::from_millis(seed % 3);
        work(&c, seed, &users, 80, pause).await;
        c.stop().await;
    }
}

/// The MDT is killed, or its machine loses power, with files open of which it does not know.
#[tokio::test(start_paused = true)]
async fn a_restart_takes_nothing_from_who_reads() {
    for seed in 0..number("CORAL_SEEDS", 10) {
        let c = Cluster::start_seeded(2, 1, 1 << 20, seed, "").await;
        let (u, v) = (
            User::root(&c.remote_client().await),
            User::root(&c.remote_client().await),
        );
        let f = v.put("f", &content(3)).await.unwrap();
        u.stat("f").await.unwrap();
        let (fh, other) = (open(&u, f).await.unwrap(), open(&u, f).await.unwrap());
        assert!(c.mdt().ops.core.read().opens.is_empty());
        tokio::time::sleep(Duration::from_secs(10)).await;
        let c = match seed % 2 {
            0 => c.kill_and_restart().await,
            _ => c.mdt_loses_power().await,
        };
        // the removal is the first that the MDT hears of the file, or the second
        if seed % 3 == 0 {
            u.read(&other, 0, 4096).await.unwrap();
        }
        v.unlink("f").await.unwrap();
        u.close(&other).await.unwrap();
        assert!(
            u.read(&fh, 0, 1 << 20).await.unwrap() == content(3),
            "seed {seed}"
        );
        u.close(&fh).await.unwrap();
        nothing_is_left(&c).await;
        c.stop().await;
    }
}

/// Its maker has the file open still, but no lock on it any more, when the MDT is started again; and replaces it.
#[tokio::test(start_paused = true)]
async fn a_restart_with_its_maker_there_holds_nobody_up() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    let made = v.create("log", libc::O_RDWR).await.unwrap();
    v.write(&made, 0, &content(1)).await.unwrap();
    v.fs.fsync(&made, false).await.unwrap();
    let chmod = SetAttr {
        mode: Some(0o664),
        ..Default::default()
    };
    set(&u, made.fid(), chmod).await;
    u.stat("log").await.unwrap();
    let fh = open(&u, made.fid()).await.unwrap();
    assert!(c.mdt().ops.core.read().opens.len() == 1);
    let c = c.kill_and_restart().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    v.put("new", b"2").await.unwrap();
    let begun = tokio::time::Instant::now();
    v.rename("new", "log", 0).await.unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    assert!(u.read(&fh, 0, 1 << 20).await.unwrap() == content(1));
    u.close(&fh).await.unwrap();
    v.close(&made).await.unwrap();
    v.unlink("log").await.unwrap();
    nothing_is_left(&c).await;
    c.stop().await;
}

/// The MDT has no room for the opens of which it hears: who reads has the file, or is told that it has not.
#[tokio::test(start_paused = true)]
async fn where_the_mdt_has_no_room_nobody_reads_what_is_not_there() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    let mut open_files = Vec::new();
    for n in 0..5 {
        let f = v.put(&format!("f{n}"), &content(n)).await.unwrap();
        u.stat(&format!("f{n}")).await.unwrap();
        open_files.push(open(&u, f).await.unwrap());
    }
    c.mdt().ops.core.write().opens.limits.client = 2;
    for n in 0..5 {
        v.unlink(&format!("f{n}")).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut there = 0;
    for (n, fh) in open_files.iter().enumerate() {
        match u.read(fh, 0, 1 << 20).await {
            Ok(data) => {
                assert!(data == content(n as u32), "{n}");
                there += 1;
            }
            Err(e) => assert_eq!(e, Errno::EIO),
        }
        let _ = u.close(fh).await;
    }
    assert_eq!(there, 2);
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    nothing_is_left(&c).await;
    c.stop().await;
}

/// A client that the MDT has thrown out opens at the next use what it had open, where it is there.
#[tokio::test(start_paused = true)]
async fn an_eviction_is_as_of_any_open() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    let (there, gone) = (
        v.put("there", &content(1)).await.unwrap(),
        v.put("gone", &content(2)).await.unwrap(),
    );
    u.stat("there").await.unwrap();
    u.stat("gone").await.unwrap();
    let (a, b) = (
        open(&u, there).await.unwrap(),
        open(&u, gone).await.unwrap(),
    );
    for e in c.mdt().target.exports() {
        c.mdt().target.evict(e.cookie, "a test");
    }
    let _ = v.names("").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    v.unlink("gone").await.unwrap();
    let _ = u.names("").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(u.read(&a, 0, 1 << 20).await.unwrap() == content(1));
    assert_eq!(u.read(&b, 0, 4096).await.err(), Some(Errno::EIO));
    u.close(&a).await.unwrap();
    let _ = u.close(&b).await;
    v.unlink("there").await.unwrap();
    nothing_is_left(&c).await;
    c.stop().await;
}
