//! A connected target: import, lock namespace and what ties them together (recovery and eviction).
//!
//! Lustre: `client_obd_setup`, `client_connect_import` in `lustre/ldlm/ldlm_lib.c`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_ldlm::{ClientNamespace, LdlmClient};
use coral_lnet::Node;
use coral_ptlrpc::alive::Alive;
use coral_ptlrpc::{Import, ImportConfig, ImportObserver, Lost, Reply, RpcError};
use coral_wire::connect::{CLAIMED, ConnectFlags as F, ConnectFlags2 as F2, ObdConnectData};
use coral_wire::ldlm::Ibits;
use coral_wire::nid::Nid;
use coral_wire::ost::{CksumType, cksum_type};
use futures_util::future::BoxFuture;
use parking_lot::RwLock;

use crate::grant::{Grant, MAX_DIRTY_BYTES};

/// What kind of server a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Management server.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object storage target.
    Ost,
}

/// A client that has not used an OST for so long disconnects (Lustre: `idle_timeout`).
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Told what recovery did.
pub trait TargetHooks: Send + Sync {
    /// The server threw us out: locks are gone, open handles are stale.
    fn evicted(&self, target: &ClientObd) {
        let _ = target;
    }
    /// An open was replayed to a restarted MDT.
    fn open_replayed(&self, transno: u64, reply: &Reply) {
        let _ = (transno, reply);
    }
    /// Acknowledged changes of file data are gone with the server's memory.
    fn changes_lost(&self, lost: Lost);
}

/// A target and the locks held from it (`struct client_obd`).
pub struct ClientObd {
    /// Target uuid, `coral-MDT0000_UUID`.
    pub uuid: String,
    /// What it is.
    pub kind: Kind,
    /// RPCs go here.
    pub import: Arc<Import>,
    /// Locks come from here.
    pub namespace: Arc<ClientNamespace>,
    /// What the server agreed to at the last connect.
    granted: RwLock<Arc<ObdConnectData>>,
    /// Space promised (an OST).
    pub grant: Grant,
    coral: AtomicBool,
    /// It was connected once.
    met: AtomicBool,
    /// The servers are in this process and end with it.
    pub local: bool,
    /// Checksums are pointless between nodes of one process.
    want_cksum: bool,
    hooks: RwLock<Option<Weak<dyn TargetHooks>>>,
}

/// Whoever makes targets: what all of one mount share.
#[derive(Clone)]
pub struct Dialer {
    /// The node to speak through.
    pub node: Arc<Node>,
    /// The callback service of that node.
    pub ldlm: Arc<LdlmClient>,
    /// Client uuid, 36 characters.
    pub client_uuid: String,
    /// Ask for user xattrs.
    pub user_xattr: bool,
    /// Ask for checksums.
    pub checksums: bool,
    /// Do not ask for what only Coral servers know.
    pub plain: bool,
    /// The Lustre release to claim (`ocd_version`).
    pub version: u32,
    /// Servers on this machine see that this client runs.
    pub alive: Option<Arc<Alive>>,
}

impl Dialer {
    /// A dialer with a fresh client uuid.
    pub fn new(node: Arc<Node>, ldlm: Arc<LdlmClient>, user_xattr: bool, checksums: bool) -> Self {
        let client_uuid = uuid(node.rng_u64(), node.rng_u64());
        let alive = Alive::announce(&client_uuid).map(Arc::new);
        Self {
            node,
            ldlm,
            client_uuid,
            user_xattr,
            checksums,
            plain: false,
            version: CLAIMED,
            alive,
        }
    }

    /// A target, not yet connected.
    pub fn target(&self, kind: Kind, uuid: &str, nids: &[Nid]) -> Arc<ClientObd> {
        let local = nids.iter().all(|n| self.node.is_beside(*n));
        let want_cksum = self.checksums && !local && kind != Kind::Mgs;
        let mut data = match kind {
            Kind::Mgs => mgs_flags(),
            Kind::Mdt => mdt_flags(self.user_xattr, want_cksum),
            Kind::Ost => ost_flags(want_cksum),
        };
        if self.plain {
            data.connect_flags2.remove(F2::CORAL);
        }
        data.version = self.version;
        let nids = nids.to_vec();
        let cfg = match kind {
            Kind::Mgs => ImportConfig::mgs(nids, &self.client_uuid, data),
            Kind::Mdt => ImportConfig::mdt(uuid, nids, &self.client_uuid, data),
            Kind::Ost => ImportConfig {
                idle_timeout: IDLE_TIMEOUT,
                ..ImportConfig::ost(uuid, nids, &self.client_uuid, data)
            },
        };
        let import = Import::new(self.node.clone(), cfg);
        let namespace = self.ldlm.namespace(import.clone());
        let t = Arc::new(ClientObd {
            uuid: uuid.to_owned(),
            kind,
            import: import.clone(),
            namespace,
            granted: RwLock::new(Arc::new(ObdConnectData::default())),
            grant: Grant::default(),
            coral: AtomicBool::new(false),
            met: AtomicBool::new(false),
            local,
            want_cksum,
            hooks: RwLock::new(None),
        });
        import.set_observer(Arc::new(Observer {
            target: Arc::downgrade(&t),
        }));
        t
    }
}

