//! What the MGS knows of targets that are not running, beside what they are: one that was put back from an older copy was
//! served fewer times, and another one of the same name has another identity.

use std::path::PathBuf;
use std::sync::Arc;

use coral_osd::{Inspection, Kv, Label, OsdError, OsdFs, TargetKind};
use coral_server::mgs::{self, Known};
use coral_server::target::{accept_older_copy, last_registration, older_copy_accepted};

use crate::check::CheckedTarget;

/// What is wrong with a target in the eyes of its MGS.
enum Wrong {
    /// It was registered so many times, and so many are known.
    Older(u32, u32),
    /// It is not the one that is known.
    Another,
    /// It was served before, and is not known.
    Unknown,
}

fn known(targets: &[CheckedTarget]) -> Option<Vec<Known>> {
    let opened = targets.iter().filter_map(|t| t.opened.as_ref().ok());
    let mgs = opened.filter(|(_, label)| label.kind == TargetKind::Mgs);
    // what cannot be read is told by the check of its tables
    let known = |(osd, _): &(Arc<Inspection>, Label)| mgs::known(&**osd).ok();
    let each: Vec<_> = mgs.filter_map(known).collect();
    (!each.is_empty()).then(|| each.into_iter().flatten().collect())
}

fn wrong(osd: &dyn Kv, label: &Label, known: &[Known]) -> Result<Option<Wrong>, OsdError> {
    let name = label.target_name();
    let Some(k) = known.iter().find(|k| k.name == name) else {
        let here = last_registration(osd)?;
        let served = here.number > 1 || here.accepted;
        let unknown = label.kind != TargetKind::Mgs && served && !older_copy_accepted(osd)?;
        return Ok(unknown.then_some(Wrong::Unknown));
    };
    if !k.identity.is_empty() && k.identity != label.uuid {
        return Ok(Some(Wrong::Another));
    }
    let Some(known) = k.registration else {
        return Ok(None);
    };
    let here = last_registration(osd)?;
    let same = (here.number, here.cookie) == known;
    let older = !same && here.number <= known.0 && !older_copy_accepted(osd)?;
    let served = here.number - u32::from(!here.accepted && here.number > 0);
    Ok(older.then_some(Wrong::Older(served, known.0)))
}

/// What the MGS, if it is among `all`, finds wrong with `t`.
pub(crate) fn problem(t: &CheckedTarget, all: &[CheckedTarget]) -> Option<String> {
    let (osd, label) = t.opened.as_ref().ok()?;
    let wrong = wrong(&**osd, label, &known(all)?).ok()??;
    let name = label.target_name();
    Some(match wrong {
        Wrong::Older(had, known) => format!(
            "an older copy of {name} was put back: it was served {had} times, and the MGS knows of {known} times. Put the newer copy back; or `--repair` makes the MGS take this one, without what was done since it was made"
        ),
        Wrong::Unknown => format!(
            "{name} was served, and the MGS does not know it: one of them belongs to another file system, or the MGS is an older copy; `--repair` makes the MGS take it"
        ),
        Wrong::Another => format!(
            "this is not the {name} that the MGS knows: it is of another file system, or was formatted anew. Serve the directory that belongs there"
        ),
    })
}

/// Targets that an MGS would take for older copies, to be accepted as they are: those that it does, and all where no MGS is
/// among `all`.
pub(crate) fn older(all: &[CheckedTarget]) -> Vec<PathBuf> {
    let known = known(all);
    let is_older = |t: &&CheckedTarget| {
        let Ok((osd, label)) = &t.opened else {
            return false;
        };
        match &known {
            Some(known) => matches!(
                wrong(&**osd, label, known),
                Ok(Some(Wrong::Older(..) | Wrong::Unknown))
            ),
            None => label.kind != TargetKind::Mgs,
        }
    };
    all.iter().filter(is_older).map(|t| t.dir.clone()).collect()
}

/// Makes the MGS take these targets as they are.
pub(crate) fn accept(dirs: &[PathBuf]) -> Result<(), String> {
    for dir in dirs {
        let (osd, _) = OsdFs::open(dir).map_err(|e| e.to_string())?;
        let fail = |e: OsdError| format!("'{}': {e}", dir.display());
        osd.commit(accept_older_copy()).wait().map_err(fail)?;
        Kv::sync(&osd).wait().map_err(fail)?;
    }
    Ok(())
}
