//! `coral up`: a whole file system in one process, and how it is kept in its directory.
//!
//! DIR holds `coral.json` (what was formatted, the defaults of the next `up`), one directory a target (`mgs`, `mdt0000`,
//! `ost0000`, ...), and while it runs `control.sock` and `coral.log`. The targets hold their own locks.

mod config;

pub(crate) use self::config::{UpConfig, read_config};

use self::config::{CONFIG_FILE, NEW_CONFIG_FILE, write_config};
use crate::absent::{self, Absent};
use crate::args::{self, Up};
use crate::client::MountedClient;
use crate::control::{self, Ask, Asked};
use crate::daemon::{self, Reporter};
use crate::lnetctl::agent::Agent;
use crate::{net, quote, servers};
use coral_client::Waits;
use coral_lnet::Accept;
use coral_node::target_dir::{self, Defaults};
use coral_node::{NetConfig, Servers, ServersError};
use coral_osd::{Label, OsdFs, TargetKind};
use coral_server::register::RegisterError;
use coral_wire::nid::Nid;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Entry of `coral up`.
pub(crate) fn run(up: Up) -> Result<ExitCode, String> {
    let mountable = match &up.mount {
        Some(mountpoint) => crate::client::check_mountpoint(mountpoint),
        None => Ok(()),
    };
    if let Some(running) = control::running_in(&up.dir)? {
        return Err(already_up(&up, &running, mountable));
    }
    mountable?;
    // Before anything is made.
    wanted(&up, &up.dir, read_config(&up.dir)?.as_ref())?;
    let dir = prepare_dir(&up.dir)?;
    if !up.foreground {
        let started = daemon::start(&dir.join("coral.log"))?;
        println!("{}", started.text);
        return Ok(match started.degraded {
            true => ExitCode::from(absent::EXIT_CODE),
            false => ExitCode::SUCCESS,
        });
    }
    let mut reporter = Reporter::from_env();
    let done = crate::runtime()?.block_on(serve(&up, &dir, &mut reporter));
    if let Err(why) = done {
        reporter.failed(&why);
        std::process::exit(1);
    }
    Ok(ExitCode::SUCCESS)
}

/// What is said when the servers of DIR run, and how to mount what they serve.
fn already_up(up: &Up, running: &serde_json::Value, mountable: Result<(), String>) -> String {
    let dir = up.dir.display();
    let mut why = format!("'{dir}' is already up; see `coral status {dir}`");
    if let Some(mountpoint) = &up.mount {
        let text = |key: &str| running[key].as_str().unwrap_or_default().to_owned();
        let port = match running["port"].as_u64() {
            None | Some(988) => String::new(),
            Some(port) => format!(" --port {port}"),
        };
        why.push_str(&format!(
            "; mount it: coral mount{port} {}:/{} {}",
            text("nid"),
            text("fsname"),
            mountpoint.display()
        ));
    }
    let has = |kind: &str| {
        let targets = running["targets"].as_array().into_iter().flatten();
        let names = targets.filter_map(|t| t["name"].as_str());
        names.filter(|n| n.contains(kind)).count()
    };
    let asked = [(up.mdts, has("-MDT")), (up.osts, has("-OST"))];
    let asked = asked.map(|(n, has)| n.map(|n| n.cmp(&(has as u32))));
    if asked.contains(&Some(Ordering::Less)) {
        why.push_str("; targets are added only, none is taken away");
    } else if asked.contains(&Some(Ordering::Greater)) {
        why.push_str(&format!(
            "; to add targets: `coral down {dir}`, and this command again"
        ));
    }
    if let Err(first) = mountable {
        why.push_str(&format!("; before that: {first}"));
    }
    why
}

/// What a directory may hold that has no configuration yet: what a start leaves that ended before it wrote one, and what a new ext4 file system has.
const OF_NO_START: [&str; 3] = ["coral.log", NEW_CONFIG_FILE, "lost+found"];

