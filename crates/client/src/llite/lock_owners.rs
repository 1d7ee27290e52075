//! The numbers by which an MDT tells owners of record locks apart.
//!
//! The kernel names an owner by an address, which it gives to the next owner before it tells of the last one's end (FUSE_RELEASE
//! comes late). So an owner has a number of this mount's own, for as long as it may hold locks: the unlock of one that ended
//! never meets a lock of the next. It is the same number on all files, or no deadlock over several of them would be seen.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use coral_wire::Fid;
use parking_lot::Mutex;

/// The owners of one mount, by the kernel's names.
#[derive(Default)]
pub(super) struct LockOwners {
    owners: Mutex<HashMap<u64, Owner>>,
    given: AtomicU64,
}

struct Owner {
    number: u64,
    /// Files it may hold locks of, each with the handles it took them through.
    held: HashMap<Fid, HashSet<u64>>,
    /// Its requests under way.
    asking: usize,
}

/// Forgets an owner that can hold nothing: whoever has its name next gets another number.
fn forget_ended(owners: &mut HashMap<u64, Owner>, owner: u64) {
    if let Some(o) = owners.get(&owner)
        && o.held.is_empty()
        && o.asking == 0
    {
        owners.remove(&owner);
    }
}

/// A file and the number of a handle of it.
pub(super) type Through = (Fid, u64);

impl LockOwners {
    /// A number nobody has.
    pub fn fresh(&self) -> u64 {
        self.given.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// `owner` asks for a lock.
    pub fn ask(&self, owner: u64, through: Through) -> Asking<'_> {
        let mut owners = self.owners.lock();
        let o = owners.entry(owner).or_insert_with(|| Owner {
            number: self.fresh(),
            held: HashMap::new(),
            asking: 0,
        });
        o.asking += 1;
        o.held.entry(through.0).or_default().insert(through.1);
        Asking {
            all: self,
            owner,
            through,
            number: o.number,
        }
    }

    /// The number of `owner`, when it has one.
    pub fn number(&self, owner: u64) -> Option<u64> {
        self.owners.lock().get(&owner).map(|o| o.number)
    }

    /// The number of `owner`, when it may hold locks of the file.
    pub fn holder(&self, owner: u64, file: Fid) -> Option<u64> {
        let owners = self.owners.lock();
        let o = owners.get(&owner)?;
        o.held.contains_key(&file).then_some(o.number)
    }

    /// `owner` closed a descriptor of the file: by which number to unlock it all.
    pub fn flushed(&self, owner: u64, file: Fid) -> Option<u64> {
        let mut owners = self.owners.lock();
        let o = owners.get_mut(&owner)?;
        o.held.remove(&file)?;
        let number = o.number;
        forget_ended(&mut owners, owner);
        Some(number)
    }

    /// The handle is gone: by which number to unlock the file, when `owner` took locks through it and through no other of the
    /// file.
    pub fn released(&self, owner: u64, (file, handle): Through) -> Option<u64> {
        let mut owners = self.owners.lock();
        let o = owners.get_mut(&owner)?;
        let handles = o.held.get_mut(&file)?;
        if !handles.remove(&handle) || !handles.is_empty() {
            return None;
        }
        o.held.remove(&file);
        let number = o.number;
        forget_ended(&mut owners, owner);
        Some(number)
    }
}

/// A request for a lock under way: its owner keeps its number.
pub(super) struct Asking<'a> {
    all: &'a LockOwners,
    owner: u64,
    through: Through,
    pub number: u64,
}

impl Asking<'_> {
    /// It was granted. A close by another thread of the owner may have come before it.
    pub fn granted(&self) {
        if let Some(o) = self.all.owners.lock().get_mut(&self.owner) {
            let (file, handle) = self.through;
            o.held.entry(file).or_default().insert(handle);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut owners = self.all.owners.lock();
        if let Some(o) = owners.get_mut(&self.owner) {
            o.asking -= 1;
        }
        forget_ended(&mut owners, self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Fid = Fid::new(1, 1);
    const G: Fid = Fid::new(1, 2);

    #[test]
    fn a_number_is_of_one_owner_over_all_its_files() {
        let l = LockOwners::default();
        let (f, g) = (l.ask(7, (F, 1)).number, l.ask(7, (G, 2)).number);
        assert_eq!(f, g);
        assert_ne!(l.ask(8, (F, 3)).number, f);
        assert_eq!(l.flushed(7, F), Some(f));
        assert_eq!((l.holder(7, F), l.holder(7, G)), (None, Some(f)));
        assert_eq!(l.ask(7, (F, 4)).number, f, "it still holds the other file");
    }

    #[test]
    fn the_next_owner_of_a_name_has_another_number() {
        let l = LockOwners::default();
        let old = l.ask(7, (F, 1)).number;
        assert_eq!(l.flushed(7, F), Some(old));
        assert_eq!(l.number(7), None);
        assert_ne!(l.ask(7, (F, 1)).number, old);
    }

    #[test]
    fn a_late_close_frees_nothing_of_the_next_owner() {
        let l = LockOwners::default();
        let number = l.ask(7, (F, 1)).number;
        // the address went to another open file before the close of the first is told
        assert_eq!(l.ask(7, (F, 2)).number, number);
        assert_eq!(l.released(7, (F, 1)), None);
        assert_eq!(l.released(7, (F, 1)), None);
        assert_eq!(l.released(7, (F, 2)), Some(number));
        assert_eq!(l.number(7), None);
    }

    #[test]
    fn what_is_granted_after_a_close_can_be_given_back() {
        let l = LockOwners::default();
        let asking = l.ask(7, (F, 1));
        assert_eq!(l.flushed(7, F), Some(asking.number));
        asking.granted();
        assert_eq!(l.holder(7, F), Some(asking.number));
    }
}
