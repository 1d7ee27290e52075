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

fn mended(disks: &[OsdSim], what: &str) -> Vec<Mended> {
    let done = repair(&refs(disks), NOW).unwrap_or_else(|e| panic!("{what}: {e}"));
    let report = checked(disks);
    let left = &report.problems;
    assert!(left.is_empty(), "{what}: {left:?}\nafter {done:#?}");
    assert_eq!((report.elsewhere, report.unfinished), (0, 0), "{what}");
    done
}

/// Whether a path is one of these, or below one.
fn is_at(path: &str, tops: &[&str]) -> bool {
    let below = |top: &&str| {
        path.strip_prefix(*top)
            .is_some_and(|p| p.is_empty() || p.starts_with('/'))
    };
    tops.iter().any(below)
}

/// Everything is where it was but what the damage has taken.
fn compare(w: &World, now: &Tree, d: &Damage) {
    let mut found = 0;
    for (path, was) in &w.tree {
        if is_at(path, d.gone) {
            assert!(!now.contains_key(path), "{}: {path} is there", d.name);
            continue;
        }
        let top = d.lost.iter().find(|top| is_at(path, &[top]));
        let at = match top {
            None => path.clone(),
            Some(top) => {
                found += 1;
                format!("lost+found/{}{}", w.fid(top), &path[top.len()..])
            }
        };
        let is = now
            .get(&at)
            .unwrap_or_else(|| panic!("{}: {at} is missing", d.name));
        assert_eq!((is.fid, is.kind), (was.fid, was.kind), "{}: {at}", d.name);
        let data = if is_at(path, d.empty) {
            &[][..]
        } else {
            &was.data
        };
        assert!(is.data == data, "{}: {at} has other data", d.name);
    }
    let own = usize::from(!d.lost.is_empty());
    let gone = w.tree.keys().filter(|p| is_at(p, d.gone)).count();
    assert_eq!(
        now.len(),
        w.tree.len() - gone + own,
        "{}: {found} found",
        d.name
    );
}

#[tokio::test(start_paused = true)]
async fn every_damage_is_mended() {
    panics();
    let mut w = World::new().await;
    let whole = w.fresh();
    assert_eq!(mended(&whole.kvs(), "nothing"), []);
    for d in ALL {
        let h = w.fresh();
        (d.hurt)(&h);
        let (kvs, disks) = (h.kvs(), h.disks.clone());
        assert!(!checked(&kvs).problems.is_empty(), "{}: not seen", d.name);
        let done = mended(&kvs, d.name);
        assert!(!done.is_empty(), "{}: nothing is told", d.name);
        assert_eq!(mended(&kvs, d.name), [], "{}: a second repair", d.name);
        let fs = w
            .serve(disks)
            .await
            .unwrap_or_else(|e| panic!("{}: {e}", d.name));
        let u = User::root(&fs);
        compare(&w, &walk(&u).await, d);
        // what was found can be moved out, and new things are made
        for top in d.lost {
            let at = format!("lost+found/{}", w.fid(top));
            u.rename(&at, "back", 0).await.unwrap();
            u.rename("back", "back again", 0).await.unwrap();
        }
        u.mkdir("new").await.unwrap();
        u.put("new/f", b"new").await.unwrap();
        several::quiet_cluster(&w.c).await;
        fs.umount().await;
        w.c.stop().await;
        let left = checked(&kvs).problems;
        assert!(left.is_empty(), "{}, used afterwards: {left:?}", d.name);
    }
    println!("{} damages mended", ALL.len());
    assert_eq!(panics(), 0);
}

/// Several damages at once: the name space is sound after it, and what none of them touched is there.
#[tokio::test(start_paused = true)]
async fn damages_together_are_mended() {
    let seeds = std::env::var("CORAL_SEEDS").map_or(300, |s| s.parse().expect("a number"));
    let first = std::env::var("CORAL_SEED").map_or(1, |s| s.parse().expect("a number"));
    let w = World::new().await;
    for seed in first..first + seeds {
        let mut rng = Rng(seed * 0x9e37_79b9 + 1);
        let picked: Vec<&Damage> = (0..2 + rng.below(5))
            .map(|_| &ALL[rng.below(ALL.len() as u64) as usize])
            .collect();
        let names: Vec<&str> = picked.iter().map(|d| d.name).collect();
        let what = format!("CORAL_SEED={seed} CORAL_SEEDS=1: {names:?}");
        let h = w.fresh();
        picked.iter().for_each(|d| (d.hurt)(&h));
        let kvs = h.kvs();
        mended(&kvs, &what);
        assert_eq!(mended(&kvs, &what), [], "{what}: a second repair");
        for path in [
            "one/x",
            "one/two/y",
            "s/g7",
            "s/sub/z",
            "dom/small",
            "d/e/f",
        ] {
            let fid = w.fid(path);
            assert!(is_there(&h, &fid), "{what}: {path} is gone");
        }
    }
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

#[tokio::test(start_paused = true)]
async fn a_repair_that_is_killed_is_mended_by_the_next() {
    let mut w = World::new().await;
    let mut kills = 0;
    for d in ALL {
        for commits in 0.. {
            let h = w.fresh();
            (d.hurt)(&h);
            let (kvs, disks) = (h.kvs(), h.disks.clone());
            let ended = killed_after(&kvs, commits);
            mended(&kvs, &format!("{}, killed after {commits} commits", d.name));
            kills += 1;
            // the same is found in the end; a mount for each would take long
            if commits % 4 == 3 {
                let fs = w.serve(disks).await.expect("servers");
                compare(&w, &walk(&User::root(&fs)).await, d);
                fs.umount().await;
                w.c.stop().await;
            }
            if ended {
                break;
            }
        }
    }
    println!("{kills} kills");
}

/// One operation of a client; whatever it answers, it answers.
async fn answered<T>(what: &str, f: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(300), f).await;
    answer.unwrap_or_else(|_| panic!("{what}: no answer"))
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_system_gives_errors_and_its_servers_live() {
    panics();
    let mut w = World::new().await;
    for d in ALL {
        let h = w.fresh();
        (d.hurt)(&h);
        let disks = h.disks.clone();
        let fs = match w.serve(disks).await {
            Ok(fs) => fs,
            Err(why) => {
                assert!(d.refused, "{}: {why}", d.name);
                continue;
            }
        };
        assert!(!d.refused, "{}: it starts", d.name);
        let u = User::root(&fs);
        use_all(&u, &w.tree, d.name).await;
        // another client finds the servers well
        let other = w.c.remote_client().await.expect("a mount");
        let v = User::root(other.llite());
        answered(d.name, v.put("dom/still", b"here")).await.unwrap();
        assert_eq!(
            answered(d.name, v.get("dom/still")).await.unwrap(),
            b"here",
            "{}",
            d.name
        );
        other.umount().await;
        fs.umount().await;
        w.c.stop().await;
        assert_eq!(panics(), 0, "{}", d.name);
    }
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
