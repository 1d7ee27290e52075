//! Servers on directories, without the command line: start, end, kill, another start, and what they say of themselves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_client::{Cred, Llite, MountOptions};
use coral_lnet::{MemNet, Nid, Node, NodeConfig};
use coral_node::backend::simulated_label;
use coral_node::servers::{NodemapError, ParamError};
use coral_node::target_dir::label;
use coral_node::{Client, Servers, ServersConfig, TargetSpec};
use coral_osd::{DiskModel, OsdFs, OsdMem, OsdSim, TargetKind};
use coral_server::mgs;
use coral_server::nodemap::Command;
use coral_wire::Errno;

type TestResult = Result<(), Box<dyn std::error::Error>>;

const TARGETS: [(&str, TargetKind, u32); 4] = [
    ("mgs", TargetKind::Mgs, 0),
    ("mdt", TargetKind::Mdt, 0),
    ("ost0", TargetKind::Ost, 0),
    ("ost1", TargetKind::Ost, 1),
];

struct Place {
    dir: tempfile::TempDir,
    net: Arc<MemNet>,
    seed: u64,
}

impl Place {
    /// A formatted MGS, MDT and two OSTs.
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, kind, index) in TARGETS {
            let label = label(kind, "a", index, &[]);
            OsdFs::format(&dir.path().join(name), &label).expect("formatted");
        }
        Place {
            dir,
            net: MemNet::alone(),
            seed: 0,
        }
    }

    fn target(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    async fn node(&mut self, nid: &str) -> Arc<Node> {
        self.seed += 1;
        let config = NodeConfig::in_memory(nid.parse().expect("a NID"), self.seed);
        let node = Node::start(config, Some(self.net.clone())).await;
        node.expect("a node")
    }

    async fn serve(&mut self) -> Servers {
        let dirs = TARGETS.map(|(name, ..)| TargetSpec::dir(self.target(name)));
        let config = ServersConfig {
            targets: dirs.into(),
            recovery_soft: Some(Duration::from_secs(7)),
            ..ServersConfig::default()
        };
        let node = self.node("10.0.0.1@tcp").await;
        Servers::start(node, config).await.expect("servers")
    }

    async fn client(&mut self, nid: &str) -> Client {
        let server: Nid = "10.0.0.1@tcp".parse().expect("a NID");
        let node = self.node(nid).await;
        let client = Client::mount(node, MountOptions::new("a", vec![server])).await;
        client.expect("a mount")
    }
}

async fn put(fs: &Arc<Llite>, name: &[u8], data: &'static [u8]) -> Result<(), Errno> {
    let me = Cred::root();
    let (_, file) = fs.create(&me, fs.root(), name, 0o644, 2).await?;
    fs.write(&me, &file, 0, Bytes::from_static(data).into())
        .await?;
    Ok(fs.release(&file).await?)
}

async fn get(fs: &Arc<Llite>, name: &[u8]) -> Result<Bytes, Errno> {
    let found = fs.lookup(&Cred::root(), fs.root(), name).await?;
    let file = fs.open(&Cred::root(), found.attr.fid, 0).await?;
    let data = fs.read(&file, 0, 1 << 20).await?.copy_to_bytes();
    fs.release(&file).await?;
    Ok(data)
}

