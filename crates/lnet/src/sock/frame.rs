//! socklnd's framing: what goes before each message, and messages cut out of a byte stream.
//!
//! `struct ksock_msg_hdr` (24 bytes), then for LNET the LNet header and its payload (lnet/include/uapi/linux/lnet/socklnd.h).
//! [`Framer`] is plain state: bytes in, frames out. A bulk payload is read into its own allocation, which becomes the
//! message's payload; only the part that came in one read with its header is copied (at most [`HEAD_BUF`] bytes).

use std::io::IoSliceMut;
use std::sync::Arc;

use bytes::Bytes;
use coral_wire::lnet::{
    KSOCK_MSG_LNET, KSOCK_MSG_NOOP, KsockMsgHdr, LNET_HDR_SIZE, LnetHdr, LnetMsg,
};
use coral_wire::{DecodeError, Wire};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::Nid;

/// Bytes of the header before each message.
pub(crate) const KSM_LEN: usize = size_of::<KsockMsgHdr>();
/// Both headers of an LNet message.
pub(crate) const HEAD_LEN: usize = KSM_LEN + LNET_HDR_SIZE;
/// Bytes read at once where a header is expected: a message with 4 KiB of data comes with one read.
pub(crate) const HEAD_BUF: usize = 8192;
/// Payloads above this live in a pooled buffer of [`crate::LNET_MTU`] bytes.
const POOLED_ABOVE: usize = 512 << 10;

/// The cookie of a keepalive (`SOCKNAL_KEEPALIVE_PING`).
pub(crate) const KEEPALIVE: u64 = 1;

/// Bytes that break the protocol; the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("unknown message type {0:#x}")]
    Type(u32),
    #[error(transparent)]
    Header(#[from] DecodeError),
    #[error("{0} bytes of payload on a message that has none")]
    Unexpected(u32),
}

/// Something the peer sent.
#[derive(Debug)]
pub(crate) enum Frame {
    /// Zero-copy acknowledgement or keepalive.
    Noop { cookies: [u64; 2] },
    /// An LNet message.
    Lnet {
        cookies: [u64; 2],
        hdr: LnetHdr,
        payload: Bytes,
    },
    /// The header of a message that is for somebody else: [`Framer::begin`] lets its payload be read, and then it comes as
    /// [`Frame::Lnet`].
    Transit {
        hdr: LnetHdr,
        raw: Box<[u8; LNET_HDR_SIZE]>,
    },
}

/// A whole NOOP.
pub(crate) fn encode_noop(cookies: [u64; 2]) -> [u8; KSM_LEN] {
    let mut b = [0; KSM_LEN];
    b.copy_from_slice(KsockMsgHdr::noop(cookies[0], cookies[1]).as_bytes());
    b
}

/// Both headers of an LNet message. We ask for no zero-copy acknowledgement: a message is done when the kernel has it.
pub(crate) fn encode_lnet(hdr: &[u8; LNET_HDR_SIZE]) -> [u8; HEAD_LEN] {
    let mut b = [0; HEAD_LEN];
    b[..KSM_LEN].copy_from_slice(KsockMsgHdr::lnet(0).as_bytes());
    b[KSM_LEN..].copy_from_slice(hdr);
    b
}

/// Free receive buffers of [`crate::LNET_MTU`] bytes: a fresh one costs 256 page faults, more than filling it.
pub(crate) struct BufPool {
    free: Mutex<Vec<Box<[u8]>>>,
    max_free: usize,
}

impl BufPool {
    /// Keeps at most `max_free` unused buffers.
    pub(crate) fn new(max_free: usize) -> Arc<BufPool> {
        Arc::new(BufPool {
            free: Mutex::default(),
            max_free,
        })
    }
}

/// A payload being received.
struct Body {
    buf: Box<[u8]>,
    len: usize,
    filled: usize,
    pool: Option<Arc<BufPool>>,
}

impl Body {
    fn new(len: usize, pool: &Arc<BufPool>) -> Body {
        if len <= POOLED_ABOVE {
            return Body {
                buf: vec![0; len].into(),
                len,
                filled: 0,
                pool: None,
            };
        }
        let old = pool.free.lock().pop();
        let buf = old.unwrap_or_else(|| vec![0; crate::LNET_MTU].into());
        Body {
            buf,
            len,
            filled: 0,
            pool: Some(pool.clone()),
        }
    }

