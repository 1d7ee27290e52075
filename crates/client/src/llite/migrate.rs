//! Moving what a name stands for to another MDT, and ending the migration of a directory: what `lfs migrate -m` asks for. FUSE lets
//! no ioctl of Lustre's through, so it comes as xattrs: `lustre.migrate` of the parent moves a name ([`MigrateRequest`]),
//! `lustre.lmv` of a directory ends its migration (`lmv_user_md`).
//!
//! A directory goes to the MDT that is asked for; what is in it follows, name by name, to the shards of its new layout. Who walks the
//! tree is the caller. Lustre: `ll_migrate` in `lustre/llite/file.c`, `lmv_migrate` in `lustre/lmv/lmv_obd.c`. Absent: the lease that
//! Lustre takes on a file: the MDT looks whether it is open.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd, hash_flag};

use super::attributes::Attributes;
use super::cache::Cache;
use super::changes::Changes;
use super::dirstripe::{DirStripes, MkdirRequest};
use super::finish::finish;
use super::identities::Identities;
use super::name::check_name;
use super::places::{MOVES_MAX, Places};
use super::servers::Servers;
use super::shards::{elsewhere, known_hash};
use super::types::Cred;
use super::untold::UntoldOpens;
use crate::error::{Error, Refusal};
use crate::mdc::{Ids, Mdc, MigrateArgs};

/// Value of the xattr `lustre.migrate`: a [`MkdirRequest`] with a flag in the place of the mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrateRequest {
    /// Only the name moves, to where it belongs in a directory that is being migrated.
    pub name_only: bool,
    /// Name in the directory.
    pub name: Bytes,
    /// How many shards a directory gets, on which MDT the first, which hash.
    pub lum: LmvUserMd,
}

impl MigrateRequest {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let rq = MkdirRequest {
            mode: u32::from(self.name_only),
            name: self.name.clone(),
            lum: self.lum.clone(),
        };
        rq.encode()
    }

    /// Reads one; EINVAL when it is none.
    pub fn decode(raw: &Bytes) -> Result<Self, Error> {
        let rq = MkdirRequest::decode(raw)?;
        Ok(Self {
            name_only: rq.mode != 0,
            name: rq.name,
            lum: rq.lum,
        })
    }
}

/// What a name stands for, and where it is.
struct Found {
    /// The directory object that has the name.
    at: Fid,
    /// The one where it belongs.
    to: Fid,
    fid: Fid,
    mode: u32,
    /// The directory is being migrated.
    changing: bool,
}

/// Moves names to other MDTs.
pub(super) struct Migrations {
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub changes: Arc<Changes>,
    pub attributes: Arc<Attributes>,
    pub places: Arc<Places>,
    pub dir_stripes: Arc<DirStripes>,
    pub untold: Arc<UntoldOpens>,
}

impl Migrations {
    /// Moves a name of `parent`. EALREADY: it was moved before.
    pub async fn migrate(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        rq: MigrateRequest,
    ) -> Result<(), Error> {
        check_name(&rq.name)?;
        for _ in 0..MOVES_MAX {
            match self.migrate_once(cred, parent, rq.clone()).await {
                // it has moved since it was looked up
                Err(e) if e.errno() == Errno::EREMOTE => {}
                done => return done,
            }
        }
        self.migrate_once(cred, parent, rq).await
    }

    async fn migrate_once(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        mut rq: MigrateRequest,
    ) -> Result<(), Error> {
        let ids = self.ids.of(cred, &[parent]).await;
        let found = self.find(parent, &rq.name).await?;
        let is_dir = found.mode & libc::S_IFMT == libc::S_IFDIR;
        let target = self.target(&found, is_dir, &mut rq.lum).await?;
        let args = MigrateArgs {
            mode: found.mode,
            now: self.servers.now(),
            name_only: rq.name_only && found.changing,
            lum: rq.lum.encode(),
        };
        let fid = target.new_fid().await?;
        // the MDT where a directory is to lie makes it; a file is asked about where it may be open
        let mdc = match is_dir {
            true => target,
            false => self.servers.lmv.of(found.fid).await?,
        };
        let me = self.clone();
        finish(async move {
            let dirs = [found.at, found.to];
            let _taking = me.untold.taking(found.fid, me.servers.now()).await;
            let _change = me.changes.begin_any(&dirs);
            let done = mdc.migrate(&ids, parent, &rq.name, fid, &args).await;
            dirs.iter().for_each(|d| me.cache.doubt(*d));
            me.changes.forget_attrs(found.fid);
            Ok(done?)
        })
        .await
    }

