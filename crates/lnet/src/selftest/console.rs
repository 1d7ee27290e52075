//! The console: a session over many nodes, its groups, batches and tests (`lnet/selftest/console.c`, `conrpc.c`).
//!
//! Each command is a round of RPCs to some nodes at once; what the nodes answered is given back node by node, and their
//! state (active, busy, down, unknown) follows from it. No lock is held while one waits for answers.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use coral_wire::Errno;
use coral_wire::raw::{c_array, c_str};
use coral_wire::srpc::*;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::framework::{NO_SESSION, QUERY, RUN, STOP, encode_dests};
use super::rpc::{Bulk, RpcError, status_of};
use super::{MAX_CONCURRENCY, MAX_DESTINATIONS, NAME_SIZE, Selftest, Service, TestParams};
use crate::{Nid, Node};

/// Longest wait for the answers of a round (`LST_TRANS_TIMEOUT`).
pub const ROUND_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the console looks which nodes have to be told that it lives (`LST_PING_INTERVAL`).
const PING_INTERVAL: Duration = Duration::from_secs(8);
/// The batch of tests that name none (`LST_DEFAULT_BATCH`).
pub const DEFAULT_BATCH: &str = "batch";

/// State of a node as its last answer says (`LST_NODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// In our session.
    Active,
    /// In another's.
    Busy,
    /// Does not answer.
    Down,
    /// In none, or never asked.
    Unknown,
}

impl std::fmt::Display for NodeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// How many nodes are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Active, busy, down, unknown.
    pub by_state: [usize; 4],
}

impl StateCounts {
    fn of(states: impl Iterator<Item = NodeState>) -> StateCounts {
        let mut c = StateCounts::default();
        states.for_each(|s| c.by_state[s as usize] += 1);
        c
    }

    /// All of them.
    pub fn total(&self) -> usize {
        self.by_state.iter().sum()
    }
}

/// Why a node did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeError {
    /// It did not answer.
    Rpc(Errno),
    /// It answered with an error.
    Remote(Errno),
}

/// One node's part in a command.
#[derive(Clone, Debug)]
pub struct NodeResult<T> {
    /// The node.
    pub nid: Nid,
    /// Its state after the command.
    pub state: NodeState,
    /// What it answered.
    pub result: Result<T, NodeError>,
}

/// Why a command was not carried out at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConsoleError {
    /// No such group.
    #[error("there is no group '{0}' in this session")]
    NoGroup(String),
    /// No such batch.
    #[error("there is no batch '{0}' in this session")]
    NoBatch(String),
    /// No such test.
    #[error("batch '{0}' has no test {1}")]
    NoTest(String, usize),
    /// The name is taken.
    #[error("{0} '{1}' already exists")]
    Exists(&'static str, String),
    /// Too long or empty.
    #[error("a name has 1 to {max} bytes; '{0}' has {len}", max = NAME_SIZE - 1, len = .0.len())]
    Name(String),
    /// A test uses it.
    #[error("group '{0}' is used by a test: it cannot be changed")]
    GroupBusy(String),
    /// It runs.
    #[error("batch '{0}' is running: stop it first")]
    BatchRuns(String),
    /// None of its nodes is in our session.
    #[error("group '{0}' has no active node")]
    NoneActive(String),
    /// It has to be in our session for this.
    #[error("node {0} is not active in this session")]
    NotActive(Nid),
    /// The batch is empty.
    #[error("batch '{0}' has no test")]
    NoTests(String),
    /// More destinations than there are, or than fit.
    #[error("each client cannot have {span} destinations: group '{group}' has {have} nodes, and {MAX_DESTINATIONS} is the limit")]
    Span {
        /// Asked for.
        span: u32,
        /// Destination group.
        group: String,
        /// Its nodes.
        have: usize,
    },
    /// A parameter is out of range.
    #[error("{0} {1} is out of range ({2})")]
    Range(&'static str, u64, &'static str),
    /// The console has no network yet.
    #[error("the session has no node yet: add a group first")]
    NoNode,
}

