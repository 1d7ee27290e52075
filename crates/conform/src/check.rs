//! A check, the directory it works in, and the words in which it says what it saw.

use crate::report::{CheckState, Row};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What is checked.
#[derive(Clone, Debug)]
pub struct Place {
    /// A directory of the file system, writable.
    pub mount: PathBuf,
    /// The same directory through a second mount, of another client.
    pub second: Option<PathBuf>,
    /// Shell command that restarts the servers and returns when they have been started.
    pub restart: Option<String>,
}

/// Where one check works.
pub(crate) struct Env {
    /// Its own empty directory.
    pub dir: PathBuf,
    /// The same through the second mount; `dir` itself when there is none.
    pub other: PathBuf,
    /// See [`Place::restart`].
    pub restart: Option<String>,
}

/// What a check saw, in words; an error is something that had to work first and did not.
pub(crate) type Seen = io::Result<String>;

/// One check.
pub(crate) struct Check {
    pub name: &'static str,
    /// What must be seen; alternatives are separated by ` or `.
    pub expected: &'static str,
    /// The file system may not have it at all: EOPNOTSUPP, ENOSYS, ENOTTY, EINVAL or a lack of rights is no difference.
    pub may_lack: bool,
    pub run: fn(&Env) -> Seen,
}

/// A check that every file system must pass.
pub(crate) const fn must(
    name: &'static str,
    expected: &'static str,
    run: fn(&Env) -> Seen,
) -> Check {
    Check {
        name,
        expected,
        may_lack: false,
        run,
    }
}

/// A check of something that a file system may lack.
pub(crate) const fn may(
    name: &'static str,
    expected: &'static str,
    run: fn(&Env) -> Seen,
) -> Check {
    Check {
        name,
        expected,
        may_lack: true,
        run,
    }
}

impl Env {
    pub(crate) fn new(place: &Place, dir: &Path) -> Env {
        let mount = place.mount.join(dir);
        let other = place
            .second
            .as_ref()
            .map_or_else(|| mount.clone(), |s| s.join(dir));
        Env {
            dir: mount,
            other,
            restart: place.restart.clone(),
        }
    }

    /// A name in the directory.
    pub(crate) fn p(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The same name through the other mount.
    pub(crate) fn o(&self, name: &str) -> PathBuf {
        self.other.join(name)
    }

    /// A new file with `text` in it.
    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.p(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// A new directory.
    pub(crate) fn subdir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.p(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Check {
    pub(crate) fn run(&self, group: &'static str, env: &Env) -> Row {
        let seen = std::fs::create_dir(&env.dir).and_then(|()| (self.run)(env));
        let _ = std::fs::remove_dir_all(&env.dir);
        let (seen, lack, no_right) = match seen {
            Ok(s) => {
                let lack = lacking(&s);
                (s, lack, false)
            }
            Err(e) if e.kind() == io::ErrorKind::Unsupported && e.raw_os_error().is_none() => {
                (e.to_string(), true, true)
            }
            Err(e) => (
                format!("before that: {}", errno(&e)),
                lacking(&errno(&e)),
                false,
            ),
        };
        let state = match self.expected.split(" or ").any(|x| x == seen) {
            true => CheckState::Ok,
            false if no_right || self.may_lack && lack => CheckState::NotSupported,
            false => CheckState::Differs,
        };
        Row {
            group,
            check: self.name,
            state,
            expected: self.expected,
            seen,
        }
    }
}

/// Whether the words say that a thing is not there.
fn lacking(seen: &str) -> bool {
    matches!(seen, "EOPNOTSUPP" | "ENOSYS" | "ENOTTY" | "EINVAL")
}

/// Name of an error number.
pub(crate) fn errno(e: &io::Error) -> String {
    let Some(n) = e.raw_os_error() else {
        return e.to_string();
    };
    let name = NAMES.iter().find(|(v, _)| *v == n).map(|(_, s)| *s);
    name.map_or_else(|| format!("errno {n}"), str::to_string)
}

macro_rules! names {
    ($($n:ident)*) => { const NAMES: &[(i32, &str)] = &[$((libc::$n, stringify!($n))),*]; };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY
    ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EPROTO EOVERFLOW EOPNOTSUPP
    ETIMEDOUT ENOTCONN ESTALE EREMOTEIO EDQUOT ECANCELED ESHUTDOWN ERANGE
}

/// `ok`, or the error's name.
pub(crate) fn say<T, E: Into<io::Error>>(r: Result<T, E>) -> String {
    match r {
        Ok(_) => "ok".into(),
        Err(e) => errno(&e.into()),
    }
}

/// `ok` when `good`, else what was seen instead.
pub(crate) fn is(good: bool, otherwise: impl FnOnce() -> String) -> Seen {
    Ok(if good { "ok".into() } else { otherwise() })
}

/// Opens with flags of `libc`.
pub(crate) fn open(path: impl AsRef<Path>, flags: i32) -> io::Result<File> {
    let write = flags & (libc::O_WRONLY | libc::O_RDWR) != 0;
    let read = flags & libc::O_WRONLY == 0;
    let create = flags & libc::O_CREAT != 0;
    let rest =
        flags & !(libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL);
    let mut o = OpenOptions::new();
    o.read(read).write(write).mode(0o644).custom_flags(rest);
    match flags & libc::O_EXCL != 0 && create {
        true => o.create_new(true),
        false => o.create(create).truncate(flags & libc::O_TRUNC != 0),
    };
    o.open(path)
}
