//! What a committed batch entails: owners' usage, objects to destroy, OSTs to be told.

use coral_osd::Batch;
use coral_wire::Fid;

use super::handler::MdtOps;
use super::store::Store;
use super::{dom, table, usage};
use crate::quota::{Owner, Used};

/// What a batch entails once it is committed.
pub struct Follows {
    usage: Vec<(Owner, Used)>,
    destroy: Vec<(u32, u64)>,
    tell: Vec<(u32, u64)>,
    data: Vec<Fid>,
}

impl Follows {
    /// Of `batch`.
    pub fn of(batch: &Batch) -> Follows {
        Follows {
            usage: usage::of_batch(batch),
            destroy: super::osp::queue::of_batch(batch, table::DESTROY),
            tell: super::osp::queue::of_batch(batch, table::OWNER),
            data: dom::removed_by(batch),
        }
    }
}

impl MdtOps {
    /// The batch was committed before `mark` was taken; the core is still locked.
    pub fn committed(&self, store: &Store, f: Follows, mark: u64) {
        store.usage().committed(f.usage);
        self.osp.destroy(&f.destroy, mark);
        self.osp.tell_owners(&f.tell, mark);
        self.remover.committed(&f.data, mark);
    }
}
