//! An MDT on one node and clients on others, all in this process, and requests as a client packs them.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::{ClientNamespace, LdlmClient};
use coral_lnet::{MemNet, Nid, Node, NodeConfig};
use coral_node::backend::simulated_label;
use coral_node::{Backend, Servers, ServersConfig, TargetSpec};
use coral_osd::{Batch, Fresh, Kv, Op, OsdMem};
use coral_ptlrpc::alive::Alive;
use coral_ptlrpc::{Bulk, Import, ImportConfig, ImportObserver, Reply, Request};
use coral_server::mdt::identity::NameService;
use coral_server::mdt::{Mdt, OstTarget, StripeDefaults, table};
use coral_server::{LuTarget, ServerNode, TargetConfig, TargetKind, TargetOps, TargetRequest};
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2};
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmIntent, LdlmMode, LdlmReply, LdlmType, Policy, it};
use coral_wire::mds::*;
use coral_wire::ost::{ObdStatfs, md};
use coral_wire::quota::ObdQuotactl;
use coral_wire::{Errno, Fid, ObdConnectData, Wire, opc, portal};
use futures_util::future::BoxFuture;

const SERVER: &str = "10.0.0.1@tcp";
/// That of a target unless said otherwise.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

/// The change that takes `op` back.
pub fn undo(kv: &dyn Kv, op: &Op) -> Batch {
    let mut b = Batch::new();
    let (Op::Put { table, key, .. } | Op::Del { table, key }) = op;
    match kv.get(*table, key).expect("read") {
        Some(v) => b.put(*table, key.clone(), v),
        None => b.del(*table, key.clone()),
    };
    b
}

pub struct Rig {
    pub mem: OsdMem,
    /// The device in use: `mem` unless a test brings another.
    kv: Arc<dyn Kv>,
    net: Arc<MemNet>,
    osts: u32,
    /// Real OSTs; without them OSTs can be connected to and nothing else.
    pub real: Vec<Arc<OsdMem>>,
    /// The real OSTs have nodes of their own, `10.0.1.<index>@tcp`; what runs there.
    pub far: Option<Vec<Option<Servers>>>,
    /// uid and gid of the root directory, should the next start make it.
    pub root_owner: (u32, u32),
    /// How often the next start syncs by itself.
    pub sync_interval: Duration,
    /// Who knows users from the next start on.
    pub names: Option<Arc<dyn NameService>>,
    up: Option<Servers>,
    seed: AtomicU64,
}

impl Rig {
    pub async fn new(osts: u32) -> Rig {
        let mem = OsdMem::new();
        Rig::on(osts, mem.clone(), Arc::new(mem)).await
    }

    /// An MDT on another device than memory.
    pub async fn on(osts: u32, mem: OsdMem, kv: Arc<dyn Kv>) -> Rig {
        let mut rig = Rig::down(osts, mem, kv);
        rig.restart().await;
        rig
    }

    /// An MDT with OSTs that serve, all on one node.
    pub async fn with_osts(n: u32) -> Rig {
        let mem = OsdMem::new();
        let mut rig = Rig::down(n, mem.clone(), Arc::new(mem));
        rig.real = (0..n).map(|_| Arc::new(OsdMem::new())).collect();
        rig.restart().await;
        rig
    }

    /// The same, each OST on a node of its own.
    pub async fn with_far_osts(n: u32) -> Rig {
        let mem = OsdMem::new();
        let mut rig = Rig::down(n, mem.clone(), Arc::new(mem));
        rig.real = (0..n).map(|_| Arc::new(OsdMem::new())).collect();
        rig.far = Some((0..n).map(|_| None).collect());
        for i in 0..n {
            rig.start_ost(i).await;
        }
        rig.restart().await;
        rig
    }

    fn down(osts: u32, mem: OsdMem, kv: Arc<dyn Kv>) -> Rig {
        Rig {
            mem,
            kv,
            net: MemNet::new(),
            osts,
            real: vec![],
            far: None,
            root_owner: (0, 0),
            names: None,
            sync_interval: SYNC_INTERVAL,
            up: None,
            seed: AtomicU64::new(1),
        }
    }

    /// Starts the OST with a node of its own.
    pub async fn start_ost(&mut self, index: u32) {
        let node = self.node(&format!("10.0.1.{index}@tcp")).await;
        let mut servers = Servers::new(node, ServersConfig::default());
        servers.add_unregistered(self.ost(index)).expect("OST");
        self.far.as_mut().expect("far OSTs")[index as usize] = Some(servers);
    }

