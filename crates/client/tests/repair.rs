//! A file system that is damaged in every way that a check names, or in several at once: it is mended, and what was not damaged is
//! there byte for byte; what has lost its place is in `lost+found`. A repair that is killed is mended by the next. Served with its
//! damage, it gives errors, and its servers live.

#[path = "../../lnet/tests/panics/mod.rs"]
mod panics;

mod common;
mod damaged;
mod several;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_osd::{Batch, Io, Kv, OsdError, OsdSim, StatFs, Table, Time};
use coral_server::mdt::check::Report;
use coral_server::mdt::repair::{Mended, repair};
use coral_server::mdt::{check_all, table};
use coral_wire::Fid;

use common::{Rng, User};
use damaged::damages::{ALL, Damage};
use damaged::{Hurt, Tree, World, walk};
use panics::panics;

const NOW: Time = Time {
    secs: 1_700_000_000,
    nsecs: 0,
};

fn refs(disks: &[OsdSim]) -> Vec<&dyn Kv> {
    disks.iter().map(|d| d as &dyn Kv).collect()
}

fn checked(disks: &[OsdSim]) -> Report {
    check_all(&refs(disks)).expect("readable")
}

/// Repairs; nothing is wrong then, and a second repair finds nothing to do.
fn mended(disks: &[OsdSim]) -> Result<Vec<Mended>, String> {
    let done = repair(&refs(disks), NOW).map_err(|e| e.to_string())?;
    let report = checked(disks);
    if !report.problems.is_empty() || (report.elsewhere, report.unfinished) != (0, 0) {
        return Err(format!("{:?}\nis left after {done:#?}", report.problems));
    }
    let again = repair(&refs(disks), NOW).map_err(|e| e.to_string())?;
    match again.is_empty() {
        true => Ok(done),
        false => Err(format!("a second repair makes {again:#?} after {done:#?}")),
    }
}

/// Whether a path is one of these, or below one.
fn is_at(path: &str, tops: &[&str]) -> bool {
    let below = |top: &&str| {
        path.strip_prefix(*top)
            .is_some_and(|p| p.is_empty() || p.starts_with('/'))
    };
    tops.iter().any(below)
}

/// Where everything is afterwards: as before but what the damage has taken.
fn expected(w: &World, d: &Damage) -> Tree {
    let mut all = Tree::new();
    for (path, was) in w.tree.iter().filter(|(path, _)| !is_at(path, d.gone)) {
        let top = d.lost.iter().find(|top| is_at(path, &[top]));
        let at = match top {
            None => path.clone(),
            Some(top) => format!("lost+found/{}{}", w.fid(top), &path[top.len()..]),
        };
        let mut is = was.clone();
        if is_at(path, d.empty) {
            is.data.clear();
        }
        all.insert(at, is);
    }
    all
}

/// What is not as it should be.
fn compare(w: &World, now: &Tree, d: &Damage) -> Result<(), String> {
    let wanted = expected(w, d);
    for (path, is) in &wanted {
        match now.get(path) {
            None => return Err(format!("{path} is missing")),
            Some(now) if now != is => return Err(format!("{path} is another")),
            Some(_) => {}
        }
    }
    let more = now
        .keys()
        .find(|p| !wanted.contains_key(*p) && *p != "lost+found");
    match more {
        Some(more) => Err(format!("{more} is there")),
        None if d.lost.is_empty() && now.contains_key("lost+found") => {
            Err("lost+found is there".into())
        }
        None => Ok(()),
    }
}

