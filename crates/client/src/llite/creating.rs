//! Files that are told as made before their MDT hears of them: who makes file after file and writes nothing waits for none of them.
//!
//! # Invariants
//! - A file is made so only under the lock that the MDT gives for its directory ([`super::late_names`]), where that says by
//!   [`MAY_MAKE`](coral_wire::coral::MAY_MAKE) that there is room, the name is known to be free, and who asks may change the directory.
//! - The caller is told what it was told of the file before, which was made by the same user with the same mode, under the same lock, by
//!   asking first: the directory gives the same to both.
//! - The MDT is told at once, and nobody waits for it but who could tell the difference: calls about the name or the file, listings of the
//!   directory, its own changes, syncs, and every use of the open file but its close.
//! - What the caller remembers of the file no lock covers until the MDT has answered. The lock of the directory is not let go of before,
//!   nor before the caller has forgotten what then is not covered.
//! - Telling takes no lock and no place that others may hold who wait for the directory, at the client and at the MDT. An MDT that has no
//!   objects to give, or no space, is told again for a minute.
//! - A file that could not be made is told as lost changes of the directory are, in the log too. Its uses fail.

use std::sync::Arc;

use bytes::Bytes;
use coral_lnet::exec;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::cache::{Forget, Known, Lookup};
use super::cred::permitted;
use super::handle::{FileHandle, mds_flags};
use super::inode::MdInode;
use super::late::LateFile;
use super::late_names::{Added, Borrowed, Making};
use super::name::check_name;
use super::namei::Namespace;
use super::opens::Opens;
use super::programs::Programs;
use super::removing::{MAY_CHANGE, PAUSE, STAYS, may_pass};
use super::types::{Attr, Cred, Entry};
use crate::error::Error;

/// Files made one after the other in a directory, from which on the MDT is asked to lend it.
const ENOUGH: u32 = 2;
/// Times an MDT is told again that could not take it, with [`PAUSE`] before each: who waits for the directory's lock has patience for longer.
const TRIES: u32 = 60;

/// An open file, of which its MDT may have to hear yet.
#[derive(Clone)]
pub enum OpenedFile {
    /// The MDT was asked.
    Asked(Arc<FileHandle>),
    /// It is told of the file while the caller goes on.
    Made(Arc<MadeFile>),
}

/// A file that was made and opened before its MDT heard of it.
pub struct MadeFile {
    state: Mutex<State>,
    settled: Notify,
}

enum State {
    /// The MDT has not answered; whether the file was closed already.
    Untold {
        closed: bool,
    },
    Told(Arc<FileHandle>),
    Lost(Error),
}

impl OpenedFile {
    /// Its handle, as soon as the MDT has heard of it. An error: it could not be made.
    pub async fn handle(&self) -> Result<Arc<FileHandle>, Error> {
        match self {
            OpenedFile::Asked(fh) => Ok(fh.clone()),
            OpenedFile::Made(made) => made.handle().await,
        }
    }

    /// The same, if the MDT has answered.
    pub fn handle_now(&self) -> Option<Result<Arc<FileHandle>, Error>> {
        match self {
            OpenedFile::Asked(fh) => Some(Ok(fh.clone())),
            OpenedFile::Made(made) => made.handle_now(),
        }
    }

    /// It is not used any more. Its handle, which is to be released; `None`: there is none, or whoever told the MDT sees to that.
    pub(super) fn close(&self) -> Option<Arc<FileHandle>> {
        match self {
            OpenedFile::Asked(fh) => Some(fh.clone()),
            OpenedFile::Made(made) => match &mut *made.state.lock() {
                State::Untold { closed } => {
                    *closed = true;
                    None
                }
                State::Told(fh) => Some(fh.clone()),
                State::Lost(_) => None,
            },
        }
    }
}

