//! Names over four MDTs, changed by three clients while MDTs are killed or lose power and directories are laid out anew: all that
//! clients are told agrees with one tree, and what is left is clean.
//!
//! Each client has names of its own in directories that all share, so it knows what they stand for. Time is tokio's paused clock; a
//! run prints its seed, and `CORAL_SEED=n` repeats it.

mod common;
mod several;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coral_client::Llite;
use coral_lnet::{LinkModel, Nid};
use coral_node::Cluster;
use coral_osd::{DiskModel, Kv};
use coral_server::mdt::check_all;
use coral_wire::Errno;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd, hash_type};
use tokio::time::Instant;

use common::simulated::{number, on_own_clock};
use common::{FSNAME, Rng, User, nid};
use several::work::{split, steady};
use several::{mkdir_as, mkdir_on, mkdir_over, quiet_cluster, restripe};

const MDTS: u32 = 4;
const CLIENTS: u64 = 3;
/// Names of one client in one directory.
const NAMES: u64 = 6;
/// Operations of one client.
const STEPS: usize = 150;
/// Directories that all share: on one MDT, on another, striped over two and over all.
const SHARED: [&str; 4] = ["a", "b", "c", "d"];
/// No operation takes longer, whatever ends meanwhile.
const STUCK: Duration = Duration::from_secs(600);

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// Its contents; names with the same number are one file.
    File(u64, Vec<u8>),
    /// A directory of this client's own, with or without a file `x`.
    Dir(bool),
}

/// One client and what it knows.
struct Worker {
    u: User,
    who: &'static str,
    rng: Rng,
    tree: BTreeMap<String, Node>,
    files: u64,
}

impl Worker {
    fn path(&mut self) -> String {
        let dir = SHARED[self.rng.below(4) as usize];
        format!("{dir}/{}{}", self.who, self.rng.below(NAMES))
    }

    async fn work(mut self) -> Worker {
        for step in 0..STEPS {
            let kind = self.rng.below(10);
            let done = tokio::time::timeout(STUCK, self.one(kind)).await;
            done.unwrap_or_else(|_| panic!("{}: step {step}, kind {kind} is stuck", self.who));
            let pause = Duration::from_millis(self.rng.below(700));
            tokio::time::sleep(pause).await;
        }
        self
    }

    async fn one(&mut self, kind: u64) {
        let path = self.path();
        match kind {
            0 | 1 => self.put(path).await,
            2 => self.unlink(path).await,
            3 | 4 => self.rename(path).await,
            5 => self.link(path).await,
            6 => self.mkdir(path).await,
            7 => self.rmdir(path).await,
            8 => self.inside(path).await,
            _ => self.look(path).await,
        }
    }

    async fn put(&mut self, path: String) {
        if matches!(self.tree.get(&path), Some(Node::Dir(_))) {
            return;
        }
        self.files += 1;
        let data = format!("{} {}", self.who, self.files).into_bytes();
        let put = async || self.u.put(&path, &data).await.map(drop);
        assert_eq!(steady(&self.u, &path, put).await, Ok(()), "{path}");
        let number = match self.tree.get(&path) {
            Some(Node::File(number, _)) => *number,
            _ => self.files,
        };
        for node in self.tree.values_mut() {
            match node {
                Node::File(n, old) if *n == number => old.clone_from(&data),
                _ => {}
            }
        }
        self.tree.insert(path, Node::File(number, data));
    }

    async fn unlink(&mut self, path: String) {
        let done = steady(&self.u, &path, async || self.u.unlink(&path).await).await;
        match self.tree.get(&path) {
            None => assert_eq!(done, Err(Errno::ENOENT), "{path}"),
            Some(Node::Dir(_)) => assert_eq!(done, Err(Errno::EISDIR), "{path}"),
            Some(Node::File(..)) => {
                assert_eq!(done, Ok(()), "{path}");
                self.tree.remove(&path);
            }
        }
    }

    async fn rename(&mut self, from: String) {
        let to = self.path();
        let expected = match (self.tree.get(&from), self.tree.get(&to)) {
            _ if from == to => return,
            (None, _) => Err(Errno::ENOENT),
            // two names of one file: nothing happens
            (Some(Node::File(a, _)), Some(Node::File(b, _))) if a == b => return,
            (Some(Node::File(..)), Some(Node::Dir(_))) => Err(Errno::EISDIR),
            (Some(Node::Dir(_)), Some(Node::File(..))) => Err(Errno::ENOTDIR),
            (Some(Node::Dir(_)), Some(Node::Dir(true))) => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        };
        let op = async || self.u.rename(&from, &to, 0).await;
        let both = async || steady(&self.u, &to, &op).await;
        let done = steady(&self.u, &from, both).await;
        assert_eq!(done, expected, "{from} to {to}");
        if done.is_ok()
            && let Some(node) = self.tree.remove(&from)
        {
            self.tree.insert(to, node);
        }
    }

