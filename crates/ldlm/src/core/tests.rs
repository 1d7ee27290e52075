//! Tables of the lock core, and sequences of operations against simple models.

use super::*;
use coral_wire::coral::blocks::Blocks;
use coral_wire::ldlm::Ibits;
use proptest::prelude::*;
use std::collections::BTreeMap;

const RES: ResId = ResId([7, 0, 0, 0]);
const EX: LdlmMode = LdlmMode::EX;
const PW: LdlmMode = LdlmMode::PW;
const PR: LdlmMode = LdlmMode::PR;
const CR: LdlmMode = LdlmMode::CR;
const NL: LdlmMode = LdlmMode::NL;
const NONE: LdlmFlags = LdlmFlags(0);

fn want(exp: ExportId, ty: LdlmType, mode: LdlmMode, policy: Policy) -> Want {
    Want {
        res: RES,
        ty,
        mode,
        policy,
        flags: NONE,
        export: Some(exp),
        remote: exp * 1000,
        ignore: None,
    }
}

fn plain(exp: ExportId, mode: LdlmMode) -> Want {
    want(exp, LdlmType::PLAIN, mode, Policy::Plain)
}

fn extent(exp: ExportId, mode: LdlmMode, start: u64, end: u64) -> Want {
    want(exp, LdlmType::EXTENT, mode, Policy::extent(start, end))
}

/// Of blocks of so many pages, `stride` pages apart, the one at page `at`.
fn block(exp: ExportId, at: u64, len: u64, stride: u64) -> Want {
    let policy = Policy::Extent {
        start: 4096 * at,
        end: 4096 * (at + len) - 1,
        gid: 0,
        blocks: Blocks::new(4096 * len, 4096 * stride),
    };
    want(exp, LdlmType::EXTENT, PW, policy)
}

fn group(exp: ExportId, gid: u64) -> Want {
    want(
        exp,
        LdlmType::EXTENT,
        LdlmMode::GROUP,
        Policy::Extent {
            start: 0,
            end: u64::MAX,
            gid,
            blocks: None,
        },
    )
}

fn ibits(exp: ExportId, mode: LdlmMode, bits: u64, try_bits: u64) -> Want {
    want(
        exp,
        LdlmType::IBITS,
        mode,
        Policy::Ibits {
            bits: Ibits(bits),
            try_bits: Ibits(try_bits),
            gid: 0,
            initiator_id: 0,
        },
    )
}

fn flock(exp: ExportId, mode: LdlmMode, owner: u64, start: u64, end: u64) -> Want {
    want(
        exp,
        LdlmType::FLOCK,
        mode,
        Policy::Flock {
            start,
            end,
            owner,
            pid: owner as u32,
        },
    )
}

fn local(w: Want) -> Want {
    Want {
        export: None,
        remote: 0,
        ..w
    }
}

struct Bed {
    ns: Namespace,
    out: Actions,
}

impl Bed {
    fn new() -> Bed {
        Bed {
            ns: Namespace::new(0x5eed),
            out: Actions::new(),
        }
    }
    fn enqueue(&mut self, w: Want) -> Result<Outcome, Refused> {
        let r = self.ns.enqueue(w, false, &mut self.out);
        self.ns.check_invariants();
        r
    }
    fn granted(&mut self, w: Want) -> u64 {
        match self.enqueue(w) {
            Ok(Outcome::Granted(c)) => c,
            other => panic!("not granted: {other:?}"),
        }
    }
    fn waits(&mut self, w: Want) -> u64 {
        match self.enqueue(w) {
            Ok(Outcome::Waiting(c)) => c,
            other => panic!("does not wait: {other:?}"),
        }
    }
    fn cancel(&mut self, cookie: u64) {
        assert!(self.ns.cancel(cookie, None, &mut self.out));
        self.ns.check_invariants();
    }
    /// Cookies of the locks asked to go, and of those announced as granted, since the last call.
    fn taken(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut asked, mut announced) = (vec![], vec![]);
        for a in self.out.drain(..) {
            match a {
                Action::Blocking { lock, .. } => asked.push(lock.cookie),
                Action::Completion { lock, .. } => announced.push(lock.cookie),
                Action::LocalGranted { cookie } => announced.push(cookie),
            }
        }
        (asked, announced)
    }
    fn extent_of(&self, cookie: u64) -> (u64, u64) {
        match self.ns.info(cookie).unwrap().policy {
            Policy::Extent { start, end, .. } => (start, end),
            p => panic!("{p:?}"),
        }
    }
    fn bits_of(&self, cookie: u64) -> u64 {
        match self.ns.info(cookie).unwrap().policy {
            Policy::Ibits { bits, try_bits, .. } => {
                assert_eq!(try_bits.0, 0, "a granted lock has no optional bits");
                bits.0
            }
            p => panic!("{p:?}"),
        }
    }
}

