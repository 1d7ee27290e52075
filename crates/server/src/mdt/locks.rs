//! Server-side locks around a change, so that clients drop what they cache of it first
//! (`lustre/mdt/mdt_reint.c`).
//!
//! * A directory whose entries change is locked CW on UPDATE: changers of one directory do not
//!   exclude each other (the core's lock orders them), readers' PR locks are called back.
//! * An object that changes is locked EX on the bits its change touches.
//! * A FID that is both in one operation (`mv a/x a`, a link to a directory) has one lock, EX on all bits.
//!
//! # Why no two operations wait for each other for ever
//!
//! A lock waits for granted locks and for those that were queued before it, whosever they are: so what an operation waits
//! for is the whole resource, whatever the bits. Two rules make a circle impossible:
//!
//! 1. An operation has at most one lock on a resource. (A second one, on other bits, would queue behind a client's lock that
//!    has bits of both and waits for the first.)
//! 2. An operation that holds a lock waits only for resources with a larger FID, whatever their role is.
//!
//! In a circle of operations, each of which holds a resource that the one before it waits for, FIDs would grow all the way
//! round. A client in the circle gives its granted lock up when it is asked, without waiting for a lock of this server, or is
//! evicted; its cancels and the writes before them are served in lanes of their own ([`coral_ptlrpc::Service`]).
//! A client that keeps attributes of a file back sends them before it gives its lock up: that setattr takes no lock and has a place
//! of its own, as others wait for the lock already. So do the removals, and the opens that make files, of a client that has a
//! directory to itself (`lending.rs`).
//! Whoever finds out late what it must lock lets go of all it holds and starts over; that it looked up before it locked is
//! looked up again under the core's lock.
//! Over several MDTs the same holds with pairs of FID and MDT in the place of FIDs, where the MDT on which the object lies comes after
//! those on which it has names. For whoever looks up a name on one MDT has the lock of that MDT in use while it asks the other one
//! about the object, and may have to wait there: it waits in the same order as operations do.
//!
//! Every place where a server waits for a lock:
//!
//! | where | what it holds while it waits | what it waits for |
//! | --- | --- | --- |
//! | create, link, unlink, rename, setattr, setxattr, set_layout (`reint.rs`, `reint/`) | locks on smaller FIDs, taken by the same [`MdtOps::lock`] | the next larger FID |
//! | rename between directories of one MDT | the rename mutex, which is taken before any lock and by nobody who holds one | as above |
//! | an operation over several MDTs (`trans.rs`, `remote.rs`, `reint/over.rs`) | locks on smaller pairs of FID and MDT; of a directory that moves `Fid::BFL` on MDT0000, the smallest of all | the next larger pair |
//! | setattr that makes a layout, `set_layout` | as above: LAYOUT is one of the bits of the one lock | as above |
//! | open that creates, open that makes a layout (`opening.rs`) | nothing: the lock of an earlier try is dropped first; a free lock on the parent is taken without a wait | the parent, or the layout |
//! | layout intent (`intent.rs`) | nothing | the layout |
//! | getattr and open of a file by a kernel client (`intent.rs`, `opening.rs`) | nothing; the client the name of the file on another MDT | the file |
//! | getattr, lookup and open of a file whose maker may keep attributes back (`intent.rs`, `getattr.rs`, `opening.rs`) | nothing; the client the name of the file on another MDT | the file |
//! | a directory that is going to be lent (`lending.rs`) | nothing | the directory |
//! | what is about a directory that is lent (`lending.rs`, `intent.rs`, `opening.rs`) | nothing | the directory |
//! | removal of data on the MDT (`dom.rs`) | nothing: each object is a future with one lock | DOM of one object |
//! | data on the MDT, OST read, write, punch, fallocate (`ost/io.rs`, `ost/ops.rs`) | nothing: data of a write is fetched before | one object |
//! | OST destroy (`ost/ops.rs`) | nothing: a range of objects is locked one after another | one object |
//! | the MGS's configuration locks | nothing: dropped as soon as granted | one resource |
//! | an operation over several MDTs, on the MDT that coordinates it and on the others (`trans.rs`, `out.rs`) | locks on smaller FIDs, and on the same FID on MDTs where it has names | the next larger FID |
//! | locks given with intents, several in a batch (`batch.rs`) | they never wait | |
//! | a client's plain or flock enqueue | nothing of the server's: it is answered at once and queued | one resource; flocks are searched for circles |

use coral_ldlm::{ExportId, LocalLock};
use coral_wire::Fid;
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmType, Policy};

use super::handler::MdtOps;

/// Locks held during a change; released when dropped.
#[derive(Default)]
pub struct HeldLocks {
    locks: smallvec::SmallVec<[LocalLock; 4]>,
}

impl HeldLocks {
    /// Holds what `other` holds, too.
    pub(super) fn add(&mut self, other: HeldLocks) {
        self.locks.extend(other.locks);
    }
}

/// One lock of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NeededLock {
    fid: Fid,
    mode: LdlmMode,
    bits: Ibits,
}

