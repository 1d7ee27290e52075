//! Whose socket is at the other end of a connection on this machine: the kernel's socket monitoring (`sock_diag(7)`,
//! linux/inet_diag.h) asked by the two ends.
//!
//! Why its word can be relied on: the other end must be established and have an owner (one that was closed has no inode, and the
//! kernel then says uid 0), and this end must still be this very socket, established, after that was asked. While it is, no other
//! socket of the machine can be established between the same two ends.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use tokio::net::TcpStream;

use crate::access::Other;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const TCP_ESTABLISHED: u8 = 1;
/// Bytes of `struct nlmsghdr`, `struct inet_diag_req_v2`, `struct inet_diag_msg`.
const NLMSGHDR: usize = 16;
const REQUEST: usize = 56;
const REPLY: usize = 72;
/// Where `struct inet_diag_sockid` begins in a request and in a reply; the two ports and the first words of the addresses.
const ID_ASKED: usize = 8;
const ID_TOLD: usize = 4;
/// What the kernel says for a uid that the user namespace of this process does not have (kernel.overflowuid).
const OVERFLOW_UID: u32 = 65534;

/// A TCP socket as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    uid: u32,
    inode: u32,
}

/// Who is at the other end of `stream`.
pub(super) fn of_other_end(stream: &TcpStream) -> io::Result<Other> {
    let (SocketAddr::V4(ours), SocketAddr::V4(theirs)) =
        (stream.local_addr()?, stream.peer_addr()?)
    else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let monitor = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let other = ask(&monitor, theirs, ours)?;
    let this = ask(&monitor, ours, theirs)?;
    let inode = rustix::fs::fstat(stream)?.st_ino;
    if this.is_none_or(|t| u64::from(t.inode) != inode & u64::from(u32::MAX)) {
        return Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the other end closed it meanwhile",
        ));
    }
    Ok(match other {
        None => Other::Elsewhere,
        Some(told) => sort(
            told.uid,
            rustix::process::geteuid().as_raw(),
            knows_all_uids,
        ),
    })
}

/// `own`: whose process this is. `all_known`: uids mean what they say in our user namespace.
fn sort(uid: u32, own: u32, all_known: impl FnOnce() -> bool) -> Other {
    if (uid == 0 || uid == own) && (uid != OVERFLOW_UID || all_known()) {
        Other::Trusted
    } else {
        Other::User(uid)
    }
}

fn knows_all_uids() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The established socket of this network namespace that is bound to `at` and connected with `with`, and has an owner.
fn ask(
    monitor: &impl std::os::fd::AsFd,
    at: SocketAddrV4,
    with: SocketAddrV4,
) -> io::Result<Option<Told>> {
    rustix::net::send(monitor, &request(at, with), SendFlags::empty())?;
    let mut answer = [0; 1024];
    // The kernel has answered when the call is back.
    let (n, _) = rustix::net::recv(monitor, &mut answer[..], RecvFlags::DONTWAIT)?;
    decode(&answer[..n], at, with)
}

/// The two ends as `struct inet_diag_sockid` begins: ports, then addresses of 16 bytes each, in network order.
fn ends(at: SocketAddrV4, with: SocketAddrV4) -> [u8; 36] {
    let mut id = [0; 36];
    id[..2].copy_from_slice(&at.port().to_be_bytes());
    id[2..4].copy_from_slice(&with.port().to_be_bytes());
    id[4..8].copy_from_slice(&at.ip().octets());
    id[20..24].copy_from_slice(&with.ip().octets());
    id
}