/// One damage: seen, mended, and used afterwards.
async fn one(w: &mut World, d: &Damage) -> Result<(), String> {
    let h = w.fresh();
    (d.hurt)(&h);
    let (kvs, disks) = (h.kvs(), h.disks.clone());
    if checked(&kvs).problems.is_empty() {
        return Err("not seen".into());
    }
    if mended(&kvs)?.is_empty() {
        return Err("nothing is told".into());
    }
    let fs = w.serve(disks).await?;
    let u = User::root(&fs);
    let same = compare(w, &walk(&u).await, d);
    // what was found can be moved out, and new things are made
    for top in d.lost {
        let at = format!("lost+found/{}", w.fid(top));
        let moved = u.rename(&at, &format!("back {}", w.fid(top)), 0).await;
        moved.map_err(|e| format!("moving {at} out: {e}"))?;
    }
    u.mkdir("new").await.map_err(|e| e.to_string())?;
    u.put("new/f", b"new").await.map_err(|e| e.to_string())?;
    several::quiet_cluster(&w.c).await;
    fs.umount().await;
    w.c.stop().await;
    same?;
    match checked(&kvs).problems {
        left if left.is_empty() => Ok(()),
        left => Err(format!("used afterwards: {left:?}")),
    }
}

#[tokio::test(start_paused = true)]
async fn every_damage_is_mended() {
    panics();
    let mut w = World::new().await;
    assert_eq!(
        mended(&w.fresh().kvs()),
        Ok(vec![]),
        "where nothing is wrong"
    );
    let mut failed = Vec::new();
    for d in ALL {
        if let Err(why) = one(&mut w, d).await {
            failed.push(format!("{}: {why}", d.name));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    println!("{} damages mended", ALL.len());
    assert_eq!(panics(), 0);
}

/// A client that was mounted before the loss of power and a repair replays nothing into what was repaired.
#[tokio::test(start_paused = true)]
async fn nothing_is_replayed_into_what_was_repaired() {
    for repaired in [false, true] {
        let mut w = World::new().await;
        let fs = w.serve(w.fresh().disks.clone()).await.expect("servers");
        let u = User::root(&fs);
        u.mkdir("before").await.unwrap();
        let fid = u.fid("f0").await.unwrap();
        for mdt in 0..3 {
            w.c.mdt_number(mdt).target.sync().await.unwrap();
        }
        let found = w.copied();
        // on one MDT: what was made on several was on disk when it was answered
        u.symlink("nowhere", "late").await.unwrap();
        if repaired {
            let h = found.hurt(&w);
            h.change(&fid, |i| i.nlink = 5);
            let done = mended(&h.kvs()).expect("a repair");
            assert!(
                done.iter()
                    .any(|m| m.what.contains("clients are forgotten"))
            );
        }
        w.c.disks = found.0;
        w.c.kill_and_restart().await.expect("a restart");
        // the one that was mounted is told that it was evicted, and goes on
        let _ = answered("after the restart", u.names("")).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let names = answered("later", u.names("")).await.expect("names");
        assert!(names.contains(&"before".to_string()));
        assert_eq!(names.contains(&"late".to_string()), !repaired, "{names:?}");
        u.mkdir("after").await.unwrap();
        several::quiet_cluster(&w.c).await;
        fs.umount().await;
        w.c.stop().await;
        let kvs: Vec<OsdSim> = (0..3).map(|i| w.c.disks.mdt_number(i).clone()).collect();
        assert_eq!(checked(&kvs).problems, []);
    }
}

/// Where an older copy of an MDT was put back, what was made since is gone from it and still named by the others. One repair mends
/// that, and no FID of then is given again.
#[tokio::test(start_paused = true)]
async fn an_older_copy_of_an_mdt_is_mended_by_one_repair() {
    for mdt in 0..3 {
        let mut w = World::new().await;
        let fs = w.serve(w.fresh().disks.clone()).await.expect("servers");
        let u = User::root(&fs);
        several::mkdir_over(&u, "t", 3, 0).await.unwrap();
        for i in 0..12 {
            u.put(&format!("t/f{i}"), b"since").await.unwrap();
        }
        for on in 0..3 {
            several::mkdir_on(&u, &format!("on{on}"), on).await.unwrap();
            u.put(&format!("on{on}/f"), b"since").await.unwrap();
            let below = format!("on{on}/below");
            several::mkdir_on(&u, &below, (on + 1) % 3).await.unwrap();
        }
        let since = walk(&u).await;
        several::quiet_cluster(&w.c).await;
        fs.umount().await;
        w.c.stop().await;
        let h = w.with_older(mdt);
        let done = mended(&h.kvs()).unwrap_or_else(|why| panic!("MDT{mdt:04x}: {why}"));
        assert!(!done.is_empty(), "nothing is told of MDT{mdt:04x}");
        h.accept(mdt).await;
        let (kvs, disks) = (h.kvs(), h.disks.clone());
        let fs = w.serve(disks).await.expect("servers");
        let u = User::root(&fs);
        for on in 0..3 {
            let fid = several::mkdir_on(&u, &format!("new{on}"), on)
                .await
                .unwrap();
            let then = since.values().find(|seen| seen.fid.seq == fid.seq);
            assert!(then.is_none(), "{fid} is of a sequence of before: {then:?}");
        }
        several::quiet_cluster(&w.c).await;
        fs.umount().await;
        w.c.stop().await;
        assert_eq!(checked(&kvs).problems, [], "used afterwards");
    }
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |s| s.parse().expect("a number"))
}

/// Several damages at once: the name space is sound after it, and what none of them touched is there.
#[tokio::test(start_paused = true)]
async fn damages_together_are_mended() {
    let (first, seeds) = (number("CORAL_SEED", 1), number("CORAL_SEEDS", 300));
    let w = World::new().await;
    let mut failed = Vec::new();
    for seed in first..first + seeds {
        let mut rng = Rng(seed * 0x9e37_79b9 + 1);
        let picked: Vec<&Damage> = (0..2 + rng.below(5))
            .map(|_| &ALL[rng.below(ALL.len() as u64) as usize])
            .collect();
        let names: Vec<&str> = picked.iter().map(|d| d.name).collect();
        let what = format!("CORAL_SEED={seed} CORAL_SEEDS=1, {names:?}");
        let h = w.fresh();
        picked.iter().for_each(|d| (d.hurt)(&h));
        if let Err(why) = mended(&h.kvs()) {
            failed.push(format!("{what}: {why}"));
        }
        let untouched = [
            "one/x",
            "one/two/y",
            "s/g7",
            "s/sub/z",
            "dom/small",
            "d/e/f",
        ];
        let gone = untouched.iter().find(|path| !is_there(&h, &w.fid(path)));
        failed.extend(gone.map(|path| format!("{what}: {path} is gone")));
    }
    let few = failed.iter().take(3).cloned().collect::<Vec<_>>();
    assert!(
        failed.is_empty(),
        "{} failed, such as\n{}",
        failed.len(),
        few.join("\n")
    );
    println!("{seeds} seeds");
}

fn is_there(h: &Hurt<'_>, fid: &Fid) -> bool {
    let key = table::fid_key(fid);
    h.kvs()
        .iter()
        .any(|kv| kv.get(table::INODE, &key).unwrap().is_some())
}

/// A disk of a program that is killed after so many commits of all its disks.
struct Dying<'a> {
    kv: &'a OsdSim,
    left: &'a AtomicUsize,
}

