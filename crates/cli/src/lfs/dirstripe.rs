//! `lfs mkdir`, `setdirstripe`, `getdirstripe`: directories and their MDTs.

use super::{Failure, set_xattr, xattr};
use coral_client::llite::MkdirRequest;
use coral_wire::Errno;
use coral_wire::layout::{
    LMV_MAGIC_STRIPE, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMd, LmvUserMdsData, hash_flag,
    hash_type, inherit,
};
use lexopt::prelude::*;
use rustix::fs::XattrFlags;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names of the hash types by number.
const HASHES: [&str; 5] = ["none", "all_char", "fnv_1a_64", "crush", "crush2"];
/// Flags shown behind the hash type.
const FLAGS: [(u32, &str); 5] = [
    (hash_flag::OVERSTRIPED, ",overstriped"),
    (hash_flag::MIGRATION, ",migrating"),
    (hash_flag::BAD_TYPE, ",bad_type"),
    (hash_flag::LOST_LMV, ",lost_lmv"),
    (hash_flag::FIXED, ",fixed"),
];
/// How deep a default of several shards goes down unless `-X` says otherwise; one of a single shard has no end
/// (`lfs_setdirstripe` in `lustre/utils/lfs.c`).
const MAX_INHERIT: u8 = 3;
/// Most MDTs one directory is laid out over by a list.
const MDTS_LISTED_MAX: usize = 255;
/// The command that also changes what is there.
const SETDIRSTRIPE: &str = "lfs setdirstripe";
/// Any depth.
const INHERIT_UNLIMITED: u8 = 0;

/// What the command line asks for.
#[derive(Default)]
pub(super) struct Want {
    /// The command, for what it says.
    command: &'static str,
    pub(super) count: Option<u32>,
    /// MDTs of the shards, or of the first.
    pub(super) mdts: Vec<u32>,
    pub(super) hash: u32,
    /// Several shards on an MDT are allowed.
    pub(super) over: u32,
    mode: Option<u32>,
    default: bool,
    delete: bool,
    max_inherit: Option<u8>,
    max_inherit_rr: u8,
}

pub(crate) fn mkdir(p: lexopt::Parser) -> Result<(), Failure> {
    lay_out(p, "lfs mkdir", false)
}

pub(crate) fn setdirstripe(p: lexopt::Parser) -> Result<(), Failure> {
    lay_out(p, SETDIRSTRIPE, true)
}

/// `there`: a directory that is there already may be meant.
fn lay_out(mut p: lexopt::Parser, command: &'static str, there: bool) -> Result<(), Failure> {
    let mut paths = Vec::new();
    let mut w = Want {
        command,
        ..Want::default()
    };
    while let Some(arg) = p.next()? {
        match arg {
            Short('c') | Long("mdt-count") => w.count = Some(mdt_count(&p.value()?.string()?)?),
            Short('C') | Long("mdt-overcount") => {
                w.count = Some(mdt_count(&p.value()?.string()?)?);
                w.over = hash_flag::OVERSTRIPED;
            }
            Short('i') | Long("mdt-index") => w.mdts = mdt_list(&p.value()?.string()?)?,
            Short('m' | 'o') | Long("mode") => {
                w.mode = Some(p.value()?.parse_with(|s| {
                    u32::from_str_radix(s, 8).map_err(|_| "a mode is an octal number, as in 755")
                })?)
            }
            Short('H') | Long("mdt-hash") => w.hash = hash(&p.value()?.string()?)?,
            Short('D') | Long("default") => w.default = true,
            Short('d') | Long("delete") => w.delete = true,
            Short('X') | Long("max-inherit") => {
                w.max_inherit = Some(levels(&p.value()?.string()?)?)
            }
            Long("max-inherit-rr") => {
                w.max_inherit_rr = match levels(&p.value()?.string()?)? {
                    // here 0 is none and 255 without end
                    u8::MAX => 0,
                    INHERIT_UNLIMITED => u8::MAX,
                    n => n,
                }
            }
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new(
            format!("{command}: give at least one directory"),
            super::USAGE,
        ));
    }
    for path in &paths {
        if w.default || w.delete {
            set_default(path, &w)?
        } else if there && w.may_restripe() && is_dir(path) {
            restripe(path, &w)?
        } else {
            make(path, &w)?
        }
    }
    Ok(())
}

