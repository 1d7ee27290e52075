//! Attributes that are kept back: who makes a file and sets its owner, mode and times while it is open pays nothing for them, they go
//! with the close. So does the beginning of its data ([`held`]), but to its OST.
//!
//! # Invariants
//! - Attributes of a file are kept back only through the open that made it, if the MDT said so with that open
//!   ([`KEEPS_ATTRS`](coral_wire::coral::KEEPS_ATTRS)), and only as long as the lock that came with it is held. As nobody else is
//!   told of the file's attributes meanwhile, or is let in by them, nobody sees that they are late.
//! - Only what the MDT is sure to grant is kept back (the caller sees to that): a refusal is told by the call that is refused.
//! - They are sent before the lock is given back or the MDT is told that nothing is kept (a glimpse), before an fsync of any descriptor
//!   returns, before anything else of this client that the MDT judges by them, before data changes after them, at the latest after
//!   [`AGE`], and with the close of the open that made the file.
//! - As long as nobody else is told of the file or let in, the caller may remember that it is empty. It is told to forget that before
//!   the MDT hears that nothing is kept, or of the close, and before this client changes the size in a way that the caller does not see.
//! - The request takes no lock at the MDT, where others may wait for ours, and no place that others hold
//!   ([`KEPT_ATTRS`](coral_wire::coral::KEPT_ATTRS)). After an eviction the MDT refuses it: others may have changed them since.
//! - What could not be sent is lost, and told as lost data is (`covers/lost.rs`).

mod held;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use coral_wire::Errno;
use coral_wire::coral::KEPT_ATTRS;
use coral_wire::fid::Fid;
use coral_wire::mds::attr;
use futures_util::future::join_all;
use parking_lot::Mutex;

use self::held::Data;
use super::cache::{Cache, Lookup};
use super::changes::Changes;
use super::covers::OpenFiles;
use super::finish::finish;
use super::mdt_open::MdtOpen;
use super::types::Attr;
use crate::error::Error;
use crate::mdc::{Ids, SetattrArgs};
use crate::osc::ObjectAttr;

/// Attributes are sent after this at the latest, as dirty data is.
const AGE: Duration = Duration::from_secs(1);

/// What is kept back of all files of a mount.
pub(super) struct LateAttrs {
    changes: Arc<Changes>,
    open: Arc<OpenFiles>,
    /// Where those that are old are sent.
    runtime: tokio::runtime::Handle,
    /// Each is its handle's.
    files: Mutex<BTreeMap<Fid, Weak<LateFile>>>,
    /// A task looks after them.
    running: AtomicBool,
    /// Of so many data is kept back.
    holding: Arc<AtomicUsize>,
}

/// What is kept back of one file.
pub(super) struct LateFile {
    changes: Arc<Changes>,
    open: Arc<OpenFiles>,
    holding: Arc<AtomicUsize>,
    fid: Fid,
    /// The open that made it.
    at_mdt: OnceLock<Arc<MdtOpen>>,
    state: Mutex<State>,
    /// One request at a time.
    turn: tokio::sync::Mutex<()>,
    /// The same of its data.
    data_turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Nothing more is kept back.
    ended: bool,
    /// To be sent, in whose name.
    kept: Option<(Ids, SetattrArgs)>,
    /// On its way.
    sending: Option<SetattrArgs>,
    /// The file's objects when its data had changed so often ([`super::covers::OpenInode::data`]).
    objects: Option<(u64, ObjectAttr)>,
    /// What the caller remembers of its size.
    shown: Shown,
    /// What is kept back of its data.
    data: Data,
    /// Another owner was set when data had been sent already: the MDT has to tell the OST of it.
    owner_apart: bool,
}

impl State {
    fn has_late_attributes(&self) -> bool {
        self.kept.is_some() || self.sending.is_some()
    }

    /// Nothing else is kept back or on its way.
    fn has_change_time_alone(&self) -> bool {
        let kept = self.kept.as_ref().is_none_or(|(_, k)| is_change_time(k));
        kept && self.sending.is_none()
    }
}

