//! Who a request is made for, as the MDT and OSTs see it: groups from the name service, root squash, nodemaps. Requests are those of
//! a stock client (no private connect flag) where nothing else is said.

mod mdt_rig;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_osd::Objects;
use coral_server::Membership;
use coral_server::mdt::identity::NameService;
use coral_server::nodemap::{Command, IdType, Nodemaps};
use coral_wire::layout::{LOV_OFFSET_DEFAULT, Layout, LovMd};
use coral_wire::mds::{attr as sa, open as flag};
use coral_wire::quota::cmd;
use coral_wire::{Errno, Fid};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// User 1000 is in five groups.
struct Book;

impl NameService for Book {
    fn groups(&self, uid: u32) -> std::io::Result<Option<Vec<u32>>> {
        Ok((uid == 1000).then(|| vec![100, 500, 300, 200, 400]))
    }
    fn waits(&self) -> bool {
        false
    }
}

/// The value of an access ACL: rw for the owner, nothing for his group and others, and `perm` for a named user or group.
fn acl(tag: u16, perm: u16, id: u32) -> Vec<u8> {
    let none = u32::MAX;
    let mut named = vec![
        (1u16, 6u16, none),
        (tag, perm, id),
        (4, 0, none),
        (16, 7, none),
        (32, 0, none),
    ];
    named.sort_by_key(|e| e.0);
    let mut w = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in named {
        w.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        w.extend(id.to_le_bytes());
    }
    w
}

const ACCESS: &[u8] = b"system.posix_acl_access";

async fn make(c: &Client, dir: Fid, name: &[u8], mode: u32) -> Result<Fid, Errno> {
    let o = c
        .open(dir, name, flag::CREAT | flag::WRITE | flag::READ, mode)
        .await?;
    c.close(&o).await?;
    Ok(o.body.fid1)
}

async fn chmod(c: &Client, fid: Fid, mode: u32) -> Result<(), Errno> {
    c.setattr(fid, |r| (r.valid, r.mode) = (sa::MODE | sa::CTIME, mode))
        .await
        .map(drop)
}

