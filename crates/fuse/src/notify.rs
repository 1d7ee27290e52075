//! Telling the kernel to forget, when a lock that covered its caches is lost.
//!
//! Invariants, each against a deadlock:
//! - Attributes: INVAL_INODE with offset -1 takes no inode or page lock, so it is sent from the lock callback itself.
//! - Names: INVAL_ENTRY would take the parent's inode lock, which a request of our own may hold while it waits for this very
//!   lock to be cancelled. So it is never sent. INC_EPOCH (7.44) makes every name of the mount be looked up again and takes
//!   no lock at all; on older kernels names get no validity in the first place (`Shared::entry_ttl`). Names of a listing that is
//!   on its way are not concerned, so the lock waits until it was taken in, and INC_EPOCH is sent again ([`Listings`]).
//! - Pages: INVAL_INODE with a range waits for page locks, held by reads that wait for us, and for the write-back of dirty
//!   pages. So it is sent from a thread that serves no request, and llite sees to it that such reads and writes wait for
//!   nobody (`coral_client::llite`, pages).
//!
//! What is put into pages (STORE) waits for page locks too: it goes the same way. It raises the size when it goes beyond: llite sees to
//! it that it does not ([`Invalidate::store_pages`]).
//!
//! A file that an answer is about to bring is not known to the kernel yet, and would be remembered just after. Three rules
//! close that gap, none of which trusts in time:
//! - While the answer is being made, the answer itself leaves the attributes without a validity (`told`).
//! - Once it is on its way, telling the kernel fails (ENOENT). Such a file is told again until the kernel has it, or has given
//!   back the lookups it was told of ([`Nodes`]): one of the two comes, however long the program that asked is kept from
//!   running. An answer that began before the telling then finds the file told (`attr_version` in `fs/fuse/inode.c`). The lock is
//!   given back after that ([`Notifier::forgotten`]), or when it has taken [`TAKEN_IN_MAX`].
//! - The kernel takes some answers in without that comparison. Those of SETATTR, MKDIR, MKNOD, SYMLINK and LINK get no
//!   validity at all (`ops.rs`). Those of CREATE do, because programs look at what they made; until the kernel shows that it has
//!   taken one in, by a request that names the file ([`Nodes::confirm`]), the file is told again.
//!
//! What this mount changes itself is told in the same way (`own_change`), so that no answer of before is remembered over it.
//!
//! Linux: `fs/fuse/dev.c` fuse_notify, `fs/fuse/inode.c` fuse_reverse_inval_inode, `fs/fuse/dir.c` fuse_reverse_inval_entry.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coral_buffers::Payload;
use coral_client::llite::types::Invalidate;
use coral_wire::fid::Fid;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::io::Errno as SysErrno;
use smallvec::SmallVec;
use tokio::sync::Notify;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, OutHeader, notify};
use crate::listings::Listings;
use crate::naming::{self, Askers};
use crate::nodes::Nodes;
use crate::reply;
use crate::told::Told;

/// Pause before files that the kernel has not taken in yet are told again: from this, doubled up to that.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(128);
/// How long the loss of a lock waits for an answer to be taken in. A program needs moments for it, unless it is kept from running
/// (a frozen control group).
pub(crate) const TAKEN_IN_MAX: Duration = Duration::from_secs(5);
/// A LOOKUP takes so long that it may wait for that lock; for a listing that the kernel does not take in before it ends nobody waits.
pub(crate) const LOOKED_UP_MAX: Duration = Duration::from_millis(50);

/// Parts of a message: writev takes 1024.
const PARTS_MAX: usize = 1000;

type FidKey = (u64, u32, u32);

/// What is still to be told: no more files than the kernel was told of.
#[derive(Default)]
struct Queue {
    /// File -> whether its pages go too. To be told now.
    files: BTreeMap<FidKey, bool>,
    /// Told in vain, or too early to be sure: to be told again after a pause.
    again: BTreeMap<FidKey, bool>,
    /// Of these, those of whose loss nobody may be told yet: the kernel may have old attributes of them.
    old: BTreeSet<FidKey>,
    running: bool,
    ended: bool,
}

