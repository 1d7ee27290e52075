//! What all targets share (`lustre/target`, `lustre/ldlm/ldlm_lib.c`).

mod connect;
mod durable;
mod export;
mod last_rcvd;
mod members;
mod packed;
mod recovery;
mod request;
mod sync;
mod transactions;
mod waiting;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use coral_ldlm::{AstPeer, AstPeers, EvictReason, LdlmServer, PtlrpcAsts};
use coral_lnet::Node;
use coral_osd::{Batch, Device, Kv, OsdError, Storing};
use coral_stopwatch::{Wait, waits};
use coral_wire::ObdConnectData;
use coral_wire::connect::CLAIMED;
use coral_wire::ptlrpc::Message;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use coral_osd::TargetKind;

use self::request::Unhurried;
pub(crate) use connect::wanted_uuid;
pub use export::Export;
pub use last_rcvd::LAST_RCVD;
pub use last_rcvd::{Registration, last_registration};
pub(crate) use last_rcvd::{
    client_count, forget_clients, put_registration, stored_instance, stored_transno,
};
pub use members::Membership;
pub(crate) use members::{check_writable, reads_only};
pub(crate) use recovery::RecoveryGate;
pub(crate) use request::Admitted;
pub use request::TargetRequest;

pub(crate) use transactions::StoredTransnos;
pub use waiting::{RecoveryStatus, WaitedFor, Windows};

use crate::TargetStats;
use export::Exports;
use recovery::Recovery;
pub(crate) use sync::SyncGroup;
use transactions::Numbers;

/// Configuration and limits of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Name, such as `coral-MDT0000`, `MGS`.
    pub name: String,
    /// uuid clients connect to: `coral-MDT0000_UUID`, `MGS`.
    pub uuid: String,
    /// Index within the file system.
    pub index: u32,
    /// Kind: decides the connect opcode it answers to.
    pub kind: TargetKind,
    /// After a restart, known clients have so long to come back; then they are evicted. Lustre: 3 x obd_timeout.
    pub recovery_soft: Duration,
    /// After so long recovery ends whatever is missing.
    pub recovery_hard: Duration,
    /// A client that says nothing for so long is evicted. Lustre: 6 ping intervals, 150 s.
    pub ping_evict: Duration,
    /// Committed transactions are made safe against power loss so often (journal commit of ldiskfs: 5 s).
    pub sync_interval: Duration,
}

impl TargetConfig {
    /// The defaults. `name` without `_UUID`.
    pub fn new(kind: TargetKind, name: &str, index: u32) -> TargetConfig {
        let uuid = if kind == TargetKind::Mgs {
            name.to_owned()
        } else {
            format!("{name}_UUID")
        };
        TargetConfig {
            name: name.to_owned(),
            uuid,
            index,
            kind,
            recovery_soft: Duration::from_secs(60),
            recovery_hard: Duration::from_secs(180),
            ping_evict: Duration::from_secs(150),
            sync_interval: Duration::from_secs(5),
        }
    }
}

