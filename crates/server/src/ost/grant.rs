//! Grants: space promised to clients so that they may cache writes.
//!
//! A plain ledger without locks or clock. Lustre: `lustre/target/tgt_grant.c`. Simplified: what a
//! client holds is reset to the connect grant whenever it connects anew, and space in flight is not
//! counted apart (a write is on the file system when it is replied to).

use std::collections::BTreeMap;

/// Bytes a grant is rounded to.
const BLOCK_BYTES: u64 = 4096;
/// No client is given more than this part of what is left at once.
const SHARE: u64 = 8;

/// Given at connect, and at most with each write, in bytes: two full requests and the cost of
/// their extents (`tgt_grant_chunk`).
pub(super) const CHUNK_BYTES: u64 = 2 * (super::brw::BRW_BYTES as u64 + EXTENT_TAX_BYTES);
/// Space the file system may take for an extent beside its data, in bytes.
pub(super) const EXTENT_TAX_BYTES: u64 = 24 << 10;

/// Who is asking: an export at its current connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// Export cookie.
    pub(super) cookie: u64,
    /// Number of its connection.
    pub(super) conn_cnt: u32,
    /// Bytes granted at that connect.
    pub(super) initial: u64,
}

/// What a write says about its grant, all in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// Grant the client still has (`o_grant`).
    pub(super) held: u64,
    /// What it would like to be able to dirty (`o_undirty`).
    pub(super) want: u64,
    /// Grant it lost (`o_dropped`).
    pub(super) dropped: u64,
    /// Grant this write uses up.
    pub(super) used: u64,
}

/// The ledger of one OST.
#[derive(Debug, Default)]
pub(super) struct Grants {
    held: BTreeMap<u64, (u32, u64)>,
    total: u64,
}

impl Grants {
    /// Bytes promised to all clients.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// What a new connection is given when `avail` bytes are free.
    pub(super) fn at_connect(&self, avail: u64) -> u64 {
        CHUNK_BYTES.min(self.left(avail) / SHARE / BLOCK_BYTES * BLOCK_BYTES)
    }

    /// Free and not promised.
    pub(super) fn left(&self, avail: u64) -> u64 {
        avail.saturating_sub(self.total)
    }

    /// Books a write and returns what the client is given in addition.
    pub(super) fn write(&mut self, who: Holder, claim: Claim, avail: u64) -> u64 {
        let before = self.balance(who);
        let held = before.saturating_sub(claim.used.saturating_add(claim.dropped));
        self.set(who, held);
        let left = self.left(avail);
        if claim.held >= claim.want || claim.held >= held + CHUNK_BYTES {
            return 0;
        }
        let more = (claim.want - claim.held).min(left / SHARE).min(CHUNK_BYTES);
        // The client may not end up with more than it wants and a chunk.
        let more = more.min((claim.want + CHUNK_BYTES).saturating_sub(held));
        let more = more / BLOCK_BYTES * BLOCK_BYTES;
        self.set(who, held + more);
        more
    }

    /// The client gives `bytes` back.
    pub(super) fn shrink(&mut self, who: Holder, bytes: u64) {
        let held = self.balance(who);
        self.set(who, held.saturating_sub(bytes));
    }

    /// The client is gone.
    pub(super) fn forget(&mut self, cookie: u64) {
        if let Some((_, held)) = self.held.remove(&cookie) {
            self.total -= held;
        }
    }

    fn balance(&mut self, who: Holder) -> u64 {
        match self.held.get(&who.cookie) {
            Some((conn_cnt, held)) if *conn_cnt == who.conn_cnt => *held,
            _ => {
                self.set(who, who.initial);
                who.initial
            }
        }
    }

    fn set(&mut self, who: Holder, held: u64) {
        let old = self.held.insert(who.cookie, (who.conn_cnt, held));
        self.total = self.total - old.map_or(0, |(_, h)| h) + held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn who(cookie: u64, conn_cnt: u32) -> Holder {
        Holder { cookie, conn_cnt, initial: CHUNK_BYTES }
    }

    #[test]
    fn the_connect_grant_is_a_real_servers() {
        // o_grant of the OST_CONNECT reply in session.pcap.
        assert_eq!(Grants::default().at_connect(GIB), 8_437_760);
        assert_eq!(Grants::default().at_connect(0), 0);
        assert_eq!(Grants::default().at_connect(40 << 20), 5 << 20);
    }

    #[test]
    fn a_writer_keeps_its_credit_and_disconnect_returns_it() {
        let mut g = Grants::default();
        let mut held = CHUNK_BYTES;
        for _ in 0..100 {
            let used = 1 << 20;
            held -= used;
            held += g.write(who(1, 1), Claim { held, want: 64 << 20, dropped: 0, used }, GIB);
            assert!(held <= (64 << 20) + CHUNK_BYTES);
            assert_eq!(g.total(), held);
        }
        assert!(held >= 32 << 20, "a steady writer is given more: {held}");
        g.write(who(2, 1), Claim::default(), GIB);
        assert_eq!(g.total(), held + CHUNK_BYTES);
        g.shrink(who(2, 1), 1 << 20);
        g.forget(1);
        assert_eq!(g.total(), CHUNK_BYTES - (1 << 20));
        g.forget(2);
        g.forget(3);
        assert_eq!(g.total(), 0);
    }

    #[test]
    fn a_new_connection_starts_over() {
        let mut g = Grants::default();
        g.write(who(1, 1), Claim { used: CHUNK_BYTES, ..Default::default() }, GIB);
        assert_eq!(g.total(), 0);
        g.write(who(1, 2), Claim::default(), GIB);
        assert_eq!(g.total(), CHUNK_BYTES);
    }

    #[test]
    fn promises_never_exceed_the_disk() {
        let mut g = Grants::default();
        let avail = 100 << 20;
        for cookie in 0..1000 {
            let initial = g.at_connect(avail);
            let h = Holder { cookie, conn_cnt: 1, initial };
            g.write(h, Claim { held: initial, want: GIB, ..Default::default() }, avail);
            assert!(g.total() <= avail, "{} after {cookie}", g.total());
        }
    }

    #[test]
    fn a_lying_client_gets_no_more_than_nothing() {
        let mut g = Grants::default();
        let lie = Claim { held: u64::MAX, want: u64::MAX, dropped: u64::MAX, used: u64::MAX };
        assert_eq!(g.write(who(1, 1), lie, GIB), 0);
        assert_eq!(g.total(), 0);
        let greedy = Claim { want: u64::MAX / 2, ..Default::default() };
        assert!(g.write(who(1, 1), greedy, GIB) <= CHUNK_BYTES);
    }
}
