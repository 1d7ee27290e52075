//! `coral up`: a whole file system in one process, and how it is kept in its directory.
//!
//! DIR holds `coral.json` (what was formatted, the defaults of the next `up`), one directory a target (`mgs`, `mdt0000`,
//! `ost0000`, ...), and while it runs `control.sock` and `coral.log`. The targets hold their own locks.

use crate::args::{self, Up};
use crate::client::MountedClient;
use crate::control::{self, Ask, Asked};
use crate::daemon::{self, Reporter};
use crate::lnetctl::agent::Agent;
use crate::{net, servers};
use coral_lnet::{Accept, MemNet};
use coral_node::target_dir::{self, Defaults};
use coral_node::{NetConfig, Servers};
use coral_osd::{Label, OpenError, OsdFs, TargetKind};
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokio::sync::{mpsc, oneshot};

/// File in DIR that says what it is.
const CONFIG_FILE: &str = "coral.json";
/// Version of [`CONFIG_FILE`]; a newer one is refused.
const CONFIG_VERSION: u32 = 1;
/// Most OSTs `coral up` makes: one process serves them all.
const OSTS_MAX: u32 = 256;

/// Most MDTs `coral up` makes.
const MDTS_MAX: u32 = 64;

/// What `coral up` keeps between runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UpConfig {
    /// Version of this file.
    pub version: u32,
    /// File system name.
    pub fsname: String,
    /// Number of MDTs.
    pub mdts: u32,
    /// Number of OSTs.
    pub osts: u32,
    /// NID of the servers, as text.
    pub nid: String,
    /// Further NIDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_nids: Vec<String>,
    /// Routes, each in the grammar of `--route`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// TCP port of the acceptor.
    pub port: u16,
    /// Whose connections are taken, as `--accept` names them; None: by privilege.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// Default stripes of a new file; -1 is all OSTs.
    pub stripe_count: i32,
    /// Default stripe size, bytes.
    pub stripe_size: u64,
    /// Targets that were formatted: directory name to the uuid in its label. One of them that is gone is never replaced by an
    /// empty one.
    #[serde(default)]
    pub targets: BTreeMap<String, String>,
}

impl UpConfig {
    fn fresh(up: &Up) -> UpConfig {
        UpConfig {
            version: CONFIG_VERSION,
            fsname: up.fsname.clone().unwrap_or_else(|| "coral".into()),
            mdts: up.mdts.unwrap_or(1),
            osts: up.osts.unwrap_or(4),
            nid: up
                .net
                .nid
                .first()
                .map_or_else(|| "127.0.0.1@tcp".into(), |n| n.to_string()),
            more_nids: up.net.nid.iter().skip(1).map(Nid::to_string).collect(),
            routes: up.net.route.clone(),
            port: up.net.port.unwrap_or(988),
            accept: up.net.accept.map(|a| a.to_string()),
            stripe_count: up.stripe_count.unwrap_or(1),
            stripe_size: up.stripe_size.unwrap_or(1 << 20),
            targets: BTreeMap::new(),
        }
    }

    /// The kept configuration with this command line's wishes on top.
    fn with(mut self, up: &Up, dir: &Path) -> Result<UpConfig, String> {
        let differs = |what: &str, is: &dyn std::fmt::Display| {
            Err(format!(
                "'{}' was formatted with {what} {is}; that cannot be changed",
                dir.display()
            ))
        };
        if up.fsname.as_ref().is_some_and(|n| *n != self.fsname) {
            return differs("the file system name", &self.fsname);
        }
        if up.mdts.is_some_and(|n| n < self.mdts) {
            return Err(format!(
                "'{}' has {} MDTs: more can be added, none taken away",
                dir.display(),
                self.mdts
            ));
        }
        if let Some(n) = up.mdts {
            self.mdts = n;
        }
        if up.osts.is_some_and(|n| n < self.osts) {
            return Err(format!(
                "'{}' has {} OSTs: more can be added, none taken away",
                dir.display(),
                self.osts
            ));
        }
        if let Some(n) = up.osts {
            self.osts = n;
        }
        if let Some((first, more)) = up.net.nid.split_first() {
            self.nid = first.to_string();
            self.more_nids = more.iter().map(Nid::to_string).collect();
        }
        if !up.net.route.is_empty() {
            self.routes = up.net.route.clone();
        }
        if let Some(port) = up.net.port {
            self.port = port;
        }
        if let Some(accept) = up.net.accept {
            self.accept = Some(accept.to_string());
        }
        if let Some(n) = up.stripe_count {
            self.stripe_count = n;
        }
        if let Some(n) = up.stripe_size {
            self.stripe_size = n;
        }
        Ok(self)
    }

