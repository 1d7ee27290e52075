//! The kernel's memory of attributes above clients that make files, as a model: it keeps what came with a validity until it is told to
//! forget, or changes the file itself. What it remembers is what the file is, at any moment.
//! `CORAL_SEEDS=n` makes the last test try so many orders.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::simulated::number;
use crate::common::*;
use coral_buffers::Payload;
use coral_client::llite::types::Entry;
use coral_client::{FileHandle, Invalidate, SetAttr};
use coral_wire::Fid;
use parking_lot::Mutex;

/// One mount's memory: size and mode of files.
#[derive(Default)]
pub(crate) struct Memory {
    attrs: Mutex<HashMap<Fid, (u64, u32)>>,
    /// Told of since a request began.
    told: Mutex<HashSet<Fid>>,
}

impl Invalidate for Memory {
    fn inval_inode(&self, fid: Fid, _: bool) {
        self.told.lock().insert(fid);
        self.attrs.lock().remove(&fid);
    }
    fn inval_entry(&self, _: Fid, _: &[u8]) {}
    fn drop_pages(&self, _: Fid, _: Range<u64>) {}
    fn own_change(&self, fid: Fid) {
        self.inval_inode(fid, true);
    }
    fn store_pages(&self, _: Fid, _: u64, _: &Payload) -> bool {
        false
    }
}

impl Memory {
    /// A request begins.
    pub(crate) fn begins(&self) {
        self.told.lock().clear();
    }

    /// An answer with attributes is taken in.
    pub(crate) fn take(&self, e: &Entry) {
        let mut attrs = self.attrs.lock();
        let told = self.told.lock().contains(&e.attr.fid);
        if e.attr_ttl > Duration::ZERO && !told {
            attrs.insert(e.attr.fid, (e.attr.size, e.attr.mode & 0o7777));
        } else {
            attrs.remove(&e.attr.fid);
        }
    }

    /// It changes the file itself.
    pub(crate) fn forget(&self, fid: Fid) {
        self.attrs.lock().remove(&fid);
    }

    /// What it remembers.
    pub(crate) fn of(&self, fid: Fid) -> Option<(u64, u32)> {
        self.attrs.lock().get(&fid).copied()
    }

    pub(crate) fn remembers(&self, fid: Fid) -> bool {
        self.of(fid).is_some()
    }
}

/// A mount with its kernel.
struct Mounted {
    u: User,
    memory: Arc<Memory>,
    /// What programs have open.
    open: Vec<(u64, Arc<FileHandle>)>,
}

impl Mounted {
    async fn of(c: &Cluster) -> Mounted {
        let fs = c.remote_client().await;
        let memory = Arc::new(Memory::default());
        fs.set_invalidate(memory.clone());
        Mounted {
            u: User::root(&fs),
            memory,
            open: Vec::new(),
        }
    }

    /// It is remembered from here on.
    async fn create(&self, name: &str, flags: i32) -> (Fid, Arc<FileHandle>) {
        self.memory.begins();
        let (u, name) = (&self.u, name.as_bytes());
        let root = u.fs.root();
        let made = u.fs.create(&u.cred, root, name, 0o644, flags as u32).await;
        let (e, fh) = made.unwrap();
        self.memory.take(&e);
        (e.attr.fid, fh)
    }

    async fn write(&self, fh: &FileHandle, at: u64, data: &[u8]) {
        self.u.write(fh, at, data).await.unwrap();
        self.memory.forget(fh.fid());
    }

    async fn set(&self, fid: Fid, set: SetAttr) {
        self.u
            .fs
            .setattr(&self.u.cred, fid, set, None)
            .await
            .unwrap();
        self.memory.forget(fid);
    }

    /// Size and mode, as a program is told.
    async fn look(&self, fid: Fid) -> (u64, u32) {
        let remembered = self.memory.of(fid);
        if let Some(attrs) = remembered {
            return attrs;
        }
        self.memory.begins();
        let e = self.u.fs.getattr(&self.u.cred, fid, None).await.unwrap();
        self.memory.take(&e);
        (e.attr.size, e.attr.mode & 0o7777)
    }

    fn remembers(&self, fid: Fid) -> bool {
        self.memory.remembers(fid)
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_just_made_is_remembered_until_others_ask() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (a, b) = (Mounted::of(&c).await, Mounted::of(&c).await);
    let (fid, fh) = a.create("f", libc::O_RDWR).await;
    assert!(a.remembers(fid));
    // it stays so beyond the close, and until another wants to know
    a.u.close(&fh).await.unwrap();
    assert!(a.remembers(fid));
    let fid_b = b.u.fid("f").await.unwrap();
    b.look(fid_b).await;
    assert!(!a.remembers(fid));

    // also where the file is open
    let (fid, fh) = a.create("g", libc::O_RDWR).await;
    let w = b.u.open("g", libc::O_WRONLY).await.unwrap();
    assert!(!a.remembers(fid), "who opens it may write");
    b.write(&w, 0, b"theirs").await;
    assert_eq!(a.look(fid).await.0, 6);
    b.u.close(&w).await.unwrap();
    a.u.close(&fh).await.unwrap();

    // a file that was written is closed as any other
    let (fid, fh) = a.create("h", libc::O_RDWR).await;
    a.write(&fh, 0, b"text").await;
    a.u.close(&fh).await.unwrap();
    assert_eq!(a.look(fid).await.0, 4);

    // nothing was written, but the file is open in another way too: its maker's open is closed, and nobody is asked
    let (fid, fh) = a.create("i", libc::O_RDONLY).await;
    let other = a.u.open("i", libc::O_RDONLY).await.unwrap();
    a.u.close(&fh).await.unwrap();
    let w = b.u.open("i", libc::O_WRONLY).await.unwrap();
    b.write(&w, 0, b"theirs").await;
    assert_eq!(a.look(fid).await.0, 6);
    a.u.close(&other).await.unwrap();
    b.u.close(&w).await.unwrap();
    c.stop().await;
}

/// Nothing is remembered where nobody is told.
#[tokio::test(start_paused = true)]
async fn nobody_who_does_not_listen_remembers() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let u = User::root(&c.remote_client().await);
    let (root, flags) = (u.fs.root(), libc::O_RDWR as u32);
    let made = u.fs.create(&u.cred, root, b"f", 0o644, flags).await;
    assert_eq!(made.unwrap().0.attr_ttl, Duration::ZERO);
    c.stop().await;
}

