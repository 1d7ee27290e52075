//! The newest time of a write that was stored in each object.
//!
//! Clients that hold locks on ranges beside each other write out in any order: what was written first may come last. Times that were set
//! count from then on, whatever was written before: a time in the future does not stick.

use std::collections::{BTreeMap, VecDeque};

use coral_osd::{ObjectId, SetAttr, Time};

/// Objects of which the newest time is remembered; the one written first goes first.
const OBJECTS_MAX: usize = 4096;

/// Times of a write: mtime, ctime.
type Times = (Option<Time>, Option<Time>);

#[derive(Default)]
pub(super) struct Newest {
    of: BTreeMap<ObjectId, Times>,
    order: VecDeque<ObjectId>,
}

impl Newest {
    /// A write brings these times.
    pub fn note(&mut self, id: ObjectId, set: &SetAttr) {
        if !self.of.contains_key(&id) {
            self.order.push_back(id);
        }
        let (mtime, ctime) = self.of.entry(id).or_default();
        (*mtime, *ctime) = (set.mtime.max(*mtime), set.ctime.max(*ctime));
        if self.order.len() > OBJECTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
    }

    /// Times were set: what was written before is of no account.
    pub fn forget(&mut self, id: ObjectId) {
        if let Some(times) = self.of.get_mut(&id) {
            *times = Times::default();
        }
    }

    /// The object is destroyed.
    pub fn gone(&mut self, id: ObjectId) {
        self.of.remove(&id);
    }

    /// Makes the times of a write those of the newest. False: they are.
    pub fn raise(&self, id: ObjectId, set: &mut SetAttr) -> bool {
        let (mtime, ctime) = self.of.get(&id).copied().unwrap_or_default();
        let before = (set.mtime, set.ctime);
        set.mtime = set.mtime.map(|t| mtime.map_or(t, |n| n.max(t)));
        set.ctime = set.ctime.map(|t| ctime.map_or(t, |n| n.max(t)));
        before != (set.mtime, set.ctime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> SetAttr {
        let time = Some(Time { secs, nsecs: 0 });
        SetAttr {
            mtime: time,
            ctime: time,
            ..Default::default()
        }
    }

    #[test]
    fn the_newest_write_wins_until_times_are_set_and_memory_is_bounded() {
        let id = |oid| ObjectId { seq: 0, oid };
        let mut n = Newest::default();
        n.note(id(1), &at(20));
        n.note(id(1), &at(10));
        let mut set = at(10);
        assert!(n.raise(id(1), &mut set) && !n.raise(id(1), &mut set));
        assert_eq!((set.mtime, set.ctime), (at(20).mtime, at(20).ctime));
        let mut other = at(10);
        assert!(!n.raise(id(2), &mut other));
        n.forget(id(1));
        let mut after = at(10);
        assert!(!n.raise(id(1), &mut after));
        n.gone(id(1));
        assert!(n.of.is_empty());
        for oid in 2..2 * OBJECTS_MAX as u64 {
            n.note(id(oid), &at(1));
            n.note(id(oid), &at(2));
        }
        assert_eq!((n.of.len(), n.order.len()), (OBJECTS_MAX, OBJECTS_MAX));
    }
}
