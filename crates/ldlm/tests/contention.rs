//! Two clients and a server with real shells on an in-process network, under a paused clock.

mod common;
use common::*;

use coral_ldlm::*;
use coral_lnet::LinkModel;
use coral_wire::errno::Errno;
use coral_wire::ldlm::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Long enough for anything but a time-out.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn an_idle_lock_is_given_up_before_the_reply() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    drop(a.ibits(PR, 3).await.unwrap());
    assert_eq!(a.ns.counts(), (1, 1));
    let lock = b.ibits(EX, 2).await.unwrap();
    assert_eq!(
        bed.server.callbacks(),
        ["BL"],
        "the grant is in the reply, no completion is sent"
    );
    assert_eq!(
        (a.hook.count(), a.ns.counts(), bed.server.ldlm.counts()),
        (1, (0, 0), (1, 1))
    );
    assert_eq!(lock.mode(), EX);
    bed.check_agreement();
}

/// A client that answers at once, and keeps the lock while it needs it.
#[tokio::test(start_paused = true)]
async fn who_keeps_a_lock_that_is_wanted_is_told_by_the_stopwatch() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let base = tokio::time::Instant::now();
    let told = || {
        let dump = bed.server.node.stopwatch().dump("s", base);
        let all = dump.under_way.into_iter();
        all.map(|u| (u.target.into_owned(), u.fid, u.begun / 1_000_000))
            .collect::<Vec<_>>()
    };
    let held = a.ibits(PR, 3).await.unwrap();
    let wants = async {
        sleep(SOON).await;
        drop(b.ibits(EX, 2).await.unwrap());
    };
    let looks = async {
        sleep(SOON + Duration::from_millis(100)).await;
        assert_eq!(told(), [], "it has just been asked");
        sleep(SOON).await;
        let fid = coral_wire::fid::Fid::from_res_id(&FILE);
        let fid = (fid.seq, fid.oid, fid.ver);
        assert_eq!(told(), [(a.node.nids()[0].to_string(), fid, 5000)]);
        drop(held);
    };
    tokio::join!(wants, looks);
    assert_eq!(told(), []);
}

#[tokio::test(start_paused = true)]
async fn uncontended_and_contended_work_stays_on_its_stack() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    drop(a.ibits(PR, 3).await.unwrap());
    let before = bed.server.node.handovers().spawned.value();
    drop(b.ibits(EX, 2).await.unwrap());
    let server_side = bed
        .server
        .ldlm
        .lock_local(FILE, LdlmType::IBITS, EX, bits(0x7f), None)
        .await;
    assert_eq!(
        bed.server.node.handovers().spawned.value(),
        before,
        "no hand-over at the server"
    );
    assert_eq!(bed.server.callbacks(), ["BL", "BL"]);
    drop(server_side);
}

