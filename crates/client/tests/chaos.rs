//! A file system over a bad network: messages get lost and delayed by rule, links are slow and get cut, connections break.
//! The workload must not notice: no error, no byte wrong, nothing done twice.
//!
//! Time is tokio's paused clock, so minutes pass in seconds, and everything comes from one seed: the same seed gives the same
//! run, to the microsecond, which is checked. A failing run prints its seed; `CORAL_SEED=n cargo test -p coral-client --test
//! chaos` repeats it. `CORAL_CHAOS_S` sets the length of the long form in seconds of the simulated clock.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::journal::Journal;
use common::own_files::OwnFiles;
use common::simulated::{number, on_own_clock};
use common::*;
use coral_client::{Llite, LockKind};
use coral_lnet::faults::{FaultAction, FaultRule, Side};
use coral_lnet::{LinkModel, MemNet, Nid, Node, NodeConfig, PoolSizes};
use coral_osd::DiskModel;
use coral_wire::Errno;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

/// No operation takes longer than this, whatever the network does; the longest cut is 8 s.
const STUCK: Duration = Duration::from_secs(400);
const CLIENTS: u64 = 3;
const WORKERS: u64 = 3;

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    /// Share of messages lost.
    loss: f64,
    /// Connections break and links are cut.
    breaks: bool,
    /// Clients and servers are on two networks with two routers between them, one of which dies and comes back now and then.
    routers: bool,
    /// The servers' disks.
    disk: DiskModel,
    /// The machines of the servers lose power now and then, and with it what their disks had not synced.
    power: bool,
    /// Simulated time of work.
    length: Duration,
}

/// What came out: equal for equal plans.
#[derive(Debug, PartialEq, Eq, Default)]
struct Outcome {
    /// Of every finished operation with its time.
    digest: u64,
    operations: u64,
    bytes_written: u64,
    faults: u64,
    /// Simulated.
    micros: u64,
}

/// One user with a directory of its own and a part in what all share.
struct Worker {
    id: u64,
    own: OwnFiles,
    journal: Arc<Journal>,
    appended: u64,
    counted: u64,
    claimed: Vec<u64>,
}

