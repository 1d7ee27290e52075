//! `lfs setstripe`: a new file with a layout, or the default layout of a directory.

use super::{Failure, parse_size, set_xattr};
use bytes::Bytes;
use coral_wire::layout::{
    CompEntry, CompMd, LOV_ALL_STRIPES, LOV_MAGIC_SPECIFIC, LOV_MAX_STRIPE_COUNT,
    LOV_MIN_STRIPE_SIZE, LOV_OFFSET_DEFAULT, LovMd, LovOstData, pattern,
};
use lexopt::prelude::*;
use rustix::fs::{FileType, Mode, XattrFlags};
use std::path::{Path, PathBuf};

/// What one component (or the whole file) asks for.
#[derive(Debug, Clone, Default)]
struct Want {
    count: Option<u16>,
    size: Option<u32>,
    first: Option<u16>,
    osts: Vec<u32>,
    pool: Option<String>,
    /// Several stripes may be on one OST.
    over: bool,
    /// On the MDT.
    dom: bool,
    /// End of the component (exclusive), when it is one.
    end: Option<u64>,
}

pub(crate) fn setstripe(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut wants, mut paths, mut delete) = (vec![Want::default()], Vec::new(), false);
    let mut components = false;
    while let Some(arg) = p.next()? {
        let current = wants.len() - 1;
        let w = &mut wants[current];
        match arg {
            Short('d') | Long("delete") => delete = true,
            Short('E') | Long("component-end") => {
                let end = component_end(&p.value()?.string()?)?;
                if components {
                    // a component inherits what the one before it said
                    let next = Want {
                        end: Some(end),
                        osts: Vec::new(),
                        first: None,
                        over: false,
                        dom: false,
                        ..w.clone()
                    };
                    wants.push(next);
                } else {
                    w.end = Some(end);
                    components = true;
                }
            }
            Short('c') | Long("stripe-count") => {
                w.count = Some(stripe_count(&p.value()?.string()?)?)
            }
            Short('C') | Long("overstripe-count") => {
                w.count = Some(stripe_count(&p.value()?.string()?)?);
                w.over = true;
            }
            Short('S') | Long("stripe-size") => w.size = Some(stripe_size(&p.value()?.string()?)?),
            Short('i') | Long("stripe-index") => {
                w.first = Some(stripe_index(&p.value()?.string()?)?)
            }
            Short('o') | Long("ost") => w.osts = ost_list(&p.value()?.string()?)?,
            Short('p') | Long("pool") => w.pool = Some(p.value()?.string()?),
            Short('L') | Long("layout") => match p.value()?.string()?.as_str() {
                "raid0" => w.dom = false,
                "mdt" => w.dom = true,
                other => {
                    return Err(Failure::new(
                        format!(
                            "lfs setstripe: layout '{other}' is not supported yet: give raid0 or mdt"
                        ),
                        95,
                    ));
                }
            },
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new(
            "lfs setstripe: FILE|DIR must be specified",
            super::USAGE,
        ));
    }
    let value = if components {
        composite(&wants)?
    } else {
        plain(&wants[0])?.encode()
    };
    for path in &paths {
        if !delete {
            on_this_file_system(path, &wants)?;
        }
        apply(path, &value, delete)?;
    }
    Ok(())
}

/// Whether the file system of `path` has the OSTs and pools that are asked for. The servers only say that something is
/// wrong, or take the name of a pool that is not there (`llapi_stripe_param_verify` in `lustre/utils/liblustreapi.c`).
fn on_this_file_system(path: &Path, wants: &[Want]) -> Result<(), Failure> {
    let asked = |w: &Want| {
        w.pool.is_some() || w.first.is_some_and(|i| i != LOV_OFFSET_DEFAULT) || !w.osts.is_empty()
    };
    if !wants.iter().any(asked) {
        return Ok(());
    }
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mount = super::mount_of(if path.is_dir() { path } else { parent })?;
    let osts: Vec<u32> = super::df::targets(&mount)?
        .osts
        .iter()
        .map(|o| o.index)
        .collect();
    let pools = super::pool::pools(&mount)?;
    wants
        .iter()
        .try_for_each(|w| there_is(w, mount.fsname(), &osts, &pools))
}

