//! A file system of a Coral binary, up and mounted while a benchmark runs.

use super::step;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The MDTs of a file system.
#[derive(Clone, Copy)]
pub(super) struct Mdts {
    pub count: u32,
    /// New directories are striped over all of them.
    pub striped: bool,
}

impl Mdts {
    /// One.
    pub const ONE: Mdts = Mdts {
        count: 1,
        striped: false,
    };
}

/// Up from [`Served::up`] until [`Served::down`].
#[derive(Clone)]
pub(super) struct Served {
    pub coral: PathBuf,
    pub data: PathBuf,
    pub pid: u32,
}

impl Served {
    /// Formats `data`, serves it on `port` and mounts it on `mnt`, with a directory `streams` whose files have 4 stripes.
    pub fn up(
        coral: &Path,
        data: &Path,
        mnt: &Path,
        port: u16,
        mdts: Mdts,
    ) -> Result<Served, String> {
        let _ = std::fs::remove_dir_all(data);
        std::fs::create_dir_all(mnt).map_err(|e| format!("{}: {e}", mnt.display()))?;
        step::run_in(
            Command::new(coral)
                .arg("up")
                .arg(data)
                .arg("--mount")
                .arg(mnt)
                .args(["--port", &port.to_string()])
                .args(["--mdts", &mdts.count.to_string()]),
        )?;
        let (coral, data) = (coral.to_owned(), data.to_owned());
        let pid = status(&coral, &data)?.0;
        let served = Served { coral, data, pid };
        if mdts.striped {
            step::run_in(
                Command::new(&served.coral)
                    .args(["lfs", "setdirstripe", "-D", "-c", &mdts.count.to_string()])
                    .arg(mnt),
            )?;
        }
        let streams = mnt.join("streams");
        std::fs::create_dir_all(&streams).map_err(|e| format!("{}: {e}", streams.display()))?;
        step::run_in(
            Command::new(&served.coral)
                .args(["lfs", "setstripe", "-c", "4", "-S", "1M"])
                .arg(&streams),
        )?;
        Ok(served)
    }

    /// Stops it; nothing of it stays.
    pub fn down(self) -> Result<(), String> {
        let down = step::run_in(Command::new(&self.coral).arg("down").arg(&self.data));
        let _ = std::fs::remove_dir_all(&self.data);
        down
    }
}

/// The process that serves `data`.
pub(crate) fn pid(coral: &Path, data: &Path) -> Result<u32, String> {
    status(coral, data).map(|found| found.0)
}

/// (pid, RPCs, hand-overs, wake-ups) of the running file system.
pub(super) fn status(coral: &Path, data: &Path) -> Result<(u32, u64, u64, u64), String> {
    let out = Command::new(coral)
        .arg("status")
        .arg(data)
        .arg("--json")
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let field = |name: &str| -> Option<u64> {
        let rest = &text[text.find(&format!("\"{name}\":"))? + name.len() + 3..];
        rest.trim_start()
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    // an older build, measured beside, may not count wake-ups
    let wakeups = field("wakeups").unwrap_or(0);
    match (field("pid"), field("rpcs"), field("handovers")) {
        (Some(pid), Some(r), Some(h)) => Ok((pid as u32, r, h, wakeups)),
        _ => Err(format!(
            "coral status {} --json printed: {text}{}",
            data.display(),
            String::from_utf8_lossy(&out.stderr)
        )),
    }
}

/// What a command of the program prints.
pub(super) fn printed(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let out = command.output().map_err(|e| format!("{shown}: {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!(
            "{shown}: {}: {}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        )),
    }
}

/// Sum of the counters in what `coral metrics` prints whose lines begin so and have `with` in them.
pub(super) fn sum(metrics: &str, begin: &str, with: &str) -> u64 {
    let lines = (metrics.lines()).filter(|l| l.starts_with(begin) && l.contains(with));
    let values = lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}
