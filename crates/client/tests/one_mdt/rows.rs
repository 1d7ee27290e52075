//! Names that go on by number, and sizes that are asked for together: what they cost, and that what comes is true.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::ahead::{forget, overtaking};
use crate::common::*;
use coral_client::SetAttr;
use coral_lnet::Passing;
use coral_wire::ldlm::LdlmReply;
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::Message;

const FILES: usize = 1000;
/// An `ldlm_reply`, and an `ldlm_request` with two handles, bytes.
const ONE_LOCK: usize = size_of::<LdlmReply>();
const ONE_REQUEST: usize = 104;

/// All of the RPCs that were counted.
pub fn total(n: &[(String, u64)]) -> u64 {
    n.iter().map(|(_, c)| c).sum()
}

/// Files of so many bytes as their number says.
async fn fill(u: &User, dir: &str, files: usize) {
    u.mkdir(dir).await.unwrap();
    for i in 0..files {
        u.put(&format!("{dir}/f{i}"), &vec![7; i % 50])
            .await
            .unwrap();
    }
}

async fn sizes(u: &User, dir: &str, numbers: impl IntoIterator<Item = usize>) {
    for i in numbers {
        let name = format!("{dir}/f{i}");
        assert_eq!(u.stat(&name).await.unwrap().size, i as u64 % 50, "{name}");
        // others get their turn
        tokio::task::yield_now().await;
    }
}

/// Looks at so many files of the directory "d" one after the other, and forgets them, while `goes_on`: how often it did.
async fn looks(v: &User, files: u64, goes_on: impl Fn() -> bool) -> u32 {
    let mut rounds = 0;
    while goes_on() {
        for i in 0..files {
            let _ = v.stat(&format!("d/f{i}")).await;
        }
        rounds += 1;
        forget(v).await;
    }
    rounds
}

/// A file system with `files` files that nobody has locks on.
async fn at_rest(osts: u32, files: usize) -> Cluster {
    let c = Cluster::start(osts, 1, 1 << 20).await;
    let u = User::root(&c.client().await);
    fill(&u, "d", files).await;
    u.fs.umount().await;
    c
}

#[tokio::test]
async fn who_looks_at_one_file_after_the_other_asks_for_many_at_once() {
    let c = at_rest(2, FILES).await;
    let v = User::root(&c.client().await);
    let (_, n) = rpcs(&v.fs, sizes(&v, "d", 0..FILES)).await;
    println!("stat of {FILES} one after the other: {n:?}");
    assert!(total(&n) <= FILES as u64 / 10, "{n:?}");
    // all of it is covered; what may come behind the last is asked for
    let (_, n) = rpcs(&v.fs, sizes(&v, "d", 0..FILES)).await;
    assert!(total(&n) <= 4, "{n:?}");
    // several programs in one row, each in its part
    let v = User::root(&c.client().await);
    let four = (0..4).map(|p| sizes(&v, "d", (0..FILES).skip(p).step_by(4)));
    let (_, n) = rpcs(&v.fs, futures_util::future::join_all(four)).await;
    println!("the same by four: {n:?}");
    assert!(total(&n) <= FILES as u64 / 5, "{n:?}");
    c.stop().await;
}

#[tokio::test]
async fn a_listing_with_sizes_is_a_tenth_of_a_request_for_each_file() {
    let c = at_rest(2, FILES).await;
    let v = User::root(&c.client().await);
    let (all, n) = rpcs(&v.fs, v.ls_l("d")).await;
    println!("ls -l of {FILES}: {n:?}");
    assert!(total(&n) <= FILES as u64 / 10, "{n:?}");
    for (name, attr) in all.unwrap() {
        let i: u64 = name[1..].parse().unwrap();
        assert_eq!(attr.unwrap().size, i % 50, "{name}");
    }
    c.stop().await;
}

