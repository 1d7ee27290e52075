//! Names: what creates, removes, links and renames do, and with which errno they refuse.

use crate::check::{Check, Env, is, may, must, open, say};
use libc::*;
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, symlink};

pub(crate) const CHECKS: &[Check] = &[
    must("O_EXCL where a file is", "EEXIST", |e| {
        Ok(say(open(e.file("f", "")?, O_WRONLY | O_CREAT | O_EXCL)))
    }),
    must("O_EXCL where a dangling symlink is", "EEXIST", |e| {
        symlink("nowhere", e.p("l"))?;
        Ok(say(open(e.p("l"), O_WRONLY | O_CREAT | O_EXCL)))
    }),
    must(
        "O_CREAT through a dangling symlink makes its target",
        "ok",
        |e| {
            symlink("there", e.p("l"))?;
            open(e.p("l"), O_WRONLY | O_CREAT)?;
            Ok(say(fs::metadata(e.p("there"))))
        },
    ),
    must("open of a name that is not there", "ENOENT", |e| {
        Ok(say(open(e.p("f"), O_RDONLY)))
    }),
    must("open of a directory for writing", "EISDIR", |e| {
        Ok(say(open(e.subdir("d")?, O_WRONLY)))
    }),
    must("O_DIRECTORY on a file", "ENOTDIR", |e| {
        Ok(say(open(e.file("f", "")?, O_RDONLY | O_DIRECTORY)))
    }),
    must("O_NOFOLLOW on a symlink", "ELOOP", |e| {
        symlink("f", e.p("l"))?;
        Ok(say(open(e.p("l"), O_RDONLY | O_NOFOLLOW)))
    }),
    must("a path through a file", "ENOTDIR", |e| {
        Ok(say(fs::metadata(e.file("f", "")?.join("x"))))
    }),
    must("a symlink to itself", "ELOOP", |e| {
        symlink("l", e.p("l"))?;
        Ok(say(fs::metadata(e.p("l"))))
    }),
    must("a name of 255 bytes", "ok", |e| {
        Ok(say(e.file(&"n".repeat(255), "")))
    }),
    must("a name of 256 bytes", "ENAMETOOLONG", |e| {
        Ok(say(e.file(&"n".repeat(256), "")))
    }),
    must("names are bytes", "ok", |e| {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"\xff\xfe \n*");
        fs::write(e.dir.join(name), "")?;
        let found = fs::read_dir(&e.dir)?
            .flatten()
            .any(|d| d.file_name() == name);
        is(found, || "not listed".into())
    }),
    must("mkdir where a directory is", "EEXIST", |e| {
        Ok(say(fs::create_dir(e.subdir("d")?)))
    }),
    must("mkdir where a file is", "EEXIST", |e| {
        Ok(say(fs::create_dir(e.file("f", "")?)))
    }),
    must("mkdir below nothing", "ENOENT", |e| {
        Ok(say(fs::create_dir(e.p("a").join("b"))))
    }),
    must("unlink of a directory", "EISDIR", |e| {
        Ok(say(fs::remove_file(e.subdir("d")?)))
    }),
    must("unlink of a name that is not there", "ENOENT", |e| {
        Ok(say(fs::remove_file(e.p("f"))))
    }),
    must("rmdir of a file", "ENOTDIR", |e| {
        Ok(say(fs::remove_dir(e.file("f", "")?)))
    }),
    must("rmdir of a directory with a name in it", "ENOTEMPTY", |e| {
        fs::create_dir(e.subdir("d")?.join("x"))?;
        Ok(say(fs::remove_dir(e.p("d"))))
    }),
    must("rmdir of 'd/.'", "EINVAL", |e| {
        Ok(say(rustix::fs::unlinkat(
            CWD,
            e.subdir("d")?.join("."),
            rustix::fs::AtFlags::REMOVEDIR,
        )))
    }),
    must("a file in a removed directory", "ENOENT", |e| {
        let d = open(e.subdir("d")?, O_RDONLY | O_DIRECTORY)?;
        fs::remove_dir(e.p("d"))?;
        Ok(say(rustix::fs::openat(
            &d,
            "f",
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
            Mode::RUSR,
        )))
    }),
    must("link of a directory", "EPERM", |e| {
        Ok(say(fs::hard_link(e.subdir("d")?, e.p("l"))))
    }),
    must("link where a file is", "EEXIST", |e| {
        Ok(say(fs::hard_link(e.file("f", "")?, e.file("g", "")?)))
    }),
    must(
        "link counts of a file: 1, 3 with two more, 2 without one",
        "1 3 2",
        |e| {
            let f = e.file("f", "")?;
            let links = || fs::metadata(e.p("f")).map(|m| m.nlink());
            let a = links()?;
            fs::hard_link(&f, e.p("g"))?;
            fs::hard_link(&f, e.subdir("d")?.join("h"))?;
            let b = links()?;
            fs::remove_file(e.p("g"))?;
            Ok(format!("{a} {b} {}", links()?))
        },
    ),
    must(
        "link counts of a directory: 2, 4 with two in it, 3 without one",
        "2 4 3",
        |e| {
            let d = e.subdir("d")?;
            let links = || fs::metadata(e.p("d")).map(|m| m.nlink());
            let a = links()?;
            fs::create_dir(d.join("x"))?;
            fs::create_dir(d.join("y"))?;
            let b = links()?;
            fs::remove_dir(d.join("x"))?;
            Ok(format!("{a} {b} {}", links()?))
        },
    ),
    must("link of a symlink is a link of the symlink", "ok", |e| {
        symlink("nowhere", e.p("l"))?;
        fs::hard_link(e.p("l"), e.p("m"))?;
        is(fs::read_link(e.p("m"))?.as_os_str() == "nowhere", || {
            "another target".into()
        })
    }),
    must("rename keeps the inode and its bytes", "ok", |e| {
        let ino = fs::metadata(e.file("f", "text")?)?.ino();
        fs::rename(e.p("f"), e.p("g"))?;
        is(
            fs::metadata(e.p("g"))?.ino() == ino
                && fs::read(e.p("g"))? == b"text"
                && fs::metadata(e.p("f")).is_err(),
            || "changed".into(),
        )
    }),
    must("rename over a file replaces it", "new", |e| {
        fs::rename(e.file("f", "new")?, e.file("g", "old")?)?;
        fs::read_to_string(e.p("g"))
    }),
    must(
        "rename over a file that is open: it stays readable",
        "old",
        |e| {
            let mut g = fs::File::open(e.file("g", "old")?)?;
            fs::rename(e.file("f", "new")?, e.p("g"))?;
            let mut text = String::new();
            g.read_to_string(&mut text)?;
            Ok(text)
        },
    ),
    must("rename of a file onto a directory", "EISDIR", |e| {
        Ok(say(fs::rename(e.file("f", "")?, e.subdir("d")?)))
    }),
    must("rename of a directory onto a file", "ENOTDIR", |e| {
        Ok(say(fs::rename(e.subdir("d")?, e.file("f", "")?)))
    }),
    must(
        "rename of a directory onto a full one",
        "ENOTEMPTY or EEXIST",
        |e| {
            fs::create_dir(e.subdir("g")?.join("x"))?;
            Ok(say(fs::rename(e.subdir("d")?, e.p("g"))))
        },
    ),
    must("rename of a directory onto an empty one", "ok", |e| {
        Ok(say(fs::rename(e.subdir("d")?, e.subdir("g")?)))
    }),
    must("rename of a directory into itself", "EINVAL", |e| {
        Ok(say(fs::rename(e.subdir("d")?, e.p("d").join("x"))))
    }),
    must("rename of a name that is not there", "ENOENT", |e| {
        Ok(say(fs::rename(e.p("f"), e.p("g"))))
    }),
    must(
        "rename between two links of one file does nothing",
        "2",
        |e| {
            fs::hard_link(e.file("f", "")?, e.p("g"))?;
            fs::rename(e.p("f"), e.p("g"))?;
            Ok(fs::metadata(e.p("f"))?.nlink().to_string())
        },
    ),
    must("'..' of a directory that was moved", "ok", |e| {
        e.subdir("a")?;
        fs::rename(e.subdir("d")?, e.p("a").join("d"))?;
        let up = fs::metadata(e.p("a").join("d").join(".."))?.ino();
        is(up == fs::metadata(e.p("a"))?.ino(), || {
            "is not the new parent".into()
        })
    }),
    must("link counts of parents follow a directory", "2 3", |e| {
        fs::create_dir(e.subdir("a")?.join("d"))?;
        fs::rename(e.p("a").join("d"), e.subdir("b")?.join("d"))?;
        Ok(format!(
            "{} {}",
            fs::metadata(e.p("a"))?.nlink(),
            fs::metadata(e.p("b"))?.nlink()
        ))
    }),
    may("RENAME_NOREPLACE where a file is", "EEXIST", |e| {
        rename_with(e, RenameFlags::NOREPLACE).map(|s| s.0)
    }),
    may("RENAME_EXCHANGE swaps", "ok", |e| {
        let (said, f) = rename_with(e, RenameFlags::EXCHANGE)?;
        Ok(if said == "ok" && f != "g" {
            format!("the other name holds {f}")
        } else {
            said
        })
    }),
    must("a symlink says its text back, 4000 bytes", "ok", |e| {
        let text = "x/".repeat(2000);
        symlink(&text, e.p("l"))?;
        is(
            fs::read_link(e.p("l"))?.as_os_str() == text.as_str()
                && fs::symlink_metadata(e.p("l"))?.len() == 4000,
            || "another text or size".into(),
        )
    }),
    must("a named pipe is one", "ok", |e| {
        mknodat(CWD, e.p("p"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        is(fs::metadata(e.p("p"))?.mode() & S_IFMT == S_IFIFO, || {
            "another type".into()
        })
    }),
    must(
        "an unlinked open file: read, written, no link",
        "textmore 0",
        |e| {
            let mut f = open(e.file("f", "text")?, O_RDWR)?;
            fs::remove_file(e.p("f"))?;
            f.seek(std::io::SeekFrom::End(0))?;
            f.write_all(b"more")?;
            f.rewind()?;
            let mut text = String::new();
            f.read_to_string(&mut text)?;
            Ok(format!("{text} {}", f.metadata()?.nlink()))
        },
    ),
    must(
        "a name unlinked and made again is another file",
        "ok",
        |e| {
            let f = fs::File::open(e.file("f", "old")?)?;
            fs::remove_file(e.p("f"))?;
            e.file("f", "new")?;
            is(
                f.metadata()?.ino() != fs::metadata(e.p("f"))?.ino()
                    && fs::read(e.p("f"))? == b"new",
                || "the same".into(),
            )
        },
    ),
    must("mkdir and rmdir, 30 deep", "ok", |e| {
        let mut path = e.dir.clone();
        for i in 0..30 {
            path.push(format!("level-{i}"));
            fs::create_dir(&path)?;
        }
        fs::write(path.join("f"), "deep")?;
        let read = fs::read(path.join("f"))?;
        fs::remove_dir_all(e.p("level-0"))?;
        is(
            read == b"deep" && fs::metadata(e.p("level-0")).is_err(),
            || "not gone".into(),
        )
    }),
];

/// Renames `f` to `g`, both there; what was said, and what `f` holds afterwards.
fn rename_with(e: &Env, flags: RenameFlags) -> std::io::Result<(String, String)> {
    let (f, g) = (e.file("f", "f")?, e.file("g", "g")?);
    let said = say(renameat_with(CWD, &f, CWD, &g, flags));
    Ok((said, fs::read_to_string(f)?))
}
