//! What upper layers keep once per node (PTLRPC's xids), so that they need no globals.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// One value per type.
#[derive(Default)]
pub(crate) struct Extensions {
    values: Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Extensions {
    /// The value of type `T`, made by `Default` when it is asked for first.
    pub(crate) fn of<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let any = self
            .values
            .lock()
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(T::default()))
            .clone();
        any.downcast::<T>().unwrap_or_default()
    }
}
