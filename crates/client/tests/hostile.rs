//! A client that is connected like others and sends nonsense: real requests with its own valid handles, changed on their way, sent
//! twice, sent again much later. The servers live, hold no more than they should, believe nothing that the nodemap does not
//! allow, and serve others as before.
//!
//! Seeded: a failure prints its seed, and `CORAL_SEED=n` repeats it. It ends after so many changed messages, or after
//! `CORAL_HOSTILE_S` seconds of CPU time (`cargo xtask hostile`).

mod common;
#[path = "../../lnet/tests/panics/mod.rs"]
mod panics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use coral_buffers::Payload;
use coral_client::{
    Cred, DirEntry, FileHandle, FileLock, Llite, LockKind, MountOptions, SeekWhence, SetAttr,
    SetTime,
};
use coral_lnet::{LNET_MTU, Nid, Passing};
use coral_node::Disks;
use coral_osd::{Objects, OsdSim};
use coral_server::nodemap::Command;
use coral_wire::layout::LovMd;
use coral_wire::ptlrpc::{Message, opc, portal};
use coral_wire::{Errno, Fid};
use panics::panics;
use parking_lot::Mutex;
use rand::seq::IndexedRandom;
use rand::{Rng as _, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Changed messages in the short form.
const CHANGED: u64 = 30_000;
/// Operations of one hostile mount before the next takes its place.
const OPERATIONS: u32 = 600;
/// An operation of the good client takes no longer, by the paused clock; a server waits 100 s for a lock that is not given back.
const PATIENCE: Duration = Duration::from_secs(400);
/// By the machine's clock nothing at all happens for so long: it hangs.
const HANGS_S: u64 = 300;
/// Of each target.
const DISK_BYTES: u64 = 256 << 20;
/// Beyond what a first quarter of the long form needs.
const GROWTH_BYTES: u64 = 128 << 20;
const GOOD: &str = "10.0.[0-255].[0-255]@tcp";
const HOSTILE: &str = "10.9.[0-255].[0-255]@tcp";

/// What changes messages, and what it knows.
struct Liar {
    rng: ChaCha8Rng,
    /// FIDs of the good client's files, which it has heard of.
    others: Vec<Fid>,
    /// Words of messages before.
    words: Vec<u64>,
    /// Whole requests of before, with their portals.
    old: Vec<(u32, Bytes)>,
    /// Of a hundred requests so many are changed.
    percent: u32,
    changed: Arc<AtomicU64>,
}

/// Keeps the newest of a few.
fn remember<T>(list: &mut Vec<T>, rng: &mut ChaCha8Rng, most: usize, new: T) {
    if list.len() < most {
        list.push(new);
    } else {
        let at = rng.random_range(0..most);
        list[at] = new;
    }
}

impl Liar {
    fn passes(&mut self, p: Passing) -> Vec<Passing> {
        let Some(to) = p.portal else {
            return vec![self.bulk(p)];
        };
        let whole = p.payload.clone().copy_to_bytes();
        let Ok(m) = Message::decode(whole.clone()) else {
            return vec![p];
        };
        for buf in m.bufs.iter().skip(1) {
            for word in buf.chunks_exact(8).take(24) {
                let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                if word != 0 && self.rng.random_bool(0.1) {
                    remember(&mut self.words, &mut self.rng, 512, word);
                }
            }
        }
        remember(&mut self.old, &mut self.rng, 128, (to, whole.clone()));
        if self.rng.random_range(0..100) >= self.percent {
            return vec![p];
        }
        self.changed.fetch_add(1, Ordering::Relaxed);
        let changed = |portal: u32, match_bits: u64, bytes: Vec<u8>| Passing {
            portal: Some(portal),
            match_bits,
            payload: Payload::from(bytes),
        };
        match self.rng.random_range(0..10) {
            // as it is, and nonsense beside it
            0..4 => {
                let bits = if self.rng.random_bool(0.5) {
                    p.match_bits
                } else {
                    p.match_bits.wrapping_add(self.rng.random_range(1..64))
                };
                let (to, bytes) = (self.portal(to), self.lie(&m));
                vec![p, changed(to, bits, bytes)]
            }
            // one of before, as it was or not
            4 => {
                let (to, bytes) = self
                    .old
                    .choose(&mut self.rng)
                    .cloned()
                    .expect("one at least");
                let bytes = match Message::decode(bytes.clone()) {
                    Ok(old) if self.rng.random_bool(0.5) => self.lie(&old),
                    _ => bytes.to_vec(),
                };
                let bits = p.match_bits.wrapping_add(self.rng.random_range(0..64));
                vec![p, changed(to, bits, bytes)]
            }
            5 => vec![p.clone(), p],
            _ => {
                let (to, bytes) = (self.portal(to), self.lie(&m));
                vec![changed(to, p.match_bits, bytes)]
            }
        }
    }

    /// Data a server fetched: now and then of another length.
    fn bulk(&mut self, p: Passing) -> Passing {
        if self.rng.random_range(0..100) >= self.percent {
            return p;
        }
        self.changed.fetch_add(1, Ordering::Relaxed);
        let mut bytes = p.payload.copy_to_bytes().to_vec();
        bytes.resize(self.length(bytes.len()), 7);
        Passing {
            payload: Payload::from(bytes),
            ..p
        }
    }

    fn length(&mut self, now: usize) -> usize {
        let n = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..=now),
            1 => now + 8 * self.rng.random_range(1..64),
            2 => self.rng.random_range(0..4096),
            _ => now.saturating_sub(8),
        };
        n.min(LNET_MTU)
    }

    /// Mostly the right one.
    fn portal(&mut self, right: u32) -> u32 {
        const OF_SERVERS: &[u32] = &[
            portal::OST_IO,
            portal::OST_CREATE,
            portal::MDS_REQUEST,
            portal::MDS_IO,
            portal::LDLM_CANCEL_REQUEST,
            portal::MDS_READPAGE,
            portal::OUT,
            portal::MGS_REQUEST,
            portal::OST_REQUEST,
            portal::FLD_REQUEST,
            portal::SEQ_METADATA,
        ];
        if self.rng.random_bool(0.95) {
            right
        } else {
            *OF_SERVERS.choose(&mut self.rng).expect("some")
        }
    }

    /// A number that hurts, or one that meant something elsewhere.
    fn word(&mut self, now: u64) -> u64 {
        match self.rng.random_range(0..12) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.rng.random_range(0..64),
            3 => now.wrapping_add(1),
            4 => now.wrapping_sub(1),
            5 => u64::from(u32::MAX),
            6 => i64::MAX as u64,
            7 => now ^ 1 << self.rng.random_range(0..64),
            8 => self.rng.random(),
            _ => self.words.choose(&mut self.rng).copied().unwrap_or(now),
        }
    }

    fn lie(&mut self, m: &Message) -> Vec<u8> {
        let mut m = m.clone();
        for _ in 0..self.rng.random_range(1..4) {
            self.change(&mut m);
        }
        let mut bytes = m.encode().to_vec();
        match self.rng.random_range(0..20) {
            0 => bytes.truncate(self.rng.random_range(0..=bytes.len())),
            1 => {
                // head and lengths
                let at = self.rng.random_range(0..bytes.len().clamp(1, 64));
                bytes[at] = self.rng.random();
            }
            _ => {}
        }
        bytes.truncate(LNET_MTU);
        bytes
    }

    fn change(&mut self, m: &mut Message) {
        let which = if m.bufs.len() > 1 && self.rng.random_bool(0.8) {
            self.rng.random_range(1..m.bufs.len())
        } else {
            0
        };
        let mut buf = m.bufs[which].to_vec();
        match self.rng.random_range(0..12) {
            0 if which > 0 => buf.resize(self.length(buf.len()).min(1 << 17), 0),
            1 if which > 0 => drop(m.bufs.remove(which)),
            2 => m
                .bufs
                .push(Bytes::from(vec![0x55; self.rng.random_range(0..300)])),
            3 if which > 0 => self.rng.fill_bytes(&mut buf),
            // the opcode, and what kind of reint or intent it is
            4 if which == 0 && buf.len() >= 20 => {
                let new = *opc::ALL.choose(&mut self.rng).expect("some");
                buf[16..20].copy_from_slice(&new.to_le_bytes());
            }
            4 if buf.len() >= 4 => {
                buf[..4].copy_from_slice(&self.rng.random_range(0..24u32).to_le_bytes())
            }
            // flags of the message: sent again, replayed, the last of them
            5 if m.bufs[0].len() >= 64 => {
                let mut body = m.bufs[0].to_vec();
                body[56..60].copy_from_slice(&(1u32 << self.rng.random_range(0..16)).to_le_bytes());
                m.bufs[0] = body.into();
                return;
            }
            // a file of somebody else where one of its own was
            6 | 7 => {
                let own = |w: &[u8]| {
                    (0x2_0000_0400..0x100_0000_0000)
                        .contains(&u64::from_le_bytes(w.try_into().expect("8 bytes")))
                };
                let places: Vec<usize> = (0..buf.len().saturating_sub(15) / 8)
                    .map(|i| 8 * i)
                    .filter(|i| own(&buf[*i..i + 8]))
                    .collect();
                if let (Some(at), Some(fid)) = (
                    places.choose(&mut self.rng),
                    self.others.choose(&mut self.rng),
                ) {
                    buf[*at..at + 8].copy_from_slice(&fid.seq.to_le_bytes());
                    buf[at + 8..at + 12].copy_from_slice(&fid.oid.to_le_bytes());
                    buf[at + 12..at + 16].copy_from_slice(&fid.ver.to_le_bytes());
                }
            }
            8 if !buf.is_empty() => {
                let at = self.rng.random_range(0..buf.len());
                buf[at] = self.rng.random();
            }
            9 if buf.len() >= 4 => {
                let at = 4 * self.rng.random_range(0..buf.len() / 4);
                let now = u32::from_le_bytes(buf[at..at + 4].try_into().expect("4 bytes"));
                buf[at..at + 4].copy_from_slice(&(self.word(now.into()) as u32).to_le_bytes());
            }
            _ if buf.len() >= 8 => {
                let at = 8 * self.rng.random_range(0..buf.len() / 8);
                let now = u64::from_le_bytes(buf[at..at + 8].try_into().expect("8 bytes"));
                buf[at..at + 8].copy_from_slice(&self.word(now).to_le_bytes());
            }
            _ => {}
        }
        if let Some(b) = m
            .bufs
            .get_mut(which)
            .filter(|_| which > 0 || buf.len() == 184)
        {
            *b = buf.into();
        }
    }
}

