//! Names of a directory, counted together with those of all others: what the cache's budget is spent on cannot drift from what
//! is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::node::Name;

/// How many names there are in all directories of a cache.
#[derive(Debug, Clone, Default)]
pub(super) struct NameCount(Arc<AtomicUsize>);

impl NameCount {
    pub fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Names of one directory.
#[derive(Debug, Default)]
pub(super) struct Names {
    map: BTreeMap<Bytes, Name>,
    /// `None` until it is put into a cache.
    all: Option<NameCount>,
}

impl Names {
    pub fn counted_in(all: &NameCount) -> Self {
        Self {
            map: BTreeMap::new(),
            all: Some(all.clone()),
        }
    }

    pub fn get(&self, name: &[u8]) -> Option<&Name> {
        self.map.get(name)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn insert(&mut self, name: Bytes, is: Name) {
        self.changing(|map| {
            map.insert(name, is);
        });
    }

    pub fn remove(&mut self, name: &[u8]) {
        self.changing(|map| {
            map.remove(name);
        });
    }

    /// These and no others.
    pub fn set(&mut self, names: BTreeMap<Bytes, Name>) {
        self.changing(|map| *map = names);
    }

    fn changing(&mut self, change: impl FnOnce(&mut BTreeMap<Bytes, Name>)) {
        let before = self.map.len();
        change(&mut self.map);
        if let Some(all) = &self.all {
            all.0.fetch_add(self.map.len(), Ordering::Relaxed);
            all.0.fetch_sub(before, Ordering::Relaxed);
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.set(BTreeMap::new());
    }
}
