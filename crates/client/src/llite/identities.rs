//! As whom a request is made.
//!
//! A request carries at most two supplementary groups. Which ones matter is known from the groups of the objects at hand
//! (`ll_i2suppgid` in `lustre/llite/llite_lib.c`); a caller with no more than two just sends them.

use std::collections::HashMap;
use std::sync::Arc;

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use super::servers::Servers;
use super::types::Cred;
use crate::mdc::Ids;

/// Most group hints kept; beyond that all are forgotten.
const HINTS_MAX: usize = 1 << 16;

/// What requests carry of their callers.
pub(super) struct Identities {
    servers: Arc<Servers>,
    /// Groups of objects seen, to choose supplementary groups by.
    gids: Mutex<HashMap<Fid, u32>>,
}

impl Identities {
    /// No group is known yet.
    pub fn new(servers: Arc<Servers>) -> Self {
        Self {
            servers,
            gids: Mutex::default(),
        }
    }

    /// The ids a request for `cred` about `fids` carries.
    pub async fn of(&self, cred: &Cred, fids: &[Fid]) -> Ids {
        let mut ids = Ids {
            fsuid: cred.uid,
            fsgid: cred.gid,
            umask: cred.umask,
            ..Ids::root()
        };
        if cred.uid == 0 {
            return ids;
        }
        ids.cap = 0;
        let groups = cred.supplementary();
        if groups.len() <= 2 {
            for (slot, g) in ids.suppgids.iter_mut().zip(groups.iter()) {
                *slot = *g;
            }
            // some requests carry the first only
            if let ([_, second], [fid, ..]) = (&groups[..], fids)
                && self.gid_of(*fid).await == Some(*second)
            {
                ids.suppgids.reverse();
            }
            return ids;
        }
        for (slot, fid) in ids.suppgids.iter_mut().zip(fids) {
            if let Some(gid) = self.gid_of(*fid).await
                && groups.contains(&gid)
            {
                *slot = gid;
            }
        }
        ids
    }

    /// Group of an object: remembered from the last reply about it (a hint: the MDT decides), else asked for.
    async fn gid_of(&self, fid: Fid) -> Option<u32> {
        if let Some(g) = self.gids.lock().get(&fid) {
            return Some(*g);
        }
        let attrs = self
            .servers
            .lmv
            .of(fid)
            .await
            .ok()?
            .getattr(&Ids::root(), fid)
            .await
            .ok()?;
        self.hint(fid, attrs.body.gid);
        Some(attrs.body.gid)
    }

    /// Remembers a group for [`Self::gid_of`].
    pub fn hint(&self, fid: Fid, gid: u32) {
        let mut g = self.gids.lock();
        if g.len() >= HINTS_MAX {
            g.clear();
        }
        g.insert(fid, gid);
    }

    /// The caller does not know the object any more.
    pub fn forget(&self, fid: Fid) {
        self.gids.lock().remove(&fid);
    }
}
