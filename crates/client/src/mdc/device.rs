//! The connection to one MDT, and requests without a lock that change no name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::{BufMut, Bytes, BytesMut};
use coral_ldlm::ClientNamespace;
use coral_ptlrpc::{Import, Reply, Request, RpcError};
use coral_wire::coral::{KEPT_ATTRS, UNTOLD_OPEN};
use coral_wire::fid::Fid;
use coral_wire::mds::{GetinfoFid2path, MdtBody, MdtIoepoch, RecSetattr, ReintOp, attr, md};
use coral_wire::ost::ObdStatfs;
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::{DecodeError, Errno, Message, Wire};

use smallvec::SmallVec;

use super::ids::Ids;
use super::reint::SetattrArgs;
use super::seq::SeqClient;
use crate::ask::{Answer, answer, ask};
use crate::error::TargetError;
use crate::osc::{Osc, STATFS_LIMIT};
use crate::target::{ClientObd, TargetHooks};
use crate::time::Timespec;

/// Room asked for a layout in a reply, bytes: 160 stripes. A bigger one is fetched again with [`BIG_EA_BYTES`].
pub(super) const EA_BYTES: u32 = 4096;
/// Largest layout, bytes.
pub(super) const BIG_EA_BYTES: u32 = 65536;

/// Reply of requests that answer attributes: mdt_body, layout or symlink text, ACL.
#[derive(Debug, Clone)]
pub struct Attrs {
    /// Attributes.
    pub body: MdtBody,
    /// LOV or LMV EA, or symlink target, as `body.valid` says.
    pub md: Bytes,
    /// POSIX ACL xattr, version word included.
    pub acl: Bytes,
}

/// What a change of the namespace answered.
#[derive(Debug, Clone)]
pub struct Changed {
    /// The object made, or the one that lost a name (fid1 zero: nothing said).
    pub attrs: Attrs,
    /// How directories look now (Coral servers).
    pub dirs: SmallVec<[MdtBody; 2]>,
}

impl Changed {
    /// From a reply whose main mdt_body is buffer 1.
    pub(super) fn read(mdc: &Mdc, reply: &Answer<'_>) -> Result<Self, TargetError> {
        let mut attrs = Attrs::read(reply, 1)?;
        // where other replies have layout and ACL, these have the parents
        (attrs.md, attrs.acl) = (Bytes::new(), Bytes::new());
        Ok(Self {
            attrs,
            dirs: mdc.bodies(reply, 2),
        })
    }

    /// How `dir` looks now, if the reply says.
    pub fn dir(&self, dir: Fid) -> Option<&MdtBody> {
        self.dirs.iter().find(|b| b.fid1 == dir)
    }
}

/// What is to be closed.
pub struct Open {
    /// The file.
    pub fid: Fid,
    /// Where its handle lives.
    pub handle: Arc<AtomicU64>,
    /// Of the open; 0 when it is not kept for replay.
    pub transno: u64,
}

/// An open that is kept for replay.
pub(super) struct KeptOpen {
    /// Where its handle lives.
    pub(super) handle: Weak<AtomicU64>,
    /// A close that names the handle it had then was sent, or is about to be.
    pub(super) closing: bool,
}

impl KeptOpen {
    /// Whether it is this one: after an eviction its number may be another's.
    pub(super) fn is(&self, open: &Open) -> bool {
        std::ptr::eq(self.handle.as_ptr(), Arc::as_ptr(&open.handle))
    }
}

/// A connection to one MDT.
pub struct Mdc {
    /// Index of the MDT.
    pub index: u32,
    target: Arc<ClientObd>,
    /// The data of files it holds.
    data: Arc<Osc>,
    seq: SeqClient,
    /// Opens kept for replay, by transno.
    pub(super) opens: parking_lot::Mutex<HashMap<u64, KeptOpen>>,
    hooks: parking_lot::Mutex<Option<Arc<dyn TargetHooks>>>,
    /// Server cookies of locks on objects that are gone, for the next requests to cancel.
    pub(super) cancels: parking_lot::Mutex<Vec<u64>>,
}

