//! A request at the server: its reply, its early replies and its bulk data (`lustre/ptlrpc/niobuf.c`,
//! `ptlrpc_start_bulk_transfer`, `ptlrpc_send_reply`; `service.c`, `ptlrpc_at_send_early_reply`).

use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coral_buffers::Payload;
use coral_lnet::{KnownBy, Nid, Node, Put, PutEvent, SendError};
use coral_stopwatch::{self as stopwatch, Ran, ServedEnd, Wait, Watch};
use coral_wire::ptlrpc::{
    BODY_ONLY_SIZE, MSG_LOCK_REPLAY_DONE, MSG_REPLAY, MSG_REQ_REPLAY_DONE, MSG_RESENT,
    MSGHDR_AT_SUPPORT, Message, PTL_RPC_MSG_ERR, PtlrpcBody, portal,
};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::service::{Active, Service};
use crate::stats::place;
use crate::timeouts::{EARLY_MARGIN_S, EXTRA_S};
use crate::xid::XID_STEP;

/// Longest wait for a bulk descriptor; a reconnect of the client ends it sooner. Lustre: bulk_timeout 100 s.
const BULK_LIMIT: Duration = Duration::from_secs(50);
/// A bulk message without answer is sent again after so long, as it may be lost; the pause doubles.
const BULK_AGAIN: Duration = Duration::from_secs(5);
/// Times a bulk message is sent again at once when the connection it went by breaks. Lustre: lnet_retry_count 2.
const BULK_RETRIES: u32 = 2;

/// Why bulk data did not flow.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum BulkError {
    /// The client did not answer in time, or reconnected.
    #[error("bulk timed out")]
    Timeout,
    /// The network failed.
    #[error("bulk transfer failed: {0}")]
    Network(String),
    /// Fewer bytes than asked for.
    #[error("bulk of {got} bytes where {want} were asked for")]
    Short {
        /// Bytes that came.
        got: usize,
        /// Bytes wanted.
        want: usize,
    },
    /// The client posted fewer descriptors than the transfer needs.
    #[error("{posted} bulk descriptors posted where {need} are needed")]
    Descriptors {
        /// Descriptors the client posted.
        posted: usize,
        /// Descriptors needed.
        need: usize,
    },
}

impl From<SendError> for BulkError {
    fn from(e: SendError) -> BulkError {
        match e {
            SendError::Timeout => BulkError::Timeout,
            e => BulkError::Network(e.to_string()),
        }
    }
}

/// A request as it reached a service. Dropped without [`ServerRequest::reply`] it stays unanswered.
///
/// It is on the heap: the futures of its handlers pass it on from one to the next.
pub struct ServerRequest(Box<Arrival>);

/// What a [`ServerRequest`] is made of.
pub struct Arrival {
    /// The message; buffer 0 is the body.
    pub msg: Message,
    /// Its body.
    pub body: PtlrpcBody,
    /// NID of the sender.
    pub from: Nid,
    /// How the node is known that brought it.
    pub known_by: KnownBy,
    /// Its xid.
    pub xid: u64,
    /// Portal it came to.
    pub portal: u32,
    /// When it came.
    pub arrived: Instant,
    /// How long it waited in the queue of its service.
    pub(crate) waited: Duration,
    /// Where its time goes.
    pub(crate) watch: Option<Arc<Watch>>,
    service: Arc<Service>,
    control: Control,
}

impl Deref for ServerRequest {
    type Target = Arrival;

    fn deref(&self) -> &Arrival {
        &self.0
    }
}

impl DerefMut for ServerRequest {
    fn deref_mut(&mut self) -> &mut Arrival {
        &mut self.0
    }
}

/// A hold on a request from outside its handler: it can be steered while the handler runs.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

