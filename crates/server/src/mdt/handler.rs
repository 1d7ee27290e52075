//! The MDT as a target: connect data, dispatch by opcode, clients that go, recovery
//! (`lustre/mdt/mdt_handler.c`).

use std::sync::Arc;

use coral_ldlm::LdlmServer;
use coral_lnet::Node;
use coral_osd::{Device, Kv, Objects, OsdError, Time};
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2};
use coral_wire::coral::KEEPS_ATTRS;
use coral_wire::ldlm::LdlmReply;
use coral_wire::mds::{MdtBody, MdtIoepoch, MdtRecReint, RecCreate};
use coral_wire::{Errno, Fid, Message, ObdConnectData, opc};
use futures_util::future::{BoxFuture, Either};
use parking_lot::RwLock;

use super::connect::{FLAGS, FLAGS2, IBITS};
use super::core::{self, MdtCore, MdtOpenError};
use super::ctx::{Answer, Ctx};
use super::fld::Fld;
use super::identity::{Identities, NameService};
use super::mdts::{MdtTarget, Mdts};
use super::open_handles::OpenHandle;
use super::osp::{Osp, OstTarget};
use super::out::Out;
use super::restripe::Restriper;
use super::squash::RootSquash;
use super::store::{MdtResult, Store, Txn};
use super::stripe::StripeDefaults;
use super::trans::Trans;
use super::{dom, namespace, orphans};
use crate::ost::{Ost, ToCount};
use crate::stats::MdtStats;
use crate::target::{Export, LuTarget, TargetConfig, TargetKind, TargetOps, TargetRequest};

/// Modifying requests a client may have in flight (`mdt.*.max_mod_rpcs_in_flight`).
const MAX_MOD_RPCS: u16 = 8;
/// Largest bulk of an MDT: one descriptor.
const BRW_BYTES: u32 = 1 << 20;
/// Largest layout attribute.
const MAX_EASIZE_BYTES: u32 = 65536;

/// Orphans looked at in one hold of the core's lock.
const ORPHANS_AT_A_TIME: usize = 256;

/// A running MDT.
pub struct MdtOps {
    /// Its state.
    pub core: RwLock<MdtCore>,
    /// The tables, as they are in the state too.
    pub(super) store: Store,
    /// Where sequences are.
    pub(super) fld: Arc<Fld>,
    /// What it counts.
    pub stats: Arc<MdtStats>,
    /// Its locks.
    pub ldlm: Arc<LdlmServer>,
    /// Its connections to OSTs.
    pub osp: Arc<Osp>,
    /// The data of files that have it here.
    pub data: Arc<Ost>,
    /// Removes data of files that are gone.
    pub remover: dom::Remover,
    /// Looks for objects that no file refers to.
    pub search: orphans::Search,
    /// The groups of users.
    pub identities: Arc<Identities>,
    /// Whom the superuser of a client becomes.
    pub squash: RwLock<RootSquash>,
    /// Held by renames between directories.
    pub rename_lock: tokio::sync::Mutex<()>,
    /// Its connections to other MDTs.
    pub mdts: Arc<Mdts>,
    /// Its parts of operations that other MDTs coordinate.
    pub out: Out,
    /// The operations over several MDTs that it coordinates.
    pub trans: Trans,
    /// Directories that are split or merged.
    pub restriper: Restriper,
}

/// How to start an MDT.
#[derive(Clone)]
pub struct MdtConfig {
    /// What all targets have.
    pub target: TargetConfig,
    /// File system name.
    pub fsname: String,
    /// Layout of files nobody said anything about: kept from the first start on, changed by a
    /// later start that gives another.
    pub defaults: Option<StripeDefaults>,
    /// uid and gid of the root directory, which the first start makes.
    pub root_owner: (u32, u32),
    /// Who knows the groups of users; `None`: nobody is asked.
    pub names: Option<Arc<dyn NameService>>,
    /// It will be told its OSTs: until then files that need objects are asked for again.
    pub awaits_osts: bool,
}

