//! What the kernel knows of a TCP connection: `struct tcp_info` of `include/uapi/linux/tcp.h`, the fields that tell what holds
//! a sender back.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that are asked for; a kernel fills in as many as it has.
const SIZE: usize = 256;
/// End of the last field that is read. Linux 4.19 has it.
const LEAST: usize = 216;

/// Of one connection, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TcpInfo {
    /// `tcpi_rtt`: smoothed, microseconds.
    pub(super) rtt_us: u32,
    /// `tcpi_min_rtt`: the least of some minutes, microseconds.
    pub(super) least_rtt_us: u32,
    /// `tcpi_bytes_acked`.
    pub(super) acked_bytes: u64,
    /// In the socket and on the way, not acknowledged: `tcpi_notsent_bytes`, and what of `tcpi_bytes_sent` is new and not acked.
    pub(super) waiting_bytes: u64,
    /// `tcpi_busy_time`: data were on the way or waited to be; microseconds.
    pub(super) busy_us: u64,
    /// `tcpi_rwnd_limited`: of that, how long the peer's window was full; microseconds.
    pub(super) peer_full_us: u64,
}

/// Asks the kernel.
#[allow(
    unsafe_code,
    reason = "getsockopt of a structure that libc has in part"
)]
pub(super) fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0u8; SIZE];
    let mut len = SIZE as libc::socklen_t;
    let fd = socket.as_fd();
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has so many, and the length it wrote to `len`; both live
    // across the call, and the descriptor is open.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut bytes).cast(),
            &raw mut len,
        )
    };
    if r < 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < LEAST {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(read(&bytes))
}

fn read(bytes: &[u8; SIZE]) -> TcpInfo {
    let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    let (acked, sent, again) = (u64_at(120), u64_at(200), u64_at(208));
    TcpInfo {
        rtt_us: u32_at(68),
        least_rtt_us: u32_at(148),
        acked_bytes: acked,
        // A handshake counts as one byte that is acknowledged, and none that is sent.
        waiting_bytes: u64::from(u32_at(144)) + sent.saturating_sub(again + acked),
        busy_us: u64_at(168),
        peer_full_us: u64_at(176),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_sender_whose_peer_does_not_read_is_told_from_one_whose_peer_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut to, _) = listener.accept().unwrap();
        let before = tcp_info(&from).unwrap();
        assert!(
            before.waiting_bytes == 0 && before.peer_full_us == 0,
            "{before:?}"
        );
        from.write_all(&[7; 5000]).unwrap();
        to.read_exact(&mut [0; 5000]).unwrap();
        // the acknowledgement may be on its way still
        let acked = |s: &TcpStream| tcp_info(s).unwrap().acked_bytes - before.acked_bytes;
        while acked(&from) < 5000 {
            std::thread::yield_now();
        }
        let read = tcp_info(&from).unwrap();
        assert_eq!((acked(&from), read.waiting_bytes), (5000, 0));
        assert!(read.least_rtt_us <= read.rtt_us, "{read:?}");
        from.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(n) = from.write(&[7; 65_536]) {
            written += n as u64;
        }
        // what is neither here nor on the way is there, unread
        let left = || written - tcp_info(&from).unwrap().waiting_bytes;
        let unread = || rustix::io::ioctl_fionread(&to).unwrap();
        while left().abs_diff(unread()) > 1 {
            std::thread::yield_now();
        }
        assert!(tcp_info(&from).unwrap().waiting_bytes > 0);
        // the window is full, and time passes
        while tcp_info(&from).unwrap().peer_full_us == 0 {
            std::thread::yield_now();
        }
        let waited = tcp_info(&from).unwrap();
        assert!(waited.busy_us >= waited.peer_full_us, "{waited:?}");
    }
}
