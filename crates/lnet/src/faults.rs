//! Faults on purpose: rules that lose, fail or delay messages (`net_drop` and `net_delay`, lnet/lnet/net_fault.c).
//!
//! A rule says which messages it is about (source, destination, our own NID, kinds, portals), how often it strikes, and what it
//! does then. Rules are added, listed with what they did, and taken away while the node runs. All rules are asked in turn, the
//! newest first, as Lustre does; the first that strikes decides.
//!
//! # Invariants
//! - Without rules a message costs one atomic load.
//! - The same seed and the same messages give the same strikes.
//! - A delay rule that is taken away lets go at once of what it holds back.
//!
//! # Differs from Lustre
//! Lustre judges what arrives (and, for health errors and delays, what leaves); here a rule says which of both it sees
//! ([`Side`]). Rules with health errors see what leaves and nothing else, as there. [`Strike::Share`] and [`FaultRule::times`]
//! have no counterpart there, and a rule for one of our NIDs also works with health errors and delays, which it does not there.

mod rule;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Nid;
use crate::msg::Msg;
pub use rule::{FaultAction, FaultRule, HealthError, HealthSet, MsgType, NidMatch, Side, Strike};

/// Most rules a node keeps; [`Faults::add`] refuses more.
pub const MAX_RULES: usize = 1024;
/// Most messages a node holds back for delay rules; more pass undelayed.
pub const MAX_DELAYED: usize = 65536;
/// Most bytes of payload they may have together; what would be more passes undelayed.
pub const MAX_DELAYED_BYTES: u64 = 256 << 20;
/// Longest interval and latency of a rule, 136 years: Lustre keeps them in 32 bits of seconds (`da_interval`, `la_latency`).
pub const MAX_TIME: Duration = Duration::from_secs(u32::MAX as u64);

/// What a rule has seen and done (`struct lnet_fault_stat`), in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStat {
    /// Messages the rule was about.
    pub matched: u64,
    /// Those it struck.
    pub struck: u64,
    /// Struck PUTs.
    pub put: u64,
    /// Struck ACKs.
    pub ack: u64,
    /// Struck GETs.
    pub get: u64,
    /// Struck REPLYs.
    pub reply: u64,
}

impl FaultStat {
    fn struck(&mut self, kind: MsgType) {
        self.struck += 1;
        match kind {
            MsgType::Put => self.put += 1,
            MsgType::Ack => self.ack += 1,
            MsgType::Get => self.get += 1,
            MsgType::Reply => self.reply += 1,
        }
    }
}

/// When a rule strikes next.
enum Next {
    /// By chance.
    Chance,
    /// At this number of a matching message, counted from 0.
    Count(u64),
    /// At the first message from `at` on; `base` is the end of the present interval.
    Time { at: Instant, base: Instant },
}

struct Live {
    rule: FaultRule,
    stat: FaultStat,
    next: Next,
    /// Dropped with the rule: lets go of what it delays.
    held: watch::Sender<()>,
}

impl Live {
    fn new(rule: FaultRule, rng: &mut ChaCha8Rng) -> Live {
        let mut live = Live {
            rule,
            stat: FaultStat::default(),
            next: Next::Chance,
            held: watch::Sender::new(()),
        };
        live.restart(rng);
        live
    }

    /// Counts from zero, with a new first strike. One in two strikes the first message, which Lustre's own tests need.
    fn restart(&mut self, rng: &mut ChaCha8Rng) {
        self.stat = FaultStat::default();
        self.next = match self.rule.strike {
            Strike::Share(_) => Next::Chance,
            Strike::OneIn(2) => Next::Count(0),
            Strike::OneIn(n) => Next::Count(rng.random_range(0..n.max(1)) as u64),
            Strike::Every(interval) => {
                let now = Instant::now();
                Next::Time {
                    at: now + within(interval, rng),
                    base: now + interval,
                }
            }
        };
    }

