//! Lock value blocks: size and times of an object in the replies of extent locks, and glimpses.
//!
//! The stored object is the only value kept: a client that changed the object under a PW lock has
//! written it before it gives the lock up, and while it holds it a glimpse asks it
//! (`lustre/ofd/ofd_lvb.c`, `ofd_intent_policy` in `lustre/ofd/ofd_dlm.c`).

use std::sync::Arc;

use bytes::Bytes;
use coral_ldlm::LvbOps;
use coral_osd::Objects;
use coral_wire::connect::ConnectFlags2;
use coral_wire::coral::glimpses::{self, DATA_BYTES_MAX, DataWanted};
use coral_wire::ldlm::{LdlmMode, LdlmReply, LdlmRequest, ResId};
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::MSG_RESENT;
use coral_wire::raw::encode_all;
use coral_wire::{Errno, OstId, Wire};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::iter;

use super::{OstError, obdo, reply};
use crate::target::TargetRequest;

/// Objects read at a time whose data goes with their glimpses.
const READ_AT_ONCE: usize = 8;

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
pub(super) async fn glimpse(objects: &dyn Objects, rq: TargetRequest) {
    let (several, wanted) = match rq.exp.connect().has2(ConnectFlags2::CORAL) {
        true => (
            glimpses::decode(rq.buf(2)),
            DataWanted::decode(rq.buf(3)).ok(),
        ),
        false => (Ok(Vec::new()), None),
    };
    let (Ok(first), Ok(further)) = (LdlmRequest::decode(rq.buf(1)), several) else {
        return rq.reply(Errno::EPROTO.status(), reply()).await;
    };
    take_back_of_before(&rq, &first);
    if !further.is_empty() || wanted.is_some() {
        return together(objects, rq, &first, &further, wanted).await;
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
async fn together(
    objects: &dyn Objects,
    rq: TargetRequest,
    first: &LdlmRequest,
    further: &[LdlmRequest],
    wanted: Option<DataWanted>,
) {
    further.iter().for_each(|req| take_back_of_before(&rq, req));
    let (ldlm, exp) = (rq.target.ldlm(), rq.exp.cookie);
    let (mut replies, mut values) = (Vec::new(), Vec::new());
    for req in std::iter::once(first).chain(further) {
        let (lock, value) = match req.desc.req_mode == LdlmMode::NL {
            // the client has one, and wants the data
            true => (LdlmReply::default(), stored(objects, req.desc.res())),
            false => match ldlm.try_glimpse(exp, req).await {
                Ok(Some(g)) => (g.reply, g.lvb),
                Ok(None) => refused(Errno::EBUSY),
                Err(e) => refused(Errno::from_status(e.status()).unwrap_or(Errno::EPROTO)),
            },
        };
        replies.push(lock);
        values.push(value);
    }
    let mut msg = reply();
    msg.push_bytes(encode_all(&replies))
        .push_bytes(encode_all(&values));
    if let Some(wanted) = wanted {
        let all = std::iter::once(first).chain(further);
        let data = small_data(objects, &rq, wanted, all.zip(&values)).await;
        let (head, data) = wanted.encode_data(&data);
        msg.push_bytes(head).push_bytes(data);
    }
    rq.reply(0, msg).await;
}

/// The data of those of these objects that are small, as far as there is room. The client has a lock on each that was told; of one that it
/// asks for with mode NL it says so itself.
async fn small_data(
    objects: &dyn Objects,
    rq: &TargetRequest,
    wanted: DataWanted,
    told: impl Iterator<Item = (&LdlmRequest, &OstLvb)>,
) -> Vec<Option<Bytes>> {
    let mut room = DATA_BYTES_MAX as u64;
    let fits = told.map(|(req, value)| {
        let small = value.error().is_none() && value.size <= room.min(u64::from(wanted.most));
        room -= if small { value.size } else { 0 };
        small.then(|| (req.desc.res(), value.size as usize))
    });
    let fits: Vec<Option<(ResId, usize)>> = fits.collect();
    let read = iter(fits).map(|fits| async move {
        let (res, len) = fits?;
        let (id, _) = super::brw::object_of(&OstId::from_res_id(&res)).ok()?;
        if len == 0 {
            return Some(Bytes::new());
        }
        // who reads it alone is told what is wrong with it
        let data = objects.read(id, 0, len).await.ok();
        let data = data.filter(|d| d.len() == len)?;
        rq.target.stats().read.record(len as u64);
        Some(data)
    });
    read.buffered(READ_AT_ONCE).collect().await
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
