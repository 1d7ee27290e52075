//! What is dirty of one object: extents by offset, and what of it is being written out. A plain state machine.
//!
//! Invariants:
//! - dirty extents neither overlap nor touch: neighbours are joined, the newest bytes win;
//! - two ranges being written out never overlap: bytes dirtied anew while their old version travels go out after it;
//! - an extent goes out cut at multiples of the largest RPC, so a steady writer makes whole RPCs.
//!
//! Small pieces are copied together ([`COPY_BELOW`]), large ones are kept as they came. Lustre: `lustre/osc/osc_cache.c` (`osc_extent`).

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::BytesMut;
use coral_buffers::Payload;

use crate::grant::pages_bytes;
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

/// A range on its way to the OST.
#[derive(Debug)]
pub struct Flight {
    pub id: u64,
    /// Offset in the object.
    pub start: u64,
    pub data: Payload,
}

impl Flight {
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.data.len() as u64
    }

    /// Grant it was charged with, bytes.
    pub fn cost(&self) -> u64 {
        pages_bytes(self.start, self.range().end)
    }
}

/// The dirty extents of one object.
#[derive(Debug, Default)]
pub struct DirtyMap {
    extents: BTreeMap<u64, Extent>,
    flying: Vec<(u64, Range<u64>)>,
    last_id: u64,
    /// Grant the extents are charged with, bytes; what flies is counted by itself.
    cost: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
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

    /// Flights that touch `range`.
    pub fn flights<'a>(&'a self, range: &'a Range<u64>) -> impl Iterator<Item = u64> + 'a {
        self.flying
            .iter()
            .filter(|(_, r)| overlap(r, range))
            .map(|(id, _)| *id)
    }

    /// This one is still under way.
    pub fn flies(&self, id: u64) -> bool {
        self.flying.iter().any(|f| f.0 == id)
    }

    /// Bytes that are not known to be at the OST.
    pub fn bytes(&self) -> u64 {
        self.extents
            .values()
            .map(Extent::len)
            .chain(self.flying.iter().map(|(_, r)| r.end - r.start))
            .sum()
    }

