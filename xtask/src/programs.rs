//! The test programs of the workspace, several at a time: most tests wait, for a time-out, a restart or another process. What measures
//! memory or processor time, or needs the machine to itself for another reason, runs alone.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde::Deserialize;

use crate::step;

/// Programs at a time, each with as many tests at a time as there are processors.
const AT_ONCE: usize = 3;

/// Programs that run alone: crate, and name of the program.
const ALONE: &[(&str, &str)] = &[
    ("coral-cli", "explain"),
    ("coral-cli", "memory"),
    ("coral-cli", "planted_real"),
    ("coral-cli", "power"),
    ("coral-cli", "storm"),
    ("coral-client", "power"),
    ("coral-lab", "planted"),
    ("coral-lab", "truth"),
    ("coral-lnet", "soak"),
    ("coral-node", "many_clients"),
    ("coral-osd", "damage"),
    ("coral-osd", "full"),
    ("coral-server", "recovery_scale"),
    ("coral-server", "target_threads"),
];

/// Those that take longest, in minutes: begun first and in this order, so that at the end nothing is waited for alone.
const FIRST: &[(&str, &str)] = &[
    ("coral-client", "mdts_crash"),
    ("coral-cli", "locks"),
    ("coral-client", "one_mdt"),
    ("coral-cli", "kill"),
    ("coral-cli", "bad_input"),
    ("coral-cli", "full_disk"),
];

/// A line of `cargo --message-format=json`.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    package_id: Option<String>,
    target: Option<Target>,
    #[serde(default)]
    profile: Profile,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Profile {
    test: bool,
}

/// One test program.
struct Program {
    path: PathBuf,
    package: PathBuf,
    krate: String,
    name: String,
}

impl Program {
    fn of(line: &str) -> Option<Program> {
        let artifact: Artifact = serde_json::from_str(line).ok()?;
        let (path, manifest) = (artifact.executable?, artifact.manifest_path?);
        let package = manifest.parent()?.to_owned();
        let id = artifact.package_id?;
        let krate = crate_of(&id, &package);
        artifact.profile.test.then_some(Program {
            path,
            krate,
            name: artifact.target?.name,
            package,
        })
    }

    fn shown(&self) -> String {
        format!("{} {}", self.krate, self.name)
    }

    /// Its place in a list.
    fn place(&self, list: &[(&str, &str)]) -> Option<usize> {
        let this = (&self.krate[..], &self.name[..]);
        list.iter().position(|p| *p == this)
    }

    /// Runs it, and prints what it printed when it has ended.
    fn run(&self, coral: &Path) -> Result<(), String> {
        let (shown, begun) = (self.shown(), step::now());
        let mut run = Command::new(&self.path);
        run.current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            .env("CORAL_BIN", coral);
        let out = run.output().map_err(|e| format!("{shown}: {e}"))?;
        let took_s = begun.elapsed().as_secs();
        println!(
            "xtask: {shown}: {}, {took_s} s\n{}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        match out.status.success() {
            true => Ok(()),
            false => Err(format!("{shown}: {}", out.status)),
        }
    }
}

/// The name in `path+file:///…/crates/cli#coral-cli@0.1.0`; the last part may lack the name where the directory has it.
fn crate_of(id: &str, package: &Path) -> String {
    let last = id.rsplit('#').next().unwrap_or(id);
    match last.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => package
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
    }
}

/// The path of `coral` in a line about it.
fn coral_of(line: &str) -> Option<PathBuf> {
    let artifact: Artifact = serde_json::from_str(line).ok()?;
    let target = artifact.target?;
    let is_it = target.name == "coral" && target.kind == ["bin"] && !artifact.profile.test;
    artifact.executable.filter(|_| is_it)
}

/// The test programs, and the `coral` that they start, of the same profile.
pub(crate) struct Built {
    programs: Vec<Program>,
    coral: Option<PathBuf>,
}

/// Builds all of them.
pub(crate) fn build() -> Result<Built, String> {
    let build = [
        "test",
        "--workspace",
        "--locked",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ];
    let shown = format!("cargo {}", build.join(" "));
    eprintln!("xtask: {shown}");
    let begun = step::now();
    let out = Command::new("cargo")
        .args(build)
        .current_dir(step::root())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| format!("{shown}: {e}"))?;
    eprintln!("xtask: {} s: {shown}", begun.elapsed().as_secs());
    if !out.status.success() {
        return Err(format!("{shown}: {}", out.status));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(Built {
        programs: text.lines().filter_map(Program::of).collect(),
        coral: text.lines().find_map(coral_of),
    })
}

impl Built {
    /// The `coral` that the tests start.
    pub(crate) fn coral(&self) -> Result<PathBuf, String> {
        let none = || "cargo test has built no program `coral`".to_owned();
        self.coral.clone().ok_or_else(none)
    }

    /// Runs all test programs.
    pub(crate) fn run(self) -> Result<(), String> {
        let coral = self.coral()?;
        let all = self.programs.into_iter();
        let (alone, mut others): (Vec<_>, Vec<_>) = all.partition(|p| p.place(ALONE).is_some());
        others.sort_by_key(|p| p.place(FIRST).unwrap_or(FIRST.len()));
        if alone.len() != ALONE.len() {
            return Err(format!(
                "{} of the {} programs that are to run alone are there: see {}",
                alone.len(),
                ALONE.len(),
                file!()
            ));
        }
        let mut failed = at_once(others.into(), &coral, AT_ONCE);
        failed.extend(at_once(alone.into(), &coral, 1));
        match failed.is_empty() {
            true => Ok(()),
            false => Err(failed.join("\n")),
        }
    }
}

/// Runs so many at a time; what failed.
fn at_once(all: VecDeque<Program>, coral: &Path, count: usize) -> Vec<String> {
    let (all, failed) = (Mutex::new(all), Mutex::new(Vec::new()));
    let next = || all.lock().ok()?.pop_front();
    let work = || {
        while let Some(program) = next() {
            if let (Err(why), Ok(mut failed)) = (program.run(coral), failed.lock()) {
                failed.push(why);
            }
        }
    };
    std::thread::scope(|threads| {
        for _ in 0..count {
            threads.spawn(work);
        }
    });
    failed.into_inner().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_is_read() {
        let line = |test: bool, id: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/crates/cli/Cargo.toml",
                "target":{{"kind":["test"],"name":"kill"}},"profile":{{"test":{test}}},"executable":"/w/target/debug/deps/kill-1"}}"#
            )
        };
        let p = Program::of(&line(true, "path+file:///w/crates/cli#coral-cli@0.1.0")).unwrap();
        assert_eq!(
            (p.shown(), p.package),
            ("coral-cli kill".into(), "/w/crates/cli".into())
        );
        assert_eq!(
            coral_of(&line(true, "path+file:///w/crates/cli#coral-cli@0.1.0")),
            None
        );
        let coral =
            r#"{"target":{"kind":["bin"],"name":"coral"},"executable":"/w/target/debug/coral"}"#;
        assert_eq!(coral_of(coral), Some("/w/target/debug/coral".into()));
        let p = Program::of(&line(true, "path+file:///w/xtask#0.1.0")).unwrap();
        assert_eq!(p.krate, "cli");
        assert!(Program::of(&line(false, "path+file:///w/crates/cli#coral-cli@0.1.0")).is_none());
        assert!(Program::of(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
