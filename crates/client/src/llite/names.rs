//! Looking names up: from the cache, from a whole listing where that pays, or from the MDT.
//!
//! Lustre: `lustre/llite/namei.c`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::attributes::Attributes;
use super::cache::{Cache, DirState, Lookup, MISSES_BEFORE_READDIR};
use super::covers::OpenFiles;
use super::cred::permitted;
use super::dir::Directories;
use super::foresight::Foresight;
use super::heritage::Heritages;
use super::identities::Identities;
use super::inode::MdInode;
use super::lookahead::{Lookahead, OfFiles};
use super::name::check_name;
use super::opens::Opens;
use super::places::{Missed, Place, Places};
use super::servers::Servers;
use super::shards::elsewhere;
use super::types::{Cred, Entry};
use crate::error::{Error, Refusal};
use crate::mdc::Ids;

/// Names of a file that are tried until one is found that the caller can reach.
const PATHS_TRIED: usize = 64;
/// Parts of one path that lie on different MDTs.
const PATH_PARTS_MAX: usize = 1024;
/// Looks names up.
pub(super) struct Names {
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub open: Arc<OpenFiles>,
    pub attributes: Arc<Attributes>,
    pub places: Arc<Places>,
    pub dirs: Arc<Directories>,
    pub opens: Arc<Opens>,
    pub foresight: Arc<Foresight>,
    pub lookahead: Arc<Lookahead>,
    pub heritages: Arc<Heritages>,
}