#[test]
fn every_pair_of_modes_follows_the_table() {
    for a in LdlmMode::ALL {
        for b in LdlmMode::ALL {
            let mut t = Bed::new();
            let first = t.granted(plain(1, a));
            if a.compatible(b) {
                t.granted(plain(2, b));
                assert_eq!(t.taken(), (vec![], vec![]));
            } else {
                let second = t.waits(plain(2, b));
                let asked = if a == LdlmMode::GROUP {
                    vec![]
                } else {
                    vec![first]
                };
                assert_eq!(t.taken(), (asked, vec![]), "{a:?} x {b:?}");
                t.cancel(first);
                assert_eq!(t.taken(), (vec![], vec![second]));
            }
        }
    }
}

#[test]
fn first_come_first_served() {
    let mut t = Bed::new();
    let r1 = t.granted(plain(1, PR));
    let w = t.waits(plain(2, EX));
    let r2 = t.waits(plain(3, PR));
    assert_eq!(
        t.taken(),
        (vec![r1], vec![]),
        "a holder is asked once; a waiter is not asked"
    );
    t.cancel(r1);
    let (asked, announced) = t.taken();
    assert_eq!(
        (asked, announced),
        (vec![], vec![w]),
        "the reader does not overtake; w learns with its grant that it must go"
    );
    assert!(t.ns.ast_sent(w));
    t.cancel(w);
    assert_eq!(t.taken().1, vec![r2]);
    t.cancel(r2);
    assert_eq!((t.ns.len(), t.ns.resource_count()), (0, 0));
}

#[test]
fn completion_carries_ast_sent() {
    let mut t = Bed::new();
    let a = t.granted(plain(1, EX));
    t.waits(plain(2, EX));
    t.waits(plain(3, EX));
    t.out.clear();
    t.cancel(a);
    let [Action::Completion { lock, flags }] = &t.out[..] else {
        panic!("{:?}", t.out)
    };
    assert_eq!(
        (lock.export, *flags, lock.granted_mode),
        (Some(2), LdlmFlags::AST_SENT, EX)
    );
}

#[test]
fn the_reply_stands_in_for_the_completion() {
    let mut t = Bed::new();
    let a = t.granted(plain(1, EX));
    let mut out = Actions::new();
    let Ok(Outcome::Waiting(b)) = t.ns.enqueue(plain(2, EX), true, &mut out) else {
        panic!()
    };
    t.cancel(a);
    assert_eq!(
        t.taken().1,
        vec![],
        "no completion while the reply is being written"
    );
    assert_eq!(t.ns.reply_done(b).unwrap().0.granted_mode, EX);
}

#[test]
fn nowait_leaves_no_trace() {
    let mut t = Bed::new();
    t.granted(plain(1, EX));
    let w = Want {
        flags: LdlmFlags::BLOCK_NOWAIT,
        ..plain(2, PR)
    };
    assert_eq!(t.enqueue(w), Err(Refused::WouldBlock));
    assert_eq!((t.ns.len(), t.taken()), (1, (vec![], vec![])));
}