struct Shared {
    node: Arc<Node>,
    service: std::sync::Weak<Service>,
    to: Nid,
    reply_portal: u32,
    reply_mbits: AtomicU64,
    /// Early replies are understood.
    at: bool,
    opc: u32,
    version: u32,
    arrived: Instant,
    deadline: Mutex<Instant>,
    replied: AtomicBool,
    aborted: AtomicBool,
    abort: Notify,
    /// The deadline was moved from outside.
    moved: Notify,
    /// Its place in a lane of the service.
    place: Mutex<Option<Active>>,
}

impl ServerRequest {
    pub(crate) fn new(
        service: Arc<Service>,
        node: Arc<Node>,
        msg: Message,
        body: PtlrpcBody,
        ev: &PutEvent,
    ) -> ServerRequest {
        let arrived = ev.at;
        let watch = node.stopwatch().handling();
        let shared = Shared {
            service: Arc::downgrade(&service),
            to: ev.from,
            reply_portal: portal::reply_of(ev.portal).unwrap_or(portal::CONNMGR_REPLY),
            reply_mbits: AtomicU64::new(ev.mbits),
            at: msg.flags & MSGHDR_AT_SUPPORT != 0,
            opc: body.opc,
            version: body.version,
            arrived,
            deadline: Mutex::new(arrived + Duration::from_secs(body.timeout.max(1) as u64)),
            replied: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            abort: Notify::new(),
            moved: Notify::new(),
            place: Mutex::new(None),
            node,
        };
        let control = Control(Arc::new(shared));
        ServerRequest(Box::new(Arrival {
            msg,
            body,
            from: ev.from,
            known_by: ev.known_by,
            xid: ev.mbits,
            portal: ev.portal,
            arrived,
            waited: Duration::ZERO,
            watch,
            service,
            control,
        }))
    }

    /// The node the service runs on.
    pub fn node(&self) -> &Arc<Node> {
        &self.control.0.node
    }

    /// A hold on this request for whoever must steer it while it is handled.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Gives its place among those being handled to the next request, which may be the one it waits for. The handler goes on,
    /// with early replies, and is not bounded by its service any more.
    pub fn leave_lane(&self) {
        self.control.leave_lane();
    }

    /// Connect flag REP_MBITS is agreed with this client.
    pub fn use_reply_mbits(&self) {
        if self.body.mbits != 0 {
            self.control
                .0
                .reply_mbits
                .store(self.body.mbits, Ordering::Relaxed);
        }
    }

    /// Match bits of the first bulk descriptor.
    fn bulk_base(&self) -> u64 {
        self.last_mbits() & !(XID_STEP - 1)
    }

    fn last_mbits(&self) -> u64 {
        match self.body.mbits {
            0 => self.xid,
            m => m,
        }
    }

    /// Number of bulk descriptors the client posted, from `pb_mbits`; at least 1.
    pub fn bulk_md_count(&self) -> usize {
        (self.last_mbits() - self.bulk_base() + 1) as usize
    }

    /// Fetches bulk data from the client (a client's write): one GET per length in bytes, each at most
    /// [`coral_lnet::LNET_MTU`]. Result: one payload per descriptor, of exactly the length asked for.
    pub async fn bulk_read_from_client(
        &self,
        portal: u32,
        lens: &[u32],
    ) -> Result<Vec<Payload>, BulkError> {
        self.check_mds(lens.len())?;
        let (node, base) = (self.node(), self.bulk_base());
        let gets = lens.iter().enumerate().map(|(i, len)| async move {
            let data = insist(|| node.get(self.from, portal, base + i as u64, *len)).await?;
            match data.len() == *len as usize {
                true => Ok(data),
                false => Err(BulkError::Short {
                    got: data.len(),
                    want: *len as usize,
                }),
            }
        });
        let data = self.control.limited(try_join_all(gets));
        let data = stopwatch::waits(Wait::Bulk, data).await?;
        let bytes = data.iter().map(|d| d.len() as u64).sum();
        self.service.stats().bulk_write.add(bytes);
        Ok(data)
    }

