//! Attributes on the wire: `mdt_body` with its valid bits, and the buffers that go with it
//! (`mdt_pack_attr2body` in `lustre/mdt/mdt_handler.c`).
//!
//! Size and blocks are valid only where the MDT knows them: not for a file with objects, whose
//! size comes from its OSTs (what closes told us goes as lazy size).

use bytes::Bytes;
use coral_wire::Fid;
use coral_wire::coral::ANYONE;
use coral_wire::layout::LmvMdHead;
use coral_wire::mds::{MdtBody, md};

use super::acl;
use super::ctx::{Answer, Ctx};
use super::record::Inode;
use super::store::{MdtResult, Store};
use super::stripe;
use crate::nodemap::IdType;

/// Bits valid for every object.
const BASE: u64 = md::FLID
    | md::FLATIME
    | md::FLMTIME
    | md::FLCTIME
    | md::FLMODE
    | md::FLTYPE
    | md::FLUID
    | md::FLGID
    | md::FLFLAGS
    | md::FLNLINK
    | md::FLBTIME
    | md::FLPROJID;

/// A default in as many bytes as a layout's head has, as Lustre sends it.
fn room_of_layout(lmv: Bytes) -> Bytes {
    let mut room = lmv.to_vec();
    room.resize(room.len().max(size_of::<LmvMdHead>()), 0);
    room.into()
}

/// Attributes and the attributes' buffers of one object.
#[derive(Clone, Default)]
pub struct Packed {
    /// The body.
    pub body: MdtBody,
    /// MDT_MD: layout, or target of a symbolic link.
    pub md: Bytes,
    /// ACL.
    pub acl: Bytes,
    /// DEFAULT_MDT_MD: default layout of subdirectories.
    pub default_lmv: Bytes,
}

impl Packed {
    /// With the default of new subdirectories where a layout would be: who asks for nothing else finds it there
    /// (`mdt_getattr_internal`).
    pub fn with_default_as_layout(mut self) -> Packed {
        self.md = std::mem::take(&mut self.default_lmv);
        self.body.eadatasize = self.md.len() as u32;
        self.body.valid &= !md::FLEASIZE;
        if self.md.is_empty() {
            self.body.valid &= !md::FLDIREA;
        }
        self
    }
}

impl Ctx {
    /// The body of object `fid`.
    pub fn pack(&self, fid: &Fid, ino: &Inode) -> MdtBody {
        let mut b = MdtBody {
            fid1: *fid,
            valid: BASE,
            size: ino.size,
            blocks: ino.blocks,
            mtime: self.wire_time(ino.mtime),
            atime: self.wire_time(ino.atime),
            ctime: self.wire_time(ino.ctime),
            btime: self.wire_time(ino.btime) as u64,
            version: if self.coral { ino.version } else { 0 },
            mode: ino.mode,
            uid: self.view.to_client(IdType::Uid, ino.uid),
            gid: self.view.to_client(IdType::Gid, ino.gid),
            flags: ino.flags,
            rdev: ino.rdev,
            nlink: ino.nlink,
            projid: self.view.to_client(IdType::Projid, ino.projid),
            ..MdtBody::default()
        };
        if self.coral && ino.is_reg() && self.view.denies_nobody() {
            b.valid |= ANYONE;
        }
        if !ino.is_reg() {
            b.valid |= md::FLSIZE | md::FLBLOCKS | md::FLRDEV;
        } else if ino.lov.is_empty() {
            b.valid |= md::FLSIZE | md::FLBLOCKS;
        } else if ino.size > 0 || ino.blocks > 0 {
            b.valid |= md::FLLAZYSIZE | md::FLLAZYBLOCKS;
        }
        b
    }

    /// Everything a getattr, lookup or open returns of `fid`; `want` are the valid bits of the
    /// request (`None`: all that an open returns).
    pub fn pack_all(
        &self,
        store: &Store,
        fid: &Fid,
        ino: &Inode,
        want: Option<u64>,
    ) -> MdtResult<Packed> {
        let mut p = Packed {
            body: self.pack(fid, ino),
            ..Packed::default()
        };
        let wants = |bit| want.is_none_or(|w| w & bit != 0);
        if ino.is_symlink() {
            if want.is_some_and(|w| w & md::LINKNAME != 0) {
                p.md = [&ino.symlink[..], b"\0"].concat().into();
                p.body.valid |= md::LINKNAME;
                p.body.eadatasize = p.md.len() as u32;
            }
        } else if ino.is_reg() && wants(md::FLEASIZE | md::FLDIREA) && !ino.lov.is_empty() {
            p.md = ino.lov.clone();
            p.body.valid |= md::FLEASIZE;
        } else if ino.is_dir() && wants(md::MEA) {
            if let Some(lmv) = store.xattr(fid, ino, super::xattr::TRUSTED_LMV)? {
                p.md = lmv;
                p.body.valid |= md::FLDIREA | md::MEA;
            }
        } else if ino.is_dir()
            && want.is_some_and(|w| {
                w & (md::FLDIREA | md::FLEASIZE) == md::FLDIREA | md::FLEASIZE && w & md::MEA == 0
            })
        {
            p.md = self.directory_default(fid, ino);
            if !p.md.is_empty() {
                p.body.valid |= md::FLDIREA | md::FLEASIZE;
            }
        }
        if !ino.is_symlink() {
            p.body.eadatasize = p.md.len() as u32;
        }
        if wants(md::FLACL) && !ino.is_symlink() {
            p.body.valid |= md::FLACL;
            if let Some(v) = store.xattr(fid, ino, acl::ACCESS)? {
                let v = self.view.xattr_to_client(acl::ACCESS, v);
                p.body.aclsize = v.len() as u32;
                p.acl = v;
            }
        } else if wants(md::FLACL) {
            p.body.valid |= md::FLACL;
        }
        if want.is_some_and(|w| w & md::DEFAULT_MEA != 0)
            && ino.is_dir()
            && let Some(v) = store.xattr(fid, ino, super::xattr::TRUSTED_DMV)?
        {
            // a kernel client looks for it only beside this bit (`mdc_get_lustre_md`)
            p.body.valid |= md::DEFAULT_MEA | md::FLDIREA;
            p.default_lmv = room_of_layout(v);
        }
        if wants(md::FLMODEASIZE) {
            p.body.valid |= md::FLMODEASIZE;
            p.body.max_mdsize = self.ops.max_md_size();
        }
        Ok(p)
    }

    /// Default layout of a directory as a query sees it: of the root, the file system's if none is set.
    pub fn directory_default(&self, fid: &Fid, ino: &Inode) -> Bytes {
        if ino.lov.is_empty() && *fid == Fid::ROOT {
            return stripe::file_system_default(&self.ops.defaults());
        }
        ino.lov.clone()
    }

    /// Two buffers that tell a Coral client how the parents look after a change (CAPA1 and CAPA2,
    /// empty for anybody else).
    pub fn push_parents(&self, a: &mut Answer, parents: [Option<(Fid, &Inode)>; 2]) {
        for p in parents {
            match p.filter(|_| self.coral) {
                Some((fid, ino)) => {
                    let body = self.pack(&fid, ino);
                    a.msg.push(&body);
                }
                None => {
                    a.msg.push_empty();
                }
            }
        }
    }
}
