//! The rules of a gate for pages; those for write(2) are in `writes.rs`. A plain state machine: no await, no message, no mutex.
//!
//! `T` is by what a waiting read is told that it is let in.

use std::ops::Range;
use std::sync::Arc;

use coral_wire::ldlm::LdlmMode;

use crate::llite::covers::cover::Cover;

/// A read that waits.
#[derive(Debug)]
pub(super) struct Waiter<T> {
    id: u64,
    range: Range<u64>,
    /// Tells it.
    pub tell: T,
}

/// Answer to a read that wants in.
#[derive(Debug)]
pub(super) enum Entered {
    /// Go on under this.
    Under(Arc<Cover>),
    /// Wait, by this number; with `acquire` true the asker is the one to get a cover.
    Wait { id: u64, acquire: bool },
}

/// The state of one gate.
#[derive(Debug)]
pub(super) struct Core<T> {
    pub(super) cover: Option<Arc<Cover>>,
    pub(super) draining: bool,
    pub(super) acquiring: bool,
    /// Truncates and appends under way.
    pub(super) truncating: u32,
    /// Handles open for writing.
    writers: u32,
    /// Pages may have been filled under no cover.
    uncovered: bool,
    used: bool,
    pub(super) waiting: Vec<Waiter<T>>,
    /// What is being dropped right now.
    dropping: Vec<Range<u64>>,
    /// Let in while it was being dropped.
    served: Vec<Range<u64>>,
    /// What is being stored into the kernel's cache right now, by number.
    storing: Vec<u64>,
    last_id: u64,
    /// A cover for writes is being asked for.
    pub(super) acquiring_writes: bool,
    /// Writes on their way to the OSTs under no cover.
    pub(super) sync_writes: u32,
    /// So many writes are synchronous before a cover for writes is asked for again.
    pub(super) skip: u32,
    /// How many it was last time.
    pub(super) skipped: u32,
    /// Writes taken since a lock was last asked back.
    pub(super) kept: u32,
    /// How often in a row a lock was asked back before it was worth it.
    pub(super) losses: u32,
}