// ---- what the hostile client does ----------------------------------------------------------------------------------

struct Hostile {
    fs: Arc<Llite>,
    rng: ChaCha8Rng,
    dir: Fid,
    open: Vec<Arc<FileHandle>>,
    /// FIDs it has seen.
    seen: Vec<Fid>,
}

impl Hostile {
    fn cred(&mut self) -> Cred {
        if self.rng.random_bool(0.5) {
            Cred::root()
        } else {
            Cred::user(1000, 1000)
        }
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.random_range(0..24)).into_bytes()
    }

    fn at(&mut self) -> u64 {
        [0, 1, 4096, 65_536, 1 << 20, 1 << 24][self.rng.random_range(0..6)]
            + self.rng.random_range(0..9)
    }

    async fn fid(&mut self, cred: &Cred) -> Result<Fid> {
        if !self.seen.is_empty() && self.rng.random_bool(0.5) {
            return Ok(self.seen[self.rng.random_range(0..self.seen.len())]);
        }
        let (dir, name) = (self.parent(), self.name());
        Ok(self.fs.lookup(cred, dir, &name).await?.attr.fid)
    }

    fn parent(&mut self) -> Fid {
        if self.rng.random_bool(0.7) {
            self.dir
        } else {
            self.seen.choose(&mut self.rng).copied().unwrap_or(self.dir)
        }
    }

    fn see(&mut self, fid: Fid) {
        remember(&mut self.seen, &mut self.rng, 32, fid);
    }

    async fn step(&mut self) -> Result<()> {
        let (fs, cred) = (self.fs.clone(), self.cred());
        let (dir, name, at) = (self.parent(), self.name(), self.at());
        let handle = self.open.choose(&mut self.rng).cloned();
        match (self.rng.random_range(0..30), handle) {
            (0, _) => self.see(fs.mkdir(&cred, dir, &name, 0o777).await?.attr.fid),
            (1, _) => self.see(fs.symlink(&cred, dir, &name, b"where/to").await?.attr.fid),
            (2, _) => self.see(
                fs.mknod(&cred, dir, &name, libc::S_IFIFO | 0o666, 0)
                    .await?
                    .attr
                    .fid,
            ),
            (3, _) => {
                let fid = self.fid(&cred).await?;
                fs.link(&cred, fid, dir, &name).await.map(drop)?;
            }
            (4, _) => fs.unlink(&cred, dir, &name).await?,
            (5, _) => fs.rmdir(&cred, dir, &name).await?,
            (6, _) => {
                let (to, new) = (self.parent(), self.name());
                let flags = if self.rng.random_bool(0.2) {
                    libc::RENAME_NOREPLACE
                } else {
                    0
                };
                fs.rename(&cred, dir, &name, to, &new, flags).await?;
            }
            (7, _) => {
                let set = SetAttr {
                    mode: Some(self.rng.random_range(0..0o10000)),
                    size: self.rng.random_bool(0.3).then_some(at),
                    mtime: Some(SetTime::Now),
                    ..Default::default()
                };
                let fid = self.fid(&cred).await?;
                fs.setattr(&cred, fid, set, None).await.map(drop)?;
            }
            (8, _) => {
                let set = SetAttr {
                    uid: Some(self.rng.random_range(0..3)),
                    gid: Some(1000),
                    projid: Some(7),
                    ..Default::default()
                };
                let fid = self.fid(&cred).await?;
                fs.setattr(&cred, fid, set, None).await.map(drop)?;
            }
            (9, _) => {
                let attrs = [
                    &b"user.a"[..],
                    b"trusted.b",
                    b"security.capability",
                    b"system.posix_acl_access",
                    b"trusted.lov",
                    b"lustre.lov",
                ];
                let (name, len) = (
                    attrs[self.rng.random_range(0..attrs.len())],
                    self.rng.random_range(0..5000),
                );
                let fid = self.fid(&cred).await?;
                fs.setxattr(&cred, fid, name, Bytes::from(vec![2; len]), 0)
                    .await?;
            }
            (10, _) => {
                let fid = self.fid(&cred).await?;
                fs.listxattr(&cred, fid).await?;
                fs.getxattr(&cred, fid, b"user.a").await?;
            }
            (11, _) => {
                let fid = self.fid(&cred).await?;
                fs.fid2path(&cred, fid).await.map(drop)?;
            }
            (12, _) => {
                let dh = fs.opendir(&cred, dir).await?;
                let read = fs
                    .readdir(&cred, &dh, 0, self.rng.random_bool(0.5), &mut |_| false)
                    .await;
                fs.releasedir(&dh).await?;
                read?;
            }
            (13, _) => fs.statfs().await.map(drop)?,
            (14, _) => {
                let fid = self.fid(&cred).await?;
                fs.readlink(&cred, fid).await.map(drop)?;
            }
            (15..19, _) => {
                let flags = libc::O_RDWR
                    | if self.rng.random_bool(0.3) {
                        libc::O_TRUNC
                    } else {
                        0
                    };
                let (e, fh) = fs.create(&cred, dir, &name, 0o666, flags as u32).await?;
                self.see(e.attr.fid);
                self.open.push(fh);
                if self.open.len() > 12 {
                    let old = self.rng.random_range(0..self.open.len());
                    fs.release(&self.open.swap_remove(old)).await?;
                }
            }
            (19 | 20, Some(fh)) => drop(
                fs.write(
                    &cred,
                    &fh,
                    at,
                    payload(&vec![at as u8; (at as usize % 90_000) + 1]),
                )
                .await?,
            ),
            (21, Some(fh)) => drop(fs.read(&fh, at, 70_000).await?),
            (22, Some(fh)) => fs.fsync(&fh, self.rng.random_bool(0.5)).await?,
            (23, Some(fh)) => {
                let mode = [
                    0,
                    libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                ];
                fs.fallocate(
                    &cred,
                    &fh,
                    mode[self.rng.random_range(0..4)] as u32,
                    at,
                    70_000,
                )
                .await?;
            }
            (24, Some(fh)) => drop(fs.lseek(&fh, at, SeekWhence::Hole).await?),
            (25, Some(fh)) => {
                let lock = FileLock {
                    start: at,
                    end: at + 100,
                    kind: [LockKind::Read, LockKind::Write, LockKind::Unlock]
                        [self.rng.random_range(0..3)],
                    pid: 1,
                };
                fs.setlk(&fh, self.rng.random_range(0..3), lock, false)
                    .await?;
            }
            (26, Some(fh)) => fs.flock(&fh, LockKind::Write, false).await?,
            (27, Some(fh)) => {
                self.open.retain(|o| !Arc::ptr_eq(o, &fh));
                fs.release(&fh).await?;
            }
            (28, Some(fh)) => drop(
                fs.setattr(
                    &cred,
                    fh.fid(),
                    SetAttr {
                        size: Some(at),
                        ..Default::default()
                    },
                    Some(&fh),
                )
                .await?,
            ),
            _ => {
                let e = fs.lookup(&cred, dir, &name).await?;
                self.see(e.attr.fid);
                fs.getattr(&cred, e.attr.fid, None).await.map(drop)?;
            }
        }
        Ok(())
    }
}

