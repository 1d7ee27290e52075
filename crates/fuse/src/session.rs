//! The session: reader threads, one device descriptor each, and what they share.
//!
//! Each thread reads a request, builds its future and polls it once right there, inside the tokio runtime's context; when it
//! is ready the answer goes out from the same stack (no thread hand-over), else the future goes on in the runtime when it is
//! woken, and answers on the descriptor its request came from (the kernel looks for it there).
//! Invariants: every request is answered exactly once (except FORGET and INTERRUPT, which take no answer); no lock of this
//! crate is held while the file system is polled.
//! Bounds: requests under way are bounded by the kernel (read-ahead and write-back of its programs, one per thread otherwise).

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use coral_client::ErrorLog;
use coral_lnet::exec::{self, Inline};
use coral_stopwatch::{Seen, Stopwatch, Watch};
use coral_wire::fid::Fid;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use rustix::io::Errno as SysErrno;
use tokio::time::Instant;
use zerocopy::FromBytes;

use crate::abi::{self, InHeader, op};
use crate::buf::{Pool, RequestBuf};
use crate::error::OpError;
use crate::fresh::Fresh;
use crate::fs::FileSystem;
use crate::handles::Handles;
use crate::init;
use crate::interrupt::{self, Ends, Waiting};
use crate::nodes::Nodes;
use crate::notify::Notifier;
use crate::ops::{self, OpenFile, Started};
use crate::readers::Readers;
use crate::reply::{self, Body};
use crate::sizes::Sizes;
use crate::stats::FuseStats;
use crate::sys;

/// Files that the kernel left open are closed so many at a time.
const CLOSED_AT_ONCE: usize = 32;

/// What all threads and pending requests of one mount share.
pub(crate) struct Shared<F: FileSystem> {
    pub fs: F,
    pub nodes: Arc<Nodes>,
    pub fresh: Fresh,
    pub files: Handles<OpenFile<F>>,
    pub dirs: Handles<F::Dir>,
    pub stats: Arc<FuseStats>,
    /// Largest payload of a WRITE, READ or READDIR, bytes.
    pub max_write: usize,
    /// Counts changes of mode and ACLs through this mount, from 1.
    pub chmods: AtomicU64,
    /// Minor protocol version agreed on; 0 before INIT.
    pub minor: Arc<AtomicU32>,
    pub agreed: AtomicU64,
    pub readers: Readers,
    pub waiting: Waiting,
    /// Requests that wait and are no tasks of the runtime yet.
    pub waits: Arc<Inline>,
    pub pool: Arc<Pool>,
    pub runtime: tokio::runtime::Handle,
    /// Kernel caching of names wanted (still needs a kernel that can drop them all at once).
    pub name_cache: bool,
    /// Locks of files come here.
    pub locks: bool,
    pub notifier: Arc<Notifier>,
    pub sizes: Arc<Sizes>,
    pub closing: AtomicBool,
    /// What was said of errors.
    pub log: ErrorLog,
    /// Where it is mounted, absolute.
    pub mount_point: PathBuf,
}

impl<F: FileSystem> Shared<F> {
    /// Whether names may be given a validity: only when they can be taken back without a lock (see `notify`).
    pub fn entry_ttl(&self) -> bool {
        self.name_cache && self.minor.load(Ordering::Relaxed) >= abi::MINOR_INC_EPOCH
    }

    /// Whether SETXATTR carries the long structure.
    pub fn setxattr_ext(&self) -> bool {
        self.agreed.load(Ordering::Relaxed) & abi::init::SETXATTR_EXT != 0
    }

    /// Some mode or ACL changes: open files must look for setuid and setgid again.
    pub fn mode_changed(&self) {
        self.chmods.fetch_add(1, Ordering::AcqRel);
    }

    /// The kernel dropped `count` references to a node.
    pub fn forget(&self, nodeid: u64, count: u64) {
        self.notifier.taken_in(nodeid);
        if let Some(fid) = self.nodes.forget(nodeid, count) {
            self.fs.forget(fid);
        }
    }

