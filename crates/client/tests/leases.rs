//! Leases, and what a kernel client sends for `lfs migrate -m`: a bare import beside mounts of Coral.

mod common;
#[path = "../../server/tests/mdt_rig/client.rs"]
mod stock;

use coral_client::SetAttr;
use coral_wire::layout::{LmvUserMd, hash_flag};
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{disp, md};
use coral_wire::{Errno, Fid};

use common::{Cluster, FSNAME, SERVER, User};
use stock::Client;

const S_IFREG: u32 = 0o100_644;
const S_IFDIR: u32 = 0o040_755;

/// A client of MDT `index` that is not Coral.
async fn stock(c: &Cluster, index: u32) -> Client {
    let node = c.remote_node().await.expect("a node");
    let target = format!("{FSNAME}-MDT{index:04x}_UUID");
    Client::connect(node, &target, SERVER, 0).await
}

fn to(mdt: u32) -> bytes::Bytes {
    LmvUserMd::request(1, mdt, hash_flag::FIXED).encode()
}

/// The MDT of a path.
async fn mdt_of(u: &User, path: &str) -> String {
    let fid = u.fid(path).await.expect("it is there");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.mdt").await.unwrap();
    String::from_utf8_lossy(&raw).into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_one_clients_until_others_write() {
    let c = Cluster::start_mdts(1, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let (a, b) = (stock(&c, 0).await, stock(&c, 0).await);
    let fid = u.put("f", b"data").await.unwrap();
    let o = a.lease(fid).await.unwrap();
    let both = disp::OPEN_LOCK | disp::OPEN_LEASE;
    assert_eq!((o.disp & both, o.lock), (both, Some(Ibits::OPEN.0)));
    assert_eq!(b.lease(fid).await.err(), Some(Errno::EBUSY));
    // who reads does no harm
    assert_eq!(u.get("f").await.unwrap(), b"data");
    assert!(a.has_lock(&o));
    let fh = u.open("f", libc::O_WRONLY).await.unwrap();
    assert!(!a.has_lock(&o), "a writer ends it");
    a.close(&o).await.unwrap();

    // one writer is let through, two are not
    let o = b.lease(fid).await.unwrap();
    b.close(&o).await.unwrap();
    let second = u.open("f", libc::O_WRONLY).await.unwrap();
    let third = c.remote_client().await;
    let v = User::root(&third);
    let other = v.open("f", libc::O_WRONLY).await.unwrap();
    assert_eq!(a.lease(fid).await.err(), Some(Errno::EBUSY));
    v.close(&other).await.unwrap();
    for fh in [&fh, &second] {
        u.close(fh).await.unwrap();
    }
    let o = a.lease(fid).await.unwrap();
    let cut = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    u.fs.setattr(&u.cred, fid, cut, None).await.unwrap();
    assert!(!a.has_lock(&o), "a truncate ends it");
    a.close(&o).await.unwrap();
    let dir = u.mkdir("d").await.unwrap();
    assert_eq!(a.lease(dir).await.err(), Some(Errno::EISDIR));
}

#[tokio::test(start_paused = true)]
async fn a_kernel_client_moves_a_leased_file_and_closes_it_with_that() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let (s0, s1) = (stock(&c, 0).await, stock(&c, 1).await);
    let dir = u.mkdir("d").await.unwrap();
    let fid = u.put("d/f", b"what is in it").await.unwrap();
    assert_eq!(mdt_of(&u, "d/f").await, "0");
    let o = s0.lease(fid).await.unwrap();
    let new = s1.fids(1)[0];
    let done = s0
        .migrate((dir, b"f"), (S_IFREG, new), Some(&o), to(1))
        .await;
    assert_ne!(done.unwrap().valid & md::CLOSE_INTENT_EXECED, 0);
    assert_eq!(s0.close(&o).await, Err(Errno::ESTALE), "it was closed");
    assert_eq!(
        (mdt_of(&u, "d/f").await, u.fid("d/f").await),
        ("1".into(), Ok(new))
    );
    assert_eq!(u.get("d/f").await.unwrap(), b"what is in it");
    // it can be written and leased again where it is
    let o = s1.lease(new).await.unwrap();
    u.put("d/g", b"").await.unwrap();
    s1.close(&o).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leased_file_that_others_have_open_stays_and_so_does_its_handle() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let (s0, s1) = (stock(&c, 0).await, stock(&c, 1).await);
    let dir = u.mkdir("d").await.unwrap();
    let fid = u.put("d/f", b"old").await.unwrap();
    let o = s0.lease(fid).await.unwrap();
    let fh = u.open("d/f", libc::O_RDWR).await.unwrap();
    let new = s1.fids(1)[0];
    let done = s0
        .migrate((dir, b"f"), (S_IFREG, new), Some(&o), to(1))
        .await;
    assert_eq!(done.err(), Some(Errno::EALREADY));
    s0.close(&o).await.unwrap();
    u.write(&fh, 0, b"new").await.unwrap();
    u.close(&fh).await.unwrap();
    assert_eq!(u.fid("d/f").await, Ok(fid));
    assert_eq!(u.get("d/f").await.unwrap(), b"new");
}

/// The walk of `lfs migrate -m`: the directory, what is in it, and the end.
#[tokio::test(start_paused = true)]
async fn a_kernel_client_moves_a_directory() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let (s0, s1) = (stock(&c, 0).await, stock(&c, 1).await);
    u.mkdir("d").await.unwrap();
    let fids = [
        u.put("d/f", b"f").await.unwrap(),
        u.put("d/g", b"g").await.unwrap(),
    ];
    let held = u.open("d/g", libc::O_RDONLY).await.unwrap();
    let new = s1.fids(3);
    let done = s1
        .migrate((Fid::ROOT, b"d"), (S_IFDIR, new[0]), None, to(1))
        .await;
    assert_eq!(done.unwrap().valid, 0);
    for (i, name) in [b"f", b"g"].into_iter().enumerate() {
        let o = s0.lease(fids[i]).await.unwrap();
        let done = s0
            .migrate((new[0], name), (S_IFREG, new[i + 1]), Some(&o), to(1))
            .await;
        assert_ne!(
            done.unwrap().valid & md::CLOSE_INTENT_EXECED,
            0,
            "also where only the name moves"
        );
        assert_eq!(s0.close(&o).await, Err(Errno::ESTALE));
    }
    let end = s1.setxattr(new[0], b"trusted.lmv", Some(&to(1)), 0).await;
    end.unwrap();
    assert_eq!(u.fid("d").await, Ok(new[0]));
    assert_eq!(
        (mdt_of(&u, "d").await, mdt_of(&u, "d/f").await),
        ("1".into(), "1".into())
    );
    assert_eq!(
        (u.fid("d/g").await, u.get("d/f").await.unwrap()),
        (Ok(fids[1]), b"f".to_vec())
    );
    assert_eq!(u.read(&held, 0, 9).await.unwrap(), b"g");
    u.close(&held).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn data_on_the_mdt_has_a_version_that_changes_with_it() {
    let c = Cluster::start_mdts(1, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let s = stock(&c, 0).await;
    u.dom_dir("d", 1).await;
    let fid = u.put("d/f", b"1").await.unwrap();
    let first = s.data_version(fid).await.unwrap();
    assert_eq!(s.data_version(fid).await, Ok(first));
    u.put("d/f", b"2").await.unwrap();
    assert_ne!(s.data_version(fid).await, Ok(first));
    assert_eq!(s.data_version(Fid::ROOT).await, Err(Errno::EBADF));
}
