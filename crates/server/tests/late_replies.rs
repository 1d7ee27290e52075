//! Replies that the MDT leaves to the end of a batch, where its disk takes long.

mod mdt_rig;

use std::sync::Arc;
use std::time::Duration;

use coral_osd::{DiskModel, OsdMem, OsdSim};
use coral_wire::Fid;
use mdt_rig::Rig;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// The client is asked to wait, as for any other request, and is told when all is stored.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_slow_disk_is_asked_to_wait() -> TestResult {
    let disk = OsdSim::new(OsdMem::new(), DiskModel::INSTANT, 1);
    let rig = Rig::on(2, OsdMem::new(), Arc::new(disk.clone())).await;
    let a = rig.client("1@lo").await;
    let d = a.mkdir(Fid::ROOT, b"d").await?;
    let mut fids = Vec::new();
    for name in [b"f0", b"f1"] {
        fids.push(a.mknod(d, name, 0o100644).await?);
    }
    let lent = a.lend(d, &[]).await?;
    assert!(a.has_lock(&lent));
    let stats = a.import.stats();
    let connects = stats.connects.value();
    assert_eq!(stats.early.value(), 0);

    disk.set_model(DiskModel {
        write_latency: Duration::from_secs(100),
        ..DiskModel::INSTANT
    });
    a.unlink_lent(d, b"f0\0", &fids[..1]).await?;
    disk.set_model(DiskModel::INSTANT);
    assert!(stats.early.value() > 0);
    let again = (stats.timeouts.value(), stats.resent.value());
    assert_eq!((again, stats.connects.value()), ((0, 0), connects));

    a.unlink_lent(d, b"f1\0", &fids[1..]).await?;
    assert_eq!(a.names(d).await?, [".", ".."]);
    rig.stop().await;
    Ok(())
}
