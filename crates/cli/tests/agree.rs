//! Two mounts of one file system always agree: one in the process of `coral up`, one over TCP from another network namespace.
//!
//! One step at a time: a mount chosen at random changes something, then the other and the same are compared with a model.

mod common;

use common::two::Two;
use common::{Rng, in_network_namespace, pattern, pause};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Directories the files live in.
const DIRS: u64 = 3;
/// Names in each directory.
const NAMES: u64 = 6;
/// Longest file, bytes: several stripes of 64 KiB.
const SIZE_MAX: u64 = 400_000;
/// Longest single write, bytes.
const WRITE_MAX: u64 = 90_000;

/// A file as it must be.
#[derive(Clone, Default)]
struct Node {
    content: Vec<u8>,
    mode: u32,
    /// Set by utimes and not changed since, seconds.
    mtime: Option<u64>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// An open file of one mount, with the node it names although the name may be gone.
struct Open {
    file: File,
    node: usize,
    far: usize,
}

/// The name space as it must be, and the two real ones.
struct Model {
    mounts: [PathBuf; 2],
    nodes: Vec<Node>,
    names: BTreeMap<String, usize>,
    subdirs: BTreeSet<String>,
    open: Vec<Open>,
    rng: Rng,
    /// What was done, for the message of a failure.
    last: Vec<String>,
}

impl Model {
    fn new(mounts: [PathBuf; 2]) -> Model {
        for d in 0..DIRS {
            std::fs::create_dir(mounts[(d % 2) as usize].join(format!("d{d}"))).unwrap();
        }
        Model {
            mounts,
            nodes: Vec::new(),
            names: BTreeMap::new(),
            subdirs: BTreeSet::new(),
            open: Vec::new(),
            rng: Rng::from_env(),
            last: Vec::new(),
        }
    }

    fn say(&mut self, text: String) {
        self.last.push(text);
        if self.last.len() > 30 {
            self.last.remove(0);
        }
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("{what}\nlast steps:\n  {}", self.last.join("\n  "))
    }

    fn name(&mut self) -> String {
        format!("d{}/n{}", self.rng.below(DIRS), self.rng.below(NAMES))
    }

    fn present(&mut self) -> Option<String> {
        let n = self.names.len() as u64;
        (n > 0).then(|| {
            self.names
                .keys()
                .nth(self.rng.below(n) as usize)
                .cloned()
                .expect("counted")
        })
    }

    fn must<T>(&self, what: &str, r: std::io::Result<T>) -> T {
        r.unwrap_or_else(|e| self.wrong(&format!("{what}: {e}")))
    }

    /// One change by one mount, then both are looked at.
    fn step(&mut self) {
        let by = self.rng.below(2) as usize;
        let touched = match self.rng.below(14) {
            0 | 1 => self.create(by),
            2..=4 => self.write(by),
            5 => self.truncate(by),
            6 => self.rename(by),
            7 => self.unlink(by),
            8 => self.link(by),
            9 => self.attributes(by),
            10 => self.xattr(by),
            11 => self.subdir(by),
            12 => self.open_or_close(by),
            _ => self.append(by),
        };
        for name in touched {
            for m in [1 - by, by] {
                self.look(m, &name);
            }
        }
        if self.rng.below(4) == 0 {
            let m = self.rng.below(2) as usize;
            self.list(m);
        }
        self.read_open();
    }

    fn create(&mut self, by: usize) -> Vec<String> {
        let (name, seed, len) = (
            self.name(),
            self.rng.next(),
            self.rng.below(WRITE_MAX) as usize,
        );
        self.say(format!("{by}: create or overwrite {name} with {len} bytes"));
        let bytes = pattern(seed, len);
        self.must("write", std::fs::write(self.mounts[by].join(&name), &bytes));
        match self.names.get(&name) {
            Some(n) => {
                self.nodes[*n].content = bytes;
                self.nodes[*n].mtime = None;
            }
            None => {
                let meta = self.must("stat", std::fs::metadata(self.mounts[by].join(&name)));
                self.nodes.push(Node {
                    content: bytes,
                    mode: meta.mode() & 0o7777,
                    ..Node::default()
                });
                self.names.insert(name.clone(), self.nodes.len() - 1);
            }
        }
        vec![name]
    }

    fn write(&mut self, by: usize) -> Vec<String> {
        let Some(name) = self.present() else {
            return vec![];
        };
        let node = self.names[&name];
        let (offset, len, seed) = (
            self.rng.below(SIZE_MAX - WRITE_MAX),
            1 + self.rng.below(WRITE_MAX),
            self.rng.next(),
        );
        self.say(format!("{by}: write {len} at {offset} of {name}"));
        let bytes = pattern(seed, len as usize);
        let f = self.must(
            "open",
            OpenOptions::new()
                .write(true)
                .open(self.mounts[by].join(&name)),
        );
        self.must("pwrite", f.write_all_at(&bytes, offset));
        self.wrote(node, offset as usize, &bytes);
        if self.rng.below(2) == 0 {
            drop(f); // else the file is compared while its writer has it open
            return vec![name];
        }
        self.look(1 - by, &name);
        vec![name]
    }

