//! Kills and partitions: two clients, two servers and a router between them, each a process of its own. Servers and the router are
//! killed with -9 and started again, connections are reset, links go down for some seconds. Nothing that was acknowledged may be
//! missing afterwards, and no operation may take longer than a minute.
//!
//! `CORAL_STORM_S` makes it longer (`cargo xtask storm`), `CORAL_SEED` repeats the order of what is done to the network and by the
//! clients, not the moments. A client that a server has evicted (a machine too slow to answer in time) may lose what was not
//! synced; it is told.

mod common;
#[path = "power/file.rs"]
mod file;
#[path = "power/worker.rs"]
mod worker;

use common::net::Namespace;
use common::{Place, Rng, Running, coral, in_network_namespace, is_root, lfs, ok, pause, until};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use worker::Worker;

/// Networks of the servers and of the clients: 10.N.0.0/24.
const SERVERS: u8 = 221;
const CLIENTS: u8 = 222;
/// No operation may take longer.
const LONGEST: Duration = Duration::from_secs(60);
/// Faults between two looks at what is there.
const FAULTS_EACH: u64 = 5;
/// Length of the short form, seconds.
const SHORT_S: u64 = 30;
/// Layouts of the workers' directories; every second worker is on the second client.
const LAYOUTS: [&[&str]; 4] = [
    &["-c", "1"],
    &["-c", "2", "-S", "64K"],
    &["-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1"],
    &["-E", "64K", "-c", "1", "-E", "-1", "-c", "2"],
];

struct Rig {
    place: Place,
    nets: [Namespace; 2],
    router: Option<Running>,
    /// MGS, MDT and an OST; another OST.
    servers: [Option<Running>; 2],
    clients: Vec<Running>,
    mounts: Vec<PathBuf>,
}

impl Rig {
    fn start() -> Rig {
        let place = Place::new();
        let nets = [
            Namespace::joined(SERVERS, &[2, 3]),
            Namespace::joined(CLIENTS, &[11, 12]),
        ];
        let mgs = format!("10.{SERVERS}.0.2@tcp");
        ok(coral()
            .args(["format", "--mgs", "--mdt", "0", "--fsname", "storm"])
            .arg(place.path("mdt")));
        for i in ["0", "1"] {
            ok(coral()
                .args(["format", "--ost", i, "--fsname", "storm", "--mgsnode", &mgs])
                .arg(place.path(&format!("ost{i}"))));
        }
        let mut rig = Rig {
            place,
            nets,
            router: None,
            servers: [None, None],
            clients: Vec::new(),
            mounts: Vec::new(),
        };
        rig.start_router();
        (0..2).for_each(|s| rig.start_server(s));
        let port = rig.place.port.to_string();
        for host in [11, 12] {
            let mnt = rig.place.make(&format!("mnt{host}"));
            let (source, nid, route) = (
                format!("{mgs}:/storm"),
                format!("10.{CLIENTS}.0.{host}@tcp1"),
                format!("tcp 10.{CLIENTS}.0.1@tcp1"),
            );
            let args = [
                "mount",
                &source,
                &mnt.to_string_lossy(),
                "--nid",
                &nid,
                "--port",
                &port,
                "--route",
                &route,
                "--cache-mb",
                "64",
            ];
            rig.clients.push(rig.nets[1].coral(
                &args,
                &rig.place.path(&format!("client{host}")),
                &[&mnt],
            ));
            rig.mounts.push(mnt);
        }
        rig
    }

    fn start_router(&mut self) {
        let (port, dir) = (self.place.port.to_string(), self.place.make("router"));
        let nids = [
            format!("10.{SERVERS}.0.1@tcp"),
            format!("10.{CLIENTS}.0.1@tcp1"),
        ];
        let args = [
            "router",
            "--dir",
            &dir.to_string_lossy(),
            "--port",
            &port,
            "--nid",
            &nids[0],
            "--nid",
            &nids[1],
            "--large",
            "64",
        ];
        self.router = Some(Running::start(&args, &dir, &[]));
    }

    fn targets(&self, server: usize) -> Vec<PathBuf> {
        if server == 0 {
            vec![self.place.path("mdt"), self.place.path("ost0")]
        } else {
            vec![self.place.path("ost1")]
        }
    }

    fn start_server(&mut self, server: usize) {
        let (port, nid, route) = (
            self.place.port.to_string(),
            format!("10.{SERVERS}.0.{}@tcp", 2 + server),
            format!("tcp1 10.{SERVERS}.0.1@tcp"),
        );
        let dirs = self.targets(server);
        let mut args = vec!["serve".to_owned()];
        args.extend(dirs.iter().map(|d| d.to_string_lossy().into_owned()));
        args.extend(["--nid", &nid, "--port", &port, "--route", &route].map(str::to_owned));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.servers[server] = Some(self.nets[0].coral(&args, &dirs[0], &[]));
    }

