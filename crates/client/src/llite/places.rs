//! Which directory object has a name, and the listing of a directory over all its shards.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::{LmvMd, hash_flag};
use futures_util::future::try_join_all;
use smallvec::{SmallVec, smallvec};

use super::attributes::Attributes;
use super::servers::Servers;
use super::shards::{known_hash, merge_chunks, once_each, shards};
use crate::error::{Error, Refusal};
use crate::mdc::{DirChunk, Ids};

/// Version of the layout of a directory that is in one piece, as `lmv_create` says it.
const PLAIN_VERSION: u32 = 1;

/// Times a name is followed that moves to another shard while it is changed.
pub(super) const MOVES_MAX: usize = 8;

/// Where names of a directory are, or are to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The directory object: a shard, or the directory itself.
    pub dir: Fid,
    /// Version of the layout this was concluded from, for the MDT to check; 0: it need not.
    pub version: u32,
}

/// The places where something was not found, while it is tried wherever the name is by then.
pub(super) struct Missed<P> {
    last: Option<(P, Error)>,
    times: usize,
}

impl<P: PartialEq> Missed<P> {
    /// Nothing was tried yet.
    pub fn none() -> Self {
        Self {
            last: None,
            times: 0,
        }
    }

    /// Whether to try there. An error, the last one, when it was tried there just now, or often enough.
    pub fn is_new(&mut self, place: &P) -> Result<(), Error> {
        match self.last.take() {
            Some((at, e)) if at == *place || self.times > MOVES_MAX => Err(e),
            _ => Ok(()),
        }
    }

    /// It was not found there.
    pub fn at(&mut self, place: P, e: Error) {
        tracing::trace!(error = %e, "has the name moved meanwhile");
        self.last = Some((place, e));
        self.times += 1;
    }
}

/// The directory objects that may have `name` of `dir`, which is laid out so.
fn by_layout(layout: Option<&LmvMd>, dir: Fid, name: &[u8]) -> Result<SmallVec<[Place; 2]>, Error> {
    let Some(lmv) = layout else {
        let version = PLAIN_VERSION;
        return Ok(smallvec![Place { dir, version }]);
    };
    let version = lmv.head.layout_version;
    let shards = shards(lmv, name)?.into_iter();
    Ok(shards.map(|dir| Place { dir, version }).collect())
}

/// Finds names' directory objects.
pub(super) struct Places {
    servers: Arc<Servers>,
    attributes: Arc<Attributes>,
}

impl Places {
    /// For the directories of one mount.
    pub fn new(servers: Arc<Servers>, attributes: Arc<Attributes>) -> Self {
        Self {
            servers,
            attributes,
        }
    }

    /// What a server did not find may have moved to another shard of one of these directories, after it was looked for. What is
    /// remembered of their layouts is forgotten when the server knows others.
    pub fn may_have_moved(&self, dirs: &[Fid], e: &Error) -> bool {
        if !self.servers.lmv.several() {
            return false;
        }
        if e.errno() == Errno::ESTALE {
            let cache = &self.attributes.cache;
            let wholes = dirs.iter().filter_map(|d| cache.directory_of(*d));
            for dir in wholes.chain(dirs.iter().copied()) {
                cache.forget_attrs(dir);
            }
        }
        e.is_gone()
    }

    /// The layout of a directory in shards. Where `dir` is one of them itself, it was in one piece when the caller looked it up, and
    /// is being migrated since: it is the directory that has it as a shard.
    async fn layout_of(&self, dir: Fid) -> Result<Option<Arc<LmvMd>>, Error> {
        let md = self.attributes.md_inode(dir).await?;
        if !md.shard {
            return Ok(md.striped);
        }
        let mdc = self.servers.lmv.of(dir).await?;
        let master = mdc.getattr_name(&Ids::root(), dir, b"..").await?.body.fid1;
        Ok(self.attributes.md_inode(master).await?.striped)
    }

    /// The directory objects that may have `name` of `dir`, in the order to look.
    pub async fn all_of(&self, dir: Fid, name: &[u8]) -> Result<SmallVec<[Place; 2]>, Error> {
        if !self.servers.lmv.several() {
            return Ok(smallvec![Place { dir, version: 0 }]);
        }
        if name == b".." {
            return Ok(smallvec![Place { dir, version: 0 }]);
        }
        by_layout(self.layout_of(dir).await?.as_deref(), dir, name)
    }

