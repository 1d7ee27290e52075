//! Clusters of several shapes, each used by a client.

use std::time::Duration;

use bytes::Bytes;
use coral_client::{Cred, Llite};
use coral_lnet::{LinkModel, MemNet, Nid, parse_routes};
use coral_node::{Client, Cluster, ClusterError};
use coral_wire::Errno;
use std::sync::Arc;

type TestResult = Result<(), Box<dyn std::error::Error>>;

const O_RDWR: u32 = 2;
const LEN: usize = 300_000;

fn nid(text: &str) -> Nid {
    text.parse().expect("a NID")
}

/// Makes a file with [`LEN`] bytes like `byte`; with `sync` they are on disk when this is done.
async fn put(fs: &Arc<Llite>, name: &str, byte: u8, sync: bool) -> Result<(), Errno> {
    let me = Cred::root();
    let (_, file) = fs
        .create(&me, fs.root(), name.as_bytes(), 0o644, O_RDWR)
        .await?;
    let data = Bytes::from(vec![byte; LEN]);
    assert_eq!(fs.write(&me, &file, 0, data.into()).await?, LEN);
    if sync {
        fs.fsync(&file, false).await?;
    }
    Ok(fs.release(&file).await?)
}

/// Whether a file holds [`LEN`] bytes like `byte`.
async fn holds(fs: &Arc<Llite>, name: &str, byte: u8) -> Result<bool, Errno> {
    let me = Cred::root();
    let found = fs.lookup(&me, fs.root(), name.as_bytes()).await?;
    let file = fs.open(&me, found.attr.fid, 0).await?;
    let data = fs.read(&file, 0, 1 << 20).await?.copy_to_bytes();
    fs.release(&file).await?;
    Ok(data.len() == LEN && data.iter().all(|b| *b == byte))
}

