//! Says the client's part again, in its order, and hands every reply to the comparison.
//!
//! A request goes out when everything that stands before it in the recording has happened: replies that had come have come
//! from us too. A lock we ask back is given back when the recorded client gave it back, or when a reply is stuck without.

use super::compare::{self, Difference};
use super::conversation::{Event, Kind};
use super::rig::{Rig, SERVER};
use super::table::Table;
use super::values::Values;
use bytes::Bytes;
use coral_lnet::{GetOffer, Payload, PutExpectation};
use coral_wire::formats::{self, Format};
use coral_wire::ldlm::{LdlmReply, LdlmRequest};
use coral_wire::ost::{CksumType, NiobufRemote, OBD_FL_CKSUM_MASK, ObdFlags, Obdo, md};
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc, portal};
use coral_wire::{Wire, raw};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::timeout;

/// On the paused clock: long enough for anything that still moves by itself.
const STUCK: Duration = Duration::from_secs(2);

/// A request under way.
struct Pending {
    format: &'static Format,
    opcode: u32,
    replies: Vec<PutExpectation>,
    bulk: Vec<(u64, PutExpectation)>,
    _offers: Vec<GetOffer>,
    /// Cookie of the lock asked for, and the handle it was asked with.
    lock: Option<(u64, u64)>,
}

pub struct Player<'a> {
    rig: &'a Rig,
    table: &'a mut Table,
    values: Values,
    pending: HashMap<u64, Pending>,
    /// Recorded bulk by match bits.
    bulk: HashMap<u64, Bytes>,
    /// Locks we gave: client's cookie to (our cookie, our handle of the connection).
    locks: HashMap<u64, (u64, u64)>,
    /// Our handle for each OST.
    osts: HashMap<u32, u64>,
    operation: String,
    pub operations: Vec<String>,
    recorded_callbacks: BTreeMap<String, i32>,
    pub compared: usize,
    pub sent: usize,
    pub not_sent: usize,
    next_xid: u64,
}

