//! File data in the kernel's page cache, under extent locks of ours.
//!
//! Pages are filled by [`Llite::read_pages`] and written back by [`Llite::write_pages`], both under a [`Cover`]: locks on the
//! whole of every object of the file. While a cover is there the kernel may keep the pages as long as it likes, also beyond
//! close. When a lock of the cover is asked back, all pages of the file are dropped, dirty ones after they were written back
//! under the very locks, and only then the locks are given back: no page outlives its lock. [`gate`] has the rules against
//! waiting in a circle.
//!
//! Lustre: `vvp_io.c`, `osc_lock.c`, `osc_ldlm_blocking_ast` do this in the kernel, with locks on parts of objects. Here a file
//! is covered as a whole or not at all. Data of write(2) that is kept back has covers of its own: `../writeback`.

mod gate;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};

use coral_ldlm::LockRef;
use coral_lnet::Payload;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmMode, ResId};
use parking_lot::Mutex;

use super::Llite;
use super::file::FileHandle;
use super::finish::finish;
use super::open_inode::OpenInode;
use crate::lov::{FileLayout, Form};
use crate::osc::{IoLock, ObjectRef, WriteAttr};
use gate::Enter;
pub(super) use gate::{Acquiring, Cover, Gate, Writing};

/// An object by {OST index, resource}.
pub(super) type ObjectKey = (u32, ResId);

/// A file of so many bytes is read with one request.
const SMALL_BYTES: u64 = 64 << 10;
/// The kernel's page, bytes.
const PAGE_BYTES: u64 = 4096;
/// Gates beyond which dead entries of the table are swept.
const SWEEP_GATES: usize = 1024;

/// The gates of a mount, and who has a cover.
#[derive(Default)]
pub(super) struct Pages {
    inner: Mutex<Inner>,
    /// Files covered at once.
    limit: usize,
}

#[derive(Default)]
struct Inner {
    gates: HashMap<Fid, Weak<Gate>>,
    /// Files with a cover, which keep their gates.
    covered: HashMap<Fid, Arc<Gate>>,
    by_object: HashMap<ObjectKey, Fid>,
    /// Covered files, longest first.
    order: VecDeque<Fid>,
}

