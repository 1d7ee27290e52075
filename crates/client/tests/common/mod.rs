//! A whole file system in one process on memory: MGS, one MDT and OSTs on one node, clients on nodes of their own.
#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use coral_client::{Cred, DirEntry, FileHandle, Llite, MountOptions};
use coral_lnet::{MemNet, Nid, Node, NodeConfig, Payload, WallClock};
use coral_osd::{Objects, OsdMem};
use coral_server::mdt::{Mdt, MdtConfig, OstTarget, StripeDefaults};
use coral_server::mgs::Mgs;
use coral_server::ost::Ost;
use coral_server::{ServerNode, Target};
use coral_wire::layout::{CompEntry, CompMd, LOV_OFFSET_DEFAULT, Layout, LovMd, pattern};
use coral_wire::mgs::{MgsTargetInfo, ldd};
use coral_wire::raw::c_array;
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

/// What survives a kill of the servers.
#[derive(Clone)]
pub struct Disks {
    pub mgs: OsdMem,
    pub mdt: OsdMem,
    pub osts: Vec<OsdMem>,
    defaults: StripeDefaults,
}

pub struct Cluster {
    pub net: Arc<MemNet>,
    pub node: Arc<Node>,
    pub server: Arc<ServerNode>,
    pub mgs: Arc<Mgs>,
    pub mdt: Mdt,
    pub osts: Vec<Arc<Target>>,
    pub disks: Disks,
    seed: AtomicU64,
    routes: String,
}

fn nid(text: &str) -> Nid {
    text.parse().expect("a NID")
}

async fn start_node(net: &Arc<MemNet>, at: &str, seed: u64, routes: &str) -> Arc<Node> {
    let wall = WallClock {
        base: (1_700_000_000, 0),
        at: tokio::time::Instant::now(),
    };
    let routes = if routes.is_empty() {
        Vec::new()
    } else {
        coral_lnet::parse_routes(routes).expect("routes")
    };
    let cfg = NodeConfig {
        nids: vec![nid(at)],
        seed,
        wall: Some(wall),
        routes,
        ..NodeConfig::default()
    };
    Node::start(cfg, Some(net.clone())).await.expect("node")
}

fn register(mgs: &Mgs, target: &Target, kind: u32) {
    mgs.register(&info(target, kind, SERVER), b"")
        .expect("registered");
}

fn info(target: &Target, kind: u32, at: &str) -> MgsTargetInfo {
    let mut nids = [Nid(0); 32];
    nids[0] = nid(at);
    MgsTargetInfo {
        stripe_index: target.index(),
        flags: kind | ldd::UPDATE,
        nid_count: 1,
        instance: target.instance(),
        fsname: c_array(FSNAME.as_bytes()),
        svname: c_array(target.name().as_bytes()),
        uuid: c_array(target.uuid().as_bytes()),
        nids,
        ..Default::default()
    }
}

impl Cluster {
    /// One MDT and `osts` OSTs; files get `stripe_count` stripes of `stripe_size` bytes unless they ask for others.
    pub async fn start(osts: u32, stripe_count: u16, stripe_size: u32) -> Cluster {
        Self::start_seeded(osts, stripe_count, stripe_size, 1, "").await
    }

    /// The same, with the nodes' generators counted from `seed`, and the servers' `routes`.
    pub async fn start_seeded(
        osts: u32,
        stripe_count: u16,
        stripe_size: u32,
        seed: u64,
        routes: &str,
    ) -> Cluster {
        let disks = Disks {
            mgs: OsdMem::new(),
            mdt: OsdMem::new(),
            osts: (0..osts).map(|_| OsdMem::new()).collect(),
            defaults: StripeDefaults {
                stripe_size,
                stripe_count,
            },
        };
        Self::start_on(MemNet::alone(), disks, seed, routes).await
    }

    /// One OST with so many bytes of space, one stripe.
    pub async fn start_small(capacity: u64) -> Cluster {
        let disks = Disks {
            mgs: OsdMem::new(),
            mdt: OsdMem::new(),
            osts: vec![OsdMem::with_capacity(capacity)],
            defaults: StripeDefaults {
                stripe_size: 1 << 20,
                stripe_count: 1,
            },
        };
        Self::start_on(MemNet::alone(), disks, 1, "").await
    }

