//! `lfs getstripe`.

use super::show::{self, Style};
use super::{Failure, xattr};
use coral_wire::Errno;
use coral_wire::layout::{LOV_OFFSET_DEFAULT, Layout, LovMd, SubLayout};
use lexopt::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::path::{Path, PathBuf};

/// The one field `-c`, `-S`, ... ask for.
#[derive(Clone, Copy, PartialEq)]
enum Field {
    Count,
    Size,
    Index,
    Mdt,
    Pattern,
    Generation,
    Pool,
    Fid,
}

struct Options {
    style: Style,
    fields: Vec<Field>,
    directory: bool,
    recursive: bool,
    quiet: bool,
}

pub(crate) fn getstripe(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut o = Options {
        style: Style::Normal,
        fields: Vec::new(),
        directory: false,
        recursive: false,
        quiet: false,
    };
    let mut paths = Vec::new();
    while let Some(arg) = p.next()? {
        match arg {
            Short('c') | Long("stripe-count") => o.fields.push(Field::Count),
            Short('S') | Long("stripe-size") => o.fields.push(Field::Size),
            Short('i') | Long("stripe-index") => o.fields.push(Field::Index),
            Short('m') | Long("mdt" | "mdt-index") => o.fields.push(Field::Mdt),
            Short('L') | Long("layout") => o.fields.push(Field::Pattern),
            Short('g') | Long("generation") => o.fields.push(Field::Generation),
            Short('p') | Long("pool") => o.fields.push(Field::Pool),
            Short('F') | Long("fid") => o.fields.push(Field::Fid),
            Short('d') | Long("directory") => o.directory = true,
            Short('r') | Long("recursive") => o.recursive = true,
            Short('q') | Long("quiet") => o.quiet = true,
            Short('v') | Long("verbose") => o.style = Style::Verbose,
            Short('y') | Long("yaml") => o.style = Style::Yaml,
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new(
            "lfs getstripe: give at least one file or directory",
            super::USAGE,
        ));
    }
    let mut failed = None;
    for path in &paths {
        if let Err(e) = one(path, &o, 0) {
            eprintln!("{}", e.message);
            failed = Some(Failure::new("", e.code));
        }
    }
    failed.map_or(Ok(()), Err)
}

fn one(path: &Path, o: &Options, depth: usize) -> Result<(), Failure> {
    let fail = |e: Errno| {
        Failure::errno(
            format_args!("lfs: getstripe for '{}' failed", path.display()),
            e,
        )
    };
    let kind = kind(path).map_err(fail)?;
    if kind.is_dir() {
        print_directory(path, o).map_err(fail)?;
        if o.directory || (depth > 0 && !o.recursive) {
            return Ok(());
        }
        let mut names: Vec<PathBuf> = std::fs::read_dir(path)
            .map_err(|e| fail(e.into()))?
            .flatten()
            .map(|e| e.path())
            .collect();
        names.sort();
        for name in names {
            one(&name, o, depth + 1)?;
        }
        return Ok(());
    }
    if !kind.is_file() {
        return Ok(()); // links and devices have no layout
    }
    match layout(path).map_err(fail)? {
        Some(l) => print_file(path, &l, o, depth),
        None => println!("{} has no stripe info", path.display()),
    }
    Ok(())
}

/// What a path is, without asking for its size: an OST may not be there to tell it.
fn kind(path: &Path) -> Result<FileType, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::TYPE).map_err(|e| Errno(e.raw_os_error()))?;
    Ok(FileType::from_raw_mode(found.stx_mode.into()))
}

fn print_directory(path: &Path, o: &Options) -> Result<(), Errno> {
    let l = layout(path)?;
    // a directory without a default of its own has the file system's, which its root tells
    let l = match l {
        Some(l) => l,
        None => file_system_default(path)?,
    };
    if !o.fields.is_empty() {
        o.fields
            .iter()
            .for_each(|f| println!("{}", field(path, &l, *f)));
        return Ok(());
    }
    if !o.directory {
        println!("{}", path.display());
    }
    print!("{}", show::directory(&l));
    println!();
    Ok(())
}

fn print_file(path: &Path, l: &Layout, o: &Options, depth: usize) {
    if !o.fields.is_empty() {
        o.fields
            .iter()
            .for_each(|f| println!("{}", field(path, l, *f)));
        return;
    }
    if !o.quiet && (o.style != Style::Yaml || depth > 0) {
        println!("{}", path.display());
    }
    print!("{}", show::file(l, o.style));
}

fn field(path: &Path, l: &Layout, f: Field) -> String {
    match f {
        Field::Count => show::stripe_count(l).to_string(),
        Field::Size => show::stripe_size(l).to_string(),
        Field::Index => show::stripe_offset(l).to_string(),
        Field::Mdt => mdt_index(path).map_or_else(|e| e.to_string(), |i| i.to_string()),
        Field::Generation => l.layout_gen().to_string(),
        Field::Pattern => match l {
            Layout::Plain(md) => show::pattern_name(md.pattern),
            _ => "composite".into(),
        },
        Field::Pool => match l {
            Layout::Plain(md) => md.pool_name().unwrap_or_default().to_owned(),
            _ => String::new(),
        },
        Field::Fid => {
            super::path::fid_of(path).map_or_else(|e| e.to_string(), |fid| fid.to_string())
        }
    }
}

/// The MDT that a file or a directory lies on.
pub(super) fn mdt_index(path: &Path) -> Result<u16, Errno> {
    let raw = xattr(path, "lustre.mdt")?;
    String::from_utf8_lossy(&raw)
        .parse()
        .map_err(|_| Errno::EINVAL)
}

/// What new files get where no directory says anything: the default of the root, else one stripe on any OST.
fn file_system_default(path: &Path) -> Result<Layout, Errno> {
    let root = super::mount_of(path)
        .map_err(|f| Errno(f.code.into()))?
        .path;
    let unset = || Layout::Plain(LovMd::request(0, 1, LOV_OFFSET_DEFAULT, None));
    Ok(layout(&root)?.unwrap_or_else(unset))
}

/// Where data is on the MDT, its index stands in place of the generation, as the kernel client tells it to its tools.
fn tell_mdt(path: &Path, layout: &mut Layout) {
    let Layout::Composite(c) = layout else { return };
    for e in c.entries.iter_mut().filter(|e| e.is_init()) {
        if let SubLayout::Plain(md) = &mut e.md
            && md.is_dom()
        {
            md.layout_gen = mdt_index(path).unwrap_or(0);
        }
    }
}

/// The attribute with the layout. Of a file on a deactivated OST it is asked of the directory: the kernel asks for the
/// attributes of a file first, and this one has no size.
fn stored(path: &Path) -> Result<Vec<u8>, Errno> {
    match (xattr(path, "lustre.lov"), path.file_name()) {
        (Err(Errno(libc::EIO)), Some(name)) => {
            let parent = path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            let mut of = std::ffi::OsString::from("lustre.lov/");
            of.push(name);
            xattr(parent, of)
        }
        (found, _) => found,
    }
}

/// The layout of a file, or the default of a directory; `None` when it has none of its own.
fn layout(path: &Path) -> Result<Option<Layout>, Errno> {
    match stored(path) {
        Ok(raw) if raw.is_empty() => Ok(None),
        Ok(raw) => {
            let mut layout = Layout::decode(&raw.into()).map_err(|_| Errno::EINVAL)?;
            tell_mdt(path, &mut layout);
            Ok(Some(layout))
        }
        Err(Errno::ENODATA) => Ok(None),
        Err(e) => Err(e),
    }
}
