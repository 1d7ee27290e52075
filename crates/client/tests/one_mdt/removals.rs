//! Removals that are told as done before their MDT hears of them: nobody sees a name that was taken away, whoever asks, and what cannot be
//! done is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::ahead::{forget, overtaking};
use crate::common::*;
use crate::created::{clients, close, created_late, make, of, opened_dir};
use coral_client::SetAttr;
use coral_lnet::Passing;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmMode, LdlmReply};
use coral_wire::ptlrpc::{Message, portal};

/// Removals of a program from which on it is known for one that removes what it lists, and two more, after which the directory is asked for.
const FIRST: usize = 12;

async fn fill(u: &User, dir: &str, files: usize) {
    u.mkdir(dir).await.unwrap();
    for i in 0..files {
        u.put(&format!("{dir}/f{i}"), b"some data").await.unwrap();
    }
}

/// Removes these, each looked up first: others get their turn.
async fn remove(u: &User, dir: &str, files: impl IntoIterator<Item = usize>) {
    for i in files {
        let name = format!("{dir}/f{i}");
        u.stat_as_the_kernel(&name).await.unwrap();
        u.unlink(&name).await.unwrap();
    }
}

/// `u` has the directory `dir` of `files` files for itself, from which it has removed the first.
async fn borrowed(u: &User, dir: &str, files: usize) {
    assert_eq!(u.names(dir).await.unwrap().len(), files);
    remove(u, dir, 0..FIRST).await;
    // it is asked for beside them
    tokio::time::sleep(Duration::from_millis(100)).await;
}

impl User {
    /// A lookup, of which a program that removes is told no size.
    async fn stat_as_the_kernel(&self, path: &str) -> Result<Fid> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.fid(dir).await?;
        let found = self.fs.lookup(&self.cred, dir, name.as_bytes()).await?;
        Ok(found.attr.fid)
    }
}

#[tokio::test(start_paused = true)]
async fn many_names_go_in_one_request() {
    const FILES: usize = 200;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    fill(&u, "d", FILES).await;
    borrowed(&u, "d", FILES).await;
    let (_, n) = rpcs(&u.fs, async {
        remove(&u, "d", FIRST..FILES).await;
        u.fs.statfs().await.unwrap();
    })
    .await;
    println!("{} removals: {n:?}", FILES - FIRST);
    assert!(of(&n, "MDS_REINT") <= 10, "{n:?}");
    assert!(v.names("d").await.unwrap().is_empty());
    u.rmdir("d").await.unwrap();
    for who in [&u, &v] {
        assert_eq!(who.stat("d").await.err(), Some(Errno::ENOENT));
    }
    c.stop().await;
}

/// Each way to ask about what was taken away, by another client, while the MDT has not heard of it.
#[tokio::test(start_paused = true)]
async fn another_client_sees_none_of_them() {
    const FILES: usize = 40;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    for way in 0..12 {
        let d = format!("d{way}");
        fill(&u, &d, FILES).await;
        let (file, taken) = (u.fid(&format!("{d}/f23")).await.unwrap(), 20..24);
        let dir = u.fid(&d).await.unwrap();
        borrowed(&u, &d, FILES).await;
        let late = removed_late(&u);
        remove(&u, &d, taken).await;
        assert_eq!(removed_late(&u) - late, 4, "way {way}");
        let (last, root) = (format!("{d}/f23"), v.fs.root());
        let mode = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let fs = &v.fs;
        let seen: Result<()> = match way {
            0 => v.stat(&last).await.map(drop),
            1 => v.open(&last, libc::O_RDONLY).await.map(drop),
            2 => v.unlink(&last).await,
            3 => v.rename(&last, "elsewhere", 0).await,
            4 => v.link(&last, "elsewhere").await,
            // by what it was, without its name
            5 => fs
                .getattr(&v.cred, file, None)
                .await
                .map(drop)
                .map_err(Errno::from),
            6 => fs
                .setattr(&v.cred, file, mode, None)
                .await
                .map(drop)
                .map_err(Errno::from),
            7 => fs
                .link(&v.cred, file, root, b"kept")
                .await
                .map(drop)
                .map_err(Errno::from),
            8 => fs
                .open(&v.cred, file, 0)
                .await
                .map(drop)
                .map_err(Errno::from),
            9 => match v.names(&d).await.unwrap().len() {
                names if names == FILES - FIRST - 4 => Err(Errno::ENOENT),
                _ => Ok(()),
            },
            10 => match v.fs.fid2path(&v.cred, file).await {
                Err(e) => Err(Errno::from(e)),
                Ok(_) => Ok(()),
            },
            // times of the directory; and the name may be another's at once
            _ => {
                let mine = u.fs.getattr(&u.cred, dir, None).await.unwrap().attr;
                let theirs = fs.getattr(&v.cred, dir, None).await.unwrap().attr;
                assert_eq!((mine.mtime, mine.ctime), (theirs.mtime, theirs.ctime));
                v.put(&last, b"anew").await.unwrap();
                assert_eq!(u.get(&last).await.unwrap(), b"anew");
                Err(Errno::ENOENT)
            }
        };
        assert_eq!(seen, Err(Errno::ENOENT), "way {way}");
        assert_eq!(u.names(&d).await.unwrap(), v.names(&d).await.unwrap());
    }
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.stop().await;
}

