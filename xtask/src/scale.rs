//! `cargo xtask bench scale`: many files, made and removed by clients of the library, without a mount.
//!
//! Servers and clients are processes of their own, so that what the servers hold is told apart. It prints the create rate of
//! each 100,000 files, how long a start takes without files and with them, after a clean stop and after `kill -9`, what memory the
//! servers hold, and the space on disk before, with the files and after their removal. Nothing here passes or fails.

use crate::step;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Files made in one step, each step in a directory of its own.
const STEP: u64 = 100_000;
/// Ranks that make them, on one mount.
const RANKS: &str = "4";
/// Address of the servers: they have Lustre's port there, beside others of this machine.
const NID: &str = "127.0.88.1@tcp";
/// Starts of which the median is printed.
const STARTS: usize = 5;
/// How long servers may take to give space back after the last removal.
const GIVE_BACK: Duration = Duration::from_secs(600);
/// What they hold is looked at so often meanwhile.
const LOOK: Duration = Duration::from_secs(2);

/// What is asked for.
pub(crate) struct Asked<'a> {
    /// The program to measure, instead of building it.
    pub coral: Option<PathBuf>,
    /// Where the targets are put; emptied before and after.
    pub dir: &'a Path,
    /// How many files.
    pub files: u64,
    /// MDTs.
    pub mdts: u32,
    /// Each file gets a few bytes, so that OSTs have an object of it.
    pub data: bool,
}

pub(crate) fn run(asked: &Asked<'_>) -> Result<(), String> {
    let coral = asked.coral.clone().map_or_else(step::build_release, Ok)?;
    let [servers, empty] = ["scale", "scale-empty"].map(|name| Scale {
        coral: coral.clone(),
        dir: step::root().join(asked.dir).join(name),
        mdts: asked.mdts,
    });
    let both = [&servers, &empty];
    let _ = both.map(|s| std::fs::remove_dir_all(&s.dir).ok());
    let done = servers.measure(asked, &empty);
    if done.is_err() {
        // whatever runs there is ended before its directory goes
        let _ = both.map(|s| s.down().ok());
    }
    let _ = both.map(|s| std::fs::remove_dir_all(&s.dir).ok());
    done
}

struct Scale {
    coral: PathBuf,
    dir: PathBuf,
    mdts: u32,
}

impl Scale {
    /// `empty` is a file system that stays without files.
    fn measure(&self, asked: &Asked<'_>, empty: &Scale) -> Result<(), String> {
        empty.up()?;
        empty.down()?;
        self.up()?;
        step::wait(LOOK);
        println!("memory, empty           {}", self.memory()?);
        println!("on disk, empty          {}", mib(self.on_disk()?));
        let steps = asked.files.div_ceil(STEP);
        let mut rates = Vec::new();
        for number in 0..steps {
            let mut create = vec!["--create"];
            if asked.data {
                create.push("--smallwrite");
            }
            let rate = self.each_file(&create, number)?;
            rates.push(rate);
            println!(
                "files {:>9}         {rate:.0} creates/s, memory {}, on disk {}",
                (number + 1) * STEP,
                self.memory()?,
                mib(self.on_disk()?)
            );
        }
        let (first, last) = (rates[0], rates[rates.len() - 1]);
        println!(
            "last {STEP} / first     {:.2} ({last:.0} / {first:.0} creates/s)",
            last / first
        );
        self.down()?;
        self.starts("start, full            ", empty, Scale::down)?;
        self.up()?;
        step::wait(5 * LOOK);
        println!("memory, 10 s after it   {}", self.memory()?);
        self.kill()?;
        self.starts("start after kill -9    ", empty, Scale::kill)?;
        self.up()?;
        self.remove(steps)?;
        self.down()
    }

