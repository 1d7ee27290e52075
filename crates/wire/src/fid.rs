//! File identifiers and OST object identifiers
//! (`include/uapi/linux/lustre/lustre_fid.h`, `lustre_ostid.h`, `lustre/include/lustre_fid.h`).

use crate::ldlm::ResId;
use crate::raw::wire_struct;
use core::fmt;
use core::str::FromStr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sequences with a meaning (`enum fid_seq`).
pub mod seq {
    /// OST objects of MDT 0 in the old form: group 0.
    pub const OST_MDT0: u64 = 0;
    /// Unnamed llogs.
    pub const LLOG: u64 = 1;
    /// Echo objects.
    pub const ECHO: u64 = 2;
    /// Named llogs: the logs of the MGS.
    pub const LLOG_NAME: u64 = 10;
    /// First sequence of inode-and-generation FIDs.
    pub const IGIF: u64 = 12;
    /// Last of them.
    pub const IGIF_MAX: u64 = 0xffff_ffff;
    /// First sequence that codes an OST index and object id.
    pub const IDIF: u64 = 0x1_0000_0000;
    /// Last of them.
    pub const IDIF_MAX: u64 = 0x1_ffff_ffff;
    /// `.lustre` and what lies in it.
    pub const DOT_LUSTRE: u64 = 0x2_0000_0002;
    /// Special objects.
    pub const SPECIAL: u64 = 0x2_0000_0004;
    /// The root directory, on MDT 0.
    pub const ROOT: u64 = 0x2_0000_0007;
    /// First sequence given to clients.
    pub const NORMAL: u64 = 0x2_0000_0400;
    /// "No sequence" in a default layout.
    pub const LOV_DEFAULT: u64 = u64::MAX;
    /// Object ids in one sequence given to a client (`LUSTRE_METADATA_SEQ_MAX_WIDTH`).
    pub const WIDTH: u64 = 0x2_0000;
}

/// A file identifier: unique in the file system, never reused.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Fid {
    /// The sequence; decides on which target the object lies.
    pub seq: u64,
    /// Number within the sequence.
    pub oid: u32,
    /// Version, 0 in practice.
    pub ver: u32,
}
const _: () = assert!(size_of::<Fid>() == 16);

impl Fid {
    /// No FID: all zero.
    pub const ZERO: Fid = Fid::new(0, 0);
    /// The root directory.
    pub const ROOT: Fid = Fid::new(seq::ROOT, 1);
    /// The directory `.lustre`.
    pub const DOT_LUSTRE: Fid = Fid::new(seq::DOT_LUSTRE, 1);
    /// `.lustre/fid`: open by FID.
    pub const DOT_LUSTRE_OBF: Fid = Fid::new(seq::DOT_LUSTRE, 2);
    /// `.lustre/lost+found`.
    pub const DOT_LUSTRE_LPF: Fid = Fid::new(seq::DOT_LUSTRE, 3);
    /// The lock that serialises cross-directory renames.
    pub const BFL: Fid = Fid::new(seq::SPECIAL, 1);

    /// Version 0.
    pub const fn new(seq: u64, oid: u32) -> Fid {
        Fid { seq, oid, ver: 0 }
    }

    /// All zero.
    pub const fn is_zero(&self) -> bool {
        self.seq == 0 && self.oid == 0 && self.ver == 0
    }

    /// Made of an inode number and generation.
    pub const fn is_igif(&self) -> bool {
        self.seq >= seq::IGIF && self.seq <= seq::IGIF_MAX
    }

    /// Codes an OST object of group 0.
    pub const fn is_idif(&self) -> bool {
        self.seq >= seq::IDIF && self.seq <= seq::IDIF_MAX
    }

    /// In a sequence given to a client or server.
    pub const fn is_norm(&self) -> bool {
        self.seq >= seq::NORMAL && self.seq != seq::LOV_DEFAULT
    }

