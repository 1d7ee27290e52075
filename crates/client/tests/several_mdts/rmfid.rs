//! Objects that are removed by their FIDs, with all of their names (`lfs rmfid`).

use bytes::Bytes;
use coral_wire::{Errno, Fid};

use crate::common::{Cluster, Result, User};
use crate::several::{end, mkdir_on, mkdir_over};

async fn rmfid(u: &User, fid: Fid) -> Result<()> {
    let text = Bytes::from(fid.to_string());
    let set =
        u.fs.setxattr(&u.cred, u.fs.root(), b"lustre.rmfid", text, 0);
    set.await.map_err(Errno::from)
}

#[tokio::test(start_paused = true)]
async fn an_object_goes_with_all_of_its_names() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "a", 0).await.unwrap();
    mkdir_on(&u, "b", 1).await.unwrap();
    mkdir_over(&u, "s", 3, 0).await.unwrap();
    let dirs = ["a", "b", "s"];
    for home in dirs {
        let first = format!("{home}/first");
        u.put(&first, b"contents").await.unwrap();
        let fid = u.fid(&first).await.unwrap();
        // more than are looked at together
        for i in 0..150 {
            let name = format!("{}/l{i}", dirs[i % 3]);
            u.link(&first, &name).await.unwrap();
        }
        // names are cached here
        assert_eq!(v.fid("a/l0").await, Ok(fid));
        rmfid(&u, fid).await.unwrap();
        for dir in dirs {
            assert_eq!(v.names(dir).await, Ok(vec![]), "{dir}");
        }
        assert_eq!(v.fid("a/l0").await, Err(Errno::ENOENT));
        assert_eq!(rmfid(&u, fid).await, Err(Errno::ENOENT));
    }
    for dir in dirs {
        v.rmdir(dir).await.unwrap();
    }
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_in_use_stays() {
    let c = Cluster::start_mdts(2, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    let open = v.create("open", libc::O_RDWR).await.unwrap();
    let file = u.fid("open").await.unwrap();
    assert_eq!(rmfid(&u, file).await, Err(Errno::EBUSY));
    let joe = User::new(&fs, 100, 100);
    assert_eq!(rmfid(&joe, file).await, Err(Errno::EPERM));
    v.close(&open).await.unwrap();
    rmfid(&u, file).await.unwrap();
    // directories go when they are empty, also those in shards
    let plain = mkdir_on(&u, "d", 1).await.unwrap();
    let striped = mkdir_over(&u, "s", 2, 1).await.unwrap();
    for (name, fid) in [("d", plain), ("s", striped)] {
        let inside = format!("{name}/x");
        u.put(&inside, b"x").await.unwrap();
        assert_eq!(rmfid(&u, fid).await, Err(Errno::ENOTEMPTY));
        v.unlink(&inside).await.unwrap();
        rmfid(&u, fid).await.unwrap();
        assert_eq!(v.fid(name).await, Err(Errno::ENOENT));
    }
    assert_eq!(rmfid(&u, Fid::ROOT).await, Err(Errno::EINVAL));
    end(&c, &[&fs, &other]).await;
}
