//! POSIX ACL extended attributes, version 2 (Linux `posix_acl_xattr.h`): what the ACL buffer of a reply
//! and the values of `system.posix_acl_*` hold.

use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Version word of the attribute.
pub const POSIX_ACL_XATTR_VERSION: u32 = 2;

/// Entry tags.
pub mod tag {
    /// Owner.
    pub const USER_OBJ: u16 = 0x01;
    /// A user.
    pub const USER: u16 = 0x02;
    /// Owning group.
    pub const GROUP_OBJ: u16 = 0x04;
    /// A group.
    pub const GROUP: u16 = 0x08;
    /// Mask of all but owner and others.
    pub const MASK: u16 = 0x10;
    /// Others.
    pub const OTHER: u16 = 0x20;
}

/// `id` of entries that have none.
pub const ACL_UNDEFINED_ID: u32 = u32::MAX;

wire_struct! {
    /// `posix_acl_xattr_entry`.
    #[derive(Eq)]
    pub struct AclEntry : 8 {
        /// See [`tag`].
        0 tag: u16,
        /// rwx.
        2 perm: u16,
        /// uid or gid.
        4 id: u32,
    }
}

/// An ACL as its attribute holds it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Acl {
    /// Entries in their order.
    pub entries: Vec<AclEntry>,
}

impl Acl {
    /// Reads an attribute. The order and completeness of entries is not judged here.
    pub fn decode(buf: &[u8]) -> Result<Acl, DecodeError> {
        let version = u32::decode(buf)?;
        if version != POSIX_ACL_XATTR_VERSION {
            return Err(DecodeError::Value {
                what: "Acl",
                field: "version",
                got: version as u64,
            });
        }
        if !(buf.len() - 4).is_multiple_of(8) {
            return Err(DecodeError::Length {
                what: "Acl",
                field: "size",
                got: buf.len() as u64,
            });
        }
        Ok(Acl {
            entries: crate::raw::decode_all(&buf[4..]),
        })
    }

    /// The attribute's bytes.
    pub fn encode(&self) -> Bytes {
        let mut v = POSIX_ACL_XATTR_VERSION.to_le_bytes().to_vec();
        v.extend_from_slice(self.entries.as_bytes());
        v.into()
    }

    /// Whether the entries are complete and ordered as Linux demands (`posix_acl_valid`).
    pub fn is_valid(&self) -> bool {
        let pos = |t| match t {
            tag::USER_OBJ => Some(0),
            tag::USER => Some(1),
            tag::GROUP_OBJ => Some(2),
            tag::GROUP => Some(3),
            tag::MASK => Some(4),
            tag::OTHER => Some(5),
            _ => None,
        };
        let mut last = -1;
        let mut named = false;
        let mut seen = [false; 6];
        for e in &self.entries {
            let Some(p) = pos(e.tag) else { return false };
            let repeats = matches!(e.tag, tag::USER | tag::GROUP);
            if e.perm & !7 != 0 || p < last || (p == last && !repeats) {
                return false;
            }
            named |= repeats;
            seen[p as usize] = true;
            last = p;
        }
        seen[0] && seen[2] && seen[5] && (!named || seen[4])
    }

    /// The entry with this tag (the first, for named ones).
    pub fn find(&self, t: u16) -> Option<&AclEntry> {
        self.entries.iter().find(|e| e.tag == t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn minimal_and_extended() {
        let e = |tag, perm, id| AclEntry { tag, perm, id };
        let none = ACL_UNDEFINED_ID;
        let mut a = Acl {
            entries: vec![
                e(tag::USER_OBJ, 7, none),
                e(tag::GROUP_OBJ, 5, none),
                e(tag::OTHER, 0, none),
            ],
        };
        assert!(a.is_valid());
        assert_eq!(a.encode().len(), 28);
        assert_eq!(Acl::decode(&a.encode()).unwrap(), a);
        a.entries.insert(1, e(tag::USER, 6, 1000));
        assert!(!a.is_valid(), "a named entry needs a mask");
        a.entries.insert(3, e(tag::MASK, 6, none));
        assert!(a.is_valid());
    }

    proptest! {
        #[test]
        fn never_panics(raw in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(a) = Acl::decode(&raw) {
                prop_assert_eq!(&a.encode()[..], &raw[..]);
                let _ = a.is_valid();
            }
        }
    }
}
