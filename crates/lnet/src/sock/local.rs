//! Which of our addresses a peer is reached from.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use crate::{Accept, Nid, NodeConfig, StartError};

/// Port of Lustre's acceptor.
const ACCEPTOR_PORT: u16 = 988;
/// Loopback addresses tried before giving up.
const TRIES: u32 = 4096;

/// The NID of this machine from which `peer` is reached (route lookup; nothing is sent). For peers in 127/8 a free address
/// 127.a.b.c whose acceptor port 988 can be bound, so that several nodes live on one machine.
pub fn local_nid_for(peer: Nid) -> io::Result<Nid> {
    local_nid_on(peer, ACCEPTOR_PORT)
}

/// [`local_nid_for`] with another acceptor port.
pub fn local_nid_on(peer: Nid, port: u16) -> io::Result<Nid> {
    let Some(ip) = peer.ipv4() else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{peer} is on no IP network"),
        ));
    };
    let local = if ip.is_loopback() {
        free_loopback(ip, port)?
    } else {
        routed_from(ip, port)?
    };
    Ok(Nid::new(peer.net(), u32::from(local)))
}

/// Whether one of this machine's interfaces has the address. Only what says so counts: without a free descriptor nothing is known.
pub(crate) fn is_here(ip: Ipv4Addr) -> bool {
    !UdpSocket::bind((ip, 0)).is_err_and(|e| says_gone(&e))
}

/// Keeps an address and port from other nodes of this machine that ask for it, until it is dropped: a socket in the kernel's abstract
/// namespace, which belongs to a network namespace as addresses do. Nodes without an acceptor have nothing else that tells of them.
#[derive(Debug)]
pub(crate) struct Claim(#[expect(dead_code, reason = "its name goes with it")] UnixDatagram);

impl Claim {
    /// Of an address and port. `AddrInUse`: another node has claimed it. None: the kernel gives no such socket, and nobody is
    /// kept out.
    pub(crate) fn on(ip: Ipv4Addr, port: u16) -> io::Result<Option<Claim>> {
        let name = UnixAddr::from_abstract_name(format!("coral-nid/{ip}/{port}"));
        match name.and_then(|name| UnixDatagram::bind_addr(&name)) {
            Ok(socket) => Ok(Some(Claim(socket))),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(e),
            Err(_) => Ok(None),
        }
    }

    /// The same of one where nobody listens, and that this machine has.
    pub(crate) fn on_quiet(ip: Ipv4Addr, port: u16) -> io::Result<Option<Claim>> {
        match TcpListener::bind((ip, port)) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse || says_gone(&e) => Err(e),
            // who may not bind the port is not told who listens
            _ => Claim::on(ip, port),
        }
    }
}

/// Keeps the addresses from other nodes of this machine, if that is asked for. The acceptors are bound.
pub(crate) fn claim(cfg: &NodeConfig) -> Result<Vec<Claim>, StartError> {
    let port = cfg.listen_port.unwrap_or(cfg.connect_port);
    let listens = cfg.listen_port.is_some() && cfg.accept != Accept::None;
    let mut claims = Vec::new();
    for nid in cfg.nids.iter().filter(|_| cfg.alone) {
        let Some(ip) = nid.ipv4() else { continue };
        let claim = match listens {
            true => Claim::on(ip, port),
            false => Claim::on_quiet(ip, port),
        };
        claims.extend(claim.map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => StartError::Taken { nid: *nid, port },
            _ => StartError::NotHere(*nid),
        })?);
    }
    Ok(claims)
}

fn says_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::AddrNotAvailable
}

fn routed_from(peer: Ipv4Addr, port: u16) -> io::Result<Ipv4Addr> {
    let sock = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    sock.connect((peer, port))?;
    match sock.local_addr()? {
        SocketAddr::V4(a) => Ok(*a.ip()),
        SocketAddr::V6(_) => Err(io::Error::from(io::ErrorKind::AddrNotAvailable)),
    }
}

/// A loopback address where nobody listens. Begins at one that depends on our process id, so that processes that start
/// together look in different places. Who may not bind the port has no acceptor, and any address is as good.
fn free_loopback(peer: Ipv4Addr, port: u16) -> io::Result<Ipv4Addr> {
    let first = std::process::id();
    for i in 0..TRIES {
        // 127.1.0.2 to 127.255.255.254: out of the way of addresses people choose by hand.
        let n = first.wrapping_mul(61).wrapping_add(i) % (0x00ff_ffff - 0x0001_0002);
        let ip = Ipv4Addr::from((127 << 24) + 0x0001_0002 + n);
        if ip == peer {
            continue;
        }
        if Claim::on(ip, port).is_err() {
            continue;
        }
        match TcpListener::bind(SocketAddrV4::new(ip, port)) {
            Ok(_) => return Ok(ip),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(ip),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("no free loopback address for port {port}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_peers_get_an_address_of_their_own() {
        let peer: Nid = "127.0.0.2@tcp3".parse().unwrap();
        // A port without privilege, so that the test says the same for every user.
        let nid = local_nid_on(peer, 20988).unwrap();
        assert_eq!(nid.net(), peer.net());
        assert_ne!(nid, peer);
        let ip = nid.ipv4().unwrap();
        assert!(ip.is_loopback());
        let _taken = TcpListener::bind((ip, 20988)).unwrap();
        let other = local_nid_on(peer, 20988).unwrap();
        assert_ne!(other, nid, "a taken address is not given again");
    }

    #[test]
    fn an_address_that_another_node_has_is_not_had_twice() {
        let ip = Ipv4Addr::new(127, 9, 8, 7);
        let (claim, listens) = (20989, 20990);
        let first = Claim::on_quiet(ip, claim).unwrap();
        let taken = |port| Claim::on_quiet(ip, port).err().map(|e| e.kind());
        assert_eq!(taken(claim), Some(io::ErrorKind::AddrInUse));
        drop(first);
        assert_eq!(taken(claim), None);
        let _acceptor = TcpListener::bind((ip, listens)).unwrap();
        assert_eq!(taken(listens), Some(io::ErrorKind::AddrInUse));
        let far = Claim::on_quiet(Ipv4Addr::new(192, 0, 2, 1), claim);
        assert!(far.is_err_and(|e| says_gone(&e)));
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        assert!(is_here(Ipv4Addr::new(127, 9, 9, 9)));
        assert!(
            !is_here(Ipv4Addr::new(192, 0, 2, 1)),
            "an address of documentation"
        );
    }

    #[test]
    fn without_a_descriptor_no_address_is_called_gone() {
        let gone =
            |n: rustix::io::Errno| says_gone(&io::Error::from_raw_os_error(n.raw_os_error()));
        assert!(gone(rustix::io::Errno::ADDRNOTAVAIL));
        assert!(!gone(rustix::io::Errno::MFILE) && !gone(rustix::io::Errno::NOBUFS));
    }

    #[test]
    fn other_networks_have_none() {
        assert!(local_nid_for(Nid::LO).is_err());
    }
}