    /// The 64-bit inode number the kernel client shows for it (`fid_flatten64`).
    pub const fn flatten(&self) -> u64 {
        if self.is_igif() {
            return self.seq;
        }
        let ino = (self.seq << 24)
            .wrapping_add((self.seq >> 24) & 0xff_ffff_0000)
            .wrapping_add(self.oid as u64);
        if ino == 0 { self.oid as u64 } else { ino }
    }

    /// The LDLM resource of the object (`fid_build_reg_res_name`).
    pub const fn res_id(&self) -> ResId {
        ResId([self.seq, ((self.ver as u64) << 32) | self.oid as u64, 0, 0])
    }

    /// The object whose resource this is, for the resources [`Fid::res_id`] makes.
    pub const fn from_res_id(res: &ResId) -> Fid {
        Fid {
            seq: res.0[0],
            oid: res.0[1] as u32,
            ver: (res.0[1] >> 32) as u32,
        }
    }

    /// The resource of the object's flocks (`ldlm_flock` use the same with a mark in the last word).
    pub const fn flock_res_id(&self) -> ResId {
        let ResId(n) = self.res_id();
        ResId([n[0], n[1], n[2], crate::ldlm::LdlmType::FLOCK.0 as u64])
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:{:#x}]", self.seq, self.oid, self.ver)
    }
}

impl fmt::Debug for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no FID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no FID: expected [0xSEQ:0xOID:0xVER]")]
pub struct FidParseError(pub String);

impl FromStr for Fid {
    type Err = FidParseError;

    /// `[0x200000400:0x1:0x0]`, brackets and the version optional, numbers hexadecimal with or without `0x`.
    fn from_str(s: &str) -> Result<Fid, FidParseError> {
        let bad = || FidParseError(s.to_string());
        let t = s.trim();
        let t = match t.strip_prefix('[') {
            Some(t) => t.strip_suffix(']').ok_or_else(bad)?,
            None => t,
        };
        let mut parts = t
            .split(':')
            .map(|p| u64::from_str_radix(p.strip_prefix("0x").unwrap_or(p), 16));
        let mut next = || parts.next().map(|r| r.map_err(|_| bad()));
        let seq = next().ok_or_else(bad)??;
        let oid = next().ok_or_else(bad)??;
        let ver = next().transpose()?.unwrap_or(0);
        if next().is_some() {
            return Err(bad());
        }
        Ok(Fid {
            seq,
            oid: oid.try_into().map_err(|_| bad())?,
            ver: ver.try_into().map_err(|_| bad())?,
        })
    }
}

wire_struct! {
    /// `ost_id`: an OST object, either {id, group 0} or the bytes of a [`Fid`].
    #[derive(Eq, Hash)]
    pub struct OstId : 16 {
        /// Object id in the old form; FID sequence in the new one.
        0 id: u64,
        /// Group in the old form (0); object id and version of the FID in the new one.
        8 seq: u64,
    }
}

/// Bits of an object id that an IDIF FID can code.
const IDIF_OID_MASK: u64 = (1 << 48) - 1;

impl OstId {
    /// Object `id` of group 0.
    pub const fn group0(id: u64) -> OstId {
        OstId { id, seq: 0 }
    }

    /// The new form: a FID's own bytes.
    pub const fn from_fid_raw(fid: Fid) -> OstId {
        OstId {
            id: fid.seq,
            seq: ((fid.ver as u64) << 32) | fid.oid as u64,
        }
    }

    /// The bytes read as a FID.
    pub const fn raw_fid(&self) -> Fid {
        Fid {
            seq: self.id,
            oid: self.seq as u32,
            ver: (self.seq >> 32) as u32,
        }
    }

    /// Whether the old form is meant: group 0.
    pub const fn is_group0(&self) -> bool {
        self.seq == seq::OST_MDT0
    }

