//! Exports: the clients of a target, and what is remembered of their requests (`lustre/obdclass/genops.c`,
//! `lustre/target/tgt_lastrcvd.c`).
//!
//! Invariant: a modifying request is either in progress, or its reply is kept until the client says it has seen it
//! (`pb_last_xid`) or uses the slot again: so a request sent twice is executed once.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use coral_lnet::{KnownBy, Nid};
use coral_ptlrpc::Control;
use coral_wire::ptlrpc::{MSG_REPLAY, Message, PtlrpcBody};
use coral_wire::{ConnectFlags, ConnectFlags2, ObdConnectData};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::nodemap::View;

/// A reply kept for a client that may not have seen it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptReply {
    pub transno: u64,
    pub xid: u64,
    /// The reply.
    pub msg: Message,
    /// Read from disk: what the request left in memory is gone.
    pub from_disk: bool,
}

/// What becomes of a request that has arrived.
#[allow(clippy::large_enum_variant, reason = "lives on the stack of one call")]
#[derive(Debug, PartialEq)]
pub(super) enum ExportAdmission {
    /// Never seen: execute it.
    New,
    /// It belongs to an older connection, or is being executed already: drop it.
    Drop(Dropped),
    /// It was executed: send the reply again.
    Again(KeptReply),
}

/// Why a request is dropped.
#[derive(Debug, PartialEq, Clone, Copy)]
pub(super) enum Dropped {
    /// Of an older connection.
    Stale,
    /// A duplicate of one in progress.
    Duplicate,
    /// Its reply slot is beyond [`TAG_MAX`].
    BadTag,
}

/// Highest reply slot of a client: the most modifying requests a Lustre client can be set to have in flight
/// (`OBD_MAX_RIF_MAX`, lustre/include/obd.h), and one for a close. Each slot keeps a reply.
const TAG_MAX: u16 = 513;

struct ExportState {
    nid: Nid,
    known_by: KnownBy,
    connect: ObdConnectData,
    client_handle: u64,
    conn_cnt: u32,
    last_seen: Instant,
    /// By xid; the hold is there once the request has been taken in.
    in_progress: BTreeMap<u64, Option<Control>>,
    /// Everything up to here has been replied to, and the client knows.
    last_xid: u64,
    replies: BTreeMap<u16, KeptReply>,
    /// Transnos of what was replayed and executed in this recovery.
    replayed: BTreeSet<u64>,
    gone: bool,
}

/// A client as a target knows it.
pub struct Export {
    /// Client uuid.
    pub uuid: String,
    /// Our cookie: `pb_handle` of its requests, and its `ExportId` in coral-ldlm.
    pub cookie: u64,
    /// In-process client (`N@lo`), or a light one: not persisted, never recovered.
    pub local: bool,
    /// What the target keeps per client (MDT: open handles).
    pub ext: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Replies match `pb_mbits` (connect flag REP_MBITS).
    rep_mbits: AtomicBool,
    /// What its nodemap says.
    view: RwLock<View>,
    state: Mutex<ExportState>,
}

/// One connection of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    pub nid: Nid,
    pub known_by: KnownBy,
    pub client_handle: u64,
    pub conn_cnt: u32,
    pub connect: ObdConnectData,
}

impl Export {
    /// A client that connects for the first time.
    pub(super) fn new(uuid: String, cookie: u64, local: bool, c: Connection) -> Export {
        Export::with(uuid, cookie, local, c, BTreeMap::new())
    }

    /// A client known from before a restart.
    pub(super) fn recovered(
        uuid: String,
        cookie: u64,
        nid: Nid,
        connect: ObdConnectData,
        replies: BTreeMap<u16, KeptReply>,
    ) -> Export {
        let c = Connection {
            nid,
            known_by: KnownBy::Nothing,
            client_handle: 0,
            conn_cnt: 0,
            connect,
        };
        Export::with(uuid, cookie, false, c, replies)
    }