    /// Sends bulk data to the client (a client's read): one PUT with ACK per descriptor; descriptors the client posted beyond
    /// `data` get an empty PUT.
    pub async fn bulk_write_to_client(
        &self,
        portal: u32,
        data: Vec<Payload>,
    ) -> Result<(), BulkError> {
        self.check_mds(data.len())?;
        let (node, base) = (self.node(), self.bulk_base());
        let rest = self.bulk_md_count() - data.len();
        let bytes = data.iter().map(|d| d.len() as u64).sum();
        let all = data
            .into_iter()
            .chain(std::iter::repeat_n(Payload::new(), rest));
        let puts = all.enumerate().map(|(i, d)| async move {
            insist(|| node.put(self.from, portal, base + i as u64, 0, d.clone(), true))
                .await
                .map_err(BulkError::from)
        });
        let sent = self.control.limited(try_join_all(puts));
        stopwatch::waits(Wait::Bulk, sent).await?;
        self.service.stats().bulk_read.add(bytes);
        Ok(())
    }

    fn check_mds(&self, need: usize) -> Result<(), BulkError> {
        let posted = self.bulk_md_count();
        match need <= posted {
            true => Ok(()),
            false => Err(BulkError::Descriptors { posted, need }),
        }
    }

    /// Sends the final reply. Of `msg`'s body (which may be missing) only transno, last_committed, handle, op_flags, slv, limit
    /// and pre_versions are used; the rest is filled in. It is sent when this is called; the future ends when the LND has taken it.
    pub fn reply(self, status: i32, msg: Message) -> impl Future<Output = ()> + Send + use<> {
        self.send(status, msg, false)
    }

    /// The same, and nobody is told when the LND has taken it.
    pub fn reply_unwatched(self, status: i32, msg: Message) {
        if let Some((put, replied)) = self.put_reply(status, msg, false) {
            put.unwatched();
            replied.note(Ok(()));
        }
    }

    /// Says that the request was not processed, with a negative status (`PTL_RPC_MSG_ERR`).
    pub fn reply_error(self, status: i32) -> impl Future<Output = ()> + Send + use<> {
        self.send(status, Message::default(), true)
    }

    /// Not an async function: its future would have room for the request, the message and all that is made of them.
    fn send(
        self,
        status: i32,
        msg: Message,
        error: bool,
    ) -> impl Future<Output = ()> + Send + use<> {
        let sent = self.put_reply(status, msg, error);
        async move {
            let Some((put, replied)) = sent else { return };
            let end = put.await;
            replied.note(end);
        }
    }

    /// `None`: it was replied to before.
    fn put_reply(&self, status: i32, mut msg: Message, error: bool) -> Option<(Put, Replied)> {
        let shared = &self.control.0;
        if shared.replied.swap(true, Ordering::Relaxed) {
            return None;
        }
        let given = msg.body().unwrap_or_default();
        let now = Instant::now();
        let took = now - self.arrived;
        let served = took.saturating_sub(self.waited);
        let ran = self.watch.as_ref().map(|w| w.take_at(now));
        let stats = self.service.stats();
        stats.served.at(place(self.body.opc)).record_time(served);
        // What waits for other clients' recovery, or was sent again, says nothing of how long requests take here.
        if !error
            && self.body.flags
                & (MSG_RESENT | MSG_REPLAY | MSG_REQ_REPLAY_DONE | MSG_LOCK_REPLAY_DONE)
                == 0
        {
            self.service.measured(now, took);
        }
        let mut body = PtlrpcBody {
            handle: given.handle,
            conn_cnt: 0,
            transno: given.transno,
            last_committed: given.last_committed,
            op_flags: given.op_flags,
            slv: given.slv,
            limit: given.limit,
            pre_versions: given.pre_versions,
            timeout: self.service.estimate_s(),
            service_time: (took.as_secs() as u32).max(1),
            ..PtlrpcBody::reply(&self.body, status)
        };
        if error {
            body.r#type = PTL_RPC_MSG_ERR;
        }
        msg.flags = 0;
        msg.set_body(&body);
        self.service.stats.replies.inc();
        let offset = if shared.at { BODY_ONLY_SIZE as u32 } else { 0 };
        let mbits = shared.reply_mbits.load(Ordering::Relaxed);
        let wire = Payload::from(msg.encode());
        let put = shared
            .node
            .put(self.from, shared.reply_portal, mbits, offset, wire, false);
        let replied = Replied {
            node: shared.node.clone(),
            ran,
            end: ServedEnd {
                client: self.from.0,
                xid: self.xid,
                opc: self.body.opc,
                service: self.service.name(),
                arrived: self.arrived,
                begun: self.arrived + self.waited,
                replying: now,
                replied: now,
            },
        };
        Some((put, replied))
    }
}