/// What a file is.
#[derive(Clone, Copy)]
struct Is {
    number: u64,
    fid: Fid,
    size: u64,
    mode: u32,
}

/// All files by their names.
type Model = BTreeMap<String, Is>;

fn change(all: &mut Model, number: u64, what: impl Fn(&mut Is)) {
    all.values_mut()
        .filter(|f| f.number == number)
        .for_each(what);
}

/// One operation on an open file.
async fn use_open(rng: &mut Rng, m: &mut Mounted, all: &mut Model) {
    let place = rng.below(m.open.len() as u64) as usize;
    let (number, fh) = m.open[place].clone();
    let (at, len) = (rng.below(9), 1 + rng.below(9));
    let grow = |f: &mut Is| f.size = f.size.max(at + len);
    match rng.below(5) {
        0 | 1 => {
            m.write(&fh, at, &vec![1; len as usize]).await;
            change(all, number, grow);
        }
        2 => {
            let done = m.u.fs.fallocate(&m.u.cred, &fh, 0, at, len).await;
            done.unwrap();
            // the kernel does not forget when it fails, and it may have grown the file then too
            if rng.below(2) == 0 {
                m.memory.attrs.lock().remove(&fh.fid());
            }
            change(all, number, grow);
        }
        _ => {
            m.open.swap_remove(place);
            m.u.close(&fh).await.unwrap();
        }
    }
}

/// One operation, which ends before the next begins.
async fn step(rng: &mut Rng, m: &mut Mounted, all: &mut Model, next: &mut u64) {
    let name = format!("f{}", rng.below(4));
    let known = all.get(&name).copied();
    match (rng.below(14), known) {
        (0..3, None) => {
            let (fid, fh) = m.create(&name, libc::O_RDWR | libc::O_EXCL).await;
            *next += 1;
            match rng.below(3) {
                0 => m.u.close(&fh).await.unwrap(),
                _ => m.open.push((*next, fh)),
            }
            let (number, size, mode) = (*next, 0, 0o644);
            all.insert(
                name,
                Is {
                    number,
                    fid,
                    size,
                    mode,
                },
            );
        }
        (0 | 1 | 13, Some(f)) => {
            let cut = rng.below(3) == 0;
            let flags = libc::O_RDWR | if cut { libc::O_TRUNC } else { 0 };
            let fh = m.u.open(&name, flags).await.unwrap();
            if cut {
                m.memory.forget(f.fid);
                change(all, f.number, |f| f.size = 0);
            }
            m.open.push((f.number, fh));
        }
        (2, Some(f)) => {
            let other = format!("f{}", rng.below(4));
            if m.u.link(&name, &other).await.is_ok() {
                m.memory.attrs.lock().remove(&f.fid);
                all.insert(other, f);
            }
        }
        (3..8, _) if !m.open.is_empty() => use_open(rng, m, all).await,
        (8, Some(f)) => {
            m.u.unlink(&name).await.unwrap();
            m.memory.attrs.lock().remove(&f.fid);
            all.remove(&name);
        }
        (9, Some(f)) => {
            let (size, mode) = (rng.below(9), 0o600 + rng.below(8) as u32);
            let both = rng.below(3);
            let set = SetAttr {
                size: (both != 0).then_some(size),
                mode: (both != 1).then_some(mode),
                ..Default::default()
            };
            m.set(f.fid, set).await;
            change(all, f.number, |f| {
                f.size = set.size.unwrap_or(f.size);
                f.mode = set.mode.unwrap_or(f.mode);
            });
        }
        (_, Some(f)) => assert_eq!(m.look(f.fid).await, (f.size, f.mode), "{name}"),
        _ => {}
    }
}

#[tokio::test(start_paused = true)]
async fn in_any_order_what_is_remembered_is_what_is() {
    for seed in 0..number("CORAL_SEEDS", 60) {
        let mut c = Cluster::start_seeded(2, 1, 1 << 20, seed, "").await;
        let mut mounts = Vec::new();
        for _ in 0..3 {
            mounts.push(Mounted::of(&c).await);
        }
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut all, mut next) = (Model::new(), 0);
        for n in 0..200 {
            let m = &mut mounts[rng.below(3) as usize];
            step(&mut rng, m, &mut all, &mut next).await;
            if n == 120 && seed % 4 == 1 {
                c = c.kill_and_restart().await;
            }
            if n % 10 != 0 {
                continue;
            }
            for m in &mounts {
                for (name, f) in all.iter().filter(|(_, f)| m.remembers(f.fid)) {
                    let remembered = m.look(f.fid).await;
                    assert_eq!(remembered, (f.size, f.mode), "seed {seed}, {n}: {name}");
                }
            }
        }
        for m in &mut mounts {
            for (_, fh) in m.open.drain(..) {
                m.u.close(&fh).await.unwrap();
            }
        }
        c.stop().await;
    }
}
