//! An hour of three file systems on disks that take their time, with 200 clients, and a loss of power every few minutes. Nobody may notice more than a pause: no operation fails, and at the end everything is as it was told. (Whoever left
//! an idle connection to a server that was just being restarted starts anew there, with nothing to lose.)
//!
//! Time is tokio's paused clock, and everything comes from one seed: a second run must do the same to the microsecond.
//! `CORAL_SEED=n cargo test -p coral-client --test hour` repeats a run; `CORAL_HOUR_S` sets its length in seconds of the
//! simulated clock (3600 is the hour; the form in every test run is shorter).

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::journal::Journal;
use common::own_files::OwnFiles;
use common::simulated::{number, on_own_clock};
use common::*;
use coral_client::Llite;
use coral_lnet::{LinkModel, MemNet, Nid, WallClock};
use coral_osd::DiskModel;
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

const FILE_SYSTEMS: u64 = 3;
const CLIENTS: u64 = 200;
/// Seconds of the simulated clock in every test run.
const SHORT_S: u64 = 300;
/// No operation takes longer: a restart waits for all its clients.
const STUCK: Duration = Duration::from_secs(300);
/// Between losses of power, seconds.
const POWER_S: std::ops::Range<u64> = 60..400;

/// What came out: equal for equal seeds.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    digest: u64,
    operations: u64,
    bytes_written: u64,
    losses_of_power: u64,
    micros: u64,
}

/// One client with a directory of its own.
struct Worker {
    id: u64,
    own: OwnFiles,
    journal: Arc<Journal>,
}

impl Worker {
    async fn work(mut self, until: Instant) -> Worker {
        let dir = &self.own.dir;
        self.own.u.mkdir(dir).await.expect("own directory");
        while Instant::now() < until {
            let kind = self.own.rng.random_range(0..12);
            let id = self.id;
            let done = tokio::time::timeout(STUCK, self.one(kind)).await;
            let done = done.unwrap_or_else(|_| panic!("client {id}: operation {kind} is stuck"));
            let result = done.unwrap_or_else(|e| panic!("client {id}: operation {kind}: {e}"));
            self.journal.note(id, "op", result << 4 | u64::from(kind));
            let pause = self.own.rng.random_range(1000..15_000);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self
    }

    /// One operation; a number that says how it went.
    async fn one(&mut self, kind: u32) -> Result<u64> {
        match kind {
            0..4 => self.write().await,
            4..7 => self.read().await,
            7 => self.own.rename().await,
            8 => self.own.unlink().await,
            9 => self.own.list().await,
            10 => self.beat().await,
            _ => self.look_around().await,
        }
    }

    async fn write(&mut self) -> Result<u64> {
        let name = self.own.some_name();
        let len = self.own.rng.random_range(1..60_000);
        let data = vec![self.own.rng.random::<u8>(); len];
        let fh = self
            .own
            .u
            .create(&self.own.path(&name), libc::O_WRONLY | libc::O_TRUNC)
            .await?;
        self.own.u.write(&fh, 0, &data).await?;
        if self.own.rng.random_bool(0.2) {
            self.own.u.fs.fsync(&fh, false).await?;
        }
        self.own.u.close(&fh).await?;
        self.journal.wrote(len as u64);
        self.own.files.insert(name, data);
        Ok(len as u64)
    }

    async fn read(&mut self) -> Result<u64> {
        let Some(name) = self.own.some_file() else {
            return Ok(0);
        };
        let data = self.own.u.get(&self.own.path(&name)).await?;
        assert!(
            data == self.own.files[&name],
            "{} differs",
            self.own.path(&name)
        );
        Ok(data.len() as u64)
    }

    /// Tells the others that it lives, in a directory of all.
    async fn beat(&mut self) -> Result<u64> {
        let at = self.journal.micros().to_le_bytes();
        self.own.u.put(&format!("alive/{}", self.id), &at).await?;
        Ok(0)
    }

    /// Looks whether somebody else lives.
    async fn look_around(&mut self) -> Result<u64> {
        let names = self.own.u.names("alive").await?;
        let Some(other) = names.get(self.own.rng.random_range(0..names.len().max(1))) else {
            return Ok(0);
        };
        Ok(self.own.u.stat(&format!("alive/{other}")).await?.size)
    }
}

/// One file system, with its servers on two nodes.
async fn file_system(net: &Arc<MemNet>, n: u64, seed: u64, wall: WallClock) -> coral_node::Cluster {
    let at = |host: u64| nid(&format!("10.{n}.0.{host}@tcp"));
    let model = if n == 0 {
        DiskModel::HARD_DISK
    } else {
        DiskModel::NVME
    };
    coral_node::Cluster::builder()
        .on(net.clone())
        .wall_clock(wall)
        .fsname(&format!("fs{n}"))
        .server_at(at(1))
        .ost_at(0, at(2))
        .ost_at(1, at(2))
        .osts(2)
        .stripes(2, 65536)
        .disk_model(model)
        .seed(seed * 1000 + n * 100_000)
        .start()
        .await
        .expect("a file system")
}

/// A part of the file system loses power now and then.
async fn losses(
    mut fs: coral_node::Cluster,
    seed: u64,
    until: Instant,
) -> (coral_node::Cluster, u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut count = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(rng.random_range(POWER_S))).await;
        if Instant::now() >= until {
            return (fs, count);
        }
        count += 1;
        let done = match rng.random_range(0..3) {
            0 => fs.mdt_loses_power().await,
            1 => fs.osts_lose_power().await,
            _ => fs.kill_and_restart().await,
        };
        done.expect("a restart");
    }
}