    async fn link(&mut self, from: String) {
        let to = self.path();
        let Some(node @ Node::File(..)) = self.tree.get(&from).cloned() else {
            return;
        };
        let expected = match self.tree.contains_key(&to) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        };
        let op = async || self.u.link(&from, &to).await;
        let both = async || steady(&self.u, &to, &op).await;
        let done = steady(&self.u, &from, both).await;
        assert_eq!(done, expected, "{from} to {to}");
        if done.is_ok() {
            self.tree.insert(to, node);
        }
    }

    async fn mkdir(&mut self, path: String) {
        let expected = match self.tree.contains_key(&path) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        };
        let (count, mdt) = (1 + self.rng.below(4) as u32, self.rng.below(4) as u32);
        let lum = LmvUserMd::request(count, mdt, hash_type::CRUSH);
        let make = async || mkdir_as(&self.u, &path, lum.clone()).await.map(drop);
        assert_eq!(steady(&self.u, &path, make).await, expected, "{path}");
        if expected.is_ok() {
            self.tree.insert(path, Node::Dir(false));
        }
    }

    async fn rmdir(&mut self, path: String) {
        let expected = match self.tree.get(&path) {
            None => Err(Errno::ENOENT),
            Some(Node::File(..)) => Err(Errno::ENOTDIR),
            Some(Node::Dir(true)) => Err(Errno::ENOTEMPTY),
            Some(Node::Dir(false)) => Ok(()),
        };
        let done = steady(&self.u, &path, async || self.u.rmdir(&path).await).await;
        assert_eq!(done, expected, "{path}");
        if done.is_ok() {
            self.tree.remove(&path);
        }
    }

    /// A file in a directory of its own comes and goes.
    async fn inside(&mut self, path: String) {
        let Some(Node::Dir(has)) = self.tree.get(&path).cloned() else {
            return;
        };
        let x = format!("{path}/x");
        let done = match has {
            true => steady(&self.u, &x, async || self.u.unlink(&x).await).await,
            false => steady(&self.u, &x, async || self.u.put(&x, b"x").await.map(drop)).await,
        };
        assert_eq!(done, Ok(()), "{x}");
        self.tree.insert(path, Node::Dir(!has));
    }

    /// What is there is what it knows.
    async fn look(&self, path: String) {
        let dir = split(&path).0;
        let names = async || self.u.names(dir).await;
        let names = steady(&self.u, dir, names).await.expect("a listing");
        let own = names.iter().filter(|n| n.starts_with(self.who));
        let known = self.tree.keys().map(|p| split(p)).filter(|p| p.0 == dir);
        assert!(
            own.map(String::as_str).eq(known.map(|p| p.1)),
            "{}: {dir} has {names:?}, not {:?}",
            self.who,
            self.tree.keys()
        );
        is_there(&self.u, &path, self.tree.get(&path), &self.tree).await;
    }
}

async fn is_there(u: &User, path: &str, node: Option<&Node>, tree: &BTreeMap<String, Node>) {
    match node {
        None => assert_eq!(
            steady(u, path, async || u.fid(path).await).await,
            Err(Errno::ENOENT),
            "{path}"
        ),
        Some(Node::Dir(has)) => {
            let names = steady(u, path, async || u.names(path).await).await;
            let expected: &[&str] = if *has { &["x"] } else { &[] };
            assert_eq!(names.expect("a listing"), expected, "{path}");
        }
        Some(Node::File(number, data)) => {
            let got = steady(u, path, async || u.get(path).await).await;
            assert_eq!(got.as_ref(), Ok(data), "{path}");
            let links = tree
                .values()
                .filter(|n| matches!(n, Node::File(o, _) if o == number));
            let attr = steady(u, path, async || u.stat(path).await).await;
            assert_eq!(
                attr.expect("attributes").nlink as usize,
                links.count(),
                "{path}"
            );
        }
    }
}

fn mdt_nids() -> Vec<Nid> {
    (0..MDTS)
        .map(|n| nid(&format!("10.0.0.{}@tcp", n + 2)))
        .collect()
}

async fn cluster(seed: u64) -> Cluster {
    let mgs = nid("10.0.0.1@tcp");
    let link = LinkModel {
        delay: Duration::from_micros(300),
        ..LinkModel::default()
    };
    let mut b = Cluster::builder()
        .fsname(FSNAME)
        .mdts(MDTS)
        .mgs_at(mgs)
        .ost_at(0, mgs)
        .disk_model(DiskModel {
            sync_latency: Duration::from_millis(2),
            ..DiskModel::INSTANT
        });
    let mdts = mdt_nids();
    for (i, at) in mdts.iter().enumerate() {
        b = b.mdt_number_at(i as u32, *at);
        for client in 1..=CLIENTS + 2 {
            b = b.link(*at, nid(&format!("10.0.5.{client}@tcp")), link);
        }
        for other in &mdts[..i] {
            b = b.link(*other, *at, link);
        }
    }
    b.seed(seed).start().await.expect("a cluster")
}

