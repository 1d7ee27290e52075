//! Layouts: what a new file gets, and which OST objects it is made of (`lustre/lod/lod_lov.c`).
//!
//! A file's layout comes from the request, else its directory's default, else the root's, else the
//! file system's. Each stripe is an object {id, group 0} of an OST, chosen in [`super::object_ids`]. Composite layouts get objects
//! for a component when it is first written ([`Allocator::instantiate`]). A first component on the MDT has none ([`super::dom`]).
//! Absent: mirrors, self-extending components, pools beyond keeping their name.

use bytes::Bytes;
use coral_wire::layout::{
    CompEntry, CompMd, LOV_ALL_STRIPES_WIDE, LOV_MAGIC_SPECIFIC, LOV_MAGIC_V1, LOV_MAGIC_V3,
    LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE, LOV_OFFSET_DEFAULT, Layout, LovMd, LovOstData,
    SubLayout, lcme, pattern,
};
use coral_wire::{DecodeError, Errno, Fid, OstId};

use super::dom::STRIPE_BYTES;
use super::object_ids::{ObjectIds, OstSpace};
use super::store::{MdtResult, Store};

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
    use crate::mdt::object_ids::tests::osts;

    #[test]
    fn a_listed_ost_that_is_down_is_an_error() {
        let mut o = osts(&[10, 10, 10, 10]);
        o[1].active = false;
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
