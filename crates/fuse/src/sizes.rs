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
//! no more. An older answer that is told while this is about to be done leaves it undone, as the file may have been cut: then the
//! question is asked again.
//!
//! Limits: a size can be raised so, not lowered; and only the last [`KEPT`] files that answers spoke of are remembered.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::nodes::IdMap;

/// Files remembered: an answer is taken in moments after it is written, not after as many others.
const KEPT: usize = 4096;
/// The kernel's pages, bytes.
const PAGE_BYTES: u64 = 4096;
/// Raises at the same time.
const RAISES: usize = 4;

/// One file.
#[derive(Debug)]
struct Told {
    /// The least size told since the kernel was last sure to have as much.
    least: u64,
    /// How often it became less.
    lowered: u64,
    /// Which note in the order of files is its last.
    turn: u64,
    /// The kernel is being told.
    raising: bool,
}

#[derive(Default)]
struct Inner {
    files: IdMap<u64, Told>,
    /// Node ids, the one spoken of longest ago first, each with its turn.
    order: VecDeque<(u64, u64)>,
    turn: u64,
    /// Reads and writes of the kernel's pages that are under way, with their pages: the kernel holds these until it is answered.
    pages: IdMap<u64, Vec<(u64, RangeInclusive<u64>)>>,
}

impl Inner {
    /// An answer says that a file has `size` bytes. A file that nothing is remembered of may have been told of long ago: the kernel
    /// goes by `unknown` bytes at least.
    fn note(&mut self, node: u64, size: u64, unknown: u64) -> &mut Told {
        let now = self.turn;
        // a file that is spoken of all the time does not push the others out
        let recent = |t: &Told| now.saturating_sub(t.turn) < KEPT as u64 / 2;
        if !self.files.get(&node).is_some_and(recent) {
            self.turn += 1;
            self.order.push_back((node, self.turn));
            while self.order.len() > KEPT {
                if let Some((old, turn)) = self.order.pop_front()
                    && self.files.get(&old).is_some_and(|t| t.turn == turn)
                {
                    self.files.remove(&old);
                }
            }
        }
        let turn = self.turn;
        let told = self.files.entry(node).or_insert(Told {
            least: unknown,
            lowered: 0,
            turn,
            raising: false,
        });
        if !recent(told) {
            told.turn = turn;
        }
        if size < told.least {
            told.least = size;
            told.lowered += 1;
        }
        told
    }

    /// Whether the last page of `size` bytes of the file is under way.
    fn is_under_way(&self, node: u64, size: u64) -> bool {
        let last = size.saturating_sub(1) / PAGE_BYTES;
        self.pages
            .get(&node)
            .is_some_and(|all| all.iter().any(|(_, pages)| pages.contains(&last)))
    }
}

/// Makes the kernel take a file for no smaller than so many bytes: node id, size.
type Raise = Box<dyn Fn(u64, u64) + Send + Sync>;

/// The sizes told to one mount's kernel.
pub(crate) struct Sizes {
    inner: Mutex<Inner>,
    raise: Raise,
    /// Something that a raise may wait for is over.
    over: Notify,
    /// Raises at the same time: each takes a thread.
    room: Arc<Semaphore>,
    next: AtomicU64,
}

/// Pages of a file that are under way, until this is dropped.
pub(crate) struct UnderWay {
    sizes: Arc<Sizes>,
    node: u64,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut inner = self.sizes.inner.lock();
        if let Some(all) = inner.pages.get_mut(&self.node) {
            all.retain(|(number, _)| *number != self.number);
            if all.is_empty() {
                inner.pages.remove(&self.node);
            }
        }
        drop(inner);
        self.sizes.over.notify_waiters();
    }
}

