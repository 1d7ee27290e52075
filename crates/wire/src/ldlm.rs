//! Lock manager types (`lustre_idl.h`: ldlm part; `lustre/include/lustre_dlm_flags.h`, `lustre/ldlm/ldlm_lib.c`).

use crate::coral::blocks::{Blocks, Span};
use crate::raw::{DecodeError, Wire, wire_enum, wire_flags, wire_struct};
use bytes::Bytes;
use core::fmt;
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Lock modes; each is one bit so that sets of modes are masks.
    pub struct LdlmMode(u32) {
        /// No mode.
        NONE = 0,
        /// Exclusive.
        EX = 1,
        /// Protected write.
        PW = 2,
        /// Protected read.
        PR = 4,
        /// Concurrent write.
        CW = 8,
        /// Concurrent read.
        CR = 16,
        /// Null.
        NL = 32,
        /// Group: compatible with the same gid.
        GROUP = 64,
        /// Commit on sharing (servers only).
        COS = 128,
        /// Transaction (servers only).
        TXN = 256,
    }
}

impl LdlmMode {
    /// All modes, strongest first.
    pub const ALL: [LdlmMode; 9] = [
        LdlmMode::EX,
        LdlmMode::PW,
        LdlmMode::PR,
        LdlmMode::CW,
        LdlmMode::CR,
        LdlmMode::NL,
        LdlmMode::GROUP,
        LdlmMode::COS,
        LdlmMode::TXN,
    ];

    /// Modes that may be held beside this one, as a mask (`lck_compat_array`). For GROUP the gid decides in addition.
    pub const fn compat_mask(self) -> u32 {
        match self.0 {
            1 => 32,
            2 => 32 | 16,
            4 => 32 | 16 | 4 | 256,
            8 => 32 | 16 | 8,
            16 => 32 | 16 | 8 | 4 | 2 | 256,
            32 => 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256,
            64 => 32 | 64,
            128 => 32 | 128,
            256 => 32 | 16 | 4 | 256,
            _ => 0,
        }
    }

    /// Whether both may be held at once.
    pub const fn compatible(self, other: LdlmMode) -> bool {
        self.compat_mask() & other.0 != 0
    }

    /// Whether a lock of this mode allows whatever one of mode `need` would: everything compatible with it is compatible with `need` too.
    pub const fn covers(self, need: LdlmMode) -> bool {
        self.compat_mask() & !need.compat_mask() == 0 && self.0 != 0
    }
}

wire_enum! {
    /// What a lock's policy means.
    pub struct LdlmType(u32) {
        /// No policy.
        PLAIN = 10,
        /// Byte range.
        EXTENT = 11,
        /// flock and fcntl.
        FLOCK = 12,
        /// Bits of an inode.
        IBITS = 13,
    }
}

wire_flags! {
    /// Bits of a metadata object that a lock covers (`MDS_INODELOCK_*`).
    pub struct Ibits(u64) {
        /// Name and existence.
        LOOKUP = 0x1,
        /// Size, links, times; the content of a directory.
        UPDATE = 0x2,
        /// Open handle kept by the client.
        OPEN = 0x4,
        /// Layout.
        LAYOUT = 0x8,
        /// Mode, owner, ACL.
        PERM = 0x10,
        /// Other extended attributes.
        XATTR = 0x20,
        /// Data on the MDT.
        DOM = 0x40,
    }
}

impl Ibits {
    /// What covers the attributes of an object and its names.
    pub const ATTRIBUTES: Ibits = Ibits(Self::LOOKUP.0 | Self::UPDATE.0 | Self::PERM.0);

    /// All bits in use (`MDS_INODELOCK_FULL`).
    pub const FULL: Ibits = Ibits(0x7f);
}

