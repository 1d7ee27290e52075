//! Data objects of an OST: the trait and its attributes.
//!
//! Lustre: `lustre/include/dt_object.h` (body operations), `lustre/ofd/ofd_objects.c`.

use std::fmt;

use bytes::Bytes;

use crate::{Io, OsdError, Room, StatFs};

/// Address of an object: sequence and id within it (`struct ost_id` after decoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Sequence (group); 0 for the objects an MDT assigns by number.
    pub seq: u64,
    /// Number within the sequence.
    pub oid: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.seq, self.oid)
    }
}

/// A point in time: seconds since 1970 and nanoseconds (0..1e9). Orders by time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nsecs: u32,
}

impl Time {
    /// A whole second, as most of Lustre's obdo times are.
    pub fn from_secs(secs: i64) -> Self {
        Time { secs, nsecs: 0 }
    }
}

/// Attributes of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjAttr {
    /// Size in bytes.
    pub size: u64,
    /// Space used in 512-byte blocks.
    pub blocks: u64,
    /// Last data change, as told by clients.
    pub mtime: Time,
    /// Last access, as told by clients.
    pub atime: Time,
    /// Last change of attributes, as told by clients.
    pub ctime: Time,
    /// Owner, 0 until somebody sets it.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub projid: u32,
    /// True once uid and gid were set.
    pub owned: bool,
    /// FID of the file it belongs to, as the first writer told (`struct filter_fid`), 0 if unknown:
    /// sequence, object id, version or stripe index.
    pub parent: (u64, u32, u32),
}

/// What to change of an object's attributes; `None` leaves as is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New mtime.
    pub mtime: Option<Time>,
    /// New atime.
    pub atime: Option<Time>,
    /// New ctime.
    pub ctime: Option<Time>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New project.
    pub projid: Option<u32>,
    /// FID of the file it belongs to.
    pub parent: Option<(u64, u32, u32)>,
    /// Owner, group, project and parent are for an object that has no owner yet; one that has
    /// keeps its own. So a write can tell them each time and they are stored once.
    pub if_unowned: bool,
}

impl SetAttr {
    /// What is left of it for an object that is `owned` or not.
    pub(crate) fn for_object(&self, owned: bool) -> SetAttr {
        if self.if_unowned && owned {
            return SetAttr {
                uid: None,
                gid: None,
                projid: None,
                parent: None,
                ..*self
            };
        }
        *self
    }
}

/// What `fallocate` does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Reserve space; the size grows to the end of the range.
    Allocate,
    /// Reserve space; the size stays.
    AllocateKeepSize,
    /// Make a hole; the size stays.
    PunchHole,
    /// Zero the range; the size grows to its end.
    ZeroRange,
    /// Zero the range; the size stays.
    ZeroRangeKeepSize,
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekWhence {
    /// The next byte that is stored.
    Data,
    /// The next byte in a hole; the end of the object counts as one.
    Hole,
}

/// What [`Objects::iterate`] calls for each object; false ends it.
pub type Visit = Box<dyn FnMut(ObjectId, ObjAttr) -> bool + Send>;

/// Data objects. A missing object reads as empty and is created by whatever stores in it.
///
/// What may wait for a disk answers with an [`Io`]; what lies in memory is answered at once. Attributes are in memory, or a short
/// read away: those calls answer directly.
pub trait Objects: Room {
    /// Up to `len` bytes from `off`; short at the end of the object.
    fn read(&self, id: ObjectId, off: u64, len: usize) -> Io<Bytes>;

    /// Stores `bufs` one after the other from `off`, all or an error (then a prefix may be stored).
    /// Does not set times: see [`Objects::set_attr`].
    fn write(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Io<()>;

    /// The same for a write whose room was promised ([`Room::promise`]) or claimed before: whether it fits is for the disk alone.
    fn write_promised(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Io<()> {
        self.write(id, off, bufs)
    }

    /// The largest size of an object in bytes; beyond it a write or a truncate is [`OsdError::TooLarge`].
    fn max_bytes(&self) -> u64 {
        i64::MAX as u64
    }

    /// Sets the size in bytes, creating the object.
    fn truncate(&self, id: ObjectId, size: u64) -> Io<()>;

    /// Makes a hole of `start..end`; the size stays. A missing object is left missing.
    fn punch(&self, id: ObjectId, start: u64, end: u64) -> Io<()>;

    /// `fallocate(2)` on `start..end`.
    fn fallocate(&self, id: ObjectId, mode: FallocMode, start: u64, end: u64) -> Io<()>;

    /// The next offset at or after `off` that is data or hole; `None` at or past the end
    /// (ENXIO to a client).
    fn seek(&self, id: ObjectId, off: u64, whence: SeekWhence) -> Result<Option<u64>, OsdError>;

    /// Attributes; `None` when the object does not exist.
    fn attr(&self, id: ObjectId) -> Result<Option<ObjAttr>, OsdError>;

    /// Changes attributes, creating the object; all attributes as they are then.
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<ObjAttr, OsdError>;

    /// Removes an object and gives its space back; false when there was none.
    fn destroy(&self, id: ObjectId) -> Io<bool>;

    /// Makes one object survive power loss.
    fn sync_object(&self, id: ObjectId) -> Io<()>;

    /// Makes all objects survive power loss.
    fn sync_all(&self) -> Io<()>;

    /// Visits every object, in no particular order, until `visit` returns false.
    fn iterate(&self, visit: Visit) -> Io<()>;

    /// Space under the objects.
    fn space(&self) -> Result<StatFs, OsdError>;
}
