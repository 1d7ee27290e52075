//! Asking a target: a request, its reply, and which request it was when the reply turns out to be bad.

use std::fmt::Display;
use std::ops::Deref;
use std::sync::Arc;

use coral_ptlrpc::{Call, Import, Reply, Request};
use coral_wire::fid::Fid;
use coral_wire::{Errno, Wire};

use crate::error::TargetError;

/// A reply, with what an error about it must say.
pub(crate) struct Answer<'a> {
    reply: Reply,
    import: &'a Import,
    opc: u32,
    fid: Fid,
}

impl Deref for Answer<'_> {
    type Target = Reply;

    fn deref(&self) -> &Reply {
        &self.reply
    }
}

impl<'a> Answer<'a> {
    /// The reply to a request with `opc` about `fid`.
    pub fn of(reply: Reply, import: &'a Import, opc: u32, fid: Fid) -> Answer<'a> {
        Answer {
            reply,
            import,
            opc,
            fid,
        }
    }

    /// The request.
    pub fn call(&self) -> Call {
        self.import.call_named(self.opc, self.reply.xid, self.fid)
    }

    /// It does not make sense.
    pub fn bad(&self, what: impl Display) -> TargetError {
        TargetError::BadReply {
            what: what.to_string(),
            call: self.call(),
        }
    }

    /// It says an error.
    pub fn refused(&self, errno: Errno) -> TargetError {
        let call = self.call();
        TargetError::Refused { errno, call }
    }

    /// Buffer `at`, decoded.
    pub fn get<T: Wire>(&self, at: usize) -> Result<T, TargetError> {
        self.reply.msg.get(at).map_err(|e| self.bad(e))
    }

    /// Without that.
    pub fn into_reply(self) -> Reply {
        self.reply
    }
}

/// Sends `rq`; the reply, whatever its status.
pub(crate) async fn answer(import: &Arc<Import>, rq: Request) -> Result<Answer<'_>, TargetError> {
    let (opc, fid) = (rq.opc, rq.fid());
    let reply = import.call(rq).await?;
    Ok(Answer::of(reply, import, opc, fid))
}

/// Sends `rq`; the reply if its status is not negative.
pub(crate) async fn ask(import: &Arc<Import>, rq: Request) -> Result<Answer<'_>, TargetError> {
    let answer = answer(import, rq).await?;
    match Errno::from_status(answer.status) {
        Some(errno) => Err(answer.refused(errno)),
        None => Ok(answer),
    }
}
