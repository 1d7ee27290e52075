//! Ping and discovery: who we are, told to whoever asks (lnet/lnet/api-ni.c, lnet/lnet/peer.c).
//!
//! A kernel node asks before it sends anything else, and sends nothing when the answer does not come.

use coral_wire::lnet::{LNET_NI_STATUS_UP, LNET_PROTO_PING_MATCHBITS, PingInfo, feat};
use coral_wire::nid::LNET_PID;

use crate::Nid;

/// Portal of pings and pushes (`LNET_RESERVED_PORTAL`).
pub(crate) const PORTAL: u32 = 0;
/// Match bits of pings and pushes.
pub(crate) const MBITS: u64 = LNET_PROTO_PING_MATCHBITS;
/// Most bytes we ask for, and take as a push: 255 NIDs.
pub(crate) const MAX_LEN: u32 = 4096;

/// What we claim: what a kernel node claims (BASE is no longer among it); one that does not route says so.
const OURS: u32 = feat::NI_STATUS | feat::MULTI_RAIL | feat::DISCOVERY;

/// What a node with these NIDs says of itself; in-process NIDs stay here. The sequence number grows with the `changes` since the
/// start; its first value is the one a kernel server gives, because peers take a lower one than before for old news.
pub(crate) fn info(nids: &[Nid], routing: bool, changes: u32) -> PingInfo {
    let nids: Vec<Nid> = nids.iter().copied().filter(|n| !n.is_lo()).collect();
    let features = if routing {
        OURS
    } else {
        OURS | feat::RTE_DISABLED
    };
    PingInfo::new(
        features,
        LNET_PID,
        LNET_NI_STATUS_UP.wrapping_add(changes),
        &nids,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_kernel_says_it() {
        let tcp: Nid = "10.77.0.3@tcp".parse().unwrap();
        let info = info(&[tcp, "7@lo".parse().unwrap()], false, 0);
        assert_eq!(info.nids().collect::<Vec<_>>(), [tcp]);
        let b = info.encode();
        assert_eq!(b.len(), 48, "loopback and one NID");
        assert_eq!(PingInfo::decode(&b).unwrap(), info);
    }

    /// The answer of a kernel router in `router-tcp1.pcap` once it routes; the sequence number is its own.
    #[test]
    fn as_a_kernel_router_says_it() {
        let nids = ["10.77.0.4@tcp", "10.78.0.4@tcp1"].map(|n| n.parse().unwrap());
        let b = info(&nids, true, 0).encode();
        let hex = |b: &[u8]| b.iter().map(|x| format!("{x:02x}")).collect::<String>();
        assert_eq!(
            hex(&b[..24]),
            "676e69701a00000039300000030000000000000000000900"
        );
        assert_eq!(
            hex(&b[32..]),
            "04004d0a00000200dec0aa150000000004004e0a01000200dec0aa1500000000"
        );
    }
}