    /// Closes what the kernel left open: at an unmount it does not wait for its asynchronous RELEASEs.
    pub async fn finish(&self) {
        let release = |f: Arc<OpenFile<F>>| async move {
            if let Err(e) = self.fs.release(&f.file).await {
                e.tell(&self.log, "release at the end of the mount", || Some(f.fid));
            }
        };
        let files = stream::iter(self.files.drain());
        files.for_each_concurrent(CLOSED_AT_ONCE, release).await;
        for d in self.dirs.drain() {
            let _ = self.fs.releasedir(&d).await;
        }
    }
}

/// Reads and serves requests from `dev` until the connection ends: the mount's thread `index`.
pub(crate) fn reader<F: FileSystem>(shared: Arc<Shared<F>>, dev: Arc<OwnedFd>, index: usize) {
    let _ended = Ended(&shared.readers);
    read_requests(&shared, &dev, index);
}

/// When a thread ends, also by a panic, the others rest no more.
struct Ended<'a>(&'a Readers);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn read_requests<F: FileSystem>(shared: &Arc<Shared<F>>, dev: &Arc<OwnedFd>, index: usize) {
    let _runtime = shared.runtime.enter();
    let mut buf = RequestBuf::new(shared.pool.clone());
    loop {
        shared.readers.wait(index);
        match rustix::io::read(&**dev, buf.space()) {
            Ok(len) => request(shared, dev, &mut buf, len),
            // ENOENT: the request was taken back while it was being read.
            Err(SysErrno::INTR | SysErrno::AGAIN | SysErrno::NOENT) => {}
            // Unmounted; or aborted, which ABORT_ERROR tells apart.
            Err(SysErrno::NODEV | SysErrno::CONNABORTED) => return,
            Err(e) => {
                tracing::error!("reading /dev/fuse: {e}; this thread stops");
                return;
            }
        }
        if shared.closing.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Serves one request.
fn request<F: FileSystem>(
    shared: &Arc<Shared<F>>,
    dev: &Arc<OwnedFd>,
    buf: &mut RequestBuf,
    len: usize,
) {
    let Ok((h, body)) = InHeader::read_from_prefix(buf.request(len)) else {
        tracing::error!(len, "short request from the kernel");
        return;
    };
    if h.opcode == op::INTERRUPT {
        if let Ok((i, _)) = abi::InterruptIn::read_from_prefix(body) {
            shared.stats.interrupts.inc();
            shared.waiting.interrupt(i.unique);
        }
        return;
    }
    shared.readers.asked(&h, body);
    let begun = shared.stats.begin(h.opcode);
    let ends = match ops::waits_for_lock(&h, body) {
        true => Ends::AtAnySignal,
        false => Ends::of(h.opcode),
    };
    if h.opcode == op::INIT {
        let r = init::answer(body, shared.max_write, shared.locks).map(|(out, agreed)| {
            shared.minor.store(out.minor, Ordering::Relaxed);
            shared.agreed.store(agreed, Ordering::Relaxed);
            Body::of(&out)
        });
        answer(shared, dev, &h, &r);
        shared.stats.done_inline(h.opcode, begun);
        // The kernel has lowered it to what it offered; from here on it stays.
        sys::set_read_ahead(&shared.mount_point, init::READ_AHEAD_KIB);
        return;
    }
    match ops::start(shared, buf, len, &h) {
        Started::Silent => {}
        Started::Done(r) => {
            answer(shared, dev, &h, &r);
            shared.stats.done_inline(h.opcode, begun);
        }
        Started::Future(mut fut) => {
            let stopwatch = shared.fs.stopwatch().filter(|s| s.is_on());
            let done = |r| {
                answer(shared, dev, &h, &r);
                shared.stats.done_inline(h.opcode, begun)
            };
            match poll_once(&mut fut, stopwatch.is_some(), begun, done) {
                (Poll::Ready(ended), seen) => {
                    if let Some((stopwatch, seen)) = stopwatch.zip(seen) {
                        keep(shared, stopwatch, &seen, &h, (begun, ended));
                    }
                }
                (Poll::Pending, seen) => {
                    let watch = seen.and_then(|s| s.watch().cloned());
                    wait(shared, dev, &h, (fut, watch), (begun, ends));
                }
            }
        }
    }
}

/// Where the time of an answered request went: it began, it was answered.
fn keep<F: FileSystem>(
    shared: &Shared<F>,
    stopwatch: &Stopwatch,
    seen: &Seen,
    h: &InHeader,
    span: (Instant, Instant),
) {
    let fid = || shared.nodes.fid(h.nodeid).unwrap_or(Fid::ZERO);
    stopwatch.operation_ended(seen, op::name(h.opcode), fid, span);
}

/// One poll on this stack; `done` answers, and tells when that was. A panic in the file system is EIO to the caller, not the end
/// of the mount. `timed`: as the first poll of an operation.
fn poll_once(
    fut: &mut BoxFuture<'static, reply::Reply>,
    timed: bool,
    begun: Instant,
    done: impl FnOnce(reply::Reply) -> Instant,
) -> (Poll<Instant>, Option<Seen>) {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut fut = std::panic::AssertUnwindSafe(fut).catch_unwind();
    let fut = Pin::new(&mut fut);
    let done = |r: std::thread::Result<_>| done(r.unwrap_or(Err(OpError::Panicked)));
    match timed {
        true => {
            let (polled, seen) = coral_stopwatch::poll_first(begun, fut, cx, done);
            (polled, Some(seen))
        }
        false => (fut.poll(cx).map(done), None),
    }
}

/// Lets a request that has to wait go on in the runtime, when it is woken.
fn wait<F: FileSystem>(
    shared: &Arc<Shared<F>>,
    dev: &Arc<OwnedFd>,
    h: &InHeader,
    (fut, watch): (BoxFuture<'static, reply::Reply>, Option<Arc<Watch>>),
    (begun, ends): (Instant, Ends),
) {
    shared.stats.spawned.inc();
    let (shared, dev, h) = (shared.clone(), dev.clone(), *h);
    let interrupted = shared.waiting.register(h.unique);
    let waits = shared.waits.clone();
    let entry = watch.as_ref().zip(shared.fs.stopwatch()).map(|(w, s)| {
        let fid = shared.nodes.fid(h.nodeid).unwrap_or(Fid::ZERO);
        s.goes_on(w, op::name(h.opcode), fid, begun)
    });
    let request = async move {
        let _entry = entry;
        let cut_off = || shared.fs.is_cut_off();
        let driven = interrupt::drive(fut, interrupted, ends, h.pid, cut_off);
        let r = std::panic::AssertUnwindSafe(driven).catch_unwind();
        let r = coral_stopwatch::watched(watch.clone(), r).await;
        let polled = Instant::now();
        shared.waiting.done(h.unique);
        answer(&shared, &dev, &h, &r.unwrap_or(Err(OpError::Panicked)));
        let ended = shared.stats.done(h.opcode, begun);
        if let Some((watch, stopwatch)) = watch.zip(shared.fs.stopwatch()) {
            watch.ran(polled, ended);
            keep(&shared, stopwatch, &watch.into(), &h, (begun, ended));
        }
    };
    exec::wait(&waits, Box::pin(request));
}

/// Answers. This is the top of a mount: an error has its line in the log here.
fn answer<F: FileSystem>(shared: &Shared<F>, dev: &OwnedFd, h: &InHeader, r: &reply::Reply) {
    if let Err(e) = r {
        e.tell(&shared.log, op::name(h.opcode), || {
            shared.nodes.fid(h.nodeid)
        });
    }
    match reply::send(dev.as_fd(), h.unique, r) {
        Ok(()) | Err(SysErrno::NOENT | SysErrno::NODEV) => {}
        Err(e) => tracing::error!(
            op = op::name(h.opcode),
            unique = h.unique,
            "answering the kernel: {e}"
        ),
    }
}