wire_flags! {
    /// Lock flags on the wire (`LDLM_FL_*`).
    pub struct LdlmFlags(u32) {
        /// Reply: mode, resource or policy differ from what was asked.
        LOCK_CHANGED = 0x1,
        /// Granted later, behind others.
        BLOCK_GRANTED = 0x2,
        /// Conversion waits.
        BLOCK_CONV = 0x4,
        /// Waits in the queue.
        BLOCK_WAIT = 0x8,
        /// Lock-ahead.
        SPECULATIVE = 0x10,
        /// Reply: a blocking callback is folded in.
        AST_SENT = 0x20,
        /// Reply: resource is contended.
        CONTENTION = 0x40,
        /// Replay of a lock after a restart.
        REPLAY = 0x100,
        /// Execute the intent, give no lock.
        INTENT_ONLY = 0x200,
        /// An intent follows the request.
        HAS_INTENT = 0x1000,
        /// flock: this is a deadlock.
        FLOCK_DEADLOCK = 0x8000,
        /// Drop cached data, do not write it.
        DISCARD_DATA = 0x1_0000,
        /// No timeout for this lock.
        NO_TIMEOUT = 0x2_0000,
        /// Do not wait: -EWOULDBLOCK.
        BLOCK_NOWAIT = 0x4_0000,
        /// Only test.
        TEST_LOCK = 0x8_0000,
        /// Match only.
        MATCH_LOCK = 0x10_0000,
        /// The server may drop it without asking.
        CANCEL_ON_BLOCK = 0x80_0000,
        /// Commit on sharing.
        COS_INCOMPAT = 0x100_0000,
        /// Convert instead of cancel.
        CONVERTING = 0x200_0000,
        /// Extent is not to grow.
        NO_EXPANSION = 0x2000_0000,
        /// Contended: deny.
        DENY_ON_CONTENTION = 0x4000_0000,
        /// Callback: data may be dropped.
        AST_DISCARD_DATA = 0x8000_0000,
    }
}

impl LdlmFlags {
    /// Flags a client may send; others are a protocol error (`LDLM_FL_FROM_CLIENT` and what the server checks).
    pub const FROM_CLIENT: LdlmFlags = LdlmFlags(
        0x2 | 0x8
            | 0x10
            | 0x100
            | 0x200
            | 0x1000
            | 0x4_0000
            | 0x8_0000
            | 0x80_0000
            | 0x2000_0000
            | 0x4000_0000
            | 0x8000_0000,
    );
    /// Reply flags that say: not granted yet, a completion callback will come.
    pub const BLOCKED: LdlmFlags = LdlmFlags(0x2 | 0x4 | 0x8);
}

/// `ELDLM_LOCK_CHANGED`: the reply's lock differs from the asked one.
pub const ELDLM_LOCK_CHANGED: i32 = 300;
/// `ELDLM_LOCK_ABORTED`: no lock was made, the intent's result is in the reply.
pub const ELDLM_LOCK_ABORTED: i32 = 301;
/// `ELDLM_LOCK_REPLACED`: server replaced the lock (internal).
pub const ELDLM_LOCK_REPLACED: i32 = 302;
/// `ELDLM_NO_LOCK_DATA`: glimpse: lock or inode is gone.
pub const ELDLM_NO_LOCK_DATA: i32 = 303;
/// `ELDLM_LOCK_WOULDBLOCK`.
pub const ELDLM_LOCK_WOULDBLOCK: i32 = 304;

/// `ldlm_res_id`: the name of a resource.
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
#[repr(transparent)]
pub struct ResId(pub [u64; 4]);

impl ResId {
    /// The resource of a file system's configuration (`mgc_fsname2resid`): up to 8 characters of the name, and the kind of log.
    pub fn config(fsname: &str, cfg_type: u16) -> ResId {
        let mut name = [0u8; 8];
        let n = fsname.len().min(8);
        name[..n].copy_from_slice(&fsname.as_bytes()[..n]);
        // sptlrpc logs share the resource of the config logs
        let kind = if cfg_type == crate::mgs::MGS_CFG_T_SPTLRPC {
            0
        } else {
            cfg_type as u64
        };
        ResId([u64::from_le_bytes(name), kind, 0, 0])
    }
}

impl fmt::Display for ResId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{:#x}:{:#x}:{:#x}].{:#x}",
            self.0[0], self.0[1], self.0[2], self.0[3]
        )
    }
}

impl fmt::Debug for ResId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

wire_struct! {
    /// `ldlm_resource_desc`.
    #[derive(Eq)]
    pub struct LdlmResourceDesc : 40 {
        0 r#type: LdlmType,
        4 pad: u32,
        8 name: ResId,
    }
}

