//! One LNet router, two file systems, six clients (study S1): each file system is alone on a network, the clients on a third, and
//! only `coral router` joins them. Every client writes and reads both at once, all data is verified, and the router's throughput
//! over time is printed for one file system and for two.
//!
//! The networks are network namespaces joined to the router's by pairs of devices; the kernel forwards nothing between them.

mod common;

use common::net::Namespace;
use common::{Place, Running, coral, fails, in_network_namespace, ok, pattern, pause, until};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Clients, each with a NID for either file system.
const CLIENTS: usize = 6;
/// MiB each client writes to each file system and reads back from another's file, unless CORAL_ROUTER_MIB says otherwise.
const FILE_MIB: usize = 12;
/// Between two looks at the router's counters, milliseconds.
const SAMPLE_MS: u64 = 250;

/// Number of the network of file system `fs` (0 or 1) and of the clients: 10.N.0.0/24.
const FS_NET: [u8; 2] = [211, 212];
const CLIENT_NET: u8 = 213;

struct Rig {
    /// By client, then by file system.
    mounts: Vec<[PathBuf; 2]>,
    clients: Vec<Running>,
    servers: Vec<Running>,
    router: Option<Running>,
    router_dir: PathBuf,
    _nets: Vec<Namespace>,
    place: Place,
}

impl Rig {
    fn start() -> Rig {
        let place = Place::new();
        let port = place.port.to_string();
        let hosts: Vec<u8> = (0..CLIENTS as u8).flat_map(|c| [11 + c, 31 + c]).collect();
        let nets = vec![
            Namespace::joined(FS_NET[0], &[2]),
            Namespace::joined(FS_NET[1], &[2]),
            Namespace::joined(CLIENT_NET, &hosts),
        ];
        let router_dir = place.make("router");
        let router = start_router(&place, &router_dir);
        let servers = (0..2)
            .map(|fs| serve(&place, &nets[fs], fs, &port))
            .collect();
        let (mut mounts, mut clients) = (Vec::new(), Vec::new());
        for c in 0..CLIENTS {
            let both = [0, 1].map(|fs| place.make(&format!("mnt{c}.{fs}")));
            for (fs, mnt) in both.iter().enumerate() {
                let nid = format!(
                    "10.{CLIENT_NET}.0.{}@tcp2",
                    if fs == 0 { 11 + c } else { 31 + c }
                );
                let (source, net) = (
                    format!("10.{}.0.2@{}:/fs{fs}", FS_NET[fs], net_name(fs)),
                    format!("{} 10.{CLIENT_NET}.0.1@tcp2", net_name(fs)),
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
                    &net,
                    "--cache-mb",
                    "64",
                ];
                clients.push(nets[2].coral(&args, &place.path(&format!("client{c}.{fs}")), &[mnt]));
            }
            mounts.push(both);
        }
        Rig {
            mounts,
            clients,
            servers,
            router: Some(router),
            router_dir,
            _nets: nets,
            place,
        }
    }

    /// Messages and bytes the router has forwarded, and those it dropped.
    fn routed(&self) -> [u64; 3] {
        let text = ok(coral().args(["status", "--json"]).arg(&self.router_dir));
        let v: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let n = |key: &str| v[key].as_u64().expect(key);
        [
            n("routed"),
            n("routed_bytes"),
            n("no_route") + n("route_failed"),
        ]
    }

    fn stop(self) {
        for c in self.clients {
            c.stop();
        }
        for s in self.servers {
            s.stop();
        }
        if let Some(r) = self.router {
            r.stop();
        }
        for fs in 0..2 {
            ok(coral().arg("check").args([
                self.place.path(&format!("mds{fs}/mgs")),
                self.place.path(&format!("mds{fs}/mdt0000")),
                self.place.path(&format!("ost{fs}")),
            ]));
        }
    }
}

fn net_name(fs: usize) -> &'static str {
    ["tcp", "tcp1"][fs]
}

fn start_router(place: &Place, dir: &Path) -> Running {
    let (port, d) = (place.port.to_string(), dir.to_string_lossy().into_owned());
    let nids = [
        format!("10.{}.0.1@tcp", FS_NET[0]),
        format!("10.{}.0.1@tcp1", FS_NET[1]),
        format!("10.{CLIENT_NET}.0.1@tcp2"),
    ];
    let args = [
        "router", "--dir", &d, "--port", &port, "--nid", &nids[0], "--nid", &nids[1], "--nid",
        &nids[2], "--large", "64",
    ];
    Running::start(&args, dir, &[])
}

