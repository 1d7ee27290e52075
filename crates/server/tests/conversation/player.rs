//! Says the client's part again, in its order, and hands every reply and every callback to the comparison.
//!
//! A request goes out when everything that stands before it in the recording has happened: replies that had come have come
//! from us too. A lock we ask back is given back when the recorded client gave it back, or when a reply is stuck without.
//! A reply that does not come in its place is waited for until the operation ends. At the mark `restart` our servers lose
//! power; what they keep is what the recorded ones had on disk.

use super::adapt;
use super::batch;
use super::callbacks::Callback;
use super::commits::Commits;
use super::compare::{self, Difference};
use super::conversation::{Event, Kind};
use super::lost::Lost;
use super::rig::{Rig, SERVER};
use super::second::Second;
use super::table::Table;
use super::values::Values;
use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{GetOffer, PutExpectation};
use coral_wire::formats::{self, Field, Format};
use coral_wire::ldlm::{LdlmReply, LdlmRequest};
use coral_wire::ptlrpc::{
    BODY_ONLY_SIZE, MSG_CONNECT_INITIAL, MSG_REPLAY, MSGHDR_AT_SUPPORT, Message, PtlrpcBody, opc,
    portal,
};
use coral_wire::{Wire, raw};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::sleep;

/// On the paused clock: long enough for anything that still moves by itself.
const STUCK: Duration = Duration::from_secs(2);
/// On the paused clock: whatever can be done now is done when it is over.
const SETTLED: Duration = Duration::from_millis(1);

/// A request under way.
struct Pending {
    format: &'static Format,
    opcode: u32,
    /// The recorded handle it was sent with, and whether as a replay.
    handle: u64,
    replay: bool,
    replies: Vec<PutExpectation>,
    /// Early replies may come.
    early: bool,
    bulk: Vec<(u64, PutExpectation)>,
    _offers: Vec<GetOffer>,
    /// Cookie of the lock asked for, and the handle it was asked with.
    lock: Option<(u64, u64)>,
    /// The same cookies of a batch.
    batched: Vec<u64>,
    /// The handle it was sent with.
    sent_with: u64,
    /// The target a connect asks for.
    uuid: Option<String>,
}

/// How much was played.
#[derive(Default)]
pub struct Counts {
    pub sent: usize,
    pub not_sent: usize,
    pub compared: usize,
    pub callbacks: usize,
    pub fields: usize,
}

pub struct Player<'a> {
    rig: &'a mut Rig,
    table: &'a mut Table,
    values: Values,
    commits: Commits,
    lost: Lost,
    second: Option<Second>,
    pending: HashMap<u64, Pending>,
    /// Recorded replies that ours did not come with.
    owed: Vec<(Pending, Event)>,
    /// Recorded bulk by match bits.
    bulk: HashMap<u64, Bytes>,
    /// Locks we gave: client's cookie to (our cookie, our handle of the connection).
    locks: HashMap<u64, (u64, u64)>,
    /// Our handle for each OST.
    osts: BTreeMap<u32, u64>,
    operation: String,
    pub operations: Vec<String>,
    /// Of this operation.
    recorded_callbacks: Vec<Callback>,
    pub counts: Counts,
    next_xid: u64,
}