/// `ldlm_wire_policy_data`: 32 bytes whose meaning the lock type decides; see [`Policy`].
pub type WirePolicy = [u64; 4];

wire_struct! {
    /// `ldlm_lock_desc`: a lock as both ends see it.
    #[derive(Eq)]
    pub struct LockDesc : 80 {
        0 resource: LdlmResourceDesc,
        40 req_mode: LdlmMode,
        44 granted_mode: LdlmMode,
        48 policy_data: WirePolicy,
    }
}

/// Lustre's name of it.
pub type LdlmLockDesc = LockDesc;

impl LockDesc {
    /// A lock asked for.
    pub fn new(name: ResId, ty: LdlmType, mode: LdlmMode, policy: &Policy) -> LockDesc {
        LockDesc {
            resource: LdlmResourceDesc {
                r#type: ty,
                pad: 0,
                name,
            },
            req_mode: mode,
            granted_mode: LdlmMode::NONE,
            policy_data: policy.to_wire(),
        }
    }

    /// The policy, read by the lock's type. (A convert leaves the type out: read [`LockDesc::ibits`] there.)
    pub fn policy(&self) -> Policy {
        Policy::from_wire(self.resource.r#type, &self.policy_data)
    }

    /// The policy of an inode bits lock, whatever the type says: in LDLM_CONVERT the type is 0, `try_bits` are to be dropped.
    pub fn ibits(&self) -> Policy {
        Policy::from_wire(LdlmType::IBITS, &self.policy_data)
    }

    /// Lock type.
    pub fn ty(&self) -> LdlmType {
        self.resource.r#type
    }

    /// Resource.
    pub fn res(&self) -> ResId {
        self.resource.name
    }
}

/// What a lock covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// The whole resource.
    #[default]
    Plain,
    /// Bytes `start..=end`; `end` is `u64::MAX` for end of file.
    Extent {
        /// First byte.
        start: u64,
        /// Last byte, inclusive.
        end: u64,
        /// Group of a GROUP lock.
        gid: u64,
        /// Of a granted lock: these blocks alone. Of one that is asked for: blocks of which this extent is one, and which the client would
        /// rather have. Between Coral ends.
        blocks: Option<Blocks>,
    },
    /// Bits of an inode.
    Ibits {
        /// Bits asked for or granted.
        bits: Ibits,
        /// Bits welcome if they are free; in a convert the bits to drop.
        try_bits: Ibits,
        /// Group of a GROUP lock.
        gid: u64,
        /// MDT that asked (servers only).
        initiator_id: u32,
    },
    /// A POSIX or flock range.
    Flock {
        /// First byte.
        start: u64,
        /// Last byte, inclusive.
        end: u64,
        /// Who owns it on that client.
        owner: u64,
        /// Process id, shown by F_GETLK.
        pid: u32,
    },
}

impl Policy {
    /// Inode bits, nothing optional.
    pub const fn ibits(bits: Ibits) -> Policy {
        Policy::Ibits {
            bits,
            try_bits: Ibits(0),
            gid: 0,
            initiator_id: 0,
        }
    }

    /// A byte range, end inclusive.
    pub const fn extent(start: u64, end: u64) -> Policy {
        Policy::Extent {
            start,
            end,
            gid: 0,
            blocks: None,
        }
    }

    /// The bytes of an extent.
    pub fn span(&self) -> Option<Span> {
        match *self {
            Policy::Extent {
                start, end, blocks, ..
            } => Some(Span { start, end, blocks }),
            _ => None,
        }
    }

    /// Reads the 32 bytes by lock type; an unknown type is Plain.
    pub fn from_wire(ty: LdlmType, w: &WirePolicy) -> Policy {
        match ty {
            LdlmType::EXTENT => Policy::Extent {
                start: w[0],
                end: w[1],
                gid: w[2],
                blocks: Blocks::from_wire(w[3]),
            },
            LdlmType::IBITS => Policy::Ibits {
                bits: Ibits(w[0]),
                try_bits: Ibits(w[1]),
                gid: w[2],
                initiator_id: (w[3] >> 32) as u32,
            },
            LdlmType::FLOCK => Policy::Flock {
                start: w[0],
                end: w[1],
                owner: w[2],
                pid: (w[3] >> 32) as u32,
            },
            _ => Policy::Plain,
        }
    }