#[tokio::test(start_paused = true)]
async fn a_pinned_lock_is_waited_for() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let pinned = a.ibits(PR, 3).await.unwrap();
    let mut wait = Box::pin(b.ibits(EX, 2));
    assert!(timeout(SOON, &mut wait).await.is_err());
    assert!(pinned.is_blocked() && a.hook.blocked.load(Ordering::Relaxed) == 1);
    assert!(
        a.ns.match_lock(&FILE, LdlmType::IBITS, PR, &bits(1))
            .is_none(),
        "no new use of a blocked lock"
    );
    let again = pinned.clone();
    drop(pinned);
    assert!(timeout(SOON, &mut wait).await.is_err(), "one pin is left");
    drop(again);
    let got = timeout(SOON, wait).await.unwrap().unwrap();
    assert_eq!(bed.server.callbacks(), ["BL", "CP"]);
    assert!(!got.is_blocked());
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn the_flush_comes_before_the_grant() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    *a.hook.flush.lock() = Duration::from_secs(3);
    drop(a.ibits(PW, 2).await.unwrap());
    let start = tokio::time::Instant::now();
    b.ibits(PW, 2).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(3));
    assert_eq!(a.hook.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn extents_grow_shrink_and_carry_the_size() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    bed.server.sizes.bytes.store(4096, Ordering::Relaxed);
    let (la, lvb) = a.extent(PW, 0, 4095).await.unwrap();
    assert_eq!(
        (la.policy(), lvb.size),
        (Policy::extent(0, u64::MAX), 4096),
        "alone: the whole object"
    );
    let mut wait = Box::pin(b.extent(PW, 8192, 12287));
    assert!(timeout(SOON, &mut wait).await.is_err());
    bed.server.sizes.bytes.store(5000, Ordering::Relaxed);
    drop(la);
    let (lb, lvb) = wait.await.unwrap();
    assert_eq!(
        (lb.policy(), lvb.size),
        (Policy::extent(8192, u64::MAX), 5000),
        "the size at the grant, not at the request; what lies before the other will ask for"
    );
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn glimpse_asks_the_writer_and_takes_nothing_away() {
    let bed = Bed::new(3).await;
    let [a, b, c] = &bed.clients[..] else {
        unreachable!()
    };
    bed.server.sizes.bytes.store(100, Ordering::Relaxed);
    let (lvb, lock) = b.ns.glimpse(OBJECT).await.unwrap();
    assert_eq!(
        (lvb.size, lock.is_some()),
        (100, true),
        "nobody writes: the lock comes along"
    );
    drop(lock);
    let (_la, _) = a.extent(PW, 0, 4095).await.unwrap();
    a.hook.size.store(70_000, Ordering::Relaxed);
    bed.server.callbacks();
    let (lvb, lock) = c.ns.glimpse(OBJECT).await.unwrap();
    assert_eq!((lvb.size, lock.is_none()), (70_000, true));
    assert_eq!(bed.server.callbacks(), ["GL"]);
    a.hook.size.store(0, Ordering::Relaxed);
    bed.server.sizes.bytes.store(80_000, Ordering::Relaxed);
    let (lvb, _) = c.ns.glimpse(OBJECT).await.unwrap();
    assert_eq!(
        lvb.size, 80_000,
        "the writer knows nothing (it has flushed): the stored size counts"
    );
    assert_eq!(
        bed.server
            .ldlm
            .glimpse_local(OBJECT, coral_wire::ldlm::LdlmType::EXTENT)
            .await
            .size,
        80_000
    );
    assert_eq!(c.ns.counts().0, 0);
}

/// A writer that has written its data and given its lock back, after the stored size was read and before the writers were counted.
#[tokio::test(start_paused = true)]
async fn a_glimpse_misses_nothing_of_a_writer_that_leaves() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    bed.server.sizes.bytes.store(100, Ordering::Relaxed);
    let (held, _) = a.extent(PW, 0, u64::MAX).await.unwrap();
    let server = bed.server.ldlm.clone();
    let lock = server.locks().remove(0);
    let sizes = bed.server.sizes.clone();
    *bed.server.sizes.meanwhile.lock() = Some(Box::new(move || {
        sizes.bytes.store(164, Ordering::Relaxed);
        server.cancel(lock.export.unwrap(), &[lock.cookie]);
    }));
    let (lvb, _) = b.ns.glimpse(OBJECT).await.unwrap();
    assert_eq!(lvb.size, 164);
    drop(held);
}

/// A client with several locks on an object knows what it has written there, whichever of them the server names.
#[tokio::test(start_paused = true)]
async fn a_glimpse_misses_nothing_under_several_locks_of_a_client() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    bed.server.sizes.bytes.store(100, Ordering::Relaxed);
    a.hook.size.store(3000, Ordering::Relaxed);
    let held = |start, end| {
        let (policy, exact) = (Policy::extent(start, end), LdlmFlags::NO_EXPANSION);
        a.ns.enqueue(OBJECT, LdlmType::EXTENT, PW, policy, exact, 56)
    };
    let (near, _) = held(0, 4095).await.unwrap();
    let (far, _) = held(1 << 20, (2 << 20) - 1).await.unwrap();
    let cookie_of = |l: &LockRef| l.info().remote_cookie;
    bed.server.callbacks();
    // the client says that it has no such lock: it is asked about its other one
    *bed.server.exports.unknown.lock() = vec![cookie_of(&far)];
    assert_eq!(b.ns.glimpse(OBJECT).await.unwrap().0.size, 3000);
    assert_eq!(bed.server.callbacks(), ["GL", "GL"]);
    *bed.server.exports.unknown.lock() = vec![cookie_of(&far), cookie_of(&near)];
    assert_eq!(b.ns.glimpse(OBJECT).await.unwrap().0.size, 100);
    assert_eq!(bed.server.callbacks(), ["GL", "GL"]);
    // one that answers for the object is asked once
    bed.server.exports.whole.store(true, Ordering::Relaxed);
    assert_eq!(b.ns.glimpse(OBJECT).await.unwrap().0.size, 100);
    assert_eq!(bed.server.callbacks(), ["GL"]);
    // a lock whose grant has not arrived at the client yet: it answers for the object
    bed.server.exports.unknown.lock().clear();
    let exp = bed.server.ldlm.locks()[0].export.unwrap();
    let policy = Policy::extent(4 << 20, (5 << 20) - 1);
    let desc = LockDesc::new(OBJECT, LdlmType::EXTENT, PW, &policy);
    let rq = LdlmRequest::enqueue(LdlmFlags::NO_EXPANSION, desc, 1);
    bed.server.ldlm.enqueue(exp, &rq).await.unwrap();
    bed.server.callbacks();
    assert_eq!(b.ns.glimpse(OBJECT).await.unwrap().0.size, 3000);
    assert_eq!(bed.server.callbacks(), ["GL"]);
}

