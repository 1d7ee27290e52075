//! What a target remembers over a restart: its own state, its clients and their last replies
//! (`lustre/target/tgt_lastrcvd.c` does the same in the files last_rcvd and reply_data; the form here is ours).
//!
//! Table [`LAST_RCVD`]: `i` instance (u32), `t` last transno (u64), `c<uuid>` a client's connect data,
//! `r<uuid>\0<tag>` transno, xid and encoded reply of a slot. Numbers are little endian; tags big endian.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_osd::{Batch, Kv, OsdError, Table};
use coral_wire::{Message, ObdConnectData, Wire};

use super::export::KeptReply;

/// Table of server and client records and reply data.
pub const LAST_RCVD: Table = Table("last_rcvd");

const INSTANCE: &[u8] = b"i";
const TRANSNO: &[u8] = b"t";
/// Records read at a time.
const CHUNK: usize = 1024;

/// A client known from before.
#[derive(Debug)]
pub(super) struct KnownClient {
    pub uuid: String,
    pub connect: ObdConnectData,
    pub replies: BTreeMap<u16, KeptReply>,
}

/// Everything kept.
#[derive(Debug, Default)]
pub(super) struct LastRcvd {
    pub instance: u32,
    pub last_transno: u64,
    pub clients: Vec<KnownClient>,
}

pub(super) fn load(kv: &dyn Kv) -> Result<LastRcvd, OsdError> {
    let instance = kv.get(LAST_RCVD, INSTANCE)?.map_or(0, |v| number(&v) as u32);
    let last_transno = kv.get(LAST_RCVD, TRANSNO)?.map_or(0, |v| number(&v));
    let mut clients = Vec::new();
    for (key, value) in all(kv, b"c")? {
        let uuid = String::from_utf8_lossy(&key[1..]).into_owned();
        let connect = ObdConnectData::decode(&value).unwrap_or_default();
        let replies = all(kv, &reply_prefix(&uuid))?.iter().filter_map(|(k, v)| reply_from(k, v)).collect();
        clients.push(KnownClient { uuid, connect, replies });
    }
    Ok(LastRcvd { instance, last_transno, clients })
}

/// Number of the last transaction that is in the tables; `None` when there never was one.
pub(crate) fn stored_transno(kv: &dyn Kv) -> Result<Option<u64>, OsdError> {
    Ok(kv.get(LAST_RCVD, TRANSNO)?.map(|v| number(&v)))
}

/// Little-endian number of up to 8 bytes.
fn number(v: &[u8]) -> u64 {
    v.iter().take(8).rev().fold(0, |n, b| n << 8 | *b as u64)
}

/// Every record whose key begins with `prefix`.
fn all(kv: &dyn Kv, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
    let mut end = prefix.to_vec();
    *end.last_mut().unwrap_or(&mut 0) += 1; // prefixes end in 'c' or NUL: no carry
    let (mut from, mut out) = (prefix.to_vec(), Vec::new());
    loop {
        let part = kv.range(LAST_RCVD, &from, Some(&end), CHUNK)?;
        let full = part.len() == CHUNK;
        out.extend(part);
        match out.last() {
            Some((key, _)) if full => {
                from = key.to_vec();
                from.push(0);
            }
            _ => return Ok(out),
        }
    }
}

fn reply_prefix(uuid: &str) -> Vec<u8> {
    [b"r", uuid.as_bytes(), b"\0"].concat()
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
    let msg = Message::decode(value.slice(16..)).ok()?;
    Some((tag, KeptReply { transno: number(&value[..8]), xid: number(&value[8..16]), msg, from_disk: true }))
}

pub(super) fn put_instance(batch: &mut Batch, instance: u32) {
    batch.put(LAST_RCVD, INSTANCE, instance.to_le_bytes().to_vec());
}

pub(super) fn put_transno(batch: &mut Batch, transno: u64) {
    batch.put(LAST_RCVD, TRANSNO, transno.to_le_bytes().to_vec());
}

pub(super) fn put_client(batch: &mut Batch, uuid: &str, connect: &ObdConnectData) {
    batch.put(LAST_RCVD, [b"c", uuid.as_bytes()].concat(), connect.to_bytes());
}

pub(super) fn put_reply(batch: &mut Batch, uuid: &str, tag: u16, transno: u64, xid: u64, reply: &[u8]) {
    let value = [&transno.to_le_bytes()[..], &xid.to_le_bytes(), reply].concat();
    batch.put(LAST_RCVD, reply_key(uuid, tag), value);
}

/// Forgets a client and its replies.
pub(super) fn delete_client(kv: &dyn Kv, batch: &mut Batch, uuid: &str) -> Result<(), OsdError> {
    batch.del(LAST_RCVD, [b"c", uuid.as_bytes()].concat());
    for (key, _) in all(kv, &reply_prefix(uuid))? {
        batch.del(LAST_RCVD, key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_osd::OsdMem;

    #[test]
    fn what_is_kept_comes_back_and_what_is_forgotten_does_not() {
        let kv = OsdMem::new();
        let mut b = Batch::new();
        put_instance(&mut b, 3);
        put_transno(&mut b, 1 << 40);
        let connect = ObdConnectData { version: 7, ..ObdConnectData::default() };
        put_client(&mut b, "one", &connect);
        put_client(&mut b, "one-more", &connect);
        let reply = Message::new(&coral_wire::PtlrpcBody { transno: 99, ..Default::default() });
        put_reply(&mut b, "one", 5, 99, 128, &reply.encode());
        put_reply(&mut b, "one-more", 1, 98, 64, &reply.encode());
        put_reply(&mut b, "one-more", 2, 97, 32, b"torn");
        kv.commit(b).unwrap();
        let got = load(&kv).unwrap();
        assert_eq!((got.instance, got.last_transno, got.clients.len()), (3, 1 << 40, 2));
        let one = &got.clients[0];
        assert_eq!((one.uuid.as_str(), one.connect.version, one.replies.len()), ("one", 7, 1));
        assert_eq!((one.replies[&5].transno, one.replies[&5].xid, &one.replies[&5].msg), (99, 128, &reply));
        let mut b = Batch::new();
        delete_client(&kv, &mut b, "one").unwrap();
        kv.commit(b).unwrap();
        let left = load(&kv).unwrap().clients;
        assert_eq!((left.len(), left[0].uuid.as_str(), left[0].replies.len()), (1, "one-more", 1));
    }
}
