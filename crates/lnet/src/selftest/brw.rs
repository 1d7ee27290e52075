//! The bulk test's data: patterns and parameters (`lnet/selftest/brw_test.c`).
//!
//! Every check mode finds what it looks for in a payload full of [`MAGIC`], so a source is a slice of one buffer shared by
//! all RPCs of a node: nothing is filled per RPC.
//!
//! Left out: features 0 (lengths in pages, of nodes before 2.3) beyond what is needed to read them; big-endian peers.

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::Wire;

use crate::LNET_MTU;

/// What every eight bytes of checked data hold (`BRW_MAGIC`).
pub(crate) const MAGIC: u64 = 0xeeb0_eeb1_eeb2_eeb3;
/// The kernel's page, which says where the simple check looks.
const PAGE: usize = 4096;

/// Direction of a bulk test, as seen by its client (`LST_BRW_READ`, `LST_BRW_WRITE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rw {
    /// The server PUTs.
    Read = 1,
    /// The server GETs.
    Write = 2,
}

/// What is looked at in the data (`LST_BRW_CHECK_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    None = 1,
    /// First and last eight bytes of every page.
    Simple = 2,
    /// All.
    Full = 3,
    /// Nothing: the receiver may throw the data away.
    Discard = 4,
}

impl Rw {
    pub(crate) fn from_wire(v: u32) -> Option<Rw> {
        [Rw::Read, Rw::Write].into_iter().find(|r| *r as u32 == v)
    }
}

impl Check {
    pub(crate) fn from_wire(v: u32) -> Option<Check> {
        [Check::None, Check::Simple, Check::Full, Check::Discard]
            .into_iter()
            .find(|c| *c as u32 == v)
    }
}

/// Parameters of a bulk test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrwParams {
    /// Direction.
    pub rw: Rw,
    /// Check.
    pub check: Check,
    /// Bytes of each bulk, 1 to 1 MiB.
    pub len_bytes: u32,
    /// Where in its first page the client's buffer begins: a multiple of 8.
    pub offset_bytes: u32,
}

/// `struct test_bulk_req_v1` as it lies in a test request; with features 0 `struct test_bulk_req`.
impl BrwParams {
    pub(crate) fn from_wire(p: &[u8; 14], feats: u32) -> Option<BrwParams> {
        let u32_at = |at: usize| u32::decode(&p[at..]).unwrap_or(0);
        let u16_at = |at: usize| u32::from(u16::decode(&p[at..]).unwrap_or(0));
        let (opc, flags, len, offset) = if feats & super::FEAT_BULK_LEN == 0 {
            (
                u32_at(0),
                u32_at(8),
                u32_at(4).saturating_mul(PAGE as u32),
                0,
            )
        } else {
            (u16_at(0), u16_at(2), u32_at(4), u32_at(8) % PAGE as u32)
        };
        let ok = len > 0 && len as usize <= LNET_MTU && offset % 8 == 0;
        Some(BrwParams {
            rw: Rw::from_wire(opc)?,
            check: Check::from_wire(flags)?,
            len_bytes: len,
            offset_bytes: offset,
        })
        .filter(|_| ok)
    }

    pub(crate) fn to_wire(self) -> [u8; 14] {
        let mut p = [0; 14];
        p[..2].copy_from_slice(&(self.rw as u16).to_le_bytes());
        p[2..4].copy_from_slice(&(self.check as u16).to_le_bytes());
        p[4..8].copy_from_slice(&self.len_bytes.to_le_bytes());
        p[8..12].copy_from_slice(&self.offset_bytes.to_le_bytes());
        p
    }
}

/// [`LNET_MTU`] bytes of [`MAGIC`], and the same with an error in every word.
pub(crate) struct Patterns {
    good: Bytes,
    bad: Bytes,
}

