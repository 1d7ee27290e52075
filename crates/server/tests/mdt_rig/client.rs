//! A client of one MDT: a bare import, locks, and requests as a kernel client packs them.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use coral_ldlm::{ClientNamespace, LdlmClient};
use coral_lnet::{Nid, Node};
use coral_ptlrpc::alive::Alive;
use coral_ptlrpc::{Bulk, Import, ImportConfig, ImportObserver, Reply, Request};
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2};
use coral_wire::coral::{LEND, LENT, LENT_BITS, UNTOLD_OPEN, pack_time};
use coral_wire::ldlm::{
    Ibits, LdlmFlags, LdlmIntent, LdlmMode, LdlmReply, LdlmRequest, LdlmType, Policy, it,
};
use coral_wire::mds::*;
use coral_wire::ost::{ObdStatfs, md};
use coral_wire::quota::ObdQuotactl;
use coral_wire::{Errno, Fid, ObdConnectData, Wire, opc, portal};
use futures_util::future::BoxFuture;

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
    /// Version of directories' layouts that creates, opens, links and renames say; 0: none.
    pub layout: u32,
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
    /// The server's cookie of it.
    pub lock_cookie: u64,
    pub handle: u64,
}

fn nul(s: &[u8]) -> Bytes {
    [s, b"\0"].concat().into()
}

