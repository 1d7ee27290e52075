//! The handshake of a TCP connection: acceptor request, then HELLO version 3 from either side.
//!
//! lnet/lnet/acceptor.c (`lnet_accept`), lnet/klnds/socklnd/socklnd_proto.c. Codecs and the conversation; what to do about the
//! peer is decided elsewhere.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use coral_wire::Wire;
use coral_wire::lnet::{
    ConnRequest, KSOCK_PROTO_V3, KsockHello, LNET_PROTO_ACCEPTOR_MAGIC,
    LNET_PROTO_ACCEPTOR_VERSION, LNET_PROTO_MAGIC, ctype,
};
use coral_wire::nid::LNET_PID;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::access::{MAX_RESERVED_PORT, MIN_RESERVED_PORT};
use crate::{Accept, Nid};

/// Most interface addresses an old peer may append (`LNET_INTERFACES_NUM`).
const MAX_NIPS: u32 = 16;

/// What a connection carries, as its owner sees it; the other end sees IN and OUT swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnType {
    /// Small messages, both ways.
    Control,
    /// Large messages towards us; acknowledgements of them from us.
    BulkIn,
    /// Large messages from us.
    BulkOut,
}

impl ConnType {
    /// The order in which a connecting side opens them.
    pub(crate) const ALL: [ConnType; 3] = [ConnType::Control, ConnType::BulkIn, ConnType::BulkOut];
    pub(crate) fn wire(self) -> u32 {
        match self {
            ConnType::Control => ctype::CONTROL,
            ConnType::BulkIn => ctype::BULK_IN,
            ConnType::BulkOut => ctype::BULK_OUT,
        }
    }

    /// None for NONE ("try again later"), and for ANY, which version 3 does not have.
    pub(crate) fn from_wire(v: u32) -> Option<ConnType> {
        ConnType::ALL.into_iter().find(|t| t.wire() == v)
    }

    /// The same connection seen from the other end.
    pub(crate) fn inverted(self) -> ConnType {
        match self {
            ConnType::Control => ConnType::Control,
            ConnType::BulkIn => ConnType::BulkOut,
            ConnType::BulkOut => ConnType::BulkIn,
        }
    }
}

/// HELLO of `us` to `peer`; None for the type: try again later. As a kernel's, the answer of an accepting side says nothing
/// of what the peer told about itself.
pub(crate) fn hello(us: Nid, peer: Nid, incarnation: u64, ty: Option<ConnType>) -> KsockHello {
    KsockHello {
        magic: LNET_PROTO_MAGIC,
        version: KSOCK_PROTO_V3,
        src_nid: us,
        dst_nid: peer,
        src_pid: LNET_PID,
        dst_pid: 0,
        src_incarnation: incarnation,
        dst_incarnation: 0,
        ctype: ty.map_or(ctype::NONE, ConnType::wire),
        nips: 0,
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not the protocol of an LNet acceptor: magic {0:#x}")]
    Magic(u32),
    #[error("unknown version {0}")]
    Version(u32),
    #[error("it asked for NID {0}, which is not ours")]
    WrongTarget(Nid),
    #[error("it claims to be {0}")]
    WrongPeer(Nid),
    #[error("connection type {0}")]
    Type(u32),
    #[error("it asks to try again later")]
    Race,
    #[error(
        "what listens at {0} is another user's of this machine (uid {1}), not root's nor of the user who runs this node: with --accept {2} this node does not speak with it; --accept all speaks with everybody"
    )]
    AnotherUsers(SocketAddrV4, u32, Accept),
    #[error("it took the connection and closed it at once; {}", closed_hint(*.0))]
    Closed(u16),
}

impl HandshakeError {
    /// As an I/O error, for the sender that waits.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            HandshakeError::Io(e) => e,
            closed @ HandshakeError::Closed(_) => {
                io::Error::new(io::ErrorKind::ConnectionReset, closed.to_string())
            }
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        }
    }
}

/// What it may mean that an acceptor closes a connection from this port of ours without a word.
fn closed_hint(port: u16) -> &'static str {
    if port > MAX_RESERVED_PORT {
        "perhaps it takes connections only from ports below 1024 (accept=secure; this process may not bind one, or has them all in use), \
         or only those of its own user and root (Coral's --accept user); its log says which: connect as root or as that user, or start \
         it with --accept all"
    } else {
        "perhaps it takes no connections from this machine (Coral's --accept user), or is just stopping; its log says which"
    }
}

/// How to reach a peer's acceptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    pub(crate) local: Nid,
    pub(crate) peer: Nid,
    pub(crate) port: u16,
    pub(crate) secure: bool,
    pub(crate) incarnation: u64,
}

impl Dial {
    /// Opens a connection of type `ty`; the incarnation is the peer's.
    pub(crate) async fn connect(&self, ty: ConnType) -> Result<(TcpStream, u64), HandshakeError> {
        let (Some(from), Some(to)) = (self.local.ipv4(), self.peer.ipv4()) else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        let mut stream = tcp_connect(from, SocketAddrV4::new(to, self.port), self.secure).await?;
        stream.set_nodelay(true)?;
        let port = stream.local_addr()?.port();
        let closed = |e: io::Error| match e.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => HandshakeError::Closed(port),
            _ => e.into(),
        };
        let hello = hello(self.local, self.peer, self.incarnation, Some(ty));
        stream
            .write_all(&[ConnRequest::new(self.peer).to_bytes(), hello.to_bytes()].concat())
            .await
            .map_err(closed)?;
        let answer = read_hello(&mut stream).await.map_err(|e| {
            if let HandshakeError::Io(e) = e {
                closed(e)
            } else {
                e
            }
        })?;
        if answer.version != KSOCK_PROTO_V3 {
            return Err(HandshakeError::Version(answer.version));
        }
        if answer.src_nid != self.peer {
            return Err(HandshakeError::WrongPeer(answer.src_nid));
        }
        match answer.ctype {
            ctype::NONE => Err(HandshakeError::Race),
            t if ConnType::from_wire(t) == Some(ty.inverted()) => {
                Ok((stream, answer.src_incarnation))
            }
            t => Err(HandshakeError::Type(t)),
        }
    }
}