    fn wrote(&mut self, node: usize, offset: usize, bytes: &[u8]) {
        let n = &mut self.nodes[node];
        if n.content.len() < offset + bytes.len() {
            n.content.resize(offset + bytes.len(), 0);
        }
        n.content[offset..offset + bytes.len()].copy_from_slice(bytes);
        n.mtime = None;
    }

    fn append(&mut self, by: usize) -> Vec<String> {
        let Some(name) = self.present() else {
            return vec![];
        };
        let node = self.names[&name];
        if self.nodes[node].content.len() as u64 > SIZE_MAX {
            return vec![];
        }
        let (len, seed) = (1 + self.rng.below(20_000) as usize, self.rng.next());
        self.say(format!("{by}: append {len} to {name}"));
        let bytes = pattern(seed, len);
        let mut f = self.must(
            "open",
            OpenOptions::new()
                .append(true)
                .open(self.mounts[by].join(&name)),
        );
        self.must("append", std::io::Write::write_all(&mut f, &bytes));
        let end = self.nodes[node].content.len();
        self.wrote(node, end, &bytes);
        vec![name]
    }

    fn truncate(&mut self, by: usize) -> Vec<String> {
        let Some(name) = self.present() else {
            return vec![];
        };
        let (node, len) = (self.names[&name], self.rng.below(SIZE_MAX));
        self.say(format!("{by}: truncate {name} to {len}"));
        let f = self.must(
            "open",
            OpenOptions::new()
                .write(true)
                .open(self.mounts[by].join(&name)),
        );
        self.must("ftruncate", f.set_len(len));
        self.nodes[node].content.resize(len as usize, 0);
        self.nodes[node].mtime = None;
        vec![name]
    }

    fn rename(&mut self, by: usize) -> Vec<String> {
        let Some(from) = self.present() else {
            return vec![];
        };
        let to = self.name();
        self.say(format!("{by}: rename {from} to {to}"));
        self.must(
            "rename",
            std::fs::rename(self.mounts[by].join(&from), self.mounts[by].join(&to)),
        );
        let (a, b) = (self.names[&from], self.names.get(&to).copied());
        if b != Some(a) {
            // of two names of one file, rename(2) keeps both
            self.names.remove(&from);
            self.names.insert(to.clone(), a);
        }
        vec![from, to]
    }

    fn unlink(&mut self, by: usize) -> Vec<String> {
        let Some(name) = self.present() else {
            return vec![];
        };
        self.say(format!("{by}: unlink {name}"));
        self.must("unlink", std::fs::remove_file(self.mounts[by].join(&name)));
        self.names.remove(&name);
        vec![name]
    }

    fn link(&mut self, by: usize) -> Vec<String> {
        let Some(old) = self.present() else {
            return vec![];
        };
        let new = self.name();
        self.say(format!("{by}: link {old} to {new}"));
        let done = std::fs::hard_link(self.mounts[by].join(&old), self.mounts[by].join(&new));
        match (done, self.names.contains_key(&new)) {
            (Ok(()), false) => {
                self.names.insert(new.clone(), self.names[&old]);
            }
            (Err(e), true) if e.raw_os_error() == Some(libc::EEXIST) => {}
            (done, there) => self.wrong(&format!("link gave {done:?}; the name is {there}")),
        }
        vec![old, new]
    }

