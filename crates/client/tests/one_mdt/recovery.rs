//! Servers that are killed and restarted under clients: what was open stays open, what was acknowledged is there.

use std::time::Duration;

use crate::common::*;
use coral_client::SetAttr;
use coral_wire::Errno;

/// Long enough for clients to notice, come back and replay (the clock is tokio's).
async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn open_files_and_names_survive_a_restart_of_the_servers() {
    let c = Cluster::start(4, 2, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    let fh = u.create("d/open", libc::O_RDWR).await.unwrap();
    u.write(&fh, 0, &[1; 100_000]).await.unwrap();
    let gone = u.create("d/gone", libc::O_RDWR).await.unwrap();
    u.write(&gone, 0, &[2; 100_000]).await.unwrap();
    u.unlink("d/gone").await.unwrap();
    u.names("d").await.unwrap();

    let c = c.kill_and_restart().await;
    settle().await;
    assert_eq!(u.read(&fh, 99_999, 10).await.unwrap(), [1]);
    u.write(&fh, 100_000, &[3; 5]).await.unwrap();
    assert_eq!(
        u.read(&gone, 0, 200_000).await.unwrap(),
        vec![2; 100_000],
        "unlinked, but open across the restart"
    );
    assert_eq!(u.stat("d/open").await.unwrap().size, 100_005);
    assert_eq!(u.fid("d/gone").await, Err(Errno::ENOENT));
    u.mkdir("d/after").await.unwrap();
    assert_eq!(u.names("d").await.unwrap(), ["after", "open"]);
    // the handles the servers gave anew are the ones that are closed
    u.close(&fh).await.unwrap();
    u.close(&gone).await.unwrap();
    assert_eq!(
        fs.getattr(&u.cred, gone.fid(), None)
            .await
            .err()
            .map(Errno::from),
        Some(Errno::ENOENT)
    );
    fs.umount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn writers_go_on_across_restarts() {
    let mut c = Cluster::start(4, 4, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let mut jobs = Vec::new();
    for id in 0..4u8 {
        let fs = fs.clone();
        jobs.push(tokio::spawn(async move {
            let u = User::root(&fs);
            let fh = u.create(&format!("w{id}"), libc::O_RDWR).await.unwrap();
            for i in 0..40u64 {
                u.write(&fh, i * 10_000, &[id + 1; 10_000]).await.unwrap();
                u.put(&format!("w{id}-{i}"), &[id; 10]).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            }
            u.close(&fh).await.unwrap();
        }));
    }
    for _ in 0..3 {
        settle().await;
        c = c.kill_and_restart().await;
    }
    for j in jobs {
        j.await.expect("no writer failed");
    }
    for id in 0..4u8 {
        assert!(u.get(&format!("w{id}")).await.unwrap() == vec![id + 1; 400_000]);
        for i in 0..40 {
            assert_eq!(u.get(&format!("w{id}-{i}")).await.unwrap(), [id; 10]);
        }
    }
    let set = SetAttr {
        size: Some(5),
        ..Default::default()
    };
    let f = u.fid("w0").await.unwrap();
    assert_eq!(
        fs.setattr(&u.cred, f, set, None).await.unwrap().attr.size,
        5
    );
    fs.umount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_client_forgets_and_goes_on() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    u.put("d/f", b"x").await.unwrap();
    u.names("d").await.unwrap();
    let fh = u.open("d/f", libc::O_RDWR).await.unwrap();
    for e in c.mdt().target.exports() {
        c.mdt().target.evict(e.cookie, "test");
    }
    // somebody else changes what the evicted one had cached
    let other = c.client().await;
    let v = User::root(&other);
    v.put("d/new", b"y").await.unwrap();
    settle().await;
    // the first request may still meet the eviction
    let _ = u.fid("d/f").await;
    settle().await;
    assert_eq!(u.names("d").await.unwrap(), ["f", "new"]);
    assert!(u.fid("d/new").await.is_ok());
    assert_eq!(
        u.close(&fh).await,
        Err(Errno::ESTALE),
        "the open died with the export"
    );
    assert_eq!(u.get("d/f").await.unwrap(), b"x");
    fs.umount().await;
    other.umount().await;
    c.stop().await;
}

/// A file without a name is gone with the eviction that closed it; one that has a name is opened again at its next use.
#[tokio::test(start_paused = true)]
async fn what_an_eviction_closed_is_opened_again_or_gone() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (fs, other) = (c.client().await, c.client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    let mut open = Vec::new();
    for name in ["gone", "kept"] {
        let fh = u.create(name, libc::O_RDWR).await.unwrap();
        u.write(&fh, 0, &[1; 100]).await.unwrap();
        u.fs.fsync(&fh, false).await.unwrap();
        open.push(fh);
    }
    let (gone, kept) = (&open[0], &open[1]);
    v.unlink("gone").await.unwrap();
    assert_eq!(u.read(gone, 0, 100).await.unwrap(), [1; 100]);
    for e in c.mdt().target.exports() {
        c.mdt().target.evict(e.cookie, "test");
    }
    settle().await;
    let _ = (u.names("").await, v.names("").await);
    settle().await;
    assert_eq!(u.read(gone, 0, 100).await, Err(Errno::EIO));
    assert_eq!(
        u.fs.read_pages(gone, 0, 100).await.err().map(Errno::from),
        Some(Errno::EIO)
    );
    assert_eq!(u.write(gone, 0, &[2; 100]).await, Err(Errno::EIO));
    assert_eq!(
        u.fs.fsync(gone, true).await.map_err(Errno::from),
        Err(Errno::EIO)
    );
    assert_eq!(
        u.fs.fallocate(&u.cred, gone, 0, 0, 1000)
            .await
            .map_err(Errno::from),
        Err(Errno::EIO)
    );
    assert_eq!(u.read(kept, 0, 100).await.unwrap(), [1; 100]);
    u.write(kept, 100, &[2; 5]).await.unwrap();
    // it is open at the MDT again
    v.unlink("kept").await.unwrap();
    u.write(kept, 105, &[3; 5]).await.unwrap();
    assert_eq!(
        u.read(kept, 99, 100).await.unwrap(),
        [1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]
    );
    u.close(kept).await.unwrap();
    assert_eq!(u.close(gone).await, Err(Errno::ESTALE));
    assert_eq!(
        fs.getattr(&u.cred, kept.fid(), None)
            .await
            .err()
            .map(Errno::from),
        Some(Errno::ENOENT)
    );
    fs.umount().await;
    other.umount().await;
    c.stop().await;
}

/// An OST that nothing uses is left after `idle_timeout`: its grant goes back, and whoever wants it next has it again.
#[tokio::test(start_paused = true)]
async fn an_unused_ost_is_left_and_comes_back() {
    let c = Cluster::start(2, 2, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let fh = u.create("f", libc::O_RDWR).await.unwrap();
    for n in 0..20 {
        u.write(&fh, n * 10_000, &[7; 10_000]).await.unwrap();
    }
    u.fs.fsync(&fh, true).await.unwrap();
    let clients = || {
        c.osts()
            .iter()
            .map(|o| {
                o.exports()
                    .iter()
                    .filter(|e| !e.uuid.contains("MDT"))
                    .count()
            })
            .collect::<Vec<_>>()
    };
    let value = |what: &str| {
        fs.params()
            .into_iter()
            .filter(|(n, _)| n.ends_with(what))
            .map(|(_, v)| v)
            .collect::<Vec<_>>()
    };
    assert_eq!(value(".idle_timeout"), ["20", "20"]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(clients(), [1, 1], "it holds locks");
    for (name, _) in fs
        .params()
        .into_iter()
        .filter(|(n, _)| n.ends_with(".lru_size"))
    {
        fs.set_param(&name, "clear").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(clients(), [0, 0]);
    assert_eq!(value(".cur_grant_bytes"), ["0", "0"]);
    u.write(&fh, 200_000, &[8; 100]).await.unwrap();
    assert_eq!(u.read(&fh, 199_999, 3).await.unwrap(), [7, 8, 8]);
    assert!(fs.statfs().await.unwrap().bavail > 0);
    assert_eq!(clients(), [1, 1]);
    u.fs.fsync(&fh, true).await.unwrap();
    u.close(&fh).await.unwrap();
    // never, if so told
    let name = |n: &(String, String)| n.0.ends_with(".idle_timeout");
    let first = fs.params().into_iter().find(name).unwrap().0;
    assert_eq!(
        fs.set_param(&first, "51").await.unwrap_err().errno(),
        Errno::EINVAL
    );
    for (end, values, give) in [
        (".max_rpcs_in_flight", ["0", "257", "x"], "1 to 256 RPCs"),
        (".max_dirty_mb", ["0", "2001", "-1"], "1 to 2000 MiB"),
        (
            ".idle_timeout",
            ["51", "-1", "1s"],
            "0 (never) to 50 seconds",
        ),
        (".active", ["2", "-1", "yes"], "0 or 1"),
        (
            ".lru_size",
            ["-4", "all", "1.5"],
            "a number of locks, 0 (the budget decides) or more, or clear",
        ),
    ] {
        let is = |n: &(String, String)| n.0.ends_with(end);
        let name = fs.params().into_iter().find(is).unwrap().0;
        for value in values {
            let said = fs.set_param(&name, value).await.unwrap_err().to_string();
            let told = format!("not a value of that parameter: give {give}");
            assert_eq!(said, told, "{name}={value}");
        }
    }
    fs.set_param(&first, "0").await.unwrap();
    for (name, _) in fs
        .params()
        .into_iter()
        .filter(|(n, _)| n.ends_with(".lru_size"))
    {
        fs.set_param(&name, "clear").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(clients(), [1, 0]);
    fs.umount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_without_servers_says_that_it_knows_no_space() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    assert!(fs.statfs().await.unwrap().files > 0);
    c.stop().await;
    let said = tokio::time::timeout(Duration::from_secs(60), fs.statfs())
        .await
        .expect("umount(8) waits for it");
    assert_eq!(said.err().map(Errno::from), Some(Errno::EAGAIN));
}

/// What rests on a change of a client that did not come back cannot be done again: it is told as lost, the rest is there.
#[tokio::test(start_paused = true)]
async fn what_rests_on_a_lost_client_is_told_as_lost() {
    let c = Cluster::start(1, 1, 65536).await;
    let (a, b) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&a), User::root(&b));
    let first = u.put("f", b"1").await.unwrap();
    v.mkdir("before").await.unwrap();
    let (root, before) = (v.fid("").await.unwrap(), v.fid("before").await.unwrap());
    let (top, other) = (
        b.opendir(&v.cred, root).await.unwrap(),
        b.opendir(&v.cred, before).await.unwrap(),
    );
    // until all is on disk
    tokio::time::sleep(Duration::from_secs(12)).await;
    u.rename("f", "g", 0).await.unwrap();
    u.put("f", b"2").await.unwrap();
    v.mkdir("before/mine").await.unwrap();
    v.unlink("f").await.unwrap();
    a.node().shutdown().await;
    let c = c.mdt_loses_power().await;
    // until the window for clients that do not come back is over
    tokio::time::sleep(Duration::from_secs(100)).await;
    v.names("").await.ok();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(
        v.fid("f").await,
        Ok(first),
        "another file had the name that was removed"
    );
    assert_eq!(v.names("before").await.unwrap(), ["mine"]);
    assert_eq!(
        b.fsyncdir(&top).await.map_err(Errno::from),
        Err(Errno::EIO),
        "the removal is lost"
    );
    assert_eq!(b.fsyncdir(&top).await, Ok(()), "told once");
    assert_eq!(
        b.fsyncdir(&other).await,
        Ok(()),
        "nothing of this one is lost"
    );
    assert_eq!(v.get("f").await.unwrap(), b"1");
    v.unlink("f").await.unwrap();
    v.put("f", b"3").await.unwrap();
    b.umount().await;
    c.stop().await;
}

/// Whether it says goodbye, or ends with files open and dirty data.
#[tokio::test(start_paused = true)]
async fn nothing_stays_of_a_client_that_ended() {
    let c = Cluster::start(2, 2, 65536).await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let visit = async |goodbye: bool| {
        let fs = c.remote_client().await;
        let u = User::root(&fs);
        let fh = u.create("f", libc::O_RDWR).await.unwrap();
        for i in 0..10 {
            u.write(&fh, i * 1000, &[1; 1000]).await.unwrap();
        }
        u.stat("f").await.unwrap();
        if goodbye {
            u.close(&fh).await.unwrap();
            fs.umount().await;
        }
        let (weak, node) = (std::sync::Arc::downgrade(&fs), fs.node().clone());
        drop((u, fs, fh));
        node.shutdown().await;
        drop(node);
        // the servers notice as well
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(weak.strong_count(), 0, "goodbye: {goodbye}");
    };
    // what begins once, and stays, is there after a few
    for _ in 0..3 {
        visit(true).await;
        visit(false).await;
    }
    let before = tasks();
    for _ in 0..3 {
        visit(true).await;
        visit(false).await;
    }
    assert_eq!(tasks(), before);
    c.stop().await;
}
