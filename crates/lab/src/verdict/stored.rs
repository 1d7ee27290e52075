//! How much an RPC had to store: what takes long with many bytes need not be slow.
//!
//! A sync has to store what was written to its target and not synced since, of whichever file: the disk is one. What the server has
//! synced meanwhile by itself is not known, so it is at most that. Of a sync before which nothing of its file was seen it is not known
//! either: what was written then has left the records.

use std::collections::BTreeMap;

use coral_wire::opc;

use super::facts::bytes;
use crate::attribution::{Joined, JoinedRpc};

/// A target, and a file on it.
type File = (usize, (u64, u32, u32));

/// Bytes that each RPC had to store or to read, in the order of [`Joined::rpcs`], where that is known.
pub(super) fn stored(j: &Joined) -> Vec<Option<u64>> {
    let carried: Vec<u64> = j.rpcs.iter().map(|r| bytes(&r.rpc)).collect();
    let mut all: Vec<Option<u64>> = carried.iter().copied().map(Some).collect();
    // What happens at one moment in this order: a write has ended, a sync begins, a sync has ended.
    let mut moments: Vec<(i64, u8, usize)> = Vec::new();
    for (i, r) in j.rpcs.iter().enumerate() {
        let (begun, ended) = r.rpc.span;
        match r.rpc.opc {
            opc::OST_WRITE => moments.push((ended, 0, i)),
            opc::OST_SYNC => moments.extend([(begun, 1, i), (ended, 2, i)]),
            _ => {}
        }
    }
    moments.sort_unstable();
    let mut dirty: BTreeMap<File, u64> = BTreeMap::new();
    let mut found: BTreeMap<usize, u64> = BTreeMap::new();
    let file = |r: &JoinedRpc| (r.target, r.rpc.fid);
    for (_, what, i) in moments {
        let of = file(&j.rpcs[i]);
        match what {
            0 => *dirty.entry(of).or_default() += carried[i],
            1 => {
                let own = dirty.get(&of).copied();
                found.insert(i, own.unwrap_or(0));
                let same = dirty.range((of.0, (0, 0, 0))..(of.0 + 1, (0, 0, 0)));
                all[i] = own.map(|_| same.map(|(_, b)| b).sum());
            }
            _ => {
                let own = dirty.entry(of).or_default();
                *own = own.saturating_sub(found.remove(&i).unwrap_or(0));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::rpc_of;

    fn rpc(opc: u32, target: usize, file: u64, span: (i64, i64), bytes: u64) -> JoinedRpc {
        JoinedRpc {
            rpc: coral_stopwatch::Rpc {
                fid: (file, 0, 0),
                bulk_bytes: bytes,
                ..rpc_of(opc, 0, span)
            },
            is_served: true,
            service: String::new(),
            target,
            client: 0,
            reply_late_ns: 0,
            parts: vec![],
        }
    }

    #[test]
    fn a_sync_stores_what_was_written_since_the_last_one() {
        let j = Joined {
            rpcs: vec![
                rpc(opc::OST_WRITE, 1, 7, (0, 10), 100),
                rpc(opc::OST_WRITE, 1, 8, (0, 10), 30),
                rpc(opc::OST_WRITE, 2, 7, (0, 10), 5),
                // of both files at once: each waits for all of it
                rpc(opc::OST_SYNC, 1, 7, (10, 40), 0),
                rpc(opc::OST_SYNC, 1, 8, (20, 50), 0),
                rpc(opc::OST_WRITE, 1, 8, (41, 45), 3),
                rpc(opc::OST_SYNC, 1, 7, (60, 70), 0),
                rpc(opc::OST_SYNC, 1, 8, (80, 90), 0),
                rpc(opc::OST_SYNC, 1, 8, (95, 99), 0),
            ],
            ..Joined::default()
        };
        let known = [100, 30, 5, 130, 130, 3, 3, 3, 0].map(Some);
        assert_eq!(stored(&j), known);
    }

    /// As the records of a file look whose writes have left them, beside another that is written.
    #[test]
    fn what_a_sync_stores_is_not_known_where_its_writes_are_not_seen() {
        let j = Joined {
            rpcs: vec![
                rpc(opc::OST_WRITE, 1, 8, (0, 10), 30),
                rpc(opc::OST_SYNC, 1, 7, (20, 50), 0),
                rpc(opc::OST_SYNC, 1, 7, (60, 70), 0),
                rpc(opc::OST_SYNC, 2, 8, (60, 70), 0),
            ],
            ..Joined::default()
        };
        assert_eq!(stored(&j), [Some(30), None, Some(30), None]);
    }
}