    /// So many OSTs and an MDT, each with so many bytes of space; one stripe.
    pub async fn start_bounded(osts: u32, capacity: u64) -> Cluster {
        let disk = || OsdMem::with_capacity(capacity);
        let defaults = StripeDefaults {
            stripe_size: 1 << 20,
            stripe_count: 1,
        };
        let disks = Disks {
            mgs: OsdMem::new(),
            mdt: disk(),
            osts: (0..osts).map(|_| disk()).collect(),
            defaults,
        };
        Self::start_on(MemNet::alone(), disks, 1, "").await
    }

    /// Servers on what their disks hold.
    async fn start_on(net: Arc<MemNet>, disks: Disks, seed: u64, routes: &str) -> Cluster {
        let node = start_node(&net, SERVER, seed, routes).await;
        let server = ServerNode::start(node.clone());
        let (mgs, mgt) = Mgs::start(node.clone(), Arc::new(disks.mgs.clone())).expect("MGS");
        server.add_target(mgt);
        let mut osts = Vec::new();
        for (i, osd) in disks.osts.iter().enumerate() {
            let target =
                Ost::start(node.clone(), FSNAME, i as u32, Arc::new(osd.clone())).expect("OST");
            server.add_target(target.clone());
            register(&mgs, &target, ldd::SV_TYPE_OST);
            osts.push(target);
        }
        let mut cfg = MdtConfig::new(FSNAME, 0);
        cfg.defaults = Some(disks.defaults);
        let mdt = Mdt::start(node.clone(), cfg, Arc::new(disks.mdt.clone())).expect("MDT");
        let known = |i: u32| OstTarget {
            index: i,
            uuid: format!("{FSNAME}-OST{i:04x}_UUID"),
            nids: vec![nid(SERVER)],
            active: true,
        };
        mdt.set_osts((0..osts.len() as u32).map(known).collect());
        server.add_target(mdt.target.clone());
        register(&mgs, &mdt.target, ldd::SV_TYPE_MDT);
        Cluster {
            net,
            node,
            server,
            mgs,
            mdt,
            osts,
            disks,
            seed: AtomicU64::new(seed.wrapping_add(1)),
            routes: routes.to_owned(),
        }
    }

    /// A further OST, made known through the MGS only.
    pub fn add_ost(&mut self) {
        let (i, osd) = (self.osts.len() as u32, OsdMem::new());
        let target = Ost::start(self.node.clone(), FSNAME, i, Arc::new(osd.clone())).expect("OST");
        self.server.add_target(target.clone());
        register(&self.mgs, &target, ldd::SV_TYPE_OST);
        self.osts.push(target);
        self.disks.osts.push(osd);
    }

    /// Serves OST `index`, whose disk is `osd`, on a node of its own at `at`, and tells the MGS that `other` may do so too.
    pub async fn serve_ost(
        &self,
        index: u32,
        osd: &OsdMem,
        at: &str,
        other: &str,
    ) -> (Arc<Node>, Arc<ServerNode>) {
        let node = start_node(&self.net, at, self.seed.fetch_add(1, Ordering::Relaxed), "").await;
        let server = ServerNode::start(node.clone());
        let target = Ost::start(node.clone(), FSNAME, index, Arc::new(osd.clone())).expect("OST");
        server.add_target(target.clone());
        let mut info = info(&target, ldd::SV_TYPE_OST, at);
        info.params = c_array(coral_server::register::failover_param(&[nid(other)]).as_bytes());
        self.mgs.register(&info, b"").expect("registered");
        (node, server)
    }

    /// Tells the MDT that OST `index` is served at `at`, the others at [`SERVER`].
    pub fn knows_ost_at(&self, index: u32, at: &str) {
        let here = |i: u32| if i == index { nid(at) } else { nid(SERVER) };
        let known = |i: u32| OstTarget {
            index: i,
            uuid: format!("{FSNAME}-OST{i:04x}_UUID"),
            nids: vec![here(i)],
            active: true,
        };
        self.mdt.set_osts((0..=index).map(known).collect());
    }

    /// The servers are gone at once, and come back on what they had committed.
    pub async fn kill_and_restart(self) -> Cluster {
        let Cluster {
            net,
            node,
            server,
            mgs,
            mdt,
            osts,
            disks,
            seed,
            routes,
        } = self;
        server.stop_services().await;
        node.shutdown().await;
        drop((server, mgs, mdt, osts, node));
        // a target on a directory does so when it is opened: what a killed process left in the page cache counts as committed
        disks
            .osts
            .iter()
            .chain([&disks.mdt])
            .for_each(|d| d.sync_all().expect("sync"));
        Self::start_on(net, disks, seed.into_inner() + 1000, &routes).await
    }

