//! The parts of a mount put together, from below: each gets those that it asks.

use std::sync::Arc;

use super::append::Appends;
use super::attributes::Attributes;
use super::budget::covered_limit;
use super::cache::Cache;
use super::changes::Changes;
use super::connections::Connections;
use super::covers::{Covers, OpenFiles};
use super::creating::Creations;
use super::dir::Directories;
use super::dirstripe::DirStripes;
use super::drains::Drains;
use super::file_io::FileIo;
use super::flock::FileLocks;
use super::flusher::Flusher;
use super::foresight::Foresight;
use super::ghosts::Ghosts;
use super::heritage::Heritages;
use super::identities::Identities;
use super::kept::KeptOpens;
use super::late::LateAttrs;
use super::layouts::Layouts;
use super::locks::Locks;
use super::lookahead::Lookahead;
use super::lost_dirs::LostDirs;
use super::lustre_xattr::LustreXattrs;
use super::migrate::Migrations;
use super::namei::Namespace;
use super::names::Names;
use super::opens::Opens;
use super::orders::Orders;
use super::pages::PageCache;
use super::params::Tunables;
use super::places::Places;
use super::privileges::Privileges;
use super::programs::Programs;
use super::reopen::Reopen;
use super::reports::Reports;
use super::rows::Rows;
use super::servers::Servers;
use super::setattr::SetAttrs;
use super::streams::Streams;
use super::strides::StrideReads;
use super::untold::UntoldOpens;
use super::upcalls::Upcalls;
use super::writeback::WriteBack;
use super::xattr::Xattrs;

/// What most parts ask: words, servers, caches, covers, attributes and drains.
pub(super) struct Below {
    pub(super) servers: Arc<Servers>,
    pub(super) ids: Arc<Identities>,
    pub(super) cache: Arc<Cache>,
    pub(super) upcalls: Arc<Upcalls>,
    pub(super) covers: Arc<Covers>,
    open: Arc<OpenFiles>,
    pub(super) ghosts: Arc<Ghosts>,
    reopen: Arc<Reopen>,
    foresight: Arc<Foresight>,
    kept: Arc<KeptOpens>,
    untold: Arc<UntoldOpens>,
    lost_dirs: Arc<LostDirs>,
    changes: Arc<Changes>,
    pub(super) late: Arc<LateAttrs>,
    layouts: Arc<Layouts>,
    pub(super) attributes: Arc<Attributes>,
    places: Arc<Places>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) drains: Arc<Drains>,
}

/// Settings of objects, one on top of the other.
pub(super) struct Settings {
    xattrs: Arc<Xattrs>,
    privileges: Arc<Privileges>,
    pub(super) setattrs: Arc<SetAttrs>,
}

/// Names and what is below them.
pub(super) struct Naming {
    pub(super) dirs: Arc<Directories>,
    pub(super) names: Arc<Names>,
    dir_stripes: Arc<DirStripes>,
    migrations: Arc<Migrations>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) creations: Arc<Creations>,
}

