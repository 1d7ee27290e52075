//! Names: lookup, create, link, unlink, rename. Functional: each reads and writes one [`Txn`].
//!
//! Rules are those of `lustre/mdd/mdd_dir.c`: what may be created, removed and renamed by whom, how
//! link counts and times move. Invariants kept:
//! * an object's nlink is the number of its names (directories: 2 and one for each directory
//!   within); an object without a name is either gone or in the table `orphan`;
//! * a directory has one name, remembered as its first link; no directory is below itself;
//! * OST objects that lose their file go to the table `destroy` in the same transaction.

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::acl;
use super::ancestors::is_above;
use super::cred::{FL_APPEND, FL_IMMUTABLE, FL_PROJINHERIT, MAY_EXEC, MAY_READ, MAY_WRITE, Ucred};
use super::record::{Inode, S_IFDIR, S_IFMT, S_IFREG};
use super::store::{MdtResult, Txn, TxnObject};
use super::stripe;
use super::striped;
use super::table::{self, fid_key};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Most names of one file (`LDISKFS_LINK_MAX`).
pub const LINK_MAX: u32 = 65_000;
/// What directories show as their size, in bytes, and the space of one, in 512-byte blocks.
pub const DIR_SIZE_BYTES: u64 = 4096;
const DIR_BLOCKS: u64 = 8;

/// ENAMETOOLONG, EINVAL or ENOENT unless `name` can be a name of an entry.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EEXIST),
        n if n.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        n if n.iter().any(|&b| b == 0 || b == b'/') => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// What is to be created.
#[derive(Clone, Debug, Default)]
pub struct NewObject {
    /// FID the client chose.
    pub fid: Fid,
    /// Type and permission bits as asked, before umask and ACL.
    pub mode: u32,
    /// Device number.
    pub rdev: u32,
    /// Target, of a symbolic link.
    pub symlink: Bytes,
    /// Layout, of a regular file; default layout, of a directory.
    pub lov: Bytes,
    /// What a directory hands down to new ones (`trusted.dmv`), if it has anything to.
    pub dmv: Bytes,
    /// Time of creation.
    pub time: Time,
}

/// What removing a name did.
#[derive(Clone, Debug)]
pub struct Unlinked {
    /// The object that lost a name.
    pub fid: Fid,
    /// Its record afterwards.
    pub ino: Inode,
    /// Whether the object is gone (or an orphan) because that was its last name.
    pub last: bool,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    #[default]
    Replace,
    /// Fails with EEXIST.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The directory.
    pub parent: Fid,
    /// The name.
    pub name: &'a [u8],
    /// Version of the directory's layout by which a new name goes there; 0: not said.
    pub layout: u32,
}

