//! Nobody waits for what waits for it, where a file lies on one MDT and has its name on another.

use std::sync::Arc;
use std::time::Duration;

use coral_client::Llite;
use coral_client::llite::types::SetAttr;
use coral_lnet::LinkModel;
use coral_wire::Errno;

use crate::common::{Cluster, Rng, SERVER, User, nid};
use crate::several::{end, mkdir_over};

/// What has not ended by now waits until an MDT gives another one up.
const STUCK: Duration = Duration::from_secs(10);

/// Two names in one directory, which are on two MDTs.
type Names = [String; 2];

/// One thing that programs do with a file that appears under one name and goes on to the other.
async fn step(u: &User, what: &str, [from, to]: &Names, rng: &mut Rng) {
    let done = match what {
        "make" => make(u, from, rng).await,
        "rename" => u.rename(from, to, 0).await,
        "unlink" => u.unlink(to).await,
        "open" => match u.open(to, libc::O_RDWR).await {
            Ok(file) => u.close(&file).await,
            Err(e) => Err(e),
        },
        _ => u.stat(to).await.map(drop),
    };
    // others have made it, or moved it on
    let expected: &[Errno] = match what {
        "make" => &[Errno::EEXIST],
        _ => &[Errno::ENOENT],
    };
    if let Err(e) = done
        && !expected.contains(&e)
    {
        panic!("{what}: {e}");
    }
}

/// Names of files that lie on different MDTs.
async fn two_names(u: &User) -> Names {
    let mut found: Vec<(u64, String)> = Vec::new();
    for n in 0.. {
        let name = format!("d/{n}");
        let fid = u.put(&name, b"").await.unwrap();
        u.unlink(&name).await.unwrap();
        if found.iter().all(|(seq, _)| *seq != fid.seq) {
            found.push((fid.seq, name));
        }
        if let [a, b] = &found[..] {
            return [a.1.clone(), b.1.clone()];
        }
    }
    unreachable!("names without an end")
}

/// Makes a file and sets attributes of it, which are kept back as long as it is open.
async fn make(u: &User, path: &str, rng: &mut Rng) -> Result<(), Errno> {
    let file = u.create(path, libc::O_EXCL | libc::O_RDWR).await?;
    let mut done = Ok(());
    for mode in [0o640, 0o644] {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let set = u.fs.setattr(&u.cred, file.fid(), set, Some(&file));
        done = done.and(set.await.map(drop).map_err(Errno::from));
        tokio::time::sleep(Duration::from_millis(rng.below(30))).await;
    }
    done.and(u.close(&file).await)
}

async fn user(fs: Arc<Llite>, kinds: &'static [&'static str], names: Names, seed: u64) {
    let (u, mut rng) = (User::root(&fs), Rng(seed));
    for n in 0..100 {
        let what = kinds[rng.below(kinds.len() as u64) as usize];
        let step = step(&u, what, &names, &mut rng);
        let ended = tokio::time::timeout(STUCK, step).await;
        assert!(ended.is_ok(), "{what}, step {n} of {kinds:?} {seed}, hangs");
    }
}

async fn all_of_them(seed: u64) {
    let c = Cluster::start_mdts(2, 1).await;
    let [a, b] = [c.remote_client().await, c.remote_client().await];
    let slow = LinkModel {
        delay: Duration::from_micros(200),
        ..LinkModel::default()
    };
    for client in [&a, &b] {
        c.net.set_link(client.node().nid(), nid(SERVER), slow, seed);
    }
    mkdir_over(&User::root(&a), "d", 2, 0).await.unwrap();
    let mut names = two_names(&User::root(&a)).await;
    // both orders of MDTs
    if seed.is_multiple_of(2) {
        names.reverse();
    }
    let makes: &[&str] = &["make"];
    let moves: &[&str] = &["rename", "rename", "rename", "unlink"];
    let looks: &[&str] = &["stat", "stat", "open"];
    let mut users = Vec::new();
    for (fs, kinds) in [
        (&a, makes),
        (&a, makes),
        (&a, moves),
        (&b, moves),
        (&b, moves),
        (&b, looks),
        (&b, looks),
        (&b, looks),
    ] {
        let seed = seed * 100 + users.len() as u64;
        users.push(tokio::task::spawn_local(user(
            fs.clone(),
            kinds,
            names.clone(),
            seed,
        )));
    }
    for u in users {
        u.await.unwrap();
    }
    end(&c, &[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn operations_over_mdts_and_those_that_look_end() {
    for seed in 1..20 {
        println!("seed {seed}");
        let here = tokio::task::LocalSet::new();
        here.run_until(all_of_them(seed)).await;
    }
}
