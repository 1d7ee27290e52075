//! Walks whole captures: matches replies to requests and bulk to what asked for it, and recodes every message.

use super::pcap;
use super::recode::{self, Recoded};
use super::stream::{self, Item};
use bytes::Bytes;
use coral_wire::Message;
use coral_wire::formats::{self, Field, Format};
use coral_wire::lnet::{LnetHdr, LnetMsg, PingInfo};
use coral_wire::nid::Nid;
use coral_wire::ost::{CksumType, OBD_FL_CKSUM_MASK, ObdFlags, ObdIoobj, Obdo, md};
use coral_wire::ptlrpc::{PTL_RPC_MSG_REQUEST, opc, portal};
use std::collections::{BTreeMap, HashMap};

/// What a walk found.
#[derive(Default)]
pub struct Report {
    /// (direction and opcode or kind) -> messages.
    pub counts: BTreeMap<String, usize>,
    /// Buffers decoded into a type and encoded back, by field and type.
    pub typed: BTreeMap<String, usize>,
    /// Buffers left opaque: field, reason -> count, bytes.
    pub opaque: BTreeMap<String, (usize, usize)>,
    /// Everything that did not come back the same.
    pub errors: Vec<String>,
    /// Bytes of streams that could not be attributed.
    pub lost: usize,
    pub streams: usize,
    /// One message of each kind, for the vectors: (kind, what is needed to decode it, bytes).
    pub samples: BTreeMap<String, Vec<super::vectors::Vector>>,
}

/// A PTLRPC request seen: what its reply and bulk need.
#[derive(Clone)]
pub struct Asked {
    pub format: &'static Format,
    pub opcode: u32,
    pub request: Message,
}

/// Key of a request: who awaits the reply, and its match bits.
type Key = (Nid, u64);

struct Wired {
    hdr: LnetHdr,
    payload: Bytes,
}

/// Walks one capture file.
pub fn capture(name: &str, file: &[u8], report: &mut Report) {
    let mut all = Vec::new();
    for half in pcap::halves(file) {
        report.streams += 1;
        let split = stream::split(&half);
        report.lost += split.lost;
        report
            .errors
            .extend(split.errors.iter().map(|e| format!("{name}: {e}")));
        for item in split.items {
            match item {
                Item::ConnRequest => report.count("ksock connection request"),
                Item::Hello => report.count("ksock hello"),
                Item::Noop => report.count("ksock noop"),
                Item::Lnet { hdr, payload, .. } => all.push(Wired { hdr, payload }),
            }
        }
    }
    let mut walk = Walk {
        report,
        asked: HashMap::new(),
        gets: HashMap::new(),
        bulk: HashMap::new(),
        data: HashMap::new(),
        name,
    };
    // GETs first: their replies may come on another connection that stands earlier in the capture
    for w in all
        .iter()
        .filter(|w| matches!(w.hdr.msg, LnetMsg::Get { .. }))
    {
        walk.note_request(w);
    }
    for w in &all {
        walk.note_request(w);
    }
    for w in &all {
        walk.message(w);
    }
}

struct Walk<'a> {
    report: &'a mut Report,
    asked: HashMap<Key, Asked>,
    /// GETs by the handle their reply carries: portal and match bits.
    gets: HashMap<(Nid, u64, u64), (u32, u64)>,
    /// Bulk match bits of requests: (client, bits) -> opcode.
    bulk: HashMap<Key, u32>,
    /// Bulk data that went by: (client, bits) -> bytes.
    data: HashMap<Key, Bytes>,
    name: &'a str,
}

impl Report {
    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_string()).or_default() += 1;
    }
}

fn is_reply_portal(p: u32) -> bool {
    matches!(
        p,
        portal::OSC_REPLY
            | portal::MDC_REPLY
            | portal::MGC_REPLY
            | portal::LDLM_CB_REPLY
            | portal::LDLM_CANCEL_REPLY
    )
}

fn is_bulk_portal(p: u32) -> bool {
    matches!(p, portal::OST_BULK | portal::MDS_BULK | portal::MGS_BULK)
}