/// A test to be added.
#[derive(Clone, Debug)]
pub struct TestSpec {
    /// Group of the clients.
    pub from: String,
    /// Group of the servers.
    pub to: String,
    /// RPCs of each loop; None: until the batch is stopped.
    pub count: Option<u32>,
    /// Loops per client and destination.
    pub concurrency: u32,
    /// This many clients in a row have the same destinations.
    pub dist: u32,
    /// Destinations of each client.
    pub span: u32,
    /// What it does.
    pub params: TestParams,
}

/// A test of a batch, for listings.
#[derive(Clone, Debug)]
pub struct TestInfo {
    /// Ping or bulk.
    pub params: TestParams,
    /// See [`TestSpec::count`].
    pub count: Option<u32>,
    /// See [`TestSpec::concurrency`].
    pub concurrency: u32,
    /// Its clients.
    pub clients: Vec<(Nid, NodeState)>,
    /// Its servers.
    pub servers: Vec<(Nid, NodeState)>,
}

/// A batch, for listings.
#[derive(Clone, Debug)]
pub struct BatchInfo {
    /// Whether it was started and is not known to have ended.
    pub running: bool,
    /// Its tests.
    pub tests: Vec<TestInfo>,
    /// All clients.
    pub clients: Vec<(Nid, NodeState)>,
    /// All servers.
    pub servers: Vec<(Nid, NodeState)>,
}

/// Counts of a list of nodes.
pub fn count_states(nodes: &[(Nid, NodeState)]) -> StateCounts {
    StateCounts::of(nodes.iter().map(|(_, s)| *s))
}

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
struct State {
    nodes: BTreeMap<Nid, Peer>,
    groups: Vec<Group>,
    batches: Vec<Batch>,
    next_batch: u64,
}

impl State {
    fn group(&mut self, name: &str) -> Result<&mut Group, ConsoleError> {
        self.groups.iter_mut().find(|g| g.name == name).ok_or_else(|| ConsoleError::NoGroup(name.into()))
    }

    fn batch(&mut self, name: &str) -> Result<&mut Batch, ConsoleError> {
        self.batches.iter_mut().find(|b| b.name == name).ok_or_else(|| ConsoleError::NoBatch(name.into()))
    }

    fn state(&self, nid: Nid) -> NodeState {
        self.nodes.get(&nid).map_or(NodeState::Unknown, |p| p.state)
    }

    fn with_states(&self, nids: &[Nid]) -> Vec<(Nid, NodeState)> {
        nids.iter().map(|n| (*n, self.state(*n))).collect()
    }

    fn check_unused(&self, group: &str) -> Result<(), ConsoleError> {
        let used = self.batches.iter().flat_map(|b| &b.tests).any(|t| t.spec.from == group || t.spec.to == group);
        if used { Err(ConsoleError::GroupBusy(group.into())) } else { Ok(()) }
    }

    /// Of `nids` those in no group but `group`.
    fn only_in(&self, group: &str, nids: &[Nid]) -> Vec<Nid> {
        let elsewhere = |n: &Nid| self.groups.iter().any(|g| g.name != group && g.nids.contains(n));
        nids.iter().copied().filter(|n| !elsewhere(n)).collect()
    }
}

fn check_name(name: &str) -> Result<(), ConsoleError> {
    if name.is_empty() || name.len() >= NAME_SIZE { Err(ConsoleError::Name(name.into())) } else { Ok(()) }
}

/// What changes in [`Console::update_group`].
#[derive(Clone, Debug)]
pub enum Update {
    /// Asks all nodes that are not active again.
    Refresh,
    /// Removes the nodes in one of these states.
    Clean(Vec<NodeState>),
    /// Removes these nodes.
    Remove(Vec<Nid>),
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
    st: Mutex<State>,
}

