//! Files that are told as made before their MDT hears of them: others see them whoever asks, and what cannot be done is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ahead::{forget, overtaking};
use crate::common::*;
use crate::shown::Memory;
use coral_client::llite::OpenedFile;
use coral_client::llite::types::Entry;
use coral_client::{Cred, DirHandle, SetAttr};
use coral_wire::Errno;
use coral_wire::acl::{Acl, AclEntry, tag};
use coral_wire::ldlm::LdlmMode;

/// Files from which on a program is known for one that makes file after file, and the directory is lent and has shown what it gives.
const FIRST: usize = 14;

/// A client of which one program asks.
fn program(fs: &Arc<coral_client::Llite>) -> User {
    let mut u = User::root(fs);
    u.cred.pid = 7;
    u
}

pub(crate) async fn clients<const N: usize>(c: &Cluster) -> [User; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(program(&c.remote_client().await));
    }
    all.try_into().ok().expect("as many as were asked for")
}

/// Makes a file as a program does by open(2) of a mount.
pub(crate) async fn make(u: &User, path: &str, mode: u32) -> Result<(Entry, OpenedFile)> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = u.fid(dir).await?;
    let there = u.fs.lookup(&u.cred, dir, name.as_bytes()).await;
    match there.map_err(Errno::from) {
        Err(Errno::ENOENT) => {}
        Err(e) => return Err(e),
        Ok(_) => return Err(Errno::EEXIST),
    }
    let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) as u32;
    Ok(u.fs
        .make(&u.cred, dir, name.as_bytes(), mode, flags)
        .await?)
}

pub(crate) async fn close(u: &User, file: &OpenedFile) -> Result<()> {
    u.fs.flush_opened(file, 1).await?;
    Ok(u.fs.release_opened(file).await?)
}

/// Makes these and closes them.
async fn touch(u: &User, dir: &str, files: impl IntoIterator<Item = usize>) {
    for i in files {
        let (_, file) = make(u, &format!("{dir}/f{i}"), 0o644).await.unwrap();
        close(u, &file).await.unwrap();
    }
}

/// `u` has made the first files of the new directory `dir`, and has it for itself.
async fn borrowed(u: &User, dir: &str) {
    u.mkdir(dir).await.unwrap();
    begin(u, dir).await;
}

/// The same of a directory that is there and empty.
async fn begin(u: &User, dir: &str) {
    touch(u, dir, 0..FIRST - 2).await;
    // it is asked for beside them
    tokio::time::sleep(Duration::from_millis(100)).await;
    touch(u, dir, FIRST - 2..FIRST).await;
}

/// Others' locks keep a directory from being lent, and one that was not lent is not asked for soon.
async fn lets_go(other: &User) {
    forget(other).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
}

pub(crate) async fn opened_dir(u: &User, path: &str) -> Arc<DirHandle> {
    let fid = u.fid(path).await.unwrap();
    u.fs.opendir(&u.cred, fid).await.unwrap()
}

pub(crate) fn of(n: &[(String, u64)], what: &str) -> u64 {
    n.iter().find(|(o, _)| o == what).map_or(0, |(_, c)| *c)
}

pub(crate) fn created_late(u: &User) -> u64 {
    counted(u, "coral_llite_files_created_late_total")
}