impl Below {
    /// Of a mount whose servers are connected. Needs a tokio runtime: pages are dropped and data written out on it.
    pub(super) fn new(servers: Arc<Servers>) -> Below {
        let runtime = tokio::runtime::Handle::current();
        let cache_mb = servers.opts.cache_mb;
        let cache = Arc::new(Cache::new(servers.opts.cache, cache_mb));
        let covers = Arc::new(Covers::new(covered_limit(cache_mb)));
        let open = Arc::<OpenFiles>::default();
        let upcalls = Arc::<Upcalls>::default();
        let ghosts = Arc::<Ghosts>::default();
        let reopen = Arc::<Reopen>::default();
        let foresight = Arc::<Foresight>::default();
        let kept = Arc::new(KeptOpens::new(cache.clone(), upcalls.clone()));
        let untold = Arc::<UntoldOpens>::default();
        let lost_dirs = Arc::<LostDirs>::default();

        let ids = Arc::new(Identities::new(servers.clone()));
        let changes = Arc::new(Changes::new(cache.clone(), upcalls.clone()));
        let late = Arc::new(LateAttrs::new(
            changes.clone(),
            open.clone(),
            runtime.clone(),
        ));
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
            late: late.clone(),
            removers: Arc::default(),
            late_names: Arc::default(),
        });
        let places = Arc::new(Places::new(servers.clone(), attributes.clone()));
        let flusher = Arc::new(Flusher::new(covers.clone(), open.clone(), runtime.clone()));
        let drains = Arc::new(Drains::new(
            covers.clone(),
            upcalls.clone(),
            flusher.clone(),
            runtime,
        ));
        Below {
            servers,
            ids,
            cache,
            upcalls,
            covers,
            open,
            ghosts,
            reopen,
            foresight,
            kept,
            untold,
            lost_dirs,
            changes,
            late,
            layouts,
            attributes,
            places,
            flusher,
            drains,
        }
    }

    /// Callbacks of locks.
    pub(super) fn locks(&self) -> Arc<Locks> {
        Arc::new(Locks {
            late: self.late.clone(),
            cache: self.cache.clone(),
            upcalls: self.upcalls.clone(),
            covers: self.covers.clone(),
            open: self.open.clone(),
            kept: self.kept.clone(),
            untold: self.untold.clone(),
            lost_dirs: self.lost_dirs.clone(),
            drains: self.drains.clone(),
        })
    }

    /// The kernel's page cache.
    pub(super) fn pages(&self) -> Arc<PageCache> {
        Arc::new(PageCache {
            late: self.late.clone(),
            servers: self.servers.clone(),
            cache: self.cache.clone(),
            upcalls: self.upcalls.clone(),
            covers: self.covers.clone(),
            layouts: self.layouts.clone(),
            drains: self.drains.clone(),
        })
    }

    pub(super) fn settings(&self) -> Settings {
        let xattrs = Arc::new(Xattrs::new(
            self.servers.clone(),
            self.ids.clone(),
            self.cache.clone(),
            self.changes.clone(),
            self.late.clone(),
        ));
        let privileges = Arc::new(Privileges {
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            cache: self.cache.clone(),
            upcalls: self.upcalls.clone(),
            changes: self.changes.clone(),
            attributes: self.attributes.clone(),
            xattrs: xattrs.clone(),
        });
        let setattrs = Arc::new(SetAttrs {
            kept: self.kept.clone(),
            late: self.late.clone(),
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            covers: self.covers.clone(),
            open: self.open.clone(),
            ghosts: self.ghosts.clone(),
            changes: self.changes.clone(),
            layouts: self.layouts.clone(),
            attributes: self.attributes.clone(),
            drains: self.drains.clone(),
            privileges: privileges.clone(),
        });
        Settings {
            xattrs,
            privileges,
            setattrs,
        }
    }

    /// Reads, writes and syncs.
    pub(super) fn file_io(&self, pages: Arc<PageCache>, settings: &Settings) -> FileIo {
        let writeback = Arc::new(WriteBack {
            servers: self.servers.clone(),
            cache: self.cache.clone(),
            covers: self.covers.clone(),
            layouts: self.layouts.clone(),
            flusher: self.flusher.clone(),
            drains: self.drains.clone(),
        });
        let appends = Arc::new(Appends {
            servers: self.servers.clone(),
            layouts: self.layouts.clone(),
            attributes: self.attributes.clone(),
            drains: self.drains.clone(),
            writeback: writeback.clone(),
        });
        FileIo {
            late: self.late.clone(),
            servers: self.servers.clone(),
            layouts: self.layouts.clone(),
            attributes: self.attributes.clone(),
            flusher: self.flusher.clone(),
            drains: self.drains.clone(),
            writeback,
            appends,
            pages,
            streams: Streams::new(self.servers.clone()),
            strides: StrideReads::new(self.servers.clone(), self.upcalls.clone()),
            privileges: settings.privileges.clone(),
        }
    }

    pub(super) fn opens(&self, settings: &Settings, locks: Arc<FileLocks>) -> Arc<Opens> {
        Arc::new(Opens {
            late: self.late.clone(),
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            cache: self.cache.clone(),
            covers: self.covers.clone(),
            open: self.open.clone(),
            reopen: self.reopen.clone(),
            foresight: self.foresight.clone(),
            kept: self.kept.clone(),
            untold: self.untold.clone(),
            changes: self.changes.clone(),
            attributes: self.attributes.clone(),
            places: self.places.clone(),
            drains: self.drains.clone(),
            setattrs: settings.setattrs.clone(),
            locks,
        })
    }

    pub(super) fn naming(&self, opens: Arc<Opens>) -> Naming {
        let orders = Arc::new(Orders::default());
        let dirs = Arc::new(Directories {
            orders: orders.clone(),
            servers: self.servers.clone(),
            cache: self.cache.clone(),
            ghosts: self.ghosts.clone(),
            lost: self.lost_dirs.clone(),
            attributes: self.attributes.clone(),
            places: self.places.clone(),
        });
        let heritages = Arc::new(Heritages {
            servers: self.servers.clone(),
            cache: self.cache.clone(),
            dirs: dirs.clone(),
            seen: parking_lot::Mutex::default(),
        });
        let lookahead = Arc::new(Lookahead {
            attributes: self.attributes.clone(),
            ids: self.ids.clone(),
            places: self.places.clone(),
            rows: Rows::default(),
            orders,
        });
        let names = Arc::new(Names {
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            cache: self.cache.clone(),
            open: self.open.clone(),
            attributes: self.attributes.clone(),
            places: self.places.clone(),
            dirs: dirs.clone(),
            opens: opens.clone(),
            foresight: self.foresight.clone(),
            lookahead: lookahead.clone(),
            heritages: heritages.clone(),
        });
        let dir_stripes = Arc::new(DirStripes {
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            cache: self.cache.clone(),
            changes: self.changes.clone(),
            attributes: self.attributes.clone(),
            places: self.places.clone(),
            heritages: heritages.clone(),
        });
        let migrations = Arc::new(Migrations {
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            cache: self.cache.clone(),
            changes: self.changes.clone(),
            attributes: self.attributes.clone(),
            places: self.places.clone(),
            dir_stripes: dir_stripes.clone(),
            untold: self.untold.clone(),
        });
        let namespace = Arc::new(Namespace {
            open: self.open.clone(),
            upcalls: self.upcalls.clone(),
            lost_dirs: self.lost_dirs.clone(),
            late_names: self.attributes.late_names.clone(),
            late: self.late.clone(),
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            cache: self.cache.clone(),
            ghosts: self.ghosts.clone(),
            changes: self.changes.clone(),
            attributes: self.attributes.clone(),
            places: self.places.clone(),
            kept: self.kept.clone(),
            untold: self.untold.clone(),
            lookahead,
            dir_stripes: dir_stripes.clone(),
            heritages,
        });
        let creations = Arc::new(Creations {
            opens,
            namespace: namespace.clone(),
            creators: Programs::default(),
        });
        Naming {
            dirs,
            names,
            dir_stripes,
            migrations,
            namespace,
            creations,
        }
    }

    /// Lustre's own extended attributes.
    pub(super) fn lustre_xattrs(
        &self,
        settings: &Settings,
        naming: &Naming,
        reports: Arc<Reports>,
    ) -> LustreXattrs {
        LustreXattrs {
            servers: self.servers.clone(),
            ids: self.ids.clone(),
            open: self.open.clone(),
            layouts: self.layouts.clone(),
            attributes: self.attributes.clone(),
            xattrs: settings.xattrs.clone(),
            setattrs: settings.setattrs.clone(),
            dir_stripes: naming.dir_stripes.clone(),
            migrations: naming.migrations.clone(),
            names: naming.names.clone(),
            untold: self.untold.clone(),
            reports,
        }
    }

    pub(super) fn tunables(&self, connections: Arc<Connections>) -> Tunables {
        Tunables {
            servers: self.servers.clone(),
            cache: self.cache.clone(),
            covers: self.covers.clone(),
            drains: self.drains.clone(),
            connections,
        }
    }
}
