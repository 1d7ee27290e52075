//! Which MDT holds which sequences of FIDs ([`crate::mdt::fld`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_wire::Fid;
use coral_wire::coral::updates::Update;
use coral_wire::layout::LmvMd;

use super::homes::Copies;
use super::image::Image;
use super::{RepairError, Result};
use crate::mdt::check::changed;
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{fld, table};

/// Sequences left out when it is not known which was given last: clients may have been given some of which nothing is stored.
const MARGIN: u64 = 1024;

/// First sequence to the one after the last, and index of the MDT.
type Ranges = BTreeMap<u64, (u64, u32)>;

/// A range that somebody says is an MDT's.
struct Claim {
    start: u64,
    end: u64,
    index: u32,
    /// Objects on that MDT with such FIDs.
    used: usize,
    /// Both MDT0000 and that MDT say so.
    agreed: bool,
}

/// Mends the tables, and finds out where objects belong.
pub(super) fn mend(im: &mut Image<'_>, copies: &Copies) -> Result<()> {
    let first = im.part_at(0).ok_or(RepairError::Missing(0))?;
    let mut stored: Vec<Ranges> = Vec::new();
    for part in 0..im.parts.len() {
        let mut ranges = Ranges::new();
        for (k, v) in im.rows(part, table::FLD)? {
            match fld::range_of_row(&k, &v) {
                Some((start, range)) => drop(ranges.insert(start, range)),
                None => im.bad_row(part, table::FLD, &k, &v)?,
            }
        }
        stored.push(ranges);
    }
    if let Some((_, index)) = stored[first]
        .values()
        .find(|(_, i)| im.part_at(*i).is_none())
    {
        return Err(RepairError::Missing(*index));
    }
    im.ranges = accepted(im, &stored, first, copies);
    for (part, had) in stored.iter().enumerate() {
        write(im, part, had, copies)?;
    }
    let mentioned = mentioned(im, copies)?;
    for part in 0..im.parts.len() {
        next(im, part, &mentioned)?;
    }
    Ok(())
}

/// Sequences of everything that is there or that something leads to. Where an older copy of an MDT was put back, its objects of
/// since are still named by others: some are made anew with these FIDs, and no new object may get one of them.
fn mentioned(im: &Image<'_>, copies: &Copies) -> Result<BTreeSet<u64>> {
    let mut seqs: BTreeSet<u64> = copies.keys().map(|fid| fid.seq).collect();
    let mut add = |fids: &[Fid]| seqs.extend(fids.iter().map(|fid| fid.seq));
    for copy in copies.values().flatten() {
        add(&copy.leads_to());
    }
    for part in 0..im.parts.len() {
        for (k, v) in im.rows(part, table::DIRENT)? {
            let child = table::dirent_of_value(&v).map(|(child, _)| child);
            add(Vec::from_iter(table::fid_of_key(&k).into_iter().chain(child)).as_slice());
        }
        for (k, _) in im.rows(part, table::LINK)? {
            add(Vec::from_iter(table::fid_of_key(k.get(16..).unwrap_or(&[]))).as_slice());
        }
        for (_, v) in im.rows(part, table::PREPARED)? {
            for update in Update::decode_all(&v).unwrap_or_default() {
                add(&changed(&update));
            }
        }
        for (k, v) in im.rows(part, table::XATTR)? {
            if k.get(16..) == Some(TRUSTED_LMV) {
                add(&LmvMd::decode(&v)
                    .map(|lmv| lmv.stripe_fids)
                    .unwrap_or_default());
            }
        }
    }
    Ok(seqs)
}

/// How many objects with FIDs from `start` to `end` lie on an MDT.
fn used(copies: &Copies, part: usize, start: u64, end: u64) -> usize {
    let from = coral_wire::Fid::new(start, 0);
    let of = copies.range(from..).take_while(|(fid, _)| fid.seq < end);
    of.filter(|(_, all)| all.iter().any(|c| c.part == part))
        .count()
}