    /// The group or FID sequence (`ostid_seq`); 0 for IDIF too.
    pub const fn object_seq(&self) -> u64 {
        if self.seq == seq::OST_MDT0 || self.seq == seq::LOV_DEFAULT {
            return self.seq;
        }
        let fid = self.raw_fid();
        if fid.is_idif() {
            seq::OST_MDT0
        } else {
            fid.seq
        }
    }

    /// The number within it (`ostid_id`).
    pub const fn object_id(&self) -> u64 {
        if self.seq == seq::OST_MDT0 {
            return self.id & IDIF_OID_MASK;
        }
        if self.seq == seq::LOV_DEFAULT {
            return self.id;
        }
        let fid = self.raw_fid();
        if fid.is_idif() {
            return ((fid.ver as u64) << 48) | ((fid.seq & 0xffff) << 32) | fid.oid as u64;
        }
        fid.oid as u64
    }

    /// The FID of the object on OST `ost_idx` (`ostid_to_fid`).
    pub const fn to_fid(&self, ost_idx: u32) -> Fid {
        if !self.is_group0() {
            return self.raw_fid();
        }
        let id = self.id & IDIF_OID_MASK;
        Fid {
            seq: seq::IDIF | ((ost_idx as u64 & 0xffff) << 16) | ((id >> 32) & 0xffff),
            oid: id as u32,
            ver: 0,
        }
    }

    /// The id of the object a FID names: IDIF becomes group 0, others stay FIDs (`fid_to_ostid`).
    pub const fn from_fid(fid: Fid) -> OstId {
        if fid.is_idif() {
            return OstId::group0(
                ((fid.ver as u64) << 48) | ((fid.seq & 0xffff) << 32) | fid.oid as u64,
            );
        }
        OstId::from_fid_raw(fid)
    }

    /// The LDLM resource of the object (`ostid_build_res_name`).
    pub const fn res_id(&self) -> ResId {
        if self.is_group0() {
            ResId([self.object_id(), 0, 0, 0])
        } else {
            self.raw_fid().res_id()
        }
    }

    /// The object whose resource this is (`ostid_res_name_to_id`).
    pub const fn from_res_id(res: &ResId) -> OstId {
        if res.0[1] == 0 {
            OstId::group0(res.0[0])
        } else {
            OstId {
                id: res.0[0],
                seq: res.0[1],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fid_text() {
        let f: Fid = "[0x200000400:0x1:0x0]".parse().unwrap();
        assert_eq!(f, Fid::new(0x2_0000_0400, 1));
        assert_eq!(f.to_string(), "[0x200000400:0x1:0x0]");
        assert_eq!(
            "0x200000400:0xff".parse::<Fid>().unwrap(),
            Fid::new(0x2_0000_0400, 255)
        );
        for bad in ["", "[1", "1:2:3:4", "x:1:0", "1:100000000:0"] {
            assert!(bad.parse::<Fid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn inode_numbers_as_the_kernel_client_shows_them() {
        // ino of the root of every Lustre mount
        assert_eq!(Fid::ROOT.flatten(), 144115188193296385);
        assert_eq!(Fid::new(0x2_0000_0401, 1).flatten(), 144115205272502273);
    }

    #[test]
    fn ostid_forms() {
        let o = OstId::group0(0x12_3456_789a);
        let f = o.to_fid(3);
        assert!(f.is_idif());
        assert_eq!(f.seq, 0x1_0003_0012);
        assert_eq!(OstId::from_fid(f), o);
        assert_eq!(o.res_id(), ResId([0x12_3456_789a, 0, 0, 0]));
        let n = OstId::from_fid(Fid::new(0x2_c000_0400, 7));
        assert_eq!(n.object_id(), 7);
        assert_eq!(n.object_seq(), 0x2_c000_0400);
        assert_eq!(OstId::from_res_id(&n.res_id()), n);
        assert_eq!(OstId::from_res_id(&o.res_id()), o);
    }
}