impl<'a> Player<'a> {
    pub fn new(rig: &'a mut Rig, table: &'a mut Table) -> Player<'a> {
        Player {
            rig,
            table,
            values: Values::default(),
            commits: Commits::default(),
            lost: Lost::default(),
            second: None,
            pending: HashMap::new(),
            owed: Vec::new(),
            bulk: HashMap::new(),
            locks: HashMap::new(),
            osts: BTreeMap::new(),
            operation: String::new(),
            operations: Vec::new(),
            recorded_callbacks: Vec::new(),
            counts: Counts::default(),
            next_xid: 1 << 62,
        }
    }

    /// Lets a client that the recording does not hear do what its callbacks tell of.
    pub async fn with_second(mut self) -> Player<'a> {
        self.second = Some(Second::connect(self.rig.server()).await);
        self
    }

    pub async fn play(&mut self, events: &[Event]) {
        self.rig.callbacks.learn(events);
        self.connect_before(events).await;
        let restart = events
            .iter()
            .position(|e| e.kind == Kind::Operation && &e.bytes[..] == b"restart");
        self.commits.look_ahead(&events[..restart.unwrap_or(0)]);
        for (i, e) in events.iter().enumerate() {
            match e.kind {
                Kind::Operation => {
                    self.begin(String::from_utf8_lossy(&e.bytes).into_owned())
                        .await
                }
                Kind::Request => self.request(e, &events[i + 1..]).await,
                Kind::Reply => self.reply(e).await,
                Kind::Callback => self.callback(e, events).await,
                Kind::CallbackReply => {}
                Kind::Bulk => drop(self.bulk.insert(e.bits, e.bytes.clone())),
            }
        }
        self.begin(String::new()).await;
    }

    fn differs(&mut self, what: String, theirs: impl ToString, ours: impl ToString) {
        self.table.take(
            &self.operation,
            &Difference {
                what,
                theirs: theirs.to_string(),
                ours: ours.to_string(),
            },
        );
    }

    /// Ends the operation before: its callbacks are compared as a whole.
    async fn begin(&mut self, name: String) {
        sleep(SETTLED).await;
        self.owed_replies().await;
        for (p, _) in std::mem::take(&mut self.owed) {
            self.differs(format!("{} no reply", p.format.name), "", "");
        }
        self.compare_callbacks();
        if name == "restart" {
            self.second = None;
            self.pending.clear();
            self.rig.restart().await;
        }
        self.operation = name.clone();
        self.operations.push(name);
    }

    /// Connections that were made before the recording began: later requests for the same tell what they were to.
    async fn connect_before(&mut self, events: &[Event]) {
        let mut granted = Vec::new();
        for e in events {
            let Ok(mut m) = Message::decode(e.bytes.clone()) else {
                continue;
            };
            let Ok(body) = m.body() else { continue };
            if e.kind == Kind::Reply && is_connect(body.opc) {
                granted.push(body.handle);
            }
            if e.kind != Kind::Request
                || !is_connect(body.opc)
                || body.handle == 0
                || granted.contains(&body.handle)
            {
                continue;
            }
            let used = |e: &&Event| {
                e.kind == Kind::Request
                    && Message::decode(e.bytes.clone())
                        .and_then(|m| m.body())
                        .is_ok_and(|b| b.handle == body.handle)
            };
            let first = events
                .iter()
                .find(used)
                .and_then(|e| Message::decode(e.bytes.clone()).ok()?.body().ok())
                .unwrap_or(body);
            m.set_body(&PtlrpcBody {
                handle: 0,
                op_flags: MSG_CONNECT_INITIAL,
                conn_cnt: first.conn_cnt,
                ..body
            });
            self.next_xid += 64;
            let (now, xid) = (
                Event {
                    bytes: m.encode(),
                    ..e.clone()
                },
                self.next_xid,
            );
            self.request(&Event { bits: xid, ..now }, &[]).await;
            let mut p = self.pending.remove(&xid).expect("sent");
            let ours = first_of(&mut p).await.expect("connected");
            let theirs = PtlrpcBody {
                handle: body.handle,
                ..ours.body().expect("a body")
            };
            self.take_reply(&p, &Message::new(&theirs), &ours).await;
        }
        self.counts = Counts::default();
    }

    async fn callback(&mut self, e: &Event, events: &[Event]) {
        if let Some(second) = &mut self.second {
            second.provoke(e.bits, &self.values, events);
        }
        sleep(SETTLED).await;
        self.recorded_callbacks
            .extend(Callback::decode(e.bytes.clone()));
    }

    fn compare_callbacks(&mut self) {
        let mut ours = std::mem::take(&mut *self.rig.callbacks.arrived.lock());
        for theirs in std::mem::take(&mut self.recorded_callbacks) {
            let Some(at) = ours.iter().position(|o| o.key() == theirs.key()) else {
                let why = if self.lost.called_back(theirs.request.handle(1)) {
                    ": of what was refused"
                } else {
                    ""
                };
                self.differs(
                    format!("{} missing{why}", theirs.name()),
                    format!("{:?}", theirs.request),
                    "",
                );
                continue;
            };
            let ours = ours.remove(at);
            self.counts.callbacks += 1;
            let format = formats::of_request(ours.body.opc, &ours.message).expect("a callback");
            let found = compare::requests(
                format,
                &self.values.translate_message(&theirs.message),
                &ours.message,
                &mut self.counts.fields,
            );
            found
                .iter()
                .for_each(|d| self.table.take(&self.operation, d));
        }
        for extra in ours {
            self.differs(
                format!("{} extra", extra.name()),
                "",
                format!("{:?}", extra.request),
            );
        }
    }

    async fn request(&mut self, e: &Event, later: &[Event]) {
        let theirs = Message::decode(e.bytes.clone()).expect("a recorded request");
        let body = theirs.body().expect("a body");
        let Some(format) = formats::of_request(body.opc, &theirs) else {
            panic!("no format for opcode {}", body.opc)
        };
        let recorded = adapt::reply_to(e, &body, later);
        let reply = recorded.and_then(|r| Message::decode(r.bytes.clone()).ok());
        if self.lost.concerns(body.opc, &theirs) {
            self.counts.not_sent += 1;
            if let Some(reply) = reply {
                self.lost.refused(format, &reply);
            }
            return self.differs(
                format!("{} not sent: of what was refused", format.name),
                "",
                "",
            );
        }
        if body.handle != 0 && !self.values.knows(body.handle) {
            self.counts.not_sent += 1;
            return self.differs(
                format!("{} not sent: no such connection", format.name),
                "",
                "",
            );
        }
        if body.opc == opc::MDS_BATCH && batch::in_bulk(&theirs) {
            self.counts.not_sent += 1;
            let what = format!("{} not sent: its bulk was not recorded", format.name);
            return self.differs(what, "", "");
        }
        let mut ours = self.values.translate_message(&theirs);
        self.steer(&theirs, &mut ours, body.opc);
        let replay = body.flags & MSG_REPLAY != 0;
        if replay {
            self.as_replay(&theirs, format, &mut ours);
        }
        let mut offers = Vec::new();
        match body.opc {
            opc::OST_WRITE => {
                let pieces = adapt::bulk_bits(e, &body).zip(adapt::written(&mut ours));
                offers = pieces
                    .map(|(bits, data)| {
                        self.rig
                            .client
                            .offer_get(portal::OST_BULK, bits, Payload::from(data))
                    })
                    .collect();
            }
            opc::OST_READ => adapt::other_checksum(&mut ours),
            _ => {}
        }
        if let Some(reply) = reply {
            self.rig.place(&self.values.new_homes(format, &reply));
        }
        let bits = recorded.map_or(e.bits, |r| r.bits);
        let node = &self.rig.client;
        let portal_back = portal::reply_of(e.portal).expect("a request portal");
        let mut wanted = vec![e.bits, body.mbits, bits];
        wanted.retain(|b| *b != 0);
        wanted.sort();
        wanted.dedup();
        let replies = wanted
            .iter()
            .map(|b| node.expect_put(portal_back, *b))
            .collect();
        let sink = match body.opc {
            opc::OST_READ => Some(portal::OST_BULK),
            opc::MDS_READPAGE => Some(portal::MDS_BULK),
            opc::MGS_CONFIG_READ => Some(portal::MGS_BULK),
            _ => None,
        };
        let bulk = sink.map_or(vec![], |p| {
            adapt::bulk_bits(e, &body)
                .map(|b| (b, node.expect_put(p, b)))
                .collect()
        });
        let handle = ours.body().map_or(0, |b| b.handle);
        let lock = format
            .request
            .get(1)
            .filter(|_| body.opc == opc::LDLM_ENQUEUE)
            .and_then(|_| LdlmRequest::decode(ours.buf(1)).ok())
            .map(|r| (r.handle(0), handle));
        let batched = batch::cookies(body.opc, &ours);
        let early = theirs.flags & MSGHDR_AT_SUPPORT != 0;
        let uuid = is_connect(body.opc)
            .then(|| String::from_utf8_lossy(raw::c_str(theirs.buf(1))).into_owned());
        self.pending.insert(
            bits,
            Pending {
                format,
                opcode: body.opc,
                handle: body.handle,
                sent_with: handle,
                replay,
                replies,
                early,
                bulk,
                _offers: offers,
                lock,
                batched,
                uuid,
            },
        );
        self.counts.sent += 1;
        let (node, to, portal, data) = (
            node.clone(),
            SERVER.parse().expect("a NID"),
            e.portal,
            ours.encode(),
        );
        let xid = e.bits;
        tokio::spawn(async move { node.put(to, portal, xid, 0, data.into(), false).await });
        tokio::task::yield_now().await;
    }

    /// A replay has the number our server gave, and the layout names our objects.
    fn as_replay(&mut self, theirs: &Message, format: &Format, ours: &mut Message) {
        let (t, o) = (theirs.body().expect("a body"), ours.body().expect("a body"));
        match self.commits.ours(t.handle, t.transno) {
            Some(transno) => ours.set_body(&PtlrpcBody { transno, ..o }),
            None => self.differs(
                format!("{} replayed, and executed by nobody", format.name),
                t.transno,
                "",
            ),
        }
        if let Some(at) = format.request.iter().position(|f| *f == Field::Eadata) {
            adapt::homes(theirs, ours, at, &self.values);
        }
    }

    /// Our MDT may have put an object on the other OST: requests for it go there.
    #[expect(clippy::disallowed_methods, reason = "one lock has the handle")]
    fn steer(&self, theirs: &Message, ours: &mut Message, opcode: u32) {
        let pair = |b: &Bytes, at: usize| {
            Some([
                u64::decode(b.get(at..)?).ok()?,
                u64::decode(b.get(at + 8..)?).ok()?,
            ])
        };
        let b = theirs.buf(1);
        let handle = match opcode {
            opc::LDLM_CANCEL => LdlmRequest::decode(b).ok().and_then(|r| {
                self.locks
                    .values()
                    .find(|l| l.0 == self.values.ours(r.handle(0)))
                    .map(|l| l.1)
            }),
            opc::LDLM_ENQUEUE => pair(b, 16)
                .and_then(|p| self.values.home(p))
                .and_then(|h| self.osts.get(&h).copied()),
            1..=32 => pair(b, 8)
                .or(None)
                .and_then(|p| self.values.home(p))
                .and_then(|h| self.osts.get(&h).copied()),
            _ => None,
        };
        let Ok(mut body) = ours.body() else { return };
        body.handle = handle.unwrap_or(body.handle);
        if self.osts.values().any(|h| *h == body.handle) {
            // two recorded connections are mixed in ours: what one has had replies to says nothing of the other
            body.last_xid = 0;
        }
        ours.set_body(&body);
    }

    async fn reply(&mut self, e: &Event) {
        let Some(mut p) = self.pending.remove(&e.bits) else {
            return;
        };
        let mut ours = first_of(&mut p).await;
        if ours.is_none() {
            self.give_back().await;
            ours = first_of(&mut p).await;
        }
        match ours {
            Some(ours) => self.compare(p, e, &ours).await,
            None => self.owed.push((p, e.clone())),
        }
        self.owed_replies().await;
    }

    /// Replies that come after their place.
    async fn owed_replies(&mut self) {
        for (mut p, e) in std::mem::take(&mut self.owed) {
            match p
                .replies
                .iter_mut()
                .find_map(PutExpectation::try_recv)
                .and_then(|ev| Message::decode(ev.data.copy_to_bytes()).ok())
            {
                Some(ours) => {
                    self.differs(format!("{} later than recorded", p.format.name), "", "");
                    self.compare(p, &e, &ours).await;
                }
                None => self.owed.push((p, e)),
            }
        }
    }

    async fn compare(&mut self, p: Pending, e: &Event, ours: &Message) {
        let theirs = Message::decode(e.bytes.clone()).expect("a recorded reply");
        self.counts.compared += 1;
        self.take_reply(&p, &theirs, ours).await;
        let theirs = self.values.translate_message(&theirs);
        let mut found = compare::replies(p.format, &theirs, ours, &mut self.counts.fields);
        if p.opcode == opc::MDS_BATCH {
            found.retain(|d| !d.what.starts_with("MDS_BATCH BUT_REPLY."));
            for (t, o) in batch::answers(&theirs).iter().zip(batch::answers(ours)) {
                let of_one = compare::replies(batch::FORMAT, t, &o, &mut self.counts.fields);
                found.extend(of_one);
            }
        }
        for (bits, mut sink) in p.bulk {
            let got = sink
                .try_recv()
                .map(|ev| ev.data.copy_to_bytes())
                .unwrap_or_default();
            let was = self
                .bulk
                .remove(&bits)
                .map(|b| self.values.translate(&b))
                .unwrap_or_default();
            match p.opcode {
                opc::MDS_READPAGE => {
                    found.extend(compare::directories(&was, &got, &mut self.counts.fields))
                }
                opc::MGS_CONFIG_READ => {
                    found.extend(compare::nid_tables(&was, &got, &mut self.counts.fields))
                }
                _ => {}
            }
        }
        for d in &found {
            self.table.take(&self.operation, d);
        }
    }

    /// Learns from a pair of replies, and does on disk what the recorded server did.
    async fn take_reply(&mut self, p: &Pending, theirs: &Message, ours: &Message) {
        self.values.learn(p.format, p.opcode, theirs, ours);
        self.note_lock(p, ours);
        if p.opcode == opc::MDS_BATCH {
            let ours = batch::answers(ours);
            for (t, o) in batch::answers(theirs).iter().zip(&ours) {
                self.values.learn(batch::FORMAT, p.opcode, t, o);
            }
            for (cookie, o) in p.batched.iter().zip(&ours) {
                let handle = o.get(1).map_or(0, |r: LdlmReply| r.handle);
                if handle != 0 {
                    self.locks.insert(*cookie, (handle, p.sent_with));
                }
            }
        }
        let (Ok(t), Ok(o)) = (theirs.body(), ours.body()) else {
            return;
        };
        match (
            compare::failure(p.format, theirs) < 0,
            compare::failure(p.format, ours) < 0,
        ) {
            (false, false) => self.lost.given(p.format, theirs, ours),
            (false, true) => self.lost.refused(p.format, theirs),
            _ => {}
        }
        if let Some(uuid) = &p.uuid {
            self.commits.connected(t.handle, uuid);
            self.expect_committed(p, &t, &o);
        }
        if p.replay
            && t.transno != 0
            && self
                .commits
                .ours(p.handle, t.transno)
                .is_some_and(|was| was != o.transno)
        {
            self.differs(
                format!("{} replayed with another transno", p.format.name),
                t.transno,
                o.transno,
            );
        }
        if self.commits.learn(p.handle, &t, &o) {
            let target = self
                .commits
                .target(p.handle)
                .and_then(|uuid| self.rig.target(uuid))
                .expect("a target")
                .clone();
            target.sync().await.expect("synced");
        }
    }

    /// A reconnect tells what was on disk.
    fn expect_committed(&mut self, p: &Pending, theirs: &PtlrpcBody, ours: &PtlrpcBody) {
        if let Some(kept) = self
            .commits
            .ours(theirs.handle, theirs.last_committed)
            .filter(|kept| *kept != ours.last_committed)
        {
            self.differs(
                format!("{} PTLRPC_BODY.last_committed", p.format.name),
                kept,
                ours.last_committed,
            );
        }
    }

    fn note_lock(&mut self, p: &Pending, ours: &Message) {
        let index = p
            .uuid
            .as_ref()
            .and_then(|u| u32::from_str_radix(u.strip_prefix("lfs-OST")?.get(..4)?, 16).ok());
        if let Some(index) = index {
            self.osts.insert(index, ours.body().map_or(0, |b| b.handle));
        }
        if let Some((cookie, handle)) = p.lock
            && let Ok(r) = ours.get::<LdlmReply>(1)
            && r.handle != 0
        {
            self.locks.insert(cookie, (r.handle, handle));
        }
    }

    /// Gives back what our servers ask back and the recorded client did not.
    async fn give_back(&mut self) {
        let asked: Vec<u64> = self
            .rig
            .callbacks
            .arrived
            .lock()
            .iter()
            .map(|c| c.request.handle(0))
            .collect();
        for cookie in asked {
            let Some((lock, handle)) = self.locks.remove(&cookie) else {
                continue;
            };
            let mut m = Message::new(&PtlrpcBody {
                handle,
                conn_cnt: 1,
                ..PtlrpcBody::request(opc::LDLM_CANCEL)
            });
            m.push_bytes(LdlmRequest::cancel(&[lock]).to_bytes());
            self.next_xid += 64;
            let _ = self
                .rig
                .client
                .put(
                    SERVER.parse().expect("a NID"),
                    portal::LDLM_CANCEL_REQUEST,
                    self.next_xid,
                    0,
                    m.encode().into(),
                    false,
                )
                .await;
        }
    }
}

fn is_connect(opcode: u32) -> bool {
    matches!(
        opcode,
        opc::MGS_CONNECT | opc::MDS_CONNECT | opc::OST_CONNECT
    )
}

/// The first message, early replies aside, at any of the places a reply may come to.
async fn first_of(p: &mut Pending) -> Option<Message> {
    let early = p.early;
    let until = tokio::time::Instant::now() + STUCK;
    loop {
        let futures = p.replies.iter_mut().map(|p| Box::pin(p.recv()));
        let (ev, _, _) = tokio::time::timeout_at(until, futures_util::future::select_all(futures))
            .await
            .ok()?;
        if !(early && ev.offset == 0 && ev.data.len() <= BODY_ONLY_SIZE) {
            return Message::decode(ev.data.copy_to_bytes()).ok();
        }
    }
}