    /// End of the last byte that is not known to be at the OST; 0 when there is none.
    pub fn end(&self) -> u64 {
        let dirty = self
            .extents
            .last_key_value()
            .map_or(0, |(s, e)| s + e.len());
        self.flying.iter().map(|(_, r)| r.end).fold(dirty, u64::max)
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

    /// The next piece to write out of those that touch `range`, at most up to a multiple of `max` bytes. `whole`: only one that
    /// ends at such a multiple. `None` also when all that is left waits for flights.
    pub fn take(&mut self, range: &Range<u64>, max: u64, whole: bool) -> Option<Flight> {
        let mut from = range.start;
        while let Some(start) = self.first_in(&(from..range.end)) {
            let end = start + self.extents[&start].len();
            let mut at = start;
            while at < end.min(range.end) {
                let border = (at / max + 1).saturating_mul(max);
                let piece = at..end.min(border);
                let wanted = piece.end > range.start && (!whole || piece.end == border);
                if wanted && !self.flying.iter().any(|(_, r)| overlap(r, &piece)) {
                    return Some(self.launch(start, piece));
                }
                at = piece.end;
            }
            from = end;
        }
        None
    }

    fn launch(&mut self, start: u64, piece: Range<u64>) -> Flight {
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
        self.last_id += 1;
        self.flying.push((self.last_id, piece.clone()));
        Flight {
            id: self.last_id,
            start: piece.start,
            data,
        }
    }

    /// A flight ended.
    pub fn landed(&mut self, id: u64) {
        self.flying.retain(|f| f.0 != id);
    }

    /// Drops everything that is dirty; the grant it was charged with. Flights go on.
    pub fn discard(&mut self) -> u64 {
        self.extents.clear();
        std::mem::take(&mut self.cost)
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
    fn a_stream_goes_out_in_whole_rpcs() {
        let mut m = DirtyMap::default();
        let max = 1 << 20;
        m.insert(max - 100, payload(&[1; 100]));
        assert_eq!(
            m.take(&ALL, max, true).unwrap().range(),
            max - 100..max,
            "it ends where an RPC ends"
        );
        for i in 0..40 {
            m.insert(max + i * 65536, payload(&[2; 65536]));
        }
        assert_eq!(m.take(&ALL, max, true).unwrap().range(), max..2 * max);
        assert_eq!(m.take(&ALL, max, true).unwrap().range(), 2 * max..3 * max);
        assert!(m.take(&ALL, max, true).is_none());
        let last = m.take(&ALL, max, false).unwrap();
        assert_eq!(
            (last.range(), last.cost()),
            (3 * max..max + 40 * 65536, 8 * 65536)
        );
        assert!(m.take(&ALL, max, false).is_none() && !m.is_clean());
        assert_eq!(m.cost(), 0);
        (1..=4).for_each(|id| m.landed(id));
        assert!(m.is_clean());
    }

    #[test]
    fn a_newer_version_waits_for_the_older_one() {
        let mut m = DirtyMap::default();
        m.insert(0, payload(b"old"));
        let f = m.take(&ALL, 4096, false).unwrap();
        m.insert(2, payload(b"new"));
        assert!(m.take(&ALL, 4096, false).is_none() && m.has_dirty(&ALL));
        assert_eq!(m.flights(&(2..3)).collect::<Vec<_>>(), [f.id]);
        m.landed(f.id);
        assert_eq!(m.take(&ALL, 4096, false).unwrap().range(), 2..5);
    }

    #[test]
    fn small_pieces_share_a_buffer_and_large_ones_are_not_copied() {
        let mut m = DirtyMap::default();
        for i in 0..1000u64 {
            m.insert(i * 4096, payload(&[i as u8; 4096]));
        }
        let large = Bytes::from(vec![9; COPY_BELOW]);
        m.insert(1000 * 4096, Payload::from(large.clone()));
        let f = m.take(&ALL, 8 << 20, false).unwrap();
        assert!(
            f.data.iter().count() <= 1000 * 4096 / CHUNK_BYTES + 2,
            "{}",
            f.data.iter().count()
        );
        assert_eq!(f.data.iter().last().unwrap().as_ptr(), large.as_ptr());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, usize, u8),
        Take(u64, u64, bool),
        Land(usize),
        Read(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..3000, 1usize..700, 1u8..).prop_map(|(a, n, v)| Step::Write(a, n, v)),
            2 => (0u64..3000, 1u64..2000, any::<bool>()).prop_map(|(a, n, w)| Step::Take(a, n, w)),
            2 => (0usize..8).prop_map(Step::Land),
            2 => (0u64..3000, 1u64..900).prop_map(|(a, n)| Step::Read(a, n)),
        ]
    }

    proptest! {
        /// Whatever is written, taken and landed in whatever order: the OST ends with the newest bytes, a read never sees others,
        /// and the charge is that of the extents.
        #[test]
        fn model(steps in proptest::collection::vec(step(), 1..200)) {
            const SIZE: usize = 4096;
            const MAX: u64 = 512;
            let (mut m, mut model, mut disk) = (DirtyMap::default(), vec![0u8; SIZE], vec![0u8; SIZE]);
            let mut flying: Vec<Flight> = Vec::new();
            let mut land = |m: &mut DirtyMap, f: Flight| {
                let r = f.range();
                disk[r.start as usize..r.end as usize].copy_from_slice(&f.data.copy_to_bytes());
                m.landed(f.id);
            };
            for s in steps {
                match s {
                    Step::Write(at, n, v) => {
                        m.insert(at, payload(&vec![v; n]));
                        model[at as usize..at as usize + n].fill(v);
                    }
                    Step::Take(at, n, whole) => {
                        if let Some(f) = m.take(&(at..at + n), MAX, whole) {
                            let r = f.range();
                            prop_assert!(overlap(&r, &(at..at + n)) && r.end - r.start <= MAX && r.start / MAX == (r.end - 1) / MAX);
                            prop_assert!(!whole || r.end % MAX == 0);
                            prop_assert!(flying.iter().all(|o| !overlap(&o.range(), &r)));
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
                while let Some(f) = m.take(&ALL, MAX, false) {
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
