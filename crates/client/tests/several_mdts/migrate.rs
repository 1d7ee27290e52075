//! Files, directories and trees that move to other MDTs (`lfs migrate -m`), while others use them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coral_client::llite::MigrateRequest;
use coral_client::time::Timespec;
use coral_client::{SetAttr, SetTime};
use coral_lnet::LinkModel;
use coral_wire::Errno;
use coral_wire::layout::{LMV_MAGIC_STRIPE, LmvUserMd, LmvUserMdsData, hash_flag, hash_type};

use crate::common::{Cluster, Result, Rng, SERVER, User, nid};
use crate::several::work::{split, work};
use crate::several::{end, layout_of, mkdir_on, path_of};

/// As `lfs migrate -m` asks for it.
fn to(count: u32, mdt: u32) -> LmvUserMd {
    LmvUserMd::request(count, mdt, hash_flag::FIXED)
}

/// The same with a list of MDTs.
fn to_list(mdts: [u32; 2]) -> LmvUserMd {
    let mut list = to(2, mdts[0]);
    list.head.magic = LMV_MAGIC_STRIPE;
    list.objects = mdts
        .map(|mds| LmvUserMdsData {
            mds,
            ..Default::default()
        })
        .to_vec();
    list
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

async fn gone(u: &User, path: &str) -> bool {
    u.fid(path).await == Err(Errno::ENOENT)
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
            Err(Errno::ENOENT) if gone(u, &format!("{path}/{name}")).await => {}
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
    for (lum, mdts) in [
        (to(2, 1), vec![1, 2]),
        (to_list([2, 0]), vec![2, 0]),
        (to(3, 0), vec![0, 1, 2]),
        (to(1, 0), vec![0]),
    ] {
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

/// Begins to move `d` and returns when it is a directory whose names have not moved.
async fn begun(u: &User, lum: &LmvUserMd) {
    step(u, "d", lum).await.unwrap();
    let (_, hash) = layout_of(u, "d").await;
    assert_ne!(hash & hash_flag::MIGRATION, 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_mdts_is_the_same_in_any_order() {
    let c = Cluster::start_mdts(4, 2).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    let mut dirs = vec!["d".to_owned()];
    dirs.extend((0..8).map(|i| format!("d/{i}")));
    for dir in &dirs {
        u.mkdir(dir).await.unwrap();
    }
    let mut before = Vec::new();
    for list in [[1, 3], [3, 1], [1, 3]] {
        migrate(&u, "d", &to_list(list)).await.unwrap();
        let mut fids = Vec::new();
        for dir in &dirs {
            let (mut mdts, _) = layout_of(&u, dir).await;
            mdts.sort_unstable();
            assert_eq!(mdts, [1, 3], "{dir}");
            fids.push(u.fid(dir).await.unwrap());
        }
        if !before.is_empty() {
            assert_eq!(fids, before, "nothing is moved anew");
        }
        before = fids;
    }
    end(&c, &[&fs]).await;
}

/// What was moved otherwise by itself, or stayed where it was, while the directory above it is on its way.
#[tokio::test(start_paused = true)]
async fn what_has_its_name_in_place_already_is_moved_too() {
    let c = Cluster::start_mdts(4, 2).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    for dir in ["d", "d/sub", "d/sub/below"] {
        u.mkdir(dir).await.unwrap();
    }
    let open = u.create("d/open", libc::O_WRONLY).await.unwrap();
    let list = to_list([1, 3]);
    begun(&u, &list).await;
    migrate(&u, "d/sub", &to(1, 2)).await.unwrap();
    assert_eq!(layout_of(&u, "d/sub").await.0.len(), 1);
    step(&u, "d/open", &list).await.unwrap();
    assert_eq!(mdt_of(&u, "d/open").await, 0, "it is open");
    u.close(&open).await.unwrap();
    migrate(&u, "d", &list).await.unwrap();
    for dir in ["d", "d/sub", "d/sub/below"] {
        let (mut mdts, _) = layout_of(&u, dir).await;
        mdts.sort_unstable();
        assert_eq!(mdts, [1, 3], "{dir}");
    }
    assert!([1, 3].contains(&mdt_of(&u, "d/open").await));
    end(&c, &[&fs]).await;
}

async fn set_xattr(u: &User, path: &str, name: &[u8], value: Vec<u8>) {
    let fid = u.fid(path).await.unwrap();
    let done = u.fs.setxattr(&u.cred, fid, name, value.into(), 0).await;
    done.unwrap();
}

async fn get_xattr(u: &User, path: &str, name: &[u8]) -> Vec<u8> {
    let fid = u.fid(path).await.unwrap();
    u.fs.getxattr(&u.cred, fid, name).await.unwrap().to_vec()
}

#[tokio::test(start_paused = true)]
async fn what_a_file_has_goes_with_it() {
    let c = Cluster::start_mdts(2, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    let d = u.mkdir("d").await.unwrap();
    set_xattr(&u, "d", b"user.of", b"the directory".to_vec()).await;
    set_xattr(&u, "d", b"user.long", vec![7; 5000]).await;
    u.put("d/f", b"contents").await.unwrap();
    let set = SetAttr {
        uid: Some(100),
        gid: Some(200),
        mode: Some(0o640),
        projid: Some(9),
        mtime: Some(SetTime::At(Timespec { secs: 77, nanos: 5 })),
        ..Default::default()
    };
    let f = u.fid("d/f").await.unwrap();
    u.fs.setattr(&u.cred, f, set, None).await.unwrap();
    set_xattr(&u, "d/f", b"user.small", b"value".to_vec()).await;
    set_xattr(&u, "d/f", b"trusted.long", vec![9; 40_000]).await;
    u.symlink("a/target", "d/l").await.unwrap();
    u.fs.mknod(&u.cred, d, b"p", libc::S_IFIFO | 0o600, 0)
        .await
        .unwrap();
    u.fs.mknod(&u.cred, d, b"c", libc::S_IFCHR | 0o600, 0x103)
        .await
        .unwrap();
    let open = u.create("d/none", libc::O_WRONLY).await.unwrap();
    let mut before = BTreeMap::new();
    for path in ["d/f", "d/l", "d/p", "d/c"] {
        before.insert(path, (v.stat(path).await.unwrap(), mdt_of(&v, path).await));
    }
    migrate(&u, "d", &to(1, 1)).await.unwrap();
    for (path, (was, mdt)) in before {
        let is = v.stat(path).await.unwrap();
        assert_eq!((mdt, mdt_of(&v, path).await), (0, 1), "{path}");
        assert_eq!(coral_client::Attr { fid: was.fid, ..is }, was, "{path}");
    }
    assert_eq!(v.get("d/f").await.unwrap(), b"contents");
    assert_eq!(get_xattr(&v, "d/f", b"user.small").await, b"value");
    assert_eq!(get_xattr(&v, "d/f", b"trusted.long").await, vec![9; 40_000]);
    assert_eq!(get_xattr(&v, "d", b"user.of").await, b"the directory");
    assert_eq!(get_xattr(&v, "d", b"user.long").await, vec![7; 5000]);
    let l = v.fid("d/l").await.unwrap();
    assert_eq!(&v.fs.readlink(&v.cred, l).await.unwrap()[..], b"a/target");
    // the file that is open stayed, its name moved; its handle works
    assert_eq!(mdt_of(&v, "d/none").await, 0);
    // what clients had cached of the old one is not the new one's
    u.put("d/f", b"new contents").await.unwrap();
    assert_eq!(v.get("d/f").await.unwrap(), b"new contents");
    u.write(&open, 0, b"open").await.unwrap();
    u.close(&open).await.unwrap();
    assert_eq!(v.get("d/none").await.unwrap(), b"open");
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_of_its_own_goes_where_it_is_told_and_its_name_stays() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "d", 0).await.unwrap();
    u.put("d/a", b"a file").await.unwrap();
    let was = v.fid("d/a").await.unwrap();
    for mdt in [1, 2, 0] {
        step(&u, "d/a", &to(1, mdt)).await.unwrap();
        for who in [&u, &v] {
            assert_eq!(mdt_of(who, "d/a").await, mdt);
            assert_eq!(who.get("d/a").await.unwrap(), b"a file");
            assert_eq!(who.stat("d/a").await.unwrap().nlink, 1);
            assert_eq!(mdt_of(who, "d").await, 0);
        }
        let again = step(&u, "d/a", &to(1, mdt)).await;
        assert_eq!(again, Err(Errno::EALREADY), "{mdt}");
    }
    assert_ne!(v.fid("d/a").await.unwrap(), was);
    // several MDTs are a directory's: a file stays with its name
    let spread = step(&u, "d/a", &to(2, 1)).await;
    assert_eq!(spread, Err(Errno::EALREADY));
    step(&u, "d/a", &to(1, 1)).await.unwrap();
    v.unlink("d/a").await.unwrap();
    assert!(u.names("d").await.unwrap().is_empty());
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_open_or_has_a_name_there_stays_until_it_can_go() {
    let c = Cluster::start_mdts(2, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    mkdir_on(&u, "d", 0).await.unwrap();
    mkdir_on(&u, "e", 0).await.unwrap();
    u.put("d/a", b"in both").await.unwrap();
    u.link("d/a", "d/b").await.unwrap();
    u.put("d/far", b"named elsewhere").await.unwrap();
    u.link("d/far", "e/far").await.unwrap();
    let open = v.create("d/open", libc::O_RDWR).await.unwrap();
    u.dom_dir("d/dom", 1).await;
    u.put("d/dom/x", b"on the MDT").await.unwrap();
    migrate(&u, "d", &to(1, 1)).await.unwrap();
    // the last of its names took it along
    assert_eq!((mdt_of(&v, "d/a").await, mdt_of(&v, "d/b").await), (1, 1));
    assert_eq!(v.fid("d/a").await, v.fid("d/b").await);
    assert_eq!(v.stat("d/a").await.unwrap().nlink, 2);
    assert_eq!(v.get("d/b").await.unwrap(), b"in both");
    for path in ["d/far", "d/open", "d/dom/x"] {
        assert_eq!(mdt_of(&v, path).await, 0, "{path}");
    }
    assert_eq!(v.fid("d/far").await, v.fid("e/far").await);
    assert_eq!(v.get("e/far").await.unwrap(), b"named elsewhere");
    assert_eq!(v.get("d/dom/x").await.unwrap(), b"on the MDT");
    v.write(&open, 0, b"through the handle").await.unwrap();
    v.close(&open).await.unwrap();
    assert_eq!(u.get("d/open").await.unwrap(), b"through the handle");
    // with its other name elsewhere gone, it follows at the next time
    u.unlink("e/far").await.unwrap();
    migrate(&u, "d", &to(1, 1)).await.unwrap();
    assert_eq!(
        (mdt_of(&v, "d/far").await, mdt_of(&v, "d/open").await),
        (1, 1)
    );
    assert_eq!(v.get("d/open").await.unwrap(), b"through the handle");
    end(&c, &[&fs, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_being_moved_is_used_like_any() {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, other) = (c.remote_client().await, c.remote_client().await);
    let (u, v) = (User::root(&fs), User::root(&other));
    for shards in [1, 2] {
        let old = u.mkdir("d").await.unwrap();
        for name in ["a", "b", "c"] {
            u.put(&format!("d/{name}"), name.as_bytes()).await.unwrap();
        }
        u.mkdir("d/sub").await.unwrap();
        u.put("d/sub/x", b"x").await.unwrap();
        let lum = to(shards, 1);
        begun(&v, &lum).await;
        assert_eq!(u.names("d").await.unwrap(), ["a", "b", "c", "sub"]);
        // who is in it by its old FID is in it still
        let at = u.fs.lookup(&u.cred, old, b"a").await.unwrap().attr.fid;
        assert_eq!(Ok(at), u.fid("d/a").await);
        u.fs.mkdir(&u.cred, old, b"by-old", 0o755).await.unwrap();
        // a new name goes where it belongs, and one that is there is not made twice
        u.put("d/new", b"new").await.unwrap();
        let excl = u.create("d/a", libc::O_RDWR | libc::O_EXCL).await;
        assert_eq!(excl.map(drop), Err(Errno::EEXIST));
        assert_eq!(v.mkdir("d/sub").await.map(drop), Err(Errno::EEXIST));
        assert_eq!(u.link("d/b", "d/c").await, Err(Errno::EEXIST));
        u.rename("d/a", "d/b", 0).await.unwrap();
        assert_eq!(v.get("d/b").await.unwrap(), b"a");
        u.rename("d/b", "d/e", 0).await.unwrap();
        v.unlink("d/c").await.unwrap();
        assert_eq!(v.names("d").await.unwrap(), ["by-old", "e", "new", "sub"]);
        assert_eq!(u.rmdir("d").await, Err(Errno::ENOTEMPTY));
        // names that are left keep it from being ended, and another end is refused
        assert_eq!(finish(&v, "d", &lum).await, Err(Errno::ENOTEMPTY));
        assert_eq!(finish(&v, "d", &to(3, 1)).await, Err(Errno::EINVAL));
        assert_eq!(step(&v, "d", &to(1, 2)).await, Err(Errno::EPERM));
        let joe = User::new(&other, 100, 100);
        assert_eq!(step(&joe, "d", &lum).await, Err(Errno::EPERM));
        // the same command again ends it
        migrate(&v, "d", &lum).await.unwrap();
        assert_eq!(layout_of(&u, "d").await.0.len(), shards as usize);
        assert_eq!(u.names("d").await.unwrap(), ["by-old", "e", "new", "sub"]);
        assert_eq!(u.get("d/sub/x").await.unwrap(), b"x");
        for name in ["d/sub/x", "d/e", "d/new"] {
            u.unlink(name).await.unwrap();
        }
        for name in ["d/sub", "d/by-old", "d"] {
            u.rmdir(name).await.unwrap();
        }
    }
    end(&c, &[&fs, &other]).await;
}

/// Two clients change a tree while a third moves it about; one of them ends in the middle and begins again.
async fn used_while_it_moves(seed: u64) {
    let c = Cluster::start_mdts(3, 2).await;
    let (fs, a, b) = (
        c.remote_client().await,
        c.remote_client().await,
        c.remote_client().await,
    );
    // so that operations cross each other
    let slow = LinkModel {
        delay: Duration::from_micros(200),
        ..LinkModel::default()
    };
    for client in [&fs, &a, &b] {
        c.net.set_link(client.node().nid(), nid(SERVER), slow, seed);
    }
    let u = User::root(&fs);
    for dir in ["t", "t/s0", "t/s1"] {
        u.mkdir(dir).await.unwrap();
    }
    let works = [(&a, "a", 1), (&b, "b", 2)].map(|(fs, who, n)| {
        let rng = Rng(seed * 3 + n);
        tokio::task::spawn_local(work(User::root(fs), who, rng, 120))
    });
    let mut rng = Rng(seed * 3 + 3);
    let mut rounds = 0;
    while !works.iter().all(|w| w.is_finished()) {
        let lum = to(1 + rng.below(3) as u32, rng.below(3) as u32);
        let limit = Duration::from_millis(rng.below(40));
        let _ = tokio::time::timeout(limit, migrate(&u, "t", &lum)).await;
        for _ in 0..50 {
            match migrate(&u, "t", &lum).await {
                // it moved on between two looks at it
                Err(Errno::EAGAIN | Errno::ESTALE | Errno::ENOENT | Errno::ENOTEMPTY) => {}
                done => {
                    done.unwrap();
                    break;
                }
            }
        }
        rounds += 1;
    }
    let mut all = BTreeMap::new();
    for w in works {
        all.extend(w.await.unwrap());
    }
    for (path, data) in &all {
        assert_eq!(u.get(path).await.as_ref(), Ok(data), "{path}");
    }
    for dir in ["t/s0", "t/s1", "t"] {
        for name in u.names(dir).await.unwrap() {
            let path = format!("{dir}/{name}");
            match all.remove(&path) {
                Some(_) => u.unlink(&path).await.unwrap(),
                None => panic!("{path} is nobody's"),
            }
        }
        u.rmdir(dir).await.unwrap();
    }
    assert!(all.is_empty() && rounds > 1, "{rounds}: {all:?}");
    end(&c, &[&fs, &a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_used_while_it_moves() {
    for seed in 1..6 {
        println!("seed {seed}");
        let here = tokio::task::LocalSet::new();
        here.run_until(used_while_it_moves(seed)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_data_of_a_file_that_moved_stays_when_its_old_mdt_loses_power() {
    let mut c = Cluster::start_mdts(2, 2).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    u.mkdir("d").await.unwrap();
    u.put("d/f", b"kept").await.unwrap();
    u.put("d/g", b"kept too").await.unwrap();
    migrate(&u, "d", &to(1, 1)).await.unwrap();
    c.mdts_lose_power().await;
    // it looks for objects that no file refers to in the background
    tokio::time::sleep(Duration::from_secs(200)).await;
    let other = c.remote_client().await;
    let v = User::root(&other);
    assert_eq!(mdt_of(&v, "d/f").await, 1);
    assert_eq!(v.get("d/f").await.unwrap(), b"kept");
    assert_eq!(v.get("d/g").await.unwrap(), b"kept too");
    end(&c, &[&fs, &other]).await;
}
