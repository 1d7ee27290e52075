//! System calls that need care: cloning the device, mount(2), fusermount3 with descriptor passing.
//!
//! Linux: `fs/fuse/dev.c` (FUSE_DEV_IOC_CLONE), `fs/fuse/inode.c` (mount options fd, rootmode, user_id, group_id,
//! allow_other, default_permissions). fusermount3 hands the descriptor over the socket named in `_FUSE_COMMFD`.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use zerocopy::IntoBytes;

use crate::abi::{DEV_IOC_CLONE, StoreHead};

/// The type that `mount` and `df -T` show, after "fuse.".
pub(crate) const SUBTYPE: &str = "coral";

/// A fresh `/dev/fuse`.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(
        "/dev/fuse",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// A second descriptor of the connection of `session`: with a queue of its own for requests under way.
#[allow(unsafe_code, reason = "ioctl")]
pub(crate) fn clone_device(session: &OwnedFd) -> io::Result<OwnedFd> {
    let new = open_device()?;
    let old = session.as_raw_fd() as u32;
    // SAFETY: the ioctl reads one u32 through the pointer, which lives across the call; both descriptors are open.
    let r = unsafe { libc::ioctl(new.as_raw_fd(), DEV_IOC_CLONE as _, &raw const old) };
    if r < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(new)
    }
}

/// What to tell mount(2) and fusermount3.
pub(crate) struct MountSpec<'a> {
    pub source: &'a str,
    pub allow_other: bool,
    /// Those of [`FLAGS`] that are set.
    pub words: Vec<&'static str>,
}

/// Flags of a mount by their names in mount(8).
const FLAGS: [(&str, MountFlags); 7] = [
    ("ro", MountFlags::RDONLY),
    ("noexec", MountFlags::NOEXEC),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noatime", MountFlags::NOATIME),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
];

/// The flags of the mount at `at` as they are, with those of `words` set and those of the others in `cleared` not. Needs
/// CAP_SYS_ADMIN.
pub(crate) fn remount(at: &Path, words: &[&str], cleared: &[&str]) -> io::Result<()> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo")?;
    let now = flags_in(&text, at).ok_or(io::ErrorKind::NotFound)?;
    let of = |words: &[&str]| -> MountFlags {
        FLAGS
            .iter()
            .filter(|(w, _)| words.contains(w))
            .map(|(_, flag)| *flag)
            .collect()
    };
    Ok(rustix::mount::mount_remount(
        at,
        (now - of(cleared)) | of(words),
        c"",
    )?)
}

/// Those of [`FLAGS`] that the last mount at `at` has: its own, and its file system's.
fn flags_in(mountinfo: &str, at: &Path) -> Option<MountFlags> {
    let line = line_of(mountinfo, at)?;
    let (own, rest) = line.split_once(" - ")?;
    let words: Vec<&str> = own
        .split(' ')
        .nth(5)?
        .split(',')
        .chain(rest.split(' ').nth(2)?.split(','))
        .collect();
    Some(
        FLAGS
            .iter()
            .filter(|(word, _)| words.contains(word))
            .map(|(_, flag)| *flag)
            .collect(),
    )
}

/// mount(2): needs CAP_SYS_ADMIN in this mount namespace.
pub(crate) fn mount(dev: &OwnedFd, at: &Path, spec: &MountSpec<'_>) -> io::Result<()> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid}",
        dev.as_raw_fd()
    );
    data.push_str(if spec.allow_other { ",allow_other" } else { "" });
    data.push_str(",default_permissions");
    let flags: MountFlags = FLAGS
        .iter()
        .filter(|(word, _)| spec.words.contains(word))
        .map(|(_, flag)| *flag)
        .collect();
    let data = CString::new(data)?;
    rustix::mount::mount(
        spec.source,
        at,
        format!("fuse.{SUBTYPE}"),
        flags,
        Some(data.as_c_str()),
    )?;
    Ok(())
}

/// fusermount3: mounts for an ordinary user and passes the device back.
pub(crate) fn fusermount(at: &Path, spec: &MountSpec<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The child must inherit its end; another child started meanwhile would too, which does no harm.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let source = spec.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut opts = format!("fsname={source},subtype={SUBTYPE}");
    opts.push_str(",default_permissions");
    opts.push_str(if spec.allow_other { ",allow_other" } else { "" });
    spec.words.iter().for_each(|word| opts.extend([",", word]));
    let child = Command::new("fusermount3")
        .args(["-o", &opts, "--"])
        .arg(at)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(theirs);
    let fd = receive_fd(&ours);
    let out = child.wait_with_output()?;
    match fd {
        Ok(fd) if out.status.success() => Ok(fd),
        Ok(_) | Err(_) => Err(io::Error::other(
            String::from_utf8_lossy(&out.stderr).trim().to_owned(),
        )),
    }
}

