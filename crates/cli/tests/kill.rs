//! Nothing is lost: what fsync acknowledged survives kill -9, and a server's death is only a pause to its clients.

mod common;

use common::{Place, Rng, Running, coral, in_namespace, ok, pattern, pause};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Kills of the whole process in one test.
const KILLS: u64 = 50;
/// Writers that fsync meanwhile.
const WRITERS: u64 = 4;

/// A file whose content and name an fsync acknowledged.
#[derive(Clone)]
struct Acked {
    path: PathBuf,
    seed: u64,
    len: usize,
}

/// Writes files into `dir` until the mount fails: content, fsync of the file, fsync of the directory; then it counts as acknowledged.
fn writer(dir: PathBuf, id: u64, round: u64, acked: Arc<Mutex<Vec<Acked>>>, stop: Arc<AtomicBool>) {
    let mut rng = Rng::seeded(id * 1000 + round);
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (seed, len) = (rng.next(), 1 + rng.below(300_000) as usize);
        let path = dir.join(format!("w{id}-r{round}-{n}"));
        let one = || -> std::io::Result<()> {
            let mut f = File::create(&path)?;
            f.write_all(&pattern(seed, len))?;
            f.sync_all()?;
            File::open(&dir)?.sync_all()
        };
        if one().is_err() {
            return;
        }
        acked.lock().unwrap().push(Acked { path, seed, len });
    }
}

fn verify(list: &[Acked]) {
    for a in list {
        let got = std::fs::read(&a.path)
            .unwrap_or_else(|e| panic!("{} was fsynced and is lost: {e}", a.path.display()));
        assert!(
            got == pattern(a.seed, a.len),
            "{} was fsynced and has other content ({} bytes of {})",
            a.path.display(),
            got.len(),
            a.len
        );
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test whose threads make system calls on a mount"
)]
fn fsynced_bytes_and_names_survive_kill_9() {
    in_namespace("fsynced_bytes_and_names_survive_kill_9", || {
        let place = Place::new();
        let mut rng = Rng::from_env();
        let acked: Arc<Mutex<Vec<Acked>>> = Arc::default();
        let mut verified = 0;
        for round in 0..KILLS {
            let running = place.up(&["--stripe-count", "2", "--stripe-size", "64K"]);
            let mnt = place.make("mnt");
            {
                let mut list = acked.lock().unwrap();
                verify(&list);
                verified += list.len();
                // bounded: what has survived two kills is removed, which exercises destroys as well
                while list.len() > 400 {
                    std::fs::remove_file(list.remove(0).path).unwrap();
                }
            }
            let stop = Arc::new(AtomicBool::new(false));
            let writers: Vec<_> = (0..WRITERS)
                .map(|id| {
                    let (dir, acked, stop) = (mnt.clone(), acked.clone(), stop.clone());
                    std::thread::spawn(move || writer(dir, id, round, acked, stop))
                })
                .collect();
            pause(50 + rng.below(700));
            running.kill();
            stop.store(true, Ordering::Relaxed);
            for w in writers {
                w.join().unwrap();
            }
        }
        let running = place.up(&[]);
        verify(&acked.lock().unwrap());
        running.stop();
        ok(coral().arg("check").arg(place.path("data")));
        println!("{KILLS} kills, {verified} times a file fsynced before was found whole");
        assert!(verified > 0, "the writers never got anything acknowledged");
    });
}

#[test]
fn a_killed_server_is_only_a_pause_to_its_client() {
    in_namespace("a_killed_server_is_only_a_pause_to_its_client", || {
        let place = Place::new();
        let mut rng = Rng::from_env();
        let (data, mnt) = (place.path("data"), place.make("mnt"));
        let port = place.port.to_string();
        let serve = || {
            Running::start(
                &["up", &data.to_string_lossy(), "--port", &port],
                &data,
                &[],
            )
        };
        let mut server = serve();
        let source = "127.0.0.1@tcp:/coral";
        let client = Running::start(
            &["mount", source, &mnt.to_string_lossy(), "--port", &port],
            &place.path("client"),
            &[&mnt],
        );
        let writers: Vec<_> = (0..WRITERS).map(|id| spawn_long_writer(&mnt, id)).collect();
        for _ in 0..5 {
            pause(300 + rng.below(1500));
            server.kill();
            pause(rng.below(1500));
            server = serve();
        }
        for (path, seed, handle) in writers {
            let blocks = handle.join().expect("a writer failed");
            check_long(&path, seed, blocks);
        }
        ok(Command::new("umount").arg(&mnt));
        drop(client);
        server.stop();
        ok(coral().arg("check").arg(&data));
    });
}

/// Size of one write of the long writers, bytes.
const BLOCK: usize = 64 * 1024;
/// Writes a long writer does, with an fsync now and then and a rename in the middle.
const BLOCKS: u64 = 400;

type LongWriter = (PathBuf, u64, std::thread::JoinHandle<u64>);

/// A writer that must not see any error although the server dies under it.
#[expect(
    clippy::disallowed_methods,
    reason = "a test whose threads make system calls on a mount"
)]
fn spawn_long_writer(mnt: &Path, id: u64) -> LongWriter {
    let (first, last) = (
        mnt.join(format!("long{id}.tmp")),
        mnt.join(format!("long{id}")),
    );
    let (seed, path) = (id * 7919, last.clone());
    let handle = std::thread::spawn(move || {
        let f = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(&first)
            .expect("create");
        for b in 0..BLOCKS {
            f.write_all_at(&pattern(seed + b, BLOCK), b * BLOCK as u64)
                .expect("write");
            if b % 16 == 0 {
                f.sync_all().expect("fsync");
            }
            if b == BLOCKS / 2 {
                std::fs::rename(&first, &last).expect("rename");
            }
            pause(15);
        }
        f.sync_all().expect("fsync");
        BLOCKS
    });
    (path, seed, handle)
}

fn check_long(path: &Path, seed: u64, blocks: u64) {
    let f = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(f.metadata().unwrap().len(), blocks * BLOCK as u64);
    let mut got = vec![0; BLOCK];
    for b in 0..blocks {
        f.read_exact_at(&mut got, b * BLOCK as u64).unwrap();
        assert!(
            got == pattern(seed + b, BLOCK),
            "{}: block {b} differs",
            path.display()
        );
    }
}
