//! Opens for reading that outlive their last close: whoever opens the file again in the same way finds it open, and neither that
//! open nor its close costs an RPC.
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
//! - Only opens for reading are kept. They stand in nobody's way: a writer would, for whoever executes the file or wants a lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_wire::fid::Fid;
use coral_wire::mds::open;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::mdt_open::MdtOpen;

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
#[derive(Default)]
pub(super) struct KeptOpens {
    table: Mutex<Table>,
}

impl KeptOpens {
    /// Whether such an open is kept at all.
    pub fn takes(open: &MdtOpen) -> bool {
        open.bits() == open::READ && open.is_asked_for() && open.mdc.coral() && open.is_current()
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
            close_soon(over);
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
            close_soon(old);
        }
    }

    /// Closes all of them, because the MDT has no room for another open. False: there was none.
    pub async fn close_all(&self) -> bool {
        let all = {
            let mut table = self.table.lock();
            table.order.clear();
            std::mem::take(&mut table.by_fid)
        };
        let any = !all.is_empty();
        let closes = all.into_values().map(|(_, open)| close(open));
        (futures_util::stream::iter(closes).for_each_concurrent(CLOSED_AT_ONCE, |c| c)).await;
        any
    }

    /// The open of `fid`, which is the caller's from here on.
    pub fn take(&self, fid: Fid) -> Option<Arc<MdtOpen>> {
        self.table.lock().take(fid)
    }

    /// Closes the open of `fid`, and waits for that if it does not take long.
    pub fn closed(&self, fid: Fid) -> impl Future<Output = ()> + Send + use<> {
        let open = self.take(fid).filter(|o| o.is_current());
        async move {
            if let Some(open) = open {
                let closing = tokio::spawn(close(open));
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
    }

    /// Closes the open of `fid`.
    pub fn close(&self, fid: Fid) {
        if let Some(open) = self.take(fid) {
            close_soon(open);
        }
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

async fn close(open: Arc<MdtOpen>) {
    if let Err(error) = open.close(None, None).await {
        tracing::debug!(%error, "closing a file that was kept open");
    }
}

/// Closes it. What is sent to its MDT after this returns comes after the close, as a rule.
pub(super) fn close_soon(open: Arc<MdtOpen>) {
    if !open.is_current() {
        return;
    }
    let mut closing = Box::pin(close(open));
    let begun = (&mut closing).now_or_never();
    if let (None, Ok(runtime)) = (begun, tokio::runtime::Handle::try_current()) {
        runtime.spawn(closing);
    }
}
