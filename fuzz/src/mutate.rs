//! Samples with changes: what gets past the first check of a decoder and is wrong further on.

use arbitrary::{Result, Unstructured};

/// Most changes of one sample.
const CHANGES_MAX: usize = 8;

/// Values at which lengths and counts go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    3,
    7,
    8,
    0x7f,
    0xff,
    0x1000,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// `sample` with some bytes changed, cut, put in or repeated.
pub fn mutate(u: &mut Unstructured<'_>, sample: &[u8]) -> Result<Vec<u8>> {
    let mut out = sample.to_vec();
    for _ in 0..u.int_in_range(0..=CHANGES_MAX)? {
        if out.is_empty() {
            out.push(u.arbitrary()?);
            continue;
        }
        let at = u.choose_index(out.len())?;
        match u.int_in_range(0..=6u8)? {
            0 => out[at] = u.arbitrary()?,
            1 => out[at] ^= 1 << u.int_in_range(0..=7u8)?,
            2 => out.truncate(at),
            3 => out.insert(at, u.arbitrary()?),
            4 => {
                let end = (at + u.int_in_range(1..=64usize)?).min(out.len());
                let part = out[at..end].to_vec();
                out.splice(at..at, part);
            }
            5 => {
                let end = (at + u.int_in_range(1..=64usize)?).min(out.len());
                out.drain(at..end);
            }
            // a number of 2, 4 or 8 bytes, where numbers mostly are
            _ => {
                let bytes = *u.choose(&[2, 4, 8])?;
                let at = at / bytes * bytes;
                let number = u.choose(&EDGES)?.to_le_bytes();
                let end = (at + bytes).min(out.len());
                out[at..end].copy_from_slice(&number[..end - at]);
            }
        }
    }
    Ok(out)
}