/// Also who can only have written below the end of the object is asked, once: it knows when it wrote.
#[tokio::test(start_paused = true)]
async fn a_glimpse_asks_writers_below_the_end_too() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    bed.server.sizes.bytes.store(1 << 30, Ordering::Relaxed);
    let held = |start, end| {
        let (policy, exact) = (Policy::extent(start, end), LdlmFlags::NO_EXPANSION);
        a.ns.enqueue(OBJECT, LdlmType::EXTENT, PW, policy, exact, 56)
    };
    let _near = held(0, 4095).await.unwrap();
    let (far, _) = held(1 << 20, (2 << 20) - 1).await.unwrap();
    bed.server.callbacks();
    *bed.server.exports.unknown.lock() = vec![far.info().remote_cookie];
    assert_eq!(b.ns.glimpse(OBJECT).await.unwrap().0.size, 1 << 30);
    assert_eq!(bed.server.callbacks(), ["GL"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_gives_up_its_own_lock_unless_it_may_keep_it() {
    let bed = Bed::new(1).await;
    let a = &bed.clients[0];
    let ldlm = &bed.server.ldlm;
    let me = *bed.server.exports.peers.lock().keys().next().unwrap();
    drop(a.ibits(PR, 2).await.unwrap());
    drop(
        ldlm.lock_local(FILE, LdlmType::IBITS, LdlmMode::CW, bits(2), Some(me))
            .await,
    );
    assert_eq!(
        (a.ns.counts().0, bed.server.callbacks().len()),
        (1, 0),
        "it may keep it"
    );
    drop(
        ldlm.lock_local(FILE, LdlmType::IBITS, LdlmMode::CW, bits(2), None)
            .await,
    );
    assert_eq!((a.ns.counts().0, bed.server.callbacks()), (0, vec!["BL"]));
}

#[tokio::test(start_paused = true)]
async fn destroy_discards_what_is_cached() {
    let bed = Bed::new(1).await;
    drop(bed.clients[0].extent(PW, 0, 4095).await.unwrap());
    let whole = Policy::extent(0, u64::MAX);
    let l = bed
        .server
        .ldlm
        .lock_local_with(
            OBJECT,
            LdlmType::EXTENT,
            PW,
            whole,
            LdlmFlags::AST_DISCARD_DATA,
            None,
        )
        .await;
    assert!(matches!(
        &bed.clients[0].hook.cancelled.lock()[..],
        [(_, true, false)]
    ));
    drop(l);
}

#[tokio::test(start_paused = true)]
async fn flocks_wait_for_each_other() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    a.setlk(PW, range(0, 99, 1), true).await.unwrap();
    assert!(
        matches!(b.setlk(PR, range(50, 60, 1), false).await, Err(LockError::Refused { errno, .. }) if errno == Errno::EAGAIN)
    );
    let test =
        b.ns.flock(FLOCK, PR, range(50, 60, 1), FlockOp::Test)
            .await
            .unwrap();
    assert_eq!(test, Some((PW, range(0, 99, 1))));
    let mut wait = Box::pin(b.setlk(PW, range(40, 49, 1), true));
    assert!(timeout(SOON, &mut wait).await.is_err());
    a.unlock(range(40, 59, 1)).await;
    timeout(SOON, wait).await.unwrap().unwrap();
    bed.check_agreement();
    assert_eq!(a.ns.counts(), (2, 0), "two halves");
    a.unlock(range(0, u64::MAX, 1)).await;
    b.unlock(range(0, u64::MAX, 1)).await;
    assert_eq!(
        (a.ns.counts().0, b.ns.counts().0, bed.server.ldlm.counts()),
        (0, 0, (0, 0))
    );
    assert_eq!(
        b.ns.flock(FLOCK, PW, range(0, 9, 1), FlockOp::Test)
            .await
            .unwrap(),
        None
    );
    assert!(b.ns.locks().is_empty(), "a test leaves nothing");
}

#[tokio::test(start_paused = true)]
async fn flock_deadlocks_are_told() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    a.setlk(PW, range(0, 9, 1), true).await.unwrap();
    b.setlk(PW, range(10, 19, 2), true).await.unwrap();
    let mut wait = Box::pin(a.setlk(PW, range(10, 19, 1), true));
    assert!(timeout(SOON, &mut wait).await.is_err());
    assert!(
        matches!(b.setlk(PW, range(0, 9, 2), true).await, Err(LockError::Refused { errno, .. }) if errno == Errno::EDEADLK)
    );
    b.unlock(range(10, 19, 2)).await;
    timeout(SOON, wait).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_flock_leaves_nothing_behind() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    a.setlk(PW, range(0, 99, 1), true).await.unwrap();
    b.setlk(PR, range(200, 299, 1), true).await.unwrap();
    {
        let wait = b.setlk(PW, range(50, 249, 1), true);
        assert!(timeout(SOON, wait).await.is_err());
    }
    sleep(SOON).await;
    assert_eq!(
        bed.server
            .ldlm
            .locks()
            .iter()
            .filter(|l| l.granted_mode == LdlmMode::NONE)
            .count(),
        0,
        "withdrawn"
    );
    a.unlock(range(0, u64::MAX, 1)).await;
    sleep(SOON).await;
    let left: Vec<_> = bed
        .server
        .ldlm
        .locks()
        .iter()
        .map(|l| (l.granted_mode, l.policy))
        .collect();
    assert_eq!(left, [(PR, range(200, 299, 1))]);
    bed.check_agreement();
}

