//! What an MDT lets whom do with a file, request by request: executing, cutting, appending, ACLs, and what a write takes away.

mod mdt_rig;

use bytes::Bytes;
use coral_wire::layout::{LOV_OFFSET_DEFAULT, LovMd};
use coral_wire::mds::{MdtIoepoch, attr as sa, fl, open as flag};
use coral_wire::{Errno, Fid, Wire};
use mdt_rig::client::Found;
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const CAPABILITY: &[u8] = b"security.capability";

/// A file of root's, closed.
async fn file(c: &Client, name: &[u8], mode: u32) -> Result<Fid, Errno> {
    let o = c
        .open(Fid::ROOT, name, flag::CREAT | flag::WRITE, mode)
        .await?;
    c.close(&o).await?;
    Ok(o.body.fid1)
}

/// What a writer's client sends to have setuid and setgid taken away.
async fn kill(c: &Client, fid: Fid, through: Option<&Found>, more: u64) -> Result<u32, Errno> {
    let epoch = through.map(|o| MdtIoepoch {
        open_handle: o.handle,
        ..MdtIoepoch::default()
    });
    let body = c.setattr_through(fid, epoch.map(|e| e.to_bytes()).unwrap_or_default(), |r| {
        // a kernel client says the mode it knows besides
        (r.valid, r.mode) = (sa::KILL_SUID | sa::KILL_SGID | sa::FORCE | more, 0o100777);
    });
    Ok(body.await?.mode & 0o7777)
}

