//! The servers of one node: what `coral up` and `coral serve` run.

use crate::args;
use crate::control::NodemapAsk;
use crate::net::{self, NetConfig};
use coral_client::mgc::{Config, Mgc};
use coral_ldlm::LdlmClient;
use coral_lnet::{MemNet, Node};
use coral_osd::{Disk, Fresh, Label, OsdFs, OsdFsOptions, TargetKind};
use coral_server::mdt::identity::System;
use coral_server::mdt::{Mdt, MdtConfig, OstTarget, StripeDefaults};
use coral_server::nodemap::store::decode_membership;
use coral_server::register::{self, Formatting};
use coral_server::{RecoveryStatus, ServerNode, Target, Windows, mgs, ost};
use coral_wire::Errno;
use coral_wire::connect::CLAIMED;
use coral_wire::nid::Nid;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long an MDT waits for its MGS at its start.
const MGS_LIMIT: Duration = Duration::from_secs(10);

/// The answer about nodemaps of a process without servers.
pub(crate) fn no_nodemaps() -> serde_json::Value {
    serde_json::json!({ "error": "no servers run in this process", "errno": libc::ENODEV })
}

/// What to serve, and where.
pub(crate) struct ServersConfig {
    pub net: NetConfig,
    /// Target directories; an MGS among them comes first.
    pub dirs: Vec<PathBuf>,
    /// Stripe count (-1: all) and size in bytes of new files.
    pub default_stripes: Option<(i32, u64)>,
    /// The Lustre release to claim.
    pub claim: Option<u32>,
    /// How they wait for the clients of before.
    pub recovery: args::Recovery,
}

/// The running servers of one node.
pub(crate) struct Servers {
    node: Arc<Node>,
    mem: Arc<MemNet>,
    /// Callback service of what this node is a client of.
    ldlm: Arc<LdlmClient>,
    server: Arc<ServerNode>,
    targets: Vec<(PathBuf, Label, Arc<Target>)>,
    /// The disks below the targets, by device: targets on one share its space.
    disks: BTreeMap<u64, Arc<Disk>>,
    /// What the targets are on, to tell of trouble there; gone once a target has stopped.
    osds: Vec<std::sync::Weak<OsdFs>>,
    /// The MDTs with the connection that tells them their OSTs.
    mdts: Vec<(Arc<Mdt>, Arc<Mgc>)>,
    /// The MGS, if it is here.
    mgs: Option<Arc<mgs::Mgs>>,
    /// The connection that tells of the nodemaps of an MGS elsewhere.
    nodemaps: Option<Arc<Mgc>>,
}

impl Servers {
    /// Starts every target: each is registered with the MGS, which may be among them.
    pub(crate) async fn start(config: ServersConfig) -> Result<Servers, String> {
        let mem = MemNet::new();
        let node = net::start(&config.net, Some(mem.clone()), None).await?;
        let mut servers = Servers {
            ldlm: LdlmClient::new(&node),
            server: ServerNode::start(node.clone()),
            node,
            mem,
            targets: Vec::new(),
            disks: BTreeMap::new(),
            osds: Vec::new(),
            mdts: Vec::new(),
            mgs: None,
            nodemaps: None,
        };
        if let Err(why) = servers.add_all(&config).await {
            servers.stop().await;
            return Err(why);
        }
        if config.recovery.abort_recovery {
            servers.abort_recovery("*");
        }
        Ok(servers)
    }

    async fn add_all(&mut self, config: &ServersConfig) -> Result<(), String> {
        let mut mdts = Vec::new();
        for dir in &config.dirs {
            mdts.extend(self.add(dir, config).await?);
        }
        // when the OSTs of this node are there: an MDT gives no objects to an OST that refused it
        for (mdt, label) in mdts {
            self.follow_config(
                mdt,
                &self.mgs_nids(&label)?,
                &label.fsname,
                config.claim.unwrap_or(CLAIMED),
            )
            .await?;
        }
        Ok(())
    }

