//! A target makes itself known to the MGS (`lustre/obdclass/obd_mount_server.c`, `server_register_target`).

use std::sync::Arc;

use coral_lnet::{Nid, Node};
use coral_ptlrpc::{Import, ImportConfig, Request};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use coral_wire::mgs::{MgsTargetInfo, ldd};
use coral_wire::raw::c_array;
use coral_wire::{Errno, opc, portal};

use crate::target::{Target, TargetKind};

/// Why a target could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The MGS does not answer or refuses us.
    #[error("{target} cannot reach the MGS at {mgs}: {reason}")]
    Unreachable {
        /// Target's name.
        target: String,
        /// NIDs tried.
        mgs: String,
        /// The last failure.
        reason: String,
    },
    /// The MGS refuses the target.
    #[error("the MGS at {mgs} refuses {target}: {errno}")]
    Refused {
        /// Target's name.
        target: String,
        /// NIDs of the MGS.
        mgs: String,
        /// Its answer.
        errno: Errno,
    },
}

/// Registers `target`, which listens at `nids`, with the MGS. Done at every start: NIDs may have changed.
pub async fn register(node: &Arc<Node>, mgs: &[Nid], fsname: &str, target: &Target, nids: &[Nid]) -> Result<(), RegisterError> {
    let names = mgs.iter().map(Nid::to_string).collect::<Vec<_>>().join(",");
    let unreachable = |reason: String| RegisterError::Unreachable { target: target.name().to_owned(), mgs: names.clone(), reason };
    let mut data = ObdConnectData { version: coral_wire::connect::release(2, 17, 57, 0), ..ObdConnectData::default() };
    data.connect_flags = ConnectFlags::VERSION | ConnectFlags::AT | ConnectFlags::FULL20 | ConnectFlags::FLAGS2;
    data.connect_flags2 = ConnectFlags2::REP_MBITS;
    let import = Import::new(node.clone(), ImportConfig::mgs(mgs.to_vec(), &format!("{}-mgc", target.name()), data));
    import.connect().await.map_err(|e| unreachable(e.to_string()))?;
    let info = info(fsname, target, nids);
    let request = Request::new(portal::MGS_REQUEST, opc::MGS_TARGET_REG).push(&info);
    let done = import.call(request).await;
    import.disconnect().await;
    match done {
        Ok(reply) if reply.status >= 0 => Ok(()),
        Ok(reply) => Err(RegisterError::Refused { target: target.name().to_owned(), mgs: names, errno: Errno::from_status(reply.status).unwrap_or(Errno::EPROTO) }),
        Err(e) => Err(unreachable(e.to_string())),
    }
}

fn info(fsname: &str, target: &Target, nids: &[Nid]) -> MgsTargetInfo {
    let kind = match target.config().kind {
        TargetKind::Mgs => ldd::SV_TYPE_MGS,
        TargetKind::Mdt => ldd::SV_TYPE_MDT,
        TargetKind::Ost => ldd::SV_TYPE_OST,
    };
    let mut list = [Nid(0); 32];
    let count = nids.len().min(list.len());
    list[..count].copy_from_slice(&nids[..count]);
    MgsTargetInfo {
        lustre_ver: coral_wire::connect::release(2, 17, 57, 0),
        stripe_index: target.index(),
        config_ver: 0,
        flags: kind | ldd::UPDATE,
        nid_count: count as u32,
        instance: target.instance(),
        fsname: c_array(fsname.as_bytes()),
        svname: c_array(target.name().as_bytes()),
        uuid: c_array(target.uuid().as_bytes()),
        nids: list,
        params: [0; 4096],
    }
}