impl Walk<'_> {
    /// First pass: what was asked.
    fn note_request(&mut self, w: &Wired) {
        match w.hdr.msg {
            LnetMsg::Get {
                return_wmd,
                match_bits,
                ptl_index,
                ..
            } => {
                let key = (
                    w.hdr.src_nid,
                    return_wmd.interface_cookie,
                    return_wmd.object_cookie,
                );
                self.gets.insert(key, (ptl_index, match_bits));
            }
            LnetMsg::Reply { dst_wmd } => {
                let key = (
                    w.hdr.dest_nid,
                    dst_wmd.interface_cookie,
                    dst_wmd.object_cookie,
                );
                if let Some((_, bits)) = self
                    .gets
                    .get(&key)
                    .copied()
                    .filter(|(p, _)| is_bulk_portal(*p))
                {
                    self.data.insert((w.hdr.src_nid, bits), w.payload.clone());
                }
            }
            LnetMsg::Put {
                match_bits,
                ptl_index,
                ..
            } if is_bulk_portal(ptl_index) => {
                self.data
                    .insert((w.hdr.dest_nid, match_bits), w.payload.clone());
            }
            LnetMsg::Put {
                match_bits,
                ptl_index,
                ..
            } if portal::reply_of(ptl_index).is_some() => {
                let Ok(m) = Message::decode(w.payload.clone()) else {
                    return;
                };
                let Ok(b) = m.body() else { return };
                if b.r#type != PTL_RPC_MSG_REQUEST {
                    return;
                }
                let Some(format) = formats::of_request(b.opc, &m) else {
                    return;
                };
                let asked = Asked {
                    format,
                    opcode: b.opc,
                    request: m,
                };
                for bits in [match_bits, b.mbits] {
                    // bulk MDs are counted back from the last one
                    for md in 0..64 {
                        self.bulk
                            .entry((w.hdr.src_nid, bits.wrapping_sub(md)))
                            .or_insert(b.opc);
                    }
                    self.bulk.insert((w.hdr.src_nid, bits), b.opc);
                    self.asked.insert((w.hdr.src_nid, bits), asked.clone());
                }
            }
            _ => {}
        }
    }

    /// Second pass: every message.
    fn message(&mut self, w: &Wired) {
        match w.hdr.msg {
            LnetMsg::Ack { .. } => {
                self.report.count("lnet ACK");
                self.expect(w.payload.is_empty(), "an ACK has no payload");
            }
            LnetMsg::Get { ptl_index, .. } => {
                self.report.count(&format!("lnet GET portal {ptl_index}"));
                self.expect(w.payload.is_empty(), "a GET has no payload");
            }
            LnetMsg::Reply { dst_wmd } => {
                let key = (
                    w.hdr.dest_nid,
                    dst_wmd.interface_cookie,
                    dst_wmd.object_cookie,
                );
                let of = self.gets.get(&key).copied();
                self.report.count(&format!(
                    "lnet REPLY portal {}",
                    of.map_or("?".into(), |o| o.0.to_string())
                ));
                match of {
                    Some((0, _)) => self.ping("ping reply", &w.payload),
                    Some((_, bits))
                        if self.bulk.get(&(w.hdr.src_nid, bits)) == Some(&opc::MDS_BATCH) =>
                    {
                        self.outcome(
                            "batch bulk",
                            "sub-requests",
                            recode::batch_bulk(&w.payload),
                            &w.payload,
                        );
                        let v = super::vectors::Vector::bulk(opc::MDS_BATCH, w.payload.clone());
                        self.report
                            .samples
                            .entry("batch bulk".into())
                            .or_default()
                            .push(v);
                    }
                    Some((p, _)) if is_bulk_portal(p) => {
                        self.opaque("REPLY payload", "bulk data of a write", &w.payload)
                    }
                    Some((portal::SRPC_RDMA, _)) => {
                        self.opaque("REPLY payload", "selftest bulk data", &w.payload)
                    }
                    _ => self.opaque(
                        "REPLY payload",
                        "answer to a GET before the capture",
                        &w.payload,
                    ),
                }
            }
            LnetMsg::Put {
                match_bits,
                ptl_index,
                offset,
                ..
            } => self.put(w, ptl_index, match_bits, offset),
        }
    }

    fn put(&mut self, w: &Wired, ptl: u32, bits: u64, offset: u32) {
        match ptl {
            0 => self.ping("push", &w.payload),
            portal::SRPC_REQUEST | portal::SRPC_FRAMEWORK_REQUEST => self.srpc(&w.payload),
            portal::SRPC_RDMA if recode::is_srpc(&w.payload) => self.srpc(&w.payload),
            portal::SRPC_RDMA => {
                self.report.count("lnet PUT selftest bulk");
                self.opaque("PUT payload", "selftest bulk data", &w.payload)
            }
            p if is_bulk_portal(p) => self.bulk_put(w, p, bits),
            p if is_reply_portal(p) => self.reply(w, bits, offset),
            p if portal::reply_of(p).is_some() => self.request(w),
            p => self
                .report
                .errors
                .push(format!("{}: PUT to unknown portal {p}", self.name)),
        }
    }

    fn request(&mut self, w: &Wired) {
        let m = match self.container(&w.payload) {
            Some(m) => m,
            None => return,
        };
        let Ok(body) = m.body() else {
            return self.report.errors.push("request without body".into());
        };
        let name = opc::name(body.opc).map_or(format!("opcode {}", body.opc), str::to_string);
        let Some(format) = formats::of_request(body.opc, &m) else {
            return self.report.errors.push(format!("{name}: no format"));
        };
        let version = coral_wire::ptlrpc::version_of(body.opc);
        self.expect(
            body.version == version,
            &format!("{name} has version {:#x}, not {version:#x}", body.version),
        );
        self.write_checksum(w.hdr.src_nid, body.opc, body.mbits, &m);
        let kind = format!("{name} {}request", variant(&name, format));
        self.report.count(&kind);
        self.buffers(&kind, format.request, &m, None, true);
        self.sample(&kind, body.opc, false, &m, None, &w.payload);
    }

    fn reply(&mut self, w: &Wired, bits: u64, offset: u32) {
        let m = match self.container(&w.payload) {
            Some(m) => m,
            None => return,
        };
        let Ok(body) = m.body() else {
            return self.report.errors.push("reply without body".into());
        };
        let asked = self.asked.get(&(w.hdr.dest_nid, bits)).cloned();
        let name = opc::name(body.opc).map_or(format!("opcode {}", body.opc), str::to_string);
        let Some(asked) = asked else {
            self.report
                .count(&format!("{name} reply to a request before the capture"));
            return self.opaque("reply", "request is before the capture", &w.payload);
        };
        self.read_checksum(w.hdr.dest_nid, &asked, &m);
        let early = offset == 0
            && m.len() == 1
            && body.r#type == coral_wire::ptlrpc::PTL_RPC_MSG_REPLY
            && m.cksum != 0;
        let failed = m.len() == 1 && body.status < 0;
        let how = if early {
            "early reply"
        } else if failed {
            "reply with error"
        } else {
            "reply"
        };
        let kind = format!("{name} {}{how}", variant(&name, asked.format));
        self.report.count(&kind);
        if early {
            self.expect(m.early_cksum() == m.cksum, "checksum of an early reply");
        }
        self.buffers(&kind, asked.format.reply, &m, Some(&asked), false);
        self.sample(&kind, asked.opcode, true, &m, Some(&asked), &w.payload);
    }

    /// The bulk data of a request: the match bits of its MDs run from `last` rounded down to the most MDs it may have, to `last`.
    fn bulk_of(&self, client: Nid, last: u64, mds: u32) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for bits in last & !(mds.next_power_of_two() as u64 - 1)..=last {
            all.extend_from_slice(self.data.get(&(client, bits))?);
        }
        Some(all)
    }

    /// Checks the checksum a client put on what it wrote.
    fn write_checksum(&mut self, client: Nid, op: u32, mbits: u64, m: &Message) {
        let (Ok(oa), Ok(ioo)) = (m.get::<Obdo>(1), m.get::<ObdIoobj>(2)) else {
            return;
        };
        if op != opc::OST_WRITE || oa.valid & md::FLCKSUM == 0 {
            return;
        }
        let data = match m.buf(5) {
            b if oa.flags.contains(ObdFlags::SHORT_IO) => Some(b.to_vec()),
            _ => self.bulk_of(client, mbits, ioo.max_mds()),
        };
        self.checksum("write", &oa, data);
    }

    /// Checks the checksum a server put on what was read.
    fn read_checksum(&mut self, client: Nid, asked: &Asked, m: &Message) {
        let (Ok(oa), Ok(ioo)) = (m.get::<Obdo>(1), asked.request.get::<ObdIoobj>(2)) else {
            return;
        };
        if asked.opcode != opc::OST_READ || oa.valid & md::FLCKSUM == 0 {
            return;
        }
        let status = m.body().map_or(0, |b| b.status.max(0)) as usize;
        let mut data = match m.buf(2) {
            b if !b.is_empty() => Some(b.to_vec()),
            _ => self.bulk_of(
                client,
                asked.request.body().map_or(0, |b| b.mbits),
                ioo.max_mds(),
            ),
        };
        if let Some(d) = &mut data {
            d.truncate(status);
        }
        self.checksum("read", &oa, data);
    }

    fn checksum(&mut self, what: &str, oa: &Obdo, data: Option<Vec<u8>>) {
        if let (0x6000, Some(data)) = (oa.flags.0 & OBD_FL_CKSUM_MASK, &data) {
            let ok = CksumType::Adler.compute([&t10_ip_guards(data, 4096)[..]]) == oa.nlink;
            self.report
                .count(&format!("checksum of a {what}, Adler over T10IP4K guards"));
            return self.expect(ok, "checksum of bulk data");
        }
        let (Some(ty), Some(data)) = (CksumType::from_flags(oa.flags), data) else {
            return self.report.count(&format!(
                "checksum of a {what} with type bits {:#x}, not checked",
                oa.flags.0 & OBD_FL_CKSUM_MASK
            ));
        };
        let ok = ty.compute([&data[..]]) == oa.nlink;
        self.report.count(&format!("checksum of a {what}, {ty:?}"));
        self.expect(ok, "checksum of bulk data");
    }

    fn bulk_put(&mut self, w: &Wired, p: u32, bits: u64) {
        let op = self.bulk.get(&(w.hdr.dest_nid, bits)).copied();
        let name = op.and_then(opc::name).unwrap_or("unknown request");
        self.report
            .count(&format!("bulk PUT portal {p} for {name}"));
        let payload = w.payload.clone();
        let done = match op {
            _ if payload.is_empty() => return,
            Some(opc::MDS_READPAGE) => recode::dir_pages(&payload),
            Some(opc::MGS_CONFIG_READ) => recode::nid_table(&payload),
            _ => return self.opaque("PUT payload", "bulk data of a read", &payload),
        };
        let kind = if op == Some(opc::MDS_READPAGE) {
            "directory pages"
        } else {
            "nid table"
        };
        self.outcome(kind, "bulk", done, &payload);
        if let Some(op) = op {
            let v = super::vectors::Vector::bulk(op, payload);
            self.report
                .samples
                .entry(format!("{kind} bulk"))
                .or_default()
                .push(v);
        }
    }

    fn ping(&mut self, kind: &str, payload: &Bytes) {
        self.report.count(&format!("lnet {kind}"));
        match PingInfo::decode(payload) {
            Ok(p) => self.same(kind, payload, &p.encode()),
            Err(e) => self.report.errors.push(format!("{kind}: {e}")),
        }
        *self.report.typed.entry("PingInfo".into()).or_default() += 1;
        let v = super::vectors::Vector::ping(payload.clone());
        self.report
            .samples
            .entry(format!("lnet {kind}"))
            .or_default()
            .push(v);
    }

    fn srpc(&mut self, payload: &Bytes) {
        let kind = recode::srpc_kind(payload);
        self.report.count(&format!("selftest {kind}"));
        self.outcome("selftest message", &kind, recode::srpc(payload), payload);
        let v = super::vectors::Vector::srpc(payload.clone());
        self.report
            .samples
            .entry(format!("selftest {kind}"))
            .or_default()
            .push(v);
    }

    /// The container itself: decoded and encoded back.
    fn container(&mut self, payload: &Bytes) -> Option<Message> {
        match Message::decode(payload.clone()) {
            Ok(m) => {
                self.same("lustre_msg_v2", payload, &m.encode());
                Some(m)
            }
            Err(e) => {
                self.report.errors.push(format!("{}: {e}", self.name));
                None
            }
        }
    }

    fn buffers(
        &mut self,
        kind: &str,
        fields: &[Field],
        m: &Message,
        asked: Option<&Asked>,
        is_request: bool,
    ) {
        for (what, rc, was) in recode::message(fields, m, asked, is_request) {
            self.outcome(kind, &what, rc, &was);
        }
    }

    fn outcome(&mut self, kind: &str, what: &str, rc: Recoded, was: &Bytes) {
        match rc {
            Recoded::Typed(ty, is) => {
                *self.report.typed.entry(ty).or_default() += 1;
                if is != *was {
                    let at = was
                        .iter()
                        .zip(&is)
                        .position(|(a, b)| a != b)
                        .unwrap_or(was.len().min(is.len()));
                    let text = format!(
                        "{}: {kind}: {what}: {} bytes became {}, first difference at {at}",
                        self.name,
                        was.len(),
                        is.len()
                    );
                    if std::env::var_os("DUMP").is_some() {
                        println!(
                            "DIFF {kind} {what}\n was {}\n is  {}",
                            stream::hex(&was[at.saturating_sub(64)..was.len().min(at + 200)]),
                            stream::hex(&is[at.saturating_sub(64)..is.len().min(at + 200)])
                        );
                    }
                    self.report.errors.push(text);
                }
            }
            Recoded::Opaque(why) => {
                if std::env::var_os("DUMP").is_some_and(|d| d.to_string_lossy().contains(what)) {
                    println!(
                        "DUMP {kind} {what} {} {}",
                        was.len(),
                        stream::hex(&was[..was.len().min(200)])
                    );
                }
                self.opaque(what, why, was)
            }
            Recoded::Bad(e) => self
                .report
                .errors
                .push(format!("{}: {kind}: {what}: {e}", self.name)),
        }
    }

    fn opaque(&mut self, what: &str, why: &str, bytes: &Bytes) {
        let e = self
            .report
            .opaque
            .entry(format!("{what}: {why}"))
            .or_default();
        e.0 += 1;
        e.1 += bytes.len();
    }

    fn same(&mut self, what: &str, was: &[u8], is: &[u8]) {
        if was != is {
            self.report
                .errors
                .push(format!("{}: {what}: does not encode back", self.name));
        }
    }

    fn expect(&mut self, ok: bool, what: &str) {
        if !ok {
            self.report.errors.push(format!("{}: {what}", self.name));
        }
    }

    fn sample(
        &mut self,
        kind: &str,
        op: u32,
        reply: bool,
        m: &Message,
        asked: Option<&Asked>,
        raw_bytes: &Bytes,
    ) {
        // kinds of samples are finer than counts: which buffers are filled, and the status
        let filled: String = m
            .bufs
            .iter()
            .map(|b| if b.is_empty() { '-' } else { '+' })
            .collect();
        let v = super::vectors::Vector::message(
            op,
            reply,
            asked.map(|a| a.request.encode()),
            raw_bytes.clone(),
        );
        let list = self
            .report
            .samples
            .entry(format!("{kind} {filled}"))
            .or_default();
        if list.len() < 2 {
            list.push(v);
        }
    }
}

/// Formats that an opcode has several of are named in counts.
fn variant(opcode: &str, f: &Format) -> String {
    if f.name == opcode || f.name.len() <= opcode.len() && opcode.ends_with(f.name) {
        String::new()
    } else {
        format!("[{}] ", f.name)
    }
}

/// Guard tags as T10 with IP checksums makes them (`lustre/obdclass/integrity.c`): one's complement sum of each sector.
/// Only here to prove our Adler against real checksums; Coral claims no T10 type.
fn t10_ip_guards(data: &[u8], sector: usize) -> Vec<u8> {
    data.chunks(sector)
        .flat_map(|s| {
            let word = |c: &[u8]| u16::from_le_bytes([c[0], *c.get(1).unwrap_or(&0)]) as u64;
            let mut sum: u64 = s.chunks(2).map(word).sum();
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            (!(sum as u16)).to_le_bytes()
        })
        .collect()
}
