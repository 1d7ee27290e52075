//! The extent locks that a client holds on one object, and which of them new data may go under. A plain state machine; time is an
//! argument.
//!
//! Invariants:
//! - what is new is not taken away before it was used: who asked for it puts its data under it first ([`ExtentLocks::settle`]), so each
//!   lock is good for one write at least, however many clients want the same bytes;
//! - nothing new goes under a lock that is going or void, nor to any byte of its extent: what is written out, or dropped, of its
//!   extent is what was under it.
//!
//! `L` is the lock itself. Servers let no two write locks overlap, of one client neither; only one that is void may lie under another.

use std::ops::Range;

use coral_wire::coral::blocks::Span;
use tokio::time::Instant;

/// Locks on one object. Who would need more of it writes to the OST at once. Lustre has no such limit.
pub(in crate::llite) const MAX_LOCKS: usize = 256;

/// Blocks that are looked at to see what is locked of a range: those behind are taken for missing.
const BLOCKS_MAX: usize = 4096;

/// What is asked of a lock here.
pub(super) trait Backing {
    /// The server knows nothing of it any more: what is under it is lost.
    fn is_void(&self) -> bool;
}

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
    extent: Span,
    lock: L,
    state: State,
    /// Writes taken under it, and when the last was.
    puts: (u64, Option<Instant>),
    /// One of our own was asked for that lies over it.
    replaced: bool,
}

impl<L: Backing> Entry<L> {
    /// Nothing new goes to its extent.
    fn is_left(&self) -> bool {
        self.state == State::Going || self.lock.is_void()
    }
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

/// The bytes of a range; `None`: it has none.
fn bytes(range: &Range<u64>) -> Option<Span> {
    (!range.is_empty()).then(|| Span::all(range.start, range.end - 1))
}

fn touch(extent: &Span, range: &Range<u64>) -> bool {
    bytes(range).is_some_and(|range| extent.touches(&range))
}

/// The parts of `range` that are in `extent`, in order.
fn parts<'a>(extent: &'a Span, range: &'a Range<u64>) -> impl Iterator<Item = Range<u64>> + 'a {
    let mut at = range.start;
    let part = move || {
        let start = extent.next(at).filter(|start| *start < range.end)?;
        let end = extent.last_from(start).saturating_add(1).min(range.end);
        at = end;
        Some(start..end)
    };
    std::iter::from_fn(part)
}

impl<L: Backing> ExtentLocks<L> {
    /// A lock was granted.
    pub fn add(&mut self, cookie: u64, extent: Span, lock: L) {
        debug_assert!(!self.has(cookie), "a lock is held once");
        self.all.push(Entry {
            cookie,
            extent,
            lock,
            state: State::New,
            puts: (0, None),
            replaced: false,
        });
    }

    /// This lock is one of them.
    pub fn has(&self, cookie: u64) -> bool {
        self.all.iter().any(|e| e.cookie == cookie)
    }

    /// So many are held as may be.
    pub fn is_full(&self) -> bool {
        self.all.len() >= MAX_LOCKS
    }

    /// No lock is there.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A lock that is going or void lies in `range`.
    pub fn is_left(&self, range: &Range<u64>) -> bool {
        bytes(range).is_some_and(|span| self.is_left_of(&span))
    }

    /// The same of what another lock is on.
    pub fn is_left_of(&self, extent: &Span) -> bool {
        let mut there = self.all.iter().filter(|e| e.extent.touches(extent));
        there.any(Entry::is_left)
    }

    /// The parts of `range` that no lock is good for.
    #[cfg(test)]
    fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.without(range, |e| !e.is_left())
    }

    /// The parts of `range` that are under no lock that is `good`.
    fn without(&self, range: &Range<u64>, good: impl Fn(&Entry<L>) -> bool) -> Vec<Range<u64>> {
        let mut held: Vec<_> = self
            .all
            .iter()
            .filter(|e| touch(&e.extent, range) && good(e))
            .flat_map(|e| parts(&e.extent, range).take(BLOCKS_MAX))
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

    /// From the first to the last byte of `range` that no lock is good for: one lock is asked for all of it. Who asked for each part by
    /// itself would keep the first from others while it waits for the next, perhaps behind one who waits for the first. One that
    /// was asked back is not good: it would be gone when the rest comes.
    pub fn gap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let missing = self.without(range, |e| !e.is_left() && e.state != State::Asked);
        Some(missing.first()?.start..missing.last()?.end)
    }

