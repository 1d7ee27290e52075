//! FID allocation: a client owns a sequence of 0x20000 object ids at a time.
//!
//! Lustre: `lustre/fid/fid_request.c`.

use bytes::Bytes;
use coral_ptlrpc::{Import, Request};
use coral_wire::fid::{Fid, seq};
use coral_wire::fld::LuSeqRange;
use coral_wire::ptlrpc::{opc, portal};
use std::sync::Arc;

use crate::ask::ask;
use crate::error::TargetError;

/// SEQ_ALLOC_META: a sequence for a client.
const ALLOC_META: u32 = 1;

/// The next unused FID; zero before the first sequence was fetched.
#[derive(Default)]
pub(super) struct SeqClient {
    next: parking_lot::Mutex<Fid>,
    refill: tokio::sync::Mutex<()>,
}

impl SeqClient {
    /// A FID never given before; asks the MDT for a sequence when the current one is used up.
    pub(super) async fn next(&self, import: &Arc<Import>) -> Result<Fid, TargetError> {
        loop {
            if let Some(fid) = self.take() {
                return Ok(fid);
            }
            let _one = self.refill.lock().await;
            if self.left() {
                continue;
            }
            let range = Self::query(import).await?;
            *self.next.lock() = Fid::new(range.start, 1);
        }
    }

    fn left(&self) -> bool {
        let n = self.next.lock();
        n.seq != 0 && (n.oid as u64) < seq::WIDTH
    }

    fn take(&self) -> Option<Fid> {
        let mut n = self.next.lock();
        if n.seq == 0 || n.oid as u64 >= seq::WIDTH {
            return None;
        }
        let fid = *n;
        n.oid += 1;
        Some(fid)
    }

    async fn query(import: &Arc<Import>) -> Result<LuSeqRange, TargetError> {
        let rq = Request::new(portal::SEQ_METADATA, opc::SEQ_QUERY)
            .push_bytes(Bytes::copy_from_slice(&ALLOC_META.to_le_bytes()))
            .push(&LuSeqRange::default());
        let reply = ask(import, rq).await?;
        let range = reply.get::<LuSeqRange>(1)?;
        if range.start == 0 || range.start >= range.end {
            return Err(reply.bad("a sequence of FIDs that is empty"));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_ends_after_its_width() {
        let s = SeqClient::default();
        assert_eq!(s.take(), None);
        *s.next.lock() = Fid::new(0x2_0000_0400, seq::WIDTH as u32 - 2);
        assert_eq!(
            s.take(),
            Some(Fid::new(0x2_0000_0400, seq::WIDTH as u32 - 2))
        );
        assert_eq!(
            s.take(),
            Some(Fid::new(0x2_0000_0400, seq::WIDTH as u32 - 1))
        );
        assert_eq!(s.take(), None);
        assert!(!s.left());
    }
}