    fn attributes(&mut self, by: usize) -> Vec<String> {
        let Some(name) = self.present() else {
            return vec![];
        };
        let (node, path) = (self.names[&name], self.mounts[by].join(&name));
        if self.rng.below(2) == 0 {
            let mode = 0o600 | self.rng.below(0o200) as u32;
            self.say(format!("{by}: chmod {mode:o} {name}"));
            self.must(
                "chmod",
                std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)),
            );
            self.nodes[node].mode = mode;
        } else {
            let at = 1_000_000_000 + self.rng.below(500_000_000);
            self.say(format!("{by}: utimes {at} {name}"));
            let f = self.must("open", File::open(&path));
            self.must(
                "utimes",
                f.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at)),
            );
            self.nodes[node].mtime = Some(at);
        }
        vec![name]
    }

    fn xattr(&mut self, by: usize) -> Vec<String> {
        let Some(name) = self.present() else {
            return vec![];
        };
        let (node, path) = (self.names[&name], self.mounts[by].join(&name));
        let (key, value) = (
            format!("user.k{}", self.rng.below(3)),
            pattern(self.rng.next(), 1 + self.rng.below(200) as usize),
        );
        if self.nodes[node].xattrs.contains_key(&key) && self.rng.below(2) == 0 {
            self.say(format!("{by}: remove xattr {key} of {name}"));
            self.must(
                "removexattr",
                rustix::fs::removexattr(&path, &*key).map_err(Into::into),
            );
            self.nodes[node].xattrs.remove(&key);
        } else {
            self.say(format!("{by}: set xattr {key} of {name}"));
            self.must(
                "setxattr",
                rustix::fs::setxattr(&path, &*key, &value, rustix::fs::XattrFlags::empty())
                    .map_err(Into::into),
            );
            self.nodes[node].xattrs.insert(key, value);
        }
        vec![name]
    }

    fn subdir(&mut self, by: usize) -> Vec<String> {
        let name = format!("d{}/s{}", self.rng.below(DIRS), self.rng.below(3));
        let path = self.mounts[by].join(&name);
        if self.subdirs.remove(&name) {
            self.say(format!("{by}: rmdir {name}"));
            self.must("rmdir", std::fs::remove_dir(path));
        } else {
            self.say(format!("{by}: mkdir {name}"));
            self.must("mkdir", std::fs::create_dir(path));
            self.subdirs.insert(name.clone());
        }
        for m in [1 - by, by] {
            let there = self.mounts[m].join(&name).is_dir();
            if there != self.subdirs.contains(&name) {
                self.wrong(&format!("mount {m}: directory {name} there: {there}"));
            }
        }
        vec![]
    }

    fn open_or_close(&mut self, by: usize) -> Vec<String> {
        if self.open.len() > 6 {
            let n = self.rng.below(self.open.len() as u64) as usize;
            self.say("close one".into());
            self.open.swap_remove(n);
            return vec![];
        }
        let Some(name) = self.present() else {
            return vec![];
        };
        self.say(format!("{by}: open {name}"));
        let file = self.must(
            "open",
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(self.mounts[by].join(&name)),
        );
        self.open.push(Open {
            file,
            node: self.names[&name],
            far: by,
        });
        vec![]
    }

    /// Compares a name as one mount sees it with the model.
    fn look(&mut self, m: usize, name: &str) {
        let path = self.mounts[m].join(name);
        let meta = std::fs::symlink_metadata(&path);
        let Some(&n) = self.names.get(name) else {
            match meta {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
                other => self.wrong(&format!(
                    "mount {m}: {name} must be absent: {:?}",
                    other.map(|m| m.len())
                )),
            }
        };
        let meta = self.must(&format!("mount {m}: stat {name}"), meta);
        let node = &self.nodes[n];
        let links = self.names.values().filter(|v| **v == n).count() as u64;
        let is = (meta.len(), meta.mode() & 0o7777, meta.nlink());
        let must = (node.content.len() as u64, node.mode, links);
        if is != must {
            self.wrong(&format!(
                "mount {m}: {name}: size, mode, nlink are {is:?}, must be {must:?}"
            ));
        }
        if node.mtime.is_some_and(|t| t as i64 != meta.mtime()) {
            self.wrong(&format!(
                "mount {m}: {name}: mtime is {}, must be {:?}",
                meta.mtime(),
                node.mtime
            ));
        }
        for k in 0..3 {
            let (key, mut buf) = (format!("user.k{k}"), [0_u8; 512]);
            let got = match rustix::fs::getxattr(&path, &*key, &mut buf[..]) {
                Ok(len) => Some(buf[..len].to_vec()),
                Err(rustix::io::Errno::NODATA) => None,
                Err(e) => self.wrong(&format!("mount {m}: getxattr {key} of {name}: {e}")),
            };
            if got.as_ref() != self.nodes[n].xattrs.get(&key) {
                self.wrong(&format!(
                    "mount {m}: {name}: {key} is {:?} bytes, must be {:?}",
                    got.map(|g| g.len()),
                    self.nodes[n].xattrs.get(&key).map(Vec::len)
                ));
            }
        }
        let file = self.must("open", File::open(&path));
        self.compare(m, name, &file, n);
    }

    /// A range chosen at random, or the whole.
    fn compare(&mut self, m: usize, what: &str, file: &File, node: usize) {
        let size = self.nodes[node].content.len() as u64;
        let from = if self.rng.below(3) == 0 {
            0
        } else {
            self.rng.below(size + 1)
        };
        let len = if from == 0 {
            size + 1000
        } else {
            self.rng.below(100_000) + 1
        };
        let mut got = vec![0xee; len as usize];
        let mut have = 0;
        while have < got.len() {
            match file.read_at(&mut got[have..], from + have as u64) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) => self.wrong(&format!("mount {m}: read {what}: {e}")),
            }
        }
        let end = (from + len).min(size);
        let must = &self.nodes[node].content[from as usize..end as usize];
        if got[..have] != *must {
            let at = got[..have].iter().zip(must).position(|(a, b)| a != b);
            self.wrong(&format!("mount {m}: {what}: read {have} of {} bytes at {from} (size {size}), first difference at {at:?}", must.len()));
        }
    }

    fn read_open(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let n = self.rng.below(self.open.len() as u64) as usize;
        let (far, node) = (self.open[n].far, self.open[n].node);
        let file = self.must("dup", self.open[n].file.try_clone());
        self.compare(far, "an open file", &file, node);
    }

    fn list(&mut self, m: usize) {
        for d in 0..DIRS {
            let dir = format!("d{d}");
            let entries = self.must(
                "readdir",
                std::fs::read_dir(self.mounts[m].join(&dir))
                    .and_then(|d| d.collect::<Result<Vec<_>, _>>()),
            );
            let got: BTreeSet<String> = entries
                .iter()
                .map(|e| format!("{dir}/{}", e.file_name().to_string_lossy()))
                .collect();
            let must: BTreeSet<String> = self
                .names
                .keys()
                .chain(&self.subdirs)
                .filter(|n| n.starts_with(&format!("{dir}/")))
                .cloned()
                .collect();
            if got != must || got.len() != entries.len() {
                self.wrong(&format!(
                    "mount {m}: {dir} lists {got:?}, must list {must:?}"
                ));
            }
        }
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test whose threads make system calls on a mount"
)]
fn two_mounts_always_agree() {
    in_network_namespace("two_mounts_always_agree", || {
        let two = Two::start();
        let seconds = std::env::var("CORAL_AGREE_S")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(60);
        let mut model = Model::new(two.mounts.clone());
        let over = Arc::new(AtomicBool::new(false));
        let clock = over.clone();
        std::thread::spawn(move || {
            pause(seconds * 1000);
            clock.store(true, Ordering::Relaxed);
        });
        let mut steps = 0;
        while !over.load(Ordering::Relaxed) {
            model.step();
            steps += 1;
        }
        let names: Vec<String> = model.names.keys().cloned().collect();
        for name in names {
            model.look(0, &name);
            model.look(1, &name);
        }
        drop(model);
        two.stop();
        println!("{steps} steps in {seconds} s, all agreed");
        assert!(steps > seconds, "fewer than one step a second");
    });
}

