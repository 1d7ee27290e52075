//! The running servers of one node: what `coral up` and `coral serve` run, and what a [`crate::Cluster`] is made of.
//!
//! A target is opened; its MGS, which may run here, is asked whether it may be served; then it is started, made reachable, and
//! registered. An MDT follows the
//! configuration for its OSTs and the other MDTs, the node follows the nodemaps of the MGS. Lustre does the same in
//! `lustre/obdclass/obd_mount_server.c` (`server_start_targets`) and `lustre/mgc/mgc_request.c`.
//!
//! - `nodemaps`: following and changing them; `params`: what `lctl get_param` shows of servers; `status`: how targets stand.
//!
//! # Invariants
//! - A target that is not the MGS is reachable only when the nodemaps are known: ids are believed as far as they say.
//! - [`Servers::kill`] leaves what a killed process leaves: nothing is synced, nobody is told.

mod counting;
mod nodemaps;
mod params;
mod status;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_client::mgc::{Config, Mgc, MgcError, TargetConf};
use coral_ldlm::LdlmClient;
use coral_lnet::Node;
use coral_osd::{Label, OpenError, OsdError, OsdFs, TargetKind};
use coral_server::mdt::core::MdtOpenError;
use coral_server::mdt::identity::NameService;
use coral_server::mdt::{Mdt, MdtConfig, OstTarget, StripeDefaults};
use coral_server::mgs::Mgs;
use coral_server::older_copy;
use coral_server::ost::Ost;
use coral_server::register::{Formatting, RegisterError, Registering};
use coral_server::{LuTarget, ServerNode, TargetConfig, Windows};
use coral_wire::connect::CLAIMED;
use coral_wire::nid::Nid;
use tokio::task::JoinHandle;

use self::counting::Counting;
use crate::backend::{Backend, Disks, Opened, TargetSpec};
use crate::target_dir;

pub use nodemaps::NodemapError;
pub use params::ParamError;
pub use status::TargetStatus;

/// How long an MDT waits for its MGS at its start.
const MGS_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait at a start for what OSTs tell.
const OSTS_LIMIT: Duration = Duration::from_millis(500);
/// How long an MGS elsewhere is told goodbye.
const GOODBYE: Duration = Duration::from_secs(10);

/// What servers are told at their start.
#[derive(Clone, Default)]
pub struct ServersConfig {
    /// Targets; an MGS among them comes first.
    pub targets: Vec<TargetSpec>,
    /// Layout of new files nobody said anything about; None: as it was kept, or Lustre's default.
    pub default_stripes: Option<StripeDefaults>,
    /// The Lustre release to claim ([`coral_wire::connect::release`]).
    pub claim: Option<u32>,
    /// Clients of before that have not come back are given up after so long; Lustre: 60 s.
    pub recovery_soft: Option<Duration>,
    /// Clients of before that are not done are given up after so long; Lustre: 180 s.
    pub recovery_hard: Option<Duration>,
    /// Serve targets that their MGS takes for older copies, or does not know.
    pub accept_older: bool,
    /// How often the MGS is told that a target goes on, where something was changed; a copy that was made before is refused as older
    /// from then on. None: only starts are told.
    pub counts_every: Option<Duration>,
    /// Wait for none of the clients of before.
    pub abort_recovery: bool,
    /// Who knows the groups of users; None: nobody is asked.
    pub names: Option<Arc<dyn NameService>>,
    /// How often MDTs and OSTs make what is committed safe against power loss; None: every 5 s.
    pub sync_interval: Option<Duration>,
}

/// Why servers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file beside a label cannot be read.
    #[error(transparent)]
    File(#[from] target_dir::FileError),
    /// What is on a device cannot be served.
    #[error("'{place}': {source}")]
    Device {
        /// Directory, or name of the target.
        place: String,
        /// What is wrong.
        source: OsdError,
    },
    /// What is on the device of an MDT cannot be served.
    #[error("'{place}': {source}")]
    Mdt {
        /// Directory, or name of the target.
        place: String,
        /// What is wrong.
        source: MdtOpenError,
    },
    /// A label says that the MGS is at something that is no NID.
    #[error("{target}: '{text}' in its label is no NID")]
    BadMgsNid {
        /// Name of the target.
        target: String,
        /// What the label says.
        text: String,
    },
    /// The MGS has not told what is needed.
    #[error(transparent)]
    Mgs(#[from] MgcError),
    /// The MGS of a target cannot be reached.
    #[error(
        "{target}: {source}. Its label names this MGS: start it first, or serve the directory where it is reached"
    )]
    NoMgs {
        /// Name of the target.
        target: String,
        /// What was tried.
        source: Box<MgcError>,
    },
    /// The MGS does not take a target.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The MGS has nodemaps that cannot be read.
    #[error(transparent)]
    Nodemaps(OsdError),
}

