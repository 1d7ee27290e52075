//! `lfs`: layouts, space and names of a mounted file system, with the options, output and exit codes of Lustre's
//! (`lustre/utils/lfs.c`).
//!
//! It speaks to the mount through extended attributes alone, so it needs no privilege beyond the file's own:
//! `lustre.lov` and `lustre.lmv` are layouts in wire form, `lustre.fid` a file's FID, `lustre.path:[FID]` a name,
//! `lustre.targets.json` and `lustre.statfs.json` (on any file) the targets, and with their space.
//! Exit codes are the errno of the failure, as Lustre's are.

mod df;
mod dirstripe;
mod find;
mod getstripe;
mod migrate;
mod path;
mod pool;
mod project;
mod quota;
mod setstripe;
mod show;

use coral_wire::Errno;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest attribute `lfs` reads, bytes: the kernel's XATTR_SIZE_MAX.
const XATTR_MAX_BYTES: usize = 65536;
/// Most symbolic links on the way of a path, as the kernel has it.
const MAX_LINKS: u32 = 40;

/// Why a command stopped: a line for the user and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The line printed on standard error.
    pub message: String,
    /// The exit code: an errno, or 4 for a wrong command line as in Lustre.
    pub code: u8,
}

/// Exit code of a wrong command line (`CMD_HELP` made positive in `lfs.c`).
pub(crate) const USAGE: u8 = 4;

impl Failure {
    pub(crate) fn new(message: impl Into<String>, code: u8) -> Failure {
        Failure {
            message: message.into(),
            code,
        }
    }

    pub(crate) fn errno(message: impl std::fmt::Display, errno: Errno) -> Failure {
        Failure {
            message: format!("{message}: {errno}"),
            code: errno.0 as u8,
        }
    }
}

impl From<lexopt::Error> for Failure {
    fn from(e: lexopt::Error) -> Failure {
        Failure::new(format!("lfs: {e}"), USAGE)
    }
}

type Run = fn(lexopt::Parser) -> Result<(), Failure>;

const COMMANDS: &[(&str, Run, &str)] = &[
    (
        "check",
        df::check,
        "check {mgts|osts|mdts|all} [PATH]: state of the targets",
    ),
    (
        "df",
        df::df,
        "df [-i] [-h] [PATH]: space or inodes of each MDT and OST",
    ),
    (
        "fid2path",
        path::fid2path,
        "fid2path PATH FID...: names of a FID",
    ),
    (
        "find",
        find::find,
        "find DIR... [-type T] [-name P] [-size N] [-stripe-count N] ...: files by attribute and layout",
    ),
    (
        "getdirstripe",
        dirstripe::getdirstripe,
        "getdirstripe [-c] [-i] [-H] [-y] [-D] DIR...: MDT layout of directories (-D: what new ones inherit)",
    ),
    (
        "getname",
        path::getname,
        "getname [PATH...]: instances of the mounts",
    ),
    (
        "getstripe",
        getstripe::getstripe,
        "getstripe [-c] [-S] [-i] [-d] [-r] [-v] [-y] FILE|DIR...: layouts",
    ),
    ("mdts", df::mdts, "mdts [PATH]: the MDTs"),
    (
        "migrate",
        migrate::migrate,
        "migrate -m MDT[,MDT...] [-c N] [-H HASH] [-d] [-v] DIR|FILE...: directories, with all in them, to other MDTs",
    ),
    (
        "mkdir",
        dirstripe::mkdir,
        "mkdir [-c N] [-i MDT] [-H HASH] [-m MODE] DIR...: a directory on given MDTs; [-D|-d] [-X LEVELS]: the default of a directory",
    ),
    ("osts", df::osts, "osts [PATH]: the OSTs"),
    (
        "quota",
        quota::quota,
        "quota [-q] [-v] [-u|-g|-p ID] MOUNTPOINT: limits and usage of a user, group or project",
    ),
    (
        "pool_list",
        pool::pool_list,
        "pool_list FSNAME[.POOL] | PATH: pools of a file system, or the OSTs of one",
    ),
    (
        "project",
        project::project,
        "project [-p ID] [-s] [-r] | -C [-r] [-k] | -c [-p ID] [-r] | [-d] [-r]  PATH...: project ids, and who inherits them",
    ),
    (
        "path2fid",
        path::path2fid,
        "path2fid PATH...: the FIDs of names",
    ),
    (
        "rmfid",
        path::rmfid,
        "rmfid PATH FID...: removes the objects with these FIDs, with all of their names",
    ),
    (
        "setdirstripe",
        dirstripe::setdirstripe,
        "setdirstripe: same as mkdir; -c N DIR that is there: its names move to N shards in the background",
    ),
    (
        "setstripe",
        setstripe::setstripe,
        "setstripe [-c N] [-S SIZE] [-i OST] [-o LIST] [-E END ...] FILE|DIR...: lay out new files",
    ),
];

