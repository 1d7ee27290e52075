//! Extended attributes and POSIX ACLs.

use crate::check::{Check, Env, Seen, is, may, must, say};
use crate::data::{pattern, same};
use crate::sys::{as_user, is_root, xattr_size};
use coral_wire::acl::Acl;
use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

const NAME: &str = "user.conform";
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn set(path: impl AsRef<Path>, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    setxattr(path.as_ref(), name, value, XattrFlags::empty())
}

pub(crate) fn get(path: impl AsRef<Path>, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut room = vec![0; 65_536];
    let n = getxattr(path.as_ref(), name, &mut room[..])?;
    room.truncate(n);
    Ok(room)
}

fn names(path: impl AsRef<Path>) -> io::Result<Vec<String>> {
    let mut room = vec![0; 65_536];
    let n = listxattr(path.as_ref(), &mut room[..])?;
    let all = room[..n].split(|b| *b == 0).filter(|n| !n.is_empty());
    Ok(all
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect())
}

/// A file with the attribute, or an error that says it cannot have any.
fn file(e: &Env) -> io::Result<std::path::PathBuf> {
    let f = e.file("f", "")?;
    set(&f, NAME, b"value")?;
    Ok(f)
}

/// Bytes of an ACL: owner, a user of its own, group, mask, others.
fn acl(user: u32, perm: u16) -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let all = [
        entry(1, 6, u32::MAX),
        entry(2, perm, user),
        entry(4, 0, u32::MAX),
        entry(16, perm, u32::MAX),
        entry(32, 0, u32::MAX),
    ];
    [&2u32.to_le_bytes()[..], &all.concat()].concat()
}

const NOBODY: u32 = 65_534;

fn needs_root() -> io::Result<()> {
    if is_root() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "needs root"))
    }
}

/// What nobody gets who reads `name`, in a directory that all may search.
fn read_as_nobody(e: &Env, name: &str) -> Seen {
    fs::set_permissions(&e.dir, Permissions::from_mode(0o755))?;
    as_user(NOBODY, || say(fs::read(e.p(name))))
}

pub(crate) const CHECKS: &[Check] = &[
    may("a value comes back", "value", |e| {
        Ok(String::from_utf8_lossy(&get(file(e)?, NAME)?).into_owned())
    }),
    may("an empty value is a value", "0", |e| {
        set(file(e)?, NAME, b"")?;
        Ok(get(e.p("f"), NAME)?.len().to_string())
    }),
    may("a value of 3000 bytes", "ok", |e| {
        set(file(e)?, NAME, &pattern(3000, 1))?;
        same(&get(e.p("f"), NAME)?, &pattern(3000, 1))
    }),
    may("XATTR_CREATE where it is", "EEXIST", |e| {
        Ok(say(setxattr(file(e)?, NAME, b"x", XattrFlags::CREATE)))
    }),
    may("XATTR_REPLACE where it is not", "ENODATA", |e| {
        Ok(say(setxattr(
            file(e)?,
            "user.other",
            b"x",
            XattrFlags::REPLACE,
        )))
    }),
    may("read of one that is not there", "ENODATA", |e| {
        Ok(say(get(file(e)?, "user.other")))
    }),
    may("removal, then it is not there", "ok ENODATA", |e| {
        let f = file(e)?;
        Ok(format!(
            "{} {}",
            say(removexattr(&f, NAME)),
            say(get(&f, NAME))
        ))
    }),
    may("removal of one that is not there", "ENODATA", |e| {
        Ok(say(removexattr(file(e)?, "user.other")))
    }),
    may("a buffer too small", "ERANGE", |e| {
        Ok(say(getxattr(file(e)?, NAME, &mut [0u8; 2][..])))
    }),
    may("the size alone", "5", |e| {
        Ok(xattr_size(&file(e)?, NAME)?.to_string())
    }),
    may("the list has what was set", "ok", |e| {
        let f = file(e)?;
        set(&f, "user.second", b"2")?;
        let list = names(&f)?;
        is(
            [NAME, "user.second"]
                .iter()
                .all(|n| list.iter().any(|l| l == n)),
            || list.join(" "),
        )
    }),
    may("on a directory", "value", |e| {
        set(e.subdir("d")?, NAME, b"value")?;
        Ok(String::from_utf8_lossy(&get(e.p("d"), NAME)?).into_owned())
    }),
    may("user.* on a symlink", "EPERM", |e| {
        file(e)?;
        symlink("f", e.p("l"))?;
        Ok(say(lsetxattr(e.p("l"), NAME, b"x", XattrFlags::empty())))
    }),
    may("a name of 256 bytes", "ERANGE", |e| {
        Ok(say(set(
            file(e)?,
            &format!("user.{}", "n".repeat(251)),
            b"",
        )))
    }),
    must("a name space that is none", "EOPNOTSUPP", |e| {
        Ok(say(set(e.file("f", "")?, "nothing.at.all", b"")))
    }),
    may("attributes follow a rename", "value", |e| {
        fs::rename(file(e)?, e.p("g"))?;
        Ok(String::from_utf8_lossy(&get(e.p("g"), NAME)?).into_owned())
    }),
    may("an ACL lets one more user read", "EACCES ok", |e| {
        needs_root()?;
        fs::set_permissions(e.file("f", "x")?, Permissions::from_mode(0o600))?;
        let before = read_as_nobody(e, "f")?;
        set(e.p("f"), ACCESS, &acl(NOBODY, 4))?;
        Ok(format!("{before} {}", read_as_nobody(e, "f")?))
    }),
    may("an ACL's mask shows in the mode", "640", |e| {
        set(e.file("f", "")?, ACCESS, &acl(NOBODY, 4))?;
        Ok(format!("{:o}", fs::metadata(e.p("f"))?.mode() & 0o777))
    }),
    may(
        "chmod changes the mask and others stay out",
        "EACCES",
        |e| {
            needs_root()?;
            set(e.file("f", "x")?, ACCESS, &acl(NOBODY, 4))?;
            fs::set_permissions(e.p("f"), Permissions::from_mode(0o600))?;
            read_as_nobody(e, "f")
        },
    ),
    may("a default ACL is given on", "ok", |e| {
        let d = e.subdir("d")?;
        set(&d, DEFAULT, &acl(NOBODY, 4))?;
        fs::write(d.join("f"), "x")?;
        fs::create_dir(d.join("d"))?;
        let there = |n: &str, which: &str| {
            get(d.join(n), which)
                .ok()
                .and_then(|b| Acl::decode(&b).ok())
                .is_some()
        };
        is(
            there("f", ACCESS) && there("d", ACCESS) && there("d", DEFAULT),
            || "not given on".into(),
        )
    }),
    may("an ACL that is none", "EINVAL", |e| {
        set(e.file("f", "")?, ACCESS, &acl(NOBODY, 4))?;
        Ok(say(set(e.p("f"), ACCESS, b"\x02\0\0\0xyz")))
    }),
    may("a default ACL on a file", "EACCES", |e| {
        set(e.file("f", "")?, ACCESS, &acl(NOBODY, 4))?;
        Ok(say(set(e.p("f"), DEFAULT, &acl(NOBODY, 4))))
    }),
    may("an ACL of a symlink itself", "EOPNOTSUPP or ENODATA", |e| {
        symlink("f", e.p("l"))?;
        Ok(say(lgetxattr(e.p("l"), ACCESS, &mut [0u8; 100][..])))
    }),
];