/// File system `fs`: an MGS with an MDT, and an OST, on one node.
fn serve(place: &Place, net: &Namespace, fs: usize, port: &str) -> Running {
    let (mds, ost) = (
        place.path(&format!("mds{fs}")),
        place.path(&format!("ost{fs}")),
    );
    let (name, nid) = (
        format!("fs{fs}"),
        format!("10.{}.0.2@{}", FS_NET[fs], net_name(fs)),
    );
    ok(coral()
        .args(["format", "--mgs", "--mdt", "0", "--fsname", &name])
        .arg(&mds));
    ok(coral()
        .args(["format", "--ost", "0", "--fsname", &name, "--mgsnode", &nid])
        .arg(&ost));
    // The routes by a file here, by flags in the clients.
    let file = place.path(&format!("routes{fs}.toml"));
    std::fs::write(
        &file,
        format!(
            "routes = [\"tcp2 10.{}.0.1@{}\"]\n",
            FS_NET[fs],
            net_name(fs)
        ),
    )
    .unwrap();
    let args = [
        "serve",
        &mds.to_string_lossy(),
        &ost.to_string_lossy(),
        "--nid",
        &nid,
        "--port",
        port,
        "--routes",
        &file.to_string_lossy(),
    ];
    net.coral(&args, &mds, &[])
}

fn file_bytes() -> usize {
    std::env::var("CORAL_ROUTER_MIB")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(FILE_MIB)
        << 20
}

/// Every client writes a file to each of the file systems `used`, then reads the one its neighbour wrote.
fn workload(rig: &Rig, used: &[usize], round: u64) {
    let each = |work: &(dyn Fn(usize, usize) + Sync)| {
        std::thread::scope(|s| {
            for c in 0..CLIENTS {
                for fs in used {
                    s.spawn(move || work(c, *fs));
                }
            }
        });
    };
    let seed = |c: usize, fs: usize| round * 100 + (c * 2 + fs) as u64;
    each(&|c, fs| {
        use std::io::Write;
        let mut f = std::fs::File::create(rig.mounts[c][fs].join(format!("f{round}.{c}"))).unwrap();
        f.write_all(&pattern(seed(c, fs), file_bytes())).unwrap();
        f.sync_all().unwrap();
    });
    each(&|c, fs| {
        let other = (c + 1) % CLIENTS;
        let data = std::fs::read(rig.mounts[c][fs].join(format!("f{round}.{other}"))).unwrap();
        assert!(
            data == pattern(seed(other, fs), file_bytes()),
            "client {c} reads other bytes from fs{fs} than client {other} wrote"
        );
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test that asks for what was since then"
)]
fn unix_time() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("a time after 1970")
        .as_secs()
}

