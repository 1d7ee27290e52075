//! Sizes that the kernel was told, so that an old one is never what it goes by after a newer one was told.
//!
//! The kernel takes in what an answer says of a file only if nothing else has changed the file's attributes since it asked: another
//! answer, or a message to forget them (`attr_version` in `fs/fuse/inode.c`). So of two questions that overlap, the answer that
//! is taken in first counts, and it may be the older one. stat(2) returns what its own answer says, but lseek(2) to the end and reads
//! go by the size that was taken in. While one program looks at a file again and again, another that locks the file, seeks to its end
//! and writes there would write over what a client elsewhere has just appended.
//!
//! So before a question about an open file is answered with more than some answer has told before, the kernel is told in another way,
//! which it always follows ([`crate::sys::raise_size`]): from then on the size is no smaller, and answers to what it asked before count
//! no more.
//!
//! Limits: a size can be raised so, not lowered; and only the last [`KEPT`] files that answers spoke of are remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::nodes::IdMap;

/// Files remembered: an answer is taken in moments after it is written, not after as many others.
const KEPT: usize = 4096;

/// One file.
#[derive(Debug)]
struct Told {
    /// The least size told since the kernel was last sure to have as much.
    least: u64,
    /// How often it became less.
    lowered: u64,
    /// Which note in the order of files is its last.
    turn: u64,
}

#[derive(Default)]
struct Inner {
    files: IdMap<u64, Told>,
    /// Node ids, the one spoken of longest ago first, each with its turn.
    order: VecDeque<(u64, u64)>,
    turn: u64,
}

impl Inner {
    /// An answer says that a file has `size` bytes. A file that nothing is remembered of may have been told of long ago: the kernel
    /// goes by `unknown` bytes at least.
    fn note(&mut self, node: u64, size: u64, unknown: u64) -> &mut Told {
        self.turn += 1;
        let turn = self.turn;
        self.order.push_back((node, turn));
        while self.order.len() > KEPT {
            if let Some((old, turn)) = self.order.pop_front()
                && self.files.get(&old).is_some_and(|t| t.turn == turn)
            {
                self.files.remove(&old);
            }
        }
        let told = self.files.entry(node).or_insert(Told {
            least: unknown,
            lowered: 0,
            turn,
        });
        told.turn = turn;
        if size < told.least {
            told.least = size;
            told.lowered += 1;
        }
        told
    }
}

/// Makes the kernel take a file for no smaller than so many bytes: node id, size.
type Raise = Box<dyn Fn(u64, u64) + Send + Sync>;

/// The sizes told to one mount's kernel.
pub(crate) struct Sizes {
    inner: Mutex<Inner>,
    raise: Raise,
}

impl Sizes {
    pub fn new(raise: impl Fn(u64, u64) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            raise: Box::new(raise),
        })
    }

    /// An answer is about to say that the file has `size` bytes; `new` if the kernel has not known the file until now.
    pub fn tell(&self, node: u64, size: u64, new: bool) {
        let unknown = if new { size } else { 0 };
        self.inner.lock().note(node, size, unknown);
    }

    /// The kernel takes in by itself that a write through it has ended at `end`.
    pub fn wrote(&self, node: u64, end: u64) {
        if let Some(told) = self.inner.lock().files.get_mut(&node) {
            told.least = told.least.max(end);
        }
    }

    /// A question about an open file is about to be answered with `size`: sees to it that the kernel goes by no less.
    pub async fn tell_open(self: &Arc<Self>, node: u64, size: u64) {
        let lowered = {
            let mut inner = self.inner.lock();
            let told = inner.note(node, size, 0);
            if told.least >= size {
                return;
            }
            told.lowered
        };
        // it may wait for a page that a read is to bring: not on a thread that serves reads
        let me = self.clone();
        let raised = tokio::task::spawn_blocking(move || (me.raise)(node, size)).await;
        if let (Ok(()), Some(told)) = (raised, self.inner.lock().files.get_mut(&node))
            && told.lowered == lowered
        {
            told.least = told.least.max(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> (Arc<Sizes>, Arc<Mutex<Vec<(u64, u64)>>>) {
        let raised = Arc::new(Mutex::new(Vec::new()));
        let log = raised.clone();
        (
            Sizes::new(move |node, size| log.lock().push((node, size))),
            raised,
        )
    }

    #[tokio::test]
    async fn only_growth_that_the_kernel_may_not_have_is_told_apart() {
        let (s, raised) = sizes();
        s.tell(1, 10, true);
        s.tell_open(1, 10).await;
        assert_eq!(*raised.lock(), []);
        s.tell_open(1, 20).await;
        s.tell_open(1, 20).await;
        assert_eq!(*raised.lock(), [(1, 20)]);
        s.wrote(1, 30);
        s.tell_open(1, 30).await;
        assert_eq!(raised.lock().len(), 1, "its own write");
        s.tell(1, 5, false);
        s.tell_open(1, 30).await;
        assert_eq!(*raised.lock(), [(1, 20), (1, 30)], "cut, and grown again");
        s.tell(1, 40, false);
        s.tell_open(1, 40).await;
        assert_eq!(raised.lock().last(), Some(&(1, 40)), "told by a name only");
        s.tell(2, 7, false);
        s.tell_open(2, 7).await;
        assert_eq!(raised.lock().last(), Some(&(2, 7)), "told of long ago");
    }

    #[tokio::test]
    async fn what_is_told_meanwhile_counts() {
        let slot: Arc<Mutex<Option<Arc<Sizes>>>> = Arc::default();
        let calls = Arc::new(Mutex::new(0));
        let (inside, count) = (slot.clone(), calls.clone());
        let s = Sizes::new(move |node, _| {
            *count.lock() += 1;
            if let Some(s) = inside.lock().take() {
                s.tell(node, 3, false);
            }
        });
        s.tell(1, 10, true);
        *slot.lock() = Some(s.clone());
        s.tell_open(1, 20).await;
        s.tell_open(1, 20).await;
        assert_eq!(*calls.lock(), 2, "cut while it was raised");
    }

    #[test]
    fn it_is_bounded() {
        let (s, _) = sizes();
        (0..3 * KEPT as u64).for_each(|n| s.tell(n % (2 * KEPT as u64), n, true));
        let inner = s.inner.lock();
        assert!(inner.files.len() <= KEPT && inner.order.len() <= KEPT);
    }
}
