//! Clients as members of nodemaps (`nodemap_add_member`, `nm_member_reclassify_nodemap` and `nm_member_revoke_locks` in
//! `lustre/ptlrpc/nodemap_member.c`).

use std::collections::BTreeSet;
use std::sync::Arc;

use coral_lnet::Nid;
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmIntent, LdlmMode, LdlmType, Policy, ResId, it};
use coral_wire::mds::{LayoutIntent, RecCreate, layout_intent, open};
use coral_wire::ptlrpc::MSG_REPLAY;
use coral_wire::{ConnectFlags, Errno, ObdConnectData, opc};

use super::{Export, LuTarget, TargetKind, TargetRequest};
use crate::nodemap::{Nodemaps, View};

/// Nodemaps as the MGS has them, and whose ids are believed whatever they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The nodemaps.
    pub maps: Nodemaps,
    /// NIDs of nodes that serve MDTs: those are clients of OSTs, and tell them owners.
    pub mdts: Vec<Nid>,
}

impl LuTarget {
    /// Nodemaps count from now on as in `now`; clients whose nodemap is another lose their locks, for what they cached has ids that
    /// were mapped otherwise.
    pub(crate) fn set_membership(self: &Arc<Self>, now: Arc<Membership>) {
        *self.membership.write() = now;
        let changed: BTreeSet<u64> = self
            .exports()
            .iter()
            .filter(|e| self.classify(e))
            .map(|e| e.cookie)
            .collect();
        let mut held = BTreeSet::new();
        for lock in self.ldlm.locks() {
            if lock.ty == LdlmType::IBITS && lock.export.is_some_and(|e| changed.contains(&e)) {
                held.insert(lock.res.0);
            }
        }
        if held.is_empty() {
            return;
        }
        let ldlm = self.ldlm.clone();
        tokio::spawn(async move {
            for res in held {
                drop(
                    ldlm.lock_local(
                        ResId(res),
                        LdlmType::IBITS,
                        LdlmMode::EX,
                        Policy::ibits(Ibits(META_BITS)),
                        None,
                    )
                    .await,
                );
            }
        });
    }

    /// Puts a client into its nodemap. Returns whether it was in another.
    pub(super) fn classify(&self, exp: &Export) -> bool {
        exp.set_view(self.view_of(exp.nid(), &exp.connect()))
    }

    /// What counts for a client at `nid`.
    pub(super) fn view_of(&self, nid: Nid, connect: &ObdConnectData) -> View {
        let now = self.membership.read().clone();
        let server = connect.has(ConnectFlags::MDS);
        // an MDT that tells its OSTs of owners; it comes from a node that has one, or from this one
        let ours = nid == Nid::LO || self.node.nids().contains(&nid) || now.mdts.contains(&nid);
        if !now.maps.active || self.cfg.kind == TargetKind::Mgs || (server && ours) {
            return View::default();
        }
        // a client within this process is at this node (`nodemap_classify_nid`)
        let at = if nid.is_lo() {
            self.node
                .nids()
                .iter()
                .copied()
                .find(|n| !n.is_lo())
                .unwrap_or(nid)
        } else {
            nid
        };
        View::new(Some(now.maps.of(at).clone()))
    }
}

/// Bits that cover attributes and names.
const META_BITS: u64 = Ibits::LOOKUP.0 | Ibits::UPDATE.0 | Ibits::PERM.0 | Ibits::XATTR.0;

/// Whether the client may only read.
pub(crate) fn reads_only(rq: &TargetRequest) -> bool {
    let read_only = rq.exp.connect().has(ConnectFlags::RDONLY)
        || rq.exp.view().map().is_some_and(|m| m.readonly_mount);
    // what was acknowledged before it came to be so is replayed
    read_only && rq.rq.body.flags & MSG_REPLAY == 0
}

/// EROFS when the client may only read and the request would change something.
pub(crate) fn check_writable(rq: &TargetRequest) -> Result<(), Errno> {
    if reads_only(rq) && changes(rq) {
        Err(Errno::EROFS)
    } else {
        Ok(())
    }
}

/// Whether a request asks for a change: the handlers with IS_MUTABLE in `lustre/mdt/mdt_handler.c` and `lustre/ofd/ofd_dev.c`.
fn changes(rq: &TargetRequest) -> bool {
    match rq.rq.body.opc {
        opc::MDS_REINT
        | opc::MDS_RMFID
        | opc::OST_WRITE
        | opc::OST_PUNCH
        | opc::OST_FALLOCATE
        | opc::OST_SETATTR
        | opc::OST_CREATE
        | opc::OST_DESTROY => true,
        opc::LDLM_ENQUEUE => {
            let asks = coral_wire::ldlm::LdlmRequest::decode(rq.buf(1))
                .is_ok_and(|r| r.flags.contains(LdlmFlags::HAS_INTENT));
            let intent = rq
                .rq
                .msg
                .get::<LdlmIntent>(2)
                .ok()
                .filter(|_| asks)
                .map(|i| i.opc);
            match intent {
                Some(op) if op & (it::OPEN | it::CREAT) != 0 => {
                    let writing =
                        open::WRITE | open::CREAT | open::TRUNC | open::APPEND | open::HAS_EA;
                    rq.rq
                        .msg
                        .get::<RecCreate>(3)
                        .is_ok_and(|r| r.flags() & writing != 0)
                }
                Some(it::LAYOUT) => rq
                    .rq
                    .msg
                    .get::<LayoutIntent>(3)
                    .is_ok_and(|l| l.opc != layout_intent::ACCESS),
                _ => false,
            }
        }
        _ => false,
    }
}
