//! What a console asks of a node: sessions, batches, tests and counters (`lnet/selftest/framework.c`). Plain state; `now` is
//! an argument, and what is to run is returned.
//!
//! One session at a time. It ends when its console removes it, when another is made by force, and when no console has
//! asked for anything for [`SESSION_TIMEOUT`]. What still runs then is stopped by force; until it has, it counts as a zombie.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coral_wire::nid::Nid;
use coral_wire::raw::{c_array, c_str};
use coral_wire::srpc::*;
use tokio::time::Instant;

use super::rpc::RpcCounters;
use super::test::{ClientTest, TestErrors, TestParams};
use super::{
    BrwParams, FEATS_MASK, MAX_CONCURRENCY, MAX_DESTINATIONS, MAX_UNITS, NAME_SIZE, Service,
};
use crate::Node;

/// A session without a word from its console for so long ends (`session_timeout` 100 s).
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(100);
/// Tests one session may have, and batches.
const MAX_TESTS: usize = 4096;
/// Destinations of a full page of the kernel's list.
const PAGE: usize = 4096;
/// Bytes of one destination: NID and pid.
const DEST_LEN: usize = 12;

const EINVAL: u32 = libc::EINVAL as u32;
const ESRCH: u32 = libc::ESRCH as u32;
const EBUSY: u32 = libc::EBUSY as u32;
const ENOENT: u32 = libc::ENOENT as u32;
const ENOMEM: u32 = libc::ENOMEM as u32;
const EPROTO: u32 = libc::EPROTO as u32;

/// The ID of no session (`LST_INVALID_SID`).
pub(crate) const NO_SESSION: LstSid = LstSid {
    nid: u64::MAX,
    stamp: u64::MAX,
};

enum Test {
    Server,
    Client(Arc<ClientTest>),
}

impl Test {
    fn active(&self) -> usize {
        match self {
            Test::Server => 0,
            Test::Client(c) => c.active(),
        }
    }
}

struct Batch {
    id: u64,
    tests: Vec<Test>,
}

impl Batch {
    /// Tests that run.
    fn active(&self) -> usize {
        self.tests.iter().filter(|t| t.active() > 0).count()
    }

    fn clients(&self) -> impl Iterator<Item = &Arc<ClientTest>> {
        self.tests.iter().filter_map(|t| match t {
            Test::Client(c) => Some(c),
            Test::Server => None,
        })
    }
}

struct Session {
    id: LstSid,
    name: [u8; NAME_SIZE],
    feats: u32,
    started: Instant,
    expires: Instant,
    /// Consoles' calls that made it, each of which removes it once.
    refs: u32,
    errors: Arc<TestErrors>,
    batches: Vec<Batch>,
}

impl Session {
    fn tests(&self) -> usize {
        self.batches.len() + self.batches.iter().map(|b| b.tests.len()).sum::<usize>()
    }

    fn units(&self) -> usize {
        self.batches
            .iter()
            .flat_map(Batch::clients)
            .map(|c| c.units())
            .sum()
    }
}

/// A node's self-test state.
pub(crate) struct Framework {
    nid: Nid,
    session: Option<Session>,
    /// Tests of ended sessions that have not stopped yet, by session.
    zombies: Vec<Vec<Arc<ClientTest>>>,
}

/// What becomes of a request.
pub(crate) enum Outcome {
    Reply(SrpcBody),
    /// A test for a client: its destinations are to be fetched, then [`Framework::add_client_test`].
    FetchDests(u32),
    /// These tests, claimed, are to be run, then the reply.
    Run(Vec<Arc<ClientTest>>, SrpcBody),
    /// A new session was made: its timeout is to be watched.
    Made(SrpcBody),
    /// No reply.
    Drop,
}

impl Framework {
    pub(crate) fn new(node: &Node) -> Framework {
        Framework {
            nid: node.nid(),
            session: None,
            zombies: Vec::new(),
        }
    }

    fn sid(&self) -> LstSid {
        self.session.as_ref().map_or(NO_SESSION, |s| s.id)
    }

    /// Features that go into a reply.
    pub(crate) fn feats(&self) -> u32 {
        self.session.as_ref().map_or(FEATS_MASK, |s| s.feats)
    }

    /// When the session ends if nothing is heard; None: there is none.
    pub(crate) fn expiry(&self) -> Option<Instant> {
        self.session.as_ref().map(|s| s.expires)
    }

