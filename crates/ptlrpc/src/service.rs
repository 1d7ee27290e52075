//! The server side of PTLRPC: portals, bounded queues and the run of a handler (`lustre/ptlrpc/service.c`).
//!
//! A request is handled inline on the stack it arrived on; a handler that waits is spawned, and only then a timer for early
//! replies is armed. Pings, connects and lock cancels pass every queue: others wait for them.
//!
//! I/O under a lock the client holds has a lane of its own: what fills the other lane may be waiting for that very lock
//! (`tgt_hpreq_handler`, `ofd_rw_hpreq_check` in Lustre).
//!
//! # Invariants
//! - In each lane at most `max_active` requests are being handled and `max_queued` (of `max_queued_bytes`) wait; more are
//!   dropped, the clients send again. A request that waits for those queued behind it leaves its lane
//!   ([`ServerRequest::leave_lane`]); whoever lets it wait bounds how many do.
//! - A handler runs to its end or, at [`Service::stop`], is dropped at an await point.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_lnet::exec::run_inline;
use coral_lnet::{Node, PortalHandler, PutEvent};
use coral_stopwatch::{self as stopwatch, Watch};
use coral_wire::coral::{KEPT_ATTRS, LENT, UNTOLD_OPEN};
use coral_wire::ldlm::{LdlmIntent, it};
use coral_wire::mds::{RecCreate, RecSetattr, RecUnlink, ReintOp, open};
use coral_wire::ost::{NiobufRemote, ObdFlags, Obdo, brw, md};
use coral_wire::ptlrpc::{Message, PTL_RPC_MSG_REQUEST, opc};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ServiceStats;
use crate::server_request::{Control, ServerRequest};
use crate::timeouts::Estimate;

/// How long [`Service::stop`] waits for handlers before it drops them.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Takes the requests of a service.
pub trait RequestHandler: Send + Sync + 'static {
    /// Handles one request; polled once inline on the receiving stack, spawned when it waits. A request that is dropped
    /// without a reply is not answered: the client sends it again.
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()>;
}

/// Configuration and limits of a service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Name in logs.
    pub name: String,
    /// Request portals served.
    pub portals: Vec<u32>,
    /// Most requests being handled at once; more are queued. Lustre: threads_max.
    pub max_active: usize,
    /// Most requests queued; more are dropped, the clients send them again.
    pub max_queued: usize,
    /// Most bytes of queued requests; what goes beyond is dropped likewise.
    pub max_queued_bytes: usize,
}

impl ServiceConfig {
    /// A service with the default limits.
    pub fn new(name: &str, portals: &[u32]) -> ServiceConfig {
        ServiceConfig {
            name: name.to_owned(),
            portals: portals.to_vec(),
            max_active: 512,
            max_queued: 16384,
            max_queued_bytes: 256 << 20,
        }
    }
}

/// A running service. Dropped = its portals are not served any more.
pub struct Service {
    node: Arc<Node>,
    cfg: ServiceConfig,
    handler: Arc<dyn RequestHandler>,
    /// Ordinary requests, and those of lock holders.
    lanes: [Lane; 2],
    /// All requests being handled.
    running: AtomicUsize,
    stopping: AtomicBool,
    /// False: run; true: handlers are dropped.
    abort: watch::Sender<bool>,
    idle: tokio::sync::Notify,
    pub(crate) stats: Arc<ServiceStats>,
    estimate: Mutex<Estimate>,
    name: stopwatch::Name,
}

/// Requests that wait for no others but those of their lane.
#[derive(Default)]
struct Lane {
    /// Being handled.
    active: AtomicUsize,
    queue: Mutex<Queue>,
}

/// Which lane.
const ORDINARY: usize = 0;
const HOLDERS: usize = 1;

/// Requests that wait.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<ServerRequest>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, rq: ServerRequest) {
        self.bytes += message_bytes(&rq);
        self.waiting.push_back(rq);
    }

    fn pop(&mut self) -> Option<ServerRequest> {
        let rq = self.waiting.pop_front()?;
        self.bytes -= message_bytes(&rq);
        Some(rq)
    }
}

fn message_bytes(rq: &ServerRequest) -> usize {
    rq.msg.bufs.iter().map(bytes::Bytes::len).sum()
}

/// What the node holds: no reference back, so that a dropped service stops.
struct Front(Weak<Service>);

impl PortalHandler for Front {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        if let Some(svc) = self.0.upgrade() {
            svc.arrived(node, ev);
        }
    }
}

impl Service {
    /// Serves the portals of `cfg` on `node` with `h`.
    pub fn start(node: &Arc<Node>, cfg: ServiceConfig, h: Arc<dyn RequestHandler>) -> Arc<Service> {
        assert!(cfg.max_active > 0, "a service that may handle nothing");
        let svc = Arc::new(Service {
            node: node.clone(),
            handler: h,
            lanes: Default::default(),
            running: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            abort: watch::Sender::new(false),
            idle: tokio::sync::Notify::new(),
            stats: Arc::default(),
            estimate: Mutex::default(),
            name: node.stopwatch().name(&cfg.name),
            cfg,
        });
        svc.show();
        for p in &svc.cfg.portals {
            node.serve_portal(*p, Arc::new(Front(Arc::downgrade(&svc))));
        }
        svc
    }

