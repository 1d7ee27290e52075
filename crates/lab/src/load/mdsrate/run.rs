//! One rank's operations, and the line that sums them up.

use super::settings::{Mode, Settings, print_to};
use crate::load::Failed;
use crate::load::clock::{seconds, wall_s};
use crate::load::meter::{Latency, Meter};
use crate::load::random::Rand;
use crate::load::ranks::Rank;
use crate::load::record::{Phase, RankPhase};
use crate::load::storage::{How, mkdir_all};
use crate::load::text::{c_fixed, ctime};
use std::io;
use std::process::Command;

/// Extended attribute that is set, and its length.
const XATTR: &str = "user.mdsrate";
const XATTR_BYTES: usize = 4000;
/// `--verbose`: every so many operations it is looked whether progress is due.
const CHECK_COUNT: u64 = 10_000;
/// Progress after so many operations, or seconds.
const DISPLAY_COUNT: u64 = 100_000;
const DISPLAY_S: f64 = 100.0;

pub(super) fn run(s: &Settings, rank: &mut Rank<'_>) -> Result<u8, Failed> {
    make_directory(s, rank)?;
    if rank.is_first() || s.debug {
        say(rank, "starting");
    }
    // As the original does: the way to the directory is not walked again for each file.
    let dir = s.dir.as_str();
    let inside = rank
        .storage
        .enter(dir)
        .map_err(Failed::storage("chdir", dir))?;
    let mut work = Work {
        s,
        is_inside: inside.is_some(),
        random: Rand::new(
            s.seed
                .unwrap_or(wall_s() as u32 ^ rank.id.wrapping_mul(0x9e37_79b9)),
        ),
        listing: Vec::new(),
        at: 0,
        small: vec![0; XATTR_BYTES],
    };
    let measures = matches!(s.mode, Mode::Create | Mode::Mknod);
    if !measures && !s.ignore && (s.mode != Mode::Unlink || s.recreate) {
        work.pre_create(rank).map_err(|why| work.named(why))?;
        rank.barrier()?;
    }
    if s.readdir_order && matches!(s.mode, Mode::Lookup | Mode::Open) {
        work.listing = rank
            .storage
            .list(if work.is_inside { "." } else { dir })
            .map_err(Failed::storage("opendir", &s.dir))?;
        let at = work.random.next() as i64 % s.nfiles;
        if at as usize >= work.listing.len() {
            return Err(Failed::Refused(format!(
                "could not read entry number {at} in directory {}.",
                s.dir
            )));
        }
        work.at = at as usize;
    }
    rank.barrier()?;
    let start = rank.clock.now();
    let mut meter = Meter::start(rank.clock, rank.line);
    work.operate(rank, &mut meter, start)?;
    rank.barrier()?;
    let interval = seconds(rank.clock.now() - start);
    finish(s, rank, meter, start, interval)?;
    if s.recreate {
        work.recreate(rank).map_err(|why| work.named(why))?;
    }
    if rank.is_first() || s.debug {
        say(rank, "finished");
    }
    Ok(0)
}

fn say(rank: &Rank<'_>, what: &str) {
    let host = &rank.nodes.hosts[rank.id as usize];
    rank.out
        .line(format!("{}: {host} {what} at {}", rank.id, ctime(wall_s())));
}

fn make_directory(s: &Settings, rank: &mut Rank<'_>) -> Result<(), Failed> {
    if !s.has_dir {
        return Ok(());
    }
    if s.ndirs > 1 || rank.is_first() {
        if s.mdt_count > 1 {
            striped(s, rank)?;
        } else {
            mkdir_all(&*rank.storage, &s.dir, 0o777)
                .map_err(Failed::storage("mkdir -p", &s.dir))?;
        }
    }
    if s.ndirs == 1 {
        rank.barrier()?;
    }
    Ok(())
}

/// `lfs mkdir` with random stripes: the numbers of an unseeded rand(), as in the original.
fn striped(s: &Settings, rank: &Rank<'_>) -> Result<(), Failed> {
    if rank.storage.name() != "POSIX" {
        return Err(Failed::Refused(
            "--mdtcount needs a mount, where lfs makes directories".into(),
        ));
    }
    if rank.storage.size(&s.dir).is_ok() {
        return Ok(());
    }
    let mut rand = Rand::new(1);
    let mut draw = || i64::from(rand.next()) % s.mdt_count;
    let (index, count) = (draw().to_string(), (draw() + 1).to_string());
    let status = Command::new("lfs")
        .args(["mkdir", "-i", &index, "-c", &count, &s.dir])
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        // Another rank of the directory was first.
        _ if rank.storage.size(&s.dir).is_ok() => Ok(()),
        Ok(status) => Err(Failed::Refused(format!(
            "'lfs mkdir -i {index} -c {count} {}' failed: {status}",
            s.dir
        ))),
        Err(e) => Err(Failed::storage("lfs mkdir", &s.dir)(e)),
    }
}

