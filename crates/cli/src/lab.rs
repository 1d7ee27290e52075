//! `coral lab`: experiments and the studies.

use crate::args::{Lab, LabAction, LabRun, LabWhere};
use crate::control::{self, Ask};
use crate::lfs;
use crate::lnetctl::find;
use coral_lab::collect::{answer, of_machine};
use coral_lab::experiment::{
    self, BegunBy, Outcome, Place, Plan, RunDir, Settings, Spec, load, loopback_up, nearest,
    needs_namespace, place_of_before,
};
use coral_lab::report;
use coral_lab::study::{STUDIES, study};
use coral_lab::verdict::NOT_CORAL;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::signal::unix::{SignalKind, signal};

/// Set in the process that runs inside the namespaces of a rig, to the command outside.
const INSIDE: &str = "CORAL_LAB_INSIDE";
/// Between looks at the process inside.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// The first signal that has ended the run.
static SIGNAL: OnceLock<i32> = OnceLock::new();

/// Entry of `coral lab`.
pub(crate) fn run(lab: Lab) -> ExitCode {
    let done = match lab.action {
        LabAction::Run(r) => begin(&r),
        LabAction::Resume { dir, place } => go_on(&dir, &place),
        LabAction::Report { dir } => write_report(&dir).map(|page| println!("{}", page.display())),
        LabAction::List { dir } => list(&dir),
        LabAction::Agent => agent(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("coral: {why}");
            ExitCode::from(code_of_end() as u8)
        }
    }
}

/// The code of a run that has not come to its end: that of a shell for the signal that has ended it, as of a load generator, or 1.
fn code_of_end() -> i32 {
    SIGNAL.get().map_or(1, |signal| 128 + signal)
}

/// The experiment of a name or a file.
fn spec_of(name: &str, profile: Option<&str>) -> Result<Spec, String> {
    let text = match study(name) {
        Some(s) => s.text.to_owned(),
        None if name.contains(['/', '.']) => std::fs::read_to_string(name)
            .map_err(|e| format!("cannot read the experiment '{name}': {e}"))?,
        None => {
            let names = STUDIES.iter().map(|s| s.name);
            let hint = nearest(name, names).map_or_else(
                || "`coral lab list` shows the studies; a file is given with its path, as in ./mine.toml".to_owned(),
                |near| format!("did you mean '{near}'?"),
            );
            return Err(format!("there is no study '{name}'; {hint}"));
        }
    };
    load(&text, profile).map_err(|e| format!("{name}: {e}"))
}

fn begin(r: &LabRun) -> Result<(), String> {
    let mut spec = spec_of(&r.experiment, r.profile.as_deref().filter(|p| *p != "full"))?;
    let settings = settings(place_of(&r.place)?)?;
    if !settings.mounts.is_empty() {
        spec.on_given_mounts();
    }
    let plan = Plan::of(&spec).map_err(|e| format!("{}: {e}", r.experiment))?;
    enter_namespace(&spec, &settings)?;
    let dir = r.dir.clone().unwrap_or_else(|| default_dir(&spec.name));
    let outcome = experiment::run(&dir, &plan, &settings)?;
    finish(&dir, &outcome)
}

fn go_on(dir: &Path, place: &LabWhere) -> Result<(), String> {
    let (_, plan) = RunDir::open(dir).map_err(|e| e.to_string())?;
    let settings = settings(place_of_before(dir, place_of(place)?)?)?;
    enter_namespace(&plan.spec, &settings)?;
    let outcome = experiment::resume(dir, &settings)?;
    finish(dir, &outcome)
}

/// Writes the report and says how it ended.
fn finish(dir: &Path, outcome: &Outcome) -> Result<(), String> {
    match write_report(dir) {
        Ok(page) => println!("report: {}", page.display()),
        Err(e) => eprintln!("coral: no report: {e}"),
    }
    match &outcome.incomplete {
        None => Ok(()),
        Some(why) => Err(format!(
            "incomplete, {} of {} steps: {why}\n`coral lab resume {}` goes on",
            outcome.done,
            outcome.all,
            word(&dir.to_string_lossy())
        )),
    }
}

