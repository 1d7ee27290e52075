//! Names that go on by number: a program that looks at `f1`, `f2`, `f3` is going to look at `f4`, and what that is may be asked for before,
//! together with those behind it.
//!
//! A directory has rows: names that are the same but for their last number. Each is a [`Track`]. Where names are removed by programs of
//! which nothing more is known, nothing is asked for.
//!
//! Lustre: `ll_statahead_by_fname` in `lustre/llite/statahead.c`.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_wire::fid::Fid;
use parking_lot::Mutex;

use super::track::{Asked, Going, Request, Track};

/// Rows remembered; the one that nothing was looked up in for longest goes first.
const ROWS: usize = 64;
/// Most digits of a number, so that it is one.
const DIGITS: usize = 18;

/// Names that are the same but for a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    dir: Fid,
    before: Bytes,
    behind: Bytes,
    /// Digits of each number, with zeros in front; 0: as many as it has.
    width: usize,
}

impl Row {
    /// The row of a name, and its number.
    fn of(dir: Fid, name: &[u8]) -> Option<(Row, u64)> {
        let end = name.iter().rposition(u8::is_ascii_digit)? + 1;
        let rest = name[..end].iter().rposition(|b| !b.is_ascii_digit());
        let start = rest.map_or(0, |at| at + 1);
        let digits = &name[start..end];
        if digits.len() > DIGITS {
            return None;
        }
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let padded = digits.len() > 1 && digits[0] == b'0';
        let row = Row {
            dir,
            before: Bytes::copy_from_slice(&name[..start]),
            behind: Bytes::copy_from_slice(&name[end..]),
            width: if padded { digits.len() } else { 0 },
        };
        Some((row, number))
    }

    fn name(&self, number: u64) -> Bytes {
        let number = format!("{number:0width$}", width = self.width);
        [&self.before[..], number.as_bytes(), &self.behind[..]]
            .concat()
            .into()
    }
}

/// A row, and when a name of it was looked up last.
#[derive(Debug, Default)]
struct Used {
    track: Track,
    last: u64,
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<Row, Used>,
    lookups: u64,
}

impl Table {
    /// The row of a name as it is known here, and its number: "f10" goes on from "f09".
    fn row(&self, dir: Fid, name: &[u8]) -> Option<(Row, u64)> {
        let (row, number) = Row::of(dir, name)?;
        if row.width != 0 {
            return Some((row, number));
        }
        let width = number.checked_ilog10().unwrap_or(0) as usize + 1;
        let padded = Row {
            width,
            ..row.clone()
        };
        let known = self.rows.contains_key(&padded);
        Some((if known { padded } else { row }, number))
    }

    /// The track of a row, which is remembered from here on.
    fn track(&mut self, row: &Row) -> &mut Track {
        if self.rows.len() == ROWS && !self.rows.contains_key(row) {
            let oldest = self.rows.iter().min_by_key(|(_, used)| used.last);
            if let Some(oldest) = oldest.map(|(row, _)| row.clone()) {
                self.rows.remove(&oldest);
            }
        }
        self.lookups += 1;
        let used = self.rows.entry(row.clone()).or_default();
        used.last = self.lookups;
        &mut used.track
    }
}

/// The rows of a mount.
#[derive(Default)]
pub(super) struct Rows(Mutex<Table>);

/// Names to be asked for.
pub(super) struct Names {
    pub names: Vec<Bytes>,
    pub row: Row,
}

impl Rows {
    /// `name` in `dir` was found: what is to be asked for now.
    pub fn found(&self, dir: Fid, name: &[u8]) -> Going<(Request, Names)> {
        let mut table = self.0.lock();
        let Some((row, number)) = table.row(dir, name) else {
            return Going::No;
        };
        let going = table.track(&row).found(number);
        going.map(|request| {
            let names = request.numbers.clone().map(|n| row.name(n)).collect();
            (request, Names { names, row })
        })
    }

    /// A program goes along the row of `name`.
    pub fn goes_on(&self, dir: Fid, name: &[u8]) -> bool {
        let table = self.0.lock();
        let row = table.row(dir, name);
        let used = row.and_then(|(row, number)| Some((table.rows.get(&row)?, number)));
        used.is_some_and(|(used, number)| used.track.goes_on(number))
    }

    /// The track of a row, if it is remembered.
    pub fn with(&self, row: &Row, what: impl FnOnce(&mut Track)) {
        if let Some(used) = self.0.lock().rows.get_mut(row) {
            what(&mut used.track);
        }
    }

    /// `name` in `dir` was removed by a program that is not known to go on with that: who looks at names to remove them, each by a program
    /// of its own, needs none ahead.
    pub fn removed(&self, dir: Fid, name: &[u8]) {
        let mut table = self.0.lock();
        if table.rows.is_empty() {
            return;
        }
        let Some((row, number)) = table.row(dir, name) else {
            return;
        };
        if let Some(used) = table.rows.get_mut(&row) {
            used.track.removed(number);
        }
    }

