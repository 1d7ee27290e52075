//! The container of a PTLRPC message: `lustre_msg_v2` (`lustre/ptlrpc/pack_generic.c`).
//!
//! 32 bytes of head, a length per buffer, then the buffers, everything padded to 8 bytes.
//! Decoding slices the received bytes, nothing is copied. What stood in the padding is remembered,
//! so that `encode(decode(x)) == x` holds for whatever a kernel left there.

use super::{LUSTRE_MSG_MAGIC_V2, PtlrpcBody};
use crate::raw::{DecodeError, Wire};
use bytes::Bytes;
use smallvec::SmallVec;

/// Most buffers a message may have (`lustre_unpack_msg_v2` bounds it by the message's length; ours is a bound on memory).
pub const MAX_BUFFERS: usize = 64;

/// A message: buffer 0 is the body. Lengths are in bytes.
#[derive(Clone, Default, Debug)]
pub struct Message {
    /// `MSGHDR_*`.
    pub flags: u32,
    /// Security flavour, 0 = null; the upper byte says which part of Lustre speaks.
    pub secflvr: u32,
    /// Reply buffer size the client prepared, only for read-on-open.
    pub repsize: u32,
    /// crc32 of the body, early replies only.
    pub cksum: u32,
    /// Opcode of a sub-request in a batch (`lm_opc`); a sub-reply has its result here.
    pub opc: u32,
    /// Unused, kept.
    pub padding3: u32,
    /// The buffers.
    pub bufs: SmallVec<[Bytes; 12]>,
    /// Padding bytes found that were not zero, and bytes behind the last buffer.
    residue: Option<Box<Residue>>,
}

/// Bytes of a decoded message that belong to no buffer and were not what we would send.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Residue {
    /// Number of buffers and their lengths when this was seen: pads only fit those.
    lens: SmallVec<[usize; 12]>,
    /// The original message.
    whole: Bytes,
}

const HEAD: usize = 32;

const fn pad8(n: usize) -> usize {
    (n + 7) & !7
}

impl PartialEq for Message {
    /// Equal head and buffers; padding does not count.
    fn eq(&self, o: &Message) -> bool {
        (
            self.flags,
            self.secflvr,
            self.repsize,
            self.cksum,
            self.opc,
            self.padding3,
        ) == (o.flags, o.secflvr, o.repsize, o.cksum, o.opc, o.padding3)
            && self.bufs == o.bufs
    }
}

