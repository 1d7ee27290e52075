//! Ids of OST objects, and which OST gets the next (`lustre/lod/lod_qos.c`).
//!
//! This MDT gives the ids of the objects of its files; an OST makes an object at its first write.
//! Invariant: an id is given once, whatever becomes of the transaction it was for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use bytes::Bytes;
use coral_osd::{Batch, Kv, OsdError, SyncAhead};
use coral_wire::Errno;
use coral_wire::layout::{LOV_ALL_STRIPES_WIDE, LOV_MAX_STRIPE_COUNT};

use super::fld;
use super::store::{MdtResult, Store, Txn};
use super::table;
use super::turns::Turns;

/// Object ids reserved with one write: a crash skips at most so many per OST.
pub(super) const RESERVE_IDS: u64 = 4096;

/// Ids that are left out where objects are found that this MDT does not know.
const LEFT_OUT: u64 = 1 << 20;

/// Imbalance of free space, in percent, from which it weighs (`lod.*.qos_threshold_rr`).
const QOS_THRESHOLD_PERCENT: u64 = 17;

/// An OST as allocation sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OstSpace {
    /// Its index.
    pub index: u32,
    /// Bytes an ordinary writer may use; `None` while unknown.
    pub avail_bytes: Option<u64>,
    /// Whether new objects may go there: it is not switched off by the configuration, and it answers.
    pub active: bool,
}

/// Object ids of each OST, and whose turn it is.
#[derive(Debug, Default)]
pub struct ObjectIds {
    next: BTreeMap<u32, Window>,
    turns: Turns,
    /// The OSTs are not known yet.
    pub(super) awaits_osts: bool,
    /// First id of each OST that the transaction under way was given.
    begun: BTreeMap<u32, u64>,
    /// What earlier starts left was looked through for objects that no file refers to ([`super::orphans`]).
    pub(super) settled: bool,
}

/// Ids of one OST.
#[derive(Debug)]
struct Window {
    /// The next to be given.
    next: u64,
    /// Those below are reserved on disk, or will be when what [`Device::sync_soon`] began has ended.
    safe: u64,
    /// Those below are reserved in a batch that was committed.
    reserved: u64,
    /// The sync of the last reservation, and what is safe with it.
    ahead: Option<(u64, SyncAhead)>,
}

impl Window {
    /// At the start: ids below `reserved` may have been given.
    fn after(reserved: u64) -> Window {
        Window {
            next: reserved,
            safe: reserved,
            reserved,
            ahead: None,
        }
    }
}

/// First part of the keys of [`reserved`].
const RESERVED: &[u8] = b"oid/";

/// Key of [`floor`].
const FLOOR: &[u8] = b"oid_floor";

/// First part of the keys of [`seen`].
const SEEN: &[u8] = b"oid_seen/";

fn ost_key(what: &[u8], ost: u32) -> Vec<u8> {
    [what, &ost.to_be_bytes()].concat()
}

impl ObjectIds {
    /// The next object id of `ost`. Reservations are written by themselves, and on disk before a client is told an id of them: an
    /// id is never given twice, whatever becomes of the transaction it is for, also after power
    /// loss (a client replays a create with the objects it was told). The next one is made when half of the last is used, so
    /// that it is on disk before it is needed.
    pub(super) fn take(&mut self, store: &Store, ost: u32) -> MdtResult<u64> {
        let window = match self.next.entry(ost) {
            Entry::Occupied(window) => window.into_mut(),
            Entry::Vacant(none) => none.insert(Window::after(reserved(store, ost)?)),
        };
        let next = window.next;
        if next + RESERVE_IDS / 2 >= window.reserved {
            let mut b = Batch::new();
            put_reserved(&mut b, ost, window.reserved + RESERVE_IDS);
            if self.settled {
                // All transactions but the one under way are on disk with this, or failed.
                put_seen(&mut b, ost, self.begun.get(&ost).copied().unwrap_or(next));
            }
            store.kv().commit(b)?;
            window.reserved += RESERVE_IDS;
            window.ahead = Some((window.reserved, store.kv().sync_ahead()?));
        }
        if next >= window.safe {
            let (upto, synced) = window.ahead.take().expect("reserved, and not safe yet");
            if !synced.has_ended() {
                // Faster than the disk: the client is told when it is safe.
                store.kv().sync_soon()?;
            }
            window.safe = upto;
        }
        assert!(
            next < window.safe && next < window.reserved,
            "object id {next} of OST {ost} is not reserved"
        );
        window.next = next + 1;
        self.begun.entry(ost).or_insert(next);
        Ok(next)
    }

