//! One request on its way through an MDT: who asks, how times are written, how it is answered.

use std::sync::Arc;

use bytes::Bytes;
use coral_ldlm::ExportId;
use coral_osd::{OsdError, Time};
use coral_wire::coral::{KEPT_ATTRS, pack_time, unpack_time};
use coral_wire::ldlm::{LdlmIntent, LdlmRequest, it};
use coral_wire::mds::{MdtBody, MdtRecReint, RecCreate, open as flag};
use coral_wire::ptlrpc::opc;
use coral_wire::{ConnectFlags2, DecodeError, Errno, Fid, Message, PtlrpcBody};
use parking_lot::RwLockReadGuard;

use super::core::{Changing, MdtCore};
use super::cred::Ucred;
use super::follows::Follows;
use super::handler::MdtOps;
use super::store::{Early, MdtError, MdtResult, Txn};
use super::who::Asking;
use crate::nodemap::View;
use crate::stats::Change;
use crate::target::TargetRequest;

impl From<DecodeError> for MdtError {
    /// A request that does not parse is a protocol error.
    fn from(_: DecodeError) -> Self {
        Errno::EPROTO.into()
    }
}

/// A reply in the making: its status (0, a negative errno, or an `ELDLM_*`) is in its body too.
pub struct Answer {
    /// Status of the request.
    pub status: i32,
    /// The message, body first.
    pub msg: Message,
}

/// A request and what is needed to answer it.
pub struct Ctx {
    /// The request.
    pub rq: TargetRequest,
    /// The MDT.
    pub ops: Arc<MdtOps>,
    /// The client is Coral (see `coral_wire::coral`).
    pub coral: bool,
    /// Which ids of the client are believed, and how it knows ours.
    pub view: View,
    /// All groups of the user who asks, as [`Ctx::identify`] found them.
    pub known: Option<Arc<[u32]>>,
}

impl Ctx {
    /// Takes a request in.
    pub fn new(ops: Arc<MdtOps>, rq: TargetRequest) -> Ctx {
        let connect = rq.exp.connect();
        let coral = connect.connect_flags2 & ConnectFlags2::CORAL == ConnectFlags2::CORAL;
        let view = rq.exp.view();
        Ctx {
            rq,
            ops,
            coral,
            view,
            known: None,
        }
    }

    /// What the client is told of `e`, in the reply's status or within an intent's. What is this server's fault has its line in
    /// the log here. A full disk is told by the target's state, not for every request that it refuses.
    pub fn told(&self, e: &MdtError) -> Errno {
        if !matches!(e, MdtError::Errno(_) | MdtError::Osd(OsdError::NoSpace)) {
            let rq = &self.rq.rq;
            tracing::error!(
                target_name = %self.rq.target.config().name, error = %e, xid = rq.xid, nid = %rq.from,
                op = opc::name(rq.body.opc), "request failed"
            );
        }
        e.errno()
    }

    /// The client's export.
    pub fn exp(&self) -> ExportId {
        self.rq.exp.cookie
    }

    /// Whose own locks need not be called back: a Coral client fixes its cache up from the reply.
    pub fn own(&self) -> Option<ExportId> {
        self.coral.then(|| self.exp())
    }

    /// Version of a directory's layout that the client goes by; 0: not said. What is replayed was checked when it was done.
    pub fn layout(&self, said: u32) -> u32 {
        match self.rq.is_replay() {
            true => 0,
            false => said,
        }
    }

    /// The same of a link or rename, where only Coral's clients say it.
    pub fn layout_of_coral(&self, said: u32) -> u32 {
        match self.coral {
            true => self.layout(said),
            false => 0,
        }
    }

    /// A time of the request.
    pub fn time(&self, wire: i64) -> Time {
        if self.coral {
            let (secs, nsecs) = unpack_time(wire);
            Time { secs, nsecs }
        } else {
            Time::from_secs(wire)
        }
    }

    /// A time for the reply.
    pub fn wire_time(&self, t: Time) -> i64 {
        if self.coral {
            pack_time(t.secs, t.nsecs)
        } else {
            t.secs
        }
    }

    /// Buffer `i` of the request; empty if absent.
    pub fn buf(&self, i: usize) -> &Bytes {
        self.rq.rq.msg.buf(i)
    }

    /// A name or path in buffer `i`, without its NUL.
    pub fn name(&self, i: usize) -> &[u8] {
        let b = self.buf(i);
        b.strip_suffix(b"\0").unwrap_or(b)
    }

    /// The `mdt_body` in buffer `i`.
    pub fn body(&self, i: usize) -> MdtResult<MdtBody> {
        Ok(self.rq.rq.msg.get(i)?)
    }

    /// Identity in a reint record; its last word is a umask only where the record has one.
    pub fn cred(&self, r: &MdtRecReint) -> Ucred {
        self.ucred(&Asking::of_rec(r))
    }

