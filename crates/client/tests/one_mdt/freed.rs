//! Nothing is freed before the transaction that frees it is on disk: whatever the loss of power takes back is whole.

use std::time::Duration;

use crate::common::*;
use coral_osd::{Objects, OsdSim};

/// Longer than it takes targets to sync, and clients to notice a restart, come back and replay.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(12)).await;
}

/// Less than it takes a target to sync by itself, more than it takes to destroy an object.
async fn a_moment() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

fn objects(disk: &OsdSim) -> usize {
    disk.objects().len()
}

/// A file with that content, which is on disk.
async fn put_synced(u: &User, path: &str, data: &[u8]) {
    u.put(path, data).await.unwrap();
    let fh = u.open(path, libc::O_RDWR).await.unwrap();
    u.fs.fsync(&fh, false).await.unwrap();
    u.close(&fh).await.unwrap();
}

/// The program that replaced the file is gone with the power; something else on the same disk was synced meanwhile.
#[tokio::test(start_paused = true)]
async fn a_replaced_file_is_whole_after_power_loss() {
    let c = Cluster::start(2, 2, 65536).await;
    // in the servers' own process: nobody replays
    let fs = c.client().await;
    let u = User::root(&fs);
    let (old, new) = (vec![1u8; 200_000], vec![2u8; 150_000]);
    put_synced(&u, "f", &old).await;
    put_synced(&u, "gone", &old).await;
    put_synced(&u, "tmp", &new).await;
    settle().await;
    u.rename("tmp", "f", 0).await.unwrap();
    u.unlink("gone").await.unwrap();
    a_moment().await;
    for t in c.osts() {
        t.sync().await.unwrap();
    }
    let c = c.mdt_loses_power().await;
    let u = User::root(&c.client().await);
    for (name, want) in [("f", &old), ("gone", &old), ("tmp", &new)] {
        assert!(u.get(name).await.unwrap() == *want, "{name}");
    }
    // and when it is on disk, the space comes back
    u.rename("tmp", "f", 0).await.unwrap();
    u.unlink("gone").await.unwrap();
    settle().await;
    assert!(u.get("f").await.unwrap() == new);
    assert_eq!(c.disks.osts.iter().map(objects).collect::<Vec<_>>(), [1, 1]);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replaced_file_with_data_on_the_mdt_is_whole_after_power_loss() {
    let c = Cluster::start(1, 1, 65536).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    u.dom_dir("d", 1).await;
    put_synced(&u, "d/f", b"old").await;
    put_synced(&u, "d/tmp", b"new").await;
    settle().await;
    assert_eq!(objects(&c.disks.mdt), 2);
    u.rename("d/tmp", "d/f", 0).await.unwrap();
    a_moment().await;
    // somebody else's sync on the same disk
    c.disks.mdt.sync_all().wait().unwrap();
    let c = c.mdt_loses_power().await;
    let u = User::root(&c.client().await);
    assert_eq!(
        (u.get("d/f").await, u.get("d/tmp").await),
        (Ok(b"old".to_vec()), Ok(b"new".to_vec()))
    );
    u.rename("d/tmp", "d/f", 0).await.unwrap();
    settle().await;
    assert_eq!(
        (u.get("d/f").await, objects(&c.disks.mdt)),
        (Ok(b"new".to_vec()), 1)
    );
    c.stop().await;
}

/// Files are replaced and removed, disks are synced and lose their power at any time, and programs go with it: every name that is
/// there has a content that it had after an fsync.
async fn names_have_their_contents(seed: u64) {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut c = Cluster::start_seeded(2, 1, 65536, seed, "").await;
    let mut u = User::root(&c.client().await);
    for step in 0..120u32 {
        let name = NAMES[rng.below(4) as usize];
        let content = |step: u32, name: &str| {
            [name.as_bytes(), b":", &step.to_be_bytes(), &[7; 3000]].concat()
        };
        match rng.below(16) {
            0..=6 => {
                put_synced(&u, "tmp", &content(step, name)).await;
                u.rename("tmp", name, 0).await.unwrap();
            }
            7 | 8 => drop(u.unlink(name).await),
            9 => c.mdt().target.sync().await.unwrap(),
            10 => c.ost(rng.below(2) as u32).sync().await.unwrap(),
            11..=13 => tokio::time::sleep(Duration::from_millis(rng.below(3000))).await,
            _ => {
                c = if rng.below(2) == 0 {
                    c.mdt_loses_power().await
                } else {
                    c.osts_lose_power().await
                };
                u = User::root(&c.client().await);
                for name in u.names("").await.unwrap() {
                    let got = u.get(&name).await.unwrap();
                    assert!(
                        got.len() > 3000,
                        "seed {seed} step {step}: {name} has {} bytes",
                        got.len()
                    );
                    assert!(
                        name == "tmp" || got.starts_with(format!("{name}:").as_bytes()),
                        "seed {seed} step {step}: {name}"
                    );
                }
            }
        }
    }
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_name_has_a_content_it_had() {
    for seed in 1..=12 {
        tokio::time::timeout(Duration::from_secs(36_000), names_have_their_contents(seed))
            .await
            .expect("it hangs");
    }
}