    /// An object of `ost` has the id `last`: no id up to it is given any more. Some further ids are left out too: of objects that
    /// were given to files, and not made yet.
    pub(super) fn at_least(&mut self, store: &Store, ost: u32, last: u64) -> MdtResult<()> {
        let reserved = reserved(store, ost)?;
        if last < reserved {
            return Ok(());
        }
        let next = last + LEFT_OUT;
        if next > last_floor(store.fld().index()) {
            tracing::error!(
                ost,
                last,
                "this OST has an object with an id that no MDT comes to give: somebody made it. New files may get ids of objects that are there, if an older copy of this MDT was put back"
            );
            return Ok(());
        }
        tracing::warn!(
            ost,
            given = reserved,
            found = last,
            "this OST has objects that this MDT does not know to have given: an older copy of the MDT was put back. New files get other objects; `coral check` tells of those that no file has"
        );
        let mut b = Batch::new();
        put_reserved(&mut b, ost, next);
        put_floor(&**store.kv(), &mut b, next)?;
        if self.settled {
            put_seen(&mut b, ost, next);
        }
        store.kv().commit(b)?;
        store.kv().sync_soon()?;
        self.next.insert(ost, Window::after(next));
        self.begun.remove(&ost);
        Ok(())
    }

    /// A transaction begins; the one before is committed, or failed.
    pub(super) fn begin(&mut self) {
        self.begun.clear();
    }

    /// Picks OSTs for `count` stripes, the first being `first` if given: round robin, by free space
    /// where that is out of balance. An OST that is not active is left out, also as `first`: the next one takes its
    /// place (`lod_ost_alloc_specific`). ENOSPC if none is active, EINPROGRESS
    /// while none is known yet, EINVAL if `first` is no OST.
    pub(super) fn pick(
        &mut self,
        osts: &[OstSpace],
        count: u16,
        first: Option<u32>,
        over: bool,
    ) -> Result<Vec<u32>, Errno> {
        if first.is_some_and(|first| !osts.is_empty() && osts.iter().all(|o| o.index != first)) {
            return Err(Errno::EINVAL);
        }
        let usable: Vec<&OstSpace> = osts.iter().filter(|o| o.active).collect();
        if usable.is_empty() {
            return Err(match self.awaits_osts {
                true => Errno::EINPROGRESS,
                false => Errno::ENOSPC,
            });
        }
        let all = count >= LOV_ALL_STRIPES_WIDE;
        let want = if all {
            usable.len()
        } else {
            usize::from(count).max(1)
        };
        let distinct = want.min(usable.len());
        let ring: Vec<u32> = match first {
            Some(first) => {
                let at = usable.iter().position(|o| o.index >= first).unwrap_or(0);
                (0..distinct)
                    .map(|i| usable[(at + i) % usable.len()].index)
                    .collect()
            }
            None => self.weighted(&usable, distinct),
        };
        let stripes = if over {
            want.min(LOV_MAX_STRIPE_COUNT)
        } else {
            distinct
        };
        Ok((0..stripes).map(|i| ring[i % ring.len()]).collect())
    }

    fn weighted(&mut self, usable: &[&OstSpace], count: usize) -> Vec<u32> {
        let indices = usable.iter().map(|o| o.index);
        let targets: Vec<(u32, i128)> = indices.zip(weights(usable)).collect();
        self.turns.take(&targets, count)
    }
}

