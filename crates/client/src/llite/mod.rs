//! llite: a POSIX file system as a library, no FUSE in it.
//!
//! Every operation is an `async fn` whose future may be dropped at any time (an interrupt): what was asked of a server
//! may then still happen, as with a signal during a system call. Errors are positive errno values.
//!
//! [`Llite`] is a facade: it owns the parts and hands each operation to one. A part owns its state and knows only the parts
//! below it; `docs/architecture.md` draws them.
//!
//! Invariants: what [`Entry`] says may be cached is covered by an LDLM lock at that moment. No `parking_lot` lock of this crate
//! is held across an await. Mutexes of tokio are, where operations of one kind go one after another and wait for servers
//! meanwhile: appends to an open file, its open at the MDT, its file locks that are being given back, and OSTs that come and go.
//!
//! Lustre: `lustre/llite/{super25,namei,file,dir,xattr,statahead}.c`. Absent: mmap consistency with other clients
//! where the kernel does not ask (a page that is there), statahead of names that were listed without attributes, encryption, PCC, HSM.

mod ahead;
mod append;
mod attributes;
mod blocks;
mod budget;
mod cache;
mod changes;
mod connections;
mod covers;
mod creating;
mod cred;
mod dir;
mod dirstripe;
mod drains;
mod entries;
mod file_io;
mod finish;
mod flock;
mod flusher;
mod foresight;
mod ghosts;
mod handle;
mod heritage;
mod identities;
mod inode;
mod kept;
mod late;
mod late_names;
mod layouts;
mod lock_owners;
mod locks;
mod lookahead;
mod lost_dirs;
mod lustre_xattr;
mod mdt_open;
mod migrate;
mod mount;
mod name;
mod namei;
mod names;
mod open_along;
mod opens;
mod orders;
mod pages;
mod params;
mod parts;
mod places;
mod pools;
mod privileges;
mod programs;
mod quota;
mod range;
mod removing;
mod reopen;
mod reports;
mod rows;
mod servers;
mod setattr;
mod shards;
mod streams;
mod strides;
mod track;
pub mod types;
mod unasked;
mod untold;
mod upcalls;
mod writeback;
mod xattr;

pub use budget::Spent;
pub use creating::{MadeFile, OpenedFile};
pub use dir::DirHandle;
pub use dirstripe::MkdirRequest;
pub use handle::FileHandle;
pub use migrate::MigrateRequest;

use std::sync::Arc;

use coral_buffers::Payload;
use coral_lnet::Node;
use coral_wire::fid::Fid;

use attributes::Attributes;
use cache::Cache;
use connections::Connections;
use covers::Covers;
use creating::Creations;
use dir::Directories;
use drains::Drains;
use file_io::FileIo;
use flock::FileLocks;
use flusher::Flusher;
use ghosts::Ghosts;
use identities::Identities;
use late::LateAttrs;
use late_names::LateNames;
use lustre_xattr::LustreXattrs;
use namei::Namespace;
use names::Names;
use opens::Opens;
use pages::PageCache;
use params::Tunables;
use reports::Reports;
use servers::Servers;
use setattr::SetAttrs;
use types::{Cred, FileLock, Invalidate, LockKind, SeekWhence};
use upcalls::Upcalls;

use crate::error::Error;
use crate::lmv::Lmv;
use crate::lov::Lov;

/// One mounted file system.
pub struct Llite {
    servers: Arc<Servers>,
    connections: Arc<Connections>,
    ids: Arc<Identities>,
    cache: Arc<Cache>,
    upcalls: Arc<Upcalls>,
    covers: Arc<Covers>,
    ghosts: Arc<Ghosts>,
    attributes: Arc<Attributes>,
    setattrs: Arc<SetAttrs>,
    xattrs: LustreXattrs,
    flusher: Arc<Flusher>,
    drains: Arc<Drains>,
    late: Arc<LateAttrs>,
    pages: Arc<PageCache>,
    io: FileIo,
    file_locks: Arc<FileLocks>,
    opens: Arc<Opens>,
    dirs: Arc<Directories>,
    names: Arc<Names>,
    namespace: Arc<Namespace>,
    creations: Arc<Creations>,
    late_names: Arc<LateNames>,
    reports: Arc<Reports>,
    tunables: Tunables,
}

