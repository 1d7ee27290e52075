//! Layouts, through the extended attribute `lustre.lov` that every Lustre client has: stripes, defaults, composites.

use crate::check::{Check, Env, is, may, say};
use crate::data::{pattern, same};
use crate::xattrs::get;
use bytes::Bytes;
use coral_wire::layout::{CompEntry, CompMd, LOV_OFFSET_DEFAULT, Layout, LovMd};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const LOV: &str = "lustre.lov";
const KIB64: u32 = 65_536;

/// The layout of a file or the default of a directory.
fn layout(path: impl AsRef<Path>) -> io::Result<Layout> {
    let raw = get(path, LOV)?;
    Layout::decode(&Bytes::from(raw)).map_err(|e| io::Error::other(e.to_string()))
}

fn plain(path: impl AsRef<Path>) -> io::Result<LovMd> {
    match layout(path)? {
        Layout::Plain(l) => Ok(l),
        other => Err(io::Error::other(format!("not a plain layout: {other:?}"))),
    }
}

fn set(path: impl AsRef<Path>, l: &Layout) -> io::Result<()> {
    Ok(setxattr(
        path.as_ref(),
        LOV,
        &l.encode(),
        XattrFlags::empty(),
    )?)
}

fn wish(size: u32, count: u16) -> Layout {
    Layout::Plain(LovMd::request(size, count, LOV_OFFSET_DEFAULT, None))
}

/// A new file without objects that was given a layout, as `lfs setstripe` makes one.
fn file(e: &Env, l: &Layout) -> io::Result<std::path::PathBuf> {
    let f = e.p("f");
    mknodat(
        CWD,
        &f,
        FileType::RegularFile,
        Mode::from_raw_mode(0o644),
        0,
    )?;
    set(&f, l)?;
    Ok(f)
}

/// How many OSTs a file over all of them has.
fn osts(e: &Env) -> io::Result<u16> {
    let d = e.subdir("all")?;
    set(&d, &wish(KIB64, u16::MAX))?;
    fs::write(d.join("f"), "x")?;
    Ok(plain(d.join("f"))?.stripe_count)
}

fn components() -> Layout {
    // as lfs asks for them: the server gives the ids
    let entry = |from, to, count| {
        CompEntry::new(
            0,
            0,
            from,
            to,
            LovMd::request(KIB64, count, LOV_OFFSET_DEFAULT, None),
        )
    };
    Layout::Composite(CompMd::new(
        0,
        0,
        0,
        vec![entry(0, 1 << 20, 1), entry(1 << 20, u64::MAX, 2)],
    ))
}

/// Which components of a file have objects.
fn instantiated(path: &Path) -> io::Result<String> {
    match layout(path)? {
        Layout::Composite(c) => Ok(c
            .entries
            .iter()
            .map(|e| if e.is_init() { "yes" } else { "no" })
            .collect::<Vec<_>>()
            .join(" ")),
        other => Ok(format!("{other:?}")),
    }
}