impl Worker {
    fn new(id: u64, fs: &Arc<Llite>, seed: u64, journal: Arc<Journal>) -> Worker {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ (id << 32));
        Worker {
            id,
            own: OwnFiles::new(User::root(fs), rng, format!("w{id}"), 8),
            journal,
            appended: 0,
            counted: 0,
            claimed: Vec::new(),
        }
    }

    fn some_bytes(&mut self) -> Vec<u8> {
        let len = match self.own.rng.random_range(0..10) {
            0..5 => self.own.rng.random_range(1..300),
            5..9 => self.own.rng.random_range(300..80_000),
            _ => self.own.rng.random_range(80_000..1_500_000),
        };
        let first: u8 = self.own.rng.random();
        (0..len)
            .map(|i: usize| first.wrapping_add((i / 7) as u8))
            .collect()
    }

    async fn work(mut self, until: Instant) -> Worker {
        self.own
            .u
            .mkdir(&self.own.dir.clone())
            .await
            .expect("own directory");
        while Instant::now() < until {
            let kind = self.own.rng.random_range(0..18);
            let (what, done) = {
                let id = self.id;
                let doing = self.one(kind);
                match tokio::time::timeout(STUCK, doing).await {
                    Ok(d) => d,
                    Err(_) => panic!("worker {id}: operation {kind} is stuck for {STUCK:?}"),
                }
            };
            let result = done.unwrap_or_else(|e| panic!("worker {}: {what}: {e}", self.id));
            self.journal.note(self.id, what, result);
            let pause = self.own.rng.random_range(0..200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self
    }

    /// One operation; its name and a number that says how it went.
    async fn one(&mut self, kind: u32) -> (&'static str, Result<u64>) {
        match kind {
            0..5 => ("write", self.write().await),
            5..8 => ("read", self.read().await),
            8 => ("truncate", self.truncate().await),
            9 => ("rename", self.own.rename().await),
            10 => ("unlink", self.own.unlink().await),
            11 => ("stat", self.stat().await),
            12 => ("list", self.own.list().await),
            13 | 14 => ("append", self.append().await),
            15 => ("count", self.count().await),
            16 => ("claim", self.claim().await),
            _ => ("fsync", self.fsync().await),
        }
    }

    async fn write(&mut self) -> Result<u64> {
        let (name, data) = (self.own.some_name(), self.some_bytes());
        let path = self.own.path(&name);
        let fh = match self.own.files.contains_key(&name) {
            true => self.own.u.open(&path, libc::O_RDWR).await?,
            false => {
                self.own
                    .u
                    .create(&path, libc::O_RDWR | libc::O_EXCL)
                    .await?
            }
        };
        let want = self.own.files.entry(name).or_default();
        let at = self.own.rng.random_range(0..=want.len());
        want.resize(want.len().max(at + data.len()), 0);
        want[at..at + data.len()].copy_from_slice(&data);
        assert_eq!(self.own.u.write(&fh, at as u64, &data).await?, data.len());
        self.own.u.close(&fh).await?;
        self.journal.wrote(data.len() as u64);
        Ok(at as u64)
    }

    async fn read(&mut self) -> Result<u64> {
        let Some(name) = self.own.some_file() else {
            return Ok(0);
        };
        let want = &self.own.files[&name];
        let at = self.own.rng.random_range(0..=want.len());
        let len = self.own.rng.random_range(0..=want.len() - at + 10);
        let fh = self
            .own
            .u
            .open(&self.own.path(&name), libc::O_RDONLY)
            .await?;
        let got = self.own.u.read(&fh, at as u64, len as u32).await?;
        assert!(
            got == want[at..(at + len).min(want.len())],
            "worker {}: {name}: {} bytes at {at} differ",
            self.id,
            got.len()
        );
        self.own.u.close(&fh).await?;
        Ok(got.len() as u64)
    }

    async fn truncate(&mut self) -> Result<u64> {
        let Some(name) = self.own.some_file() else {
            return Ok(0);
        };
        let size = self.own.rng.random_range(0..200_000usize);
        let fid = self.own.u.fid(&self.own.path(&name)).await?;
        let set = coral_client::SetAttr {
            size: Some(size as u64),
            ..Default::default()
        };
        self.own
            .u
            .fs
            .setattr(&self.own.u.cred, fid, set, None)
            .await?;
        self.own
            .files
            .get_mut(&name)
            .expect("there")
            .resize(size, 0);
        Ok(size as u64)
    }

    async fn stat(&mut self) -> Result<u64> {
        let Some(name) = self.own.some_file() else {
            return Ok(0);
        };
        let size = self.own.u.stat(&self.own.path(&name)).await?.size;
        assert_eq!(
            size,
            self.own.files[&name].len() as u64,
            "worker {}: size of {name}",
            self.id
        );
        Ok(size)
    }

    async fn fsync(&mut self) -> Result<u64> {
        let Some(name) = self.own.some_file() else {
            return Ok(0);
        };
        let fh = self.own.u.open(&self.own.path(&name), libc::O_RDWR).await?;
        self.own.u.fs.fsync(&fh, false).await?;
        self.own.u.close(&fh).await?;
        Ok(0)
    }

    /// A record at the end of a file that all append to: none may be lost or be there twice.
    async fn append(&mut self) -> Result<u64> {
        let fh = self
            .own
            .u
            .open("shared/log", libc::O_WRONLY | libc::O_APPEND)
            .await?;
        let record: Vec<u8> = self
            .id
            .to_le_bytes()
            .into_iter()
            .chain(self.appended.to_le_bytes())
            .collect();
        assert_eq!(self.own.u.write(&fh, 0, &record).await?, record.len());
        self.own.u.close(&fh).await?;
        self.appended += 1;
        Ok(self.appended)
    }

    /// A counter under flock.
    async fn count(&mut self) -> Result<u64> {
        let fh = self.own.u.open("shared/counter", libc::O_RDWR).await?;
        self.own.u.fs.flock(&fh, LockKind::Write, true).await?;
        let old = self.own.u.read(&fh, 0, 8).await?;
        let n = u64::from_le_bytes(old.try_into().expect("8 bytes")) + 1;
        self.own.u.write(&fh, 0, &n.to_le_bytes()).await?;
        self.own.u.fs.flock(&fh, LockKind::Unlock, true).await?;
        self.own.u.close(&fh).await?;
        self.counted += 1;
        Ok(n)
    }

    /// Directories that only one may make: whoever is told that it made one has made it.
    async fn claim(&mut self) -> Result<u64> {
        let n = self.own.rng.random_range(0..10_000);
        match self.own.u.mkdir(&format!("shared/claim/{n}")).await {
            Ok(_) => {
                self.claimed.push(n);
                Ok(1)
            }
            Err(Errno::EEXIST) => Ok(0),
            Err(e) => Err(e),
        }
    }
}

/// The rules of a bad network on one node.
fn bad_network(node: &Node, loss: f64) {
    let f = node.faults();
    let delay = |ms| FaultRule::all(FaultAction::Delay(Duration::from_millis(ms)));
    f.add(delay(2000).share(0.002));
    f.add(delay(700).share(0.005));
    f.add(delay(50).share(0.02));
    f.add(FaultRule::all(FaultAction::Drop).share(loss).at(Side::Send));
}

fn server_nid() -> Nid {
    SERVER.parse().expect("a NID")
}

/// Breaks connections and cuts links of the clients at random.
async fn breaks(
    c: Arc<MemNet>,
    clients: Vec<Nid>,
    neighbours: Vec<Nid>,
    seed: u64,
    until: Instant,
) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xb4ea);
    let mut n = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(500..15_000))).await;
        if Instant::now() >= until {
            return n;
        }
        let client = clients[rng.random_range(0..clients.len())];
        let other = neighbours[rng.random_range(0..neighbours.len())];
        n += 1;
        if rng.random_bool(0.8) {
            c.reset(client, other);
        } else {
            c.cut(client, other, true);
            tokio::time::sleep(Duration::from_millis(rng.random_range(100..8000))).await;
            c.cut(client, other, false);
        }
    }
}

