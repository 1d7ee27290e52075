//! Attributes: modes, owners, times, and who may change them.

use crate::check::{Check, Env, errno, is, must, open, say};
use crate::data::pattern;
use crate::sys::{as_user, is_root, pause};
use libc::*;
use rustix::fs::{CWD, Mode, Timespec, Timestamps, utimensat};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

fn chmod(path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn mode(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(format!("{:o}", fs::symlink_metadata(path)?.mode() & 0o7777))
}

fn set_times(
    path: impl AsRef<Path>,
    atime: (i64, i64),
    mtime: (i64, i64),
) -> rustix::io::Result<()> {
    let t = |(tv_sec, tv_nsec): (i64, i64)| Timespec { tv_sec, tv_nsec };
    utimensat(
        CWD,
        path.as_ref(),
        &Timestamps {
            last_access: t(atime),
            last_modification: t(mtime),
        },
        rustix::fs::AtFlags::empty(),
    )
}

const OMIT: (i64, i64) = (0, rustix::fs::UTIME_OMIT);
const NOW: (i64, i64) = (0, rustix::fs::UTIME_NOW);

fn mtime(m: &Metadata) -> (i64, i64) {
    (m.mtime(), m.mtime_nsec())
}

fn ctime(m: &Metadata) -> (i64, i64) {
    (m.ctime(), m.ctime_nsec())
}

/// Long enough that a time stamp of full seconds moves.
fn next_second() {
    pause(1_100);
}

/// Lets everybody into the check's directory, which is root's.
fn opened(e: &Env, mode: u32) -> io::Result<()> {
    if !is_root() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "needs root"));
    }
    chmod(&e.dir, mode)
}

/// `work` as nobody, in a directory of mode `dir`.
fn nobody(e: &Env, dir: u32, work: impl FnOnce() -> String + Send) -> io::Result<String> {
    opened(e, dir)?;
    as_user(NOBODY, work)
}

