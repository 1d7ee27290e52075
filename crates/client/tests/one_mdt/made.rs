//! The open that made an empty file outlives its close: whoever made it knows its size, and everybody else sees the file as it is.
//! `CORAL_SEEDS=n` makes the last tests try so many orders.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ahead::overtaking;
use crate::common::simulated::number;
use crate::common::*;
use coral_client::{SetAttr, SetTime, Timespec};
use coral_wire::Errno;

const EXEC: i32 = 0x20;

async fn make(u: &User, name: &str) {
    let fh = u.create(name, libc::O_RDWR).await.unwrap();
    u.close(&fh).await.unwrap();
}

/// One that may be executed.
async fn make_program(u: &User, name: &str) {
    make(u, name).await;
    let (fid, mode) = (u.fid(name).await.unwrap(), Some(0o755));
    let set = SetAttr {
        mode,
        ..Default::default()
    };
    u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
}

fn opens(c: &Cluster) -> usize {
    c.mdt().ops.core.read().opens.len()
}

fn set_size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn others_see_what_was_made_and_its_maker_what_they_do_with_it() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    make(&u, "f").await;
    assert_eq!((u.stat("f").await.unwrap().size, opens(&c)), (0, 1));
    // who looks at it ends that
    assert_eq!(v.stat("f").await.unwrap().size, 0);
    assert_eq!(opens(&c), 0);
    let (now, n) = rpcs(&u.fs, u.stat("f")).await;
    assert_eq!((now.unwrap().size, n.len()), (0, 1), "an OST is asked");

    make(&u, "g").await;
    let w = v.open("g", libc::O_WRONLY).await.unwrap();
    v.write(&w, 0, b"text").await.unwrap();
    assert_eq!(u.stat("g").await.unwrap().size, 4);
    v.close(&w).await.unwrap();
    make(&u, "h").await;
    let fid = u.fid("h").await.unwrap();
    v.fs.setattr(&v.cred, fid, set_size(7), None).await.unwrap();
    assert_eq!(u.stat("h").await.unwrap().size, 7);
    make_program(&u, "x").await;
    assert_eq!(opens(&c), 1, "its mode says nothing of its size");
    let run = v.open("x", libc::O_RDONLY | EXEC).await.unwrap();
    let busy = u.open("x", libc::O_WRONLY).await.err();
    assert_eq!(busy, Some(Errno::ETXTBSY));
    v.close(&run).await.unwrap();
    for name in ["f", "g", "h", "x"] {
        v.unlink(name).await.unwrap();
    }
    make(&u, "y").await;
    v.unlink("y").await.unwrap();
    assert_eq!(u.stat("y").await.err(), Some(Errno::ENOENT));
    assert_eq!(opens(&c), 0);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn its_maker_uses_it_as_any_other() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    make_program(&u, "f").await;
    let run = u.open("f", libc::O_RDONLY | EXEC).await.unwrap();
    u.close(&run).await.unwrap();
    make(&u, "g").await;
    let w = u.open("g", libc::O_WRONLY).await.unwrap();
    u.write(&w, 0, b"text").await.unwrap();
    assert_eq!(u.stat("g").await.unwrap().size, 4);
    u.close(&w).await.unwrap();
    assert_eq!(u.get("g").await.unwrap(), b"text");
    make(&u, "h").await;
    let fid = u.fid("h").await.unwrap();
    u.fs.setattr(&u.cred, fid, set_size(7), None).await.unwrap();
    assert_eq!(u.stat("h").await.unwrap().size, 7);
    // one name of two goes
    make(&u, "i").await;
    u.link("i", "j").await.unwrap();
    u.unlink("i").await.unwrap();
    let v = User::root(&c.remote_client().await);
    v.put("j", b"12345").await.unwrap();
    assert_eq!(u.stat("j").await.unwrap().size, 5);
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(opens(&c), 0);
    c.stop().await;
}

