//! What is read ahead and stored into the kernel's page cache, above two clients: it never shows what was, never goes over what a mapping
//! has changed, and never makes a file longer. The kernel is the model of `pages.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use crate::pages::{HANGS, Kernel, PAGE};
use coral_client::{FileHandle, SetAttr};

const STRIPE: u32 = 65536;
/// The file is no longer than this, pages.
const PAGES: u64 = 700;

/// One of two mounts, with a file that it reads.
struct Side {
    u: User,
    k: Arc<Kernel>,
    ro: Arc<FileHandle>,
}

impl Side {
    async fn open(c: &Cluster, path: &str, local: bool) -> Side {
        let fs = match local {
            true => c.client().await,
            false => c.remote_client().await,
        };
        let (u, k) = (User::root(&fs), Kernel::new(&fs));
        let ro = u.open(path, libc::O_RDONLY).await.unwrap();
        Side { u, k, ro }
    }

    /// Reads some blocks at one distance, or one after the other, and compares.
    async fn stride(&self, rng: &mut Rng, model: &[u8], what: &str) {
        let pages = (model.len() as u64).div_ceil(PAGE).max(1);
        let block = [1, 1, 2, 16, 16][rng.below(5) as usize];
        // every third time from there on
        let stride = match rng.below(3) {
            0 => block,
            _ => block + 1 + rng.below(2 * block),
        };
        let first = rng.below(pages.min(40));
        let most = 4 + rng.below(200) as usize;
        for at in (first..pages).step_by(stride as usize).take(most) {
            let got = self.k.read(&self.ro, at..at + block).await.concat();
            let from = (at * PAGE) as usize;
            let to = model.len().min(from + got.len());
            assert!(got[..to - from] == model[from..to], "{what}: page {at}");
        }
    }

    /// Opens the file for writing, changes it in some way, and closes it.
    async fn change(&self, rng: &mut Rng, model: &mut Vec<u8>, path: &str, value: u8) {
        let (u, k) = (&self.u, &self.k);
        let rw = u.open(path, libc::O_RDWR).await.unwrap();
        k.writes(Some(&rw));
        for i in 0..1 + rng.below(4) {
            let pages = model.len() as u64 / PAGE;
            if pages > 0 && rng.below(2) == 0 {
                let page = rng.below(pages);
                let data = [value ^ i as u8; PAGE as usize];
                k.store(&rw, page, data.to_vec()).await;
                let at = (page * PAGE) as usize;
                model[at..at + PAGE as usize].copy_from_slice(&data);
            } else {
                k.clean(&rw).await;
                let page = rng.below(PAGES);
                let data = [value ^ i as u8; PAGE as usize];
                k.write(u, &rw, page, &data).await;
                let (at, end) = ((page * PAGE) as usize, ((page + 1) * PAGE) as usize);
                model.resize(model.len().max(end), 0);
                model[at..end].copy_from_slice(&data);
            }
        }
        k.clean(&rw).await;
        u.close(&rw).await.unwrap();
        k.writes(None);
    }
}

