//! What a target remembers over a restart: its own state, its clients and their last replies
//! (`lustre/target/tgt_lastrcvd.c` does the same in the files last_rcvd and reply_data; the form here is ours).
//!
//! Table [`LAST_RCVD`]: `i` instance (u32), `t` last transno (u64) unless a kept reply has a greater one, `d` the transno up to which data are on disk too (u64, on an
//! MDT; as `t` where it is missing), `b` "1" while data up to `t` are still to be replayed and "0" when not (on an MDT), `m` the last registration with an MGS: its number (u32), its cookie (u64) and whether it was accepted (u8), `g` there while a recovery goes on that a known client has missed, `c<uuid>` a client's connect data,
//! `n<uuid>` its NID (u64) and whether its socket was seen (u8, [`coral_ptlrpc::alive`]), `r<uuid>\0<tag>` transno, xid and packed reply ([`packed`]) of a slot. Numbers are little endian; tags big endian.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_lnet::Nid;
use coral_osd::{Batch, Kv, OsdError, Table};
use coral_ptlrpc::alive::{self, Life};
use coral_wire::{Message, ObdConnectData, Wire};

use super::export::KeptReply;
use super::{StoredTransnos, packed};

/// Table of server and client records and reply data.
pub const LAST_RCVD: Table = Table("last_rcvd");

const INSTANCE: &[u8] = b"i";
const TRANSNO: &[u8] = b"t";
const DATA_TRANSNO: &[u8] = b"d";
const GAP: &[u8] = b"g";
const BEHIND: &[u8] = b"b";
const REGISTRATION: &[u8] = b"m";
const NOT_BEHIND: &[u8] = b"0";
/// What the keys of replies begin with.
const REPLIES: &[u8] = b"r";
/// Room made for a reply, bytes; most need less.
const REPLY_BYTES: usize = 512;
/// Records read at a time.
const CHUNK: usize = 1024;

/// A client known from before.
#[derive(Debug)]
pub(super) struct KnownClient {
    pub uuid: String,
    /// Where it connected from first; 0: not known.
    pub nid: Nid,
    /// Its socket was seen then.
    pub seen: bool,
    pub connect: ObdConnectData,
    pub replies: BTreeMap<u16, KeptReply>,
}

impl KnownClient {
    /// Whether it has certainly ended, so that it never comes back.
    pub fn is_gone(&self) -> bool {
        self.seen && alive::look(&self.uuid, self.nid) == Life::NoSocket
    }
}

/// Everything kept.
#[derive(Debug, Default)]
pub(super) struct LastRcvd {
    pub instance: u32,
    pub stored: StoredTransnos,
    /// Whether data up to the number of the tables had still to be replayed; `None`: not known (of an older version).
    pub behind: Option<bool>,
    /// The recovery before did not end, and a known client was given up in it.
    pub gap: bool,
    pub clients: Vec<KnownClient>,
}

/// Number of the last start of the target; 0: there was none.
pub(crate) fn stored_instance(kv: &dyn Kv) -> Result<u32, OsdError> {
    let raw = kv.get(LAST_RCVD, INSTANCE)?;
    Ok(raw.map_or(0, |v| number(&v) as u32))
}

pub(super) fn load(kv: &dyn Kv) -> Result<LastRcvd, OsdError> {
    let instance = stored_instance(kv)?;
    let tables = stored_transno(kv)?.unwrap_or(0);
    let data = kv
        .get(LAST_RCVD, DATA_TRANSNO)?
        .map_or(tables, |v| number(&v));
    let gap = kv.get(LAST_RCVD, GAP)?.is_some();
    let behind = kv.get(LAST_RCVD, BEHIND)?.map(|v| v[..] != *NOT_BEHIND);
    let mut clients = Vec::new();
    each(kv, b"c", |key, value| {
        let uuid = String::from_utf8_lossy(&key[1..]).into_owned();
        let connect = ObdConnectData::decode(value).unwrap_or_default();
        let mut replies = BTreeMap::new();
        each(kv, &reply_prefix(&uuid), |k, v| {
            replies.extend(reply_from(k, v));
            Ok(())
        })?;
        let place = kv.get(LAST_RCVD, &place_key(&uuid))?.unwrap_or_default();
        let nid = Nid(place.get(..8).map_or(0, number));
        clients.push(KnownClient {
            uuid,
            nid,
            seen: place.get(8) == Some(&1),
            connect,
            replies,
        });
        Ok(())
    })?;
    Ok(LastRcvd {
        instance,
        stored: StoredTransnos { tables, data },
        behind,
        gap,
        clients,
    })
}

/// How many clients are known.
pub(crate) fn client_count(kv: &dyn Kv) -> Result<usize, OsdError> {
    Ok(load(kv)?.clients.len())
}

/// What forgets all clients, so that none of them replays anything; and how many there are.
pub(crate) fn forget_clients(kv: &dyn Kv) -> Result<(Batch, usize), OsdError> {
    let clients = load(kv)?.clients;
    let mut batch = Batch::new();
    if let Some(transno) = stored_transno(kv)? {
        put_transno(&mut batch, transno);
    }
    for client in &clients {
        delete_client(kv, &mut batch, &client.uuid)?;
    }
    put_gap(&mut batch, false);
    Ok((batch, clients.len()))
}