    /// Takes no more requests, drops queued ones, gives running handlers a moment and drops them too.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for p in &self.cfg.portals {
            self.node.unserve_portal(*p);
        }
        self.lanes
            .iter()
            .for_each(|l| drop(std::mem::take(&mut *l.queue.lock())));
        let _ = tokio::time::timeout(STOP_GRACE, self.drained()).await;
        self.abort.send_replace(true);
        self.drained().await;
    }

    async fn drained(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Its name, for records.
    pub(crate) fn name(&self) -> stopwatch::Name {
        self.name
    }

    /// Counters.
    pub fn stats(&self) -> &ServiceStats {
        &self.stats
    }

    /// Shows what it counts among the metrics of its node.
    fn show(self: &Arc<Self>) {
        let (running, waiting) = (Arc::downgrade(self), Arc::downgrade(self));
        let count = |svc: Arc<Service>| svc.running.load(Ordering::Relaxed) as u64;
        self.stats.active.ask(move || running.upgrade().map(count));
        let count = |svc: Arc<Service>| {
            let lanes = svc.lanes.iter();
            lanes.map(|l| l.queue.lock().waiting.len() as u64).sum()
        };
        self.stats.depth.ask(move || waiting.upgrade().map(count));
        let labels = [("service", self.cfg.name.as_str())];
        self.node.metrics().attach(&labels, &self.stats);
    }

    /// Our estimate of a request's time in seconds, as replies tell it.
    pub(crate) fn estimate_s(&self) -> u32 {
        self.estimate.lock().secs()
    }

    /// A request took so long.
    pub(crate) fn measured(&self, now: Instant, took: Duration) {
        // Whole seconds only: the common case must not take the lock.
        if took.as_secs() > 0 {
            self.estimate
                .lock()
                .measured(now, took.as_secs().min(u32::MAX as u64) as u32);
        }
    }

    fn arrived(self: &Arc<Self>, node: &Arc<Node>, ev: PutEvent) {
        let Some(rq) = self.parse(node, ev) else {
            self.stats.malformed.inc();
            return;
        };
        self.stats.requests.inc();
        if is_urgent(rq.body.opc) {
            self.stats.wait.record(0);
            return self.run(rq, None);
        }
        let lane = if holds_a_lock(&rq) { HOLDERS } else { ORDINARY };
        match self.admit(rq, lane) {
            Some(rq) => {
                self.stats.wait.record(0);
                self.run(rq, Some(Active(self.clone(), lane)));
            }
            None => tracing::trace!(service = %self.cfg.name, "request queued or dropped"),
        }
    }

    fn parse(self: &Arc<Self>, node: &Arc<Node>, ev: PutEvent) -> Option<ServerRequest> {
        let msg = Message::decode(ev.data.copy_to_bytes()).ok()?;
        let body = msg.body().ok()?;
        (body.r#type == PTL_RPC_MSG_REQUEST)
            .then(|| ServerRequest::new(self.clone(), node.clone(), msg, body, &ev))
    }

    /// The request back when it may run now; else it is queued, or dropped when the queue is full.
    fn admit(&self, rq: ServerRequest, lane: usize) -> Option<ServerRequest> {
        let lane = &self.lanes[lane];
        let mut queue = lane.queue.lock();
        if queue.waiting.is_empty() && lane.active.load(Ordering::Relaxed) < self.cfg.max_active {
            lane.active.fetch_add(1, Ordering::Relaxed);
            return Some(rq);
        }
        if queue.waiting.len() >= self.cfg.max_queued
            || queue.bytes + message_bytes(&rq) > self.cfg.max_queued_bytes
        {
            drop(queue);
            self.stats.dropped_full.inc();
            tracing::warn!(service = %self.cfg.name, xid = rq.xid, nid = %rq.from, "queue full, request dropped");
            return None;
        }
        self.stats.queued.inc();
        queue.push(rq);
        None
    }

    fn run(self: &Arc<Self>, rq: ServerRequest, active: Option<Active>) {
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        let control = rq.control();
        control.enter_lane(active);
        let running = Running {
            svc: self.clone(),
            control,
        };
        let watch = rq.watch.clone();
        let begun = rq.arrived + rq.waited;
        let handler = self.handler.clone().handle(rq);
        let driven = drive(running, watch, begun, handler);
        run_inline(self.node.handovers(), Box::pin(driven));
    }

    /// A request of the lane is done: the next one of its queue takes its place.
    fn next(self: &Arc<Self>, lane: usize) {
        let next = {
            let mut queue = self.lanes[lane].queue.lock();
            let next = queue.pop();
            if next.is_none() {
                self.lanes[lane].active.fetch_sub(1, Ordering::Relaxed);
            }
            next
        };
        if let Some(mut rq) = next {
            rq.waited = rq.arrived.elapsed();
            self.stats.wait.record_time(rq.waited);
            self.run(rq, Some(Active(self.clone(), lane)));
        }
    }
}

/// One of the `max_active` places of a lane; dropped = given to the next request.
pub(crate) struct Active(Arc<Service>, usize);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.next(self.1);
    }
}

