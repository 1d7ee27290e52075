//! Who asks, and what he may: `lu_ucred` and permission checks
//! (`lustre/mdt/mdt_lib.c`, `lustre/mdd/mdd_permission.c`).
//!
//! Identity comes with each request: fsuid, fsgid, up to two supplementary groups (the client puts
//! those there that matter for the objects of the request) and capability bits, which count for
//! uid 0 only. The user's other groups are known here (`identity`).

use std::sync::Arc;

use coral_wire::Errno;
use smallvec::SmallVec;

use super::acl::Acl;
use super::record::{Inode, S_IFDIR, S_IFMT};

/// Execute or search.
pub const MAY_EXEC: u32 = 1;
/// Write.
pub const MAY_WRITE: u32 = 2;
/// Read.
pub const MAY_READ: u32 = 4;

pub use coral_wire::mds::fl::{
    APPEND as FL_APPEND, IMMUTABLE as FL_IMMUTABLE, PROJINHERIT as FL_PROJINHERIT,
};

/// Capability numbers of Linux that an MDT asks for.
pub mod cap {
    /// Change owners.
    pub const CHOWN: u32 = 0;
    /// Ignore permission bits.
    pub const DAC_OVERRIDE: u32 = 1;
    /// Ignore permission bits when reading and searching.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// Act as owner.
    pub const FOWNER: u32 = 3;
    /// Keep setuid and setgid.
    pub const FSETID: u32 = 4;
    /// Change immutable and append flags.
    pub const LINUX_IMMUTABLE: u32 = 9;
    /// Administer: `trusted.` attributes.
    pub const SYS_ADMIN: u32 = 21;
    /// Exceed limits, change projects.
    pub const SYS_RESOURCE: u32 = 24;
    /// Make device nodes.
    pub const MKNOD: u32 = 27;
    /// Give files capabilities.
    pub const SETFCAP: u32 = 31;
}

/// Identity of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ucred {
    /// File system user.
    pub uid: u32,
    /// File system group.
    pub gid: u32,
    /// Supplementary groups that came with the request.
    pub groups: SmallVec<[u32; 4]>,
    /// All groups of the user as the name service has them, in order; `None` when it was not asked or does not know him.
    pub known: Option<Arc<[u32]>>,
    /// Capability bits, bit n for capability n; empty unless uid is 0.
    pub caps: u32,
    /// Mask for the mode of what is created.
    pub umask: u32,
}

impl Ucred {
    /// Identity from the fields of a request; `suppgids` of -1 name no group.
    pub fn new(uid: u32, gid: u32, suppgids: &[u32], caps: u32) -> Ucred {
        let groups = suppgids
            .iter()
            .copied()
            .filter(|&g| g != u32::MAX)
            .collect();
        Ucred {
            uid,
            gid,
            groups,
            known: None,
            caps: if uid == 0 { caps } else { 0 },
            umask: 0,
        }
    }

    /// The superuser with every capability.
    pub fn root() -> Ucred {
        Ucred {
            caps: u32::MAX,
            ..Ucred::default()
        }
    }

    /// Whether capability `c` is held.
    pub fn has(&self, c: u32) -> bool {
        self.caps & (1 << c) != 0
    }

    /// Whether the caller is in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        let known = || {
            self.known
                .as_ref()
                .is_some_and(|k| k.binary_search(&gid).is_ok())
        };
        self.gid == gid || self.groups.contains(&gid) || known()
    }

    /// Owner, or somebody who may act as one.
    pub fn owns(&self, ino: &Inode) -> bool {
        self.uid == ino.uid || self.has(cap::FOWNER)
    }

    /// EACCES unless `want` (MAY_* bits) is allowed on `ino` whose access ACL is `acl`
    /// (`mdd_permission_internal`).
    pub fn may(&self, ino: &Inode, acl: Option<&Acl>, want: u32) -> Result<(), Errno> {
        if want & MAY_WRITE != 0 && ino.flags & FL_IMMUTABLE != 0 {
            return Err(Errno::EACCES);
        }
        let granted = if self.uid == ino.uid {
            ino.mode >> 6 & want == want
        } else if let Some(acl) = acl.filter(|_| ino.mode & 0o070 != 0) {
            acl.allows(self.uid, ino.gid, want as u16, |g| self.in_group(g))
        } else if self.in_group(ino.gid) {
            ino.mode >> 3 & want == want
        } else {
            ino.mode & want == want
        };
        if granted || self.overrides(ino, want) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    fn overrides(&self, ino: &Inode, want: u32) -> bool {
        let dir = ino.mode & S_IFMT == S_IFDIR;
        let any_exec = ino.mode & 0o111 != 0;
        if self.has(cap::DAC_OVERRIDE) && (want & MAY_EXEC == 0 || dir || any_exec) {
            return true;
        }
        let reads = want == MAY_READ || (dir && want & MAY_WRITE == 0);
        reads && self.has(cap::DAC_READ_SEARCH)
    }

    /// The sticky rule: in a sticky directory only the owner of the entry or of the directory
    /// removes it (`mdd_is_sticky`).
    pub fn sticky_forbids(&self, dir: &Inode, victim: &Inode) -> bool {
        dir.mode & 0o1000 != 0
            && self.uid != victim.uid
            && self.uid != dir.uid
            && !self.has(cap::FOWNER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Inode {
        Inode {
            mode: 0o100000 | mode,
            uid: 10,
            gid: 20,
            ..Inode::default()
        }
    }

    #[test]
    fn class_is_chosen_first_and_decides_alone() {
        let f = file(0o047);
        assert_eq!(
            Ucred::new(10, 20, &[], 0).may(&f, None, MAY_READ),
            Err(Errno::EACCES)
        );
        assert!(Ucred::new(11, 20, &[], 0).may(&f, None, MAY_READ).is_ok());
        assert_eq!(
            Ucred::new(11, 20, &[], 0).may(&f, None, MAY_WRITE),
            Err(Errno::EACCES)
        );
        assert!(
            Ucred::new(11, 9, &[u32::MAX], 0)
                .may(&f, None, MAY_READ | MAY_WRITE)
                .is_ok()
        );
        assert!(
            Ucred::new(11, 9, &[20], 0)
                .may(&f, None, MAY_WRITE)
                .is_err()
        );
    }

    #[test]
    fn root_runs_only_what_somebody_may_run() {
        assert!(
            Ucred::root()
                .may(&file(0), None, MAY_READ | MAY_WRITE)
                .is_ok()
        );
        assert!(Ucred::root().may(&file(0), None, MAY_EXEC).is_err());
        assert!(Ucred::root().may(&file(0o001), None, MAY_EXEC).is_ok());
        assert!(
            Ucred::new(5, 5, &[], u32::MAX)
                .may(&file(0), None, MAY_READ)
                .is_err()
        );
    }

    #[test]
    fn immutable_stops_writers_and_sticky_strangers() {
        let mut f = file(0o777);
        f.flags = FL_IMMUTABLE;
        assert!(Ucred::root().may(&f, None, MAY_WRITE).is_err());
        let dir = Inode {
            mode: 0o041777,
            uid: 1,
            ..Inode::default()
        };
        assert!(Ucred::new(3, 3, &[], 0).sticky_forbids(&dir, &file(0)));
        assert!(!Ucred::new(10, 3, &[], 0).sticky_forbids(&dir, &file(0)));
        assert!(!Ucred::root().sticky_forbids(&dir, &file(0)));
    }
}
