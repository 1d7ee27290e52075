//! The FUSE layer through the kernel: real mounts of the in-memory file system, each in a mount namespace of its own.
//! Needs root and /dev/fuse; says so and passes without.

#[path = "../examples/memfs/locks.rs"]
mod locks;
#[path = "../examples/memfs/memfs.rs"]
mod memfs;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::llite::types::{Cred, SetAttr};
use coral_fuse::{FileSystem, FuseOptions, Mount, UnmountError, mount_fs};
use coral_wire::fid::Fid;
use futures_util::FutureExt;
use memfs::MemFs;

/// A mount for one test.
struct Fixture {
    fs: MemFs,
    mount: Mount,
    at: PathBuf,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

/// Runs `test` on a thread with its own mount namespace and a fresh mount there.
#[expect(
    clippy::disallowed_methods,
    reason = "a test whose thread makes system calls on a mount"
)]
fn mounted(slow: bool, ttl: Duration, test: impl FnOnce(&Fixture) + Send + 'static) {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    let run = move || {
        private_namespace();
        // Its threads are started from this one, so they see the same mounts.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let fs = MemFs::new(slow, ttl);
        let opts = FuseOptions {
            source: "test".into(),
            threads: 2,
            ..Default::default()
        };
        let mount = {
            let _in = runtime.enter();
            mount_fs(fs.clone(), &at, &opts).unwrap()
        };
        let f = Fixture {
            fs,
            mount,
            at,
            runtime,
            _dir: dir,
        };
        test(&f);
        f.runtime.block_on(unmount(&f.mount));
    };
    std::thread::spawn(run).join().unwrap();
}

/// Unmounts; waits for killed children, and for those between fork and exec, to let go.
async fn unmount(mount: &Mount) {
    for _ in 0..500 {
        match mount.unmount(false).await {
            Err(UnmountError::Busy(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            r => return r.unwrap(),
        }
    }
    panic!("still busy");
}

#[allow(unsafe_code, reason = "unshare(2)")]
fn private_namespace() {
    use rustix::mount::{MountPropagationFlags, mount_change};
    // SAFETY: unshare(CLONE_NEWNS) changes the calling thread's view of mounts only; no memory is involved.
    let r = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(r, 0, "unshare: {}", std::io::Error::last_os_error());
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .unwrap();
}

const ENOENT: Option<i32> = Some(libc::ENOENT);

fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> Option<i32> {
    r.unwrap_err().raw_os_error()
}

/// What a program does with files.
fn ordinary_life(f: &Fixture) {
    let at = &f.at;
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/a"), b"hello").unwrap();
    assert_eq!(fs::read(at.join("d/a")).unwrap(), b"hello");
    fs::hard_link(at.join("d/a"), at.join("b")).unwrap();
    symlink("d/a", at.join("s")).unwrap();
    assert_eq!(fs::read(at.join("s")).unwrap(), b"hello");
    let m = fs::metadata(at.join("b")).unwrap();
    assert_eq!(
        (m.nlink(), m.len(), m.ino()),
        (2, 5, fs::metadata(at.join("d/a")).unwrap().ino())
    );
    assert!(m.created().is_ok(), "STATX brings the time of birth");
    fs::rename(at.join("b"), at.join("c")).unwrap();
    assert_eq!(errno(fs::metadata(at.join("b"))), ENOENT);
    let mut names: Vec<_> = fs::read_dir(at)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["c", "d", "s"]);
    assert_eq!(errno(fs::remove_dir(at.join("d"))), Some(libc::ENOTEMPTY));
    fs::remove_dir_all(at.join("d")).unwrap();
    assert_eq!(fs::metadata(at.join("c")).unwrap().nlink(), 1);
}

/// Requests of all sizes keep their bytes; the largest go over several WRITEs and READs.
fn bytes_survive(f: &Fixture) {
    let path = f.at.join("big");
    let data: Vec<u8> = (0..5 << 20).map(|i: u32| (i ^ i >> 9) as u8).collect();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all(&data).unwrap();
    file.write_all_at(&data[..100_001], 3_333_333).unwrap();
    let mut expect = data.clone();
    expect[3_333_333..3_433_334].copy_from_slice(&data[..100_001]);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut got = Vec::new();
    file.read_to_end(&mut got).unwrap();
    assert!(got == expect, "content differs");
    file.set_len(1_000_000).unwrap();
    let mut few = [0; 100];
    assert_eq!(file.read_at(&mut few, 999_990).unwrap(), 10);
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    appending.write_all(b"end").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1_000_003);
    fs::remove_file(&path).unwrap();
    assert_eq!(
        file.read_at(&mut few, 1_000_000).unwrap(),
        3,
        "an unlinked open file is still there"
    );
}

