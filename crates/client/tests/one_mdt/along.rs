//! What a lookup brings along when it is the beginning of a read: the open, and the data of a small file.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use coral_buffers::Payload;
use coral_client::{DirEntry, Invalidate, SetAttr};
use coral_wire::{Errno, Fid};
use parking_lot::Mutex;

use crate::common::simulated::number;
use crate::common::*;
use crate::rows::total;

const FILES: usize = 20;

/// A directory of small files that another client made, and the client that reads them.
async fn dir_of_small_files() -> (Cluster, User, User) {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (a, b) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&a), User::root(&b));
    v.mkdir("d").await.unwrap();
    put_files(&v, "d", 0..FILES).await;
    (c, u, v)
}

/// Files of these numbers, each with its own content.
async fn put_files(v: &User, dir: &str, numbers: Range<usize>) {
    for i in numbers {
        let path = format!("{dir}/f{i}");
        v.put(&path, content(i).as_bytes()).await.unwrap();
    }
}

fn content(i: usize) -> String {
    format!("this is file {i}")
}

/// As a program on a mount reads a file, by its name and to its end: the kernel looks the name up and opens what it is.
async fn read(u: &User, path: &str) -> Vec<u8> {
    let (dir, name) = path.split_once('/').unwrap();
    let dir = u.fid(dir).await.unwrap();
    let file = u.fs.lookup(&u.cred, dir, name.as_bytes()).await.unwrap();
    let flags = libc::O_RDONLY as u32;
    let fh = u.fs.open(&u.cred, file.attr.fid, flags).await.unwrap();
    let data = u.read(&fh, 0, 4096).await.unwrap();
    let end = u.read(&fh, data.len() as u64, 4096).await.unwrap();
    assert!(end.is_empty());
    u.close(&fh).await.unwrap();
    data
}

async fn read_file(u: &User, i: usize) {
    assert_eq!(read(u, &format!("d/f{i}")).await, content(i).as_bytes());
}

#[tokio::test(start_paused = true)]
async fn reading_one_small_file_after_the_other_asks_for_many_at_once() {
    const MANY: usize = 400;
    let (c, u, v) = dir_of_small_files().await;
    put_files(&v, "d", FILES..MANY).await;
    // it shows what it is going to do
    for i in 0..16 {
        read_file(&u, i).await;
    }
    let (_, n) = rpcs(&u.fs, async {
        for i in 16..MANY {
            read_file(&u, i).await;
        }
    })
    .await;
    println!("{} files: {n:?}", MANY - 16);
    assert!(n.iter().all(|(op, _)| op != "OST_READ"), "{n:?}");
    let total = total(&n);
    assert!(total <= MANY as u64 / 10, "{n:?}");
    let (_, n) = rpcs(&u.fs, read_file(&u, MANY - 1)).await;
    assert_eq!(n, counts(&[]), "and of one that was read before none");
    c.stop().await;
}

/// Each program has a directory of its own.
#[tokio::test(start_paused = true)]
async fn many_programs_that_read_small_files_ask_for_many_at_once() {
    const PROGRAMS: usize = 40;
    const EACH: usize = 100;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let v = User::root(&c.remote_client().await);
    for p in 0..PROGRAMS {
        v.mkdir(&format!("d{p}")).await.unwrap();
        put_files(&v, &format!("d{p}"), 0..EACH).await;
    }
    v.fs.umount().await;
    let u = User::root(&c.remote_client().await);
    let (_, n) = rpcs(&u.fs, async {
        let program = |p: usize| {
            let u = User::root(&u.fs);
            tokio::spawn(async move {
                for i in 0..EACH {
                    let path = format!("d{p}/f{i}");
                    assert_eq!(read(&u, &path).await, content(i).as_bytes(), "{path}");
                    // others get their turn
                    tokio::task::yield_now().await;
                }
            })
        };
        for done in (0..PROGRAMS).map(program).collect::<Vec<_>>() {
            done.await.unwrap();
        }
    })
    .await;
    println!("{PROGRAMS} programs, {EACH} files each: {n:?}");
    let total = total(&n);
    assert!(total <= (PROGRAMS * EACH) as u64 / 2, "{n:?}");
    c.stop().await;
}