    fn with(
        uuid: String,
        cookie: u64,
        local: bool,
        c: Connection,
        replies: BTreeMap<u16, KeptReply>,
    ) -> Export {
        let state = ExportState {
            nid: c.nid,
            known_by: c.known_by,
            connect: c.connect,
            client_handle: c.client_handle,
            conn_cnt: c.conn_cnt,
            last_seen: Instant::now(),
            in_progress: BTreeMap::new(),
            last_xid: 0,
            replies,
            replayed: BTreeSet::new(),
            gone: false,
        };
        let rep_mbits = AtomicBool::new(c.connect.has2(ConnectFlags2::REP_MBITS));
        Export {
            uuid,
            cookie,
            local,
            ext: OnceLock::new(),
            rep_mbits,
            view: RwLock::default(),
            state: Mutex::new(state),
        }
    }

    /// NID it connected from last.
    pub fn nid(&self) -> Nid {
        self.state.lock().nid
    }

    /// How the node is known that it connected from last: what it says of users is worth no more than that.
    pub fn known_by(&self) -> KnownBy {
        self.state.lock().known_by
    }

    /// Which of its ids are believed, and how it knows ours.
    pub fn view(&self) -> View {
        self.view.read().clone()
    }

    /// The client is in another nodemap, or its nodemap is another. Returns whether that is so.
    pub(super) fn set_view(&self, view: View) -> bool {
        let mut mine = self.view.write();
        let differs = *mine != view;
        *mine = view;
        differs
    }

    /// What was granted at the last connect.
    pub fn connect(&self) -> ObdConnectData {
        self.state.lock().connect
    }

    /// The client may not change anything from now on, or may again.
    pub fn set_read_only(&self, on: bool) {
        let flags = &mut self.state.lock().connect.connect_flags;
        *flags = if on {
            *flags | ConnectFlags::RDONLY
        } else {
            ConnectFlags(flags.0 & !ConnectFlags::RDONLY.0)
        };
    }

    /// The client's own handle, `pb_handle` of ASTs.
    pub fn client_handle(&self) -> u64 {
        self.state.lock().client_handle
    }

    /// Count of its current connection.
    pub fn conn_cnt(&self) -> u32 {
        self.state.lock().conn_cnt
    }

    /// Whether it has been disconnected or evicted.
    pub fn gone(&self) -> bool {
        self.state.lock().gone
    }

