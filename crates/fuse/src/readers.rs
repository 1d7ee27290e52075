//! How many threads read the kernel's requests.
//!
//! One program is served best by one thread: when it has answered it finds the next request, mostly without having slept, and with all
//! that it needs at hand. Threads that sleep in read(2) the kernel wakes in turn, each on a processor that has to be woken too, which
//! takes as long as to serve a small request. So all but one rest while the requests come from one thread of one program, and are called
//! when several ask, or data is moved. None rests where serving may block the thread ([`crate::FuseOptions::blocks`]).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use zerocopy::FromBytes;

use crate::abi::{self, InHeader, op};

/// A request of another thread than the last counts so much, and so does one that moves [`MOVES_BYTES`].
const OTHER: u32 = 16;
/// All read when so much has come together; every other request takes one away.
const MANY: u32 = 64;
/// It is not counted further. One reads when nothing is left.
const MOST: u32 = 256;
/// Data of a READ or WRITE whose copy takes longer than a wake-up, bytes.
const MOVES_BYTES: usize = 32 << 10;

/// The threads of a mount that read requests.
pub(crate) struct Readers {
    count: usize,
    /// All of them read, always.
    all: bool,
    /// So many of them read.
    wanted: AtomicUsize,
    /// Who asked last, and what has come together.
    recent: AtomicU64,
    /// Nobody rests any more.
    ended: Mutex<bool>,
    called: Condvar,
}

impl Readers {
    /// `count` threads, of which all read always where serving `blocks`.
    pub fn new(count: usize, blocks: bool) -> Readers {
        Readers {
            count,
            all: blocks,
            wanted: AtomicUsize::new(if blocks { count } else { 1 }),
            recent: AtomicU64::new(0),
            ended: Mutex::new(false),
            called: Condvar::new(),
        }
    }

    /// Returns when thread `index` is to read.
    pub fn wait(&self, index: usize) {
        let rests = || index >= self.wanted.load(Ordering::Relaxed);
        if rests() {
            let mut ended = self.ended.lock();
            while rests() && !*ended {
                self.called.wait(&mut ended);
            }
        }
    }

    /// A request has come.
    pub fn asked(&self, h: &InHeader, body: &[u8]) {
        if self.all {
            return;
        }
        let moved = match h.opcode {
            op::WRITE => body.len(),
            op::READ => abi::ReadIn::read_from_prefix(body).map_or(0, |(r, _)| r.size as usize),
            _ => 0,
        };
        // two at once may count as one
        let (wanted, recent) = (
            self.wanted.load(Ordering::Relaxed),
            self.recent.load(Ordering::Relaxed),
        );
        let (now, sum) = count(recent, h.pid, moved);
        self.recent.store(now, Ordering::Relaxed);
        if sum >= MANY && wanted < self.count {
            self.call();
        } else if sum == 0 && wanted > 1 && !*self.ended.lock() {
            self.wanted.store(1, Ordering::Relaxed);
        }
    }

    fn call(&self) {
        let _ended = self.ended.lock();
        self.wanted.store(self.count, Ordering::Relaxed);
        self.called.notify_all();
    }

    /// The connection has ended, or a thread has: all the others look.
    pub fn end(&self) {
        *self.ended.lock() = true;
        self.call();
    }
}

/// What there is after a request of thread `pid` that moves so many bytes, and the sum in it. What the kernel asks for by itself has no
/// thread.
fn count(recent: u64, pid: u32, moved: usize) -> (u64, u32) {
    let (last, sum) = ((recent >> 32) as u32, recent as u32);
    let other = pid != 0 && pid != last;
    let sum = match other || moved >= MOVES_BYTES {
        true => (sum + OTHER).min(MOST),
        false => sum.saturating_sub(1),
    };
    let last = if pid == 0 { last } else { pid };
    (u64::from(last) << 32 | u64::from(sum), sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all read after requests of these threads, moving so many bytes.
    fn all_read(r: &Readers, requests: impl IntoIterator<Item = (u32, usize)>) -> bool {
        for (pid, moved) in requests {
            let h = InHeader {
                opcode: if moved > 0 { op::WRITE } else { op::LOOKUP },
                pid,
                ..zerocopy::FromZeros::new_zeroed()
            };
            r.asked(&h, &vec![0; moved]);
        }
        r.wanted.load(Ordering::Relaxed) == 4
    }

    #[test]
    fn all_read_for_several_programs_and_for_data() {
        let r = Readers::new(4, false);
        let one = |n| std::iter::repeat_n((7, 0), n);
        assert!(!all_read(&r, one(1000)));
        assert!(
            !all_read(&r, [(8, 0), (7, 0)]),
            "a program that starts another"
        );
        assert!(all_read(&r, (0..6).map(|i| (i % 2 + 1, 0))));
        assert!(all_read(&r, one(50)), "for a while");
        assert!(!all_read(&r, one(MOST as usize)));
        assert!(all_read(&r, std::iter::repeat_n((7, MOVES_BYTES), 4)));
        assert!(!all_read(&r, one(1000)));
        let r = Readers::new(4, true);
        assert!(all_read(&r, one(1000)));
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the threads of a mount, which rest outside of a runtime"
    )]
    fn who_rests_is_called_and_nobody_rests_at_the_end() {
        let r = std::sync::Arc::new(Readers::new(4, false));
        let resting = |index| {
            let r = r.clone();
            std::thread::spawn(move || r.wait(index))
        };
        r.wait(0);
        let called = resting(1);
        assert!(all_read(&r, (0..9).map(|i| (i % 2 + 1, 0))));
        called.join().unwrap();
        assert!(!all_read(
            &r,
            std::iter::repeat_n((1, 0), MOST as usize + 1)
        ));
        let ended = resting(3);
        r.end();
        ended.join().unwrap();
        assert!(
            all_read(&r, std::iter::repeat_n((1, 0), 1000)),
            "none rests any more"
        );
        r.wait(3);
    }
}
