//! The connections of a mount: made at first, and following changes of the configuration; at the end disconnected.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_ldlm::{ClientNamespace, LockPool};
use coral_ptlrpc::{Import, ImportState};
use futures_util::future::{join, join_all, try_join_all};
use parking_lot::Mutex;

use super::budget::{dirty_limit, kept_limits, lock_pool, lock_share};
use super::flusher::Flusher;
use super::locks::Locks;
use super::servers::Servers;
use super::types::{MountError, MountOptions};
use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mdc::Mdc;
use crate::mgc::{Config, Mgc, TargetConf, list};
use crate::osc::Osc;
use crate::target::{ClientObd, Dialer, Kind};

/// An OST that becomes known or active is waited for so long; after that its connection is made in the background.
const CONNECT_GLANCE: Duration = Duration::from_secs(1);
/// At unmount, a server has so long to take the locks back.
pub(super) const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// Keeps a mount connected to what its configuration names.
pub(super) struct Connections {
    servers: Arc<Servers>,
    dialer: Dialer,
    mgc: Arc<Mgc>,
    locks: Arc<Locks>,
    flusher: Arc<Flusher>,
    /// What was set here of OSTs, by index: used or not.
    activation: Mutex<BTreeMap<u32, bool>>,
    /// Held while OSTs come and go.
    following: tokio::sync::Mutex<()>,
    /// Idle locks of all MDTs.
    mdt_locks: Arc<LockPool>,
    /// Idle locks of all OSTs.
    ost_locks: Arc<LockPool>,
}

impl Connections {
    /// Follows the locks of the targets that are connected, shares the budget among them, and goes on following the
    /// configuration.
    pub fn follow(
        servers: Arc<Servers>,
        dialer: Dialer,
        mgc: Arc<Mgc>,
        locks: Arc<Locks>,
        flusher: Arc<Flusher>,
    ) -> Arc<Self> {
        let me = Arc::new(Self {
            servers,
            dialer,
            mgc,
            locks,
            flusher,
            activation: Mutex::default(),
            following: tokio::sync::Mutex::default(),
            mdt_locks: Arc::default(),
            ost_locks: Arc::default(),
        });
        for mdc in me.servers.lmv.mdcs() {
            me.locks.attach(&mdc);
        }
        for osc in me.servers.lov.oscs() {
            me.locks.attach_ost(&osc);
        }
        me.share_locks();
        tokio::spawn(follow_config(Arc::downgrade(&me)));
        me
    }

    /// Client uuid of the mount.
    pub fn client_uuid(&self) -> &str {
        &self.dialer.client_uuid
    }

    /// Gives all locks back and disconnects from all servers.
    pub async fn end(&self) {
        self.locks.kept.end();
        self.locks.untold.end();
        disconnect(&self.servers.lmv, &self.servers.lov).await;
        self.mgc.disconnect().await;
    }

    /// Connects to the OSTs of the configuration that are active and new, and leaves those that it says are active no more.
    async fn follow_osts(self: &Arc<Self>, now: &Config) {
        let _alone = self.following.lock().await;
        let active = |i: &u32| now.osts.get(i).is_some_and(|c| self.is_active(*i, c));
        let known = self.servers.lov.oscs();
        let fresh = now
            .osts
            .iter()
            .filter(|(i, _)| active(i) && !known.iter().any(|o| o.index == **i));
        let connecting = fresh.map(|(index, conf)| {
            let target = self.dialer.target(Kind::Ost, &conf.uuid, &conf.nids);
            let osc = Osc::new(*index, target.clone());
            // first: no lock may be had of it whose loss nobody hears of
            self.locks.attach_ost(&osc);
            self.servers.lov.add(osc);
            tokio::spawn(connect_until(
                Arc::downgrade(&target),
                self.servers.opts.connect_timeout,
            ));
            async move {
                tokio::time::timeout(CONNECT_GLANCE, target.import.recovered())
                    .await
                    .is_ok()
            }
        });
        join_all(connecting).await;
        // One that is not in it at all stays: a configuration loses no OST, it was read before the OST was back in it.
        for osc in known
            .iter()
            .filter(|o| now.osts.contains_key(&o.index) && !active(&o.index))
        {
            tracing::warn!(target = %osc.uuid(), "deactivated: files that have objects there fail with EIO");
            if osc.import().state() == ImportState::Full {
                let all = join(self.locks.late.all_sent(), self.flusher.write_out_all());
                let _ = tokio::time::timeout(CANCEL_LIMIT, all).await;
            }
            leave(osc.import(), osc.namespace()).await;
            osc.namespace().drop_all().await;
            self.servers.lov.remove(osc.index);
        }
    }

