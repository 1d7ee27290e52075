//! The tables of what owners use on an OST.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `ost_object` | sequence (8 B big-endian), object id (8 B) | owner (uid, gid, project, 4 B each) and bytes (8 B), as counted |
//! | `ost_usage` | uid, gid, project (4 B each, big-endian) | objects and bytes of that owner (8 B each) |
//! | `ost_group` | sequence (8 B), object id / [`GROUP_OBJECTS`] (8 B) | empty: objects of it may be other than counted |
//! | `ost_meta` | `counted` | the start of the target (4 B) that counts in these tables |
//!
//! Invariant: the sums of `ost_usage` are those of the rows of `ost_object`: both change in one batch.

use std::ops::Range;

use coral_osd::{Batch, Kv, ObjectId, OsdError, Table};

use crate::quota::{self, Owner, Used};

/// Objects as they were counted.
pub(super) const OBJECT: Table = Table("ost_object");
/// Sums of them, by owner.
pub(super) const USAGE: Table = Table("ost_usage");
/// Groups of objects that may have changed since.
pub(super) const GROUP: Table = Table("ost_group");
/// What is known of these tables.
const META: Table = Table("ost_meta");

/// Key of [`counted_by`].
const COUNTED: &[u8] = b"counted";

/// Consecutive object ids that are noted together before they change.
pub(super) const GROUP_OBJECTS: u64 = 4096;

/// Objects with consecutive ids of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    seq: u64,
    number: u64,
}

impl Group {
    /// The group of an object.
    pub(super) fn of(id: ObjectId) -> Group {
        Group {
            seq: id.seq,
            number: id.oid / GROUP_OBJECTS,
        }
    }

    /// Every id in it, whether there is such an object or not.
    pub(super) fn ids(self) -> impl Iterator<Item = ObjectId> {
        let first = self.number * GROUP_OBJECTS;
        (0..GROUP_OBJECTS).map(move |i| ObjectId {
            seq: self.seq,
            oid: first + i,
        })
    }

    /// Those of them that are of the sequence `seq` and in `ids`.
    pub(super) fn ids_of(
        self,
        seq: u64,
        ids: &Range<u64>,
    ) -> impl DoubleEndedIterator<Item = ObjectId> {
        let first = self.number * GROUP_OBJECTS;
        let last = first + (GROUP_OBJECTS - 1);
        let to = match self.seq == seq {
            true => ids.end.min(last.saturating_add(1)),
            false => 0,
        };
        (ids.start.max(first)..to).map(move |oid| ObjectId { seq, oid })
    }

    pub(super) fn key(self) -> Vec<u8> {
        [self.seq.to_be_bytes(), self.number.to_be_bytes()].concat()
    }

    fn of_key(key: &[u8]) -> Option<Group> {
        let (seq, number) = words(key)?;
        (number <= u64::MAX / GROUP_OBJECTS).then_some(Group { seq, number })
    }
}

/// Groups that may hold objects other than counted.
pub(super) fn groups(kv: &dyn Kv) -> Result<Vec<Group>, OsdError> {
    let rows = kv.range(GROUP, &[], None, usize::MAX)?;
    rows.iter()
        .map(|(k, _)| Group::of_key(k).ok_or_else(|| torn("ost_group")))
        .collect()
}

/// The start of the target that counted in these tables last: with any other before this one, something may be missing in them.
pub(super) fn counted_by(kv: &dyn Kv) -> Result<Option<u32>, OsdError> {
    let raw = kv.get(META, COUNTED)?;
    Ok(raw
        .and_then(|v| v.as_ref().try_into().ok())
        .map(u32::from_le_bytes))
}

pub(super) fn put_counted_by(batch: &mut Batch, instance: u32) {
    batch.put(META, COUNTED, instance.to_le_bytes().to_vec());
}

/// Whether every object is counted in these tables, or is of one of their groups; `instance` is the last start of the
/// target.
pub(super) fn holds_all(kv: &dyn Kv, instance: u32) -> Result<bool, OsdError> {
    Ok(counted_by(kv)? == Some(instance))
}

/// The greatest id in `ids` of an object of the sequence `seq` that is counted.
pub(super) fn last_counted(
    kv: &dyn Kv,
    seq: u64,
    ids: &Range<u64>,
) -> Result<Option<u64>, OsdError> {
    let end = object_key(ObjectId { seq, oid: ids.end });
    let some_from = |oid| -> Result<bool, OsdError> {
        let from = object_key(ObjectId { seq, oid });
        Ok(!kv.range(OBJECT, &from, Some(&end), 1)?.is_empty())
    };
    if !some_from(ids.start)? {
        return Ok(None);
    }
    let (mut there, mut none) = (ids.start, ids.end);
    while none - there > 1 {
        let middle = there + (none - there) / 2;
        match some_from(middle)? {
            true => there = middle,
            false => none = middle,
        }
    }
    Ok(Some(there))
}

fn object_key(id: ObjectId) -> Vec<u8> {
    [id.seq.to_be_bytes(), id.oid.to_be_bytes()].concat()
}

fn words(key: &[u8]) -> Option<(u64, u64)> {
    let word = |b: &[u8]| Some(u64::from_be_bytes(b.try_into().ok()?));
    Some((word(key.get(..8)?)?, word(key.get(8..)?)?))
}