/// A target that is served.
struct Served {
    label: Label,
    target: Arc<LuTarget>,
    /// Its directory and what is on it, to tell of trouble there; the latter is gone once the target has stopped.
    dir: Option<(PathBuf, Weak<OsdFs>)>,
}

/// The running servers of one node.
pub struct Servers {
    node: Arc<Node>,
    config: ServersConfig,
    /// Callback service of what this node is a client of.
    ldlm: Arc<LdlmClient>,
    server: Arc<ServerNode>,
    disks: Disks,
    targets: Vec<Served>,
    /// Targets that are not served: their directories, and what is damaged.
    left_out: Vec<(PathBuf, OpenError)>,
    mdts: Vec<Arc<Mdt>>,
    /// The MGS, if it is here.
    mgs: Option<Arc<Mgs>>,
    /// Changes of its nodemaps are handed on.
    follows_own_mgs: bool,
    /// The connections that tell MDTs their OSTs.
    configs: Vec<Arc<Mgc>>,
    /// The connection that tells of the nodemaps of an MGS elsewhere.
    nodemaps: Option<Arc<Mgc>>,
    /// What hands on changes of both, and counts targets.
    followers: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts every target on `node`, which ends with the servers, and at once when one does not start.
    pub async fn start(
        node: Arc<Node>,
        mut config: ServersConfig,
    ) -> Result<Servers, ServersError> {
        let targets = std::mem::take(&mut config.targets);
        let abort_recovery = config.abort_recovery;
        let mut servers = Servers::new(node, config);
        if let Err(why) = servers.add_all(targets).await {
            servers.stop().await;
            return Err(why);
        }
        if abort_recovery {
            servers.abort_recovery(|_| true);
        }
        Ok(servers)
    }

    /// Services without targets on `node`, which ends with them.
    pub fn new(node: Arc<Node>, config: ServersConfig) -> Servers {
        Servers {
            ldlm: LdlmClient::new(&node),
            server: ServerNode::start(node.clone()),
            node,
            config,
            disks: Disks::default(),
            targets: Vec::new(),
            left_out: Vec::new(),
            mdts: Vec::new(),
            mgs: None,
            follows_own_mgs: false,
            configs: Vec::new(),
            nodemaps: None,
            followers: Vec::new(),
        }
    }

    async fn add_all(&mut self, targets: Vec<TargetSpec>) -> Result<(), ServersError> {
        targets.iter().for_each(|t| self.disks.expect(t));
        let mut mdts = Vec::new();
        for target in targets {
            mdts.extend(self.start_registered(target).await?);
        }
        // when the OSTs of this node are there: an MDT gives no objects to an OST that refused it
        for (mdt, label) in &mdts {
            self.follow_config(mdt.clone(), label).await?;
        }
        // an MDT that is older than its OSTs, and does not know it, learns it before it gives objects
        let numbered = async {
            for (mdt, _) in &mdts {
                mdt.osts_numbered().await;
            }
        };
        let _ = tokio::time::timeout(OSTS_LIMIT, numbered).await;
        Ok(())
    }

    /// Starts one more target and registers it with its MGS.
    pub async fn add(&mut self, target: TargetSpec) -> Result<(), ServersError> {
        self.add_all(vec![target]).await
    }

    /// Starts one more target of which no MGS is told: an MDT knows the OSTs it is told of ([`TargetSpec::osts`],
    /// [`Mdt::set_osts`]), and nodemaps are those of [`ServerNode::set_nodemaps`].
    pub fn add_unregistered(&mut self, target: TargetSpec) -> Result<Arc<LuTarget>, ServersError> {
        self.disks.expect(&target);
        let opened = self.disks.open(&target.backend)?;
        Ok(self.start_target(opened, target.osts)?.0)
    }

