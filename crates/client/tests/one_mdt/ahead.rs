//! Attributes of many files at once (MDS_BATCH): what a listing with attributes costs, and that what it brings is as true as what
//! is asked for name by name.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::common::*;
use coral_client::{Attr, MountOptions, SetAttr};
use coral_lnet::{LinkModel, Passing};
use coral_wire::mds::BUT_REPLY_MAGIC;
use coral_wire::ptlrpc::{Message, portal};

async fn fifo(u: &User, dir: &str, name: &str) {
    let fid = u.fid(dir).await.unwrap();
    let mode = libc::S_IFIFO | 0o640;
    u.fs.mknod(&u.cred, fid, name.as_bytes(), mode, 0)
        .await
        .unwrap();
}

async fn chmod(u: &User, path: &str, mode: u32) -> Result<()> {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let fid = u.fid(path).await?;
    u.fs.setattr(&u.cred, fid, set, None).await.map(drop)?;
    Ok(())
}

/// Messages of these clients take their time, and overtake each other.
pub(crate) fn overtaking(c: &Cluster, clients: [&User; 2], seed: u64) {
    for client in clients {
        let link = LinkModel {
            delay: Duration::from_micros(300),
            jitter: Duration::from_micros(600),
            ..LinkModel::default()
        };
        let own = client.fs.node().nid();
        c.net.set_link(own, nid(SERVER), link, seed);
    }
}

/// Gives all unused locks back, and what they cover is unknown again.
pub(crate) async fn forget(u: &User) {
    for (name, _) in u.fs.params() {
        if name.ends_with(".lru_size") {
            u.fs.set_param(&name, "clear").await.unwrap();
        }
    }
}

fn total(n: &[(String, u64)]) -> u64 {
    n.iter().map(|(_, c)| c).sum()
}

/// A client that speaks as Lustre's own does is told the same of files that nobody keeps from it.
fn dialects(c: &Cluster) -> [MountOptions; 2] {
    let plain = MountOptions {
        plain: true,
        ..c.mount_options()
    };
    [c.mount_options(), plain]
}

#[tokio::test]
async fn a_listing_of_unknown_files_is_a_tenth_of_an_mdt_request_for_each() {
    const FILES: usize = 1000;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.client().await);
    u.mkdir("d").await.unwrap();
    u.mkdir("without").await.unwrap();
    for i in 0..FILES {
        u.put(&format!("d/f{i}"), &vec![7; i % 50]).await.unwrap();
        // no OST has a part in these
        fifo(&u, "without", &format!("p{i}")).await;
    }
    for opts in dialects(&c) {
        let v = User::root(&c.client_with(opts).await);
        let (all, n) = rpcs(&v.fs, v.ls_l("without")).await;
        assert_eq!(all.unwrap().len(), FILES);
        println!("ls -l of {FILES} without objects: {n:?}");
        assert!(total(&n) <= FILES as u64 / 10, "{n:?}");

        let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
        println!("ls -l of {FILES} with objects: {n:?}");
        assert!(total(&n) <= FILES as u64 * 11 / 10, "{n:?}");
        for (name, attr) in all.unwrap() {
            let i: u64 = name[1..].parse().unwrap();
            assert_eq!(attr.unwrap().size, i % 50, "{name}");
        }

        // what came is covered
        let (all, n) = rpcs(&v.fs, async {
            let mut all = v.ls_l("without").await.unwrap();
            all.extend(v.ls_l("d").await.unwrap());
            for i in 0..FILES {
                v.stat(&format!("d/f{i}")).await.unwrap();
                v.stat(&format!("without/p{i}")).await.unwrap();
            }
            all
        })
        .await;
        println!("again: {n:?}");
        assert_eq!(all.len(), 2 * FILES);
        assert!(total(&n) <= 8, "{n:?}");
        v.fs.umount().await;
    }
    c.stop().await;
}

/// A single unknown file is asked for alone, and with the cache off all are.
#[tokio::test]
async fn no_batch_where_there_is_nothing_to_gain() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let u = User::root(&c.client().await);
    u.mkdir("d").await.unwrap();
    fifo(&u, "d", "p").await;
    let v = User::root(&c.client().await);
    let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
    assert_eq!(all.unwrap().len(), 1);
    assert!(n.iter().all(|(name, _)| name != "MDS_BATCH"), "{n:?}");
    fifo(&u, "d", "q").await;
    let off = MountOptions {
        cache: false,
        ..c.mount_options()
    };
    let v = User::root(&c.client_with(off).await);
    let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
    assert_eq!(all.unwrap().len(), 2);
    assert!(n.iter().all(|(name, _)| name != "MDS_BATCH"), "{n:?}");
    c.stop().await;
}

