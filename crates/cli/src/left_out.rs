//! Targets that `coral check` is given and does not look at together with the others, because they are of another file system or
//! there twice: what they hold would contradict the rest.
//!
//! What the MGS among the targets knows decides. Where it does not, and for an MDT that it does not know, MDT0000 does: it has given
//! every other MDT the sequences that it holds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use coral_osd::TargetKind;
use coral_server::mdt;
use coral_server::mgs::Known;

use crate::check::CheckedTarget;
use crate::older;

/// Why a target is left out.
pub(crate) struct Reason {
    pub(crate) why: String,
    /// A repair makes the MGS take it, and so need not be refused.
    pub(crate) is_taken: bool,
}

/// Those of `targets` that are left out, by directory.
pub(crate) fn of(targets: &[CheckedTarget], known: Option<&[Known]>) -> BTreeMap<PathBuf, Reason> {
    let mut out = BTreeMap::new();
    for t in targets {
        let why = twice(t, targets, known).or_else(|| of_another(t, known));
        let reason = why.map(|why| Reason {
            why,
            is_taken: false,
        });
        out.extend(reason.map(|reason| (t.dir.clone(), reason)));
    }
    let rest = || targets.iter().filter(|t| !out.contains_key(&t.dir));
    let unknown = rest().filter_map(|t| Some((t.dir.clone(), unknown(t, rest(), known)?)));
    let unknown: Vec<_> = unknown.collect();
    out.extend(unknown);
    out
}

/// One of two targets of the same name, unless the MGS knows it and not the other.
fn twice(t: &CheckedTarget, all: &[CheckedTarget], known: Option<&[Known]>) -> Option<String> {
    let name = t.label()?.target_name();
    // several MGSs are two of one name only where both know the same target
    let apart = |o: &CheckedTarget| match (older::served_by(t), older::served_by(o)) {
        (Some(here), Some(there)) => here.is_disjoint(&there),
        _ => false,
    };
    let named = |o: &CheckedTarget| o.label().is_some_and(|l| l.target_name() == name);
    let same = |o: &&CheckedTarget| named(o) && (o.dir == t.dir || !apart(o));
    let others = || all.iter().filter(same).filter(|o| o.dir != t.dir);
    let other = others().next()?;
    let is_known = |t: &CheckedTarget| known.is_some_and(|known| older::is_known(t, known));
    let mut those = all.iter().filter(same).filter(|o| is_known(o));
    let (here, there) = (t.dir.display(), other.dir.display());
    match (those.next(), those.next()) {
        (Some(one), None) if one.dir == t.dir => None,
        (Some(one), None) => Some(format!(
            "'{here}' and '{0}' are both {name}, and the MGS knows '{0}': do not serve '{here}'",
            one.dir.display()
        )),
        _ => Some(format!(
            "'{here}' and '{there}' are both {name}: one of them is a copy or was formatted with the wrong index, and {}. Give only the one that belongs there",
            match known {
                Some(_) => "the MGS does not tell which",
                None => "no MGS was given that could tell which",
            }
        )),
    }
}

fn of_another(t: &CheckedTarget, known: Option<&[Known]>) -> Option<String> {
    older::is_another(t, known?)
        .then(|| older::problem(t, known))
        .flatten()
        .map(|why| format!("'{}': {why}", t.dir.display()))
}

/// A target that the MGS does not know, or an MDT that MDT0000 does not know where there is no MGS.
fn unknown<'a>(
    t: &CheckedTarget,
    mut rest: impl Iterator<Item = &'a CheckedTarget>,
    known: Option<&[Known]>,
) -> Option<Reason> {
    let (osd, label) = t.opened.as_ref().ok()?;
    if known.is_some_and(|known| older::is_listed(t, known)) {
        return None;
    }
    let taken = || {
        let why = older::problem(t, known)?;
        Some(Reason {
            why: format!("'{}': {why}", t.dir.display()),
            is_taken: true,
        })
    };
    if label.kind != TargetKind::Mdt {
        return taken();
    }
    let is_first =
        |f: &&CheckedTarget| f.is_mdt_of(&label.fsname) && f.label().is_some_and(|l| l.index == 0);
    let Some(first) = rest.find(is_first) else {
        return taken();
    };
    let (given, _) = first.opened.as_ref().ok()?;
    // what cannot be read is told with the tables
    if label.index == 0 || mdt::check::belongs(&**given, &**osd).unwrap_or(true) {
        return None;
    }
    let why = format!(
        "'{}': {} in '{}' has not given it the sequences that it holds: they are of two file systems{}. Give the directories of one file system only",
        t.dir.display(),
        first.label()?.target_name(),
        first.dir.display(),
        match known {
            Some(_) => ", and the MGS does not know it",
            None => ", or one of them is an older copy, which the directory of the MGS would tell",
        }
    );
    Some(Reason {
        why,
        is_taken: false,
    })
}
