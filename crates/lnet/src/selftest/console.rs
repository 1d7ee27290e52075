//! The console: a session over many nodes, its groups, batches and tests (`lnet/selftest/console.c`, `conrpc.c`).
//!
//! Each command is a round of RPCs to some nodes at once; what the nodes answered is given back node by node, and their
//! state (active, busy, down, unknown) follows from it. No lock is held while one waits for answers.

mod batches;
mod groups;
mod types;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use coral_wire::Errno;
use coral_wire::raw::c_str;
use coral_wire::srpc::*;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::framework::NO_SESSION;
use super::rpc::{Bulk, RpcError, status_of};
use super::{NAME_SIZE, Selftest, Service};
use crate::{Nid, Node};
pub use types::*;

/// Longest wait for the answers of a round (`LST_TRANS_TIMEOUT`).
pub const ROUND_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the console looks which nodes have to be told that it lives (`LST_PING_INTERVAL`).
const PING_INTERVAL: Duration = Duration::from_secs(8);
/// The batch of tests that name none (`LST_DEFAULT_BATCH`).
pub const DEFAULT_BATCH: &str = "batch";
/// Rounds of a test.
pub const LOOPS: &str = "1 to 2147483647, or -1: until the batch is stopped";

struct Peer {
    state: NodeState,
    /// When it last answered, and how long it waits for us.
    heard: Instant,
    timeout: Duration,
}

struct Group {
    name: String,
    nids: Vec<Nid>,
}

struct Test {
    spec: TestSpec,
}

struct Batch {
    name: String,
    id: u64,
    running: bool,
    tests: Vec<Test>,
    clients: Vec<Nid>,
    servers: Vec<Nid>,
}

#[derive(Default)]
struct ConsoleState {
    nodes: BTreeMap<Nid, Peer>,
    groups: Vec<Group>,
    batches: Vec<Batch>,
    next_batch: u64,
}

impl ConsoleState {
    fn group(&mut self, name: &str) -> Result<&mut Group, ConsoleError> {
        self.groups
            .iter_mut()
            .find(|g| g.name == name)
            .ok_or_else(|| ConsoleError::NoGroup(name.into()))
    }

    fn batch(&mut self, name: &str) -> Result<&mut Batch, ConsoleError> {
        self.batches
            .iter_mut()
            .find(|b| b.name == name)
            .ok_or_else(|| ConsoleError::NoBatch(name.into()))
    }

    fn state(&self, nid: Nid) -> NodeState {
        self.nodes.get(&nid).map_or(NodeState::Unknown, |p| p.state)
    }

    fn with_states(&self, nids: &[Nid]) -> Vec<(Nid, NodeState)> {
        nids.iter().map(|n| (*n, self.state(*n))).collect()
    }

    fn check_unused(&self, group: &str) -> Result<(), ConsoleError> {
        let used = self
            .batches
            .iter()
            .flat_map(|b| &b.tests)
            .any(|t| t.spec.from == group || t.spec.to == group);
        if used {
            Err(ConsoleError::GroupBusy(group.into()))
        } else {
            Ok(())
        }
    }

    /// Of `nids` those in no group but `group`.
    fn only_in(&self, group: &str, nids: &[Nid]) -> Vec<Nid> {
        let elsewhere = |n: &Nid| {
            self.groups
                .iter()
                .any(|g| g.name != group && g.nids.contains(n))
        };
        nids.iter().copied().filter(|n| !elsewhere(n)).collect()
    }
}

fn check_name(name: &str) -> Result<(), ConsoleError> {
    if name.is_empty() || name.len() >= NAME_SIZE {
        Err(ConsoleError::Name(name.into()))
    } else {
        Ok(())
    }
}

/// The node a console speaks through.
#[derive(Clone)]
struct Voice {
    node: Arc<Node>,
    st: Arc<Selftest>,
}

/// A session's console.
pub struct Console {
    name: String,
    force: bool,
    feats: u32,
    /// Milliseconds since 1970 when the session began: with the NID its ID.
    stamp: u64,
    voice: OnceLock<Voice>,
    st: Mutex<ConsoleState>,
}

