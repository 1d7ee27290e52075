//! MDS_BATCH: several requests in one, each a message of its own without a body (`lustre/include/obj_update.h`,
//! `lustre/mdt/mdt_batch.c`).
//!
//! A list of sub-requests or sub-replies is a head with its count and the messages one after the other, each as long as its own
//! lengths say. The client sends one such list within the request, or several in bulk, each in a buffer of whole pages.

use bytes::Bytes;

use super::{BatchUpdateHead, ButUpdateBuffer, ButUpdateHeader};
use crate::ptlrpc::Message;
use crate::raw::{DecodeError, Wire};

/// `BUT_GETATTR`: the one sub-request there is, an enqueue with the intent to get attributes.
pub const BUT_GETATTR: u32 = 1;
/// Sub-requests that are taken of one request. (`LL_SA_BATCH_MAX`: a kernel client's statahead asks for no more.)
pub const BATCH_MAX: usize = 1024;
/// Largest list of sub-requests or sub-replies, bytes (`BUT_MAXREQSIZE`, `BUT_MAXREPSIZE`).
pub const BATCH_MAX_BYTES: usize = 1000 << 10;
/// Requests from this size on have their lists in bulk, bytes (`OUT_UPDATE_MAX_INLINE_SIZE`).
pub const INLINE_MAX_BYTES: usize = 4096;
/// Buffers in bulk are whole pages of this size, bytes.
pub const BUFFER_BYTES: usize = 4096;

const HEAD_BYTES: usize = size_of::<BatchUpdateHead>();
const WHAT: &str = "batch";

fn misfit(field: &'static str, got: usize) -> DecodeError {
    DecodeError::Length {
        what: WHAT,
        field,
        got: got as u64,
    }
}

/// The messages of one list, at most `most`. Behind them there may be room.
pub fn decode_list(magic: u32, list: &Bytes, most: usize) -> Result<Vec<Message>, DecodeError> {
    let head = BatchUpdateHead::decode(list)?;
    if head.magic != magic {
        return Err(DecodeError::Magic {
            what: WHAT,
            got: head.magic.into(),
        });
    }
    let count = usize::from(head.count);
    if count > most {
        return Err(misfit("count", count));
    }
    let mut rest = list.slice(HEAD_BYTES..);
    let mut messages = Vec::new();
    for _ in 0..count {
        let message = Message::decode(rest.clone())?;
        let len = message.encoded_len();
        if len > rest.len() {
            return Err(misfit("length", len));
        }
        rest = rest.slice(len..);
        messages.push(message);
    }
    Ok(messages)
}

/// The list of these messages.
///
/// # Panics
/// With more messages than a count holds.
pub fn encode_list(magic: u32, messages: &[Message]) -> Bytes {
    let head = BatchUpdateHead {
        magic,
        count: u16::try_from(messages.len()).expect("few messages"),
        padding: 0,
    };
    let mut list = head.to_bytes().to_vec();
    for message in messages {
        list.extend_from_slice(&message.encode());
    }
    list.into()
}

/// How the sub-requests of a request travel.
#[derive(Debug, PartialEq, Eq)]
pub enum BatchBody {
    /// One list within the request.
    Inline(Bytes),
    /// Lists in bulk, each so many bytes with the room behind it.
    Bulk(Vec<u32>),
}

/// Where the sub-requests of a request are: `header` and `buffers` are its buffers behind the body.
pub fn decode_header(
    header: &Bytes,
    buffers: &Bytes,
) -> Result<(ButUpdateHeader, BatchBody), DecodeError> {
    let head = ButUpdateHeader::decode(header)?;
    if head.magic != super::BUT_HEADER_MAGIC {
        return Err(DecodeError::Magic {
            what: WHAT,
            got: head.magic.into(),
        });
    }
    let count = head.count as usize;
    if count == 0 || count > BATCH_MAX {
        return Err(misfit("count", count));
    }
    let updates = head.update_count as usize;
    if updates > BATCH_MAX {
        return Err(misfit("update_count", updates));
    }
    let inline = head.inline_length as usize;
    if inline > 0 {
        let list = header.slice(size_of::<ButUpdateHeader>()..);
        return match count == 1 && inline <= list.len() {
            true => Ok((head, BatchBody::Inline(list.slice(..inline)))),
            false => Err(misfit("inline_length", inline)),
        };
    }
    if buffers.len() / size_of::<ButUpdateBuffer>() < count {
        return Err(misfit("buffers", buffers.len()));
    }
    let sizes: Vec<u32> = crate::raw::decode_all::<ButUpdateBuffer>(buffers)
        .into_iter()
        .take(count)
        .map(|b| b.size)
        .collect();
    let total: u64 = sizes.iter().map(|s| u64::from(*s)).sum();
    match total == 0 || total > BATCH_MAX_BYTES as u64 {
        true => Err(misfit("size", total as usize)),
        false => Ok((head, BatchBody::Bulk(sizes))),
    }
}

