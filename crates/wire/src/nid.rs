//! Network identifiers (`lnet/include/uapi/linux/lnet/nidstr.h`, `lnet/lnet/nidstrings.c`).
//!
//! A NID of the short form is 64 bits: network type and number above, address below. IPv6 (large) NIDs are not spoken.

use core::fmt;
use core::str::FromStr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// TCP network 0: type 2 (SOCKLND) in the high half.
pub const NET_TCP: u32 = 0x2_0000;
/// The loopback network, type 9.
pub const NET_LO: u32 = 0x9_0000;
/// The LNet process id of everything that speaks as a kernel does.
pub const LNET_PID: u32 = 12345;

/// Network types with a name and whether their addresses are IPv4 (`libcfs_netstrfns`).
const NET_TYPES: &[(u32, &str, bool)] = &[
    (2, "tcp", true),
    (5, "o2ib", true),
    (9, "lo", false),
    (13, "gni", false),
    (15, "ptlf", false),
    (16, "kfi", false),
];

/// A node's address on one LNet network, as on the wire.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct Nid(pub u64);

impl Nid {
    /// `0@lo`: this node itself.
    pub const LO: Nid = Nid((NET_LO as u64) << 32);
    /// Any node: all bits set.
    pub const ANY: Nid = Nid(u64::MAX);

    /// From a network (type in the high half, number in the low) and an address.
    pub const fn new(net: u32, addr: u32) -> Nid {
        Nid(((net as u64) << 32) | addr as u64)
    }

    /// An IPv4 address on network `tcpN`.
    pub fn tcp(number: u16, addr: std::net::Ipv4Addr) -> Nid {
        Nid::new(NET_TCP | number as u32, u32::from(addr))
    }

    /// The network: type and number.
    pub const fn net(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The address within the network.
    pub const fn addr(self) -> u32 {
        self.0 as u32
    }

    /// The IPv4 address, for networks that use them.
    pub fn ipv4(self) -> Option<std::net::Ipv4Addr> {
        let ty = self.net() >> 16;
        NET_TYPES
            .iter()
            .any(|(t, _, ip)| *t == ty && *ip)
            .then(|| self.addr().into())
    }

    /// Whether this is on the loopback network (`0@lo` or an in-process `N@lo`).
    pub const fn is_lo(self) -> bool {
        self.net() >> 16 == NET_LO >> 16
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Nid::ANY {
            return f.write_str("<?>");
        }
        let (ty, number) = (self.net() >> 16, self.net() & 0xffff);
        let known = NET_TYPES.iter().find(|(t, _, _)| *t == ty);
        match known {
            Some((_, _, true)) => write!(f, "{}@", std::net::Ipv4Addr::from(self.addr()))?,
            _ => write!(f, "{}@", self.addr())?,
        }
        match known {
            Some((_, name, _)) => f.write_str(name)?,
            None => write!(f, "<{ty}>")?,
        }
        if number != 0 {
            write!(f, "{number}")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no NID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no NID: expected ADDRESS@NETWORK, like 10.0.0.1@tcp or 0@lo")]
pub struct NidParseError(pub String);

impl FromStr for Nid {
    type Err = NidParseError;

    /// `10.0.0.1@tcp`, `10.0.0.1@tcp2`, `0@lo`; without `@` the network is `tcp`.
    fn from_str(s: &str) -> Result<Nid, NidParseError> {
        let bad = || NidParseError(s.to_string());
        let (addr, net) = s.trim().split_once('@').unwrap_or((s.trim(), "tcp"));
        // "o2ib" holds a digit, so the longest known prefix decides.
        let (ty, name, ip) = NET_TYPES
            .iter()
            .find(|(_, n, _)| net.starts_with(n))
            .ok_or_else(bad)?;
        let number = match &net[name.len()..] {
            "" => 0,
            n => n.parse::<u16>().map_err(|_| bad())?,
        };
        let addr = if *ip {
            u32::from(addr.parse::<std::net::Ipv4Addr>().map_err(|_| bad())?)
        } else {
            addr.parse::<u32>().map_err(|_| bad())?
        };
        Ok(Nid::new((ty << 16) | number as u32, addr))
    }
}

/// A process on a node: what an LNet header addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId {
    /// The node.
    pub nid: Nid,
    /// The LNet pid, [`LNET_PID`] in practice.
    pub pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_both_ways() {
        for (text, raw) in [
            ("127.0.0.1@tcp", 0x0002_0000_7f00_0001),
            ("10.0.0.1@tcp1", 0x0002_0001_0a00_0001),
            ("0@lo", 0x0009_0000_0000_0000),
            ("7@lo", 0x0009_0000_0000_0007),
            ("10.1.2.3@o2ib", 0x0005_0000_0a01_0203),
            ("10.1.2.3@o2ib4", 0x0005_0004_0a01_0203),
        ] {
            let nid: Nid = text.parse().unwrap();
            assert_eq!(nid, Nid(raw), "{text}");
            assert_eq!(nid.to_string(), text);
        }
        for bad in [
            "",
            "x@tcp",
            "1.2.3@tcp",
            "10.0.0.1@tcpx",
            "10.0.0.1@nonet",
            "@",
            "1.2.3.4@tcp99999",
        ] {
            assert!(bad.parse::<Nid>().is_err(), "{bad}");
        }
        assert_eq!(
            "10.0.0.1".parse::<Nid>().unwrap(),
            Nid(0x0002_0000_0a00_0001)
        );
        assert_eq!(
            Nid(0x0002_0000_0a00_0001).ipv4(),
            Some([10, 0, 0, 1].into())
        );
        assert_eq!(Nid::LO.ipv4(), None);
    }
}
