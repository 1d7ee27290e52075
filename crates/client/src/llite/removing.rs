//! Removal of names: at once, or told to the MDT later ([`super::late_names`] has the rules of that).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::LockRef;
use coral_wire::Errno;
use coral_wire::coral::LENT_BITS;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmType, ResId};

use super::cache::{Known, Lookup};
use super::cred::permitted;
use super::finish::finish;
use super::inode::MdInode;
use super::late_names::{Added, Batch, Borrowed, IDLE, Removal, Teller};
use super::name::check_name;
use super::namei::Namespace;
use super::places::Missed;
use super::types::Cred;
use crate::error::{Error, Refusal, TargetError};
use crate::mdc::{Changed, Ids, Leaving, Mdc};
use crate::time::Timespec;

/// Removals one after the other in a directory, from which on the MDT is asked to lend it.
const ENOUGH: u32 = 2;
/// Inode flags of what may not be removed: `FS_IMMUTABLE_FL`, `FS_APPEND_FL`.
pub(super) const STAYS: u32 = 0x10 | 0x20;
/// Write and search, of a directory.
pub(super) const MAY_CHANGE: u32 = 2 | 1;
/// Times that an MDT is told again which could not take it, and the pause before each.
const TRIES: u32 = 5;
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// What the MDT said may pass: it has no space, or is not ready.
pub(super) fn may_pass(e: &TargetError) -> bool {
    let last = [
        Errno::ENOENT,
        Errno::ESTALE,
        Errno::EACCES,
        Errno::EPERM,
        Errno::EPROTO,
    ];
    matches!(e, TargetError::Refused { .. }) && !last.contains(&e.errno())
}

