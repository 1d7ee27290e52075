//! Configuration records: `lustre_cfg` and what its buffers hold (`lustre_cfg.h`, `lustre/mgs/mgs_llog.c`).

use crate::llog::{Llog, LlogFull, LlogRec, OBD_CFG_REC};
use crate::nid::Nid;
use crate::raw::{DecodeError, Wire, c_array, c_str, wire_enum, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Version word of every record.
pub const LUSTRE_CFG_VERSION: u32 = 0x1cf6_0001;
/// Most buffers of a record.
pub const LUSTRE_CFG_MAX_BUFCOUNT: usize = 8;
/// A client that does not know a command with this bit must refuse the mount.
pub const LCFG_REQUIRED: u32 = 0x1000;

wire_enum! {
    /// Commands (`enum lcfg_command_type`).
    pub struct Lcfg(u32) {
        /// New device: [name, type, uuid].
        ATTACH = 0xcf001,
        /// Device goes.
        DETACH = 0xcf002,
        /// Device starts: [name, target uuid, node, ..] or a descriptor.
        SETUP = 0xcf003,
        /// Device stops.
        CLEANUP = 0xcf004,
        /// A NID of a node: ["", node uuid, NID text]; short NID in `nid`.
        ADD_UUID = 0xcf005,
        /// Forget a node.
        DEL_UUID = 0xcf006,
        /// Profile of a mount: ["", profile, lov, lmv].
        MOUNTOPT = 0xcf007,
        /// Forget a profile.
        DEL_MOUNTOPT = 0xcf008,
        /// obd_timeout in `num`.
        SET_TIMEOUT = 0xcf009,
        /// Obsolete.
        SET_UPCALL = 0xcf00a,
        /// A failover node: [device, node uuid].
        ADD_CONN = 0xcf00b,
        /// Forget one.
        DEL_CONN = 0xcf00c,
        /// OST into the LOV: [lov, ost uuid, index, generation].
        LOV_ADD_OBD = 0xcf00d,
        /// OST out of it.
        LOV_DEL_OBD = 0xcf00e,
        /// Parameter: [device, "name=value"].
        PARAM = 0xcf00f,
        /// Marker: ["", cfg_marker].
        MARKER = 0xcf010,
        /// Not in logs.
        LOG_START = 0xce011,
        /// Not in logs.
        LOG_END = 0xce012,
        /// Inactive OST into the LOV.
        LOV_ADD_INA = 0xce013,
        /// MDT into the LMV: [lmv, mdt uuid, index, generation, mdc uuid].
        ADD_MDC = 0xcf014,
        /// MDT out of it.
        DEL_MDC = 0xcf015,
        /// Security rule.
        SPTLRPC_CONF = 0xce016,
        /// Pool: [fs, pool].
        POOL_NEW = 0xce020,
        /// OST into a pool: [fs, pool, ost].
        POOL_ADD = 0xce021,
        /// OST out of a pool.
        POOL_REM = 0xce022,
        /// Pool goes.
        POOL_DEL = 0xce023,
        /// ldlm_timeout.
        SET_LDLM_TIMEOUT = 0xce030,
        /// Not in logs.
        PRE_CLEANUP = 0xcf031,
        /// `lctl set_param -P`: ["", "name=value"].
        SET_PARAM = 0xce032,
    }
}

wire_struct! {
    /// `lustre_cfg` without its buffer lengths.
    #[derive(Eq)]
    pub struct LustreCfgHead : 32 {
        0 version: u32,
        4 command: Lcfg,
        8 num: u32,
        12 flags: u32,
        16 nid: Nid,
        24 nal: u32,
        28 bufcount: u32,
    }
}

/// A configuration record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LustreCfg {
    /// What to do.
    pub command: Lcfg,
    /// A number for it.
    pub num: u32,
    /// Flags for it.
    pub flags: u32,
    /// A short NID for it (ADD_UUID), else 0.
    pub nid: Nid,
    /// Unused, kept.
    pub nal: u32,
    /// Buffers; 0 is the device's name. Texts have their NUL.
    pub bufs: Vec<Bytes>,
}