/// Who fills what it has just made uses the open that made the file: a write and a close are all that the servers hear of.
#[tokio::test(start_paused = true)]
async fn its_maker_fills_it_with_two_requests() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    let v = User::root(&c.remote_client().await);
    for (name, cut, reads) in [
        ("a", libc::O_TRUNC, false),
        ("b", 0, false),
        ("c", libc::O_TRUNC, true),
    ] {
        make(&u, name).await;
        let made = u.stat(name).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let flags = cut | if reads { libc::O_RDWR } else { libc::O_WRONLY };
        let ((), n) = rpcs(&u.fs, async {
            let fh = u.open(name, flags).await.unwrap();
            u.write(&fh, 0, b"text").await.unwrap();
            u.fs.flush(&fh, 1).await.unwrap();
            u.close(&fh).await.unwrap();
        })
        .await;
        assert_eq!(n, counts(&[("MDS_CLOSE", 1), ("OST_WRITE", 1)]), "{name}");
        assert_eq!(v.get(name).await.unwrap(), b"text");
        let (ours, theirs) = (u.stat(name).await.unwrap(), v.stat(name).await.unwrap());
        assert_eq!((ours.size, ours.mtime), (4, theirs.mtime), "{name}");
        assert!(
            theirs.mtime > made.mtime && ours.ctime >= ours.mtime,
            "{name}"
        );
    }
    c.stop().await;
}

/// A file that is cut and stays empty has the time of that, and is kept as it was.
#[tokio::test(start_paused = true)]
async fn what_is_cut_and_stays_empty_has_the_time_of_that() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    let v = User::root(&c.remote_client().await);
    for ends in [false, true] {
        let name = if ends { "g" } else { "f" };
        make(&u, name).await;
        let made = u.stat(name).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let fh = u.open(name, libc::O_WRONLY | libc::O_TRUNC).await.unwrap();
        let cut = u.stat(name).await.unwrap();
        assert!(cut.mtime > made.mtime && cut.ctime > made.ctime);
        if ends {
            // another asks while it is open
            assert_eq!(v.stat(name).await.unwrap(), cut);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        u.fs.flush(&fh, 1).await.unwrap();
        u.close(&fh).await.unwrap();
        assert_eq!(u.stat(name).await.unwrap(), cut);
        assert_eq!(v.stat(name).await.unwrap(), cut);
    }
    // a time that was chosen before the file is cut is no time of its data
    make(&u, "h").await;
    let fid = u.fid("h").await.unwrap();
    let later = Timespec {
        secs: u.stat("h").await.unwrap().mtime.secs + 1000,
        nanos: 0,
    };
    let chosen = SetAttr {
        mtime: Some(SetTime::At(later)),
        ..Default::default()
    };
    u.fs.setattr(&u.cred, fid, chosen, None).await.unwrap();
    let fh = u.open("h", libc::O_WRONLY | libc::O_TRUNC).await.unwrap();
    assert!(u.stat("h").await.unwrap().mtime < later);
    u.close(&fh).await.unwrap();
    assert!(v.stat("h").await.unwrap().mtime < later);
    c.stop().await;
}

/// The open that made a file is its maker's: others ask the MDT, and so does its maker for what that open does not give.
#[tokio::test(start_paused = true)]
async fn who_may_not_is_refused_what_its_maker_has_open() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    let (root, user, other) = (User::root(&fs), User::new(&fs, 7, 7), User::new(&fs, 8, 8));
    let all = SetAttr {
        mode: Some(0o777),
        ..Default::default()
    };
    let top = fs.root();
    fs.setattr(&root.cred, top, all, None).await.unwrap();
    let fid = async |name: &str| user.fid(name).await.unwrap();
    make(&user, "f").await;
    assert_eq!(
        other.open("f", libc::O_WRONLY).await.err(),
        Some(Errno::EACCES)
    );
    let fh = user.open("f", libc::O_WRONLY).await.unwrap();
    user.close(&fh).await.unwrap();
    // what it has made itself it may not open by its mode
    make(&user, "g").await;
    let read_only = SetAttr {
        mode: Some(0o444),
        ..Default::default()
    };
    fs.setattr(&user.cred, fid("g").await, read_only, None)
        .await
        .unwrap();
    assert_eq!(
        user.open("g", libc::O_WRONLY).await.err(),
        Some(Errno::EACCES)
    );
    // nor what was made immutable
    make(&user, "h").await;
    let immutable = SetAttr {
        flags: Some(0x10),
        ..Default::default()
    };
    fs.setattr(&root.cred, fid("h").await, immutable, None)
        .await
        .unwrap();
    assert_eq!(
        user.open("h", libc::O_WRONLY).await.err(),
        Some(Errno::EPERM)
    );
    // an open for writing alone reads nothing
    let write_only = fs.create(&user.cred, top, b"i", 0o644, libc::O_WRONLY as u32);
    let (_, fh) = write_only.await.unwrap();
    user.close(&fh).await.unwrap();
    let (fh, n) = rpcs(&fs, user.open("i", libc::O_RDWR)).await;
    assert!(n.iter().any(|(op, _)| op == "LDLM_ENQUEUE"), "{n:?}");
    user.close(&fh.unwrap()).await.unwrap();
    c.stop().await;
}