/// Writes one message to the kernel.
type Write = Box<dyn Fn(&[IoSlice<'_>]) -> rustix::io::Result<()> + Send + Sync>;

/// Sends invalidations for one mount.
pub struct Notifier {
    write: Write,
    nodes: Arc<Nodes>,
    minor: Arc<AtomicU32>,
    /// Files whose attributes were to be forgotten: answers on their way know them too.
    pub(crate) told: Told,
    /// Directories in which names are made.
    pub(crate) askers: Askers,
    /// Names on their way.
    pub(crate) listings: Arc<Listings>,
    queue: Mutex<Queue>,
    fewer_old: Notify,
    runtime: tokio::runtime::Handle,
}

impl Notifier {
    pub(crate) fn new(
        dev: Arc<OwnedFd>,
        nodes: Arc<Nodes>,
        minor: Arc<AtomicU32>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let write = Box::new(move |parts: &[IoSlice<'_>]| reply::write(dev.as_fd(), parts));
        Self::with(write, nodes, minor, runtime)
    }

    fn with(
        write: Write,
        nodes: Arc<Nodes>,
        minor: Arc<AtomicU32>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            write,
            nodes,
            minor,
            told: Told::default(),
            askers: Askers::default(),
            listings: Arc::default(),
            queue: Mutex::default(),
            fewer_old: Notify::new(),
            runtime,
        })
    }

    fn send<T: IntoBytes + Immutable>(&self, code: i32, body: &T) -> rustix::io::Result<()> {
        let body = body.as_bytes();
        let h = OutHeader {
            len: (size_of::<OutHeader>() + body.len()) as u32,
            error: code,
            unique: 0,
        };
        (self.write)(&[IoSlice::new(h.as_bytes()), IoSlice::new(body)])
    }

    /// Attributes (and ACLs) of a node; with `pages` its page cache as well, which may block.
    fn inval_node(&self, ino: u64, pages: bool) -> rustix::io::Result<()> {
        self.send(
            notify::INVAL_INODE,
            &abi::InvalInodeOut {
                ino,
                off: if pages { 0 } else { -1 },
                len: 0,
            },
        )
    }

    /// Leaves a file to the worker: at once, or `again` after a pause.
    fn later(self: &Arc<Self>, fid: Fid, pages: bool, again: bool) {
        let q = &mut *self.queue.lock();
        if q.ended {
            return;
        }
        let files = if again { &mut q.again } else { &mut q.files };
        *files.entry((fid.seq, fid.oid, fid.ver)).or_insert(false) |= pages;
        if !std::mem::replace(&mut q.running, true) {
            let me = self.clone();
            self.runtime.spawn(async move { me.work().await });
        }
    }

    /// The mount has ended: the kernel remembers nothing any more, and gives back no lookups.
    pub(crate) fn ended(&self) {
        let mut q = self.queue.lock();
        q.ended = true;
        q.old.clear();
        q.again.clear();
        drop(q);
        self.fewer_old.notify_waiters();
        self.listings.end();
    }

    /// A lost lock's file whose attributes the kernel may only be about to take in: it is told again.
    fn not_yet(self: &Arc<Self>, fid: Fid) {
        {
            let mut q = self.queue.lock();
            if q.ended {
                return;
            }
            q.old.insert((fid.seq, fid.oid, fid.ver));
        }
        self.later(fid, false, true);
    }

    /// The kernel was told again, and has the file, or will never have it from what was answered before.
    fn is_told(&self, file: FidKey) {
        if self.queue.lock().old.remove(&file) {
            self.fewer_old.notify_waiters();
        }
    }

    /// Waits until the kernel has no old attributes nor names of what it was told of by now.
    async fn forgotten(self: Arc<Self>) {
        let forgotten = async {
            if let Some(upto) = self.listings.taken_in().await {
                self.inc_epoch();
                self.listings.settled(upto);
            }
            loop {
                let fewer = self.fewer_old.notified();
                if self.queue.lock().old.is_empty() {
                    return;
                }
                fewer.await;
            }
        };
        let mut forgotten = std::pin::pin!(forgotten);
        let began = tokio::time::Instant::now();
        while began.elapsed() < TAKEN_IN_MAX {
            let looked = tokio::time::timeout(LOOKED_UP_MAX, &mut forgotten).await;
            if looked.is_ok() {
                return;
            }
            for fid in self.listings.give_up_stuck() {
                self.is_told((fid.seq, fid.oid, fid.ver));
            }
        }
        // the next lock does not wait for the same program
        self.queue.lock().old.clear();
        self.fewer_old.notify_waiters();
        self.listings.give_up();
        tracing::warn!(
            "a program that asked for names or attributes does not take them in: it may see old ones when it goes on"
        );
    }

    /// Works the queue off.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel may wait for a page that one of our threads is to fill"
    )]
    async fn work(self: Arc<Self>) {
        let mut pause = PAUSE_MIN;
        loop {
            let (next, waiting) = {
                let mut q = self.queue.lock();
                let next = q.files.pop_first();
                q.running = next.is_some() || !q.again.is_empty();
                if !q.running {
                    return;
                }
                (next, q.again.len())
            };
            let Some(((seq, oid, ver), pages)) = next else {
                tokio::time::sleep(pause).await;
                let q = &mut *self.queue.lock();
                q.files.append(&mut q.again);
                // new ones among them have not waited yet
                pause = if q.files.len() > waiting {
                    PAUSE_MIN
                } else {
                    (pause * 2).min(PAUSE_MAX)
                };
                continue;
            };
            let fid = Fid { seq, oid, ver };
            let Some(ino) = self.nodes.id(fid) else {
                self.is_told((seq, oid, ver));
                continue;
            };
            let me = self.clone();
            let told = tokio::task::spawn_blocking(move || me.inval_node(ino, pages)).await;
            if !matches!(told, Ok(Err(SysErrno::NOENT))) {
                self.is_told((seq, oid, ver));
            }
            if told.is_ok_and(|told| self.is_early(ino, told)) {
                self.later(fid, pages, true);
            }
        }
    }

    /// Has the kernel forget the attributes of a file that this mount has changed. INVAL_INODE makes it drop those of every answer to a
    /// request that began before (`attr_version`). Of its own it does so for a file that is written or cut, not for a directory whose
    /// entries change (`fuse_dir_changed`).
    pub(crate) fn forget_changed(self: &Arc<Self>, fid: Fid) {
        let Some(ino) = self.nodes.id(fid) else {
            return;
        };
        if self.is_early(ino, self.inval_node(ino, false)) {
            self.later(fid, false, true);
        }
    }

    /// Whether an answer that brings the file may still be on its way, after it was `told` of.
    fn is_early(&self, ino: u64, told: rustix::io::Result<()>) -> bool {
        match told {
            Ok(()) => self.nodes.is_unconfirmed(ino),
            Err(e) => e == SysErrno::NOENT,
        }
    }
}

