//! Operations over two and three MDTs, and one of the MDTs, or all, killed or without power at every step of them: after a restart, in
//! whatever order, the operation is whole or absent, what a client was told holds, and nothing is left over.
//!
//! Every message takes 1 ms and every sync 3 ms, and the end comes each time half a millisecond later: so it comes once between any
//! two messages or syncs that follow each other. Each kind of end comes at every third of these times, where names move at every sixth,
//! the next kind one later. `CORAL_STRIDE=1` has each kind come at each of them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_client::Llite;
use coral_client::llite::{MigrateRequest, MkdirRequest};
use coral_lnet::{LinkModel, Nid};
use coral_node::Cluster;
use coral_osd::{DiskModel, Kv};
use coral_server::mdt::{Mdt, check_all};
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd, hash_flag, hash_type};
use coral_wire::{Errno, Fid};

use common::simulated::{number, on_own_clock};
use common::{FSNAME, Result, Rng, User, nid};

const STEP: Duration = Duration::from_micros(500);
/// Longer than any of the operations takes.
const STEPS_MAX: u32 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Mkdir,
    Rmdir,
    /// `f` of MDT0000 becomes `d/x` of a directory of MDT0001, which is there and goes.
    Rename,
    /// `f` is named `d/x` too.
    Link,
    /// A directory in shards on three MDTs, its name on MDT0000, its master on MDT0001.
    MkStriped,
    RmStriped,
    /// Directory `d/x` of MDT0002 becomes `e/x`, where `d` is on MDT0000 and `e` on MDT0001.
    Move,
    /// File `d/x` goes to MDT0001, to which its directory is being moved.
    MigrateFile,
    /// Directory `d/x` with file `d/x/f` becomes one of two shards on MDT0001 and MDT0002, where its name has not moved yet.
    MigrateDir,
    /// That ends, when the file has moved.
    EndMigration,
    /// Directory `d/x` of MDT0001 with files becomes one of three shards, and its names move.
    Split,
    /// The same of one in two shards, which gets a third.
    SplitMore,
    /// `d/x` in three shards keeps one of them.
    Merge,
}

impl What {
    fn mdts(self) -> usize {
        match self {
            What::MkStriped | What::RmStriped | What::Move => 3,
            What::MigrateDir | What::EndMigration => 3,
            What::Split | What::SplitMore | What::Merge => 3,
            _ => 2,
        }
    }
}

/// How it ends.
#[derive(Clone, Copy, Debug)]
struct Case {
    what: What,
    /// So many steps after the client has begun, and so much more.
    step: u32,
    more: Duration,
    /// MDT0000, which has the name; MDT0001, which coordinates; a third, if there is one.
    victims: [bool; 3],
    power: bool,
    client_too: bool,
    /// The MDT that is started first when all have ended.
    first: usize,
}

struct Rig {
    c: Cluster,
    mdts: Vec<Nid>,
}

impl Rig {
    async fn start(count: usize) -> Rig {
        let (mgs, client) = (nid("10.0.0.1@tcp"), nid("10.0.5.1@tcp"));
        let at = |n: usize| nid(&format!("10.0.0.{}@tcp", n + 2));
        let mdts: Vec<Nid> = (0..count).map(at).collect();
        let disk = DiskModel {
            sync_latency: Duration::from_millis(3),
            ..DiskModel::INSTANT
        };
        let link = LinkModel {
            delay: Duration::from_millis(1),
            ..LinkModel::default()
        };
        let mut b = Cluster::builder()
            .fsname(FSNAME)
            .mdts(count as u32)
            .mgs_at(mgs)
            .ost_at(0, mgs)
            .disk_model(disk);
        for (i, at) in mdts.iter().enumerate() {
            b = b.mdt_number_at(i as u32, *at).link(*at, client, link);
            for other in &mdts[..i] {
                b = b.link(*other, *at, link);
            }
        }
        let c = b.start().await.expect("a cluster");
        Rig { c, mdts }
    }

    async fn client(&self) -> Arc<Llite> {
        let client = self.c.client_at(nid("10.0.5.1@tcp"), &[]).await;
        client.expect("mount").llite().clone()
    }

    fn mdts(&self) -> Vec<Arc<Mdt>> {
        let all = 0..self.mdts.len() as u32;
        all.map(|i| self.c.mdt_number(i).clone()).collect()
    }