/// What the same client does next comes after them.
#[tokio::test(start_paused = true)]
async fn the_order_of_a_program_stays() {
    const FILES: usize = 100;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    fill(&u, "d", FILES).await;
    borrowed(&u, "d", FILES).await;
    let before = u.stat("d").await.unwrap();
    remove(&u, "d", 20..24).await;
    assert_eq!(removed_late(&u), 4);
    let after = u.stat("d").await.unwrap();
    assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    assert_eq!(u.stat("d/f20").await.err(), Some(Errno::ENOENT));
    remove(&u, "d", 24..28).await;
    assert_eq!(u.names("d").await.unwrap().len(), FILES - FIRST - 8);
    remove(&u, "d", 28..32).await;
    u.put("d/f28", b"new").await.unwrap();
    u.rename("d/f33", "d/f29", 0).await.unwrap();
    remove(&u, "d", 34..36).await;
    assert_eq!(u.rmdir("d").await, Err(Errno::ENOTEMPTY));
    assert_eq!(u.unlink("d/f34").await, Err(Errno::ENOENT));
    assert_eq!(v.get("d/f28").await.unwrap(), b"new");
    assert!(v.stat("d/f29").await.is_ok() && v.stat("d/f35").await.is_err());
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_servers_brings_none_back() {
    const FILES: usize = 100;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    fill(&u, "d", FILES).await;
    borrowed(&u, "d", FILES).await;
    remove(&u, "d", FIRST..60).await;
    let c = c.kill_and_restart().await;
    remove(&u, "d", 60..80).await;
    let left: Vec<String> = (80..FILES).map(|i| format!("f{i}")).collect();
    assert_eq!(v.names("d").await.unwrap(), left);
    assert_eq!(u.names("d").await.unwrap(), left);
    u.fs.umount().await;
    v.fs.umount().await;
    c.stop().await;
}

/// A client that is lost has removed nothing late: it is told, and others keep what they have made of it since.
#[tokio::test(start_paused = true)]
async fn an_eviction_loses_them_and_tells() {
    const FILES: usize = 60;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    fill(&u, "d", FILES).await;
    borrowed(&u, "d", FILES).await;
    let dir = opened_dir(&u, "d").await;
    let mdt = &c.mdt().target;
    let nid = u.fs.node().nid();
    let theirs = mdt.exports().into_iter().find(|e| e.nid() == nid);
    mdt.evict(theirs.unwrap().cookie, "a test");
    for i in 20..24 {
        u.unlink(&format!("d/f{i}")).await.unwrap();
    }
    for i in 20..24 {
        v.put(&format!("d/f{i}"), b"another's now").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let synced = u.fs.fsyncdir(&dir).await.map_err(Errno::from);
    assert_eq!(synced, Err(Errno::EIO), "it is told");
    for i in 20..24 {
        for who in [&u, &v] {
            assert_eq!(who.get(&format!("d/f{i}")).await.unwrap(), b"another's now");
        }
    }
    // they go by asking
    remove(&u, "d", 20..24).await;
    assert_eq!(v.names("d").await.unwrap().len(), FILES - FIRST - 4);
    c.stop().await;
}

/// What is not sure to be granted is asked for.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_by_the_call_that_is_refused() {
    const FILES: usize = 100;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [root, mut u] = clients(&c).await;
    fill(&root, "d", FILES).await;
    let dir = root.fid("d").await.unwrap();
    let mode = async |mode: u32| {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        root.fs.setattr(&root.cred, dir, set, None).await.unwrap();
    };
    mode(0o777).await;
    u.cred = coral_client::Cred {
        pid: 7,
        ..User::new(&u.fs, 7, 7).cred
    };
    borrowed(&u, "d", FILES).await;
    remove(&u, "d", 20..30).await;
    mode(0o755).await;
    assert_eq!(u.unlink("d/f30").await, Err(Errno::EACCES));
    mode(0o1777).await;
    assert_eq!(u.unlink("d/f30").await, Err(Errno::EPERM));
    mode(0o777).await;
    remove(&u, "d", 30..40).await;
    assert_eq!(root.names("d").await.unwrap().len(), FILES - FIRST - 20);
    c.stop().await;
}

/// Users of a squashed client are others here, and it does not know what these may.
#[tokio::test(start_paused = true)]
async fn a_squashed_client_is_lent_nothing() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u] = clients(&c).await;
    fill(&u, "d", 60).await;
    let all = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    let dir = u.fid("d").await.unwrap();
    u.fs.setattr(&u.cred, dir, all, None).await.unwrap();
    let name = format!("mdt.{}.root_squash", c.mdt().target.name());
    c.mdt().set_param(&name, "99:99").await.unwrap().unwrap();
    borrowed(&u, "d", 60).await;
    remove(&u, "d", FIRST..60).await;
    assert_eq!(removed_late(&u), 0);
    c.stop().await;
}

