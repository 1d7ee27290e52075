//! Who goes along numbers one after the other, and what is to be asked for before it is wanted.
//!
//! Programs go along a track, each or several together at one place of it. Where [`HITS`] numbers were found one after the other, or nearly
//! so, further ones are asked for, and twice as many the next time, up to [`MOST`], of which two requests may be on their way. Where nothing
//! more is found that ends. Who wants something that has been asked for waits for the answer.
//!
//! Lustre: `ll_statahead_by_fname` in `lustre/llite/statahead.c`, `LSA_FN_MATCH_HIT_DEF` in `llite_internal.h`.

use std::collections::VecDeque;
use std::ops::Range;

use tokio::sync::watch;

use super::ahead::AHEAD;

/// Numbers found one after the other before others are asked for.
const HITS: u32 = 4;
/// Places at which programs are.
pub(super) const PLACES: usize = 32;
/// So many numbers may be left out, as those of several programs that overtake each other are until they come.
const LEFT_OUT: u64 = 8;
/// Asked for at first.
const FIRST: u64 = 8;
/// Asked for at a time.
const MOST: u64 = AHEAD as u64;

/// Numbers asked for. The channels end when the answers are in.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    numbers: Range<u64>,
    /// Of what they are.
    pub named: watch::Receiver<()>,
    /// Of sizes and data. Something is sent where some are known.
    pub sized: watch::Receiver<()>,
}

impl Asked {
    /// Nothing more comes.
    pub fn is_answered(&self) -> bool {
        self.sized.has_changed().is_err()
    }
}

/// What is to be asked for; dropped when the answers are in.
#[derive(Debug)]
pub(super) struct Request {
    pub numbers: Range<u64>,
    /// Sizes may be asked for too.
    pub sizes: bool,
    named: Option<watch::Sender<()>>,
    sized: watch::Sender<()>,
}

impl Request {
    /// It is known what is there.
    pub fn names_are_known(&mut self) {
        self.named = None;
    }

    /// Some more sizes, or data, are known.
    pub fn sizes_are_known(&self) {
        self.sized.send_replace(());
    }
}

/// Whether a program goes along.
#[derive(Debug)]
pub(super) enum Going<T> {
    /// It does not, as far as is known.
    No,
    /// It does, and enough has been asked for.
    On,
    /// More is to be asked for.
    Ask(T),
}

impl<T> Going<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Going<U> {
        match self {
            Going::No => Going::No,
            Going::On => Going::On,
            Going::Ask(what) => Going::Ask(f(what)),
        }
    }
}

/// A place.
#[derive(Debug, Default)]
struct Place {
    /// The number behind the greatest that was found.
    next: u64,
    hits: u32,
    /// Which of the 64 before that were found, the last in the lowest bit. Those before the first that was found here count as found.
    seen: u64,
    /// Numbers before that which were not found.
    left_out: u64,
    /// The last of those found again that are not the last that was found, and how many of them in a row.
    again: (u64, u32),
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
            seen: u64::MAX,
            ..Place::default()
        }
    }

    /// Whether `number` belongs here.
    fn is_near(&self, number: u64) -> bool {
        let from = self.next.saturating_sub(MOST);
        (from..=self.next.max(self.asked_to) + LEFT_OUT).contains(&number)
    }

    /// Found before, and not the last that was: one that is looked up and opened is found twice.
    fn is_old(&self, number: u64) -> bool {
        match self.next.checked_sub(number) {
            None | Some(0 | 1) => false,
            Some(back) => {
                self.seen.unbounded_shr(back as u32 - 1) & 1 == 1 || back > u64::from(u64::BITS)
            }
        }
    }

    fn found(&mut self, number: u64) {
        if self.is_old(number) {
            let (last, many) = self.again;
            self.again = (number, if number == last + 1 { many + 1 } else { 1 });
            if self.again.1 >= HITS {
                // who began anew goes on from here
                *self = Place {
                    hits: HITS,
                    ..Place::at(number)
                };
            }
            return;
        }
        let Some(gap) = number.checked_sub(self.next) else {
            let bit = 1 << (self.next - 1 - number);
            if self.seen & bit == 0 {
                self.seen |= bit;
                self.left_out = self.left_out.saturating_sub(1);
            }
            return;
        };
        self.hits = self.hits.saturating_add(1);
        self.left_out += gap;
        if gap == 0 && self.hits.is_multiple_of(4) {
            // what is no file is left out of a listing here and there
            self.left_out = self.left_out.saturating_sub(1);
        }
        self.seen = self.seen.unbounded_shl(gap as u32 + 1) | 1;
        self.next = number + 1;
        if self.left_out > LEFT_OUT {
            *self = Place::at(number);
        }
    }

    /// A program goes along here, and leaves nearly nothing out.
    fn goes_on(&self) -> bool {
        self.hits >= HITS && self.left_out <= u64::from(self.hits / 2)
    }

    /// What is to be asked for now.
    fn ahead(&mut self) -> Option<Request> {
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
        Some(Request {
            numbers,
            sizes: !self.no_sizes,
            named: Some(names),
            sized: sizes,
        })
    }
}