    /// Whether an OST of the configuration is used: what was set here last counts ([`Self::set_active`]).
    pub fn is_active(&self, index: u32, conf: &TargetConf) -> bool {
        self.activation
            .lock()
            .get(&index)
            .copied()
            .unwrap_or(!conf.inactive)
    }

    /// Uses an OST, or leaves it and fails what needs it (EIO), until the configuration says otherwise.
    pub async fn set_active(self: &Arc<Self>, index: u32, active: bool) {
        self.activation.lock().insert(index, active);
        let now = self.servers.config.borrow().clone();
        self.follow_osts(&now).await;
        self.share_locks();
    }

    /// Shares the budget for locks and written data among the targets there are.
    pub fn share_locks(&self) {
        if !self.servers.opts.cache {
            return;
        }
        let (mdcs, oscs) = (self.servers.lmv.mdcs(), self.servers.lov.oscs());
        for mdc in &mdcs {
            self.share_locks_with(mdc.namespace(), true);
        }
        let dirty = dirty_limit(self.servers.opts.cache_mb, oscs.len());
        let (kept_of_mdt, kept) = kept_limits(self.servers.opts.cache_mb, mdcs.len(), oscs.len());
        mdcs.iter()
            .for_each(|m| m.data().set_kept_limit(kept_of_mdt));
        for o in &oscs {
            self.share_locks_with(o.namespace(), false);
            o.grant().set_max_dirty(dirty);
            o.set_kept_limit(kept);
        }
    }

    /// Gives a target its share of the budget for locks, and what the others leave of theirs.
    pub fn share_locks_with(&self, ns: &Arc<ClientNamespace>, of_mdt: bool) {
        let (pool, targets) = match of_mdt {
            true => (&self.mdt_locks, self.servers.lmv.mdcs().len()),
            false => (&self.ost_locks, self.servers.lov.oscs().len()),
        };
        let cache_mb = self.servers.opts.cache_mb;
        let share = lock_share(cache_mb, targets);
        pool.set_limit(lock_pool(cache_mb).max(share * targets));
        ns.share(pool, share);
    }
}

/// Connects to the MDTs. Nothing goes without the first, which has the root. Others that do not answer are tried on in the
/// background: what lies on them waits.
pub(super) async fn connect_mdts(
    dialer: &Dialer,
    lmv: &Lmv,
    mdts: &BTreeMap<u32, TargetConf>,
    opts: &MountOptions,
) -> Result<(), MountError> {
    let first = mdts.keys().next();
    let tries = mdts.iter().map(|(index, conf)| {
        let target = dialer.target(Kind::Mdt, &conf.uuid, &conf.nids);
        lmv.add(Mdc::new(*index, target.clone()));
        async move {
            if Some(index) == first {
                return connect_now(&target, conf, opts).await;
            }
            connect_sometime(&target, conf, opts).await;
            Ok(())
        }
    });
    try_join_all(tries).await.map(drop)
}

/// OSTs that answer soon are connected when this returns; the others go on trying by themselves.
pub(super) async fn connect_osts(
    dialer: &Dialer,
    lov: &Lov,
    osts: &BTreeMap<u32, TargetConf>,
    opts: &MountOptions,
) {
    let active = osts.iter().filter(|(_, c)| !c.inactive);
    let tries = active.map(|(index, conf)| {
        let target = dialer.target(Kind::Ost, &conf.uuid, &conf.nids);
        lov.add(Osc::new(*index, target.clone()));
        async move { connect_sometime(&target, conf, opts).await }
    });
    join_all(tries).await;
}

