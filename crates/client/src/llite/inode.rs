//! What the client knows about one object: attributes as the MDT says them, and how they become what a caller sees.
//!
//! Size, blocks and times of a file with objects live on the OSTs; the MDT's are older or lazy. Of each time the newest
//! counts (`ll_merge_attr` in `lustre/llite/file.c`), which is right because setting a time sets it everywhere.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::coral::ANYONE;
use coral_wire::layout::LmvMd;
use coral_wire::mds::{MdtBody, md};

use super::types::Attr;
use crate::error::Error;
use crate::lov::{FileLayout, Form};
use crate::mdc::{Attrs, Mdc};
use crate::osc::{ObjectAttr, Owner, SHORT_IO_BYTES};
use crate::time::Timespec;

/// Preferred I/O size without a layout, bytes.
const BLKSIZE: u32 = 4 << 20;

/// One object as the MDT knows it.
#[derive(Debug, Clone)]
pub(super) struct MdInode {
    /// Attributes; of a file with objects, size and blocks mean nothing here.
    pub attr: Attr,
    /// Where the data is (regular files).
    pub layout: Arc<FileLayout>,
    /// Access control list, an xattr; empty: none.
    pub acl: Bytes,
    /// The layout of a directory in shards on several MDTs.
    pub striped: Option<Arc<LmvMd>>,
    /// It is a shard. Who asks by its FID knew it as a directory in one piece, which is being migrated since.
    pub shard: bool,
    /// Change counter (Coral servers), else 0.
    pub version: u64,
    /// What the MDT heard of the size at a close, bytes; it need not be so any more.
    pub rough_size: Option<u64>,
    /// A Coral MDT refuses no user of this client for being unknown.
    pub anyone: bool,
}

impl Attr {
    /// All zero but the FID.
    #[cfg(test)]
    pub(crate) fn empty(fid: coral_wire::fid::Fid) -> Self {
        let zero = Default::default();
        Self {
            fid,
            mode: 0,
            uid: 0,
            gid: 0,
            projid: 0,
            size: 0,
            blocks: 0,
            nlink: 1,
            rdev: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        Owner {
            uid: self.uid,
            gid: self.gid,
            projid: self.projid,
        }
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// A symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFLNK
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

impl MdInode {
    /// By what its MDT knows of its size a message holds the data of the file.
    pub fn is_small(&self) -> bool {
        self.rough_size.is_some_and(|s| s <= SHORT_IO_BYTES as u64)
    }

    /// From a reply of `mdc`.
    pub fn read(mdc: &Mdc, a: &Attrs) -> Result<Self, Error> {
        let attr = read_attr(mdc, &a.body);
        let layout = match attr.is_file() {
            // copied: a slice would keep the whole reply, thousands of bytes
            true => {
                let layout = FileLayout::decode(&Bytes::copy_from_slice(&a.md));
                layout.map_err(|what| Error::BadLayout {
                    fid: a.body.fid1,
                    what,
                })?
            }
            false => FileLayout::none(),
        };
        let mut me = Self {
            attr,
            layout: Arc::new(layout),
            acl: Bytes::copy_from_slice(&a.acl),
            striped: super::shards::striped(&a.md)
                .filter(|_| attr.is_dir())
                .map(Arc::new),
            shard: attr.is_dir() && super::shards::is_shard(a),
            version: if mdc.coral() { a.body.version } else { 0 },
            rough_size: (a.body.valid & md::FLLAZYSIZE != 0).then_some(a.body.size),
            anyone: mdc.coral() && a.body.valid & ANYONE != 0,
        };
        me.set_blksize();
        Ok(me)
    }

    fn set_blksize(&mut self) {
        if self.attr.is_file() {
            let stripe = self.layout.parts().first().map(|p| p.md.stripe_size);
            self.attr.blksize = stripe.unwrap_or(BLKSIZE).clamp(4096, BLKSIZE);
        }
    }

    /// Its attributes need the OSTs.
    pub fn needs_osts(&self) -> bool {
        self.attr.is_file() && self.layout.form == Form::Objects
    }

    /// What a caller sees, once the OSTs have answered.
    pub fn merged(&self, objects: &ObjectAttr) -> Attr {
        let mut a = self.attr;
        a.size = objects.size;
        a.blocks = objects.blocks;
        // objects that were never written or given times say 1970 itself, which is no time: the MDT's may lie before it
        let later = |own: Timespec, theirs: Timespec| {
            if theirs == Timespec::default() {
                own
            } else {
                own.max(theirs)
            }
        };
        a.mtime = later(a.mtime, objects.mtime);
        a.atime = later(a.atime, objects.atime);
        a.ctime = later(a.ctime, objects.ctime);
        a
    }

    /// A file just created: its objects are empty.
    pub fn fresh(&self) -> Attr {
        Attr {
            size: 0,
            blocks: 0,
            ..self.attr
        }
    }
}

/// The attributes of an mdt_body.
pub(super) fn read_attr(mdc: &Mdc, b: &MdtBody) -> Attr {
    let time = |bit, t| {
        if b.valid & bit != 0 {
            mdc.untime(t)
        } else {
            Default::default()
        }
    };
    Attr {
        fid: b.fid1,
        mode: b.mode,
        uid: b.uid,
        gid: b.gid,
        projid: b.projid,
        size: b.size,
        blocks: b.blocks,
        nlink: b.nlink,
        rdev: b.rdev,
        atime: time(md::FLATIME, b.atime),
        mtime: time(md::FLMTIME, b.mtime),
        ctime: time(md::FLCTIME, b.ctime),
        btime: time(md::FLBTIME, b.btime as i64),
        blksize: 4096,
        flags: b.flags,
    }
}
