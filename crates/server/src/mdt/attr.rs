//! Changing attributes: chmod, chown, truncate, times, flags, project
//! (`mdd_fix_attr` and `mdd_attr_set` in `lustre/mdd/mdd_object.c`).

use coral_osd::Time;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::acl;
use super::cred::{FL_APPEND, FL_IMMUTABLE, MAY_READ, MAY_WRITE, Ucred, cap};
use super::record::Inode;
use super::store::{MdtResult, Txn, TxnObject};

/// Flags a setattr may change (`LUSTRE_FL_USER_MODIFIABLE`, the ones Coral keeps).
const FL_MODIFIABLE: u32 = 0x0000_00ff | 0x2000_0000;

/// A change of attributes (`struct md_attr`): what is `Some` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MdAttr {
    /// Permission bits (12).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Space in 512-byte blocks, as a client knows it of a striped file.
    pub blocks: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of contents.
    pub mtime: Option<Time>,
    /// Last change of attributes.
    pub ctime: Option<Time>,
    /// `LUSTRE_*_FL` flags.
    pub flags: Option<u32>,
    /// Project.
    pub projid: Option<u32>,
    /// Clear setuid: the file is written or cut.
    pub kill_suid: bool,
    /// Clear setgid where the group may execute.
    pub kill_sgid: bool,
    /// The times were given by the caller (utimes), not taken from a clock.
    pub times_given: bool,
    /// The caller holds the file open for writing: its permission is no longer asked for.
    pub opened: bool,
    /// The caller may write as owner whatever the mode says (O_TRUNC of a file just created).
    pub owner_override: bool,
}

impl MdAttr {
    /// Whether file capabilities go with it: the file is written by who holds it open, cut, or given away.
    pub fn ends_capabilities(&self) -> bool {
        let written = self.opened && (self.kill_suid || self.kill_sgid);
        written || self.size.is_some() || self.uid.is_some() || self.gid.is_some()
    }

    fn times_only(&self) -> bool {
        let times = self.atime.is_some() || self.mtime.is_some() || self.ctime.is_some();
        let others = self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.size.is_some()
            || self.flags.is_some()
            || self.projid.is_some()
            || self.kill_suid
            || self.kill_sgid;
        times && !others
    }
}

/// Applies `set` to `fid` for `cred`.
pub fn setattr(t: &mut Txn<'_>, cred: &Ucred, fid: &Fid, set: &MdAttr) -> MdtResult<TxnObject> {
    let h = t.get(fid)?;
    let old = t.ino(h).clone();
    check(t, cred, fid, &old, set)?;
    let mode = new_mode(cred, &old, set);
    if mode != old.mode {
        chmod(t, h, mode)?;
    }
    let ino = t.change(h);
    let fields = [
        (&mut ino.uid, set.uid),
        (&mut ino.gid, set.gid),
        (&mut ino.projid, set.projid),
    ];
    for (field, value) in fields {
        *field = value.filter(|&v| v != u32::MAX).unwrap_or(*field);
    }
    if let Some(flags) = set.flags {
        ino.flags = ino.flags & !FL_MODIFIABLE | flags & FL_MODIFIABLE;
    }
    ino.size = set.size.unwrap_or(ino.size);
    ino.blocks = set.blocks.unwrap_or(ino.blocks);
    ino.atime = set.atime.unwrap_or(ino.atime);
    ino.mtime = set.mtime.unwrap_or(ino.mtime);
    // the clock of a client may run behind what is recorded: ctime does not go back
    if let Some(ctime) = set.ctime {
        ino.ctime = if set.times_given || set.size.is_none() {
            ctime
        } else {
            ctime.max(ino.ctime)
        };
    }
    Ok(h)
}

/// Gives the object permission bits `mode`, and its ACL the same.
pub fn chmod(t: &mut Txn<'_>, h: TxnObject, mode: u32) -> MdtResult<()> {
    let fid = t.fid(h);
    if let Some(mut acl) = t.store.acl(&fid, t.ino(h), acl::ACCESS)? {
        acl.chmod(mode);
        t.put_xattr(h, acl::ACCESS, Some(acl.encode()));
    }
    t.change(h).mode = mode;
    Ok(())
}

fn check(t: &Txn<'_>, cred: &Ucred, fid: &Fid, old: &Inode, set: &MdAttr) -> MdtResult<()> {
    if let Some(flags) = set.flags {
        let changed = (old.flags ^ flags) & (FL_IMMUTABLE | FL_APPEND) != 0;
        if !cred.owns(old) || (changed && !cred.has(cap::LINUX_IMMUTABLE)) {
            return Err(Errno::EPERM.into());
        }
    }
    // the change time goes with the flags
    let ctime = set.ctime.filter(|_| set.flags.is_none());
    let others = MdAttr {
        flags: None,
        ctime,
        opened: false,
        owner_override: false,
        times_given: false,
        ..set.clone()
    };
    // who may append may also touch, and takes setuid away by it
    let appends = set.times_only() && !set.times_given
        || MdAttr {
            kill_suid: false,
            kill_sgid: false,
            ctime: None,
            ..others.clone()
        } == MdAttr::default();
    let fixed = if appends {
        FL_IMMUTABLE
    } else {
        FL_IMMUTABLE | FL_APPEND
    };
    if old.flags & fixed != 0 && others != MdAttr::default() {
        return Err(Errno::EPERM.into());
    }
    if set.projid.is_some_and(|p| p != old.projid) && !cred.has(cap::SYS_RESOURCE) {
        return Err(Errno::EPERM.into());
    }
    // times of the caller's choosing are the owner's to set, with or without a handle; "now" is any writer's
    if set.times_given && (set.atime.is_some() || set.mtime.is_some()) && !cred.owns(old) {
        return Err(Errno::EPERM.into());
    }
    if set.times_only() && !cred.owns(old) && !set.opened {
        t.store.permit(cred, fid, old, MAY_WRITE)?;
    }
    if set.mode.is_some() && !cred.owns(old) {
        return Err(Errno::EPERM.into());
    }
    // whose write takes setuid away is a writer; a cut is looked at below
    if (set.kill_suid || set.kill_sgid) && set.size.is_none() && !set.opened && !cred.owns(old) {
        t.store.permit(cred, fid, old, MAY_WRITE)?;
    }
    let may_chown = cred.has(cap::CHOWN);
    if let Some(uid) = set.uid.filter(|&u| u != u32::MAX)
        && (cred.uid != old.uid || uid != old.uid)
        && !may_chown
    {
        return Err(Errno::EPERM.into());
    }
    if let Some(gid) = set.gid.filter(|&g| g != u32::MAX)
        && (cred.uid != old.uid || (gid != old.gid && !cred.in_group(gid)))
        && !may_chown
    {
        return Err(Errno::EPERM.into());
    }
    if set.size.is_some() {
        check_truncate(t, cred, fid, old, set)?;
    }
    Ok(())
}