// ---- what the good client does -------------------------------------------------------------------------------------

/// A file of the good client: content, permissions, one attribute.
type Kept = BTreeMap<String, (Vec<u8>, u32, Vec<u8>)>;

struct Good {
    kept: Kept,
    rng: ChaCha8Rng,
    rounds: u64,
}

const ATTRIBUTE: &[u8] = b"user.kept";

impl Good {
    /// Makes, changes and removes files in `good`, and looks at one.
    async fn round(&mut self, u: &User) -> Result<()> {
        self.rounds += 1;
        let name = format!("f{}", self.rng.random_range(0..20));
        let path = format!("good/{name}");
        let (data, mode) = (
            vec![self.rounds as u8; self.rng.random_range(1..70_000)],
            self.rng.random_range(0..8) << 6,
        );
        match self.rng.random_range(0..4) {
            0 if self.kept.contains_key(&name) => {
                u.unlink(&path).await?;
                self.kept.remove(&name);
            }
            1 if self.kept.contains_key(&name) => {
                let new = format!("f{}", self.rng.random_range(0..20));
                u.rename(&path, &format!("good/{new}"), 0).await?;
                let moved = self.kept.remove(&name).expect("it is there");
                self.kept.insert(new, moved);
            }
            _ => {
                let tmp = format!("good/tmp{}", self.rounds);
                let fid = u.put(&tmp, &data).await?;
                let value = format!("{}", self.rounds).into_bytes();
                u.fs.setattr(
                    &u.cred,
                    fid,
                    SetAttr {
                        mode: Some(mode),
                        ..Default::default()
                    },
                    None,
                )
                .await?;
                u.fs.setxattr(&u.cred, fid, ATTRIBUTE, Bytes::from(value.clone()), 0)
                    .await?;
                u.rename(&tmp, &path, 0).await?;
                self.kept.insert(name, (data, mode, value));
            }
        }
        Ok(())
    }