impl<T> Default for Core<T> {
    fn default() -> Self {
        Self {
            cover: None,
            draining: false,
            acquiring: false,
            truncating: 0,
            writers: 0,
            uncovered: false,
            used: false,
            waiting: Vec::new(),
            dropping: Vec::new(),
            served: Vec::new(),
            storing: Vec::new(),
            last_id: 0,
            acquiring_writes: false,
            sync_writes: 0,
            skip: 0,
            skipped: 0,
            kept: 0,
            losses: 0,
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// `from` without `hole`.
fn without(from: Vec<Range<u64>>, hole: &Range<u64>) -> Vec<Range<u64>> {
    from.into_iter()
        .flat_map(|r| [r.start..r.end.min(hole.start), r.start.max(hole.end)..r.end])
        .filter(|r| r.start < r.end)
        .collect()
}

impl<T> Core<T> {
    /// A read of the pages in `range` wants in; `tell` is made if it must wait.
    pub fn enter(&mut self, range: Range<u64>, tell: impl FnOnce() -> T) -> Entered {
        self.used = true;
        if let Some(cover) = self.cover.clone().filter(|c| c.writes.is_none()) {
            if !self.draining {
                return Entered::Under(cover);
            }
            if self.dropping.iter().any(|d| overlap(d, &range)) {
                self.served.push(range);
                return Entered::Under(cover);
            }
            // all is dropped after that
            if !self.stores_nothing() {
                return Entered::Under(cover);
            }
        }
        self.last_id += 1;
        let id = self.last_id;
        self.waiting.push(Waiter {
            id,
            range,
            tell: tell(),
        });
        let acquire = !std::mem::replace(&mut self.acquiring, true);
        Entered::Wait { id, acquire }
    }

    /// A read waits no longer.
    pub fn leave(&mut self, id: u64) {
        self.waiting.retain(|w| w.id != id);
    }

    /// The mode of a cover that may be asked for now; `None`: something must end first.
    pub fn may_acquire(&self) -> Option<LdlmMode> {
        let free = self.cover.is_none()
            && !self.draining
            && self.truncating == 0
            && !self.acquiring_writes;
        free.then_some(match self.writers {
            0 => LdlmMode::PR,
            _ => LdlmMode::PW,
        })
    }

    /// A cover was obtained: who is to be let in. `None`: it is of no use now, ask again.
    pub fn install(&mut self, cover: &Arc<Cover>) -> Option<Vec<Waiter<T>>> {
        if self.truncating > 0 || self.writers > 0 && cover.mode != LdlmMode::PW {
            return None;
        }
        self.cover = Some(cover.clone());
        self.acquiring = false;
        Some(std::mem::take(&mut self.waiting))
    }

    /// There will be no cover: who is to be told. `go_on`: they fill their pages all the same.
    pub fn refuse(&mut self, go_on: bool) -> Vec<Waiter<T>> {
        self.acquiring = false;
        self.uncovered |= go_on && !self.waiting.is_empty();
        std::mem::take(&mut self.waiting)
    }

    /// What was read under the cover at `cover` wants to be stored into the kernel's cache: its number, by which it is under
    /// way until [`Core::end_store`]. `None`: it may not. A cover for reading goes before a handle for writing is there, so
    /// no page under it is dirty; a new one comes after what this client cuts is cut.
    pub fn begin_store(&mut self, cover: *const Cover) -> Option<u64> {
        let under = self.cover.as_ref()?;
        let ours = Arc::as_ptr(under) == cover && under.mode == LdlmMode::PR;
        if !ours || self.draining || self.truncating > 0 {
            return None;
        }
        self.last_id += 1;
        self.storing.push(self.last_id);
        Some(self.last_id)
    }

    /// It is stored, or given up.
    pub fn end_store(&mut self, number: u64) {
        self.storing.retain(|n| *n != number);
    }

    /// This cover is not there, or is about to go.
    pub fn lets_go(&self, cover: *const Cover) -> bool {
        let there = |c: &Arc<Cover>| Arc::as_ptr(c) == cover;
        self.draining || !self.cover.as_ref().is_some_and(there)
    }

    /// Nothing is being stored.
    pub fn stores_nothing(&self) -> bool {
        self.storing.is_empty()
    }

    /// The cover must go; of the lock `cookie`, if given. True: the caller drains it ([`Core::round`]).
    pub fn begin_drain(&mut self, cookie: Option<u64>) -> bool {
        let ours = self
            .cover
            .as_ref()
            .is_some_and(|c| cookie.is_none_or(|k| c.has(k)));
        ours && !std::mem::replace(&mut self.draining, true)
    }

    /// What to drop of `ranges` now: nothing that a waiting read has locked.
    pub fn round(&mut self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        assert!(self.stores_nothing(), "stores end before pages are dropped");
        let out = self
            .waiting
            .iter()
            .fold(ranges, |left, w| without(left, &w.range));
        self.dropping = out.clone();
        self.served.clear();
        out
    }

    /// They are dropped. What must be dropped once more; with nothing left nobody is let in any more.
    pub fn round_done(&mut self) -> Vec<Range<u64>> {
        self.dropping.clear();
        std::mem::take(&mut self.served)
    }

    /// All is dropped: takes the cover out, a new one may come.
    pub fn end_drain(&mut self) -> Option<Arc<Cover>> {
        assert!(
            self.draining && self.dropping.is_empty() && self.served.is_empty(),
            "rounds end before the drain does"
        );
        self.draining = false;
        self.cover.take()
    }

    /// A handle for writing is opened. True: a cover for reading stands in the way and the caller drains it.
    pub fn writer_opened(&mut self) -> bool {
        self.writers += 1;
        let drain = self.cover.as_ref().is_some_and(|c| c.mode != LdlmMode::PW) && !self.draining;
        self.draining |= drain;
        drain
    }

    /// A handle for writing is closed.
    pub fn writer_closed(&mut self) {
        self.writers = self.writers.checked_sub(1).expect("a writer was opened");
    }

    /// A truncate begins: no new cover comes until it ends. The cover it goes under.
    pub fn begin_truncate(&mut self) -> Option<Arc<Cover>> {
        self.truncating += 1;
        let usable = |c: &Arc<Cover>| c.mode == LdlmMode::PW && c.writes.is_none();
        self.cover.clone().filter(usable)
    }

    /// One is under way.
    pub fn is_truncating(&self) -> bool {
        self.truncating > 0
    }

    /// A truncate has ended.
    pub fn end_truncate(&mut self) {
        self.truncating -= 1;
    }

    /// Asked for since it was last asked about (second chance of the LRU).
    pub fn was_used(&mut self) -> bool {
        std::mem::take(&mut self.used)
    }

    /// Pages of no cover may be there; asked once.
    pub fn take_uncovered(&mut self) -> bool {
        std::mem::take(&mut self.uncovered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llite::covers::dirty::Dirty;
    use crate::llite::covers::gate::writes::Way;
    use crate::lov::FileLayout;

    type Plain = Core<()>;

    fn pages(mode: LdlmMode) -> Arc<Cover> {
        Cover::new(Arc::new(FileLayout::none()), mode, Vec::new())
    }

    fn writes() -> Arc<Cover> {
        let layout = Arc::new(FileLayout::none());
        Cover::for_writes(layout, Dirty::new(Vec::new()))
    }

    /// Every kind of state a gate can be in, by name, each reached by calls.
    fn states() -> Vec<(&'static str, Plain)> {
        let made = |make: &dyn Fn(&mut Plain)| {
            let mut g = Plain::default();
            make(&mut g);
            g
        };
        let wait = |g: &mut Plain| drop(g.enter(0..4096, || ()));
        let covered = |g: &mut Plain, mode| {
            wait(g);
            assert_eq!(g.install(&pages(mode)).map(|w| w.len()), Some(1));
        };
        let written = |g: &mut Plain| {
            assert!(matches!(g.begin_write(true), Way::Acquire));
            assert!(g.install_writes(&writes()));
            g.end_acquire();
        };
        vec![
            ("nothing", made(&|_| ())),
            ("reads wait", made(&|g| wait(g))),
            ("read cover", made(&|g| covered(g, LdlmMode::PR))),
            ("write cover", made(&|g| covered(g, LdlmMode::PW))),
            (
                "draining",
                made(&|g| {
                    covered(g, LdlmMode::PR);
                    assert!(g.begin_drain(None));
                }),
            ),
            (
                "dropping",
                made(&|g| {
                    covered(g, LdlmMode::PR);
                    assert!(g.begin_drain(None));
                    g.round(std::iter::once(0..u64::MAX).collect());
                }),
            ),
            (
                "draining a store",
                made(&|g| {
                    covered(g, LdlmMode::PR);
                    let cover = g.cover.clone().expect("it is covered");
                    assert!(g.begin_store(Arc::as_ptr(&cover)).is_some());
                    assert!(g.begin_drain(None));
                }),
            ),
            (
                "asking for writes",
                made(&|g| assert!(matches!(g.begin_write(true), Way::Acquire))),
            ),
            ("dirty", made(&|g| written(g))),
            (
                "asking for more",
                made(&|g| {
                    written(g);
                    assert!(matches!(g.begin_more(), Way::Acquire));
                }),
            ),
            (
                "contended when dirty",
                made(&|g| {
                    written(g);
                    g.contended();
                }),
            ),
            (
                "writing out",
                made(&|g| {
                    written(g);
                    assert!(g.begin_drain_writes());
                }),
            ),
            ("sync write", made(&|g| drop(g.begin_write(false)))),
            ("contended", made(&|g| g.contended())),
            ("truncating", made(&|g| drop(g.begin_truncate()))),
        ]
    }

    /// What each event answers in that state, each asked of a gate of its own.
    fn answers(name: &str) -> Vec<String> {
        let fresh = || {
            let found = states().into_iter().find(|(n, _)| *n == name);
            found.expect("a state").1
        };
        let entered = match fresh().enter(0..4096, || ()) {
            Entered::Under(_) => "in",
            Entered::Wait { acquire: true, .. } => "acquires",
            Entered::Wait { acquire: false, .. } => "waits",
        };
        let named = |way| match way {
            Way::Under(_) => "kept",
            Way::Sync => "sync",
            Way::Acquire => "acquires",
            Way::Wait => "waits",
            Way::Drain => "drains",
        };
        let way = |may_keep| named(fresh().begin_write(may_keep));
        let drains = |yes: bool| if yes { "drains" } else { "-" };
        let mode = fresh().may_acquire();
        let stores = |mut g: Plain| {
            let cover = g.cover.clone();
            cover.is_some_and(|c| g.begin_store(Arc::as_ptr(&c)).is_some())
        };
        vec![
            entered.to_owned(),
            way(true).to_owned(),
            way(false).to_owned(),
            named(fresh().begin_more()).to_owned(),
            drains(fresh().begin_drain(None)).to_owned(),
            drains(fresh().begin_drain_writes()).to_owned(),
            drains(fresh().writer_opened()).to_owned(),
            mode.map_or("-".to_owned(), |m| format!("{m:?}")),
            if fresh().begin_truncate().is_some() {
                "under"
            } else {
                "-"
            }
            .to_owned(),
            if stores(fresh()) { "stores" } else { "-" }.to_owned(),
        ]
    }

    #[test]
    fn every_state_answers_every_event() {
        // a read of pages, a write that may stay dirty, one that may not, one that is not locked, a lock asked back, a settle, a
        // writer, who may ask for a cover of pages, what a truncate goes under, a store
        let table = [
            "nothing: acquires acquires sync waits - - - PR - -",
            "reads wait: waits sync sync waits - - - PR - -",
            "read cover: in sync sync waits drains - drains - - stores",
            "write cover: in sync sync waits drains - - - under -",
            "draining: acquires sync sync waits - - - - - -",
            "dropping: in sync sync waits - - - - - -",
            "draining a store: in sync sync waits - - - - - -",
            "asking for writes: acquires waits waits waits - - - - - -",
            "dirty: acquires kept drains acquires drains drains - - - -",
            "asking for more: acquires kept drains waits drains drains - - - -",
            "contended when dirty: acquires kept drains sync drains drains - - - -",
            "writing out: acquires waits waits waits - - - - - -",
            "sync write: acquires acquires sync waits - - - PR - -",
            "contended: acquires sync sync waits - - - PR - -",
            "truncating: acquires sync sync waits - - - - - -",
        ];
        let found: Vec<String> = states()
            .iter()
            .map(|(name, _)| format!("{name}: {}", answers(name).join(" ")))
            .collect();
        assert_eq!(found, table);
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
    fn ranges_lose_their_holes() {
        assert_eq!(without(vec![0..10], &(3..5)), [0..3, 5..10]);
        assert!(without(vec![0..10], &(0..10)).is_empty());
        assert_eq!(without(vec![0..10, 20..30], &(5..25)), [0..5, 25..30]);
    }
}
