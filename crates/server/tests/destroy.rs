//! Objects of removed files go for good, and those of a file that was given away are its new owner's, whoever dies meanwhile
//! (`lustre/osp/osp_sync.c`).

mod mdt_rig;

use std::time::Duration;

use bytes::Bytes;
use coral_osd::{ObjectId, Objects};
use coral_wire::Fid;
use coral_wire::layout::Layout;
use coral_wire::mds::{attr as sa, open as flag};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Waits until `done`; a background task is at work.
async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .is_ok(),
        "{what}"
    );
}

/// A file with data that is on the OST's disk: its object.
async fn file(rig: &Rig, c: &Client, name: &[u8]) -> Result<ObjectId, Box<dyn std::error::Error>> {
    let o = c
        .open(Fid::ROOT, name, flag::CREAT | flag::WRITE, 0o644)
        .await
        .map_err(|e| format!("{e}"))?;
    c.close(&o).await.map_err(|e| format!("{e}"))?;
    let Layout::Plain(l) = Layout::decode(&o.md)? else {
        panic!("a plain layout")
    };
    let id = ObjectId {
        seq: 0,
        oid: l.objects[0].oi.object_id(),
    };
    rig.real[0]
        .write(id, 0, &[Bytes::from_static(b"data")])
        .wait()?;
    rig.real[0].sync_object(id).wait()?;
    Ok(id)
}

fn there(rig: &Rig, id: ObjectId) -> bool {
    rig.real[0].attr(id).expect("read").is_some()
}

#[tokio::test(start_paused = true)]
async fn an_object_that_comes_back_with_a_power_loss_is_destroyed_again() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    let c = rig.client("1@lo").await;
    let id = file(&rig, &c, b"f").await?;
    c.unlink(Fid::ROOT, b"f", false).await?;
    until("the object is gone", || !there(&rig, id)).await;
    assert_eq!(rig.destroy_pending(), 1, "not on the OST's disk yet");

    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert!(there(&rig, id), "it came back");
    rig.start_ost(0).await;
    until("it is gone again", || !there(&rig, id)).await;
    until("for good", || rig.destroy_pending() == 0).await;
    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert!(!there(&rig, id));
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_new_start_of_the_mdt_waits_for_the_osts_disk_too() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    let c = rig.client("1@lo").await;
    let id = file(&rig, &c, b"f").await?;
    c.unlink(Fid::ROOT, b"f", false).await?;
    until("the object is gone", || !there(&rig, id)).await;
    rig.kill().await;
    rig.restart().await;
    // the MDT asks again, and is told that there is no such object
    let gone_before = rig.real[0].power_loss();
    until("the row is gone", || rig.destroy_pending() == 0).await;
    assert!(gone_before.attr(id)?.is_some(), "it was not on disk then");
    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert!(
        !there(&rig, id),
        "a row goes when its object can never come back"
    );
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_owner_lost_with_a_power_loss_is_told_again() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    let c = rig.client("1@lo").await;
    let id = file(&rig, &c, b"f").await?;
    let fid = c.lookup(Fid::ROOT, b"f").await?.body.fid1;
    let owner = |rig: &Rig| rig.real[0].attr(id).expect("read").map(|a| (a.uid, a.gid));
    c.setattr(fid, |r| (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 7, 8))
        .await?;
    until("the owner is told", || owner(&rig) == Some((7, 8))).await;
    assert_eq!(rig.owners_pending(), 1, "not on the OST's disk yet");

    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert_ne!(owner(&rig), Some((7, 8)), "it was lost");
    rig.start_ost(0).await;
    until("it is told again", || owner(&rig) == Some((7, 8))).await;
    // given away once more before the OST has committed that
    c.setattr(fid, |r| (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 9, 8))
        .await?;
    until("the next one too", || owner(&rig) == Some((9, 8))).await;
    until("for good", || rig.owners_pending() == 0).await;
    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert_eq!(owner(&rig), Some((9, 8)));
    rig.stop().await;
    Ok(())
}

/// An OST that forgets in a loss of power both the owner it was told and the destruction that came after.
#[tokio::test(start_paused = true)]
async fn an_object_given_away_and_removed_does_not_come_back() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    let c = rig.client("1@lo").await;
    let id = file(&rig, &c, b"f").await?;
    let fid = c.lookup(Fid::ROOT, b"f").await?.body.fid1;
    c.setattr(fid, |r| (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 7, 8))
        .await?;
    until("the owner is told", || {
        rig.real[0]
            .attr(id)
            .expect("read")
            .is_some_and(|a| a.uid == 7)
    })
    .await;
    c.unlink(Fid::ROOT, b"f", false).await?;
    until("the object is gone", || !there(&rig, id)).await;
    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert!(there(&rig, id), "it came back");
    rig.start_ost(0).await;
    until("nothing is left to do", || {
        rig.destroy_pending() + rig.owners_pending() == 0
    })
    .await;
    rig.kill_ost(0).await;
    rig.lose_ost_power(0);
    assert!(!there(&rig, id));
    rig.stop().await;
    Ok(())
}

