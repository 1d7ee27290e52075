//! Objects of files whose creation went with the power are found and removed, and nothing else is.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::*;
use coral_osd::{Kv, Objects, OsdSim};

/// Longer than it takes targets to sync, clients to come back and replay, and objects to go. The next periodic sync, every 5 s
/// from the start on, is not near.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(32)).await;
}

fn ids(disk: &OsdSim) -> BTreeSet<(u64, u64)> {
    let all = disk.objects().into_iter();
    all.map(|(id, _)| (id.seq, id.oid)).collect()
}

/// The data of all files, of which this client may hold some back, are on the OSTs' and the MDT's disks; no name is.
async fn sync_data(u: &User) {
    for dir in ["", "dom"] {
        for name in u.names(dir).await.unwrap_or_default() {
            let path = if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            };
            // fdatasync of a descriptor that cannot write
            if let Ok(fh) = u.open(&path, libc::O_RDONLY).await {
                let _ = u.fs.fsync(&fh, true).await;
                u.close(&fh).await.unwrap();
            }
        }
    }
}

/// New clients are let in.
async fn recovered(c: &Cluster) {
    while c.mdt().target.in_recovery() || c.osts().iter().any(|t| t.in_recovery()) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The tables are right, and every object belongs to a file.
fn check(c: &Cluster, what: &str) {
    let report = coral_server::mdt::check(&c.disks.mdt).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    assert!(
        report.destroy_pending.is_empty(),
        "{what}: {:?}",
        report.destroy_pending
    );
    for (ost, disk) in c.disks.osts.iter().enumerate() {
        let known = |id: &(u64, u64)| report.objects.contains_key(&(ost as u32, id.1));
        assert!(
            ids(disk).iter().all(known),
            "{what}: OST {ost} has {:?}, files have {:?}",
            ids(disk),
            report.objects
        );
    }
    let data: BTreeSet<(u64, u64)> = report.data.iter().map(|id| (id.seq, id.oid)).collect();
    assert!(
        ids(&c.disks.mdt).is_subset(&data),
        "{what}: the MDT has {:?}, files have {data:?}",
        ids(&c.disks.mdt)
    );
}

#[tokio::test(start_paused = true)]
async fn objects_of_files_that_were_lost_go_and_no_others() {
    let c = Cluster::start(2, 2, 65536).await;
    // one client lives on, the other is in the servers' process
    let (far, near) = (c.remote_client().await, c.client().await);
    let (v, u) = (User::root(&far), User::root(&near));
    // the first file of a client syncs the MDT
    v.dom_dir("dom", 1).await;
    let data = vec![3u8; 200_000];
    for name in ["safe", "dom/safe"] {
        u.put(name, &data).await.unwrap();
    }
    // nor does the first data of its files on the MDT, from here on: the tables know of their group
    v.put("dom/first", &data).await.unwrap();
    settle().await;
    for name in ["lost", "dom/lost", "gone too"] {
        u.put(name, &data).await.unwrap();
    }
    for name in ["replayed", "dom/replayed"] {
        v.put(name, &data).await.unwrap();
    }
    let open = v.create("open", libc::O_RDWR).await.unwrap();
    v.write(&open, 0, &data).await.unwrap();
    sync_data(&v).await;
    sync_data(&u).await;
    v.unlink("open").await.unwrap();
    let before: usize = c.disks.osts.iter().map(|d| ids(d).len()).sum();
    c.disks.mdt.sync_all().wait().unwrap();
    let c = c.mdt_loses_power().await;
    settle().await;
    v.names("").await.unwrap();
    settle().await;
    let u = User::root(&c.client().await);
    assert_eq!(u.names("").await.unwrap(), ["dom", "replayed", "safe"]);
    for name in ["safe", "dom/safe", "replayed", "dom/replayed"] {
        assert!(u.get(name).await.unwrap() == data, "{name}");
    }
    assert!(
        v.read(&open, 0, 1 << 20).await.unwrap() == data,
        "open without a name"
    );
    v.close(&open).await.unwrap();
    settle().await;
    check(&c, "at the end");
    let after: usize = c.disks.osts.iter().map(|d| ids(d).len()).sum();
    assert_eq!((before, after), (14, 7));
    c.stop().await;
}

/// Programs go with the servers, and one client lives on, while disks lose their power: what the one that lives on was told is
/// there, and every object belongs to a file in the end.
async fn only_orphans_go(seed: u64) {
    const NAMES: [&str; 6] = ["a", "b", "c", "dom/a", "dom/b", "dom/c"];
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut c = Cluster::start_seeded(2, 2, 65536, seed, "").await;
    let far = c.remote_client().await;
    let v = User::root(&far);
    v.dom_dir("dom", 1).await;
    settle().await;
    let mut u = User::root(&c.client().await);
    let mut model: Vec<Option<Vec<u8>>> = vec![None; NAMES.len()];
    // A killed server of this process goes on with its clock, and on the disk of the next: it evicts who is silent for 150 s.
    let mut first_kill = None::<tokio::time::Instant>;
    for step in 0..100u32 {
        if first_kill.is_some_and(|at| at.elapsed() > Duration::from_secs(60)) {
            break;
        }
        let i = rng.below(NAMES.len() as u64) as usize;
        let (mine, other) = (format!("{}.v", NAMES[i]), format!("{}.u", NAMES[i]));
        let data = vec![step as u8; 1 + rng.below(150_000) as usize];
        match rng.below(20) {
            0..=4 => {
                v.put("tmp", &data).await.unwrap();
                v.rename("tmp", &mine, 0).await.unwrap();
                model[i] = Some(data);
            }
            5 if model[i].is_some() => {
                v.unlink(&mine).await.unwrap();
                model[i] = None;
            }
            6..=9 => drop(u.put(&other, &data).await),
            10 | 11 => drop(u.unlink(&other).await),
            12 => c.mdt().target.sync().await.unwrap(),
            13 => c.ost(rng.below(2) as u32).sync().await.unwrap(),
            14..=16 => tokio::time::sleep(Duration::from_millis(rng.below(4000))).await,
            17 => {
                sync_data(&u).await;
                sync_data(&v).await;
                c.disks.mdt.sync_all().wait().unwrap();
            }
            _ => {
                first_kill.get_or_insert_with(tokio::time::Instant::now);
                c = match rng.below(4) {
                    0 => c.osts_lose_power().await,
                    1 => c.kill_and_restart().await,
                    _ => c.mdt_loses_power().await,
                };
                recovered(&c).await;
                u = User::root(&c.client().await);
                if rng.below(2) == 0 {
                    settle().await;
                }
            }
        }
    }
    settle().await;
    for (name, want) in NAMES.iter().zip(&model) {
        let got = v.get(&format!("{name}.v")).await.ok();
        assert!(
            got == *want,
            "seed {seed}: {name}.v has {:?} bytes, not {:?}",
            got.map(|g| g.len()),
            want.as_ref().map(Vec::len)
        );
    }
    // what the living client still had to write, and what the last programs left
    sync_data(&u).await;
    sync_data(&v).await;
    settle().await;
    check(&c, &format!("seed {seed}"));
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn in_any_order_only_orphans_go() {
    for seed in 1..=40 {
        tokio::time::timeout(Duration::from_secs(36_000), only_orphans_go(seed))
            .await
            .expect("it hangs");
    }
}

/// A look through what is left that does not understand a layout removes nothing.
#[tokio::test(start_paused = true)]
async fn nothing_goes_when_a_record_does_not_parse() {
    let c = Cluster::start(1, 1, 65536).await;
    let u = User::root(&c.client().await);
    let safe = u.put("safe", b"data").await.unwrap();
    settle().await;
    u.put("lost", b"data").await.unwrap();
    sync_data(&u).await;
    let mut c = c;
    c.disks.mdt = c.disks.mdt.power_loss();
    let key = coral_server::mdt::table::fid_key(&safe);
    let record = c
        .disks
        .mdt
        .get(coral_server::mdt::table::INODE, &key)
        .unwrap()
        .unwrap();
    let set = |disk: &OsdSim, value: bytes::Bytes| {
        let mut b = coral_osd::Batch::new();
        b.put(coral_server::mdt::table::INODE, key.to_vec(), value);
        disk.commit(b).wait().unwrap();
        disk.sync().wait().unwrap();
    };
    set(&c.disks.mdt, record.slice(..record.len() / 2));
    let c = c.kill_and_restart().await;
    settle().await;
    assert_eq!(ids(&c.disks.osts[0]).len(), 2);
    // mended, the next look finds what it can
    set(&c.disks.mdt, record);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(ids(&c.disks.osts[0]).len(), 1);
    assert_eq!(
        User::root(&c.client().await).get("safe").await.unwrap(),
        b"data"
    );
    c.stop().await;
}
