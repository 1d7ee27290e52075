//! What an OST agrees to at connect (`ofd_parse_connect_data`, `lustre/ofd/ofd_obd.c`;
//! `OST_CONNECT_SUPPORTED`, `lustre/include/lustre_export.h`).

use coral_wire::Errno;
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2, ObdConnectData};
use coral_wire::ost::cksum_type;

use super::brw::BRW_BYTES;
use super::grant::EXTENT_TAX_BYTES;

/// Checksums we compute. T10 forms are left out: they are sums of sums that need the real thing.
const CKSUMS: u32 = cksum_type::CRC32 | cksum_type::ADLER | cksum_type::CRC32C;

fn supported() -> F {
    F::VERSION
        | F::GRANT
        | F::SRVLOCK
        | F::BRW_SIZE
        | F::CANCELSET
        | F::AT
        | F::CKSUM
        | F::FID
        | F::VBR
        | F::GRANT_SHRINK
        | F::FULL20
        | F::LAYOUTLOCK
        | F::B64BITHASH
        | F::MAXBYTES
        | F::JOBSTATS
        | F::EINPROGRESS
        | F::GRANT_PARAM
        | F::LVB_TYPE
        | F::SHORTIO
        | F::BULK_MBITS
        | F::FLAGS2
        | F::INDEX
        | F::MDS
}

fn supported2() -> F2 {
    F2::INC_XID | F2::LSEEK | F2::REP_MBITS | F2::CORAL
}

/// The part of `asked` that is granted; space is promised later (`Ost::book_grant`). `max_bytes`: the largest object.
pub(super) fn agree(asked: &ObdConnectData, max_bytes: u64) -> Result<ObdConnectData, Errno> {
    let mut d = ObdConnectData {
        connect_flags: asked.connect_flags & supported(),
        index: asked.index,
        ibits_known: asked.ibits_known,
        group: asked.group,
        ..Default::default()
    };
    if d.has(F::FLAGS2) {
        d.connect_flags2 = asked.connect_flags2 & supported2();
    }
    if d.has(F::BRW_SIZE) {
        if asked.brw_size == 0 {
            return Err(Errno::EPROTO);
        }
        d.brw_size = asked.brw_size.min(BRW_BYTES as u32);
    }
    if d.has(F::CKSUM) {
        d.cksum_types = asked.cksum_types & CKSUMS;
        if d.cksum_types == 0 {
            return Err(Errno::EPROTO);
        }
    }
    fill_grant(&mut d);
    if d.has(F::MAXBYTES) {
        d.maxbytes = max_bytes;
    }
    Ok(d)
}

fn fill_grant(d: &mut ObdConnectData) {
    if d.has(F::GRANT_PARAM) {
        d.grant_blkbits = 12;
        d.grant_inobits = 5;
        d.grant_tax_kb = (EXTENT_TAX_BYTES >> 10) as u16;
        d.grant_max_blks = 16384;
    }
}

/// What an MDT adds to `d` for the data it holds: grants and checksums.
pub(super) fn agree_data(asked: &ObdConnectData, d: &mut ObdConnectData) {
    d.connect_flags |= asked.connect_flags & (F::GRANT | F::GRANT_PARAM);
    fill_grant(d);
    if asked.has(F::CKSUM) && asked.cksum_types & CKSUMS != 0 {
        d.connect_flags |= F::CKSUM;
        d.cksum_types = asked.cksum_types & CKSUMS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::connect::release;

    /// What the kernel client of session.pcap asks an OST for.
    fn kernel() -> ObdConnectData {
        ObdConnectData {
            connect_flags: F::from_bits_retain(0xa046_7af2_e364_0038),
            connect_flags2: F2::from_bits_retain(0x4_0014_0202),
            version: release(2, 17, 57, 0),
            grant: 128 << 20,
            brw_size: 64 << 20,
            cksum_types: 0xf7,
            ..Default::default()
        }
    }

    #[test]
    fn nothing_is_granted_that_was_not_asked_for() {
        let d = agree(&kernel(), 1 << 44).unwrap();
        assert!(kernel().connect_flags.contains(d.connect_flags));
        assert!(kernel().connect_flags2.contains(d.connect_flags2));
        assert!(d.has(F::FID | F::FULL20 | F::VERSION | F::SHORTIO | F::SRVLOCK | F::GRANT_PARAM));
        assert_eq!((d.brw_size, d.cksum_types), (4 << 20, 7));
        assert_eq!(
            (
                d.grant_blkbits,
                d.grant_inobits,
                d.grant_tax_kb,
                d.grant_max_blks
            ),
            (12, 5, 24, 16384)
        );
        assert!(!d.has2(F2::CORAL));
        assert_eq!(
            (d.has(F::MAXBYTES), d.maxbytes),
            (true, 1 << 44),
            "the disk's limit, not an offset's"
        );
        assert_eq!(
            agree(&ObdConnectData::default(), 1 << 44)
                .unwrap()
                .connect_flags,
            F::empty()
        );
    }

    #[test]
    fn a_kernel_server_refuses_these_too() {
        let none = ObdConnectData {
            brw_size: 0,
            ..kernel()
        };
        assert_eq!(agree(&none, 1 << 44), Err(Errno::EPROTO));
        let t10 = ObdConnectData {
            cksum_types: 0xf0,
            ..kernel()
        };
        assert_eq!(agree(&t10, 1 << 44), Err(Errno::EPROTO));
    }
}
