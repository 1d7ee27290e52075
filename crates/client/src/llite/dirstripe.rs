//! Directories on a chosen MDT or over several, and the default a directory hands down: what `lfs mkdir` and
//! `lfs setdirstripe` ask for. FUSE lets no ioctl of Lustre's through, so they come as xattrs of the parent:
//! `lustre.mkdir` makes a directory ([`MkdirRequest`]), `lustre.restripe` lays one out anew, `lustre.dmv` sets the default
//! (`lmv_user_md`).
//!
//! Lustre: `ll_dir_setdirstripe`, `ll_dir_setstripe` in `lustre/llite/dir.c`; `lmv_locate_tgt_create` in `lustre/lmv/lmv_obd.c`.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::{
    LMV_MAGIC_STRIPE, LMV_OFFSET_DEFAULT, LOV_OFFSET_DEFAULT, LmvUserMd, LmvUserMdsData, LovMd,
    hash_flag,
};

use super::attributes::Attributes;
use super::cache::Cache;
use super::changes::Changes;
use super::finish::finish;
use super::heritage::{Heritage, Heritages};
use super::identities::Identities;
use super::name::check_name;
use super::places::{Missed, Place, Places};
use super::servers::Servers;
use super::types::Cred;
use crate::error::{Error, Refusal};
use crate::lmv::spread::Wish;
use crate::mdc::{CreateArgs, Ids, Mdc, SetattrArgs};

/// Value of the xattrs `lustre.mkdir` and `lustre.restripe`: mode and length of the name (u32 each), the name, a `lmv_user_md`. Native byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkdirRequest {
    /// Permission bits, the umask taken away already.
    pub mode: u32,
    /// Name in the directory.
    pub name: Bytes,
    /// How many shards, on which MDT the first, which hash.
    pub lum: LmvUserMd,
}

impl MkdirRequest {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut b = BytesMut::new();
        b.put_u32_ne(self.mode);
        b.put_u32_ne(self.name.len() as u32);
        b.put_slice(&self.name);
        b.put_slice(&self.lum.encode());
        b.freeze()
    }

    /// Reads one; EINVAL when it is none.
    pub fn decode(raw: &Bytes) -> Result<Self, Error> {
        let word = |at: usize| {
            raw.get(at..at + 4)
                .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
                .ok_or(Refusal::BadRequest)
        };
        let (mode, len) = (word(0)?, word(4)? as usize);
        if raw.len() < 8 + len {
            return Err(Refusal::BadRequest.into());
        }
        let lum = LmvUserMd::decode(&raw.slice(8 + len..)).map_err(|_| Refusal::BadRequest)?;
        Ok(Self {
            mode,
            name: raw.slice(8..8 + len),
            lum,
        })
    }
}

/// Lays directories out over MDTs.
pub(super) struct DirStripes {
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub changes: Arc<Changes>,
    pub attributes: Arc<Attributes>,
    pub places: Arc<Places>,
    pub heritages: Arc<Heritages>,
}

impl DirStripes {
    /// Makes a directory as asked for: ENODEV when there is no such MDT, EEXIST when the name is taken.
    pub async fn mkdir(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        rq: MkdirRequest,
    ) -> Result<(), Error> {
        check_name(&rq.name)?;
        let mut missed = Missed::none();
        loop {
            let place = self.places.new_name(parent, &rq.name).await?;
            missed.is_new(&place)?;
            match self.mkdir_at(cred, parent, place, rq.clone()).await {
                Err(e) if self.places.may_have_moved(&[parent], &e) => missed.at(place, e),
                done => return done,
            }
        }
    }

    async fn mkdir_at(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        place: Place,
        rq: MkdirRequest,
    ) -> Result<(), Error> {
        let mut ids = self.ids.of(cred, &[parent]).await;
        ids.umask = 0;
        let offset = rq.lum.head.stripe_offset;
        let mdc = self.mdt_for(parent, place.dir, offset).await?;
        let args = CreateArgs {
            parent: place.dir,
            layout_version: place.version,
            fid: mdc.new_fid().await?,
            mode: rq.mode & 0o7777 | libc::S_IFDIR,
            name: rq.name,
            eadata: rq.lum.encode(),
            now: self.servers.now(),
            ..CreateArgs::default()
        };
        let me = self.clone();
        finish(async move {
            let _change = me.changes.begin(&[(args.parent, &args.name)]);
            let done = mdc.create(&ids, &args).await;
            me.cache.doubt(args.parent);
            Ok(done.map(drop)?)
        })
        .await
    }

