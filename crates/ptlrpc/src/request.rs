//! What a caller hands to an import and what comes back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::Nid;
use coral_wire::Wire;
use coral_wire::fid::Fid;
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc, portal};
use tokio::time::Instant;

/// Memory of a kept request besides its data, bytes.
const KEPT_OVERHEAD_BYTES: usize = 1024;

/// Whether a request is kept after its reply, for replay when the server restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Replay {
    /// Not kept.
    #[default]
    No,
    /// Kept until the server's `last_committed` reaches its transno.
    UntilCommitted,
    /// An open: kept until [`crate::Import::forget_open`], and then until the close is committed.
    Open,
}

/// Bulk data of a request, one memory descriptor per at most 1 MiB.
#[derive(Clone, Debug)]
pub enum Bulk {
    /// The server fetches these (a write).
    Source {
        /// Bulk portal.
        portal: u32,
        /// One payload per descriptor, each at most [`coral_lnet::LNET_MTU`] bytes; all but the last whole 4 KiB pages.
        data: Vec<Payload>,
    },
    /// The server sends up to so many bytes (a read).
    Sink {
        /// Bulk portal.
        portal: u32,
        /// Capacity in bytes of each descriptor.
        lens: Vec<u32>,
    },
}

impl Bulk {
    /// Number of memory descriptors.
    pub fn md_count(&self) -> usize {
        match self {
            Bulk::Source { data, .. } => data.len(),
            Bulk::Sink { lens, .. } => lens.len(),
        }
    }
}

/// A request as its caller knows it: everything but what the import fills in.
#[derive(Clone, Debug)]
pub struct Request {
    /// Request portal.
    pub portal: u32,
    /// Reply portal.
    pub reply_portal: u32,
    /// Opcode.
    pub opc: u32,
    /// `pb_version`; [`Request::new`] fills in what the opcode demands.
    pub version: u32,
    /// The buffers after the body.
    pub bufs: Vec<Bytes>,
    /// Bulk data.
    pub bulk: Option<Bulk>,
    /// Changes something: takes a modify slot and its tag on an MDT's import, and is finished in the background when its call
    /// is dropped.
    pub modifies: bool,
    /// Kept for replay.
    pub replay: Replay,
    /// Caller's uid, informative.
    pub uid: u32,
    /// Caller's gid, informative.
    pub gid: u32,
    /// Job id, NUL filled.
    pub jobid: [u8; 32],
    /// Fails when the connection is lost, instead of being sent again.
    pub no_resend: bool,
    /// Longest time the call may take in all.
    pub limit: Option<Duration>,
    /// So long it is sent again where the answer is EINPROGRESS; then that is the answer. `None`: without end.
    pub patience: Option<Duration>,
    /// Neither waits for the in-flight limit nor for other requests (lock cancels: something may wait for them).
    pub urgent: bool,
    /// Fails with [`RpcError::Evicted`] unless the import is still in this generation ([`crate::Import::generation`]).
    pub generation: Option<u64>,
    /// The file whose data it changes. Changes of one file are kept for replay all or none, and
    /// [`crate::ImportObserver::changes_lost`] tells of those that a restarted server has lost and nobody can bring again.
    pub file: Option<Fid>,
    /// What it is about besides [`Request::file`], or zero: who has these open is told when a restarted server cannot do it
    /// again.
    pub about: [Fid; 2],
    /// The file it concerns, for messages only, where neither of these says it; or zero.
    pub concerns: Fid,
    /// `lm_repsize`: 0 but for opens that want data in the reply.
    pub repsize: u32,
}

impl Request {
    /// What keeping it costs, bytes, roughly.
    pub(crate) fn kept_bytes(&self) -> usize {
        let bulk = match &self.bulk {
            Some(Bulk::Source { data, .. }) => data.iter().map(Payload::len).sum(),
            _ => 0,
        };
        bulk + self.bufs.iter().map(Bytes::len).sum::<usize>() + KEPT_OVERHEAD_BYTES
    }

