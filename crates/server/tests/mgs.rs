//! An MGS served over MemNet: targets register, a client reads the configuration and is called back when it changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coral_ldlm::{ClientNamespace, LdlmClient, LockHook, LockInfo};
use coral_lnet::{MemNet, Nid, Node, NodeConfig};
use coral_node::backend::simulated_label;
use coral_node::{Servers, ServersConfig, TargetSpec};
use coral_osd::{OsdMem, TargetKind};
use coral_ptlrpc::{Bulk, Import, ImportConfig, Reply, Request};
use coral_server::mgs::Mgs;
use coral_server::nodemap::Command;
use coral_wire::cfg::{ConfigLogReader, ConfigRecord, Lcfg};
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2, release};
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, Policy, ResId};
use coral_wire::llog::{LlogLogHdr, LlogdBody};
use coral_wire::mgs::{
    MGS_CFG_T_CONFIG, MGS_CFG_T_RECOVER, MgsConfigBody, MgsConfigRes, MgsNidtblEntry,
    MgsTargetInfo, ldd,
};
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::raw::{c_array, c_str};
use coral_wire::{Errno, ObdConnectData};
use futures_util::future::BoxFuture;

async fn node(mem: &Arc<MemNet>, nid: &str, seed: u64) -> Arc<Node> {
    let cfg = NodeConfig::in_memory(nid.parse().unwrap(), seed);
    Node::start(cfg, Some(mem.clone())).await.unwrap()
}

/// An MGS on `node`.
fn serve(node: Arc<Node>, kv: &OsdMem) -> Servers {
    let mut servers = Servers::new(node, ServersConfig::default());
    let label = simulated_label(TargetKind::Mgs, "", 0, &[]);
    servers
        .add_unregistered(TargetSpec::memory(label, kv))
        .unwrap();
    servers
}

/// What a kernel MGC asks for (captures, mount).
fn asked() -> ObdConnectData {
    ObdConnectData {
        connect_flags: F::VERSION
            | F::MGS_NIDLIST
            | F::BARRIER
            | F::AT
            | F::FULL20
            | F::IMP_RECOV
            | F::LVB_TYPE
            | F::BULK_MBITS
            | F::FLAGS2,
        connect_flags2: F2::REP_MBITS | F2::LARGE_NID,
        version: release(2, 17, 57, 0),
        ..Default::default()
    }
}

struct Mgc {
    import: Arc<Import>,
    ns: Arc<ClientNamespace>,
    callbacks: Arc<AtomicUsize>,
    _ldlm: Arc<LdlmClient>,
}

struct CountCallbacks(Arc<AtomicUsize>);

impl LockHook for CountCallbacks {
    fn cancelling(&self, _: &LockInfo, _: bool, _: bool) -> BoxFuture<'static, ()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {})
    }

    fn glimpse(&self, _: &LockInfo) -> Option<OstLvb> {
        None
    }
}

async fn mgc(mem: &Arc<MemNet>, n: u64) -> Mgc {
    mgc_at(mem, &format!("{n}@lo"), "1@lo", n).await
}

async fn mgc_at(mem: &Arc<MemNet>, nid: &str, mgs: &str, n: u64) -> Mgc {
    let node = node(mem, nid, n).await;
    let ldlm = LdlmClient::new(&node);
    let uuid = format!("00000000-0000-0000-0000-{n:012}");
    let import = Import::new(
        node,
        ImportConfig::mgs(vec![mgs.parse().unwrap()], &uuid, asked()),
    );
    import.connect().await.unwrap();
    let ns = ldlm.namespace(import.clone());
    let callbacks = Arc::new(AtomicUsize::new(0));
    ns.set_hook(Arc::new(CountCallbacks(callbacks.clone())));
    Mgc {
        import,
        ns,
        callbacks,
        _ldlm: ldlm,
    }
}

impl Mgc {
    async fn call(&self, rq: Request) -> Result<Reply, Errno> {
        let reply = self.import.call(rq).await.unwrap();
        Errno::check(reply.status).map(|_| reply)
    }

    async fn register(
        &self,
        flags: u32,
        index: u32,
        nid: &str,
        instance: u32,
    ) -> Result<String, Errno> {
        let mut i = MgsTargetInfo {
            flags,
            stripe_index: index,
            nid_count: 1,
            instance,
            ..Default::default()
        };
        i.fsname = c_array(b"coral");
        i.nids[0] = nid.parse().unwrap();
        let reply = self
            .call(Request::new(portal::MGS_REQUEST, opc::MGS_TARGET_REG).push(&i))
            .await?;
        let i: MgsTargetInfo = reply.msg.get(1).unwrap();
        Ok(String::from_utf8(c_str(&i.svname).to_vec()).unwrap())
    }

