//! Changing attributes: on the MDT, and size and times on the OSTs too.
//!
//! The MDT comes first: it checks permissions. Lustre: `ll_setattr_raw` in `lustre/llite/llite_lib.c`.

use std::sync::Arc;

use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ldlm::LdlmMode;
use coral_wire::mds::{attr, layout_intent};

use super::attributes::Attributes;
use super::changes::Changes;
use super::covers::{Covers, OpenFiles};
use super::drains::Drains;
use super::finish::finish;
use super::ghosts::Ghosts;
use super::handle::FileHandle;
use super::identities::Identities;
use super::inode::MdInode;
use super::kept::KeptOpens;
use super::late::LateAttrs;
use super::layouts::Layouts;
use super::privileges::{Privileges, has_setid};
use super::servers::Servers;
use super::types::{Cred, Entry, SetAttr, SetTime};
use crate::error::{Error, Refusal};
use crate::lov::{FileLayout, Form, Locks};
use crate::mdc::{Ids, SetattrArgs};
use crate::osc::{ObjectAttr, ObjectTimes, WriteAttr};
use crate::time::Timespec;

/// Changes attributes.
pub(super) struct SetAttrs {
    pub kept: Arc<KeptOpens>,
    pub late: Arc<LateAttrs>,
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub covers: Arc<Covers>,
    pub open: Arc<OpenFiles>,
    pub ghosts: Arc<Ghosts>,
    pub changes: Arc<Changes>,
    pub layouts: Arc<Layouts>,
    pub attributes: Arc<Attributes>,
    pub drains: Arc<Drains>,
    pub privileges: Arc<Privileges>,
}

impl SetAttrs {
    /// Changes attributes; answers the new ones. With `fh` a truncate needs no write permission on the file.
    pub async fn set(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        set: SetAttr,
        fh: Option<&FileHandle>,
    ) -> Result<Entry, Error> {
        let now = self.servers.now();
        if set.size.is_some_and(|s| s > i64::MAX as u64) {
            return Err(Refusal::TooLarge.into());
        }
        self.attributes.within_reach(fid).await?;
        if let Some(entry) = self.kept_back(cred, fid, &set, now).await? {
            return Ok(entry);
        }
        if let Some(entry) = self.empty_cut(cred, fid, &set, now).await? {
            return Ok(entry);
        }
        self.late.sent(fid).await;
        let through = fh.filter(|fh| set.size.is_some() && fh.writable());
        let mut args = md_args(&set, now, through.is_some());
        if let Some(fh) = through {
            // what the open allowed stays allowed, whoever the caller is by now
            fh.still_open(self.servers.now()).await?;
            args.handle = fh.at_mdt.cookie().await;
        }
        let (me, caller) = (self.clone(), cred.clone());
        let done =
            finish(async move { me.setattr_whole(&caller, fid, set, args, now).await }).await;
        match done {
            Err(e) if e.is_gone() => {
                let attr = self
                    .ghosts
                    .change(cred, fid, &set, now)
                    .map_err(|no| if no.is(Errno::ENOENT) { e } else { no })?;
                Ok(Entry::for_now(attr))
            }
            done => done,
        }
    }