/// Equal unless free space is out of balance, then free MiB; a full OST weighs nothing. While the
/// space of one is unknown they are equal too.
fn weights(usable: &[&OstSpace]) -> Vec<i128> {
    let avail: Option<Vec<u64>> = usable
        .iter()
        .map(|o| o.avail_bytes.map(|b| b >> 20))
        .collect();
    let equal = vec![1; usable.len()];
    let Some(avail) = avail else { return equal };
    let most = avail.iter().copied().max().unwrap_or(0);
    let least = avail.iter().copied().min().unwrap_or(0);
    if most - least <= most / 100 * QOS_THRESHOLD_PERCENT {
        return equal;
    }
    avail.into_iter().map(i128::from).collect()
}

/// First object id of `ost` not yet reserved.
pub fn reserved(store: &Store, ost: u32) -> MdtResult<u64> {
    let raw = store.kv().get(table::META, &ost_key(RESERVED, ost))?;
    let id = raw
        .and_then(|v| v.as_ref().try_into().ok())
        .map_or(first_id(store.fld().index()), u64::from_le_bytes);
    Ok(id.max(floor(&**store.kv())?))
}

/// The first object id that the MDT `index` gives, on every OST. Each MDT has 2^40 ids of its own: ids of group 0 have 48 bits.
pub(crate) fn first_id(index: u32) -> u64 {
    u64::from(index) << MDT_SHIFT | 1
}

/// Behind the last object id that the MDT `index` may give.
pub(crate) fn end_id(index: u32) -> u64 {
    (u64::from(index) + 1) << MDT_SHIFT
}

/// The MDT that gave an object id.
pub fn mdt_of(id: u64) -> u32 {
    u32::try_from(id >> MDT_SHIFT).unwrap_or(u32::MAX)
}

/// Position of an MDT's index in the object ids that it gives.
const MDT_SHIFT: u32 = 40;

/// The same of every OST that has any.
pub(super) fn all_reserved(kv: &dyn Kv) -> Result<Vec<(u32, u64)>, OsdError> {
    let end = table::prefix_end(RESERVED);
    let rows = kv.range(table::META, RESERVED, end.as_deref(), usize::MAX)?;
    let row = |(k, v): &(Bytes, Bytes)| {
        let ost = k
            .strip_prefix(RESERVED)?
            .try_into()
            .map(u32::from_be_bytes)
            .ok()?;
        Some((ost, u64::from_le_bytes(v.as_ref().try_into().ok()?)))
    };
    Ok(rows.iter().filter_map(row).collect())
}

/// Every id of `ost` below this was looked through, or given to a file that is on disk.
pub(super) fn seen(kv: &dyn Kv, ost: u32) -> Result<Option<u64>, OsdError> {
    let raw = kv.get(table::META, &ost_key(SEEN, ost))?;
    Ok(raw
        .and_then(|v| v.as_ref().try_into().ok())
        .map(u64::from_le_bytes))
}

/// No id below this one is given any more, of no OST: objects with such ids may be what is left of files that an older copy of the
/// MDT does not know.
pub(super) fn floor(kv: &dyn Kv) -> Result<u64, OsdError> {
    let raw = kv.get(table::META, FLOOR)?;
    let id = raw.and_then(|v| v.as_ref().try_into().ok());
    Ok(id.map_or(0, u64::from_le_bytes))
}

fn put_floor(kv: &dyn Kv, b: &mut Batch, id: u64) -> Result<(), OsdError> {
    let id = floor(kv)?.max(id);
    b.put(table::META, FLOOR, id.to_le_bytes().to_vec());
    Ok(())
}

/// This is an older copy of the MDT: ids that it may have given since it was made are not given again. They are taken to be fewer
/// than 2^32 of each OST.
pub(super) fn leave_out_given(kv: &dyn Kv, b: &mut Batch) -> Result<(), OsdError> {
    let index = fld::index(kv)?;
    let reserved = all_reserved(kv)?.into_iter().map(|(_, id)| id);
    let most = reserved.fold(floor(kv)?.max(first_id(index)), u64::max);
    put_floor(kv, b, (most + (1 << 32)).min(last_floor(index)))
}