    /// One thing goes wrong and is mended; what it was.
    fn fault(&mut self, rng: &mut Rng) -> &'static str {
        match rng.below(10) {
            0..4 => {
                let server = rng.below(2) as usize;
                self.servers[server].take().expect("it runs").kill();
                pause(rng.below(4000));
                self.start_server(server);
                "server killed"
            }
            4..6 => {
                self.router.take().expect("it runs").kill();
                pause(rng.below(4000));
                self.start_router();
                "router killed"
            }
            6 | 7 => {
                let whom = [
                    format!("10.{CLIENTS}.0.{}@tcp1", 11 + rng.below(2)),
                    format!("10.{SERVERS}.0.{}@tcp", 2 + rng.below(2)),
                ];
                let dir = self.place.path("router");
                // a router that was just started does not know everybody yet
                let _ = coral()
                    .args(["lctl", "--dir"])
                    .arg(dir)
                    .arg("disconnect")
                    .arg(&whom[rng.below(2) as usize])
                    .output();
                "connection reset"
            }
            _ => {
                let link = format!("c{}a", [SERVERS, CLIENTS][rng.below(2) as usize]);
                ok(Command::new("ip").args(["link", "set", &link, "down"]));
                pause(500 + rng.below(7000));
                ok(Command::new("ip").args(["link", "set", &link, "up"]));
                "link down"
            }
        }
    }

    /// What the servers' logs say of clients that they evicted. (An MDT that starts anew replaces its connections to OSTs.)
    fn evicted(&self) -> Vec<String> {
        let logs = [self.targets(0), self.targets(1)]
            .map(|t| std::fs::read_to_string(t[0].with_extension("log")).unwrap_or_default());
        let of_clients = |l: &&str| l.contains("client evicted") && !l.contains("-mdtlov_UUID");
        logs.iter()
            .flat_map(|l| l.lines())
            .filter(of_clients)
            .map(str::to_owned)
            .collect()
    }

    fn stop(mut self) {
        for (mnt, c) in self.mounts.iter().zip(self.clients.drain(..)) {
            ok(Command::new("umount").arg(mnt));
            drop(c);
        }
        let dirs = [self.targets(0), self.targets(1)].concat();
        for s in self.servers.iter_mut().rev() {
            s.take().expect("it runs").stop();
        }
        self.router.take().expect("it runs").stop();
        // a file that was removed last has objects for some seconds, which a stopped server keeps for its next start
        ok(coral().arg("check").args(dirs));
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test whose threads make system calls on a mount"
)]
fn kills_and_partitions_lose_nothing() {
    if !is_root() {
        eprintln!("SKIPPED: needs root: network namespaces joined by devices");
        return;
    }
    in_network_namespace("kills_and_partitions_lose_nothing", || {
        let seconds = std::env::var("CORAL_STORM_S")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(SHORT_S);
        let mut rng = Rng::from_env();
        let mut rig = Rig::start();
        let mut workers = Vec::new();
        for (i, layout) in LAYOUTS.iter().enumerate() {
            let dir = rig.mounts[i % 2].join(format!("w{i}"));
            let mut w = Worker::new(&dir, rng.next());
            w.sync_percent = [5, 30][i / 2];
            workers.push(w);
            ok(lfs().arg("setstripe").args(*layout).arg(&dir));
        }
        #[expect(clippy::disallowed_methods, reason = "a test by the machine's clock")]
        let begin = std::time::Instant::now();
        let (mut done, mut bad, mut told, mut evicted) = (
            std::collections::BTreeMap::<&str, u64>::new(),
            Vec::new(),
            Vec::new(),
            0,
        );
        while bad.is_empty() && (done.is_empty() || begin.elapsed().as_secs() < seconds) {
            let stop = Arc::new(AtomicBool::new(false));
            let jobs: Vec<_> = workers
                .drain(..)
                .map(|mut w: Worker| {
                    let stop = stop.clone();
                    std::thread::spawn(move || {
                        w.work(&stop, false);
                        w
                    })
                })
                .collect();
            for _ in 0..FAULTS_EACH {
                *done.entry(rig.fault(&mut rng)).or_default() += 1;
                pause(500 + rng.below(4000));
            }
            stop.store(true, Ordering::Relaxed);
            until("all operations have ended", || {
                jobs.iter().all(|j| j.is_finished())
            });
            workers = jobs
                .into_iter()
                .map(|j| j.join().expect("a worker"))
                .collect();
            let before = std::mem::replace(&mut evicted, rig.evicted().len());
            let all_kept = evicted == before;
            for (i, w) in workers.iter_mut().enumerate() {
                w.keeps = all_kept;
                if w.longest > LONGEST {
                    bad.push(format!(
                        "{}: an operation took {:.0} s",
                        w.dir.display(),
                        w.longest.as_secs_f64()
                    ));
                }
                told.append(&mut w.told);
                let seen = rig.mounts[(i + 1) % 2].join(format!("w{i}"));
                bad.extend(w.verify(&seen, all_kept));
                bad.extend(
                    w.tidy()
                        .err()
                        .map(|e| format!("{}: tidying: {e}", w.dir.display())),
                );
            }
        }
        let acked: u64 = workers
            .iter()
            .map(|w| w.acked.load(Ordering::Relaxed))
            .sum();
        let longest = workers.iter().map(|w| w.longest).max().unwrap_or_default();
        bad.iter().for_each(|b| println!("LOST: {b}"));
        told.iter().for_each(|t| println!("error told: {t}"));
        rig.evicted().iter().for_each(|e| println!("{e}"));
        println!(
            "{acked} operations acknowledged in {:.0} s, the longest {:.1} s; {done:?}; {evicted} evictions, {} errors told, {} losses",
            begin.elapsed().as_secs_f64(),
            longest.as_secs_f64(),
            told.len(),
            bad.len()
        );
        if !bad.is_empty() {
            rig.place.dir.disable_cleanup(true);
            panic!(
                "{} losses; the logs are in {}",
                bad.len(),
                rig.place.dir.path().display()
            );
        }
        assert!(acked > 0, "nothing was acknowledged");
        rig.stop();
    });
}
