//! Files, directories and trees that move to other MDTs (`lfs migrate -m`), while others use them.

mod common;
mod several;

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_client::llite::MigrateRequest;
use coral_wire::layout::{LmvUserMd, LmvUserMdsData, hash_flag, hash_type};
use coral_wire::{Errno, Fid};

use common::{Cluster, Result, User};
use several::{end, mkdir_as, mkdir_on, mkdir_over, path_of};

/// As `lfs migrate -m` asks for it.
fn to(count: u32, mdt: u32) -> LmvUserMd {
    LmvUserMd::request(count, mdt, hash_flag::FIXED)
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Moves one name.
async fn step(u: &User, path: &str, lum: &LmvUserMd) -> Result<()> {
    let (dir, name) = split(path);
    let parent = u.fid(dir).await?;
    let rq = MigrateRequest {
        name_only: false,
        name: Bytes::copy_from_slice(name.as_bytes()),
        lum: lum.clone(),
    };
    u.fs.setxattr(&u.cred, parent, b"lustre.migrate", rq.encode(), 0)
        .await
        .map_err(Errno::from)
}

async fn finish(u: &User, path: &str, lum: &LmvUserMd) -> Result<()> {
    let dir = u.fid(path).await?;
    u.fs.setxattr(&u.cred, dir, b"lustre.lmv", lum.encode(), 0)
        .await
        .map_err(Errno::from)
}

fn again(done: Result<()>) -> Result<()> {
    match done {
        Err(Errno::EALREADY) => Ok(()),
        done => done,
    }
}

/// Moves a tree, as `lfs migrate -m` walks it.
async fn migrate(u: &User, path: &str, lum: &LmvUserMd) -> Result<()> {
    again(step(u, path, lum).await)?;
    let is_dir = u.stat(path).await?.is_dir();
    if !is_dir {
        return Ok(());
    }
    for name in u.names(path).await? {
        match Box::pin(migrate(u, &format!("{path}/{name}"), lum)).await {
            // another took it away
            Err(Errno::ENOENT) => {}
            done => done?,
        }
    }
    again(finish(u, path, lum).await)
}

/// Which MDT something lies on.
async fn mdt_of(u: &User, path: &str) -> u32 {
    let fid = u.fid(path).await.expect("it is there");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.mdt").await.unwrap();
    String::from_utf8_lossy(&raw).parse().unwrap()
}

/// How a directory lies on MDTs: of each shard its MDT, and the hash type.
async fn layout_of(u: &User, path: &str) -> (Vec<u32>, u32) {
    let fid = u.fid(path).await.expect("the directory");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.lmv").await;
    let l = LmvUserMd::decode(&raw.expect("a layout")).expect("a layout");
    let mdts = l.objects.iter().map(|o| o.mds).collect();
    (mdts, l.head.hash_type)
}

const FNV: u32 = hash_type::FNV_1A_64 | hash_flag::FIXED;

#[tokio::test(start_paused = true)]
async fn a_directory_moves_with_what_is_in_it() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    u.mkdir("d").await.unwrap();
    u.mkdir("d/sub").await.unwrap();
    for i in 0..12 {
        let path = format!("d/f{i}");
        u.put(&path, path.as_bytes()).await.unwrap();
    }
    u.put("d/sub/x", b"deep").await.unwrap();
    assert_eq!(v.names("d").await.unwrap().len(), 13);
    let before = v.stat("d/f3").await.unwrap();
    migrate(&u, "d", &to(1, 1)).await.unwrap();
    for who in [&v, &u] {
        assert_eq!(layout_of(who, "d").await, (vec![1], FNV));
        assert_eq!(who.names("d").await.unwrap().len(), 13);
        assert_eq!(who.stat("d").await.unwrap().nlink, 3);
        for i in 0..12 {
            let path = format!("d/f{i}");
            assert_eq!(who.get(&path).await.unwrap(), path.as_bytes());
            assert_eq!(mdt_of(who, &path).await, 1);
        }
        assert_eq!(who.get("d/sub/x").await.unwrap(), &b"deep"[..]);
        assert_eq!(mdt_of(who, "d/sub/x").await, 1);
        let fid = who.fid("d/sub/x").await.unwrap();
        assert_eq!(path_of(who, fid).await, "d/sub/x");
    }
    let after = v.stat("d/f3").await.unwrap();
    assert_ne!(after.fid, before.fid);
    let same = |a: &coral_client::Attr| (a.mode, a.uid, a.gid, a.nlink, a.size, a.mtime, a.ctime);
    assert_eq!(same(&after), same(&before));
    // what was done is done
    assert_eq!(step(&u, "d", &to(1, 1)).await, Err(Errno::EALREADY));
    migrate(&u, "d", &to(1, 1)).await.unwrap();
    // to several, and with a list, and back
    let mut list = to(2, 2);
    list.head.magic = coral_wire::layout::LMV_MAGIC_STRIPE;
    list.objects = [2, 0].map(|mds| LmvUserMdsData { mds, ..Default::default() }).to_vec();
    for (lum, mdts) in [(to(2, 1), vec![1, 2]), (list, vec![2, 0]), (to(3, 0), vec![0, 1, 2]), (to(1, 0), vec![0])] {
        migrate(&v, "d", &lum).await.unwrap();
        assert_eq!(layout_of(&u, "d").await, (mdts, FNV));
        assert_eq!(u.names("d").await.unwrap().len(), 13);
        for i in 0..12 {
            let path = format!("d/f{i}");
            assert_eq!(u.get(&path).await.unwrap(), path.as_bytes());
        }
        u.put("d/sub/y", b"new").await.unwrap();
        v.unlink("d/sub/y").await.unwrap();
    }
    for i in 0..12 {
        v.unlink(&format!("d/f{i}")).await.unwrap();
    }
    u.unlink("d/sub/x").await.unwrap();
    v.rmdir("d/sub").await.unwrap();
    u.rmdir("d").await.unwrap();
    assert_eq!(v.stat("").await.unwrap().nlink, 2);
    end(&c, &[&fs, &other]).await;
}