    fn is_quiet(&self) -> bool {
        self.mdts().iter().all(|m| {
            let moving = m.ops.restriping().expect("readable");
            m.ops.out.prepared() == 0 && m.ops.trans.unfinished() == 0 && moving == 0
        })
    }

    async fn quiet(&self, case: &Case) {
        for _ in 0..1200 {
            if self.is_quiet() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{case:?}: an operation does not end");
    }

    async fn end_victims(&mut self, case: &Case) {
        for at in 0..self.mdts.len() {
            if !case.victims[at] {
                continue;
            }
            let done = match case.power {
                true => self.c.lose_power(self.mdts[at]).await,
                false => self.c.kill(self.mdts[at]).await,
            };
            done.expect("an end");
        }
    }

    async fn restart(&mut self, case: &Case) {
        let count = self.mdts.len();
        for at in (0..count).map(|i| (case.first + i) % count) {
            if case.victims[at] {
                self.c.restart(self.mdts[at]).await.expect("a restart");
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        }
        if case.client_too {
            for at in &self.mdts {
                if let Some(s) = self.c.servers_at(*at) {
                    s.abort_recovery(|_| true);
                }
            }
        }
    }
}

async fn mkdir_on(u: &User, dir: Fid, name: &str, mdt: u32) -> Result<()> {
    mkdir_over(u, dir, name, 1, mdt).await
}

async fn mkdir_over(u: &User, dir: Fid, name: &str, count: u32, mdt: u32) -> Result<()> {
    let rq = MkdirRequest {
        mode: 0o755,
        name: Bytes::copy_from_slice(name.as_bytes()),
        lum: LmvUserMd::request(count, mdt, hash_type::FNV_1A_64),
    };
    u.fs.setxattr(&u.cred, dir, b"lustre.mkdir", rq.encode(), 0)
        .await
        .map_err(Errno::from)
}

/// How directories are migrated here.
fn two_shards() -> LmvUserMd {
    LmvUserMd::request(2, 1, hash_type::FNV_1A_64)
}

async fn migrate(u: &User, dir: Fid, name: &str, lum: LmvUserMd) -> Result<()> {
    let rq = MigrateRequest {
        name_only: false,
        name: Bytes::copy_from_slice(name.as_bytes()),
        lum,
    };
    u.fs.setxattr(&u.cred, dir, b"lustre.migrate", rq.encode(), 0)
        .await
        .map_err(Errno::from)
}

async fn end_migration(u: &User, path: &str, lum: LmvUserMd) -> Result<()> {
    let dir = u.fid(path).await?;
    u.fs.setxattr(&u.cred, dir, b"lustre.lmv", lum.encode(), 0)
        .await
        .map_err(Errno::from)
}

/// Asks for `d/x` in so many shards.
async fn restripe(u: &User, dir: Fid, count: u32) -> Result<()> {
    let rq = MkdirRequest {
        mode: 0,
        name: Bytes::from_static(b"x"),
        lum: LmvUserMd::request(count, LMV_OFFSET_DEFAULT, 0),
    };
    u.fs.setxattr(&u.cred, dir, b"lustre.restripe", rq.encode(), 0)
        .await
        .map_err(Errno::from)
}

/// In how many shards `d/x` is before, and after.
fn shards_of(what: What) -> Option<(usize, usize)> {
    match what {
        What::Split => Some((0, 3)),
        What::SplitMore => Some((2, 3)),
        What::Merge => Some((3, 1)),
        _ => None,
    }
}

/// Files of a directory that is split or merged: one moves to another shard, as its subdirectory does, and one stays.
const FILES: [&str; 2] = ["f0", "f3"];

/// What is there before the operation; returns the directory of MDT0000 that it is about.
async fn set_up(u: &User, what: What) -> Fid {
    let dir = u.mkdir("d").await.expect("d");
    match what {
        What::Mkdir | What::MkStriped => {}
        What::RmStriped => mkdir_over(u, dir, "x", 3, 1).await.expect("d/x"),
        What::Move => {
            mkdir_on(u, u.fs.root(), "e", 1).await.expect("e");
            mkdir_on(u, dir, "x", 2).await.expect("d/x");
        }
        What::Rmdir => mkdir_on(u, dir, "x", 1).await.expect("d/x"),
        What::MigrateFile => drop(u.put("d/x", b"new").await.expect("d/x")),
        What::MigrateDir | What::EndMigration => {
            u.mkdir("d/x").await.expect("d/x");
            u.put("d/x/f", b"new").await.expect("d/x/f");
        }
        What::Rename | What::Link => {
            mkdir_on(u, u.fs.root(), "e", 1).await.expect("e");
            u.put("d/x", b"new").await.expect("d/x");
        }
        What::Split | What::SplitMore | What::Merge => {
            let (before, _) = shards_of(what).expect("so many");
            mkdir_over(u, dir, "x", before as u32, 1)
                .await
                .expect("d/x");
            for name in FILES {
                u.put(&format!("d/x/{name}"), name.as_bytes())
                    .await
                    .expect("a file");
            }
            mkdir_on(u, u.fid("d/x").await.expect("d/x"), "dir", 0)
                .await
                .expect("d/x/dir");
        }
    }
    if what == What::Rename {
        u.put("e/x", b"old").await.expect("e/x");
    }
    if what == What::MigrateFile {
        let lum = LmvUserMd::request(1, 1, 0);
        migrate(u, u.fs.root(), "d", lum).await.expect("d");
        return u.fid("d").await.expect("d");
    }
    if what == What::EndMigration {
        migrate(u, dir, "x", two_shards()).await.expect("d/x");
        let x = u.fid("d/x").await.expect("d/x");
        migrate(u, x, "f", two_shards()).await.expect("d/x/f");
    }
    dir
}

async fn run(u: &User, dir: Fid, what: What) -> Result<()> {
    match what {
        What::Mkdir => mkdir_on(u, dir, "x", 1).await,
        What::MkStriped => mkdir_over(u, dir, "x", 3, 1).await,
        What::Rmdir | What::RmStriped => u.fs.rmdir(&u.cred, dir, b"x").await.map_err(Errno::from),
        What::Rename | What::Move => u.rename("d/x", "e/x", 0).await,
        What::Link => u.link("d/x", "e/x").await,
        What::MigrateFile => migrate(u, dir, "x", LmvUserMd::request(1, 1, 0)).await,
        What::MigrateDir => migrate(u, dir, "x", two_shards()).await,
        What::EndMigration => end_migration(u, "d/x", two_shards()).await,
        What::Split | What::SplitMore | What::Merge => {
            let (_, after) = shards_of(what).expect("so many");
            restripe(u, dir, after as u32).await
        }
    }
}

/// The same of a split or a merge: all names are there and can be used; the layout is the old one, one that changes, or the new one.
async fn is_restriped(u: &User, case: &Case, (before, after): (usize, usize)) -> bool {
    assert_eq!(u.names("d").await, Ok(vec!["x".to_owned()]), "{case:?}");
    let of = async |path: &str| u.stat(path).await.map(|a| a.nlink);
    assert_eq!(of("d").await, Ok(3), "{case:?}");
    let names = u.names("d/x").await.expect("a listing");
    assert_eq!(names, ["dir", "f0", "f3"], "{case:?}");
    for name in FILES {
        let path = format!("d/x/{name}");
        let got = u.get(&path).await;
        assert_eq!(got.as_deref(), Ok(name.as_bytes()), "{case:?}");
        assert_eq!(of(&path).await, Ok(1), "{case:?}");
    }
    assert_eq!(u.names("d/x/dir").await, Ok(vec![]), "{case:?}");
    let fid = u.fid("d/x").await.expect("d/x");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.lmv").await;
    let lmv = LmvUserMd::decode(&raw.expect("a layout")).expect("a layout");
    let changes = lmv.head.hash_type & hash_flag::MIGRATION != 0;
    let shards = lmv.objects.len();
    let all = before.max(after);
    let known = (changes && shards == all) || (!changes && (shards == before || shards == after));
    assert!(known, "{case:?}: {lmv:?}");
    changes || shards == after
}

/// The same of a migration: everything is there and can be read, whether it was made or not.
async fn is_migrated(u: &User, case: &Case) -> bool {
    let is_file = case.what == What::MigrateFile;
    let Ok(fid) = u.fid("d/x").await else {
        panic!("{case:?}: d/x is lost")
    };
    assert_eq!(u.names("d").await, Ok(vec!["x".to_owned()]), "{case:?}");
    let nlink = if is_file { 2 } else { 3 };
    let of = async |path: &str| u.stat(path).await.map(|a| a.nlink);
    assert_eq!(of("d").await, Ok(nlink), "{case:?}");
    let file = if is_file { "d/x" } else { "d/x/f" };
    assert_eq!(u.get(file).await.as_deref(), Ok(&b"new"[..]), "{case:?}");
    assert_eq!(of(file).await, Ok(1), "{case:?}");
    if is_file {
        let mdt = u.fs.getxattr(&u.cred, fid, b"lustre.mdt").await;
        return mdt.expect("its MDT") == "1";
    }
    assert_eq!(of("d/x").await, Ok(2), "{case:?}");
    assert_eq!(u.names("d/x").await, Ok(vec!["f".to_owned()]), "{case:?}");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.lmv").await;
    let lmv = LmvUserMd::decode(&raw.expect("a layout")).expect("a layout");
    let changes = lmv.head.hash_type & hash_flag::MIGRATION != 0;
    let shards = lmv.objects.len();
    assert!(
        matches!((changes, shards), (false, 0 | 2) | (true, 3)),
        "{case:?}: {lmv:?}"
    );
    match case.what {
        What::MigrateDir => changes,
        _ => !changes,
    }
}

/// Whether the operation was made, and all about it says so.
async fn is_made(u: &User, case: &Case) -> bool {
    if let Some(shards) = shards_of(case.what) {
        return is_restriped(u, case, shards).await;
    }
    if case.what >= What::MigrateFile {
        return is_migrated(u, case).await;
    }
    let names = u.names("d").await.expect("a listing");
    let nlink = u.stat("d").await.expect("the directory").nlink;
    let found = u.stat("d/x").await.map(|a| a.nlink);
    let there = match names.len() {
        0 => false,
        _ => {
            assert_eq!(names, ["x"], "{case:?}");
            true
        }
    };
    if case.what == What::Move {
        return is_moved(u, case, there, nlink).await;
    }
    let file = matches!(case.what, What::Rename | What::Link);
    if !file {
        let expected = if there {
            (3, Ok(2))
        } else {
            (2, Err(Errno::ENOENT))
        };
        assert_eq!((nlink, found), expected, "{case:?}");
        if there && case.what == What::MkStriped {
            assert_eq!(u.names("d/x").await, Ok(vec![]), "{case:?}");
        }
        return there == matches!(case.what, What::Mkdir | What::MkStriped);
    }
    let e = u.names("e").await.expect("a listing");
    assert!(e.is_empty() || e == ["x"], "{case:?}: {e:?}");
    let of = async |path: &str| match u.fid(path).await {
        Ok(_) => Some(u.get(path).await.expect("its data")),
        Err(e) => {
            assert_eq!(e, Errno::ENOENT, "{case:?}");
            None
        }
    };
    let (here, other) = (of("d/x").await, of("e/x").await);
    assert_eq!(
        (here.is_some(), other.is_some()),
        (there, !e.is_empty()),
        "{case:?}"
    );
    let links = u.stat("e/x").await.map(|a| a.nlink);
    let (new, old) = (Some(&b"new"[..]), Some(&b"old"[..]));
    match (case.what, here.as_deref(), other.as_deref()) {
        (What::Rename, None, o) if o == new => {
            assert_eq!(links, Ok(1), "{case:?}");
            true
        }
        (What::Rename, h, o) if h == new && o == old => {
            assert_eq!((found, links), (Ok(1), Ok(1)), "{case:?}");
            false
        }
        (What::Link, h, o) if h == new && o == new => {
            assert_eq!((found, links), (Ok(2), Ok(2)), "{case:?}");
            true
        }
        (What::Link, h, None) if h == new => {
            assert_eq!(found, Ok(1), "{case:?}");
            false
        }
        other => panic!("{case:?}: {other:?}"),
    }
}

/// The same of a directory that moves: it is in one of the two, which both count it, and knows in which.
async fn is_moved(u: &User, case: &Case, there: bool, nlink: u32) -> bool {
    let e = u.names("e").await.expect("a listing");
    assert_eq!(e.is_empty(), there, "{case:?}: {e:?}");
    let other = u.stat("e").await.expect("the other directory").nlink;
    let expected = if there { (3, 2) } else { (2, 3) };
    assert_eq!((nlink, other), expected, "{case:?}");
    let (is, is_not) = if there { ("d", "e") } else { ("e", "d") };
    let gone = u.fid(&format!("{is_not}/x")).await;
    assert_eq!(gone, Err(Errno::ENOENT), "{case:?}");
    let inside = u.list(&format!("{is}/x")).await.expect("a listing");
    let up = inside.iter().find(|e| &e.name[..] == b"..").map(|e| e.fid);
    assert_eq!(up, u.fid(is).await.ok(), "{case:?}");
    !there
}

/// Runs one case. Returns whether the operation was over before the end came.
async fn explore(case: Case) -> bool {
    let mut rig = Rig::start(case.what.mdts()).await;
    let fs = rig.client().await;
    let u = User::root(&fs);
    let dir = set_up(&u, case.what).await;
    rig.quiet(&case).await;
    tokio::time::sleep(Duration::from_secs(20)).await;

    let doing = tokio::spawn({
        let u = User::root(&fs);
        async move { run(&u, dir, case.what).await }
    });
    tokio::time::sleep(STEP * case.step + case.more).await;
    let over = doing.is_finished() && rig.is_quiet();
    rig.end_victims(&case).await;
    let told = match case.client_too {
        false => None,
        true => {
            let told = match doing.is_finished() {
                true => Some(doing.await.expect("it ran")),
                false => {
                    doing.abort();
                    None
                }
            };
            fs.node().shutdown().await;
            return after_client(rig, case, told, over).await;
        }
    };
    debug_assert_eq!(told, None::<Result<()>>);
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.restart(&case).await;
    let told = tokio::time::timeout(Duration::from_secs(900), doing).await;
    let told = told.unwrap_or_else(|_| panic!("{case:?}: the client is not answered"));
    assert_eq!(told.expect("it ran"), Ok(()), "{case:?}");
    assert!(
        is_made(&u, &case).await,
        "{case:?}: what was told does not hold"
    );
    finish(rig, case, fs).await;
    over
}

async fn after_client(mut rig: Rig, case: Case, told: Option<Result<()>>, over: bool) -> bool {
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.restart(&case).await;
    // servers that live on know the client yet, and another may use its address
    tokio::time::sleep(Duration::from_secs(200)).await;
    let fs = rig.client().await;
    let u = User::root(&fs);
    let made = is_made(&u, &case).await;
    if let Some(told) = told {
        assert_eq!(told, Ok(()), "{case:?}");
        assert!(made, "{case:?}: what was told does not hold");
    }
    finish(rig, case, fs).await;
    over
}

/// The same command again brings a migration to its end.
async fn finish_migration(u: &User, what: What) {
    let again =
        |done: Result<()>| assert!(matches!(done, Ok(()) | Err(Errno::EALREADY)), "{done:?}");
    let fid = async |path: &str| u.fid(path).await.expect("it is there");
    if what == What::MigrateFile {
        let lum = || LmvUserMd::request(1, 1, 0);
        again(migrate(u, fid("d").await, "x", lum()).await);
        again(end_migration(u, "d", lum()).await);
        return u.unlink("d/x").await.expect("d/x");
    }
    again(migrate(u, fid("d").await, "x", two_shards()).await);
    again(migrate(u, fid("d/x").await, "f", two_shards()).await);
    again(end_migration(u, "d/x", two_shards()).await);
    u.unlink("d/x/f").await.expect("d/x/f");
    u.rmdir("d/x").await.expect("d/x");
}

/// What was begun comes to its end by itself, or by the same command again.
async fn finish_restripe(u: &User, rig: &Rig, case: &Case, after: usize) {
    rig.quiet(case).await;
    let dir = u.fid("d").await.expect("d");
    match restripe(u, dir, after as u32).await {
        Ok(()) => rig.quiet(case).await,
        again => assert_eq!(again, Err(Errno::EALREADY), "{case:?}"),
    }
    assert!(is_made(u, case).await, "{case:?}");
    // while a subdirectory moves from shard to shard they may be counted one after the other
    let nlink = u.stat("d/x").await.map(|a| a.nlink);
    assert_eq!(nlink, Ok(3), "{case:?}");
    for name in FILES {
        u.unlink(&format!("d/x/{name}")).await.expect("a file");
    }
    u.rmdir("d/x/dir").await.expect("d/x/dir");
    u.rmdir("d/x").await.expect("d/x");
}

/// Everything can be used and removed, and all MDTs together are clean.
async fn finish(rig: Rig, case: Case, fs: Arc<Llite>) {
    let u = User::root(&fs);
    is_made(&u, &case).await;
    if case.what == What::Move {
        for dir in ["d", "e"] {
            let gone = u.rmdir(&format!("{dir}/x")).await;
            let done = matches!(gone, Ok(()) | Err(Errno::ENOENT));
            assert!(done, "{case:?}: {gone:?}");
        }
        u.rmdir("e").await.expect("e");
    } else if matches!(case.what, What::Rename | What::Link) {
        for name in ["d/x", "e/x"] {
            let gone = u.unlink(name).await;
            assert!(
                matches!(gone, Ok(()) | Err(Errno::ENOENT)),
                "{case:?}: {gone:?}"
            );
        }
        u.rmdir("e").await.expect("e");
    } else if let Some((_, after)) = shards_of(case.what) {
        finish_restripe(&u, &rig, &case, after).await;
    } else if case.what >= What::MigrateFile {
        finish_migration(&u, case.what).await;
    } else if u.fid("d/x").await.is_ok() {
        u.mkdir("d/x/y").await.expect("d/x/y");
        u.rmdir("d/x/y").await.expect("d/x/y");
        u.rmdir("d/x").await.expect("d/x");
    }
    u.rmdir("d").await.expect("d");
    rig.quiet(&case).await;
    fs.umount().await;
    rig.c.stop().await;
    let disks = &rig.c.disks;
    let kv = |i| disks.mdt_number(i) as &dyn Kv;
    let kvs: Vec<&dyn Kv> = (0..case.what.mdts() as u32).map(kv).collect();
    let report = check_all(&kvs).expect("readable");
    assert!(
        report.problems.is_empty(),
        "{case:?}: {:?}",
        report.problems
    );
    assert_eq!(
        (report.unfinished, report.dirs, report.files),
        (0, 1, 0),
        "{case:?}"
    );
}

/// The steps of an operation, with every end there is. Returns how many.
fn every_end(what: What) -> u32 {
    let mut explored = 0;
    let count = what.mdts();
    let one = |at: usize| std::array::from_fn(|i| i == at);
    let all: [bool; 3] = std::array::from_fn(|i| i < count);
    let ends: Vec<[bool; 3]> = (0..count).map(one).chain([all]).collect();
    let usual = if shards_of(what).is_some() { 6 } else { 3 };
    let stride = number("CORAL_STRIDE", usual) as u32;
    let mut offset = 0;
    for victims in ends {
        for power in [false, true] {
            for client_too in [false, true] {
                let orders = if victims == all { 0..count } else { 0..1 };
                for first in orders {
                    offset = (offset + 1) % stride;
                    for step in (offset..=STEPS_MAX).step_by(stride as usize) {
                        assert!(
                            step + stride <= STEPS_MAX,
                            "{what:?} takes longer than thought"
                        );
                        let case = Case {
                            what,
                            step,
                            more: Duration::ZERO,
                            victims,
                            power,
                            client_too,
                            first,
                        };
                        explored += 1;
                        if on_own_clock(move || explore(case), &format!("{case:?}")) {
                            break;
                        }
                    }
                }
            }
        }
    }
    explored
}

#[test]
fn a_remote_directory_is_made_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::Mkdir));
}

