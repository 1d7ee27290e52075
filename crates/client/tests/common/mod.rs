//! Short names for what tests of the client do all the time: a whole file system on memory, clients, operations of a user.
#![allow(dead_code, reason = "each test uses its part")]

pub mod journal;
pub mod own_files;
pub mod simulated;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::{Cred, DirEntry, FileHandle, Llite, MountOptions};
use coral_lnet::{Nid, Node, RouteSpec};
use coral_metrics::{Point, Snapshot};
use coral_node::{Builder, Client, Disks, Servers};
use coral_osd::{DiskModel, OsdMem, OsdSim};
use coral_wire::layout::{CompEntry, CompMd, LOV_OFFSET_DEFAULT, Layout, LovMd, pattern};
use coral_wire::{Errno, Fid};

pub const SERVER: &str = "10.0.0.1@tcp";
pub const FSNAME: &str = "test";
/// Bytes of a file that lie on the MDT, in directories of [`User::dom_dir`].
pub const DOM: u64 = 65536;

/// A xorshift generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A cluster, and what tests do all the time with it. Whatever fails in it fails the test.
pub struct Cluster(coral_node::Cluster);

impl Deref for Cluster {
    type Target = coral_node::Cluster;

    fn deref(&self) -> &coral_node::Cluster {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut coral_node::Cluster {
        &mut self.0
    }
}

pub fn nid(text: &str) -> Nid {
    text.parse().expect("a NID")
}

pub fn routes(text: &str) -> Vec<RouteSpec> {
    if text.is_empty() {
        return Vec::new();
    }
    coral_lnet::parse_routes(text).expect("routes")
}

impl Cluster {
    pub async fn build(builder: Builder) -> Cluster {
        Cluster(builder.fsname(FSNAME).start().await.expect("a cluster"))
    }

    /// One MDT and `osts` OSTs; files get `stripe_count` stripes of `stripe_size` bytes unless they ask for others.
    pub async fn start(osts: u32, stripe_count: u16, stripe_size: u32) -> Cluster {
        Self::start_seeded(osts, stripe_count, stripe_size, 1, "").await
    }

    /// So many MDTs and OSTs; files get one stripe.
    pub async fn start_mdts(mdts: u32, osts: u32) -> Cluster {
        Self::build(coral_node::Cluster::builder().mdts(mdts).osts(osts)).await
    }

    /// The same with MDTs of so many bytes.
    pub async fn start_mdts_of(bytes: &[u64], osts: u32) -> Cluster {
        let device =
            |bytes: &u64| OsdSim::new(OsdMem::with_capacity(*bytes), DiskModel::INSTANT, 1);
        let mdts = bytes.len() as u32;
        let mut disks = Disks {
            mgs: device(&(1 << 30)),
            mdt: device(&bytes[0]),
            more_mdts: bytes[1..].iter().map(device).collect(),
            osts: Vec::new(),
        };
        disks.osts.extend((0..osts).map(|_| device(&(1 << 30))));
        let builder = coral_node::Cluster::builder().mdts(mdts).osts(osts);
        Self::build(builder.disks(disks)).await
    }

    /// The machine of the MDTs loses power; all servers start again.
    pub async fn mdts_lose_power(&mut self) {
        self.0.mdt_loses_power().await.expect("a restart");
    }

    /// The same, with the nodes' generators counted from `seed`, and the servers' routes.
    pub async fn start_seeded(
        osts: u32,
        stripe_count: u16,
        stripe_size: u32,
        seed: u64,
        to: &str,
    ) -> Cluster {
        let stripes = (stripe_count, stripe_size);
        Self::start_on_disks(osts, stripes, seed, to, DiskModel::INSTANT).await
    }

    /// As [`Cluster::start_seeded`], on disks that take their time.
    pub async fn start_on_disks(
        osts: u32,
        stripes: (u16, u32),
        seed: u64,
        to: &str,
        disk: DiskModel,
    ) -> Cluster {
        let builder = coral_node::Cluster::builder().osts(osts).seed(seed);
        let builder = builder.stripes(stripes.0, stripes.1).routes(routes(to));
        Self::build(builder.disk_model(disk)).await
    }

    /// So many OSTs and an MDT, each with so many bytes of space; one stripe.
    pub async fn start_bounded(osts: u32, capacity: u64) -> Cluster {
        let builder = coral_node::Cluster::builder().osts(osts);
        Self::build(builder.disk_capacity(capacity)).await
    }

    /// A further OST, made known through the MGS only.
    pub async fn add_ost(&mut self) {
        self.0.add_ost().await.expect("an OST");
    }

    /// Serves OST `index`, whose disk is `osd`, on a node of its own at `at`, and tells the MGS that `other` may do so too.
    pub async fn serve_ost(&self, index: u32, osd: &OsdSim, at: &str, other: &str) -> Servers {
        let served = self.0.serve_ost(index, osd, nid(at), &[nid(other)]).await;
        served.expect("an OST")
    }

