//! `coral mount`, `mount.coral`, and the mount inside `coral up`.

use crate::Counters;
use crate::args::{Mount, Net, Up};
use crate::control::Asked;
use crate::daemon::{self, Reporter};
use crate::lnetctl::find::Found;
use crate::mount_options::Options;
use crate::{net, quote, servers};
use coral_client::{Llite, MountError, MountOptions, Source, SourceError, Waits};
use coral_fuse::FuseOptions;
use coral_lnet::Node;
use coral_node::net::{DEFAULT_PORT, Gateways};
use coral_node::{Client, NetConfig, Servers};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A mount waits so long for servers that answer but are still recovering (their window ends after 180 s). A server that does
/// not answer at all is given up earlier, after [`coral_ptlrpc::ImportConfig::first_connect_limit`].
const RECOVERY_PATIENCE: Duration = Duration::from_secs(210);

/// A mount that takes longer says what it waits for.
const QUIET: Duration = Duration::from_secs(3);
/// Servers that are gone are told goodbye for so long.
pub(crate) const GOODBYE: Duration = Duration::from_secs(10);

/// What a mount says that waits for these targets of other processes.
fn waiting_elsewhere(targets: &[String]) -> String {
    let limit = RECOVERY_PATIENCE.as_secs();
    let who = match targets {
        [] => "servers".to_owned(),
        some => some.join(", "),
    };
    format!(
        "waiting for {who}; one that was restarted first waits for the clients it had, which `coral status` there names (up to {limit} s; Ctrl-C ends the wait)"
    )
}

/// A client that is mounted for the kernel too.
pub(crate) struct MountedClient {
    client: Client,
    mount: coral_fuse::Mount,
    mountpoint: PathBuf,
    /// Taken note of before the mount is to be seen, so that whoever sees it can end it.
    signals: tokio::sync::Mutex<crate::StopSignals>,
    /// One was given.
    signalled: AtomicBool,
}

impl MountedClient {
    /// The mount of `coral up`, on the node of its servers.
    pub(crate) async fn local(
        (servers, waits): (&Servers, &Arc<Waits>),
        fsname: &str,
        mountpoint: &Path,
        up: &Up,
        reporter: &mut Reporter,
    ) -> Result<MountedClient, String> {
        let nid = servers.node().nid();
        let mut options = MountOptions {
            selinux: selinux(),
            waits: waits.clone(),
            ..MountOptions::new(fsname, vec![nid])
        };
        options.cache_mb = up.cache_mb.unwrap_or(options.cache_mb);
        options.version = up.claim.claim_version.unwrap_or(options.version);
        let source = format!("{nid}:/{fsname}");
        let waiting = |targets: &[String]| match servers::waiting(servers) {
            none if none.is_empty() => format!("waiting for {}", targets.join(", ")),
            some => format!(
                "{}\n  (Ctrl-C ends the wait; coral up --abort-recovery gives them up)",
                some.join("\n  ")
            ),
        };
        let node = servers.node().clone();
        MountedClient::start(
            |options| Client::mount_beside(node, options),
            options,
            mountpoint,
            FuseOptions {
                source,
                ..FuseOptions::default()
            },
            reporter,
            waiting,
        )
        .await
    }

    async fn start<F: Future<Output = Result<Client, MountError>>>(
        mount: impl FnOnce(MountOptions) -> F,
        mut options: MountOptions,
        mountpoint: &Path,
        fuse: FuseOptions,
        reporter: &mut Reporter,
        waiting: impl Fn(&[String]) -> String,
    ) -> Result<MountedClient, String> {
        check_mountpoint(mountpoint)?;
        let mountpoint = &mountpoint
            .canonicalize()
            .map_err(|e| format!("mount point '{}': {e}", mountpoint.display()))?;
        options.connect_timeout = RECOVERY_PATIENCE;
        let waits = options.waits.clone();
        let mut connecting = std::pin::pin!(mount(options));
        let mut signals = crate::StopSignals::default();
        let connected = tokio::select! {
            biased;
            done = &mut connecting => done,
            () = signals.given() => given_up(&waits, connecting).await,
            () = tokio::time::sleep(QUIET) => {
                reporter.note(&waiting(&waits.list()));
                tokio::select! {
                    biased;
                    done = &mut connecting => done,
                    () = signals.given() => given_up(&waits, connecting).await,
                }
            }
        };
        let client = connected.map_err(|e| e.to_string())?;
        match waits.list().as_slice() {
            [] => {}
            some => reporter.note(&format!(
                "mounted without {}: what is on it waits until it answers",
                some.join(", ")
            )),
        }
        let signals = tokio::sync::Mutex::new(signals);
        match coral_fuse::mount(client.llite().clone(), mountpoint, &fuse) {
            Ok(mount) => {
                client.node().metrics().attach(&[], mount.stats());
                Ok(MountedClient {
                    client,
                    mount,
                    mountpoint: mountpoint.to_owned(),
                    signals,
                    signalled: AtomicBool::new(false),
                })
            }
            Err(e) => {
                client.umount().await;
                Err(format!("cannot mount on '{}': {e}", mountpoint.display()))
            }
        }
    }