impl Mdc {
    pub(crate) fn new(index: u32, target: Arc<ClientObd>) -> Arc<Self> {
        let data = Osc::of_mdt(index, target.clone());
        let (opens, hooks, cancels) = Default::default();
        Arc::new(Self {
            index,
            target,
            data,
            seq: SeqClient::default(),
            opens,
            hooks,
            cancels,
        })
    }

    /// Who hears of recovery; kept alive here.
    pub(crate) fn set_hooks(&self, hooks: Arc<dyn TargetHooks>) {
        self.target.set_hooks(Arc::downgrade(&hooks));
        *self.hooks.lock() = Some(hooks);
    }

    /// The data of files it holds.
    pub fn data(&self) -> &Arc<Osc> {
        &self.data
    }

    /// Target uuid.
    pub fn uuid(&self) -> &str {
        &self.target.uuid
    }

    /// The import.
    pub fn import(&self) -> &Arc<Import> {
        &self.target.import
    }

    /// Inode-bit and flock locks held from this MDT.
    pub fn namespace(&self) -> &Arc<ClientNamespace> {
        &self.target.namespace
    }

    /// Whether the MDT answers, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.target.is_connected()
    }

    /// Waits until the MDT was connected once.
    pub(crate) async fn met(&self) {
        self.target.met().await;
    }

    /// What the server agreed to.
    pub fn granted(&self) -> Arc<coral_wire::connect::ObdConnectData> {
        self.target.granted()
    }

    /// Both ends are Coral (`coral_wire::coral`).
    pub fn coral(&self) -> bool {
        self.target.coral()
    }

    /// The mdt_bodies of directories a Coral server adds to a reply, in buffers from `from` on.
    pub(super) fn bodies(&self, reply: &Reply, from: usize) -> SmallVec<[MdtBody; 2]> {
        let bufs = if self.coral() {
            &reply.msg.bufs[from.min(reply.msg.bufs.len())..]
        } else {
            &[]
        };
        bufs.iter()
            .filter(|b| b.len() == size_of::<MdtBody>())
            .filter_map(|b| Wire::decode(b).ok())
            .collect()
    }

    /// A time as this MDT wants it in its fields.
    pub(super) fn time(&self, t: Timespec) -> i64 {
        t.to_wire(self.coral())
    }

    /// A time field of a reply.
    pub(crate) fn untime(&self, t: i64) -> Timespec {
        Timespec::from_wire(t, self.coral())
    }

    pub(super) async fn call(&self, rq: Request) -> Result<Answer<'_>, TargetError> {
        ask(self.import(), rq).await
    }

    /// A FID never used before.
    pub async fn new_fid(&self) -> Result<Fid, TargetError> {
        self.seq.next(self.import()).await
    }

    /// FID of the root, or of a subdirectory (no leading slash).
    pub async fn root(&self, path: Option<&str>) -> Result<Fid, TargetError> {
        let mut rq = Request::new(portal::MDS_REQUEST, opc::MDS_GET_ROOT)
            .push(&Ids::root().body(Fid::ZERO, 0));
        rq = match path {
            Some(p) => rq.push_bytes(nul(format!("/{p}").as_bytes())),
            None => rq.push_bytes(Bytes::new()),
        };
        let reply = self.call(rq).await?;
        Ok(reply.get::<MdtBody>(1)?.fid1)
    }

    /// Space of this MDT; with `all`, of the whole file system if the MDT can sum. EAGAIN when it does not answer within
    /// [`STATFS_LIMIT`]: umount(8) asks before it unmounts.
    pub async fn statfs(&self, all: bool) -> Result<ObdStatfs, TargetError> {
        let mut body = MdtBody::default();
        if all {
            body.valid = md::FLAGSTATFS;
        }
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_STATFS)
            .push(&body)
            .limit(STATFS_LIMIT);
        match self.call(rq).await {
            Err(TargetError::NoReply(RpcError::Timeout(call))) => Err(TargetError::Away(call)),
            answer => answer?.get(1),
        }
    }

    /// Attributes by FID, with layout and ACL, under no lock.
    pub async fn getattr(&self, ids: &Ids, fid: Fid) -> Result<Attrs, TargetError> {
        self.getattr_sized(ids, fid, EA_BYTES).await
    }

    pub(super) async fn getattr_sized(
        &self,
        ids: &Ids,
        fid: Fid,
        ea: u32,
    ) -> Result<Attrs, TargetError> {
        let mut body = ids.body(fid, WANT);
        body.eadatasize = ea;
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_GETATTR)
            .push(&body)
            .push_bytes(Bytes::new())
            .concerning(fid);
        let reply = self.call(rq).await?;
        let a = Attrs::read(&reply, 1)?;
        match a.truncated() && ea < BIG_EA_BYTES {
            true => Box::pin(self.getattr_sized(ids, fid, BIG_EA_BYTES)).await,
            false => Ok(a),
        }
    }

    /// Attributes by name, under no lock. ENOENT when there is no such name.
    pub async fn getattr_name(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
    ) -> Result<Attrs, TargetError> {
        let mut body = ids.body(parent, WANT);
        body.eadatasize = EA_BYTES;
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_GETATTR_NAME)
            .push(&body)
            .push_bytes(Bytes::new())
            .push_bytes(nul(name))
            .concerning(parent);
        let reply = self.call(rq).await?;
        let a = Attrs::read(&reply, 1)?;
        match a.truncated() {
            true => self.getattr_sized(ids, a.body.fid1, BIG_EA_BYTES).await,
            false => Ok(a),
        }
    }

    /// Target of a symbolic link.
    pub async fn readlink(&self, ids: &Ids, fid: Fid) -> Result<Bytes, TargetError> {
        let mut body = ids.body(fid, md::LINKNAME);
        body.eadatasize = 4096 + 1;
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_GETATTR)
            .push(&body)
            .push_bytes(Bytes::new())
            .concerning(fid);
        let reply = self.call(rq).await?;
        let a = Attrs::read(&reply, 1)?;
        if a.body.valid & md::LINKNAME == 0 {
            // what readlink(2) says of what is no link
            return Err(reply.refused(Errno::EINVAL));
        }
        let end = a.md.iter().position(|b| *b == 0).unwrap_or(a.md.len());
        Ok(a.md.slice(0..end))
    }

    /// Closes an open, which need not be replayed any more then. `atime`: time of the last read, if any.
    pub async fn close(
        &self,
        open: &Open,
        mode: u32,
        atime: Option<Timespec>,
        size: Option<u64>,
    ) -> Result<(), TargetError> {
        let rec = self.close_rec(open.fid, mode, atime, size);
        self.close_open(open, rec).await.map(drop)
    }

    /// Closes an open of ours that made its file, and sets what was kept back of the file's attributes; ESTALE when the right to that has
    /// ended: it is open still. How the file looks then.
    pub async fn close_setting(
        &self,
        open: &Open,
        ids: &Ids,
        set: &SetattrArgs,
        size: Option<u64>,
    ) -> Result<Attrs, TargetError> {
        let mut rec = RecSetattr {
            bias: KEPT_ATTRS,
            ..self.setattr_rec(ids, open.fid, set)
        };
        if let Some(size) = size {
            rec.size = size;
            rec.valid |= attr::LSIZE;
        }
        Attrs::read(&self.close_open(open, rec).await?, 1)
    }

    async fn close_open(&self, open: &Open, rec: RecSetattr) -> Result<Answer<'_>, TargetError> {
        let mut handle = self.closing(open);
        let mut result = self.close_with(handle, rec).await;
        let stale =
            |r: &Result<Answer<'_>, TargetError>| r.as_ref().is_err_and(|e| e.is(Errno::ESTALE));
        while stale(&result) && handle != open.handle.load(Ordering::Acquire) {
            // the server was restarted meanwhile and gave the open a new handle (a Coral one knows the old one too)
            handle = self.closing(open);
            result = self.close_with(handle, rec).await;
        }
        let still_open = stale(&result) && rec.bias & KEPT_ATTRS != 0;
        if !still_open {
            self.forget_open(open, result.as_ref().map_or(0, |a| a.transno));
        }
        result
    }

    /// Tells a Coral MDT when a file was read last that it was not told of ([`Self::open_untold`]).
    pub async fn read_untold(
        &self,
        fid: Fid,
        mode: u32,
        atime: Timespec,
    ) -> Result<(), TargetError> {
        let rec = self.close_rec(fid, mode, Some(atime), None);
        let rec = RecSetattr {
            bias: UNTOLD_OPEN,
            ..rec
        };
        self.close_with(0, rec).await.map(drop)
    }

    /// What a close tells besides.
    fn close_rec(
        &self,
        fid: Fid,
        mode: u32,
        atime: Option<Timespec>,
        size: Option<u64>,
    ) -> RecSetattr {
        let mut rec = RecSetattr {
            opcode: ReintOp::SETATTR,
            cap: u32::MAX,
            fid,
            mode,
            ..Default::default()
        };
        if let Some(t) = atime {
            rec.atime = self.time(t);
            rec.valid |= attr::ATIME | attr::ATIME_SET;
        }
        if let Some(size) = size {
            rec.size = size;
            rec.valid |= attr::LSIZE;
        }
        rec
    }

    async fn close_with(
        &self,
        open_handle: u64,
        rec: RecSetattr,
    ) -> Result<Answer<'_>, TargetError> {
        let fid = rec.fid;
        let mut rq = Request::new(portal::MDS_READPAGE, opc::MDS_CLOSE)
            .push(&MdtIoepoch {
                open_handle,
                ..Default::default()
            })
            .push(&rec)
            .push_bytes(Bytes::new())
            .concerning(fid)
            .modifying()
            .replayable();
        // others may wait for the lock under which they were kept, and hold every place meanwhile
        rq.urgent = rec.bias & KEPT_ATTRS != 0;
        self.call(rq).await
    }

    /// Everything about the file (or with `Fid::ZERO` the whole MDT) is on disk when this returns.
    pub async fn sync(&self, fid: Fid) -> Result<(), TargetError> {
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_SYNC)
            .push(&Ids::root().body(fid, 0))
            .push_bytes(Bytes::new())
            .concerning(fid);
        self.call(rq).await.map(drop)
    }

    /// Value of one xattr.
    pub async fn getxattr(&self, ids: &Ids, fid: Fid, name: &[u8]) -> Result<Bytes, TargetError> {
        self.xattr_rpc(ids, fid, md::FLXATTR, name).await
    }

    /// Names of all xattrs, each ended by a NUL.
    pub async fn listxattr(&self, ids: &Ids, fid: Fid) -> Result<Bytes, TargetError> {
        self.xattr_rpc(ids, fid, md::FLXATTRLS, b"").await
    }

    async fn xattr_rpc(
        &self,
        ids: &Ids,
        fid: Fid,
        valid: u64,
        name: &[u8],
    ) -> Result<Bytes, TargetError> {
        let mut body = ids.body(fid, valid);
        body.eadatasize = BIG_EA_BYTES;
        let name = if name.is_empty() {
            Bytes::new()
        } else {
            nul(name)
        };
        let rq = Request::new(portal::MDS_READPAGE, opc::MDS_GETXATTR)
            .push(&body)
            .push_bytes(Bytes::new())
            .push_bytes(name)
            .push_bytes(Bytes::new())
            .push_bytes(Bytes::new())
            .concerning(fid);
        let reply = self.call(rq).await?;
        let body = reply.get::<MdtBody>(1)?;
        let value = reply.msg.buf(2).clone();
        let len = (body.eadatasize as usize).min(value.len());
        Ok(value.slice(0..len))
    }

    /// Removes an object with all of its names, wherever they are (`mdc_rmfid`).
    pub async fn rmfid(&self, ids: &Ids, fid: Fid, now: Timespec) -> Result<(), TargetError> {
        let mut body = ids.body(Fid::ZERO, 0);
        body.ctime = self.time(now);
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_RMFID)
            .push(&body)
            .push(&fid)
            .push_empty()
            .push_empty()
            .concerning(fid);
        let reply = answer(self.import(), rq).await?;
        if let Some(errno) = Errno::from_status(reply.status) {
            return Err(reply.refused(errno));
        }
        let result = i32::decode(reply.msg.buf(3)).map_err(|e| reply.bad(e))?;
        match Errno::from_status(result) {
            Some(errno) => Err(reply.refused(errno)),
            None => Ok(()),
        }
    }

    /// Path number `linkno` of `fid` below `root` (or the file system's root), without leading slash, and the number of the next
    /// when there are more. With a FID, the path is below that directory, and another MDT knows the rest.
    pub async fn fid2path(
        &self,
        fid: Fid,
        root: Fid,
        linkno: u32,
    ) -> Result<(Bytes, Option<u32>, Option<Fid>), TargetError> {
        const KEY: &[u8; 16] = b"fid2path\0\0\0\0\0\0\0\0";
        const PATH_MAX: u32 = 4096;
        let head = GetinfoFid2path {
            fid,
            recno: u64::MAX,
            linkno,
            pathlen: PATH_MAX,
        };
        let mut key = BytesMut::with_capacity(64);
        key.put_slice(KEY);
        key.put_slice(&head.to_bytes());
        key.put_slice(&root.to_bytes());
        let vallen = size_of::<GetinfoFid2path>() as u32 + PATH_MAX;
        let rq = Request::new(portal::MDS_REQUEST, opc::MDS_GET_INFO)
            .push_bytes(key.freeze())
            .push_bytes(Bytes::copy_from_slice(&vallen.to_le_bytes()))
            .concerning(fid);
        let reply = answer(self.import(), rq).await?;
        let elsewhere = reply.status == Errno::EREMOTE.status();
        if let Some(errno) = Errno::from_status(reply.status).filter(|_| !elsewhere) {
            return Err(reply.refused(errno));
        }
        let value = reply.msg.buf(1);
        let text = value
            .get(size_of::<GetinfoFid2path>()..)
            .ok_or_else(|| reply.bad("a path without its header"))?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        let told = GetinfoFid2path::decode(value).map_err(|e| reply.bad(e))?;
        let path = value.slice(size_of::<GetinfoFid2path>()..size_of::<GetinfoFid2path>() + end);
        Ok((
            path,
            (told.linkno > linkno).then_some(told.linkno),
            elsewhere.then_some(told.fid),
        ))
    }
}

