//! The MDT over memlnd, driven request by request through a bare import: what each operation
//! answers and leaves behind, opens and orphans across clients that go and servers that restart.

mod mdt_rig;

use std::time::Duration;

use bytes::Bytes;
use coral_osd::{Kv, OsdMem, Table};
use coral_server::mdt::{self, check::Problem, table};
use coral_wire::connect::ConnectFlags2;
use coral_wire::coral::{ANYONE, pack_time};
use coral_wire::layout::{LOV_OFFSET_DEFAULT, Layout, LovMd};
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmType, Policy};
use coral_wire::mds::{MDS_DIR_END_OFF, attr as sa, disp, layout_intent, md, open as flag};
use coral_wire::{Errno, Fid};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn clean(mem: &OsdMem) {
    let report = mdt::check(mem).expect("check");
    assert_eq!(report.problems, Vec::<Problem>::new());
}

#[tokio::test]
async fn connect_grants_what_is_implemented_and_no_more() -> TestResult {
    let rig = Rig::new(2).await;
    let c = rig.client("1@lo").await;
    let got = c.import.granted();
    assert!(got.has2(ConnectFlags2::CORAL));
    assert!(!got.has2(ConnectFlags2::FLR) && !got.has2(ConnectFlags2::LOCK_CONVERT));
    assert!(got.brw_size > 0 && got.maxmodrpcs >= 1 && got.max_easize > 0);
    assert_ne!(got.ibits_known & Ibits::DOM.0, 0);
    assert_eq!(c.root().await?, Fid::ROOT);
    assert!(c.statfs().await?.bsize > 0);
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_file_is_created_with_objects_and_found_again() -> TestResult {
    let rig = Rig::new(4).await;
    let c = rig.client("1@lo").await;
    let o = c
        .open(
            Fid::ROOT,
            b"file",
            flag::CREAT | flag::WRITE | flag::READ,
            0o640,
        )
        .await?;
    assert_eq!(
        o.disp,
        disp::IT_EXECD
            | disp::LOOKUP_EXECD
            | disp::LOOKUP_NEG
            | disp::OPEN_CREATE
            | disp::OPEN_OPEN
    );
    assert_eq!(o.body.mode, 0o100640 & !0o022);
    let Layout::Plain(l) = Layout::decode(&o.md)? else {
        panic!("a plain layout")
    };
    assert_eq!((l.stripe_count, l.objects.len()), (1, 1));
    assert_eq!(
        (l.oi.id, l.oi.seq),
        (u64::from(o.body.fid1.oid), o.body.fid1.seq)
    );
    assert_eq!(
        o.body.valid & md::FLSIZE,
        0,
        "the size of a striped file is its OSTs' business"
    );
    let lock = o.lock.expect("a lock on what was created");
    assert_eq!(
        lock & (Ibits::LOOKUP.0 | Ibits::UPDATE.0 | Ibits::PERM.0 | Ibits::LAYOUT.0),
        0x1b
    );
    let parent = o.parent.expect("a Coral client learns the parent");
    assert_eq!((parent.fid1, parent.mtime), (Fid::ROOT, o.body.mtime));

    let found = c.lookup(Fid::ROOT, b"file").await?;
    assert_eq!(
        (found.body.fid1, found.disp),
        (
            o.body.fid1,
            disp::IT_EXECD | disp::LOOKUP_EXECD | disp::LOOKUP_POS
        )
    );
    assert_eq!(
        c.lookup(Fid::ROOT, b"none").await?.disp,
        disp::IT_EXECD | disp::LOOKUP_EXECD | disp::LOOKUP_NEG
    );
    assert_eq!(c.getattr(o.body.fid1).await?.nlink, 1);

    let again = c
        .open(
            Fid::ROOT,
            b"file",
            flag::CREAT | flag::EXCL | flag::WRITE,
            0o600,
        )
        .await;
    assert_eq!(again.err(), Some(Errno::EEXIST));
    let missing = c.open(Fid::ROOT, b"none", flag::READ, 0).await?;
    assert_eq!(
        (missing.disp & disp::LOOKUP_NEG, missing.handle),
        (disp::LOOKUP_NEG, 0)
    );
    c.close(&o).await?;
    assert_eq!(c.close(&o).await.err(), Some(Errno::ESTALE));
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn every_reint_operation() -> TestResult {
    let rig = Rig::new(2).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"dir").await?;
    assert_eq!(c.mkdir(Fid::ROOT, b"dir").await.err(), Some(Errno::EEXIST));
    let sub = c.mkdir(dir, b"sub").await?;
    let link = c.symlink(dir, b"sl", b"over/there").await?;
    assert_eq!(c.readlink(link).await?, "over/there");
    assert_eq!(
        c.getattr(link).await?.mode & 0o7777,
        0o777,
        "no umask on links"
    );
    let fifo = c.mknod(dir, b"fifo", 0o010644).await?;
    c.link(fifo, dir, b"fifo2").await?;
    assert_eq!(c.getattr(fifo).await?.nlink, 2);
    assert_eq!(c.link(sub, dir, b"hl").await.err(), Some(Errno::EPERM));
    assert_eq!(c.getattr(dir).await?.nlink, 3);

    assert_eq!(
        c.rename(dir, b"sub", sub, b"x").await.err(),
        Some(Errno::EINVAL)
    );
    assert_eq!(
        c.rename(Fid::ROOT, b"dir", sub, b"x").await.err(),
        Some(Errno::EINVAL)
    );
    c.rename(dir, b"sub", Fid::ROOT, b"moved").await?;
    assert_eq!(
        (
            c.getattr(dir).await?.nlink,
            c.getattr(Fid::ROOT).await?.nlink
        ),
        (2, 4)
    );
    assert_eq!(
        c.rename(dir, b"sl", Fid::ROOT, b"moved").await.err(),
        Some(Errno::EISDIR)
    );
    c.rename(dir, b"sl", dir, b"fifo2").await?;
    assert_eq!(c.getattr(fifo).await?.nlink, 1);

    assert_eq!(
        c.unlink(Fid::ROOT, b"dir", true).await.err(),
        Some(Errno::ENOTEMPTY)
    );
    assert_eq!(
        c.unlink(dir, b"fifo", true).await.err(),
        Some(Errno::ENOTDIR)
    );
    assert_eq!(
        c.unlink(Fid::ROOT, b"dir", false).await.err(),
        Some(Errno::EISDIR)
    );
    assert_eq!(c.unlink(dir, b".", false).await.err(), Some(Errno::EINVAL));
    c.unlink(dir, b"fifo", false).await?;
    c.unlink(dir, b"fifo2", false).await?;
    assert_eq!(c.getattr(fifo).await.err(), Some(Errno::ENOENT));
    c.unlink(Fid::ROOT, b"dir", true).await?;
    c.unlink(Fid::ROOT, b"moved", true).await?;
    assert_eq!(c.getattr(Fid::ROOT).await?.nlink, 2);
    assert_eq!(c.names(Fid::ROOT).await?, [".", ".."]);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn attributes_and_times_to_the_nanosecond() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let o = c
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o6755)
        .await?;
    let t = coral_wire::coral::pack_time(1_600_000_000, 123_456_789);
    let set = c.setattr(o.body.fid1, |r| {
        r.valid = sa::ATIME | sa::MTIME | sa::CTIME | sa::ATIME_SET | sa::MTIME_SET;
        (r.atime, r.mtime, r.ctime) = (t, t, t);
    });
    let b = set.await?;
    assert_eq!((b.atime, b.mtime, b.ctime), (t, t, t));
    let b = c
        .setattr(o.body.fid1, |r| {
            (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 7, 8)
        })
        .await?;
    assert_eq!(
        (b.uid, b.gid, b.mode),
        (7, 8, 0o100755),
        "chown drops setuid and setgid"
    );
    let b = c
        .setattr(o.body.fid1, |r| (r.valid, r.mode) = (sa::MODE, 0o4711))
        .await?;
    assert_eq!(b.mode, 0o104711);
    assert!(b.version > o.body.version);

    let other = c.user(99, 99);
    let denied = other
        .setattr(o.body.fid1, |r| (r.valid, r.mode) = (sa::MODE, 0o777))
        .await;
    assert_eq!(denied.err(), Some(Errno::EPERM));
    let denied = other.open(Fid::ROOT, b"f", flag::WRITE, 0).await;
    assert_eq!(denied.err(), Some(Errno::EACCES));
    let denied = other
        .open(Fid::ROOT, b"new", flag::CREAT | flag::WRITE, 0o666)
        .await;
    assert_eq!(denied.err(), Some(Errno::EACCES));
    assert_eq!(
        other.mkdir(Fid::ROOT, b"d").await.err(),
        Some(Errno::EACCES)
    );
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn xattrs_acls_and_layouts_as_xattrs() -> TestResult {
    let rig = Rig::new(4).await;
    let c = rig.client("1@lo").await;
    let o = c
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let fid = o.body.fid1;
    c.setxattr(fid, b"user.a", Some(b"1"), 0).await?;
    assert_eq!(
        c.setxattr(fid, b"user.a", Some(b"2"), 1).await.err(),
        Some(Errno::EEXIST)
    );
    assert_eq!(
        c.setxattr(fid, b"user.b", Some(b"2"), 2).await.err(),
        Some(Errno::ENODATA)
    );
    let big = vec![7; 60_000];
    c.setxattr(fid, b"user.big", Some(&big), 0).await?;
    assert_eq!(c.getxattr(fid, b"user.big").await?, big);
    assert_eq!(
        c.getxattr(fid, b"user.none").await.err(),
        Some(Errno::ENODATA)
    );
    let listed = c.listxattr(fid).await?;
    assert!(
        listed.contains("user.a\0") && listed.contains("trusted.lov\0"),
        "{listed:?}"
    );
    c.setxattr(fid, b"user.big", None, 0).await?;
    assert_eq!(
        c.getxattr(fid, b"user.big").await.err(),
        Some(Errno::ENODATA)
    );

    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 6, 1001),
        (4, 4, u32::MAX),
        (16, 6, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    c.setxattr(fid, b"system.posix_acl_access", Some(&acl), 0)
        .await?;
    assert_eq!(c.getattr(fid).await?.mode, 0o100660);
    let friend = c.user(1001, 1);
    assert!(friend.open(Fid::ROOT, b"f", flag::WRITE, 0).await.is_ok());
    let stranger = c.user(1002, 1);
    assert_eq!(
        stranger.open(Fid::ROOT, b"f", flag::READ, 0).await.err(),
        Some(Errno::EACCES)
    );

    let dir = c.mkdir(Fid::ROOT, b"wide").await?;
    let wanted = LovMd::request(1 << 20, 3, LOV_OFFSET_DEFAULT, None).encode();
    c.setxattr(dir, b"trusted.lov", Some(&wanted), 0).await?;
    let inherits = c.mkdir(dir, b"sub").await?;
    assert_eq!(c.getxattr(inherits, b"lustre.lov").await?, wanted);
    let f = c
        .open(inherits, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let Layout::Plain(l) = Layout::decode(&f.md)? else {
        panic!("a plain layout")
    };
    assert_eq!((l.stripe_size, l.objects.len()), (1 << 20, 3));
    let ids: Vec<_> = l
        .objects
        .iter()
        .map(|o| (o.ost_idx, o.oi.object_id()))
        .collect();
    assert!(
        ids.windows(2).all(|w| w[0].0 != w[1].0),
        "stripes on different OSTs: {ids:?}"
    );

    let late = c
        .open(
            Fid::ROOT,
            b"late",
            flag::CREAT | flag::WRITE | flag::DELAY_CREATE,
            0o644,
        )
        .await?;
    assert!(late.md.is_empty() && late.body.valid & md::FLSIZE != 0);
    c.setxattr(late.body.fid1, b"lustre.lov", Some(&wanted), 0)
        .await?;
    let again = c
        .setxattr(late.body.fid1, b"lustre.lov", Some(&wanted), 0)
        .await;
    assert_eq!(again.err(), Some(Errno::EEXIST));
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn composite_layouts_grow_on_write() -> TestResult {
    use coral_wire::layout::{CompEntry, CompMd};
    let rig = Rig::new(4).await;
    let c = rig.client("1@lo").await;
    let part = |n| LovMd::request(1 << 20, n, LOV_OFFSET_DEFAULT, None);
    let entries = vec![
        CompEntry::new(1, 0, 0, 1 << 20, part(1)),
        CompEntry::new(2, 0, 1 << 20, u64::MAX, part(4)),
    ];
    let wanted = CompMd::new(0, 0, 0, entries).encode();
    let o = c
        .open_with(
            Fid::ROOT,
            b"pfl",
            flag::CREAT | flag::WRITE | flag::HAS_EA,
            0o644,
            wanted,
        )
        .await?;
    let objects = |raw: &Bytes| match Layout::decode(raw) {
        Ok(Layout::Composite(c)) => c
            .entries
            .iter()
            .map(|e| e.plain().map_or(0, |l| l.objects.len()))
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(objects(&o.md), [1, 0]);
    let (md, lock) = c.layout(o.body.fid1, layout_intent::ACCESS, 0, 0).await?;
    assert_eq!((objects(&md), lock), (vec![1, 0], true));
    let (md, lock) = c
        .layout(o.body.fid1, layout_intent::WRITE, 1 << 20, 2 << 20)
        .await?;
    assert_eq!((objects(&md), lock), (vec![1, 4], true));
    let (same, _) = c
        .layout(o.body.fid1, layout_intent::WRITE, 5 << 20, 6 << 20)
        .await?;
    assert_eq!(same, md, "nothing left to make");
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn a_setattr_with_a_layout_sets_what_a_directory_hands_down() -> TestResult {
    use coral_wire::layout::{CompEntry, CompMd, LMV_OFFSET_DEFAULT, LmvUserMd};
    let rig = Rig::new(4).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"d").await?;
    let part = |n| LovMd::request(1 << 20, n, LOV_OFFSET_DEFAULT, None);
    let entries = vec![
        CompEntry::new(0, 0, 0, 1 << 20, part(1)),
        CompEntry::new(0, 0, 1 << 20, u64::MAX, part(2)),
    ];
    let composite = CompMd::new(0, 0, 0, entries).encode();
    let body = c.set_default(dir, composite.clone()).await?;
    assert_eq!((body.fid1, body.mode), (dir, 0o40755));
    assert_eq!(c.getxattr(dir, b"lustre.lov").await?, composite);
    let f = c.open(dir, b"f", flag::CREAT | flag::WRITE, 0o644).await?;
    let Layout::Composite(l) = Layout::decode(&f.md)? else {
        panic!("a composite layout")
    };
    assert_eq!(
        l.entries.iter().map(CompEntry::is_init).collect::<Vec<_>>(),
        [true, false]
    );
    // all fields default: none
    c.set_default(dir, LovMd::request(0, 0, LOV_OFFSET_DEFAULT, None).encode())
        .await?;
    assert_eq!(
        c.getxattr(dir, b"lustre.lov").await.err(),
        Some(Errno::ENODATA)
    );
    assert_eq!(
        c.set_default(f.body.fid1, composite.clone()).await.err(),
        Some(Errno::ENOTDIR)
    );
    assert_eq!(
        c.user(1002, 1).set_default(dir, composite).await.err(),
        Some(Errno::EPERM)
    );
    // what directories are told to be is kept, also for MDTs to come; an MDT that is not there is refused
    for wanted in [(1, 0), (2, LMV_OFFSET_DEFAULT)] {
        c.set_default(dir, LmvUserMd::request(wanted.0, wanted.1, 0).encode())
            .await?;
    }
    let nowhere = c
        .set_default(dir, LmvUserMd::request(2, 7, 0).encode())
        .await;
    assert_eq!(nowhere.err(), Some(Errno::EINVAL));
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn directories_of_many_entries_read_in_hash_order() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"many").await?;
    let mut want: Vec<String> = (0..700)
        .map(|i| format!("file-with-a-long-name-{i}"))
        .collect();
    for n in &want {
        c.mknod(dir, n.as_bytes(), 0o100644).await?;
    }
    let (pages, entries) = c.read_pages(dir, 0, 8).await?;
    assert!(pages.iter().all(|p| p.1 == MDS_DIR_END_OFF || p.1 > p.0) && entries.len() < 700);
    want.extend([".".into(), "..".into()]);
    want.sort();
    let mut got = c.names(dir).await?;
    got.sort();
    assert_eq!(got, want);
    assert_eq!(
        c.fid2path(c.lookup(dir, b"file-with-a-long-name-5").await?.body.fid1)
            .await?,
        "many/file-with-a-long-name-5"
    );
    rig.stop().await;
    Ok(())
}

/// A name may lie where a client does not look who knows another layout of the directory.
#[tokio::test]
async fn who_knows_another_layout_of_a_directory_makes_no_names() -> TestResult {
    let rig = Rig::new(2).await;
    let mut c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"dir").await?;
    let file = c.mknod(Fid::ROOT, b"file", 0o100644).await?;
    for (layout, expected) in [(7, Err(Errno::ESTALE)), (1, Ok(())), (0, Ok(()))] {
        c.layout = layout;
        let name = |what: &str| format!("{what}{layout}").into_bytes();
        let creat = flag::CREAT | flag::WRITE;
        let opened = c.open(dir, &name("open"), creat, 0o644).await;
        let tried = [
            c.mkdir(dir, &name("dir")).await.map(drop),
            c.mknod(dir, &name("node"), 0o100644).await.map(drop),
            opened.map(drop),
            c.link(file, dir, &name("link")).await,
            c.rename(Fid::ROOT, b"file", dir, &name("file")).await,
        ];
        assert_eq!(tried, [expected; 5], "says {layout}");
        if expected.is_ok() {
            c.rename(dir, &name("file"), Fid::ROOT, b"file").await?;
        }
        // what is there already is found
        c.open(Fid::ROOT, b"file", flag::READ, 0).await?;
    }
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn an_unlinked_open_file_lives_until_its_last_close() -> TestResult {
    let rig = Rig::new(2).await;
    let (c, d) = (rig.client("1@lo").await, rig.client("2@lo").await);
    let o = c
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let p = d.open(Fid::ROOT, b"f", flag::READ, 0).await?;
    let fid = o.body.fid1;
    assert_eq!(c.unlink(Fid::ROOT, b"f", false).await?.nlink, 0);
    assert_eq!(
        c.lookup(Fid::ROOT, b"f").await?.disp & disp::LOOKUP_NEG,
        disp::LOOKUP_NEG
    );
    assert_eq!(c.getattr(fid).await?.nlink, 0);
    c.close(&o).await?;
    assert!(c.getattr(fid).await.is_ok(), "the other client has it open");
    assert_eq!(rig.destroy_pending(), 0);
    d.close(&p).await?;
    assert_eq!(c.getattr(fid).await.err(), Some(Errno::ENOENT));
    assert_eq!(rig.destroy_pending(), 1);

    // a client that goes closes what it had open
    let o = c
        .open(Fid::ROOT, b"g", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    c.unlink(Fid::ROOT, b"g", false).await?;
    c.import.disconnect().await;
    assert_eq!(d.getattr(o.body.fid1).await.err(), Some(Errno::ENOENT));
    assert_eq!(rig.destroy_pending(), 2);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// An open waits for another client's lock; its own client is evicted meanwhile.
#[tokio::test(start_paused = true)]
async fn an_open_that_outlives_its_client_leaves_no_handle() -> TestResult {
    let rig = Rig::new(2).await;
    let (a, b, c) = (
        rig.client("10.0.0.8@tcp").await,
        rig.client("10.0.0.9@tcp").await,
        rig.client("1@lo").await,
    );
    assert!(b.lookup(Fid::ROOT, b"").await?.lock.is_some());
    b.turn_deaf().await;
    let opening = tokio::spawn({
        let a = a.clone();
        async move {
            a.open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o755)
                .await
        }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(
        !opening.is_finished(),
        "it waits for the lock of the deaf client"
    );
    rig.evict(&a);
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.evict(&b);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let o = c
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o755)
        .await?;
    c.close(&o).await?;
    let x = c.open(Fid::ROOT, b"f", flag::EXEC, 0).await?;
    c.unlink(Fid::ROOT, b"f", false).await?;
    c.close(&x).await?;
    assert_eq!(rig.destroy_pending(), 1, "nobody has it open");
    assert!(opening.await?.is_err());
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// A kill after that must not bring it back, with the locks it had.
#[tokio::test(start_paused = true)]
async fn locks_of_an_evicted_client_go_to_others_when_no_start_would_know_it() -> TestResult {
    let rig = Rig::new(1).await;
    let a = rig.client("10.0.0.8@tcp").await;
    assert!(a.lookup(Fid::ROOT, b"").await?.lock.is_some());
    let known = || -> Result<usize, coral_osd::OsdError> {
        let clients = rig
            .mem
            .range(Table("last_rcvd"), b"c", Some(b"d"), usize::MAX)?;
        Ok(clients.len())
    };
    assert_eq!(known()?, 1);
    rig.evict(&a);
    // nobody else asks for anything, and no time passes
    while !rig.mdt().target.ldlm().locks().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(known()?, 0, "as soon as the locks are free");
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_killed_server_loses_no_name_and_no_open_file() -> TestResult {
    let mut rig = Rig::new(2).await;
    let c = rig.client("10.0.0.9@tcp").await;
    let kept = c
        .open(Fid::ROOT, b"kept", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let orphan = c
        .open(Fid::ROOT, b"orphan", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    c.unlink(Fid::ROOT, b"orphan", false).await?;
    // an orphan of an in-process client, which ends with the server
    let l = rig.client("1@lo").await;
    let lost = l
        .open(Fid::ROOT, b"lost", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    l.unlink(Fid::ROOT, b"lost", false).await?;

    rig.kill().await;
    rig.restart().await;
    // the client reconnects and replays by itself; its next request waits for that
    assert_eq!(
        c.lookup(Fid::ROOT, b"kept").await?.body.fid1,
        kept.body.fid1
    );
    assert_eq!(
        c.getattr(orphan.body.fid1).await?.nlink,
        0,
        "still open, still there"
    );
    assert_eq!(
        c.getattr(lost.body.fid1).await.err(),
        Some(Errno::ENOENT),
        "nobody has it open"
    );
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// The reply to a create is lost and the server killed: the resend is answered from what was
/// stored, and the handle it names works.
#[tokio::test(start_paused = true)]
async fn a_create_whose_reply_was_lost_is_done_once() -> TestResult {
    for restart in [false, true] {
        let mut rig = Rig::new(2).await;
        let c = rig.client("10.0.0.9@tcp").await;
        rig.lose_a_reply();
        let opening = tokio::spawn({
            let c = c.clone();
            async move {
                c.open(
                    Fid::ROOT,
                    b"f",
                    flag::CREAT | flag::EXCL | flag::WRITE,
                    0o644,
                )
                .await
            }
        });
        let known = || {
            mdt::store::Store::open(std::sync::Arc::new(rig.mem.clone()))
                .expect("open")
                .lookup(&Fid::ROOT, b"f")
                .expect("read")
                .is_some()
        };
        until("the server has done it", known).await;
        assert!(!opening.is_finished());
        if restart {
            rig.kill().await;
            rig.restart().await;
        }
        let o = opening.await??;
        assert_ne!(
            o.disp & disp::OPEN_CREATE,
            0,
            "it was created, not found (restart: {restart})"
        );
        c.setattr(o.body.fid1, |r| (r.valid, r.mode) = (sa::MODE, 0o600))
            .await?;
        c.close(&o).await?;
        assert_eq!(c.names(Fid::ROOT).await?.len(), 3);
        rig.stop().await;
        clean(&rig.mem);
    }
    Ok(())
}

/// Power loss takes what was acknowledged but not synced; the clients bring it back by replay,
/// files with the objects they were given.
#[tokio::test(start_paused = true)]
async fn what_power_loss_took_the_clients_replay() -> TestResult {
    let mut rig = Rig::new(4).await;
    let c = rig.client("10.0.0.9@tcp").await;
    rig.mdt().target.sync().await?;
    let dir = c.mkdir(Fid::ROOT, b"d").await?;
    let mut files = Vec::new();
    for i in 0..20 {
        let o = c
            .open(
                dir,
                format!("f{i}").as_bytes(),
                flag::CREAT | flag::WRITE,
                0o644,
            )
            .await?;
        files.push((o.body.fid1, o.md.clone()));
        if i % 2 == 0 {
            c.close(&o).await?;
        }
    }
    c.rename(dir, b"f3", Fid::ROOT, b"moved").await?;
    c.unlink(dir, b"f4", false).await?;
    c.setattr(files[5].0, |r| (r.valid, r.mode) = (sa::MODE, 0o640))
        .await?;
    rig.kill().await;
    rig.lose_power();
    let on_disk = mdt::store::Store::open(std::sync::Arc::new(rig.mem.clone())).expect("open");
    assert_eq!(
        on_disk.lookup(&Fid::ROOT, b"moved")?,
        None,
        "it was not synced"
    );
    assert!(on_disk.lookup(&dir, b"f19")?.is_none());
    rig.restart().await;
    assert_eq!(c.lookup(Fid::ROOT, b"moved").await?.body.fid1, files[3].0);
    assert_eq!(
        c.lookup(dir, b"f4").await?.disp & disp::LOOKUP_NEG,
        disp::LOOKUP_NEG
    );
    assert_eq!(c.getattr(files[5].0).await?.mode, 0o100640);
    for (i, (fid, md)) in files.iter().enumerate().filter(|(i, _)| *i != 3 && *i != 4) {
        let found = c.lookup(dir, format!("f{i}").as_bytes()).await?;
        assert_eq!((found.body.fid1, &found.md), (*fid, md), "f{i}");
    }
    // new files get other objects than those that came back
    let o = c
        .open(dir, b"new", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    assert!(
        files
            .iter()
            .all(|(_, md)| mdt::stripe::objects(md) != mdt::stripe::objects(&o.md))
    );
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn opens_by_fid_of_directories_and_late() -> TestResult {
    let rig = Rig::new(2).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"d").await?;
    assert_eq!(
        c.open(dir, b"", flag::READ | flag::DIRECTORY | flag::BY_FID, 0)
            .await?
            .body
            .fid1,
        dir
    );
    assert_eq!(
        c.open(Fid::ROOT, b"d", flag::WRITE, 0).await.err(),
        Some(Errno::EISDIR)
    );
    let f = c.mknod(Fid::ROOT, b"f", 0o100644).await?;
    assert_eq!(
        c.open(f, b"", flag::READ | flag::DIRECTORY | flag::BY_FID, 0)
            .await
            .err(),
        Some(Errno::ENOTDIR)
    );
    // a node made by mknod gets its objects when it is first opened for writing
    let r = c.open(f, b"", flag::READ | flag::BY_FID, 0).await?;
    assert!(r.md.is_empty() && r.body.valid & md::FLSIZE != 0);
    let w = c.open(f, b"", flag::WRITE | flag::BY_FID, 0).await?;
    assert!(!w.md.is_empty() && w.body.valid & md::FLSIZE == 0);
    // or truncated
    let g = c.mknod(Fid::ROOT, b"g", 0o100644).await?;
    c.setattr(g, |r| (r.valid, r.size) = (sa::SIZE, 100))
        .await?;
    let (lov, _) = c.layout(g, layout_intent::ACCESS, 0, 0).await?;
    assert!(!lov.is_empty());
    let sl = c.symlink(Fid::ROOT, b"sl", b"f").await?;
    let o = c
        .open(sl, b"", flag::READ | flag::NOFOLLOW | flag::BY_FID, 0)
        .await?;
    assert_eq!(
        (o.disp & disp::OPEN_OPEN, o.handle),
        (0, 0),
        "links are not opened"
    );
    // executed files are not written, written ones not executed
    let x = c.open(f, b"", flag::EXEC | flag::BY_FID, 0).await;
    assert_eq!(x.err(), Some(Errno::EACCES), "nobody may execute it");
    c.setattr(f, |r| (r.valid, r.mode) = (sa::MODE, 0o755))
        .await?;
    assert_eq!(
        c.open(f, b"", flag::EXEC | flag::BY_FID, 0).await.err(),
        Some(Errno::ETXTBSY)
    );
    c.close(&w).await?;
    assert!(c.open(f, b"", flag::EXEC | flag::BY_FID, 0).await.is_ok());
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn four_creators_in_one_directory() -> TestResult {
    let rig = Rig::new(4).await;
    let mut tasks = Vec::new();
    for i in 0..4u32 {
        let c = rig.client(&format!("{}@lo", i + 1)).await;
        tasks.push(tokio::spawn(async move {
            for n in 0..100 {
                let name = format!("c{i}.{n}");
                let o = c
                    .open(
                        Fid::ROOT,
                        name.as_bytes(),
                        flag::CREAT | flag::EXCL | flag::WRITE,
                        0o644,
                    )
                    .await?;
                c.close(&o).await?;
                if n % 3 == 0 {
                    c.unlink(Fid::ROOT, name.as_bytes(), false).await?;
                }
            }
            Ok::<_, Errno>(())
        }));
    }
    for t in tasks {
        t.await??;
    }
    let c = rig.client("9@lo").await;
    assert_eq!(c.names(Fid::ROOT).await?.len(), 2 + 4 * 66);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// Clients that rename, link, remove and look up in the same directories, caching locks all the
/// while: nobody waits for ever, and the name space stays whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_at_random_never_deadlock() -> TestResult {
    use rand::{Rng, SeedableRng};
    let rig = Rig::new(2).await;
    let c = rig.client("9@lo").await;
    let mut dirs = vec![Fid::ROOT];
    for n in [b"x".as_slice(), b"y", b"z"] {
        dirs.push(c.mkdir(Fid::ROOT, n).await?);
    }
    let mut tasks = Vec::new();
    for i in 0..5u64 {
        // one of them is no Coral client: its own locks are called back too
        let c = rig
            .client_as(
                &format!("{}@lo", i + 1),
                if i == 0 { 0 } else { ConnectFlags2::CORAL.0 },
            )
            .await;
        let dirs = dirs.clone();
        tasks.push(tokio::spawn(async move {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(i);
            for round in 0..800 {
                let mut dir = || dirs[rng.random_range(0..4)];
                let (d1, d2) = (dir(), dir());
                let mut name = || vec![b'a' + rng.random_range(0u8..4)];
                let (n1, n2) = (name(), name());
                let op = rng.random_range(0..10);
                let one = async {
                    match op {
                        0 => _ = c.mkdir(d1, &n1).await,
                        1 => _ = c.unlink(d1, &n1, true).await,
                        2 | 3 => {
                            if let Ok(o) = c.open(d1, &n1, flag::CREAT | flag::WRITE, 0o644).await {
                                _ = c.close(&o).await;
                            }
                        }
                        4 => _ = c.unlink(d1, &n1, false).await,
                        5 | 6 => _ = c.rename(d1, &n1, d2, &n2).await,
                        7 => {
                            // directories of the test move about among each other as well
                            let from = [b"x", b"y", b"z"][round % 3];
                            _ = c.rename(Fid::ROOT, from, d2, from).await;
                            _ = c.rename(d2, from, Fid::ROOT, from).await;
                        }
                        8 => {
                            if let Ok(f) = c.lookup(d1, &n1).await {
                                _ = c.link(f.body.fid1, d2, &n2).await;
                            }
                        }
                        _ => {
                            _ = c.lookup(d1, b"").await;
                            if let Ok(f) = c.lookup(d1, &n1).await {
                                _ = c
                                    .setattr(f.body.fid1, |r| (r.valid, r.mode) = (sa::MODE, 0o700))
                                    .await;
                            }
                        }
                    }
                };
                let in_time = tokio::time::timeout(std::time::Duration::from_secs(30), one).await;
                assert!(
                    in_time.is_ok(),
                    "client {i} round {round}: operation {op} waits for ever"
                );
            }
            // a client that only vanished would be waited for
            c.import.disconnect().await;
        }));
    }
    for t in tasks {
        t.await?;
    }
    assert_eq!(
        rig.mdt().target.stats().evictions.value(),
        0,
        "every callback was answered"
    );
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn another_clients_change_calls_back_what_one_caches() -> TestResult {
    let rig = Rig::new(1).await;
    let (a, b) = (rig.client("1@lo").await, rig.client("2@lo").await);
    let o = a
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    assert!(a.lookup(Fid::ROOT, b"").await?.lock.is_some());
    let cached = |c: &Client| c.ns.counts().0;
    let before = cached(&a);
    b.mknod(Fid::ROOT, b"g", 0o100644).await?;
    assert!(cached(&a) < before, "the directory's UPDATE lock went");
    b.setattr(o.body.fid1, |r| (r.valid, r.mode) = (sa::MODE, 0o600))
        .await?;
    assert_eq!(cached(&a), 0, "so did the file's");
    // its own changes leave a Coral client's locks alone
    assert!(a.lookup(Fid::ROOT, b"").await?.lock.is_some());
    a.mknod(Fid::ROOT, b"h", 0o100644).await?;
    assert_eq!(cached(&a), 1);
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn the_verifier_finds_what_was_broken() -> TestResult {
    let rig = Rig::new(2).await;
    let c = rig.client("1@lo").await;
    let (f, g) = {
        let mut fids = Vec::new();
        for name in [b"f", b"g"] {
            let o = c
                .open(Fid::ROOT, name, flag::CREAT | flag::WRITE, 0o644)
                .await?;
            c.close(&o).await?;
            fids.push(o.body.fid1);
        }
        (fids[0], fids[1])
    };
    rig.stop().await;
    clean(&rig.mem);
    let kv: std::sync::Arc<dyn coral_osd::Kv> = std::sync::Arc::new(rig.mem.clone());
    let del = |t, key: Bytes| {
        let mut b = coral_osd::Batch::new();
        b.del(t, key);
        b
    };
    let put = |t, key: Bytes, value: Bytes| {
        let mut b = coral_osd::Batch::new();
        b.put(t, key, value);
        b
    };
    let broken = |b: coral_osd::Batch| {
        let undo: Vec<_> = b.ops().iter().map(|op| mdt_rig::undo(&*kv, op)).collect();
        kv.commit(b).wait().expect("commit");
        let problems = mdt::check(&*kv).expect("check").problems;
        let mut back = coral_osd::Batch::new();
        for u in undo {
            back.extend(u);
        }
        kv.commit(back).wait().expect("commit");
        problems
    };
    let has = |problems: &[Problem], want: fn(&Problem) -> bool| {
        assert!(problems.iter().any(want), "{problems:?}")
    };
    let inode = |fid: &Fid| {
        kv.get(table::INODE, &table::fid_key(fid))
            .expect("read")
            .expect("there")
    };
    let key = |fid: &Fid| Bytes::copy_from_slice(&table::fid_key(fid));
    let entry = table::dirent_key(&Fid::ROOT, table::name_hash(b"f"), b"f");

    has(&broken(del(table::INODE, key(&f))), |p| {
        matches!(p, Problem::Dangling { .. })
    });
    has(&broken(del(table::DIRENT, entry.clone())), |p| {
        matches!(p, Problem::OrphanInode { .. })
    });
    let raw = inode(&f);
    has(
        &broken(put(table::INODE, key(&f), raw.slice(..raw.len() - 1))),
        |p| matches!(p, Problem::BadRow { .. }),
    );
    let mut twice = mdt::record::Inode::decode(&raw)?;
    twice.nlink = 2;
    has(&broken(put(table::INODE, key(&f), twice.encode())), |p| {
        matches!(
            p,
            Problem::LinkCount {
                recorded: 2,
                counted: 1,
                ..
            }
        )
    });
    let mut shared = mdt::record::Inode::decode(&raw)?;
    shared.lov = mdt::record::Inode::decode(&inode(&g))?.lov;
    has(&broken(put(table::INODE, key(&f), shared.encode())), |p| {
        matches!(
            p,
            Problem::SharedObject {
                second: Some(_),
                ..
            }
        )
    });
    let wrong = table::dirent_key(&Fid::ROOT, 5, b"f");
    has(
        &broken(put(
            table::DIRENT,
            wrong.clone(),
            table::dirent_value(&f, 0o100644),
        )),
        |p| matches!(p, Problem::WrongEntry { .. }),
    );
    has(&broken(del(table::INODE, key(&Fid::ROOT))), |p| {
        matches!(p, Problem::NoRoot)
    });
    clean(&rig.mem);
    let unused = coral_osd::OsdMem::new();
    let report = mdt::check(&unused)?;
    assert!(
        report.never_served && report.problems.is_empty(),
        "{report:?}"
    );
    assert!(!mdt::check(&*kv)?.never_served);
    Ok(())
}

#[tokio::test]
async fn a_client_that_is_not_coral_sees_lustre() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client_as("1@lo", 0).await;
    assert!(!c.import.granted().has2(ConnectFlags2::CORAL));
    // lengths as in the capture: `touch`, `stat`, `mkdir` of a real client
    let o = c
        .open(Fid::ROOT, b"empty", flag::CREAT | flag::WRITE, 0o666)
        .await?;
    assert_eq!(o.lens, [184, 112, 216, 56, 0, 0, 0, 16, 0, 0, 0]);
    assert_eq!(o.body.valid, 0x1100008080022f8f);
    assert_eq!(o.disp, 0x37);
    assert!(
        (1_700_000_000..1_700_100_000).contains(&o.body.mtime),
        "whole seconds"
    );
    let f = c.lookup(Fid::ROOT, b"empty").await?;
    assert_eq!(
        (f.lens, f.disp),
        (vec![184, 112, 216, 56, 0, 0, 0, 0, 0], 0xb)
    );
    assert_eq!(c.lookup(Fid::ROOT, b"none").await?.disp, 0x7);
    assert_eq!(c.mkdir_reply(Fid::ROOT, b"t").await?, [184, 216, 0, 0]);
    assert_eq!(c.getattr(Fid::ROOT).await?.valid, 0x1100000000012fbf);

    // its own change calls its own lock back
    assert!(c.lookup(Fid::ROOT, b"").await?.lock.is_some());
    let root =
        c.ns.locks()
            .iter()
            .filter(|l| l.res == Fid::ROOT.res_id())
            .count();
    c.mknod(Fid::ROOT, b"g", 0o100644).await?;
    let after =
        c.ns.locks()
            .iter()
            .filter(|l| l.res == Fid::ROOT.res_id())
            .count();
    assert!(root > 0 && after == 0, "{root} then {after}");
    rig.stop().await;
    Ok(())
}

/// A kernel client believes a layout that comes without a lock. So it gets none while the file is being changed, and waits.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_not_coral_gets_no_layout_without_its_lock() -> TestResult {
    let rig = Rig::new(2).await;
    let c = rig.client_as("1@lo", 0).await;
    let flags = flag::CREAT | flag::WRITE | flag::READ;
    let made = c.open(Fid::ROOT, b"file", flags, 0o644).await?;
    c.close(&made).await?;
    let fid = made.body.fid1;
    let bits = Ibits::LOOKUP.0 | Ibits::UPDATE.0 | Ibits::PERM.0 | Ibits::LAYOUT.0;
    for what in ["getattr", "open", "layout"] {
        let ldlm = rig.mdt().target.ldlm().clone();
        let (ty, policy) = (LdlmType::IBITS, Policy::ibits(Ibits(bits)));
        let changing = ldlm.lock_local(fid.res_id(), ty, LdlmMode::EX, policy, None);
        let changing = changing.await;
        let asking = c.clone();
        let asked = tokio::spawn(async move {
            let found = match what {
                "getattr" => asking.lookup(Fid::ROOT, b"file").await?,
                "open" => asking.open(Fid::ROOT, b"file", flag::READ, 0).await?,
                _ => {
                    let access = layout_intent::ACCESS;
                    let (layout, locked) = asking.layout(fid, access, 0, 1).await?;
                    return Ok((layout, locked.then_some(Ibits::LAYOUT.0)));
                }
            };
            if found.handle != 0 {
                asking.close(&found).await?;
            }
            Ok::<_, Errno>((found.md, found.lock))
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!asked.is_finished(), "{what}");
        drop(changing);
        let (layout, lock) = asked.await??;
        assert!(!layout.is_empty(), "{what}");
        let has = lock.is_some_and(|bits| bits & Ibits::LAYOUT.0 != 0);
        assert!(has, "{what}: {lock:?}");
    }
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn orphans_of_in_process_clients_go_at_the_next_start() -> TestResult {
    let mut rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    c.open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    c.unlink(Fid::ROOT, b"f", false).await?;
    rig.kill().await;
    assert_eq!(rig.destroy_pending(), 0);
    rig.restart().await;
    assert_eq!(rig.destroy_pending(), 1);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// Requests of random bytes, and right ones with bits flipped: each is answered, and the MDT goes on.
#[tokio::test]
async fn nonsense_is_answered_and_survived() -> TestResult {
    use coral_wire::{opc, portal};
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let rig = Rig::new(2).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"d").await?;
    let ops = [
        opc::MDS_GETATTR,
        opc::MDS_GETATTR_NAME,
        opc::MDS_CLOSE,
        opc::MDS_REINT,
        opc::MDS_GET_ROOT,
        opc::MDS_STATFS,
        opc::MDS_SYNC,
        opc::MDS_GETXATTR,
        opc::MDS_GET_INFO,
        opc::MDS_QUOTACTL,
        opc::SEQ_QUERY,
        opc::FLD_QUERY,
        opc::MDS_HSM_STATE_GET,
        opc::MDS_SWAP_LAYOUTS,
        opc::MDS_REINT,
        opc::MDS_REINT,
        opc::MDS_REINT,
    ];
    for round in 0..3000 {
        let op = ops[rng.random_range(0..ops.len())];
        let mut rq = coral_ptlrpc::Request::new(portal::MDS_REQUEST, op);
        for i in 0..rng.random_range(0..8) {
            // sizes around those of real buffers, zeros and small numbers more often than chance has them
            let len = [0, 1, 4, 8, 24, 96, 112, 136, 216, 217][rng.random_range(0..10)];
            let mut buf: Vec<u8> = (0..len)
                .map(|_| {
                    if rng.random_bool(0.8) {
                        0
                    } else {
                        rng.random()
                    }
                })
                .collect();
            if i == 0 && buf.len() == 136 && op == opc::MDS_REINT {
                buf[..4].copy_from_slice(&rng.random_range(0u32..9).to_le_bytes());
                buf[40..48].copy_from_slice(
                    &[Fid::ROOT.seq, dir.seq][rng.random_range(0..2)].to_le_bytes(),
                );
                buf[48..52].copy_from_slice(&1u32.to_le_bytes());
                buf[52..56].fill(0);
            }
            rq = rq.push_bytes(buf);
        }
        let answer =
            tokio::time::timeout(std::time::Duration::from_secs(5), c.import.call(rq)).await;
        assert!(
            answer.is_ok(),
            "round {round}: opcode {op} was not answered"
        );
    }
    assert!(c.lookup(Fid::ROOT, b"d").await?.disp & disp::LOOKUP_POS != 0);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn a_full_device_refuses_and_keeps_nothing_of_what_it_refused() -> TestResult {
    use coral_osd::Fault;
    let rig = Rig::new(2).await;
    let c = rig.client("1@lo").await;
    let dir = c.mkdir(Fid::ROOT, b"d").await?;
    let before = c.getattr(Fid::ROOT).await?;
    rig.mem.inject(Fault::Full(1));
    assert_eq!(
        c.open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
            .await
            .err(),
        Some(Errno::ENOSPC)
    );
    assert_eq!(c.mkdir(Fid::ROOT, b"e").await.err(), Some(Errno::ENOSPC));
    assert_eq!(
        c.rename(Fid::ROOT, b"d", Fid::ROOT, b"x").await.err(),
        Some(Errno::ENOSPC)
    );
    assert_eq!(
        c.unlink(Fid::ROOT, b"d", true).await.err(),
        Some(Errno::ENOSPC)
    );
    rig.mem.inject(Fault::None);
    let after = c.getattr(Fid::ROOT).await?;
    assert_eq!(
        (after.nlink, after.mtime, after.version),
        (before.nlink, before.mtime, before.version)
    );
    assert_eq!(c.names(Fid::ROOT).await?.len(), 3);
    assert_eq!(c.lookup(Fid::ROOT, b"d").await?.body.fid1, dir);
    c.open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

#[tokio::test]
async fn the_root_directory_belongs_to_who_formatted() -> TestResult {
    let mut rig = Rig::new(1).await;
    let root = rig.client("1@lo").await.getattr(Fid::ROOT).await?;
    assert_eq!((root.uid, root.gid, root.mode), (0, 0, 0o040755));
    rig.kill().await;
    rig.empty();
    rig.root_owner = (1000, 100);
    rig.restart().await;
    let c = rig.client("2@lo").await;
    let root = c.getattr(Fid::ROOT).await?;
    assert_eq!((root.uid, root.gid, root.mode), (1000, 100, 0o040755));
    c.user(1000, 100).mkdir(Fid::ROOT, b"mine").await?;
    assert_eq!(
        c.user(1001, 100).mkdir(Fid::ROOT, b"yours").await,
        Err(Errno::EACCES)
    );
    // a later start by somebody else leaves it
    rig.stop().await;
    rig.root_owner = (7, 7);
    rig.restart().await;
    assert_eq!(rig.client("3@lo").await.getattr(Fid::ROOT).await?.uid, 1000);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// Waits until `done`; a background task is at work.
async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(20), wait)
            .await
            .is_ok(),
        "{what}"
    );
}

#[tokio::test(start_paused = true)]
async fn osts_learn_of_removed_files_and_new_owners() -> TestResult {
    use coral_osd::{ObjectId, Objects};
    let mut rig = Rig::with_osts(2).await;
    let c = rig.client("1@lo").await;
    let wanted = LovMd::request(1 << 20, 2, LOV_OFFSET_DEFAULT, None).encode();
    let o = c
        .open_with(
            Fid::ROOT,
            b"f",
            flag::CREAT | flag::WRITE | flag::HAS_EA,
            0o644,
            wanted,
        )
        .await?;
    let Layout::Plain(l) = Layout::decode(&o.md)? else {
        panic!("a plain layout")
    };
    let objects: Vec<_> = l
        .objects
        .iter()
        .map(|s| {
            (
                s.ost_idx as usize,
                ObjectId {
                    seq: 0,
                    oid: s.oi.object_id(),
                },
            )
        })
        .collect();
    for (ost, id) in &objects {
        rig.real[*ost]
            .write(*id, 0, &[Bytes::from_static(b"data")])
            .wait()?;
    }
    c.setattr(o.body.fid1, |r| {
        (r.valid, r.uid, r.gid) = (sa::UID | sa::GID, 7, 8)
    })
    .await?;
    let owner = |(ost, id): &(usize, ObjectId)| {
        rig.real[*ost]
            .attr(*id)
            .expect("read")
            .map(|a| (a.uid, a.gid))
    };
    until("the objects have the file's owner", || {
        objects.iter().all(|o| owner(o) == Some((7, 8)))
    })
    .await;
    until("the MDT sums its OSTs' space", || {
        rig.mdt()
            .ops
            .core
            .write()
            .osts
            .iter()
            .all(|o| o.avail_bytes.is_some())
    })
    .await;

    c.unlink(Fid::ROOT, b"f", false).await?;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(objects.iter().all(|o| owner(o).is_some()), "still open");
    c.close(&o).await?;
    until("the objects are gone", || {
        objects.iter().all(|o| owner(o).is_none())
    })
    .await;
    until("and no more pending", || rig.destroy_pending() == 0).await;

    // what a killed MDT had not told its OSTs yet it tells them after the next start
    let o = c
        .open(Fid::ROOT, b"g", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    c.unlink(Fid::ROOT, b"g", false).await?;
    rig.kill().await;
    rig.restart().await;
    until("the new start told them", || rig.destroy_pending() == 0).await;
    drop(o);
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// Requests with an open handle of before a restart find what was opened again, sent for the first time or again.
#[tokio::test(start_paused = true)]
async fn open_handles_of_before_a_restart_are_known() -> TestResult {
    let mut rig = Rig::new(2).await;
    let c = rig.client("10.0.0.8@tcp").await;
    let opens = |rig: &Rig| rig.mdt().ops.core.write().opens.len();
    let o = c
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o600)
        .await?;
    let other = c.user(7, 7);
    other.truncate_open(&o, 5).await?;
    assert!(
        other
            .setattr(o.body.fid1, |r| (r.valid, r.size) = (sa::SIZE, 5))
            .await
            .is_err(),
        "it is the handle that allows it"
    );
    rig.kill().await;
    rig.restart().await;
    other.truncate_open(&o, 6).await?;
    assert_eq!(opens(&rig), 1);
    c.close(&o).await?;
    assert_eq!(opens(&rig), 0);

    // done before the restart, and the answer was lost
    c.import.disconnect().await;
    let c = rig.client("10.0.0.9@tcp").await;
    let o = c.open(Fid::ROOT, b"f", flag::WRITE, 0).await?;
    rig.lose_a_reply();
    let close = tokio::spawn({
        let c = c.clone();
        async move {
            c.close_with(&o, |r| (r.valid, r.size) = (sa::LSIZE, 99))
                .await
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(opens(&rig) == 0 && !close.is_finished());
    rig.kill().await;
    rig.restart().await;
    close.await??;
    assert_eq!(opens(&rig), 0, "its open was replayed");
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// What was read under a lock is opened by who holds it, whatever its mode is by now, and by nobody else so; it is opened for nothing but
/// reading. An access time without an open is taken of what everyone may read, and only such as have been.
#[tokio::test]
async fn what_was_read_without_a_word_is_opened_by_who_holds_its_lock() -> TestResult {
    let rig = Rig::new(1).await;
    let (c, d) = (rig.client("1@lo").await, rig.client("10.0.0.9@tcp").await);
    let flags = flag::CREAT | flag::WRITE | flag::READ;
    let o = c.open(Fid::ROOT, b"f", flags, 0o644).await?;
    c.close(&o).await?;
    let fid = o.body.fid1;
    assert_ne!(o.body.valid & ANYONE, 0);
    let held = Ibits(o.lock.expect("a lock comes with it"));
    assert!(held.contains(Ibits::LOOKUP) && held.contains(Ibits::PERM));
    let opens = || rig.mdt().ops.core.read().opens.handles_of(&fid);
    for wrong in [
        flag::WRITE,
        flag::READ | flag::CREAT,
        flag::READ | flag::TRUNC,
    ] {
        let refused = c.open_untold(fid, wrong, true).await.err();
        assert_eq!(refused, Some(Errno::EPROTO), "{wrong:o}");
    }
    let wants_a_lock = c.open_untold(fid, flag::READ, false).await.err();
    assert_eq!((wants_a_lock, opens()), (Some(Errno::EPROTO), 0));
    let mode = async |mode| {
        let chmod = c.setattr(fid, |r| (r.valid, r.mode) = (sa::MODE, mode));
        chmod.await.map(drop)
    };
    c.user(1000, 1000)
        .open_untold(fid, flag::READ, true)
        .await?;
    mode(0o100600).await?;
    c.user(1000, 1000)
        .open_untold(fid, flag::READ, true)
        .await?;
    let other = d.user(1000, 1000);
    let refused = other.open_untold(fid, flag::READ, true).await.err();
    assert_eq!((refused, opens()), (Some(Errno::EACCES), 2));
    // nothing moves of what is its owner's alone, nor into the future
    let atime = async || d.getattr(fid).await.map(|b| b.atime >> 30);
    let was = atime().await? - 1000;
    let set = c.setattr(fid, |r| {
        (r.valid, r.atime) = (sa::ATIME | sa::ATIME_SET, pack_time(was, 0))
    });
    set.await?;
    d.read_untold(fid, was + 100).await?;
    assert_eq!(atime().await?, was);
    mode(0o100444).await?;
    d.read_untold(fid, 1 << 33).await?;
    assert_eq!(atime().await?, was);
    d.read_untold(fid, was + 100).await?;
    assert_eq!(atime().await?, was + 100);
    d.read_untold(Fid::ROOT, was + 100).await?;
    rig.stop().await;
    Ok(())
}

/// Names taken away under the right to a directory: all or none, and only of who has it.
#[tokio::test]
async fn a_directory_is_lent_to_one_client_at_a_time() -> TestResult {
    let rig = Rig::new(2).await;
    let (a, b) = (rig.client("1@lo").await, rig.client("2@lo").await);
    let d = a.mkdir(Fid::ROOT, b"d").await?;
    let mut fids = Vec::new();
    for name in [b"f0", b"f1", b"f2", b"f3"] {
        fids.push(a.mknod(d, name, 0o100644).await?);
    }
    let sub = a.mkdir(d, b"sub").await?;
    let no = async |names: &[u8], fids: &[Fid]| a.unlink_lent(d, names, fids).await.unwrap_err();

    // without the right
    assert_eq!(no(b"f0\0", &fids[..1]).await, Errno::ESTALE);
    // one of the entries is another's too
    let seen = b.lookup(d, b"f1").await?;
    assert!(b.has_lock(&seen));
    assert_eq!(a.lend(d, &[]).await?.lock, None);
    b.ns.cancel_unused().await;
    // its own locks go for it, and stay where they are not named
    let own = a.lookup(d, b"").await?;
    assert_eq!(a.lend(d, &[]).await?.lock, None);
    assert!(a.has_lock(&own));
    let lent = a.lend(d, &[own.lock_cookie]).await?;
    assert_eq!((lent.body.fid1, lent.lock.is_some()), (d, true));
    let here = rig.mdt().target.ldlm().locks();
    let on_it = here.iter().filter(|l| l.res == d.res_id());
    assert_eq!(on_it.count(), 1, "{here:?}");

    // what is no such request, or cannot be done, does nothing
    for (names, of, e) in [
        (&b"f0\0f1\0"[..], &fids[..1], Errno::EPROTO),
        (b"f0\0", &fids[..0], Errno::EPROTO),
        (b"f0\0f0\0", &[fids[0], fids[0]], Errno::ENOENT),
        (b"f0\0gone\0", &fids[..2], Errno::ENOENT),
        (b"f0\0f1\0", &[fids[0], fids[2]], Errno::ESTALE),
        (b"f0\0sub\0", &[fids[0], sub], Errno::EISDIR),
        (b"f0\0..\0", &[fids[0], Fid::ROOT], Errno::ENOENT),
    ] {
        assert_eq!(no(names, of).await, e, "{}", names.escape_ascii());
    }
    let many: Vec<Fid> = vec![fids[0]; 65];
    assert_eq!(no(&b"f0\0".repeat(65), &many).await, Errno::EPROTO);
    a.unlink_lent(d, b"f0\0f2\0", &[fids[0], fids[2]]).await?;

    // another client has it given back, whatever it asks
    assert!(a.has_lock(&lent));
    let mut names = b.names(d).await?;
    names.sort();
    assert_eq!(names, [".", "..", "f1", "f3", "sub"]);
    assert!(!a.has_lock(&lent));
    assert_eq!(no(b"f1\0", &fids[1..2]).await, Errno::ESTALE);
    for fid in [fids[0], fids[2]] {
        assert_eq!(b.getattr(fid).await.err(), Some(Errno::ENOENT));
    }
    let again = a.lend(d, &[]).await?;
    assert!(a.has_lock(&again));
    let theirs = b.unlink_lent(d, b"f1\0", &fids[1..2]).await;
    assert_eq!((theirs, a.has_lock(&again)), (Err(Errno::ESTALE), false));
    assert_eq!(a.lend(sub, &[]).await?.body.fid1, sub);
    assert_eq!(a.lend(fids[1], &[]).await.err(), Some(Errno::ENOTDIR));
    rig.stop().await;
    clean(&rig.mem);
    Ok(())
}

/// Figures, not a test: `cargo test -p coral-server --test mdt -- --ignored --nocapture figures`.
#[tokio::test]
#[ignore = "prints figures"]
async fn figures() -> TestResult {
    use coral_osd::{Label, OsdFs, TargetKind};
    const N: u32 = 5000;
    let dir = tempfile::tempdir()?;
    let label = Label {
        kind: TargetKind::Mdt,
        fsname: "test".into(),
        index: 0,
        uuid: "u".into(),
        mgs_nids: vec![],
    };
    OsdFs::format(dir.path(), &label)?;
    let (fs, _) = OsdFs::open(dir.path())?;
    let devices: [(&str, std::sync::Arc<dyn coral_osd::Kv>); 2] = [
        ("osd-mem", std::sync::Arc::new(OsdMem::new())),
        ("osd-fs", std::sync::Arc::new(fs)),
    ];
    for (what, kv) in devices {
        let rig = Rig::on(4, OsdMem::new(), kv).await;
        let c = rig.client("1@lo").await;
        let dir = c.mkdir(Fid::ROOT, b"d").await?;
        let mut opened = Vec::new();
        let t = tokio::time::Instant::now();
        for i in 0..N {
            opened.push(
                c.open(
                    dir,
                    format!("f{i}").as_bytes(),
                    flag::CREAT | flag::WRITE,
                    0o644,
                )
                .await?,
            );
        }
        let create = t.elapsed() / N;
        let t = tokio::time::Instant::now();
        for o in &opened {
            c.close(o).await?;
        }
        let close = t.elapsed() / N;
        let t = tokio::time::Instant::now();
        for i in 0..N {
            c.lookup(dir, format!("f{i}").as_bytes()).await?;
        }
        let lookup = t.elapsed() / N;
        let t = tokio::time::Instant::now();
        for i in 0..N {
            c.unlink(dir, format!("f{i}").as_bytes(), false).await?;
        }
        println!(
            "{what}: create+open {create:?}, close {close:?}, lookup {lookup:?}, unlink {:?}",
            t.elapsed() / N
        );
        rig.stop().await;
    }
    Ok(())
}