    fn ost(&self, index: u32) -> TargetSpec {
        let label = simulated_label(coral_osd::TargetKind::Ost, "test", index, &[]);
        TargetSpec::memory(label, &*self.real[index as usize])
    }

    /// Its process is gone at once.
    pub async fn kill_ost(&mut self, index: u32) {
        let ost = &mut self.far.as_mut().expect("far OSTs")[index as usize];
        ost.take().expect("running").kill().await;
    }

    /// Its machine loses power: what was not synced is gone. Call after [`Rig::kill_ost`].
    pub fn lose_ost_power(&mut self, index: u32) {
        let disk = &mut self.real[index as usize];
        *disk = Arc::new(disk.power_loss());
    }

    async fn node(&self, nid: &str) -> Arc<Node> {
        let seed = self.seed.fetch_add(1, Ordering::Relaxed);
        let cfg = NodeConfig::in_memory(nid.parse().expect("a NID"), seed);
        Node::start(cfg, Some(self.net.clone()))
            .await
            .expect("node")
    }

    /// Starts the server on what its device holds.
    pub async fn restart(&mut self) {
        let node = self.node(SERVER).await;
        let config = ServersConfig {
            default_stripes: Some(StripeDefaults {
                stripe_size: 1 << 20,
                stripe_count: 1,
            }),
            names: self.names.clone(),
            recovery_soft: Some(Duration::from_secs(20)),
            sync_interval: Some(self.sync_interval),
            ..ServersConfig::default()
        };
        let mut servers = Servers::new(node.clone(), config);
        for i in (0..self.osts).filter(|_| self.far.is_none()) {
            match self.real.get(i as usize) {
                Some(_) => drop(servers.add_unregistered(self.ost(i)).expect("OST")),
                None => servers.server().add_target(deaf_ost(&node, i)),
            }
        }
        let at = |index: u32| {
            if self.far.is_some() {
                format!("10.0.1.{index}@tcp")
            } else {
                SERVER.into()
            }
        };
        let ost = |index| OstTarget {
            index,
            uuid: format!("test-OST{index:04x}_UUID"),
            nids: vec![at(index).parse().expect("a NID")],
            active: true,
        };
        let (uid, gid) = self.root_owner;
        let mdt = TargetSpec {
            osts: (0..self.osts).map(ost).collect(),
            ..TargetSpec::new(Backend::Given {
                label: simulated_label(coral_osd::TargetKind::Mdt, "test", 0, &[]),
                fresh: Some(Fresh { uid, gid }),
                tables: self.kv.clone(),
                objects: Arc::new(OsdMem::new()),
            })
        };
        servers.add_unregistered(mdt).expect("MDT");
        self.up = Some(servers);
    }

    /// The server is gone at once; its device keeps what was committed.
    pub async fn kill(&mut self) {
        self.up.take().expect("running").kill().await;
    }

    /// Another device, on which nothing is.
    pub fn empty(&mut self) {
        self.mem = OsdMem::new();
        self.kv = Arc::new(self.mem.clone());
    }

    /// The server's machine loses power: what was not synced is gone. Call after [`Rig::kill`].
    pub fn lose_power(&mut self) {
        self.mem = self.mem.power_loss();
        self.kv = Arc::new(self.mem.clone());
    }

    pub async fn stop(&self) {
        if let Some(servers) = &self.up {
            servers.stop().await;
        }
    }

    /// Evicts this client.
    pub fn evict(&self, c: &Client) {
        let target = &self.mdt().target;
        let exp = target
            .exports()
            .into_iter()
            .find(|e| e.nid() == c.node.nid())
            .expect("connected");
        target.evict(exp.cookie, "a test");
    }

    /// The next reply of the MDT to a client is lost.
    pub fn lose_a_reply(&self) {
        use coral_lnet::{FaultAction, FaultRule, MsgType};
        let rule = FaultRule::all(FaultAction::Drop)
            .portal(portal::MDC_REPLY)
            .kind(MsgType::Put)
            .times(1);
        self.up().node().faults().add(rule);
    }