#[test]
fn answered_inline() {
    mounted(false, Duration::ZERO, |f| {
        ordinary_life(f);
        bytes_survive(f);
        assert_eq!(
            f.mount.stats().spawned.value(),
            0,
            "a file system that never waits needs no hand-over"
        );
    });
}

#[test]
fn answered_from_the_runtime() {
    mounted(true, Duration::ZERO, |f| {
        ordinary_life(f);
        bytes_survive(f);
        assert!(f.mount.stats().spawned.value() > 100);
    });
}

#[test]
fn setuid_goes_at_a_write_by_another_user() {
    mounted(false, Duration::ZERO, |f| {
        let path = f.at.join("prog");
        fs::write(&path, b"x").unwrap();
        for _ in 0..2 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
            let sh = format!("echo y >> {}", path.display());
            let user = [
                "--reuid=nobody",
                "--regid=nogroup",
                "--clear-groups",
                "sh",
                "-c",
                &sh,
            ];
            assert!(
                Command::new("setpriv")
                    .args(user)
                    .status()
                    .unwrap()
                    .success()
            );
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
        }
    });
}

#[test]
fn a_lock_wait_ends_at_a_signal_and_other_waits_at_a_fatal_one() {
    mounted(false, Duration::ZERO, |f| {
        let path = f.at.join("lock");
        let holder = File::create(&path).unwrap();
        holder.lock().unwrap();
        let timeout = |signal: &str, args: &[&str]| {
            let status = Command::new("timeout")
                .args(["-s", signal, "0.3"])
                .args(args)
                .status()
                .unwrap();
            status.code()
        };
        let p = path.to_str().unwrap();
        // 124: timeout had to send the signal, and the program ended by it.
        assert_eq!(timeout("INT", &["flock", p, "true"]), Some(124));
        assert_eq!(timeout("INT", &["flock", "-n", p, "true"]), Some(1));
        let stuck = f.at.join(std::str::from_utf8(memfs::STUCK).unwrap());
        assert_eq!(
            timeout("TERM", &["stat", stuck.to_str().unwrap()]),
            Some(124)
        );
        assert_eq!(
            timeout("KILL", &["stat", stuck.to_str().unwrap()]),
            None,
            "killed, as timeout reports it"
        );
        // The killed one may be gone before its interrupt is read; the unmount below waits for its request.
        assert!(f.mount.stats().interrupts.value() >= 2);
    });
}

#[test]
fn what_is_remembered_is_forgotten_when_told() {
    const LONG: Duration = Duration::from_secs(1000);
    mounted(false, LONG, |f| {
        let path = f.at.join("file");
        fs::write(&path, b"x").unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let root = Cred::root();
        let entry = f
            .runtime
            .block_on(f.fs.lookup(&root, f.fs.root(), b"file"))
            .unwrap();
        assert_eq!(mode(), 0o644);
        // Somebody else changes the mode, then removes the name.
        let set = SetAttr {
            mode: Some(0o600),
            ..Default::default()
        };
        f.runtime
            .block_on(f.fs.setattr(&root, entry.attr.fid, set, None))
            .unwrap();
        assert_eq!(
            mode(),
            0o644,
            "the kernel remembers, else this test proves nothing"
        );
        f.mount.invalidate().inval_inode(entry.attr.fid, true);
        assert_eq!(mode(), 0o600);
        f.runtime
            .block_on(f.fs.unlink(&root, f.fs.root(), b"file"))
            .unwrap();
        assert!(fs::metadata(&path).is_ok(), "the kernel remembers the name");
        f.mount.invalidate().inval_entry(f.fs.root(), b"file");
        assert_eq!(errno(fs::metadata(&path)), ENOENT);
    });
}

