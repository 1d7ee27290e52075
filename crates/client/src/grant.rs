//! Grant: space an OST has promised this client, so that what it keeps back of its writes has room when it is written out.
//!
//! A ledger behind a mutex; nothing waits in it. Counted in whole pages of the object. Invariant: `avail + reserved` is what
//! the OST believes this client to hold, or less (a reply that is lost, a write that fails), never more.
//!
//! Lustre: `osc_enter_cache`, `osc_announce_cached`, `osc_update_grant` in `lustre/osc/osc_cache.c` and `osc_request.c`. Absent:
//! GRANT_PARAM (blocks larger than a page, tax of extents), shrinking of a grant that lies idle.

use coral_wire::ost::{Obdo, md};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Page of an object, bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes that may stay dirty for an OST (Lustre: `max_dirty_mb`, 32 MiB for long, more today).
pub const MAX_DIRTY_BYTES: u64 = 32 << 20;
/// No server has so much; what one says beyond is not counted.
const MOST_BYTES: u64 = 1 << 62;

/// Whole pages of `start..end`, bytes: what a write there costs.
pub fn pages_bytes(start: u64, end: u64) -> u64 {
    if start >= end {
        0
    } else {
        (end.div_ceil(PAGE_BYTES) - start / PAGE_BYTES) * PAGE_BYTES
    }
}

/// Why nothing can be dirty now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// As much as may be is dirty already: wait.
    Full,
    /// Too little is granted: the OST must be asked, with the write itself.
    NoGrant,
}

#[derive(Debug)]
struct Ledger {
    /// The OST grants.
    agreed: bool,
    /// Granted and not used for anything.
    avail: u64,
    /// Granted for dirty data, or for what is being written out.
    reserved: u64,
    max_dirty: u64,
    /// Writers in [`Grant::room`].
    waiting: usize,
}

/// What one OST has granted.
#[derive(Debug)]
pub struct Grant {
    ledger: Mutex<Ledger>,
    freed: Notify,
}

impl Default for Grant {
    fn default() -> Self {
        let ledger = Ledger {
            agreed: false,
            avail: 0,
            reserved: 0,
            max_dirty: MAX_DIRTY_BYTES,
            waiting: 0,
        };
        Self {
            ledger: Mutex::new(ledger),
            freed: Notify::new(),
        }
    }
}

impl Grant {
    /// A connection is made; the OST has booked so much for this client in all. `None`: it grants nothing.
    pub fn connected(&self, granted: Option<u64>) {
        let mut l = self.ledger.lock();
        l.agreed = granted.is_some();
        l.avail = granted
            .unwrap_or(0)
            .saturating_sub(l.reserved)
            .min(MOST_BYTES);
    }

    /// Takes `bytes` (whole pages) for data to stay dirty.
    pub fn reserve(&self, bytes: u64) -> Result<(), NoRoom> {
        let mut l = self.ledger.lock();
        if !l.agreed || bytes > l.max_dirty {
            return Err(NoRoom::NoGrant);
        }
        if l.reserved + bytes > l.max_dirty {
            return Err(NoRoom::Full);
        }
        l.avail = l.avail.checked_sub(bytes).ok_or(NoRoom::NoGrant)?;
        l.reserved += bytes;
        Ok(())
    }

    /// Of what was reserved, so much is not needed after all.
    pub fn unreserve(&self, bytes: u64) {
        let mut l = self.ledger.lock();
        l.reserved -= bytes;
        l.avail += bytes;
        drop(l);
        self.freed.notify_waiters();
    }

    /// A write used up so much of what was reserved, whatever came of it.
    pub fn used(&self, bytes: u64) {
        self.ledger.lock().reserved -= bytes;
        self.freed.notify_waiters();
    }