    /// Starts the target in `dir`; returns it if it is an MDT.
    async fn add(
        &mut self,
        dir: &Path,
        config: &ServersConfig,
    ) -> Result<Option<(Arc<Mdt>, Label)>, String> {
        let disk = match std::fs::metadata(dir) {
            Ok(m) => self.disks.entry(m.dev()).or_default().clone(),
            Err(_) => Arc::default(),
        };
        let (osd, label) = OsdFs::open_with(
            dir,
            OsdFsOptions {
                disk,
                ..Default::default()
            },
        )
        .map_err(|e| e.to_string())?;
        if label.kind == TargetKind::Ost {
            osd.share_disk(osts_on_disk_of(dir, &config.dirs));
        }
        let osd = Arc::new(osd);
        let weak = Arc::downgrade(&osd);
        let fresh = OsdFs::fresh(dir).map_err(|e| e.to_string())?;
        let failed = |e: coral_osd::OsdError| format!("'{}': {e}", dir.display());
        let mgs = self.mgs_nids(&label)?;
        if label.kind != TargetKind::Mgs {
            // before a client comes: its ids are believed as far as the nodemaps say, and no further
            self.follow_nodemaps(&mgs, config.claim.unwrap_or(CLAIMED))
                .await?;
        }
        let mut mdt = None;
        let target = match label.kind {
            TargetKind::Mgs => {
                let (mgs, target) = mgs::Mgs::start(self.node.clone(), osd).map_err(failed)?;
                self.mgs = Some(mgs);
                target
            }
            TargetKind::Ost => ost::Ost::start(self.node.clone(), &label.fsname, label.index, osd)
                .map_err(failed)?,
            TargetKind::Mdt => {
                let defaults = config.default_stripes.map(|(count, size)| StripeDefaults {
                    stripe_count: count as u16,
                    stripe_size: size as u32,
                });
                let owner = fresh.unwrap_or_else(Fresh::own);
                let config = MdtConfig {
                    defaults,
                    root_owner: (owner.uid, owner.gid),
                    names: Some(Arc::new(System)),
                    ..MdtConfig::new(&label.fsname, label.index)
                };
                let started = Arc::new(
                    Mdt::start(self.node.clone(), config, osd)
                        .map_err(|e| format!("'{}': {e}", dir.display()))?,
                );
                mdt.insert(started).target.clone()
            }
        };
        if let Some(release) = config.claim {
            target.claim(release);
        }
        let w = target.windows();
        let given = |s: Option<u32>, was| s.map_or(was, |s| Duration::from_secs(s.into()));
        target.set_windows(Windows {
            soft: given(config.recovery.recovery_time_soft, w.soft),
            hard: given(config.recovery.recovery_time_hard, w.hard),
        });
        self.server.add_target(target.clone());
        if label.kind != TargetKind::Mgs {
            let failover = crate::format::read_failover(dir)?;
            let formatting = Formatting {
                fresh: fresh.is_some(),
                identity: &label.uuid,
                failover: &failover,
            };
            register::register(
                &self.node,
                &mgs,
                &label.fsname,
                &target,
                self.node.nids(),
                formatting,
            )
            .await
            .map_err(|e| e.to_string())?;
            if fresh.is_some() {
                OsdFs::set_registered(dir).map_err(|e| e.to_string())?;
            }
        }
        self.targets.push((dir.to_owned(), label.clone(), target));
        self.osds.push(weak);
        Ok(mdt.map(|mdt| (mdt, label)))
    }

    /// Keeps an MDT's list of OSTs as the MGS has it.
    async fn follow_config(
        &mut self,
        mdt: Arc<Mdt>,
        mgs: &[Nid],
        fsname: &str,
        version: u32,
    ) -> Result<(), String> {
        let mgc = Mgc::connect(
            self.node.clone(),
            self.ldlm.clone(),
            mgs,
            version,
            MGS_LIMIT,
        )
        .await
        .map_err(|e| e.to_string())?;
        let mut config = mgc.watch_config(fsname).await.map_err(|e| e.to_string())?;
        let told = mdt.clone();
        tokio::spawn(async move {
            loop {
                told.set_osts(osts(&config.borrow_and_update()));
                if config.changed().await.is_err() {
                    return;
                }
            }
        });
        self.mdts.push((mdt, mgc));
        Ok(())
    }

