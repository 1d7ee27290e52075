//! How many RPCs each operation costs. These counts are promises: a test fails when one is broken.

use crate::common::*;
use crate::shared::counted;
use coral_client::{SetAttr, SetTime, Timespec};
use coral_wire::Errno;

async fn warm() -> (Cluster, User) {
    let c = Cluster::start(4, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    u.put("d/first", b"x").await.unwrap();
    (c, u)
}

#[tokio::test]
async fn a_create_is_one_mds_rpc_and_nothing_more_until_it_is_removed() {
    let (c, u) = warm().await;
    let d = u.fid("d").await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        for i in 0..100 {
            let name = format!("f{i}");
            // as the kernel does: lookup, then create
            assert!(u.fs.lookup(&u.cred, d, name.as_bytes()).await.is_err());
            let (_, fh) =
                u.fs.create(&u.cred, d, name.as_bytes(), 0o644, libc::O_RDWR as u32)
                    .await
                    .unwrap();
            // as a program does that is about to write
            let told = u.fs.getattr(&u.cred, fh.fid(), Some(&fh)).await.unwrap();
            assert_eq!(told.attr.size, 0);
            u.fs.release(&fh).await.unwrap();
        }
    })
    .await;
    println!("100 creates: {n:?}");
    let of = |name: &str| n.iter().find(|(o, _)| o == name).map_or(0, |(_, c)| *c);
    // 100 creates and what it takes to know the directory once
    assert!(of("LDLM_ENQUEUE") <= 103, "{n:?}");
    assert!(n.iter().map(|(_, c)| c).sum::<u64>() <= 105, "{n:?}");
    let (_, n) = rpcs(&u.fs, async {
        for i in 0..100 {
            assert_eq!(u.stat(&format!("d/f{i}")).await.unwrap().size, 0);
        }
    })
    .await;
    assert_eq!(n, counts(&[]));
    let (_, n) = rpcs(&u.fs, async {
        for i in 0..100 {
            u.unlink(&format!("d/f{i}")).await.unwrap();
        }
    })
    .await;
    assert_eq!(n, counts(&[("MDS_REINT", 100)]));
    c.stop().await;
}

#[tokio::test]
async fn open_read_close_of_a_small_file_that_is_known_is_one() {
    let (c, u) = warm().await;
    let f = u.fid("d/first").await.unwrap();
    let (data, n) = rpcs(&u.fs, async {
        let fh = u.fs.open(&u.cred, f, libc::O_RDONLY as u32).await.unwrap();
        let data = u.read(&fh, 0, 131072).await.unwrap();
        u.close(&fh).await.unwrap();
        data
    })
    .await;
    assert_eq!(data, b"x");
    println!("open, read, close: {n:?}");
    assert_eq!(n, counts(&[("OST_READ", 1)]));
    c.stop().await;
}

/// The reply to the cut says what the object's attributes are then.
#[tokio::test]
async fn a_truncation_is_two_and_asks_nothing_afterwards() {
    let (c, u) = warm().await;
    let f = u.fid("d/first").await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        let how = (libc::O_WRONLY | libc::O_TRUNC) as u32;
        let fh = u.fs.open(&u.cred, f, how).await.unwrap();
        u.write(&fh, 0, &[1; 1000]).await.unwrap();
        u.close(&fh).await.unwrap();
    })
    .await;
    let want = [
        ("LDLM_ENQUEUE", 1),
        ("MDS_CLOSE", 1),
        ("MDS_REINT", 1),
        ("OST_PUNCH", 1),
        ("OST_WRITE", 1),
    ];
    assert_eq!(n, counts(&want), "open with O_TRUNC, write, close");
    // what is answered is what another client sees
    let v = User::root(&c.client().await);
    for size in [300, 0, 5000] {
        let set = SetAttr {
            size: Some(size),
            ..Default::default()
        };
        let (entry, n) = rpcs(&u.fs, u.fs.setattr(&u.cred, f, set, None)).await;
        let attr = entry.unwrap().attr;
        assert_eq!(n, counts(&[("MDS_REINT", 1), ("OST_PUNCH", 1)]));
        let seen = v.stat("d/first").await.unwrap();
        assert_eq!(attr.size, size);
        assert_eq!(
            (attr.size, attr.blocks, attr.mtime, attr.ctime),
            (seen.size, seen.blocks, seen.mtime, seen.ctime)
        );
    }
    c.stop().await;
}

