//! The gates of a mount, and which files are covered.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use super::cover::Cover;
use super::dirty::ObjectKey;
use super::gate::Gate;
use crate::lov::{FileLayout, Form};

/// Gates beyond which dead entries of the table are swept.
const SWEEP_GATES: usize = 1024;

/// The gates of a mount, and who has a cover.
pub(in crate::llite) struct Covers {
    inner: Mutex<Inner>,
    /// Files covered at once.
    limit: usize,
}

#[derive(Default)]
struct Inner {
    gates: HashMap<Fid, Weak<Gate>>,
    /// Files with a cover, which keep their gates.
    covered: HashMap<Fid, Arc<Gate>>,
    by_object: HashMap<ObjectKey, Fid>,
    /// Covered files, longest first.
    order: VecDeque<Fid>,
}

impl Covers {
    /// At most `limit` files are covered at once.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            inner: Default::default(),
        }
    }

    /// The gate of a file.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether a gate stays depends on itself alone"
    )]
    pub fn gate(&self, fid: Fid) -> Arc<Gate> {
        let mut p = self.inner.lock();
        if let Some(g) = p.gates.get(&fid).and_then(Weak::upgrade) {
            return g;
        }
        if p.gates.len() >= SWEEP_GATES.max(4 * p.covered.len()) {
            p.gates.retain(|_, g| g.strong_count() > 0);
        }
        let g = Arc::<Gate>::default();
        p.gates.insert(fid, Arc::downgrade(&g));
        g
    }

    /// The cover a file has.
    pub fn cover(&self, fid: Fid) -> Option<Arc<Cover>> {
        self.gate_of(fid)?.cover()
    }

    /// Number of files whose pages may be in the kernel's cache.
    pub fn covered(&self) -> usize {
        self.inner.lock().covered.len()
    }

    /// One more goes without another having to go for it.
    pub fn has_room(&self) -> bool {
        self.inner.lock().covered.len() < self.limit
    }

    /// The gate of a covered file.
    pub fn gate_of(&self, fid: Fid) -> Option<Arc<Gate>> {
        self.inner.lock().covered.get(&fid).cloned()
    }

    /// The covered file that has this object.
    pub fn by_object(&self, key: ObjectKey) -> Option<(Fid, Arc<Gate>)> {
        let p = self.inner.lock();
        let fid = *p.by_object.get(&key)?;
        Some((fid, p.covered.get(&fid)?.clone()))
    }

    /// The files that have a cover, in the order of their FIDs: locks are given back in this order.
    #[expect(clippy::disallowed_methods, reason = "the files are sorted")]
    pub fn all(&self) -> Vec<(Fid, Arc<Gate>)> {
        let mut all: Vec<_> = self
            .inner
            .lock()
            .covered
            .iter()
            .map(|(f, g)| (*f, g.clone()))
            .collect();
        all.sort_unstable_by_key(|(fid, _)| *fid);
        all
    }

    /// Enters a cover that `install` gives to the gate, unless it does not.
    pub fn enlist_if(
        &self,
        fid: Fid,
        gate: &Arc<Gate>,
        cover: &Cover,
        install: impl FnOnce() -> bool,
    ) -> bool {
        let mut p = self.inner.lock();
        let installed = install();
        if installed {
            p.enlist(fid, gate, cover);
        }
        installed
    }

    /// Enters a cover.
    pub fn enlist(&self, fid: Fid, gate: &Arc<Gate>, cover: &Cover) {
        self.inner.lock().enlist(fid, gate, cover);
    }

    /// Strikes a cover out.
    pub fn strike(&self, fid: Fid, cover: &Cover) {
        let mut p = self.inner.lock();
        for o in cover.objects() {
            p.by_object.remove(&o);
        }
        p.covered.remove(&fid);
        // its place in the order is found to be void later, unless there are too many such
        if p.order.len() > 2 * p.covered.len() + SWEEP_GATES {
            let Inner { order, covered, .. } = &mut *p;
            let mut seen = HashSet::new();
            order.retain(|f| covered.contains_key(f) && seen.insert(*f));
        }
    }

    /// A covered file that should go because there are too many: not lately used, else the oldest.
    pub fn surplus(&self) -> Option<(Fid, Arc<Gate>)> {
        let mut p = self.inner.lock();
        let mut chances = p.order.len();
        if p.covered.len() <= self.limit {
            return None;
        }
        loop {
            let fid = p.order.pop_front()?;
            let Some(gate) = p.covered.get(&fid).cloned() else {
                continue;
            };
            if chances > 0 && gate.was_used() {
                chances -= 1;
                p.order.push_back(fid);
                continue;
            }
            return Some((fid, gate));
        }
    }
}

impl Inner {
    fn enlist(&mut self, fid: Fid, gate: &Arc<Gate>, cover: &Cover) {
        self.by_object.extend(cover.objects().map(|o| (o, fid)));
        if self.covered.insert(fid, gate.clone()).is_none() {
            self.order.push_back(fid);
        }
    }
}

/// A file that can be covered: all its objects are there and known, and none is on an MDT, whose lock is the inode's.
pub(in crate::llite) fn coverable(layout: &FileLayout) -> bool {
    layout.form == Form::Objects && !layout.needs_intent(0, u64::MAX) && !layout.has_dom()
}