/// Runs `work` and prints what the router forwarded meanwhile, as a table with bars; `plot`: name of the SVG that `coral history`
/// draws of it afterwards, kept in CORAL_PLOT_DIR when that is set.
fn watched(rig: &Rig, what: &str, plot: &str, work: impl FnOnce()) {
    // The history is by seconds: its first one is not shared with what was before.
    pause(1100);
    let began = unix_time();
    let done = Arc::new(AtomicBool::new(false));
    let samples = std::thread::scope(|s| {
        let stop = done.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "a test that measures another process"
        )]
        let watcher = s.spawn(move || {
            let begin = Instant::now();
            let mut out = vec![(0.0, rig.routed()[1])];
            while !stop.load(Ordering::Relaxed) {
                pause(SAMPLE_MS);
                out.push((begin.elapsed().as_secs_f64(), rig.routed()[1]));
            }
            out
        });
        work();
        done.store(true, Ordering::Relaxed);
        watcher.join().expect("the watcher")
    });
    println!("router throughput, {what}\n{:>8} {:>8}", "s", "MiB/s");
    for w in samples.windows(2) {
        let rate = (w[1].1 - w[0].1) as f64 / (1 << 20) as f64 / (w[1].0 - w[0].0);
        println!(
            "{:>8.2} {rate:>8.1} {}",
            w[1].0,
            "#".repeat((rate / 10.0) as usize)
        );
    }
    // The work ends between two looks: nothing moves after the last that saw more.
    let end = samples
        .windows(2)
        .rposition(|w| w[1].1 > w[0].1)
        .map_or(0, |i| i + 1);
    let (first, last) = (samples[0], samples[end]);
    let bytes = last.1 - first.1;
    println!(
        "{:>8.2} {:>8.1} mean, {} MiB in all\n",
        last.0,
        bytes as f64 / (1 << 20) as f64 / last.0,
        bytes >> 20
    );

    // The same asked afterwards, of the router itself.
    let file = std::env::var_os("CORAL_PLOT_DIR")
        .map_or_else(|| rig.place.dir.path().into(), PathBuf::from)
        .join(plot);
    let history = |since: u64, more: &[&str]| {
        ok(coral()
            .arg("history")
            .arg(&rig.router_dir)
            .arg("--since")
            .arg(format!("{since}s"))
            .args(more))
    };
    until("all of it is in the router's history", || {
        // What was before is not asked for.
        let v: serde_json::Value =
            serde_json::from_str(&history(unix_time() - began + 1, &["--json"])).expect("JSON");
        let seen: u64 = v["seconds"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|s| s["routed_bytes"].as_u64())
            .sum();
        if seen < bytes {
            pause(300);
        }
        seen >= bytes
    });
    let table = history(unix_time() - began + 1, &["--svg", &file.to_string_lossy()]);
    println!("{table}{}\n", file.display());
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .contains("<polyline")
    );
}

#[test]
fn one_router_serves_two_file_systems() {
    if !common::is_root() {
        eprintln!("SKIPPED: needs root: network namespaces joined by devices");
        return;
    }
    in_network_namespace("one_router_serves_two_file_systems", || {
        let mut rig = Rig::start();
        let before = rig.routed();
        watched(
            &rig,
            "six clients, one file system",
            "router-one.svg",
            || workload(&rig, &[0], 1),
        );
        watched(
            &rig,
            "six clients, two file systems at once",
            "router-two.svg",
            || workload(&rig, &[0, 1], 2),
        );
        let after = rig.routed();
        let moved = (3 * 2 * CLIENTS * file_bytes()) as u64;
        assert!(
            after[1] - before[1] >= moved,
            "{} bytes forwarded, at least {moved} crossed",
            after[1] - before[1]
        );
        assert_eq!(after[2], 0, "nothing is dropped");

        // The router dies in the middle of the work and another takes its place: clients and servers go on by themselves.
        let (place, dir) = (&rig.place, rig.router_dir.clone());
        let old = rig.router.take();
        let new = std::thread::scope(|s| {
            let rig = &rig;
            let work = s.spawn(move || workload(rig, &[0, 1], 3));
            pause(300);
            old.expect("a router").kill();
            pause(500);
            let new = start_router(place, &dir);
            work.join().expect("the work goes on");
            new
        });
        rig.router = Some(new);
        assert!(rig.routed()[0] > 0);
        let (_, said) = fails(coral().args([
            "router",
            "--dir",
            &dir.to_string_lossy(),
            "--nid",
            "10.9.0.1@tcp",
            "--nid",
            "10.8.0.1@tcp1",
        ]));
        assert!(said.contains("a router runs in"), "{said}");
        rig.stop();
    });
}

/// The rules of a bad network, on the router that everything crosses: 1% lost, some late by up to 2 s.
fn bad_network(dir: &Path) {
    let lctl = |line: &str| {
        ok(coral()
            .args(["lctl", "--dir"])
            .arg(dir)
            .args(line.split(' ')))
    };
    lctl("net_drop_add -s * -d * -r 100");
    for (rate, late) in [(500, "2"), (200, "0.7"), (50, "0.05")] {
        lctl(&format!("net_delay_add -s * -d * -r {rate} -l {late}"));
    }
}

/// Messages the rules of a bad network have struck.
fn strikes(dir: &Path) -> u64 {
    let list = |kind: &str| {
        ok(coral()
            .args(["lctl", "--dir"])
            .arg(dir)
            .arg(format!("net_{kind}_list")))
    };
    let rules = list("drop") + &list("delay");
    // "..., msg f, STRUCK/MATCHED, PUT ..."
    rules
        .lines()
        .filter_map(|l| {
            l.split_once(", msg ")?
                .1
                .split(", ")
                .nth(1)?
                .split_once('/')?
                .0
                .parse::<u64>()
                .ok()
        })
        .sum()
}

