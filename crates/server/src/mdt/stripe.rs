//! Layouts: what a new file gets, and which OST objects it is made of (`lustre/lod/lod_lov.c`,
//! `lod_qos.c`).
//!
//! A file's layout comes from the request, else its directory's default, else the root's, else the
//! file system's. Each stripe is an object {id, group 0} of an OST; this MDT gives the ids
//! ([`ObjectIds`]), an OST makes the object at its first write. Composite layouts get objects for
//! a component when it is first written ([`instantiate`]). A first component on the MDT has none ([`super::dom`]). Absent: mirrors,
//! self-extending components, pools beyond keeping their name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use coral_osd::{Batch, Kv, OsdError, SyncAhead};
use coral_wire::layout::{
    CompEntry, CompMd, LOV_ALL_STRIPES_WIDE, LOV_MAGIC_SPECIFIC, LOV_MAGIC_V1, LOV_MAGIC_V3,
    LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE, LOV_OFFSET_DEFAULT, Layout, LovMd, LovOstData,
    SubLayout, lcme, pattern,
};
use coral_wire::{DecodeError, Errno, Fid, OstId};

use super::dom::STRIPE_BYTES;
use super::store::{MdtResult, Store};
use super::table;

/// Object ids reserved with one write: a crash skips at most so many per OST.
pub(super) const RESERVE_IDS: u64 = 4096;
/// Imbalance of free space, in percent, from which it weighs (`lod.*.qos_threshold_rr`).
const QOS_THRESHOLD_PERCENT: u64 = 17;

/// Layout of files nobody said anything about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeDefaults {
    /// Bytes.
    pub stripe_size: u32,
    /// OSTs; [`coral_wire::layout::LOV_ALL_STRIPES`] for all.
    pub stripe_count: u16,
}

impl Default for StripeDefaults {
    fn default() -> Self {
        StripeDefaults {
            stripe_size: 4 << 20,
            stripe_count: 1,
        }
    }
}

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

/// OST objects a layout attribute names, as (OST index, object id). Objects in other sequences than
/// group 0 (made by a Lustre MDT) are left out, as is what does not parse.
pub fn objects(lov: &Bytes) -> Vec<(u32, u64)> {
    try_objects(lov).unwrap_or_default()
}

/// The same; an error for what does not parse.
pub fn try_objects(lov: &Bytes) -> Result<Vec<(u32, u64)>, DecodeError> {
    let plain = |l: &LovMd| -> Vec<(u32, u64)> {
        let own = l
            .objects
            .iter()
            .filter(|o| o.oi.is_group0() && o.oi.object_id() != 0);
        own.map(|o| (o.ost_idx, o.oi.object_id())).collect()
    };
    if lov.is_empty() {
        return Ok(Vec::new());
    }
    Ok(match Layout::decode(lov)? {
        Layout::Plain(l) => plain(&l),
        Layout::Composite(c) => c
            .entries
            .iter()
            .filter_map(|e| e.plain())
            .flat_map(plain)
            .collect(),
        Layout::Foreign(_) => Vec::new(),
    })
}

/// Object ids of each OST, and whose turn it is.
#[derive(Debug, Default)]
pub struct ObjectIds {
    next: BTreeMap<u32, Window>,
    credit: BTreeMap<u32, i128>,
    turn: usize,
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
    fn take(&mut self, store: &Store, ost: u32) -> MdtResult<u64> {
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
        window.next = next + 1;
        self.begun.entry(ost).or_insert(next);
        Ok(next)
    }

    /// A transaction begins; the one before is committed, or failed.
    pub(super) fn begin(&mut self) {
        self.begun.clear();
    }

