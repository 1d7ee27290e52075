//! Random operations agree with simple models: the bytes of a striped file, the tree of names, two clients at once.

use std::collections::BTreeMap;

use crate::common::*;
use coral_client::{Llite, SetAttr};
use coral_wire::Errno;
use proptest::prelude::*;
use std::sync::Arc;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime")
}

// ---- bytes ---------------------------------------------------------------------------------------------------------

/// Cases of a property test: `CORAL_CASES` of them, or so many.
fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("CORAL_CASES")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default);
    ProptestConfig {
        cases,
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[derive(Debug, Clone)]
enum Io {
    Write(u64, usize, u8),
    Append(usize, u8),
    Read(u64, usize),
    Truncate(u64),
    Punch(u64, u64),
    Allocate(u64, u64),
    Reopen,
}

/// Offsets that like the edges of stripes and pages.
fn offset() -> impl Strategy<Value = u64> {
    (0u64..40, -3i64..4, prop::bool::ANY).prop_map(|(n, d, big)| {
        (n as i64 * if big { 1 << 20 } else { 65536 } / 4 + d).clamp(0, 9 << 20) as u64
    })
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..100, 4000usize..70_000, 100_000usize..3_000_000]
}

fn io() -> impl Strategy<Value = Io> {
    prop_oneof![
        4 => (offset(), length(), any::<u8>()).prop_map(|(o, l, b)| Io::Write(o, l, b)),
        1 => (length(), any::<u8>()).prop_map(|(l, b)| Io::Append(l, b)),
        4 => (offset(), length()).prop_map(|(o, l)| Io::Read(o, l)),
        1 => offset().prop_map(Io::Truncate),
        1 => (offset(), offset()).prop_map(|(a, b)| Io::Punch(a.min(b), a.max(b) + 1)),
        1 => (offset(), offset()).prop_map(|(a, b)| Io::Allocate(a.min(b), a.max(b) + 1)),
        1 => Just(Io::Reopen),
    ]
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) | 1)
        .collect()
}

async fn run_io(count: u16, size: u32, plain: bool, ops: Vec<Io>) {
    let c = Cluster::start(4, count, size).await;
    let mut opts = c.mount_options();
    opts.plain = plain;
    // the plain one is also far away: its data travels with checksums
    let fs = if plain {
        c.remote_client_with(opts).await
    } else {
        c.client_with(opts).await
    };
    let u = User::root(&fs);
    let mut fh = u.create("f", libc::O_RDWR).await.unwrap();
    let log = u.open("f", libc::O_WRONLY | libc::O_APPEND).await.unwrap();
    let mut want: Vec<u8> = Vec::new();
    let put = |want: &mut Vec<u8>, at: usize, data: &[u8]| {
        want.resize(want.len().max(at + data.len()), 0);
        want[at..at + data.len()].copy_from_slice(data);
    };
    for op in ops {
        match op {
            Io::Write(at, len, b) => {
                let data = pattern(len, b);
                assert_eq!(u.write(&fh, at, &data).await.unwrap(), len);
                put(&mut want, at as usize, &data);
            }
            Io::Append(len, b) => {
                let data = pattern(len, b);
                assert_eq!(u.write(&log, 0, &data).await.unwrap(), len);
                let end = want.len();
                put(&mut want, end, &data);
            }
            Io::Read(at, len) => {
                let from = (at as usize).min(want.len());
                let to = (from + len).min(want.len());
                let got = u.read(&fh, at, len as u32).await.unwrap();
                assert!(
                    got == want[from..to],
                    "read {at}+{len}: {} bytes of {}",
                    got.len(),
                    to - from
                );
            }
            Io::Truncate(n) => {
                let set = SetAttr {
                    size: Some(n),
                    ..Default::default()
                };
                assert_eq!(
                    fs.setattr(&u.cred, fh.fid(), set, Some(&fh))
                        .await
                        .unwrap()
                        .attr
                        .size,
                    n
                );
                want.resize(n as usize, 0);
            }
            Io::Punch(a, b) => {
                fs.fallocate(&u.cred, &fh, 3, a, b - a).await.unwrap();
                let (a, b) = ((a as usize).min(want.len()), (b as usize).min(want.len()));
                want[a..b].fill(0);
            }
            Io::Allocate(a, b) => {
                fs.fallocate(&u.cred, &fh, 0, a, b - a).await.unwrap();
                want.resize(want.len().max(b as usize), 0);
            }
            Io::Reopen => {
                u.close(&fh).await.unwrap();
                fh = u.open("f", libc::O_RDWR).await.unwrap();
            }
        }
        assert_eq!(
            fs.getattr(&u.cred, fh.fid(), Some(&fh))
                .await
                .unwrap()
                .attr
                .size,
            want.len() as u64
        );
    }
    assert!(u.get("f").await.unwrap() == want);
    u.close(&fh).await.unwrap();
    u.close(&log).await.unwrap();
    fs.umount().await;
    c.stop().await;
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn bytes_of_a_striped_file(
        count in prop::sample::select(vec![1u16, 2, 4]),
        size in prop::sample::select(vec![65536u32, 1 << 20]),
        plain in any::<bool>(),
        ops in prop::collection::vec(io(), 1..40),
    ) {
        runtime().block_on(run_io(count, size, plain, ops));
    }
}

