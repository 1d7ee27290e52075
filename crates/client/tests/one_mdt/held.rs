//! The beginning of a new file's data, kept back until it is closed: nobody sees that it is late, and it has room.

use std::time::Duration;

use crate::common::simulated::number;
use crate::common::*;
use crate::late::{set, two};
use coral_client::{Attr, FileHandle, SeekWhence, SetAttr, SetTime, Timespec};
use coral_wire::Errno;

/// So much of a file is kept back at most, bytes.
const MOST: u64 = 64 << 10;
const MTIME: i64 = 2000;

fn some(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect()
}

/// A file that is open, of which this was written and nothing sent.
async fn held(u: &User, path: &str, data: &[u8]) -> std::sync::Arc<FileHandle> {
    let fh = u.create(path, libc::O_RDWR).await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        for (i, part) in data.chunks(10_000).enumerate() {
            u.write(&fh, i as u64 * 10_000, part).await.unwrap();
        }
    })
    .await;
    assert_eq!(n, [], "it is kept back");
    fh
}

fn at(secs: i64) -> Option<SetTime> {
    Some(SetTime::At(Timespec { secs, nanos: 0 }))
}

#[tokio::test(start_paused = true)]
async fn the_parts_of_a_small_file_are_one_request() {
    let (c, u, v) = two().await;
    let data = some(45_000, 1);
    let fh = held(&u, "f", &data).await;
    let times = SetAttr {
        mtime: at(MTIME),
        atime: at(1000),
        ..Default::default()
    };
    let (attr, n) = rpcs(&u.fs, set(&u, &fh, times)).await;
    assert_eq!(n, []);
    assert_eq!((attr.size, attr.mtime.secs), (45_000, MTIME));
    // close(2) waits for nothing
    let (_, n) = rpcs(&u.fs, u.fs.flush(&fh, 0)).await;
    assert_eq!(n, []);
    let (_, n) = rpcs(&u.fs, u.fs.release(&fh)).await;
    assert_eq!(n, counts(&[("MDS_CLOSE", 1), ("OST_WRITE", 1)]));
    for who in [&u, &v] {
        let now = who.stat("f").await.unwrap();
        let times = (now.mtime.secs, now.atime.secs);
        assert_eq!((now.size, times), (45_000, (MTIME, 1000)));
    }
    assert_eq!(v.get("f").await.unwrap(), data);
    // written by others it is as new as that
    let theirs = v.open("f", libc::O_WRONLY).await.unwrap();
    v.write(&theirs, 0, b"x").await.unwrap();
    v.close(&theirs).await.unwrap();
    assert_ne!(u.stat("f").await.unwrap().mtime.secs, MTIME);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_is_sent_by_fsync_in_time_and_when_it_is_long() {
    let (c, u, v) = two().await;
    let fh = held(&u, "synced", &some(100, 1)).await;
    let (_, n) = rpcs(&u.fs, u.fs.fsync(&fh, true)).await;
    assert!(n.contains(&("OST_WRITE".into(), 1)), "{n:?}");
    u.close(&fh).await.unwrap();
    let fh = held(&u, "open for long", &some(100, 1)).await;
    let (_, n) = rpcs(&u.fs, tokio::time::sleep(Duration::from_secs(3))).await;
    assert_eq!(n, counts(&[("OST_WRITE", 1)]));
    u.close(&fh).await.unwrap();
    let fh = u.create("long", libc::O_WRONLY).await.unwrap();
    let (_, n) = rpcs(&u.fs, async {
        u.write(&fh, 0, &some(MOST, 1)).await.unwrap();
        u.write(&fh, MOST, &some(100, 1)).await.unwrap();
    })
    .await;
    assert!(n.iter().any(|(op, _)| op == "OST_WRITE"), "{n:?}");
    u.close(&fh).await.unwrap();
    assert_eq!(v.stat("long").await.unwrap().size, MOST + 100);
    // nobody releases it
    drop(held(&u, "dropped", &some(100, 1)).await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    for name in ["synced", "open for long", "dropped"] {
        assert_eq!(v.get(name).await.unwrap(), some(100, 1), "{name}");
    }
    // what is not to wait does not
    for flag in [libc::O_DSYNC, libc::O_DIRECT] {
        let name = format!("at once {flag}");
        let fh = u.create(&name, libc::O_WRONLY | flag).await.unwrap();
        let (_, n) = rpcs(&u.fs, u.write(&fh, 0, &some(4096, 1))).await;
        assert!(n.contains(&("OST_WRITE".into(), 1)), "{n:?}");
        u.close(&fh).await.unwrap();
    }
    c.stop().await;
}

/// Whoever looks at the file sees what was written, through which handle or client ever.
#[tokio::test(start_paused = true)]
async fn everybody_sees_what_was_written() {
    let (c, u, v) = two().await;
    u.mkdir("d").await.unwrap();
    let data = some(5000, 3);
    let fh = held(&u, "d/read", &data).await;
    assert_eq!(u.read(&fh, 0, 9000).await.unwrap(), data);
    let mine = held(&u, "d/second", &data).await;
    let other = u.open("d/second", libc::O_RDONLY).await.unwrap();
    assert_eq!(u.read(&other, 0, 9000).await.unwrap(), data);
    let seek = held(&u, "d/sought", &data).await;
    let end = u.fs.lseek(&seek, 0, SeekWhence::Hole).await.unwrap();
    assert_eq!(end, 5000);
    let seen = held(&u, "d/seen", &data).await;
    let now = u.stat("d/seen").await.unwrap();
    assert_eq!(now.size, 5000);
    assert!(now.blocks * 512 >= 5000);
    let listed = held(&u, "d/listed", &data).await;
    let all = u.ls_l("d").await.unwrap();
    assert_eq!(all["listed"].unwrap().size, 5000);
    let theirs = held(&u, "d/theirs", &data).await;
    assert_eq!(v.get("d/theirs").await.unwrap(), data);
    let size = held(&u, "d/size", &data).await;
    assert_eq!(v.stat("d/size").await.unwrap().size, 5000);
    let many = held(&u, "d/many", &data).await;
    assert_eq!(v.ls_l("d").await.unwrap()["many"].unwrap().size, 5000);
    for fh in [fh, mine, other, seek, seen, listed, theirs, size, many] {
        u.close(&fh).await.unwrap();
    }
    c.stop().await;
}

/// A mount is not evicted for data that it cannot send: who asks for the lock is let through after some seconds.
#[tokio::test(start_paused = true)]
async fn an_ost_that_is_away_holds_no_lock_of_the_mdt() {
    let far = FAR.parse().unwrap();
    let builder = coral_node::Cluster::builder().osts(1).ost_at(0, far);
    let c = Cluster::build(builder).await;
    let (a, b) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&a), User::root(&b));
    let fh = held(&u, "f", &some(100, 1)).await;
    c.net.cut(u.fs.node().nid(), far, true);
    let begun = tokio::time::Instant::now();
    v.rename("f", "g", 0).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(c.mdt().target.stats().evictions.value(), 0);
    c.net.cut(u.fs.node().nid(), far, false);
    u.fs.flush(&fh, 0).await.unwrap();
    u.close(&fh).await.unwrap();
    assert_eq!(v.get("g").await.unwrap(), some(100, 1));
    c.stop().await;
}