pub(crate) const CHECKS: &[Check] = &[
    must("chmod, also setuid, setgid and sticky", "7751", |e| {
        chmod(e.file("f", "")?, 0o7751)?;
        mode(e.p("f"))
    }),
    must("the mode of a new file, less the umask", "ok", |e| {
        let old = rustix::process::umask(Mode::from_raw_mode(0o027));
        let made = rustix::fs::open(
            e.p("f"),
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
            Mode::from_raw_mode(0o666),
        );
        let dir = rustix::fs::mkdir(e.p("d"), Mode::from_raw_mode(0o777));
        rustix::process::umask(old);
        made?;
        dir?;
        let got = format!("{} {}", mode(e.p("f"))?, mode(e.p("d"))?);
        is(got == "640 750", || got)
    }),
    must(
        "a file made without a right for its maker can be written by it",
        "ok",
        |e| {
            let f = rustix::fs::open(
                e.p("f"),
                rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
                Mode::empty(),
            )?;
            Ok(say(fs::File::from(f).write_all(b"x")))
        },
    ),
    must("chown and chgrp", "1001 1002", |e| {
        opened(e, 0o755)?;
        chown(e.file("f", "")?, Some(1001), Some(1002))?;
        let m = fs::metadata(e.p("f"))?;
        Ok(format!("{} {}", m.uid(), m.gid()))
    }),
    must(
        "a setgid directory gives its group on",
        "1002 1002 2755",
        |e| {
            opened(e, 0o755)?;
            chown(e.subdir("d")?, None, Some(1002))?;
            chmod(e.p("d"), 0o2755)?;
            fs::write(e.p("d").join("f"), "")?;
            fs::create_dir(e.p("d").join("d"))?;
            let group = |n: &str| fs::metadata(e.p("d").join(n)).map(|m| m.gid());
            Ok(format!(
                "{} {} {}",
                group("f")?,
                group("d")?,
                mode(e.p("d").join("d"))?
            ))
        },
    ),
    must("a write by another clears setuid and setgid", "777", |e| {
        chmod(e.file("f", "x")?, 0o6777)?;
        nobody(e, 0o777, || {
            say(open(e.p("f"), O_WRONLY).and_then(|mut f| f.write_all(b"y")))
        })?;
        mode(e.p("f"))
    }),
    must("chown clears setuid and setgid", "755", |e| {
        opened(e, 0o755)?;
        chmod(e.file("f", "x")?, 0o6755)?;
        chown(e.p("f"), Some(1001), Some(1001))?;
        mode(e.p("f"))
    }),
    must("another may not read what is not for him", "EACCES", |e| {
        chmod(e.file("f", "x")?, 0o600)?;
        nobody(e, 0o755, || say(fs::read(e.p("f"))))
    }),
    must(
        "another may not make a name where he may not write",
        "EACCES",
        |e| nobody(e, 0o755, || say(fs::write(e.p("f"), ""))),
    ),
    must(
        "another may not look up names where he may not search",
        "EACCES",
        |e| {
            e.file("f", "x")?;
            nobody(e, 0o744, || say(fs::metadata(e.p("f"))))
        },
    ),
    must("another may not chmod", "EPERM", |e| {
        e.file("f", "x")?;
        nobody(e, 0o777, || say(chmod(e.p("f"), 0o777)))
    }),
    must("another may not chown", "EPERM", |e| {
        e.file("f", "x")?;
        nobody(e, 0o777, || say(chown(e.p("f"), Some(NOBODY), None)))
    }),
    must("the owner may not give a file away", "EPERM", |e| {
        nobody(e, 0o777, || {
            say(fs::write(e.p("f"), "").and_then(|()| chown(e.p("f"), Some(0), None)))
        })
    }),
    must("another may not set times", "EPERM", |e| {
        chmod(e.file("f", "x")?, 0o666)?;
        nobody(e, 0o777, || say(set_times(e.p("f"), (1, 0), (1, 0))))
    }),
    must("who may write may set times to now", "ok", |e| {
        chmod(e.file("f", "x")?, 0o666)?;
        nobody(e, 0o777, || say(set_times(e.p("f"), NOW, NOW)))
    }),
    must(
        "in a sticky directory another may not remove",
        "EPERM",
        |e| {
            chmod(e.file("f", "x")?, 0o666)?;
            nobody(e, 0o1777, || say(fs::remove_file(e.p("f"))))
        },
    ),
    must(
        "in a sticky directory another may not rename",
        "EPERM",
        |e| {
            chmod(e.file("f", "x")?, 0o666)?;
            nobody(e, 0o1777, || say(fs::rename(e.p("f"), e.p("g"))))
        },
    ),
    must("another's file belongs to him", "65534 65534", |e| {
        let made = nobody(e, 0o777, || say(fs::write(e.p("f"), "")))?;
        let m = fs::metadata(e.p("f")).map_err(|_| io::Error::other(made))?;
        Ok(format!("{} {}", m.uid(), m.gid()))
    }),
    must(
        "times are set, to the second at least",
        "1000000001 1234567890",
        |e| {
            set_times(e.file("f", "")?, (1_000_000_001, 0), (1_234_567_890, 0))?;
            let m = fs::metadata(e.p("f"))?;
            Ok(format!("{} {}", m.atime(), m.mtime()))
        },
    ),
    must("UTIME_OMIT leaves a time", "ok", |e| {
        set_times(e.file("f", "")?, (1_000, 0), (2_000, 0))?;
        set_times(e.p("f"), (3_000, 0), OMIT)?;
        let m = fs::metadata(e.p("f"))?;
        is((m.atime(), m.mtime()) == (3_000, 2_000), || {
            format!("{} {}", m.atime(), m.mtime())
        })
    }),
    must("times before 1970", "-86400", |e| {
        set_times(e.file("f", "")?, (-86_400, 0), (-86_400, 0))?;
        Ok(fs::metadata(e.p("f"))?.mtime().to_string())
    }),
    must("a write moves mtime and ctime", "ok", |e| {
        let f = e.file("f", "")?;
        let old = fs::metadata(&f)?;
        next_second();
        open(&f, O_WRONLY)?.write_all(b"x")?;
        let new = fs::metadata(&f)?;
        is(
            mtime(&new) > mtime(&old) && ctime(&new) > ctime(&old),
            || "not moved".into(),
        )
    }),
    must("truncate moves mtime", "ok", |e| {
        let f = e.file("f", pattern(10, 1))?;
        let old = fs::metadata(&f)?;
        next_second();
        open(&f, O_WRONLY)?.set_len(3)?;
        is(mtime(&fs::metadata(&f)?) > mtime(&old), || {
            "not moved".into()
        })
    }),
    must(
        "chmod, link and rename move ctime and not mtime",
        "ok",
        |e| {
            let f = e.file("f", "")?;
            let mut out = Vec::new();
            let mut old = fs::metadata(&f)?;
            type Step<'a> = (&'a str, &'a dyn Fn() -> io::Result<()>);
            let steps: [Step; 3] = [
                ("chmod", &|| chmod(e.p("f"), 0o600)),
                ("link", &|| fs::hard_link(e.p("f"), e.p("g"))),
                ("rename", &|| fs::rename(e.p("f"), e.p("h"))),
            ];
            for (name, step) in steps {
                next_second();
                step()?;
                let new = fs::metadata(if name == "rename" { e.p("h") } else { e.p("f") })?;
                if ctime(&new) <= ctime(&old) || mtime(&new) != mtime(&old) {
                    out.push(name);
                }
                old = new;
            }
            is(out.is_empty(), || format!("not so for {}", out.join(", ")))
        },
    ),
    must(
        "a new and a removed name move the directory's mtime",
        "ok",
        |e| {
            let times = || fs::metadata(&e.dir).map(|m| mtime(&m));
            let a = times()?;
            next_second();
            e.file("f", "")?;
            let b = times()?;
            next_second();
            fs::remove_file(e.p("f"))?;
            is(a < b && b < times()?, || "not moved".into())
        },
    ),
    must("mtime of a file written and closed stays", "ok", |e| {
        let f = e.file("f", pattern(100_000, 1))?;
        let a = fs::metadata(&f)?;
        next_second();
        fs::read(&f)?;
        is(mtime(&fs::metadata(&f)?) == mtime(&a), || "moved".into())
    }),
    must("size of a symlink is its text's", "7", |e| {
        std::os::unix::fs::symlink("nowhere", e.p("l"))?;
        Ok(fs::symlink_metadata(e.p("l"))?.len().to_string())
    }),
    must("fstat and stat agree after a write", "ok", |e| {
        let mut f = fs::File::create(e.p("f"))?;
        f.write_all(&pattern(12_345, 1))?;
        let (a, b) = (f.metadata()?, fs::metadata(e.p("f"))?);
        is(
            (a.len(), a.ino(), mtime(&a)) == (b.len(), b.ino(), mtime(&b)),
            || format!("{} and {} bytes", a.len(), b.len()),
        )
    }),
    must("chmod of a name that is not there", "ENOENT", |e| {
        Ok(chmod(e.p("f"), 0o600).map_or_else(|e| errno(&e), |()| "ok".into()))
    }),
];