/// ACLs of a new object: attribute and value.
type Acls = Vec<(&'static [u8], Bytes)>;

/// Says whether an object is open anywhere: an open object outlives its last name.
pub type IsOpen<'a> = &'a dyn Fn(&Fid) -> bool;

/// Holds `fid` as a live directory in which `cred` may do `want`.
fn directory(t: &mut Txn<'_>, cred: &Ucred, fid: &Fid, want: u32) -> MdtResult<TxnObject> {
    let h = t.get(fid)?;
    if !t.ino(h).is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    t.store.permit(cred, fid, t.ino(h), want)?;
    Ok(h)
}

/// Finds `name` in a directory `cred` may search; ENOENT if there is none.
pub fn lookup(t: &mut Txn<'_>, cred: &Ucred, at: At<'_>) -> MdtResult<Option<Fid>> {
    let dir = directory(t, cred, &at.parent, MAY_EXEC)?;
    match at.name {
        b"." => Ok(Some(at.parent)),
        b".." => Ok(Some(
            t.ino(dir).links.first().map_or(Fid::ROOT, |l| l.parent),
        )),
        n if n.len() > NAME_MAX => Err(Errno::ENAMETOOLONG.into()),
        n => t.lookup(&at.parent, n),
    }
}

/// A directory changed: its times follow.
pub(super) fn touch(t: &mut Txn<'_>, h: TxnObject, time: Time) {
    let ino = t.change(h);
    ino.mtime = time;
    ino.ctime = time;
}

/// A directory lost a subdirectory.
pub(super) fn fewer(t: &mut Txn<'_>, h: TxnObject) {
    let ino = t.change(h);
    ino.nlink = ino.nlink.saturating_sub(1);
}

/// The record of a new object in `parent`: owner, group, mode by setgid, umask and default ACL
/// (`mdd_la_init`, `mdd_acl_init`).
fn new_inode(
    t: &Txn<'_>,
    cred: &Ucred,
    parent: TxnObject,
    new: &NewObject,
) -> MdtResult<(Inode, Acls)> {
    let dir = t.ino(parent);
    let is_dir = new.mode & S_IFMT == S_IFDIR;
    let mut mode = new.mode & (S_IFMT | 0o7777);
    let mut gid = cred.gid;
    if dir.mode & 0o2000 != 0 {
        gid = dir.gid;
        if is_dir {
            mode |= 0o2000;
        } else if mode & 0o2010 == 0o2010
            && !cred.in_group(gid)
            && !cred.has(super::cred::cap::FSETID)
        {
            mode &= !0o2000;
        }
    }
    let mut acls: Acls = Vec::new();
    let default = match new.symlink.is_empty() {
        true => t.store.acl(&t.fid(parent), dir, acl::DEFAULT)?,
        false => None,
    };
    match default {
        Some(default) => {
            let (access, inherited) = default.inherit(mode);
            mode = inherited;
            if !access.is_mode_only() {
                acls.push((acl::ACCESS, access.encode()));
            }
            if is_dir {
                acls.push((acl::DEFAULT, default.encode()));
            }
        }
        None if new.symlink.is_empty() => mode &= !(cred.umask & 0o777),
        None => {}
    }
    let (size, blocks) = match (is_dir, new.symlink.len()) {
        (true, _) => (DIR_SIZE_BYTES, DIR_BLOCKS),
        (false, n) => (n as u64, 0),
    };
    // a project is handed down where the directory says so (`mdd_create`)
    let inherits = dir.flags & FL_PROJINHERIT != 0;
    let ino = Inode {
        mode,
        uid: cred.uid,
        gid,
        nlink: if is_dir { 2 } else { 1 },
        projid: if inherits { dir.projid } else { 0 },
        flags: if inherits && is_dir {
            FL_PROJINHERIT
        } else {
            0
        },
        rdev: new.rdev,
        size,
        blocks,
        atime: new.time,
        mtime: new.time,
        ctime: new.time,
        btime: new.time,
        lov: new.lov.clone(),
        symlink: new.symlink.clone(),
        ..Inode::default()
    };
    Ok((ino, acls))
}

/// Makes `new` and gives it the name `at`. EEXIST if the name or the FID is taken.
pub fn create(t: &mut Txn<'_>, cred: &Ucred, at: At<'_>, new: &NewObject) -> MdtResult<TxnObject> {
    check_name(at.name)?;
    let parent = t.get(&at.parent)?;
    if !t.ino(parent).is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    if t.lookup(&at.parent, at.name)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if t.ino(parent).nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    striped::takes_name(t, parent, at)?;
    t.store
        .permit(cred, &at.parent, t.ino(parent), MAY_WRITE | MAY_EXEC)?;
    let own = t.store.fld().is_reserved(new.fid.seq);
    if !new.fid.is_norm() || own || !t.store.is_here(&new.fid) {
        return Err(Errno::EINVAL.into());
    }
    if t.find(&new.fid)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let (ino, acls) = new_inode(t, cred, parent, new)?;
    let mode = ino.mode;
    let h = t.insert(new.fid, ino);
    for (name, value) in acls {
        t.put_xattr(h, name, Some(value));
    }
    if !new.dmv.is_empty() {
        t.put_xattr(h, super::xattr::TRUSTED_DMV, Some(new.dmv.clone()));
    }
    t.add_entry(&at.parent, at.name, &new.fid, mode);
    t.add_link(h, at.parent, at.name);
    touch(t, parent, new.time);
    if mode & S_IFMT == S_IFDIR {
        t.change(parent).nlink += 1;
    }
    Ok(h)
}

/// The project that `dir` hands down, if `ino` is of another one.
pub(super) fn other_project(dir: &Inode, ino: &Inode) -> Option<u32> {
    (dir.flags & FL_PROJINHERIT != 0 && dir.projid != ino.projid).then_some(dir.projid)
}

/// EPERM unless the caller owns the file or could write it anyway: who made up its FID came by no directory that he may search.
/// The rule is that of Linux for names that lead there (`fs.protected_hardlinks`, `may_linkat`).
pub fn may_link(t: &mut Txn<'_>, cred: &Ucred, fid: &Fid) -> MdtResult<()> {
    let h = t.get(fid)?;
    let ino = t.ino(h);
    let runs_as_others = ino.mode & 0o4000 != 0 || ino.mode & 0o2010 == 0o2010;
    let plain = ino.mode & S_IFMT == S_IFREG && !runs_as_others;
    if cred.owns(ino) || plain && t.store.permit(cred, fid, ino, MAY_READ | MAY_WRITE).is_ok() {
        return Ok(());
    }
    Err(Errno::EPERM.into())
}

/// Gives the object `fid` another name. EXDEV into a directory that hands down another project, whose quota it would evade.
pub fn link(
    t: &mut Txn<'_>,
    cred: &Ucred,
    fid: &Fid,
    at: At<'_>,
    time: Time,
) -> MdtResult<TxnObject> {
    check_name(at.name)?;
    let h = t.get(fid)?;
    let parent = t.get(&at.parent)?;
    if !t.ino(parent).is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    if t.lookup(&at.parent, at.name)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if t.ino(parent).nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    striped::takes_name(t, parent, at)?;
    t.store
        .permit(cred, &at.parent, t.ino(parent), MAY_WRITE | MAY_EXEC)?;
    let ino = t.ino(h);
    if ino.is_dir() || ino.flags & (FL_IMMUTABLE | FL_APPEND) != 0 {
        return Err(Errno::EPERM.into());
    }
    if ino.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    if ino.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    if other_project(t.ino(parent), ino).is_some() {
        return Err(Errno::EXDEV.into());
    }
    let mode = ino.mode;
    let ino = t.change(h);
    ino.nlink += 1;
    ino.ctime = time;
    t.add_entry(&at.parent, at.name, fid, mode);
    t.add_link(h, at.parent, at.name);
    touch(t, parent, time);
    Ok(h)
}

/// Who may take the name of `victim` out of `dir` (`mdd_may_delete`).
fn may_delete(t: &Txn<'_>, cred: &Ucred, dir: TxnObject, victim: TxnObject) -> MdtResult<()> {
    let (d, v) = (t.ino(dir), t.ino(victim));
    t.store.permit(cred, &t.fid(dir), d, MAY_WRITE | MAY_EXEC)?;
    let bound = v.flags & (FL_IMMUTABLE | FL_APPEND) != 0 || d.flags & FL_APPEND != 0;
    if bound || cred.sticky_forbids(d, v) {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

/// Drops one name's worth of `h`; with the last, the object itself unless it is open.
fn drop_name(t: &mut Txn<'_>, h: TxnObject, is_open: IsOpen<'_>, time: Time) -> MdtResult<bool> {
    let ino = t.change(h);
    ino.nlink = if ino.is_dir() {
        0
    } else {
        ino.nlink.saturating_sub(1)
    };
    ino.ctime = time;
    if ino.nlink > 0 {
        return Ok(false);
    }
    striped::drop_shards(t, h)?;
    // the MDT where it lies knows whether it is open
    if t.is_away(h) {
        return Ok(true);
    }
    let_go(t, h, is_open)?;
    Ok(true)
}

/// An object has lost its last name: it goes, unless it is open.
pub fn let_go(t: &mut Txn<'_>, h: TxnObject, is_open: IsOpen<'_>) -> MdtResult<()> {
    let fid = t.fid(h);
    if is_open(&fid) {
        t.put(table::ORPHAN, fid_key(&fid).to_vec(), Bytes::new());
        return Ok(());
    }
    destroy(t, h)
}

/// Forgets an object without names and hands its data over for destruction.
pub fn destroy(t: &mut Txn<'_>, h: TxnObject) -> MdtResult<()> {
    if t.ino(h).is_reg() {
        for (ost, id) in stripe::objects(&t.ino(h).lov.clone()) {
            t.put(table::DESTROY, table::destroy_key(ost, id), Bytes::new());
        }
        if super::dom::is_dom(&t.ino(h).lov) {
            t.put(table::DESTROY, table::data_key(&t.fid(h)), Bytes::new());
        }
    }
    t.remove(h)
}

/// Destroys the orphan `fid`; nothing if it is none (any more).
pub fn reap(t: &mut Txn<'_>, fid: &Fid) -> MdtResult<()> {
    t.del(table::ORPHAN, fid_key(fid).to_vec());
    match t.find(fid)? {
        Some(h) if t.ino(h).nlink == 0 => destroy(t, h),
        _ => Ok(()),
    }
}

/// Removes the name `at`: with `rmdir` of an empty directory, else of anything but one.
pub fn unlink(
    t: &mut Txn<'_>,
    cred: &Ucred,
    at: At<'_>,
    rmdir: bool,
    is_open: IsOpen<'_>,
    time: Time,
) -> MdtResult<Unlinked> {
    match at.name {
        b"." => return Err(Errno::EINVAL.into()),
        b".." => return Err(Errno::ENOTEMPTY.into()),
        n if n.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG.into()),
        _ => (),
    }
    let dir = directory(t, cred, &at.parent, MAY_EXEC)?;
    striped::holds_names(t, dir)?;
    let fid = t.lookup(&at.parent, at.name)?.ok_or(Errno::ENOENT)?;
    let victim = t.get(&fid)?;
    may_delete(t, cred, dir, victim)?;
    match (rmdir, t.ino(victim).is_dir()) {
        (true, false) => return Err(Errno::ENOTDIR.into()),
        (false, true) => return Err(Errno::EISDIR.into()),
        (true, true) if !t.is_empty(&fid)? => return Err(Errno::ENOTEMPTY.into()),
        _ => (),
    }
    t.del_entry(&at.parent, at.name);
    t.del_link(victim, &at.parent, at.name);
    touch(t, dir, time);
    if rmdir {
        fewer(t, dir);
    }
    let last = drop_name(t, victim, is_open, time)?;
    Ok(Unlinked {
        fid,
        ino: t.ino(victim).clone(),
        last,
    })
}

/// What a rename will do, after every check.
struct RenamePlan {
    src_dir: TxnObject,
    dst_dir: TxnObject,
    child: TxnObject,
    target: Option<TxnObject>,
}

fn plan_rename(
    t: &mut Txn<'_>,
    cred: &Ucred,
    src: At<'_>,
    dst: At<'_>,
    mode: RenameMode,
) -> MdtResult<Option<RenamePlan>> {
    for n in [src.name, dst.name] {
        check_name(n).map_err(|e| if e == Errno::EEXIST { Errno::EBUSY } else { e })?;
    }
    let src_dir = directory(t, cred, &src.parent, MAY_EXEC)?;
    let dst_dir = directory(t, cred, &dst.parent, MAY_EXEC)?;
    for dir in [src_dir, dst_dir] {
        striped::holds_names(t, dir)?;
    }
    let child_fid = t.lookup(&src.parent, src.name)?.ok_or(Errno::ENOENT)?;
    let child = t.get(&child_fid)?;
    let target_fid = t.lookup(&dst.parent, dst.name)?;
    if target_fid.is_none() {
        striped::takes_name(t, dst_dir, dst)?;
    }
    if mode == RenameMode::NoReplace && target_fid.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if mode == RenameMode::Exchange && target_fid.is_none() {
        return Err(Errno::ENOENT.into());
    }
    let child_is_dir = t.ino(child).is_dir();
    // what is in a directory is not above it
    let moves = src.parent != dst.parent;
    if child_is_dir && moves && is_above(t, &child_fid, &src.parent, &dst.parent)? {
        return Err(Errno::EINVAL.into());
    }
    if target_fid == Some(child_fid) {
        return Ok(None);
    }
    // a directory would take all that is below along (`mdd_rename_sanity_check`); files change their project in `rename`
    if child_is_dir && other_project(t.ino(dst_dir), t.ino(child)).is_some() {
        return Err(Errno::EXDEV.into());
    }
    if t.ino(dst_dir).nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    may_delete(t, cred, src_dir, child)?;
    let target = target_fid.map(|f| t.get(&f)).transpose()?;
    if let Some(target) = target.filter(|_| mode == RenameMode::Exchange)
        && t.ino(target).is_dir()
        && other_project(t.ino(src_dir), t.ino(target)).is_some()
    {
        return Err(Errno::EXDEV.into());
    }
    match target {
        None => t
            .store
            .permit(cred, &dst.parent, t.ino(dst_dir), MAY_WRITE | MAY_EXEC)?,
        Some(target) => {
            if t.ino(target).is_dir()
                && moves
                && is_above(t, &t.fid(target), &dst.parent, &src.parent)?
            {
                let e = if mode == RenameMode::Exchange {
                    Errno::EINVAL
                } else {
                    Errno::ENOTEMPTY
                };
                return Err(e.into());
            }
            may_delete(t, cred, dst_dir, target)?;
            if mode != RenameMode::Exchange {
                check_replace(t, child_is_dir, target)?;
            }
        }
    }
    // '..' of a directory that changes its parent is written, as programs see it: for them all shards are one directory
    if !striped::are_one(t, src_dir, dst_dir)? {
        if child_is_dir {
            t.store.permit(cred, &child_fid, t.ino(child), MAY_WRITE)?;
        }
        if let Some(x) = target.filter(|&x| mode == RenameMode::Exchange && t.ino(x).is_dir()) {
            t.store.permit(cred, &t.fid(x), t.ino(x), MAY_WRITE)?;
        }
    }
    Ok(Some(RenamePlan {
        src_dir,
        dst_dir,
        child,
        target,
    }))
}

fn check_replace(t: &mut Txn<'_>, child_is_dir: bool, target: TxnObject) -> MdtResult<()> {
    match (child_is_dir, t.ino(target).is_dir()) {
        (true, false) => Err(Errno::ENOTDIR.into()),
        (false, true) => Err(Errno::EISDIR.into()),
        (true, true) if !t.is_empty(&t.fid(target))? => Err(Errno::ENOTEMPTY.into()),
        _ => Ok(()),
    }
}

/// Moves `src` to `dst`, and a file into the project that its new directory hands down. Returns what the replaced target lost, if there was one. Two names of one
/// object: nothing happens, as POSIX has it.
pub fn rename(
    t: &mut Txn<'_>,
    cred: &Ucred,
    src: At<'_>,
    dst: At<'_>,
    mode: RenameMode,
    is_open: IsOpen<'_>,
    time: Time,
) -> MdtResult<Option<Unlinked>> {
    let Some(plan) = plan_rename(t, cred, src, dst, mode)? else {
        return Ok(None);
    };
    let RenamePlan {
        src_dir,
        dst_dir,
        child,
        target,
    } = plan;
    let replaced = match target {
        Some(target) if mode == RenameMode::Exchange => {
            move_name(t, target, dst, src, dst_dir, src_dir, time)?;
            None
        }
        Some(target) => {
            t.del_link(target, &dst.parent, dst.name);
            if t.ino(target).is_dir() {
                fewer(t, dst_dir);
            }
            let last = drop_name(t, target, is_open, time)?;
            Some(Unlinked {
                fid: t.fid(target),
                ino: t.ino(target).clone(),
                last,
            })
        }
        None => None,
    };
    if mode != RenameMode::Exchange {
        t.del_entry(&src.parent, src.name);
    }
    move_name(t, child, src, dst, src_dir, dst_dir, time)?;
    touch(t, src_dir, time);
    touch(t, dst_dir, time);
    Ok(replaced)
}

/// Writes the entry `to` for `h` and moves its link and, of a directory, its parents' nlink.
fn move_name(
    t: &mut Txn<'_>,
    h: TxnObject,
    from: At<'_>,
    to: At<'_>,
    from_dir: TxnObject,
    to_dir: TxnObject,
    time: Time,
) -> MdtResult<()> {
    let (fid, mode) = (t.fid(h), t.ino(h).mode);
    t.add_entry(&to.parent, to.name, &fid, mode);
    t.del_link(h, &from.parent, from.name);
    t.add_link(h, to.parent, to.name);
    if let Some(project) = other_project(t.ino(to_dir), t.ino(h)) {
        t.change(h).projid = project;
    }
    t.change(h).ctime = time;
    if mode & S_IFMT == S_IFDIR {
        fewer(t, from_dir);
        t.change(to_dir).nlink += 1;
    }
    super::striped::renamed(t, h)
}
