//! The match table: who gets a PUT or GET that arrives.
//!
//! Lustre's match entries with wildcards come down to three uses, and there is one kind for each: exact bits for one PUT sink
//! (a reply, a bulk), exact bits for one GET source (a bulk), and one handler for all requests of a portal.
//! A message that nothing matches is dropped and counted, as in `lnet/lnet/lib-ptl.c`; the sender is not told.
//!
//! Wakers and handlers run after the table's lock was dropped.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use coral_buffers::Payload;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{KnownBy, Nid, Node, SendError};

/// Number of portals (`MAX_PORTALS`).
pub(crate) const MAX_PORTALS: usize = 64;
/// PUTs one expectation keeps for its owner; more are dropped. Early replies are the only reason for several.
const MAX_EVENTS: usize = 64;

/// A PUT that arrived.
#[derive(Clone, Debug)]
pub struct PutEvent {
    /// Sender.
    pub from: Nid,
    /// Portal index.
    pub portal: u32,
    /// Match bits.
    pub mbits: u64,
    /// 64 bits the sender put beside the data; PTLRPC uses none.
    pub hdr_data: u64,
    /// Offset in bytes the sender asked for in the receiver's buffer.
    pub offset: u32,
    /// The data.
    pub data: Payload,
    /// How the node is known that brought it: the sender, or the router it came by.
    pub known_by: KnownBy,
    /// When it was here.
    pub at: Instant,
}

/// Takes the PUTs of a request portal.
pub trait PortalHandler: Send + Sync + 'static {
    /// Called inline on the receiving stack, with no lock held. Must not block.
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent);

    /// Whether a PUT with these match bits takes a few microseconds at most, so that what it sends may wait for what else came with it.
    fn is_quick(&self, _portal: u32, _mbits: u64) -> bool {
        false
    }
}

type Key = (u32, u64);
type Handlers = SmallVec<[Option<Arc<dyn PortalHandler>>; MAX_PORTALS]>;
type Slots<T> = HashMap<Key, SmallVec<[Arc<T>; 1]>>;

#[derive(Default)]
struct Tables {
    puts: Slots<PutSlot>,
    gets: Slots<GetSlot>,
}

/// All match entries of a node.
#[derive(Default)]
pub(crate) struct Portals {
    tables: Mutex<Tables>,
    handlers: RwLock<Handlers>,
}

fn link<T>(slots: &mut Slots<T>, key: Key, slot: Arc<T>) {
    slots.entry(key).or_default().push(slot);
}

fn unlink<T>(slots: &mut Slots<T>, key: Key, slot: &Arc<T>) {
    if let Some(list) = slots.get_mut(&key) {
        list.retain(|s| !Arc::ptr_eq(s, slot));
        if list.is_empty() {
            slots.remove(&key);
        }
    }
}

/// Where a PUT goes.
pub(crate) enum PutMatch {
    Expected(Arc<PutSlot>),
    Handler(Arc<dyn PortalHandler>),
    None,
}

impl Portals {
    pub(crate) fn serve(&self, portal: u32, h: Option<Arc<dyn PortalHandler>>) {
        assert!(
            (portal as usize) < MAX_PORTALS,
            "portal {portal} does not exist"
        );
        let old = {
            let mut handlers = self.handlers.write();
            if handlers.len() <= portal as usize {
                handlers.resize(portal as usize + 1, None);
            }
            std::mem::replace(&mut handlers[portal as usize], h)
        };
        drop(old);
    }

    pub(crate) fn clear_handlers(&self) {
        let old = std::mem::take(&mut *self.handlers.write());
        drop(old);
    }

    pub(crate) fn expect_put(self: &Arc<Self>, portal: u32, mbits: u64) -> PutExpectation {
        let slot = Arc::new(PutSlot::default());
        link(&mut self.tables.lock().puts, (portal, mbits), slot.clone());
        PutExpectation {
            table: self.clone(),
            key: (portal, mbits),
            slot,
        }
    }

    pub(crate) fn offer_get(self: &Arc<Self>, portal: u32, mbits: u64, data: Payload) -> GetOffer {
        let slot = Arc::new(GetSlot {
            data,
            state: Mutex::default(),
        });
        link(&mut self.tables.lock().gets, (portal, mbits), slot.clone());
        GetOffer {
            table: self.clone(),
            key: (portal, mbits),
            slot,
        }
    }

    pub(crate) fn match_put(&self, portal: u32, mbits: u64) -> PutMatch {
        if let Some(slot) = self
            .tables
            .lock()
            .puts
            .get(&(portal, mbits))
            .and_then(|l| l.first())
        {
            return PutMatch::Expected(slot.clone());
        }
        match self.handlers.read().get(portal as usize) {
            Some(Some(h)) => PutMatch::Handler(h.clone()),
            _ => PutMatch::None,
        }
    }

    pub(crate) fn match_get(&self, portal: u32, mbits: u64) -> Option<Arc<GetSlot>> {
        self.tables
            .lock()
            .gets
            .get(&(portal, mbits))
            .and_then(|l| l.first())
            .cloned()
    }
}

#[derive(Default)]
struct PutState {
    events: VecDeque<PutEvent>,
    waker: Option<Waker>,
}

/// The table's half of a [`PutExpectation`].
#[derive(Default)]
pub(crate) struct PutSlot {
    state: Mutex<PutState>,
}

