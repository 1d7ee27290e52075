//! Attributes that are kept back by the client that made the file: nobody sees that they are late, and nobody loses them.

use std::time::Duration;

use crate::common::*;
use coral_client::{Attr, FileHandle, SetAttr, SetTime, Timespec};
use coral_wire::Errno;

const MTIME: i64 = 2000;

fn owner_and_mode() -> SetAttr {
    SetAttr {
        uid: Some(7),
        gid: Some(8),
        mode: Some(0o640),
        ..Default::default()
    }
}

fn times() -> SetAttr {
    let at = |secs| Some(SetTime::At(Timespec { secs, nanos: 5 }));
    SetAttr {
        atime: at(1000),
        mtime: at(MTIME),
        ..Default::default()
    }
}

pub(crate) async fn set(u: &User, fh: &FileHandle, set: SetAttr) -> Attr {
    let done = u.fs.setattr(&u.cred, fh.fid(), set, Some(fh)).await;
    done.unwrap().attr
}

/// A file that is open, whose owner, mode and times are kept back, as its data is; nothing was sent for them.
async fn kept(u: &User, path: &str) -> std::sync::Arc<FileHandle> {
    let fh = u.create(path, libc::O_RDWR).await.unwrap();
    u.write(&fh, 0, b"data").await.unwrap();
    let (attr, n) = rpcs(&u.fs, async {
        set(u, &fh, times()).await;
        set(u, &fh, owner_and_mode()).await
    })
    .await;
    assert_eq!(n, [], "they are kept back");
    check(&attr);
    fh
}

fn check(attr: &Attr) {
    let owner = (attr.uid, attr.gid, attr.mode & 0o7777);
    assert_eq!(owner, (7, 8, 0o640));
    assert_eq!(
        (attr.atime.secs, attr.mtime.secs, attr.size),
        (1000, MTIME, 4)
    );
}

pub(crate) async fn two() -> (Cluster, User, User) {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (a, b) = (c.remote_client().await, c.remote_client().await);
    (c, User::root(&a), User::root(&b))
}

fn sent(n: &[(String, u64)]) -> u64 {
    n.iter()
        .find(|(o, _)| o == "MDS_REINT")
        .map_or(0, |(_, c)| *c)
}

#[tokio::test(start_paused = true)]
async fn another_client_sees_what_is_kept_back() {
    let (c, u, v) = two().await;
    u.mkdir("d").await.unwrap();
    // by a name that it looks up
    let fh = kept(&u, "d/f").await;
    let (seen, n) = rpcs(&u.fs, v.stat("d/f")).await;
    check(&seen.unwrap());
    assert_eq!(sent(&n), 1);
    // what it knows now is told of from here on
    let (_, n) = rpcs(
        &u.fs,
        set(
            &u,
            &fh,
            SetAttr {
                mode: Some(0o600),
                ..Default::default()
            },
        ),
    )
    .await;
    assert_eq!(
        sent(&n),
        1,
        "nothing is kept back once another knows the file"
    );
    assert_eq!(v.stat("d/f").await.unwrap().mode & 0o777, 0o600);
    u.close(&fh).await.unwrap();
    // in a listing
    let fh = kept(&u, "d/listed").await;
    let listed = v.list("d").await.unwrap();
    assert!(listed.iter().any(|e| e.name == "listed"));
    check(&v.stat("d/listed").await.unwrap());
    u.close(&fh).await.unwrap();
    // whoever opens it is judged by them
    let fh = kept(&u, "d/opened").await;
    let dir = v.fid("d").await.unwrap();
    let owner = User::new(&v.fs, 7, 8);
    let flags = libc::O_RDWR as u32;
    let (_, theirs) =
        v.fs.create(&owner.cred, dir, b"opened", 0o600, flags)
            .await
            .unwrap();
    v.fs.release(&theirs).await.unwrap();
    u.close(&fh).await.unwrap();
    let fh = kept(&u, "d/closed").await;
    let other = User::new(&v.fs, 9, 9);
    let refused = v.fs.create(&other.cred, dir, b"closed", 0o600, flags).await;
    assert_eq!(refused.err().map(Errno::from), Some(Errno::EACCES));
    u.close(&fh).await.unwrap();
    c.stop().await;
}

