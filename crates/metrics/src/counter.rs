//! Counters, gauges and probes.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::desc::{Kind, Metric, OfKind};
use crate::snapshot::Point;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// More by `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }
}

impl OfKind for Counter {
    const KIND: Kind = Kind::Counter;
}

impl Metric for Counter {
    fn points(&self, show: &mut dyn FnMut(Option<&'static str>, Point)) {
        show(None, Point::Count(self.value()));
    }
}

/// A number of things that are there now. It is shown as 0 when it is less.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Its value now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed).max(0) as u64
    }

    /// One more.
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// One more until what is returned is dropped.
    pub fn hold(&self) -> Held<'_> {
        self.inc();
        Held(self)
    }
}

/// A thing that a [`Gauge`] counts; dropped = gone.
#[derive(Debug)]
pub struct Held<'a>(&'a Gauge);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl OfKind for Gauge {
    const KIND: Kind = Kind::Gauge;
}

impl Metric for Gauge {
    fn points(&self, show: &mut dyn FnMut(Option<&'static str>, Point)) {
        show(None, Point::Count(self.value()));
    }
}

/// A gauge that asks its owner when it is looked at. Without an owner it shows nothing.
#[derive(Default)]
pub struct Probe(OnceLock<Box<dyn Fn() -> Option<u64> + Send + Sync>>);

impl Probe {
    /// Sets whom to ask, once. `ask` says `None` when its owner is gone, and must hold it weakly.
    pub fn ask(&self, ask: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(ask));
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({:?})", self.0.get().and_then(|ask| ask()))
    }
}

impl OfKind for Probe {
    const KIND: Kind = Kind::Gauge;
}

impl Metric for Probe {
    fn points(&self, show: &mut dyn FnMut(Option<&'static str>, Point)) {
        if let Some(value) = self.0.get().and_then(|ask| ask()) {
            show(None, Point::Count(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_falls_with_what_it_counts() {
        let g = Gauge::default();
        let a = g.hold();
        let b = g.hold();
        assert_eq!(g.value(), 2);
        drop((a, b));
        assert_eq!(g.value(), 0);
        g.dec();
        assert_eq!(g.value(), 0, "never less than nothing");
    }
}