impl Notifier {
    /// Makes the kernel look every name up again. Names that were given no validity are not concerned.
    pub(crate) fn look_up_again(&self) {
        self.listings.told();
        self.inc_epoch();
    }

    /// FORGET has come for a node id, which may be the receipt of a listing.
    pub(crate) fn taken_in(&self, nodeid: u64) {
        if self.listings.forgotten(nodeid) {
            self.look_up_again();
        }
    }

    fn inc_epoch(&self) {
        if self.minor.load(Ordering::Relaxed) >= abi::MINOR_INC_EPOCH
            && let Err(e) = self.send(notify::INC_EPOCH, &[0u8; 0])
            && e != SysErrno::NODEV
        {
            tracing::error!("telling the kernel to look names up again: {e}");
        }
    }
}

/// The [`Invalidate`] that llite gets.
pub(crate) struct Invalidator(pub Arc<Notifier>);

impl Invalidate for Invalidator {
    fn inval_inode(&self, fid: Fid, attr_only: bool) {
        let n = &self.0;
        n.told.note(fid);
        let Some(ino) = n.nodes.id(fid) else { return };
        let told = n.inval_node(ino, false);
        if !attr_only {
            n.later(fid, true, false);
        } else if n.is_early(ino, told) {
            n.not_yet(fid);
        }
    }

