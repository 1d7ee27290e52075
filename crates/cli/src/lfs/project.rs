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
    Set { id: Option<u32>, inherit: bool },
    /// Back to 0 (`keep`: keep the id), no longer handed down.
    Clear { keep: bool },
    Check { id: Option<u32> },
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
        return Err(Failure::new("lfs project: give at least one file or directory", USAGE));
    }
    let action = match (o.check, o.clear, o.set || o.id.is_some()) {
        (true, false, _) => Action::Check { id: o.id },
        (false, true, false) => Action::Clear { keep: o.keep },
        (false, false, true) => Action::Set { id: o.id, inherit: o.set },
        (false, false, false) => Action::List,
        _ => return Err(Failure::new("lfs project: -c, -C and -s with -p exclude each other", USAGE)),
    };
    for path in &o.paths {
        apply(path, &o, action, 0)?;
    }
    Ok(())
}

fn id(text: &str) -> Result<u32, Failure> {
    let parsed = text.parse().ok().filter(|id| *id != u32::MAX);
    parsed.ok_or_else(|| Failure::new(format!("lfs project: '{text}' is no project id (0 to 4294967294)"), USAGE))
}

fn apply(path: &Path, o: &Options, action: Action, depth: usize) -> Result<(), Failure> {
    let failed = |what: &str, e: Errno| Failure::errno(format_args!("lfs: failed to {what} '{}'", path.display()), e);
    let meta = std::fs::symlink_metadata(path).map_err(|e| failed("stat", e.into()))?;
    if !meta.is_dir() && !meta.is_file() {
        return Ok(()); // as Lustre: others have no project
    }
    // a directory is listed by what is in it, unless -d
    let inside = meta.is_dir() && (o.recursive || action == Action::List && !o.directory && depth == 0);
    if action != Action::List || !inside || o.directory || o.recursive {
        one(path, meta.is_dir(), action).map_err(|e| failed("get or set project of", e))?;
    }
    if !inside {
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(|e| failed("list", e.into()))?;
    let mut names: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    names.sort();
    names.iter().try_for_each(|name| apply(name, o, action, depth + 1))
}

fn one(path: &Path, is_dir: bool, action: Action) -> Result<(), Errno> {
    let raw = xattr(path, "lustre.project")?;
    let text = String::from_utf8_lossy(&raw);
    let (was, mark) = text.split_once(' ').ok_or(Errno::EPROTO)?;
    let was: u32 = was.parse().map_err(|_| Errno::EPROTO)?;
    let set = |id: u32, inherit: bool| {
        let text = format!("{id} {}", if inherit { 'P' } else { '-' });
        set_xattr(path, "lustre.project", text.as_bytes(), XattrFlags::empty())
    };
    match action {
        Action::List => println!("{was:>5} {mark} {}", path.display()),
        Action::Set { id, inherit } => set(id.unwrap_or(was), is_dir && (inherit || mark == "P"))?,
        Action::Clear { keep } => set(if keep { was } else { 0 }, false)?,
        Action::Check { id } => {
            let wanted = id.unwrap_or(was);
            if was != wanted {
                println!("{} - project identifier is not set (inode={was}, tree={wanted})", path.display());
            }
            if is_dir && mark != "P" {
                println!("{} - project inheritance flag is not set", path.display());
            }
        }
    }
    Ok(())
}
