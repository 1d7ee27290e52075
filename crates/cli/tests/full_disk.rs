//! A full disk under a whole file system: what write(2) accepted is there, or fsync says that it is not; and the way out of it
//! is to remove something, not to restart. On ext4, xfs, btrfs (loop devices) and tmpfs, with one, two and four OSTs.

mod common;

use common::{Place, Running, coral, in_namespace, is_root, ok, pattern, pause, until};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;
/// xfs wants 300 MB at least.
const DISK_MB: u32 = 320;

/// Mounts an empty file system of `kind`; false, with the reason on standard error, where this machine cannot.
fn mount_disk(kind: &str, at: &Path, image: &Path) -> bool {
    let done = |c: &mut Command| {
        c.stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    std::fs::create_dir_all(at).unwrap();
    if kind == "tmpfs" {
        ok(Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={DISK_MB}m,nr_inodes=20000"),
                "tmpfs",
            ])
            .arg(at));
        return true;
    }
    File::create(image)
        .unwrap()
        .set_len(u64::from(DISK_MB) << 20)
        .unwrap();
    let mkfs = format!("mkfs.{kind}");
    let quiet = if kind == "ext4" { "-F" } else { "-f" };
    if !done(Command::new(&mkfs).arg(quiet).arg(image)) {
        eprintln!(
            "skipped: {mkfs} is not here or failed (Debian: e2fsprogs, xfsprogs, btrfs-progs; `cargo xtask setup` installs them)"
        );
        return false;
    }
    // btrfs gives removed space back with its next commit, 30 s later at most unless told otherwise
    let options = if kind == "btrfs" {
        "loop,commit=5"
    } else {
        "loop"
    };
    if !done(
        Command::new("mount")
            .args(["-o", options])
            .arg(image)
            .arg(at),
    ) {
        eprintln!("skipped: no loop device, or this kernel has no {kind}");
        return false;
    }
    true
}

/// A file system on a disk of its own.
struct Rig {
    _place: Place,
    disk: PathBuf,
    mnt: PathBuf,
    args: Vec<String>,
}

impl Rig {
    fn new(kind: &str, osts: u32) -> Option<Rig> {
        if !is_root() && kind != "tmpfs" {
            eprintln!("skipped: loop devices need root");
            return None;
        }
        let place = Place::new();
        let (disk, mnt) = (place.path("disk"), place.make("mnt"));
        if !mount_disk(kind, &disk, &place.path("image")) {
            return None;
        }
        let data = disk.join("data").to_string_lossy().into_owned();
        let args = [
            "up",
            &data,
            "--mount",
            &mnt.to_string_lossy(),
            "--port",
            &place.port.to_string(),
            "--osts",
            &osts.to_string(),
            "--stripe-count",
            "-1",
        ];
        let args = args.iter().map(ToString::to_string).collect();
        Some(Rig {
            _place: place,
            disk,
            mnt,
            args,
        })
    }

    fn up(&self) -> Running {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        Running::start(&args, &self.disk.join("data"), &[&self.mnt])
    }
}

/// What became of writing a file until there was no room.
struct Written {
    path: PathBuf,
    seed: u64,
    /// Bytes that write(2) took.
    accepted: usize,
    /// What fsync said.
    synced: std::io::Result<()>,
}

/// Blocks of 1 MiB until ENOSPC or `most`.
fn write_until_full(path: PathBuf, seed: u64, most: usize) -> Written {
    let mut f = File::create(&path).unwrap();
    let mut accepted = 0;
    let mut full = false;
    while !full && accepted < most {
        let block = pattern(seed + (accepted / MIB) as u64, MIB);
        let mut done = 0;
        while done < MIB {
            match f.write(&block[done..]) {
                Ok(n) => done += n,
                Err(e) => {
                    // EIO: how a handle may hear of what was lost
                    assert!(
                        [Some(libc::ENOSPC), Some(libc::EIO)].contains(&e.raw_os_error()),
                        "{e}"
                    );
                    full = true;
                    break;
                }
            }
        }
        accepted += done;
    }
    let synced = f.sync_all();
    Written {
        path,
        seed,
        accepted,
        synced,
    }
}

