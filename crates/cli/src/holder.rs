//! Who has the address and port that a node wants.

use crate::args::{Cli, Command};
use crate::client::mount_helper_args;
use crate::lnetctl::find;
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A process that listens there.
#[derive(Debug, PartialEq)]
pub(crate) struct Holder(u32);

impl Holder {
    /// As far as this user may see it; what the kernel has is no process's.
    pub(crate) fn of(addr: SocketAddr) -> Option<Holder> {
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let socket = format!("socket:[{}]", listener(&table, addr)?);
        let pids = std::fs::read_dir("/proc")
            .ok()?
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse().ok());
        let has_it = |pid: &u32| {
            let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
            open.into_iter().flatten().flatten().any(|fd| {
                std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == socket.as_str())
            })
        };
        pids.into_iter().find(has_it).map(Holder)
    }

    /// It is Coral and cannot be asked any more, or is a mount that is none any more: it says goodbye to its servers, or is about
    /// to.
    pub(crate) fn is_ending(&self) -> bool {
        let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let coral = program("self").is_some_and(|own| program(&self.0.to_string()) == Some(own));
        coral && (!find::can_be_asked(self.0) || self.is_unmounted())
    }

    /// A `coral mount` whose mount point has no Coral file system: it was unmounted and the process has not seen it yet, or it
    /// is not mounted yet.
    fn is_unmounted(&self) -> bool {
        let Some(at) = mount_point(self.words()) else {
            return false;
        };
        let Ok(cwd) = std::fs::read_link(format!("/proc/{}/cwd", self.0)) else {
            return false;
        };
        let at = cwd.join(at);
        let at = at.canonicalize().unwrap_or(at);
        std::fs::read_to_string(format!("/proc/{}/mountinfo", self.0))
            .is_ok_and(|text| !coral_fuse::is_mounted(&text, &at))
    }

    /// What it was started as.
    fn words(&self) -> Vec<OsString> {
        let words = std::fs::read(format!("/proc/{}/cmdline", self.0)).unwrap_or_default();
        words
            .split(|b| *b == 0)
            .filter(|w| !w.is_empty())
            .map(|w| OsStr::from_bytes(w).to_owned())
            .collect()
    }
}

/// Its process and what that was started as: with `coral mount`, where it is mounted.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self
            .words()
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect();
        write!(f, "process {}, '{}'", self.0, words.join(" "))
    }
}

/// Where the command `words` mounts, if it is `coral mount` or the helper of mount(8).
fn mount_point(words: Vec<OsString>) -> Option<PathBuf> {
    let name = Path::new(words.first()?)
        .file_name()?
        .to_string_lossy()
        .into_owned();
    let words = if name.starts_with("mount.") {
        mount_helper_args(words)
    } else {
        words
    };
    match Cli::try_parse_from(words).ok()?.command {
        Command::Mount(m) => Some(m.mountpoint),
        _ => None,
    }
}

/// The inode of the socket that listens at `addr`, by a table as that in /proc/net/tcp.
fn listener(table: &str, addr: SocketAddr) -> Option<&str> {
    const LISTENS: &str = "0A";
    let SocketAddr::V4(addr) = addr else {
        return None;
    };
    let wanted = format!(
        "{:08X}:{:04X}",
        u32::from_ne_bytes(addr.ip().octets()),
        addr.port()
    );
    let any = format!("00000000:{:04X}", addr.port());
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (at, state) = (fields.next()?, fields.nth(1)?);
        (state == LISTENS && (at == wanted || at == any))
            .then(|| fields.nth(5))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_command_line() {
        let of = |text: &str| mount_point(text.split(' ').map(OsString::from).collect());
        assert_eq!(
            of("/x/coral mount 10.0.0.1@tcp:/fs /mnt --port 7 --foreground"),
            Some("/mnt".into())
        );
        assert_eq!(
            of("/sbin/mount.coral 10.0.0.1@tcp:/fs mnt -o rw,port=7 --foreground"),
            Some("mnt".into())
        );
        assert_eq!(of("/x/coral up /data --mount /mnt"), None);
    }

    #[test]
    fn who_listens_is_named() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:03DC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0\n   1: 0100007F:03DD 0200007F:03DC 01 00000000:00000000 00:00000000 00000000     0        0 12346 1 0 100 0 0 10 0\n";
        if cfg!(target_endian = "little") {
            assert_eq!(
                listener(table, "127.0.0.1:988".parse().unwrap()),
                Some("12345")
            );
        }
        assert_eq!(
            listener(table, "127.0.0.1:989".parse().unwrap()),
            None,
            "not one that listens"
        );

        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = Holder::of(own.local_addr().unwrap()).unwrap();
        assert_eq!(holder, Holder(std::process::id()));
        assert!(
            holder
                .to_string()
                .starts_with(&format!("process {}, '", std::process::id()))
        );
    }
}
