//! What a write takes from a file, across clients; what an open file may go on doing; what is left of what was removed.

use crate::common::*;
use coral_client::SetAttr;
use coral_wire::Errno;

const CAPABILITY: &[u8] = b"security.capability";

async fn chmod(u: &User, path: &str, mode: u32) {
    let fid = u.fid(path).await.unwrap();
    u.fs.setattr(
        &u.cred,
        fid,
        SetAttr {
            mode: Some(mode),
            ..Default::default()
        },
        None,
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn a_write_takes_setuid_that_another_client_set_meanwhile() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (a, b) = (c.client().await, c.client().await);
    let (root, user) = (User::root(&b), User::new(&a, 7, 7));
    root.put("f", b"old").await.unwrap();
    chmod(&root, "f", 0o777).await;
    let fh = user.open("f", libc::O_WRONLY).await.unwrap();
    user.write(&fh, 0, b"new").await.unwrap();
    for after in [0o755, 0o711] {
        // the file is no longer the writer's to open; the descriptor stays
        chmod(&root, "f", 0o6000 | after).await;
        user.write(&fh, 0, b"new").await.unwrap();
        for fs in [&a, &b] {
            let mode = User::root(fs).stat("f").await.unwrap().mode & 0o7777;
            assert_eq!(mode, after, "nothing but the bits goes");
        }
    }
    // root's write leaves them
    chmod(&root, "f", 0o4755).await;
    let by_root = User::root(&a).open("f", libc::O_WRONLY).await.unwrap();
    User::root(&a).write(&by_root, 0, b"root").await.unwrap();
    assert_eq!(root.stat("f").await.unwrap().mode & 0o7777, 0o4755);
    for fs in [a, b] {
        fs.umount().await;
    }
    c.stop().await;
}

#[tokio::test]
async fn a_write_ends_capabilities_whoever_writes() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let (a, b) = (c.client().await, c.client().await);
    let (root, owner, other) = (User::root(&b), User::new(&a, 7, 7), User::new(&a, 8, 8));
    let fid = root.put("f", b"old").await.unwrap();
    root.fs
        .setattr(
            &root.cred,
            fid,
            SetAttr {
                uid: Some(7),
                mode: Some(0o766),
                ..Default::default()
            },
            None,
        )
        .await
        .unwrap();
    let there = async || match b.getxattr(&root.cred, fid, CAPABILITY).await {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.errno(), Errno::ENODATA);
            false
        }
    };
    for u in [&owner, &other, &User::root(&a)] {
        let fh = u.open("f", libc::O_WRONLY).await.unwrap();
        for _ in 0..2 {
            u.write(&fh, 0, b"new").await.unwrap();
            b.setxattr(
                &root.cred,
                fid,
                CAPABILITY,
                bytes::Bytes::from_static(b"caps"),
                0,
            )
            .await
            .unwrap();
            assert!(there().await);
            u.write(&fh, 0, b"new").await.unwrap();
            assert!(!there().await, "written by uid {}", u.cred.uid);
        }
        u.close(&fh).await.unwrap();
    }
    for fs in [a, b] {
        fs.umount().await;
    }
    c.stop().await;
}

#[tokio::test]
async fn an_open_file_is_cut_by_whoever_holds_it() {
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.client().await;
    let (root, user) = (User::root(&fs), User::new(&fs, 7, 7));
    let fid = root.put("f", b"0123456789").await.unwrap();
    chmod(&root, "f", 0o600).await;
    let fh = root.open("f", libc::O_RDWR).await.unwrap();
    let cut = |size| SetAttr {
        size: Some(size),
        ..Default::default()
    };
    assert_eq!(
        fs.setattr(&user.cred, fid, cut(4), None)
            .await
            .err()
            .map(Errno::from),
        Some(Errno::EACCES)
    );
    assert_eq!(
        fs.setattr(&user.cred, fid, cut(4), Some(&fh))
            .await
            .unwrap()
            .attr
            .size,
        4
    );
    let reader = root.open("f", libc::O_RDONLY).await.unwrap();
    assert_eq!(
        fs.setattr(&user.cred, fid, cut(2), Some(&reader))
            .await
            .err()
            .map(Errno::from),
        Some(Errno::EACCES)
    );
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn what_was_opened_to_be_cut_is_no_writer_afterwards() {
    const EXEC: i32 = 0o40;
    let c = Cluster::start(2, 1, 1 << 20).await;
    let fs = c.client().await;
    let (root, user) = (User::root(&fs), User::new(&fs, 7, 7));
    root.put("f", b"#!/bin/true\n").await.unwrap();
    chmod(&root, "f", 0o711).await;
    let cut = root
        .open("f", libc::O_RDONLY | libc::O_TRUNC)
        .await
        .unwrap();
    assert_eq!(root.stat("f").await.unwrap().size, 0);
    let running = user.open("f", EXEC).await.unwrap();
    assert_eq!(
        root.open("f", libc::O_RDONLY | libc::O_TRUNC).await.err(),
        Some(Errno::ETXTBSY)
    );
    user.close(&running).await.unwrap();
    root.close(&cut).await.unwrap();
    fs.umount().await;
    c.stop().await;
}

#[tokio::test]
async fn a_removed_directory_in_use_still_has_attributes() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let (a, b) = (c.client().await, c.client().await);
    let (u, v) = (User::root(&a), User::root(&b));
    for (name, remover) in [("own", &u), ("foreign", &v)] {
        let fid = u.mkdir(name).await.unwrap();
        let dir = a.opendir(&u.cred, fid).await.unwrap();
        u.mkdir("empty").await.unwrap();
        match name {
            "own" => remover.rename("empty", name, 0).await.unwrap(),
            _ => {
                remover.rmdir(name).await.unwrap();
                remover.rmdir("empty").await.unwrap()
            }
        }
        let attr = a.getattr(&u.cred, fid, None).await.unwrap().attr;
        assert_eq!(
            (attr.mode, attr.nlink),
            (libc::S_IFDIR | 0o755, 0),
            "{name}"
        );
        a.releasedir(&dir).await.unwrap();
        drop(dir);
        a.forget(fid);
        assert_eq!(
            a.getattr(&u.cred, fid, None).await.err().map(Errno::from),
            Some(Errno::ENOENT)
        );
    }
    // a pipe that is removed while the kernel has it open
    let pipe = a
        .mknod(&u.cred, a.root(), b"pipe", libc::S_IFIFO | 0o600, 0)
        .await
        .unwrap()
        .attr
        .fid;
    u.unlink("pipe").await.unwrap();
    assert_eq!(a.getattr(&u.cred, pipe, None).await.unwrap().attr.nlink, 0);
    for fs in [a, b] {
        fs.umount().await;
    }
    c.stop().await;
}
