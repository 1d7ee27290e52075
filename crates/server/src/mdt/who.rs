//! Who asks: from the ids in a request to those that count here. All requests come through here, before anything else is done.
//!
//! In this order: the client's nodemap maps the ids or squashes them, root squash takes the superuser's place away, the name service
//! says which other groups the user is in (`old_init_ucred_common` in `lustre/mdt/mdt_lib.c`; there the groups are asked for before
//! root squash, so that a squashed root keeps root's).

use std::sync::Arc;

use coral_wire::coral::LEND;
use coral_wire::ldlm::{LdlmIntent, it};
use coral_wire::mds::{MdtBody, MdtRecReint, RecCreate, RecUnlink, ReintOp, open};
use coral_wire::{Errno, opc};

use super::cred::{Ucred, cap};
use super::ctx::Ctx;
use super::store::MdtResult;
use crate::nodemap::IdType;
use crate::target::TargetRequest;

/// No group.
const NO_GROUP: u32 = u32::MAX;

/// Ids as a request has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    uid: u32,
    gid: u32,
    groups: [u32; 2],
    caps: u32,
}

impl Asking {
    /// Of a reint record.
    pub fn of_rec(r: &MdtRecReint) -> Asking {
        // the word of the second group means something else in a setattr
        let second = if r.opcode == ReintOp::SETATTR {
            NO_GROUP
        } else {
            r.suppgid2
        };
        Asking {
            uid: r.fsuid,
            gid: r.fsgid,
            groups: [r.suppgid1, second],
            caps: r.cap,
        }
    }

    /// Of an `mdt_body`.
    pub fn of_body(b: &MdtBody) -> Asking {
        Asking {
            uid: b.fsuid,
            gid: b.fsgid,
            groups: [b.suppgid, NO_GROUP],
            caps: b.capability,
        }
    }

    /// Of a request, if it names anybody whose rights matter.
    fn of(rq: &TargetRequest) -> Option<Asking> {
        let rec = |i| {
            rq.rq
                .msg
                .get::<MdtRecReint>(i)
                .ok()
                .map(|r| Asking::of_rec(&r))
        };
        let body = |i| {
            rq.rq
                .msg
                .get::<MdtBody>(i)
                .ok()
                .map(|b| Asking::of_body(&b))
        };
        match rq.rq.body.opc {
            opc::MDS_REINT => rec(1),
            opc::MDS_GETATTR | opc::MDS_GETATTR_NAME | opc::MDS_GETXATTR => body(1),
            opc::LDLM_ENQUEUE => match rq.rq.msg.get::<LdlmIntent>(2).ok()?.opc {
                op if op & it::OPEN != 0 => rec(3),
                it::GETATTR | it::LOOKUP | it::GETXATTR | LEND => body(3),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Ctx {
    /// Finds out who asks. EACCES: an unknown user of a nodemap that refuses those, or nobody says which groups he is in.
    pub async fn identify(&mut self) -> MdtResult<()> {
        let Some(asking) = Asking::of(&self.rq) else {
            return Ok(());
        };
        self.known = self.groups_of(&asking).await?;
        Ok(())
    }

    /// All groups of who asks, as far as they matter. Errors are those of [`Ctx::identify`].
    pub async fn groups_of(&self, asking: &Asking) -> MdtResult<Option<Arc<[u32]>>> {
        // what was acknowledged is done again, whatever has become of its user since
        let replay = self.rq.is_replay() || self.is_told_late();
        if self.view.denies(asking.uid) && !replay {
            return Err(Errno::EACCES.into());
        }
        let cred = self.ucred(asking);
        if cred.has(cap::DAC_READ_SEARCH) {
            return Ok(None);
        }
        match self.ops.identities.groups(cred.uid).await {
            Err(_) if !replay => Err(Errno::EACCES.into()),
            groups => Ok(groups.unwrap_or_default()),
        }
    }

    /// It tells of what was acknowledged, by a client whose users are here who they are there.
    pub(super) fn is_told_late(&self) -> bool {
        let msg = &self.rq.rq.msg;
        let bias = match self.rq.rq.body.opc {
            opc::MDS_REINT => (msg.get::<RecUnlink>(1).ok())
                .filter(|r| r.opcode == ReintOp::UNLINK)
                .map(|r| r.bias),
            opc::LDLM_ENQUEUE if self.opens() => (msg.get::<RecCreate>(3).ok())
                .filter(|r| r.flags() & open::CREAT != 0)
                .map(|r| r.bias),
            _ => None,
        };
        bias.is_some_and(|b| self.is_late(b)) && self.believes_client()
    }

    /// The identity that counts here.
    pub fn ucred(&self, asking: &Asking) -> Ucred {
        let (uid, gid) = (
            self.view.to_fs(IdType::Uid, asking.uid),
            self.view.to_fs(IdType::Gid, asking.gid),
        );
        let squashed = self.view.squashes(IdType::Uid, asking.uid)
            || self.view.squashes(IdType::Gid, asking.gid);
        let cred = match squashed {
            true => Ucred::new(uid, gid, &[], 0),
            false => Ucred::new(
                uid,
                gid,
                &asking.groups.map(|g| self.view.named_to_fs(IdType::Gid, g)),
                asking.caps,
            ),
        };
        let cred = self.ops.squash.read().apply(cred, self.rq.exp.nid());
        Ucred {
            known: self.known.clone(),
            ..cred
        }
    }
}
