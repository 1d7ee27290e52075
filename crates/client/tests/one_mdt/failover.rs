//! A target that moves to its failover node: clients try the NIDs the configuration names, one after the other.

use std::time::Duration;

use crate::common::*;
use coral_node::Servers;
use coral_osd::OsdSim;
use coral_wire::Errno;
use coral_wire::layout::LovMd;

const FIRST: &str = "10.0.9.1@tcp";
const SECOND: &str = "10.0.9.2@tcp";

/// OST 0 with the other servers, OST 1 at `FIRST`, or `SECOND` should it move.
async fn two_places(osd: &OsdSim) -> (Cluster, Servers) {
    let c = Cluster::start(1, 1, 65536).await;
    let far = c.serve_ost(1, osd, FIRST, SECOND).await;
    let at = |index: u32, nids: &[&str]| c.ost_target(index, nids.iter().map(|n| nid(n)).collect());
    c.mdt()
        .set_osts(vec![at(0, &[SERVER]), at(1, &[FIRST, SECOND])]);
    (c, far)
}

#[tokio::test(start_paused = true)]
async fn what_needs_a_deactivated_ost_fails_and_the_rest_goes_on() {
    let osd = OsdSim::default();
    let (c, far) = two_places(&osd).await;
    let u = User::root(&c.remote_client().await);
    for (dir, ost) in [("there", 0), ("gone", 1)] {
        let d = u.mkdir(dir).await.unwrap();
        u.fs.setxattr(
            &u.cred,
            d,
            b"lustre.lov",
            LovMd::request(65536, 1, ost, None).encode(),
            0,
        )
        .await
        .unwrap();
        u.put(&format!("{dir}/f"), &[7; 1000]).await.unwrap();
    }
    u.put("gone/shut", &[7; 1000]).await.unwrap();
    let fh = u.open("gone/f", libc::O_RDONLY).await.unwrap();
    far.kill().await;
    let active =
        u.fs.params()
            .into_iter()
            .find(|(n, _)| n.contains("OST0001") && n.ends_with(".active"))
            .expect("there for each OST")
            .0;
    let deactivate = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        u.fs.set_param(&active, "0").await.unwrap();
    };
    let (waited, ()) = tokio::join!(u.read(&fh, 0, 10), deactivate);
    assert_eq!(
        waited,
        Err(Errno::EIO),
        "a read that was waiting for the server"
    );
    assert_eq!(
        u.read(&fh, 0, 10).await,
        Err(Errno::EIO),
        "a read that comes later"
    );
    assert_eq!(u.get("there/f").await.unwrap(), [7; 1000]);
    assert!(u.fs.params().contains(&(active.clone(), "0".to_owned())));
    let dir = u.fid("gone").await.unwrap();
    let entry = u.fs.lookup(&u.cred, dir, b"shut").await.unwrap();
    assert!(
        entry.attr_ttl.is_zero() && u.fs.layout(entry.attr.fid).await.unwrap().len() > 32,
        "it has a name and a layout"
    );
    assert_eq!(
        u.stat("gone/shut").await.err(),
        Some(Errno::EIO),
        "and no size"
    );
    assert_eq!(
        u.fs.lookup(&u.cred, dir, b"f").await.err().map(Errno::from),
        Some(Errno::EIO),
        "open: its pages must not be cut"
    );
    let targets =
        u.fs.getxattr(&u.cred, u.fs.root(), b"lustre.targets.json")
            .await
            .unwrap();
    assert!(
        String::from_utf8_lossy(&targets)
            .contains(r#"test-OST0001_UUID","active":false,"errno":61}]"#)
    );
    assert_eq!(
        u.fs.set_param(&active, "2").await.map_err(Errno::from),
        Err(Errno::EINVAL)
    );

    let far = c.serve_ost(1, &osd, FIRST, SECOND).await;
    u.fs.set_param(&active, "1").await.unwrap();
    assert_eq!(u.read(&fh, 0, 10).await.unwrap(), [7; 10]);
    u.close(&fh).await.unwrap();
    u.fs.umount().await;
    far.stop().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn io_goes_on_at_the_second_node_of_an_ost() {
    let osd = OsdSim::default();
    let (c, far) = two_places(&osd).await;
    // mounted while the first serves: what it knows of the second is the configuration's word
    let u = User::root(&c.remote_client().await);
    let d = u.mkdir("d").await.unwrap();
    u.fs.setxattr(
        &u.cred,
        d,
        b"lustre.lov",
        LovMd::request(65536, 1, 1, None).encode(),
        0,
    )
    .await
    .unwrap();
    let fh = u.create("d/f", libc::O_RDWR).await.unwrap();
    u.write(&fh, 0, &[1; 100_000]).await.unwrap();
    assert!(u.fs.layout(fh.fid()).await.unwrap().len() > 32);

    far.kill().await;
    let far = c.serve_ost(1, &osd, SECOND, FIRST).await;
    let done = async {
        assert_eq!(u.read(&fh, 99_999, 10).await.unwrap(), [1]);
        u.write(&fh, 100_000, &[2; 10]).await.unwrap();
        assert_eq!(u.stat("d/f").await.unwrap().size, 100_010);
        u.put("d/g", &[3; 10]).await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(600), done)
        .await
        .expect("the second node is tried");
    u.close(&fh).await.unwrap();

    // and who mounts now finds it at the second node at once
    let v = User::root(&c.remote_client().await);
    assert_eq!(v.get("d/g").await.unwrap(), [3; 10]);
    v.fs.umount().await;
    u.fs.umount().await;
    far.stop().await;
    c.stop().await;
}

/// OSTs that were left for want of use and die meanwhile are found dead only when they are asked: all at once.
#[tokio::test(start_paused = true)]
async fn targets_that_are_down_are_told_together() {
    let c = Cluster::start(1, 1, 65536).await;
    let mut far = Vec::new();
    for i in 1..4u32 {
        let at = format!("10.0.9.{i}@tcp");
        far.push(c.serve_ost(i, &OsdSim::default(), &at, &at).await);
    }
    let u = User::root(&c.remote_client().await);
    let own = async |what: &str| {
        String::from_utf8(
            u.fs.getxattr(&u.cred, u.fs.root(), what.as_bytes())
                .await
                .unwrap()
                .to_vec(),
        )
        .unwrap()
    };
    tokio::time::sleep(Duration::from_secs(120)).await;
    for servers in far {
        servers.kill().await;
    }
    let ((), sent) = rpcs(&u.fs, async {
        assert_eq!(
            own("lustre.targets.json").await.matches("true").count(),
            6,
            "as far as is known"
        )
    })
    .await;
    assert!(sent.is_empty(), "{sent:?}");
    // each may take 10 s
    let space = tokio::time::timeout(Duration::from_secs(15), own("lustre.statfs.json"))
        .await
        .expect("one after the other is too long");
    assert_eq!(
        space.matches("\"active\":false,\"errno\":11}").count(),
        3,
        "{space}"
    );
    assert_eq!(
        own("lustre.targets.json")
            .await
            .matches("\"active\":false}")
            .count(),
        3
    );
    u.fs.umount().await;
    c.stop().await;
}
