//! Open files.

use std::sync::Arc;

use bytes::Bytes;
use coral_buffers::Payload;

use super::error::PathError;
use super::mounted::Mounted;
use crate::error::Error;
use crate::llite::FileHandle;
use crate::llite::types::{Attr, Cred, SetAttr};

/// Most bytes of one read.
const READ_MAX: usize = 1 << 30;

/// How to open a file, in the words of [`std::fs::OpenOptions`].
#[derive(Debug, Clone)]
pub struct OpenOptions {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) truncate: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet; a file that is made has the mode 0666, less the umask.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
        }
    }

    /// May be read.
    pub fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// May be written.
    pub fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// Every write goes to the end, whatever its offset.
    pub fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// Is cut to nothing.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Is made when there is none.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Is made; EEXIST when the name is taken.
    pub fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Permission bits of a file that is made.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// The `O_*` flags.
    pub(super) fn flags(&self) -> u32 {
        let write = self.write || self.append;
        let mut flags = match (self.read, write) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            _ => libc::O_RDONLY,
        };
        for (yes, flag) in [
            (self.append, libc::O_APPEND),
            (self.truncate, libc::O_TRUNC),
            (self.create_new, libc::O_EXCL),
        ] {
            flags |= if yes { flag } else { 0 };
        }
        flags as u32
    }
}

/// An open file. Dropped, it is closed in the background; [`File::close`] waits for that and tells errors.
pub struct File {
    fs: Arc<Mounted>,
    cred: Cred,
    handle: Arc<FileHandle>,
    /// The path it was opened by.
    path: Bytes,
    closed: bool,
}

impl File {
    pub(super) fn new(fs: Arc<Mounted>, cred: Cred, handle: Arc<FileHandle>, path: &[u8]) -> Self {
        Self {
            fs,
            cred,
            handle,
            path: Bytes::copy_from_slice(path),
            closed: false,
        }
    }

    /// `call` under the stopwatch.
    fn timed<F: Future>(&self, op: &'static str, call: F) -> impl Future<Output = F::Output> {
        let stopwatch = self.fs.llite.node().stopwatch();
        stopwatch.operation(op, self.handle.fid(), call)
    }

    fn told<T>(&self, op: &'static str, done: Result<T, Error>) -> Result<T, PathError> {
        self.fs.told(op, &self.path, done)
    }

    /// The handle, for operations of [`crate::Llite`] that are not here.
    pub fn handle(&self) -> &Arc<FileHandle> {
        &self.handle
    }

    /// Reads into `buf` from `offset` on; bytes read, fewer than `buf` holds only at the end of the file or beyond 1 GiB.
    pub async fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, PathError> {
        let got = self.read_payload(offset, buf.len()).await?;
        let mut at = 0;
        for part in got.iter() {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(at)
    }

    /// The same without a buffer of the caller's.
    pub async fn read_bytes_at(&self, offset: u64, len_bytes: usize) -> Result<Bytes, PathError> {
        Ok(self.read_payload(offset, len_bytes).await?.copy_to_bytes())
    }

    async fn read_payload(&self, offset: u64, len_bytes: usize) -> Result<Payload, PathError> {
        let len = len_bytes.min(READ_MAX) as u32;
        let read = self.fs.llite.read(&self.handle, offset, len);
        let read = self.timed("read", read).await;
        self.told("read", read)
    }

    /// Writes all of `data` at `offset`, or at the end when opened to append; bytes written. They are dirty for a while:
    /// [`File::sync`] has them on disk.
    pub async fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, PathError> {
        self.write_bytes_at(Bytes::copy_from_slice(data), offset)
            .await
    }

    /// The same without a copy.
    pub async fn write_bytes_at(&self, data: Bytes, offset: u64) -> Result<usize, PathError> {
        let data = Payload::from(data);
        let written = self.fs.llite.write(&self.cred, &self.handle, offset, data);
        let written = self.timed("write", written).await;
        self.told("write", written)
    }

    /// Attributes.
    pub async fn stat(&self) -> Result<Attr, PathError> {
        let fid = self.handle.fid();
        let found = self.fs.llite.getattr(&self.cred, fid, Some(&self.handle));
        let found = self.timed("stat", found).await;
        Ok(self.told("stat", found)?.attr)
    }

    /// Changes attributes; answers the new ones.
    pub async fn set_attr(&self, set: SetAttr) -> Result<Attr, PathError> {
        let fid = self.handle.fid();
        let changed = self
            .fs
            .llite
            .setattr(&self.cred, fid, set, Some(&self.handle));
        let changed = self.timed("set_attr", changed).await;
        Ok(self.told("set_attr", changed)?.attr)
    }

    /// Cuts or extends the file to `size` bytes.
    pub async fn set_len(&self, size: u64) -> Result<(), PathError> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.set_attr(set).await.map(drop)
    }

    /// Data and metadata are on disk when this returns. Fails when data written before could not be stored.
    pub async fn sync(&self) -> Result<(), PathError> {
        let done = self.fs.llite.fsync(&self.handle, false);
        let done = self.timed("sync", done).await;
        self.told("sync", done)
    }

    /// Closes the file. Fails when data written through it is known to be lost by now; to hear of all of it, call
    /// [`File::sync`] first.
    pub async fn close(mut self) -> Result<(), PathError> {
        self.closed = true;
        let (fs, handle) = (self.fs.clone(), self.handle.clone());
        // a task: whoever gives up here leaves no file open
        let closing = self.fs.runtime.spawn(async move {
            // nobody took locks through it
            let told = fs.llite.flush(&handle, 0).await;
            let done = fs.llite.release(&handle).await;
            told.and(done)
        });
        let done = closing.await.unwrap_or(Err(Error::Task));
        self.told("close", done)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let (fs, handle, path) = (self.fs.clone(), self.handle.clone(), self.path.clone());
        self.fs.runtime.spawn(async move {
            // nobody is there to be told, but the log is
            let done = fs.llite.release(&handle).await;
            let _ = fs.told("close", &path, done);
        });
    }
}