/// Runs `lfs` with `args` (without the command's own name).
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let Some(name) = args.first().map(|a| a.to_string_lossy().into_owned()) else {
        usage(None);
        return ExitCode::from(USAGE);
    };
    if name == "--version" {
        println!("lfs {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let about = match name.as_str() {
        "--help" | "-h" | "help" => Some(args.get(1).map(|a| a.to_string_lossy())),
        _ => args[1..]
            .iter()
            .any(|a| a == "--help")
            .then(|| Some(name.as_str().into())),
    };
    if let Some(about) = about {
        usage(about.as_deref());
        return ExitCode::SUCCESS;
    }
    let Some((_, run, _)) = COMMANDS.iter().find(|(n, _, _)| *n == name) else {
        eprintln!("lfs: '{name}' is not an lfs command that Coral has; 'lfs help' lists them");
        return ExitCode::from(USAGE);
    };
    match run(lexopt::Parser::from_args(expand_long(&name, &args[1..]))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            if !f.message.is_empty() {
                eprintln!("{}", f.message);
            }
            ExitCode::from(f.code)
        }
    }
}

/// All commands, or one.
fn usage(command: Option<&str>) {
    match COMMANDS.iter().find(|(n, _, _)| Some(*n) == command) {
        Some((_, _, help)) => println!("usage: lfs {help}"),
        None => {
            println!("lfs COMMAND ...");
            COMMANDS
                .iter()
                .for_each(|(_, _, help)| println!("  {help}"));
        }
    }
}

/// Lustre's `find` takes long options with a single dash (`getopt_long_only`): `-type f` becomes `--type f`,
/// and a negative or signed value is tied to its option so that it is not taken for one.
fn expand_long(command: &str, args: &[OsString]) -> Vec<OsString> {
    let mut out = Vec::new();
    for arg in args {
        let text = arg.to_string_lossy();
        let long_with_one_dash =
            command == "find" && text.starts_with('-') && !text.starts_with("--") && text.len() > 2;
        if long_with_one_dash && text.as_bytes()[1].is_ascii_alphabetic() {
            out.push(OsString::from(format!("-{text}")));
        } else if text.len() > 1
            && text.starts_with('-')
            && text[1..].bytes().all(|b| {
                b.is_ascii_digit() || b.is_ascii_alphabetic() && text.as_bytes()[1].is_ascii_digit()
            })
        {
            // a value such as -1 or -5M: attach it to the option before it
            match out.last_mut() {
                Some(prev) if prev.to_string_lossy().starts_with('-') => {
                    prev.push("=");
                    prev.push(arg);
                }
                _ => out.push(arg.clone()),
            }
        } else {
            out.push(arg.clone());
        }
    }
    out
}

/// One mounted Lustre file system.
#[derive(Debug, Clone)]
pub(crate) struct MountPoint {
    pub path: PathBuf,
    /// `NID[:NID]:/fsname`
    pub source: String,
    /// `MAJOR:MINOR`, the kernel's number of this mount's file system.
    pub device: String,
}

impl MountPoint {
    /// What tells clients of one machine apart: 16 hexadecimal digits, as the kernel client's masked super block address.
    pub(crate) fn instance(&self) -> String {
        let number = |n: Option<&str>| n.and_then(|n| n.parse().ok()).unwrap_or(0u64);
        let mut parts = self.device.split(':');
        format!(
            "ffff{:012x}",
            number(parts.next()) << 20 | number(parts.next())
        )
    }

    /// Name of the file system.
    pub(crate) fn fsname(&self) -> &str {
        let path = self.source.split_once(":/").map_or("", |(_, p)| p);
        path.split('/').next().unwrap_or_default()
    }
}

