//! The same for programs without a tokio runtime: each call blocks its thread until it is done.
//!
//! The runtime is the mount's own. A call from a thread of another tokio runtime panics, as [`tokio::runtime::Runtime::block_on`]
//! does: such programs use [`super::FileSystem`].
//!
//! ```no_run
//! use coral_client::blocking::FileSystem;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fs = FileSystem::mount("10.0.0.1@tcp:/coral")?;
//! let file = fs.create("greeting")?;
//! file.write_at(b"hello", 0)?;
//! file.close()?;
//! fs.unmount();
//! # Ok(())
//! # }
//! ```

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_lnet::Node;
use coral_wire::nid::Nid;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::error::PathError;
use super::file::{self, OpenOptions};
use super::file_system::{self, ConnectError};
use crate::llite::Llite;
use crate::llite::types::{Attr, Cred, DirEntry, MountOptions, SetAttr, StatFs};

/// Threads of a mount's runtime: what waits for servers takes none.
const THREADS: usize = 2;

/// A mount whose handles were dropped has so long to end in the background.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How often that is looked at.
const END_LOOK: Duration = Duration::from_millis(10);

/// Mounts that [`FileSystem::mount_many`] begins at a time.
const MOUNTING: usize = 16;

/// The runtime of one mount or several. After the last handle it goes on until they have ended.
struct Engine {
    runtime: Option<Runtime>,
    mounts: Mutex<Vec<Weak<Llite>>>,
}

impl Engine {
    fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("coral-client")
            .enable_all()
            .build()?;
        Ok(Arc::new(Self {
            runtime: Some(runtime),
            mounts: Mutex::default(),
        }))
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().expect("taken when dropped only");
        runtime.block_on(work)
    }

    /// Runs the mount.
    fn mount(
        self: Arc<Self>,
        mounting: impl Future<Output = Result<file_system::FileSystem, ConnectError>>,
    ) -> Result<FileSystem, ConnectError> {
        let fs = self.run(mounting)?;
        Ok(self.holding(fs))
    }

    fn holding(self: Arc<Self>, fs: file_system::FileSystem) -> FileSystem {
        self.mounts.lock().push(Arc::downgrade(fs.llite()));
        FileSystem { fs, engine: self }
    }
}

impl Drop for Engine {
    #[expect(clippy::disallowed_methods, reason = "a drop may not block")]
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let mounts = std::mem::take(self.mounts.get_mut());
        let is_mounted = move || mounts.iter().any(|m| m.strong_count() > 0);
        if !is_mounted() {
            return runtime.shutdown_background();
        }
        std::thread::spawn(move || {
            let ended = async {
                while is_mounted() {
                    tokio::time::sleep(END_LOOK).await;
                }
            };
            let _ = runtime.block_on(async { tokio::time::timeout(END_LIMIT, ended).await });
            runtime.shutdown_background();
        });
    }
}

/// A mounted file system, as one user sees it ([`super::FileSystem`]). Clones share the mount. When the last
/// of them and the last [`File`] is dropped it is unmounted in the background, unless the program ends first;
/// [`FileSystem::unmount`] waits for that.
#[derive(Clone)]
pub struct FileSystem {
    fs: file_system::FileSystem,
    engine: Arc<Engine>,
}

impl FileSystem {
    /// Mounts `NID[:NID...]:/fsname[/subdir]` as this process ([`super::FileSystem::mount`]).
    pub fn mount(source: &str) -> Result<Self, ConnectError> {
        Self::mount_by(source, file_system::PORT)
    }

    /// The same by a TCP port of the servers ([`super::FileSystem::mount_at`]).
    pub fn mount_by(source: &str, port: u16) -> Result<Self, ConnectError> {
        Engine::start()?.mount(file_system::FileSystem::mount_at(source, None, port))
    }

    /// Mounts the same file system once at each of `nids`, all on one runtime ([`super::FileSystem::mount_at`]).
    pub fn mount_many(source: &str, nids: &[Nid], port: u16) -> Result<Vec<Self>, ConnectError> {
        let engine = Engine::start()?;
        let mounted = engine.run(mount_all(source.to_owned(), nids.to_vec(), port))?;
        let holding = |fs| engine.clone().holding(fs);
        Ok(mounted.into_iter().map(holding).collect())
    }

    /// Mounts on `node` ([`super::FileSystem::mount_on`]).
    pub fn mount_on(node: Arc<Node>, options: MountOptions) -> Result<Self, ConnectError> {
        Engine::start()?.mount(file_system::FileSystem::mount_on(node, options))
    }

    /// The node that it is mounted on.
    pub fn node(&self) -> &Arc<Node> {
        self.fs.llite().node()
    }

    /// The same mount as another user ([`super::FileSystem::as_user`]).
    pub fn as_user(&self, cred: Cred) -> Self {
        Self {
            fs: self.fs.as_user(cred),
            engine: self.engine.clone(),
        }
    }

    /// Opens a file. EISDIR for a directory.
    pub fn open(&self, path: impl AsRef<[u8]>, how: &OpenOptions) -> Result<File, PathError> {
        let file = self.engine.run(self.fs.open(path, how))?;
        Ok(File {
            file,
            engine: self.engine.clone(),
        })
    }

    /// Makes a file, or empties the one there is, for reading and writing.
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File, PathError> {
        let file = self.engine.run(self.fs.create(path))?;
        Ok(File {
            file,
            engine: self.engine.clone(),
        })
    }

