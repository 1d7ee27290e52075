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
    /// The header that goes before this message's payload. Panics on a payload above [`LNET_MTU`], and on one of an ACK or a GET:
    /// every peer refuses these.
    pub(crate) fn hdr(&self) -> LnetHdr {
        assert!(
            self.payload.len() <= LNET_MTU,
            "LNet message with {} bytes of payload",
            self.payload.len()
        );
        assert!(
            self.payload.is_empty()
                || matches!(self.kind, LnetMsg::Put { .. } | LnetMsg::Reply { .. }),
            "{:?} with {} bytes of payload",
            self.kind,
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

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::lnet::WireHandle;

    fn hdr(kind: LnetMsg, bytes: usize) -> LnetHdr {
        let nid = "10.0.0.1@tcp".parse().unwrap();
        Msg {
            src: nid,
            dest: nid,
            kind,
            payload: Payload::from(vec![7; bytes]),
            known_by: KnownBy::Process,
        }
        .hdr()
    }

    fn get() -> LnetMsg {
        LnetMsg::Get {
            return_wmd: WireHandle::default(),
            match_bits: 1,
            ptl_index: 2,
            src_offset: 0,
            sink_length: 10,
        }
    }

    #[test]
    fn a_get_has_no_payload() {
        assert_eq!(hdr(get(), 0).payload_length, 0);
    }

    #[test]
    #[should_panic(expected = "with 1 bytes of payload")]
    fn a_get_with_payload_is_never_sent() {
        hdr(get(), 1);
    }
}