/// Two files that are open, with data kept back for an OST each; the client is cut off from one of these.
async fn half_cut_off() -> (Cluster, User, User, Vec<std::sync::Arc<FileHandle>>) {
    let far = FAR.parse().unwrap();
    let builder = coral_node::Cluster::builder().osts(2).ost_at(0, far);
    let c = Cluster::build(builder).await;
    let (a, b) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&a), User::root(&b));
    let open = vec![
        held(&u, "f0", &some(100, 1)).await,
        held(&u, "f1", &some(100, 1)).await,
    ];
    c.net.cut(u.fs.node().nid(), far, true);
    (c, u, v, open)
}

const FAR: &str = "10.0.0.7@tcp";

/// What waits for an OST that is away is known, and nothing else waits for it.
#[tokio::test(start_paused = true)]
async fn one_ost_that_is_away_holds_up_nothing_else() {
    let (c, u, _v, open) = half_cut_off().await;
    assert_eq!(u.fs.unwritten().len(), 2);
    let soon = Duration::from_secs(3);
    let others = async {
        u.create("g", libc::O_WRONLY).await.unwrap();
        u.rename("g", "h", 0).await.unwrap();
        u.unlink("h").await.unwrap();
    };
    tokio::time::timeout(soon, others)
        .await
        .expect("they wait for no data");
    tokio::time::sleep(soon).await;
    assert_eq!(u.fs.unwritten().len(), 1, "the other was sent in time");
    let third = u.create("third", libc::O_WRONLY).await.unwrap();
    let fourth = u.create("fourth", libc::O_WRONLY).await.unwrap();
    for fh in [&third, &fourth] {
        u.write(fh, 0, b"later").await.unwrap();
    }
    tokio::time::sleep(soon).await;
    assert_eq!(u.fs.unwritten().len(), 2, "also what was written later");
    let all = u.fs.write_out_all();
    let early = tokio::time::timeout(Duration::from_secs(20), all).await;
    assert!(early.is_err(), "not all is written out");
    c.net.cut(u.fs.node().nid(), FAR.parse().unwrap(), false);
    u.fs.write_out_all().await;
    assert_eq!(u.fs.unwritten(), []);
    for fh in open.iter().chain([&third, &fourth]) {
        u.close(fh).await.unwrap();
    }
    for name in ["f0", "f1"] {
        assert_eq!(u.get(name).await.unwrap(), some(100, 1));
    }
    c.stop().await;
}