    /// Starts a target and registers it; returns it if it is an MDT.
    async fn start_registered(
        &mut self,
        spec: TargetSpec,
    ) -> Result<Option<(Arc<Mdt>, Label)>, ServersError> {
        let opened = match (self.disks.open(&spec.backend), &spec.backend) {
            (Err(why), Backend::Dir(dir)) if spec.dispensable && why.is_damage() => {
                self.left_out.push((dir.clone(), why));
                return Ok(None);
            }
            (opened, _) => opened?,
        };
        let (label, fresh, dir) = (opened.label.clone(), opened.fresh, opened.dir.clone());
        if label.kind == TargetKind::Mgs {
            self.start_target(opened, spec.osts)?;
            return Ok(None);
        }
        if opened.may_lack && label.kind == TargetKind::Mdt {
            tracing::warn!(target = %label.target_name(), "nothing says how far its journal reached: transactions may be lost, and objects of files that it does not know are kept; run `coral check`");
            let kept = older_copy::keep_objects(&*opened.tables).await;
            kept.map_err(|source| ServersError::Device {
                place: label.target_name(),
                source,
            })?;
        }
        let mgs = self.mgs_nids(&label)?;
        // before a client comes: its ids are believed as far as the nodemaps say, and no further
        self.follow_nodemaps(&label).await?;
        let mut failover = match &dir {
            Some((dir, _)) => target_dir::read_failover(dir)?,
            None => Vec::new(),
        };
        failover.extend(spec.failover);
        let formatting = Formatting {
            fresh: fresh.is_some(),
            failover: &failover,
        };
        let (kv, claimed) = (opened.tables.clone(), self.config.claim.unwrap_or(CLAIMED));
        let begun = Registering::begin(&self.node, &mgs, &label, &kv, claimed, formatting);
        let mut registering = begun.await?;
        registering.may_serve(self.config.accept_older).await?;
        let (target, mdt) = self.start_target(opened, spec.osts)?;
        registering.register(target.instance()).await?;
        if let Some(every) = self.config.counts_every {
            let counting = Counting {
                node: Arc::downgrade(&self.node),
                mgs,
                kv: Arc::downgrade(&kv),
                target: Arc::downgrade(&target),
                claimed,
                label: label.clone(),
            };
            self.followers.push(tokio::spawn(counting.run(every)));
        }
        if let (Some(_), Some((dir, _))) = (fresh, &dir) {
            OsdFs::set_registered(dir)?;
        }
        Ok(mdt.map(|mdt| (mdt, label)))
    }

    /// Starts what is on an open device and makes it reachable; returns it, and what makes it an MDT if it is one.
    fn start_target(
        &mut self,
        opened: Opened,
        osts: Vec<OstTarget>,
    ) -> Result<(Arc<LuTarget>, Option<Arc<Mdt>>), ServersError> {
        let (label, node) = (opened.label, self.node.clone());
        let place = || match &opened.dir {
            Some((dir, _)) => dir.display().to_string(),
            None => label.target_name(),
        };
        let failed = |source| ServersError::Device {
            place: place(),
            source,
        };
        let mut mdt = None;
        let target = match label.kind {
            TargetKind::Mgs => {
                let (mgs, target) = Mgs::start(node, opened.tables).map_err(failed)?;
                self.mgs = Some(mgs);
                target
            }
            TargetKind::Ost => {
                let kind = coral_server::TargetKind::Ost;
                let mut config = TargetConfig::new(kind, &label.target_name(), label.index);
                config.sync_interval = self.config.sync_interval.unwrap_or(config.sync_interval);
                Ost::start_on(node, config, opened.tables, opened.objects).map_err(failed)?
            }
            TargetKind::Mdt => {
                let mut config = MdtConfig::new(&label.fsname, label.index);
                config.defaults = self.config.default_stripes;
                config.root_owner = opened.root_owner;
                config.names = self.config.names.clone();
                config.awaits_osts = osts.is_empty();
                let interval = &mut config.target.sync_interval;
                *interval = self.config.sync_interval.unwrap_or(*interval);
                let started = Mdt::start_on(node, config, opened.tables, opened.objects);
                let started = started.map_err(|source| ServersError::Mdt {
                    place: place(),
                    source,
                })?;
                if !osts.is_empty() {
                    started.set_osts(osts);
                }
                let started = mdt.insert(Arc::new(started));
                self.mdts.push(started.clone());
                started.target.clone()
            }
        };
        if let Some(release) = self.config.claim {
            target.claim(release);
        }
        let w = target.windows();
        target.set_windows(Windows {
            soft: self.config.recovery_soft.unwrap_or(w.soft),
            hard: self.config.recovery_hard.unwrap_or(w.hard),
        });
        self.server.add_target(target.clone());
        self.targets.push(Served {
            label,
            target: target.clone(),
            dir: opened.dir,
        });
        Ok((target, mdt))
    }

    /// Keeps an MDT's list of OSTs as the MGS has it.
    async fn follow_config(&mut self, mdt: Arc<Mdt>, label: &Label) -> Result<(), ServersError> {
        let mgc = self.connect_mgs(label).await?;
        let mut config = mgc.watch_config(&label.fsname).await?;
        set_targets(&mdt, &config.borrow_and_update());
        let mdt = Arc::downgrade(&mdt);
        self.followers.push(tokio::spawn(async move {
            while config.changed().await.is_ok() {
                let Some(mdt) = mdt.upgrade() else {
                    return;
                };
                set_targets(&mdt, &config.borrow_and_update());
            }
        }));
        self.configs.push(mgc);
        Ok(())
    }

