//! MGS: the target that knows which targets a file system has (`lustre/mgs`).
//!
//! - `table`: registered targets as stored; `registry`: registration, all file systems in memory.
//! - `config`: the `<fs>-client` log made of them; `llog`: the requests that read it.
//! - `nidtbl`: where targets run now, for clients that reconnect after a failover.
//!
//! Invariants:
//! * A registration is stored before it is answered.
//! * The log of a file system is a pure function of its stored targets in order of registration, so a new target only
//!   appends to it and mounted clients may read on from where they were.
//! * Whoever holds the lock of a log that changed is called back (the MGS takes it in EX for a moment).
//!
//! The MGS keeps the nodemaps too (`crate::nodemap`). Coral servers read them with MGS_CONFIG_READ, in a form of our own; Lustre's
//! servers are given none (EINVAL).
//!
//! Absent: `params` (`lctl set_param -P`), pools, security rules, barriers; `<fs>-sptlrpc` does not exist
//! (-ENOENT, as on a real MGS without rules).

mod config;
mod llog;
mod nidtbl;
mod registry;
mod table;

pub use registry::{Count, Registered, Registry, TargetInfo, Who};
pub use table::MGS_TARGETS;

use std::sync::Arc;

use coral_buffers::Payload;
use coral_ldlm::LdlmServer;
use coral_lnet::{Nid, Node};
use coral_osd::{Device, Kv, OsdError};
use coral_wire::connect::{ConnectFlags, ConnectFlags2};
use coral_wire::ldlm::{LdlmMode, LdlmType, Policy, ResId};
use coral_wire::mgs::{
    MGS_CFG_T_CONFIG, MGS_CFG_T_NODEMAP, MGS_CFG_T_RECOVER, MgsConfigBody, MgsConfigRes,
    MgsTargetInfo, ldd,
};
use coral_wire::ptlrpc::{Message, opc, portal};
use coral_wire::raw::c_str;
use coral_wire::{Errno, ObdConnectData, PtlrpcBody, Wire};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::nodemap::{Command, NODEMAP_LOG, Nodemaps, store};
use crate::target::{LuTarget, Membership, TargetConfig, TargetKind, TargetOps, TargetRequest};

/// Name and uuid of the management target.
pub const MGS_NAME: &str = "MGS";

/// Largest answer to MGS_CONFIG_READ in bytes (`CONFIG_READ_NRPAGES_INIT` pages).
const CONFIG_READ_MAX: usize = 1 << 20;

/// Flags granted when asked for (`MGS_CONNECT_SUPPORTED` as far as implemented).
const FLAGS: ConnectFlags = ConnectFlags(
    ConnectFlags::VERSION.0
        | ConnectFlags::AT.0
        | ConnectFlags::FULL20.0
        | ConnectFlags::IMP_RECOV.0
        | ConnectFlags::BULK_MBITS.0
        | ConnectFlags::FLAGS2.0,
);

/// The same of the second word.
const FLAGS2: ConnectFlags2 =
    ConnectFlags2(ConnectFlags2::REP_MBITS.0 | ConnectFlags2::LARGE_NID.0 | ConnectFlags2::CORAL.0);

/// The management target.
pub struct Mgs {
    node: Arc<Node>,
    kv: Device,
    registry: Mutex<Registry>,
    nodemaps: Mutex<Nodemaps>,
    /// Counts changes of what [`Mgs::membership`] says.
    changes: watch::Sender<u64>,
    ldlm: std::sync::OnceLock<Arc<LdlmServer>>,
}

/// A target as an MGS knows it that is not running.
#[derive(Clone, Debug)]
pub struct Known {
    /// `coral-OST0000`.
    pub name: String,
    /// Identity of its formatting; empty when unknown.
    pub identity: String,
    /// Number and cookie of its last registration, when it counts them.
    pub registration: Option<(u32, u64)>,
}

/// The targets in the tables of an MGS.
pub fn known(kv: &dyn Kv) -> Result<Vec<Known>, OsdError> {
    let known = |(fsname, _, s): (String, u32, table::StoredTarget)| Known {
        name: registry::target_name(&fsname, s.kind, s.index),
        identity: s.identity,
        registration: s.registration.map(|r| (r.number, r.cookie)),
    };
    Ok(table::load(kv)?.into_iter().map(known).collect())
}