/// Clients the servers have evicted.
fn evictions(place: &Place) -> u64 {
    let of = |fs: usize| {
        let text = ok(coral()
            .args(["status", "--json"])
            .arg(place.path(&format!("mds{fs}"))));
        let v: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        v["targets"]
            .as_array()
            .expect("targets")
            .iter()
            .map(|t| t["evictions"].as_u64().expect("evictions"))
            .sum::<u64>()
    };
    of(0) + of(1)
}

/// One client's part on one file system: files written, read back by others, renamed, appended to, removed. Its own model of what
/// must be there is compared at every step; a number says how much was done.
fn chaos_worker(mnt: &Path, other: &Path, id: usize, until_s: f64, begin: Instant) -> u64 {
    use std::io::Write;
    let mut rng = common::Rng::seeded(id as u64 + 1);
    let dir = format!("w{id}");
    std::fs::create_dir(mnt.join(&dir)).unwrap();
    let mut files: Vec<Option<Vec<u8>>> = vec![None; 8];
    let mut done = 0;
    while begin.elapsed().as_secs_f64() < until_s {
        let i = rng.below(8) as usize;
        let path = |root: &Path| root.join(&dir).join(format!("f{i}"));
        match (rng.below(6), &mut files[i]) {
            (0 | 1, slot) => {
                let data = pattern(rng.below(1 << 40), rng.below(3 << 20) as usize);
                std::fs::write(path(mnt), &data).unwrap();
                *slot = Some(data);
            }
            (2, Some(data)) => {
                let more = pattern(rng.below(1 << 40), rng.below(100_000) as usize);
                std::fs::OpenOptions::new()
                    .append(true)
                    .open(path(mnt))
                    .unwrap()
                    .write_all(&more)
                    .unwrap();
                data.extend(more);
            }
            (3, slot) if slot.is_some() => {
                std::fs::remove_file(path(mnt)).unwrap();
                *slot = None;
            }
            // What another client sees of it.
            (_, Some(data)) => assert!(
                std::fs::read(path(other)).unwrap() == *data,
                "worker {id}: f{i} differs"
            ),
            (_, None) => assert!(!path(other).exists(), "worker {id}: f{i} should be gone"),
        }
        done += 1;
    }
    let mut names: Vec<String> = std::fs::read_dir(other.join(&dir))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let want: Vec<String> = (0..8)
        .filter(|i| files[*i].is_some())
        .map(|i| format!("f{i}"))
        .collect();
    assert_eq!(names, want, "worker {id}");
    done
}

