//! A lock in the table, its copy for the outside, and what must be sent because of it.

use coral_wire::coral::blocks::Span;
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmMode, LdlmType, LockDesc, Policy, ResId};

use crate::ExportId;

/// A lock as the shells and the callbacks see it: a copy, taken under the namespace's mutex.
#[derive(Debug, Clone, PartialEq)]
pub struct LockInfo {
    /// This side's cookie (server: the server's; client: the client's).
    pub cookie: u64,
    /// The other side's cookie; 0 when not known.
    pub remote_cookie: u64,
    /// The export that owns it; `None` on clients and for server-side locks.
    pub export: Option<ExportId>,
    /// Resource name.
    pub res: ResId,
    /// Lock type.
    pub ty: LdlmType,
    /// Mode asked for.
    pub req_mode: LdlmMode,
    /// Mode granted, `NONE` while waiting.
    pub granted_mode: LdlmMode,
    /// What it covers (as granted, once granted).
    pub policy: Policy,
    /// Flags that travel with it (`CANCEL_ON_BLOCK`, `DISCARD_DATA`, ...).
    pub flags: LdlmFlags,
}

impl LockInfo {
    /// The wire description of this lock (`ldlm_lock2desc`).
    pub fn desc(&self) -> LockDesc {
        LockDesc {
            granted_mode: self.granted_mode,
            ..LockDesc::new(self.res, self.ty, self.req_mode, &self.policy)
        }
    }
}

/// What must be sent, once the namespace's mutex is released. In order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Blocking callback to the owner of `lock`, because `by` waits for it.
    Blocking {
        /// The lock in the way.
        lock: LockInfo,
        /// The lock that waits.
        by: LockDesc,
        /// The lock is gone already (`CANCEL_ON_BLOCK`): no answer and no cancel are expected.
        instant: bool,
    },
    /// Completion callback to the owner of `lock`: granted, or refused when `flags` has `FLOCK_DEADLOCK`, or withdrawn by the
    /// owner's own unlock when its granted mode is `NONE`.
    Completion {
        /// The lock.
        lock: LockInfo,
        /// Flags of the callback.
        flags: LdlmFlags,
    },
    /// A server-side lock that waited is granted.
    LocalGranted {
        /// Its cookie.
        cookie: u64,
    },
}

/// The lock itself.
#[derive(Debug, Clone)]
pub(crate) struct Lock {
    pub cookie: u64,
    pub remote: u64,
    pub export: Option<ExportId>,
    /// Locks of this export do not conflict with this (server-side) lock.
    pub ignore: Option<ExportId>,
    pub res: ResId,
    pub ty: LdlmType,
    pub mode: LdlmMode,
    pub granted: bool,
    pub policy: Policy,
    /// Extent as asked for.
    pub req: (u64, u64),
    pub flags: LdlmFlags,
    /// A blocking callback was sent, or will be folded into the grant.
    pub ast_sent: bool,
    /// It is to write under, as are locks of others that were in its way.
    pub has_company: bool,
    /// The enqueue's reply is not written yet: a grant goes into it instead of a completion callback.
    pub reply_pending: bool,
    /// Index in the export's list.
    pub exp_pos: u32,
}

impl Lock {
    pub fn key(&self) -> (ResId, LdlmType) {
        (self.res, self.ty)
    }

    /// A client is alone with what the UPDATE bit of an inode covers.
    pub fn is_alone(&self) -> bool {
        let covers =
            |p: &Policy| matches!(p, Policy::Ibits { bits, .. } if bits.intersects(Ibits::UPDATE));
        self.granted && self.export.is_some() && self.mode == LdlmMode::EX && covers(&self.policy)
    }

    pub fn info(&self) -> LockInfo {
        LockInfo {
            cookie: self.cookie,
            remote_cookie: self.remote,
            export: self.export,
            res: self.res,
            ty: self.ty,
            req_mode: self.mode,
            granted_mode: if self.granted {
                self.mode
            } else {
                LdlmMode::NONE
            },
            policy: self.policy,
            flags: self.flags,
        }
    }

    /// First and last byte of an extent or flock; everything for other types.
    pub fn range(&self) -> (u64, u64) {
        match self.policy {
            Policy::Extent { start, end, .. } | Policy::Flock { start, end, .. } => (start, end),
            _ => (0, u64::MAX),
        }
    }

    /// The bytes of an extent, of one that waits those that it asked for; everything for other types.
    pub fn span(&self) -> Span {
        match self.granted {
            true => self.policy.span().unwrap_or(Span::all(0, u64::MAX)),
            false => Span::all(self.req.0, self.req.1),
        }
    }

    /// Identity of a flock's owner.
    pub fn flock_owner(&self) -> Option<(Option<ExportId>, u64)> {
        match self.policy {
            Policy::Flock { owner, .. } => Some((self.export, owner)),
            _ => None,
        }
    }
}

/// True when `held` (granted, or waiting before `want`) keeps `want` from being granted.
pub(crate) fn conflicts(held: &Lock, want: &Lock) -> bool {
    if want.ignore.is_some() && want.ignore == held.export {
        return false;
    }
    match (&held.policy, &want.policy) {
        (Policy::Extent { gid: a, .. }, Policy::Extent { gid: b, .. }) => {
            let asked = Span::all(want.req.0, want.req.1);
            match (held.mode == LdlmMode::GROUP, want.mode == LdlmMode::GROUP) {
                (true, true) => a != b,
                // A group lock excludes others from the whole object, whatever the range.
                (true, false) | (false, true) => !held.mode.compatible(want.mode),
                (false, false) => !held.mode.compatible(want.mode) && held.span().touches(&asked),
            }
        }
        (
            Policy::Ibits {
                bits: a, gid: g, ..
            },
            Policy::Ibits {
                bits: b, gid: h, ..
            },
        ) => {
            let same_group = held.mode == LdlmMode::GROUP && want.mode == LdlmMode::GROUP && g == h;
            (a.0 & b.0) != 0
                && !same_group
                && (!held.mode.compatible(want.mode)
                    || held.mode == LdlmMode::GROUP && want.mode == LdlmMode::GROUP)
        }
        (Policy::Flock { .. }, Policy::Flock { .. }) => {
            held.flock_owner() != want.flock_owner()
                && !held.mode.compatible(want.mode)
                && overlap(held.range(), want.range())
        }
        _ => !held.mode.compatible(want.mode),
    }
}

/// A lock of this mode and owner is one under which another client than `export` writes.
pub(crate) fn writes_for_another(
    mode: LdlmMode,
    owner: Option<ExportId>,
    export: Option<ExportId>,
) -> bool {
    is_to_write(mode) && owner.is_some() && owner != export
}

/// One writes under a lock of this mode.
pub(crate) fn is_to_write(mode: LdlmMode) -> bool {
    [LdlmMode::EX, LdlmMode::PW, LdlmMode::CW].contains(&mode)
}

/// True when two inclusive ranges share a byte.
pub(crate) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}
