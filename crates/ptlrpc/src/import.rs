//! A client's connection to one target.

use std::sync::Arc;

use bytes::Bytes;
use coral_lnet::{Nid, Node};
use coral_wire::connect::ObdConnectData;
use futures_util::future::BoxFuture;

use crate::{ConnectError, ImportConfig, ImportState, Reply, Request, RpcError, RpcStats};

/// What an import tells its owner about recovery. All methods have empty defaults.
pub trait ImportObserver: Send + Sync + 'static {
    /// The server evicted us: drop locks and caches, fail what is dirty. New requests wait until this returns.
    fn on_evicted(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    /// The server restarted: replay every lock with [`Import::call_in_recovery`].
    fn replay_locks(&self, import: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        let _ = import;
        Box::pin(async { Ok(()) })
    }
    /// An open was replayed; the reply has its new handle. `transno` names it as in [`Import::amend_replay`].
    fn open_replayed(&self, transno: u64, reply: &Reply) {
        let _ = (transno, reply);
    }
    /// Requests flow again after a lost connection.
    fn on_recovered(&self) {}
    /// The connection is lost.
    fn on_disconnected(&self) {}
}

/// A client's connection to one target.
pub struct Import {
    _todo: (),
}

impl Import {
    /// An import in state NEW.
    pub fn new(node: Arc<Node>, cfg: ImportConfig) -> Arc<Import> {
        let _ = (node, cfg);
        todo!()
    }

    /// Connects: tries the NIDs in turn. Once connected, the import reconnects by itself for ever.
    pub async fn connect(self: &Arc<Self>) -> Result<ObdConnectData, ConnectError> {
        todo!()
    }

    /// Sends a request and waits for its reply, over lost connections and restarts of the server. `Ok` also for a negative
    /// status. Dropping the future abandons the wait.
    pub async fn call(self: &Arc<Self>, rq: Request) -> Result<Reply, RpcError> {
        let _ = rq;
        todo!()
    }

    /// Sends a request while the import recovers (lock replay): once, without waiting for FULL, with REQ_REPLAY_DONE.
    pub async fn call_in_recovery(self: &Arc<Self>, rq: Request) -> Result<Reply, RpcError> {
        let _ = rq;
        todo!()
    }

    /// Says goodbye to the server and closes the import. Waiting calls fail.
    pub async fn disconnect(self: &Arc<Self>) {
        todo!()
    }

    /// State now.
    pub fn state(&self) -> ImportState {
        todo!()
    }

    /// What the server granted at the last connect.
    pub fn granted(&self) -> ObdConnectData {
        todo!()
    }

    /// Our handle: `pb_handle` of every AST for this import.
    pub fn handle_cookie(&self) -> u64 {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> RpcStats {
        todo!()
    }

    /// NID of the server we are connected to, or tried last.
    pub fn peer_nid(&self) -> Nid {
        todo!()
    }

    /// Target uuid.
    pub fn target_uuid(&self) -> &str {
        todo!()
    }

    /// The node we live on.
    pub fn node(&self) -> &Arc<Node> {
        todo!()
    }

    /// Sets who is told about recovery.
    pub fn set_observer(&self, o: Arc<dyn ImportObserver>) {
        let _ = o;
        todo!()
    }

    /// Sets the in-flight limit.
    pub fn set_max_in_flight(&self, n: usize) {
        let _ = n;
        todo!()
    }

    /// The file of the open with this transno is closed and the close has been replied to: the open is dropped once
    /// everything up to now is committed.
    pub fn forget_open(&self, transno: u64) {
        let _ = transno;
        todo!()
    }

    /// Replaces the buffers (after the body) of a request kept for replay, e.g. to put the FID and handle of the first reply
    /// into an open. Nothing happens when it is not kept any more.
    pub fn amend_replay(&self, transno: u64, bufs: Vec<Bytes>) {
        let _ = (transno, bufs);
        todo!()
    }

    /// Number of evictions so far: what was learned under an older number is void.
    pub fn generation(&self) -> u64 {
        todo!()
    }
}