    /// The whole of a setattr: MDT, then OSTs.
    async fn setattr_whole(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        set: SetAttr,
        mut args: SetattrArgs,
        now: Timespec,
    ) -> Result<Entry, Error> {
        // an append and a truncate of this mount take the same locks: one after the other
        let open = set.size.and_then(|_| self.open.of(fid));
        let _turn = match &open {
            Some(open) => Some(open.append.lock().await),
            None => None,
        };
        let times = set.atime.is_some() || set.mtime.is_some() || set.ctime.is_some();
        let of_objects = times || set.size.is_some();
        let _not_again = of_objects.then(|| self.kept.changing(fid));
        let gate = self.covers.gate(fid);
        let mut truncating = set.size.map(|_| gate.begin_truncate());
        // who opens the file only now sees that it is being truncated
        let changed = self.open.of(fid).filter(|_| of_objects);
        let _changing = changed.as_ref().map(|o| o.data.begin());
        if of_objects {
            self.late.forget_size(fid);
            self.kept.made_closed(fid).await;
            self.drains.settle(fid, &gate).await;
        }
        if let Some(size) = set.size {
            self.can_truncate(fid, size).await?;
        }
        let held = truncating
            .as_ref()
            .and_then(|t| t.cover.as_ref())
            .map(|c| c.held())
            .unwrap_or_default();
        let mut ids = self.ids.of(cred, &[fid]).await;
        if let Some(gid) = set.gid
            && cred.uid != 0
            && cred.supplementary().contains(&gid)
        {
            // the one group that a setattr carries is the one the file is given to (`mdc_setattr_pack_rec` in lustre/mdc/mdc_lib.c)
            ids.suppgids = [gid, Ids::NO_GROUP];
        }
        let mdc = self.servers.lmv.of(fid).await?;
        let chosen = |t| matches!(t, Some(SetTime::At(_)));
        if !mdc.coral() && cred.uid != 0 && (chosen(set.atime) || chosen(set.mtime)) {
            // Lustre's MDT cannot tell chosen times from the present and leaves this to its clients
            if self.attributes.md_inode(fid).await?.attr.uid != cred.uid {
                return Err(Refusal::NotOwner.into());
            }
        }
        if !mdc.coral() && args.handle != 0 {
            // Lustre's MDT looks at no handle here and leaves such checks to its clients
            args.valid |= attr::FORCE;
        }
        if mdc.coral() && args.valid == attr::ATTR_FLAG {
            args.valid |= attr::CTIME | attr::CTIME_SET;
        }
        let attrs = mdc.setattr(&ids, fid, &args).await?;
        self.changes.object(&mdc, fid, &attrs.body, args.ctime);
        if set.kill_suidgid && has_setid(attrs.body.mode) {
            self.privileges
                .kill_setid(&ids, &mdc, fid, args.handle)
                .await?;
        }
        if !mdc.coral() && (set.size.is_some() || set.uid.is_some() || set.gid.is_some()) {
            self.privileges.drop_capabilities(&mdc, fid).await?;
        }
        let md = self.attributes.md_inode(fid).await?;
        if let Some(open) = self.open.of(fid) {
            open.set_owner(md.attr.owner());
        }
        self.ids.hint(fid, md.attr.gid);
        let told = match md.attr.is_file() {
            true => self.set_on_osts(&md, &set, now, &held).await?,
            false => None,
        };
        // what follows may wait for a lock, and must not hold one that is asked back; new covers still wait
        if let Some(t) = &mut truncating {
            t.cover = None;
        }
        drop(held);
        let attr = match told {
            Some(objects) => md.merged(&objects),
            None => self.attributes.full(&md).await?,
        };
        Ok(self.attributes.entry(attr))
    }

    /// Keeps the change back if it may wait, and answers as if it were done.
    async fn kept_back(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        now: Timespec,
    ) -> Result<Option<Entry>, Error> {
        if !self.late.may_keep(fid) {
            return Ok(None);
        }
        let md = self.attributes.md_inode(fid).await?;
        if !is_granted(cred, &md, set) {
            return Ok(None);
        }
        let ids = self.ids.of(cred, &[fid]).await;
        let (me, set, args) = (self.clone(), *set, md_args(set, now, false));
        finish(async move { me.keep_back(&ids, fid, &set, &args, now).await }).await
    }

    /// Cuts a file that is empty, and of which nobody else knows: nothing but its times changes.
    async fn empty_cut(
        &self,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        now: Timespec,
    ) -> Result<Option<Entry>, Error> {
        let cut = SetAttr {
            size: Some(0),
            kill_suidgid: set.kill_suidgid,
            ..Default::default()
        };
        let touched = SetAttr {
            mtime: Some(SetTime::Now),
            ..Default::default()
        };
        let is_empty = |o: &ObjectAttr| {
            let times = o.mtime.max(o.ctime);
            o.is_empty() && times <= now
        };
        let objects = || self.late.objects(fid).filter(is_empty);
        if *set != cut || !self.late.may_keep(fid) || objects().is_none() {
            return Ok(None);
        }
        let md = self.attributes.md_inode(fid).await?;
        let uncapped = self.attributes.cache.is_uncapped(fid);
        if !uncapped || !is_granted(cred, &md, &touched) {
            return Ok(None);
        }
        let ids = self.ids.of(cred, &[fid]).await;
        let args = md_args(&touched, now, false);
        let Some(objects) = objects().filter(|_| self.late.keep(fid, &ids, &args)) else {
            return Ok(None);
        };
        let md = self.attributes.md_inode(fid).await?;
        Ok(Some(self.attributes.entry(md.merged(&objects))))
    }

