//! The node's side of lnetctl: what a running process answers on its control socket about its LNet nodes.

use coral_lab::verdict::{RouterBuffers, Seen};
use coral_lnet::faults::{FaultAction, FaultRule, FaultStat, HealthError, NidMatch, Side, Strike};
use coral_lnet::history::History;
use coral_lnet::show::LinkShow;
use coral_lnet::{Nid, Node, PoolSizes, RouteSpec};
use coral_metrics::Snapshot;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Most connections in one answer.
const TCP_MAX: usize = 256;

/// What one may ask a process about its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LnetAsk {
    /// NID of the node that is meant; none: whichever the process has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What it shall do.
    pub act: Act,
}

/// What a node shall do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    /// All it shows of itself.
    Show,
    /// Ping, with a limit in milliseconds.
    Ping { nid: String, limit_ms: u64 },
    /// The last seconds.
    History { seconds: usize },
    /// What is counted: as JSON, or else Prometheus's text.
    Metrics { json: bool },
    /// Where the time of requests went.
    Stopwatch,
    /// What is not in the records of that and matters beside them: operations that were answered at once, and fault rules.
    Beside,
    /// What TCP knows of the connections: those that carried most.
    Tcp,
    /// Adds a route.
    RouteAdd {
        net: String,
        gateway: String,
        hops: Option<u8>,
        priority: u32,
    },
    /// Takes a route away.
    RouteDel { net: String, gateway: String },
    /// Makes NIDs one peer's.
    PeerAdd { primary: String, nids: Vec<String> },
    /// Takes NIDs of a peer, or the whole peer, away.
    PeerDel { primary: String, nids: Vec<String> },
    /// Begins or ends to forward.
    Routing { on: bool },
    /// Router buffers.
    Pools {
        tiny: Option<usize>,
        small: Option<usize>,
        large: Option<usize>,
    },
    /// Health of an interface, 0 to 1000.
    Health { nid: String, value: u32 },
    /// Breaks the TCP connections with a peer; they are opened again when needed.
    Disconnect { nid: String },
    /// Adds a fault rule.
    FaultAdd(Rule),
    /// Takes drop or delay rules away, all or those with just these NIDs.
    FaultDel {
        delay: bool,
        src: Option<String>,
        dst: Option<String>,
    },
    /// Counts of drop or delay rules begin anew.
    FaultReset { delay: bool },
    /// Drop or delay rules with their counts.
    FaultList { delay: bool },
}

/// A fault rule as users write it (`lctl net_drop_add`, `net_delay_add`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rule {
    /// It delays; else it drops.
    pub delay: bool,
    pub src: String,
    pub dst: String,
    pub local: Option<String>,
    /// One in so many.
    pub rate: u32,
    /// One per so many seconds.
    pub interval_s: f64,
    /// Seconds of delay.
    pub latency_s: f64,
    /// Mask.
    pub portals: u64,
    /// Mask.
    pub kinds: u8,
    /// Health errors to simulate, by name; drop rules only.
    pub health: Vec<String>,
    /// Every message.
    pub all: bool,
    /// About half of the messages, whenever they come; needs an interval.
    #[serde(default)]
    pub random: bool,
}

impl Rule {
    /// The rule, on a node that has these NIDs.
    fn build(&self, ours: &[Nid]) -> Result<FaultRule, String> {
        let nid = |text: &str| {
            text.parse::<NidMatch>()
                .map_err(|_| format!("Invalid NID: {text}"))
        };
        let seconds = |s: f64, what: &str| {
            Duration::try_from_secs_f64(s).map_err(|_| format!("{what} {s} is no time"))
        };
        let known = |name: &String| {
            HealthError::ALL
                .iter()
                .find(|(_, n)| n == name)
                .map(|(e, _)| *e)
                .ok_or_else(|| format!("unknown health error {name}"))
        };
        let errors = self
            .health
            .iter()
            .map(known)
            .collect::<Result<Vec<_>, _>>()?;
        let action = match (self.delay, errors.first()) {
            (true, _) => FaultAction::Delay(seconds(self.latency_s, "latency")?),
            (false, None) => FaultAction::Drop,
            (false, Some(first)) => FaultAction::Fail(*first),
        };
        let strike = match self.rate {
            _ if self.all => Strike::Share(1.0),
            _ if self.random => Strike::Share(random_share(self.interval_s)),
            0 => Strike::Every(seconds(self.interval_s, "interval")?),
            n => Strike::OneIn(n),
        };
        let local = self.local.as_deref().map_or(Ok(NidMatch::Any), nid)?;
        if !ours.iter().any(|n| local.matches(*n)) {
            let names: Vec<String> = ours.iter().map(ToString::to_string).collect();
            return Err(format!(
                "-o {}: no NID of this node ({})",
                self.local.as_deref().unwrap_or("*"),
                names.join(", ")
            ));
        }
        let rule = FaultRule {
            src: nid(&self.src)?,
            dst: nid(&self.dst)?,
            local,
            portals: self.portals,
            kinds: self.kinds,
            side: Side::Both,
            strike,
            health: errors.into_iter().collect(),
            ..FaultRule::all(action)
        };
        Ok(rule)
    }
}

