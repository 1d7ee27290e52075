//! The part of a gate that write(2) goes through: to the OSTs, or under a cover that keeps its data back.
//!
//! Invariant: a cover for writes is asked for while no write of this client goes through to the OSTs, whose lock for it would
//! only call ours back. After others asked one back, writes go through for a while ([`Gate::contended`]).

use std::sync::Arc;

use super::{Cover, Gate, Inner};

/// How a write(2) goes.
pub(in crate::llite) enum Writing {
    /// Its data is kept back under this.
    Under(Arc<Cover>),
    /// To the OSTs, which lock for it.
    Through(Through),
    /// The asker is the one to get a cover, and asks again.
    Acquire(Acquiring),
    /// Something must end first ([`Gate::may_write`]); ask again.
    Wait,
    /// The asker drains the cover for writes, and asks again.
    Drain,
}

/// A write on its way to the OSTs, until dropped.
pub(in crate::llite) struct Through {
    gate: Arc<Gate>,
}

impl Drop for Through {
    fn drop(&mut self) {
        let mut g = self.gate.inner.lock();
        g.through -= 1;
        let last = g.through == 0;
        drop(g);
        if last {
            self.gate.changed.notify_waiters();
        }
    }
}

/// A cover for writes is being asked for, until dropped.
pub(in crate::llite) struct Acquiring {
    gate: Arc<Gate>,
}

impl Acquiring {
    /// It was obtained. False: others were quicker, it is of no use.
    pub fn install(&self, cover: &Arc<Cover>) -> bool {
        let mut g = self.gate.inner.lock();
        let free = g.free_for_writes();
        if free {
            g.cover = Some(cover.clone());
            g.kept = 0;
        }
        free
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.gate.inner.lock().acquiring_writes = false;
        self.gate.changed.notify_waiters();
    }
}

/// Writes that go through after a cover was lost to others, at least and at most.
const SKIP_MIN: u32 = 16;
const SKIP_MAX: u32 = 4096;

impl Inner {
    /// A cover for writes may be had.
    fn free_for_writes(&self) -> bool {
        let readers = self.acquiring || !self.waiting.is_empty();
        self.cover.is_none() && !self.draining && !readers && self.truncating == 0
    }
}

impl Gate {
    /// How a write(2) goes. `may_keep`: its data may be kept back.
    pub fn begin_write(self: &Arc<Self>, may_keep: bool) -> Writing {
        let mut g = self.inner.lock();
        if let Some(cover) = g.cover.clone().filter(|c| c.writes.is_some()) {
            return match may_keep {
                _ if g.draining => Writing::Wait,
                true => {
                    g.kept = g.kept.saturating_add(1);
                    Writing::Under(cover)
                }
                false => {
                    g.draining = true;
                    Writing::Drain
                }
            };
        }
        if g.acquiring_writes {
            return Writing::Wait;
        }
        if may_keep && g.free_for_writes() && g.skip == 0 {
            g.acquiring_writes = true;
            return Writing::Acquire(Acquiring { gate: self.clone() });
        }
        g.skip = g.skip.saturating_sub(may_keep as u32);
        g.through += 1;
        Writing::Through(Through { gate: self.clone() })
    }

    /// Resolves once no write goes through.
    pub async fn none_through(&self) {
        self.until(|g| g.through == 0).await;
    }

    /// Resolves once [`Gate::begin_write`] may answer otherwise than [`Writing::Wait`].
    pub async fn may_write(&self) {
        let drains = |g: &Inner| g.draining && g.cover.as_ref().is_some_and(|c| c.writes.is_some());
        self.until(|g| !(g.acquiring_writes || drains(g))).await;
    }

    /// The cover for writes, if that is what is there.
    pub fn writes(&self) -> Option<Arc<Cover>> {
        self.cover().filter(|c| c.writes.is_some())
    }

    /// The cover for writes must go. True: the caller drains it.
    pub fn begin_drain_writes(&self) -> bool {
        let mut g = self.inner.lock();
        g.cover.as_ref().is_some_and(|c| c.writes.is_some())
            && !std::mem::replace(&mut g.draining, true)
    }

    /// Resolves once there is no cover for writes.
    pub async fn no_writes(&self) {
        self.until(|g| g.cover.as_ref().is_none_or(|c| c.writes.is_none()))
            .await;
    }

