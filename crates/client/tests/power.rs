//! OSTs whose machine loses power: what they had acknowledged and not synced, clients bring again, or tell of its loss.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use coral_buffers::Payload;
use coral_client::{SetAttr, SetTime, Timespec};
use coral_osd::{DiskModel, Kv};
use coral_server::mdt::table;
use coral_wire::Errno;
use coral_wire::layout::{CompEntry, CompMd, LOV_OFFSET_DEFAULT, Layout, LovMd};

/// Longer than it takes a target to sync by itself, and clients to notice a restart, come back and replay.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(12)).await;
}

#[tokio::test(start_paused = true)]
async fn what_osts_lost_with_the_power_is_written_again() {
    let c = Cluster::start(2, 2, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let fh = u.create("f", libc::O_RDWR).await.unwrap();
    let mut want = vec![1u8; 300_000];
    u.write(&fh, 0, &want).await.unwrap();
    fs.fsync(&fh, false).await.unwrap();
    // until the OSTs have the record of this client on disk
    settle().await;
    for n in 0..20usize {
        let (at, len) = (n * 17_000, if n % 3 == 0 { 30_000 } else { 5_000 });
        u.write(&fh, at as u64, &vec![n as u8 + 2; len])
            .await
            .unwrap();
        want.resize(want.len().max(at + len), 0);
        want[at..at + len].fill(n as u8 + 2);
        if n == 12 {
            // the order with other changes counts
            let set = SetAttr {
                size: Some(200_000),
                ..Default::default()
            };
            fs.setattr(&u.cred, fh.fid(), set, Some(&fh)).await.unwrap();
            want.truncate(200_000);
        }
    }
    // dirty data is written out, and not synced; what is small enough for its message is kept too
    u.read(&fh, 0, 400_000).await.unwrap();
    let small = u.put("small", b"0123456789").await.unwrap();
    assert!(fs.spent().kept_bytes > 150_000, "{:?}", fs.spent());
    let c = c.osts_lose_power().await;
    settle().await;
    fs.fsync(&fh, false).await.unwrap();
    assert!(u.read(&fh, 0, 1 << 20).await.unwrap() == want);
    assert_eq!(u.stat("f").await.unwrap().size, want.len() as u64);
    assert_eq!(
        (u.get("small").await.unwrap(), u.fid("small").await),
        (b"0123456789".to_vec(), Ok(small))
    );
    settle().await;
    // other replies tell that all is committed
    u.stat("f").await.unwrap();
    u.get("f").await.unwrap();
    fs.fsync(&fh, false).await.unwrap();
    assert_eq!(fs.spent().kept_bytes, 0);
    u.close(&fh).await.unwrap();
    fs.umount().await;
    c.stop().await;
}

/// The tables of an MDT reach the disk before the data it holds: what is on disk of names says nothing of data written before.
#[tokio::test(start_paused = true)]
async fn data_on_an_mdt_are_written_again_though_later_names_are_on_disk() {
    let c = Cluster::start(1, 1, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    u.dom_dir("d", 1).await;
    let other = c.remote_client().await;
    let o = User::root(&other);
    let fh = u.create("d/f", libc::O_RDWR).await.unwrap();
    u.write(&fh, 0, &[1; 5000]).await.unwrap();
    fs.fsync(&fh, false).await.unwrap();
    settle().await;
    let mut c = c;
    // power goes twice: the second time also what was replayed is not on disk yet, and a killed process knows what was
    for (round, after) in [(2u8, 0), (3, 0), (4, 1)] {
        let mut want = vec![round; 9000];
        u.write(&fh, 0, &want).await.unwrap();
        fs.setattr(
            &u.cred,
            fh.fid(),
            SetAttr {
                size: Some(7000),
                ..Default::default()
            },
            Some(&fh),
        )
        .await
        .unwrap();
        u.write(&fh, 6000, &[round + 100; 3000]).await.unwrap();
        want[6000..].fill(round + 100);
        // dirty data is written out when another client reads it
        assert!(o.get("d/f").await.unwrap() == want);
        let time = SetTime::At(Timespec {
            secs: 1_000_000 + i64::from(round),
            nanos: 5,
        });
        fs.setattr(
            &u.cred,
            fh.fid(),
            SetAttr {
                mtime: Some(time),
                ..Default::default()
            },
            Some(&fh),
        )
        .await
        .unwrap();
        u.mkdir(&format!("d/later{round}")).await.unwrap();
        c.disks.mdt.sync().wait().unwrap();
        c = match after {
            0 => c.mdt_loses_power().await,
            _ => c.kill_and_restart().await.mdt_loses_power().await,
        };
        settle().await;
        let got = o.get("d/f").await.unwrap();
        assert!(
            got == want,
            "round {round}: {} bytes, byte {:?} differs",
            got.len(),
            (0..got.len()).find(|i| got[*i] != want[*i])
        );
        assert_eq!(
            o.stat("d/f").await.unwrap().mtime,
            Timespec {
                secs: 1_000_000 + i64::from(round),
                nanos: 5
            }
        );
        assert!(o.fid(&format!("d/later{round}")).await.is_ok());
    }
    u.close(&fh).await.unwrap();
    other.umount().await;
    fs.umount().await;
    c.stop().await;
}

/// A component that got its objects when it was written: the MDT that lost this is told which they were.
#[tokio::test(start_paused = true)]
async fn a_component_keeps_the_objects_that_were_written() {
    let c = Cluster::start(2, 2, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    let comp = |from, to, count| {
        CompEntry::new(
            0,
            0,
            from,
            to,
            LovMd::request(65536, count, LOV_OFFSET_DEFAULT, None),
        )
    };
    let layout = Layout::Composite(CompMd::new(
        0,
        0,
        0,
        vec![
            comp(0, 65536, 1),
            comp(65536, 1 << 20, 2),
            comp(1 << 20, u64::MAX, 1),
        ],
    ))
    .encode();
    let dir = u.fid("d").await.unwrap();
    fs.setxattr(&u.cred, dir, b"trusted.lov", layout, 0)
        .await
        .unwrap();
    settle().await;
    let fh = u.create("d/f", libc::O_RDWR).await.unwrap();
    let data: Vec<u8> = (0..1_500_000u32).map(|i| (i / 1000) as u8 | 1).collect();
    u.write(&fh, 0, &data[..300_000]).await.unwrap();
    u.write(&fh, 300_000, &data[300_000..]).await.unwrap();
    let c = c.mdt_loses_power().await;
    settle().await;
    fs.fsync(&fh, false).await.unwrap();
    let other = c.remote_client().await;
    let got = User::root(&other).get("d/f").await.unwrap();
    assert!(got.len() == data.len(), "{} bytes", got.len());
    assert!(
        got == data,
        "byte {:?} differs",
        (0..data.len()).find(|i| got[*i] != data[*i])
    );
    other.umount().await;
    u.close(&fh).await.unwrap();
    fs.umount().await;
    c.stop().await;
}

/// A layout that was not made by an open (`lfs setstripe`, a truncate of a file made by mknod) is on disk before anybody can
/// write to its objects: a replay does not say which they were.
#[tokio::test(start_paused = true)]
async fn a_file_laid_out_without_an_open_keeps_its_objects() {
    let c = Cluster::start(2, 2, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    let dir = u.fid("d").await.unwrap();
    settle().await;
    let data: Vec<u8> = (0..300_000u32).map(|i| (i / 1000) as u8 | 1).collect();
    let mut open = Vec::new();
    for (i, name) in ["striped", "cut"].iter().enumerate() {
        let fid = fs
            .mknod(&u.cred, dir, name.as_bytes(), libc::S_IFREG | 0o644, 0)
            .await
            .unwrap()
            .attr
            .fid;
        if i == 0 {
            let layout = Layout::Plain(LovMd::request(65536, 2, LOV_OFFSET_DEFAULT, None)).encode();
            fs.setxattr(&u.cred, fid, b"lustre.lov", layout, 0)
                .await
                .unwrap();
        } else {
            fs.setattr(
                &u.cred,
                fid,
                SetAttr {
                    size: Some(300_000),
                    ..SetAttr::default()
                },
                None,
            )
            .await
            .unwrap();
        }
        let fh = u.open(&format!("d/{name}"), libc::O_RDWR).await.unwrap();
        u.write(&fh, 0, &data).await.unwrap();
        open.push(fh);
    }
    let c = c.mdt_loses_power().await;
    settle().await;
    let other = c.remote_client().await;
    for name in ["striped", "cut"] {
        let got = User::root(&other).get(&format!("d/{name}")).await.unwrap();
        assert!(
            got == data,
            "{name}: {} bytes, byte {:?} differs",
            got.len(),
            (0..got.len()).find(|i| got[*i] != data[*i])
        );
    }
    other.umount().await;
    for fh in open {
        u.close(&fh).await.unwrap();
    }
    fs.umount().await;
    c.stop().await;
}

/// A close that the MDT lost is replayed with the handle of the restart before: the open must name that one.
#[tokio::test(start_paused = true)]
async fn a_close_is_replayed_after_two_restarts() {
    let c = Cluster::start(1, 1, 65536).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let fh = u.create("gone", libc::O_RDWR).await.unwrap();
    u.unlink("gone").await.unwrap();
    settle().await;
    let c = c.kill_and_restart().await;
    settle().await;
    let orphans = |c: &Cluster| {
        c.disks
            .mdt
            .range(table::ORPHAN, &[], None, 10)
            .unwrap()
            .len()
    };
    assert_eq!(orphans(&c), 1);
    u.close(&fh).await.unwrap();
    let c = c.mdt_loses_power().await;
    settle().await;
    u.names("").await.unwrap();
    assert_eq!(orphans(&c), 0, "nobody has it open any more");
    fs.umount().await;
    c.stop().await;
}

/// Two clients change two files while the OSTs' machine loses power again and again: whatever was acknowledged is there.
async fn nothing_is_lost_while_clients_live(seed: u64) {
    let mut rng = Rng(seed);
    let mut c = Cluster::start_on_disks(2, (2, 65536), seed, "", DiskModel::NVME).await;
    let fss = [c.remote_client().await, c.remote_client().await];
    let users = [User::root(&fss[0]), User::root(&fss[1])];
    let mut model = [Vec::<u8>::new(), Vec::new()];
    let mut open = Vec::new();
    for (u, name) in users.iter().zip(["a", "b"]) {
        u.put(name, b"").await.unwrap();
    }
    for u in &users {
        open.push([
            u.open("a", libc::O_RDWR).await.unwrap(),
            u.open("b", libc::O_RDWR).await.unwrap(),
        ]);
    }
    settle().await;
    let mut who = 0;
    for step in 0..240u32 {
        if rng.below(6) == 0 {
            who = 1 - who;
        }
        let file = rng.below(2) as usize;
        let (u, fh, m) = (&users[who], &open[who][file], &mut model[file]);
        let (at, len) = (rng.below(200_000) as usize, 1 + rng.below(60_000) as usize);
        match rng.below(20) {
            0 => {
                let set = SetAttr {
                    size: Some(at as u64),
                    ..Default::default()
                };
                u.fs.setattr(&u.cred, fh.fid(), set, Some(fh))
                    .await
                    .unwrap();
                m.resize(at, 0);
            }
            1 => u.fs.fsync(fh, true).await.unwrap(),
            2 => tokio::time::sleep(Duration::from_millis(rng.below(4000))).await,
            3 => {
                // KEEP_SIZE and PUNCH_HOLE
                u.fs.fallocate(&u.cred, fh, 3, at as u64, len as u64)
                    .await
                    .unwrap();
                let (from, to) = (m.len().min(at), m.len().min(at + len));
                m[from..to].fill(0);
            }
            4 | 5 => {
                let got = u.read(fh, at as u64, len as u32).await.unwrap();
                let (from, to) = (m.len().min(at), m.len().min(at + len));
                assert!(
                    got == m[from..to],
                    "seed {seed} step {step}: read {at}+{len}"
                );
            }
            _ => {
                u.write(fh, at as u64, &vec![step as u8; len])
                    .await
                    .unwrap();
                m.resize(m.len().max(at + len), 0);
                m[at..at + len].fill(step as u8);
            }
        }
        if step % 60 == 59 {
            c = c.osts_lose_power().await;
            if step % 120 == 59 {
                settle().await;
            }
        }
    }
    for (file, name) in ["a", "b"].iter().enumerate() {
        for (u, open) in users.iter().zip(&open) {
            assert_eq!(u.fs.fsync(&open[file], false).await, Ok(()), "seed {seed}");
            assert!(
                u.get(name).await.unwrap() == model[file],
                "seed {seed}: {name}"
            );
        }
    }
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn acknowledged_is_there_after_every_loss_of_power() {
    for seed in 1..=8 {
        tokio::time::timeout(
            Duration::from_secs(3600),
            nothing_is_lost_while_clients_live(seed),
        )
        .await
        .expect("it hangs");
    }
}

/// A request's buffer, which is counted as long as anything holds on to a part of it.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    /// `len` bytes, as they come in a buffer of FUSE's.
    fn piece(len: usize, count: &Arc<AtomicUsize>) -> Payload {
        let all = vec![5; (1 << 20) + 8192];
        count.fetch_add(all.len(), Ordering::Relaxed);
        Payload::from(Bytes::from_owner(Counted(all, count.clone())).slice(4096..4096 + len))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// Dirty data, and data that is kept until it is on disk, takes about the memory it is counted with, whatever the
/// size of the writes.
#[tokio::test(start_paused = true)]
async fn what_is_kept_holds_no_more_memory_than_is_counted() {
    for (len, stripes) in [
        (64 << 10, 1),
        (256 << 10, 1),
        (512 << 10, 1),
        (900 << 10, 1),
        (1 << 20, 1),
        (1 << 20, 2),
    ] {
        let c = Cluster::start(2, stripes, 256 << 10).await;
        let fs = c.remote_client().await;
        let u = User::root(&fs);
        let fh = u.create("f", libc::O_RDWR).await.unwrap();
        let buffers = Arc::new(AtomicUsize::new(0));
        let check = |what: &str| {
            let (spent, held) = (fs.spent(), buffers.load(Ordering::Relaxed));
            let counted = spent.dirty_bytes + spent.kept_bytes;
            assert!(
                counted > 3 << 20 && held <= counted * 3 / 2,
                "{len} {what}: {held} bytes held, {spent:?}"
            );
        };
        let mut at = 0;
        for _ in 0..(8 << 20) / len {
            u.fs.write(&u.cred, &fh, at, Counted::piece(len, &buffers))
                .await
                .unwrap();
            at += len as u64;
        }
        check("dirty");
        u.read(&fh, 0, 16 << 20).await.unwrap();
        assert_eq!(fs.spent().dirty_bytes, 0);
        check("written out");
        fs.umount().await;
        c.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_to_keep_is_told() {
    let c = Cluster::start(1, 1, 65536).await;
    let fs = c
        .remote_client_with(coral_client::MountOptions {
            cache_mb: 1,
            ..c.mount_options()
        })
        .await;
    let u = User::root(&fs);
    let (large, small) = (
        u.create("large", libc::O_RDWR).await.unwrap(),
        u.create("small", libc::O_RDWR).await.unwrap(),
    );
    let second = u.open("large", libc::O_RDWR).await.unwrap();
    u.write(&large, 0, b"synced").await.unwrap();
    fs.fsync(&large, false).await.unwrap();
    settle().await;
    u.write(&small, 0, &[1; 1000]).await.unwrap();
    // who looks at it has it sent
    u.stat("small").await.unwrap();
    u.write(&large, 6, &vec![2; 3 << 20]).await.unwrap();
    let kept = fs.spent().kept_bytes;
    assert!((1000..100_000).contains(&kept), "{kept}");
    // it has to be told, not half replayed
    u.write(&second, 0, b"SYNCED").await.unwrap();
    let c = c.osts_lose_power().await;
    settle().await;
    assert_eq!(
        fs.fsync(&large, false).await.map_err(Errno::from),
        Err(Errno::EIO)
    );
    assert_eq!(fs.fsync(&large, false).await, Ok(()), "once");
    assert_eq!(
        fs.flush(&second, 0).await.map_err(Errno::from),
        Err(Errno::EIO),
        "each handle"
    );
    assert_eq!(fs.fsync(&small, false).await, Ok(()));
    // what was lost may be there in part
    let large_is = u.get("large").await.unwrap();
    assert!(large_is.starts_with(b"synced") || large_is.starts_with(b"SYNCED"));
    assert!(u.get("small").await.unwrap() == [1; 1000]);
    // and it goes on
    u.write(&large, 0, b"again!").await.unwrap();
    let c = c.osts_lose_power().await;
    settle().await;
    assert_eq!(fs.fsync(&large, false).await, Ok(()));
    assert!(u.get("large").await.unwrap().starts_with(b"again!"));
    fs.umount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_could_not_write_again_is_told_once() {
    const CUT_OFF: &str = "10.9.0.1@tcp";
    let c = Cluster::start(1, 1, 65536).await;
    let fs = c.client_at(CUT_OFF, "").await;
    let u = User::root(&fs);
    let one = u.create("f", libc::O_RDWR).await.unwrap();
    let two = u.open("f", libc::O_RDWR).await.unwrap();
    let other = u.create("other", libc::O_RDWR).await.unwrap();
    u.write(&other, 0, b"safe").await.unwrap();
    u.write(&one, 0, b"safe").await.unwrap();
    fs.fsync(&one, false).await.unwrap();
    settle().await;
    u.write(&one, 0, b"lost").await.unwrap();
    let (there, server) = (CUT_OFF.parse().unwrap(), SERVER.parse().unwrap());
    c.net.cut(there, server, true);
    let c = c.osts_lose_power().await;
    // recovery ends without it
    tokio::time::sleep(Duration::from_secs(300)).await;
    c.net.cut(there, server, false);
    let back = async {
        while u.get("f").await.is_err() || fs.statfs().await.is_err() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), back)
        .await
        .expect("it comes back");
    assert_eq!(u.get("f").await.unwrap(), b"safe");
    assert_eq!(
        fs.fsync(&one, false).await.map_err(Errno::from),
        Err(Errno::EIO)
    );
    assert_eq!(
        fs.flush(&two, 0).await.map_err(Errno::from),
        Err(Errno::EIO),
        "each handle"
    );
    fs.umount().await;
    c.stop().await;
}
