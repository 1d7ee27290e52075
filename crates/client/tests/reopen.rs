//! A name that another client replaces between lookup and open, as often as it likes: the open still gets a whole file.

mod common;

use std::sync::Arc;

use common::{Cluster, User};
use coral_client::Llite;
use coral_client::llite::types::Cred;
use coral_wire::Errno;

fn thread(pid: u32) -> Cred {
    Cred { pid, ..Cred::root() }
}

async fn replace(user: &User, text: &str) {
    user.put("new", text.as_bytes()).await.unwrap();
    user.rename("new", "f", 0).await.unwrap();
}

async fn find(fs: &Arc<Llite>, who: &Cred) -> coral_wire::fid::Fid {
    fs.lookup(who, fs.root(), b"f").await.unwrap().attr.fid
}

#[tokio::test]
async fn the_second_walk_of_a_path_opens_what_it_finds() {
    let cluster = Cluster::start(2, 1, 1 << 20).await;
    let (mine, theirs) = (cluster.client().await, cluster.remote_client().await);
    let (them, me) = (User::root(&theirs), thread(7));
    replace(&them, "one").await;

    let gone = find(&mine, &me).await;
    replace(&them, "two").await;
    assert_eq!(mine.open(&me, gone, libc::O_RDWR as u32).await.err(), Some(Errno::ENOENT));

    // the thread walks once more; both of its lookups find other files, and the last of them is replaced as well
    let first = find(&mine, &me).await;
    replace(&them, "three").await;
    let second = find(&mine, &me).await;
    replace(&them, "four").await;
    assert_ne!(first, second);
    let fh = mine.open(&me, second, libc::O_RDWR as u32).await.unwrap();
    assert_eq!(mine.read(&fh, 0, 100).await.unwrap().copy_to_bytes(), "three");
    mine.release(&fh, None).await.unwrap();

    // and then it is as any other: nothing is opened along, nothing stays open
    let now = find(&mine, &me).await;
    let fh = mine.open(&me, now, libc::O_RDONLY as u32).await.unwrap();
    assert_eq!(mine.read(&fh, 0, 100).await.unwrap().copy_to_bytes(), "four");
    mine.release(&fh, None).await.unwrap();
    cluster.stop().await;
}

#[tokio::test]
async fn what_nobody_comes_for_is_closed() {
    let cluster = Cluster::start(2, 1, 1 << 20).await;
    let (mine, theirs) = (cluster.client().await, cluster.remote_client().await);
    let (them, me) = (User::root(&theirs), thread(7));
    replace(&them, "one").await;
    let gone = find(&mine, &me).await;
    replace(&them, "two").await;
    assert!(mine.open(&me, gone, libc::O_RDONLY as u32).await.is_err());

    let (_, sent) = common::rpcs(&mine, async {
        find(&mine, &me).await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    })
    .await;
    assert!(sent.iter().any(|(name, n)| name == "MDS_CLOSE" && *n == 1), "{sent:?}");
    cluster.stop().await;
}
