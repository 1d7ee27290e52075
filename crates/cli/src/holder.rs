//! Who has the address and port that a node wants.

use crate::lnetctl::find;
use std::fmt;
use std::net::SocketAddr;

/// A process that listens there.
#[derive(Debug, PartialEq)]
pub(crate) struct Holder(u32);

impl Holder {
    /// As far as this user may see it; what the kernel has is no process's.
    pub(crate) fn of(addr: SocketAddr) -> Option<Holder> {
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let socket = format!("socket:[{}]", listener(&table, addr)?);
        let pids = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let has_it = |pid: &u32| {
            let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
            open.into_iter().flatten().flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == socket.as_str()))
        };
        pids.into_iter().find(has_it).map(Holder)
    }

    /// It is Coral and cannot be asked any more: it says goodbye to its servers.
    pub(crate) fn is_ending(&self) -> bool {
        let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        program("self").is_some_and(|own| program(&self.0.to_string()) == Some(own)) && !find::can_be_asked(self.0)
    }
}

/// Its process and what that was started as: with `coral mount`, where it is mounted.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = std::fs::read(format!("/proc/{}/cmdline", self.0)).unwrap_or_default();
        let words: Vec<_> = words.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
        write!(f, "process {}, '{}'", self.0, words.join(" ").trim_end())
    }
}

/// The inode of the socket that listens at `addr`, by a table as that in /proc/net/tcp.
fn listener(table: &str, addr: SocketAddr) -> Option<&str> {
    const LISTENS: &str = "0A";
    let SocketAddr::V4(addr) = addr else { return None };
    let wanted = format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port());
    let any = format!("00000000:{:04X}", addr.port());
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (at, state) = (fields.next()?, fields.nth(1)?);
        (state == LISTENS && (at == wanted || at == any)).then(|| fields.nth(5)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_named() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:03DC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0\n   1: 0100007F:03DD 0200007F:03DC 01 00000000:00000000 00:00000000 00000000     0        0 12346 1 0 100 0 0 10 0\n";
        if cfg!(target_endian = "little") {
            assert_eq!(listener(table, "127.0.0.1:988".parse().unwrap()), Some("12345"));
        }
        assert_eq!(listener(table, "127.0.0.1:989".parse().unwrap()), None, "not one that listens");

        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = Holder::of(own.local_addr().unwrap()).unwrap();
        assert_eq!(holder, Holder(std::process::id()));
        assert!(holder.to_string().starts_with(&format!("process {}, '", std::process::id())));
    }
}
