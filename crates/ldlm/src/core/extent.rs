//! Extent locks: how far a lock is enlarged when it is granted.
//!
//! Lustre: `ldlm_extent_policy` in `lustre/ldlm/ldlm_extent.c`. A client that writes alone gets the whole object with
//! its first lock; with company a lock grows upwards to the next foreign one, and little when many compete.

use coral_wire::coral::blocks::{Blocks, Span};
use coral_wire::ldlm::LdlmMode;

use crate::ExportId;

/// Last byte of the largest extent (`OBD_OBJECT_EOF`).
pub const EOF: u64 = u64::MAX;
/// Growth of a write lock when more than [`MANY`] others conflict: 32 MiB. Bytes.
pub const MAX_GROWN: u64 = 32 * 1024 * 1024 - 1;
/// Conflicting locks on the resource from which growth is capped.
pub const MANY: usize = 32;
/// Waiting locks from which a lock is no longer enlarged downwards.
pub const SOME_WAITING: usize = 4;
/// Locks are aligned to this: no server page may be under two write locks. Bytes.
pub const PAGE: u64 = 4096;

/// Another lock of the resource as growth sees it.
#[derive(Debug, Clone, Copy)]
pub struct Other {
    /// Granted mode, or the requested one of a waiting lock.
    pub mode: LdlmMode,
    /// What it is on now.
    pub span: Span,
    /// What was asked for.
    pub req: (u64, u64),
    /// Who has it.
    pub export: Option<ExportId>,
}

/// The blocks to grant in place of an extent, for a request of `mode` on one of them: all from the first in the object on, else from the
/// request on, up to what the `others` have or wait for. `None`: there are none but the request. Lustre has no such locks.
pub fn interleaved(
    mode: LdlmMode,
    (start, end): (u64, u64),
    blocks: Blocks,
    others: impl Iterator<Item = Other> + Clone,
) -> Option<Span> {
    let others = others.filter(|o| !o.mode.compatible(mode));
    let from = |first: u64| {
        let mut all = Span {
            start: first,
            end: EOF,
            blocks: Some(blocks),
        };
        for o in others.clone() {
            if o.span.touches(&all) {
                let page = o.span.start / PAGE * PAGE;
                all.end = all.end.min(page.checked_sub(1)?);
            }
        }
        (end.saturating_add(blocks.stride()) <= all.end).then_some(all)
    };
    from(start % blocks.stride()).or_else(|| from(start))
}

/// The extent to grant for a request of `mode` on `start..=end` by `export`, given all `granted` and `waiting` locks of
/// the resource other than itself, from `from` on at most. The result contains the request.
pub fn grow(
    mode: LdlmMode,
    (start, end): (u64, u64),
    from: u64,
    export: Option<ExportId>,
    granted: impl Iterator<Item = Other>,
    waiting: impl Iterator<Item = Other>,
) -> (u64, u64) {
    let mut new = (from, EOF);
    let mut conflicting = 0;
    for o in granted.filter(|o| !o.mode.compatible(mode)) {
        conflicting += 1;
        new.0 = match o.export == export && o.export.is_some() {
            // nobody else is to have what lies between
            true if o.span.end < start => new.0.max(o.span.end + 1),
            true if o.span.start > end => new.0,
            _ => start,
        };
        let behind = end.checked_add(1).and_then(|at| o.span.next(at));
        if let Some(at) = behind {
            new.1 = new.1.min(at.saturating_sub(1).max(end));
        }
    }
    new = fix_up(mode, (start, end), new, conflicting);
    conflicting = 0;
    for o in waiting.filter(|o| !o.mode.compatible(mode) || o.export == export) {
        if new == (start, end) {
            return new;
        }
        conflicting += 1;
        if conflicting > SOME_WAITING {
            new.0 = start;
        }
        limit_by_waiting(&mut new, (start, end), o);
    }
    fix_up(mode, (start, end), new, conflicting)
}

/// Takes one waiting lock into account.
fn limit_by_waiting(new: &mut (u64, u64), (start, end): (u64, u64), o: Other) {
    let overlap = |a: (u64, u64), b: (u64, u64)| a.0 <= b.1 && b.0 <= a.1;
    if !overlap((o.span.start, o.span.end), *new) || overlap(o.req, (start, end)) {
        return;
    }
    if o.span.start < start && new.0 != start {
        new.0 = if o.span.end >= start {
            start
        } else {
            o.span.end + 1
        };
    }
    if o.span.end > end {
        let below = if o.span.start <= end {
            o.req.0
        } else {
            o.span.start
        };
        new.1 = new.1.min(below.saturating_sub(1).max(end));
    }
}