    /// A connection to the MGS with locks of its own: what it watches is told apart from what others watch.
    async fn connect_mgs(&self, label: &Label) -> Result<Arc<Mgc>, ServersError> {
        let release = self.config.claim.unwrap_or(CLAIMED);
        let (node, ldlm, nids) = (self.node.clone(), self.ldlm.clone(), self.mgs_nids(label)?);
        let connected = Mgc::connect(node, ldlm, &nids, release, MGS_LIMIT).await;
        connected.map_err(|source| ServersError::NoMgs {
            target: label.target_name(),
            source: Box::new(source),
        })
    }

    /// The MGS of a target: what its label says, else this node.
    fn mgs_nids(&self, label: &Label) -> Result<Vec<Nid>, ServersError> {
        if label.mgs_nids.is_empty() {
            return Ok(vec![self.node.nid()]);
        }
        let nid = |text: &String| {
            text.parse().map_err(|_| ServersError::BadMgsNid {
                target: label.target_name(),
                text: text.clone(),
            })
        };
        label.mgs_nids.iter().map(nid).collect()
    }

    /// The node all of them are on.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Their services.
    pub fn server(&self) -> &Arc<ServerNode> {
        &self.server
    }

    /// The targets in the order in which they were started.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<LuTarget>> {
        self.targets.iter().map(|t| &t.target)
    }

    /// The targets that are not served because what they lie on is damaged, each with its directory.
    pub fn left_out(&self) -> &[(PathBuf, OpenError)] {
        &self.left_out
    }

    /// The MDTs.
    pub fn mdts(&self) -> &[Arc<Mdt>] {
        &self.mdts
    }

    /// The MGS, if it is here.
    pub fn mgs(&self) -> Option<&Arc<Mgs>> {
        self.mgs.as_ref()
    }

    /// Name of the file system of the first target that has one.
    pub fn fsname(&self) -> &str {
        let mut names = self.targets.iter().map(|t| t.label.fsname.as_str());
        names.find(|n| !n.is_empty()).unwrap_or("")
    }

    /// The file systems of its targets of which the MGS knows no MDT0000: they have no root yet, and cannot be mounted.
    pub async fn without_root(&self) -> Vec<String> {
        let names = self.targets.iter().map(|t| t.label.fsname.as_str());
        let names: BTreeSet<&str> = names.filter(|n| !n.is_empty()).collect();
        let elsewhere = self.configs.first().or(self.nodemaps.as_ref());
        let mut without = Vec::new();
        for name in names {
            let root = format!("{name}-MDT0000");
            let is_known = match (&self.mgs, elsewhere) {
                (Some(mgs), _) => mgs.targets(name).iter().any(|t| t.name == root),
                (None, Some(mgc)) => match mgc.read_config(name).await {
                    Ok(config) => config.mdts.contains_key(&0),
                    Err(_) => true,
                },
                (None, None) => true,
            };
            without.extend((!is_known).then(|| name.to_owned()));
        }
        without
    }

    /// Stops every target and the node: what is committed is synced, the servers these are clients of are told. Devices are
    /// closed when this value is dropped.
    pub async fn stop(&self) {
        for mdt in &self.mdts {
            mdt.stop().await;
        }
        let goodbye = async {
            for mgc in self.configs.iter().chain(&self.nodemaps) {
                mgc.disconnect().await;
            }
        };
        if tokio::time::timeout(GOODBYE, goodbye).await.is_err() {
            tracing::warn!("the MGS does not answer: it is left without goodbye");
        }
        self.server.stop().await;
        self.node.shutdown().await;
    }

    /// All is gone at once, as with a killed process: devices keep what was committed, clients are told nothing.
    pub async fn kill(mut self) {
        self.node.shutdown().await;
        self.server.stop_services().await;
        for mdt in &self.mdts {
            mdt.abandon().await;
        }
        for follower in std::mem::take(&mut self.followers) {
            follower.abort();
            // its end, with what it held of an MDT
            let _ = follower.await;
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.followers.iter().for_each(JoinHandle::abort);
    }
}

/// Tells an MDT which other targets the configuration has.
fn set_targets(mdt: &Mdt, config: &Config) {
    let one = |(index, t): (&u32, &TargetConf)| OstTarget {
        index: *index,
        uuid: t.uuid.clone(),
        nids: t.nids.clone(),
        active: !t.inactive,
    };
    mdt.set_osts(config.osts.iter().map(one).collect());
    if let Err(error) = mdt.set_mdts(config.mdts.iter().map(one).collect()) {
        tracing::error!(target = %mdt.target.name(), %error, "the other MDTs cannot be used");
    }
}
