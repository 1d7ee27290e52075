//! Opens that outlive their last close, so that their close costs no RPC, or none that anybody waits for.
//!
//! An open for reading is kept for whoever opens the file again in the same way: that open costs no RPC either. The open that made a
//! file is kept where nothing was written: the MDT asks this client before it lets another in or tells it of the file, so its size is
//! known here, and most files that are made empty are looked at, or removed, by who made them.
//!
//! Lustre's client keeps an open under an OPEN lock (`ll_file_open` and `ll_md_real_close` in `lustre/llite/file.c`). Here the lock
//! that covers the file's attributes stands for it: a Coral server calls that back before anybody else takes a name of the file
//! away or changes who may read it.
//!
//! # Invariants
//! - An open is kept only where the file's attributes are covered and say that it has a name. It is used again only where the
//!   file's mode, owner and ctime are those of then.
//! - It is closed when the lock on the file's names or permissions goes, with the request by which this client itself takes a name
//!   of the file away, when too many are kept, when nobody has used it for long, and when the MDT has no room for another open.
//! - When a lock of the file is called back, the close comes before the lock is given back, if the MDT answers soon: whoever takes
//!   the lock then finds the file closed.
//! - Of opens for writing only those are kept that made their file. They end where another client asks for the file, and where this
//!   one sets its size or times, or opens it: who made it and may do so gets the very open, and goes on as if it had not been closed. What was known of its size is forgotten before the MDT hears of the close, here and by
//!   the kernel: from then on it asks nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::open;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::cache::Cache;
use super::mdt_open::MdtOpen;
use super::upcalls::Upcalls;
use crate::error::TargetError;
use crate::lov::DOM_OST;
use crate::mdc::{Mdc, Opened};
use crate::osc::ObjectAttr;

/// Opens kept of one mount; the oldest goes first. A program that reads more files than that again and again in one order finds none of
/// them open. Each costs some 1 KiB here and 200 bytes at the MDT, which has room for those of 1,024 mounts.
const MOST: usize = 4096;
/// The same of files that were made, beside these; where there are so many, no more are kept.
const MADE_MOST: usize = 8192;
/// What nobody has used for so long is closed.
const MAX_AGE: Duration = Duration::from_secs(600);
/// The same of files that were made: others have to ask for them, and to wait if this client does not answer.
const MADE_MAX_AGE: Duration = Duration::from_secs(60);
/// So many are closed at a time.
const CLOSED_AT_ONCE: usize = 16;
/// Who needs room at an MDT waits so long for it.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// A lock is given back after so long, though the MDT has not answered the close: what it does may be waiting for the lock.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Whether it made the file, and a number that grows.
type Place = (bool, u64);

/// One for each file.
#[derive(Default)]
struct Table {
    /// With what it stands under in `order`.
    by_fid: BTreeMap<Fid, (Place, Arc<MdtOpen>)>,
    /// With the time since which it is kept.
    order: BTreeMap<Place, (Fid, Instant)>,
    /// How many made their file.
    made: usize,
    last: u64,
    /// Files that this client is changing or removing: what made them is not used again meanwhile.
    changing: Vec<Fid>,
    /// How many such changes have begun.
    changes: u64,
    /// Something closes those that are too old.
    watched: bool,
    /// The mount ends: nothing is kept any more.
    ended: bool,
}

impl Table {
    fn take(&mut self, fid: Fid) -> Option<Arc<MdtOpen>> {
        let (place, open) = self.by_fid.remove(&fid)?;
        self.order.remove(&place);
        self.made -= usize::from(place.0);
        Some(open)
    }

    /// The one that has to go for it.
    fn put(&mut self, fid: Fid, open: Arc<MdtOpen>) -> Option<Arc<MdtOpen>> {
        if self.ended {
            return Some(open);
        }
        let older = self.take(fid);
        self.last += 1;
        let place = (open.has_made(), self.last);
        self.made += usize::from(place.0);
        self.by_fid.insert(fid, (place, open));
        self.order.insert(place, (fid, Instant::now()));
        match self.order.first_key_value() {
            Some((_, &(oldest, _))) if self.order.len() - self.made > MOST => self.take(oldest),
            _ => older,
        }
    }

    fn is_changing(&mut self, fid: Fid) {
        self.changing.push(fid);
        self.changes += 1;
    }

    fn no_longer_changing(&mut self, fid: Fid) {
        if let Some(at) = self.changing.iter().position(|f| *f == fid) {
            self.changing.swap_remove(at);
        }
    }

    /// Those of which this is so, with the time since which each is kept.
    fn take_where(&mut self, goes: impl Fn(&MdtOpen, Instant) -> bool) -> Vec<Arc<MdtOpen>> {
        let all = self.order.values().filter(|(fid, since)| {
            let open = self.by_fid.get(fid);
            open.is_some_and(|(_, open)| goes(open, *since))
        });
        let all: Vec<Fid> = all.map(|(fid, _)| *fid).collect();
        all.into_iter().filter_map(|fid| self.take(fid)).collect()
    }
}

/// A file is being changed or removed, until this is dropped.
pub(super) struct Changing(Arc<KeptOpens>, Fid);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.table.lock().no_longer_changing(self.1);
    }
}