/// What a rank needs to name its files.
struct Work<'s> {
    s: &'s Settings,
    /// Files are named by their names alone.
    is_inside: bool,
    random: Rand,
    listing: Vec<String>,
    at: usize,
    small: Vec<u8>,
}

impl Work<'_> {
    fn path(&self, number: i64) -> Result<String, Failed> {
        let mut path = String::new();
        self.path_to(&mut path, number).map(|()| path)
    }

    /// The same, in the place of what `path` has: nothing is allocated for each operation.
    fn path_to(&self, path: &mut String, number: i64) -> Result<(), Failed> {
        path.clear();
        if !self.is_inside {
            path.push_str(&self.s.dir);
            path.push('/');
        }
        let done = print_to(path, &self.s.file_format, number, "filefmt");
        done.map_err(|w| Failed::Refused(w.why()))
    }

    /// With the whole path of the file.
    fn named(&self, why: Failed) -> Failed {
        match why {
            Failed::Storage { what, path, why } if self.is_inside => Failed::Storage {
                what,
                path: format!("{}/{path}", self.s.dir),
                why,
            },
            why => why,
        }
    }

    fn how(&self) -> How {
        How {
            read: true,
            write: true,
            create: self.s.mode != Mode::Open,
            exclusive: self.s.exclusive,
            mode: 0o644,
            ..How::default()
        }
    }

    /// Makes the files that are to be worked on, the last one first. One that is there says that the others are too.
    fn pre_create(&self, rank: &Rank<'_>) -> Result<(), Failed> {
        let s = self.s;
        let mut number = s.end;
        while number >= s.begin {
            let path = self.path(number)?;
            // The original opens with the flags of its operation: --open makes nothing.
            match rank.storage.open(&path, self.how()) {
                Ok(file) => file
                    .close()
                    .map_err(Failed::storage("precreate close", &path))?,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => break,
                Err(e) => return Err(Failed::storage("precreate open", &path)(e)),
            }
            number -= s.step;
        }
        Ok(())
    }

    fn recreate(&self, rank: &Rank<'_>) -> Result<(), Failed> {
        let s = self.s;
        for number in (s.begin..=s.end).step_by(s.step as usize) {
            let path = self.path(number)?;
            match rank.storage.open(&path, self.how()) {
                Ok(file) => file
                    .close()
                    .map_err(Failed::storage("recreate close", &path))?,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => break,
                Err(e) => return Err(Failed::storage("recreate open", &path)(e)),
            }
        }
        Ok(())
    }

    fn operate(
        &mut self,
        rank: &Rank<'_>,
        meter: &mut Meter<'_>,
        start: i64,
    ) -> Result<(), Failed> {
        let s = self.s;
        let limit = if s.seconds > 0 {
            s.seconds * 1_000_000_000
        } else {
            i64::MAX
        };
        let counted = matches!(s.mode, Mode::Lookup | Mode::Open);
        let mut number = s.begin;
        let mut last = (0, start);
        let mut now = start;
        let mut path = String::new();
        while now - start < limit {
            if counted && meter.operations() >= s.iters as u64 || !counted && number > s.end {
                break;
            }
            match counted {
                true => path = self.next_file()?,
                false => self.path_to(&mut path, number)?,
            }
            number += s.step;
            match self.one(rank, &path).map_err(|why| self.named(why)) {
                Ok(()) => now = meter.done(0),
                Err(Failed::Storage { what, path, why })
                    if why.kind() == io::ErrorKind::NotFound && self.may_miss() =>
                {
                    if !s.ignore {
                        // Without a number of files this is how it is known that all are gone.
                        if s.seconds == 0 {
                            rank.lose(&format!("{what} {path}: {why}"))?;
                        }
                        break;
                    }
                    meter.begin();
                    now = meter.now();
                }
                Err(why) => return Err(why),
            }
            self.progress(rank, meter, start, now, &mut last);
        }
        Ok(())
    }

    /// A file that is not there: the next one, or the end of an unlink.
    fn may_miss(&self) -> bool {
        let ignores =
            matches!(self.s.mode, Mode::Stat | Mode::SetXattr | Mode::Unlink) && self.s.ignore;
        ignores || self.s.mode == Mode::Unlink
    }

    fn one(&self, rank: &Rank<'_>, path: &str) -> Result<(), Failed> {
        let storage = &rank.storage;
        let set = || {
            storage
                .create_xattr(path, XATTR, &self.small)
                .map_err(Failed::storage("setxattr", path))
        };
        match self.s.mode {
            Mode::Create | Mode::Open => {
                let open = storage.open(path, self.how());
                let mut file = open.map_err(Failed::storage("open", path))?;
                if self.s.with_xattr {
                    set()?;
                }
                if self.s.small_write {
                    let wrote = file.write_at(&self.small, 0);
                    wrote.map_err(Failed::storage("write", path))?;
                }
                file.close().map_err(Failed::storage("close", path))
            }
            Mode::Mknod => {
                storage
                    .mknod(path, 0o644)
                    .map_err(Failed::storage("mknod", path))?;
                if self.s.with_xattr { set() } else { Ok(()) }
            }
            Mode::Lookup | Mode::Stat => storage
                .size(path)
                .map(drop)
                .map_err(Failed::storage("stat", path)),
            Mode::Unlink => storage
                .unlink(path)
                .map_err(Failed::storage("unlink", path)),
            Mode::SetXattr => set(),
        }
    }

    fn next_file(&mut self) -> Result<String, Failed> {
        if !self.s.readdir_order {
            let number = i64::from(self.random.next()) % self.s.nfiles;
            return self.path(number);
        }
        let name = &self.listing[self.at];
        self.at = (self.at + 1) % self.listing.len();
        Ok(match self.is_inside {
            true => name.clone(),
            false => format!("{}/{name}", self.s.dir),
        })
    }

    fn progress(
        &self,
        rank: &Rank<'_>,
        meter: &Meter<'_>,
        start: i64,
        now: i64,
        last: &mut (u64, i64),
    ) {
        let nops = meter.operations();
        if !self.s.verbose || nops == 0 || !nops.is_multiple_of(CHECK_COUNT) {
            return;
        }
        let interval = seconds(now - last.1);
        if interval > DISPLAY_S || nops.is_multiple_of(DISPLAY_COUNT) {
            let name = self.s.name;
            rank.out.line(format!(
                "Rank {}: {:.2} {name}s/sec {interval:.2} secs (total: {nops} {name}s {:.2} secs)",
                rank.id,
                (nops - last.0) as f64 / interval,
                seconds(now - start)
            ));
            *last = (nops, now);
        }
    }
}

