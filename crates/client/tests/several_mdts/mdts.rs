//! Several MDTs: directories whose name lies on another MDT than they do.

use std::time::Duration;

use coral_client::MountOptions;
use coral_osd::Kv;
use coral_server::mdt::check_all;
use coral_wire::layout::LmvUserMd;
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmType, Policy};
use coral_wire::{Errno, Fid};

use crate::common::{Cluster, User, counts, rpcs};
use crate::several::{end, mkdir_on, mkdir_over, path_of};

/// Files take their objects along to other MDTs, so whose an object is only all MDTs together can tell.
#[tokio::test(start_paused = true)]
async fn a_check_says_which_mdt_is_missing() {
    let c = Cluster::start_mdts(3, 1).await;
    let fs = c.remote_client().await;
    mkdir_on(&User::root(&fs), "a", 2).await.unwrap();
    fs.umount().await;
    c.stop().await;
    let missing = |mdts: &[u32]| {
        let kvs = mdts.iter().map(|i| c.disks.mdt_number(*i) as &dyn Kv);
        check_all(&kvs.collect::<Vec<_>>())
            .expect("readable")
            .missing
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert!(missing(&[0, 1, 2]).is_empty());
    assert_eq!(missing(&[0, 1]), [2]);
    assert_eq!(missing(&[1, 2]), [0]);
}

/// A listing asks each MDT for the attributes of what lies there.
#[tokio::test(start_paused = true)]
async fn a_listing_with_attributes_asks_each_mdt_for_its_own() {
    let c = Cluster::start_mdts(3, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let u = User::root(&fs);
    u.mkdir("plain").await.unwrap();
    mkdir_over(&u, "striped", 3, 1).await.unwrap();
    for dir in ["plain", "striped"] {
        for i in 0..60 {
            u.symlink("x", &format!("{dir}/s{i}")).await.unwrap();
        }
        for i in 0..9 {
            mkdir_on(&u, &format!("{dir}/d{i}"), i % 3).await.unwrap();
        }
    }
    let v = User::root(&other);
    for dir in ["plain", "striped"] {
        v.stat(dir).await.unwrap();
        let (all, n) = rpcs(&other, v.ls_l(dir)).await;
        let all = all.unwrap();
        assert_eq!(all.len(), 69);
        let of = |name: &str| n.iter().find(|(o, _)| o == name).map_or(0, |(_, c)| *c);
        // 64 entries at a time, of three MDTs
        assert!(of("MDS_BATCH") <= 6, "{dir}: {n:?}");
        assert!(of("LDLM_ENQUEUE") <= 2, "{dir}: {n:?}");
        for (name, attr) in all {
            let path = format!("{dir}/{name}");
            assert_eq!(attr.unwrap(), u.stat(&path).await.unwrap(), "{path}");
        }
    }
    // what lies elsewhere is covered by a lock of the MDT that has it
    u.mkdir("plain/d1/in").await.unwrap();
    u.rmdir("striped/d2").await.unwrap();
    assert_eq!(v.stat("plain/d1").await.unwrap().nlink, 3);
    assert_eq!(v.ls_l("plain").await.unwrap()["d1"].unwrap().nlink, 3);
    assert_eq!(v.ls_l("striped").await.unwrap().len(), 68);
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn directories_on_other_mdts_are_used_like_any() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    assert_eq!(v.names("").await, Ok(vec![]));
    let a = mkdir_on(&u, "a", 1).await.unwrap();
    let b = mkdir_on(&u, "a/b", 2).await.unwrap();
    assert!(a.seq != b.seq && a.seq != Fid::ROOT.seq);
    // what was cached is not believed any more
    assert_eq!(v.names("").await, Ok(vec!["a".to_owned()]));
    assert_eq!(mkdir_on(&v, "a", 2).await, Err(Errno::EEXIST));
    assert_eq!(u.mkdir("a").await, Err(Errno::EEXIST));
    for dir in ["a", "a/b", "a/b/c"] {
        if dir == "a/b/c" {
            u.mkdir(dir).await.unwrap();
        }
        u.put(&format!("{dir}/f"), dir.as_bytes()).await.unwrap();
        assert_eq!(v.get(&format!("{dir}/f")).await.unwrap(), dir.as_bytes());
    }
    assert_eq!(v.names("a/b").await, Ok(vec!["c".into(), "f".into()]));
    for (dir, nlink) in [("", 3), ("a", 3), ("a/b", 3), ("a/b/c", 2)] {
        for who in [&u, &v] {
            assert_eq!(who.stat(dir).await.unwrap().nlink, nlink, "{dir:?}");
        }
    }
    for (fid, path) in [
        (a, "a"),
        (b, "a/b"),
        (v.fid("a/b/c/f").await.unwrap(), "a/b/c/f"),
    ] {
        assert_eq!(path_of(&u, fid).await, path);
    }
    let up = u.list("a/b").await.unwrap();
    let up = up.iter().find(|e| &e.name[..] == b"..").map(|e| e.fid);
    assert_eq!(up, Some(a));
    // within an MDT, as on one; over them not yet
    u.rename("a/b/c", "a/b/d", 0).await.unwrap();
    u.mkdir("a/b/e").await.unwrap();
    u.rename("a/b/d", "a/b/e/d", 0).await.unwrap();
    assert_eq!(u.rename("a/b/e", "a/b/e/d/e", 0).await, Err(Errno::EINVAL));
    u.rename("a/b/e/d", "a/b/c", 0).await.unwrap();
    u.rmdir("a/b/e").await.unwrap();
    // over them too, and what is above a directory does not come below it
    assert_eq!(u.rename("a/f", "a/b", 0).await, Err(Errno::EISDIR));
    for (from, to) in [("a", "a/b/x"), ("a", "a/b/c/x"), ("a/b", "a/b/c/x")] {
        assert_eq!(
            u.rename(from, to, 0).await,
            Err(Errno::EINVAL),
            "{from} {to}"
        );
        assert_eq!(v.fid("a/b/c/x").await, Err(Errno::ENOENT));
    }
    assert_eq!(u.rename("a/b/c", "a", 0).await, Err(Errno::ENOTEMPTY));
    for (from, to) in [("a/b", "b"), ("b/c", "a/c"), ("b", "a/c/b")] {
        u.rename(from, to, 0).await.unwrap();
        assert_eq!(v.fid(from).await, Err(Errno::ENOENT), "{from}");
        assert!(v.stat(to).await.unwrap().is_dir(), "{to}");
    }
    assert_eq!(path_of(&v, b).await, "a/c/b");
    for (dir, nlink) in [("", 3), ("a", 3), ("a/c", 3), ("a/c/b", 2)] {
        for who in [&u, &v] {
            assert_eq!(who.stat(dir).await.unwrap().nlink, nlink, "{dir:?}");
        }
    }
    let up = v.list("a/c/b").await.unwrap();
    let up = up.iter().find(|e| &e.name[..] == b"..").map(|e| e.fid);
    assert_eq!(up, u.fid("a/c").await.ok());
    u.rename("a/c/b", "a/b", 0).await.unwrap();
    u.rename("a/c", "a/b/c", 0).await.unwrap();
    assert_eq!(u.rmdir("a/b").await, Err(Errno::ENOTEMPTY));
    assert_eq!(u.unlink("a/b").await, Err(Errno::EISDIR));
    for name in ["a/b/c/f", "a/b/f", "a/f"] {
        v.unlink(name).await.unwrap();
    }
    u.rmdir("a/b/c").await.unwrap();
    v.rmdir("a/b").await.unwrap();
    assert_eq!(u.fid("a/b").await, Err(Errno::ENOENT));
    assert_eq!(u.stat("a").await.unwrap().nlink, 2);
    u.rmdir("a").await.unwrap();
    assert_eq!(v.fid("a").await, Err(Errno::ENOENT));
    assert_eq!(v.stat("").await.unwrap().nlink, 2);
    end(&c, &[&fs, &other]).await;
}

/// The name of a directory and its attributes are covered by locks of two MDTs.
#[tokio::test(start_paused = true)]
async fn what_lies_in_a_directory_of_another_mdt_is_remembered() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&v, "a", 1).await.unwrap();
    mkdir_on(&v, "a/b", 2).await.unwrap();
    v.put("a/b/f", b"1").await.unwrap();
    u.stat("a/b/f").await.unwrap();
    let (_, again) = rpcs(&u.fs, async {
        for _ in 0..3 {
            u.stat("a/b/f").await.unwrap();
        }
    })
    .await;
    assert_eq!(again, counts(&[]), "names and attributes are known");
    // who changes a name has its MDT call the lock back
    v.rename("a/b", "a/c", 0).await.unwrap();
    assert_eq!(u.stat("a/b/f").await.err(), Some(Errno::ENOENT));
    u.stat("a/c/f").await.unwrap();
    v.rename("a/c", "c", 0).await.unwrap();
    assert_eq!(u.stat("a/c/f").await.err(), Some(Errno::ENOENT));
    u.stat("c/f").await.unwrap();
    v.unlink("c/f").await.unwrap();
    v.rmdir("c").await.unwrap();
    assert_eq!(u.fid("c").await, Err(Errno::ENOENT));
    mkdir_on(&v, "c", 1).await.unwrap();
    assert!(u.stat("c").await.unwrap().is_dir());
    u.rmdir("c").await.unwrap();
    assert_eq!(v.fid("c").await, Err(Errno::ENOENT));
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn files_get_names_on_other_mdts() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    for (dir, mdt) in [("a", 1), ("b", 2)] {
        mkdir_on(&u, dir, mdt).await.unwrap();
    }
    let f = u.put("f", b"from MDT0000").await.unwrap();
    // moved, and used where it is named now
    u.rename("f", "a/f", 0).await.unwrap();
    assert_eq!(v.fid("f").await, Err(Errno::ENOENT));
    assert_eq!(v.fid("a/f").await, Ok(f));
    assert_eq!(v.get("a/f").await.unwrap(), b"from MDT0000");
    assert_eq!(path_of(&u, f).await, "a/f");
    // named twice, on three MDTs in all
    u.link("a/f", "b/l").await.unwrap();
    assert_eq!(u.link("a/f", "b/l").await, Err(Errno::EEXIST));
    assert_eq!(v.stat("b/l").await.unwrap().nlink, 2);
    let fh = v.create("b/l", libc::O_RDWR).await.unwrap();
    assert_eq!(fh.fid(), f);
    assert_eq!(v.read(&fh, 0, 4).await.unwrap(), b"from");
    v.close(&fh).await.unwrap();
    let excl = v.create("b/l", libc::O_RDWR | libc::O_EXCL).await;
    assert_eq!(excl.err(), Some(Errno::EEXIST));
    // over what is there: a name of its own file, another file that is open
    u.rename("a/f", "b/l", 0).await.unwrap();
    assert_eq!(v.names("a").await, Ok(vec!["f".to_owned()]));
    v.put("b/old", b"old").await.unwrap();
    let open = v.open("b/old", libc::O_RDONLY).await.unwrap();
    u.rename("a/f", "b/old", 0).await.unwrap();
    assert_eq!(v.get("b/old").await.unwrap(), b"from MDT0000");
    assert_eq!(v.read(&open, 0, 9).await.unwrap(), b"old");
    v.close(&open).await.unwrap();
    assert_eq!(v.names("a").await, Ok(vec![]));
    assert_eq!(v.stat("b/old").await.unwrap().nlink, 2);
    // a remote directory within its parent
    u.rename("a", "c", 0).await.unwrap();
    u.put("c/x", b"x").await.unwrap();
    assert_eq!(v.names("").await, Ok(vec!["b".into(), "c".into()]));
    assert_eq!(u.rename("b", "c", 0).await, Err(Errno::ENOTEMPTY));
    u.unlink("c/x").await.unwrap();
    assert_eq!(u.rename("b", "c", 0).await, Ok(()));
    assert_eq!(v.names("c").await, Ok(vec!["l".into(), "old".into()]));
    assert_eq!(v.stat("").await.unwrap().nlink, 3);
    for name in ["c/l", "c/old"] {
        v.unlink(name).await.unwrap();
    }
    assert_eq!(u.stat("c").await.unwrap().nlink, 2);
    u.rmdir("c").await.unwrap();
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_directory_hands_down_goes_to_other_mdts() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let (root, joe) = (User::root(&fs), User::new(&fs, 100, 100));
    root.mkdir("d").await.unwrap();
    assert_eq!(mkdir_on(&joe, "d/no", 1).await, Err(Errno::EACCES));
    let d = root.fid("d").await.unwrap();
    let set = coral_client::SetAttr {
        mode: Some(0o2777),
        gid: Some(500),
        ..Default::default()
    };
    fs.setattr(&root.cred, d, set, None).await.unwrap();
    mkdir_on(&joe, "d/yes", 1).await.unwrap();
    let there = joe.stat("d/yes").await.unwrap();
    assert_eq!(
        (there.uid, there.gid, there.mode & 0o7777),
        (100, 500, 0o2755)
    );
    // nobody removes it who may not
    let eve = User::new(&fs, 101, 101);
    let set = coral_client::SetAttr {
        mode: Some(0o1777),
        ..Default::default()
    };
    fs.setattr(&root.cred, d, set, None).await.unwrap();
    assert_eq!(eve.rmdir("d/yes").await, Err(Errno::EPERM));
    joe.rmdir("d/yes").await.unwrap();
    end(&c, &[&fs]).await;
}

