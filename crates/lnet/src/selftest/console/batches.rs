//! Batches and their tests: made, run, stopped, asked about.

use std::time::Duration;

use coral_wire::srpc::*;

use super::{
    Batch, BatchInfo, Console, ConsoleError, ConsoleState, LOOPS, NodeResult, NodeState,
    ROUND_TIMEOUT, Test, TestInfo, TestSpec, check_name,
};
use crate::Nid;
use crate::selftest::framework::{QUERY, RUN, STOP, encode_dests};
use crate::selftest::rpc::status_of;
use crate::selftest::{MAX_CONCURRENCY, MAX_DESTINATIONS, Service, TestParams};

impl Console {
    /// An empty batch.
    pub fn add_batch(&self, name: &str) -> Result<(), ConsoleError> {
        check_name(name)?;
        let mut st = self.st.lock();
        if st.batch(name).is_ok() {
            return Err(ConsoleError::Exists("batch", name.into()));
        }
        st.next_batch += 1;
        let id = st.next_batch;
        st.batches.push(Batch {
            name: name.into(),
            id,
            running: false,
            tests: Vec::new(),
            clients: Vec::new(),
            servers: Vec::new(),
        });
        Ok(())
    }

    /// Names of the batches.
    pub fn batches(&self) -> Vec<String> {
        self.st
            .lock()
            .batches
            .iter()
            .map(|b| b.name.clone())
            .collect()
    }

    /// A batch with its tests.
    pub fn batch(&self, name: &str) -> Result<BatchInfo, ConsoleError> {
        let mut st = self.st.lock();
        let b = st.batch(name)?;
        let (running, clients, servers) = (b.running, b.clients.clone(), b.servers.clone());
        let specs: Vec<TestSpec> = b.tests.iter().map(|t| t.spec.clone()).collect();
        let members = |st: &mut ConsoleState, g: &str| {
            let nids = st.group(g).map(|g| g.nids.clone()).unwrap_or_default();
            st.with_states(&nids)
        };
        let tests = specs.into_iter().map(|s| {
            let (clients, servers) = (members(&mut st, &s.from), members(&mut st, &s.to));
            TestInfo {
                params: s.params,
                count: s.count,
                concurrency: s.concurrency,
                clients,
                servers,
            }
        });
        let tests = tests.collect();
        Ok(BatchInfo {
            running,
            tests,
            clients: st.with_states(&clients),
            servers: st.with_states(&servers),
        })
    }