/// Caps growth under contention and aligns the result the way the request is aligned, at least to pages; only ever
/// shrinks `new`, never below the request.
fn fix_up(
    mode: LdlmMode,
    (start, end): (u64, u64),
    mut new: (u64, u64),
    conflicting: usize,
) -> (u64, u64) {
    if conflicting > MANY
        && matches!(mode, LdlmMode::PW | LdlmMode::CW)
        && end < start.saturating_add(MAX_GROWN)
    {
        new.1 = new.1.min(start.saturating_add(MAX_GROWN));
    }
    if new == (0, EOF) {
        return new;
    }
    let mut mask = PAGE;
    let align = end.wrapping_add(1) | start;
    if align != 0 && align & (mask - 1) == 0 {
        while align & mask == 0 {
            mask <<= 1;
        }
    }
    mask -= 1;
    // Up to the next boundary, and down to the last byte before one; a request that is not aligned itself is never cut.
    let lower = (new.0.wrapping_sub(1) | mask).wrapping_add(1);
    let upper = if new.1 == EOF {
        EOF
    } else {
        ((new.1 + 1) & !mask).saturating_sub(1)
    };
    (lower.min(start), upper.max(end))
}

/// The extent of a lock that must not grow (`NO_EXPANSION`).
pub fn aligned(mode: LdlmMode, req: (u64, u64)) -> (u64, u64) {
    fix_up(mode, req, req, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    const PW: LdlmMode = LdlmMode::PW;
    const PR: LdlmMode = LdlmMode::PR;

    fn other(mode: LdlmMode, start: u64, end: u64) -> Other {
        Other {
            mode,
            span: Span::all(start, end),
            req: (start, end),
            export: Some(9),
        }
    }

    fn grow_with(
        mode: LdlmMode,
        req: (u64, u64),
        granted: &[Other],
        waiting: &[Other],
    ) -> (u64, u64) {
        grow(
            mode,
            req,
            0,
            Some(1),
            granted.iter().copied(),
            waiting.iter().copied(),
        )
    }

    #[test]
    fn alone_it_gets_the_whole_object() {
        assert_eq!(grow_with(PW, (4096, 8191), &[], &[]), (0, EOF));
        assert_eq!(
            grow_with(PR, (4096, 8191), &[other(PR, 0, EOF)], &[]),
            (0, EOF),
            "compatible locks do not count"
        );
    }

    #[test]
    fn it_grows_up_to_the_next_foreign_lock_and_not_down() {
        let granted = [other(PW, 0, 4095), other(PW, 1 << 20, (2 << 20) - 1)];
        assert_eq!(
            grow_with(PW, (8192, 12287), &granted, &[]),
            (8192, (1 << 20) - 1)
        );
        assert_eq!(
            grow_with(PW, (4 << 20, (4 << 20) + 4095), &granted, &[]),
            (4 << 20, EOF)
        );
    }

    #[test]
    fn growth_is_capped_when_many_conflict() {
        let granted: Vec<_> = (0..=MANY as u64)
            .map(|i| other(PW, i * 4096, i * 4096 + 4095))
            .collect();
        let start = 1 << 30;
        assert_eq!(
            grow_with(PW, (start, start + 4095), &granted, &[]),
            (start, start + MAX_GROWN)
        );
    }

    #[test]
    fn waiting_locks_limit_growth_too() {
        let w = [other(PW, 1 << 20, (2 << 20) - 1)];
        assert_eq!(grow_with(PW, (0, 4095), &[], &w), (0, (1 << 20) - 1));
        assert_eq!(
            grow_with(PW, (4 << 20, (5 << 20) - 1), &[], &w),
            (2 << 20, EOF),
            "down to the end of the waiting one"
        );
        assert_eq!(
            grow_with(PW, (1 << 20, (2 << 20) - 1), &[], &w),
            (0, EOF),
            "one that overlaps the request is ignored"
        );
    }

    #[test]
    fn alignment_follows_the_request() {
        // A 1 MiB aligned writer is not given the odd pages of its neighbour's stripe.
        let granted = [other(PW, (3 << 20) + 4096, EOF)];
        assert_eq!(
            grow_with(PW, (0, (1 << 20) - 1), &granted, &[]),
            (0, (3 << 20) - 1)
        );
        assert_eq!(aligned(PW, (4096, 8191)), (4096, 8191));
        assert_eq!(
            aligned(PW, (10, 20)),
            (10, 20),
            "an unaligned request is kept as it is"
        );
    }
}