/// A word of a shell's command line.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./=:,@%+".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn write_report(dir: &Path) -> Result<PathBuf, String> {
    let report = report::of(dir).map_err(|e| e.to_string())?;
    print!("{}", report.text);
    report.write(dir).map_err(|e| e.to_string())
}

/// `lab-NAME-N`, the first that is free.
fn default_dir(name: &str) -> PathBuf {
    (1..)
        .map(|n| PathBuf::from(format!("lab-{name}-{n}")))
        .find(|d| !d.exists())
        .unwrap_or_default()
}

/// What the options say of where a run is made.
fn place_of(options: &LabWhere) -> Result<Place, String> {
    let mut mounts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for m in &options.mount {
        let parts = m.split_once('=');
        let Some((name, dir)) = parts.filter(|(n, d)| !n.is_empty() && !d.is_empty()) else {
            return Err(format!(
                "--mount {m}: give the name of the experiment's file system and a directory, as in fs1=/mnt"
            ));
        };
        mounts.entry(name.to_owned()).or_default().push(dir.into());
    }
    Ok(Place {
        mounts,
        scratch: options.scratch.clone(),
    })
}

fn settings(place: Place) -> Result<Settings, String> {
    let Place { mounts, scratch } = place;
    let stop = Arc::new(AtomicBool::new(false));
    let given = !mounts.is_empty();
    Ok(Settings {
        coral: std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?,
        mounts,
        scratch,
        ask: Arc::new(|dir| {
            control::ask_within(dir, Ask::Status, control::BESIDE_LIMIT)
                .map_err(|e| find::no_answer(&control::path(dir), &e))
        }),
        trace: Arc::new(move |places| {
            // Without namespaces of its own a run is on what was given.
            if given && !places.is_empty() && !places.iter().any(|p| lfs::is_on_mount(p)) {
                return Err(NOT_CORAL.to_owned());
            }
            let seen = crate::trace::ask_all(places)?.whole()?;
            match given {
                true => crate::trace::with_servers(places, seen),
                false => Ok(seen),
            }
        }),
        tcp: Arc::new(crate::trace::tcp),
        command_line: std::env::args().collect(),
        stop,
        begun_by: begun_by(),
        say: Arc::new(|line| eprintln!("{line}")),
    })
}

/// The command that a user began, also where this process is the one that it has inside namespaces.
fn begun_by() -> Option<BegunBy> {
    match std::env::var(INSIDE) {
        Ok(outside) => outside.parse().ok(),
        Err(_) => BegunBy::this(),
    }
}

