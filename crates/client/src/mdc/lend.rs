//! Directories of which a Coral MDT lets this client take names and tell later ([`LEND`], [`LENT`]).

use bytes::Bytes;
use coral_ldlm::LockRef;
use coral_ptlrpc::Request;
use coral_wire::Wire;
use coral_wire::coral::{LEND, LENT, LENT_BITS};
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmIntent, LdlmMode, LdlmRequest, LdlmType, Policy};
use coral_wire::mds::RecUnlink;
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::raw::{decode_all, encode_all};

use super::device::{Attrs, Changed, EA_BYTES, Mdc, Open, WANT};
use super::ids::Ids;
use crate::error::TargetError;
use crate::time::Timespec;

/// A directory that was asked for.
pub struct Lent {
    /// Its attributes.
    pub attrs: Result<Attrs, TargetError>,
    /// The lock that is the right; none: it is not lent.
    pub lock: Option<LockRef>,
    /// Locks of this client, by its own cookies, of which the MDT knows no more if there is a new one.
    pub given_up: Vec<u64>,
}

/// A name that goes from a directory that is lent.
pub struct Leaving {
    /// It.
    pub name: Bytes,
    /// What it stands for.
    pub fid: Fid,
    /// What is open of that here, to be closed with it.
    pub open: Option<Open>,
}

impl Mdc {
    /// The lock under which names of `dir` may be taken away and told of later, if it is held.
    pub fn lent(&self, dir: Fid) -> Option<LockRef> {
        let (res, need) = (dir.res_id(), Policy::ibits(LENT_BITS));
        self.namespace()
            .match_lock(&res, LdlmType::IBITS, LdlmMode::EX, &need)
    }

    /// Asks for it, for one who may change the directory.
    pub async fn lend(&self, ids: &Ids, dir: Fid) -> Result<Lent, TargetError> {
        let pending = self.pend(dir, LdlmMode::EX, LENT_BITS);
        let own = self.namespace().held_on(&dir.res_id(), LdlmType::IBITS);
        let (given_up, remote): (Vec<u64>, Vec<u64>) = own.into_iter().unzip();
        let mut body = ids.body(dir, WANT);
        body.eadatasize = EA_BYTES;
        let rq = Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(pending.request().to_bytes())
            .push(&LdlmIntent { opc: LEND })
            .push(&body)
            .push_bytes(LdlmRequest::cancel(&remote).to_bytes())
            .concerning(dir);
        let out = self.intent(rq, pending).await?;
        Ok(Lent {
            attrs: Attrs::read(&out.reply, 2),
            lock: out.lock,
            given_up,
        })
    }

    /// Takes these names away from `dir`, which is lent: all, or none. Besides, which opens were closed.
    pub async fn unlink_lent(
        &self,
        ids: &Ids,
        dir: Fid,
        names: &[Leaving],
        now: Timespec,
    ) -> Result<(Changed, Vec<Fid>), TargetError> {
        let rec = RecUnlink {
            bias: LENT,
            ..self.rec_unlink(ids, dir, now)
        };
        let (mut joined, mut handles) = (Vec::new(), Vec::new());
        for n in names {
            joined.extend_from_slice(&n.name);
            joined.push(0);
            handles.push(n.open.as_ref().map_or(0, |open| self.closing(open)));
        }
        let fids: Vec<Fid> = names.iter().map(|n| n.fid).collect();
        let mut rq = Self::reint_rq(rec.to_bytes())
            .push_bytes(Bytes::from(joined))
            .push_bytes(self.elc())
            .push_empty()
            .push_bytes(encode_all(&fids))
            .push_bytes(encode_all(&handles))
            .about([dir, Fid::ZERO]);
        // others may be waiting for the directory, and hold every place meanwhile
        rq.urgent = true;
        let reply = self.reint(rq).await?;
        let closed: Vec<Fid> = decode_all(reply.msg.buf(2));
        let open = names.iter().filter(|n| closed.contains(&n.fid));
        for open in open.filter_map(|n| n.open.as_ref()) {
            self.forget_open(open, reply.transno);
        }
        Ok((Changed::read(self, &reply)?, closed))
    }
}
