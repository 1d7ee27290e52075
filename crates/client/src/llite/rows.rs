//! Names that go on by number: a program that looks at `f1`, `f2`, `f3` is going to look at `f4`, and what that is may be asked for before,
//! together with those behind it.
//!
//! A directory has rows: names that are the same but for their last number. Programs go along a row, each or several together at one place of
//! it. Where [`HITS`] names were found one after the other, or nearly so, further ones are asked for, and twice as many the next time, up
//! to [`MOST`], of which two requests may be on their way. Where nothing more is found, or names are removed, that ends. Who looks a name up that has been asked for waits for the
//! answer.
//!
//! Lustre: `ll_statahead_by_fname` in `lustre/llite/statahead.c`, `LSA_FN_MATCH_HIT_DEF` in `llite_internal.h`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::ahead::AHEAD;
use super::orders::Order;

/// Rows remembered; the one that nothing was looked up in for longest goes first.
const ROWS: usize = 64;
/// Names found one after the other before others are asked for.
const HITS: u32 = 4;
/// Places in a row at which programs are.
const PLACES: usize = 32;
/// So many names may be left out, as those of several programs that overtake each other are until they come.
const LEFT_OUT: u64 = 8;
/// Asked for at first.
const FIRST: u64 = 8;
/// Asked for at a time.
const MOST: u64 = AHEAD as u64;
/// Most digits of a number, so that it is one.
const DIGITS: usize = 18;

/// What programs go along.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Numbers(Numbers),
    /// The places of a listing of this directory.
    Listing(Fid, Order),
}

/// Names that are the same but for a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    dir: Fid,
    before: Bytes,
    behind: Bytes,
    /// Digits of each number, with zeros in front; 0: as many as it has.
    width: usize,
}

