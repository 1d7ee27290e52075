//! Changing directories: making, linking, removing and renaming.
//!
//! Lustre: `lustre/llite/namei.c`.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ldlm::ResId;
use coral_wire::mds::MdtBody;

use super::attributes::Attributes;
use super::cache::{Cache, Lookup};
use super::changes::Changes;
use super::covers::OpenFiles;
use super::dirstripe::{DirStripes, asks_shards};
use super::finish::finish;
use super::ghosts::Ghosts;
use super::heritage::Heritages;
use super::identities::Identities;
use super::inode::read_attr;
use super::kept::KeptOpens;
use super::late::LateAttrs;
use super::late_names::LateNames;
use super::lookahead::Lookahead;
use super::lost_dirs::LostDirs;
use super::name::check_name;
use super::places::{MOVES_MAX, Missed, Place, Places};
use super::servers::Servers;
use super::shards::elsewhere;
use super::types::{Cred, Entry};
use super::untold::{Taking, UntoldOpens};
use super::upcalls::Upcalls;
use crate::error::{Error, Refusal};
use crate::mdc::{CreateArgs, Ids, Mdc};
use crate::time::Timespec;

/// Longest symlink target, bytes, without NUL.
const SYMLINK_MAX: usize = 4095;

/// renameat2(2) flag.
const RENAME_NOREPLACE: u32 = 1;
/// renameat2(2) flag.
const RENAME_EXCHANGE: u32 = 2;

/// Times a change is tried again that found its name to be another's.
const STALE_MAX: usize = 3;

/// What is to lose a name, as far as the cache knows.
pub(super) struct Victim {
    pub fid: Option<Fid>,
    /// Its objects: {OST index, resource}.
    objects: Vec<(u32, ResId)>,
}

/// Changes names.
pub(super) struct Namespace {
    pub late: Arc<LateAttrs>,
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub ghosts: Arc<Ghosts>,
    pub changes: Arc<Changes>,
    pub attributes: Arc<Attributes>,
    pub places: Arc<Places>,
    pub kept: Arc<KeptOpens>,
    pub untold: Arc<UntoldOpens>,
    pub lookahead: Arc<Lookahead>,
    pub dir_stripes: Arc<DirStripes>,
    pub heritages: Arc<Heritages>,
    pub open: Arc<OpenFiles>,
    pub upcalls: Arc<Upcalls>,
    pub lost_dirs: Arc<LostDirs>,
    pub late_names: Arc<LateNames>,
}

impl Namespace {
    /// Where to send a request that takes `name` from what it names: with several MDTs that is the one of the victim, which
    /// alone can tell whether it becomes an orphan (`lmv_unlink`, `lmv_rename`). The FID is zero when none is needed or there
    /// is no such name. With `ask` what the cache knows does not count.
    pub(super) async fn victim(
        &self,
        dir: Fid,
        name: &[u8],
        ask: bool,
    ) -> Result<(Arc<Mdc>, Fid), Error> {
        let mdc = self.servers.lmv.of(dir).await?;
        if !self.servers.lmv.several() {
            return Ok((mdc, Fid::ZERO));
        }
        let known = match ask {
            true => Lookup::Unknown,
            false => self.cache.lookup(dir, name),
        };
        // by what a lock covers: an MDT that sees it otherwise says so
        match known {
            Lookup::Hit(k) => {
                return Ok((self.servers.lmv.of(k.md.attr.fid).await?, k.md.attr.fid));
            }
            Lookup::Name(fid) => return Ok((self.servers.lmv.of(fid).await?, fid)),
            Lookup::Absent => return Ok((mdc, Fid::ZERO)),
            Lookup::Unknown => {}
        }
        match mdc.getattr_name(&Ids::root(), dir, name).await {
            Ok(a) if elsewhere(&a) => Ok((self.servers.lmv.of(a.body.fid1).await?, a.body.fid1)),
            Ok(a) => Ok((mdc, a.body.fid1)),
            Err(e) if e.is(Errno::ENOENT) => Ok((mdc, Fid::ZERO)),
            Err(e) => Err(e.into()),
        }
    }