impl MadeFile {
    fn untold() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Untold { closed: false }),
            settled: Notify::new(),
        })
    }

    fn handle_now(&self) -> Option<Result<Arc<FileHandle>, Error>> {
        match &*self.state.lock() {
            State::Untold { .. } => None,
            State::Told(fh) => Some(Ok(fh.clone())),
            State::Lost(e) => Some(Err(e.clone())),
        }
    }

    async fn handle(&self) -> Result<Arc<FileHandle>, Error> {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if let Some(handle) = self.handle_now() {
                return handle;
            }
            settled.await;
        }
    }

    /// The MDT has answered, or never will. True: the file was closed already.
    fn settle(&self, told: Result<Arc<FileHandle>, Error>) -> bool {
        let now = match told {
            Ok(fh) => State::Told(fh),
            Err(e) => State::Lost(e),
        };
        let before = std::mem::replace(&mut *self.state.lock(), now);
        self.settled.notify_waiters();
        matches!(before, State::Untold { closed: true })
    }
}

/// Who tells the MDT of a file. If that ends too early, by a panic, nobody waits for ever.
struct Teller {
    me: Arc<Creations>,
    making: Making,
    /// What the caller was told.
    entry: Entry,
    file: Arc<MadeFile>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        if self.file.handle_now().is_none() {
            let (dir, name) = (self.making.from.parent, self.making.name.escape_ascii());
            tracing::error!(%dir, %name, "a file that was made is not there: a task of this client has failed");
            self.forget();
            self.file.settle(Err(Error::ChangesLost));
        }
    }
}

/// Makes files of which the MDT is told later.
pub(super) struct Creations {
    pub opens: Arc<Opens>,
    pub namespace: Arc<Namespace>,
    /// Programs that make file after file.
    pub creators: Programs,
}

impl Creations {
    /// Makes the file and lets the MDT hear of it while the caller goes on. `None`: it is to be asked first.
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Option<(Entry, OpenedFile)> {
        let Namespace {
            late_names,
            servers,
            cache,
            changes,
            ..
        } = &*self.namespace;
        self.creators.did(cred, parent);
        let many = self.creators.in_dir(cred, parent) > ENOUGH;
        if !many || !cache.enabled() || check_name(name).is_err() {
            return None;
        }
        let at = self.namespace.places.of(parent, name).await.ok()?;
        let (dir, mdc) = (at.dir, servers.lmv.of(at.dir).await.ok()?);
        if !mdc.coral() || late_names.is_barred(dir) {
            return None;
        }
        let ids = self.namespace.ids.of(cred, &[dir]).await;
        let (fid, mode) = (mdc.new_fid().await.ok()?, mode & 0o7777 | libc::S_IFREG);
        // the lock is not kept from others while there is no room
        let (making, sample) = loop {
            let lock = self.namespace.lent(&mdc, ids, dir)?;
            let sample = late_names.sample(dir, &ids, mode, &lock)?;
            if !self.may_make(cred, dir, name) {
                return None;
            }
            let from = Borrowed {
                dir,
                parent,
                ids,
                mdc: mdc.clone(),
                lock,
            };
            let named = (Bytes::copy_from_slice(name), fid);
            let begin = |name: &Bytes| changes.begin_told(dir, name);
            match late_names.make(from, named, servers.now(), begin) {
                Ok(making) => break (making, sample),
                Err(Added::Full) => late_names.room(dir).await,
                Err(_) => return None,
            }
        };
        let (late, now) = (self.opens.late.expect(fid), making.now);
        // before the caller hears that it is done
        changes.kept_back(dir);
        let attr = Attr {
            fid,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..sample.attr
        };
        let entry = Entry { attr, ..sample };
        let file = MadeFile::untold();
        let teller = Teller {
            me: self.clone(),
            making,
            entry,
            file: file.clone(),
        };
        let telling = teller.tell((mode, flags, at.version), late);
        let telling = Box::pin(coral_stopwatch::apart(telling));
        exec::run_inline(servers.node.handovers(), telling);
        servers.stats.created_late.inc();
        Some((entry, OpenedFile::Made(file)))
    }

    /// Whether the MDT grants that `name` is made, by all that the lock of the directory covers.
    fn may_make(&self, cred: &Cred, dir: Fid, name: &[u8]) -> bool {
        let cache = &self.namespace.cache;
        let Some(Known { md, .. }) = cache.known(dir) else {
            return false;
        };
        md.attr.nlink > 0
            && md.attr.flags & STAYS == 0
            && permitted(cred, &md.attr, &md.acl, MAY_CHANGE).is_ok()
            && matches!(cache.lookup(dir, name), Lookup::Absent)
    }
}

