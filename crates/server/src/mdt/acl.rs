//! POSIX ACLs as the MDT applies them: evaluation, inheritance, and their tie to the mode
//! (`lustre/obdclass/acl.c`, `lustre/mdd/mdd_permission.c`).
//!
//! The form is that of the extended attributes `system.posix_acl_*` (version 2). Invariants: an
//! [`Acl`] is valid (entries in order, one of each needed kind); an ACL that says no more than the
//! mode is never stored.

use bytes::Bytes;

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Id of entries that name nobody.
const NO_ID: u32 = u32::MAX;
/// Most entries of an ACL (`LUSTRE_POSIX_ACL_MAX_ENTRIES` is larger; this bounds one record).
pub const ENTRIES_MAX: usize = 8000;

/// Extended attribute of the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Extended attribute of the default ACL of a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The attribute's value `raw` with other ids in entries of named users and groups; `map` is given whether it is a group, and leaves
/// out the entry with `None`. What is no list of entries stays as it is (`nodemap_map_acl`).
pub fn map_ids(raw: &Bytes, map: impl Fn(bool, u32) -> Option<u32>) -> Bytes {
    let Some((head, rest)) = raw
        .split_at_checked(4)
        .filter(|(_, rest)| rest.len() % 8 == 0)
    else {
        return raw.clone();
    };
    let mut out = head.to_vec();
    for e in rest.chunks_exact(8) {
        let tag = u16::from_le_bytes([e[0], e[1]]);
        let mut id = [e[4], e[5], e[6], e[7]];
        if tag == USER || tag == GROUP {
            match map(tag == GROUP, u32::from_le_bytes(id)) {
                Some(mapped) => id = mapped.to_le_bytes(),
                None => continue,
            }
        }
        out.extend_from_slice(&e[..4]);
        out.extend_from_slice(&id);
    }
    out.into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// Not an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed POSIX ACL")]
pub struct AclError;

impl Acl {
    /// Reads the attribute's value. An ACL without entries is `None`: it asks for removal.
    pub fn parse(raw: &[u8]) -> Result<Option<Acl>, AclError> {
        let (head, rest) = raw.split_at_checked(4).ok_or(AclError)?;
        if head != VERSION.to_le_bytes() || rest.len() % 8 != 0 || rest.len() / 8 > ENTRIES_MAX {
            return Err(AclError);
        }
        let entries: Vec<AclEntry> = rest
            .chunks_exact(8)
            .map(|e| AclEntry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                perm: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries };
        if acl.valid() {
            Ok(Some(acl))
        } else {
            Err(AclError)
        }
    }

    /// Order and number of the kinds as `posix_acl_valid` of Linux wants them.
    fn valid(&self) -> bool {
        let count = |t| self.entries.iter().filter(|e| e.tag == t).count();
        let named = count(USER) + count(GROUP);
        let rank = |e: &AclEntry| match e.tag {
            USER_OBJ => Some(0),
            USER => Some(1),
            GROUP_OBJ => Some(2),
            GROUP => Some(3),
            MASK => Some(4),
            OTHER => Some(5),
            _ => None,
        };
        let ranks: Option<Vec<u8>> = self.entries.iter().map(rank).collect();
        ranks.is_some_and(|r| r.is_sorted())
            && self.entries.iter().all(|e| e.perm & !7 == 0)
            && self
                .entries
                .iter()
                .all(|e| !matches!(e.tag, USER | GROUP) || e.id != NO_ID)
            && count(USER_OBJ) == 1
            && count(GROUP_OBJ) == 1
            && count(OTHER) == 1
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    /// The attribute's value.
    pub fn encode(&self) -> Bytes {
        let mut w = Vec::with_capacity(4 + 8 * self.entries.len());
        w.extend_from_slice(&VERSION.to_le_bytes());
        for e in &self.entries {
            w.extend_from_slice(&e.tag.to_le_bytes());
            w.extend_from_slice(&e.perm.to_le_bytes());
            let id = if matches!(e.tag, USER | GROUP) {
                e.id
            } else {
                NO_ID
            };
            w.extend_from_slice(&id.to_le_bytes());
        }
        w.into()
    }

    fn perm_of(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn set(&mut self, tag: u16, perm: u16) {
        for e in self.entries.iter_mut().filter(|e| e.tag == tag) {
            e.perm = perm;
        }
    }

    /// Whether it says no more than nine permission bits can.
    pub fn is_mode_only(&self) -> bool {
        self.entries.len() == 3
    }

    /// The nine permission bits it stands for: owner, mask or group, other.
    pub fn mode_bits(&self) -> u32 {
        let p = |t| u32::from(self.perm_of(t).unwrap_or(0));
        let group = self.perm_of(MASK).map_or_else(|| p(GROUP_OBJ), u32::from);
        p(USER_OBJ) << 6 | group << 3 | p(OTHER)
    }

    /// What a chmod does to it.
    pub fn chmod(&mut self, mode: u32) {
        self.set(USER_OBJ, (mode >> 6 & 7) as u16);
        let group = if self.perm_of(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        };
        self.set(group, (mode >> 3 & 7) as u16);
        self.set(OTHER, (mode & 7) as u16);
    }

    /// The access ACL of an object created with `mode` where this is the default ACL, and the
    /// object's permission bits: both are what either allows.
    pub fn inherit(&self, mode: u32) -> (Acl, u32) {
        let mut acl = self.clone();
        acl.chmod(acl.mode_bits() & mode);
        let bits = acl.mode_bits();
        (acl, mode & !0o777 | bits)
    }

    /// Whether somebody who is not the owner gets all of `want` (rwx bits). `in_group` says
    /// whether the caller is in a group; `gid` is the object's. `None`: an owner question.
    pub fn allows(&self, uid: u32, gid: u32, want: u16, in_group: impl Fn(u32) -> bool) -> bool {
        let mask = self.perm_of(MASK).unwrap_or(7);
        if let Some(e) = self.entries.iter().find(|e| e.tag == USER && e.id == uid) {
            return e.perm & mask & want == want;
        }
        let mut member = false;
        for e in &self.entries {
            let group = match e.tag {
                GROUP_OBJ => gid,
                GROUP => e.id,
                _ => continue,
            };
            if in_group(group) {
                member = true;
                if e.perm & mask & want == want {
                    return true;
                }
            }
        }
        !member && self.perm_of(OTHER).unwrap_or(0) & want == want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut w = VERSION.to_le_bytes().to_vec();
        for (t, p, i) in entries {
            w.extend_from_slice(&t.to_le_bytes());
            w.extend_from_slice(&p.to_le_bytes());
            w.extend_from_slice(&i.to_le_bytes());
        }
        w
    }

    fn sample() -> Acl {
        let r = raw(&[
            (USER_OBJ, 6, NO_ID),
            (USER, 6, 1001),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 2, 50),
            (MASK, 6, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        Acl::parse(&r).unwrap().unwrap()
    }

    #[test]
    fn parse_and_encode_agree_and_nonsense_is_refused() {
        let a = sample();
        assert_eq!(Acl::parse(&a.encode()), Ok(Some(a.clone())));
        assert_eq!(a.mode_bits(), 0o660);
        assert_eq!(Acl::parse(&raw(&[])), Ok(None));
        assert!(Acl::parse(b"\x01\0\0\0").is_err());
        // a named user needs a mask; order matters
        assert!(
            Acl::parse(&raw(&[
                (1, 6, NO_ID),
                (2, 6, 5),
                (4, 4, NO_ID),
                (32, 0, NO_ID)
            ]))
            .is_err()
        );
        assert!(Acl::parse(&raw(&[(4, 4, NO_ID), (1, 6, NO_ID), (32, 0, NO_ID)])).is_err());
    }

    #[test]
    fn ids_of_named_entries_are_mapped_or_left_out() {
        let raw = sample().encode();
        let mapped = map_ids(&raw, |group, id| (!group).then_some(id + 1));
        let a = Acl::parse(&mapped).unwrap().unwrap();
        assert_eq!(mapped.len(), raw.len() - 8);
        assert!(
            a.allows(1002, 7, 6, |_| false)
                && !a.allows(1001, 7, 4, |_| false)
                && !a.allows(5, 7, 2, |g| g == 50)
        );
        assert_eq!(
            map_ids(&Bytes::from_static(b"xyz"), |_, _| None),
            b"xyz"[..]
        );
    }

    #[test]
    fn evaluation_picks_user_then_groups_then_other() {
        let a = sample();
        assert!(a.allows(1001, 7, 6, |_| false));
        assert!(!a.allows(1002, 7, 4, |_| false));
        assert!(a.allows(1002, 7, 4, |g| g == 7));
        assert!(a.allows(1002, 7, 2, |g| g == 50));
        assert!(
            !a.allows(1002, 7, 6, |g| g == 50 || g == 7),
            "no single entry gives both"
        );
    }

    #[test]
    fn inheritance_and_chmod_go_through_the_mask() {
        let (acl, mode) = sample().inherit(0o100640);
        assert_eq!(mode, 0o100640);
        assert!(!acl.allows(1001, 7, 2, |_| false), "the mask lost w");
        let mut a = sample();
        a.chmod(0o700);
        assert_eq!(a.mode_bits(), 0o700);
        assert!(!a.allows(1001, 7, 4, |_| false));
    }
}