/// NIDs of the two routers on the clients' network and on the servers'.
const ROUTERS: [[&str; 2]; 2] = [
    ["10.1.0.8@tcp1", "10.0.0.8@tcp"],
    ["10.1.0.9@tcp1", "10.0.0.9@tcp"],
];

async fn start_router(net: &Arc<MemNet>, which: usize, seed: u64) -> Arc<Node> {
    let nids = ROUTERS[which].map(|n| n.parse().expect("a NID")).to_vec();
    let cfg = NodeConfig {
        nids,
        seed,
        routing: Some(PoolSizes::default()),
        ..NodeConfig::default()
    };
    Node::start(cfg, Some(net.clone())).await.expect("router")
}

/// Kills a router every now and then and starts it anew; at the end both run.
async fn routers(net: Arc<MemNet>, seed: u64, until: Instant, loss: f64) -> [Arc<Node>; 2] {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x9a7e);
    let mut running = [
        start_router(&net, 0, seed).await,
        start_router(&net, 1, seed + 1).await,
    ];
    loop {
        running
            .iter()
            .filter(|n| n.faults().list().is_empty())
            .for_each(|n| bad_network(n, loss));
        tokio::time::sleep(Duration::from_millis(rng.random_range(5000..30_000))).await;
        if Instant::now() >= until {
            return running;
        }
        let which = rng.random_range(0..2);
        running[which].shutdown().await;
        tokio::time::sleep(Duration::from_millis(rng.random_range(100..8000))).await;
        running[which] = start_router(&net, which, rng.random()).await;
    }
}

/// Has the machines of the servers lose power now and then, or their processes killed. The cluster, and the nodes it has had
/// since.
async fn powers(mut c: Cluster, plan: Plan, until: Instant) -> (Cluster, Vec<Arc<Node>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(plan.seed ^ 0x90e4);
    let mut nodes = Vec::new();
    if !plan.power {
        return (c, nodes);
    }
    loop {
        tokio::time::sleep(Duration::from_secs(rng.random_range(20..80))).await;
        if Instant::now() >= until {
            return (c, nodes);
        }
        c = match rng.random_range(0..3) {
            0 => c.mdt_loses_power().await,
            1 => c.osts_lose_power().await,
            _ => c.kill_and_restart().await,
        };
        bad_network(c.node(), plan.loss);
        nodes.push(c.node().clone());
    }
}