/// Number of the last transaction that is in the tables; `None` when there never was one.
pub(crate) fn stored_transno(kv: &dyn Kv) -> Result<Option<u64>, OsdError> {
    let mut last = kv.get(LAST_RCVD, TRANSNO)?.map(|v| number(&v));
    each(kv, REPLIES, |_, value| {
        last = last.max(value.get(..8).map(number));
        Ok(())
    })?;
    Ok(last)
}

/// Little-endian number of up to 8 bytes.
fn number(v: &[u8]) -> u64 {
    v.iter().take(8).rev().fold(0, |n, b| n << 8 | *b as u64)
}

/// Hands over every record whose key begins with `prefix`; [`CHUNK`] of them are in memory at a time.
fn each(
    kv: &dyn Kv,
    prefix: &[u8],
    mut f: impl FnMut(&Bytes, &Bytes) -> Result<(), OsdError>,
) -> Result<(), OsdError> {
    let mut end = prefix.to_vec();
    *end.last_mut().unwrap_or(&mut 0) += 1; // prefixes end in 'c', 'r' or NUL: no carry
    let mut from = prefix.to_vec();
    loop {
        let part = kv.range(LAST_RCVD, &from, Some(&end), CHUNK)?;
        for (key, value) in &part {
            f(key, value)?;
        }
        match part.last() {
            Some((key, _)) if part.len() == CHUNK => {
                from = key.to_vec();
                from.push(0);
            }
            _ => return Ok(()),
        }
    }
}

fn place_key(uuid: &str) -> Vec<u8> {
    [b"n", uuid.as_bytes()].concat()
}

fn reply_prefix(uuid: &str) -> Vec<u8> {
    [REPLIES, uuid.as_bytes(), b"\0"].concat()
}

fn reply_key(uuid: &str, tag: u16) -> Vec<u8> {
    let mut key = reply_prefix(uuid);
    key.extend_from_slice(&tag.to_be_bytes());
    key
}

fn reply_from(key: &[u8], value: &Bytes) -> Option<(u16, KeptReply)> {
    let tag = u16::from_be_bytes(key[key.len().checked_sub(2)?..].try_into().ok()?);
    if value.len() < 16 {
        return None;
    }
    let msg = Message::decode(packed::unpack(&value.slice(16..))?).ok()?;
    Some((
        tag,
        KeptReply {
            transno: number(&value[..8]),
            xid: number(&value[8..16]),
            msg,
            from_disk: true,
        },
    ))
}

pub(super) fn put_instance(batch: &mut Batch, instance: u32) {
    batch.put(LAST_RCVD, INSTANCE, instance.to_le_bytes().to_vec());
}

/// Of the last transaction; 0: there was none.
pub(super) fn put_transno(batch: &mut Batch, transno: u64) {
    if transno == 0 {
        return;
    }
    batch.put(LAST_RCVD, TRANSNO, transno.to_le_bytes().to_vec());
}

/// One registration of a target with its MGS: the MGS knows by it when the target goes back to an older state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// One more than that of the last that was accepted.
    pub number: u32,
    /// Tells it from any other with this number.
    pub cookie: u64,
    /// The MGS has taken it.
    pub accepted: bool,
}

/// The last registration that was begun; number 0: there was none.
pub fn last_registration(kv: &dyn Kv) -> Result<Registration, OsdError> {
    let Some(raw) = kv.get(LAST_RCVD, REGISTRATION)? else {
        return Ok(Registration::default());
    };
    let row: &[u8; 13] = raw[..]
        .try_into()
        .map_err(|_| OsdError::Corrupt("a row of the table last_rcvd".into()))?;
    Ok(Registration {
        number: number(&row[..4]) as u32,
        cookie: number(&row[4..12]),
        accepted: row[12] != 0,
    })
}

pub(crate) fn put_registration(batch: &mut Batch, r: Registration) {
    let row = [
        &r.number.to_le_bytes()[..],
        &r.cookie.to_le_bytes(),
        &[u8::from(r.accepted)],
    ];
    batch.put(LAST_RCVD, REGISTRATION, row.concat());
}

/// A known client is given up before recovery has ended, or (`false`) recovery has.
pub(super) fn put_gap(batch: &mut Batch, gap: bool) {
    match gap {
        true => batch.put(LAST_RCVD, GAP, &b"1"[..]),
        false => batch.del(LAST_RCVD, GAP),
    };
}

/// On an MDT: what the tables hold up to their last number is not all done, data of objects are to be replayed, or (`false`) that is over.
pub(super) fn put_behind(batch: &mut Batch, behind: bool) {
    let value = if behind { b"1" } else { NOT_BEHIND };
    batch.put(LAST_RCVD, BEHIND, value);
}