/// What another client has written meanwhile stays.
#[tokio::test(start_paused = true)]
async fn late_data_replaces_nothing() {
    let (c, u, v, open) = half_cut_off().await;
    for name in ["f0", "f1"] {
        let theirs = v.open(name, libc::O_WRONLY).await.unwrap();
        v.write(&theirs, 0, b"theirs").await.unwrap();
        v.close(&theirs).await.unwrap();
    }
    c.net.cut(u.fs.node().nid(), FAR.parse().unwrap(), false);
    let mut lost = 0;
    for fh in &open {
        lost += u64::from(u.fs.fsync(fh, false).await.is_err());
        u.close(fh).await.unwrap();
    }
    assert_eq!(lost, 1, "whoever wrote it is told");
    for who in [&u, &v] {
        for name in ["f0", "f1"] {
            assert_eq!(who.get(name).await.unwrap()[..6], *b"theirs", "{name}");
        }
    }
    c.stop().await;
}

/// Who had the file open before sees what was written before its last close.
#[tokio::test(start_paused = true)]
async fn a_second_handle_reads_what_was_closed() {
    let (c, u, _v) = two().await;
    for len in [100, 20_000, MOST] {
        let name = format!("f{len}");
        let writer = u.create(&name, libc::O_WRONLY).await.unwrap();
        let reader = u.open(&name, libc::O_RDONLY).await.unwrap();
        let data = some(len, 5);
        u.write(&writer, 0, &data).await.unwrap();
        u.fs.flush(&writer, 0).await.unwrap();
        let (closed, read) = tokio::join!(u.close(&writer), u.read(&reader, 0, 1 << 20));
        closed.unwrap();
        assert!(read.unwrap() == data, "{len}");
        u.close(&reader).await.unwrap();
    }
    c.stop().await;
}

