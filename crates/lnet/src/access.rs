//! Whose connections a node takes, and what it knows of who is at the other end of one.
//!
//! What a peer says of itself (its NID, its users) is believed, as in Lustre. So what counts is which program may be a peer: an
//! ordinary user of a machine must not be one, since he could say that he is root. [`Accept`] is the rule, [`KnownBy`] what was
//! found out when the connection was made. Keys (SSK, GSS flavours) would be further ways to be known.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::str::FromStr;

/// Highest port that the system gives to root only (`LNET_ACCEPTOR_MAX_RESERVED_PORT`).
pub(crate) const MAX_RESERVED_PORT: u16 = 1023;
/// Lowest port that outgoing connections are bound to (`LNET_ACCEPTOR_MIN_RESERVED_PORT`).
pub(crate) const MIN_RESERVED_PORT: u16 = 512;
/// First port that ordinary users of this network namespace may bind.
const PORT_START: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// CAP_NET_BIND_SERVICE, linux/capability.h.
const NET_BIND_SERVICE: u32 = 10;

/// Whose connections a node takes (`accept` of lnet/lnet/acceptor.c, which has no [`Accept::User`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// From ports below 1024. On a machine that gives such ports to ordinary users, its own connections are judged as for `User`.
    Secure,
    /// From this machine, of root and of the user who runs this process; from elsewhere none.
    #[default]
    User,
    /// All.
    All,
    /// None: there is no acceptor.
    None,
}

/// How a node knows who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// It is in this process.
    Process,
    /// The kernel says that its socket on this machine is root's, or of the user who runs this process.
    User,
    /// It has a port below 1024 on its machine.
    ReservedPort,
    /// On another machine: we opened the connection to its address.
    Dialed,
    /// By nothing but its word.
    Nothing,
}

impl Accept {
    /// What a node does when nothing is said: [`Accept::Secure`] with the privilege to bind ports below 1024 in this network
    /// namespace, else [`Accept::User`]. Root of an ordinary user's namespace (`unshare -Ur`) has no such privilege.
    pub fn of_this_process() -> Accept {
        if may_bind_reserved() {
            Accept::Secure
        } else {
            Accept::User
        }
    }

    /// Whether a new client may connect that is known by `known`.
    pub fn admits(self, known: KnownBy) -> bool {
        match (self, known) {
            (Accept::All, _) | (_, KnownBy::Process) => true,
            (Accept::Secure, known) => known != KnownBy::Nothing,
            (Accept::User, known) => known == KnownBy::User,
            // Nobody comes in, so that only who was called can speak.
            (Accept::None, known) => known != KnownBy::Nothing,
        }
    }

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Accept::Secure => "secure",
            Accept::User => "user",
            Accept::All => "all",
            Accept::None => "none",
        }
    }
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Accept {
    type Err = String;

    fn from_str(text: &str) -> Result<Accept, String> {
        let all = [Accept::Secure, Accept::User, Accept::All, Accept::None];
        all.into_iter()
            .find(|a| a.name() == text)
            .ok_or_else(|| format!("'{text}' is not one of secure, user, all or none"))
    }
}

/// Why a connection is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "from port {0}, which any user of that machine may bind, and --accept secure takes ports below 1024 only, which are root's; connect as root, or start this node with --accept all"
    )]
    Port(u16),
    #[error(
        "it is user {0}'s of this machine, and --accept {1} takes only connections of root and of the user who runs this node; --accept all takes everybody's"
    )]
    OtherUser(u32, Accept),
    #[error(
        "it is nobody's on this machine, and --accept user takes none from other machines and network namespaces; --accept all takes everybody's"
    )]
    Elsewhere,
    #[error(
        "the kernel does not say whose it is ({0}), and --accept {1} goes by that; --accept all takes everybody's"
    )]
    NotTold(io::Error, Accept),
    #[error("--accept none takes no connections")]
    None,
}