/// Flags that keep files from being removed count, wherever they are set.
#[tokio::test(start_paused = true)]
async fn what_may_not_be_changed_is_asked_for() {
    const IMMUTABLE: u32 = 0x10;
    const APPEND: u32 = 0x20;
    const FILES: usize = 60;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    let flags = async |who: &User, path: &str, flags: u32| {
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        let fid = who.fid(path).await.unwrap();
        who.fs.setattr(&who.cred, fid, set, None).await.unwrap();
    };
    fill(&u, "d", FILES).await;
    borrowed(&u, "d", FILES).await;
    for who in [&u, &v] {
        for (path, set, refused) in [
            ("d", IMMUTABLE, Errno::EACCES),
            ("d", APPEND, Errno::EPERM),
            ("d/f50", IMMUTABLE, Errno::EPERM),
        ] {
            remove(&u, "d", [20]).await;
            flags(who, path, set).await;
            for _ in 0..FIRST {
                assert_eq!(u.unlink("d/f50").await, Err(refused), "{path} {set:#x}");
            }
            flags(who, path, 0).await;
            u.put("d/f20", b"again").await.unwrap();
        }
    }
    c.stop().await;
}

/// A file with two names, and one that another client has open, go as they always do.
#[tokio::test(start_paused = true)]
async fn what_others_use_stays_with_them() {
    const FILES: usize = 60;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    fill(&u, "d", FILES).await;
    u.link("d/f30", "other").await.unwrap();
    let open = v.open("d/f31", libc::O_RDWR).await.unwrap();
    forget(&v).await;
    borrowed(&u, "d", FILES).await;
    let late = removed_late(&u);
    remove(&u, "d", 30..40).await;
    assert!(removed_late(&u) - late >= 8);
    assert_eq!(v.stat("other").await.unwrap().nlink, 1);
    v.write(&open, 0, b"written after").await.unwrap();
    assert_eq!(v.read(&open, 0, 20).await.unwrap(), b"written after");
    v.close(&open).await.unwrap();
    assert_eq!(u.get("other").await.unwrap(), b"some data");
    c.stop().await;
}

