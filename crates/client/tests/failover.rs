//! A target that moves to its failover node: clients try the NIDs the configuration names, one after the other.

mod common;

use std::time::Duration;

use coral_osd::OsdMem;
use coral_server::mdt::OstTarget;
use coral_wire::layout::LovMd;
use common::*;

const FIRST: &str = "10.0.9.1@tcp";
const SECOND: &str = "10.0.9.2@tcp";

#[tokio::test(start_paused = true)]
async fn io_goes_on_at_the_second_node_of_an_ost() {
    let c = Cluster::start(1, 1, 65536).await;
    let osd = OsdMem::new();
    let (node, server) = c.serve_ost(1, &osd, FIRST, SECOND).await;
    let at = |index: u32, nids: &[&str]| OstTarget {
        index,
        uuid: format!("{FSNAME}-OST{index:04x}_UUID"),
        nids: nids.iter().map(|n| n.parse().unwrap()).collect(),
        active: true,
    };
    c.mdt.set_osts(vec![at(0, &[SERVER]), at(1, &[FIRST, SECOND])]);
    // mounted while the first serves: what it knows of the second is the configuration's word
    let u = User::root(&c.remote_client().await);
    let d = u.mkdir("d").await.unwrap();
    u.fs.setxattr(&u.cred, d, b"lustre.lov", LovMd::request(65536, 1, 1, None).encode(), 0).await.unwrap();
    let fh = u.create("d/f", libc::O_RDWR).await.unwrap();
    u.write(&fh, 0, &[1; 100_000]).await.unwrap();
    assert!(u.fs.layout(fh.fid()).await.unwrap().len() > 32);

    server.stop_services().await;
    node.shutdown().await;
    drop((server, node));
    let (node, server) = c.serve_ost(1, &osd, SECOND, FIRST).await;
    let done = async {
        assert_eq!(u.read(&fh, 99_999, 10).await.unwrap(), [1]);
        u.write(&fh, 100_000, &[2; 10]).await.unwrap();
        assert_eq!(u.stat("d/f").await.unwrap().size, 100_010);
        u.put("d/g", &[3; 10]).await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(600), done).await.expect("the second node is tried");
    u.close(&fh).await.unwrap();

    // and who mounts now finds it at the second node at once
    let v = User::root(&c.remote_client().await);
    assert_eq!(v.get("d/g").await.unwrap(), [3; 10]);
    v.fs.umount().await;
    u.fs.umount().await;
    server.stop().await;
    node.shutdown().await;
    c.stop().await;
}