#[tokio::test(start_paused = true)]
async fn new_directories_go_where_their_parent_says() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let d = u.mkdir("d").await.unwrap();
    let default = |count, mdt| LmvUserMd::request(count, mdt, 0).encode();
    let set = |value| fs.setxattr(&u.cred, d, b"lustre.dmv", value, 0);
    set(default(1, 1)).await.unwrap();
    let there = u.mkdir("d/there").await.unwrap();
    assert_eq!(there.seq, mkdir_on(&u, "other", 1).await.unwrap().seq);
    // what no directory could be made by is refused, and changes nothing
    let nowhere = set(default(1, 7)).await.map_err(Errno::from);
    assert_eq!(nowhere, Err(Errno::EINVAL));
    assert_eq!(u.names("d").await, Ok(vec!["there".to_owned()]));
    for dir in ["d/there", "d", "other"] {
        u.rmdir(dir).await.unwrap();
    }
    end(&c, &[&fs]).await;
}

#[tokio::test(start_paused = true)]
async fn an_mdt_that_comes_later_is_seen_by_who_is_there() {
    let mut c = Cluster::start_mdts(1, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    u.put("before", b"1").await.unwrap();
    assert_eq!(mkdir_on(&u, "a", 1).await, Err(Errno::ENODEV));
    c.add_mdt().await.expect("MDT0001");
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    mkdir_on(&u, "a", 1).await.unwrap();
    u.put("a/f", b"2").await.unwrap();
    assert_eq!(v.get("a/f").await.unwrap(), b"2");
    assert_eq!(v.get("before").await.unwrap(), b"1");
    assert!(fs.statfs().await.is_ok());
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_told_survives_the_power_of_all() {
    let mut c = Cluster::start_mdts(2, 1).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    mkdir_on(&u, "a", 1).await.unwrap();
    mkdir_on(&u, "b", 1).await.unwrap();
    u.rmdir("b").await.unwrap();
    fs.node().shutdown().await;
    c.mdts_lose_power().await;
    let fs = c.client().await;
    let u = User::root(&fs);
    assert_eq!(u.names("").await, Ok(vec!["a".to_owned()]));
    assert_eq!(u.names("a").await, Ok(vec![]));
    end(&c, &[&fs]).await;
}

#[tokio::test(start_paused = true)]
async fn files_change_their_project_with_their_mdt() {
    const PROJINHERIT: u32 = 0x2000_0000;
    let c = Cluster::start_mdts(3, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    mkdir_on(&u, "a", 1).await.unwrap();
    let p = mkdir_on(&u, "p", 2).await.unwrap();
    let set = coral_client::SetAttr {
        projid: Some(7),
        flags: Some(PROJINHERIT),
        ..Default::default()
    };
    fs.setattr(&u.cred, p, set, None).await.unwrap();
    // the file lies on the MDT that is asked, or on another
    for from in ["f", "a/f"] {
        u.put(from, b"data").await.unwrap();
        assert_eq!(u.link(from, "p/l").await, Err(Errno::EXDEV), "{from}");
        u.rename(from, "p/f", 0).await.unwrap();
        assert_eq!(u.stat("p/f").await.unwrap().projid, 7, "{from}");
        assert_eq!(u.get("p/f").await.unwrap(), b"data");
        u.unlink("p/f").await.unwrap();
    }
    // a directory would take all that is below along
    assert_eq!(u.rename("a", "p/a", 0).await, Err(Errno::EXDEV));
    u.rmdir("a").await.unwrap();
    u.rmdir("p").await.unwrap();
    end(&c, &[&fs]).await;
}

/// While the name of an object on another MDT is changed, nobody is told of it without a lock on it.
#[tokio::test(start_paused = true)]
async fn who_asks_for_a_name_that_is_being_changed_waits_for_the_lock() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let dir = mkdir_on(&u, "x", 1).await.unwrap();
    u.put("x/made", b"there").await.unwrap();
    u.rename("x/made", "file", 0).await.unwrap();
    let file = u.fid("file").await.unwrap();
    assert_eq!(file.seq, dir.seq, "it lies where it was made");
    for (name, fid) in [("x", dir), ("file", file)] {
        let policy = Policy::ibits(Ibits::LOOKUP);
        let ldlm = c.mdt_number(0).target.ldlm().clone();
        let (ty, mode) = (LdlmType::IBITS, LdlmMode::EX);
        let lock = ldlm.lock_local(fid.res_id(), ty, mode, policy, None);
        let changing = lock.await;
        let (looking, opening) = (c.remote_client().await, c.remote_client().await);
        let looks = tokio::spawn(async move {
            let found = User::root(&looking).fid(name).await;
            looking.umount().await;
            found
        });
        let opens = tokio::spawn(async move {
            let u = User::root(&opening);
            let flags = (libc::O_CREAT | libc::O_RDWR) as u32;
            let opened = opening.create(&u.cred, Fid::ROOT, name.as_bytes(), 0o644, flags);
            let opened = opened.await;
            if let Ok((_, handle)) = &opened {
                u.close(handle).await.unwrap();
            }
            opening.umount().await;
            opened.map(|(entry, _)| entry.attr.fid).map_err(Errno::from)
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!looks.is_finished() && !opens.is_finished(), "{name}");
        drop(changing);
        assert_eq!(looks.await.unwrap(), Ok(fid));
        let opened = opens.await.unwrap();
        match name {
            "x" => assert_eq!(opened, Err(Errno::EISDIR)),
            _ => assert_eq!(opened, Ok(fid)),
        }
    }
    end(&c, &[&fs]).await;
}

/// Where others change a name without a pause, who asks for it gets it in turn, with a lock.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_changed_all_the_time_is_told_in_turn() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let dir = mkdir_on(&u, "x", 1).await.unwrap();
    let changes = (0..3).map(|_| {
        let ldlm = c.mdt_number(0).target.ldlm().clone();
        tokio::spawn(async move {
            loop {
                let policy = Policy::ibits(Ibits::LOOKUP);
                let (ty, mode) = (LdlmType::IBITS, LdlmMode::EX);
                let lock = ldlm.lock_local(dir.res_id(), ty, mode, policy, None).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(lock);
            }
        })
    });
    let changes: Vec<_> = changes.collect();
    for _ in 0..5 {
        let other = c.remote_client().await;
        let found = tokio::time::timeout(Duration::from_secs(5), async {
            User::root(&other).fid("x").await
        });
        assert_eq!(found.await, Ok(Ok(dir)));
        other.umount().await;
    }
    for task in changes {
        task.abort();
        let _ = task.await;
    }
    end(&c, &[&fs]).await;
}

/// A mount begins at any directory, wherever it and those above it lie.
#[tokio::test(start_paused = true)]
async fn a_mount_begins_at_a_directory_of_any_mdt() {
    let c = Cluster::start_mdts(3, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    mkdir_on(&u, "far", 1).await.unwrap();
    mkdir_on(&u, "far/further", 2).await.unwrap();
    mkdir_over(&u, "wide", 3, 1).await.unwrap();
    for sub in ["wide/a", "wide/b", "wide/c", "wide/d"] {
        mkdir_over(&u, sub, 2, 2).await.unwrap();
    }
    u.mkdir("wide/d/plain").await.unwrap();
    let at = |dir: &str| MountOptions {
        subdir: Some(dir.to_owned()),
        ..c.mount_options()
    };
    let all = ["far", "far/further", "wide", "wide/a", "wide/b", "wide/c"];
    for dir in all.into_iter().chain(["wide/d", "wide/d/plain"]) {
        u.put(&format!("{dir}/file"), dir.as_bytes()).await.unwrap();
        let there = c.remote_client_with(at(dir)).await;
        let v = User::root(&there);
        assert_eq!(v.get("file").await, Ok(dir.as_bytes().to_vec()), "{dir}");
        v.unlink("file").await.unwrap();
        there.umount().await;
        assert_eq!(
            u.stat(&format!("{dir}/file")).await.err(),
            Some(Errno::ENOENT)
        );
    }
    end(&c, &[&fs]).await;
}