    /// All of it as another client sees it, which has nothing cached.
    async fn verify(&self, u: &User) -> Result<()> {
        assert_eq!(
            u.names("good").await?,
            self.kept.keys().cloned().collect::<Vec<_>>()
        );
        for (name, (data, mode, value)) in &self.kept {
            let path = format!("good/{name}");
            let attr = u.stat(&path).await?;
            assert_eq!(
                (attr.mode & 0o7777, attr.uid, attr.nlink, attr.size),
                (*mode, 0, 1, data.len() as u64),
                "{path}"
            );
            assert!(u.get(&path).await? == *data, "{path}: other data");
            assert_eq!(
                u.fs.getxattr(&u.cred, attr.fid, ATTRIBUTE).await?,
                value[..],
                "{path}"
            );
        }
        Ok(())
    }
}

// ---- the run -------------------------------------------------------------------------------------------------------

/// Has the MGS trust [`GOOD`] nodes and no others.
async fn trust_the_good(c: &Cluster) {
    let name = |n: &str| n.to_owned();
    let yes = |n: &str, what: &str| Command::Modify {
        name: name(n),
        property: name(what),
        value: name("1"),
    };
    let commands = [
        Command::Add { name: name("good") },
        Command::Add {
            name: name("hostile"),
        },
        Command::AddRange {
            name: name("good"),
            range: name(GOOD),
        },
        Command::AddRange {
            name: name("hostile"),
            range: name(HOSTILE),
        },
        yes("good", "admin"),
        yes("good", "trusted"),
        Command::Activate(true),
    ];
    let servers = c.servers_at(c.mgs_nid()).expect("it runs");
    for command in &commands {
        servers.change_nodemaps(command).await.expect("a command");
    }
}