/// A request with these sub-requests, none of them larger than a buffer: its header, its list of buffers, and what goes in bulk.
/// `reply_bytes`: room for the sub-replies.
///
/// # Panics
/// With a sub-request that is larger than a buffer.
pub fn encode_request(subs: &[Message], reply_bytes: u32) -> (Bytes, Bytes, Vec<Bytes>) {
    let magic = super::BUT_REQUEST_MAGIC;
    let mut head = ButUpdateHeader {
        magic: super::BUT_HEADER_MAGIC,
        count: 1,
        inline_length: 0,
        reply_size: reply_bytes,
        update_count: subs.len() as u32,
        padding: 0,
    };
    let whole = HEAD_BYTES + subs.iter().map(Message::encoded_len).sum::<usize>();
    if whole + size_of::<ButUpdateHeader>() < INLINE_MAX_BYTES {
        head.inline_length = whole as u32;
        let list = encode_list(magic, subs);
        return (
            [head.to_bytes(), list].concat().into(),
            Bytes::new(),
            vec![],
        );
    }
    let (mut lists, mut rest) = (Vec::new(), subs);
    while !rest.is_empty() {
        let mut len = HEAD_BYTES;
        let fits = |m: &&Message| {
            len += m.encoded_len();
            len <= BUFFER_BYTES
        };
        let n = rest.iter().take_while(fits).count();
        assert!(n > 0, "a sub-request larger than a buffer");
        let mut list = encode_list(magic, &rest[..n]).to_vec();
        list.resize(BUFFER_BYTES, 0);
        lists.push(Bytes::from(list));
        rest = &rest[n..];
    }
    head.count = lists.len() as u32;
    let buffer = ButUpdateBuffer {
        size: BUFFER_BYTES as u32,
        padding: 0,
    };
    let buffers = vec![buffer.to_bytes(); lists.len()].concat();
    (head.to_bytes(), buffers.into(), lists)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{BUT_REPLY_MAGIC, BUT_REQUEST_MAGIC};
    use super::*;

    fn message(opc: u32, bufs: &[Vec<u8>]) -> Message {
        let mut m = Message::default();
        m.opc = opc;
        for b in bufs {
            m.push_bytes(b.clone().into());
        }
        m
    }

    fn decoded(header: &Bytes, buffers: &Bytes, bulk: &[Bytes]) -> Vec<Message> {
        let (head, body) = decode_header(header, buffers).unwrap();
        let lists = match body {
            BatchBody::Inline(list) => vec![list],
            BatchBody::Bulk(sizes) => {
                assert!(sizes.iter().zip(bulk).all(|(s, b)| *s as usize == b.len()));
                assert_eq!(sizes.len(), bulk.len());
                bulk.to_vec()
            }
        };
        let all: Vec<_> = (lists.iter())
            .flat_map(|l| decode_list(BUT_REQUEST_MAGIC, l, BATCH_MAX).unwrap())
            .collect();
        assert_eq!(all.len(), head.update_count as usize);
        all
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(subs in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8), 1..100)) {
            let subs: Vec<_> = subs.iter().enumerate().map(|(i, b)| message(i as u32, b)).collect();
            let (header, buffers, bulk) = encode_request(&subs, 5);
            prop_assert!(header.len() < INLINE_MAX_BYTES);
            prop_assert_eq!(decoded(&header, &buffers, &bulk), subs);
        }

        #[test]
        fn nonsense_never_panics(list in prop::collection::vec(any::<u8>(), 0..200), header in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut list = list;
            if list.len() > 12 {
                list[..4].copy_from_slice(&BUT_REPLY_MAGIC.to_le_bytes());
            }
            let _ = decode_list(BUT_REPLY_MAGIC, &list.clone().into(), BATCH_MAX);
            let _ = decode_header(&header.into(), &list.into());
        }
    }

    #[test]
    fn counts_and_lengths_beyond_the_buffer_are_refused() {
        let subs = vec![message(1, &[vec![7; 100]]); 3];
        let (header, buffers, _) = encode_request(&subs, 0);
        let change = |at: usize, word: u32| {
            let mut h = header.to_vec();
            h[at..at + 4].copy_from_slice(&word.to_le_bytes());
            decode_header(&h.into(), &buffers)
        };
        assert!(change(0, 1).is_err(), "another magic");
        assert!(
            change(4, 0).is_err() && change(4, 2).is_err(),
            "no one list"
        );
        assert!(change(4, u32::MAX).is_err());
        assert!(change(8, u32::MAX).is_err() && change(8, header.len() as u32).is_err());
        assert!(change(8, 0).is_err(), "in bulk, of which nothing is said");
        assert!(change(16, BATCH_MAX as u32 + 1).is_err());
        assert!(change(16, 3).is_ok());
        let list = encode_list(BUT_REQUEST_MAGIC, &subs);
        assert!(decode_list(BUT_REQUEST_MAGIC, &list, 2).is_err());
        assert!(decode_list(BUT_REPLY_MAGIC, &list, 3).is_err());
        assert!(decode_list(BUT_REQUEST_MAGIC, &list.slice(..list.len() - 8), 3).is_err());
        let big = ButUpdateBuffer {
            size: BATCH_MAX_BYTES as u32,
            padding: 0,
        };
        let mut h = header.to_vec();
        h[8..12].fill(0);
        assert!(decode_header(&h.clone().into(), &big.to_bytes()).is_ok());
        h[4] = 2;
        let two = [big.to_bytes(), big.to_bytes()].concat();
        assert!(decode_header(&h.into(), &two.into()).is_err());
    }
}
