//! The kernel's page cache above two clients, as a model that locks pages the way the kernel does: before it asks for their
//! data, and again to drop them. Every page holds a number that only grows; a read must never find one that is older than what
//! was written before the read began, and nothing may ever wait in a circle.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use coral_buffers::Payload;
use coral_client::{FileHandle, Invalidate, Llite, SetAttr};
use coral_wire::{Errno, Fid};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

pub const PAGE: u64 = 4096;
const STRIPE: u32 = 65536;
/// Pages of the file: three stripes and a bit, over two objects.
const PAGES: u64 = 50;
/// Requests of one client to an OST at once.
const IN_FLIGHT: usize = 8;
/// A test that takes longer hangs.
pub const HANGS: Duration = Duration::from_secs(240);

#[derive(Default)]
struct Page {
    data: Option<Vec<u8>>,
    dirty: bool,
}

type Folio = Arc<tokio::sync::Mutex<Page>>;

/// One mount's page cache of one file.
pub struct Kernel {
    fs: Arc<Llite>,
    pages: Mutex<BTreeMap<u64, Folio>>,
    /// A handle to write back through.
    writer: Mutex<Option<Arc<FileHandle>>>,
    /// No write-back goes out while somebody truncates (`fuse_set_nowrite`).
    truncating: tokio::sync::RwLock<()>,
    dropped: AtomicU64,
    /// Dirty pages that could not be written back: EIO.
    lost: AtomicU64,
    /// Pages that were stored by the client.
    pub stored: AtomicU64,
    /// Requests for pages.
    pub asked: AtomicU64,
    /// The file is no longer than this, bytes.
    pub size: AtomicU64,
}

impl Kernel {
    pub fn new(fs: &Arc<Llite>) -> Arc<Kernel> {
        let k = Arc::new(Kernel {
            fs: fs.clone(),
            pages: Mutex::default(),
            writer: Mutex::default(),
            truncating: Default::default(),
            dropped: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            size: AtomicU64::new(u64::MAX),
        });
        fs.set_invalidate(Arc::new(Drops(k.clone())));
        k
    }

    fn folio(&self, page: u64) -> Folio {
        self.pages.lock().entry(page).or_default().clone()
    }

    /// Reads whole pages as read-ahead does: locks runs of pages that are not there, asks for each run at once. Of pages that
    /// are there it holds no lock longer than it takes to copy them.
    pub async fn read(&self, fh: &FileHandle, pages: Range<u64>) -> Vec<Vec<u8>> {
        let (mut out, mut run, end) = (Vec::new(), Vec::new(), pages.end);
        for p in pages {
            let folio = self.folio(p);
            let page = match folio.clone().try_lock_owned() {
                Ok(page) => page,
                // somebody else fills it: what is locked here is asked for before that is waited for
                Err(_) => {
                    self.fill(fh, p - run.len() as u64, &mut run, &mut out)
                        .await;
                    folio.lock_owned().await
                }
            };
            match page.data.clone() {
                Some(data) => {
                    drop(page);
                    self.fill(fh, p - run.len() as u64, &mut run, &mut out)
                        .await;
                    out.push(data);
                }
                None => run.push(page),
            }
        }
        self.fill(fh, end - run.len() as u64, &mut run, &mut out)
            .await;
        out
    }

    /// Fills a run of locked pages that begins with page `first`, and unlocks them.
    async fn fill(
        &self,
        fh: &FileHandle,
        first: u64,
        run: &mut Vec<OwnedMutexGuard<Page>>,
        out: &mut Vec<Vec<u8>>,
    ) {
        if run.is_empty() {
            return;
        }
        let len = run.len() * PAGE as usize;
        self.asked.fetch_add(1, Ordering::Relaxed);
        let got = self
            .fs
            .read_pages(fh, first * PAGE, len as u32)
            .await
            .unwrap()
            .copy_to_bytes();
        assert!(got.len() <= len);
        let got = [&got[..], &vec![0; len - got.len()]].concat();
        for (page, data) in run.drain(..).zip(got.chunks_exact(PAGE as usize)) {
            let mut page = page;
            page.data = Some(data.to_vec());
            out.push(data.to_vec());
        }
    }