    /// A request to `portal` with no buffers yet. The reply portal is the one Lustre uses for that portal.
    pub fn new(portal: u32, opc: u32) -> Request {
        Request {
            portal,
            reply_portal: portal::reply_of(portal).unwrap_or(portal::CONNMGR_REPLY),
            opc,
            version: coral_wire::ptlrpc::version_of(opc),
            bufs: Vec::new(),
            bulk: None,
            modifies: false,
            replay: Replay::No,
            uid: 0,
            gid: 0,
            jobid: [0; 32],
            no_resend: false,
            limit: None,
            patience: None,
            urgent: false,
            generation: None,
            file: None,
            about: [Fid::ZERO; 2],
            concerns: Fid::ZERO,
            repsize: 0,
        }
    }

    /// Appends a fixed structure as a buffer.
    pub fn push<T: Wire>(self, v: &T) -> Request {
        self.push_bytes(v.to_bytes())
    }

    /// Appends a buffer.
    pub fn push_bytes(mut self, b: impl Into<Bytes>) -> Request {
        self.bufs.push(b.into());
        self
    }

    /// Appends a string buffer with its closing NUL.
    pub fn push_str_nul(self, s: &[u8]) -> Request {
        let mut v = Vec::with_capacity(s.len() + 1);
        v.extend_from_slice(s);
        v.push(0);
        self.push_bytes(v)
    }

    /// Appends an empty buffer.
    pub fn push_empty(self) -> Request {
        self.push_bytes(Bytes::new())
    }

    /// Sets the bulk data.
    pub fn bulk(mut self, b: Bulk) -> Request {
        self.bulk = Some(b);
        self
    }

    /// Sets how long it is sent again after EINPROGRESS.
    pub fn patience(mut self, most: Duration) -> Request {
        self.patience = Some(most);
        self
    }

    /// Takes a modify slot.
    pub fn modifying(mut self) -> Request {
        self.modifies = true;
        self
    }

    /// Modifies and is kept until committed.
    pub fn replayable(mut self) -> Request {
        self.modifies = true;
        self.replay = Replay::UntilCommitted;
        self
    }

    /// Modifies and is kept as an open.
    pub fn replayable_open(mut self) -> Request {
        self.modifies = true;
        self.replay = Replay::Open;
        self
    }

    /// Says what it is about.
    pub fn about(mut self, fids: [Fid; 2]) -> Request {
        self.about = fids;
        self
    }

    /// Says which file it concerns, for messages.
    pub fn concerning(mut self, fid: Fid) -> Request {
        self.concerns = fid;
        self
    }

    /// The file a message about it names.
    pub fn fid(&self) -> Fid {
        match self.concerns.is_zero() {
            true => self.fids().next().unwrap_or(Fid::ZERO),
            false => self.concerns,
        }
    }

    /// All that it is about.
    pub(crate) fn fids(&self) -> impl Iterator<Item = Fid> {
        self.file
            .into_iter()
            .chain(self.about.into_iter().filter(|f| !f.is_zero()))
    }

    /// Sets the caller's ids.
    pub fn ids(mut self, uid: u32, gid: u32) -> Request {
        self.uid = uid;
        self.gid = gid;
        self
    }

    /// Fails when the connection is lost.
    pub fn no_resend(mut self) -> Request {
        self.no_resend = true;
        self
    }

    /// Longest time in all.
    pub fn limit(mut self, d: Duration) -> Request {
        self.limit = Some(d);
        self
    }

    /// Waits for no other request.
    pub fn urgent(mut self) -> Request {
        self.urgent = true;
        self
    }
}

/// A reply to a request; negative `status` is the server's errno.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The whole message; buffer 0 is the body.
    pub msg: Message,
    /// Its body.
    pub body: PtlrpcBody,
    /// `pb_status`: 0, a negative errno, or a positive LDLM status.
    pub status: i32,
    /// What arrived in each descriptor of a [`Bulk::Sink`], in order.
    pub bulk: Vec<Payload>,
    /// xid of the request.
    pub xid: u64,
    /// Transaction number, 0 for none.
    pub transno: u64,
    /// Server's service time in seconds.
    pub service_time_s: u32,
    pub(crate) stamps: Stamps,
}

