//! Grants: space promised to clients so that they may cache writes.
//!
//! A ledger without clock: who has how much. The space itself is promised by the device ([`Room`]), which counts what others on
//! the same disk have been promised, and what is under way. Lustre: `lustre/target/tgt_grant.c`.
//!
//! Invariants:
//! * What a client was told to have is booked, from its connect on until it is gone, and promised by the device.
//! * What a write uses up stays promised until it is stored ([`Booked::spent`]): it is not seen in the free space before.
//! * A write that was stored, and is sent again because its reply was lost, spends nothing once more. What the client counts as
//!   used by it stays promised until the client connects again or is gone.

use std::collections::BTreeMap;

use coral_osd::Room;

/// Bytes a grant is rounded to.
const BLOCK_BYTES: u64 = 4096;
/// No client is given more than this part of what is left at once.
const SHARE: u64 = 8;

/// Given at connect, and at most with each write, in bytes: two full requests and the cost of
/// their extents (`tgt_grant_chunk`).
pub(super) const CHUNK_BYTES: u64 = 2 * (super::brw::BRW_BYTES as u64 + EXTENT_TAX_BYTES);
/// Space the file system may take for an extent beside its data, in bytes.
pub(super) const EXTENT_TAX_BYTES: u64 = 24 << 10;

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

/// What came of booking a write, all in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Booked {
    /// Given to the client in addition.
    pub(super) more: u64,
    /// Taken from its grant; to be given back to the device once the write is stored.
    pub(super) spent: u64,
}

/// The ledger of one OST.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// By export cookie, of every client that is connected, bytes.
    held: BTreeMap<u64, u64>,
    total: u64,
}

impl Grants {
    /// Bytes promised to all clients.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes promised to one.
    pub(super) fn held(&self, cookie: u64) -> u64 {
        self.held.get(&cookie).copied().unwrap_or(0)
    }

    /// A client is connected; all that it is promised from now on. `has`: what it says it has already, `None` when it connects
    /// for the first time (`tgt_grant_connect`).
    pub(super) fn connect(&mut self, cookie: u64, has: Option<u64>, room: &dyn Room) -> u64 {
        let (booked, left) = (self.held.get(&cookie).copied(), left(room));
        let first = CHUNK_BYTES.min(left / SHARE);
        let more = match (has, booked) {
            (None, booked) => first.saturating_sub(booked.unwrap_or(0)),
            // A write that took of it may have come here, and its reply not there.
            (Some(has), Some(booked)) => has.saturating_sub(booked).min(left / SHARE),
            // This server was started since. What the client keeps back relies on it.
            (Some(has), None) => has.min(left).max(first),
        };
        let held = booked.unwrap_or(0) + promise(room, more);
        self.set(cookie, held);
        held
    }

    /// Books a write.
    pub(super) fn write(&mut self, cookie: u64, claim: Claim, room: &dyn Room) -> Booked {
        // one that is gone has nothing, and is given nothing
        let Some(before) = self.held.get(&cookie).copied() else {
            return Booked::default();
        };
        let spent = self.spend(cookie, claim.used.saturating_add(claim.dropped));
        let held = before - spent;
        if claim.held >= claim.want || claim.held >= held + CHUNK_BYTES {
            return Booked { more: 0, spent };
        }
        let more = (claim.want - claim.held)
            .min(left(room) / SHARE)
            .min(CHUNK_BYTES);
        // The client may not end up with more than it wants and a chunk.
        let more = promise(
            room,
            more.min((claim.want + CHUNK_BYTES).saturating_sub(held)),
        );
        self.set(cookie, held + more);
        Booked { more, spent }
    }

    /// A write takes `bytes` of the client's grant; how much it had of them.
    pub(super) fn spend(&mut self, cookie: u64, bytes: u64) -> u64 {
        let before = self.held(cookie);
        let held = before.saturating_sub(bytes);
        if held < before {
            self.set(cookie, held);
        }
        before - held
    }

    /// The client gives `bytes` back.
    pub(super) fn shrink(&mut self, cookie: u64, bytes: u64, room: &dyn Room) {
        if let Some(held) = self.held.get(&cookie).copied() {
            let keeps = held.saturating_sub(bytes);
            self.set(cookie, keeps);
            room.unpromise(held - keeps);
        }
    }

    /// The client is gone.
    pub(super) fn forget(&mut self, cookie: u64, room: &dyn Room) {
        let held = self.held.remove(&cookie).unwrap_or(0);
        self.total -= held;
        room.unpromise(held);
    }

    fn set(&mut self, cookie: u64, held: u64) {
        let old = self.held.insert(cookie, held).unwrap_or(0);
        self.total = self.total - old + held;
    }
}

/// Bytes that may still be promised; none where that cannot be told.
fn left(room: &dyn Room) -> u64 {
    room.left().unwrap_or_else(|e| {
        tracing::error!("storage: {e}");
        0
    })
}

