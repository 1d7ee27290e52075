//! syncfs(2) of a program: the kernel does not tell a FUSE server of it, so it is caught with a seccomp filter whose listener is
//! here. The program waits until everything is flushed, as it would for a disk.
#![allow(unsafe_code, reason = "seccomp has no safe wrapper here")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;

const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: libc::c_ulong = 1 << 3;
const SECCOMP_RET_USER_NOTIF: u32 = 0x7fc0_0000;
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
/// `_IOWR('!', 0, struct seccomp_notif)` and `_IOWR('!', 1, struct seccomp_notif_resp)`.
const NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const NOTIF_SEND: libc::c_ulong = 0xc018_2101;

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notif {
    id: u64,
    pid: u32,
    flags: u32,
    nr: i32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
#[derive(Default)]
struct Answer {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

/// Lets `command` ask `sync` at each syncfs(2). Returns what must be called when it has been started.
#[expect(
    clippy::disallowed_methods,
    reason = "answers system calls that wait for the answer"
)]
pub(crate) fn catch(
    command: &mut Command,
    sync: Box<dyn Fn() + Send>,
) -> io::Result<impl FnOnce() -> io::Result<()> + use<>> {
    let (ours, theirs) = UnixDatagram::pair()?;
    let end = theirs.as_raw_fd();
    // SAFETY: between fork and exec only system calls are made, and the descriptor is open in the child.
    unsafe {
        command.pre_exec(move || send_fd(end, &listen()?));
    }
    Ok(move || {
        let listener = receive_fd(&ours)?;
        drop(theirs);
        std::thread::Builder::new()
            .name("syncfs".into())
            .spawn(move || serve(&listener, sync))?;
        Ok(())
    })
}

/// Installs the filter in this process.
fn listen() -> io::Result<OwnedFd> {
    let stmt = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_syncfs as u32,
    };
    let mut filter = [
        stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump,
        stmt(libc::BPF_RET | libc::BPF_K, SECCOMP_RET_USER_NOTIF),
        stmt(libc::BPF_RET | libc::BPF_K, SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program and its filter live across the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_SET_MODE_FILTER,
            SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Room for a control message with one descriptor.
#[repr(C, align(8))]
struct Control([u8; 24]);

fn message<'a>(iov: &'a mut libc::iovec, control: &'a mut Control) -> libc::msghdr {
    // SAFETY: all zeros is an empty header.
    let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
    (m.msg_iov, m.msg_iovlen) = (iov, 1);
    (m.msg_control, m.msg_controllen) = (control.0.as_mut_ptr().cast(), size_of::<Control>());
    m
}

fn send_fd(to: RawFd, fd: &OwnedFd) -> io::Result<()> {
    let (mut byte, mut control) = (0u8, Control([0; 24]));
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let m = message(&mut iov, &mut control);
    // SAFETY: the header has room for one control message with one descriptor.
    let sent = unsafe {
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c)
            .cast::<RawFd>()
            .write_unaligned(fd.as_raw_fd());
        libc::sendmsg(to, &raw const m, 0)
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn receive_fd(from: &UnixDatagram) -> io::Result<OwnedFd> {
    let (mut byte, mut control) = (0u8, Control([0; 24]));
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut m = message(&mut iov, &mut control);
    // SAFETY: the header and what it points to live across the call; the descriptor is ours when the kernel says so.
    unsafe {
        if libc::recvmsg(from.as_raw_fd(), &raw mut m, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        if c.is_null() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(OwnedFd::from_raw_fd(
            libc::CMSG_DATA(c).cast::<RawFd>().read_unaligned(),
        ))
    }
}

/// Answers until the last process with the filter has ended.
fn serve(listener: &OwnedFd, sync: impl Fn()) {
    loop {
        let mut poll = libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, for the length of the call.
        let n = unsafe { libc::poll(&raw mut poll, 1, -1) };
        if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        if n < 0 || poll.revents & libc::POLLIN == 0 {
            return;
        }
        let mut asked = Notif::default();
        // SAFETY: the structure is the kernel's.
        if unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut asked) } < 0 {
            continue; // it died meanwhile
        }
        sync();
        let mut answer = Answer {
            id: asked.id,
            ..Answer::default()
        };
        // SAFETY: the structure is the kernel's. A failure: it died meanwhile.
        let _ = unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut answer) };
    }
}
