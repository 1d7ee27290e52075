//! Whether a client on this machine still runs: a socket in the kernel's abstract namespace, named by the client's uuid,
//! that goes with its process, however that ends.
//!
//! The name belongs to a network namespace, as the loopback addresses do: who was reached over 127.0.0.0/8 had its socket
//! where a server there sees it. So a server that once saw the socket of such a client, and sees none now, knows that the
//! client is gone. Of clients that were reached otherwise, or whose socket was never seen, nothing is known.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use coral_lnet::Nid;

/// The name of the socket of client `uuid`.
fn name(uuid: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("coral-client/{uuid}"))
}

/// A client of this process that runs; dropped: it does not.
#[derive(Debug)]
pub struct Alive {
    _socket: UnixDatagram,
}

impl Alive {
    /// Client `uuid` runs from here on. None where that cannot be said: servers then know nothing of its end.
    pub fn announce(uuid: &str) -> Option<Alive> {
        let socket = name(uuid).and_then(|name| UnixDatagram::bind_addr(&name));
        match socket {
            Ok(socket) => Some(Alive { _socket: socket }),
            Err(error) => {
                tracing::debug!(uuid, %error, "servers on this machine will not see when this client ends");
                None
            }
        }
    }
}

/// What can be said of a client of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its socket is there.
    Runs,
    /// It is not.
    NoSocket,
    /// It could not be looked for, or would not be seen here.
    Unknown,
}

/// Looks for the socket of client `uuid`, which was reached at `nid`.
pub fn look(uuid: &str, nid: Nid) -> Life {
    if !nid.ipv4().is_some_and(|ip| ip.is_loopback()) {
        return Life::Unknown;
    }
    let found = UnixDatagram::unbound().and_then(|s| s.connect_addr(&name(uuid)?));
    match found {
        Ok(()) => Life::Runs,
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Life::NoSocket,
        Err(_) => Life::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_seen_while_it_runs_and_only_over_loopback() {
        let here: Nid = "127.0.0.3@tcp".parse().expect("a NID");
        let uuid = format!("test-{}", std::process::id());
        assert_eq!(look(&uuid, here), Life::NoSocket);
        let alive = Alive::announce(&uuid).expect("a socket");
        assert!(Alive::announce(&uuid).is_none(), "the name is taken");
        assert_eq!(look(&uuid, here), Life::Runs);
        assert_eq!(
            look(&uuid, "10.0.0.3@tcp".parse().expect("a NID")),
            Life::Unknown
        );
        drop(alive);
        assert_eq!(look(&uuid, here), Life::NoSocket);
    }
}