impl MdtConfig {
    /// MDT `index` of `fsname` with Lustre's defaults.
    pub fn new(fsname: &str, index: u32) -> MdtConfig {
        let name = format!("{fsname}-MDT{index:04x}");
        let target = TargetConfig::new(TargetKind::Mdt, &name, index);
        MdtConfig {
            target,
            fsname: fsname.into(),
            defaults: None,
            root_owner: (0, 0),
            names: None,
            awaits_osts: false,
        }
    }
}

/// A started MDT: the target for [`crate::ServerNode::add_target`], and the MDT itself.
pub struct Mdt {
    /// The target.
    pub target: Arc<LuTarget>,
    /// What makes it an MDT.
    pub ops: Arc<MdtOps>,
}

impl Mdt {
    /// Opens (the first time: formats) the tables in `osd` and starts the target. The OSTs are told
    /// with [`Mdt::set_osts`]; without any, files get no objects (ENOSPC).
    pub fn start<O: Kv + Objects + 'static>(
        node: Arc<Node>,
        cfg: MdtConfig,
        osd: Arc<O>,
    ) -> Result<Mdt, MdtOpenError> {
        Self::start_on(node, cfg, Device::from(osd.clone()), osd)
    }

    /// The same with tables and data on MDT apart.
    pub fn start_on(
        node: Arc<Node>,
        cfg: MdtConfig,
        kv: impl Into<Device>,
        data: Arc<dyn Objects>,
    ) -> Result<Mdt, MdtOpenError> {
        let kv = kv.into().behind();
        if !core::is_formatted(&*kv)? {
            let (secs, nsecs) = node.wall_time();
            core::format(
                &kv,
                cfg.target.index,
                Time { secs, nsecs },
                &cfg.defaults.unwrap_or_default(),
                cfg.root_owner,
            )?;
        }
        let mut state = MdtCore::open(kv.clone())?;
        let has_others = core::has_others(&*kv)?;
        core::raise_format(&kv, !has_others)?;
        if let Some(d) = cfg.defaults {
            state.set_defaults(d)?;
        }
        state.ids.awaits_osts = cfg.awaits_osts;
        let store = state.store.clone();
        let osp = Osp::new(node.clone(), &cfg.target.name);
        let mdts = Mdts::new(node.clone(), &cfg.target.name, cfg.target.index, has_others);
        let left = orphans::left(&kv)?;
        let to_count = ToCount::before_start(&kv)?;
        let target = LuTarget::new(node, cfg.target, kv)?;
        target.ldlm().set_lvb_ops(Ost::lvb_ops(data.clone()));
        state.recovering = target.in_recovery();
        let ops = Arc::new(MdtOps {
            store: store.clone(),
            fld: store.fld().clone(),
            core: RwLock::new(state),
            stats: Arc::default(),
            ldlm: target.ldlm().clone(),
            osp: osp.clone(),
            data: dom::service(store, data),
            remover: dom::Remover::new(),
            search: orphans::Search::new(left),
            identities: Identities::new(cfg.names),
            squash: RwLock::default(),
            rename_lock: tokio::sync::Mutex::new(()),
            mdts,
            out: Out::default(),
            trans: Trans::default(),
            restriper: Restriper::default(),
        });
        ops.load_params(&*ops.core.read().store.kv().clone())?;
        ops.data.start_counting(to_count, target.instance())?;
        let labels = [("target", target.name())];
        target.node().metrics().attach(&labels, &ops.stats);
        target.start(ops.clone());
        osp.start(&target, &ops);
        ops.trans.start(&ops, &target)?;
        ops.start_out(&target)?;
        ops.start_restriper(&target);
        ops.remover.start(&ops, &target);
        if !target.in_recovery() {
            // nobody will come back to what was open
            ops.reap_orphans()?;
            ops.search.start(&ops);
        }
        // as nobody waits for what a start commits
        target.kv().stored_now();
        Ok(Mdt { target, ops })
    }

    /// The OSTs of the file system as the configuration has them now.
    pub fn set_osts(&self, osts: Vec<OstTarget>) {
        self.ops.set_osts(osts);
    }

    /// Waits until the OSTs that are on their way have told which objects they have.
    pub async fn osts_numbered(&self) {
        self.ops.osp.all_numbered().await;
    }

    /// The MDTs of the file system as the configuration has them now, this one among them.
    pub fn set_mdts(&self, mdts: Vec<MdtTarget>) -> MdtResult<()> {
        if self.ops.mdts.set(mdts, self.target.claimed()) {
            core::raise_format(self.target.kv(), false)?;
        }
        Ok(())
    }

    /// Its parameters `mdt.<name>.*` with their values.
    pub fn params(&self) -> Vec<(String, String)> {
        let all = self.ops.params();
        all.into_iter()
            .map(|(n, v)| (format!("mdt.{}.{n}", self.target.name()), v))
            .collect()
    }

    /// Sets the parameter of that name and keeps it for later starts. `None`: it has none of that name.
    pub async fn set_param(&self, name: &str, value: &str) -> Option<Result<(), String>> {
        let name = name
            .strip_prefix("mdt.")?
            .strip_prefix(self.target.name())?
            .strip_prefix('.')?;
        let kv = self.ops.core.read().store.kv().clone();
        self.ops.set_param(&kv, name, value).await
    }

    /// Disconnects from the OSTs and stops the target.
    pub async fn stop(&self) {
        self.ops.restriper.stop().await;
        self.ops.out.stop().await;
        self.ops.trans.stop().await;
        self.ops.search.stop().await;
        self.ops.remover.stop().await;
        self.ops.mdts.stop().await;
        self.ops.osp.stop().await;
        self.target.stop().await;
        if let Err(error) = orphans::stopped(&self.ops, &self.target).await {
            tracing::error!(%error, "noting that the MDT has stopped");
        }
    }

    /// Ends what it does in the background and nothing else: what a killed process leaves behind. Nothing is synced, nobody is
    /// told, and its device is let go with it.
    pub async fn abandon(&self) {
        self.ops.restriper.stop().await;
        self.ops.out.stop().await;
        self.ops.trans.stop().await;
        self.ops.search.stop().await;
        self.ops.remover.stop().await;
        self.ops.mdts.abandon();
        self.target.abandon();
        self.ops.osp.abandon().await;
    }
}