#[test]
fn malformed_requests_are_refused() {
    let mut t = Bed::new();
    t.granted(plain(1, CR));
    let odd = Want {
        policy: Policy::Plain,
        ..extent(1, PR, 0, 1)
    };
    assert_eq!(
        t.enqueue(odd),
        Err(Refused::Malformed),
        "a policy of another type"
    );
    assert_eq!(
        t.enqueue(extent(1, PR, 5, 4)),
        Err(Refused::Malformed),
        "a backward range"
    );
    assert_eq!(
        t.enqueue(plain(1, LdlmMode(6))),
        Err(Refused::Malformed),
        "two modes"
    );
    assert_eq!(
        t.enqueue(plain(1, LdlmMode(0))),
        Err(Refused::Malformed),
        "no mode"
    );
    assert_eq!(
        t.enqueue(plain(1, LdlmMode(512))),
        Err(Refused::Malformed),
        "an unknown mode"
    );
    assert_eq!(t.ns.resource_count(), 1);
}

#[test]
fn extents_grow_and_share_the_object() {
    let mut t = Bed::new();
    let a = t.granted(extent(1, PW, 0, 4095));
    assert_eq!(t.extent_of(a), (0, u64::MAX));
    let b = t.waits(extent(2, PW, 1 << 20, (1 << 20) + 4095));
    assert_eq!(t.taken().0, vec![a]);
    t.cancel(a);
    // the other will come back for what lies before
    assert_eq!(t.extent_of(b), (1 << 20, u64::MAX));
    // who writes backwards is given all before at once
    let d = t.granted(extent(2, PW, (1 << 20) - 4096, (1 << 20) - 1));
    assert_eq!(t.extent_of(d), (0, (1 << 20) - 1));
    t.cancel(d);
    let c = t.granted(extent(1, PW, 0, 4095));
    assert_eq!(t.extent_of(c), (0, (1 << 20) - 1));
    let reader = t.waits(extent(3, PR, 1 << 21, (1 << 21) + 4095));
    t.cancel(c);
    t.cancel(b);
    assert_eq!(t.extent_of(reader), (0, u64::MAX));
    t.cancel(reader);
    let no = Want {
        flags: LdlmFlags::NO_EXPANSION,
        res: ResId([9, 0, 0, 0]),
        ..extent(1, PW, 8192, 12287)
    };
    let no = t.granted(no);
    assert_eq!(t.extent_of(no), (8192, 12287));
    let srv = Want {
        res: ResId([10, 0, 0, 0]),
        ..local(extent(0, PW, 8192, 12287))
    };
    let srv = t.granted(srv);
    assert_eq!(
        t.extent_of(srv),
        (8192, 12287),
        "server-side locks do not grow"
    );
}

#[test]
fn writers_of_alternating_blocks_have_a_lock_each() {
    let mut t = Bed::new();
    let span = |t: &Bed, lock: u64| t.ns.info(lock).unwrap().policy.span().unwrap();
    let blocks = |start: u64| Span {
        start: 4096 * start,
        end: u64::MAX,
        blocks: Blocks::new(4096, 3 * 4096),
    };
    // who is alone has it all
    let a = t.granted(block(1, 6, 1, 3));
    assert_eq!(span(&t, a), Span::all(0, u64::MAX));
    let b = t.waits(block(2, 7, 1, 3));
    assert_eq!(t.taken().0, vec![a]);
    t.cancel(a);
    // others wanted it at the same time, and may come back
    assert_eq!(span(&t, b), blocks(1));
    let a = t.granted(block(1, 9, 1, 3));
    assert_eq!(span(&t, a), blocks(0));
    // one that knows of no blocks has what lies between
    let c = t.granted(extent(3, PW, 4096 * 11, 4096 * 12 - 1));
    assert_eq!(span(&t, c), Span::all(4096 * 11, 4096 * 12 - 1));
    t.cancel(c);
    // the same blocks from elsewhere on: there is one lock on each
    let again = t.waits(block(3, 12, 1, 3));
    assert_eq!(t.taken().0, vec![c, a][1..].to_vec());
    t.cancel(a);
    assert_eq!(span(&t, again), blocks(0));
    // a reader of all waits for all
    let reader = t.waits(extent(4, PR, 0, u64::MAX));
    assert_eq!(t.taken().0, vec![b, again]);
    t.cancel(b);
    t.cancel(again);
    assert_eq!(span(&t, reader), Span::all(0, u64::MAX));
}

