//! What imports and services count. Lustre's words are those of `osc.*.import`, `osc.*.stats` and `mds.MDS.*.stats`
//! (`lustre/ptlrpc/lproc_ptlrpc.c`).

use coral_metrics::{Counter, Desc, Family, Gauge, Histogram, LabelSet, Probe};
use coral_wire::ptlrpc::opc;

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[RpcStats::TABLE, ServiceStats::TABLE];

/// Opcodes by their place in [`opc::ALL`]; one value more for all that are not there.
pub const OPCODES: LabelSet = LabelSet {
    label: "opcode",
    count: opc::ALL.len() + 1,
    name: |i| match opc::ALL.get(i) {
        Some(opcode) => opc::name(*opcode).unwrap_or("?"),
        None => "other",
    },
};

/// One past the greatest opcode.
const OPCODES_END: usize = 1 << 11;

/// Where each opcode stands in [`OPCODES`].
const PLACES: [u8; OPCODES_END] = {
    assert!(OPCODES.count <= u8::MAX as usize);
    let mut places = [opc::ALL.len() as u8; OPCODES_END];
    let mut i = 0;
    while i < opc::ALL.len() {
        places[opc::ALL[i] as usize] = i as u8;
        i += 1;
    }
    places
};

/// Where an opcode stands in [`OPCODES`].
pub(crate) fn place(opcode: u32) -> usize {
    PLACES
        .get(opcode as usize)
        .map_or(opc::ALL.len(), |p| (*p).into())
}

coral_metrics::group! {
    /// What an import has done since it was made.
    pub struct RpcStats {
        /// Time from call to reply by opcode, with waits for slots and resends; one for each request that was answered.
        pub answered: Family<Histogram> = "coral_ptlrpc_client_request_seconds", Seconds, Stable, by OPCODES;
        /// Requests that hold one of the places of `max_rpcs_in_flight` (`inflight`).
        pub in_flight: Gauge = "coral_ptlrpc_client_in_flight", Requests, Stable;
        /// Waits for such a place, or for a slot of modifying requests; those that got one at once are not in it.
        pub slot_wait: Histogram = "coral_ptlrpc_client_slot_wait_seconds", Seconds, Stable;
        /// Bulk data that servers put to us.
        pub bulk_read: Counter = "coral_ptlrpc_client_bulk_read_bytes_total", Bytes, Stable;
        /// Bulk data offered to servers, once for each request that was answered.
        pub bulk_write: Counter = "coral_ptlrpc_client_bulk_write_bytes_total", Bytes, Stable;
        /// Requests sent again.
        pub resent: Counter = "coral_ptlrpc_client_resent_total", Requests, Stable;
        /// Requests replayed after a restart of the server.
        pub replayed: Counter = "coral_ptlrpc_client_replayed_total", Requests, Stable;
        /// Waits for a reply that ran into their deadline (`timeouts`).
        pub timeouts: Counter = "coral_ptlrpc_client_timeouts_total", Requests, Stable;
        /// Early replies, which extended a deadline.
        pub early: Counter = "coral_ptlrpc_client_early_replies_total", Requests, Stable;
        /// Connections made, the first included (`connection_attempts` that succeeded).
        pub connects: Counter = "coral_ptlrpc_client_connects_total", Connections, Stable;
        /// Evictions by the server.
        pub evictions: Counter = "coral_ptlrpc_client_evictions_total", Connections, Stable;
    }
}

impl RpcStats {
    /// How many requests of this opcode were answered. Those that [`opc::ALL`] does not know are counted together.
    pub fn answered_of(&self, opcode: u32) -> u64 {
        self.answered.at(place(opcode)).count()
    }

    /// How many requests were answered, by the name of their opcode.
    pub fn by_opcode(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let used = self.answered.used();
        used.map(|(i, took)| ((OPCODES.name)(i), took.count()))
    }
}

coral_metrics::group! {
    /// What a service has done since its start.
    pub struct ServiceStats {
        /// Requests taken.
        pub requests: Counter = "coral_ptlrpc_service_requests_total", Requests, Stable;
        /// Messages that are no requests.
        pub malformed: Counter = "coral_ptlrpc_service_malformed_total", Requests, Stable;
        /// Requests dropped because the queue was full.
        pub dropped_full: Counter = "coral_ptlrpc_service_dropped_total", Requests, Stable;
        /// Requests that had to be queued.
        pub queued: Counter = "coral_ptlrpc_service_queued_total", Requests, Stable;
        /// Requests in the queues now (`req_qdepth`).
        pub depth: Probe = "coral_ptlrpc_service_req_qdepth", Requests, Stable;
        /// Requests being handled now (`req_active`).
        pub active: Probe = "coral_ptlrpc_service_req_active", Requests, Stable;
        /// Time from arrival to the begin of handling (`req_waittime`); 0 for those that were not queued.
        pub wait: Histogram = "coral_ptlrpc_service_req_wait_seconds", Seconds, Stable;
        /// Time from the begin of handling to the reply, by opcode; one for each request that was answered.
        pub served: Family<Histogram> = "coral_ptlrpc_service_request_seconds", Seconds, Stable, by OPCODES;
        /// Early replies sent.
        pub early_replies: Counter = "coral_ptlrpc_service_early_replies_total", Requests, Stable;
        /// Replies sent.
        pub replies: Counter = "coral_ptlrpc_service_replies_total", Requests, Stable;
        /// Bulk data put to clients.
        pub bulk_read: Counter = "coral_ptlrpc_service_bulk_read_bytes_total", Bytes, Stable;
        /// Bulk data fetched from clients.
        pub bulk_write: Counter = "coral_ptlrpc_service_bulk_write_bytes_total", Bytes, Stable;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_has_its_place_and_its_name() {
        for (i, opcode) in opc::ALL.iter().enumerate() {
            assert_eq!(place(*opcode), i);
            assert_eq!(Some((OPCODES.name)(i)), opc::name(*opcode));
        }
        for unknown in [0, 2047, 2048, u32::MAX] {
            assert_eq!((OPCODES.name)(place(unknown)), "other");
        }
    }
}
