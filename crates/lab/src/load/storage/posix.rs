//! System calls on a path of this machine.

use super::{How, Inside, OpenFile, Space, Storage};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, XattrFlags};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};

/// Any mounted file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Posix;

impl Storage for Posix {
    fn name(&self) -> &'static str {
        "POSIX"
    }

    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile>> {
        let file = OpenOptions::new()
            .read(how.read)
            .write(how.write)
            .create(how.create && !how.exclusive)
            .create_new(how.create && how.exclusive)
            .truncate(how.truncate)
            .mode(how.bits())
            .custom_flags(if how.direct { libc::O_DIRECT } else { 0 })
            .open(path)?;
        Ok(Box::new(PosixFile(file)))
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        // the call that the originals make; the standard library's costs more
        Ok(rustix::fs::stat(path)?.st_size as u64)
    }

    fn mknod(&self, path: &str, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::mknodat(
            CWD,
            path,
            FileType::RegularFile,
            mode,
            0,
        )?)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(CWD, path, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &str, mode: u32) -> io::Result<()> {
        DirBuilder::new().mode(mode).create(path)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn create_xattr(&self, path: &str, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::setxattr(path, name, value, XattrFlags::CREATE)?)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?;
        names
            .map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn space(&self, path: &str) -> io::Result<Space> {
        let s = rustix::fs::statfs(path)?;
        Ok(Space {
            block_bytes: s.f_bsize as u64,
            blocks: s.f_blocks,
            free_blocks: s.f_bfree,
            inodes: s.f_files,
            free_inodes: s.f_ffree,
            kind: s.f_type,
        })
    }

    fn sync(&self) -> io::Result<()> {
        rustix::fs::sync();
        Ok(())
    }

    fn enter(&self, dir: &str) -> io::Result<Option<Inside>> {
        // The directory of the other threads stays theirs. Some containers forbid the call.
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).is_err() {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let before = rustix::fs::open(".", flags, Mode::empty())?;
        rustix::process::chdir(dir)?;
        Ok(Some(Inside { before }))
    }
}

struct PosixFile(File);

impl OpenFile for PosixFile {
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        again(|| self.0.read_at(into, offset))
    }

    fn write_at(&mut self, from: &[u8], offset: u64) -> io::Result<usize> {
        again(|| self.0.write_at(from, offset))
    }

    fn size(&mut self) -> io::Result<u64> {
        self.0.metadata().map(|m| m.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        // Dropping a file hides what close(2) says, as that a network file system has no space for it.
        Ok(nix::unistd::close(self.0)?)
    }
}

fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