#[test]
fn who_writes_alone_is_given_no_blocks() {
    let mut t = Bed::new();
    let reader = t.granted(extent(2, PR, 0, u64::MAX));
    let a = t.waits(block(1, 6, 1, 3));
    t.cancel(reader);
    assert_eq!(t.extent_of(a), (0, u64::MAX));
    assert!(
        t.ns.info(a)
            .unwrap()
            .policy
            .span()
            .unwrap()
            .blocks
            .is_none()
    );
}

#[test]
fn blocks_are_locked_from_where_they_are_free() {
    let mut t = Bed::new();
    t.granted(Want {
        flags: LdlmFlags::NO_EXPANSION,
        ..extent(1, PW, 4096 * 3, 4096 * 4 - 1)
    });
    let b = t.granted(block(2, 6, 1, 3));
    let span = t.ns.info(b).unwrap().policy.span().unwrap();
    assert_eq!((span.start, span.end), (4096 * 6, u64::MAX));
    // one that waits for what lies behind has it
    let mut t = Bed::new();
    let a = t.granted(extent(1, PW, 0, 4095));
    let b = t.waits(block(2, 6, 1, 3));
    t.waits(extent(3, PW, 4096 * 90, 4096 * 91 - 1));
    t.cancel(a);
    let span = t.ns.info(b).unwrap().policy.span().unwrap();
    assert_eq!((span.start, span.end), (0, 4096 * 90 - 1));
    // where the blocks are not free, an extent up to those of others
    let mut t = Bed::new();
    t.granted(Want {
        flags: LdlmFlags::NO_EXPANSION,
        ..extent(1, PW, 4096 * 3, 4096 * 4 - 1)
    });
    t.granted(block(2, 6, 1, 3));
    let c = t.granted(block(3, 4, 1, 2));
    assert_eq!(t.extent_of(c), (4096 * 4, 4096 * 6 - 1));
}

#[test]
fn group_locks_go_by_gid() {
    let mut t = Bed::new();
    let a = t.granted(group(1, 5));
    let b = t.granted(group(2, 5));
    let c = t.waits(group(3, 6));
    let d = t.waits(extent(4, PR, 0, 10));
    let e = t.granted(group(5, 5));
    let f = t.waits(group(6, 6));
    assert_eq!(
        t.taken(),
        (vec![], vec![]),
        "group locks are not asked to go"
    );
    for l in [a, b, e] {
        t.cancel(l);
    }
    assert_eq!(t.taken().1, vec![c, f], "group locks wait before others");
    t.cancel(c);
    t.cancel(f);
    assert_eq!(t.taken().1, vec![d]);
}

#[test]
fn bits_conflict_only_where_they_meet() {
    let mut t = Bed::new();
    let a = t.granted(ibits(1, PR, 0x3, 0));
    let b = t.granted(ibits(2, EX, 0x8, 0));
    let c = t.waits(ibits(3, EX, 0x9, 0));
    assert_eq!(t.taken().0, vec![a, b]);
    t.cancel(a);
    assert_eq!(t.taken().1, vec![]);
    t.cancel(b);
    assert_eq!(t.taken().1, vec![c]);
}

#[test]
fn optional_bits_come_along_when_free() {
    let mut t = Bed::new();
    let a = t.granted(ibits(1, PR, 0x1, 0x2));
    assert_eq!(t.bits_of(a), 0x3);
    let b = t.granted(ibits(2, EX, 0x8, 0x6));
    assert_eq!(t.bits_of(b), 0xc, "UPDATE is taken");
    assert_eq!(t.taken().0, vec![], "nobody is asked for optional bits");
    assert_eq!(
        t.enqueue(ibits(3, EX, 0, 0x1)),
        Err(Refused::Aborted),
        "nothing free, nothing given"
    );
    assert_eq!(t.enqueue(ibits(3, EX, 0, 0)), Err(Refused::Aborted));
}

