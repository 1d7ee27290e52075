//! The rules of a gate for write(2): to the OSTs, or under a cover that keeps its data back.
//!
//! A cover for writes has locks on ranges, and gets more where more is written. Locks go one by one when they are asked back; the
//! cover stays, unless it is drained as a whole.
//!
//! Invariant: locks are asked for while no synchronous write of this client is under way, whose lock for it would only call ours
//! back. When others ask them back again and again before much was written under them, writes that find no lock are synchronous
//! for a while ([`Core::contended`]). The first few times mean nothing: servers give a lock more than was asked for, and take what
//! others need of it back when they come.

use std::sync::Arc;

use super::core::Core;
use crate::llite::covers::cover::Cover;

/// How a write(2) goes.
#[derive(Debug)]
pub(super) enum Way {
    /// Its data is dirty under this.
    Under(Arc<Cover>),
    /// To the OSTs, which lock for it; ends with [`Core::end_sync`].
    Sync,
    /// The asker is the one to get a cover; ends with [`Core::end_acquire`].
    Acquire,
    /// Something must end first ([`Core::may_write`]).
    Wait,
    /// The asker drains the cover for writes.
    Drain,
}

/// Synchronous writes after a cover was lost to others, at least and at most.
pub(super) const SKIP_MIN: u32 = 16;
const SKIP_MAX: u32 = 4096;
/// A lock was worth it when so many writes were kept since the last was asked back.
pub(super) const WORTH: u32 = 32;
/// Locks that were not worth it, in a row, make a file contended.
pub(super) const LOSSES: u32 = 4;

impl<T> Core<T> {
    /// A cover for writes may be had.
    fn free_for_writes(&self) -> bool {
        let readers = self.acquiring || !self.waiting.is_empty();
        self.cover.is_none() && !self.draining && !readers && self.truncating == 0
    }

    /// How a write(2) goes. `may_keep`: its data may stay dirty.
    pub fn begin_write(&mut self, may_keep: bool) -> Way {
        if let Some(cover) = self.cover.clone().filter(|c| c.writes.is_some()) {
            return match may_keep {
                _ if self.draining => Way::Wait,
                true => Way::Under(cover),
                false => {
                    self.draining = true;
                    Way::Drain
                }
            };
        }
        if self.acquiring_writes {
            return Way::Wait;
        }
        if may_keep && self.free_for_writes() && self.skip == 0 {
            self.acquiring_writes = true;
            return Way::Acquire;
        }
        self.skip = self.skip.saturating_sub(may_keep as u32);
        self.sync_writes += 1;
        Way::Sync
    }

    /// A write was taken under the cover.
    pub fn write_kept(&mut self) {
        self.kept = self.kept.saturating_add(1);
    }

    /// How a write goes that was let in under the cover, which has no lock for it.
    pub fn begin_more(&mut self) -> Way {
        if !self.has_writes() || self.draining || self.acquiring_writes {
            return Way::Wait;
        }
        if self.skip == 0 {
            self.acquiring_writes = true;
            return Way::Acquire;
        }
        self.skip -= 1;
        self.sync_writes += 1;
        Way::Sync
    }

    /// A lock of the cover for writes was asked back. What another client does once may take several of them, one for each stripe: those
    /// that go while nothing is written count as one.
    pub fn lock_lost(&mut self) {
        if self.kept == 0 {
            return;
        }
        let worth = self.kept >= WORTH;
        self.losses = if worth { 0 } else { self.losses + 1 };
        if worth && self.kept > 8 * self.skipped {
            // it is as if it had never been contended
            self.skipped = 0;
        }
        match self.losses >= LOSSES {
            true => self.contended(),
            false => self.kept = 0,
        }
    }

    /// The cover for writes has no lock any more. True: the caller drains it.
    pub fn begin_drain_bare(&mut self) -> bool {
        !self.acquiring_writes && self.begin_drain_writes()
    }

    /// A synchronous write has ended. True: it was the last.
    pub fn end_sync(&mut self) -> bool {
        self.sync_writes -= 1;
        self.sync_writes == 0
    }

    /// A cover for writes was obtained. False: others were quicker, it is of no use.
    pub fn install_writes(&mut self, cover: &Arc<Cover>) -> bool {
        let free = self.free_for_writes();
        if free {
            self.cover = Some(cover.clone());
        }
        free
    }

    /// Who was to get a cover for writes has one, or has given up.
    pub fn end_acquire(&mut self) {
        self.acquiring_writes = false;
    }

    /// [`Core::begin_write`] may answer otherwise than [`Way::Wait`].
    pub fn may_write(&self) -> bool {
        !(self.acquiring_writes || self.draining && self.has_writes())
    }

    /// There is a cover for writes.
    pub fn has_writes(&self) -> bool {
        self.cover.as_ref().is_some_and(|c| c.writes.is_some())
    }

    /// The cover for writes must go. True: the caller drains it.
    pub fn begin_drain_writes(&mut self) -> bool {
        self.has_writes() && !std::mem::replace(&mut self.draining, true)
    }

    /// Others want the file, or it cannot be covered: writes are synchronous for a while, longer each time unless the cover was
    /// worth it.
    pub fn contended(&mut self) {
        self.skipped = if self.kept > 8 * self.skipped {
            SKIP_MIN
        } else {
            (2 * self.skipped).clamp(SKIP_MIN, SKIP_MAX)
        };
        (self.skip, self.kept, self.losses) = (self.skipped, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llite::covers::dirty::Dirty;
    use crate::lov::FileLayout;

    /// With a cover for writes.
    fn covered() -> Core<()> {
        let mut g = Core::default();
        assert!(matches!(g.begin_write(true), Way::Acquire));
        let layout = Arc::new(FileLayout::none());
        assert!(g.install_writes(&Cover::for_writes(layout, Dirty::new(Vec::new()))));
        g.end_acquire();
        g
    }

    #[test]
    fn what_was_worth_it_before_a_loss_shortens_the_next_contention() {
        let mut g = covered();
        let contended = |g: &mut Core<()>| {
            g.contended();
            let mut synchronous = 0;
            while matches!(g.begin_more(), Way::Sync) {
                synchronous += 1;
            }
            g.end_acquire();
            synchronous
        };
        for times in [1, 2, 4] {
            assert_eq!(contended(&mut g), times * SKIP_MIN);
        }
        (0..8 * 4 * SKIP_MIN + 1).for_each(|_| g.write_kept());
        g.lock_lost();
        assert_eq!(contended(&mut g), SKIP_MIN);
    }

    #[test]
    fn a_write_that_was_not_taken_is_none_a_lock_was_good_for() {
        let mut g = covered();
        for _ in 0..LOSSES {
            g.write_kept();
            // let in, and not taken: there was no room, no grant, or the lock was going
            for _ in 0..2 * WORTH {
                assert!(matches!(g.begin_write(true), Way::Under(_)));
            }
            g.lock_lost();
        }
        assert!(matches!(g.begin_more(), Way::Sync), "contended");
    }
}
