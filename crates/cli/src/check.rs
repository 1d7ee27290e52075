//! `coral check`: verifies targets that are not running.
//!
//! Each target's label and tables are read whole (a torn or flipped block is named); the MDT's name space must be a tree with
//! the right link counts; and every object on the OSTs must belong to a file, or be waiting for its removal.
//! Nothing in a target is changed (`coral_osd::Inspection`) but by `--repair` ([`crate::repair`]).
//! A target that cannot be opened is a problem like any other: the rest is checked all the same. One that is missing is named
//! first, and nothing is said of what depends on it; nor of what depends on one that is left out ([`crate::left_out`]), or whose
//! tables cannot be read.

use crate::absent::{self, Absent};
use crate::args::Check;
use crate::left_out::{self, Reason};
use crate::older;
use crate::repair::{self, Lines};
use crate::up;
use coral_node::target_dir;
use coral_osd::{Inspection, Kv, Label, ObjectId, OpenError, OsdError, OsdFs, TargetKind};
use coral_server::mdt;
use coral_server::mgs::Known;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Most problems printed of one target; the count is always whole.
const PRINTED_MAX: usize = 100;

/// What was found on one target.
#[derive(Debug, Serialize)]
struct Found {
    target: String,
    dir: PathBuf,
    /// Why it could not be looked at: it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    /// Why it was not looked at: it does not belong to the others. One problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
    problems: Vec<String>,
    /// Some of them are objects that no file has.
    #[serde(skip)]
    has_orphans: bool,
    /// What `--repair` did, before this was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repaired: Vec<String>,
    /// Files and directories (MDT) or objects (OST).
    items: u64,
    note: String,
}

impl Found {
    /// Nothing was found.
    fn new(target: String, dir: PathBuf) -> Found {
        Found {
            target,
            dir,
            missing: None,
            left_out: None,
            problems: Vec::new(),
            has_orphans: false,
            repaired: Vec::new(),
            items: 0,
            note: String::new(),
        }
    }

    fn orphans(&mut self, what: &str, ids: &[ObjectId]) {
        self.has_orphans |= !ids.is_empty();
        let told =
            |id: &ObjectId| format!("orphan {what} {:#x}:{:#x}: no file has it", id.seq, id.oid);
        self.problems.extend(ids.iter().map(told));
    }

    fn missing(target: String, dir: PathBuf, why: String) -> Found {
        Found {
            missing: Some(why),
            ..Found::new(target, dir)
        }
    }

    fn left_out(t: &CheckedTarget, why: &Reason) -> Found {
        Found {
            left_out: Some(why.why.clone()),
            ..Found::new(t.name.clone(), t.dir.clone())
        }
    }

    fn problem_count(&self) -> usize {
        self.problems.len() + usize::from(self.left_out.is_some())
    }
}

/// A target to check.
pub(crate) struct CheckedTarget {
    pub(crate) dir: PathBuf,
    /// Its label's name, or its directory's when the label cannot be read.
    name: String,
    pub(crate) opened: Result<(Arc<Inspection>, Label), OpenError>,
}

impl CheckedTarget {
    pub(crate) fn open(dir: PathBuf) -> CheckedTarget {
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
        CheckedTarget { dir, name, opened }
    }

    pub(crate) fn label(&self) -> Option<&Label> {
        self.opened.as_ref().ok().map(|(_, label)| label)
    }

    /// Why it cannot be opened. Nothing is said of formatting: what is wrong may be that its disk is not mounted.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.opened.as_ref().err()? {
            OpenError::NotOurs { dir, why } => Some(format!(
                "'{}' holds no target ({why}): is its disk mounted?",
                dir.display()
            )),
            why => Some(why.to_string()),
        }
    }

    /// What is wrong with its tables.
    pub(crate) fn damage(&self) -> Option<String> {
        let (osd, _) = self.opened.as_ref().ok()?;
        let e = osd.verify_tables().err()?;
        Some(format!(
            "tables: {e}; restore the target directory from a copy, or see \"Damaged tables\" in docs/guide.md"
        ))
    }

    pub(crate) fn is_mdt_of(&self, fsname: &str) -> bool {
        let is = |l: &Label| l.kind == TargetKind::Mdt && l.fsname == fsname;
        self.label().is_some_and(is)
    }
}

