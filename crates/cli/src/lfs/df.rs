//! `lfs df`, `osts`, `mdts`, `check`: the targets of a mount and their space.

use super::{Failure, MountPoint, mount_of, mounts, xattr};
use coral_wire::Errno;
use lexopt::prelude::*;
use serde::Deserialize;
use std::path::PathBuf;

/// What the mount says of its targets: the attributes [`STATE`] and [`SPACE`].
#[derive(Debug, Deserialize)]
pub(crate) struct Targets {
    pub mdts: Vec<TargetSpace>,
    pub osts: Vec<TargetSpace>,
    /// The MGS answers.
    #[serde(default)]
    pub mgs_active: bool,
}

/// The attribute with the targets and whether they answer.
const STATE: &str = "lustre.targets.json";
/// The attribute with their space as well: it asks each of them.
const SPACE: &str = "lustre.statfs.json";

/// One target and its space, as `obd_statfs` has it; none of that when only its state was asked for, or it did not say.
#[derive(Debug, Default, Deserialize, Clone)]
#[serde(default)]
pub(crate) struct TargetSpace {
    pub uuid: String,
    pub index: u32,
    pub active: bool,
    /// Why it did not say.
    pub errno: u8,
    /// Bytes a block.
    pub bsize: u64,
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
}

/// The targets and whether they answer.
pub(super) fn targets(mount: &MountPoint) -> Result<Targets, Failure> {
    told(mount, STATE)
}

fn told(mount: &MountPoint, attribute: &str) -> Result<Targets, Failure> {
    let raw = xattr(&mount.path, attribute).map_err(|e| {
        Failure::errno(
            format_args!(
                "lfs: '{}' does not answer as a Coral mount",
                mount.path.display()
            ),
            e,
        )
    })?;
    serde_json::from_slice(&raw).map_err(|e| {
        Failure::new(
            format!(
                "lfs: '{}': unreadable target list: {e}",
                mount.path.display()
            ),
            5,
        )
    })
}

/// The mounts a command is about: the one that holds `path`, else all.
fn chosen(path: Option<PathBuf>) -> Result<Vec<MountPoint>, Failure> {
    let found = match path {
        Some(p) => vec![mount_of(&p)?],
        None => mounts()?,
    };
    if found.is_empty() {
        return Err(Failure::new(
            "lfs: no Lustre file system is mounted here",
            19,
        ));
    }
    Ok(found)
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    Kib,
    Human,
    Inodes,
    InodesHuman,
}