/// The ranges that hold: those that both sides say, then those with the most objects.
fn accepted(im: &Image<'_>, stored: &[Ranges], first: usize, copies: &Copies) -> Ranges {
    let mut claims = Vec::new();
    for (part, ranges) in stored.iter().enumerate() {
        for (&start, &(end, index)) in ranges {
            let Some(owner) = im.part_at(index) else {
                continue;
            };
            let own = part == owner || part == first;
            if !own || start < fld::FIRST.1 || end <= start {
                continue;
            }
            let other = if part == first { owner } else { first };
            claims.push(Claim {
                start,
                end,
                index,
                used: used(copies, owner, start, end),
                agreed: stored[other].get(&start) == Some(&(end, index)),
            });
        }
    }
    claims.sort_by_key(|c| (!c.agreed, std::cmp::Reverse(c.used), c.start));
    let mut all = Ranges::from([(fld::FIRST.0, (fld::FIRST.1, 0))]);
    for c in claims {
        let before = all.range(..c.end).next_back();
        if before.is_none_or(|(_, (end, _))| *end <= c.start) {
            all.insert(c.start, (c.end, c.index));
        }
    }
    all
}

/// Makes the table of one MDT what it should be.
fn write(im: &mut Image<'_>, part: usize, had: &Ranges, copies: &Copies) -> Result<()> {
    let index = im.parts[part].index;
    // a range of which an MDT has not heard, and has nothing, is nobody's loss
    let wanted = |start: &u64, (end, owner): &(u64, u32)| {
        let known = had.get(start) == Some(&(*end, *owner)) || used(copies, part, *start, *end) > 0;
        *start != fld::FIRST.0 && (index == 0 || *owner == index && known)
    };
    let all: Ranges = im
        .ranges
        .iter()
        .filter(|(start, range)| wanted(start, range))
        .map(|(start, range)| (*start, *range))
        .collect();
    for (start, (end, owner)) in had {
        if all.get(start) != Some(&(*end, *owner)) {
            let (key, value) = fld::row_of_range(*start, *end, *owner);
            im.set_aside(part, table::FLD, &key, &Bytes::from(value))?;
            im.say(part, format!("the sequences from {start:#x} to {end:#x} are not those of MDT{owner:04x}: the row is kept aside"));
        }
    }
    for (start, (end, owner)) in &all {
        if had.get(start) != Some(&(*end, *owner)) {
            let (key, value) = fld::row_of_range(*start, *end, *owner);
            im.put(part, table::FLD, key, value);
            im.say(part, format!("the sequences from {start:#x} to {end:#x} are those of MDT{owner:04x}: it is noted again"));
        }
    }
    Ok(())
}

/// The next sequence to be given must be one that nothing is named with.
fn next(im: &mut Image<'_>, part: usize, mentioned: &BTreeSet<u64>) -> Result<()> {
    let index = im.parts[part].index;
    let kv = im.parts[part].kv;
    let next = fld::word(kv, fld::KEY_SEQ)?;
    let end = fld::word(kv, fld::KEY_SEQ_END)?;
    let own = |(_, (_, owner)): &(&u64, &(u64, u32))| *owner == index;
    let Some((&start, &(last, _))) = im.ranges.iter().rfind(own) else {
        return Ok(());
    };
    let end_now = end.or((index == 0).then_some(fld::FIRST.1));
    let range = next.and_then(|n| fld::find(&im.ranges, n.saturating_sub(1).max(fld::FIRST.0)));
    let sound = match (next, end_now, range) {
        // it has heard of no range
        (None, _, _) => index != 0,
        (Some(next), Some(end), Some((_, range_end, owner))) => {
            let known = owner == index || fld::find(&im.ranges, next).is_some_and(|r| r.2 == index);
            let again = next < end && mentioned.range(next..end).next().is_some();
            known && next <= end && end >= range_end && !again
        }
        _ => false,
    };
    if sound {
        return Ok(());
    }
    let behind = mentioned.range(start..last).next_back();
    let behind = behind.map_or(start, |s| s + 1);
    let fixed =
        (behind.max(next.filter(|n| (start..last).contains(n)).unwrap_or(0)) + MARGIN).min(last);
    im.put(
        part,
        table::META,
        fld::KEY_SEQ,
        fixed.to_le_bytes().to_vec(),
    );
    im.put(
        part,
        table::META,
        fld::KEY_SEQ_END,
        last.to_le_bytes().to_vec(),
    );
    im.say(
        part,
        format!("sequences that are in use would be given again: the next one is {fixed:#x}"),
    );
    Ok(())
}
