//! Open files and directories by the `fh` the kernel sends back: a slab, so that a number finds its handle in one step.
//!
//! Invariant: a number is used again only after its RELEASE; the kernel sends nothing for it after that.

use std::sync::Arc;

use parking_lot::RwLock;

struct Slab<T> {
    slots: Vec<Option<Arc<T>>>,
    free: Vec<usize>,
}

/// Handles of one kind. Bounded by the kernel's limit of open files.
pub(crate) struct Handles<T> {
    slab: RwLock<Slab<T>>,
}

impl<T> Handles<T> {
    pub fn new() -> Self {
        Self {
            slab: RwLock::new(Slab {
                slots: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    pub fn insert(&self, handle: Arc<T>) -> u64 {
        let slab = &mut *self.slab.write();
        let at = slab.free.pop().unwrap_or_else(|| {
            slab.slots.push(None);
            slab.slots.len() - 1
        });
        slab.slots[at] = Some(handle);
        at as u64
    }

    pub fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.slab.read().slots.get(fh as usize)?.clone()
    }

    pub fn remove(&self, fh: u64) -> Option<Arc<T>> {
        let slab = &mut *self.slab.write();
        let handle = slab.slots.get_mut(fh as usize)?.take()?;
        slab.free.push(fh as usize);
        Some(handle)
    }

    /// Takes all handles out: the session has ended.
    pub fn drain(&self) -> Vec<Arc<T>> {
        let slab = &mut *self.slab.write();
        slab.free.clear();
        std::mem::take(&mut slab.slots)
            .into_iter()
            .flatten()
            .collect()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        let slab = self.slab.read();
        slab.slots.len() - slab.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_after_remove() {
        let h = Handles::new();
        let (a, b) = (h.insert(Arc::new('a')), h.insert(Arc::new('b')));
        assert_eq!(h.remove(a).as_deref(), Some(&'a'));
        assert!(h.get(a).is_none() && h.remove(a).is_none());
        assert_eq!(h.insert(Arc::new('c')), a);
        assert_eq!((h.get(b).as_deref(), h.len()), (Some(&'b'), 2));
        assert_eq!(h.drain().len(), 2);
        assert_eq!(h.len(), 0);
    }
}