impl Written {
    /// The first byte that is not as it was accepted, if any.
    fn differs(&self) -> Option<usize> {
        let f = File::open(&self.path).unwrap();
        let mut buf = vec![0; MIB];
        for at in (0..self.accepted).step_by(MIB) {
            let n = MIB.min(self.accepted - at);
            let mut got = 0;
            while got < n {
                match f.read_at(&mut buf[got..n], (at + got) as u64).unwrap() {
                    0 => return Some(at + got),
                    k => got += k,
                }
            }
            let want = pattern(self.seed + (at / MIB) as u64, MIB);
            if buf[..n] != want[..n] {
                return (0..n).find(|i| buf[*i] != want[*i]).map(|i| at + i);
            }
        }
        None
    }

    /// Nothing was lost without a word.
    fn verify(&self, what: &str) {
        let differs = self.differs();
        println!(
            "{what}: {} bytes accepted, fsync {:?}, first difference {differs:?}",
            self.accepted, self.synced
        );
        if self.synced.is_ok() {
            assert_eq!(
                differs, None,
                "{what}: write(2) accepted {} bytes, fsync was right with them",
                self.accepted
            );
            assert_eq!(
                std::fs::metadata(&self.path).unwrap().len() as usize,
                self.accepted,
                "{what}: the size"
            );
        }
    }
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap_or_else(|e| panic!("remove {}: {e}", path.display()));
}

/// Nobody else writes to the disk: every byte that write(2) took is there, and fsync says so.
fn every_accepted_byte_lands(kind: &str) {
    for osts in [1, 2, 4] {
        let Some(rig) = Rig::new(kind, osts) else {
            return;
        };
        let running = rig.up();
        for round in 0..2 {
            let what = format!("{kind}, {osts} OSTs, round {round}");
            let room = statvfs_avail(&rig.mnt);
            let written = match round {
                0 => vec![write_until_full(rig.mnt.join("one"), 1, usize::MAX)],
                // several at once, as different programs
                _ => std::thread::scope(|s| {
                    let one = |i: u64| {
                        write_until_full(rig.mnt.join(format!("f{i}")), 1000 * i, usize::MAX)
                    };
                    let all: Vec<_> = (0..3).map(|i| s.spawn(move || one(i))).collect();
                    all.into_iter().map(|t| t.join().unwrap()).collect()
                }),
            };
            let total: usize = written.iter().map(|w| w.accepted).sum();
            println!("{what}: {} of {} MiB", total / MIB, room >> 20);
            assert!(total as u64 > room / 2, "{what}: too little fits");
            for w in &written {
                w.verify(&what);
                assert!(
                    w.synced.is_ok(),
                    "{what}: fsync: {:?} after {} accepted bytes",
                    w.synced,
                    w.accepted
                );
                assert_eq!(w.differs(), None, "{what}");
            }
            written.iter().for_each(|w| remove(&w.path));
            until("the space is free again", || {
                statvfs_avail(&rig.mnt) > room / 10 * 9
            });
        }
        running.stop();
        ok(coral().arg("check").arg(rig.disk.join("data")));
        ok(Command::new("umount").arg(&rig.disk));
    }
}

/// How a btrfs has divided its space.
fn say_space(kind: &str, disk: &Path) {
    if kind == "btrfs" {
        println!(
            "{}{} bytes available",
            ok(Command::new("btrfs").args(["filesystem", "df"]).arg(disk)),
            statvfs_avail(disk)
        );
    }
}

fn statvfs_avail(path: &Path) -> u64 {
    let s = rustix::fs::statvfs(path).unwrap();
    s.f_bavail * s.f_frsize
}

