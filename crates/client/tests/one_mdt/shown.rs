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
struct Memory {
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

    /// An answer with attributes is taken in.
    fn take(&self, e: &Entry) {
        let mut attrs = self.memory.attrs.lock();
        let told = self.memory.told.lock().contains(&e.attr.fid);
        if e.attr_ttl > Duration::ZERO && !told {
            attrs.insert(e.attr.fid, (e.attr.size, e.attr.mode & 0o7777));
        } else {
            attrs.remove(&e.attr.fid);
        }
    }

    /// It is remembered from here on.
    async fn create(&self, name: &str, flags: i32) -> (Fid, Arc<FileHandle>) {
        self.memory.told.lock().clear();
        let (u, name) = (&self.u, name.as_bytes());
        let root = u.fs.root();
        let made = u.fs.create(&u.cred, root, name, 0o644, flags as u32).await;
        let (e, fh) = made.unwrap();
        self.take(&e);
        (e.attr.fid, fh)
    }

    async fn write(&self, fh: &FileHandle, at: u64, data: &[u8]) {
        self.u.write(fh, at, data).await.unwrap();
        self.memory.attrs.lock().remove(&fh.fid());
    }

    async fn set(&self, fid: Fid, set: SetAttr) {
        self.u
            .fs
            .setattr(&self.u.cred, fid, set, None)
            .await
            .unwrap();
        self.memory.attrs.lock().remove(&fid);
    }

    /// Size and mode, as a program is told.
    async fn look(&self, fid: Fid) -> (u64, u32) {
        let remembered = self.memory.attrs.lock().get(&fid).copied();
        if let Some(attrs) = remembered {
            return attrs;
        }
        self.memory.told.lock().clear();
        let e = self.u.fs.getattr(&self.u.cred, fid, None).await.unwrap();
        self.take(&e);
        (e.attr.size, e.attr.mode & 0o7777)
    }

    fn remembers(&self, fid: Fid) -> bool {
        self.memory.attrs.lock().contains_key(&fid)
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

/// What a file is: its identity, FID, size and mode.
type Model = BTreeMap<String, (u64, Fid, u64, u32)>;

/// One operation, which ends before the next begins.
async fn step(rng: &mut Rng, m: &mut Mounted, all: &mut Model, next: &mut u64) {
    let name = format!("f{}", rng.below(4));
    let known = all.get(&name).copied();
    match (rng.below(12), known) {
        (0..3, None) => {
            let (fid, fh) = m.create(&name, libc::O_RDWR | libc::O_EXCL).await;
            *next += 1;
            match rng.below(3) {
                0 => m.u.close(&fh).await.unwrap(),
                _ => m.open.push((*next, fh)),
            }
            all.insert(name, (*next, fid, 0, 0o644));
        }
        (0..2, Some((id, ..))) => {
            let fh = m.u.open(&name, libc::O_RDWR).await.unwrap();
            m.open.push((id, fh));
        }
        (3..5, _) if !m.open.is_empty() => {
            let (id, fh) = &m.open[rng.below(m.open.len() as u64) as usize];
            let (at, data) = (rng.below(9), vec![1; 1 + rng.below(9) as usize]);
            m.write(fh, at, &data).await;
            if let Some(f) = all.values_mut().find(|f| f.0 == *id) {
                f.2 = f.2.max(at + data.len() as u64);
            }
        }
        (5..8, _) if !m.open.is_empty() => {
            let at = rng.below(m.open.len() as u64) as usize;
            let (_, fh) = m.open.swap_remove(at);
            m.u.close(&fh).await.unwrap();
        }
        (8, Some(f)) => {
            m.u.unlink(&name).await.unwrap();
            m.memory.attrs.lock().remove(&f.1);
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
            m.set(f.1, set).await;
            let f = all.get_mut(&name).unwrap();
            f.2 = set.size.unwrap_or(f.2);
            f.3 = set.mode.unwrap_or(f.3);
        }
        (_, Some((_, fid, size, mode))) => {
            assert_eq!(m.look(fid).await, (size, mode), "{name}");
        }
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
                for (name, &(_, fid, size, mode)) in &all {
                    if m.remembers(fid) {
                        assert_eq!(m.look(fid).await, (size, mode), "seed {seed}, {n}: {name}");
                    }
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
