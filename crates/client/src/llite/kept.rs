//! Opens for reading that outlive their last close: whoever opens the file again in the same way finds it open, and neither that
//! open nor its close costs an RPC.
//!
//! Lustre's client keeps an open under an OPEN lock (`ll_file_open` and `ll_md_real_close` in `lustre/llite/file.c`). Here the lock
//! that covers the file's attributes stands for it: a Coral server calls that back before anybody else takes a name of the file
//! away or changes who may read it.
//!
//! # Invariants
//! - An open is kept only where the file's attributes are covered and say that it has a name, and is used again only where its mode, its owner and its ctime
//!   are those of then.
//! - It is closed when the lock on the file's names or permissions goes, before this client itself takes a name of the file
//!   away, and when too many are kept.
//! - Only opens for reading are kept. They stand in nobody's way: a writer would, for whoever executes the file or wants a lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use coral_wire::fid::Fid;
use coral_wire::mds::open;
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::mdt_open::MdtOpen;

/// Opens kept of one mount; the oldest goes first. Each costs some 1 KiB here and 200 bytes at the MDT.
const MOST: usize = 4096;

/// One for each file.
#[derive(Default)]
struct Table {
    /// With the number under which it stands in `order`.
    by_fid: BTreeMap<Fid, (u64, Arc<MdtOpen>)>,
    order: BTreeMap<u64, Fid>,
    last: u64,
}

impl Table {
    fn take(&mut self, fid: Fid) -> Option<Arc<MdtOpen>> {
        let (number, open) = self.by_fid.remove(&fid)?;
        self.order.remove(&number);
        Some(open)
    }

    /// The one that has to go for it.
    fn put(&mut self, fid: Fid, open: Arc<MdtOpen>) -> Option<Arc<MdtOpen>> {
        let older = self.take(fid);
        self.last += 1;
        self.by_fid.insert(fid, (self.last, open));
        self.order.insert(self.last, fid);
        match self.order.first_key_value() {
            Some((_, &oldest)) if self.order.len() > MOST => self.take(oldest),
            _ => older,
        }
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
        open.bits() == open::READ && open.mdc.coral() && open.is_current()
    }

    /// Keeps the open of `fid`. The caller asks afterwards whether the file is covered still.
    pub fn keep(&self, fid: Fid, open: Arc<MdtOpen>) {
        let over = self.table.lock().put(fid, open);
        if let Some(over) = over {
            close_soon(over);
        }
    }

    /// The open of `fid`, which is the caller's from here on.
    pub fn take(&self, fid: Fid) -> Option<Arc<MdtOpen>> {
        self.table.lock().take(fid)
    }

    /// Closes the open of `fid`.
    pub fn close(&self, fid: Fid) {
        if let Some(open) = self.take(fid) {
            close_soon(open);
        }
    }
}

/// Closes it. What is sent to its MDT after this returns comes after the close, as a rule; nothing depends on that but whether the
/// file is found open once more.
pub(super) fn close_soon(open: Arc<MdtOpen>) {
    if !open.is_current() {
        return;
    }
    let mut closing = Box::pin(async move {
        if let Err(error) = open.close(None, None).await {
            tracing::debug!(%error, "closing a file that was kept open");
        }
    });
    let begun = (&mut closing).now_or_never();
    if let (None, Ok(runtime)) = (begun, tokio::runtime::Handle::try_current()) {
        runtime.spawn(closing);
    }
}
