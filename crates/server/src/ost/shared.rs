//! Objects that several clients changed since the last commit.
//!
//! A sync of one object makes its bytes safe and commits nothing. When power goes then, clients bring their own uncommitted
//! changes again: an older one of another client would be written over what was synced, and whose it was may not be there to
//! bring it again. So a sync of such an object commits everything. Lustre's does so always (a journal's commit is the disk's).
//!
//! Invariant: a change that is not committed is in one of three ages. A commit covers the changes that were noted before the one
//! before it began: what is noted while a commit takes its number may come after that number.

use std::collections::HashMap;

use coral_osd::ObjectId;

/// Objects told apart; with more of them every object counts as shared.
const OBJECTS_MAX: usize = 65536;

/// Who changed an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// One client, by its export.
    One(u64),
    Several,
}

/// Changes between the beginnings of two commits.
#[derive(Debug, Default)]
struct Age {
    by: HashMap<ObjectId, By>,
    /// There were more objects.
    more: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The present one last.
    ages: [Age; 3],
}

impl Changes {
    /// Client `export` changed an object.
    pub fn note(&mut self, export: u64, id: ObjectId) {
        let Age { by, more } = &mut self.ages[2];
        if by.len() >= OBJECTS_MAX && !by.contains_key(&id) {
            *more = true;
            return;
        }
        let by = by.entry(id).or_insert(By::One(export));
        if *by != By::One(export) {
            *by = By::Several;
        }
    }

    /// A commit begins.
    pub fn commit_begins(&mut self) {
        self.ages.rotate_left(1);
        self.ages[2] = Age::default();
    }

    /// Changes of several clients may not be committed.
    pub fn shared(&self, id: ObjectId) -> bool {
        let mut by = self.ages.iter().filter_map(|a| a.by.get(&id));
        let first = by.next();
        self.ages.iter().any(|a| a.more)
            || first == Some(&By::Several)
            || by.any(|b| Some(b) != first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_until_three_commits_began() {
        let id = |oid| ObjectId { seq: 0, oid };
        let mut c = Changes::default();
        c.note(1, id(1));
        c.note(1, id(1));
        c.note(2, id(2));
        assert!(!c.shared(id(1)) && !c.shared(id(2)) && !c.shared(id(3)));
        c.note(3, id(2));
        assert!(c.shared(id(2)));
        c.commit_begins();
        c.note(2, id(1));
        assert!(
            c.shared(id(1)) && c.shared(id(2)),
            "what came during the commit may not be in it"
        );
        c.commit_begins();
        assert!(c.shared(id(1)) && c.shared(id(2)));
        c.commit_begins();
        assert!(!c.shared(id(1)) && !c.shared(id(2)));
        c.note(1, id(1));
        assert!(c.shared(id(1)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut c = Changes::default();
        for oid in 0..=OBJECTS_MAX as u64 {
            c.note(1, ObjectId { seq: 0, oid });
        }
        assert_eq!(c.ages[2].by.len(), OBJECTS_MAX);
        assert!(c.shared(ObjectId { seq: 0, oid: 1 }));
        (0..3).for_each(|_| c.commit_begins());
        assert!(!c.shared(ObjectId { seq: 0, oid: 1 }));
    }
}
