//! `coral check`: verifies targets that are not running.
//!
//! Each target's label and tables are read whole (a torn or flipped block is named); the MDT's name space must be a tree with
//! the right link counts; and every object on the OSTs must belong to a file, or be waiting for its removal.
//! Nothing in a target is changed (`coral_osd::Inspection`) but by `--repair` ([`crate::repair`]).
//! A target that cannot be opened is a problem like any other: the rest is checked all the same.

use crate::args::Check;
use crate::repair::{self, Lines};
use crate::up;
use coral_node::target_dir;
use coral_osd::{Inspection, Kv, Label, ObjectId, OpenError, OsdError, OsdFs, TargetKind};
use coral_server::mdt;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most problems printed of one target; the count is always whole.
const PRINTED_MAX: usize = 100;

/// What was found on one target.
#[derive(Debug, Serialize)]
struct Found {
    target: String,
    dir: PathBuf,
    problems: Vec<String>,
    /// What `--repair` did, before this was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repaired: Vec<String>,
    /// Files and directories (MDT) or objects (OST).
    items: u64,
    note: String,
}

/// A target to check.
pub(crate) struct CheckedTarget {
    pub(crate) dir: PathBuf,
    /// Its label's name, or its directory's when the label cannot be read.
    name: String,
    /// Uuid of the target that `coral up` formatted there, if known.
    pub(crate) expected: Option<String>,
    pub(crate) opened: Result<(Arc<Inspection>, Label), OpenError>,
}

impl CheckedTarget {
    pub(crate) fn open(dir: PathBuf, expected: Option<String>) -> CheckedTarget {
        let name = match OsdFs::label(&dir) {
            Ok(label) => label.target_name(),
            Err(_) => dir
                .file_name()
                .unwrap_or(dir.as_os_str())
                .to_string_lossy()
                .into_owned(),
        };
        let opened = Inspection::open(&dir)
            .map(|osd| (osd.label().clone(), osd))
            .map(|(label, osd)| (Arc::new(osd), label));
        CheckedTarget {
            dir,
            name,
            expected,
            opened,
        }
    }

    pub(crate) fn label(&self) -> Option<&Label> {
        self.opened.as_ref().ok().map(|(_, label)| label)
    }

    pub(crate) fn is_mdt_of(&self, fsname: &str) -> bool {
        let is = |l: &Label| l.kind == TargetKind::Mdt && l.fsname == fsname;
        self.label().is_some_and(is)
    }
}

/// Where targets are, each with the uuid of the one that was formatted there, if that is known.
type Listed = Vec<(Option<String>, PathBuf)>;

/// The targets in these directories, and what is wrong with files that list them.
fn listed(dirs: &[PathBuf]) -> Result<(Listed, Vec<Found>), String> {
    let (mut targets, mut found) = (Listed::new(), Vec::new());
    for dir in dirs {
        match up::read_config(dir) {
            Ok(Some(config)) => {
                let expected = |target: &Path| {
                    let name = target.file_name().unwrap_or_default();
                    config.targets.get(&*name.to_string_lossy()).cloned()
                };
                let dirs = config.target_dirs(dir).into_iter();
                targets.extend(dirs.map(|t| (expected(&t), t)));
            }
            Ok(None) => targets.extend(target_dirs(dir)?.into_iter().map(|t| (None, t))),
            Err(why) => {
                found.push(Found {
                    target: "coral.json".into(),
                    dir: dir.clone(),
                    problems: vec![why],
                    repaired: Vec::new(),
                    items: 0,
                    note: String::new(),
                });
                let dirs = target_dirs(dir).unwrap_or_default().into_iter();
                targets.extend(dirs.map(|t| (None, t)));
            }
        }
    }
    Ok((targets, found))
}

fn opened(listed: &Listed) -> Vec<CheckedTarget> {
    let open = |(expected, dir): &(Option<String>, PathBuf)| {
        CheckedTarget::open(dir.clone(), expected.clone())
    };
    listed.iter().map(open).collect()
}

