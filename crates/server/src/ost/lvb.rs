//! Lock value blocks: size and times of an object in the replies of extent locks, and glimpses.
//!
//! The stored object is the only value kept: a client that changed the object under a PW lock has
//! written it before it gives the lock up, and while it holds it a glimpse asks it
//! (`lustre/ofd/ofd_lvb.c`, `ofd_intent_policy` in `lustre/ofd/ofd_dlm.c`).

use std::sync::Arc;

use coral_ldlm::LvbOps;
use coral_osd::Objects;
use coral_wire::connect::ConnectFlags2;
use coral_wire::coral::glimpses;
use coral_wire::ldlm::{LdlmReply, LdlmRequest, ResId};
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::MSG_RESENT;
use coral_wire::raw::encode_all;
use coral_wire::{Errno, OstId};
use futures_util::future::BoxFuture;

use super::{OstError, obdo, reply};
use crate::target::TargetRequest;

/// The values of the objects of one OST.
pub(super) struct ObjectLvb(pub(super) Arc<dyn Objects>);

impl LvbOps for ObjectLvb {
    fn lvb(&self, res: ResId) -> BoxFuture<'static, OstLvb> {
        let lvb = stored(&*self.0, res);
        Box::pin(async move { lvb })
    }

    fn update(&self, _res: ResId, _lvb: &OstLvb) {}
}

fn stored(objects: &dyn Objects, res: ResId) -> OstLvb {
    let found = super::brw::object_of(&OstId::from_res_id(&res))
        .map_err(OstError::from)
        .and_then(|(id, _)| Ok(objects.attr(id)?));
    match found {
        Ok(attr) => obdo::lvb(&attr.unwrap_or_default()),
        Err(e) => {
            let mut lvb = OstLvb::default();
            if e.is_ours() {
                // no request is answered with it: it goes within a lock's value
                tracing::error!(%res, error = %e, "the attributes of an object cannot be read");
            }
            lvb.set_error(e.errno());
            lvb
        }
    }
}

/// An extent enqueue with intent: how big is the object? Or of several of them.
pub(super) async fn glimpse(rq: TargetRequest) {
    let several = match rq.exp.connect().has2(ConnectFlags2::CORAL) {
        true => glimpses::decode(rq.buf(2)),
        false => Ok(Vec::new()),
    };
    let (Ok(first), Ok(further)) = (LdlmRequest::decode(rq.buf(1)), several) else {
        return rq.reply(Errno::EPROTO.status(), reply()).await;
    };
    take_back_of_before(&rq, &first);
    if !further.is_empty() {
        return together(rq, &first, &further).await;
    }
    let mut msg = reply();
    match rq.target.ldlm().glimpse(rq.exp.cookie, &first).await {
        Ok(g) => {
            msg.push(&g.reply).push(&g.lvb);
            rq.reply(g.status, msg).await;
        }
        Err(e) => rq.reply(e.status(), msg).await,
    }
}

/// Each of those that nobody else has a lock on. Nobody is waited for: the client knows of none of the locks before it has the reply.
async fn together(rq: TargetRequest, first: &LdlmRequest, further: &[LdlmRequest]) {
    further.iter().for_each(|req| take_back_of_before(&rq, req));
    let (ldlm, exp) = (rq.target.ldlm(), rq.exp.cookie);
    let (mut replies, mut values) = (Vec::new(), Vec::new());
    for req in std::iter::once(first).chain(further) {
        let (lock, value) = match ldlm.try_glimpse(exp, req).await {
            Ok(Some(g)) => (g.reply, g.lvb),
            Ok(None) => refused(Errno::EBUSY),
            Err(e) => refused(Errno::from_status(e.status()).unwrap_or(Errno::EPROTO)),
        };
        replies.push(lock);
        values.push(value);
    }
    let mut msg = reply();
    msg.push_bytes(encode_all(&replies))
        .push_bytes(encode_all(&values));
    rq.reply(0, msg).await;
}

fn refused(why: Errno) -> (LdlmReply, OstLvb) {
    let mut value = OstLvb::default();
    value.set_error(why);
    (LdlmReply::default(), value)
}

/// The lock of an earlier try whose reply was lost: the client would never give it back.
fn take_back_of_before(rq: &TargetRequest, req: &LdlmRequest) {
    let (ldlm, exp) = (rq.target.ldlm(), rq.exp.cookie);
    ldlm.cancel(exp, req.early_cancels());
    if rq.rq.body.flags & MSG_RESENT != 0
        && let Some(rep) = ldlm.find_resent(exp, req.handle(0))
    {
        ldlm.cancel(exp, &[rep.handle]);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coral_osd::{ObjectId, OsdMem};

    use super::*;

    #[test]
    fn a_missing_object_is_empty_and_a_present_one_is_itself() {
        let osd = OsdMem::new();
        let res = OstId::group0(5).res_id();
        assert_eq!(stored(&osd, res), OstLvb::default());
        osd.write(ObjectId { seq: 0, oid: 5 }, 10, &[Bytes::from_static(b"x")])
            .wait()
            .unwrap();
        assert_eq!((stored(&osd, res).size, stored(&osd, res).blocks), (11, 8));
        assert_eq!(stored(&osd, ResId([0; 4])).error(), Some(Errno::EPROTO));
    }
}