/// The share of messages a random rule takes: with an interval of N whole seconds each message draws a number below N, and the
/// upper half loses (`drop_rule_match`, lnet/lnet/net_fault.c). With 1 s that is every message.
fn random_share(interval_s: f64) -> f64 {
    let n = interval_s.trunc().max(1.0);
    (n - (n / 2.0).trunc()) / n
}

fn is_delay(rule: &FaultRule) -> bool {
    matches!(rule.action, FaultAction::Delay(_))
}

fn rule_json((r, s): &(FaultRule, FaultStat)) -> Value {
    let (rate, interval) = match r.strike {
        Strike::OneIn(n) => (n, 0.0),
        Strike::Every(d) => (0, d.as_secs_f64()),
        Strike::Share(s) => ((1.0 / s).round() as u32, 0.0),
    };
    let latency = match r.action {
        FaultAction::Delay(d) => d.as_secs_f64(),
        _ => 0.0,
    };
    let kinds = match (r.kinds, r.portals) {
        (0, 0) => 15,
        (0, _) => 6,
        (k, _) => k,
    };
    json!({
        "src": r.src.to_string(), "dst": r.dst.to_string(), "rate": rate, "interval": interval, "latency": latency,
        "portals": r.portals, "kinds": kinds, "struck": s.struck, "matched": s.matched,
        "put": s.put, "ack": s.ack, "get": s.get, "reply": s.reply,
    })
}

/// The node of a process, with its last hour.
pub(crate) struct Agent {
    node: Arc<Node>,
    history: Arc<History>,
}

impl Agent {
    /// Begins to follow a node.
    pub(crate) fn new(node: &Arc<Node>) -> Arc<Agent> {
        Arc::new(Agent {
            node: node.clone(),
            history: History::follow(node),
        })
    }

    /// Does what is asked; a failure is `{"error": text, "errno": n}`.
    pub(crate) async fn answer(&self, ask: LnetAsk) -> Value {
        let node = &self.node;
        let is_ours = |name: &String| node.nids().iter().any(|nid| nid.to_string() == *name);
        if ask.node.is_some_and(|name| !is_ours(&name)) {
            return json!({ "error": format!("no such node in this process; it has: {}", node.nid()), "errno": libc::ENODEV });
        }
        match act(node, &self.history, ask.act).await {
            Ok(v) => v,
            Err((errno, why)) => json!({ "error": why, "errno": errno }),
        }
    }
}

/// The last seconds of a node.
fn last(node: &Node, history: &History, seconds: usize) -> Value {
    let nets = node.nets();
    let nis: Vec<&String> = nets.iter().flat_map(|n| &n.nis).map(|n| &n.nid).collect();
    json!({ "nid": node.nid().to_string(), "nis": nis, "seconds": history.last(seconds) })
}

/// What a node counts, with its NID.
fn metrics(node: &Node, json: bool) -> Value {
    let mut all = Snapshot::default();
    all.add(node.metrics(), &[("node", &node.nid().to_string())]);
    match json {
        true => json!({ "metrics": all }),
        false => json!({ "text": all.prometheus() }),
    }
}

/// The stopwatch of a node, on the clock of this process, with the buffers of a router.
fn stopwatch(node: &Node) -> Value {
    let routing = node.routing();
    let buffers = routing.enabled.then(|| RouterBuffers {
        name: node.nid().to_string(),
        buffers: routing.large.nbuffers as u64,
        least_free: routing.large.mincredits as u64,
        starved: 0.0,
    });
    json!(Seen {
        dumps: coral_stopwatch::dumps([(&**node.stopwatch(), node.nids())]),
        routers: buffers.into_iter().collect(),
        ..Seen::default()
    })
}

/// What a node tells beside the records of its stopwatch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Its NID.
    pub nid: String,
    /// Operations since its start that were answered without an RPC or a wait.
    pub at_once: u64,
    /// Rules that delay messages, and those that drop them.
    pub delay_rules: usize,
    pub drop_rules: usize,
}