impl Console {
    /// A new session: nodes learn of it when they are added to a group. `stamp_ms`: milliseconds since 1970.
    pub fn new(name: &str, force: bool, feats: u32, stamp_ms: u64) -> Result<Arc<Console>, ConsoleError> {
        check_name(name)?;
        if feats & !super::FEATS_MASK != 0 {
            return Err(ConsoleError::Range("features", feats as u64, "0 or 1"));
        }
        let console = Console { name: name.into(), force, feats, stamp: stamp_ms, voice: OnceLock::new(), st: Mutex::default() };
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
        self.st.lock().nodes.iter().map(|(n, p)| (*n, p.state)).collect()
    }

    fn sid(&self) -> LstSid {
        LstSid { nid: self.nid().map_or(u64::MAX, |n| n.0), stamp: self.stamp }
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
                let bulk = make(i, 0, 0).1.map_or(Bulk::None, |b| Bulk::Source(b.into()));
                let call = v.st.rpc.call(&v.node, nid, service, self.feats, bulk, |rpyid, bulkid| make(i, rpyid, bulkid).0);
                let answer = tokio::time::timeout(limit, call).await.unwrap_or(Err(RpcError::Timeout));
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
            if let Some(SrpcMsg { body: SrpcBody::MksnReply(r), .. }) = answer {
                p.timeout = Duration::from_secs(r.timeout as u64);
            }
        }
        state
    }

    // Groups.

    /// An empty group.
    pub fn add_group(&self, name: &str) -> Result<(), ConsoleError> {
        check_name(name)?;
        let mut st = self.st.lock();
        if st.group(name).is_ok() {
            return Err(ConsoleError::Exists("group", name.into()));
        }
        st.groups.push(Group { name: name.into(), nids: Vec::new() });
        Ok(())
    }

    /// Adds nodes to a group, each of which is asked to join the session unless it has.
    pub async fn add_nodes(&self, group: &str, nids: &[Nid]) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        self.voice()?;
        let new = {
            let mut st = self.st.lock();
            st.check_unused(group)?;
            let members = &mut st.group(group)?.nids;
            let mut new = Vec::new();
            for nid in nids {
                if !members.contains(nid) {
                    members.push(*nid);
                    new.push(*nid);
                }
            }
            for nid in &new {
                let peer = Peer { state: NodeState::Unknown, heard: Instant::now(), timeout: ROUND_TIMEOUT };
                st.nodes.entry(*nid).or_insert(peer);
            }
            new.into_iter().filter(|n| st.state(*n) != NodeState::Active).collect::<Vec<_>>()
        };
        self.make_session(&new).await
    }

    async fn make_session(&self, to: &[Nid]) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let (sid, name) = (self.sid(), c_array(self.name.as_bytes()));
        let make = |_: usize, rpyid, _: u64| (SrpcBody::MksnReqst(MksnReqst { rpyid, sid, force: self.force as u32, name }), None);
        let feats = self.feats;
        let take = |m: SrpcMsg| match status_of(&m) {
            0 if m.head.ses_feats != feats => Err(libc::EPROTO as u32),
            0 => Ok(()),
            e => Err(e),
        };
        self.round(to, Service::MakeSession, ROUND_TIMEOUT, make, take).await
    }

    async fn end_on(&self, to: &[Nid]) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| (SrpcBody::RmsnReqst(RmsnReqst { rpyid, sid }), None);
        // No session there is what we want.
        let take = |m: SrpcMsg| match status_of(&m) as i32 {
            0 | libc::ESRCH => Ok(()),
            e => Err(e as u32),
        };
        self.round(to, Service::RemoveSession, ROUND_TIMEOUT, make, take).await
    }

    /// Removes nodes from a group; those in no other group leave the session.
    async fn remove_nodes(&self, group: &str, nids: &[Nid]) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let gone = {
            let mut st = self.st.lock();
            st.group(group)?.nids.retain(|n| !nids.contains(n));
            st.only_in(group, nids)
        };
        let active: Vec<Nid> = gone.iter().copied().filter(|n| self.st.lock().state(*n) == NodeState::Active).collect();
        let done = if active.is_empty() { Ok(Vec::new()) } else { self.end_on(&active).await };
        let mut st = self.st.lock();
        st.nodes.retain(|n, _| !gone.contains(n));
        done
    }

    /// Removes a group.
    pub async fn del_group(&self, name: &str) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let nids = {
            let mut st = self.st.lock();
            st.check_unused(name)?;
            st.group(name)?.nids.clone()
        };
        let done = self.remove_nodes(name, &nids).await;
        self.st.lock().groups.retain(|g| g.name != name);
        done
    }

    /// Changes a group.
    pub async fn update_group(&self, name: &str, update: Update) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let members = {
            let mut st = self.st.lock();
            st.check_unused(name)?;
            let nids = st.group(name)?.nids.clone();
            st.with_states(&nids)
        };
        let nids = |keep: &dyn Fn(&(Nid, NodeState)) -> bool| members.iter().filter(|m| keep(m)).map(|m| m.0).collect::<Vec<_>>();
        match update {
            Update::Refresh => self.make_session(&nids(&|m| m.1 != NodeState::Active)).await,
            Update::Clean(states) => self.remove_nodes(name, &nids(&|m| states.contains(&m.1))).await,
            Update::Remove(gone) => self.remove_nodes(name, &nids(&|m| gone.contains(&m.0))).await,
        }
    }

    /// Names of the groups.
    pub fn groups(&self) -> Vec<String> {
        self.st.lock().groups.iter().map(|g| g.name.clone()).collect()
    }

    /// Nodes of a group.
    pub fn group(&self, name: &str) -> Result<Vec<(Nid, NodeState)>, ConsoleError> {
        let mut st = self.st.lock();
        let nids = st.group(name)?.nids.clone();
        Ok(st.with_states(&nids))
    }

    // Batches and tests.

    /// An empty batch.
    pub fn add_batch(&self, name: &str) -> Result<(), ConsoleError> {
        check_name(name)?;
        let mut st = self.st.lock();
        if st.batch(name).is_ok() {
            return Err(ConsoleError::Exists("batch", name.into()));
        }
        st.next_batch += 1;
        let id = st.next_batch;
        st.batches.push(Batch { name: name.into(), id, running: false, tests: Vec::new(), clients: Vec::new(), servers: Vec::new() });
        Ok(())
    }

    /// Names of the batches.
    pub fn batches(&self) -> Vec<String> {
        self.st.lock().batches.iter().map(|b| b.name.clone()).collect()
    }

    /// A batch with its tests.
    pub fn batch(&self, name: &str) -> Result<BatchInfo, ConsoleError> {
        let mut st = self.st.lock();
        let b = st.batch(name)?;
        let (running, clients, servers) = (b.running, b.clients.clone(), b.servers.clone());
        let specs: Vec<TestSpec> = b.tests.iter().map(|t| t.spec.clone()).collect();
        let members = |st: &mut State, g: &str| {
            let nids = st.group(g).map(|g| g.nids.clone()).unwrap_or_default();
            st.with_states(&nids)
        };
        let tests = specs.into_iter().map(|s| {
            let (clients, servers) = (members(&mut st, &s.from), members(&mut st, &s.to));
            TestInfo { params: s.params, count: s.count, concurrency: s.concurrency, clients, servers }
        });
        let tests = tests.collect();
        Ok(BatchInfo { running, tests, clients: st.with_states(&clients), servers: st.with_states(&servers) })
    }

    /// Checks a test and gives its clients, its servers and its batch's ID.
    fn prepare(&self, batch: &str, spec: &TestSpec) -> Result<(Vec<Nid>, Vec<Nid>, u64), ConsoleError> {
        if spec.concurrency == 0 || spec.concurrency > MAX_CONCURRENCY {
            return Err(ConsoleError::Range("concurrency", spec.concurrency as u64, "1 to 1024"));
        }
        if spec.count == Some(0) || spec.count.is_some_and(|n| n > i32::MAX as u32) {
            return Err(ConsoleError::Range("loop", spec.count.unwrap_or(0) as u64, "1 to 2147483647"));
        }
        if spec.dist == 0 || spec.span == 0 {
            return Err(ConsoleError::Range("distribution", 0, "1 or more on both sides"));
        }
        if let TestParams::Brw(p) = spec.params
            && (p.len_bytes == 0 || p.len_bytes as usize > crate::LNET_MTU)
        {
            return Err(ConsoleError::Range("size", p.len_bytes as u64, "1 byte to 1 MiB"));
        }
        let mut st = self.st.lock();
        let b = st.batch(batch)?;
        if b.running {
            return Err(ConsoleError::BatchRuns(batch.into()));
        }
        let id = b.id;
        for name in [&spec.to, &spec.from] {
            let nids = st.group(name)?.nids.clone();
            let states = st.with_states(&nids);
            if !states.iter().any(|s| s.1 == NodeState::Active) {
                return Err(ConsoleError::NoneActive(name.clone()));
            }
            if let Some(s) = states.iter().find(|s| s.1 != NodeState::Active) {
                return Err(ConsoleError::NotActive(s.0));
            }
        }
        let (clients, servers) = (st.group(&spec.from)?.nids.clone(), st.group(&spec.to)?.nids.clone());
        if spec.span as usize > servers.len() || spec.span > MAX_DESTINATIONS {
            return Err(ConsoleError::Span { span: spec.span, group: spec.to.clone(), have: servers.len() });
        }
        Ok((clients, servers, id))
    }

    /// Adds a test to a batch: first its servers are told, then, if none objected, its clients. Gives what those said that
    /// were asked last. The test is listed even when some objected, so that one can see what is going on.
    pub async fn add_test(&self, batch: &str, spec: TestSpec) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let (clients, servers, bid) = self.prepare(batch, &spec)?;
        let sid = self.sid();
        let (service, params) = match spec.params {
            TestParams::Ping => (Service::Ping, [0; 14]),
            TestParams::Brw(p) => (Service::Brw, p.to_wire()),
        };
        let base = TestReqst { sid, bid, service: service as u32, concur: spec.concurrency, stop_onerr: 1, params, ..TestReqst::default() };
        let take = |m: SrpcMsg| match status_of(&m) {
            0 => Ok(()),
            e => Err(e),
        };
        let server_loop = server_loop(clients.len() as u32, servers.len() as u32, &spec);
        let make = |_: usize, rpyid, bulkid| (SrpcBody::TestReqst(TestReqst { rpyid, bulkid, r#loop: server_loop, ..base }), None);
        let mut done = self.round(&servers, Service::Test, ROUND_TIMEOUT, make, take).await?;
        if done.iter().all(|r| r.result.is_ok()) {
            let make = |i: usize, rpyid, bulkid| {
                let list = encode_dests(&destinations(&servers, i as u32, spec.dist, spec.span));
                let r#loop = spec.count.unwrap_or(u32::MAX);
                let ndest = spec.span.to_le_bytes();
                (SrpcBody::TestReqst(TestReqst { rpyid, bulkid, r#loop, is_client: 1, ndest, ..base }), Some(list))
            };
            done = self.round(&clients, Service::Test, ROUND_TIMEOUT, make, take).await?;
        }
        let mut st = self.st.lock();
        let b = st.batch(batch)?;
        b.tests.push(Test { spec });
        for (all, new) in [(&mut b.clients, clients), (&mut b.servers, servers)] {
            new.into_iter().for_each(|n| if !all.contains(&n) { all.push(n) });
        }
        Ok(done)
    }

    /// One round of a batch operation over its clients; gives how many tests or loops run on each.
    async fn batch_round(&self, to: &[Nid], limit: Duration, bid: u64, opc: u32, testidx: u32, arg: u32) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| (SrpcBody::BatchReqst(BatchReqst { rpyid, sid, bid, opc, testidx, arg }), None);
        let take = |m: SrpcMsg| match &m.body {
            SrpcBody::BatchReply(r) if r.status == 0 => Ok(r.active),
            _ => Err(status_of(&m)),
        };
        self.round(to, Service::Batch, limit, make, take).await
    }

    /// Starts a batch on its clients.
    pub async fn run(&self, name: &str) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let (clients, id) = {
            let mut st = self.st.lock();
            let b = st.batch(name)?;
            if b.tests.is_empty() {
                return Err(ConsoleError::NoTests(name.into()));
            }
            let (clients, id) = (b.clients.clone(), b.id);
            if let Some(n) = clients.iter().find(|n| st.state(**n) != NodeState::Active) {
                return Err(ConsoleError::NotActive(*n));
            }
            (clients, id)
        };
        let done = self.batch_round(&clients, ROUND_TIMEOUT, id, RUN, 0, 0).await?;
        if done.iter().any(|r| r.result.is_ok()) {
            self.st.lock().batch(name)?.running = true;
        }
        Ok(done)
    }

    /// Tells a batch's clients to stop: after the RPC each loop is at, or at once by `force`. [`Self::query`] says when they have.
    pub async fn stop(&self, name: &str, force: bool) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let (clients, id) = {
            let mut st = self.st.lock();
            let b = st.batch(name)?;
            let (clients, id) = (b.clients.clone(), b.id);
            (clients.into_iter().filter(|n| st.state(*n) == NodeState::Active).collect::<Vec<_>>(), id)
        };
        let done = self.batch_round(&clients, ROUND_TIMEOUT, id, STOP, 0, force as u32).await?;
        if done.iter().all(|r| r.result.is_ok()) {
            self.st.lock().batch(name)?.running = false;
        }
        Ok(done)
    }

    /// What runs of a batch (`test` 0) or of one of its tests (from 1), on its clients or servers.
    pub async fn query(&self, name: &str, test: usize, server: bool, limit: Duration) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let (nodes, id) = {
            let mut st = self.st.lock();
            let b = st.batch(name)?;
            let (id, groups) = (b.id, if server { &b.servers } else { &b.clients }.clone());
            let nodes = match test.checked_sub(1) {
                None => groups,
                Some(i) => {
                    let spec = b.tests.get(i).map(|t| t.spec.clone()).ok_or_else(|| ConsoleError::NoTest(name.into(), test))?;
                    st.group(if server { &spec.to } else { &spec.from })?.nids.clone()
                }
            };
            (nodes, id)
        };
        let done = self.batch_round(&nodes, limit, id, QUERY, test as u32, 0).await?;
        if test == 0 && done.iter().all(|r| r.result == Ok(0)) {
            self.st.lock().batch(name)?.running = false;
        }
        Ok(done)
    }

    // Looking.

    /// Counters of nodes.
    pub async fn stat(&self, nids: &[Nid], limit: Duration) -> Result<Vec<NodeResult<StatReply>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| (SrpcBody::StatReqst(StatReqst { rpyid, sid, r#type: 0 }), None);
        let take = |m: SrpcMsg| match m.body {
            SrpcBody::StatReply(r) if r.status == 0 => Ok(r),
            _ => Err(status_of(&m)),
        };
        self.round(nids, Service::Stat, limit, make, take).await
    }

    /// Which session each node is in: its name and the NID of its console.
    pub async fn ping(&self, nids: &[Nid], limit: Duration) -> Result<Vec<NodeResult<(String, Nid)>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| (SrpcBody::DebugReqst(DebugReqst { rpyid, sid, flags: 0 }), None);
        let take = |m: SrpcMsg| match m.body {
            SrpcBody::DebugReply(r) if r.status == 0 => Ok((String::from_utf8_lossy(c_str(&{ r.name })).into_owned(), Nid(r.sid.nid))),
            _ => Err(status_of(&m)),
        };
        self.round(nids, Service::Debug, limit, make, take).await
    }

    /// Ends the session on all its nodes.
    pub async fn end(&self) -> Vec<NodeResult<()>> {
        let active: Vec<Nid> = self.nodes().into_iter().filter(|n| n.1 == NodeState::Active).map(|n| n.0).collect();
        let done = if active.is_empty() { Vec::new() } else { self.end_on(&active).await.unwrap_or_default() };
        *self.st.lock() = State::default();
        done
    }
}

/// How many RPCs a server of the test may have to hold at once.
fn server_loop(clients: u32, servers: u32, spec: &TestSpec) -> u32 {
    let ndist = clients.div_ceil(spec.dist);
    let nspan = servers.div_ceil(spec.span).max(1);
    ndist.div_ceil(nspan).saturating_mul(spec.dist).saturating_mul(spec.concurrency)
}

/// The destinations of the i-th client: `dist` clients in a row share them, and the next `dist` have the next `span`.
fn destinations(servers: &[Nid], i: u32, dist: u32, span: u32) -> Vec<Nid> {
    let start = (i / dist) as usize * span as usize % servers.len();
    servers.iter().copied().cycle().skip(start).take(span as usize).collect()
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
        let Some(console) = console.upgrade() else { return };
        let quiet: Vec<Nid> = {
            let st = console.st.lock();
            let due = |p: &Peer| p.state == NodeState::Active && p.heard.elapsed() >= p.timeout / 2;
            st.nodes.iter().filter(|(_, p)| due(p)).map(|(n, _)| *n).collect()
        };
        if !quiet.is_empty() {
            let _ = console.ping(&quiet, ROUND_TIMEOUT).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_go_round_as_the_kernel_console_gives_them() {
        let servers: Vec<Nid> = (1..=4).map(|i| Nid::new(0x20000, i)).collect();
        let of = |i, dist, span| destinations(&servers, i, dist, span).iter().map(|n| n.addr()).collect::<Vec<_>>();
        assert_eq!([of(0, 1, 1), of(1, 1, 1), of(5, 1, 1)], [[1], [2], [2]]);
        assert_eq!([of(0, 2, 1), of(1, 2, 1), of(2, 2, 1)], [[1], [1], [2]]);
        assert_eq!([of(0, 1, 3), of(1, 1, 3)], [[1, 2, 3], [4, 1, 2]]);
        assert_eq!(of(7, 1, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn servers_are_told_their_share() {
        let spec = |dist, span, concurrency| TestSpec { from: String::new(), to: String::new(), count: None, concurrency, dist, span, params: TestParams::Ping };
        assert_eq!(server_loop(1, 1, &spec(1, 1, 4)), 4);
        assert_eq!(server_loop(6, 2, &spec(1, 1, 8)), 24);
        assert_eq!(server_loop(6, 2, &spec(6, 1, 8)), 48);
    }

    #[tokio::test]
    async fn names_and_groups_are_checked() {
        let c = Console::new("s", false, 1, 1).unwrap();
        assert!(matches!(Console::new("", false, 1, 1).err(), Some(ConsoleError::Name(_))));
        assert!(matches!(Console::new("s", false, 4, 1).err(), Some(ConsoleError::Range(..))));
        c.add_group("g").unwrap();
        assert_eq!(c.add_group("g"), Err(ConsoleError::Exists("group", "g".into())));
        assert!(matches!(c.add_group(&"x".repeat(32)), Err(ConsoleError::Name(_))));
        assert!(matches!(c.add_nodes("h", &[]).await, Err(ConsoleError::NoNode)));
        assert_eq!(c.add_batch("b"), Ok(()));
        assert_eq!(c.add_batch("b"), Err(ConsoleError::Exists("batch", "b".into())));
        assert!(matches!(c.run("b").await, Err(ConsoleError::NoTests(_))));
        assert!(matches!(c.run("c").await, Err(ConsoleError::NoBatch(_))));
    }
}
