//! What is dirty of one object: extents by offset, and what of it is being written out. A plain state machine.
//!
//! Invariants:
//! - dirty extents neither overlap nor touch: neighbours are joined, the newest bytes win;
//! - two ranges being written out never overlap: bytes dirtied anew while their old version travels go out after it;
//! - an extent goes out cut at multiples of the largest RPC, so a steady writer makes whole RPCs; smaller ones share a request.
//!
//! Small pieces are copied together ([`COPY_BELOW`]), large ones are kept as they came. Lustre: `lustre/osc/osc_cache.c` (`osc_extent`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::BytesMut;
use coral_buffers::Payload;
use coral_wire::coral::blocks::Span;

use crate::grant::{PAGE_BYTES, pages_bytes};
use crate::osc::COPY_BELOW;

/// Copied pieces are joined in buffers of at most so many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Dirty bytes without a gap.
#[derive(Debug, Default)]
struct Extent {
    /// The first part.
    head: Payload,
    /// Small pieces behind it, copied.
    tail: BytesMut,
}

impl Extent {
    fn len(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.head.push(std::mem::take(&mut self.tail).freeze());
        }
    }

    fn push(&mut self, data: Payload) {
        if data.len() >= COPY_BELOW {
            self.seal();
            return self.head.append(data);
        }
        if self.tail.len() + data.len() > CHUNK_BYTES {
            self.seal();
        }
        data.iter().for_each(|b| self.tail.extend_from_slice(b));
    }

    fn slice(&mut self, range: Range<u64>) -> Payload {
        self.seal();
        self.head.slice(range.start as usize..range.end as usize)
    }
}

/// Ranges on their way to the OST, in one request: in order, and cut within pages at no other place than its two ends, which is
/// what servers take.
#[derive(Debug)]
pub struct Flight {
    pub id: u64,
    /// Offset in the object, and the data from there on.
    pub parts: Vec<(u64, Payload)>,
}

fn part_range((start, data): &(u64, Payload)) -> Range<u64> {
    *start..*start + data.len() as u64
}

impl Flight {
    /// From its first byte to its last.
    pub fn span(&self) -> Range<u64> {
        let ends = self.parts.first().zip(self.parts.last());
        ends.map_or(0..0, |(first, last)| first.0..part_range(last).end)
    }

    /// Grant it was charged with, bytes.
    pub fn cost(&self) -> u64 {
        let cost = |r: Range<u64>| pages_bytes(r.start, r.end);
        self.parts.iter().map(part_range).map(cost).sum()
    }
}

/// What is to be written out of what is dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Everything.
    All,
    /// Requests that are full.
    Full,
    /// A piece of an extent that is a whole request.
    Whole,
}

/// The dirty extents of one object.
#[derive(Debug, Default)]
pub struct DirtyMap {
    extents: BTreeMap<u64, Extent>,
    /// What is on its way: end and flight of each range, by its start.
    flying: BTreeMap<u64, (u64, u64)>,
    /// Starts of the ranges of each flight.
    flights: BTreeMap<u64, Vec<u64>>,
    last_id: u64,
    /// Grant the extents are charged with, bytes; what flies is counted by itself.
    cost: u64,
}