/// Longest identity of a formatting, in bytes: a uuid.
const IDENTITY_MAX: usize = 64;

fn is_coral(rq: &TargetRequest) -> bool {
    rq.exp.connect().has2(ConnectFlags2::CORAL)
}

/// A message with an empty body, for a reply's buffers.
fn reply_message() -> Message {
    Message::new(&PtlrpcBody::reply(&PtlrpcBody::default(), 0))
}

impl Mgs {
    /// Reads what is registered in `kv`.
    pub fn open(node: Arc<Node>, kv: impl Into<Device>) -> Result<Arc<Mgs>, OsdError> {
        let kv = kv.into();
        let registry = Mutex::new(Registry::load(&*kv)?);
        let nodemaps = Mutex::new(store::load(&*kv)?);
        Ok(Arc::new(Mgs {
            node,
            kv,
            registry,
            nodemaps,
            changes: watch::Sender::default(),
            ldlm: std::sync::OnceLock::new(),
        }))
    }

    /// Opens the MGS and makes it a target with default limits; add it to a [`crate::ServerNode`] afterwards.
    pub fn start(
        node: Arc<Node>,
        kv: impl Into<Device>,
    ) -> Result<(Arc<Mgs>, Arc<LuTarget>), OsdError> {
        let kv = kv.into();
        let mgs = Mgs::open(node.clone(), kv.clone())?;
        let target = LuTarget::new(node, TargetConfig::new(TargetKind::Mgs, MGS_NAME, 0), kv)?;
        mgs.attach(&target);
        target.start(mgs.clone());
        Ok((mgs, target))
    }

    /// Tells the MGS the lock namespace of its target, to call clients back with. Once, before the target starts.
    pub fn attach(&self, target: &Arc<LuTarget>) {
        let _ = self.ldlm.set(target.ldlm().clone());
    }

    /// Names of the file systems known.
    pub fn filesystems(&self) -> Vec<String> {
        self.registry.lock().filesystems()
    }

    /// Targets of a file system in order of registration; empty when unknown.
    pub fn targets(&self, fsname: &str) -> Vec<TargetInfo> {
        self.registry.lock().targets(fsname)
    }

    /// Registers a target, stores that, and calls back clients whose configuration changed.
    pub fn register(&self, info: &MgsTargetInfo, nid_texts: &[u8]) -> Result<MgsTargetInfo, Errno> {
        self.register_as(info, nid_texts, Who::default())
    }

    /// The same for a Coral target.
    pub fn register_as(
        &self,
        info: &MgsTargetInfo,
        nid_texts: &[u8],
        who: Who<'_>,
    ) -> Result<MgsTargetInfo, Errno> {
        let (secs, _) = self.node.wall_time();
        let done = {
            let mut registry = self.registry.lock();
            let mut next = registry.clone();
            let (done, batch) = next.register(info, nid_texts, who, secs)?;
            if who.count.is_some_and(|count| count.asks) {
                return Ok(done.reply);
            }
            if !batch.is_empty() {
                self.kv.commit(batch).map_err(|e| Errno(e.errno()))?;
            }
            let moved = registry.mdt_nids() != next.mdt_nids();
            *registry = next;
            (done, moved)
        };
        let (done, moved) = done;
        if moved {
            self.membership_changed();
        }
        for (changed, kind) in [
            (done.log_changed, MGS_CFG_T_CONFIG),
            (done.nids_changed, MGS_CFG_T_RECOVER),
        ] {
            if changed {
                self.call_back(ResId::config(&done.fsname, kind));
            }
        }
        Ok(done.reply)
    }

    /// The nodemaps, and whom they do not concern: for this node's own targets.
    pub fn membership(&self) -> Membership {
        Membership {
            maps: self.nodemaps.lock().clone(),
            mdts: self.registry.lock().mdt_nids(),
        }
    }