/// Two mounts read at strides, write, cut and change mapped pages, one after the other; what is stored into their kernels meanwhile comes
/// when it comes. How many pages were stored.
async fn as_a_vector(seed: u64, stripes: u16) -> u64 {
    let c = Cluster::start(2, stripes, STRIPE).await;
    let mut rng = Rng(seed);
    let mut model: Vec<u8> = (0..PAGES * PAGE).map(|i| (i / PAGE) as u8).collect();
    let first = User::root(&c.client().await);
    first.put("f", &model).await.unwrap();
    let sides = [
        Side::open(&c, "f", true).await,
        Side::open(&c, "f", false).await,
    ];
    let longest = |n: u64| {
        for s in &sides {
            s.k.size.store(n, Ordering::SeqCst);
        }
    };
    for step in 0..120u64 {
        let what = format!("seed {seed} step {step}, {stripes} stripes");
        let side = &sides[rng.below(2) as usize];
        match rng.below(8) {
            0..4 => side.stride(&mut rng, &model, &what).await,
            4..6 => {
                longest(PAGES * PAGE);
                side.change(&mut rng, &mut model, "f", step as u8).await;
                longest(model.len() as u64);
            }
            6 => {
                let size = rng.below(PAGES * PAGE);
                longest(size.max(model.len() as u64));
                let set = SetAttr {
                    size: Some(size),
                    ..Default::default()
                };
                let u = &side.u;
                let fid = side.ro.fid();
                u.fs.setattr(&u.cred, fid, set, None).await.unwrap();
                side.k.cut(size).await;
                model.resize(size as usize, 0);
                longest(size);
            }
            _ => side.k.forget().await,
        }
        let other = &sides[rng.below(2) as usize];
        other.stride(&mut rng, &model, &what).await;
    }
    for s in &sides {
        s.u.close(&s.ro).await.unwrap();
    }
    let stored = sides.iter().map(|s| s.k.stored.load(Ordering::Relaxed));
    let stored = stored.sum();
    c.stop().await;
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_stored_is_what_a_vector_has() {
    let mut stored = 0;
    for seed in 1..=8u64 {
        let one = as_a_vector(seed, 1 + (seed % 2) as u16);
        stored += tokio::time::timeout(HANGS, one).await.expect("it hangs");
    }
    println!("{stored} pages were stored");
    assert!(stored > 1000, "{stored} pages were stored");
}

/// Where a file ended when it was opened is not where reading ahead ends.
#[tokio::test(start_paused = true)]
async fn a_file_that_grew_elsewhere_is_read_ahead() {
    let c = Cluster::start(1, 1, STRIPE).await;
    let first = User::root(&c.client().await);
    first.put("f", &vec![1; 20 * PAGE as usize]).await.unwrap();
    let side = Side::open(&c, "f", false).await;
    let data = vec![2; (PAGES * PAGE) as usize];
    let w = first.open("f", libc::O_WRONLY).await.unwrap();
    first.write(&w, 0, &data).await.unwrap();
    first.close(&w).await.unwrap();
    for page in (0..PAGES).step_by(3) {
        let got = side.k.read(&side.ro, page..page + 1).await.concat();
        assert!(got == data[..PAGE as usize], "page {page}");
        // until nothing is under way
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let asked = side.k.asked.load(Ordering::Relaxed);
    assert!(asked < 20, "the kernel asked {asked} times");
    c.stop().await;
}

/// Readers at strides on both mounts beside writers that open the file for each write: no reader finds a page older than what was written
/// before it asked, and nobody waits in a circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_stored_is_older_than_what_was_written() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let page_of = |n: u64| n.to_le_bytes().repeat(PAGE as usize / 8);
    let first = User::root(&c.client().await);
    let zeroes = page_of(0).repeat(PAGES as usize);
    first.put("f", &zeroes).await.unwrap();
    let written: Arc<Vec<AtomicU64>> = Arc::new((0..PAGES).map(|_| AtomicU64::new(0)).collect());
    let ended = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    let mut kernels = Vec::new();
    for i in 0..2u64 {
        let side = Side::open(&c, "f", i == 0).await;
        kernels.push(side.k.clone());
        for r in 0..2 {
            let (k, fs, written) = (side.k.clone(), side.u.fs.clone(), written.clone());
            let ended = ended.clone();
            tasks.spawn(async move {
                let (mut rng, u) = (Rng(100 + 10 * i + r), User::root(&fs));
                while ended.load(Ordering::SeqCst) < 2 {
                    let ro = u.open("f", libc::O_RDONLY).await.unwrap();
                    let (from, apart) = (rng.below(20), 1 + rng.below(4));
                    for page in (from..PAGES).step_by(apart as usize) {
                        let floor = written[page as usize].load(Ordering::SeqCst);
                        let got = k.read(&ro, page..page + 1).await.concat();
                        let n = u64::from_le_bytes(got[..8].try_into().unwrap());
                        assert!(n >= floor, "page {page} is {n} after {floor}");
                        tokio::task::yield_now().await;
                    }
                    u.close(&ro).await.unwrap();
                }
            });
        }
        let (fs, k, written) = (side.u.fs.clone(), side.k.clone(), written.clone());
        let ended = ended.clone();
        tasks.spawn(async move {
            let (mut rng, u) = (Rng(7 + i), User::root(&fs));
            for n in 1..=40u64 {
                let page = 2 * rng.below(PAGES / 2) + i;
                let w = u.open("f", libc::O_WRONLY).await.unwrap();
                k.write(&u, &w, page, &n.to_le_bytes().repeat(512)).await;
                written[page as usize].store(n, Ordering::SeqCst);
                u.close(&w).await.unwrap();
                // readers come to read ahead
                tokio::time::sleep(Duration::from_millis(rng.below(20))).await;
            }
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    let done = tokio::time::timeout(HANGS, all).await;
    done.expect("something waits in a circle");
    for k in kernels {
        assert!(k.stored.load(Ordering::Relaxed) > 0, "some were stored");
    }
    c.stop().await;
}
