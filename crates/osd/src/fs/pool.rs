//! Buffers for large reads, used again instead of being faulted in anew each time.
//!
//! They begin at a page: the kernel copies into others at half the speed, and from them into FUSE's pages in two pieces each.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use parking_lot::Mutex;

/// Size of a pooled buffer in bytes: one bulk descriptor.
const BUF_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;
/// Smallest read served from the pool, in bytes; smaller ones are cheap to allocate.
const MIN_BYTES: usize = 128 << 10;
/// Buffers kept while nobody uses them.
const IDLE_MAX: usize = 16;

/// A pool of 1 MiB buffers. Buffers in use are not counted: they belong to replies under way,
/// which are bounded elsewhere.
#[derive(Default)]
pub(super) struct BufPool {
    idle: Mutex<Vec<Buf>>,
}

struct Buf {
    mem: Box<[u8]>,
    start: usize,
}

impl Buf {
    fn new() -> Buf {
        let mem = vec![0; BUF_BYTES + PAGE].into_boxed_slice();
        let start = mem.as_ptr().align_offset(PAGE);
        Buf { mem, start }
    }

    fn room(&mut self, len: usize) -> &mut [u8] {
        &mut self.mem[self.start..self.start + len]
    }
}

/// A buffer on loan; back in the pool when the last [`Bytes`] over it goes.
struct Loan {
    /// There until it goes back.
    buf: Option<Buf>,
    len: usize,
    pool: Arc<BufPool>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        self.buf
            .as_ref()
            .map_or(&[], |b| &b.mem[b.start..b.start + self.len])
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.extend(self.buf.take());
        }
    }
}

impl BufPool {
    /// The one of all targets of this process: what one has read with, another reads with next.
    pub(super) fn of_process() -> Arc<BufPool> {
        static POOL: LazyLock<Arc<BufPool>> = LazyLock::new(Arc::default);
        POOL.clone()
    }

    /// Whether reads of so many bytes are served from it.
    pub(super) fn serves(len: usize) -> bool {
        (MIN_BYTES..=BUF_BYTES).contains(&len)
    }

    /// Lets `fill` store up to `len` bytes, of which [`BufPool::serves`] says yes, and say how many, and returns those. The buffer it
    /// is given is initialised, with old contents.
    pub(super) fn fill<E>(
        self: &Arc<Self>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Bytes, E> {
        let idle = self.idle.lock().pop();
        let mut buf = idle.unwrap_or_else(Buf::new);
        let filled = fill(buf.room(len))?;
        assert!(filled <= len, "a read filled more than its buffer");
        Ok(Bytes::from_owner(Loan {
            buf: Some(buf),
            len: filled,
            pool: self.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_but_not_while_somebody_reads_it() {
        let pool = Arc::new(BufPool::default());
        let fill = |v: u8| {
            pool.fill(MIN_BYTES, |b| {
                b.fill(v);
                Ok::<_, ()>(b.len() - 1)
            })
            .unwrap()
        };
        let a = fill(1);
        assert_eq!(a.as_ptr().align_offset(PAGE), 0);
        let part = a.slice(10..20);
        let b = fill(2);
        assert_eq!(a.len(), MIN_BYTES - 1);
        drop(a);
        assert!(pool.idle.lock().is_empty(), "a slice still uses it");
        assert!(part.iter().all(|x| *x == 1) && b.iter().all(|x| *x == 2));
        drop((part, b));
        assert_eq!(pool.idle.lock().len(), 2);
        fill(3);
        assert_eq!(pool.idle.lock().len(), 2);
    }
}
