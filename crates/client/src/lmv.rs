//! LMV: which MDT holds a FID or a name.
//!
//! With one MDT there is nothing to ask; with several the FID location database is asked once per sequence.
//! Lustre: `lustre/lmv/lmv_obd.c`, `lustre/fld/fld_request.c`. Which shard of a striped directory
//! holds a name: `llite/shards.rs`. Where a new directory goes that may lie anywhere: [`spread`].

pub mod spread;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_ptlrpc::Request;
use coral_wire::fid::{Fid, seq};
use coral_wire::fld::LuSeqRange;
use coral_wire::ptlrpc::{opc, portal};
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::ask::ask;
use crate::error::Error;
use crate::mdc::Mdc;
use spread::{MdtSpace, Spread, Wish};

/// FLD_LOOKUP.
const FLD_LOOKUP: u32 = 2;

/// How long the space of MDTs is taken to be what it was (`qos_maxage`).
const SPACE_MAX_AGE: Duration = Duration::from_secs(5);

/// What the MDTs have left.
#[derive(Default)]
struct Space {
    asked_at: Option<Instant>,
    mdts: Vec<MdtSpace>,
}

/// The MDTs of a file system.
#[derive(Default)]
pub struct Lmv {
    mdcs: RwLock<BTreeMap<u32, Arc<Mdc>>>,
    /// Sequence -> MDT index, of ranges seen.
    fld: RwLock<BTreeMap<u64, (u64, u32)>>,
    space: Mutex<Space>,
    spread: Mutex<Spread>,
}

impl Lmv {
    /// Adds or replaces an MDT.
    pub fn add(&self, mdc: Arc<Mdc>) {
        self.mdcs.write().insert(mdc.index, mdc);
    }

    /// All MDTs by index.
    pub fn mdcs(&self) -> Vec<Arc<Mdc>> {
        self.mdcs.read().values().cloned().collect()
    }

    /// There is more than one MDT.
    pub fn several(&self) -> bool {
        self.mdcs.read().len() > 1
    }

    /// All of them are Coral's.
    pub fn all_coral(&self) -> bool {
        self.mdcs.read().values().all(|m| m.coral())
    }

    /// The MDT of the root, or EIO before there is one.
    pub fn first(&self) -> Result<Arc<Mdc>, Error> {
        let first = self.mdcs.read().values().next().cloned();
        first.ok_or(Error::NoMdt(None))
    }

    /// The MDT that holds `fid`. One that was never connected is waited for: how it is spoken to follows from what it grants.
    pub async fn of(&self, fid: Fid) -> Result<Arc<Mdc>, Error> {
        {
            let mdcs = self.mdcs.read();
            if mdcs.len() == 1 || fid.seq < seq::NORMAL {
                return mdcs.values().next().cloned().ok_or(Error::NoMdt(None));
            }
        }
        let index = match self.cached(fid.seq) {
            Some(i) => i,
            None => self.ask(fid.seq).await?,
        };
        self.at(index).await.ok_or(Error::NoMdt(Some(index)))
    }

    /// The MDT of that index, if there is one; waits as [`Self::of`] does.
    pub async fn at(&self, index: u32) -> Option<Arc<Mdc>> {
        let mdc = self.mdcs.read().get(&index).cloned()?;
        mdc.met().await;
        Some(mdc)
    }

    /// The MDT of a new directory that may lie anywhere.
    pub async fn spread(&self, wish: &Wish) -> Result<Arc<Mdc>, Error> {
        let mdts = self.space().await;
        let index = self.spread.lock().choose(&mdts, wish);
        self.at(index).await.ok_or(Error::NoMdt(Some(index)))
    }

    /// What those MDTs have left that answer. Nobody waits for one that is away.
    async fn space(&self) -> Vec<MdtSpace> {
        {
            let mut space = self.space.lock();
            let fresh = space
                .asked_at
                .is_some_and(|at| at.elapsed() < SPACE_MAX_AGE);
            if fresh && !space.mdts.is_empty() {
                return space.mdts.clone();
            }
            space.asked_at = Some(Instant::now());
        }
        let there = self.mdcs().into_iter().filter(|m| m.is_connected());
        let asked = there.map(|m| async move {
            let s = m.statfs(false).await.ok()?;
            Some(MdtSpace {
                index: m.index,
                avail_bytes: s.bavail.saturating_mul(s.bsize.into()),
                free_inodes: s.ffree,
            })
        });
        let mdts: Vec<MdtSpace> = join_all(asked).await.into_iter().flatten().collect();
        self.space.lock().mdts.clone_from(&mdts);
        mdts
    }

    fn cached(&self, seq: u64) -> Option<u32> {
        let fld = self.fld.read();
        let (_, (end, index)) = fld.range(..=seq).next_back()?;
        (seq < *end).then_some(*index)
    }

    async fn ask(&self, seq: u64) -> Result<u32, Error> {
        let mdt0 = self.first()?;
        let range = LuSeqRange {
            start: seq,
            ..Default::default()
        };
        let rq = Request::new(portal::FLD_REQUEST, opc::FLD_QUERY)
            .push_bytes(Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes()))
            .push(&range);
        let r = ask(mdt0.import(), rq).await?.get::<LuSeqRange>(1)?;
        self.fld.write().insert(r.start, (r.end, r.index));
        Ok(r.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_any_sequence_in_them() {
        let l = Lmv::default();
        l.fld.write().insert(0x2_0000_0400, (0x2_4000_0400, 0));
        l.fld.write().insert(0x2_4000_0400, (0x2_8000_0400, 1));
        assert_eq!(l.cached(0x2_0000_0bd1), Some(0));
        assert_eq!(l.cached(0x2_4000_0400), Some(1));
        assert_eq!(l.cached(0x2_8000_0400), None);
        assert_eq!(l.cached(5), None);
    }
}