    /// The request in which `name` was asked for, if it was.
    pub fn asked(&self, dir: Fid, name: &[u8]) -> Option<Asked> {
        let table = self.0.lock();
        if table.rows.is_empty() {
            return None;
        }
        let (row, number) = table.row(dir, name)?;
        table.rows.get(&row)?.track.asked(number)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::track::PLACES;
    use super::*;

    const DIR: Fid = Fid {
        seq: 0x2_0000_0400,
        oid: 1,
        ver: 0,
    };

    fn ahead(going: Going<(Request, Names)>) -> Option<(Request, Names)> {
        match going {
            Going::Ask(ahead) => Some(ahead),
            _ => None,
        }
    }

    fn found(rows: &Rows, name: String) -> Vec<String> {
        let names = ahead(rows.found(DIR, name.as_bytes())).map(|(_, n)| n.names);
        let name = |n: Bytes| String::from_utf8(n.to_vec()).unwrap();
        names.into_iter().flatten().map(name).collect()
    }

    #[test]
    fn names_that_go_on_are_asked_for_once_each() {
        let rows = Rows::default();
        let mut asked = Vec::new();
        for n in 7..500 {
            asked.extend(found(&rows, format!("a1.f{n}.txt")));
        }
        let last = asked.len() + 12;
        let expected: Vec<_> = (12..last).map(|n| format!("a1.f{n}.txt")).collect();
        assert_eq!(asked, expected);
        assert!((500 + 96..=500 + 160).contains(&last), "{last}");
    }

    #[test]
    fn zeros_in_front_are_kept() {
        let rows = Rows::default();
        let mut asked = Vec::new();
        for n in 6..12 {
            asked.extend(found(&rows, format!("f{n:02}")));
        }
        let expected: Vec<_> = (11..19).map(|n| format!("f{n:02}")).collect();
        assert_eq!(asked, expected);
    }

    #[test]
    fn programs_at_several_places_and_such_that_overtake_each_other_go_on() {
        let rows = Rows::default();
        let mut asked = Vec::new();
        for n in 0..100 {
            for at in [0, 5000, 700, 301] {
                asked.extend(found(&rows, format!("f{}", at + (n ^ 3))));
            }
        }
        let once = asked.len();
        asked.sort();
        asked.dedup();
        assert!(asked.len() == once && once >= 4 * 90, "{once}");
        assert!(asked.contains(&"f5099".to_owned()));
    }

    #[test]
    fn what_does_not_go_on_is_no_row() {
        let rows = Rows::default();
        for step in 2..10 {
            for n in (0..40).map(|n| step * n) {
                assert!(found(&rows, format!("by{step}-{n}")).is_empty(), "{n}");
            }
        }
        for n in [1, 2, 104, 208, 309, 403, 700, 701, 205] {
            assert!(found(&rows, format!("f{n}")).is_empty(), "{n}");
        }
        for name in ["x", "", "9999999999999999999999"] {
            assert!(found(&rows, name.to_owned()).is_empty());
        }
        for n in u64::MAX / 20..u64::MAX / 20 + 20 {
            found(&rows, format!("f{n}"));
        }
    }

    #[test]
    fn who_comes_early_is_told_and_a_row_that_finds_nothing_ends() {
        let rows = Rows::default();
        let all = (0..5).filter_map(|n| ahead(rows.found(DIR, format!("f{n}").as_bytes())));
        let (mut request, names) = all.last().unwrap();
        let mut f6 = rows.asked(DIR, b"f6").unwrap();
        assert!(f6.named.changed().now_or_never().is_none());
        assert!(rows.asked(DIR, b"f60").is_none() && rows.asked(DIR, b"other").is_none());
        request.names_are_known();
        assert!(f6.named.changed().now_or_never().unwrap().is_err());
        assert!(f6.sized.changed().now_or_never().is_none());
        request.sizes_are_known();
        assert!(f6.sized.changed().now_or_never().unwrap().is_ok());
        rows.with(&names.row, |track| track.nothing(&request));
        drop(request);
        assert!(f6.sized.changed().now_or_never().unwrap().is_err());
        assert!(matches!(rows.found(DIR, b"f5"), Going::No));
    }

    #[test]
    fn who_removes_what_it_looks_at_needs_nothing_ahead() {
        let rows = Rows::default();
        for n in 0..100 {
            let name = format!("f{n}");
            assert!(found(&rows, name.clone()).is_empty(), "{n}");
            rows.removed(DIR, name.as_bytes());
        }
    }

    #[test]
    fn it_stays_small() {
        let rows = Rows::default();
        for n in 0..10 * ROWS {
            found(&rows, format!("f{n}x{n}"));
            found(&rows, format!("f{}", 1000 * n));
        }
        let table = rows.0.lock();
        let most = table.rows.values().map(|r| r.track.len()).max();
        assert_eq!((table.rows.len(), most), (ROWS, Some(PLACES)));
    }
}