/// As a program does that lists a directory and reads its files in that order, or sorted by name or inode number: the kernel looks nothing
/// up that it has listed.
#[tokio::test(start_paused = true)]
async fn files_of_a_listing_are_read_ahead_in_its_order_and_sorted() {
    const MANY: usize = 300;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let v = User::root(&c.remote_client().await);
    v.mkdir("d").await.unwrap();
    let name = |i: usize| format!("n{:x}", (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // those of up to 16 KiB come along, and only so many in one answer
    let data = |name: &[u8]| name.repeat((16 << 10) / name.len());
    for i in 0..MANY {
        let data = data(name(i).as_bytes());
        v.put(&format!("d/{}", name(i)), &data).await.unwrap();
    }
    v.mkdir("d/among").await.unwrap();
    v.fs.umount().await;
    let by_name = |a: &DirEntry, b: &DirEntry| a.name.cmp(&b.name);
    let by_number = |a: &DirEntry, b: &DirEntry| a.fid.cmp(&b.fid);
    let as_listed = |_: &DirEntry, _: &DirEntry| Ordering::Equal;
    type Sorts<'a> = &'a dyn Fn(&DirEntry, &DirEntry) -> Ordering;
    let orders: [(&str, Sorts<'_>); 3] = [
        ("as listed", &as_listed),
        ("by name", &by_name),
        ("by number", &by_number),
    ];
    let both = |order| [(order, false), (order, true)];
    for ((how, order), plus) in orders.into_iter().flat_map(both) {
        let u = User::root(&c.remote_client().await);
        let dh = (u.fs.opendir(&u.cred, u.fid("d").await.unwrap()).await).unwrap();
        let mut listed = Vec::new();
        let mut take = |e: DirEntry| {
            listed.push(e);
            false
        };
        (u.fs.readdir(&u.cred, &dh, 0, plus, &mut take).await).unwrap();
        u.fs.releasedir(&dh).await.unwrap();
        listed.retain(|e| e.name.starts_with(b"n"));
        listed.sort_by(order);
        let (_, n) = rpcs(&u.fs, async {
            for e in &listed {
                let flags = (libc::O_RDONLY | libc::O_NOFOLLOW) as u32;
                let fh = u.fs.open(&u.cred, e.fid, flags).await.unwrap();
                let found = u.read(&fh, 0, 32 << 10).await.unwrap();
                assert!(found == data(&e.name));
                assert!(u.read(&fh, found.len() as u64, 1).await.unwrap().is_empty());
                u.close(&fh).await.unwrap();
            }
        })
        .await;
        println!("{MANY} files {how}, with sizes {plus}: {n:?}");
        let total = total(&n);
        assert!(total <= MANY as u64 / 4, "{n:?}");
    }
    c.stop().await;
}

/// However they are written: the MDT knows roughly how big they are.
#[tokio::test(start_paused = true)]
async fn files_written_in_any_way_are_known_to_be_small() {
    const MANY: usize = 64;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let v = User::root(&c.remote_client().await);
    let w = User::root(&c.remote_client().await);
    for how in 0..5 {
        let dir = format!("d{how}");
        v.mkdir(&dir).await.unwrap();
        for i in 0..MANY {
            let (path, data) = (format!("{dir}/f{i}"), content(i));
            match how {
                0 => {
                    v.put(&path, data.as_bytes()).await.unwrap();
                }
                _ => {
                    let fh = v.create(&path, libc::O_WRONLY).await.unwrap();
                    v.close(&fh).await.unwrap();
                    let (who, trunc) = match how {
                        1 => (&v, libc::O_TRUNC),
                        2 => (&v, 0),
                        3 => (&w, libc::O_TRUNC),
                        _ => (&w, 0),
                    };
                    // as a kernel does before it lets a program open anything
                    assert_eq!(who.stat(&path).await.unwrap().size, 0);
                    let fh = who.open(&path, libc::O_WRONLY | trunc).await.unwrap();
                    who.write(&fh, 0, data.as_bytes()).await.unwrap();
                    who.close(&fh).await.unwrap();
                }
            }
        }
    }
    v.fs.umount().await;
    w.fs.umount().await;
    let u = User::root(&c.remote_client().await);
    for how in 0..5 {
        let (_, n) = rpcs(&u.fs, async {
            for i in 0..MANY {
                let path = format!("d{how}/f{i}");
                assert_eq!(read(&u, &path).await, content(i).as_bytes(), "{path}");
            }
        })
        .await;
        println!("{how}: {n:?}");
        let total = total(&n);
        assert!(total < MANY as u64 * 2 / 3, "{how}: {n:?}");
    }
    c.stop().await;
}

/// Changes of another client, at random, of files that are about to be read and of which the data may be here: what is read is what they
/// are.
#[tokio::test(start_paused = true)]
async fn what_is_read_ahead_is_what_others_have_made_of_it() {
    const MANY: u64 = 150;
    const BYTES: [u64; 6] = [0, 10, 500, 4096, 16 << 10, (16 << 10) + 1];
    let mut read = 0;
    let seeds = number("CORAL_SEEDS", 12);
    for seed in 1..=seeds {
        let c = Cluster::start(2, 1, 1 << 20).await;
        let (u, v) = (c.remote_client().await, c.remote_client().await);
        let (u, v) = (User::root(&u), User::root(&v));
        v.mkdir("d").await.unwrap();
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut files: Vec<Option<Vec<u8>>> = Vec::new();
        let path = |i: u64| format!("d/f{i}");
        let some =
            |rng: &mut Rng| vec![rng.below(256) as u8; BYTES[rng.below(6) as usize] as usize];
        for i in 0..MANY {
            let data = some(&mut rng);
            v.put(&path(i), &data).await.unwrap();
            files.push(Some(data));
        }
        if seed % 3 == 0 {
            u.ls_l("d").await.unwrap();
        } else if seed % 3 == 1 {
            u.list("d").await.unwrap();
        }
        let (_, n) = rpcs(&u.fs, async {
            for i in 0..MANY {
                for _ in 0..rng.below(3) / 2 {
                    let j = (i + rng.below(100)).min(MANY - 1);
                    let (at, data) = (path(j), some(&mut rng));
                    match (rng.below(5), &mut files[j as usize]) {
                        (0, file @ Some(_)) => {
                            v.unlink(&at).await.unwrap();
                            *file = None;
                        }
                        (1, Some(file)) => {
                            let fh = v.open(&at, libc::O_WRONLY).await.unwrap();
                            v.write(&fh, 0, &data).await.unwrap();
                            v.close(&fh).await.unwrap();
                            let kept = data.len().min(file.len());
                            *file = [&data[..], &file[kept..]].concat();
                        }
                        (2, Some(file)) => {
                            let cut = SetAttr {
                                size: Some(data.len() as u64),
                                ..Default::default()
                            };
                            let fid = v.fid(&at).await.unwrap();
                            v.fs.setattr(&v.cred, fid, cut, None).await.unwrap();
                            file.resize(data.len(), 0);
                        }
                        (3, file) => {
                            v.put("d/new", &data).await.unwrap();
                            v.rename("d/new", &at, 0).await.unwrap();
                            *file = Some(data);
                        }
                        (_, file) => {
                            v.put(&at, &data).await.unwrap();
                            *file = Some(data);
                        }
                    }
                }
                let how = format!("seed {seed}, file {i}");
                let dir = u.fid("d").await.unwrap();
                let named = path(i)[2..].to_owned();
                let found = u.fs.lookup(&u.cred, dir, named.as_bytes()).await;
                let Some(data) = &files[i as usize] else {
                    assert_eq!(found.err().map(Errno::from), Some(Errno::ENOENT), "{how}");
                    continue;
                };
                let found = found.unwrap().attr;
                assert_eq!(found.size, data.len() as u64, "{how}");
                let flags = libc::O_RDONLY as u32;
                let fh = u.fs.open(&u.cred, found.fid, flags).await.unwrap();
                let read = u.read(&fh, 0, 64 << 10).await.unwrap();
                assert!(read == *data, "{how}: {} of {}", read.len(), data.len());
                u.close(&fh).await.unwrap();
            }
        })
        .await;
        read += n.iter().find(|(op, _)| op == "OST_READ").map_or(0, |r| r.1);
        c.stop().await;
    }
    println!("{read} reads of {} files", seeds * MANY);
    assert!(read < seeds * MANY / 2, "next to nothing was read ahead");
}

/// The files whose pages were to be dropped from the kernel's cache.
#[derive(Default)]
struct Dropped(Mutex<Vec<Fid>>);

impl Invalidate for Dropped {
    fn inval_inode(&self, _: Fid, _: bool) {}
    fn inval_entry(&self, _: Fid, _: &[u8]) {}
    fn drop_pages(&self, fid: Fid, _: Range<u64>) {
        self.0.lock().push(fid);
    }
    fn store_pages(&self, _: Fid, _: u64, _: &Payload) -> bool {
        false
    }
}

/// As a mount does: the pages that the data of a file went to stay in the kernel's cache, under the lock that came with it, also when
/// many others were read since.
#[tokio::test(start_paused = true)]
async fn files_that_were_read_once_are_read_again_without_an_rpc() {
    const MANY: usize = 400;
    let (c, u, v) = dir_of_small_files().await;
    put_files(&v, "d", FILES..MANY).await;
    let dropped = Arc::new(Dropped::default());
    u.fs.set_invalidate(dropped.clone());
    let open = |i: usize| {
        let u = &u;
        async move {
            let dir = u.fid("d").await.unwrap();
            let name = format!("f{i}");
            let file = u.fs.lookup(&u.cred, dir, name.as_bytes()).await.unwrap();
            let flags = libc::O_RDONLY as u32;
            let fh = u.fs.open(&u.cred, file.attr.fid, flags).await.unwrap();
            (u.fs.caches_pages(&fh) && !u.fs.pages_uncovered(&fh), fh)
        }
    };
    let mut kept = Vec::new();
    for i in 0..MANY {
        let (caches, fh) = open(i).await;
        let data = match caches {
            true => u.fs.read_pages(&fh, 0, 4096).await.unwrap().copy_to_bytes(),
            false => u.read(&fh, 0, 4096).await.unwrap().into(),
        };
        assert_eq!(data, content(i).as_bytes());
        u.close(&fh).await.unwrap();
        kept.push(caches);
    }
    assert!(
        kept[6..].iter().all(|k| *k),
        "the kernel may keep what it read"
    );
    // names beyond the last are asked for ahead: until nothing is under way
    tokio::time::sleep(Duration::from_millis(2)).await;
    let (_, n) = rpcs(&u.fs, async {
        for i in 6..MANY - 200 {
            let (caches, fh) = open(i).await;
            assert!(caches, "the pages of file {i} are dropped");
            u.close(&fh).await.unwrap();
        }
    })
    .await;
    assert_eq!(n, counts(&[]));
    // under a lock: who writes has the pages dropped
    let path = format!("d/f{}", MANY - 1);
    assert_eq!(*dropped.0.lock(), []);
    let w = v.open(&path, libc::O_WRONLY).await.unwrap();
    v.write(&w, 0, b"that").await.unwrap();
    let fid = u.fid(&path).await.unwrap();
    assert_eq!(*dropped.0.lock(), [fid]);
    let written = content(MANY - 1).replace("this", "that");
    assert_eq!(read(&u, &path).await, written.as_bytes());
    v.close(&w).await.unwrap();
    c.stop().await;
}

/// Names that do not go on by number.
#[tokio::test(start_paused = true)]
async fn reading_an_unknown_small_file_is_two() {
    let (c, u, v) = dir_of_small_files().await;
    let names = ["d/one", "d/two", "d/three", "d/four", "d/five", "d/six"];
    for name in names {
        v.put(name, name.as_bytes()).await.unwrap();
    }
    for i in 0..4 {
        read_file(&u, i).await;
    }
    let (_, n) = rpcs(&u.fs, async {
        for name in names {
            assert_eq!(read(&u, name).await, name.as_bytes());
        }
    })
    .await;
    assert_eq!(n, counts(&[("LDLM_ENQUEUE", 6), ("OST_READ", 6)]));
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_only_looks_brings_nothing_along() {
    let (c, u, _) = dir_of_small_files().await;
    let (_, n) = rpcs(&u.fs, async {
        let d = u.fid("d").await.unwrap();
        for i in 0..FILES {
            let name = format!("f{i}");
            u.fs.lookup(&u.cred, d, name.as_bytes()).await.unwrap();
        }
    })
    .await;
    assert!(n.iter().all(|(o, _)| o != "OST_READ"), "{n:?}");
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_writes_or_forbids_is_seen() {
    let (c, u, v) = dir_of_small_files().await;
    let d = u.fid("d").await.unwrap();
    for i in 0..6 {
        read_file(&u, i).await;
    }
    // it is here, with those before it
    let (_, n) = rpcs(&u.fs, read_file(&u, 10)).await;
    assert_eq!(n, counts(&[]));
    v.put("d/f10", b"another").await.unwrap();
    assert_eq!(read(&u, "d/f10").await, b"another");
    // of the same size
    let fh = v.open("d/f10", libc::O_WRONLY).await.unwrap();
    v.write(&fh, 0, b"ANOTHER").await.unwrap();
    v.close(&fh).await.unwrap();
    assert_eq!(read(&u, "d/f10").await, b"ANOTHER");
    // and by its own hand
    let fh = u.open("d/f10", libc::O_WRONLY).await.unwrap();
    u.write(&fh, 0, b"m").await.unwrap();
    u.close(&fh).await.unwrap();
    assert_eq!(read(&u, "d/f10").await, b"mNOTHER");
    u.fs.lookup(&u.cred, d, b"f11").await.unwrap();
    let cut = SetAttr {
        size: Some(4),
        ..Default::default()
    };
    let f = u.fid("d/f11").await.unwrap();
    u.fs.setattr(&u.cred, f, cut, None).await.unwrap();
    assert_eq!(read(&u, "d/f11").await, b"this");
    // what was opened along is not open for whom it would not be
    u.fs.lookup(&u.cred, d, b"f12").await.unwrap();
    let f = u.fid("d/f12").await.unwrap();
    let secret = SetAttr {
        mode: Some(0o600),
        ..Default::default()
    };
    v.fs.setattr(&v.cred, f, secret, None).await.unwrap();
    let nobody = User::new(&u.fs, 9, 9);
    assert_eq!(
        nobody.open("d/f12", libc::O_RDONLY).await.err(),
        Some(Errno::EACCES)
    );
    // nor after its last name has gone
    u.fs.lookup(&u.cred, d, b"f13").await.unwrap();
    v.unlink("d/f13").await.unwrap();
    assert_eq!(
        u.open("d/f13", libc::O_RDONLY).await.err(),
        Some(Errno::ENOENT)
    );
    c.stop().await;
}

/// Who may not read is not helped, and sees what it would have seen.
#[tokio::test(start_paused = true)]
async fn a_lookup_of_what_cannot_be_read_is_a_lookup() {
    let (c, u, v) = dir_of_small_files().await;
    for i in 0..6 {
        read_file(&u, i).await;
    }
    let f = v.fid("d/f15").await.unwrap();
    let secret = SetAttr {
        mode: Some(0o600),
        ..Default::default()
    };
    v.fs.setattr(&v.cred, f, secret, None).await.unwrap();
    v.mkdir("d/sub").await.unwrap();
    let nobody = User::new(&u.fs, 9, 9);
    let d = u.fid("d").await.unwrap();
    let seen = u.fs.lookup(&nobody.cred, d, b"f15").await.unwrap().attr;
    assert_eq!((seen.mode & 0o777, seen.size), (0o600, 15));
    for i in 6..12 {
        read_file(&u, i).await;
    }
    let sub = u.fs.lookup(&u.cred, d, b"sub").await.unwrap().attr;
    assert!(sub.is_dir());
    let none = u.fs.lookup(&u.cred, d, b"none").await.err();
    assert_eq!(none.map(Errno::from), Some(Errno::ENOENT));
    c.stop().await;
}
