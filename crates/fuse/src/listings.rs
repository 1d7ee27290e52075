//! Listings that are on their way to the kernel with names it may keep.
//!
//! The kernel counts the names of a READDIRPLUS from when it takes the answer in (`fuse_direntplus_link`), not from when it asked.
//! So INC_EPOCH does not concern names that are on their way, and nothing tells when the program that asked runs again. The last
//! name of a listing is therefore its receipt: its entry is one that the kernel refuses (a file without a type), so that it keeps
//! all names before, and then sends FORGET for the node id of that entry (`fuse_force_forget`). The program gets the name as any
//! other, and the kernel looks it up when it is asked for.
//!
//! Invariant: a lock under which names were listed is given back after their receipt has come and the kernel was told to look
//! names up again. A program that is kept from running delays that for [`super::notify::TAKEN_IN_MAX`] at most; then the kernel
//! is told again when the receipt comes.
//!
//! While it takes a listing in, the kernel waits for each name in it that is being looked up (`d_alloc_parallel`). Such a LOOKUP
//! may wait at a server for the very lock whose return waits for the receipt. So names that are being looked up are given without
//! node ids, which the kernel waits for nobody with; and a listing with a name of which the LOOKUP began later, and takes
//! [`super::notify::LOOKED_UP_MAX`] already, is waited for no more.
//! Linux: `fs/fuse/readdir.c`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::abi::ROOT_ID;
use crate::notify::LOOKED_UP_MAX;

/// Node ids below mean no file ([`crate::nodes`]).
const IDS: u64 = 1 << 32;
/// The first node id of a receipt.
const FIRST: u64 = ROOT_ID + 1;
/// Receipts have so many different ids.
const RECEIPTS: u64 = IDS - FIRST;

/// What a listing on its way brings.
pub(crate) struct Page {
    /// The directory.
    pub dir: u64,
    /// Names that the kernel is to remember, and their files.
    pub names: HashSet<Bytes>,
    pub files: Vec<Fid>,
}

/// A name that is being looked up.
struct LookedUp {
    name: Bytes,
    number: u64,
    since: Instant,
}

#[derive(Default)]
struct State {
    /// How often names were to be looked up again.
    told: u64,
    /// Number of the next receipt.
    next: u64,
    /// Receipts that have not come.
    open: BTreeMap<u64, Page>,
    /// The last one that was open when names were to be looked up again.
    doubtful: Option<u64>,
    /// Receipts that were waited for in vain.
    late: BTreeSet<u64>,
    /// Names that are being looked up, by directory.
    lookups: HashMap<u64, Vec<LookedUp>>,
    /// Number of the next of them.
    next_lookup: u64,
}

impl State {
    /// The kernel may be waiting for a LOOKUP that has been under way for long before it takes the page in.
    fn is_stuck(&self, page: &Page) -> bool {
        let lookups = self.lookups.get(&page.dir).into_iter().flatten();
        let old = |l: &&LookedUp| l.since.elapsed() >= LOOKED_UP_MAX;
        lookups.filter(old).any(|l| page.names.contains(&l.name))
    }
}

/// The listings of one mount that are on their way.
#[derive(Default)]
pub(crate) struct Listings {
    state: Mutex<State>,
    fewer: Notify,
}

/// When a listing began.
#[derive(Clone, Copy)]
pub(crate) struct Began(u64);

/// The receipt of one listing. Dropped before it was sent, it will not come.
pub(crate) struct Receipt {
    listings: Arc<Listings>,
    number: u64,
    sent: AtomicBool,
}

/// A name of a directory is being looked up.
pub(crate) struct Looking {
    listings: Arc<Listings>,
    dir: u64,
    number: u64,
}

impl Drop for Looking {
    fn drop(&mut self) {
        let lookups = &mut self.listings.state.lock().lookups;
        if let Some(names) = lookups.get_mut(&self.dir) {
            names.retain(|l| l.number != self.number);
            if names.is_empty() {
                lookups.remove(&self.dir);
            }
        }
    }
}

impl Receipt {
    /// The node id for which FORGET comes.
    pub fn nodeid(&self) -> u64 {
        FIRST + self.number % RECEIPTS
    }

    /// The kernel has the answer.
    pub fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.sent.load(Ordering::Relaxed) {
            self.listings.came(self.number);
        }
    }
}

impl Listings {
    /// A listing begins.
    pub fn begin(&self) -> Began {
        Began(self.state.lock().told)
    }

