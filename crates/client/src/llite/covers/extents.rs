//! The extent locks that a client holds on one object, and which of them new data may go under. A plain state machine.
//!
//! Invariants:
//! - what is new is not taken away before it was used: who asked for it puts its data under it first ([`ExtentLocks::settle`]), so each
//!   lock is good for one write at least, however many clients want the same bytes;
//! - nothing new goes under a lock that is going, nor where one that is going lies: what is written out, or dropped, of its extent
//!   is what was under it.
//!
//! `L` is the lock itself. Servers let no two write locks overlap, of one client neither; only one that is void may lie under another.

use std::ops::Range;

/// What becomes of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Granted just now; stays until it was used.
    New,
    /// Good for new data.
    Held,
    /// The same for a moment still: it was asked back.
    Asked,
    /// What is under it is being written out or dropped, then it goes.
    Going,
}

#[derive(Debug)]
struct Entry<L> {
    cookie: u64,
    extent: Range<u64>,
    lock: L,
    state: State,
}

/// The locks on one object.
#[derive(Debug)]
pub(super) struct ExtentLocks<L> {
    all: Vec<Entry<L>>,
}

impl<L> Default for ExtentLocks<L> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

fn touch(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl<L> ExtentLocks<L> {
    /// A lock was granted.
    pub fn add(&mut self, cookie: u64, extent: Range<u64>, lock: L) {
        debug_assert!(
            self.all.iter().all(|e| e.cookie != cookie),
            "a lock is held once"
        );
        self.all.push(Entry {
            cookie,
            extent,
            lock,
            state: State::New,
        });
    }

    /// No lock is there.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A lock that is going lies in `range`.
    pub fn is_left(&self, range: &Range<u64>) -> bool {
        self.all
            .iter()
            .any(|e| e.state == State::Going && touch(&e.extent, range))
    }

    /// The parts of `range` that new data may not go to.
    pub fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let good = |e: &&Entry<L>| e.state != State::Going && touch(&e.extent, range);
        let mut held: Vec<_> = self
            .all
            .iter()
            .filter(good)
            .map(|e| e.extent.clone())
            .collect();
        held.sort_unstable_by_key(|e| e.start);
        let (mut at, mut out) = (range.start, Vec::new());
        for e in held {
            if at < e.start {
                out.push(at..e.start);
            }
            at = at.max(e.end);
        }
        if at < range.end {
            out.push(at..range.end);
        }
        out
    }

    /// New data may go to all of `range`.
    pub fn cover(&self, range: &Range<u64>) -> bool {
        // nearly always one lock has it all
        let one = self.all.iter().any(|e| {
            e.state != State::Going && e.extent.start <= range.start && range.end <= e.extent.end
        });
        (one || self.missing(range).is_empty()) && !self.is_left(range)
    }

    /// Those that were new were used.
    pub fn settle(&mut self) {
        for e in &mut self.all {
            if e.state == State::New {
                e.state = State::Held;
            }
        }
    }

    /// This lock is asked back. True: it was used and is to go, and nobody was told so before.
    pub fn asked(&mut self, cookie: u64) -> bool {
        let held = |e: &&mut Entry<L>| e.cookie == cookie && e.state == State::Held;
        let found = self.all.iter_mut().find(held);
        found.map(|e| e.state = State::Asked).is_some()
    }

    /// Nothing new goes under this lock any more: its extent.
    pub fn going(&mut self, cookie: u64) -> Option<Range<u64>> {
        let e = self.all.iter_mut().find(|e| e.cookie == cookie)?;
        e.state = State::Going;
        Some(e.extent.clone())
    }

    /// Takes a lock out.
    pub fn remove(&mut self, cookie: u64) -> Option<L> {
        let at = self.all.iter().position(|e| e.cookie == cookie)?;
        Some(self.all.swap_remove(at).lock)
    }

    /// Takes all out.
    pub fn take(&mut self) -> Vec<L> {
        std::mem::take(&mut self.all)
            .into_iter()
            .map(|e| e.lock)
            .collect()
    }

    /// The locks that lie in `range`, with cookie and extent.
    pub fn within<'a>(
        &'a self,
        range: &'a Range<u64>,
    ) -> impl Iterator<Item = (u64, &'a Range<u64>, &'a L)> {
        self.all
            .iter()
            .filter(|e| touch(&e.extent, range))
            .map(|e| (e.cookie, &e.extent, &e.lock))
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::*;

    fn held(extents: &[Range<u64>]) -> ExtentLocks<()> {
        let mut all = ExtentLocks::default();
        for (i, e) in extents.iter().enumerate() {
            all.add(i as u64 + 1, e.clone(), ());
        }
        all
    }

    #[test]
    fn neighbours_cover_together_and_gaps_are_told() {
        let l = held(&[10..20, 30..40, 20..25]);
        assert!(l.cover(&(10..25)) && l.cover(&(12..13)) && l.cover(&(31..40)));
        assert!(!l.cover(&(24..31)));
        assert_eq!(l.missing(&(5..50)), [5..10, 25..30, 40..50]);
        assert_eq!(l.missing(&(21..35)), [25..30]);
        assert_eq!(held(&[]).missing(&(1..2)), [1..2]);
    }

    #[test]
    fn every_state_answers_every_event() {
        // new data, the lock asked back, asked back once more
        let answers = |make: &dyn Fn(&mut ExtentLocks<()>)| {
            let mut l = held(&[0..10]);
            make(&mut l);
            (l.cover(&(0..10)), l.asked(1), l.asked(1))
        };
        assert_eq!(answers(&|_| ()), (true, false, false), "new");
        assert_eq!(answers(&|l| l.settle()), (true, true, false), "held");
        let asked = |l: &mut ExtentLocks<()>| {
            l.settle();
            assert!(l.asked(1));
        };
        assert_eq!(answers(&asked), (true, false, false), "asked back");
        let going = |l: &mut ExtentLocks<()>| {
            asked(l);
            assert_eq!(l.going(1), Some(0..10));
        };
        assert_eq!(answers(&going), (false, false, false), "going");
        let gone = |l: &mut ExtentLocks<()>| {
            going(l);
            assert!(l.remove(1).is_some() && l.is_empty());
        };
        assert_eq!(answers(&gone), (false, false, false), "gone");
    }

    #[test]
    fn nothing_goes_where_a_void_lock_still_is() {
        let mut l = held(&[0..10]);
        l.settle();
        assert!(l.asked(1) && l.going(1).is_some());
        l.add(2, 5..20, ());
        assert!(l.missing(&(5..15)).is_empty() && !l.cover(&(5..15)) && l.is_left(&(5..15)));
        assert!(l.cover(&(10..20)));
        l.remove(1);
        assert!(l.cover(&(5..15)));
        assert_eq!(l.within(&(0..5)).count(), 0);
    }
}