async fn read_hello(stream: &mut TcpStream) -> Result<KsockHello, HandshakeError> {
    let mut b = [0; size_of::<KsockHello>()];
    // An acceptor that speaks another protocol version answers with 16 bytes that begin with its own magic.
    stream.read_exact(&mut b[..4]).await?;
    let magic = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    if magic != LNET_PROTO_MAGIC {
        return Err(HandshakeError::Magic(magic));
    }
    stream.read_exact(&mut b[4..]).await?;
    let hello = KsockHello::decode(&b).map_err(|_| HandshakeError::Magic(magic))?;
    if hello.nips > MAX_NIPS {
        return Err(HandshakeError::Version(hello.version));
    }
    let mut ips = [0; 4 * MAX_NIPS as usize];
    stream
        .read_exact(&mut ips[..4 * hello.nips as usize])
        .await?;
    Ok(hello)
}

/// The accepting side up to the peer's HELLO; the type is the one the connection has for us.
pub(crate) async fn accept(
    stream: &mut TcpStream,
    us: Nid,
    incarnation: u64,
) -> Result<(KsockHello, ConnType), HandshakeError> {
    let mut b = [0; size_of::<ConnRequest>()];
    stream.read_exact(&mut b[..8]).await?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| b[at + i]));
    let (magic, version) = (word(0), word(4));
    if magic != LNET_PROTO_ACCEPTOR_MAGIC {
        return Err(HandshakeError::Magic(magic));
    }
    if version != LNET_PROTO_ACCEPTOR_VERSION {
        // Tells the peer which version we accept; the NID of such an answer is zero.
        stream
            .write_all(&ConnRequest::new(Nid(0)).to_bytes())
            .await?;
        return Err(HandshakeError::Version(version));
    }
    stream.read_exact(&mut b[8..]).await?;
    let target = Nid(u64::from_le_bytes(std::array::from_fn(|i| b[8 + i])));
    if target != us {
        return Err(HandshakeError::WrongTarget(target));
    }
    let theirs = read_hello(stream).await?;
    if theirs.version != KSOCK_PROTO_V3 {
        stream
            .write_all(&hello(us, theirs.src_nid, incarnation, None).to_bytes())
            .await?;
        return Err(HandshakeError::Version(theirs.version));
    }
    if theirs.src_nid == us || theirs.src_nid.net() != us.net() || theirs.src_nid.addr() == 0 {
        return Err(HandshakeError::WrongPeer(theirs.src_nid));
    }
    let ty = ConnType::from_wire(theirs.ctype).ok_or(HandshakeError::Type(theirs.ctype))?;
    Ok((theirs, ty.inverted()))
}

/// Connects from `from`, from a port below 1024 when `secure` and allowed: stock acceptors refuse others.
async fn tcp_connect(from: Ipv4Addr, to: SocketAddrV4, secure: bool) -> io::Result<TcpStream> {
    if secure {
        for port in (MIN_RESERVED_PORT..=MAX_RESERVED_PORT).rev() {
            let sock = match bound_socket(from, port) {
                Ok(sock) => sock,
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => break,
                Err(e) => return Err(e),
            };
            match sock.connect(SocketAddr::V4(to)).await {
                // An earlier connection with the same two ends still lingers.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
                    ) =>
                {
                    continue;
                }
                other => return other,
            }
        }
    }
    bound_socket(from, 0)?.connect(SocketAddr::V4(to)).await
}

fn bound_socket(from: Ipv4Addr, port: u16) -> io::Result<TcpSocket> {
    let sock = TcpSocket::new_v4()?;
    sock.set_reuseaddr(port != 0)?;
    sock.bind(SocketAddr::V4(SocketAddrV4::new(from, port)))?;
    Ok(sock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_as_the_kernel_lays_it_out() {
        let (a, b): (Nid, Nid) = (
            "10.77.0.3@tcp".parse().unwrap(),
            "10.77.0.2@tcp".parse().unwrap(),
        );
        let bytes = hello(a, b, 0x1234_5678_9abc, Some(ConnType::BulkIn)).to_bytes();
        assert_eq!(bytes[0..8], [0x63, 0x69, 0x72, 0x45, 3, 0, 0, 0]);
        assert_eq!(bytes[8..16], [3, 0, 0x4d, 0x0a, 0, 0, 2, 0]);
        assert_eq!(
            bytes[24..32],
            [0x39, 0x30, 0, 0, 0, 0, 0, 0],
            "our pid is 12345, the peer's unknown"
        );
        assert_eq!(bytes[48..52], [2, 0, 0, 0]);
        assert_eq!(hello(a, b, 1, None).to_bytes()[48..52], [0xff; 4]);
    }

    #[test]
    fn types_invert() {
        for t in ConnType::ALL {
            assert_eq!(t.inverted().inverted(), t);
            assert_eq!(ConnType::from_wire(t.wire()), Some(t));
        }
        assert_eq!(ConnType::BulkIn.inverted(), ConnType::BulkOut);
        assert_eq!(ConnType::from_wire(0), None, "ANY is not for version 3");
    }
}