    /// Identity in an `mdt_body`.
    pub fn cred_of(&self, b: &MdtBody) -> Ucred {
        self.ucred(&Asking::of_body(b))
    }

    /// An answer with `status` and no buffers yet.
    pub fn answer(&self, status: i32) -> Answer {
        Answer {
            status,
            msg: Message::new(&PtlrpcBody::reply(&self.rq.rq.body, status)),
        }
    }

    /// Gives up the locks a request cancels early (`DLM_REQ` in buffer `i`, if there is one).
    pub fn cancel_early(&self, i: usize) {
        let buf = self.buf(i);
        if buf.len() < 96 {
            return;
        }
        if let Ok(req) = LdlmRequest::decode(buf) {
            let cookies: Vec<u64> = req.cancels().iter().copied().filter(|&c| c != 0).collect();
            if !cookies.is_empty() {
                self.ops.ldlm.cancel(self.exp(), &cookies);
            }
        }
    }

    /// Commits `t` as this request's transaction, with `a` as its reply.
    pub fn commit(&self, t: Txn<'_>, a: &mut Answer) -> MdtResult<()> {
        let store = t.store;
        let (batch, stamped) = t.finish_stamped();
        let follows = Follows::of(&batch);
        self.rq
            .target
            .commit_stamped(&self.rq, batch, &mut a.msg, |batch, transno| {
                stamped.put(batch, transno)
            })?;
        self.ops.committed(store, follows, self.rq.target.mark());
        Ok(())
    }

    /// Gives a request that changed memory only a transno, so that it is replayed after a restart.
    /// In-process clients end with the server: theirs need none.
    pub fn commit_empty(&self, a: &mut Answer) -> MdtResult<()> {
        if !self.rq.exp.local {
            self.rq.target.commit_empty(&self.rq, &mut a.msg)?;
        }
        Ok(())
    }

    /// Whether the client may keep back what it sets of the attributes of a file that it makes by this open: it asks for that, there
    /// is a lock to call back, and nothing that a client takes for granted is refused here. A replay says whether it might.
    pub fn may_keep(&self, open: &RecCreate, locked: bool) -> bool {
        let may = match self.rq.is_replay() {
            true => open.flags() & flag::CREATED != 0,
            false => locked && self.believes_client(),
        };
        self.coral && open.bias & KEPT_ATTRS != 0 && may
    }

    /// Users of this client are here who they are there.
    pub(super) fn believes_client(&self) -> bool {
        let nid = self.rq.exp.nid();
        self.view.map().is_none() && self.ops.squash.read().is_excepted(nid)
    }

    /// Nobody keeps attributes of `fid` back any more, and what was kept has come. The caller holds no lock.
    pub async fn end_keeping(&self, fid: &Fid) {
        let keeper = self.reading().opens.keeper(fid);
        let Some(exp) = keeper else { return };
        // nobody else waits while a client does not answer
        self.rq.rq.leave_lane();
        let told = self.ops.ask_kept(exp, fid).await;
        // it may have given its lock back already, or not know of it yet
        let lock = match told {
            true => None,
            false => Some(self.ops.lock_kept(fid, self.own()).await),
        };
        self.core().opens.end_keeping(fid);
        drop(lock);
    }

    /// Reads what the request will need when it has the MDT to itself.
    pub(super) fn ahead(&self, read: impl FnOnce(&mut Txn<'_>) -> MdtResult<()>) -> Early {
        let mut t = Txn::ahead(&self.ops.store);
        // what fails here fails again where it is answered
        let _ = read(&mut t);
        t.into_early()
    }

    /// The state of the MDT, to be changed: it is this request's alone.
    pub fn core(&self) -> Changing<'_> {
        let locked = self.ops.stats.locked_by(self.change());
        Changing::new(self.ops.core.write(), locked)
    }

    /// The state of the MDT, to be read.
    pub fn reading(&self) -> RwLockReadGuard<'_, MdtCore> {
        self.ops.core.read()
    }

    /// Whether it is an enqueue that opens.
    pub(super) fn opens(&self) -> bool {
        let intent = self.rq.rq.msg.get::<LdlmIntent>(2);
        intent.is_ok_and(|i| i.opc & it::OPEN != 0)
    }

    /// What the request counts as while it changes the MDT.
    fn change(&self) -> Change {
        match self.rq.rq.body.opc {
            opc::MDS_REINT => {
                Change::Reint(self.rq.rq.msg.get(1).map_or(0, |r: MdtRecReint| r.opcode.0))
            }
            opc::LDLM_ENQUEUE if self.opens() => Change::Open,
            opc::LDLM_ENQUEUE => Change::Intent,
            opc::MDS_CLOSE => Change::Close,
            _ => Change::Other,
        }
    }
}