    /// Others want the file, or it cannot be covered: writes go through for a while, longer each time unless the cover was
    /// worth it.
    pub fn contended(&self) {
        let mut g = self.inner.lock();
        g.skipped = if g.kept > 8 * g.skipped {
            SKIP_MIN
        } else {
            (2 * g.skipped).clamp(SKIP_MIN, SKIP_MAX)
        };
        (g.skip, g.kept) = (g.skipped, 0);
    }
}

#[cfg(test)]
mod tests {
    use coral_wire::ldlm::LdlmMode;
    use futures_util::FutureExt;

    use super::super::tests::{cover, wait};
    use super::*;
    use crate::llite::writeback::WriteBack;
    use crate::lov::FileLayout;

    fn for_writes() -> Arc<Cover> {
        Cover::for_writes(
            Arc::new(FileLayout::none()),
            Vec::new(),
            WriteBack::new(Vec::new()),
        )
    }

    fn acquire(g: &Arc<Gate>) -> Acquiring {
        match g.begin_write(true) {
            Writing::Acquire(turn) => turn,
            _ => panic!("not the one to get a cover"),
        }
    }

    #[tokio::test]
    async fn one_asks_for_a_cover_for_writes_while_none_goes_through() {
        let g = Arc::<Gate>::default();
        let Writing::Through(first) = g.begin_write(false) else {
            panic!("nothing may be kept back of it")
        };
        let turn = acquire(&g);
        assert!(g.none_through().now_or_never().is_none());
        drop(first);
        assert!(g.none_through().now_or_never().is_some());
        assert!(
            matches!(g.begin_write(true), Writing::Wait) && g.may_write().now_or_never().is_none()
        );
        assert!(turn.install(&for_writes()));
        drop(turn);
        assert!(g.may_write().now_or_never().is_some());
        assert!(matches!(g.begin_write(true), Writing::Under(_)));
        // who may not keep back lets the cover go
        assert!(
            matches!(g.begin_write(false), Writing::Drain)
                && matches!(g.begin_write(true), Writing::Wait)
        );
        assert!(!g.begin_drain_writes() && g.no_writes().now_or_never().is_none());
        assert!(g.end_drain().is_some());
        assert!(g.no_writes().now_or_never().is_some());
        // one who gives up leaves the turn to others
        drop(acquire(&g));
        drop(acquire(&g));
    }

    #[tokio::test]
    async fn pages_and_writes_never_share_a_cover() {
        let g = Arc::<Gate>::default();
        let turn = acquire(&g);
        let (reader, first) = wait(&g, 0..10);
        assert!(
            first && !turn.install(&for_writes()),
            "a read of pages waits"
        );
        assert!(
            g.may_acquire().now_or_never().is_none(),
            "locks are being asked for"
        );
        drop(turn);
        assert!(matches!(g.begin_write(true), Writing::Through(_)));
        assert_eq!(g.may_acquire().now_or_never(), Some(LdlmMode::PR));
        assert!(g.install(&cover(LdlmMode::PR)));
        assert!(reader.admitted().await.unwrap().is_some());
        assert!(
            matches!(g.begin_write(true), Writing::Through(_))
                && g.writes().is_none()
                && !g.begin_drain_writes()
        );
        assert!(g.begin_drain(None) && g.end_drain().is_some());

        let turn = acquire(&g);
        assert!(turn.install(&for_writes()));
        drop(turn);
        let t = g.begin_truncate();
        assert!(t.cover.is_none(), "it is not for truncates");
        let (_late, acquire) = wait(&g, 0..1);
        assert!(acquire && g.begin_drain_writes());
        drop(t);
        assert!(g.may_acquire().now_or_never().is_none());
        assert!(g.end_drain().is_some() && g.may_acquire().now_or_never().is_some());
    }

    #[test]
    fn contention_lets_writes_through_for_a_while() {
        let g = Arc::<Gate>::default();
        let through = |g: &Arc<Gate>| {
            let mut n = 0;
            while matches!(g.begin_write(true), Writing::Through(_)) {
                n += 1;
            }
            n
        };
        g.contended();
        assert_eq!(through(&g), SKIP_MIN);
        g.contended();
        assert_eq!(through(&g), 2 * SKIP_MIN);
        let turn = acquire(&g);
        assert!(turn.install(&for_writes()));
        drop(turn);
        for _ in 0..100 * SKIP_MIN {
            assert!(matches!(g.begin_write(true), Writing::Under(_)));
        }
        assert!(g.begin_drain(None) && g.end_drain().is_some());
        g.contended();
        assert_eq!(through(&g), SKIP_MIN, "it was worth it");
    }
}
