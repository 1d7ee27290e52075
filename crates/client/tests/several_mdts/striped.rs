//! Directories in shards on several MDTs of Coral's own.

use std::collections::BTreeSet;

use coral_client::time::Timespec;
use coral_client::{SetAttr, SetTime};
use coral_osd::{Batch, Kv};
use coral_server::mdt::record::Inode;
use coral_server::mdt::{check_all, table};
use coral_wire::layout::{LmvUserMd, LmvUserMdsData, hash_flag, hash_type};
use coral_wire::{Errno, Fid};

use crate::common::{Cluster, Result, User, counted};
use crate::several::{end, mkdir_as, mkdir_on, mkdir_over, path_of, restripe};

/// How a directory lies on MDTs: of each shard its MDT, and the hash type.
async fn layout_of(u: &User, path: &str) -> (Vec<u32>, u32) {
    let fid = u.fid(path).await.expect("the directory");
    let raw = u.fs.getxattr(&u.cred, fid, b"lustre.lmv").await;
    let l = LmvUserMd::decode(&raw.expect("a layout")).expect("a layout");
    let mdts = l.objects.iter().map(|o| o.mds).collect();
    (mdts, l.head.hash_type)
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    let mut all: Vec<String> = (0..count).map(|i| format!("{prefix}{i}")).collect();
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn a_striped_directory_is_used_like_any() {
    for hash in [
        hash_type::ALL_CHARS,
        hash_type::FNV_1A_64,
        hash_type::CRUSH,
        hash_type::CRUSH2,
    ] {
        let c = Cluster::start_mdts(3, 2).await;
        let (fs, other) = (c.remote_client().await, c.remote_client().await);
        let (u, v) = (User::root(&fs), User::root(&other));
        mkdir_as(&u, "s", LmvUserMd::request(3, 1, hash))
            .await
            .unwrap();
        assert_eq!(layout_of(&v, "s").await, (vec![1, 2, 0], hash));
        assert_eq!(mkdir_over(&u, "s", 2, 0).await, Err(Errno::EEXIST));
        assert_eq!(v.names("s").await, Ok(vec![]));
        assert_eq!(v.stat("s").await.unwrap().nlink, 2);
        let all = names("f", 40);
        for name in &all {
            u.put(&format!("s/{name}"), name.as_bytes()).await.unwrap();
        }
        for who in [&u, &v] {
            assert_eq!(who.names("s").await, Ok(all.clone()));
        }
        for name in &all {
            assert_eq!(v.get(&format!("s/{name}")).await.unwrap(), name.as_bytes());
        }
        // names lie on all MDTs
        let mut seqs = BTreeSet::new();
        for name in &all {
            seqs.insert(v.fid(&format!("s/{name}")).await.unwrap().seq);
        }
        assert_eq!(seqs.len(), 3);
        let f = u.fid("s/f7").await.unwrap();
        assert_eq!(path_of(&v, f).await, "s/f7");
        // directories within, links and renames over shards
        u.mkdir("s/d").await.unwrap();
        u.mkdir("s/d/e").await.unwrap();
        assert_eq!(v.stat("s").await.unwrap().nlink, 3);
        assert_eq!(path_of(&v, u.fid("s/d/e").await.unwrap()).await, "s/d/e");
        for i in 0..12 {
            u.link(&format!("s/f{i}"), &format!("s/l{i}"))
                .await
                .unwrap();
            u.rename(&format!("s/f{i}"), &format!("s/g{i}"), 0)
                .await
                .unwrap();
            v.rename(&format!("s/g{i}"), &format!("s/d/g{i}"), 0)
                .await
                .unwrap();
            u.rename(&format!("s/d/g{i}"), &format!("s/f{i}"), 0)
                .await
                .unwrap();
            assert_eq!(v.stat(&format!("s/l{i}")).await.unwrap().nlink, 2);
            v.unlink(&format!("s/l{i}")).await.unwrap();
        }
        for i in 0..8 {
            u.rename("s/d", &format!("s/d{i}"), 0).await.unwrap();
            v.rename(&format!("s/d{i}"), "s/d", 0).await.unwrap();
        }
        let up = v.list("s/d").await.unwrap();
        let up = up.iter().find(|e| &e.name[..] == b"..").map(|e| e.fid);
        assert_eq!(up, u.fid("s").await.ok());
        assert_eq!(u.rename("s", "s/d/e/s", 0).await, Err(Errno::EINVAL));
        assert_eq!(u.rmdir("s").await, Err(Errno::ENOTEMPTY));
        assert_eq!(u.unlink("s").await, Err(Errno::EISDIR));
        for name in &all {
            v.unlink(&format!("s/{name}")).await.unwrap();
        }
        assert_eq!(u.rmdir("s").await, Err(Errno::ENOTEMPTY));
        u.rmdir("s/d/e").await.unwrap();
        v.rmdir("s/d").await.unwrap();
        v.rmdir("s").await.unwrap();
        assert_eq!(u.fid("s").await, Err(Errno::ENOENT));
        assert_eq!(u.stat("").await.unwrap().nlink, 2);
        end(&c, &[&fs, &other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shards_lie_where_it_was_asked() {
    let c = Cluster::start_mdts(3, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let fnv = hash_type::FNV_1A_64;
    mkdir_over(&u, "two", 2, 2).await.unwrap();
    assert_eq!(layout_of(&u, "two").await, (vec![2, 0], fnv));
    mkdir_over(&u, "many", 100, 0).await.unwrap();
    assert_eq!(layout_of(&u, "many").await, (vec![0, 1, 2], fnv));
    mkdir_over(&u, "one", 1, 1).await.unwrap();
    assert_eq!(layout_of(&u, "one").await, (vec![], 0));
    // so many on each
    let over = LmvUserMd::request(-2i32 as u32, 0, hash_type::CRUSH | hash_flag::OVERSTRIPED);
    mkdir_as(&u, "over", over).await.unwrap();
    let six = (
        vec![0, 1, 2, 0, 1, 2],
        hash_type::CRUSH | hash_flag::OVERSTRIPED,
    );
    assert_eq!(layout_of(&u, "over").await, six);
    let mut list = LmvUserMd::request(2, 2, hash_type::CRUSH2);
    list.head.magic = coral_wire::layout::LMV_MAGIC_STRIPE;
    let on = |mds| LmvUserMdsData {
        mds,
        ..Default::default()
    };
    list.objects = vec![on(2), on(1)];
    mkdir_as(&u, "list", list.clone()).await.unwrap();
    assert_eq!(layout_of(&u, "list").await, (vec![2, 1], hash_type::CRUSH2));
    list.objects[1].mds = 2;
    assert_eq!(mkdir_as(&u, "twice", list).await, Err(Errno::EINVAL));
    for dir in ["two", "many", "one", "over", "list"] {
        let all = names("f", 9);
        for name in &all {
            u.put(&format!("{dir}/{name}"), b"x").await.unwrap();
        }
        assert_eq!(u.names(dir).await, Ok(all.clone()));
        for name in &all {
            u.unlink(&format!("{dir}/{name}")).await.unwrap();
        }
        u.rmdir(dir).await.unwrap();
    }
    end(&c, &[&fs]).await;
}

async fn set(u: &User, fid: Fid, set: SetAttr) -> Result<()> {
    u.fs.setattr(&u.cred, fid, set, None)
        .await
        .map(drop)
        .map_err(Errno::from)
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_a_striped_directory_holds_for_its_shards() {
    let c = Cluster::start_mdts(3, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    let (joe, eve) = (User::new(&other, 100, 100), User::new(&other, 101, 101));
    let s = mkdir_over(&u, "s", 3, 1).await.unwrap();
    for name in names("f", 9) {
        assert_eq!(
            joe.put(&format!("s/{name}"), b"x").await,
            Err(Errno::EACCES)
        );
    }
    let owner = SetAttr {
        uid: Some(100),
        mode: Some(0o2750),
        gid: Some(500),
        ..Default::default()
    };
    set(&u, s, owner).await.unwrap();
    for who in [&u, &v] {
        let a = who.stat("s").await.unwrap();
        assert_eq!((a.uid, a.gid, a.mode & 0o7777), (100, 500, 0o2750));
    }
    for name in names("f", 9) {
        joe.put(&format!("s/{name}"), b"x").await.unwrap();
        assert_eq!(v.stat(&format!("s/{name}")).await.unwrap().gid, 500);
        assert_eq!(eve.get(&format!("s/{name}")).await, Err(Errno::EACCES));
    }
    assert_eq!(
        set(
            &eve,
            s,
            SetAttr {
                mode: Some(0o777),
                ..Default::default()
            }
        )
        .await,
        Err(Errno::EPERM)
    );
    // times are the latest of the shards', and are set on all
    let long_ago = Timespec {
        secs: 1000,
        nanos: 0,
    };
    let times = SetAttr {
        mtime: Some(SetTime::At(long_ago)),
        ..Default::default()
    };
    set(&u, s, times).await.unwrap();
    assert_eq!(v.stat("s").await.unwrap().mtime, long_ago);
    joe.put("s/new", b"x").await.unwrap();
    assert!(u.stat("s").await.unwrap().mtime > long_ago);
    // extended attributes, long ones too
    for len in [10, 5000] {
        let value = vec![len as u8; len];
        u.fs.setxattr(&u.cred, s, b"user.x", value.clone().into(), 0)
            .await
            .unwrap();
        let got = v.fs.getxattr(&v.cred, s, b"user.x").await.unwrap();
        assert_eq!(&got[..], &value[..]);
    }
    set(
        &u,
        s,
        SetAttr {
            mode: Some(0o755),
            ..Default::default()
        },
    )
    .await
    .unwrap();
    u.fs.removexattr(&u.cred, s, b"user.x").await.unwrap();
    let forged =
        u.fs.setxattr(&u.cred, s, b"trusted.lmv", vec![0; 56].into(), 0)
            .await;
    assert_eq!(forged.map_err(Errno::from), Err(Errno::EPERM));
    // nobody removes it while it is used, and who has it open sees it empty afterwards
    for name in u.names("s").await.unwrap() {
        u.unlink(&format!("s/{name}")).await.unwrap();
    }
    assert_eq!(eve.rmdir("s").await, Err(Errno::EACCES));
    u.rmdir("s").await.unwrap();
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_striped_directory_moves_and_is_replaced() {
    let c = Cluster::start_mdts(3, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "a", 1).await.unwrap();
    mkdir_on(&u, "b", 2).await.unwrap();
    let s = mkdir_over(&u, "a/s", 3, 0).await.unwrap();
    for name in names("f", 9) {
        u.put(&format!("a/s/{name}"), b"x").await.unwrap();
    }
    u.rename("a/s", "b/s", 0).await.unwrap();
    assert_eq!(v.fid("a/s").await, Err(Errno::ENOENT));
    assert_eq!(v.fid("b/s").await, Ok(s));
    assert_eq!(v.names("b/s").await, Ok(names("f", 9)));
    assert_eq!(path_of(&v, v.fid("b/s/f3").await.unwrap()).await, "b/s/f3");
    assert_eq!(
        (
            u.stat("a").await.unwrap().nlink,
            u.stat("b").await.unwrap().nlink
        ),
        (2, 3)
    );
    // over an empty one on other MDTs, from within one
    mkdir_over(&u, "a/t", 2, 1).await.unwrap();
    assert_eq!(u.rename("a", "b/s", 0).await, Err(Errno::ENOTEMPTY));
    u.put("a/t/x", b"x").await.unwrap();
    assert_eq!(u.rename("b/s", "a/t", 0).await, Err(Errno::ENOTEMPTY));
    u.unlink("a/t/x").await.unwrap();
    u.rename("b/s", "a/t", 0).await.unwrap();
    assert_eq!(v.names("a/t").await, Ok(names("f", 9)));
    mkdir_over(&u, "a/t/inner", 2, 2).await.unwrap();
    u.rename("a/t/inner", "b/inner", 0).await.unwrap();
    assert_eq!(v.rename("b", "b/inner/b", 0).await, Err(Errno::EINVAL));
    v.rename("b", "a/t/b", 0).await.unwrap();
    assert_eq!(u.rename("a", "a/t/b/inner/a", 0).await, Err(Errno::EINVAL));
    for name in names("f", 9) {
        u.unlink(&format!("a/t/{name}")).await.unwrap();
    }
    for dir in ["a/t/b/inner", "a/t/b", "a/t", "a"] {
        u.rmdir(dir).await.unwrap();
    }
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn new_directories_are_striped_as_their_parent_says() {
    let c = Cluster::start_mdts(3, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let d = u.mkdir("d").await.unwrap();
    let mut default = LmvUserMd::request(2, 1, hash_type::CRUSH);
    default.head.max_inherit = 2;
    u.fs.setxattr(&u.cred, d, b"lustre.dmv", default.encode(), 0)
        .await
        .unwrap();
    let made = u.fs.mkdir(&u.cred, d, b"s", 0o755).await.unwrap();
    assert_eq!(made.attr.nlink, 2);
    let striped = (vec![1, 2], hash_type::CRUSH);
    assert_eq!(layout_of(&u, "d/s").await, striped);
    u.put("d/s/f", b"x").await.unwrap();
    assert_eq!(u.names("d/s").await, Ok(vec!["f".to_owned()]));
    // two levels, and no more; what is asked for counts more
    u.mkdir("d/s/t").await.unwrap();
    assert_eq!(layout_of(&u, "d/s/t").await, striped);
    u.mkdir("d/s/t/u").await.unwrap();
    assert_eq!(layout_of(&u, "d/s/t/u").await, (vec![], 0));
    mkdir_over(&u, "d/s/v", 3, 0).await.unwrap();
    assert_eq!(layout_of(&u, "d/s/v").await.0, [0, 1, 2]);
    u.unlink("d/s/f").await.unwrap();
    for dir in ["d/s/v", "d/s/t/u", "d/s/t", "d/s", "d"] {
        u.rmdir(dir).await.unwrap();
    }
    end(&c, &[&fs]).await;
}

/// Changes one row of an MDT that has stopped.
fn change(kv: &dyn Kv, change: impl FnOnce(&mut Batch)) {
    let mut b = Batch::new();
    change(&mut b);
    kv.commit(b).wait().expect("a commit");
}

#[tokio::test(start_paused = true)]
async fn a_check_finds_shards_that_do_not_agree() {
    let c = Cluster::start_mdts(2, 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    for dir in ["a", "b", "c"] {
        mkdir_over(&u, dir, 2, 0).await.unwrap();
        u.mkdir(&format!("{dir}/x")).await.unwrap();
    }
    crate::several::quiet(&c).await;
    let mut shards = Vec::new();
    for dir in ["a", "b", "c"] {
        let fid = u.fid(dir).await.unwrap();
        let raw = u.fs.getxattr(&u.cred, fid, b"lustre.lmv").await.unwrap();
        let l = LmvUserMd::decode(&raw).unwrap();
        shards.push([l.objects[0].fid, l.objects[1].fid]);
    }
    let x = u.fid("a/x").await.unwrap();
    fs.umount().await;
    c.stop().await;
    crate::several::assert_clean(&c);
    let disks = [c.disks.mdt_number(0), c.disks.mdt_number(1)];
    let kvs = disks.map(|d| d as &dyn Kv);
    let told = || {
        let report = check_all(&kvs).expect("readable");
        let all: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        all.join("; ")
    };
    // the mode of a shard is another, a shard is gone, a name is where its hash does not say
    let key = |f: &Fid| table::fid_key(f).to_vec();
    let raw = kvs[1]
        .get(table::INODE, &key(&shards[1][1]))
        .unwrap()
        .unwrap();
    let mut ino = Inode::decode(&raw).unwrap();
    ino.mode ^= 0o007;
    change(kvs[1], |b| {
        b.put(table::INODE, key(&shards[1][1]), ino.encode());
    });
    let now = told();
    assert!(now.contains("owner, mode or other attributes"), "{now}");
    change(kvs[1], |b| {
        b.del(table::INODE, key(&shards[2][1]));
    });
    let now = told();
    assert!(now.contains("it is not there"), "{now}");
    let home = usize::from(kvs[0].get(table::INODE, &key(&x)).unwrap().is_none());
    let entry = |shard: &Fid| table::dirent_key(shard, table::name_hash(b"x"), b"x");
    let (from, to) = (shards[0][home], shards[0][1 - home]);
    let value = kvs[home]
        .get(table::DIRENT, &entry(&from))
        .unwrap()
        .unwrap();
    change(kvs[home], |b| {
        b.del(table::DIRENT, entry(&from));
    });
    change(kvs[1 - home], |b| {
        b.put(table::DIRENT, entry(&to), value);
    });
    let now = told();
    assert!(now.contains("its hash says another shard"), "{now}");
}

/// Who may write a striped directory renames the directories of others in it, over shards too: they do not move.
#[tokio::test]
async fn a_directory_is_renamed_over_shards_without_leave_to_write_it() {
    let c = Cluster::start_mdts(3, 2).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let hash = hash_type::FNV_1A_64;
    mkdir_as(&u, "s", LmvUserMd::request(3, 1, hash))
        .await
        .unwrap();
    let mode = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    let s = u.fid("s").await.unwrap();
    fs.setattr(&u.cred, s, mode, None).await.unwrap();
    let somebody = User::new(&fs, 1000, 1000);
    for i in 0..8 {
        let name = format!("s/d{i}");
        u.mkdir(&name).await.unwrap();
        let there = format!("s/e{i}");
        assert_eq!(somebody.rename(&name, &there, 0).await, Ok(()), "{name}");
    }
    u.mkdir("t").await.unwrap();
    let t = u.fid("t").await.unwrap();
    fs.setattr(&u.cred, t, mode, None).await.unwrap();
    let moved = somebody.rename("s/e0", "t/e0", 0).await;
    assert_eq!(moved, Err(Errno::EACCES), "'..' of it is written");
}

/// A new name changes the ctime of a directory in shards, as of any other, and not its mtime.
#[tokio::test(start_paused = true)]
async fn a_new_name_changes_the_ctime_of_all_shards() {
    let c = Cluster::start_mdts(3, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "away", 2).await.unwrap();
    mkdir_over(&u, "s", 3, 1).await.unwrap();
    mkdir_over(&u, "t", 2, 2).await.unwrap();
    let mut last = v.stat("s").await.unwrap();
    let exchange = 2;
    for (from, to, flags) in [
        ("s", "r", 0),
        ("r", "away/r", 0),
        ("away/r", "t", exchange),
        ("t", "s", 0),
    ] {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        u.rename(from, to, flags).await.unwrap();
        for who in [&u, &v] {
            let now = who.stat(to).await.unwrap();
            assert!(now.ctime > last.ctime, "{from} is now {to}");
            assert_eq!(now.mtime, last.mtime, "{from} is now {to}");
        }
        if flags == exchange {
            assert_eq!(
                v.stat(from).await.unwrap().ctime,
                v.stat(to).await.unwrap().ctime
            );
        }
        last = v.stat(to).await.unwrap();
    }
    end(&c, &[&fs, &other]).await;
}

/// A default for directories whose maker says how far it goes.
fn default_of(count: u32, mdt: u32, levels: u8, round_robin: u8) -> LmvUserMd {
    let mut lum = LmvUserMd::request(count, mdt, 0);
    (lum.head.max_inherit, lum.head.max_inherit_rr) = (levels, round_robin);
    lum
}

async fn set_default(u: &User, path: &str, lum: &LmvUserMd) {
    let dir = u.fid(path).await.expect("the directory");
    let set = u.fs.setxattr(&u.cred, dir, b"lustre.dmv", lum.encode(), 0);
    set.await.expect("a default");
}

/// On which MDTs these are, by their FIDs.
async fn mdts_of(u: &User, paths: &[String]) -> Vec<u32> {
    let mut mdts = Vec::new();
    for path in paths {
        let fid = u.fid(path).await.expect("the directory");
        let raw = u.fs.getxattr(&u.cred, fid, b"lustre.mdt").await;
        let text = String::from_utf8(raw.expect("an MDT").to_vec()).expect("text");
        mdts.push(text.parse().expect("an index"));
    }
    mdts
}

async fn made_in(u: &User, dir: &str, count: usize) -> Vec<u32> {
    let path = |n| format!("{dir}{}n{n}", if dir.is_empty() { "" } else { "/" });
    let paths: Vec<String> = (0..count).map(path).collect();
    for path in &paths {
        u.mkdir(path).await.expect("a directory");
    }
    mdts_of(u, &paths).await
}

/// `lfs mkdir`, anywhere.
const ANY: u32 = coral_wire::layout::LMV_OFFSET_DEFAULT;

#[tokio::test(start_paused = true)]
async fn directories_near_the_root_take_turns_on_all_mdts() {
    let c = Cluster::start_mdts(3, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    assert_eq!(made_in(&u, "", 6).await, [0, 1, 2, 0, 1, 2]);
    // two levels further down too, and then they stay
    assert_eq!(made_in(&u, "n1", 3).await, [0, 1, 2]);
    assert_eq!(made_in(&u, "n1/n2", 3).await, [0, 1, 2]);
    assert_eq!(made_in(&u, "n1/n2/n1", 3).await, [1; 3]);
    // of another client, which has not seen what is above
    v.rmdir("n1/n2/n1/n0").await.unwrap();
    assert_eq!(made_in(&v, "n1/n2/n0", 2).await, [0; 2]);
    let deep = u.fid("n1/n2/n1").await.unwrap();
    let made = u.fs.mkdir(&u.cred, deep, b"far", 0o755).await.unwrap();
    assert_eq!(made.attr.fid, v.fid("n1/n2/n1/far").await.unwrap());
    // a moved directory is as deep as it is now
    u.rename("n1/n2/n1", "top", 0).await.unwrap();
    let mut mdts = made_in(&u, "top/n1", 3).await;
    mdts.sort();
    assert_eq!(mdts, [0, 1, 2]);
    // without a default of the root nothing is spread
    set_default(&u, "", &LmvUserMd::request(0, ANY, 0)).await;
    for dir in ["n3", "n4"] {
        let home = mdts_of(&v, &[dir.to_owned()]).await[0];
        assert_eq!(made_in(&u, dir, 3).await, [home; 3], "{dir}");
    }
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_default_goes_down_as_far_as_it_says() {
    let c = Cluster::start_mdts(3, 1).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    // on one MDT, with what is made there
    mkdir_over(&u, "one", 1, 2).await.unwrap();
    assert_eq!(made_in(&u, "one", 3).await, [2; 3]);
    assert_eq!(made_in(&v, "one/n1", 3).await, [2; 3]);
    // round robin one level longer than what is in the directory itself
    mkdir_on(&u, "rr", 1).await.unwrap();
    set_default(&u, "rr", &default_of(1, ANY, 0, 2)).await;
    for who in [&u, &v] {
        let of = |n: &str| format!("{}{n}", if std::ptr::eq(who, &u) { "rr" } else { "rr/n1" });
        let mut mdts = made_in(who, &of(""), 3).await;
        mdts.sort();
        assert_eq!(mdts, [0, 1, 2]);
    }
    let home = mdts_of(&u, &["rr/n1/n0".to_owned()]).await[0];
    assert_eq!(made_in(&v, "rr/n1/n0", 3).await, [home; 3]);
    // what is set further up takes effect at once, for other clients too, and ends
    mkdir_on(&u, "up", 0).await.unwrap();
    u.mkdir("up/a").await.unwrap();
    u.mkdir("up/a/b").await.unwrap();
    assert_eq!(made_in(&v, "up/a/b", 1).await, [0]);
    set_default(&u, "up", &default_of(2, 1, 4, 0)).await;
    v.mkdir("up/a/b/c").await.unwrap();
    assert_eq!(layout_of(&v, "up/a/b/c").await.0, [1, 2]);
    v.mkdir("up/a/b/c/d").await.unwrap();
    assert_eq!(layout_of(&v, "up/a/b/c/d").await.0, [1, 2]);
    v.mkdir("up/a/b/c/d/e").await.unwrap();
    assert!(layout_of(&v, "up/a/b/c/d/e").await.0.is_empty());
    // and is shown
    let b = u.fid("up/a/b").await.unwrap();
    let raw = u.fs.getxattr(&u.cred, b, b"lustre.dmv").await.unwrap();
    let shown = LmvUserMd::decode(&raw).unwrap().head;
    assert_eq!((shown.stripe_count, shown.max_inherit), (2, 2));
    set_default(&v, "up", &LmvUserMd::request(0, ANY, 0)).await;
    u.mkdir("up/a/b/x").await.unwrap();
    assert!(layout_of(&u, "up/a/b/x").await.0.is_empty());
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn directories_go_where_there_is_room() {
    const GIB: u64 = 1 << 30;
    let c = Cluster::start_mdts_of(&[16 * GIB, 4 * GIB, 16 * GIB, 16 * GIB], 1).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    // a quarter of the bytes and of the inodes: a sixteenth of the directories, and of the shards
    let made = made_in(&u, "", 49).await;
    let on = |mdt: u32| made.iter().filter(|m| **m == mdt).count();
    assert_eq!([on(0), on(1), on(2), on(3)], [16, 1, 16, 16]);
    let mut small = 0;
    for n in 0..10 {
        let name = format!("s{n}");
        mkdir_over(&u, &name, 3, ANY).await.unwrap();
        let mut shards = layout_of(&u, &name).await.0;
        small += usize::from(n > 0 && shards.contains(&1));
        shards.sort();
        shards.dedup();
        assert_eq!(shards.len(), 3);
        // the first one is made before the MDTs have heard of each other's space
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert!(small <= 2, "{small} of 9 have a shard on the small one");
    end(&c, &[&fs]).await;
}

/// A program that removes what it lists has each shard to itself: another client sees none of the names.
#[tokio::test(start_paused = true)]
async fn names_go_from_shards_many_in_one_request() {
    const FILES: usize = 300;
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (mut u, v) = (User::root(&fs), User::root(&other));
    u.cred.pid = 7;
    mkdir_over(&u, "s", 3, 1).await.unwrap();
    let s = u.fid("s").await.unwrap();
    for i in 0..FILES {
        u.put(&format!("s/f{i}"), b"data").await.unwrap();
    }
    let remove = async |i: usize| {
        let name = format!("f{i}");
        u.fs.lookup(&u.cred, s, name.as_bytes()).await.unwrap();
        u.fs.unlink(&u.cred, s, name.as_bytes()).await.unwrap();
    };
    let (_, n) = crate::common::rpcs(&fs, async {
        for i in 0..FILES - 1 {
            remove(i).await;
            if i % 50 == 49 {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    })
    .await;
    let reints = n
        .iter()
        .find(|(o, _)| o == "MDS_REINT")
        .map_or(0, |(_, n)| *n);
    assert!(reints <= FILES as u64 / 2, "{n:?}");
    let last = format!("f{}", FILES - 1);
    assert_eq!(v.names("s").await.unwrap(), std::slice::from_ref(&last));
    for who in [&u, &v] {
        assert_eq!(who.stat("s/f77").await.err(), Some(Errno::ENOENT));
    }
    let (mine, theirs) = (u.stat("s").await.unwrap(), v.stat("s").await.unwrap());
    assert_eq!((mine.mtime, mine.size), (theirs.mtime, theirs.size));
    u.unlink(&format!("s/{last}")).await.unwrap();
    u.rmdir("s").await.unwrap();
    end(&c, &[&fs, &other]).await;
}

/// A program that makes file after file in a directory of several shards: each shard is lent by its MDT, and the MDTs hear of the files
/// while the program goes on. Others see all of them, also while the directory is spread over more MDTs.
#[tokio::test(start_paused = true)]
async fn files_in_shards_are_told_late() {
    const FILES: usize = 200;
    let c = Cluster::start_mdts(3, 2).await;
    let (mut u, v) = (
        User::root(&c.remote_client().await),
        User::root(&c.remote_client().await),
    );
    u.cred.pid = 7;
    mkdir_over(&u, "d", 2, 1).await.unwrap();
    let dir = u.fid("d").await.unwrap();
    let late = |u: &User| counted(u, "coral_llite_files_created_late_total");
    for n in 0..FILES {
        let name = format!("f{n}");
        let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) as u32;
        u.fs.lookup(&u.cred, dir, name.as_bytes())
            .await
            .unwrap_err();
        let made = u.fs.make(&u.cred, dir, name.as_bytes(), 0o644, flags);
        let (entry, file) = made.await.unwrap();
        u.fs.flush_opened(&file, 1).await.unwrap();
        u.fs.release_opened(&file).await.unwrap();
        // the shards are asked for beside them
        tokio::time::sleep(std::time::Duration::from_micros(10)).await;
        match n {
            60 => assert_eq!(v.names("d").await.unwrap(), names("f", n + 1)),
            120 => restripe(&v, "d", 3, 0).await.unwrap(),
            _ if n % 20 == 7 => {
                let seen = v.stat(&format!("d/{name}")).await.unwrap();
                assert_eq!(seen, entry.attr);
            }
            _ => {}
        }
    }
    println!("{} of {FILES} files were made late", late(&u));
    assert!(late(&u) > 10);
    for who in [&u, &v] {
        assert_eq!(who.names("d").await.unwrap(), names("f", FILES));
    }
    end(&c, &[&u.fs, &v.fs]).await;
}
