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
//!   one opens it or sets its size or times. What was known of its size is forgotten before the MDT hears of the close, here and by
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
use crate::mdc::Opened;
use crate::osc::ObjectAttr;

/// Opens kept of one mount; the oldest goes first. A program that reads more files than that again and again in one order finds none of
/// them open. Each costs some 1 KiB here and 200 bytes at the MDT, which has room for 1,024 times as many.
const MOST: usize = 4096;
/// What nobody has used for so long is closed.
const MAX_AGE: Duration = Duration::from_secs(600);
/// So many are closed at a time when all are.
const CLOSED_AT_ONCE: usize = 16;
/// A lock is given back after so long, though the MDT has not answered the close: what it does may be waiting for the lock.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// One for each file.
#[derive(Default)]
struct Table {
    /// With the number under which it stands in `order`.
    by_fid: BTreeMap<Fid, (u64, Arc<MdtOpen>)>,
    /// With the time since which it is kept.
    order: BTreeMap<u64, (Fid, Instant)>,
    last: u64,
    /// Something closes those that are too old.
    watched: bool,
    /// The mount ends: nothing is kept any more.
    ended: bool,
}

impl Table {
    fn take(&mut self, fid: Fid) -> Option<Arc<MdtOpen>> {
        let (number, open) = self.by_fid.remove(&fid)?;
        self.order.remove(&number);
        Some(open)
    }

    /// The one that has to go for it.
    fn put(&mut self, fid: Fid, open: Arc<MdtOpen>) -> Option<Arc<MdtOpen>> {
        if self.ended {
            return Some(open);
        }
        let older = self.take(fid);
        self.last += 1;
        self.by_fid.insert(fid, (self.last, open));
        self.order.insert(self.last, (fid, Instant::now()));
        match self.order.first_key_value() {
            Some((_, &(oldest, _))) if self.order.len() > MOST => self.take(oldest),
            _ => older,
        }
    }

    /// The oldest, if it is kept since `then` or longer.
    fn take_older(&mut self, then: Instant) -> Option<Arc<MdtOpen>> {
        let (_, &(fid, since)) = self.order.first_key_value()?;
        if since <= then { self.take(fid) } else { None }
    }
}

/// Opens of a mount that nobody uses now.
pub(super) struct KeptOpens {
    table: Mutex<Table>,
    cache: Arc<Cache>,
    upcalls: Arc<Upcalls>,
}

impl KeptOpens {
    /// Of one mount.
    pub fn new(cache: Arc<Cache>, upcalls: Arc<Upcalls>) -> KeptOpens {
        KeptOpens {
            table: Mutex::default(),
            cache,
            upcalls,
        }
    }

    /// Whether such an open of a file that was there is kept at all.
    pub fn takes(open: &MdtOpen) -> bool {
        open.bits() == open::READ && !open.has_made() && open.mdc.coral() && open.is_current()
    }

    /// Keeps the open of `fid`. The caller asks afterwards whether the file is covered still.
    pub fn keep(self: &Arc<Self>, fid: Fid, open: Arc<MdtOpen>) {
        let (over, watched) = {
            let mut table = self.table.lock();
            (
                table.put(fid, open),
                std::mem::replace(&mut table.watched, true),
            )
        };
        if let Some(over) = over {
            self.close_soon(over);
        }
        if !watched && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(close_unused(Arc::downgrade(self)));
        }
    }

    /// Closes those that are too old; false: none is left.
    fn close_old(&self) -> bool {
        let then = Instant::now().checked_sub(MAX_AGE);
        loop {
            let mut table = self.table.lock();
            let Some(old) = then.and_then(|then| table.take_older(then)) else {
                table.watched = !table.order.is_empty();
                return table.watched;
            };
            drop(table);
            self.close_soon(old);
        }
    }

    /// Opens a file: an MDT that has no room for that is asked once more when what is kept is closed.
    pub async fn with_room<F>(&self, ask: impl Fn() -> F) -> Result<Opened, TargetError>
    where
        F: Future<Output = Result<Opened, TargetError>>,
    {
        match ask().await {
            Err(e) if e.is(Errno::ENFILE) && self.close_all().await => ask().await,
            done => done,
        }
    }

    /// Closes all of them. False: there was none.
    async fn close_all(&self) -> bool {
        let all = {
            let mut table = self.table.lock();
            table.order.clear();
            std::mem::take(&mut table.by_fid)
        };
        let any = !all.is_empty();
        let closes = all.into_values().map(|(_, open)| self.to_close(open));
        let closes: Vec<_> = closes.collect();
        (futures_util::stream::iter(closes).for_each_concurrent(CLOSED_AT_ONCE, |c| c)).await;
        any
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

    /// Closes the open of `fid`, and waits for that if it does not take long.
    pub fn closed(&self, fid: Fid) -> impl Future<Output = ()> + Send + use<> {
        self.closes(self.take(fid))
    }

    /// The same if it made the file.
    pub fn made_closed(&self, fid: Fid) -> impl Future<Output = ()> + Send + use<> {
        self.closes(self.take_made(fid))
    }

    fn closes(&self, open: Option<Arc<MdtOpen>>) -> impl Future<Output = ()> + Send + use<> {
        let closing = open.map(|open| self.to_close(open));
        async move {
            if let Some(closing) = closing {
                let _ = tokio::time::timeout(CLOSE_WAIT, tokio::spawn(closing)).await;
            }
        }
    }

    /// The mount ends. Its MDTs close what it has open there when it disconnects.
    pub fn end(&self) {
        let mut table = self.table.lock();
        table.ended = true;
        table.by_fid.clear();
        table.order.clear();
    }

    /// Closes the open of `fid`.
    pub fn close(&self, fid: Fid) {
        if let Some(open) = self.take(fid) {
            self.close_soon(open);
        }
    }

    /// Closes it. What is sent to its MDT after this returns comes after the close, as a rule, unless it made the file.
    pub fn close_soon(&self, open: Arc<MdtOpen>) {
        let mut closing = Box::pin(self.to_close(open));
        let begun = (&mut closing).now_or_never();
        if let (None, Ok(runtime)) = (begun, tokio::runtime::Handle::try_current()) {
            runtime.spawn(closing);
        }
    }

    /// Forgets what depends on it, and then closes it.
    fn to_close(&self, open: Arc<MdtOpen>) -> impl Future<Output = ()> + Send + use<> {
        let forgotten = open.has_made().then(|| {
            let fid = open.fid();
            self.upcalls
                .tell(|| self.cache.extent_lost(DOM_OST, fid.res_id()));
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
        tokio::time::sleep(MAX_AGE / 4).await;
        if !kept.upgrade().is_some_and(|kept| kept.close_old()) {
            return;
        }
    }
}
