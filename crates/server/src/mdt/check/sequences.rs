//! What MDTs know of sequences of FIDs ([`crate::mdt::fld`]).

use std::collections::BTreeMap;

use coral_osd::OsdError;
use coral_wire::fid::Fid;

use super::report::{Problem, Report};
use super::{Part, Seen, each};
use crate::mdt::{fld, table};

/// What MDTs hold must be what MDT0000 says, if that is here.
pub(super) fn check(parts: &[Part<'_>], report: &mut Report) -> Result<(), OsdError> {
    let Some(first) = parts.iter().find(|p| p.fld.index() == 0) else {
        report.missing.insert(0);
        return Ok(());
    };
    for p in parts {
        each(p.kv, table::FLD, |k, v| {
            if fld::range_of_row(k, v).is_none() {
                let (table, what) = (table::FLD.0, "range does not parse".to_string());
                report.problems.push(Problem::BadRow { table, what });
            }
        })?;
    }
    let all = fld::stored(first.kv)?;
    let given = |mdt: u32| parts.iter().any(|p| p.fld.index() == mdt);
    let others = all.values().map(|range| range.1);
    report.missing.extend(others.filter(|mdt| !given(*mdt)));
    for p in parts.iter().filter(|p| p.fld.index() != 0) {
        for (start, range) in fld::stored(p.kv)? {
            if all.get(&start) != Some(&range) || range.1 != p.fld.index() {
                let mdt = p.fld.index();
                report.problems.push(Problem::Sequence { mdt, start });
            }
        }
    }
    Ok(())
}

/// Sequences that are yet to be given are not in use.
pub(super) fn check_next(
    parts: &[Part<'_>],
    seen: &BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    for p in parts {
        let mdt = p.fld.index();
        let next = fld::word(p.kv, fld::KEY_SEQ)?;
        let first_end = (mdt == 0).then_some(fld::FIRST.1);
        let end = fld::word(p.kv, fld::KEY_SEQ_END)?.or(first_end);
        let (Some(next), Some(end)) = (next, end) else {
            continue;
        };
        let from = Fid::new(next, 0);
        if seen
            .range(from..)
            .next()
            .is_some_and(|(fid, _)| fid.seq < end)
        {
            report.problems.push(Problem::NextSequence { mdt, next });
        }
    }
    Ok(())
}
