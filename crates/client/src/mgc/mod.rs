//! MGC: the client of the management server. Reads configuration logs and says when they change.
//!
//! Clients of this module: [`crate::llite`] and the servers of `coral-node`, whose targets learn of each other from the same
//! log. Lustre: `lustre/mgc/mgc_request.c`, `lustre/obdclass/obd_config.c`.

mod config;
mod nodemap;

pub use config::{Config, TargetConf};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_ldlm::{LdlmClient, LockHook, LockInfo};
use coral_lnet::Node;
use coral_ptlrpc::{Import, Reply, Request};
use coral_wire::cfg::ConfigLogReader;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, Policy, ResId};
use coral_wire::llog::{LLOG_CHUNK_SIZE, LlogLogHdr, LlogdBody};
use coral_wire::mds::MdtBody;
use coral_wire::mgs::MGS_CFG_T_CONFIG;
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::{Errno, nid::Nid};
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use crate::ask::ask;
use crate::error::TargetError;
use crate::mdc::nul;
use crate::target::{ClientObd, Dialer, Kind};

/// Why the configuration could not be had.
#[derive(Debug, thiserror::Error)]
pub enum MgcError {
    /// No MGS answered in time.
    #[error("no answer from the MGS at {nids}: {reason}")]
    Unreachable {
        /// NIDs tried, comma separated.
        nids: String,
        /// The last failure.
        reason: String,
    },
    /// There is no log of that name.
    #[error("the MGS has no log '{0}'")]
    NoSuchLog(String),
    /// A request failed.
    #[error("{what}: {why}")]
    Failed {
        /// What was asked.
        what: &'static str,
        /// Why it was not answered.
        why: TargetError,
    },
    /// The log does not make sense.
    #[error("log '{log}': {reason}")]
    Bad {
        /// Name of the log.
        log: String,
        /// What is wrong.
        reason: String,
    },
}

/// A connection to the MGS.
pub struct Mgc {
    target: Arc<ClientObd>,
    changed: Arc<Notify>,
    /// Disconnecting: the config lock is given back for good.
    closing: AtomicBool,
}

impl Mgc {
    /// Connects to the first MGS that answers within `limit`, claiming to be of release `version`. `ldlm` is the node's one
    /// callback service.
    pub async fn connect(
        node: Arc<Node>,
        ldlm: Arc<LdlmClient>,
        nids: &[Nid],
        version: u32,
        limit: Duration,
    ) -> Result<Arc<Self>, MgcError> {
        Self::dial(
            &Dialer {
                version,
                ..Dialer::new(node, ldlm, true, false)
            },
            nids,
            limit,
        )
        .await
    }

    /// The same with the client uuid of a mount.
    pub(crate) async fn dial(
        dialer: &Dialer,
        nids: &[Nid],
        limit: Duration,
    ) -> Result<Arc<Self>, MgcError> {
        let target = dialer.target(Kind::Mgs, "MGS", nids);
        target
            .connect(limit)
            .await
            .map_err(|reason| MgcError::Unreachable {
                nids: list(nids),
                reason,
            })?;
        let changed = Arc::new(Notify::new());
        target.namespace.set_hook(Arc::new(ConfigHook {
            changed: changed.clone(),
        }));
        Ok(Arc::new(Self {
            target,
            changed,
            closing: AtomicBool::new(false),
        }))
    }

    /// The import, for MGS_TARGET_REG and other requests.
    pub fn import(&self) -> &Arc<Import> {
        &self.target.import
    }

    /// Reads `<fsname>-client`. [`MgcError::NoSuchLog`] when the MGS does not know the file system.
    pub async fn read_config(&self, fsname: &str) -> Result<Config, MgcError> {
        let log = format!("{fsname}-client");
        let mut reader = ConfigLogReader::new();
        let mut builder = config::ConfigBuilder::new(fsname);
        let bad = |reason: String| MgcError::Bad {
            log: log.clone(),
            reason,
        };
        let opened = match self
            .llog(
                opc::LLOG_ORIGIN_HANDLE_CREATE,
                &LlogdBody::default(),
                Some(&log),
            )
            .await
        {
            Err(MgcError::Failed { why, .. }) if why.is(Errno::ENOENT) => {
                return Err(MgcError::NoSuchLog(log));
            }
            r => r?,
        };
        let mut at = opened
            .msg
            .get::<LlogdBody>(1)
            .map_err(|e| bad(e.to_string()))?;
        let header = self
            .llog(opc::LLOG_ORIGIN_HANDLE_READ_HEADER, &at, None)
            .await?;
        let header = header
            .msg
            .get::<LlogLogHdr>(1)
            .map_err(|e| bad(e.to_string()))?;
        at.cur_offset = LLOG_CHUNK_SIZE as u64;
        while reader.next_index() <= header.tail.index {
            let want = reader.next_index();
            at.index = want;
            at.saved_index = want - 1;
            at.len = LLOG_CHUNK_SIZE as u32;
            let reply = match self
                .llog(opc::LLOG_ORIGIN_HANDLE_NEXT_BLOCK, &at, None)
                .await
            {
                // the end of the log (older servers say EIO)
                Err(MgcError::Failed {
                    why:
                        TargetError::Refused {
                            errno: Errno::EBADR | Errno::EIO,
                            ..
                        },
                    ..
                }) => break,
                r => r?,
            };
            at = reply
                .msg
                .get::<LlogdBody>(1)
                .map_err(|e| bad(e.to_string()))?;
            for r in reader
                .feed(reply.msg.buf(2), |i| header.is_live(i))
                .map_err(|e| bad(e.to_string()))?
            {
                builder.take(&r).map_err(bad)?;
            }
            if reader.next_index() == want {
                break;
            }
        }
        Ok(builder.finish())
    }