/// Somebody else fills the disk to its last byte while a program writes: never silence, and when there is room again all goes on
/// without a restart.
fn another_fills_the_disk(kind: &str) {
    let Some(rig) = Rig::new(kind, 2) else { return };
    let running = rig.up();
    let room = statvfs_avail(&rig.mnt);
    std::fs::create_dir(rig.mnt.join("dir")).unwrap();
    for i in 0..50 {
        std::fs::write(rig.mnt.join(format!("dir/small{i}")), pattern(i, 5000)).unwrap();
    }
    for round in 0..2 {
        let what = format!("{kind}, filled by another, round {round}");
        let other = rig.disk.join("other");
        let written = std::thread::scope(|s| {
            s.spawn(|| fill(&other));
            write_until_full(rig.mnt.join("ours"), 7, usize::MAX)
        });
        written.verify(&what);
        fill(&other);
        // a full disk: reading and removing work, a change says that there is no room
        assert_eq!(
            std::fs::read(rig.mnt.join("dir/small3")).unwrap(),
            pattern(3, 5000),
            "{what}"
        );
        assert_eq!(
            std::fs::read_dir(rig.mnt.join("dir")).unwrap().count(),
            50 - round,
            "{what}"
        );
        for i in 0..100 {
            let Err(e) = std::fs::create_dir(rig.mnt.join(format!("dir/d{i}"))) else {
                continue;
            };
            assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{what}: {e}");
        }
        for i in 0..100 {
            if let Err(e) = std::fs::remove_dir(rig.mnt.join(format!("dir/d{i}"))) {
                assert_eq!(e.raw_os_error(), Some(libc::ENOENT), "{what}: rmdir: {e}");
            }
        }
        say_space(kind, &rig.disk);
        remove(&rig.mnt.join(format!("dir/small{}", 10 + round)));
        remove(&written.path);
        // room again: all as before
        remove(&other);
        until("there is room again", || {
            std::fs::create_dir(rig.mnt.join("again")).is_ok()
        });
        std::fs::remove_dir(rig.mnt.join("again")).unwrap();
        say_space(kind, &rig.disk);
        until("space is free again", || statvfs_avail(&rig.mnt) > room / 2);
        let after = write_until_full(rig.mnt.join("after"), 9, 20 * MIB);
        after.verify(&what);
        assert!(after.synced.is_ok() && after.accepted == 20 * MIB, "{what}");
        remove(&after.path);
    }
    running.stop();
    ok(coral().arg("check").arg(rig.disk.join("data")));
}

/// Writes until not a byte is left.
fn fill(path: &Path) {
    let mut f = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    let (mut len, mut wrote) = (MIB, 0);
    while len > 0 {
        match f.write(&vec![0x55; len]) {
            Ok(1..) => {
                wrote += 1;
                // what others gave back meanwhile is taken too, and not by the byte
                len = if wrote % 1000 == 0 { MIB } else { len };
                pause(1);
            }
            Ok(0) | Err(_) => len /= 2,
        }
    }
    let _ = f.sync_all();
}