fn bad(what: &str, text: &str) -> Failure {
    Failure::new(format!("lfs: invalid {what} '{text}'"), super::USAGE)
}

pub(super) fn mdt_count(text: &str) -> Result<u32, Failure> {
    match text.parse::<i32>() {
        // below zero: all MDTs, or so many times all
        Ok(n) if n != 0 && n >= -5 => Ok(n as u32),
        _ => Err(bad("MDT count", text)),
    }
}

/// One MDT, or several: `0,2-4`.
pub(super) fn mdt_list(text: &str) -> Result<Vec<u32>, Failure> {
    if text == "-1" {
        return Ok(vec![LMV_OFFSET_DEFAULT]);
    }
    let number = |t: &str| {
        let n = t.parse::<u32>().ok();
        n.filter(|n| *n <= 0xffff)
            .ok_or_else(|| bad("MDT index", text))
    };
    let mut list = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => list.push(number(part)?),
            Some((from, to)) => list.extend(number(from)?..=number(to)?),
        }
    }
    match list.len() {
        1..=MDTS_LISTED_MAX => Ok(list),
        _ => Err(bad("list of MDTs", text)),
    }
}

fn is_dir(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
}

impl Want {
    /// A number of shards and no MDT.
    fn may_restripe(&self) -> bool {
        self.count.is_some() && self.index() == LMV_OFFSET_DEFAULT && self.mdts.len() <= 1
    }

    /// The first MDT.
    fn index(&self) -> u32 {
        self.mdts.first().copied().unwrap_or(LMV_OFFSET_DEFAULT)
    }

    /// An MDT that is listed twice.
    pub(super) fn twice(&self) -> Option<u32> {
        let before = |i: usize| &self.mdts[..i];
        let mut numbered = self.mdts.iter().enumerate();
        numbered.find_map(|(i, mdt)| before(i).contains(mdt).then_some(*mdt))
    }

    /// The request of a new directory in so many shards, if a number was given. EINVAL when that is not as many as the MDTs.
    pub(super) fn request(&self, otherwise: u32) -> Result<LmvUserMd, Errno> {
        let listed = self.mdts.len() as u32;
        let count = self.count.unwrap_or(match listed {
            0 | 1 => otherwise,
            n => n,
        });
        let mut lum = LmvUserMd::request(count, self.index(), self.hash | self.over);
        if listed > 1 {
            if count != listed {
                return Err(Errno::EINVAL);
            }
            lum.head.magic = LMV_MAGIC_STRIPE;
            let one = |mds: &u32| LmvUserMdsData {
                mds: *mds,
                ..Default::default()
            };
            lum.objects = self.mdts.iter().map(one).collect();
        }
        Ok(lum)
    }
}

pub(super) fn hash(text: &str) -> Result<u32, Failure> {
    let (name, fixed) = text
        .strip_suffix(",fixed")
        .map_or((text, 0), |n| (n, hash_flag::FIXED));
    match HASHES.iter().position(|h| *h == name) {
        Some(n) if n > 0 => Ok(n as u32 | fixed),
        _ => Err(bad("hash", text)),
    }
}

/// In `max_inherit` 0 is without end and 255 is none.
fn levels(text: &str) -> Result<u8, Failure> {
    match text.parse::<i16>() {
        Ok(-1) => Ok(INHERIT_UNLIMITED),
        Ok(0) => Ok(u8::MAX),
        Ok(n) if (1..=250).contains(&n) => Ok(n as u8),
        _ => Err(bad("number of levels", text)),
    }
}

/// The first of the MDTs `asked` for that the file system does not have, and those that it has, in words. There may be gaps.
pub(super) fn missing_mdt(
    there: &[super::df::TargetSpace],
    mut asked: impl Iterator<Item = u32>,
) -> Option<String> {
    let has = |i: u32| i == LMV_OFFSET_DEFAULT || there.iter().any(|t| t.index == i);
    let missing = asked.find(|i| !has(*i))?;
    let all: Vec<String> = there.iter().map(|t| t.index.to_string()).collect();
    Some(format!(
        "MDT {missing}: the file system has {}",
        all.join(", ")
    ))
}