impl Kv for Dying<'_> {
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.kv.get(t, key)
    }
    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.kv.range(t, from, to, limit)
    }
    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        self.kv.last(t, prefix)
    }
    fn commit(&self, b: Batch) -> Io<()> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Io::ready(Err(OsdError::Poisoned("killed".into())));
        }
        self.left.store(left - 1, Ordering::Relaxed);
        self.kv.commit(b)
    }
    fn sync(&self) -> Io<()> {
        self.kv.sync()
    }
    fn note(&self, number: u64) {
        self.kv.note(number);
    }
    fn noted(&self) -> u64 {
        self.kv.noted()
    }
    fn statfs(&self) -> Result<StatFs, OsdError> {
        self.kv.statfs()
    }
}

/// Repairs with so many commits left; whether it came to an end.
fn killed_after(kvs: &[OsdSim], commits: usize) -> bool {
    let left = AtomicUsize::new(commits);
    let dying: Vec<Dying<'_>> = kvs.iter().map(|kv| Dying { kv, left: &left }).collect();
    let refs: Vec<&dyn Kv> = dying.iter().map(|d| d as &dyn Kv).collect();
    repair(&refs, NOW).is_ok()
}

/// A repair that is killed after so many commits, and another; whether the first came to an end.
async fn killed(w: &mut World, d: &Damage, commits: usize) -> Result<bool, String> {
    let h = w.fresh();
    (d.hurt)(&h);
    let (kvs, disks) = (h.kvs(), h.disks.clone());
    let ended = killed_after(&kvs, commits);
    mended(&kvs)?;
    let fs = w.serve(disks).await?;
    let same = compare(w, &walk(&User::root(&fs)).await, d);
    fs.umount().await;
    w.c.stop().await;
    same.map(|()| ended)
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_is_killed_is_mended_by_the_next() {
    let mut w = World::new().await;
    let (mut kills, mut failed) = (0, Vec::new());
    for d in ALL {
        for commits in 0.. {
            kills += 1;
            match killed(&mut w, d, commits).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(why) => {
                    failed.push(format!("{}, after {commits} commits: {why}", d.name));
                    break;
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    println!("{kills} kills");
}

/// One operation of a client; whatever it answers, it answers.
async fn answered<T>(what: &str, f: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(300), f).await;
    answer.unwrap_or_else(|_| panic!("{what}: no answer"))
}

/// Serves one damage. Whatever a client is answered, the servers live.
async fn served(w: &mut World, d: &Damage) -> Result<(), String> {
    let h = w.fresh();
    (d.hurt)(&h);
    let disks = h.disks.clone();
    let fs = match w.serve(disks).await {
        Ok(fs) if !d.refused => fs,
        Ok(_) => return Err("it is served".into()),
        Err(_) if d.refused => return Ok(()),
        Err(why) => return Err(why),
    };
    let u = User::root(&fs);
    use_all(&u, &w.tree, d.name).await;
    // another client finds the servers well
    let other = w.c.remote_client().await.map_err(|e| e.to_string())?;
    let v = User::root(other.llite());
    let made = answered(d.name, v.put("dom/still", b"here")).await;
    let read = answered(d.name, v.get("dom/still")).await;
    other.umount().await;
    fs.umount().await;
    w.c.stop().await;
    match (made, read, panics()) {
        (Ok(_), Ok(read), 0) if read == b"here" => Ok(()),
        (made, read, panics) => Err(format!("{made:?}, {read:?}, {panics} panics")),
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_system_gives_errors_and_its_servers_live() {
    panics();
    let mut w = World::new().await;
    let mut failed = Vec::new();
    for d in ALL {
        if let Err(why) = served(&mut w, d).await {
            failed.push(format!("{}: {why}", d.name));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Lists, looks up, renames and removes everything, the lowest first.
async fn use_all(u: &User, tree: &Tree, what: &str) {
    let keep = |path: &&String| !is_at(path, &["dom"]);
    for path in tree.keys().filter(keep) {
        let _ = answered(what, u.stat(path)).await;
        let _ = answered(what, u.list(path)).await;
    }
    let _ = answered(what, u.list("")).await;
    for path in tree.keys().rev().filter(keep) {
        let moved = format!("{path}-moved");
        let _ = answered(what, u.rename(path, &moved, 0)).await;
        let _ = answered(what, u.rename(&moved, path, 0)).await;
        let _ = answered(what, u.unlink(path)).await;
        let _ = answered(what, u.rmdir(path)).await;
    }
}