/// Entry of `coral check`.
pub(crate) fn run(c: Check) -> Result<(), String> {
    let (listed, mut found) = listed(&c.dirs)?;
    let mut repaired = match c.repair {
        true => repair::run(opened(&listed), c.remove_objects)?,
        false => Lines::new(),
    };
    found.extend(check(&opened(&listed)));
    for f in &mut found {
        f.repaired = repaired.remove(&f.dir).unwrap_or_default();
    }
    if c.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&found).map_err(|e| e.to_string())?
        );
    } else {
        found.iter().for_each(print);
    }
    match found.iter().map(|f| f.problems.len()).sum::<usize>() {
        0 => Ok(()),
        n if c.repair => Err(format!("{n} problems are left")),
        n => Err(format!("{n} problems found")),
    }
}

/// `dir` if it is a target, else those in it; as `coral serve` takes them, but a damaged label is no reason to stop.
fn target_dirs(dir: &Path) -> Result<Vec<PathBuf>, String> {
    if dir.join("CORAL").is_file() {
        return Ok(vec![dir.to_owned()]);
    }
    let entries = std::fs::read_dir(dir)
        .map_err(|e| format!("'{}': {e}", dir.display()))?
        .flatten();
    let mut inner: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|p| p.join("CORAL").is_file())
        .collect();
    inner.sort();
    if inner.is_empty() {
        Err(format!(
            "'{}' is not a Coral target and holds none",
            dir.display()
        ))
    } else {
        Ok(inner)
    }
}

fn print(f: &Found) {
    let verdict = if f.problems.is_empty() {
        "clean".to_owned()
    } else {
        format!("{} problems", f.problems.len())
    };
    println!("{:<16} {verdict:<12} {:>9} {}", f.target, f.items, f.note);
    for done in &f.repaired {
        println!("    repaired: {done}");
    }
    for p in f.problems.iter().take(PRINTED_MAX) {
        println!("    {p}");
    }
    if f.problems.len() > PRINTED_MAX {
        println!("    and {} more", f.problems.len() - PRINTED_MAX);
    }
}

fn check(targets: &[CheckedTarget]) -> Vec<Found> {
    let mut mdts: BTreeMap<&str, Vec<&CheckedTarget>> = BTreeMap::new();
    for t in targets {
        if let Some(label) = t.label().filter(|l| l.kind == TargetKind::Mdt) {
            mdts.entry(&label.fsname).or_default().push(t);
        }
    }
    let (mut reports, mut broken) = (BTreeMap::new(), BTreeMap::new());
    for (fsname, mdts) in mdts {
        let opened = mdts.iter().filter_map(|t| t.opened.as_ref().ok());
        let kvs: Vec<&dyn Kv> = opened.map(|(osd, _)| &**osd as &dyn Kv).collect();
        match mdt::check_all(&kvs) {
            Ok(r) => drop(reports.insert(fsname, r)),
            Err(e) => {
                let why = format!("the name space cannot be read: {e}");
                broken.extend(mdts.iter().map(|t| (&t.dir, why.clone())));
            }
        }
    }
    let one = |t: &CheckedTarget| {
        let report = t.label().and_then(|l| reports.get(&*l.fsname));
        let mut found = check_one(t, report);
        found.problems.extend(broken.get(&t.dir).cloned());
        found.problems.extend(misplaced(t, targets));
        found
    };
    targets.iter().map(one).collect()
}

/// What is wrong with where a target is: another was formatted there, or it is there twice.
fn misplaced(t: &CheckedTarget, all: &[CheckedTarget]) -> Vec<String> {
    let Some(label) = t.label() else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    if t.expected.as_ref().is_some_and(|uuid| *uuid != label.uuid) {
        problems.push(format!(
            "'{}' holds another target than was formatted there; put the right directory back",
            t.dir.display()
        ));
    }
    let same = |o: &&CheckedTarget| {
        o.dir != t.dir
            && o.label().is_some_and(|l| {
                (l.kind, &l.fsname, l.index) == (label.kind, &label.fsname, label.index)
            })
    };
    let twins = all.iter().filter(same);
    problems.extend(twins.map(|o| format!("'{}' and '{}' are both {}: one of them is a copy or was formatted with the wrong index", t.dir.display(), o.dir.display(), t.name)));
    problems
}

