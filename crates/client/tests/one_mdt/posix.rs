//! llite against real servers in one process: what a POSIX program sees.

use crate::common::*;
use coral_client::{Cred, FileHandle, Llite, LockKind, SeekWhence, SetAttr, SetTime, Timespec};
use coral_wire::{Errno, Fid};
use std::sync::Arc;
use std::time::Duration;

/// Four tasks of one mount do the same at once.
async fn by_four<T: Future<Output = ()> + Send + 'static>(
    fs: &Arc<Llite>,
    job: impl Fn(User) -> T,
) {
    let mut jobs = tokio::task::JoinSet::new();
    for _ in 0..4 {
        jobs.spawn(job(User::root(fs)));
    }
    while let Some(done) = jobs.join_next().await {
        done.unwrap();
    }
}

/// Who is told that a name is taken finds it, also before the mount has heard of what another task of it has made.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_name_that_is_taken_is_found() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    User::root(&fs).mkdir("top").await.unwrap();
    for n in 0..300 {
        by_four(&fs, |u| async move {
            let name = format!("top/d{n}");
            let made = u.mkdir(&name).await;
            assert!(matches!(made, Ok(_) | Err(Errno::EEXIST)), "{made:?}");
            u.fid(&name).await.expect("it is there");
        })
        .await;
    }
    fs.umount().await;
    c.stop().await;
}