    /// A store through a mapping.
    pub async fn store(&self, fh: &FileHandle, page: u64, bytes: Vec<u8>) {
        let folio = self.folio(page);
        let mut f = folio.lock().await;
        if f.data.is_none() {
            self.fs
                .read_pages(fh, page * PAGE, PAGE as u32)
                .await
                .unwrap();
        }
        f.data = Some(bytes);
        f.dirty = true;
    }

    /// What is dirty is written back through this handle from now on.
    pub fn writes(&self, fh: Option<&Arc<FileHandle>>) {
        *self.writer.lock() = fh.cloned();
    }

    /// The pages a write around the cache goes to are dropped first.
    pub async fn write(&self, u: &User, fh: &FileHandle, page: u64, bytes: &[u8]) {
        let folio = self.folio(page);
        let mut f = folio.lock().await;
        assert!(!f.dirty, "the test keeps stores and writes apart");
        f.data = None;
        drop(f);
        u.write(fh, page * PAGE, bytes).await.unwrap();
    }

    /// The end of the last mapping, or a close: what is dirty is written back.
    pub async fn clean(&self, fh: &FileHandle) {
        let all: Vec<_> = self.pages.lock().clone().into_iter().collect();
        for (page, folio) in all {
            let mut f = folio.lock().await;
            if std::mem::replace(&mut f.dirty, false) {
                let data = payload(f.data.as_ref().expect("a dirty page has data"));
                self.fs.write_pages(fh, page * PAGE, data).await.unwrap();
            }
        }
    }

    /// Pages go for want of memory.
    pub async fn forget(&self) {
        let all = self.pages.lock().clone();
        for folio in all.into_values() {
            let mut page = folio.lock().await;
            if !page.dirty {
                page.data = None;
            }
        }
    }

    /// The file was cut, or made longer, to `size` bytes by this mount.
    pub async fn cut(&self, size: u64) {
        let from = self.pages.lock().split_off(&size.div_ceil(PAGE));
        for folio in from.into_values() {
            folio.lock().await.data = None;
        }
        let last = self.folio(size / PAGE);
        if let Some(data) = &mut last.lock().await.data {
            data[(size % PAGE) as usize..].fill(0);
        }
    }

