//! Listing directories, also while they change.

use crate::check::{Check, Env, Seen, is, must};
use rustix::fs::{Dir, SeekFrom, seek};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;

/// How often each name comes in one walk of the directory; `between` is called after each `step` names.
fn walk(
    e: &Env,
    step: usize,
    mut between: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<BTreeMap<String, usize>> {
    let mut seen = BTreeMap::new();
    for (i, entry) in Dir::read_from(File::open(&e.dir)?)?.enumerate() {
        *seen
            .entry(entry?.file_name().to_string_lossy().into_owned())
            .or_default() += 1;
        if (i + 1) % step == 0 {
            between(i + 1)?;
        }
    }
    Ok(seen)
}

fn fill(e: &Env, head: &str, n: usize) -> io::Result<()> {
    (0..n).try_for_each(|i| File::create(e.p(&format!("{head}{i}"))).map(drop))
}

/// Whether each of `n` names was seen once.
fn each_once(seen: &BTreeMap<String, usize>, head: &str, n: usize) -> Seen {
    let wrong: Vec<String> = (0..n)
        .map(|i| format!("{head}{i}"))
        .filter(|k| seen.get(k) != Some(&1))
        .collect();
    is(wrong.is_empty(), || {
        format!("{} of {n} not once, as {}", wrong.len(), wrong[0])
    })
}

pub(crate) const CHECKS: &[Check] = &[
    must(
        "'.' and '..' and nothing else in a new directory",
        ". ..",
        |e| {
            Ok(walk(e, 10, |_| Ok(()))?
                .into_keys()
                .collect::<Vec<_>>()
                .join(" "))
        },
    ),
    must("1200 names, each once", "ok", |e| {
        fill(e, "a-rather-long-file-name-", 1200)?;
        each_once(
            &walk(e, 5000, |_| Ok(()))?,
            "a-rather-long-file-name-",
            1200,
        )
    }),
    must("names made meanwhile disturb no others", "ok", |e| {
        fill(e, "old", 600)?;
        let seen = walk(e, 50, |i| {
            (0..20).try_for_each(|k| File::create(e.p(&format!("new{i}-{k}"))).map(drop))
        })?;
        each_once(&seen, "old", 600)
    }),
    must("names removed meanwhile disturb no others", "ok", |e| {
        fill(e, "stays", 400)?;
        fill(e, "goes", 400)?;
        let mut left = (0..400).map(|i| e.p(&format!("goes{i}")));
        let seen = walk(e, 40, |_| {
            left.by_ref().take(20).try_for_each(fs::remove_file)
        })?;
        each_once(&seen, "stays", 400)
    }),
    must("all names removed while they are listed", "ok", |e| {
        fill(e, "f", 500)?;
        for entry in fs::read_dir(&e.dir)? {
            fs::remove_file(entry?.path())?;
        }
        let left = fs::read_dir(&e.dir)?.count();
        is(left == 0, || format!("{left} left"))
    }),
    must("a listing begun again sees what was made", "ok", |e| {
        fill(e, "f", 10)?;
        let d = File::open(&e.dir)?;
        let count = |d: &File| Dir::read_from(d).map(|all| all.count());
        let before = count(&d)?;
        fill(e, "g", 10)?;
        seek(&d, SeekFrom::Start(0))?;
        let after = count(&d)?;
        is((before, after) == (12, 22), || {
            format!("{before}, then {after}")
        })
    }),
    must("going on from a position told earlier", "ok", |e| {
        fill(e, "f", 300)?;
        let all: Vec<_> =
            Dir::read_from(File::open(&e.dir)?)?.collect::<rustix::io::Result<Vec<_>>>()?;
        let at = all[149].offset();
        let mut d = Dir::read_from(File::open(&e.dir)?)?;
        d.seek(at)?;
        let rest: BTreeSet<_> = d
            .map(|r| r.map(|e| e.file_name().to_owned()))
            .collect::<rustix::io::Result<_>>()?;
        let want: BTreeSet<_> = all[150..]
            .iter()
            .map(|e| e.file_name().to_owned())
            .collect();
        is(rest == want, || {
            format!("{} names instead of {}", rest.len(), want.len())
        })
    }),
    must("types stand beside names", "ok", |e| {
        fs::create_dir(e.p("d"))?;
        fs::write(e.p("f"), "")?;
        std::os::unix::fs::symlink("f", e.p("l"))?;
        let types: BTreeMap<_, _> = fs::read_dir(&e.dir)?
            .flatten()
            .filter_map(|d| Some((d.file_name(), d.file_type().ok()?)))
            .collect();
        let of = |n: &str| types.get(std::ffi::OsStr::new(n));
        is(
            of("d").is_some_and(|t| t.is_dir())
                && of("f").is_some_and(|t| t.is_file())
                && of("l").is_some_and(|t| t.is_symlink()),
            || "others".into(),
        )
    }),
    must("inode numbers of a listing are those of stat", "ok", |e| {
        use std::os::unix::fs::{DirEntryExt, MetadataExt};
        fill(e, "f", 50)?;
        let wrong = fs::read_dir(&e.dir)?
            .flatten()
            .filter(|d| fs::metadata(d.path()).map(|m| m.ino()).ok() != Some(d.ino()))
            .count();
        is(wrong == 0, || format!("{wrong} of 50 differ"))
    }),
    must("a tree of 200 directories is removed whole", "ok", |e| {
        for i in 0..200 {
            let d = e.subdir(&format!("d{i}"))?;
            fs::write(d.join("f"), "x")?;
        }
        fs::remove_dir_all(&e.dir)?;
        fs::create_dir(&e.dir)?;
        is(fs::read_dir(&e.dir)?.count() == 0, || "not empty".into())
    }),
];