impl Pages {
    /// At most `limit` files are covered at once.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            inner: Default::default(),
        }
    }

    /// The gate of a file.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether a gate stays depends on itself alone"
    )]
    pub fn gate(&self, fid: Fid) -> Arc<Gate> {
        let mut p = self.inner.lock();
        if let Some(g) = p.gates.get(&fid).and_then(Weak::upgrade) {
            return g;
        }
        if p.gates.len() >= SWEEP_GATES.max(4 * p.covered.len()) {
            p.gates.retain(|_, g| g.strong_count() > 0);
        }
        let g = Arc::<Gate>::default();
        p.gates.insert(fid, Arc::downgrade(&g));
        g
    }

    /// The cover a file has.
    pub fn cover(&self, fid: Fid) -> Option<Arc<Cover>> {
        let gate = self.inner.lock().covered.get(&fid).cloned()?;
        gate.cover()
    }

    /// Number of files whose pages may be in the kernel's cache.
    pub fn covered(&self) -> usize {
        self.inner.lock().covered.len()
    }

    pub(super) fn by_object(&self, key: ObjectKey) -> Option<(Fid, Arc<Gate>)> {
        let p = self.inner.lock();
        let fid = *p.by_object.get(&key)?;
        Some((fid, p.covered.get(&fid)?.clone()))
    }

    /// The files that have a cover, in the order of their FIDs: locks are given back in this order.
    #[expect(clippy::disallowed_methods, reason = "the files are sorted")]
    pub(super) fn all(&self) -> Vec<(Fid, Arc<Gate>)> {
        let mut all: Vec<_> = self
            .inner
            .lock()
            .covered
            .iter()
            .map(|(f, g)| (*f, g.clone()))
            .collect();
        all.sort_unstable_by_key(|(fid, _)| *fid);
        all
    }

    /// Enters a cover that `install` gives to the gate, unless it does not.
    pub(super) fn enlist_if(
        &self,
        fid: Fid,
        gate: &Arc<Gate>,
        cover: &Cover,
        install: impl FnOnce() -> bool,
    ) -> bool {
        let mut p = self.inner.lock();
        let installed = install();
        if installed {
            p.enlist(fid, gate, cover);
        }
        installed
    }

    fn enlist(&self, fid: Fid, gate: &Arc<Gate>, cover: &Cover) {
        self.inner.lock().enlist(fid, gate, cover);
    }

    fn strike(&self, fid: Fid, cover: &Cover) {
        let mut p = self.inner.lock();
        for o in cover.objects() {
            p.by_object.remove(&o);
        }
        p.covered.remove(&fid);
        // its place in the order is found to be void later, unless there are too many such
        if p.order.len() > 2 * p.covered.len() + SWEEP_GATES {
            let Inner { order, covered, .. } = &mut *p;
            let mut seen = HashSet::new();
            order.retain(|f| covered.contains_key(f) && seen.insert(*f));
        }
    }

    /// A covered file that should go because there are too many: not lately used, else the oldest.
    fn surplus(&self) -> Option<(Fid, Arc<Gate>)> {
        let mut p = self.inner.lock();
        let mut chances = p.order.len();
        if p.covered.len() <= self.limit {
            return None;
        }
        loop {
            let fid = p.order.pop_front()?;
            let Some(gate) = p.covered.get(&fid).cloned() else {
                continue;
            };
            if chances > 0 && gate.was_used() {
                chances -= 1;
                p.order.push_back(fid);
                continue;
            }
            return Some((fid, gate));
        }
    }
}

impl Inner {
    fn enlist(&mut self, fid: Fid, gate: &Arc<Gate>, cover: &Cover) {
        self.by_object.extend(cover.objects().map(|o| (o, fid)));
        if self.covered.insert(fid, gate.clone()).is_none() {
            self.order.push_back(fid);
        }
    }
}

/// A file that can be covered: all its objects are there and known, and none is on an MDT, whose lock is the inode's.
pub(super) fn coverable(layout: &FileLayout) -> bool {
    layout.form == Form::Objects && !layout.needs_intent(0, u64::MAX) && !layout.has_dom()
}

impl Llite {
    /// Pages that reads through `fh` bring may stay in the kernel's cache. A file that one read brings whole is worth a lock
    /// when it is opened a second time: most are read once.
    pub fn caches_pages(&self, fh: &FileHandle) -> bool {
        if fh.writable() || fh.flags() & libc::O_DIRECT as u32 != 0 || !self.cache.enabled() {
            return false;
        }
        let small = fh.inode.rough_size().is_some_and(|s| s <= SMALL_BYTES)
            && fh.inode.gate.cover().is_none();
        let again = self.cache.opened_again(fh.fid());
        (again || !small) && coverable(&fh.inode.layout()) && self.inval.read().is_some()
    }

    /// True once when pages of this file may be in the kernel's cache that no lock covers: they must go before others are
    /// relied on.
    pub fn pages_uncovered(&self, fh: &FileHandle) -> bool {
        fh.inode.gate.take_uncovered()
    }

