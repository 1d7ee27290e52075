//! `coral serve`: the servers of one node, without a mount.

use crate::args::Serve;
use crate::daemon::{self, Reporter};
use crate::lnetctl::agent::Agent;
use crate::net;
use crate::{control, servers};
use coral_node::net::DEFAULT_PORT;
use coral_node::{NetConfig, Servers, target_dir};
use coral_osd::{OsdFs, TargetKind};
use coral_wire::nid::Nid;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is not known by then is not told of what the MGS lacks.
const NOTE_LIMIT: Duration = Duration::from_secs(2);

/// Entry of `coral serve`.
pub(crate) fn run(s: Serve) -> Result<(), String> {
    let dirs = target_dirs(&s.dirs)?;
    let Some(home) = s.dirs.first().cloned() else {
        return Err("give at least one target directory".into());
    };
    for dir in &s.dirs {
        if let Some(running) = control::running_in(dir)? {
            return Err(format!(
                "'{}' is served already, by process {}; stop it: coral down {0}",
                dir.display(),
                running["pid"]
            ));
        }
    }
    if !s.foreground {
        println!("{}", daemon::start(&home.join("coral.log"))?.text);
        return Ok(());
    }
    let mut reporter = Reporter::from_env();
    if let Err(why) = crate::runtime()?.block_on(serve(&s, &home, dirs, &mut reporter)) {
        reporter.failed(&why);
        std::process::exit(1);
    }
    Ok(())
}

/// A directory may be a target itself or hold several (`coral format --mgs --mdt 0` makes one with two).
pub(crate) fn target_dirs(given: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut out = Vec::new();
    for dir in given {
        if dir.join("CORAL").is_file() {
            out.push(dir.clone());
            continue;
        }
        let mut inner: Vec<PathBuf> = std::fs::read_dir(dir)
            .map_err(|e| format!("'{}': {e}", dir.display()))?
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.join("CORAL").is_file())
            .collect();
        if inner.is_empty() {
            return Err(format!(
                "'{}' is not a Coral target: format it first (coral format)",
                dir.display()
            ));
        }
        inner.sort();
        out.extend(inner);
    }
    // the MGS must be up before what registers with it
    let mut keyed: Vec<(bool, PathBuf)> = Vec::new();
    for dir in out {
        let label = OsdFs::label(&dir).map_err(|e| e.to_string())?;
        keyed.push((label.kind != TargetKind::Mgs, dir));
    }
    keyed.sort_by_key(|(later, _)| *later);
    Ok(keyed.into_iter().map(|(_, d)| d).collect())
}

async fn serve(
    s: &Serve,
    home: &Path,
    dirs: Vec<PathBuf>,
    reporter: &mut Reporter,
) -> Result<(), String> {
    let nids = if s.net.nid.is_empty() {
        vec![Nid::tcp(0, std::net::Ipv4Addr::LOCALHOST)]
    } else {
        s.net.nid.clone()
    };
    let (nid, port) = (nids[0], s.net.port.unwrap_or(DEFAULT_PORT));
    let net = NetConfig {
        nids,
        port,
        routes: net::routes(&s.net)?,
        accept: s.net.accept,
        routing: None,
    };
    let mut defaults = None;
    for dir in &dirs {
        defaults = defaults.or(target_dir::read_defaults(dir).map_err(|e| e.to_string())?);
    }
    let mut config = servers::config(&dirs, defaults, s.claim.claim_version, &s.recovery);
    config.accept_older = s.accept_older;
    let node = net::start(&net).await?;
    let servers = Servers::start(node, config)
        .await
        .map_err(|e| e.to_string())?;
    let mut asked = control::serve(home, Agent::new(servers.node()))
        .map_err(|e| format!("control socket in '{}': {e}", home.display()))?;
    let count = servers.targets().count();
    let s = if count == 1 { "" } else { "s" };
    let note = servers::rootless_note(&servers);
    let rootless = tokio::time::timeout(NOTE_LIMIT, note).await;
    let rootless = rootless.unwrap_or_default();
    let ready = reporter.ready(&format!(
        "coral: {count} target{s} up on {nid} port {port}\nstop: coral down {}{}{rootless}",
        home.display(),
        crate::up::waiting_note(&servers::waiting(&servers))
    ));
    let status = || {
        let mut answer = serde_json::json!({
            "pid": std::process::id(), "dir": home, "fsname": servers.fsname(), "nid": nid.to_string(), "nids": servers::nids(&servers), "port": port, "accept": servers.node().accept().name(), "mount": null,
            "targets": servers::status(&servers),
        });
        crate::counters(Some(&servers), None).put_into(&mut answer);
        answer
    };
    let reply = crate::run_until_stopped(&ready, &mut asked, None, Some(&servers), status).await;
    servers.stop().await;
    control::stopped(home, reply).await;
    ready
}
