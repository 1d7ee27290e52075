//! The router in a node: its buffers (lnet/lnet/router.c, `lnet_rtrbufpool`), and whether it forwards at all.
//!
//! Invariants: a message in transit holds one buffer of the smallest pool it fits and one router credit of the peer it came from,
//! until it is written to the next hop; a connection whose next message finds none is not read further (back-pressure).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::LNET_MTU;
use crate::show::{PoolShow, RoutingShow};

/// Bytes of a page, as router buffers count them.
const PAGE: usize = 4096;

/// Buffers of a router, counted over the whole node. Lustre: tiny_router_buffers and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// For messages without payload. Lustre: 2048.
    pub tiny: usize,
    /// For payloads of up to a page (4 KiB). Lustre: 16384.
    pub small: usize,
    /// For payloads of up to 1 MiB. Lustre: 1024.
    pub large: usize,
}

impl Default for PoolSizes {
    fn default() -> Self {
        PoolSizes {
            tiny: 2048,
            small: 16384,
            large: 1024,
        }
    }
}

impl PoolSizes {
    /// Most buffers of one pool.
    pub const MAX: usize = 1 << 20;
}

struct PoolState {
    /// Buffers there should be.
    wanted: usize,
    /// Buffers there are: permits out and in.
    there: usize,
}

/// One pool: permits, each for a buffer of `pages` pages.
struct Pool {
    pages: usize,
    free: Arc<Semaphore>,
    state: Mutex<PoolState>,
    least: AtomicUsize,
}

impl Pool {
    fn new(pages: usize, count: usize) -> Pool {
        let count = count.clamp(1, PoolSizes::MAX);
        let state = Mutex::new(PoolState {
            wanted: count,
            there: count,
        });
        Pool {
            pages,
            free: Arc::new(Semaphore::new(count)),
            state,
            least: AtomicUsize::new(count),
        }
    }

    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.shrink();
        let permit = self.free.clone().acquire_owned().await.ok()?;
        self.least
            .fetch_min(self.free.available_permits(), Ordering::Relaxed);
        Some(permit)
    }

    fn resize(&self, count: usize) {
        let count = count.clamp(1, PoolSizes::MAX);
        {
            let mut st = self.state.lock();
            if st.wanted == count {
                return;
            }
            st.wanted = count;
            if count > st.there {
                self.free.add_permits(count - st.there);
                st.there = count;
            }
        }
        self.shrink();
        self.least
            .store(self.free.available_permits(), Ordering::Relaxed);
    }

    /// Takes free buffers away that are too many.
    fn shrink(&self) {
        let mut st = self.state.lock();
        while st.there > st.wanted {
            let Ok(permit) = self.free.try_acquire() else {
                return;
            };
            permit.forget();
            st.there -= 1;
        }
    }

    fn show(&self) -> PoolShow {
        let (npages, nbuffers) = (self.pages, self.state.lock().wanted);
        PoolShow {
            npages,
            nbuffers,
            credits: self.free.available_permits(),
            mincredits: self.least.load(Ordering::Relaxed),
        }
    }
}

/// The router in a node.
pub(crate) struct Router {
    on: AtomicBool,
    pools: [Pool; 3],
}

impl Router {
    pub(crate) fn new(on: bool, sizes: PoolSizes) -> Router {
        let pools = [
            Pool::new(0, sizes.tiny),
            Pool::new(1, sizes.small),
            Pool::new(LNET_MTU / PAGE, sizes.large),
        ];
        Router {
            on: AtomicBool::new(on),
            pools,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Gives what was before.
    pub(crate) fn set(&self, on: bool) -> bool {
        self.on.swap(on, Ordering::Relaxed)
    }

    /// Nobody gets a buffer any more: the node goes down.
    pub(crate) fn close(&self) {
        for pool in &self.pools {
            pool.free.close();
        }
    }

    pub(crate) fn resize(&self, sizes: PoolSizes) {
        for (pool, count) in self
            .pools
            .iter()
            .zip([sizes.tiny, sizes.small, sizes.large])
        {
            pool.resize(count);
        }
    }

    /// Waits for a buffer for `payload_bytes`.
    pub(crate) async fn buffer(&self, payload_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let fits = self
            .pools
            .iter()
            .find(|p| payload_bytes <= p.pages * PAGE)?;
        fits.take().await
    }

    pub(crate) fn show(&self) -> RoutingShow {
        let [tiny, small, large] = &self.pools;
        RoutingShow {
            enabled: self.is_on(),
            tiny: tiny.show(),
            small: small.show(),
            large: large.show(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn the_smallest_pool_that_fits() {
        let r = Router::new(
            true,
            PoolSizes {
                tiny: 1,
                small: 1,
                large: 1,
            },
        );
        let take = |n| r.buffer(n).now_or_never().flatten();
        let (a, b, c) = (take(0), take(4096), take(4097));
        assert!(a.is_some() && b.is_some() && c.is_some());
        assert!(
            [0, 1, LNET_MTU].iter().all(|n| take(*n).is_none()),
            "each pool is empty"
        );
        drop(c);
        assert!(take(LNET_MTU).is_some());
        assert!(take(LNET_MTU + 1).is_none());
        assert_eq!(
            r.show().large,
            PoolShow {
                npages: 256,
                nbuffers: 1,
                credits: 1,
                mincredits: 0
            }
        );
    }

    #[test]
    fn pools_grow_at_once_and_shrink_as_buffers_come_back() {
        let r = Router::new(
            true,
            PoolSizes {
                tiny: 3,
                small: 1,
                large: 1,
            },
        );
        let take = || r.buffer(0).now_or_never().flatten();
        let held: Vec<_> = (0..3).map(|_| take().unwrap()).collect();
        r.resize(PoolSizes {
            tiny: 1,
            small: 1,
            large: 1,
        });
        drop(held);
        let one = take();
        assert!(one.is_some() && take().is_none());
        r.resize(PoolSizes {
            tiny: 2,
            small: 1,
            large: 1,
        });
        assert!(take().is_some());
        assert_eq!(r.show().tiny.nbuffers, 2);
        r.resize(PoolSizes {
            tiny: 2,
            small: 1,
            large: 5,
        });
        let shown = r.show();
        assert_eq!(
            (shown.tiny.mincredits, shown.large.mincredits),
            (0, 5),
            "only a pool that changes begins anew"
        );
    }
}