impl DirtyMap {
    /// Grant the extents are charged with, flights not counted, bytes.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Nothing is dirty and nothing on its way.
    pub fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.flying.is_empty()
    }

    /// Something is dirty and not on its way.
    pub fn has_dirty(&self, range: &Range<u64>) -> bool {
        self.first_in(range).is_some()
    }

    /// What is dirty of `extent`, and not on its way.
    pub fn dirty_in(&self, extent: &Span) -> impl Iterator<Item = Range<u64>> {
        let extent = *extent;
        let all = extent.start..extent.end.saturating_add(1);
        let first = self.first_in(&all).unwrap_or(u64::MAX);
        let there = self.extents.range(first..);
        let there = there.take_while(move |(start, _)| **start < all.end);
        there.flat_map(move |(start, e)| {
            let (mut at, end) = (*start, start + e.len());
            std::iter::from_fn(move || {
                let from = extent.next(at).filter(|from| *from < end)?;
                at = extent.last_from(from).saturating_add(1).min(end);
                Some(from..at)
            })
        })
    }

    /// Something of `extent` is on its way.
    pub fn flies_in(&self, extent: &Span) -> bool {
        let all = extent.start..extent.end.saturating_add(1);
        self.flying_in(&all)
            .any(|(flying, _)| extent.touches(&Span::all(flying.start, flying.end - 1)))
    }

    /// Ranges on their way that touch `range`, from the last to the first, and their flights.
    fn flying_in<'a>(
        &'a self,
        range: &'a Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, u64)> + 'a {
        // they do not overlap: before one that ends in time lie only such
        self.flying
            .range(..range.end)
            .rev()
            .take_while(|(_, (end, _))| *end > range.start)
            .map(|(start, (end, id))| (*start..*end, *id))
    }

    /// Flights that touch `range`.
    pub fn flights(&self, range: &Range<u64>) -> BTreeSet<u64> {
        self.flying_in(range).map(|(_, id)| id).collect()
    }

    /// Something is on its way.
    pub fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// This one is still under way.
    pub fn flies(&self, id: u64) -> bool {
        self.flights.contains_key(&id)
    }

    /// Bytes that are not known to be at the OST.
    pub fn bytes(&self) -> u64 {
        self.extents
            .values()
            .map(Extent::len)
            .chain(self.flying.iter().map(|(start, (end, _))| end - start))
            .sum()
    }

    /// End of the last byte that is not known to be at the OST; 0 when there is none.
    pub fn end(&self) -> u64 {
        let dirty = self
            .extents
            .last_key_value()
            .map_or(0, |(s, e)| s + e.len());
        let flying = self.flying.last_key_value().map_or(0, |(_, (end, _))| *end);
        dirty.max(flying)
    }

    /// Start of the first extent that has bytes in `range`.
    fn first_in(&self, range: &Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let before = self
            .extents
            .range(..=range.start)
            .next_back()
            .filter(|(s, e)| *s + e.len() > range.start);
        before
            .or_else(|| self.extents.range(range.clone()).next())
            .map(|(s, _)| *s)
    }

    fn put(&mut self, start: u64, e: Extent) {
        if e.len() > 0 {
            self.cost += pages_bytes(start, start + e.len());
            self.extents.insert(start, e);
        }
    }

    fn pull(&mut self, start: u64) -> Extent {
        let e = self.extents.remove(&start).expect("an extent starts there");
        self.cost -= pages_bytes(start, start + e.len());
        e
    }

    /// Takes `range` out of the extents; what it held is dropped.
    fn cut(&mut self, range: Range<u64>) {
        while let Some(start) = self.first_in(&range) {
            let mut e = self.pull(start);
            let end = start + e.len();
            if start < range.start {
                let left = e.slice(0..range.start - start);
                self.put(
                    start,
                    Extent {
                        head: left,
                        ..Default::default()
                    },
                );
            }
            if end > range.end {
                let right = e.slice(range.end - start..end - start);
                self.put(
                    range.end,
                    Extent {
                        head: right,
                        ..Default::default()
                    },
                );
            }
        }
    }

    /// `data` is written at `start`.
    pub fn insert(&mut self, start: u64, data: Payload) {
        let range = start..start + data.len() as u64;
        if range.is_empty() {
            return;
        }
        self.cut(range.clone());
        let before = self
            .extents
            .range(..start)
            .next_back()
            .map(|(s, e)| (*s, s + e.len()));
        let (at, mut e) = match before {
            Some((s, end)) if end == start => (s, self.pull(s)),
            _ => (start, Extent::default()),
        };
        e.push(data);
        if self.extents.contains_key(&range.end) {
            let mut behind = self.pull(range.end);
            e.seal();
            e.head.append(std::mem::take(&mut behind.head));
            e.tail = behind.tail;
        }
        self.put(at, e);
    }

    /// The bytes of `range`, if all of them are dirty.
    pub fn read(&mut self, range: &Range<u64>) -> Option<Payload> {
        let start = self.first_in(range)?;
        let e = self.extents.get_mut(&start)?;
        (start <= range.start && start + e.len() >= range.end)
            .then(|| e.slice(range.start - start..range.end - start))
    }

    /// What is to be written out next of what touches `range`, in one request of at most `max` bytes. Each extent is cut at multiples
    /// of `max`. `None` also when all that is left waits for flights.
    pub fn take(&mut self, range: &Range<u64>, max: u64, what: Wanted) -> Option<Flight> {
        let whole = what == Wanted::Whole;
        let mut pieces = vec![self.piece_in(range, max, whole)?];
        let most = (max / PAGE_BYTES).max(1) as usize;
        let mut bytes = pieces[0].end - pieces[0].start;
        let mut full = false;
        while let Some(end) = pieces.last().map(|p| p.end).filter(|_| !whole) {
            full = bytes == max || pieces.len() == most;
            let next = self.piece_in(&(end..range.end), max, false);
            let Some(next) = next.filter(|n| {
                !full && end.is_multiple_of(PAGE_BYTES) && n.start.is_multiple_of(PAGE_BYTES)
            }) else {
                break;
            };
            bytes += next.end - next.start;
            if bytes > max {
                full = true;
                break;
            }
            pieces.push(next);
        }
        if what == Wanted::Full && !full {
            return None;
        }
        self.last_id += 1;
        let id = self.last_id;
        let parts = pieces.into_iter().map(|p| self.launch(id, p)).collect();
        Some(Flight { id, parts })
    }

    /// The first piece of an extent that may go out.
    fn piece_in(&self, range: &Range<u64>, max: u64, whole: bool) -> Option<Range<u64>> {
        let mut from = range.start;
        while let Some(start) = self.first_in(&(from..range.end)) {
            let end = start + self.extents[&start].len();
            let mut at = start;
            while at < end.min(range.end) {
                let border = (at / max + 1).saturating_mul(max);
                let piece = at..end.min(border);
                let wanted = piece.end > range.start && (!whole || piece.end - piece.start == max);
                if wanted && self.flying_in(&piece).next().is_none() {
                    return Some(piece);
                }
                at = piece.end;
            }
            from = end;
        }
        None
    }

    fn launch(&mut self, id: u64, piece: Range<u64>) -> (u64, Payload) {
        let start = self.first_in(&piece).expect("an extent has the piece");
        let mut e = self.pull(start);
        let end = start + e.len();
        if piece == (start..end) {
            e.seal();
        }
        let data = e.slice(piece.start - start..piece.end - start);
        if start < piece.start {
            let left = e.slice(0..piece.start - start);
            self.put(
                start,
                Extent {
                    head: left,
                    ..Default::default()
                },
            );
        }
        if piece.end < end {
            let right = e.slice(piece.end - start..end - start);
            self.put(
                piece.end,
                Extent {
                    head: right,
                    ..Default::default()
                },
            );
        }
        self.flying.insert(piece.start, (piece.end, id));
        self.flights.entry(id).or_default().push(piece.start);
        (piece.start, data)
    }

    /// A flight ended.
    pub fn landed(&mut self, id: u64) {
        for start in self.flights.remove(&id).unwrap_or_default() {
            self.flying.remove(&start);
        }
    }

    /// Drops what is dirty in the pages of `range`; the grant it was charged with. Flights go on.
    pub fn discard(&mut self, range: &Range<u64>) -> u64 {
        let before = self.cost;
        let end = range.end.checked_next_multiple_of(PAGE_BYTES);
        self.cut(range.start / PAGE_BYTES * PAGE_BYTES..end.unwrap_or(u64::MAX));
        before - self.cost
    }
}

