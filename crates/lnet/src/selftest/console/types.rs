//! What a console is told and what it answers.

use coral_wire::Errno;

use crate::Nid;
use crate::selftest::{MAX_DESTINATIONS, NAME_SIZE, TestParams};

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
    /// A node of a group that a test is to use is not active.
    #[error("node {nid} of group '{group}' is {state} and not active in this session: lst update_group {group} --clean {clean} takes such nodes out", clean = .state.to_string().to_ascii_lowercase())]
    MemberNotActive {
        /// The node.
        nid: Nid,
        /// A group it is in.
        group: String,
        /// Its state.
        state: NodeState,
    },
    /// The batch is empty.
    #[error("batch '{0}' has no test")]
    NoTests(String),
    /// More destinations than there are, or than fit.
    #[error(
        "each client cannot have {span} destinations: group '{group}' has {have} nodes, and {MAX_DESTINATIONS} is the limit"
    )]
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
    Range(&'static str, i64, &'static str),
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
