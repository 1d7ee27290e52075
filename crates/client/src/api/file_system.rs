//! A mounted file system, by path.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_lnet::{Node, NodeConfig, StartError, local_nid_on};
use coral_wire::fid::Fid;
use coral_wire::nid::Nid;
use rand::TryRngCore;

use super::error::PathError;
use super::file::{File, OpenOptions};
use super::mounted::Mounted;
use super::source::{Source, SourceError};
use super::walk::{End, parent, walk};
use crate::error::{Error, Refusal};
use crate::llite::Llite;
use crate::llite::types::{Attr, Cred, DirEntry, MountError, MountOptions, SetAttr, StatFs};

/// Lustre's own acceptor port.
pub(super) const PORT: u16 = 988;

/// Taken from the permissions of what is made.
const UMASK: u32 = 0o022;

/// An address that another node has is asked for again so often, with this pause: a mount that was taken down has it until its process
/// has ended.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

async fn started(config: NodeConfig) -> Result<Arc<Node>, StartError> {
    for _ in 0..LOOKS {
        match Node::start(config.clone(), None).await {
            Err(StartError::Taken { .. }) => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
    Node::start(config, None).await
}

/// Why a file system could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The source is none.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No address of this machine leads to the servers.
    #[error("no address of this machine leads to {nid}: {source}")]
    Address {
        /// The MGS.
        nid: Nid,
        /// The system's answer.
        source: io::Error,
    },
    /// The system gave no random bits.
    #[error("no random bits: {0}")]
    Random(#[from] rand::rand_core::OsError),
    /// The threads of a blocking mount do not start.
    #[error("cannot start threads: {0}")]
    Threads(#[from] io::Error),
    /// LNet does not start.
    #[error(transparent)]
    Node(#[from] StartError),
    /// The servers could not be reached, or know no such file system.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// A mounted file system, as one user sees it. Clones share the mount. When the last of them and the last [`File`] is dropped it is
/// unmounted in the background; [`FileSystem::unmount`] waits for that.
#[derive(Clone)]
pub struct FileSystem {
    mounted: Arc<Mounted>,
    cred: Cred,
}

impl FileSystem {
    /// Mounts `NID[:NID...]:/fsname[/subdir]` as this process: its effective user and group, no supplementary groups, and the
    /// umask 022. The node is one of its own, without an acceptor, at the address of this machine that leads to the servers.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), coral_client::ConnectError> {
    /// let fs = coral_client::FileSystem::mount("10.0.0.1@tcp:/coral").await?;
    /// # fs.unmount().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn mount(source: &str) -> Result<Self, ConnectError> {
        Self::mount_at(source, None, PORT).await
    }

    /// The same by another TCP port of the servers than 988, and at an address of this machine, if one is given. Mounts of one
    /// process, as of several, need different ones.
    pub async fn mount_at(source: &str, nid: Option<Nid>, port: u16) -> Result<Self, ConnectError> {
        let source: Source = source.parse()?;
        let mgs = source.nids[0];
        let found = |source| ConnectError::Address { nid: mgs, source };
        let nid = match nid {
            Some(nid) => nid,
            None => local_nid_on(mgs, port).map_err(found)?,
        };
        let config = NodeConfig {
            nids: vec![nid],
            connect_port: port,
            alone: true,
            seed: rand::rngs::OsRng.try_next_u64()?,
            ..NodeConfig::default()
        };
        let node = started(config).await?;
        let options = MountOptions {
            subdir: source.subdir,
            ..MountOptions::new(&source.fsname, source.nids)
        };
        Self::mount_on(node, options).await
    }

    /// Mounts on `node`, which ends with the mount, and at once when there is none: for nodes with NIDs, ports and routes of the
    /// caller's choice, and options other than the defaults.
    pub async fn mount_on(node: Arc<Node>, options: MountOptions) -> Result<Self, ConnectError> {
        let llite = match Llite::mount(node.clone(), options).await {
            Ok(llite) => llite,
            Err(why) => {
                node.shutdown().await;
                return Err(why.into());
            }
        };
        Ok(Self {
            mounted: Arc::new(Mounted::new(llite)),
            cred: own_cred(),
        })
    }

    /// The same mount as another user. The servers trust what is said here, as they trust the kernel of a client; root squash and
    /// nodemaps apply.
    pub fn as_user(&self, cred: Cred) -> Self {
        Self {
            mounted: self.mounted.clone(),
            cred,
        }
    }

    /// The mount, for operations that are not here.
    pub fn llite(&self) -> &Arc<Llite> {
        &self.mounted.llite
    }

    /// Opens a file. EISDIR for a directory.
    pub async fn open(&self, path: impl AsRef<[u8]>, how: &OpenOptions) -> Result<File, PathError> {
        let path = path.as_ref();
        let opened = self.timed("open", self.open_at(path, how)).await;
        self.told("open", path, opened)
    }

    fn told<T>(
        &self,
        op: &'static str,
        path: impl AsRef<[u8]>,
        done: Result<T, Error>,
    ) -> Result<T, PathError> {
        self.mounted.told(op, path.as_ref(), done)
    }

    /// `call` under the stopwatch. The files of paths are known to nobody here.
    fn timed<F: Future>(&self, op: &'static str, call: F) -> impl Future<Output = F::Output> {
        let stopwatch = self.llite().node().stopwatch();
        stopwatch.operation(op, Fid::ZERO, call)
    }

    async fn open_at(&self, path: &[u8], how: &OpenOptions) -> Result<File, Error> {
        let (fs, flags) = (self.llite(), how.flags());
        let handle = match walk(fs, &self.cred, path, !how.create_new).await? {
            End::There(_) if how.create_new => return Err(Refusal::NameTaken.into()),
            End::There(attr) if attr.is_dir() => return Err(Refusal::Directory.into()),
            End::There(attr) => fs.open(&self.cred, attr.fid, flags).await?,
            End::Missing(dir, name) if how.create || how.create_new => {
                let made = fs.create(&self.cred, dir, &name, how.mode, flags);
                made.await?.1
            }
            End::Missing(..) => return Err(Refusal::NoName.into()),
        };
        Ok(File::new(
            self.mounted.clone(),
            self.cred.clone(),
            handle,
            path,
        ))
    }

    /// Makes a file, or empties the one there is, for reading and writing.
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File, PathError> {
        let how = OpenOptions::new().read(true).write(true);
        self.open(path, &how.create(true).truncate(true)).await
    }

    async fn find(&self, path: &[u8], follow: bool) -> Result<Attr, Error> {
        match walk(self.llite(), &self.cred, path, follow).await? {
            End::There(attr) => Ok(attr),
            End::Missing(..) => Err(Refusal::NoName.into()),
        }
    }

    /// Attributes of what a path leads to.
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr, PathError> {
        let found = self.timed("stat", self.find(path.as_ref(), true)).await;
        self.told("stat", path, found)
    }

    /// Attributes of what a path names, of a symbolic link itself.
    pub async fn symlink_stat(&self, path: impl AsRef<[u8]>) -> Result<Attr, PathError> {
        let found = self.find(path.as_ref(), false);
        let found = self.timed("symlink_stat", found).await;
        self.told("symlink_stat", path, found)
    }

    /// Changes attributes; answers the new ones.
    pub async fn set_attr(&self, path: impl AsRef<[u8]>, set: SetAttr) -> Result<Attr, PathError> {
        let change = async {
            let fid = self.find(path.as_ref(), true).await?.fid;
            let changed = self.llite().setattr(&self.cred, fid, set, None);
            Ok(changed.await?.attr)
        };
        let done = self.timed("set_attr", change).await;
        self.told("set_attr", &path, done)
    }

    /// Cuts or extends a file to `size` bytes.
    pub async fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<(), PathError> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.set_attr(path, set).await.map(drop)
    }

    /// The whole listing of a directory, without "." and "..", in the order of the directory.
    pub async fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>, PathError> {
        let found = self.timed("read_dir", self.list(path.as_ref())).await;
        self.told("read_dir", path, found)
    }

    async fn list(&self, path: &[u8]) -> Result<Vec<DirEntry>, Error> {
        let (fs, fid) = (self.llite(), self.find(path, true).await?.fid);
        let dir = fs.opendir(&self.cred, fid).await?;
        let mut out = Vec::new();
        let mut take = |e: DirEntry| {
            if e.name[..] != b"."[..] && e.name[..] != b".."[..] {
                out.push(e);
            }
            false
        };
        let read = fs.readdir(&self.cred, &dir, 0, false, &mut take).await;
        fs.releasedir(&dir).await?;
        read.map(|()| out)
    }

    async fn parent<'a>(&self, path: &'a [u8]) -> Result<(Fid, &'a [u8]), Error> {
        parent(self.llite(), &self.cred, path).await
    }

    /// Makes a directory with these permission bits, less the umask.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<(), PathError> {
        let make = async {
            let (dir, name) = self.parent(path.as_ref()).await?;
            self.llite().mkdir(&self.cred, dir, name, mode).await
        };
        let done = self.timed("mkdir", make).await;
        self.told("mkdir", &path, done.map(drop))
    }

    /// Makes an empty regular file with these permission bits, less the umask, without opening it.
    pub async fn mknod(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<(), PathError> {
        let make = async {
            let (dir, name) = self.parent(path.as_ref()).await?;
            let mode = libc::S_IFREG | mode & 0o7777;
            self.llite().mknod(&self.cred, dir, name, mode, 0).await
        };
        let done = self.timed("mknod", make).await;
        self.told("mknod", &path, done.map(drop))
    }

    /// Sets an extended attribute of what a path leads to; `flags` as setxattr(2) has them.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: Bytes,
        flags: u32,
    ) -> Result<(), PathError> {
        let set = async {
            let fid = self.find(path.as_ref(), true).await?.fid;
            let (name, fs) = (name.as_ref(), self.llite());
            fs.setxattr(&self.cred, fid, name, value, flags).await
        };
        let done = self.timed("set_xattr", set).await;
        self.told("set_xattr", &path, done)
    }

    /// Makes a symbolic link at `path` that says `target`.
    pub async fn symlink(
        &self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<(), PathError> {
        let make = async {
            let (dir, name) = self.parent(path.as_ref()).await?;
            let made = self.llite().symlink(&self.cred, dir, name, target.as_ref());
            made.await
        };
        let done = self.timed("symlink", make).await;
        self.told("symlink", &path, done.map(drop))
    }

    /// What a symbolic link says.
    pub async fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Bytes, PathError> {
        let read = async {
            let found = self.find(path.as_ref(), false).await?;
            match found.is_symlink() {
                true => self.llite().readlink(&self.cred, found.fid).await,
                false => Err(Refusal::NotALink.into()),
            }
        };
        let done = self.timed("read_link", read).await;
        self.told("read_link", &path, done)
    }

    /// Gives a file a further name.
    pub async fn hard_link(
        &self,
        path: impl AsRef<[u8]>,
        new_path: impl AsRef<[u8]>,
    ) -> Result<(), PathError> {
        let link = async {
            let fid = self.find(path.as_ref(), false).await?.fid;
            let (dir, name) = self.parent(new_path.as_ref()).await?;
            self.llite().link(&self.cred, fid, dir, name).await
        };
        let done = self.timed("hard_link", link).await;
        self.told("hard_link", &path, done.map(drop))
    }

    /// Removes a name that is not a directory.
    pub async fn unlink(&self, path: impl AsRef<[u8]>) -> Result<(), PathError> {
        let remove = async {
            let (dir, name) = self.parent(path.as_ref()).await?;
            self.llite().unlink(&self.cred, dir, name).await
        };
        let done = self.timed("unlink", remove).await;
        self.told("unlink", &path, done)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<(), PathError> {
        let remove = async {
            let (dir, name) = self.parent(path.as_ref()).await?;
            self.llite().rmdir(&self.cred, dir, name).await
        };
        let done = self.timed("rmdir", remove).await;
        self.told("rmdir", &path, done)
    }

    /// Gives what `path` names the name `new_path`, in the place of what had that.
    pub async fn rename(
        &self,
        path: impl AsRef<[u8]>,
        new_path: impl AsRef<[u8]>,
    ) -> Result<(), PathError> {
        let rename = async {
            let (from, name) = self.parent(path.as_ref()).await?;
            let (to, new_name) = self.parent(new_path.as_ref()).await?;
            let done = self.llite().rename(&self.cred, from, name, to, new_name, 0);
            done.await
        };
        let done = self.timed("rename", rename).await;
        self.told("rename", &path, done)
    }

    /// Space and inodes, sums over the targets.
    pub async fn statfs(&self) -> Result<StatFs, PathError> {
        self.told("statfs", "", self.llite().statfs().await)
    }

    /// Writes out dirty data of all files, however long the servers take, and has the changes of the namespace on disk. For
    /// data to be on disk, and to hear of what was lost, there is [`File::sync`].
    pub async fn sync(&self) -> Result<(), PathError> {
        self.llite().write_out_all().await;
        let root = self.llite().root();
        self.told("sync", "", self.llite().sync_dir(root).await)
    }

    /// Writes out dirty data, says goodbye to the servers and ends the node. Files that are still open are closed by the
    /// servers, and fail from now on.
    pub async fn unmount(self) {
        self.mounted.end().await;
    }
}

/// Who this process is.
fn own_cred() -> Cred {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    Cred {
        umask: UMASK,
        ..Cred::user(uid, gid)
    }
}