    /// The name may stand for something else than the victim that was taken from the cache, or than what it was when it was asked
    /// about, so many times; or the directory is laid out otherwise than is remembered, which is forgotten here.
    pub(super) fn is_another(&self, dirs: &[Fid], e: &Error, asked: usize) -> bool {
        let again = match e.errno() {
            Errno::EREMOTE => asked < MOVES_MAX,
            Errno::ESTALE => self.places.may_have_moved(dirs, e) && asked < STALE_MAX,
            _ => false,
        };
        again && self.servers.lmv.several()
    }

    /// Makes something that is no open file.
    async fn make(self: &Arc<Self>, cred: &Cred, args: CreateArgs) -> Result<Entry, Error> {
        check_name(&args.name)?;
        let mut missed = Missed::none();
        loop {
            let place = self.places.new_name(args.parent, &args.name).await?;
            missed.is_new(&place)?;
            match self.make_at(cred, args.clone(), place).await {
                Err(e) if self.places.may_have_moved(&[args.parent], &e) => missed.at(place, e),
                done => return done,
            }
        }
    }

    async fn make_at(
        self: &Arc<Self>,
        cred: &Cred,
        mut args: CreateArgs,
        place: Place,
    ) -> Result<Entry, Error> {
        let mut ids = self.ids.of(cred, &[args.parent]).await;
        let dir = args.parent;
        (args.parent, args.layout_version) = (place.dir, place.version);
        if args.symlink.is_some() {
            // a symbolic link's mode is 0777, whatever the umask
            ids.umask = 0;
        }
        let mdc = match args.mode & libc::S_IFMT == libc::S_IFDIR {
            true => self.dir_stripes.inherit(dir, &mut args).await?,
            false => self.servers.lmv.of(args.parent).await?,
        };
        args.fid = mdc.new_fid().await?;
        args.now = self.servers.now();
        let me = self.clone();
        finish(async move {
            let _change = me.changes.begin(&[(args.parent, &args.name)]);
            let done = mdc.create(&ids, &args).await?;
            let body = &done.attrs.body;
            let mut attr = read_attr(&mdc, body);
            attr.fid = args.fid;
            me.changes.named(
                &mdc,
                args.parent,
                done.dir(args.parent),
                args.now,
                &args.name,
                Some(args.fid),
            );
            if attr.is_dir() {
                me.heritages.seen(args.fid, dir, Some(&args.name));
                // the master of a striped one counts its shards, and they hold its names
                attr.nlink = 2;
                if mdc.coral() && !asks_shards(&args.eadata) {
                    me.cache.made_dir(args.fid, body.version);
                }
            }
            me.ids.hint(attr.fid, attr.gid);
            Ok(Entry::for_now(attr))
        })
        .await
    }