async fn chgrp(c: &Client, fid: Fid, gid: u32) -> Result<(), Errno> {
    c.setattr(fid, |r| (r.valid, r.gid) = (sa::GID | sa::CTIME, gid))
        .await
        .map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_user_is_in_more_groups_than_a_request_carries() -> TestResult {
    let mut rig = Rig::new(1).await;
    rig.kill().await;
    rig.names = Some(Arc::new(Book));
    rig.restart().await;
    let root = rig.client_as("10.0.0.5@tcp", 0).await;
    let user = root.user(1000, 100);
    let dir = root.mkdir(Fid::ROOT, b"open").await?;
    chmod(&root, dir, 0o777).await?;
    let fid = make(&user, dir, b"mine", 0o640).await?;
    for gid in [200, 300, 400, 500] {
        chgrp(&user, fid, gid).await?;
        assert_eq!(user.getattr(fid).await?.gid, gid);
    }
    assert_eq!(chgrp(&user, fid, 999).await, Err(Errno::EPERM));

    let hers = make(&root, dir, b"hers", 0o600).await?;
    root.setxattr(hers, ACCESS, Some(&acl(8, 4, 500)), 0)
        .await?;
    let o = user.open(dir, b"hers", flag::READ, 0).await?;
    user.close(&o).await?;
    assert_eq!(
        root.user(1001, 100)
            .open(dir, b"hers", flag::READ, 0)
            .await
            .err(),
        Some(Errno::EACCES),
        "unknown to the name service"
    );

    // nobody is asked any more: what the request carries is all there is
    let name = "mdt.test-MDT0000.identity_upcall";
    assert_eq!(rig.mdt().set_param(name, "NONE").await, Some(Ok(())));
    assert_eq!(chgrp(&user, fid, 200).await, Err(Errno::EPERM));
    assert_eq!(
        user.open(dir, b"hers", flag::READ, 0).await.err(),
        Some(Errno::EACCES)
    );
    assert!(rig.mdt().params().contains(&(name.into(), "NONE".into())));
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_squashed_root_is_a_user_like_others() -> TestResult {
    let rig = Rig::new(1).await;
    let (far, admin) = (
        rig.client_as("10.0.0.5@tcp", 0).await,
        rig.client("10.0.0.6@tcp").await,
    );
    let set = async |name: &str, value: &str| {
        rig.mdt()
            .set_param(&format!("mdt.test-MDT0000.{name}"), value)
            .await
    };
    let secret = make(&admin, Fid::ROOT, b"secret", 0o600).await?;
    let open = admin.mkdir(Fid::ROOT, b"open").await?;
    chmod(&admin, open, 0o1777).await?;
    assert!(far.open(Fid::ROOT, b"secret", flag::READ, 0).await.is_ok());

    assert_eq!(set("root_squash", "500:501").await, Some(Ok(())));
    assert_eq!(set("nosquash_nids", "10.0.0.6@tcp").await, Some(Ok(())));
    assert_eq!(
        far.open(Fid::ROOT, b"secret", flag::READ, 0).await.err(),
        Some(Errno::EACCES)
    );
    assert_eq!(far.mkdir(Fid::ROOT, b"mine").await, Err(Errno::EACCES));
    assert_eq!(chmod(&far, secret, 0o4777).await, Err(Errno::EPERM));
    assert_eq!(
        far.unlink(Fid::ROOT, b"secret", false).await.map(drop),
        Err(Errno::EACCES)
    );
    assert_eq!(
        far.setxattr(secret, b"trusted.x", Some(b"1"), 0).await,
        Err(Errno::EPERM)
    );
    let made = make(&far, open, b"made", 0o644).await?;
    let body = admin.getattr(made).await?;
    assert_eq!((body.uid, body.gid), (500, 501));
    // the file is his, and that gives no right to give it capabilities
    let (caps, label) = (
        b"security.capability".as_slice(),
        b"security.label".as_slice(),
    );
    assert_eq!(
        far.setxattr(made, caps, Some(b"all"), 0).await,
        Err(Errno::EPERM)
    );
    assert_eq!(
        far.user(500, 501)
            .setxattr(made, caps, Some(b"all"), 0)
            .await,
        Err(Errno::EPERM)
    );
    far.setxattr(made, label, Some(b"x"), 0).await?;
    admin.setxattr(made, caps, Some(b"all"), 0).await?;
    far.setxattr(made, caps, None, 0).await?;
    assert_eq!(admin.getxattr(made, caps).await.err(), Some(Errno::ENODATA));
    admin.mkdir(Fid::ROOT, b"as_root").await?;
    assert_eq!(set("root_squash", "0:0").await, Some(Ok(())));
    assert!(far.open(Fid::ROOT, b"secret", flag::READ, 0).await.is_ok());
    assert_eq!(set("no_such", "1").await, None);
    rig.stop().await;
    Ok(())
}

/// Root would be root again after a restart.
#[tokio::test(start_paused = true)]
async fn what_is_set_at_an_mdt_outlives_it() -> TestResult {
    let mut rig = Rig::new(1).await;
    let set = async |rig: &Rig, name: &str, value: &str| {
        rig.mdt()
            .set_param(&format!("mdt.test-MDT0000.{name}"), value)
            .await
    };
    for (name, value) in [
        ("root_squash", "500:501"),
        ("nosquash_nids", "10.0.0.6@tcp"),
        ("identity_upcall", "NONE"),
        ("identity_expire", "7"),
    ] {
        assert_eq!(set(&rig, name, value).await, Some(Ok(())));
    }
    assert!(set(&rig, "root_squash", "nonsense").await.unwrap().is_err());
    rig.kill().await;
    rig.lose_power();
    rig.restart().await;
    let now = |name: &str| {
        rig.mdt()
            .params()
            .into_iter()
            .find(|(n, _)| n.ends_with(name))
            .unwrap()
            .1
    };
    assert_eq!(
        [
            now("root_squash"),
            now("nosquash_nids"),
            now("identity_upcall"),
            now("identity_expire")
        ],
        ["500:501", "10.0.0.6@tcp", "NONE", "7"]
    );
    let (far, admin) = (
        rig.client_as("10.0.0.5@tcp", 0).await,
        rig.client("10.0.0.6@tcp").await,
    );
    assert_eq!(far.mkdir(Fid::ROOT, b"mine").await, Err(Errno::EACCES));
    admin.mkdir(Fid::ROOT, b"as_root").await?;
    rig.stop().await;
    Ok(())
}

/// Nodemaps after `commands`, which are as `lctl nodemap_*` takes them; `far` holds 10.0.0.5, `admin` 10.0.0.6 and is trusted.
fn nodemaps(more: &[Command]) -> Nodemaps {
    let name = |n: &str| n.to_owned();
    let mut commands = vec![
        Command::Add { name: name("far") },
        Command::Add {
            name: name("admin"),
        },
        Command::AddRange {
            name: name("far"),
            range: name("10.0.0.5@tcp"),
        },
        Command::AddRange {
            name: name("admin"),
            range: name("10.0.0.6@tcp"),
        },
        Command::AddIdmap {
            name: name("far"),
            kind: IdType::Uid,
            map: name("500:1500"),
        },
        Command::AddIdmap {
            name: name("far"),
            kind: IdType::Gid,
            map: name("500:1501"),
        },
        Command::AddIdmap {
            name: name("far"),
            kind: IdType::Projid,
            map: name("5:15"),
        },
        modify("admin", "admin", "1"),
        modify("admin", "trusted", "1"),
        Command::Activate(true),
    ];
    commands.extend_from_slice(more);
    commands
        .iter()
        .fold(Nodemaps::default(), |n, c| n.with(c).expect("a command"))
}

fn modify(name: &str, property: &str, value: &str) -> Command {
    Command::Modify {
        name: name.into(),
        property: property.into(),
        value: value.into(),
    }
}

fn activate(rig: &Rig, more: &[Command]) {
    rig.server().set_nodemaps(Membership {
        maps: nodemaps(more),
        mdts: Vec::new(),
    });
}

#[tokio::test(start_paused = true)]
async fn ids_are_mapped_on_the_way_in_and_back() -> TestResult {
    let rig = Rig::new(1).await;
    let (far, admin) = (
        rig.client_as("10.0.0.5@tcp", 0).await,
        rig.client("10.0.0.6@tcp").await,
    );
    let dir = admin.mkdir(Fid::ROOT, b"dir").await?;
    chmod(&admin, dir, 0o1777).await?;
    activate(&rig, &[]);
    let user = far.user(500, 500);
    let fid = make(&user, dir, b"f", 0o600).await?;
    let ids = |b: coral_wire::mds::MdtBody| (b.uid, b.gid);
    assert_eq!(
        (
            ids(user.getattr(fid).await?),
            ids(admin.getattr(fid).await?)
        ),
        ((500, 500), (1500, 1501))
    );
    let found = user.lookup(dir, b"f").await?;
    assert_eq!(ids(found.body), (500, 500));
    // 1500 of the far node is nobody here
    assert_eq!(
        far.user(1500, 1501)
            .open(dir, b"f", flag::READ, 0)
            .await
            .err(),
        Some(Errno::EACCES)
    );
    let theirs = make(&far.user(777, 778), dir, b"nobodys", 0o644).await?;
    assert_eq!(ids(admin.getattr(theirs).await?), (65534, 65534));
    assert_eq!(
        ids(admin
            .getattr(make(&far, dir, b"roots", 0o644).await?)
            .await?),
        (65534, 65534)
    );
    assert_eq!(
        chmod(&far, fid, 0o777).await,
        Err(Errno::EPERM),
        "a squashed root"
    );
    // -1 names nobody, whoever says it; as an owner in a setattr it leaves the owner
    let none = u32::MAX;
    for (i, c) in [far.user(none, none), admin.user(none, none)]
        .into_iter()
        .enumerate()
    {
        let name = format!("none{i}");
        let body = admin
            .getattr(make(&c, dir, name.as_bytes(), 0o644).await?)
            .await?;
        assert_eq!(ids(body), (65534, 65534));
        admin.unlink(dir, name.as_bytes(), false).await?;
    }
    let body = user
        .setattr(fid, |r| {
            (r.valid, r.uid, r.gid) = (sa::UID | sa::GID | sa::CTIME, none, none)
        })
        .await?;
    assert_eq!(ids(body), (500, 500));

    // the root directory is root's, whom the far node does not know
    assert_eq!(ids(user.getattr(Fid::ROOT).await?), (65534, 65534));
    admin
        .setattr(fid, |r| (r.valid, r.projid) = (sa::PROJID | sa::CTIME, 15))
        .await?;
    assert_eq!(user.getattr(fid).await?.projid, 5);

    user.setxattr(fid, ACCESS, Some(&acl(2, 4, 500)), 0).await?;
    assert_eq!(user.getxattr(fid, ACCESS).await?, acl(2, 4, 500));
    assert_eq!(admin.getxattr(fid, ACCESS).await?, acl(2, 4, 1500));
    assert_eq!(
        user.setxattr(fid, ACCESS, Some(&acl(2, 4, 501)), 0).await,
        Err(Errno::EPERM),
        "an entry of nobody"
    );
    admin.setxattr(fid, ACCESS, Some(&acl(8, 4, 9)), 0).await?;
    assert_eq!(
        user.getxattr(fid, ACCESS).await?.len(),
        4 + 4 * 8,
        "an entry of a group that the far node does not know"
    );

    let used = |c: Client, id| async move {
        Ok::<_, Errno>(c.quotactl(cmd::GETOQUOTA, 0, id).await?.dqblk.curinodes)
    };
    assert_eq!(
        (
            used(user.clone(), 500).await?,
            used(admin.clone(), 1500).await?
        ),
        (1, 1)
    );
    assert_eq!(
        (used(user.clone(), 1500).await?, used(admin, 65534).await?),
        (2, 2),
        "1500 is nobody there, as 777 and root are"
    );

    rig.server().set_nodemaps(Membership::default());
    assert_eq!(ids(user.getattr(fid).await?), (1500, 1501), "switched off");
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_nodemap_denies_restricts_and_confines() -> TestResult {
    let rig = Rig::new(1).await;
    let (far, admin) = (
        rig.client_as("10.0.0.5@tcp", 0).await,
        rig.client("10.0.0.6@tcp").await,
    );
    let dir = admin.mkdir(Fid::ROOT, b"dir").await?;
    chmod(&admin, dir, 0o777).await?;
    let sub = admin.mkdir(dir, b"sub").await?;
    let f = make(&admin, dir, b"f", 0o666).await?;
    chmod(&admin, f, 0o666).await?;
    activate(&rig, &[modify("far", "deny_unknown", "1")]);
    let (user, stranger) = (far.user(500, 500), far.user(777, 500));
    assert_eq!(user.lookup(dir, b"f").await?.body.fid1, f);
    for denied in [&stranger, &far, &far.user(u32::MAX, 500)] {
        assert_eq!(denied.getattr(f).await.err(), Some(Errno::EACCES));
        assert_eq!(denied.lookup(dir, b"f").await.err(), Some(Errno::EACCES));
        assert_eq!(
            denied.open(dir, b"f", flag::READ, 0).await.err(),
            Some(Errno::EACCES)
        );
        assert_eq!(denied.mkdir(dir, b"d").await, Err(Errno::EACCES));
        assert_eq!(denied.getxattr(f, b"user.x").await, Err(Errno::EACCES));
    }

    let held = user.open(dir, b"f", flag::READ | flag::WRITE, 0).await?;
    activate(&rig, &[modify("far", "readonly_mount", "1")]);
    assert_eq!(user.mkdir(dir, b"d").await, Err(Errno::EROFS));
    assert_eq!(
        user.open(dir, b"f", flag::WRITE, 0).await.err(),
        Some(Errno::EROFS)
    );
    assert_eq!(chmod(&user, f, 0o600).await, Err(Errno::EROFS));
    let layout = LovMd::request(1 << 20, 1, LOV_OFFSET_DEFAULT, None).encode();
    assert_eq!(
        user.open_with(dir, b"f", flag::READ | flag::HAS_EA, 0, layout)
            .await
            .err(),
        Some(Errno::EROFS)
    );
    let (before, later) = (admin.getattr(f).await?, 1_800_000_000);
    for o in [user.open(dir, b"f", flag::READ, 0).await?, held] {
        let all = sa::ATIME | sa::MTIME | sa::CTIME | sa::LSIZE;
        user.close_with(&o, |r| {
            (r.valid, r.atime, r.mtime, r.ctime, r.size) = (all, later, later, later, 7)
        })
        .await?;
    }
    let after = admin.getattr(f).await?;
    assert_eq!(
        (after.atime, after.mtime, after.ctime, after.size),
        (before.atime, before.mtime, before.ctime, before.size)
    );
    admin.mkdir(dir, b"d").await?;

    activate(
        &rig,
        &[Command::SetFileset {
            name: "far".into(),
            fileset: "/dir/sub".into(),
        }],
    );
    assert_eq!((far.root().await?, admin.root().await?), (sub, Fid::ROOT));
    assert_eq!(
        (
            far.root_at(b"/dir/sub").await?,
            admin.root_at(b"/dir").await?
        ),
        (sub, dir)
    );
    for up in [b"/..".as_slice(), b"/dir/sub/..", b"/dir/sub/../..", b"/."] {
        assert_eq!(
            far.root_at(up).await,
            Err(Errno::EINVAL),
            "{}",
            up.escape_ascii()
        );
    }
    let below = make(&admin, sub, b"g", 0o600).await?;
    assert_eq!(
        (
            admin.fid2path(below).await?.as_str(),
            far.fid2path(below).await?.as_str()
        ),
        ("dir/sub/g", "g")
    );
    assert_eq!(
        (far.fid2path(f).await, far.fid2path(dir).await),
        (Err(Errno::ENOENT), Err(Errno::ENOENT))
    );
    activate(&rig, &[modify("far", "deny_mount", "1")]);
    assert_eq!(far.root().await, Err(Errno::EPERM));
    rig.stop().await;
    Ok(())
}

/// A FID may be made up: it leads to a file as well as a path does, but for the directories on the way.
#[tokio::test(start_paused = true)]
async fn who_makes_up_a_fid_gives_no_name_to_the_file_of_another() -> TestResult {
    let rig = Rig::new(1).await;
    let (far, admin) = (
        rig.client_as("10.0.0.5@tcp", 0).await,
        rig.client("10.0.0.6@tcp").await,
    );
    let theirs = admin.mkdir(Fid::ROOT, b"theirs").await?;
    chmod(&admin, theirs, 0o1777).await?;
    let hidden = admin.mkdir(Fid::ROOT, b"hidden").await?;
    chmod(&admin, hidden, 0o700).await?;
    let user = far.user(500, 500);
    let files = [
        (b"secret".as_slice(), 0o644),
        (b"setuid", 0o4666),
        (b"setgid", 0o2676),
        (b"shared", 0o666),
    ];
    let mut fids = Vec::new();
    for (name, mode) in files {
        let fid = make(&admin, hidden, name, mode).await?;
        chmod(&admin, fid, mode).await?;
        fids.push(fid);
    }
    activate(&rig, &[]);
    let own = make(&user, theirs, b"own", 0o600).await?;
    user.link(own, theirs, b"own too").await?;
    for (i, (fid, expected)) in fids
        .iter()
        .zip([
            Err(Errno::EPERM),
            Err(Errno::EPERM),
            Err(Errno::EPERM),
            Ok(()),
        ])
        .enumerate()
    {
        assert_eq!(
            user.link(*fid, theirs, format!("by-user-{i}").as_bytes())
                .await,
            expected
        );
        assert_eq!(
            far.link(*fid, theirs, format!("by-root-{i}").as_bytes())
                .await,
            expected,
            "a squashed root"
        );
        assert_eq!(
            admin.getattr(*fid).await?.nlink,
            1 + 2 * expected.is_ok() as u32
        );
        admin
            .link(*fid, hidden, format!("more-{i}").as_bytes())
            .await?;
    }
    assert_eq!(far.link(own, theirs, b"x").await, Err(Errno::EPERM));
    activate(&rig, &[modify("far", "trusted", "1")]);
    user.link(fids[0], theirs, b"as on a stock MDT").await?;
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_clients_cached_of_ids_goes_when_the_mapping_changes() -> TestResult {
    let rig = Rig::new(1).await;
    let (far, admin) = (
        rig.client_as("10.0.0.5@tcp", 0).await,
        rig.client("10.0.0.6@tcp").await,
    );
    activate(&rig, &[]);
    make(&admin, Fid::ROOT, b"f", 0o644).await?;
    let export = |c: &Client| {
        rig.mdt()
            .target
            .exports()
            .into_iter()
            .find(|e| e.nid() == c.nid())
            .expect("connected")
            .cookie
    };
    let locks = |c: &Client| {
        rig.mdt()
            .target
            .ldlm()
            .locks()
            .iter()
            .filter(|l| l.export == Some(export(c)))
            .count()
    };
    assert!(far.lookup(Fid::ROOT, b"f").await?.lock.is_some());
    admin.lookup(Fid::ROOT, b"f").await?;
    let others = locks(&admin);
    assert!(locks(&far) > 0 && others > 0);
    activate(&rig, &[modify("far", "squash_uid", "99")]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(locks(&far), 0);
    assert_eq!(far.lookup(Fid::ROOT, b"f").await?.body.uid, 99);
    rig.stop().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_mdt_tells_its_osts_owners_as_they_are_here() -> TestResult {
    let rig = Rig::with_far_osts(1).await;
    let admin = rig.client("10.0.0.6@tcp").await;
    let o = admin
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let Layout::Plain(l) = Layout::decode(&o.md)? else {
        panic!("a plain layout")
    };
    let object = coral_osd::ObjectId {
        seq: 0,
        oid: l.objects[0].oi.object_id(),
    };
    let osd = rig.real[0].clone();
    osd.write(object, 0, &[Bytes::from_static(b"x")]).wait()?;
    for (mdts, owner, expected) in [
        (vec![], 1001, 65534),
        (vec!["10.0.0.1@tcp".parse()?], 1002, 1002),
    ] {
        let far = rig
            .far
            .as_ref()
            .and_then(|f| f[0].as_ref())
            .expect("an OST");
        far.server().set_nodemaps(Membership {
            maps: nodemaps(&[]),
            mdts,
        });
        admin
            .setattr(o.body.fid1, |r| {
                (r.valid, r.uid) = (sa::UID | sa::CTIME, owner)
            })
            .await?;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(osd.attr(object)?.map(|a| a.uid), Some(expected));
    }
    admin.close(&o).await?;
    rig.stop().await;
    Ok(())
}
