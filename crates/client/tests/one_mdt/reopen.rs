//! A name that another client replaces between lookup and open, as often as it likes: the open still gets a whole file.

use std::sync::Arc;

use crate::common::{Cluster, User};
use coral_client::Llite;
use coral_client::llite::types::{Cred, SetAttr};
use coral_wire::Errno;

fn thread(pid: u32) -> Cred {
    Cred {
        pid,
        ..Cred::root()
    }
}

async fn replace(user: &User, text: &str) {
    user.put("new", text.as_bytes()).await.unwrap();
    user.rename("new", "f", 0).await.unwrap();
}

async fn find(fs: &Arc<Llite>, who: &Cred) -> coral_wire::fid::Fid {
    fs.lookup(who, fs.root(), b"f").await.unwrap().attr.fid
}

/// A cluster, two clients, and a thread of the first of them whose open with `flags` found "f" replaced by the other.
async fn lost(flags: i32) -> (Cluster, Arc<Llite>, User, Cred) {
    let cluster = Cluster::start(2, 1, 1 << 20).await;
    let (mine, theirs) = (cluster.client().await, cluster.remote_client().await);
    let (them, me) = (User::root(&theirs), thread(7));
    replace(&them, "one").await;
    let gone = find(&mine, &me).await;
    replace(&them, "two").await;
    assert_eq!(
        mine.open(&me, gone, flags as u32)
            .await
            .err()
            .map(Errno::from),
        Some(Errno::ENOENT)
    );
    (cluster, mine, them, me)
}

#[tokio::test]
async fn the_second_walk_of_a_path_opens_what_it_finds() {
    let (cluster, mine, them, me) = lost(libc::O_RDWR).await;
    // the thread walks once more; both of its lookups find other files, and the last of them is replaced as well
    let first = find(&mine, &me).await;
    replace(&them, "three").await;
    let second = find(&mine, &me).await;
    replace(&them, "four").await;
    assert_ne!(first, second);
    let fh = mine.open(&me, second, libc::O_RDWR as u32).await.unwrap();
    assert_eq!(
        mine.read(&fh, 0, 100).await.unwrap().copy_to_bytes(),
        "three"
    );
    mine.release(&fh).await.unwrap();

    // and then it is as any other: nothing is opened along, nothing stays open
    let now = find(&mine, &me).await;
    let fh = mine.open(&me, now, libc::O_RDONLY as u32).await.unwrap();
    assert_eq!(
        mine.read(&fh, 0, 100).await.unwrap().copy_to_bytes(),
        "four"
    );
    mine.release(&fh).await.unwrap();
    cluster.stop().await;
}

/// The kernel found the file gone when it asked for attributes, to check permissions, and has not said yet how it will open. Its
/// flags have `O_LARGEFILE` in every 64-bit program.
#[tokio::test]
async fn a_check_that_came_too_late_opens_whatever_the_flags() {
    const LARGEFILE: i32 = 0o100_000;
    for flags in [
        libc::O_RDONLY,
        libc::O_RDWR,
        libc::O_RDONLY | libc::O_NOATIME,
    ] {
        let cluster = Cluster::start(2, 1, 1 << 20).await;
        let (mine, theirs) = (cluster.client().await, cluster.remote_client().await);
        let (them, me) = (User::root(&theirs), thread(7));
        replace(&them, "one").await;
        let gone = find(&mine, &me).await;
        replace(&them, "two").await;
        assert_eq!(
            mine.getattr(&me, gone, None).await.err().map(Errno::from),
            Some(Errno::ENOENT)
        );
        let found = find(&mine, &me).await;
        replace(&them, "three").await;
        let (fh, sent) = crate::common::rpcs(&mine, async {
            mine.open(&me, found, (flags | LARGEFILE) as u32)
                .await
                .unwrap()
        })
        .await;
        // what its lookup opened is what it gets, unless it must be opened in another way
        let again = sent.iter().any(|(name, _)| name == "LDLM_ENQUEUE");
        assert_eq!(again, flags != libc::O_RDONLY, "{sent:?}");
        assert_eq!(mine.read(&fh, 0, 100).await.unwrap().copy_to_bytes(), "two");
        mine.release(&fh).await.unwrap();
        cluster.stop().await;
    }
}

#[tokio::test]
async fn what_nobody_comes_for_is_closed() {
    let (cluster, mine, _them, me) = lost(libc::O_RDONLY).await;
    let (_, sent) = crate::common::rpcs(&mine, async {
        find(&mine, &me).await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    })
    .await;
    assert!(
        sent.iter().any(|(name, n)| name == "MDS_CLOSE" && *n == 1),
        "{sent:?}"
    );
    cluster.stop().await;
}

/// The open that is to cut is a write already when it goes along with a lookup: what is being executed is not opened for it.
#[tokio::test]
async fn what_is_executed_is_not_cut_by_a_second_walk() {
    const EXEC: u32 = 0o40;
    let flags = libc::O_RDONLY | libc::O_TRUNC;
    let (cluster, mine, them, me) = lost(flags).await;
    let now = find(&mine, &thread(8)).await;
    mine.setattr(
        &thread(8),
        now,
        SetAttr {
            mode: Some(0o755),
            ..SetAttr::default()
        },
        None,
    )
    .await
    .unwrap();
    let running = mine.open(&thread(8), now, EXEC).await.unwrap();
    let found = find(&mine, &me).await;
    assert_eq!(found, now);
    assert_eq!(
        mine.open(&me, found, flags as u32)
            .await
            .err()
            .map(Errno::from),
        Some(Errno::ETXTBSY)
    );
    assert_eq!(them.get("f").await.unwrap(), b"two");
    mine.release(&running).await.unwrap();
    let fh = mine.open(&me, found, flags as u32).await.unwrap();
    assert_eq!(them.get("f").await.unwrap(), b"");
    mine.release(&fh).await.unwrap();
    cluster.stop().await;
}
