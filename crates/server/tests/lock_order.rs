//! Every pair and triple of operations over a small tree ends, whatever the order of the FIDs in it and however late clients
//! give their locks back. A round is one tree, two or three operations of as many clients, and delays, all drawn from the
//! number of the round; the clock is paused, so that a round repeats itself. One round again:
//! `LOCK_ORDER_ROUND=<n> cargo test -p coral-server --test lock_order <test>`.

mod mdt_rig;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::LockHook;
use coral_ldlm::core::LockInfo;
use coral_wire::layout::{LOV_OFFSET_DEFAULT, LovMd};
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmMode, LdlmType, Policy};
use coral_wire::mds::{attr as sa, layout_intent, open as flag};
use coral_wire::ost::OstLvb;
use coral_wire::{Errno, Fid, coral};
use futures_util::future::{BoxFuture, join_all};
use mdt_rig::{Client, Rig};
use parking_lot::Mutex;

/// Milliseconds over which starts of operations are spread, and answers to callbacks.
const START_MS: u64 = 6;
const CANCEL_MS: u64 = 9;
/// What has not ended by now, on the paused clock, never will.
const NEVER: Duration = Duration::from_secs(2000);

/// A small generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Gives locks back late.
struct Late(Arc<Mutex<Dice>>);

impl LockHook for Late {
    fn cancelling(
        &self,
        _lock: &LockInfo,
        _discard: bool,
        _local_only: bool,
    ) -> BoxFuture<'static, ()> {
        let ms = self.0.lock().below(CANCEL_MS);
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }
    fn glimpse(&self, _lock: &LockInfo) -> Option<OstLvb> {
        None
    }
}

/// `top` has the directories `b` and `d`; `b` the directory `a`, the empty directory `e` and the file `f`; `a` the file `x`.
/// The files have no layout yet.
#[derive(Clone, Copy)]
struct Tree {
    top: Fid,
    b: Fid,
    a: Fid,
    x: Fid,
    f: Fid,
    d: Fid,
    e: Fid,
}

impl Tree {
    async fn make(c: &Client, name: &[u8], dice: &mut Dice) -> Result<Tree, Errno> {
        let mut fids = c.fids(7);
        for i in (1..fids.len()).rev() {
            fids.swap(i, dice.below(i as u64 + 1) as usize);
        }
        let [top, b, a, x, f, d, e] = fids[..] else {
            unreachable!("seven FIDs")
        };
        let (dir, file) = (0o040777, 0o100666);
        for (fid, parent, name, mode) in [
            (top, Fid::ROOT, name, dir),
            (b, top, b"b", dir),
            (a, b, b"a", dir),
            (x, a, b"x", file),
            (f, b, b"f", file),
            (d, top, b"d", dir),
            (e, b, b"e", dir),
        ] {
            c.make_as(fid, parent, name, mode, Bytes::new()).await?;
        }
        Ok(Tree {
            top,
            b,
            a,
            x,
            f,
            d,
            e,
        })
    }

    fn all(&self) -> [Fid; 7] {
        [self.top, self.b, self.a, self.x, self.f, self.d, self.e]
    }
}