/// When what happened of the attempt that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    /// Its sending began.
    pub(crate) sending: Instant,
    /// The LND had taken it.
    pub(crate) sent: Instant,
    /// The reply was here.
    pub(crate) arrived: Instant,
    /// Match bits of the reply.
    pub(crate) mbits: u64,
}

/// Which request it was, for messages and logs. Cheap to make: nothing is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Target uuid; empty for a server's callback.
    pub target: Arc<str>,
    /// Where it was sent last, or would have been.
    pub nid: Nid,
    /// Opcode.
    pub opc: u32,
    /// 0 for a request that did not get one, or whose is not known.
    pub xid: u64,
    /// The file it is about; zero when that is not known.
    pub fid: Fid,
}

impl Call {
    /// The opcode's name as Lustre writes it.
    pub fn op(&self) -> &'static str {
        opc::name(self.opc).unwrap_or("request")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op())?;
        if self.xid != 0 {
            write!(f, " (xid {})", self.xid)?;
        }
        match self.target.is_empty() {
            true => write!(f, " to {}", self.nid)?,
            false => write!(f, " to {} at {}", self.target, self.nid)?,
        }
        match self.fid.is_zero() {
            true => Ok(()),
            false => write!(f, " for {}", self.fid),
        }
    }
}

/// Why a call brought no reply.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum RpcError {
    /// The server has evicted us: what was cached or locked through this import is void.
    #[error("{0}: this client was evicted by the server")]
    Evicted(Call),
    /// The import is closed, was never connected, or the request must not be sent again.
    #[error("{0}: not connected")]
    Unreachable(Call),
    /// The caller gave up.
    #[error("interrupted")]
    Interrupted,
    /// The request's own time limit is over.
    #[error("{0}: timed out")]
    Timeout(Call),
    /// The server answered with something that is not PTLRPC.
    #[error("{call}: protocol error: {what}")]
    Proto {
        /// The request.
        call: Call,
        /// What is wrong with the answer.
        what: String,
    },
}

impl RpcError {
    /// The request, as far as it is known.
    pub fn call(&self) -> Option<&Call> {
        match self {
            RpcError::Evicted(call) | RpcError::Unreachable(call) | RpcError::Timeout(call) => {
                Some(call)
            }
            RpcError::Proto { call, .. } => Some(call),
            RpcError::Interrupted => None,
        }
    }
}

/// Why a target could not be connected.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ConnectError {
    /// None of the NIDs answered.
    #[error("{target} does not answer at {} within {waited_s} s: {last}", nids.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", "))]
    NoAnswer {
        /// Target uuid.
        target: String,
        /// The NIDs tried.
        nids: Vec<Nid>,
        /// Seconds waited.
        waited_s: u64,
        /// What the last attempt said.
        last: String,
    },
    /// Nothing leads to any of the NIDs.
    #[error("no way to {target} at {}: this node ({us}) has no NID on {net} and no route to it; give --route '{net} GATEWAY'", nids.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", "))]
    NoWay {
        /// Target uuid.
        target: String,
        /// The NIDs there are.
        nids: Vec<Nid>,
        /// Our own NID.
        us: Nid,
        /// Network of the first.
        net: String,
    },
    /// The server refused.
    #[error("{target} at {nid} refuses the connection: {}", coral_wire::Errno::from_status(*status).map(|e| e.to_string()).unwrap_or_default())]
    Refused {
        /// Target uuid.
        target: String,
        /// Who refused.
        nid: Nid,
        /// Negative errno.
        status: i32,
    },
    /// The server's answer breaks the protocol.
    #[error("{target} at {nid}: {what}")]
    Proto {
        /// Target uuid.
        target: String,
        /// Who answered.
        nid: Nid,
        /// What is wrong.
        what: String,
    },
    /// The import was closed meanwhile.
    #[error("the import is closed")]
    Closed,
}
