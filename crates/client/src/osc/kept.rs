//! Changes of objects that may not be on the target's disk yet.
//!
//! An OST, or an MDT that has data of files, acknowledges a change when it is in the memory of its machine. Until it says that the
//! change is committed, the import keeps the request with its data ([`coral_ptlrpc::Import::kept_bytes`]), and sends it again
//! should the target come back without it. What is kept has a limit: at half of it the target is asked to sync, and of files that
//! go beyond it nothing is kept. Changes that are lost all the same are told to whoever has the file open
//! (`Llite::changes_lost`).
//!
//! Lustre: unstable pages in `lustre/osc/osc_page.c`, where writers wait at the limit; telling of a loss is Coral's own.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_ptlrpc::{Replay, Request};
use coral_wire::mds::MdtBody;
use coral_wire::ost::Obdo;
use coral_wire::ptlrpc::{opc, portal};

use super::device::Osc;
use super::object::ObjectRef;
use crate::error::TargetError;

/// Less is copied to be kept: a piece pins the whole buffer of the request it came in, 1 MiB and 8 KiB. So what is kept takes at
/// most 1.4 times the memory it is counted with, and whole buffers are not copied.
pub const COPY_BELOW: usize = 768 << 10;

impl Osc {
    /// Bounds what is kept for replay, bytes.
    pub fn set_kept_limit(&self, bytes: usize) {
        self.kept.limit.store(bytes, Ordering::Relaxed);
        self.import().set_kept_limit(bytes);
    }

    /// What is kept for replay, bytes.
    pub fn kept_bytes(&self) -> usize {
        self.import().kept_bytes()
    }

    /// The servers are in this process and end with it: nothing is kept for them.
    fn keeps(&self) -> bool {
        !self.target.local
    }

    /// `data` as it may be kept.
    pub(super) fn to_keep(&self, data: Payload) -> Payload {
        match self.keeps() && data.len() < COPY_BELOW {
            true => Payload::from(Bytes::from(data.iter().fold(
                Vec::with_capacity(data.len()),
                |mut all, b| {
                    all.extend_from_slice(b);
                    all
                },
            ))),
            false => data,
        }
    }

    /// A change of `obj`, which is kept until it is on disk.
    pub(super) fn keep(&self, obj: &ObjectRef, mut rq: Request) -> Request {
        if !self.target.local {
            rq.file = Some(obj.parent);
        }
        if self.keeps() {
            rq.replay = Replay::UntilCommitted;
        }
        rq
    }

    /// The same, sent; the obdo of the reply.
    pub(super) async fn change(&self, obj: &ObjectRef, rq: Request) -> Result<Obdo, TargetError> {
        self.call(self.keep(obj, rq)).await
    }

    /// Asks for a sync when much is kept.
    pub(super) fn sync_if_much(&self) {
        let limit = self.kept.limit.load(Ordering::Relaxed);
        if !self.keeps()
            || self.kept_bytes() <= limit / 2
            || self.kept.syncing.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let (import, syncing) = (self.import().clone(), self.kept.syncing.clone());
        let rq = match self.mdt {
            true => Request::new(portal::MDS_REQUEST, opc::MDS_SYNC).push(&MdtBody::default()),
            false => Request::new(portal::OST_REQUEST, opc::OST_SYNC).push(&Obdo::default()),
        };
        tokio::spawn(async move {
            let rq = rq.push_bytes(Bytes::new());
            // who waits for the data to be safe is told by a sync of his own
            let _ = import.call(rq).await;
            syncing.store(false, Ordering::Release);
        });
    }
}