    /// This, with what may be said anew at each `up` as it was, or as it is by default: flags are kept once the servers are up.
    fn placed_as(&self, kept: Option<&UpConfig>) -> UpConfig {
        let other = kept
            .cloned()
            .unwrap_or_else(|| UpConfig::fresh(&Up::of(PathBuf::new())));
        UpConfig {
            nid: other.nid,
            more_nids: other.more_nids,
            routes: other.routes,
            port: other.port,
            accept: other.accept,
            stripe_count: other.stripe_count,
            stripe_size: other.stripe_size,
            ..self.clone()
        }
    }

    fn check(&self) -> Result<(), String> {
        args::check_fsname(&self.fsname)?;
        for route in &self.routes {
            coral_lnet::parse_routes(route).map_err(|e| e.to_string())?;
        }
        self.accept()?;
        if !(1..=MDTS_MAX).contains(&self.mdts) {
            return Err(format!("--mdts {}: give 1 to {MDTS_MAX}", self.mdts));
        }
        if !(1..=OSTS_MAX).contains(&self.osts) {
            return Err(format!("--osts {}: give 1 to {OSTS_MAX}", self.osts));
        }
        args::check_stripes(self.stripe_count, self.stripe_size)
    }

    fn accept(&self) -> Result<Option<Accept>, String> {
        self.accept
            .as_deref()
            .map(|a| a.parse::<Accept>().map_err(|e| format!("--accept: {e}")))
            .transpose()
    }

    /// The target directories, MGS first.
    pub(crate) fn target_dirs(&self, dir: &Path) -> Vec<PathBuf> {
        let mdts = (0..self.mdts).map(|i| dir.join(format!("mdt{i:04x}")));
        let osts = (0..self.osts).map(|i| dir.join(format!("ost{i:04x}")));
        std::iter::once(dir.join("mgs"))
            .chain(mdts)
            .chain(osts)
            .collect()
    }
}

/// Reads DIR's configuration; `Ok(None)` when there is none.
pub(crate) fn read_config(dir: &Path) -> Result<Option<UpConfig>, String> {
    let file = dir.join(CONFIG_FILE);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("cannot read '{}': {e}", file.display())),
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| {
        format!(
            "'{}' is damaged ({e}); restore it, or format anew in another directory",
            file.display()
        )
    })?;
    let version = value
        .get("version")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or(0);
    if version > CONFIG_VERSION as u64 {
        return Err(format!(
            "'{}' has format version {version}; this coral knows up to {CONFIG_VERSION}: use a newer coral",
            dir.display()
        ));
    }
    serde_json::from_value(value).map(Some).map_err(|e| {
        format!(
            "'{}' is damaged ({e}); restore it, or format anew in another directory",
            file.display()
        )
    })
}

fn write_config(dir: &Path, config: &UpConfig) -> Result<(), String> {
    let (file, tmp) = (dir.join(CONFIG_FILE), dir.join("coral.json.new"));
    let text = serde_json::to_string_pretty(config).map_err(|e| e.to_string())?;
    let write = || -> std::io::Result<()> {
        std::fs::write(&tmp, text + "\n")?;
        std::fs::File::open(&tmp)?.sync_all()?;
        std::fs::rename(&tmp, &file)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&tmp);
        format!("cannot write '{}': {e}", file.display())
    })
}

/// Entry of `coral up`.
pub(crate) fn run(up: Up) -> Result<(), String> {
    if let Some(mountpoint) = &up.mount {
        crate::client::check_mountpoint(mountpoint)?;
    }
    let dir = prepare_dir(&up.dir)?;
    if control::ask(&dir, Ask::Status).is_ok() {
        return Err(format!(
            "'{}' is already up; see `coral status {0}`",
            dir.display()
        ));
    }
    if !up.foreground {
        let text = daemon::start(&dir.join("coral.log"))?;
        println!("{text}");
        return Ok(());
    }
    let mut reporter = Reporter::from_env();
    let done = crate::runtime()?.block_on(serve(&up, &dir, &mut reporter));
    if let Err(why) = done {
        reporter.failed(&why);
        std::process::exit(1);
    }
    Ok(())
}

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
            .find(|e| e.file_name() != "coral.log");
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
}

