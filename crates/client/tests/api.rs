//! The file system by path, against a whole cluster in this process: what programs that embed it rely on.

mod common;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use common::Cluster;
use coral_client::{Cred, FileSystem, OpenOptions, PathError, SetAttr, blocking};

async fn mounted(c: &Cluster) -> FileSystem {
    let node = c.remote_node().await.expect("a node");
    FileSystem::mount_on(node, c.mount_options())
        .await
        .expect("mounted")
        .as_user(Cred::root())
}

fn kind<T>(done: Result<T, PathError>) -> ErrorKind {
    done.map(drop).expect_err("refused").kind()
}

#[tokio::test(start_paused = true)]
async fn files_are_found_by_path() {
    let c = Cluster::start(2, 2, 65536).await;
    let fs = mounted(&c).await;
    fs.mkdir("/dir", 0o755).await.unwrap();
    assert_eq!(kind(fs.mkdir("dir", 0o755).await), ErrorKind::AlreadyExists);
    let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();

    let file = fs.create("dir/a").await.unwrap();
    assert_eq!(file.write_at(&data, 0).await.unwrap(), data.len());
    let mut buf = vec![0; 300_000];
    assert_eq!(file.read_at(&mut buf, 0).await.unwrap(), data.len());
    assert!(buf[..data.len()] == data[..]);
    assert_eq!(
        file.read_bytes_at(199_990, 100).await.unwrap(),
        data[199_990..]
    );
    file.set_len(10).await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(file.stat().await.unwrap().size, 10);
    file.close().await.unwrap();
    fs.truncate("dir/a", 5).await.unwrap();
    assert_eq!(fs.stat("dir/a").await.unwrap().size, 5);

    let new = OpenOptions::new().write(true).create_new(true);
    assert_eq!(kind(fs.open("dir/a", &new).await), ErrorKind::AlreadyExists);
    let read = OpenOptions::new().read(true);
    assert_eq!(kind(fs.open("none", &read).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.open("none/a", &read).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.open("dir", &read).await), ErrorKind::IsADirectory);
    assert_eq!(
        kind(fs.open("dir/a/b", &read).await),
        ErrorKind::NotADirectory
    );
    let more = OpenOptions::new().append(true);
    let file = fs.open("dir/a", &more).await.unwrap();
    assert_eq!(file.write_at(b"more", 0).await.unwrap(), 4);
    file.close().await.unwrap();
    assert_eq!(fs.stat("dir/a").await.unwrap().size, 9);

    fs.rename("dir/a", "b").await.unwrap();
    fs.hard_link("b", "dir/c").await.unwrap();
    assert_eq!(fs.stat("b").await.unwrap().nlink, 2);
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    assert_eq!(fs.set_attr("b", mode).await.unwrap().mode & 0o777, 0o600);
    let names: Vec<_> = fs.read_dir("dir").await.unwrap();
    assert_eq!(
        names.iter().map(|e| &e.name[..]).collect::<Vec<_>>(),
        [b"c"]
    );
    assert_eq!(kind(fs.rmdir("dir").await), ErrorKind::DirectoryNotEmpty);
    fs.unlink("dir/c").await.unwrap();
    fs.rmdir("dir").await.unwrap();
    assert!(fs.statfs().await.unwrap().blocks > 0);
    fs.sync().await.unwrap();

    let other = fs.as_user(Cred::user(1000, 1000));
    assert_eq!(
        kind(other.open("b", &read).await),
        ErrorKind::PermissionDenied
    );
    fs.unmount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn symbolic_links_are_followed() {
    let c = Cluster::start(1, 1, 65536).await;
    let fs = mounted(&c).await;
    fs.mkdir("a", 0o755).await.unwrap();
    fs.mkdir("a/b", 0o755).await.unwrap();
    fs.symlink("/a/b", "absolute").await.unwrap();
    fs.symlink("../absolute/file", "a/relative").await.unwrap();
    // through a link whose target is not there yet
    fs.create("a/relative")
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    assert!(fs.stat("a/b/file").await.unwrap().is_file());
    assert!(fs.stat("a/b/../relative").await.unwrap().is_file());
    assert!(fs.symlink_stat("a/relative").await.unwrap().is_symlink());
    assert_eq!(fs.read_link("absolute").await.unwrap(), "/a/b");
    fs.unlink("absolute/file").await.unwrap();
    assert_eq!(kind(fs.stat("a/relative").await), ErrorKind::NotFound);
    fs.symlink("loop", "loop").await.unwrap();
    let looped = fs.stat("loop").await.expect_err("it never ends");
    assert_eq!(looped.raw_os_error(), Some(libc::ELOOP));
    fs.unmount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_is_closed_and_unmounted() {
    let c = Cluster::start(1, 1, 65536).await;
    let fs = mounted(&c).await;
    let file = fs.create("f").await.unwrap();
    for i in 0..10 {
        file.write_at(b"0123456789", 10 * i).await.unwrap();
    }
    let gone = Arc::downgrade(fs.llite());
    drop(fs);
    assert_eq!(
        file.stat().await.unwrap().size,
        100,
        "a file keeps its mount"
    );
    drop(file);
    let ended = async {
        while gone.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, ended).await.expect("unmounted");
    let fs = mounted(&c).await;
    assert_eq!(fs.stat("f").await.unwrap().size, 100);
    fs.unmount().await;
    c.stop().await;
}

#[test]
fn programs_without_a_runtime_have_one_of_the_mount() {
    let rt = tokio::runtime::Runtime::new().expect("a runtime");
    let c = rt.block_on(Cluster::start(1, 1, 65536));
    let mount = || {
        let node = rt.block_on(c.remote_node()).expect("a node");
        let fs = blocking::FileSystem::mount_on(node, c.mount_options());
        fs.expect("mounted").as_user(Cred::root())
    };
    let fs = mount();
    fs.mkdir("dir", 0o755).unwrap();
    let file = fs.create("dir/f").unwrap();
    assert_eq!(file.write_at(b"hello", 0).unwrap(), 5);
    let mut buf = [0; 8];
    assert_eq!(file.read_at(&mut buf, 1).unwrap(), 4);
    assert_eq!(&buf[..4], b"ello");
    file.sync().unwrap();
    file.close().unwrap();
    assert_eq!(fs.read_dir("dir").unwrap().len(), 1);
    assert_eq!(kind(fs.stat("none")), ErrorKind::NotFound);
    fs.unmount();

    // all that is dropped ends by itself
    let fs = mount();
    let file = fs.create("late").unwrap();
    for i in 0..10 {
        file.write_at(b"0123456789", 10 * i).unwrap();
    }
    drop((fs, file));
    let fs = mount();
    assert_eq!(fs.stat("late").unwrap().size, 100);
    fs.unmount();
    rt.block_on(c.stop());
}

#[tokio::test]
async fn what_is_no_source_is_refused() {
    for (bad, why) in [
        ("10.0.0.1@tcp", "NID[:NID...]:/fsname"),
        ("nonsense:/fs", "is no NID"),
    ] {
        let refused = FileSystem::mount(bad).await.err().expect(bad);
        assert!(refused.to_string().contains(why), "{refused}");
    }
}