    /// Keeps the nodemaps of this node's targets as the MGS has them.
    async fn follow_nodemaps(&mut self, mgs: &[Nid], version: u32) -> Result<(), String> {
        if self.nodemaps.is_some() {
            return Ok(());
        }
        let server = self.server.clone();
        if let Some(here) = &self.mgs {
            let (mgs, mut changes) = (here.clone(), here.membership_changes());
            server.set_nodemaps(mgs.membership());
            // once for all targets: a change finds its way to each of them
            if self
                .targets
                .iter()
                .all(|(_, l, _)| l.kind == TargetKind::Mgs)
            {
                let (mgs, server) = (Arc::downgrade(&mgs), Arc::downgrade(&server));
                tokio::spawn(async move {
                    while changes.changed().await.is_ok() {
                        let (Some(mgs), Some(server)) = (mgs.upgrade(), server.upgrade()) else {
                            return;
                        };
                        server.set_nodemaps(mgs.membership());
                    }
                });
            }
            return Ok(());
        }
        // locks of its own: what it watches is told apart from what others watch
        let mgc = Mgc::connect(
            self.node.clone(),
            self.ldlm.clone(),
            mgs,
            version,
            MGS_LIMIT,
        )
        .await
        .map_err(|e| e.to_string())?;
        let Some(mut text) = mgc.watch_nodemaps().await.map_err(|e| e.to_string())? else {
            tracing::warn!(
                "the MGS is not Coral's: nodemaps that it has do not count for the targets of this node"
            );
            mgc.disconnect().await;
            return Ok(());
        };
        server
            .set_nodemaps(decode_membership(&text.borrow_and_update()).map_err(|e| e.to_string())?);
        let server = Arc::downgrade(&server);
        tokio::spawn(async move {
            while text.changed().await.is_ok() {
                let Some(server) = server.upgrade() else {
                    return;
                };
                match decode_membership(&text.borrow_and_update()) {
                    Ok(now) => server.set_nodemaps(now),
                    Err(error) => {
                        tracing::error!(%error, "nodemaps of the MGS; those known count on")
                    }
                }
            }
        });
        self.nodemaps = Some(mgc);
        Ok(())
    }

    /// Parameters of the MDTs, the nodemaps, and how long recovery waits.
    pub(crate) fn params(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.mdts.iter().flat_map(|(mdt, _)| mdt.params()).collect();
        all.extend(self.server.nodemap_params());
        all.extend(self.recovery_params());
        all
    }