/// Without room nothing is kept back: the write itself is told.
#[tokio::test(start_paused = true)]
async fn what_has_no_room_is_told_by_the_write() {
    let c = Cluster::start_bounded(1, 8 << 20).await;
    let u = User::root(&c.remote_client().await);
    let all = u
        .create("all", libc::O_WRONLY | libc::O_DIRECT)
        .await
        .unwrap();
    let mut end = 0;
    let full = loop {
        match u.write(&all, end, &[1; 65536]).await {
            Ok(n) => end += n as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(full, Errno::ENOSPC);
    let (mut kept, mut told) = (Vec::new(), None);
    for i in 0..1000 {
        let fh = u.create(&format!("f{i}"), libc::O_WRONLY).await;
        let Ok(fh) = fh.map_err(|e| told = Some(e)) else {
            break;
        };
        match u.write(&fh, 0, &[2; 40_000]).await {
            Ok(_) => kept.push(fh),
            Err(e) => told = Some(e),
        }
        if told.is_some() {
            break;
        }
    }
    assert_eq!(told, Some(Errno::ENOSPC));
    for fh in kept {
        u.fs.flush(&fh, 0)
            .await
            .expect("what a write has taken has room");
        u.close(&fh).await.unwrap();
    }
    u.close(&all).await.unwrap();
    c.stop().await;
}

/// What a file is to look like.
#[derive(Default)]
struct Model {
    data: Vec<u8>,
    mode: u32,
    /// It was set, and nothing was written since.
    mtime: Option<i64>,
}

impl Model {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        self.data.resize(self.data.len().max(end), 0);
        self.data[offset as usize..end].copy_from_slice(data);
        self.mtime = None;
    }

    fn check(&self, attr: &Attr, how: &str) {
        let (size, mode) = (attr.size, attr.mode & 0o777);
        assert_eq!((size, mode), (self.data.len() as u64, self.mode), "{how}");
        match self.mtime {
            Some(mtime) => assert_eq!(attr.mtime.secs, mtime, "{how}"),
            None => assert!(attr.mtime.secs >= 10_000, "{how}"),
        }
    }
}

/// Random programs that make a file, and others that look on: everybody sees what a file is that nothing is kept back of.
#[tokio::test(start_paused = true)]
async fn a_file_is_what_its_maker_did() {
    let seeds = number("CORAL_SEEDS", 120);
    let (c, u, v) = two().await;
    for seed in 1..=seeds {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let name = format!("f{seed}");
        let fh = u.create(&name, libc::O_RDWR).await.unwrap();
        let mut m = Model {
            mode: 0o644,
            ..Model::default()
        };
        let mut did = String::new();
        for _ in 0..rng.below(14) {
            let what = rng.below(15);
            did.push_str(&format!("{what} "));
            let how = format!("seed {seed}: {did}");
            match what {
                0..=4 => {
                    let data = some(1 + rng.below(30_000), seed as u8);
                    let offset = m.data.len() as u64;
                    u.write(&fh, offset, &data).await.unwrap();
                    m.write(offset, &data);
                }
                5 => {
                    let (offset, data) = (rng.below(40_000), some(1 + rng.below(9000), 9));
                    u.write(&fh, offset, &data).await.unwrap();
                    m.write(offset, &data);
                }
                6 | 7 => {
                    let secs = 1 + rng.below(9000) as i64;
                    let times = SetAttr {
                        mtime: at(secs),
                        atime: at(secs),
                        ..Default::default()
                    };
                    m.mtime = Some(secs);
                    m.check(&set(&u, &fh, times).await, &how);
                }
                8 => {
                    m.mode = 0o600 + rng.below(64) as u32;
                    let mode = SetAttr {
                        mode: Some(m.mode),
                        ..Default::default()
                    };
                    m.check(&set(&u, &fh, mode).await, &how);
                }
                9 => {
                    let size = rng.below(50_000);
                    let cut = SetAttr {
                        size: Some(size),
                        ..Default::default()
                    };
                    m.data.resize(size as usize, 0);
                    m.mtime = None;
                    m.check(&set(&u, &fh, cut).await, &how);
                }
                10 => assert_eq!(u.read(&fh, 0, 1 << 20).await.unwrap(), m.data, "{how}"),
                11 => m.check(&u.stat(&name).await.unwrap(), &how),
                12 => tokio::time::sleep(Duration::from_millis(600)).await,
                13 => u.fs.flush(&fh, 0).await.unwrap(),
                _ if rng.below(2) == 0 => {
                    m.check(&v.stat(&name).await.unwrap(), &how);
                }
                _ => assert_eq!(v.get(&name).await.unwrap(), m.data, "{how}"),
            }
        }
        if rng.below(8) > 0 {
            u.fs.flush(&fh, 0).await.unwrap();
        }
        u.close(&fh).await.unwrap();
        for who in [&u, &v] {
            let how = format!("seed {seed}: {did}, closed");
            m.check(&who.stat(&name).await.unwrap(), &how);
            assert_eq!(who.get(&name).await.unwrap(), m.data, "{how}");
        }
    }
    c.stop().await;
}