/// A lock is asked back while the answer it covered is being made: the kernel must not remember the answer, though it does not
/// know the file when it is told to forget it.
#[test]
fn what_changes_while_it_is_being_answered_is_not_remembered() {
    const LONG: Duration = Duration::from_secs(1000);
    mounted(false, LONG, |f| {
        let root = Cred::root();
        let make = |name: &[u8]| {
            f.fs.mknod(&root, f.fs.root(), name, libc::S_IFREG | 0o644, 0)
                .now_or_never()
                .unwrap()
                .unwrap()
                .attr
                .fid
        };
        let chmod = |fid, mode| {
            let (fs, inval) = (f.fs.clone(), f.mount.invalidate());
            f.fs.beside(move || {
                let set = SetAttr {
                    mode: Some(mode),
                    ..Default::default()
                };
                fs.setattr(&Cred::root(), fid, set, None)
                    .now_or_never()
                    .unwrap()
                    .unwrap();
                inval.inval_inode(fid, true);
            });
        };
        // not statx, which asks for the time of birth besides, and so always asks
        let mode = |name: &str| rustix::fs::stat(f.at.join(name)).unwrap().st_mode & 0o777;
        let (listed, other) = (make(b"listed"), make(b"other"));
        let set_unheard = |mode| {
            let set = SetAttr {
                mode: Some(mode),
                ..Default::default()
            };
            f.fs.setattr(&root, other, set, None)
                .now_or_never()
                .unwrap()
                .unwrap();
        };
        make(b"the last name is the receipt of a listing");
        let path = rustix::fs::OFlags::PATH;
        let held = rustix::fs::open(f.at.join("other"), path, rustix::fs::Mode::empty()).unwrap();
        set_unheard(0o611);
        chmod(listed, 0o600);
        assert_eq!(fs::read_dir(&f.at).unwrap().count(), 3);
        assert_eq!(mode("listed"), 0o600, "by READDIRPLUS");
        set_unheard(0o622);
        assert_eq!(
            rustix::fs::fstat(&held).unwrap().st_mode & 0o777,
            0o611,
            "the kernel remembers the others, else this test proves nothing"
        );

        let fid = make(b"unknown");
        chmod(fid, 0o600);
        assert_eq!(mode("unknown"), 0o600, "by LOOKUP");

        chmod(fid, 0o640);
        fs::set_permissions(f.at.join("unknown"), fs::Permissions::from_mode(0o606)).unwrap();
        assert_eq!(mode("unknown"), 0o640, "by SETATTR");
    });
}