/// One descriptor out of a socket.
fn receive_fd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut iov = [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(
        socket.as_fd(),
        &mut iov,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for m in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = m
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// umount2(2). EBUSY while files are open there, unless `lazy`.
pub(crate) fn unmount(at: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    Ok(rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW)?)
}

/// `fusermount3 -u`, for mounts made by it.
pub(crate) fn fusermount_unmount(at: &Path, lazy: bool) -> io::Result<()> {
    let out = Command::new("fusermount3")
        .args(if lazy {
            &["-u", "-z", "--"][..]
        } else {
            &["-u", "--"]
        })
        .arg(at)
        .output()?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    let busy = text.contains("busy");
    Err(io::Error::new(
        if busy {
            io::ErrorKind::ResourceBusy
        } else {
            io::ErrorKind::Other
        },
        text,
    ))
}

/// The kernel's number of the connection mounted at `at`: the name of its directory under /sys/fs/fuse/connections.
pub(crate) fn connection(at: &Path) -> Option<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo").ok()?;
    connection_in(&text, at)
}

fn connection_in(mountinfo: &str, at: &Path) -> Option<u32> {
    line_of(mountinfo, at)?
        .split(' ')
        .nth(2)?
        .split_once(':')?
        .1
        .parse()
        .ok()
}

/// What mountinfo says of the last mount at `at`.
fn line_of<'a>(mountinfo: &'a str, at: &Path) -> Option<&'a str> {
    let at = at
        .to_str()?
        .replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011")
        .replace('\n', "\\012");
    mountinfo
        .lines()
        .rev()
        .find(|l| l.split(' ').nth(4) == Some(&at))
}

/// Whether a Coral file system is mounted at `at`, by the mountinfo of a process.
pub(crate) fn is_mounted_in(mountinfo: &str, at: &Path) -> bool {
    line_of(mountinfo, at)
        .and_then(|l| l.split_once(" - "))
        .is_some_and(|(_, fs)| fs.starts_with(&format!("fuse.{SUBTYPE} ")))
}

/// Lets the kernel read ahead `kib` KiB in files of the mount at `at`, where /sys may be written (else it stays at 128 KiB).
pub(crate) fn set_read_ahead(at: &Path, kib: u32) {
    if let Some(c) = connection(at)
        && let Err(e) = std::fs::write(
            format!("/sys/class/bdi/0:{c}/read_ahead_kb"),
            kib.to_string(),
        )
    {
        tracing::debug!("read-ahead of {} stays as it is: {e}", at.display());
    }
}

/// Makes the kernel take the file `nodeid` for no smaller than `size` bytes, which are more than none, and take in no answer to what
/// it asked of the file before. Waits for the file's last page if that is on its way.
///
/// NOTIFY_STORE puts data into the page cache; the kernel raises the size before it copies them (`fuse_notify_store` in
/// `fs/fuse/inode.c` and `fs/fuse/dev.c`). The one byte that is sent here lies at an address where nothing can be, so no page is
/// changed: EFAULT is how it ends well.
#[allow(unsafe_code, reason = "writev of an address that is none")]
pub(crate) fn raise_size(dev: &OwnedFd, nodeid: u64, size: u64) -> io::Result<()> {
    let head = StoreHead::new(nodeid, size.saturating_sub(1), 1);
    let part = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let nowhere = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 1,
    };
    let parts = [part(head.as_bytes()), nowhere];
    // SAFETY: the kernel only reads what the parts name: a live structure, and address 0, which it refuses to read.
    let r = unsafe { libc::writev(dev.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
    match io::Error::last_os_error() {
        e if r < 0 && e.raw_os_error() != Some(libc::EFAULT) => Err(e),
        _ => Ok(()),
    }
}

/// Ends a connection whose mount is still held elsewhere (another mount namespace): its requests fail with ECONNABORTED.
pub(crate) fn abort(connection: u32) -> io::Result<()> {
    std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo() {
        let text = "36 35 98:0 / / rw - ext4 /dev/vda rw\n\
                    40 36 0:52 / /tmp/a\\040b rw,nosuid - fuse.coral src rw\n";
        assert_eq!(connection_in(text, Path::new("/tmp/a b")), Some(52));
        assert_eq!(connection_in(text, Path::new("/tmp/a")), None);
        assert!(is_mounted_in(text, Path::new("/tmp/a b")) && !is_mounted_in(text, Path::new("/")));
        assert_eq!(
            flags_in(text, Path::new("/tmp/a b")),
            Some(MountFlags::NOSUID)
        );
        assert_eq!(
            flags_in(
                &text.replace("src rw", "src ro,sync"),
                Path::new("/tmp/a b")
            ),
            Some(MountFlags::NOSUID | MountFlags::RDONLY | MountFlags::SYNCHRONOUS)
        );
    }
}
