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
//! ([`Side`]). [`Strike::Share`] and [`FaultRule::times`] have no counterpart there.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coral_wire::lnet::LnetMsg;
use coral_wire::nid::NidParseError;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Nid;
use crate::msg::Msg;

/// Most rules a node keeps; [`Faults::add`] refuses more.
pub const MAX_RULES: usize = 1024;
/// Most messages a node holds back for delay rules; more pass undelayed.
pub const MAX_DELAYED: usize = 65536;

/// Kind of an LNet message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsgType {
    /// PUT.
    Put,
    /// GET.
    Get,
    /// ACK of a PUT.
    Ack,
    /// REPLY to a GET.
    Reply,
}

impl MsgType {
    /// All kinds, in the order of Lustre's numbers.
    pub const ALL: [MsgType; 4] = [MsgType::Ack, MsgType::Put, MsgType::Get, MsgType::Reply];

    /// The kind of a message.
    pub(crate) fn of(kind: &LnetMsg) -> MsgType {
        match kind {
            LnetMsg::Put { .. } => MsgType::Put,
            LnetMsg::Get { .. } => MsgType::Get,
            LnetMsg::Ack { .. } => MsgType::Ack,
            LnetMsg::Reply { .. } => MsgType::Reply,
        }
    }

    /// Its bit in a mask of kinds: 1 << Lustre's number (ACK 0, PUT 1, GET 2, REPLY 3).
    pub fn bit(self) -> u8 {
        match self {
            MsgType::Ack => 1,
            MsgType::Put => 2,
            MsgType::Get => 4,
            MsgType::Reply => 8,
        }
    }
}

/// Which NIDs a rule means: `*` (any), `*@tcp1` (all of a network) or one NID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NidMatch {
    /// Any.
    #[default]
    Any,
    /// All of one network (type and number, as [`Nid::net`]).
    Net(u32),
    /// One.
    One(Nid),
}

impl NidMatch {
    /// Whether `nid` is meant.
    pub fn matches(self, nid: Nid) -> bool {
        match self {
            NidMatch::Any => true,
            NidMatch::Net(net) => nid.net() == net,
            NidMatch::One(n) => n == nid,
        }
    }
}

impl From<Nid> for NidMatch {
    fn from(nid: Nid) -> NidMatch {
        NidMatch::One(nid)
    }
}

impl FromStr for NidMatch {
    type Err = NidParseError;

    fn from_str(text: &str) -> Result<NidMatch, NidParseError> {
        match text.split_once('@') {
            _ if text == "*" => Ok(NidMatch::Any),
            // Any address does to find the network's number.
            Some(("*", net)) => ["0.0.0.0", "0"]
                .iter()
                .find_map(|addr| format!("{addr}@{net}").parse::<Nid>().ok())
                .map(|n| NidMatch::Net(n.net()))
                .ok_or_else(|| NidParseError(text.to_owned())),
            _ => text.parse().map(NidMatch::One),
        }
    }
}

impl fmt::Display for NidMatch {
    /// As Lustre prints them: a whole network is its highest address, any NID is `<?>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NidMatch::Any => Nid::ANY.fmt(f),
            NidMatch::Net(net) => Nid::new(*net, u32::MAX).fmt(f),
            NidMatch::One(nid) => nid.fmt(f),
        }
    }
}

/// What the network is made to look like to the health code (`enum lnet_msg_hstatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthError {
    /// The send was interrupted.
    LocalInterrupt,
    /// Our side dropped it.
    LocalDropped,
    /// Our side aborted it.
    LocalAborted,
    /// No way to the peer.
    LocalNoRoute,
    /// Our interface failed.
    LocalError,
    /// It waited too long on our side.
    LocalTimeout,
    /// The peer failed.
    RemoteError,
    /// The peer dropped it.
    RemoteDropped,
    /// The peer took too long.
    RemoteTimeout,
    /// The network took too long.
    NetworkTimeout,
}