impl Teller {
    /// Tells the MDT of the file.
    async fn tell(self, how: (u32, u32, u32), late: Arc<LateFile>) {
        let mut tries = 0;
        let told = loop {
            let told = match self.making.from.lock.is_dead() {
                true => Err(Error::LocksVoid),
                false => self.tell_once(how, late.clone()).await,
            };
            match told {
                Err(Error::Target(e)) if may_pass(&e) && tries < TRIES => {
                    tokio::time::sleep(PAUSE).await;
                }
                told => break told,
            }
            tries += 1;
        };
        match told {
            Ok((fh, md)) => {
                self.uncovered_forgotten(&fh, &md.attr).await;
                let (file, opens) = (self.file.clone(), self.me.opens.clone());
                let closed = file.settle(Ok(fh.clone()));
                drop(self);
                if closed && let Err(error) = opens.release(&fh).await {
                    tracing::debug!(fid = %fh.fid(), %error, "closing a file that was made");
                }
            }
            Err(e) => self.lost(&late, e).await,
        }
    }

    /// The same once.
    async fn tell_once(
        &self,
        (mode, flags, layout_version): (u32, u32, u32),
        late: Arc<LateFile>,
    ) -> Result<(Arc<FileHandle>, MdInode), Error> {
        let Making {
            from,
            name,
            fid,
            now,
            ..
        } = &self.making;
        let (mdc, ids, dir, opens) = (&from.mdc, &from.ids, from.dir, &self.me.opens);
        let bits = mds_flags(flags | (libc::O_CREAT | libc::O_EXCL) as u32);
        let mark = opens.cache.begin_read(dir);
        // it waits for nobody who makes room for an open: there was ample room
        let made = mdc.make_lent(ids, dir, name, *fid, bits, mode, *now, layout_version);
        let o = made.await?;
        if !o.keeps {
            opens.late.closed(&late);
        }
        if !o.more {
            self.me.namespace.late_names.no_more(dir);
        }
        let made = opens.take_in((mdc, ids), (dir, name), o, (mark, flags), late);
        made.await
    }

    /// When this returns the caller has forgotten what it was told of the file and no lock covers, or is not so.
    async fn uncovered_forgotten(&self, fh: &FileHandle, is: &Attr) {
        let (
            Making {
                from, name, fid, ..
            },
            entry,
        ) = (&self.making, &self.entry);
        let Namespace { cache, upcalls, .. } = &*self.me.namespace;
        let named = entry.entry_ttl.is_zero()
            || cache.is_named_to_caller(from.dir, from.parent, name, *fid);
        let sized = self.me.opens.shows_empty(fh) || entry.attr_ttl.is_zero();
        // who the users of this client are may have been set anew meanwhile
        let what = |a: &Attr| (a.mode, a.uid, a.gid, a.projid, a.flags);
        if named && sized && what(is) == what(&entry.attr) {
            return;
        }
        upcalls.tell(|| Forget {
            inodes: vec![*fid],
            entries: vec![(from.parent, name.clone())],
        });
        upcalls.forgotten().await;
    }

    /// It was told as done and was not.
    async fn lost(self, late: &Arc<LateFile>, error: Error) {
        let (at, fid) = (&self.making.from, self.making.fid);
        let name = self.making.name.escape_ascii();
        tracing::error!(dir = %at.parent, %name, %fid, %error, "a file that was made is not there");
        self.me.opens.late.closed(late);
        self.file.settle(Err(match error.is(Errno::ESTALE) {
            true => Error::ChangesLost,
            false => error,
        }));
        self.forget();
        self.me.namespace.upcalls.forgotten().await;
    }

    /// What was told of the file is not so.
    fn forget(&self) {
        let (dir, parent) = (self.making.from.dir, self.making.from.parent);
        let Namespace {
            cache,
            changes,
            late_names,
            lost_dirs,
            upcalls,
            ..
        } = &*self.me.namespace;
        cache.doubt(dir);
        late_names.not_soon(dir);
        late_names.no_more(dir);
        lost_dirs.note(parent);
        upcalls.tell(|| Forget {
            inodes: vec![self.making.fid],
            entries: vec![(parent, self.making.name.clone())],
        });
        changes.forget_attrs(dir);
    }
}