/// Ids are left out up to here; the rest is for files.
fn last_floor(index: u32) -> u64 {
    end_id(index) - (1 << (MDT_SHIFT - 1))
}

pub(super) fn put_reserved(b: &mut Batch, ost: u32, upto: u64) {
    b.put(
        table::META,
        ost_key(RESERVED, ost),
        upto.to_le_bytes().to_vec(),
    );
}

pub(super) fn put_seen(b: &mut Batch, ost: u32, upto: u64) {
    b.put(table::META, ost_key(SEEN, ost), upto.to_le_bytes().to_vec());
}

/// Ids that this MDT gave to files that lie on another one now: their objects are not lost, though no file here refers to them.
const MOVED: &[u8] = b"oid_moved/";

fn moved_key(ost: u32, id: u64) -> Vec<u8> {
    [MOVED, &table::destroy_key(ost, id)[..]].concat()
}

/// A file with these objects goes to another MDT.
pub(super) fn moved_away(t: &mut Txn<'_>, lov: &Bytes) -> MdtResult<()> {
    let here = t.store.fld().index();
    for (ost, id) in super::stripe::objects(lov) {
        let lost_before = seen(&**t.store.kv(), ost)?.unwrap_or(0);
        if mdt_of(id) == here && id >= lost_before {
            t.put(table::META, moved_key(ost, id), Bytes::new());
        }
    }
    Ok(())
}

/// Those ids of one OST, from `range`.
pub(super) fn moved(kv: &dyn Kv, ost: u32, range: Range<u64>) -> Result<Vec<u64>, OsdError> {
    let (from, to) = (moved_key(ost, range.start), moved_key(ost, range.end));
    let rows = kv.range(table::META, &from, Some(&to), usize::MAX)?;
    let id = |(k, _): &(Bytes, Bytes)| {
        let key = k.slice(MOVED.len()..);
        table::destroy_of_key(&key).map(|(_, id)| id)
    };
    Ok(rows.iter().filter_map(id).collect())
}