#[test]
fn convert_drops_bits_and_serves_waiters() {
    let mut t = Bed::new();
    let a = t.granted(ibits(1, PR, 0x13, 0));
    let w = t.waits(ibits(2, EX, 0x2, 0));
    assert_eq!(t.taken().0, vec![a]);
    let mut out = Actions::new();
    assert!(
        !t.ns.keep_bits(a, 9, 0x11, &mut out),
        "not that export's lock"
    );
    assert!(t.ns.keep_bits(a, 1, 0x11, &mut t.out));
    assert_eq!((t.taken().1, t.bits_of(a)), (vec![w], 0x11));
    let w2 = t.waits(ibits(3, EX, 0x1, 0));
    assert_eq!(t.taken().0, vec![a], "a converted lock is asked again");
    assert!(t.ns.keep_bits(a, 1, 0, &mut t.out));
    assert_eq!(
        (t.taken().1, t.ns.info(a)),
        (vec![w2], None),
        "no bit left: gone"
    );
}

#[test]
fn cancel_on_block_needs_no_answer() {
    let mut t = Bed::new();
    let a = t.granted(Want {
        flags: LdlmFlags::CANCEL_ON_BLOCK,
        ..plain(1, PR)
    });
    let b = t.granted(plain(2, EX));
    assert!(
        matches!(&t.out[..], [Action::Blocking { lock, instant: true, .. }] if lock.cookie == a)
    );
    assert!(t.ns.info(a).is_none() && t.ns.info(b).is_some());
}

#[test]
fn own_locks_can_be_ignored() {
    let mut t = Bed::new();
    let a = t.granted(ibits(1, PR, 0x2, 0));
    let mine = t.granted(Want {
        ignore: Some(1),
        ..local(ibits(0, LdlmMode::CW, 0x2, 0))
    });
    assert_eq!(t.taken().0, vec![]);
    t.cancel(mine);
    let others = t.waits(Want {
        ignore: Some(2),
        ..local(ibits(0, LdlmMode::CW, 0x2, 0))
    });
    assert_eq!(t.taken().0, vec![a]);
    t.cancel(a);
    assert_eq!(t.taken().1, vec![others]);
}

#[test]
fn discard_travels_with_the_blocking_callback() {
    let mut t = Bed::new();
    t.granted(extent(1, PW, 0, 4095));
    t.waits(Want {
        flags: LdlmFlags::AST_DISCARD_DATA,
        ..local(extent(0, PW, 0, u64::MAX))
    });
    assert!(
        matches!(&t.out[..], [Action::Blocking { lock, .. }] if lock.flags.contains(LdlmFlags::DISCARD_DATA))
    );
}

#[test]
fn a_handed_over_lock_owes_what_the_local_one_owed() {
    let mut t = Bed::new();
    let a = t.granted(local(ibits(0, PR, 0x3, 0)));
    let w = t.waits(ibits(2, EX, 0x2, 0));
    assert_eq!(
        t.taken().0,
        vec![],
        "a server-side lock is not asked, it ends by itself"
    );
    let info = t.ns.hand_over(a, 1, 77, &mut t.out).unwrap();
    assert_eq!((info.export, info.remote_cookie), (Some(1), 77));
    assert_eq!(t.taken().0, vec![a], "now its new owner is asked");
    assert_eq!(t.ns.export_gone(1, &mut t.out), 1);
    assert_eq!(t.taken().1, vec![w]);
}