    /// A LOOKUP of a name in `dir` begins.
    pub fn looking(self: &Arc<Self>, dir: u64, name: Bytes) -> Looking {
        let st = &mut *self.state.lock();
        let number = st.next_lookup;
        st.next_lookup += 1;
        let since = Instant::now();
        let one = LookedUp {
            name,
            number,
            since,
        };
        st.lookups.entry(dir).or_default().push(one);
        let listings = self.clone();
        Looking {
            listings,
            dir,
            number,
        }
    }

    /// The names of `dir` that are being looked up.
    pub fn looked_up(&self, dir: u64) -> HashSet<Bytes> {
        let st = self.state.lock();
        let names = st.lookups.get(&dir).into_iter().flatten();
        names.map(|l| l.name.clone()).collect()
    }

    /// Listings that are doubtful, and which the kernel may not take in before a LOOKUP ends, are waited for no more. Their files.
    pub fn give_up_stuck(&self) -> Vec<Fid> {
        let mut st = self.state.lock();
        let Some(upto) = st.doubtful else {
            return Vec::new();
        };
        let doubtful = st.open.range(..=upto);
        let stuck = doubtful.filter(|(_, page)| st.is_stuck(page));
        let stuck: Vec<u64> = stuck.map(|(n, _)| *n).collect();
        let mut files = Vec::new();
        for number in stuck {
            files.extend(st.open.remove(&number).into_iter().flat_map(|p| p.files));
            st.late.insert(number);
        }
        drop(st);
        self.fewer.notify_waiters();
        files
    }

    /// The receipt for a listing whose names may be kept; none when names were to be looked up again since it began.
    pub fn receipt(self: &Arc<Self>, page: Page, began: Began) -> Option<Receipt> {
        let st = &mut *self.state.lock();
        if st.told != began.0 {
            return None;
        }
        let number = st.next;
        st.next += 1;
        st.open.insert(number, page);
        Some(Receipt {
            listings: self.clone(),
            number,
            sent: AtomicBool::new(false),
        })
    }

    /// Names are to be looked up again; noted before the kernel is told.
    pub fn told(&self) {
        let st = &mut *self.state.lock();
        st.told += 1;
        st.doubtful = st.open.last_key_value().map(|(n, _)| *n).or(st.doubtful);
    }

    /// FORGET has come for a node id. True: names are to be looked up again because of it.
    pub fn forgotten(&self, nodeid: u64) -> bool {
        if !(FIRST..IDS).contains(&nodeid) {
            return false;
        }
        let next = self.state.lock().next;
        let back = (next % RECEIPTS + RECEIPTS - (nodeid - FIRST)) % RECEIPTS;
        match next.checked_sub(back) {
            Some(number) => self.came(number),
            None => false,
        }
    }

    fn came(&self, number: u64) -> bool {
        let mut st = self.state.lock();
        st.open.remove(&number);
        let late = st.late.remove(&number);
        drop(st);
        self.fewer.notify_waiters();
        late
    }

    /// Whether listings were on their way when names were last to be looked up again.
    pub fn is_doubtful(&self) -> bool {
        self.state.lock().doubtful.is_some()
    }

    /// Resolves when no listing is on its way that was when names were last to be looked up again. The kernel is told again after
    /// that, and then [`Listings::settled`].
    pub async fn taken_in(&self) -> Option<u64> {
        let upto = self.state.lock().doubtful?;
        loop {
            let fewer = self.fewer.notified();
            let first = self.state.lock().open.first_key_value().map(|(n, _)| *n);
            if first.is_none_or(|n| n > upto) {
                return Some(upto);
            }
            fewer.await;
        }
    }

    /// The kernel was told again after the listings up to this one were taken in.
    pub fn settled(&self, upto: u64) {
        let st = &mut *self.state.lock();
        if st.doubtful == Some(upto) {
            st.doubtful = None;
        }
    }

    /// Listings that are doubtful are waited for no more.
    pub fn give_up(&self) {
        let mut st = self.state.lock();
        let Some(upto) = st.doubtful.take() else {
            return;
        };
        let rest = st.open.split_off(&(upto + 1));
        let late = std::mem::replace(&mut st.open, rest);
        st.late.extend(late.into_keys());
        drop(st);
        self.fewer.notify_waiters();
    }