/// Names that a listing brings are remembered, but the last, which is its receipt; and forgotten when their locks are lost while
/// the listing is being made, or afterwards.
#[test]
fn names_of_a_listing_are_remembered_until_they_are_lost() {
    const LONG: Duration = Duration::from_secs(1000);
    mounted(false, LONG, |f| {
        let (root, dir) = (Cred::root(), f.fs.root());
        let make = |name: &[u8]| {
            f.fs.mknod(&root, dir, name, libc::S_IFREG | 0o644, 0)
                .now_or_never()
                .unwrap()
                .unwrap();
        };
        let unlink = |name: &[u8]| {
            f.fs.unlink(&root, dir, name)
                .now_or_never()
                .unwrap()
                .unwrap();
        };
        let list = || {
            let names = fs::read_dir(&f.at).unwrap();
            names.map(|e| e.unwrap().file_name()).collect::<Vec<_>>()
        };
        let has = |name: &str| fs::metadata(f.at.join(name)).is_ok();
        for name in [b"a", b"b", b"c"] {
            make(name);
        }
        assert_eq!(list(), ["a", "b", "c"]);
        for name in [b"a", b"b", b"c"] {
            unlink(name);
        }
        assert_eq!(
            ["a", "b", "c"].map(has),
            [true, true, false],
            "the kernel remembers the names before the last"
        );
        let invalidate = f.mount.invalidate();
        invalidate.inval_entry(dir, b"a");
        f.runtime.block_on(invalidate.forgotten());
        assert_eq!(["a", "b"].map(has), [false; 2]);

        make(b"a");
        make(b"b");
        let (fs, inval) = (f.fs.clone(), f.mount.invalidate());
        f.fs.beside(move || {
            let unlinked = fs.unlink(&Cred::root(), fs.root(), b"a").now_or_never();
            unlinked.unwrap().unwrap();
            inval.inval_entry(fs.root(), b"a");
        });
        list();
        assert!(!has("a"), "lost while it was being listed");
    });
}

/// A file grows elsewhere, and the kernel is told to forget its attributes while it asks for them: what it is answered counts.
#[test]
fn the_end_of_a_file_that_grew_elsewhere_is_where_the_answer_says() {
    mounted(false, Duration::ZERO, |f| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(f.at.join("file"))
            .unwrap();
        file.write_all(b"0123456789").unwrap();
        let root = Cred::root();
        let fid =
            f.fs.lookup(&root, f.fs.root(), b"file")
                .now_or_never()
                .unwrap()
                .unwrap()
                .attr
                .fid;
        let grow = |size: u64| {
            let set = SetAttr {
                size: Some(size),
                ..Default::default()
            };
            f.fs.setattr(&root, fid, set, None)
                .now_or_never()
                .unwrap()
                .unwrap();
            let inval = f.mount.invalidate();
            f.fs.beside_getattr(fid, move || inval.inval_inode(fid, true));
        };
        // inside the first page, at the first byte of the second, and where no page is known
        for size in [20, 4097, 1_000_001] {
            grow(size);
            assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), size, "lseek");
        }
        grow(2_000_000);
        let mut all = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 2_000_000, "read");
        assert!(all.starts_with(b"0123456789") && all[10..].iter().all(|b| *b == 0));
        grow(3_000_000);
        let last = file.read_at(&mut [0; 10], 2_999_995).unwrap();
        assert_eq!(last, 5, "a read behind what the kernel knows");
    });
}

/// The pages of a file in memory.
#[allow(unsafe_code, reason = "mmap(2)")]
mod mapping {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    const PAGE: usize = 4096;

    pub struct Mapping {
        at: *mut libc::c_void,
        pages: usize,
    }

    impl Mapping {
        /// The first so many pages, which the file has.
        pub fn of(file: &File, pages: usize) -> Mapping {
            let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
            let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
            // SAFETY: a new mapping at an address that the kernel chooses, of a descriptor that is open.
            let at = unsafe { libc::mmap(none, pages * PAGE, read, private, fd, 0) };
            assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            Mapping { at, pages }
        }

        /// The first byte of each, as it is now.
        pub fn firsts(&self) -> String {
            // SAFETY: the mapping has these pages for as long as `self` is there, and the file is no shorter.
            let first = |page| unsafe { self.at.cast::<u8>().add(page * PAGE).read_volatile() };
            (0..self.pages).map(|page| first(page) as char).collect()
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: it is this mapping, which nobody uses any more.
            unsafe { libc::munmap(self.at, self.pages * PAGE) };
        }
    }
}