// ---- names ---------------------------------------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum Op {
    Create(String),
    Mkdir(String),
    Symlink(String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String),
    Link(String, String),
    Chmod(String, u32),
    Write(String, u64),
    Truncate(String, u64),
    Utime(String, i64),
    Stat(String),
    List(String),
}

fn path() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        2 => name().prop_map(str::to_owned),
        3 => (name(), name()).prop_map(|(a, b)| format!("{a}/{b}")),
        1 => (name(), name(), name()).prop_map(|(a, b, c)| format!("{a}/{b}/{c}")),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => path().prop_map(Op::Create),
        3 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::Symlink),
        2 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        3 => (path(), path()).prop_map(|(a, b)| Op::Rename(a, b)),
        2 => (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        1 => (path(), 0u32..0o1000).prop_map(|(p, m)| Op::Chmod(p, m)),
        2 => (path(), 1u64..200_000).prop_map(|(p, n)| Op::Write(p, n)),
        1 => (path(), 0u64..200_000).prop_map(|(p, n)| Op::Truncate(p, n)),
        1 => (path(), 1i64..2_000_000_000).prop_map(|(p, t)| Op::Utime(p, t)),
        5 => path().prop_map(Op::Stat),
        2 => path().prop_map(Op::List),
    ]
}

/// What is at a path: directories by name, others by the number of their object.
#[derive(Default)]
struct Tree {
    nodes: BTreeMap<String, usize>,
    kinds: Vec<u32>,
    modes: Vec<u32>,
    sizes: Vec<u64>,
    /// Set by utime and not changed since.
    mtimes: Vec<Option<i64>>,
}

impl Tree {
    fn kind(&self, path: &str) -> Option<u32> {
        if path.is_empty() {
            return Some(libc::S_IFDIR);
        }
        self.nodes.get(path).map(|n| self.kinds[*n])
    }

    fn parent_ok(&self, path: &str) -> Result<()> {
        let mut at = String::new();
        let dirs: Vec<_> = path.split('/').collect();
        for d in &dirs[..dirs.len() - 1] {
            at = if at.is_empty() {
                (*d).to_owned()
            } else {
                format!("{at}/{d}")
            };
            match self.kind(&at) {
                None => return Err(Errno::ENOENT),
                Some(libc::S_IFDIR) => {}
                Some(_) => return Err(Errno::ENOTDIR),
            }
        }
        Ok(())
    }

    fn find(&self, path: &str) -> Result<usize> {
        self.parent_ok(path)?;
        self.nodes.get(path).copied().ok_or(Errno::ENOENT)
    }

    fn children(&self, path: &str) -> Vec<String> {
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        self.nodes
            .keys()
            .filter_map(|k| k.strip_prefix(&prefix))
            .filter(|k| !k.contains('/'))
            .map(str::to_owned)
            .collect()
    }

