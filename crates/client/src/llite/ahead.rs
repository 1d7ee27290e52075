//! Attributes of many objects at once: what a listing of a directory leads to, or names that go on by number.
//!
//! Objects of a listing are asked for by their FIDs, each at the MDT where it lies, so that no name can be another's by then. What
//! comes is taken into the cache with its lock as if it had been asked for alone.
//!
//! Lustre: `lustre/llite/statahead.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use coral_wire::fid::Fid;
use futures_util::future::join_all;

use super::attributes::Attributes;
use super::cache::{Known, Mark};
use super::inode::MdInode;
use crate::lov::{AskedFile, Glimpsed};
use crate::mdc::{Found, Ids, Mdc};

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
                if self.cache.known(fid).is_some() || self.servers.lmv.is_away(fid).await {
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
        let all = fids.iter().zip(marks).zip(found);
        all.filter_map(|((fid, mark), found)| Some((*fid, self.take_in(mdc, mark, found?)?)))
            .collect()
    }

    /// Takes one answer of many into the cache. `None`: asked for alone, it says what is wrong with it.
    fn take_in(&self, mdc: &Mdc, mark: Mark, found: Found) -> Option<MdInode> {
        let Ok(md) = MdInode::read(mdc, &found.attrs) else {
            mdc.drop_lock(found.lock);
            return None;
        };
        self.servers.stats.attr_misses.inc();
        self.learn(mdc, mark, &md, found.lock);
        self.ids.hint(md.attr.fid, md.attr.gid);
        Some(md)
    }

    /// What these names of directories are, as `ids` see it. What is not there, or cannot be told together with others, is left out.
    pub async fn named(&self, mdc: &Mdc, ids: &Ids, names: &[(Fid, Bytes)]) -> Vec<MdInode> {
        let begin = |(dir, _): &(Fid, Bytes)| self.cache.begin_read(*dir);
        let marks: Vec<Mark> = names.iter().map(begin).collect();
        let asked: Vec<(Fid, &[u8])> = names.iter().map(|(dir, name)| (*dir, &name[..])).collect();
        let found = mdc.lookup_batch(ids, &asked).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "many names at once");
            Vec::new()
        });
        let all = names.iter().zip(marks).zip(found);
        all.filter_map(|(((dir, name), mark), found)| {
            let found = found?;
            let cookie = found.lock.as_ref().map(|l| l.cookie());
            let md = self.take_in(mdc, mark, found)?;
            if let Some(cookie) = cookie {
                let fid = md.attr.fid;
                self.cache.learn_name(mark, *dir, name, fid, cookie);
            }
            Some(md)
        })
        .collect()
    }

    /// Sizes and times of those of these files of which they are not remembered, if there are several: asked for together. Of files that
    /// are `to_read` the data of small ones comes along, and others are left to who reads them. `known` hears of each that came. How many
    /// were wanted, and how many came.
    pub async fn sizes<'a>(
        &self,
        inodes: impl IntoIterator<Item = &'a MdInode>,
        to_read: bool,
        known: impl Fn(),
    ) -> (usize, usize) {
        let wants = |md: &&MdInode| (!to_read || self.comes_with_data(md)) && self.wants_size(md);
        let wanted = inodes.into_iter().filter(wants);
        let wanted: Vec<AskedFile> = wanted.map(asked_file).collect();
        if wanted.len() < 2 {
            return (0, 0);
        }
        let mut came = 0;
        let learn = |file: usize, found: Glimpsed| {
            let AskedFile { layout, fid, .. } = &wanted[file];
            let (objects, generation) = (found.objects, layout.generation);
            let names: Vec<_> = found.locks.iter().map(|(object, _)| *object).collect();
            let still = || found.locks.iter().all(|(_, l)| !l.is_blocked());
            match (&names[..], found.data) {
                ([name], Some(data)) => {
                    let found = (objects, data.into());
                    self.cache.learn_data(*fid, generation, *name, found, still);
                }
                (names, _) => {
                    self.cache
                        .learn_objects(*fid, generation, names, objects, still);
                }
            }
            came += 1;
            known();
        };
        let lov = &self.servers.lov;
        lov.glimpse_together(&wanted, to_read, learn).await;
        (wanted.len(), came)
    }

    /// The data of those of these files that are small, whose sizes are remembered, and of which nothing was read. `known` hears of each
    /// that came.
    pub async fn data<'a>(&self, inodes: impl IntoIterator<Item = &'a MdInode>, known: impl Fn()) {
        let wants = |md: &&MdInode| self.comes_with_data(md);
        let wanted = inodes.into_iter().filter(wants).filter_map(|md| {
            let (asked, size) = self.cache.wants_data(md.attr.fid)?;
            let file = AskedFile {
                size,
                ..asked_file(md)
            };
            Some((file, asked))
        });
        let (files, asked): (Vec<AskedFile>, Vec<u64>) = wanted.unzip();
        let learn = |file: usize, data: Bytes| {
            let fid = files[file].fid;
            self.cache.learn_data_since(fid, asked[file], data.into());
            known();
        };
        self.servers.lov.data_together(&files, learn).await;
    }

    /// The size is not remembered, can be, and nothing here tells it otherwise: see [`Self::full`].
    pub fn wants_size(&self, md: &MdInode) -> bool {
        let fid = md.attr.fid;
        let unknown =
            |k: Known| k.objects.is_none() && k.md.layout.generation == md.layout.generation;
        self.cache.known(fid).is_some_and(unknown) && self.is_at_rest(md)
    }

    /// Who asks for many files at once is told the data of this one too.
    pub fn comes_with_data(&self, md: &MdInode) -> bool {
        let objects = md.layout.stripes().take(2).count();
        let one = objects == 1 && md.layout.parts().len() == 1 && !md.layout.has_dom();
        // an MDT does not tell of a file that it is empty
        let small = md.rough_size.is_none() || md.is_small();
        md.attr.is_file() && small && one && self.is_at_rest(md)
    }

    /// What the OSTs have of the file is all there is of it.
    fn is_at_rest(&self, md: &MdInode) -> bool {
        let fid = md.attr.fid;
        md.needs_osts()
            && !md.layout.needs_init(0, u64::MAX)
            && self.covers.cover(fid).is_none()
            && self.late.objects(fid).is_none()
            && !self.late.holds(fid)
            && !self.open.of(fid).is_some_and(|o| o.is_written())
    }
}

fn asked_file(md: &MdInode) -> AskedFile {
    AskedFile {
        layout: md.layout.clone(),
        fid: md.attr.fid,
        size: md.rough_size.unwrap_or_default(),
    }
}