    /// Lays the directory `rq.name` of `parent` out over as many shards as asked for; its names move afterwards. EALREADY: it is laid
    /// out so. EBUSY: its names are moving.
    pub async fn restripe(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        rq: MkdirRequest,
    ) -> Result<(), Error> {
        check_name(&rq.name)?;
        let mut missed = Missed::none();
        loop {
            let place = self.places.of(parent, &rq.name).await?;
            missed.is_new(&place)?;
            match self.restripe_at(cred, parent, place, rq.clone()).await {
                Err(e) if self.places.may_have_moved(&[parent], &e) => missed.at(place, e),
                done => return done,
            }
        }
    }

    async fn restripe_at(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        place: Place,
        rq: MkdirRequest,
    ) -> Result<(), Error> {
        let ids = self.ids.of(cred, &[parent]).await;
        let home = self.servers.lmv.of(place.dir).await?;
        let found = home.getattr_name(&Ids::root(), place.dir, &rq.name).await?;
        let child = found.body.fid1;
        let mdc = self.servers.lmv.of(child).await?;
        let args = CreateArgs {
            parent: place.dir,
            layout_version: place.version,
            fid: mdc.new_fid().await?,
            mode: libc::S_IFDIR,
            name: rq.name,
            eadata: rq.lum.encode(),
            restripe: true,
            now: self.servers.now(),
            ..CreateArgs::default()
        };
        let me = self.clone();
        finish(async move {
            let _change = me.changes.begin(&[(args.parent, &args.name)]);
            let done = mdc.create(&ids, &args).await;
            me.cache.doubt(args.parent);
            me.cache.doubt(child);
            me.changes.forget_attrs(child);
            Ok(done.map(drop)?)
        })
        .await
    }

    /// What a new directory in `dir` inherits goes into its request; the MDT to send it to. The servers leave that to clients
    /// that know of it (`OBD_CONNECT2_DMV_IMP_INHERIT`).
    pub async fn inherit(&self, dir: Fid, args: &mut CreateArgs) -> Result<Arc<Mdc>, Error> {
        let home = self.servers.lmv.of(args.parent).await?;
        if !self.servers.lmv.several() {
            return Ok(home);
        }
        let from = self.heritages.of(dir).await?;
        if let Some(head) = from.default {
            let lum = LmvUserMd {
                head,
                ..LmvUserMd::default()
            };
            (args.eadata, args.inherited) = (lum.encode(), true);
            if head.stripe_offset != LMV_OFFSET_DEFAULT {
                return self.mdt(head.stripe_offset).await;
            }
        }
        // what is in a directory in shards is with its name
        match from.spread && args.parent == dir {
            true => self.spread(&home, &from, false).await,
            false => Ok(home),
        }
    }

    /// The MDT of a directory that a user lays out: the one asked for; else, unless its parent is in shards, any.
    pub async fn mdt_for(&self, dir: Fid, parent: Fid, index: u32) -> Result<Arc<Mdc>, Error> {
        if index != LMV_OFFSET_DEFAULT {
            return self.mdt(index).await;
        }
        let home = self.servers.lmv.of(parent).await?;
        if !self.servers.lmv.several() {
            return Ok(home);
        }
        let from = self.heritages.of(dir).await?;
        if parent == dir {
            return self.spread(&home, &from, true).await;
        }
        match from.default.map(|d| d.stripe_offset) {
            None | Some(LMV_OFFSET_DEFAULT) => Ok(home),
            Some(index) => self.mdt(index).await,
        }
    }

    async fn mdt(&self, index: u32) -> Result<Arc<Mdc>, Error> {
        let found = self.servers.lmv.at(index).await;
        found.ok_or(Refusal::NoSuchMdt.into())
    }

    async fn spread(&self, home: &Mdc, from: &Heritage, anywhere: bool) -> Result<Arc<Mdc>, Error> {
        let wish = Wish {
            home: home.index,
            depth: from.depth,
            round_robin: from.round_robin,
            anywhere,
        };
        self.servers.lmv.spread(&wish).await
    }