/// Makes DIR if it is not there; refuses one that holds something else.
fn prepare_dir(dir: &Path) -> Result<PathBuf, String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("cannot make '{}': {e}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .map_err(|e| format!("'{}': {e}", dir.display()))?;
    if read_config(&dir)?.is_none() {
        let other = std::fs::read_dir(&dir)
            .map_err(|e| format!("'{}': {e}", dir.display()))?
            .flatten()
            .find(|e| OF_NO_START.iter().all(|ours| e.file_name() != *ours));
        if let Some(entry) = other {
            return Err(format!(
                "'{}' is not a Coral directory: it holds '{}' and no '{CONFIG_FILE}'; give an empty or a new one ('{CONFIG_FILE}' lost: restore it; a target of `coral format`: `coral serve`)",
                dir.display(),
                entry.file_name().to_string_lossy()
            ));
        }
    }
    Ok(dir)
}

/// What is to be served from DIR.
struct Plan {
    /// As DIR has it, if it has.
    kept: Option<UpConfig>,
    /// With this command line's wishes.
    config: UpConfig,
    /// What was formatted and is not there.
    absent: Vec<Absent>,
    /// The directories of targets that have yet to be formatted.
    new: Vec<PathBuf>,
}

/// The configuration of DIR with this command line's wishes, which are values that a file system can have.
fn wanted(up: &Up, dir: &Path, kept: Option<&UpConfig>) -> Result<UpConfig, String> {
    let config = match kept {
        Some(c) => c.clone().with(up, dir)?,
        None => UpConfig::fresh(up),
    };
    config.check()?;
    Ok(config)
}

/// Says what is to be served, or why it cannot be. Nothing is written.
fn plan(up: &Up, dir: &Path) -> Result<Plan, String> {
    let kept = read_config(dir)?;
    let config = wanted(up, dir, kept.as_ref())?;
    let absent = absent::all(&config, dir).map_err(|e| e.to_string())?;
    let mut new = Vec::new();
    for target in present(&config, dir, &absent) {
        let made = is_to_be_made(&config, &target);
        if made.map_err(|why| format!("{why}; nothing was changed"))? {
            new.push(target);
        }
    }
    if let Some(a) = absent.iter().find(|a| absent::is_needed(&a.wanted)) {
        return Err(format!(
            "{} is missing, and nothing is served without it: {}; nothing was changed",
            a.name(),
            a.why()
        ));
    }
    Ok(Plan {
        kept,
        config,
        absent,
        new,
    })
}

/// Formats what was never formatted. Returns the configuration, what is to be served without, and what was added to what was there.
fn format_new(plan: Plan, dir: &Path) -> Result<(UpConfig, Vec<Absent>, Option<Added>), String> {
    let Plan {
        kept,
        mut config,
        absent,
        new,
    } = plan;
    let mut stored = config.placed_as(kept.as_ref());
    if kept.as_ref() != Some(&stored) {
        // written before the targets: a crash in between leaves a directory that is ours and is completed by the next `up`
        write_config(dir, &stored)?;
    }
    let mut targets = config.targets.clone();
    let (mut made, mut fresh) = (Vec::new(), Vec::new());
    for target in present(&config, dir, &absent) {
        let label = label_of(&config, &target);
        if new.contains(&target) {
            if target.symlink_metadata().is_err() {
                made.push(target.clone());
            }
            OsdFs::format(&target, &label).map_err(|e| e.to_string())?;
        }
        // also what an earlier start formatted that did not get so far
        if !absent::is_needed(&label) && matches!(OsdFs::fresh(&target), Ok(Some(_))) {
            fresh.push(target.clone());
        }
        targets.insert(
            name_of(&target),
            OsdFs::label(&target).map_err(|e| e.to_string())?.uuid,
        );
    }
    config.targets.clone_from(&targets);
    if stored.targets != targets {
        stored.targets = targets;
        write_config(dir, &stored)?;
    }
    let added = kept.filter(|_| !fresh.is_empty()).map(|kept| Added {
        kept,
        config: config.clone(),
        fresh,
        made,
    });
    Ok((config, absent, added))
}