/// Where targets are.
#[derive(Default)]
struct Listed {
    dirs: Vec<PathBuf>,
    /// Those that were formatted and are not there.
    absent: Vec<Absent>,
    /// What is wrong with files that list them.
    found: Vec<Found>,
}

/// The targets in these directories.
fn listed(dirs: &[PathBuf]) -> Result<Listed, String> {
    let mut listed = Listed::default();
    for dir in dirs {
        match up::read_config(dir) {
            Ok(Some(config)) => {
                for target in config.target_dirs(dir) {
                    match absent::look(&config, &target) {
                        Ok(Some(absent)) => listed.absent.push(absent),
                        // who opens it says what is wrong with its label
                        Ok(None) | Err(_) => listed.dirs.push(target),
                    }
                }
            }
            Ok(None) => listed.dirs.extend(target_dirs(dir)?),
            Err(why) => {
                let mut found = Found::new("coral.json".into(), dir.clone());
                found.problems.push(why);
                listed.found.push(found);
                listed.dirs.extend(target_dirs(dir).unwrap_or_default());
            }
        }
    }
    let mut seen = BTreeSet::new();
    let place = |dir: &PathBuf| dir.canonicalize().unwrap_or_else(|_| dir.clone());
    listed.dirs.retain(|dir| seen.insert(place(dir)));
    Ok(listed)
}

fn opened(dirs: &[PathBuf]) -> Vec<CheckedTarget> {
    dirs.iter().cloned().map(CheckedTarget::open).collect()
}

/// Entry of `coral check`.
pub(crate) fn run(c: Check) -> Result<ExitCode, String> {
    let listed = listed(&c.dirs)?;
    if let (Some(a), true) = (listed.absent.first(), c.repair) {
        return Err(format!(
            "nothing is repaired while {} is missing: {}",
            a.name(),
            a.why()
        ));
    }
    let mut repaired = match c.repair {
        true => repair::run(opened(&listed.dirs), c.remove_objects)?,
        false => Lines::new(),
    };
    let of_absent = |a: &Absent| Found::missing(a.name(), a.dir.clone(), a.why());
    let mut found: Vec<Found> = listed.absent.iter().map(of_absent).collect();
    let targets = opened(&listed.dirs);
    let reports = Reports::of(&targets);
    found.extend(reports.not_given(&targets, &listed.absent));
    found.extend(listed.found);
    found.extend(targets.iter().map(|t| reports.found(t)));
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
    verdict(&found, c.repair)
}

fn verdict(found: &[Found], repaired: bool) -> Result<ExitCode, String> {
    let missing = found.iter().filter(|f| f.missing.is_some());
    let missing: Vec<&str> = missing.map(|f| &*f.target).collect();
    let problems = found.iter().map(Found::problem_count).sum::<usize>();
    match problems {
        _ if !missing.is_empty() => {
            let names = missing.join(", ");
            eprintln!(
                "coral: missing: {names}; {} found in the rest",
                count(problems)
            );
            Ok(ExitCode::from(absent::EXIT_CODE))
        }
        0 => Ok(ExitCode::SUCCESS),
        n if repaired && found.iter().any(|f| f.has_orphans) => Err(format!(
            "{} left; `--remove-objects` with `--repair` removes objects that no file has",
            count(n)
        )),
        n if repaired => Err(format!("{} left", count(n))),
        n => Err(format!("{} found", count(n))),
    }
}