impl Patterns {
    pub(crate) fn new() -> Patterns {
        let full = |word: u64| Bytes::from(word.to_le_bytes().repeat(LNET_MTU / 8));
        Patterns {
            good: full(MAGIC),
            bad: full(MAGIC + 1),
        }
    }

    /// A source of `len` bytes (at most [`LNET_MTU`]); shares memory with all others.
    pub(crate) fn source(&self, len: usize, wrong: bool) -> Payload {
        let all = if wrong { &self.bad } else { &self.good };
        Payload::from(all.slice(..len))
    }

    /// Whether `data`, which began at `offset` of a page, passes.
    pub(crate) fn passes(&self, data: &Payload, check: Check, offset: usize) -> bool {
        match check {
            Check::None | Check::Discard => true,
            Check::Full => {
                let mut at = 0;
                data.iter().all(|seg| {
                    let want = &self.good[at..at + seg.len()];
                    at += seg.len();
                    seg == want
                })
            }
            Check::Simple => simple(data, offset),
        }
    }
}

/// First and last word of every page. A payload of one segment, the usual case, is not copied.
fn simple(data: &Payload, offset: usize) -> bool {
    let bytes = data.copy_to_bytes();
    let (mut at, mut room) = (0, PAGE - offset);
    while at < bytes.len() {
        let piece = &bytes[at..bytes.len().min(at + room)];
        let head = &piece[..piece.len().min(8)];
        let tail = &piece[piece.len().saturating_sub(8)..];
        let magic = MAGIC.to_le_bytes();
        if head != &magic[..head.len()]
            || piece.len() > 8 && piece.len().is_multiple_of(8) && tail != magic
        {
            return false;
        }
        at += piece.len();
        room = PAGE;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_error(len: usize, at: usize) -> Payload {
        let mut v = MAGIC.to_le_bytes().repeat(len / 8);
        v[at] ^= 1;
        Payload::from(v)
    }

    #[test]
    fn each_check_sees_what_it_should() {
        let p = Patterns::new();
        let good = p.source(65536, false);
        for check in [Check::None, Check::Simple, Check::Full, Check::Discard] {
            assert!(p.passes(&good, check, 0), "{check:?}");
        }
        assert!(!p.passes(&p.source(65536, true), Check::Simple, 0));
        assert!(!p.passes(&p.source(65536, true), Check::Full, 0));
        let middle = with_error(65536, 2000);
        assert!(p.passes(&middle, Check::Simple, 0) && !p.passes(&middle, Check::Full, 0));
        for at in [0, 7, 4088, 4095, 4096, 65535] {
            assert!(
                !p.passes(&with_error(65536, at), Check::Simple, 0),
                "byte {at}"
            );
        }
        // The client's first page begins later: what is first and last moves with it.
        assert!(!p.passes(&with_error(8192, 96), Check::Simple, 4000));
        assert!(p.passes(&with_error(8192, 4088), Check::Simple, 4000));
    }

    #[test]
    fn parameters_of_both_kinds() {
        let p = BrwParams {
            rw: Rw::Write,
            check: Check::Full,
            len_bytes: 65536,
            offset_bytes: 8,
        };
        assert_eq!(BrwParams::from_wire(&p.to_wire(), 1), Some(p));
        let mut v0 = [0; 14];
        (v0[0], v0[4], v0[8]) = (1, 16, 2);
        let old = BrwParams {
            rw: Rw::Read,
            check: Check::Simple,
            len_bytes: 65536,
            offset_bytes: 0,
        };
        assert_eq!(BrwParams::from_wire(&v0, 0), Some(old));
        for wrong in [
            BrwParams { len_bytes: 0, ..p },
            BrwParams {
                len_bytes: (1 << 20) + 1,
                ..p
            },
            BrwParams {
                offset_bytes: 4,
                ..p
            },
        ] {
            assert_eq!(BrwParams::from_wire(&wrong.to_wire(), 1), None, "{wrong:?}");
        }
    }
}
