//! `coral explain` where something is planted for real: a router with two buffers, a network that is full, an RPC that is not
//! answered, an MDT whose disk syncs slowly, a client that swaps. (`explain.rs` has a far server, too few RPCs in flight and a busy
//! core; `crates/lab/tests/planted.rs` all of them in a simulation.)

mod common;

use common::load::{Burner, Load, alone};
use common::{Place, Running, coral, is_root, ok};
use coral_powerfs::{Platters, PowerFs};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long the router keeps each message that goes to the client.
const HELD_S: &str = "0.01";
/// How long the MDT's disk takes for a sync.
const SYNC_MS: u64 = 40;
/// Memory of a client and of what is beside it, and what the program beside it uses over and over.
const LIMIT_MIB: u64 = 48;
const USED_MIB: u64 = 96;
const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;

fn format(what: &[&str], dir: &Path) {
    let mut c = coral();
    ok(c.args(["format", "--fsname", "fs"]).args(what).arg(dir));
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Servers on 127.0.0.N, one for each list of directories, with more arguments.
fn serve(place: &Place, all: &[&[PathBuf]], more: &[&str]) -> Vec<Running> {
    let port = place.port.to_string();
    let one = |(i, dirs): (usize, &&[PathBuf])| {
        let nid = format!("127.0.0.{}@tcp", i + 2);
        let dirs: Vec<String> = dirs.iter().map(|d| text(d)).collect();
        let mut args = vec!["serve"];
        args.extend(dirs.iter().map(String::as_str));
        args.extend(["--nid", &nid, "--port", &port]);
        args.extend(more);
        let log = place.path(&format!("server{i}"));
        Running::start_logged(&args, Path::new(&dirs[0]), &log)
    };
    all.iter().enumerate().map(one).collect()
}

fn mount(place: &Place, more: &[&str]) -> (PathBuf, Running) {
    let (mnt, port) = (place.make("mnt"), place.port.to_string());
    let dir = text(&mnt);
    let mut args = vec!["mount", "127.0.0.2@tcp:/fs", &dir, "--port", &port];
    args.extend(more);
    let client = Running::start(&args, &place.path("client"), &[&mnt]);
    (mnt, client)
}

/// The verdict of a mount and the processes at these places, watched for so long.
fn explained(mnt: &Path, places: &[PathBuf], seconds: &str) -> String {
    let mut c = coral();
    let said = ok(c
        .arg("explain")
        .arg(mnt)
        .args(places)
        .args(["--watch", seconds]));
    println!("{said}");
    said
}

/// Reads of 1 MiB past all caches, of files that lie on all OSTs in turn.
fn readers(mnt: &Path, programs: usize) -> Load {
    for p in 0..programs {
        std::fs::write(mnt.join(format!("f{p}")), vec![p as u8; 8 << 20]).expect("written");
    }
    let mnt = mnt.to_owned();
    Load::start(programs, move |p, round| {
        let mut open = std::fs::File::options();
        let file = open.read(true).custom_flags(libc::O_DIRECT);
        let file = file.open(mnt.join(format!("f{p}"))).expect("opened");
        let mut aligned = vec![0; 2 * MIB as usize];
        let skip = aligned.as_ptr().align_offset(4096);
        let into = &mut aligned[skip..skip + MIB as usize];
        file.read_exact_at(into, round % 8 * MIB).expect("read");
    })
}

/// Reads through a router that has so many large buffers and keeps each message for a while.
fn through_router(buffers: &str) -> String {
    let place = Place::new();
    let port = place.port.to_string();
    let dirs = ["mds", "ost0", "ost1"].map(|n| place.path(n));
    format(&["--mgs", "--mdt", "0"], &dirs[0]);
    format(&["--ost", "0", "--mgsnode", "127.0.0.2@tcp"], &dirs[1]);
    format(&["--ost", "1", "--mgsnode", "127.0.0.2@tcp"], &dirs[2]);
    let router_dir = place.make("router");
    let at = text(&router_dir);
    let mut args = vec!["router", "--dir", &at, "--port", &port, "--large", buffers];
    args.extend(["--nid", "127.0.0.9@tcp", "--nid", "127.0.0.10@tcp1"]);
    let router = Running::start(&args, &router_dir, &[]);
    let apart: Vec<&[PathBuf]> = dirs.iter().map(std::slice::from_ref).collect();
    let servers = serve(&place, &apart, &["--route", "tcp1 127.0.0.9@tcp"]);
    let route = "tcp 127.0.0.10@tcp1";
    let (mnt, client) = mount(&place, &["--nid", "127.0.0.20@tcp1", "--route", route]);
    ok(coral()
        .args([
            "lctl",
            "--dir",
            &at,
            "net_delay_add",
            "-s",
            "*",
            "-d",
            "*@tcp1",
        ])
        .args(["-r", "1", "-l", HELD_S]));
    let load = readers(&mnt, 16);
    let mut places = dirs.to_vec();
    places.push(router_dir);
    let said = explained(&mnt, &places, "3");
    drop(load);
    client.stop();
    servers.into_iter().rev().for_each(Running::stop);
    router.stop();
    said
}

#[test]
fn a_router_with_two_buffers_is_named() {
    alone("a_router_with_two_buffers_is_named", || {
        let said = through_router("2");
        assert!(
            said.contains("verdict: router buffers (127.0.0.9@tcp)"),
            "{said}"
        );
        assert!(
            said.contains("all of its 2 large buffers were taken"),
            "{said}"
        );
        let said = through_router("1024");
        assert!(!said.contains("router buffers ("), "it has enough: {said}");
    });
}

#[test]
fn an_mdt_with_a_slow_sync_is_named() {
    alone("an_mdt_with_a_slow_sync_is_named", || {
        let place = Place::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let at = place.make("disk");
        let disk = PowerFs::on(Platters::empty(), &at, 1, runtime.handle()).expect("a mount");
        let dirs = [at.join("mds"), place.path("ost0")];
        format(&["--mgs", "--mdt", "0"], &dirs[0]);
        format(&["--ost", "0", "--mgsnode", "127.0.0.2@tcp"], &dirs[1]);
        let apart: Vec<&[PathBuf]> = dirs.iter().map(std::slice::from_ref).collect();
        let servers = serve(&place, &apart, &[]);
        let (mnt, client) = mount(&place, &["--nid", "127.0.0.20@tcp"]);
        disk.slow_syncs(SYNC_MS);
        let within = mnt.clone();
        let load = Load::start(4, move |p, round| {
            let dir = within.join(format!("d{p}-{round}"));
            std::fs::create_dir(&dir).expect("made");
            let made = std::fs::File::open(&dir).expect("opened");
            made.sync_all().expect("synced");
            std::fs::remove_dir(&dir).expect("removed");
        });
        let said = explained(&mnt, &dirs, "3");
        assert!(
            said.contains("verdict: slow storage (fs-MDT0000)"),
            "{said}"
        );
        let figure = said.split("storage takes ").nth(1).expect("a figure");
        let number = figure.split(' ').next().and_then(|n| n.parse::<f64>().ok());
        let is_sync = number.is_some_and(|ms| ms >= SYNC_MS as f64);
        assert!(
            is_sync && figure.contains(" ms an RPC"),
            "{SYNC_MS} ms or more: {said}"
        );
        drop(load);
        disk.slow_syncs(0);
        client.stop();
        servers.into_iter().rev().for_each(Running::stop);
        drop(disk.off());
    });
}

/// Programs write to the OSTs, past their cache, over a loopback device of this rate; without one it has no limit.
fn over_a_network(rate: Option<&str>) -> String {
    let place = Place::new();
    let dirs = ["mds", "ost0", "ost1"].map(|n| place.path(n));
    format(&["--mgs", "--mdt", "0"], &dirs[0]);
    for (i, dir) in ["0", "1"].iter().zip(&dirs[1..]) {
        format(&["--ost", i, "--mgsnode", "127.0.0.2@tcp"], dir);
    }
    let apart: Vec<&[PathBuf]> = dirs.iter().map(std::slice::from_ref).collect();
    let servers = serve(&place, &apart, &[]);
    let (mnt, client) = mount(&place, &["--nid", "127.0.0.20@tcp"]);
    let tc = |args: &str| ok(Command::new("tc").args(args.split(' ')));
    if let Some(rate) = rate {
        tc(&format!(
            "qdisc add dev lo root tbf rate {rate} burst 256kb latency 400ms"
        ));
    }
    let within = mnt.clone();
    let load = Load::start(4, move |p, round| {
        let name = within.join(format!("w{p}"));
        let mut open = std::fs::File::options();
        let file = open.create(true).truncate(false).write(true);
        let file = file.open(name).expect("opened");
        file.write_all_at(&[7; MIB as usize], round % 16 * MIB)
            .expect("written");
        file.sync_all().expect("synced");
    });
    let said = explained(&mnt, &dirs, "3");
    drop(load);
    if rate.is_some() {
        tc("qdisc del dev lo root");
    }
    client.stop();
    servers.into_iter().rev().for_each(Running::stop);
    said
}

#[test]
fn a_saturated_network_is_named() {
    alone("a_saturated_network_is_named", || {
        let said = over_a_network(Some("80mbit"));
        assert!(said.contains("verdict: saturated network ("), "{said}");
        assert!(said.contains("from 127.0.0.20@tcp to 127.0.0."), "{said}");
        // 80 Mbit/s are 10 MB/s, of which headers take some
        let ceiling = said.split("ceiling: ").nth(1).expect("a ceiling");
        let (number, rest) = ceiling.split_once(' ').expect("a number");
        let rate: f64 = number.parse().expect("a number");
        assert!(
            (2.0..10.5).contains(&rate) && rest.starts_with("MB/s"),
            "{said}"
        );
        let said = over_a_network(None);
        assert!(
            !said.contains("saturated network ("),
            "there is no limit: {said}"
        );
    });
}

/// A program reads a file whose RPCs take a minute: nothing ends while it is looked at. It does nothing else, as the end of the file
/// would be asked for, too.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a program that waits for a mount"
)]
fn an_operation_that_does_not_end_is_told() {
    alone("an_operation_that_does_not_end_is_told", || {
        let place = Place::new();
        let dirs = [place.path("mds"), place.path("ost0")];
        format(&["--mgs", "--mdt", "0"], &dirs[0]);
        format(&["--ost", "0", "--mgsnode", "127.0.0.2@tcp"], &dirs[1]);
        let apart: Vec<&[PathBuf]> = dirs.iter().map(std::slice::from_ref).collect();
        let servers = serve(&place, &apart, &[]);
        let (mnt, client) = mount(&place, &["--nid", "127.0.0.20@tcp"]);
        let file = mnt.join("f");
        std::fs::write(&file, vec![7; MIB as usize]).expect("written");
        let written = std::fs::File::open(&file).expect("opened");
        written.sync_all().expect("synced");
        // Past the cache, which has it.
        let mut open = std::fs::OpenOptions::new();
        let open = open.read(true).custom_flags(libc::O_DIRECT).open(&file);
        let past_the_cache = open.expect("opened");
        let mut held = coral();
        let held = held.args(["lctl", "--dir"]).arg(&mnt);
        ok(held.args("net_delay_add -s * -d 127.0.0.3@tcp -r 1 -l 60".split(' ')));
        let reader = std::thread::spawn(move || {
            let (mut pages, all) = (vec![0_u8; 3 * PAGE], 2 * PAGE);
            let at = pages.as_ptr().align_offset(PAGE);
            past_the_cache.read_at(&mut pages[at..at + all], 0)
        });
        let mut said = String::new();
        common::until("the read is told", || {
            said = explained(&mnt, &dirs, "0.2");
            said.contains("not ended: ")
        });
        let told = said.lines().find(|l| l.starts_with("not ended: "));
        let told = told.expect("a line");
        assert!(told.contains(": READ on [0x"), "{said}");
        assert!(
            told.contains("its OST_READ to fs-OST0000 ") && told.ends_with("sent and not answered"),
            "{said}"
        );
        client.kill();
        let read = reader.join().expect("it ends with the mount");
        assert!(read.is_err(), "it was never answered");
        servers.into_iter().rev().for_each(Running::stop);
    });
}

