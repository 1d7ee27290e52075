//! One program in a directory of its own, and what it was told.
//!
//! Changes of names are ordered: after power loss the directory is as it was after some of them, and not before the last that was
//! synced. Contents are looked at unit by unit.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::file::{File, bytes};
use crate::common::Rng;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    File(u64),
    Dir(u64),
    Link(String),
}

type Names = BTreeMap<String, What>;

/// Most names of a worker.
const NAMES_MAX: usize = 24;
/// Most units of a file.
const UNITS_MAX: usize = 40;

pub struct Worker {
    pub dir: PathBuf,
    pub rng: Rng,
    /// The directory after each change since the last sync; the first is safe, the last is now.
    states: Vec<Names>,
    /// An error was told: the last change may not have happened.
    unsure: bool,
    /// The names that each change was about.
    about: Vec<Vec<String>>,
    files: BTreeMap<u64, File>,
    next: u64,
    /// Operations that returned success.
    pub acked: Arc<AtomicU64>,
    /// Errors told, when the client lives on.
    pub told: Vec<String>,
    /// Its longest operation.
    pub longest: std::time::Duration,
    /// Its client lives on and has what was acknowledged: only the newest content will do.
    pub keeps: bool,
    /// How often it syncs: one sync makes durable what everybody did to names.
    pub sync_percent: u64,
    /// The file that the operation under way is about.
    touching: Option<u64>,
    /// `CORAL_POWER_TRACE`.
    trace: bool,
}

/// What a change of a file is synced with.
#[derive(Clone, Copy, PartialEq)]
enum Sync {
    No,
    Fsync,
    Fdatasync,
}

impl Worker {
    fn now_and_then(&mut self) -> Sync {
        match (self.rng.below(100) < self.sync_percent, self.rng.below(2)) {
            (false, _) => Sync::No,
            (true, 0) => Sync::Fsync,
            (true, _) => Sync::Fdatasync,
        }
    }

    pub fn new(dir: &Path, seed: u64) -> Worker {
        std::fs::create_dir(dir).expect("a directory of its own");
        let acked = Arc::default();
        let states = vec![Names::new()];
        let trace = std::env::var_os("CORAL_POWER_TRACE").is_some();
        Worker {
            dir: dir.to_owned(),
            rng: Rng::seeded(seed),
            states,
            unsure: false,
            about: vec![Vec::new()],
            files: BTreeMap::new(),
            next: 1,
            acked,
            told: Vec::new(),
            longest: Default::default(),
            keeps: false,
            sync_percent: 50,
            touching: None,
            trace,
        }
    }