fn make(path: &Path, w: &Want) -> Result<(), Failure> {
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let there = super::df::targets(&super::mount_of(parent)?)?.mdts;
    let mdts = there.len();
    let lum = w.request(1).map_err(|e| {
        Failure::new(
            format!(
                "{}: cannot create '{}': the number of shards is not that of the MDTs given",
                w.command,
                path.display()
            ),
            e.0 as u8,
        )
    })?;
    // of shards that nobody says a place of there are as many as there are MDTs (`lod_ah_init`)
    if let Some(missing) = missing_mdt(&there, w.mdts.iter().copied()) {
        return Err(Failure::new(
            format!(
                "{}: cannot create '{}' on {missing}",
                w.command,
                path.display()
            ),
            Errno::EINVAL.0 as u8,
        ));
    }
    if let (Some(twice), 0) = (w.twice(), w.over) {
        let what = format!(
            "{}: cannot create '{}': MDT {twice} is listed twice; several shards on one MDT are asked for with -C",
            w.command,
            path.display()
        );
        return Err(Failure::new(what, Errno::EINVAL.0 as u8));
    }
    let failed = |e| {
        let (command, at) = (w.command, path.display());
        match e == Errno::EEXIST && w.count.is_some() && w.command == SETDIRSTRIPE {
            true => Failure::errno(
                format_args!("{command}: '{at}' is not made: {}", what_is_there(path)),
                e,
            ),
            false => Failure::errno(format_args!("{command}: dirstripe error on '{at}'"), e),
        }
    };
    if mdts == 1 {
        let made = rustix::fs::mkdir(
            path,
            rustix::fs::Mode::from_raw_mode(w.mode.unwrap_or(0o777)),
        );
        return made.map_err(|e| failed(Errno(e.raw_os_error())));
    }
    let name = path.file_name().ok_or_else(|| failed(Errno::EEXIST))?;
    let rq = MkdirRequest {
        mode: w.mode.unwrap_or(0o777) & !umask(),
        name: bytes::Bytes::copy_from_slice(name.as_bytes()),
        lum,
    };
    set_xattr(
        &parent.join("."),
        "lustre.mkdir",
        &rq.encode(),
        XattrFlags::empty(),
    )
    .map_err(failed)
}

/// Why nothing can be made at `path`, and what can be done with what is there.
fn what_is_there(path: &Path) -> &'static str {
    match is_dir(path) {
        true => {
            "the directory is there already. `-c` without `-i` lays it out anew, `lfs migrate -m` moves it to other MDTs, and `-D` says \
             where new directories in it go"
        }
        false => "a file has that name, and only directories have shards",
    }
}

/// A directory that is there is split or merged.
fn restripe(path: &Path, w: &Want) -> Result<(), Failure> {
    let failed = |e| {
        let at = path.display();
        let why = match e {
            Errno::EBUSY => {
                "; it is being moved, split or merged, and can be laid out anew when `lfs getdirstripe -H` shows no 'migrating'"
            }
            _ => "",
        };
        Failure::errno(
            format_args!("lfs setdirstripe: cannot lay out '{at}' anew{why}"),
            e,
        )
    };
    // "." and ".." have no name by which the directory is asked for
    let path = std::fs::canonicalize(path).map_err(|e| failed(e.into()))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(Errno::EINVAL));
    };
    let mount = super::mount_of(&path)?;
    if mount.path == path {
        let what = format!(
            "lfs setdirstripe: '{}' is the root of the file system, which stays as it is",
            path.display()
        );
        return Err(Failure::new(what, Errno::EINVAL.0 as u8));
    }
    let mdts = super::df::targets(&mount)?.mdts.len();
    let lum = w.request(1).map_err(failed)?;
    let count = lum.head.stripe_count as i32;
    if w.over == 0 && count > mdts as i32 {
        let what = format!(
            "lfs setdirstripe: {count} shards are more than the {mdts} MDTs of the file system"
        );
        return Err(Failure::new(what, Errno::E2BIG.0 as u8));
    }
    let rq = MkdirRequest {
        mode: 0,
        name: bytes::Bytes::copy_from_slice(name.as_bytes()),
        lum,
    };
    let value = rq.encode();
    match set_xattr(
        &parent.join("."),
        "lustre.restripe",
        &value,
        XattrFlags::empty(),
    ) {
        // it is laid out so
        Ok(()) | Err(Errno::EALREADY) => Ok(()),
        Err(e) => Err(failed(e)),
    }
}

