//! OST_STATFS and the keyed requests (`ofd_statfs_hdl`, `ofd_get_info_hdl`, `ofd_set_info_hdl`).

use coral_wire::fid::OstId;
use coral_wire::ost::{ObdStatfs, Obdo};
use coral_wire::ptlrpc::Message;
use coral_wire::quota::ObdQuotactl;
use coral_wire::raw::c_str;
use coral_wire::{Errno, Fid};

use super::brw::object_of;
use super::{Ost, OstError, reply};
use crate::mdt::object_ids;
use crate::quota::{self, Question};
use crate::target::TargetRequest;

/// `os_type`: what the file system underneath calls itself (`LL_SUPER_MAGIC`).
const LUSTRE_MAGIC: u64 = 0x0bd0_0bd0;
/// Longest name, in bytes.
const NAME_MAX: u32 = 255;

impl Ost {
    pub(super) fn statfs(&self) -> Result<Message, OstError> {
        let s = self.objects.space().map_err(OstError::from)?;
        let promised = self.grants.lock().total() / s.block_size.max(1) as u64;
        let out = ObdStatfs {
            r#type: LUSTRE_MAGIC,
            blocks: s.blocks,
            bfree: s.blocks_free,
            // What is promised is not used: Lustre takes off only what clients say they hold back (`ofd_statfs`), a moment's worth.
            bavail: s.blocks_avail,
            files: s.files,
            ffree: s.files_free,
            bsize: s.block_size.max(1),
            namelen: NAME_MAX,
            maxbytes: self.objects.max_bytes(),
            granted: promised.min(u32::MAX as u64) as u32,
            ..Default::default()
        };
        let mut msg = reply();
        msg.push(&out);
        Ok(msg)
    }

    pub(super) async fn quotactl(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let asked: ObdQuotactl = rq.rq.msg.get(1).map_err(|_| Errno::EPROTO)?;
        match quota::question(&asked)? {
            Question::Limits => Err(Errno::EOPNOTSUPP.into()),
            Question::Usage => {
                let used = self
                    .used(asked.r#type, quota::id_here(&rq.exp.view(), &asked))
                    .await?;
                let mut msg = reply();
                msg.push(&quota::usage(&asked, used)).push_empty();
                Ok(msg)
            }
        }
    }

    pub(super) fn get_info(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        match c_str(rq.buf(1)) {
            b"last_fid" => self.last_fid(rq),
            // Objects are numbered by the MDT, which asks for the last FID.
            b"last_id" => {
                let mut msg = reply();
                msg.push(&0u64);
                Ok(msg)
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// The greatest object that there is, from the one in the request on, of those that the same MDT gives; the one before when
    /// there is none (`ofd_get_info_hdl`, KEY_LAST_FID).
    fn last_fid(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let asked: Fid = rq.rq.msg.get(2).map_err(|_| Errno::EPROTO)?;
        let (id, _) = object_of(&OstId::from_fid(asked))?;
        let ids = id.oid..object_ids::end_id(object_ids::mdt_of(id.oid));
        let last = self.usage.last_id(id.seq, &ids, rq.target.instance())?;
        let last = OstId::group0(last.unwrap_or(id.oid - 1)).to_fid(rq.target.index());
        let mut msg = reply();
        msg.push(&last);
        Ok(msg)
    }

    pub(super) fn set_info(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        match c_str(rq.buf(1)) {
            b"grant_shrink" => {
                let oa: Obdo = rq.rq.msg.get(2).map_err(|_| Errno::EPROTO)?;
                self.shrink_if_asked(rq, &oa);
                let mut msg = reply();
                msg.push(&Obdo { grant: 0, ..oa });
                Ok(msg)
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }
}