/// What the caller remembers of the size of a file that was just made.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Shown {
    /// Nothing of which this client has to tell it.
    #[default]
    Nothing,
    /// That it is empty.
    Empty,
    /// It was told to forget that.
    ToForget,
}

impl LateAttrs {
    /// Of one mount.
    pub fn new(
        changes: Arc<Changes>,
        open: Arc<OpenFiles>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            changes,
            open,
            runtime,
            files: Mutex::default(),
            running: AtomicBool::new(false),
            holding: Arc::default(),
        }
    }

    /// `fid` is going to be made, and its lock may be asked back as soon as it is: nothing is kept back before
    /// [`LateFile::begin`], nor after it if that was so.
    pub fn expect(&self, fid: Fid) -> Arc<LateFile> {
        let file = Arc::new(LateFile {
            changes: self.changes.clone(),
            open: self.open.clone(),
            holding: self.holding.clone(),
            fid,
            at_mdt: OnceLock::new(),
            state: Mutex::default(),
            turn: Default::default(),
            data_turn: Default::default(),
        });
        self.files.lock().insert(fid, Arc::downgrade(&file));
        file
    }

    fn of(&self, fid: Fid) -> Option<Arc<LateFile>> {
        self.files.lock().get(&fid).and_then(Weak::upgrade)
    }

    /// Nothing more of `fid` is kept back; what is, is to be sent. If the caller remembers that the file is empty it is told to forget
    /// that; true: it may be about to.
    pub fn end(&self, fid: Fid) -> bool {
        self.of(fid).is_some_and(|file| self.end_of(&file))
    }

    /// The same of what one open of a file keeps back.
    pub fn end_of(&self, file: &LateFile) -> bool {
        file.state.lock().ended = true;
        self.forget_size_of(file)
    }

    /// The size of `fid` may change without a word to the caller, who is told to forget it where it remembers that the file is empty; true:
    /// it may be about to.
    pub fn forget_size(&self, fid: Fid) -> bool {
        self.of(fid).is_some_and(|file| self.forget_size_of(&file))
    }

    fn forget_size_of(&self, file: &LateFile) -> bool {
        self.changes.caller_forgets(file.fid, || {
            let mut state = file.state.lock();
            let told = state.shown == Shown::Empty;
            if told {
                state.shown = Shown::ToForget;
            }
            told
        });
        file.state.lock().shown == Shown::ToForget
    }

    /// The caller may remember the attributes of `fid`, which was just made and is empty: it is told when that ends. False: others may
    /// know the file.
    pub fn show_empty(&self, fid: Fid) -> bool {
        let Some(file) = self.of(fid).filter(|f| f.at_mdt.get().is_some()) else {
            return false;
        };
        let mut state = file.state.lock();
        if !state.ended {
            state.shown = Shown::Empty;
        }
        !state.ended
    }

    /// The open that made the file is closed, or kept for whoever opens the file next, or has made none.
    pub fn closed(&self, file: &Arc<LateFile>) {
        let mut files = self.files.lock();
        let now = files.get(&file.fid);
        if now.is_some_and(|now| std::ptr::eq(now.as_ptr(), Arc::as_ptr(file))) {
            files.remove(&file.fid);
        }
    }

    /// Whether attributes of `fid` may be kept back.
    pub fn may_keep(&self, fid: Fid) -> bool {
        (self.of(fid)).is_some_and(|f| f.at_mdt.get().is_some() && !f.state.lock().ended)
    }

    /// Keeps what `ids` set back. False: it is to be sent, and what was kept before it.
    pub fn keep(self: &Arc<Self>, fid: Fid, ids: &Ids, args: &SetattrArgs) -> bool {
        let Some(file) = self.of(fid).filter(|f| f.at_mdt.get().is_some()) else {
            return false;
        };
        // what is sure to be granted needs no group
        let ids = Ids {
            suppgids: [Ids::NO_GROUP; 2],
            umask: 0,
            ..*ids
        };
        let mut state = file.state.lock();
        if state.ended {
            return false;
        }
        match &mut state.kept {
            Some((whose, _)) if *whose != ids => return false,
            Some((_, kept)) => add(kept, args),
            none => *none = Some((ids, *args)),
        }
        let owns = args.valid & (attr::UID | attr::GID | attr::PROJID) != 0;
        state.owner_apart |= owns && !self.goes_with_data(&file, &state);
        drop(state);
        self.changes.kept_back(fid);
        self.look_after();
        true
    }

    /// The file's objects, when its data had changed `stamp` times.
    pub fn objects_told(&self, fid: Fid, stamp: u64, objects: ObjectAttr) {
        if let Some(file) = self.of(fid) {
            file.state.lock().objects = Some((stamp, objects));
        }
    }

    /// The file's objects as they are, if that is known: nobody else knows of them.
    pub fn objects(&self, fid: Fid) -> Option<ObjectAttr> {
        let file = self.of(fid)?;
        let now = self.open.of(fid)?.data.quiet()?;
        let state = file.state.lock();
        let (stamp, objects) = state.objects.filter(|_| !state.ended)?;
        (stamp == now).then_some(objects)
    }

    /// `attr` with what the MDT has not heard of yet.
    pub fn beside(&self, attr: Attr) -> Attr {
        self.of(attr.fid).map_or(attr, |f| f.beside(attr))
    }

    /// What is kept back of `fid` is at its MDT when this returns, or was told to be lost.
    pub async fn sent(&self, fid: Fid) {
        if let Some(file) = self.of(fid) {
            file.sent().await;
        }
    }

    /// What is kept back of the attributes of what `name` stands for is at its MDT when this returns, which is going to judge by them: of
    /// all files when `cache` does not know what that is.
    pub async fn sent_of_name(&self, cache: &Cache, parent: Fid, name: &[u8]) {
        match cache.name_of(parent, name).map(|fid| self.of(fid)) {
            Some(Some(file)) => file.attributes_sent().await,
            Some(None) => {}
            None if cache.knows_name(parent, name) => {}
            None if matches!(cache.lookup(parent, name), Lookup::Absent) => {}
            None => {
                let all = self.those(|f| f.state.lock().has_late_attributes());
                join_all(all.iter().map(|f| f.attributes_sent())).await;
            }
        }
    }

    /// Data of `fid` is going to be written: what is kept back is sent before, but for the time of a change, which is that of the data
    /// then.
    pub async fn sent_before_data(&self, fid: Fid) {
        if let Some(file) = self.of(fid) {
            file.data_sent().await;
            if !file.state.lock().has_change_time_alone() {
                file.attributes_sent().await;
            }
        }
    }

    /// Data of `fid` was written, and is kept back.
    pub fn held_back(self: &Arc<Self>, fid: Fid) {
        self.data_written(fid);
        self.look_after();
    }

    /// Data of `fid` was written.
    pub fn data_written(&self, fid: Fid) {
        if let Some(file) = self.of(fid) {
            let mut state = file.state.lock();
            state.kept.take_if(|(_, kept)| is_change_time(kept));
        }
    }

    /// Sends what is kept back of `fid`, without waiting.
    pub fn send(&self, fid: Fid) {
        if let Some(file) = self.of(fid) {
            self.runtime.spawn(async move { file.sent().await });
        }
    }

    /// The same of all files; false when there was nothing.
    pub async fn all_sent(&self) -> bool {
        let late = self.those(LateFile::is_late);
        join_all(late.iter().map(|f| f.sent())).await;
        !late.is_empty()
    }

    /// Files of which this is so.
    fn those(&self, is: impl Fn(&LateFile) -> bool) -> Vec<Arc<LateFile>> {
        let mut those = Vec::new();
        self.files.lock().retain(|_, f| match f.upgrade() {
            Some(f) => {
                those.extend(is(&f).then_some(f));
                true
            }
            None => false,
        });
        those
    }

    /// Sees to it that they are sent in time.
    fn look_after(self: &Arc<Self>) {
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = Arc::downgrade(self);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(AGE).await;
                let Some(me) = me.upgrade() else { return };
                // those that wait for a server that is away hold up no others, and go on by themselves
                let sent = || async {
                    let sent = tokio::time::timeout(AGE, me.all_sent()).await;
                    sent.unwrap_or(true)
                };
                if sent().await {
                    continue;
                }
                me.running.store(false, Ordering::Release);
                // kept back just now by one who saw the flag still up
                if !sent().await || me.running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}