#[tokio::test]
async fn what_a_batch_brought_goes_when_another_client_changes_it() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let u = User::root(&c.client().await);
    u.mkdir("d").await.unwrap();
    for i in 0..100 {
        u.put(&format!("d/f{i}"), b"old").await.unwrap();
    }
    for opts in dialects(&c) {
        let v = User::root(&c.client_with(opts).await);
        let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
        assert!(n.iter().any(|(name, _)| name == "MDS_BATCH"), "{n:?}");
        let before = all.unwrap();
        chmod(&u, "d/f1", 0o400).await.unwrap();
        u.unlink("d/f2").await.unwrap();
        u.put("d/f2", b"another").await.unwrap();
        u.rename("d/f3", "d/f4", 0).await.unwrap();
        u.put("d/f3", b"new").await.unwrap();
        let fh = u.open("d/f5", libc::O_WRONLY).await.unwrap();
        u.write(&fh, 0, b"longer").await.unwrap();
        u.close(&fh).await.unwrap();
        u.link("d/f6", "d/g6").await.unwrap();
        let of = async |name: &str| v.stat(&format!("d/{name}")).await.unwrap();
        let was = |name: &str| before[name].unwrap();
        assert_eq!(of("f1").await.mode & 0o777, 0o400);
        assert_eq!(of("f2").await.size, 7);
        assert_ne!(of("f2").await.fid, was("f2").fid);
        assert_eq!(of("f4").await.fid, was("f3").fid);
        assert_eq!(of("f5").await.size, 6);
        assert_eq!((of("f6").await.nlink, of("g6").await.nlink), (2, 2));
        let after = v.ls_l("d").await.unwrap();
        for (name, attr) in &after {
            assert_eq!(attr.unwrap(), of(name).await, "{name}");
            let theirs = u.stat(&format!("d/{name}")).await.unwrap();
            // Lustre's times are whole seconds
            let times = |a: Attr| (a.mtime.secs, a.ctime.secs);
            let of = |a: Attr| (a.fid, a.mode, a.size, a.nlink, times(a));
            assert_eq!(of(attr.unwrap()), of(theirs), "{name}");
        }
        u.unlink("d/g6").await.unwrap();
        chmod(&u, "d/f1", 0o600).await.unwrap();
        for name in ["f1", "f2", "f3", "f4", "f5", "f6"] {
            u.unlink(&format!("d/{name}")).await.unwrap();
            u.put(&format!("d/{name}"), b"old").await.unwrap();
        }
        v.fs.umount().await;
    }
    c.stop().await;
}

/// One client lists all the time while another one changes files: what it has changed, the lister sees at once.
#[tokio::test(start_paused = true)]
async fn a_batch_beside_changes_keeps_nothing_that_is_old() {
    for (seed, plain) in [(1, false), (2, false), (3, true)] {
        let c = Cluster::start(1, 1, 1 << 20).await;
        let opts = MountOptions {
            plain,
            ..c.mount_options()
        };
        let u = User::root(&c.remote_client().await);
        let v = User::root(&c.remote_client_with(opts).await);
        overtaking(&c, [&u, &v], seed);
        u.mkdir("d").await.unwrap();
        for i in 0..80 {
            fifo(&u, "d", &format!("p{i}")).await;
        }
        let stop = AtomicBool::new(false);
        let lists = async {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                v.ls_l("d").await.expect("a listing");
                n += 1;
                // it knows nothing again
                forget(&v).await;
            }
            n
        };
        let changes = async {
            let mut rng = Rng(seed);
            for n in 0..300 {
                let (a, b) = (rng.below(80), rng.below(80));
                let (a, b) = (format!("d/p{a}"), format!("d/p{b}"));
                match rng.below(3) {
                    0 => {
                        let mode = n % 0o1000;
                        chmod(&u, &a, mode).await.expect("chmod");
                        let seen = v.stat(&a).await.expect("it is there");
                        assert_eq!(seen.mode & 0o777, mode, "seed {seed}, step {n}");
                    }
                    1 => {
                        u.unlink(&a).await.expect("unlink");
                        assert!(v.stat(&a).await.is_err(), "seed {seed}, step {n}");
                        fifo(&u, "d", &a[2..]).await;
                        let fid = u.fid(&a).await.expect("it is there");
                        assert_eq!(v.fid(&a).await, Ok(fid), "seed {seed}, step {n}");
                    }
                    _ if a != b => {
                        let fid = u.fid(&a).await.expect("it is there");
                        u.rename(&a, &b, 0).await.expect("rename");
                        assert_eq!(v.fid(&b).await, Ok(fid), "seed {seed}, step {n}");
                        assert!(v.stat(&a).await.is_err(), "seed {seed}, step {n}");
                        fifo(&u, "d", &a[2..]).await;
                    }
                    _ => {}
                }
            }
            stop.store(true, Ordering::Relaxed);
        };
        let (listed, ()) = tokio::join!(lists, changes);
        assert!(listed > 20, "{listed} listings");
        assert_eq!(c.mdt().target.stats().evictions.value(), 0);
        c.stop().await;
    }
}

