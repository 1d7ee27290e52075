//! Coral's client library: the same client as a mount's, without FUSE and the kernel between.

use super::{How, OpenFile, Space, Storage};
use crate::load::Failed;
use bytes::Bytes;
use coral_client::blocking::{File, FileSystem};
use coral_client::{ConnectError, OpenOptions};
use coral_lnet::StartError;
use coral_stopwatch::Dump;
use coral_wire::nid::Nid;
use parking_lot::{RwLock, RwLockReadGuard};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What statfs(2) says of Lustre.
const LUSTRE_MAGIC: i64 = 0x0BD0_0BD0;

/// How another NID is given, where it is the NID that is wrong.
fn other_nid(why: &ConnectError) -> &'static str {
    match why {
        ConnectError::Node(StartError::Taken { .. } | StartError::NotHere(_)) => {
            "; give a NID with --coral-nid"
        }
        _ => "",
    }
}

/// A file system mounted in this process. Its ranks share the mount. Paths begin at its root.
#[derive(Clone)]
pub struct Library {
    fs: FileSystem,
    /// The same, read by every operation under way.
    gate: Arc<RwLock<FileSystem>>,
}

impl Library {
    /// Mounts `NID[:NID...]:/fsname[/subdir]`, by this TCP port of the servers.
    pub fn mount(source: &str, port: u16) -> Result<Library, Failed> {
        FileSystem::mount_by(source, port)
            .map(Library::of)
            .map_err(|e| Failed::Refused(format!("cannot mount {source}: {e}{}", other_nid(&e))))
    }

    /// Mounts it once at each of `nids`.
    pub fn mount_many(source: &str, nids: &[Nid], port: u16) -> Result<Vec<Library>, Failed> {
        let mounted = FileSystem::mount_many(source, nids, port);
        let mounted = mounted.map_err(|e| {
            let times = nids.len();
            Failed::Refused(format!(
                "cannot mount {source} {times} times: {e}{}",
                other_nid(&e)
            ))
        })?;
        Ok(mounted.into_iter().map(Library::of).collect())
    }

    /// Where the time of the last RPCs went, of several mounts together.
    pub fn stopwatches(mounts: &[Library]) -> Vec<Dump> {
        let watches = mounts.iter().map(|m| {
            let node = m.fs.node();
            (&**node.stopwatch(), node.nids())
        });
        let mut dumps = coral_stopwatch::dumps(watches);
        Dump::keep_last(&mut dumps, coral_stopwatch::KEPT);
        dumps
    }

    /// Of a mount that is there.
    pub fn of(fs: FileSystem) -> Library {
        Library {
            gate: Arc::new(RwLock::new(fs.clone())),
            fs,
        }
    }

    /// Waits until the operations under way have ended; those that begin after that wait for ever, and their ranks end with the
    /// process. Where one takes longer than `limit`, all go on.
    pub(crate) fn stand_still(&self, limit: Duration) {
        std::mem::forget(self.gate.try_write_for(limit));
    }

    /// For one operation.
    fn fs(&self) -> RwLockReadGuard<'_, FileSystem> {
        self.gate.read()
    }

    /// Ends the mount.
    pub fn unmount(self) {
        self.fs.unmount();
    }
}

impl Storage for Library {
    fn name(&self) -> &'static str {
        "CORAL"
    }

    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile>> {
        if how.direct {
            // The library keeps data back and reads ahead; there is no way past that which could be asked for here.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let options = OpenOptions::new()
            .read(how.read)
            .write(how.write)
            .truncate(how.truncate)
            .create(how.create && !how.exclusive)
            .create_new(how.create && how.exclusive)
            .mode(how.bits());
        Ok(Box::new(LibraryFile {
            file: self.fs().open(path, &options)?,
            gate: self.gate.clone(),
        }))
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(self.fs().stat(path)?.size)
    }

    fn mknod(&self, path: &str, mode: u32) -> io::Result<()> {
        Ok(self.fs().mknod(path, mode)?)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        Ok(self.fs().unlink(path)?)
    }

    fn mkdir(&self, path: &str, mode: u32) -> io::Result<()> {
        Ok(self.fs().mkdir(path, mode)?)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        Ok(self.fs().rmdir(path)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(self.fs().rename(from, to)?)
    }

    fn create_xattr(&self, path: &str, name: &str, value: &[u8]) -> io::Result<()> {
        let flags = libc::XATTR_CREATE as u32;
        let value = Bytes::copy_from_slice(value);
        Ok(self.fs().set_xattr(path, name, value, flags)?)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = self.fs().read_dir(path)?;
        Ok(names
            .iter()
            .map(|e| String::from_utf8_lossy(&e.name).into_owned())
            .collect())
    }

    fn space(&self, path: &str) -> io::Result<Space> {
        // As statfs(2), which asks a path that is there.
        self.fs().stat(path)?;
        let s = self.fs().statfs()?;
        Ok(Space {
            block_bytes: u64::from(s.bsize),
            blocks: s.blocks,
            free_blocks: s.bfree,
            inodes: s.files,
            free_inodes: s.ffree,
            kind: LUSTRE_MAGIC,
        })
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.fs().sync()?)
    }
}

struct LibraryFile {
    file: File,
    gate: Arc<RwLock<FileSystem>>,
}

impl OpenFile for LibraryFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let _under_way = self.gate.read();
        Ok(self.file.read_at(into, offset)?)
    }

    fn write_at(&mut self, from: &[u8], offset: u64) -> io::Result<usize> {
        let _under_way = self.gate.read();
        Ok(self.file.write_at(from, offset)?)
    }

    fn size(&mut self) -> io::Result<u64> {
        let _under_way = self.gate.read();
        Ok(self.file.stat()?.size)
    }

    fn sync(&mut self) -> io::Result<()> {
        let _under_way = self.gate.read();
        Ok(self.file.sync()?)
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        let _under_way = self.gate.read();
        Ok(self.file.close()?)
    }
}