#[test]
fn own_locks_go_for_the_one_that_is_handed_over() {
    let mut t = Bed::new();
    let own = t.granted(ibits(1, PR, 0x3, 0));
    let ignoring = Want {
        ignore: Some(1),
        ..local(ibits(0, EX, 0x3, 0))
    };
    let lock = t.granted(ignoring);
    let would = |t: &Bed, own: &[u64]| t.ns.would_hand_over(lock, 1, own);
    // of another resource, or another client's
    let elsewhere = Want {
        res: ResId([8, 0, 0, 0]),
        ..ibits(1, PR, 0x3, 0)
    };
    let elsewhere = t.granted(elsewhere);
    let beside = t.ns.own_beside(lock, 1, &[own, elsewhere, lock, 77]);
    assert_eq!(
        (beside, t.ns.own_beside(lock, 2, &[own])),
        (vec![own], vec![])
    );
    assert!(!would(&t, &[]) && would(&t, &[own]) && !t.ns.would_hand_over(lock, 2, &[own]));
    assert_eq!((t.ns.alone_on(RES), t.ns.is_other_alone(2)), (None, false));
    assert!(!t.ns.others_on(RES, 1) && t.ns.others_on(RES, 2));
    assert!(t.ns.is_only(1) && !t.ns.is_only(2));
    t.cancel(own);
    t.ns.hand_over(lock, 1, 77, &mut t.out).unwrap();
    t.ns.check_invariants();
    assert_eq!(t.ns.alone_on(RES), Some(1));
    assert!(t.ns.is_other_alone(2) && !t.ns.is_other_alone(1));
    assert!(t.ns.others_on(RES, 2) && !t.ns.others_on(RES, 1));
    // without UPDATE it is no such lock
    assert!(t.ns.keep_bits(lock, 1, 0x1, &mut t.out));
    t.ns.check_invariants();
    assert_eq!((t.ns.alone_on(RES), t.ns.is_other_alone(2)), (None, false));
    let again = t.ns.replay(ibits(3, EX, 0x2, 0), true).unwrap();
    t.ns.check_invariants();
    assert!(t.ns.is_other_alone(1));
    t.cancel(again);
    assert!(!t.ns.is_other_alone(1));
}

#[test]
fn replay_puts_locks_back_and_serves_at_the_end() {
    let mut t = Bed::new();
    t.ns.begin_replay();
    let w = t.ns.replay(plain(2, EX), false).unwrap();
    let a = t.ns.replay(plain(1, PR), true).unwrap();
    let r =
        t.ns.replay(
            Want {
                res: ResId([8, 0, 0, 0]),
                ..plain(3, EX)
            },
            false,
        )
        .unwrap();
    assert_eq!(t.taken(), (vec![], vec![]));
    t.ns.end_replay(&mut t.out);
    assert_eq!(t.taken(), (vec![a], vec![r]));
    t.cancel(a);
    assert_eq!(t.taken().1, vec![w]);
}

#[test]
fn server_side_locks_are_served_during_replay() {
    let mut t = Bed::new();
    t.ns.begin_replay();
    let a = t.granted(local(plain(0, EX)));
    let b = t.waits(local(plain(0, EX)));
    t.ns.replay(plain(2, PR), false).unwrap();
    t.cancel(a);
    assert_eq!(t.taken().1, vec![b]);
    t.cancel(b);
    assert_eq!(
        t.taken().1,
        vec![],
        "the client's lock waits for the end of the replay"
    );
}

#[test]
fn flocks_wait_test_and_unlock() {
    let mut t = Bed::new();
    t.granted(flock(1, PW, 10, 0, 99));
    let probe = Want {
        flags: LdlmFlags::TEST_LOCK,
        ..flock(2, PR, 20, 50, 60)
    };
    let Ok(Outcome::Tested(Some(found))) = t.enqueue(probe) else {
        panic!()
    };
    assert_eq!(
        found.policy,
        Policy::Flock {
            start: 0,
            end: 99,
            owner: 10,
            pid: 10
        }
    );
    let w = t.waits(flock(2, PR, 20, 50, 60));
    assert_eq!(
        t.taken(),
        (vec![], vec![]),
        "holders of flocks are not asked"
    );
    assert_eq!(t.enqueue(flock(1, NL, 10, 40, 69)), Ok(Outcome::Absorbed));
    assert_eq!(t.taken().1, vec![w]);
    assert_eq!(
        t.enqueue(Want {
            flags: LdlmFlags::TEST_LOCK,
            ..flock(2, PW, 20, 50, 55)
        }),
        Ok(Outcome::Tested(None))
    );
    let nowait = Want {
        flags: LdlmFlags::BLOCK_NOWAIT,
        ..flock(3, PW, 30, 39, 40)
    };
    assert_eq!(t.enqueue(nowait), Err(Refused::WouldBlock));
    assert_eq!(t.ns.export_gone(1, &mut t.out), 2, "the two halves");
    assert_eq!(
        t.enqueue(flock(2, NL, 20, 0, u64::MAX)),
        Ok(Outcome::Absorbed)
    );
    assert!(t.ns.is_empty());
}