/// Until a removal is on the MDT's disk, the loss of power takes it back: the file is there again, with its data.
#[tokio::test(start_paused = true)]
async fn objects_are_destroyed_when_the_removal_is_on_disk() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    rig.kill().await;
    rig.sync_interval = Duration::from_secs(3600);
    rig.restart().await;
    // until what the MDT finds in its tables is dealt with
    tokio::time::sleep(Duration::from_secs(30)).await;
    let c = rig.client("1@lo").await;
    let id = file(&rig, &c, b"f").await?;
    rig.mdt().target.sync().await?;
    c.unlink(Fid::ROOT, b"f", false).await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(there(&rig, id));
    rig.kill().await;
    rig.lose_power();
    rig.restart().await;
    let c = rig.client("2@lo").await;
    c.lookup(Fid::ROOT, b"f").await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(there(&rig, id), "it has its name again");
    c.unlink(Fid::ROOT, b"f", false).await?;
    rig.mdt().target.sync().await?;
    until("the object is gone", || !there(&rig, id)).await;
    rig.stop().await;
    Ok(())
}

/// An owner told and then taken back by a loss of power would stay with the object: nobody tells it again.
#[tokio::test(start_paused = true)]
async fn an_owner_is_told_when_the_change_is_on_disk() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    rig.kill().await;
    rig.sync_interval = Duration::from_secs(3600);
    rig.restart().await;
    // until what the MDT finds in its tables is dealt with
    tokio::time::sleep(Duration::from_secs(30)).await;
    let c = rig.client("1@lo").await;
    let id = file(&rig, &c, b"f").await?;
    let fid = c.lookup(Fid::ROOT, b"f").await?.body.fid1;
    rig.mdt().target.sync().await?;
    let owner = |rig: &Rig| rig.real[0].attr(id).expect("read").map(|a| (a.uid, a.gid));
    let before = owner(&rig);
    c.setattr(fid, |r| (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 7, 8))
        .await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(owner(&rig), before);
    rig.mdt().target.sync().await?;
    until("the owner is told", || owner(&rig) == Some((7, 8))).await;
    rig.stop().await;
    Ok(())
}

/// Space that somebody may need at once is freed by a sync of its own: with an OST that is nearly full, or when many objects wait.
#[tokio::test(start_paused = true)]
async fn a_full_ost_gets_its_space_back_before_the_next_periodic_sync() -> TestResult {
    const CAPACITY: usize = 8 << 20;
    let mut rig = Rig::with_far_osts(1).await;
    rig.kill().await;
    rig.kill_ost(0).await;
    rig.real[0] = std::sync::Arc::new(coral_osd::OsdMem::with_capacity(CAPACITY as u64));
    rig.start_ost(0).await;
    rig.sync_interval = Duration::from_secs(3600);
    rig.restart().await;
    // until what the MDT finds in its tables is dealt with
    tokio::time::sleep(Duration::from_secs(30)).await;
    let c = rig.client("1@lo").await;
    let (roomy, full) = (
        file(&rig, &c, b"roomy").await?,
        file(&rig, &c, b"full").await?,
    );
    c.unlink(Fid::ROOT, b"roomy", false).await?;
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(there(&rig, roomy), "there is no hurry");
    rig.real[0]
        .write(full, 0, &[vec![1; CAPACITY - (1 << 19)].into()])
        .wait()?;
    c.unlink(Fid::ROOT, b"full", false).await?;
    // the clock is the test's: the MDT asks for the space every second while objects wait
    let removed = tokio::time::Instant::now();
    until("the space is free", || {
        !there(&rig, full) && !there(&rig, roomy)
    })
    .await;
    assert!(removed.elapsed() < Duration::from_secs(2));
    rig.stop().await;
    Ok(())
}

/// The MDT destroys what waits for that while a client has yet to come back and replay what the MDT lost.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_late_replays_all_that_was_lost() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    let c = rig.client("10.0.5.1@tcp").await;
    let mut ids = Vec::new();
    for i in 0..20 {
        ids.push(file(&rig, &c, format!("f{i}").as_bytes()).await?);
    }
    for i in 0..20 {
        c.unlink(Fid::ROOT, format!("f{i}").as_bytes(), false)
            .await?;
    }
    rig.mdt().target.sync().await?;
    let mut want = vec![".".to_owned(), "..".to_owned()];
    for i in 0..40 {
        want.push(format!("d{i}"));
        c.mkdir(Fid::ROOT, want[i + 2].as_bytes()).await?;
    }
    rig.kill().await;
    rig.lose_power();
    assert!(rig.destroy_pending() > 0, "objects wait");
    rig.restart().await;
    // longer than the MDT needs to forget what was destroyed, and to sync that
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(rig.mdt().target.in_recovery() && ids.iter().all(|id| !there(&rig, *id)));
    let mut got = c.names(Fid::ROOT).await?;
    want.sort();
    got.sort();
    assert_eq!(got, want);
    rig.stop().await;
    Ok(())
}