    /// OST objects waiting to be destroyed, other than ranges of ids that no file refers to.
    pub fn destroy_pending(&self) -> usize {
        let rows = self
            .mem
            .range(table::DESTROY, b"", None, 1000)
            .expect("read");
        rows.iter()
            .filter(|(_, v)| table::destroy_count_of(v) == 1)
            .count()
    }

    /// OST objects whose owner waits to be told for good.
    pub fn owners_pending(&self) -> usize {
        self.mem
            .range(table::OWNER, b"", None, 1000)
            .expect("read")
            .len()
    }

    fn up(&self) -> &Servers {
        self.up.as_ref().expect("running")
    }

    pub fn mdt(&self) -> &Mdt {
        &self.up().mdts()[0]
    }

    pub fn server(&self) -> &Arc<ServerNode> {
        self.up().server()
    }

    pub async fn client(&self, nid: &str) -> Client {
        self.client_as(nid, F2::CORAL.0).await
    }

    /// A client that asks for `private` besides Lustre's own flags of the second word.
    pub async fn client_as(&self, nid: &str, private: u64) -> Client {
        let node = self.node(nid).await;
        let flags = F::VERSION.0
            | F::FULL20.0
            | F::FID.0
            | F::ATTRFID.0
            | F::IBITS.0
            | F::NODEVOH.0
            | F::CANCELSET.0
            | F::AT.0
            | F::BRW_SIZE.0
            | F::LOV_V3.0
            | F::B64BITHASH.0
            | F::LVB_TYPE.0
            | F::LAYOUTLOCK.0
            | F::MAX_EASIZE.0
            | F::ACL.0
            | F::XATTR.0
            | F::VBR.0
            | F::UMASK.0
            | F::OPEN_BY_FID.0
            | F::DISP_STRIPE.0
            | F::BULK_MBITS.0
            | F::MULTIMODRPCS.0
            | F::FLAGS2.0;
        let data = ObdConnectData {
            connect_flags: F(flags),
            connect_flags2: F2(F2::REP_MBITS.0
                | F2::INC_XID.0
                | private
                | F2::FLR.0
                | F2::LOCK_CONVERT.0),
            version: 0x0211_3900,
            brw_size: 1 << 20,
            ibits_known: 0x7f,
            maxmodrpcs: 8,
            ..ObdConnectData::default()
        };
        // no other process of a test run has it: servers on this machine look for it
        let uuid = format!(
            "00000000-{:04x}-4000-8000-{:012x}",
            std::process::id() & 0xffff,
            node.rng_u64() & 0xffff_ffff_ffff
        );
        let alive = nid
            .starts_with("127.")
            .then(|| Arc::new(Alive::announce(&uuid).expect("a socket")));
        let cfg = ImportConfig::mdt(
            "test-MDT0000_UUID",
            vec![SERVER.parse::<Nid>().expect("a NID")],
            &uuid,
            data,
        );
        let ldlm = LdlmClient::new(&node);
        let import = Import::new(node.clone(), cfg);
        let ns = ldlm.namespace(import.clone());
        import.set_observer(Arc::new(Locks(ns.clone())));
        import.connect().await.expect("connect");
        let c = Client {
            _alive: alive,
            import,
            ns,
            ldlm,
            node,
            uid: 0,
            gid: 0,
            seq: Arc::default(),
            oid: Arc::default(),
        };
        c.new_sequence().await.expect("a sequence");
        c
    }
}

/// An OST that accepts connections and fails all that is asked of it.
struct Deaf;

impl TargetOps for Deaf {
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        Ok(*asked)
    }
    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(rq.fail(Errno::EIO))
    }
    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(rq.fail(Errno::EIO))
    }
}

fn deaf_ost(node: &Arc<Node>, index: u32) -> Arc<LuTarget> {
    let cfg = TargetConfig::new(TargetKind::Ost, &format!("test-OST{index:04x}"), index);
    let target = LuTarget::new(node.clone(), cfg, Arc::new(OsdMem::new())).expect("a target");
    target.start(Arc::new(Deaf));
    target
}

struct Locks(Arc<ClientNamespace>);

impl ImportObserver for Locks {
    fn replay_locks(
        &self,
        _import: Arc<Import>,
    ) -> BoxFuture<'static, Result<(), coral_ptlrpc::RpcError>> {
        let ns = self.0.clone();
        Box::pin(async move { ns.replay_locks().await })
    }
}

