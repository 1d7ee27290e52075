//! How many connections one address may have with us, so that one machine that opens them without end, or begins handshakes and
//! never ends them, keeps nobody else out. The kernel's acceptor has no such bound.
//!
//! Among connections in their handshake the newest has the right of way: who speaks is through in a round trip, and what
//! says nothing is what has been there longest. When an address has as many as it may have, its oldest gives way; when all
//! have, the oldest of the address that has most.
//!
//! Of connections that are open the one that has carried no message for longest gives way, if that is a while
//! ([`Limits::gives_way_after`]): a client that is there says something twice a minute, and what is closed too early is opened again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Limits;

/// An open connection that holds a place.
pub(crate) trait Open: Send + Sync {
    /// How long it has carried no message.
    fn unused(&self) -> Duration;
    /// Ends it.
    fn give_way(&self);
}

#[derive(Default)]
struct Count {
    /// In their handshake, the oldest first, by number; dropped: it gives way.
    half_open: VecDeque<(u64, oneshot::Sender<()>)>,
    /// By number; None: it begins just now.
    open: BTreeMap<u64, Option<Weak<dyn Open>>>,
}

impl Count {
    /// The open connections.
    fn conns(&self) -> Vec<(u64, Arc<dyn Open>)> {
        self.open
            .iter()
            .filter_map(|(n, c)| Some((*n, c.as_ref()?.upgrade()?)))
            .collect()
    }
}

#[derive(Default)]
struct Counts {
    by_address: BTreeMap<IpAddr, Count>,
    half_open: usize,
    last: u64,
}

impl Counts {
    /// The oldest handshake of `ip` gives way.
    fn give_way(&mut self, ip: IpAddr) {
        if self
            .by_address
            .get_mut(&ip)
            .is_some_and(|c| c.half_open.pop_front().is_some())
        {
            self.half_open -= 1;
        }
    }

    /// This handshake is over, unless it gave way before.
    fn ended(&mut self, ip: IpAddr, number: u64) {
        let Some(c) = self.by_address.get_mut(&ip) else {
            return;
        };
        let before = c.half_open.len();
        c.half_open.retain(|(n, _)| *n != number);
        self.half_open -= before - c.half_open.len();
    }

    fn forget_if_none(&mut self, ip: IpAddr) {
        if self
            .by_address
            .get(&ip)
            .is_some_and(|c| c.half_open.is_empty() && c.open.is_empty())
        {
            self.by_address.remove(&ip);
        }
    }
}

/// Accepted connections by the address they came from.
#[derive(Default)]
pub(crate) struct Addresses {
    counts: Mutex<Counts>,
}

impl Addresses {
    /// A place for a connection from `ip` that is in its handshake, and what resolves when it is to give way; None: the
    /// address has all connections it may have, and all are in use.
    pub(crate) fn enter(
        self: &Arc<Self>,
        ip: IpAddr,
        limits: &Limits,
    ) -> Option<(Place, oneshot::Receiver<()>)> {
        // Dropped behind the guard: the last one to hold a connection gives its place back.
        let conns;
        let mut counts = self.counts.lock();
        let c = counts.by_address.entry(ip).or_default();
        if c.open.len() >= limits.conns_per_address {
            conns = c.conns();
            let longest = conns
                .iter()
                .map(|(n, conn)| (conn.unused(), *n, conn))
                .max_by_key(|(unused, n, _)| (*unused, Reverse(*n)));
            let (_, number, conn) =
                longest.filter(|(unused, ..)| *unused >= limits.gives_way_after)?;
            c.open.remove(&number);
            drop(counts);
            conn.give_way();
            counts = self.counts.lock();
        }
        let c = counts.by_address.entry(ip).or_default();
        if c.half_open.len() >= limits.half_open_per_address {
            counts.give_way(ip);
        } else if counts.half_open >= limits.half_open {
            let most = counts
                .by_address
                .iter()
                .max_by_key(|(_, c)| c.half_open.len())
                .map(|(ip, _)| *ip);
            if let Some(ip) = most {
                counts.give_way(ip);
            }
        }
        counts.last += 1;
        counts.half_open += 1;
        let (number, (stays, gives_way)) = (counts.last, oneshot::channel());
        counts
            .by_address
            .entry(ip)
            .or_default()
            .half_open
            .push_back((number, stays));
        Some((
            Place {
                all: self.clone(),
                ip,
                number,
                in_handshake: true,
            },
            gives_way,
        ))
    }
}

/// One connection's place among those of its address, until dropped.
pub(crate) struct Place {
    all: Arc<Addresses>,
    ip: IpAddr,
    number: u64,
    in_handshake: bool,
}