impl Message {
    /// A message with this body and no further buffers yet. Requests say that we take early replies (a connect must
    /// not yet: clear `flags` there); replies have no flags.
    pub fn new(body: &PtlrpcBody) -> Message {
        let request = super::MSGHDR_AT_SUPPORT | super::MSGHDR_CKSUM_INCOMPAT18;
        let flags = if body.r#type == super::PTL_RPC_MSG_REQUEST {
            request
        } else {
            0
        };
        let mut m = Message {
            flags,
            ..Default::default()
        };
        m.push(body);
        m
    }

    /// Slices a received message. Bytes behind the last buffer are allowed and kept.
    pub fn decode(whole: Bytes) -> Result<Message, DecodeError> {
        let short = |need| DecodeError::Short {
            what: "lustre_msg_v2",
            need,
            have: whole.len(),
        };
        let word = |at: usize| -> Result<u32, DecodeError> {
            let b = whole.get(at..at + 4).ok_or(short(at + 4))?;
            Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        let count = word(0)? as usize;
        let magic = word(8)?;
        if magic != LUSTRE_MSG_MAGIC_V2 {
            return Err(DecodeError::Magic {
                what: "lustre_msg_v2",
                got: magic as u64,
            });
        }
        if count == 0 || count > MAX_BUFFERS {
            return Err(DecodeError::Length {
                what: "lustre_msg_v2",
                field: "bufcount",
                got: count as u64,
            });
        }
        let mut m = Message {
            secflvr: word(4)?,
            repsize: word(12)?,
            cksum: word(16)?,
            flags: word(20)?,
            opc: word(24)?,
            padding3: word(28)?,
            ..Default::default()
        };
        let zero = |from: usize, to: usize| {
            whole
                .get(from..to)
                .is_some_and(|pad| pad.iter().all(|b| *b == 0))
        };
        let mut at = pad8(HEAD + 4 * count);
        let mut clean = zero(HEAD + 4 * count, at);
        for i in 0..count {
            let len = word(HEAD + 4 * i)? as usize;
            let end = at
                .checked_add(len)
                .filter(|end| *end <= whole.len())
                .ok_or(short(at.saturating_add(len)))?;
            m.bufs.push(whole.slice(at..end));
            at = pad8(end);
            clean &= zero(end, at);
        }
        if !clean || at != whole.len() {
            m.residue = Some(Box::new(Residue {
                lens: m.lens(),
                whole,
            }));
        }
        Ok(m)
    }

    fn lens(&self) -> SmallVec<[usize; 12]> {
        self.bufs.iter().map(|b| b.len()).collect()
    }

    /// Bytes of the encoded message.
    pub fn encoded_len(&self) -> usize {
        pad8(HEAD + 4 * self.bufs.len()) + self.bufs.iter().map(|b| pad8(b.len())).sum::<usize>()
    }

    /// The bytes to send. Panics on more than [`MAX_BUFFERS`] buffers, which every peer refuses.
    pub fn encode(&self) -> Bytes {
        assert!(
            self.bufs.len() <= MAX_BUFFERS,
            "a message of {} buffers",
            self.bufs.len()
        );
        let mut out = Vec::with_capacity(self.encoded_len());
        for w in [
            self.bufs.len() as u32,
            self.secflvr,
            LUSTRE_MSG_MAGIC_V2,
            self.repsize,
            self.cksum,
            self.flags,
            self.opc,
            self.padding3,
        ] {
            out.extend_from_slice(&w.to_le_bytes());
        }
        for b in &self.bufs {
            out.extend_from_slice(&(b.len() as u32).to_le_bytes());
        }
        out.resize(pad8(out.len()), 0);
        for b in &self.bufs {
            out.extend_from_slice(b);
            out.resize(pad8(out.len()), 0);
        }
        assert_eq!(out.len(), self.encoded_len(), "length of a message");
        self.restore_residue(&mut out);
        out.into()
    }

    /// Puts the padding back as it was received, when the buffers still have the lengths they had then.
    fn restore_residue(&self, out: &mut Vec<u8>) {
        let Some(r) = self.residue.as_ref().filter(|r| r.lens == self.lens()) else {
            return;
        };
        let mut paint = |from: usize, to: usize| {
            let to = to.min(r.whole.len());
            if from < to {
                if out.len() < to {
                    out.resize(to, 0);
                }
                out[from..to].copy_from_slice(&r.whole[from..to]);
            }
        };
        let mut at = pad8(HEAD + 4 * r.lens.len());
        paint(HEAD + 4 * r.lens.len(), at);
        for len in &r.lens {
            paint(at + len, pad8(at + len));
            at = pad8(at + len);
        }
        paint(at, r.whole.len());
        out.truncate(r.whole.len().max(at.min(r.whole.len())));
    }

    /// The body. An older peer's shorter body reads as zero-extended.
    pub fn body(&self) -> Result<PtlrpcBody, DecodeError> {
        let b = self.buf(0);
        if b.len() >= size_of::<PtlrpcBody>() {
            return PtlrpcBody::decode(b);
        }
        let v2 = core::mem::offset_of!(PtlrpcBody, jobid);
        if b.len() < v2 {
            return Err(DecodeError::Short {
                what: "PtlrpcBody",
                need: v2,
                have: b.len(),
            });
        }
        let mut whole = [0u8; size_of::<PtlrpcBody>()];
        whole[..b.len()].copy_from_slice(b);
        PtlrpcBody::decode(&whole)
    }

    /// Replaces the body.
    pub fn set_body(&mut self, body: &PtlrpcBody) {
        match self.bufs.first_mut() {
            Some(b) => *b = body.to_bytes(),
            None => self.bufs.push(body.to_bytes()),
        }
    }

    /// Buffer `i` as a `T`; an error when it is absent or too short.
    pub fn get<T: Wire>(&self, i: usize) -> Result<T, DecodeError> {
        T::decode(self.buf(i))
    }

    /// Buffer `i`; empty when absent.
    pub fn buf(&self, i: usize) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.bufs.get(i).unwrap_or(&EMPTY)
    }

    /// Buffer `i` as text: up to its first NUL.
    pub fn str(&self, i: usize) -> &[u8] {
        crate::raw::c_str(self.buf(i))
    }

    /// Number of buffers, the body included.
    pub fn len(&self) -> usize {
        self.bufs.len()
    }

    /// Whether there is not even a body.
    pub fn is_empty(&self) -> bool {
        self.bufs.is_empty()
    }

    /// Appends a structure.
    pub fn push<T: Wire>(&mut self, v: &T) -> &mut Message {
        self.push_bytes(v.to_bytes())
    }

    /// Appends a buffer.
    pub fn push_bytes(&mut self, b: Bytes) -> &mut Message {
        debug_assert!(self.bufs.len() < MAX_BUFFERS);
        self.bufs.push(b);
        self
    }

    /// Appends an empty buffer.
    pub fn push_empty(&mut self) -> &mut Message {
        self.push_bytes(Bytes::new())
    }

    /// Appends text with a terminating NUL.
    pub fn push_str_nul(&mut self, s: &[u8]) -> &mut Message {
        let mut v = Vec::with_capacity(s.len() + 1);
        v.extend_from_slice(s);
        v.push(0);
        self.push_bytes(v.into())
    }

    /// The crc32 that an early reply carries in `cksum`: over the body (`lustre_msg_calc_cksum`).
    pub fn early_cksum(&self) -> u32 {
        crate::ost::crc32(self.buf(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn body_only_is_224_bytes() {
        let m = Message::new(&PtlrpcBody::request(super::super::opc::OBD_PING));
        assert_eq!(m.encode().len(), super::super::BODY_ONLY_SIZE);
        assert_eq!(m.body().unwrap().version, 0x1_0003);
    }

    #[test]
    fn refuses_nonsense() {
        assert!(Message::decode(Bytes::new()).is_err());
        let mut raw = Message::new(&PtlrpcBody::default()).encode().to_vec();
        raw[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Message::decode(raw.clone().into()).is_err());
        raw[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Message::decode(raw.clone().into()).is_err());
        raw[8] ^= 1;
        assert!(matches!(
            Message::decode(raw.into()),
            Err(DecodeError::Magic { .. })
        ));
    }

    proptest! {
        #[test]
        fn round_trip(bufs in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..70), 0..9), junk in any::<u8>()) {
            let mut m = Message::new(&PtlrpcBody::request(400));
            for b in &bufs {
                m.push_bytes(Bytes::from(b.clone()));
            }
            let raw = m.encode();
            let back = Message::decode(raw.clone()).unwrap();
            prop_assert_eq!(&back, &m);
            prop_assert_eq!(back.encode(), raw.clone());
            // whatever stands in the padding survives
            let mut dirty = raw.to_vec();
            let last = dirty.len() - 1;
            if bufs.last().is_some_and(|b| b.len() % 8 != 0) {
                dirty[last] = junk;
            }
            dirty.push(junk);
            let dirty = Bytes::from(dirty);
            let back = Message::decode(dirty.clone()).unwrap();
            prop_assert_eq!(&back, &m);
            prop_assert_eq!(back.encode(), dirty);
        }

        #[test]
        fn never_panics(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode(raw.into());
        }
    }
}
