//! Who asks: supplementary groups, and permission checks the client does itself.

use std::sync::Arc;

use coral_wire::acl::{Acl, tag};

use super::types::{Attr, Cred};
use crate::error::{Error, Refusal};

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

/// access(2) against mode bits and ACL; `mask` of 4, 2, 1 (read, write, execute).
pub(super) fn permitted(cred: &Cred, attr: &Attr, acl: &[u8], mask: u32) -> Result<(), Error> {
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
            Err(Refusal::Permission.into())
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
    if granted {
        Ok(())
    } else {
        Err(Refusal::Permission.into())
    }
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
    use coral_wire::fid::Fid;

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
            Err(Refusal::Permission.into())
        );
        assert_eq!(
            permitted(&Cred::user(11, 21), &a, b"", 4),
            Err(Refusal::Permission.into())
        );
        assert!(permitted(&Cred::root(), &a, b"", 6).is_ok());
        assert_eq!(
            permitted(&Cred::root(), &a, b"", 1),
            Err(Refusal::Permission.into())
        );
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
            Err(Refusal::Permission.into()),
            "the mask cuts it"
        );
        assert_eq!(
            permitted(&Cred::user(1002, 1), &a, &acl, 4),
            Err(Refusal::Permission.into())
        );
    }
}
