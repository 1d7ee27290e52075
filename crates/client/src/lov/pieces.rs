//! Pieces of objects put together: bytes in the order of the file, holes as zeroes, sizes and times of all stripes.

use bytes::Bytes;
use coral_buffers::Payload;

use crate::osc::ObjectAttr;

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes up to the first piece that came short.
pub(super) fn before_gap(pieces: &[(u64, u64, Payload)]) -> usize {
    let mut there = 0;
    for (at, want, data) in pieces {
        there = *at as usize + data.len();
        if (data.len() as u64) < *want {
            break;
        }
    }
    there
}

/// Puts sorted pieces of `total` bytes together, with zeros where one came short.
pub(super) fn assemble(pieces: Vec<(u64, u64, Payload)>, total: usize) -> Payload {
    let mut out = Payload::new();
    for (at, _, data) in pieces {
        let at = at as usize;
        if at >= total {
            break;
        }
        out = pad(out, at);
        let n = data.len().min(total - at);
        out.append(if n == data.len() {
            data
        } else {
            data.slice(0..n)
        });
    }
    pad(out, total)
}

/// Of objects with the size each gives the file.
pub(super) fn sum(all: &[(u64, ObjectAttr)]) -> ObjectAttr {
    let mut sum = ObjectAttr::default();
    all.iter().for_each(|(size, a)| merge(&mut sum, *size, a));
    sum
}

/// Adds an object that makes the file `size` bytes long.
pub(super) fn merge(sum: &mut ObjectAttr, size: u64, a: &ObjectAttr) {
    sum.size = sum.size.max(size);
    sum.blocks += a.blocks;
    sum.mtime = sum.mtime.max(a.mtime);
    sum.atime = sum.atime.max(a.atime);
    sum.ctime = sum.ctime.max(a.ctime);
}

/// Fills with zeroes up to `len` bytes.
pub(crate) fn pad(mut p: Payload, len: usize) -> Payload {
    while p.len() < len {
        let n = (len - p.len()).min(ZEROES.len());
        p.push(Bytes::from_static(&ZEROES[..n]));
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_zeroes() {
        let p = pad(Payload::from(Bytes::from_static(b"abc")), 200_000);
        assert_eq!(p.len(), 200_000);
        let all = p.copy_to_bytes();
        assert_eq!(&all[..3], b"abc");
        assert!(all[3..].iter().all(|b| *b == 0));
    }
}
