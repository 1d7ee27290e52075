//! What has to be there before anything is made: programs, room, and mounts that fit where they are given.

use super::nearest::unknown;
use super::plan::{Plan, Point, fill_point};
use super::process::{find_program, output_unless};
use super::rig::mount_value;
use super::rig_spec::{RigSpec, system_names};
use super::runner::Settings;
use super::spec::{Needs, OneOrMany, Spec, applies};
use super::step::fill_table;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use toml::Value;

/// What stands for the values of a parameter that the laboratory cannot set on a mount that was given.
const AS_IT_IS: &str = "as it is";

/// What the experiment needs is there; said before anything is made.
pub(super) fn check_needs(plan: &Plan, dir: &Path, s: &Settings) -> Result<(), String> {
    let (spec, needs) = (&plan.spec, &plan.spec.needs);
    if let Some(p) = needs.programs.iter().find(|p| find_program(p).is_none()) {
        return Err(format!(
            "the experiment needs the program '{p}', which is not on the path"
        ));
    }
    let wanted = wanted_systems(plan);
    let given = !s.mounts.is_empty();
    let through_library = |w: &String| w.contains(".library}");
    let mut roles = spec.roles.iter().flat_map(|r| &r.command);
    if given && roles.any(through_library) {
        return Err(
            "the experiment mounts its file systems through the library, many times: leave --mount out, and it starts them itself"
                .into(),
        );
    }
    if given || (spec.rig.is_none() && !wanted.is_empty()) {
        check_mounts(&wanted, &s.mounts)?;
    }
    if given {
        check_kind(needs, s)?;
    }
    for p in &plan.points {
        let mounts = match spec.rig.as_ref().filter(|_| !given) {
            Some(rig) => {
                let of = fill_table(rig, p).and_then(|t| RigSpec::of(&t));
                of.map_err(|e| format!("{}: {e}", p.label))?.mounts()
            }
            None => s.mounts.clone(),
        };
        check_numbers(plan, p, &mounts)?;
    }
    if !spec.hosts.is_empty() && spec.rig.is_some() && !given {
        return Err(
            "the file systems of [rig] have a network of their own, from which no host is reached: give mounts with --mount"
                .into(),
        );
    }
    let stop = || s.stop.load(Ordering::Relaxed);
    let mut hosts = spec.hosts.iter();
    hosts.try_for_each(|h| h.check(&s.coral, &stop))?;
    let places: Vec<&Path> = match given {
        false => vec![s.scratch.as_deref().unwrap_or(dir)],
        true => s.mounts.values().flatten().map(PathBuf::as_path).collect(),
    };
    places.into_iter().try_for_each(|p| has_room(p, needs))
}

/// The commands of a point name mounts that there will be.
fn check_numbers(
    plan: &Plan,
    p: &Point,
    mounts: &BTreeMap<String, Vec<PathBuf>>,
) -> Result<(), String> {
    let commands = plan.spec.commands();
    let of_point = commands.filter(|c| applies(&c.when, &p.params));
    let absent = RefCell::new(None);
    let look = |name: &str| {
        let system = name.split(['.', '/']).next().unwrap_or(name);
        if let Some(all) = mounts.get(system)
            && !name.ends_with(".library")
            && mount_value(mounts, name).is_none()
        {
            absent.replace(Some(format!(
                "{}: '{{{name}}}' is not there: '{system}' has {} mount{}, and the first is {{{system}.0}}",
                p.label,
                all.len(),
                if all.len() == 1 { "" } else { "s" }
            )));
        }
        Some(String::new())
    };
    for word in of_point.flat_map(|c| &c.command) {
        fill_point(p, word, &[], &look).map_err(|e| e.to_string())?;
        if let Some(why) = absent.take() {
            return Err(why);
        }
    }
    Ok(())
}

fn has_room(place: &Path, needs: &Needs) -> Result<(), String> {
    let there = place
        .ancestors()
        .find(|p| p.is_dir())
        .unwrap_or(Path::new("."));
    let vfs = rustix::fs::statvfs(there).map_err(|e| format!("'{}': {e}", there.display()))?;
    let (free, need) = (
        vfs.f_bavail.saturating_mul(vfs.f_frsize) >> 20,
        needs.free_mib,
    );
    match free < need {
        false => Ok(()),
        true => Err(format!(
            "the experiment needs {need} MiB of free space, and '{}' has {free} MiB",
            there.display()
        )),
    }
}

