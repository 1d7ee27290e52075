//! Replay after a gap: the server loses power, one client does not come back, and what the others replay is done to the
//! objects they did it to, or refused (version based recovery, `lustre/mdt/mdt_reint.c`).

mod mdt_rig;

use std::collections::BTreeMap;
use std::time::Duration;

use coral_server::mdt::{self, check::Problem, store::Store};
use coral_wire::connect::ConnectFlags2 as F2;
use coral_wire::mds::attr as sa;
use coral_wire::{Errno, Fid};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than the recovery window of the rig, and the time a client needs to come back.
const AFTER_RECOVERY: Duration = Duration::from_secs(100);

const FILE: u32 = 0o100644;

async fn dies(c: &Client) {
    c.node.shutdown().await;
}

/// The server's machine goes down and comes up again; these clients notice; the window for the others passes.
async fn power_cut(rig: &mut Rig, alive: &[&Client]) {
    rig.kill().await;
    rig.lose_power();
    rig.restart().await;
    for c in alive {
        let import = c.import.clone();
        tokio::spawn(async move { import.ping().await });
    }
    tokio::time::sleep(AFTER_RECOVERY).await;
}

fn named(rig: &Rig, dir: Fid, name: &[u8]) -> Option<Fid> {
    Store::open(std::sync::Arc::new(rig.mem.clone()))
        .expect("open")
        .lookup(&dir, name)
        .expect("read")
}

#[tokio::test(start_paused = true)]
async fn an_unlink_after_a_gap_removes_no_other_file() -> TestResult {
    for stock in [false, true] {
        let mut rig = Rig::new(0).await;
        let private = if stock { 0 } else { F2::CORAL.0 };
        let (a, b) = (
            rig.client("10.0.0.8@tcp").await,
            rig.client_as("10.0.0.9@tcp", private).await,
        );
        let first = a.mknod(Fid::ROOT, b"f", FILE).await?;
        rig.mdt().target.sync().await?;
        a.rename(Fid::ROOT, b"f", Fid::ROOT, b"g").await?;
        let second = a.mknod(Fid::ROOT, b"f", FILE).await?;
        assert_ne!(first, second);
        b.unlink(Fid::ROOT, b"f", false).await?;
        dies(&a).await;
        power_cut(&mut rig, &[&b]).await;
        assert_eq!(
            named(&rig, Fid::ROOT, b"f"),
            Some(first),
            "stock {stock}: never removed by anybody"
        );
        assert_eq!(
            b.import.stats().evictions.value(),
            1,
            "told that its change is lost"
        );
        // and it goes on
        assert_eq!(b.mknod(Fid::ROOT, b"f", FILE).await, Err(Errno::EEXIST));
        b.unlink(Fid::ROOT, b"f", false).await?;
        assert_eq!(named(&rig, Fid::ROOT, b"f"), None);
        rig.stop().await;
    }
    Ok(())
}

/// What one client did alone is done again, whoever else is lost.
#[tokio::test(start_paused = true)]
async fn what_does_not_depend_on_the_lost_client_is_replayed() -> TestResult {
    let mut rig = Rig::new(0).await;
    let (a, b) = (
        rig.client("10.0.0.8@tcp").await,
        rig.client("10.0.0.9@tcp").await,
    );
    rig.mdt().target.sync().await?;
    let mut mine = Vec::new();
    for i in 0..10 {
        a.mknod(Fid::ROOT, format!("a{i}").as_bytes(), FILE).await?;
        mine.push(b.mknod(Fid::ROOT, format!("b{i}").as_bytes(), FILE).await?);
    }
    b.rename(Fid::ROOT, b"b0", Fid::ROOT, b"moved").await?;
    b.unlink(Fid::ROOT, b"b1", false).await?;
    b.setattr(mine[2], |r| (r.valid, r.mode) = (sa::MODE, 0o600))
        .await?;
    dies(&a).await;
    power_cut(&mut rig, &[&b]).await;
    assert_eq!(b.import.stats().evictions.value(), 0);
    assert_eq!(named(&rig, Fid::ROOT, b"moved"), Some(mine[0]));
    assert_eq!(named(&rig, Fid::ROOT, b"b1"), None);
    assert_eq!(b.getattr(mine[2]).await?.mode, 0o100600);
    for (i, fid) in mine.iter().enumerate().skip(2) {
        assert_eq!(
            named(&rig, Fid::ROOT, format!("b{i}").as_bytes()),
            Some(*fid)
        );
    }
    assert_eq!(named(&rig, Fid::ROOT, b"a0"), None);
    rig.stop().await;
    Ok(())
}

