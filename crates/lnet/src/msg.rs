//! One LNet message in memory.

use coral_buffers::Payload;
use coral_wire::lnet::{LNET_MTU, LnetHdr, LnetMsg};
use coral_wire::nid::LNET_PID;

use crate::{KnownBy, Nid};

/// A message: where it goes, what it is, and its payload.
#[derive(Clone, Debug)]
pub(crate) struct Msg {
    pub(crate) dest: Nid,
    pub(crate) src: Nid,
    pub(crate) kind: LnetMsg,
    pub(crate) payload: Payload,
    /// Of one that arrives: how the hop is known that brought it. A message of our own is this process's.
    pub(crate) known_by: KnownBy,
}

impl Msg {
    /// The header that goes before this message's payload. Panics when the payload is above [`LNET_MTU`].
    pub(crate) fn hdr(&self) -> LnetHdr {
        assert!(
            self.payload.len() <= LNET_MTU,
            "LNet message with {} bytes of payload",
            self.payload.len()
        );
        LnetHdr {
            dest_nid: self.dest,
            src_nid: self.src,
            dest_pid: LNET_PID,
            src_pid: LNET_PID,
            payload_length: self.payload.len() as u32,
            msg: self.kind,
        }
    }

    /// Whether this only answers a message of the peer, so that it must not wait for credits.
    pub(crate) fn is_response(&self) -> bool {
        matches!(self.kind, LnetMsg::Ack { .. } | LnetMsg::Reply { .. })
    }

    /// Portal it is addressed to, where it has one.
    pub(crate) fn portal(&self) -> Option<u32> {
        match self.kind {
            LnetMsg::Put { ptl_index, .. } | LnetMsg::Get { ptl_index, .. } => Some(ptl_index),
            _ => None,
        }
    }
}