    /// The mount has ended: no receipt comes any more.
    pub fn end(&self) {
        let mut st = self.state.lock();
        st.open.clear();
        st.late.clear();
        st.doubtful = None;
        drop(st);
        self.fewer.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const FILE: Fid = Fid {
        seq: 0x2_0000_0400,
        oid: 9,
        ver: 0,
    };

    fn page(dir: u64) -> Page {
        Page {
            dir,
            names: ["name".into()].into(),
            files: vec![FILE],
        }
    }

    #[test]
    fn a_lost_lock_waits_for_the_listings_on_their_way_and_no_others() {
        let l = Arc::new(Listings::default());
        let [a, b] = [(); 2].map(|()| l.receipt(page(1), l.begin()).unwrap());
        let during = l.begin();
        assert_eq!(
            l.taken_in().now_or_never(),
            Some(None),
            "nothing is doubtful"
        );
        l.told();
        assert!(l.receipt(page(1), during).is_none(), "it began before");
        let c = l.receipt(page(1), l.begin()).unwrap();
        for r in [&a, &b, &c] {
            r.sent();
        }
        assert!(l.is_doubtful() && l.taken_in().now_or_never().is_none());
        assert!(!l.forgotten(b.nodeid()) && l.taken_in().now_or_never().is_none());
        assert!(!l.forgotten(a.nodeid()));
        let upto = l.taken_in().now_or_never().unwrap().unwrap();
        l.settled(upto);
        assert!(!l.is_doubtful(), "c has names of after");
        assert!(!l.forgotten(ROOT_ID) && !l.forgotten(IDS) && !l.forgotten(c.nodeid() + 7));
    }

    #[test]
    fn what_was_not_sent_is_not_waited_for() {
        let l = Arc::new(Listings::default());
        let a = l.receipt(page(1), l.begin()).unwrap();
        l.told();
        assert!(l.taken_in().now_or_never().is_none());
        drop(a);
        assert!(l.taken_in().now_or_never().is_some());
    }

    #[test]
    fn a_receipt_that_comes_late_has_names_looked_up_again() {
        let l = Arc::new(Listings::default());
        let a = l.receipt(page(1), l.begin()).unwrap();
        a.sent();
        l.told();
        l.give_up();
        assert!(!l.is_doubtful());
        assert!(l.forgotten(a.nodeid()) && !l.forgotten(a.nodeid()));
        let b = l.receipt(page(1), l.begin()).unwrap();
        b.sent();
        l.told();
        l.end();
        assert!(!l.is_doubtful() && !l.forgotten(b.nodeid()));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_listing_with_a_name_that_is_looked_up_for_long_is_given_up() {
        let l = Arc::new(Listings::default());
        let [a, b, c] = [7, 7, 8].map(|dir| l.receipt(page(dir), l.begin()).unwrap());
        for r in [&a, &b, &c] {
            r.sent();
        }
        l.forgotten(b.nodeid());
        let other = l.looking(7, "other".into());
        let twice = [(); 2].map(|()| l.looking(7, "name".into()));
        assert_eq!(l.looked_up(7).len(), 2);
        assert!(l.looked_up(8).is_empty());
        tokio::time::sleep(LOOKED_UP_MAX).await;
        assert!(l.give_up_stuck().is_empty(), "none is doubtful");
        l.told();
        let late = l.receipt(page(7), l.begin()).unwrap();
        late.sent();
        let [one, two] = twice;
        drop((one, other));
        assert_eq!(l.give_up_stuck(), [FILE]);
        assert!(l.taken_in().now_or_never().is_none(), "the other directory");
        assert!(!l.forgotten(c.nodeid()) && l.taken_in().now_or_never().is_some());
        assert!(
            l.forgotten(a.nodeid()),
            "names are looked up again because of it"
        );
        drop(two);
        assert!(l.state.lock().lookups.is_empty());
        l.told();
        let _now = l.looking(7, "name".into());
        assert!(l.give_up_stuck().is_empty(), "it has only begun");
    }

    #[test]
    fn numbers_outlive_their_ids() {
        let l = Arc::new(Listings::default());
        for next in [RECEIPTS - 1, RECEIPTS, 3 * RECEIPTS + 5] {
            l.state.lock().next = next;
            let r = [(); 3].map(|()| l.receipt(page(1), l.begin()).unwrap());
            l.told();
            for r in &r {
                r.sent();
                assert!(l.taken_in().now_or_never().is_none());
                l.forgotten(r.nodeid());
            }
            assert!(l.state.lock().open.is_empty());
            assert!(l.taken_in().now_or_never().is_some());
        }
    }
}
