//! Orders in which programs read the files of a directory that they have listed: as it was listed, by name as the shell and most programs
//! sort it, or by inode number as `cp -r` does.
//!
//! An order is a hint of what is going to be read next, no more: what it says of a directory may be long past.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use coral_wire::fid::Fid;
use parking_lot::Mutex;

use super::track::Track;

/// Names of all listings remembered; the oldest listing goes first.
const NAMES: usize = 32_768;
/// Listings remembered.
const LISTINGS: usize = 32;
/// A shorter listing is not worth it.
const LEAST: usize = 8;
/// Files of a listing opened before it is sorted.
const OPENS: u32 = 3;

/// One after the other of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Listed,
    ByName,
    /// Inode numbers are made of FIDs.
    ByFid,
}

/// The listing of a directory.
pub(super) struct Listing {
    pub dir: Fid,
    files: Vec<Fid>,
    /// The names, one behind the other, and where each ends.
    names: Vec<u8>,
    ends: Vec<u32>,
    /// The place of each file.
    at: HashMap<Fid, u32>,
    /// By name, and by FID.
    sorted: OnceLock<[Sorted; 2]>,
    opens: AtomicU32,
    tracks: [Mutex<Track>; 3],
}

/// Places in the listing in another order, and for each place in the listing that among these.
struct Sorted {
    order: Vec<u32>,
    places: Vec<u32>,
}

impl Sorted {
    fn of<K: Ord>(all: u32, key: impl Fn(u32) -> K) -> Sorted {
        let mut order: Vec<u32> = (0..all).collect();
        order.sort_unstable_by_key(|n| key(*n));
        let mut places = vec![0; order.len()];
        for (at, n) in (0..).zip(&order) {
            places[*n as usize] = at;
        }
        Sorted { order, places }
    }
}

impl Listing {
    fn of(dir: Fid, all: &[(Bytes, Fid)]) -> Listing {
        let (mut names, mut ends) = (Vec::new(), Vec::with_capacity(all.len()));
        for (name, _) in all {
            names.extend_from_slice(name);
            ends.push(names.len() as u32);
        }
        Listing {
            dir,
            files: all.iter().map(|(_, fid)| *fid).collect(),
            names,
            ends,
            at: (0..).zip(all).map(|(n, (_, fid))| (*fid, n)).collect(),
            sorted: OnceLock::new(),
            opens: AtomicU32::new(0),
            tracks: Default::default(),
        }
    }

    fn is(&self, all: &[(Bytes, Fid)]) -> bool {
        self.files.len() == all.len()
            && (0..).zip(all).all(|(n, (name, fid))| {
                self.files[n as usize] == *fid && self.name(n) == Some(&name[..])
            })
    }

    fn name(&self, n: u32) -> Option<&[u8]> {
        let end = *self.ends.get(n as usize)? as usize;
        let from = n
            .checked_sub(1)
            .map_or(0, |n| self.ends[n as usize] as usize);
        self.names.get(from..end)
    }

    fn sorted(&self) -> &[Sorted; 2] {
        self.sorted.get_or_init(|| {
            let all = self.files.len() as u32;
            [
                Sorted::of(all, |n| self.name(n)),
                Sorted::of(all, |n| self.files[n as usize]),
            ]
        })
    }

    /// What has these places.
    pub fn files(&self, order: Order, places: Range<u64>) -> Vec<Fid> {
        let end = places.end.min(self.files.len() as u64);
        let fid = |place: u64| {
            let [by_name, by_fid] = self.sorted();
            let n = match order {
                Order::Listed => place as u32,
                Order::ByName => *by_name.order.get(place as usize)?,
                Order::ByFid => *by_fid.order.get(place as usize)?,
            };
            self.files.get(n as usize).copied()
        };
        (places.start..end).filter_map(fid).collect()
    }

    /// Who goes along in this order.
    pub fn track(&self, order: Order) -> &Mutex<Track> {
        &self.tracks[order as usize]
    }
}

/// A file in a listing.
pub(super) struct Listed {
    pub listing: Arc<Listing>,
    pub name: Bytes,
    /// Its place in each order.
    pub places: [(Order, u64); 3],
}

/// The listings of a mount, the newest in front.
#[derive(Default)]
pub(super) struct Orders(Mutex<VecDeque<Arc<Listing>>>);