    /// The client has pages that nobody asked for.
    fn store_pages(&self, offset: u64, data: &[u8]) -> bool {
        let size = self.size.load(Ordering::SeqCst);
        let end = offset + data.len() as u64;
        assert!(end <= size, "a store to {end} in a file of {size} bytes");
        assert!(offset.is_multiple_of(PAGE) && end.is_multiple_of(PAGE));
        for (page, data) in (offset / PAGE..).zip(data.chunks(PAGE as usize)) {
            let folio = self.folio(page);
            let mut f = folio.blocking_lock();
            assert!(!f.dirty, "a store goes over what a mapping has changed");
            f.data = Some(data.to_vec());
            self.stored.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn drop_pages(&self, range: Range<u64>) {
        let rt = tokio::runtime::Handle::current();
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let there: Vec<(u64, Folio)> = self
            .pages
            .lock()
            .range(pages)
            .map(|(p, f)| (*p, f.clone()))
            .collect();
        for (page, folio) in there {
            let mut f = folio.blocking_lock();
            if f.dirty {
                let fh = self.writer.lock().clone();
                let fh = &fh.expect("dirty pages have a writer");
                let data = f.data.clone().unwrap();
                rt.block_on(async {
                    let _queued = self.truncating.read().await;
                    let written = self.fs.write_pages(fh, page * PAGE, payload(&data)).await;
                    match written.map_err(Errno::from) {
                        Ok(_) => {}
                        Err(Errno::EIO) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
                        Err(e) => panic!("write-back: {e}"),
                    }
                });
                f.dirty = false;
            }
            if f.data.take().is_some() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

struct Drops(Arc<Kernel>);

impl Invalidate for Drops {
    fn inval_inode(&self, _: Fid, _: bool) {}
    fn inval_entry(&self, _: Fid, _: &[u8]) {}
    fn drop_pages(&self, _: Fid, range: Range<u64>) {
        self.0.drop_pages(range);
    }
    fn store_pages(&self, _: Fid, offset: u64, data: &Payload) -> bool {
        self.0.store_pages(offset, &data.copy_to_bytes())
    }
}

fn page_of(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(PAGE as usize / 8)
}

fn number(page: &[u8]) -> u64 {
    let n = u64::from_le_bytes(page[..8].try_into().unwrap());
    assert!(
        page.chunks_exact(8).all(|c| c == n.to_le_bytes()),
        "a page is one number"
    );
    n
}

/// What is known to be written, page by page.
type Written = Arc<Vec<AtomicU64>>;

async fn reader(k: Arc<Kernel>, fh: Arc<FileHandle>, written: Written, mut rng: Rng, rounds: u64) {
    for _ in 0..rounds {
        let first = rng.below(PAGES);
        let end = (first + 1 + rng.below(24)).min(PAGES);
        // together, or every so many pages, which are then read ahead
        let runs: Vec<Range<u64>> = match rng.below(4) {
            0 => std::iter::once(first..end).collect(),
            apart => (first..PAGES)
                .step_by(apart as usize + 1)
                .map(|p| p..p + 1)
                .collect(),
        };
        for run in runs {
            let floor: Vec<u64> = run
                .clone()
                .map(|p| written[p as usize].load(Ordering::SeqCst))
                .collect();
            let got = k.read(&fh, run.clone()).await;
            for ((page, floor), n) in run.zip(floor).zip(got.iter().map(|p| number(p))) {
                assert!(
                    n >= floor,
                    "page {page} read as {n} after {floor} was written"
                );
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Numbers go up in the pages that are this task's alone; every so often the file is cut to the length it has.
async fn writer(
    k: Arc<Kernel>,
    u: User,
    fh: Arc<FileHandle>,
    written: Written,
    mine: (u64, u64),
    stores: bool,
    rounds: u64,
) {
    let mut rng = Rng(77 + mine.0);
    for n in 1..=rounds {
        let page = loop {
            let p = rng.below(PAGES);
            if p % mine.1 == mine.0 {
                break p;
            }
        };
        match stores {
            true => k.store(&fh, page, page_of(n)).await,
            false => k.write(&u, &fh, page, &page_of(n)).await,
        }
        written[page as usize].store(n, Ordering::SeqCst);
        if n % 16 == 0 {
            let set = SetAttr {
                size: Some(PAGES * PAGE),
                ..Default::default()
            };
            let _nowrite = k.truncating.write().await;
            u.fs.setattr(&u.cred, fh.fid(), set, Some(&fh))
                .await
                .unwrap();
        }
        tokio::task::yield_now().await;
    }
}

async fn contend(stores: bool) {
    let c = Cluster::start(2, 2, STRIPE).await;
    let fss = [c.client().await, c.remote_client().await];
    let first = User::root(&fss[0]);
    first
        .put("f", &page_of(0).repeat(PAGES as usize))
        .await
        .unwrap();
    let written: Written = Arc::new((0..PAGES).map(|_| AtomicU64::new(0)).collect());
    let mut tasks = tokio::task::JoinSet::new();
    let mut kernels = Vec::new();
    for (i, fs) in fss.iter().enumerate() {
        let (k, u) = (Kernel::new(fs), User::root(fs));
        let rw = u.open("f", libc::O_RDWR).await.unwrap();
        k.writes(Some(&rw));
        for r in 0..2 {
            let ro = u.open("f", libc::O_RDONLY).await.unwrap();
            tasks.spawn(reader(
                k.clone(),
                ro,
                written.clone(),
                Rng(1000 + 10 * i as u64 + r),
                150,
            ));
        }
        tasks.spawn(writer(
            k.clone(),
            User::root(fs),
            rw.clone(),
            written.clone(),
            (2 * i as u64, 4),
            false,
            60,
        ));
        if stores {
            tasks.spawn(writer(
                k.clone(),
                User::root(fs),
                rw,
                written.clone(),
                (2 * i as u64 + 1, 4),
                true,
                60,
            ));
        }
        kernels.push(k);
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    tokio::time::timeout(HANGS, all)
        .await
        .expect("something waits in a circle");
    assert!(
        kernels
            .iter()
            .all(|k| k.dropped.load(Ordering::Relaxed) > 0),
        "locks were lost on the way"
    );
    assert!(
        kernels.iter().all(|k| k.lost.load(Ordering::Relaxed) == 0),
        "nobody was evicted"
    );
    // what is in the end: every page as last written, seen by both
    for k in &kernels {
        let fh = k.writer.lock().clone().unwrap();
        let got = k.read(&fh, 0..PAGES).await;
        for (p, page) in got.iter().enumerate() {
            assert_eq!(number(page), written[p].load(Ordering::SeqCst), "page {p}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cached_pages_are_never_older_than_what_was_written() {
    contend(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn mapped_pages_of_two_clients_agree() {
    contend(true).await;
}

/// Pages stay while nobody objects, also beyond close; the other client's write takes them away before it returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_stay_until_somebody_writes() {
    let c = Cluster::start(1, 1, STRIPE).await;
    let (a, b) = (c.client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    ua.put("f", &page_of(1).repeat(4)).await.unwrap();
    let k = Kernel::new(&b);
    let fh = ub.open("f", libc::O_RDONLY).await.unwrap();
    assert!(
        !b.caches_pages(&fh),
        "the MDT knows that it is small, and most small files are read once"
    );
    ub.close(&fh).await.unwrap();
    let fh = ub.open("f", libc::O_RDONLY).await.unwrap();
    assert!(b.caches_pages(&fh));
    k.read(&fh, 0..4).await;
    ub.close(&fh).await.unwrap();
    assert_eq!(b.covered_files(), 1);
    let fh = ub.open("f", libc::O_RDONLY).await.unwrap();
    let before: u64 = b.statistics().iter().map(|s| s.1).sum();
    k.read(&fh, 0..4).await;
    assert_eq!(
        b.statistics().iter().map(|s| s.1).sum::<u64>(),
        before,
        "all pages are there"
    );
    let w = ua.open("f", libc::O_WRONLY).await.unwrap();
    ua.write(&w, PAGE, &page_of(2)).await.unwrap();
    assert_eq!(k.dropped.load(Ordering::Relaxed), 4);
    let got = k.read(&fh, 0..4).await;
    assert_eq!(
        got.iter().map(|p| number(p)).collect::<Vec<_>>(),
        [1, 2, 1, 1]
    );
}

/// What lies at one distance is read ahead, with few requests, and stored into the kernel's cache, which asks for little of it; and is what
/// the file has, to its end.
#[tokio::test(start_paused = true)]
async fn blocks_at_one_distance_are_read_ahead() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let pages = 1000;
    let data: Vec<u8> = (0..pages).flat_map(page_of).collect();
    u.put("f", &data).await.unwrap();
    let k = Kernel::new(&fs);
    // blocks of so many pages at that distance: so many requests to OSTs, and so many of the kernel
    for (block, stride, most, asked) in [
        (1, 2, 12, 8),
        (1, 9, 8, 6),
        (16, 32, 12, 9),
        (1, 100, 8, 6),
        (100, 300, 16, 8),
    ] {
        let fh = u.open("f", libc::O_RDONLY).await.unwrap();
        assert!(fs.caches_pages(&fh));
        let before = k.asked.load(Ordering::Relaxed);
        let (_, sent) = rpcs(&fs, async {
            for first in (0..pages).step_by(stride as usize) {
                let all = first..(first + block).min(pages);
                let got = k.read(&fh, all.clone()).await;
                let got: Vec<u64> = got.iter().map(|p| number(p)).collect();
                assert_eq!(got, all.collect::<Vec<_>>(), "{block} by {stride}");
                // until nothing is under way
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        let reads = sent.iter().filter(|(name, _)| name == "OST_READ");
        let reads: u64 = reads.map(|(_, n)| *n).sum();
        let by_kernel = k.asked.load(Ordering::Relaxed) - before;
        println!("{block} by {stride}: {reads} reads, {by_kernel} requests of the kernel");
        assert!(reads <= most, "{block} by {stride}: {reads} reads");
        assert!(by_kernel <= asked, "{block} by {stride}: {by_kernel}");
        u.close(&fh).await.unwrap();
        k.forget().await;
    }
    fs.umount().await;
    c.stop().await;
}

/// What a program reads in a row is read ahead, with few requests, and served; and is what the file has, to its end, which lies within a
/// page.
#[tokio::test(start_paused = true)]
async fn what_is_read_in_a_row_is_read_ahead() {
    let c = Cluster::start(2, 2, 1 << 20).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let pages = 3001;
    let mut data: Vec<u8> = (0..pages).flat_map(page_of).collect();
    data.truncate(data.len() - 1000);
    u.put("f", &data).await.unwrap();
    let k = Kernel::new(&fs);
    // requests of the kernel of so many pages: so many to OSTs at most
    for (block, most) in [(16, 60), (32, 55)] {
        let fh = u.open("f", libc::O_RDONLY).await.unwrap();
        assert!(fs.caches_pages(&fh));
        let (_, sent) = rpcs(&fs, async {
            for first in (0..pages).step_by(block as usize) {
                let got = k
                    .read(&fh, first..(first + block).min(pages))
                    .await
                    .concat();
                let from = (first * PAGE) as usize;
                let to = data.len().min(from + got.len());
                assert!(got[..to - from] == data[from..to], "{block}: page {first}");
                assert!(got[to - from..].iter().all(|b| *b == 0));
            }
        })
        .await;
        let reads = sent.iter().filter(|(name, _)| name == "OST_READ");
        let reads: u64 = reads.map(|(_, n)| *n).sum();
        println!("{block} pages: {reads} reads");
        assert!(reads <= most, "{block} pages: {reads} reads");
        u.close(&fh).await.unwrap();
        k.forget().await;
    }
    fs.umount().await;
    c.stop().await;
}

/// What a writer's close told the MDT of the size decides: a large file is worth a lock at once.
#[tokio::test]
async fn the_mdt_hears_of_sizes_at_close() {
    let c = Cluster::start(2, 2, STRIPE).await;
    let (a, b) = (c.client().await, c.remote_client().await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    Kernel::new(&b);
    for (name, pages, at_once) in [("small", 16, false), ("large", 17, true)] {
        ua.put(name, &page_of(1).repeat(pages)).await.unwrap();
        let fh = ub.open(name, libc::O_RDONLY).await.unwrap();
        assert_eq!(b.caches_pages(&fh), at_once, "{name}");
        ub.close(&fh).await.unwrap();
    }
    let w = ua
        .open("large", libc::O_RDWR | libc::O_TRUNC)
        .await
        .unwrap();
    ua.write(&w, 0, b"little").await.unwrap();
    ua.close(&w).await.unwrap();
    let other = c.remote_client().await;
    Kernel::new(&other);
    let fh = User::root(&other)
        .open("large", libc::O_RDONLY)
        .await
        .unwrap();
    assert!(!other.caches_pages(&fh), "cut and small now");
}

/// A file opened for writing here is covered for writing: a cover for reading goes first, with its pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_takes_the_read_cover_away() {
    let c = Cluster::start(1, 1, STRIPE).await;
    let a = c.client().await;
    let u = User::root(&a);
    u.put("f", &page_of(1).repeat(4)).await.unwrap();
    let k = Kernel::new(&a);
    let fh = u.open("f", libc::O_RDONLY).await.unwrap();
    k.read(&fh, 0..4).await;
    let w = u.open("f", libc::O_RDWR).await.unwrap();
    assert_eq!(k.dropped.load(Ordering::Relaxed), 4);
    assert!(!a.caches_pages(&w), "its reads and writes go around");
    *k.writer.lock() = Some(w.clone());
    k.store(&w, 2, page_of(9)).await;
    // an append of the same client writes the stored page back first
    let log = u.open("f", libc::O_WRONLY | libc::O_APPEND).await.unwrap();
    u.write(&log, 0, &page_of(3)).await.unwrap();
    let got = u.read(&w, 0, 5 * PAGE as u32).await.unwrap();
    assert_eq!(
        got.chunks_exact(PAGE as usize)
            .map(number)
            .collect::<Vec<_>>(),
        [1, 1, 9, 1, 3]
    );
}

/// A client that is cut off holds others up no longer than the server's limits say. What it had stored and not written back is
/// lost, which it is told as EIO; then it is a client as before.
#[tokio::test(start_paused = true)]
async fn who_is_cut_off_is_evicted_and_comes_back() {
    const CUT_OFF: &str = "10.9.0.1@tcp";
    /// A callback is sent again until 20 s are over, a lock must be back within 100 s.
    const LIMIT: Duration = Duration::from_secs(120);
    let c = Cluster::start(1, 1, STRIPE).await;
    let (a, b) = (c.remote_client().await, c.client_at(CUT_OFF, "").await);
    let (ua, ub) = (User::root(&a), User::root(&b));
    ua.put("f", &page_of(1).repeat(4)).await.unwrap();
    let k = Kernel::new(&b);
    let rw = ub.open("f", libc::O_RDWR).await.unwrap();
    k.writes(Some(&rw));
    k.read(&rw, 0..4).await;
    k.store(&rw, 2, page_of(7)).await;
    let (there, server) = (CUT_OFF.parse().unwrap(), SERVER.parse().unwrap());
    c.net.cut(there, server, true);
    let began = tokio::time::Instant::now();
    let w = ua.open("f", libc::O_WRONLY).await.unwrap();
    ua.write(&w, PAGE, &page_of(2)).await.unwrap();
    assert!(
        began.elapsed() < LIMIT,
        "the writer waited {:?}",
        began.elapsed()
    );
    assert_eq!(c.ost(0).stats().evictions.value(), 1);
    assert_eq!(k.lost.load(Ordering::Relaxed), 0, "it cannot know yet");
    c.net.cut(there, server, false);
    let noticed = async {
        while k.lost.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), noticed)
        .await
        .expect("it notices by itself");
    let got = k.read(&rw, 0..4).await;
    assert_eq!(
        got.iter().map(|p| number(p)).collect::<Vec<_>>(),
        [1, 2, 1, 1],
        "the store is lost, the other's write is there"
    );
    k.store(&rw, 3, page_of(8)).await;
    assert_eq!(
        ua.get("f")
            .await
            .unwrap()
            .chunks_exact(PAGE as usize)
            .map(number)
            .collect::<Vec<_>>(),
        [1, 2, 1, 8]
    );
    assert_eq!(k.lost.load(Ordering::Relaxed), 1);
}

/// Words in a page.
const WORDS: u64 = PAGE / 8;

/// What was appended is there for every reader, also in a page that was read when it was shorter, and the size is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_append_is_seen_at_once() {
    let c = Cluster::start(2, 1, STRIPE).await;
    let fss = [c.client().await, c.remote_client().await];
    User::root(&fss[0]).put("log", b"").await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let mut readers = tokio::task::JoinSet::new();
    let mut kernels = Vec::new();
    for fs in &fss {
        let (k, u, done) = (Kernel::new(fs), User::root(fs), done.clone());
        let fh = u.open("log", libc::O_RDONLY).await.unwrap();
        kernels.push((k.clone(), fh.clone()));
        readers.spawn(async move {
            while done.load(Ordering::SeqCst) < 3 * WORDS / 2 {
                check_log(&k, &fh, done.load(Ordering::SeqCst)).await;
                tokio::task::yield_now().await;
            }
        });
    }
    let appends = async {
        let mut logs = Vec::new();
        for fs in &fss {
            logs.push(
                User::root(fs)
                    .open("log", libc::O_WRONLY | libc::O_APPEND)
                    .await
                    .unwrap(),
            );
        }
        for n in 1..=3 * WORDS / 2 {
            // runs of appends of one client, so that it has the lock already, or keeps them back
            let by = (n / 5 % 2) as usize;
            let u = User::root(&fss[by]);
            if n % 20 < 10 {
                u.write(&logs[by], 0, &n.to_le_bytes()).await.unwrap();
            } else {
                let fh = u
                    .open("log", libc::O_WRONLY | libc::O_APPEND)
                    .await
                    .unwrap();
                u.write(&fh, 0, &n.to_le_bytes()).await.unwrap();
                u.close(&fh).await.unwrap();
            }
            done.store(n, Ordering::SeqCst);
            if n % 3 == 0 {
                for (i, (k, fh)) in kernels.iter().enumerate() {
                    check_log(k, fh, n).await;
                    assert_eq!(User::root(&fss[i]).stat("log").await.unwrap().size, 8 * n);
                }
            }
        }
        while readers.join_next().await.transpose().unwrap().is_some() {}
    };
    tokio::time::timeout(HANGS, appends)
        .await
        .expect("something waits in a circle");
}

/// The first `count` words of the log are there.
async fn check_log(k: &Arc<Kernel>, fh: &FileHandle, count: u64) {
    let got = k.read(fh, 0..count.div_ceil(WORDS)).await.concat();
    for (i, word) in got.chunks_exact(8).take(count as usize).enumerate() {
        assert_eq!(
            u64::from_le_bytes(word.try_into().unwrap()),
            i as u64 + 1,
            "of {count} appended"
        );
    }
}

/// A kernel that drops no pages before it is told to.
struct Holds {
    asked: tokio::sync::Semaphore,
    go: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Invalidate for Holds {
    fn inval_inode(&self, _fid: Fid, _attr_only: bool) {}
    fn inval_entry(&self, _parent: Fid, _name: &[u8]) {}
    fn drop_pages(&self, _fid: Fid, _range: Range<u64>) {
        self.asked.add_permits(1);
        // an error: the test is over
        let _ = self.go.lock().recv();
    }
}

/// Reads around the cache that wait for this client's own lock have taken all places for requests to the OST: what goes under the
/// lock needs none, or the lock would never be given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_under_a_lock_waits_for_none_that_waits_for_the_lock() {
    let c = Cluster::start(1, 1, STRIPE).await;
    let fs = c.remote_client().await;
    let (tell, go) = std::sync::mpsc::channel();
    let holds = Arc::new(Holds {
        asked: tokio::sync::Semaphore::new(0),
        go: Mutex::new(go),
    });
    fs.set_invalidate(holds.clone());
    let u = Arc::new(User::root(&fs));
    u.put("f", &[1; 3 * PAGE as usize]).await.unwrap();
    let fh = u.open("f", libc::O_RDWR).await.unwrap();
    fs.read_pages(&fh, 0, PAGE as u32).await.unwrap();
    let reads: Vec<_> = (0..32)
        .map(|_| {
            let (u, fh) = (u.clone(), fh.clone());
            tokio::spawn(async move { u.read(&fh, 0, 100).await })
        })
        .collect();
    let under = async {
        holds.asked.acquire().await.unwrap().forget();
        // the lock asked back, and as many that wait for it as there are places
        while c.ost(0).ldlm().counts().0 < 1 + IN_FLIGHT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(u.stat("f").await.unwrap().size, 3 * PAGE);
        let set = SetAttr {
            size: Some(PAGE),
            ..Default::default()
        };
        assert_eq!(
            fs.setattr(&u.cred, fh.fid(), set, Some(&fh))
                .await
                .unwrap()
                .attr
                .size,
            PAGE
        );
    };
    tokio::time::timeout(HANGS, under)
        .await
        .expect("it waits in a circle");
    drop(tell);
    for r in reads {
        assert_eq!(r.await.unwrap().unwrap(), [1; 100]);
    }
    u.close(&fh).await.unwrap();
    fs.umount().await;
    c.stop().await;
}
