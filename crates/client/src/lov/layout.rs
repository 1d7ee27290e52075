//! A file's layout as I/O needs it: components in file order, each RAID0 over objects.
//!
//! Invariants: parts are sorted by `start` and do not overlap (of mirrors, the first that is not stale is used).
//! A file in sync on several mirrors is read from one of them, and written only after the MDT has been told: it marks the
//! others stale, and they are not used until somebody resyncs them (`lfs mirror resync`, with a kernel client).
//! Offsets inside a component are file offsets: the arithmetic of a component does not start anew at its `start`.
//!
//! Lustre: `lustre/lov/lov_ea.c`, `lov_offset.c`; mirrors: `lov_io_mirror_write_intent` in `lov_io.c`.

use bytes::Bytes;
use coral_wire::DecodeError;
use coral_wire::fid::{Fid, OstId};
use coral_wire::layout::{CompMd, LOV_MIN_STRIPE_SIZE, Layout, LovMd, LovOstData, lcm, lcme};

use crate::error::{Error, Refusal};
use crate::osc::ObjectRef;

/// One component: bytes `start..end` of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub start: u64,
    /// End, exclusive (`u64::MAX`: no end).
    pub end: u64,
    /// RAID0 over objects; no objects while not instantiated.
    pub md: LovMd,
    /// Has objects.
    pub init: bool,
}

/// What kind of data a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// No layout (yet): attributes come from the MDT alone.
    None,
    /// Objects on OSTs, or data on the MDT.
    Objects,
    /// Data this client cannot do I/O on: foreign, released.
    Unsupported,
}

/// The layout of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// The EA as the MDT gave it.
    pub raw: Bytes,
    /// Changes with every change of the layout.
    pub generation: u32,
    /// What it is.
    pub form: Form,
    parts: Vec<Part>,
    /// Several mirrors are in sync, or being brought there: the MDT must hear of a write first.
    synced: bool,
}

/// One stripe of one component.
#[derive(Debug, Clone, Copy)]
pub struct Stripe<'a> {
    /// The component.
    pub part: &'a Part,
    /// Index of the stripe in the component.
    pub index: usize,
}

impl FileLayout {
    /// No layout.
    pub fn none() -> Self {
        Self {
            raw: Bytes::new(),
            generation: 0,
            form: Form::None,
            parts: Vec::new(),
            synced: false,
        }
    }

    /// From a LOV EA; empty means none.
    pub fn decode(raw: &Bytes) -> Result<Self, DecodeError> {
        if raw.is_empty() {
            return Ok(Self::none());
        }
        let layout = Layout::decode(raw)?;
        let mut out = Self {
            raw: raw.clone(),
            generation: layout.layout_gen(),
            form: Form::Objects,
            parts: Vec::with_capacity(1),
            synced: false,
        };
        match layout {
            Layout::Plain(md) if md.objects.is_empty() && !md.is_released() && !md.is_dom() => {
                out.form = Form::None
            }
            Layout::Plain(md) => {
                let md = on_mdt(&md);
                let ok = usable(&md);
                out.parts.push(Part {
                    start: 0,
                    end: u64::MAX,
                    init: true,
                    md,
                });
                if !ok {
                    out.form = Form::Unsupported;
                }
            }
            Layout::Composite(c) => {
                out.synced = c.mirror_count > 0
                    && matches!(c.flags & LCM_STATE, lcm::RDONLY | lcm::SYNC_PENDING);
                let mirror = whole_mirror(&c);
                let usable_here = |id: u16| mirror.is_none_or(|m| m == id);
                let mut entries: Vec<_> = c
                    .entries
                    .iter()
                    .filter(|e| e.head.flags & lcme::STALE == 0 && usable_here(e.mirror_id()))
                    .collect();
                entries.sort_by_key(|e| e.head.start);
                for e in entries {
                    let Some(md) = e.plain().map(on_mdt) else {
                        out.form = Form::Unsupported;
                        continue;
                    };
                    let (start, end) = (e.head.start, e.head.end);
                    // a mirror of what is there already
                    if out.parts.last().is_some_and(|p: &Part| start < p.end) {
                        continue;
                    }
                    let init = e.is_init();
                    if init && !usable(&md) || md.is_dom() && !init {
                        out.form = Form::Unsupported;
                    }
                    out.parts.push(Part {
                        start,
                        end,
                        init,
                        md,
                    });
                }
                if out.parts.is_empty() {
                    out.form = Form::None;
                }
            }
            Layout::Foreign(_) => out.form = Form::Unsupported,
        }
        Ok(out)
    }

