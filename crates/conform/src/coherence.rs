//! Two clients: what one did, the other sees, at once and without being asked to look again.

use crate::check::{Check, Env, errno, is, must, open, say};
use crate::data::{pattern, same};
use crate::locks::{two, waits};
use crate::sys::{Lock, Map, lock, test_lock};
use libc::*;
use rustix::fs::{FlockOperation, XattrFlags, flock, setxattr};
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

fn listed(e: &Env) -> io::Result<usize> {
    Ok(fs::read_dir(&e.other)?.count())
}

pub(crate) const CHECKS: &[Check] = &[
    must("a new file is there", "text", |e| {
        e.file("f", "text")?;
        fs::read_to_string(e.o("f"))
    }),
    must(
        "a name once looked for in vain is there when made",
        "ENOENT ok",
        |e| {
            let before = say(fs::metadata(e.o("f")));
            e.file("f", "")?;
            Ok(format!("{before} {}", say(fs::metadata(e.o("f")))))
        },
    ),
    must("a removed file is gone", "ok ENOENT", |e| {
        let f = e.file("f", "")?;
        let before = say(fs::metadata(e.o("f")));
        fs::remove_file(f)?;
        Ok(format!("{before} {}", say(fs::metadata(e.o("f")))))
    }),
    must("a renamed file has its new name only", "ENOENT ok", |e| {
        let f = e.file("f", "")?;
        fs::metadata(e.o("f"))?;
        fs::rename(f, e.p("g"))?;
        Ok(format!(
            "{} {}",
            say(fs::metadata(e.o("f"))),
            say(fs::metadata(e.o("g")))
        ))
    }),
    must("a replaced file is the new one", "new", |e| {
        e.file("f", "old")?;
        fs::read(e.o("f"))?;
        fs::rename(e.file("g", "new")?, e.p("f"))?;
        fs::read_to_string(e.o("f"))
    }),
    must("listings follow", "1 3 2", |e| {
        e.file("a", "")?;
        let a = listed(e)?;
        e.file("b", "")?;
        e.subdir("c")?;
        let b = listed(e)?;
        fs::remove_file(e.p("a"))?;
        Ok(format!("{a} {b} {}", listed(e)?))
    }),
    must(
        "a write is seen by a descriptor opened before",
        "new",
        |e| {
            e.file("f", "old")?;
            let r = fs::File::open(e.o("f"))?;
            let mut b = [0; 3];
            r.read_exact_at(&mut b, 0)?;
            open(e.p("f"), O_WRONLY)?.write_all_at(b"new", 0)?;
            r.read_exact_at(&mut b, 0)?;
            Ok(String::from_utf8_lossy(&b).into_owned())
        },
    ),
    must(
        "a write by a descriptor that stays open is seen",
        "ok",
        |e| {
            let f = fs::File::create(e.p("f"))?;
            f.write_all_at(&pattern(2_000_000, 1), 0)?;
            same(&fs::read(e.o("f"))?, &pattern(2_000_000, 1))
        },
    ),
    must("sizes follow writes and truncates", "10 5000 3", |e| {
        let f = open(e.file("f", "0123456789")?, O_WRONLY)?;
        let len = || fs::metadata(e.o("f")).map(|m| m.len());
        let a = len()?;
        f.write_all_at(b"x", 4999)?;
        let b = len()?;
        f.set_len(3)?;
        Ok(format!("{a} {b} {}", len()?))
    }),
    must("fstat of a descriptor opened before follows", "7", |e| {
        e.file("f", "")?;
        let r = fs::File::open(e.o("f"))?;
        r.metadata()?;
        open(e.p("f"), O_WRONLY)?.write_all(b"seven b")?;
        Ok(r.metadata()?.len().to_string())
    }),
    must("both write in turn, bytes side by side", "ok", |e| {
        let (a, b) = two(e)?;
        for i in 0..200u64 {
            if i % 2 == 0 { &a } else { &b }.write_all_at(&pattern(1_000, i), i * 1_000)?;
        }
        let want: Vec<u8> = (0..200).flat_map(|i| pattern(1_000, i)).collect();
        let mut got = vec![0; 200_000];
        a.read_exact_at(&mut got, 0)?;
        let first = same(&got, &want)?;
        b.read_exact_at(&mut got, 0)?;
        is(first == "ok" && got == want, || first)
    }),
    must("appends in turn come one after another", "ok", |e| {
        let (mut a, mut b) = (
            open(e.p("f"), O_WRONLY | O_CREAT | O_APPEND)?,
            open(e.o("f"), O_WRONLY | O_APPEND)?,
        );
        for i in 0..50 {
            writeln!(if i % 2 == 0 { &mut a } else { &mut b }, "{i}")?;
        }
        let want: String = (0..50).map(|i| format!("{i}\n")).collect();
        same(&fs::read(e.o("f"))?, want.as_bytes())
    }),
    must("a file unlinked there stays readable here", "text 0", |e| {
        e.file("f", "text")?;
        let mut r = fs::File::open(e.o("f"))?;
        fs::remove_file(e.p("f"))?;
        let mut text = String::new();
        r.read_to_string(&mut text)?;
        Ok(format!("{text} {}", r.metadata()?.nlink()))
    }),
    must("modes, owners and times follow", "ok", |e| {
        let f = e.file("f", "")?;
        fs::metadata(e.o("f"))?;
        fs::set_permissions(&f, Permissions::from_mode(0o751))?;
        let t = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567);
        fs::File::options().write(true).open(&f)?.set_modified(t)?;
        let m = fs::metadata(e.o("f"))?;
        is(m.mode() & 0o777 == 0o751 && m.mtime() == 1_234_567, || {
            format!("{:o} {}", m.mode() & 0o777, m.mtime())
        })
    }),
    must("a right taken away is missed at once", "ok EACCES", |e| {
        fs::set_permissions(&e.dir, Permissions::from_mode(0o755))?;
        fs::set_permissions(e.file("f", "x")?, Permissions::from_mode(0o644))?;
        let read = || crate::sys::as_user(65_534, || say(fs::read(e.o("f"))));
        let before = read()?;
        fs::set_permissions(e.p("f"), Permissions::from_mode(0o600))?;
        Ok(format!("{before} {}", read()?))
    }),
    must("link counts follow", "1 2", |e| {
        e.file("f", "")?;
        let links = || fs::metadata(e.o("f")).map(|m| m.nlink());
        let a = links()?;
        fs::hard_link(e.p("f"), e.p("g"))?;
        Ok(format!("{a} {}", links()?))
    }),
    must("extended attributes follow", "ENODATA value", |e| {
        e.file("f", "")?;
        let get = || {
            crate::xattrs::get(e.o("f"), "user.conform").map_or_else(
                |e| errno(&e.into()),
                |v| String::from_utf8_lossy(&v).into_owned(),
            )
        };
        let before = get();
        setxattr(e.p("f"), "user.conform", b"value", XattrFlags::empty())?;
        Ok(format!("{before} {}", get()))
    }),
    must("inode numbers are the same", "ok", |e| {
        let f = e.file("f", "")?;
        let (a, b) = (fs::metadata(f)?.ino(), fs::metadata(e.o("f"))?.ino());
        is(a == b, || format!("{a} and {b}"))
    }),
    must("O_EXCL here after there", "EEXIST", |e| {
        e.file("f", "")?;
        Ok(say(open(e.o("f"), O_WRONLY | O_CREAT | O_EXCL)))
    }),
    must("rmdir of a directory filled there", "ENOTEMPTY", |e| {
        let d = e.subdir("d")?;
        fs::read_dir(e.o("d"))?.count();
        fs::write(d.join("f"), "")?;
        Ok(say(fs::remove_dir(e.o("d"))))
    }),
    must("a record lock keeps the other client out", "EAGAIN", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        Ok(say(lock(&b, Lock::Write, 50, 10, false)))
    }),
    must(
        "a record lock of the other client is told",
        "Write 5 10",
        |e| {
            let (a, b) = two(e)?;
            lock(&a, Lock::Write, 5, 10, false)?;
            Ok(test_lock(&b, Lock::Write, 0, 100)?
                .map_or("nothing".into(), |(k, s, l)| format!("{k:?} {s} {l}")))
        },
    ),
    must("a record lock is waited for", "waited, ok", |e| {
        let (a, b) = two(e)?;
        lock(&a, Lock::Write, 0, 100, false)?;
        waits(
            || lock(&b, Lock::Write, 0, 100, true),
            || lock(&a, Lock::Unlock, 0, 100, false),
        )
    }),
    must(
        "flock keeps the other client out, and is waited for",
        "waited, ok",
        |e| {
            let (a, b) = two(e)?;
            flock(&a, FlockOperation::LockExclusive)?;
            if flock(&b, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok("both hold it".into());
            }
            waits(
                || Ok(flock(&b, FlockOperation::LockExclusive)?),
                || Ok(flock(&a, FlockOperation::Unlock)?),
            )
        },
    ),
    must(
        "what is stored through a mapping is seen after msync",
        "ok",
        |e| {
            let f = open(e.file("f", pattern(8192, 1))?, O_RDWR)?;
            fs::read(e.o("f"))?;
            let m = Map::new(&f, 8192, true)?;
            m.write(100, b"stored");
            m.sync()?;
            same(&fs::read(e.o("f"))?[100..106], b"stored")
        },
    ),
];