    /// A message the rule is about came by: does it strike?
    fn strikes(&mut self, rng: &mut ChaCha8Rng) -> bool {
        if self.rule.times.is_some_and(|t| self.stat.struck >= t) {
            return false;
        }
        let count = self.stat.matched;
        self.stat.matched += 1;
        match (self.rule.strike, &mut self.next) {
            (Strike::Share(share), _) => share >= 1.0 || rng.random::<f64>() < share,
            (Strike::OneIn(n), Next::Count(at)) => {
                let strikes = n > 0 && count == *at;
                if n > 0 && self.stat.matched.is_multiple_of(n as u64) {
                    *at = self.stat.matched + rng.random_range(0..n) as u64;
                }
                strikes
            }
            (Strike::Every(interval), Next::Time { at, base }) => {
                let now = Instant::now();
                let strikes = now >= *at;
                if strikes {
                    *base = (*base).max(now);
                    *at = *base + within(interval, rng);
                    *base += interval;
                }
                strikes
            }
            _ => false,
        }
    }
}

fn within(interval: Duration, rng: &mut ChaCha8Rng) -> Duration {
    interval.mul_f64(rng.random::<f64>())
}

struct FaultsState {
    /// Newest first.
    rules: Vec<Live>,
    rng: ChaCha8Rng,
}

/// The rules of a node.
pub struct Faults {
    active: AtomicBool,
    hits: AtomicU64,
    held: Mutex<HeldBack>,
    state: Mutex<FaultsState>,
}

/// What delay rules hold back at this moment.
#[derive(Default)]
struct HeldBack {
    messages: usize,
    bytes: u64,
}

impl HeldBack {
    /// Whether a message of so many bytes may be held back too; it is then counted.
    fn take(&mut self, bytes: u64) -> bool {
        let fits = self.messages < MAX_DELAYED && self.bytes + bytes <= MAX_DELAYED_BYTES;
        if fits {
            (self.messages, self.bytes) = (self.messages + 1, self.bytes + bytes);
        }
        fits
    }
}

