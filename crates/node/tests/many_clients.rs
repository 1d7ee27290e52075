//! Many client nodes in one process: each mounts, makes files and leaves, and what each costs in memory is measured.
//!
//! `CORAL_CLIENTS=640 CORAL_CLIENT_FILES=100 cargo test --release -p coral-node --test many_clients -- --nocapture` is the whole of it.

use coral_client::Cred;
use coral_node::{Client, Cluster};

const O_RDWR: u32 = 2;
/// Most memory of a client with its files, bytes: what servers in this process keep of them is counted with it.
const CLIENT_BYTES: u64 = 2 << 20;
/// Directories that they share.
const DIRS: usize = 8;

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn setting(name: &str, default: usize) -> usize {
    let value = std::env::var(name).ok();
    value.map_or(default, |v| v.parse().expect("a number"))
}

/// Memory of this process without pages of files, bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a number of KiB") << 10
}

/// Mounts, makes `files` files in one of the directories and one of its own, and stays mounted.
async fn work(
    cluster: &Cluster,
    number: usize,
    files: usize,
) -> Result<Client, Box<dyn std::error::Error>> {
    let fs = cluster.remote_client().await?;
    let me = Cred::root();
    let shared = format!("shared{}", number % DIRS);
    let shared = fs.lookup(&me, fs.root(), shared.as_bytes()).await?;
    let own = format!("own{number}");
    let own = fs.mkdir(&me, fs.root(), own.as_bytes(), 0o755).await?;
    for file in 0..files {
        let dir = if file % 2 == 0 { &shared } else { &own };
        let name = format!("client{number}.{file}");
        let (_, file) = fs
            .create(&me, dir.attr.fid, name.as_bytes(), 0o644, O_RDWR)
            .await?;
        fs.write(
            &me,
            &file,
            0,
            bytes::Bytes::from_static(b"some data").into(),
        )
        .await?;
        fs.release(&file).await?;
    }
    Ok(fs)
}

#[tokio::test]
async fn many_clients_mount_work_and_leave_with_little_memory_each() -> TestResult {
    let (clients, files) = (
        setting("CORAL_CLIENTS", 64),
        setting("CORAL_CLIENT_FILES", 20),
    );
    let cluster = Cluster::builder().mdts(4).osts(4).start().await?;
    let first = cluster.remote_client().await?;
    for dir in 0..DIRS {
        let name = format!("shared{dir}");
        first
            .mkdir(&Cred::root(), first.root(), name.as_bytes(), 0o755)
            .await?;
    }
    // What comes once and stays.
    work(&cluster, clients, files).await?.umount().await;
    let before = memory();
    let mut mounted = Vec::new();
    for _ in 0..clients {
        mounted.push(cluster.remote_client().await?);
    }
    let idle = memory();
    for fs in mounted.drain(..) {
        fs.umount().await;
    }
    let mut working = Vec::new();
    for number in 0..clients {
        working.push(work(&cluster, number, files).await?);
    }
    let worked = memory();
    for fs in working.drain(..) {
        fs.umount().await;
    }
    let left = memory();
    let each = |now: u64| now.saturating_sub(before) / clients as u64;
    println!(
        "{clients} clients, {files} files each: {} KiB each when mounted, {} KiB with their files, {} KiB left behind",
        each(idle) >> 10,
        each(worked) >> 10,
        each(left) >> 10
    );
    let mut listed = 0;
    let root = first.opendir(&Cred::root(), first.root()).await?;
    let mut count = |_| {
        listed += 1;
        false
    };
    first
        .readdir(&Cred::root(), &root, 0, false, &mut count)
        .await?;
    assert_eq!(listed, 2 + DIRS + clients + 1, "with . and ..");
    first.umount().await;
    cluster.stop().await;
    assert!(each(worked) <= CLIENT_BYTES, "{} bytes each", each(worked));
    Ok(())
}