/// What a lock says is empty is not cut; what was allocated behind the end of an empty file is.
#[tokio::test]
async fn a_truncation_of_an_empty_file_is_one() {
    let (c, u) = warm().await;
    let (f, v) = (
        u.fid("d/first").await.unwrap(),
        User::root(&c.client().await),
    );
    let cut = SetAttr {
        size: Some(0),
        ..Default::default()
    };
    u.fs.setattr(&u.cred, f, cut, None).await.unwrap();
    u.stat("d/first").await.unwrap();
    let (entry, n) = rpcs(&u.fs, u.fs.setattr(&u.cred, f, cut, None)).await;
    let attr = entry.unwrap().attr;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    let seen = v.stat("d/first").await.unwrap();
    assert_eq!(
        (attr.size, attr.blocks, attr.mtime, attr.ctime),
        (seen.size, seen.blocks, seen.mtime, seen.ctime)
    );
    // a time of before that is yet to come stays on the object unless it is cut
    let future = Timespec {
        secs: 4_000_000_000,
        nanos: 0,
    };
    let set = SetAttr {
        mtime: Some(SetTime::At(future)),
        ..Default::default()
    };
    u.fs.setattr(&u.cred, f, set, None).await.unwrap();
    assert_eq!(u.stat("d/first").await.unwrap().mtime, future);
    u.fs.setattr(&u.cred, f, cut, None).await.unwrap();
    for who in [&u, &v] {
        assert!(who.stat("d/first").await.unwrap().mtime < future);
    }
    let fh = v.fs.open(&v.cred, f, libc::O_RDWR as u32).await.unwrap();
    let keep_size = libc::FALLOC_FL_KEEP_SIZE as u32;
    v.fs.fallocate(&v.cred, &fh, keep_size, 0, 1 << 20)
        .await
        .unwrap();
    v.close(&fh).await.unwrap();
    let full = u.stat("d/first").await.unwrap();
    assert!(full.size == 0 && full.blocks > 0);
    let (entry, n) = rpcs(&u.fs, u.fs.setattr(&u.cred, f, cut, None)).await;
    entry.unwrap();
    // which calls this client's own lock back
    let want = [("LDLM_CANCEL", 1), ("MDS_REINT", 1), ("OST_PUNCH", 1)];
    assert_eq!(n, counts(&want));
    c.stop().await;
}

/// Of what this client removes it gives the locks back itself, many in one message: no OST asks for them.
#[tokio::test(start_paused = true)]
async fn a_remove_is_one_also_of_a_file_that_was_read_or_written() {
    let c = Cluster::start(4, 1, 1 << 20).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, o) = (User::root(&fs), User::root(&other));
    u.mkdir("d").await.unwrap();
    let name = |i: u32| format!("d/f{i}");
    for i in 0..200 {
        o.put(&name(i), b"some data").await.unwrap();
    }
    let asked_back = || counted(&fs, "coral_ldlm_client_bl_callbacks_total");
    for i in 0..100 {
        assert_eq!(u.get(&name(i)).await.unwrap(), b"some data");
        u.stat(&name(i)).await.unwrap();
    }
    for i in 100..200 {
        u.put(&name(i), b"other data").await.unwrap();
        u.stat(&name(i)).await.unwrap();
    }
    let before = asked_back();
    let (_, n) = rpcs(&fs, async {
        for i in 0..200 {
            u.unlink(&name(i)).await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    })
    .await;
    println!("200 removes: {n:?}, asked back {}", asked_back() - before);
    let of = |name: &str| n.iter().find(|(o, _)| o == name).map_or(0, |(_, c)| *c);
    // those that were read are open still, and closed with their removal
    assert_eq!((of("MDS_REINT"), of("MDS_CLOSE")), (200, 0));
    assert_eq!(asked_back(), before);
    let cancels = of("LDLM_CANCEL");
    assert!((1..=8).contains(&cancels), "{n:?}");
    c.stop().await;
}

