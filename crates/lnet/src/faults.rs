//! Faults on purpose, for tests: messages of this node are lost or delayed by rule (as `lnetctl fault`, lnet/lnet/net_fault.c).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coral_wire::lnet::LnetMsg;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Nid;
use crate::msg::Msg;

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

/// What happens to a message a rule takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultAction {
    /// It is lost; the sender is told it was sent.
    Drop,
    /// It is sent so much later; messages behind it may overtake.
    Delay(Duration),
}

/// A rule: the conditions that are given must all hold.
#[derive(Clone, Copy, Debug)]
pub struct FaultRule {
    /// Sender's NID.
    pub src: Option<Nid>,
    /// Destination's NID.
    pub dst: Option<Nid>,
    /// Portal; ACK and REPLY have none and do not match a rule with one.
    pub portal: Option<u32>,
    /// Kind of message.
    pub kind: Option<MsgType>,
    /// Share of the matching messages it takes, 0.0 to 1.0.
    pub rate: f64,
    /// Takes at most so many.
    pub times: Option<u64>,
    /// What happens.
    pub action: FaultAction,
}

impl FaultRule {
    /// Every message, for `action`.
    pub fn all(action: FaultAction) -> FaultRule {
        FaultRule { src: None, dst: None, portal: None, kind: None, rate: 1.0, times: None, action }
    }

    fn matches(&self, msg: &Msg) -> bool {
        let kind = match msg.kind {
            LnetMsg::Put { .. } => MsgType::Put,
            LnetMsg::Get { .. } => MsgType::Get,
            LnetMsg::Ack { .. } => MsgType::Ack,
            LnetMsg::Reply { .. } => MsgType::Reply,
        };
        self.src.is_none_or(|n| n == msg.src)
            && self.dst.is_none_or(|n| n == msg.dest)
            && self.portal.is_none_or(|p| msg.portal() == Some(p))
            && self.kind.is_none_or(|k| k == kind)
    }
}

struct State {
    rules: Vec<FaultRule>,
    rng: ChaCha8Rng,
}

/// The fault rules of a node. Without rules a send costs one load more.
pub struct Faults {
    active: AtomicBool,
    hits: AtomicU64,
    state: Mutex<State>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Faults({} rules, {} hits)", self.state.lock().rules.len(), self.hits())
    }
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Faults {
        let state = State { rules: Vec::new(), rng: ChaCha8Rng::seed_from_u64(seed) };
        Faults { active: AtomicBool::new(false), hits: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Adds a rule; the first that takes a message decides.
    pub fn add(&self, rule: FaultRule) {
        self.state.lock().rules.push(rule);
        self.active.store(true, Ordering::Release);
    }

    /// Takes all rules away.
    pub fn clear(&self) {
        self.state.lock().rules.clear();
        self.active.store(false, Ordering::Release);
    }

    /// Messages that rules took.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// What is to be done to `msg`; None: nothing.
    pub(crate) fn judge(&self, msg: &Msg) -> Option<FaultAction> {
        if !self.active.load(Ordering::Acquire) {
            return None;
        }
        let State { rules, rng } = &mut *self.state.lock();
        let hit = rules.iter_mut().find(|r| r.times != Some(0) && r.matches(msg) && (r.rate >= 1.0 || rng.random::<f64>() < r.rate))?;
        if let Some(left) = &mut hit.times {
            *left -= 1;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(hit.action)
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

    #[test]
    fn conditions_and_counts() {
        let faults = Faults::new(1);
        assert_eq!(faults.judge(&put(2, 6)), None);
        faults.add(FaultRule { dst: Some(Nid(2)), portal: Some(6), times: Some(2), ..FaultRule::all(FaultAction::Drop) });
        assert_eq!(faults.judge(&put(3, 6)), None);
        assert_eq!(faults.judge(&put(2, 7)), None);
        assert_eq!(faults.judge(&put(2, 6)), Some(FaultAction::Drop));
        assert_eq!(faults.judge(&put(2, 6)), Some(FaultAction::Drop));
        assert_eq!(faults.judge(&put(2, 6)), None);
        assert_eq!(faults.hits(), 2);
        faults.add(FaultRule::all(FaultAction::Delay(Duration::from_secs(1))));
        assert_eq!(faults.judge(&put(2, 6)), Some(FaultAction::Delay(Duration::from_secs(1))));
        faults.clear();
        assert_eq!(faults.judge(&put(2, 6)), None);
    }

    #[test]
    fn rate_is_seeded() {
        let run = |seed| {
            let faults = Faults::new(seed);
            faults.add(FaultRule { rate: 0.3, ..FaultRule::all(FaultAction::Drop) });
            (0..1000).map(|_| faults.judge(&put(2, 6)).is_some()).collect::<Vec<bool>>()
        };
        assert_eq!(run(7), run(7));
        let hits = run(7).iter().filter(|h| **h).count();
        assert!((200..400).contains(&hits), "{hits} of 1000 at rate 0.3");
    }
}