fn check_one(t: &CheckedTarget, mdt: Option<&mdt::check::Report>) -> Found {
    let mut found = Found {
        target: t.name.clone(),
        dir: t.dir.clone(),
        problems: Vec::new(),
        repaired: Vec::new(),
        items: 0,
        note: String::new(),
    };
    let (osd, label) = match &t.opened {
        Ok(opened) => opened,
        Err(why) => {
            found.problems.push(why.to_string());
            return found;
        }
    };
    found.problems.extend(osd.problems().iter().cloned());
    let beside = [
        target_dir::read_failover(&t.dir).err(),
        target_dir::read_defaults(&t.dir).err(),
    ];
    found
        .problems
        .extend(beside.iter().flatten().map(ToString::to_string));
    if let Err(e) = osd.verify_tables() {
        found.problems.push(format!("tables: {e}; restore the target directory from a copy, or see \"Damaged tables\" in docs/guide.md"));
    }
    match (label.kind, mdt) {
        (TargetKind::Mdt, Some(r)) if r.never_served => {
            found.note = "formatted, never served: no root directory yet".into();
        }
        (TargetKind::Mdt, Some(r)) => {
            found.items = r.items.get(&label.index).copied().unwrap_or(0);
            check_data(osd, label, r, &mut found);
            // what is told of the whole name space is told once
            if r.items.keys().next() == Some(&label.index) {
                found
                    .problems
                    .extend(r.problems.iter().map(ToString::to_string));
                found.note = note_of(r);
            } else {
                found.note = "files and directories".into();
            }
        }
        (TargetKind::Ost, _) => check_objects(osd, label, mdt, &mut found),
        _ => found.note = "label and tables".into(),
    }
    found
}

/// What is told of a name space beside its problems.
fn note_of(r: &mdt::check::Report) -> String {
    let mut note = format!(
        "files and directories; {} open without a name, {}",
        r.open_orphans, r.destroy_pending
    );
    if r.unfinished > 0 {
        note.push_str(&format!(
            ", {} operations over several MDTs that the next start ends",
            r.unfinished
        ));
    }
    if let Some(index) = r.missing {
        note.push_str(&format!(
            ", MDT{index:04x} was not given: objects that no file has cannot be told"
        ));
    }
    if r.elsewhere > 0 {
        note.push_str(&format!(
            ", {} names lead to MDTs whose directories were not given",
            r.elsewhere
        ));
    }
    note
}

/// Objects of an OST that no file has, and data on an MDT of files that are not there.
pub(crate) fn nobodys(
    osd: &Inspection,
    label: &Label,
    report: &mdt::check::Report,
) -> Result<Vec<ObjectId>, OsdError> {
    let is_nobodys = |id: &ObjectId| match label.kind {
        TargetKind::Mdt => !report.data.contains(id),
        _ => {
            let key = (label.index, id.oid);
            // files take their objects along to other MDTs
            report.missing.is_none()
                && report.items.contains_key(&mdt::object_ids::mdt_of(id.oid))
                && !report.objects.contains_key(&key)
                && !report.destroy_pending.contains(key.0, key.1)
        }
    };
    let mut ids = Vec::new();
    osd.iterate(&mut |id, _| {
        ids.extend(Some(id).filter(is_nobodys));
        true
    })?;
    Ok(ids)
}

/// Data on the MDT of files that are not there.
fn check_data(osd: &Inspection, label: &Label, report: &mdt::check::Report, found: &mut Found) {
    match nobodys(osd, label, report) {
        Ok(ids) => found.problems.extend(
            ids.iter()
                .map(|id| format!("orphan data {:#x}:{:#x}: no file has it", id.seq, id.oid)),
        ),
        Err(e) => found.problems.push(format!("data on the MDT: {e}")),
    }
}

fn check_objects(
    osd: &Inspection,
    label: &Label,
    mdt: Option<&mdt::check::Report>,
    found: &mut Found,
) {
    let mut count = |_, _| {
        found.items += 1;
        true
    };
    let counted = osd.iterate(&mut count);
    let orphans = counted.and_then(|()| mdt.map_or(Ok(Vec::new()), |r| nobodys(osd, label, r)));
    match orphans {
        Ok(ids) => found.problems.extend(
            ids.iter()
                .map(|id| format!("orphan object {:#x}:{:#x}: no file has it", id.seq, id.oid)),
        ),
        Err(e) => found.problems.push(format!("objects: {e}")),
    }
    found.note = if mdt.is_some() {
        "objects".into()
    } else {
        "objects; give the MDT's directory too (it must be readable) to find orphans".into()
    };
}