/// As `rm -r` does it: from the second directory on no OST is asked for the sizes of what is going to be removed. Who looks at a file is
/// told the sizes of what it lists, and the right ones.
#[tokio::test(start_paused = true)]
async fn who_removes_what_it_lists_is_told_no_sizes() {
    let c = Cluster::start(4, 1, 1 << 20).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (mut u, o) = (User::root(&fs), User::root(&other));
    u.cred.pid = 7;
    for d in 0..4 {
        o.mkdir(&format!("d{d}")).await.unwrap();
        for i in 0..20 {
            o.put(&format!("d{d}/f{i}"), b"some data").await.unwrap();
        }
    }
    let list = async |d: u32| {
        let dir = format!("d{d}");
        u.fid(&dir).await.unwrap();
        let (all, n) = rpcs(&fs, u.ls_l(&dir)).await;
        let all: Vec<_> = all.unwrap().into_values().flatten().collect();
        assert_eq!(all.len(), 20);
        let asked = n.iter().filter(|(o, _)| o == "LDLM_ENQUEUE");
        (all, asked.map(|(_, c)| *c).sum::<u64>())
    };
    for d in 0..3 {
        let (all, asked) = list(d).await;
        let right = all.iter().filter(|a| a.size == 9).count();
        match d {
            // each of the OSTs
            0 => assert!(asked >= 4 && right == 20, "{asked}, {right}"),
            // the MDT's sizes, which may be what they are
            _ => assert!(asked <= 2, "{asked}"),
        }
        for i in 0..20 {
            u.unlink(&format!("d{d}/f{i}")).await.unwrap();
        }
    }
    let grown = o.fid("d3/f5").await.unwrap();
    let fh = o.open("d3/f5", libc::O_WRONLY).await.unwrap();
    o.write(&fh, 0, &[7; 3000]).await.unwrap();
    list(3).await;
    let told = fs.getattr(&u.cred, grown, None).await.unwrap();
    assert_eq!(told.attr.size, 3000);
    let (all, asked) = list(3).await;
    let size = |fid| all.iter().find(|a| a.fid == fid).unwrap().size;
    assert_eq!((size(grown), asked >= 4), (3000, true));
    o.close(&fh).await.unwrap();
    c.stop().await;
}

#[tokio::test]
async fn what_is_covered_is_not_asked_again() {
    let (c, u) = warm().await;
    let d = u.fid("d").await.unwrap();
    let f = u.fid("d/first").await.unwrap();
    u.fs.getattr(&u.cred, f, None).await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        let acl = u.fs.getxattr(&u.cred, f, b"system.posix_acl_access").await;
        assert_eq!(acl.map_err(Errno::from), Err(Errno::ENODATA));
        let label = u.fs.getxattr(&u.cred, f, b"security.selinux").await;
        assert_eq!(label.map_err(Errno::from), Err(Errno::EOPNOTSUPP));
        u.fs.getattr(&u.cred, f, None).await.unwrap();
    })
    .await;
    assert_eq!(n, counts(&[]));
    u.stat("d").await.unwrap();
    u.names("d").await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        for _ in 0..10 {
            u.stat("d").await.unwrap();
            u.fs.access(&u.cred, d, 7).await.unwrap();
            assert!(u.fid("d/none").await.is_err());
            let dh = u.fs.opendir(&u.cred, d).await.unwrap();
            u.fs.releasedir(&dh).await.unwrap();
        }
    })
    .await;
    assert_eq!(n, counts(&[]));
    u.stat("d/first").await.unwrap();
    let (_, n) = rpcs(&u.fs, u.stat("d/first")).await;
    assert_eq!(n, counts(&[]), "its size is covered by an extent lock");
    // an own write calls that lock back, once
    let fh = u.open("d/first", libc::O_RDWR).await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        for i in 0..10 {
            u.write(&fh, i, b"yy").await.unwrap();
            assert_eq!(u.stat("d/first").await.unwrap().size, i + 2);
        }
    })
    .await;
    println!("10 times write, stat: {n:?}");
    assert_eq!(
        n,
        counts(&[
            ("LDLM_CANCEL", 1),
            ("LDLM_ENQUEUE", 1),
            ("OST_GETATTR", 10),
            ("OST_WRITE", 2)
        ])
    );
    u.close(&fh).await.unwrap();
    // another client's write is seen at once
    let other = c.client().await;
    let v = User::root(&other);
    assert_eq!(u.stat("d/first").await.unwrap().size, 11);
    let fh = v.open("d/first", libc::O_WRONLY).await.unwrap();
    v.write(&fh, 100, b"z").await.unwrap();
    assert_eq!(u.stat("d/first").await.unwrap().size, 101);
    v.close(&fh).await.unwrap();
    let old = coral_client::Timespec {
        secs: 1_000_000_000,
        nanos: 7,
    };
    let set = SetAttr {
        mtime: Some(coral_client::SetTime::At(old)),
        ..Default::default()
    };
    other.setattr(&v.cred, fh.fid(), set, None).await.unwrap();
    assert_eq!(u.stat("d/first").await.unwrap().mtime, old);
    c.stop().await;
}