impl Names {
    /// Resolves one name; ".." works. ENOENT when there is none.
    pub async fn lookup(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, Error> {
        check_name(name)?;
        if name == b"." || name == b".." && parent == self.servers.root {
            return self.attributes.getattr(cred, parent).await;
        }
        if name == b".." && self.servers.lmv.several() {
            return self
                .attributes
                .getattr(cred, self.dirs.parent_of(parent).await)
                .await;
        }
        if let Some(entry) = self.opens.lookup_and_open(cred, parent, name).await {
            return Ok(entry);
        }
        let (md, dir) = self.resolve(cred, parent, name).await?;
        let full = match self.foresight.expects_read(dir) {
            true => {
                if self.attributes.comes_with_data(&md) {
                    self.lookahead.sized(parent, name, md.attr.fid).await;
                }
                self.attributes.full_to_read(&md).await
            }
            // who removes has no use for it
            false
                if self.attributes.removers.does(cred.pid)
                    && let Some(entry) = self.attributes.without_size(&md) =>
            {
                Ok(entry.attr)
            }
            false => {
                if self.attributes.wants_size(&md) {
                    self.lookahead.sized(parent, name, md.attr.fid).await;
                }
                self.attributes.full(&md).await
            }
        };
        if md.attr.is_file() {
            self.foresight.looked_up(dir, md.attr.fid);
        }
        let entry = match full {
            // No reason to keep the name from whoever wants to remove it. The MDT's size is not the file's, and must not reach
            // the pages of one that is open.
            Err(_)
                if self.servers.lov.lacks(&md.layout).is_some()
                    && self.open.of(md.attr.fid).is_none() =>
            {
                Entry {
                    attr_ttl: Duration::ZERO,
                    ..self.attributes.entry(md.attr)
                }
            }
            attr => self.attributes.entry(attr?),
        };
        // the caller knows no shards
        let fid = md.attr.fid;
        Ok(if self.cache.is_named_to_caller(dir, parent, name, fid) {
            entry
        } else {
            Entry {
                entry_ttl: Duration::ZERO,
                ..entry
            }
        })
    }

    /// What a name is, as the MDT sees it, and the directory object that has it: the directory, or a shard of it.
    pub async fn resolve(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<(MdInode, Fid), Error> {
        let mut missed = Missed::none();
        let (md, dir) = loop {
            let all = self.places.all_of(parent, name).await?;
            missed.is_new(&all)?;
            match self.resolve_among(cred, parent, &all, name).await {
                Err(e) if self.places.may_have_moved(&[parent], &e) => missed.at(all, e),
                done => break done?,
            }
        };
        if md.attr.is_file() {
            let files = match self.attributes.removers.does(cred.pid) {
                true => OfFiles::Nothing,
                // what is read has its size from its data
                false if self.foresight.expects_read(dir) => OfFiles::Data,
                false => OfFiles::Sizes,
            };
            self.lookahead.found(cred, parent, name, files).await;
        }
        Ok((md, dir))
    }

    /// Whether a directory has gone from where it was, and another is there by its name, or by that of one above: it was moved to
    /// another MDT, which gave it another FID.
    pub async fn has_moved(&self, dir: Fid) -> bool {
        let mut at = dir;
        for _ in 0..PATH_PARTS_MAX {
            match self.attributes.md_inode(at).await {
                Err(e) if e.is_gone() => {}
                _ => return false,
            }
            let Some((parent, name)) = self.heritages.place_of(at) else {
                return false;
            };
            match self.resolve(&Cred::root(), parent, &name).await {
                Ok((md, _)) => return md.attr.fid != at,
                Err(e) if e.is_gone() => at = parent,
                Err(_) => return false,
            }
        }
        false
    }

    async fn resolve_among(
        &self,
        cred: &Cred,
        parent: Fid,
        all: &[Place],
        name: &[u8],
    ) -> Result<(MdInode, Fid), Error> {
        let mut found = Err(Refusal::NoName.into());
        // a name that moves may have gone from the last place after it was missed in the first, which is where it goes
        let again = all.first().filter(|_| all.len() > 1);
        for p in all.iter().chain(again) {
            found = self
                .resolve_in(cred, parent, p.dir, name)
                .await
                .map(|md| (md, p.dir));
            if let Ok((md, _)) = &found
                && md.attr.is_dir()
                && name != b".."
            {
                self.heritages.seen(md.attr.fid, parent, Some(name));
            }
            if !matches!(&found, Err(e) if e.is(Errno::ENOENT)) {
                break;
            }
        }
        found
    }

    /// The same in `dir`, which is `parent` or a shard of it.
    async fn resolve_in(
        &self,
        cred: &Cred,
        parent: Fid,
        dir: Fid,
        name: &[u8],
    ) -> Result<MdInode, Error> {
        match self.lookup_cached(cred, parent, dir, name).await? {
            Some(md) => Ok(md),
            None => self.lookup_rpc(cred, dir, name).await,
        }
    }

    /// What the cache knows of a name, after making it know the directory where that pays.
    async fn lookup_cached(
        &self,
        cred: &Cred,
        parent: Fid,
        dir: Fid,
        name: &[u8],
    ) -> Result<Option<MdInode>, Error> {
        if !self.cache.enabled() || name == b".." {
            return Ok(None);
        }
        if let Some(found) = self.answer(cred, parent, dir, name).await? {
            self.servers.stats.name_hits.inc();
            return found.map(Some);
        }
        if self.lookahead.named(parent, name).await
            && let Some(found) = self.answer(cred, parent, dir, name).await?
        {
            self.servers.stats.name_hits.inc();
            return found.map(Some);
        }
        self.servers.stats.name_misses.inc();
        if !self.make_complete(dir).await {
            return Ok(None);
        }
        self.answer(cred, parent, dir, name).await?.transpose()
    }

    /// The cache's answer if it has one: `Some(Err(ENOENT))` when there is no such name.
    async fn answer(
        &self,
        cred: &Cred,
        parent: Fid,
        at: Fid,
        name: &[u8],
    ) -> Result<Option<Result<MdInode, Error>>, Error> {
        match self.cache.known(parent) {
            Some(dir) if dir.md.attr.is_dir() => permitted(cred, &dir.md.attr, &dir.md.acl, 1)?,
            Some(_) => return Err(Refusal::NotADirectory.into()),
            // the server must check
            None if cred.uid != 0 => return Ok(None),
            None => {}
        }
        let mark = self.cache.begin_read(at);
        Ok(match self.cache.lookup(at, name) {
            Lookup::Hit(k) => Some(Ok(k.md)),
            Lookup::Absent => Some(Err(Refusal::NoName.into())),
            Lookup::Unknown => None,
            Lookup::Name(fid) => {
                if self.cache.known(fid).is_none() {
                    self.lookahead.named(parent, name).await;
                }
                match self.named(cred, at, fid).await {
                    // it was so when the listing was looked at; kept only if it still is
                    Ok(md) => {
                        self.cache.confirm_name(mark, at, name, fid);
                        Some(Ok(md))
                    }
                    // gone meanwhile
                    Err(e) if e.is(Errno::ENOENT) => None,
                    Err(e) => return Err(e),
                }
            }
        })
    }

    /// What a name in `dir` stands for.
    async fn named(&self, cred: &Cred, dir: Fid, fid: Fid) -> Result<MdInode, Error> {
        if self.cache.known(fid).is_none() && self.foresight.expects_read(dir) {
            match self.opens.open_along_by_fid(cred, fid).await {
                Some(md) => return Ok(md),
                None => self.foresight.was_wrong(dir),
            }
        }
        self.attributes.md_inode(fid).await
    }

    /// Makes the whole listing of a directory known when that costs less than asking name by name. True: it is.
    async fn make_complete(&self, dir: Fid) -> bool {
        let worth = |misses: u32| misses >= MISSES_BEFORE_READDIR && misses.is_power_of_two();
        match self.cache.dir_state(dir) {
            DirState::Complete => return true,
            DirState::Tracked => drop(self.attributes.md_inode(dir).await),
            DirState::Unlocked(m) if worth(m) => drop(self.attributes.md_inode(dir).await),
            DirState::Locked(m) if worth(m) => {}
            _ => return false,
        }
        if self.cache.dir_state(dir) == DirState::Complete {
            return true;
        }
        self.dirs.read_whole(dir).await
    }

    async fn lookup_rpc(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<MdInode, Error> {
        if self.foresight.expects_read(parent) && name != b".." {
            match self.opens.open_along(cred, parent, name).await {
                Some(md) => return Ok(md),
                None => self.foresight.was_wrong(parent),
            }
        }
        let ids = self.ids.of(cred, &[parent]).await;
        let mdc = self.servers.lmv.of(parent).await?;
        let mark = self.cache.begin_read(parent);
        let (attrs, lock) = if self.cache.enabled() && name != b".." {
            match mdc.lookup_lock(&ids, parent, name).await {
                Ok(f) => (f.attrs, f.lock),
                Err(e) => {
                    if e.is(Errno::ENOENT) {
                        self.cache.missed(parent);
                    }
                    return Err(e.into());
                }
            }
        } else {
            (mdc.getattr_name(&ids, parent, name).await?, None)
        };
        if elsewhere(&attrs) {
            // the lock covers the name, but no attributes: these have one of the MDT where the object lies
            let child = attrs.body.fid1;
            let md = self.attributes.md_inode(child).await;
            if let Some(lock) = lock.filter(|l| md.is_ok() && l.res() == child.res_id()) {
                let (name, still) = ((parent, name), || !lock.is_blocked());
                self.cache
                    .learn_name_elsewhere(mark, name, child, lock.cookie(), still);
            }
            return md;
        }
        let md = MdInode::read(&mdc, &attrs)?;
        let cookie = lock.as_ref().map(|l| l.cookie());
        self.attributes.learn(&mdc, mark, &md, lock);
        if let Some(cookie) = cookie {
            self.cache
                .learn_name(mark, parent, name, md.attr.fid, cookie);
        }
        self.ids.hint(md.attr.fid, md.attr.gid);
        Ok(md)
    }

    /// Target of a symbolic link, no NUL.
    pub async fn readlink(&self, _cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        let mdc = self.servers.lmv.of(fid).await?;
        Ok(mdc.readlink(&Ids::root(), fid).await?)
    }

    /// A path of the file, from the mounted directory, without leading slash. Others than root are told one by which they can
    /// reach it: EACCES when a directory on the way may not be searched. (Lustre tells them none, `ll_fid2path` in
    /// lustre/llite/file.c, or with its mount option `user_fid2path` any.)
    pub async fn fid2path(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        let (mut refused, mut linkno) = (Error::from(Refusal::NoName), 0);
        for _ in 0..PATHS_TRIED {
            let (path, next) = self.one_path(fid, linkno).await?;
            if cred.uid == 0 {
                return Ok(path);
            }
            match self.path2fid(cred, &path).await {
                Ok(there) if there == fid => return Ok(path),
                // It was renamed meanwhile.
                Ok(_) => {}
                Err(e) => refused = e,
            }
            let Some(next) = next else { break };
            linkno = next;
        }
        Err(refused)
    }

    /// Path number `linkno` of the file, and the number of the next. Each MDT knows the part of it that lies there (`lmv_fid2path`).
    async fn one_path(&self, fid: Fid, linkno: u32) -> Result<(Bytes, Option<u32>), Error> {
        let root = self.servers.root;
        let (mut path, next, mut above) = {
            let mdc = self.servers.lmv.of(fid).await?;
            mdc.fid2path(fid, root, linkno).await?
        };
        for _ in 0..PATH_PARTS_MAX {
            let Some(at) = above else {
                return Ok((path, next));
            };
            let (upper, _, further) = {
                let mdc = self.servers.lmv.of(at).await?;
                mdc.fid2path(at, root, 0).await?
            };
            if !upper.is_empty() {
                path = [&upper[..], b"/", &path[..]].concat().into();
            }
            above = further;
        }
        Err(Refusal::TooManyLinks.into())
    }

    /// FID of a path below the mounted root.
    pub async fn path2fid(&self, cred: &Cred, path: &[u8]) -> Result<Fid, Error> {
        let mut at = self.servers.root;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            check_name(name)?;
            if name != b"." && (name != b".." || at != self.servers.root) {
                self.attributes.late_names.name_settled(at, name).await;
                at = self.resolve(cred, at, name).await?.0.attr.fid;
            }
        }
        Ok(at)
    }
}