/// The OSTs and the pool one component asks for are there.
fn there_is(
    w: &Want,
    fsname: &str,
    osts: &[u32],
    pools: &super::pool::Pools,
) -> Result<(), Failure> {
    let first = w.first.filter(|i| *i != LOV_OFFSET_DEFAULT).map(u32::from);
    if let Some(index) = first.iter().chain(&w.osts).find(|i| !osts.contains(i)) {
        let have = osts
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        return Err(Failure::new(
            format!("lfs setstripe: '{fsname}' has no OST {index}; its OSTs are {have}"),
            coral_wire::Errno::EINVAL.0 as u8,
        ));
    }
    // an empty name takes a pool away; these are words of Lustre's, not pools
    match w
        .pool
        .as_deref()
        .filter(|p| !p.is_empty() && !matches!(*p, "none" | "inherit" | "ignore"))
    {
        Some(pool) if !pools.contains_key(pool) => {
            let what = format!(
                "lfs setstripe: '{fsname}' has no pool '{pool}'; 'lfs pool_list {fsname}' lists its pools"
            );
            Err(Failure::new(what, coral_wire::Errno::ENOENT.0 as u8))
        }
        _ => Ok(()),
    }
}

fn bad(what: &str, text: &str) -> Failure {
    Failure::new(
        format!("lfs setstripe setstripe: invalid {what} '{text}'"),
        super::USAGE,
    )
}

fn stripe_count(text: &str) -> Result<u16, Failure> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(LOV_ALL_STRIPES),
        Ok(n) if (0..=LOV_MAX_STRIPE_COUNT as i64).contains(&n) => Ok(n as u16),
        _ => Err(bad("stripe count", text)),
    }
}

fn stripe_size(text: &str) -> Result<u32, Failure> {
    match parse_size(text) {
        Some(0) => Ok(0),
        Some(n) if n % LOV_MIN_STRIPE_SIZE as u64 == 0 && n <= u32::MAX as u64 => Ok(n as u32),
        _ => Err(bad("stripe size", text)),
    }
}

fn stripe_index(text: &str) -> Result<u16, Failure> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(LOV_OFFSET_DEFAULT),
        Ok(n) if (0..LOV_OFFSET_DEFAULT as i64).contains(&n) => Ok(n as u16),
        _ => Err(bad("stripe index", text)),
    }
}

/// `0,2-4`: OST indices in stripe order.
fn ost_list(text: &str) -> Result<Vec<u32>, Failure> {
    let mut out = Vec::new();
    for item in text.split(',') {
        let (low, high) = item.split_once('-').unwrap_or((item, item));
        match (low.parse::<u32>(), high.parse::<u32>()) {
            (Ok(a), Ok(b)) if a <= b && b - a < LOV_MAX_STRIPE_COUNT as u32 => out.extend(a..=b),
            _ => return Err(bad("OST list", text)),
        }
    }
    Ok(out)
}

fn component_end(text: &str) -> Result<u64, Failure> {
    if text == "-1" || text.eq_ignore_ascii_case("eof") {
        return Ok(u64::MAX);
    }
    match parse_size(text) {
        Some(n) if n > 0 && n.is_multiple_of(LOV_MIN_STRIPE_SIZE as u64) => Ok(n),
        _ => Err(bad("component end", text)),
    }
}

fn plain(w: &Want) -> Result<LovMd, Failure> {
    if !w.osts.is_empty() && w.count.is_some_and(|c| c as usize != w.osts.len()) {
        return Err(Failure::new(
            format!(
                "lfs setstripe: stripe count and the number of OSTs in the list ({}) differ",
                w.osts.len()
            ),
            super::USAGE,
        ));
    }
    let first = w
        .first
        .or(w.osts.first().map(|o| *o as u16))
        .unwrap_or(LOV_OFFSET_DEFAULT);
    let count = if w.osts.is_empty() {
        w.count.unwrap_or(0)
    } else {
        w.osts.len() as u16
    };
    let mut md = LovMd::request(w.size.unwrap_or(0), count, first, w.pool.as_deref());
    if w.over {
        md.pattern |= pattern::OVERSTRIPING;
    }
    if w.dom {
        // the stripe is as long as the component
        md.pattern = pattern::MDT;
        (md.stripe_count, md.stripe_size) = (0, u32::try_from(w.end.unwrap_or(0)).unwrap_or(0));
    }
    if !w.osts.is_empty() {
        md.magic = LOV_MAGIC_SPECIFIC;
        md.objects = w
            .osts
            .iter()
            .map(|idx| LovOstData {
                ost_idx: *idx,
                ..LovOstData::default()
            })
            .collect();
    }
    Ok(md)
}