    /// Picks OSTs for `count` stripes, the first being `first` if given: round robin, by free space
    /// where that is out of balance. An OST that is not active is left out, also as `first`: the next one takes its
    /// place (`lod_ost_alloc_specific`). ENOSPC if none is active, EINVAL if `first` is no OST.
    fn pick(
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
            return Err(Errno::ENOSPC);
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

    /// Smooth weighted round robin: each OST earns its weight, the richest are taken and pay.
    fn weighted(&mut self, usable: &[&OstSpace], count: usize) -> Vec<u32> {
        let weights = weights(usable);
        let total: i128 = weights.iter().sum();
        for (o, w) in usable.iter().zip(&weights) {
            *self.credit.entry(o.index).or_default() += w * count as i128;
        }
        let mut order: Vec<usize> = (0..usable.len()).collect();
        order.sort_by_key(|&i| (-self.credit[&usable[i].index], i));
        let start = if count == usable.len() {
            self.turn % count
        } else {
            order[0]
        };
        self.turn = self.turn.wrapping_add(1);
        order.truncate(count);
        // stripes follow each other in OST order from the first one
        order.sort_by_key(|&i| (i + usable.len() - start) % usable.len());
        for &i in &order {
            *self.credit.entry(usable[i].index).or_default() -= total;
        }
        order.into_iter().map(|i| usable[i].index).collect()
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
    Ok(raw
        .and_then(|v| v.as_ref().try_into().ok())
        .map_or(first_id(store.fld().index()), u64::from_le_bytes))
}

/// The first object id that the MDT `index` gives, on every OST. Each MDT has 2^40 ids of its own: ids of group 0 have 48 bits.
pub(super) fn first_id(index: u32) -> u64 {
    u64::from(index) << 40 | 1
}

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

/// What allocation needs to know.
pub struct Allocator<'a> {
    /// Ids and turns.
    pub ids: &'a mut ObjectIds,
    /// The OSTs in index order.
    pub osts: &'a [OstSpace],
    /// The file system's default.
    pub defaults: StripeDefaults,
}

impl Allocator<'_> {
    /// The layout attribute of a new file `fid` for which `wanted` was asked (a user's request or a
    /// default; `None`: the file system's default).
    pub fn layout(&mut self, store: &Store, fid: &Fid, wanted: Option<&Bytes>) -> MdtResult<Bytes> {
        let Some(raw) = wanted else {
            let request = LovMd::request(0, 0, LOV_OFFSET_DEFAULT, None);
            return Ok(self.plain(store, fid, &request)?.encode());
        };
        match Layout::decode(raw).map_err(|_| Errno::EINVAL)? {
            Layout::Plain(l) => Ok(self.plain(store, fid, &l)?.encode()),
            Layout::Composite(c) => {
                check_composite(&c)?;
                let c = limit_dom(c);
                let entries = c
                    .entries
                    .into_iter()
                    .enumerate()
                    .map(|(i, e)| self.component(fid, i, e))
                    .collect::<Result<_, _>>()?;
                let fresh = CompMd::new(1, 0, 0, entries);
                Ok(self.instantiate(store, fid, fresh, 0, 1)?.0.encode())
            }
            Layout::Foreign(_) => Ok(raw.clone()),
        }
    }

    /// A component as stored before it has objects.
    fn component(&self, fid: &Fid, i: usize, e: CompEntry) -> MdtResult<CompEntry> {
        let SubLayout::Plain(mut md) = e.md else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        let (id, start, end) = (i as u32 + 1, e.head.start, e.head.end);
        if md.is_dom() {
            let data = LovMd {
                pattern: pattern::MDT,
                oi: file_oi(fid),
                ..LovMd::new(end as u32, Vec::new())
            };
            return Ok(CompEntry::new(id, lcme::INIT, start, end, data));
        }
        self.check_plain(&md)?;
        md.stripe_size = self.stripe_size(&md);
        if md.stripe_count == 0 {
            md.stripe_count = self.defaults.stripe_count;
        }
        md.oi = file_oi(fid);
        Ok(CompEntry::new(
            id,
            e.head.flags & (lcme::PREF_RD | lcme::PREF_WR),
            start,
            end,
            md,
        ))
    }

