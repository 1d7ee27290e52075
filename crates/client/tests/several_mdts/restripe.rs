//! Directories that are split and merged where they are (`lfs setdirstripe -c N DIR`), while others use them.

use std::collections::BTreeMap;
use std::time::Duration;

use coral_lnet::LinkModel;
use coral_wire::Errno;
use coral_wire::layout::{hash_flag, hash_type};

use crate::common::simulated::number;
use crate::common::{Cluster, Rng, SERVER, User, nid};
use crate::several::work::work;
use crate::several::{end, layout_of, mkdir_on, mkdir_over, path_of, quiet, restripe};

const FNV: u32 = hash_type::FNV_1A_64 | hash_flag::FIXED;
const CRUSH: u32 = hash_type::CRUSH | hash_flag::FIXED;

/// Files of `d` and what is in them; and a subdirectory with one.
async fn fill(u: &User) {
    for i in 0..20 {
        let path = format!("d/f{i}");
        u.put(&path, path.as_bytes()).await.unwrap();
    }
    mkdir_on(u, "d/sub", 0).await.unwrap();
    u.put("d/sub/x", b"deep").await.unwrap();
}

/// All of that is there.
async fn is_whole(u: &User) {
    assert_eq!(u.names("d").await.unwrap().len(), 21);
    assert_eq!(u.stat("d").await.unwrap().nlink, 3);
    for i in 0..20 {
        let path = format!("d/f{i}");
        assert_eq!(u.get(&path).await.unwrap(), path.as_bytes());
    }
    assert_eq!(u.get("d/sub/x").await.unwrap(), b"deep");
    let fid = u.fid("d/sub/x").await.unwrap();
    assert_eq!(path_of(u, fid).await, "d/sub/x");
}

#[tokio::test(start_paused = true)]
async fn a_directory_is_split_and_merged_with_all_in_it() {
    let c = Cluster::start_mdts(4, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "d", 2).await.unwrap();
    fill(&u).await;
    is_whole(&v).await;
    let before = v.stat("d/f3").await.unwrap();
    let old = v.fid("d").await.unwrap();
    let plain = layout_of(&v, "d").await.0;
    assert_eq!(plain, [0u32; 0]);
    for (count, hash, mdts, settled) in [
        (3, 0, vec![2, 3, 0], FNV),
        (4, hash_type::CRUSH, vec![2, 3, 0, 1], CRUSH),
        (2, 0, vec![2, 3], CRUSH),
        (2, hash_type::FNV_1A_64, vec![2, 3], FNV),
        (1, 0, vec![2], FNV),
        (2, hash_type::CRUSH, vec![2, 3], CRUSH),
    ] {
        restripe(&u, "d", count, hash).await.unwrap();
        quiet(&c).await;
        for who in [&u, &v] {
            assert_eq!(layout_of(who, "d").await, (mdts.clone(), settled));
            is_whole(who).await;
        }
        assert_eq!(restripe(&u, "d", count, 0).await, Err(Errno::EALREADY));
    }
    // files stay what they are, and who knows the directory by its old FID finds it
    assert_eq!(v.stat("d/f3").await.unwrap(), before);
    let at = u.fs.lookup(&u.cred, old, b"f3").await.unwrap().attr.fid;
    assert_eq!(at, before.fid);
    for i in 0..20 {
        v.unlink(&format!("d/f{i}")).await.unwrap();
    }
    u.unlink("d/sub/x").await.unwrap();
    v.rmdir("d/sub").await.unwrap();
    u.rmdir("d").await.unwrap();
    assert_eq!(v.stat("").await.unwrap().nlink, 2);
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_laid_out_anew_says_so() {
    let c = Cluster::start_mdts(2, 2).await;
    let fs = c.remote_client().await;
    let (u, joe) = (User::root(&fs), User::new(&fs, 100, 100));
    mkdir_on(&u, "d", 1).await.unwrap();
    u.put("f", b"a file").await.unwrap();
    assert_eq!(restripe(&u, "d", 1, 0).await, Err(Errno::EALREADY));
    assert_eq!(restripe(&u, "d", 3, 0).await, Err(Errno::E2BIG));
    assert_eq!(restripe(&u, "f", 2, 0).await, Err(Errno::ENOTDIR));
    assert_eq!(restripe(&u, "none", 2, 0).await, Err(Errno::ENOENT));
    assert_eq!(restripe(&joe, "d", 2, 0).await, Err(Errno::EPERM));
    // who makes a directory gets none that is there
    assert_eq!(mkdir_over(&u, "d", 2, u32::MAX).await, Err(Errno::EEXIST));
    assert_eq!(layout_of(&u, "d").await.0, [0u32; 0]);
    end(&c, &[&fs]).await;
}

#[tokio::test(start_paused = true)]
async fn names_that_have_yet_to_move_are_used_like_any() {
    let mut c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    // a name moves in 20 ms at least
    let slow = LinkModel {
        delay: Duration::from_millis(1),
        ..LinkModel::default()
    };
    for client in [&fs, &other] {
        c.net.set_link(client.node().nid(), nid(SERVER), slow, 1);
    }
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "d", 0).await.unwrap();
    fill(&u).await;
    for (count, expected) in [(3, FNV), (1, FNV)] {
        restripe(&u, "d", count, 0).await.unwrap();
        let busy = restripe(&v, "d", 2, 0).await;
        assert!(matches!(busy, Err(Errno::EBUSY)), "{busy:?}");
        is_whole(&v).await;
        let excl = u.create("d/f1", libc::O_RDWR | libc::O_EXCL).await;
        assert_eq!(excl.map(drop), Err(Errno::EEXIST));
        v.put("d/new", b"new").await.unwrap();
        u.rename("d/new", "d/f7", 0).await.unwrap();
        assert_eq!(v.get("d/f7").await.unwrap(), b"new");
        v.put("d/f7", b"d/f7").await.unwrap();
        assert_eq!(u.rmdir("d").await, Err(Errno::ENOTEMPTY));
        quiet(&c).await;
        is_whole(&u).await;
        assert_eq!(layout_of(&v, "d").await.1, expected);
    }
    // what was begun goes on after a start
    restripe(&u, "d", 2, hash_type::CRUSH).await.unwrap();
    c.mdts_lose_power().await;
    quiet(&c).await;
    is_whole(&v).await;
    assert_eq!(layout_of(&v, "d").await, (vec![0, 1], CRUSH));
    end(&c, &[&fs, &other]).await;
}