impl<'a> Player<'a> {
    pub fn new(rig: &'a Rig, table: &'a mut Table) -> Player<'a> {
        Player {
            rig,
            table,
            values: Values::default(),
            pending: HashMap::new(),
            bulk: HashMap::new(),
            locks: HashMap::new(),
            osts: HashMap::new(),
            operation: String::new(),
            operations: Vec::new(),
            recorded_callbacks: BTreeMap::new(),
            compared: 0,
            sent: 0,
            not_sent: 0,
            next_xid: 1 << 62,
        }
    }

    pub async fn play(&mut self, events: &[Event]) {
        for (i, e) in events.iter().enumerate() {
            match e.kind {
                Kind::Operation => self.begin(String::from_utf8_lossy(&e.bytes).into_owned()),
                Kind::Request => self.request(e, &events[i + 1..]).await,
                Kind::Reply => self.reply(e).await,
                Kind::Callback => self.note_callback(&e.bytes, 1),
                Kind::CallbackReply => {}
                Kind::Bulk => drop(self.bulk.insert(e.bits, e.bytes.clone())),
            }
        }
        self.begin(String::new());
    }

    fn differs(&mut self, what: String, theirs: impl ToString, ours: impl ToString) {
        self.table.take(&self.operation, &Difference { what, theirs: theirs.to_string(), ours: ours.to_string() });
    }

    /// Ends the operation before: its callbacks are compared as a whole.
    fn begin(&mut self, name: String) {
        let ours: Vec<LdlmRequestSeen> = self.rig.callbacks.0.lock().drain(..).map(|c| (c.body.opc, c.request)).collect();
        for (opcode, r) in ours {
            *self.recorded_callbacks.entry(callback_name(opcode, &r)).or_default() -= 1;
        }
        let skipped = self.table.skips(&self.operation);
        for (what, n) in std::mem::take(&mut self.recorded_callbacks).into_iter().filter(|(_, n)| *n != 0 && !skipped) {
            let how = if n > 0 { "missing" } else { "extra" };
            self.differs(format!("{what} {how}"), n.max(0), (-n).max(0));
        }
        self.operation = name.clone();
        self.operations.push(name);
    }

    fn note_callback(&mut self, bytes: &Bytes, by: i32) {
        let Ok(m) = Message::decode(bytes.clone()) else { return };
        let (Ok(body), Ok(r)) = (m.body(), LdlmRequest::decode(&self.values.translate(m.buf(1)))) else { return };
        *self.recorded_callbacks.entry(callback_name(body.opc, &r)).or_default() += by;
    }

    async fn request(&mut self, e: &Event, later: &[Event]) {
        let theirs = Message::decode(e.bytes.clone()).expect("a recorded request");
        let body = theirs.body().expect("a body");
        let Some(format) = formats::of_request(body.opc, &theirs) else { panic!("no format for opcode {}", body.opc) };
        if self.table.skips(&self.operation) {
            self.not_sent += 1;
            return;
        }
        if body.handle != 0 && !self.values.knows(body.handle) {
            self.not_sent += 1;
            return self.differs(format!("{} not sent: no such connection", format.name), "", "");
        }
        let mut ours = self.values.translate_message(&theirs);
        self.steer(&theirs, &mut ours, body.opc);
        let mut offers = Vec::new();
        match body.opc {
            opc::MDS_CONNECT => to_the_one_mdt(&mut ours),
            opc::OST_WRITE => offers = self.written(e, &mut ours),
            opc::OST_READ => other_checksum(&mut ours),
            _ => {}
        }
        let bits = reply_bits(e, &body, later);
        let node = &self.rig.client;
        let portal_back = portal::reply_of(e.portal).expect("a request portal");
        let mut wanted = vec![e.bits, body.mbits, bits];
        wanted.retain(|b| *b != 0);
        wanted.sort();
        wanted.dedup();
        let replies = wanted.iter().map(|b| node.expect_put(portal_back, *b)).collect();
        let sink = match body.opc {
            opc::OST_READ => Some(portal::OST_BULK),
            opc::MDS_READPAGE => Some(portal::MDS_BULK),
            opc::MGS_CONFIG_READ => Some(portal::MGS_BULK),
            _ => None,
        };
        let bulk = sink.map_or(vec![], |p| bulk_bits(e, &body).map(|b| (b, node.expect_put(p, b))).collect());
        let handle = ours.body().map_or(0, |b| b.handle);
        let lock = format.request.get(1).filter(|_| body.opc == opc::LDLM_ENQUEUE).and_then(|_| LdlmRequest::decode(ours.buf(1)).ok()).map(|r| (r.handle(0), handle));
        self.pending.insert(bits, Pending { format, opcode: body.opc, replies, bulk, _offers: offers, lock });
        self.note_connect(&theirs, body.opc, bits);
        self.sent += 1;
        let (node, to, portal, data) = (node.clone(), SERVER.parse().expect("a NID"), e.portal, ours.encode());
        let xid = e.bits;
        tokio::spawn(async move { node.put(to, portal, xid, 0, data.into(), false).await });
        tokio::task::yield_now().await;
    }

    /// Connections to OSTs are told apart later.
    fn note_connect(&mut self, theirs: &Message, opcode: u32, bits: u64) {
        let uuid = String::from_utf8_lossy(raw::c_str(theirs.buf(1))).into_owned();
        let index = uuid.strip_prefix("lfs-OST").and_then(|r| u32::from_str_radix(r.get(..4)?, 16).ok());
        if let (opc::OST_CONNECT, Some(index), Some(p)) = (opcode, index, self.pending.get_mut(&bits)) {
            p.lock = Some((u64::MAX, index as u64));
        }
    }

    /// Our MDT may have put an object on the other OST: requests for it go there.
    fn steer(&self, theirs: &Message, ours: &mut Message, opcode: u32) {
        let pair = |b: &Bytes, at: usize| Some([u64::decode(b.get(at..)?).ok()?, u64::decode(b.get(at + 8..)?).ok()?]);
        let b = theirs.buf(1);
        let handle = match opcode {
            opc::LDLM_CANCEL => LdlmRequest::decode(b).ok().and_then(|r| self.locks.values().find(|l| l.0 == self.values.ours(r.handle(0))).map(|l| l.1)),
            opc::LDLM_ENQUEUE => pair(b, 16).and_then(|p| self.values.home(p)).and_then(|h| self.osts.get(&h).copied()),
            1..=32 => pair(b, 8).or(None).and_then(|p| self.values.home(p)).and_then(|h| self.osts.get(&h).copied()),
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

    /// What the client writes: its own bytes when they are in the message, else as many of ours; with a checksum we know.
    fn written(&self, e: &Event, ours: &mut Message) -> Vec<GetOffer> {
        let Ok(mut oa) = ours.get::<Obdo>(1) else { return vec![] };
        let ranges: Vec<NiobufRemote> = raw::decode_all(ours.buf(3));
        let inline = oa.flags.contains(ObdFlags::SHORT_IO);
        let total: usize = ranges.iter().map(|n| n.len as usize).sum();
        let data = if inline { ours.buf(5).clone() } else { Bytes::from(vec![0x5a; total]) };
        if oa.valid & md::FLCKSUM != 0 {
            let ty = CksumType::Crc32c;
            oa.flags = ObdFlags((oa.flags.0 & !OBD_FL_CKSUM_MASK) | ty.flags().0);
            oa.nlink = ty.compute([&data[..]]);
            ours.bufs[1] = oa.to_bytes();
        }
        if inline {
            return vec![];
        }
        let body = ours.body().expect("a body");
        let mut rest = data;
        let lens = descriptors(&ranges);
        bulk_bits(e, &body).zip(lens).map(|(bits, len)| self.rig.client.offer_get(portal::OST_BULK, bits, Payload::from(rest.split_to(len)))).collect()
    }

    async fn reply(&mut self, e: &Event) {
        let Some(mut p) = self.pending.remove(&e.bits) else { return };
        let theirs = Message::decode(e.bytes.clone()).expect("a recorded reply");
        let mut ours = first(&mut p.replies).await;
        if ours.is_none() {
            self.give_back().await;
            ours = first(&mut p.replies).await;
        }
        let Some(ours) = ours.and_then(|b| Message::decode(b).ok()) else {
            return self.differs(format!("{} no reply", p.format.name), "", "");
        };
        self.compared += 1;
        self.values.learn(p.format, p.opcode, &theirs, &ours);
        self.note_lock(&p, &ours);
        let theirs = self.values.translate_message(&theirs);
        let mut found = compare::replies(p.format, &theirs, &ours);
        for (bits, mut sink) in p.bulk {
            let got = sink.try_recv().map(|ev| ev.data.copy_to_bytes()).unwrap_or_default();
            let was = self.bulk.remove(&bits).map(|b| self.values.translate(&b)).unwrap_or_default();
            match p.opcode {
                opc::MDS_READPAGE => found.extend(compare::directories(&was, &got)),
                opc::MGS_CONFIG_READ => found.extend(compare::nid_tables(&was, &got)),
                _ => {}
            }
        }
        for d in &found {
            self.table.take(&self.operation, d);
        }
    }

    fn note_lock(&mut self, p: &Pending, ours: &Message) {
        match p.lock {
            Some((u64::MAX, index)) => drop(self.osts.insert(index as u32, ours.body().map_or(0, |b| b.handle))),
            Some((cookie, handle)) => {
                if let Ok(r) = ours.get::<LdlmReply>(1)
                    && r.handle != 0
                {
                    self.locks.insert(cookie, (r.handle, handle));
                }
            }
            None => {}
        }
    }

    /// Gives back what our servers ask back and the recorded client did not.
    async fn give_back(&mut self) {
        let asked: Vec<u64> = self.rig.callbacks.0.lock().iter().map(|c| c.request.handle(0)).collect();
        for cookie in asked {
            let Some((lock, handle)) = self.locks.remove(&cookie) else { continue };
            let mut m = Message::new(&PtlrpcBody { handle, conn_cnt: 1, ..PtlrpcBody::request(opc::LDLM_CANCEL) });
            m.push_bytes(LdlmRequest::cancel(&[lock]).to_bytes());
            self.next_xid += 64;
            let _ = self.rig.client.put(SERVER.parse().expect("a NID"), portal::LDLM_CANCEL_REQUEST, self.next_xid, 0, m.encode().into(), false).await;
        }
    }
}

type LdlmRequestSeen = (u32, LdlmRequest);

fn callback_name(opcode: u32, r: &LdlmRequest) -> String {
    format!("{} {:?} {:?}", opc::name(opcode).unwrap_or("?"), r.desc.ty(), r.desc.req_mode)
}

/// The first message at any of the places a reply may come to.
async fn first(places: &mut [PutExpectation]) -> Option<Bytes> {
    let futures = places.iter_mut().map(|p| Box::pin(p.recv()));
    timeout(STUCK, futures_util::future::select_all(futures)).await.ok().map(|(ev, _, _)| ev.data.copy_to_bytes())
}

/// Our one MDT stands for the recorded second one too: a connection to that one becomes another client's to ours.
fn to_the_one_mdt(ours: &mut Message) {
    if raw::c_str(ours.buf(1)) == b"lfs-MDT0001_UUID" {
        ours.bufs[1] = Bytes::from_static(b"lfs-MDT0000_UUID\0");
        let mut client = ours.buf(2).to_vec();
        client[0] = if client[0] == b'0' { b'1' } else { b'0' };
        ours.bufs[2] = client.into();
    }
}

/// A read with a checksum that our servers grant: the recorded type is T10's.
fn other_checksum(ours: &mut Message) {
    let Ok(mut oa) = ours.get::<Obdo>(1) else { return };
    if oa.valid & md::FLFLAGS != 0 && oa.flags.0 & OBD_FL_CKSUM_MASK != 0 {
        oa.flags = ObdFlags((oa.flags.0 & !OBD_FL_CKSUM_MASK) | CksumType::Crc32c.flags().0);
        ours.bufs[1] = oa.to_bytes();
    }
}

/// The bits the recorded reply came with.
fn reply_bits(e: &Event, body: &PtlrpcBody, later: &[Event]) -> u64 {
    let hit = later.iter().find(|l| l.kind == Kind::Reply && (l.bits == e.bits || body.mbits != 0 && l.bits == body.mbits));
    hit.map_or(e.bits, |l| l.bits)
}

/// Match bits of a request's bulk descriptors.
fn bulk_bits(e: &Event, body: &PtlrpcBody) -> impl Iterator<Item = u64> + use<> {
    let last = if body.mbits == 0 { e.bits } else { body.mbits };
    (last & !63)..=last
}

/// Lengths of descriptors as a kernel client fills them: 256 page fragments each.
fn descriptors(ranges: &[NiobufRemote]) -> Vec<usize> {
    let (mut lens, mut fragments) = (vec![0], 0);
    for r in ranges {
        let (mut at, end) = (r.offset, r.offset + r.len as u64);
        while at < end {
            if fragments == 256 {
                lens.push(0);
                fragments = 0;
            }
            let next = ((at / 4096 + 1) * 4096).min(end);
            *lens.last_mut().expect("one") += (next - at) as usize;
            (at, fragments) = (next, fragments + 1);
        }
    }
    lens
}