/// What every getattr asks for.
pub(crate) const WANT: u64 = md::FLGETATTR
    | md::FLBLOCKS
    | md::FLEASIZE
    | md::FLMODEASIZE
    | md::FLDIREA
    | md::FLACL
    | md::MEA;

impl Attrs {
    /// From a reply whose mdt_body is buffer `at`, layout and ACL behind it.
    pub(crate) fn read(reply: &Answer<'_>, at: usize) -> Result<Self, TargetError> {
        Self::of(&reply.msg, at).map_err(|e| reply.bad(e))
    }

    /// The same of a message.
    pub(super) fn of(msg: &Message, at: usize) -> Result<Self, DecodeError> {
        let body = msg.get::<MdtBody>(at)?;
        let md = msg.buf(at + 1);
        let acl = msg.buf(at + 2);
        let aclsize = (body.aclsize as usize).min(acl.len());
        let acl = if body.valid & md::FLACL != 0 {
            acl.slice(0..aclsize)
        } else {
            Bytes::new()
        };
        let easize = match body.valid & (md::FLEASIZE | md::FLDIREA | md::LINKNAME) {
            0 => 0,
            _ => (body.eadatasize as usize).min(md.len()),
        };
        Ok(Self {
            body,
            md: md.slice(0..easize),
            acl,
        })
    }

    /// The layout did not fit into the room asked for.
    pub(super) fn truncated(&self) -> bool {
        self.body.valid & md::FLEASIZE != 0 && self.md.len() < self.body.eadatasize as usize
    }
}

/// Bytes with a terminating NUL.
pub(crate) fn nul(s: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(s.len() + 1);
    b.put_slice(s);
    b.put_u8(0);
    b.freeze()
}
