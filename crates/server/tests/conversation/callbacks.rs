//! Lock callbacks at the recorded client: each of ours is answered as the client answered the recorded one of the same kind
//! and lock, and kept for the comparison.

use super::conversation::{Event, Kind};
use bytes::Bytes;
use coral_lnet::{Node, PortalHandler, PutEvent};
use coral_wire::Errno;
use coral_wire::ldlm::LdlmRequest;
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc, portal};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Which callback: opcode and the client's own handle of the lock, which is the same with either server.
pub type Key = (u32, u64);

/// A lock callback.
pub struct Callback {
    pub message: Message,
    pub body: PtlrpcBody,
    pub request: LdlmRequest,
}

impl Callback {
    pub fn decode(bytes: Bytes) -> Option<Callback> {
        let message = Message::decode(bytes).ok()?;
        let (body, request) = (
            message.body().ok()?,
            LdlmRequest::decode(message.buf(1)).ok()?,
        );
        Some(Callback {
            message,
            body,
            request,
        })
    }

    pub fn key(&self) -> Key {
        (self.body.opc, self.request.handle(0))
    }

    pub fn name(&self) -> String {
        format!(
            "{} {:?} {:?}",
            opc::name(self.body.opc).unwrap_or("?"),
            self.request.desc.ty(),
            self.request.desc.req_mode
        )
    }
}

/// What arrived, and what is said to what will.
#[derive(Default)]
pub struct Callbacks {
    pub arrived: Mutex<Vec<Callback>>,
    answers: Mutex<HashMap<Key, VecDeque<Bytes>>>,
}

impl Callbacks {
    /// Takes the recorded client's answers.
    pub fn learn(&self, events: &[Event]) {
        let mut answers = self.answers.lock();
        for (i, e) in events
            .iter()
            .enumerate()
            .filter(|(_, e)| e.kind == Kind::Callback)
        {
            let answer = events[i..]
                .iter()
                .find(|r| r.kind == Kind::CallbackReply && r.bits == e.bits);
            if let (Some(c), Some(r)) = (Callback::decode(e.bytes.clone()), answer) {
                answers
                    .entry(c.key())
                    .or_default()
                    .push_back(r.bytes.clone());
            }
        }
    }

    /// A callback that the recorded client never had: it is taken note of, and a size is not known.
    fn answer(&self, c: &Callback) -> Bytes {
        let recorded = self
            .answers
            .lock()
            .get_mut(&c.key())
            .and_then(VecDeque::pop_front);
        let status = if c.body.opc == opc::LDLM_GL_CALLBACK {
            -Errno::EINVAL.0
        } else {
            0
        };
        recorded.unwrap_or_else(|| Message::new(&PtlrpcBody::reply(&c.body, status)).encode())
    }
}

impl PortalHandler for Callbacks {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let Some(c) = Callback::decode(ev.data.copy_to_bytes()) else {
            return;
        };
        let reply = self.answer(&c);
        self.arrived.lock().push(c);
        let node = node.clone();
        tokio::spawn(async move {
            node.put(
                ev.from,
                portal::LDLM_CB_REPLY,
                ev.mbits,
                0,
                reply.into(),
                false,
            )
            .await
        });
    }
}
