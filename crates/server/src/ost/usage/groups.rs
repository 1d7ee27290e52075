//! Which objects may be other than counted, after a crash too: the table `ost_group`.
//!
//! Before an object changes, its group is in the table, and that on disk: a change can reach the disk at any time. A group leaves
//! the table when nothing of it is under way or noted, and only groups that were not used for longest leave it: a write to one
//! that is there waits for no disk.
//!
//! Invariant: a group in memory has its row, or is about to have it on disk before somebody changes an object of it.

use std::collections::BTreeMap;

use coral_osd::{Batch, Device, OsdError};

use super::table::{self, Group};

/// Groups that stay in the table though all of their objects are counted. So many groups are counted again after a crash, besides
/// those that were being changed.
pub(super) const KEPT_GROUPS: usize = 32;

/// What is known of a group in the table.
#[derive(Debug, Default)]
struct Mark {
    /// Its row is on disk.
    safe: bool,
    /// Changes of its objects under way.
    under_way: u32,
    /// Objects of it that are noted to be measured.
    noted: u32,
    /// When it was used last, in uses of any group.
    used: u64,
}

/// The groups in the table.
#[derive(Debug, Default)]
pub(super) struct Groups {
    marks: BTreeMap<Group, Mark>,
    uses: u64,
}

impl Groups {
    /// A change of an object in `group` begins. True: its row is on disk, and the change may be made; else it may be once what is
    /// committed now is on disk, and [`Groups::safe`] says so.
    pub(super) fn begin(&mut self, kv: &Device, group: Group) -> Result<bool, OsdError> {
        self.uses += 1;
        let uses = self.uses;
        if !self.marks.contains_key(&group) {
            let mut row = Batch::new();
            row.put(table::GROUP, group.key(), Vec::new());
            kv.commit(row)?;
        }
        let mark = self.marks.entry(group).or_default();
        mark.under_way += 1;
        mark.used = uses;
        Ok(mark.safe)
    }

    /// The row of the group is on disk.
    pub(super) fn safe(&mut self, group: Group) {
        if let Some(mark) = self.marks.get_mut(&group) {
            mark.safe = true;
        }
    }

    /// A group that an earlier start left in the table is under way until it is counted.
    pub(super) fn found(&mut self, group: Group) {
        self.marks.entry(group).or_default().under_way += 1;
    }

    /// What [`Groups::begin`] or [`Groups::found`] began has ended.
    pub(super) fn end(&mut self, group: Group) {
        let mark = self.marks.get_mut(&group);
        mark.expect("a group is there while a change of it is under way")
            .under_way -= 1;
    }

    /// One more object of it is noted. It is under way still.
    pub(super) fn noted(&mut self, group: Group) {
        self.marks.entry(group).or_default().noted += 1;
    }

    /// One of these is measured.
    pub(super) fn measured(&mut self, group: Group) {
        let mark = self.marks.get_mut(&group);
        mark.expect("a group is there while an object of it is noted")
            .noted -= 1;
    }

    /// Takes groups out of the table of which everything is counted and on disk, those used longest ago first, down to `keep`.
    pub(super) fn trim(&mut self, kv: &Device, keep: usize) -> Result<(), OsdError> {
        let more = self.marks.len().saturating_sub(keep);
        let idle = |(group, m): (&Group, &Mark)| {
            (m.under_way == 0 && m.noted == 0).then_some((m.used, *group))
        };
        let mut idle: Vec<_> = self.marks.iter().filter_map(idle).collect();
        idle.sort_unstable();
        idle.truncate(more);
        let mut gone = Batch::new();
        for (_, group) in &idle {
            gone.del(table::GROUP, group.key());
        }
        if !gone.is_empty() {
            kv.commit(gone)?;
        }
        for (_, group) in idle {
            self.marks.remove(&group);
        }
        Ok(())
    }
}