/// A request being handled.
struct Running {
    svc: Arc<Service>,
    control: Control,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.leave_lane();
        if self.svc.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.svc.idle.notify_waiters();
        }
    }
}

/// Runs a handler; when it waits, sends early replies before the client's deadline.
async fn drive(
    running: Running,
    watch: Option<Arc<Watch>>,
    mut begun: Instant,
    mut handler: BoxFuture<'static, ()>,
) {
    // The first poll counts from the arrival, each later one from its own beginning.
    let mut first = true;
    let mut handler = poll_fn(move |cx| {
        let Some(watch) = &watch else {
            return handler.as_mut().poll(cx);
        };
        if !std::mem::take(&mut first) {
            begun = Instant::now();
        }
        stopwatch::first_poll(watch, begun, handler.as_mut(), cx).map(|((), _)| ())
    });
    if futures_util::poll!(&mut handler).is_ready() {
        return;
    }
    let mut abort = running.svc.abort.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = &mut handler => return,
            _ = async { abort.wait_for(|a| *a).await.is_ok() } => return,
            _ = running.control.early_due() => running.control.send_early().await,
        }
    }
}

/// Work under a lock of the client's, which the request names: it takes no lock at the server, so it waits for nobody.
/// (Attributes are asked for without naming it.)
fn holds_a_lock(rq: &ServerRequest) -> bool {
    let unlocked = |o: &Obdo| o.valid & md::FLFLAGS == 0 || !o.flags.contains(ObdFlags::SRVLOCK);
    let obdo = || {
        rq.msg
            .get::<Obdo>(1)
            .is_ok_and(|o| o.valid & md::FLHANDLE != 0 && unlocked(&o))
    };
    match rq.body.opc {
        opc::OST_READ | opc::OST_WRITE => {
            obdo()
                && rq
                    .msg
                    .get::<NiobufRemote>(3)
                    .is_ok_and(|n| n.flags & brw::SRVLOCK == 0)
        }
        opc::OST_PUNCH | opc::OST_SETATTR | opc::OST_FALLOCATE | opc::OST_SEEK => obdo(),
        opc::OST_GETATTR => rq.msg.get::<Obdo>(1).is_ok_and(|o| unlocked(&o)),
        opc::MDS_REINT => {
            rq.msg.get::<RecSetattr>(1).is_ok_and(|r| keeps(&r))
                || rq.msg.get::<RecUnlink>(1).is_ok_and(|r| is_late(&r))
        }
        opc::MDS_CLOSE => rq.msg.get::<RecSetattr>(2).is_ok_and(|r| keeps(&r)),
        opc::LDLM_ENQUEUE => is_untold_open(rq) || is_late_create(rq),
        _ => false,
    }
}

/// It brings attributes that were kept back under a lock which others may be waiting for.
fn keeps(rec: &RecSetattr) -> bool {
    rec.opcode == ReintOp::SETATTR && rec.bias & KEPT_ATTRS != 0
}

/// It takes names away under a lock which others may be waiting for.
fn is_late(rec: &RecUnlink) -> bool {
    rec.opcode == ReintOp::UNLINK && rec.bias & LENT != 0
}

/// It opens what was read under a lock which others may be waiting for, wants no other and changes nothing.
fn is_untold_open(rq: &ServerRequest) -> bool {
    let opens = || rq.msg.get::<LdlmIntent>(2).is_ok_and(|i| i.opc == it::OPEN);
    let rec = || rq.msg.get::<RecCreate>(3);
    opens() && rec().is_ok_and(|r| r.bias & UNTOLD_OPEN != 0 && only_reads(r.flags()))
}

/// It makes a file under a lock which others may be waiting for, and wants no other.
fn is_late_create(rq: &ServerRequest) -> bool {
    let opens = || (rq.msg.get::<LdlmIntent>(2)).is_ok_and(|i| i.opc & it::OPEN != 0);
    let rec = || rq.msg.get::<RecCreate>(3);
    opens() && rec().is_ok_and(|r| r.bias & LENT != 0 && r.flags() & open::CREAT != 0)
}

fn only_reads(flags: u64) -> bool {
    flags & !open::BY_FID == open::READ
}

/// Requests others may be waiting for.
fn is_urgent(opcode: u32) -> bool {
    matches!(
        opcode,
        opc::OBD_PING
            | opc::LDLM_CANCEL
            | opc::LDLM_CONVERT
            | opc::LDLM_BL_CALLBACK
            | opc::LDLM_CP_CALLBACK
            | opc::LDLM_GL_CALLBACK
            | opc::MDS_CONNECT
            | opc::OST_CONNECT
            | opc::MGS_CONNECT
    )
}