    /// Ends the session: all its tests are stopped by force.
    pub(crate) fn end_session(&mut self) {
        let Some(s) = self.session.take() else { return };
        let running: Vec<_> = s
            .batches
            .iter()
            .flat_map(Batch::clients)
            .filter(|c| c.active() > 0)
            .cloned()
            .collect();
        for c in &running {
            c.stop(true);
        }
        self.zombies();
        if !running.is_empty() {
            self.zombies.push(running);
        }
    }

    /// Sessions that end but still run.
    fn zombies(&mut self) -> usize {
        self.zombies.retain(|z| z.iter().any(|c| c.active() > 0));
        self.zombies.len()
    }

    /// Answers a request to a framework service.
    pub(crate) fn handle(
        &mut self,
        service: Service,
        msg: &SrpcMsg,
        node: &Node,
        rpc: &RpcCounters,
        now: Instant,
    ) -> Outcome {
        if let Some(s) = &mut self.session {
            s.expires = now + SESSION_TIMEOUT;
        }
        let feats = msg.head.ses_feats;
        if matches!(service, Service::MakeSession | Service::Debug) {
            if feats & !FEATS_MASK != 0 {
                return Outcome::Reply(refuse(service, EPROTO, LstSid::default()));
            }
        } else if let Some(s) = self.session.as_ref().filter(|s| s.feats != feats) {
            return Outcome::Reply(refuse(service, EPROTO, s.id));
        }
        match &msg.body {
            SrpcBody::MksnReqst(r) => self.make_session(r, feats, now),
            SrpcBody::RmsnReqst(r) => self.remove_session(r),
            SrpcBody::DebugReqst(_) => self.debug(),
            SrpcBody::StatReqst(r) => self.stat(r, node, rpc, now),
            SrpcBody::TestReqst(r) => self.test(r),
            SrpcBody::BatchReqst(r) => self.batch(r),
            _ => Outcome::Drop,
        }
    }

    fn make_session(&mut self, r: &MksnReqst, feats: u32, now: Instant) -> Outcome {
        let timeout = SESSION_TIMEOUT.as_secs() as u32;
        let reply = |status, sid, timeout, name| {
            SrpcBody::MksnReply(MksnReply {
                status,
                sid,
                timeout,
                name,
            })
        };
        if r.sid.nid == NO_SESSION.nid {
            return Outcome::Reply(reply(EINVAL, self.sid(), 0, [0; NAME_SIZE]));
        }
        if let Some(s) = &mut self.session {
            if s.id == r.sid {
                s.refs = s.refs.saturating_add(1);
                return Outcome::Reply(reply(0, s.id, timeout, [0; NAME_SIZE]));
            }
            if r.force == 0 {
                return Outcome::Reply(reply(EBUSY, s.id, timeout, s.name));
            }
        }
        self.end_session();
        let name = c_array(c_str(&{ r.name }));
        let errors = Arc::default();
        let expires = now + SESSION_TIMEOUT;
        self.session = Some(Session {
            id: r.sid,
            name,
            feats,
            started: now,
            expires,
            refs: 1,
            errors,
            batches: Vec::new(),
        });
        tracing::info!(node = %self.nid, session = %String::from_utf8_lossy(c_str(&name)), "self-test session begins");
        Outcome::Made(reply(0, r.sid, timeout, [0; NAME_SIZE]))
    }

    fn remove_session(&mut self, r: &RmsnReqst) -> Outcome {
        let reply = |status, sid| Outcome::Reply(SrpcBody::RmsnReply(RmsnReply { status, sid }));
        if r.sid.nid == NO_SESSION.nid {
            return reply(EINVAL, self.sid());
        }
        match &mut self.session {
            None => reply(ESRCH, NO_SESSION),
            Some(s) if s.id != r.sid => reply(EBUSY, s.id),
            Some(s) => {
                s.refs -= 1;
                if s.refs > 0 {
                    return reply(0, s.id);
                }
                self.end_session();
                reply(0, NO_SESSION)
            }
        }
    }

    fn debug(&self) -> Outcome {
        let none = DebugReply {
            status: ESRCH,
            sid: NO_SESSION,
            timeout: 0,
            nbatch: 0,
            name: [0; NAME_SIZE],
        };
        let reply = self.session.as_ref().map_or(none, |s| {
            // The kernel leaves the number of batches at 0.
            DebugReply {
                status: 0,
                sid: s.id,
                timeout: SESSION_TIMEOUT.as_secs() as u32,
                nbatch: 0,
                name: s.name,
            }
        });
        Outcome::Reply(SrpcBody::DebugReply(reply))
    }

