//! What an import is told at its making, with every limit in one place.

use std::time::Duration;

use coral_lnet::Nid;
use coral_wire::connect::ObdConnectData;
use coral_wire::ptlrpc::{opc, portal};

/// Target uuid of the MGS.
pub(crate) const MGS: &str = "MGS";

/// Configuration of an [`crate::Import`].
#[derive(Clone, Debug)]
pub struct ImportConfig {
    /// Target, such as `coral-MDT0000_UUID`.
    pub target_uuid: String,
    /// NIDs of the target, tried in turn.
    pub nids: Vec<Nid>,
    /// Our uuid (36 characters), the same for all imports of one mount.
    pub client_uuid: String,
    /// Opcode of the connect request.
    pub connect_opc: u32,
    /// Opcode of the disconnect request.
    pub disconnect_opc: u32,
    /// Portal of connects, disconnects and pings.
    pub request_portal: u32,
    /// Its reply portal.
    pub reply_portal: u32,
    /// Connect flags and data we ask for.
    pub data: ObdConnectData,
    /// Upper byte of `lm_secflvr`: who speaks (CLI 0, MDT 1, OST 2, MGC 3, MGS 4).
    pub part: u8,
    /// An import that sent nothing for so long sends a ping. Lustre: obd_timeout / 4, 25 s.
    pub ping_interval: Duration,
    /// An import that nothing has used for so long disconnects, and connects again when it is wanted. Zero: never. Lustre:
    /// idle_timeout, 20 s of a client's OSTs.
    pub idle_timeout: Duration,
    /// Most requests in flight; more wait. Lustre: max_rpcs_in_flight 8.
    pub max_in_flight: usize,
    /// Most modifying requests in flight; the server's limit holds too. Lustre: max_mod_rpcs_in_flight 7.
    pub max_modify: u16,
    /// The first connect gives up after so long without an answer.
    pub first_connect_limit: Duration,
    /// The first connect goes on so long while the server says it is in recovery (EBUSY, EAGAIN).
    pub busy_limit: Duration,
    /// First pause between later attempts; doubles up to [`Self::backoff_max`].
    pub backoff_min: Duration,
    /// Longest pause between attempts.
    pub backoff_max: Duration,
}

impl ImportConfig {
    fn new(
        target_uuid: &str,
        nids: Vec<Nid>,
        client_uuid: &str,
        data: ObdConnectData,
    ) -> ImportConfig {
        ImportConfig {
            target_uuid: target_uuid.to_owned(),
            nids,
            client_uuid: client_uuid.to_owned(),
            connect_opc: opc::MDS_CONNECT,
            disconnect_opc: opc::MDS_DISCONNECT,
            request_portal: portal::MDS_REQUEST,
            reply_portal: portal::MDC_REPLY,
            data,
            part: 0,
            ping_interval: Duration::from_secs(25),
            idle_timeout: Duration::ZERO,
            max_in_flight: 8,
            max_modify: 7,
            first_connect_limit: Duration::from_secs(9),
            busy_limit: Duration::from_secs(200),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(10),
        }
    }

    /// An import of an MDT.
    pub fn mdt(
        target_uuid: &str,
        nids: Vec<Nid>,
        client_uuid: &str,
        data: ObdConnectData,
    ) -> ImportConfig {
        ImportConfig::new(target_uuid, nids, client_uuid, data)
    }

    /// An import of an OST.
    pub fn ost(
        target_uuid: &str,
        nids: Vec<Nid>,
        client_uuid: &str,
        data: ObdConnectData,
    ) -> ImportConfig {
        ImportConfig {
            connect_opc: opc::OST_CONNECT,
            disconnect_opc: opc::OST_DISCONNECT,
            request_portal: portal::OST_REQUEST,
            reply_portal: portal::OSC_REPLY,
            ..ImportConfig::new(target_uuid, nids, client_uuid, data)
        }
    }

    /// An import of the MGS (target uuid `MGS`).
    pub fn mgs(nids: Vec<Nid>, client_uuid: &str, data: ObdConnectData) -> ImportConfig {
        ImportConfig {
            connect_opc: opc::MGS_CONNECT,
            disconnect_opc: opc::MGS_DISCONNECT,
            request_portal: portal::MGS_REQUEST,
            reply_portal: portal::MGC_REPLY,
            part: 3,
            ..ImportConfig::new(MGS, nids, client_uuid, data)
        }
    }
}