#[test]
fn a_process_of_another_client_is_another_owner() {
    let mut t = Bed::new();
    t.granted(flock(1, PW, 10, 0, 9));
    t.waits(flock(2, PW, 10, 0, 9));
}

#[test]
fn unlock_of_a_waiting_range_withdraws_it() {
    let mut t = Bed::new();
    t.granted(flock(1, PW, 10, 0, 9));
    let w = t.waits(flock(2, PW, 20, 0, 9));
    assert_eq!(t.enqueue(flock(2, NL, 20, 0, 9)), Ok(Outcome::Absorbed));
    let [Action::Completion { lock, .. }] = &t.out[..] else {
        panic!("{:?}", t.out)
    };
    assert_eq!((lock.cookie, lock.granted_mode), (w, LdlmMode::NONE));
    assert_eq!(t.ns.len(), 1);
}

#[test]
fn deadlocks_are_refused() {
    let mut t = Bed::new();
    t.granted(flock(1, PW, 10, 0, 9));
    t.granted(flock(2, PW, 20, 10, 19));
    t.granted(flock(3, PW, 30, 20, 29));
    t.waits(flock(1, PW, 10, 10, 19));
    t.waits(flock(2, PW, 20, 20, 29));
    assert_eq!(
        t.enqueue(flock(3, PW, 30, 0, 9)),
        Err(Refused::Deadlock),
        "a ring of three"
    );
    assert_eq!(t.ns.len(), 5);
}

#[test]
fn a_deadlock_that_arises_later_is_announced() {
    // Owner 10 waits on one thread for 30's lock; on another it gets the lock that 20, whom 30 waits for, waits for.
    let other = ResId([8, 0, 0, 12]);
    let mut t = Bed::new();
    t.granted(flock(9, PW, 90, 0, 9));
    t.granted(Want {
        res: other,
        ..flock(3, PW, 30, 0, 9)
    });
    let w10a = t.waits(flock(1, PW, 10, 0, 9));
    let w30 = t.waits(flock(3, PW, 30, 0, 9));
    t.waits(Want {
        res: other,
        ..flock(1, PW, 10, 0, 9)
    });
    assert_eq!(t.enqueue(flock(9, NL, 90, 0, 9)), Ok(Outcome::Absorbed));
    let [
        Action::Completion { lock: a, .. },
        Action::Completion { lock: b, flags },
    ] = &t.out[..]
    else {
        panic!("{:?}", t.out)
    };
    assert_eq!((a.cookie, b.cookie), (w10a, w30));
    assert!(flags.contains(LdlmFlags::FLOCK_DEADLOCK));
    t.ns.check_invariants();
}

#[derive(Debug, Clone)]
enum Op {
    Enqueue {
        exp: u64,
        kind: u8,
        mode: usize,
        a: u64,
        b: u64,
        nowait: bool,
    },
    /// Cancels one of the locks that were asked to go, or any.
    Cancel(prop::sample::Index),
    Gone(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1u64..5, 0u8..4, 0usize..6, 0u64..32, 0u64..32, prop::bool::weighted(0.1))
            .prop_map(|(exp, kind, mode, a, b, nowait)| Op::Enqueue { exp, kind, mode, a, b, nowait }),
        5 => any::<prop::sample::Index>().prop_map(Op::Cancel),
        1 => (1u64..5).prop_map(Op::Gone),
    ]
}