impl ClientObd {
    /// Connects; `limit` bounds the wait.
    pub async fn connect(&self, limit: Duration) -> Result<(), String> {
        match tokio::time::timeout(limit, self.import.connect()).await {
            Ok(Ok(data)) => {
                self.set_granted(data);
                Ok(())
            }
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
        }
    }

    /// Whether it answers, as far as is known: one that was left for want of use does.
    pub fn is_connected(&self) -> bool {
        use coral_ptlrpc::ImportState as S;
        matches!(self.import.state(), S::Full | S::Leaving | S::Idle)
    }

    /// What the server agreed to.
    pub fn granted(&self) -> Arc<ObdConnectData> {
        self.granted.read().clone()
    }

    /// Both ends are Coral (`coral_wire::coral`).
    pub fn coral(&self) -> bool {
        self.coral.load(Ordering::Relaxed)
    }

    fn set_granted(&self, data: ObdConnectData) {
        self.coral.store(data.has2(F2::CORAL), Ordering::Relaxed);
        *self.granted.write() = Arc::new(data);
        self.met.store(true, Ordering::Release);
    }

    /// Waits until it was connected once, or is closed: what is known of it then holds for what is asked of it.
    pub async fn met(&self) {
        if !self.met.load(Ordering::Acquire) {
            self.import.recovered().await;
            self.set_granted(self.import.granted());
        }
    }

    /// The checksum to use, if any.
    pub fn cksum(&self) -> Option<CksumType> {
        let g = self.granted();
        (self.want_cksum && g.has(F::CKSUM))
            .then(|| CksumType::best(g.cksum_types))
            .flatten()
    }

    /// Who to tell about recovery.
    pub fn set_hooks(&self, who: Weak<dyn TargetHooks>) {
        *self.hooks.write() = Some(who);
    }

    fn hooks(&self) -> Option<Arc<dyn TargetHooks>> {
        self.hooks.read().as_ref()?.upgrade()
    }
}

struct Observer {
    target: Weak<ClientObd>,
}

impl Observer {
    fn hooks(&self) -> Option<Arc<dyn TargetHooks>> {
        self.target.upgrade()?.hooks()
    }
}

impl ImportObserver for Observer {
    fn on_evicted(&self) -> BoxFuture<'static, ()> {
        let target = self.target.upgrade();
        Box::pin(async move {
            let Some(t) = target else { return };
            t.namespace.drop_all().await;
            if let Some(w) = t.hooks() {
                w.evicted(&t);
            }
        })
    }

    /// What it has of the grant is told to a server that was restarted, and to one that was not (`osc_reconnect`).
    fn asks(&self, data: &mut ObdConnectData) {
        if let Some(held) = self
            .target
            .upgrade()
            .map(|t| t.grant.held())
            .filter(|held| *held > 0 && data.has(F::GRANT))
        {
            data.grant = u32::try_from(held).unwrap_or(u32::MAX);
        }
    }

    /// Before anything is sent: of the writes under way none has used anything up since.
    fn granted(&self, data: &ObdConnectData) {
        if let Some(t) = self.target.upgrade() {
            t.grant
                .connected(data.has(F::GRANT).then_some(data.grant as u64));
        }
    }

    fn replay_locks(&self, _import: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        let target = self.target.upgrade();
        Box::pin(async move {
            match target {
                Some(t) => t.namespace.replay_locks().await,
                None => Ok(()),
            }
        })
    }

    fn open_replayed(&self, transno: u64, reply: &Reply) {
        if let Some(w) = self.hooks() {
            w.open_replayed(transno, reply);
        }
    }

    fn changes_lost(&self, lost: Lost) {
        if let Some(w) = self.hooks() {
            w.changes_lost(lost);
        }
    }

    fn is_unused(&self) -> bool {
        self.target
            .upgrade()
            .is_some_and(|t| t.namespace.is_empty() && t.grant.dirty() == 0)
    }

    fn on_idle(&self) {
        if let Some(t) = self.target.upgrade() {
            t.grant.connected(None);
        }
    }

    fn on_recovered(&self) {
        if let Some(t) = self.target.upgrade() {
            t.set_granted(t.import.granted());
        }
    }

    fn on_disconnected(&self) {}
}

/// Checksums of data this client knows.
const CKSUM_TYPES: u32 = cksum_type::CRC32 | cksum_type::ADLER | cksum_type::CRC32C;