    async fn keep_back(
        &self,
        ids: &Ids,
        fid: Fid,
        set: &SetAttr,
        args: &SetattrArgs,
        now: Timespec,
    ) -> Result<Option<Entry>, Error> {
        let times = set.atime.is_some() || set.mtime.is_some();
        if times {
            self.drains.settle(fid, &self.covers.gate(fid)).await;
        }
        let open = self.open.of(fid);
        let quiet = open.as_ref().and_then(|o| o.data.quiet());
        if !self.late.keep(fid, ids, args) {
            return Ok(None);
        }
        let md = self.attributes.md_inode(fid).await?;
        if let Some(open) = open {
            open.set_owner(md.attr.owner());
        }
        self.ids.hint(fid, md.attr.gid);
        let set_late = times && self.late.set_times(fid, &object_times(set, now)).await;
        let told = match times && !set_late {
            true => self.set_on_osts(&md, set, now, &Locks::default()).await?,
            false => None,
        };
        if let (None, Some(objects)) = (told, self.late.held(fid)) {
            // as it will look when its data has come, which nobody is to remember
            return Ok(Some(Entry::for_now(md.merged(&objects))));
        }
        if let (Some(objects), Some(stamp)) = (told, quiet) {
            self.late.objects_told(fid, stamp, objects);
        }
        let attr = match told {
            Some(objects) => md.merged(&objects),
            None => self.attributes.full(&md).await?,
        };
        Ok(Some(self.attributes.entry(attr)))
    }

    /// EOPNOTSUPP for a file whose objects are out of reach (released, foreign), ENODATA behind the last component: before the MDT
    /// notes a size that nothing has.
    async fn can_truncate(&self, fid: Fid, size: u64) -> Result<(), Error> {
        let layout = match self.open.of(fid) {
            Some(open) => self.layouts.now(&open).await?,
            None => self.attributes.md_inode(fid).await?.layout,
        };
        layout.check()?;
        layout.check_end(size)
    }

    /// Size and times of the objects; what they are then, where the replies tell.
    async fn set_on_osts(
        &self,
        md: &MdInode,
        set: &SetAttr,
        now: Timespec,
        held: &Locks,
    ) -> Result<Option<ObjectAttr>, Error> {
        let fid = md.attr.fid;
        let (mut layout, mut cut) = (md.layout.clone(), None);
        if let Some(size) = set.size {
            let attr = WriteAttr::of(md.attr.owner(), now);
            (layout, cut) = self
                .truncate_objects(fid, layout, size, &attr, held)
                .await?;
        }
        // components without objects may have got some elsewhere
        let whole = !layout.needs_init(0, u64::MAX);
        let times = object_times(set, now);
        if (times.atime.is_some() || times.mtime.is_some() || set.ctime.is_some())
            && layout.form == Form::Objects
        {
            let told = self
                .servers
                .lov
                .set_times(&layout, fid, &times, held)
                .await?;
            if layout.has_dom() {
                self.changes.data_times_set(fid);
            }
            return Ok(told.filter(|_| whole));
        }
        Ok(cut.filter(|_| whole))
    }

    async fn truncate_objects(
        &self,
        fid: Fid,
        layout: Arc<FileLayout>,
        size: u64,
        attr: &WriteAttr,
        held: &Locks,
    ) -> Result<(Arc<FileLayout>, Option<ObjectAttr>), Error> {
        let mut layout = self.layouts.settled(fid, layout).await?;
        layout.check()?;
        let from = size.saturating_sub(1);
        if layout.needs_intent(from, size) {
            if size == 0 && layout.form == Form::None {
                return Ok((layout, None));
            }
            layout = self
                .layouts
                .instantiate(fid, layout_intent::TRUNC, from, size.max(1))
                .await?;
            if let Some(open) = self.open.of(fid) {
                open.set_layout(layout.clone());
            }
        }
        if size == 0 && self.attributes.known_empty(fid, &layout, attr.time) {
            if let Some(open) = self.open.of(fid) {
                open.set_size(0);
            }
            return Ok((layout, None));
        }
        // all objects are locked before the first is cut: an append of another client must not take an end from one that is not
        // cut yet. (`vvp_io_setattr_lock` in `lustre/llite/vvp_io.c`. The lock of data on an MDT is the MDT's to take.)
        let several = layout.stripes().filter(|s| s.part.end > from).count() > 1;
        let own = match several && held.is_empty() && !layout.has_dom() {
            true => Locks::of_objects(
                self.servers
                    .lov
                    .lock_objects(&layout, fid, LdlmMode::PW)
                    .await?,
            ),
            false => Locks::default(),
        };
        let held = if own.is_empty() { held } else { &own };
        let cut = self
            .servers
            .lov
            .truncate(&layout, fid, size, attr, held)
            .await?;
        drop(own);
        if let Some(open) = self.open.of(fid) {
            open.set_size(size);
        }
        Ok((layout, cut))
    }

    /// O_TRUNC, after the open succeeded.
    pub async fn truncate(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        size: u64,
    ) -> Result<Entry, Error> {
        let set = SetAttr {
            size: Some(size),
            kill_suidgid: cred.uid != 0,
            ..Default::default()
        };
        self.set(cred, fh.fid(), set, Some(fh)).await
    }
}