#[test]
fn a_remote_directory_is_removed_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::Rmdir));
}

#[test]
fn a_file_moves_to_another_mdt_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::Rename));
}

#[test]
fn a_file_gets_a_name_on_another_mdt_or_does_not() {
    println!("{} ends explored", every_end(What::Link));
}

#[test]
fn a_striped_directory_is_made_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::MkStriped));
}

#[test]
fn a_striped_directory_is_removed_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::RmStriped));
}

#[test]
fn a_directory_moves_over_mdts_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::Move));
}

#[test]
fn a_file_is_migrated_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::MigrateFile));
}

#[test]
fn a_directory_is_migrated_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::MigrateDir));
}

#[test]
fn the_migration_of_a_directory_ends_or_does_not() {
    println!("{} ends explored", every_end(What::EndMigration));
}

#[test]
fn a_directory_is_split_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::Split));
}

#[test]
fn a_striped_directory_gets_a_shard_or_does_not() {
    println!("{} ends explored", every_end(What::SplitMore));
}

#[test]
fn a_directory_is_merged_whole_or_not_at_all() {
    println!("{} ends explored", every_end(What::Merge));
}

/// A directory in shards is made, the MDT with its name ends at some step, and another client makes a file of that name as soon as
/// it is back. Whether the operation was over before that.
async fn explore_other(step: u32, power: bool) -> bool {
    let case = Case {
        what: What::MkStriped,
        step,
        more: Duration::ZERO,
        victims: [true, false, false],
        power,
        client_too: false,
        first: 0,
    };
    let mut rig = Rig::start(case.what.mdts()).await;
    let fs = rig.client().await;
    let other = rig.c.client_at(nid("10.0.5.2@tcp"), &[]).await;
    let other = other.expect("a second mount").llite().clone();
    let u = User::root(&fs);
    let dir = set_up(&u, case.what).await;
    rig.quiet(&case).await;
    tokio::time::sleep(Duration::from_secs(20)).await;

    let making = tokio::spawn({
        let u = User::root(&fs);
        async move { mkdir_over(&u, dir, "x", 3, 1).await }
    });
    tokio::time::sleep(STEP * step).await;
    let over = making.is_finished() && rig.is_quiet();
    rig.end_victims(&case).await;
    let putting = tokio::spawn({
        let u = User::root(&other);
        async move { u.put("d/x", b"a file").await.map(drop) }
    });
    rig.restart(&case).await;
    let wait = Duration::from_secs(900);
    let made = tokio::time::timeout(wait, making).await.expect("an answer");
    let put = tokio::time::timeout(wait, putting)
        .await
        .expect("an answer");
    let (made, put) = (made.expect("it ran"), put.expect("it ran"));
    let (made, put) = (made.is_ok(), put.is_ok());
    assert!(made != put, "{case:?}: made {made}, put {put}");
    let u = User::root(&other);
    assert_eq!(u.names("d").await, Ok(vec!["x".to_owned()]), "{case:?}");
    match put {
        true => {
            assert_eq!(
                u.get("d/x").await.as_deref(),
                Ok(&b"a file"[..]),
                "{case:?}"
            );
            u.unlink("d/x").await.expect("d/x");
        }
        false => u.rmdir("d/x").await.expect("d/x"),
    }
    other.umount().await;
    finish(rig, case, fs).await;
    over
}

