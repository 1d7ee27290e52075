//! Whom an MDT waits for after its start, how that is seen, settable and cut short; what one client can use up has a bound.

mod mdt_rig;

use std::time::Duration;

use coral_osd::Kv;
use coral_server::Windows;
use coral_server::mdt::table;
use coral_wire::mds::open as flag;
use coral_wire::{Errno, Fid};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn comes_back(c: &Client) {
    let import = c.import.clone();
    tokio::spawn(async move { import.ping().await });
}

fn waited_for(rig: &Rig) -> Vec<(String, bool)> {
    let status = rig.mdt().target.recovery_status();
    status.map_or_else(Vec::new, |s| {
        s.waited_for
            .iter()
            .map(|w| (w.nid.to_string(), w.back))
            .collect()
    })
}

#[tokio::test(start_paused = true)]
async fn who_is_waited_for_is_told_and_recovery_can_be_aborted() -> TestResult {
    let mut rig = Rig::new(0).await;
    let (a, b) = (
        rig.client("10.0.0.8@tcp").await,
        rig.client("10.0.0.9@tcp").await,
    );
    rig.kill().await;
    a.node.shutdown().await;
    rig.restart().await;
    let target = rig.mdt().target.clone();
    let mut both = waited_for(&rig);
    both.sort();
    assert_eq!(
        both,
        [
            ("10.0.0.8@tcp".to_owned(), false),
            ("10.0.0.9@tcp".to_owned(), false)
        ]
    );
    // a longer window, while it runs
    target.set_windows(Windows {
        soft: Duration::from_secs(3600),
        hard: Duration::from_secs(7200),
    });
    comes_back(&b);
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(waited_for(&rig), [("10.0.0.8@tcp".to_owned(), false)]);
    let status = target.recovery_status().expect("in recovery");
    assert_eq!((status.clients, status.left.as_secs()), (2, 2600));
    assert_eq!(target.abort_recovery(), 1);
    assert!(!target.in_recovery() && target.recovery_status().is_none());
    assert_eq!(target.abort_recovery(), 0, "nothing to abort");
    b.mkdir(Fid::ROOT, b"d").await?;
    assert_eq!(b.import.stats().evictions.value(), 0, "it was back in time");
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_shorter_window_ends_a_recovery_under_way() -> TestResult {
    let mut rig = Rig::new(0).await;
    let a = rig.client("10.0.0.8@tcp").await;
    rig.kill().await;
    a.node.shutdown().await;
    rig.restart().await;
    let target = rig.mdt().target.clone();
    target.set_windows(Windows {
        soft: Duration::from_secs(3600),
        hard: Duration::from_secs(3600),
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(target.in_recovery());
    target.set_windows(Windows {
        soft: Duration::from_secs(50),
        hard: Duration::from_secs(50),
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!target.in_recovery());
    rig.stop().await;
    Ok(())
}

/// A client of this machine whose process has ended is not waited for; one that runs is, also when it says nothing.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_certainly_ended_is_not_waited_for() -> TestResult {
    let mut rig = Rig::new(0).await;
    let (a, b) = (
        rig.client("127.0.0.8@tcp").await,
        rig.client("127.0.0.9@tcp").await,
    );
    let dir = b.mkdir(Fid::ROOT, b"d").await?;
    rig.kill().await;
    rig.restart().await;
    assert_eq!(waited_for(&rig).len(), 2, "both run");
    rig.kill().await;
    a.node.shutdown().await;
    drop(a);
    rig.restart().await;
    assert_eq!(waited_for(&rig), [("127.0.0.9@tcp".to_owned(), false)]);
    comes_back(&b);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!rig.mdt().target.in_recovery(), "it waits for nobody else");
    assert_eq!(
        (
            b.lookup(Fid::ROOT, b"d").await?.body.fid1,
            b.import.stats().evictions.value()
        ),
        (dir, 0)
    );
    rig.stop().await;
    Ok(())
}

/// A client that has long done nothing leaves, by a handle of before a restart that it has not noticed, or while the server is
/// away. Nobody has to wait for it.
#[tokio::test(start_paused = true)]
async fn an_idle_client_that_leaves_is_not_waited_for() -> TestResult {
    for away in [0, 60] {
        let mut rig = Rig::new(0).await;
        let (a, b) = (
            rig.client("10.0.0.8@tcp").await,
            rig.client("10.0.0.9@tcp").await,
        );
        rig.kill().await;
        a.import.set_idle_timeout(Duration::from_secs(20));
        tokio::time::sleep(Duration::from_secs(away)).await;
        rig.restart().await;
        let target = rig.mdt().target.clone();
        target.set_windows(Windows {
            soft: Duration::from_secs(3600),
            hard: Duration::from_secs(3600),
        });
        comes_back(&b);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(waited_for(&rig), [], "away for {away} s");
        assert!(!target.in_recovery());
        let evictions = [
            a.import.stats().evictions.value(),
            b.import.stats().evictions.value(),
            target.stats().evictions.value(),
        ];
        assert_eq!(evictions, [0; 3]);
        a.mkdir(Fid::ROOT, b"d").await?;
        rig.stop().await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn open_handles_of_one_client_have_a_bound() -> TestResult {
    let rig = Rig::new(2).await;
    let (a, b) = (
        rig.client("10.0.0.8@tcp").await,
        rig.client("10.0.0.9@tcp").await,
    );
    rig.mdt().ops.core.write().opens.limits.client = 3;
    let mut open = Vec::new();
    for i in 0..3 {
        open.push(
            a.open(
                Fid::ROOT,
                format!("f{i}").as_bytes(),
                flag::CREAT | flag::WRITE,
                0o644,
            )
            .await?,
        );
    }
    let more = a
        .open(Fid::ROOT, b"f3", flag::CREAT | flag::WRITE, 0o644)
        .await;
    assert_eq!(more.err(), Some(Errno::ENFILE));
    assert!(
        a.lookup(Fid::ROOT, b"f3")
            .await
            .is_ok_and(|f| f.body.fid1.is_zero()),
        "what is refused is not made"
    );
    let others = b.open(Fid::ROOT, b"f0", flag::READ, 0).await?;
    a.close(&open[0]).await?;
    let again = a
        .open(Fid::ROOT, b"f3", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    a.close(&again).await?;
    b.close(&others).await?;
    rig.mdt().ops.core.write().opens.limits.all = 2;
    assert_eq!(
        b.open(Fid::ROOT, b"f0", flag::READ, 0).await.err(),
        Some(Errno::ENFILE),
        "of all clients"
    );
    rig.stop().await;
    Ok(())
}

/// More orphans than are looked at at a time: all that nobody has open go.
#[tokio::test(start_paused = true)]
async fn many_orphans_go_after_recovery() -> TestResult {
    let mut rig = Rig::new(2).await;
    let a = rig.client("10.0.0.8@tcp").await;
    for i in 0..600 {
        let name = format!("f{i}");
        a.open(Fid::ROOT, name.as_bytes(), flag::CREAT | flag::WRITE, 0o644)
            .await?;
        a.unlink(Fid::ROOT, name.as_bytes(), false).await?;
    }
    let orphans = |rig: &Rig| {
        rig.mem
            .range(table::ORPHAN, b"", None, 1000)
            .expect("read")
            .len()
    };
    assert_eq!(orphans(&rig), 600);
    rig.kill().await;
    a.node.shutdown().await;
    rig.restart().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(orphans(&rig), 0);
    rig.stop().await;
    Ok(())
}

/// A file without a name that two clients had open stays for the second when the first leaves, or has closed it, before that one is back.
#[tokio::test(start_paused = true)]
async fn an_open_file_without_a_name_waits_for_all_who_had_it_open() -> TestResult {
    for closed in [false, true] {
        let mut rig = Rig::new(2).await;
        let (a, b) = (
            rig.client("10.0.0.8@tcp").await,
            rig.client("10.0.0.9@tcp").await,
        );
        let mine = a
            .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
            .await?;
        let theirs = b.open(Fid::ROOT, b"f", flag::READ, 0).await?;
        a.unlink(Fid::ROOT, b"f", false).await?;
        if closed {
            a.close(&mine).await?;
        }
        rig.kill().await;
        rig.restart().await;
        let target = rig.mdt().target.clone();
        target.set_windows(Windows {
            soft: Duration::from_secs(3600),
            hard: Duration::from_secs(3600),
        });
        comes_back(&a);
        while waited_for(&rig).iter().all(|(_, back)| !back) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(
            target.stats().replayed_requests.value() > 0 && target.in_recovery(),
            "closed {closed}"
        );
        assert!(!waited_for(&rig).contains(&("10.0.0.9@tcp".to_owned(), true)));
        rig.evict(&a);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(target.in_recovery(), "closed {closed}");
        comes_back(&b);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!target.in_recovery());
        assert_eq!(
            b.getattr(theirs.body.fid1).await?.nlink,
            0,
            "closed {closed}"
        );
        b.close(&theirs).await?;
        assert_eq!(rig.mem.range(table::ORPHAN, b"", None, 10)?.len(), 0);
        assert_eq!(b.getattr(theirs.body.fid1).await.err(), Some(Errno::ENOENT));
        rig.stop().await;
    }
    Ok(())
}

/// The same when nobody else comes back to it: it goes with the end of recovery.
#[tokio::test(start_paused = true)]
async fn what_the_last_to_come_back_leaves_goes_with_the_end_of_recovery() -> TestResult {
    let mut rig = Rig::new(2).await;
    let (a, b) = (
        rig.client("10.0.0.8@tcp").await,
        rig.client("10.0.0.9@tcp").await,
    );
    a.open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    b.open(Fid::ROOT, b"f", flag::READ, 0).await?;
    a.unlink(Fid::ROOT, b"f", false).await?;
    rig.kill().await;
    b.node.shutdown().await;
    rig.restart().await;
    comes_back(&a);
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.evict(&a);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(rig.mdt().target.in_recovery());
    assert_eq!(rig.mem.range(table::ORPHAN, b"", None, 10)?.len(), 1);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!rig.mdt().target.in_recovery());
    assert_eq!(rig.mem.range(table::ORPHAN, b"", None, 10)?.len(), 0);
    rig.stop().await;
    Ok(())
}