impl Sizes {
    pub fn new(raise: impl Fn(u64, u64) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            raise: Box::new(raise),
            over: Notify::new(),
            room: Arc::new(Semaphore::new(RAISES)),
            next: AtomicU64::new(0),
        })
    }

    /// The kernel reads or writes `len` bytes of its pages at `offset`.
    pub fn pages(self: &Arc<Self>, node: u64, offset: u64, len: u64) -> UnderWay {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let end = offset.saturating_add(len.max(1)) - 1;
        let pages = offset / PAGE_BYTES..=end / PAGE_BYTES;
        let mut inner = self.inner.lock();
        inner.pages.entry(node).or_default().push((number, pages));
        UnderWay {
            sizes: self.clone(),
            node,
            number,
        }
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

    /// A question about an open file is about to be answered with `size`: sees to it that the kernel goes by no less. False if an
    /// answer said less meanwhile: then it cannot be known here whether that answer or this one is the older, so the question is to
    /// be asked again.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel may wait for a page that one of our threads is to fill"
    )]
    #[must_use]
    pub async fn tell_open(self: &Arc<Self>, node: u64, size: u64) -> bool {
        if self.inner.lock().note(node, size, 0).least >= size {
            return true;
        }
        let (lowered, room) = loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            // before the look at the pages: what waits for room sees those that came meanwhile
            let room = self.room.clone().acquire_owned().await.ok();
            {
                let mut inner = self.inner.lock();
                // it would wait for a page that a read is to bring, which may take as long as a server is away
                let busy = inner.is_under_way(node, size);
                let told = inner.note(node, size, 0);
                if told.least >= size {
                    return true;
                }
                if !busy && !told.raising {
                    told.raising = true;
                    break (told.lowered, room);
                }
            }
            drop(room);
            over.await;
        };
        // goes on when the question is given up: what was begun is over some time
        let me = self.clone();
        let raised = tokio::spawn(async move {
            let _room = room;
            let blocking = me.clone();
            let done =
                tokio::task::spawn_blocking(move || blocking.raise_unless(node, size, lowered));
            let sure = done.await.unwrap_or(true);
            if let Some(told) = me.inner.lock().files.get_mut(&node) {
                told.raising = false;
            }
            me.over.notify_waiters();
            sure
        });
        raised.await.unwrap_or(true)
    }

    /// Unless the file was told to be smaller meanwhile: then false.
    fn raise_unless(&self, node: u64, size: u64, lowered: u64) -> bool {
        let same = |inner: &Inner| inner.files.get(&node).is_some_and(|t| t.lowered == lowered);
        if !same(&self.inner.lock()) {
            return false;
        }
        (self.raise)(node, size);
        let mut inner = self.inner.lock();
        if same(&inner)
            && let Some(told) = inner.files.get_mut(&node)
        {
            told.least = told.least.max(size);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Node id and size, as the kernel was told.
    type Raised = Arc<Mutex<Vec<(u64, u64)>>>;

    fn sizes() -> (Arc<Sizes>, Raised) {
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
        assert!(s.tell_open(1, 10).await);
        assert_eq!(*raised.lock(), []);
        assert!(s.tell_open(1, 20).await);
        assert!(s.tell_open(1, 20).await);
        assert_eq!(*raised.lock(), [(1, 20)]);
        s.wrote(1, 30);
        assert!(s.tell_open(1, 30).await);
        assert_eq!(raised.lock().len(), 1, "its own write");
        s.tell(1, 5, false);
        assert!(s.tell_open(1, 30).await);
        assert_eq!(*raised.lock(), [(1, 20), (1, 30)], "cut, and grown again");
        s.tell(1, 40, false);
        assert!(s.tell_open(1, 40).await);
        assert_eq!(raised.lock().last(), Some(&(1, 40)), "told by a name only");
        s.tell(2, 7, false);
        assert!(s.tell_open(2, 7).await);
        assert_eq!(raised.lock().last(), Some(&(2, 7)), "told of long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_no_page_that_is_under_way() {
        let (s, raised) = sizes();
        s.tell(1, 10, true);
        let (elsewhere, last) = (s.pages(1, 0, 4096), s.pages(1, 4096, 100));
        let asked = tokio::spawn({
            let s = s.clone();
            async move { assert!(s.tell_open(1, 5000).await) }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(raised.lock().is_empty() && !asked.is_finished());
        drop(last);
        asked.await.unwrap();
        assert_eq!(*raised.lock(), [(1, 5000)]);
        drop(elsewhere);
        assert!(s.inner.lock().pages.is_empty());
    }

    #[tokio::test]
    async fn many_questions_are_one_raise() {
        let (s, raised) = sizes();
        s.tell(1, 10, true);
        let all = (0..100).map(|_| s.tell_open(1, 20));
        futures_util::future::join_all(all).await;
        assert_eq!(*raised.lock(), [(1, 20)]);
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
        assert!(s.tell_open(1, 20).await);
        assert!(s.tell_open(1, 20).await);
        assert_eq!(*calls.lock(), 2, "cut while it was raised");
        assert!(s.tell_open(1, 20).await);
        assert_eq!(*calls.lock(), 2);
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "it keeps the thread that a raise needs"
    )]
    fn what_is_told_before_a_raise_begins_is_asked_about_again() {
        let one_thread = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        one_thread.block_on(async {
            let (s, raised) = sizes();
            s.tell(1, 10, true);
            // the raise waits for the only thread
            let (go, waits) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || waits.recv());
            let asked = tokio::spawn({
                let s = s.clone();
                async move { s.tell_open(1, 20).await }
            });
            while !s.inner.lock().files[&1].raising {
                tokio::task::yield_now().await;
            }
            s.tell(1, 5, false);
            go.send(()).unwrap();
            assert!(!asked.await.unwrap(), "nothing says which is the older");
            assert_eq!(*raised.lock(), []);
            assert!(s.tell_open(1, 20).await);
            assert_eq!(*raised.lock(), [(1, 20)]);
            busy.await.unwrap().unwrap();
        });
    }

    #[test]
    fn it_is_bounded() {
        let (s, _) = sizes();
        (0..3 * KEPT as u64).for_each(|n| s.tell(n % (2 * KEPT as u64), n, true));
        let inner = s.inner.lock();
        assert!(inner.files.len() <= KEPT && inner.order.len() <= KEPT);
    }
}