const fn pad8(n: usize) -> usize {
    (n + 7) & !7
}

impl LustreCfg {
    /// A record with text buffers, each with a NUL; an empty text gives an empty buffer.
    pub fn new(command: Lcfg, texts: &[&str]) -> LustreCfg {
        let buf = |t: &&str| {
            let mut v = t.as_bytes().to_vec();
            if !v.is_empty() {
                v.push(0);
            }
            Bytes::from(v)
        };
        LustreCfg {
            command,
            num: 0,
            flags: 0,
            nid: Nid(0),
            nal: 0,
            bufs: texts.iter().map(buf).collect(),
        }
    }

    /// A marker record.
    pub fn marker(m: &CfgMarker) -> LustreCfg {
        let mut c = LustreCfg::new(Lcfg::MARKER, &[""]);
        c.bufs.push(m.to_bytes());
        c
    }

    /// Buffer `i` up to its NUL; empty when absent.
    pub fn str(&self, i: usize) -> &str {
        self.bufs
            .get(i)
            .and_then(|b| core::str::from_utf8(c_str(b)).ok())
            .unwrap_or("")
    }

    /// The marker, if this is one.
    pub fn as_marker(&self) -> Option<CfgMarker> {
        (self.command == Lcfg::MARKER)
            .then(|| self.bufs.get(1).and_then(|b| CfgMarker::decode(b).ok()))?
    }

    /// Reads the payload of a record.
    pub fn decode(buf: &Bytes) -> Result<LustreCfg, DecodeError> {
        let h = LustreCfgHead::decode(buf)?;
        if h.version != LUSTRE_CFG_VERSION {
            return Err(DecodeError::Magic {
                what: "LustreCfg",
                got: h.version as u64,
            });
        }
        let n = h.bufcount as usize;
        if n > LUSTRE_CFG_MAX_BUFCOUNT {
            return Err(DecodeError::Length {
                what: "LustreCfg",
                field: "bufcount",
                got: n as u64,
            });
        }
        let mut at = pad8(size_of::<LustreCfgHead>() + 4 * n);
        let mut bufs = Vec::with_capacity(n);
        for i in 0..n {
            let len =
                u32::decode(buf.get(size_of::<LustreCfgHead>() + 4 * i..).unwrap_or(&[]))? as usize;
            let end = at.saturating_add(len);
            if end > buf.len() {
                return Err(DecodeError::Length {
                    what: "LustreCfg",
                    field: "buflen",
                    got: len as u64,
                });
            }
            bufs.push(buf.slice(at..end));
            at = pad8(end);
        }
        Ok(LustreCfg {
            command: h.command,
            num: h.num,
            flags: h.flags,
            nid: h.nid,
            nal: h.nal,
            bufs,
        })
    }

    /// The payload of a record: a multiple of 8 bytes.
    pub fn encode(&self) -> Bytes {
        let h = LustreCfgHead {
            version: LUSTRE_CFG_VERSION,
            command: self.command,
            num: self.num,
            flags: self.flags,
            nid: self.nid,
            nal: self.nal,
            bufcount: self.bufs.len() as u32,
        };
        let mut v = h.as_bytes().to_vec();
        for b in &self.bufs {
            v.extend_from_slice(&(b.len() as u32).to_le_bytes());
        }
        v.resize(pad8(v.len()), 0);
        for b in &self.bufs {
            v.extend_from_slice(b);
            v.resize(pad8(v.len()), 0);
        }
        v.into()
    }
}

/// Flags of a marker (`CM_*`).
pub mod cm {
    /// Records of an action begin.
    pub const START: u32 = 0x1;
    /// They end.
    pub const END: u32 = 0x2;
    /// Ignore what is between.
    pub const SKIP: u32 = 0x4;
    /// The OST that is added between is deactivated (`lctl conf_param FS-OST0000.osc.active=0`).
    pub const EXCLUDE: u32 = 0x10;
}