/// What others write is asked for file by file; what they change later is seen.
#[tokio::test]
async fn sizes_are_those_that_other_clients_have_written() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.client().await);
    fill(&u, "d", 200).await;
    let dirty = u.open("d/f77", libc::O_WRONLY).await.unwrap();
    u.write(&dirty, 0, &[1; 27 + 5000]).await.unwrap();
    let v = User::root(&c.client().await);
    sizes(&v, "d", 0..77).await;
    assert_eq!(v.stat("d/f77").await.unwrap().size, 5027);
    sizes(&v, "d", 78..200).await;
    u.write(&dirty, 0, &[1; 9000]).await.unwrap();
    u.close(&dirty).await.unwrap();
    u.put("d/f5", &[1; 400]).await.unwrap();
    u.unlink("d/f6").await.unwrap();
    assert_eq!(v.stat("d/f77").await.unwrap().size, 9000);
    assert_eq!(v.stat("d/f5").await.unwrap().size, 400);
    assert!(v.stat("d/f6").await.is_err());
    c.stop().await;
}

/// A row that ends costs one request more, and one with gaps none for each gap.
#[tokio::test]
async fn names_that_are_not_there_are_missed() {
    let c = at_rest(1, 30).await;
    let u = User::root(&c.client().await);
    for gap in [10, 11, 12, 20] {
        u.unlink(&format!("d/f{gap}")).await.unwrap();
    }
    u.fs.umount().await;
    let v = User::root(&c.client().await);
    let (_, n) = rpcs(&v.fs, async {
        for i in 0..40 {
            let gone = [10, 11, 12, 20].contains(&i) || i >= 30;
            assert_eq!(v.stat(&format!("d/f{i}")).await.is_err(), gone, "f{i}");
            tokio::task::yield_now().await;
        }
    })
    .await;
    println!("30 names with gaps: {n:?}");
    assert!(total(&n) <= 40, "{n:?}");
    c.stop().await;
}

/// The reply to glimpses of many objects, or the request, is lost: the OST holds no lock for long of which the client does not know,
/// for which writers would have to wait.
#[tokio::test(start_paused = true)]
async fn glimpses_whose_reply_is_lost_leave_no_lock_behind() {
    for lose_reply in [true, false] {
        let c = at_rest(1, 60).await;
        let u = User::root(&c.remote_client().await);
        let v = User::root(&c.remote_client().await);
        let lost = Arc::new(AtomicU32::new(0));
        let (from, count) = match lose_reply {
            true => (nid(SERVER), lost.clone()),
            false => (v.fs.node().nid(), lost.clone()),
        };
        let loses = move |p: Passing| {
            let of_many = |m: Message| match lose_reply {
                true => m.buf(2).len() > size_of::<OstLvb>() && m.buf(1).len() > ONE_LOCK,
                false => m.buf(2).len() > ONE_LOCK && m.buf(1).len() == ONE_REQUEST,
            };
            let message = Message::decode(p.payload.clone().copy_to_bytes());
            if message.is_ok_and(of_many) && count.fetch_add(1, Ordering::Relaxed) == 0 {
                return vec![];
            }
            vec![p]
        };
        c.net.tamper(from, Arc::new(loses));
        let all = v.ls_l("d").await.unwrap();
        assert!(lost.load(Ordering::Relaxed) >= 1, "one was lost");
        assert!(all.values().all(Option::is_some));
        sizes(&v, "d", 0..60).await;
        // what was given up is sent again all the same, and gives back what it brings: else it would take until the eviction
        let begun = tokio::time::Instant::now();
        for i in 0..60 {
            u.put(&format!("d/f{i}"), &[1; 100]).await.unwrap();
            assert_eq!(v.stat(&format!("d/f{i}")).await.unwrap().size, 100);
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(40), "{took:?}");
        assert_eq!(c.ost(0).stats().evictions.value(), 0);
        c.stop().await;
    }
}

