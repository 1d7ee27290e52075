//! What a node sends of its own: PUTs, GETs and pings, with their credits, and what fault rules make of them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use coral_buffers::Payload;
use coral_wire::lnet::{LnetMsg, WireHandle};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::{Node, SendError};
use crate::faults::{HealthError, Held, Side, Verdict};
use crate::msg::Msg;
use crate::path::{Load, Path, Route, Tried};
use crate::peers::Word;
use crate::pending::Wait;
use crate::sock::{Again, Credits, Done, Tx};
use crate::{KnownBy, LNET_MTU, Nid, PingInfo, ping};

/// A PUT under way, see [`Node::put`]. To drop it does not take the message back, unless that still waits for a credit.
#[must_use = "what became of it is told to whoever waits for it"]
pub struct Put(Stage);

enum Stage {
    /// It is over; `None` when that was told.
    Done(Option<Result<(), SendError>>),
    /// It is with the LND, or a rule holds it back.
    Sent(oneshot::Receiver<Result<(), SendError>>),
    /// It waits for a credit, or for its ACK.
    Waits(BoxFuture<'static, Result<(), SendError>>),
}

impl Put {
    /// Nobody waits for what becomes of it.
    pub fn unwatched(self) {
        if let Stage::Waits(sent) = self.0 {
            tokio::spawn(sent);
        }
    }
}

impl Future for Put {
    type Output = Result<(), SendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            Stage::Done(end) => Poll::Ready(end.take().unwrap_or(Err(SendError::Shutdown))),
            Stage::Sent(sent) => Pin::new(sent)
                .poll(cx)
                .map(|end| end.unwrap_or(Err(SendError::Shutdown))),
            Stage::Waits(end) => end.as_mut().poll(cx),
        }
    }
}

/// The error a sender gets that a rule makes fail.
fn as_if(e: HealthError, nid: Nid) -> SendError {
    use HealthError as H;
    let unreachable = |kind| SendError::Unreachable {
        nid,
        source: io::Error::from(kind),
    };
    match e {
        H::LocalTimeout | H::RemoteTimeout | H::NetworkTimeout => SendError::Timeout,
        H::RemoteError | H::RemoteDropped => SendError::PeerReset,
        H::LocalNoRoute => unreachable(io::ErrorKind::HostUnreachable),
        H::LocalInterrupt => unreachable(io::ErrorKind::Interrupted),
        H::LocalDropped | H::LocalAborted => unreachable(io::ErrorKind::ConnectionAborted),
        H::LocalError => unreachable(io::ErrorKind::Other),
    }
}

impl Node {
    /// PUT. With `ack`: resolves when the ACK came; else when the LND has taken the message (written to the socket) or failed.
    /// What needs no credit to be waited for is sent before this returns. Panics when `data` is above [`LNET_MTU`].
    pub fn put(
        self: &Arc<Self>,
        to: Nid,
        portal: u32,
        mbits: u64,
        offset: u32,
        data: Payload,
        ack: bool,
    ) -> Put {
        let path = match self.path(Load::of(data.len()), to, &[]) {
            Ok(path) => path,
            Err(e) => return Put(Stage::Done(Some(Err(e)))),
        };
        let place = move |ack_wmd| LnetMsg::Put {
            ack_wmd,
            match_bits: mbits,
            hdr_data: 0,
            ptl_index: portal,
            offset,
        };
        match self.credits_now(&path.route) {
            Some(credits) => self.put_by(path, to, place, data, ack, credits),
            None => {
                let node = self.clone();
                Put(Stage::Waits(Box::pin(async move {
                    let credits = node.credits(&path.route).await?;
                    node.put_by(path, to, place, data, ack, credits).await
                })))
            }
        }
    }

    /// A PUT that has its credits. `place`: where it goes, for a wait for its ACK.
    fn put_by(
        self: &Arc<Self>,
        path: Path,
        to: Nid,
        place: impl FnOnce(WireHandle) -> LnetMsg,
        data: Payload,
        ack: bool,
        credits: Credits,
    ) -> Put {
        if ack {
            let wait = self.begin_wait(&path, 0);
            let done = Done::Answer(self.pending.clone(), wait.wmd);
            self.launch(path, to, place(wait.wmd), data, done, credits);
            return Put(Stage::Waits(Box::pin(async move {
                wait.answer().await.map(drop)
            })));
        }
        let put = place(WireHandle::NONE);
        if matches!(path.route, Route::Mem(_)) && !self.faults.is_active() {
            self.launch(path, to, put, data, Done::Nobody, credits);
            return Put(Stage::Done(Some(Ok(()))));
        }
        let (done, sent) = oneshot::channel();
        self.launch(path, to, put, data, Done::Sent(done), credits);
        Put(Stage::Sent(sent))
    }

    /// PUT that is handed to the LND, and nobody is told what becomes of it.
    pub(crate) async fn put_unwatched(
        self: &Arc<Self>,
        to: Nid,
        portal: u32,
        mbits: u64,
        data: Payload,
    ) -> Result<(), SendError> {
        let path = self.path(Load::of(data.len()), to, &[])?;
        let credits = self.credits(&path.route).await?;
        let put = LnetMsg::Put {
            ack_wmd: WireHandle::NONE,
            match_bits: mbits,
            hdr_data: 0,
            ptl_index: portal,
            offset: 0,
        };
        self.launch(path, to, put, data, Done::Nobody, credits);
        Ok(())
    }

    /// GET of at most `len` bytes from offset 0 of the peer's offer.
    pub async fn get(
        self: &Arc<Self>,
        to: Nid,
        portal: u32,
        mbits: u64,
        len: u32,
    ) -> Result<Payload, SendError> {
        let path = self.path(Load::of(len as usize), to, &[])?;
        self.get_by(path, to, portal, mbits, len).await
    }