wire_struct! {
    /// `cfg_marker`: brackets the records of one action.
    #[derive(Eq)]
    pub struct CfgMarker : 160 {
        /// Number of the action.
        0 step: u32,
        /// See [`cm`].
        4 flags: u32,
        /// Release that wrote it.
        8 vers: u32,
        12 padding: u32,
        /// Seconds.
        16 createtime: i64,
        /// Seconds; 0 valid.
        24 canceltime: i64,
        /// Target or device.
        32 tgtname: [u8; 64],
        96 comment: [u8; 64],
    }
}

impl CfgMarker {
    /// A marker of step `step` at `time` seconds.
    pub fn new(
        step: u32,
        flags: u32,
        vers: u32,
        time: i64,
        target: &str,
        comment: &str,
    ) -> CfgMarker {
        CfgMarker {
            step,
            flags,
            vers,
            createtime: time,
            tgtname: c_array(target.as_bytes()),
            comment: c_array(comment.as_bytes()),
            ..Default::default()
        }
    }
}

/// Magic of [`LovDesc`] in logs.
pub const LOV_DESC_MAGIC: u32 = 0xB0CC_DE5C;

wire_struct! {
    /// `lov_desc`: defaults of a file system's layouts, in the setup record of its LOV.
    #[derive(Eq)]
    pub struct LovDesc : 88 {
        0 tgt_count: u32,
        /// [`LOV_DESC_MAGIC`] in logs.
        4 active_tgt_count: u32,
        8 default_stripe_count: u32,
        12 pattern: u32,
        /// Bytes.
        16 default_stripe_size: u64,
        24 default_stripe_offset: u64,
        32 padding_0: u32,
        /// Seconds.
        36 qos_maxage: u32,
        40 padding_1: u32,
        44 padding_2: u32,
        48 uuid: [u8; 40],
    }
}

wire_struct! {
    /// `lmv_desc`, in the setup record of the LMV.
    #[derive(Eq)]
    pub struct LmvDesc : 88 {
        0 tgt_count: u32,
        4 active_tgt_count: u32,
        8 default_stripe_count: u32,
        12 pattern: u32,
        16 default_hash_size: u64,
        24 padding_1: u64,
        32 padding_2: u32,
        36 qos_maxage: u32,
        40 padding_3: u32,
        44 padding_4: u32,
        48 uuid: [u8; 40],
    }
}

/// Appends configuration records to a log.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigLogWriter {
    log: Llog,
}

impl ConfigLogWriter {
    /// An empty configuration log made at `time` seconds.
    pub fn new(time: i64) -> ConfigLogWriter {
        ConfigLogWriter {
            log: Llog::new(b"config_uuid", time),
        }
    }

    /// Goes on with an existing log.
    pub fn from_log(log: Llog) -> ConfigLogWriter {
        ConfigLogWriter { log }
    }

    /// Appends a record.
    pub fn push(&mut self, cfg: &LustreCfg) -> Result<u32, LlogFull> {
        self.log.push(OBD_CFG_REC, &cfg.encode())
    }

    /// The log.
    pub fn finish(self) -> Llog {
        self.log
    }
}

/// A configuration record as a reader of a log meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRecord {
    /// Index in the log.
    pub index: u32,
    /// The record.
    pub cfg: LustreCfg,
}

/// Gives the records of a configuration log that count: live, and not between markers that say skip. Of an OST that is excluded
/// LOV_ADD_OBD becomes LOV_ADD_INA, as in `class_config_llog_handler` (`lustre/obdclass/obd_config.c`).
/// Feed it chunk after chunk; it remembers markers and the last index seen.
#[derive(Debug, Default)]
pub struct ConfigLogReader {
    skip: bool,
    exclude: bool,
    last_index: u32,
}

impl ConfigLogReader {
    /// From the beginning.
    pub fn new() -> ConfigLogReader {
        ConfigLogReader::default()
    }

    /// Index to ask for next.
    pub fn next_index(&self) -> u32 {
        self.last_index + 1
    }

    /// Takes a chunk; `live` says which indices the header's bitmap has.
    pub fn feed(
        &mut self,
        chunk: &Bytes,
        live: impl Fn(u32) -> bool,
    ) -> Result<Vec<ConfigRecord>, DecodeError> {
        let mut out = Vec::new();
        for r in crate::llog::parse_chunk(chunk)? {
            if r.index <= self.last_index {
                continue;
            }
            self.last_index = r.index;
            out.extend(self.take(&r, &live)?);
        }
        Ok(out)
    }