impl PutSlot {
    /// Hands the event to the owner; false: it has too many unread ones.
    pub(crate) fn deliver(&self, ev: PutEvent) -> bool {
        let waker = {
            let mut st = self.state.lock();
            if st.events.len() >= MAX_EVENTS {
                return false;
            }
            st.events.push_back(ev);
            st.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
        true
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<PutEvent> {
        let mut st = self.state.lock();
        if let Some(ev) = st.events.pop_front() {
            return Poll::Ready(ev);
        }
        st.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Match entry for PUTs with exact match bits; dropped = unlinked.
pub struct PutExpectation {
    table: Arc<Portals>,
    key: Key,
    slot: Arc<PutSlot>,
}

impl PutExpectation {
    /// The next PUT that matches. Safe to cancel. Waits for ever when none comes: the caller has the deadline.
    pub async fn recv(&mut self) -> PutEvent {
        poll_fn(|cx| self.slot.poll(cx)).await
    }

    /// The next PUT if it is there already.
    pub fn try_recv(&mut self) -> Option<PutEvent> {
        self.slot.state.lock().events.pop_front()
    }
}

impl Drop for PutExpectation {
    fn drop(&mut self) {
        unlink(&mut self.table.tables.lock().puts, self.key, &self.slot);
    }
}

impl std::fmt::Debug for PutExpectation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "PutExpectation(portal {}, bits {:#x})",
            self.key.0, self.key.1
        )
    }
}

#[derive(Default)]
struct OfferState {
    result: Option<Result<(), SendError>>,
    waker: Option<Waker>,
}

/// The table's half of a [`GetOffer`].
pub(crate) struct GetSlot {
    pub(crate) data: Payload,
    state: Mutex<OfferState>,
}

impl GetSlot {
    /// The REPLY was handed to the LND, or could not be.
    pub(crate) fn finish(&self, result: Result<(), SendError>) {
        let waker = {
            let mut st = self.state.lock();
            // A reply that could not be sent does not undo one that was.
            if !matches!(st.result, Some(Ok(()))) {
                st.result = Some(result);
            }
            st.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let mut st = self.state.lock();
        match st.result.take() {
            Some(Ok(())) => {
                st.result = Some(Ok(()));
                Poll::Ready(Ok(()))
            }
            Some(err) => Poll::Ready(err),
            None => {
                st.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Match entry for GETs: answers every GET with its bits until dropped.
pub struct GetOffer {
    table: Arc<Portals>,
    key: Key,
    slot: Arc<GetSlot>,
}

impl GetOffer {
    /// Resolves when the REPLY of the first GET was handed to the LND (for TCP: written to the socket), or with the error that
    /// kept it from there. Waits for ever when no GET comes. Safe to cancel.
    pub async fn done(&mut self) -> Result<(), SendError> {
        poll_fn(|cx| self.slot.poll(cx)).await
    }
}

impl Drop for GetOffer {
    fn drop(&mut self) {
        unlink(&mut self.table.tables.lock().gets, self.key, &self.slot);
    }
}

impl std::fmt::Debug for GetOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "GetOffer(portal {}, bits {:#x}, {} bytes)",
            self.key.0,
            self.key.1,
            self.slot.data.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mbits: u64) -> PutEvent {
        PutEvent {
            from: Nid(1),
            portal: 4,
            mbits,
            hdr_data: 0,
            offset: 0,
            data: Payload::new(),
            known_by: KnownBy::Process,
            at: Instant::now(),
        }
    }

    #[tokio::test]
    async fn only_exact_bits_match_and_drop_unlinks() {
        let table = Arc::new(Portals::default());
        let mut exp = table.expect_put(4, 10);
        assert!(matches!(table.match_put(4, 11), PutMatch::None));
        assert!(matches!(table.match_put(5, 10), PutMatch::None));
        match table.match_put(4, 10) {
            PutMatch::Expected(slot) => assert!(slot.deliver(event(10))),
            _ => panic!("no match"),
        }
        assert_eq!(exp.recv().await.mbits, 10);
        assert!(exp.try_recv().is_none());
        drop(exp);
        assert!(matches!(table.match_put(4, 10), PutMatch::None));
        assert!(table.tables.lock().puts.is_empty(), "nothing stays behind");
    }

    #[tokio::test]
    async fn two_owners_of_the_same_bits() {
        let table = Arc::new(Portals::default());
        let first = table.expect_put(4, 1);
        let mut second = table.expect_put(4, 1);
        drop(first);
        match table.match_put(4, 1) {
            PutMatch::Expected(slot) => assert!(slot.deliver(event(1))),
            _ => panic!("the second owner lost its entry"),
        }
        assert!(second.try_recv().is_some());
    }

    #[test]
    fn unread_events_are_bounded() {
        let slot = PutSlot::default();
        for _ in 0..MAX_EVENTS {
            assert!(slot.deliver(event(0)));
        }
        assert!(!slot.deliver(event(0)));
    }

    #[tokio::test]
    async fn offer_reports_the_first_success() {
        let table = Arc::new(Portals::default());
        let mut offer = table.offer_get(8, 3, Payload::from(vec![1u8, 2, 3]));
        let slot = table.match_get(8, 3).unwrap();
        slot.finish(Err(SendError::PeerReset));
        assert!(matches!(offer.done().await, Err(SendError::PeerReset)));
        slot.finish(Ok(()));
        slot.finish(Err(SendError::Timeout));
        assert!(offer.done().await.is_ok());
        drop(offer);
        assert!(table.match_get(8, 3).is_none());
    }
}
