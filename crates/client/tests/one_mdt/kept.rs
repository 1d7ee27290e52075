//! Opens for reading outlive their last close where the MDT has to be told of them, and nobody is hindered by that: permissions hold, and the space of a removed file
//! comes back. `CORAL_SEEDS=n` makes the last test try so many orders.

use std::sync::Arc;
use std::time::Duration;

use crate::common::simulated::number;
use crate::common::*;
use coral_client::{FileHandle, SetAttr};
use coral_wire::Errno;
use coral_wire::fid::Fid;

const READ: u32 = libc::O_RDONLY as u32;

async fn read_once(u: &User, fid: Fid) -> Result<Vec<u8>> {
    let fh = u.fs.open(&u.cred, fid, READ).await?;
    let data = u.read(&fh, 0, 1 << 16).await?;
    u.close(&fh).await?;
    Ok(data)
}

/// Twice: the first close of a file that is older than a minute tells its access time.
async fn read_twice(u: &User, fid: Fid) {
    for _ in 0..2 {
        u.fs.getattr(&u.cred, fid, None).await.unwrap();
        read_once(u, fid).await.unwrap();
    }
}

async fn mode(u: &User, fid: Fid, mode: u32) {
    let set = SetAttr {
        mode: Some(mode),
        ..Default::default()
    };
    u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
}

/// A file that not everyone may read.
async fn put(u: &User, path: &str, data: &[u8]) -> Fid {
    let f = u.put(path, data).await.unwrap();
    mode(u, f, 0o640).await;
    f
}

fn objects(c: &Cluster) -> usize {
    c.disks.osts.iter().map(|d| d.objects().len()).sum()
}

/// Objects of removed files go a while after their names.
async fn objects_go(c: &Cluster, left: usize) {
    for _ in 0..60 {
        if objects(c) == left {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{} objects, not {left}", objects(c));
}

async fn refused(u: &User, fid: Fid) -> Option<Errno> {
    read_once(u, fid).await.err()
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_opens_for_nothing() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.client().await),
        User::root(&c.remote_client().await),
    );
    let f = put(&u, "f", b"what is in it").await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let made = u.stat("f").await.unwrap().atime;
    read_twice(&u, f).await;
    assert!(v.stat("f").await.unwrap().atime > made);
    u.stat("f").await.unwrap();
    let (data, n) = rpcs(&u.fs, async {
        let mut data = Vec::new();
        for _ in 0..10 {
            data = read_once(&u, f).await.unwrap();
        }
        data
    })
    .await;
    assert_eq!(data, b"what is in it");
    // data is with whoever reads through the kernel
    assert_eq!(n, counts(&[("OST_READ", 10)]));
    // somebody who writes it is no hindrance, and is seen
    let fh = v.open("f", libc::O_WRONLY).await.unwrap();
    v.write(&fh, 0, b"what WAS in it").await.unwrap();
    v.close(&fh).await.unwrap();
    assert_eq!(read_once(&u, f).await.unwrap(), b"what WAS in it");
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_file_is_not_held() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.client().await),
        User::root(&c.remote_client().await),
    );
    for by_rename in [false, true] {
        for who in [&u, &v] {
            let f = put(&u, "f", b"1").await;
            read_twice(&u, f).await;
            match by_rename {
                false => who.unlink("f").await.unwrap(),
                true => {
                    who.put("g", b"2").await.unwrap();
                    who.rename("g", "f", 0).await.unwrap();
                    objects_go(&c, 1).await;
                    who.unlink("f").await.unwrap();
                }
            }
            assert_eq!(refused(&u, f).await, Some(Errno::ENOENT));
            objects_go(&c, 0).await;
        }
    }
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_may_not_read_any_more_does_not() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (mount, other) = (c.client().await, c.remote_client().await);
    let (root, away) = (User::root(&mount), User::root(&other));
    let (u, v) = (User::new(&mount, 1000, 1000), User::new(&mount, 1001, 1001));
    let f = root.put("f", b"1").await.unwrap();
    for by in [&root, &away] {
        mode(by, f, 0o644).await;
        read_twice(&u, f).await;
        read_once(&v, f).await.unwrap();
        mode(by, f, 0o600).await;
        assert_eq!(refused(&u, f).await, Some(Errno::EACCES));
        assert_eq!(refused(&v, f).await, Some(Errno::EACCES));
    }
    // what one may read the other may not
    let set = SetAttr {
        uid: Some(1000),
        ..Default::default()
    };
    root.fs.setattr(&root.cred, f, set, None).await.unwrap();
    read_twice(&u, f).await;
    assert_eq!(refused(&v, f).await, Some(Errno::EACCES));
    assert_eq!(read_once(&u, f).await.unwrap(), b"1");
    c.stop().await;
}