    fn take(
        &mut self,
        r: &LlogRec,
        live: impl Fn(u32) -> bool,
    ) -> Result<Option<ConfigRecord>, DecodeError> {
        if r.r#type != OBD_CFG_REC || !live(r.index) {
            return Ok(None);
        }
        let mut cfg = LustreCfg::decode(&r.payload)?;
        if let Some(m) = cfg.as_marker() {
            let starts = |flag| m.flags & (flag | cm::START) == flag | cm::START;
            (self.skip, self.exclude) = (starts(cm::SKIP), starts(cm::EXCLUDE));
            return Ok(None);
        }
        if self.exclude && cfg.command == Lcfg::LOV_ADD_OBD {
            cfg.command = Lcfg::LOV_ADD_INA;
        }
        Ok((!self.skip).then_some(ConfigRecord {
            index: r.index,
            cfg,
        }))
    }

    /// All records that count in a whole log.
    pub fn read_all(log: &Llog) -> Result<Vec<ConfigRecord>, DecodeError> {
        let mut reader = ConfigLogReader::new();
        let mut out = Vec::new();
        for (r, live) in log.records() {
            out.extend(reader.take(&r, |_| live)?);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn skip_markers_hide_what_they_bracket() {
        let mut w = ConfigLogWriter::new(5);
        for skip in [0, cm::SKIP] {
            w.push(&LustreCfg::marker(&CfgMarker::new(
                1,
                cm::START | skip,
                0,
                5,
                "a",
                "b",
            )))
            .unwrap();
            w.push(&LustreCfg::new(Lcfg::ATTACH, &["x", "osc", "u"]))
                .unwrap();
            w.push(&LustreCfg::marker(&CfgMarker::new(
                1,
                cm::END | skip,
                0,
                5,
                "a",
                "b",
            )))
            .unwrap();
        }
        w.push(&LustreCfg::new(Lcfg::DETACH, &["y"])).unwrap();
        let got = ConfigLogReader::read_all(&w.finish()).unwrap();
        assert_eq!(
            got.iter()
                .map(|r| (r.index, r.cfg.str(0)))
                .collect::<Vec<_>>(),
            [(2, "x"), (7, "y")]
        );
    }

    #[test]
    fn an_excluded_ost_is_added_inactive() {
        let mut w = ConfigLogWriter::new(5);
        for exclude in [cm::EXCLUDE, 0] {
            w.push(&LustreCfg::marker(&CfgMarker::new(
                1,
                cm::START | exclude,
                0,
                5,
                "fs-OST0000",
                "add osc",
            )))
            .unwrap();
            w.push(&LustreCfg::new(
                Lcfg::LOV_ADD_OBD,
                &["fs-clilov", "fs-OST0000_UUID", "0", "1"],
            ))
            .unwrap();
            w.push(&LustreCfg::marker(&CfgMarker::new(
                1,
                cm::END | exclude,
                0,
                5,
                "fs-OST0000",
                "add osc",
            )))
            .unwrap();
        }
        let got = ConfigLogReader::read_all(&w.finish()).unwrap();
        assert_eq!(
            got.iter().map(|r| r.cfg.command).collect::<Vec<_>>(),
            [Lcfg::LOV_ADD_INA, Lcfg::LOV_ADD_OBD]
        );
    }

    proptest! {
        #[test]
        fn decode_never_panics_and_encodes_back(mut raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            if raw.len() > 32 {
                raw[..4].copy_from_slice(&LUSTRE_CFG_VERSION.to_le_bytes());
                let n = raw[28] as u32 % 9;
                raw[28..32].copy_from_slice(&n.to_le_bytes());
            }
            if let Ok(c) = LustreCfg::decode(&raw.into()) {
                prop_assert_eq!(LustreCfg::decode(&c.encode()).unwrap(), c);
            }
        }
    }
}
