//! A target makes itself known to the MGS (`lustre/obdclass/obd_mount_server.c`, `server_register_target`).

use std::sync::Arc;

use coral_lnet::{Nid, Node};
use coral_osd::OsdError;
use coral_ptlrpc::{Import, ImportConfig, Request};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use coral_wire::mgs::{MgsTargetInfo, ldd};
use coral_wire::raw::c_array;
use coral_wire::{Errno, opc, portal};

use crate::mgs::{self, Count};
use crate::target::{LuTarget, TargetKind};

/// What a target says of its formatting.
#[derive(Clone, Copy, Debug)]
pub struct Formatting<'a> {
    /// No MGS has accepted it yet: it must not take an index that is in use (`LDD_F_VIRGIN`).
    pub fresh: bool,
    /// Tells it from any other formatting: the label's uuid.
    pub identity: &'a str,
    /// Nodes that serve it when this one does not (`failover.node`), one NID each.
    pub failover: &'a [Nid],
}

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
    /// A newly formatted target claims an index that is in use.
    #[error(
        "{target} is newly formatted, but its index {index} belongs to the target at {holder} (so says the MGS at {mgs}): format it in an empty directory with an index of its own, or serve the old target's directory instead"
    )]
    IndexInUse {
        /// Target's name.
        target: String,
        /// The index.
        index: u32,
        /// NIDs of the target that has it.
        holder: String,
        /// NIDs of the MGS.
        mgs: String,
    },
    /// The index belongs to another target of the same name.
    #[error(
        "{target} is not the one that has this name at {holder} (so says the MGS at {mgs}): it is of another file system called so, or was formatted anew. Serve the directory that belongs there"
    )]
    Another {
        /// Target's name.
        target: String,
        /// NIDs of the target that has it.
        holder: String,
        /// NIDs of the MGS.
        mgs: String,
    },
    /// The target is in an older state than when it was served last.
    #[error(
        "{target} was put back from an older copy: it was served {served} times before, and the MGS at {mgs} knows of a later time. Put the newer copy back. To go on with this one and lose what was done since it was made, run `coral check --repair` on the directories of all targets while no server runs"
    )]
    OlderCopy {
        /// Target's name.
        target: String,
        /// How often it was registered before, as far as it knows.
        served: u32,
        /// NIDs of the MGS.
        mgs: String,
    },
    /// The target was served before, and not with this MGS.
    #[error(
        "{target} was served {served} times, and the MGS at {mgs} does not know it: it belongs to another one. If that MGS was lost, or put back from an older copy, run `coral check --repair` on the directories of all targets while no server runs"
    )]
    Unknown {
        /// Target's name.
        target: String,
        /// How often it was registered before.
        served: u32,
        /// NIDs of the MGS.
        mgs: String,
    },
    /// What the target needs to know or to keep for it cannot be read or written.
    #[error("{target}: {source}")]
    Store {
        /// Target's name.
        target: String,
        /// What is wrong.
        source: OsdError,
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
pub async fn register(
    node: &Arc<Node>,
    mgs_nids: &[Nid],
    fsname: &str,
    target: &LuTarget,
    nids: &[Nid],
    formatting: Formatting<'_>,
) -> Result<(), RegisterError> {
    let names = list(mgs_nids);
    let unreachable = |reason: String| RegisterError::Unreachable {
        target: target.name().to_owned(),
        mgs: names.clone(),
        reason,
    };
    let mut data = ObdConnectData {
        version: target.claimed(),
        ..ObdConnectData::default()
    };
    data.connect_flags =
        ConnectFlags::VERSION | ConnectFlags::AT | ConnectFlags::FULL20 | ConnectFlags::FLAGS2;
    data.connect_flags2 = ConnectFlags2::REP_MBITS | ConnectFlags2::CORAL;
    let import = Import::new(
        node.clone(),
        ImportConfig::mgs(mgs_nids.to_vec(), &format!("{}-mgc", target.name()), data),
    );
    import
        .connect()
        .await
        .map_err(|e| unreachable(e.to_string()))?;
    let mut info = info(fsname, target, nids);
    if !formatting.failover.is_empty() {
        info.params = c_array(failover_param(formatting.failover).as_bytes());
    }
    if formatting.fresh {
        info.flags |= ldd::VIRGIN;
    }
    let stored = |source| RegisterError::Store {
        target: target.name().to_owned(),
        source,
    };
    let registration = target.begin_registration(node.next_cookie()).await;
    let registration = registration.map_err(stored)?;
    let count = Count {
        number: registration.number,
        cookie: registration.cookie,
        older: target.is_older_copy().map_err(stored)?,
    };
    let mut request = Request::new(portal::MGS_REQUEST, opc::MGS_TARGET_REG).push(&info);
    if import.granted().has2(ConnectFlags2::CORAL) {
        request = request
            .push_empty()
            .push_bytes([formatting.identity.as_bytes(), b"\0"].concat())
            .push_bytes(mgs::count_bytes(count));
    }
    let done = import.call(request).await;
    import.disconnect().await;
    match done {
        Ok(reply) if reply.status >= 0 => target.registered(registration).await.map_err(stored),
        Ok(reply) if reply.status == Errno::ESTALE.status() => Err(RegisterError::OlderCopy {
            target: target.name().to_owned(),
            served: registration.number - 1,
            mgs: names,
        }),
        Ok(reply) if reply.status == Errno::ENOENT.status() => Err(RegisterError::Unknown {
            target: target.name().to_owned(),
            served: registration.number - 1,
            mgs: names,
        }),
        Ok(reply) if reply.status == Errno::EADDRINUSE.status() => {
            let there = reply
                .msg
                .get::<MgsTargetInfo>(1)
                .ok()
                .map(|i| list(&i.nids[..(i.nid_count as usize).min(i.nids.len())]));
            let holder = there
                .filter(|h| !h.is_empty())
                .unwrap_or_else(|| "another NID".into());
            let target_name = target.name().to_owned();
            Err(match formatting.fresh {
                true => RegisterError::IndexInUse {
                    target: target_name,
                    index: target.index(),
                    holder,
                    mgs: names,
                },
                false => RegisterError::Another {
                    target: target_name,
                    holder,
                    mgs: names,
                },
            })
        }
        Ok(reply) => Err(RegisterError::Refused {
            target: target.name().to_owned(),
            mgs: names,
            errno: Errno::from_status(reply.status).unwrap_or(Errno::EPROTO),
        }),
        Err(e) => Err(unreachable(e.to_string())),
    }
}

/// The parameter that names failover nodes.
pub fn failover_param(nids: &[Nid]) -> String {
    format!(
        "failover.node={}",
        nids.iter()
            .map(Nid::to_string)
            .collect::<Vec<_>>()
            .join(":")
    )
}

fn list(nids: &[Nid]) -> String {
    nids.iter()
        .map(Nid::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

fn info(fsname: &str, target: &LuTarget, nids: &[Nid]) -> MgsTargetInfo {
    let kind = match target.config().kind {
        TargetKind::Mgs => ldd::SV_TYPE_MGS,
        TargetKind::Mdt => ldd::SV_TYPE_MDT,
        TargetKind::Ost => ldd::SV_TYPE_OST,
    };
    let mut list = [Nid(0); 32];
    let count = nids.len().min(list.len());
    list[..count].copy_from_slice(&nids[..count]);
    MgsTargetInfo {
        lustre_ver: target.claimed(),
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
