//! Opens that come before a lock goes under which a client has read without a word ([`UNTOLD_OPEN`]).

use coral_wire::coral::UNTOLD_OPEN;
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmMode, LdlmRequest, LdlmType, Policy};
use coral_wire::mds::{RecCreate, disp, open as flag};
use coral_wire::ptlrpc::opc;
use coral_wire::{Errno, Fid};

use super::super::ctx::{Answer, Ctx};
use super::super::intent::IntentOutcome;
use super::super::open_handles::OpenHandle;
use super::super::packed::Packed;
use super::super::store::{MdtResult, Txn};
use super::OpenStep;

/// What the lock of who opens so is on.
const HELD: Ibits = Ibits(Ibits::LOOKUP.0 | Ibits::PERM.0);

impl Ctx {
    /// Such an open, of who holds the lock: it waits for nobody, as others may be waiting for that lock, and it needs no right, as the file
    /// was open before. None: the request is none, or is to be served as any other. A replay is served so.
    pub fn untold_open(&self) -> Option<MdtResult<Answer>> {
        let is_open = self.coral && self.rq.rq.body.opc == opc::LDLM_ENQUEUE && self.opens();
        if !is_open || self.rq.is_replay() {
            return None;
        }
        let rec: RecCreate = self.rq.rq.msg.get(3).ok()?;
        if rec.bias & UNTOLD_OPEN == 0 {
            return None;
        }
        let no_lock = LdlmRequest::decode(self.buf(1))
            .is_ok_and(|r| r.flags.contains(LdlmFlags::INTENT_ONLY));
        if rec.flags() & !flag::BY_FID != flag::READ || !no_lock {
            return Some(Err(Errno::EPROTO.into()));
        }
        let (ldlm, res) = (&self.ops.ldlm, rec.fid1.res_id());
        let held = Policy::ibits(HELD);
        if !ldlm.holds(self.exp(), &res, LdlmType::IBITS, LdlmMode::CR, &held) {
            self.rq.rq.leave_lane();
            return None;
        }
        Some(self.open_held(rec.fid1, rec.flags()))
    }

    fn open_held(&self, fid: Fid, flags: u64) -> MdtResult<Answer> {
        let mut guard = self.core();
        if self.rq.exp.gone() {
            return Err(Errno::ENOTCONN.into());
        }
        let core = &mut *guard;
        let refused = |d: u64, e: Errno| match self.open_failed(d, e) {
            OpenStep::Done(a) => Ok(*a),
            OpenStep::OpenNeed(_) => Err(e.into()),
        };
        if let Err(e) = core.opens.room(self.exp()) {
            return refused(0, e);
        }
        let mut t = Txn::new(&core.store);
        let found = t.find(&fid)?;
        let is_there = |h: &_| t.ino(*h).nlink > 0 || core.opens.is_open(&fid);
        let Some(h) = found.filter(is_there) else {
            return refused(disp::LOOKUP_NEG, Errno::ENOENT);
        };
        let ino = t.ino(h).clone();
        if !ino.is_reg() {
            return refused(disp::LOOKUP_POS, Errno::EPROTO);
        }
        if let Err(e) = core.opens.conflict(&fid, flags) {
            return refused(disp::LOOKUP_POS, e);
        }
        let mut p: Packed = self.pack_all(&core.store, &fid, &ino, None)?;
        p.body.open_handle = self.rq.target.node().next_cookie();
        let out = IntentOutcome {
            disp: disp::IT_EXECD | disp::LOOKUP_EXECD | disp::LOOKUP_POS | disp::OPEN_OPEN,
            error: None,
            lock: None,
        };
        let handle = p.body.open_handle;
        let mut a = self.open_answer(&out, p, None);
        self.commit_empty(&mut a)?;
        let opened = OpenHandle {
            fid,
            flags,
            export: self.exp(),
            old: 0,
            keeps: false,
        };
        core.opens.insert(handle, opened);
        Ok(a)
    }
}