impl Client {
    /// A client on `node` of the MDT `target` of the server `at`. It asks for `private` besides Lustre's own flags of the second
    /// word.
    pub async fn connect(node: Arc<Node>, target: &str, at: &str, private: u64) -> Client {
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
        let alive = node
            .nid()
            .to_string()
            .starts_with("127.")
            .then(|| Arc::new(Alive::announce(&uuid).expect("a socket")));
        let cfg = ImportConfig::mdt(target, vec![at.parse::<Nid>().expect("a NID")], &uuid, data);
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
            layout: 0,
            gid: 0,
            seq: Arc::default(),
            oid: Arc::default(),
        };
        c.new_sequence().await.expect("a sequence");
        c
    }

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

    /// The version of data on the MDT.
    pub async fn data_version(&self, fid: Fid) -> Result<u64, Errno> {
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_GETATTR)
            .push(&self.body(fid, md::FLDATAVERSION))
            .push_empty();
        let got = self.call(rq).await?.msg.get::<MdtBody>(1);
        let got = got.map_err(|_| Errno::EPROTO)?;
        assert_eq!(got.valid, md::FLDATAVERSION);
        Ok(got.version)
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
            lock_cookie: rep.handle,
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

    /// Opens a file by FID, with a lease.
    pub async fn lease(&self, fid: Fid) -> Result<Found, Errno> {
        let flags = open::READ | open::WRITE | open::LOCK | open::BY_FID | open::LEASE;
        self.open(fid, b"", flags, 0).await
    }

    /// Whether the lock that came with `o` is still there.
    pub fn has_lock(&self, o: &Found) -> bool {
        let mut all = self.ns.locks().into_iter();
        all.any(|l| l.remote_cookie == o.lock_cookie)
    }

    /// MDS_REINT_MIGRATE, as `lfs migrate -m` of a kernel client sends it to the MDT that coordinates it. `fid`: what is to come
    /// to be; `lease`: of a regular file.
    pub async fn migrate(
        &self,
        (dir, name): (Fid, &[u8]),
        (mode, fid): (u32, Fid),
        lease: Option<&Found>,
        lum: Bytes,
    ) -> Result<MdtBody, Errno> {
        let c = self.rec_create(dir, 0);
        let rec = RecRename {
            opcode: ReintOp::MIGRATE,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: dir,
            fid2: fid,
            time: c.time,
            mode,
            bias: lease.map_or(0, |_| bias::CLOSE_MIGRATE),
            ..RecRename::default()
        };
        let (epoch, data) = match lease {
            Some(o) => (
                MdtIoepoch {
                    open_handle: o.handle,
                    ..MdtIoepoch::default()
                }
                .to_bytes(),
                CloseData {
                    handle: o.lock_cookie,
                    ..CloseData::default()
                }
                .to_bytes(),
            ),
            None => (Bytes::new(), Bytes::new()),
        };
        let none = Bytes::new;
        self.reint(
            rec.to_bytes(),
            &[
                none(),
                none(),
                nul(name),
                none(),
                none(),
                none(),
                epoch,
                data,
                lum,
            ],
        )
        .await
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

    /// Tells of the open of a file that was read under a lock; `held`: with no lock wanted.
    pub async fn open_untold(&self, fid: Fid, flags: u64, held: bool) -> Result<Found, Errno> {
        let mut rec = self.rec_create(fid, 0);
        rec.opcode = ReintOp::OPEN;
        rec.fid2 = fid;
        rec.bias = UNTOLD_OPEN;
        rec.set_flags(flags | open::BY_FID);
        let flags = match held {
            true => LdlmFlags::HAS_INTENT | LdlmFlags::INTENT_ONLY,
            false => LdlmFlags::HAS_INTENT,
        };
        let dlm = coral_wire::ldlm::LdlmRequest {
            flags,
            count: 1,
            ..Default::default()
        };
        let mut rq = Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(dlm.to_bytes())
            .push(&LdlmIntent { opc: it::OPEN })
            .push(&rec)
            .push_empty()
            .push_empty()
            .push_bytes(nul(b""));
        for _ in 0..5 {
            rq = rq.push_empty();
        }
        let r = self.call(rq.replayable_open()).await?;
        let rep = r.msg.get::<LdlmReply>(1).map_err(|_| Errno::EPROTO)?;
        match rep.policy_res2 as i32 {
            0 => Self::found(&r, &rep),
            e => Err(Errno(-e)),
        }
    }

    /// The access time of what was read so.
    pub async fn read_untold(&self, fid: Fid, atime: i64) -> Result<(), Errno> {
        let rec = RecSetattr {
            opcode: ReintOp::SETATTR,
            fid,
            bias: UNTOLD_OPEN,
            valid: attr::ATIME | attr::ATIME_SET,
            atime: pack_time(atime, 0),
            ..RecSetattr::default()
        };
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_CLOSE)
            .push(&MdtIoepoch::default())
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
            layout_ver: self.layout,
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
            layout_ver: self.layout,
            ..RecLink::default()
        };
        self.reint(
            rec.to_bytes(),
            &[Bytes::new(), Bytes::new(), nul(name), Bytes::new()],
        )
        .await
        .map(drop)
    }

    fn rec_unlink(&self, dir: Fid) -> RecUnlink {
        let c = self.rec_create(dir, 0);
        RecUnlink {
            opcode: ReintOp::UNLINK,
            cap: c.cap,
            fsuid: c.fsuid,
            fsgid: c.fsgid,
            suppgid1: u32::MAX,
            suppgid2: u32::MAX,
            fid1: dir,
            time: c.time,
            ..RecUnlink::default()
        }
    }

    pub async fn unlink(&self, parent: Fid, name: &[u8], dir: bool) -> Result<MdtBody, Errno> {
        let rec = RecUnlink {
            mode: if dir { 0o040000 } else { 0 },
            ..self.rec_unlink(parent)
        };
        self.reint(rec.to_bytes(), &[Bytes::new(), nul(name), Bytes::new()])
            .await
    }

    /// Asks for the right to take names from `dir` and tell later, for which these locks of its own go, by the server's cookies.
    pub async fn lend(&self, dir: Fid, own: &[u64]) -> Result<Found, Errno> {
        let body = self.body(dir, md::FLGETATTR | md::FLEASIZE | md::FLACL);
        let own = LdlmRequest::cancel(own).to_bytes();
        let (r, rep) = self
            .intent(dir, LEND, LdlmMode::EX, LENT_BITS, |rq| {
                rq.push(&body).push_bytes(own)
            })
            .await?;
        Self::found(&r, &rep)
    }

    /// Takes names away under that right; `names` as they go on the wire.
    pub async fn unlink_lent(&self, dir: Fid, names: &[u8], fids: &[Fid]) -> Result<(), Errno> {
        let rec = RecUnlink {
            bias: LENT,
            ..self.rec_unlink(dir)
        };
        let fids = coral_wire::raw::encode_all(fids);
        let bufs = [
            Bytes::new(),
            Bytes::copy_from_slice(names),
            Bytes::new(),
            Bytes::new(),
            fids,
        ];
        self.reint(rec.to_bytes(), &bufs).await.map(drop)
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
            layout_ver: self.layout,
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
