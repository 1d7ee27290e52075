//! `coral status` and `coral down`.

use crate::args::{Down, Status};
use crate::control::{self, Ask};
use serde_json::Value;

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
    let ask = if d.force { Ask::DownForced } else { Ask::Down };
    let answer = control::ask(&d.dir, ask).map_err(|_| format!("nothing runs in '{}'", d.dir.display()))?;
    match answer["error"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => {
            println!("stopped");
            Ok(())
        }
    }
}
