//! The small services: sync, FID sequences and their location, paths by FID, HSM state
//! (`lustre/fid/fid_handler.c`, `lustre/fld/fld_handler.c`, `lustre/mdt/mdt_handler.c`).

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::fld::{FLD_LOOKUP, LuSeqRange, SEQ_ALLOC_META, SEQ_ALLOC_SUPER};
use coral_wire::mds::{GetinfoFid2path, HsmUserState, MdtBody};
use coral_wire::quota::ObdQuotactl;
use coral_wire::{Errno, Wire};

use super::core::MdtCore;
use super::ctx::{Answer, Ctx};
use super::fld;
use super::handler::MdtOps;
use super::record::Inode;
use super::store::MdtResult;
use super::striped;
use crate::quota::{self, Question, Used};

/// Key of a path request, padded to 8 bytes.
const FID2PATH: &[u8; 16] = b"fid2path\0\0\0\0\0\0\0\0";
/// Key of a request that makes a mount read-only (`KEY_READ_ONLY`).
const READ_ONLY: &[u8] = b"read-only";
/// Deepest path.
const DEPTH_MAX: usize = 4096;

/// A path of an object.
#[derive(Default)]
struct Path {
    path: Vec<u8>,
    /// There are further ones.
    more: bool,
    /// What it begins at.
    top: Fid,
}

impl Ctx {
    /// MDS_SYNC: everything acknowledged is safe against power loss afterwards.
    pub async fn sync(&self) -> MdtResult<Answer> {
        self.rq.target.sync().await?;
        let fid = self.body(1).map(|b| b.fid1).unwrap_or_default();
        let mut a = self.answer(0);
        let body = match self.reading().store.find(&fid)? {
            Some(ino) => self.pack(&fid, &ino),
            None => MdtBody::default(),
        };
        a.msg.push(&body);
        Ok(a)
    }