/// The Lustre mounts of this mount namespace, ours and the kernel's.
pub(crate) fn mounts() -> Result<Vec<MountPoint>, Failure> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| Failure::errno("lfs: /proc/self/mountinfo", e.into()))?;
    Ok(text.lines().filter_map(parse_mountinfo).collect())
}

fn parse_mountinfo(line: &str) -> Option<MountPoint> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let (fstype, source) = (right.next()?, right.next()?);
    if fstype != "fuse.coral" && fstype != "lustre" {
        return None;
    }
    let mut left = left.split(' ').skip(2);
    let (device, path) = (left.next()?.to_owned(), left.nth(1)?);
    Some(MountPoint {
        path: PathBuf::from(path.replace("\\040", " ")),
        source: source.replace("\\040", " "),
        device,
    })
}

/// Whether `path` lies on such a mount: nothing is asked of the file system itself.
pub(crate) fn is_on_mount(path: &Path) -> bool {
    let full = resolved(path);
    let all = mounts().unwrap_or_default();
    all.iter().any(|m| full.starts_with(&m.path))
}

/// `path` from the root, without `.`, `..` and symbolic links. What lies on such a mount goes by its text: its servers may be gone,
/// or it may be measured.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let mounts = mounts().unwrap_or_default();
    let is_on_mount = |p: &Path| mounts.iter().any(|m| p.starts_with(&m.path));
    resolved_beside(path, is_on_mount)
}

fn resolved_beside(path: &Path, is_on_mount: impl Fn(&Path) -> bool) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = |p: &Path| -> Vec<OsString> {
        let parts = p.components().rev();
        parts.map(|c| c.as_os_str().to_owned()).collect()
    };
    let (mut out, mut left, mut links) = (PathBuf::from("/"), parts(&path), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            out.pop();
            continue;
        }
        out.push(&part);
        if part == "." || is_on_mount(&out) || links == MAX_LINKS {
            continue;
        }
        if let Ok(to) = std::fs::read_link(&out) {
            links += 1;
            out.pop();
            left.extend(parts(&to));
        }
    }
    out
}

/// The mount that holds `path`.
pub(crate) fn mount_of(path: &Path) -> Result<MountPoint, Failure> {
    let full = std::fs::canonicalize(path)
        .map_err(|e| Failure::errno(format_args!("lfs: '{}'", path.display()), e.into()))?;
    mounts()?
        .into_iter()
        .filter(|m| full.starts_with(&m.path))
        .max_by_key(|m| m.path.as_os_str().len())
        .ok_or_else(|| {
            Failure::new(
                format!("lfs: '{}' is not on a Lustre file system", path.display()),
                Errno::EOPNOTSUPP.0 as u8,
            )
        })
}

/// The mount of the file system called `fsname`; None: there is none. Of several file systems with that name the one that is
/// meant must be given by its path.
pub(crate) fn mount_named(fsname: &str) -> Result<Option<MountPoint>, Failure> {
    only_one(fsname, mounts()?)
}

fn only_one(fsname: &str, mut mounts: Vec<MountPoint>) -> Result<Option<MountPoint>, Failure> {
    mounts.retain(|m| m.fsname() == fsname);
    if mounts.iter().all(|m| m.device == mounts[0].device) {
        return Ok(mounts.into_iter().next());
    }
    let places: Vec<String> = mounts
        .iter()
        .map(|m| m.path.display().to_string())
        .collect();
    let why = format!(
        "lfs: '{fsname}' is mounted more than once, on {}: give the mount point of the one that is meant",
        places.join(", ")
    );
    Err(Failure::new(why, Errno::EINVAL.0 as u8))
}

/// Reads an extended attribute of `path` (of the link itself when it is one).
pub(crate) fn xattr(path: &Path, name: impl AsRef<OsStr>) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0u8; XATTR_MAX_BYTES];
    let n = rustix::fs::lgetxattr(path, name.as_ref(), &mut buf[..])
        .map_err(|e| Errno(e.raw_os_error()))?;
    buf.truncate(n);
    Ok(buf)
}

/// Sets an extended attribute of `path`, creating or replacing it.
pub(crate) fn set_xattr(
    path: &Path,
    name: &str,
    value: &[u8],
    flags: rustix::fs::XattrFlags,
) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, name, value, flags).map_err(|e| Errno(e.raw_os_error()))
}