/// Opens that are kept beyond their close, of files that were made empty and of files that were read, are closed with the names; also where
/// the servers die in between.
#[tokio::test(start_paused = true)]
async fn what_is_kept_open_is_closed_with_the_names() {
    const FILES: usize = 80;
    for dies in [false, true] {
        let mut c = Cluster::start(2, 1, 1 << 20).await;
        let [u, v] = clients(&c).await;
        u.mkdir("d").await.unwrap();
        for i in 0..FILES {
            let path = format!("d/f{i}");
            if i % 2 == 0 {
                let fh = u.create(&path, libc::O_RDWR).await.unwrap();
                u.close(&fh).await.unwrap();
            } else {
                u.put(&path, b"some data").await.unwrap();
                u.get(&path).await.unwrap();
                u.get(&path).await.unwrap();
            }
        }
        assert!(opens(&c) >= FILES / 2, "{} are kept open", opens(&c));
        borrowed(&u, "d", FILES).await;
        let (again, n) = rpcs(&u.fs, async {
            remove(&u, "d", FIRST..50).await;
            if dies {
                c = c.kill_and_restart().await;
            }
            remove(&u, "d", 50..FILES).await;
            u.fs.statfs().await.unwrap();
            c
        })
        .await;
        c = again;
        assert!(dies || of(&n, "MDS_CLOSE") == 0, "{n:?}");
        assert!(removed_late(&u) >= 50);
        assert!(v.names("d").await.unwrap().is_empty());
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(opens(&c), 0);
        // nothing of them is left for the next start either
        c = c.kill_and_restart().await;
        assert!(v.names("d").await.unwrap().is_empty());
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(opens(&c), 0);
        assert!(
            c.mdt()
                .ops
                .core
                .read()
                .orphans_after(None, 1)
                .unwrap()
                .is_empty()
        );
        u.fs.umount().await;
        v.fs.umount().await;
        c.stop().await;
    }
}

fn opens(c: &Cluster) -> usize {
    c.mdt().ops.core.read().opens.len()
}

/// The reply that lends the directory is lost: the right is there all the same, and the client's own locks went for it.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_lends_once() {
    const FILES: usize = 60;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u, v] = clients(&c).await;
    fill(&u, "d", FILES).await;
    assert_eq!(u.names("d").await.unwrap().len(), FILES);
    let lost = Arc::new(AtomicU32::new(0));
    let count = lost.clone();
    let loses = move |p: Passing| {
        let reply = Message::decode(p.payload.clone().copy_to_bytes());
        let lock = reply.ok().and_then(|m| m.get::<LdlmReply>(1).ok());
        let lends = p.portal == Some(portal::OSC_REPLY) || p.portal == Some(portal::MDC_REPLY);
        let is_ex = lock.is_some_and(|l| l.handle != 0 && l.desc.granted_mode == LdlmMode::EX);
        match lends && is_ex && count.fetch_add(1, Ordering::Relaxed) == 0 {
            true => vec![],
            false => vec![p],
        }
    };
    c.net.tamper(nid(SERVER), Arc::new(loses));
    remove(&u, "d", 0..FIRST).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(lost.load(Ordering::Relaxed) >= 2, "it was sent again");
    u.put("d/new", b"").await.unwrap();
    assert_eq!(v.names("d").await.unwrap().len(), FILES - FIRST + 1);
    v.unlink("d/new").await.unwrap();
    assert_eq!(u.names("d").await.unwrap().len(), FILES - FIRST);
    remove(&u, "d", FIRST..FILES).await;
    assert!(v.names("d").await.unwrap().is_empty());
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.stop().await;
}

/// Who asks while a program goes on removing waits for what was under way, and not for its end.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_program_to_end() {
    const FILES: usize = 600;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let [u] = clients(&c).await;
    fill(&u, "d", FILES).await;
    borrowed(&u, "d", FILES).await;
    let (removed, asked) = (Arc::new(AtomicU32::new(0)), AtomicBool::new(false));
    let removes = async {
        for i in FIRST..FILES {
            remove(&u, "d", [i]).await;
            removed.fetch_add(1, Ordering::Relaxed);
        }
    };
    let asks = async {
        while removed.load(Ordering::Relaxed) < 40 {
            tokio::task::yield_now().await;
        }
        u.fs.statfs().await.unwrap();
        u.rename("elsewhere", "nowhere", 0).await.unwrap_err();
        assert!(removed.load(Ordering::Relaxed) < FILES as u32 - 100);
        asked.store(true, Ordering::Relaxed);
    };
    tokio::join!(removes, asks);
    assert!(asked.load(Ordering::Relaxed));
    // and the directory is given back when nothing is removed any more
    let is_ex = |l: &coral_ldlm::LockInfo| l.granted_mode == LdlmMode::EX && l.export.is_some();
    let ex = || {
        c.mdt()
            .target
            .ldlm()
            .locks()
            .iter()
            .filter(|l| is_ex(l))
            .count()
    };
    assert_eq!(ex(), 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(ex(), 0);
    c.stop().await;
}