    /// Removes the files and says when their space was given back.
    fn remove(&self, steps: u64) -> Result<(), String> {
        let mut least = f64::MAX;
        for number in 0..steps {
            least = least.min(self.each_file(&["--unlink"], number)?);
        }
        println!(
            "removed                 {least:.0} removals/s at least, memory {}, on disk {}",
            self.memory()?,
            mib(self.on_disk()?)
        );
        let begun = step::now();
        let (mut least, mut since) = (self.on_disk()?, step::now());
        while begun.elapsed() < GIVE_BACK && since.elapsed() < 15 * LOOK {
            step::wait(LOOK);
            let now = self.on_disk()?;
            if now < least {
                (least, since) = (now, step::now());
            }
        }
        println!(
            "on disk at last         {}, {} after the removal",
            mib(least),
            seconds(since.duration_since(begun))
        );
        Ok(())
    }

    /// Runs mdsrate over the files of one step; what it says of its operations in a second, without mounting.
    fn each_file(&self, operation: &[&str], number: u64) -> Result<f64, String> {
        let mut c = Command::new(&self.coral);
        c.args(["mdsrate", "--np", RANKS, "--coral-fs"])
            .arg(format!("{NID}:/coral"))
            .args(operation)
            .args(["--nfiles", &STEP.to_string(), "--ndirs", "1"])
            .arg("--dirfmt")
            .arg(format!("/step{number}_%d"));
        let said = quiet(&mut c)?;
        let rate = said.lines().find_map(|l| l.strip_prefix("Rate: "));
        let rate = rate.and_then(|l| l.split_whitespace().next()?.parse().ok());
        rate.ok_or_else(|| format!("mdsrate said: {said}"))
    }

    /// How long a start takes, and one of `empty`, each ended by `end`: medians of a few, in turns.
    fn starts(
        &self,
        what: &str,
        empty: &Scale,
        end: impl Fn(&Scale) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..STARTS {
            for (servers, took) in [self, empty].into_iter().zip(&mut took) {
                let begun = step::now();
                servers.up()?;
                took.push(begun.elapsed());
                end(servers)?;
            }
        }
        let [full, without] = took.map(|mut took| {
            took.sort();
            took[STARTS / 2]
        });
        println!(
            "{what} {}, {:.2} of {} of one without files",
            seconds(full),
            full.as_secs_f64() / without.as_secs_f64(),
            seconds(without)
        );
        Ok(())
    }

    fn up(&self) -> Result<(), String> {
        quiet(
            Command::new(&self.coral)
                .arg("up")
                .arg(&self.dir)
                .args(["--nid", NID, "--port", "988"])
                .args(["--mdts", &self.mdts.to_string()]),
        )
        .map(drop)
    }

    fn down(&self) -> Result<(), String> {
        quiet(Command::new(&self.coral).arg("down").arg(&self.dir)).map(drop)
    }

    fn pid(&self) -> Result<u32, String> {
        crate::bench::served::pid(&self.coral, &self.dir)
    }

    fn kill(&self) -> Result<(), String> {
        let pid = self.pid()?;
        quiet(Command::new("kill").args(["-9", &pid.to_string()]))?;
        while Path::new(&format!("/proc/{pid}")).exists() {
            step::settle();
        }
        Ok(())
    }

    /// Memory of the servers' process: its own, without pages of files.
    fn memory(&self) -> Result<String, String> {
        let path = format!("/proc/{}/status", self.pid()?);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let kib = |field: &str| -> u64 {
            text.lines()
                .find_map(|l| l.strip_prefix(field))
                .and_then(|l| l.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        Ok(format!(
            "{} (at most {})",
            mib(kib("RssAnon:") << 10),
            mib(kib("VmHWM:") << 10)
        ))
    }

    /// Bytes that the targets take on the disk.
    fn on_disk(&self) -> Result<u64, String> {
        let out = Command::new("du")
            .args(["-s", "--block-size=1"])
            .arg(&self.dir)
            .stderr(Stdio::null())
            .output()
            .map_err(|e| format!("du: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let first = text.split_whitespace().next().and_then(|n| n.parse().ok());
        first.ok_or_else(|| format!("du said: {text}"))
    }
}

/// Runs it; what it says is for the caller.
fn quiet(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let out = command.output().map_err(|e| format!("{shown}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(format!("{shown}: {}: {said}", out.status))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn seconds(d: Duration) -> String {
    format!("{:.2} s", d.as_secs_f64())
}
