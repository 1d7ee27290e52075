//! A target makes itself known to the MGS (`lustre/obdclass/obd_mount_server.c`, `server_register_target`).

use std::sync::Arc;

use coral_lnet::{Nid, Node};
use coral_osd::{Kv, Label, OsdError, TargetKind};
use coral_ptlrpc::{Import, ImportConfig, Request};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use coral_wire::mgs::{MgsTargetInfo, ldd};
use coral_wire::raw::c_array;
use coral_wire::{Errno, opc, portal};

use crate::mgs::{self, Count};
use crate::older_copy;
use crate::target::{self, Registration};

/// What a target says of its formatting.
#[derive(Clone, Copy, Debug)]
pub struct Formatting<'a> {
    /// No MGS has accepted it yet: it must not take an index that is in use (`LDD_F_VIRGIN`).
    pub fresh: bool,
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
        "{target} was put back from an older copy: it was registered {served} times before, and the MGS at {mgs} knows of a later time. Put the newer copy back. To go on with this one, and lose what was done since it was made, stop all servers and run `coral check --repair` on the directories of all targets and the MGS; where these are on several machines, `coral serve --accept-older` takes it as it is"
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
        "{target} was registered {served} times, and the MGS at {mgs} does not know it: it belongs to another one. If that MGS was lost, or put back from an older copy, stop all servers and run `coral check --repair` on the directories of all targets and the MGS; where these are on several machines, `coral serve --accept-older` makes the MGS take it"
    )]
    Unknown {
        /// Target's name.
        target: String,
        /// How often it was registered before.
        served: u32,
        /// NIDs of the MGS.
        mgs: String,
    },
    /// The MGS is in an older state than when it accepted the target last.
    #[error(
        "the MGS at {mgs} was put back from an older copy: it does not know of the last times that {target} was registered, which are {served}. Put the newer copy of the MGS back. To go on with this one, stop all servers and run `coral check --repair` on the directories of all targets and the MGS; where these are on several machines, `coral serve --accept-older` makes the MGS take the target"
    )]
    OlderMgs {
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

/// A target and its MGS: whether it may be served is asked before it is, and where it is told once it can be reached.
pub struct Registering<'a> {
    import: Arc<Import>,
    /// NIDs of the MGS.
    mgs: String,
    name: String,
    kind: TargetKind,
    kv: &'a Arc<dyn Kv>,
    info: MgsTargetInfo,
    identity: &'a str,
    registration: Registration,
    older: bool,
}

