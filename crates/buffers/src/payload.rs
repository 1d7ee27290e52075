//! Message payload: a short list of reference-counted segments, never copied on its way to the LND.

use bytes::Bytes;
use smallvec::SmallVec;

/// Bytes of one message as a list of segments. Cloning and slicing copy no bytes.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    segs: SmallVec<[Bytes; 4]>,
    len: usize,
}

impl Payload {
    /// An empty payload.
    pub fn new() -> Payload {
        Payload::default()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a segment; empty ones are left out.
    pub fn push(&mut self, seg: Bytes) {
        if !seg.is_empty() {
            self.len += seg.len();
            self.segs.push(seg);
        }
    }

    /// Appends all segments of `other`.
    pub fn append(&mut self, other: Payload) {
        for seg in other.segs {
            self.push(seg);
        }
    }

    /// The segments in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        self.segs.iter()
    }

    /// The bytes `range` of this payload, sharing its memory. Panics when the range is outside (programmer error).
    pub fn slice(&self, range: std::ops::Range<usize>) -> Payload {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of a payload of {} bytes",
            self.len
        );
        let mut out = Payload::new();
        let mut at = 0;
        for seg in &self.segs {
            let (lo, hi) = (range.start.max(at), range.end.min(at + seg.len()));
            if lo < hi {
                out.push(seg.slice(lo - at..hi - at));
            }
            at += seg.len();
        }
        out
    }

    /// All bytes as one `Bytes`: shared when there is one segment, copied otherwise.
    pub fn copy_to_bytes(&self) -> Bytes {
        match self.segs.len() {
            0 => Bytes::new(),
            1 => self.segs[0].clone(),
            _ => {
                let mut all = Vec::with_capacity(self.len);
                for seg in &self.segs {
                    all.extend_from_slice(seg);
                }
                Bytes::from(all)
            }
        }
    }
}

impl From<Bytes> for Payload {
    fn from(seg: Bytes) -> Payload {
        let mut p = Payload::new();
        p.push(seg);
        p
    }
}

impl From<Vec<u8>> for Payload {
    fn from(v: Vec<u8>) -> Payload {
        Payload::from(Bytes::from(v))
    }
}

impl FromIterator<Bytes> for Payload {
    fn from_iter<I: IntoIterator<Item = Bytes>>(iter: I) -> Payload {
        let mut p = Payload::new();
        for seg in iter {
            p.push(seg);
        }
        p
    }
}

impl<'a> IntoIterator for &'a Payload {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Payload {
    /// Equal bytes, however they are cut into segments.
    fn eq(&self, other: &Payload) -> bool {
        if self.len != other.len {
            return false;
        }
        let mut theirs = other.segs.iter();
        let mut there: &[u8] = &[];
        for seg in &self.segs {
            let mut here = &seg[..];
            while !here.is_empty() {
                if there.is_empty() {
                    there = theirs.next().map_or(&[], |s| &s[..]);
                }
                let n = here.len().min(there.len());
                debug_assert!(n > 0, "no segment is empty, and the lengths are equal");
                if here[..n] != there[..n] {
                    return false;
                }
                (here, there) = (&here[n..], &there[n..]);
            }
        }
        true
    }
}

impl Eq for Payload {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(bytes: &[u8], cuts: &[usize]) -> Payload {
        let all = Bytes::copy_from_slice(bytes);
        let mut at = 0;
        let mut out = Payload::new();
        for c in cuts {
            let end = (at + c).min(all.len());
            out.push(all.slice(at..end));
            at = end;
        }
        out.push(all.slice(at..));
        out
    }

    proptest! {
        #[test]
        fn as_one_vector(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(0usize..40, 0..10),
            other in proptest::collection::vec(0usize..40, 0..10),
            (lo, hi) in (0usize..200, 0usize..200),
        ) {
            let p = cut(&bytes, &cuts);
            prop_assert_eq!(p.len(), bytes.len());
            prop_assert_eq!(&p.copy_to_bytes()[..], &bytes[..]);
            prop_assert!(p == cut(&bytes, &other), "equal however it is cut");
            let (lo, hi) = (lo.min(bytes.len()), hi.min(bytes.len()));
            let (lo, hi) = (lo.min(hi), lo.max(hi));
            prop_assert_eq!(&p.slice(lo..hi).copy_to_bytes()[..], &bytes[lo..hi]);
            if !bytes.is_empty() {
                let mut changed = bytes.clone();
                changed[lo.min(bytes.len() - 1)] ^= 1;
                prop_assert!(p != cut(&changed, &other));
                prop_assert!(p != cut(&bytes[1..], &other));
            }
        }
    }
}