fn numbered(files: impl Iterator<Item = usize>) -> Vec<String> {
    let mut names: Vec<String> = files.map(|i| format!("f{i}")).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn who_makes_file_after_file_waits_for_none() {
    const FILES: usize = 300;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    overtaking(&c, [&u, &v], 1);
    borrowed(&u, "d").await;
    let late = created_late(&u);
    let (most, n) = rpcs(&u.fs, async {
        let mut most = 0;
        for i in FIRST..FILES {
            touch(&u, "d", [i]).await;
            most = most.max(u.fs.untold_names());
        }
        u.fs.statfs().await.unwrap();
        most
    })
    .await;
    println!(
        "{} files, {most} on their way at most: {n:?}",
        FILES - FIRST
    );
    assert_eq!(created_late(&u) - late, (FILES - FIRST) as u64);
    assert!(most > 1);
    let asked = of(&n, "LDLM_ENQUEUE") as usize - (FILES - FIRST);
    assert!(asked < 5, "{n:?}");
    assert_eq!(of(&n, "MDS_CLOSE"), 0, "they are kept open: {n:?}");
    assert_eq!(v.names("d").await.unwrap(), numbered(0..FILES));
    for i in [FIRST, FILES - 1] {
        let path = format!("d/f{i}");
        assert_eq!(u.stat(&path).await, v.stat(&path).await);
    }
    // its own and the other's names go as ever
    for i in 0..FILES {
        let who = if i % 2 == 0 { &u } else { &v };
        who.unlink(&format!("d/f{i}")).await.unwrap();
    }
    u.rmdir("d").await.unwrap();
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.stop().await;
}

/// Each way to ask about what was made, by another client, while the MDT may not have heard of it.
#[tokio::test(start_paused = true)]
async fn another_client_sees_all_of_them() {
    for seed in 0..2 {
        let c = Cluster::start(2, 1, 1 << 20).await;
        let [u, v] = clients(&c).await;
        overtaking(&c, [&u, &v], seed);
        for way in 0..10 {
            let d = format!("d{way}");
            borrowed(&u, &d).await;
            let late = created_late(&u);
            touch(&u, &d, FIRST..FIRST + 10).await;
            assert_eq!(created_late(&u) - late, 10, "way {way}");
            assert!(u.fs.untold_names() > 0, "way {way}");
            let last = format!("{d}/f{}", FIRST + 9);
            let dir = v.fid(&d).await.unwrap();
            match way {
                0 => v.stat(&last).await.map(drop).unwrap(),
                1 => v.open(&last, libc::O_RDONLY).await.map(drop).unwrap(),
                2 => v.unlink(&last).await.unwrap(),
                3 => v.rename(&last, "elsewhere", 0).await.unwrap(),
                4 => v.link(&last, "elsewhere2").await.unwrap(),
                5 => assert_eq!(v.names(&d).await.unwrap(), numbered(0..FIRST + 10)),
                6 => assert_eq!(v.ls_l(&d).await.unwrap().len(), FIRST + 10),
                7 => {
                    let flags = libc::O_RDWR | libc::O_EXCL;
                    assert_eq!(v.create(&last, flags).await.err(), Some(Errno::EEXIST));
                }
                8 => assert_eq!(v.rmdir(&d).await, Err(Errno::ENOTEMPTY)),
                _ => {
                    let mtime = v.stat(&d).await.unwrap().mtime;
                    let file = v.stat(&last).await.unwrap();
                    assert_eq!(mtime, file.ctime, "that of its last change");
                    assert_eq!(
                        v.fs.getattr(&v.cred, dir, None).await.unwrap().attr.mtime,
                        mtime
                    );
                }
            }
            assert_eq!(u.fs.untold_names(), 0, "way {way}");
        }
        assert_eq!(c.mdt().target.stats().evictions.value(), 0);
        c.stop().await;
    }
}

/// Each call of the same client that could tell the difference.
#[tokio::test(start_paused = true)]
async fn the_order_of_a_program_stays() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    overtaking(&c, [&u, &v], 3);
    for way in 0..12 {
        let d = format!("d{way}");
        borrowed(&u, &d).await;
        let late = created_late(&u);
        touch(&u, &d, FIRST..FIRST + 4).await;
        let path = format!("{d}/new");
        let (entry, file) = make(&u, &path, 0o644).await.unwrap();
        assert_eq!(created_late(&u) - late, 5, "way {way}");
        let fid = entry.attr.fid;
        assert_eq!(
            (entry.attr.mode, entry.attr.size),
            (libc::S_IFREG | 0o644, 0)
        );
        match way {
            0 => assert_eq!(u.stat(&path).await.unwrap(), entry.attr),
            1 => {
                let fh = file.handle().await.unwrap();
                u.write(&fh, 0, b"text").await.unwrap();
                assert_eq!(v.get(&path).await.unwrap(), b"text");
            }
            2 => u.unlink(&path).await.unwrap(),
            3 => u.rename(&path, "moved", 0).await.unwrap(),
            4 => u.link(&path, "linked").await.unwrap(),
            5 => assert_eq!(u.names(&d).await.unwrap().len(), FIRST + 5),
            6 => {
                let set = SetAttr {
                    mode: Some(0o600),
                    size: Some(10),
                    ..SetAttr::default()
                };
                u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
                assert_eq!(v.stat(&path).await.unwrap().size, 10);
            }
            7 => {
                let value = bytes::Bytes::from_static(b"v");
                let set = u.fs.setxattr(&u.cred, fid, b"user.n", value, 0);
                set.await.unwrap();
            }
            8 => {
                u.mkdir(&format!("{d}/sub")).await.unwrap();
                assert_eq!(v.names(&d).await.unwrap().len(), FIRST + 6);
            }
            9 => {
                let dir = u.fid(&d).await.unwrap();
                u.fs.sync_dir(dir).await.unwrap();
                assert_eq!(u.fs.untold_names(), 0);
            }
            10 => {
                let again = u.fs.open(&u.cred, fid, libc::O_RDWR as u32).await.unwrap();
                u.close(&again).await.unwrap();
            }
            _ => {
                let fh = file.handle().await.unwrap();
                u.fs.fsync(&fh, false).await.unwrap();
            }
        }
        close(&u, &file).await.unwrap();
        if way != 2 && way != 3 {
            assert_eq!(v.stat(&path).await.unwrap().fid, fid, "way {way}");
        }
    }
    c.stop().await;
}