async fn scenario(seed: u64, length: Duration) -> Outcome {
    let net = MemNet::alone();
    let wall = WallClock::starting_at(WallClock::SIMULATED_SECS);
    let mut systems = Vec::new();
    for n in 0..FILE_SYSTEMS {
        systems.push(file_system(&net, n, seed, wall).await);
    }
    let link = LinkModel {
        bandwidth: Some(1_000_000_000),
        delay: Duration::from_micros(50),
        jitter: Duration::from_micros(20),
        ..Default::default()
    };
    let mut clients: Vec<Arc<Llite>> = Vec::new();
    for i in 0..CLIENTS {
        let n = i % FILE_SYSTEMS;
        let at: Nid = nid(&format!("10.{n}.{}.{}@tcp", 1 + i / 200, 1 + i % 200));
        for server in systems[n as usize].server_nids() {
            net.set_link(at, server, link, seed + i);
        }
        let client = systems[n as usize].client_at(at, &[]).await.expect("mount");
        clients.push(client.llite().clone());
    }
    for fs in &clients[..FILE_SYSTEMS as usize] {
        User::root(fs).mkdir("alive").await.expect("mkdir");
    }
    let journal = Arc::new(Journal::begin());
    let until = Instant::now() + length;
    let losses: Vec<_> = (0u64..)
        .zip(systems)
        .map(|(n, fs)| tokio::spawn(losses(fs, seed + n, until)))
        .collect();
    let jobs: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let rng = ChaCha8Rng::seed_from_u64(seed ^ (id << 32));
            let u = User::root(&clients[id as usize]);
            let worker = Worker {
                id,
                own: OwnFiles::new(u, rng, format!("c{id}"), 20),
                journal: journal.clone(),
            };
            tokio::spawn(worker.work(until))
        })
        .collect();
    let mut workers = Vec::new();
    for job in jobs {
        workers.push(job.await.expect("a client"));
    }
    let (mut systems, mut count) = (Vec::new(), 0);
    for task in losses {
        let (fs, losses) = task.await.expect("losses of power");
        systems.push(fs);
        count += losses;
    }
    for w in &workers {
        w.own.verify(&w.own.u).await;
    }
    drop(workers);
    for fs in &clients {
        fs.umount().await;
        fs.node().shutdown().await;
    }
    for fs in &systems {
        fs.stop().await;
    }
    Outcome {
        digest: journal.digest(),
        operations: journal.operations(),
        bytes_written: journal.bytes_written(),
        losses_of_power: count,
        micros: journal.micros(),
    }
}

fn run(seed: u64, length: Duration) -> Outcome {
    let again = format!(
        "CORAL_SEED={seed} CORAL_HOUR_S={} cargo test -p coral-client --test hour",
        length.as_secs()
    );
    on_own_clock(move || scenario(seed, length), &again)
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "it tells how long the run takes, which nothing depends on"
)]
fn three_file_systems_and_200_clients_do_the_same_twice() {
    let (seed, length) = (number("CORAL_SEED", 1), number("CORAL_HOUR_S", SHORT_S));
    let length = Duration::from_secs(length);
    let begun = std::time::Instant::now();
    let out = run(seed, length);
    eprintln!("{out:?} in {:.1} s", begun.elapsed().as_secs_f64());
    assert!(out.operations > CLIENTS * length.as_secs() / 20, "{out:?}");
    assert!(out.losses_of_power > 0, "{out:?}");
    assert_eq!(run(seed, length), out, "the seed alone decides the run");
}