#[tokio::test]
async fn changes_are_one_rpc() {
    let (c, u) = warm().await;
    let d = u.fid("d").await.unwrap();
    u.names("d").await.unwrap();
    let (_, n) = rpcs(&u.fs, u.mkdir("d/sub")).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    let (_, n) = rpcs(&u.fs, u.symlink("x", "d/sl")).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    let (_, n) = rpcs(&u.fs, u.rename("d/sl", "d/sl2", 0)).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    let (_, n) = rpcs(&u.fs, u.unlink("d/sl2")).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    let (_, n) = rpcs(&u.fs, u.rmdir("d/sub")).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    let set = SetAttr {
        mode: Some(0o711),
        ..Default::default()
    };
    let (_, n) = rpcs(&u.fs, u.fs.setattr(&u.cred, d, set, None)).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]), "chmod of a known directory");
    u.stat("d/first").await.unwrap();
    let f = u.fid("d/first").await.unwrap();
    let (_, n) = rpcs(&u.fs, u.fs.setattr(&u.cred, f, set, None)).await;
    println!("chmod of a known file: {n:?}");
    let (_, n) = rpcs(&u.fs, u.unlink("d/first")).await;
    assert_eq!(n, counts(&[("MDS_REINT", 1)]));
    c.stop().await;
}