fn composite(wants: &[Want]) -> Result<Bytes, Failure> {
    let (mut start, mut entries) = (0, Vec::new());
    for (i, w) in wants.iter().enumerate() {
        let end = w.end.unwrap_or(u64::MAX);
        if end <= start {
            return Err(Failure::new(
                format!("lfs setstripe: component end {end} is not behind its start {start}"),
                super::USAGE,
            ));
        }
        entries.push(CompEntry::new(i as u32 + 1, 0, start, end, plain(w)?));
        start = end;
    }
    Ok(CompMd::new(0, 0, 0, entries).encode())
}

fn apply(path: &Path, value: &[u8], delete: bool) -> Result<(), Failure> {
    let fail = |e: coral_wire::Errno| match e {
        coral_wire::Errno::EEXIST => Failure::new(
            format!(
                "lfs setstripe: setstripe error for '{}': stripe already set",
                path.display()
            ),
            e.0 as u8,
        ),
        e => Failure::errno(
            format_args!("lfs setstripe: setstripe error for '{}'", path.display()),
            e,
        ),
    };
    if delete {
        return rustix::fs::lremovexattr(path, "lustre.lov")
            .map_err(|e| fail(coral_wire::Errno(e.raw_os_error())));
    }
    if path.is_dir() {
        return set_xattr(path, "lustre.lov", value, XattrFlags::empty()).map_err(fail);
    }
    // a file made by mknod has no objects until it is first opened for writing, so its layout can still be said
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        FileType::RegularFile,
        Mode::from_raw_mode(0o666),
        0,
    );
    match made {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(fail(coral_wire::Errno(e.raw_os_error()))),
    }
    set_xattr(path, "lustre.lov", value, XattrFlags::CREATE).map_err(|e| {
        if made.is_ok() {
            let _ = std::fs::remove_file(path);
        }
        fail(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::Layout;

    #[test]
    fn an_ost_or_a_pool_that_is_not_there_is_named() {
        let pools = [("flash".to_owned(), vec![])].into();
        let check = |w: Want| there_is(&w, "lfs", &[0, 2], &pools).map_err(|f| (f.code, f.message));
        let pool = |p: &str| Want {
            pool: Some(p.into()),
            ..Want::default()
        };
        assert_eq!(
            check(Want {
                first: Some(2),
                osts: vec![0, 2],
                ..pool("flash")
            }),
            Ok(())
        );
        assert_eq!(
            check(Want {
                first: Some(LOV_OFFSET_DEFAULT),
                ..pool("")
            }),
            Ok(())
        );
        for want in [
            Want {
                first: Some(1),
                ..Want::default()
            },
            Want {
                osts: vec![0, 1],
                ..Want::default()
            },
        ] {
            assert_eq!(
                check(want),
                Err((
                    22,
                    "lfs setstripe: 'lfs' has no OST 1; its OSTs are 0, 2".into()
                ))
            );
        }
        assert_eq!(check(pool("slow")).unwrap_err().0, 2);
    }

    #[test]
    fn nonsense_is_refused_with_lustres_words() {
        assert_eq!(
            stripe_count("5000").unwrap_err().message,
            "lfs setstripe setstripe: invalid stripe count '5000'"
        );
        assert_eq!(
            stripe_size("5").unwrap_err().message,
            "lfs setstripe setstripe: invalid stripe size '5'"
        );
        assert_eq!(stripe_count("-1").unwrap(), LOV_ALL_STRIPES);
        assert_eq!(ost_list("0,2-4").unwrap(), [0, 2, 3, 4]);
        assert!(ost_list("4-2").is_err());
    }

    #[test]
    fn components_follow_one_another() {
        let wants = vec![
            Want {
                end: Some(1 << 20),
                count: Some(1),
                ..Want::default()
            },
            Want {
                end: Some(u64::MAX),
                count: Some(4),
                ..Want::default()
            },
        ];
        let Layout::Composite(c) = Layout::decode(&composite(&wants).unwrap()).unwrap() else {
            panic!("a composite layout")
        };
        assert_eq!(
            (c.entries.len(), { c.entries[1].head.start }, {
                c.entries[1].head.end
            }),
            (2, 1 << 20, u64::MAX)
        );
        let wrong = vec![
            Want {
                end: Some(1 << 20),
                ..Want::default()
            },
            Want {
                end: Some(1 << 16),
                ..Want::default()
            },
        ];
        assert!(composite(&wrong).is_err());
    }
}