pub(crate) fn df(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut inodes, mut human, mut path) = (false, false, None);
    while let Some(arg) = p.next()? {
        match arg {
            Short('i') | Long("inodes") => inodes = true,
            Short('h') | Long("human-readable") => human = true,
            Short('l') | Long("lazy") => {}
            Value(v) => path = Some(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    let unit = match (inodes, human) {
        (false, false) => Unit::Kib,
        (false, true) => Unit::Human,
        (true, false) => Unit::Inodes,
        (true, true) => Unit::InodesHuman,
    };
    for mount in chosen(path)? {
        print_df(&mount, &told(&mount, SPACE)?, unit);
    }
    Ok(())
}

fn print_df(mount: &MountPoint, targets: &Targets, unit: Unit) {
    print!(
        "{}",
        df_text(&mount.path.display().to_string(), targets, unit)
    );
}

fn df_text(mount: &str, t: &Targets, unit: Unit) -> String {
    let inodes = matches!(unit, Unit::Inodes | Unit::InodesHuman);
    let mut out = match unit {
        Unit::Kib => format!(
            "{:<20} {:>11} {:>11} {:>11} {:>4}  {}\n",
            "UUID", "1K-blocks", "Used", "Available", "Use%", "Mounted on"
        ),
        Unit::Human => format!(
            "{:<20} {:>11} {:>11} {:>11} {:>4}  {}\n",
            "UUID", "bytes", "Used", "Available", "Use%", "Mounted on"
        ),
        _ => format!(
            "{:<20} {:>11} {:>11} {:>11} {:>4}  {}\n",
            "UUID", "Inodes", "IUsed", "IFree", "IUse%", "Mounted on"
        ),
    };
    for (kind, list) in [("MDT", &t.mdts), ("OST", &t.osts)] {
        for target in list {
            if !target.active {
                out.push_str(&format!("{:<20}: {}\n", target.uuid, silent(target.errno)));
                continue;
            }
            let place = format!("{mount}[{kind}:{}]", target.index);
            out.push_str(&row(&target.uuid, values(target, inodes), unit, &place));
        }
    }
    out.push('\n');
    out.push_str(&row("filesystem_summary:", summary(t, inodes), unit, mount));
    out.push('\n');
    out
}

/// What is said of a target without figures (`showdf` in `lustre/utils/lfs.c`).
fn silent(errno: u8) -> String {
    match Errno(errno.into()) {
        Errno::ENODATA => "inactive device".to_owned(),
        e => e.text().to_owned(),
    }
}

/// (total, used, available) in bytes or inodes.
fn values(t: &TargetSpace, inodes: bool) -> [u64; 3] {
    if inodes {
        [t.files, t.files.saturating_sub(t.ffree), t.ffree]
    } else {
        [
            t.blocks * t.bsize,
            t.blocks.saturating_sub(t.bfree) * t.bsize,
            t.bavail * t.bsize,
        ]
    }
}

/// Space is the sum over the OSTs; inodes are the MDTs', unless the OSTs have fewer free objects.
fn summary(t: &Targets, inodes: bool) -> [u64; 3] {
    let sum = |list: &[TargetSpace]| {
        list.iter()
            .filter(|t| t.active)
            .map(|t| values(t, inodes))
            .fold([0; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]])
    };
    if !inodes {
        return sum(&t.osts);
    }
    let (mdts, osts) = (sum(&t.mdts), sum(&t.osts));
    let free = mdts[2].min(osts[2]);
    [mdts[1] + free, mdts[1], free]
}

fn row(name: &str, v: [u64; 3], unit: Unit, place: &str) -> String {
    let total = v[1] + v[2];
    let percent = if total == 0 {
        0
    } else {
        (v[1] as u128 * 100).div_ceil(total as u128)
    };
    let show = |n: u64| match unit {
        Unit::Kib => format!("{:>11}", n / 1024),
        Unit::Inodes => format!("{n:>11}"),
        Unit::Human | Unit::InodesHuman => human(n),
    };
    format!(
        "{:<20} {} {} {} {:>3}%  {} \n",
        name,
        show(v[0]),
        show(v[1]),
        show(v[2]),
        percent,
        place
    )
}

/// Powers of 1024 with one digit behind the point, in `lfs df -h`'s columns (11 wide without a unit, 9 with one).
fn human(n: u64) -> String {
    let (mut value, mut suffix) = (n as f64, "");
    for s in ["K", "M", "G", "T", "P", "E"] {
        if value <= 1024.0 {
            break;
        }
        (value, suffix) = (value / 1024.0, s);
    }
    if suffix.is_empty() {
        format!("{n:>11}")
    } else {
        format!("{value:>8.1}{suffix}")
    }
}

fn list(
    mut p: lexopt::Parser,
    title: &str,
    pick: fn(Targets) -> Vec<TargetSpace>,
) -> Result<(), Failure> {
    let mut path = None;
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) => path = Some(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    for mount in chosen(path)? {
        println!("{title}:");
        for t in pick(targets(&mount)?) {
            println!(
                "{}: {} {}",
                t.index,
                t.uuid,
                if t.active { "ACTIVE" } else { "INACTIVE" }
            );
        }
    }
    Ok(())
}

pub(crate) fn osts(p: lexopt::Parser) -> Result<(), Failure> {
    list(p, "OBDS", |t| t.osts)
}

pub(crate) fn mdts(p: lexopt::Parser) -> Result<(), Failure> {
    list(p, "MDTS", |t| t.mdts)
}

pub(crate) fn check(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut what, mut path) = (None, None);
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) if what.is_none() => what = Some(v.string()?),
            Value(v) => path = Some(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    let what = what.unwrap_or_default();
    if !matches!(what.as_str(), "osts" | "mdts" | "mgts" | "all") {
        return Err(Failure::new(
            "lfs check: give one of mgts, osts, mdts, all",
            super::USAGE,
        ));
    }
    for mount in chosen(path)? {
        let t = targets(&mount)?;
        let say = |list: &[TargetSpace], kind: &str| {
            for t in list {
                println!(
                    "{}-{kind}-{} {}",
                    t.uuid.trim_end_matches("_UUID"),
                    mount.instance(),
                    if t.active { "active." } else { "inactive." }
                );
            }
        };
        if matches!(what.as_str(), "osts" | "all") {
            say(&t.osts, "osc");
        }
        if matches!(what.as_str(), "mdts" | "all") {
            say(&t.mdts, "mdc");
        }
        if matches!(what.as_str(), "mgts" | "all") {
            println!(
                "{} {}",
                mgc(&mount.source),
                if t.mgs_active { "active." } else { "inactive." }
            );
        }
    }
    Ok(())
}