/// A file loses its name, or gets another size, while its maker opens it again: who has it open can use it, and it has that size.
#[tokio::test(start_paused = true)]
async fn what_is_opened_beside_a_change_can_be_used() {
    for seed in 0..number("CORAL_SEEDS", 12) {
        let c = Cluster::start(2, 1, 1 << 20).await;
        let u = User::root(&c.remote_client().await);
        let v = User::root(&c.remote_client().await);
        overtaking(&c, [&u, &v], seed);
        let mut rng = Rng(seed + 1);
        let mut opened = 0;
        for n in 0..24 {
            let name = format!("f{n}");
            make(&u, &name).await;
            let fid = u.fid(&name).await.unwrap();
            let pause = Duration::from_micros(rng.below(3000));
            let opens = async {
                tokio::time::sleep(pause).await;
                u.fs.open(&u.cred, fid, libc::O_RDWR as u32).await
            };
            if n % 2 == 0 {
                let (gone, fh) = tokio::join!(u.unlink(&name), opens);
                gone.unwrap();
                if let Ok(fh) = fh {
                    opened += 1;
                    u.write(&fh, 0, b"text").await.unwrap();
                    assert_eq!(u.read(&fh, 0, 9).await.unwrap(), b"text");
                    u.close(&fh).await.unwrap();
                }
                continue;
            }
            let set = u.fs.setattr(&u.cred, fid, set_size(100), None);
            let (set, fh) = tokio::join!(set, opens);
            set.unwrap();
            let fh = fh.unwrap();
            assert_eq!(u.stat(&name).await.unwrap().size, 100, "seed {seed}");
            u.close(&fh).await.unwrap();
            for who in [&u, &v] {
                assert_eq!(who.stat(&name).await.unwrap().size, 100, "seed {seed}");
            }
        }
        println!("seed {seed}: {opened} of 12 were open when they lost their name");
        tokio::time::sleep(Duration::from_secs(20 * 60)).await;
        assert_eq!(self::opens(&c), 0);
        c.stop().await;
    }
}

/// Nobody is kept from executing a file by one who only reads it.
#[tokio::test(start_paused = true)]
async fn who_reads_what_it_has_made_is_no_writer() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    let v = User::root(&c.remote_client().await);
    make_program(&u, "f").await;
    let reads = u.open("f", libc::O_RDONLY).await.unwrap();
    let w = u.open("f", libc::O_WRONLY).await.unwrap();
    u.write(&w, 0, b"#!/bin/sh").await.unwrap();
    u.close(&w).await.unwrap();
    for who in [&u, &v] {
        let run = who.open("f", libc::O_RDONLY | EXEC).await.unwrap();
        who.close(&run).await.unwrap();
    }
    u.close(&reads).await.unwrap();
    c.stop().await;
}

/// What is known of a file, by its names.
type Model = BTreeMap<String, (u64, u64)>;