    fn rest(&mut self) -> &mut [u8] {
        &mut self.buf[self.filled..self.len]
    }

    fn freeze(mut self) -> Bytes {
        match self.pool.take() {
            None => Bytes::from(std::mem::take(&mut self.buf)),
            Some(pool) => Bytes::from_owner(Pooled {
                buf: std::mem::take(&mut self.buf),
                len: self.len,
                pool,
            }),
        }
    }
}

/// Owner of a received payload; gives the buffer back when the last reference goes.
struct Pooled {
    buf: Box<[u8]>,
    len: usize,
    pool: Arc<BufPool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < self.pool.max_free {
            free.push(std::mem::take(&mut self.buf));
        }
    }
}

struct Started {
    cookies: [u64; 2],
    hdr: LnetHdr,
    body: Body,
}

/// Cuts frames out of the byte stream of one connection.
pub(crate) struct Framer {
    head: Box<[u8]>,
    lo: usize,
    hi: usize,
    started: Option<Started>,
    pool: Arc<BufPool>,
    copied: u64,
    /// Our NID; None: every message is for us.
    local: Option<Nid>,
    /// A message in transit whose payload may not be read yet.
    held: Option<([u64; 2], LnetHdr)>,
}

impl Framer {
    pub(crate) fn new(pool: Arc<BufPool>, local: Option<Nid>) -> Framer {
        Framer {
            head: vec![0; HEAD_BUF].into(),
            lo: 0,
            hi: 0,
            started: None,
            pool,
            copied: 0,
            local,
            held: None,
        }
    }

    /// Goes on with the message whose header came as [`Frame::Transit`].
    pub(crate) fn begin(&mut self) -> Option<Frame> {
        let (cookies, hdr) = self.held.take()?;
        let frame = self.begin_payload(cookies, hdr);
        self.compact();
        frame
    }

