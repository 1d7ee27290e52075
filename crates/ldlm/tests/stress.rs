//! Many tasks on several clients take, match, drop, cancel and abandon locks: no two holders ever conflict, nothing hangs,
//! nothing is left. Once deterministic under a paused clock, once on several threads.

mod common;
use common::*;

use coral_ldlm::*;
use coral_wire::ldlm::*;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Who holds what right now: (resource, (client, task)) -> mode. Tasks of one client share locks, as the threads of a real
/// client do: only different clients exclude each other.
#[derive(Default)]
struct Oracle(Mutex<BTreeMap<Holding, LdlmMode>>);

type Holding = (ResId, (u64, u64));

impl Oracle {
    fn enter(&self, res: ResId, who: (u64, u64), mode: LdlmMode) {
        let mut all = self.0.lock();
        for ((r, w), m) in all.iter() {
            assert!(
                *r != res || w.0 == who.0 || m.compatible(mode),
                "{who:?} got {mode:?} on {res} while {w:?} holds {m:?}"
            );
        }
        all.insert((res, who), mode);
    }
    fn leave(&self, res: ResId, who: (u64, u64)) {
        self.0.lock().remove(&(res, who));
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

struct Task {
    who: (u64, u64),
    ns: Arc<ClientNamespace>,
    oracle: Arc<Oracle>,
    rng: Rng,
}

impl Task {
    async fn run(mut self, rounds: u32) {
        for _ in 0..rounds {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let res = ResId([100 + self.rng.below(3), 0, 0, 0]);
        let extent = res.0[0] == 102;
        let mode = [PR, PR, PW, EX][self.rng.below(if extent { 3 } else { 4 }) as usize];
        let (ty, policy) = if extent {
            (LdlmType::EXTENT, Policy::extent(0, u64::MAX))
        } else {
            (LdlmType::IBITS, bits(3))
        };
        let lock = match self.ns.match_lock(&res, ty, mode, &policy) {
            Some(l) => l,
            None => {
                let want = self.ns.enqueue(res, ty, mode, policy, NO_FLAGS, 56);
                let patience =
                    Duration::from_millis([1, 5, 100_000, 100_000][self.rng.below(4) as usize]);
                match tokio::time::timeout(patience, want).await {
                    Ok(l) => l.unwrap().0,
                    Err(_) => return,
                }
            }
        };
        self.oracle.enter(res, self.who, mode);
        match self.rng.below(3) {
            0 => tokio::task::yield_now().await,
            1 => tokio::time::sleep(Duration::from_millis(self.rng.below(3))).await,
            _ => {}
        }
        assert!(!lock.is_dead());
        self.oracle.leave(res, self.who);
        if self.rng.below(4) == 0 {
            self.ns.cancel(lock).await;
        }
    }
}

async fn stress(seed: u64, clients: usize, tasks: u64, rounds: u32) {
    let bed = Bed::with(
        clients,
        ClientConfig {
            lru_size: 2,
            ..ClientConfig::default()
        },
    )
    .await;
    let oracle = Arc::new(Oracle::default());
    let mut all = tokio::task::JoinSet::new();
    for (n, c) in bed.clients.iter().enumerate() {
        for t in 0..tasks {
            let rng = Rng(seed * 1000 + n as u64 * tasks + t);
            let task = Task {
                who: (n as u64, t),
                ns: c.ns.clone(),
                oracle: oracle.clone(),
                rng,
            };
            all.spawn(task.run(rounds));
        }
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    assert!(
        bed.server.exports.evicted.lock().is_empty(),
        "seed {seed}: somebody was evicted"
    );
    // What was abandoned is withdrawn, then everybody gives everything back.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for c in &bed.clients {
        c.ns.cancel_all().await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let left = bed.server.ldlm.locks();
    assert!(left.is_empty(), "seed {seed}: {left:?}");
    for c in &bed.clients {
        assert!(c.ns.locks().is_empty(), "seed {seed}: {:?}", c.ns.locks());
    }
}

#[tokio::test(start_paused = true)]
async fn no_two_holders_conflict() {
    for seed in 1..=8 {
        stress(seed, 3, 3, 60).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_holders_conflict_on_threads() {
    for seed in 1..=4 {
        let done = tokio::time::timeout(Duration::from_secs(60), stress(seed, 3, 4, 150)).await;
        assert!(done.is_ok(), "seed {seed} hangs");
    }
}
