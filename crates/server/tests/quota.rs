//! What an MDT counts for users, groups and projects, and how it makes its OSTs count the same (`lustre/quota`).

mod mdt_rig;

use coral_osd::{ObjectId, Objects};
use coral_wire::layout::Layout;
use coral_wire::mds::{attr as sa, open as flag};
use coral_wire::quota::{cmd, dqb};
use coral_wire::{Errno, Fid};
use mdt_rig::{Client, Rig};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Inodes and bytes of users 0 to 2, group 1 and project 5.
async fn used(c: &Client) -> Result<[(u64, u64); 5], Errno> {
    let mut used = [(0, 0); 5];
    for (i, (kind, id)) in [(0, 0), (0, 1), (0, 2), (1, 1), (2, 5)]
        .into_iter()
        .enumerate()
    {
        let q = c.quotactl(cmd::GETOQUOTA, kind, id).await?;
        assert_eq!((q.cmd, q.r#type, q.id), (cmd::GETOQUOTA, kind, id));
        used[i] = (q.dqblk.curinodes, q.dqblk.curspace);
    }
    Ok(used)
}

#[tokio::test]
async fn inodes_are_counted_by_owner() -> TestResult {
    let mut rig = Rig::with_osts(1).await;
    let c = rig.client("10.0.0.2@tcp").await;
    c.setattr(Fid::ROOT, |r| (r.valid, r.mode) = (sa::MODE, 0o777))
        .await?;
    assert_eq!(
        used(&c).await?,
        [(1, 4096), (0, 0), (0, 0), (0, 0), (0, 0)],
        "the root directory"
    );
    let one = c.user(1, 1);
    let dir = one.mkdir(Fid::ROOT, b"d").await?;
    let f = one.mknod(dir, b"f", 0o100644).await?;
    one.symlink(dir, b"s", b"f").await?;
    one.link(f, dir, b"another name").await?;
    assert_eq!(
        used(&c).await?,
        [(1, 4096), (3, 4096), (0, 0), (3, 4096), (0, 0)]
    );
    c.setattr(f, |r| {
        (r.valid, r.uid, r.gid, r.projid) = (sa::UID | sa::GID | sa::PROJID, 2, 2, 5)
    })
    .await?;
    assert_eq!(
        used(&c).await?,
        [(1, 4096), (2, 4096), (1, 0), (2, 4096), (1, 0)]
    );
    c.unlink(dir, b"another name", false).await?;
    assert_eq!(used(&c).await?[4], (1, 0), "not the last name");
    let before = used(&c).await?;
    rig.kill().await;
    rig.restart().await;
    assert_eq!(used(&c).await?, before, "after kill -9");
    let opened = c.open(dir, b"f", flag::READ, 0).await?;
    c.unlink(dir, b"f", false).await?;
    assert_eq!(used(&c).await?[2], (1, 0), "still open");
    c.close(&opened).await?;
    c.unlink(dir, b"s", false).await?;
    c.unlink(Fid::ROOT, b"d", true).await?;
    assert_eq!(used(&c).await?, [(1, 4096), (0, 0), (0, 0), (0, 0), (0, 0)]);
    rig.stop().await;
    Ok(())
}

#[tokio::test]
async fn no_limits_are_set_and_none_can_be() -> TestResult {
    let rig = Rig::new(1).await;
    let c = rig.client("1@lo").await;
    let limits = c.quotactl(cmd::GETQUOTA, 0, 7).await?.dqblk;
    assert_eq!(
        (
            limits.bhardlimit,
            limits.bsoftlimit,
            limits.ihardlimit,
            limits.isoftlimit
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(
        (limits.btime, limits.itime),
        (1 << 48, 1 << 48),
        "the defaults count, as Lustre says it"
    );
    assert_eq!(
        c.quotactl(cmd::GETQUOTA, 0, 0).await?.dqblk.btime,
        604_800,
        "everybody's"
    );
    assert_eq!(
        limits.valid,
        dqb::BLIMITS | dqb::ILIMITS | dqb::BTIME | dqb::ITIME
    );
    let default = c.quotactl(cmd::GETDEFAULT, 2, 0).await?.dqblk;
    assert_eq!((default.bhardlimit, default.ihardlimit), (0, 0));
    let grace = c.quotactl(cmd::GETINFO, 1, 0).await?.dqinfo;
    assert_eq!((grace.bgrace, grace.igrace), (604_800, 604_800));
    for pool in [cmd::GETQUOTAPOOL, cmd::GETINFOPOOL, cmd::GETDEFAULT_POOL] {
        assert_eq!(c.quotactl(pool, 0, 7).await.err(), Some(Errno::ENOENT));
    }
    for absent in cmd::SET.into_iter().chain(cmd::ITER).chain([0, 0x80_0102]) {
        assert_eq!(
            c.quotactl(absent, 0, 7).await.err(),
            Some(Errno::EOPNOTSUPP),
            "{absent:#x}"
        );
    }
    assert_eq!(
        c.quotactl(cmd::GETOQUOTA, 3, 7).await.err(),
        Some(Errno::EOPNOTSUPP)
    );
    rig.stop().await;
    Ok(())
}

/// A chown that the OST could not be told of is told after a kill of the MDT.
#[tokio::test(start_paused = true)]
async fn an_owner_is_told_after_a_kill() -> TestResult {
    let mut rig = Rig::with_far_osts(1).await;
    let c = rig.client("1@lo").await;
    let o = c
        .open(Fid::ROOT, b"f", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let gone = c
        .open(Fid::ROOT, b"gone", flag::CREAT | flag::WRITE, 0o644)
        .await?;
    let id = |md| match Layout::decode(md) {
        Ok(Layout::Plain(l)) => ObjectId {
            seq: 0,
            oid: l.objects[0].oi.object_id(),
        },
        other => panic!("{other:?}"),
    };
    rig.kill_ost(0).await;
    for fid in [o.body.fid1, gone.body.fid1] {
        c.setattr(fid, |r| {
            (r.valid, r.uid, r.gid, r.projid) = (sa::UID | sa::GID | sa::PROJID, 7, 8, 9)
        })
        .await?;
    }
    c.close(&gone).await?;
    c.unlink(Fid::ROOT, b"gone", false).await?;
    rig.kill().await;
    rig.restart().await;
    rig.start_ost(0).await;
    while rig.owners_pending() + rig.destroy_pending() > 0 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let told = rig.real[0]
        .attr(id(&o.md))?
        .map(|a| (a.uid, a.gid, a.projid));
    assert_eq!(told, Some((7, 8, 9)));
    assert_eq!(
        rig.real[0].attr(id(&gone.md))?,
        None,
        "nothing is made of a file that is gone"
    );
    rig.stop().await;
    Ok(())
}
