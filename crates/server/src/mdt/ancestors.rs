//! Which directories are above which: none may be moved below itself (`mdd_is_parent` in `lustre/mdd/mdd_dir.c`).

use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::handler::MdtOps;
use super::store::{MdtResult, Txn};

/// Deepest directory that is walked up from.
pub(super) const DEPTH_MAX: usize = 4096;

/// Where a directory lies below directories of this MDT.
struct Ancestors {
    /// The directory itself and those above it, the nearest first.
    fids: Vec<Fid>,
    /// The last of them is the root.
    whole: bool,
}

fn ancestors(t: &mut Txn<'_>, fid: &Fid) -> MdtResult<Ancestors> {
    if let Some(known) = t.known_above(fid) {
        let fids = known.to_vec();
        return Ok(Ancestors { fids, whole: true });
    }
    let mut fids = vec![*fid];
    let mut at = *fid;
    while fids.len() <= DEPTH_MAX {
        if at == Fid::ROOT {
            return Ok(Ancestors { fids, whole: true });
        }
        let h = t.get(&at)?;
        at = t
            .ino(h)
            .links
            .first()
            .map(|l| l.parent)
            .ok_or(Errno::ENOENT)?;
        if !t.store.is_here(&at) {
            return Ok(Ancestors { fids, whole: false });
        }
        fids.push(at);
    }
    Err(Errno::ELOOP.into())
}

/// Whether directory `above`, which lies in `beside`, is `fid` or above it. EXDEV where only other MDTs know. They need not be
/// asked when a directory of this MDT is above both `fid` and `beside`: what lies in `beside` is not above that one.
pub(super) fn is_above(t: &mut Txn<'_>, above: &Fid, beside: &Fid, fid: &Fid) -> MdtResult<bool> {
    let up = ancestors(t, fid)?;
    if up.fids.contains(above) {
        return Ok(true);
    }
    if up.whole {
        return Ok(false);
    }
    let other = ancestors(t, beside)?;
    match other.fids.iter().any(|f| up.fids.contains(f)) {
        true => Ok(false),
        false => Err(Errno::EXDEV.into()),
    }
}

impl MdtOps {
    /// The directories above `dir`, itself first, as far as they lie here, and the first that does not. What moves by an operation
    /// that is decided has moved, although it may not be known here yet.
    pub(super) async fn above_here(&self, dir: Fid) -> MdtResult<Vec<Fid>> {
        let mut fids = vec![dir];
        while let Some(at) = fids.last().copied().filter(|f| *f != Fid::ROOT) {
            self.out.settled(&[at]).await?;
            let core = self.core.read();
            if !core.store.is_here(&at) {
                break;
            }
            if fids.len() > DEPTH_MAX {
                return Err(Errno::ELOOP.into());
            }
            fids.push(core.store.parent(&at)?);
        }
        Ok(fids)
    }
}
