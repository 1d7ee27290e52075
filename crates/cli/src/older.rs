//! What the MGS knows of targets that are not running, beside what they are: one that was put back from an older copy was
//! served fewer times, and another one of the same name has another identity.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use coral_osd::{Inspection, Kv, Label, OsdError, OsdFs, TargetKind};
use coral_server::mgs::{self, Known};
use coral_server::older_copy;
use coral_server::target::last_registration;

use crate::check::CheckedTarget;

/// What is wrong with a target in the eyes of its MGS.
enum Wrong {
    /// It was registered so many times, and so many are known.
    Older(u32, u32),
    /// It is not the one that is known.
    Another,
    /// It was served before, and is not known.
    Unknown,
    /// It was registered so many times, and fewer are known: the MGS is older.
    Ahead(u32, u32),
}

/// What the MGS among `targets`, if there is one, knows.
pub(crate) fn known(targets: &[CheckedTarget]) -> Option<Vec<Known>> {
    let opened = targets.iter().filter_map(|t| t.opened.as_ref().ok());
    let mgs = opened.filter(|(_, label)| label.kind == TargetKind::Mgs);
    // what cannot be read is told by the check of its tables
    let known = |(osd, _): &(Arc<Inspection>, Label)| mgs::known(&**osd).ok();
    let each: Vec<_> = mgs.filter_map(known).collect();
    (!each.is_empty()).then(|| each.into_iter().flatten().collect())
}

fn wrong(osd: &dyn Kv, label: &Label, known: &[Known]) -> Result<Option<Wrong>, OsdError> {
    let name = label.target_name();
    let named = || known.iter().filter(|k| k.name == name);
    let same = named().find(|k| k.identity == label.uuid);
    let Some(k) = same.or_else(|| named().next()) else {
        let here = last_registration(osd)?;
        // one that a repair has made ready to be taken is waiting for that
        let served = here.number > 1 || here.accepted && here.number > 0;
        let unknown = label.kind != TargetKind::Mgs && served;
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
    let older = !same && here.number <= known.0;
    let served = here.number - u32::from(!here.accepted && here.number > 0);
    if served > known.0 {
        return Ok(Some(Wrong::Ahead(served, known.0)));
    }
    Ok(older.then_some(Wrong::Older(served, known.0)))
}

/// What is wrong with `t` for an MGS that knows `known`.
pub(crate) fn problem(t: &CheckedTarget, known: Option<&[Known]>) -> Option<String> {
    let (osd, label) = t.opened.as_ref().ok()?;
    let wrong = wrong(&**osd, label, known?).ok()??;
    let name = label.target_name();
    Some(match wrong {
        Wrong::Older(had, known) => format!(
            "an older copy of {name} was put back: it was registered {had} times, and the MGS knows of {known} times. Put the newer copy back; or `--repair` makes the MGS take this one, without what was done since it was made"
        ),
        Wrong::Ahead(had, known) => format!(
            "the MGS was put back from an older copy: it knows of {known} times that {name} was registered, and there were {had}. Put the newer copy back; or `--repair` makes it take {name}. It cannot tell whether targets are older that were put back with it"
        ),
        Wrong::Unknown => format!(
            "{name} was registered before, and the MGS does not know it: one of them belongs to another file system, or the MGS is an older copy; `--repair` makes the MGS take it"
        ),
        Wrong::Another => format!(
            "this is not the {name} that the MGS knows: it is of another file system, or was formatted anew. Serve the directory that belongs there"
        ),
    })
}

fn is(t: &CheckedTarget, known: &[Known], f: impl Fn(Option<&Wrong>) -> bool) -> bool {
    let opened = t.opened.as_ref().ok();
    let wrong = opened.and_then(|(osd, label)| wrong(&**osd, label, known).ok());
    wrong.is_some_and(|wrong| f(wrong.as_ref()))
}

/// Whether the MGS knows another target of that name.
pub(crate) fn is_another(t: &CheckedTarget, known: &[Known]) -> bool {
    is(t, known, |wrong| matches!(wrong, Some(Wrong::Another)))
}

/// Whether the MGS knows a target of that name.
pub(crate) fn is_listed(t: &CheckedTarget, known: &[Known]) -> bool {
    let name = t.label().map(Label::target_name);
    known.iter().any(|k| Some(&k.name) == name.as_ref())
}

/// The targets that an MGS knows; nothing of other targets.
pub(crate) fn served_by(t: &CheckedTarget) -> Option<BTreeSet<String>> {
    let (osd, label) = t.opened.as_ref().ok()?;
    let known = (label.kind == TargetKind::Mgs).then(|| mgs::known(&**osd));
    Some(known?.ok()?.into_iter().map(|k| k.name).collect())
}

/// Whether a repair has made it ready to be taken by an MGS that does not know it, and it was not served since.
pub(crate) fn waits_to_be_taken(t: &CheckedTarget) -> bool {
    let opened = t.opened.as_ref().ok();
    let here = opened.and_then(|(osd, _)| last_registration(&**osd).ok());
    here.is_some_and(|here| here.number == 0 && here.accepted)
}

/// Whether the MGS knows it as it is.
pub(crate) fn is_known(t: &CheckedTarget, known: &[Known]) -> bool {
    is_listed(t, known) && is(t, known, |wrong| wrong.is_none())
}

/// A target that the MGS is to take as it is, with the registration that the MGS knows.
pub(crate) struct Accepted {
    pub(crate) dir: PathBuf,
    known: Option<(u32, u64)>,
}

/// The targets that the MGS, if it is among `all`, takes for older copies or does not know.
pub(crate) fn older(all: &[CheckedTarget]) -> Vec<Accepted> {
    let Some(known) = known(all) else {
        return Vec::new();
    };
    let accepted = |t: &CheckedTarget| {
        let (osd, label) = t.opened.as_ref().ok()?;
        match wrong(&**osd, label, &known).ok()?? {
            Wrong::Older(..) | Wrong::Unknown | Wrong::Ahead(..) => Some(Accepted {
                dir: t.dir.clone(),
                known: known
                    .iter()
                    .find(|k| k.name == label.target_name())
                    .and_then(|k| k.registration),
            }),
            Wrong::Another => None,
        }
    };
    all.iter().filter_map(accepted).collect()
}

/// Makes the MGS take a target as it is.
pub(crate) fn accept(target: &Accepted) -> Result<(), String> {
    let dir = &target.dir;
    let (osd, label) = OsdFs::open(dir).map_err(|e| e.to_string())?;
    let fail = |e: OsdError| format!("'{}': {e}", dir.display());
    let batch = older_copy::accept(&osd, label.kind, target.known).map_err(fail)?;
    osd.commit(batch).wait().map_err(fail)?;
    Kv::sync(&osd).wait().map_err(fail)
}
