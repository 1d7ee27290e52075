//! One attempt of a request: send it, wait for its reply and its bulk data (`lustre/ptlrpc/niobuf.c`, `ptl_send_rpc`).
//!
//! Expectations are registered before the request goes out: on memlnd the reply is there when the PUT returns, and no timer
//! has been armed.

use std::pin::{Pin, pin};
use std::time::Duration;

use coral_buffers::Payload;
use coral_lnet::{GetOffer, Node, PutEvent, PutExpectation, SendError};
use coral_wire::ptlrpc::{BODY_ONLY_SIZE, MSG_PACK_UID_GID, Message, PtlrpcBody};
use std::sync::Arc;
use tokio::time::{Instant, Sleep};

use crate::import::{Conn, Phase};
use crate::request::{Bulk, Stamps};
use crate::watched::Watched;
use crate::{Reply, Request, RpcStats};

/// What a request is sent as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    pub(crate) xid: u64,
    /// Aligned base of the match bits: the xid at first, new ones on a resend.
    pub(crate) mbits: u64,
    pub(crate) tag: u16,
    pub(crate) last_xid: u64,
    /// `pb_flags`.
    pub(crate) flags: u32,
    pub(crate) transno: u64,
    /// Versions of the objects before the operation; replays only.
    pub(crate) pre_versions: [u64; 4],
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A reply, and all bulk data.
    Done(Box<Reply>),
    /// The deadline passed.
    TimedOut,
    /// The message could not be sent.
    Unsent(SendError),
    /// The connection was given up or replaced meanwhile.
    Superseded,
    /// The answer is no PTLRPC reply.
    Garbage(String),
}

/// Ends an attempt early: when the connection's phase is another one.
pub(crate) struct Watch {
    phase: Arc<Watched<Phase>>,
    conn_cnt: u32,
}

impl Watch {
    pub(crate) fn new(phase: &Arc<Watched<Phase>>, conn_cnt: u32) -> Watch {
        Watch {
            phase: phase.clone(),
            conn_cnt,
        }
    }

    /// Resolves when the connection is not usable any more.
    async fn ended(&self) {
        use crate::ImportState as S;
        let cnt = self.conn_cnt;
        let gone = |p: &Phase| {
            p.conn_cnt != cnt
                || matches!(p.state, S::Discon | S::Connecting | S::Closed | S::Evicted)
        };
        self.phase.wait_for(gone).await;
    }
}

/// Everything that is fixed during an attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) request: &'a Request,
    pub(crate) conn: Conn,
    pub(crate) ids: Ids,
    pub(crate) secflvr: u32,
    /// Seconds to wait.
    pub(crate) timeout_s: u32,
    pub(crate) op_flags: u32,
    /// Early replies may come: `lm_flags` says so.
    pub(crate) at: bool,
    pub(crate) stats: Option<&'a RpcStats>,
}

/// Posted bulk descriptors; dropped = unlinked.
enum Posted {
    None,
    Source { _offers: Vec<GetOffer> },
    Sink { sinks: Vec<PutExpectation> },
}