    fn make(&mut self, path: &str, kind: u32, mode: u32) -> Result<()> {
        self.parent_ok(path)?;
        if self.nodes.contains_key(path) {
            return Err(Errno::EEXIST);
        }
        self.kinds.push(kind);
        self.modes.push(mode);
        self.sizes.push(0);
        self.mtimes.push(None);
        self.nodes.insert(path.to_owned(), self.kinds.len() - 1);
        Ok(())
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        let n = self.find(path)?;
        if self.kinds[n] == libc::S_IFDIR {
            return Err(Errno::EISDIR);
        }
        self.nodes.remove(path);
        Ok(())
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        let n = self.find(path)?;
        if self.kinds[n] != libc::S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        if !self.children(path).is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.nodes.remove(path);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let n = self.find(from)?;
        self.parent_ok(to)?;
        if from == to || self.nodes.get(to) == Some(&n) {
            return Ok(());
        }
        let dir = self.kinds[n] == libc::S_IFDIR;
        if dir && to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/")) {
            return Err(Errno::EINVAL);
        }
        match self.kind(to) {
            Some(libc::S_IFDIR) if !dir => return Err(Errno::EISDIR),
            Some(k) if dir && k != libc::S_IFDIR => return Err(Errno::ENOTDIR),
            Some(libc::S_IFDIR) if !self.children(to).is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let moved: Vec<_> = self
            .nodes
            .iter()
            .filter(|(k, _)| *k == from || k.starts_with(&format!("{from}/")))
            .map(|(k, v)| (k.clone(), *v))
            .collect();
        for (k, v) in moved {
            self.nodes.remove(&k);
            self.nodes.insert(format!("{to}{}", &k[from.len()..]), v);
        }
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> Result<()> {
        let n = self.find(from)?;
        self.parent_ok(to)?;
        if self.nodes.contains_key(to) {
            return Err(Errno::EEXIST);
        }
        if self.kinds[n] == libc::S_IFDIR {
            return Err(Errno::EPERM);
        }
        self.nodes.insert(to.to_owned(), n);
        Ok(())
    }

    /// The regular file at a path.
    fn file(&self, path: &str) -> Option<usize> {
        self.find(path)
            .ok()
            .filter(|n| self.kinds[*n] == libc::S_IFREG)
    }

    fn nlink(&self, n: usize, path: &str) -> u32 {
        if self.kinds[n] == libc::S_IFDIR {
            let subs = self
                .children(path)
                .iter()
                .filter(|c| self.kind(&format!("{path}/{c}")) == Some(libc::S_IFDIR))
                .count();
            return 2 + subs as u32;
        }
        self.nodes.values().filter(|v| **v == n).count() as u32
    }
}

async fn step(u: &User, tree: &mut Tree, op: &Op) {
    let class = |r: &Result<()>| r.as_ref().err().copied();
    match op {
        Op::Create(p) => {
            let want = tree.make(p, libc::S_IFREG, 0o644);
            let got = match u.create(p, libc::O_RDWR | libc::O_EXCL).await {
                Ok(fh) => u.close(&fh).await,
                Err(e) => Err(e),
            };
            assert_eq!(class(&got), class(&want), "{op:?}");
        }
        Op::Mkdir(p) => assert_eq!(
            class(&u.mkdir(p).await.map(drop)),
            class(&tree.make(p, libc::S_IFDIR, 0o755)),
            "{op:?}"
        ),
        Op::Symlink(p) => assert_eq!(
            class(&u.symlink("x", p).await),
            class(&tree.make(p, libc::S_IFLNK, 0o777)),
            "{op:?}"
        ),
        Op::Unlink(p) => assert_eq!(class(&u.unlink(p).await), class(&tree.unlink(p)), "{op:?}"),
        Op::Rmdir(p) => assert_eq!(class(&u.rmdir(p).await), class(&tree.rmdir(p)), "{op:?}"),
        // which of several errors comes first is the server's business
        Op::Rename(a, b) => assert_eq!(
            u.rename(a, b, 0).await.is_ok(),
            tree.rename(a, b).is_ok(),
            "{op:?}"
        ),
        Op::Link(a, b) => assert_eq!(
            u.link(a, b).await.is_ok(),
            tree.link(a, b).is_ok(),
            "{op:?}"
        ),
        Op::Chmod(p, mode) => {
            let want = tree.find(p);
            let set = SetAttr {
                mode: Some(*mode),
                ..Default::default()
            };
            let got = match u.fid(p).await {
                Ok(fid) => {
                    u.fs.setattr(&u.cred, fid, set, None)
                        .await
                        .map(|e| e.attr.mode & 0o7777)
                        .map_err(Errno::from)
                }
                Err(e) => Err(e),
            };
            assert_eq!(got, want.map(|_| *mode), "{op:?}");
            if let Ok(n) = want {
                tree.modes[n] = *mode;
            }
        }
        Op::Write(p, len) => {
            let Some(n) = tree.file(p) else { return };
            let fh = u.open(p, libc::O_WRONLY).await.unwrap();
            u.write(&fh, 0, &vec![1; *len as usize]).await.unwrap();
            u.close(&fh).await.unwrap();
            (tree.sizes[n], tree.mtimes[n]) = (tree.sizes[n].max(*len), None);
        }
        Op::Truncate(p, len) => {
            let Some(n) = tree.file(p) else { return };
            let set = SetAttr {
                size: Some(*len),
                ..Default::default()
            };
            let fid = u.fid(p).await.unwrap();
            assert_eq!(
                u.fs.setattr(&u.cred, fid, set, None)
                    .await
                    .map(|e| e.attr.size),
                Ok(*len),
                "{op:?}"
            );
            (tree.sizes[n], tree.mtimes[n]) = (*len, None);
        }
        Op::Utime(p, t) => {
            let Some(n) = tree.file(p) else { return };
            let time = coral_client::Timespec { secs: *t, nanos: 0 };
            let set = SetAttr {
                mtime: Some(coral_client::SetTime::At(time)),
                ..Default::default()
            };
            let fid = u.fid(p).await.unwrap();
            assert_eq!(
                u.fs.setattr(&u.cred, fid, set, None)
                    .await
                    .map(|e| e.attr.mtime),
                Ok(time),
                "{op:?}"
            );
            tree.mtimes[n] = Some(*t);
        }
        Op::Stat(p) => {
            let want = tree
                .find(p)
                .map(|n| (tree.kinds[n] | tree.modes[n], tree.nlink(n, p)));
            let got = u.stat(p).await;
            assert_eq!(got.map(|a| (a.mode, a.nlink)), want, "{op:?}");
            if let (Ok(a), Some(n)) = (got, tree.file(p)) {
                assert_eq!(a.size, tree.sizes[n], "{op:?}");
                if let Some(t) = tree.mtimes[n] {
                    assert_eq!(a.mtime.secs, t, "{op:?}");
                }
            }
        }
        Op::List(p) => {
            let want = match tree.find(p) {
                Ok(n) if tree.kinds[n] != libc::S_IFDIR => Err(Errno::ENOTDIR),
                Ok(_) => Ok(tree.children(p)),
                Err(e) => Err(e),
            };
            assert_eq!(u.names(p).await, want, "{op:?}");
        }
    }
}

/// How a client is mounted: with a cache, and as the kernel client would speak.
#[derive(Debug, Clone, Copy)]
struct How {
    cache: bool,
    plain: bool,
}

fn how() -> impl Strategy<Value = How> {
    prop::sample::select(vec![
        (true, false),
        (true, false),
        (true, true),
        (false, false),
        (false, true),
    ])
    .prop_map(|(cache, plain)| How { cache, plain })
}

async fn run_names(hows: [How; 2], ops: Vec<(bool, Op)>) {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let mut users = Vec::new();
    for how in hows {
        let mut opts = c.mount_options();
        opts.cache = how.cache;
        opts.plain = how.plain;
        users.push(User::root(&c.client_with(opts).await));
    }
    let mut tree = Tree::default();
    for (who, op) in &ops {
        step(&users[*who as usize], &mut tree, op).await;
    }
    for u in &users {
        for p in tree.nodes.keys().cloned().collect::<Vec<_>>() {
            step(u, &mut tree, &Op::Stat(p)).await;
        }
        u.fs.umount().await;
    }
    c.stop().await;
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn names_seen_from_two_clients(
        hows in [how(), how()],
        ops in prop::collection::vec((any::<bool>(), op()), 1..120),
    ) {
        runtime().block_on(run_names(hows, ops));
    }
}

// ---- at once -------------------------------------------------------------------------------------------------------

/// Two clients fight over names, bytes and locks on several threads; what each sees must fit together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_at_once() {
    let c = Cluster::start(4, 4, 65536).await;
    let clients = [c.client().await, c.client().await];
    let u = User::root(&clients[0]);
    u.mkdir("d").await.unwrap();
    u.put("d/shared", &[0; 400_000]).await.unwrap();
    let mut jobs = Vec::new();
    for (id, fs) in clients
        .iter()
        .flat_map(|c| [c.clone(), c.clone()])
        .enumerate()
    {
        jobs.push(tokio::spawn(fight(fs, id)));
    }
    let mut won = Vec::new();
    for j in jobs {
        won.extend(j.await.expect("no panic"));
    }
    // an exclusive create had one winner each
    won.sort();
    let n = won.len();
    won.dedup();
    assert_eq!(won.len(), n, "a name was created twice");
    for fs in &clients {
        fs.umount().await;
    }
    c.stop().await;
}