/// A listing with attributes asks for many files at once, and for these alone.
#[tokio::test(start_paused = true)]
async fn a_listing_with_attributes_sees_what_is_kept_back() {
    let (c, u, v) = two().await;
    u.mkdir("d").await.unwrap();
    for i in 0..20 {
        u.put(&format!("d/f{i}"), b"more").await.unwrap();
    }
    let mut open = vec![];
    for i in 0..5 {
        open.push(kept(&u, &format!("d/k{i}")).await);
    }
    let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
    assert!(n.iter().any(|(name, _)| name == "MDS_BATCH"), "{n:?}");
    let all = all.unwrap();
    assert_eq!(all.len(), 25);
    for i in 0..5 {
        check(&all[&format!("k{i}")].unwrap());
    }
    for fh in &open {
        u.close(fh).await.unwrap();
    }
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_changes_comes_after_what_was_kept_back() {
    let (c, u, v) = two().await;
    u.mkdir("d").await.unwrap();
    let fh = kept(&u, "d/f").await;
    let fid = v
        .list("d")
        .await
        .unwrap()
        .iter()
        .find(|e| e.name == "f")
        .unwrap()
        .fid;
    let mode = SetAttr {
        mode: Some(0o604),
        ..Default::default()
    };
    v.fs.setattr(&v.cred, fid, mode, None).await.unwrap();
    for who in [&u, &v] {
        let now = who.stat("d/f").await.unwrap();
        assert_eq!(
            (now.uid, now.mode & 0o777, now.mtime.secs),
            (7, 0o604, MTIME)
        );
    }
    // and what it writes moves the time that was chosen
    let theirs = v.open("d/f", libc::O_WRONLY).await.unwrap();
    v.write(&theirs, 0, b"more than data").await.unwrap();
    v.close(&theirs).await.unwrap();
    let now = u.stat("d/f").await.unwrap();
    assert!(now.size == 14 && now.mtime.secs != MTIME);
    // one who removes it need not look first
    let again = kept(&u, "d/g").await;
    v.unlink("d/g").await.unwrap();
    assert_eq!(
        u.fs.getattr(&u.cred, again.fid(), None)
            .await
            .unwrap()
            .attr
            .nlink,
        0
    );
    for fh in [fh, again] {
        u.close(&fh).await.unwrap();
    }
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_is_sent_by_close_and_fsync_and_in_time() {
    let (c, u, v) = two().await;
    let fh = kept(&u, "synced").await;
    let (_, n) = rpcs(&u.fs, u.fs.fsync(&fh, false)).await;
    assert_eq!(sent(&n), 1);
    u.close(&fh).await.unwrap();
    let fh = kept(&u, "closed").await;
    // close(2) waits for nothing; all goes with the close
    let (_, n) = rpcs(&u.fs, u.fs.flush(&fh, 0)).await;
    assert_eq!(n, []);
    let (_, n) = rpcs(&u.fs, u.fs.release(&fh)).await;
    assert_eq!(n, counts(&[("MDS_CLOSE", 1), ("OST_WRITE", 1)]));
    let fh = kept(&u, "open for long").await;
    let (_, n) = rpcs(&u.fs, tokio::time::sleep(Duration::from_secs(3))).await;
    assert_eq!(sent(&n), 1);
    u.fs.release(&fh).await.unwrap();
    // nobody releases it
    drop(kept(&u, "dropped").await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    for name in ["synced", "closed", "open for long", "dropped"] {
        check(&v.stat(name).await.unwrap());
    }
    c.stop().await;
}

/// This client's own changes and opens are judged as if nothing were late, and data changes after the times that were set.
#[tokio::test(start_paused = true)]
async fn the_order_of_a_program_stays() {
    let (c, u, v) = two().await;
    let fh = kept(&u, "f").await;
    u.write(&fh, 4, b" and more").await.unwrap();
    let now = u.stat("f").await.unwrap();
    assert!(now.size == 13 && now.mtime.secs != MTIME);
    u.close(&fh).await.unwrap();
    assert_eq!(v.stat("f").await.unwrap().mtime, now.mtime);

    let fh = kept(&u, "g").await;
    let owner = User::new(&u.fs, 7, 8);
    let mine = owner.open("g", libc::O_RDWR).await.unwrap();
    owner.close(&mine).await.unwrap();
    let nobody = User::new(&u.fs, 9, 9);
    assert_eq!(
        nobody.open("g", libc::O_RDONLY).await.err(),
        Some(Errno::EACCES)
    );
    u.close(&fh).await.unwrap();

    let fh = kept(&u, "h").await;
    u.rename("h", "i", 0).await.unwrap();
    u.link("i", "j").await.unwrap();
    for name in ["i", "j"] {
        check(&u.stat(name).await.unwrap());
        check(&v.stat(name).await.unwrap());
    }
    u.close(&fh).await.unwrap();

    // what may be refused is not kept back
    let w = User::new(&u.fs, 7, 8);
    let fid = u.fid("i").await.unwrap();
    let chown = SetAttr {
        uid: Some(9),
        ..Default::default()
    };
    u.mkdir("open").await.unwrap();
    let all = SetAttr {
        mode: Some(0o777),
        ..Default::default()
    };
    let open = u.fid("open").await.unwrap();
    u.fs.setattr(&u.cred, open, all, None).await.unwrap();
    let own = w.create("open/own", libc::O_RDWR).await.unwrap();
    for (file, through) in [(fid, None), (own.fid(), Some(&*own))] {
        let no = w.fs.setattr(&w.cred, file, chown, through).await;
        assert_eq!(no.err().map(Errno::from), Some(Errno::EPERM));
    }
    let (_, n) = rpcs(&w.fs, w.fs.setattr(&w.cred, own.fid(), all, Some(&own))).await;
    assert_eq!(sent(&n), 0, "the owner's chmod of what he made is granted");
    w.close(&own).await.unwrap();
    assert_eq!(v.stat("open/own").await.unwrap().mode & 0o777, 0o777);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_servers_loses_nothing() {
    let (c, u, v) = two().await;
    let fh = kept(&u, "f").await;
    let c = c.kill_and_restart().await;
    check(&v.stat("f").await.unwrap());
    u.close(&fh).await.unwrap();
    check(&v.stat("f").await.unwrap());
    u.fs.umount().await;
    v.fs.umount().await;
    c.stop().await;
}

/// A client that is lost loses what it had not sent, and what it had closed or synced stays.
#[tokio::test(start_paused = true)]
async fn an_eviction_loses_what_was_kept_back_and_tells() {
    let (c, u, v) = two().await;
    let fh = kept(&u, "closed").await;
    u.close(&fh).await.unwrap();
    let fh = kept(&u, "f").await;
    let mdt = &c.mdt().target;
    let nid = u.fs.node().nid();
    let theirs = mdt.exports().into_iter().find(|e| e.nid() == nid);
    mdt.evict(theirs.unwrap().cookie, "a test");
    check(&v.stat("closed").await.unwrap());
    let now = v.stat("f").await.unwrap();
    assert_eq!((now.uid, now.size), (0, 0));
    // others may change it, and nothing that is late overtakes them
    let mode = SetAttr {
        mode: Some(0o604),
        ..Default::default()
    };
    v.fs.setattr(&v.cred, now.fid, mode, None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        u.fs.flush(&fh, 0).await.err().map(Errno::from),
        Some(Errno::EIO)
    );
    u.fs.release(&fh).await.ok();
    for who in [&u, &v] {
        let now = who.stat("f").await.unwrap();
        assert_eq!((now.uid, now.mode & 0o777), (0, 0o604));
    }
    c.stop().await;
}

/// Clients whose ids do not count as they are are refused at once.
#[tokio::test(start_paused = true)]
async fn a_squashed_client_keeps_nothing_back() {
    let (c, u, _v) = two().await;
    u.mkdir("d").await.unwrap();
    let all = SetAttr {
        mode: Some(0o777),
        ..Default::default()
    };
    let d = u.fid("d").await.unwrap();
    u.fs.setattr(&u.cred, d, all, None).await.unwrap();
    let name = format!("mdt.{}.root_squash", c.mdt().target.name());
    c.mdt().set_param(&name, "99:99").await.unwrap().unwrap();
    let fh = u.create("d/f", libc::O_RDWR).await.unwrap();
    let done =
        u.fs.setattr(&u.cred, fh.fid(), owner_and_mode(), Some(&fh))
            .await;
    assert_eq!(done.err().map(Errno::from), Some(Errno::EPERM));
    u.close(&fh).await.unwrap();
    c.stop().await;
}