    /// New data may go to all of `range`.
    pub fn cover(&self, range: &Range<u64>) -> bool {
        let Some(all) = bytes(range) else { return true };
        let mut one = false;
        for e in self.all.iter().filter(|e| e.extent.touches(&all)) {
            if e.is_left() {
                return false;
            }
            one |= e.extent.has(all.start, all.end);
        }
        // nearly always one lock has it all, or none its beginning
        one || self.cover_together(&all)
    }

    fn cover_together(&self, all: &Span) -> bool {
        let mut at = all.start;
        for _ in 0..BLOCKS_MAX {
            let there = self.all.iter().filter(|e| e.extent.has(at, at));
            let Some(last) = there.map(|e| e.extent.last_from(at)).max() else {
                return false;
            };
            if last >= all.end {
                return true;
            }
            at = last + 1;
        }
        false
    }

    /// A lock on blocks, of which one begins at `at`.
    pub fn has_block_at(&self, at: u64) -> bool {
        let begins = |e: &Entry<L>| {
            let before = at.checked_sub(1).is_some_and(|at| e.extent.has(at, at));
            e.extent.blocks.is_some() && e.extent.has(at, at) && !before
        };
        let good = |e: &&Entry<L>| !e.is_left() && e.state != State::Asked;
        self.all.iter().filter(good).any(begins)
    }

    /// A write was taken in `range`.
    pub fn put(&mut self, range: &Range<u64>, now: Instant) {
        for e in self.all.iter_mut().filter(|e| touch(&e.extent, range)) {
            e.puts = (e.puts.0 + 1, Some(now));
        }
    }

    /// Writes taken under this lock, and when the last was.
    pub fn puts(&self, cookie: u64) -> Option<(u64, Option<Instant>)> {
        let e = self.all.iter().find(|e| e.cookie == cookie)?;
        Some(e.puts)
    }

    /// Those that were new were used.
    pub fn settle(&mut self) {
        for e in &mut self.all {
            if e.state == State::New {
                e.state = State::Held;
            }
        }
    }

    /// This lock is asked back, or void. True: it is to go, and nobody was told so before. One that is void goes at once, one that is new
    /// once it was used.
    pub fn asked(&mut self, cookie: u64) -> bool {
        let Some(e) = self.all.iter_mut().find(|e| e.cookie == cookie) else {
            return false;
        };
        let before = e.state;
        e.state = match (before, e.lock.is_void()) {
            (_, true) => State::Going,
            (State::Held, false) => State::Asked,
            (state, false) => state,
        };
        e.state != before && matches!(before, State::New | State::Held)
    }

    /// A lock is going to be asked for on `range`: those that it lies over will be asked back for it, by nobody else.
    pub fn replace(&mut self, range: &Range<u64>) {
        for e in self.all.iter_mut().filter(|e| touch(&e.extent, range)) {
            e.replaced |= matches!(e.state, State::New | State::Held);
        }
    }

    /// This lock goes for one of our own.
    pub fn is_replaced(&self, cookie: u64) -> bool {
        self.all.iter().any(|e| e.cookie == cookie && e.replaced)
    }

    /// Nothing new goes under this lock any more: its extent.
    pub fn going(&mut self, cookie: u64) -> Option<Span> {
        let e = self.all.iter_mut().find(|e| e.cookie == cookie)?;
        e.state = State::Going;
        Some(e.extent)
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
    ) -> impl Iterator<Item = (u64, &'a Span, &'a L)> {
        self.all
            .iter()
            .filter(|e| touch(&e.extent, range))
            .map(|e| (e.cookie, &e.extent, &e.lock))
    }