    fn stripe_size(&self, l: &LovMd) -> u32 {
        if l.stripe_size == 0 {
            self.defaults.stripe_size
        } else {
            l.stripe_size
        }
    }

    /// EINVAL for what no layout may ask, EOPNOTSUPP for what Coral does not do.
    fn check_plain(&self, l: &LovMd) -> Result<(), Errno> {
        let kind = l.pattern & !pattern::F_MASK;
        if kind & (pattern::MDT | pattern::PARITY | pattern::COMPRESS | pattern::FOREIGN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if !l.stripe_size.is_multiple_of(LOV_MIN_STRIPE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let counted = l.stripe_count < LOV_ALL_STRIPES_WIDE;
        if counted && usize::from(l.stripe_count) > LOV_MAX_STRIPE_COUNT {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// A plain layout with objects.
    fn plain(&mut self, store: &Store, fid: &Fid, wanted: &LovMd) -> MdtResult<LovMd> {
        self.check_plain(wanted)?;
        let over = wanted.pattern & pattern::OVERSTRIPING != 0;
        let osts = if wanted.magic == LOV_MAGIC_SPECIFIC && !wanted.objects.is_empty() {
            self.listed(wanted, over)?
        } else {
            let count = if wanted.stripe_count == 0 {
                self.defaults.stripe_count
            } else {
                wanted.stripe_count
            };
            let first = (wanted.stripe_offset() != LOV_OFFSET_DEFAULT)
                .then(|| u32::from(wanted.stripe_offset()));
            self.ids.pick(self.osts, count, first, over)?
        };
        let mut objects = Vec::with_capacity(osts.len());
        for ost_idx in osts {
            let oi = OstId::group0(self.ids.take(store, ost_idx)?);
            objects.push(LovOstData {
                oi,
                ost_gen: 0,
                ost_idx,
            });
        }
        let pool = wanted.pool_name().is_some();
        Ok(LovMd {
            magic: if pool { LOV_MAGIC_V3 } else { LOV_MAGIC_V1 },
            pattern: pattern::RAID0 | wanted.pattern & pattern::OVERSTRIPING,
            oi: file_oi(fid),
            stripe_size: self.stripe_size(wanted),
            stripe_count: objects.len() as u16,
            layout_gen: 0,
            pool: wanted.pool,
            objects,
            tail: Bytes::new(),
        })
    }

    /// The OSTs a user listed: EREMOTEIO if one of them is not active (`lod_alloc_ost_list`).
    fn listed(&self, wanted: &LovMd, over: bool) -> Result<Vec<u32>, Errno> {
        let list: Vec<u32> = wanted.objects.iter().map(|o| o.ost_idx).collect();
        let known: Vec<&OstSpace> = list
            .iter()
            .filter_map(|i| self.osts.iter().find(|o| o.index == *i))
            .collect();
        let mut unique = list.clone();
        unique.sort_unstable();
        unique.dedup();
        if known.len() != list.len() || (!over && unique.len() != list.len()) {
            return Err(Errno::EINVAL);
        }
        if known.iter().any(|o| !o.active) {
            Err(Errno::EREMOTEIO)
        } else {
            Ok(list)
        }
    }

    /// Gives objects to every component that has none and covers part of `start..end`. Returns the
    /// layout and whether it changed; a change raises its generation.
    pub fn instantiate(
        &mut self,
        store: &Store,
        fid: &Fid,
        comp: CompMd,
        start: u64,
        end: u64,
    ) -> MdtResult<(CompMd, bool)> {
        let mut comp = comp;
        let mut changed = false;
        for e in &mut comp.entries {
            let (from, to) = (e.head.start, e.head.end);
            if e.is_init() || from >= end || to <= start {
                continue;
            }
            let SubLayout::Plain(md) = &e.md else {
                continue;
            };
            e.md = SubLayout::Plain(self.plain(store, fid, md)?);
            e.head.flags |= lcme::INIT;
            changed = true;
        }
        if changed {
            comp.layout_gen += 1;
            for e in &mut comp.entries {
                e.head.layout_gen = comp.layout_gen;
            }
            comp = comp.relayout();
        }
        Ok((comp, changed))
    }
}

/// `now` with the objects that `given`, the layout a client was told of before the restart, has for components that have none now;
/// `None` if that changes nothing, or if the two are not of one file.
pub fn adopt(mut now: CompMd, given: CompMd) -> Option<CompMd> {
    if now.entries.len() != given.entries.len() {
        return None;
    }
    let mut changed = false;
    for (e, g) in now.entries.iter_mut().zip(given.entries) {
        let (Some(here), Some(there)) = (e.plain(), g.plain()) else {
            continue;
        };
        let same = (e.head.start, e.head.end, here.oi) == (g.head.start, g.head.end, there.oi);
        if same && !e.is_init() && g.is_init() && !there.objects.is_empty() {
            *e = g;
            changed = true;
        }
    }
    if !changed {
        return None;
    }
    now.layout_gen = now.layout_gen.max(given.layout_gen);
    for e in &mut now.entries {
        e.head.layout_gen = now.layout_gen;
    }
    Some(now.relayout())
}

/// `lmm_oi` of a file: its FID's oid and sequence.
fn file_oi(fid: &Fid) -> OstId {
    OstId {
        id: u64::from(fid.oid),
        seq: fid.seq,
    }
}

/// A component on the MDT ends at the limit at the latest; what follows begins there (`lod_dom_stripesize_choose`).
fn limit_dom(mut c: CompMd) -> CompMd {
    let limit = u64::from(STRIPE_BYTES);
    let mut moved = false;
    if let Some(first) = c.entries.first_mut()
        && first.plain().is_some_and(LovMd::is_dom)
        && first.head.end > limit
    {
        first.head.end = limit;
        moved = true;
    }
    if let (true, Some(second)) = (moved, c.entries.get_mut(1)) {
        second.head.start = limit;
    }
    c
}

/// Components must follow each other from 0 without gaps, in one mirror.
fn check_composite(c: &CompMd) -> Result<(), Errno> {
    if c.mirror_count > 0
        || c.entries
            .iter()
            .any(|e| e.head.flags & lcme::EXTENSION != 0)
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut at = 0;
    for e in &c.entries {
        let (start, end) = (e.head.start, e.head.end);
        if start != at || end <= start || start % u64::from(LOV_MIN_STRIPE_SIZE) != 0 {
            return Err(Errno::EINVAL);
        }
        // data on the MDT is the beginning of a file, and all of its component
        if e.plain().is_some_and(|md| {
            md.is_dom() && (start != 0 || md.pattern & !pattern::F_MASK != pattern::MDT)
        }) {
            return Err(Errno::EINVAL);
        }
        at = end;
    }
    if c.entries.is_empty() {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// A directory's default layout as it is stored: `Some(empty)` removes it (all fields default).
pub fn directory_default(raw: &Bytes) -> Result<Bytes, Errno> {
    let keep = match Layout::decode(raw).map_err(|_| Errno::EINVAL)? {
        Layout::Plain(l) => {
            let none = l.stripe_size == 0
                && l.stripe_count == 0
                && l.stripe_offset() == LOV_OFFSET_DEFAULT
                && l.pool_name().is_none();
            if l.stripe_size % LOV_MIN_STRIPE_SIZE != 0 || l.pattern & pattern::MDT != 0 {
                return Err(Errno::EINVAL);
            }
            !none
        }
        Layout::Composite(c) => {
            check_composite(&c)?;
            true
        }
        Layout::Foreign(_) => return Err(Errno::EOPNOTSUPP),
    };
    Ok(if keep { raw.clone() } else { Bytes::new() })
}

/// What a query of the root's default shows when none is set (`lod_xattr_get` of the root).
pub fn file_system_default(d: &StripeDefaults) -> Bytes {
    LovMd::request(d.stripe_size, d.stripe_count, LOV_OFFSET_DEFAULT, None).encode()
}

/// The request a layout attribute stands for: of one with objects (copied by cp -a or tar), its
/// shape without them.
pub fn request_of(raw: &Bytes) -> Result<Bytes, Errno> {
    if !has_objects(raw) {
        return Ok(raw.clone());
    }
    match Layout::decode(raw).map_err(|_| Errno::EINVAL)? {
        Layout::Plain(l) => {
            let pool = l.pool_name().map(str::to_string);
            let mut request = LovMd::request(
                l.stripe_size,
                l.stripe_count,
                LOV_OFFSET_DEFAULT,
                pool.as_deref(),
            );
            request.pattern |= l.pattern & pattern::OVERSTRIPING;
            Ok(request.encode())
        }
        Layout::Composite(mut c) => {
            for e in &mut c.entries {
                e.head.flags &= !lcme::INIT;
                if let SubLayout::Plain(l) = &mut e.md {
                    l.objects.clear();
                    l.layout_gen = LOV_OFFSET_DEFAULT;
                }
            }
            Ok(c.relayout().encode())
        }
        Layout::Foreign(_) => Ok(raw.clone()),
    }
}

/// Whether a layout given at create names objects already (an open replayed after a restart). A kernel client sends a
/// user's request in a buffer as long as the default layout (`mdc_intent_open_pack` in `lustre/mdc/mdc_locks.c`): the zeros
/// behind it name no object.
pub fn has_objects(raw: &Bytes) -> bool {
    match Layout::decode(raw) {
        Ok(Layout::Plain(l)) => {
            l.magic != LOV_MAGIC_SPECIFIC && l.objects.iter().any(|o| o.oi != OstId::default())
        }
        Ok(Layout::Composite(c)) => c.entries.iter().any(|e| e.is_init()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::LOV_ALL_STRIPES;

    fn osts(avail: &[u64]) -> Vec<OstSpace> {
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
        let listed = |osts: &[OstSpace], list: &[u32]| {
            let mut wanted = LovMd::request(1 << 20, list.len() as u16, LOV_OFFSET_DEFAULT, None);
            wanted.objects = list
                .iter()
                .map(|&ost_idx| LovOstData {
                    oi: OstId::group0(0),
                    ost_gen: 0,
                    ost_idx,
                })
                .collect();
            Allocator {
                ids: &mut ObjectIds::default(),
                osts,
                defaults: StripeDefaults::default(),
            }
            .listed(&wanted, false)
        };
        assert_eq!(listed(&o, &[2, 0]), Ok(vec![2, 0]));
        assert_eq!(listed(&o, &[2, 1]), Err(Errno::EREMOTEIO));
        assert_eq!(listed(&o, &[2, 4]), Err(Errno::EINVAL));
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

    /// A kernel client leaves room for objects behind a request; it still says where, and how often on one OST.
    #[test]
    fn a_request_with_room_behind_it_keeps_its_first_ost_and_its_overstriping() {
        let store = Store::open(std::sync::Arc::new(coral_osd::OsdMem::new())).unwrap();
        let (mut ids, osts, fid) = (
            ObjectIds::default(),
            osts(&[10, 10]),
            Fid::new(0x2_0000_0400, 5),
        );
        let mut alloc = Allocator {
            ids: &mut ids,
            osts: &osts,
            defaults: StripeDefaults::default(),
        };
        let mut got = |wanted: &LovMd, room: usize| {
            let sent: Bytes = [wanted.encode().as_ref(), &vec![0; room]].concat().into();
            assert!(!has_objects(&sent), "zeros are no objects");
            let made = alloc
                .layout(&store, &fid, Some(&request_of(&sent).unwrap()))
                .unwrap();
            assert!(has_objects(&made));
            let Layout::Plain(l) = Layout::decode(&made).unwrap() else {
                panic!()
            };
            (
                l.pattern,
                l.objects.iter().map(|o| o.ost_idx).collect::<Vec<_>>(),
                made,
            )
        };
        for room in [0, 24, 24 * 4, 24 * 8] {
            for first in [1, 0] {
                assert_eq!(
                    got(&LovMd::request(1 << 20, 1, first, None), room).1,
                    [u32::from(first)]
                );
            }
            let mut over = LovMd::request(1 << 20, 4, LOV_OFFSET_DEFAULT, None);
            over.pattern |= pattern::OVERSTRIPING;
            let (kind, on, made) = got(&over, room);
            assert_eq!(
                (kind, on.len()),
                (pattern::RAID0 | pattern::OVERSTRIPING, 4)
            );
            let copy = Layout::decode(&request_of(&made).unwrap()).unwrap();
            assert!(
                matches!(copy, Layout::Plain(l) if l.pattern & pattern::OVERSTRIPING != 0 && l.objects.is_empty()),
                "a copy is overstriped too"
            );
        }
    }

    /// Data on the MDT is the first component, of at most 1 MiB, and needs no OST.
    #[test]
    fn data_on_mdt() {
        let dom = LovMd {
            pattern: pattern::MDT,
            ..LovMd::request(0, 0, LOV_OFFSET_DEFAULT, None)
        };
        let rest = LovMd::request(1 << 20, 1, LOV_OFFSET_DEFAULT, None);
        let comp = |start, end, md: &LovMd| CompEntry::new(0, 0, start, end, md.clone());
        let ask = |entries| Layout::Composite(CompMd::new(0, 0, 0, entries)).encode();
        let store = Store::open(std::sync::Arc::new(coral_osd::OsdMem::new())).unwrap();
        let mut ids = ObjectIds::default();
        let mut alloc = Allocator {
            ids: &mut ids,
            osts: &[],
            defaults: StripeDefaults::default(),
        };
        let fid = Fid::new(0x2_0000_0400, 5);
        for (end, first) in [(65536, 65536), (4 << 20, 1 << 20)] {
            let wanted = ask(vec![comp(0, end, &dom), comp(end, u64::MAX, &rest)]);
            let got = alloc.layout(&store, &fid, Some(&wanted)).unwrap();
            assert!(super::super::dom::is_dom(&got));
            let Layout::Composite(c) = Layout::decode(&got).unwrap() else {
                panic!()
            };
            let shape: Vec<_> = c
                .entries
                .iter()
                .map(|e| (e.head.start, e.head.end, e.is_init()))
                .collect();
            assert_eq!(shape, [(0, first, true), (first, u64::MAX, false)]);
            let md = c.entries[0].plain().unwrap();
            assert_eq!(
                (md.stripe_size as u64, md.stripe_count, md.pattern),
                (first, 0, pattern::MDT)
            );
        }
        for bad in [
            vec![comp(0, 1 << 20, &rest), comp(1 << 20, u64::MAX, &dom)],
            vec![comp(0, 65536, &dom), comp(65536, 1 << 20, &dom)],
        ] {
            assert_eq!(
                alloc
                    .layout(&store, &fid, Some(&ask(bad.clone())))
                    .unwrap_err()
                    .errno(),
                Errno::EINVAL
            );
            assert_eq!(directory_default(&ask(bad)), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn defaults_are_checked_and_removed() {
        let keep = LovMd::request(1 << 20, 2, LOV_OFFSET_DEFAULT, None).encode();
        assert_eq!(directory_default(&keep).unwrap(), keep);
        let none = LovMd::request(0, 0, LOV_OFFSET_DEFAULT, None).encode();
        assert!(directory_default(&none).unwrap().is_empty());
        let odd = LovMd::request(1000, 2, LOV_OFFSET_DEFAULT, None).encode();
        assert_eq!(directory_default(&odd), Err(Errno::EINVAL));
    }
}
