//! Which connection a message takes, which is opened next and whom to let in, as plain functions
//! (`ksocknal_match_tx_v3`, `ksocknal_connect` and `ksocknal_create_conn` in `lnet/klnds/socklnd`).

use crate::sock::frame::HEAD_LEN;
use crate::sock::hello::ConnType;
use crate::{Limits, Nid};

/// Messages below this many bytes on the wire, headers included, are small (`min_bulk`).
pub(super) const MIN_BULK: usize = 1024;

/// The connection types a message may take, best first. Never the one for incoming bulk.
pub(super) fn types_for(len: usize) -> [ConnType; 2] {
    if len < MIN_BULK {
        [ConnType::Control, ConnType::BulkOut]
    } else {
        [ConnType::BulkOut, ConnType::Control]
    }
}

/// Index of the connection to send on, out of (type, bytes queued): of several the emptiest, and of those the newest.
pub(super) fn choose(
    conns: impl Iterator<Item = (ConnType, u64)> + Clone,
    wanted: &[ConnType],
) -> Option<usize> {
    wanted.iter().find_map(|t| {
        let of_type = conns
            .clone()
            .enumerate()
            .filter(|(_, (ctype, _))| ctype == t);
        of_type
            .min_by_key(|(i, (_, queued))| (*queued, usize::MAX - i))
            .map(|(i, _)| i)
    })
}

/// The next type to open.
pub(super) fn missing(conns: impl Iterator<Item = ConnType> + Clone) -> Option<ConnType> {
    ConnType::ALL
        .into_iter()
        .find(|t| !conns.clone().any(|c| c == *t))
}

/// What to do with a peer that wants to open a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Welcome,
    /// It shall try again later: we are connecting to it and have the higher NID, or it has enough connections.
    Later,
}

pub(super) fn admit(
    us: Nid,
    peer: Nid,
    connecting: bool,
    same_type: usize,
    limits: &Limits,
) -> Admission {
    if connecting && peer < us || same_type >= limits.conns_per_type {
        Admission::Later
    } else {
        Admission::Welcome
    }
}

const _: () = assert!(HEAD_LEN < MIN_BULK, "an ACK has to be a small message");

#[cfg(test)]
mod tests {
    use super::*;
    use ConnType::*;

    #[test]
    fn small_on_control_large_on_bulk_and_either_before_none() {
        let pick = |conns: &[(ConnType, u64)], len| {
            choose(conns.iter().copied(), &types_for(len)).map(|i| conns[i].0)
        };
        let all = [(Control, 0), (BulkIn, 0), (BulkOut, 0)];
        assert_eq!(pick(&all, 1023), Some(Control));
        assert_eq!(pick(&all, 1024), Some(BulkOut));
        assert_eq!(pick(&all[..2], 5000), Some(Control));
        assert_eq!(pick(&all[1..], 100), Some(BulkOut));
        assert_eq!(
            pick(&all[1..2], 100),
            None,
            "never on the connection for incoming bulk"
        );
    }

    #[test]
    fn several_of_a_type_share_the_load() {
        let pick = |conns: &[(ConnType, u64)]| choose(conns.iter().copied(), &types_for(1 << 20));
        assert_eq!(pick(&[(BulkOut, 10), (BulkOut, 5), (BulkOut, 7)]), Some(1));
        assert_eq!(
            pick(&[(BulkOut, 5), (BulkOut, 5)]),
            Some(1),
            "the newer one: the older may be dead"
        );
    }

    #[test]
    fn opening_order() {
        assert_eq!(missing([].into_iter()), Some(Control));
        assert_eq!(missing([Control].into_iter()), Some(BulkIn));
        assert_eq!(missing([BulkIn, Control].into_iter()), Some(BulkOut));
        assert_eq!(missing([BulkOut, BulkIn, Control].into_iter()), None);
    }

    #[test]
    fn race_goes_to_the_higher_nid() {
        let (low, high): (Nid, Nid) = (
            "10.0.0.1@tcp".parse().unwrap(),
            "10.0.0.2@tcp".parse().unwrap(),
        );
        let limits = Limits::default();
        assert_eq!(admit(high, low, true, 0, &limits), Admission::Later);
        assert_eq!(admit(low, high, true, 0, &limits), Admission::Welcome);
        assert_eq!(admit(high, low, false, 0, &limits), Admission::Welcome);
        assert_eq!(
            admit(low, high, false, limits.conns_per_type, &limits),
            Admission::Later
        );
    }
}