    /// Resolves once `bytes` more may stay dirty, as far as the limit goes.
    pub async fn room(&self, bytes: u64) {
        struct Waiting<'a>(&'a Grant);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.ledger.lock().waiting -= 1;
            }
        }
        self.ledger.lock().waiting += 1;
        let _waiting = Waiting(self);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let l = self.ledger.lock();
                if l.reserved + bytes <= l.max_dirty || bytes > l.max_dirty {
                    return;
                }
            }
            freed.await;
        }
    }

    /// Whether a writer waits for room.
    pub fn is_wanted(&self) -> bool {
        self.ledger.lock().waiting > 0
    }

    /// Tells the OST with a write how things stand.
    pub fn announce(&self, o: &mut Obdo) {
        let l = self.ledger.lock();
        if !l.agreed {
            return;
        }
        o.valid |= md::FLGRANT | md::FLBLOCKS;
        o.blocks = l.reserved; // o_dirty shares the field
        o.mode = u32::try_from(l.max_dirty).unwrap_or(u32::MAX); // o_undirty
        o.grant = l.avail;
        o.misc = 0; // o_dropped
    }

    /// The reply to it.
    pub fn answered(&self, o: &Obdo) {
        let mut l = self.ledger.lock();
        if l.agreed && o.valid & md::FLGRANT != 0 {
            l.avail = l.avail.saturating_add(o.grant).min(MOST_BYTES);
        }
    }

    /// Bytes of grant held, dirty data included (`cur_grant_bytes`).
    pub fn held(&self) -> u64 {
        let l = self.ledger.lock();
        l.avail + l.reserved
    }

    /// Bytes dirty or being written out, in whole pages (`cur_dirty_bytes`).
    pub fn dirty(&self) -> u64 {
        self.ledger.lock().reserved
    }

    /// Bytes that may be.
    pub fn max_dirty(&self) -> u64 {
        self.ledger.lock().max_dirty
    }

    /// Changes that.
    pub fn set_max_dirty(&self, bytes: u64) {
        self.ledger.lock().max_dirty = bytes;
        self.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_write_costs_whole_pages() {
        assert_eq!(pages_bytes(0, 1), 4096);
        assert_eq!(pages_bytes(4095, 4097), 8192);
        assert_eq!(pages_bytes(4096, 8192), 4096);
        assert_eq!(pages_bytes(5, 5), 0);
    }

    #[tokio::test]
    async fn grant_and_limit_bound_dirty_data() {
        let g = Grant::default();
        assert_eq!(g.reserve(4096), Err(NoRoom::NoGrant), "not connected");
        g.connected(Some(3 * 4096));
        g.set_max_dirty(2 * 4096);
        assert_eq!(g.reserve(4096), Ok(()));
        assert_eq!(g.reserve(2 * 4096), Err(NoRoom::Full));
        assert_eq!(
            g.reserve(3 * 4096),
            Err(NoRoom::NoGrant),
            "it would never fit"
        );
        assert!(g.room(2 * 4096).now_or_never().is_none());
        assert!(g.room(4096).now_or_never().is_some());
        let mut waits = Box::pin(g.room(2 * 4096));
        assert!(futures_util::poll!(&mut waits).is_pending() && g.is_wanted());
        drop(waits);
        assert!(!g.is_wanted());
        g.used(4096);
        assert_eq!((g.held(), g.dirty()), (2 * 4096, 0));
        assert_eq!(g.reserve(2 * 4096), Ok(()));
        g.used(4096);
        assert_eq!(g.reserve(4096), Err(NoRoom::NoGrant));
        g.unreserve(4096);
        assert_eq!(g.reserve(4096), Ok(()));
        for grant in [u64::MAX, u64::MAX - 5] {
            g.answered(&Obdo {
                valid: md::FLGRANT,
                grant,
                ..Default::default()
            });
        }
        assert_eq!(g.held() - g.dirty(), MOST_BYTES);
    }

    #[test]
    fn a_new_connection_counts_dirty_data() {
        let g = Grant::default();
        g.connected(Some(8192));
        g.reserve(4096).unwrap();
        g.connected(Some(8192));
        assert_eq!(g.held(), 8192);
        g.connected(Some(0));
        assert_eq!((g.held(), g.dirty()), (4096, 4096));
        g.connected(None);
        assert_eq!(g.reserve(1), Err(NoRoom::NoGrant));
    }

    #[test]
    fn what_the_ost_is_told_and_gives() {
        let g = Grant::default();
        let mut o = Obdo::default();
        g.announce(&mut o);
        assert_eq!(o, Obdo::default());
        g.connected(Some(8192));
        g.reserve(4096).unwrap();
        g.announce(&mut o);
        assert_eq!(
            (o.blocks, o.grant, o.mode as u64),
            (4096, 4096, MAX_DIRTY_BYTES)
        );
        o.grant = 40960;
        g.answered(&o);
        assert_eq!(g.held(), 49152);
        g.answered(&Obdo {
            grant: 7,
            ..Default::default()
        });
        assert_eq!(g.held(), 49152);
    }
}