impl Llite {
    /// FID of the mounted directory.
    pub fn root(&self) -> Fid {
        self.servers.root
    }

    /// The node this mount speaks through.
    pub fn node(&self) -> &Arc<Node> {
        &self.servers.node
    }

    /// The MDTs, for requests that go past every cache.
    pub fn lmv(&self) -> &Lmv {
        &self.servers.lmv
    }

    /// The OSTs, likewise.
    pub fn lov(&self) -> &Lov {
        &self.servers.lov
    }

    /// Whether fcntl and flock locks go to the servers.
    pub fn takes_locks(&self) -> bool {
        self.servers.opts.flock
    }

    /// File system name.
    pub fn fsname(&self) -> &str {
        &self.servers.opts.fsname
    }

    /// Who to tell about lost locks; at most one.
    pub fn set_invalidate(&self, inval: Arc<dyn Invalidate>) {
        self.upcalls.set(inval);
    }

    /// Files whose data may be in the kernel's page cache, under extent locks of ours.
    pub fn covered_files(&self) -> usize {
        self.covers.covered()
    }

    /// The caller no longer remembers `fid` (FUSE forget): caches about it may go first.
    pub fn forget(&self, fid: Fid) {
        self.ids.forget(fid);
        self.ghosts.forget(fid);
        self.cache.unused(fid);
        self.drains.release(fid);
    }

    /// A descriptor was closed (each close of a dup): releases the fcntl locks of `lock_owner` on the file.
    pub async fn flush(&self, fh: &FileHandle, lock_owner: u64) -> Result<(), Error> {
        self.opens.flush(fh, lock_owner).await
    }

    /// The last descriptor is gone: drops the locks of the open file, and closes it at the MDT.
    pub async fn release(&self, fh: &FileHandle) -> Result<(), Error> {
        self.opens.release(fh).await
    }

    /// [`Llite::flush`] of a file of which the MDT may not have heard: nothing was written to it, and nothing locked.
    pub async fn flush_opened(&self, file: &OpenedFile, lock_owner: u64) -> Result<(), Error> {
        match file.handle_now() {
            Some(fh) => self.flush(&*fh?, lock_owner).await,
            None => Ok(()),
        }
    }

    /// [`Llite::release`] of a file of which the MDT may not have heard.
    pub async fn release_opened(&self, file: &OpenedFile) -> Result<(), Error> {
        match file.close() {
            Some(fh) => self.release(&fh).await,
            None => Ok(()),
        }
    }