    /// Tells the MDT that OST `index` is served at `at`, the others at [`SERVER`].
    pub fn knows_ost_at(&self, index: u32, at: &str) {
        let here = |i: u32| if i == index { nid(at) } else { nid(SERVER) };
        let known = |i: u32| self.ost_target(i, vec![here(i)]);
        self.mdt().set_osts((0..=index).map(known).collect());
    }

    /// The servers are gone at once, and come back on what they had committed.
    pub async fn kill_and_restart(mut self) -> Cluster {
        self.0.kill_and_restart().await.expect("a restart");
        self
    }

    /// The machine of the OSTs loses power: what they had not synced is gone. All servers start again.
    pub async fn osts_lose_power(mut self) -> Cluster {
        self.0.osts_lose_power().await.expect("a restart");
        self
    }

    /// The machine of the MDT loses power. All servers start again.
    pub async fn mdt_loses_power(mut self) -> Cluster {
        self.0.mdt_loses_power().await.expect("a restart");
        self
    }

    /// A client with a NID of its own on the network, which servers remember across restarts.
    pub async fn remote_client(&self) -> Arc<Llite> {
        self.remote_client_with(self.mount_options()).await
    }

    pub async fn remote_client_with(&self, opts: MountOptions) -> Arc<Llite> {
        mount(self.remote_node().await.expect("a node"), opts).await
    }

    /// A client with this NID and these routes.
    pub async fn client_at(&self, at: &str, to: &str) -> Arc<Llite> {
        let node = self.0.node_at(nid(at), &routes(to)).await;
        mount(node.expect("a node"), self.mount_options()).await
    }

    pub async fn client(&self) -> Arc<Llite> {
        self.client_with(self.mount_options()).await
    }

    pub async fn client_with(&self, opts: MountOptions) -> Arc<Llite> {
        mount(self.local_node().await.expect("a node"), opts).await
    }
}

async fn mount(node: Arc<Node>, opts: MountOptions) -> Arc<Llite> {
    let client = Client::mount(node, opts).await.expect("mount");
    client.llite().clone()
}

pub fn payload(data: &[u8]) -> Payload {
    Payload::from(Bytes::copy_from_slice(data))
}

/// Short names for what tests do all the time, as root.
pub struct User {
    pub fs: Arc<Llite>,
    pub cred: Cred,
}

pub type Result<T> = std::result::Result<T, Errno>;

impl User {
    pub fn root(fs: &Arc<Llite>) -> User {
        User {
            fs: fs.clone(),
            cred: Cred {
                umask: 0o022,
                ..Cred::root()
            },
        }
    }

    pub fn new(fs: &Arc<Llite>, uid: u32, gid: u32) -> User {
        User {
            fs: fs.clone(),
            cred: Cred {
                umask: 0o022,
                ..Cred::user(uid, gid)
            },
        }
    }

    pub async fn fid(&self, path: &str) -> Result<Fid> {
        Ok(self.fs.path2fid(&self.cred, path.as_bytes()).await?)
    }

    /// Parent and last name of a path.
    async fn split<'a>(&self, path: &'a str) -> Result<(Fid, &'a [u8])> {
        match path.rsplit_once('/') {
            Some((dir, name)) => Ok((self.fid(dir).await?, name.as_bytes())),
            None => Ok((self.fs.root(), path.as_bytes())),
        }
    }

    /// Makes a directory whose files have their first [`DOM`] bytes on the MDT, and the rest on so many OSTs.
    pub async fn dom_dir(&self, dir: &str, stripes: u16) -> Fid {
        let fid = self.mkdir(dir).await.unwrap();
        let dom = LovMd {
            pattern: pattern::MDT,
            ..LovMd::request(0, 0, LOV_OFFSET_DEFAULT, None)
        };
        let rest = LovMd::request(65536, stripes, LOV_OFFSET_DEFAULT, None);
        let comps = vec![
            CompEntry::new(0, 0, 0, DOM, dom),
            CompEntry::new(0, 0, DOM, u64::MAX, rest),
        ];
        let layout = Layout::Composite(CompMd::new(0, 0, 0, comps)).encode();
        self.fs
            .setxattr(&self.cred, fid, b"lustre.lov", layout, 0)
            .await
            .unwrap();
        fid
    }

    pub async fn mkdir(&self, path: &str) -> Result<Fid> {
        let (p, n) = self.split(path).await?;
        Ok(self.fs.mkdir(&self.cred, p, n, 0o755).await?.attr.fid)
    }

    pub async fn create(&self, path: &str, flags: i32) -> Result<Arc<FileHandle>> {
        let (p, n) = self.split(path).await?;
        Ok(self
            .fs
            .create(&self.cred, p, n, 0o644, flags as u32)
            .await?
            .1)
    }

    pub async fn open(&self, path: &str, flags: i32) -> Result<Arc<FileHandle>> {
        let fid = self.fid(path).await?;
        Ok(self.fs.open(&self.cred, fid, flags as u32).await?)
    }

    pub async fn write(&self, fh: &FileHandle, at: u64, data: &[u8]) -> Result<usize> {
        Ok(self.fs.write(&self.cred, fh, at, payload(data)).await?)
    }