impl Beside {
    fn of(node: &Node) -> Beside {
        let rules = node.faults().list();
        let delay_rules = rules.iter().filter(|(r, _)| is_delay(r)).count();
        Beside {
            nid: node.nid().to_string(),
            at_once: node.stopwatch().brief(),
            delay_rules,
            drop_rules: rules.len() - delay_rules,
        }
    }
}

/// What TCP knows of the connections of a node; of very many, of those that carried most.
fn tcp(node: &Arc<Node>) -> Value {
    let mut all: Vec<LinkShow> = node.links();
    all.sort_by_key(|l| std::cmp::Reverse(l.acked_bytes));
    all.truncate(TCP_MAX);
    json!({ "tcp": all })
}

type Done = Result<Value, (i32, String)>;

fn invalid(why: impl ToString) -> (i32, String) {
    (libc::EINVAL, why.to_string())
}

fn nid(text: &str) -> Result<Nid, (i32, String)> {
    text.parse().map_err(invalid)
}

fn nids(texts: &[String]) -> Result<Vec<Nid>, (i32, String)> {
    texts.iter().map(|t| nid(t)).collect()
}

fn net(text: &str) -> Result<u32, (i32, String)> {
    coral_lnet::parse_net(text)
        .ok_or_else(|| invalid(format!("'{text}' is no network: expected tcp, tcp1, ...")))
}

async fn act(node: &Arc<Node>, history: &History, act: Act) -> Done {
    match act {
        Act::Show => return Ok(show(node)),
        Act::Ping { nid: to, limit_ms } => return ping(node, nid(&to)?, limit_ms).await,
        Act::History { seconds } => return Ok(last(node, history, seconds)),
        Act::Metrics { json } => return Ok(metrics(node, json)),
        Act::Stopwatch => return Ok(stopwatch(node)),
        Act::Beside => return Ok(json!(Beside::of(node))),
        Act::Tcp => return Ok(tcp(node)),
        Act::RouteAdd {
            net: name,
            gateway,
            hops,
            priority,
        } => {
            node.add_route(RouteSpec {
                net: net(&name)?,
                gateway: nid(&gateway)?,
                hops,
                priority,
            })
            .map_err(invalid)?;
        }
        Act::RouteDel { net: name, gateway } => node
            .del_route(net(&name)?, nid(&gateway)?)
            .map_err(|e| (libc::ENOENT, e.to_string()))?,
        Act::PeerAdd {
            primary,
            nids: more,
        } => node
            .add_peer(nid(&primary)?, &nids(&more)?)
            .map_err(invalid)?,
        Act::PeerDel {
            primary,
            nids: gone,
        } => node
            .del_peer(nid(&primary)?, &nids(&gone)?)
            .map_err(|e| (libc::ENOENT, e.to_string()))?,
        Act::Routing { on } => node.set_routing(on),
        Act::Pools { tiny, small, large } => {
            let now = node.routing();
            let sizes = PoolSizes {
                tiny: tiny.unwrap_or(now.tiny.nbuffers),
                small: small.unwrap_or(now.small.nbuffers),
                large: large.unwrap_or(now.large.nbuffers),
            };
            if [sizes.tiny, sizes.small, sizes.large]
                .iter()
                .any(|n| !(1..=PoolSizes::MAX).contains(n))
            {
                return Err(invalid(format!("give 1 to {} buffers", PoolSizes::MAX)));
            }
            node.set_pools(sizes);
        }
        Act::Health { nid: text, value } => {
            if value > 1000 {
                return Err(invalid(format!("health {value}: give 0 to 1000")));
            }
            if !node.set_health(nid(&text)?, value) {
                return Err((libc::ENODEV, format!("no interface {text} is known here")));
            }
        }
        Act::Disconnect { nid: text } => {
            let to = nid(&text)?;
            let name = to.to_string();
            if !node
                .peers()
                .iter()
                .any(|p| p.primary_nid == name || p.nis.iter().any(|n| n.nid == name))
            {
                return Err((libc::ENOENT, format!("no peer {text} is known here")));
            }
            node.reset_peer(to);
        }
        Act::FaultAdd(rule) => {
            let built = rule.build(node.nids()).map_err(invalid)?;
            node.faults().try_add(built).map_err(invalid)?;
            return Ok(json!({ "src": built.src.to_string(), "dst": built.dst.to_string() }));
        }
        Act::FaultDel { delay, src, dst } => {
            let want = |text: Option<String>| {
                text.map(|t| {
                    t.parse::<NidMatch>()
                        .map_err(|_| invalid(format!("Invalid NID: {t}")))
                })
                .transpose()
            };
            let (src, dst) = (want(src)?, want(dst)?);
            let n = node.faults().remove(|r| {
                is_delay(r) == delay
                    && src.is_none_or(|s| s == r.src)
                    && dst.is_none_or(|d| d == r.dst)
            });
            return Ok(json!({ "removed": n }));
        }
        Act::FaultReset { delay } => node.faults().reset(|r| is_delay(r) == delay),
        Act::FaultList { delay } => {
            let rules: Vec<Value> = node
                .faults()
                .list()
                .iter()
                .filter(|(r, _)| is_delay(r) == delay)
                .map(rule_json)
                .collect();
            return Ok(json!({ "rules": rules }));
        }
    }
    Ok(json!({ "ok": true }))
}