/// The whole rig under 1% loss, delays of up to 2 s, connections reset at random and a router killed and restarted, over TCP and
/// real mounts: for CORAL_CHAOS_REAL_S seconds (600). `cargo xtask chaos` runs it; the same scenario under a paused clock is
/// coral-client's test `chaos`.
#[test]
#[ignore = "ten minutes: run by cargo xtask chaos"]
fn a_bad_network_and_a_dying_router_for_minutes() {
    in_network_namespace("a_bad_network_and_a_dying_router_for_minutes", || {
        let seconds: f64 = std::env::var("CORAL_CHAOS_REAL_S")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(600.0);
        let mut rig = Rig::start();
        bad_network(&rig.router_dir);
        #[expect(clippy::disallowed_methods, reason = "a test by the machine's clock")]
        let begin = Instant::now();
        let (place, dir, mounts) = (&rig.place, rig.router_dir.clone(), &rig.mounts);
        let mut router = rig.router.take();
        let mut rng = common::Rng::seeded(77);
        let (mut resets, mut deaths, mut struck) = (0, 0, 0);
        let done: u64 = std::thread::scope(|s| {
            let work = |w: usize| {
                let (c, fs) = (w % CLIENTS, w / CLIENTS);
                s.spawn(move || {
                    chaos_worker(
                        &mounts[c][fs],
                        &mounts[(c + 1) % CLIENTS][fs],
                        w,
                        seconds,
                        begin,
                    )
                })
            };
            let jobs: Vec<_> = (0..2 * CLIENTS).map(work).collect();
            let mut since_death = 0;
            while jobs.iter().any(|j| !j.is_finished()) {
                pause(500 + rng.below(5000));
                since_death += 1;
                // Two deaths with nothing between them may be longer than the 20 s after which servers evict, as Lustre's do.
                if since_death < 4 || rng.below(6) > 0 {
                    let whom = format!(
                        "10.{CLIENT_NET}.0.{}@tcp2",
                        [11, 31][rng.below(2) as usize] + rng.below(CLIENTS as u64)
                    );
                    // a router that was just started does not know everybody yet
                    let reset = coral()
                        .args(["lctl", "--dir"])
                        .arg(&dir)
                        .args(["disconnect", &whom])
                        .output();
                    resets += u32::from(reset.expect("lctl runs").status.success());
                } else {
                    struck += strikes(&dir);
                    router.take().expect("a router").kill();
                    pause(100 + rng.below(6000));
                    since_death = 0;
                    router = Some(start_router(place, &dir));
                    bad_network(&dir);
                    deaths += 1;
                }
            }
            jobs.into_iter().map(|j| j.join().expect("a worker")).sum()
        });
        let seconds_taken = begin.elapsed().as_secs_f64();
        // an eviction is the servers' right where a machine is too slow to answer in time: told, not judged
        println!(
            "{done} operations in {seconds_taken:.0} s, all data right; {resets} connections reset, the router killed {deaths} times, {} evictions",
            evictions(place)
        );
        struck += strikes(&dir);
        ok(coral()
            .args(["lctl", "--dir"])
            .arg(&dir)
            .args(["net_drop_del", "-a"]));
        ok(coral()
            .args(["lctl", "--dir"])
            .arg(&dir)
            .args(["net_delay_del", "-a"]));
        assert!(
            done > 10 && resets > 0 && struck > 0,
            "{resets} resets, {struck} messages lost or late"
        );
        // A death comes after four resets at the earliest, on the mean after nine: every half minute.
        assert!(deaths > 0 || seconds < 300.0, "the router never died");
        rig.router = router;
        rig.stop();
    });
}

#[test]
fn a_router_that_cannot_be_says_why() {
    in_network_namespace("a_router_that_cannot_be_says_why", || {
        let place = Place::new();
        let (port, dir) = (
            place.port.to_string(),
            place.path("r").to_string_lossy().into_owned(),
        );
        let router = |more: &[&str]| {
            let (_, said) = fails(
                coral()
                    .args(["router", "--foreground", "--port", &port, "--dir", &dir])
                    .args(more),
            );
            assert!(!said.contains("panicked"), "{said}");
            said
        };
        let two = ["--nid", "127.0.0.4@tcp", "--nid", "127.1.0.4@tcp1"];
        let with = |route: &str| router(&[&two[..], &["--route", route]].concat());
        assert!(router(&["--nid", "127.0.0.4@nonet"]).contains("is no NID"));
        assert!(
            router(&["--nid", "127.0.0.4@o2ib", "--nid", "127.0.0.4@tcp"]).contains("only tcp")
        );
        assert!(router(&two[..2]).contains("two networks"));
        assert!(with("tcp9 127.0.0.4@tcp").contains("through this node itself"));
        assert!(with("tcp9 10.0.0.1@tcp8").contains("has no NID"));
        assert!(with("tcp1 127.0.0.9@tcp").contains("is on tcp1 itself"));
        assert!(with("tcp9").contains("has no gateway"));
        assert!(
            router(&["--nid", "10.99.0.4@tcp", "--nid", "127.1.0.4@tcp1"])
                .contains("no interface of this machine has that address")
        );
        assert!(router(&["--port", "0"]).contains("--port"));
        // A second node with the same NID on this machine.
        let first = Running::start(
            &[
                "router", "--dir", &dir, "--port", &port, two[0], two[1], two[2], two[3],
            ],
            Path::new(&dir),
            &[],
        );
        let (_, said) = fails(
            coral()
                .args(["router", "--foreground", "--port", &port, "--dir"])
                .arg(place.path("r2"))
                .args(two),
        );
        assert!(said.contains("is another node's on this machine"), "{said}");
        let text = ok(coral().arg("status").arg(&dir));
        assert!(
            text.contains("127.0.0.4@tcp 127.1.0.4@tcp1") && text.contains("large  buffers   1024"),
            "{text}"
        );
        ok(coral().arg("down").arg(&dir));
        drop(first);
    });
}