    /// Components in file order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// All of the file is one object.
    pub(super) fn is_one_object(&self) -> bool {
        matches!(&self.parts[..], [p] if p.init && p.md.objects.len() == 1)
    }

    /// Some of the data is on the MDT.
    pub fn has_dom(&self) -> bool {
        self.parts.iter().any(|p| p.md.is_dom())
    }

    /// Components that overlap `start..end`.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &Part> {
        self.parts
            .iter()
            .filter(move |p| p.start < end && p.end > start)
    }

    /// Every stripe of every instantiated component.
    ///
    /// Their number is known: a join of futures whose number is not known wakes its own task at every poll.
    pub fn stripes(&self) -> impl ExactSizeIterator<Item = Stripe<'_>> {
        let all: Vec<_> = self
            .parts
            .iter()
            .filter(|p| p.init)
            .flat_map(|part| (0..part.md.objects.len()).map(move |index| Stripe { part, index }))
            .collect();
        all.into_iter()
    }

    /// Some component in `start..end` has no objects yet, so a write there needs a layout intent first.
    pub fn needs_init(&self, start: u64, end: u64) -> bool {
        self.form == Form::None || self.overlapping(start, end).any(|p| !p.init)
    }

    /// ENODATA where its components end before `end`, as those of `lfs setstripe -E 1M`: no data can be there (`lov_io_iter_init`).
    pub fn check_end(&self, end: u64) -> Result<(), Error> {
        match self.parts.last().is_none_or(|p| p.end >= end) {
            true => Ok(()),
            false => Err(Refusal::BehindLayout.into()),
        }
    }

    /// The components with objects that `start..end` has by `other` have the same objects here.
    pub fn same_objects(&self, other: &FileLayout, start: u64, end: u64) -> bool {
        let has = |p: &Part| {
            self.parts
                .iter()
                .any(|q| q.init && q.start == p.start && q.md.objects == p.md.objects)
        };
        other.overlapping(start, end).filter(|p| p.init).all(has)
    }

    /// From one to the next of blocks of the file that are `stride` bytes apart, in the object where the byte `at` is. `None`: they are not at
    /// one distance there.
    pub fn object_stride(&self, at: u64, stride: u64) -> Option<u64> {
        let part = self.overlapping(at, at.checked_add(1)?).next()?;
        let (size, count) = (u64::from(part.md.stripe_size), part.md.objects.len() as u64);
        if count == 1 || size.is_multiple_of(stride) {
            return Some(stride);
        }
        let width = size.checked_mul(count).filter(|w| *w > 0)?;
        stride.is_multiple_of(width).then(|| stride / count)
    }

    /// The MDT must be asked before a write to `start..end`: for objects, or because mirrors are in sync.
    pub fn needs_intent(&self, start: u64, end: u64) -> bool {
        self.synced || self.needs_init(start, end)
    }

    /// EOPNOTSUPP unless data can be read and written here.
    pub fn check(&self) -> Result<(), Error> {
        if self.form == Form::Unsupported {
            Err(Error::Layout)
        } else {
            Ok(())
        }
    }
}

/// Bits of `lcm_flags` that are the state of mirrors.
const LCM_STATE: u16 = 3;

/// The first mirror no component of which is stale. Components of different mirrors need not have the same borders.
fn whole_mirror(c: &CompMd) -> Option<u16> {
    let stale = |id| {
        c.entries
            .iter()
            .any(|e| e.mirror_id() == id && e.head.flags & lcme::STALE != 0)
    };
    c.entries
        .iter()
        .map(|e| e.mirror_id())
        .find(|id| !stale(*id))
}

/// "OST" of data on the MDT.
pub const DOM_OST: u32 = u32::MAX;

/// A component on the MDT as RAID0 over one object, which it has none of in the EA; another as it is.
fn on_mdt(md: &LovMd) -> LovMd {
    let mut md = md.clone();
    if md.is_dom() {
        md.stripe_size = md.stripe_size.max(LOV_MIN_STRIPE_SIZE);
        md.stripe_count = 1;
        md.objects = vec![LovOstData {
            ost_idx: DOM_OST,
            ..Default::default()
        }];
    }
    md
}