    /// Attributes of what a path leads to.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr, PathError> {
        self.engine.run(self.fs.stat(path))
    }

    /// Attributes of what a path names, of a symbolic link itself.
    pub fn symlink_stat(&self, path: impl AsRef<[u8]>) -> Result<Attr, PathError> {
        self.engine.run(self.fs.symlink_stat(path))
    }

    /// Changes attributes; answers the new ones.
    pub fn set_attr(&self, path: impl AsRef<[u8]>, set: SetAttr) -> Result<Attr, PathError> {
        self.engine.run(self.fs.set_attr(path, set))
    }

    /// Cuts or extends a file to `size` bytes.
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<(), PathError> {
        self.engine.run(self.fs.truncate(path, size))
    }

    /// The whole listing of a directory, without "." and "..", in the order of the directory.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>, PathError> {
        self.engine.run(self.fs.read_dir(path))
    }

    /// Makes a directory with these permission bits, less the umask.
    pub fn mkdir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<(), PathError> {
        self.engine.run(self.fs.mkdir(path, mode))
    }

    /// Makes an empty regular file with these permission bits, less the umask, without opening it.
    pub fn mknod(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<(), PathError> {
        self.engine.run(self.fs.mknod(path, mode))
    }

    /// Sets an extended attribute of what a path leads to; `flags` as setxattr(2) has them.
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: Bytes,
        flags: u32,
    ) -> Result<(), PathError> {
        self.engine.run(self.fs.set_xattr(path, name, value, flags))
    }

    /// Makes a symbolic link at `path` that says `target`.
    pub fn symlink(
        &self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<(), PathError> {
        self.engine.run(self.fs.symlink(target, path))
    }

    /// What a symbolic link says.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Bytes, PathError> {
        self.engine.run(self.fs.read_link(path))
    }

    /// Gives a file a further name.
    pub fn hard_link(
        &self,
        path: impl AsRef<[u8]>,
        new_path: impl AsRef<[u8]>,
    ) -> Result<(), PathError> {
        self.engine.run(self.fs.hard_link(path, new_path))
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<(), PathError> {
        self.engine.run(self.fs.unlink(path))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<(), PathError> {
        self.engine.run(self.fs.rmdir(path))
    }

    /// Gives what `path` names the name `new_path`, in the place of what had that.
    pub fn rename(
        &self,
        path: impl AsRef<[u8]>,
        new_path: impl AsRef<[u8]>,
    ) -> Result<(), PathError> {
        self.engine.run(self.fs.rename(path, new_path))
    }

    /// Space and inodes, sums over the targets.
    pub fn statfs(&self) -> Result<StatFs, PathError> {
        self.engine.run(self.fs.statfs())
    }

    /// Writes out dirty data of all files, and has the changes of the namespace on disk ([`super::FileSystem::sync`]).
    pub fn sync(&self) -> Result<(), PathError> {
        self.engine.run(self.fs.sync())
    }

    /// Writes out dirty data, says goodbye to the servers and ends the node.
    pub fn unmount(self) {
        let Self { fs, engine } = self;
        engine.run(fs.unmount());
    }
}

/// A mount at each NID, in their order; or none, when one fails.
async fn mount_all(
    source: String,
    nids: Vec<Nid>,
    port: u16,
) -> Result<Vec<file_system::FileSystem>, ConnectError> {
    let source: Arc<str> = source.into();
    let mut to_do = nids.into_iter().enumerate();
    let mut mounting = JoinSet::new();
    let mut done = Vec::new();
    let mut failed = None;
    loop {
        while mounting.len() < MOUNTING
            && failed.is_none()
            && let Some((i, nid)) = to_do.next()
        {
            let source = source.clone();
            mounting.spawn(async move {
                let fs = file_system::FileSystem::mount_at(&source, Some(nid), port).await;
                fs.map(|fs| (i, fs))
            });
        }
        match mounting.join_next().await {
            None => break,
            Some(Ok(Ok(mounted))) => done.push(mounted),
            Some(Ok(Err(why))) => failed = Some(why),
            Some(Err(gone)) => failed = Some(ConnectError::Threads(io::Error::other(gone))),
        }
    }
    if let Some(why) = failed {
        // Those that are there have ended when the failure is told: the program may end at once.
        for (_, fs) in done {
            let _ = tokio::time::timeout(END_LIMIT, fs.unmount()).await;
        }
        return Err(why);
    }
    done.sort_by_key(|(i, _)| *i);
    Ok(done.into_iter().map(|(_, fs)| fs).collect())
}

/// An open file. Dropped, it is closed in the background; [`File::close`] waits for that and tells errors.
pub struct File {
    file: file::File,
    engine: Arc<Engine>,
}

impl File {
    /// Reads into `buf` from `offset` on; bytes read, fewer than `buf` holds only at the end of the file or beyond 1 GiB.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, PathError> {
        self.engine.run(self.file.read_at(buf, offset))
    }

    /// Writes all of `data` at `offset`, or at the end when opened to append; bytes written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, PathError> {
        self.engine.run(self.file.write_at(data, offset))
    }

    /// Attributes.
    pub fn stat(&self) -> Result<Attr, PathError> {
        self.engine.run(self.file.stat())
    }

    /// Changes attributes; answers the new ones.
    pub fn set_attr(&self, set: SetAttr) -> Result<Attr, PathError> {
        self.engine.run(self.file.set_attr(set))
    }

    /// Cuts or extends the file to `size` bytes.
    pub fn set_len(&self, size: u64) -> Result<(), PathError> {
        self.engine.run(self.file.set_len(size))
    }

    /// Data and metadata are on disk when this returns. Fails when data written before could not be stored.
    pub fn sync(&self) -> Result<(), PathError> {
        self.engine.run(self.file.sync())
    }

    /// Closes the file. Fails when data written through it is known to be lost by now.
    pub fn close(self) -> Result<(), PathError> {
        let Self { file, engine } = self;
        engine.run(file.close())
    }
}
