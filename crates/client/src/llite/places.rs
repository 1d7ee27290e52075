//! Which directory object has a name, and the listing of a directory over all its shards.

use std::sync::Arc;

use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::hash_flag;
use futures_util::future::try_join_all;
use smallvec::{SmallVec, smallvec};

use super::attributes::Attributes;
use super::servers::Servers;
use super::shards::{known_hash, merge_chunks, once_each, shards};
use crate::error::{Error, Refusal};
use crate::mdc::{DirChunk, Ids};

/// Version of the layout of a directory that is in one piece, as `lmv_create` says it.
const PLAIN_VERSION: u32 = 1;

/// Where names of a directory are, or are to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The directory object: a shard, or the directory itself.
    pub dir: Fid,
    /// Version of the layout this was concluded from, for the MDT to check; 0: it need not.
    pub version: u32,
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

    /// The directory objects that may have `name` of `dir`, in the order to look.
    pub async fn all_of(&self, dir: Fid, name: &[u8]) -> Result<SmallVec<[Place; 2]>, Error> {
        if !self.servers.lmv.several() {
            return Ok(smallvec![Place { dir, version: 0 }]);
        }
        if name == b".." {
            return Ok(smallvec![Place { dir, version: 0 }]);
        }
        match self.attributes.md_inode(dir).await?.striped {
            None => Ok(smallvec![Place {
                dir,
                version: PLAIN_VERSION
            }]),
            Some(lmv) => {
                let version = lmv.head.layout_version;
                Ok(shards(&lmv, name)?
                    .into_iter()
                    .map(|dir| Place { dir, version })
                    .collect())
            }
        }
    }

    /// The directory object that has `name` of `dir`; where it would be made when there is no such name.
    pub async fn of(&self, dir: Fid, name: &[u8]) -> Result<Place, Error> {
        let places = self.all_of(dir, name).await?;
        let Some((last, others)) = places.split_last() else {
            return Err(Refusal::ShardLost.into());
        };
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
        let Some((last, others)) = places.split_last() else {
            return Err(Refusal::ShardLost.into());
        };
        if others.is_empty() {
            return Ok(*last);
        }
        if self
            .attributes
            .md_inode(dir)
            .await?
            .striped
            .is_some_and(|l| !known_hash(&l))
        {
            return Err(Refusal::UnknownHash.into());
        }
        if self.of(dir, name).await? != *last {
            Err(Refusal::NameTaken.into())
        } else {
            Ok(*last)
        }
    }

    /// Entries of a directory from a hash on, those of all shards together.
    pub async fn read_chunk(&self, dir: Fid, from: u64) -> Result<DirChunk, Error> {
        let lmv = match self.servers.lmv.several() {
            true => self.attributes.md_inode(dir).await?.striped,
            false => None,
        };
        let Some(lmv) = lmv else {
            let mdc = self.servers.lmv.of(dir).await?;
            return Ok(mdc.readpage(&Ids::root(), dir, from).await?);
        };
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

    async fn read_shard(&self, shard: Fid, from: u64) -> Result<DirChunk, Error> {
        let mdc = self.servers.lmv.of(shard).await?;
        match mdc.readpage(&Ids::root(), shard, from).await {
            Ok(chunk) => Ok(chunk),
            // the directory was removed: nothing was in it, and its shards went with it
            Err(e) if e.is(Errno::ENOENT) => Ok(DirChunk::default()),
            Err(e) => Err(e.into()),
        }
    }

    /// The listing of a directory object may be remembered: it is whole in itself and a lock on it covers it.
    pub async fn in_one_piece(&self, dir: Fid) -> bool {
        !self.servers.lmv.several()
            || self
                .attributes
                .md_inode(dir)
                .await
                .is_ok_and(|m| m.striped.is_none())
    }
}
