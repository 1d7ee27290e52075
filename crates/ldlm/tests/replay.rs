//! The server restarts and has forgotten everything: clients bring their locks back.

mod common;
use common::*;

use coral_wire::ldlm::*;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn granted_and_waiting_locks_survive_a_restart() {
    let mut bed = Bed::new(2).await;
    let held = bed.clients[0].ibits(EX, 3).await.unwrap();
    let (wide, _) = bed.clients[1].extent(PW, 0, 4095).await.unwrap();
    bed.clients[0]
        .setlk(PW, range(0, 99, 1), true)
        .await
        .unwrap();
    bed.clients[0].unlock(range(40, 59, 1)).await;
    let ns = bed.clients[1].ns.clone();
    let waiter = tokio::spawn(async move {
        ns.enqueue(FILE, LdlmType::IBITS, PR, bits(2), NO_FLAGS, 0)
            .await
    });
    sleep(SOON).await;
    assert_eq!(bed.server.ldlm.counts().0, 5);
    let before: Vec<_> = bed.server.ldlm.locks().iter().map(|l| l.cookie).collect();

    bed.restart_server().await;
    // The next ping of each finds that the server knows nothing, and starts the recovery.
    sleep(Duration::from_secs(60)).await;
    let after = bed.server.ldlm.locks();
    assert_eq!(after.len(), 5, "{after:?}");
    assert!(
        after.iter().all(|l| !before.contains(&l.cookie)),
        "cookies of another life mean nothing"
    );
    assert_eq!(wide.policy(), Policy::extent(0, u64::MAX));
    bed.check_agreement();
    let waiting: Vec<_> = after
        .iter()
        .filter(|l| l.granted_mode == LdlmMode::NONE)
        .collect();
    assert_eq!((waiting.len(), waiting[0].req_mode), (1, PR));
    assert!(held.is_blocked(), "asked again after the replay");
    drop(held);
    let got = timeout(SOON, waiter).await.unwrap().unwrap().unwrap().0;
    assert_eq!(got.mode(), PR);

    // The flock is in two parts there too.
    let b = &bed.clients[1];
    b.setlk(PW, range(40, 59, 9), false).await.unwrap();
    assert!(b.setlk(PW, range(60, 60, 9), false).await.is_err());
    bed.check_agreement();
}

#[tokio::test(start_paused = true)]
async fn an_idle_lock_stays_usable_over_a_restart() {
    let mut bed = Bed::new(1).await;
    drop(bed.clients[0].ibits(PR, 3).await.unwrap());
    bed.restart_server().await;
    sleep(Duration::from_secs(60)).await;
    let c = &bed.clients[0];
    assert!(
        c.ns.match_lock(&FILE, LdlmType::IBITS, PR, &bits(1))
            .is_some()
    );
    assert_eq!((c.hook.count(), bed.server.ldlm.counts().0), (0, 1));
    c.ns.cancel_all().await;
    assert_eq!(bed.server.ldlm.counts().0, 0, "the new cookie is used");
}