    /// Sets a parameter; an error says why not.
    pub(crate) fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        if name.starts_with("nodemap.") {
            return Err("set it with lctl nodemap_modify, nodemap_activate or nodemap_set_fileset on the MGS".into());
        }
        let of_mdt = self
            .mdts
            .iter()
            .find_map(|(mdt, _)| mdt.set_param(name, value));
        of_mdt.unwrap_or_else(|| self.set_window(name, value))
    }

    /// Answers `lctl nodemap_*`.
    pub(crate) fn nodemap(&self, ask: &NodemapAsk) -> serde_json::Value {
        let refused = |e: Errno| serde_json::json!({ "error": e.to_string(), "errno": e.0 });
        let maps = || self.server.nodemaps().maps.clone();
        match ask {
            NodemapAsk::Change(command) => match &self.mgs {
                None => {
                    serde_json::json!({ "error": "the MGS does not run in this process; nodemaps are changed where it runs", "errno": libc::ENODEV })
                }
                Some(mgs) => match mgs.nodemap_command(command) {
                    Ok(()) => {
                        self.server.set_nodemaps(mgs.membership());
                        serde_json::json!({})
                    }
                    Err(e) => refused(e),
                },
            },
            NodemapAsk::TestNid(nid) => match nid.parse() {
                Ok(nid) => serde_json::json!({ "text": maps().of(nid).name }),
                Err(_) => refused(Errno::EINVAL),
            },
            NodemapAsk::TestId { nid, kind, id } => match nid.parse() {
                Ok(nid) if maps().active => {
                    serde_json::json!({ "text": maps().of(nid).to_fs(*kind, *id).0.to_string() })
                }
                Ok(_) => serde_json::json!({ "text": id.to_string() }),
                Err(_) => refused(Errno::EINVAL),
            },
        }
    }

    /// The MGS of a target: what its label says, else this node.
    fn mgs_nids(&self, label: &Label) -> Result<Vec<Nid>, String> {
        if label.mgs_nids.is_empty() {
            return Ok(vec![self.node.nid()]);
        }
        label
            .mgs_nids
            .iter()
            .map(|n| {
                n.parse()
                    .map_err(|_| format!("{}: '{n}' in its label is no NID", label.target_name()))
            })
            .collect()
    }

    pub(crate) fn nid(&self) -> Nid {
        self.node.nid()
    }

    /// All NIDs, the primary first.
    pub(crate) fn nids(&self) -> Vec<String> {
        self.node.nids().iter().map(Nid::to_string).collect()
    }

    /// The node all of them are on.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn mem(&self) -> &Arc<MemNet> {
        &self.mem
    }

    /// Name of the file system of the first target that has one.
    pub(crate) fn fsname(&self) -> &str {
        self.targets
            .iter()
            .map(|(_, l, _)| l.fsname.as_str())
            .find(|n| !n.is_empty())
            .unwrap_or("")
    }

    pub(crate) fn handovers(&self) -> u64 {
        self.node.handovers().spawned()
    }

    /// Each target with its state, as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        let one =
            |((dir, _, t), osd): (&(PathBuf, Label, Arc<Target>), &std::sync::Weak<OsdFs>)| {
                let s = t.stats();
                serde_json::json!({
                    "name": t.name(),
                    "dir": dir,
                    "state": if t.in_recovery() { "RECOVERING" } else { "UP" },
                    "waits": t.recovery_status().map(|r| waits(&r)),
                    "trouble": osd.upgrade().and_then(|osd| osd.trouble()),
                    "exports": s.exports,
                    "mounts": self.mounts(t),
                    "transactions": s.transactions,
                    "last_transno": t.last_transno(),
                    "last_committed": t.last_committed(),
                    "evictions": s.evictions,
                    "resent_replies": s.resent_replies,
                    "replayed_requests": s.replayed_requests,
                })
            };
        self.targets.iter().zip(&self.osds).map(one).collect()
    }

    /// NIDs of clients elsewhere, servers aside: whoever has the file system mounted.
    fn mounts(&self, t: &Target) -> Vec<String> {
        let own = self.node.nids();
        // a server is a client of OSTs only
        let mounted = t.config().kind == coral_server::TargetKind::Mdt;
        let far = |nid: &Nid| mounted && nid.0 != 0 && !nid.is_lo() && !own.contains(nid);
        let mut nids: Vec<String> = t
            .exports()
            .iter()
            .map(|e| e.nid())
            .filter(far)
            .map(|n| n.to_string())
            .collect();
        nids.sort();
        nids
    }

    /// Whom targets wait for, a line each; empty when none does.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.targets
            .iter()
            .filter_map(|(_, _, t)| {
                Some(format!(
                    "{} waits {}",
                    t.name(),
                    waits(&t.recovery_status()?)
                ))
            })
            .collect()
    }

    /// Ends the recovery of the targets whose names match, and names each with the clients it gave up.
    pub(crate) fn abort_recovery(&self, pattern: &str) -> Vec<String> {
        let matching = self
            .targets
            .iter()
            .map(|(_, _, t)| t)
            .filter(|t| crate::params::matches(pattern, t.name()));
        matching
            .filter(|t| t.in_recovery())
            .map(|t| format!("{}: {} given up", t.name(), clients(t.abort_recovery())))
            .collect()
    }

    /// How long the targets wait for clients after a restart, and whom for.
    fn recovery_params(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for (dir, t) in self
            .targets
            .iter()
            .filter_map(|(_, _, t)| Some((params_of(t)?, t)))
        {
            let w = t.windows();
            out.push((format!("{dir}.recovery_status"), recovery_status(t)));
            out.push((format!("{dir}.{HARD}"), w.hard.as_secs().to_string()));
            out.push((format!("{dir}.{SOFT}"), w.soft.as_secs().to_string()));
        }
        out
    }

    /// Sets one of them; an error says why not.
    fn set_window(&self, name: &str, value: &str) -> Result<(), String> {
        let (dir, what) = name.rsplit_once('.').unwrap_or(("", name));
        let Some((_, _, t)) = self
            .targets
            .iter()
            .find(|(_, _, t)| params_of(t).as_deref() == Some(dir))
        else {
            return Err("no such target".into());
        };
        let secs = value
            .trim()
            .parse::<u32>()
            .ok()
            .filter(|s| (1..=86400).contains(s));
        let secs = || {
            secs.map(|s| Duration::from_secs(s.into()))
                .ok_or_else(|| format!("'{value}' is no time: give 1 to 86400 seconds"))
        };
        let w = t.windows();
        match what {
            SOFT => t.set_windows(Windows { soft: secs()?, ..w }),
            HARD => t.set_windows(Windows { hard: secs()?, ..w }),
            _ => return Err("Permission denied".into()),
        }
        Ok(())
    }

    pub(crate) async fn stop(&self) {
        for (mdt, mgc) in &self.mdts {
            mdt.stop().await;
            mgc.disconnect().await;
        }
        if let Some(mgc) = &self.nodemaps {
            mgc.disconnect().await;
        }
        self.server.stop().await;
        self.node.shutdown().await;
    }
}

