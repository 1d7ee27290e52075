//! Senders that wait for an ACK or a REPLY, found by the cookie the peer gives back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_buffers::Payload;
use coral_wire::lnet::WireHandle;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{Nid, SendError};

type Answer = Result<Payload, SendError>;

struct Waiter {
    /// Whose connection the answer comes by: the peer's, or the gateway's.
    hop: Nid,
    /// Milliseconds of the node's life; MAX: it waits for ever.
    since: u64,
    /// Most bytes it asked for.
    len: usize,
    /// The message is out; its answer is under way, or lost with the connection.
    sent: bool,
    answer: oneshot::Sender<Answer>,
}

/// All waiters of a node, in the order they began to wait.
pub(crate) struct Pending {
    /// Goes into every handle we send, so that an answer to an earlier life of this node matches nothing.
    interface: u64,
    next: AtomicU64,
    waiters: Mutex<BTreeMap<u64, Waiter>>,
}

impl Pending {
    /// `interface`: one number per node life.
    pub(crate) fn new(interface: u64) -> Arc<Pending> {
        Arc::new(Pending {
            interface,
            next: AtomicU64::new(1),
            waiters: Mutex::default(),
        })
    }

    /// Begins to wait for an answer of at most `len` bytes by way of `hop`.
    pub(crate) fn add(self: &Arc<Self>, hop: Nid, since: u64, len: usize) -> Wait {
        let (answer, rx) = oneshot::channel();
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiters.lock().insert(
            object,
            Waiter {
                hop,
                since,
                len,
                sent: false,
                answer,
            },
        );
        Wait {
            pending: self.clone(),
            wmd: WireHandle {
                interface_cookie: self.interface,
                object_cookie: object,
            },
            rx,
        }
    }

    /// The waiter, unless `answer` is longer than it asked for.
    fn take(&self, wmd: WireHandle, answer: &Answer) -> Option<Waiter> {
        if wmd.interface_cookie != self.interface {
            return None;
        }
        let mut waiters = self.waiters.lock();
        let len = waiters.get(&wmd.object_cookie)?.len;
        if answer.as_ref().is_ok_and(|data| data.len() > len) {
            return None;
        }
        waiters.remove(&wmd.object_cookie)
    }

    /// The answer came, or the message could not be sent. False: nobody waits. A longer answer than was asked for is none: it
    /// is dropped and the wait goes on (`lnet_parse_reply`).
    pub(crate) fn complete(&self, wmd: WireHandle, answer: Answer) -> bool {
        match self.take(wmd, &answer) {
            Some(w) => w.answer.send(answer).is_ok(),
            None => false,
        }
    }

    /// The message went out to `hop`: from now on a broken connection with it means that its answer may not come.
    pub(crate) fn sent(&self, wmd: WireHandle, hop: Nid) {
        if let Some(w) = self.waiters.lock().get_mut(&wmd.object_cookie) {
            (w.sent, w.hop) = (true, hop);
        }
    }

    /// Fails those who have waited longer than `limit`; gives the hops of their messages.
    pub(crate) fn expire(&self, now_ms: u64, limit: Duration) -> Vec<Nid> {
        let oldest = now_ms.saturating_sub(limit.as_millis() as u64);
        let late: Vec<Waiter> = {
            let mut waiters = self.waiters.lock();
            let objects: Vec<u64> = waiters
                .iter()
                .filter(|(_, w)| w.since < oldest)
                .map(|(object, _)| *object)
                .collect();
            objects.iter().filter_map(|o| waiters.remove(o)).collect()
        };
        let hop = |w: Waiter| {
            let _ = w.answer.send(Err(SendError::Timeout));
            w.hop
        };
        late.into_iter().map(hop).collect()
    }

    /// Fails all who wait for an answer by way of `hop` to a message that is out; with None all who wait for anything.
    pub(crate) fn fail(&self, hop: Option<Nid>, err: impl Fn() -> SendError) {
        let failed: Vec<Waiter> = {
            let mut waiters = self.waiters.lock();
            let objects: Vec<u64> = waiters
                .iter()
                .filter(|(_, w)| hop.is_none_or(|p| p == w.hop && w.sent))
                .map(|(object, _)| *object)
                .collect();
            objects.iter().filter_map(|o| waiters.remove(o)).collect()
        };
        for w in failed {
            let _ = w.answer.send(Err(err()));
        }
    }
}

/// One wait; dropping it gives up.
pub(crate) struct Wait {
    pending: Arc<Pending>,
    pub(crate) wmd: WireHandle,
    rx: oneshot::Receiver<Answer>,
}

impl Wait {
    pub(crate) async fn answer(mut self) -> Answer {
        (&mut self.rx).await.unwrap_or(Err(SendError::Shutdown))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.pending.waiters.lock().remove(&self.wmd.object_cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_find_their_waiter_once() {
        let p = Pending::new(9);
        let (a, b) = (p.add(Nid(1), 5, 0), p.add(Nid(3), 9, 1));
        let wmd = b.wmd;
        assert!(
            !p.complete(
                WireHandle {
                    interface_cookie: 8,
                    ..wmd
                },
                Ok(Payload::new())
            ),
            "another life's handle"
        );
        assert!(
            !p.complete(wmd, Ok(Payload::from(vec![1u8, 2]))),
            "more than it asked for"
        );
        assert!(p.complete(wmd, Ok(Payload::from(vec![1u8]))));
        assert!(!p.complete(wmd, Ok(Payload::new())));
        assert_eq!(b.answer().await.unwrap().len(), 1);
        p.fail(Some(Nid(1)), || SendError::PeerReset);
        p.sent(a.wmd, Nid(1));
        p.fail(Some(Nid(2)), || SendError::PeerReset);
        p.fail(Some(Nid(1)), || SendError::Timeout);
        assert!(matches!(a.answer().await, Err(SendError::Timeout)));
        drop(p.add(Nid(3), 0, 0));
        let (old, young, patient) = (
            p.add(Nid(4), 10, 0),
            p.add(Nid(5), 11, 0),
            p.add(Nid(6), u64::MAX, 0),
        );
        assert_eq!(p.expire(2011, Duration::from_secs(2)), [Nid(4)]);
        assert!(matches!(old.answer().await, Err(SendError::Timeout)));
        drop((young, patient));
        assert!(
            p.waiters.lock().is_empty(),
            "a wait that was given up leaves nothing"
        );
    }
}