/// Three clients that remove, make, move and look at the same names, one after the other: each sees what the others have done.
#[tokio::test(start_paused = true)]
async fn three_clients_agree_with_a_model() {
    let seeds = number_of_seeds();
    for seed in seeds {
        Model::run(seed).await;
    }
}

fn number_of_seeds() -> std::ops::Range<u64> {
    let count = std::env::var("CORAL_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok());
    0..count.unwrap_or(3)
}

const NAMES: u64 = 40;

struct Model {
    users: [User; 3],
    rng: Rng,
    /// By directory and name, the content.
    files: BTreeMap<(u64, u64), Vec<u8>>,
    late: u64,
    made_late: u64,
}

fn path((dir, name): (u64, u64)) -> String {
    format!("d{dir}/f{name}")
}

impl Model {
    async fn run(seed: u64) {
        let mut c = Cluster::start(2, 1, 1 << 20).await;
        let mut m = Model {
            users: clients(&c).await,
            rng: Rng(0x9e37_79b9 + seed),
            files: BTreeMap::new(),
            late: 0,
            made_late: 0,
        };
        for d in 0..2 {
            m.users[0].mkdir(&format!("d{d}")).await.unwrap();
        }
        // messages take their time and overtake each other, and servers die
        if seed % 2 == 1 {
            let [a, b, d] = &m.users;
            overtaking(&c, [a, b], seed);
            overtaking(&c, [d, b], seed);
        }
        for step in 0..150 {
            let who = m.rng.below(3) as usize;
            if seed % 3 == 2 && m.rng.below(40) == 0 {
                c = c.kill_and_restart().await;
            }
            match m.rng.below(8) {
                0..=2 => m.make_many(who).await,
                3..=5 => m.remove_many(who).await,
                6 => m.look(who).await,
                _ => m.change_one(who).await,
            }
            if step % 10 == 9 {
                m.verify().await;
            }
        }
        m.verify().await;
        println!(
            "seed {seed}: {} names were removed late, {} made",
            m.late, m.made_late
        );
        assert!(
            m.late > 0 && m.made_late > 0,
            "seed {seed} has tried nothing"
        );
        assert_eq!(c.mdt().target.stats().evictions.value(), 0);
        c.stop().await;
    }

    fn some(&mut self) -> (u64, u64) {
        (self.rng.below(2), self.rng.below(NAMES))
    }

    async fn make_many(&mut self, who: usize) {
        let dir = self.rng.below(2);
        let empty = self.rng.below(2) == 0;
        if empty && self.rng.below(2) == 0 {
            forget(&self.users[(who + 1) % 3]).await;
            forget(&self.users[(who + 2) % 3]).await;
            tokio::time::sleep(Duration::from_secs(61)).await;
        }
        for name in 0..NAMES {
            let is_new = !self.files.contains_key(&(dir, name));
            if empty && is_new {
                let u = &self.users[who];
                let late = created_late(u);
                let (_, file) = make(u, &path((dir, name)), 0o644).await.unwrap();
                close(u, &file).await.unwrap();
                self.made_late += created_late(u) - late;
                self.files.insert((dir, name), Vec::new());
                match self.rng.below(20) {
                    0 => self.look((who + 1) % 3).await,
                    1 => self.look(who).await,
                    2 => self.change_one((who + 1) % 3).await,
                    3 => tokio::time::sleep(Duration::from_millis(self.rng.below(30))).await,
                    _ => {}
                }
            } else if !empty && self.rng.below(4) > 0 {
                let data = self.rng.0.to_le_bytes().to_vec();
                let done = self.users[who].put(&path((dir, name)), &data).await;
                done.unwrap();
                self.files.insert((dir, name), data);
            }
        }
    }

    async fn remove_many(&mut self, who: usize) {
        let dir = self.rng.below(2);
        if self.rng.below(3) > 0 {
            // who has locks on its files has the directory stay where it is
            forget(&self.users[(who + 1) % 3]).await;
            forget(&self.users[(who + 2) % 3]).await;
            // one that was not lent is asked for again some time
            tokio::time::sleep(Duration::from_secs(61)).await;
        }
        if self.rng.below(2) == 0 {
            let listed = self.users[who].names(&format!("d{dir}")).await.unwrap();
            assert_eq!(listed.len(), self.count(dir));
        }
        for name in 0..NAMES {
            let u = &self.users[who];
            let late = removed_late(u);
            let there = self.files.remove(&(dir, name)).is_some();
            let found = u.stat_as_the_kernel(&path((dir, name))).await;
            assert_eq!(found.is_ok(), there, "{dir} {name}");
            let done = u.unlink(&path((dir, name))).await;
            assert_eq!(done.is_ok(), there, "{dir} {name}: {done:?}");
            self.late += removed_late(u) - late;
            match self.rng.below(12) {
                0 => self.look((who + 1) % 3).await,
                1 => self.look(who).await,
                2 => self.change_one((who + 1) % 3).await,
                3 => tokio::time::sleep(Duration::from_millis(self.rng.below(30))).await,
                _ => {}
            }
        }
    }

    fn count(&self, dir: u64) -> usize {
        self.files.keys().filter(|(d, _)| *d == dir).count()
    }

    async fn look(&mut self, who: usize) {
        let at = self.some();
        let u = &self.users[who];
        match self.rng.below(4) {
            0 => {
                let names = u.names(&format!("d{}", at.0)).await.unwrap();
                assert_eq!(names.len(), self.count(at.0), "{names:?}");
            }
            1 => {
                let data = u.get(&path(at)).await.ok();
                assert_eq!(data.as_ref(), self.files.get(&at), "{at:?}");
            }
            2 => assert_eq!(
                u.stat(&path(at)).await.is_ok(),
                self.files.contains_key(&at)
            ),
            _ => {
                let all = u.ls_l(&format!("d{}", at.0)).await.unwrap();
                assert_eq!(all.len(), self.count(at.0));
                assert!(all.values().all(|a| a.is_some_and(|a| a.nlink == 1)));
            }
        }
    }

    async fn change_one(&mut self, who: usize) {
        let (from, to) = (self.some(), self.some());
        let u = &self.users[who];
        match self.rng.below(3) {
            0 if from != to => {
                let done = u.rename(&path(from), &path(to), 0).await;
                assert_eq!(
                    done.is_ok(),
                    self.files.contains_key(&from),
                    "{from:?} {to:?}"
                );
                if let Some(data) = self.files.remove(&from) {
                    self.files.insert(to, data);
                }
            }
            1 => {
                let there = self.files.remove(&from).is_some();
                assert_eq!(u.unlink(&path(from)).await.is_ok(), there, "{from:?}");
            }
            _ => {
                let flags = libc::O_RDWR | libc::O_EXCL;
                let made = u.create(&path(from), flags).await;
                assert_eq!(made.is_err(), self.files.contains_key(&from), "{from:?}");
                if let Ok(fh) = made {
                    u.close(&fh).await.unwrap();
                    self.files.insert(from, Vec::new());
                }
            }
        }
    }

    async fn verify(&mut self) {
        for dir in 0..2 {
            for u in &self.users {
                let names = u.names(&format!("d{dir}")).await.unwrap();
                let mut wanted: Vec<String> = (self.files.keys())
                    .filter(|(d, _)| *d == dir)
                    .map(|(_, n)| format!("f{n}"))
                    .collect();
                wanted.sort();
                assert_eq!(names, wanted);
            }
        }
    }
}

fn removed_late(u: &User) -> u64 {
    counted(u, "coral_llite_names_removed_late_total")
}