impl MdtOps {
    /// The file system's default layout.
    pub fn defaults(&self) -> StripeDefaults {
        // called under the core's lock too: a copy, not the core
        self.osp.defaults()
    }

    /// Size of the largest layout attribute in use, in bytes: the widest plain layout, at least 128.
    pub fn max_md_size(&self) -> u32 {
        (32 + 24 * self.osp.count() as u32).max(128)
    }

    fn set_osts(&self, osts: Vec<OstTarget>) {
        self.osp.set_osts(osts);
        let spaces = self.osp.spaces();
        let mut core = self.core.write();
        self.osp.set_defaults(core.defaults);
        core.osts = spaces;
        core.ids.awaits_osts = false;
    }

    async fn serve(self: Arc<Self>, rq: TargetRequest) {
        let mut cx = Ctx::new(self, rq);
        let result = match cx.untold_open() {
            Some(done) => done,
            None => match cx.identify().await {
                Ok(()) => cx.dispatch().await,
                Err(e) => Err(e),
            },
        };
        cx.finish(result).await;
    }
}

impl Ctx {
    /// Sends the reply; an error goes as a bare status.
    fn finish(self, result: MdtResult<Answer>) -> impl Future<Output = ()> + Send + use<> {
        let (status, msg) = match result {
            Ok(a) => (a.status, a.msg),
            Err(e) => (self.told(&e).status(), Message::default()),
        };
        match self.is_told_late() {
            true => Either::Left(self.rq.reply_unhurried(status, msg)),
            false => Either::Right(self.rq.reply(status, msg)),
        }
    }