/// The directories of the targets that are there, or are to be made.
fn present(config: &UpConfig, dir: &Path, absent: &[Absent]) -> Vec<PathBuf> {
    let mut dirs = config.target_dirs(dir);
    dirs.retain(|d| !absent.iter().any(|a| a.dir == *d));
    dirs
}

/// The name of a target's directory.
pub(crate) fn name_of(target: &Path) -> String {
    target
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Whether the target of this directory has yet to be formatted. An error: something else is there.
fn is_to_be_made(config: &UpConfig, target: &Path) -> Result<bool, String> {
    let unreadable = |e: std::io::Error| format!("'{}': {e}", target.display());
    if target.metadata().is_ok_and(|m| !m.is_dir()) {
        return Err(format!(
            "'{}' is no directory: move it away, {} is to be made there",
            target.display(),
            label_of(config, target).target_name()
        ));
    }
    if target.join("CORAL").try_exists().map_err(unreadable)? {
        let (found, wanted) = (OsdFs::label(target), label_of(config, target));
        let found = found.map_err(|e| e.to_string())?;
        let who = |l: &Label| (l.kind, l.fsname.clone(), l.index);
        return match who(&found) == who(&wanted) {
            true => Ok(false),
            false => Err(format!(
                "'{}' holds {} of the file system '{}': move it away, {} is to be made there{}",
                target.display(),
                found.target_name(),
                found.fsname,
                wanted.target_name(),
                match found.fsname == config.fsname {
                    true => String::new(),
                    false => format!(
                        "; if it is the right one, {CONFIG_FILE} is damaged: correct the name of the file system there, '{}'",
                        config.fsname
                    ),
                }
            )),
        };
    }
    if OsdFs::has_served(target).map_err(unreadable)? {
        return Err(format!(
            "'{0}' has served as a target and lost its label; restore the file '{0}/CORAL', the data are untouched",
            target.display()
        ));
    }
    let leads_nowhere = |e: std::io::Error| match target.is_symlink() {
        true => format!(
            "'{}' is a symbolic link that cannot be followed ({e}): mount what it leads to, or remove it",
            target.display()
        ),
        false => unreadable(e),
    };
    match OsdFs::foreign_content(target).map_err(leads_nowhere)? {
        None => Ok(true),
        Some(why) => Err(format!(
            "'{}': {why}; move it away, {} is to be made there",
            target.display(),
            label_of(config, target).target_name()
        )),
    }
}

/// What is added to a file system.
struct Added {
    kept: UpConfig,
    config: UpConfig,
    /// The directories of targets that no MGS has accepted yet.
    fresh: Vec<PathBuf>,
    /// Those of them that were made for it.
    made: Vec<PathBuf>,
}

impl Added {
    /// Takes back targets that the MGS did not accept: nothing was ever served from them. Returns what to say of it.
    fn take_back(&self, dir: &Path) -> Result<String, String> {
        let mut go = self.fresh.clone();
        go.retain(|target| matches!(OsdFs::fresh(target), Ok(Some(_))));
        let names: Vec<String> = go.iter().map(|target| name_of(target)).collect();
        let left = self.config.placed_as(Some(&self.kept)).without(&go, dir);
        write_config(dir, &left)?;
        for target in &go {
            let emptied = match self.made.contains(target) {
                true => std::fs::remove_dir_all(target),
                false => empty(target),
            };
            emptied.map_err(|e| format!("'{}': {e}", target.display()))?;
        }
        Ok(format!(
            "'{0}' has {1} MDTs and {2} OSTs now. `coral up` gives new targets the next indices: to have the other one in '{0}' too, stop it, move its directory there under the name that goes with its index ({3}), and add targets again",
            dir.display(),
            left.mdts,
            left.osts,
            names.join(" or ")
        ))
    }
}

/// Removes what is in a directory.
fn empty(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true if entry.file_name() == "lost+found" => {}
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// A new label of the target in this directory.
pub(crate) fn label_of(config: &UpConfig, target: &Path) -> Label {
    let name = name_of(target);
    let (kind, index) = match name.split_at(3) {
        ("mdt", hex) => (TargetKind::Mdt, u32::from_str_radix(hex, 16).unwrap_or(0)),
        ("ost", hex) => (TargetKind::Ost, u32::from_str_radix(hex, 16).unwrap_or(0)),
        _ => (TargetKind::Mgs, 0),
    };
    target_dir::label(kind, &config.fsname, index, &[])
}

fn net_of(up: &Up, config: &UpConfig) -> Result<NetConfig, String> {
    let nids = std::iter::once(&config.nid)
        .chain(&config.more_nids)
        .map(|n| n.parse::<Nid>().map_err(|e| e.to_string()))
        .collect::<Result<Vec<_>, _>>()?;
    let given = args::Net {
        route: config.routes.clone(),
        ..up.net.clone()
    };
    Ok(NetConfig {
        nids,
        port: config.port,
        routes: net::routes(&given)?,
        accept: config.accept()?,
        routing: None,
    })
}

async fn serve(up: &Up, dir: &Path, reporter: &mut Reporter) -> Result<(), String> {
    let plan = plan(up, dir)?;
    let net = net_of(up, &plan.config)?;
    // before anything is formatted: an address that is taken leaves nothing behind
    let node = net::start(&net).await?;
    let (config, mut absent, added) = format_new(plan, dir)?;
    let defaults = Defaults {
        stripe_count: config.stripe_count,
        stripe_size: config.stripe_size,
    };
    let dirs = present(&config, dir, &absent);
    let claim = up.claim.claim_version;
    let mut targets = servers::config(&dirs, Some(defaults), claim, &up.recovery);
    for (target, dir) in targets.targets.iter_mut().zip(&dirs) {
        target.dispensable = !absent::is_needed(&label_of(&config, dir));
    }
    let servers = match Servers::start(node, targets).await {
        Ok(servers) => servers,
        Err(why) => {
            let in_use = matches!(
                why,
                ServersError::Register(RegisterError::IndexInUse { .. })
            );
            let taken_back = added.filter(|_| in_use).map(|added| {
                let done = added.take_back(dir);
                done.unwrap_or_else(|e| format!("and what was added could not be taken back: {e}"))
            });
            let more = taken_back.map(|text| format!("; {text}"));
            return Err(format!("{why}{}", more.unwrap_or_default()));
        }
    };
    let left_out = servers.left_out().iter();
    absent.extend(left_out.map(|(target, why)| Absent::damaged(&config, target, why)));
    let mut asked = control::serve(dir, Agent::new(servers.node()))
        .map_err(|e| format!("control socket in '{}': {e}", dir.display()))?;
    let client = match &up.mount {
        None => None,
        Some(mountpoint) => {
            let waits = Arc::default();
            let local = (&servers, &waits);
            let mounting = MountedClient::local(local, &config.fsname, mountpoint, up, reporter);
            let status = || status(&config, &absent, dir, &servers, None);
            match answering_meanwhile(mounting, &waits, &mut asked, &servers, status).await {
                Ok(client) => Some(client),
                Err((why, reply)) => {
                    servers.stop().await;
                    control::stopped(dir, reply).await;
                    return Err(why);
                }
            }
        }
    };
    let text = summary(
        &config,
        &absent,
        dir,
        servers.node().accept(),
        client.as_ref().map(MountedClient::mountpoint),
    ) + &waiting_note(&servers::waiting(&servers))
        + &absent_note(dir, &absent);
    keep_flags(dir, &config, reporter);
    let ready = match absent.is_empty() {
        true => reporter.ready(&text),
        false => reporter.degraded(&text),
    };
    let reply =
        crate::run_until_stopped(&ready, &mut asked, client.as_ref(), Some(&servers), || {
            status(&config, &absent, dir, &servers, client.as_ref())
        })
        .await;
    let ended = match client {
        Some(client) => client.umount().await,
        None => Ok(()),
    };
    servers.stop().await;
    control::stopped(dir, reply).await;
    ready.and(ended)
}

/// Waits for the mount and answers on the control socket meanwhile: it may wait for clients of before, and who asks is told which.
/// The error says why there is no mount, with the way to whoever asked for the end.
async fn answering_meanwhile<T>(
    mounting: impl Future<Output = Result<T, String>>,
    waits: &Waits,
    asked: &mut mpsc::Receiver<Asked>,
    servers: &Servers,
    status: impl Fn() -> serde_json::Value,
) -> Result<T, (String, Option<oneshot::Sender<serde_json::Value>>)> {
    let mut mounting = std::pin::pin!(mounting);
    let of = crate::params::Of {
        llite: None,
        servers: Some(servers),
    };
    loop {
        tokio::select! {
            biased;
            done = &mut mounting => return done.map_err(|why| (why, None)),
            Some((ask, reply)) = asked.recv() => match ask {
                Ask::Down | Ask::DownForced => {
                    waits.give_up();
                    let _ = tokio::time::timeout(crate::client::GOODBYE, &mut mounting).await;
                    return Err(("stopped before it was mounted".to_owned(), Some(reply)));
                }
                ask => { let _ = reply.send(crate::answer(ask, of, &status).await); }
            },
        }
    }
}

/// Keeps what was said this time for the next `up`. A full disk is no reason not to serve: then it has to be said again.
fn keep_flags(dir: &Path, config: &UpConfig, reporter: &mut Reporter) {
    if read_config(dir).is_ok_and(|kept| kept.as_ref() == Some(config)) {
        return;
    }
    if let Err(why) = write_config(dir, config) {
        reporter.note(&format!(
            "{why}; the flags of this `coral up` are not kept for the next"
        ));
    }
}

/// What is said of targets that wait for clients of before: nobody else gets in meanwhile.
pub(crate) fn waiting_note(waiting: &[String]) -> String {
    let mut text: String = waiting.iter().map(|line| format!("\n{line}")).collect();
    if !waiting.is_empty() {
        text.push_str("\nnew mounts wait as long; `lctl abort_recovery` gives them up");
    }
    text
}

/// What is said of targets that are missing; the last line is for scripts, too.
fn absent_note(dir: &Path, absent: &[Absent]) -> String {
    let mut text = String::new();
    for a in absent {
        tracing::error!(target = %a.name(), why = %a.why(), "missing: served without it");
        let (name, why, consequence) = (a.name(), a.why(), a.consequence());
        text.push_str(&format!("\nmissing: {name}: {why}\n  {consequence}"));
    }
    if !absent.is_empty() {
        let names: Vec<String> = absent.iter().map(Absent::name).collect();
        text.push_str(&format!(
            "\n  when it is back: coral down {0} && coral up {0}\ndegraded: {1} missing",
            dir.display(),
            names.join(", ")
        ));
    }
    text
}

/// How many of the targets of a kind are up.
fn counted(absent: &[Absent], kind: TargetKind, name: &str, count: u32) -> String {
    let s = if count == 1 { "" } else { "s" };
    match absent.iter().filter(|a| a.wanted.kind == kind).count() as u32 {
        0 => format!("{count} {name}{s}"),
        missing => format!("{} of {count} {name}{s}", count - missing),
    }
}

fn summary(
    config: &UpConfig,
    absent: &[Absent],
    dir: &Path,
    accept: Accept,
    mount: Option<&Path>,
) -> String {
    let port = if config.port == 988 {
        String::new()
    } else {
        format!(" --port {}", config.port)
    };
    let mut text = format!(
        "coral: file system '{}' is up: MGS, {}, {} in {}, listening on {} port {}\n",
        config.fsname,
        counted(absent, TargetKind::Mdt, "MDT", config.mdts),
        counted(absent, TargetKind::Ost, "OST", config.osts),
        dir.display(),
        config.nid,
        config.port
    );
    if let Some(mnt) = mount {
        text.push_str(&format!("mounted on {}\n", mnt.display()));
    }
    text.push_str(&format!(
        "mount it elsewhere:  coral mount{port} {}:/{} /other/mnt\n",
        config.nid, config.fsname
    ));
    text.push_str(match accept {
        Accept::Secure => "who may: root of any machine, from ports below 1024 (--accept secure)\n",
        Accept::User => "who may: this user and root, on this machine (--accept user); other machines and users: --accept all\n",
        Accept::All => "who may: everybody who reaches this port (--accept all); he can say there that he is root\n",
        Accept::None => "who may: nobody (--accept none)\n",
    });
    text.push_str(&format!(
        "log: {}    stop: coral down {}",
        dir.join("coral.log").display(),
        quote::word(dir)
    ));
    text
}

fn status(
    config: &UpConfig,
    absent: &[Absent],
    dir: &Path,
    servers: &Servers,
    client: Option<&MountedClient>,
) -> serde_json::Value {
    let mut answer = serde_json::json!({
        "pid": std::process::id(),
        "dir": dir,
        "fsname": config.fsname,
        "nid": config.nid,
        "nids": servers::nids(servers),
        "port": config.port,
        "accept": servers.node().accept().name(),
        "mount": client.map(|c| c.mountpoint()),
        "targets": servers::status(servers),
    });
    if let Some(targets) = answer["targets"].as_array_mut() {
        targets.extend(absent.iter().map(servers::missing));
    }
    crate::counters(Some(servers), client).put_into(&mut answer);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn up(dir: &Path) -> Up {
        Up {
            cache_mb: Some(1),
            foreground: true,
            ..Up::of(dir.into())
        }
    }

    fn formatted(up: &Up, dir: &Path) -> Result<UpConfig, String> {
        let (config, absent, _) = format_new(plan(up, dir)?, dir)?;
        assert!(absent.is_empty(), "{absent:?}");
        Ok(config)
    }

    #[test]
    fn a_directory_that_is_not_ours_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "precious").unwrap();
        let why = prepare_dir(dir.path()).unwrap_err();
        assert!(why.contains("thesis.tex"), "{why}");
    }

    #[test]
    fn what_a_start_leaves_that_wrote_no_configuration_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("coral.log"), "").unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        std::fs::write(dir.path().join(NEW_CONFIG_FILE), r#"{"versi"#).unwrap();
        let config = formatted(&up(dir.path()), &prepare_dir(dir.path()).unwrap()).unwrap();
        assert_eq!(read_config(dir.path()), Ok(Some(config)));
        assert!(!dir.path().join(NEW_CONFIG_FILE).exists());
    }

    #[test]
    fn who_is_up_already_is_told_how_targets_are_added() {
        let running = serde_json::json!({ "targets": [{ "name": "a-MDT0000" }, { "name": "a-OST0000" }, { "name": "a-OST0001" }] });
        let said = |mdts, osts| {
            let up = Up {
                mdts,
                osts,
                ..up(Path::new("/d"))
            };
            already_up(&up, &running, Ok(()))
        };
        let add = "; to add targets: `coral down /d`, and this command again";
        let none = "; targets are added only, none is taken away";
        for (mdts, osts, tail) in [
            (None, None, ""),
            (Some(1), Some(2), ""),
            (Some(2), None, add),
            (None, Some(3), add),
            (Some(4), Some(1), none),
        ] {
            let why = said(mdts, osts);
            assert!(why.ends_with(&format!("`coral status /d`{tail}")), "{why}");
        }
    }

    #[test]
    fn flags_are_kept_when_the_servers_are_up_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = Up {
            net: args::Net {
                port: Some(5),
                ..up(dir.path()).net
            },
            stripe_count: Some(2),
            ..up(dir.path())
        };
        let config = formatted(&elsewhere, dir.path()).unwrap();
        assert_eq!((config.port, config.stripe_count), (5, 2));
        let next = formatted(&up(dir.path()), dir.path()).unwrap();
        assert_eq!(
            (next.port, next.stripe_count, next.targets.len()),
            (988, 1, 6)
        );
        write_config(dir.path(), &config).unwrap(); // as when the servers are up
        assert_eq!(formatted(&up(dir.path()), dir.path()).unwrap(), config);
    }

    #[test]
    fn a_target_that_is_gone_is_not_replaced_by_an_empty_one() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path();
        let config = formatted(&up(dir), dir).unwrap();
        let target = dir.join("ost0001");
        std::fs::rename(&target, dir.join("aside")).unwrap();
        let (without, absent, _) = format_new(plan(&up(dir), dir).unwrap(), dir).unwrap();
        assert_eq!(absent[0].name(), "coral-OST0001");
        assert!(!target.exists());
        assert_eq!(without, config, "it is still known");
        assert_eq!(present(&without, dir, &absent).len(), 5);
        std::fs::create_dir(&target).unwrap(); // as an empty mount point
        let (_, absent, _) = format_new(plan(&up(dir), dir).unwrap(), dir).unwrap();
        assert_eq!(absent.len(), 1);
        assert!(std::fs::read_dir(&target).unwrap().next().is_none());
        std::fs::remove_dir_all(&target).unwrap();
        std::fs::rename(dir.join("aside"), &target).unwrap();
        formatted(&up(dir), dir).unwrap();
    }

    #[test]
    fn nothing_is_served_without_the_mgs_or_the_root() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path();
        formatted(&up(dir), dir).unwrap();
        for name in ["mgs", "mdt0000"] {
            std::fs::rename(dir.join(name), dir.join("aside")).unwrap();
            let why = plan(&up(dir), dir).map(drop).unwrap_err();
            assert!(why.contains("nothing is served without it"), "{why}");
            std::fs::rename(dir.join("aside"), dir.join(name)).unwrap();
        }
    }

    #[test]
    fn a_new_target_does_not_take_the_place_of_another() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path();
        formatted(&up(dir), dir).unwrap();
        let label = target_dir::label(TargetKind::Ost, "other", 4, &[]);
        OsdFs::format(&dir.join("ost0004"), &label).unwrap();
        let more = Up {
            osts: Some(5),
            ..up(dir)
        };
        let refused = |what: &str| {
            let kept = read_config(dir).unwrap();
            let why = formatted(&more, dir).unwrap_err();
            assert!(
                why.contains(what) && why.contains("nothing was changed"),
                "{why}"
            );
            assert_eq!(read_config(dir).unwrap(), kept);
        };
        refused("other-OST0004");
        let place = dir.join("ost0004");
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("thesis.tex"), "precious").unwrap();
        refused("it is not empty");
        std::fs::remove_dir_all(&place).unwrap();
        std::os::unix::fs::symlink("nowhere", &place).unwrap();
        refused("No such file");
        assert!(place.is_symlink());
        std::fs::remove_file(&place).unwrap();
        assert_eq!(formatted(&more, dir).unwrap().osts, 5);
    }

    #[test]
    fn a_target_that_lost_its_label_is_not_formatted_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = formatted(&up(dir.path()), dir.path()).unwrap();
        let target = dir.path().join("ost0001");
        // half formatted, never served: made anew
        std::fs::remove_file(target.join("CORAL")).unwrap();
        assert!(is_to_be_made(&config, &target).unwrap());
        OsdFs::format(&target, &label_of(&config, &target)).unwrap();
        drop(OsdFs::open(&target).unwrap());
        std::fs::remove_file(target.join("CORAL")).unwrap();
        std::fs::write(target.join("objects/precious"), "data").unwrap();
        let (_, absent, _) =
            format_new(plan(&up(dir.path()), dir.path()).unwrap(), dir.path()).unwrap();
        let why = absent[0].why();
        assert!(
            why.contains("ost0001/CORAL") && why.contains("restore"),
            "{why}"
        );
        let unknown = UpConfig {
            targets: BTreeMap::new(),
            ..config.clone()
        };
        let why = is_to_be_made(&unknown, &target).unwrap_err();
        assert!(why.contains("lost its label"), "{why}");
        let why = OsdFs::format(&target, &label_of(&config, &target))
            .unwrap_err()
            .to_string();
        assert!(why.contains("lost its label"), "{why}");
        assert_eq!(
            std::fs::read(target.join("objects/precious")).unwrap(),
            b"data"
        );
    }
}