impl LateFile {
    /// Attributes may be kept back from here on, through this open, whose file has such objects. Nothing was written yet: that would
    /// count as a change.
    pub fn begin(&self, at_mdt: Arc<MdtOpen>, objects: ObjectAttr) {
        self.state.lock().objects = Some((0, objects));
        let _ = self.at_mdt.set(at_mdt);
    }

    /// The caller has no more to be told of the file's size by [`LateAttrs::end_of`].
    pub fn told_otherwise(&self) {
        self.state.lock().shown = Shown::Nothing;
    }

    /// Nothing more is kept back: others may know the file.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    fn is_late(&self) -> bool {
        let state = self.state.lock();
        state.has_late_attributes() || !matches!(state.data, Data::Nothing)
    }

    fn beside(&self, mut attr: Attr) -> Attr {
        let state = self.state.lock();
        let late = state.sending.iter().chain(state.kept.iter().map(|k| &k.1));
        late.for_each(|a| show(a, &mut attr));
        attr
    }

    /// What is kept back is at the MDT when this returns, or was told to be lost.
    pub async fn sent(self: &Arc<Self>) {
        self.data_sent().await;
        self.attributes_sent().await;
    }

    async fn attributes_sent(self: &Arc<Self>) {
        if !self.state.lock().has_late_attributes() {
            return;
        }
        let me = self.clone();
        finish(async move {
            let _turn = me.turn.lock().await;
            while let Some((ids, args)) = me.take() {
                me.send(&ids, &args).await;
                me.state.lock().sending = None;
            }
        })
        .await
    }

    /// Closes the open that made the file, with what is kept back of its attributes, and tells its size. The caller has sent its data.
    pub async fn close(
        self: &Arc<Self>,
        at_mdt: &Arc<MdtOpen>,
        size: Option<u64>,
    ) -> Result<(), Error> {
        let (me, at_mdt) = (self.clone(), at_mdt.clone());
        finish(async move {
            if std::mem::take(&mut me.state.lock().owner_apart) {
                me.attributes_sent().await;
            }
            let _turn = me.turn.lock().await;
            let Some((ids, args)) = me.take() else {
                return at_mdt.close(None, size).await;
            };
            let closed = at_mdt.close_setting(&ids, &args, size).await;
            let closed = match closed {
                Ok(attrs) => {
                    let mdc = &at_mdt.mdc;
                    (me.changes).object(mdc, me.fid, &attrs.body, args.ctime);
                    Ok(())
                }
                Err(error) => {
                    me.lost(error);
                    // of attributes alone there is nothing to tell who closes
                    at_mdt.close(None, size).await
                }
            };
            me.state.lock().sending = None;
            closed
        })
        .await
    }

    fn take(&self) -> Option<(Ids, SetattrArgs)> {
        let mut state = self.state.lock();
        let kept = state.kept.take()?;
        state.sending = Some(kept.1);
        Some(kept)
    }

    async fn send(&self, ids: &Ids, args: &SetattrArgs) {
        let Some(at_mdt) = self.at_mdt.get() else {
            return;
        };
        let args = SetattrArgs {
            bias: KEPT_ATTRS,
            handle: at_mdt.cookie().await,
            ..*args
        };
        let mdc = &at_mdt.mdc;
        let error = match mdc.setattr(ids, self.fid, &args).await {
            Ok(attrs) => {
                return self.changes.object(mdc, self.fid, &attrs.body, args.ctime);
            }
            Err(e) => e.into(),
        };
        self.lost(error);
    }

    /// Attributes that were kept back are not at the MDT, for this reason.
    fn lost(&self, error: Error) {
        self.changes.forget_attrs(self.fid);
        let error = match error {
            e if e.is(Errno::ENOENT) => return, // removed everywhere
            e if e.is(Errno::ESTALE) => Error::ChangesLost,
            e => e,
        };
        tracing::error!(fid = %self.fid, %error, "owner, mode or times that were set are lost");
        if let Some(inode) = self.open.of(self.fid) {
            inode.lost.note(error);
        }
    }
}