    /// Does what `lctl nodemap_*` asks for, stores that, and calls back the servers that have read the nodemaps.
    pub async fn nodemap_command(&self, command: &Command) -> Result<(), Errno> {
        {
            let mut maps = self.nodemaps.lock();
            let next = maps.with(command)?;
            let stored = store::put(&next)
                .and_then(|batch| self.kv.commit(batch))
                .and_then(|()| self.kv.sync_soon());
            stored.map_err(Errno::from)?;
            *maps = next;
        }
        self.kv.stored().await?;
        self.membership_changed();
        Ok(())
    }

    /// Changes whenever [`Mgs::membership`] says something else: nodemaps, and where MDTs run.
    pub fn membership_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn membership_changed(&self) {
        self.changes.send_modify(|n| *n += 1);
        self.call_back(ResId::config(NODEMAP_LOG, MGS_CFG_T_NODEMAP));
    }

    /// The nodemaps as text, from byte `offset` on. A private form: only ends that agreed on it get it.
    fn nodemap_table(&self, offset: u64, room: usize) -> Result<(Vec<u8>, MgsConfigRes), Errno> {
        let now = self.membership();
        let text = store::encode_membership(&now).map_err(|e| Errno(e.errno()))?;
        let from = usize::try_from(offset)
            .ok()
            .filter(|o| *o <= text.len())
            .ok_or(Errno::EINVAL)?;
        let to = text.len().min(from + room);
        Ok((
            text[from..to].to_vec(),
            MgsConfigRes {
                offset: to as u64,
                size: text.len() as u64,
            },
        ))
    }

    /// Takes the lock of a log in EX and gives it back: every holder is told, reads again and asks for the lock anew.
    fn call_back(&self, res: ResId) {
        let Some(ldlm) = self.ldlm.get().cloned() else {
            return;
        };
        tokio::spawn(async move {
            drop(
                ldlm.lock_local(res, LdlmType::PLAIN, LdlmMode::EX, Policy::Plain, None)
                    .await,
            );
        });
    }

    /// While nodemaps are active a target is registered only from this node, or from one whose nodemap lets it be root and is trusted:
    /// whoever says where targets are has all data, and the nodes of MDTs are believed in ids.
    fn check_registrar(&self, nid: Nid) -> Result<(), Errno> {
        let maps = self.nodemaps.lock();
        if !maps.active || self.node.is_beside(nid) {
            return Ok(());
        }
        let map = maps.of(nid);
        if map.admin && map.trusted {
            return Ok(());
        }
        tracing::warn!(%nid, nodemap = %map.name, "a target is not registered: the nodemap of its node is not both admin and trusted");
        Err(Errno::EPERM)
    }

    /// What was registered is on disk before the target is told: a client that read a configuration without it would take the
    /// target for one that is gone.
    async fn target_reg(&self, rq: &TargetRequest) -> Result<Message, Errno> {
        self.check_registrar(rq.exp.nid())?;
        let info = MgsTargetInfo::decode(rq.buf(1)).map_err(|_| Errno::EPROTO)?;
        let identity = if is_coral(rq) { c_str(rq.buf(3)) } else { b"" };
        let identity = std::str::from_utf8(identity)
            .ok()
            .filter(|i| i.len() <= IDENTITY_MAX)
            .ok_or(Errno::EPROTO)?;
        let count = match is_coral(rq) && !rq.buf(4).is_empty() {
            true => Some(count_of(rq.buf(4)).ok_or(Errno::EPROTO)?),
            false => None,
        };
        let who = Who { identity, count };
        let reply = self.register_as(&info, rq.buf(2), who)?;
        self.kv.sync().await?;
        let mut m = reply_message();
        m.push(&reply);
        Ok(m)
    }

    /// What goes with a refused registration to a Coral target: where the target runs that has its index.
    fn holder(&self, rq: &TargetRequest, e: Errno) -> Option<Message> {
        if e != Errno::EADDRINUSE || rq.rq.body.opc != opc::MGS_TARGET_REG || !is_coral(rq) {
            return None;
        }
        let mut info = MgsTargetInfo::decode(rq.buf(1)).ok()?;
        let nids = self.registry.lock().holder(&info)?;
        info.flags |= ldd::ERROR;
        info.nids = Default::default();
        info.nid_count = nids.len().min(info.nids.len()) as u32;
        info.nids
            .iter_mut()
            .zip(&nids)
            .for_each(|(to, nid)| *to = *nid);
        let mut m = reply_message();
        m.push(&info);
        Some(m)
    }