/// What was told of a file is what it is, whatever its directory hands down, and whoever sets that meanwhile.
#[tokio::test(start_paused = true)]
async fn a_directory_hands_down_what_it_does_at_that_moment() {
    const INHERITS: u32 = 0x2000_0000;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    borrowed(&u, "d").await;
    let dir = u.fid("d").await.unwrap();
    let entry = |tag, perm| AclEntry {
        tag,
        perm,
        id: u32::MAX,
    };
    let acl = Acl {
        entries: vec![
            entry(tag::USER_OBJ, 7),
            entry(tag::GROUP_OBJ, 5),
            entry(tag::OTHER, 0),
        ],
    };
    let mut next = FIRST;
    for (n, who) in [&u, &v, &u, &v].into_iter().enumerate() {
        let mut set = SetAttr::default();
        match n / 2 {
            0 => (set.mode, set.gid) = (Some(0o2777 - n as u32), Some(50 + n as u32)),
            _ => (set.flags, set.projid) = (Some(INHERITS), Some(7 + n as u32)),
        }
        who.fs.setattr(&who.cred, dir, set, None).await.unwrap();
        if n == 3 {
            let name = b"system.posix_acl_default";
            let set = who.fs.setxattr(&who.cred, dir, name, acl.encode(), 0);
            set.await.unwrap();
        }
        let late = created_late(&u);
        for _ in 0..4 {
            // it is borrowed again
            lets_go(&v).await;
            touch(&u, "d", next..next + 10).await;
            next += 10;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut masked = User {
                fs: u.fs.clone(),
                cred: u.cred.clone(),
            };
            masked.cred.umask = 0o027;
            let mut told = Vec::new();
            for (who, mode) in [
                (&u, 0o644),
                (&u, 0o644),
                (&masked, 0o666),
                (&masked, 0o666),
                (&u, 0o666),
            ] {
                let path = format!("d/f{next}");
                let (entry, file) = make(who, &path, mode).await.unwrap();
                close(who, &file).await.unwrap();
                told.push((path, entry.attr));
                next += 1;
            }
            for (path, attr) in told {
                assert_eq!(v.stat(&path).await.unwrap(), attr, "{n}: {path}");
            }
        }
        println!("{n}: {} were made late", created_late(&u) - late);
    }
    assert!(created_late(&u) > 20, "{}", created_late(&u));
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_servers_keeps_them() {
    const FILES: usize = 100;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    borrowed(&u, "d").await;
    let late = created_late(&u);
    touch(&u, "d", FIRST..60).await;
    let c = c.kill_and_restart().await;
    touch(&u, "d", 60..FILES).await;
    assert!(created_late(&u) - late > 60);
    assert_eq!(v.names("d").await.unwrap(), numbered(0..FILES));
    assert_eq!(u.names("d").await.unwrap(), numbered(0..FILES));
    for i in 0..FILES {
        let path = format!("d/f{i}");
        assert_eq!(u.stat(&path).await, v.stat(&path).await);
    }
    u.fs.umount().await;
    v.fs.umount().await;
    c.stop().await;
}

/// A client that is lost has made nothing late: it is told, and what it was told of the files is forgotten.
#[tokio::test(start_paused = true)]
async fn an_eviction_loses_them_and_tells() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    let memory = Arc::new(Memory::default());
    u.fs.set_invalidate(memory.clone());
    borrowed(&u, "d").await;
    let dir = opened_dir(&u, "d").await;
    let mdt = &c.mdt().target;
    let nid = u.fs.node().nid();
    let theirs = mdt.exports().into_iter().find(|e| e.nid() == nid);
    mdt.evict(theirs.unwrap().cookie, "a test");
    let late = created_late(&u);
    let mut lost = Vec::new();
    for i in 20..24 {
        let (e, file) = make(&u, &format!("d/f{i}"), 0o644).await.unwrap();
        lost.push((e.attr.fid, file));
    }
    let late = (created_late(&u) - late) as usize;
    assert!(late > 0, "it did not know yet");
    for i in 20..24 {
        v.put(&format!("d/f{i}"), b"another's now").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut failed = 0;
    for (fid, file) in &lost {
        failed += usize::from(file.handle().await.is_err());
        assert!(!memory.remembers(*fid));
        let _ = close(&u, file).await;
    }
    assert_eq!(failed, late, "their uses fail");
    let synced = u.fs.fsyncdir(&dir).await.map_err(Errno::from);
    assert_eq!(synced, Err(Errno::EIO), "it is told");
    for i in 20..24 {
        for who in [&u, &v] {
            assert_eq!(who.get(&format!("d/f{i}")).await.unwrap(), b"another's now");
        }
    }
    touch(&u, "d", 30..40).await;
    assert_eq!(v.names("d").await.unwrap().len(), FIRST + 14);
    c.stop().await;
}

/// What is not sure to be granted is asked for.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_by_the_call_that_is_refused() {
    const IMMUTABLE: u32 = 0x10;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [root, mut u] = clients(&c).await;
    let dir = root.mkdir("d").await.unwrap();
    let set = async |set: SetAttr| {
        root.fs.setattr(&root.cred, dir, set, None).await.unwrap();
    };
    let mode = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let flags = |flags| SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    set(mode(0o777)).await;
    u.cred = Cred {
        pid: 7,
        ..User::new(&u.fs, 7, 7).cred
    };
    begin(&u, "d").await;
    let late = created_late(&u);
    touch(&u, "d", FIRST..30).await;
    assert!(created_late(&u) > late);
    set(mode(0o755)).await;
    assert_eq!(make(&u, "d/f30", 0o644).await.err(), Some(Errno::EACCES));
    set(mode(0o777)).await;
    touch(&u, "d", 30..50).await;
    set(flags(IMMUTABLE)).await;
    assert!(make(&u, "d/f50", 0o644).await.is_err());
    set(flags(0)).await;
    touch(&u, "d", 50..60).await;
    let long = format!("d/{}", "n".repeat(256));
    assert_eq!(
        make(&u, &long, 0o644).await.err(),
        Some(Errno::ENAMETOOLONG)
    );
    assert_eq!(root.names("d").await.unwrap(), numbered(0..60));
    c.stop().await;
}