    async fn llog(&self, op: u32, body: &LlogdBody, name: &str) -> Result<Reply, Errno> {
        let mut rq = Request::new(portal::MGS_REQUEST, op).push(body);
        if !name.is_empty() {
            rq = rq.push_bytes([name.as_bytes(), &[0]].concat());
        }
        self.call(rq).await
    }

    async fn config(&self) -> Result<Vec<ConfigRecord>, Errno> {
        let opened = self
            .llog(
                opc::LLOG_ORIGIN_HANDLE_CREATE,
                &LlogdBody::default(),
                "coral-client",
            )
            .await?;
        let mut at: LlogdBody = opened.msg.get(1).unwrap();
        let head: LlogLogHdr = self
            .llog(opc::LLOG_ORIGIN_HANDLE_READ_HEADER, &at, "")
            .await?
            .msg
            .get(1)
            .unwrap();
        let (mut reader, mut out) = (ConfigLogReader::new(), Vec::new());
        loop {
            at.index = reader.next_index();
            match self.llog(opc::LLOG_ORIGIN_HANDLE_NEXT_BLOCK, &at, "").await {
                Err(Errno::EBADR) => return Ok(out),
                m => out.extend(reader.feed(m?.msg.buf(2), |i| head.is_live(i)).unwrap()),
            }
        }
    }

    /// Targets in the configuration: (uuid, index, NID of its node).
    async fn targets(&self) -> Vec<(String, String, Nid)> {
        let records = self.config().await.unwrap();
        let mut nid = Nid(0);
        let mut out = Vec::new();
        for r in &records {
            match r.cfg.command {
                Lcfg::ADD_UUID => nid = r.cfg.nid,
                Lcfg::ADD_MDC | Lcfg::LOV_ADD_OBD => {
                    out.push((r.cfg.str(1).to_owned(), r.cfg.str(2).to_owned(), nid))
                }
                _ => {}
            }
        }
        out
    }

    async fn lock(&self, kind: u16) {
        let res = ResId::config("coral", kind);
        let lock = self
            .ns
            .enqueue(
                res,
                LdlmType::PLAIN,
                LdlmMode::CR,
                Policy::Plain,
                LdlmFlags(0),
                0,
            )
            .await;
        drop(lock.unwrap());
    }

    async fn nid_table(&self, from: u64) -> (Vec<MgsNidtblEntry>, MgsConfigRes) {
        let body = MgsConfigBody {
            name: c_array(b"coral-cliir"),
            offset: from,
            r#type: MGS_CFG_T_RECOVER,
            rec_nid_size: 20,
            bits: 12,
            units: 256,
        };
        let mut rq = Request::new(portal::MGS_REQUEST, opc::MGS_CONFIG_READ).push(&body);
        rq.bulk = Some(Bulk::Sink {
            portal: portal::MGS_BULK,
            lens: vec![1 << 20],
        });
        let reply = self.call(rq).await.unwrap();
        let mut rest = reply.bulk[0].copy_to_bytes();
        let mut out = Vec::new();
        while !rest.is_empty() {
            let (e, r) = MgsNidtblEntry::decode(&rest).unwrap();
            out.push(e);
            rest = r;
        }
        (out, reply.msg.get(1).unwrap())
    }
}