/// The umask of this process.
fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(old);
    old.as_raw_mode()
}

fn set_default(path: &Path, w: &Want) -> Result<(), Failure> {
    let mut lum = LmvUserMd::request(w.count.unwrap_or(0), w.index(), w.hash | w.over);
    if w.mdts.len() > 1 {
        return Err(Failure::new(
            format!("{}: a default names one MDT at most", w.command),
            super::USAGE,
        ));
    }
    let there = super::df::targets(&super::mount_of(path)?)?.mdts;
    if let Some(missing) = missing_mdt(&there, w.mdts.iter().copied()) {
        let what = format!(
            "{}: cannot set the default of '{}' to {missing}",
            w.command,
            path.display()
        );
        return Err(Failure::new(what, Errno::EINVAL.0 as u8));
    }
    lum.head.max_inherit = w.max_inherit.unwrap_or(if lum.head.stripe_count <= 1 {
        INHERIT_UNLIMITED
    } else {
        MAX_INHERIT
    });
    lum.head.max_inherit_rr = w.max_inherit_rr;
    if w.delete {
        lum = LmvUserMd::request(0, LMV_OFFSET_DEFAULT, 0);
    }
    set_xattr(path, "lustre.dmv", &lum.encode(), XattrFlags::empty()).map_err(|e| {
        Failure::errno(
            format_args!("{}: dirstripe error on '{}'", w.command, path.display()),
            e,
        )
    })
}

pub(crate) fn getdirstripe(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut fields, mut yaml, mut default, mut paths) = (Vec::new(), false, false, Vec::new());
    while let Some(arg) = p.next()? {
        match arg {
            Short('c') | Long("mdt-count") => fields.push(Field::Count),
            Short('i' | 'm') | Long("mdt-index") => fields.push(Field::First),
            Short('H') | Long("mdt-hash") => fields.push(Field::Hash),
            Short('X') | Long("max-inherit") => fields.push(Field::Inherit),
            Long("max-inherit-rr") => fields.push(Field::InheritRr),
            Short('y') | Long("yaml") => yaml = true,
            Short('D') | Long("default") => default = true,
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new(
            "lfs getdirstripe: give at least one directory",
            super::USAGE,
        ));
    }
    for path in &paths {
        let l = read(path, default).map_err(|e| {
            Failure::errno(
                format_args!("lfs: getdirstripe for '{}' failed", path.display()),
                e,
            )
        })?;
        fields.sort();
        fields.dedup();
        match fields.as_slice() {
            [] => print!("{}", text(&l, yaml)),
            [one] => println!("{}", one.of(&l)),
            some => println!("{}", named(some, &l, yaml)),
        }
    }
    Ok(())
}

/// What can be shown of a layout, in the order in which it is shown (`lmv_dump_user_lmm` in `lustre/utils/liblustreapi.c`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    Count,
    First,
    Hash,
    Inherit,
    InheritRr,
}

impl Field {
    /// With the column of its value in YAML.
    fn name(self) -> (&'static str, usize) {
        match self {
            Field::Count => ("lmv_stripe_count:", 19),
            Field::First => ("lmv_stripe_offset:", 19),
            Field::Hash => ("lmv_hash_type:", 19),
            Field::Inherit => ("lmv_max_inherit:", 19),
            Field::InheritRr => ("lmv_max_inherit_rr:", 20),
        }
    }

    fn of(self, l: &LmvUserMd) -> String {
        let head = &l.head;
        match self {
            Field::Count => (head.stripe_count as i32).to_string(),
            Field::First => (head.stripe_offset as i32).to_string(),
            Field::Hash => hash_text(head.hash_type),
            // only a default hands something down
            Field::Inherit | Field::InheritRr if head.magic != LMV_USER_MAGIC => String::new(),
            Field::Inherit => match head.max_inherit {
                inherit::UNLIMITED => "-1".to_owned(),
                inherit::NONE => "0".to_owned(),
                n => n.to_string(),
            },
            Field::InheritRr => match head.max_inherit_rr {
                inherit::RR_UNLIMITED => "-1".to_owned(),
                n => n.to_string(),
            },
        }
    }
}