    fn now(&self) -> &Names {
        self.states.last().expect("never empty")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Works until told to stop or an error. Without `dies` that error is told, and the file it was about is given up.
    pub fn work(&mut self, stop: &AtomicBool, dies: bool) {
        // A program that the test starts closes its copies of what is open here, and the kernel closes a file with changed mapped
        // pages when they are written: the server that is started would wait for itself. So this thread has descriptors of its own.
        // SAFETY: nothing is passed between threads by descriptor.
        #[allow(unsafe_code, reason = "no safe wrapper")]
        let own = unsafe {
            libc::close_range(
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_UNSHARE as libc::c_int,
            )
        };
        assert_eq!(own, 0, "close_range: {}", std::io::Error::last_os_error());
        while !stop.load(Ordering::Relaxed) {
            self.touching = None;
            #[expect(
                clippy::disallowed_methods,
                reason = "a test that measures other processes"
            )]
            let begin = std::time::Instant::now();
            let done = self.one();
            self.longest = self.longest.max(begin.elapsed());
            match done {
                Ok(()) => drop(self.acked.fetch_add(1, Ordering::Relaxed)),
                Err(_) if dies => return,
                Err(e) => {
                    let key = self.touching;
                    self.told
                        .push(format!("{}: file {key:?}: {e}", self.dir.display()));
                    if let Some(f) = key.and_then(|k| self.files.get_mut(&k)) {
                        f.told = true;
                    }
                    self.unsure = true;
                    return;
                }
            }
        }
    }

    fn say(&self, what: std::fmt::Arguments) {
        if self.trace {
            eprintln!(
                "{}: {what}",
                self.dir.file_name().unwrap_or_default().display()
            );
        }
    }

    fn one(&mut self) -> io::Result<()> {
        if self.now().len() >= NAMES_MAX {
            return self.unlink();
        }
        match self.rng.below(24) {
            0..4 => self.create(),
            4..7 => self.overwrite(),
            7..9 => self.append(),
            9 | 10 | 11 | 23 if self.rng.below(100) >= self.sync_percent => self.replace_by_old(),
            9 | 10 => self.write_synchronous(),
            11 => self.store(),
            12 => self.truncate(),
            13 => self.punch(),
            14 => self.set_xattr(),
            15..19 if self.rng.below(100) >= self.sync_percent => self.replace_by_old(),
            15..19 => self.replace(),
            19 => self.link(),
            20 => self.rename(),
            21 => self.directory(),
            22 => self.unlink(),
            _ => self.sync_directory(),
        }
    }

    // ---- names

    /// Before a change of names is asked for: the directory afterwards.
    fn change(&mut self, names: Names, about: &[&str]) {
        self.states.push(names);
        self.about
            .push(about.iter().map(|n| n.to_string()).collect());
    }

    /// Everything up to the last change about `name` is safe; with none, all is.
    fn names_synced(&mut self, name: Option<&str>) {
        let last = match name {
            Some(n) => self
                .about
                .iter()
                .rposition(|a| a.iter().any(|x| x == n))
                .unwrap_or(0),
            None => self.states.len() - 1,
        };
        self.states.drain(..last);
        self.about.drain(..last);
        let states = &self.states;
        self.files.retain(|k, _| {
            states
                .iter()
                .any(|s| s.values().any(|w| *w == What::File(*k)))
        });
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    /// Some name of a file.
    fn some_file(&mut self) -> Option<(String, u64)> {
        let all: Vec<(String, u64)> = self
            .now()
            .iter()
            .filter_map(|(n, w)| {
                if let What::File(k) = w {
                    Some((n.clone(), *k))
                } else {
                    None
                }
            })
            .collect();
        let all: Vec<_> = all
            .into_iter()
            .filter(|(_, k)| self.files.get(k).is_some_and(|f| !f.told))
            .collect();
        match all.len() as u64 {
            0 => None,
            n => all.into_iter().nth(self.rng.below(n) as usize),
        }
    }

    fn key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    // ---- operations

    /// A new file with some content; synced always, or now and then.
    fn make(&mut self, name: &str, must_sync: bool) -> io::Result<u64> {
        let key = self.key();
        let unit = [700, 4096, 4096, 20_000][self.rng.below(4) as usize];
        let mut names = self.now().clone();
        names.insert(name.to_owned(), What::File(key));
        self.change(names, &[name]);
        self.files.insert(key, File::new(key, 0, unit));
        self.touching = Some(key);
        let f = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(self.path(name))?;
        self.files.get_mut(&key).expect("just made").ino = f.metadata()?.ino();
        let count = self.rng.below(8) as usize;
        for u in 0..count {
            self.put(&f, key, u)?;
        }
        let how = if must_sync {
            Sync::Fsync
        } else {
            self.now_and_then()
        };
        self.sync(&f, name, key, how)?;
        self.say(format_args!("create {name} {key} {count} units of {unit}"));
        Ok(key)
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.new_name();
        self.make(&name, false).map(drop)
    }

    /// Writes a new version of a unit.
    fn put(&mut self, f: &std::fs::File, key: u64, u: usize) -> io::Result<()> {
        self.next += 1;
        let version = self.next as u32;
        let file = self.files.get_mut(&key).expect("known");
        file.put(u, version);
        f.write_all_at(&bytes(key, u, version, file.unit), (u * file.unit) as u64)
    }

    fn sync(&mut self, f: &std::fs::File, name: &str, key: u64, how: Sync) -> io::Result<()> {
        match how {
            Sync::No => return Ok(()),
            Sync::Fsync => f.sync_all()?,
            Sync::Fdatasync => f.sync_data()?,
        }
        self.say(format_args!("sync {name} {key}"));
        self.files.get_mut(&key).expect("known").synced();
        self.names_synced(Some(name));
        Ok(())
    }

    fn open(&mut self, flags: i32) -> io::Result<Option<(std::fs::File, String, u64)>> {
        let Some((name, key)) = self.some_file() else {
            return Ok(None);
        };
        self.touching = Some(key);
        let f = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(self.path(&name))?;
        Ok(Some((f, name, key)))
    }

    fn overwrite(&mut self) -> io::Result<()> {
        let Some((f, name, key)) = self.open(0)? else {
            return Ok(());
        };
        for _ in 0..1 + self.rng.below(3) {
            let reach = (self.files[&key].len() + 1).min(UNITS_MAX) as u64;
            let u = self.rng.below(reach) as usize;
            self.put(&f, key, u)?;
        }
        self.say(format_args!("overwrite {name} {key}"));
        let how = self.now_and_then();
        self.sync(&f, &name, key, how)
    }

    fn append(&mut self) -> io::Result<()> {
        let Some((mut f, name, key)) = self.open(libc::O_APPEND)? else {
            return Ok(());
        };
        for _ in 0..1 + self.rng.below(3) {
            let u = self.files[&key].len();
            if u >= UNITS_MAX {
                break;
            }
            self.next += 1;
            let version = self.next as u32;
            let file = self.files.get_mut(&key).expect("known");
            file.put(u, version);
            io::Write::write_all(&mut f, &bytes(key, u, version, file.unit))?;
        }
        self.say(format_args!("append {name} {key}"));
        let how = self.now_and_then();
        self.sync(&f, &name, key, how)
    }

    /// A write through a descriptor with O_SYNC or O_DSYNC is safe when it returns.
    fn write_synchronous(&mut self) -> io::Result<()> {
        let flag = [libc::O_SYNC, libc::O_DSYNC][self.rng.below(2) as usize];
        let Some((f, name, key)) = self.open(flag)? else {
            return Ok(());
        };
        let reach = (self.files[&key].len() + 1).min(UNITS_MAX) as u64;
        let u = self.rng.below(reach) as usize;
        self.put(&f, key, u)?;
        let file = self.files.get_mut(&key).expect("known");
        file.unit_synced(u);
        if u + 1 == file.len() {
            file.lens = vec![u + 1];
        }
        self.say(format_args!("synchronous write {name} {key} unit {u}"));
        Ok(())
    }

    /// A store through a mapping is safe after msync.
    #[allow(unsafe_code, reason = "a mapping")]
    fn store(&mut self) -> io::Result<()> {
        let Some((f, name, key)) = self.open(0)? else {
            return Ok(());
        };
        let file = self.files.get_mut(&key).expect("known");
        let (len, unit) = (file.len(), file.unit);
        if len == 0 {
            return Ok(());
        }
        let u = self.rng.below(len as u64) as usize;
        self.next += 1;
        let version = self.next as u32;
        file.put(u, version);
        let new = bytes(key, u, version, unit);
        // SAFETY: the mapping is of len * unit bytes of a file that is so long and that nobody else cuts, and goes before the
        // function ends.
        let done = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                len * unit,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                f.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // nor a copy of the mapping in a program that is started
            libc::madvise(at, len * unit, libc::MADV_DONTFORK);
            // not by storing: a page that cannot be read would be SIGBUS, here it is an error
            let done = read_into(at.cast::<u8>().add(u * unit), &new).and_then(|()| {
                match libc::msync(at, len * unit, libc::MS_SYNC) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
            libc::munmap(at, len * unit);
            done
        };
        done?;
        self.files.get_mut(&key).expect("known").unit_synced(u);
        self.say(format_args!("msync {name} {key} unit {u}"));
        Ok(())
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some((f, name, key)) = self.open(0)? else {
            return Ok(());
        };
        let len = self.rng.below(UNITS_MAX as u64 / 2) as usize;
        let file = self.files.get_mut(&key).expect("known");
        file.resize(len);
        f.set_len((len * file.unit) as u64)?;
        self.say(format_args!("truncate {name} {key} to {len} units"));
        let how = self.now_and_then();
        self.sync(&f, &name, key, how)
    }

    fn punch(&mut self) -> io::Result<()> {
        let Some((f, name, key)) = self.open(0)? else {
            return Ok(());
        };
        let file = self.files.get_mut(&key).expect("known");
        if file.len() == 0 {
            return Ok(());
        }
        let from = self.rng.below(file.len() as u64) as usize;
        let count = 1 + self.rng.below((file.len() - from) as u64) as usize;
        (from..from + count).for_each(|u| file.put(u, 0));
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(
            &f,
            flags,
            (from * file.unit) as u64,
            (count * file.unit) as u64,
        )?;
        self.say(format_args!("punch {name} {key} {count} units from {from}"));
        let how = self.now_and_then();
        self.sync(&f, &name, key, how)
    }

    fn set_xattr(&mut self) -> io::Result<()> {
        let Some((f, name, key)) = self.open(0)? else {
            return Ok(());
        };
        self.next += 1;
        let value = self.next as u32;
        self.files.get_mut(&key).expect("known").xattrs.push(value);
        rustix::fs::fsetxattr(
            &f,
            "user.v",
            value.to_string().as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )?;
        self.say(format_args!("setxattr {name} {key} {value}"));
        let how = self.now_and_then();
        self.sync(&f, &name, key, how)
    }

    /// As editors and databases replace a file: a new one, synced, renamed over.
    fn replace(&mut self) -> io::Result<()> {
        let Some((old, _)) = self.some_file() else {
            return self.create();
        };
        let tmp = self.new_name();
        let key = self.make(&tmp, true)?;
        self.touching = Some(key);
        let mut names = self.now().clone();
        let what = names.remove(&tmp).expect("just made");
        names.insert(old.clone(), what);
        self.change(names, &[&tmp, &old]);
        std::fs::rename(self.path(&tmp), self.path(&old))?;
        self.say(format_args!("replace {old} by {tmp} {key}"));
        if self.rng.below(3) == 0 {
            return self.sync_directory();
        }
        Ok(())
    }

    /// One file renamed over another; both may have been synced long ago.
    fn replace_by_old(&mut self) -> io::Result<()> {
        let (Some((from, key)), Some((to, over))) = (self.some_file(), self.some_file()) else {
            return self.create();
        };
        if key == over {
            return self.overwrite();
        }
        let mut names = self.now().clone();
        let what = names.remove(&from).expect("there");
        names.insert(to.clone(), what);
        self.change(names, &[&from, &to]);
        std::fs::rename(self.path(&from), self.path(&to))?;
        self.say(format_args!("rename {from} {key} over {to} {over}"));
        Ok(())
    }

    fn link(&mut self) -> io::Result<()> {
        let Some((old, key)) = self.some_file() else {
            return Ok(());
        };
        let new = self.new_name();
        let mut names = self.now().clone();
        names.insert(new.clone(), What::File(key));
        self.change(names, &[&new]);
        std::fs::hard_link(self.path(&old), self.path(&new))?;
        self.say(format_args!("link {old} {new} {key}"));
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some((old, key)) = self.some_file() else {
            return Ok(());
        };
        let new = self.new_name();
        let mut names = self.now().clone();
        let what = names.remove(&old).expect("there");
        names.insert(new.clone(), what);
        self.change(names, &[&old, &new]);
        std::fs::rename(self.path(&old), self.path(&new))?;
        self.say(format_args!("rename {old} {new} {key}"));
        Ok(())
    }

    fn directory(&mut self) -> io::Result<()> {
        let name = self.new_name();
        let mut names = self.now().clone();
        if self.rng.below(2) == 0 {
            let target = format!("to-{name}");
            names.insert(name.clone(), What::Link(target.clone()));
            self.change(names, &[&name]);
            std::os::unix::fs::symlink(&target, self.path(&name))?;
        } else {
            names.insert(name.clone(), What::Dir(0));
            self.change(names, &[&name]);
            std::fs::create_dir(self.path(&name))?;
        }
        self.say(format_args!("directory or symlink {name}"));
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let count = self.now().len() as u64;
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.below(count) as usize;
        let name = self.now().keys().nth(at).expect("there").clone();
        let mut names = self.now().clone();
        let what = names.remove(&name).expect("there");
        self.change(names, &[&name]);
        match what {
            What::Dir(_) => std::fs::remove_dir(self.path(&name))?,
            _ => std::fs::remove_file(self.path(&name))?,
        }
        self.say(format_args!("unlink {name}"));
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        std::fs::File::open(&self.dir)?.sync_all()?;
        self.names_synced(None);
        self.say(format_args!("sync directory"));
        Ok(())
    }

    // ---- afterwards

    /// Compares with what is there under `dir` (the same directory, perhaps on another mount): everything that is wrong.
    /// `only_newest`: the client lived, so no change of names that it was told may be missing.
    pub fn verify(&mut self, dir: &Path, only_newest: bool) -> Vec<String> {
        let seen = match self.look(dir) {
            Ok(s) => s,
            Err(e) => return vec![format!("{}: {e}", dir.display())],
        };
        let newest = self
            .states
            .len()
            .saturating_sub(if self.unsure { 2 } else { 1 });
        let states = if only_newest {
            newest..self.states.len()
        } else {
            0..self.states.len()
        };
        let Some(at) = states.rev().find(|i| self.same(&self.states[*i], &seen)) else {
            let told = if only_newest { newest } else { 0 };
            let (want, now) = (&self.states[told], self.now());
            return vec![format!(
                "{}: the names are those of none of {} moments; there {seen:?}; safe {want:?}; newest {now:?}",
                dir.display(),
                self.states.len()
            )];
        };
        let names = self.states[at].clone();
        let mut bad = Vec::new();
        for (name, what) in &names {
            if let What::File(k) = what
                && let Err(why) = self.files[k].verify(&dir.join(name), self.keeps)
            {
                bad.push(why);
            }
        }
        self.states = vec![names];
        self.about = vec![Vec::new()];
        self.unsure = false;
        bad
    }

    fn same(&self, state: &Names, seen: &BTreeMap<String, (What, u64)>) -> bool {
        let one = |(name, what): (&String, &What)| match (what, seen.get(name)) {
            // an operation under way may have made it and not told its number
            (What::File(k), Some((What::File(_), ino))) => self
                .files
                .get(k)
                .is_some_and(|f| f.ino == *ino || f.ino == 0),
            (What::Dir(_), Some((What::Dir(_), _))) => true,
            (What::Link(a), Some((What::Link(b), _))) => a == b,
            _ => false,
        };
        state.len() == seen.len() && state.iter().all(one)
    }

    fn look(&self, dir: &Path) -> io::Result<BTreeMap<String, (What, u64)>> {
        let mut out = BTreeMap::new();
        for e in std::fs::read_dir(dir)? {
            let e = e?;
            let m = std::fs::symlink_metadata(e.path())
                .map_err(|w| io::Error::other(format!("{}: {w}", e.path().display())))?;
            let what = match m.file_type() {
                t if t.is_dir() => What::Dir(0),
                t if t.is_symlink() => {
                    What::Link(std::fs::read_link(e.path())?.to_string_lossy().into_owned())
                }
                _ => What::File(0),
            };
            out.insert(
                e.file_name().to_string_lossy().into_owned(),
                (what, m.ino()),
            );
        }
        Ok(out)
    }

    /// Removes what is not known exactly, so that all that stays must be there after the next cut as well.
    pub fn tidy(&mut self) -> io::Result<()> {
        let uncertain = |w: &Worker, k: &u64| {
            w.files
                .get(k)
                .is_none_or(|f| f.told || f.ino == 0 || !w.keeps && !f.is_certain())
        };
        let names: Vec<String> = self
            .now()
            .iter()
            .filter(|(_, what)| matches!(what, What::File(k) if uncertain(self, k)))
            .map(|(n, _)| n.clone())
            .collect();
        for n in &names {
            std::fs::remove_file(self.path(n))?;
            self.states[0].remove(n);
        }
        std::fs::File::open(&self.dir)?.sync_all()?;
        self.names_synced(None);
        Ok(())
    }
}

/// Copies `data` to `to` with read(2) from a pipe: an address that cannot be written is EFAULT.
#[allow(unsafe_code, reason = "a mapping")]
fn read_into(to: *mut u8, data: &[u8]) -> io::Result<()> {
    let (read, write) = rustix::pipe::pipe()?;
    rustix::io::write(&write, data)?;
    let mut done = 0;
    while done < data.len() {
        // SAFETY: the caller's mapping has room for the data; the kernel checks the address.
        let n = unsafe { libc::read(read.as_raw_fd(), to.add(done).cast(), data.len() - done) };
        if n <= 0 {
            return Err(io::Error::last_os_error());
        }
        done += n as usize;
    }
    Ok(())
}