    fn forgotten(&self) -> BoxFuture<'static, ()> {
        let n = &self.0;
        if n.queue.lock().old.is_empty() && !n.listings.is_doubtful() {
            return Box::pin(async {});
        }
        Box::pin(n.clone().forgotten())
    }

    fn own_change(&self, fid: Fid) {
        let n = &self.0;
        n.told.note(fid);
        if !naming::is_of_request(fid) {
            n.forget_changed(fid);
        }
    }

    fn inval_entry(&self, _parent: Fid, _name: &[u8]) {
        self.0.look_up_again();
    }

    fn drop_pages(&self, fid: Fid, range: std::ops::Range<u64>) {
        let n = &self.0;
        let Some(ino) = n.nodes.id(fid) else { return };
        let (off, last) = (range.start as i64, range.end.min(i64::MAX as u64));
        // Length 0 is "to the end". ENOENT: the kernel has no inode, so it has no pages.
        let len = if range.end > i64::MAX as u64 {
            0
        } else {
            last as i64 - off
        };
        match n.send(notify::INVAL_INODE, &abi::InvalInodeOut { ino, off, len }) {
            Ok(()) | Err(SysErrno::NOENT | SysErrno::NODEV) => {}
            Err(e) => tracing::error!(%fid, "telling the kernel to drop pages: {e}"),
        }
    }

    fn store_pages(&self, fid: Fid, offset: u64, data: &Payload) -> bool {
        let n = &self.0;
        let Some(nodeid) = n.nodes.id(fid) else {
            return false;
        };
        // one part: each costs the kernel a look at the memory it is in, and there are many stores
        let head = abi::StoreHead::new(nodeid, offset, data.len() as u32);
        let joined;
        let mut parts: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        parts.push(IoSlice::new(head.as_bytes()));
        if data.iter().len() < PARTS_MAX {
            parts.extend(data.iter().map(|s| IoSlice::new(s)));
        } else {
            joined = data.copy_to_bytes();
            parts.push(IoSlice::new(&joined));
        }
        match (n.write)(&parts) {
            Ok(()) => true,
            Err(e) => {
                // without memory, or after the kernel forgot the file: it asks for what it wants
                tracing::debug!(%fid, "storing pages: {e}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt;

    use super::*;
    use crate::listings::Page;

    fn fid(oid: u32) -> Fid {
        Fid {
            seq: 0x2_0000_0400,
            oid,
            ver: 0,
        }
    }

    /// A kernel that does not know the file for the first `unknown` tellings; how often it was told.
    fn kernel(nodes: &Arc<Nodes>, unknown: usize) -> (Invalidator, Arc<AtomicUsize>) {
        let told = Arc::new(AtomicUsize::new(0));
        let write = {
            let told = told.clone();
            Box::new(
                move |_: &[IoSlice<'_>]| match told.fetch_add(1, Ordering::Relaxed) {
                    n if n < unknown => Err(SysErrno::NOENT),
                    _ => Ok(()),
                },
            )
        };
        let minor = Arc::new(AtomicU32::new(abi::MINOR_INC_EPOCH));
        let n = Notifier::with(
            write,
            nodes.clone(),
            minor,
            tokio::runtime::Handle::current(),
        );
        (Invalidator(n), told)
    }

    async fn idle(i: &Invalidator) {
        while i.0.queue.lock().running {
            tokio::time::sleep(PAUSE_MAX).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_told_until_the_kernel_has_it() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        nodes.remember(fid(2));
        let (i, told) = kernel(&nodes, 5000);
        i.inval_inode(fid(2), true);
        idle(&i).await;
        assert_eq!(told.load(Ordering::Relaxed), 5001);
    }

    /// The kernel is told of a directory in which a name was made where it may take in what was asked for before.
    #[tokio::test(start_paused = true)]
    async fn a_directory_is_told_of_where_it_has_to_be() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        let (dir, other) = (fid(2), fid(3));
        nodes.remember(dir);
        nodes.remember(other);
        let (i, told) = kernel(&nodes, 0);
        let times = || told.swap(0, Ordering::Relaxed);
        let make = |thread, ok| {
            let work = async {
                i.own_change(dir);
                if ok { Ok(()) } else { Err(()) }
            };
            naming::naming(&i.0, dir, thread, work)
                .now_or_never()
                .unwrap()
        };
        make(7, true).unwrap();
        assert_eq!(times(), 1, "anybody may have asked");
        make(7, true).unwrap();
        i.0.askers.note(dir, 7);
        make(7, true).unwrap();
        i.0.askers.note(other, 8);
        make(7, true).unwrap();
        assert_eq!(times(), 0);
        i.0.askers.note(dir, 8);
        make(7, true).unwrap();
        assert_eq!(times(), 1, "another has asked");
        i.0.askers.note(dir, 8);
        make(7, true).unwrap();
        assert_eq!(times(), 1, "it may be on its way again");
        i.0.askers.note(dir, 0);
        make(0, true).unwrap();
        assert_eq!(times(), 1, "threads without a number may be several");
        make(7, false).unwrap_err();
        assert_eq!(times(), 1, "the kernel knows of no change");
        let hangs = async {
            i.own_change(dir);
            std::future::pending::<Result<(), ()>>().await
        };
        assert!(naming::naming(&i.0, dir, 7, hangs).now_or_never().is_none());
        assert_eq!(times(), 1, "nobody waits for the answer any more");
        let beside = async {
            i.own_change(other);
            Ok::<_, ()>(())
        };
        naming::naming(&i.0, dir, 7, beside).now_or_never();
        assert_eq!(times(), 1, "of another directory");
        i.own_change(dir);
        assert_eq!(times(), 1, "by no such request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lock_waits_until_the_kernel_has_forgotten() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        nodes.remember(fid(2));
        let (i, told) = kernel(&nodes, 5);
        i.forgotten().await;
        i.inval_inode(fid(2), true);
        i.forgotten().await;
        assert_eq!(told.load(Ordering::Relaxed), 6);
        assert!(i.0.queue.lock().old.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lock_waits_for_no_frozen_program() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        nodes.remember(fid(2));
        let (i, _) = kernel(&nodes, usize::MAX);
        i.inval_inode(fid(2), true);
        let began = tokio::time::Instant::now();
        i.forgotten().await;
        i.forgotten().await;
        assert!(began.elapsed() >= TAKEN_IN_MAX && began.elapsed() < 2 * TAKEN_IN_MAX);
        let began = tokio::time::Instant::now();
        i.inval_inode(fid(2), true);
        i.0.ended();
        i.forgotten().await;
        i.inval_inode(fid(2), true);
        i.forgotten().await;
        assert!(
            began.elapsed() < TAKEN_IN_MAX,
            "nor for a mount that has ended"
        );
        idle(&i).await;
    }

    /// The kernel takes a listing in when the LOOKUP is answered, for which the lock has to be given back. Others are waited for.
    #[tokio::test(start_paused = true)]
    async fn a_lost_lock_waits_for_no_listing_that_a_lookup_keeps() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        let [in_page, elsewhere] = [2, 3].map(fid);
        for f in [in_page, elsewhere] {
            nodes.remember(f);
        }
        let (i, _) = kernel(&nodes, usize::MAX);
        let listings = i.0.listings.clone();
        let page = || Page {
            dir: 7,
            names: ["name".into()].into(),
            files: vec![in_page],
        };
        let receipt = listings.receipt(page(), listings.begin()).unwrap();
        receipt.sent();
        let lookup = listings.looking(7, "name".into());
        i.inval_entry(fid(1), b"name");
        i.inval_inode(in_page, true);
        let began = tokio::time::Instant::now();
        i.forgotten().await;
        assert!(began.elapsed() < TAKEN_IN_MAX / 10);
        drop(lookup);
        let before = listings.begin();
        i.0.taken_in(receipt.nodeid());
        assert!(
            listings.receipt(page(), before).is_none(),
            "names are to be looked up again once it was taken in"
        );
        let _lookup = listings.looking(7, "other".into());
        i.inval_inode(elsewhere, true);
        let began = tokio::time::Instant::now();
        i.forgotten().await;
        assert!(began.elapsed() >= TAKEN_IN_MAX, "it is in no listing");
        i.0.ended();
        idle(&i).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_told_until_the_kernel_has_given_it_back() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        let ino = nodes.remember(fid(2));
        let (i, told) = kernel(&nodes, usize::MAX);
        i.inval_inode(fid(2), true);
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(
            told.load(Ordering::Relaxed) > 1000 && i.0.queue.lock().running,
            "it may come yet"
        );
        nodes.forget(ino, 1);
        idle(&i).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_created_file_is_told_until_a_request_names_it() {
        let nodes = Arc::new(Nodes::new(fid(1)));
        let ino = nodes.remember_created(fid(2));
        let (i, told) = kernel(&nodes, 1);
        i.inval_inode(fid(2), true);
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(
            told.load(Ordering::Relaxed) > 1000,
            "its answer may not have been taken in"
        );
        nodes.confirm(ino);
        idle(&i).await;
        let before = told.load(Ordering::Relaxed);
        i.inval_inode(fid(2), true);
        assert!(!i.0.queue.lock().running);
        assert_eq!(told.load(Ordering::Relaxed), before + 1);
    }
}
