//! Replies as they are kept on disk: most of their 8-byte words are zero, and are left out.
//!
//! A length (u32, bytes), with [`PACKED`]; then for every 8 words a byte with a bit for each that is not zero, the first in the
//! lowest bit, and these words. The last word is filled up with zeros. Little endian.

use bytes::Bytes;

/// Set in the length. A message begins with the number of its buffers instead, which is small.
const PACKED: u32 = 1 << 31;
const WORD_BYTES: usize = 8;
/// Words that one byte tells of.
const GROUP_WORDS: usize = 8;
/// No reply is longer.
const MAX_BYTES: usize = 16 << 20;

/// Adds `bytes` to `out`, packed.
pub(super) fn pack(bytes: &[u8], out: &mut Vec<u8>) {
    assert!(bytes.len() <= MAX_BYTES, "a reply is no bulk data");
    out.extend_from_slice(&(bytes.len() as u32 | PACKED).to_le_bytes());
    for group in bytes.chunks(GROUP_WORDS * WORD_BYTES) {
        let at = out.len();
        out.push(0);
        for (i, part) in group.chunks(WORD_BYTES).enumerate() {
            let mut word = [0; WORD_BYTES];
            word[..part.len()].copy_from_slice(part);
            if word != [0; WORD_BYTES] {
                out[at] |= 1 << i;
                out.extend_from_slice(&word);
            }
        }
    }
}

/// What was packed, or came as it is; `None`: torn.
pub(super) fn unpack(packed: &Bytes) -> Option<Bytes> {
    let (head, mut rest) = packed.split_first_chunk()?;
    let head = u32::from_le_bytes(*head);
    if head & PACKED == 0 {
        return Some(packed.clone());
    }
    let len = (head & !PACKED) as usize;
    if len > MAX_BYTES || rest.len() < len.div_ceil(GROUP_WORDS * WORD_BYTES) {
        return None;
    }
    let mut out = Vec::with_capacity(len.next_multiple_of(GROUP_WORDS * WORD_BYTES));
    while out.len() < len {
        let (mask, words) = rest.split_first()?;
        rest = words;
        for i in 0..GROUP_WORDS {
            let mut word = &[0; WORD_BYTES];
            if mask & 1 << i != 0 {
                (word, rest) = rest.split_first_chunk()?;
            }
            out.extend_from_slice(word);
        }
    }
    out.truncate(len);
    rest.is_empty().then(|| out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        pack(bytes, &mut out);
        out.into()
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(bytes in prop::collection::vec(prop_oneof![9 => Just(0u8), 1 => any::<u8>()], 0..300)) {
            prop_assert_eq!(unpack(&packed(&bytes)), Some(bytes.into()));
        }

        #[test]
        fn what_was_cut_is_torn(bytes in prop::collection::vec(any::<u8>(), 1..300), cut in 1usize..300) {
            let whole = packed(&bytes);
            let end = whole.len().saturating_sub(cut);
            prop_assert_eq!(unpack(&whole.slice(..end)), None);
        }

        #[test]
        fn no_bytes_do_harm(len in 0u32..2000, rest in prop::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [&(len | PACKED).to_le_bytes()[..], &rest].concat();
            let found = unpack(&bytes.into());
            prop_assert!(found.is_none_or(|f| f.len() == len as usize));
        }
    }

    #[test]
    fn a_message_is_taken_as_it_is() {
        let message = Bytes::from_static(&[3, 0, 0, 0, 0, 0, 0, 0, 0xd3, 0x0b, 0xd0, 0x0b]);
        assert_eq!(unpack(&message), Some(message));
    }

    #[test]
    fn zeros_take_no_room() {
        assert_eq!(packed(&[0; 640]).len(), 4 + 10);
    }
}