/// Nothing but that the file was changed, at the time at which it was.
fn is_change_time(kept: &SetattrArgs) -> bool {
    kept.valid & !(attr::MTIME | attr::CTIME | attr::CTIME_SET) == 0
}

/// Adds a later change.
fn add(kept: &mut SetattrArgs, later: &SetattrArgs) {
    let put = |bit: u64, time_set: u64, all: &mut u64| {
        if later.valid & bit != 0 {
            *all = *all & !(bit | time_set) | later.valid & (bit | time_set);
        }
        later.valid & bit != 0
    };
    let valid = &mut kept.valid;
    if put(attr::MODE, 0, valid) {
        kept.mode = later.mode;
    }
    if put(attr::UID, 0, valid) {
        kept.uid = later.uid;
    }
    if put(attr::GID, 0, valid) {
        kept.gid = later.gid;
    }
    if put(attr::ATIME, attr::ATIME_SET, valid) {
        kept.atime = later.atime;
    }
    if put(attr::MTIME, attr::MTIME_SET, valid) {
        kept.mtime = later.mtime;
    }
    if put(attr::CTIME, attr::CTIME_SET, valid) {
        kept.ctime = later.ctime;
    }
}

/// Shows a change in `attr`.
fn show(late: &SetattrArgs, attr: &mut Attr) {
    let has = |bit| late.valid & bit != 0;
    if has(attr::MODE) {
        attr.mode = attr.mode & libc::S_IFMT | late.mode & !libc::S_IFMT;
    }
    if has(attr::UID) {
        attr.uid = late.uid;
    }
    if has(attr::GID) {
        attr.gid = late.gid;
    }
    if has(attr::ATIME) {
        attr.atime = late.atime;
    }
    if has(attr::MTIME) {
        attr.mtime = late.mtime;
    }
    attr.ctime = attr.ctime.max(late.ctime);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timespec;

    fn at(secs: i64) -> Timespec {
        Timespec { secs, nanos: 0 }
    }

    #[test]
    fn the_later_change_counts_and_the_others_stay() {
        let chosen = attr::ATIME | attr::ATIME_SET | attr::MTIME | attr::MTIME_SET;
        let mut kept = SetattrArgs {
            valid: chosen | attr::CTIME | attr::MODE,
            mode: 0o600,
            atime: at(1),
            mtime: at(2),
            ctime: at(10),
            ..Default::default()
        };
        add(
            &mut kept,
            &SetattrArgs {
                valid: attr::MTIME | attr::UID | attr::CTIME,
                uid: 7,
                mtime: at(3),
                ctime: at(11),
                ..Default::default()
            },
        );
        assert_eq!(
            kept.valid,
            attr::ATIME | attr::ATIME_SET | attr::MTIME | attr::CTIME | attr::MODE | attr::UID
        );
        let mut seen = Attr {
            mode: 0o100644,
            gid: 5,
            ctime: at(12),
            ..Attr::empty(Fid::ROOT)
        };
        show(&kept, &mut seen);
        assert_eq!((seen.mode, seen.uid, seen.gid), (0o100600, 7, 5));
        assert_eq!((seen.atime, seen.mtime, seen.ctime), (at(1), at(3), at(12)));
    }
}
