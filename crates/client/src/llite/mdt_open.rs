//! An open file as its MDT knows it.
//!
//! An eviction closes what the client had open there, and a file without a name is gone with its last open. So the first use
//! of a handle after one opens the file again by its FID; when that finds no file, every further use is EIO: its objects are
//! destroyed, and OSTs would take reads for holes and make objects anew for writes.
//!
//! Lustre's client does without an open after an eviction; its OSTs refuse objects that are not there
//! (`ofd_preprw_read` and `ofd_preprw_write` in `lustre/ofd/ofd_io.c`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coral_ldlm::LockRef;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::open;
use parking_lot::Mutex;

use super::finish::finish;
use super::types::Attr;
use crate::error::{Error, Refusal, TargetError};
use crate::mdc::{Attrs, Ids, Mdc, Open, Opened, SetattrArgs};
use crate::time::Timespec;

/// One open at an MDT.
pub(super) struct MdtOpen {
    pub mdc: Arc<Mdc>,
    fid: Fid,
    /// MDS_OPEN bits to open with again.
    bits: u64,
    /// Who opened it.
    ids: Ids,
    /// What decided whether that one may, as it was then, and when it had changed last.
    access: Access,
    /// The MDT was asked for this open by itself: it did not come with the making of the file, which needs no permission of the
    /// file's own, and was not refused when the file was to be opened again.
    asked_for: AtomicBool,
    /// It came with the making of the file.
    made: bool,
    /// Type and permissions, which a close tells.
    pub mode: u32,
    /// [`coral_ptlrpc::Import::generation`] it is open under.
    generation: AtomicU64,
    now: tokio::sync::Mutex<Now>,
    under: Mutex<Under>,
}

/// A generation that no import has.
const NEVER: u64 = u64::MAX;
/// So often the MDT is told of an open that it cannot take, for want of room as a rule, and with this pause: who waits for the lock has
/// patience for longer.
const TELLS: u32 = 10;
const TELL_PAUSE: Duration = Duration::from_secs(1);

/// Whether the MDT knows of an open.
enum Under {
    Told,
    /// It does not, and need not as long as this lock is held.
    Untold(Option<LockRef>),
}

/// What decides who may open a file. An ACL that changes moves the time too.
type Access = (u32, u32, u32, Timespec);

fn access(attr: &Attr) -> Access {
    (attr.mode, attr.uid, attr.gid, attr.ctime)
}

struct Now {
    /// Its handle; changes when the open is replayed to a restarted server.
    handle: Arc<AtomicU64>,
    /// Names it for replay.
    transno: u64,
    /// There was no file when it was to be opened again.
    gone: bool,
}

impl Now {
    fn open(&self, fid: Fid) -> Open {
        Open {
            fid,
            handle: self.handle.clone(),
            transno: self.transno,
        }
    }
}

impl MdtOpen {
    /// What was just opened by `ids`, and has attributes `attr`; `bits` open it again.
    pub fn new(mdc: Arc<Mdc>, o: &Opened, bits: u64, ids: &Ids, attr: &Attr) -> Arc<Self> {
        let now = Now {
            handle: o.handle.clone(),
            transno: o.transno,
            gone: false,
        };
        Arc::new(Self {
            asked_for: AtomicBool::new(!o.created),
            made: o.created,
            ..Self::put(
                mdc,
                (o.attrs.body.fid1, bits),
                ids,
                attr,
                (now, o.generation),
            )
        })
    }

    /// One that the MDT is not told of, of what has attributes `attr`.
    pub fn untold(mdc: Arc<Mdc>, bits: u64, ids: &Ids, attr: &Attr) -> Arc<Self> {
        let generation = mdc.import().generation();
        let now = Now {
            handle: Arc::default(),
            transno: 0,
            gone: false,
        };
        Arc::new(Self {
            under: Mutex::new(Under::Untold(None)),
            ..Self::put(mdc, (attr.fid, bits), ids, attr, (now, generation))
        })
    }

    /// One of which the MDT knows, and for which it was not asked by itself; `open` is under the generation behind it.
    fn put(
        mdc: Arc<Mdc>,
        (fid, bits): (Fid, u64),
        ids: &Ids,
        attr: &Attr,
        (open, generation): (Now, u64),
    ) -> Self {
        Self {
            mdc,
            fid,
            bits,
            ids: Ids { umask: 0, ..*ids },
            access: access(attr),
            asked_for: AtomicBool::new(false),
            made: false,
            mode: attr.mode,
            generation: AtomicU64::new(generation),
            now: tokio::sync::Mutex::new(open),
            under: Mutex::new(Under::Told),
        }
    }

    /// The MDT need not be told as long as this lock is held.
    pub fn hold(&self, lock: LockRef) {
        if let Under::Untold(held) = &mut *self.under.lock() {
            *held = Some(lock);
        }
    }

    /// Nothing depends on the lock any more.
    fn let_go(&self) {
        let held = std::mem::replace(&mut *self.under.lock(), Under::Told);
        // now that nothing is locked here
        drop(held);
    }

    /// The lock is lost, or of no use: where the MDT was not told, the file is to be opened at its next use.
    pub fn lose(&self) {
        let mut under = self.under.lock();
        if matches!(*under, Under::Untold(_)) {
            self.generation.store(NEVER, Ordering::Release);
            let held = std::mem::replace(&mut *under, Under::Told);
            drop(under);
            drop(held);
        }
    }

    /// Others want the lock back under which it is open.
    pub fn is_asked_back(&self) -> bool {
        match &*self.under.lock() {
            Under::Untold(Some(lock)) => lock.is_blocked(),
            _ => false,
        }
    }