/// Has whole blocks of `most` bytes promised; how much was.
fn promise(room: &dyn Room, most: u64) -> u64 {
    let most = most / BLOCK_BYTES * BLOCK_BYTES;
    let got = match room.promise(most) {
        Ok(got) => got,
        Err(e) => {
            tracing::error!("storage: {e}");
            return 0;
        }
    };
    let whole = got / BLOCK_BYTES * BLOCK_BYTES;
    if got > whole {
        room.unpromise(got - whole);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    use coral_osd::OsdMem;

    fn room(bytes: u64) -> OsdMem {
        OsdMem::with_capacity(bytes)
    }

    #[test]
    fn the_connect_grant_is_a_real_servers() {
        let first = |avail| Grants::default().connect(1, None, &room(avail));
        // o_grant of the OST_CONNECT reply in session.pcap.
        assert_eq!(first(GIB), 8_437_760);
        assert_eq!(first(0), 0);
        assert_eq!(first(40 << 20), 5 << 20);
    }

    #[test]
    fn a_writer_keeps_its_credit_and_disconnect_returns_it() {
        let (mut g, gib) = (Grants::default(), room(GIB));
        let mut held = g.connect(1, None, &gib);
        assert_eq!(
            (held, g.total()),
            (CHUNK_BYTES, CHUNK_BYTES),
            "booked when it is told"
        );
        for _ in 0..100 {
            let used = 1 << 20;
            held -= used;
            let booked = g.write(
                1,
                Claim {
                    held,
                    want: 64 << 20,
                    dropped: 0,
                    used,
                },
                &gib,
            );
            assert_eq!(
                gib.left().unwrap(),
                GIB - held - booked.more - used,
                "what is on its way is promised still"
            );
            gib.unpromise(booked.spent);
            held += booked.more;
            assert!(held <= (64 << 20) + CHUNK_BYTES);
            assert_eq!((g.total(), gib.left().unwrap()), (held, GIB - held));
        }
        assert!(held >= 32 << 20, "a steady writer is given more: {held}");
        g.connect(2, None, &gib);
        assert_eq!(g.total(), held + CHUNK_BYTES);
        g.shrink(2, 1 << 20, &gib);
        g.forget(1, &gib);
        assert_eq!(g.total(), CHUNK_BYTES - (1 << 20));
        g.forget(2, &gib);
        g.forget(3, &gib);
        assert_eq!(g.total(), 0);
        assert_eq!(
            g.write(
                2,
                Claim {
                    want: GIB,
                    ..Default::default()
                },
                &gib
            ),
            Booked::default(),
            "it is gone"
        );
        assert_eq!((g.total(), gib.left().unwrap()), (0, GIB));
    }

    #[test]
    fn a_reconnected_client_keeps_what_it_has_and_gets_no_second_grant() {
        let (mut g, gib) = (Grants::default(), room(GIB));
        g.connect(1, None, &gib);
        assert_eq!(
            g.connect(1, None, &gib),
            CHUNK_BYTES,
            "the reply to the first was lost"
        );
        let more = g
            .write(
                1,
                Claim {
                    held: CHUNK_BYTES - 4096,
                    want: 32 << 20,
                    used: 4096,
                    ..Default::default()
                },
                &gib,
            )
            .more;
        let held = CHUNK_BYTES - 4096 + more;
        assert!(held > CHUNK_BYTES);
        assert_eq!((g.connect(1, Some(held), &gib), g.total()), (held, held));
        assert_eq!(
            g.connect(1, Some(0), &gib),
            held,
            "what it does not know of is on its way"
        );
        // a write of 1 MiB is here, and its reply was lost
        g.write(
            1,
            Claim {
                held: u64::MAX,
                used: 1 << 20,
                ..Default::default()
            },
            &gib,
        );
        assert_eq!((g.connect(1, Some(held), &gib), g.total()), (held, held));
    }

    #[test]
    fn a_restarted_server_books_what_its_clients_have() {
        let mut g = Grants::default();
        let avail = 64 << 20;
        let disk = room(avail);
        assert_eq!(g.connect(1, Some(48 << 20), &disk), 48 << 20);
        assert_eq!(g.connect(2, Some(8 << 20), &disk), 8 << 20);
        assert_eq!(g.connect(3, Some(0), &disk), 1 << 20);
        assert_eq!(
            g.connect(4, Some(GIB), &disk),
            7 << 20,
            "no more than there is"
        );
        assert_eq!(g.total(), avail);
    }

    #[test]
    fn promises_never_exceed_the_disk() {
        // Two OSTs on one disk.
        let mut osts = [Grants::default(), Grants::default()];
        let avail = 100 << 20;
        let disk = room(avail);
        for cookie in 0..1000 {
            let g = &mut osts[cookie as usize % 2];
            let held = g.connect(cookie, None, &disk);
            g.write(
                cookie,
                Claim {
                    held,
                    want: GIB,
                    ..Default::default()
                },
                &disk,
            );
            let total: u64 = osts.iter().map(Grants::total).sum();
            assert!(total <= avail, "{total} after {cookie}");
            assert_eq!(disk.left().unwrap(), avail - total);
        }
    }

    #[test]
    fn a_lying_client_gets_no_more_than_nothing() {
        let (mut g, gib) = (Grants::default(), room(GIB));
        let lie = Claim {
            held: u64::MAX,
            want: u64::MAX,
            dropped: u64::MAX,
            used: u64::MAX,
        };
        g.connect(1, None, &gib);
        assert_eq!(
            g.write(1, lie, &gib),
            Booked {
                more: 0,
                spent: CHUNK_BYTES
            }
        );
        assert_eq!(g.total(), 0);
        let greedy = Claim {
            want: u64::MAX / 2,
            ..Default::default()
        };
        assert!(g.write(1, greedy, &gib).more <= CHUNK_BYTES);
    }
}