/// On an MDT: data of objects are on disk up to here.
pub(super) fn put_data_transno(batch: &mut Batch, transno: u64) {
    batch.put(LAST_RCVD, DATA_TRANSNO, transno.to_le_bytes().to_vec());
}

pub(super) fn put_client(batch: &mut Batch, uuid: &str, connect: &ObdConnectData) {
    batch.put(
        LAST_RCVD,
        [b"c", uuid.as_bytes()].concat(),
        connect.to_bytes(),
    );
}

/// Where a client is, and whether its socket is seen.
pub(super) fn put_place(batch: &mut Batch, uuid: &str, nid: Nid, seen: bool) {
    batch.put(
        LAST_RCVD,
        place_key(uuid),
        [&nid.0.to_le_bytes()[..], &[u8::from(seen)]].concat(),
    );
}

pub(super) fn put_reply(
    batch: &mut Batch,
    uuid: &str,
    tag: u16,
    transno: u64,
    xid: u64,
    reply: &[u8],
) {
    let key = reply_key(uuid, tag);
    let mut value = Vec::with_capacity(REPLY_BYTES);
    value.extend_from_slice(&transno.to_le_bytes());
    value.extend_from_slice(&xid.to_le_bytes());
    packed::pack(reply, &mut value);
    let value: Bytes = value.into();
    debug_assert_eq!(
        packed::unpack(&value.slice(16..)).as_deref(),
        Some(reply),
        "a reply that nobody could read back"
    );
    batch.put(LAST_RCVD, key, value);
}

/// Forgets a client and its replies. What these say of the last number has to be put as well.
pub(super) fn delete_client(kv: &dyn Kv, batch: &mut Batch, uuid: &str) -> Result<(), OsdError> {
    batch.del(LAST_RCVD, [b"c", uuid.as_bytes()].concat());
    batch.del(LAST_RCVD, place_key(uuid));
    each(kv, &reply_prefix(uuid), |key, _| {
        batch.del(LAST_RCVD, key.clone());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_osd::OsdMem;

    /// A client whose socket was seen on this machine, and is not there any more, is gone; of others that is not known.
    #[test]
    fn who_has_certainly_ended() {
        let here: Nid = "127.0.0.9@tcp".parse().unwrap();
        let far: Nid = "10.0.0.9@tcp".parse().unwrap();
        let uuid = format!("last-rcvd-{}", std::process::id());
        let of = |nid, seen| KnownClient {
            uuid: uuid.clone(),
            nid,
            seen,
            connect: ObdConnectData::default(),
            replies: BTreeMap::new(),
        };
        assert!(of(here, true).is_gone());
        assert!(
            !of(here, false).is_gone() && !of(far, true).is_gone() && !of(Nid(0), true).is_gone()
        );
        let _alive = alive::Alive::announce(&uuid).unwrap();
        assert!(!of(here, true).is_gone(), "it runs");
    }

    #[test]
    fn what_is_kept_comes_back_and_what_is_forgotten_does_not() {
        let kv = OsdMem::new();
        let mut b = Batch::new();
        put_instance(&mut b, 3);
        put_transno(&mut b, 1 << 40);
        let connect = ObdConnectData {
            version: 7,
            ..ObdConnectData::default()
        };
        put_client(&mut b, "one", &connect);
        put_place(&mut b, "one", Nid(77), false);
        put_client(&mut b, "one-more", &connect);
        let reply = Message::new(&coral_wire::PtlrpcBody {
            transno: 99,
            ..Default::default()
        });
        put_reply(&mut b, "one", 5, 99, 128, &reply.encode());
        put_reply(&mut b, "one-more", 1, 98, 64, &reply.encode());
        b.put(LAST_RCVD, reply_key("one-more", 2), &b"torn"[..]);
        kv.commit(b).wait().unwrap();
        let got = load(&kv).unwrap();
        assert!(!got.gap);
        let mut b = Batch::new();
        put_gap(&mut b, true);
        kv.commit(b).wait().unwrap();
        assert!(load(&kv).unwrap().gap);
        assert_eq!(
            (got.instance, got.stored, got.clients.len()),
            (
                3,
                StoredTransnos {
                    tables: 1 << 40,
                    data: 1 << 40
                },
                2
            )
        );
        let one = &got.clients[0];
        assert_eq!(
            (one.nid, one.seen, got.clients[1].nid),
            (Nid(77), false, Nid(0))
        );
        assert_eq!(
            (one.uuid.as_str(), one.connect.version, one.replies.len()),
            ("one", 7, 1)
        );
        assert_eq!(
            (
                one.replies[&5].transno,
                one.replies[&5].xid,
                &one.replies[&5].msg
            ),
            (99, 128, &reply)
        );
        let mut b = Batch::new();
        delete_client(&kv, &mut b, "one").unwrap();
        kv.commit(b).wait().unwrap();
        let left = load(&kv).unwrap().clients;
        assert_eq!(
            kv.get(LAST_RCVD, b"none").unwrap(),
            None,
            "its place went too"
        );
        assert_eq!(
            (left.len(), left[0].uuid.as_str(), left[0].replies.len()),
            (1, "one-more", 1)
        );
    }
}