/// What is stored into pages is there without a question, until it is dropped, and the file is no longer for it.
#[test]
fn pages_that_are_stored_are_there() {
    mounted(false, Duration::ZERO, |f| {
        let path = f.at.join("file");
        fs::write(&path, vec![b'f'; 5 * 4096]).unwrap();
        let root = Cred::root();
        let found = f.fs.lookup(&root, f.fs.root(), b"file").now_or_never();
        let fid = found.unwrap().unwrap().attr.fid;
        let file = File::open(&path).unwrap();
        // a new mapping would drop the pages of a file that is read around them
        let pages = mapping::Mapping::of(&file, 5);
        let kernel = f.mount.invalidate();
        let two: Payload = [3000, 5192]
            .map(|n| Bytes::from(vec![b's'; n]))
            .into_iter()
            .collect();
        assert!(kernel.store_pages(fid, 4096, &two));
        assert_eq!(pages.firsts(), "fssff");
        kernel.drop_pages(fid, 4096..8192);
        assert_eq!(pages.firsts(), "ffsff");
        // pages that are there are stored over
        assert!(kernel.store_pages(fid, 0, &two));
        assert_eq!(pages.firsts(), "sssff");
        assert_eq!(file.metadata().unwrap().len(), 5 * 4096);
        kernel.drop_pages(fid, 0..u64::MAX);
        assert_eq!(pages.firsts(), "fffff");
        let unknown = Fid {
            oid: fid.oid + 1000,
            ..fid
        };
        assert!(!kernel.store_pages(unknown, 0, &two));
    });
}

/// Reads of pages that are not answered keep no others from the file system, however many they are: one that is not seen holds a page
/// that must be dropped before a lock is given back, for which the others may wait.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "threads that wait for pages of a mount"
)]
fn reads_that_wait_keep_no_others_away() {
    const READERS: usize = 300;
    mounted(false, Duration::from_secs(60), |f| {
        let file = |n: usize| f.at.join(format!("f{n}"));
        let open = |n: usize| {
            fs::write(file(n), b"here").unwrap();
            File::open(file(n)).unwrap()
        };
        let files: Vec<File> = (0..READERS).map(open).collect();
        f.fs.answer_reads(false);
        let before = f.fs.reads();
        let read = |file: File| mapping::Mapping::of(&file, 1).firsts();
        let readers: Vec<_> = (files.into_iter())
            .map(|file| std::thread::spawn(move || read(file)))
            .collect();
        let all_came = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            f.fs.reads() == before + READERS
        });
        let came = f.fs.reads() - before;
        f.fs.answer_reads(true);
        for r in readers {
            assert_eq!(r.join().unwrap(), "h");
        }
        assert!(all_came, "{came} of {READERS} came");
    });
}

/// The check after a create asks nobody; whoever looks at the file then does, as nothing is valid.
#[test]
fn a_create_does_not_ask_for_what_it_was_told() {
    mounted(false, Duration::ZERO, |f| {
        let file = File::create(f.at.join("file")).unwrap();
        let fid =
            f.fs.lookup(&Cred::root(), f.fs.root(), b"file")
                .now_or_never()
                .unwrap()
                .unwrap()
                .attr
                .fid;
        assert_eq!(f.fs.asked(fid), 0);
        let set = SetAttr {
            mode: Some(0o601),
            ..Default::default()
        };
        f.fs.setattr(&Cred::root(), fid, set, None)
            .now_or_never()
            .unwrap()
            .unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o601);
        assert_eq!(f.fs.asked(fid), 1);
    });
}

