//! Connect, reconnect and disconnect (`target_handle_connect` in `lustre/ldlm/ldlm_lib.c`).

use std::sync::Arc;

use coral_lnet::Nid;
use coral_osd::Batch;
use coral_ptlrpc::ServerRequest;
use coral_ptlrpc::alive::{self, Life};
use coral_wire::ptlrpc::{
    MSG_CONNECT_INITIAL, MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING, MSG_CONNECT_REPLAYABLE,
    Message, PtlrpcBody,
};
use coral_wire::{ConnectFlags, ConnectFlags2, Errno, ObdConnectData};

use super::export::{Connection, Export};
use super::{LuTarget, TargetKind, last_rcvd};

/// Longest uuid, bytes.
const UUID_MAX: usize = 40;
/// Clients of one target. Lustre has no such limit below its bitmap of 128 Ki slots; each costs us about 1 KiB and a record.
const EXPORTS_MAX: usize = 65_536;

/// A connect request taken apart.
struct Asked {
    uuid: String,
    connection: Connection,
    initial: bool,
}

impl Asked {
    fn decode(rq: &ServerRequest) -> Result<Asked, Errno> {
        let uuid = String::from_utf8_lossy(rq.msg.str(2)).into_owned();
        if uuid.is_empty() || uuid.len() > UUID_MAX {
            return Err(Errno::EINVAL);
        }
        let client_handle = rq.msg.get::<u64>(3).map_err(|_| Errno::EPROTO)?;
        let connect = ObdConnectData::decode_any(rq.msg.buf(4)).map_err(|_| Errno::EPROTO)?;
        let connection = Connection {
            nid: rq.from,
            known_by: rq.known_by,
            client_handle,
            conn_cnt: rq.body.conn_cnt,
            connect,
        };
        Ok(Asked {
            uuid,
            connection,
            initial: rq.body.op_flags & MSG_CONNECT_INITIAL != 0,
        })
    }
}