async fn ping(node: &Arc<Node>, to: Nid, limit_ms: u64) -> Done {
    let limit = Duration::from_millis(limit_ms.clamp(1, 60_000));
    let failed = |errno: i32| (errno, format!("failed to ping {to}"));
    match tokio::time::timeout(limit, node.ping(to)).await {
        Ok(Ok(info)) => {
            let nids: Vec<String> = info
                .nis
                .iter()
                .map(|n| n.nid)
                .filter(|n| *n != Nid::LO)
                .map(|n| n.to_string())
                .collect();
            let multi_rail = info.features & coral_wire::lnet::feat::MULTI_RAIL != 0;
            Ok(json!({ "nids": nids, "multi_rail": multi_rail }))
        }
        Ok(Err(coral_lnet::SendError::Timeout)) | Err(_) => Err(failed(libc::ETIMEDOUT)),
        // What the kernel says whatever the reason is (lnet-commands.txt, router-commands.txt).
        Ok(Err(_)) => Err(failed(libc::EHOSTUNREACH)),
    }
}

fn show(node: &Arc<Node>) -> Value {
    let s = node.stats();
    let l = node.limits();
    json!({
        "nid": node.nid().to_string(),
        "pid": std::process::id(),
        "nets": node.nets(),
        "peers": node.peers(),
        "routes": node.routes(),
        "routing": node.routing(),
        "stats": {
            "sent": s.mem_sent.value() + s.sock_sent.value(),
            "sent_bytes": s.sent_bytes.value(),
            "received": s.received.value(),
            "received_bytes": s.received_bytes.value(),
            "routed": s.routed.value(),
            "routed_bytes": s.routed_bytes.value(),
            "dropped": s.unmatched.value() + s.late.value() + s.overrun.value() + s.no_route.value() + s.not_routing.value() + s.route_failed.value(),
            "faults": s.faults.value(),
            "resent": s.resent.value(),
            "response_timeouts": s.response_timeouts.value(),
            "local_no_route": s.local_no_route.value(),
        },
        "global": {
            "discovery": u32::from(l.discovery),
            "retry_count": l.retries,
            "transaction_timeout": l.transaction.as_secs(),
            "recovery_interval": l.recovery.as_secs(),
            "max_recovery_ping_interval": l.max_recovery.as_secs(),
            // As `lnet_lnd_timeout` follows from the two (lnet/lnet/api-ni.c).
            "lnd_timeout": l.transaction.as_secs().saturating_sub(1) / (u64::from(l.retries) + 1),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_the_node_takes_them() {
        let ours: [Nid; 1] = ["10.0.0.1@tcp".parse().unwrap()];
        let rule = Rule {
            src: "*".into(),
            dst: "*".into(),
            interval_s: 10.0,
            ..Rule::default()
        };
        assert_eq!(
            rule.build(&ours).unwrap().strike,
            Strike::Every(Duration::from_secs(10))
        );
        let share = |interval_s| match (Rule {
            random: true,
            interval_s,
            ..rule.clone()
        })
        .build(&ours)
        .unwrap()
        .strike
        {
            Strike::Share(s) => s,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (share(10.0), share(3.0), share(1.0)),
            (0.5, 2.0 / 3.0, 1.0),
            "the kernel's halves of whole numbers"
        );
        let several = Rule {
            health: vec!["local_error".into(), "remote_error".into()],
            ..rule.clone()
        }
        .build(&ours)
        .unwrap();
        assert_eq!(several.errors().iter().count(), 2, "all that -e names");
        let by = |local: &str| {
            Rule {
                local: Some(local.into()),
                ..rule.clone()
            }
            .build(&ours)
            .map(drop)
        };
        assert!(by("10.0.0.1@tcp").is_ok() && by("*@tcp").is_ok());
        assert_eq!(
            by("10.0.0.2@tcp").unwrap_err(),
            "-o 10.0.0.2@tcp: no NID of this node (10.0.0.1@tcp)"
        );
    }
}