    pub async fn read(&self, fh: &FileHandle, at: u64, len: u32) -> Result<Vec<u8>> {
        Ok(self.fs.read(fh, at, len).await?.copy_to_bytes().to_vec())
    }

    pub async fn close(&self, fh: &FileHandle) -> Result<()> {
        Ok(self.fs.release(fh).await?)
    }

    /// Creates with that content.
    pub async fn put(&self, path: &str, data: &[u8]) -> Result<Fid> {
        let fh = self.create(path, libc::O_RDWR | libc::O_TRUNC).await?;
        self.write(&fh, 0, data).await?;
        self.close(&fh).await?;
        Ok(fh.fid())
    }

    /// The whole content.
    pub async fn get(&self, path: &str) -> Result<Vec<u8>> {
        let fh = self.open(path, libc::O_RDONLY).await?;
        let data = self.read(&fh, 0, 256 << 20).await;
        self.close(&fh).await?;
        data
    }

    pub async fn stat(&self, path: &str) -> Result<coral_client::Attr> {
        let fid = self.fid(path).await?;
        Ok(self.fs.getattr(&self.cred, fid, None).await?.attr)
    }

    pub async fn unlink(&self, path: &str) -> Result<()> {
        let (p, n) = self.split(path).await?;
        Ok(self.fs.unlink(&self.cred, p, n).await?)
    }

    pub async fn rmdir(&self, path: &str) -> Result<()> {
        let (p, n) = self.split(path).await?;
        Ok(self.fs.rmdir(&self.cred, p, n).await?)
    }

    pub async fn rename(&self, from: &str, to: &str, flags: u32) -> Result<()> {
        let ((p1, n1), (p2, n2)) = (self.split(from).await?, self.split(to).await?);
        Ok(self.fs.rename(&self.cred, p1, n1, p2, n2, flags).await?)
    }

    pub async fn link(&self, from: &str, to: &str) -> Result<()> {
        let fid = self.fid(from).await?;
        let (p, n) = self.split(to).await?;
        Ok(self.fs.link(&self.cred, fid, p, n).await.map(drop)?)
    }

    pub async fn symlink(&self, target: &str, path: &str) -> Result<()> {
        let (p, n) = self.split(path).await?;
        let made = self.fs.symlink(&self.cred, p, n, target.as_bytes()).await;
        Ok(made.map(drop)?)
    }

    /// The whole listing, "." and ".." included, in the order it came.
    pub async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let fid = self.fid(path).await?;
        let dh = self.fs.opendir(&self.cred, fid).await?;
        let mut out = Vec::new();
        self.fs
            .readdir(&self.cred, &dh, 0, false, &mut |e| {
                out.push(e);
                false
            })
            .await?;
        self.fs.releasedir(&dh).await?;
        Ok(out)
    }

    /// `ls -l`: every name but the dots with its attributes, as the listing has them.
    pub async fn ls_l(&self, path: &str) -> Result<BTreeMap<String, Option<coral_client::Attr>>> {
        let fid = self.fid(path).await?;
        let dh = self.fs.opendir(&self.cred, fid).await?;
        let mut all = BTreeMap::new();
        self.fs
            .readdir(&self.cred, &dh, 2, true, &mut |e| {
                let name = String::from_utf8_lossy(&e.name).into_owned();
                all.insert(name, e.entry.map(|e| e.attr));
                false
            })
            .await?;
        self.fs.releasedir(&dh).await?;
        Ok(all)
    }

    /// Names of a directory, sorted, without the dots.
    pub async fn names(&self, path: &str) -> Result<Vec<String>> {
        let all = self.list(path).await?;
        let mut out: Vec<String> = all
            .iter()
            .map(|e| String::from_utf8_lossy(&e.name).into_owned())
            .filter(|n| n != "." && n != "..")
            .collect();
        out.sort();
        Ok(out)
    }
}

/// What a counter of the client says.
pub fn counted(u: &User, name: &str) -> u64 {
    let mut s = Snapshot::default();
    s.add(u.fs.node().metrics(), &[]);
    let all = s.of(name);
    let points = all.into_iter().flatten().map(|(_, point)| match point {
        Point::Count(n) => *n,
        Point::Recorded(r) => r.count(),
    });
    points.sum()
}

/// RPCs sent while `f` runs, by opcode name; pings do not count.
pub async fn rpcs<T>(fs: &Arc<Llite>, f: impl Future<Output = T>) -> (T, Vec<(String, u64)>) {
    let before = fs.statistics();
    let out = f.await;
    // lock cancels go out on tasks of their own
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let count = |all: &[(String, u64)], name: &str| {
        all.iter().find(|(n, _)| n == name).map_or(0, |(_, c)| *c)
    };
    let after = fs.statistics();
    let mut diff: Vec<_> = after
        .iter()
        .map(|(n, c)| (n.clone(), c - count(&before, n)))
        .collect();
    diff.retain(|(n, c)| *c > 0 && n != "OBD_PING");
    (out, diff)
}

/// Shorthand for expected counts.
pub fn counts(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect()
}