#[derive(Clone)]
pub struct Client {
    /// Servers see that it runs.
    _alive: Option<Arc<Alive>>,
    pub import: Arc<Import>,
    pub ns: Arc<ClientNamespace>,
    ldlm: Arc<LdlmClient>,
    pub node: Arc<Node>,
    pub uid: u32,
    pub gid: u32,
    seq: Arc<AtomicU64>,
    oid: Arc<AtomicU32>,
}

/// What an intent said.
pub struct Found {
    pub disp: u64,
    /// Lengths of the reply's buffers.
    pub lens: Vec<usize>,
    pub body: MdtBody,
    pub md: Bytes,
    pub parent: Option<MdtBody>,
    /// Bits of the lock that came with it.
    pub lock: Option<u64>,
    pub handle: u64,
}

/// Makes a closure for a batch of one change out of one that returns the batch.
pub fn nothing<T>(_: T) {}

fn nul(s: &[u8]) -> Bytes {
    [s, b"\0"].concat().into()
}

impl Client {
    async fn call(&self, rq: Request) -> Result<Reply, Errno> {
        let r = self.import.call(rq).await.map_err(|_| Errno::EIO)?;
        if r.status < 0 {
            Err(Errno(-r.status))
        } else {
            Ok(r)
        }
    }

    fn body(&self, fid: Fid, valid: u64) -> MdtBody {
        let cap = if self.uid == 0 { u32::MAX } else { 0 };
        MdtBody {
            fid1: fid,
            valid,
            fsuid: self.uid,
            fsgid: self.gid,
            capability: cap,
            suppgid: u32::MAX,
            ..MdtBody::default()
        }
    }

    fn now(&self) -> i64 {
        let (s, n) = self.node.wall_time();
        if self.import.granted().has2(F2::CORAL) {
            coral_wire::coral::pack_time(s, n)
        } else {
            s
        }
    }

    async fn new_sequence(&self) -> Result<(), Errno> {
        let rq = Request::new(portal::SEQ_METADATA, opc::SEQ_QUERY)
            .push(&1u32)
            .push(&coral_wire::fld::LuSeqRange::default());
        let range: coral_wire::fld::LuSeqRange =
            self.call(rq).await?.msg.get(1).map_err(|_| Errno::EPROTO)?;
        assert_eq!(range.end, range.start + 1);
        self.seq.store(range.start, Ordering::Relaxed);
        Ok(())
    }

    fn new_fid(&self) -> Fid {
        Fid::new(
            self.seq.load(Ordering::Relaxed),
            self.oid.fetch_add(1, Ordering::Relaxed) + 1,
        )
    }

    pub fn nid(&self) -> Nid {
        self.node.nid()
    }

    /// Callbacks are not answered from here on.
    pub async fn turn_deaf(&self) {
        self.ldlm.stop().await;
    }

    /// The same client's requests by another user.
    pub fn user(&self, uid: u32, gid: u32) -> Client {
        Client {
            uid,
            gid,
            ..self.clone()
        }
    }

    pub async fn root(&self) -> Result<Fid, Errno> {
        self.root_at(b"").await
    }

