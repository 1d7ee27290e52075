//! Quota commands and requests (`lustre_idl.h`: `obd_quotactl`, `quota_body`; `lustre_user.h`).

use crate::fid::Fid;
use crate::raw::wire_struct;

wire_struct! {
    /// `obd_dqinfo`.
    #[derive(Eq)]
    pub struct ObdDqinfo : 24 {
        /// Seconds of grace for blocks.
        0 bgrace: u64,
        /// Seconds of grace for inodes.
        8 igrace: u64,
        16 flags: u32,
        20 valid: u32,
    }
}

wire_struct! {
    /// `obd_dqblk`: limits and usage of one id.
    #[derive(Eq)]
    pub struct ObdDqblk : 72 {
        /// KiB.
        0 bhardlimit: u64,
        /// KiB.
        8 bsoftlimit: u64,
        /// Bytes.
        16 curspace: u64,
        24 ihardlimit: u64,
        32 isoftlimit: u64,
        40 curinodes: u64,
        /// Seconds.
        48 btime: u64,
        /// Seconds.
        56 itime: u64,
        64 valid: u32,
        68 padding: u32,
    }
}

wire_struct! {
    /// `obd_quotactl`; a pool's name may follow.
    #[derive(Eq)]
    pub struct ObdQuotactl : 112 {
        0 cmd: u32,
        /// 0 user, 1 group, 2 project.
        4 r#type: u32,
        8 id: u32,
        12 stat: u32,
        16 dqinfo: ObdDqinfo,
        40 dqblk: ObdDqblk,
    }
}

wire_struct! {
    /// `quota_body` (servers only).
    #[derive(Eq)]
    pub struct QuotaBody : 112 {
        0 fid: Fid,
        16 id: [u64; 2],
        32 flags: u32,
        36 padding: u32,
        40 count: u64,
        48 usage: u64,
        56 slv_ver: u64,
        64 lockh: u64,
        72 glb_lockh: u64,
        80 glb_ver: u64,
        88 padding1: [u64; 3],
    }
}

/// Commands (`lustre_user.h`, `linux/quota.h`).
pub mod cmd {
    /// Times of grace.
    pub const GETINFO: u32 = 0x80_0005;
    /// Limits of an id.
    pub const GETQUOTA: u32 = 0x80_0007;
    /// Limits of ids that have none of their own.
    pub const GETDEFAULT: u32 = 0x80_000d;
    /// Limits of an id in a pool of OSTs.
    pub const GETQUOTAPOOL: u32 = 0x80_000f;
    /// Times of grace in a pool.
    pub const GETINFOPOOL: u32 = 0x80_0011;
    /// Limits of the others in a pool.
    pub const GETDEFAULT_POOL: u32 = 0x80_0013;
    /// Changes: limits, times of grace, defaults, those of pools; an id's limits forgotten, an id set back.
    pub const SET: [u32; 8] = [
        0x80_0006, 0x80_0008, 0x80_000e, 0x80_0010, 0x80_0012, 0x80_0014, 0x80_0015, 0x80_0016,
    ];
    /// Lists: all limits, all usage.
    pub const ITER: [u32; 2] = [0x80_0017, 0x80_0018];
    /// Usage of an id on one target.
    pub const GETOQUOTA: u32 = 0x80_0103;
}

/// Which fields of [`ObdDqblk`] mean something (`QIF_*`).
pub mod dqb {
    /// Limits of blocks.
    pub const BLIMITS: u32 = 1;
    /// Bytes in use.
    pub const SPACE: u32 = 2;
    /// Limits of inodes.
    pub const ILIMITS: u32 = 4;
    /// Inodes in use.
    pub const INODES: u32 = 8;
    /// Grace for blocks.
    pub const BTIME: u32 = 16;
    /// Grace for inodes.
    pub const ITIME: u32 = 32;
}