    /// The 32 bytes.
    pub fn to_wire(&self) -> WirePolicy {
        match *self {
            Policy::Plain => [0; 4],
            Policy::Extent {
                start,
                end,
                gid,
                blocks,
            } => [start, end, gid, blocks.map_or(0, Blocks::to_wire)],
            Policy::Ibits {
                bits,
                try_bits,
                gid,
                initiator_id,
            } => [bits.0, try_bits.0, gid, (initiator_id as u64) << 32],
            Policy::Flock {
                start,
                end,
                owner,
                pid,
            } => [start, end, owner, (pid as u64) << 32],
        }
    }
}

wire_struct! {
    /// The fixed head of `ldlm_request`.
    #[derive(Eq)]
    pub struct LdlmRequestHead : 88 {
        0 flags: LdlmFlags,
        /// Number of handles that follow and mean something.
        4 count: u32,
        8 desc: LockDesc,
    }
}

/// `ldlm_request`: of an enqueue, a cancel, a callback, or the early cancels that ride on another request.
///
/// `handles[0]` of an enqueue is the client's own lock cookie; then come the server cookies it cancels early.
/// Lustre never sends fewer than two handles' room, whatever `count` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdlmRequest {
    /// `LDLM_FL_*`.
    pub flags: LdlmFlags,
    /// Number of meaningful handles; for an enqueue without early cancels real clients send 1, in callbacks 0.
    pub count: u32,
    /// The lock.
    pub desc: LockDesc,
    /// Cookies, as many as the buffer holds (two at least when sent).
    pub handles: SmallVec<[u64; 2]>,
}

impl LdlmRequest {
    /// Most handles taken from a buffer (a page of them, as the kernel packs at most).
    pub const MAX_HANDLES: usize = 4096 / 8;

    /// For an enqueue of the lock `desc` with our cookie.
    pub fn enqueue(flags: LdlmFlags, desc: LockDesc, cookie: u64) -> LdlmRequest {
        LdlmRequest {
            flags,
            count: 1,
            desc,
            handles: SmallVec::from_slice(&[cookie, 0]),
        }
    }

    /// For a cancel (or the early cancels in another request) of these server cookies.
    pub fn cancel(cookies: &[u64]) -> LdlmRequest {
        LdlmRequest {
            count: cookies.len() as u32,
            handles: SmallVec::from_slice(cookies),
            ..Default::default()
        }
    }

    /// Reads head and handles.
    pub fn decode(buf: &[u8]) -> Result<LdlmRequest, DecodeError> {
        let h = LdlmRequestHead::decode(buf)?;
        let handles = buf[size_of::<LdlmRequestHead>()..]
            .chunks_exact(8)
            .take(Self::MAX_HANDLES)
            .map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default()))
            .collect();
        Ok(LdlmRequest {
            flags: h.flags,
            count: h.count,
            desc: h.desc,
            handles,
        })
    }

    /// Writes head and handles, zero handles added up to two.
    pub fn to_bytes(&self) -> Bytes {
        let mut out =
            Vec::with_capacity(size_of::<LdlmRequestHead>() + 8 * self.handles.len().max(2));
        let h = LdlmRequestHead {
            flags: self.flags,
            count: self.count,
            desc: self.desc,
        };
        out.extend_from_slice(h.as_bytes());
        for c in self.handles.iter().copied().chain(core::iter::repeat_n(
            0,
            2usize.saturating_sub(self.handles.len()),
        )) {
            out.extend_from_slice(&c.to_le_bytes());
        }
        out.into()
    }

    /// Handle `i`, 0 when absent.
    pub fn handle(&self, i: usize) -> u64 {
        self.handles.get(i).copied().unwrap_or(0)
    }

    /// The server cookies an enqueue cancels early: those behind our own.
    pub fn early_cancels(&self) -> &[u64] {
        let n = (self.count as usize).min(self.handles.len());
        self.handles.get(1..n).unwrap_or(&[])
    }

    /// The cookies of a cancel (or of the early cancels in a reint): the first `count`.
    pub fn cancels(&self) -> &[u64] {
        &self.handles[..(self.count as usize).min(self.handles.len())]
    }
}