type Done = BoxFuture<'static, Result<(), Errno>>;
type Op = (&'static str, fn(Client, Tree) -> Done);

macro_rules! ops {
    ($($name:literal => |$c:ident, $t:ident| $do:expr;)*) => {
        &[$(($name, |$c: Client, $t: Tree| Box::pin(async move { $do.await.map(drop) }))),*]
    };
}

/// A lock that a client waits for, on bits that operations lock apart from each other.
async fn plain_lock(c: Client, fid: Fid) -> Result<(), Errno> {
    let bits = Ibits(Ibits::LOOKUP.0 | Ibits::UPDATE.0 | Ibits::LAYOUT.0 | Ibits::XATTR.0);
    let lock =
        c.ns.enqueue(
            fid.res_id(),
            LdlmType::IBITS,
            LdlmMode::PR,
            Policy::ibits(bits),
            LdlmFlags(0),
            0,
        )
        .await;
    lock.map(drop).map_err(|_| Errno::EIO)
}

fn layout() -> Bytes {
    LovMd::request(1 << 20, 1, LOV_OFFSET_DEFAULT, None).encode()
}

const OPS: &[Op] = ops![
    "mkdir b/n" => |c, t| c.mkdir(t.b, b"n");
    "mkdir b/a/n" => |c, t| c.mkdir(t.a, b"n");
    "unlink b/a/x" => |c, t| c.unlink(t.a, b"x", false);
    "rmdir b/e" => |c, t| c.unlink(t.b, b"e", true);
    "rmdir b/a" => |c, t| c.unlink(t.b, b"a", true);
    "mv b/a b/a2" => |c, t| c.rename(t.b, b"a", t.b, b"a2");
    "mv b/a/x b/y" => |c, t| c.rename(t.a, b"x", t.b, b"y");
    "mv b/f b/a/x" => |c, t| c.rename(t.b, b"f", t.a, b"x");
    "mv b/a d" => |c, t| c.rename(t.b, b"a", t.top, b"d");
    "mv b/a/x b/a" => |c, t| c.rename(t.a, b"x", t.b, b"a");
    "mv b b/a/q" => |c, t| c.rename(t.top, b"b", t.a, b"q");
    "exchange b/a/x b/f" => |c, t| c.rename_mode(t.a, b"x", t.b, b"f", coral::RENAME_EXCHANGE);
    "exchange b/a d" => |c, t| c.rename_mode(t.b, b"a", t.top, b"d", coral::RENAME_EXCHANGE);
    "link b/a/x b/l" => |c, t| c.link(t.x, t.b, b"l");
    "link directory b/a in b" => |c, t| c.link(t.a, t.b, b"l");
    "link directory b in b/a" => |c, t| c.link(t.b, t.a, b"l");
    "chmod b" => |c, t| c.setattr(t.b, |s| (s.valid, s.mode) = (sa::MODE, 0o755));
    "chmod b/a" => |c, t| c.setattr(t.a, |s| (s.valid, s.mode) = (sa::MODE, 0o755));
    "setxattr b/a" => |c, t| c.setxattr(t.a, b"user.k", Some(b"v"), 0);
    "setstripe b/a/x" => |c, t| c.setxattr(t.x, b"lustre.lov", Some(&layout()), 0);
    "setstripe b/a" => |c, t| c.setxattr(t.a, b"lustre.lov", Some(&layout()), 0);
    "truncate b/a/x" => |c, t| c.setattr(t.x, |s| (s.valid, s.size) = (sa::SIZE, 7));
    "layout intent b/a/x" => |c, t| c.layout(t.x, layout_intent::WRITE, 0, 1 << 20);
    "create b/n" => |c, t| c.open(t.b, b"n", flag::CREAT | flag::WRITE, 0o666);
    "create b/n without layout" => |c, t| c.open(t.b, b"n", flag::CREAT | flag::WRITE | flag::DELAY_CREATE, 0o666);
    "open b/a/x" => |c, t| c.open(t.a, b"x", flag::CREAT | flag::WRITE, 0o666);
    "a client locks b/a" => |c, t| plain_lock(c, t.a);
    "a client locks b/a/x" => |c, t| plain_lock(c, t.x);
];

/// An MDT and who plays against it.
struct Ring {
    rig: Rig,
    /// Holds locks on all of the tree.
    holder: Client,
    actors: Vec<Client>,
    delays: Arc<Mutex<Dice>>,
}

impl Ring {
    async fn new() -> Ring {
        let rig = Rig::new(1).await;
        let delays = Arc::new(Mutex::new(Dice(0)));
        let holder = rig.client("1@lo").await;
        let mut actors = Vec::new();
        for (nid, private) in [("2@lo", true), ("3@lo", false), ("4@lo", true)] {
            actors.push(
                rig.client_as(
                    nid,
                    if private {
                        coral_wire::connect::ConnectFlags2::CORAL.0
                    } else {
                        0
                    },
                )
                .await,
            );
        }
        for c in actors.iter().chain([&holder]) {
            c.ns.set_hook(Arc::new(Late(delays.clone())));
        }
        Ring {
            rig,
            holder,
            actors,
            delays,
        }
    }

    async fn round(&self, round: u64, ops: &[usize]) {
        let mut dice = Dice(round);
        self.delays.lock().0 = !round;
        let tree = Tree::make(&self.holder, format!("t{round}").as_bytes(), &mut dice)
            .await
            .expect("a tree");
        for fid in tree.all() {
            let found = self.holder.lookup(fid, b"").await.expect("a getattr");
            assert!(found.lock.is_some(), "nobody else has a lock yet");
        }
        let running = ops.iter().zip(&self.actors).map(|(&op, c)| {
            let (done, start) = (OPS[op].1(c.clone(), tree), dice.below(START_MS));
            async move {
                tokio::time::sleep(Duration::from_millis(start)).await;
                match done.await {
                    // a client loses its connection to itself, or was evicted
                    Err(Errno::EIO) => panic!("{} failed in round {round}", OPS[op].0),
                    Err(Errno::EAGAIN) => {
                        panic!("{} did not get its locks in round {round}", OPS[op].0)
                    }
                    _ => {}
                }
            }
        });
        let running: Vec<_> = running.collect();
        if tokio::time::timeout(NEVER, join_all(running))
            .await
            .is_err()
        {
            let names: Vec<_> = ops.iter().map(|&op| OPS[op].0).collect();
            panic!(
                "these wait for each other for ever: {names:?}; again with LOCK_ORDER_ROUND={round}"
            );
        }
    }
}

/// Plays `sets` of operations, each `times` times.
async fn play(sets: Vec<Vec<usize>>, times: u64) {
    let ring = Ring::new().await;
    let only: Option<u64> = std::env::var("LOCK_ORDER_ROUND")
        .ok()
        .map(|n| n.parse().expect("a number"));
    for (i, ops) in sets.iter().enumerate() {
        for round in (0..times)
            .map(|n| i as u64 * times + n)
            .filter(|r| only.is_none_or(|o| o == *r))
        {
            ring.round(round, ops).await;
        }
    }
    ring.rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_pair_ends() {
    let pairs = (0..OPS.len())
        .flat_map(|i| (0..OPS.len()).map(move |j| vec![i, j]))
        .collect();
    play(pairs, 3).await;
}

#[tokio::test(start_paused = true)]
async fn every_triple_ends() {
    let n = OPS.len();
    let triples = (0..n)
        .flat_map(|i| (i..n).flat_map(move |j| (j..n).map(move |k| vec![i, j, k])))
        .collect();
    play(triples, 2).await;
}
