//! Whoever asks for locks may go at any of its awaits: what it leaves behind keeps no lock from others, nobody is evicted for it.
//!
//! `CORAL_SEED=n cargo test -p coral-ldlm --test dropped` repeats a run; `CORAL_SEEDS=n` makes it so many runs.

mod common;
use common::*;

use coral_wire::ldlm::*;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Whatever is not waiting for somebody who has gone is done by then.
const SOON: Duration = Duration::from_secs(10);
/// All of a run is done by then.
const AT_MOST: Duration = Duration::from_secs(3600);
/// Seeds of every test run.
const SEEDS: u64 = 24;

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

/// Polls `work` so often at most: whoever asked goes when it is woken once more. `None`: it went.
async fn until_poll<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut left) = (pin!(work), polls);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

struct Task {
    client: Arc<Client>,
    rng: Rng,
    owner: u64,
}

impl Task {
    /// Does `work`, or goes before it is done.
    async fn maybe<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        match self.rng.below(3) {
            0 => until_poll(1 + self.rng.below(4), work).await,
            1 => timeout(Duration::from_millis(self.rng.below(90)), work)
                .await
                .ok(),
            _ => Some(work.await),
        }
    }

    async fn step(&mut self) {
        let client = self.client.clone();
        let mode = [PR, PW, EX][self.rng.below(3) as usize];
        let range = range(self.rng.below(3) * 10, 29, self.owner);
        let lock = match self.rng.below(8) {
            0 => {
                let found = client.ns.match_lock(&FILE, LdlmType::IBITS, mode, &bits(2));
                match found {
                    Some(lock) => Some(lock),
                    None => self.maybe(client.ibits(mode, 2)).await.and_then(Result::ok),
                }
            }
            1 | 2 => self.maybe(client.intent(mode, 2)).await.flatten(),
            3 => {
                let mode = if mode == EX { PW } else { mode };
                let got = self.maybe(client.extent(mode, 0, 4095)).await;
                got.and_then(Result::ok).map(|(lock, _)| lock)
            }
            4 => {
                let got = self.maybe(client.ns.glimpse(OBJECT)).await;
                got.and_then(Result::ok).and_then(|(_, lock)| lock)
            }
            5 => {
                let wait = self.rng.below(2) == 0;
                let mode = if mode == PR { PR } else { PW };
                let _ = self.maybe(client.setlk(mode, range, wait)).await;
                // a program that is interrupted closes its file at the latest
                self.maybe(client.unlock(range)).await;
                None
            }
            6 => {
                // as an unlink lets the locks go of what it removes
                client.ns.forget_unused(&FILE, LdlmType::IBITS);
                None
            }
            _ => {
                self.maybe(client.ns.cancel_unused()).await;
                None
            }
        };
        let Some(lock) = lock else { return };
        sleep(Duration::from_millis(self.rng.below(20))).await;
        if self.rng.below(3) == 0 {
            self.maybe(client.ns.cancel(lock)).await;
        }
    }
}

async fn run(seed: u64) {
    let mut bed = far(3).await;
    let clients: Vec<_> = bed.clients.drain(..).map(Arc::new).collect();
    let mut all = tokio::task::JoinSet::new();
    for (n, client) in clients.iter().enumerate() {
        *client.hook.flush.lock() = Duration::from_millis(3);
        for t in 0..3 {
            let mut task = Task {
                client: client.clone(),
                rng: Rng(seed * 1000 + n as u64 * 10 + t),
                owner: t + 1,
            };
            all.spawn(async move {
                for _ in 0..40 {
                    task.step().await;
                }
            });
        }
    }
    let tasks = async {
        while let Some(done) = all.join_next().await {
            done.expect("a task");
        }
    };
    let done = timeout(AT_MOST, tasks).await;
    assert!(done.is_ok(), "CORAL_SEED={seed}: somebody waits for ever");
    let evicted = format!("{:?}", bed.server.exports.evicted.lock());
    assert_eq!(evicted, "[]", "seed {seed}: CORAL_SEED={seed}");
    let ldlm = &bed.server.ldlm;
    let whole = Policy::extent(0, u64::MAX);
    let asked = async {
        drop(
            ldlm.lock_local(FILE, LdlmType::IBITS, EX, bits(0x7f), None)
                .await,
        );
        drop(
            ldlm.lock_local(OBJECT, LdlmType::EXTENT, PW, whole, None)
                .await,
        );
    };
    let done = timeout(SOON, asked).await;
    let (left, held): (_, Vec<_>) = (ldlm.locks(), clients.iter().map(|c| c.ns.locks()).collect());
    assert!(
        done.is_ok(),
        "CORAL_SEED={seed}: not given back: {left:?}, clients: {held:?}"
    );
    sleep(SOON).await;
    let left = (ldlm.locks(), clients.iter().flat_map(|c| c.ns.locks()));
    let left: Vec<_> = left.0.into_iter().chain(left.1).collect();
    assert!(left.is_empty(), "CORAL_SEED={seed}: left: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_back_is_given_back_whoever_has_gone() {
    let number = |name| std::env::var(name).map(|s| s.parse().expect("a number"));
    let seeds = match number("CORAL_SEED") {
        Ok(seed) => seed..=seed,
        Err(_) => 1..=number("CORAL_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        run(seed).await;
    }
}

/// The lock of an intent is asked back while its reply is on the way, and then nobody waits for the reply any more; or nobody takes
/// it in, as when it makes no sense.
#[tokio::test(start_paused = true)]
async fn an_intent_that_is_dropped_keeps_no_lock_that_was_asked_back() {
    for (moment, heard) in (0..100).flat_map(|ms| [(ms, true), (ms, false)]) {
        let bed = far(2).await;
        let [a, b] = &bed.clients[..] else {
            unreachable!()
        };
        let intent = async {
            let (pending, rq) = a.intent_rq(PR, 2);
            let patience = Duration::from_millis(moment);
            if heard {
                drop(timeout(patience, a.ns.intent(rq, pending)).await);
            } else {
                let _ = timeout(patience, a.import.call(rq)).await;
                drop(pending);
            }
        };
        let other = timeout(SOON, b.ibits(EX, 2));
        let ((), other) = tokio::join!(intent, other);
        let got = other.unwrap_or_else(|_| panic!("dropped after {moment} ms, not given back"));
        got.expect("a lock");
    }
}