impl<'a> Registering<'a> {
    /// Connects to the MGS for the target with this label on `kv`, whose node has `nids`.
    pub async fn begin(
        node: &Arc<Node>,
        mgs_nids: &[Nid],
        label: &'a Label,
        kv: &'a Arc<dyn Kv>,
        claimed: u32,
        formatting: Formatting<'_>,
    ) -> Result<Registering<'a>, RegisterError> {
        let (name, mgs) = (label.target_name(), list(mgs_nids));
        let mut data = ObdConnectData {
            version: claimed,
            ..ObdConnectData::default()
        };
        data.connect_flags =
            ConnectFlags::VERSION | ConnectFlags::AT | ConnectFlags::FULL20 | ConnectFlags::FLAGS2;
        data.connect_flags2 = ConnectFlags2::REP_MBITS | ConnectFlags2::CORAL;
        let import = Import::new(
            node.clone(),
            ImportConfig::mgs(mgs_nids.to_vec(), &format!("{name}-mgc"), data),
        );
        import
            .connect()
            .await
            .map_err(|e| RegisterError::Unreachable {
                target: name.clone(),
                mgs: mgs.clone(),
                reason: e.to_string(),
            })?;
        let mut info = info(label, claimed, node.nids());
        if !formatting.failover.is_empty() {
            info.params = c_array(failover_param(formatting.failover).as_bytes());
        }
        if formatting.fresh {
            info.flags |= ldd::VIRGIN;
        }
        let registration = target::begin_registration(&**kv, node.next_cookie()).await;
        let registration = registration.map_err(|source| RegisterError::Store {
            target: name.clone(),
            source,
        })?;
        Ok(Registering {
            import,
            mgs,
            name,
            kind: label.kind,
            kv,
            info,
            identity: &label.uuid,
            registration,
            older: false,
        })
    }

    /// Whether the MGS counts registrations; one of Lustre's does not, and has every client read its configuration anew at each.
    pub fn is_counted(&self) -> bool {
        self.import.granted().has2(ConnectFlags2::CORAL)
    }

    /// Registers nothing.
    pub async fn leave(self) {
        self.import.disconnect().await;
    }

    /// Asks whether the target may be served: nobody must come upon one that may not. With `accept_older` one that goes back to an
    /// older state is made ready for that.
    pub async fn may_serve(&mut self, accept_older: bool) -> Result<(), RegisterError> {
        let done = self.ask(accept_older).await;
        if done.is_err() {
            self.import.disconnect().await;
        }
        done
    }

    async fn ask(&mut self, accept_older: bool) -> Result<(), RegisterError> {
        // an MGS of Lustre's knows of no such question
        if !self.is_counted() {
            return Ok(());
        }
        match self.call(true).await {
            Err(RegisterError::OlderMgs { .. }) if accept_older => {
                self.older = true;
                self.call(true).await.map(drop)
            }
            Err(RegisterError::OlderCopy { .. } | RegisterError::Unknown { .. })
                if accept_older =>
            {
                self.older = true;
                tracing::warn!(target = %self.name, "served as it is, though it is an older copy or unknown to the MGS: clients of before are not waited for");
                let prepared = older_copy::prepare(&**self.kv, self.kind).await;
                prepared.map_err(|source| self.failed(source))?;
                self.call(true).await.map(drop)
            }
            done => done.map(drop),
        }
    }

    /// Registers the target, whose start number is `instance`. Done at every start: NIDs may have changed.
    pub async fn register(mut self, instance: u32) -> Result<(), RegisterError> {
        self.info.instance = instance;
        let reply = self.call(false).await;
        self.import.disconnect().await;
        let number = reply?.map_or(0, |info| info.config_ver);
        let accepted = Registration {
            number: number.max(self.registration.number),
            accepted: true,
            ..self.registration
        };
        let stored = target::registered(&**self.kv, accepted).await;
        stored.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: OsdError) -> RegisterError {
        RegisterError::Store {
            target: self.name.clone(),
            source,
        }
    }

    async fn call(&self, asks: bool) -> Result<Option<MgsTargetInfo>, RegisterError> {
        let mut request = Request::new(portal::MGS_REQUEST, opc::MGS_TARGET_REG).push(&self.info);
        if self.is_counted() {
            let count = Count {
                number: self.registration.number,
                cookie: self.registration.cookie,
                older: self.older,
                asks,
            };
            request = request
                .push_empty()
                .push_bytes([self.identity.as_bytes(), b"\0"].concat())
                .push_bytes(mgs::count_bytes(count));
        }
        let (target, mgs) = (self.name.clone(), self.mgs.clone());
        let reply = match self.import.call(request).await {
            Ok(reply) => reply,
            Err(e) => {
                let reason = e.to_string();
                return Err(RegisterError::Unreachable {
                    target,
                    mgs,
                    reason,
                });
            }
        };
        let told = reply.msg.get::<MgsTargetInfo>(1).ok();
        let served = self.registration.number - 1;
        Err(match Errno::from_status(reply.status) {
            None => return Ok(told),
            Some(Errno::ESTALE) => RegisterError::OlderCopy {
                target,
                served,
                mgs,
            },
            Some(Errno::EREMOTEIO) => RegisterError::OlderMgs {
                target,
                served,
                mgs,
            },
            Some(Errno::ENOENT) if served > 0 => RegisterError::Unknown {
                target,
                served,
                mgs,
            },
            Some(Errno::EADDRINUSE) => {
                let nids = told.map(|i| list(&i.nids[..(i.nid_count as usize).min(i.nids.len())]));
                let holder = nids
                    .filter(|h| !h.is_empty())
                    .unwrap_or_else(|| "another NID".into());
                match self.info.flags & ldd::VIRGIN != 0 {
                    true => RegisterError::IndexInUse {
                        target,
                        index: self.info.stripe_index,
                        holder,
                        mgs,
                    },
                    false => RegisterError::Another {
                        target,
                        holder,
                        mgs,
                    },
                }
            }
            Some(errno) => RegisterError::Refused { target, mgs, errno },
        })
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

fn info(label: &Label, claimed: u32, nids: &[Nid]) -> MgsTargetInfo {
    let kind = match label.kind {
        TargetKind::Mgs => ldd::SV_TYPE_MGS,
        TargetKind::Mdt => ldd::SV_TYPE_MDT,
        TargetKind::Ost => ldd::SV_TYPE_OST,
    };
    let mut list = [Nid(0); 32];
    let count = nids.len().min(list.len());
    list[..count].copy_from_slice(&nids[..count]);
    let name = label.target_name();
    MgsTargetInfo {
        lustre_ver: claimed,
        stripe_index: label.index,
        config_ver: 0,
        flags: kind | ldd::UPDATE,
        nid_count: count as u32,
        instance: 0,
        fsname: c_array(label.fsname.as_bytes()),
        svname: c_array(name.as_bytes()),
        uuid: c_array(format!("{name}_UUID").as_bytes()),
        nids: list,
        params: [0; 4096],
    }
}