    /// False when it was gone already.
    pub(super) fn mark_gone(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().gone, true)
    }

    pub(super) fn rep_mbits(&self) -> bool {
        self.rep_mbits.load(Relaxed)
    }

    /// Bulk transfers of requests in progress end: they were for a connection that is no more.
    pub(super) fn abort_bulk(&self) {
        let controls: Vec<Control> = self
            .state
            .lock()
            .in_progress
            .values()
            .flatten()
            .cloned()
            .collect();
        for c in controls {
            c.abort_bulk();
        }
    }

    pub(super) fn last_seen(&self) -> Instant {
        self.state.lock().last_seen
    }

    /// The client connects again. False when the attempt is older than the current connection.
    pub(super) fn reconnect(&self, c: Connection) -> bool {
        let mut s = self.state.lock();
        if c.conn_cnt < s.conn_cnt || s.gone {
            return false;
        }
        self.rep_mbits
            .store(c.connect.has2(ConnectFlags2::REP_MBITS), Relaxed);
        (s.nid, s.known_by) = (c.nid, c.known_by);
        (s.client_handle, s.conn_cnt, s.connect) = (c.client_handle, c.conn_cnt, c.connect);
        s.last_seen = Instant::now();
        true
    }

    /// Decides what becomes of a request, and notes that it is in progress when it is new.
    pub(super) fn admit(&self, body: &PtlrpcBody, xid: u64, now: Instant) -> ExportAdmission {
        let mut s = self.state.lock();
        s.last_seen = now;
        let replay = body.flags & MSG_REPLAY != 0;
        if body.conn_cnt < s.conn_cnt || (!replay && xid <= s.last_xid.max(body.last_xid)) {
            return ExportAdmission::Drop(Dropped::Stale);
        }
        if body.tag > TAG_MAX {
            return ExportAdmission::Drop(Dropped::BadTag);
        }
        if !replay && body.last_xid > s.last_xid {
            s.last_xid = body.last_xid;
            let seen = s.last_xid;
            s.replies.retain(|_, r| r.xid > seen);
        }
        if s.in_progress.contains_key(&xid) {
            return ExportAdmission::Drop(Dropped::Duplicate);
        }
        // What was executed before a restart and is replayed goes to the target: what it left in memory is to be made again.
        if let Some(kept) = s
            .replies
            .values()
            .find(|r| r.xid == xid && !(replay && r.from_disk))
        {
            return ExportAdmission::Again(kept.clone());
        }
        s.in_progress.insert(xid, None);
        ExportAdmission::New
    }

    /// A hold on a request that was admitted.
    pub(super) fn hold(&self, xid: u64, control: Control) {
        if let Some(c) = self.state.lock().in_progress.get_mut(&xid) {
            *c = Some(control);
        }
    }

    /// The hold on a request in progress.
    pub(super) fn held(&self, xid: u64) -> Option<Control> {
        self.state.lock().in_progress.get(&xid).cloned().flatten()
    }

    /// What a kept reply left in memory has been made again.
    pub(super) fn reconstructed(&self, xid: u64, msg: &Message) {
        if let Some(r) = self
            .state
            .lock()
            .replies
            .values_mut()
            .find(|r| r.xid == xid)
        {
            r.from_disk = false;
            r.msg = msg.clone();
        }
    }

    /// The request is answered or dropped.
    pub(super) fn finished(&self, xid: u64) {
        self.state.lock().in_progress.remove(&xid);
    }

    /// Keeps a reply in its slot, unless that of a later request is there: an open that is replayed for ever was answered long
    /// ago, the later one perhaps never.
    pub(super) fn keep(&self, tag: u16, transno: u64, xid: u64, reply: &Message) {
        if self.keeps(tag, xid) {
            let kept = KeptReply {
                transno,
                xid,
                msg: reply.clone(),
                from_disk: false,
            };
            self.state.lock().replies.insert(tag, kept);
        }
    }

    /// Whether the slot takes the reply to this request.
    pub(super) fn keeps(&self, tag: u16, xid: u64) -> bool {
        self.state
            .lock()
            .replies
            .get(&tag)
            .is_none_or(|r| r.xid <= xid)
    }

    /// The replay of `transno` was executed.
    pub(super) fn note_replayed(&self, transno: u64) {
        self.state.lock().replayed.insert(transno);
    }

    /// Whether it was, in this recovery.
    pub(super) fn has_replayed(&self, transno: u64) -> bool {
        self.state.lock().replayed.contains(&transno)
    }

    /// Nothing is replayed any more.
    pub(super) fn recovery_finished(&self) {
        self.state.lock().replayed.clear();
    }
}

/// The exports of a target.
#[derive(Default)]
pub(super) struct Exports {
    by_cookie: HashMap<u64, Arc<Export>>,
    cookies: HashMap<String, u64>,
}

impl Exports {
    /// A client has one export at a time.
    pub(super) fn insert(&mut self, exp: Arc<Export>) {
        self.cookies.insert(exp.uuid.clone(), exp.cookie);
        self.by_cookie.insert(exp.cookie, exp);
    }

    pub(super) fn remove(&mut self, exp: &Export) {
        self.by_cookie.remove(&exp.cookie);
        if self.cookies.get(&exp.uuid) == Some(&exp.cookie) {
            self.cookies.remove(&exp.uuid);
        }
    }