    /// Checks a test and gives its clients, its servers and its batch's ID.
    fn prepare(
        &self,
        batch: &str,
        spec: &TestSpec,
    ) -> Result<(Vec<Nid>, Vec<Nid>, u64), ConsoleError> {
        if spec.concurrency == 0 || spec.concurrency > MAX_CONCURRENCY {
            return Err(ConsoleError::Range(
                "concurrency",
                spec.concurrency as i64,
                "1 to 1024",
            ));
        }
        if spec.count == Some(0) || spec.count.is_some_and(|n| n > i32::MAX as u32) {
            return Err(ConsoleError::Range(
                "loop",
                spec.count.unwrap_or(0) as i64,
                LOOPS,
            ));
        }
        if spec.dist == 0 || spec.span == 0 {
            return Err(ConsoleError::Range(
                "distribution",
                0,
                "1 or more on both sides",
            ));
        }
        if let TestParams::Brw(p) = spec.params
            && (p.len_bytes == 0 || p.len_bytes as usize > crate::LNET_MTU)
        {
            return Err(ConsoleError::Range(
                "size",
                p.len_bytes as i64,
                "1 byte to 1 MiB",
            ));
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
                return Err(ConsoleError::MemberNotActive {
                    nid: s.0,
                    group: name.clone(),
                    state: s.1,
                });
            }
        }
        let (clients, servers) = (
            st.group(&spec.from)?.nids.clone(),
            st.group(&spec.to)?.nids.clone(),
        );
        if spec.span as usize > servers.len() || spec.span > MAX_DESTINATIONS {
            return Err(ConsoleError::Span {
                span: spec.span,
                group: spec.to.clone(),
                have: servers.len(),
            });
        }
        Ok((clients, servers, id))
    }

    /// Adds a test to a batch: first its servers are told, then, if none objected, its clients. Gives what those said that
    /// were asked last. The test is listed even when some objected, so that one can see what is going on.
    pub async fn add_test(
        &self,
        batch: &str,
        spec: TestSpec,
    ) -> Result<Vec<NodeResult<()>>, ConsoleError> {
        let (clients, servers, bid) = self.prepare(batch, &spec)?;
        let sid = self.sid();
        let (service, params) = match spec.params {
            TestParams::Ping => (Service::Ping, [0; 14]),
            TestParams::Brw(p) => (Service::Brw, p.to_wire()),
        };
        let base = TestReqst {
            sid,
            bid,
            service: service as u32,
            concur: spec.concurrency,
            stop_onerr: 1,
            params,
            ..TestReqst::default()
        };
        let take = |m: SrpcMsg| match status_of(&m) {
            0 => Ok(()),
            e => Err(e),
        };
        let server_loop = server_loop(clients.len() as u32, servers.len() as u32, &spec);
        let make = |_: usize, rpyid, bulkid| {
            (
                SrpcBody::TestReqst(TestReqst {
                    rpyid,
                    bulkid,
                    r#loop: server_loop,
                    ..base
                }),
                None,
            )
        };
        let mut done = self
            .round(&servers, Service::Test, ROUND_TIMEOUT, make, take)
            .await?;
        if done.iter().all(|r| r.result.is_ok()) {
            let make = |i: usize, rpyid, bulkid| {
                let list = encode_dests(&destinations(&servers, i as u32, spec.dist, spec.span));
                let r#loop = spec.count.unwrap_or(u32::MAX);
                let ndest = spec.span.to_le_bytes();
                (
                    SrpcBody::TestReqst(TestReqst {
                        rpyid,
                        bulkid,
                        r#loop,
                        is_client: 1,
                        ndest,
                        ..base
                    }),
                    Some(list),
                )
            };
            done = self
                .round(&clients, Service::Test, ROUND_TIMEOUT, make, take)
                .await?;
        }
        let mut st = self.st.lock();
        let b = st.batch(batch)?;
        b.tests.push(Test { spec });
        for (all, new) in [(&mut b.clients, clients), (&mut b.servers, servers)] {
            new.into_iter().for_each(|n| {
                if !all.contains(&n) {
                    all.push(n)
                }
            });
        }
        Ok(done)
    }

    /// One round of a batch operation over its clients; gives how many tests or loops run on each.
    async fn batch_round(
        &self,
        to: &[Nid],
        limit: Duration,
        bid: u64,
        opc: u32,
        testidx: u32,
        arg: u32,
    ) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let sid = self.sid();
        let make = |_: usize, rpyid, _: u64| {
            (
                SrpcBody::BatchReqst(BatchReqst {
                    rpyid,
                    sid,
                    bid,
                    opc,
                    testidx,
                    arg,
                }),
                None,
            )
        };
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
        let done = self
            .batch_round(&clients, ROUND_TIMEOUT, id, RUN, 0, 0)
            .await?;
        if done.iter().any(|r| r.result.is_ok()) {
            self.st.lock().batch(name)?.running = true;
        }
        Ok(done)
    }

    /// Tells a batch's clients to stop: after the RPC each loop is at, or at once by `force`. [`Self::query`] says when they have.
    pub async fn stop(
        &self,
        name: &str,
        force: bool,
    ) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let (clients, id) = {
            let mut st = self.st.lock();
            let b = st.batch(name)?;
            let (clients, id) = (b.clients.clone(), b.id);
            (
                clients
                    .into_iter()
                    .filter(|n| st.state(*n) == NodeState::Active)
                    .collect::<Vec<_>>(),
                id,
            )
        };
        let done = self
            .batch_round(&clients, ROUND_TIMEOUT, id, STOP, 0, force as u32)
            .await?;
        if done.iter().all(|r| r.result.is_ok()) {
            self.st.lock().batch(name)?.running = false;
        }
        Ok(done)
    }

    /// What runs of a batch (`test` 0) or of one of its tests (from 1), on its clients or servers.
    pub async fn query(
        &self,
        name: &str,
        test: usize,
        server: bool,
        limit: Duration,
    ) -> Result<Vec<NodeResult<u32>>, ConsoleError> {
        let (nodes, id) = {
            let mut st = self.st.lock();
            let b = st.batch(name)?;
            let (id, groups) = (b.id, if server { &b.servers } else { &b.clients }.clone());
            let nodes = match test.checked_sub(1) {
                None => groups,
                Some(i) => {
                    let spec = b
                        .tests
                        .get(i)
                        .map(|t| t.spec.clone())
                        .ok_or_else(|| ConsoleError::NoTest(name.into(), test))?;
                    st.group(if server { &spec.to } else { &spec.from })?
                        .nids
                        .clone()
                }
            };
            (nodes, id)
        };
        let done = self
            .batch_round(&nodes, limit, id, QUERY, test as u32, 0)
            .await?;
        if test == 0 && done.iter().all(|r| r.result == Ok(0)) {
            self.st.lock().batch(name)?.running = false;
        }
        Ok(done)
    }
}

/// How many RPCs a server of the test may have to hold at once.
fn server_loop(clients: u32, servers: u32, spec: &TestSpec) -> u32 {
    let ndist = clients.div_ceil(spec.dist);
    let nspan = servers.div_ceil(spec.span).max(1);
    ndist
        .div_ceil(nspan)
        .saturating_mul(spec.dist)
        .saturating_mul(spec.concurrency)
}

/// The destinations of the i-th client: `dist` clients in a row share them, and the next `dist` have the next `span`.
fn destinations(servers: &[Nid], i: u32, dist: u32, span: u32) -> Vec<Nid> {
    let start = (i / dist) as usize * span as usize % servers.len();
    servers
        .iter()
        .copied()
        .cycle()
        .skip(start)
        .take(span as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_go_round_as_the_kernel_console_gives_them() {
        let servers: Vec<Nid> = (1..=4).map(|i| Nid::new(0x20000, i)).collect();
        let of = |i, dist, span| {
            destinations(&servers, i, dist, span)
                .iter()
                .map(|n| n.addr())
                .collect::<Vec<_>>()
        };
        assert_eq!([of(0, 1, 1), of(1, 1, 1), of(5, 1, 1)], [[1], [2], [2]]);
        assert_eq!([of(0, 2, 1), of(1, 2, 1), of(2, 2, 1)], [[1], [1], [2]]);
        assert_eq!([of(0, 1, 3), of(1, 1, 3)], [[1, 2, 3], [4, 1, 2]]);
        assert_eq!(of(7, 1, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn servers_are_told_their_share() {
        let spec = |dist, span, concurrency| TestSpec {
            from: String::new(),
            to: String::new(),
            count: None,
            concurrency,
            dist,
            span,
            params: TestParams::Ping,
        };
        assert_eq!(server_loop(1, 1, &spec(1, 1, 4)), 4);
        assert_eq!(server_loop(6, 2, &spec(1, 1, 8)), 24);
        assert_eq!(server_loop(6, 2, &spec(6, 1, 8)), 48);
    }
}