    /// The machine of the OSTs loses power: what they had not synced is gone. All servers start again.
    pub async fn osts_lose_power(mut self) -> Cluster {
        self.disks.osts = self.disks.osts.iter().map(OsdMem::power_loss).collect();
        self.kill_and_restart().await
    }

    /// The machine of the MDT loses power. All servers start again.
    pub async fn mdt_loses_power(mut self) -> Cluster {
        self.disks.mdt = self.disks.mdt.power_loss();
        self.kill_and_restart().await
    }

    /// A client with a NID of its own on the network, which servers remember across restarts.
    pub async fn remote_client(&self) -> Arc<Llite> {
        self.remote_client_with(self.options()).await
    }

    pub async fn remote_client_with(&self, opts: MountOptions) -> Arc<Llite> {
        let n = self.seed.fetch_add(1, Ordering::Relaxed);
        let node = start_node(
            &self.net,
            &format!("10.0.{}.{}@tcp", 1 + n / 250 % 250, n % 250),
            n,
            "",
        )
        .await;
        Llite::mount(node, opts).await.expect("mount")
    }

    /// A client with this NID and these routes.
    pub async fn client_at(&self, at: &str, routes: &str) -> Arc<Llite> {
        let n = self.seed.fetch_add(1, Ordering::Relaxed);
        let node = start_node(&self.net, at, n, routes).await;
        Llite::mount(node, self.options()).await.expect("mount")
    }

    /// A node with this NID.
    pub async fn node_at(&self, at: Nid) -> Arc<Node> {
        start_node(
            &self.net,
            &at.to_string(),
            self.seed.fetch_add(1, Ordering::Relaxed),
            "",
        )
        .await
    }

    pub fn options(&self) -> MountOptions {
        MountOptions::new(FSNAME, vec![nid(SERVER)])
    }

    pub async fn client(&self) -> Arc<Llite> {
        self.client_with(self.options()).await
    }

    pub async fn client_with(&self, opts: MountOptions) -> Arc<Llite> {
        let n = self.seed.fetch_add(1, Ordering::Relaxed);
        let node = start_node(&self.net, &format!("{n}@lo"), n, "").await;
        Llite::mount(node, opts).await.expect("mount")
    }

    pub async fn new_node(&self) -> Arc<Node> {
        let n = self.seed.fetch_add(1, Ordering::Relaxed);
        start_node(&self.net, &format!("{n}@lo"), n, "").await
    }

    pub async fn stop(&self) {
        self.mdt.stop().await;
        self.server.stop().await;
        self.node.shutdown().await;
    }
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
        self.fs.path2fid(&self.cred, path.as_bytes()).await
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
        self.fs.open(&self.cred, fid, flags as u32).await
    }

    pub async fn write(&self, fh: &FileHandle, at: u64, data: &[u8]) -> Result<usize> {
        self.fs.write(&self.cred, fh, at, payload(data)).await
    }

    pub async fn read(&self, fh: &FileHandle, at: u64, len: u32) -> Result<Vec<u8>> {
        Ok(self.fs.read(fh, at, len).await?.copy_to_bytes().to_vec())
    }

    pub async fn close(&self, fh: &FileHandle) -> Result<()> {
        self.fs.release(fh).await
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
        self.fs.unlink(&self.cred, p, n).await
    }

    pub async fn rmdir(&self, path: &str) -> Result<()> {
        let (p, n) = self.split(path).await?;
        self.fs.rmdir(&self.cred, p, n).await
    }

    pub async fn rename(&self, from: &str, to: &str, flags: u32) -> Result<()> {
        let ((p1, n1), (p2, n2)) = (self.split(from).await?, self.split(to).await?);
        self.fs.rename(&self.cred, p1, n1, p2, n2, flags).await
    }

    pub async fn link(&self, from: &str, to: &str) -> Result<()> {
        let fid = self.fid(from).await?;
        let (p, n) = self.split(to).await?;
        self.fs.link(&self.cred, fid, p, n).await.map(drop)
    }

    pub async fn symlink(&self, target: &str, path: &str) -> Result<()> {
        let (p, n) = self.split(path).await?;
        self.fs
            .symlink(&self.cred, p, n, target.as_bytes())
            .await
            .map(drop)
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
