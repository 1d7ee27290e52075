//! Rows, notes and groups together, on a disk that loses what was not synced.

use bytes::Bytes;
use coral_osd::OsdMem;

use super::*;

fn id(oid: u64) -> ObjectId {
    ObjectId { seq: 0, oid }
}

fn usage_of(osd: &OsdMem, files: Option<Arc<FileThere>>) -> Arc<OstUsage> {
    let osd = Arc::new(osd.clone());
    Arc::new(OstUsage::new(osd.clone(), Device::from(osd), files))
}

/// A start of a target that has had `instance` starts before.
async fn started(osd: &OsdMem, instance: u32) -> Arc<OstUsage> {
    let usage = usage_of(osd, None);
    let kv = Device::from(Arc::new(osd.clone()));
    let to_count = match table::counted_by(osd).unwrap() == Some(instance) {
        true => ToCount::Groups,
        false => ToCount::All,
    };
    drop(kv);
    usage.start(to_count, instance + 1).unwrap();
    let counting = usage.counting.lock().take();
    if let Some(counting) = counting {
        counting.await.unwrap();
    }
    usage
}

async fn write(usage: &Arc<OstUsage>, oid: u64, off: u64) {
    let changing = usage.changing(id(oid)).await.unwrap();
    let data = [Bytes::from_static(b"x")];
    usage.objects.write(id(oid), off, &data).await.unwrap();
    drop(changing);
}

async fn remove(usage: &Arc<OstUsage>, oid: u64) {
    let changing = usage.changing(id(oid)).await.unwrap();
    usage.objects.destroy(id(oid)).await.unwrap();
    drop(changing);
}

async fn sync(usage: &Arc<OstUsage>) {
    let began = usage.sync_begins();
    usage.objects.sync_all().await.unwrap();
    usage.synced(began).await;
    usage.kv.sync().await.unwrap();
}

async fn root(usage: &Arc<OstUsage>) -> Option<(u64, u64)> {
    let used = usage.of_id(0, 0).await.unwrap();
    used.map(|u| (u.inodes, u.bytes))
}

/// What the objects are, and what the tables say of them.
fn agree(osd: &OsdMem) {
    let (mut objects, mut rows) = (Used::default(), Used::default());
    for (_, a) in osd.objects() {
        objects = objects.plus(Used {
            inodes: 1,
            bytes: a.blocks * BLOCK_BYTES,
        });
    }
    for id in table::objects_after(osd, None, usize::MAX).unwrap() {
        let bytes = table::object(osd, id).unwrap().unwrap().1;
        rows = rows.plus(Used { inodes: 1, bytes });
    }
    let sum = table::sum(osd, &Owner::default()).unwrap();
    assert_eq!((rows, sum), (objects, objects));
}

#[tokio::test]
async fn what_changes_during_a_sync_stays_noted() {
    let osd = OsdMem::new();
    let usage = usage_of(&osd, None);
    assert_eq!(root(&usage).await, None, "nothing has been counted yet");
    let usage = started(&osd, 0).await;
    write(&usage, 1, 0).await;
    assert_eq!(root(&usage).await, Some((1, 4096)));
    write(&usage, 1, 4096).await;
    write(&usage, 2, 0).await;
    let began = usage.sync_begins();
    write(&usage, 1, 8192).await;
    usage.synced(began).await;
    let noted: Vec<_> = usage.noted(u64::MAX).into_iter().map(|n| n.0).collect();
    assert_eq!(noted, [id(1)]);
    assert_eq!(root(&usage).await, Some((2, 16384)));
    remove(&usage, 1).await;
    sync(&usage).await;
    assert_eq!(
        (root(&usage).await, usage.noted(u64::MAX)),
        (Some((1, 4096)), vec![])
    );
    agree(&osd);
}

