//! Mounting: configuration, connections, root, and the parts of a mount put together.
//!
//! Lustre: `lustre/llite/llite_lib.c` (`client_common_fill_super`).

use std::sync::Arc;

use coral_ldlm::LdlmClient;
use coral_lnet::Node;

use super::Llite;
use super::append::Appends;
use super::attributes::Attributes;
use super::budget::covered_limit;
use super::cache::Cache;
use super::changes::Changes;
use super::connections::{CANCEL_LIMIT, Connections, connect_mdts, connect_osts, disconnect};
use super::covers::{Covers, OpenFiles};
use super::dir::Directories;
use super::dirstripe::DirStripes;
use super::drains::Drains;
use super::file_io::FileIo;
use super::flock::FileLocks;
use super::flusher::Flusher;
use super::ghosts::Ghosts;
use super::identities::Identities;
use super::layouts::Layouts;
use super::locks::Locks;
use super::lost_dirs::LostDirs;
use super::lustre_xattr::LustreXattrs;
use super::namei::Namespace;
use super::names::Names;
use super::opens::Opens;
use super::pages::PageCache;
use super::params::Tunables;
use super::places::Places;
use super::privileges::Privileges;
use super::reopen::Reopen;
use super::reports::Reports;
use super::servers::Servers;
use super::setattr::SetAttrs;
use super::types::{MountError, MountOptions};
use super::upcalls::Upcalls;
use super::writeback::WriteBack;
use super::xattr::Xattrs;
use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mgc::{Mgc, MgcError, list};
use crate::target::Dialer;

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
        let servers = Servers {
            node,
            opts,
            config,
            lmv,
            lov,
            root,
        };
        Ok(Self::of_parts(Arc::new(servers), dialer, mgc))
    }

    /// The parts of a mount that is connected, from below.
    fn of_parts(servers: Arc<Servers>, dialer: Dialer, mgc: Arc<Mgc>) -> Arc<Self> {
        let runtime = tokio::runtime::Handle::current();
        let cache_mb = servers.opts.cache_mb;
        let cache = Arc::new(Cache::new(servers.opts.cache, cache_mb));
        let covers = Arc::new(Covers::new(covered_limit(cache_mb)));
        let open = Arc::<OpenFiles>::default();
        let upcalls = Arc::<Upcalls>::default();
        let ghosts = Arc::<Ghosts>::default();
        let reopen = Arc::<Reopen>::default();
        let lost_dirs = Arc::<LostDirs>::default();

        let ids = Arc::new(Identities::new(servers.clone()));
        let changes = Arc::new(Changes::new(cache.clone(), upcalls.clone()));
        let layouts = Arc::new(Layouts::new(servers.clone(), open.clone()));
        let attributes = Arc::new(Attributes {
            servers: servers.clone(),
            ids: ids.clone(),
            cache: cache.clone(),
            upcalls: upcalls.clone(),
            covers: covers.clone(),
            open: open.clone(),
            layouts: layouts.clone(),
            ghosts: ghosts.clone(),
            reopen: reopen.clone(),
        });
        let places = Arc::new(Places::new(servers.clone(), attributes.clone()));
        let flusher = Arc::new(Flusher::new(covers.clone(), open.clone(), runtime.clone()));
        let drains = Arc::new(Drains::new(
            covers.clone(),
            upcalls.clone(),
            flusher.clone(),
            runtime,
        ));
        let locks = Arc::new(Locks {
            cache: cache.clone(),
            upcalls: upcalls.clone(),
            covers: covers.clone(),
            open: open.clone(),
            lost_dirs: lost_dirs.clone(),
            drains: drains.clone(),
        });
        let writeback = Arc::new(WriteBack {
            servers: servers.clone(),
            cache: cache.clone(),
            covers: covers.clone(),
            layouts: layouts.clone(),
            flusher: flusher.clone(),
            drains: drains.clone(),
        });
        let appends = Arc::new(Appends {
            servers: servers.clone(),
            layouts: layouts.clone(),
            attributes: attributes.clone(),
            drains: drains.clone(),
            writeback: writeback.clone(),
        });
        let pages = Arc::new(PageCache {
            servers: servers.clone(),
            cache: cache.clone(),
            upcalls: upcalls.clone(),
            covers: covers.clone(),
            layouts: layouts.clone(),
            drains: drains.clone(),
        });
        let xattrs = Arc::new(Xattrs::new(
            servers.clone(),
            ids.clone(),
            cache.clone(),
            changes.clone(),
        ));
        let privileges = Arc::new(Privileges {
            servers: servers.clone(),
            ids: ids.clone(),
            cache: cache.clone(),
            upcalls: upcalls.clone(),
            changes: changes.clone(),
            attributes: attributes.clone(),
            xattrs: xattrs.clone(),
        });
        let setattrs = Arc::new(SetAttrs {
            servers: servers.clone(),
            ids: ids.clone(),
            covers: covers.clone(),
            open: open.clone(),
            ghosts: ghosts.clone(),
            changes: changes.clone(),
            layouts: layouts.clone(),
            attributes: attributes.clone(),
            drains: drains.clone(),
            privileges: privileges.clone(),
        });
        let io = FileIo {
            servers: servers.clone(),
            layouts: layouts.clone(),
            attributes: attributes.clone(),
            flusher: flusher.clone(),
            drains: drains.clone(),
            writeback,
            appends,
            pages: pages.clone(),
            privileges,
        };
        let file_locks = Arc::new(FileLocks::new(servers.clone()));
        let opens = Arc::new(Opens {
            servers: servers.clone(),
            ids: ids.clone(),
            cache: cache.clone(),
            covers: covers.clone(),
            open: open.clone(),
            reopen,
            changes: changes.clone(),
            attributes: attributes.clone(),
            places: places.clone(),
            drains: drains.clone(),
            setattrs: setattrs.clone(),
            locks: file_locks.clone(),
        });
        let dirs = Arc::new(Directories {
            servers: servers.clone(),
            cache: cache.clone(),
            ghosts: ghosts.clone(),
            lost: lost_dirs,
            attributes: attributes.clone(),
            places: places.clone(),
        });
        let names = Arc::new(Names {
            servers: servers.clone(),
            ids: ids.clone(),
            cache: cache.clone(),
            open: open.clone(),
            attributes: attributes.clone(),
            places: places.clone(),
            dirs: dirs.clone(),
            opens: opens.clone(),
        });
        let dir_stripes = Arc::new(DirStripes {
            servers: servers.clone(),
            ids: ids.clone(),
            cache: cache.clone(),
            changes: changes.clone(),
            attributes: attributes.clone(),
            places: places.clone(),
        });
        let namespace = Arc::new(Namespace {
            servers: servers.clone(),
            ids: ids.clone(),
            cache: cache.clone(),
            ghosts: ghosts.clone(),
            changes,
            attributes: attributes.clone(),
            places,
            dir_stripes: dir_stripes.clone(),
        });
        let reports = Arc::new(Reports::new(servers.clone(), mgc.clone()));
        let xattrs = LustreXattrs {
            servers: servers.clone(),
            ids: ids.clone(),
            open,
            layouts,
            attributes: attributes.clone(),
            xattrs,
            setattrs: setattrs.clone(),
            dir_stripes,
            names: names.clone(),
            reports: reports.clone(),
        };
        let connections = Connections::follow(servers.clone(), dialer, mgc, locks, flusher.clone());
        let tunables = Tunables {
            servers: servers.clone(),
            cache: cache.clone(),
            covers: covers.clone(),
            drains: drains.clone(),
            connections: connections.clone(),
        };
        Arc::new(Self {
            servers,
            connections,
            ids,
            cache,
            upcalls,
            covers,
            ghosts,
            attributes,
            setattrs,
            xattrs,
            flusher,
            drains,
            pages,
            io,
            file_locks,
            opens,
            dirs,
            names,
            namespace,
            reports,
            tunables,
        })
    }

    /// Writes out what is kept back, however long that takes, cancels all locks and disconnects. Handles still open are closed
    /// by the servers. Dropped on the way, it loses what [`Llite::unwritten`] names.
    pub async fn umount(&self) {
        self.flusher.write_out_all().await;
        let _ = tokio::time::timeout(CANCEL_LIMIT, self.drains.settle_all()).await;
        self.drains.forget_all();
        self.connections.end().await;
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