/// One operation: what it was asked to do.
#[derive(Clone, Copy, Debug)]
enum Op {
    Make(Name),
    Unlink(Name),
    Rename(Name, Name),
    Link(Fid, Name),
    Chmod(Fid, u32),
    ChmodDir(usize, u32),
    Setxattr(Fid),
}

/// A directory and a name in it, by number.
type Name = (usize, usize);

/// A name space of two directories with the version of each object: the number of the operation that made its version.
#[derive(Clone, Default)]
struct Model {
    names: BTreeMap<Name, Fid>,
    versions: BTreeMap<Fid, usize>,
    dirs: [usize; 2],
    modes: BTreeMap<Fid, u32>,
}

/// What an operation met: FIDs and versions of all that it looked at.
type Met = Vec<Option<(Fid, usize)>>;

impl Model {
    fn at(&self, n: Name) -> Option<(Fid, usize)> {
        let fid = *self.names.get(&n)?;
        Some((fid, self.versions[&fid]))
    }

    fn object(&self, fid: Fid) -> Option<(Fid, usize)> {
        self.names
            .values()
            .any(|f| *f == fid)
            .then(|| (fid, self.versions[&fid]))
    }

    fn dir(&self, d: usize) -> Option<(Fid, usize)> {
        Some((Fid::ZERO, self.dirs[d]))
    }

    fn meets(&self, op: Op) -> Met {
        match op {
            Op::Make(n) | Op::Unlink(n) => vec![self.dir(n.0), self.at(n)],
            Op::Rename(a, b) => vec![self.dir(a.0), self.dir(b.0), self.at(a), self.at(b)],
            Op::Link(f, n) => vec![self.dir(n.0), self.object(f), self.at(n)],
            Op::Chmod(f, _) | Op::Setxattr(f) => vec![self.object(f)],
            Op::ChmodDir(d, _) => vec![self.dir(d)],
        }
    }