/// A size with an optional unit (`64K`, `1M`, `4G`; powers of 1024), bytes.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        _ => return None,
    };
    let n: u64 = digits.parse().ok()?;
    n.checked_mul(1u64 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_resolved_without_a_look_at_mounts() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().canonicalize().unwrap().join(p);
        std::fs::create_dir_all(at("a/deep")).unwrap();
        std::fs::create_dir(at("mnt")).unwrap();
        symlink("a/deep", at("near")).unwrap();
        symlink(at("mnt"), at("far")).unwrap();
        symlink("round", at("round")).unwrap();
        // a link that is on the mount would be an operation of it
        symlink("/elsewhere", at("mnt/link")).unwrap();
        let to = |p: &str| resolved_beside(&at(p), |p| p.starts_with(at("mnt")));
        for (path, is) in [
            ("mnt", "mnt"),
            ("a/../mnt", "mnt"),
            ("near/../../mnt", "mnt"),
            ("near/..", "a"),
            ("far/sub/../f", "mnt/f"),
            ("mnt/../mnt/./link", "mnt/link"),
            ("gone/../a", "a"),
            ("round", "round"),
        ] {
            assert_eq!(to(path), at(is), "{path}");
        }
    }

    #[test]
    fn of_several_file_systems_of_one_name_none_is_taken_by_the_name() {
        let mount = |path: &str, source: &str, device: &str| MountPoint {
            path: path.into(),
            source: source.into(),
            device: device.into(),
        };
        let (a, b) = (
            mount("/a", "127.0.0.1@tcp:/coral", "0:50"),
            mount("/b", "127.0.0.1@tcp:/coral", "0:51"),
        );
        let bound = mount("/c", "127.0.0.1@tcp:/coral", "0:50");
        let found = |mounts: &[&MountPoint]| {
            only_one("coral", mounts.iter().map(|m| (*m).clone()).collect())
                .map(|m| m.map(|m| m.path))
        };
        assert_eq!(
            found(&[&a, &mount("/d", "10.0.0.1@tcp:/other", "0:52")]).ok(),
            Some(Some("/a".into()))
        );
        assert_eq!(
            found(&[&a, &bound]).ok(),
            Some(Some("/a".into())),
            "the same, twice in the tree"
        );
        assert!(found(&[&a, &b]).is_err());
        assert_eq!(found(&[]).ok(), Some(None));
    }

    #[test]
    fn sizes_take_units_and_refuse_nonsense() {
        assert_eq!(parse_size("64K"), Some(65536));
        assert_eq!(parse_size("1M"), Some(1 << 20));
        assert_eq!(parse_size("5"), Some(5));
        assert_eq!(parse_size("M"), None);
        assert_eq!(parse_size("16E"), None, "overflow is refused");
        assert_eq!(parse_size("1X"), None);
    }

    #[test]
    fn find_options_with_one_dash_become_long_and_negative_values_stay_values() {
        let args: Vec<OsString> = ["-type", "f", "-c", "-1", "-size", "-5M"]
            .iter()
            .map(OsString::from)
            .collect();
        let got: Vec<String> = expand_long("find", &args)
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect();
        assert_eq!(got, ["--type", "f", "-c=-1", "--size=-5M"]);
        let got: Vec<String> = expand_long("setstripe", &["-c".into(), "-1".into(), "d".into()])
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect();
        assert_eq!(got, ["-c=-1", "d"]);
    }

    #[test]
    fn mountinfo_lines_of_lustre_are_found() {
        let line =
            "36 35 0:32 / /mnt/a\\040b rw,relatime shared:1 - fuse.coral 127.0.0.1@tcp:/coral rw";
        let m = parse_mountinfo(line).unwrap();
        assert_eq!(m.path, Path::new("/mnt/a b"));
        assert_eq!(m.source, "127.0.0.1@tcp:/coral");
        assert_eq!(m.instance(), "ffff000000000020", "device 0:32");
        assert_eq!(m.fsname(), "coral");
        let sub = MountPoint {
            source: "10.0.0.1@tcp:10.0.0.2@tcp:/lfs/a/b".into(),
            ..m
        };
        assert_eq!(sub.fsname(), "lfs", "of a mount of a directory too");
        assert!(parse_mountinfo("36 35 0:32 / /mnt rw - ext4 /dev/a rw").is_none());
    }
}