/// What makes a target an MGS, MDT or OST.
pub trait TargetOps: Send + Sync + 'static {
    /// What of the asked connect flags and data is granted (also sets brw_size, cksum_types, maxmodrpcs, ...).
    /// `index`, `instance` and `version` are filled in by the caller when 0. An error refuses the client.
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, coral_wire::Errno>;

    /// A client has connected that can hold grants: books the space it is promised and returns all of it, in bytes. `has`: what
    /// it says it has of an earlier connection; `None` when it has none.
    fn book_grant(&self, exp: &Export, has: Option<u64>) -> u64 {
        let _ = (exp, has);
        0
    }

    /// Every opcode that the generic code does not take. Generic are: connect, disconnect, ping, cancel, convert, enqueue
    /// without intent. A handler that drops the request without a reply makes the client send it again.
    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()>;

    /// LDLM_ENQUEUE with HAS_INTENT.
    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()>;

    /// The client disconnected or was evicted; its locks are dropped already. Close its handles. `exp.ext` is still there.
    fn export_gone(self: Arc<Self>, exp: Arc<Export>, evicted: bool) -> BoxFuture<'static, ()> {
        let _ = (exp, evicted);
        Box::pin(async {})
    }

    /// A stored reply is being sent again after a restart (request and reply given): re-create what lived in memory, such as
    /// the open handle.
    fn reconstruct(&self, exp: &Arc<Export>, request: &Message, reply: &mut Message) {
        let _ = (exp, request, reply);
    }

    /// All clients are back or evicted; new requests follow.
    fn recovery_finished(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    /// Called by [`LuTarget::sync`] before the tables are synced (OST: sync objects): `last_committed` never runs ahead of the data
    /// it stands for.
    fn sync_data(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async { Ok(()) })
    }

    /// The target stops: nothing it began on other threads goes on when this is done.
    fn stopping(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// A target: exports, transactions, recovery (`struct lu_target`).
pub struct LuTarget {
    cfg: TargetConfig,
    node: Arc<Node>,
    kv: Device,
    ldlm: Arc<LdlmServer>,
    ops: OnceLock<Arc<dyn TargetOps>>,
    instance: u32,
    /// What was found on disk at the start.
    recovered: StoredTransnos,
    /// Held while a transaction gets its number and is committed: a crash leaves a prefix of the numbers.
    numbers: Mutex<Numbers>,
    /// What is in committed batches; lags behind when the last transactions stored nothing.
    stored: Mutex<StoredTransnos>,
    last_committed: AtomicU64,
    /// Batches committed since the start; changed while `last_transno` is locked.
    commits: AtomicU64,
    /// How many of them survive power loss.
    durable: watch::Sender<u64>,
    /// The next periodic sync is too late for somebody.
    soon: Arc<Notify>,
    syncs: SyncGroup,
    exports: Mutex<Exports>,
    /// Held while a client is looked up and entered.
    connecting: Mutex<()>,
    /// Nodemaps.
    membership: RwLock<Arc<Membership>>,
    recovery: Mutex<Recovery>,
    /// How long it waits, from `started_at` on.
    windows: watch::Sender<Windows>,
    started_at: Instant,
    /// Fast look at whether recovery is under way.
    recovering: AtomicBool,
    stats: Arc<TargetStats>,
    unhurried: Unhurried,
    claimed: AtomicU32,
    stopped: watch::Sender<bool>,
}

/// The exports as the lock callbacks see them.
struct AstExports(Weak<LuTarget>);

impl AstPeers for AstExports {
    fn peer(&self, exp: u64) -> Option<AstPeer> {
        let e = self.0.upgrade()?.export(exp)?;
        Some(AstPeer {
            nid: e.nid(),
            client_handle: e.client_handle(),
            conn_cnt: e.conn_cnt(),
        })
    }

    fn answers_for_objects(&self, exp: u64) -> bool {
        let export = self.0.upgrade().and_then(|t| t.export(exp));
        export.is_some_and(|e| e.connect().has2(coral_wire::connect::ConnectFlags2::CORAL))
    }

    fn evict(&self, exp: u64, why: EvictReason) {
        if let Some(target) = self.0.upgrade() {
            target.evict(exp, &format!("{why:?}"));
        }
    }
}

/// Begins to register the target on `kv` with its MGS, which takes `cookie` to tell this from other registrations. One that was not
/// accepted goes on: its answer may be lost, and however often an older copy of the target is refused, it does not catch up.
pub(crate) async fn begin_registration(kv: &dyn Kv, cookie: u64) -> Result<Registration, OsdError> {
    let last = last_rcvd::last_registration(kv)?;
    if last.number > 0 && !last.accepted {
        return Ok(last);
    }
    let next = Registration {
        number: last.number.saturating_add(1),
        cookie,
        accepted: false,
    };
    registered(kv, next).await?;
    Ok(next)
}

/// Keeps what is known of the registration of the target on `kv`.
pub(crate) async fn registered(kv: &dyn Kv, registration: Registration) -> Result<(), OsdError> {
    let mut batch = Batch::new();
    last_rcvd::put_registration(&mut batch, registration);
    kv.commit(batch).await?;
    kv.sync().await
}

impl LuTarget {
    /// Opens a target on its tables: loads last_rcvd; enters recovery if it knows clients that must come back.
    pub fn new(
        node: Arc<Node>,
        cfg: TargetConfig,
        kv: impl Into<Device>,
    ) -> Result<Arc<LuTarget>, OsdError> {
        let kv = kv.into();
        let known = last_rcvd::load(&*kv)?;
        let noted = kv.noted();
        let tell = cfg.kind == TargetKind::Mdt && known.behind == Some(false);
        let recovered = known.stored.with_noted(noted, tell);
        let instance = known.instance.wrapping_add(1).max(1);
        let mut batch = Batch::new();
        let (gone, clients): (Vec<_>, Vec<_>) = known
            .clients
            .into_iter()
            .partition(last_rcvd::KnownClient::is_gone);
        let missing = known.gap || !gone.is_empty();
        let behind = !clients.is_empty() && recovered.data < recovered.tables;
        for client in gone {
            tracing::info!(target = %cfg.name, client = %client.uuid, nid = %client.nid, "this client has ended: it is not waited for");
            last_rcvd::delete_client(&*kv, &mut batch, &client.uuid)?;
        }
        last_rcvd::put_instance(&mut batch, instance);
        last_rcvd::put_gap(&mut batch, missing && !clients.is_empty());
        if cfg.kind == TargetKind::Mdt {
            last_rcvd::put_data_transno(&mut batch, recovered.data);
            last_rcvd::put_behind(&mut batch, behind);
        }
        // Clients are told that all up to there is committed: no number of these is given again.
        last_rcvd::put_transno(&mut batch, recovered.tables);
        kv.commit(batch)?;
        // What a killed process left in the page cache is about to be called committed: it must survive power loss too. No client
        // hears of it before.
        kv.sync_soon()?;
        let windows = Windows {
            soft: cfg.recovery_soft,
            hard: cfg.recovery_hard,
        };
        let mut exports = Exports::default();
        for c in clients {
            exports.insert(Arc::new(Export::recovered(
                c.uuid,
                node.next_cookie(),
                c.nid,
                c.connect,
                c.replies,
            )));
        }
        let recovering = exports.len() > 0;
        if recovering {
            tracing::info!(target = %cfg.name, clients = exports.len(), last_transno = recovered.tables, "recovery: waiting for clients");
        }
        let (stopped, _) = watch::channel(false);
        let target = Arc::new_cyclic(|weak: &Weak<LuTarget>| LuTarget {
            ldlm: LdlmServer::new(
                &cfg.name,
                node.clone(),
                PtlrpcAsts::new(node.clone(), AstExports(weak.clone())),
            ),
            cfg,
            node,
            kv,
            ops: OnceLock::new(),
            instance,
            numbers: Mutex::new(Numbers {
                last: recovered.tables,
                done: if recovering {
                    recovered.data
                } else {
                    recovered.tables
                },
                behind,
                noted: noted > 0,
            }),
            stored: Mutex::new(recovered),
            recovered,
            syncs: SyncGroup::default(),
            commits: AtomicU64::new(0),
            durable: watch::Sender::new(0),
            soon: Arc::default(),
            last_committed: AtomicU64::new(recovered.data),
            membership: RwLock::default(),
            connecting: Mutex::new(()),
            recovery: Mutex::new(Recovery::of(exports.all().map(|e| e.cookie), missing)),
            exports: Mutex::new(exports),
            windows: watch::channel(windows).0,
            started_at: Instant::now(),
            recovering: AtomicBool::new(recovering),
            stats: Arc::default(),
            unhurried: Unhurried::default(),
            claimed: AtomicU32::new(CLAIMED),
            stopped,
        });
        target.show();
        if recovering {
            target.ldlm.begin_replay();
        }
        Ok(target)
    }

    /// The Lustre release this target says it is (`ocd_version`), to clients from their next connect on.
    pub fn claim(&self, release: u32) {
        self.claimed.store(release, Relaxed);
    }

    /// What it says.
    pub(crate) fn claimed(&self) -> u32 {
        self.claimed.load(Relaxed)
    }

    /// Sets the operations and starts the timers (sync, ping eviction, recovery window).
    pub fn start(self: &Arc<Self>, ops: Arc<dyn TargetOps>) {
        assert!(self.ops.set(ops).is_ok(), "a target is started once");
        tokio::spawn(durable::sync_loop(
            Arc::downgrade(self),
            self.soon.clone(),
            self.stopped.subscribe(),
        ));
        tokio::spawn(evict_loop(
            Arc::downgrade(self),
            self.cfg.ping_evict,
            self.stopped.subscribe(),
        ));
        if self.in_recovery() {
            tokio::spawn(recovery::window(
                Arc::downgrade(self),
                self.stopped.subscribe(),
            ));
        }
    }

    pub(crate) fn ops(&self) -> &Arc<dyn TargetOps> {
        self.ops.get().expect("add_target comes after start")
    }

    /// There is nothing that [`LuTarget::stored`] would wait for or tell.
    pub(crate) fn stored_now(&self) -> bool {
        self.kv.stored_now()
    }

    /// What [`LuTarget::stored_as`] is to wait for, if anything.
    pub(crate) fn storing(&self) -> Option<Storing> {
        self.kv.storing()
    }

    /// [`LuTarget::stored`], where others may be served first.
    pub(crate) async fn stored_as(&self, storing: Storing) -> Result<(), OsdError> {
        waits(Wait::Storage, self.kv.stored_as(storing)).await
    }

    /// Waits until what was done before this is on its way to survive the end of the process: clients are told of nothing else.
    pub(crate) async fn stored(&self) -> Result<(), OsdError> {
        waits(Wait::Storage, self.kv.stored()).await
    }

    /// Last sync, timers stopped. Exports stay known: the clients come back after a restart.
    pub async fn stop(self: &Arc<Self>) {
        self.stopped.send_replace(true);
        if let Some(ops) = self.ops.get() {
            ops.clone().stopping().await;
        }
        if let Err(error) = self.sync().await {
            tracing::error!(target = %self.cfg.name, %error, "last sync");
        }
    }

    /// What waits for the disk ends, and timers.
    pub(crate) fn abandon(&self) {
        self.stopped.send_replace(true);
    }

    /// Name, such as `coral-MDT0000`.
    pub fn name(&self) -> &str {
        &self.cfg.name
    }

    /// uuid.
    pub fn uuid(&self) -> &str {
        &self.cfg.uuid
    }

    /// Configuration.
    pub fn config(&self) -> &TargetConfig {
        &self.cfg
    }

    /// Index in the file system.
    pub fn index(&self) -> u32 {
        self.cfg.index
    }

    /// The tables.
    pub fn kv(&self) -> &Device {
        &self.kv
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The lock namespace.
    pub fn ldlm(&self) -> &Arc<LdlmServer> {
        &self.ldlm
    }

    /// Number of this start of the target, 1 for the first (`ocd_instance`).
    pub fn instance(&self) -> u32 {
        self.instance
    }

    /// Whether the target waits for known clients after a restart.
    pub fn in_recovery(&self) -> bool {
        self.recovering.load(Relaxed)
    }

    /// Evicts a client: its locks and handles are dropped, its next request gets -ENOTCONN.
    pub fn evict(self: &Arc<Self>, cookie: u64, why: &str) {
        let Some(exp) = self.export(cookie).filter(|e| self.unlink(e)) else {
            return;
        };
        tracing::warn!(target = %self.cfg.name, client = %exp.uuid, nid = %exp.nid(), why, "client evicted");
        self.stats.evictions.inc();
        tokio::spawn(self.clone().give_back(exp, true));
    }

    /// Ends an export: it is unknown from here on, also on disk. False when it was gone already.
    fn unlink(&self, exp: &Arc<Export>) -> bool {
        if !exp.mark_gone() {
            return false;
        }
        self.exports.lock().remove(exp);
        exp.abort_bulk();
        self.recovery.lock().forget(exp.cookie);
        if !exp.local && self.cfg.kind != TargetKind::Mgs {
            let _numbers = self.numbers.lock();
            let mut batch = Batch::new();
            if self.in_recovery() {
                last_rcvd::put_gap(&mut batch, true);
            }
            last_rcvd::put_transno(&mut batch, self.stored.lock().tables);
            let done = last_rcvd::delete_client(&*self.kv, &mut batch, &exp.uuid)
                .and_then(|()| self.kv.commit(batch));
            if let Err(error) = done {
                tracing::error!(target = %self.cfg.name, %error, "forgetting a client");
            }
        }
        true
    }

    /// Gives back what an unlinked export held: to others, who are told so only when a killed server would not know it any more.
    async fn give_back(self: Arc<Self>, exp: Arc<Export>, evicted: bool) {
        if let Err(error) = self.stored().await {
            tracing::error!(target = %self.cfg.name, client = %exp.uuid, %error, "a client is forgotten until the next start only");
        }
        self.ldlm.export_gone(exp.cookie);
        if let Some(ops) = self.ops.get() {
            ops.clone().export_gone(exp.clone(), evicted).await;
        }
        self.advance_recovery();
    }

    /// The export with this cookie.
    pub fn export(&self, cookie: u64) -> Option<Arc<Export>> {
        self.exports.lock().of_cookie(cookie)
    }

    /// All exports.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        let mut all: Vec<_> = self.exports.lock().all().cloned().collect();
        all.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        all
    }

    /// Counters.
    pub fn stats(&self) -> &Arc<TargetStats> {
        &self.stats
    }

    /// Shows what it counts among the metrics of its node.
    fn show(self: &Arc<Self>) {
        let me = Arc::downgrade(self);
        let count = |t: Arc<LuTarget>| t.exports.lock().len() as u64;
        self.stats.exports.ask(move || me.upgrade().map(count));
        let labels = [("target", self.cfg.name.as_str())];
        self.node.metrics().attach(&labels, &self.stats);
        self.node.metrics().attach(&labels, self.kv.stats());
    }
}

async fn evict_loop(target: Weak<LuTarget>, silence: Duration, mut stopped: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|s| *s) => return,
            () = tokio::time::sleep(silence / 10) => {}
        }
        let Some(target) = target.upgrade() else {
            return;
        };
        if target.in_recovery() {
            continue; // the recovery window has its own limits
        }
        // a light client of another node (`LIGHTWEIGHT`) pings as any other does
        let own = |e: &Export| target.node().is_beside(e.nid());
        let silent = |e: &&Arc<Export>| !own(e) && e.last_seen().elapsed() > silence;
        for exp in target.exports().iter().filter(silent) {
            target.evict(exp.cookie, "not heard of for too long");
        }
    }
}
