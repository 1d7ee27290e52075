//! `lfs quota`: limits and usage of a user, a group or a project (`lfs_quota` in `lustre/utils/lfs.c`).

use super::{Failure, USAGE, mount_of, xattr};
use coral_wire::Errno;
use lexopt::prelude::*;
use serde::Deserialize;
use std::fmt::Write;
use std::path::PathBuf;

/// What the mount answers (attribute `lustre.quota:KIND:ID`).
#[derive(Debug, Default, Deserialize)]
struct Answer {
    bsoft_kib: u64,
    bhard_kib: u64,
    isoft: u64,
    ihard: u64,
    btime: u64,
    itime: u64,
    targets: Vec<Usage>,
}

#[derive(Debug, Default, Deserialize)]
struct Usage {
    uuid: String,
    mdt: bool,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    inodes: u64,
    errno: Option<i32>,
}

/// Whose: the letter, the word in the heading, the word for the number, the file that names them.
type Kind = (char, &'static str, &'static str, &'static str);
const USER: Kind = ('u', "usr", "uid", "/etc/passwd");
const GROUP: Kind = ('g', "grp", "gid", "/etc/group");
const PROJECT: Kind = ('p', "prj", "pid", "/etc/projid");

const HEADING: &str =
    "     Filesystem  kbytes  bquota  blimit  bgrace   files  iquota  ilimit  igrace \n";

pub(crate) fn quota(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut whose, mut quiet, mut verbose, mut path) = (None, false, false, None);
    while let Some(arg) = p.next()? {
        match arg {
            Short('u') => whose = Some((USER, p.value()?.string()?)),
            Short('g') => whose = Some((GROUP, p.value()?.string()?)),
            Short('p') => whose = Some((PROJECT, p.value()?.string()?)),
            Short('q') => quiet = true,
            Short('v') => verbose = true,
            Value(v) if path.is_none() => path = Some(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    let path = path.ok_or_else(|| {
        Failure::new(
            "lfs quota: say which file system: lfs quota [-q] [-v] [-u|-g|-p ID] MOUNTPOINT",
            USAGE,
        )
    })?;
    let mount = mount_of(&path)?;
    let asked = match whose {
        Some((kind, text)) => vec![(kind, number(kind, &text)?)],
        None => vec![
            (USER, rustix::process::getuid().as_raw()),
            (GROUP, rustix::process::getgid().as_raw()),
        ],
    };
    for (kind, id) in asked {
        if !quiet {
            print!(
                "Disk quotas for {} {} ({} {id}):\n{HEADING}",
                kind.1,
                name(kind, id).unwrap_or_else(|| "<unknown>".into()),
                kind.2
            );
        }
        let raw = xattr(&mount.path, format!("lustre.quota:{}:{id}", kind.0))
            .map_err(|e| Failure::errno("Unexpected quotactl error", e))?;
        let answer: Answer = serde_json::from_slice(&raw).map_err(|e| {
            Failure::new(
                format!("lfs quota: unreadable answer: {e}"),
                Errno::EPROTO.0 as u8,
            )
        })?;
        print!(
            "{}",
            table(&mount.path.display().to_string(), &answer, verbose)
        );
    }
    Ok(())
}

fn names(kind: Kind) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(kind.3).unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        // NAME:x:ID of users and groups, NAME:ID of projects
        let id = if kind.0 == 'p' {
            fields.next()?
        } else {
            fields.nth(1)?
        };
        Some((name, id.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

fn number(kind: Kind, text: &str) -> Result<u32, Failure> {
    let known = || {
        names(kind)
            .into_iter()
            .find(|(n, _)| n == text)
            .map(|(_, id)| id)
    };
    text.parse().ok().or_else(known).ok_or_else(|| {
        Failure::new(
            format!("lfs quota: unknown {} '{text}'", kind.1),
            Errno::EINVAL.0 as u8,
        )
    })
}

fn name(kind: Kind, id: u32) -> Option<String> {
    names(kind)
        .into_iter()
        .find(|(_, i)| *i == id)
        .map(|(n, _)| n)
}

fn table(mount: &str, a: &Answer, verbose: bool) -> String {
    let here = |t: &&Usage| t.errno.is_none();
    let kib = a
        .targets
        .iter()
        .filter(here)
        .map(|t| t.bytes)
        .sum::<u64>()
        .div_ceil(1024);
    let files: u64 = a
        .targets
        .iter()
        .filter(here)
        .filter(|t| t.mdt)
        .map(|t| t.inodes)
        .sum();
    // over the limit: a star behind the number, and the time that is left
    let over = |used: u64, soft: u64| soft > 0 && used > soft;
    let cell = |n: u64, star: bool| format!("{n}{}", if star { "*" } else { "" });
    let grace = |star: bool, time: u64| {
        if star && time > 0 {
            time.to_string()
        } else {
            "-".to_owned()
        }
    };
    let (b, i) = (over(kib, a.bsoft_kib), over(files, a.isoft));
    // a long name has a line of its own
    let mount = if mount.len() > 15 {
        format!("{mount}\n{:15}", "")
    } else {
        mount.to_owned()
    };
    let mut out = format!(
        "{mount:>15}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8} \n",
        cell(kib, b),
        a.bsoft_kib,
        a.bhard_kib,
        grace(b, a.btime),
        cell(files, i),
        a.isoft,
        a.ihard,
        grace(i, a.itime)
    );
    for t in &a.targets {
        let name = t.uuid.trim_end_matches("_UUID");
        match t.errno {
            Some(e) => {
                let _ = writeln!(out, "{name:>15} quotactl failed: {}", Errno(e));
            }
            None if verbose => {
                let _ = writeln!(
                    out,
                    "{name:>15}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8} ",
                    t.bytes.div_ceil(1024),
                    "-",
                    0,
                    "-",
                    t.inodes,
                    "-",
                    0,
                    "-"
                );
            }
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a kernel client of 2.17 printed it.
    #[test]
    fn the_table_is_lustres() {
        let t = |uuid: &str, mdt, kib: u64, inodes| Usage {
            uuid: uuid.into(),
            mdt,
            bytes: kib << 10,
            inodes,
            errno: None,
        };
        let mut a = Answer {
            targets: vec![
                t("lfs-MDT0000_UUID", true, 1732, 277),
                t("lfs-OST0000_UUID", false, 3548, 359),
            ],
            ..Default::default()
        };
        assert_eq!(
            table("/mnt/lfs", &a, true),
            "       /mnt/lfs    5280       0       0       -     277       0       0       - \n    lfs-MDT0000    1732       -       0       -     277       -       0       - \n    lfs-OST0000    3548       -       0       -     359       -       0       - \n"
        );
        (a.bsoft_kib, a.bhard_kib, a.btime) = (5000, 6000, 604_800);
        assert!(table("/mnt/lfs", &a, false).contains("5280*    5000    6000  604800 "));
    }
}