/// All of a directory goes, whatever it became. Requests of a client that left without a word may still be under way: what they
/// move or remove meanwhile is looked for again, and a name that leads nowhere stays and is told.
async fn clear(u: &User, dir: Fid) -> Result<()> {
    const ROUNDS: usize = 100;
    for _ in 0..ROUNDS {
        match clear_once(u, dir).await {
            Ok(()) => return Ok(()),
            Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::ESTALE) => {}
            Err(e) => return Err(e),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("names that cannot be removed: {:?}", all_of(u, dir).await?);
}

/// What a directory holds.
async fn all_of(u: &User, dir: Fid) -> Result<Vec<DirEntry>> {
    let dh = u.fs.opendir(&u.cred, dir).await?;
    let mut all = Vec::new();
    u.fs.readdir(&u.cred, &dh, 0, false, &mut |e| {
        all.push(e);
        false
    })
    .await?;
    u.fs.releasedir(&dh).await?;
    all.retain(|e| &e.name[..] != b"." && &e.name[..] != b"..");
    Ok(all)
}

async fn clear_once(u: &User, dir: Fid) -> Result<()> {
    let mut left = vec![(dir, None::<(Fid, Bytes)>)];
    while let Some((at, own)) = left.pop() {
        let all = all_of(u, at).await?;
        let below: Vec<_> = all
            .iter()
            .filter(|e| e.kind == libc::S_IFDIR)
            .map(|e| (e.fid, Some((at, e.name.clone()))))
            .collect();
        for e in all.iter().filter(|e| e.kind != libc::S_IFDIR) {
            match u.fs.unlink(&u.cred, at, &e.name).await.map_err(Errno::from) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(error) => panic!(
                    "{} of type {:o} in {at} cannot be removed: {error}",
                    e.name.escape_ascii(),
                    e.kind
                ),
            }
        }
        match (below.is_empty(), own) {
            (true, Some((parent, name))) => u.fs.rmdir(&u.cred, parent, &name).await?,
            (true, None) => {}
            (false, own) => {
                left.push((at, own));
                left.extend(below);
            }
        }
    }
    Ok(())
}

