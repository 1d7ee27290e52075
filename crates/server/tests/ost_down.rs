//! New files while an OST is down: they go to the others (`lustre/lod/lod_qos.c`).

mod mdt_rig;

use coral_wire::layout::{
    LOV_ALL_STRIPES, LOV_MAGIC_SPECIFIC, LOV_OFFSET_DEFAULT, Layout, LovMd, LovOstData,
};
use coral_wire::mds::open as flag;
use coral_wire::{Errno, Fid, OstId};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// OSTs of a new file for which `wanted` is asked.
async fn create(c: &Client, name: &str, wanted: &LovMd) -> Result<Vec<u32>, Errno> {
    let flags = flag::CREAT | flag::WRITE | flag::HAS_EA;
    let o = c
        .open_with(Fid::ROOT, name.as_bytes(), flags, 0o644, wanted.encode())
        .await?;
    let Ok(Layout::Plain(l)) = Layout::decode(&o.md) else {
        panic!("a plain layout")
    };
    c.close(&o).await?;
    Ok(l.objects.iter().map(|s| s.ost_idx).collect())
}

fn wanted(count: u16, first: u16) -> LovMd {
    LovMd::request(1 << 20, count, first, None)
}

fn listed(osts: &[u32]) -> LovMd {
    let objects = osts
        .iter()
        .map(|&ost_idx| LovOstData {
            oi: OstId::default(),
            ost_gen: 0,
            ost_idx,
        })
        .collect();
    LovMd {
        magic: LOV_MAGIC_SPECIFIC,
        objects,
        ..wanted(osts.len() as u16, osts[0] as u16)
    }
}

/// Waits until the allocator sees these OSTs up.
async fn seen_up(rig: &Rig, up: &[u32]) {
    let wait = async {
        loop {
            let now: Vec<u32> = rig
                .mdt()
                .ops
                .core
                .read()
                .osts
                .iter()
                .filter(|o| o.active)
                .map(|o| o.index)
                .collect();
            if now == up {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(60), wait)
            .await
            .is_ok(),
        "{up:?} are not what the MDT sees up"
    );
}

#[tokio::test(start_paused = true)]
async fn new_files_go_round_an_ost_that_is_down() -> TestResult {
    let mut rig = Rig::with_far_osts(3).await;
    let c = rig.client("1@lo").await;
    seen_up(&rig, &[0, 1, 2]).await;
    assert_eq!(create(&c, "all up", &wanted(2, 1)).await?, [1, 2]);

    rig.kill_ost(1).await;
    seen_up(&rig, &[0, 2]).await;
    for i in 0..6 {
        assert_ne!(
            create(&c, &format!("one {i}"), &wanted(1, LOV_OFFSET_DEFAULT)).await?,
            [1]
        );
    }
    assert_eq!(
        create(&c, "all", &wanted(LOV_ALL_STRIPES, LOV_OFFSET_DEFAULT))
            .await?
            .len(),
        2
    );
    assert_eq!(create(&c, "from 1", &wanted(1, 1)).await?, [2]);
    assert_eq!(
        create(&c, "no such OST", &wanted(1, 3)).await,
        Err(Errno::EINVAL)
    );
    assert_eq!(create(&c, "listed", &listed(&[0, 2])).await?, [0, 2]);
    assert_eq!(
        create(&c, "listed down", &listed(&[0, 1])).await,
        Err(Errno::EREMOTEIO)
    );

    rig.kill_ost(0).await;
    rig.kill_ost(2).await;
    // none is there: they are expected back, as after a restart of all
    seen_up(&rig, &[0, 1, 2]).await;
    assert_eq!(create(&c, "none", &wanted(1, 1)).await?, [1]);

    rig.start_ost(1).await;
    seen_up(&rig, &[1]).await;
    assert_eq!(
        create(&c, "back", &wanted(1, LOV_OFFSET_DEFAULT)).await?,
        [1]
    );
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_ost_that_comes_long_after_its_mdt_is_used() -> TestResult {
    let mut rig = Rig::with_far_osts(2).await;
    rig.kill().await;
    rig.kill_ost(0).await;
    rig.restart().await;
    seen_up(&rig, &[1]).await;
    tokio::time::sleep(std::time::Duration::from_secs(100)).await;
    rig.start_ost(0).await;
    seen_up(&rig, &[0, 1]).await;
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_ost_that_does_not_answer_gets_no_files() -> TestResult {
    use coral_lnet::{FaultAction, FaultRule};
    let rig = Rig::with_far_osts(2).await;
    seen_up(&rig, &[0, 1]).await;
    let ost = rig.far.as_ref().expect("far OSTs")[0].as_ref();
    let node = ost.expect("running").node();
    node.faults().add(FaultRule::all(FaultAction::Drop));
    seen_up(&rig, &[1]).await;
    rig.stop().await;
    Ok(())
}
