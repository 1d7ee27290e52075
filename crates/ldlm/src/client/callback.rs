//! The callback service: blocking, completion and glimpse requests of servers (`ldlm_callback_handler`).

use bytes::Bytes;
use coral_ptlrpc::{RequestHandler, ServerRequest};
use coral_wire::ldlm::{ELDLM_NO_LOCK_DATA, LdlmFlags, LdlmMode, LdlmRequest, LdlmType};
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::{Message, opc};
use coral_wire::{Errno, Wire};
use futures_util::future::BoxFuture;
use std::sync::{Arc, Weak};

use super::table::Doomed;
use super::{ClientNamespace, LdlmClient};
use crate::core::LockInfo;

/// Takes the requests of portal 15.
pub(super) struct Callbacks {
    client: Weak<LdlmClient>,
}

impl Callbacks {
    pub fn new(client: &Arc<LdlmClient>) -> Callbacks {
        Callbacks {
            client: Arc::downgrade(client),
        }
    }
}

impl RequestHandler for Callbacks {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match self.client.upgrade() {
                Some(client) => client.serve(rq).await,
                None => rq.reply(Errno::ENOTCONN.status(), Message::default()).await,
            }
        })
    }
}

impl LdlmClient {
    /// Answers first; what the callback causes follows in the same future, so that it needs no further nesting of inline runs.
    async fn serve(&self, rq: ServerRequest) {
        let Ok(dlm) = LdlmRequest::decode(rq.msg.buf(1)) else {
            return rq.reply(Errno::EPROTO.status(), Message::default()).await;
        };
        let Some(ns) = self.find(rq.body.handle, dlm.handle(0)) else {
            return rq.reply(Errno::ENOTCONN.status(), Message::default()).await;
        };
        match rq.body.opc {
            opc::LDLM_BL_CALLBACK => {
                ns.stats.blocking.inc();
                let blocked = ns.on_blocking(&dlm);
                let status = if blocked.is_ok() {
                    0
                } else {
                    Errno::EINVAL.status()
                };
                rq.reply(status, Message::default()).await;
                if let Ok(Some(d)) = blocked {
                    ns.give_back(vec![d]).await;
                }
            }
            opc::LDLM_CP_CALLBACK => {
                ns.stats.completion.inc();
                let (status, doomed) = ns.on_completion(&dlm, rq.msg.buf(2).clone());
                rq.reply(status, Message::default()).await;
                if let Some(d) = doomed {
                    ns.give_back(vec![d]).await;
                }
            }
            opc::LDLM_GL_CALLBACK => {
                ns.stats.glimpse.inc();
                let (status, msg) = ns.on_glimpse(&dlm).await;
                rq.reply(status, msg).await;
            }
            _ => {
                rq.reply(Errno::EOPNOTSUPP.status(), Message::default())
                    .await
            }
        }
    }
}

impl ClientNamespace {
    /// The server wants a lock back. `Err`: unknown here.
    fn on_blocking(&self, dlm: &LdlmRequest) -> Result<Option<Doomed>, ()> {
        let discard = dlm.flags.contains(LdlmFlags::DISCARD_DATA);
        let cookie = dlm.handle(0);
        let (doomed, pinned) = {
            let mut locks = self.locks.lock();
            let doomed = locks.block(cookie, dlm.handle(1), discard)?;
            (
                doomed,
                locks
                    .get(cookie)
                    .filter(|h| h.granted && h.pins > 0)
                    .map(|h| h.info()),
            )
        };
        if let (Some(info), Some(hook)) = (pinned, self.hook()) {
            hook.blocked(&info);
        }
        Ok(doomed)
    }

    /// A lock that waited is granted, or will never be. The status, and the lock if it must go at once.
    fn on_completion(&self, dlm: &LdlmRequest, lvb: Bytes) -> (i32, Option<Doomed>) {
        let cookie = dlm.handle(0);
        let mut locks = self.locks.lock();
        let Some(h) = locks.get_mut(cookie).filter(|h| !h.dead) else {
            return (Errno::EINVAL.status(), None);
        };
        let waiter = h.waiter.take();
        let never = h.ty == LdlmType::FLOCK && dlm.desc.granted_mode == LdlmMode::NONE;
        if dlm.flags.contains(LdlmFlags::FLOCK_DEADLOCK) {
            h.refused = Some(Errno::EDEADLK);
        } else if never {
            // Withdrawn by an unlock of the same owner.
            h.refused = Some(Errno::EINTR);
        } else {
            h.lvb = lvb;
            locks.grant(cookie, &dlm.desc, dlm.handle(1));
        }
        let mut doomed = None;
        if dlm.flags.contains(LdlmFlags::AST_SENT) && !never {
            doomed = locks
                .block(
                    cookie,
                    dlm.handle(1),
                    dlm.flags.contains(LdlmFlags::DISCARD_DATA),
                )
                .ok()
                .flatten();
        }
        drop(locks);
        if let Some(w) = waiter {
            let _ = w.send(());
        }
        (0, doomed)
    }

    /// The server wants to know how big the object is, or what is kept back of its attributes. An object may be written under several
    /// locks of this client, and the server names one of them. So an object is answered for whatever became of that one: its grant
    /// may not have arrived yet, or it may have been given back just now.
    async fn on_glimpse(&self, dlm: &LdlmRequest) -> (i32, Message) {
        let granted = self
            .locks
            .lock()
            .get(dlm.handle(0))
            .filter(|h| !h.dead && h.granted)
            .map(|h| h.info());
        let of_object = (dlm.desc.ty() == LdlmType::EXTENT).then(|| as_told(dlm));
        let info = granted.or(of_object);
        let lvb: Option<OstLvb> = match (info, self.hook()) {
            (Some(info), Some(hook)) => match hook.glimpse(&info) {
                None if info.ty == LdlmType::IBITS => hook.told(&info).await.then(OstLvb::default),
                lvb => lvb,
            },
            _ => None,
        };
        match lvb {
            Some(lvb) => {
                let mut msg = Message::new(&Default::default());
                msg.push_bytes(lvb.to_bytes());
                (0, msg)
            }
            None => (-ELDLM_NO_LOCK_DATA, Message::default()),
        }
    }
}

/// A lock as a callback describes it.
fn as_told(dlm: &LdlmRequest) -> LockInfo {
    LockInfo {
        cookie: dlm.handle(0),
        remote_cookie: dlm.handle(1),
        export: None,
        res: dlm.desc.res(),
        ty: dlm.desc.ty(),
        req_mode: dlm.desc.req_mode,
        granted_mode: dlm.desc.granted_mode,
        policy: dlm.desc.policy(),
        flags: dlm.flags,
    }
}