    /// What new directories in `dir` inherit, as `lfs getdirstripe -D` shows it: what is set, or what comes from above.
    pub async fn default_of(&self, dir: Fid) -> Result<Bytes, Error> {
        let mdc = self.servers.lmv.of(dir).await?;
        let stored = mdc.getxattr(&Ids::root(), dir, b"trusted.dmv").await;
        match stored {
            Err(e) if e.is(Errno::ENODATA) && self.servers.lmv.several() => {
                let head = self.heritages.shown(dir).await?;
                let head = head.ok_or(Refusal::NoXattr)?;
                let lum = LmvUserMd {
                    head,
                    ..LmvUserMd::default()
                };
                Ok(lum.encode())
            }
            stored => Ok(stored?),
        }
    }

    /// How a directory lies on MDTs, in the form `lfs getdirstripe` shows: the shards with their MDTs (none: it is in one
    /// piece on the MDT that `stripe_offset` says). While its layout changes, `lmv_migrate_offset` is behind them: which shard is
    /// the first of those that get names, or lose theirs.
    pub async fn layout_of(&self, dir: Fid) -> Result<Bytes, Error> {
        let md = self.attributes.md_inode(dir).await?;
        if !md.attr.is_dir() {
            return Err(Refusal::NotADirectory.into());
        }
        let mut out = LmvUserMd::request(0, self.servers.lmv.of(dir).await?.index, 0);
        out.head.magic = LMV_MAGIC_STRIPE;
        if let Some(lmv) = md.striped {
            out.head.hash_type = lmv.head.hash_type;
            out.head.stripe_offset = lmv.head.master_mdt_index;
            for fid in &lmv.stripe_fids {
                let mds = if fid.is_zero() {
                    LMV_OFFSET_DEFAULT
                } else {
                    self.servers.lmv.of(*fid).await?.index
                };
                out.objects.push(LmvUserMdsData {
                    fid: *fid,
                    mds,
                    ..Default::default()
                });
            }
            out.head.stripe_count = out.objects.len() as u32;
            if lmv.head.hash_type & hash_flag::LAYOUT_CHANGE != 0 {
                let offset = lmv.head.migrate_offset.to_ne_bytes();
                out.tail = Bytes::copy_from_slice(&offset);
            }
        }
        Ok(out.encode())
    }

    /// Sets what new directories in `dir` inherit; count 0 takes it away.
    pub async fn set_default_dirs(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Fid,
        lum: Bytes,
    ) -> Result<(), Error> {
        LmvUserMd::decode(&lum).map_err(|_| Refusal::BadRequest)?;
        self.set_default(cred, dir, lum).await
    }

    /// Sets the layout of new files in `dir`; `None` takes it away.
    pub async fn set_default_layout(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Fid,
        lum: Option<Bytes>,
    ) -> Result<(), Error> {
        let none = || LovMd::request(0, 0, LOV_OFFSET_DEFAULT, None).encode();
        self.set_default(cred, dir, lum.unwrap_or_else(none)).await
    }

    async fn set_default(self: &Arc<Self>, cred: &Cred, dir: Fid, lum: Bytes) -> Result<(), Error> {
        let ids = self.ids.of(cred, &[dir]).await;
        let mdc = self.servers.lmv.of(dir).await?;
        let me = self.clone();
        finish(async move {
            let done = mdc
                .setattr_with(&ids, dir, &SetattrArgs::default(), lum)
                .await;
            me.changes.forget_attrs(dir);
            Ok(done.map(drop)?)
        })
        .await
    }
}

/// Whether a new directory with this request may be in shards.
pub(super) fn asks_shards(lum: &Bytes) -> bool {
    LmvUserMd::decode(lum).is_ok_and(|l| !matches!(l.head.stripe_count, 0 | 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::hash_type;

    #[test]
    fn requests_survive_the_way_and_bad_ones_are_refused() {
        let lum = LmvUserMd::request(2, 1, hash_type::CRUSH);
        let rq = MkdirRequest {
            mode: 0o750,
            name: Bytes::from_static(b"dir"),
            lum,
        };
        let raw = rq.encode();
        assert_eq!(MkdirRequest::decode(&raw), Ok(rq));
        for cut in [0, 7, 10, raw.len() - 1] {
            assert_eq!(
                MkdirRequest::decode(&raw.slice(..cut)),
                Err(Refusal::BadRequest.into()),
                "{cut} bytes"
            );
        }
        let mut long = raw.to_vec();
        long[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(
            MkdirRequest::decode(&long.into()),
            Err(Refusal::BadRequest.into())
        );
    }
}