/// Waits until the node knows that all its routers are there.
async fn routes_up(node: &Node) {
    while !node.routes().iter().all(|r| r.up) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn scenario(plan: Plan) -> Outcome {
    let (clients_routes, servers_routes) = match plan.routers {
        true => (
            "tcp 10.1.0.8@tcp1,10.1.0.9@tcp1",
            "tcp1 10.0.0.8@tcp,10.0.0.9@tcp",
        ),
        false => ("", ""),
    };
    let c =
        Cluster::start_on_disks(3, (2, 65536), plan.seed % 200, servers_routes, plan.disk).await;
    let until = Instant::now() + plan.length;
    let routing = plan
        .routers
        .then(|| tokio::spawn(routers(c.net.clone(), plan.seed, until, plan.loss)));
    routes_up(c.node()).await;
    let client = async |c: &Cluster, i: u64| match plan.routers {
        true => {
            c.client_at(&format!("10.1.1.{i}@tcp1"), clients_routes)
                .await
        }
        false => c.client_at(&format!("10.0.1.{i}@tcp"), "").await,
    };
    let journal = Arc::new(Journal::begin());
    let mut clients = Vec::new();
    for i in 1..=CLIENTS {
        clients.push(client(&c, i).await);
    }
    let u = User::root(&clients[0]);
    u.mkdir("shared").await.expect("shared");
    u.mkdir("shared/claim").await.expect("claim");
    u.put("shared/log", b"").await.expect("log");
    u.put("shared/counter", &0u64.to_le_bytes())
        .await
        .expect("counter");

    let model = LinkModel {
        bandwidth: Some(200_000_000),
        delay: Duration::from_micros(200),
        jitter: Duration::from_millis(2),
        ..Default::default()
    };
    let nids: Vec<Nid> = clients.iter().map(|fs| fs.node().nid()).collect();
    let neighbours: Vec<Nid> = match plan.routers {
        true => ROUTERS
            .iter()
            .map(|r| r[0].parse().expect("a NID"))
            .collect(),
        false => vec![server_nid()],
    };
    for (i, nid) in nids.iter().enumerate() {
        for n in &neighbours {
            c.net.set_link(*nid, *n, model, plan.seed + i as u64);
        }
    }
    let nodes: Vec<Arc<Node>> = clients
        .iter()
        .map(|fs| fs.node().clone())
        .chain([c.node().clone()])
        .collect();
    nodes.iter().for_each(|n| bad_network(n, plan.loss));

    let breaking = plan
        .breaks
        .then(|| tokio::spawn(breaks(c.net.clone(), nids, neighbours, plan.seed, until)));
    let powering = tokio::spawn(powers(c, plan, until));
    let jobs: Vec<_> = (0..CLIENTS * WORKERS)
        .map(|id| {
            tokio::spawn(
                Worker::new(
                    id,
                    &clients[(id % CLIENTS) as usize],
                    plan.seed,
                    journal.clone(),
                )
                .work(until),
            )
        })
        .collect();
    let mut workers = Vec::new();
    for j in jobs {
        workers.push(
            j.await
                .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic())),
        );
    }
    if let Some(b) = breaking {
        b.await.expect("breaks");
    }
    let (c, more) = powering.await.expect("losses of power");
    let mut nodes = nodes;
    nodes.extend(more);
    if let Some(r) = routing {
        nodes.extend(r.await.expect("routers"));
    }
    let faults = nodes.iter().map(|n| n.faults().hits()).sum();
    nodes.iter().for_each(|n| n.faults().clear());

    routes_up(c.node()).await;
    let last = client(&c, CLIENTS + 1).await;
    verify(&User::root(&last), &workers).await;
    let evictions: u64 = std::iter::once(&c.mdt().target)
        .chain(&c.osts())
        .map(|t| t.stats().evictions.value())
        .sum();
    assert_eq!(
        evictions, 0,
        "a client was evicted: it lost what it had not yet written"
    );
    drop(workers);
    for fs in clients.iter().chain([&last]) {
        fs.umount().await;
    }
    c.stop().await;
    for n in &nodes {
        n.shutdown().await;
    }
    Outcome {
        digest: journal.digest(),
        operations: journal.operations(),
        bytes_written: journal.bytes_written(),
        faults,
        micros: journal.micros(),
    }
}

