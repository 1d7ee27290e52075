//! How many connections one address may have with us, so that one machine that opens them without end, or begins handshakes and
//! never ends them, keeps nobody else out. The kernel's acceptor has no such bound.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Limits;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    half_open: usize,
    open: usize,
}

/// Accepted connections by the address they came from.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    counts: Mutex<BTreeMap<IpAddr, Count>>,
}

impl Addresses {
    /// A place for a connection from `ip` that is in its handshake; None: it has all it may have.
    pub(crate) fn enter(self: &Arc<Self>, ip: IpAddr, limits: &Limits) -> Option<Place> {
        let mut counts = self.counts.lock();
        let c = counts.entry(ip).or_default();
        if c.half_open >= limits.half_open_per_address || c.open >= limits.conns_per_address {
            return None;
        }
        c.half_open += 1;
        Some(Place { all: self.clone(), ip, shaken: false })
    }

    fn change(&self, ip: IpAddr, change: impl FnOnce(&mut Count)) {
        let mut counts = self.counts.lock();
        if let Some(c) = counts.get_mut(&ip) {
            change(c);
            if *c == Count::default() {
                counts.remove(&ip);
            }
        }
    }
}

/// One connection's place among those of its address, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<Addresses>,
    ip: IpAddr,
    shaken: bool,
}

impl Place {
    /// The handshake is over.
    pub(crate) fn shaken(mut self) -> Place {
        self.shaken = true;
        self.all.change(self.ip, |c| (c.half_open, c.open) = (c.half_open - 1, c.open + 1));
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shaken = self.shaken;
        self.all.change(self.ip, |c| if shaken { c.open -= 1 } else { c.half_open -= 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_address_and_come_back() {
        let limits = Limits { half_open_per_address: 2, conns_per_address: 3, ..Limits::default() };
        let all = Arc::new(Addresses::default());
        let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let enter = |ip| all.enter(ip, &limits);
        let mut open = vec![enter(a).unwrap().shaken()];
        let half = [enter(a).unwrap(), enter(a).unwrap()];
        assert!(enter(a).is_none(), "two in their handshake");
        assert!(enter(b).is_some(), "others come in");
        open.extend(half.map(Place::shaken));
        assert!(enter(a).is_none(), "three in all");
        open.pop();
        assert!(enter(a).is_some());
        drop(open);
        assert!(all.counts.lock().is_empty(), "nothing stays behind");
    }
}