    async fn get_by(
        self: &Arc<Self>,
        path: Path,
        to: Nid,
        portal: u32,
        mbits: u64,
        len: u32,
    ) -> Result<Payload, SendError> {
        let credits = self.credits(&path.route).await?;
        let sink_length = len.min(LNET_MTU as u32);
        let wait = self.begin_wait(&path, sink_length as usize);
        let get = LnetMsg::Get {
            return_wmd: wait.wmd,
            match_bits: mbits,
            ptl_index: portal,
            src_offset: 0,
            sink_length,
        };
        let done = Done::Answer(self.pending.clone(), wait.wmd);
        self.launch(path, to, get, Payload::new(), done, credits);
        wait.answer().await
    }

    /// Begins to wait for an answer of at most `len` bytes. Only those that come over TCP have a time limit here: in memory nothing gets lost that is
    /// not lost on purpose.
    fn begin_wait(&self, path: &Path, len: usize) -> Wait {
        let since = if matches!(path.route, Route::Sock(_)) {
            self.sock.now_ms()
        } else {
            u64::MAX
        };
        self.pending.add(path.route.hop(), since, len)
    }

    /// LNet ping. No time limit of its own: the caller has one.
    pub async fn ping(self: &Arc<Self>, nid: Nid) -> Result<PingInfo, SendError> {
        let info = self.ping_ni(nid).await?;
        self.learn(
            if self.mem_node(nid).is_some() {
                Word::Inside
            } else {
                Word::Own
            },
            nid,
            info.clone(),
        );
        Ok(info)
    }

    /// Pings this very NID, and forgets the answer.
    pub(crate) async fn ping_ni(self: &Arc<Self>, nid: Nid) -> Result<PingInfo, SendError> {
        let path = self.path_to_ni(nid)?;
        let data = self
            .get_by(path, nid, ping::PORTAL, ping::MBITS, ping::MAX_LEN)
            .await?;
        PingInfo::decode(&data.copy_to_bytes()).map_err(|e| SendError::Unreachable {
            nid,
            source: io::Error::new(io::ErrorKind::InvalidData, e),
        })
    }

    /// Credits for a message that begins an exchange, if nobody need wait for them.
    fn credits_now(&self, route: &Route) -> Option<Credits> {
        match route {
            Route::Mem(_) => Some(Credits::new()),
            Route::Sock(peer) => self.sock.credits_now(peer),
        }
    }

    /// Credits for a message that begins an exchange; responses need none.
    async fn credits(&self, route: &Route) -> Result<Credits, SendError> {
        match route {
            Route::Mem(_) => Ok(Credits::new()),
            Route::Sock(peer) => self.sock.credits(peer).await,
        }
    }

    /// Sends a message of ours to `to` by `path`.
    pub(super) fn launch(
        self: &Arc<Self>,
        path: Path,
        to: Nid,
        kind: LnetMsg,
        payload: Payload,
        done: Done,
        credits: Credits,
    ) {
        let msg = Msg {
            dest: path.dest,
            src: path.src,
            kind,
            payload,
            known_by: KnownBy::Process,
        };
        let again = path.others.then(|| Again {
            node: self.clone(),
            to,
            tried: Tried::new(),
            left: self.sock.limits.retries,
        });
        match self.faults.judge(&msg, Side::Send, msg.src) {
            None => self.launch_now(path.route, msg, done, credits, again),
            Some(Verdict::Drop) => {
                self.stats.faults.inc();
                done.finish(Ok(()), path.route.hop());
            }
            Some(Verdict::Fail(e)) => {
                self.stats.faults.inc();
                let err = as_if(e, msg.dest);
                match path.route {
                    Route::Mem(node) => done.finish(Err(err), node.nid()),
                    Route::Sock(peer) => self.tx(msg, done, credits, again).finish(Err(err), &peer),
                }
            }
            Some(Verdict::Delay(held)) => {
                self.stats.faults.inc();
                self.later(held, move |me| match me.is_down() {
                    true => done.finish(Err(SendError::Shutdown), path.route.hop()),
                    false => me.launch_now(path.route, msg, done, credits, again),
                });
            }
        }
    }

    /// Goes on with a message when the rule that holds it back lets it go.
    pub(super) fn later(
        self: &Arc<Self>,
        held: Held,
        go_on: impl FnOnce(&Arc<Node>) + Send + 'static,
    ) {
        let me = self.clone();
        self.runtime.spawn(async move {
            let bytes = held.bytes();
            held.wait().await;
            me.faults.released(bytes);
            go_on(&me);
        });
    }

    pub(crate) fn launch_now(
        &self,
        route: Route,
        msg: Msg,
        done: Done,
        credits: Credits,
        again: Option<Again>,
    ) {
        match route {
            Route::Mem(node) => {
                if !done.is_forwarded() {
                    self.stats.mem_sent.inc();
                    self.stats.sent_bytes.add(msg.payload.len() as u64);
                }
                let hop = node.nid();
                match &self.mem {
                    Some(mem) => mem.carry(self, &node, msg),
                    None => node.arrive(self.nid(), node.facing(&msg, self.nids()), msg, None),
                }
                done.finish(Ok(()), hop);
            }
            Route::Sock(peer) => {
                peer.count_sent(&msg.kind);
                peer.send(self.tx(msg, done, credits, again));
            }
        }
    }

    fn tx(&self, msg: Msg, done: Done, credits: Credits, again: Option<Again>) -> Tx {
        let mut tx = Tx::new(msg, done, credits);
        if let Some(again) = again {
            tx.may_try(again);
        }
        tx
    }
}