/// So many problems.
fn count(n: usize) -> String {
    match n {
        1 => "1 problem".to_owned(),
        n => format!("{n} problems"),
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
    if let Some(why) = &f.missing {
        println!("{:<16} missing: {why}", f.target);
        println!("    it is left out: what depends on it is not judged");
        return;
    }
    if let Some(why) = &f.left_out {
        println!("{:<16} left out: {why}", f.target);
        println!("    neither it nor what depends on it is judged");
        return print_repaired(f);
    }
    let verdict = match f.problems.len() {
        0 => "clean".to_owned(),
        n => count(n),
    };
    println!("{:<16} {verdict:<12} {:>9} {}", f.target, f.items, f.note);
    print_repaired(f);
    for p in f.problems.iter().take(PRINTED_MAX) {
        println!("    {p}");
    }
    if f.problems.len() > PRINTED_MAX {
        println!("    and {} more", f.problems.len() - PRINTED_MAX);
    }
}

fn print_repaired(f: &Found) {
    for done in &f.repaired {
        println!("    repaired: {done}");
    }
}

/// What the name spaces of all file systems look like.
struct Reports<'a> {
    /// By file system.
    sound: BTreeMap<&'a str, mdt::check::Report>,
    /// Why those of these file systems cannot be read.
    broken: BTreeMap<&'a str, String>,
    /// What the MGS knows, if it was given.
    known: Option<Vec<Known>>,
    /// Targets that belong to none of them.
    left_out: BTreeMap<PathBuf, Reason>,
}

impl<'a> Reports<'a> {
    fn of(targets: &'a [CheckedTarget]) -> Reports<'a> {
        let known = older::known(targets);
        let left_out = left_out::of(targets, known.as_deref());
        let mut reports = Reports {
            sound: BTreeMap::new(),
            broken: BTreeMap::new(),
            known,
            left_out,
        };
        let mut systems: BTreeMap<&str, Vec<&CheckedTarget>> = BTreeMap::new();
        let is_judged = |t: &&CheckedTarget| !reports.left_out.contains_key(&t.dir);
        for t in targets.iter().filter(is_judged) {
            if let Some(label) = t.label().filter(|l| l.kind == TargetKind::Mdt) {
                systems.entry(&label.fsname).or_default().push(t);
            }
        }
        for (fsname, mdts) in systems {
            let read = check_mdts(mdts.iter().copied()).or_else(|e| {
                let (damaged, sound): (Vec<_>, Vec<_>) =
                    mdts.iter().copied().partition(|t| t.damage().is_some());
                if sound.is_empty() {
                    return Err(e);
                }
                let mut report = check_mdts(sound)?;
                let indices = damaged.iter().filter_map(|t| Some(t.label()?.index));
                report.missing.extend(indices);
                Ok(report)
            });
            match read {
                Ok(r) => drop(reports.sound.insert(fsname, r)),
                Err(e) => {
                    let why = format!("the name space cannot be read: {e}");
                    reports.broken.insert(fsname, why);
                }
            }
        }
        reports
    }

    /// MDTs that the others know and that are neither given nor known to be missing.
    fn not_given(&self, targets: &[CheckedTarget], absent: &[Absent]) -> Vec<Found> {
        // one that cannot be opened says so itself
        if targets.iter().any(|t| t.opened.is_err()) {
            return Vec::new();
        }
        let missing = |(fsname, r): (&&str, &mdt::check::Report)| {
            let name = |index: &u32| format!("{fsname}-MDT{index:04x}");
            r.missing.iter().map(name).collect::<Vec<_>>()
        };
        let mut names: Vec<String> = self.sound.iter().flat_map(missing).collect();
        names.retain(|n| !absent.iter().any(|a| a.name() == *n));
        // neither does one that is left out, or has empty or damaged tables
        names.retain(|n| !targets.iter().any(|t| t.name == *n));
        let found = |name| {
            let why = "its directory was not given: give the directories of all MDTs".to_owned();
            Found::missing(name, PathBuf::new(), why)
        };
        names.into_iter().map(found).collect()
    }

    /// What is found on one of the targets.
    fn found(&self, t: &CheckedTarget) -> Found {
        if let Some(why) = self.left_out.get(&t.dir) {
            return Found::left_out(t, why);
        }
        let fsname = t.label().map(|l| &*l.fsname).unwrap_or_default();
        let mut found = check_one(t, self.sound.get(fsname));
        if let Some(why) = self.broken.get(fsname)
            && t.is_mdt_of(fsname)
            && t.damage().is_none()
        {
            found.problems.push(why.clone());
        }
        found
            .problems
            .extend(older::problem(t, self.known.as_deref()));
        found
    }
}

/// Looks at the MDTs of a file system together; those that are not open are not given.
pub(crate) fn check_mdts<'a>(
    mdts: impl IntoIterator<Item = &'a CheckedTarget>,
) -> Result<mdt::check::Report, OsdError> {
    let opened = mdts.into_iter().filter_map(|t| t.opened.as_ref().ok());
    let kvs: Vec<&dyn Kv> = opened.map(|(osd, _)| &**osd as &dyn Kv).collect();
    mdt::check_all(&kvs)
}