    fn stat(&mut self, r: &StatReqst, node: &Node, rpc: &RpcCounters, now: Instant) -> Outcome {
        let zombies = self.zombies() as u32;
        let mut reply = StatReply {
            status: 0,
            sid: self.sid(),
            ..StatReply::default()
        };
        match &self.session {
            _ if r.sid.nid == NO_SESSION.nid => reply.status = EINVAL,
            Some(s) if s.id == r.sid => {
                let running_ms = now.duration_since(s.started).as_millis() as u32;
                let batches = s.batches.iter().filter(|b| b.active() > 0).count() as u32;
                reply.fw = [
                    running_ms,
                    batches,
                    zombies,
                    s.errors.brw.load(Ordering::Relaxed),
                    s.errors.ping.load(Ordering::Relaxed),
                ];
                reply.rpc = [
                    &rpc.errors,
                    &rpc.sent,
                    &rpc.received,
                    &rpc.dropped,
                    &rpc.expired,
                ]
                .map(|c| c.value() as u32);
                reply.rpc_bulk = [&rpc.bulk_get, &rpc.bulk_put].map(|c| halves(c.value()));
                let l = node.stats();
                let sent = l.mem_sent.value() + l.sock_sent.value();
                let dropped = l.unmatched.value() + l.late.value() + l.overrun.value();
                // msgs_alloc, msgs_max and errors are things of the kernel's.
                reply.lnet = [
                    0,
                    0,
                    0,
                    sent as u32,
                    l.received.value() as u32,
                    0,
                    dropped as u32,
                ];
                reply.lnet_bytes =
                    [l.sent_bytes.value(), l.received_bytes.value(), 0, 0].map(halves);
            }
            _ => reply.status = ESRCH,
        }
        Outcome::Reply(SrpcBody::StatReply(reply))
    }

    fn test(&mut self, r: &TestReqst) -> Outcome {
        let ndest = u32::from_le_bytes(r.ndest);
        let client = r.is_client != 0;
        let service = Service::from_mbits(r.service as u64).filter(|s| !s.is_framework());
        let sane = r.r#loop != 0
            && (1..=MAX_CONCURRENCY).contains(&{ r.concur })
            && r.sid.nid != NO_SESSION.nid
            && ndest <= MAX_DESTINATIONS
            && (!client || ndest > 0);
        if !sane || service.is_none() {
            return self.test_reply(EINVAL);
        }
        let Some(s) = self.session.as_mut().filter(|s| s.id == r.sid) else {
            return self.test_reply(ENOENT);
        };
        if s.tests() >= MAX_TESTS {
            return self.test_reply(ENOMEM);
        }
        let batch = match s.batches.iter().position(|b| b.id == r.bid) {
            Some(i) => &mut s.batches[i],
            None => {
                s.batches.push(Batch {
                    id: r.bid,
                    tests: Vec::new(),
                });
                s.batches.last_mut().expect("pushed just now")
            }
        };
        if batch.active() > 0 {
            return self.test_reply(EBUSY);
        }
        if client {
            return Outcome::FetchDests(ndest * DEST_LEN as u32);
        }
        batch.tests.push(Test::Server);
        self.test_reply(0)
    }