impl Console {
    /// A new session: nodes learn of it when they are added to a group. `stamp_ms`: milliseconds since 1970.
    pub fn new(
        name: &str,
        force: bool,
        feats: u32,
        stamp_ms: u64,
    ) -> Result<Arc<Console>, ConsoleError> {
        check_name(name)?;
        if feats & !super::FEATS_MASK != 0 {
            return Err(ConsoleError::Range("features", feats as i64, "0 or 1"));
        }
        let console = Console {
            name: name.into(),
            force,
            feats,
            stamp: stamp_ms,
            voice: OnceLock::new(),
            st: Mutex::default(),
        };
        console.add_batch(DEFAULT_BATCH)?;
        Ok(Arc::new(console))
    }

    /// The node the console speaks through; only the first one given counts. Needs a tokio runtime.
    pub fn attach(self: &Arc<Self>, node: Arc<Node>, st: Arc<Selftest>) {
        if self.voice.set(Voice { node, st }).is_ok() {
            tokio::spawn(keep_alive(Arc::downgrade(self)));
        }
    }

    fn voice(&self) -> Result<Voice, ConsoleError> {
        self.voice.get().cloned().ok_or(ConsoleError::NoNode)
    }

    /// Name of the session.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Features of the session.
    pub fn feats(&self) -> u32 {
        self.feats
    }

    /// Milliseconds since 1970 when the session began.
    pub fn stamp_ms(&self) -> u64 {
        self.stamp
    }

    /// Our NID, when there is a node.
    pub fn nid(&self) -> Option<Nid> {
        self.voice.get().map(|v| v.node.nid())
    }

    /// Nodes of all groups with their states.
    pub fn nodes(&self) -> Vec<(Nid, NodeState)> {
        self.st
            .lock()
            .nodes
            .iter()
            .map(|(n, p)| (*n, p.state))
            .collect()
    }

    fn sid(&self) -> LstSid {
        LstSid {
            nid: self.nid().map_or(u64::MAX, |n| n.0),
            stamp: self.stamp,
        }
    }

    /// Asks every node of `to`, all at once. `make` gives what is asked of the i-th of them.
    async fn round<T>(
        &self,
        to: &[Nid],
        service: Service,
        limit: Duration,
        make: impl Fn(usize, u64, u64) -> (SrpcBody, Option<Vec<u8>>),
        take: impl Fn(SrpcMsg) -> Result<T, u32>,
    ) -> Result<Vec<NodeResult<T>>, ConsoleError> {
        let v = self.voice()?;
        let ask = |i: usize, nid: Nid| {
            let (v, make) = (v.clone(), &make);
            async move {
                // Asked twice: whether there is bulk says nothing about match bits.
                let bulk = make(i, 0, 0)
                    .1
                    .map_or(Bulk::None, |b| Bulk::Source(b.into()));
                let call =
                    v.st.rpc
                        .call(&v.node, nid, service, self.feats, bulk, |rpyid, bulkid| {
                            make(i, rpyid, bulkid).0
                        });
                let answer = tokio::time::timeout(limit, call)
                    .await
                    .unwrap_or(Err(RpcError::Timeout));
                (nid, answer.map(|a| a.msg))
            }
        };
        let answers = join_all(to.iter().enumerate().map(|(i, n)| ask(i, *n))).await;
        let result = |(nid, answer): (Nid, Result<SrpcMsg, RpcError>)| {
            let state = self.note(nid, answer.as_ref().ok());
            let result = match answer {
                Err(e) => Err(NodeError::Rpc(e.errno())),
                Ok(msg) => take(msg).map_err(|e| NodeError::Remote(Errno(e as i32))),
            };
            NodeResult { nid, state, result }
        };
        Ok(answers.into_iter().map(result).collect())
    }

    /// A node's state from its answer, which says in whose session it is.
    fn note(&self, nid: Nid, answer: Option<&SrpcMsg>) -> NodeState {
        let state = match answer.map(session_of) {
            None => NodeState::Down,
            Some(NO_SESSION) => NodeState::Unknown,
            Some(sid) if sid == self.sid() => NodeState::Active,
            Some(_) => NodeState::Busy,
        };
        if let Some(p) = self.st.lock().nodes.get_mut(&nid) {
            p.state = state;
            if answer.is_some() {
                p.heard = Instant::now();
            }
            if let Some(SrpcMsg {
                body: SrpcBody::MksnReply(r),
                ..
            }) = answer
            {
                p.timeout = Duration::from_secs(r.timeout as u64);
            }
        }
        state
    }