/// Values with their names.
fn named(fields: &[Field], l: &LmvUserMd, yaml: bool) -> String {
    let one = |field: &Field| {
        let ((name, column), value) = (field.name(), field.of(l));
        match yaml {
            true => format!("{name:<column$}{value}"),
            false => format!("{name} {value}"),
        }
    };
    let all: Vec<String> = fields.iter().map(one).collect();
    all.join(if yaml { "\n" } else { " " })
}

/// The MDT layout, or the default for new directories.
pub(super) fn read(path: &Path, default: bool) -> Result<LmvUserMd, Errno> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    match xattr(path, if default { "lustre.dmv" } else { "lustre.lmv" }) {
        Ok(raw) => LmvUserMd::decode(&raw.into()).map_err(|_| Errno::EINVAL),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) if default => {
            Ok(LmvUserMd::request(0, LMV_OFFSET_DEFAULT, 0))
        }
        Err(e) => Err(e),
    }
}

fn hash_text(ty: u32) -> String {
    let n = ty & hash_type::MASK;
    let mut out = HASHES
        .get(n as usize)
        .map_or_else(|| format!("{n:#x}"), |h| (*h).to_owned());
    FLAGS
        .iter()
        .filter(|(bit, _)| ty & bit != 0)
        .for_each(|(_, name)| out += name);
    out
}

fn text(l: &LmvUserMd, yaml: bool) -> String {
    let layout = [Field::Count, Field::First, Field::Hash];
    let handed_down = [Field::Inherit, Field::InheritRr];
    let mut fields = layout.to_vec();
    fields.extend(
        handed_down
            .iter()
            .filter(|_| l.head.magic == LMV_USER_MAGIC),
    );
    let mut out = named(&fields, l, yaml) + "\n";
    if l.head.magic == LMV_USER_MAGIC {
        return out;
    }
    out += match (yaml, l.objects.is_empty()) {
        (true, _) => "lmv_objects:\n",
        (false, true) => "",
        (false, false) => "mdtidx\t\t FID[seq:oid:ver]\n",
    };
    for (number, o) in l.objects.iter().enumerate() {
        let (fid, way) = (o.fid.to_string(), way(l, number));
        out += &match yaml {
            true => format!(
                "      - l_mdt_idx: {}\n        l_fid:     {}\n",
                o.mds,
                fid.trim_matches(['[', ']'])
            ),
            false => format!("{:>6}\t\t {fid}\t\t{}\n", o.mds, way.unwrap_or("")),
        };
        if let (true, Some(way)) = (yaml, way) {
            out += &format!("        l_names:   {way}\n");
        }
    }
    out
}

/// Of a layout that changes, the number of the first shard that gets names, or loses its names, from the others.
pub(super) fn changes_at(l: &LmvUserMd) -> Option<usize> {
    let changing = l.head.hash_type & hash_flag::LAYOUT_CHANGE != 0;
    let raw = l.tail.as_ref().try_into().ok().filter(|_| changing)?;
    usize::try_from(u32::from_ne_bytes(raw)).ok()
}