fn want_of(exp: u64, kind: u8, mode: usize, a: u64, b: u64) -> Want {
    let mode = LdlmMode::ALL[mode];
    match kind {
        0 => plain(exp, mode),
        1 => extent(exp, mode, 4096 * a.min(b), 4096 * a.max(b) + 4095),
        2 => block(exp, a, 1 + b % 3, 2 + b % 3 + b / 8),
        _ => ibits(exp, mode, a & 0x7, b & 0x38),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// No two incompatible locks are ever granted; every waiter is announced once its blockers, asked, have gone.
    #[test]
    fn grants_are_compatible_and_nobody_starves(ops in prop::collection::vec(op(), 1..80)) {
        let mut t = Bed::new();
        // What a client knows: cookie -> (granted, asked to go)
        let mut known: BTreeMap<u64, (bool, bool)> = BTreeMap::new();
        for o in ops {
            match o {
                Op::Enqueue { exp, kind, mode, a, b, nowait } => {
                    let mut w = want_of(exp, kind, mode, a, b);
                    if nowait {
                        w.flags |= LdlmFlags::BLOCK_NOWAIT;
                    }
                    match t.enqueue(w) {
                        Ok(Outcome::Granted(c)) => { known.insert(c, (true, false)); }
                        Ok(Outcome::Waiting(c)) => { known.insert(c, (false, false)); }
                        Ok(o) => prop_assert!(false, "{o:?}"),
                        Err(e) => prop_assert!(matches!(e, Refused::WouldBlock | Refused::Aborted)),
                    }
                }
                Op::Cancel(i) if !known.is_empty() => {
                    let c = *i.get(&known.keys().copied().collect::<Vec<_>>());
                    known.remove(&c);
                    t.cancel(c);
                }
                Op::Cancel(_) => {}
                Op::Gone(exp) => {
                    known.retain(|c, _| t.ns.info(*c).unwrap().export != Some(exp));
                    t.ns.export_gone(exp, &mut t.out);
                    t.ns.check_invariants();
                }
            }
            note(&mut t, &mut known);
        }
        // Everybody asked gives its lock back, until nothing happens any more.
        loop {
            let asked: Vec<u64> = known.iter().filter(|(_, (g, a))| *g && *a).map(|(c, _)| *c).collect();
            if asked.is_empty() {
                break;
            }
            for c in asked {
                known.remove(&c);
                t.cancel(c);
                note(&mut t, &mut known);
            }
        }
        prop_assert!(known.values().all(|(g, _)| *g), "a waiter starved");
        prop_assert_eq!(known.len(), t.ns.len());
    }

    /// The locks of all owners agree with a map from byte to holders, whoever waits.
    #[test]
    fn flock_ranges_agree_with_a_byte_map(ops in prop::collection::vec((1u64..4, 0usize..3, 0u64..24, 0u64..8), 1..60)) {
        let mut t = Bed::new();
        let mut map: Vec<BTreeMap<u64, LdlmMode>> = vec![BTreeMap::new(); 40];
        for (exp, mode, start, len) in ops {
            let (mode, end) = ([NL, PR, PW][mode], start + len);
            let w = Want { flags: LdlmFlags::BLOCK_NOWAIT, ..flock(exp, mode, 5, start, end) };
            let free = map[start as usize..=end as usize].iter().all(|b| b.iter().all(|(o, m)| *o == exp || m.compatible(mode)));
            match t.enqueue(w) {
                Ok(_) => {
                    prop_assert!(free);
                    for b in &mut map[start as usize..=end as usize] {
                        if mode == NL { b.remove(&exp); } else { b.insert(exp, mode); }
                    }
                }
                Err(e) => prop_assert!(!free && e == Refused::WouldBlock),
            }
            let mut seen: Vec<BTreeMap<u64, LdlmMode>> = vec![BTreeMap::new(); 40];
            for l in t.ns.locks() {
                let Policy::Flock { start, end, .. } = l.policy else { panic!() };
                for b in start..=end {
                    prop_assert!(seen[b as usize].insert(l.export.unwrap(), l.granted_mode).is_none());
                }
            }
            prop_assert_eq!(&seen, &map);
        }
    }
}

fn note(t: &mut Bed, known: &mut BTreeMap<u64, (bool, bool)>) {
    for a in t.out.drain(..) {
        match a {
            Action::Blocking { lock, .. } => {
                let k = known
                    .get_mut(&lock.cookie)
                    .expect("only locks that exist are asked");
                assert!(k.0 && !k.1, "asked twice, or before it is granted");
                k.1 = true;
            }
            Action::Completion { lock, flags } => {
                let k = known
                    .get_mut(&lock.cookie)
                    .expect("only locks that exist are granted");
                assert!(!k.0, "granted twice");
                *k = (true, flags.contains(LdlmFlags::AST_SENT));
            }
            Action::LocalGranted { .. } => panic!("no local locks here"),
        }
    }
}