    /// The directory that a mount of the subdirectory `path` begins at.
    pub async fn root_at(&self, path: &[u8]) -> Result<Fid, Errno> {
        let path = if path.is_empty() {
            Bytes::new()
        } else {
            nul(path)
        };
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_GET_ROOT)
            .push(&self.body(Fid::ZERO, 0))
            .push_bytes(path);
        Ok(self
            .call(rq)
            .await?
            .msg
            .get::<MdtBody>(1)
            .map_err(|_| Errno::EPROTO)?
            .fid1)
    }

    pub async fn quotactl(&self, cmd: u32, kind: u32, id: u32) -> Result<ObdQuotactl, Errno> {
        let ask = ObdQuotactl {
            cmd,
            r#type: kind,
            id,
            ..Default::default()
        };
        self.call(Request::new(portal::MDS_REQUEST, opc::MDS_QUOTACTL).push(&ask))
            .await?
            .msg
            .get(1)
            .map_err(|_| Errno::EPROTO)
    }

    pub async fn statfs(&self) -> Result<ObdStatfs, Errno> {
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_STATFS).push(&MdtBody::default());
        self.call(rq).await?.msg.get(1).map_err(|_| Errno::EPROTO)
    }

    pub async fn getattr(&self, fid: Fid) -> Result<MdtBody, Errno> {
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_GETATTR)
            .push(&self.body(fid, md::FLGETATTR))
            .push_empty();
        self.call(rq).await?.msg.get(1).map_err(|_| Errno::EPROTO)
    }

    pub async fn readlink(&self, fid: Fid) -> Result<String, Errno> {
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_GETATTR)
            .push(&self.body(fid, md::LINKNAME | md::FLID))
            .push_empty();
        let r = self.call(rq).await?;
        let text = r.msg.buf(2);
        Ok(String::from_utf8_lossy(text.strip_suffix(b"\0").expect("a NUL")).into_owned())
    }

    async fn intent(
        &self,
        fid: Fid,
        op: u64,
        mode: LdlmMode,
        bits: Ibits,
        add: impl FnOnce(Request) -> Request,
    ) -> Result<(Reply, LdlmReply), Errno> {
        let p = self.ns.prepare(
            fid.res_id(),
            LdlmType::IBITS,
            mode,
            Policy::ibits(bits),
            LdlmFlags::HAS_INTENT,
        );
        let rq = Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(p.request().to_bytes())
            .push(&LdlmIntent { opc: op });
        let r = self.import.call(add(rq)).await.map_err(|_| Errno::EIO)?;
        if r.status < 0 {
            return Err(Errno(-r.status));
        }
        let rep: LdlmReply = r.msg.get(1).map_err(|_| Errno::EPROTO)?;
        let lock = self.ns.finish(p, &rep, r.status);
        assert_eq!(lock.is_some(), rep.handle != 0);
        if rep.handle != 0 && op & it::LAYOUT == 0 {
            let body: MdtBody = r.msg.get(2).map_err(|_| Errno::EPROTO)?;
            assert_eq!(
                rep.desc.res(),
                body.fid1.res_id(),
                "a kernel client asserts this"
            );
        }
        match rep.policy_res2 as i32 {
            0 => Ok((r, rep)),
            e => Err(Errno(-e)),
        }
    }

    fn found(r: &Reply, rep: &LdlmReply) -> Result<Found, Errno> {
        let body: MdtBody = r.msg.get(2).map_err(|_| Errno::EPROTO)?;
        let lock = match rep.desc.policy() {
            Policy::Ibits { bits, .. } if rep.handle != 0 => Some(bits.0),
            _ => None,
        };
        let lens = r.msg.bufs.iter().map(|b| b.len()).collect();
        Ok(Found {
            disp: rep.policy_res1,
            lens,
            body,
            md: r.msg.buf(3).clone(),
            parent: r.msg.get(5).ok(),
            lock,
            handle: body.open_handle,
        })
    }

    /// By name; an empty name asks for `parent` itself.
    pub async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<Found, Errno> {
        let mut body = self.body(parent, md::FLGETATTR | md::FLEASIZE | md::FLACL);
        if name.is_empty() {
            body.fid2 = parent;
        }
        let (r, rep) = self
            .intent(parent, it::GETATTR, LdlmMode::CR, Ibits::UPDATE, |rq| {
                rq.push(&body).push_empty().push_bytes(nul(name))
            })
            .await?;
        Self::found(&r, &rep)
    }

    pub async fn open(
        &self,
        parent: Fid,
        name: &[u8],
        flags: u64,
        mode: u32,
    ) -> Result<Found, Errno> {
        self.open_with(parent, name, flags, mode, Bytes::new())
            .await
    }

    pub async fn open_with(
        &self,
        parent: Fid,
        name: &[u8],
        flags: u64,
        mode: u32,
        ea: Bytes,
    ) -> Result<Found, Errno> {
        let creat = flags & open::CREAT != 0;
        let mut rec = self.rec_create(parent, mode);
        rec.opcode = ReintOp::OPEN;
        rec.fid2 = if creat { self.new_fid() } else { Fid::ZERO };
        rec.set_flags(flags);
        let op = if creat {
            it::OPEN | it::CREAT
        } else {
            it::OPEN
        };
        let build = |rec: &RecCreate, ea: &Bytes, rq: Request| {
            rq.push(rec)
                .push_empty()
                .push_empty()
                .push_bytes(nul(name))
                .push_bytes(ea.clone())
                .push_empty()
                .push_empty()
                .push_empty()
                .push_empty()
        };
        let (r, rep) = self
            .intent(parent, op, LdlmMode::CW, Ibits::UPDATE, |rq| {
                build(&rec, &ea, rq).replayable_open()
            })
            .await?;
        let found = Self::found(&r, &rep)?;
        if r.transno != 0 {
            // a replay says what was opened then
            rec.fid2 = found.body.fid1;
            rec.open_handle_old = found.handle;
            let ea = if creat && !found.md.is_empty() {
                rec.set_flags(flags | open::HAS_EA);
                found.md.clone()
            } else {
                ea.clone()
            };
            let dlm = coral_wire::ldlm::LdlmRequest {
                flags: LdlmFlags::HAS_INTENT | LdlmFlags::INTENT_ONLY,
                count: 1,
                ..Default::default()
            };
            let rq = Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
                .push_bytes(dlm.to_bytes())
                .push(&LdlmIntent { opc: op });
            self.import
                .amend_replay(r.transno, build(&rec, &ea, rq).bufs);
        }
        Ok(found)
    }

    pub async fn close(&self, o: &Found) -> Result<(), Errno> {
        self.close_with(o, |_| ()).await
    }

    /// A close that tells attributes.
    pub async fn close_with(
        &self,
        o: &Found,
        set: impl FnOnce(&mut RecSetattr),
    ) -> Result<(), Errno> {
        let mut rec = RecSetattr {
            opcode: ReintOp::SETATTR,
            fid: o.body.fid1,
            ..RecSetattr::default()
        };
        set(&mut rec);
        let epoch = MdtIoepoch {
            open_handle: o.handle,
            ..MdtIoepoch::default()
        };
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_CLOSE)
            .push(&epoch)
            .push(&rec)
            .push_empty();
        self.call(rq.replayable()).await.map(drop)
    }

    pub async fn layout(
        &self,
        fid: Fid,
        op: u32,
        start: u64,
        end: u64,
    ) -> Result<(Bytes, bool), Errno> {
        let li = LayoutIntent {
            opc: op,
            flags: 0,
            start,
            end,
        };
        let (r, rep) = self
            .intent(fid, it::LAYOUT, LdlmMode::CR, Ibits::LAYOUT, |rq| {
                rq.push(&li).push_empty()
            })
            .await?;
        Ok((r.msg.buf(2).clone(), rep.handle != 0))
    }

    fn rec_create(&self, parent: Fid, mode: u32) -> RecCreate {
        RecCreate {
            opcode: ReintOp::CREATE,
            cap: if self.uid == 0 { u32::MAX } else { 0 },
            fsuid: self.uid,
            fsgid: self.gid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: parent,
            time: self.now(),
            mode,
            umask: 0o022,
            ..RecCreate::default()
        }
    }

    /// Lengths of a reint reply's buffers.
    pub async fn mkdir_reply(&self, parent: Fid, name: &[u8]) -> Result<Vec<usize>, Errno> {
        let mut rec = self.rec_create(parent, 0o040755);
        rec.fid2 = self.new_fid();
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_REINT)
            .push(&rec)
            .push_empty()
            .push_bytes(nul(name))
            .push_empty()
            .push_empty();
        Ok(self
            .call(rq.replayable())
            .await?
            .msg
            .bufs
            .iter()
            .map(|b| b.len())
            .collect())
    }

    async fn reint(&self, rec: Bytes, bufs: &[Bytes]) -> Result<MdtBody, Errno> {
        let mut rq = Request::new(portal::MDS_REQUEST, opc::MDS_REINT).push_bytes(rec);
        for b in bufs {
            rq = rq.push_bytes(b.clone());
        }
        self.call(rq.replayable())
            .await?
            .msg
            .get(1)
            .map_err(|_| Errno::EPROTO)
    }

    async fn make(&self, parent: Fid, name: &[u8], mode: u32, data: Bytes) -> Result<Fid, Errno> {
        self.make_as(self.new_fid(), parent, name, mode, data).await
    }

    /// FIDs for [`Client::make_as`], in ascending order.
    pub fn fids(&self, n: usize) -> Vec<Fid> {
        (0..n).map(|_| self.new_fid()).collect()
    }

    /// Makes an object with a FID of the caller's choice.
    pub async fn make_as(
        &self,
        fid: Fid,
        parent: Fid,
        name: &[u8],
        mode: u32,
        data: Bytes,
    ) -> Result<Fid, Errno> {
        let mut rec = self.rec_create(parent, mode);
        rec.fid2 = fid;
        let b = self
            .reint(
                rec.to_bytes(),
                &[Bytes::new(), nul(name), data, Bytes::new()],
            )
            .await?;
        assert_eq!(b.fid1, rec.fid2);
        Ok(b.fid1)
    }

    pub async fn mkdir(&self, parent: Fid, name: &[u8]) -> Result<Fid, Errno> {
        self.make(parent, name, 0o040777, Bytes::new()).await
    }

    pub async fn mknod(&self, parent: Fid, name: &[u8], mode: u32) -> Result<Fid, Errno> {
        self.make(parent, name, mode, Bytes::new()).await
    }

    pub async fn symlink(&self, parent: Fid, name: &[u8], target: &[u8]) -> Result<Fid, Errno> {
        self.make(parent, name, 0o120777, nul(target)).await
    }

    pub async fn link(&self, fid: Fid, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        let c = self.rec_create(fid, 0);
        let rec = RecLink {
            opcode: ReintOp::LINK,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: fid,
            fid2: parent,
            time: c.time,
            ..RecLink::default()
        };
        self.reint(
            rec.to_bytes(),
            &[Bytes::new(), Bytes::new(), nul(name), Bytes::new()],
        )
        .await
        .map(drop)
    }

    pub async fn unlink(&self, parent: Fid, name: &[u8], dir: bool) -> Result<MdtBody, Errno> {
        let c = self.rec_create(parent, 0);
        let rec = RecUnlink {
            opcode: ReintOp::UNLINK,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: parent,
            time: c.time,
            mode: if dir { 0o040000 } else { 0 },
            ..RecUnlink::default()
        };
        self.reint(rec.to_bytes(), &[Bytes::new(), nul(name), Bytes::new()])
            .await
    }

    pub async fn rename(&self, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8]) -> Result<(), Errno> {
        self.rename_mode(p1, n1, p2, n2, 0).await
    }

    /// `mode`: 0 or one of `coral_wire::coral::RENAME_*`.
    pub async fn rename_mode(
        &self,
        p1: Fid,
        n1: &[u8],
        p2: Fid,
        n2: &[u8],
        mode: u32,
    ) -> Result<(), Errno> {
        let c = self.rec_create(p1, 0);
        let rec = RecRename {
            opcode: ReintOp::RENAME,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: p1,
            fid2: p2,
            time: c.time,
            padding_5: mode,
            ..RecRename::default()
        };
        self.reint(
            rec.to_bytes(),
            &[Bytes::new(), Bytes::new(), nul(n1), nul(n2), Bytes::new()],
        )
        .await
        .map(drop)
    }

    fn rec_setattr(&self, fid: Fid) -> RecSetattr {
        let c = self.rec_create(fid, 0);
        RecSetattr {
            opcode: ReintOp::SETATTR,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid: u32::MAX,
            fid,
            ..RecSetattr::default()
        }
    }

    pub async fn setattr(
        &self,
        fid: Fid,
        set: impl FnOnce(&mut RecSetattr),
    ) -> Result<MdtBody, Errno> {
        let mut rec = self.rec_setattr(fid);
        set(&mut rec);
        self.reint(rec.to_bytes(), &[]).await
    }

    /// The same with what stands where a handle may be named.
    pub async fn setattr_through(
        &self,
        fid: Fid,
        epoch: Bytes,
        set: impl FnOnce(&mut RecSetattr),
    ) -> Result<MdtBody, Errno> {
        let mut rec = self.rec_setattr(fid);
        set(&mut rec);
        self.reint(rec.to_bytes(), &[Bytes::new(), epoch]).await
    }

    /// A truncate through an open file, as the kernel client's: it names the handle.
    pub async fn truncate_open(&self, o: &Found, size: u64) -> Result<MdtBody, Errno> {
        let mut rec = self.rec_setattr(o.body.fid1);
        (rec.valid, rec.size) = (attr::SIZE, size);
        let epoch = MdtIoepoch {
            open_handle: o.handle,
            ..MdtIoepoch::default()
        };
        self.reint(rec.to_bytes(), &[Bytes::new(), epoch.to_bytes()])
            .await
    }

    /// A default layout set as the kernel client's `lfs setstripe DIR` sets it: in a setattr that changes nothing else.
    pub async fn set_default(&self, fid: Fid, value: Bytes) -> Result<MdtBody, Errno> {
        let rec = self.rec_setattr(fid);
        self.reint(
            rec.to_bytes(),
            &[
                Bytes::new(),
                Bytes::new(),
                value,
                Bytes::new(),
                Bytes::new(),
            ],
        )
        .await
    }

    pub async fn setxattr(
        &self,
        fid: Fid,
        name: &[u8],
        value: Option<&[u8]>,
        flags: u32,
    ) -> Result<(), Errno> {
        let c = self.rec_create(fid, 0);
        let rec = RecSetxattr {
            opcode: ReintOp::SETXATTR,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid,
            valid: if value.is_some() {
                md::FLXATTR
            } else {
                md::FLXATTRRM
            },
            time: c.time,
            // as the kernel client: it leaves `size` 0
            flags,
            ..RecSetxattr::default()
        };
        let value = Bytes::copy_from_slice(value.unwrap_or(b""));
        self.reint(
            rec.to_bytes(),
            &[Bytes::new(), nul(name), value, Bytes::new()],
        )
        .await
        .map(drop)
    }

    pub async fn getxattr(&self, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let mut body = self.body(fid, md::FLXATTR);
        body.eadatasize = 65536;
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_GETXATTR)
            .push(&body)
            .push_empty()
            .push_bytes(nul(name))
            .push_empty();
        Ok(self.call(rq).await?.msg.buf(2).clone())
    }

    pub async fn listxattr(&self, fid: Fid) -> Result<String, Errno> {
        let mut body = self.body(fid, md::FLXATTRLS);
        body.eadatasize = 65536;
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_GETXATTR)
            .push(&body)
            .push_empty()
            .push_empty()
            .push_empty();
        Ok(String::from_utf8_lossy(self.call(rq).await?.msg.buf(2)).into_owned())
    }

    /// (start, end) of each page, and the names.
    pub async fn read_pages(
        &self,
        dir: Fid,
        start: u64,
        pages: u32,
    ) -> Result<(Vec<(u64, u64)>, Vec<String>), Errno> {
        let mut body = self.body(dir, md::FLID);
        (body.size, body.nlink, body.mode) = (start, pages * 4096, luda::FID | luda::TYPE);
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_READPAGE)
            .push(&body)
            .push_empty();
        let r = self
            .call(rq.bulk(Bulk::Sink {
                portal: portal::MDS_BULK,
                lens: vec![pages * 4096],
            }))
            .await?;
        let data = r.bulk[0].copy_to_bytes();
        assert!(data.len() % 4096 == 0 && !data.is_empty());
        let (mut spans, mut names) = (Vec::new(), Vec::new());
        for page in data.chunks(4096) {
            let p = parse_page(&Bytes::copy_from_slice(page)).map_err(|_| Errno::EPROTO)?;
            spans.push((p.head.hash_start, p.head.hash_end));
            names.extend(
                p.entries
                    .iter()
                    .map(|e| String::from_utf8_lossy(&e.name).into_owned()),
            );
        }
        Ok((spans, names))
    }

    pub async fn names(&self, dir: Fid) -> Result<Vec<String>, Errno> {
        let (mut names, mut at) = (Vec::new(), 0);
        while at != MDS_DIR_END_OFF {
            let (spans, more) = self.read_pages(dir, at, 2).await?;
            assert_eq!(
                spans[0].0, at,
                "the first page starts where it was asked to"
            );
            names.extend(more);
            at = spans.last().expect("a page").1;
        }
        Ok(names)
    }

    pub async fn fid2path(&self, fid: Fid) -> Result<String, Errno> {
        let gf = GetinfoFid2path {
            fid,
            recno: u64::MAX,
            linkno: 0,
            pathlen: 4096,
        };
        let key = [
            b"fid2path\0\0\0\0\0\0\0\0".as_slice(),
            &gf.to_bytes(),
            &Fid::ROOT.to_bytes(),
        ]
        .concat();
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_GET_INFO)
            .push_bytes(key)
            .push(&4128u32);
        let r = self.call(rq).await?;
        let path = &r.msg.buf(1)[32..];
        Ok(String::from_utf8_lossy(path.split(|&b| b == 0).next().unwrap_or(b"")).into_owned())
    }
}
