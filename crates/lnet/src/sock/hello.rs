//! The handshake of a TCP connection: acceptor request, then HELLO version 3 from either side.
//!
//! lnet/lnet/acceptor.c (`lnet_accept`), lnet/klnds/socklnd/socklnd_proto.c. Codecs and the conversation; what to do about the
//! peer is decided elsewhere.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::Nid;
use crate::msg::LNET_PID;

/// Acceptor request, version 1: 16 bytes.
const CONNREQ_LEN: usize = 16;
const CONNREQ_MAGIC: u32 = 0xacce_7100;
const CONNREQ_VERSION: u32 = 1;
/// HELLO without interfaces: 56 bytes.
pub(crate) const HELLO_LEN: usize = 56;
const HELLO_MAGIC: u32 = 0x4572_6963;
const HELLO_VERSION: u32 = 3;
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
    /// "Try again later", where a type is expected (`SOCKLND_CONN_NONE`).
    pub(crate) const WIRE_NONE: i32 = -1;

    pub(crate) fn wire(self) -> i32 {
        match self {
            ConnType::Control => 1,
            ConnType::BulkIn => 2,
            ConnType::BulkOut => 3,
        }
    }

    pub(crate) fn from_wire(v: i32) -> Option<ConnType> {
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

/// HELLO of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) src: Nid,
    pub(crate) dst: Nid,
    pub(crate) src_pid: u32,
    pub(crate) dst_pid: u32,
    pub(crate) src_incarnation: u64,
    pub(crate) dst_incarnation: u64,
    pub(crate) ctype: i32,
    pub(crate) nips: u32,
}

impl Hello {
    pub(crate) fn new(src: Nid, dst: Nid, incarnation: u64, ctype: i32) -> Hello {
        Hello {
            version: HELLO_VERSION,
            src,
            dst,
            src_pid: LNET_PID,
            dst_pid: 0,
            src_incarnation: incarnation,
            dst_incarnation: 0,
            ctype,
            nips: 0,
        }
    }

    /// Our answer to this HELLO. As a kernel's it says nothing of what the peer told.
    pub(crate) fn answer(&self, us: Nid, incarnation: u64, ctype: i32) -> Hello {
        Hello::new(us, self.src, incarnation, ctype)
    }

    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut b = [0; HELLO_LEN];
        let mut put = |at: usize, v: &[u8]| b[at..at + v.len()].copy_from_slice(v);
        put(0, &HELLO_MAGIC.to_le_bytes());
        put(4, &self.version.to_le_bytes());
        put(8, &self.src.0.to_le_bytes());
        put(16, &self.dst.0.to_le_bytes());
        put(24, &self.src_pid.to_le_bytes());
        put(28, &self.dst_pid.to_le_bytes());
        put(32, &self.src_incarnation.to_le_bytes());
        put(40, &self.dst_incarnation.to_le_bytes());
        put(48, &self.ctype.to_le_bytes());
        put(52, &self.nips.to_le_bytes());
        b
    }

    /// None: not a HELLO.
    pub(crate) fn decode(b: &[u8; HELLO_LEN]) -> Option<Hello> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        (word(0) == HELLO_MAGIC).then(|| Hello {
            version: word(4),
            src: Nid(long(8)),
            dst: Nid(long(16)),
            src_pid: word(24),
            dst_pid: word(28),
            src_incarnation: long(32),
            dst_incarnation: long(40),
            ctype: word(48) as i32,
            nips: word(52),
        })
    }
}

/// The first bytes a connecting side sends: whom it wants.
fn encode_connreq(target: Nid) -> [u8; CONNREQ_LEN] {
    let mut b = [0; CONNREQ_LEN];
    b[0..4].copy_from_slice(&CONNREQ_MAGIC.to_le_bytes());
    b[4..8].copy_from_slice(&CONNREQ_VERSION.to_le_bytes());
    b[8..16].copy_from_slice(&target.0.to_le_bytes());
    b
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
    Type(i32),
    #[error("it asks to try again later")]
    Race,
}

impl HandshakeError {
    /// As an I/O error, for the sender that waits.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            HandshakeError::Io(e) => e,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        }
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
    /// Opens a connection of type `ctype`; the incarnation is the peer's.
    pub(crate) async fn connect(&self, ctype: ConnType) -> Result<(TcpStream, u64), HandshakeError> {
        let (Some(from), Some(to)) = (self.local.ipv4(), self.peer.ipv4()) else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        let mut stream = tcp_connect(from, SocketAddrV4::new(to, self.port), self.secure).await?;
        stream.set_nodelay(true)?;
        let mut first = [0u8; CONNREQ_LEN + HELLO_LEN];
        first[..CONNREQ_LEN].copy_from_slice(&encode_connreq(self.peer));
        first[CONNREQ_LEN..].copy_from_slice(&Hello::new(self.local, self.peer, self.incarnation, ctype.wire()).encode());
        stream.write_all(&first).await?;
        let hello = read_hello(&mut stream).await?;
        if hello.version != HELLO_VERSION {
            return Err(HandshakeError::Version(hello.version));
        }
        if hello.src != self.peer {
            return Err(HandshakeError::WrongPeer(hello.src));
        }
        match hello.ctype {
            ConnType::WIRE_NONE => Err(HandshakeError::Race),
            t if ConnType::from_wire(t) == Some(ctype.inverted()) => Ok((stream, hello.src_incarnation)),
            t => Err(HandshakeError::Type(t)),
        }
    }
}

