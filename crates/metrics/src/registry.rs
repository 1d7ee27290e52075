//! The groups of one node.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::desc::{Desc, Metric};

/// Metrics of one owner; [`group!`](crate::group) makes one.
pub trait Group: Send + Sync + 'static {
    /// Its metrics.
    fn table(&self) -> &'static [Desc];

    /// Shows each with its row.
    fn observe(&self, see: &mut dyn FnMut(&'static Desc, &dyn Metric));
}

/// Labels that tell owners of the same metrics apart.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// Groups before the first look for those whose owner is gone.
const SWEEP_AT_LEAST: usize = 64;

/// The groups of one node.
#[derive(Default)]
pub struct Registry(Mutex<Attached>);

#[derive(Default)]
struct Attached {
    groups: Vec<(Labels, Weak<dyn Group>)>,
    /// At so many groups those whose owner is gone are dropped: beside those that live there are at most as many.
    sweep_at: usize,
}

impl Registry {
    /// Shows the metrics of `group` with these labels, as long as its owner keeps it.
    pub fn attach<G: Group>(&self, labels: &[(&'static str, &str)], group: &Arc<G>) {
        let weak: Weak<G> = Arc::downgrade(group);
        let labels = labels.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        let mut attached = self.0.lock();
        if attached.groups.len() >= attached.sweep_at {
            attached.groups.retain(|(_, g)| g.strong_count() > 0);
            attached.sweep_at = (attached.groups.len() * 2).max(SWEEP_AT_LEAST);
        }
        attached.groups.push((labels, weak));
    }

    /// The groups that live. What they show is asked without a lock of the registry.
    pub(crate) fn groups(&self) -> Vec<(Labels, Arc<dyn Group>)> {
        let attached = self.0.lock();
        let groups = attached.groups.iter();
        groups
            .filter_map(|(labels, g)| Some((labels.clone(), g.upgrade()?)))
            .collect()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} groups)", self.0.lock().groups.len())
    }
}
