//! Data on MDT: files whose beginning lies on the MDT, through our client and our MDT, alone and between clients.

use crate::common::*;
use coral_client::Timespec;
use coral_client::{SetAttr, SetTime};
use coral_osd::{ObjectId, Objects};
use coral_wire::Errno;

/// Bytes of the data the MDT holds of `fid`; `None`: no object.
fn on_mdt(c: &Cluster, fid: coral_wire::Fid) -> Option<u64> {
    c.disks
        .mdt
        .attr(ObjectId {
            seq: fid.seq,
            oid: u64::from(fid.oid),
        })
        .unwrap()
        .map(|a| a.size)
}

fn on_osts(c: &Cluster) -> u64 {
    let all = c.disks.osts.iter().flat_map(|osd| osd.objects());
    all.map(|(_, a)| a.size).sum()
}

#[tokio::test]
async fn small_files_touch_no_ost_and_large_ones_go_on_there() {
    let c = Cluster::start(3, 1, 65536).await;
    let u = User::root(&c.client().await);
    u.dom_dir("d", 2).await;
    let data: Vec<u8> = (0..200_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let small = u.put("d/small", &data[..5000]).await.unwrap();
    assert_eq!(
        (
            u.get("d/small").await.unwrap(),
            u.stat("d/small").await.unwrap().size
        ),
        (data[..5000].to_vec(), 5000)
    );
    assert_eq!((on_mdt(&c, small), on_osts(&c)), (Some(5000), 0));

    let big = u.put("d/big", &data).await.unwrap();
    assert_eq!(
        (
            u.get("d/big").await.unwrap() == data,
            u.stat("d/big").await.unwrap().size
        ),
        (true, 200_000)
    );
    assert_eq!((on_mdt(&c, big), on_osts(&c) > 0), (Some(DOM), true));

    let fh = u.open("d/big", libc::O_RDWR).await.unwrap();
    for size in [100_000u64, 60_000, 70_000, 0, 65_536] {
        u.fs.setattr(
            &u.cred,
            big,
            SetAttr {
                size: Some(size),
                ..Default::default()
            },
            Some(&fh),
        )
        .await
        .unwrap();
        assert_eq!(u.stat("d/big").await.unwrap().size, size);
        let len = u.get("d/big").await.unwrap().len() as u64;
        assert_eq!(len, size);
    }
    assert!(
        u.get("d/big").await.unwrap().iter().all(|b| *b == 0),
        "cut to nothing, then grown"
    );
    u.write(&fh, 65_000, &data[..1000]).await.unwrap();
    assert_eq!(
        u.read(&fh, 65_000, 4096).await.unwrap(),
        &data[..1000],
        "across the border"
    );
    u.fs.fsync(&fh, false).await.unwrap();
    u.fs.fallocate(
        &u.cred,
        &fh,
        libc::FALLOC_FL_PUNCH_HOLE as u32 | libc::FALLOC_FL_KEEP_SIZE as u32,
        65_000,
        500,
    )
    .await
    .unwrap();
    assert_eq!(
        u.read(&fh, 65_000, 510).await.unwrap(),
        [vec![0; 500], data[500..510].to_vec()].concat()
    );
    u.close(&fh).await.unwrap();
    u.fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn a_file_that_is_gone_leaves_nothing_on_the_mdt() {
    let c = Cluster::start(1, 1, 65536).await;
    let u = User::root(&c.client().await);
    u.dom_dir("d", 2).await;
    let a = u.put("d/a", b"one").await.unwrap();
    let b = u.put("d/b", b"two").await.unwrap();
    let held = u.open("d/b", libc::O_RDWR).await.unwrap();
    u.unlink("d/a").await.unwrap();
    u.unlink("d/b").await.unwrap();
    assert_eq!(
        u.read(&held, 0, 10).await.unwrap(),
        b"two",
        "open files stay"
    );
    u.write(&held, 3, b"!").await.unwrap();
    assert_eq!(on_mdt(&c, b), Some(4));
    u.close(&held).await.unwrap();
    while on_mdt(&c, a).is_some() || on_mdt(&c, b).is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    u.fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn two_clients_see_each_other_at_once() {
    let c = Cluster::start(2, 1, 65536).await;
    let plain = coral_client::MountOptions {
        plain: true,
        ..c.mount_options()
    };
    let (x, y) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client_with(plain).await),
    );
    x.dom_dir("d", 2).await;
    let f = x.put("d/f", b"0").await.unwrap();
    for i in 1..40u8 {
        let (a, b) = if i % 2 == 0 { (&x, &y) } else { (&y, &x) };
        // what the other has of size and times is covered by a lock that this takes back
        assert_eq!(b.stat("d/f").await.unwrap().size, u64::from(i));
        let fh = a
            .open("d/f", libc::O_WRONLY | libc::O_APPEND)
            .await
            .unwrap();
        a.write(&fh, 0, &[i]).await.unwrap();
        assert_eq!(b.stat("d/f").await.unwrap().size, u64::from(i) + 1);
        assert_eq!(b.get("d/f").await.unwrap().len(), usize::from(i) + 1);
        a.close(&fh).await.unwrap();
    }
    // times that are set count, though they lie before the last write
    let old = Timespec {
        secs: 1_000_000_000,
        nanos: 0,
    };
    for (a, b) in [(&x, &y), (&y, &x)] {
        let fh = a.open("d/f", libc::O_WRONLY).await.unwrap();
        a.write(&fh, 0, b"w").await.unwrap();
        assert!(
            a.stat("d/f").await.unwrap().mtime > old && b.stat("d/f").await.unwrap().mtime > old
        );
        a.fs.setattr(
            &a.cred,
            f,
            SetAttr {
                mtime: Some(SetTime::At(old)),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
        assert_eq!(
            (
                a.stat("d/f").await.unwrap().mtime,
                b.stat("d/f").await.unwrap().mtime
            ),
            (old, old)
        );
        a.close(&fh).await.unwrap();
    }
    x.fs.umount().await;
    y.fs.umount().await;
    c.stop().await;
}

/// Appends of several clients to one file: nothing is lost or overwritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn appends_of_three_clients() {
    let c = Cluster::start(2, 1, 65536).await;
    let first = User::root(&c.remote_client().await);
    first.dom_dir("d", 2).await;
    first.put("d/log", b"").await.unwrap();
    let mut tasks = Vec::new();
    for i in 0..3u8 {
        let u = User::root(&c.remote_client().await);
        tasks.push(tokio::spawn(async move {
            let fh = u
                .open("d/log", libc::O_WRONLY | libc::O_APPEND)
                .await
                .unwrap();
            for _ in 0..30 {
                u.write(&fh, 0, &[i; 1000]).await.unwrap();
            }
            u.close(&fh).await.unwrap();
            u.fs.umount().await;
        }));
    }
    for t in tasks {
        t.await.unwrap();
    }
    let all = first.get("d/log").await.unwrap();
    assert_eq!(all.len(), 90_000, "across the border of 65536 as well");
    for i in 0..3u8 {
        assert_eq!(
            all.chunks(1000)
                .filter(|r| r.iter().all(|b| *b == i))
                .count(),
            30
        );
    }
    first.fs.umount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn data_survives_a_kill_of_the_servers() {
    let c = Cluster::start(1, 1, 65536).await;
    let u = User::root(&c.remote_client().await);
    u.dom_dir("d", 2).await;
    let fid = u.put("d/f", &[7; 3000]).await.unwrap();
    let gone = u.put("d/g", &[8; 3000]).await.unwrap();
    let fh = u.open("d/f", libc::O_RDWR).await.unwrap();
    let c = c.kill_and_restart().await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(u.read(&fh, 0, 10_000).await.unwrap(), vec![7; 3000]);
    u.write(&fh, 3000, &[9; 10]).await.unwrap();
    assert_eq!(u.stat("d/f").await.unwrap().size, 3010);
    u.close(&fh).await.unwrap();
    u.unlink("d/g").await.unwrap();
    while on_mdt(&c, gone).is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(on_mdt(&c, fid), Some(3010));
    assert_eq!(u.get("d/g").await, Err(Errno::ENOENT));
    u.fs.umount().await;
    c.stop().await;
}