/// File systems that the commands name.
fn wanted_systems(plan: &Plan) -> Vec<String> {
    if let Some(rig) = &plan.spec.rig {
        return system_names(rig);
    }
    let spec = &plan.spec;
    let words = spec.commands().flat_map(|c| &c.command);
    let values = spec.parameters.values().flat_map(|v| &v.0);
    let mut names: Vec<String> = words
        .chain(values)
        .flat_map(|w| w.split('{').skip(1))
        .filter_map(|w| w.split(['}', '.', '/']).next())
        .filter(|n| n.contains("fs") && !spec.parameters.contains_key(*n))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Checks the mounts that were given by name against what the experiment's commands name.
fn check_mounts(wanted: &[String], given: &BTreeMap<String, Vec<PathBuf>>) -> Result<(), String> {
    for (name, dirs) in given {
        if wanted.is_empty() {
            return Err(format!(
                "--mount {name}: no command of the experiment names a file system: write {{fs1}} where a command takes its directory, as in \"--directory={{fs1}}\", and give --mount fs1=DIR, or leave --mount out"
            ));
        }
        if !wanted.contains(name) {
            let known: Vec<&str> = wanted.iter().map(String::as_str).collect();
            return Err(format!("--mount: {}", unknown("file system", name, &known)));
        }
        for d in dirs {
            let probe = d.join(format!(".coral-lab-{}", std::process::id()));
            std::fs::write(&probe, "")
                .and_then(|()| std::fs::remove_file(&probe))
                .map_err(|e| {
                    format!(
                        "--mount {name}={}: no directory that can be written to: {e}",
                        d.display()
                    )
                })?;
        }
    }
    match wanted.iter().find(|w| !given.contains_key(*w)) {
        Some(w) => Err(format!(
            "the experiment needs the file system '{w}' too: give --mount {w}=DIR"
        )),
        None => Ok(()),
    }
}

/// As many mounts as the experiment uses, and of Lustre or Coral where it sets stripes.
fn check_kind(needs: &Needs, s: &Settings) -> Result<(), String> {
    for (name, dirs) in &s.mounts {
        let (n, few) = (dirs.len(), needs.mounts);
        if n < few {
            return Err(format!(
                "the experiment needs {few} mounts of '{name}', and {n} is given: repeat --mount {name}=DIR for each"
            ));
        }
        for d in dirs.iter().filter(|_| needs.lustre) {
            let mut ask = Command::new(&s.coral);
            let stop = || s.stop.load(Ordering::Relaxed);
            let asked = output_unless(ask.args(["lfs", "getstripe", "-d"]).arg(d), &stop);
            asked.map_err(|why| match stop() {
                true => "interrupted".to_owned(),
                false => format!(
                    "--mount {name}={}: the experiment needs a mount of Lustre or Coral, because it sets stripes: {why}",
                    d.display()
                ),
            })?;
        }
    }
    Ok(())
}

impl Spec {
    /// The experiment on mounts that are given: nothing of `[rig]` is made there. A parameter that only `[rig]` names would be
    /// the same measurement under several names, so it has one value left; the report says both.
    pub fn on_given_mounts(&mut self) {
        let Some(rig) = &self.rig else { return };
        let named = names_in(&Value::Table(rig.clone()));
        let used: BTreeSet<String> = (self.commands())
            .flat_map(|c| {
                let words = c.command.iter().flat_map(|w| names(w));
                words.chain(c.when.keys().cloned())
            })
            .collect();
        // Lists that step together go together.
        let group = |p: String| {
            let with = self.zip.iter().find(|g| g.contains(&p)).cloned();
            with.unwrap_or_else(|| vec![p])
        };
        let fixed: BTreeSet<String> = (named.into_iter())
            .filter(|p| self.parameters.contains_key(p))
            .map(group)
            .filter(|g| g.iter().all(|q| !used.contains(q)))
            .flatten()
            .collect();
        let mut note = "The mounts were given: what the experiment says of networks, cores, caches and servers was not made there".to_owned();
        if !fixed.is_empty() {
            note += &format!(
                "; as it is: {}",
                Vec::from_iter(fixed.iter().cloned()).join(", ")
            );
        }
        self.differs.push(note + ".");
        // What is asked of a value of theirs is asked of what is there.
        let figures = self.figures.iter_mut().map(|f| &mut f.when);
        for when in figures.chain(self.published.iter_mut().map(|p| &mut p.when)) {
            when.retain(|p, _| !fixed.contains(p));
        }
        self.zip.retain(|g| g.iter().all(|p| !fixed.contains(p)));
        for p in fixed {
            self.parameters
                .insert(p, OneOrMany(vec![AS_IT_IS.to_owned()]));
        }
    }
}

/// Names in braces.
fn names(text: &str) -> Vec<String> {
    let parts = text.split('{').skip(1);
    parts
        .filter_map(|p| Some(p.split_once('}')?.0.to_owned()))
        .collect()
}

fn names_in(v: &Value) -> BTreeSet<String> {
    match v {
        Value::String(s) => names(s).into_iter().collect(),
        Value::Array(a) => a.iter().flat_map(names_in).collect(),
        Value::Table(t) => t.values().flat_map(names_in).collect(),
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::load;
    use super::*;

    #[test]
    fn given_mounts_must_be_those_that_are_used_and_writable() {
        let tmp = tempfile::tempdir().unwrap();
        let given =
            |name: &str, dir: &Path| BTreeMap::from([(name.to_owned(), vec![dir.to_owned()])]);
        let wanted = ["fs1".to_owned()];
        assert_eq!(check_mounts(&wanted, &given("fs1", tmp.path())), Ok(()));
        assert!(
            check_mounts(&wanted, &given("fs2", tmp.path()))
                .unwrap_err()
                .contains("did you mean 'fs1'")
        );
        assert!(
            check_mounts(&wanted, &given("fs1", Path::new("/no/such")))
                .unwrap_err()
                .contains("no directory")
        );
        assert!(
            check_mounts(
                &["fs1".to_owned(), "fs2".to_owned()],
                &given("fs1", tmp.path())
            )
            .unwrap_err()
            .contains("--mount fs2=DIR")
        );
        let none = check_mounts(&[], &given("x", tmp.path())).unwrap_err();
        assert!(
            none.starts_with(
                "--mount x: no command of the experiment names a file system: write {fs1} "
            ),
            "{none}"
        );
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0);
    }

    #[test]
    fn mounts_that_commands_number_are_there() {
        let text = "name='x'\n[parameters]\nn=['1','2']\nto=['{fs1.1}/f']\n[rig]\nsystems=[{name='fs1'}]\nclients='{n}'\n[[roles]]\nname='r'\ncommand=['true','{fs1}','{fs1.*/f}','{fs1.library}','{fs1.0}']\n[[roles]]\nname='two'\nwhen={n='2'}\ncommand=['true','{to}']\n";
        let checked = |text: &str| {
            let plan = Plan::of(&load(text, None).unwrap()).unwrap();
            let check = |p: &Point| {
                let rig = fill_table(plan.spec.rig.as_ref().unwrap(), p).unwrap();
                check_numbers(&plan, p, &RigSpec::of(&rig).unwrap().mounts())
            };
            plan.points.iter().try_for_each(check)
        };
        assert_eq!(checked(text), Ok(()));
        let why = checked(&text.replace("when={n='2'}\n", "")).unwrap_err();
        assert_eq!(
            why,
            "n=1: '{fs1.1}' is not there: 'fs1' has 1 mount, and the first is {fs1.0}"
        );
        assert!(checked(&text.replace("fs1.1", "fs1.x")).is_err());
    }

    #[test]
    fn what_only_a_rig_can_vary_is_not_varied_on_given_mounts() {
        let text = "name='x'\nzip=[['rtt','label']]\n[parameters]\nrtt=['0','19']\nlabel=['near','far']\nstripes=[1,2]\nhow=['a','b']\n[rig]\nsystems=[{name='fs1'}]\nrtt_ms='{rtt}'\nstripe_count='{stripes}'\ncache_mb='{how}'\n[[roles]]\nname='r'\nparser='ior'\nwhen={how='a'}\ncommand=['true','{stripes}']\n[[published]]\nwhat='best'\nvalue='682'\nmeasure='r/write'\nwhen={rtt='19',stripes=2}\n";
        let mut spec = load(text, None).unwrap();
        spec.on_given_mounts();
        assert_eq!(spec.parameters["rtt"].0, [AS_IT_IS]);
        assert_eq!(
            spec.published[0].when.keys().collect::<Vec<_>>(),
            ["stripes"]
        );
        // commands see these, or are chosen by them
        assert_eq!(spec.parameters["stripes"].0, ["1", "2"]);
        assert_eq!(spec.parameters["how"].0, ["a", "b"]);
        assert_eq!(
            (&*spec.parameters["label"].0, spec.zip.len()),
            (&[AS_IT_IS.to_owned()][..], 0)
        );
        assert!(
            spec.differs[0].contains("as it is: label, rtt"),
            "{:?}",
            spec.differs
        );
    }
}
