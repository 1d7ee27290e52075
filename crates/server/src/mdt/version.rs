//! Versions of objects, and what a replay is allowed on (`mdt_version_check`, `mdt_version_save` in
//! `lustre/mdt/mdt_reint.c`).
//!
//! The version of an object is the number of the transaction that created it, gave it a name, or changed its mode, owner,
//! flags or extended attributes. The reply to a change says which versions it found; its replay says the same, and is done
//! only where it finds them again, else refused with EOVERFLOW. So when changes of a client that did not come back are
//! missing, what another client did later is not done to other objects than it was done to. Every name an object gets makes
//! a version: what a name stood for is told by the version of the object that it names.

use coral_wire::connect::ConnectFlags as F;
use coral_wire::{Errno, Fid};

use super::ctx::{Answer, Ctx};
use super::record::Inode;
use super::store::{MdtResult, Txn};

/// Version of an object that is not there (`ENOENT_VERSION`, `lustre/mdt/mdt_internal.h`).
const ENOENT_VERSION: u64 = 1;
/// Version of an object that nothing has happened to since versions are kept.
const FIRST_VERSION: u64 = 0;

/// The version of an object that is there.
fn of(ino: &Inode) -> u64 {
    if ino.transno == ENOENT_VERSION {
        FIRST_VERSION
    } else {
        ino.transno
    }
}

/// How the versions that a request finds are used.
#[derive(Debug, PartialEq, Eq)]
enum Use {
    /// They are told in the reply.
    Told,
    /// They must be these.
    Compared([u64; 4]),
    /// The client does not keep versions. Nobody knows what its replay found: it is done while no change is missing.
    Unknown,
    /// The client was told none, because its server was an older one; or all that it found had the first version. When a change is
    /// missing, all that its replay finds must have that.
    Untold,
}

impl Use {
    /// In a request of a client that keeps versions or not; `said`: what a replay says it had found.
    fn of(keeps: bool, replay: bool, said: [u64; 4]) -> Use {
        match (keeps, replay) {
            (true, false) => Use::Told,
            (true, true) if said == [FIRST_VERSION; 4] => Use::Untold,
            (true, true) => Use::Compared(said),
            (false, _) => Use::Unknown,
        }
    }
}

/// The versions that one request finds, in the order of Lustre's operation of the same kind.
pub struct PreVersions<'a> {
    cx: &'a Ctx,
    used: Use,
    found: [u64; 4],
}

impl Ctx {
    /// Before a change: its versions.
    pub fn pre_versions(&self) -> PreVersions<'_> {
        let used = Use::of(
            self.rq.exp.connect().has(F::VBR),
            self.rq.is_replay(),
            self.rq.rq.body.pre_versions,
        );
        PreVersions {
            cx: self,
            used,
            found: [0; 4],
        }
    }
}

impl PreVersions<'_> {
    /// The object `fid`, which may be missing, is version number `i`.
    pub fn object(&mut self, i: usize, t: &mut Txn<'_>, fid: Option<&Fid>) -> MdtResult<()> {
        let held = fid.map(|f| t.find(f)).transpose()?.flatten();
        self.found(i, held.map_or(ENOENT_VERSION, |h| of(t.ino(h))))
    }

    /// The same where a request that is no replay fails anyway unless there is none.
    pub fn absent(
        &mut self,
        i: usize,
        t: &mut Txn<'_>,
        look: impl FnOnce(&Txn<'_>) -> MdtResult<Option<Fid>>,
    ) -> MdtResult<()> {
        if !self.cx.rq.is_replay() {
            return self.found(i, ENOENT_VERSION);
        }
        let fid = look(t)?;
        self.object(i, t, fid.as_ref())
    }

    /// The object that a replay says it was done to is the one that is there now.
    pub fn same(&mut self, said: &Fid, is: Option<&Fid>) -> MdtResult<()> {
        // a kernel client says what it believed; what it hit is told by the version
        let untold = self.used == Use::Untold && self.cx.rq.target.changes_are_missing();
        let exact = self.cx.coral || self.used == Use::Unknown || untold;
        match self.cx.rq.is_replay() && exact && !said.is_zero() && is != Some(said) {
            true => self.refuse(),
            false => Ok(()),
        }
    }

    fn found(&mut self, i: usize, version: u64) -> MdtResult<()> {
        self.found[i] = version;
        let right = match &self.used {
            Use::Told => true,
            Use::Compared(versions) => versions[i] == version,
            Use::Untold => version == FIRST_VERSION || !self.cx.rq.target.changes_are_missing(),
            Use::Unknown => !self.cx.rq.is_replay() || !self.cx.rq.target.changes_are_missing(),
        };
        if right { Ok(()) } else { self.refuse() }
    }

    /// The replay is not done, and its client is evicted when all replays are through: what it does next may rest on this.
    pub fn refuse(&self) -> MdtResult<()> {
        let rq = &self.cx.rq;
        tracing::info!(
            client = %rq.exp.uuid, nid = %rq.rq.from, xid = rq.rq.xid, transno = rq.rq.body.transno, opcode = rq.rq.body.opc,
            "a replay is refused: a change that came before it was not replayed"
        );
        rq.target.versions_failed(&rq.exp);
        Err(Errno::EOVERFLOW.into())
    }

    /// Puts them into the reply.
    pub fn tell(&self, a: &mut Answer) {
        if let (Use::Told, Ok(body)) = (&self.used, a.msg.body()) {
            a.msg.set_body(&coral_wire::PtlrpcBody {
                pre_versions: self.found,
                ..body
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_that_was_told_no_versions_is_compared_with_none() {
        assert_eq!(Use::of(true, false, [0; 4]), Use::Told);
        assert_eq!(
            Use::of(true, true, [0, 7, 0, 0]),
            Use::Compared([0, 7, 0, 0])
        );
        assert_eq!(Use::of(true, true, [0; 4]), Use::Untold);
        assert_eq!(Use::of(false, true, [0, 7, 0, 0]), Use::Unknown);
    }
}
