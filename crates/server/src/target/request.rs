//! A request that has found its target and its client.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use coral_lnet::exec;
use coral_osd::{OsdError, Storing};
use coral_ptlrpc::{Control, ServerRequest};
use coral_wire::opc;
use coral_wire::ptlrpc::{MSG_REPLAY, Message, PtlrpcBody};
use futures_util::future::Either;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::export::{Dropped, ExportAdmission};
use super::{Export, LuTarget};

/// Replies of a target that nobody is in a hurry for, and that wait for the disk, at most; further ones keep their requests' places in
/// the lane.
const UNHURRIED_MAX: usize = 4096;
/// Those that wait are looked through so often for clients that would not wait longer.
const EARLY_EACH: Duration = Duration::from_secs(1);

/// The xid is in progress until this is dropped.
pub(super) struct InProgress {
    exp: Arc<Export>,
    xid: u64,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.exp.finished(self.xid);
    }
}

/// A request that has found its target and export.
pub struct TargetRequest {
    /// The request.
    pub rq: ServerRequest,
    /// The client.
    pub exp: Arc<Export>,
    /// The target.
    pub target: Arc<LuTarget>,
    in_progress: InProgress,
}

impl TargetRequest {
    /// After [`Export::admit`] said it is new.
    pub(super) fn new(rq: ServerRequest, exp: Arc<Export>, target: Arc<LuTarget>) -> TargetRequest {
        exp.hold(rq.xid, rq.control());
        let in_progress = InProgress {
            exp: exp.clone(),
            xid: rq.xid,
        };
        TargetRequest {
            rq,
            exp,
            target,
            in_progress,
        }
    }

    /// The request is a replay after a restart; it keeps its transno, and preconditions that held then are taken as held.
    pub fn is_replay(&self) -> bool {
        self.rq.body.flags & MSG_REPLAY != 0
    }

    /// A replay of something that is committed already, or was replayed before and whose reply was lost: only in-memory state
    /// (an open handle) is to be re-created.
    pub fn replay_committed(&self) -> bool {
        let transno = self.rq.body.transno;
        let on_disk = if self.changes_data() {
            self.target.recovered.data
        } else {
            self.target.recovered.tables
        };
        self.is_replay() && (transno <= on_disk || self.exp.has_replayed(transno))
    }

    /// It changes bytes of an object.
    fn changes_data(&self) -> bool {
        matches!(
            self.rq.body.opc,
            opc::OST_WRITE | opc::OST_PUNCH | opc::OST_FALLOCATE
        )
    }

    /// Buffer `i` of the request.
    pub fn buf(&self, i: usize) -> &bytes::Bytes {
        self.rq.msg.buf(i)
    }

    /// Sends the final reply when everything it may rest on is stored; transno (if the message's body has one) and last_committed
    /// are filled in. It is sent when this is called, if nothing has to be waited for; the future ends when the LND has taken it.
    pub fn reply(self, status: i32, msg: Message) -> impl Future<Output = ()> + Send + use<> {
        match self.target.storing() {
            None => Either::Left(self.reply_at_once(status, msg)),
            Some(storing) => Either::Right(Box::pin(self.reply_stored(storing, status, msg))),
        }
    }

    /// The same when nobody is in a hurry for it: with others like it, when the requests that came together have been handled. Its
    /// service has done with it when this returns, but where [`UNHURRIED_MAX`] wait.
    pub fn reply_unhurried(
        self,
        status: i32,
        msg: Message,
    ) -> impl Future<Output = ()> + Send + use<> {
        let target = self.target.clone();
        let Ok(place) = target.unhurried.room.clone().try_acquire_owned() else {
            return Either::Right(self.reply(status, msg));
        };
        target.unhurried.unsent.lock().push(Unsent {
            rq: self,
            status,
            msg,
            _place: place,
        });
        // by each who comes: the batch of the first one may go on for long
        exec::at_end(move || target.reply_to_unhurried());
        Either::Left(ready(()))
    }

    async fn reply_stored(self, storing: Storing, status: i32, msg: Message) {
        let stored = self.target.stored_as(storing).await;
        let (status, msg) = self.when(&stored, status, msg);
        self.reply_at_once(status, msg).await
    }

    /// What is to be replied when all was stored, or was not.
    fn when(&self, stored: &Result<(), OsdError>, status: i32, msg: Message) -> (i32, Message) {
        let Err(error) = stored else {
            return (status, msg);
        };
        tracing::error!(target = %self.target.cfg.name, client = %self.exp.uuid, xid = self.rq.xid, %error, "nothing is acknowledged");
        let failed = coral_wire::Errno::from(error);
        (failed.status(), Message::default())
    }