    /// Fills pages of the kernel's cache, which holds them locked: [`Llite::read`] under the file's cover.
    pub async fn read_pages(
        self: &Arc<Self>,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Errno> {
        fh.set_read();
        self.still_open(fh).await?;
        let end = offset.saturating_add(len_bytes as u64);
        let range = offset / PAGE_BYTES * PAGE_BYTES
            ..end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let cover = match fh.inode.gate.enter(range) {
            Enter::Under(cover) => Some(cover),
            Enter::Wait { waiting, acquire } => {
                if acquire {
                    let (me, inode) = (self.clone(), fh.inode.clone());
                    finish(async move { me.acquire(inode).await }).await;
                }
                waiting.admitted().await?
            }
        };
        match cover {
            Some(c) => {
                self.lov
                    .read(&c.layout, fh.fid(), offset, len_bytes as usize, &c.held())
                    .await
            }
            None => self.read(fh, offset, len_bytes).await,
        }
    }

    /// Writes dirty pages of the kernel's cache back, under the cover they were dirtied under. EIO when its locks are void.
    pub async fn write_pages(
        self: &Arc<Self>,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
    ) -> Result<usize, Errno> {
        let len = data.len();
        self.still_open(fh).await?;
        let attr = WriteAttr {
            owner: fh.inode.owner(),
            time: self.now(),
        };
        let Some(cover) = fh
            .inode
            .gate
            .cover()
            .filter(|c| c.mode == LdlmMode::PW && c.writes.is_none())
        else {
            let layout = self
                .layout_for_write(fh, offset, offset + len as u64)
                .await?;
            self.lov
                .write(&layout, fh.fid(), offset, data, &attr, &Default::default())
                .await?;
            return Ok(len);
        };
        if !cover.is_whole() {
            return self
                .write_live_pages(fh.fid(), &cover, offset, data, &attr)
                .await
                .map(|()| len);
        }
        self.lov
            .write(&cover.layout, fh.fid(), offset, data, &attr, &cover.held())
            .await?;
        Ok(len)
    }

    /// The same after an eviction: only what lay under the locks that are void is lost.
    async fn write_live_pages(
        &self,
        fid: Fid,
        cover: &Cover,
        offset: u64,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), Errno> {
        let mut result = Ok(());
        for (object, at, part) in self.lov.pieces(&cover.layout, fid, offset, &data).await? {
            let lock = cover
                .place(&object)
                .and_then(|i| cover.lock(i))
                .filter(|l| !l.is_dead());
            let done = match lock {
                Some(l) => {
                    self.lov
                        .osc(object.ost)?
                        .write(
                            &object,
                            at,
                            part,
                            attr,
                            IoLock::Ours(l.info().remote_cookie),
                        )
                        .await
                }
                None => Err(Errno::EIO),
            };
            result = result.and(done);
        }
        result
    }

    /// Gets a cover and lets in who waits for one.
    async fn acquire(self: Arc<Self>, inode: Arc<OpenInode>) {
        let gate = inode.gate.clone();
        loop {
            // none comes anew while reads of pages wait
            if gate.begin_drain_writes() {
                gate.contended();
                self.spawn_drain(inode.fid, gate.clone());
            }
            let mode = gate.may_acquire().await;
            let layout = match self.layout_now(&inode).await {
                Ok(l) if coverable(&l) && self.cache.enabled() => l,
                Ok(_) => return gate.refuse(Ok(())),
                Err(e) => return gate.refuse(Err(e)),
            };
            let locks = match self.lock_objects(&layout, inode.fid, mode).await {
                Ok(l) => l,
                Err(e) => return gate.refuse(Err(e)),
            };
            // who moved the data had these objects locked, and then gave the file others
            if self
                .moved(&inode, &layout, 0, u64::MAX)
                .await
                .unwrap_or(true)
            {
                continue;
            }
            let cover = Cover::new(layout, mode, locks);
            self.pages.enlist(inode.fid, &gate, &cover);
            if !gate.install(&cover) {
                self.pages.strike(inode.fid, &cover);
                continue;
            }
            // asked back before anybody could be told
            if cover.is_blocked() && gate.begin_drain(None) {
                self.spawn_drain(inode.fid, gate);
            }
            return self.shrink_pages();
        }
    }

    /// Locks on the whole of every object, in stripe order (every client locks in that order, so none waits in a circle).
    pub(super) async fn lock_objects(
        &self,
        layout: &FileLayout,
        fid: Fid,
        mode: LdlmMode,
    ) -> Result<Vec<(u32, ObjectRef, LockRef)>, Errno> {
        let mut out = Vec::new();
        for s in layout.stripes() {
            let object = s.object(fid);
            let lock = self
                .lov
                .store(&s, fid)
                .await?
                .lock_whole(&object, mode)
                .await?;
            out.push((s.ost(), object, lock));
        }
        Ok(out)
    }

    /// The lock `cookie` on an object goes or is asked back: what it covers must be dropped.
    pub(super) fn object_lock_lost(self: &Arc<Self>, key: ObjectKey, cookie: u64) {
        if let Some((fid, gate)) = self.pages.by_object(key)
            && gate.begin_drain(Some(cookie))
        {
            if gate.writes().is_some() {
                gate.contended();
            }
            self.spawn_drain(fid, gate);
        }
    }

    /// A handle for writing was opened: pages may be dirtied from now on, so a cover for reading is not enough any more.
    pub(super) async fn writer_opened(self: &Arc<Self>, inode: &OpenInode) {
        if inode.gate.writer_opened() {
            self.spawn_drain(inode.fid, inode.gate.clone());
        }
        if inode.gate.cover().is_some_and(|c| c.mode != LdlmMode::PW) {
            inode.gate.drained().await;
        }
    }

    /// Lets a file's pages and cover go.
    pub(super) fn release_pages(self: &Arc<Self>, fid: Fid) {
        let gate = self.pages.inner.lock().covered.get(&fid).cloned();
        if let Some(gate) = gate.filter(|g| g.begin_drain(None)) {
            self.spawn_drain(fid, gate);
        }
    }

    /// The same, and waits for it.
    pub(super) async fn drop_cover(self: &Arc<Self>, inode: &OpenInode) {
        self.release_pages(inode.fid);
        inode.gate.drained().await;
    }

    /// Keeps the number of covered files within its limit: one more came, one goes.
    pub(super) fn shrink_pages(self: &Arc<Self>) {
        if let Some((fid, gate)) = self.pages.surplus()
            && gate.begin_drain(None)
        {
            self.spawn_drain(fid, gate);
        }
    }

    /// Lets all covers go without a word to anybody (umount: the kernel's cache is gone).
    pub(super) fn forget_pages(&self) {
        for (fid, gate) in self.pages.all() {
            if gate.begin_drain(None) {
                self.end_drain(fid, &gate);
            }
        }
    }

    pub(super) fn spawn_drain(self: &Arc<Self>, fid: Fid, gate: Arc<Gate>) {
        let me = self.clone();
        self.runtime.spawn(async move { me.drain(fid, gate).await });
    }

    /// Drops a file's pages, or writes out what was kept back, and then drops its cover; the gate was told that it begins.
    #[expect(
        clippy::disallowed_methods,
        reason = "it waits for pages that are being filled or written back"
    )]
    async fn drain(self: Arc<Self>, fid: Fid, gate: Arc<Gate>) {
        if let Some(cover) = gate.writes() {
            self.write_all_out(fid, &cover).await;
            drop(cover);
            return self.end_drain(fid, &gate);
        }
        let inval = self.inval.read().clone();
        let mut left: Vec<Range<u64>> = std::iter::once(0..u64::MAX).collect();
        while !left.is_empty() {
            let now = gate.round(left);
            if let Some(inval) = inval.clone() {
                let drop_all = move || {
                    now.into_iter()
                        .for_each(|r: Range<u64>| inval.drop_pages(fid, r))
                };
                // on a thread of its own: it waits for pages that are being filled or written back
                let _ = tokio::task::spawn_blocking(drop_all).await;
            }
            left = gate.round_done();
        }
        self.end_drain(fid, &gate);
    }

    /// The tables first: once the gate is told, a new cover may be entered in them.
    fn end_drain(&self, fid: Fid, gate: &Gate) {
        if let Some(cover) = gate.cover() {
            self.pages.strike(fid, &cover);
        }
        drop(gate.end_drain());
    }
}
