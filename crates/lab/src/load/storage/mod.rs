//! What a rank works on: a file system behind one small trait.

mod dummy;
mod library;
mod posix;
mod until;

pub use dummy::Dummy;
pub use library::Library;
pub use posix::Posix;
pub use until::Until;

use crate::load::failed::Failed;
use crate::load::memory::fits;
use std::io;
use std::os::fd::OwnedFd;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// Is made when there is none.
    pub create: bool,
    /// Must not be there.
    pub exclusive: bool,
    /// Is cut to nothing.
    pub truncate: bool,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// Permission bits of a file that is made; 0 stands for 0664.
    pub mode: u32,
}

impl How {
    /// Permission bits of a file that is made.
    pub(crate) fn bits(&self) -> u32 {
        if self.mode == 0 { 0o664 } else { self.mode }
    }
}

/// Space and inodes of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// Size of a block, bytes.
    pub block_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Type as statfs(2) tells it.
    pub kind: i64,
}

/// A file system. Errors are those of the system calls.
pub trait Storage: Send + Sync {
    /// "POSIX", "CORAL" or "DUMMY".
    fn name(&self) -> &'static str;
    /// Opens a file.
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile>>;
    /// Size of what a path leads to, bytes.
    fn size(&self, path: &str) -> io::Result<u64>;
    /// Makes an empty file without opening it; EEXIST when the name is taken.
    fn mknod(&self, path: &str, mode: u32) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// Makes a directory.
    fn mkdir(&self, path: &str, mode: u32) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &str) -> io::Result<()>;
    /// Gives a file or directory another name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes an extended attribute; EEXIST when there is one of the name.
    fn create_xattr(&self, path: &str, name: &str, value: &[u8]) -> io::Result<()>;
    /// Names in a directory, in its order.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Space and inodes.
    fn space(&self, path: &str) -> io::Result<Space>;
    /// Has everything on disk (sync(2)).
    fn sync(&self) -> io::Result<()>;
    /// From now on relative paths of the calling thread begin in this directory. None: they do not, and name nothing here.
    fn enter(&self, _dir: &str) -> io::Result<Option<Inside>> {
        Ok(None)
    }
}

/// A thread works in a directory, until this is dropped.
#[derive(Debug)]
pub struct Inside {
    before: OwnedFd,
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Where the way back is gone too, it stays.
        let _ = rustix::process::fchdir(&self.before);
    }
}

/// An open file.
pub trait OpenFile: Send {
    /// Reads once; bytes read, 0 at the end.
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes once; bytes written.
    fn write_at(&mut self, from: &[u8], offset: u64) -> io::Result<usize>;
    /// Size, bytes.
    fn size(&mut self) -> io::Result<u64>;
    /// Has the file on disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Closes it; fails when data written before is known to be lost.
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// Makes a directory and those above it that are missing.
pub fn mkdir_all(storage: &dyn Storage, path: &str, mode: u32) -> io::Result<()> {
    match storage.mkdir(path, mode) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            match path.trim_end_matches('/').rfind('/') {
                Some(at) if at > 0 => {
                    mkdir_all(storage, &path[..at], mode)?;
                    match storage.mkdir(path, mode) {
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                        made => made,
                    }
                }
                _ => Err(e),
            }
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Bytes at an address that O_DIRECT takes.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

/// Alignment of [`Buffer`]: a page, which no device asks more than.
const ALIGN: usize = 4096;

impl Buffer {
    /// Of `len` bytes, written so that no page is missing when the measurement starts. The command line says how many they are, so
    /// this host may not have the memory for one on each of the `ranks` ranks here.
    pub fn new(len: usize, ranks: u64) -> Result<Buffer, Failed> {
        let all = len.saturating_add(ALIGN);
        fits(&format!("a buffer of {len} bytes"), all as u64, ranks)?;
        let mut bytes = vec![];
        bytes.try_reserve_exact(all).map_err(|_| {
            Failed::Refused(format!(
                "there is no memory for a buffer of {len} bytes: give a smaller size"
            ))
        })?;
        // Not zero: a compiler could ask for zeroed memory instead, whose pages are missing until they are used.
        bytes.resize(all, 1_u8);
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Ok(Buffer { bytes, start, len })
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::memory::tests::has;

    #[test]
    fn a_buffer_is_whole_and_none_is_larger_than_the_host() {
        let buffer = Buffer::new(5000, 3).unwrap();
        assert_eq!(
            (buffer.len(), buffer.as_ptr().align_offset(ALIGN)),
            (5000, 0)
        );
        let len = has() + (1 << 30);
        let why = Buffer::new(len as usize, 1).unwrap_err().to_string();
        let said =
            format!("there is no memory for a buffer of {len} bytes on each of 1 ranks here");
        assert!(why.starts_with(&said), "{why}");
        let half = has() / 2 + (1 << 30);
        assert!(Buffer::new(half as usize, 2).is_err());
    }
}
