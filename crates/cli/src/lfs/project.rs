//! `lfs project`: project ids of files and directories (`lustre/utils/lfs_project.c`).

use super::{Failure, USAGE, set_xattr, xattr};
use coral_wire::Errno;
use lexopt::prelude::*;
use rustix::fs::XattrFlags;
use std::path::{Path, PathBuf};

/// What is done to each file.
#[derive(Clone, Copy, PartialEq)]
enum Action {
    List,
    /// Set the id, if given; with `inherit` directories hand it down.
    Set {
        id: Option<u32>,
        inherit: bool,
    },
    /// Back to 0 (`keep`: keep the id), no longer handed down.
    Clear {
        keep: bool,
    },
    Check {
        id: Option<u32>,
    },
}

#[derive(Default)]
struct Options {
    id: Option<u32>,
    set: bool,
    clear: bool,
    keep: bool,
    check: bool,
    recursive: bool,
    directory: bool,
    paths: Vec<PathBuf>,
}

pub(crate) fn project(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut o = Options::default();
    while let Some(arg) = p.next()? {
        match arg {
            Short('p') => o.id = Some(id(&p.value()?.string()?)?),
            Short('s') => o.set = true,
            Short('C') => o.clear = true,
            Short('k') => o.keep = true,
            Short('c') => o.check = true,
            Short('r') => o.recursive = true,
            Short('d') => o.directory = true,
            Value(v) => o.paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if o.paths.is_empty() {
        return Err(Failure::new(
            "lfs project: give at least one file or directory",
            USAGE,
        ));
    }
    let action = match (o.check, o.clear, o.set || o.id.is_some()) {
        (true, false, _) => Action::Check { id: o.id },
        (false, true, false) => Action::Clear { keep: o.keep },
        (false, false, true) => Action::Set {
            id: o.id,
            inherit: o.set,
        },
        (false, false, false) => Action::List,
        _ => {
            return Err(Failure::new(
                "lfs project: -c, -C and -s with -p exclude each other",
                USAGE,
            ));
        }
    };
    let action = match action {
        // without -p the first name says what the others should have
        Action::Check { id: None } => Action::Check {
            id: Some(
                held(&o.paths[0])
                    .map_err(|e| failed("get project of", &o.paths[0], e))?
                    .0,
            ),
        },
        other => other,
    };
    o.paths.iter().try_for_each(|path| apply(path, &o, action))
}

fn id(text: &str) -> Result<u32, Failure> {
    let parsed = text.parse().ok().filter(|id| *id != u32::MAX);
    parsed.ok_or_else(|| {
        Failure::new(
            format!("lfs project: '{text}' is no project id (0 to 4294967294)"),
            USAGE,
        )
    })
}

/// A path of the command line: a directory is itself and what is in it, `-r` all below it; of a list it is left out itself, and
/// `-d` takes it alone. As Lustre (`lfs_project_iterate`).
fn apply(path: &Path, o: &Options, action: Action) -> Result<(), Failure> {
    let is_dir = std::fs::symlink_metadata(path)
        .map_err(|e| failed("stat", path, e.into()))?
        .is_dir();
    if !is_dir || o.directory || action != Action::List {
        one(path, action)?;
    }
    if is_dir && !o.directory {
        below(path, o, action)
    } else {
        Ok(())
    }
}

fn below(dir: &Path, o: &Options, action: Action) -> Result<(), Failure> {
    let entries = std::fs::read_dir(dir).map_err(|e| failed("list", dir, e.into()))?;
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        one(&path, action)?;
        if o.recursive && entry.file_type().is_ok_and(|t| t.is_dir()) {
            below(&path, o, action)?;
        }
    }
    Ok(())
}

fn failed(what: &str, path: &Path, e: Errno) -> Failure {
    Failure::errno(
        format_args!("lfs: failed to {what} '{}'", path.display()),
        e,
    )
}

/// One name; others than files and directories are passed over, as Lustre does.
fn one(path: &Path, action: Action) -> Result<(), Failure> {
    let meta = std::fs::symlink_metadata(path).map_err(|e| failed("stat", path, e.into()))?;
    if !meta.is_dir() && !meta.is_file() {
        return Ok(());
    }
    act(path, meta.is_dir(), action).map_err(|e| failed("get or set project of", path, e))
}

/// The project of a name, and whether it is handed down.
fn held(path: &Path) -> Result<(u32, bool), Errno> {
    let raw = xattr(path, "lustre.project")?;
    let text = String::from_utf8_lossy(&raw);
    let (id, mark) = text.split_once(' ').ok_or(Errno::EPROTO)?;
    Ok((id.parse().map_err(|_| Errno::EPROTO)?, mark == "P"))
}

fn act(path: &Path, is_dir: bool, action: Action) -> Result<(), Errno> {
    let (was, inherits) = held(path)?;
    let set = |id: u32, inherit: bool| {
        let text = format!("{id} {}", if inherit { 'P' } else { '-' });
        set_xattr(path, "lustre.project", text.as_bytes(), XattrFlags::empty())
    };
    match action {
        Action::List => println!(
            "{was:>5} {} {}",
            if inherits { 'P' } else { '-' },
            path.display()
        ),
        Action::Set { id, inherit } => set(id.unwrap_or(was), is_dir && (inherit || inherits))?,
        Action::Clear { keep } => set(if keep { was } else { 0 }, false)?,
        Action::Check { id } => {
            let wanted = id.unwrap_or(was);
            if is_dir && !inherits {
                println!("{} - project inheritance flag is not set", path.display());
            }
            if was != wanted {
                println!(
                    "{} - project identifier is not set (inode={was}, tree={wanted})",
                    path.display()
                );
            }
        }
    }
    Ok(())
}
