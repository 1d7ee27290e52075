//! Objects and what is said of them: the words of [`super::Osc`].

use coral_buffers::Payload;
use coral_wire::fid::{Fid, OstId};

use crate::time::Timespec;

/// RPCs of one call in flight at once per object, and of written-back data per OST (Lustre: max_rpcs_in_flight 8).
pub const IN_FLIGHT: usize = 8;

/// One object: where it is and whose data it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRef {
    /// Index of its OST: the objects of a file may have one id on several.
    pub ost: u32,
    /// Object id on its OST.
    pub oi: OstId,
    /// The file (MDT inode) it belongs to.
    pub parent: Fid,
    /// Its place in the layout.
    pub stripe_idx: u32,
}

/// What a read of an object brought.
#[derive(Debug, Default)]
pub struct ObjectData {
    /// The bytes.
    pub data: Payload,
    /// The object ends with them or before, also with what clients have not written out yet. False: that is not known.
    pub is_end: bool,
}

/// Who owns a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub projid: u32,
}

/// Owner and times a write hands to the OST.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteAttr {
    /// The file's owner, whoever writes: the object takes it at its first write (`vvp_req_attr_set`).
    pub owner: Owner,
    /// mtime and ctime.
    pub time: Timespec,
    /// Times that were set since, in their place.
    pub set: ObjectTimes,
}

impl WriteAttr {
    /// Of a write at `time`.
    pub fn of(owner: Owner, time: Timespec) -> Self {
        Self {
            owner,
            time,
            set: ObjectTimes::default(),
        }
    }
}

/// Object attributes as the OST answered them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectAttr {
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Last write.
    pub mtime: Timespec,
    /// Last read.
    pub atime: Timespec,
    /// Last change.
    pub ctime: Timespec,
}

impl ObjectAttr {
    /// Nothing lies in it.
    pub fn is_empty(&self) -> bool {
        (self.size, self.blocks) == (0, 0)
    }
}

/// Times to set on an object; `None` stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectTimes {
    /// Access time.
    pub atime: Option<Timespec>,
    /// Modification time.
    pub mtime: Option<Timespec>,
    /// Change time.
    pub ctime: Option<Timespec>,
}

/// Whose lock covers the I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoLock {
    /// The server takes one for the duration.
    Server,
    /// An extent lock of ours: its server cookie (0 when not known).
    Ours(u64),
}

/// Under what a write of dirty data goes out.
#[derive(Debug, Clone, Copy)]
pub struct BackedBy {
    /// Server cookie of our extent lock.
    pub cookie: u64,
    /// [`coral_ptlrpc::Import::generation`] from before the lock was asked for: after an eviction the lock is void and the data
    /// must not be sent any more. None: it needs none.
    pub generation: Option<u64>,
    /// Its space was granted.
    pub granted: bool,
    /// It is the object's first data, or is refused (ESTALE).
    pub first: bool,
}
