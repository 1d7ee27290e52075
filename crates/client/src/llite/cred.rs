//! Who asks: supplementary groups, and permission checks the client does itself.
//!
//! A request carries at most two supplementary groups. Which ones matter is known from the groups of the objects at hand
//! (`ll_i2suppgid` in `lustre/llite/llite_lib.c`); a caller with no more than two just sends them.

use std::sync::Arc;

use coral_wire::Errno;
use coral_wire::acl::{Acl, tag};
use coral_wire::fid::Fid;

use super::Llite;
use super::types::{Attr, Cred};
use crate::mdc::Ids;

/// Most group hints kept; beyond that all are forgotten.
const HINTS_MAX: usize = 1 << 16;

impl Cred {
    /// Supplementary groups.
    pub(crate) fn supplementary(&self) -> Arc<[u32]> {
        if let Some(g) = &self.groups {
            return g.clone();
        }
        read_groups(self.pid).into()
    }

    /// In that group, primary or supplementary.
    pub(super) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.supplementary().contains(&gid)
    }
}

/// The "Groups:" line of `/proc/<pid>/status`; nothing when the process is gone.
fn read_groups(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("Groups:"))
        .unwrap_or_default();
    line.split_ascii_whitespace()
        .filter_map(|g| g.parse().ok())
        .collect()
}

impl Llite {
    /// The ids a request for `cred` about `fids` carries.
    pub(super) async fn ids(&self, cred: &Cred, fids: &[Fid]) -> Ids {
        let mut ids = Ids {
            fsuid: cred.uid,
            fsgid: cred.gid,
            umask: cred.umask,
            ..Ids::root()
        };
        if cred.uid == 0 {
            return ids;
        }
        ids.cap = 0;
        let groups = cred.supplementary();
        if groups.len() <= 2 {
            for (slot, g) in ids.suppgids.iter_mut().zip(groups.iter()) {
                *slot = *g;
            }
            // some requests carry the first only
            if let ([_, second], [fid, ..]) = (&groups[..], fids)
                && self.gid_of(*fid).await == Some(*second)
            {
                ids.suppgids.reverse();
            }
            return ids;
        }
        for (slot, fid) in ids.suppgids.iter_mut().zip(fids) {
            if let Some(gid) = self.gid_of(*fid).await
                && groups.contains(&gid)
            {
                *slot = gid;
            }
        }
        ids
    }

    /// Group of an object: remembered from the last reply about it (a hint: the MDT decides), else asked for.
    async fn gid_of(&self, fid: Fid) -> Option<u32> {
        if let Some(g) = self.gids.lock().get(&fid) {
            return Some(*g);
        }
        let attrs = self
            .lmv
            .of(fid)
            .await
            .ok()?
            .getattr(&Ids::root(), fid)
            .await
            .ok()?;
        self.hint_gid(fid, attrs.body.gid);
        Some(attrs.body.gid)
    }

    /// Remembers a group for [`Self::gid_of`].
    pub(super) fn hint_gid(&self, fid: Fid, gid: u32) {
        let mut g = self.gids.lock();
        if g.len() >= HINTS_MAX {
            g.clear();
        }
        g.insert(fid, gid);
    }
}

/// access(2) against mode bits and ACL; `mask` of 4, 2, 1 (read, write, execute).
pub(super) fn permitted(cred: &Cred, attr: &Attr, acl: &[u8], mask: u32) -> Result<(), Errno> {
    let mask = mask & 7;
    if mask == 0 {
        return Ok(());
    }
    if cred.uid == 0 {
        let dir = attr.mode & libc::S_IFMT == libc::S_IFDIR;
        let executable = dir || attr.mode & 0o111 != 0;
        return if mask & 1 == 0 || executable {
            Ok(())
        } else {
            Err(Errno::EACCES)
        };
    }
    let granted = match Acl::decode(acl) {
        Ok(a) if !acl.is_empty() => acl_grants(cred, attr, &a, mask),
        _ => {
            let bits = if cred.uid == attr.uid {
                attr.mode >> 6
            } else if cred.in_group(attr.gid) {
                attr.mode >> 3
            } else {
                attr.mode
            };
            bits & mask == mask
        }
    };
    if granted { Ok(()) } else { Err(Errno::EACCES) }
}

/// The algorithm of acl(5).
fn acl_grants(cred: &Cred, attr: &Attr, acl: &Acl, mask: u32) -> bool {
    let want = mask as u16;
    let limit = acl.find(tag::MASK).map_or(7, |e| e.perm);
    let perm = |t| acl.find(t).map_or(0, |e| e.perm);
    if cred.uid == attr.uid {
        return perm(tag::USER_OBJ) & want == want;
    }
    if let Some(e) = acl
        .entries
        .iter()
        .find(|e| e.tag == tag::USER && e.id == cred.uid)
    {
        return e.perm & limit & want == want;
    }
    let mut member = false;
    for e in &acl.entries {
        let mine = match e.tag {
            tag::GROUP_OBJ => cred.in_group(attr.gid),
            tag::GROUP => cred.in_group(e.id),
            _ => false,
        };
        if mine {
            member = true;
            if e.perm & limit & want == want {
                return true;
            }
        }
    }
    !member && perm(tag::OTHER) & want == want
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::acl::AclEntry;

    fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
        Attr {
            mode,
            uid,
            gid,
            ..Attr::empty(Fid::ROOT)
        }
    }

    #[test]
    fn mode_bits() {
        let a = attr(libc::S_IFREG | 0o640, 10, 20);
        assert!(permitted(&Cred::user(10, 1), &a, b"", 6).is_ok());
        assert!(permitted(&Cred::user(11, 20), &a, b"", 4).is_ok());
        assert_eq!(
            permitted(&Cred::user(11, 20), &a, b"", 2),
            Err(Errno::EACCES)
        );
        assert_eq!(
            permitted(&Cred::user(11, 21), &a, b"", 4),
            Err(Errno::EACCES)
        );
        assert!(permitted(&Cred::root(), &a, b"", 6).is_ok());
        assert_eq!(permitted(&Cred::root(), &a, b"", 1), Err(Errno::EACCES));
    }

    #[test]
    fn acl_entries_and_mask() {
        let e = |tag, perm, id| AclEntry { tag, perm, id };
        let none = u32::MAX;
        let acl = Acl {
            entries: vec![
                e(tag::USER_OBJ, 6, none),
                e(tag::USER, 6, 1001),
                e(tag::GROUP_OBJ, 4, none),
                e(tag::MASK, 4, none),
                e(tag::OTHER, 0, none),
            ],
        }
        .encode();
        let a = attr(libc::S_IFREG | 0o640, 10, 20);
        assert!(permitted(&Cred::user(1001, 1), &a, &acl, 4).is_ok());
        assert_eq!(
            permitted(&Cred::user(1001, 1), &a, &acl, 2),
            Err(Errno::EACCES),
            "the mask cuts it"
        );
        assert_eq!(
            permitted(&Cred::user(1002, 1), &a, &acl, 4),
            Err(Errno::EACCES)
        );
    }
}