impl Numbers {
    /// The row of a name, and its number.
    fn of(dir: Fid, name: &[u8]) -> Option<(Numbers, u64)> {
        let end = name.iter().rposition(u8::is_ascii_digit)? + 1;
        let rest = name[..end].iter().rposition(|b| !b.is_ascii_digit());
        let start = rest.map_or(0, |at| at + 1);
        let digits = &name[start..end];
        if digits.len() > DIGITS {
            return None;
        }
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let padded = digits.len() > 1 && digits[0] == b'0';
        let row = Numbers {
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

/// Names asked for. The channels end when the answers are in.
#[derive(Clone, Debug)]
struct Asked {
    numbers: Range<u64>,
    named: watch::Receiver<()>,
    /// Something is sent where some of the sizes are known.
    sized: watch::Receiver<()>,
}

/// A place in a row.
#[derive(Debug, Default)]
struct Place {
    /// The number behind the greatest that was found.
    next: u64,
    hits: u32,
    /// Names before that which were not looked up.
    left_out: u64,
    /// Up to here they have been asked for.
    asked_to: u64,
    /// How many the next time.
    many: u64,
    /// Sizes are not asked for: others write these files.
    no_sizes: bool,
    /// Answers that may not be in.
    asked: VecDeque<Asked>,
}

impl Place {
    fn at(number: u64) -> Place {
        Place {
            next: number + 1,
            ..Place::default()
        }
    }

    /// Whether `number` belongs here.
    fn is_near(&self, number: u64) -> bool {
        let from = self.next.saturating_sub(MOST);
        (from..=self.next.max(self.asked_to) + LEFT_OUT).contains(&number)
    }

    fn found(&mut self, number: u64) {
        if number < self.next {
            self.left_out = self.left_out.saturating_sub(1);
            return;
        }
        self.left_out += number - self.next;
        self.next = number + 1;
        self.hits = self.hits.saturating_add(1);
        if self.left_out > LEFT_OUT {
            *self = Place::at(number);
        }
    }

    /// A program goes along here, and leaves nearly nothing out.
    fn goes_on(&self) -> bool {
        self.hits >= HITS && self.left_out <= u64::from(self.hits / 2)
    }

    /// What is to be asked for now.
    fn ahead(&mut self) -> Option<(Range<u64>, [watch::Sender<()>; 2])> {
        let left = self.asked_to.saturating_sub(self.next);
        // at full speed one request is on its way while the answers to another are used
        let enough = match self.many < MOST {
            true => self.many / 2,
            false => MOST + MOST / 2,
        };
        if !self.goes_on() || left > enough {
            return None;
        }
        self.many = (self.many * 2).clamp(FIRST, MOST);
        let from = self.asked_to.max(self.next);
        let numbers = from..from.checked_add(self.many)?;
        self.asked_to = numbers.end;
        let done = self.next.saturating_sub(MOST);
        while self.asked.front().is_some_and(|a| a.numbers.end <= done) {
            self.asked.pop_front();
        }
        let (names, named) = watch::channel(());
        let (sizes, sized) = watch::channel(());
        self.asked.push_back(Asked {
            numbers: numbers.clone(),
            named,
            sized,
        });
        Some((numbers, [names, sizes]))
    }
}

/// The places of a row, the one that was used last at the end.
#[derive(Debug, Default)]
struct Places {
    places: VecDeque<Place>,
    /// When a name of it was looked up last.
    last: u64,
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<Row, Places>,
    lookups: u64,
}

impl Table {
    /// The row of a name as it is known here, and its number: "f10" goes on from "f09".
    fn row(&self, dir: Fid, name: &[u8]) -> Option<(Row, u64)> {
        let (row, number) = Numbers::of(dir, name)?;
        let width = number.checked_ilog10().unwrap_or(0) as usize + 1;
        let padded = Numbers {
            width,
            ..row.clone()
        };
        let padded = Row::Numbers(padded);
        let row = match row.width == 0 && self.rows.contains_key(&padded) {
            true => padded,
            false => Row::Numbers(row),
        };
        Some((row, number))
    }

    /// The places of a row, which is remembered from here on.
    fn places(&mut self, row: &Row) -> &mut VecDeque<Place> {
        if self.rows.len() == ROWS && !self.rows.contains_key(row) {
            let oldest = self.rows.iter().min_by_key(|(_, p)| p.last);
            if let Some(oldest) = oldest.map(|(row, _)| row.clone()) {
                self.rows.remove(&oldest);
            }
        }
        self.lookups += 1;
        let places = self.rows.entry(row.clone()).or_default();
        places.last = self.lookups;
        &mut places.places
    }

    /// A program is at `number`.
    fn found(&mut self, row: Row, number: u64) -> Going {
        let places = self.places(&row);
        let here = places.iter().position(|p| p.is_near(number));
        let mut place = match here.and_then(|at| places.remove(at)) {
            Some(mut place) => {
                place.found(number);
                place
            }
            None => Place::at(number),
        };
        let (ahead, sizes, goes_on) = (place.ahead(), !place.no_sizes, place.goes_on());
        if places.len() == PLACES {
            places.pop_front();
        }
        places.push_back(place);
        let Some((numbers, [named, sized])) = ahead else {
            return if goes_on { Going::On } else { Going::No };
        };
        let next = match &row {
            Row::Numbers(row) => Next::Names(numbers.clone().map(|n| row.name(n)).collect()),
            Row::Listing(_, order) => Next::Places(*order, numbers.clone()),
        };
        Going::Ask(Ahead {
            next,
            sizes,
            row,
            numbers,
            named: Some(named),
            sized,
        })
    }

    fn asked(&self, row: &Row, number: u64) -> Option<Asked> {
        let mut asked = self.rows.get(row)?.places.iter().flat_map(|p| &p.asked);
        asked.find(|a| a.numbers.contains(&number)).cloned()
    }
}

/// The rows of a mount.
#[derive(Default)]
pub(super) struct Rows(Mutex<Table>);

/// What the next are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Names(Vec<Bytes>),
    /// What has these places in an order of the listing.
    Places(Order, Range<u64>),
}

/// What is to be asked for; dropped when the answers are in.
pub(super) struct Ahead {
    pub next: Next,
    /// Sizes may be asked for too.
    pub sizes: bool,
    row: Row,
    numbers: Range<u64>,
    named: Option<watch::Sender<()>>,
    sized: watch::Sender<()>,
}

/// Whether a program goes along a row.
pub(super) enum Going {
    /// It does not, as far as is known.
    No,
    /// It does, and enough has been asked for.
    On,
    /// The next are to be asked for.
    Ask(Ahead),
}

impl Ahead {
    /// It is known what the names are.
    pub fn names_are_known(&mut self) {
        self.named = None;
    }

    /// Some more sizes are known.
    pub fn sizes_are_known(&self) {
        self.sized.send_replace(());
    }
}

impl Rows {
    /// `name` in `dir` was found.
    pub fn found(&self, dir: Fid, name: &[u8]) -> Going {
        let mut table = self.0.lock();
        match table.row(dir, name) {
            Some((row, number)) => table.found(row, number),
            None => Going::No,
        }
    }

    /// What has this place in an order of the listing of `dir` was opened.
    pub fn opened(&self, dir: Fid, order: Order, place: u64) -> Going {
        let mut table = self.0.lock();
        table.found(Row::Listing(dir, order), place)
    }

    /// Nothing of what was asked for is there, or can be asked for: it ends.
    pub fn nothing(&self, ahead: &Ahead) {
        self.at(ahead, |place| place.hits = 0);
    }

    /// Of most of what was asked for the size cannot be told together.
    pub fn no_sizes(&self, ahead: &Ahead) {
        self.at(ahead, |place| place.no_sizes = true);
    }

    fn at(&self, ahead: &Ahead, what: impl FnOnce(&mut Place)) {
        let mut table = self.0.lock();
        let places = table.rows.get_mut(&ahead.row).into_iter();
        let mut places = places.flat_map(|p| &mut p.places);
        if let Some(place) = places.find(|p| p.asked_to == ahead.numbers.end) {
            what(place);
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
        let places = table.rows.get_mut(&row).into_iter();
        let mut places = places.flat_map(|p| &mut p.places);
        if let Some(place) = places.find(|p| p.is_near(number)) {
            place.hits = 0;
        }
    }

    /// Ends when it is known what `name` is; `None`: it has not been asked for.
    pub fn named(&self, dir: Fid, name: &[u8]) -> Option<watch::Receiver<()>> {
        self.asked(dir, name).map(|a| a.named)
    }

    /// Something is sent when some sizes are known, and it ends when the file's is or cannot be told so.
    pub fn sized(&self, dir: Fid, name: &[u8]) -> Option<watch::Receiver<()>> {
        self.asked(dir, name).map(|a| a.sized)
    }

    /// As [`Rows::named`], of what has a place in an order of the listing of `dir`.
    pub fn named_in(&self, dir: Fid, order: Order, place: u64) -> Option<watch::Receiver<()>> {
        let asked = self.0.lock().asked(&Row::Listing(dir, order), place);
        asked.map(|a| a.named)
    }

    /// As [`Rows::sized`], of the same.
    pub fn sized_in(&self, dir: Fid, order: Order, place: u64) -> Option<watch::Receiver<()>> {
        let asked = self.0.lock().asked(&Row::Listing(dir, order), place);
        asked.map(|a| a.sized)
    }

    fn asked(&self, dir: Fid, name: &[u8]) -> Option<Asked> {
        let table = self.0.lock();
        if table.rows.is_empty() {
            return None;
        }
        let (row, number) = table.row(dir, name)?;
        table.asked(&row, number)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const DIR: Fid = Fid {
        seq: 0x2_0000_0400,
        oid: 1,
        ver: 0,
    };

    fn ahead(going: Going) -> Option<Ahead> {
        match going {
            Going::Ask(ahead) => Some(ahead),
            _ => None,
        }
    }

    fn found(rows: &Rows, name: String) -> Vec<String> {
        match ahead(rows.found(DIR, name.as_bytes())).map(|a| a.next) {
            Some(Next::Names(names)) => {
                let name = |n: Bytes| String::from_utf8(n.to_vec()).unwrap();
                names.into_iter().map(name).collect()
            }
            _ => Vec::new(),
        }
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
        let mut ahead = all.last().unwrap();
        let mut named = rows.named(DIR, b"f6").unwrap();
        let mut sized = rows.sized(DIR, b"f6").unwrap();
        assert!(named.changed().now_or_never().is_none());
        assert!(rows.named(DIR, b"f60").is_none() && rows.named(DIR, b"other").is_none());
        ahead.names_are_known();
        assert!(named.changed().now_or_never().unwrap().is_err());
        assert!(sized.changed().now_or_never().is_none());
        ahead.sizes_are_known();
        assert!(sized.changed().now_or_never().unwrap().is_ok());
        rows.nothing(&ahead);
        drop(ahead);
        assert!(sized.changed().now_or_never().unwrap().is_err());
        assert!(matches!(rows.found(DIR, b"f5"), Going::No));
    }

    #[test]
    fn an_order_of_a_listing_is_a_row_of_its_own() {
        let rows = Rows::default();
        let mut asked = Vec::new();
        for place in 20..60 {
            assert!(matches!(
                rows.opened(DIR, Order::ByName, 7 * place),
                Going::No
            ));
            let listed = rows.opened(DIR, Order::Listed, place);
            assert_eq!(place < 24, matches!(listed, Going::No), "{place}");
            if let Going::Ask(Ahead { next, .. }) = listed {
                asked.push(next);
            }
        }
        let first = |order, places| Next::Places(order, places);
        assert_eq!(
            asked[..2],
            [first(Order::Listed, 25..33), first(Order::Listed, 33..49)]
        );
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
        let most = table.rows.values().map(|p| p.places.len()).max();
        assert_eq!((table.rows.len(), most), (ROWS, Some(PLACES)));
    }
}