fn at(uuid: &str, index: &str, nid: &str) -> (String, String, Nid) {
    (uuid.to_owned(), index.to_owned(), nid.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn targets_register_and_clients_are_called_back() {
    let mem = MemNet::new();
    let n = node(&mem, "1@lo", 1).await;
    let kv = OsdMem::new();
    let server = serve(n.clone(), &kv);
    let mgs = server.mgs().unwrap();

    let (client, osts) = (mgc(&mem, 2).await, mgc(&mem, 3).await);
    let granted = client.import.granted();
    assert!(
        granted.has(F::IMP_RECOV | F::FULL20)
            && !granted.has(F::BARRIER)
            && granted.has2(F2::LARGE_NID)
    );
    assert_eq!(
        client.config().await.unwrap_err(),
        Errno::ENOENT,
        "nobody has registered"
    );

    let virgin = ldd::VIRGIN;
    assert_eq!(
        osts.register(ldd::SV_TYPE_MDT | virgin, 0, "10.0.0.1@tcp", 1)
            .await
            .unwrap(),
        "coral-MDT0000"
    );
    assert_eq!(
        osts.register(ldd::SV_TYPE_OST | virgin, 0, "10.0.0.1@tcp", 1)
            .await
            .unwrap(),
        "coral-OST0000"
    );
    assert_eq!(
        osts.register(ldd::SV_TYPE_OST | virgin, 0, "10.0.0.7@tcp", 1)
            .await
            .unwrap_err(),
        Errno::EADDRINUSE
    );
    let mdt = at("coral-MDT0000_UUID", "0", "10.0.0.1@tcp");
    assert_eq!(
        client.targets().await,
        [mdt.clone(), at("coral-OST0000_UUID", "0", "10.0.0.1@tcp")]
    );

    // a change calls back who holds the lock, once
    client.lock(MGS_CFG_T_CONFIG).await;
    osts.register(ldd::SV_TYPE_OST | virgin, 1, "10.0.0.2@tcp", 1)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.callbacks.load(Ordering::Relaxed), 1);
    assert_eq!(client.targets().await.len(), 3);

    // a target that moved: both the log and the nid table say where it is
    client.lock(MGS_CFG_T_CONFIG).await;
    client.lock(MGS_CFG_T_RECOVER).await;
    let (table, res) = client.nid_table(1).await;
    assert_eq!((table.len(), res.offset, res.size), (3, 5, 5));
    osts.register(ldd::SV_TYPE_OST, 0, "10.0.0.9@tcp", 2)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.callbacks.load(Ordering::Relaxed), 3);
    let (news, res) = client.nid_table(res.offset + 1).await;
    assert_eq!(
        (
            news.len(),
            news[0].head.index,
            news[0].head.instance,
            res.offset
        ),
        (1, 0, 2, 6)
    );
    let moved = [
        mdt,
        at("coral-OST0000_UUID", "0", "10.0.0.9@tcp"),
        at("coral-OST0001_UUID", "1", "10.0.0.2@tcp"),
    ];
    assert_eq!(client.targets().await, moved);

    // registering as before is no change
    client.lock(MGS_CFG_T_CONFIG).await;
    osts.register(ldd::SV_TYPE_OST, 0, "10.0.0.9@tcp", 2)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.callbacks.load(Ordering::Relaxed), 3);

    // another MGS on what the tables are after power loss knows it all
    assert_eq!(mgs.filesystems(), ["coral"]);
    let again = Mgs::open(n, Arc::new(kv.power_loss())).unwrap();
    let nids: Vec<Vec<Nid>> = again.targets("coral").into_iter().map(|t| t.nids).collect();
    assert_eq!(nids, moved.map(|m| vec![m.2]));
    for c in [client, osts] {
        c.import.disconnect().await;
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_target_claims_the_release_it_is_told() {
    let mem = MemNet::new();
    let server = serve(node(&mem, "1@lo", 1).await, &OsdMem::new());
    let target = server.targets().next().unwrap();
    assert_eq!(
        mgc(&mem, 2).await.import.granted().version,
        release(2, 17, 57, 0)
    );
    target.claim(release(2, 15, 7, 0));
    assert_eq!(
        mgc(&mem, 3).await.import.granted().version,
        release(2, 15, 7, 0)
    );
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_nodemaps_are_active_only_trusted_nodes_register_targets() {
    let mem = MemNet::new();
    let server = serve(node(&mem, "10.0.0.1@tcp", 1).await, &OsdMem::new());
    let mgs = server.mgs().unwrap();
    let far = mgc_at(&mem, "10.0.0.5@tcp", "10.0.0.1@tcp", 5).await;
    let inside = mgc_at(&mem, "6@lo", "10.0.0.1@tcp", 6).await;
    let register = async |c: &Mgc, index| {
        c.register(ldd::SV_TYPE_OST | ldd::VIRGIN, index, "10.0.0.5@tcp", 1)
            .await
    };
    assert_eq!(register(&far, 0).await.unwrap(), "coral-OST0000");
    let change = async |c: Command| mgs.nodemap_command(&c).await.unwrap();
    let modify = async |property: &str, value: &str| {
        change(Command::Modify {
            name: "osts".into(),
            property: property.into(),
            value: value.into(),
        })
        .await
    };
    change(Command::Activate(true)).await;
    assert_eq!(
        register(&far, 1).await,
        Err(Errno::EPERM),
        "of the default nodemap"
    );
    assert_eq!(register(&inside, 1).await.unwrap(), "coral-OST0001");
    change(Command::Add {
        name: "osts".into(),
    })
    .await;
    change(Command::AddRange {
        name: "osts".into(),
        range: "10.0.0.5@tcp".into(),
    })
    .await;
    modify("trusted", "1").await;
    assert_eq!(register(&far, 2).await, Err(Errno::EPERM));
    modify("admin", "1").await;
    assert_eq!(register(&far, 2).await.unwrap(), "coral-OST0002");
    modify("trusted", "0").await;
    assert_eq!(register(&far, 3).await, Err(Errno::EPERM));
    change(Command::Activate(false)).await;
    assert_eq!(register(&far, 3).await.unwrap(), "coral-OST0003");
    server.stop().await;
}
