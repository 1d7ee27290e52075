//! What the cache is asked and what it answers.

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::ldlm::Ibits;

use crate::llite::inode::MdInode;
use crate::llite::types::Attr;
use crate::osc::ObjectAttr;

/// Names that were not there, looked up one by one before the whole directory is read.
pub(in crate::llite) const MISSES_BEFORE_READDIR: u32 = 2;

/// Bits that cover attributes.
pub(super) const ATTR_BITS: u64 = Ibits::ATTRIBUTES.bits();

/// What the cache says about a name.
#[derive(Debug)]
pub(in crate::llite) enum Lookup {
    /// It names this object, whose attributes are known.
    Hit(Box<Known>),
    /// It names this object.
    Name(Fid),
    /// There is no such name.
    Absent,
    /// Ask.
    Unknown,
}

/// An object with covered attributes.
#[derive(Debug, Clone)]
pub(in crate::llite) struct Known {
    /// The MDT's view.
    pub md: MdInode,
    /// The OSTs' view, if covered by extent locks on the objects of that layout.
    pub objects: Option<ObjectAttr>,
    /// LOOKUP is held: names of it may be remembered by the caller.
    pub named: bool,
}

impl Known {
    /// All attributes, as they are now; `None`: those of its objects are not covered.
    pub fn attr(&self) -> Option<Attr> {
        match &self.objects {
            Some(objects) => Some(self.md.merged(objects)),
            None => (!self.md.needs_osts()).then_some(self.md.attr),
        }
    }
}

/// Where things stood when a read began; see [`super::Cache::begin_read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::llite) struct Mark {
    pub(super) at: u64,
    pub(super) quiet: bool,
    pub(super) locked: u64,
}

/// What the kernel above must forget.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::llite) struct Forget {
    /// Attributes of these.
    pub inodes: Vec<Fid>,
    /// These names.
    pub entries: Vec<(Fid, Bytes)>,
}

/// How directories stand with this cache, for the decision to read one whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::llite) enum DirState {
    /// Its listing is known and covered.
    Complete,
    /// Made by this client and, as far as known, still as this client left it: the lock alone would make it complete.
    Tracked,
    /// Covered, listing unknown; so many names looked for in vain.
    Locked(u32),
    /// Not covered; so many names looked for in vain.
    Unlocked(u32),
}