    /// The same for what rests on nothing stored: that the target lives, and locks.
    pub fn reply_at_once(
        self,
        status: i32,
        msg: Message,
    ) -> impl Future<Output = ()> + Send + use<> {
        let msg = self.completed(status, msg);
        let in_progress = self.in_progress;
        let sent = self.rq.reply(status, msg);
        async move {
            sent.await;
            drop(in_progress);
        }
    }

    /// The message with what every reply tells.
    fn completed(&self, status: i32, mut msg: Message) -> Message {
        let mut body = msg
            .body()
            .unwrap_or_else(|_| PtlrpcBody::reply(&self.rq.body, status));
        body.last_committed = self.target.last_committed();
        msg.set_body(&body);
        msg
    }

    /// Replies with a negative status and no buffers.
    pub fn fail(self, e: coral_wire::Errno) -> impl Future<Output = ()> + Send + use<> {
        self.reply(e.status(), Message::default())
    }
}

/// What became of a request on its way in.
#[allow(clippy::large_enum_variant, reason = "lives on the stack of one call")]
pub(crate) enum Admitted {
    /// To be executed.
    New(TargetRequest),
    /// Executed before: send this.
    Again(ServerRequest, i32, Message),
    /// Of an old connection, or in progress.
    Dropped,
}

/// Replies that nobody is in a hurry for.
pub(super) struct Unhurried {
    unsent: Mutex<Vec<Unsent>>,
    room: Arc<Semaphore>,
}

impl Default for Unhurried {
    fn default() -> Unhurried {
        Unhurried {
            unsent: Mutex::default(),
            room: Arc::new(Semaphore::new(UNHURRIED_MAX)),
        }
    }
}

/// A request, and its reply.
struct Unsent {
    rq: TargetRequest,
    status: i32,
    msg: Message,
    _place: OwnedSemaphorePermit,
}

fn reply_to(all: Vec<Unsent>, stored: &Result<(), OsdError>) {
    for Unsent {
        rq, status, msg, ..
    } in all
    {
        let (status, msg) = rq.when(stored, status, msg);
        let msg = rq.completed(status, msg);
        rq.rq.reply_unwatched(status, msg);
    }
}

impl LuTarget {
    /// Sends the replies that nobody is in a hurry for.
    fn reply_to_unhurried(self: &Arc<Self>) {
        let all = std::mem::take(&mut *self.unhurried.unsent.lock());
        if all.is_empty() {
            return;
        }
        let Some(storing) = self.storing() else {
            return reply_to(all, &Ok(()));
        };
        let me = self.clone();
        tokio::spawn(async move {
            let mut stopped = me.stopped.subscribe();
            let mut storing = std::pin::pin!(me.stored_as(storing));
            let stored = loop {
                tokio::select! {
                    biased;
                    stored = &mut storing => break stored,
                    // whoever waits for a reply asks again, as after a crash
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                    () = tokio::time::sleep(EARLY_EACH) => {}
                }
                let controls: Vec<Control> = all.iter().map(|u| u.rq.rq.control()).collect();
                for control in controls {
                    control.early_if_due().await;
                }
            };
            exec::together(|| reply_to(all, &stored));
        });
    }

    /// Takes a request of `exp` in: duplicates are dropped, executed ones answered from what was kept.
    pub(crate) fn admit(self: &Arc<Self>, rq: ServerRequest, exp: Arc<Export>) -> Admitted {
        if exp.rep_mbits() {
            rq.use_reply_mbits();
        }
        match exp.admit(&rq.body, rq.xid, rq.arrived) {
            ExportAdmission::New => Admitted::New(TargetRequest::new(rq, exp, self.clone())),
            ExportAdmission::Drop(Dropped::Stale) => {
                self.stats.stale.inc();
                tracing::debug!(target = %self.cfg.name, xid = rq.xid, nid = %rq.from, opc = rq.body.opc, "stale request dropped");
                Admitted::Dropped
            }
            ExportAdmission::Drop(Dropped::BadTag) => {
                tracing::warn!(target = %self.cfg.name, nid = %rq.from, tag = rq.body.tag, "request with an impossible reply slot dropped");
                Admitted::Dropped
            }
            ExportAdmission::Drop(Dropped::Duplicate) => {
                self.stats.duplicates.inc();
                // The client waits at new match bits: the first execution answers there.
                if let Some(first) = exp.held(rq.xid) {
                    first.adopt(&rq);
                }
                Admitted::Dropped
            }
            ExportAdmission::Again(kept) => {
                self.stats.resent_replies.inc();
                let mut msg = kept.msg;
                if kept.from_disk {
                    self.ops().reconstruct(&exp, &rq.msg, &mut msg);
                    exp.reconstructed(rq.xid, &msg);
                }
                let mut body = msg.body().unwrap_or_default();
                body.last_committed = self.last_committed();
                msg.set_body(&body);
                Admitted::Again(rq, body.status, msg)
            }
        }
    }
}