    /// Continues after [`Outcome::FetchDests`] with what came.
    pub(crate) fn add_client_test(&mut self, r: &TestReqst, list: &[u8]) -> SrpcBody {
        let reply = |status, sid| SrpcBody::TestReply(RmsnReply { status, sid });
        let sid = self.sid();
        let Some(s) = self.session.as_mut().filter(|s| s.id == r.sid) else {
            return reply(ENOENT, sid);
        };
        let params = match Service::from_mbits(r.service as u64) {
            Some(Service::Ping) => Some(TestParams::Ping),
            Some(Service::Brw) => BrwParams::from_wire(&{ r.params }, s.feats).map(TestParams::Brw),
            _ => None,
        };
        let (Some(params), Some(dests)) =
            (params, dests(list, u32::from_le_bytes(r.ndest) as usize))
        else {
            return reply(EINVAL, sid);
        };
        if s.units() + dests.len() * r.concur as usize > MAX_UNITS {
            return reply(ENOMEM, sid);
        }
        // The kernel's loop count is signed, and below 0 it never ends.
        let count = u32::try_from(r.r#loop as i32).ok();
        let test = ClientTest::new(
            params,
            s.feats,
            dests,
            r.concur,
            count,
            r.stop_onerr != 0,
            s.errors.clone(),
        );
        let Some(batch) = s.batches.iter_mut().find(|b| b.id == r.bid) else {
            return reply(ENOENT, sid);
        };
        if batch.active() > 0 {
            return reply(EBUSY, sid);
        }
        batch.tests.push(Test::Client(test));
        reply(0, sid)
    }

    fn test_reply(&self, status: u32) -> Outcome {
        Outcome::Reply(SrpcBody::TestReply(RmsnReply {
            status,
            sid: self.sid(),
        }))
    }

    fn batch(&mut self, r: &BatchReqst) -> Outcome {
        let sid = self.sid();
        let reply = |status, active| {
            SrpcBody::BatchReply(BatchReply {
                status,
                sid,
                active,
                time: 0,
            })
        };
        let Some(s) = self.session.as_ref().filter(|s| s.id == r.sid) else {
            return Outcome::Reply(reply(ESRCH, 0));
        };
        let Some(batch) = s.batches.iter().find(|b| b.id == r.bid) else {
            return Outcome::Reply(reply(ENOENT, 0));
        };
        match r.opc {
            RUN if batch.active() > 0 => Outcome::Reply(reply(0, 0)),
            RUN => Outcome::Run(
                batch.clients().filter(|c| c.claim()).cloned().collect(),
                reply(0, 0),
            ),
            STOP => {
                batch
                    .clients()
                    .filter(|c| c.active() > 0)
                    .for_each(|c| c.stop(r.arg != 0));
                Outcome::Reply(reply(0, 0))
            }
            QUERY if r.testidx == 0 => Outcome::Reply(reply(0, batch.active() as u32)),
            QUERY => match batch.tests.get(r.testidx as usize - 1) {
                Some(t) => Outcome::Reply(reply(0, t.active() as u32)),
                None => Outcome::Reply(reply(ENOENT, 0)),
            },
            _ => Outcome::Drop,
        }
    }
}

/// `SRPC_BATCH_OPC_*`.
pub(crate) const RUN: u32 = 1;
pub(crate) const STOP: u32 = 2;
pub(crate) const QUERY: u32 = 3;

/// A 64-bit counter as two 32-bit halves, low first.
fn halves(v: u64) -> [u32; 2] {
    [v as u32, (v >> 32) as u32]
}

/// A reply that says no before it was looked at what is asked.
fn refuse(service: Service, status: u32, sid: LstSid) -> SrpcBody {
    match service {
        Service::MakeSession => SrpcBody::MksnReply(MksnReply {
            status,
            sid,
            ..MksnReply::default()
        }),
        Service::Batch => SrpcBody::BatchReply(BatchReply {
            status,
            sid,
            ..BatchReply::default()
        }),
        Service::Stat => SrpcBody::StatReply(StatReply {
            status,
            sid,
            ..StatReply::default()
        }),
        Service::Debug => SrpcBody::DebugReply(DebugReply {
            status,
            sid,
            ..DebugReply::default()
        }),
        _ => SrpcBody::RmsnReply(RmsnReply { status, sid }),
    }
}

/// The list of `n` destinations: NID and pid of 12 bytes, none across a page.
fn dests(list: &[u8], n: usize) -> Option<Vec<Nid>> {
    (0..n)
        .map(|i| {
            let at = dest_at(i);
            list.get(at..at + DEST_LEN)
                .and_then(|b| b[..8].try_into().ok())
                .map(|b| Nid(u64::from_le_bytes(b)))
        })
        .collect()
}

fn dest_at(i: usize) -> usize {
    let per_page = PAGE / DEST_LEN;
    i / per_page * PAGE + i % per_page * DEST_LEN
}

/// The list of destinations a console offers.
pub(crate) fn encode_dests(nids: &[Nid]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, nid) in nids.iter().enumerate() {
        out.resize(dest_at(i), 0);
        out.extend_from_slice(&nid.0.to_le_bytes());
        out.extend_from_slice(&coral_wire::nid::LNET_PID.to_le_bytes());
    }
    out
}