#[tokio::test]
async fn an_object_of_a_file_is_the_files_owners_and_nobodys_without_one() {
    let osd = OsdMem::new();
    for oid in [1, 2] {
        let data = [Bytes::from_static(b"x")];
        osd.write(id(oid), 0, &data).await.unwrap();
    }
    let owner = Owner {
        uid: 7,
        gid: 8,
        projid: 9,
    };
    let files = move |of: ObjectId| match of == id(1) {
        true => Ok(owner),
        false => Err(coral_wire::Errno::ENOENT),
    };
    let usage = usage_of(&osd, Some(Arc::new(files)));
    usage.start(ToCount::All, 1).unwrap();
    let counting = usage.counting.lock().take().unwrap();
    counting.await.unwrap();
    let used = async |kind, id| usage.of_id(kind, id).await.unwrap();
    let one = Some(Used {
        inodes: 1,
        bytes: 4096,
    });
    assert_eq!(
        [
            used(0, 7).await,
            used(1, 8).await,
            used(2, 9).await,
            used(0, 0).await
        ],
        [one, one, one, Some(Used::default())]
    );
}

#[tokio::test]
async fn a_target_without_tables_is_counted_once() {
    let osd = OsdMem::new();
    let data = [Bytes::from_static(b"x")];
    for oid in 0..200 {
        osd.write(id(oid * 100), 0, &data).await.unwrap();
    }
    let usage = started(&osd, 0).await;
    assert_eq!(root(&usage).await, Some((200, 200 * 4096)));
    usage.stop().await;
    sync(&usage).await;
    assert_eq!(table::groups(&osd).unwrap(), []);
    // an older program makes one object and removes another
    osd.write(id(5), 0, &data).await.unwrap();
    osd.destroy(id(100)).await.unwrap();
    osd.destroy(id(200)).await.unwrap();
    let usage = started(&osd, 2).await;
    assert_eq!(root(&usage).await, Some((199, 199 * 4096)));
    agree(&osd);
}

#[tokio::test]
async fn a_start_looks_at_nothing_after_a_clean_stop_and_at_few_groups_after_a_crash() {
    let osd = OsdMem::new();
    let usage = started(&osd, 0).await;
    for n in 0..3 * KEPT_GROUPS as u64 {
        write(&usage, n * table::GROUP_OBJECTS, 0).await;
        sync(&usage).await;
    }
    let kept = table::groups(&osd).unwrap();
    assert_eq!(kept.len(), KEPT_GROUPS);
    assert!(kept.contains(&Group::of(id(
        (3 * KEPT_GROUPS as u64 - 1) * table::GROUP_OBJECTS
    ))));
    usage.stop().await;
    sync(&usage).await;
    assert_eq!(table::groups(&osd).unwrap(), []);
    let usage = usage_of(&osd, None);
    usage.start(ToCount::Groups, 2).unwrap();
    assert!(usage.counting.lock().is_none(), "nothing to count");
    assert_eq!(
        root(&usage).await,
        Some((3 * KEPT_GROUPS as u64, 3 * KEPT_GROUPS as u64 * 4096))
    );
}

/// The process is killed, or the machine loses power with any part of what was not synced, at any step: the next start counts what
/// is there.
#[tokio::test]
async fn after_every_crash_the_tables_say_what_is_there() {
    let (mut crashes, mut changed) = (0, 0);
    for seed in 0..40u64 {
        let disk = coral_osd::OsdSim::new(OsdMem::new(), coral_osd::DiskModel::INSTANT, seed);
        let usage = started(&disk, 0).await;
        let mut random = seed;
        for step in 0..30 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let what = random >> 33;
            let oid = what % 5 * 3000;
            match what % 7 {
                0 => remove(&usage, oid).await,
                1 => sync(&usage).await,
                2 => drop(root(&usage).await),
                _ => write(&usage, oid, what % 3 * 4096).await,
            }
            // what a kill leaves, and what some losses of power leave
            let killed = osd_after_kill(&disk);
            for found in std::iter::once(killed).chain((0..3).map(|_| (*disk.power_loss()).clone()))
            {
                crashes += 1;
                let before = table::sum(&found, &Owner::default()).unwrap();
                let counted = table::counted_by(&found).unwrap();
                let again = started(&found, counted.unwrap_or(0)).await;
                assert!(root(&again).await.is_some(), "seed {seed}, step {step}");
                agree(&found);
                changed += u32::from(before != table::sum(&found, &Owner::default()).unwrap());
            }
        }
    }
    assert!(
        crashes == 4800 && changed > 500,
        "{crashes} crashes, of which {changed} left something to count"
    );
}

/// The device as a killed process leaves it: everything that was done is there, and nothing that was in memory.
fn osd_after_kill(disk: &coral_osd::OsdSim) -> OsdMem {
    disk.copy()
}
