//! A mount of a file system in memory, to try the FUSE layer without llite: `memfs DIR [--slow] [--ttl SECONDS]`.
//!
//! `--slow` lets every operation wait once before it begins, so that all requests take the spawned path. `--ttl` gives
//! names and attributes a validity, as under locks. Ends at SIGINT, SIGTERM or unmount, and prints what was counted.

mod locks;
mod memfs;

use std::path::PathBuf;
use std::time::Duration;

use coral_fuse::FuseOptions;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut args = std::env::args().skip(1);
    let mut at = None;
    let (mut slow, mut ttl, mut opts) = (
        false,
        Duration::ZERO,
        FuseOptions {
            source: "memfs".into(),
            ..Default::default()
        },
    );
    while let Some(a) = args.next() {
        match a.as_str() {
            "--slow" => slow = true,
            "--ttl" => ttl = Duration::from_secs_f64(args.next().ok_or("--ttl SECONDS")?.parse()?),
            "--threads" => opts.threads = args.next().ok_or("--threads N")?.parse()?,
            _ => at = Some(PathBuf::from(a)),
        }
    }
    let at = at.ok_or("usage: memfs DIR [--slow] [--ttl SECONDS] [--threads N]")?;
    let mount = coral_fuse::mount_fs(memfs::MemFs::new(slow, ttl), &at, &opts)?;
    println!("mounted on {}", mount.mount_point().display());
    let (mut int, mut term) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = int.recv() => mount.unmount(true).await?,
        _ = term.recv() => mount.unmount(true).await?,
        () = mount.join() => {}
    }
    println!("{}", mount.stats().to_string().replace(") ", ")\n"));
    Ok(())
}