    /// Counters of nodes.
    pub async fn stat(
        &self,
        nids: &[Nid],
        limit: Duration,
    ) -> Result<Vec<NodeResult<StatReply>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| {
            (
                SrpcBody::StatReqst(StatReqst {
                    rpyid,
                    sid,
                    r#type: 0,
                }),
                None,
            )
        };
        let take = |m: SrpcMsg| match m.body {
            SrpcBody::StatReply(r) if r.status == 0 => Ok(r),
            _ => Err(status_of(&m)),
        };
        self.round(nids, Service::Stat, limit, make, take).await
    }

    /// Which session each node is in: its name and the NID of its console.
    pub async fn ping(
        &self,
        nids: &[Nid],
        limit: Duration,
    ) -> Result<Vec<NodeResult<(String, Nid)>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| {
            (
                SrpcBody::DebugReqst(DebugReqst {
                    rpyid,
                    sid,
                    flags: 0,
                }),
                None,
            )
        };
        let take = |m: SrpcMsg| match m.body {
            SrpcBody::DebugReply(r) if r.status == 0 => Ok((
                String::from_utf8_lossy(c_str(&{ r.name })).into_owned(),
                Nid(r.sid.nid),
            )),
            _ => Err(status_of(&m)),
        };
        self.round(nids, Service::Debug, limit, make, take).await
    }

    /// Ends the session on all its nodes.
    pub async fn end(&self) -> Vec<NodeResult<()>> {
        let active: Vec<Nid> = self
            .nodes()
            .into_iter()
            .filter(|n| n.1 == NodeState::Active)
            .map(|n| n.0)
            .collect();
        let done = if active.is_empty() {
            Vec::new()
        } else {
            self.end_on(&active).await.unwrap_or_default()
        };
        *self.st.lock() = ConsoleState::default();
        done
    }
}

/// The session a reply speaks of.
fn session_of(m: &SrpcMsg) -> LstSid {
    match &m.body {
        SrpcBody::MksnReply(r) => r.sid,
        SrpcBody::RmsnReply(r) | SrpcBody::TestReply(r) => r.sid,
        SrpcBody::BatchReply(r) => r.sid,
        SrpcBody::StatReply(r) => r.sid,
        SrpcBody::DebugReply(r) => r.sid,
        _ => NO_SESSION,
    }
}

/// Lets the nodes know that the console lives, before they think it does not.
async fn keep_alive(console: Weak<Console>) {
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        let Some(console) = console.upgrade() else {
            return;
        };
        let quiet: Vec<Nid> = {
            let st = console.st.lock();
            let due = |p: &Peer| p.state == NodeState::Active && p.heard.elapsed() >= p.timeout / 2;
            st.nodes
                .iter()
                .filter(|(_, p)| due(p))
                .map(|(n, _)| *n)
                .collect()
        };
        if !quiet.is_empty() {
            let _ = console.ping(&quiet, ROUND_TIMEOUT).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_and_groups_are_checked() {
        let c = Console::new("s", false, 1, 1).unwrap();
        assert!(matches!(
            Console::new("", false, 1, 1).err(),
            Some(ConsoleError::Name(_))
        ));
        assert!(matches!(
            Console::new("s", false, 4, 1).err(),
            Some(ConsoleError::Range(..))
        ));
        c.add_group("g").unwrap();
        assert_eq!(
            c.add_group("g"),
            Err(ConsoleError::Exists("group", "g".into()))
        );
        assert!(matches!(
            c.add_group(&"x".repeat(32)),
            Err(ConsoleError::Name(_))
        ));
        assert!(matches!(
            c.add_nodes("h", &[]).await,
            Err(ConsoleError::NoNode)
        ));
        assert_eq!(c.add_batch("b"), Ok(()));
        assert_eq!(
            c.add_batch("b"),
            Err(ConsoleError::Exists("batch", "b".into()))
        );
        assert!(matches!(c.run("b").await, Err(ConsoleError::NoTests(_))));
        assert!(matches!(c.run("c").await, Err(ConsoleError::NoBatch(_))));
    }
}