fn check_truncate(
    t: &Txn<'_>,
    cred: &Ucred,
    fid: &Fid,
    old: &Inode,
    set: &MdAttr,
) -> MdtResult<()> {
    if old.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if !old.is_reg() {
        return Err(Errno::EINVAL.into());
    }
    if set.opened || (set.owner_override && cred.uid == old.uid) {
        return Ok(());
    }
    let chgrp = set.gid.is_some_and(|g| g != old.gid);
    t.store
        .permit(cred, fid, old, if chgrp { MAY_READ } else { MAY_WRITE })
}

/// Permission bits after `set`: what was asked, less the setuid and setgid bits a change of owner,
/// a kill flag or a caller outside the group costs.
fn new_mode(cred: &Ucred, old: &Inode, set: &MdAttr) -> u32 {
    let mut mode = old.mode;
    if let Some(m) = set.mode.filter(|&m| m != u32::MAX) {
        mode = old.mode & !0o7777 | m & 0o7777;
        let gid = set.gid.filter(|&g| g != u32::MAX).unwrap_or(old.gid);
        if !cred.in_group(gid) && !cred.has(cap::FSETID) {
            mode &= !0o2000;
        }
    }
    let chown = !old.is_dir() && (set.uid.is_some() || set.gid.is_some());
    if set.kill_suid || (chown && set.mode.is_none()) {
        mode &= !0o4000;
    }
    if set.kill_sgid && (mode & 0o010 != 0 || set.mode.is_some())
        || (chown && set.mode.is_none() && mode & 0o2010 == 0o2010)
    {
        mode &= !0o2000;
    }
    mode
}

/// Attributes a close brings: times move forward only, atime not more often than `atime_diff_s`
/// seconds (`MDS_CLOSE_UPDATE_TIMES`, `mdd.*.atime_diff`). Returns whether anything changed.
pub fn close_update(t: &mut Txn<'_>, h: TxnObject, set: &MdAttr, atime_diff_s: i64) -> bool {
    let old = t.ino(h).clone();
    let mut ino = old.clone();
    if let Some(ctime) = set.ctime.filter(|&c| c > old.ctime) {
        ino.ctime = ctime;
        ino.mtime = set.mtime.map_or(old.mtime, |m| m.max(old.mtime));
    }
    if let Some(atime) = set
        .atime
        .filter(|a| a.secs > old.atime.secs.saturating_add(atime_diff_s))
    {
        ino.atime = atime;
    }
    if old.is_reg() {
        ino.size = set.size.unwrap_or(old.size);
        ino.blocks = set.blocks.unwrap_or(old.blocks);
    }
    let changed = ino != old;
    if changed {
        *t.change(h) = ino;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(mode: u32) -> Inode {
        Inode {
            mode,
            uid: 10,
            gid: 20,
            ..Inode::default()
        }
    }

    #[test]
    fn setuid_and_setgid_are_lost_where_posix_says() {
        let owner = Ucred::new(10, 20, &[], 0);
        let file = old(0o106755);
        let chown = MdAttr {
            gid: Some(20),
            ..MdAttr::default()
        };
        assert_eq!(new_mode(&owner, &file, &chown), 0o100755);
        assert_eq!(
            new_mode(&owner, &old(0o102644), &chown),
            0o102644,
            "no group execute: mandatory locking"
        );
        assert_eq!(
            new_mode(&owner, &old(0o042755), &chown),
            0o042755,
            "directories keep theirs"
        );
        let chmod = MdAttr {
            mode: Some(0o2755),
            ..MdAttr::default()
        };
        assert_eq!(new_mode(&owner, &file, &chmod), 0o102755);
        let stranger = Ucred::new(10, 99, &[], 0);
        assert_eq!(
            new_mode(&stranger, &file, &chmod),
            0o100755,
            "not in the group"
        );
        let kill = MdAttr {
            kill_suid: true,
            kill_sgid: true,
            ..MdAttr::default()
        };
        assert_eq!(new_mode(&owner, &file, &kill), 0o100755);
        assert_eq!(
            new_mode(&owner, &old(0o106745), &kill),
            0o102745,
            "no group execute: mandatory locking"
        );
    }

    #[test]
    fn times_alone_are_told_from_other_changes() {
        let t = Some(Time::from_secs(1));
        assert!(
            MdAttr {
                atime: t,
                ctime: t,
                ..MdAttr::default()
            }
            .times_only()
        );
        assert!(
            !MdAttr {
                mtime: t,
                size: Some(0),
                ..MdAttr::default()
            }
            .times_only()
        );
        assert!(!MdAttr::default().times_only());
    }
}