/// Who is at the other end of a connection, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// Root, or the user who runs this process.
    Trusted,
    /// Another user of this machine.
    User(u32),
    /// No socket of this machine and network namespace.
    Elsewhere,
}

/// Whether a connection from `theirs` is taken, and what is then known of it. `other` asks the kernel.
pub(crate) fn judge(
    accept: Accept,
    theirs: SocketAddrV4,
    port_start: u16,
    other: impl FnOnce() -> io::Result<Other>,
) -> Result<KnownBy, Refusal> {
    let port = theirs.port();
    let owned = |other: io::Result<Other>, elsewhere| match other {
        Ok(Other::Trusted) => Ok(KnownBy::User),
        Ok(Other::User(uid)) => Err(Refusal::OtherUser(uid, accept)),
        Ok(Other::Elsewhere) => elsewhere,
        Err(e) => Err(Refusal::NotTold(e, accept)),
    };
    match accept {
        Accept::All if port <= MAX_RESERVED_PORT => Ok(KnownBy::ReservedPort),
        Accept::All => Ok(KnownBy::Nothing),
        Accept::None => Err(Refusal::None),
        Accept::Secure if port > MAX_RESERVED_PORT => Err(Refusal::Port(port)),
        Accept::Secure if port < port_start => Ok(KnownBy::ReservedPort),
        Accept::Secure => owned(other(), Ok(KnownBy::ReservedPort)),
        Accept::User => owned(other(), Err(Refusal::Elsewhere)),
    }
}

/// What is known of a peer that we connected to at `theirs`; an error: what listens there is this user's of this machine, who is
/// neither root nor who runs this process.
pub(crate) fn known_of_dialed(
    theirs: SocketAddrV4,
    port_start: u16,
    other: io::Result<Other>,
) -> Result<KnownBy, u32> {
    let reserved = theirs.port() <= MAX_RESERVED_PORT;
    match other {
        Ok(Other::Trusted) => Ok(KnownBy::User),
        Ok(Other::User(uid)) => Err(uid),
        Ok(Other::Elsewhere) if reserved => Ok(KnownBy::ReservedPort),
        Ok(Other::Elsewhere) => Ok(KnownBy::Dialed),
        Err(_) if reserved && theirs.port() < port_start => Ok(KnownBy::ReservedPort),
        Err(_) => Ok(KnownBy::Nothing),
    }
}

/// First port that ordinary users may bind; what cannot be read is as the kernel has it by default.
pub(crate) fn unprivileged_port_start() -> u16 {
    let text = std::fs::read_to_string(PORT_START).unwrap_or_default();
    text.trim().parse().unwrap_or(MAX_RESERVED_PORT + 1)
}

/// Whether this process may bind ports that ordinary users may not. The bind itself is tried: a capability of a user namespace
/// says nothing about the network it is in.
fn may_bind_reserved() -> bool {
    let ports =
        MIN_RESERVED_PORT..=MAX_RESERVED_PORT.min(unprivileged_port_start().saturating_sub(1));
    for port in ports.rev() {
        match TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)) {
            Ok(_) => return true,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return false,
            Err(_) => {}
        }
    }
    has_net_bind_service()
}

