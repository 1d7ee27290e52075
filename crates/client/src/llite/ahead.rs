//! Attributes of many objects at once: what a listing of a directory leads to.
//!
//! Objects are asked for by their FIDs, each at the MDT where it lies, so that no name can be another's by then. What comes is
//! taken into the cache with its lock as if it had been asked for alone.
//!
//! Lustre: `lustre/llite/statahead.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coral_wire::fid::Fid;
use futures_util::future::join_all;

use super::attributes::Attributes;
use super::cache::Mark;
use super::inode::MdInode;
use crate::mdc::{Ids, Mdc};

/// Objects that one MDT is asked for together (`LL_SA_BATCH_DEF`).
pub(super) const AHEAD: usize = 64;

impl Attributes {
    /// The MDTs' views of those of `fids` that are not remembered and that an MDT tells together with others. What is missing is
    /// remembered, or to be asked for alone, which also says why it could not be told.
    pub async fn md_inodes(&self, fids: impl IntoIterator<Item = Fid>) -> BTreeMap<Fid, MdInode> {
        let mut by_mdt: BTreeMap<u32, (Arc<Mdc>, Vec<Fid>)> = BTreeMap::new();
        if self.cache.enabled() {
            let fids: BTreeSet<Fid> = fids.into_iter().collect();
            for fid in fids {
                if self.cache.known(fid).is_some() {
                    continue;
                }
                if let Ok(mdc) = self.servers.lmv.of(fid).await
                    && mdc.batches()
                {
                    by_mdt
                        .entry(mdc.index)
                        .or_insert_with(|| (mdc, vec![]))
                        .1
                        .push(fid);
                }
            }
        }
        let batches = by_mdt
            .values()
            .flat_map(|(mdc, fids)| fids.chunks(AHEAD).map(move |some| (mdc, some)))
            .filter(|(_, some)| some.len() > 1);
        let found = join_all(batches.map(|(mdc, some)| self.batch(mdc, some))).await;
        found.into_iter().flatten().collect()
    }

    async fn batch(&self, mdc: &Mdc, fids: &[Fid]) -> Vec<(Fid, MdInode)> {
        let marks: Vec<Mark> = fids.iter().map(|f| self.cache.begin_read(*f)).collect();
        let found = match mdc.getattr_batch(&Ids::root(), fids).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "attributes of many objects at once");
                return vec![];
            }
        };
        let mut inodes = Vec::with_capacity(fids.len());
        for ((fid, mark), found) in fids.iter().zip(marks).zip(found) {
            let Some(found) = found else { continue };
            match MdInode::read(mdc, &found.attrs) {
                Ok(md) => {
                    self.servers.stats.attr_misses.inc();
                    self.learn(mdc, mark, &md, found.lock);
                    self.ids.hint(*fid, md.attr.gid);
                    inodes.push((*fid, md));
                }
                // asked for alone, it says so
                Err(_) => mdc.drop_lock(found.lock),
            }
        }
        inodes
    }
}