/// The places on one track, the one that was used last at the end.
#[derive(Debug, Default)]
pub(super) struct Track(VecDeque<Place>);

impl Track {
    /// A program is at `number`.
    pub fn found(&mut self, number: u64) -> Going<Request> {
        let here = self.0.iter().position(|p| p.is_near(number));
        let mut place = match here.and_then(|at| self.0.remove(at)) {
            Some(mut place) => {
                place.found(number);
                place
            }
            None => Place::at(number),
        };
        let going = match place.is_old(number) {
            true => Going::No,
            false => match (place.ahead(), place.goes_on()) {
                (Some(request), _) => Going::Ask(request),
                (None, true) => Going::On,
                (None, false) => Going::No,
            },
        };
        if self.0.len() == PLACES {
            self.0.pop_front();
        }
        self.0.push_back(place);
        going
    }

    /// A program goes along at `number`.
    pub fn goes_on(&self, number: u64) -> bool {
        let here = self.0.iter().find(|p| p.is_near(number));
        here.is_some_and(|p| p.goes_on() && !p.is_old(number))
    }

    /// The request in which `number` was asked for.
    pub fn asked(&self, number: u64) -> Option<Asked> {
        let mut asked = self.0.iter().flat_map(|p| &p.asked);
        asked.find(|a| a.numbers.contains(&number)).cloned()
    }

    /// Nothing of what was asked for is there, or can be asked for: it ends.
    pub fn nothing(&mut self, request: &Request) {
        self.at(request, |place| place.hits = 0);
    }

    /// Of most of what was asked for the size cannot be told together.
    pub fn no_sizes(&mut self, request: &Request) {
        self.at(request, |place| place.no_sizes = true);
    }

    fn at(&mut self, request: &Request, what: impl FnOnce(&mut Place)) {
        let asked = |p: &&mut Place| p.asked.iter().any(|a| a.numbers == request.numbers);
        if let Some(place) = self.0.iter_mut().find(asked) {
            what(place);
        }
    }

    /// `number` is no more.
    pub fn removed(&mut self, number: u64) {
        if let Some(place) = self.0.iter_mut().find(|p| p.is_near(number)) {
            place.hits = 0;
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_one_is_not_one_after_the_other_also_where_each_is_found_twice() {
        let mut track = Track::default();
        for number in (0..400).step_by(2) {
            assert!(matches!(track.found(number), Going::No), "{number}");
            assert!(matches!(track.found(number), Going::No), "{number}");
        }
    }

    #[test]
    fn who_begins_anew_is_asked_for_again() {
        let mut track = Track::default();
        for _ in 0..3 {
            let asks = |number: &u64| matches!(track.found(*number), Going::Ask(_));
            assert!((0..20).filter(asks).count() > 0);
        }
    }

    #[test]
    fn who_reads_at_random_goes_along_nowhere() {
        let mut track = Track::default();
        let mut number = 7;
        let mut asked = 0;
        for _ in 0..400 {
            number = (number * 29 + 11) % 53;
            asked += usize::from(matches!(track.found(number), Going::Ask(_)));
        }
        assert_eq!(asked, 0);
    }

    #[test]
    fn what_is_no_file_is_left_out_of_a_listing() {
        let mut track = Track::default();
        let mut asked = Vec::new();
        for number in (0..1000).filter(|n| n % 10 != 9) {
            if let Going::Ask(request) = track.found(number) {
                asked.extend(request.numbers);
            }
        }
        let expected: Vec<u64> = (asked[0]..).take(asked.len()).collect();
        assert_eq!(asked, expected, "each once");
        assert!(asked.contains(&999));
    }

    #[test]
    fn what_is_found_twice_goes_on_as_once() {
        let mut track = Track::default();
        let mut asked = Vec::new();
        for number in 20..60 {
            for _ in 0..2 {
                match track.found(number) {
                    Going::Ask(request) => asked.push(request.numbers),
                    going => assert_eq!(number < 24, matches!(going, Going::No), "{number}"),
                }
            }
        }
        assert_eq!(asked[..2], [25..33, 33..49]);
        assert!(track.asked(40).is_some() && track.asked(4000).is_none());
    }
}