    /// What the request reads of directories that an operation over several MDTs may make or change.
    fn reads(&self) -> smallvec::SmallVec<[Fid; 2]> {
        let body = |i| self.body(i).map(|b| [b.fid1, b.fid2]);
        let fids = match self.rq.rq.body.opc {
            opc::MDS_GETATTR
            | opc::MDS_GETATTR_NAME
            | opc::MDS_READPAGE
            | opc::MDS_GETXATTR
            | opc::MDS_SYNC => body(1),
            opc::MDS_REINT => match self.rq.rq.msg.get::<MdtRecReint>(1) {
                Ok(r) => Ok([r.fid1, r.fid2]),
                Err(_) => return smallvec::SmallVec::new(),
            },
            // an open's record has its FIDs where an `mdt_body` has none
            opc::LDLM_ENQUEUE => match self.rq.rq.msg.get::<RecCreate>(3) {
                Ok(r) if self.opens() => Ok([r.fid1, r.fid2]),
                _ => body(3),
            },
            _ => return smallvec::SmallVec::new(),
        };
        fids.map(smallvec::SmallVec::from).unwrap_or_default()
    }

    /// Futures of rare requests that are large go to the heap: the future of every request has room for the largest of the others.
    async fn dispatch(&self) -> MdtResult<Answer> {
        if self.ops.out.prepared() > 0 {
            self.ops.out.settled(&self.reads()).await?;
        }
        if self.ops.ldlm.is_other_alone(self.exp()) && !self.rq.is_replay() {
            Box::pin(self.not_lent(&self.reads())).await?;
        }
        match self.rq.rq.body.opc {
            opc::LDLM_ENQUEUE => self.enqueue().await,
            opc::MDS_REINT => self.reint().await,
            opc::MDS_CLOSE => self.close().await,
            opc::MDS_GETATTR => self.getattr().await,
            opc::MDS_GETATTR_NAME => self.getattr_name().await,
            opc::MDS_READPAGE => self.readpage().await,
            opc::MDS_GETXATTR => self.getxattr(),
            opc::MDS_GET_ROOT => Box::pin(self.get_root()).await,
            opc::MDS_STATFS => self.statfs(),
            opc::MDS_SYNC => self.sync().await,
            opc::MDS_RMFID => Box::pin(self.rmfid()).await,
            opc::MDS_GET_INFO => Box::pin(self.get_info()).await,
            opc::MDS_SET_INFO => self.set_info(),
            opc::MDS_HSM_STATE_GET => self.hsm_state(),
            opc::MDS_QUOTACTL => self.quotactl().await,
            opc::SEQ_QUERY => self.seq_query().await,
            opc::FLD_QUERY => self.fld_query().await,
            opc::MDS_BATCH => Box::pin(self.batch()).await,
            opc::OUT_UPDATE => Box::pin(self.out_update()).await,
            opc::LLOG_ORIGIN_HANDLE_CREATE => Err(Errno::ENOENT.into()),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }
}

impl TargetOps for MdtOps {
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        let needed = F::FID.0 | F::FULL20.0;
        if asked.connect_flags.0 & needed != needed {
            return Err(Errno::EPROTO);
        }
        let flags = asked.connect_flags.0 & FLAGS;
        let flags2 = if flags & F::FLAGS2.0 != 0 {
            asked.connect_flags2.0 & FLAGS2
        } else {
            0
        };
        // a kernel client asks for no number and takes what it is given
        let mods = match asked.maxmodrpcs {
            0 => MAX_MOD_RPCS,
            n => n.min(MAX_MOD_RPCS),
        };
        let mut granted = ObdConnectData {
            connect_flags: F(flags),
            connect_flags2: F2(flags2),
            brw_size: if asked.brw_size == 0 {
                BRW_BYTES
            } else {
                asked.brw_size.min(BRW_BYTES)
            },
            ibits_known: asked.ibits_known & IBITS,
            max_easize: MAX_EASIZE_BYTES,
            maxbytes: i64::MAX as u64,
            maxmodrpcs: if flags & F::MULTIMODRPCS.0 != 0 {
                mods
            } else {
                0
            },
            ..ObdConnectData::default()
        };
        self.data.agree_data(asked, &mut granted);
        Ok(granted)
    }