/// Where there is little room each file is asked for: the one that has none is refused when it is made.
#[tokio::test(start_paused = true)]
async fn little_room_is_shared_out_by_the_mdt() {
    for (bytes, late) in [(255 << 20, false), (300 << 20, true)] {
        let c = Cluster::start_mdts_of(&[bytes], 2).await;
        let [u] = clients(&c).await;
        borrowed(&u, "d").await;
        touch(&u, "d", FIRST..40).await;
        assert_eq!(created_late(&u) > 0, late);
        c.stop().await;
    }
}

/// Users of a squashed client are others here, and it does not know what these may.
#[tokio::test(start_paused = true)]
async fn a_squashed_client_is_told_of_each_file_by_the_mdt() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u] = clients(&c).await;
    let dir = u.mkdir("d").await.unwrap();
    let all = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    u.fs.setattr(&u.cred, dir, all, None).await.unwrap();
    let name = format!("mdt.{}.root_squash", c.mdt().target.name());
    c.mdt().set_param(&name, "99:99").await.unwrap().unwrap();
    begin(&u, "d").await;
    touch(&u, "d", FIRST..40).await;
    assert_eq!(created_late(&u), 0);
    assert_eq!(u.stat("d/f39").await.unwrap().uid, 99);
    c.stop().await;
}