/// A payload of these bytes, for tests.
#[cfg(test)]
fn payload(data: &[u8]) -> Payload {
    Payload::from(bytes::Bytes::copy_from_slice(data))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::*;
    use bytes::Bytes;
    use coral_wire::coral::blocks::Blocks;
    use proptest::prelude::*;

    const ALL: Range<u64> = 0..u64::MAX;

    fn ranges(m: &DirtyMap) -> Vec<Range<u64>> {
        m.extents.iter().map(|(s, e)| *s..s + e.len()).collect()
    }

    #[test]
    fn neighbours_are_joined_and_the_newest_wins() {
        let mut m = DirtyMap::default();
        m.insert(10, payload(b"aaaa"));
        m.insert(20, payload(b"bbbb"));
        assert_eq!(ranges(&m), [10..14, 20..24]);
        m.insert(14, payload(b"cccccc"));
        assert_eq!(ranges(&m), [10..24]);
        m.insert(12, payload(b"dd"));
        assert_eq!(
            m.read(&(10..24)).unwrap().copy_to_bytes(),
            "aaddccccccbbbb".as_bytes()
        );
        assert!(
            m.read(&(9..12)).is_none() && m.read(&(23..25)).is_none() && m.read(&(0..5)).is_none()
        );
        assert_eq!((m.cost(), m.end()), (4096, 24));
    }

    #[test]
    fn what_is_dirty_of_blocks_is_told_block_by_block() {
        let mut m = DirtyMap::default();
        let blocks = |start: u64, end: u64| Span {
            start,
            end,
            blocks: Blocks::new(PAGE_BYTES, 2 * PAGE_BYTES),
        };
        let page = |n: u64| n * PAGE_BYTES..(n + 1) * PAGE_BYTES;
        let dirty = |m: &DirtyMap, extent: &Span| m.dirty_in(extent).collect::<Vec<_>>();
        m.insert(100, payload(&[1; 5 * PAGE_BYTES as usize]));
        let first = blocks(0, u64::MAX);
        assert_eq!(dirty(&m, &first), [100..PAGE_BYTES, page(2), page(4)]);
        assert_eq!(
            dirty(&m, &blocks(PAGE_BYTES, 4 * PAGE_BYTES - 1)),
            [page(1), page(3)]
        );
        assert_eq!(dirty(&m, &Span::all(0, 199)), [100..200]);
        assert_eq!(dirty(&m, &Span::all(0, 99)), []);
        // on its way it is dirty no more
        let max = 2 * PAGE_BYTES;
        let id = m.take(&page(2), max, Wanted::All).unwrap().id;
        assert_eq!(dirty(&m, &first), [100..PAGE_BYTES, page(4)]);
        assert!(m.flies_in(&first) && m.flies_in(&Span::all(0, 3 * PAGE_BYTES)));
        assert!(
            !m.flies_in(&Span::all(0, 2 * PAGE_BYTES - 1))
                && !m.flies_in(&blocks(5 * PAGE_BYTES, u64::MAX))
        );
        m.landed(id);
        assert!(!m.flies_in(&first));
    }

    #[test]
    fn a_stream_goes_out_in_whole_rpcs() {
        let mut m = DirtyMap::default();
        let max = 1 << 20;
        m.insert(max - 100, payload(&[1; 100]));
        assert!(
            m.take(&ALL, max, Wanted::Whole).is_none(),
            "only a part of a request"
        );
        for i in 0..40 {
            m.insert(max + i * 65536, payload(&[2; 65536]));
        }
        assert_eq!(
            m.take(&ALL, max, Wanted::Whole).unwrap().span(),
            max..2 * max
        );
        assert_eq!(
            m.take(&ALL, max, Wanted::Whole).unwrap().span(),
            2 * max..3 * max
        );
        assert!(m.take(&ALL, max, Wanted::Whole).is_none());
        let last = m.take(&ALL, max, Wanted::All).unwrap();
        let parts: Vec<_> = last.parts.iter().map(part_range).collect();
        assert_eq!(parts, [max - 100..max, 3 * max..max + 40 * 65536]);
        assert_eq!(last.cost(), 4096 + 8 * 65536);
        assert!(m.take(&ALL, max, Wanted::All).is_none() && !m.is_clean());
        assert_eq!(m.cost(), 0);
        (1..=3).for_each(|id| m.landed(id));
        assert!(m.is_clean());
    }

    #[test]
    fn a_newer_version_waits_for_the_older_one() {
        let mut m = DirtyMap::default();
        m.insert(0, payload(b"old"));
        let f = m.take(&ALL, 4096, Wanted::All).unwrap();
        m.insert(2, payload(b"new"));
        assert!(m.take(&ALL, 4096, Wanted::All).is_none() && m.has_dirty(&ALL));
        assert_eq!(m.flights(&(2..3)), [f.id].into());
        m.landed(f.id);
        assert_eq!(m.take(&ALL, 4096, Wanted::All).unwrap().span(), 2..5);
    }

    #[test]
    fn small_pieces_share_a_buffer_and_large_ones_are_not_copied() {
        let mut m = DirtyMap::default();
        for i in 0..1000u64 {
            m.insert(i * 4096, payload(&[i as u8; 4096]));
        }
        let large = Bytes::from(vec![9; COPY_BELOW]);
        m.insert(1000 * 4096, Payload::from(large.clone()));
        let f = m.take(&ALL, 8 << 20, Wanted::All).unwrap();
        assert!(
            f.parts[0].1.iter().count() <= 1000 * 4096 / CHUNK_BYTES + 2,
            "{}",
            f.parts[0].1.iter().count()
        );
        assert_eq!(f.parts[0].1.iter().last().unwrap().as_ptr(), large.as_ptr());
    }

    #[test]
    fn small_pieces_far_apart_share_a_request() {
        let mut m = DirtyMap::default();
        let max = 8 * 4096;
        // every other page, then one that begins within a page
        (0..10).for_each(|i| m.insert(i * 8192, payload(&[1; 4096])));
        m.insert(100_001, payload(&[2; 10]));
        assert!(m.take(&ALL, max, Wanted::Whole).is_none());
        let first = m.take(&ALL, max, Wanted::Full).unwrap();
        assert!(m.take(&ALL, max, Wanted::Full).is_none(), "two are left");
        assert_eq!((first.parts.len(), first.span()), (8, 0..7 * 8192 + 4096));
        assert_eq!(first.cost(), max);
        m.insert(8 * 8192, payload(&[3; 4096]));
        let second = m.take(&ALL, max, Wanted::All).unwrap();
        assert_eq!((second.parts.len(), second.cost()), (2, 2 * 4096));
        let third = m.take(&ALL, max, Wanted::All).unwrap();
        assert_eq!(third.span(), 100_001..100_011);
        // dirtied anew while it flies: the neighbours go without it
        m.insert(2 * 8192, payload(&[4; 4096]));
        m.insert(200 * 8192, payload(&[5; 4096]));
        assert_eq!(m.flights(&(0..2 * 8192)), [first.id].into());
        let fourth = m.take(&ALL, max, Wanted::All).unwrap();
        assert_eq!(fourth.span(), 200 * 8192..200 * 8192 + 4096);
        assert!(m.take(&ALL, max, Wanted::All).is_none());
        m.landed(first.id);
        assert!(!m.flies(first.id) && m.flies(second.id));
        assert_eq!(m.take(&ALL, max, Wanted::All).unwrap().span(), 16384..20480);
    }

    fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
        a.start < b.end && b.start < a.end
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, usize, u8),
        Take(u64, u64, Wanted),
        Land(usize),
        Read(u64, u64),
    }

    fn wanted() -> impl Strategy<Value = Wanted> {
        prop_oneof![Just(Wanted::All), Just(Wanted::Full), Just(Wanted::Whole)]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0u64..120_000, 1usize..9000, 1u8..).prop_map(|(a, n, v)| Step::Write(a, n, v)),
            4 => (0u64..30, 1usize..3, 1u8..).prop_map(|(a, n, v)| Step::Write(a * 4096, n * 4096, v)),
            2 => (0u64..120_000, 1u64..80_000, wanted()).prop_map(|(a, n, w)| Step::Take(a, n, w)),
            2 => (0usize..8).prop_map(Step::Land),
            2 => (0u64..120_000, 1u64..9000).prop_map(|(a, n)| Step::Read(a, n)),
        ]
    }

    proptest! {
        /// Whatever is written, taken and landed in whatever order: the OST ends with the newest bytes, a read never sees others,
        /// and the charge is that of the extents.
        #[test]
        fn model(steps in proptest::collection::vec(step(), 1..200)) {
            const SIZE: usize = 32 * 4096;
            const MAX: u64 = 4 * 4096;
            let (mut m, mut model, mut disk) = (DirtyMap::default(), vec![0u8; SIZE], vec![0u8; SIZE]);
            let mut flying: Vec<Flight> = Vec::new();
            let mut land = |m: &mut DirtyMap, f: Flight| {
                for p in &f.parts {
                    let r = part_range(p);
                    disk[r.start as usize..r.end as usize].copy_from_slice(&p.1.copy_to_bytes());
                }
                m.landed(f.id);
            };
            for s in steps {
                match s {
                    Step::Write(at, n, v) => {
                        m.insert(at, payload(&vec![v; n]));
                        model[at as usize..at as usize + n].fill(v);
                    }
                    Step::Take(at, n, what) => {
                        if let Some(f) = m.take(&(at..at + n), MAX, what) {
                            let parts: Vec<_> = f.parts.iter().map(part_range).collect();
                            prop_assert!(parts.iter().map(|r| r.end - r.start).sum::<u64>() <= MAX);
                            for r in &parts {
                                prop_assert!(overlap(r, &(at..at + n)) && r.start / MAX == (r.end - 1) / MAX);
                                let mut others = flying.iter().flat_map(|o| &o.parts).map(part_range);
                                prop_assert!(others.all(|o| !overlap(&o, r)));
                            }
                            let aligned = |w: &[Range<u64>]| w[0].end.is_multiple_of(4096) && w[1].start.is_multiple_of(4096) && w[0].end <= w[1].start;
                            prop_assert!(parts.windows(2).all(aligned));
                            prop_assert!(what != Wanted::Whole || (parts.len() == 1 && parts[0].end - parts[0].start == MAX));
                            flying.push(f);
                        }
                    }
                    Step::Land(i) if i < flying.len() => land(&mut m, flying.swap_remove(i)),
                    Step::Land(_) => {}
                    Step::Read(at, n) => {
                        if let Some(got) = m.read(&(at..at + n)) {
                            prop_assert_eq!(&got.copy_to_bytes()[..], &model[at as usize..(at + n) as usize]);
                        }
                    }
                }
                let all = ranges(&m);
                prop_assert!(all.windows(2).all(|w| w[0].end < w[1].start), "{:?}", all);
                prop_assert_eq!(m.cost(), all.iter().map(|r| pages_bytes(r.start, r.end)).sum::<u64>());
            }
            loop {
                while let Some(f) = m.take(&ALL, MAX, Wanted::All) {
                    flying.push(f);
                }
                if flying.is_empty() {
                    break;
                }
                while let Some(f) = flying.pop() {
                    land(&mut m, f);
                }
            }
            prop_assert!(m.is_clean() && m.cost() == 0);
            prop_assert_eq!(&disk, &model);
        }
    }
}