/// The connection to the MGS is named by its first NID.
fn mgc(source: &str) -> String {
    format!("MGC{}", source.split([':', ',']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uuid: &str, index: u32, kib: [u64; 3], files: [u64; 2]) -> TargetSpace {
        TargetSpace {
            uuid: uuid.into(),
            index,
            active: true,
            errno: 0,
            bsize: 1024,
            blocks: kib[0],
            bfree: kib[0] - kib[1],
            bavail: kib[2],
            files: files[0],
            ffree: files[1],
        }
    }

    /// The figures and the text are those a real Lustre printed (golden/client-commands.txt).
    #[test]
    fn df_prints_what_lustre_prints() {
        let t = Targets {
            mdts: vec![
                target(
                    "lfs-MDT0000_UUID",
                    0,
                    [585656, 1672, 516780],
                    [419432, 419155],
                ),
                target(
                    "lfs-MDT0001_UUID",
                    1,
                    [585656, 1528, 516924],
                    [419432, 419175],
                ),
            ],
            osts: vec![
                target(
                    "lfs-OST0000_UUID",
                    0,
                    [3833116, 1528, 3605492],
                    [262144, 261775],
                ),
                target(
                    "lfs-OST0001_UUID",
                    1,
                    [3833116, 1528, 3605492],
                    [262144, 261775],
                ),
            ],
            mgs_active: true,
        };
        let golden = "\
UUID                   1K-blocks        Used   Available Use%  Mounted on
lfs-MDT0000_UUID          585656        1672      516780   1%  /mnt/lfs[MDT:0] 
lfs-MDT0001_UUID          585656        1528      516924   1%  /mnt/lfs[MDT:1] 
lfs-OST0000_UUID         3833116        1528     3605492   1%  /mnt/lfs[OST:0] 
lfs-OST0001_UUID         3833116        1528     3605492   1%  /mnt/lfs[OST:1] 

filesystem_summary:      7666232        3056     7210984   1%  /mnt/lfs 

";
        assert_eq!(df_text("/mnt/lfs", &t, Unit::Kib), golden);
        let golden_inodes = "\
UUID                      Inodes       IUsed       IFree IUse%  Mounted on
lfs-MDT0000_UUID          419432         277      419155   1%  /mnt/lfs[MDT:0] 
lfs-MDT0001_UUID          419432         257      419175   1%  /mnt/lfs[MDT:1] 
lfs-OST0000_UUID          262144         369      261775   1%  /mnt/lfs[OST:0] 
lfs-OST0001_UUID          262144         369      261775   1%  /mnt/lfs[OST:1] 

filesystem_summary:       524084         534      523550   1%  /mnt/lfs 

";
        assert_eq!(df_text("/mnt/lfs", &t, Unit::Inodes), golden_inodes);
        let golden_human_row =
            "lfs-MDT0000_UUID        571.9M      1.6M    504.7M   1%  /mnt/lfs[MDT:0] ";
        assert!(df_text("/mnt/lfs", &t, Unit::Human).contains(golden_human_row));
    }

    #[test]
    fn the_mgs_goes_by_its_first_nid() {
        assert_eq!(mgc("10.77.0.2@tcp:/lfs"), "MGC10.77.0.2@tcp");
        assert_eq!(
            mgc("10.77.0.2@tcp,10.78.0.2@tcp1:10.77.0.3@tcp:/lfs/d"),
            "MGC10.77.0.2@tcp"
        );
    }

    #[test]
    fn a_target_that_does_not_answer_is_named_and_not_counted() {
        let answer = br#"{"fsname":"lfs","mdts":[{"index":0,"uuid":"lfs-MDT0000_UUID","active":true,"bsize":1024,"blocks":100,"bfree":90,"bavail":80,"files":10,"ffree":4}],
            "osts":[{"index":0,"uuid":"lfs-OST0000_UUID","active":true,"bsize":1024,"blocks":100,"bfree":60,"bavail":50,"files":10,"ffree":5},
                    {"index":1,"uuid":"lfs-OST0001_UUID","active":false,"errno":11},{"index":2,"uuid":"lfs-OST0002_UUID","active":false,"errno":61}],"mgs_active":true}"#;
        let t: Targets = serde_json::from_slice(answer).unwrap();
        let text = df_text("/mnt/lfs", &t, Unit::Kib);
        assert!(text.contains("\nlfs-OST0001_UUID    : Resource temporarily unavailable\nlfs-OST0002_UUID    : inactive device\n"), "{text}");
        assert!(
            text.contains("filesystem_summary:          100          40          50  45%"),
            "{text}"
        );
    }
}