/// What is known of a request whose reply is on its way.
struct Replied {
    node: Arc<Node>,
    ran: Option<Ran>,
    end: ServedEnd,
}

impl Replied {
    /// The LND has taken the reply, or could not.
    fn note(mut self, end: Result<(), SendError>) {
        if let Err(error) = end {
            tracing::debug!(xid = self.end.xid, nid = %Nid(self.end.client), %error, "reply not sent");
        }
        if let Some(ran) = self.ran {
            self.end.replied = Instant::now();
            self.node.stopwatch().served(ran, self.end);
        }
    }
}

/// Sends a bulk message, and again when its connection breaks: a router has died, and another leads there. The request need not
/// wait for the client to notice that nothing comes, which takes it the time-out of an RPC.
async fn insist<T, F: Future<Output = Result<T, SendError>>>(
    send: impl Fn() -> F,
) -> Result<T, SendError> {
    for _ in 0..BULK_RETRIES {
        match until_answered(&send).await {
            Err(SendError::PeerReset) => {}
            done => return done,
        }
    }
    until_answered(&send).await
}

/// Sends a bulk message until one is answered: receiving it twice does no harm. Without this a lost one would hold up its
/// request for [`BULK_LIMIT`], and with it the locks it needs.
async fn until_answered<T, F: Future<Output = Result<T, SendError>>>(
    send: impl Fn() -> F,
) -> Result<T, SendError> {
    let mut first = std::pin::pin!(send());
    let mut again: Option<Pin<Box<F>>> = None;
    let mut pause = BULK_AGAIN;
    loop {
        let latest = async {
            match &mut again {
                Some(a) => a.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            r = &mut first => return r,
            r = latest => return r,
            _ = tokio::time::sleep(pause) => {}
        }
        again = Some(Box::pin(send()));
        pause *= 2;
    }
}

impl Control {
    /// The client has sent the same request again while this one is handled: the reply goes to the new match bits, and the
    /// deadline is the new one.
    pub fn adopt(&self, newer: &ServerRequest) {
        let new = &newer.control.0;
        self.0
            .reply_mbits
            .store(new.reply_mbits.load(Ordering::Relaxed), Ordering::Relaxed);
        let deadline = *new.deadline.lock();
        *self.0.deadline.lock() = deadline;
        self.0.moved.notify_one();
    }

    /// Its place in a lane, when it needs one.
    pub(crate) fn enter_lane(&self, place: Option<Active>) {
        *self.0.place.lock() = place;
    }

    pub(crate) fn leave_lane(&self) {
        let place = self.0.place.lock().take();
        // The next request runs on this stack.
        drop(place);
    }

    /// The client has a new connection: bulk transfers of this request end now.
    pub fn abort_bulk(&self) {
        self.0.aborted.store(true, Ordering::Relaxed);
        self.0.abort.notify_waiters();
    }

    async fn aborted(&self) {
        loop {
            let mut n = std::pin::pin!(self.0.abort.notified());
            n.as_mut().enable();
            if self.0.aborted.load(Ordering::Relaxed) {
                return;
            }
            n.await;
        }
    }

    /// `fut` unless it takes too long or the client reconnects. No timer when it is ready at once.
    async fn limited<T>(
        &self,
        fut: impl Future<Output = Result<T, BulkError>>,
    ) -> Result<T, BulkError> {
        let mut fut = std::pin::pin!(fut);
        tokio::select! {
            biased;
            r = &mut fut => r,
            _ = self.aborted() => Err(BulkError::Timeout),
            _ = tokio::time::sleep(BULK_LIMIT) => Err(BulkError::Timeout),
        }
    }

    /// Resolves when an early reply should go out; never when the client takes none.
    pub(crate) async fn early_due(&self) {
        if !self.0.at {
            return std::future::pending().await;
        }
        loop {
            tokio::select! {
                biased;
                _ = tokio::time::sleep_until(self.early_at()) => return,
                _ = self.0.moved.notified() => {}
            }
        }
    }

    /// When an early reply should go out.
    fn early_at(&self) -> Instant {
        let deadline = *self.0.deadline.lock();
        let margin = Duration::from_secs(EARLY_MARGIN_S as u64)
            .min(deadline.saturating_duration_since(self.0.arrived) / 2);
        deadline - margin
    }

    /// Asks the client to wait longer if it is time to, and it takes early replies. For requests whose service has done with them, asked
    /// every second or so.
    pub async fn early_if_due(&self) {
        if self.0.at && Instant::now() >= self.early_at() {
            self.send_early().await;
        }
    }

    /// Asks the client to wait longer.
    pub(crate) async fn send_early(&self) {
        let s = &self.0;
        let now = Instant::now();
        let estimate = s.service.upgrade().map_or(0, |svc| {
            svc.stats.early_replies.inc();
            svc.estimate_s()
        });
        let deadline = now + Duration::from_secs(estimate.max(EXTRA_S) as u64);
        *s.deadline.lock() = deadline;
        if s.replied.load(Ordering::Relaxed) {
            return;
        }
        let body = PtlrpcBody {
            // Rounded up: the client must not give up before our deadline.
            timeout: (deadline - s.arrived).as_secs() as u32 + 1,
            service_time: ((now - s.arrived).as_secs() as u32).max(1),
            ..PtlrpcBody::reply(
                &PtlrpcBody {
                    version: s.version,
                    opc: s.opc,
                    ..Default::default()
                },
                0,
            )
        };
        let mut msg = Message::new(&body);
        msg.cksum = msg.early_cksum();
        let mbits = s.reply_mbits.load(Ordering::Relaxed);
        if let Err(e) = s
            .node
            .put(
                s.to,
                s.reply_portal,
                mbits,
                0,
                Payload::from(msg.encode()),
                false,
            )
            .await
        {
            tracing::debug!(nid = %s.to, error = %e, "early reply not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn bulk_is_sent_again_when_its_connection_breaks_and_not_for_ever() {
        for (breaks, sent) in [(0, 1), (1, 2), (2, 3), (9, 3)] {
            let n = Cell::new(0);
            let send = || {
                n.set(n.get() + 1);
                std::future::ready(if n.get() <= breaks {
                    Err(SendError::PeerReset)
                } else {
                    Ok(n.get())
                })
            };
            let done = insist(send).await;
            assert_eq!(
                (n.get(), done.is_ok()),
                (sent, breaks < sent),
                "{breaks} times broken"
            );
        }
        let n = Cell::new(0);
        let down = insist(|| {
            n.set(n.get() + 1);
            std::future::ready(Err::<(), _>(SendError::Shutdown))
        });
        assert!(matches!(down.await, Err(SendError::Shutdown)) && n.get() == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn bulk_that_is_not_answered_is_sent_again() {
        let n = Cell::new(0);
        let done = insist(|| {
            n.set(n.get() + 1);
            let answered = n.get() == 2;
            async move {
                if answered {
                    Ok(())
                } else {
                    std::future::pending().await
                }
            }
        });
        assert!(done.await.is_ok());
    }
}