/// Two clients change a tree while a third lays its directories out anew.
async fn used_while_it_is_laid_out(seed: u64) {
    let c = Cluster::start_mdts(4, 2).await;
    let (fs, a, b) = (
        c.remote_client().await,
        c.remote_client().await,
        c.remote_client().await,
    );
    // so that operations cross each other
    let slow = LinkModel {
        delay: Duration::from_micros(200),
        ..LinkModel::default()
    };
    for client in [&fs, &a, &b] {
        c.net.set_link(client.node().nid(), nid(SERVER), slow, seed);
    }
    let u = User::root(&fs);
    let dirs = ["t", "t/s0", "t/s1"];
    for dir in dirs {
        u.mkdir(dir).await.unwrap();
    }
    let works = [(&a, "a", 1), (&b, "b", 2)].map(|(fs, who, n)| {
        let rng = Rng(seed * 3 + n);
        tokio::task::spawn_local(work(User::root(fs), who, rng, 120))
    });
    let mut rng = Rng(seed * 3 + 3);
    let mut changes = 0;
    while !works.iter().all(|w| w.is_finished()) {
        let dir = dirs[rng.below(3) as usize];
        let hash = [0, hash_type::CRUSH, hash_type::FNV_1A_64][rng.below(3) as usize];
        match restripe(&u, dir, 1 + rng.below(4) as u32, hash).await {
            Ok(()) => changes += 1,
            Err(Errno::EALREADY | Errno::EBUSY | Errno::EAGAIN | Errno::ESTALE) => {}
            // the directory above was laid out anew
            Err(Errno::ENOENT) if dir != "t" => {}
            other => panic!("{dir}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(rng.below(20))).await;
    }
    let mut all = BTreeMap::new();
    for w in works {
        all.extend(w.await.unwrap());
    }
    for (path, data) in &all {
        assert_eq!(u.get(path).await.as_ref(), Ok(data), "{path}");
    }
    quiet(&c).await;
    for dir in ["t/s0", "t/s1", "t"] {
        for name in u.names(dir).await.unwrap() {
            let path = format!("{dir}/{name}");
            match all.remove(&path) {
                Some(_) => u.unlink(&path).await.unwrap(),
                None => panic!("{path} is nobody's"),
            }
        }
        u.rmdir(dir).await.unwrap();
    }
    assert!(all.is_empty() && changes > 3, "{changes}: {all:?}");
    end(&c, &[&fs, &a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_used_while_it_is_laid_out_anew() {
    let first = number("CORAL_SEED", 1);
    for seed in first..first + number("CORAL_SEEDS", 5) {
        println!("seed {seed}");
        let here = tokio::task::LocalSet::new();
        here.run_until(used_while_it_is_laid_out(seed)).await;
    }
}
