//! Ping and discovery: who we are, told to whoever asks (lnet/lnet/api-ni.c, lnet/lnet/peer.c).
//!
//! A kernel node asks before it sends anything else, and sends nothing when the answer does not come.

use bytes::Bytes;

use crate::Nid;

/// Portal of pings and pushes (`LNET_RESERVED_PORTAL`).
pub(crate) const PORTAL: u32 = 0;
/// Match bits of pings and pushes (`LNET_PROTO_PING_MATCHBITS`).
pub(crate) const MBITS: u64 = 1 << 63;
/// Most bytes we ask for: what a kernel node asks a peer it does not know.
pub(crate) const MAX_LEN: u32 = 4096;

const MAGIC: u32 = 0x7069_6e67;
const NI_UP: u32 = 0x15aa_c0de;

/// `LNET_PING_FEAT_*` bits.
pub mod feature {
    /// Can be pinged.
    pub const BASE: u32 = 1;
    /// Has a status per NID.
    pub const NI_STATUS: u32 = 2;
    /// Does not route.
    pub const RTE_DISABLED: u32 = 4;
    /// Speaks Multi-Rail.
    pub const MULTI_RAIL: u32 = 8;
    /// Discovers and takes pushes.
    pub const DISCOVERY: u32 = 16;
}

/// What we claim: what a kernel node that does not route claims (BASE is no longer among it).
const OURS: u32 = feature::NI_STATUS | feature::RTE_DISABLED | feature::MULTI_RAIL | feature::DISCOVERY;

/// Answer to a ping: what a node says of itself (`struct lnet_ping_info`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingInfo {
    /// `LNET_PING_FEAT_*` bits, see [`feature`].
    pub features: u32,
    /// LNet pid.
    pub pid: u32,
    /// NIDs with their status word, `0@lo` first: its status word is the sequence number of this description.
    pub nis: Vec<(Nid, u32)>,
}

impl PingInfo {
    /// What a node with these NIDs says. Our NIDs do not change in a life, so neither does the sequence number; its value is
    /// the one a kernel server gives, because peers take a lower one than before for old news.
    pub(crate) fn of(nids: &[Nid]) -> PingInfo {
        let lo = (Nid::LO, NI_UP);
        let nis = std::iter::once(lo).chain(nids.iter().filter(|n| !n.is_lo()).map(|n| (*n, NI_UP))).collect();
        PingInfo { features: OURS, pid: crate::msg::LNET_PID, nis }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(16 + 16 * self.nis.len());
        for word in [MAGIC, self.features, self.pid, self.nis.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for (nid, status) in &self.nis {
            out.extend_from_slice(&nid.0.to_le_bytes());
            out.extend_from_slice(&status.to_le_bytes());
            out.extend_from_slice(&0u32.to_le_bytes());
        }
        out.into()
    }

    /// Reads an answer or a push. A list longer than its buffer is cut, as a short ping buffer cuts it; None: no ping data.
    pub fn decode(b: &[u8]) -> Option<PingInfo> {
        let word = |at: usize| b.get(at..at + 4).map(|w| u32::from_le_bytes(std::array::from_fn(|i| w[i])));
        if word(0)? != MAGIC {
            return None;
        }
        let (features, pid, count) = (word(4)?, word(8)?, word(12)?);
        let nis = b[16..]
            .chunks_exact(16)
            .take(count as usize)
            .map(|ni| {
                let nid = u64::from_le_bytes(std::array::from_fn(|i| ni[i]));
                let status = u32::from_le_bytes(std::array::from_fn(|i| ni[8 + i]));
                (Nid(nid), status)
            })
            .collect();
        Some(PingInfo { features, pid, nis })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_and_as_the_kernel_wants_it() {
        let tcp: Nid = "10.77.0.3@tcp".parse().unwrap();
        let info = PingInfo::of(&[tcp, "7@lo".parse().unwrap()]);
        assert_eq!(info.nis, vec![(Nid::LO, NI_UP), (tcp, NI_UP)], "in-process NIDs stay here");
        let b = info.encode();
        assert_eq!(b.len(), 48, "two NIs are 48 bytes");
        assert_eq!(PingInfo::decode(&b), Some(info.clone()));
        assert_eq!(PingInfo::decode(&b[..40]).unwrap().nis.len(), 1);
        assert_eq!(PingInfo::decode(&b[..12]), None);
        assert_eq!(PingInfo::decode(&[0; 48]), None);
    }
}