/// Why a rule is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Neither a rate nor an interval, or a latency of zero.
    #[error("{0}")]
    Senseless(&'static str),
    /// It is longer than [`MAX_TIME`].
    #[error("{0} is at most {max} s", max = MAX_TIME.as_secs())]
    TooLong(&'static str),
    /// [`MAX_RULES`] are there.
    #[error("{MAX_RULES} rules are the most a node keeps")]
    TooMany,
}

/// What is to be done to a message.
#[derive(Debug)]
pub(crate) enum Verdict {
    Drop,
    Fail(HealthError),
    Delay(Held),
}

/// A message's wait under a delay rule.
#[derive(Debug)]
pub(crate) struct Held {
    latency: Duration,
    /// Payload it is counted with.
    bytes: u64,
    rule: watch::Receiver<()>,
}

impl Held {
    /// Payload bytes it is counted with, for [`Faults::released`].
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits for the latency, or for the rule's end.
    pub(crate) async fn wait(mut self) {
        tokio::select! {
            biased;
            _ = tokio::time::sleep(self.latency) => {}
            // Nobody sends: it ends when the rule is dropped.
            _ = self.rule.changed() => {}
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Faults({} rules, {} hits)",
            self.state.lock().rules.len(),
            self.hits()
        )
    }
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Faults {
        let state = FaultsState {
            rules: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        Faults {
            active: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            held: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// Adds a rule that makes sense; panics on others (see [`Faults::try_add`]).
    pub fn add(&self, rule: FaultRule) {
        self.try_add(rule).expect("a rule that makes sense");
    }

    /// Adds a rule; it is asked before those that are there.
    pub fn try_add(&self, rule: FaultRule) -> Result<(), RuleError> {
        match (rule.strike, rule.action) {
            (Strike::OneIn(0), _) => return Err(RuleError::Senseless("a rate of 0 never strikes")),
            (Strike::Every(Duration::ZERO), _) => {
                return Err(RuleError::Senseless(
                    "an interval of 0 strikes always: give a rate of 1",
                ));
            }
            (_, FaultAction::Delay(Duration::ZERO)) => {
                return Err(RuleError::Senseless("latency cannot be zero"));
            }
            (Strike::Every(interval), _) if interval > MAX_TIME => {
                return Err(RuleError::TooLong("an interval"));
            }
            (_, FaultAction::Delay(latency)) if latency > MAX_TIME => {
                return Err(RuleError::TooLong("a latency"));
            }
            _ => {}
        }
        let portals_only = MsgType::Put.bit() | MsgType::Get.bit();
        if rule.portals != 0 && rule.kinds != 0 && rule.kinds & portals_only == 0 {
            return Err(RuleError::Senseless("ACK and REPLY have no portal"));
        }
        let FaultsState { rules, rng } = &mut *self.state.lock();
        if rules.len() >= MAX_RULES {
            return Err(RuleError::TooMany);
        }
        rules.insert(0, Live::new(rule, rng));
        self.active.store(true, Ordering::Release);
        Ok(())
    }

    /// All rules with what they did, newest first.
    pub fn list(&self) -> Vec<(FaultRule, FaultStat)> {
        self.state
            .lock()
            .rules
            .iter()
            .map(|l| (l.rule, l.stat))
            .collect()
    }

    /// Takes away the rules `which` picks; returns how many. What they held back goes on at once.
    pub fn remove(&self, which: impl Fn(&FaultRule) -> bool) -> usize {
        let mut st = self.state.lock();
        let (gone, kept) = std::mem::take(&mut st.rules)
            .into_iter()
            .partition::<Vec<_>, _>(|l| which(&l.rule));
        st.rules = kept;
        self.active.store(!st.rules.is_empty(), Ordering::Release);
        drop(st);
        gone.len()
    }

    /// Takes all rules away.
    pub fn clear(&self) {
        self.remove(|_| true);
    }

    /// Statistics of the rules `which` picks begin at zero again.
    pub fn reset(&self, which: impl Fn(&FaultRule) -> bool) {
        let FaultsState { rules, rng } = &mut *self.state.lock();
        for live in rules.iter_mut().filter(|l| which(&l.rule)) {
            live.restart(rng);
        }
    }

    /// Whether there are rules.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Messages that rules struck, those of rules that are gone included.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// What is to be done to `msg` on `side`, where it leaves or came in by our NID `local`; None: nothing.
    pub(crate) fn judge(&self, msg: &Msg, side: Side, local: Nid) -> Option<Verdict> {
        if !self.is_active() {
            return None;
        }
        let kind = MsgType::of(&msg.kind);
        let FaultsState { rules, rng } = &mut *self.state.lock();
        let hit = rules.iter_mut().find_map(|l| {
            (l.rule.matches(msg, kind, side, local) && l.strikes(rng)).then_some(l)
        })?;
        hit.stat.struck(kind);
        self.hits.fetch_add(1, Ordering::Relaxed);
        match hit.rule.action {
            FaultAction::Fail(e) if hit.rule.health == HealthSet::EMPTY => Some(Verdict::Fail(e)),
            FaultAction::Fail(e) => Some(Verdict::Fail(
                hit.rule
                    .errors()
                    .pick(rng.random_range(0..HealthError::ALL.len()))
                    .unwrap_or(e),
            )),
            FaultAction::Drop => Some(Verdict::Drop),
            FaultAction::Delay(latency) => {
                let bytes = msg.payload.len() as u64;
                let held = self.held.lock().take(bytes);
                held.then(|| {
                    Verdict::Delay(Held {
                        latency,
                        bytes,
                        rule: hit.held.subscribe(),
                    })
                })
            }
        }
    }

    /// A delayed message of so many bytes has gone on.
    pub(crate) fn released(&self, bytes: u64) {
        let mut held = self.held.lock();
        (held.messages, held.bytes) = (held.messages - 1, held.bytes - bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nid;
    use coral_buffers::Payload;
    use coral_wire::lnet::{LnetMsg, WireHandle};

    fn put(dest: u64, portal: u32) -> Msg {
        let kind = LnetMsg::Put {
            ack_wmd: WireHandle::NONE,
            match_bits: 1,
            hdr_data: 0,
            ptl_index: portal,
            offset: 0,
        };
        Msg {
            dest: Nid(dest),
            src: Nid(1),
            kind,
            payload: Payload::new(),
            known_by: crate::KnownBy::Process,
        }
    }

    fn drops(faults: &Faults, msg: &Msg) -> bool {
        matches!(faults.judge(msg, Side::Send, msg.src), Some(Verdict::Drop))
    }

    #[test]
    fn conditions_and_counts() {
        let faults = Faults::new(1);
        assert!(!drops(&faults, &put(2, 6)));
        faults.add(
            FaultRule::all(FaultAction::Drop)
                .to(Nid(2))
                .portal(6)
                .portal(9)
                .times(2),
        );
        assert!(!drops(&faults, &put(3, 6)));
        assert!(!drops(&faults, &put(2, 7)));
        assert!(drops(&faults, &put(2, 6)));
        assert!(
            faults.judge(&put(2, 6), Side::Receive, Nid(2)).is_none(),
            "not at this side"
        );
        assert!(drops(&faults, &put(2, 9)));
        assert!(!drops(&faults, &put(2, 6)));
        assert_eq!(faults.hits(), 2);
        assert_eq!(
            faults.list()[0].1,
            FaultStat {
                matched: 2,
                struck: 2,
                put: 2,
                ..Default::default()
            }
        );
        faults.add(FaultRule::all(FaultAction::Delay(Duration::from_secs(1))));
        assert!(matches!(
            faults.judge(&put(2, 6), Side::Send, Nid(1)),
            Some(Verdict::Delay(_))
        ));
        assert_eq!(faults.remove(|r| r.action == FaultAction::Drop), 1);
        faults.clear();
        assert!(!drops(&faults, &put(2, 6)));
    }

    #[test]
    fn shares_are_seeded() {
        let run = |seed| {
            let faults = Faults::new(seed);
            faults.add(FaultRule::all(FaultAction::Drop).share(0.3));
            (0..1000)
                .map(|_| drops(&faults, &put(2, 6)))
                .collect::<Vec<bool>>()
        };
        assert_eq!(run(7), run(7));
        let hits = run(7).iter().filter(|h| **h).count();
        assert!((200..400).contains(&hits), "{hits} of 1000 at share 0.3");
    }

    #[test]
    fn one_of_every_ten_in_a_row() {
        let faults = Faults::new(3);
        faults.add(FaultRule {
            strike: Strike::OneIn(10),
            ..FaultRule::all(FaultAction::Drop)
        });
        for round in 0..20 {
            let hits = (0..10).filter(|_| drops(&faults, &put(2, 6))).count();
            assert_eq!(hits, 1, "round {round}");
        }
        faults.reset(|_| true);
        assert_eq!(faults.list()[0].1, FaultStat::default());
    }

    #[tokio::test(start_paused = true)]
    async fn one_per_interval() {
        let faults = Faults::new(3);
        faults.add(FaultRule {
            strike: Strike::Every(Duration::from_secs(10)),
            ..FaultRule::all(FaultAction::Drop)
        });
        let mut hits = 0;
        for _ in 0..1000 {
            hits += u32::from(drops(&faults, &put(2, 6)));
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((9..=11).contains(&hits), "{hits} in 100 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_that_goes_lets_go() {
        let faults = Faults::new(3);
        faults.add(FaultRule::all(FaultAction::Delay(Duration::from_secs(100))));
        let Some(Verdict::Delay(held)) = faults.judge(&put(2, 6), Side::Send, Nid(1)) else {
            panic!("not delayed")
        };
        let start = Instant::now();
        faults.clear();
        held.wait().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[test]
    fn senseless_rules_are_refused() {
        let faults = Faults::new(1);
        let all = FaultRule::all(FaultAction::Drop);
        assert!(
            faults
                .try_add(FaultRule {
                    strike: Strike::OneIn(0),
                    ..all
                })
                .is_err()
        );
        assert!(
            faults
                .try_add(FaultRule {
                    strike: Strike::Every(Duration::ZERO),
                    ..all
                })
                .is_err()
        );
        assert!(
            faults
                .try_add(FaultRule::all(FaultAction::Delay(Duration::ZERO)))
                .is_err()
        );
        assert!(faults.try_add(all.kind(MsgType::Ack).portal(3)).is_err());
        let for_ever = FaultRule {
            strike: Strike::Every(Duration::from_secs_f64(1e19)),
            ..all
        };
        assert_eq!(
            faults.try_add(for_ever).unwrap_err().to_string(),
            "an interval is at most 4294967295 s"
        );
        assert_eq!(
            faults.try_add(FaultRule::all(FaultAction::Delay(Duration::MAX))),
            Err(RuleError::TooLong("a latency"))
        );
        assert!(faults.list().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_times_work() {
        let faults = Faults::new(1);
        let every = Strike::Every(MAX_TIME);
        faults.add(FaultRule {
            strike: every,
            ..FaultRule::all(FaultAction::Drop)
        });
        faults.add(FaultRule {
            strike: every,
            ..FaultRule::all(FaultAction::Delay(MAX_TIME))
        });
        assert!(
            faults.judge(&put(2, 6), Side::Send, Nid(1)).is_none(),
            "not in the first moment of 136 years"
        );
        assert_eq!(faults.list()[0].1.matched, 1);
    }

    #[test]
    fn health_rules_see_what_leaves_and_nothing_else() {
        let faults = Faults::new(1);
        faults.add(FaultRule::all(FaultAction::Fail(HealthError::RemoteTimeout)).at(Side::Both));
        assert!(faults.judge(&put(2, 6), Side::Receive, Nid(2)).is_none());
        assert!(matches!(
            faults.judge(&put(2, 6), Side::Send, Nid(1)),
            Some(Verdict::Fail(HealthError::RemoteTimeout))
        ));
        assert_eq!(
            faults.list()[0].1.matched,
            1,
            "what arrives is not even counted"
        );
    }

    #[test]
    fn of_several_errors_each_is_drawn_and_no_other() {
        use HealthError::*;
        let faults = Faults::new(1);
        let health = [LocalDropped, NetworkTimeout].into_iter().collect();
        faults.add(FaultRule {
            health,
            ..FaultRule::all(FaultAction::Fail(RemoteError))
        });
        let drawn: HealthSet = (0..200)
            .map(|_| match faults.judge(&put(2, 6), Side::Send, Nid(1)) {
                Some(Verdict::Fail(e)) => e,
                v => panic!("{v:?}"),
            })
            .collect();
        assert_eq!(drawn, faults.list()[0].0.errors());
    }

    #[test]
    fn a_rule_for_one_of_our_nids_is_about_where_it_came_in() {
        let faults = Faults::new(1);
        let rule = FaultRule {
            local: Nid(7).into(),
            ..FaultRule::all(FaultAction::Drop).at(Side::Both)
        };
        faults.add(rule);
        assert!(faults.judge(&put(7, 6), Side::Receive, Nid(8)).is_none());
        assert!(
            matches!(
                faults.judge(&put(2, 6), Side::Receive, Nid(7)),
                Some(Verdict::Drop)
            ),
            "on its way to somebody else"
        );
    }

    #[test]
    fn what_is_held_back_is_bounded_in_messages_and_bytes() {
        let faults = Faults::new(1);
        faults.add(FaultRule::all(FaultAction::Delay(Duration::from_secs(1))));
        let large = Msg {
            payload: Payload::from(vec![0u8; 1 << 20]),
            ..put(2, 6)
        };
        let hold = |msg: &Msg| match faults.judge(msg, Side::Send, Nid(1)) {
            Some(Verdict::Delay(held)) => Some(held),
            None => None,
            v => panic!("{v:?}"),
        };
        let mut held: Vec<Held> = std::iter::from_fn(|| hold(&large)).collect();
        assert_eq!(held.len() as u64, MAX_DELAYED_BYTES >> 20);
        held.extend(hold(&put(2, 6)));
        assert_eq!(
            held.len() as u64,
            (MAX_DELAYED_BYTES >> 20) + 1,
            "one without payload still fits"
        );
        held.drain(..).for_each(|h| faults.released(h.bytes()));
        assert!(hold(&large).is_some());
        let small = (0..MAX_DELAYED + 5)
            .filter(|_| hold(&put(2, 6)).is_some())
            .count();
        assert_eq!(small, MAX_DELAYED - 1);
    }
}