/// Parameters of how long a recovery waits.
const SOFT: &str = "recovery_time_soft";
const HARD: &str = "recovery_time_hard";

/// Where the parameters of a target are, as Lustre has them; an MGS has none.
fn params_of(t: &Target) -> Option<String> {
    match t.config().kind {
        coral_server::TargetKind::Mgs => None,
        coral_server::TargetKind::Mdt => Some(format!("mdt.{}", t.name())),
        coral_server::TargetKind::Ost => Some(format!("obdfilter.{}", t.name())),
    }
}

/// As Lustre prints it, as far as it is known, and whom it waits for.
fn recovery_status(t: &Target) -> String {
    let Some(r) = t.recovery_status() else {
        return "status: COMPLETE\n".into();
    };
    let mut text = format!(
        "status: RECOVERING\ntime_remaining: {}\nconnected_clients: {}/{}\n",
        r.left.as_secs(),
        r.clients - missing(&r),
        r.clients
    );
    for w in &r.waited_for {
        let doing = if w.back { "replaying" } else { "not back" };
        text.push_str(&format!(
            "waiting_for: {} {} {doing}\n",
            w.uuid,
            place(w.nid)
        ));
    }
    text
}

fn missing(r: &RecoveryStatus) -> usize {
    r.waited_for.iter().filter(|w| !w.back).count()
}

fn place(nid: Nid) -> String {
    if nid.0 == 0 {
        "(where is not known)".into()
    } else {
        format!("at {nid}")
    }
}

fn clients(n: usize) -> String {
    if n == 1 {
        "1 client".into()
    } else {
        format!("{n} clients")
    }
}

/// Whom a recovery waits for, and how long.
fn waits(r: &RecoveryStatus) -> String {
    const NAMED: usize = 4;
    let mut who: Vec<String> = r
        .waited_for
        .iter()
        .take(NAMED)
        .map(|w| {
            format!(
                "{} {}{}",
                w.uuid,
                place(w.nid),
                if w.back { ", which is back" } else { "" }
            )
        })
        .collect();
    if r.waited_for.len() > NAMED {
        who.push(format!("{} more", r.waited_for.len() - NAMED));
    }
    format!(
        "for {} of before, {} s at most: {}",
        clients(r.waited_for.len()),
        r.left.as_secs() + 1,
        who.join("; ")
    )
}

/// How many of `dirs` are OSTs on the same disk as `dir`.
fn osts_on_disk_of(dir: &Path, dirs: &[PathBuf]) -> u64 {
    let disk = |d: &Path| std::fs::metadata(d).map(|m| m.dev()).ok();
    let shares = |d: &&PathBuf| {
        disk(d) == disk(dir) && OsdFs::label(d).is_ok_and(|l| l.kind == TargetKind::Ost)
    };
    dirs.iter().filter(shares).count() as u64
}

fn osts(config: &Config) -> Vec<OstTarget> {
    let one = |(index, t): (&u32, &coral_client::mgc::TargetConf)| OstTarget {
        index: *index,
        uuid: t.uuid.clone(),
        nids: t.nids.clone(),
        active: !t.inactive,
    };
    config.osts.iter().map(one).collect()
}
