//! MDS_BATCH: several getattr intents in one request (`lustre/mdt/mdt_batch.c`).
//!
//! Each sub-request is answered as the same intent would be alone, with its lock, and one that fails does not touch the others.
//! (Lustre ends a batch with the first failure.)
//!
//! Invariants:
//! * All sub-requests are decoded before the first is served: a request that makes no sense is refused (EPROTO) and gives no lock.
//! * Nothing is waited for after the first lock was given. The client knows none of the locks before the reply, so an operation
//!   that has one object locked and asks for another one of the batch would wait for this request, and it for the operation.
//!   What another client keeps attributes of, or what an operation over several MDTs may be changing, is therefore not served here
//!   (EBUSY): the client asks for it alone.
//! * A request that is sent again takes back the locks that it was given before, each found by the client's cookie, and gives new
//!   ones; a lost reply leaves no lock of which the client does not know.

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::ldlm::{LdlmIntent, LdlmReply, LdlmRequest, it};
use coral_wire::mds::batch::{
    self, BATCH_MAX_BYTES, BUT_GETATTR, BatchBody, decode_header, decode_list,
};
use coral_wire::mds::{
    BUT_REPLY_MAGIC, BUT_REQUEST_MAGIC, BatchUpdateHead, ButUpdateHeader, MdtBody, disp, md,
};
use coral_wire::{Errno, Message, portal};
use futures_util::future::join_all;

use super::cred::Ucred;
use super::ctx::{Answer, Ctx};
use super::intent::GetattrIntent;
use super::store::MdtResult;
use super::who::Asking;

/// Sub-requests that are served before others get their turn.
const AT_A_TIME: usize = 64;

/// A sub-request: a getattr intent.
struct Sub {
    req: LdlmRequest,
    op: u64,
    body: MdtBody,
    name: Bytes,
}

impl Sub {
    /// `None`: nothing that is known here. Its buffers are those of the intent without the message's body.
    fn decode(m: &Message) -> MdtResult<Option<Sub>> {
        if m.opc != BUT_GETATTR {
            return Ok(None);
        }
        let intent: LdlmIntent = m.get(1)?;
        let sub = Sub {
            req: LdlmRequest::decode(m.buf(0))?,
            op: intent.opc,
            body: m.get(2)?,
            name: m.buf(4).clone(),
        };
        Ok(matches!(sub.op, it::GETATTR | it::LOOKUP).then_some(sub))
    }

    fn name(&self) -> &[u8] {
        self.name.strip_suffix(b"\0").unwrap_or(&self.name)
    }
}

impl Ctx {
    /// Serves a batch.
    pub(super) async fn batch(&self) -> MdtResult<Answer> {
        let (head, subs) = self.batch_subs().await?;
        let who = join_all(subs.iter().map(|s| self.asks(s.as_ref()))).await;
        // all at first, as it may end earlier than it did then
        for sub in subs.iter().flatten() {
            self.take_back_of_before(&sub.req);
        }

        let room = (head.reply_size as usize).min(BATCH_MAX_BYTES);
        let mut len = size_of::<BatchUpdateHead>();
        let (mut replies, mut status) = (Vec::with_capacity(subs.len()), 0);
        for (i, (sub, cred)) in subs.iter().zip(who).enumerate() {
            if i > 0 && i.is_multiple_of(AT_A_TIME) {
                tokio::task::yield_now().await;
            }
            let reply = self.sub_reply(self.sub(sub.as_ref(), cred));
            len += reply.encoded_len();
            if len > room {
                // the client asks again for what is not answered (`batch_update_request_fini`)
                self.take_back_lock_of(&reply);
                status = Errno::EOVERFLOW.status();
                break;
            }
            replies.push(reply);
        }
        let mut a = self.answer(status);
        a.msg
            .push_bytes(batch::encode_list(BUT_REPLY_MAGIC, &replies));
        Ok(a)
    }