/// CPU time of this process, in the kernel's ticks of 10 ms.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let fields = stat
        .rsplit(')')
        .next()
        .expect("after the name")
        .split_ascii_whitespace();
    Duration::from_millis(
        10 * fields
            .skip(11)
            .take(2)
            .map(|n| n.parse::<u64>().expect("ticks"))
            .sum::<u64>(),
    )
}

/// Bytes of memory that are in use, but for what is stored: disks of their own size, which lie in memory here. (Objects that a
/// hostile client makes by their ids are nobody's to remove.) What the allocator only keeps is given back first.
#[allow(
    unsafe_code,
    reason = "a call of the C library without arguments that matter"
)]
fn held(disks: &Disks) -> u64 {
    // SAFETY: it takes a number and touches free memory alone.
    unsafe { libc::malloc_trim(0) };
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = statm.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok());
    let stored = |osd: &OsdSim| {
        let s = osd.space().expect("in memory");
        (s.blocks - s.blocks_free) * u64::from(s.block_size)
    };
    let all: u64 = disks.osts.iter().chain([&disks.mdt]).map(stored).sum();
    (pages.expect("pages") * 4096).saturating_sub(all)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Says the seed and ends the process when nothing happens any more: time is paused, a hang has no timeout.
#[expect(
    clippy::disallowed_methods,
    reason = "time is paused, and a hang has to be seen all the same"
)]
fn watch(alive: Arc<AtomicU64>, seed: u64) {
    std::thread::spawn(move || {
        let mut last = (alive.load(Ordering::Relaxed), std::time::Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(5));
            let now = alive.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, std::time::Instant::now());
            } else if last.1.elapsed() > Duration::from_secs(HANGS_S) {
                eprintln!("nothing happens after {now} steps: CORAL_SEED={seed}");
                std::process::abort();
            }
        }
    });
}