    /// `range`, cut where locks begin and end: what of it is under locks that are good or going (true), and what is under void ones or
    /// none.
    pub fn by_life(&self, range: &Range<u64>) -> Vec<(Range<u64>, bool)> {
        let there = self.all.iter().filter(|e| touch(&e.extent, range));
        let there: Vec<_> = there.map(|e| (&e.extent, !e.lock.is_void())).collect();
        let held = there.iter().flat_map(|(e, _)| parts(e, range));
        let ends = held.flat_map(|part| [part.start, part.end]);
        let mut cuts: Vec<u64> = ends.chain([range.start, range.end]).collect();
        cuts.retain(|at| (range.start..=range.end).contains(at));
        cuts.sort_unstable();
        cuts.dedup();
        let mut out: Vec<(Range<u64>, bool)> = Vec::new();
        for part in cuts.windows(2).map(|c| c[0]..c[1]) {
            let mut over = there.iter().filter(|(e, _)| touch(e, &part)).peekable();
            let lives = over.peek().is_some() && over.all(|(_, lives)| *lives);
            match out.last_mut().filter(|(_, before)| *before == lives) {
                Some((last, _)) => last.end = part.end,
                None => out.push((part, lives)),
            }
        }
        out
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::*;
    use coral_wire::coral::blocks::Blocks;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A lock that may be made void.
    #[derive(Default, Clone)]
    struct Lock(Rc<Cell<bool>>);

    impl Backing for Lock {
        fn is_void(&self) -> bool {
            self.0.get()
        }
    }

    type Held = ExtentLocks<Lock>;

    fn span(range: &Range<u64>) -> Span {
        bytes(range).expect("some bytes")
    }

    fn held(extents: &[Range<u64>]) -> Held {
        let mut all = ExtentLocks::default();
        for (i, e) in extents.iter().enumerate() {
            all.add(i as u64 + 1, span(e), Lock::default());
        }
        all
    }

    fn kill(all: &Held, cookie: u64) {
        let e = all.all.iter().find(|e| e.cookie == cookie);
        e.expect("a lock").lock.0.set(true);
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
    fn one_lock_is_asked_for_all_gaps() {
        let l = held(&[10..50]);
        assert_eq!(l.missing(&(0..60)), [0..10, 50..60]);
        assert_eq!(l.gap(&(0..60)), Some(0..60));
        assert_eq!(l.gap(&(5..40)), Some(5..10));
        assert_eq!(l.gap(&(20..40)), None);
    }

    #[test]
    fn what_was_asked_back_is_asked_for_again_with_the_rest() {
        let mut l = held(&[0..10, 20..30]);
        l.settle();
        assert_eq!(l.gap(&(0..30)), Some(10..20));
        assert!(l.asked(1) && l.cover(&(0..10)));
        assert_eq!(l.gap(&(0..30)), Some(0..20));
        assert_eq!(l.gap(&(5..10)), Some(5..10));
    }

    #[test]
    fn locks_that_go_for_one_of_our_own_are_told_from_those_that_others_want() {
        let mut l = held(&[0..10, 10..20, 20..30]);
        l.settle();
        assert!(l.asked(1));
        l.replace(&(0..15));
        assert_eq!([1, 2, 3].map(|c| l.is_replaced(c)), [false, true, false]);
    }

    #[test]
    fn every_state_answers_every_event() {
        // new data, the lock asked back, asked back once more; then the same of one that has become void
        let answers = |make: &dyn Fn(&mut Held)| {
            let of = |void: bool| {
                let mut l = held(&[0..10]);
                make(&mut l);
                if void && l.has(1) {
                    kill(&l, 1);
                }
                (l.cover(&(0..10)), l.asked(1), l.asked(1))
            };
            (of(false), of(true))
        };
        let told = (false, true, false);
        let never = (false, false, false);
        let new = ((true, false, false), told);
        assert_eq!(answers(&|_| ()), new, "new");
        let in_use = ((true, true, false), told);
        assert_eq!(answers(&|l| l.settle()), in_use, "held");
        let asked = |l: &mut Held| {
            l.settle();
            assert!(l.asked(1));
        };
        let once = ((true, false, false), never);
        assert_eq!(answers(&asked), once, "asked back");
        let going = |l: &mut Held| {
            asked(l);
            assert_eq!(l.going(1), Some(span(&(0..10))));
        };
        assert_eq!(answers(&going), (never, never), "going");
        let gone = |l: &mut Held| {
            going(l);
            assert!(l.remove(1).is_some() && l.is_empty());
        };
        assert_eq!(answers(&gone), (never, never), "gone");
    }

    #[test]
    fn void_locks_are_missing_and_stand_in_the_way() {
        for asked in [false, true] {
            let mut l = held(&[0..10, 20..30]);
            l.settle();
            assert!(!asked || l.asked(1));
            kill(&l, 1);
            assert_eq!(l.missing(&(0..30)), [0..20]);
            assert!(l.is_left(&(9..12)) && !l.is_left(&(10..30)));
            // one on the same bytes, granted since
            l.add(3, span(&(5..20)), Lock::default());
            assert!(l.missing(&(5..30)).is_empty() && !l.cover(&(5..30)) && l.cover(&(10..30)));
            let parts = [(0..10, false), (10..30, true), (30..40, false)];
            assert_eq!(l.by_life(&(0..40)), parts);
            l.remove(1);
            assert!(l.cover(&(5..30)));
            assert_eq!(l.by_life(&(6..25)), [(6..25, true)]);
        }
    }

    #[test]
    fn writes_count_for_the_locks_they_are_under() {
        let (mut l, now) = (held(&[0..10, 10..20, 30..40]), Instant::now());
        l.put(&(5..15), now);
        l.put(&(12..13), now);
        let puts = |cookie| l.puts(cookie).map(|(n, _)| n);
        assert_eq!([1, 2, 3, 4].map(puts), [Some(1), Some(2), Some(0), None]);
    }

    #[test]
    fn nothing_goes_where_a_void_lock_still_is() {
        let mut l = held(&[0..10]);
        l.settle();
        assert!(l.asked(1) && l.going(1).is_some());
        l.add(2, span(&(5..20)), Lock::default());
        assert!(l.missing(&(5..15)).is_empty() && !l.cover(&(5..15)) && l.is_left(&(5..15)));
        assert!(l.cover(&(10..20)));
        l.remove(1);
        assert!(l.cover(&(5..15)));
        assert_eq!(l.within(&(0..5)).count(), 0);
    }

    const PAGE: u64 = coral_wire::coral::blocks::PAGE_BYTES;

    /// An extent of some pages, or blocks of pages in it; whether its lock is void, and whether it is going.
    fn lock() -> impl Strategy<Value = (Span, bool, bool)> {
        let blocks = prop::option::of((1u64..4, 1u64..4));
        let rare = || prop::bool::weighted(0.2);
        (0u64..20, 1u64..30, blocks, rare(), rare()).prop_map(
            |(start, len, blocks, void, going)| {
                let blocks =
                    blocks.and_then(|(len, gap)| Blocks::new(len * PAGE, (len + gap) * PAGE));
                let (start, end) = (start * PAGE, (start + len) * PAGE - 1);
                (Span { start, end, blocks }, void, going)
            },
        )
    }

    proptest! {
        /// What is said of a range is what a list of its pages says.
        #[test]
        fn blocks_are_told_page_by_page(locks in prop::collection::vec(lock(), 0..5), from in 0u64..30, len in 1u64..20) {
            let mut l = Held::default();
            for (cookie, (extent, void, going)) in (1..).zip(&locks) {
                l.add(cookie, *extent, Lock::default());
                if *void {
                    kill(&l, cookie);
                }
                if *going {
                    l.going(cookie);
                }
            }
            let on = |page: u64| locks.iter().filter(move |(e, ..)| e.has(page * PAGE, (page + 1) * PAGE - 1));
            let left = |page: u64| on(page).any(|(_, void, going)| *void || *going);
            let good = |page: u64| on(page).any(|(_, void, going)| !void && !going);
            let lives = |page: u64| on(page).next().is_some() && on(page).all(|(_, void, _)| !void);
            let pages: Vec<u64> = (from..from + len).collect();
            let range = from * PAGE..(from + len) * PAGE;
            prop_assert_eq!(l.is_left(&range), pages.iter().any(|p| left(*p)));
            prop_assert_eq!(l.cover(&range), pages.iter().all(|p| good(*p) && !left(*p)));
            let within = |all: &[Range<u64>], page: u64| all.iter().any(|r| r.contains(&(page * PAGE)));
            let missing = l.missing(&range);
            for p in &pages {
                prop_assert_eq!(within(&missing, *p), !good(*p));
            }
            let by_life = l.by_life(&range);
            let living: Vec<_> = by_life.iter().filter(|(_, lives)| *lives).map(|(r, _)| r.clone()).collect();
            for p in &pages {
                prop_assert_eq!(within(&living, *p), lives(*p));
            }
            prop_assert_eq!(by_life.iter().map(|(r, _)| r.end - r.start).sum::<u64>(), len * PAGE);
        }
    }
}
