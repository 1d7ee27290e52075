//! A fault rule: which messages it is about, how often it strikes, and what it does then.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use coral_wire::lnet::LnetMsg;
use coral_wire::nid::NidParseError;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// A set of [`HealthError`]s (`da_health_error_mask`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthSet(u16);

impl HealthSet {
    /// None.
    pub const EMPTY: HealthSet = HealthSet(0);

    /// The same with `e`.
    pub fn with(self, e: HealthError) -> HealthSet {
        HealthSet(self.0 | 1 << e as u16)
    }

    /// Whether it holds `e`.
    pub fn contains(self, e: HealthError) -> bool {
        self.0 >> e as u16 & 1 == 1
    }

    /// Those it holds, in Lustre's order.
    pub fn iter(self) -> impl Iterator<Item = HealthError> {
        HealthError::ALL
            .into_iter()
            .map(|(e, _)| e)
            .filter(move |e| self.contains(*e))
    }

    /// One of the set for the `drawn`-th of all errors: itself, else the nearest, of two the later one
    /// (`lnet_fault_match_health`). None: the set is empty.
    pub(super) fn pick(self, drawn: usize) -> Option<HealthError> {
        self.iter()
            .min_by_key(|e| ((*e as usize).abs_diff(drawn), usize::MAX - *e as usize))
    }
}

impl FromIterator<HealthError> for HealthSet {
    fn from_iter<T: IntoIterator<Item = HealthError>>(all: T) -> HealthSet {
        all.into_iter().fold(HealthSet::EMPTY, HealthSet::with)
    }
}

/// What happens to a message a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultAction {
    /// It is lost; the sender is told it was sent.
    Drop,
    /// It is not sent and the sender is told so. Such a rule never looks at what arrives (`drop_rule_match`).
    /// [`FaultRule::health`] may hold further errors.
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
    /// Our NID that it leaves from, or by which it came in.
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
    /// With [`FaultAction::Fail`]: further errors; of them and the action's own one is drawn at each strike.
    pub health: HealthSet,
}

impl FaultRule {
    /// Every message this node sends, for `action`.
    pub fn all(action: FaultAction) -> FaultRule {
        let any = NidMatch::Any;
        FaultRule {
            src: any,
            dst: any,
            local: any,
            portals: 0,
            kinds: 0,
            side: Side::Send,
            strike: Strike::Share(1.0),
            times: None,
            action,
            health: HealthSet::EMPTY,
        }
    }

    /// The same, from `src` only.
    pub fn from(self, src: impl Into<NidMatch>) -> FaultRule {
        FaultRule {
            src: src.into(),
            ..self
        }
    }

    /// The same, to `dst` only.
    pub fn to(self, dst: impl Into<NidMatch>) -> FaultRule {
        FaultRule {
            dst: dst.into(),
            ..self
        }
    }

    /// The same, for one more portal. Panics above 63.
    pub fn portal(self, portal: u32) -> FaultRule {
        assert!(portal < 64, "portal {portal} does not exist");
        FaultRule {
            portals: self.portals | 1 << portal,
            ..self
        }
    }

    /// The same, for one more kind.
    pub fn kind(self, kind: MsgType) -> FaultRule {
        FaultRule {
            kinds: self.kinds | kind.bit(),
            ..self
        }
    }

    /// The same, with each message struck with probability `share`.
    pub fn share(self, share: f64) -> FaultRule {
        FaultRule {
            strike: Strike::Share(share),
            ..self
        }
    }

    /// The same, at most so often.
    pub fn times(self, times: u64) -> FaultRule {
        FaultRule {
            times: Some(times),
            ..self
        }
    }

    /// The same, looking at another side.
    pub fn at(self, side: Side) -> FaultRule {
        FaultRule { side, ..self }
    }

    /// The errors of a rule that makes sends fail.
    pub fn errors(&self) -> HealthSet {
        match self.action {
            FaultAction::Fail(e) => self.health.with(e),
            _ => HealthSet::EMPTY,
        }
    }

    /// `local`: our NID by which `msg` leaves or came in.
    pub(crate) fn matches(&self, msg: &Msg, kind: MsgType, side: Side, local: Nid) -> bool {
        let fails = matches!(self.action, FaultAction::Fail(_));
        (self.side == Side::Both || self.side == side)
            && (side == Side::Send || !fails)
            && (self.kinds == 0 || self.kinds & kind.bit() != 0)
            && (self.portals == 0
                || msg
                    .portal()
                    .is_some_and(|p| p < 64 && self.portals >> p & 1 == 1))
            && self.src.matches(msg.src)
            && self.dst.matches(msg.dest)
            && self.local.matches(local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nids_in_rules() {
        let nid = |s: &str| s.parse::<Nid>().unwrap();
        for (text, yes, no, shown) in [
            (
                "*@tcp1",
                "10.0.0.1@tcp1",
                "10.0.0.1@tcp",
                "255.255.255.255@tcp1",
            ),
            (
                "10.0.0.1@tcp",
                "10.0.0.1@tcp",
                "10.0.0.2@tcp",
                "10.0.0.1@tcp",
            ),
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
    fn the_nearest_error_of_a_set_is_picked() {
        use HealthError::*;
        let set: HealthSet = [LocalDropped, RemoteError, NetworkTimeout]
            .into_iter()
            .collect();
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            [LocalDropped, RemoteError, NetworkTimeout]
        );
        let picked: Vec<_> = (0..10).map(|drawn| set.pick(drawn).unwrap()).collect();
        let (l, r, n) = (LocalDropped, RemoteError, NetworkTimeout);
        assert_eq!(
            picked,
            [l, l, l, l, r, r, r, r, n, n],
            "1, 6 and 9 of 0 to 9"
        );
        assert_eq!(HealthSet::EMPTY.pick(3), None);
    }
}