#[test]
fn a_name_that_another_takes_meanwhile_is_not_taken_away() {
    let mut explored = 0;
    for power in [false, true] {
        for step in 0..=STEPS_MAX {
            assert!(step < STEPS_MAX, "it takes longer than thought");
            explored += 1;
            let what = format!("step {step}, power {power}");
            if on_own_clock(move || explore_other(step, power), &what) {
                break;
            }
        }
    }
    println!("{explored} ends explored");
}

/// Every operation.
const ALL: [What; 13] = [
    What::Mkdir,
    What::Rmdir,
    What::Rename,
    What::Link,
    What::MkStriped,
    What::RmStriped,
    What::Move,
    What::MigrateFile,
    What::MigrateDir,
    What::EndMigration,
    What::Split,
    What::SplitMore,
    What::Merge,
];

impl Case {
    /// Any operation that ends at any time, whichever MDTs end, in any way.
    fn any(seed: u64) -> Case {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut below = |n: u64| {
            rng.below(1 << 32);
            rng.below(n)
        };
        let what = ALL[below(ALL.len() as u64) as usize];
        let count = what.mdts();
        let steps = if shards_of(what).is_some() { 240 } else { 80 };
        let chosen = 1 + below((1 << count) - 1);
        Case {
            what,
            step: below(steps) as u32,
            more: Duration::from_micros(below(STEP.as_micros() as u64)),
            victims: std::array::from_fn(|i| chosen >> i & 1 != 0),
            power: below(2) == 0,
            client_too: below(2) == 0,
            first: below(count as u64) as usize,
        }
    }
}

/// Cases at random, `CORAL_SEEDS` of them from `CORAL_SEED` on.
#[test]
fn any_operation_ends_at_any_time() {
    let (first, count) = (number("CORAL_SEED", 1), number("CORAL_SEEDS", 60));
    let mut late = 0;
    for seed in first..first + count {
        let case = Case::any(seed);
        let again = format!(
            "CORAL_SEED={seed} CORAL_SEEDS=1 cargo test -p coral-client --test mdts_crash any_operation -- --nocapture # {case:?}"
        );
        late += u64::from(on_own_clock(move || explore(case), &again));
        if (seed - first + 1).is_multiple_of(1000) {
            println!("{} ends explored", seed - first + 1);
        }
    }
    println!("{count} ends explored, {late} of them after all was done");
}