/// Flags every connect asks for.
fn base() -> F {
    F::VERSION | F::AT | F::FULL20 | F::LVB_TYPE | F::BULK_MBITS | F::FLAGS2
}

fn mgs_flags() -> ObdConnectData {
    ObdConnectData {
        connect_flags: base() | F::MGS_NIDLIST,
        connect_flags2: F2::REP_MBITS | F2::CORAL,
        ..Default::default()
    }
}

/// What this client does, and no more.
fn mdt_flags(user_xattr: bool, cksum: bool) -> ObdConnectData {
    let mut f = base()
        | F::FID
        | F::VBR
        | F::IBITS
        | F::ATTRFID
        | F::NODEVOH
        | F::CANCELSET
        | F::LOV_V3
        | F::B64BITHASH
        | F::LAYOUTLOCK
        | F::MAX_EASIZE
        | F::ACL
        | F::LARGE_ACL
        | F::UMASK
        | F::BRW_SIZE
        | F::SRVLOCK
        | F::EINPROGRESS
        | F::JOBSTATS
        | F::PINGLESS
        | F::HPREQ_CHECK1
        | F::SHORTIO
        | F::MULTIMODRPCS
        | F::DISP_STRIPE
        | F::OPEN_BY_FID
        | F::DIR_STRIPE
        | F::FLOCK_DEAD
        | F::SUBTREE
        | F::LFSCK;
    if user_xattr {
        f |= F::XATTR;
    }
    if cksum {
        f |= F::CKSUM;
    }
    let f2 = F2::INC_XID
        | F2::REP_MBITS
        | F2::SUM_STATFS
        | F2::OVERSTRIPING
        | F2::CRUSH
        | F2::GETATTR_PFID
        | F2::LSOM
        | F2::DMV_IMP_INHERIT
        | F2::LSEEK
        | F2::ARCHIVE_ID_ARRAY
        | F2::DIR_MIGRATE
        | F2::MIRROR_ID_FIX
        | F2::FLR
        | F2::DOM_LVB
        | F2::BATCH_RPC
        | F2::CORAL;
    ObdConnectData {
        connect_flags: f,
        connect_flags2: f2,
        brw_size: 1 << 20,
        ibits_known: (Ibits::LOOKUP
            | Ibits::UPDATE
            | Ibits::OPEN
            | Ibits::LAYOUT
            | Ibits::PERM
            | Ibits::XATTR
            | Ibits::DOM)
            .bits(),
        cksum_types: if cksum { CKSUM_TYPES } else { 0 },
        max_easize: 65536,
        maxmodrpcs: 8,
        ..Default::default()
    }
}

fn ost_flags(cksum: bool) -> ObdConnectData {
    let mut f = base()
        | F::FID
        | F::VBR
        | F::CANCELSET
        | F::B64BITHASH
        | F::LAYOUTLOCK
        | F::BRW_SIZE
        | F::SRVLOCK
        | F::EINPROGRESS
        | F::JOBSTATS
        | F::PINGLESS
        | F::HPREQ_CHECK1
        | F::SHORTIO
        | F::GRANT
        | F::MAXBYTES;
    if cksum {
        f |= F::CKSUM;
    }
    ObdConnectData {
        connect_flags: f,
        connect_flags2: F2::INC_XID | F2::LSEEK | F2::REP_MBITS | F2::CORAL,
        brw_size: 4 << 20,
        grant: MAX_DIRTY_BYTES as u32,
        cksum_types: if cksum { CKSUM_TYPES } else { 0 },
        ..Default::default()
    }
}

/// A version 4 UUID in text from 128 random bits.
fn uuid(a: u64, b: u64) -> String {
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | ((b >> 48) & 0x3fff),
        b & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_has_the_form_servers_expect() {
        let u = uuid(0x0123_4567_89ab_cdef, 0xffff_1111_2222_3333);
        assert_eq!(u, "01234567-89ab-4def-bfff-111122223333");
        assert_eq!(u.len(), 36);
    }

    #[test]
    fn nothing_undone_is_claimed() {
        for d in [mdt_flags(true, true), ost_flags(true), mgs_flags()] {
            assert!(!d.connect_flags.intersects(
                F::MDS
                    | F::MDS_MDS
                    | F::LIGHTWEIGHT
                    | F::INDEX
                    | F::GRANT_PARAM
                    | F::GRANT_SHRINK
                    | F::RDONLY
            ));
            assert!(
                !d.connect_flags2
                    .intersects(F2::READDIR_OPEN | F2::ENCRYPT | F2::LOCK_CONVERT)
            );
        }
        assert!(
            !(ost_flags(true).connect_flags2 | mgs_flags().connect_flags2)
                .intersects(F2::BATCH_RPC)
        );
        assert!(mdt_flags(true, false).brw_size > 0 && ost_flags(false).brw_size > 0);
        assert_ne!(ost_flags(true).cksum_types, 0);
    }
}