async fn connect_now(
    target: &Arc<ClientObd>,
    conf: &TargetConf,
    opts: &MountOptions,
) -> Result<(), MountError> {
    let _waiting = opts.waits.begin(&conf.uuid, &conf.nids);
    let done = target.connect(opts.connect_timeout).await;
    done.map_err(|reason| MountError::Target {
        target: conf.uuid.clone(),
        nids: list(&conf.nids),
        reason,
    })
}

/// Connects, or says why not and goes on trying in the background.
async fn connect_sometime(target: &Arc<ClientObd>, conf: &TargetConf, opts: &MountOptions) {
    let limit = opts.connect_timeout;
    let waiting = opts.waits.begin(&conf.uuid, &conf.nids);
    let Err(reason) = target.connect(limit).await else {
        return;
    };
    let nids = list(&conf.nids);
    tracing::warn!(target = %target.uuid, nids, reason, "not connected yet, trying on");
    let goes_on = connect_until(Arc::downgrade(target), limit);
    tokio::spawn(async move {
        goes_on.await;
        drop(waiting);
    });
}

/// Connects, however often it takes, while anybody wants the target.
async fn connect_until(target: Weak<ClientObd>, limit: Duration) {
    while let Some(t) = target.upgrade() {
        if t.connect(limit).await.is_ok() {
            tracing::info!(target = %t.uuid, "connected");
            return;
        }
        drop(t);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Connects to targets that are new in the configuration, and leaves OSTs that were deactivated.
async fn follow_config(me: Weak<Connections>) {
    let Some(mut config) = me.upgrade().map(|l| l.servers.config.clone()) else {
        return;
    };
    let mut before: Config = config.borrow().clone();
    while config.changed().await.is_ok() {
        let Some(l) = me.upgrade() else { return };
        let now: Config = config.borrow_and_update().clone();
        let said = |c: &Config, i: &u32| c.osts.get(i).map(|o| o.inactive);
        l.activation
            .lock()
            .retain(|i, _| said(&before, i) == said(&now, i));
        before = now.clone();
        l.follow_osts(&now).await;
        let known: Vec<u32> = l.servers.lmv.mdcs().iter().map(|m| m.index).collect();
        for (index, conf) in now.mdts.iter().filter(|(i, _)| !known.contains(i)) {
            let target = l.dialer.target(Kind::Mdt, &conf.uuid, &conf.nids);
            let mdc = Mdc::new(*index, target.clone());
            // first: no lock may be had of it whose loss nobody hears of
            l.locks.attach(&mdc);
            l.servers.lmv.add(mdc);
            let limit = l.servers.opts.connect_timeout;
            tokio::spawn(connect_until(Arc::downgrade(&target), limit));
        }
        l.share_locks();
    }
}

/// Cancels the locks of all targets and disconnects. One that is not connected is waited for only when others are: it may just
/// be coming back, and would wait for us after its next restart. Else it evicts us.
pub(super) async fn disconnect(lmv: &Lmv, lov: &Lov) {
    let targets: Vec<_> = lmv
        .mdcs()
        .into_iter()
        .map(|m| (m.import().clone(), m.namespace().clone()))
        .chain(
            lov.oscs()
                .into_iter()
                .map(|o| (o.import().clone(), o.namespace().clone())),
        )
        .collect();
    let some_answer = targets
        .iter()
        .any(|(import, _)| import.state() == ImportState::Full);
    join_all(targets.into_iter().map(|(import, ns)| async move {
        if some_answer {
            let _ = tokio::time::timeout(CANCEL_LIMIT, import.recovered()).await;
        }
        leave(&import, &ns).await;
    }))
    .await;
}

/// Gives the locks of a target back if it answers, and disconnects.
async fn leave(import: &Arc<Import>, ns: &Arc<ClientNamespace>) {
    if import.state() == ImportState::Full {
        let _ = tokio::time::timeout(CANCEL_LIMIT, ns.cancel_all()).await;
    }
    import.disconnect().await;
}