    /// MGS_CONFIG_READ: the nid table goes in bulk, its versions in the reply.
    async fn config_read(&self, rq: &TargetRequest) -> Result<Message, Errno> {
        let body = MgsConfigBody::decode(rq.buf(1)).map_err(|_| Errno::EPROTO)?;
        let (data, res) = match body.r#type {
            MGS_CFG_T_NODEMAP if is_coral(rq) => self.nodemap_table(body.offset, room(&body))?,
            _ => self.nid_table(&body)?,
        };
        let bulk = vec![Payload::from(data)];
        rq.rq
            .bulk_write_to_client(portal::MGS_BULK, bulk)
            .await
            .map_err(|_| Errno::EINPROGRESS)?;
        let mut m = reply_message();
        m.push(&res);
        Ok(m)
    }

    fn nid_table(&self, body: &MgsConfigBody) -> Result<(Vec<u8>, MgsConfigRes), Errno> {
        if body.r#type != MGS_CFG_T_RECOVER {
            return Err(Errno::EINVAL);
        }
        let (unit, room) = (unit(body), room(body));
        let name = std::str::from_utf8(c_str(&body.name)).map_err(|_| Errno::EINVAL)?;
        let fsname = name
            .strip_suffix("-cliir")
            .or(name.strip_suffix("-mdtir"))
            .ok_or(Errno::EINVAL)?;
        let registry = self.registry.lock();
        registry.nid_table(fsname).ok_or(Errno::ENOENT)?.read(
            body.offset,
            body.rec_nid_size,
            unit,
            room,
        )
    }

    async fn answer(&self, rq: &TargetRequest) -> Result<Message, Errno> {
        match rq.rq.body.opc {
            op @ (opc::LLOG_ORIGIN_HANDLE_CREATE
            | opc::LLOG_ORIGIN_HANDLE_READ_HEADER
            | opc::LLOG_ORIGIN_HANDLE_NEXT_BLOCK
            | opc::LLOG_ORIGIN_HANDLE_PREV_BLOCK) => {
                llog::answer(&self.registry.lock(), op, &rq.rq.msg)
            }
            opc::MGS_TARGET_REG => self.target_reg(rq).await,
            opc::MGS_CONFIG_READ => self.config_read(rq).await,
            opc::MGS_TARGET_DEL | opc::MGS_SET_INFO => Err(Errno::EOPNOTSUPP),
            opc::MGS_EXCEPTION => Ok(reply_message()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// How a Coral target counts its registrations: number, cookie, whether it is known to go back to an older state, and whether it
/// only asks, 8 bytes each.
pub(crate) fn count_bytes(count: Count) -> Vec<u8> {
    let (older, asks) = (count.older.into(), count.asks.into());
    let words = [count.number.into(), count.cookie, older, asks];
    words.map(u64::to_le_bytes).concat()
}

fn count_of(bytes: &[u8]) -> Option<Count> {
    let word = |at| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Count {
        number: word(0)?.try_into().ok()?,
        cookie: word(8)?,
        older: word(16)? != 0,
        asks: word(24)? != 0,
    })
}

/// Bytes of one unit of what a client reads.
fn unit(body: &MgsConfigBody) -> usize {
    1usize
        .checked_shl(body.bits.min(20) as u32)
        .unwrap_or(0)
        .min(4096)
}

/// Bytes a client has room for.
fn room(body: &MgsConfigBody) -> usize {
    (body.units as usize)
        .saturating_mul(unit(body))
        .min(CONFIG_READ_MAX)
}

impl TargetOps for Mgs {
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        Ok(ObdConnectData {
            connect_flags: asked.connect_flags & FLAGS,
            connect_flags2: asked.connect_flags2 & FLAGS2,
            ..Default::default()
        })
    }

    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match self.answer(&rq).await {
                Ok(m) => rq.reply(0, m).await,
                Err(e) => match self.holder(&rq, e) {
                    Some(m) => rq.reply(e.status(), m).await,
                    None => rq.fail(e).await,
                },
            }
        })
    }

    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        // nothing of the MGS is asked for by intent
        Box::pin(rq.fail(Errno::EPROTO))
    }
}