/// MDTs end now and then, one at a time, and come back.
async fn faults(mut c: Cluster, mut rng: Rng, until: Instant) -> (Cluster, u32) {
    let mut ended = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(3000 + rng.below(9000))).await;
        if Instant::now() >= until {
            return (c, ended);
        }
        let at = mdt_nids()[rng.below(u64::from(MDTS)) as usize];
        let done = match rng.below(2) {
            0 => c.kill(at).await,
            _ => c.lose_power(at).await,
        };
        done.expect("an end");
        tokio::time::sleep(Duration::from_millis(rng.below(3000))).await;
        c.restart(at).await.expect("a restart");
        ended += 1;
    }
}

/// The shared directories are laid out anew, all the time.
async fn laying_out(u: User, mut rng: Rng, until: Instant) -> u32 {
    let mut changes = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(rng.below(6000))).await;
        let dir = SHARED[rng.below(4) as usize];
        let hash = [0, hash_type::CRUSH, hash_type::FNV_1A_64][rng.below(3) as usize];
        match restripe(&u, dir, 1 + rng.below(4) as u32, hash).await {
            Ok(()) => changes += 1,
            // as it is, or moving still
            Err(Errno::EALREADY | Errno::EBUSY | Errno::EAGAIN | Errno::ESTALE) => {}
            other => panic!("{dir}: {other:?}"),
        }
    }
    changes
}

async fn client(c: &Cluster, n: u64) -> Arc<Llite> {
    let client = c.client_at(nid(&format!("10.0.5.{n}@tcp")), &[]).await;
    client.expect("a mount").llite().clone()
}

async fn run(seed: u64) -> (u32, u32) {
    let c = cluster(seed).await;
    let mut clients = Vec::new();
    for n in 1..=CLIENTS + 1 {
        clients.push(client(&c, n).await);
    }
    let u = User::root(&clients[CLIENTS as usize]);
    mkdir_on(&u, "a", 0).await.expect("a");
    mkdir_on(&u, "b", 1).await.expect("b");
    mkdir_over(&u, "c", 2, 2).await.expect("c");
    mkdir_over(&u, "d", MDTS, LMV_OFFSET_DEFAULT)
        .await
        .expect("d");
    quiet_cluster(&c).await;

    let rng = |n: u64| Rng((seed * 16 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let works: Vec<_> = ["u", "v", "w"]
        .into_iter()
        .zip(0..)
        .map(|(who, n)| {
            let worker = Worker {
                u: User::root(&clients[n]),
                who,
                rng: rng(n as u64),
                tree: BTreeMap::new(),
                files: 1000 * n as u64,
            };
            tokio::task::spawn_local(worker.work())
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(50);
    let breaking = tokio::task::spawn_local(faults(c, rng(8), until));
    let laying = tokio::task::spawn_local(laying_out(u, rng(9), until));
    let mut trees = Vec::new();
    for w in works {
        trees.push(w.await.expect("it ran").tree);
    }
    let (c, ended) = breaking.await.expect("it ran");
    let changes = laying.await.expect("it ran");
    quiet_cluster(&c).await;

    let last = client(&c, CLIENTS + 2).await;
    let u = User::root(&last);
    for tree in &trees {
        for (path, node) in tree {
            is_there(&u, path, Some(node), tree).await;
        }
    }
    for dir in SHARED {
        let mut known: Vec<&str> = (trees.iter().flat_map(BTreeMap::keys))
            .map(|p| split(p))
            .filter(|p| p.0 == dir)
            .map(|p| p.1)
            .collect();
        known.sort();
        assert_eq!(u.names(dir).await.expect("a listing"), known, "{dir}");
    }
    for fs in clients.iter().chain([&last]) {
        fs.umount().await;
    }
    c.stop().await;
    let kvs: Vec<&dyn Kv> = (0..MDTS)
        .map(|i| c.disks.mdt_number(i) as &dyn Kv)
        .collect();
    let report = check_all(&kvs).expect("readable");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    (ended, changes)
}

#[test]
fn names_over_four_mdts_agree_with_one_tree() {
    let (first, count) = (number("CORAL_SEED", 1), number("CORAL_SEEDS", 3));
    let mut all = (0u64, 0u64);
    for seed in first..first + count {
        let again =
            format!("CORAL_SEED={seed} CORAL_SEEDS=1 cargo test -p coral-client --test mdts_model");
        let scenario = move || async move {
            let here = tokio::task::LocalSet::new();
            here.run_until(run(seed)).await
        };
        let (ended, changes) = on_own_clock(scenario, &again);
        println!("seed {seed}: {ended} MDTs ended, {changes} changes of layouts");
        all = (all.0 + u64::from(ended), all.1 + u64::from(changes));
    }
    // a seed alone may have few
    let enough = |n: u64| n > count || count == 1;
    assert!(
        enough(all.0) && enough(all.1),
        "too little happened: {all:?}"
    );
}