    /// Where the next bytes go, in this order, and how many fit. Call only after [`Self::next_frame`] gave None.
    pub(crate) fn spaces(&mut self) -> ([IoSliceMut<'_>; 2], usize) {
        let body: &mut [u8] = match &mut self.started {
            Some(s) => s.body.rest(),
            None => &mut [],
        };
        let head = &mut self.head[self.hi..];
        let room = body.len() + head.len();
        debug_assert!(room > 0, "a full framer would spin");
        ([IoSliceMut::new(body), IoSliceMut::new(head)], room)
    }

    /// `n` bytes were put into the spaces.
    pub(crate) fn filled(&mut self, n: usize) {
        let to_body = match &mut self.started {
            Some(s) => {
                let k = n.min(s.body.len - s.body.filled);
                s.body.filled += k;
                k
            }
            None => 0,
        };
        self.hi += n - to_body;
        debug_assert!(self.hi <= self.head.len());
    }

    /// Whether a frame has begun and is not complete.
    pub(crate) fn is_partial(&self) -> bool {
        self.started.is_some() || self.hi > self.lo
    }

    /// Payload bytes copied so far.
    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    /// The next complete frame; None: more bytes are needed.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(s) = &self.started {
            if s.body.filled < s.body.len {
                return Ok(None);
            }
            return Ok(self.started.take().map(|s| {
                assert_eq!(
                    s.body.len, s.hdr.payload_length as usize,
                    "the payload that the header announced"
                );
                Frame::Lnet {
                    cookies: s.cookies,
                    hdr: s.hdr,
                    payload: s.body.freeze(),
                }
            }));
        }
        let frame = self.parse_head();
        self.compact();
        frame
    }

    fn parse_head(&mut self) -> Result<Option<Frame>, FrameError> {
        let have = &self.head[self.lo..self.hi];
        let Ok(ksm) = KsockMsgHdr::decode(have) else {
            return Ok(None);
        };
        let cookies = ksm.zc_cookies;
        match ksm.r#type {
            KSOCK_MSG_NOOP => {
                self.lo += KSM_LEN;
                Ok(Some(Frame::Noop { cookies }))
            }
            KSOCK_MSG_LNET if have.len() < HEAD_LEN => Ok(None),
            KSOCK_MSG_LNET => {
                let hdr = LnetHdr::decode(&have[KSM_LEN..])?;
                if hdr.payload_length > 0
                    && matches!(hdr.msg, LnetMsg::Ack { .. } | LnetMsg::Get { .. })
                {
                    return Err(FrameError::Unexpected(hdr.payload_length));
                }
                if self.local.is_some_and(|us| us != hdr.dest_nid) {
                    let mut raw = Box::new([0; LNET_HDR_SIZE]);
                    raw.copy_from_slice(&have[KSM_LEN..HEAD_LEN]);
                    self.lo += HEAD_LEN;
                    self.held = Some((cookies, hdr));
                    return Ok(Some(Frame::Transit { hdr, raw }));
                }
                self.lo += HEAD_LEN;
                Ok(self.begin_payload(cookies, hdr))
            }
            ty => Err(FrameError::Type(ty)),
        }
    }

    /// A header was taken: its payload comes from what was read with it, and else becomes the place for the next reads.
    fn begin_payload(&mut self, cookies: [u64; 2], hdr: LnetHdr) -> Option<Frame> {
        let len = hdr.payload_length as usize;
        let here = len.min(self.hi - self.lo);
        let part = &self.head[self.lo..self.lo + here];
        self.copied += here as u64;
        self.lo += here;
        if here == len {
            return Some(Frame::Lnet {
                cookies,
                hdr,
                payload: Bytes::copy_from_slice(part),
            });
        }
        let mut body = Body::new(len, &self.pool);
        body.buf[..here].copy_from_slice(part);
        body.filled = here;
        self.started = Some(Started { cookies, hdr, body });
        None
    }

    /// Moves an incomplete header to the front, so that there is always room for the rest of it.
    fn compact(&mut self) {
        if self.lo == self.hi {
            (self.lo, self.hi) = (0, 0);
        } else if self.head.len() - self.lo < HEAD_LEN {
            self.head.copy_within(self.lo..self.hi, 0);
            (self.lo, self.hi) = (0, self.hi - self.lo);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::lnet::WireHandle;
    use proptest::prelude::*;

    fn hdr(msg: LnetMsg, len: usize) -> LnetHdr {
        LnetHdr {
            dest_nid: Nid(1),
            src_nid: Nid(2),
            dest_pid: 3,
            src_pid: 4,
            payload_length: len as u32,
            msg,
        }
    }

    fn put(len: usize) -> (LnetHdr, Vec<u8>) {
        let msg = LnetMsg::Put {
            ack_wmd: WireHandle::NONE,
            match_bits: len as u64,
            hdr_data: 0,
            ptl_index: 6,
            offset: 0,
        };
        (
            hdr(msg, len),
            (0..len).map(|i| (i * 31 + len) as u8).collect(),
        )
    }

    /// Hands the framer what it has room for; how many bytes that was.
    fn hand(framer: &mut Framer, bytes: &[u8]) -> usize {
        let ([mut a, mut b], room) = framer.spaces();
        let n = bytes.len().min(room);
        let k = n.min(a.len());
        a[..k].copy_from_slice(&bytes[..k]);
        b[..n - k].copy_from_slice(&bytes[k..n]);
        framer.filled(n);
        n
    }

    /// Feeds `stream` in pieces of the given sizes (repeated) and gives what came out.
    fn feed(
        framer: &mut Framer,
        mut stream: &[u8],
        pieces: &[usize],
    ) -> Result<Vec<Frame>, FrameError> {
        let mut out = Vec::new();
        let mut pieces = pieces.iter().cycle();
        while !stream.is_empty() {
            let want = (*pieces.next().unwrap()).min(stream.len());
            stream = &stream[hand(framer, &stream[..want])..];
            while let Some(f) = framer.next_frame()? {
                out.push(f);
            }
        }
        Ok(out)
    }

    fn check(sizes: &[usize], pieces: &[usize]) {
        let mut stream = Vec::new();
        for (i, len) in sizes.iter().enumerate() {
            stream.extend_from_slice(&encode_noop([0, i as u64 + 1]));
            let (hdr, payload) = put(*len);
            stream.extend_from_slice(&encode_lnet(&hdr.encode()));
            stream.extend_from_slice(&payload);
        }
        let mut framer = Framer::new(BufPool::new(2), None);
        let frames = feed(&mut framer, &stream, pieces).unwrap();
        assert_eq!(frames.len(), 2 * sizes.len());
        assert!(!framer.is_partial());
        for (i, pair) in frames.chunks(2).enumerate() {
            assert!(matches!(pair[0], Frame::Noop { cookies } if cookies == [0, i as u64 + 1]));
            let (want_hdr, want) = put(sizes[i]);
            match &pair[1] {
                Frame::Lnet { hdr, payload, .. } => {
                    assert_eq!(*hdr, want_hdr);
                    assert!(payload == &want, "payload of {} bytes differs", sizes[i]);
                }
                f => panic!("{f:?}"),
            }
        }
    }

    #[test]
    fn every_cut_of_a_short_stream() {
        for piece in 1..300 {
            check(&[0, 1, 100, 5000], &[piece]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn frames_survive_any_cutting(
            sizes in proptest::collection::vec(prop_oneof![0usize..3000, 4000usize..9000, 500_000usize..=1_048_576], 1..6),
            pieces in proptest::collection::vec(prop_oneof![1usize..200, 3000usize..200_000], 1..8),
        ) {
            check(&sizes, &pieces);
        }
    }

    #[test]
    fn bulk_is_copied_only_where_it_came_with_its_header() {
        let (hdr, payload) = put(1 << 20);
        let mut stream = encode_lnet(&hdr.encode()).to_vec();
        stream.extend_from_slice(&payload);
        let mut framer = Framer::new(BufPool::new(1), None);
        feed(&mut framer, &stream, &[1 << 20]).unwrap();
        assert_eq!(framer.copied(), (HEAD_BUF - HEAD_LEN) as u64);
    }

    #[test]
    fn pooled_buffers_come_back() {
        let pool = BufPool::new(1);
        let (hdr, payload) = put(1 << 20);
        let mut stream = encode_lnet(&hdr.encode()).to_vec();
        stream.extend_from_slice(&payload);
        let mut framer = Framer::new(pool.clone(), None);
        let frames = feed(&mut framer, &[stream.clone(), stream].concat(), &[1 << 16]).unwrap();
        assert_eq!(frames.len(), 2);
        assert_eq!(pool.free.lock().len(), 0);
        drop(frames);
        assert_eq!(pool.free.lock().len(), 1, "as many as allowed are kept");
    }

    #[test]
    fn transit_waits_between_header_and_payload() {
        for len in [0, 10, 3000, 100_000] {
            let (hdr, payload) = put(len);
            let mut stream = encode_lnet(&hdr.encode()).to_vec();
            stream.extend_from_slice(&payload);
            let mut framer = Framer::new(BufPool::new(1), Some(Nid(77)));
            let mut frames = feed(&mut framer, &stream[..HEAD_LEN], &[50]).unwrap();
            match frames.pop() {
                Some(Frame::Transit { hdr: got, raw }) => {
                    assert_eq!((got, *raw), (hdr, hdr.encode()))
                }
                f => panic!("{f:?}"),
            }
            frames.extend(framer.begin());
            frames.extend(feed(&mut framer, &stream[HEAD_LEN..], &[999]).unwrap());
            match &frames[..] {
                [
                    Frame::Lnet {
                        hdr: got,
                        payload: data,
                        ..
                    },
                ] => assert!(*got == hdr && data == &payload),
                f => panic!("{f:?}"),
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let refused =
            |b: &[u8]| feed(&mut Framer::new(BufPool::new(1), None), b, &[24]).unwrap_err();
        let mut b = encode_noop([0, 1]);
        b[0] = 0xc2;
        assert_eq!(refused(&b), FrameError::Type(0xc2));
        let (put, _) = put(0);
        let long = LnetHdr {
            payload_length: crate::LNET_MTU as u32 + 1,
            ..put
        };
        assert!(matches!(
            refused(&encode_lnet(&long.encode())),
            FrameError::Header(_)
        ));
        let ack = LnetMsg::Ack {
            dst_wmd: WireHandle::NONE,
            match_bits: 0,
            mlength: 0,
        };
        assert_eq!(
            refused(&encode_lnet(&hdr(ack, 1).encode())),
            FrameError::Unexpected(1)
        );
    }
}