/// What an operation locks, in the order in which it does: by FID, one lock for each.
fn in_order(dirs: &[Fid], objects: &[(Fid, Ibits)]) -> smallvec::SmallVec<[NeededLock; 4]> {
    let dirs = dirs.iter().map(|&fid| NeededLock {
        fid,
        mode: LdlmMode::CW,
        bits: Ibits::UPDATE,
    });
    let objects = objects.iter().map(|&(fid, bits)| NeededLock {
        fid,
        mode: LdlmMode::EX,
        bits,
    });
    let mut needs: smallvec::SmallVec<[NeededLock; 4]> = dirs.chain(objects).collect();
    needs.sort_by_key(|n| n.fid);
    needs.dedup_by(|next, kept| {
        let same = next.fid == kept.fid;
        if same {
            kept.bits.0 |= next.bits.0;
            if next.mode == LdlmMode::EX {
                kept.mode = LdlmMode::EX;
            }
        }
        same
    });
    needs
}

impl MdtOps {
    /// Locks `dirs` for a change of entries and `objects` for a change of what the bits cover. The caller holds no lock.
    /// `own`: the client whose own locks stay.
    pub async fn lock(
        &self,
        dirs: &[Fid],
        objects: &[(Fid, Ibits)],
        own: Option<ExportId>,
    ) -> HeldLocks {
        let mut held = HeldLocks::default();
        for need in in_order(dirs, objects) {
            held.locks.push(self.lock_one(&need, own).await);
        }
        held
    }

    /// Locks `dir` for a change of entries if nobody has to give up a lock for it. The core's lock may be held; it must not be when
    /// this lock is let go of, as those that wait for it then run.
    pub(super) fn lock_now(&self, dir: &Fid, own: Option<ExportId>) -> Option<HeldLocks> {
        let policy = Policy::ibits(Ibits::UPDATE);
        let (ty, mode) = (LdlmType::IBITS, LdlmMode::CW);
        let lock = self
            .ldlm
            .try_lock_local(dir.res_id(), ty, mode, policy, own)?;
        let mut held = HeldLocks::default();
        held.locks.push(lock);
        Some(held)
    }

    /// Asks client `exp` for the attributes of `fid` that it keeps back. False: it could not be asked.
    pub async fn ask_kept(&self, exp: ExportId, fid: &Fid) -> bool {
        self.ldlm
            .ask_kept(exp, fid.res_id(), Ibits::ATTRIBUTES)
            .await
    }

    /// Locks the attributes of `fid`, so that nobody keeps any of them back. The caller holds no lock.
    pub async fn lock_kept(&self, fid: &Fid, own: Option<ExportId>) -> HeldLocks {
        self.lock(&[], &[(*fid, Ibits::ATTRIBUTES)], own).await
    }

    /// Locks the layout of `fid` for a change; nobody keeps a lock on it. The caller holds no lock.
    pub async fn lock_layout(&self, fid: &Fid) -> HeldLocks {
        self.lock(&[], &[(*fid, Ibits::LAYOUT)], None).await
    }

    /// Locks one object for a change by an operation over several MDTs, which has them all locked in the order of FIDs.
    pub(super) async fn lock_next(&self, fid: &Fid, bits: Ibits) -> HeldLocks {
        let mode = LdlmMode::EX;
        let lock = self
            .lock_one(
                &NeededLock {
                    fid: *fid,
                    mode,
                    bits,
                },
                None,
            )
            .await;
        let mut held = HeldLocks::default();
        held.locks.push(lock);
        held
    }

    /// The same before there are clients, so that nobody is waited for.
    pub(super) fn lock_first(&self, fid: &Fid, bits: Ibits) -> HeldLocks {
        let policy = Policy::ibits(bits);
        let lock =
            self.ldlm
                .try_lock_local(fid.res_id(), LdlmType::IBITS, LdlmMode::EX, policy, None);
        let mut held = HeldLocks::default();
        held.locks.extend(lock);
        held
    }

    async fn lock_one(&self, need: &NeededLock, own: Option<ExportId>) -> LocalLock {
        let (res, policy) = (need.fid.res_id(), Policy::ibits(need.bits));
        match self
            .ldlm
            .try_lock_local(res, LdlmType::IBITS, need.mode, policy, own)
        {
            Some(l) => l,
            None => {
                self.ldlm
                    .lock_local(res, LdlmType::IBITS, need.mode, policy, own)
                    .await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fid(n: u8) -> Fid {
        Fid::new(0x2_0000_0400, u32::from(n))
    }

    proptest! {
        /// Strictly increasing FIDs: rules 1 and 2 of the header. Nothing asked for is left out.
        #[test]
        fn one_lock_a_resource_in_one_order(dirs in prop::collection::vec(0u8..6, 0..3), objects in prop::collection::vec((0u8..6, 1u64..64), 0..4)) {
            let dirs: Vec<Fid> = dirs.into_iter().map(fid).collect();
            let objects: Vec<(Fid, Ibits)> = objects.into_iter().map(|(n, bits)| (fid(n), Ibits(bits))).collect();
            let needs = in_order(&dirs, &objects);
            prop_assert!(needs.windows(2).all(|w| w[0].fid < w[1].fid), "{needs:?}");
            let find = |f: &Fid| needs.iter().find(|n| n.fid == *f).copied();
            for d in &dirs {
                prop_assert!(find(d).is_some_and(|n| n.bits.0 & Ibits::UPDATE.0 != 0));
            }
            for (f, bits) in &objects {
                prop_assert!(find(f).is_some_and(|n| n.mode == LdlmMode::EX && n.bits.0 & bits.0 == bits.0));
            }
        }
    }
}