impl HealthError {
    /// All, in Lustre's order.
    pub const ALL: [(HealthError, &'static str); 10] = [
        (HealthError::LocalInterrupt, "local_interrupt"),
        (HealthError::LocalDropped, "local_dropped"),
        (HealthError::LocalAborted, "local_aborted"),
        (HealthError::LocalNoRoute, "local_no_route"),
        (HealthError::LocalError, "local_error"),
        (HealthError::LocalTimeout, "local_timeout"),
        (HealthError::RemoteError, "remote_error"),
        (HealthError::RemoteDropped, "remote_dropped"),
        (HealthError::RemoteTimeout, "remote_timeout"),
        (HealthError::NetworkTimeout, "network_timeout"),
    ];
}

/// What happens to a message a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultAction {
    /// It is lost; the sender is told it was sent.
    Drop,
    /// It is not sent and the sender is told so. On arrival: as [`FaultAction::Drop`].
    Fail(HealthError),
    /// It goes on so much later; messages behind it may overtake.
    Delay(Duration),
}

/// How often a rule strikes among the messages it is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strike {
    /// Each message with this probability, 0.0 to 1.0.
    Share(f64),
    /// One, at random, of every so many in a row (`--rate`). 0 never strikes.
    OneIn(u32),
    /// One per interval, at a random time in it (`--interval`).
    Every(Duration),
}

/// Where a rule looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// At what this node sends of its own.
    Send,
    /// At what arrives here from other nodes, to be taken or forwarded.
    Receive,
    /// At both.
    Both,
}

/// A rule: the conditions that are given must all hold.
#[derive(Clone, Copy, Debug)]
pub struct FaultRule {
    /// Sender.
    pub src: NidMatch,
    /// Destination.
    pub dst: NidMatch,
    /// Our NID that it leaves from or came to.
    pub local: NidMatch,
    /// Portals, one bit each; 0: any. ACK and REPLY have none and do not match a rule with portals.
    pub portals: u64,
    /// Kinds, by [`MsgType::bit`]; 0: any.
    pub kinds: u8,
    /// Where it looks.
    pub side: Side,
    /// How often it strikes.
    pub strike: Strike,
    /// Strikes at most so often.
    pub times: Option<u64>,
    /// What happens.
    pub action: FaultAction,
}

impl FaultRule {
    /// Every message this node sends, for `action`.
    pub fn all(action: FaultAction) -> FaultRule {
        let any = NidMatch::Any;
        FaultRule { src: any, dst: any, local: any, portals: 0, kinds: 0, side: Side::Send, strike: Strike::Share(1.0), times: None, action }
    }

    /// The same, from `src` only.
    pub fn from(self, src: impl Into<NidMatch>) -> FaultRule {
        FaultRule { src: src.into(), ..self }
    }

    /// The same, to `dst` only.
    pub fn to(self, dst: impl Into<NidMatch>) -> FaultRule {
        FaultRule { dst: dst.into(), ..self }
    }

    /// The same, for one more portal. Panics above 63.
    pub fn portal(self, portal: u32) -> FaultRule {
        assert!(portal < 64, "portal {portal} does not exist");
        FaultRule { portals: self.portals | 1 << portal, ..self }
    }

    /// The same, for one more kind.
    pub fn kind(self, kind: MsgType) -> FaultRule {
        FaultRule { kinds: self.kinds | kind.bit(), ..self }
    }

    /// The same, with each message struck with probability `share`.
    pub fn share(self, share: f64) -> FaultRule {
        FaultRule { strike: Strike::Share(share), ..self }
    }

    /// The same, at most so often.
    pub fn times(self, times: u64) -> FaultRule {
        FaultRule { times: Some(times), ..self }
    }

    /// The same, looking at another side.
    pub fn at(self, side: Side) -> FaultRule {
        FaultRule { side, ..self }
    }

    fn matches(&self, msg: &Msg, kind: MsgType, side: Side) -> bool {
        let local = if side == Side::Send { msg.src } else { msg.dest };
        (self.side == Side::Both || self.side == side)
            && (self.kinds == 0 || self.kinds & kind.bit() != 0)
            && (self.portals == 0 || msg.portal().is_some_and(|p| p < 64 && self.portals >> p & 1 == 1))
            && self.src.matches(msg.src)
            && self.dst.matches(msg.dest)
            && self.local.matches(local)
    }
}

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
        let mut live = Live { rule, stat: FaultStat::default(), next: Next::Chance, held: watch::Sender::new(()) };
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
                Next::Time { at: now + within(interval, rng), base: now + interval }
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

