//! Mounting: configuration, connections, root; and following changes of the configuration.
//!
//! Lustre: `lustre/llite/llite_lib.c` (`client_common_fill_super`).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_ldlm::{ClientNamespace, LdlmClient};
use coral_lnet::Node;
use coral_ptlrpc::{Import, ImportState};
use coral_wire::Errno;
use coral_wire::ptlrpc::opc;
use futures_util::future::join_all;

use super::pages::Pages;
use super::types::{MountError, MountOptions};
use super::{Llite, cache};
use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mdc::Mdc;
use crate::mgc::{Config, Mgc, MgcError, TargetConf, list};
use crate::osc::Osc;
use crate::target::{Dialer, Kind, Target};

/// An OST that becomes known or active is waited for so long; after that its connection is made in the background.
const CONNECT_GLANCE: Duration = Duration::from_secs(1);
/// At unmount, a server has so long to take the locks back.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// Longest file system name, characters.
const FSNAME_MAX: usize = 8;

impl Llite {
    /// Reads the configuration from the MGS, connects to the targets and finds the root.
    /// OSTs that do not answer yet are waited for in the background; I/O on them waits.
    pub async fn mount(node: Arc<Node>, opts: MountOptions) -> Result<Arc<Self>, MountError> {
        check_fsname(&opts.fsname)?;
        let ldlm = LdlmClient::new(&node);
        let mut dialer = Dialer::new(node.clone(), ldlm, opts.user_xattr, opts.checksums);
        dialer.plain = opts.plain;
        dialer.version = opts.version;
        let mgs = list(&opts.mgs_nids);
        let mgc = Mgc::dial(&dialer, &opts.mgs_nids, opts.connect_timeout)
            .await
            .map_err(|e| {
                let reason = match e {
                    MgcError::Unreachable { reason, .. } => reason,
                    e => reason(&e),
                };
                MountError::MgsUnreachable {
                    nids: mgs.clone(),
                    reason,
                }
            })?;
        match Self::mount_with(node, opts, dialer, mgc.clone(), mgs).await {
            Ok(l) => Ok(l),
            Err(e) => {
                mgc.disconnect().await;
                Err(e)
            }
        }
    }