impl Place {
    /// The handshake is over.
    pub(crate) fn shaken(mut self) -> Place {
        if std::mem::take(&mut self.in_handshake) {
            let mut counts = self.all.counts.lock();
            counts.ended(self.ip, self.number);
            counts
                .by_address
                .entry(self.ip)
                .or_default()
                .open
                .insert(self.number, None);
        }
        self
    }

    /// `conn` holds it.
    pub(crate) fn held_by(&self, conn: Weak<dyn Open>) {
        let mut counts = self.all.counts.lock();
        if let Some(c) = counts
            .by_address
            .get_mut(&self.ip)
            .and_then(|c| c.open.get_mut(&self.number))
        {
            *c = Some(conn);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        counts.ended(self.ip, self.number);
        if let Some(c) = counts.by_address.get_mut(&self.ip) {
            c.open.remove(&self.number);
        }
        counts.forget_if_none(self.ip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn places_are_counted_by_address_and_come_back() {
        let limits = Limits {
            half_open_per_address: 2,
            conns_per_address: 3,
            ..Limits::default()
        };
        let all = Arc::new(Addresses::default());
        let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let enter = |ip| all.enter(ip, &limits);
        let mut open: Vec<Place> = (0..3).map(|_| enter(a).unwrap().0.shaken()).collect();
        assert!(enter(a).is_none(), "three in all");
        assert!(enter(b).is_some(), "others come in");
        open.pop();
        assert!(enter(a).is_some());
        drop(open);
        assert!(
            all.counts.lock().by_address.is_empty(),
            "nothing stays behind"
        );
        assert_eq!(all.counts.lock().half_open, 0);
    }

    #[test]
    fn the_oldest_handshake_gives_way_of_the_same_address_or_of_the_one_with_most() {
        let limits = Limits {
            half_open: 4,
            half_open_per_address: 3,
            ..Limits::default()
        };
        let all = Arc::new(Addresses::default());
        let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let enter = |ip| all.enter(ip, &limits).unwrap();
        let told = |w: &mut oneshot::Receiver<()>| {
            w.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let mut of_a: Vec<_> = (0..4).map(|_| enter(a)).collect();
        let gone: Vec<bool> = of_a.iter_mut().map(|(_, w)| told(w)).collect();
        assert_eq!(gone, [true, false, false, false], "the address has three");
        let mut of_b = vec![enter(b)];
        assert!(
            !of_a.iter_mut().skip(1).any(|(_, w)| told(w)),
            "four in all"
        );
        of_b.push(enter(b));
        assert!(
            told(&mut of_a[1].1) && !of_b.iter_mut().any(|(_, w)| told(w)),
            "the first address has most"
        );
        let (late, _) = of_a.remove(0);
        let late = late.shaken();
        assert_eq!(
            all.counts.lock().by_address[&a].open.len(),
            1,
            "it came through all the same"
        );
        drop((late, of_a, of_b));
        assert!(all.counts.lock().by_address.is_empty());
        assert_eq!(all.counts.lock().half_open, 0);
    }

    struct Conn {
        unused: Duration,
        gone: AtomicBool,
    }

    impl Open for Conn {
        fn unused(&self) -> Duration {
            self.unused
        }
        fn give_way(&self) {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_used_least_lately_gives_way_if_that_is_a_while() {
        let limits = Limits {
            conns_per_address: 3,
            gives_way_after: Duration::from_secs(60),
            ..Limits::default()
        };
        let all = Arc::new(Addresses::default());
        let a = "10.0.0.1".parse().unwrap();
        let open = |unused| {
            let conn: Arc<Conn> = Arc::new(Conn {
                unused: Duration::from_secs(unused),
                gone: AtomicBool::new(false),
            });
            let place = all.enter(a, &limits)?.0.shaken();
            place.held_by(Arc::downgrade(&(conn.clone() as Arc<dyn Open>)));
            Some((place, conn))
        };
        let first: Vec<_> = [61, 65, 5].map(|unused| open(unused).unwrap()).into();
        let gone = || {
            first
                .iter()
                .map(|(_, c)| c.gone.load(Ordering::Relaxed))
                .collect::<Vec<_>>()
        };
        let fourth = open(1).unwrap();
        assert_eq!(gone(), [false, true, false]);
        let fifth = open(1).unwrap();
        assert_eq!(gone(), [true, true, false]);
        assert!(open(1).is_none(), "all that are left are in use");
        assert_eq!(gone(), [true, true, false]);
        drop(first);
        assert_eq!(
            all.counts.lock().by_address[&a].open.len(),
            2,
            "a place that was given away is not given back"
        );
        drop((fourth, fifth));
        assert!(all.counts.lock().by_address.is_empty());
    }
}
