//! Where the Coral process's CPU time goes, layer by layer: `cargo xtask bench --profile`.
//!
//! perf samples the process with whole call stacks while a row runs on the mount once more. A sample is counted for the
//! innermost frame that belongs to a layer, so time in malloc, memcpy or the kernel belongs to the layer that asked for it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::step;

/// A layer, and what a frame's symbol holds when it belongs there. The first that fits counts.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "fuse: answer to the kernel",
        &["coral_fuse::reply", "coral_fuse::session::send"],
    ),
    ("fuse: request from the kernel", &["coral_fuse"]),
    (
        "osd: tables",
        &[
            "fjall",
            "lsm_tree",
            "coral_osd::fs::tables",
            "coral_osd::fs::journal",
        ],
    ),
    ("osd: objects", &["coral_osd"]),
    ("ldlm, server", &["coral_ldlm::server", "coral_ldlm::core"]),
    ("ldlm, client", &["coral_ldlm"]),
    ("mdt", &["coral_server::mdt"]),
    ("ost", &["coral_server::ost"]),
    ("target: dispatch, exports, replies", &["coral_server"]),
    ("lnet", &["coral_lnet"]),
    ("ptlrpc", &["coral_ptlrpc"]),
    ("client: llite, mdc, lov, osc", &["coral_client"]),
];

/// A recording under way.
pub(super) struct Recording {
    perf: Child,
    file: PathBuf,
}

impl Recording {
    /// Starts perf on process `pid`; what it writes goes to `dir`. Returns when it samples.
    pub(super) fn start(pid: u32, dir: &Path) -> Result<Recording, String> {
        let file = dir.join("perf.data");
        let (mut orders, mut answers) = (
            fifo(&dir.join("perf.orders"))?,
            fifo(&dir.join("perf.answers"))?,
        );
        let control = format!(
            "--control=fifo:{0}/perf.orders,{0}/perf.answers",
            dir.display()
        );
        let mut perf = Command::new("perf");
        perf.args([
            "record",
            "-q",
            "-D",
            "-1",
            &control,
            "--call-graph",
            "dwarf,16384",
            "-F",
            "999",
            "-p",
            &pid.to_string(),
            "-o",
        ])
        .arg(&file);
        let mut perf = perf
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("perf: {e}"))?;
        orders
            .write_all(b"enable\n")
            .map_err(|e| format!("perf's orders: {e}"))?;
        while answers.read(&mut [0; 16]).is_err() {
            if let Some(status) = perf.try_wait().map_err(|e| e.to_string())? {
                return Err(format!("perf record ended before it began: {status}"));
            }
            step::settle();
        }
        Ok(Recording { perf, file })
    }

    /// Ends the recording and prints the layers' shares.
    pub(super) fn finish(mut self, row: &str) -> Result<(), String> {
        // perf writes its file when it is interrupted
        Command::new("kill")
            .args(["-INT", &self.perf.id().to_string()])
            .status()
            .map_err(|e| e.to_string())?;
        self.perf.wait().map_err(|e| e.to_string())?;
        let out = Command::new("perf")
            .args(["script", "--no-inline", "-F", "comm,ip,sym", "-i"])
            .arg(&self.file)
            .stderr(Stdio::null())
            .output();
        let text = out.map_err(|e| format!("perf script: {e}"))?.stdout;
        let _ = std::fs::remove_file(&self.file);
        print!("{}", shares(row, &String::from_utf8_lossy(&text)));
        Ok(())
    }
}

/// A new FIFO, open at both ends, so that neither side waits for the other; a read of an empty one fails.
fn fifo(path: &Path) -> Result<File, String> {
    const O_NONBLOCK: i32 = 0o4000;
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let _ = std::fs::remove_file(path);
    Command::new("mkfifo").arg(path).status().map_err(fail)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_NONBLOCK)
        .open(path)
        .map_err(fail)
}

fn shares(row: &str, script: &str) -> String {
    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    let mut all = 0;
    for sample in script.split("\n\n").filter(|s| !s.trim().is_empty()) {
        all += 1;
        *count
            .entry(sample.lines().skip(1).find_map(layer_of).unwrap_or("other"))
            .or_default() += 1;
    }
    let mut list: Vec<_> = count.into_iter().collect();
    list.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let mut text = format!("{row}: {all} samples of the Coral process\n");
    for (layer, n) in list {
        text.push_str(&format!(
            "    {:>5.1} %  {layer}\n",
            100.0 * n as f64 / all as f64
        ));
    }
    text
}

fn layer_of(frame: &str) -> Option<&'static str> {
    LAYERS
        .iter()
        .find(|(_, names)| names.iter().any(|n| frame.contains(n)))
        .map(|(layer, _)| *layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_belongs_to_its_innermost_layer() {
        let script = "coral\n\t1 malloc\n\t2 coral_osd::fs::tables::commit\n\t3 coral_server::mdt::reint\n\ncoral\n\t1 read\n\t2 coral_fuse::session::reader\n\n";
        let text = shares("x", script);
        assert!(
            text.contains(" 50.0 %  osd: tables")
                && text.contains(" 50.0 %  fuse: request from the kernel"),
            "{text}"
        );
    }
}