/// No request for many sizes is ever answered: who looks waits for that once, and then asks by itself.
#[tokio::test(start_paused = true)]
async fn sizes_that_do_not_come_together_are_asked_for_alone() {
    let c = at_rest(2, 200).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    let loses = |p: Passing| {
        let message = Message::decode(p.payload.clone().copy_to_bytes());
        let of_many = |m: Message| m.buf(2).len() >= ONE_REQUEST && m.buf(1).len() == ONE_REQUEST;
        if message.is_ok_and(of_many) {
            return vec![];
        }
        vec![p]
    };
    c.net.tamper(v.fs.node().nid(), Arc::new(loses));
    let begun = tokio::time::Instant::now();
    let d = v.fid("d").await.unwrap();
    for i in 0..200 {
        let name = format!("f{i}");
        let seen = v.fs.lookup(&v.cred, d, name.as_bytes()).await.unwrap();
        assert_eq!(seen.attr.size, i % 50, "{name}");
        // and nobody else waits for what was asked for
        u.put(&format!("d/{name}"), &[1; 100]).await.unwrap();
        assert_eq!(v.stat(&format!("d/{name}")).await.unwrap().size, 100);
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(c.ost(0).stats().evictions.value(), 0);
    c.stop().await;
}

/// Who removes what it looks at, each name by a program of its own, has no locks taken ahead of it.
#[tokio::test]
async fn who_looks_and_removes_asks_for_nothing_ahead() {
    let c = at_rest(2, 100).await;
    let fs = c.client().await;
    let mut v = User::root(&fs);
    let (_, n) = rpcs(&fs, async {
        for i in 0..100 {
            v.cred.pid = 100 + i;
            v.stat(&format!("d/f{i}")).await.unwrap();
            v.unlink(&format!("d/f{i}")).await.unwrap();
        }
    })
    .await;
    assert!(n.iter().all(|(name, _)| name != "MDS_BATCH"), "{n:?}");
    c.stop().await;
}

/// A program that goes on removing has the directory to itself soon, and many names go in one request; what they are is asked for many at
/// a time, and the answers come while other names are being removed.
#[tokio::test(start_paused = true)]
async fn who_removes_a_row_asks_for_no_sizes() {
    for is_far in [false, true] {
        let c = at_rest(2, 100).await;
        let fs = match is_far {
            true => c.remote_client().await,
            false => c.client().await,
        };
        let mut v = User::root(&fs);
        v.cred.pid = 100;
        if is_far {
            overtaking(&c, [&v, &v], 1);
        }
        let d = v.fid("d").await.unwrap();
        let (_, n) = rpcs(&fs, async {
            for i in 0..100 {
                let name = format!("f{i}");
                fs.lookup(&v.cred, d, name.as_bytes()).await.unwrap();
                fs.unlink(&v.cred, d, name.as_bytes()).await.unwrap();
            }
        })
        .await;
        let of = |op: &str| n.iter().find(|(name, _)| name == op).map_or(0, |(_, n)| *n);
        // the first go one by one
        assert!((9..=50).contains(&of("MDS_REINT")), "{n:?}");
        assert!(v.names("d").await.unwrap().is_empty());
        // the first are looked up and sized one by one
        assert!((1..=6).contains(&of("MDS_BATCH")), "{n:?}");
        assert!(of("LDLM_ENQUEUE") <= 30, "{n:?}");
        c.stop().await;
    }
}

/// Programs of one client change names, each its own ones, while others look at all of them, and what comes is asked for ahead: each
/// program sees its names as it left them, and so does another client.
#[tokio::test(start_paused = true)]
async fn what_is_asked_for_ahead_beside_own_changes_is_never_old() {
    const NAMES: u64 = 60;
    const PROGRAMS: u64 = 3;
    let seeds = std::env::var("CORAL_SEEDS").map_or(3, |n| n.parse().unwrap());
    for seed in 1..=seeds {
        let c = Cluster::start(2, 1, 1 << 20).await;
        let u = User::root(&c.remote_client().await);
        let v = User::root(&c.remote_client().await);
        overtaking(&c, [&u, &v], seed);
        fill(&u, "d", NAMES as usize).await;
        let left = AtomicU32::new(PROGRAMS as u32);
        let looks = looks(&v, NAMES, || left.load(Ordering::Relaxed) > 0);
        let changes = |program: u64| {
            let (u, v, left) = (&u, &v, &left);
            async move {
                let mut rng = Rng(seed * PROGRAMS + program);
                let mut own = || PROGRAMS * rng.below(NAMES / PROGRAMS) + program;
                for n in 0..100u64 {
                    let (a, b, what) = (own(), own(), own() / PROGRAMS % 4);
                    let (a, b) = (format!("d/f{a}"), format!("d/f{b}"));
                    let at = format!("seed {seed}, program {program}, step {n}: {a}, {b}");
                    let is_there = v.fid(&a).await;
                    match (what, is_there) {
                        (0, Ok(_)) => {
                            v.unlink(&a).await.expect("unlink");
                            assert!(v.stat(&a).await.is_err(), "{at}");
                            assert!(u.stat(&a).await.is_err(), "{at}");
                        }
                        (1, Ok(fid)) if v.fid(&b).await != Ok(fid) => {
                            v.rename(&a, &b, 0).await.expect("rename");
                            assert_eq!(v.fid(&b).await, Ok(fid), "{at}");
                            assert_eq!(u.fid(&b).await, Ok(fid), "{at}");
                            assert!(v.stat(&a).await.is_err(), "{at}");
                        }
                        (2, Ok(fid)) => {
                            let _ = v.unlink(&b).await;
                            if a != b {
                                v.link(&a, &b).await.expect("link");
                                assert_eq!(v.fid(&b).await, Ok(fid), "{at}");
                                assert_eq!(v.fid(&a).await, Ok(fid), "{at}");
                            }
                        }
                        (_, Err(_)) => {
                            v.put(&a, &vec![3; n as usize % 60]).await.expect("put");
                            let fid = v.fid(&a).await.expect("it is there");
                            assert_eq!(u.fid(&a).await, Ok(fid), "{at}");
                            assert_eq!(v.stat(&a).await.expect("there").size, n % 60, "{at}");
                        }
                        _ => {}
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let (rounds, ..) = tokio::join!(looks, changes(0), changes(1), changes(2));
        assert!(rounds > 2, "{rounds} rounds");
        assert_eq!(c.mdt().target.stats().evictions.value(), 0);
        c.stop().await;
    }
}

/// One client looks at all files all the time while another one changes them: what that has changed, the first sees at once.
#[tokio::test(start_paused = true)]
async fn what_is_asked_for_ahead_beside_changes_is_never_old() {
    let seeds = std::env::var("CORAL_SEEDS").map_or(3, |n| n.parse().unwrap());
    for seed in 1..=seeds {
        let c = Cluster::start(2, 1, 1 << 20).await;
        let u = User::root(&c.remote_client().await);
        let v = User::root(&c.remote_client().await);
        overtaking(&c, [&u, &v], seed);
        fill(&u, "d", 80).await;
        let stop = AtomicBool::new(false);
        let looks = looks(&v, 80, || !stop.load(Ordering::Relaxed));
        let changes = async {
            let mut rng = Rng(seed);
            for n in 0..300u64 {
                let (a, b) = (rng.below(80), rng.below(80));
                let (a, b) = (format!("d/f{a}"), format!("d/f{b}"));
                let at = format!("seed {seed}, step {n}: {a}, {b}");
                match rng.below(4) {
                    0 => {
                        let fh = u.open(&a, libc::O_WRONLY).await.expect("open");
                        let size = 100 + n;
                        u.write(&fh, size - 1, &[1]).await.expect("write");
                        if n % 2 == 0 {
                            u.fs.fsync(&fh, false).await.expect("fsync");
                        }
                        let seen = v.stat(&a).await.expect("it is there").size;
                        assert!(seen >= size, "{at}: {seen} of {size}");
                        u.close(&fh).await.expect("close");
                    }
                    1 => {
                        u.unlink(&a).await.expect("unlink");
                        assert!(v.stat(&a).await.is_err(), "{at}");
                        u.put(&a, &vec![3; n as usize % 60]).await.expect("put");
                        let seen = v.stat(&a).await.expect("it is there").size;
                        assert_eq!(seen, n % 60, "{at}");
                    }
                    2 => {
                        let set = SetAttr {
                            size: Some(n % 70),
                            ..SetAttr::default()
                        };
                        let fid = u.fid(&a).await.expect("it is there");
                        u.fs.setattr(&u.cred, fid, set, None).await.expect("cut");
                        let seen = v.stat(&a).await.expect("it is there").size;
                        assert_eq!(seen, n % 70, "{at}");
                    }
                    _ if a != b => {
                        let fid = u.fid(&a).await.expect("it is there");
                        u.rename(&a, &b, 0).await.expect("rename");
                        assert_eq!(v.fid(&b).await, Ok(fid), "{at}");
                        assert!(v.stat(&a).await.is_err(), "{at}");
                        u.put(&a, b"another").await.expect("put");
                    }
                    _ => {}
                }
            }
            stop.store(true, Ordering::Relaxed);
        };
        let (rounds, ()) = tokio::join!(looks, changes);
        assert!(rounds > 5, "{rounds} rounds");
        assert_eq!(c.mdt().target.stats().evictions.value(), 0);
        c.stop().await;
    }
}