    /// The same of many names, by one look at the layout.
    pub async fn all_of_each(
        &self,
        dir: Fid,
        names: &[Bytes],
    ) -> Result<Vec<SmallVec<[Place; 2]>>, Error> {
        if !self.servers.lmv.several() {
            let place = |_| smallvec![Place { dir, version: 0 }];
            return Ok(names.iter().map(place).collect());
        }
        let layout = self.layout_of(dir).await?;
        let place = |name: &Bytes| by_layout(layout.as_deref(), dir, name);
        names.iter().map(place).collect()
    }

    /// The directory object that has `name` of `dir`; where it would be made when there is no such name.
    pub async fn of(&self, dir: Fid, name: &[u8]) -> Result<Place, Error> {
        let places = self.all_of(dir, name).await?;
        self.first_with(&places, name).await
    }

    /// The first of the places that has `name`, or the last.
    async fn first_with(&self, places: &[Place], name: &[u8]) -> Result<Place, Error> {
        let (last, others) = places.split_last().ok_or(Refusal::ShardLost)?;
        for p in others {
            match self
                .servers
                .lmv
                .of(p.dir)
                .await?
                .getattr_name(&Ids::root(), p.dir, name)
                .await
            {
                Ok(_) => return Ok(*p),
                Err(e) if e.is(Errno::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(*last)
    }

    /// Where a new `name` goes. EEXIST when an older layout has it already, EBADF when the hash is not known.
    pub async fn new_name(&self, dir: Fid, name: &[u8]) -> Result<Place, Error> {
        let places = self.all_of(dir, name).await?;
        let (last, others) = places.split_last().ok_or(Refusal::ShardLost)?;
        if others.is_empty() {
            return Ok(*last);
        }
        if self.layout_of(dir).await?.is_some_and(|l| !known_hash(&l)) {
            return Err(Refusal::UnknownHash.into());
        }
        if self.first_with(&places, name).await? != *last {
            Err(Refusal::NameTaken.into())
        } else {
            Ok(*last)
        }
    }

    /// Entries of a directory from a hash on, those of all shards together.
    pub async fn read_chunk(&self, dir: Fid, from: u64) -> Result<DirChunk, Error> {
        if !self.servers.lmv.several() {
            return self.read_piece(dir, from).await;
        }
        let mut lmv = self.layout_of(dir).await?;
        for _ in 0..MOVES_MAX {
            let chunk = match &lmv {
                Some(lmv) => self.read_shards(lmv, from).await?,
                None => self.read_piece(dir, from).await?,
            };
            // the layout may have changed after it was looked at, and names have moved to where they were not read
            let now = self.layout_of(dir).await?;
            if now == lmv {
                return Ok(chunk);
            }
            lmv = now;
        }
        Err(Refusal::ShardLost.into())
    }

    /// The same by its layout.
    async fn read_shards(&self, lmv: &LmvMd, from: u64) -> Result<DirChunk, Error> {
        let chunks_of = |fids: Vec<Fid>| async move {
            let reads = fids.into_iter().filter(|f| !f.is_zero());
            try_join_all(reads.map(|f| self.read_shard(f, from))).await
        };
        let mut fids = lmv.stripe_fids.clone();
        if lmv.head.hash_type & hash_flag::LAYOUT_CHANGE == 0 {
            return Ok(merge_chunks(chunks_of(fids).await?));
        }
        // names move meanwhile, and each is where it was or where it belongs: read in this order none is missed
        let new = match lmv.head.hash_type & hash_flag::LAYOUT_CHANGE {
            hash_flag::MIGRATION => {
                let at = (lmv.head.migrate_offset as usize).min(fids.len());
                fids.drain(..at);
                lmv.stripe_fids[..at].to_vec()
            }
            _ => fids.clone(),
        };
        let mut chunks = chunks_of(fids).await?;
        chunks.extend(chunks_of(new).await?);
        Ok(once_each(merge_chunks(chunks)))
    }

    /// The same of one directory object.
    pub async fn read_piece(&self, dir: Fid, from: u64) -> Result<DirChunk, Error> {
        let mdc = self.servers.lmv.of(dir).await?;
        Ok(mdc.readpage(&Ids::root(), dir, from).await?)
    }

    async fn read_shard(&self, shard: Fid, from: u64) -> Result<DirChunk, Error> {
        match self.read_piece(shard, from).await {
            // the directory was removed: nothing was in it, and its shards went with it
            Err(e) if e.is_gone() => Ok(DirChunk::default()),
            done => done,
        }
    }

    /// The listing of a directory object may be remembered: it is whole in itself and a lock on it covers it.
    pub async fn in_one_piece(&self, dir: Fid) -> bool {
        !self.servers.lmv.several()
            || self
                .attributes
                .md_inode(dir)
                .await
                .is_ok_and(|m| m.striped.is_none() && !m.shard)
    }
}