/// Moments at which a request over such a way is interrupted, milliseconds after it began.
fn moments() -> impl Iterator<Item = Duration> {
    (0..100).step_by(5).map(Duration::from_millis)
}

/// What is left of a request that was interrupted at `moment` takes 50 from nobody: `other` does not get it.
async fn stays_held(bed: &Bed, other: &Client, moment: Duration) {
    for _ in 0..3 {
        let got = other.setlk(PW, range(50, 50, 1), false).await;
        assert!(got.is_err(), "interrupted after {moment:?}");
    }
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn a_flock_asked_for_again_after_an_interrupt_is_held() {
    for moment in moments() {
        let bed = far(2).await;
        let [a, b] = &bed.clients[..] else {
            unreachable!()
        };
        let _ = timeout(moment, a.setlk(PW, range(0, 99, 1), true)).await;
        a.setlk(PW, range(0, 99, 1), true).await.unwrap();
        stays_held(&bed, b, moment).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_flock_beside_an_older_one_leaves_nothing_behind() {
    for moment in moments() {
        let bed = far(2).await;
        let [a, b] = &bed.clients[..] else {
            unreachable!()
        };
        a.setlk(PW, range(0, 9, 1), true).await.unwrap();
        let interrupted = timeout(moment, a.setlk(PW, range(10, 19, 1), true)).await;
        sleep(Duration::from_secs(1)).await;
        bed.check_agreement();
        if interrupted.is_err() {
            let other = b.setlk(PW, range(10, 19, 1), false).await;
            assert!(other.is_ok(), "interrupted after {moment:?}");
        }
        let other = b.setlk(PW, range(5, 5, 1), false).await;
        assert!(other.is_err(), "interrupted after {moment:?}");
    }
}

/// An upgrade is granted in the very moment its asker is interrupted, while another waits for the same bytes.
#[tokio::test(start_paused = true)]
async fn an_interrupted_upgrade_keeps_what_was_held() {
    for moment in moments() {
        let bed = far(3).await;
        let [a, b, c] = &bed.clients[..] else {
            unreachable!()
        };
        a.setlk(PR, range(20, 79, 1), true).await.unwrap();
        b.setlk(PR, range(0, 99, 1), true).await.unwrap();
        let upgrade = timeout(moment, a.setlk(PW, range(0, 99, 1), true));
        let other = c.setlk(PW, range(50, 50, 1), true);
        let unlock = async {
            sleep(Duration::from_millis(40)).await;
            b.unlock(range(0, 99, 1)).await;
        };
        let other = timeout(Duration::from_secs(1), other);
        let (upgrade, other, ()) = tokio::join!(upgrade, other, unlock);
        let when = format!("interrupted after {moment:?}");
        assert!(other.is_err(), "{when}: 50 was a's all the time");
        bed.check_agreement();
        let mode = if upgrade.is_ok() { PW } else { PR };
        let is = c.ns.flock(FLOCK, PW, range(50, 50, 1), FlockOp::Test);
        let held = if upgrade.is_ok() { (0, 99) } else { (20, 79) };
        let held = (mode, range(held.0, held.1, 1));
        assert_eq!(is.await.unwrap(), Some(held), "{when}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flock_taken_after_an_interrupted_unlock_is_held() {
    for moment in moments() {
        let bed = far(2).await;
        let [a, b] = &bed.clients[..] else {
            unreachable!()
        };
        a.setlk(PW, range(0, 99, 1), true).await.unwrap();
        let _ = timeout(moment, a.unlock(range(0, 99, 1))).await;
        a.setlk(PW, range(0, 99, 1), true).await.unwrap();
        stays_held(&bed, b, moment).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unlock_ends_no_wait_of_another_thread() {
    let bed = far(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    b.setlk(PW, range(0, 99, 1), true).await.unwrap();
    let mut wait = Box::pin(a.setlk(PW, range(0, u64::MAX, 1), true));
    assert!(timeout(SOON, &mut wait).await.is_err());
    a.unlock(range(0, u64::MAX, 1)).await;
    assert!(timeout(SOON, &mut wait).await.is_err(), "it waits on");
    b.unlock(range(0, u64::MAX, 1)).await;
    timeout(Duration::from_secs(1), wait)
        .await
        .unwrap()
        .unwrap();
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_unlock_unlocks() {
    for moment in moments() {
        let bed = far(1).await;
        let a = &bed.clients[0];
        a.setlk(PW, range(0, 99, 1), true).await.unwrap();
        let _ = timeout(moment, a.unlock(range(0, 99, 1))).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(
            (a.ns.counts().0, bed.server.ldlm.counts()),
            (0, (0, 0)),
            "interrupted after {moment:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_enqueue_withdraws_its_lock() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let pinned = a.ibits(PR, 2).await.unwrap();
    assert!(timeout(SOON, b.ibits(EX, 2)).await.is_err());
    sleep(SOON).await;
    assert_eq!((bed.server.ldlm.counts().0, b.ns.locks().len()), (1, 0));
    drop(pinned);
    sleep(SOON).await;
    assert_eq!(bed.server.ldlm.counts(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lost_callback_evicts() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let mine = a.ibits(PR, 2).await.unwrap();
    a.ldlm.stop().await;
    let start = tokio::time::Instant::now();
    let lock = b.ibits(EX, 2).await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_secs(20) && start.elapsed() < Duration::from_secs(60)
    );
    assert!(matches!(
        &bed.server.exports.evicted.lock()[..],
        [(_, EvictReason::CallbackUnanswered { what: "blocking" })]
    ));
    drop(lock);
    // The client learns it with its next request.
    let _ = a.ibits(PR, 1).await;
    assert!(mine.is_dead() && mine.is_blocked());
    assert!(
        matches!(&a.hook.cancelled.lock()[..], [(l, false, true)] if l.cookie == mine.cookie())
    );
}

#[tokio::test(start_paused = true)]
async fn who_keeps_a_lock_too_long_is_evicted() {
    let bed = Bed::new(3).await;
    let [a, b, c] = &bed.clients[..] else {
        unreachable!()
    };
    let kept = a.ibits(PR, 2).await.unwrap();
    let _other = a.extent(PW, 0, 4095).await.unwrap();
    let start = tokio::time::Instant::now();
    let (lock, local) = tokio::join!(
        b.ibits(EX, 2),
        bed.server
            .ldlm
            .lock_local(OBJECT, LdlmType::EXTENT, PW, Policy::extent(0, 9), None)
    );
    assert_eq!(start.elapsed().as_secs(), 100);
    assert!(matches!(
        &bed.server.exports.evicted.lock()[..],
        [(_, EvictReason::LockNotCancelled { .. })]
    ));
    lock.unwrap();
    drop(local);
    sleep(Duration::from_secs(60)).await;
    assert!(kept.is_dead(), "the ping told it");
    drop(kept);
    // It starts anew.
    drop(a.ibits(PR, 2).await.unwrap());
    drop(c.ibits(PR, 2).await.unwrap());
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn progress_under_a_lock_prolongs_its_time() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let me = *bed
        .server
        .exports
        .peers
        .lock()
        .iter()
        .find(|(_, p)| p.nid == a.node.nid())
        .unwrap()
        .0;
    let (kept, _) = a.extent(PW, 0, 4095).await.unwrap();
    let ldlm = bed.server.ldlm.clone();
    tokio::spawn(async move {
        for _ in 0..4 {
            sleep(Duration::from_secs(60)).await;
            ldlm.prolong(me, OBJECT);
        }
        drop(kept);
    });
    b.extent(PR, 0, 4095).await.unwrap();
    assert!(bed.server.exports.evicted.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_enqueues_fail_when_their_client_is_evicted() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let _held = a.ibits(EX, 2).await.unwrap();
    let wait = b.ibits(EX, 2);
    let ns = b.ns.clone();
    let (got, ()) = tokio::join!(wait, async {
        sleep(SOON).await;
        ns.drop_all().await;
    });
    assert!(matches!(got, Err(LockError::Evicted)));
    assert!(b.ns.locks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_lru_gives_old_locks_back_in_batches() {
    let bed = Bed::with(
        1,
        ClientConfig {
            lru_size: 16,
            ..ClientConfig::default()
        },
    )
    .await;
    let a = &bed.clients[0];
    for i in 0..100 {
        let res = ResId([1000 + i, 0, 0, 0]);
        let (l, _) =
            a.ns.enqueue(res, LdlmType::IBITS, PR, bits(1), NO_FLAGS, 0)
                .await
                .unwrap();
        drop(l);
    }
    sleep(SOON).await;
    let (granted, idle) = a.ns.counts();
    assert!(granted <= 18 && granted == idle, "{granted} {idle}");
    assert_eq!(bed.server.ldlm.counts().0, granted);
    let cancels = a
        .import
        .stats()
        .answered_of(coral_wire::ptlrpc::opc::LDLM_CANCEL);
    assert!(cancels <= 8, "{cancels} cancels for 84 locks");
    a.ns.cancel_all().await;
    assert_eq!((a.ns.counts(), bed.server.ldlm.counts()), ((0, 0), (0, 0)));
}

/// Takes a lock on each of so many resources, and leaves it idle.
async fn leave_idle(of: &Client, first: u64, count: u64) {
    for i in first..first + count {
        let res = ResId([i, 0, 0, 0]);
        let asked = (of.ns).enqueue(res, LdlmType::IBITS, PR, bits(1), NO_FLAGS, 0);
        drop(asked.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn targets_leave_each_other_the_idle_locks_that_they_do_not_use() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let pool = Arc::new(LockPool::default());
    pool.set_limit(64);
    a.ns.share(&pool, 32);
    b.ns.share(&pool, 32);
    let idle = async |of: &Client, first: u64, count: u64| {
        leave_idle(of, first, count).await;
        sleep(SOON).await;
        (a.ns.counts().1, b.ns.counts().1)
    };
    assert_eq!(idle(a, 1000, 60).await, (60, 0), "one alone has all");
    let (of_a, _) = idle(a, 2000, 100).await;
    assert!((64..72).contains(&of_a), "{of_a} of 64, and up to 8 more");
    let (of_a, of_b) = idle(b, 3000, 30).await;
    assert_eq!(of_b, 30, "within its share");
    assert!((32..72 - 30).contains(&of_a), "{of_a}");
    let (of_a, of_b) = idle(b, 4000, 200).await;
    assert!(
        of_a >= 32 && of_b >= 32 && of_a + of_b < 72,
        "{of_a} {of_b}"
    );
    assert_eq!(pool.idle(), of_a + of_b);
    assert_eq!(bed.server.ldlm.counts().0, of_a + of_b);
    // one that is told how many it may have is no part of it
    a.ns.set_lru_size(4);
    let (of_a, of_b) = idle(a, 5000, 1).await;
    assert!(of_a <= 5, "{of_a}");
    assert_eq!(pool.idle(), of_b);
    let (of_a, of_b) = idle(b, 6000, 200).await;
    assert!(of_a <= 5 && (64..72).contains(&of_b), "{of_a} {of_b}");
    a.ns.share(&pool, 32);
    let (of_a, of_b) = idle(a, 7000, 200).await;
    assert!(
        of_a >= 32 && of_b >= 32 && of_a + of_b < 72,
        "{of_a} {of_b}"
    );
    b.ns.cancel_unused().await;
    assert_eq!((b.ns.counts().1, pool.idle()), (0, of_a));
}

/// Who has most of the pool is not reached: the others are held to what is left all the same.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_does_not_keep_others_from_giving_back() {
    let bed = Bed::new(3).await;
    let [away, b, c] = &bed.clients[..] else {
        unreachable!()
    };
    let pool = Arc::new(LockPool::default());
    pool.set_limit(64);
    for of in [away, b, c] {
        of.ns.share(&pool, 16);
    }
    let idle = async |of: &Client, first: u64, count: u64| {
        leave_idle(of, first, count).await;
        sleep(Duration::from_millis(10)).await;
    };
    idle(away, 1000, 60).await;
    let cut = LinkModel {
        cut: true,
        ..LinkModel::default()
    };
    bed.net
        .set_link(away.node.nid(), bed.server.node.nid(), cut, 1);
    idle(b, 2000, 100).await;
    idle(c, 3000, 100).await;
    idle(b, 4000, 100).await;
    let counts = [away, b, c].map(|of| of.ns.counts().1);
    assert!(counts.iter().all(|n| *n >= 16), "{counts:?}");
    assert!(counts.iter().sum::<usize>() < 72, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn intents_may_grant_another_lock_than_asked() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let exp = *bed
        .server
        .exports
        .peers
        .lock()
        .iter()
        .find(|(_, p)| p.nid == a.node.nid())
        .unwrap()
        .0;
    // Asked on the parent, granted on the child, with the optional bits that were free.
    let pending = a.ns.prepare(
        FILE,
        LdlmType::IBITS,
        LdlmMode::CR,
        bits(2),
        LdlmFlags::HAS_INTENT,
    );
    let child = ResId([0x200000402, 6, 0, 0]);
    let want = Policy::Ibits {
        bits: Ibits(1),
        try_bits: Ibits(0x12),
        gid: 0,
        initiator_id: 0,
    };
    let local = bed
        .server
        .ldlm
        .lock_local(child, LdlmType::IBITS, PR, want, None)
        .await;
    let (cookie, policy) = local.give_to(exp, pending.cookie()).unwrap();
    assert_eq!(policy, bits(0x13));
    let lock =
        a.ns.finish(pending, &bed.server.ldlm.reply_for(cookie).unwrap(), 0)
            .unwrap();
    assert_eq!(
        (lock.res(), lock.mode(), lock.policy()),
        (child, PR, bits(0x13))
    );
    drop(lock);
    // The other client asks for it while no reply was seen: the callback overtakes the reply.
    let pending =
        a.ns.prepare(FILE, LdlmType::IBITS, PR, bits(2), LdlmFlags::HAS_INTENT);
    let (cookie, _) = bed
        .server
        .ldlm
        .try_grant(exp, pending.cookie(), FILE, LdlmType::IBITS, PR, bits(2))
        .unwrap();
    let reply = bed.server.ldlm.reply_for(cookie).unwrap();
    let mut wait = Box::pin(b.ibits(EX, 2));
    assert!(timeout(SOON, &mut wait).await.is_err());
    let lock = a.ns.finish(pending, &reply, 0).unwrap();
    assert!(lock.is_blocked());
    drop(lock);
    timeout(SOON, wait).await.unwrap().unwrap();
    let none =
        a.ns.prepare(FILE, LdlmType::IBITS, PR, bits(2), LdlmFlags::HAS_INTENT);
    assert!(
        a.ns.finish(none, &LdlmReply::default(), ELDLM_LOCK_ABORTED)
            .is_none()
    );
    assert_eq!(a.ns.locks().iter().filter(|l| l.res == FILE).count(), 0);
}

fn export_of(bed: &Bed, c: &Client) -> ExportId {
    *bed.server
        .exports
        .peers
        .lock()
        .iter()
        .find(|(_, p)| p.nid == c.node.nid())
        .unwrap()
        .0
}

#[tokio::test(start_paused = true)]
async fn the_completion_may_overtake_the_reply() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let held = b.ibits(EX, 2).await.unwrap();
    let pending = a.ns.prepare(FILE, LdlmType::IBITS, PR, bits(2), NO_FLAGS);
    let reply = bed
        .server
        .ldlm
        .enqueue(export_of(&bed, a), &pending.request())
        .await
        .unwrap()
        .reply;
    assert!(reply.flags.contains(LdlmFlags::BLOCK_GRANTED));
    drop(held);
    sleep(SOON).await;
    assert_eq!(bed.server.callbacks(), ["BL", "CP"]);
    let lock = a.ns.finish(pending, &reply, 0).unwrap();
    assert_eq!((lock.mode(), lock.info().remote_cookie), (PR, reply.handle));
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn who_is_waited_for_learns_it_with_the_grant() {
    let bed = Bed::new(3).await;
    let [a, b, c] = &bed.clients[..] else {
        unreachable!()
    };
    let held = a.ibits(EX, 2).await.unwrap();
    let mut second = Box::pin(b.ibits(EX, 2));
    assert!(timeout(SOON, &mut second).await.is_err());
    let mut third = Box::pin(c.ibits(EX, 2));
    assert!(timeout(SOON, &mut third).await.is_err());
    drop(held);
    let got = timeout(SOON, second).await.unwrap().unwrap();
    assert!(got.is_blocked());
    assert_eq!(
        bed.server.callbacks(),
        ["BL", "CP"],
        "no second blocking callback"
    );
    drop(got);
    timeout(SOON, third).await.unwrap().unwrap();
    // A grant like that starts the clock too.
    let kept = a.ibits(EX, 2).await.unwrap();
    let mut second = Box::pin(b.ibits(EX, 2));
    assert!(timeout(SOON, &mut second).await.is_err());
    let third = c.ibits(EX, 2);
    drop(kept);
    let start = tokio::time::Instant::now();
    let (never_dropped, third) = tokio::join!(second, third);
    assert!(third.is_ok() && start.elapsed() >= Duration::from_secs(100));
    assert!(never_dropped.is_ok() && bed.server.exports.evicted.lock().len() == 1);
}

#[tokio::test(start_paused = true)]
async fn convert_keeps_the_other_bits() {
    let bed = Bed::new(2).await;
    let [a, b] = &bed.clients[..] else {
        unreachable!()
    };
    let held = a.ibits(PR, 0x13).await.unwrap();
    let mut wait = Box::pin(b.ibits(EX, 2));
    assert!(timeout(SOON, &mut wait).await.is_err());
    let exp = export_of(&bed, a);
    let info = held.info();
    let desc = LockDesc::new(FILE, LdlmType::IBITS, PR, &bits(0x11));
    // as kernel clients leave it out
    let desc = LockDesc {
        resource: Default::default(),
        ..desc
    };
    let rep = bed
        .server
        .ldlm
        .convert(
            exp,
            &LdlmRequest::enqueue(NO_FLAGS, desc, info.remote_cookie),
        )
        .unwrap()
        .unwrap();
    assert_eq!((rep.handle, rep.desc.policy()), (info.cookie, bits(0x11)));
    timeout(SOON, wait).await.unwrap().unwrap();
    sleep(Duration::from_secs(200)).await;
    assert!(
        bed.server.exports.evicted.lock().is_empty(),
        "a converted lock is waiting no longer"
    );
    assert!(
        bed.server
            .ldlm
            .convert(exp, &LdlmRequest::enqueue(NO_FLAGS, desc, 5))
            .unwrap()
            .is_none()
    );
}