    pub(super) fn of_cookie(&self, cookie: u64) -> Option<Arc<Export>> {
        self.by_cookie.get(&cookie).cloned()
    }

    pub(super) fn of_uuid(&self, uuid: &str) -> Option<Arc<Export>> {
        self.of_cookie(*self.cookies.get(uuid)?)
    }

    pub(super) fn len(&self) -> usize {
        self.by_cookie.len()
    }

    /// In no order.
    #[expect(
        clippy::disallowed_methods,
        reason = "callers sort, or make a set of them"
    )]
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.by_cookie.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> Export {
        let c = Connection {
            nid: Nid(1),
            known_by: KnownBy::Process,
            client_handle: 2,
            conn_cnt: 3,
            connect: ObdConnectData::default(),
        };
        Export::new("u".into(), 9, false, c)
    }

    fn body(conn_cnt: u32, last_xid: u64) -> PtlrpcBody {
        PtlrpcBody {
            conn_cnt,
            last_xid,
            ..PtlrpcBody::request(36)
        }
    }

    #[test]
    fn a_request_sent_twice_is_executed_once() {
        let (e, now) = (export(), Instant::now());
        assert_eq!(e.admit(&body(3, 0), 128, now), ExportAdmission::New);
        assert_eq!(
            e.admit(&body(3, 0), 128, now),
            ExportAdmission::Drop(Dropped::Duplicate)
        );
        e.keep(1, 77, 128, &Message::new(&body(3, 0)));
        e.finished(128);
        assert!(
            matches!(e.admit(&body(3, 0), 128, now), ExportAdmission::Again(k) if k.transno == 77 && !k.from_disk)
        );
        assert_eq!(
            e.admit(
                &PtlrpcBody {
                    tag: TAG_MAX + 1,
                    ..body(3, 0)
                },
                384,
                now
            ),
            ExportAdmission::Drop(Dropped::BadTag)
        );
        // the client has seen it: forgotten, and what comes late of it is dropped
        assert_eq!(e.admit(&body(3, 128), 256, now), ExportAdmission::New);
        assert_eq!(e.state.lock().replies.len(), 0);
        assert_eq!(
            e.admit(&body(3, 0), 128, now),
            ExportAdmission::Drop(Dropped::Stale)
        );
    }

    #[test]
    fn replays_are_old_and_are_executed_once_too() {
        let (e, now) = (export(), Instant::now());
        let replay = PtlrpcBody {
            flags: MSG_REPLAY,
            ..body(3, 0)
        };
        assert_eq!(e.admit(&body(3, 640), 768, now), ExportAdmission::New);
        let kept = KeptReply {
            transno: 5,
            xid: 128,
            msg: Message::new(&body(3, 0)),
            from_disk: true,
        };
        e.state.lock().replies.insert(1, kept);
        assert_eq!(
            e.admit(&replay, 128, now),
            ExportAdmission::New,
            "an open that was committed is opened again"
        );
        e.finished(128);
        e.reconstructed(128, &Message::new(&body(3, 0)));
        assert!(
            matches!(e.admit(&replay, 128, now), ExportAdmission::Again(_)),
            "its reply was lost"
        );
    }

    #[test]
    fn requests_of_an_older_connection_are_dropped() {
        let (e, now) = (export(), Instant::now());
        assert_eq!(
            e.admit(&body(2, 0), 128, now),
            ExportAdmission::Drop(Dropped::Stale)
        );
        let again = Connection {
            nid: Nid(5),
            known_by: KnownBy::ReservedPort,
            client_handle: 2,
            conn_cnt: 4,
            connect: ObdConnectData::default(),
        };
        assert!(e.reconnect(again));
        assert!(
            !e.reconnect(Connection {
                conn_cnt: 3,
                ..again
            }),
            "an attempt overtaken by a later one"
        );
        assert_eq!((e.nid(), e.known_by()), (Nid(5), KnownBy::ReservedPort));
    }
}