impl Namespace {
    /// Removes a name that is not a directory.
    pub async fn unlink(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<(), Error> {
        self.remove(cred, parent, name, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<(), Error> {
        match name {
            b"." => return Err(Refusal::RemovesDot.into()),
            b".." => return Err(Refusal::RemovesDotDot.into()),
            _ => {}
        }
        self.remove(cred, parent, name, true).await
    }

    async fn remove(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        dir: bool,
    ) -> Result<(), Error> {
        check_name(name)?;
        let (mut missed, mut asked) = (Missed::none(), 0);
        loop {
            let at = self.places.of(parent, name).await?;
            missed.is_new(&at)?;
            match self.remove_at(cred, at.dir, name, dir, asked > 0).await {
                Err(e) if self.is_another(&[parent], &e, asked) => asked += 1,
                Err(e) if self.places.may_have_moved(&[parent], &e) => missed.at(at, e),
                Err(e) => {
                    self.attributes.removers.ended(cred.pid);
                    return Err(e);
                }
                Ok(()) => {
                    self.attributes.removers.did(cred, parent);
                    if !self.attributes.removers.does(cred.pid) {
                        self.lookahead.rows.removed(parent, name);
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn remove_at(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        dir: bool,
        ask: bool,
    ) -> Result<(), Error> {
        let ids = self.ids.of(cred, &[parent]).await;
        let (mdc, child) = self.victim(parent, name, ask).await?;
        let (me, name) = (self.clone(), Bytes::copy_from_slice(name));
        finish(async move {
            me.late.sent_of_name(&me.cache, parent, &name).await;
            let _taking = match dir {
                true => None,
                false => Some(me.taking(&[(parent, &name)]).await),
            };
            let victim = me.victim_of(parent, &name);
            let kept = victim.fid.and_then(|fid| me.kept.lend(fid, &mdc));
            let _change = me.changes.begin(&[(parent, &name)]);
            let now = me.servers.now();
            let open = match &kept {
                Some(kept) => Some(kept.to_close().await),
                None => None,
            };
            let done = mdc
                .unlink(&ids, parent, &name, child, dir, now, open.as_ref())
                .await;
            if let Some(kept) = kept {
                let gone = |done: &Changed| done.attrs.body.nlink == 0;
                let closed = done.as_ref().ok().filter(|(_, closed)| *closed);
                (me.kept).given_back(
                    kept,
                    closed.is_some(),
                    closed.is_some_and(|(done, _)| gone(done)),
                );
            }
            let (done, _) = done.inspect_err(|e| me.cache.refused(parent, &name, e))?;
            me.changes
                .named(&mdc, parent, done.dir(parent), now, &name, None);
            me.lost_a_name(&mdc, &victim, &done.attrs.body, now);
            Ok(())
        })
        .await
    }

    /// Takes `name` away and lets the MDT hear of it later. False: it is to be asked first.
    pub(super) async fn remove_late(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> bool {
        let removers = &self.attributes.removers;
        if removers.in_dir(cred, parent) < ENOUGH || !self.cache.enabled() {
            return false;
        }
        let Ok(at) = self.places.of(parent, name).await else {
            return false;
        };
        let (dir, Ok(mdc)) = (at.dir, self.servers.lmv.of(at.dir).await) else {
            return false;
        };
        if !mdc.coral() || self.late_names.is_barred(dir) {
            return false;
        }
        let ids = self.ids.of(cred, &[parent]).await;
        // the lock is not kept from others while there is no room
        loop {
            let Some(lock) = self.lent(&mdc, ids, dir) else {
                return false;
            };
            let from = Borrowed {
                dir,
                parent,
                ids,
                mdc: mdc.clone(),
                lock,
            };
            match self.go_late(cred, from, name).await {
                Added::Full => self.late_names.room(dir).await,
                Added::Refused => return false,
                Added::Goes { begins } => {
                    if begins {
                        let me = self.clone();
                        tokio::spawn(async move { me.tell_removals(dir).await });
                    }
                    removers.did(cred, parent);
                    self.servers.stats.removed_late.inc();
                    return true;
                }
            }
        }
    }

    /// What `name` stands for, if the MDT grants that it goes, by all that the lock of the directory covers, and nothing of this client is in
    /// its way.
    async fn may_go(&self, cred: &Cred, dir: Fid, name: &[u8], mdc: &Arc<Mdc>) -> Option<Fid> {
        let Known { md, .. } = self.cache.known(dir)?;
        let stays = md.attr.mode & libc::S_ISVTX != 0 || md.attr.flags & STAYS != 0;
        if stays || permitted(cred, &md.attr, &md.acl, MAY_CHANGE).is_err() {
            return None;
        }
        let Lookup::Hit(victim) = self.cache.lookup(dir, name) else {
            return None;
        };
        let attr = victim.md.attr;
        let mdt = self.servers.lmv.of(attr.fid).await;
        let goes = attr.is_file()
            && attr.nlink == 1
            && attr.flags & STAYS == 0
            && self.open.of(attr.fid).is_none()
            && mdt.is_ok_and(|m| Arc::ptr_eq(&m, mdc));
        goes.then_some(attr.fid)
    }

    /// Puts it among those that go.
    async fn go_late(&self, cred: &Cred, from: Borrowed, name: &[u8]) -> Added {
        let (dir, parent, now) = (from.dir, from.parent, self.servers.now());
        let Some(fid) = self.may_go(cred, dir, name, &from.mdc).await else {
            return Added::Refused;
        };
        // from here on it is opened only with the MDT's word, and then not before it is gone
        let _going = self.untold.going(fid);
        self.untold.told(Some(&[fid]), now).await;
        if self.may_go(cred, dir, name, &from.mdc).await != Some(fid) {
            return Added::Refused;
        }
        let (all, name) = (&self.late_names, Bytes::copy_from_slice(name));
        let added = all.add(from, fid, || Removal {
            dir,
            parent,
            fid,
            objects: self.cache.objects_of(fid),
            now,
            change: Some(self.changes.begin(&[(dir, &name)])),
            all: all.clone(),
            name,
        });
        if let Added::Goes { .. } = added {
            // before the caller hears that it is done
            self.changes.kept_back(dir);
        }
        added
    }

    /// Tells the MDT of what goes from `dir`, until there is no more.
    async fn tell_removals(&self, dir: Fid) {
        let mut teller = Teller {
            all: self.late_names.clone(),
            lost_dirs: self.lost_dirs.clone(),
            dir,
            done: false,
        };
        while let Some(batch) = self.late_names.next(dir) {
            if batch.is_void {
                for r in &batch.names {
                    self.removal_lost(r, &Error::LocksVoid);
                }
                continue;
            }
            let Err(e) = self.tell(&batch, &batch.names).await else {
                continue;
            };
            // all or none: which of them it is shows when they go alone
            let is_alone = batch.names.len() == 1;
            for r in batch.names.chunks(1) {
                let done = match is_alone {
                    true => Err(e.clone()),
                    false => self.tell(&batch, r).await,
                };
                if let Err(e) = done {
                    r.iter()
                        .for_each(|r| self.removal_lost(r, &e.clone().into()));
                }
            }
        }
        teller.done = true;
    }

    async fn tell(&self, batch: &Batch, going: &[Removal]) -> Result<(), TargetError> {
        let Some(dir) = going.first().map(|r| r.dir) else {
            return Ok(());
        };
        let (mut names, mut kept) = (Vec::new(), Vec::new());
        for r in going {
            let open = self.kept.lend(r.fid, &batch.mdc);
            names.push(Leaving {
                name: r.name.clone(),
                fid: r.fid,
                open: match &open {
                    Some(open) => Some(open.to_close().await),
                    None => None,
                },
            });
            kept.extend(open);
        }
        let now = going.iter().map(|r| r.now).max().unwrap_or_default();
        let mut tries = 0;
        let done = loop {
            match batch.mdc.unlink_lent(&batch.ids, dir, &names, now).await {
                Err(e) if may_pass(&e) && tries < TRIES => tokio::time::sleep(PAUSE).await,
                done => break done,
            }
            tries += 1;
        };
        for open in kept {
            let closed = done
                .as_ref()
                .map(|(_, closed)| closed.contains(&open.fid()));
            self.kept
                .given_back(open, closed == Ok(true), closed.is_ok());
        }
        let (done, _) = done?;
        for r in going {
            self.removal_done(&batch.mdc, r, &done, now);
        }
        Ok(())
    }

    fn removal_done(&self, mdc: &Mdc, r: &Removal, done: &Changed, now: Timespec) {
        let body = done.dir(r.dir);
        self.changes.named(mdc, r.dir, body, now, &r.name, None);
        self.changes.forget_attrs(r.fid);
        self.object_gone(mdc, r.fid, &r.objects);
    }

    /// It was told as done and was not.
    fn removal_lost(&self, r: &Removal, error: &Error) {
        self.cache.doubt(r.dir);
        if error.is(Errno::ENOENT) {
            return;
        }
        tracing::error!(dir = %r.parent, name = %r.name.escape_ascii(), fid = %r.fid, %error, "a file that was removed is there still");
        self.changes.forget_attrs(r.fid);
        self.late_names.not_soon(r.dir);
        self.lost_dirs.note(r.parent);
    }

    /// The right to `dir`. `None`: it is not held; the MDT is asked for it meanwhile, if it may be.
    pub(super) fn lent(self: &Arc<Self>, mdc: &Arc<Mdc>, ids: Ids, dir: Fid) -> Option<LockRef> {
        let lock = mdc.lent(dir);
        if lock.is_none() && self.late_names.ask_for(dir) {
            let (me, mdc) = (self.clone(), mdc.clone());
            tokio::spawn(async move { me.borrow_dir(mdc, &ids, dir).await });
        }
        lock
    }

    /// Asks the MDT for the right to `dir`, and gives it back when nothing is taken away any more.
    async fn borrow_dir(self: Arc<Self>, mdc: Arc<Mdc>, ids: &Ids, dir: Fid) {
        let mark = self.cache.begin_read(dir);
        let lent = match mdc.lend(ids, dir).await {
            Ok(lent) => lent,
            Err(error) => {
                tracing::debug!(%dir, %error, "a directory is not lent");
                return self.late_names.not_soon(dir);
            }
        };
        let Some(lock) = lent.lock else {
            return;
        };
        // what the locks covered that went for it is covered anew before they go, or forgotten before it goes
        let pin = mdc.lent(dir);
        let md = lent.attrs.map_err(Error::from);
        let md = md.and_then(|a| MdInode::read(&mdc, &a));
        let unlearnt = match (&pin, &md) {
            (Some(_), Ok(md)) => {
                self.attributes.learn(&mdc, mark, md, Some(lock));
                None
            }
            _ => Some(lock),
        };
        for cookie in &lent.given_up {
            (self.upcalls).tell(|| self.cache.lock_lost(dir, *cookie, LENT_BITS.bits()));
        }
        mdc.namespace().replaced(lent.given_up.into_iter());
        self.upcalls.forgotten().await;
        drop(pin);
        if unlearnt.is_some() {
            return mdc.drop_lock(unlearnt);
        }
        self.late_names.lent(dir);
        let (me, mdc) = (Arc::downgrade(&self), Arc::downgrade(&mdc));
        drop(self);
        loop {
            tokio::time::sleep(IDLE).await;
            let (Some(me), Some(mdc)) = (me.upgrade(), mdc.upgrade()) else {
                return;
            };
            if me.late_names.is_unused(dir) {
                return mdc.drop_lock(mdc.lent(dir));
            }
        }
    }

    /// An object lost its last name; it has these objects on OSTs, as far as is known.
    pub(super) fn object_gone(&self, mdc: &Mdc, fid: Fid, objects: &[(u32, ResId)]) {
        self.kept.close(fid);
        self.cache.gone(fid);
        mdc.object_gone(fid);
        for (ost, object) in objects {
            if let Ok(osc) = self.servers.lov.osc(*ost) {
                (osc.namespace()).give_back_soon(*object, LdlmType::EXTENT);
            }
        }
    }
}