    /// The node it speaks through.
    pub(crate) fn node(&self) -> &Arc<Node> {
        self.client.node()
    }

    /// The mounted file system.
    pub(crate) fn llite(&self) -> &Arc<Llite> {
        self.client.llite()
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts unless files are in use.
    pub(crate) async fn try_umount(&self) -> Result<(), String> {
        self.mount.unmount(false).await.map_err(|e| {
            format!(
                "cannot unmount '{}': {e}; close what uses it, or say --force",
                self.mountpoint.display()
            )
        })
    }

    /// Resolves when Ctrl-C or SIGTERM was given.
    pub(crate) async fn signalled(&self) {
        self.signals.lock().await.given().await;
        self.signalled.store(true, Ordering::Relaxed);
    }

    /// Resolves when a signal gives up what the end of the mount waits for. One that comes soon after an umount(8) asks for the end that
    /// is under way, as a service manager does that unmounts first and then stops the process.
    async fn insisted(&self) {
        if !self.signalled.load(Ordering::Relaxed) {
            let _ = tokio::time::timeout(GOODBYE, self.signalled()).await;
        }
        self.signalled().await;
    }

    /// Resolves when the mount is gone, by whoever's hand.
    pub(crate) async fn ended(&self) {
        self.mount.join().await;
    }

    /// Ends the mount (detaching it when in use) and the client behind it. Servers that do not answer are left after
    /// [`GOODBYE`], or when a signal insists; but for what is written and that no server has yet, only such a signal ends the
    /// wait. The error says what was lost.
    pub(crate) async fn umount(self) -> Result<(), String> {
        let written_out = async {
            if let Err(error) = self.mount.unmount(true).await {
                tracing::warn!(%error, mountpoint = %self.mountpoint.display(), "unmount");
            }
            self.client.write_out_all().await;
        };
        tokio::select! {
            biased;
            () = written_out => {}
            () = self.tell_what_waits() => {}
            () = self.insisted() => return self.give_up(),
        }
        tokio::select! {
            biased;
            () = self.client.umount() => {}
            () = tokio::time::sleep(GOODBYE) => tracing::warn!("servers do not answer: they are left without goodbye"),
            () = self.insisted() => {}
        }
        Ok(())
    }

    /// Says again and again, for ever, why the end takes so long.
    async fn tell_what_waits(&self) {
        loop {
            tokio::time::sleep(GOODBYE).await;
            let (files, mountpoint) = (self.client.unwritten().len(), self.mountpoint.display());
            let names = self.client.untold_names();
            if names > 0 {
                tracing::warn!(names, %mountpoint, "waiting for MDTs to hear of files that were made or removed; a signal (kill -INT) gives it up");
            } else {
                tracing::warn!(files, %mountpoint, "waiting for OSTs to take what was written; a signal (kill -INT) gives it up");
            }
        }
    }

    fn give_up(&self) -> Result<(), String> {
        let lost = self.client.unwritten();
        for fid in &lost {
            tracing::error!(%fid, "unmounted before an OST took what was written: it is lost");
        }
        let names = self.client.untold_names();
        if names > 0 {
            tracing::error!(
                names,
                "unmounted before an MDT heard of files that were made or removed: nothing of that has happened"
            );
        }
        match lost.len() {
            0 if names > 0 => Err(format!(
                "'{}': {names} files that were made or removed last are not, as their MDT has not heard of it",
                self.mountpoint.display()
            )),
            0 => Ok(()),
            n => Err(format!(
                "'{}': written data of {n} files, which no OST took, are lost; the log names them",
                self.mountpoint.display()
            )),
        }
    }

    pub(crate) fn add_counters(&self, sum: &mut Counters) {
        for (name, count) in self.client.statistics() {
            sum.rpcs += count;
            *sum.by_opcode.entry(name).or_default() += count;
        }
        sum.handovers += self.mount.stats().spawned.value();
    }
}

/// Ends a mount that still waits; servers that know it already are told goodbye, so that nobody waits for it later.
async fn given_up(
    waits: &Waits,
    connecting: impl Future<Output = Result<Client, MountError>>,
) -> Result<Client, MountError> {
    waits.give_up();
    let ended = tokio::time::timeout(GOODBYE, connecting).await;
    ended.unwrap_or(Err(MountError::GivenUp))
}

/// SELinux is on on this machine.
fn selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

pub(crate) fn check_mountpoint(mountpoint: &Path) -> Result<(), String> {
    if coral_fuse::is_dead(mountpoint) {
        return Err(format!(
            "mount point '{}' is a dead mount of a process that was killed; clear it: umount -l {0}",
            mountpoint.display()
        ));
    }
    match std::fs::metadata(mountpoint) {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(format!(
            "mount point '{}' is not a directory",
            mountpoint.display()
        )),
        Err(e) => Err(format!("mount point '{}': {e}", mountpoint.display())),
    }
}

fn parse_source(text: &str) -> Result<Source, String> {
    text.parse().map_err(|e: SourceError| e.to_string())
}

/// The command line of `coral mount` when this program is called as a helper of mount(8), with `SOURCE DIR [-sfnv] [-o OPTIONS]`. Such a
/// helper says nothing when all is well.
pub(crate) fn mount_helper_args(args: Vec<OsString>) -> Vec<OsString> {
    ["coral", "mount", "--quiet"]
        .map(OsString::from)
        .into_iter()
        .chain(args.into_iter().skip(1))
        .collect()
}

/// The options of the command line: `-o` and the flags that say the same, which count more.
fn options(m: &Mount) -> Result<Options, String> {
    let mut o = Options::parse(&m.options, m.sloppy)?;
    o.read_only = (o.read_only || m.read_only) && !m.rw;
    o.port = m.net.port.or(o.port);
    o.accept = m.net.accept.or(o.accept);
    o.cache_mb = m.cache_mb.or(o.cache_mb);
    o.version = m.claim.claim_version.or(o.version);
    o.nids.extend(&m.net.nid);
    o.routes.extend_from_slice(&m.net.route);
    if m.namespace.is_some() {
        return Err("mount -N is not there: run coral mount in the namespace (nsenter)".into());
    }
    Ok(o)
}

/// `-o remount,...`: the kernel's flags of a mount change; its client goes on.
fn remount(m: &Mount) -> Result<(), String> {
    let at = m.mountpoint.display();
    let mut words = m.options.clone();
    words.extend(m.read_only.then(|| "ro".to_owned()));
    words.extend(m.rw.then(|| "rw".to_owned()));
    let (set, cleared) = Options::remounted(&words)?;
    let own = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !m
        .mountpoint
        .canonicalize()
        .is_ok_and(|p| coral_fuse::is_mounted(&own, &p))
    {
        return Err(format!(
            "cannot remount '{at}': no Coral file system is mounted there"
        ));
    }
    if m.fake {
        return Ok(());
    }
    coral_fuse::remount(&m.mountpoint, &set, &cleared)
        .map_err(|e| format!("cannot remount '{at}': {e}"))
}

/// Entry of `coral mount`.
pub(crate) fn run(m: Mount) -> Result<(), String> {
    if m.options.iter().any(|o| o == "remount") {
        return remount(&m);
    }
    let options = options(&m)?;
    let source = parse_source(&m.source)?;
    check_mountpoint(&m.mountpoint)?;
    if m.verbose && !m.foreground {
        println!(
            "coral mount: {} on {}, options: {}",
            m.source,
            m.mountpoint.display(),
            m.options.join(",")
        );
    }
    if m.fake {
        return Ok(());
    }
    if !m.foreground {
        let at = m
            .mountpoint
            .canonicalize()
            .map_err(|e| format!("mount point '{}': {e}", m.mountpoint.display()))?;
        let log = m
            .log
            .clone()
            .unwrap_or_else(|| crate::lnetctl::find::mount_log(&at));
        let said = daemon::start(&log)?.text;
        if !m.quiet {
            println!(
                "{said}\nlog: {}    stop: umount {}",
                log.display(),
                quote::word(&at)
            );
        }
        return Ok(());
    }
    let mut reporter = Reporter::from_env();
    let runtime = crate::runtime()?;
    let done = runtime.block_on(serve(&m, options, source, &mut reporter));
    // What still waits for a server that is gone has nothing to save any more.
    runtime.shutdown_background();
    if let Err(why) = done {
        reporter.failed(&why);
        std::process::exit(1);
    }
    Ok(())
}

async fn serve(
    m: &Mount,
    o: Options,
    source: Source,
    reporter: &mut Reporter,
) -> Result<(), String> {
    let port = o.port.unwrap_or(DEFAULT_PORT);
    let routes = net::routes(&Net {
        route: o.routes,
        ..m.net.clone()
    })?;
    let nids = if o.nids.is_empty() {
        vec![net::local_nid(source.nids[0], port, &routes)?]
    } else {
        o.nids
    };
    let nid = nids[0];
    let node = net::start(&NetConfig {
        nids,
        port,
        routes,
        accept: o.accept,
        routing: None,
    })
    .await?;
    if !source.nids.iter().any(|n| node.leads_to(*n)) {
        return Err(net::no_way(nid, source.nids[0]));
    }
    let mut options = MountOptions {
        selinux: selinux(),
        subdir: source.subdir.clone(),
        ..MountOptions::new(&source.fsname, source.nids.clone())
    };
    options.cache_mb = o.cache_mb.unwrap_or(options.cache_mb);
    options.version = o.version.unwrap_or(options.version);
    options.flock = !o.no_flock;
    options.user_xattr = !o.no_user_xattr;
    options.atime = !o.no_atime;
    options.strict_atime = o.strict_atime;
    let fuse = FuseOptions {
        source: m.source.clone(),
        read_only: o.read_only,
        no_exec: o.no_exec,
        no_suid: o.no_suid,
        no_dev: o.no_dev,
        no_atime: o.no_atime,
        sync: o.sync,
        dir_sync: o.dir_sync,
        // its servers are elsewhere, and no call waits for the network on the thread that reads requests
        blocks: false,
        ..FuseOptions::default()
    };
    let client = {
        let gateways = Gateways::towards(&node, &source.nids);
        tokio::select! {
            biased;
            started = MountedClient::start(|options| Client::mount(node, options), options, &m.mountpoint, fuse, reporter, waiting_elsewhere) => {
                match started {
                    Ok(client) => client,
                    Err(why) => return Err(format!("{why}{}", net::hint_of(&gateways).await)),
                }
            }
            gateway = gateways.none_routes() => return Err(net::does_not_route(gateway)),
        }
    };
    // before anybody may ask
    let found = Found::new(client.node());
    let ready = reporter.ready(&format!(
        "mounted {} on {} (this node is {nid})",
        m.source,
        m.mountpoint.display()
    ));
    wait(&client, &ready, found).await;
    let ended = client.umount().await;
    ready.and(ended)
}

async fn wait(
    client: &MountedClient,
    ready: &Result<(), String>,
    (_found, mut asked): (Found, mpsc::Receiver<Asked>),
) {
    let status = || {
        let mut answer = serde_json::json!({ "pid": std::process::id(), "nid": client.node().nid().to_string(), "accept": client.node().accept().name(), "mount": client.mountpoint() });
        crate::counters(None, Some(client)).put_into(&mut answer);
        answer
    };
    tokio::select! {
        _ = crate::run_until_stopped(ready, &mut asked, Some(client), None, status) => {}
        () = client.ended() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn mount_helper_arguments_become_ours() {
        let parse = |given: &[&str]| match Cli::parse_from(mount_helper_args(
            given.iter().map(OsString::from).collect(),
        ))
        .command
        {
            Command::Mount(m) => m,
            other => panic!("{other:?}"),
        };
        let m = parse(&[
            "mount.coral",
            "1.2.3.4@tcp:/fs",
            "/mnt",
            "-sfnv",
            "-o",
            "ro,flock,cache_mb=7,quota,version=2.16.1",
            "-t",
            "coral",
            "--cache-mb",
            "9",
        ]);
        assert_eq!(
            (m.source.as_str(), m.fake, m.verbose),
            ("1.2.3.4@tcp:/fs", true, true)
        );
        assert_eq!(
            options(&m).unwrap(),
            Options {
                read_only: true,
                cache_mb: Some(9),
                version: Some(0x0210_0100),
                ..Options::default()
            }
        );
        assert!(
            options(&parse(&["mount.coral", "1.2.3.4@tcp:/fs", "/mnt", "-r"]))
                .unwrap()
                .read_only
        );
        for (word, value, says) in [
            ("-N", "/proc/1/ns/mnt", "mount -N is not there"),
            ("-o", "quota", "'quota' is not supported"),
        ] {
            let why = options(&parse(&[
                "mount.coral",
                "1.2.3.4@tcp:/fs",
                "/mnt",
                word,
                value,
            ]))
            .unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        for bad in ["0", "1048577", "x"] {
            let why = Cli::try_parse_from([
                "coral",
                "mount",
                "1.2.3.4@tcp:/fs",
                "/mnt",
                "--cache-mb",
                bad,
            ])
            .unwrap_err()
            .to_string();
            assert!(
                why.contains("--cache-mb") && (bad == "x" || why.contains("1..=1048576")),
                "{why}"
            );
        }
    }
}