fn fresh(dir: &Path) -> bool {
    OsdFs::fresh(dir).expect("readable").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_an_end_and_after_a_kill() -> TestResult {
    let mut place = Place::new();
    assert!(fresh(&place.target("mdt")));
    let servers = place.serve().await;
    assert!(!fresh(&place.target("mdt")) && !fresh(&place.target("ost1")));
    let fs = place.client("10.0.0.9@tcp").await;
    put(&fs, b"f", b"of the first life").await?;
    let standing = servers.status();
    let names: Vec<&str> = standing.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["MGS", "a-MDT0000", "a-OST0000", "a-OST0001"]);
    assert_eq!(standing[1].dir, Some(place.target("mdt")));
    assert_eq!(standing[1].mounts, [fs.node().nid()]);
    assert!(standing[2].mounts.is_empty() && standing[1].last_transno > 0);
    assert!(
        standing
            .iter()
            .all(|t| t.recovery.is_none() && t.trouble.is_none())
    );
    assert_eq!(servers.fsname(), "a");
    fs.umount().await;
    servers.stop().await;
    drop(servers);

    let servers = place.serve().await;
    let fs = place.client("10.0.0.9@tcp").await;
    assert_eq!(get(&fs, b"f").await?, "of the first life");
    put(&fs, b"g", b"of the second").await?;
    servers.kill().await;
    let servers = place.serve().await;
    let waited_for = servers.recovering();
    assert!(
        waited_for.iter().any(|(name, r)| name == "a-MDT0000"
            && r.waited_for.iter().any(|w| w.nid == fs.node().nid()))
    );
    assert_eq!(get(&fs, b"g").await?, "of the second", "it has come back");
    fs.umount().await;
    servers.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_in_use_or_is_none_stops_the_others() -> TestResult {
    let mut place = Place::new();
    let servers = place.serve().await;
    for (dir, says) in [("mdt", "in use"), ("nowhere", "nowhere")] {
        let node = place.node("10.0.0.2@tcp").await;
        let config = ServersConfig {
            targets: vec![TargetSpec::dir(place.target(dir))],
            ..ServersConfig::default()
        };
        let why = Servers::start(node.clone(), config).await.err();
        let why = why.ok_or("it was started")?.to_string();
        assert!(why.contains(says), "{why}");
        assert!(*node.ended().borrow(), "its node ends with it");
    }
    servers.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_and_nodemaps_are_set_where_they_can_be() -> TestResult {
    let mut place = Place::new();
    let servers = place.serve().await;
    let value = |name: &str| {
        let all = servers.params();
        all.into_iter().find(|(n, _)| n == name).map(|(_, v)| v)
    };
    let soft = "obdfilter.a-OST0001.recovery_time_soft";
    assert_eq!(value(soft).as_deref(), Some("7"), "as it was started");
    assert_eq!(servers.set_param(soft, "9").await, Ok(()));
    assert_eq!(value(soft).as_deref(), Some("9"));
    let name = "mdt.a-MDT0000.root_squash";
    assert_eq!(servers.set_param(name, "99:99").await, Ok(()));
    assert_eq!(value(name).as_deref(), Some("99:99"));
    assert_eq!(
        value("mdt.a-MDT0000.recovery_status").as_deref(),
        Some("status: COMPLETE\n")
    );
    assert!(value("mdt.MGS.recovery_status").is_none());
    for (name, value, why) in [
        (soft, "0", ParamError::NoTime("0".into())),
        (soft, "x", ParamError::NoTime("x".into())),
        ("mdt.a-MDT0000.recovery_status", "1", ParamError::ReadOnly),
        ("mdt.b-MDT0000.x", "1", ParamError::NoSuchTarget),
        ("nodemap.active", "1", ParamError::Nodemap),
    ] {
        assert_eq!(servers.set_param(name, value).await, Err(why), "{name}");
    }
    let refused = servers.set_param(name, "nonsense").await;
    assert!(
        matches!(refused, Err(ParamError::Refused(_))),
        "{refused:?}"
    );

    assert!(!servers.nodemaps().maps.active);
    assert_eq!(
        servers.change_nodemaps(&Command::Activate(true)).await,
        Ok(())
    );
    assert!(servers.nodemaps().maps.active);
    let gone = Command::Del { name: "no".into() };
    let refused = servers.change_nodemaps(&gone).await;
    assert!(
        matches!(refused, Err(NodemapError::Refused(_))),
        "{refused:?}"
    );

    // an OST elsewhere hears of them, and cannot change them
    let dir = place.target("ost2");
    let mgs: Nid = "10.0.0.1@tcp".parse()?;
    OsdFs::format(&dir, &label(TargetKind::Ost, "a", 2, &[mgs]))?;
    let mut far = Servers::new(place.node("10.0.0.2@tcp").await, ServersConfig::default());
    servers.change_nodemaps(&Command::Activate(false)).await?;
    far.add(TargetSpec::dir(&dir)).await?;
    let change = Command::Activate(true);
    assert_eq!(
        far.change_nodemaps(&change).await,
        Err(NodemapError::Elsewhere)
    );
    servers.change_nodemaps(&change).await?;
    for _ in 0..100 {
        if far.nodemaps().maps.active {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(far.nodemaps().maps.active, "told within 10 s");
    far.stop().await;
    servers.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn servers_end_while_their_mgs_is_away() -> TestResult {
    let net = MemNet::alone();
    let (mgs_nid, ost_nid): (Nid, Nid) = ("10.0.0.1@tcp".parse()?, "10.0.0.2@tcp".parse()?);
    let start = async |nid, seed, kind| {
        let node = Node::start(NodeConfig::in_memory(nid, seed), Some(net.clone())).await?;
        let label = simulated_label(kind, "a", 0, &[mgs_nid]);
        let config = ServersConfig {
            targets: vec![TargetSpec::memory(label, &OsdMem::new())],
            ..ServersConfig::default()
        };
        Ok::<_, Box<dyn std::error::Error>>(Servers::start(node, config).await?)
    };
    let mgs = start(mgs_nid, 1, TargetKind::Mgs).await?;
    let ost = start(ost_nid, 2, TargetKind::Ost).await?;
    mgs.kill().await;
    tokio::time::timeout(Duration::from_secs(60), ost.stop()).await?;
    Ok(())
}

/// A copy that was made while the target was served is as old as what was done since.
#[tokio::test(start_paused = true)]
async fn a_copy_made_since_the_start_is_refused() -> TestResult {
    let net = MemNet::alone();
    let server: Nid = "10.0.0.1@tcp".parse()?;
    let disk = || OsdSim::new(Default::default(), DiskModel::INSTANT, 1);
    let (mgs, mdt, ost) = (disk(), disk(), disk());
    let serve = async |seed, mdt: &OsdSim| {
        let node = NodeConfig::in_memory(server, seed);
        let node = Node::start(node, Some(net.clone())).await?;
        let of = |kind, on| {
            let at = [server];
            let at = if kind == TargetKind::Mgs {
                &[][..]
            } else {
                &at
            };
            TargetSpec::memory(simulated_label(kind, "a", 0, at), on)
        };
        let config = ServersConfig {
            targets: vec![
                of(TargetKind::Mgs, &mgs),
                of(TargetKind::Ost, &ost),
                of(TargetKind::Mdt, mdt),
            ],
            counts_every: Some(Duration::from_secs(300)),
            ..ServersConfig::default()
        };
        Ok::<_, Box<dyn std::error::Error>>(Servers::start(node, config).await?)
    };
    let number = || {
        let known = mgs::known(&mgs).expect("readable");
        let mdt = known.iter().find(|k| k.name == "a-MDT0000");
        mdt.and_then(|k| k.registration).expect("counted").0
    };
    let servers = serve(1, &mdt).await?;
    let node = NodeConfig::in_memory("10.0.0.9@tcp".parse()?, 2);
    let node = Node::start(node, Some(net.clone())).await?;
    let fs = Client::mount(node, MountOptions::new("a", vec![server])).await?;
    put(&fs, b"f", b"before the copy").await?;
    tokio::time::sleep(Duration::from_secs(301)).await;
    let counted = number();
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(number(), counted, "nothing was changed meanwhile");
    let copy = OsdSim::new(mdt.copy(), DiskModel::INSTANT, 1);
    put(&fs, b"g", b"since").await?;
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert_eq!(number(), counted + 1);
    fs.umount().await;
    servers.stop().await;
    let Err(why) = serve(3, &copy).await else {
        return Err("served".into());
    };
    let why = why.to_string();
    assert!(
        why.contains("a-MDT0000 was put back from an older copy"),
        "{why}"
    );
    let servers = serve(4, &mdt).await?;
    servers.stop().await;
    Ok(())
}