    /// Reads up to `len_bytes`; short only at the end of the file.
    pub async fn read(
        &self,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Error> {
        self.servers
            .stats
            .reading(self.io.read(fh, offset, len_bytes).await)
    }

    /// Fills pages of the kernel's cache, which holds them locked: [`Llite::read`] under the file's cover.
    pub async fn read_pages(
        &self,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Error> {
        self.servers
            .stats
            .reading(self.io.read_pages(fh, offset, len_bytes).await)
    }

    /// Writes all of `data` at `offset` (at the end, whatever `offset` says, when opened with O_APPEND); bytes written.
    pub async fn write(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
    ) -> Result<usize, Error> {
        self.servers
            .stats
            .writing(self.io.write(cred, fh, offset, data).await)
    }

    /// [`Llite::write`] with `append` said by the caller: a FUSE mount writes mmapped pages back through any handle, and
    /// fcntl(F_SETFL) may change O_APPEND after the open.
    pub async fn write_at(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> Result<usize, Error> {
        if fh.late.get().is_some() {
            // who fills what it makes waits for the MDT anyway
            self.creations.creators.ended(cred.pid);
        }
        let done = self.io.write_at(cred, fh, offset, data, append).await;
        self.servers.stats.writing(done)
    }

    /// Everything written to the file and every change of its attributes is on disk when this returns.
    pub async fn fsync(&self, fh: &FileHandle, datasync: bool) -> Result<(), Error> {
        self.io.fsync(fh, datasync).await
    }

    /// fallocate(2): mode 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE; others EOPNOTSUPP.
    pub async fn fallocate(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        mode: u32,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), Error> {
        self.io.fallocate(cred, fh, mode, offset, len_bytes).await
    }

    /// lseek(2) with SEEK_HOLE or SEEK_DATA; the offset found.
    pub async fn lseek(
        &self,
        fh: &FileHandle,
        offset: u64,
        whence: SeekWhence,
    ) -> Result<u64, Error> {
        self.io.lseek(fh, offset, whence).await
    }

    /// fcntl F_GETLK: the lock in the way, or `kind` Unlock.
    pub async fn getlk(
        &self,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
    ) -> Result<FileLock, Error> {
        self.file_locks.getlk(fh, owner, lock).await
    }

    /// fcntl F_SETLK, or F_SETLKW with `wait`; drop the future to interrupt. EAGAIN when taken, EDEADLK on a cycle.
    pub async fn setlk(
        &self,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<(), Error> {
        self.file_locks.setlk(fh, owner, lock, wait).await
    }

    /// flock(2); EWOULDBLOCK when taken and not `wait`.
    pub async fn flock(&self, fh: &FileHandle, kind: LockKind, wait: bool) -> Result<(), Error> {
        self.file_locks.flock(fh, kind, wait).await
    }

    /// Whether a server that is in use cannot be reached now, or is not back in service: requests to it may wait long.
    pub fn is_cut_off(&self) -> bool {
        self.reports.is_cut_off()
    }

    /// RPCs sent so far per opcode name, sorted by name, summed over all targets.
    pub fn statistics(&self) -> Vec<(String, u64)> {
        self.reports.statistics()
    }

    /// What the memory budget was spent on.
    pub fn spent(&self) -> Spent {
        self.tunables.spent()
    }

    /// All parameters: name and value; a value of several lines ends with a newline.
    pub fn params(&self) -> Vec<(String, String)> {
        self.tunables.params()
    }

    /// Changes a parameter: `osc.NAME.max_dirty_mb` to a number of MiB, 1 to 2000 (until a server joins or leaves);
    /// `osc.NAME.max_rpcs_in_flight` to a number of RPCs, 1 to 256 (until a server joins or leaves);
    /// `osc.NAME.active` to 0, so that the OST is left and what needs it fails, or 1;
    /// `osc.NAME.idle_timeout` to seconds without use after which the OST is left, 0 (never) to 50;
    /// `ldlm.namespaces.NAME.lru_size` to a number of locks, 0 (the share of the budget again), or `clear` (all unused locks
    /// are given back, cached pages first). EINVAL for another value, EPERM for another parameter, ENOENT when there is none
    /// of that name.
    pub async fn set_param(&self, name: &str, value: &str) -> Result<(), Error> {
        self.tunables.set_param(name, value).await
    }

    /// Names that were taken away, or given to files that were made, of which an MDT has not heard.
    pub fn untold_names(&self) -> usize {
        self.late_names.count()
    }

    /// Files of which data is dirty.
    pub fn unwritten(&self) -> Vec<Fid> {
        let mut all = self.flusher.unwritten();
        all.extend(self.late.unwritten());
        all
    }

    /// Pages that reads through `fh` bring may stay in the kernel's cache. A file that one read brings whole is worth a lock
    /// when it is opened a second time, as most are read once, unless its data came with one and there is room for its cover.
    pub fn caches_pages(&self, fh: &FileHandle) -> bool {
        self.pages.caches(fh)
    }

    /// True once when pages of this file may be in the kernel's cache that no lock covers: they must go before others are
    /// relied on.
    pub fn pages_uncovered(&self, fh: &FileHandle) -> bool {
        fh.inode.gate.take_uncovered()
    }

    /// Writes dirty pages of the kernel's cache back, under the cover they were dirtied under. EIO when its locks are void.
    pub async fn write_pages(
        &self,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
    ) -> Result<usize, Error> {
        self.servers
            .stats
            .writing(self.pages.write(fh, offset, data).await)
    }
}