    /// The MDT need not know of it.
    pub fn is_untold(&self) -> bool {
        matches!(*self.under.lock(), Under::Untold(_))
    }

    /// Tells the MDT of it, if it does not know. The lock under which it was open may go then.
    pub async fn tell(&self, time: Timespec) {
        let mut now = self.now.lock().await;
        let mut tries = 0..TELLS;
        // after an eviction it is opened at its next use
        while self.is_untold() && self.is_current() && tries.next().is_some() {
            let generation = self.mdc.import().generation();
            let opened = self.mdc.open_untold(&self.ids, self.fid, self.bits, time);
            let error = match opened.await {
                Err(e) if !e.is(Errno::ENOENT) && !e.is(Errno::ESTALE) => e,
                told => {
                    let _ = self.is_again(&mut now, generation, told);
                    return self.let_go();
                }
            };
            tracing::debug!(%error, fid = %self.fid, "telling of an open");
            tokio::time::sleep(TELL_PAUSE).await;
        }
        self.lose();
    }

    /// MDS_OPEN bits of it.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// The file.
    pub fn fid(&self) -> Fid {
        self.fid
    }

    /// It made the file.
    pub fn has_made(&self) -> bool {
        self.made
    }

    /// It is open there, and the MDT found that whoever opened it may.
    pub fn is_asked_for(&self) -> bool {
        self.asked_for.load(Ordering::Acquire)
    }

    /// Whether `ids` opened it, and would have been given the same where the file has attributes `attr`.
    pub fn stands_for(&self, ids: &Ids, attr: &Attr) -> bool {
        self.ids == Ids { umask: 0, ..*ids } && self.access == access(attr)
    }

    /// It made the file, in the name of `ids`, and lets through what an open with these MDS_OPEN bits does.
    pub fn lets_its_maker(&self, ids: &Ids, bits: u64) -> bool {
        let of_no_weight = open::CREAT | open::EXCL | open::TRUNC;
        let same = self.ids == Ids { umask: 0, ..*ids };
        // the MDT lets nobody execute what is open for writing
        let writes = (bits ^ self.bits) & open::WRITE == 0;
        self.made && same && writes && bits & !of_no_weight & !self.bits == 0
    }

    /// No eviction has closed it since.
    pub fn is_current(&self) -> bool {
        self.generation.load(Ordering::Acquire) == self.mdc.import().generation()
    }

    /// Opens again what an eviction closed. EIO when the file went with it.
    pub async fn ensure(self: &Arc<Self>, time: Timespec) -> Result<(), Error> {
        if self.is_current() {
            return Ok(());
        }
        let me = self.clone();
        finish(async move { me.open_again(time).await }).await
    }

    async fn open_again(&self, time: Timespec) -> Result<(), Error> {
        let mut now = self.now.lock().await;
        let generation = self.mdc.import().generation();
        if now.gone {
            return Err(Error::OpenLost);
        }
        if self.generation.load(Ordering::Acquire) == generation {
            return Ok(());
        }
        // as root: what the open permitted stays permitted
        let opened = self
            .mdc
            .open(
                &Ids::root(),
                self.fid,
                b"",
                self.fid,
                self.bits,
                0,
                time,
                0,
                false,
            )
            .await;
        let done = self.is_again(&mut now, generation, opened);
        self.let_go();
        done
    }

    /// What came of opening it, which was asked for under `generation`.
    fn is_again(
        &self,
        now: &mut Now,
        generation: u64,
        opened: Result<Opened, TargetError>,
    ) -> Result<(), Error> {
        match opened {
            Ok(mut o) => {
                self.mdc.drop_lock(o.lock.take());
                (now.handle, now.transno) = (o.handle, o.transno);
                self.generation.store(o.generation, Ordering::Release);
                Ok(())
            }
            Err(e) if e.is(Errno::ENOENT) || e.is(Errno::ESTALE) => {
                now.gone = true;
                Err(Error::OpenLost)
            }
            // the file is there: used without an open, as by Lustre's client
            Err(e)
                if matches!(
                    e.errno(),
                    Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY
                ) =>
            {
                self.asked_for.store(false, Ordering::Release);
                self.generation.store(generation, Ordering::Release);
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Its handle at the MDT, as of now.
    pub async fn cookie(&self) -> u64 {
        self.now.lock().await.handle.load(Ordering::Acquire)
    }

    /// It, to be closed by another request than a close.
    pub async fn to_close(&self) -> Open {
        self.now.lock().await.open(self.fid)
    }

    /// Closes it, and sets what is kept back of attributes of the file that it made; how it looks then. Nothing is done when the right to
    /// that has ended (ESTALE).
    pub async fn close_setting(
        &self,
        ids: &Ids,
        set: &SetattrArgs,
        size: Option<u64>,
    ) -> Result<Attrs, Error> {
        let now = self.now.lock().await;
        if now.gone {
            return Err(Refusal::ClosedByEviction.into());
        }
        let open = now.open(self.fid);
        Ok(self.mdc.close_setting(&open, ids, set, size).await?)
    }

    /// Closes it, with what the MDT should hear at that.
    pub async fn close(&self, atime: Option<Timespec>, size: Option<u64>) -> Result<(), Error> {
        let now = self.now.lock().await;
        if self.is_untold() {
            let told = match atime {
                Some(atime) => self.mdc.read_untold(self.fid, self.mode, atime).await,
                None => Ok(()),
            };
            self.let_go();
            return Ok(told?);
        }
        if now.gone {
            return Err(Refusal::ClosedByEviction.into());
        }
        if now.handle.load(Ordering::Acquire) == 0 {
            return Ok(()); // the MDT never knew of it
        }
        let open = now.open(self.fid);
        Ok(self.mdc.close(&open, self.mode, atime, size).await?)
    }
}