/// Whose an object was and what it used, as counted.
pub(super) fn object(kv: &dyn Kv, id: ObjectId) -> Result<Option<(Owner, u64)>, OsdError> {
    let Some(raw) = kv.get(OBJECT, &object_key(id))? else {
        return Ok(None);
    };
    object_of(&raw).map(Some).ok_or_else(|| torn("ost_object"))
}

fn object_of(raw: &[u8]) -> Option<(Owner, u64)> {
    let raw: &[u8; 20] = raw.try_into().ok()?;
    let id = |i: usize| u32::from_le_bytes([raw[i], raw[i + 1], raw[i + 2], raw[i + 3]]);
    let owner = Owner {
        uid: id(0),
        gid: id(4),
        projid: id(8),
    };
    Some((owner, u64::from(id(12)) | u64::from(id(16)) << 32))
}

/// Changes the row of an object.
pub(super) fn put_object(batch: &mut Batch, id: ObjectId, now: Option<(Owner, u64)>) {
    let key = object_key(id);
    let Some((owner, bytes)) = now else {
        batch.del(OBJECT, key);
        return;
    };
    let mut value = Vec::with_capacity(20);
    for id in [owner.uid, owner.gid, owner.projid] {
        value.extend_from_slice(&id.to_le_bytes());
    }
    value.extend_from_slice(&bytes.to_le_bytes());
    debug_assert_eq!(object_of(&value), Some((owner, bytes)));
    batch.put(OBJECT, key, value);
}

/// At most `limit` objects that are counted, behind `last`.
pub(super) fn objects_after(
    kv: &dyn Kv,
    last: Option<ObjectId>,
    limit: usize,
) -> Result<Vec<ObjectId>, OsdError> {
    let from = last.map_or(Vec::new(), |id| [&object_key(id)[..], &[0]].concat());
    let rows = kv.range(OBJECT, &from, None, limit)?;
    let id = |k: &[u8]| words(k).map(|(seq, oid)| ObjectId { seq, oid });
    rows.iter()
        .map(|(k, _)| id(k).ok_or_else(|| torn("ost_object")))
        .collect()
}

/// The sum of an owner.
pub(super) fn sum(kv: &dyn Kv, owner: &Owner) -> Result<Used, OsdError> {
    let key = quota::owner_key(owner);
    match kv.get(USAGE, &key)? {
        None => Ok(Used::default()),
        Some(raw) => quota::row_of(&key, &raw)
            .map(|(_, used)| used)
            .ok_or_else(|| torn("ost_usage")),
    }
}

fn torn(table: &str) -> OsdError {
    OsdError::Corrupt(format!("a row of the table {table}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_in_its_group_and_in_no_other() {
        for oid in [0, 1, GROUP_OBJECTS - 1, GROUP_OBJECTS, u64::MAX] {
            let id = ObjectId { seq: 7, oid };
            let group = Group::of(id);
            assert_eq!(Group::of_key(&group.key()), Some(group));
            assert_eq!(group.ids().filter(|i| *i == id).count(), 1);
            assert!(group.ids().all(|i| Group::of(i) == group));
        }
        assert_eq!(Group::of_key(&[0xff; 16]), None, "no object has that id");
        assert_eq!(Group::of_key(&[0; 15]), None);
    }

    #[test]
    fn the_last_object_is_that_of_its_range() {
        let osd = coral_osd::OsdMem::new();
        let mut b = Batch::new();
        for oid in [1, 7, 4096, 1 << 40 | 1, 1 << 40 | 77, 2 << 40] {
            put_object(&mut b, ObjectId { seq: 0, oid }, Some(Default::default()));
        }
        put_object(
            &mut b,
            ObjectId { seq: 5, oid: 9 },
            Some(Default::default()),
        );
        osd.commit(b).wait().unwrap();
        let last = |seq, ids| last_counted(&osd, seq, &ids).unwrap();
        assert_eq!(last(0, 1..1 << 40), Some(4096));
        assert_eq!(last(0, 1..4096), Some(7));
        assert_eq!(last(0, 8..4096), None);
        assert_eq!(last(0, 1 << 40..2 << 40), Some(1 << 40 | 77));
        assert_eq!(last(0, 3 << 40..4 << 40), None);
        assert_eq!(last(5, 0..u64::MAX), Some(9));
    }

    #[test]
    fn rows_that_are_cut_are_no_rows() {
        let osd = coral_osd::OsdMem::new();
        let id = ObjectId { seq: 1, oid: 2 };
        let mut b = Batch::new();
        put_object(&mut b, id, Some((Owner::default(), u64::MAX)));
        osd.commit(b).wait().unwrap();
        assert_eq!(
            object(&osd, id).unwrap(),
            Some((Owner::default(), u64::MAX))
        );
        assert_eq!(objects_after(&osd, None, 9).unwrap(), [id]);
        assert_eq!(objects_after(&osd, Some(id), 9).unwrap(), []);
        let mut b = Batch::new();
        b.put(OBJECT, object_key(id), vec![0; 19]);
        b.put(GROUP, vec![1], Vec::new());
        osd.commit(b).wait().unwrap();
        assert!(object(&osd, id).is_err() && groups(&osd).is_err());
    }
}
