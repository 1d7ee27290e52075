//! `coral status` and `coral down`.

use crate::args::{Down, Status};
use crate::control::{self, Ask};
use crate::lnetctl::find::{self, alive};
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Pause between two looks at whether a stopped process has ended.
const POLL: Duration = Duration::from_millis(10);
/// Looks before giving up: 30 s.
const END_POLLS: u32 = 3000;
/// Looks whether those who unmounted have said goodbye: 1 s.
const GOODBYE_POLLS: u32 = 100;

/// Entry of `coral status`.
pub(crate) fn status(s: Status) -> Result<(), String> {
    check_dir(&s.dir)?;
    let answer = control::ask(&s.dir, Ask::Status).map_err(|e| no_answer(&s.dir, &e))?;
    if s.json {
        println!("{answer:#}");
        return Ok(());
    }
    if answer["kind"] == "router" {
        crate::router::print(&answer);
        return Ok(());
    }
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let nids: Vec<String> = answer["nids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .collect();
    println!(
        "file system {} (pid {}), {} port {}, accept {}",
        text(&answer["fsname"]),
        answer["pid"],
        nids.join(" "),
        answer["port"],
        text(&answer["accept"])
    );
    if !answer["mount"].is_null() {
        println!("mounted on {}", text(&answer["mount"]));
    }
    for t in answer["targets"].as_array().into_iter().flatten() {
        println!(
            "{:<16} {:<10} {:>4} clients   {}",
            text(&t["name"]),
            text(&t["state"]),
            t["exports"],
            text(&t["dir"])
        );
        if let Some(waits) = t["waits"].as_str() {
            println!("  waits {waits}");
        }
        if let Some(trouble) = t["trouble"].as_str() {
            println!("    trouble: {trouble}");
        }
    }
    println!("{}", counted(&answer));
    Ok(())
}

/// What was counted, as one line.
fn counted(answer: &Value) -> String {
    let n = |name: &str| answer[name].as_u64().unwrap_or(0);
    let (rpcs, requests) = (n("rpcs"), n("requests"));
    // RPCs of a mount to servers of its own process are both
    let per = n("wakeups") as f64 / rpcs.max(requests).max(1) as f64;
    format!(
        "{rpcs} RPCs, {requests} requests served, {} thread hand-overs, {} wake-ups ({per:.1} each)",
        n("handovers"),
        n("wakeups")
    )
}

/// Refuses what nothing can have been started with.
fn check_dir(dir: &Path) -> Result<(), String> {
    let is = match std::fs::metadata(dir) {
        Ok(m) if m.is_dir() => return Ok(()),
        Ok(_) => "is not a directory".to_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => "does not exist".to_owned(),
        Err(e) => format!("cannot be looked at ({e})"),
    };
    Err(format!(
        "'{}' {is}; give the directory that `coral up`, `coral serve` or `coral router` was started with (`pgrep -a coral` shows what runs)",
        dir.display()
    ))
}

/// Says who may ask, or how it is started, as far as the directory tells.
fn no_answer(dir: &Path, why: &std::io::Error) -> String {
    let shown = dir.display();
    if why.kind() == ErrorKind::TimedOut {
        return find::no_answer(&control::path(dir), why);
    }
    if why.kind() == ErrorKind::PermissionDenied {
        return format!(
            "'{}': permission denied; ask as the user who started what runs there",
            control::path(dir).display()
        );
    }
    let how = if dir.join("coral.json").is_file() {
        format!("; start it: coral up {shown}")
    } else if crate::serve::target_dirs(&[dir.to_owned()]).is_ok() {
        format!("; start it: coral serve {shown}")
    } else if control::path(dir).exists() {
        "; what ran there was killed".to_owned()
    } else {
        String::new()
    };
    format!("nothing runs in '{shown}'{how}")
}

/// How things stand before the end. umount(8) returns before the client has said goodbye, so those that are mounted elsewhere get a
/// moment.
#[expect(
    clippy::disallowed_methods,
    reason = "a command that waits for other processes"
)]
fn when_unmounted(dir: &Path) -> Value {
    for _ in 0..GOODBYE_POLLS {
        let status = control::ask(dir, Ask::Status).unwrap_or_default();
        if mounts(&status).is_empty() {
            return status;
        }
        std::thread::sleep(POLL);
    }
    control::ask(dir, Ask::Status).unwrap_or_default()
}

/// Entry of `coral down`.
pub(crate) fn down(d: Down) -> Result<(), String> {
    check_dir(&d.dir)?;
    let before = when_unmounted(&d.dir);
    let pid = before["pid"].as_u64();
    let ask = if d.force { Ask::DownForced } else { Ask::Down };
    let answer = control::ask(&d.dir, ask).map_err(|e| no_answer(&d.dir, &e))?;
    match answer["error"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => {
            wait_for_end(pid)?;
            println!("stopped");
            print!("{}", still_mounted(&before));
            Ok(())
        }
    }
}

/// NIDs of the clients elsewhere that have the file system mounted.
fn mounts(status: &Value) -> Vec<String> {
    let of = |t: &Value| -> Vec<String> {
        t["mounts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|n| Some(n.as_str()?.to_owned()))
            .collect()
    };
    let mut nids: Vec<String> = status["targets"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(of)
        .collect();
    nids.sort();
    nids.dedup();
    nids
}

/// Who had the file system mounted elsewhere when it was stopped: these mounts wait, and a next start waits for them.
fn still_mounted(status: &Value) -> String {
    match mounts(status).as_slice() {
        [] => String::new(),
        nids => format!(
            "still mounted at {}: programs there wait until it is up again; the next start waits for these mounts\n",
            nids.join(" ")
        ),
    }
}

/// The answer comes when all is stopped; the locks on the targets go with the process, a moment later.
#[expect(
    clippy::disallowed_methods,
    reason = "a command that waits for another process"
)]
fn wait_for_end(pid: Option<u64>) -> Result<(), String> {
    let Some(pid) = pid else { return Ok(()) };
    for _ in 0..END_POLLS {
        if !u32::try_from(pid).is_ok_and(alive) {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    Err(format!(
        "process {pid} has stopped serving but does not end; see its log"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_are_shown_per_request() {
        let of = |rpcs: u64, requests: u64| {
            counted(&serde_json::json!({
                "rpcs": rpcs, "requests": requests, "handovers": 3, "wakeups": 25,
            }))
        };
        assert_eq!(
            of(10, 0),
            "10 RPCs, 0 requests served, 3 thread hand-overs, 25 wake-ups (2.5 each)"
        );
        assert!(of(0, 5).ends_with("(5.0 each)"));
        assert!(of(0, 0).ends_with("(25.0 each)"));
    }
}