#[tokio::test(start_paused = true)]
async fn targets_on_nodes_of_their_own_die_and_come_back_one_by_one() -> TestResult {
    let (mgs, mdt, osts) = (
        nid("10.0.0.2@tcp"),
        nid("10.0.0.3@tcp"),
        [nid("10.0.0.4@tcp"), nid("10.0.0.5@tcp")],
    );
    let mut cluster = Cluster::builder()
        .osts(2)
        .stripes(2, 65536)
        .mgs_at(mgs)
        .mdt_at(mdt)
        .ost_at(0, osts[0])
        .ost_at(1, osts[1])
        .start()
        .await?;
    assert_eq!(cluster.server_nids(), [mgs, mdt, osts[0], osts[1]]);
    assert_eq!(cluster.mgs_nid(), mgs);
    let fs = cluster.remote_client().await?;
    put(&fs, "f", 1, false).await?;
    for (life, at) in [osts[1], mdt, mgs, osts[0]].into_iter().enumerate() {
        cluster.kill(at).await?;
        assert!(cluster.servers_at(at).is_none());
        cluster.restart(at).await?;
        assert!(holds(&fs, "f", 1).await?, "after the end of {at}");
        // an OST gets new files again when the MDT has found it to be back
        tokio::time::sleep(Duration::from_secs(60)).await;
        put(&fs, &format!("{life}"), 2, false).await?;
    }
    let other = cluster.remote_client().await?;
    for life in 0..4 {
        assert!(holds(&other, &format!("{life}"), 2).await?);
    }
    assert_eq!(cluster.osts().len(), 2);
    let disks = cluster.disks.osts.iter();
    let sizes: Vec<usize> = disks.map(|d| d.objects().len()).collect();
    assert_eq!(sizes, [5, 5], "every file lies on both");
    fs.umount().await;
    other.umount().await;
    cluster.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_was_synced_survives_power_loss_without_its_client() -> TestResult {
    let mut cluster = Cluster::builder().osts(2).stripes(2, 65536).start().await?;
    let fs = cluster.remote_client().await?;
    put(&fs, "synced", 3, true).await?;
    // the client dies with the machines
    fs.node().shutdown().await;
    drop(fs);
    cluster.osts_lose_power().await?;
    cluster.mdt_loses_power().await?;
    let servers = cluster.servers_at(cluster.mgs_nid()).ok_or("it runs")?;
    assert_eq!(
        servers.recovering().len(),
        3,
        "the MDT and the OSTs wait for it"
    );
    assert_eq!(
        servers.abort_recovery(|name| name == "coral-OST0001"),
        [("coral-OST0001".to_owned(), 1)],
        "the client; the MDT has died with the OST"
    );
    assert_eq!(servers.recovering().len(), 2);
    servers.abort_recovery(|_| true);
    let fs = cluster.client().await?;
    assert!(holds(&fs, "synced", 3).await?);
    fs.umount().await;
    cluster.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn two_file_systems_share_a_network() -> TestResult {
    let net = MemNet::alone();
    let one = Cluster::builder().on(net.clone()).fsname("one");
    let one = one.start().await?;
    let taken = Cluster::builder().on(net.clone()).fsname("two");
    assert!(matches!(
        taken.clone().start().await,
        Err(ClusterError::Node(_))
    ));
    let two = taken.server_at(nid("10.0.0.2@tcp")).start().await?;
    let (a, b) = (one.client().await?, two.client().await?);
    assert_ne!(a.node().nid(), b.node().nid());
    put(&a, "f", 1, false).await?;
    put(&b, "f", 2, false).await?;
    assert!(holds(&a, "f", 1).await? && holds(&b, "f", 2).await?);
    assert_eq!((a.fsname(), b.fsname()), ("one", "two"));
    for client in [a, b] {
        client.umount().await;
    }
    one.stop().await;
    two.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_client_mounts_through_a_router() -> TestResult {
    let cluster = Cluster::builder()
        .routes(parse_routes("tcp1 10.0.0.8@tcp")?)
        .router(&[nid("10.1.0.8@tcp1"), nid("10.0.0.8@tcp")])
        .start()
        .await?;
    let far = cluster
        .client_at(nid("10.1.0.9@tcp1"), &parse_routes("tcp 10.1.0.8@tcp1")?)
        .await?;
    put(&far, "f", 7, true).await?;
    assert!(cluster.routers()[0].stats().routed.value() > 0);
    far.umount().await;
    cluster.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_slow_link_takes_its_time() -> TestResult {
    let (server, client) = (nid("10.0.0.1@tcp"), nid("10.0.0.9@tcp"));
    let model = LinkModel {
        delay: Duration::from_millis(100),
        ..LinkModel::default()
    };
    let cluster = Cluster::builder().link(server, client, model);
    let cluster = cluster.start().await?;
    let times = async |fs: &Client| {
        let start = tokio::time::Instant::now();
        put(fs, &format!("{}", fs.node().nid()), 1, true).await?;
        Ok::<_, Errno>(start.elapsed())
    };
    let slow = cluster.client_at(client, &[]).await?;
    let near = cluster.client_at(nid("10.0.0.10@tcp"), &[]).await?;
    let (slow_time, near_time) = (times(&slow).await?, times(&near).await?);
    assert!(slow_time >= Duration::from_millis(400), "{slow_time:?}");
    assert!(near_time < Duration::from_millis(100), "{near_time:?}");
    slow.umount().await;
    near.umount().await;
    cluster.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_fails_leaves_no_node() -> TestResult {
    let mut cluster = Cluster::builder().start().await?;
    let (server, client) = (cluster.mgs_nid(), nid("10.0.0.9@tcp"));
    cluster.kill(server).await?;
    let lost = cluster.client_at(client, &[]).await.err();
    assert!(matches!(lost, Some(ClusterError::Mount(_))), "{lost:?}");
    cluster.restart(server).await?;
    let fs = cluster.client_at(client, &[]).await?;
    fs.umount().await;
    cluster.stop().await;
    Ok(())
}

#[tokio::test]
async fn no_mdt_is_refused() {
    let why = Cluster::builder().mdts(0).start().await.err();
    assert!(matches!(why, Some(ClusterError::NoMdt)));
}
