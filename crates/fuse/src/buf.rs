//! Request buffers: one per reader thread, handed away with the payload of a large WRITE and replaced from a pool.
//!
//! A buffer is laid out so that the payload of a WRITE begins on a page boundary. Small payloads are copied out, so that a
//! waiting request never pins a megabyte; large ones take the buffer with them (no copy), and it returns to the pool when
//! the last reference is dropped. The pool keeps at most [`POOL_BUFFERS`]; beyond that buffers are freed.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::abi::WRITE_HEAD;

/// Idle buffers kept, each of max_write + 8 KiB bytes.
pub const POOL_BUFFERS: usize = 16;
/// Payloads up to this many bytes are copied instead of taking the buffer with them.
pub const COPY_LIMIT: usize = 32 << 10;
const PAGE: usize = 4096;

/// Free buffers of one size.
pub struct Pool {
    size: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// A pool of buffers for requests with up to `max_write` bytes of payload.
    pub fn new(max_write: usize) -> Arc<Self> {
        // One page for the head, and up to one to find a page boundary.
        Arc::new(Self {
            size: max_write + 2 * PAGE,
            free: Mutex::new(Vec::new()),
        })
    }

    fn take(&self) -> Vec<u8> {
        self.free.lock().pop().unwrap_or_else(|| vec![0; self.size])
    }

    fn give(&self, mem: Vec<u8>) {
        let mut free = self.free.lock();
        if free.len() < POOL_BUFFERS {
            free.push(mem);
        }
    }
}

/// A buffer's memory, on its way back to the pool when dropped.
struct Loan {
    mem: Vec<u8>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.mem
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.mem));
    }
}

/// The buffer one thread reads requests into.
pub struct RequestBuf {
    mem: Vec<u8>,
    start: usize,
    pool: Arc<Pool>,
}

impl RequestBuf {
    /// A buffer out of `pool`.
    pub fn new(pool: Arc<Pool>) -> Self {
        let mem = pool.take();
        let start = Self::start_of(&mem);
        Self { mem, start, pool }
    }

    /// Where requests begin, so that `start + WRITE_HEAD` is page aligned.
    fn start_of(mem: &[u8]) -> usize {
        let page = mem.as_ptr().align_offset(PAGE);
        if page >= WRITE_HEAD {
            page - WRITE_HEAD
        } else {
            page + PAGE - WRITE_HEAD
        }
    }

    /// Room to read the next request into.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.mem[self.start..]
    }

    /// The first `len` bytes of the request.
    pub fn request(&self, len: usize) -> &[u8] {
        &self.mem[self.start..self.start + len]
    }

    /// Bytes `range` of the request as something that may be kept. Large ones take the memory with them: the buffer is
    /// a new one afterwards, and `request` no longer shows this request.
    pub fn detach(&mut self, range: Range<usize>) -> Bytes {
        let range = self.start + range.start..self.start + range.end;
        if range.len() <= COPY_LIMIT {
            return Bytes::copy_from_slice(&self.mem[range]);
        }
        let fresh = self.pool.take();
        self.start = Self::start_of(&fresh);
        let mem = std::mem::replace(&mut self.mem, fresh);
        Bytes::from_owner(Loan {
            mem,
            pool: self.pool.clone(),
        })
        .slice(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_payloads_are_page_aligned_shared_and_come_back() {
        let pool = Pool::new(1 << 20);
        let mut buf = RequestBuf::new(pool.clone());
        let n = WRITE_HEAD + (1 << 20);
        assert!(buf.space().len() >= n);
        buf.space()[..n].fill(7);
        let before = buf.request(n)[WRITE_HEAD..].as_ptr();
        let data = buf.detach(WRITE_HEAD..n);
        assert_eq!((data.len(), data.as_ptr()), (1 << 20, before));
        assert_eq!(data.as_ptr().align_offset(4096), 0);
        assert!(data.iter().all(|&b| b == 7));
        buf.space().fill(9);
        assert_eq!(data[0], 7, "the next request does not touch it");
        assert_eq!(pool.free.lock().len(), 0);
        drop(data);
        assert_eq!(pool.free.lock().len(), 1);
    }

    #[test]
    fn small_payloads_leave_the_buffer() {
        let pool = Pool::new(1 << 20);
        let mut buf = RequestBuf::new(pool);
        buf.space()[..100].fill(3);
        let p = buf.request(100).as_ptr();
        assert_eq!(&buf.detach(80..100)[..], &[3; 20]);
        assert_eq!(buf.request(100).as_ptr(), p);
    }
}