#[tokio::test]
async fn data_goes_in_whole_rpcs() {
    let c = Cluster::start(4, 4, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = u.create("f", libc::O_RDWR).await.unwrap();
    let data = vec![5u8; 16 << 20];
    let (_, n) = rpcs(&u.fs, u.write(&fh, 0, &data)).await;
    assert_eq!(
        n,
        counts(&[("OST_WRITE", 4)]),
        "16 MiB over 4 stripes is 4 MiB each"
    );
    let (_, n) = rpcs(&u.fs, u.read(&fh, 0, 16 << 20)).await;
    assert_eq!(n, counts(&[("OST_READ", 4)]));
    let (_, n) = rpcs(&u.fs, u.fs.fsync(&fh, false)).await;
    assert_eq!(n, counts(&[("MDS_SYNC", 1), ("OST_SYNC", 4)]));
    u.close(&fh).await.unwrap();
    c.stop().await;
}

#[tokio::test]
async fn the_cache_can_be_switched_off() {
    let c = Cluster::start(4, 1, 1 << 20).await;
    let mut opts = c.mount_options();
    opts.cache = false;
    let fs = c.client_with(opts).await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    u.stat("d").await.unwrap();
    let (_, n) = rpcs(&u.fs, u.stat("d")).await;
    assert_eq!(n, counts(&[("MDS_GETATTR", 1), ("MDS_GETATTR_NAME", 1)]));
    let (_, n) = rpcs(&u.fs, u.put("d/f", b"x")).await;
    println!("uncached put: {n:?}");
    c.stop().await;
}

/// Locks that the client holds from the MDTs.
fn mdt_locks(u: &User) -> u64 {
    let params = u.fs.params();
    let counts = params.iter().filter(|(n, _)| {
        n.starts_with("ldlm.namespaces.") && n.contains("-mdc-") && n.ends_with(".lock_count")
    });
    counts.map(|(_, v)| v.parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn locks_of_what_was_removed_go_with_it() {
    let (c, u) = warm().await;
    u.names("d").await.unwrap();
    let before = mdt_locks(&u);
    for i in 0..100 {
        u.put(&format!("d/f{i}"), b"x").await.unwrap();
        u.stat(&format!("d/f{i}")).await.unwrap();
    }
    assert!(mdt_locks(&u) >= before + 100);
    let (_, n) = rpcs(&u.fs, async {
        for i in 0..100 {
            u.unlink(&format!("d/f{i}")).await.unwrap();
        }
    })
    .await;
    println!("100 unlinks: {n:?}");
    assert!(
        mdt_locks(&u) <= before + 1,
        "{before} before, {} now",
        mdt_locks(&u)
    );
    assert_eq!(
        n.iter().find(|(o, _)| o == "MDS_REINT").map(|(_, c)| *c),
        Some(100)
    );
    c.stop().await;
}

/// What tar does with a small file. Times go with the data, owner, mode and times with the close, and a file just made has no
/// capabilities.
#[tokio::test]
async fn unpacking_a_small_file_is_three() {
    let (c, u) = warm().await;
    let d = u.fid("d").await.unwrap();
    u.names("d").await.unwrap();
    let at = |secs| Some(SetTime::At(Timespec { secs, nanos: 5 }));
    let (_, n) = rpcs(&u.fs, async {
        let (_, fh) =
            u.fs.create(&u.cred, d, b"f", 0o600, libc::O_WRONLY as u32)
                .await
                .unwrap();
        let caps =
            u.fs.getxattr(&u.cred, fh.fid(), b"security.capability")
                .await;
        assert_eq!(caps.map_err(Errno::from), Err(Errno::ENODATA));
        u.write(&fh, 0, &[1; 1000]).await.unwrap();
        let times = SetAttr {
            atime: at(1000),
            mtime: at(2000),
            ..Default::default()
        };
        let attr =
            u.fs.setattr(&u.cred, fh.fid(), times, Some(&fh))
                .await
                .unwrap()
                .attr;
        assert_eq!(
            (attr.size, attr.mtime.secs, attr.atime.secs),
            (1000, 2000, 1000)
        );
        for set in [
            SetAttr {
                uid: Some(7),
                gid: Some(8),
                // as Linux does with each chown
                kill_suidgid: true,
                ..Default::default()
            },
            SetAttr {
                mode: Some(0o644),
                ..Default::default()
            },
        ] {
            let caps =
                u.fs.getxattr(&u.cred, fh.fid(), b"security.capability")
                    .await;
            assert_eq!(caps.map_err(Errno::from), Err(Errno::ENODATA));
            let attr =
                u.fs.setattr(&u.cred, fh.fid(), set, Some(&fh))
                    .await
                    .unwrap()
                    .attr;
            assert_eq!((attr.size, attr.mtime.secs), (1000, 2000));
        }
        u.close(&fh).await.unwrap();
    })
    .await;
    let want = [("LDLM_ENQUEUE", 1), ("MDS_CLOSE", 1), ("OST_WRITE", 1)];
    assert_eq!(n, counts(&want));
    c.stop().await;
}

#[tokio::test]
async fn capabilities_are_asked_for_once_and_seen_when_set() {
    const NAME: &[u8] = b"security.capability";
    let (c, u) = warm().await;
    let other = User::root(&c.remote_client().await);
    let f = u.fid("d/first").await.unwrap();
    other.stat("d/first").await.unwrap();
    let (_, n) = rpcs(&other.fs, async {
        for _ in 0..5 {
            assert_eq!(
                other
                    .fs
                    .getxattr(&other.cred, f, NAME)
                    .await
                    .map_err(Errno::from),
                Err(Errno::ENODATA)
            );
        }
    })
    .await;
    assert_eq!(n, counts(&[("MDS_GETXATTR", 1)]));
    for (setter, value) in [(&other, b"theirs"), (&u, b"mine!!"), (&other, b"again!")] {
        setter
            .fs
            .setxattr(&setter.cred, f, NAME, value.to_vec().into(), 0)
            .await
            .unwrap();
        for reader in [&u, &other] {
            assert_eq!(
                reader.fs.getxattr(&reader.cred, f, NAME).await.unwrap(),
                value[..]
            );
        }
        setter.fs.removexattr(&setter.cred, f, NAME).await.unwrap();
        for reader in [&u, &other, &u] {
            reader.stat("d/first").await.unwrap();
            assert_eq!(
                reader
                    .fs
                    .getxattr(&reader.cred, f, NAME)
                    .await
                    .map_err(Errno::from),
                Err(Errno::ENODATA)
            );
        }
    }
    c.stop().await;
}

/// Closes that found all slots of modifying requests taken get whichever is free first, and not only the one that is theirs.
#[tokio::test(start_paused = true)]
async fn closes_that_have_waited_use_all_slots() {
    const FILES: u32 = 120;
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let each_way = std::time::Duration::from_millis(5);
    let link = coral_lnet::LinkModel {
        delay: each_way,
        ..coral_lnet::LinkModel::default()
    };
    c.net.set_link(fs.node().nid(), nid(SERVER), link, 1);
    u.mkdir("d").await.unwrap();
    let mut open = Vec::new();
    for i in 0..FILES {
        let name = format!("d/f{i}");
        u.put(&name, b"x").await.unwrap();
        open.push(u.open(&name, libc::O_WRONLY).await.unwrap());
    }
    let begun = tokio::time::Instant::now();
    let dirs: Vec<String> = (0..20).map(|i| format!("d/m{i}")).collect();
    let makes = futures_util::future::join_all(dirs.iter().map(|d| u.mkdir(d)));
    let closes = futures_util::future::join_all(open.iter().map(|fh| u.close(fh)));
    let (made, closed) = tokio::join!(makes, closes);
    let took = begun.elapsed();
    assert!(made.iter().all(Result::is_ok) && closed.iter().all(Result::is_ok));
    // one after the other they would take twice as long
    assert!(took < each_way * FILES, "{took:?}");
    c.stop().await;
}