impl Orders {
    /// All of `dir`, as it was listed.
    pub fn listed(&self, dir: Fid, all: &[(Bytes, Fid)]) {
        let is_it = |l: &Arc<Listing>| l.dir == dir;
        let before = self.0.lock().iter().find(|l| is_it(l)).cloned();
        let wanted = (LEAST..=NAMES).contains(&all.len());
        if before.is_none() && !wanted {
            return;
        }
        let listing = match before {
            Some(before) if before.is(all) => before,
            _ => Arc::new(Listing::of(dir, all)),
        };
        let mut listings = self.0.lock();
        listings.retain(|l| !is_it(l));
        if wanted {
            listings.push_front(listing);
        }
        let mut names: usize = listings.iter().map(|l| l.files.len()).sum();
        while names > NAMES || listings.len() > LISTINGS {
            names -= listings.pop_back().map_or(names, |l| l.files.len());
        }
    }

    /// A file is opened for reading: where it is, if it is not among the first that are opened there.
    pub fn opened(&self, fid: Fid) -> Option<Listed> {
        let (listing, n) = self.find(fid)?;
        let before = listing.opens.fetch_add(1, Ordering::Relaxed);
        (before + 1 >= OPENS).then(|| listed(listing, n))?
    }

    /// Where a file is that is in a listing of which several were opened.
    pub fn of(&self, fid: Fid) -> Option<Listed> {
        let (listing, n) = self.find(fid)?;
        listing.sorted.get()?;
        listed(listing, n)
    }

    fn find(&self, fid: Fid) -> Option<(Arc<Listing>, u32)> {
        let listings = self.0.lock();
        let mut found = listings.iter().map(|l| (l, l.at.get(&fid)));
        found.find_map(|(l, n)| Some((l.clone(), *n?)))
    }
}

fn listed(listing: Arc<Listing>, n: u32) -> Option<Listed> {
    let [by_name, by_fid] = listing.sorted();
    let place = |sorted: &Sorted| sorted.places.get(n as usize).copied().map(u64::from);
    Some(Listed {
        name: Bytes::copy_from_slice(listing.name(n)?),
        places: [
            (Order::Listed, u64::from(n)),
            (Order::ByName, place(by_name)?),
            (Order::ByFid, place(by_fid)?),
        ],
        listing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(n: u32) -> Fid {
        Fid::new(0x2_0000_0400, n)
    }

    fn listing(names: &[&'static str]) -> Vec<(Bytes, Fid)> {
        let name = |(n, name): (u32, &&'static str)| (Bytes::from_static(name.as_bytes()), fid(n));
        (1..).zip(names).map(name).collect()
    }

    #[test]
    fn all_orders_are_told_of_what_is_read_more_than_once() {
        let orders = Orders::default();
        let all = listing(&["h", "bb", "g", "a", "f", "e", "d", "c"]);
        orders.listed(fid(100), &all);
        assert!(orders.of(fid(2)).is_none());
        for n in 1..OPENS {
            assert!(orders.opened(fid(n)).is_none());
        }
        let places = |n| {
            orders
                .opened(fid(n))
                .map(|l| (l.listing.dir, l.name, l.places))
        };
        let all_three = |listed, by_name, by_fid| {
            [
                (Order::Listed, listed),
                (Order::ByName, by_name),
                (Order::ByFid, by_fid),
            ]
        };
        assert_eq!(places(2), Some((fid(100), "bb".into(), all_three(1, 1, 1))));
        assert_eq!(places(1), Some((fid(100), "h".into(), all_three(0, 7, 0))));
        assert_eq!(places(50), None);
        let known = orders.of(fid(2)).unwrap().listing;
        assert_eq!(known.files(Order::Listed, 6..20), [fid(7), fid(8)]);
        assert_eq!(known.files(Order::ByName, 0..3), [fid(4), fid(2), fid(8)]);
        assert_eq!(known.files(Order::ByName, 20..30), []);
        assert_eq!(known.files(Order::ByFid, 1..3), [fid(2), fid(3)]);
        orders.listed(fid(100), &all);
        assert!(Arc::ptr_eq(&known, &orders.of(fid(2)).unwrap().listing));
        orders.listed(fid(100), &all[1..]);
        assert!(orders.of(fid(2)).is_none(), "it is short now");
        assert!(orders.0.lock().is_empty());
    }

    #[test]
    fn it_stays_small_whatever_is_listed() {
        let orders = Orders::default();
        let dirs = || -> Vec<Fid> { orders.0.lock().iter().map(|l| l.dir).collect() };
        let many: Vec<_> = (0..NAMES as u32 / 3)
            .map(|n| (Bytes::from(n.to_string()), fid(n)))
            .collect();
        for dir in 0..20 {
            orders.listed(fid(dir), &many);
        }
        assert_eq!(dirs(), [fid(19), fid(18), fid(17)]);
        for dir in 0..100 {
            orders.listed(fid(dir), &many[..LEAST]);
        }
        assert_eq!(dirs().len(), LISTINGS);
        orders.listed(fid(1000), &vec![many[0].clone(); NAMES + 1]);
        assert_eq!(dirs().len(), LISTINGS);
    }
}
