//! An import that nothing uses disconnects, and connects again when it is wanted (`ptlrpc_disconnect_and_idle_import` in
//! `lustre/ptlrpc/import.c`): the server spares the export, the pings and what it had granted.
//!
//! # Invariants
//! - It leaves only when no request is without reply, nothing is kept for replay and the owner needs nothing
//!   ([`ImportObserver::is_unused`]); a request that comes later waits until the server has been told, then connects anew.
//! - The server forgets this client by it: the next connect is an initial one, and no eviction.
//! - A server that does not take the goodbye was restarted or is away, and waits for this client at its start: it comes back as
//!   after any lost connection, and leaves again later. (Lustre's clients count as left, and are waited for.)
//!
//! [`ImportObserver::is_unused`]: crate::ImportObserver::is_unused

use std::sync::Arc;

use crate::attempt::{Ids, Outcome};
use crate::call::is_not_connected;
use crate::state::Event;
use crate::{Import, ImportState, Request};

impl Import {
    /// Disconnects when nothing has used the import for its idle timeout. Whether it did.
    pub(crate) async fn leave_if_unused(self: &Arc<Self>) -> bool {
        let limit = self.idle_timeout();
        let observer = self.observer();
        let unused = || observer.as_ref().is_none_or(|o| o.is_unused());
        if limit.is_zero() || self.idle_ms() < limit.as_millis() as u64 || !unused() {
            return false;
        }
        let conn = {
            let mut inner = self.inner.lock();
            if !inner.unreplied.is_empty()
                || inner.replay.len() > 0
                || inner.step(Event::Unused).is_err()
            {
                return false;
            }
            self.publish(&inner);
            inner.conn(&self.cfg)
        };
        tracing::debug!(target_uuid = %self.cfg.target_uuid, nid = %conn.nid, "not used for long: disconnecting");
        let mut rq = Request::new(self.cfg.request_portal, self.cfg.disconnect_opc);
        rq.reply_portal = self.cfg.reply_portal;
        let own = self.xids.next();
        let ids = Ids {
            xid: own,
            mbits: own,
            tag: 0,
            last_xid: own - 1,
            flags: 0,
            transno: 0,
            pre_versions: [0; 4],
        };
        let heard = match self.attempt(&rq, conn, ids).run(None).await {
            Outcome::Done(r) => !is_not_connected(&r),
            _ => false,
        };
        if !heard {
            self.connection_lost(conn.conn_cnt);
            return true;
        }
        if let Some(o) = &observer {
            o.on_idle();
        }
        let mut inner = self.inner.lock();
        inner.remote_handle = 0;
        if inner.step(Event::Left).is_ok() {
            self.publish(&inner);
        }
        true
    }

    /// Brings the connection back.
    pub fn wake(self: &Arc<Self>) {
        if self.state() == ImportState::Idle && self.step(Event::Wanted).is_ok() {
            self.start_driver();
        }
    }
}