/// The servers die with opens kept, and the client is evicted with others.
#[tokio::test(start_paused = true)]
async fn restarts_and_evictions_are_survived() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    let f = put(&u, "f", b"1").await;
    read_twice(&u, f).await;
    let c = c.kill_and_restart().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(read_once(&u, f).await.unwrap(), b"1");
    u.fs.getattr(&u.cred, f, None).await.unwrap();
    read_once(&u, f).await.unwrap();
    let exp = c.mdt().target.exports();
    for e in exp {
        c.mdt().target.evict(e.cookie, "a test");
    }
    // the first request meets the eviction
    let _ = u.fs.getattr(&u.cred, f, None).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(read_once(&u, f).await.unwrap(), b"1");
    u.unlink("f").await.unwrap();
    objects_go(&c, 0).await;
    c.stop().await;
}

/// One step of somebody who reads, keeps open, removes, replaces and forbids files of a few names.
async fn step(rng: &mut Rng, u: &User, open: &mut Vec<Arc<FileHandle>>) {
    let name = format!("f{}", rng.below(3));
    match rng.below(8) {
        0 => {
            let _ = u.put(&name, b"some").await;
        }
        1 => {
            let _ = u.unlink(&name).await;
        }
        2 => {
            let other = format!("f{}", rng.below(3));
            let _ = u.rename(&name, &other, 0).await;
        }
        3 => {
            if let Ok(f) = u.fid(&name).await {
                let set = SetAttr {
                    mode: Some(0o600 | rng.below(0o100) as u32),
                    ..Default::default()
                };
                let _ = u.fs.setattr(&u.cred, f, set, None).await;
            }
        }
        4 => open.extend(u.open(&name, libc::O_RDONLY).await.ok()),
        5 if !open.is_empty() => {
            let fh = open.swap_remove(rng.below(open.len() as u64) as usize);
            u.close(&fh).await.unwrap();
        }
        _ => {
            if let Ok(f) = u.fid(&name).await {
                let _ = read_once(u, f).await;
            }
        }
    }
}

/// The MDT has room for four: what is kept makes room for what is asked for. And nothing is kept for ever.
#[tokio::test(start_paused = true)]
async fn what_is_kept_takes_no_room_from_others_and_not_for_ever() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    let opens = || c.mdt().ops.core.read().opens.len();
    let limit = |n| c.mdt().ops.core.write().opens.limits.client = n;
    for i in 0..5 {
        put(&u, &format!("f{i}"), b"1").await;
    }
    limit(4);
    for i in 0..4 {
        read_twice(&u, u.fid(&format!("f{i}")).await.unwrap()).await;
    }
    assert_eq!(opens(), 4);
    let mut open = vec![u.open("f4", libc::O_WRONLY).await.unwrap()];
    assert_eq!(opens(), 1);
    for i in 0..3 {
        open.push(u.open(&format!("f{i}"), libc::O_RDONLY).await.unwrap());
    }
    let none = u.open("f3", libc::O_RDONLY).await.err();
    assert_eq!(none, Some(Errno::ENFILE));
    limit(100);
    for fh in &open {
        u.close(fh).await.unwrap();
    }
    assert_eq!(opens(), 3, "read again, they need no open");
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(opens(), 0);
    c.stop().await;
}

/// Servers die while clients read and remove, so that removals that close a file are sent again and replayed.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_open_where_servers_die() {
    for seed in 0..number("CORAL_SEEDS", 20) {
        let c = Cluster::start_seeded(2, 1, 1 << 20, seed, "").await;
        let users = [
            User::root(&c.remote_client().await),
            User::root(&c.remote_client().await),
        ];
        let work = users.iter().enumerate().map(|(i, u)| async move {
            let mut rng = Rng((seed * 2 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let mut open = Vec::new();
            for _ in 0..120 {
                step(&mut rng, u, &mut open).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            for fh in open {
                u.close(&fh).await.unwrap();
            }
        });
        let killed = async {
            tokio::time::sleep(Duration::from_millis(3000 + 700 * seed)).await;
            match seed % 2 {
                0 => c.kill_and_restart().await,
                _ => c.mdt_loses_power().await,
            }
        };
        let (c, _) = tokio::join!(killed, futures_util::future::join_all(work));
        for name in users[0].names("").await.unwrap() {
            users[0].unlink(&name).await.unwrap();
        }
        objects_go(&c, 0).await;
        assert!(c.mdt().ops.core.read().opens.is_empty(), "seed {seed}");
        c.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_any_order_nothing_is_left_open() {
    for seed in 0..number("CORAL_SEEDS", 60) {
        let c = Cluster::start_seeded(2, 1, 1 << 20, seed, "").await;
        let users = [
            User::root(&c.client().await),
            User::root(&c.remote_client().await),
        ];
        let work = users.iter().enumerate().map(|(i, u)| async move {
            let mut rng = Rng((seed * 2 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let mut open = Vec::new();
            for _ in 0..60 {
                step(&mut rng, u, &mut open).await;
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            for fh in open {
                u.close(&fh).await.unwrap();
            }
        });
        futures_util::future::join_all(work).await;
        for name in users[0].names("").await.unwrap() {
            users[0].unlink(&name).await.unwrap();
        }
        objects_go(&c, 0).await;
        assert!(c.mdt().ops.core.read().opens.is_empty(), "seed {seed}");
        c.stop().await;
    }
}