    fn book_grant(&self, exp: &Export, has: Option<u64>) -> u64 {
        self.data.book_grant(exp, has)
    }

    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        match rq.rq.body.opc {
            opc::OST_READ
            | opc::OST_WRITE
            | opc::OST_PUNCH
            | opc::OST_FALLOCATE
            | opc::OST_SEEK
            | opc::OST_SYNC => self.data.clone().handle(rq),
            _ => Box::pin(self.serve(rq)),
        }
    }

    fn sync_data(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.data.sync_data()
    }

    fn stopping(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.data.stop_counting().await })
    }

    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(self.serve(rq))
    }

    fn export_gone(self: Arc<Self>, exp: Arc<Export>, _evicted: bool) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.data.forget(exp.cookie);
            self.out.export_gone(exp.cookie);
            let cookies = self.core.read().opens.of_export(exp.cookie);
            for cookie in cookies {
                if let Err(e) = self.abandon(cookie, exp.cookie) {
                    tracing::error!(error = %e, client = exp.uuid, "closing a lost client's file");
                }
            }
        })
    }

    fn reconstruct(&self, exp: &Arc<Export>, request: &Message, reply: &mut Message) {
        let opcode = request.body().map_or(0, |b| b.opc);
        if opcode == opc::MDS_CLOSE {
            return self.reclose(exp, request);
        }
        let is_open = opcode == opc::LDLM_ENQUEUE;
        let (Ok(rec), Ok(body)) = (request.get::<RecCreate>(3), reply.get::<MdtBody>(2)) else {
            return;
        };
        if !is_open || body.open_handle == 0 {
            return;
        }
        let handle = OpenHandle {
            fid: body.fid1,
            flags: rec.flags(),
            export: exp.cookie,
            old: body.open_handle,
            keeps: (reply.get::<LdlmReply>(1)).is_ok_and(|r| r.policy_res1 & KEEPS_ATTRS != 0),
        };
        let mut core = self.core.write();
        if !exp.gone() {
            core.opens.insert(body.open_handle, handle);
        }
        drop(core);
        // a lock of before the restart comes back by lock replay, not by this reply
        if let Ok(mut rep) = reply.get::<LdlmReply>(1)
            && rep.handle != 0
            && self.ldlm.reply_for(rep.handle).is_none()
        {
            rep.handle = 0;
            reply.bufs[1] = coral_wire::Wire::to_bytes(&rep);
        }
    }

    fn recovery_finished(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.core.write().recovering = false;
            if let Err(e) = self.reap_orphans() {
                tracing::error!(error = %e, "removing orphans after recovery");
            }
            self.search.start(&self);
        })
    }
}

impl MdtOps {
    /// A close was done before the restart. Its client had no answer, and has replayed the open.
    fn reclose(&self, exp: &Export, request: &Message) {
        let Ok(epoch) = request.get::<MdtIoepoch>(1) else {
            return;
        };
        let cookie = self
            .core
            .write()
            .opens
            .current(epoch.open_handle, exp.cookie);
        if let Some(Err(e)) = cookie.map(|c| self.abandon(c, exp.cookie)) {
            tracing::error!(error = %e, client = exp.uuid, "closing a file that was closed before the restart");
        }
    }

    /// Closes the handle of a client that is gone. What has no name is left to the end of a recovery: who else had it open may not
    /// be back.
    fn abandon(&self, cookie: u64, export: u64) -> MdtResult<()> {
        let mut guard = self.core.write();
        let core = &mut *guard;
        let Some((handle, last)) = core.opens.remove(cookie, export) else {
            return Ok(());
        };
        if last && !core.recovering {
            self.reap(core, &handle.fid)?;
        }
        Ok(())
    }

    /// Destroys `fid` if it has no name any more.
    fn reap(&self, core: &MdtCore, fid: &Fid) -> MdtResult<()> {
        if core.store.find(fid)?.is_some_and(|i| i.nlink > 0) {
            return Ok(());
        }
        let mut t = Txn::new(&core.store);
        namespace::reap(&mut t, fid)?;
        self.commit_own(&core.store, t.finish())
    }

    /// Destroys orphans nobody has opened again.
    fn reap_orphans(&self) -> MdtResult<()> {
        let mut last = None;
        loop {
            let core = self.core.write();
            let part = core.orphans_after(last, ORPHANS_AT_A_TIME)?;
            for fid in part.iter().filter(|fid| !core.opens.is_open(fid)) {
                self.reap(&core, fid)?;
            }
            if part.len() < ORPHANS_AT_A_TIME {
                return Ok(());
            }
            last = part.last().copied();
        }
    }
}
