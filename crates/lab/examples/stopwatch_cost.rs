//! What the stopwatch costs: the same work with it on or off, for `perf stat -e instructions:u` to count.
//!
//! `stopwatch_cost on|off create|write|read COUNT`: creates, or writes or reads 4 KiB at a time, in one process and without FUSE,
//! so that nothing else hides the cost. It prints operations and CPU seconds.

use bytes::Bytes;
use coral_client::Cred;
use coral_node::Cluster;
use coral_wire::fid::Fid;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [on, what, count] = &args[..] else {
        return Err("usage: stopwatch_cost on|off create|write|read COUNT".into());
    };
    let (on, count): (bool, u64) = (on == "on", count.parse()?);
    let cluster = Cluster::builder().start().await?;
    let fs = cluster.client().await?;
    let (me, node) = (Cred::root(), fs.node().clone());
    let w = node.stopwatch();
    w.turn(on);
    cluster.node().stopwatch().turn(on);
    let (_, file) = fs.create(&me, fs.root(), b"f", 0o644, 2).await?;
    let before = cpu_s();
    for i in 0..count {
        match what.as_str() {
            "create" => {
                let name = format!("f{i}");
                let made = fs.create(&me, fs.root(), name.as_bytes(), 0o644, 2);
                let (_, file) = w.operation("create", Fid::ZERO, made).await?;
                fs.release(&file).await?;
            }
            "write" => {
                let data = Bytes::from_static(&[7; 4096]);
                let written = fs.write(&me, &file, i % 1024 * 4096, data.into());
                w.operation("write", file.fid(), written).await?;
            }
            _ => {
                let read = fs.read(&file, 0, 4096);
                w.operation("read", file.fid(), read).await?;
            }
        }
    }
    let used = cpu_s() - before;
    println!(
        "{what}, stopwatch {on}: {count} in {used:.3} CPU s, {:.2} us each",
        used * 1e6 / count as f64
    );
    fs.release(&file).await?;
    fs.umount().await;
    cluster.stop().await;
    Ok(())
}

/// CPU seconds of this thread, which runs everything.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    ns.unwrap_or(0.0) / 1e9
}
