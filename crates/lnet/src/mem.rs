//! memlnd: nodes of one process reach each other by a function call.
//!
//! A message is delivered on the sender's stack and its payload handed over by reference: nothing is copied, no thread wakes.
//! The registry holds its nodes weakly; a node leaves it at shutdown or when it is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::{Nid, Node};

/// Registry of the nodes of one process, by NID.
#[derive(Default)]
pub struct MemNet {
    nodes: RwLock<BTreeMap<Nid, Weak<Node>>>,
}

impl std::fmt::Debug for MemNet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.nodes.read().keys()).finish()
    }
}

impl MemNet {
    /// An empty registry.
    pub fn new() -> Arc<MemNet> {
        Arc::new(MemNet::default())
    }

    /// The running node with this NID.
    pub fn node(&self, nid: Nid) -> Option<Arc<Node>> {
        self.nodes.read().get(&nid).and_then(Weak::upgrade)
    }

    /// Enters all NIDs or none; the error is the NID that is taken.
    pub(crate) fn register(&self, nids: &[Nid], node: &Arc<Node>) -> Result<(), Nid> {
        let mut nodes = self.nodes.write();
        if let Some(taken) = nids.iter().find(|n| nodes.get(n).is_some_and(|w| w.strong_count() > 0)) {
            return Err(*taken);
        }
        nodes.extend(nids.iter().map(|n| (*n, Arc::downgrade(node))));
        Ok(())
    }

    pub(crate) fn unregister(&self, nids: &[Nid], node: &Node) {
        let mut nodes = self.nodes.write();
        for nid in nids {
            if nodes.get(nid).is_some_and(|w| std::ptr::eq(w.as_ptr(), node)) {
                nodes.remove(nid);
            }
        }
    }
}