async fn in_time<T>(what: &str, f: impl Future<Output = Result<T>>) -> T {
    match tokio::time::timeout(PATIENCE, f).await {
        Ok(Ok(v)) => v,
        Ok(Err(e)) => panic!("the good client: {what}: {e}"),
        Err(_) => panic!("the good client: {what} takes over {PATIENCE:?}"),
    }
}

/// A client that the nodemap trusts.
async fn good(c: &Cluster, n: u32) -> User {
    User::root(
        &c.client_at(&format!("10.0.{}.{}@tcp", 5 + n / 250, 1 + n % 250), "")
            .await,
    )
}

#[tokio::test(start_paused = true)]
async fn a_hostile_client_harms_nobody() {
    assert_eq!(panics(), 0);
    let seed = number("CORAL_SEED").unwrap_or(11);
    println!("CORAL_SEED={seed}");
    let long = number("CORAL_HOSTILE_S").map(Duration::from_secs);
    let (changed, alive) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    watch(alive.clone(), seed);

    let c = Cluster::start_bounded(2, DISK_BYTES).await;
    trust_the_good(&c).await;
    let u = good(&c, 0).await;
    let place = async |name: &str, mode: u32, ost: u16| {
        let fid = u.mkdir(name).await.unwrap();
        u.fs.setattr(
            &u.cred,
            fid,
            SetAttr {
                mode: Some(mode),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
        u.fs.setxattr(
            &u.cred,
            fid,
            b"lustre.lov",
            LovMd::request(1 << 20, 1, ost, None).encode(),
            0,
        )
        .await
        .unwrap();
        fid
    };
    // I/O by object id is taken from every client of an OST: the good one has an OST for itself
    let (mine, theirs) = (
        place("good", 0o700, 1).await,
        place("theirs", 0o1777, 0).await,
    );
    let mut kept = Good {
        kept: Kept::new(),
        rng: ChaCha8Rng::seed_from_u64(seed ^ 1),
        rounds: 0,
    };
    let (mut mounts, mut steps, mut failed, mut stuck) = (0u32, 0u64, 0u64, 0u64);
    let mut quarter = None;
    let done = || match long {
        Some(limit) => cpu().as_secs_f64() / limit.as_secs_f64(),
        None => changed.load(Ordering::Relaxed) as f64 / CHANGED as f64,
    };
    while done() < 1.0 {
        mounts += 1;
        let at: Nid = format!("10.9.{}.{}@tcp", mounts / 250 % 250, 1 + mounts % 250)
            .parse()
            .unwrap();
        let mut rng =
            ChaCha8Rng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(mounts.into()));
        let opts = MountOptions {
            plain: rng.random_bool(0.5),
            ..c.mount_options()
        };
        let fs = Llite::mount(c.node_at(at, &[]).await.expect("a node"), opts)
            .await
            .expect("the hostile client mounts");
        let other = fs
            .params()
            .into_iter()
            .map(|p| p.0)
            .find(|n| n.starts_with("osc.test-OST0001") && n.ends_with(".active"));
        fs.set_param(&other.expect("it knows the other OST"), "0")
            .await
            .expect("it leaves that one");
        let mut others = vec![mine, Fid::ROOT];
        for name in kept.kept.keys() {
            others.push(u.fid(&format!("good/{name}")).await.unwrap());
        }
        let percent = [2, 10, 30][rng.random_range(0..3)];
        let liar = Liar {
            rng: ChaCha8Rng::seed_from_u64(rng.random()),
            others,
            words: vec![],
            old: vec![],
            percent,
            changed: changed.clone(),
        };
        let liar = Mutex::new(liar);
        c.net.tamper(at, Arc::new(move |p| liar.lock().passes(p)));
        let mut h = Hostile {
            fs,
            rng,
            dir: theirs,
            open: vec![],
            seen: vec![],
        };
        let mut in_a_row = 0;
        for n in 0..OPERATIONS {
            steps += 1;
            alive.fetch_add(1, Ordering::Relaxed);
            match tokio::time::timeout(Duration::from_secs(120), h.step()).await {
                Ok(r) => (failed, in_a_row) = (failed + u64::from(r.is_err()), 0),
                Err(_) => (stuck, in_a_row) = (stuck + 1, in_a_row + 1),
            }
            if in_a_row > 3 {
                break;
            }
            if n % 10 == 0 {
                in_time("a round", kept.round(&u)).await;
            }
        }
        // half of them leave without a word
        if h.rng.random_bool(0.5) {
            let _ = tokio::time::timeout(Duration::from_secs(60), h.fs.umount()).await;
        }
        let node = h.fs.node().clone();
        drop(h);
        node.shutdown().await;
        if mounts % 8 == 0 {
            let other = good(&c, mounts).await;
            in_time("a look at everything", kept.verify(&other)).await;
            in_time("removing what the hostile one made", clear(&other, theirs)).await;
            other.fs.umount().await;
            other.fs.node().shutdown().await;
            assert_eq!(panics(), 0);
        }
        if done() >= 0.25 {
            let now = held(&c.disks);
            let first = *quarter.get_or_insert(now);
            assert!(
                now < first + GROWTH_BYTES,
                "{} MiB are held after {} MiB at a quarter",
                now >> 20,
                first >> 20
            );
        }
    }
    in_time("removing what the hostile one made", clear(&u, theirs)).await;
    // the exports of those that left without a word go
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        in_time("a round", kept.round(&u)).await;
    }
    in_time(
        "a look at everything",
        kept.verify(&good(&c, mounts + 1).await),
    )
    .await;
    for t in [&c.mdt().target].into_iter().chain(&c.osts()) {
        let exports = t.exports();
        let hostile = exports
            .iter()
            .filter(|e| e.nid().to_string().starts_with("10.9."))
            .count();
        assert_eq!(hostile, 0, "{} keeps exports", t.name());
        let locks = t.ldlm().locks();
        let nobodys = locks
            .iter()
            .filter(|l| {
                l.export
                    .is_some_and(|e| !exports.iter().any(|x| x.cookie == e))
            })
            .count();
        assert_eq!(nobodys, 0, "{} keeps locks of nobody", t.name());
    }
    assert_eq!(panics(), 0);
    println!(
        "{} changed messages, {mounts} hostile mounts, {steps} operations of them, {failed} failed, {stuck} without an end, {} rounds of the good client, {:.0} s of CPU, {} MiB at the end ({} at a quarter)",
        changed.load(Ordering::Relaxed),
        kept.rounds,
        cpu().as_secs_f64(),
        held(&c.disks) >> 20,
        quarter.unwrap_or(0) >> 20
    );
    u.fs.umount().await;
    c.stop().await;
    let report = coral_server::mdt::check(&c.disks.mdt).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