    async fn llog(
        &self,
        opcode: u32,
        body: &LlogdBody,
        name: Option<&str>,
    ) -> Result<Reply, MgcError> {
        let mut rq = Request::new(portal::MGS_REQUEST, opcode).push(body);
        if let Some(n) = name {
            let body = MdtBody {
                capability: u32::MAX,
                suppgid: u32::MAX,
                ..Default::default()
            };
            rq = rq.push_bytes(nul(n.as_bytes())).push(&body);
        }
        let what = "reading a configuration log";
        match ask(self.import(), rq).await {
            Ok(answer) => Ok(answer.into_reply()),
            Err(why) => Err(MgcError::Failed { what, why }),
        }
    }

    /// Reads the configuration now and keeps it up to date under the config lock: the receiver changes with the log.
    /// Ends when all receivers, or the MGC, are dropped.
    pub async fn watch_config(
        self: &Arc<Self>,
        fsname: &str,
    ) -> Result<watch::Receiver<Config>, MgcError> {
        let (tx, rx) = watch::channel(self.locked_read(fsname).await?);
        let (me, changed, fsname) = (
            Arc::downgrade(self),
            self.changed.clone(),
            fsname.to_owned(),
        );
        tokio::spawn(async move { follow(me, changed, fsname, tx).await });
        Ok(rx)
    }

    /// Takes the config lock, then reads: a change after that is told by a blocking callback on the lock.
    async fn locked_read(&self, fsname: &str) -> Result<Config, MgcError> {
        let res = ResId::config(fsname, MGS_CFG_T_CONFIG);
        let ns = &self.target.namespace;
        let lock = ns
            .enqueue(
                res,
                LdlmType::PLAIN,
                LdlmMode::CR,
                Policy::Plain,
                LdlmFlags::empty(),
                0,
            )
            .await;
        if let Err(e) = &lock {
            tracing::debug!(error = %e, "no config lock: changes of the configuration will not be noticed");
        }
        let config = self.read_config(fsname).await;
        drop(lock);
        config
    }

    /// Whether it is disconnecting.
    fn closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Drops the locks and disconnects.
    pub async fn disconnect(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        self.target.namespace.cancel_all().await;
        self.import().disconnect().await;
    }
}

impl Drop for Mgc {
    /// Whoever follows the configuration ends.
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// Reads again whenever the config lock was called back.
async fn follow(mgc: Weak<Mgc>, changed: Arc<Notify>, fsname: String, tx: watch::Sender<Config>) {
    loop {
        tokio::select! {
            biased;
            () = changed.notified() => {}
            () = tx.closed() => return,
        }
        let Some(mgc) = mgc.upgrade().filter(|m| !m.closing.load(Ordering::Relaxed)) else {
            return;
        };
        match mgc.locked_read(&fsname).await {
            Ok(c) => {
                tx.send_if_modified(|old| {
                    let differs = *old != c;
                    *old = c;
                    differs
                });
            }
            Err(e) => {
                tracing::warn!(error = %e, fsname, "the configuration changed but cannot be read")
            }
        }
    }
}

/// The config lock goes: the log changes.
struct ConfigHook {
    changed: Arc<Notify>,
}

impl LockHook for ConfigHook {
    fn cancelling(
        &self,
        _lock: &LockInfo,
        _discard: bool,
        _local_only: bool,
    ) -> BoxFuture<'static, ()> {
        self.changed.notify_one();
        Box::pin(async {})
    }

    fn glimpse(&self, _lock: &LockInfo) -> Option<OstLvb> {
        None
    }
}

/// NIDs, comma separated.
pub(crate) fn list(nids: &[Nid]) -> String {
    nids.iter()
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(",")
}