#[tokio::test]
async fn executing_needs_execute_permission_and_no_other() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    file(&c, b"prog", 0o711).await?;
    file(&c, b"data", 0o644).await?;
    let other = c.user(99, 99);
    let exec = flag::READ | flag::EXEC;
    for write in [flag::WRITE, flag::TRUNC, flag::APPEND] {
        assert_eq!(
            other.open(Fid::ROOT, b"prog", exec | write, 0).await.err(),
            Some(Errno::EACCES),
            "{write:#o}"
        );
    }
    let running = other.open(Fid::ROOT, b"prog", exec, 0).await?;
    assert_eq!(
        other.open(Fid::ROOT, b"prog", flag::READ, 0).await.err(),
        Some(Errno::EACCES)
    );
    assert_eq!(
        other.open(Fid::ROOT, b"data", exec, 0).await.err(),
        Some(Errno::EACCES)
    );
    // what runs is neither written nor cut, by an open or by a setattr
    for write in [flag::WRITE, flag::READ | flag::TRUNC] {
        assert_eq!(
            c.open(Fid::ROOT, b"prog", write, 0).await.err(),
            Some(Errno::ETXTBSY)
        );
    }
    let cut = || c.setattr_through(running.body.fid1, Bytes::new(), |r| r.valid = sa::SIZE);
    assert_eq!(cut().await.err(), Some(Errno::ETXTBSY));
    other.close(&running).await?;
    // who cut it with the open does not write it
    let reader = c
        .open(Fid::ROOT, b"prog", flag::READ | flag::TRUNC, 0)
        .await?;
    cut().await?;
    c.open(Fid::ROOT, b"prog", exec, 0).await?;
    c.close(&reader).await?;
    assert_eq!(
        other
            .open(Fid::ROOT, b"data", flag::READ | flag::TRUNC, 0)
            .await
            .err(),
        Some(Errno::EACCES),
        "cutting is writing"
    );
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_write_takes_setuid_and_capabilities_by_the_servers_word() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let fid = file(&c, b"f", 0o777).await?;
    let chmod = |mode: u32| c.setattr(fid, move |r| (r.valid, r.mode) = (sa::MODE, mode));
    chmod(0o777).await?;
    let writer = c.user(99, 99);
    let open = writer.open(Fid::ROOT, b"f", flag::WRITE, 0).await?;
    let capable = || c.setxattr(fid, CAPABILITY, Some(b"all"), 0);

    // the mode went from 0777 to 06751 after the open; only the bits go, nothing of the older mode comes back
    chmod(0o6751).await?;
    capable().await?;
    assert_eq!(kill(&writer, fid, Some(&open), sa::MODE).await?, 0o751);
    assert_eq!(
        c.getxattr(fid, CAPABILITY).await.err(),
        Some(Errno::ENODATA)
    );
    // setgid of a file that the group may not execute marks mandatory locking
    chmod(0o6741).await?;
    assert_eq!(kill(&writer, fid, Some(&open), 0).await?, 0o2741);

    // the handle lets its holder touch the file, not choose its times
    let through = || {
        MdtIoepoch {
            open_handle: open.handle,
            ..MdtIoepoch::default()
        }
        .to_bytes()
    };
    let past = coral_wire::coral::pack_time(1_000, 0);
    for more in [0, sa::KILL_SUID, sa::SIZE] {
        let chosen = writer.setattr_through(fid, through(), |r| {
            (r.valid, r.mtime) = (sa::MTIME | sa::MTIME_SET | more, past)
        });
        assert_eq!(chosen.await.err(), Some(Errno::EPERM), "{more:#x}");
    }
    assert_eq!(
        writer
            .setattr_through(fid, through(), |r| (r.valid, r.mtime) = (sa::MTIME, past))
            .await?
            .mtime,
        past
    );

    // without an open for writing, write permission is needed
    chmod(0o4755).await?;
    assert_eq!(
        kill(&writer, fid, None, sa::MODE).await.err(),
        Some(Errno::EACCES)
    );
    chmod(0o4757).await?;
    assert_eq!(kill(&writer, fid, None, sa::MODE).await?, 0o757);
    // a chmod by the owner that ends setuid is no write: a kernel client says KILL_SUID then too
    capable().await?;
    chmod(0o4755).await?;
    let body = c
        .setattr(fid, |r| {
            (r.valid, r.mode) = (sa::MODE | sa::KILL_SUID, 0o700)
        })
        .await?;
    assert_eq!(body.mode & 0o7777, 0o700);
    assert_eq!(c.getxattr(fid, CAPABILITY).await?, "all");
    // cutting ends capabilities, and so does giving away
    c.setattr(fid, |r| r.valid = sa::SIZE).await?;
    assert_eq!(
        c.getxattr(fid, CAPABILITY).await.err(),
        Some(Errno::ENODATA)
    );
    capable().await?;
    c.setattr(fid, |r| (r.valid, r.uid) = (sa::UID, 5)).await?;
    assert_eq!(
        c.getxattr(fid, CAPABILITY).await.err(),
        Some(Errno::ENODATA)
    );
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn an_acl_set_by_an_owner_outside_the_group_ends_setgid() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let fid = file(&c, b"f", 0o755).await?;
    c.setattr(fid, |r| {
        (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 10, 20)
    })
    .await?;
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1u16, 7u16, u32::MAX),
        (2, 5, 1001),
        (4, 5, u32::MAX),
        (16, 5, u32::MAX),
        (32, 5, u32::MAX),
    ] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    for (user, left) in [
        (c.user(10, 20), 0o2755),
        (c.user(10, 21), 0o755),
        (c.clone(), 0o2755),
    ] {
        c.setattr(fid, |r| (r.valid, r.mode) = (sa::MODE, 0o2755))
            .await?;
        user.setxattr(fid, b"system.posix_acl_access", Some(&acl), 0)
            .await?;
        assert_eq!(
            c.getattr(fid).await?.mode & 0o7777,
            left,
            "gid {}",
            user.gid
        );
    }
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_close_tells_times_of_what_its_handle_did() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let fid = file(&c, b"f", 0o644).await?;
    let old = c.getattr(fid).await?;
    let later = coral_wire::coral::pack_time(1_800_000_000, 0);
    let close = async |c: &Client, how: u64| {
        let o = c.open(Fid::ROOT, b"f", how, 0).await?;
        let all = sa::ATIME | sa::MTIME | sa::CTIME | sa::ATIME_SET | sa::MTIME_SET | sa::CTIME_SET;
        c.close_with(&o, |r| {
            (r.valid, r.atime, r.mtime, r.ctime) = (all, later, later, later)
        })
        .await?;
        c.getattr(fid).await
    };
    let read = close(&c.user(99, 99), flag::READ).await?;
    assert_eq!(
        (read.atime, read.mtime, read.ctime),
        (later, old.mtime, old.ctime)
    );
    let written = close(&c, flag::WRITE).await?;
    assert_eq!((written.mtime, written.ctime), (later, later));
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn flags_move_the_change_time_and_who_may_append_may_touch() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let fid = file(&c, b"f", 0o644).await?;
    let past = coral_wire::coral::pack_time(1_000, 0);
    let age = || {
        c.setattr(fid, move |r| {
            (r.valid, r.ctime) = (sa::CTIME | sa::CTIME_SET, past)
        })
    };
    let flags = |f: u32, more: u64| {
        c.setattr(fid, move |r| {
            (r.valid, r.attr_flags, r.ctime) = (sa::ATTR_FLAG | more, f, past + 7)
        })
    };
    assert_eq!(age().await?.ctime, past);
    assert!(
        flags(fl::APPEND, 0).await?.ctime > past,
        "a kernel client says no time"
    );
    assert_eq!(
        flags(fl::APPEND | fl::IMMUTABLE, sa::CTIME).await?.ctime,
        past + 7
    );
    assert_eq!(flags(fl::APPEND, sa::CTIME).await?.ctime, past + 7);

    let now = sa::ATIME | sa::MTIME | sa::CTIME;
    c.setattr(fid, |r| (r.valid, r.mtime) = (now, past)).await?;
    let chosen = c.setattr(fid, |r| r.valid = now | sa::MTIME_SET).await;
    assert_eq!(chosen.err(), Some(Errno::EPERM));
    for valid in [sa::SIZE, sa::MODE, sa::UID] {
        assert_eq!(
            c.setattr(fid, |r| r.valid = valid).await.err(),
            Some(Errno::EPERM),
            "{valid:#x}"
        );
    }
    flags(fl::IMMUTABLE, 0).await?;
    assert_eq!(
        c.setattr(fid, |r| r.valid = now).await.err(),
        Some(Errno::EPERM)
    );
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn who_gives_a_file_its_layout_may_write_it() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    c.close(
        &c.open(
            Fid::ROOT,
            b"f",
            flag::CREAT | flag::WRITE | flag::DELAY_CREATE,
            0o644,
        )
        .await?,
    )
    .await?;
    let wanted = LovMd::request(1 << 20, 1, LOV_OFFSET_DEFAULT, None).encode();
    let give = |c: &Client| {
        let (c, wanted) = (c.clone(), wanted.clone());
        async move {
            c.open_with(Fid::ROOT, b"f", flag::READ | flag::HAS_EA, 0, wanted)
                .await
        }
    };
    let reader = c.user(99, 99);
    assert_eq!(give(&reader).await.err(), Some(Errno::EACCES));
    let o = reader.open(Fid::ROOT, b"f", flag::READ, 0).await?;
    assert!(o.md.is_empty());
    reader.close(&o).await?;
    let o = give(&c).await?;
    assert!(!o.md.is_empty());
    c.close(&o).await?;
    rig.stop().await;
    Ok(())
}
