//! Orders in which programs read the files of a directory that they have listed: as it was listed, or by name.
//!
//! An order is a hint of what is going to be read next, no more: what it says of a directory may be long past.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use coral_wire::fid::Fid;
use parking_lot::Mutex;

/// Files of all listings remembered; the oldest listing goes first.
const FILES: usize = 65_536;
/// A shorter listing is not worth it.
const LEAST: usize = 8;
/// Files of a listing opened before it is sorted.
const OPENS: u32 = 3;

/// One after the other of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Listed,
    ByName,
}

/// Where a file is in the listing of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub dir: Fid,
    pub name: Bytes,
    /// Its place in each order.
    pub places: [(Order, u64); 2],
}

/// A listing, as it was read.
#[derive(Default)]
struct Listing {
    all: Vec<(Bytes, Fid)>,
    /// The same by name, as places in `all`; and the place there of each in `all`. Empty until they are needed.
    by_name: Vec<u32>,
    places: Vec<u32>,
    opens: u32,
}

impl Listing {
    fn sort(&mut self) {
        if !self.by_name.is_empty() {
            return;
        }
        self.by_name = (0..self.all.len() as u32).collect();
        let name = |n: &u32| &self.all[*n as usize].0;
        self.by_name.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        self.places = vec![0; self.all.len()];
        for (at, n) in (0..).zip(&self.by_name) {
            self.places[*n as usize] = at;
        }
    }
}

#[derive(Default)]
struct Listings {
    by_dir: HashMap<Fid, Listing>,
    /// The directories, the one that was listed first in front.
    dirs: VecDeque<Fid>,
    /// The directory in which a file was listed last, and its place there.
    files: HashMap<Fid, (Fid, u32)>,
}

impl Listings {
    fn forget(&mut self, dir: Fid) {
        for (_, fid) in self.by_dir.remove(&dir).unwrap_or_default().all {
            if self.files.get(&fid).is_some_and(|(d, _)| *d == dir) {
                self.files.remove(&fid);
            }
        }
    }
}

/// The listings of a mount.
#[derive(Default)]
pub(super) struct Orders(Mutex<Listings>);

impl Orders {
    /// All of `dir`, as it was listed.
    pub fn listed(&self, dir: Fid, all: &[(Bytes, Fid)]) {
        let mut listings = self.0.lock();
        if listings.by_dir.contains_key(&dir) {
            listings.forget(dir);
            listings.dirs.retain(|d| *d != dir);
        }
        if !(LEAST..=FILES).contains(&all.len()) {
            return;
        }
        let places = (0..).zip(all).map(|(n, (_, fid))| (*fid, (dir, n)));
        listings.files.extend(places);
        let listing = Listing {
            all: all.to_vec(),
            ..Listing::default()
        };
        listings.by_dir.insert(dir, listing);
        listings.dirs.push_back(dir);
        while listings.files.len() > FILES
            && let Some(oldest) = listings.dirs.pop_front()
        {
            listings.forget(oldest);
        }
    }

    /// A file is opened for reading: where it is, if it is not the first that is opened there.
    pub fn opened(&self, fid: Fid) -> Option<Listed> {
        {
            let mut listings = self.0.lock();
            let (dir, _) = *listings.files.get(&fid)?;
            let listing = listings.by_dir.get_mut(&dir)?;
            listing.opens = listing.opens.saturating_add(1);
            if listing.opens < OPENS {
                return None;
            }
            listing.sort();
        }
        self.of(fid)
    }

    /// Where a file is that is in a listing of which some were opened.
    pub fn of(&self, fid: Fid) -> Option<Listed> {
        let listings = self.0.lock();
        let (dir, n) = *listings.files.get(&fid)?;
        let listing = listings.by_dir.get(&dir)?;
        let by_name = *listing.places.get(n as usize)?;
        Some(Listed {
            dir,
            name: listing.all.get(n as usize)?.0.clone(),
            places: [
                (Order::Listed, u64::from(n)),
                (Order::ByName, u64::from(by_name)),
            ],
        })
    }

    /// What has these places.
    pub fn files(&self, dir: Fid, order: Order, places: Range<u64>) -> Vec<Fid> {
        let listings = self.0.lock();
        let Some(listing) = listings.by_dir.get(&dir) else {
            return Vec::new();
        };
        let end = places.end.min(listing.all.len() as u64);
        let fid = |place: u64| {
            let n = match order {
                Order::Listed => place,
                Order::ByName => u64::from(*listing.by_name.get(place as usize)?),
            };
            Some(listing.all.get(n as usize)?.1)
        };
        (places.start..end).filter_map(fid).collect()
    }
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
    fn both_orders_are_told_of_what_is_read_more_than_once() {
        let orders = Orders::default();
        let all = listing(&["h", "b", "g", "a", "f", "e", "d", "c"]);
        orders.listed(fid(100), &all);
        assert_eq!(orders.of(fid(2)), None);
        for n in 1..OPENS {
            assert_eq!(orders.opened(fid(n)), None);
        }
        let places = |n| orders.opened(fid(n)).map(|l| (l.dir, l.name, l.places));
        let both = |listed, by_name| [(Order::Listed, listed), (Order::ByName, by_name)];
        assert_eq!(places(2), Some((fid(100), "b".into(), both(1, 1))));
        assert_eq!(places(1), Some((fid(100), "h".into(), both(0, 7))));
        assert_eq!(places(50), None);
        let files = |order, places| orders.files(fid(100), order, places);
        assert_eq!(files(Order::Listed, 6..20), [fid(7), fid(8)]);
        assert_eq!(files(Order::ByName, 0..3), [fid(4), fid(2), fid(8)]);
        assert_eq!(files(Order::ByName, 20..30), []);
        orders.listed(fid(100), &all[..2]);
        assert_eq!(places(1), None, "it is short now");
        assert!(orders.0.lock().files.is_empty());
    }

    #[test]
    fn it_stays_small() {
        let orders = Orders::default();
        for dir in 0..20 {
            let many: Vec<_> = (0..FILES as u32 / 3)
                .map(|n| (Bytes::from(n.to_string()), fid(n + dir * 100_000)))
                .collect();
            orders.listed(fid(u32::MAX - dir), &many);
        }
        let listings = orders.0.lock();
        let dirs = [17, 18, 19].map(|dir| fid(u32::MAX - dir));
        assert_eq!(listings.dirs, dirs);
        assert_eq!(listings.files.len(), FILES / 3 * 3);
    }
}