/// What is set of times, for the objects.
fn object_times(set: &SetAttr, now: Timespec) -> ObjectTimes {
    let time = |t: Option<SetTime>| t.map(|t| if let SetTime::At(t) = t { t } else { now });
    ObjectTimes {
        atime: time(set.atime),
        mtime: time(set.mtime),
        ctime: Some(set.ctime.unwrap_or(now)),
    }
}

/// Whether an MDT that takes this client's ids for what they are is sure to grant the change, and to do no more than it says: setuid
/// and setgid, ACLs and flags have rules of their own.
fn is_granted(cred: &Cred, md: &MdInode, set: &SetAttr) -> bool {
    let kept = SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        atime: set.atime,
        mtime: set.mtime,
        // Linux asks for it with each chown; there are none to be taken
        kill_suidgid: set.kill_suidgid,
        ..Default::default()
    };
    let attr = &md.attr;
    let special = (attr.mode | set.mode.unwrap_or(0)) & 0o7000 != 0;
    let plain = attr.is_file() && attr.flags == 0 && md.acl.is_empty() && !special;
    let owns = attr.uid == cred.uid
        && set.uid.is_none_or(|u| u == attr.uid)
        && set.gid.is_none_or(|g| g == attr.gid);
    let nothing = SetAttr {
        kill_suidgid: kept.kill_suidgid,
        ..Default::default()
    };
    *set == kept
        && kept != nothing
        && plain
        && md.layout.form == Form::Objects
        && !md.layout.has_dom()
        && (cred.uid == 0 || owns)
}

/// The record for the MDT. Times are the client's, as with the kernel client.
fn md_args(set: &SetAttr, now: Timespec, writable: bool) -> SetattrArgs {
    let mut a = SetattrArgs {
        ctime: set.ctime.unwrap_or(now),
        valid: attr::CTIME | attr::CTIME_SET,
        ..Default::default()
    };
    if (SetAttr {
        flags: None,
        ..*set
    }) == SetAttr::default()
    {
        // of an immutable file nothing but the flags may change, the change time neither
        a.valid = 0;
    }
    let mut put = |value: Option<u32>, bit: u64, field: &mut u32| {
        if let Some(v) = value {
            *field = v;
            a.valid |= bit;
        }
    };
    put(set.mode, attr::MODE, &mut a.mode);
    put(set.uid, attr::UID, &mut a.uid);
    put(set.gid, attr::GID, &mut a.gid);
    put(set.projid, attr::PROJID, &mut a.projid);
    put(set.flags, attr::ATTR_FLAG, &mut a.flags);
    if let Some(size) = set.size {
        a.size = size;
        a.mtime = now;
        a.valid |= attr::SIZE | attr::MTIME;
        if writable {
            a.valid |= attr::OVERRIDE;
        }
    }
    for (time, bit, chosen, field) in [
        (set.atime, attr::ATIME, attr::ATIME_SET, &mut a.atime),
        (set.mtime, attr::MTIME, attr::MTIME_SET, &mut a.mtime),
    ] {
        match time {
            Some(SetTime::Now) => {
                *field = now;
                a.valid |= bit;
            }
            Some(SetTime::At(t)) => {
                *field = t;
                a.valid |= bit | chosen;
            }
            None => {}
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_alone() {
        let set = SetAttr {
            flags: Some(0x10),
            ..Default::default()
        };
        assert_eq!(
            md_args(&set, Timespec { secs: 9, nanos: 1 }, false).valid,
            attr::ATTR_FLAG
        );
    }

    #[test]
    fn a_truncate_through_a_handle_overrides() {
        let now = Timespec { secs: 9, nanos: 1 };
        let set = SetAttr {
            size: Some(5),
            ..Default::default()
        };
        let a = md_args(&set, now, true);
        assert_eq!(
            a.valid,
            attr::CTIME | attr::CTIME_SET | attr::SIZE | attr::MTIME | attr::OVERRIDE
        );
        assert_eq!((a.size, a.mtime, a.ctime), (5, now, now));
        assert_eq!(md_args(&set, now, false).valid & attr::OVERRIDE, 0);
    }

    #[test]
    fn chosen_times_are_told_from_now() {
        let now = Timespec { secs: 9, nanos: 1 };
        let old = Timespec { secs: 1, nanos: 0 };
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(old)),
            ..Default::default()
        };
        let a = md_args(&set, now, false);
        assert_eq!((a.atime, a.mtime), (now, old));
        assert_eq!(
            a.valid & (attr::ATIME_SET | attr::MTIME_SET),
            attr::MTIME_SET
        );
    }
}