/// A program looks at a directory while another makes a file there: the answer of before comes last, and is not remembered.
#[test]
fn attributes_of_before_an_own_change_are_not_remembered() {
    const LONG: Duration = Duration::from_secs(1000);
    mounted(false, LONG, |f| {
        let dir = f.at.join("dir");
        fs::create_dir(&dir).unwrap();
        let fid = f
            .runtime
            .block_on(f.fs.lookup(&Cred::root(), f.fs.root(), b"dir"))
            .unwrap()
            .attr
            .fid;
        let look = || {
            rustix::fs::stat(&dir)
                .map(|s| (s.st_mtime, s.st_mtime_nsec))
                .unwrap()
        };
        let change = |name: &str, tell: bool| {
            let before = look();
            let (path, inval) = (dir.join(name), f.mount.invalidate());
            f.fs.beside_getattr(fid, move || {
                File::create(path).unwrap();
                if tell {
                    inval.own_change(fid);
                }
            });
            // asks, though the kernel knows: what it knows lets the other program in without asking itself
            use rustix::fs::{AtFlags, CWD, StatxFlags};
            let asked = rustix::fs::statx(
                CWD,
                &dir,
                AtFlags::from_bits_retain(libc::AT_STATX_FORCE_SYNC as u32),
                StatxFlags::BASIC_STATS,
            )
            .unwrap();
            assert_eq!(
                (asked.stx_mtime.tv_sec, u64::from(asked.stx_mtime.tv_nsec)),
                before,
                "made before"
            );
            before
        };
        let before = change("a", false);
        assert_eq!(
            look(),
            before,
            "the kernel remembers it, else this test proves nothing"
        );
        f.mount.invalidate().inval_inode(fid, true);
        let before = change("b", true);
        assert_ne!(look(), before);
    });
}

/// A program that makes a file and writes to it asks for nothing that names the file before it closes it: what the kernel is told of it then
/// is forgotten at once.
#[test]
fn a_file_that_is_written_was_taken_in() {
    mounted(false, Duration::from_secs(1000), |f| {
        let mut file = File::create(f.at.join("file")).unwrap();
        let root = Cred::root();
        let found = f.fs.lookup(&root, f.fs.root(), b"file");
        let fid = f.runtime.block_on(found).unwrap().attr.fid;
        assert_eq!(f.fs.asked(fid), 0);
        file.write_all(b"text").unwrap();
        let _in = f.runtime.enter();
        let kernel = f.mount.invalidate();
        kernel.inval_inode(fid, true);
        assert!(kernel.forgotten().now_or_never().is_some());
    });
}

/// The same where the file system tells of what it makes: of a thread that is the only one to look at the directory the kernel need not
/// be told, of any other it is.
#[test]
fn what_another_thread_asked_for_before_a_create_is_not_remembered() {
    mounted(false, Duration::from_secs(1000), |f| {
        let dir = f.at.join("dir");
        fs::create_dir(&dir).unwrap();
        let root = Cred::root();
        let found = f.fs.lookup(&root, f.fs.root(), b"dir");
        let fid = f.runtime.block_on(found).unwrap().attr.fid;
        f.fs.tells(f.mount.invalidate());
        let look = || {
            let s = rustix::fs::stat(&dir).unwrap();
            (s.st_mtime, s.st_mtime_nsec)
        };
        for round in 0..10 {
            for n in 0..3 {
                let before = look();
                File::create(dir.join(format!("own{round}.{n}"))).unwrap();
                assert_ne!(look(), before, "round {round}");
            }
            let (before, path) = (look(), dir.join(format!("other{round}")));
            f.fs.beside_getattr(fid, move || drop(File::create(path).unwrap()));
            use rustix::fs::{AtFlags, CWD, StatxFlags};
            let asks = AtFlags::from_bits_retain(libc::AT_STATX_FORCE_SYNC as u32);
            let asked = rustix::fs::statx(CWD, &dir, asks, StatxFlags::BASIC_STATS).unwrap();
            let asked = (asked.stx_mtime.tv_sec, u64::from(asked.stx_mtime.tv_nsec));
            assert_eq!(asked, before, "made before");
            assert_ne!(look(), before, "round {round}");
        }
    });
}

#[test]
fn a_busy_mount_stays_unless_lazy_and_open_files_are_closed_at_the_end() {
    mounted(false, Duration::ZERO, |f| {
        let held = File::create(f.at.join("held")).unwrap();
        let r = f.runtime.block_on(f.mount.unmount(false));
        assert!(matches!(r, Err(UnmountError::Busy(_))), "{r:?}");
        drop(held);
        let line = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(line.contains("fuse.coral test"));
    });
}
