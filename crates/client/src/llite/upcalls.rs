//! Whoever mounted, who is told what to forget.

use std::sync::Arc;

use coral_wire::fid::Fid;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};

use super::cache::Forget;
use super::types::Invalidate;

/// Who is told, if anybody.
#[derive(Default)]
pub(super) struct Upcalls {
    who: RwLock<Option<Arc<dyn Invalidate>>>,
    /// Held from the question what is to be forgotten until that is told: a lock is given back by whoever finds that nothing is left
    /// to be told, which must not be before the other, who found it, has told.
    telling: Mutex<()>,
}

impl Upcalls {
    /// From now on this one is told.
    pub fn set(&self, who: Arc<dyn Invalidate>) {
        *self.who.write() = Some(who);
    }

    /// Somebody is told, and so may remember.
    pub fn are_heard(&self) -> bool {
        self.who.read().is_some()
    }

    /// Who is told.
    pub fn who(&self) -> Option<Arc<dyn Invalidate>> {
        self.who.read().clone()
    }

    /// Tells what to forget; `what` finds it out.
    pub fn tell(&self, what: impl FnOnce() -> Forget) {
        let _turn = self.telling.lock();
        let what = what();
        let Some(who) = self.who() else {
            return;
        };
        for (parent, name) in &what.entries {
            who.inval_entry(*parent, name);
        }
        for fid in &what.inodes {
            who.inval_inode(*fid, true);
        }
    }

    /// Tells that attributes of `fid` asked for before are old: this client changed them.
    pub fn tell_own(&self, fid: Fid) {
        if let Some(who) = self.who() {
            who.own_change(fid);
        }
    }

    /// Resolves when what was told is forgotten; then the lock may go.
    pub fn forgotten(&self) -> BoxFuture<'static, ()> {
        self.who()
            .map_or_else(|| Box::pin(async {}) as BoxFuture<_>, |w| w.forgotten())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// A kernel that takes its time.
    #[derive(Default)]
    struct Slow {
        told: AtomicBool,
    }

    impl Invalidate for Slow {
        #[expect(
            clippy::disallowed_methods,
            reason = "the test is about threads, without a runtime"
        )]
        fn inval_inode(&self, _fid: Fid, _attr_only: bool) {
            std::thread::sleep(Duration::from_millis(20));
            self.told.store(true, Ordering::Release);
        }
        fn inval_entry(&self, _parent: Fid, _name: &[u8]) {}
        fn drop_pages(&self, _fid: Fid, _range: std::ops::Range<u64>) {}
    }

    /// Who finds nothing left to tell gives the lock back next.
    #[test]
    fn who_finds_nothing_to_tell_waits_for_who_found_it() {
        let (upcalls, slow) = (Upcalls::default(), Arc::new(Slow::default()));
        upcalls.set(slow.clone());
        let found = Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                upcalls.tell(|| {
                    found.wait();
                    Forget {
                        inodes: vec![Fid::ROOT],
                        entries: Vec::new(),
                    }
                });
            });
            found.wait();
            upcalls.tell(Forget::default);
            assert!(slow.told.load(Ordering::Acquire));
        });
    }
}
