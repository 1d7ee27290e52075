//! Helpers of tests with several MDTs.

#![allow(dead_code, reason = "each test uses its own part of it")]

pub mod work;

use std::sync::Arc;

use bytes::Bytes;
use coral_client::Llite;
use coral_client::llite::MkdirRequest;
use coral_osd::Kv;
use coral_server::mdt::check_all;
use coral_wire::Fid;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd, hash_type};

use crate::common::{Cluster, Result, User};

/// Makes a directory on an MDT.
pub async fn mkdir_on(u: &User, path: &str, mdt: u32) -> Result<Fid> {
    mkdir_over(u, path, 1, mdt).await
}

/// Makes a directory of so many stripes, the first on that MDT.
pub async fn mkdir_over(u: &User, path: &str, count: u32, mdt: u32) -> Result<Fid> {
    let lum = LmvUserMd::request(count, mdt, hash_type::FNV_1A_64);
    mkdir_as(u, path, lum).await
}

/// Makes a directory as asked for.
pub async fn mkdir_as(u: &User, path: &str, lum: LmvUserMd) -> Result<Fid> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = u.fid(dir).await?;
    let rq = MkdirRequest {
        mode: 0o755,
        name: Bytes::copy_from_slice(name.as_bytes()),
        lum,
    };
    u.fs.setxattr(&u.cred, parent, b"lustre.mkdir", rq.encode(), 0)
        .await?;
    u.fid(path).await
}

pub async fn path_of(u: &User, fid: Fid) -> String {
    let path = u.fs.fid2path(&u.cred, fid).await.expect("a path");
    String::from_utf8_lossy(&path).into_owned()
}

/// All MDTs together have nothing wrong.
pub fn assert_clean(c: &Cluster) {
    let disks: Vec<_> = (0..c.disks.mdt_count())
        .map(|i| c.disks.mdt_number(i))
        .collect();
    let kvs: Vec<&dyn Kv> = disks.iter().map(|d| *d as &dyn Kv).collect();
    let report = check_all(&kvs).expect("readable");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!((report.elsewhere, report.unfinished), (0, 0));
}

/// Lays a directory that is there out over so many shards.
pub async fn restripe(u: &User, path: &str, count: u32, hash: u32) -> Result<()> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = u.fid(dir).await?;
    let rq = MkdirRequest {
        mode: 0,
        name: Bytes::copy_from_slice(name.as_bytes()),
        lum: LmvUserMd::request(count, LMV_OFFSET_DEFAULT, hash),
    };
    let set =
        u.fs.setxattr(&u.cred, parent, b"lustre.restripe", rq.encode(), 0);
    set.await.map_err(coral_wire::Errno::from)
}

/// How a directory lies on MDTs: of each shard its MDT, and the hash type.
pub async fn layout_of(u: &User, path: &str) -> (Vec<u32>, u32) {
    let fid = u.fid(path).await.expect("the directory");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.lmv").await;
    let l = LmvUserMd::decode(&raw.expect("a layout")).expect("a layout");
    let mdts = l.objects.iter().map(|o| o.mds).collect();
    (mdts, l.head.hash_type)
}

/// Waits until no operation over several MDTs is under way.
pub async fn quiet(c: &Cluster) {
    quiet_cluster(c).await;
}

/// The same of any cluster.
pub async fn quiet_cluster(c: &coral_node::Cluster) {
    for _ in 0..600 {
        let mdts = (0..c.disks.mdt_count()).map(|i| c.mdt_number(i).clone());
        let busy = |m: &Arc<coral_server::mdt::Mdt>| {
            let moving = m.ops.restriping().expect("readable");
            m.ops.out.prepared() > 0 || m.ops.trans.unfinished() > 0 || moving > 0
        };
        if !mdts.into_iter().any(|m| busy(&m)) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("operations over several MDTs do not end");
}

pub async fn end(c: &Cluster, clients: &[&Arc<Llite>]) {
    quiet(c).await;
    for fs in clients {
        fs.umount().await;
    }
    c.stop().await;
    assert_clean(c);
}