/// Swap space that ends with the test.
struct SwapFile(PathBuf);

impl SwapFile {
    fn on(file: PathBuf) -> Option<SwapFile> {
        let made = std::fs::write(&file, vec![0; (2 * USED_MIB * MIB) as usize]);
        made.expect("a file for swap");
        let done = |c: &mut Command| c.output().is_ok_and(|o| o.status.success());
        let is_on = done(Command::new("chmod").arg("600").arg(&file))
            && done(Command::new("mkswap").arg(&file))
            && done(Command::new("swapon").arg(&file));
        is_on.then_some(SwapFile(file))
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
    }
}

/// A control group with a limit of memory, which ends with the test.
struct Group(PathBuf);

impl Group {
    fn limited(mib: u64) -> Option<Group> {
        let name = format!("coral-planted-{}", std::process::id());
        let bytes = (mib * MIB).to_string();
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        kinds.iter().find_map(|(top, limit)| {
            let dir = Path::new(top).join(&name);
            std::fs::create_dir(&dir).ok()?;
            let group = Group(dir);
            let file = group.0.join(limit);
            (file.exists() && std::fs::write(file, &bytes).is_ok()).then_some(group)
        })
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("moved");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_client_that_swaps_is_named() {
    alone("a_client_that_swaps_is_named", || {
        let place = Place::new();
        let group = is_root().then(|| Group::limited(LIMIT_MIB)).flatten();
        let swap = group
            .is_some()
            .then(|| SwapFile::on(place.path("swap")))
            .flatten();
        let (Some(group), Some(_swap)) = (group, swap) else {
            eprintln!(
                "no swap space or no control group of memory can be had: nothing was planted"
            );
            return;
        };
        let dirs = [place.path("mds"), place.path("ost0")];
        format(&["--mgs", "--mdt", "0"], &dirs[0]);
        format(&["--ost", "0", "--mgsnode", "127.0.0.2@tcp"], &dirs[1]);
        let servers = serve(&place, &[&dirs[..]], &[]);
        let (mnt, client) = mount(&place, &["--nid", "127.0.0.20@tcp"]);
        group.take(client.pid());
        // A program beside it uses more memory than both may have.
        let count = format!("bs={USED_MIB}M");
        let hog = Burner::start(Command::new("dd").args(["if=/dev/zero", "of=/dev/null", &count]));
        group.take(hog.pid());
        let within = mnt.clone();
        let load = Load::start(2, move |p, round| {
            let name = within.join(format!("{p}-{round}"));
            std::fs::File::create(&name).expect("made");
            std::fs::remove_file(&name).expect("removed");
        });
        let said = explained(&mnt, &dirs[..1], "3");
        assert!(said.contains("verdict: swapping (this machine)"), "{said}");
        assert!(said.contains("pages/s come back from swap"), "{said}");
        drop((load, hog));
        client.stop();
        servers.into_iter().for_each(Running::stop);
    });
}