fn request(at: SocketAddrV4, with: SocketAddrV4) -> [u8; NLMSGHDR + REQUEST] {
    let mut b = [0; NLMSGHDR + REQUEST];
    b[..4].copy_from_slice(&((NLMSGHDR + REQUEST) as u32).to_ne_bytes());
    b[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    b[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let rq = &mut b[NLMSGHDR..];
    (rq[0], rq[1]) = (AF_INET, IPPROTO_TCP);
    // all states, and no cookie
    rq[4..8].fill(0xff);
    rq[ID_ASKED..ID_ASKED + 36].copy_from_slice(&ends(at, with));
    rq[REQUEST - 8..].fill(0xff);
    b
}

fn decode(b: &[u8], at: SocketAddrV4, with: SocketAddrV4) -> io::Result<Option<Told>> {
    let strange = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "an answer that sock_diag does not give",
        )
    };
    let word = |at: usize| {
        b.get(at..at + 4)
            .map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))
            .ok_or_else(strange)
    };
    let kind = b
        .get(4..6)
        .map(|k| u16::from_ne_bytes([k[0], k[1]]))
        .ok_or_else(strange)?;
    match kind {
        NLMSG_ERROR => {
            match io::Error::from_raw_os_error((word(NLMSGHDR)? as i32).wrapping_neg()) {
                e if e.kind() == io::ErrorKind::NotFound => Ok(None),
                e => Err(e),
            }
        }
        BY_FAMILY if b.len() >= NLMSGHDR + REPLY => {
            let told = &b[NLMSGHDR..];
            // One that listens on the port is found too when there is no connection.
            if told[1] != TCP_ESTABLISHED || told[ID_TOLD..ID_TOLD + 36] != ends(at, with) {
                return Ok(None);
            }
            let (uid, inode) = (word(NLMSGHDR + 64)?, word(NLMSGHDR + 68)?);
            Ok((inode != 0).then_some(Told { uid, inode }))
        }
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, accepted) = tokio::join!(
            TcpStream::connect(listener.local_addr().unwrap()),
            listener.accept()
        );
        (client.unwrap(), accepted.unwrap().0)
    }

    #[tokio::test]
    async fn the_owner_of_either_end_is_told() {
        let (client, server) = pair().await;
        assert_eq!(of_other_end(&server).unwrap(), Other::Trusted);
        assert_eq!(of_other_end(&client).unwrap(), Other::Trusted);
    }

    #[tokio::test]
    async fn an_end_that_was_closed_is_nobody() {
        // Half closed: the kernel keeps it, without an owner, and says that it is uid 0's.
        let (client, server) = pair().await;
        drop(client);
        assert!(of_other_end(&server).is_err());
        // Reset, and another connection has the same two ends: what is asked about is not what is there.
        let (client, server) = pair().await;
        let (from, to) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        client.set_zero_linger().unwrap();
        drop(client);
        assert!(of_other_end(&server).is_err());
        let listener = tokio::net::TcpSocket::new_v4().unwrap();
        listener.set_reuseaddr(true).unwrap();
        listener.bind(to).unwrap();
        let listener = listener.listen(1).unwrap();
        let again = tokio::net::TcpSocket::new_v4().unwrap();
        again.set_reuseaddr(true).unwrap();
        again.bind(from).unwrap();
        let again = again.connect(to).await.unwrap();
        assert_eq!(
            server.peer_addr().map_or(from, |a| a),
            again.local_addr().unwrap()
        );
        assert!(of_other_end(&server).is_err());
        assert_eq!(
            of_other_end(&listener.accept().await.unwrap().0).unwrap(),
            Other::Trusted
        );
    }

    #[test]
    fn users_are_told_apart() {
        assert_eq!(sort(0, 1000, || false), Other::Trusted);
        assert_eq!(sort(1000, 1000, || false), Other::Trusted);
        assert_eq!(sort(1001, 1000, || false), Other::User(1001));
        assert_eq!(sort(1001, 0, || true), Other::User(1001));
        assert_eq!(
            sort(OVERFLOW_UID, OVERFLOW_UID, || true),
            Other::Trusted,
            "it is nobody who runs this"
        );
        assert_eq!(
            sort(OVERFLOW_UID, OVERFLOW_UID, || false),
            Other::User(OVERFLOW_UID),
            "anybody outside of the user namespace"
        );
    }

    #[test]
    fn answers_are_checked() {
        let (a, b): (SocketAddrV4, SocketAddrV4) = (
            "127.0.0.1:5".parse().unwrap(),
            "127.0.0.2:6".parse().unwrap(),
        );
        assert!(decode(&[], a, b).is_err());
        assert!(decode(&[0; 15], a, b).is_err());
        let mut answer = vec![0u8; NLMSGHDR + REPLY];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[NLMSGHDR + 1] = TCP_ESTABLISHED;
        answer[NLMSGHDR + ID_TOLD..][..36].copy_from_slice(&ends(a, b));
        answer[NLMSGHDR + 64..][..4].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(
            decode(&answer, a, b).unwrap(),
            None,
            "without an inode it has no owner"
        );
        answer[NLMSGHDR + 68..][..4].copy_from_slice(&9u32.to_ne_bytes());
        assert_eq!(
            decode(&answer, a, b).unwrap(),
            Some(Told { uid: 7, inode: 9 })
        );
        assert_eq!(decode(&answer, b, a).unwrap(), None, "another socket");
        assert!(decode(&answer[..NLMSGHDR + REPLY - 1], a, b).is_err());
        answer[NLMSGHDR + 1] = 10;
        assert_eq!(decode(&answer, a, b).unwrap(), None, "it listens");
    }
}