const _: () = assert!(MAX_DESTINATIONS as usize == PAGE / DEST_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::srpc::SrpcType;

    const SID: LstSid = LstSid { nid: 1, stamp: 2 };
    const OTHER: LstSid = LstSid { nid: 3, stamp: 4 };

    struct Bench {
        fw: Framework,
        node: Arc<Node>,
        rpc: RpcCounters,
        now: Instant,
    }

    impl Bench {
        async fn new() -> Bench {
            let cfg = crate::NodeConfig {
                nids: vec!["1@lo".parse().unwrap()],
                ..Default::default()
            };
            let node = Node::start(cfg, None).await.unwrap();
            Bench {
                fw: Framework::new(&node),
                node,
                rpc: RpcCounters::default(),
                now: Instant::now(),
            }
        }

        fn ask(&mut self, service: Service, ty: SrpcType, feats: u32, body: SrpcBody) -> Outcome {
            self.fw.handle(
                service,
                &SrpcMsg::new(ty, feats, body),
                &self.node,
                &self.rpc,
                self.now,
            )
        }

        fn make(&mut self, sid: LstSid, force: u32) -> (u32, LstSid) {
            let r = MksnReqst {
                sid,
                force,
                name: c_array(b"s"),
                ..MksnReqst::default()
            };
            match self.ask(
                Service::MakeSession,
                SrpcType::MKSN_REQST,
                1,
                SrpcBody::MksnReqst(r),
            ) {
                Outcome::Reply(SrpcBody::MksnReply(r)) | Outcome::Made(SrpcBody::MksnReply(r)) => {
                    (r.status, r.sid)
                }
                _ => panic!("no reply"),
            }
        }

        fn remove(&mut self, sid: LstSid) -> u32 {
            match self.ask(
                Service::RemoveSession,
                SrpcType::RMSN_REQST,
                1,
                SrpcBody::RmsnReqst(RmsnReqst { rpyid: 1, sid }),
            ) {
                Outcome::Reply(SrpcBody::RmsnReply(r)) => r.status,
                _ => panic!("no reply"),
            }
        }

        fn test(&mut self, change: impl FnOnce(&mut TestReqst)) -> Result<u32, u32> {
            let mut r = TestReqst {
                sid: SID,
                bid: 1,
                service: 12,
                r#loop: 5,
                concur: 2,
                ..TestReqst::default()
            };
            change(&mut r);
            match self.ask(
                Service::Test,
                SrpcType::TEST_REQST,
                1,
                SrpcBody::TestReqst(r),
            ) {
                Outcome::Reply(SrpcBody::TestReply(r)) => Ok(r.status),
                Outcome::FetchDests(n) => Err(n),
                _ => panic!("no reply"),
            }
        }

        fn batch(&mut self, bid: u64, opc: u32, testidx: u32) -> Option<u32> {
            let r = BatchReqst {
                sid: SID,
                bid,
                opc,
                testidx,
                ..BatchReqst::default()
            };
            match self.ask(
                Service::Batch,
                SrpcType::BATCH_REQST,
                1,
                SrpcBody::BatchReqst(r),
            ) {
                Outcome::Reply(SrpcBody::BatchReply(r))
                | Outcome::Run(_, SrpcBody::BatchReply(r)) => Some(r.status),
                Outcome::Drop => None,
                _ => panic!("no reply"),
            }
        }
    }

    #[tokio::test]
    async fn sessions_are_made_shared_taken_and_removed() {
        let mut b = Bench::new().await;
        assert_eq!(b.remove(SID), ESRCH);
        assert_eq!(b.make(NO_SESSION, 0), (EINVAL, NO_SESSION));
        assert_eq!(b.make(SID, 0), (0, SID));
        assert_eq!(b.make(SID, 0), (0, SID), "a second reference");
        assert_eq!(b.make(OTHER, 0), (EBUSY, SID));
        assert_eq!(b.remove(OTHER), EBUSY);
        assert_eq!(b.remove(SID), 0);
        assert_eq!(b.make(OTHER, 0), (EBUSY, SID), "one reference is left");
        assert_eq!(b.remove(SID), 0);
        assert_eq!(b.make(OTHER, 0), (0, OTHER));
        assert_eq!(b.make(SID, 1), (0, SID), "by force");
        let unknown = b.ask(
            Service::MakeSession,
            SrpcType::MKSN_REQST,
            2,
            SrpcBody::MksnReqst(MksnReqst {
                sid: OTHER,
                ..MksnReqst::default()
            }),
        );
        assert!(matches!(
            unknown,
            Outcome::Reply(SrpcBody::MksnReply(MksnReply { status: EPROTO, .. }))
        ));
        let old = b.ask(
            Service::RemoveSession,
            SrpcType::RMSN_REQST,
            0,
            SrpcBody::RmsnReqst(RmsnReqst { rpyid: 1, sid: SID }),
        );
        assert!(
            matches!(
                old,
                Outcome::Reply(SrpcBody::RmsnReply(RmsnReply { status: EPROTO, .. }))
            ),
            "other features than the session's"
        );
    }

    #[tokio::test]
    async fn every_word_of_a_console_puts_the_end_off() {
        let mut b = Bench::new().await;
        assert_eq!(b.fw.expiry(), None);
        b.make(SID, 0);
        b.now += Duration::from_secs(90);
        b.ask(
            Service::Debug,
            SrpcType::DEBUG_REQST,
            1,
            SrpcBody::DebugReqst(DebugReqst::default()),
        );
        assert_eq!(b.fw.expiry(), Some(b.now + SESSION_TIMEOUT));
    }

    #[tokio::test]
    async fn tests_that_make_no_sense_are_refused() {
        let mut b = Bench::new().await;
        assert_eq!(b.test(|_| ()), Ok(ENOENT), "no session");
        b.make(SID, 0);
        for (why, change) in [
            (
                "no loop",
                (|r: &mut TestReqst| r.r#loop = 0) as fn(&mut TestReqst),
            ),
            ("no concurrency", |r| r.concur = 0),
            ("concurrency", |r| r.concur = MAX_CONCURRENCY + 1),
            ("no session", |r| r.sid = NO_SESSION),
            ("destinations", |r| r.ndest = 100_000u32.to_le_bytes()),
            ("client without destination", |r| r.is_client = 1),
            ("framework service", |r| r.service = 4),
            ("unknown service", |r| r.service = 13),
        ] {
            assert_eq!(b.test(change), Ok(EINVAL), "{why}");
        }
        assert_eq!(b.test(|_| ()), Ok(0));
        let client = |r: &mut TestReqst| (r.is_client, r.ndest) = (1, [2, 0, 0, 0]);
        assert_eq!(b.test(client), Err(24), "two destinations of 12 bytes");
        let mut r = TestReqst {
            sid: SID,
            bid: 1,
            service: 12,
            r#loop: 5,
            concur: 1024,
            ..TestReqst::default()
        };
        client(&mut r);
        let status = |body| match body {
            SrpcBody::TestReply(r) => r.status,
            _ => panic!("no reply"),
        };
        assert_eq!(
            status(b.fw.add_client_test(&r, &[0; 23])),
            EINVAL,
            "short list"
        );
        for _ in 0..MAX_UNITS / 2048 {
            assert_eq!(status(b.fw.add_client_test(&r, &[0; 24])), 0);
        }
        assert_eq!(
            status(b.fw.add_client_test(&r, &[0; 24])),
            ENOMEM,
            "units are bounded"
        );
    }

    #[tokio::test]
    async fn batches_answer_as_the_kernels() {
        let mut b = Bench::new().await;
        assert_eq!(b.batch(1, RUN, 0), Some(ESRCH));
        b.make(SID, 0);
        assert_eq!(b.batch(1, RUN, 0), Some(ENOENT));
        b.test(|_| ()).unwrap();
        assert_eq!(b.batch(1, QUERY, 0), Some(0));
        assert_eq!(b.batch(1, QUERY, 1), Some(0));
        assert_eq!(b.batch(1, QUERY, 2), Some(ENOENT));
        assert_eq!(b.batch(1, STOP, 0), Some(0));
        assert_eq!(b.batch(1, 9, 0), None, "dropped");
    }

    #[test]
    fn destinations_do_not_cross_pages() {
        let nids: Vec<Nid> = (0..400).map(|i| Nid::new(0x20000, i)).collect();
        let list = encode_dests(&nids);
        assert_eq!(dests(&list, 400), Some(nids));
        assert_eq!(list.len(), 4096 + (400 - 341) * 12);
        assert_eq!(dests(&list, 401), None);
    }
}