/// Says what is to be served, or why it cannot be. Nothing is written.
fn plan(up: &Up, dir: &Path) -> Result<Plan, String> {
    let kept = read_config(dir)?;
    let config = match &kept {
        Some(c) => c.clone().with(up, dir)?,
        None => UpConfig::fresh(up),
    };
    config.check()?;
    for target in config.target_dirs(dir) {
        check_known(&config, &target)?;
    }
    Ok(Plan { kept, config })
}

/// Formats what is not formatted yet and returns the configuration.
fn format_missing(Plan { kept, mut config }: Plan, dir: &Path) -> Result<UpConfig, String> {
    let mut stored = config.placed_as(kept.as_ref());
    if kept.as_ref() != Some(&stored) {
        // written before the targets: a crash in between leaves a directory that is ours and is completed by the next `up`
        write_config(dir, &stored)?;
    }
    let mut targets = BTreeMap::new();
    for target in config.target_dirs(dir) {
        format_target(&config, &target)?;
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
    Ok(config)
}

/// Refuses a target that was formatted and is not there any more, or is another one: files would read as holes.
fn check_known(config: &UpConfig, target: &Path) -> Result<(), String> {
    let Some(uuid) = config.targets.get(&name_of(target)) else {
        return Ok(());
    };
    let what = match OsdFs::label(target) {
        Ok(label) if label.uuid == *uuid => return Ok(()),
        Ok(_) => "is another target than the one that was formatted there".to_owned(),
        Err(OpenError::NotOurs { .. }) => format!(
            "was formatted and has lost its label, '{}/CORAL'",
            target.display()
        ),
        Err(OpenError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            "was formatted and is gone".to_owned()
        }
        Err(e) => return Err(e.to_string()),
    };
    Err(format!(
        "'{}' {what}: is its disk mounted? Please restore it; an empty one is not put in its place, files would read as holes",
        target.display()
    ))
}

fn name_of(target: &Path) -> String {
    target
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Formats a target that has no label, unless it has served: then its label is lost, and its data are not ours to remove.
fn format_target(config: &UpConfig, target: &Path) -> Result<(), String> {
    let unreadable = |e: std::io::Error| format!("'{}': {e}", target.display());
    if target.join("CORAL").try_exists().map_err(unreadable)? {
        return Ok(());
    }
    if OsdFs::has_served(target).map_err(unreadable)? {
        return Err(format!(
            "'{0}' has served as a target and lost its label; restore the file '{0}/CORAL', the data are untouched",
            target.display()
        ));
    }
    let _ = std::fs::remove_dir_all(target); // half formatted: nothing was ever served from it
    OsdFs::format(target, &label_of(config, target)).map_err(|e| e.to_string())
}

fn label_of(config: &UpConfig, target: &Path) -> Label {
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
    let mem = MemNet::new();
    // before anything is formatted: an address that is taken leaves nothing behind
    let node = net::start(&net, Some(mem.clone())).await?;
    let config = format_missing(plan, dir)?;
    let defaults = Defaults {
        stripe_count: config.stripe_count,
        stripe_size: config.stripe_size,
    };
    let targets = servers::config(
        &config.target_dirs(dir),
        Some(defaults),
        up.claim.claim_version,
        &up.recovery,
    );
    let servers = Servers::start(node, targets)
        .await
        .map_err(|e| e.to_string())?;
    let agent = Agent::new(servers.node());
    let mut asked = control::serve(dir, agent.clone())
        .map_err(|e| format!("control socket in '{}': {e}", dir.display()))?;
    let client = match &up.mount {
        None => None,
        Some(mountpoint) => {
            let mounting =
                MountedClient::local((&servers, &mem), &config.fsname, mountpoint, up, reporter);
            match answering_meanwhile(mounting, &mut asked, &servers, || {
                status(&config, dir, &servers, None)
            })
            .await
            {
                Ok(client) => Some(client),
                Err((why, reply)) => {
                    servers.stop().await;
                    control::stopped(dir, reply).await;
                    return Err(why);
                }
            }
        }
    };
    client.iter().for_each(|c| agent.add(c.node()));
    let text = summary(
        &config,
        dir,
        servers.node().accept(),
        client.as_ref().map(MountedClient::mountpoint),
    ) + &waiting_note(&servers::waiting(&servers));
    keep_flags(dir, &config, reporter);
    let ready = reporter.ready(&text);
    let reply =
        crate::run_until_stopped(&ready, &mut asked, client.as_ref(), Some(&servers), || {
            status(&config, dir, &servers, client.as_ref())
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
                Ask::Down | Ask::DownForced => return Err(("stopped before it was mounted".to_owned(), Some(reply))),
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

fn summary(config: &UpConfig, dir: &Path, accept: Accept, mount: Option<&Path>) -> String {
    let port = if config.port == 988 {
        String::new()
    } else {
        format!(" --port {}", config.port)
    };
    let mut text = format!(
        "coral: file system '{}' is up: MGS, {}, {} OSTs in {}, listening on {} port {}\n",
        config.fsname,
        match config.mdts {
            1 => "1 MDT".to_owned(),
            n => format!("{n} MDTs"),
        },
        config.osts,
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
        dir.display()
    ));
    text
}

fn status(
    config: &UpConfig,
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
    crate::counters(Some(servers), client).put_into(&mut answer);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(dir: &Path) -> Up {
        Up {
            cache_mb: Some(1),
            foreground: true,
            ..Up::of(dir.into())
        }
    }

    fn formatted(up: &Up, dir: &Path) -> Result<UpConfig, String> {
        format_missing(plan(up, dir)?, dir)
    }

    #[test]
    fn a_directory_that_is_not_ours_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "precious").unwrap();
        let why = prepare_dir(dir.path()).unwrap_err();
        assert!(why.contains("thesis.tex"), "{why}");
    }

    #[test]
    fn a_newer_format_is_refused_and_a_torn_one_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(CONFIG_FILE), r#"{"version": 99}"#).unwrap();
        assert!(read_config(dir.path()).unwrap_err().contains("newer coral"));
        std::fs::write(dir.path().join(CONFIG_FILE), r#"{"versi"#).unwrap();
        assert!(read_config(dir.path()).unwrap_err().contains("damaged"));
    }

    #[test]
    fn kept_configuration_wins_where_it_must() {
        let dir = tempfile::tempdir().unwrap();
        let kept = UpConfig::fresh(&up(dir.path()));
        write_config(dir.path(), &kept).unwrap();
        assert_eq!(read_config(dir.path()).unwrap().unwrap(), kept);
        let more = Up {
            osts: Some(6),
            ..up(dir.path())
        };
        assert_eq!(kept.clone().with(&more, dir.path()).unwrap().osts, 6);
        let fewer = Up {
            osts: Some(2),
            ..up(dir.path())
        };
        assert!(
            kept.clone()
                .with(&fewer, dir.path())
                .unwrap_err()
                .contains("none taken away")
        );
        for count in [-2, 0, 2001, 65_536, 70_000] {
            let bad = UpConfig {
                stripe_count: count,
                ..kept.clone()
            };
            assert!(bad.check().unwrap_err().contains("1 to 2000"), "{count}");
        }
        let bad = UpConfig {
            stripe_size: 5,
            ..kept
        };
        assert!(bad.check().unwrap_err().contains("multiple of 64K"));
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
        let dir = tempfile::tempdir().unwrap();
        formatted(&up(dir.path()), dir.path()).unwrap();
        formatted(&up(dir.path()), dir.path()).unwrap();
        let (target, aside) = (dir.path().join("ost0001"), dir.path().join("aside"));
        std::fs::rename(&target, &aside).unwrap();
        assert!(
            formatted(&up(dir.path()), dir.path())
                .unwrap_err()
                .contains("was formatted and")
        );
        std::fs::create_dir(&target).unwrap(); // as an empty mount point
        assert!(
            formatted(&up(dir.path()), dir.path())
                .unwrap_err()
                .contains("lost its label")
        );
        OsdFs::format(
            &target,
            &target_dir::label(TargetKind::Ost, "coral", 1, &[]),
        )
        .unwrap();
        assert!(
            formatted(&up(dir.path()), dir.path())
                .unwrap_err()
                .contains("another target")
        );
        std::fs::remove_dir_all(&target).unwrap();
        std::fs::rename(&aside, &target).unwrap();
        formatted(&up(dir.path()), dir.path()).unwrap();
    }

    #[test]
    fn a_target_that_lost_its_label_is_not_formatted_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = formatted(&up(dir.path()), dir.path()).unwrap();
        let target = dir.path().join("ost0001");
        // half formatted, never served: made anew
        std::fs::remove_file(target.join("CORAL")).unwrap();
        format_target(&config, &target).unwrap();
        drop(OsdFs::open(&target).unwrap());
        std::fs::remove_file(target.join("CORAL")).unwrap();
        std::fs::write(target.join("objects/precious"), "data").unwrap();
        let why = formatted(&up(dir.path()), dir.path()).unwrap_err();
        assert!(
            why.contains("ost0001/CORAL") && why.contains("restore"),
            "{why}"
        );
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