    async fn find(&self, parent: Fid, name: &[u8]) -> Result<Found, Error> {
        let lmv = self.attributes.md_inode(parent).await?.striped;
        if lmv.as_ref().is_some_and(|l| !known_hash(l)) {
            return Err(Refusal::UnknownHash.into());
        }
        let places = self.places.all_of(parent, name).await?;
        let (Some(at), Some(to)) = (places.first(), places.last()) else {
            return Err(Refusal::ShardLost.into());
        };
        let look = async |dir: Fid| {
            let mdc = self.servers.lmv.of(dir).await?;
            match mdc.getattr_name(&Ids::root(), dir, name).await {
                Ok(a) => Ok(Some(a)),
                Err(e) if e.is(Errno::ENOENT) => Ok(None),
                Err(e) => Err(Error::from(e)),
            }
        };
        let (mut there, mut a) = (at.dir, look(at.dir).await?);
        if a.is_none() && at.dir != to.dir {
            (there, a) = (to.dir, look(to.dir).await?);
        }
        let a = a.ok_or(Refusal::NoName)?;
        let fid = a.body.fid1;
        Ok(Found {
            at: there,
            to: to.dir,
            fid,
            mode: match elsewhere(&a) {
                true => self.attributes.md_inode(fid).await?.attr.mode,
                false => a.body.mode,
            },
            changing: lmv.is_some_and(|l| l.head.hash_type & hash_flag::LAYOUT_CHANGE != 0),
        })
    }

    /// The MDT to move to. In a directory that is being migrated that is the one of the shard where the name belongs, from which
    /// a directory's own shards go round. A file in another directory goes where it is told, if that is one MDT; else it stays
    /// with its name.
    async fn target(
        &self,
        found: &Found,
        is_dir: bool,
        lum: &mut LmvUserMd,
    ) -> Result<Arc<Mdc>, Error> {
        let asked = lum.head.stripe_offset;
        let is_one = lum.head.stripe_count <= 1 && lum.objects.is_empty();
        let is_told = is_dir || (is_one && asked != LMV_OFFSET_DEFAULT);
        if !found.changing && is_told {
            return self.dir_stripes.mdt_for(found.at, found.at, asked).await;
        }
        let to = self.servers.lmv.of(found.to).await?;
        if is_dir && asked != LMV_OFFSET_DEFAULT {
            lum.head.stripe_offset = to.index;
            if !lum.objects.is_empty() {
                let listed = lum.objects.iter().position(|o| o.mds == to.index);
                lum.objects.swap(0, listed.ok_or(Refusal::NotListed)?);
            }
        }
        Ok(to)
    }

    /// Ends the migration of `dir`, in whose old shards no names are left.
    pub async fn end(self: &Arc<Self>, cred: &Cred, dir: Fid, lum: Bytes) -> Result<(), Error> {
        LmvUserMd::decode(&lum).map_err(|_| Refusal::BadRequest)?;
        let ids = self.ids.of(cred, &[dir]).await;
        let mdc = self.servers.lmv.of(dir).await?;
        let (me, now) = (self.clone(), self.servers.now());
        finish(async move {
            let done = mdc
                .setxattr(&ids, dir, b"trusted.lmv", Some(lum), 0, now)
                .await;
            me.cache.doubt(dir);
            me.changes.forget_attrs(dir);
            Ok(done.map(drop)?)
        })
        .await
    }
}
