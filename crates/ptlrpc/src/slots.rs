//! Numbered slots with a limit that may change: modify tags and the in-flight limit (`lustre/obdclass/genops.c`,
//! `obd_get_mod_rpc_slot`).
//!
//! A slot that is free is taken without waiting; waiters are served first come, first served. A slot whose number is above a
//! lowered limit is not given again.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The slots of one import.
#[derive(Debug)]
pub(crate) struct Slots {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: u16,
    /// Slots 1..=made exist.
    made: u16,
    /// Free slots within the limit.
    free: Vec<u16>,
    /// Free slots above the limit.
    parked: Vec<u16>,
    waiters: VecDeque<oneshot::Sender<Slot>>,
    /// At so many waiters those that have given up are dropped: beside the callers that wait there are at most as many.
    sweep_at: usize,
}

/// Waiters before the first look for those that have given up.
const SWEEP_AT_LEAST: usize = 64;

/// A slot held; dropped = given to the next waiter.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u16,
    home: Option<Arc<Slots>>,
}

impl Slot {
    /// Its number, from 1.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.release(self.number);
        }
    }
}

impl Slots {
    pub(crate) fn new(limit: u16) -> Arc<Slots> {
        assert!(limit > 0, "a limit of 0 slots would block for ever");
        let inner = Inner {
            limit,
            made: 0,
            free: Vec::new(),
            parked: Vec::new(),
            waiters: VecDeque::new(),
            sweep_at: SWEEP_AT_LEAST,
        };
        Arc::new(Slots {
            inner: Mutex::new(inner),
        })
    }

    /// Highest number given.
    pub(crate) fn limit(&self) -> u16 {
        self.inner.lock().limit
    }

    /// A slot if one is free.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Slot> {
        self.inner.lock().take().map(|number| Slot {
            number,
            home: Some(self.clone()),
        })
    }

    /// A slot, waiting for one when all are taken. Safe to cancel.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Slot {
        let waiting = {
            let mut inner = self.inner.lock();
            match inner.take() {
                Some(number) => {
                    return Slot {
                        number,
                        home: Some(self.clone()),
                    };
                }
                None => {
                    let (tx, rx) = oneshot::channel();
                    if inner.waiters.len() >= inner.sweep_at {
                        inner.waiters.retain(|w| !w.is_closed());
                        inner.sweep_at = (inner.waiters.len() * 2).max(SWEEP_AT_LEAST);
                    }
                    inner.waiters.push_back(tx);
                    rx
                }
            }
        };
        // The sender lives in our own queue until it is used: it cannot be dropped while `self` is borrowed.
        match waiting.await {
            Ok(slot) => slot,
            Err(_) => unreachable!("a waiter's sender is never dropped unused"),
        }
    }

    /// Changes the limit; slots above it are withdrawn when they come back.
    pub(crate) fn set_limit(self: &Arc<Self>, limit: u16) {
        assert!(limit > 0, "a limit of 0 slots would block for ever");
        let ready: Vec<u16> = {
            let mut inner = self.inner.lock();
            inner.limit = limit;
            let all: Vec<u16> = inner
                .free
                .drain(..)
                .collect::<Vec<_>>()
                .into_iter()
                .chain(std::mem::take(&mut inner.parked))
                .collect();
            (inner.free, inner.parked) = all.into_iter().partition(|n| *n <= limit);
            let wanted = inner.waiters.len();
            std::iter::from_fn(|| inner.take()).take(wanted).collect()
        };
        for n in ready {
            self.release(n);
        }
    }

    /// Gives slot `n` to the next waiter that still waits, or puts it back.
    fn release(self: &Arc<Self>, n: u16) {
        loop {
            let waiter = {
                let mut inner = self.inner.lock();
                if n > inner.limit {
                    inner.parked.push(n);
                    return;
                }
                match inner.waiters.pop_front() {
                    Some(w) => w,
                    None => {
                        inner.free.push(n);
                        return;
                    }
                }
            };
            match waiter.send(Slot {
                number: n,
                home: Some(self.clone()),
            }) {
                Ok(()) => return,
                // That waiter has gone: keep the slot for the next one.
                Err(mut slot) => slot.home = None,
            }
        }
    }
}

impl Inner {
    fn take(&mut self) -> Option<u16> {
        if let Some(n) = self.free.pop() {
            return Some(n);
        }
        (self.made < self.limit).then(|| {
            self.made += 1;
            self.made
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn numbers_are_unique_and_waiters_are_served_in_order() {
        let s = Slots::new(2);
        let (a, b) = (s.acquire().await, s.acquire().await);
        assert_ne!(a.number(), b.number());
        assert!(s.try_acquire().is_none());
        let mut first = Box::pin(s.acquire());
        let mut second = Box::pin(s.acquire());
        assert!(
            first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none()
        );
        let n = a.number();
        drop(a);
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(first.await.number(), n);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_cancelled_waiter_loses_no_slot() {
        let s = Slots::new(1);
        let a = s.acquire().await;
        let mut gone = Box::pin(s.acquire());
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        drop(a);
        let b = s.try_acquire();
        assert!(b.is_some());
        // cancelled after the slot was handed over
        let mut late = Box::pin(s.acquire());
        assert!(late.as_mut().now_or_never().is_none());
        drop(b);
        drop(late);
        assert!(s.try_acquire().is_some());
    }

    #[tokio::test]
    async fn limits_move() {
        let s = Slots::new(3);
        let held: Vec<Slot> = std::iter::from_fn(|| s.try_acquire()).collect();
        assert_eq!(held.len(), 3);
        s.set_limit(1);
        drop(held);
        let only = s.try_acquire().unwrap();
        assert_eq!(only.number(), 1);
        assert!(s.try_acquire().is_none());
        let waiter = s.acquire();
        let mut waiter = Box::pin(waiter);
        assert!(waiter.as_mut().now_or_never().is_none());
        s.set_limit(4);
        assert!(waiter.now_or_never().is_some());
        let more: Vec<Slot> = std::iter::from_fn(|| s.try_acquire()).collect();
        assert!(more.len() >= 2 && more.iter().all(|m| m.number() <= 4));
    }
}