/// RAID0 with a stripe size, objects where data is.
fn usable(md: &LovMd) -> bool {
    !md.is_released()
        && md.stripe_size > 0
        && !md.objects.is_empty()
        && md.objects.len() == md.stripe_count as usize
}

impl Stripe<'_> {
    /// The object.
    pub fn object(&self, parent: Fid) -> ObjectRef {
        let oi = if self.part.md.is_dom() {
            OstId::from_fid(parent)
        } else {
            self.part.md.objects[self.index].oi
        };
        ObjectRef {
            ost: self.ost(),
            oi,
            parent,
            stripe_idx: self.index as u32,
        }
    }

    /// Index of its OST; [`DOM_OST`]: the MDT of the file.
    pub fn ost(&self) -> u32 {
        self.part.md.objects[self.index].ost_idx
    }

    /// How many bytes of this stripe lie in the first `size` bytes of the file.
    pub fn object_size(&self, size: u64) -> u64 {
        self.part.md.object_size(self.index, size)
    }

    /// Length of the file if this object with that size were the last.
    pub fn file_size(&self, object_size: u64) -> u64 {
        self.part.md.file_size(self.index, object_size)
    }

    /// File offset of a byte of the object.
    pub fn file_offset(&self, object_offset: u64) -> u64 {
        let ssize = self.part.md.stripe_size as u64;
        let width = ssize * self.part.md.objects.len() as u64;
        (object_offset / ssize)
            .saturating_mul(width)
            .saturating_add(self.index as u64 * ssize + object_offset % ssize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::{CompEntry, pattern};

    fn objects(n: u32) -> Vec<LovOstData> {
        (0..n)
            .map(|i| LovOstData {
                oi: OstId::group0(100 + i as u64),
                ost_gen: 0,
                ost_idx: i,
            })
            .collect()
    }

    /// A join over the stripes rests until one of them is woken: it neither wakes its own task nor is polled twice.
    #[test]
    fn a_join_over_stripes_does_not_wake_itself() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let l = FileLayout::decode(&LovMd::new(65536, objects(3)).encode()).unwrap();
        assert_eq!(l.stripes().len(), 3);
        let jobs = l
            .stripes()
            .map(|_| std::future::pending::<Result<(), ()>>());
        let mut all = std::pin::pin!(futures_util::future::try_join_all(jobs));
        let wakes = std::sync::Arc::new(Count(Default::default()));
        let waker = std::task::Waker::from(wakes.clone());
        let mut cx = std::task::Context::from_waker(&waker);
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wakes.0.load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[test]
    fn plain_and_none() {
        assert_eq!(FileLayout::decode(&Bytes::new()).unwrap().form, Form::None);
        let l = FileLayout::decode(&LovMd::new(65536, objects(2)).encode()).unwrap();
        assert_eq!(
            (l.form, l.parts().len(), l.stripes().count()),
            (Form::Objects, 1, 2)
        );
        assert!(!l.needs_init(0, 1 << 40));
    }

    #[test]
    fn file_offset_undoes_object_size() {
        let l = FileLayout::decode(&LovMd::new(65536, objects(3)).encode()).unwrap();
        for s in l.stripes() {
            for off in [0u64, 1, 65535, 65536, 200_000, 10_000_000] {
                let f = s.file_offset(off);
                assert_eq!(s.object_size(f), off, "stripe {} offset {off}", s.index);
            }
        }
    }

    /// Two mirrors of two components with other borders: one is read, whichever is not stale; the MDT hears of writes to
    /// mirrors in sync, and of no others.
    #[test]
    fn mirrors() {
        let comp = |id: u32, flags, start, end, first| {
            let mut o = objects(1);
            o[0].oi = OstId::group0(first);
            CompEntry::new(id, lcme::INIT | flags, start, end, LovMd::new(65536, o))
        };
        let layout = |state, stale| {
            let entries = vec![
                comp(0x1_0001, stale, 0, 1 << 20, 1),
                comp(0x1_0002, 0, 1 << 20, u64::MAX, 2),
                comp(0x2_0003, 0, 0, 4 << 20, 3),
                comp(0x2_0004, 0, 4 << 20, u64::MAX, 4),
            ];
            FileLayout::decode(&Layout::Composite(CompMd::new(5, state, 1, entries)).encode())
                .unwrap()
        };
        let ids = |l: &FileLayout| {
            l.stripes()
                .map(|s| s.object(Fid::ROOT).oi.object_id())
                .collect::<Vec<_>>()
        };
        let l = layout(lcm::RDONLY, 0);
        assert_eq!(
            (ids(&l), l.needs_intent(0, 1), l.needs_init(0, 1)),
            (vec![1, 2], true, false)
        );
        let l = layout(lcm::WRITE_PENDING, lcme::STALE);
        assert_eq!((ids(&l), l.needs_intent(0, u64::MAX)), (vec![3, 4], false));
        assert!(layout(lcm::SYNC_PENDING, lcme::STALE).needs_intent(0, 1));
    }

    /// Data on the MDT is one object that is the file itself, and comes first.
    #[test]
    fn data_on_mdt() {
        let mut md = LovMd::new(1 << 20, vec![]);
        (md.pattern, md.stripe_count) = (pattern::MDT, 0);
        let first = CompEntry::new(1, lcme::INIT, 0, 1 << 20, md);
        let second = CompEntry::new(2, 0, 1 << 20, u64::MAX, LovMd::new(65536, vec![]));
        let l = FileLayout::decode(
            &Layout::Composite(CompMd::new(1, 0, 0, vec![first, second])).encode(),
        )
        .unwrap();
        let fid = Fid::new(0x2_0000_0401, 7);
        let s: Vec<_> = l.stripes().collect();
        assert_eq!((l.form, s.len(), s[0].ost()), (Form::Objects, 1, DOM_OST));
        assert_eq!(s[0].object(fid).oi.raw_fid(), fid);
        assert_eq!(
            (
                s[0].object_size(5),
                s[0].file_size(700_000),
                s[0].file_offset(900_000)
            ),
            (5, 700_000, 900_000)
        );
        assert_eq!(
            (l.needs_init(0, 1 << 20), l.needs_init(0, (1 << 20) + 1)),
            (false, true)
        );
    }

    #[test]
    fn a_file_that_was_moved_has_other_objects() {
        let comp = |id, flags, start, end, n: u32| {
            CompEntry::new(id, flags, start, end, LovMd::new(65536, objects(n)))
        };
        let layout = |entries| {
            FileLayout::decode(&Layout::Composite(CompMd::new(3, 0, 0, entries)).encode()).unwrap()
        };
        let before = layout(vec![
            comp(1, lcme::INIT, 0, 1 << 20, 1),
            comp(2, 0, 1 << 20, u64::MAX, 2),
        ]);
        let grown = layout(vec![
            comp(1, lcme::INIT, 0, 1 << 20, 1),
            comp(2, lcme::INIT, 1 << 20, u64::MAX, 2),
        ]);
        let moved = layout(vec![
            comp(1, lcme::INIT, 0, 1 << 20, 2),
            comp(2, lcme::INIT, 1 << 20, u64::MAX, 2),
        ]);
        assert!(grown.same_objects(&before, 0, u64::MAX));
        assert!(!moved.same_objects(&before, 0, 1));
        assert!(moved.same_objects(&grown, 1 << 20, u64::MAX));
        assert!(moved.same_objects(&FileLayout::none(), 0, 1));
    }

    #[test]
    fn composite_with_a_component_to_come() {
        let first = CompEntry::new(1, lcme::INIT, 0, 1 << 20, LovMd::new(65536, objects(1)));
        let mut md = LovMd::new(65536, vec![]);
        md.stripe_count = 2;
        let second = CompEntry::new(2, 0, 1 << 20, u64::MAX, md);
        let raw = Layout::Composite(CompMd::new(3, 0, 0, vec![first, second])).encode();
        let l = FileLayout::decode(&raw).unwrap();
        assert_eq!(
            (l.generation, l.form, l.stripes().count()),
            (3, Form::Objects, 1)
        );
        assert!(!l.needs_init(0, 1 << 20));
        assert!(l.needs_init(0, (1 << 20) + 1));
    }
}
