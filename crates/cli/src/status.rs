//! `coral status` and `coral down`.

use crate::args::{Down, Status};
use crate::control::{self, Ask};
use serde_json::Value;
use std::time::Duration;

/// Pause between two looks at whether a stopped process has ended.
const END_POLL: Duration = Duration::from_millis(10);
/// Looks before giving up: 30 s.
const END_POLLS: u32 = 3000;

/// Entry of `coral status`.
pub(crate) fn status(s: Status) -> Result<(), String> {
    if !s.dir.is_dir() {
        return Err(format!("'{}' is no directory", s.dir.display()));
    }
    let answer = control::ask(&s.dir, Ask::Status).map_err(|_| format!("nothing runs in '{}'; start it: coral up {0}", s.dir.display()))?;
    if s.json {
        println!("{answer:#}");
        return Ok(());
    }
    if answer["kind"] == "router" {
        crate::router::print(&answer);
        return Ok(());
    }
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    println!("file system {} (pid {}), {} port {}", text(&answer["fsname"]), answer["pid"], text(&answer["nid"]), answer["port"]);
    if !answer["mount"].is_null() {
        println!("mounted on {}", text(&answer["mount"]));
    }
    for t in answer["targets"].as_array().into_iter().flatten() {
        println!("{:<16} {:<10} {:>4} clients   {}", text(&t["name"]), text(&t["state"]), t["exports"], text(&t["dir"]));
    }
    println!("{} RPCs, {} thread hand-overs", answer["rpcs"], answer["handovers"]);
    Ok(())
}

/// Entry of `coral down`.
pub(crate) fn down(d: Down) -> Result<(), String> {
    if !d.dir.is_dir() {
        return Err(format!("'{}' is no directory", d.dir.display()));
    }
    let pid = control::ask(&d.dir, Ask::Status).ok().and_then(|a| a["pid"].as_u64());
    let ask = if d.force { Ask::DownForced } else { Ask::Down };
    let answer = control::ask(&d.dir, ask).map_err(|_| format!("nothing runs in '{}'", d.dir.display()))?;
    match answer["error"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => {
            wait_for_end(pid)?;
            println!("stopped");
            Ok(())
        }
    }
}

/// The answer comes when all is stopped; the locks on the targets go with the process, a moment later.
#[allow(clippy::disallowed_methods, reason = "a command that waits for another process")]
fn wait_for_end(pid: Option<u64>) -> Result<(), String> {
    let Some(pid) = pid else { return Ok(()) };
    for _ in 0..END_POLLS {
        if !alive(pid) {
            return Ok(());
        }
        std::thread::sleep(END_POLL);
    }
    Err(format!("process {pid} has stopped serving but does not end; see its log"))
}

fn alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