/// Forgets those below `upto`, of which none is looked for any more.
pub(super) fn forget_moved(
    kv: &dyn Kv,
    b: &mut Batch,
    ost: u32,
    upto: u64,
) -> Result<(), OsdError> {
    for id in moved(kv, ost, 0..upto)? {
        b.del(table::META, moved_key(ost, id));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use coral_wire::layout::LOV_ALL_STRIPES;

    /// OSTs with so many GiB free.
    pub(in crate::mdt) fn osts(avail: &[u64]) -> Vec<OstSpace> {
        let ost = |(i, a): (usize, &u64)| OstSpace {
            index: i as u32,
            avail_bytes: Some(a << 30),
            active: true,
        };
        avail.iter().enumerate().map(ost).collect()
    }

    #[test]
    fn round_robin_when_balanced() {
        let mut ids = ObjectIds::default();
        let o = osts(&[10, 10, 10, 10]);
        let picks: Vec<_> = (0..4)
            .map(|_| ids.pick(&o, 1, None, false).unwrap()[0])
            .collect();
        assert_eq!(picks, [0, 1, 2, 3]);
        assert_eq!(ids.pick(&o, 2, None, false).unwrap(), [0, 1]);
        assert_eq!(ids.pick(&o, 2, None, false).unwrap(), [2, 3]);
        let starts: Vec<_> = (0..4)
            .map(|_| ids.pick(&o, LOV_ALL_STRIPES, None, false).unwrap()[0])
            .collect();
        assert_eq!(
            starts
                .iter()
                .collect::<std::collections::BTreeSet<_>>()
                .len(),
            4,
            "starts rotate: {starts:?}"
        );
        assert_eq!(ids.pick(&o, 2, Some(3), false).unwrap(), [3, 0]);
        assert_eq!(ids.pick(&o, 2, Some(9), false), Err(Errno::EINVAL));
        assert_eq!(ids.pick(&o, 9, None, true).unwrap().len(), 9);
        assert_eq!(ids.pick(&[], 1, None, false), Err(Errno::ENOSPC));
    }

    #[test]
    fn an_ost_that_is_down_gets_nothing() {
        let mut ids = ObjectIds::default();
        let mut o = osts(&[10, 10, 10, 10]);
        o[1].active = false;
        let picks: Vec<_> = (0..6)
            .map(|_| ids.pick(&o, 1, None, false).unwrap()[0])
            .collect();
        assert!(
            !picks.contains(&1) && picks.contains(&0) && picks.contains(&2) && picks.contains(&3),
            "{picks:?}"
        );
        assert_eq!(ids.pick(&o, LOV_ALL_STRIPES, None, false).unwrap().len(), 3);
        assert_eq!(
            ids.pick(&o, 2, Some(1), false).unwrap(),
            [2, 3],
            "the next takes the place of the first asked for"
        );
        o[3].active = false;
        assert_eq!(ids.pick(&o, 2, Some(3), false).unwrap(), [0, 2]);
        assert_eq!(ids.pick(&o, 1, Some(4), false), Err(Errno::EINVAL));
        o.iter_mut().for_each(|o| o.active = false);
        assert_eq!(ids.pick(&o, 1, None, false), Err(Errno::ENOSPC));
    }

    #[test]
    fn free_space_weighs_when_out_of_balance() {
        let mut ids = ObjectIds::default();
        let o = osts(&[30, 10, 0]);
        let picks: Vec<_> = (0..40)
            .map(|_| ids.pick(&o, 1, None, false).unwrap()[0])
            .collect();
        assert_eq!(picks.iter().filter(|&&p| p == 0).count(), 30);
        assert_eq!(picks.iter().filter(|&&p| p == 2).count(), 0);
        let mut o = osts(&[10, 10]);
        o[1].avail_bytes = None;
        let picks: Vec<_> = (0..10)
            .map(|_| ids.pick(&o, 1, None, false).unwrap()[0])
            .collect();
        assert_eq!(
            picks.iter().filter(|&&p| p == 0).count(),
            5,
            "an OST not heard of yet draws no more than its share"
        );
    }

    #[test]
    fn ids_that_objects_have_are_not_given() {
        let store = Store::open(std::sync::Arc::new(coral_osd::OsdMem::new())).unwrap();
        let mut ids = ObjectIds::default();
        assert_eq!(ids.take(&store, 3).unwrap(), 1);
        ids.at_least(&store, 3, 4096).unwrap();
        assert_eq!(ids.take(&store, 3).unwrap(), 2, "they are reserved");
        ids.at_least(&store, 3, 70_000).unwrap();
        let next = 70_000 + LEFT_OUT;
        assert_eq!(ids.take(&store, 3).unwrap(), next);
        let kv = &**store.kv();
        assert_eq!(floor(kv).unwrap(), next);
        ids.settled = true;
        ids.at_least(&store, 3, 2 * next).unwrap();
        assert_eq!(ids.take(&store, 3).unwrap(), 2 * next + LEFT_OUT);
        assert_eq!(
            seen(kv, 3).unwrap(),
            Some(2 * next + LEFT_OUT),
            "the objects of lost files are not looked for"
        );
        // that would end the ids of this MDT
        ids.at_least(&store, 3, (1 << MDT_SHIFT) - 1).unwrap();
        assert_eq!(ids.take(&store, 3).unwrap(), 2 * next + LEFT_OUT + 1);
        let mut again = ObjectIds::default();
        assert!(again.take(&store, 3).unwrap() > 2 * next + LEFT_OUT);
        assert_eq!(
            again.take(&store, 4).unwrap(),
            2 * next + LEFT_OUT,
            "of another OST"
        );
    }
}