/// The reply to a batch, or the request, is lost: what is sent again is answered again, and the server holds no lock of which the
/// client does not know, for which others would have to wait.
#[tokio::test(start_paused = true)]
async fn a_batch_whose_reply_is_lost_leaves_no_lock_behind() {
    for lose_reply in [true, false] {
        let c = Cluster::start(1, 1, 1 << 20).await;
        let u = User::root(&c.remote_client().await);
        u.mkdir("d").await.unwrap();
        for i in 0..40 {
            fifo(&u, "d", &format!("p{i}")).await;
        }
        let v = User::root(&c.remote_client().await);
        let lost = std::sync::Arc::new(AtomicU32::new(0));
        let (from, count) = match lose_reply {
            true => (nid(SERVER), lost.clone()),
            false => (v.fs.node().nid(), lost.clone()),
        };
        let loses = move |p: Passing| {
            let is_batch = match lose_reply {
                false => p.portal == Some(portal::OUT),
                true => {
                    let message = Message::decode(p.payload.clone().copy_to_bytes());
                    p.portal == Some(portal::OSC_REPLY)
                        && message
                            .is_ok_and(|m| m.buf(1).starts_with(&BUT_REPLY_MAGIC.to_le_bytes()))
                }
            };
            if is_batch && count.fetch_add(1, Ordering::Relaxed) == 0 {
                return vec![];
            }
            vec![p]
        };
        c.net.tamper(from, std::sync::Arc::new(loses));
        let all = v.ls_l("d").await.unwrap();
        assert!(lost.load(Ordering::Relaxed) >= 2, "it was sent again");
        assert!(
            all.values()
                .all(|a| a.is_some_and(|a| a.mode & 0o777 == 0o640))
        );
        let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
        assert_eq!((all.unwrap().len(), total(&n)), (40, 1), "{n:?}");
        // a lock that nobody gives back would take until the eviction
        let begun = tokio::time::Instant::now();
        for i in 0..40 {
            u.unlink(&format!("d/p{i}")).await.unwrap();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(c.mdt().target.stats().evictions.value(), 0);
        assert_eq!(v.names("d").await.unwrap(), Vec::<String>::new());
        c.stop().await;
    }
}

/// Whoever gives a listing up while its batch is under way leaves no lock behind either.
#[tokio::test(start_paused = true)]
async fn a_listing_that_is_given_up_leaves_no_lock_behind() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    u.mkdir("d").await.unwrap();
    for i in 0..40 {
        fifo(&u, "d", &format!("p{i}")).await;
    }
    let link = LinkModel {
        delay: Duration::from_millis(10),
        ..LinkModel::default()
    };
    c.net.set_link(v.fs.node().nid(), nid(SERVER), link, 1);
    for ms in (5..150).step_by(5) {
        let _ = tokio::time::timeout(Duration::from_millis(ms), v.ls_l("d")).await;
        let begun = tokio::time::Instant::now();
        chmod(&u, "d/p7", 0o600 + ms as u32 % 8).await.unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{ms} ms: {:?}",
            begun.elapsed()
        );
        forget(&v).await;
    }
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_after_an_eviction_and_a_restart() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    u.mkdir("d").await.unwrap();
    for i in 0..100 {
        fifo(&u, "d", &format!("p{i}")).await;
    }
    let v = User::root(&c.remote_client().await);
    for e in c.mdt().target.exports() {
        c.mdt().target.evict(e.cookie, "a test");
    }
    // the first request meets the eviction
    let _ = v.ls_l("d").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(v.ls_l("d").await.unwrap().len(), 100);
    let c = c.kill_and_restart().await;
    let (all, _) = tokio::join!(v.ls_l("d"), u.stat("d/p1"));
    assert_eq!(all.unwrap().len(), 100);
    chmod(&u, "d/p1", 0o601).await.unwrap();
    let all = v.ls_l("d").await.unwrap();
    assert!(all.values().all(Option::is_some));
    assert_eq!(all["p1"].unwrap().mode & 0o777, 0o601);
    c.stop().await;
}
