//! Directory pages by bulk.
//!
//! Lustre: `mdc_getpage` in `lustre/mdc/mdc_request.c`.

use coral_ptlrpc::{Bulk, Request};
use coral_wire::fid::Fid;
use coral_wire::mds::{DirEntry, MDS_DIR_END_OFF, MdtBody, luda, readpage_entries};
use coral_wire::ptlrpc::{opc, portal};

use super::device::Mdc;
use super::ids::Ids;
use crate::error::TargetError;

/// Bytes of directory pages asked for at once.
const READPAGE_BYTES: u32 = 256 << 10;

/// Entries of a directory from one hash on.
#[derive(Debug, Clone, Default)]
pub struct DirChunk {
    /// Entries in hash order, "." and ".." among them.
    pub entries: Vec<DirEntry>,
    /// Hash to go on from; `None` at the end. Entries with just that hash may be among `entries` already.
    pub next: Option<u64>,
}

impl Mdc {
    /// Entries with a hash of at least `from`.
    pub async fn readpage(&self, ids: &Ids, dir: Fid, from: u64) -> Result<DirChunk, TargetError> {
        let mut body = ids.body(dir, 0);
        body.size = from;
        body.nlink = READPAGE_BYTES.min(self.granted().brw_size.max(4096));
        body.mode = luda::FID | luda::TYPE | luda::B64BITHASH;
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_READPAGE)
            .push::<MdtBody>(&body)
            .push_empty()
            .bulk(Bulk::Sink {
                portal: portal::MDS_BULK,
                lens: vec![body.nlink],
            })
            .concerning(dir);
        let reply = self.call(rq).await?;
        let mut pages = coral_buffers::Payload::new();
        for part in &reply.bulk {
            pages.append(part.clone());
        }
        let (entries, next) = readpage_entries(&pages.copy_to_bytes()).map_err(|e| reply.bad(e))?;
        Ok(DirChunk {
            entries,
            next: (next != MDS_DIR_END_OFF).then_some(next),
        })
    }
}