    /// The sub-requests, those that came in bulk too. EPROTO if anything does not fit.
    async fn batch_subs(&self) -> MdtResult<(ButUpdateHeader, Vec<Option<Sub>>)> {
        let (head, body) = decode_header(self.buf(1), self.buf(2))?;
        let lists = match body {
            BatchBody::Inline(list) => vec![list],
            BatchBody::Bulk(sizes) => self.fetch_lists(&sizes).await?,
        };
        let mut subs = Vec::new();
        for list in &lists {
            let left = head.update_count as usize - subs.len();
            for m in decode_list(BUT_REQUEST_MAGIC, list, left)? {
                subs.push(Sub::decode(&m)?);
            }
        }
        Ok((head, subs))
    }

    /// They lie one after the other in one descriptor.
    async fn fetch_lists(&self, sizes: &[u32]) -> MdtResult<Vec<Bytes>> {
        let total = sizes.iter().sum::<u32>();
        let got = self
            .rq
            .rq
            .bulk_read_from_client(portal::MDS_BULK, &[total])
            .await;
        // The client asks again; nothing was changed.
        let got = got.map_err(|_| Errno::EINPROGRESS)?;
        let whole: Payload = got.iter().flatten().cloned().collect();
        let mut whole = whole.copy_to_bytes();
        Ok(sizes.iter().map(|s| whole.split_to(*s as usize)).collect())
    }

    /// Who asks, by what the sub-request says.
    async fn asks(&self, sub: Option<&Sub>) -> MdtResult<Ucred> {
        let sub = sub.ok_or(Errno::EOPNOTSUPP)?;
        let asking = Asking::of_body(&sub.body);
        let known = self.groups_of(&asking).await?;
        Ok(Ucred {
            known,
            ..self.ucred(&asking)
        })
    }

    /// Serves one of them.
    fn sub(&self, sub: Option<&Sub>, cred: MdtResult<Ucred>) -> MdtResult<Answer> {
        let sub = sub.ok_or(Errno::EOPNOTSUPP)?;
        if self.ops.out.in_doubt(&[sub.body.fid1, sub.body.fid2]) {
            return Err(Errno::EBUSY.into());
        }
        let asked = GetattrIntent {
            req: &sub.req,
            op: sub.op,
            body: sub.body,
            name: sub.name(),
            cred: cred?,
        };
        match self.try_getattr(&asked, &mut None)? {
            Ok(answer) => Ok(*answer),
            Err(_blocked) => Err(Errno::EBUSY.into()),
        }
    }

    /// The message of one answer: without the body, whose status is in its head.
    fn sub_reply(&self, answer: MdtResult<Answer>) -> Message {
        let mut reply = Message::default();
        let status = match answer {
            Ok(mut a) => {
                a.msg.bufs.remove(0);
                reply.bufs = a.msg.bufs;
                self.refused_to_lustre(&reply)
                    .map_or(a.status, Errno::status)
            }
            Err(e) => {
                reply.push(&LdlmReply::default());
                self.told(&e).status()
            }
        };
        if status < 0 {
            self.take_back_lock_of(&reply);
        }
        reply.opc = status as u32;
        reply
    }

    /// What a kernel client is told of an answer without a lock, or about what lies on another MDT: it has no use for either, and
    /// takes each answer that is no error for a whole one (`ll_statahead_interpret`).
    fn refused_to_lustre(&self, reply: &Message) -> Option<Errno> {
        let (false, Ok(rep)) = (self.coral, reply.get::<LdlmReply>(0)) else {
            return None;
        };
        let away = reply
            .get::<MdtBody>(1)
            .is_ok_and(|b| b.valid & md::MDS != 0);
        match Errno::from_status(rep.policy_res2 as i32) {
            Some(e) => Some(e),
            None if rep.policy_res1 & disp::LOOKUP_NEG != 0 => Some(Errno::ENOENT),
            None if away => Some(Errno::EREMOTE),
            None => (rep.handle == 0).then_some(Errno::EBUSY),
        }
    }

    /// The lock of an answer that does not reach the client.
    fn take_back_lock_of(&self, reply: &Message) {
        let handle = reply.get(0).map_or(0, |r: LdlmReply| r.handle);
        if handle != 0 {
            self.ops.ldlm.cancel(self.exp(), &[handle]);
        }
    }
}