/// Opens of a mount that nobody uses now.
pub(super) struct KeptOpens {
    table: Mutex<Table>,
    /// Held by the one who makes room at an MDT.
    making_room: tokio::sync::Mutex<()>,
    cache: Arc<Cache>,
    upcalls: Arc<Upcalls>,
}

impl KeptOpens {
    /// Of one mount.
    pub fn new(cache: Arc<Cache>, upcalls: Arc<Upcalls>) -> KeptOpens {
        KeptOpens {
            table: Mutex::default(),
            making_room: Default::default(),
            cache,
            upcalls,
        }
    }

    /// Whether such an open of a file that was there is kept at all.
    pub fn takes(open: &MdtOpen) -> bool {
        open.bits() == open::READ
            && !open.has_made()
            && open.is_asked_for()
            && open.mdc.coral()
            && open.is_current()
    }

    /// Whether an open that made its file can be kept.
    pub fn takes_made(&self, open: &MdtOpen) -> bool {
        open.is_current() && self.table.lock().made < MADE_MOST
    }

    /// Keeps the open of `fid`. The caller asks afterwards whether the file is covered still.
    pub fn keep(self: &Arc<Self>, fid: Fid, open: Arc<MdtOpen>) {
        let over = self.table.lock().put(fid, open);
        if let Some(over) = over {
            self.close_soon(over);
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !std::mem::replace(&mut self.table.lock().watched, true)
        {
            runtime.spawn(close_unused(Arc::downgrade(self)));
        }
    }

    /// Closes those that are too old; false: none is left.
    async fn close_old(&self) -> bool {
        let (old, left) = {
            let mut table = self.table.lock();
            let old = table.take_where(|open, since| {
                let age = if open.has_made() {
                    MADE_MAX_AGE
                } else {
                    MAX_AGE
                };
                since.elapsed() >= age
            });
            table.watched = !table.order.is_empty();
            (old, table.watched)
        };
        self.close_many(old).await;
        left
    }

    fn close_many(&self, all: Vec<Arc<MdtOpen>>) -> impl Future<Output = ()> + Send + use<> {
        let closes = all.into_iter().map(|open| self.forgets_and_closes(open));
        let closes: Vec<_> = closes.collect();
        futures_util::stream::iter(closes).for_each_concurrent(CLOSED_AT_ONCE, |close| close)
    }

    /// Opens a file at `mdc`, which is asked once more if it has no room for that, when what is kept there is closed.
    pub async fn with_room<F>(
        &self,
        mdc: &Arc<Mdc>,
        ask: impl Fn() -> F,
    ) -> Result<Opened, TargetError>
    where
        F: Future<Output = Result<Opened, TargetError>>,
    {
        match ask().await {
            Err(e) if e.is(Errno::ENFILE) => {
                // who waits here finds the room that the other has made
                let _turn = self.making_room.lock().await;
                let there = (self.table.lock()).take_where(|open, _| Arc::ptr_eq(&open.mdc, mdc));
                let closing = tokio::spawn(self.close_many(there));
                let _ = tokio::time::timeout(ROOM_WAIT, closing).await;
                ask().await
            }
            done => done,
        }
    }

    /// The open of `fid`, which is the caller's from here on.
    pub fn take(&self, fid: Fid) -> Option<Arc<MdtOpen>> {
        self.table.lock().take(fid)
    }

    /// The same if it made the file.
    pub fn take_made(&self, fid: Fid) -> Option<Arc<MdtOpen>> {
        let mut table = self.table.lock();
        let made = table.by_fid.get(&fid).is_some_and(|(_, o)| o.has_made());
        if made { table.take(fid) } else { None }
    }

    /// This client changes the file or its size: what made it is not used again meanwhile.
    pub fn changing(self: &Arc<Self>, fid: Fid) -> Changing {
        self.table.lock().is_changing(fid);
        Changing(self.clone(), fid)
    }

    /// How many such changes have begun so far.
    pub fn changes(&self) -> u64 {
        self.table.lock().changes
    }

    /// The same for one who is going to use it again, if it is `good`; `first` is called before it is taken. The caller asks for no
    /// lock of the cache in either. Besides, [`KeptOpens::changes`] of that moment.
    pub fn take_made_again<T>(
        &self,
        fid: Fid,
        good: impl FnOnce(&MdtOpen) -> bool,
        first: impl FnOnce() -> T,
    ) -> Option<(Arc<MdtOpen>, T, u64)> {
        let mut table = self.table.lock();
        let (_, open) = table.by_fid.get(&fid)?;
        let free = !table.changing.contains(&fid);
        if !free || !open.has_made() || !open.is_current() || !good(open) {
            return None;
        }
        let (first, changes) = (first(), table.changes);
        Some((table.take(fid)?, first, changes))
    }

    /// A file that was kept is used again, and may be written from here on: what was known of its size is forgotten.
    pub fn used_again(&self, fid: Fid) {
        self.forget_made(fid, false);
    }

    /// Closes the open of `fid`, and waits for that if it does not take long.
    pub fn closed(&self, fid: Fid) -> impl Future<Output = ()> + Send + use<> {
        self.closes(self.take(fid))
    }

    /// The same if it made the file.
    pub fn made_closed(&self, fid: Fid) -> impl Future<Output = ()> + Send + use<> {
        self.closes(self.take_made(fid))
    }

    fn closes(&self, open: Option<Arc<MdtOpen>>) -> impl Future<Output = ()> + Send + use<> {
        let closing = open.map(|open| tokio::spawn(self.forgets_and_closes(open)));
        async move {
            if let Some(closing) = closing {
                let _ = tokio::time::timeout(CLOSE_WAIT, closing).await;
            }
        }
    }

    /// The mount ends. Its MDTs close what it has open there when it disconnects.
    pub fn end(&self) {
        let mut table = self.table.lock();
        table.ended = true;
        table.by_fid.clear();
        table.order.clear();
        table.made = 0;
    }

    /// Closes the open of `fid`.
    pub fn close(&self, fid: Fid) {
        if let Some(open) = self.take(fid) {
            self.close_soon(open);
        }
    }

    /// Closes it. What is sent to its MDT after this returns comes after the close, as a rule, unless it made the file.
    pub fn close_soon(&self, open: Arc<MdtOpen>) {
        let mut closing = Box::pin(self.forgets_and_closes(open));
        let begun = (&mut closing).now_or_never();
        if let (None, Ok(runtime)) = (begun, tokio::runtime::Handle::try_current()) {
            runtime.spawn(closing);
        }
    }

    /// Forgets what depends on it, now, and closes it when the kernel has forgotten it too.
    fn forgets_and_closes(&self, open: Arc<MdtOpen>) -> impl Future<Output = ()> + Send + use<> {
        let forgotten = open.has_made().then(|| {
            self.forget_made(open.fid(), false);
            self.upcalls.forgotten()
        });
        async move {
            if let Some(forgotten) = forgotten {
                forgotten.await;
            }
            if open.is_current()
                && let Err(error) = open.close(None, None).await
            {
                tracing::debug!(%error, "closing a file that was kept open");
            }
        }
    }

    /// What is known of a file because this client made it and has it open. `gone`: the kernel has no use for it any more either.
    fn forget_made(&self, fid: Fid, gone: bool) {
        let forget = || {
            let mut forget = self.cache.extent_lost(DOM_OST, fid.res_id());
            // also what it was told when it made the file
            if !forget.inodes.contains(&fid) {
                forget.inodes.push(fid);
            }
            forget
        };
        match gone {
            true => drop(forget()),
            false => self.upcalls.tell(forget),
        }
    }

    /// What is open of `fid` at `mdc`, to be closed by the removal of its name: [`Self::given_back`] says what came of that. Of a file
    /// that was made it stays kept meanwhile, for whoever asks for the file.
    pub fn lend(&self, fid: Fid, mdc: &Arc<Mdc>) -> Option<Arc<MdtOpen>> {
        let one_name = self.has_one_name(fid);
        let open = {
            let mut table = self.table.lock();
            let open = table.by_fid.get(&fid)?.1.clone();
            if open.has_made() && !one_name {
                return None;
            }
            match open.has_made() {
                true => table.is_changing(fid),
                false => drop(table.take(fid)),
            }
            open
        };
        if open.is_current() && Arc::ptr_eq(&open.mdc, mdc) {
            return Some(open);
        }
        if open.has_made() {
            self.table.lock().no_longer_changing(fid);
        }
        if !open.has_made() {
            self.close_soon(open);
        }
        None
    }

    /// No other name is left by which somebody could open the file without a question to this client, when this one is gone.
    fn has_one_name(&self, fid: Fid) -> bool {
        self.cache.known(fid).is_some_and(|k| k.md.attr.nlink == 1)
    }

    /// What was lent: `closed`, or to be closed now; `gone`: nobody has a use for the file any more.
    pub fn given_back(&self, open: Arc<MdtOpen>, closed: bool, gone: bool) {
        if open.has_made() {
            self.table.lock().no_longer_changing(open.fid());
        }
        if open.has_made() && self.take_made(open.fid()).is_none() {
            return; // whoever took it closes it
        }
        match closed {
            true if open.has_made() => self.forget_made(open.fid(), gone),
            true => {}
            false => self.close_soon(open),
        }
    }

    /// What the objects of the file that `open` made are known to be, which nobody has written to: as long as it is kept.
    pub fn learn_made(&self, open: &MdtOpen, layout: u32, objects: ObjectAttr) {
        let fid = open.fid();
        let kept = || {
            let table = self.table.lock();
            table.by_fid.get(&fid).is_some_and(|(_, o)| o.has_made())
        };
        let name = [(DOM_OST, fid.res_id())];
        self.cache.learn_objects(fid, layout, &name, objects, kept);
    }
}

/// Looks after the kept opens until there are none.
async fn close_unused(kept: Weak<KeptOpens>) {
    loop {
        tokio::time::sleep(MADE_MAX_AGE / 4).await;
        let Some(kept) = kept.upgrade() else { return };
        if !kept.close_old().await {
            return;
        }
    }
}