/// One operation, which ends before the next begins, of any of the clients; `all` is what they agree on: an identity and the size.
async fn step(rng: &mut Rng, u: &User, all: &mut Model, next: &mut u64) {
    let name = format!("f{}", rng.below(4));
    let known = all.get(&name).copied();
    let resize = |all: &mut Model, id: u64, size: u64| {
        all.values_mut()
            .filter(|(i, _)| *i == id)
            .for_each(|f| f.1 = size);
    };
    match rng.below(10) {
        0..3 if known.is_none() => {
            make(u, &name).await;
            *next += 1;
            all.insert(name, (*next, 0));
        }
        3 => {
            let done = u.unlink(&name).await;
            assert_eq!(done.is_ok(), all.remove(&name).is_some(), "unlink {name}");
        }
        4 => {
            let other = format!("f{}", rng.below(4));
            let done = u.rename(&name, &other, 0).await;
            assert_eq!(done.is_ok(), known.is_some(), "rename {name}");
            let same = all.get(&other).map(|f| f.0) == known.map(|f| f.0);
            if let Some(f) = known.filter(|_| !same) {
                all.remove(&name);
                all.insert(other, f);
            }
        }
        5 => {
            let other = format!("f{}", rng.below(4));
            let done = u.link(&name, &other).await;
            let may = known.is_some() && !all.contains_key(&other);
            assert_eq!(done.is_ok(), may, "link {name}");
            if let Some(f) = known.filter(|_| may) {
                all.insert(other, f);
            }
        }
        6 => {
            if let Some((id, size)) = known {
                let cut = rng.below(3) == 0;
                let flags = libc::O_WRONLY | if cut { libc::O_TRUNC } else { 0 };
                let fh = u.open(&name, flags).await.unwrap();
                let size = if cut { 0 } else { size };
                resize(all, id, size);
                if rng.below(2) == 0 {
                    u.write(&fh, size, b"more").await.unwrap();
                    resize(all, id, size + 4);
                }
                u.close(&fh).await.unwrap();
            }
        }
        7 => {
            if let Some((id, _)) = known {
                let (fid, size) = (u.fid(&name).await.unwrap(), rng.below(9));
                let set = set_size(size);
                u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
                resize(all, id, size);
            }
        }
        8 => {
            if known.is_some() {
                let fid = u.fid(&name).await.unwrap();
                let time = Timespec {
                    secs: 1_000_000 + rng.below(9) as i64,
                    nanos: 0,
                };
                let set = SetAttr {
                    mtime: Some(SetTime::At(time)),
                    mode: (rng.below(2) == 0).then_some(0o600),
                    ..Default::default()
                };
                u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
                assert_eq!(u.stat(&name).await.unwrap().mtime, time);
            }
        }
        _ => {
            let size = u.stat(&name).await.ok().map(|a| a.size);
            assert_eq!(size, known.map(|f| f.1), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_any_order_all_clients_agree() {
    for seed in 0..number("CORAL_SEEDS", 40) {
        let mut c = Cluster::start_seeded(2, 1, 1 << 20, seed, "").await;
        let mut users = Vec::new();
        for _ in 0..3 {
            users.push(User::root(&c.remote_client().await));
        }
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut all, mut next) = (Model::new(), 0);
        for n in 0..150 {
            let u = &users[rng.below(3) as usize];
            step(&mut rng, u, &mut all, &mut next).await;
            if n == 100 && seed % 4 == 1 {
                c = c.kill_and_restart().await;
            } else if n == 100 && seed % 4 == 2 {
                c = c.mdt_loses_power().await;
            }
        }
        for u in &users {
            for i in 0..4 {
                let name = format!("f{i}");
                let size = u.stat(&name).await.ok().map(|a| a.size);
                assert_eq!(size, all.get(&name).map(|f| f.1), "seed {seed}: {name}");
            }
        }
        for name in all.keys() {
            users[0].unlink(name).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(opens(&c), 0, "seed {seed}");
        let left: usize = c.disks.osts.iter().map(|d| d.objects().len()).sum();
        assert_eq!(left, 0, "seed {seed}");
        c.stop().await;
    }
}

/// The clock stands still: that another's change and a rename which changes nothing have one time says nothing.
#[tokio::test(start_paused = true)]
async fn a_rename_that_changes_nothing_says_nothing_of_other_names() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    u.put("f", b"1").await.unwrap();
    u.link("f", "g").await.unwrap();
    for (n, to) in ["f", "g"].into_iter().enumerate() {
        assert_eq!(u.names("").await.unwrap().len(), 2 + n);
        let name = format!("new{n}");
        v.put(&name, b"1").await.unwrap();
        u.rename("f", to, 0).await.unwrap();
        assert_eq!(u.stat(&name).await.unwrap().size, 1);
        assert_eq!(u.stat("f").await.unwrap().nlink, 2);
    }
    c.stop().await;
}

/// Between its last look at the name and the rename two others have given the name to another file.
#[tokio::test(start_paused = true)]
async fn a_rename_is_of_what_has_the_name_then() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let mut u = Vec::new();
    for _ in 0..2 {
        u.push(User::root(&c.remote_client().await));
    }
    let first = u[0].put("a", b"first").await.unwrap();
    assert_eq!(u[0].fid("a").await.unwrap(), first);
    tokio::time::sleep(Duration::from_secs(1)).await;
    u[1].rename("a", "b", 0).await.unwrap();
    let second = u[1].put("a", b"the second").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    u[0].rename("a", "c", 0).await.unwrap();
    for u in &u {
        assert_eq!(u.fid("c").await.unwrap(), second);
        assert_eq!(u.fid("b").await.unwrap(), first);
        assert_eq!(u.stat("c").await.unwrap().size, 10);
    }
    c.stop().await;
}
