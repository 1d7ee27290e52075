//! Server-side locks: what a target takes around its own operations, and hands to clients with intents.

use coral_stopwatch::{Wait, waits};
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, Policy, ResId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{EnqueueError, LdlmServer};
use crate::ExportId;
use crate::core::{Actions, Outcome, Refused, Want};

/// Pause before a server-side lock is tried again in a namespace that is full.
const FULL_RETRY: Duration = Duration::from_millis(100);

/// A server-side lock; dropped = released, and waiters are served. Drop it with no mutex held: completion callbacks to
/// clients of this process run on the stack of the drop.
#[must_use = "dropping the lock releases it"]
pub struct LocalLock {
    server: Arc<LdlmServer>,
    cookie: u64,
}

impl LocalLock {
    /// Turns the lock into the client's (`mdt_intent_lock_replace`): nothing can come between. Who waits for it now waits for
    /// the client, which gets a blocking callback at once, maybe before the reply. `Err`, with the lock, when the client is gone, or
    /// holds conflicting locks (only possible with `ignore_export`).
    pub fn give_to(self, exp: ExportId, client_cookie: u64) -> Result<(u64, Policy), Self> {
        self.give_for(exp, client_cookie, &[])
    }

    /// The same, and `own` locks of the client on the resource go for it; they stay when it is not given.
    pub fn give_for(
        mut self,
        exp: ExportId,
        client_cookie: u64,
        own: &[u64],
    ) -> Result<(u64, Policy), Self> {
        let (server, mut out) = (self.server.clone(), Actions::new());
        let mut st = server.state.lock();
        let own = st.ns.own_beside(self.cookie, exp, own);
        let gives = !st.gone.contains(&exp) && st.ns.would_hand_over(self.cookie, exp, &own);
        let given = match gives {
            false => None,
            true => {
                for cookie in own {
                    st.ns.cancel(cookie, Some(exp), &mut out);
                }
                st.ns.hand_over(self.cookie, exp, client_cookie, &mut out)
            }
        };
        server.finish(st, out);
        let Some(info) = given else { return Err(self) };
        // From here it is the client's: nothing to release.
        self.cookie = 0;
        Ok((info.cookie, info.policy))
    }

    /// The lock's cookie.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        if self.cookie == 0 {
            return;
        }
        let mut out = Actions::new();
        let mut st = self.server.state.lock();
        st.ns.cancel(self.cookie, None, &mut out);
        st.waiters.remove(&self.cookie);
        self.server.finish(st, out);
    }
}

impl std::fmt::Debug for LocalLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalLock({:#x} of {})", self.cookie, self.server.name)
    }
}

impl LdlmServer {
    /// Takes a server-side lock: asks holders of conflicting locks to give them up and waits for it. Released when the
    /// result is dropped. Uncontended it completes at its first poll.
    ///
    /// With `ignore_export: None` the requesting client's own conflicting locks get a blocking callback too, as in Lustre.
    /// With `Some(exp)` the locks of that export count as compatible: pass it only when that client agreed, by Coral's private
    /// connect flag, to keep its locks over its own operations and to correct what it caches under them from the reply.
    /// The exemption is one-sided: a new lock of that client still waits for this one.
    ///
    /// Dropping the future withdraws the lock.
    ///
    /// # Panics
    /// When type, mode and policy do not fit together.
    pub async fn lock_local(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        ignore_export: Option<ExportId>,
    ) -> LocalLock {
        self.lock_local_with(res, ty, mode, policy, LdlmFlags(0), ignore_export)
            .await
    }

    /// The same with flags: `AST_DISCARD_DATA` tells holders that the object is being destroyed, so that they drop what they
    /// have not written yet.
    pub async fn lock_local_with(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
        ignore_export: Option<ExportId>,
    ) -> LocalLock {
        let want = Want {
            res,
            ty,
            mode,
            policy,
            flags,
            export: None,
            remote: 0,
            ignore: ignore_export,
        };
        loop {
            match self.start_local(&want) {
                Ok((lock, None)) => return lock,
                Ok((lock, Some(granted))) => {
                    // The sender lives in the server's table as long as the lock waits.
                    let begun = Instant::now();
                    let _ = waits(Wait::Lock, granted).await;
                    self.stats.wait.record_time(begun.elapsed());
                    return lock;
                }
                Err(Refused::TooMany) => waits(Wait::Lock, tokio::time::sleep(FULL_RETRY)).await,
                Err(e) => panic!("server-side lock {want:?}: {e:?}"),
            }
        }
    }

    fn start_local(
        self: &Arc<Self>,
        want: &Want,
    ) -> Result<(LocalLock, Option<oneshot::Receiver<()>>), Refused> {
        self.stats.enqueues.inc();
        let mut out = Actions::new();
        let mut st = self.state.lock();
        let (cookie, rx) = match st.ns.enqueue(want.clone(), false, &mut out)? {
            Outcome::Granted(cookie) => (cookie, None),
            Outcome::Waiting(cookie) => {
                let (tx, rx) = oneshot::channel();
                st.waiters.insert(cookie, tx);
                (cookie, Some(rx))
            }
            other => unreachable!("server-side flocks are not used: {other:?}"),
        };
        let lock = LocalLock {
            server: self.clone(),
            cookie,
        };
        self.finish(st, out);
        Ok((lock, rx))
    }

    /// [`Self::lock_local`] without waiting: `None` when it conflicts (no callbacks are sent).
    pub fn try_lock_local(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        ignore_export: Option<ExportId>,
    ) -> Option<LocalLock> {
        let want = Want {
            res,
            ty,
            mode,
            policy,
            flags: LdlmFlags(0),
            export: None,
            remote: 0,
            ignore: ignore_export,
        };
        let cookie = self.state.lock().ns.try_enqueue(want).ok()?;
        self.stats.enqueues.inc();
        Some(LocalLock {
            server: self.clone(),
            cookie,
        })
    }

    /// Gives a client a lock if it is free, never waits and sends nothing: for intents. For ibits, `try_bits` that are
    /// taken are left out of the granted policy; `None` when a wanted bit is taken.
    pub fn try_grant(
        &self,
        exp: ExportId,
        client_cookie: u64,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
    ) -> Option<(u64, Policy)> {
        let want = Want {
            res,
            ty,
            mode,
            policy,
            flags: LdlmFlags(0),
            export: Some(exp),
            remote: client_cookie,
            ignore: None,
        };
        self.stats.enqueues.inc();
        let mut st = self.state.lock();
        if st.gone.contains(&exp) {
            return None;
        }
        let cookie = st.ns.try_enqueue(want).ok()?;
        st.ns.info(cookie).map(|l| (cookie, l.policy))
    }

    /// Gives a client a lock in an intent, waiting for conflicting locks to be cancelled first. What is read between the grant
    /// and the reply is covered by the lock.
    pub async fn grant(
        self: &Arc<Self>,
        exp: ExportId,
        client_cookie: u64,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
    ) -> Result<(u64, Policy), EnqueueError> {
        if !crate::core::well_formed(ty, mode, &policy) {
            return Err(EnqueueError::Malformed);
        }
        let lock = self.lock_local(res, ty, mode, policy, None).await;
        lock.give_to(exp, client_cookie)
            .map_err(|_gone| EnqueueError::NoExport)
    }
}