    async fn mount_with(
        node: Arc<Node>,
        opts: MountOptions,
        dialer: Dialer,
        mgc: Arc<Mgc>,
        mgs: String,
    ) -> Result<Arc<Self>, MountError> {
        let config = mgc.watch_config(&opts.fsname).await.map_err(|e| match e {
            MgcError::NoSuchLog(_) => MountError::NoSuchFs {
                fsname: opts.fsname.clone(),
                mgs: mgs.clone(),
            },
            MgcError::Unreachable { reason, .. } => MountError::MgsUnreachable {
                nids: mgs.clone(),
                reason,
            },
            e => MountError::Config {
                log: format!("{}-client", opts.fsname),
                reason: reason(&e),
            },
        })?;
        let now = config.borrow().clone();
        if now.mdts.is_empty() {
            let reason = "it names no MDT: has the metadata server been started once?".to_owned();
            return Err(MountError::Config {
                log: format!("{}-client", opts.fsname),
                reason,
            });
        }
        let lmv = Arc::new(Lmv::default());
        let lov = Arc::new(Lov::new(lmv.clone()));
        let connected = async {
            connect_mdts(&dialer, &lmv, &now.mdts, opts.connect_timeout).await?;
            connect_osts(&dialer, &lov, &now.osts, opts.connect_timeout).await;
            find_root(&lmv, &opts).await
        };
        let root = match connected.await {
            Ok(root) => root,
            Err(e) => {
                // Servers would wait for this client after a restart.
                disconnect(&lmv, &lov).await;
                return Err(e);
            }
        };
        let covered_limit = cache::covered_limit(opts.cache_mb);
        let llite = Arc::new(Self {
            node,
            cache: Arc::new(cache::Cache::new(opts.cache, opts.cache_mb)),
            opts,
            dialer,
            mgc,
            config,
            lmv,
            lov,
            root,
            open: Default::default(),
            lost_dirs: Default::default(),
            gids: Default::default(),
            lock_owners: Default::default(),
            inval: Default::default(),
            pages: Pages::new(covered_limit),
            reopen: Default::default(),
            ghosts: Default::default(),
            flusher: Default::default(),
            activation: Default::default(),
            following: Default::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        for mdc in llite.lmv.mdcs() {
            llite.attach(&mdc);
        }
        for osc in llite.lov.oscs() {
            llite.attach_ost(&osc);
        }
        llite.share_locks();
        tokio::spawn(follow_config(Arc::downgrade(&llite)));
        Ok(llite)
    }

    /// Writes out what is kept back, however long that takes, cancels all locks and disconnects. Handles still open are closed
    /// by the servers. Dropped on the way, it loses what [`Llite::unwritten`] names.
    pub async fn umount(self: &Arc<Self>) {
        self.write_out_all().await;
        let _ = tokio::time::timeout(CANCEL_LIMIT, self.settle_all()).await;
        self.forget_pages();
        disconnect(&self.lmv, &self.lov).await;
        self.mgc.disconnect().await;
    }

    /// Whether a server that is in use cannot be reached now, or is not back in service: requests to it may wait long.
    pub fn is_cut_off(&self) -> bool {
        use ImportState as S;
        let waits = |import: &Import| {
            !matches!(
                import.state(),
                S::New | S::Full | S::Leaving | S::Idle | S::Closed
            )
        };
        self.lmv.mdcs().iter().any(|m| waits(m.import()))
            || self.lov.oscs().iter().any(|o| waits(o.import()))
    }

    /// RPCs sent so far per opcode name, sorted by name, summed over all targets.
    pub fn statistics(&self) -> Vec<(String, u64)> {
        let mut sum = BTreeMap::new();
        let imports = self
            .lmv
            .mdcs()
            .into_iter()
            .map(|m| m.import().clone())
            .chain(self.lov.oscs().into_iter().map(|o| o.import().clone()));
        for import in imports {
            for (opcode, n) in import.stats().by_opcode {
                let name =
                    opc::name(opcode).map_or_else(|| format!("opcode {opcode}"), str::to_owned);
                *sum.entry(name).or_insert(0) += n;
            }
        }
        sum.into_iter().collect()
    }
}

/// Cancels the locks of all targets and disconnects. One that is not connected is waited for only when others are: it may just
/// be coming back, and would wait for us after its next restart. Else it evicts us.
async fn disconnect(lmv: &Lmv, lov: &Lov) {
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

fn reason(e: &dyn std::error::Error) -> String {
    e.to_string()
}

fn check_fsname(name: &str) -> Result<(), MountError> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > FSNAME_MAX || !name.chars().all(good) {
        return Err(MountError::BadFsname(name.to_owned()));
    }
    Ok(())
}

async fn connect_mdts(
    dialer: &Dialer,
    lmv: &Lmv,
    mdts: &BTreeMap<u32, TargetConf>,
    limit: Duration,
) -> Result<(), MountError> {
    for (index, conf) in mdts {
        let target = dialer.target(Kind::Mdt, &conf.uuid, &conf.nids);
        target
            .connect(limit)
            .await
            .map_err(|reason| MountError::Target {
                target: conf.uuid.clone(),
                nids: list(&conf.nids),
                reason,
            })?;
        lmv.add(Mdc::new(*index, target));
    }
    Ok(())
}

/// OSTs that answer within `limit` are connected when this returns; the others go on trying by themselves.
async fn connect_osts(
    dialer: &Dialer,
    lov: &Lov,
    osts: &BTreeMap<u32, TargetConf>,
    limit: Duration,
) {
    let tries = osts
        .iter()
        .filter(|(_, c)| !c.inactive)
        .map(|(index, conf)| {
            let target = dialer.target(Kind::Ost, &conf.uuid, &conf.nids);
            lov.add(Osc::new(*index, target.clone()));
            async move {
                if let Err(reason) = target.connect(limit).await {
                    tracing::warn!(target = %target.uuid, reason, "not connected yet, trying on");
                    tokio::spawn(connect_until(Arc::downgrade(&target), limit));
                }
            }
        });
    join_all(tries).await;
}

/// Connects, however often it takes, while anybody wants the target.
async fn connect_until(target: Weak<Target>, limit: Duration) {
    while let Some(t) = target.upgrade() {
        if t.connect(limit).await.is_ok() {
            return;
        }
        drop(t);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn find_root(lmv: &Lmv, opts: &MountOptions) -> Result<coral_wire::fid::Fid, MountError> {
    let subdir = opts
        .subdir
        .as_deref()
        .map(|s| s.trim_matches('/'))
        .filter(|s| !s.is_empty());
    let path = subdir.unwrap_or("/").to_owned();
    let failed = |errno| MountError::Subdir {
        path: path.clone(),
        errno,
    };
    let mdc = lmv.first().map_err(failed)?;
    mdc.root(subdir).await.map_err(failed)
}

impl Llite {
    /// Connects to the OSTs of the configuration that are active and new, and leaves those that it says are active no more.
    async fn follow_osts(self: &Arc<Self>, now: &Config) {
        let _alone = self.following.lock().await;
        let active = |i: &u32| now.osts.get(i).is_some_and(|c| self.is_active(*i, c));
        let known = self.lov.oscs();
        let fresh = now
            .osts
            .iter()
            .filter(|(i, _)| active(i) && !known.iter().any(|o| o.index == **i));
        let connecting = fresh.map(|(index, conf)| {
            let target = self.dialer.target(Kind::Ost, &conf.uuid, &conf.nids);
            let osc = Osc::new(*index, target.clone());
            // first: no lock may be had of it whose loss nobody hears of
            self.attach_ost(&osc);
            self.lov.add(osc);
            tokio::spawn(connect_until(
                Arc::downgrade(&target),
                self.opts.connect_timeout,
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
                let _ = tokio::time::timeout(CANCEL_LIMIT, self.write_out_all()).await;
            }
            leave(osc.import(), osc.namespace()).await;
            osc.namespace().drop_all().await;
            self.lov.remove(osc.index);
        }
    }

    /// Whether an OST of the configuration is used: what was set here last counts ([`Llite::set_param`]).
    pub(super) fn is_active(&self, index: u32, conf: &TargetConf) -> bool {
        self.activation
            .lock()
            .get(&index)
            .copied()
            .unwrap_or(!conf.inactive)
    }

    /// Uses an OST, or leaves it and fails what needs it (EIO), until the configuration says otherwise.
    pub(super) async fn set_active(self: &Arc<Self>, index: u32, active: bool) {
        self.activation.lock().insert(index, active);
        let now = self.config.borrow().clone();
        self.follow_osts(&now).await;
        self.share_locks();
    }
}

/// Connects to targets that are new in the configuration, and leaves OSTs that were deactivated.
async fn follow_config(llite: Weak<Llite>) {
    let Some(mut config) = llite.upgrade().map(|l| l.config.clone()) else {
        return;
    };
    let mut before: Config = config.borrow().clone();
    while config.changed().await.is_ok() {
        let Some(l) = llite.upgrade() else { return };
        let now: Config = config.borrow_and_update().clone();
        let said = |c: &Config, i: &u32| c.osts.get(i).map(|o| o.inactive);
        l.activation
            .lock()
            .retain(|i, _| said(&before, i) == said(&now, i));
        before = now.clone();
        l.follow_osts(&now).await;
        let known: Vec<u32> = l.lmv.mdcs().iter().map(|m| m.index).collect();
        let fresh = now
            .mdts
            .into_iter()
            .filter(|(i, _)| !known.contains(i))
            .collect();
        if let Err(e) = connect_mdts(&l.dialer, &l.lmv, &fresh, l.opts.connect_timeout).await {
            tracing::warn!(error = %e, "a new MDT cannot be used");
        }
        for mdc in l.lmv.mdcs().iter().filter(|m| !known.contains(&m.index)) {
            l.attach(mdc);
        }
        l.share_locks();
    }
}

/// What `statfs` and friends use: an error of one target is not the end when others answer.
pub(super) fn any_ok<T>(results: Vec<Result<T, Errno>>) -> Result<Vec<T>, Errno> {
    let mut out = Vec::new();
    let mut last = None;
    for r in results {
        match r {
            Ok(v) => out.push(v),
            Err(e) => last = Some(e),
        }
    }
    match (out.is_empty(), last) {
        (true, Some(e)) => Err(e),
        _ => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsnames() {
        assert!(check_fsname("coral").is_ok() && check_fsname("a_b-c1").is_ok());
        for bad in ["", "ninechars", "a/b", "a b"] {
            assert!(check_fsname(bad).is_err(), "{bad}");
        }
    }
}