/// Who is told that a name is gone does not find it, also before the mount has heard of what another task of it has removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_name_that_is_gone_is_not_found() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    User::root(&fs).mkdir("top").await.unwrap();
    for n in 0..300 {
        User::root(&fs).mkdir(&format!("top/d{n}")).await.unwrap();
        by_four(&fs, |u| async move {
            let name = format!("top/d{n}");
            let gone = match n % 2 {
                0 => u.rmdir(&name).await,
                _ => u.rename(&name, &format!("top/e{n}"), 0).await,
            };
            assert!(matches!(gone, Ok(_) | Err(Errno::ENOENT)), "{gone:?}");
            assert_eq!(u.fid(&name).await, Err(Errno::ENOENT), "{name}");
        })
        .await;
    }
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn write_read_and_names() {
    let c = Cluster::start(4, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    u.put("d/f", b"hello").await.unwrap();
    assert_eq!(u.get("d/f").await.unwrap(), b"hello");
    let a = u.stat("d/f").await.unwrap();
    assert_eq!((a.size, a.nlink, a.mode), (5, 1, libc::S_IFREG | 0o644));
    assert_eq!(u.names("d").await.unwrap(), ["f"]);
    assert_eq!(u.fid("d/none").await, Err(Errno::ENOENT));
    assert_eq!(
        u.create("d/f", libc::O_EXCL | libc::O_RDWR).await.err(),
        Some(Errno::EEXIST)
    );
    u.rename("d/f", "g", 0).await.unwrap();
    assert_eq!(u.fid("d/f").await, Err(Errno::ENOENT));
    assert_eq!(u.get("g").await.unwrap(), b"hello");
    u.link("g", "d/h").await.unwrap();
    assert_eq!(u.stat("g").await.unwrap().nlink, 2);
    u.unlink("g").await.unwrap();
    assert_eq!(u.stat("d/h").await.unwrap().nlink, 1);
    assert_eq!(u.rmdir("d").await, Err(Errno::ENOTEMPTY));
    u.unlink("d/h").await.unwrap();
    u.rmdir("d").await.unwrap();
    assert_eq!(u.names("").await.unwrap(), Vec::<String>::new());
    u.symlink("over/there", "sl").await.unwrap();
    let sl = u.fid("sl").await.unwrap();
    assert_eq!(fs.readlink(&u.cred, sl).await.unwrap(), "over/there");
    assert_eq!(u.stat("sl").await.unwrap().size, 10);
    // what took the name since it was looked up, and no MDT opens
    let fifo = libc::S_IFIFO | 0o600;
    fs.mknod(&u.cred, fs.root(), b"fifo", fifo, 0)
        .await
        .unwrap();
    for name in ["sl", "fifo"] {
        let made = u.create(name, libc::O_RDWR).await;
        assert_eq!(made.err(), Some(Errno::ESTALE), "{name}");
    }
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn a_wrong_fsname_is_refused_by_name() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let mut opts = c.mount_options();
    opts.fsname = "nosuch".into();
    let e = coral_client::Llite::mount(c.local_node().await.unwrap(), opts)
        .await
        .err()
        .expect("an error")
        .to_string();
    assert!(e.contains("knows no file system 'nosuch'"), "{e}");
    let mut opts = c.mount_options();
    opts.mgs_nids = vec!["10.9.9.9@tcp".parse().unwrap()];
    opts.connect_timeout = std::time::Duration::from_millis(300);
    let e = coral_client::Llite::mount(c.local_node().await.unwrap(), opts)
        .await
        .err()
        .expect("an error")
        .to_string();
    assert!(e.contains("no answer from the MGS at 10.9.9.9@tcp"), "{e}");
    c.stop().await;
}

#[tokio::test]
async fn truncate_times_modes_and_owners() {
    let c = Cluster::start(4, 4, 65536).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    let fid = u.put("f", &data).await.unwrap();
    assert_eq!(u.stat("f").await.unwrap().size, 300_000);
    let set = |s: SetAttr| {
        let (fs, cred) = (fs.clone(), u.cred.clone());
        async move { fs.setattr(&cred, fid, s, None).await.map(|e| e.attr) }
    };

    let a = set(SetAttr {
        size: Some(70_000),
        ..Default::default()
    })
    .await
    .unwrap();
    assert_eq!(a.size, 70_000);
    let a = set(SetAttr {
        size: Some(200_000),
        ..Default::default()
    })
    .await
    .unwrap();
    assert_eq!(a.size, 200_000);
    let mut want = data[..70_000].to_vec();
    want.resize(200_000, 0);
    assert_eq!(u.get("f").await.unwrap(), want);
    assert_eq!(
        set(SetAttr {
            size: Some(0),
            ..Default::default()
        })
        .await
        .unwrap()
        .size,
        0
    );
    assert_eq!(u.get("f").await.unwrap(), b"");

    let old = Timespec {
        secs: 1_000_000_000,
        nanos: 123_456_789,
    };
    let older = Timespec {
        secs: 900_000_000,
        nanos: 5,
    };
    let a = set(SetAttr {
        mtime: Some(SetTime::At(old)),
        atime: Some(SetTime::At(older)),
        ..Default::default()
    })
    .await
    .unwrap();
    assert_eq!((a.mtime, a.atime), (old, older));
    assert!(a.ctime > old);
    // a write brings mtime to the present again
    let fh = u.open("f", libc::O_WRONLY).await.unwrap();
    u.write(&fh, 0, b"x").await.unwrap();
    let b = u.stat("f").await.unwrap();
    assert!(b.mtime >= a.ctime && b.ctime >= b.mtime, "{b:?}");
    // and setting it while the file is open for writing stays after close
    set(SetAttr {
        mtime: Some(SetTime::At(old)),
        ..Default::default()
    })
    .await
    .unwrap();
    u.close(&fh).await.unwrap();
    assert_eq!(u.stat("f").await.unwrap().mtime, old);

    let a = set(SetAttr {
        mode: Some(0o6755),
        ..Default::default()
    })
    .await
    .unwrap();
    assert_eq!(a.mode, libc::S_IFREG | 0o6755);
    let a = set(SetAttr {
        uid: Some(1000),
        gid: Some(1001),
        ..Default::default()
    })
    .await
    .unwrap();
    assert_eq!((a.uid, a.gid), (1000, 1001));
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn objects_are_the_files_owners_whoever_writes_first() {
    const FL_PROJINHERIT: u32 = 0x2000_0000;
    let c = Cluster::start(2, 2, 64 << 10).await;
    let fs = c.client().await;
    let (root, joe) = (User::root(&fs), User::new(&fs, 7, 8));
    let d = root.mkdir("d").await.unwrap();
    let set = SetAttr {
        mode: Some(0o777),
        projid: Some(9),
        flags: Some(FL_PROJINHERIT),
        ..Default::default()
    };
    fs.setattr(&root.cred, d, set, None).await.unwrap();
    for name in ["d/written", "d/mapped", "d/cut", "d/allocated"] {
        joe.put(name, b"").await.unwrap();
        let fh = root.open(name, libc::O_RDWR).await.unwrap();
        match name {
            "d/written" => drop(root.write(&fh, 0, &[1; 200_000]).await.unwrap()),
            "d/mapped" => drop(
                fs.write_pages(&fh, 0, payload(&[1; 128 << 10]))
                    .await
                    .unwrap(),
            ),
            "d/cut" => drop(
                fs.setattr(
                    &root.cred,
                    fh.fid(),
                    SetAttr {
                        size: Some(100_000),
                        ..Default::default()
                    },
                    Some(&fh),
                )
                .await
                .unwrap(),
            ),
            _ => fs
                .fallocate(&root.cred, &fh, 0, 0, 128 << 10)
                .await
                .unwrap(),
        }
        fs.fsync(&fh, false).await.unwrap();
        root.close(&fh).await.unwrap();
    }
    let all = c.disks.osts.iter().flat_map(|osd| osd.objects());
    let owners: Vec<_> = all.map(|(_, a)| (a.uid, a.gid, a.projid)).collect();
    assert_eq!(owners, [(7, 8, 9); 8]);
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn permissions_are_those_of_the_caller() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let (root, joe, ann) = (
        User::root(&fs),
        User::new(&fs, 1000, 1000),
        User::new(&fs, 1001, 1001),
    );
    assert_eq!(joe.mkdir("d").await, Err(Errno::EACCES));
    root.mkdir("d").await.unwrap();
    let d = root.fid("d").await.unwrap();
    root.fs
        .setattr(
            &root.cred,
            d,
            SetAttr {
                mode: Some(0o700),
                uid: Some(1000),
                gid: Some(1000),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
    joe.put("d/f", b"mine").await.unwrap();
    assert_eq!(ann.fid("d/f").await, Err(Errno::EACCES));
    root.fs
        .setattr(
            &root.cred,
            d,
            SetAttr {
                mode: Some(0o755),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
    let f = ann.fid("d/f").await.unwrap();
    assert_eq!(ann.get("d/f").await.unwrap(), b"mine");
    assert_eq!(
        ann.open("d/f", libc::O_WRONLY).await.err(),
        Some(Errno::EACCES)
    );
    assert_eq!(
        ann.fs.access(&ann.cred, f, 2).await.map_err(Errno::from),
        Err(Errno::EACCES)
    );
    assert_eq!(ann.unlink("d/f").await, Err(Errno::EACCES));
    assert_eq!(
        ann.fs
            .setattr(
                &ann.cred,
                f,
                SetAttr {
                    mode: Some(0o777),
                    ..Default::default()
                },
                None
            )
            .await
            .err()
            .map(Errno::from),
        Some(Errno::EPERM)
    );
    // a third group, of many, is enough
    let member = Cred {
        groups: Some(std::sync::Arc::from([5, 6, 7, 1000])),
        ..Cred::user(1002, 1002)
    };
    root.fs
        .setattr(
            &root.cred,
            f,
            SetAttr {
                mode: Some(0o660),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
    assert_eq!(
        ann.open("d/f", libc::O_RDONLY).await.err(),
        Some(Errno::EACCES)
    );
    let fh = fs.open(&member, f, libc::O_RDWR as u32).await.unwrap();
    fs.release(&fh).await.unwrap();
    // a write by somebody else than root takes setuid away
    root.fs
        .setattr(
            &root.cred,
            f,
            SetAttr {
                mode: Some(0o4777),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
    let fh = ann.open("d/f", libc::O_WRONLY).await.unwrap();
    ann.write(&fh, 0, b"x").await.unwrap();
    ann.close(&fh).await.unwrap();
    assert_eq!(root.stat("d/f").await.unwrap().mode, libc::S_IFREG | 0o777);
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn a_file_is_given_to_any_group_of_its_owner() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let root = User::root(&fs);
    let d = root.mkdir("d").await.unwrap();
    root.fs
        .setattr(
            &root.cred,
            d,
            SetAttr {
                mode: Some(0o777),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
    for groups in [vec![7, 8], vec![5, 6, 7, 8]] {
        let ann = User {
            fs: fs.clone(),
            cred: Cred {
                groups: Some(groups.into()),
                ..Cred::user(1000, 1000)
            },
        };
        let f = ann.put("d/f", b"x").await.unwrap();
        let give = async |gid| {
            ann.fs
                .setattr(
                    &ann.cred,
                    f,
                    SetAttr {
                        gid: Some(gid),
                        ..Default::default()
                    },
                    None,
                )
                .await
                .map(|e| e.attr.gid)
        };
        for gid in [8, 7, 1000, 8] {
            assert_eq!(give(gid).await, Ok(gid));
        }
        assert_eq!(give(9).await.map_err(Errno::from), Err(Errno::EPERM));
        // group 8 may write what it cannot own: the one group of a setattr is the one that counts there
        let g = root.put("d/g", b"yyyy").await.unwrap();
        root.fs
            .setattr(
                &root.cred,
                g,
                SetAttr {
                    mode: Some(0o060),
                    gid: Some(8),
                    ..Default::default()
                },
                None,
            )
            .await
            .unwrap();
        ann.fs
            .setattr(
                &ann.cred,
                g,
                SetAttr {
                    size: Some(2),
                    ..Default::default()
                },
                None,
            )
            .await
            .unwrap();
        for name in ["d/f", "d/g"] {
            root.unlink(name).await.unwrap();
        }
    }
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn unlinked_but_open() {
    let c = Cluster::start(2, 2, 65536).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    u.put("f", &vec![7u8; 200_000]).await.unwrap();
    let fh = u.open("f", libc::O_RDWR).await.unwrap();
    u.unlink("f").await.unwrap();
    assert_eq!(u.fid("f").await, Err(Errno::ENOENT));
    let a = fs.getattr(&u.cred, fh.fid(), Some(&fh)).await.unwrap().attr;
    assert_eq!((a.nlink, a.size), (0, 200_000));
    u.write(&fh, 200_000, b"more").await.unwrap();
    assert_eq!(u.read(&fh, 199_998, 10).await.unwrap(), b"\x07\x07more");
    u.close(&fh).await.unwrap();
    assert_eq!(
        fs.getattr(&u.cred, fh.fid(), None)
            .await
            .err()
            .map(Errno::from),
        Some(Errno::ENOENT)
    );
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn holes_seek_and_fallocate() {
    let c = Cluster::start(4, 4, 65536).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let fh = u.create("f", libc::O_RDWR).await.unwrap();
    u.write(&fh, 3_000_000, b"end").await.unwrap();
    assert_eq!(
        u.read(&fh, 2_999_990, 100).await.unwrap(),
        b"\0\0\0\0\0\0\0\0\0\0end"
    );
    assert_eq!(u.read(&fh, 100, 1000).await.unwrap(), vec![0; 1000]);
    assert_eq!(u.read(&fh, 3_000_003, 10).await.unwrap(), b"");
    let data = fs.lseek(&fh, 0, SeekWhence::Data).await.unwrap();
    assert!((3_000_000 - 65536..=3_000_000).contains(&data), "{data}");
    assert_eq!(
        fs.lseek(&fh, 3_000_000, SeekWhence::Hole).await.unwrap(),
        3_000_003
    );
    assert_eq!(fs.lseek(&fh, 5, SeekWhence::Hole).await.unwrap(), 5);
    assert_eq!(
        fs.lseek(&fh, 3_000_003, SeekWhence::Data)
            .await
            .map_err(Errno::from),
        Err(Errno::ENXIO)
    );

    let full = vec![9u8; 1 << 20];
    u.write(&fh, 0, &full).await.unwrap();
    fs.fallocate(&u.cred, &fh, 3, 100_000, 200_000)
        .await
        .unwrap();
    let mut want = full.clone();
    want[100_000..300_000].fill(0);
    assert_eq!(u.read(&fh, 0, 1 << 20).await.unwrap(), want);
    fs.fallocate(&u.cred, &fh, 0, 0, 4_000_000).await.unwrap();
    assert_eq!(u.stat("f").await.unwrap().size, 4_000_000);
    fs.fallocate(&u.cred, &fh, 1, 0, 9_000_000).await.unwrap();
    assert_eq!(u.stat("f").await.unwrap().size, 4_000_000);
    assert_eq!(
        fs.fallocate(&u.cred, &fh, 2, 0, 10)
            .await
            .map_err(Errno::from),
        Err(Errno::EOPNOTSUPP)
    );
    fs.fsync(&fh, false).await.unwrap();
    u.close(&fh).await.unwrap();
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn append_is_atomic_across_clients() {
    let c = Cluster::start(4, 4, 65536).await;
    let (a, b) = (c.client().await, c.client().await);
    User::root(&a).put("log", b"").await.unwrap();
    let writer = |fs: std::sync::Arc<coral_client::Llite>, mark: u8| async move {
        let u = User::root(&fs);
        let fh = u
            .open("log", libc::O_WRONLY | libc::O_APPEND)
            .await
            .unwrap();
        for _ in 0..50 {
            assert_eq!(u.write(&fh, 0, &[mark; 3000]).await.unwrap(), 3000);
        }
        u.close(&fh).await.unwrap();
    };
    tokio::join!(
        writer(a.clone(), b'a'),
        writer(b.clone(), b'b'),
        writer(a.clone(), b'c')
    );
    let all = User::root(&b).get("log").await.unwrap();
    assert_eq!(all.len(), 3 * 50 * 3000);
    for record in all.chunks(3000) {
        assert!(
            record.iter().all(|x| *x == record[0]),
            "a record was torn or overwritten"
        );
    }
    for mark in [b'a', b'b', b'c'] {
        assert_eq!(all.chunks(3000).filter(|r| r[0] == mark).count(), 50);
    }
    a.umount().await;
    b.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn paths_are_told_to_whom_they_are_open() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let (root, user) = (User::root(&fs), User::new(&fs, 1001, 1001));
    let private = root.mkdir("private").await.unwrap();
    root.mkdir("private/below").await.unwrap();
    let f = root.put("private/below/plan", b"x").await.unwrap();
    fs.setattr(
        &root.cred,
        private,
        SetAttr {
            mode: Some(0o700),
            ..SetAttr::default()
        },
        None,
    )
    .await
    .unwrap();
    // From a client whose cache is warm by root's work, and from a cold one.
    let cold = c.client().await;
    let by_fid = format!("lustre.path:{f}");
    for fs in [&fs, &cold] {
        let ask = |u: &User| {
            let (fs, cred, name) = (fs.clone(), u.cred.clone(), by_fid.clone());
            async move { fs.getxattr(&cred, fs.root(), name.as_bytes()).await }
        };
        assert_eq!(ask(&user).await.map_err(Errno::from), Err(Errno::EACCES));
        assert_eq!(ask(&root).await.unwrap(), "private/below/plan");
        assert_eq!(ask(&user).await.map_err(Errno::from), Err(Errno::EACCES));
        assert_eq!(
            fs.getxattr(&user.cred, f, b"lustre.link")
                .await
                .map_err(Errno::from),
            Err(Errno::ENODATA),
            "it holds the names"
        );
    }
    assert!(
        !fs.getxattr(&root.cred, f, b"lustre.link")
            .await
            .unwrap()
            .is_empty()
    );
    // A name of the same file that he can reach.
    root.link("private/below/plan", "open").await.unwrap();
    assert_eq!(
        fs.getxattr(&user.cred, fs.root(), by_fid.as_bytes())
            .await
            .unwrap(),
        "open"
    );
    cold.umount().await;
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn xattrs_and_layouts() {
    let c = Cluster::start(4, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let f = u.put("f", b"x").await.unwrap();
    assert_eq!(fs.listxattr(&u.cred, f).await.unwrap(), "");
    assert_eq!(
        fs.getxattr(&u.cred, f, b"user.a")
            .await
            .map_err(Errno::from),
        Err(Errno::ENODATA)
    );
    fs.setxattr(&u.cred, f, b"user.a", "1".into(), 1)
        .await
        .unwrap();
    assert_eq!(
        fs.setxattr(&u.cred, f, b"user.a", "2".into(), 1)
            .await
            .map_err(Errno::from),
        Err(Errno::EEXIST)
    );
    assert_eq!(
        fs.setxattr(&u.cred, f, b"user.b", "2".into(), 2)
            .await
            .map_err(Errno::from),
        Err(Errno::ENODATA)
    );
    assert_eq!(fs.getxattr(&u.cred, f, b"user.a").await.unwrap(), "1");
    assert_eq!(fs.listxattr(&u.cred, f).await.unwrap(), "user.a\0");
    fs.removexattr(&u.cred, f, b"user.a").await.unwrap();
    assert_eq!(
        fs.removexattr(&u.cred, f, b"user.a")
            .await
            .map_err(Errno::from),
        Err(Errno::ENODATA)
    );

    use coral_wire::layout::{Layout, LovMd};
    let d = u.mkdir("wide").await.unwrap();
    let ask = LovMd::request(65536, 4, 0xffff, None).encode();
    fs.setxattr(&u.cred, d, b"lustre.lov", ask, 0)
        .await
        .unwrap();
    let Layout::Plain(l) =
        Layout::decode(&fs.getxattr(&u.cred, d, b"lustre.lov").await.unwrap()).unwrap()
    else {
        panic!()
    };
    assert_eq!((l.stripe_count, l.stripe_size), (4, 65536));
    let w = u.put("wide/f", b"x").await.unwrap();
    let Layout::Plain(l) = Layout::decode(&fs.layout(w).await.unwrap()).unwrap() else {
        panic!()
    };
    assert_eq!((l.objects.len(), l.stripe_size), (4, 65536));
    assert_eq!(
        fs.getxattr(&u.cred, w, b"lustre.fid").await.unwrap(),
        w.to_string()
    );
    assert_eq!(fs.fid2path(&u.cred, w).await.unwrap(), "wide/f");
    let by_name = format!("lustre.path:{w}");
    assert_eq!(
        fs.getxattr(&u.cred, fs.root(), by_name.as_bytes())
            .await
            .unwrap(),
        "wide/f"
    );
    let json = fs
        .getxattr(&u.cred, fs.root(), b"lustre.statfs.json")
        .await
        .unwrap();
    let json = std::str::from_utf8(&json).unwrap();
    assert_eq!(json.matches("\"active\":true").count(), 5, "{json}");

    // a file made without objects, then given a layout of its own
    let e = fs
        .mknod(&u.cred, fs.root(), b"late", libc::S_IFREG | 0o644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    fs.setxattr(
        &u.cred,
        e,
        b"lustre.lov",
        LovMd::request(131072, 2, 0xffff, None).encode(),
        0,
    )
    .await
    .unwrap();
    let Layout::Plain(l) = Layout::decode(&fs.layout(e).await.unwrap()).unwrap() else {
        panic!()
    };
    assert_eq!((l.objects.len(), l.stripe_size), (2, 131072));
    let fh = u.open("late", libc::O_RDWR).await.unwrap();
    u.write(&fh, 0, &vec![3; 300_000]).await.unwrap();
    u.close(&fh).await.unwrap();
    assert_eq!(u.get("late").await.unwrap(), vec![3; 300_000]);
    let s = fs.statfs().await.unwrap();
    assert!(s.blocks > 0 && s.files > 0);
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn locks_exclude_across_clients() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (a, b) = (c.client().await, c.client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    ua.put("f", b"x").await.unwrap();
    let (fa, fb) = (
        ua.open("f", libc::O_RDWR).await.unwrap(),
        ub.open("f", libc::O_RDWR).await.unwrap(),
    );
    let range = |start, end, kind| coral_client::FileLock {
        start,
        end,
        kind,
        pid: 77,
    };
    a.setlk(&fa, 1, range(0, 99, LockKind::Write), false)
        .await
        .unwrap();
    assert_eq!(
        b.setlk(&fb, 1, range(50, 60, LockKind::Read), false)
            .await
            .map_err(Errno::from),
        Err(Errno::EAGAIN)
    );
    b.setlk(&fb, 1, range(100, u64::MAX, LockKind::Write), false)
        .await
        .unwrap();
    let found = b
        .getlk(&fb, 1, range(0, 200, LockKind::Write))
        .await
        .unwrap();
    assert_eq!(
        (found.start, found.end, found.kind, found.pid),
        (0, 99, LockKind::Write, 77)
    );
    // waiting, then granted when the first is freed by a close
    let waiter = {
        let (b, fb) = (b.clone(), fb.clone());
        tokio::spawn(async move { b.setlk(&fb, 1, range(0, 10, LockKind::Write), true).await })
    };
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert!(!waiter.is_finished());
    a.flush(&fa, 1).await.unwrap();
    waiter.await.unwrap().unwrap();
    // an interrupted wait leaves nothing behind
    let waiter = {
        let (a, fa) = (a.clone(), fa.clone());
        tokio::spawn(async move { a.setlk(&fa, 2, range(0, 10, LockKind::Write), true).await })
    };
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    waiter.abort();
    let _ = waiter.await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    b.setlk(&fb, 1, range(0, u64::MAX, LockKind::Unlock), false)
        .await
        .unwrap();
    b.setlk(&fb, 9, range(0, 10, LockKind::Write), false)
        .await
        .unwrap();
    b.flush(&fb, 9).await.unwrap();

    a.flock(&fa, LockKind::Write, false).await.unwrap();
    assert_eq!(
        b.flock(&fb, LockKind::Read, false)
            .await
            .map_err(Errno::from),
        Err(Errno::EAGAIN)
    );
    a.release(&fa).await.unwrap();
    b.flock(&fb, LockKind::Read, false).await.unwrap();
    b.release(&fb).await.unwrap();
    a.umount().await;
    b.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn directories_of_all_sizes_are_listed_once() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    for n in [0usize, 1, 100, 3000] {
        let dir = format!("d{n}");
        u.mkdir(&dir).await.unwrap();
        let mut want = Vec::new();
        for i in 0..n {
            let name = format!("file-with-quite-a-long-name-to-fill-pages-{i}");
            u.symlink("x", &format!("{dir}/{name}")).await.unwrap();
            want.push(name);
        }
        want.sort();
        let all = u.list(&dir).await.unwrap();
        assert_eq!(
            (&all[0].name[..], &all[1].name[..]),
            (&b"."[..], &b".."[..])
        );
        assert_eq!(u.names(&dir).await.unwrap(), want);
        // again from the cookie of every 50th entry, on a fresh handle
        let fid = u.fid(&dir).await.unwrap();
        for at in (0..all.len()).step_by(50) {
            let dh = fs.opendir(&u.cred, fid).await.unwrap();
            let mut next = None;
            fs.readdir(&u.cred, &dh, all[at].next, false, &mut |e| {
                next = Some(e.name);
                true
            })
            .await
            .unwrap();
            assert_eq!(next, all.get(at + 1).map(|e| e.name.clone()));
        }
    }
    let dh = fs
        .opendir(&u.cred, u.fid("d100").await.unwrap())
        .await
        .unwrap();
    let mut plus = 0;
    fs.readdir(&u.cred, &dh, 2, true, &mut |e| {
        plus += e
            .entry
            .is_some_and(|x| x.attr.mode & libc::S_IFMT == libc::S_IFLNK) as usize;
        false
    })
    .await
    .unwrap();
    assert_eq!(plus, 100);
    fs.umount().await;
    c.stop().await;
}

/// A caller that remembers attributes hears of each change that it made itself, also of one it did not wait for.
#[tokio::test]
async fn own_changes_are_told() {
    #[derive(Default)]
    struct Heard(parking_lot::Mutex<Vec<coral_wire::fid::Fid>>);
    impl coral_client::llite::types::Invalidate for Heard {
        fn inval_inode(&self, _: coral_wire::fid::Fid, _: bool) {}
        fn inval_entry(&self, _: coral_wire::fid::Fid, _: &[u8]) {}
        fn own_change(&self, fid: coral_wire::fid::Fid) {
            self.0.lock().push(fid);
        }
    }
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let (d, e) = (u.mkdir("d").await.unwrap(), u.mkdir("e").await.unwrap());
    let heard = std::sync::Arc::new(Heard::default());
    fs.set_invalidate(heard.clone());
    let told = || std::mem::take(&mut *heard.0.lock());
    let f = u.put("d/f", b"x").await.unwrap();
    assert!(told().contains(&d), "create");
    u.mkdir("d/g").await.unwrap();
    assert_eq!(told(), [d], "mkdir");
    u.link("d/f", "e/h").await.unwrap();
    assert!(
        told()
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .is_superset(&[e, f].into()),
        "link"
    );
    u.rename("d/f", "e/f", 0).await.unwrap();
    assert!(
        told()
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .is_superset(&[d, e, f].into()),
        "rename"
    );
    u.unlink("e/f").await.unwrap();
    assert!(
        told()
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .is_superset(&[e, f].into()),
        "unlink"
    );
    u.rmdir("d/g").await.unwrap();
    assert!(told().contains(&d), "rmdir");
    fs.setxattr(&u.cred, f, b"user.k", bytes::Bytes::from_static(b"v"), 0)
        .await
        .unwrap();
    assert_eq!(told(), [f], "setxattr");
    let far = c.remote_client().await;
    let v = User::root(&far);
    v.stat("d").await.unwrap();
    far.set_invalidate(heard.clone());
    let mut dropped = Box::pin(v.mkdir("d/late"));
    for _ in 0..1000 {
        if heard.0.lock().contains(&d) || futures_util::poll!(&mut dropped).is_ready() {
            break;
        }
    }
    drop(dropped);
    while !heard.0.lock().contains(&d) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    fs.umount().await;
    far.umount().await;
    c.stop().await;
}

/// Going back to each entry in turn reads a directory once, not once for each.
#[tokio::test]
async fn a_listing_is_gone_back_to_without_asking() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let d = u.mkdir("d").await.unwrap();
    for i in 0..300 {
        u.symlink("x", &format!("d/{i}")).await.unwrap();
    }
    let all = u.list("d").await.unwrap();
    let dh = fs.opendir(&u.cred, d).await.unwrap();
    let (_, n) = rpcs(&fs, async {
        let from = |at: usize| {
            let (fs, u, dh, cookie) = (&fs, &u, &dh, all[at].next);
            async move {
                let mut next = None;
                fs.readdir(&u.cred, dh, cookie, false, &mut |e| {
                    next = Some(e.name);
                    true
                })
                .await
                .unwrap();
                next
            }
        };
        for at in (1..all.len()).chain((1..all.len()).rev()) {
            assert_eq!(
                from(at).await,
                all.get(at + 1).map(|e| e.name.clone()),
                "{at}"
            );
        }
    })
    .await;
    assert_eq!(n, counts(&[("MDS_READPAGE", 1)]));
    fs.umount().await;
    c.stop().await;
}

/// As `lfs setstripe -E 1M` makes it.
#[tokio::test]
async fn behind_the_end_of_a_layout_there_is_no_data() {
    use coral_wire::layout::{CompEntry, CompMd, Layout, LovMd};
    const END: u64 = 1 << 20;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    let d = u.mkdir("d").await.unwrap();
    let comp = CompEntry::new(0, 0, 0, END, LovMd::request(65536, 1, 0xffff, None));
    let ask = Layout::Composite(CompMd::new(0, 0, 0, vec![comp])).encode();
    fs.setxattr(&u.cred, d, b"lustre.lov", ask, 0)
        .await
        .unwrap();
    let fid = u.put("d/f", &vec![1; 1000]).await.unwrap();
    let truncate = async |size| {
        let set = SetAttr {
            size: Some(size),
            ..Default::default()
        };
        let done = fs.setattr(&u.cred, fid, set, None).await;
        (
            done.map(drop).map_err(|e| e.errno()),
            u.stat("d/f").await.unwrap().size,
        )
    };
    assert_eq!(truncate(END + 1).await, (Err(Errno::ENODATA), 1000));
    assert_eq!(truncate(END).await, (Ok(()), END));
    let fh = u.open("d/f", libc::O_RDWR).await.unwrap();
    for at in [END, END - 10, END + (1 << 30)] {
        let wrote = u.write(&fh, at, &[2; 20]).await;
        assert_eq!(wrote.map(drop), Err(Errno::ENODATA), "{at}");
    }
    assert_eq!(truncate(END + 1).await, (Err(Errno::ENODATA), END), "open");
    assert_eq!(u.read(&fh, END - 4, 8).await.unwrap(), [0; 4]);
    u.write(&fh, END - 4, &[3; 4]).await.unwrap();
    assert_eq!(u.read(&fh, END - 4, 8).await.unwrap(), [3; 4]);
    fs.release(&fh).await.unwrap();
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn a_progressive_layout_grows_as_it_is_written() {
    use coral_wire::layout::{CompEntry, CompMd, Layout, LovMd, lcme};
    let c = Cluster::start(4, 1, 1 << 20).await;
    let (fs, other) = (c.client().await, c.client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    let d = u.mkdir("d").await.unwrap();
    let comp =
        |start, end, n| CompEntry::new(0, 0, start, end, LovMd::request(65536, n, 0xffff, None));
    let ask = Layout::Composite(CompMd::new(
        0,
        0,
        0,
        vec![comp(0, 1 << 20, 1), comp(1 << 20, u64::MAX, 4)],
    ))
    .encode();
    fs.setxattr(&u.cred, d, b"lustre.lov", ask, 0)
        .await
        .unwrap();
    let fid = u.put("d/f", &vec![1; 500_000]).await.unwrap();
    let init = |raw: &bytes::Bytes| match Layout::decode(raw).unwrap() {
        Layout::Composite(c) => c
            .entries
            .iter()
            .filter(|e| e.head.flags & lcme::INIT != 0)
            .count(),
        l => panic!("{l:?}"),
    };
    assert_eq!(init(&fs.layout(fid).await.unwrap()), 1);
    // opened by both while small
    let (fa, fb) = (
        u.open("d/f", libc::O_RDWR).await.unwrap(),
        v.open("d/f", libc::O_RDWR).await.unwrap(),
    );
    assert_eq!(v.read(&fb, 0, 1000).await.unwrap(), vec![1; 1000]);
    u.write(&fa, 900_000, &vec![2; 700_000]).await.unwrap();
    assert_eq!(init(&fs.layout(fid).await.unwrap()), 2);
    let mut want = vec![1; 500_000];
    want.resize(900_000, 0);
    want.resize(1_600_000, 2);
    assert!(
        v.read(&fb, 0, 2_000_000).await.unwrap() == want,
        "the other client's handle sees the new component"
    );
    assert_eq!(v.stat("d/f").await.unwrap().size, 1_600_000);
    let set = |size| SetAttr {
        size: Some(size),
        ..Default::default()
    };
    assert_eq!(
        other
            .setattr(&v.cred, fid, set(600_000), None)
            .await
            .unwrap()
            .attr
            .size,
        600_000
    );
    assert_eq!(u.stat("d/f").await.unwrap().size, 600_000);
    assert_eq!(
        other
            .setattr(&v.cred, fid, set(3_000_000), None)
            .await
            .unwrap()
            .attr
            .size,
        3_000_000
    );
    want.truncate(600_000);
    want.resize(3_000_000, 0);
    assert!(u.get("d/f").await.unwrap() == want);
    // a file that is only truncated up gets its objects for that
    u.put("d/g", b"").await.unwrap();
    let g = u.fid("d/g").await.unwrap();
    assert_eq!(
        fs.setattr(&u.cred, g, set(2_000_000), None)
            .await
            .unwrap()
            .attr
            .size,
        2_000_000
    );
    assert_eq!(u.get("d/g").await.unwrap().len(), 2_000_000);
    u.close(&fa).await.unwrap();
    v.close(&fb).await.unwrap();
    fs.umount().await;
    other.umount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_ost_is_heard_of_through_the_config_lock() {
    let mut c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.client().await;
    let cred = Cred::root();
    let osts = || async {
        let json = fs
            .getxattr(&cred, fs.root(), b"lustre.statfs.json")
            .await
            .unwrap();
        String::from_utf8(json.to_vec())
            .unwrap()
            .matches("OST")
            .count()
    };
    assert_eq!(osts().await, 2);
    for want in [3, 4] {
        c.add_ost().await;
        for _ in 0..100 {
            if osts().await == want {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(osts().await, want);
    }
    fs.umount().await;
    c.stop().await;
}

/// Project ids: set, handed down by directories that say so, and by no others.
#[tokio::test]
async fn projects_are_inherited_where_a_directory_says_so() {
    let c = Cluster::start(1, 1, 65536).await;
    let u = User::root(&c.client().await);
    let d = u.mkdir("d").await.unwrap();
    let project = async |path: &str| {
        let fid = u.fid(path).await.unwrap();
        String::from_utf8(
            u.fs.getxattr(&u.cred, fid, b"lustre.project")
                .await
                .unwrap()
                .to_vec(),
        )
        .unwrap()
    };
    u.fs.setxattr(&u.cred, d, b"lustre.project", "7 -".into(), 0)
        .await
        .unwrap();
    u.put("d/before", b"x").await.unwrap();
    u.fs.setxattr(&u.cred, d, b"lustre.project", "1000 P".into(), 0)
        .await
        .unwrap();
    u.put("d/file", b"x").await.unwrap();
    u.mkdir("d/sub").await.unwrap();
    u.put("d/sub/file", b"x").await.unwrap();
    let mut got = Vec::new();
    for path in ["d", "d/before", "d/file", "d/sub", "d/sub/file"] {
        got.push(project(path).await);
    }
    assert_eq!(got, ["1000 P", "0 -", "1000 -", "1000 P", "1000 -"]);
    assert_eq!(u.stat("d/file").await.unwrap().projid, 1000);
    u.mkdir("out").await.unwrap();
    u.put("loose", b"x").await.unwrap();
    assert_eq!(
        u.link("loose", "d/linked").await,
        Err(Errno::EXDEV),
        "the file would evade the project's quota"
    );
    assert_eq!(u.rename("out", "d/in", 0).await, Err(Errno::EXDEV));
    assert_eq!(
        u.rename("out", "d/sub", libc::RENAME_EXCHANGE).await,
        Err(Errno::EXDEV)
    );
    assert_eq!(
        u.rename("d/sub", "out", libc::RENAME_EXCHANGE).await,
        Err(Errno::EXDEV)
    );
    u.rename("loose", "d/moved", 0).await.unwrap();
    assert_eq!(
        project("d/moved").await,
        "1000 -",
        "a file changes its project"
    );
    u.link("d/moved", "loose").await.unwrap();
    u.rename("d/moved", "out/moved", 0).await.unwrap();
    assert_eq!(
        project("out/moved").await,
        "1000 -",
        "and keeps it where nothing is handed down"
    );
    let other = User::new(&u.fs, 77, 77);
    let denied =
        u.fs.setxattr(&other.cred, d, b"lustre.project", "5 P".into(), 0)
            .await;
    let f = u.fid("d/file").await.unwrap();
    for (flags, removed) in [(0x10, Err(Errno::EPERM)), (0, Ok(()))] {
        let set = coral_client::SetAttr {
            flags: Some(flags),
            ..Default::default()
        };
        u.fs.setattr(&u.cred, f, set, None).await.unwrap();
        assert_eq!(u.unlink("d/file").await, removed, "immutable, and no more");
    }
    assert_eq!(
        denied.map_err(Errno::from),
        Err(Errno::EPERM),
        "a project is the superuser's to give"
    );
    u.fs.umount().await;
    c.stop().await;
}

/// A file whose data is in an archive (HSM): nothing can be read or written, and a truncate that is refused leaves the size.
#[tokio::test]
async fn a_released_file_keeps_its_size_when_a_truncate_is_refused() {
    use coral_osd::{Batch, Kv};
    use coral_server::mdt::{record::Inode, table};
    use coral_wire::layout::{Layout, pattern};
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fid = User::root(&c.client().await)
        .put("f", &[7; 5000])
        .await
        .unwrap();
    let key = table::fid_key(&fid);
    let mut ino = Inode::decode(&c.disks.mdt.get(table::INODE, &key).unwrap().unwrap()).unwrap();
    let Ok(Layout::Plain(mut md)) = Layout::decode(&ino.lov) else {
        panic!("a plain layout")
    };
    md.pattern |= pattern::F_RELEASED;
    md.objects.clear();
    (ino.lov, ino.size) = (Layout::Plain(md).encode(), 5000);
    let mut batch = Batch::new();
    batch.put(table::INODE, key.to_vec(), ino.encode());
    c.disks.mdt.commit(batch).wait().unwrap();

    for cached in [false, true] {
        let u = User::root(&c.client().await);
        if cached {
            u.stat("f").await.unwrap();
        }
        let set = SetAttr {
            size: Some(100),
            ..Default::default()
        };
        assert_eq!(
            u.fs.setattr(&u.cred, fid, set, None)
                .await
                .err()
                .map(Errno::from),
            Some(Errno::EOPNOTSUPP)
        );
        assert_eq!(
            u.open("f", libc::O_RDWR | libc::O_TRUNC).await.err(),
            Some(Errno::EOPNOTSUPP)
        );
        assert_eq!(
            u.create("f", libc::O_RDWR | libc::O_TRUNC).await.err(),
            Some(Errno::EOPNOTSUPP)
        );
        let fh = u.open("f", libc::O_RDWR).await.unwrap();
        assert_eq!(u.read(&fh, 0, 10).await.err(), Some(Errno::EOPNOTSUPP));
        assert_eq!(u.write(&fh, 0, b"x").await.err(), Some(Errno::EOPNOTSUPP));
        assert_eq!(
            u.fs.setattr(&u.cred, fid, set, Some(&fh))
                .await
                .err()
                .map(Errno::from),
            Some(Errno::EOPNOTSUPP)
        );
        u.close(&fh).await.unwrap();
        // the MDT's own word: our servers keep no size for such files otherwise
        let kept = Inode::decode(&c.disks.mdt.get(table::INODE, &key).unwrap().unwrap()).unwrap();
        assert_eq!(kept.size, 5000);
        assert_eq!(
            u.fs.setattr(
                &u.cred,
                fid,
                SetAttr {
                    mode: Some(0o600),
                    ..Default::default()
                },
                None
            )
            .await
            .map(|e| e.attr.mode & 0o777),
            Ok(0o600)
        );
    }
}

struct Deaf;

impl coral_client::Invalidate for Deaf {
    fn inval_entry(&self, _: Fid, _: &[u8]) {}
    fn inval_inode(&self, _: Fid, _: bool) {}
}

/// What is listed of a directory that changed since it was read may be the name of nothing: the caller must not remember it.
#[tokio::test]
async fn a_name_that_was_renamed_while_it_was_listed_is_not_remembered() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    fs.set_invalidate(std::sync::Arc::new(Deaf));
    let u = User::root(&fs);
    for name in ["d", "d/sub"] {
        u.mkdir(name).await.unwrap();
    }
    for i in 0..40 {
        u.put(&format!("d/f{i}"), b"x").await.unwrap();
    }
    let d = u.fid("d").await.unwrap();
    let dh = fs.opendir(&u.cred, d).await.unwrap();
    // as much as one answer to the kernel holds: some names
    let read = async |cookie: u64, most: usize| {
        let mut out = Vec::new();
        fs.readdir(&u.cred, &dh, cookie, true, &mut |e| {
            let full = out.len() == most;
            if !full {
                out.push((
                    String::from_utf8(e.name.to_vec()).unwrap(),
                    e.next,
                    e.entry.map(|e| e.entry_ttl > std::time::Duration::ZERO),
                ));
            }
            full
        })
        .await
        .unwrap();
        out
    };
    let first = read(0, 6).await;
    assert!(
        first
            .iter()
            .filter(|(n, ..)| n.starts_with('f'))
            .all(|(_, _, remembered)| *remembered == Some(true)),
        "{first:?}"
    );
    let (cookie, seen) = (first.last().unwrap().1, |n: &str| {
        first.iter().any(|(f, ..)| f == n)
    });
    let later: Vec<String> = (0..40)
        .map(|i| format!("f{i}"))
        .filter(|n| !seen(n))
        .collect();
    for n in &later {
        u.rename(&format!("d/{n}"), &format!("d/sub/{n}"), 0)
            .await
            .unwrap();
    }
    let rest = read(cookie, 100).await;
    let stale: Vec<_> = rest
        .iter()
        .filter(|(n, _, remembered)| later.contains(n) && *remembered == Some(true))
        .collect();
    assert!(stale.is_empty(), "{stale:?}");
    fs.umount().await;
    c.stop().await;
}

/// The kernel tells of a close after close(2) has returned: who asks in between finds his own lock in the way.
#[tokio::test(start_paused = true)]
async fn a_lock_is_not_refused_for_what_was_just_closed() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (a, b) = (c.client().await, c.client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    ua.put("f", b"x").await.unwrap();
    let [old, new] = [
        ua.open("f", libc::O_RDWR).await.unwrap(),
        ua.open("f", libc::O_RDWR).await.unwrap(),
    ];
    let far = ub.open("f", libc::O_RDWR).await.unwrap();
    let write = coral_client::FileLock {
        start: 0,
        end: 9,
        kind: LockKind::Write,
        pid: 77,
    };
    let moment = Duration::from_millis(3);
    for fcntl in [false, true] {
        let take = async |fs: &Arc<Llite>, fh: &FileHandle, owner| match fcntl {
            true => fs.setlk(fh, owner, write, false).await,
            false => fs.flock(fh, LockKind::Write, false).await,
        };
        take(&a, &old, 1).await.unwrap();
        assert_eq!(
            take(&a, &new, 2).await.map_err(Errno::from),
            Err(Errno::EAGAIN),
            "it is held"
        );
        let mut asks = Box::pin(take(&a, &new, 2));
        assert!(tokio::time::timeout(moment, &mut asks).await.is_err());
        match fcntl {
            true => a.flush(&old, 1).await.unwrap(),
            false => a.flock(&old, LockKind::Unlock, false).await.unwrap(),
        }
        asks.await.unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(
            take(&b, &far, 3).await.map_err(Errno::from),
            Err(Errno::EAGAIN)
        );
        assert_eq!(began.elapsed(), Duration::ZERO, "another mount's is final");
        match fcntl {
            true => a.flush(&new, 2).await.unwrap(),
            false => a.flock(&new, LockKind::Unlock, false).await.unwrap(),
        }
    }
}

/// The kernel asks for the attributes of an object that it knows, after names of which the client has forgotten what they stand for were
/// exchanged: it is told the times of the exchange for both.
#[tokio::test]
async fn both_objects_of_an_exchange_have_its_time() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let u = User::root(&c.client().await);
    let v = User::root(&c.remote_client().await);
    for name in ["a", "b"] {
        u.put(name, b"x").await.unwrap();
    }
    let both = [u.fid("a").await.unwrap(), u.fid("b").await.unwrap()];
    for round in 0..3 {
        u.rename("a", "b", libc::RENAME_EXCHANGE).await.unwrap();
        for fid in both {
            let of = |u: &User| {
                let (fs, cred) = (u.fs.clone(), u.cred.clone());
                async move { fs.getattr(&cred, fid, None).await.unwrap().attr.ctime }
            };
            assert_eq!(of(&u).await, of(&v).await, "{fid:?} in round {round}");
        }
    }
    c.stop().await;
}