impl LuTarget {
    /// Answers a connect; the export it led to, when there is one, is to be reachable by its cookie at once.
    /// A client that must be recovered is known on disk, safe from power loss, before it is told so.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        rq: &ServerRequest,
    ) -> Result<(Arc<Export>, Message), Errno> {
        let before = self.stats.connects.value();
        let (exp, msg) = self.connect_now(rq)?;
        if self.stats.connects.value() != before && !exp.local && self.cfg.kind != TargetKind::Mgs {
            self.sync_with(false).await.map_err(|e| Errno(e.errno()))?;
        }
        // What it is told to be committed is.
        self.stored().await?;
        Ok((exp, msg))
    }

    fn connect_now(self: &Arc<Self>, rq: &ServerRequest) -> Result<(Arc<Export>, Message), Errno> {
        let mut asked = Asked::decode(rq)?;
        self.let_in(&asked)?;
        let has = u64::from(asked.connection.connect.grant);
        let mut granted = self.grant(&asked.connection.connect)?;
        self.check_read_only(asked.connection.nid, &asked.connection.connect, &granted)?;
        asked.connection.connect = granted;
        // One at a time: two first connects of one client make one export.
        let _one = self.connecting.lock();
        let known = self.exports.lock().of_uuid(&asked.uuid);
        let ((exp, mut flags), back) = match known {
            // The reply to a first connect was lost: it is the same client still.
            Some(exp)
                if !asked.initial || exp.client_handle() == asked.connection.client_handle =>
            {
                (self.reconnected(exp, &asked)?, !asked.initial)
            }
            Some(old) => {
                self.evict(old.cookie, "the client started anew");
                ((self.connected(&asked)?, 0), false)
            }
            None => ((self.connected(&asked)?, 0), false),
        };
        self.classify(&exp);
        if granted.has(ConnectFlags::GRANT) {
            let has = back.then_some(has);
            granted.grant = u32::try_from(self.ops().book_grant(&exp, has)).unwrap_or(u32::MAX);
        }
        if self.cfg.kind != TargetKind::Mgs {
            flags |= MSG_CONNECT_REPLAYABLE;
        }
        let body = PtlrpcBody {
            handle: exp.cookie,
            op_flags: flags,
            last_committed: self.last_committed(),
            transno: 0,
            ..PtlrpcBody::reply(&rq.body, 0)
        };
        let mut msg = Message::new(&body);
        msg.push(&granted);
        Ok((exp, msg))
    }

    /// Whether whoever connects may be a client, by how its node is known. The acceptor has judged those who came to it; this
    /// judges those whom we have called ourselves. Keys would be judged here.
    fn let_in(&self, asked: &Asked) -> Result<(), Errno> {
        let (accept, known_by) = (self.node.accept(), asked.connection.known_by);
        if accept.admits(known_by) {
            return Ok(());
        }
        tracing::warn!(target = %self.cfg.name, client = %asked.uuid, nid = %asked.connection.nid, ?known_by, "a client is refused: --accept {accept} does not take it; --accept all would");
        Err(Errno::EACCES)
    }

    /// EROFS for a client that would write, when its nodemap lets it read only: it tries again without (`tgt_connect` in
    /// `lustre/target/tgt_handler.c`). One of ours is let in, and refused what it may not do.
    fn check_read_only(
        &self,
        nid: Nid,
        asked: &ObdConnectData,
        granted: &ObdConnectData,
    ) -> Result<(), Errno> {
        let read_only = self
            .view_of(nid, asked)
            .map()
            .is_some_and(|m| m.readonly_mount);
        let told = granted.has(ConnectFlags::RDONLY) || granted.has2(ConnectFlags2::CORAL);
        if read_only && !told && self.cfg.kind == TargetKind::Mdt {
            Err(Errno::EROFS)
        } else {
            Ok(())
        }
    }

    fn grant(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        let mut granted = self.ops().connect_data(asked)?;
        granted.connect_flags &= asked.connect_flags;
        granted.connect_flags2 &= asked.connect_flags2;
        if granted.has(ConnectFlags::VERSION) {
            granted.version = self.claimed();
        }
        if granted.instance == 0 {
            granted.instance = self.instance;
        }
        if granted.index == 0 {
            granted.index = self.cfg.index;
        }
        Ok(granted)
    }

    /// A known client is back.
    fn reconnected(
        self: &Arc<Self>,
        exp: Arc<Export>,
        asked: &Asked,
    ) -> Result<(Arc<Export>, u32), Errno> {
        let recovering = self.in_recovery();
        // Nothing is known of the connection before a restart: a client that is told it came back to this one goes on with
        // the replay of an earlier recovery, and leaves out opens (`ptlrpc_connect_interpret`).
        let back = if exp.client_handle() == 0 {
            0
        } else {
            MSG_CONNECT_RECONNECT
        };
        if !exp.reconnect(asked.connection) {
            return Err(Errno::EALREADY);
        }
        exp.abort_bulk();
        self.stats.reconnects.inc();
        tracing::info!(target = %self.cfg.name, client = %exp.uuid, nid = %asked.connection.nid, recovering, "client reconnected");
        if recovering {
            self.client_came(exp.cookie);
        }
        Ok((
            exp,
            back | if recovering {
                MSG_CONNECT_RECOVERING
            } else {
                0
            },
        ))
    }

    /// A client not seen before; refused while others are being recovered.
    fn connected(self: &Arc<Self>, asked: &Asked) -> Result<Arc<Export>, Errno> {
        let light = asked.connection.connect.has(ConnectFlags::LIGHTWEIGHT);
        if self.in_recovery() && !light {
            return Err(Errno::EBUSY);
        }
        if self.exports.lock().len() >= EXPORTS_MAX {
            tracing::warn!(target = %self.cfg.name, limit = EXPORTS_MAX, "a new client is refused: too many clients");
            return Err(Errno::EBUSY);
        }
        let nid = asked.connection.nid;
        // a light client is waited for no more than one of this process (`OBD_CONNECT_LIGHTWEIGHT`)
        let local = light || self.node.is_beside(nid);
        let exp = Arc::new(Export::new(
            asked.uuid.clone(),
            self.node.next_cookie(),
            local,
            asked.connection,
        ));
        if !local && self.cfg.kind != TargetKind::Mgs {
            let mut batch = Batch::new();
            last_rcvd::put_client(&mut batch, &exp.uuid, &asked.connection.connect);
            last_rcvd::put_place(
                &mut batch,
                &exp.uuid,
                nid,
                alive::look(&exp.uuid, nid) == Life::Runs,
            );
            self.kv.commit(batch).map_err(|e| Errno(e.errno()))?;
        }
        self.exports.lock().insert(exp.clone());
        self.stats.connects.inc();
        tracing::debug!(target = %self.cfg.name, client = %exp.uuid, %nid, "client connected");
        Ok(exp)
    }

    /// The client leaves. It is forgotten on disk before it is told so: who has said goodbye is not waited for after a loss of power.
    pub(crate) async fn disconnect(self: &Arc<Self>, exp: Arc<Export>) {
        if !self.unlink(&exp) {
            return;
        }
        tracing::debug!(target = %self.cfg.name, client = %exp.uuid, "client disconnected");
        let kept = !exp.local && self.cfg.kind != TargetKind::Mgs;
        self.clone().give_back(exp, false).await;
        if kept && let Err(error) = self.sync_with(false).await {
            tracing::error!(target = %self.cfg.name, %error, "forgetting a client");
        }
    }
}

/// The target uuid a connect request asks for.
pub(crate) fn wanted_uuid(rq: &ServerRequest) -> String {
    String::from_utf8_lossy(rq.msg.str(1)).into_owned()
}