    /// Makes a device, fifo, socket or regular file; `mode` holds type bits, `cred.umask` applies.
    pub async fn mknod(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry, Error> {
        let mode = if mode & libc::S_IFMT == 0 {
            mode | libc::S_IFREG
        } else {
            mode
        };
        self.make(
            cred,
            CreateArgs {
                parent,
                name: Bytes::copy_from_slice(name),
                mode,
                rdev,
                ..CreateArgs::default()
            },
        )
        .await
    }

    /// Makes a directory.
    pub async fn mkdir(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry, Error> {
        let mode = mode & 0o7777 | libc::S_IFDIR;
        self.make(
            cred,
            CreateArgs {
                parent,
                name: Bytes::copy_from_slice(name),
                mode,
                ..CreateArgs::default()
            },
        )
        .await
    }

    /// Makes a symbolic link to `target`.
    pub async fn symlink(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Error> {
        if target.len() > SYMLINK_MAX {
            return Err(Refusal::TargetTooLong.into());
        }
        if target.is_empty() {
            return Err(Refusal::EmptyTarget.into());
        }
        let mode = libc::S_IFLNK | 0o777;
        let (name, symlink) = (
            Bytes::copy_from_slice(name),
            Some(Bytes::copy_from_slice(target)),
        );
        self.make(
            cred,
            CreateArgs {
                parent,
                name,
                mode,
                symlink,
                ..CreateArgs::default()
            },
        )
        .await
    }

    /// A further name for `fid`.
    pub async fn link(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> Result<Entry, Error> {
        check_name(name)?;
        self.attributes.within_reach(fid).await?;
        self.late.sent(fid).await;
        let mut missed = Missed::none();
        loop {
            let at = self.places.new_name(parent, name).await?;
            missed.is_new(&at)?;
            match self.link_at(cred, fid, at, name).await {
                Err(e) if self.places.may_have_moved(&[parent], &e) => missed.at(at, e),
                done => return done,
            }
        }
    }

    async fn link_at(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        at: Place,
        name: &[u8],
    ) -> Result<Entry, Error> {
        let parent = at.dir;
        let ids = self.ids.of(cred, &[fid, parent]).await;
        let mdc = self.servers.lmv.of(parent).await?;
        let (me, name) = (self.clone(), Bytes::copy_from_slice(name));
        finish(async move {
            let _change = me.changes.begin(&[(parent, &name)]);
            let now = me.servers.now();
            let done = mdc.link(&ids, fid, parent, at.version, &name, now).await?;
            me.changes
                .named(&mdc, parent, done.dir(parent), now, &name, Some(fid));
            me.changes.object(&mdc, fid, &done.attrs.body, now);
            Ok::<_, Error>(())
        })
        .await?;
        self.attributes.getattr(cred, fid).await
    }

    /// Renames; `flags` as in renameat2: RENAME_NOREPLACE, and RENAME_EXCHANGE with servers that know it, else EINVAL.
    pub async fn rename(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new_parent: Fid,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Error> {
        check_name(name)?;
        check_name(new_name)?;
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0
            || flags == RENAME_NOREPLACE | RENAME_EXCHANGE
        {
            return Err(Refusal::RenameFlags.into());
        }
        let (from, to) = ((parent, name), (new_parent, new_name));
        let (mut missed, mut asked) = (Missed::none(), 0);
        loop {
            let dirs = self.both_places(from, to).await?;
            missed.is_new(&dirs)?;
            match self
                .rename_at(cred, dirs, name, new_name, flags, asked > 0)
                .await
            {
                Err(e) if self.is_another(&[parent, new_parent], &e, asked) => asked += 1,
                Err(e) if self.places.may_have_moved(&[parent, new_parent], &e) => {
                    missed.at(dirs, e);
                }
                done => return done,
            }
        }
    }

    async fn both_places(
        &self,
        (parent, name): (Fid, &[u8]),
        (new_parent, new_name): (Fid, &[u8]),
    ) -> Result<(Place, Place), Error> {
        Ok((
            self.places.of(parent, name).await?,
            self.places.of(new_parent, new_name).await?,
        ))
    }

    async fn rename_at(
        self: &Arc<Self>,
        cred: &Cred,
        (from, to): (Place, Place),
        name: &[u8],
        new_name: &[u8],
        flags: u32,
        ask: bool,
    ) -> Result<(), Error> {
        let (parent, new_parent) = (from.dir, to.dir);
        let ids = self.ids.of(cred, &[parent, new_parent]).await;
        let mdc = self.servers.lmv.of(parent).await?;
        if flags != 0 && !mdc.coral() {
            if flags & RENAME_EXCHANGE != 0 {
                return Err(Refusal::RenameFlags.into());
            }
            // as the kernel client: looked up first, not atomic against other clients
            match self
                .servers
                .lmv
                .of(new_parent)
                .await?
                .getattr_name(&ids, new_parent, new_name)
                .await
            {
                Err(e) if e.is(Errno::ENOENT) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => return Err(Refusal::NameTaken.into()),
            }
        }
        let (mdc, _) = self.victim(new_parent, new_name, ask).await?;
        let me = self.clone();
        let (name, new_name) = (
            Bytes::copy_from_slice(name),
            Bytes::copy_from_slice(new_name),
        );
        finish(async move {
            for (dir, name) in [(parent, &name), (new_parent, &new_name)] {
                me.late.sent_of_name(&me.cache, dir, name).await;
            }
            let _taking = me.taking(&[(parent, &name), (new_parent, &new_name)]).await;
            let moved = me.cache.name_of(parent, &name);
            let victim = me.is_to_lose(new_parent, &new_name);
            let _change = me
                .changes
                .begin(&[(parent, &name), (new_parent, &new_name)]);
            let now = me.servers.now();
            // what is not known may be a directory
            let mode = moved
                .and_then(|fid| me.cache.known(fid))
                .map_or(libc::S_IFDIR, |k| k.md.attr.mode);
            let done = mdc
                .rename(
                    &ids, parent, &name, new_parent, to.version, &new_name, mode, flags, now,
                )
                .await;
            let done = done.inspect_err(|e| me.cache.refused(parent, &name, e))?;
            let (from, to) = (done.dir(parent), done.dir(new_parent));
            // the name may have come to stand for something else while the request was on its way
            let renamed = done.attrs.body.fid2;
            match flags & RENAME_EXCHANGE {
                0 if !renamed.is_zero() => {
                    me.changes.named(&mdc, parent, from, now, &name, None);
                    me.changes
                        .named(&mdc, new_parent, to, now, &new_name, Some(renamed));
                }
                0 => {
                    me.changes.named(&mdc, parent, from, now, &name, None);
                    me.cache.doubt(new_parent);
                }
                _ => {
                    me.cache.doubt(parent);
                    me.cache.doubt(new_parent);
                }
            }
            let renamed = (!renamed.is_zero()).then_some(renamed).or(moved);
            if let Some(fid) = renamed {
                me.changes.forget_attrs(fid);
            }
            for fid in renamed.into_iter().chain(victim.fid) {
                me.heritages.moved(fid);
            }
            match flags & RENAME_EXCHANGE {
                0 => me.lost_a_name(&mdc, &victim, &done.attrs.body, now),
                _ => {
                    let other = Some(done.attrs.body.fid1).filter(|f| !f.is_zero());
                    for fid in other.into_iter().chain(victim.fid) {
                        me.heritages.moved(fid);
                        me.changes.forget_attrs(fid);
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// What these names stand for is to lose them, or to move: the MDTs hear of those who read it.
    pub(super) async fn taking(&self, names: &[(Fid, &[u8])]) -> Taking {
        let (taking, beside_others) = self.untold.begin_taking();
        // from here on nothing more is opened
        let victim = |(dir, name): &(Fid, &[u8])| match self.cache.lookup(*dir, name) {
            Lookup::Hit(k) => Some(k.md.attr.fid),
            Lookup::Name(fid) => Some(fid),
            Lookup::Absent => Some(Fid::ZERO),
            Lookup::Unknown => None,
        };
        let victims: Option<Vec<Fid>> = names.iter().map(victim).collect();
        let victims = victims.filter(|_| !beside_others);
        let now = self.servers.now();
        self.untold.told(victims.as_deref(), now).await;
        taking
    }

    /// What `name` stands for, as far as is known, with what locks may be held on.
    pub(super) fn victim_of(&self, dir: Fid, name: &[u8]) -> Victim {
        let fid = self.cache.name_of(dir, name);
        Victim {
            fid,
            objects: fid.map_or_else(Vec::new, |fid| self.cache.objects_of(fid)),
        }
    }

    /// What `name` stands for is to lose it.
    fn is_to_lose(&self, dir: Fid, name: &[u8]) -> Victim {
        let victim = self.victim_of(dir, name);
        if let Some(fid) = victim.fid {
            self.kept.close(fid);
        }
        victim
    }

    /// An object lost a name: `body` says how it looks now, `victim` which it was as far as the cache knew.
    pub(super) fn lost_a_name(&self, mdc: &Mdc, victim: &Victim, body: &MdtBody, now: Timespec) {
        if !body.fid1.is_zero() {
            self.changes.object(mdc, body.fid1, body, now);
            if body.nlink == 0 && body.mode & libc::S_IFMT != libc::S_IFREG {
                self.ghosts.removed(read_attr(mdc, body));
            }
            if mdc.coral() && body.nlink == 0 {
                let known = victim.fid == Some(body.fid1);
                let objects = if known { &victim.objects[..] } else { &[] };
                self.object_gone(mdc, body.fid1, objects);
            }
        }
        if let Some(fid) = victim.fid.filter(|f| *f != body.fid1) {
            self.changes.forget_attrs(fid);
        }
    }
}
