//! `coral check`: verifies targets that are not running.
//!
//! Each target's label and tables are read whole (a torn or flipped block is named); the MDT's name space must be a tree with
//! the right link counts; and every object on the OSTs must belong to a file, or be waiting for its removal.

use crate::args::Check;
use crate::{serve, up};
use coral_osd::{Kv, Label, Objects, OsdFs, TargetKind};
use coral_server::mdt;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Most problems printed of one target; the count is always whole.
const PRINTED_MAX: usize = 100;

/// What was found on one target.
#[derive(Debug, Serialize)]
struct Found {
    target: String,
    dir: PathBuf,
    problems: Vec<String>,
    /// Files and directories (MDT) or objects (OST).
    items: u64,
    note: String,
}

/// Entry of `coral check`.
pub(crate) fn run(c: Check) -> Result<(), String> {
    let mut dirs = Vec::new();
    for dir in &c.dirs {
        match up::read_config(dir)? {
            Some(config) => dirs.extend(config.target_dirs(dir)),
            None => dirs.extend(serve::target_dirs(std::slice::from_ref(dir))?),
        }
    }
    let mut opened = Vec::new();
    for dir in dirs {
        let (osd, label) = OsdFs::open(&dir).map_err(|e| e.to_string())?;
        opened.push((dir, Arc::new(osd), label));
    }
    let found = check(&opened)?;
    if c.json {
        println!("{}", serde_json::to_string_pretty(&found).map_err(|e| e.to_string())?);
    } else {
        found.iter().for_each(print);
    }
    match found.iter().map(|f| f.problems.len()).sum::<usize>() {
        0 => Ok(()),
        n => Err(format!("{n} problems found")),
    }
}

fn print(f: &Found) {
    let verdict = if f.problems.is_empty() { "clean".to_owned() } else { format!("{} problems", f.problems.len()) };
    println!("{:<16} {verdict:<12} {:>9} {}", f.target, f.items, f.note);
    for p in f.problems.iter().take(PRINTED_MAX) {
        println!("    {p}");
    }
    if f.problems.len() > PRINTED_MAX {
        println!("    and {} more", f.problems.len() - PRINTED_MAX);
    }
}

type Opened = (PathBuf, Arc<OsdFs>, Label);

fn check(opened: &[Opened]) -> Result<Vec<Found>, String> {
    let mut report = None;
    for (dir, osd, _) in opened.iter().filter(|(_, _, l)| l.kind == TargetKind::Mdt) {
        let kv: Arc<dyn Kv> = osd.clone();
        report = Some(mdt::check(&kv).map_err(|e| format!("'{}': {e}", dir.display()))?);
    }
    opened.iter().map(|o| check_one(o, report.as_ref())).collect()
}

fn check_one((dir, osd, label): &Opened, mdt: Option<&mdt::check::Report>) -> Result<Found, String> {
    let mut found = Found { target: label.target_name(), dir: dir.clone(), problems: Vec::new(), items: 0, note: String::new() };
    if let Err(e) = osd.verify_tables() {
        found.problems.push(format!("tables: {e}"));
    }
    match (label.kind, mdt) {
        (TargetKind::Mdt, Some(r)) if r.never_served => {
            found.note = "formatted, never served: no root directory yet".into();
        }
        (TargetKind::Mdt, Some(r)) => {
            found.problems = r.problems.iter().map(ToString::to_string).collect();
            found.items = r.files + r.dirs;
            found.note = format!("files and directories; {} open without a name, {} objects to destroy", r.open_orphans, r.destroy_pending.len());
        }
        (TargetKind::Ost, _) => {
            let mut visit = |id: coral_osd::ObjectId, _| {
                found.items += 1;
                let key = (label.index, id.oid);
                if mdt.is_some_and(|r| !r.objects.contains_key(&key) && !r.destroy_pending.contains(&key)) {
                    found.problems.push(format!("orphan object {:#x}:{:#x}: no file has it", id.seq, id.oid));
                }
                true
            };
            osd.iterate(&mut visit).map_err(|e| format!("'{}': {e}", dir.display()))?;
            found.note = if mdt.is_some() { "objects".into() } else { "objects; give the MDT's directory too to find orphans".into() };
        }
        _ => found.note = "label and tables".into(),
    }
    Ok(found)
}
