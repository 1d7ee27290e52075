//! `coral check --repair`: mends what `coral check` finds, before it checks again.
//!
//! Nothing is changed unless all targets of the file system are where they were formatted, its MDTs are all there, can be read and
//! are not served, and something is wrong.
//! Objects that no file has are removed only when that is asked for: they may be all that is left of a file.

use crate::check::{CheckedTarget, check_mdts};
use crate::left_out;
use crate::older;
use coral_osd::{Kv, ObjectId, Objects, OpenError, OsdFs, TargetKind, Time};
use coral_server::mdt;
use coral_server::ost::to_be_counted;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was done to each target.
pub(crate) type Lines = BTreeMap<PathBuf, Vec<String>>;

/// Targets of one file system, by directory: its MDTs, and the others.
#[derive(Default)]
struct Targets {
    mdts: Vec<(u32, PathBuf)>,
    osts: Vec<PathBuf>,
    problems: usize,
}

/// Mends what is wrong with these targets, which are closed by then. An error: nothing was changed, and why.
pub(crate) fn run(targets: Vec<CheckedTarget>, remove_objects: bool) -> Result<Lines, String> {
    if let Some(why) = targets.iter().find_map(refused) {
        return Err(format!("nothing is repaired: {why}"));
    }
    let known = older::known(&targets);
    let left_out = left_out::of(&targets, known.as_deref());
    if let Some(reason) = left_out.values().find(|reason| !reason.is_taken) {
        return Err(format!("nothing is repaired: {}", reason.why));
    }
    let mut systems: BTreeMap<String, Targets> = BTreeMap::new();
    for t in &targets {
        let Some(label) = t.label() else { continue };
        let of = systems.entry(label.fsname.clone()).or_default();
        match label.kind {
            TargetKind::Mdt => of.mdts.push((label.index, t.dir.clone())),
            // objects of one that may be of another file system are left alone
            TargetKind::Ost if left_out.contains_key(&t.dir) || older::waits_to_be_taken(t) => {}
            TargetKind::Ost => of.osts.push(t.dir.clone()),
            TargetKind::Mgs => {}
        }
    }
    for (fsname, of) in &mut systems {
        if known.is_none() && of.mdts.len() > 1 {
            return Err(format!(
                "nothing is repaired: the MGS of '{fsname}' was not given, and only that tells whether these MDTs belong together: give its directory too"
            ));
        }
        let report = check_mdts(targets.iter().filter(|t| t.is_mdt_of(fsname)));
        let report = report.map_err(|e| format!("nothing is repaired: {e}"))?;
        if let Some(index) = report.missing.first() {
            return Err(format!(
                "nothing is repaired: {fsname}-MDT{index:04x} was not given or has empty tables, and a repair needs all MDTs"
            ));
        }
        of.problems = report.problems.len();
    }
    let older = older::older(&targets);
    // who looks at a target holds it
    drop(targets);
    let mut lines = Lines::new();
    for of in systems.values().filter(|of| !of.mdts.is_empty()) {
        if of.problems > 0 {
            names(of, &mut lines)?;
        }
        if remove_objects {
            objects(of, &mut lines)?;
        }
    }
    // last: what could not be repaired is not served
    for target in older {
        older::accept(&target)?;
        let line = "the MGS takes it as it is, and clients of before are not waited for".to_owned();
        lines.entry(target.dir).or_default().push(line);
    }
    Ok(lines)
}

/// Why nothing is repaired with this target as it is.
fn refused(t: &CheckedTarget) -> Option<String> {
    let in_use = matches!(t.opened, Err(OpenError::InUse { .. }));
    let needed = OsdFs::label(&t.dir).map_or(true, |l| l.kind == TargetKind::Mdt);
    let closed = t.trouble().filter(|_| in_use || needed);
    closed.or_else(|| t.damage().filter(|_| needed))
}

fn open(dir: &Path) -> Result<OsdFs, String> {
    OsdFs::open(dir)
        .map(|(osd, _)| osd)
        .map_err(|e| e.to_string())
}

/// The name space.
fn names(of: &Targets, lines: &mut Lines) -> Result<(), String> {
    let opened: Result<Vec<OsdFs>, String> = of.mdts.iter().map(|(_, dir)| open(dir)).collect();
    let opened = opened?;
    let kvs: Vec<&dyn Kv> = opened.iter().map(|osd| osd as &dyn Kv).collect();
    for done in mdt::repair::repair(&kvs, now()).map_err(|e| e.to_string())? {
        if let Some((_, dir)) = of.mdts.iter().find(|(index, _)| *index == done.mdt) {
            lines.entry(dir.clone()).or_default().push(done.what);
        }
    }
    Ok(())
}

/// Objects, and data on MDTs, of no file.
fn objects(of: &Targets, lines: &mut Lines) -> Result<(), String> {
    let look = |dir: &Path| CheckedTarget::open(dir.to_owned());
    let report = {
        let mdts: Vec<CheckedTarget> = of.mdts.iter().map(|(_, dir)| look(dir)).collect();
        check_mdts(&mdts).map_err(|e| e.to_string())?
    };
    if let Some(left) = report.problems.first() {
        // what is not known to be sound does not say which objects are nobody's
        return Err(format!("no objects are removed: {left}"));
    }
    for dir in of.mdts.iter().map(|(_, dir)| dir).chain(&of.osts) {
        let t = look(dir);
        let Ok((osd, label)) = &t.opened else {
            continue;
        };
        let nobodys = crate::check::nobodys(osd, label, &report).map_err(|e| e.to_string())?;
        drop(t);
        remove(dir, &nobodys, lines)?;
    }
    Ok(())
}

fn remove(dir: &Path, ids: &[ObjectId], lines: &mut Lines) -> Result<(), String> {
    if ids.is_empty() {
        return Ok(());
    }
    let osd = Arc::new(open(dir)?);
    let fail = |e: coral_osd::OsdError| format!("'{}': {e}", dir.display());
    osd.commit(to_be_counted(ids)).wait().map_err(fail)?;
    Kv::sync(&*osd).wait().map_err(fail)?;
    for id in ids {
        Objects::destroy(&*osd, *id).wait().map_err(fail)?;
        let line = format!(
            "object {:#x}:{:#x}, which no file had, is removed",
            id.seq, id.oid
        );
        lines.entry(dir.to_owned()).or_default().push(line);
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time of new directories, at the edge of the program"
)]
fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Time {
        secs: since.as_secs() as i64,
        nsecs: since.subsec_nanos(),
    }
}