fn has_net_bind_service() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|l| u64::from_str_radix(l.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|caps| caps & 1 << NET_BIND_SERVICE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
    }

    fn never() -> io::Result<Other> {
        panic!("the kernel is not asked")
    }

    #[test]
    fn words_are_read_back() {
        for a in [Accept::Secure, Accept::User, Accept::All, Accept::None] {
            assert_eq!(a.to_string().parse(), Ok(a));
        }
        assert!(
            "Secure"
                .parse::<Accept>()
                .unwrap_err()
                .contains("secure, user, all or none")
        );
    }

    #[test]
    fn secure_goes_by_the_port_and_where_users_may_have_it_by_the_owner() {
        let judge = |port, start, other: fn() -> io::Result<Other>| {
            judge(Accept::Secure, addr(port), start, other)
        };
        assert!(matches!(judge(1024, 1024, never), Err(Refusal::Port(1024))));
        assert!(matches!(
            judge(40_000, 0, never),
            Err(Refusal::Port(40_000))
        ));
        assert!(matches!(
            judge(1023, 1024, never),
            Ok(KnownBy::ReservedPort)
        ));
        // a container engine gave all ports to everybody
        assert!(matches!(
            judge(1000, 0, || Ok(Other::User(7))),
            Err(Refusal::OtherUser(7, Accept::Secure))
        ));
        assert!(matches!(
            judge(1000, 0, || Ok(Other::Trusted)),
            Ok(KnownBy::User)
        ));
        assert!(matches!(
            judge(1000, 0, || Ok(Other::Elsewhere)),
            Ok(KnownBy::ReservedPort)
        ));
        assert!(matches!(
            judge(1000, 0, || Err(io::ErrorKind::Other.into())),
            Err(Refusal::NotTold(..))
        ));
    }

    #[test]
    fn user_goes_by_the_owner_alone() {
        let judge =
            |port, other: fn() -> io::Result<Other>| judge(Accept::User, addr(port), 1024, other);
        for port in [600, 40_000] {
            assert!(matches!(
                judge(port, || Ok(Other::Trusted)),
                Ok(KnownBy::User)
            ));
            assert!(matches!(
                judge(port, || Ok(Other::User(7))),
                Err(Refusal::OtherUser(7, Accept::User))
            ));
            assert!(matches!(
                judge(port, || Ok(Other::Elsewhere)),
                Err(Refusal::Elsewhere)
            ));
            assert!(matches!(
                judge(port, || Err(io::ErrorKind::Other.into())),
                Err(Refusal::NotTold(..))
            ));
        }
    }

    #[test]
    fn all_and_none() {
        assert!(matches!(
            judge(Accept::All, addr(600), 1024, never),
            Ok(KnownBy::ReservedPort)
        ));
        assert!(matches!(
            judge(Accept::All, addr(6000), 1024, never),
            Ok(KnownBy::Nothing)
        ));
        assert!(matches!(
            judge(Accept::None, addr(600), 1024, never),
            Err(Refusal::None)
        ));
    }

    #[test]
    fn whom_we_called_is_no_user_of_ours() {
        let silent = || Err(io::ErrorKind::Other.into());
        for port in [988, 9988] {
            assert_eq!(
                known_of_dialed(addr(port), 1024, Ok(Other::User(7))),
                Err(7)
            );
            assert_eq!(
                known_of_dialed(addr(port), 1024, Ok(Other::Trusted)),
                Ok(KnownBy::User)
            );
        }
        assert_eq!(
            known_of_dialed(addr(988), 1024, Ok(Other::Elsewhere)),
            Ok(KnownBy::ReservedPort)
        );
        assert_eq!(
            known_of_dialed(addr(9988), 1024, Ok(Other::Elsewhere)),
            Ok(KnownBy::Dialed)
        );
        assert_eq!(
            known_of_dialed(addr(988), 1024, silent()),
            Ok(KnownBy::ReservedPort)
        );
        assert_eq!(
            known_of_dialed(addr(988), 0, silent()),
            Ok(KnownBy::Nothing)
        );
        assert_eq!(
            known_of_dialed(addr(9988), 1024, silent()),
            Ok(KnownBy::Nothing)
        );
    }

    /// The whole table of who may connect as a client, so that a change of it is seen.
    #[test]
    fn clients_are_admitted_as_their_connections_would_be() {
        use KnownBy::*;
        let row = |a: Accept| [Process, User, ReservedPort, Dialed, Nothing].map(|k| a.admits(k));
        assert_eq!(row(Accept::Secure), [true, true, true, true, false]);
        assert_eq!(row(Accept::User), [true, true, false, false, false]);
        assert_eq!(row(Accept::All), [true; 5]);
        assert_eq!(row(Accept::None), [true, true, true, true, false]);
    }
}