async fn read_hello(stream: &mut TcpStream) -> Result<Hello, HandshakeError> {
    let mut b = [0; HELLO_LEN];
    // An acceptor that speaks another protocol version answers with 16 bytes that begin with its own magic.
    stream.read_exact(&mut b[..4]).await?;
    let magic = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    if magic != HELLO_MAGIC {
        return Err(HandshakeError::Magic(magic));
    }
    stream.read_exact(&mut b[4..]).await?;
    let hello = Hello::decode(&b).ok_or(HandshakeError::Magic(magic))?;
    if hello.nips > MAX_NIPS {
        return Err(HandshakeError::Version(hello.version));
    }
    let mut ips = [0; 4 * MAX_NIPS as usize];
    stream.read_exact(&mut ips[..4 * hello.nips as usize]).await?;
    Ok(hello)
}

/// The accepting side up to the peer's HELLO; the type is the one the connection has for us.
pub(crate) async fn accept(stream: &mut TcpStream, us: Nid, incarnation: u64) -> Result<(Hello, ConnType), HandshakeError> {
    let mut b = [0; CONNREQ_LEN];
    stream.read_exact(&mut b[..8]).await?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| b[at + i]));
    let (magic, version) = (word(0), word(4));
    if magic != CONNREQ_MAGIC {
        return Err(HandshakeError::Magic(magic));
    }
    if version != CONNREQ_VERSION {
        // Tells the peer which version we accept; the NID of such an answer is zero.
        stream.write_all(&encode_connreq(Nid(0))).await?;
        return Err(HandshakeError::Version(version));
    }
    stream.read_exact(&mut b[8..]).await?;
    let target = Nid(u64::from_le_bytes(std::array::from_fn(|i| b[8 + i])));
    if target != us {
        return Err(HandshakeError::WrongTarget(target));
    }
    let hello = read_hello(stream).await?;
    if hello.version != HELLO_VERSION {
        let answer = hello.answer(us, incarnation, ConnType::WIRE_NONE);
        stream.write_all(&answer.encode()).await?;
        return Err(HandshakeError::Version(hello.version));
    }
    if hello.src == us || hello.src.net() != us.net() || hello.src.addr() == 0 {
        return Err(HandshakeError::WrongPeer(hello.src));
    }
    let theirs = ConnType::from_wire(hello.ctype).ok_or(HandshakeError::Type(hello.ctype))?;
    Ok((hello, theirs.inverted()))
}

/// Connects from `from`, from a port below 1024 when `secure` and allowed: stock acceptors refuse others.
async fn tcp_connect(from: Ipv4Addr, to: SocketAddrV4, secure: bool) -> io::Result<TcpStream> {
    if secure {
        for port in (512..=1023).rev() {
            let sock = match bound_socket(from, port) {
                Ok(sock) => sock,
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => break,
                Err(e) => return Err(e),
            };
            match sock.connect(SocketAddr::V4(to)).await {
                // An earlier connection with the same two ends still lingers.
                Err(e) if matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => continue,
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
    fn hello_both_ways() {
        let (a, b): (Nid, Nid) = ("10.77.0.3@tcp".parse().unwrap(), "10.77.0.2@tcp".parse().unwrap());
        let hello = Hello::new(a, b, 0x1234_5678_9abc, ConnType::BulkIn.wire());
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(bytes[0..8], [0x63, 0x69, 0x72, 0x45, 3, 0, 0, 0]);
        assert_eq!(bytes[8..16], [3, 0, 0x4d, 0x0a, 0, 0, 2, 0]);
        assert_eq!(bytes[24..32], [0x39, 0x30, 0, 0, 0, 0, 0, 0], "our pid is 12345, the peer's unknown");
        let answer = hello.answer(b, 77, ConnType::WIRE_NONE);
        assert_eq!((answer.src, answer.dst, answer.src_incarnation), (b, a, 77));
        assert_eq!(answer.encode()[48..52], [0xff; 4]);
        let mut bad = bytes;
        bad[0] = 0;
        assert_eq!(Hello::decode(&bad), None);
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