    /// MDS_QUOTACTL: what an id has in use here, and limits, which are none.
    pub async fn quotactl(&self) -> MdtResult<Answer> {
        let asked: ObdQuotactl = self.rq.rq.msg.get(1)?;
        let answer = match quota::question(&asked)? {
            Question::Limits => quota::limits(&asked),
            Question::Usage => {
                let id = quota::id_here(&self.view, &asked);
                let data = self.ops.data.used(asked.r#type, id).await?;
                let names = self.reading().store.usage().of_id(asked.r#type, id);
                quota::usage(
                    &asked,
                    Used {
                        bytes: names.bytes + data.bytes,
                        ..names
                    },
                )
            }
        };
        let mut a = self.answer(0);
        a.msg.push(&answer).push_empty();
        Ok(a)
    }

    /// SEQ_QUERY: a sequence to name new files with, or a super-sequence for another MDT.
    pub async fn seq_query(&self) -> MdtResult<Answer> {
        let range = match self.rq.rq.msg.get::<u32>(1)? {
            // of a client's own sequence it does not matter where it is: it asks FLD
            SEQ_ALLOC_META => LuSeqRange {
                index: 0,
                ..self.ops.sequence().await?
            },
            SEQ_ALLOC_SUPER if self.ops.mdts.index() == 0 => {
                self.is_peer()?;
                let asked: LuSeqRange = self.rq.rq.msg.get(2)?;
                if asked.index == 0 || asked.index > fld::INDEX_MAX {
                    return Err(Errno::EINVAL.into());
                }
                self.core().give_super(asked.index)?
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        let mut a = self.answer(0);
        a.msg.push(&range);
        Ok(a)
    }

    /// FLD_QUERY: where a sequence is.
    pub async fn fld_query(&self) -> MdtResult<Answer> {
        if self.rq.rq.msg.get::<u32>(1)? != FLD_LOOKUP {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let asked: LuSeqRange = self.rq.rq.msg.get(2)?;
        let range = self.ops.range_of(asked.start).await?;
        let mut a = self.answer(0);
        a.msg.push(&range);
        Ok(a)
    }

    /// MDS_SET_INFO: a mount that was read-only becomes writable, or the other way round; other keys are heard.
    pub fn set_info(&self) -> MdtResult<Answer> {
        if coral_wire::raw::c_str(self.buf(1)) == READ_ONLY {
            let on = self.rq.rq.msg.get::<u32>(2)? != 0;
            if !on && self.view.map().is_some_and(|m| m.readonly_mount) {
                return Err(Errno::EROFS.into());
            }
            self.rq.exp.set_read_only(on);
        }
        Ok(self.answer(0))
    }

    /// MDS_GET_INFO: `fid2path`.
    pub async fn get_info(&self) -> MdtResult<Answer> {
        let key = self.buf(1);
        if !key.starts_with(b"fid2path") {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let mut gf = GetinfoFid2path::decode(key.get(FID2PATH.len()..).unwrap_or(&[]))?;
        let root = Fid::decode(
            key.get(FID2PATH.len() + size_of::<GetinfoFid2path>()..)
                .unwrap_or(&[]),
        );
        let root = root.ok().filter(|f| !f.is_zero()).unwrap_or(Fid::ROOT);
        Box::pin(self.not_lent(&[gf.fid])).await?;
        let root = self.confined(&gf.fid, root).await?;
        let Path { path, more, top } = self.path_of(&gf.fid, gf.linkno, &root)?;
        if path.len() + 1 > gf.pathlen as usize {
            return Err(Errno::EOVERFLOW.into());
        }
        let room = self.rq.rq.msg.get::<u32>(2).unwrap_or(0) as usize;
        // the MDT of a directory that is elsewhere is asked for the rest (`lmv_fid2path`)
        let status = if top == root {
            0
        } else {
            Errno::EREMOTE.status()
        };
        gf.fid = top;
        gf.linkno += u32::from(more);
        let mut out = gf.to_bytes().to_vec();
        out.extend_from_slice(&path);
        out.push(0);
        out.resize(room.clamp(out.len(), 1 << 20), 0);
        let mut a = self.answer(status);
        a.msg.push_bytes(out.into());
        Ok(a)
    }

    /// Where a path that a client asks for begins: not above the fileset of its nodemap. ENOENT for what is elsewhere.
    async fn confined(&self, fid: &Fid, root: Fid) -> MdtResult<Fid> {
        let Some(map) = self.view.map().filter(|m| !m.fileset.is_empty()) else {
            return Ok(root);
        };
        let top = self.directory(map.fileset.as_bytes()).await?;
        let root = if root == Fid::ROOT { top } else { root };
        for inner in [&root, fid] {
            // whether what is above lies on another MDT is within the fileset is not known here
            if self.path_of(inner, 0, &top)?.top != top {
                return Err(Errno::EACCES.into());
            }
        }
        Ok(root)
    }

    /// Path number `linkno` of `fid` below `root`, or below the nearest directory above that lies on another MDT.
    fn path_of(&self, fid: &Fid, linkno: u32, root: &Fid) -> MdtResult<Path> {
        let core = self.reading();
        let ino = core.store.inode(fid)?;
        if fid == root {
            return Ok(Path {
                top: *root,
                ..Path::default()
            });
        }
        let links = core.store.links(fid, &ino, linkno as usize + 2)?;
        let link = links
            .get(linkno as usize)
            .or(links.last())
            .ok_or(Errno::ENOENT)?;
        let more = links.len() > linkno as usize + 1;
        // the name of a shard is nobody's: the path goes on at its directory
        let named = |fid: &Fid, ino: &Inode, name: &Bytes| -> MdtResult<Option<Bytes>> {
            let shard = striped::is_shard(&core.store, fid, ino)?;
            Ok((!shard).then(|| name.clone()))
        };
        let mut parts: Vec<Bytes> = named(fid, &ino, &link.name)?.into_iter().collect();
        let mut at = link.parent;
        while at != *root && core.store.is_here(&at) {
            if parts.len() > DEPTH_MAX {
                return Err(Errno::ELOOP.into());
            }
            let ino = core.store.inode(&at)?;
            let up = ino.links.first().ok_or(Errno::ENOENT)?;
            parts.extend(named(&at, &ino, &up.name)?);
            at = up.parent;
        }
        parts.reverse();
        Ok(Path {
            path: parts.join(&b"/"[..]),
            more,
            top: at,
        })
    }

    /// MDS_HSM_STATE_GET: never archived.
    pub fn hsm_state(&self) -> MdtResult<Answer> {
        let fid = self.body(1)?.fid1;
        self.reading().store.inode(&fid)?;
        let mut a = self.answer(0);
        a.msg
            .push(&MdtBody::default())
            .push(&HsmUserState::default());
        Ok(a)
    }
}

impl MdtOps {
    /// A sequence out of this MDT's super-sequence, of which it asks for another when it has used one up.
    async fn sequence(&self) -> MdtResult<LuSeqRange> {
        loop {
            if let Some(range) = self.core.write().take_sequence()? {
                return Ok(range);
            }
            if self.mdts.index() == 0 {
                let mut core = self.core.write();
                let range = core.give_super(0)?;
                core.own(&range)?;
                continue;
            }
            // two that ask at once get one each: what is not used is not missed
            let range = self.mdts.super_sequence().await?;
            let mut core = self.core.write();
            match core.take_sequence()? {
                Some(range) => return Ok(range),
                None => core.own(&range)?,
            }
        }
    }

    /// FIDs for so many objects that a server makes here.
    pub(super) async fn new_fids(&self, count: u32) -> MdtResult<Vec<Fid>> {
        let mut fids = Vec::new();
        while fids.len() < count as usize {
            let next = self.core.write().next_fid();
            match next {
                // a client may have used it before the sequence was drawn
                Some(fid) if self.core.read().store.find(&fid)?.is_some() => {}
                Some(fid) => fids.push(fid),
                None => {
                    let first = Fid::new(self.sequence().await?.start, 1);
                    let mut core = self.core.write();
                    core.store.fld().reserve(first.seq);
                    core.server_fid = Some(first);
                }
            }
        }
        Ok(fids)
    }
}

impl MdtCore {
    /// The next FID of the sequence for objects that a server makes here; `None`: it needs another one.
    fn next_fid(&mut self) -> Option<Fid> {
        let left = |f: &Fid| u64::from(f.oid) < coral_wire::fid::seq::WIDTH;
        let fid = self.server_fid.filter(left)?;
        self.server_fid = Some(Fid::new(fid.seq, fid.oid + 1));
        Some(fid)
    }
}
