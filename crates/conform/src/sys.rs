//! System calls that no library offers in a safe form: record locks by open file, mappings, another user for a thread.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Sort of a record lock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Lock {
    Read,
    Write,
    Unlock,
}

fn record(kind: Lock, start: i64, len: i64) -> libc::flock {
    let l_type = match kind {
        Lock::Read => libc::F_RDLCK,
        Lock::Write => libc::F_WRLCK,
        Lock::Unlock => libc::F_UNLCK,
    };
    libc::flock {
        l_type: l_type as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Takes or leaves a record lock that belongs to the open file (`F_OFD_SETLK`), or waits for it.
pub(crate) fn lock(file: &File, kind: Lock, start: i64, len: i64, wait: bool) -> io::Result<()> {
    let mut l = record(kind, start, len);
    let op = if wait {
        libc::F_OFD_SETLKW
    } else {
        libc::F_OFD_SETLK
    };
    // SAFETY: the descriptor is open as long as `file` lives, and `l` is a valid flock of this call's own.
    match unsafe { libc::fcntl(file.as_raw_fd(), op, &mut l) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Which lock would be in the way (`F_OFD_GETLK`): its sort, start and length; none.
pub(crate) fn test_lock(
    file: &File,
    kind: Lock,
    start: i64,
    len: i64,
) -> io::Result<Option<(Lock, i64, i64)>> {
    let mut l = record(kind, start, len);
    // SAFETY: the descriptor is open as long as `file` lives, and `l` is a valid flock of this call's own.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut l) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match l.l_type as i32 {
        libc::F_RDLCK => Some((Lock::Read, l.l_start, l.l_len)),
        libc::F_WRLCK => Some((Lock::Write, l.l_start, l.l_len)),
        _ => None,
    })
}

/// A mapping of the head of a file.
pub(crate) struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    /// Maps `len` bytes for reading and writing.
    pub(crate) fn new(file: &File, len: usize, shared: bool) -> io::Result<Map> {
        let flags = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours; the descriptor is open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { at: at.cast(), len })
    }

    /// Copies bytes out of the mapping. The file must be as long: the caller sees to it.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: the range is inside the mapping; bytes are read one by one without a reference, as others may change them.
        (at..at + len)
            .map(|i| unsafe { self.at.add(i).read_volatile() })
            .collect()
    }

    /// Copies bytes into it.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: the range is inside the mapping, which is writable; no reference to it exists.
            unsafe { self.at.add(at + i).write_volatile(*b) };
        }
    }

    /// Writes it back (`msync`, MS_SYNC).
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: address and length are those of the mapping.
        match unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Bytes of an extended attribute, asked for without room for it.
pub(crate) fn xattr_size(path: &Path, name: &str) -> io::Result<usize> {
    let (path, name) = (
        CString::new(path.as_os_str().as_bytes())?,
        CString::new(name)?,
    );
    // SAFETY: both texts end with NUL and live through the call, which writes nothing as it is given no room.
    match unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) } {
        n if n >= 0 => Ok(n as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits some milliseconds of real time.
#[expect(
    clippy::disallowed_methods,
    reason = "the suite watches a file system from outside: its clock is the wall's"
)]
pub(crate) fn pause(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call reads a number and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Runs `work` on a thread whose file system accesses are those of user and group `id`, in no other group.
pub(crate) fn as_user<T: Send>(id: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if !is_root() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "needs root"));
    }
    let run = move || {
        // SAFETY: the raw call changes the supplementary groups of this thread alone and passes an empty list.
        unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) };
        // SAFETY: the calls change the identity of this thread alone, and it ends with `work`.
        unsafe { libc::setfsgid(id) };
        // SAFETY: as above.
        unsafe { libc::setfsuid(id) };
        work()
    };
    std::thread::scope(|s| s.spawn(run).join()).map_err(|_| io::Error::other("the thread panicked"))
}