/// Where file systems are started: this program again, in network, mount and process namespaces of its own, all of which end with
/// it. Without root a user namespace gives the rights for that.
fn enter_namespace(spec: &Spec, settings: &Settings) -> Result<(), String> {
    let own = needs_namespace(spec.rig.as_ref()) && settings.mounts.is_empty();
    let is_inside = std::env::var_os(INSIDE).is_some();
    let at_once = Arc::new(AtomicBool::new(false));
    let told = at_once.clone();
    watch_signals(&settings.stop, move || match own && !is_inside {
        true => told.store(true, Ordering::Relaxed),
        false => std::process::exit(code_of_end()),
    })?;
    if !own {
        return Ok(());
    }
    if is_inside {
        stop_with_stdin(&settings.stop);
        return loopback_up(&settings.stop);
    }
    let mut c = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        c.args(["--user", "--map-root-user"]);
    }
    c.args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "--propagation", "private"])
        // A shell is the first process there: it reaps what mounts and servers leave, and with its end everything ends.
        .args(["sh", "-c", "\"$@\"; exit $?", "coral-lab"])
        .arg(&settings.coral)
        .args(std::env::args_os().skip(1))
        .env(
            INSIDE,
            begun_by().map(|b| b.to_string()).unwrap_or_default(),
        )
        .stdin(Stdio::piped());
    let failed = |e| format!("unshare(1), for namespaces of the file systems' own: {e}");
    let mut inside = c.spawn().map_err(failed)?;
    let mut hold = inside.stdin.take();
    loop {
        if let Some(status) = inside.try_wait().map_err(failed)? {
            std::process::exit(match status.code() {
                Some(0) => 0,
                // What has ended it was told to this process.
                _ if SIGNAL.get().is_some() => code_of_end(),
                code => code.unwrap_or(1),
            });
        }
        if at_once.load(Ordering::Relaxed) {
            // All that is in the namespaces ends with it.
            inside.kill().and_then(|()| inside.wait()).map_err(failed)?;
            std::process::exit(code_of_end());
        }
        if settings.stop.load(Ordering::Relaxed) {
            drop(hold.take());
        }
        pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for another process")]
fn pause() {
    std::thread::sleep(LOOK);
}

/// The end of standard input ends the run in order: signals do not cross into the namespaces by themselves, and when the process
/// outside is killed its end of the pipe closes too.
#[expect(
    clippy::disallowed_methods,
    reason = "it waits for another process all its life"
)]
fn stop_with_stdin(stop: &Arc<AtomicBool>) {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.store(true, Ordering::Relaxed);
    });
}

/// SIGINT and SIGTERM end the run in order: what runs is killed, and the run directory says that it is incomplete. At a second signal
/// `at_once` ends it, as a kill would. Signals are counted here, because `stop` is set also when standard input ends: one Ctrl-C can
/// do both.
fn watch_signals(
    stop: &Arc<AtomicBool>,
    at_once: impl Fn() + Send + 'static,
) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let stop = stop.clone();
    let handle = runtime.handle().clone();
    handle.spawn(async move {
        let (Ok(mut int), Ok(mut term)) = (
            signal(SignalKind::interrupt()),
            signal(SignalKind::terminate()),
        ) else {
            return;
        };
        for nth in 1_u64.. {
            let kind = tokio::select! {
                _ = int.recv() => SignalKind::interrupt(),
                _ = term.recv() => SignalKind::terminate(),
            };
            let _ = SIGNAL.set(kind.as_raw_value());
            stop.store(true, Ordering::Relaxed);
            if nth > 1 {
                at_once();
            }
        }
    });
    // It lives as long as the process.
    std::mem::forget(runtime);
    Ok(())
}

/// The collectors of this machine, for an experiment elsewhere.
fn agent() -> Result<(), String> {
    let answered = answer(of_machine(), std::io::stdin().lock(), std::io::stdout());
    answered.map_err(|e| format!("answering: {e}"))
}

fn list(dir: &Path) -> Result<(), String> {
    println!("studies:");
    for s in STUDIES {
        let spec = load(s.text, None).map_err(|e| format!("{}: {e}", s.name))?;
        println!("  {:<6} {}", s.name, spec.title);
    }
    let mut runs: Vec<(PathBuf, String)> = std::fs::read_dir(dir)
        .map_err(|e| format!("'{}': {e}", dir.display()))?
        .flatten()
        .filter(|e| RunDir::is_at(&e.path()))
        .map(|e| {
            (
                e.path(),
                report::state(&e.path()).unwrap_or_else(|e| e.to_string()),
            )
        })
        .collect();
    runs.sort();
    if !runs.is_empty() {
        println!("runs in '{}':", dir.display());
    }
    for (dir, state) in runs {
        println!(
            "  {:<20} {state}",
            dir.file_name().unwrap_or_default().to_string_lossy()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_a_word_as_it_was() {
        assert_eq!(word("lab-s1-1"), "lab-s1-1");
        assert_eq!(word("/var/it's mine"), r"'/var/it'\''s mine'");
    }
}