async fn fight(fs: Arc<Llite>, id: usize) -> Vec<String> {
    use coral_client::LockKind;
    let u = User::root(&fs);
    let fh = u.open("d/shared", libc::O_RDWR).await.unwrap();
    let mut won = Vec::new();
    let mut last = 0u8;
    for round in 0..60u32 {
        let name = format!("d/excl{round}");
        match u.create(&name, libc::O_EXCL | libc::O_RDWR).await {
            Ok(f) => {
                u.close(&f).await.unwrap();
                won.push(name.clone());
            }
            Err(Errno::EEXIST) => {}
            Err(e) => panic!("create {name}: {e}"),
        }
        assert!(
            u.fid(&name).await.is_ok(),
            "{name} is there once a create said so"
        );
        let kind = if (round as usize + id).is_multiple_of(2) {
            LockKind::Write
        } else {
            LockKind::Read
        };
        fs.flock(&fh, kind, true).await.unwrap();
        let all = u.read(&fh, 0, 500_000).await.unwrap();
        assert_eq!(all.len(), 400_000);
        assert!(
            all.iter().all(|b| *b == all[0]),
            "bytes of two writers mixed"
        );
        assert!(
            all[0] >= last,
            "the past came back: {} after {last}",
            all[0]
        );
        last = all[0];
        if kind == LockKind::Write && last < 250 {
            last += 1;
            u.write(&fh, 0, &vec![last; 400_000]).await.unwrap();
        }
        fs.flock(&fh, LockKind::Unlock, true).await.unwrap();
        // a name of one's own moves about and is always at one place
        let (a, b) = (format!("d/mine{id}"), format!("mine{id}"));
        if round == 0 {
            u.put(&a, b"m").await.unwrap();
        }
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        u.rename(from, to, 0).await.unwrap();
        assert_eq!(
            (u.fid(from).await.err(), u.fid(to).await.is_ok()),
            (Some(Errno::ENOENT), true)
        );
        // a name that comes and goes, beside others doing the same in this directory
        let tmp = format!("d/tmp{id}");
        u.put(&tmp, b"t").await.unwrap();
        assert!(u.fid(&tmp).await.is_ok());
        u.unlink(&tmp).await.unwrap();
        assert_eq!(u.fid(&tmp).await, Err(Errno::ENOENT));
    }
    u.close(&fh).await.unwrap();
    won
}