wire_struct! {
    /// `ldlm_reply`.
    #[derive(Eq)]
    pub struct LdlmReply : 112 {
        0 flags: LdlmFlags,
        4 padding: u32,
        /// The lock as the server has it.
        8 desc: LockDesc,
        /// The server's cookie; 0 no lock.
        88 handle: u64,
        /// Intent: disposition bits, see [`crate::mds::disp`].
        96 policy_res1: u64,
        /// Intent: status of the operation, sign extended.
        104 policy_res2: u64,
    }
}

/// Intent opcodes, bits of [`LdlmIntent::opc`] (`enum ldlm_intent_flags`).
pub mod it {
    /// Open.
    pub const OPEN: u64 = 0x1;
    /// Create (with OPEN).
    pub const CREAT: u64 = 0x2;
    /// Not sent: a plain PR lock on UPDATE.
    pub const READDIR: u64 = 0x4;
    /// Attributes.
    pub const GETATTR: u64 = 0x8;
    /// Name to FID.
    pub const LOOKUP: u64 = 0x10;
    /// All extended attributes.
    pub const GETXATTR: u64 = 0x80;
    /// Layout.
    pub const LAYOUT: u64 = 0x400;
    /// Quota (servers only).
    pub const QUOTA_DQACQ: u64 = 0x800;
    /// Quota (servers only).
    pub const QUOTA_CONN: u64 = 0x1000;
    /// Glimpse of a data-on-MDT file.
    pub const GLIMPSE: u64 = 0x4000;
    /// Data-on-MDT I/O.
    pub const BRW: u64 = 0x8000;
}

wire_struct! {
    /// `ldlm_intent`.
    #[derive(Eq)]
    pub struct LdlmIntent : 8 {
        /// See [`it`].
        0 opc: u64,
    }
}

/// The lock value block of an OST object lives with the OST types.
pub use crate::ost::OstLvb;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `lustre_dlm.h` in letters: rows granted, columns requested, in the order of `LdlmMode::ALL`.
    const TABLE: [&str; 9] = [
        "-----y---",
        "----yy---",
        "--y-yy--y",
        "---yyy---",
        "-yyyyy--y",
        "yyyyyyyyy",
        "-----yy--",
        "-----y-y-",
        "--y-yy--y",
    ];

    #[test]
    fn modes_agree_with_the_table() {
        for (g, row) in LdlmMode::ALL.iter().zip(TABLE) {
            for (r, c) in LdlmMode::ALL.iter().zip(row.chars()) {
                assert_eq!(g.compatible(*r), c == 'y', "{g:?} {r:?}");
                assert_eq!(g.compatible(*r), r.compatible(*g));
            }
        }
        assert!(LdlmMode::PW.covers(LdlmMode::PR) && LdlmMode::EX.covers(LdlmMode::CW));
        assert!(!LdlmMode::CR.covers(LdlmMode::PR) && !LdlmMode::PR.covers(LdlmMode::PW));
    }

    #[test]
    fn request_has_room_for_two_handles() {
        let r = LdlmRequest::cancel(&[7]);
        assert_eq!(r.to_bytes().len(), 104);
        let back = LdlmRequest::decode(&r.to_bytes()).unwrap();
        assert_eq!((back.count, back.cancels()), (1, &[7u64][..]));
        let mut e = LdlmRequest::enqueue(LdlmFlags::HAS_INTENT, LockDesc::default(), 5);
        e.handles = SmallVec::from_slice(&[5, 8, 9]);
        e.count = 3;
        assert_eq!(LdlmRequest::decode(&e.to_bytes()).unwrap(), e);
        assert_eq!(e.early_cancels(), &[8, 9]);
        // a count beyond the buffer is no panic
        e.count = 900;
        assert_eq!(e.early_cancels(), &[8, 9]);
    }

    #[test]
    fn config_resource() {
        assert_eq!(
            ResId::config("lustre", 0).0[0],
            u64::from_le_bytes(*b"lustre\0\0")
        );
    }
}