/// Which way names move between that shard and others.
fn way(l: &LmvUserMd, number: usize) -> Option<&'static str> {
    let is_behind = number >= changes_at(l)?;
    match l.head.hash_type & (hash_flag::SPLIT | hash_flag::MERGE) {
        hash_flag::SPLIT => is_behind.then_some("to"),
        hash_flag::MERGE => is_behind.then_some("from"),
        _ if is_behind => Some("from"),
        _ => Some("to"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// As a stock client shows a directory striped over two MDTs.
    #[test]
    fn shown_as_lustre_shows_it() {
        let mut l = LmvUserMd::request(2, 1, hash_type::FNV_1A_64);
        l.head.magic = LMV_MAGIC_STRIPE;
        let shard = |mds, fid: &str| LmvUserMdsData {
            fid: fid.parse().expect("a FID"),
            mds,
            ..Default::default()
        };
        l.objects = vec![
            shard(1, "[0x240000400:0x2:0x0]"),
            shard(0, "[0x200000401:0x2:0x0]"),
        ];
        assert_eq!(
            text(&l, false),
            "lmv_stripe_count: 2 lmv_stripe_offset: 1 lmv_hash_type: fnv_1a_64\nmdtidx\t\t FID[seq:oid:ver]\n     1\t\t [0x240000400:0x2:0x0]\t\t\n     0\t\t [0x200000401:0x2:0x0]\t\t\n"
        );
        assert_eq!(
            text(&l, true),
            "lmv_stripe_count:  2\nlmv_stripe_offset: 1\nlmv_hash_type:     fnv_1a_64\nlmv_objects:\n      - l_mdt_idx: 1\n        l_fid:     0x240000400:0x2:0x0\n      - l_mdt_idx: 0\n        l_fid:     0x200000401:0x2:0x0\n"
        );
        // while it is migrated, split or merged, where names come from and go to
        l.tail = 1u32.to_ne_bytes().to_vec().into();
        let shown = |l: &LmvUserMd| {
            let text = text(l, false);
            let ends = text
                .lines()
                .skip(2)
                .map(|t| t.rsplit('\t').next().unwrap_or("").to_owned());
            ends.collect::<Vec<_>>()
        };
        let changing = |flag| hash_type::FNV_1A_64 | hash_flag::MIGRATION | flag;
        for (flag, ends) in [
            (0, ["to", "from"]),
            (hash_flag::SPLIT, ["", "to"]),
            (hash_flag::MERGE, ["", "from"]),
        ] {
            l.head.hash_type = changing(flag);
            assert_eq!(shown(&l), ends);
        }
        assert!(
            text(&l, true).ends_with("l_fid:     0x200000401:0x2:0x0\n        l_names:   from\n")
        );
        let mut plain = LmvUserMd::request(0, 1, 0);
        plain.head.magic = LMV_MAGIC_STRIPE;
        assert_eq!(
            text(&plain, false),
            "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n"
        );
    }

    /// The text of `lmv_dump_user_lmm` for a default layout.
    #[test]
    fn a_default_says_how_deep_it_goes() {
        let mut l = LmvUserMd::request(1, LMV_OFFSET_DEFAULT, 0);
        (l.head.max_inherit, l.head.max_inherit_rr) = (inherit::UNLIMITED, 3);
        assert_eq!(
            text(&l, false),
            "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 3\n"
        );
        (l.head.max_inherit, l.head.max_inherit_rr) = (inherit::NONE, inherit::RR_UNLIMITED);
        assert_eq!(
            text(&l, true),
            "lmv_stripe_count:  1\nlmv_stripe_offset: -1\nlmv_hash_type:     none\nlmv_max_inherit:   0\nlmv_max_inherit_rr: -1\n"
        );
        l.head.max_inherit = 4;
        assert_eq!(Field::Inherit.of(&l), "4");
    }

    #[test]
    fn mdts_are_listed_and_ranged() {
        assert_eq!(mdt_list("3").ok(), Some(vec![3]));
        assert_eq!(mdt_list("2,0,4-6").ok(), Some(vec![2, 0, 4, 5, 6]));
        assert_eq!(mdt_list("-1").ok(), Some(vec![LMV_OFFSET_DEFAULT]));
        for text in ["", "a", "1,", "5-3", "0-70000", "1,-1"] {
            assert!(mdt_list(text).is_err(), "{text}");
        }
        let mut w = Want {
            mdts: vec![2, 0],
            ..Want::default()
        };
        let lum = w.request(1).expect("a request");
        assert_eq!((lum.head.stripe_count, lum.head.stripe_offset), (2, 2));
        assert_eq!(lum.objects.len(), 2);
        w.count = Some(3);
        assert_eq!(w.request(1).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn hashes_by_name() {
        assert_eq!(hash("crush2").ok(), Some(hash_type::CRUSH2));
        assert_eq!(
            hash("crush,fixed").ok(),
            Some(hash_type::CRUSH | hash_flag::FIXED)
        );
        assert!(hash("none").is_err() && hash("md5").is_err());
        assert_eq!(
            hash_text(hash_type::CRUSH | hash_flag::MIGRATION),
            "crush,migrating"
        );
    }
}