struct State {
    /// Newest first.
    rules: Vec<Live>,
    rng: ChaCha8Rng,
}

/// The rules of a node.
pub struct Faults {
    active: AtomicBool,
    hits: AtomicU64,
    delayed: AtomicU64,
    state: Mutex<State>,
}

/// Why a rule is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Neither a rate nor an interval, or a latency of zero.
    #[error("{0}")]
    Senseless(&'static str),
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
    rule: watch::Receiver<()>,
}

impl Held {
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
        write!(f, "Faults({} rules, {} hits)", self.state.lock().rules.len(), self.hits())
    }
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Faults {
        let state = State { rules: Vec::new(), rng: ChaCha8Rng::seed_from_u64(seed) };
        Faults { active: AtomicBool::new(false), hits: AtomicU64::new(0), delayed: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Adds a rule that makes sense; panics on others (see [`Faults::try_add`]).
    pub fn add(&self, rule: FaultRule) {
        self.try_add(rule).expect("a rule that makes sense");
    }

    /// Adds a rule; it is asked before those that are there.
    pub fn try_add(&self, rule: FaultRule) -> Result<(), RuleError> {
        match (rule.strike, rule.action) {
            (Strike::OneIn(0), _) => return Err(RuleError::Senseless("a rate of 0 never strikes")),
            (Strike::Every(Duration::ZERO), _) => return Err(RuleError::Senseless("an interval of 0 strikes always: give a rate of 1")),
            (_, FaultAction::Delay(Duration::ZERO)) => return Err(RuleError::Senseless("latency cannot be zero")),
            _ => {}
        }
        let portals_only = MsgType::Put.bit() | MsgType::Get.bit();
        if rule.portals != 0 && rule.kinds != 0 && rule.kinds & portals_only == 0 {
            return Err(RuleError::Senseless("ACK and REPLY have no portal"));
        }
        let State { rules, rng } = &mut *self.state.lock();
        if rules.len() >= MAX_RULES {
            return Err(RuleError::TooMany);
        }
        rules.insert(0, Live::new(rule, rng));
        self.active.store(true, Ordering::Release);
        Ok(())
    }

    /// All rules with what they did, newest first.
    pub fn list(&self) -> Vec<(FaultRule, FaultStat)> {
        self.state.lock().rules.iter().map(|l| (l.rule, l.stat)).collect()
    }

    /// Takes away the rules `which` picks; returns how many. What they held back goes on at once.
    pub fn remove(&self, which: impl Fn(&FaultRule) -> bool) -> usize {
        let mut st = self.state.lock();
        let (gone, kept) = std::mem::take(&mut st.rules).into_iter().partition::<Vec<_>, _>(|l| which(&l.rule));
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
        let State { rules, rng } = &mut *self.state.lock();
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

    /// What is to be done to `msg` on `side`; None: nothing.
    pub(crate) fn judge(&self, msg: &Msg, side: Side) -> Option<Verdict> {
        if !self.is_active() {
            return None;
        }
        let kind = MsgType::of(&msg.kind);
        let State { rules, rng } = &mut *self.state.lock();
        let hit = rules.iter_mut().find_map(|l| (l.rule.matches(msg, kind, side) && l.strikes(rng)).then_some(l))?;
        hit.stat.struck(kind);
        self.hits.fetch_add(1, Ordering::Relaxed);
        match hit.rule.action {
            FaultAction::Fail(e) if side == Side::Send => Some(Verdict::Fail(e)),
            FaultAction::Drop | FaultAction::Fail(_) => Some(Verdict::Drop),
            FaultAction::Delay(_) if self.delayed.load(Ordering::Relaxed) >= MAX_DELAYED as u64 => None,
            FaultAction::Delay(latency) => {
                self.delayed.fetch_add(1, Ordering::Relaxed);
                Some(Verdict::Delay(Held { latency, rule: hit.held.subscribe() }))
            }
        }
    }

    /// A delayed message has gone on.
    pub(crate) fn released(&self) {
        self.delayed.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;
    use coral_wire::lnet::WireHandle;

    fn put(dest: u64, portal: u32) -> Msg {
        let kind = LnetMsg::Put { ack_wmd: WireHandle::NONE, match_bits: 1, hdr_data: 0, ptl_index: portal, offset: 0 };
        Msg { dest: Nid(dest), src: Nid(1), kind, payload: Payload::new() }
    }

    fn drops(faults: &Faults, msg: &Msg) -> bool {
        matches!(faults.judge(msg, Side::Send), Some(Verdict::Drop))
    }

    #[test]
    fn conditions_and_counts() {
        let faults = Faults::new(1);
        assert!(!drops(&faults, &put(2, 6)));
        faults.add(FaultRule::all(FaultAction::Drop).to(Nid(2)).portal(6).portal(9).times(2));
        assert!(!drops(&faults, &put(3, 6)));
        assert!(!drops(&faults, &put(2, 7)));
        assert!(drops(&faults, &put(2, 6)));
        assert!(faults.judge(&put(2, 6), Side::Receive).is_none(), "not at this side");
        assert!(drops(&faults, &put(2, 9)));
        assert!(!drops(&faults, &put(2, 6)));
        assert_eq!(faults.hits(), 2);
        assert_eq!(faults.list()[0].1, FaultStat { matched: 2, struck: 2, put: 2, ..Default::default() });
        faults.add(FaultRule::all(FaultAction::Delay(Duration::from_secs(1))));
        assert!(matches!(faults.judge(&put(2, 6), Side::Send), Some(Verdict::Delay(_))));
        assert_eq!(faults.remove(|r| r.action == FaultAction::Drop), 1);
        faults.clear();
        assert!(!drops(&faults, &put(2, 6)));
    }

    #[test]
    fn shares_are_seeded() {
        let run = |seed| {
            let faults = Faults::new(seed);
            faults.add(FaultRule::all(FaultAction::Drop).share(0.3));
            (0..1000).map(|_| drops(&faults, &put(2, 6))).collect::<Vec<bool>>()
        };
        assert_eq!(run(7), run(7));
        let hits = run(7).iter().filter(|h| **h).count();
        assert!((200..400).contains(&hits), "{hits} of 1000 at share 0.3");
    }

    #[test]
    fn one_of_every_ten_in_a_row() {
        let faults = Faults::new(3);
        faults.add(FaultRule { strike: Strike::OneIn(10), ..FaultRule::all(FaultAction::Drop) });
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
        faults.add(FaultRule { strike: Strike::Every(Duration::from_secs(10)), ..FaultRule::all(FaultAction::Drop) });
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
        let Some(Verdict::Delay(held)) = faults.judge(&put(2, 6), Side::Send) else { panic!("not delayed") };
        let start = Instant::now();
        faults.clear();
        held.wait().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[test]
    fn nids_in_rules() {
        let nid = |s: &str| s.parse::<Nid>().unwrap();
        for (text, yes, no, shown) in [
            ("*@tcp1", "10.0.0.1@tcp1", "10.0.0.1@tcp", "255.255.255.255@tcp1"),
            ("10.0.0.1@tcp", "10.0.0.1@tcp", "10.0.0.2@tcp", "10.0.0.1@tcp"),
            ("*@lo", "3@lo", "10.0.0.1@tcp", "4294967295@lo"),
        ] {
            let m: NidMatch = text.parse().unwrap();
            assert!(m.matches(nid(yes)) && !m.matches(nid(no)), "{text}");
            assert_eq!(m.to_string(), shown);
        }
        assert_eq!("*".parse(), Ok(NidMatch::Any));
        assert!("*@nonet".parse::<NidMatch>().is_err());
        assert!("x".parse::<NidMatch>().is_err());
    }

    #[test]
    fn senseless_rules_are_refused() {
        let faults = Faults::new(1);
        let all = FaultRule::all(FaultAction::Drop);
        assert!(faults.try_add(FaultRule { strike: Strike::OneIn(0), ..all }).is_err());
        assert!(faults.try_add(FaultRule { strike: Strike::Every(Duration::ZERO), ..all }).is_err());
        assert!(faults.try_add(FaultRule::all(FaultAction::Delay(Duration::ZERO))).is_err());
        assert!(faults.try_add(all.kind(MsgType::Ack).portal(3)).is_err());
        assert!(faults.list().is_empty());
    }
}