/// Both mounts write at the same time: to ranges of their own in shared pages, and by O_APPEND.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test whose threads make system calls on a mount"
)]
fn simultaneous_writers_lose_nothing() {
    in_network_namespace("simultaneous_writers_lose_nothing", || {
        let two = Two::start();
        const RECORD: usize = 1000;
        const RECORDS: u64 = 200;
        let (ranges, log) = ("ranges", "log");
        for name in [ranges, log] {
            File::create(two.mounts[0].join(name)).unwrap();
        }
        let writers: Vec<_> = [0_u64, 1]
            .into_iter()
            .map(|m| {
                let dir = two.mounts[m as usize].clone();
                std::thread::spawn(move || {
                    let f = OpenOptions::new()
                        .write(true)
                        .open(dir.join(ranges))
                        .unwrap();
                    let mut l = OpenOptions::new().append(true).open(dir.join(log)).unwrap();
                    for n in 0..RECORDS {
                        let record = 2 * n + m;
                        f.write_all_at(&pattern(record, RECORD), record * RECORD as u64)
                            .unwrap();
                        std::io::Write::write_all(&mut l, &pattern(record, RECORD)).unwrap();
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .for_each(|w| w.join().expect("a writer failed"));
        let expected: BTreeSet<Vec<u8>> = (0..2 * RECORDS).map(|r| pattern(r, RECORD)).collect();
        for m in &two.mounts {
            let got = std::fs::read(m.join(ranges)).unwrap();
            let bad = (0..2 * RECORDS).find(|r| {
                got.get(*r as usize * RECORD..)
                    .and_then(|g| g.get(..RECORD))
                    != Some(&pattern(*r, RECORD)[..])
            });
            assert_eq!(
                bad,
                None,
                "{}: first wrong record of the ranges",
                m.display()
            );
            let got = std::fs::read(m.join(log)).unwrap();
            let records: BTreeSet<Vec<u8>> = got.chunks(RECORD).map(<[u8]>::to_vec).collect();
            assert!(
                got.len() == 2 * RECORDS as usize * RECORD && records == expected,
                "{}: appended records were lost or torn ({} bytes)",
                m.display(),
                got.len()
            );
        }
        two.stop();
    });
}