pub(crate) const CHECKS: &[Check] = &[
    may("a file has a layout", "ok", |e| {
        let l = layout(e.file("f", "x")?)?;
        is(
            matches!(&l, Layout::Plain(p) if p.stripe_count as usize == p.objects.len() && p.stripe_count > 0)
                || matches!(l, Layout::Composite(_)),
            || format!("{l:?}"),
        )
    }),
    may("a layout asked for: size and count", "131072 2", |e| {
        let l = plain(file(e, &wish(2 * KIB64, 2))?)?;
        Ok(format!("{} {}", l.stripe_size, l.stripe_count.min(2)))
    }),
    may("stripes over all OSTs are each on another", "ok", |e| {
        let n = osts(e)?;
        let l = plain(e.p("all").join("f"))?;
        let on: BTreeSet<u32> = l.objects.iter().map(|o| o.ost_idx).collect();
        is(on.len() == n as usize && n > 0, || {
            format!("{n} stripes on {} OSTs", on.len())
        })
    }),
    may("the first stripe on the OST asked for", "ok", |e| {
        let n = osts(e)?;
        for i in 0..n.min(4) {
            let d = e.subdir(&format!("d{i}"))?;
            set(&d, &Layout::Plain(LovMd::request(KIB64, 1, i, None)))?;
            fs::write(d.join("f"), "x")?;
            let got = plain(d.join("f"))?.objects.first().map(|o| o.ost_idx);
            if got != Some(i as u32) {
                return Ok(format!("{got:?} instead of {i}"));
            }
        }
        Ok("ok".into())
    }),
    may(
        "objects of one file and of two are all different",
        "ok",
        |e| {
            osts(e)?;
            fs::write(e.p("all").join("g"), "y")?;
            let all: Vec<_> = ["f", "g"]
                .iter()
                .map(|n| plain(e.p("all").join(n)))
                .collect::<io::Result<_>>()?;
            let objects: Vec<_> = all
                .iter()
                .flat_map(|l| l.objects.iter().map(|o| (o.ost_idx, o.oi.id, o.oi.seq)))
                .collect();
            is(
                objects.iter().collect::<BTreeSet<_>>().len() == objects.len(),
                || "one is used twice".into(),
            )
        },
    ),
    may("bytes over stripes come back", "ok", |e| {
        let f = file(e, &wish(KIB64, u16::MAX))?;
        let p = pattern(3_000_001, 1);
        fs::write(&f, &p)?;
        same(&fs::read(&f)?, &p)
    }),
    may(
        "the size of a striped file is that of its last byte",
        "700001",
        |e| {
            let f = fs::OpenOptions::new()
                .write(true)
                .open(file(e, &wish(KIB64, u16::MAX))?)?;
            f.write_all_at(b"x", 700_000)?;
            f.write_all_at(b"x", 100)?;
            Ok(fs::metadata(e.p("f"))?.len().to_string())
        },
    ),
    may("truncate inside a stripe", "ok", |e| {
        let f = file(e, &wish(KIB64, u16::MAX))?;
        fs::write(&f, pattern(1_000_000, 2))?;
        fs::OpenOptions::new()
            .write(true)
            .open(&f)?
            .set_len(333_333)?;
        fs::OpenOptions::new()
            .write(true)
            .open(&f)?
            .set_len(400_000)?;
        let mut want = pattern(1_000_000, 2);
        want.truncate(400_000);
        want[333_333..].fill(0);
        same(&fs::read(&f)?, &want)
    }),
    may(
        "a file that has objects takes no other layout",
        "EEXIST",
        |e| {
            let f = e.file("f", "x")?;
            layout(&f)?;
            Ok(say(set(&f, &wish(KIB64, 2))))
        },
    ),
    may(
        "a stripe size that is no multiple of 64 KiB",
        "refused",
        |e| {
            layout(e.file("g", "x")?)?;
            Ok(if file(e, &wish(KIB64 + 1, 1)).is_err() {
                "refused".into()
            } else {
                format!("made with {}", plain(e.p("f"))?.stripe_size)
            })
        },
    ),
    may("a directory's default is its files'", "262144 2", |e| {
        let d = e.subdir("d")?;
        set(&d, &wish(4 * KIB64, 2))?;
        fs::write(d.join("f"), "x")?;
        let l = plain(d.join("f"))?;
        Ok(format!("{} {}", l.stripe_size, l.stripe_count))
    }),
    may(
        "a directory's default is that of directories in it",
        "262144 2",
        |e| {
            let d = e.subdir("d")?;
            set(&d, &wish(4 * KIB64, 2))?;
            fs::create_dir(d.join("d"))?;
            let l = plain(d.join("d"))?;
            Ok(format!("{} {}", l.stripe_size, l.stripe_count))
        },
    ),
    may("a rename leaves the layout", "131072 2", |e| {
        fs::rename(file(e, &wish(2 * KIB64, 2))?, e.p("g"))?;
        let l = plain(e.p("g"))?;
        Ok(format!("{} {}", l.stripe_size, l.stripe_count))
    }),
    may(
        "PFL: a file of two components, the first with objects",
        "yes no",
        |e| instantiated(&file(e, &components())?),
    ),
    may(
        "PFL: a write behind the first makes the second",
        "yes yes",
        |e| {
            let f = file(e, &components())?;
            fs::OpenOptions::new()
                .write(true)
                .open(&f)?
                .write_all_at(b"x", 5 << 20)?;
            instantiated(&f)
        },
    ),
    may("PFL: bytes over both components come back", "ok", |e| {
        let f = file(e, &components())?;
        let p = pattern(2_500_000, 3);
        fs::write(&f, &p)?;
        same(&fs::read(&f)?, &p)
    }),
    may("PFL: a directory's default", "yes no", |e| {
        let d = e.subdir("d")?;
        set(&d, &components())?;
        fs::write(d.join("f"), "x")?;
        instantiated(&d.join("f"))
    }),
];
