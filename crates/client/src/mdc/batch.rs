//! Attributes of many objects in one request (MDS_BATCH), each with its lock.
//!
//! Lustre: `lustre/mdc/mdc_batch.c`, `lustre/ptlrpc/batch.c`.

use coral_ldlm::PendingLock;
use coral_ptlrpc::{Bulk, Reply, Request};
use coral_wire::Errno;
use coral_wire::connect::ConnectFlags2;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{ELDLM_LOCK_ABORTED, Ibits, LdlmIntent, LdlmMode, LdlmReply, it};
use coral_wire::mds::batch::{self, BATCH_MAX, BATCH_MAX_BYTES, BUT_GETATTR};
use coral_wire::mds::{BUT_REPLY_MAGIC, MdtBody, disp, md};
use coral_wire::ptlrpc::{Message, opc, portal};

use super::device::{Attrs, EA_BYTES, Mdc, WANT, nul};
use super::ids::Ids;
use super::intent::Found;
use crate::error::TargetError;

/// Room for one answer besides its layout, bytes.
const ANSWER_BYTES: usize = 2048;

impl Mdc {
    /// It takes several requests in one.
    pub fn batches(&self) -> bool {
        self.granted().has2(ConnectFlags2::BATCH_RPC)
    }

    /// Attributes of these objects, each as [`Mdc::lookup_lock`] without a name gives them. `None`: that was not answered here, or
    /// with an error, and is to be asked for alone.
    pub async fn getattr_batch(
        &self,
        ids: &Ids,
        fids: &[Fid],
    ) -> Result<Vec<Option<Found>>, TargetError> {
        let asked: Vec<(Fid, &[u8])> = fids.iter().map(|fid| (*fid, &b""[..])).collect();
        let found = self.lookup_batch(ids, &asked).await?;
        let is_it = |(found, fid): (Option<Found>, &Fid)| {
            let found = found?;
            if found.attrs.body.fid1 != *fid {
                self.drop_lock(found.lock);
                return None;
            }
            Some(found)
        };
        Ok(found.into_iter().zip(fids).map(is_it).collect())
    }

    /// The same of what these names in directories stand for; an empty name: the object itself.
    pub async fn lookup_batch(
        &self,
        ids: &Ids,
        asked: &[(Fid, &[u8])],
    ) -> Result<Vec<Option<Found>>, TargetError> {
        assert!(asked.len() <= BATCH_MAX, "{} in a batch", asked.len());
        let Some((first, _)) = asked.first() else {
            return Ok(vec![]);
        };
        let pending: Vec<PendingLock> = (asked.iter())
            .map(|(fid, _)| self.pend(*fid, LdlmMode::CR, Ibits::UPDATE))
            .collect();
        let subs: Vec<Message> = (pending.iter().zip(asked))
            .map(|(p, (fid, name))| sub_request(ids, p, *fid, name))
            .collect();
        let room = asked.len() * (EA_BYTES as usize + ANSWER_BYTES);
        let (header, buffers, lists) =
            batch::encode_request(&subs, room.min(BATCH_MAX_BYTES) as u32);
        let mut rq = Request::new(portal::OUT, opc::MDS_BATCH)
            .push_bytes(header)
            .push_bytes(buffers)
            .concerning(*first);
        if !lists.is_empty() {
            rq = rq.bulk(Bulk::Source {
                portal: portal::MDS_BULK,
                data: vec![lists.into_iter().collect()],
            });
        }
        let (reply, pending) = self.namespace().intents(rq, pending, locks_of).await?;
        let mut answers = sub_replies(&reply).into_iter();
        let found = pending
            .into_iter()
            .map(|pending| self.sub_answer(&answers.next()?, pending));
        Ok(found.collect())
    }

    /// Takes one answer in, with its lock.
    fn sub_answer(&self, m: &Message, pending: PendingLock) -> Option<Found> {
        let status = m.opc as i32;
        let rep: LdlmReply = m.get(0).ok()?;
        let lock = self.namespace().finish(pending, &rep, status);
        let refused = rep.policy_res2 as i32 != 0 || rep.policy_res1 & disp::LOOKUP_NEG != 0;
        let useful = status == 0 || status == ELDLM_LOCK_ABORTED;
        let attrs = Attrs::of(m, 1).ok().filter(|a| {
            // one that did not fit is asked for alone, with more room
            useful && !refused && a.body.valid & md::MDS == 0 && !a.truncated()
        });
        match attrs {
            Some(attrs) => Some(Found { attrs, lock }),
            None => {
                self.drop_lock(lock);
                None
            }
        }
    }
}

/// The intent of [`Mdc::lookup_lock`], without the message's body.
fn sub_request(ids: &Ids, pending: &PendingLock, fid: Fid, name: &[u8]) -> Message {
    let mut body = MdtBody {
        eadatasize: EA_BYTES,
        ..ids.body(fid, WANT)
    };
    if name.is_empty() {
        body.fid2 = fid;
    }
    let mut m = Message::default();
    m.opc = BUT_GETATTR;
    m.push_bytes(pending.request().to_bytes())
        .push(&LdlmIntent { opc: it::GETATTR })
        .push(&body)
        .push_empty()
        .push_bytes(nul(name))
        .push_empty();
    m
}

/// The answers, in the order of the sub-requests; fewer where the server has stopped.
fn sub_replies(reply: &Reply) -> Vec<Message> {
    let list = batch::decode_list(BUT_REPLY_MAGIC, reply.msg.buf(1), BATCH_MAX);
    list.unwrap_or_else(|e| {
        let status = Errno::from_status(reply.status);
        tracing::debug!(error = %e, ?status, "a batch without answers");
        vec![]
    })
}

/// The locks of the answers.
fn locks_of(reply: &Reply) -> Vec<Option<LdlmReply>> {
    let locks = sub_replies(reply).into_iter().map(|m| m.get(0).ok());
    locks.collect()
}