/// Not a byte and not an inode is left, by somebody else's doing: it starts, reads and removes; then there is room again.
fn starts_without_room(kind: &str) {
    let Some(rig) = Rig::new(kind, 2) else { return };
    let running = rig.up();
    std::fs::create_dir(rig.mnt.join("dir")).unwrap();
    for i in 0..200 {
        std::fs::write(rig.mnt.join(format!("dir/small{i}")), pattern(i, 20_000)).unwrap();
    }
    let big = write_until_full(rig.mnt.join("big"), 3, 40 * MIB);
    assert!(big.synced.is_ok() && big.accepted == 40 * MIB);
    running.stop();
    let other = rig.disk.join("other");
    std::fs::create_dir(&other).unwrap();
    let mut names = 0_u64;
    while File::create(other.join(names.to_string())).is_ok() {
        names += 1;
        // where inodes are made as they are wanted, bytes are what runs out
        if names == 50_000 {
            break;
        }
    }
    fill(&other.join("0"));
    let what = format!("{kind}, {names} names");
    let free = rustix::fs::statvfs(&rig.disk).unwrap();
    println!(
        "{what}: {} blocks and {} inodes left",
        free.f_bavail, free.f_ffree
    );
    // in the background, as users do, with other flags than before: they cannot be kept
    let mut args: Vec<&str> = rig.args.iter().map(String::as_str).collect();
    args.extend(["--stripe-size", "2M"]);
    ok(coral().args(&args));
    let status = ok(coral().arg("status").arg(rig.disk.join("data")));
    println!("{status}");
    assert!(status.contains("trouble: the disk"), "{status}");
    assert_eq!(
        std::fs::read(rig.mnt.join("dir/small7")).unwrap(),
        pattern(7, 20_000),
        "{what}"
    );
    big.verify(&what);
    for i in 0..100 {
        remove(&rig.mnt.join(format!("dir/small{i}")));
    }
    remove(&big.path);
    until("what was removed gives room", || {
        std::fs::write(rig.mnt.join("new"), "new").is_ok()
            || std::fs::remove_dir_all(&other).is_ok()
    });
    let _ = std::fs::remove_dir_all(&other);
    until("there is room again", || {
        std::fs::write(rig.mnt.join("new2"), "new").is_ok()
    });
    until("the trouble is over", || {
        !ok(coral().arg("status").arg(rig.disk.join("data"))).contains("trouble")
    });
    ok(coral().arg("down").arg(rig.disk.join("data")));
    ok(coral().arg("check").arg(rig.disk.join("data")));
}

#[test]
fn it_starts_without_room_on_tmpfs() {
    in_namespace("it_starts_without_room_on_tmpfs", || {
        starts_without_room("tmpfs")
    });
}

#[test]
fn it_starts_without_room_on_ext4() {
    in_namespace("it_starts_without_room_on_ext4", || {
        starts_without_room("ext4")
    });
}

#[test]
fn it_starts_without_room_on_xfs() {
    in_namespace("it_starts_without_room_on_xfs", || {
        starts_without_room("xfs")
    });
}

#[test]
fn it_starts_without_room_on_btrfs() {
    in_namespace("it_starts_without_room_on_btrfs", || {
        starts_without_room("btrfs")
    });
}

#[test]
fn every_accepted_byte_lands_on_tmpfs() {
    in_namespace("every_accepted_byte_lands_on_tmpfs", || {
        every_accepted_byte_lands("tmpfs")
    });
}

#[test]
fn every_accepted_byte_lands_on_ext4() {
    in_namespace("every_accepted_byte_lands_on_ext4", || {
        every_accepted_byte_lands("ext4")
    });
}

#[test]
fn every_accepted_byte_lands_on_xfs() {
    in_namespace("every_accepted_byte_lands_on_xfs", || {
        every_accepted_byte_lands("xfs")
    });
}

#[test]
fn every_accepted_byte_lands_on_btrfs() {
    in_namespace("every_accepted_byte_lands_on_btrfs", || {
        every_accepted_byte_lands("btrfs")
    });
}

#[test]
fn a_disk_filled_by_another_passes_on_tmpfs() {
    in_namespace("a_disk_filled_by_another_passes_on_tmpfs", || {
        another_fills_the_disk("tmpfs")
    });
}

#[test]
fn a_disk_filled_by_another_passes_on_ext4() {
    in_namespace("a_disk_filled_by_another_passes_on_ext4", || {
        another_fills_the_disk("ext4")
    });
}

#[test]
fn a_disk_filled_by_another_passes_on_xfs() {
    in_namespace("a_disk_filled_by_another_passes_on_xfs", || {
        another_fills_the_disk("xfs")
    });
}

#[test]
fn a_disk_filled_by_another_passes_on_btrfs() {
    in_namespace("a_disk_filled_by_another_passes_on_btrfs", || {
        another_fills_the_disk("btrfs")
    });
}