fn check_one(t: &CheckedTarget, mdt: Option<&mdt::check::Report>) -> Found {
    let mut found = Found::new(t.name.clone(), t.dir.clone());
    let Ok((osd, label)) = &t.opened else {
        found.problems.extend(t.trouble());
        return found;
    };
    found.problems.extend(osd.problems().iter().cloned());
    let beside = [
        target_dir::read_failover(&t.dir).err(),
        target_dir::read_defaults(&t.dir).err(),
    ];
    found
        .problems
        .extend(beside.iter().flatten().map(ToString::to_string));
    let damage = t.damage();
    let is_damaged = damage.is_some();
    found.problems.extend(damage);
    match (label.kind, mdt) {
        (TargetKind::Mdt, Some(r)) if r.never_served => {
            found.note = "formatted, never served: no root directory yet".into();
        }
        (TargetKind::Mdt, Some(r)) if !r.items.contains_key(&label.index) => {
            if is_damaged {
                found.note = "its names are not judged, nor what depends on them".into();
            } else if r.missing.contains(&label.index) {
                let why = "its tables are empty, and other MDTs know that it was served: restore the target directory from a copy";
                found.problems.push(why.into());
            } else {
                found.note = "formatted, never served: nothing is on it yet".into();
            }
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
    if let Some(missing) = without(r) {
        note.push_str(&format!(
            ", {missing}: objects that no file has cannot be told"
        ));
    }
    if r.elsewhere > 0 {
        note.push_str(&format!(", {} names lead there", r.elsewhere));
    }
    note
}

/// The MDTs that could not be looked at.
fn without(r: &mdt::check::Report) -> Option<String> {
    let names: Vec<String> = r.missing.iter().map(|i| format!("MDT{i:04x}")).collect();
    (!names.is_empty()).then(|| format!("without {}", names.join(", ")))
}

/// Objects of an OST that no file has, and data on an MDT of files that are not there.
pub(crate) fn nobodys(
    osd: &Inspection,
    label: &Label,
    report: &mdt::check::Report,
) -> Result<Vec<ObjectId>, OsdError> {
    let is_nobodys = |id: &ObjectId| match label.kind {
        // of one whose tables are empty nobody knows
        TargetKind::Mdt => report.items.contains_key(&label.index) && !report.data.contains(id),
        _ => {
            let key = (label.index, id.oid);
            // files take their objects along to other MDTs
            report.missing.is_empty()
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
        Ok(ids) => found.orphans("data", &ids),
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
        Ok(ids) => found.orphans("object", &ids),
        Err(e) => found.problems.push(format!("objects: {e}")),
    }
    found.note = match mdt.map(without) {
        Some(None) => "objects".into(),
        Some(Some(missing)) => {
            format!("objects; which of them no file has cannot be told {missing}")
        }
        None => {
            "objects; give the MDT's directory too (it must be readable) to find orphans".into()
        }
    };
}