/// The line of the original: the total over rank 0's time, the sum of the ranks' rates, and a rank's mean rate.
fn finish(
    s: &Settings,
    rank: &mut Rank<'_>,
    meter: Meter<'_>,
    start: i64,
    interval: f64,
) -> Result<(), Failed> {
    let (mine, end) = (meter.operations(), meter.now());
    let latency = meter.finish()?;
    let all = rank.all(mine)?;
    let intervals = rank.all(interval)?;
    let total: u64 = all.iter().sum();
    let aggregated: f64 = all.iter().zip(&intervals).map(|(n, i)| *n as f64 / i).sum();
    let average = total as f64 / intervals.iter().sum::<f64>();
    let took = seconds(rank.clock.now() - start);
    let effective = total as f64 / took;
    if rank.is_first() {
        rank.out.line(format!(
            "Rate: {} eff {} aggr {} avg client {name}s/sec (total: {} threads {total} {name}s {} dirs {} threads/dir {took:.2} secs)",
            c_fixed(effective, 2),
            c_fixed(aggregated, 2),
            c_fixed(average, 2),
            rank.size,
            s.ndirs,
            s.step,
            name = s.name
        ));
        if s.mode == Mode::Unlink && !s.recreate && !s.ignore && total as i64 != s.nfiles {
            rank.out.line(format!(
                "Warning: only unlinked {total} files instead of {}",
                s.nfiles
            ));
        }
    }
    let spans = rank.all_of(&[start, end])?;
    let mut latencies = Latency::new();
    for bytes in rank
        .share(latency.to_bytes())?
        .iter()
        .filter(|_| rank.is_first())
    {
        latencies.merge(&Latency::from_bytes(bytes));
    }
    if let Some(record) = &mut rank.record {
        let per_rank = spans.iter().zip(&all).map(|(span, n)| RankPhase {
            start_s: seconds(span[0]),
            end_s: seconds(span[1]),
            operations: *n,
            bytes: 0,
        });
        let mut phase = Phase::of(s.name, 0, per_rank.collect(), Some(&latencies));
        for (name, value) in [
            ("eff_per_s", effective),
            ("aggr_per_s", aggregated),
            ("avg_client_per_s", average),
            ("secs", took),
        ] {
            phase.printed.insert(name.to_owned(), value.into());
        }
        record.push(phase);
    }
    Ok(())
}