    fn apply(&mut self, op: Op, number: usize, made: Option<Fid>) {
        match op {
            Op::Make(n) => {
                let fid = made.expect("made");
                self.names.insert(n, fid);
                self.versions.insert(fid, number);
                self.modes.insert(fid, 0o644);
            }
            Op::Unlink(n) => drop(self.names.remove(&n)),
            Op::Rename(a, b) if self.names.get(&a) != self.names.get(&b) => {
                let fid = self.names.remove(&a).expect("it was there");
                self.names.insert(b, fid);
                self.versions.insert(fid, number);
            }
            Op::Rename(..) => {}
            Op::Link(fid, n) => {
                self.names.insert(n, fid);
                self.versions.insert(fid, number);
            }
            Op::Chmod(fid, mode) => {
                self.versions.insert(fid, number);
                self.modes.insert(fid, mode);
            }
            Op::ChmodDir(d, _) => self.dirs[d] = number,
            Op::Setxattr(fid) => drop(self.versions.insert(fid, number)),
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn name(&mut self) -> Name {
        (self.below(2), self.below(5))
    }

    fn op(&mut self, m: &Model) -> Op {
        let files: Vec<Fid> = m.names.values().copied().collect();
        let file = files.get(self.below(files.len().max(1))).copied();
        match (self.below(10), file) {
            (0..3, _) | (_, None) => Op::Make(self.name()),
            (3 | 4, _) => Op::Unlink(self.name()),
            (5 | 6, _) => Op::Rename(self.name(), self.name()),
            (7, Some(f)) => Op::Link(f, self.name()),
            (8, Some(f)) => match self.below(2) {
                0 => Op::Chmod(f, 0o600 + self.below(64) as u32),
                _ => Op::Setxattr(f),
            },
            (_, Some(f)) => match self.below(3) {
                0 => Op::ChmodDir(self.below(2), 0o700 + self.below(64) as u32),
                _ => Op::Chmod(f, 0o600 + self.below(64) as u32),
            },
        }
    }
}

fn spelled(n: Name) -> Vec<u8> {
    format!("n{}", n.1).into_bytes()
}

async fn run(c: &Client, dirs: &[Fid; 2], op: Op) -> Result<Option<Fid>, Errno> {
    match op {
        Op::Make(n) => return c.mknod(dirs[n.0], &spelled(n), FILE).await.map(Some),
        Op::Unlink(n) => drop(c.unlink(dirs[n.0], &spelled(n), false).await?),
        Op::Rename(a, b) => {
            c.rename(dirs[a.0], &spelled(a), dirs[b.0], &spelled(b))
                .await?
        }
        Op::Link(f, n) => c.link(f, dirs[n.0], &spelled(n)).await?,
        Op::Chmod(f, mode) => drop(
            c.setattr(f, |r| (r.valid, r.mode) = (sa::MODE, mode))
                .await?,
        ),
        Op::ChmodDir(d, mode) => drop(
            c.setattr(dirs[d], |r| (r.valid, r.mode) = (sa::MODE, mode))
                .await?,
        ),
        Op::Setxattr(f) => c.setxattr(f, b"user.x", Some(b"y"), 0).await?,
    }
    Ok(None)
}

/// One round: operations of three clients, power loss somewhere behind the last sync, one or two clients lost.
async fn round(seed: u64) {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut rig = Rig::new(0).await;
    let mut clients = Vec::new();
    for i in 0..3 {
        let private = if r.below(2) == 0 { 0 } else { F2::CORAL.0 };
        clients.push(
            rig.client_as(&format!("10.0.0.{}@tcp", i + 5), private)
                .await,
        );
    }
    let dirs = [
        clients[0].mkdir(Fid::ROOT, b"d0").await.expect("mkdir"),
        clients[0].mkdir(Fid::ROOT, b"d1").await.expect("mkdir"),
    ];
    rig.mdt().target.sync().await.expect("sync");
    let (count, sync_at) = (10 + r.below(30), r.below(15));
    let (mut m, mut done) = (Model::default(), Vec::new());
    for number in 1..=count {
        if number == sync_at + 1 {
            rig.mdt().target.sync().await.expect("sync");
        }
        let (who, op) = (r.below(3), r.op(&m));
        let met = m.meets(op);
        if let Ok(made) = run(&clients[who], &dirs, op).await {
            m.apply(op, number, made);
            done.push((number, rig.mdt().target.last_transno(), who, op, met, made));
        }
    }
    let committed = rig.mdt().target.last_committed();
    let lost: Vec<usize> = (0..3)
        .filter(|i| *i == seed as usize % 3 || r.below(5) == 0)
        .collect();
    for i in &lost {
        dies(&clients[*i]).await;
    }
    let alive: Vec<&Client> = (0..3)
        .filter(|i| !lost.contains(i))
        .map(|i| &clients[i])
        .collect();
    power_cut(&mut rig, &alive).await;
    let (mut expected, mut refused) = (Model::default(), [0; 3]);
    for (number, transno, who, op, met, made) in done {
        if transno > committed && lost.contains(&who) {
            continue;
        }
        match expected.meets(op) == met {
            true => expected.apply(op, number, made),
            false => refused[who] += 1,
        }
    }
    let store = Store::open(std::sync::Arc::new(rig.mem.clone())).expect("open");
    for (d, dir) in dirs.iter().enumerate() {
        for n in 0..5 {
            let is = store.lookup(dir, &spelled((d, n))).expect("read");
            assert_eq!(
                is,
                expected.names.get(&(d, n)).copied(),
                "seed {seed}: d{d}/n{n}"
            );
            if let Some(fid) = is {
                assert_eq!(
                    store.inode(&fid).expect("read").mode & 0o777,
                    expected.modes[&fid],
                    "seed {seed}: d{d}/n{n}"
                );
            }
        }
    }
    for i in (0..3).filter(|i| !lost.contains(i)) {
        let evicted = clients[i].import.stats().evictions.value();
        assert_eq!(
            evicted,
            u64::from(refused[i] > 0),
            "seed {seed}: client {i}, {} replays to be refused",
            refused[i]
        );
        clients[i]
            .mkdir(Fid::ROOT, format!("after{i}").as_bytes())
            .await
            .expect("it goes on");
    }
    rig.stop().await;
    assert_eq!(
        mdt::check(&rig.mem).expect("check").problems,
        Vec::<Problem>::new(),
        "seed {seed}"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_replayed_on_another_file() {
    for seed in 0..150 {
        round(seed).await;
    }
}