/// A client that took no part sees what the others were told.
async fn verify(u: &User, workers: &[Worker]) {
    for w in workers {
        w.own.verify(u).await;
    }
    let log = u.get("shared/log").await.expect("log");
    let mut seen: Vec<(u64, u64)> = log
        .chunks(16)
        .map(|r| {
            (
                u64::from_le_bytes(r[..8].try_into().expect("8")),
                u64::from_le_bytes(r[8..].try_into().expect("8")),
            )
        })
        .collect();
    seen.sort();
    let want: Vec<(u64, u64)> = workers
        .iter()
        .flat_map(|w| (0..w.appended).map(|n| (w.id, n)))
        .collect();
    assert_eq!(seen, want, "appended records");
    let counter = u.get("shared/counter").await.expect("counter");
    let counted: u64 = workers.iter().map(|w| w.counted).sum();
    assert_eq!(
        u64::from_le_bytes(counter.try_into().expect("8 bytes")),
        counted,
        "counter under flock"
    );
    let mut claimed: Vec<String> = workers
        .iter()
        .flat_map(|w| w.claimed.iter().map(u64::to_string))
        .collect();
    claimed.sort();
    assert_eq!(
        u.names("shared/claim").await.expect("claims"),
        claimed,
        "each claim has one winner, who knows it"
    );
}

fn run(plan: Plan) -> Outcome {
    let again = format!(
        "CORAL_SEED={} cargo test -p coral-client --test chaos # {plan:?}",
        plan.seed
    );
    on_own_clock(move || scenario(plan), &again)
}

fn seed(otherwise: u64) -> u64 {
    number("CORAL_SEED", otherwise)
}

fn length(otherwise: u64) -> Duration {
    Duration::from_secs(number("CORAL_CHAOS_S", otherwise))
}

#[test]
fn a_lossy_network_is_not_noticed() {
    let out = run(Plan {
        seed: seed(1),
        loss: 0.01,
        breaks: false,
        routers: false,
        disk: DiskModel::NVME,
        power: false,
        length: length(120),
    });
    eprintln!("{out:?}");
    assert!(out.operations > 300 && out.faults > 100, "{out:?}");
}

/// Runs the plan twice: nothing is noticed, and the seed alone decides the run.
fn repeats(plan: Plan) {
    let out = run(plan);
    eprintln!("{out:?}");
    assert!(out.operations > 200 && out.faults > 100, "{out:?}");
    assert_eq!(
        run(plan),
        out,
        "another run of the same seed went otherwise"
    );
}

#[test]
fn breaking_connections_are_not_noticed_and_the_seed_repeats_the_run() {
    repeats(Plan {
        seed: seed(2),
        loss: 0.01,
        breaks: true,
        routers: false,
        disk: DiskModel::NVME,
        power: false,
        length: length(120),
    });
}

#[test]
fn routers_that_die_and_come_back_are_not_noticed() {
    repeats(Plan {
        seed: seed(3),
        loss: 0.01,
        breaks: true,
        routers: true,
        disk: DiskModel::NVME,
        power: false,
        length: length(120),
    });
}

#[test]
fn servers_that_lose_power_are_not_noticed() {
    repeats(Plan {
        seed: seed(5),
        loss: 0.002,
        breaks: false,
        routers: false,
        disk: DiskModel::HARD_DISK,
        power: true,
        length: length(120),
    });
}

/// The same workload by the machine's clock on several threads; `CORAL_CHAOS_REAL_S` sets its length in seconds. Nothing repeats
/// here: the seed only says which faults there are.
#[test]
fn in_real_time_on_several_threads() {
    let plan = Plan {
        seed: seed(4),
        loss: 0.01,
        breaks: true,
        routers: true,
        disk: DiskModel::NVME,
        power: false,
        length: Duration::from_secs(number("CORAL_CHAOS_REAL_S", 10)),
    };
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("runtime");
    eprintln!("{plan:?}");
    let out = rt
        .block_on(async { tokio::spawn(scenario(plan)).await })
        .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
    eprintln!("{out:?}");
    assert!(out.operations > 20, "{out:?}");
}