/// Who asks while a program goes on making files waits for what was under way, and not for its end.
#[tokio::test(start_paused = true)]
async fn the_directory_is_given_back() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    borrowed(&u, "d").await;
    let is_ex = |l: &coral_ldlm::LockInfo| l.granted_mode == LdlmMode::EX && l.export.is_some();
    let ex = || {
        let locks = c.mdt().target.ldlm().locks();
        locks.iter().filter(|l| is_ex(l)).count()
    };
    touch(&u, "d", FIRST..50).await;
    assert_eq!(ex(), 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(ex(), 0, "nothing is made any more");
    let makes = async {
        for i in 50..500 {
            touch(&u, "d", [i]).await;
            tokio::task::yield_now().await;
        }
    };
    let asks = async {
        for _ in 0..20 {
            v.names("d").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::join!(makes, asks);
    assert_eq!(v.names("d").await.unwrap(), numbered(0..500));
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.stop().await;
}

/// The lock of a directory in which others wait for a turn goes back, though all places of the client are taken by requests that wait
/// for others: two clients, each of which has a directory for itself, and asks about that of the other.
#[tokio::test(start_paused = true)]
async fn two_clients_do_not_wait_for_each_other() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    overtaking(&c, [&u, &v], 5);
    for round in 0..5 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        borrowed(&u, &a).await;
        borrowed(&v, &b).await;
        let all = |who: User, own: String, theirs: String| async move {
            touch(&who, &own, FIRST..FIRST + 40).await;
            let who = &who;
            let made = (0..40).map(|i| {
                let path = format!("{theirs}/g{i}");
                async move { who.mkdir(&path).await.map(drop) }
            });
            let made = futures_util::future::join_all(made);
            let more = touch(who, &own, FIRST + 40..FIRST + 80);
            let (made, ()) = tokio::join!(made, more);
            made.into_iter().for_each(|m| m.unwrap());
        };
        let copy = |u: &User| User {
            fs: u.fs.clone(),
            cred: u.cred.clone(),
        };
        tokio::join!(
            all(copy(&u), a.clone(), b.clone()),
            all(copy(&v), b.clone(), a.clone())
        );
        assert_eq!(u.names(&b).await.unwrap().len(), FIRST + 120);
        assert_eq!(v.names(&a).await.unwrap().len(), FIRST + 120);
    }
    assert!(created_late(&u) > 100);
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.stop().await;
}

/// The kernel above a client that makes files late remembers of each what it is.
#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_so() {
    for seed in 0..6 {
        let c = Cluster::start(2, 1, 1 << 20).await;
        let [u, v] = clients(&c).await;
        let memory = Arc::new(Memory::default());
        u.fs.set_invalidate(memory.clone());
        overtaking(&c, [&u, &v], seed);
        borrowed(&u, "d").await;
        let mut rng = Rng(seed + 1);
        let mut sizes = BTreeMap::new();
        let mut remembered = 0;
        for i in FIRST..FIRST + 200 {
            memory.begins();
            let path = format!("d/f{i}");
            let (e, file) = make(&u, &path, 0o644).await.unwrap();
            memory.take(&e);
            sizes.insert(e.attr.fid, 0);
            let fid = e.attr.fid;
            match rng.below(20) {
                0 => {
                    let data = vec![7; 1 + rng.below(100) as usize];
                    v.put(&path, &data).await.unwrap();
                    sizes.insert(fid, data.len() as u64);
                }
                1 => {
                    let fh = file.handle().await.unwrap();
                    u.write(&fh, 0, b"text").await.unwrap();
                    memory.forget(fid);
                    sizes.insert(fid, 4);
                }
                2 => drop(v.ls_l("d").await.unwrap()),
                3 => tokio::time::sleep(Duration::from_millis(rng.below(300))).await,
                4 => lets_go(&v).await,
                _ => {}
            }
            close(&u, &file).await.unwrap();
            for (fid, size) in &sizes {
                if let Some((told, _)) = memory.of(*fid) {
                    assert_eq!(told, *size, "seed {seed}, file {i}, {fid}");
                    remembered += 1;
                }
            }
        }
        println!(
            "seed {seed}: {} late, {remembered} remembered",
            created_late(&u)
        );
        assert!(created_late(&u) > 4 && remembered > 100);
        c.stop().await;
    }
}