impl Attempt<'_> {
    /// The body to send.
    pub(crate) fn body(&self) -> PtlrpcBody {
        let rq = self.request;
        PtlrpcBody {
            handle: self.conn.handle,
            version: rq.version,
            status: 1,
            last_xid: self.ids.last_xid,
            tag: self.ids.tag,
            transno: self.ids.transno,
            flags: self.ids.flags | MSG_PACK_UID_GID,
            op_flags: self.op_flags,
            conn_cnt: self.conn.conn_cnt,
            timeout: self.timeout_s.max(1),
            mbits: self.last_mbits(),
            pre_versions: self.ids.pre_versions,
            uid: rq.uid,
            gid: rq.gid,
            jobid: rq.jobid,
            ..PtlrpcBody::request(rq.opc)
        }
    }

    /// `pb_mbits`: match bits of the last descriptor; 0 when neither bulk nor reply use them.
    fn last_mbits(&self) -> u64 {
        let mds = self.request.bulk.as_ref().map_or(0, Bulk::md_count) as u64;
        if mds == 0 && !self.conn.rep_mbits {
            return 0;
        }
        debug_assert!(
            self.ids.mbits.is_multiple_of(crate::xid::XID_STEP) && mds <= crate::xid::XID_STEP
        );
        self.ids.mbits + mds.saturating_sub(1)
    }

    fn message(&self, body: &PtlrpcBody) -> Message {
        let mut msg = Message::new(body);
        if !self.at {
            msg.flags = 0;
        }
        msg.secflvr = self.secflvr;
        msg.repsize = self.request.repsize;
        for b in &self.request.bufs {
            msg.push_bytes(b.clone());
        }
        msg
    }

    fn post_bulk(&self) -> Posted {
        let base = self.ids.mbits;
        match &self.request.bulk {
            None => Posted::None,
            Some(Bulk::Source { portal, data }) => Posted::Source {
                _offers: data
                    .iter()
                    .enumerate()
                    .map(|(i, d)| self.node.offer_get(*portal, base + i as u64, d.clone()))
                    .collect(),
            },
            Some(Bulk::Sink { portal, lens }) => Posted::Sink {
                sinks: (0..lens.len())
                    .map(|i| self.node.expect_put(*portal, base + i as u64))
                    .collect(),
            },
        }
    }

    /// Sends the request and waits. `watch` ends the wait when the connection changes; None: only the deadline does.
    pub(crate) async fn run(&self, watch: Option<Watch>) -> Outcome {
        let body = self.body();
        let reply_mbits = if self.conn.rep_mbits {
            body.mbits
        } else {
            self.ids.xid
        };
        let mut reply = self.node.expect_put(self.request.reply_portal, reply_mbits);
        let posted = self.post_bulk();
        let wire = Payload::from(self.message(&body).encode());
        let sent = Instant::now();
        let mut wait = Wait {
            sleep: None,
            sent,
            deadline: sent + Duration::from_secs(self.timeout_s as u64),
            watch,
        };

        let mut put = self.node.put(
            self.conn.nid,
            self.request.portal,
            self.ids.xid,
            0,
            wire,
            false,
        );
        match wait.on(Pin::new(&mut put)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Outcome::Unsent(e),
            Err(end) => return end,
        }
        let taken = Instant::now();
        let mut done = loop {
            let ev = match wait.on(pin!(reply.recv())).await {
                Ok(ev) => ev,
                Err(end) => return end,
            };
            match self.take_reply(ev, (taken, reply_mbits), &mut wait) {
                Ok(Some(r)) => break r,
                Ok(None) => continue,
                Err(e) => return Outcome::Garbage(e),
            }
        };
        if let (Posted::Sink { mut sinks }, true) = (posted, done.status >= 0) {
            for s in &mut sinks {
                match wait.on(pin!(s.recv())).await {
                    Ok(ev) => done.bulk.push(ev.data),
                    Err(end) => return end,
                }
            }
        }
        Outcome::Done(Box::new(done))
    }

    /// A PUT on the reply portal: the final reply, or an early one, which only extends the deadline.
    /// `sent`, `mbits`: when the LND had taken the request, and the match bits of its reply.
    fn take_reply(
        &self,
        ev: PutEvent,
        (sent, mbits): (Instant, u64),
        wait: &mut Wait,
    ) -> Result<Option<Reply>, String> {
        let arrived = ev.at;
        let msg = Message::decode(ev.data.copy_to_bytes()).map_err(|e| e.to_string())?;
        let body = msg.body().map_err(|e| e.to_string())?;
        if self.at && ev.offset == 0 && msg.encoded_len() <= BODY_ONLY_SIZE {
            // pb_timeout counts from the arrival of the request, which we do not know: the time of sending is the safe side.
            wait.extend(Duration::from_secs(body.timeout.max(1) as u64));
            if let Some(c) = self.stats {
                c.early.inc();
            }
            return Ok(None);
        }
        Ok(Some(Reply {
            status: body.status,
            xid: self.ids.xid,
            transno: body.transno,
            service_time_s: body.service_time,
            bulk: Vec::new(),
            body,
            msg,
            stamps: Stamps {
                sending: wait.sent,
                sent,
                arrived,
                mbits,
            },
        }))
    }
}

/// A deadline that is armed on the first wait only.
struct Wait {
    sleep: Option<Pin<Box<Sleep>>>,
    sent: Instant,
    deadline: Instant,
    watch: Option<Watch>,
}

impl Wait {
    /// `fut`, unless the deadline or the connection's end comes first.
    async fn on<T>(&mut self, mut fut: Pin<&mut impl Future<Output = T>>) -> Result<T, Outcome> {
        if let std::task::Poll::Ready(v) = futures_util::poll!(fut.as_mut()) {
            return Ok(v);
        }
        let deadline = self.deadline;
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        let ended = async {
            match &self.watch {
                Some(w) => w.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            v = fut => Ok(v),
            _ = ended => Err(Outcome::Superseded),
            _ = sleep => Err(Outcome::TimedOut),
        }
    }

    fn extend(&mut self, after_sent: Duration) {
        let later = self.sent + after_sent;
        if later > self.deadline {
            self.deadline = later;
            if let Some(s) = &mut self.sleep {
                s.as_mut().reset(later);
            }
        }
    }
}
