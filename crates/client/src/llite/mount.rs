//! Mounting: configuration, connections, root, and the parts of a mount put together.
//!
//! Lustre: `lustre/llite/llite_lib.c` (`client_common_fill_super`).

use std::sync::Arc;
use std::time::Duration;

use coral_ldlm::LdlmClient;
use coral_lnet::Node;
use futures_util::TryFutureExt;
use tokio::sync::watch;

use super::Llite;
use super::budget::Spent;
use super::connections::{CANCEL_LIMIT, Connections, connect_mdts, connect_osts, disconnect};
use super::flock::FileLocks;
use super::parts::Below;
use super::reports::Reports;
use super::servers::Servers;
use super::types::{MountError, MountOptions};
use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mgc::{Config, Mgc, MgcError, list};
use crate::target::Dialer;

/// Longest file system name, characters.
const FSNAME_MAX: usize = 8;
/// An MDT0000 that was never served is waited for as long as one that does not answer ([`coral_ptlrpc::ImportConfig`]).
const ROOT_LIMIT: Duration = Duration::from_secs(9);

/// What `done` brings, unless the mount is given up before.
async fn unless_given_up<T>(
    opts: &MountOptions,
    done: impl Future<Output = Result<T, MountError>>,
) -> Result<T, MountError> {
    tokio::select! {
        biased;
        done = done => done,
        () = opts.waits.given_up() => Err(MountError::GivenUp),
    }
}

impl Llite {
    /// Reads the configuration from the MGS, connects to the targets and finds the root.
    /// OSTs, and MDTs other than the first, that do not answer yet are waited for in the background; what lies on them waits.
    pub async fn mount(node: Arc<Node>, opts: MountOptions) -> Result<Arc<Self>, MountError> {
        check_fsname(&opts.fsname)?;
        let ldlm = LdlmClient::new(&node);
        let mut dialer = Dialer::new(node.clone(), ldlm, opts.user_xattr, opts.checksums);
        dialer.plain = opts.plain;
        dialer.version = opts.version;
        let mgs = list(&opts.mgs_nids);
        let waiting = opts.waits.begin("MGS", &opts.mgs_nids);
        let dial = Mgc::dial(&dialer, &opts.mgs_nids, opts.connect_timeout).map_err(|e| {
            let reason = match e {
                MgcError::Unreachable { reason, .. } => reason,
                e => reason(&e),
            };
            MountError::MgsUnreachable {
                nids: mgs.clone(),
                reason,
            }
        });
        let mgc = unless_given_up(&opts, dial).await?;
        drop(waiting);
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
        let now = unless_given_up(&opts, with_root(config.clone(), &opts, &mgs)).await?;
        let lmv = Arc::new(Lmv::default());
        let lov = Arc::new(Lov::new(lmv.clone()));
        let connected = async {
            connect_mdts(&dialer, &lmv, &now.mdts, &opts).await?;
            connect_osts(&dialer, &lov, &now.osts, &opts).await;
            find_root(&lmv, &opts).await
        };
        let root = match unless_given_up(&opts, connected).await {
            Ok(root) => root,
            Err(e) => {
                // Servers would wait for this client after a restart.
                disconnect(&lmv, &lov).await;
                return Err(e);
            }
        };
        let servers = Servers {
            node,
            opts,
            config,
            lmv,
            lov,
            root,
            stats: Arc::default(),
        };
        let mount = Self::of_parts(Arc::new(servers), dialer, mgc);
        mount.show();
        Ok(mount)
    }

    /// Shows what it counts among the metrics of its node.
    fn show(self: &Arc<Self>) {
        let of = |value: fn(Spent) -> usize| {
            let me = Arc::downgrade(self);
            move || Some(value(me.upgrade()?.tunables.spent()) as u64)
        };
        let stats = &self.servers.stats;
        stats.inodes.ask(of(|s| s.inodes));
        stats.inode_bytes.ask(of(|s| s.inode_bytes));
        stats.covered.ask(of(|s| s.covered));
        self.node().metrics().attach(&[], stats);
    }

    /// The parts of a mount that is connected, from below.
    fn of_parts(servers: Arc<Servers>, dialer: Dialer, mgc: Arc<Mgc>) -> Arc<Self> {
        let below = Below::new(servers);
        let (pages, settings) = (below.pages(), below.settings());
        let io = below.file_io(pages.clone(), &settings);
        let file_locks = Arc::new(FileLocks::new(below.servers.clone()));
        let opens = below.opens(&settings, file_locks.clone());
        let naming = below.naming(opens.clone());
        let reports = Arc::new(Reports::new(below.servers.clone(), mgc.clone()));
        let xattrs = below.lustre_xattrs(&settings, &naming, reports.clone());
        let connections = Connections::follow(
            below.servers.clone(),
            dialer,
            mgc,
            below.locks(),
            below.flusher.clone(),
        );
        let tunables = below.tunables(connections.clone());
        Arc::new(Self {
            connections,
            pages,
            io,
            file_locks,
            opens,
            reports,
            xattrs,
            tunables,
            setattrs: settings.setattrs,
            dirs: naming.dirs,
            names: naming.names,
            late_names: naming.namespace.late_names.clone(),
            creations: naming.creations,
            namespace: naming.namespace,
            servers: below.servers,
            ids: below.ids,
            cache: below.cache,
            upcalls: below.upcalls,
            covers: below.covers,
            ghosts: below.ghosts,
            attributes: below.attributes,
            flusher: below.flusher,
            drains: below.drains,
            late: below.late,
        })
    }

    /// Writes out dirty data, however long that takes, cancels all locks and disconnects. Handles still open are closed
    /// by the servers. Dropped on the way, it loses what [`Llite::unwritten`] names and the changes of names that [`Llite::untold_names`] counts.
    pub async fn umount(&self) {
        self.late_names.all_settled().await;
        self.late.all_sent().await;
        self.flusher.write_out_all().await;
        let _ = tokio::time::timeout(CANCEL_LIMIT, self.drains.settle_all()).await;
        self.drains.forget_all();
        self.connections.end().await;
    }
}

/// The configuration as soon as it names MDT0000, which has the root.
async fn with_root(
    mut config: watch::Receiver<Config>,
    opts: &MountOptions,
    mgs: &str,
) -> Result<Config, MountError> {
    let name = format!("{}-MDT0000", opts.fsname);
    let _waiting = opts.waits.begin_unknown(&name, mgs);
    let there = config.wait_for(|now| now.mdts.contains_key(&0));
    let limit = ROOT_LIMIT.min(opts.connect_timeout);
    match tokio::time::timeout(limit, there).await {
        Ok(Ok(now)) => Ok(now.clone()),
        Ok(Err(_)) | Err(_) => Err(MountError::NoRoot {
            fsname: opts.fsname.clone(),
            mgs: mgs.to_owned(),
        }),
    }
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

async fn find_root(lmv: &Lmv, opts: &MountOptions) -> Result<coral_wire::fid::Fid, MountError> {
    let subdir = opts
        .subdir
        .as_deref()
        .map(|s| s.trim_matches('/'))
        .filter(|s| !s.is_empty());
    let path = subdir.unwrap_or("/").to_owned();
    let failed = |why| MountError::Subdir {
        path: path.clone(),
        why,
    };
    let mdc = lmv.first().map_err(failed)?;
    mdc.root(subdir).await.map_err(|e| failed(e.into()))
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
