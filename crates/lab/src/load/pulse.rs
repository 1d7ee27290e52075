//! Processes of a run: each has a connection of its own to the hub, beside those of its ranks.
//!
//! On it a process says every second that it is there, and hears in the middle of its ranks' work that the run is over, why, or that the
//! hub is gone. One that says nothing stands still: it was stopped, or its host was. The others wait for its ranks, so whoever started the
//! run is told, and told again when it goes on. The record has it: figures suffer.

use super::clock::seconds;
use super::failed::Failed;
use super::hub::{CANNOT_JOIN, Hub, LISTENER, greeted, put_bytes, read_bytes, read_u32};
use super::meet::Meeting;
use super::record::StoodStill;
use crate::clock::{now, spawn};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often a process says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// One that has said nothing for so long stands still.
const STILL_AFTER: Duration = Duration::from_secs(5);
/// Longest name of a host, bytes.
const MAX_HOST_BYTES: usize = 1024;
/// Longest reason, bytes.
const MAX_WHY_BYTES: usize = 1 << 20;

/// A process with ranks of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its ranks.
    pub ranks: Range<u32>,
    /// Its id there.
    pub pid: u32,
    /// Where.
    pub host: String,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = match self.ranks.is_empty() {
            true => "what started the run".to_owned(),
            false => ranks_text(&self.ranks),
        };
        write!(f, "{who} (process {} on {})", self.pid, self.host)
    }
}

/// "rank 3" or "ranks 2 to 5".
pub(super) fn ranks_text(ranks: &Range<u32>) -> String {
    match ranks.len() {
        1 => format!("rank {}", ranks.start),
        _ => format!("ranks {} to {}", ranks.start, ranks.end.saturating_sub(1)),
    }
}

/// A time in which a process stood still.
#[derive(Clone, Debug)]
pub struct Stood {
    /// Which.
    pub process: Process,
    /// Its beginning, nanoseconds of the common time.
    pub from_ns: i64,
    /// The same by the clock of the process that has heard nothing.
    pub since: Instant,
    /// Its end; None: it has not gone on.
    pub until: Option<Instant>,
}

impl Stood {
    /// For the record.
    pub(super) fn as_record(&self) -> StoodStill {
        StoodStill {
            ranks: self.process.ranks.clone().collect(),
            process: self.process.pid,
            host: self.process.host.clone(),
            from_s: seconds(self.from_ns),
            for_s: self.took().as_secs_f64(),
        }
    }

    fn took(&self) -> Duration {
        let until = self.until.unwrap_or_else(now);
        until.duration_since(self.since)
    }
}

impl Process {
    /// This one, with these ranks.
    pub(super) fn own(ranks: Range<u32>, host: &str) -> Process {
        Process {
            ranks,
            pid: std::process::id(),
            host: host.to_owned(),
        }
    }

    /// What its ranks do, with the verb for one rank or for several.
    pub(super) fn does(&self, one: &str, several: &str) -> String {
        let verb = if self.ranks.len() <= 1 { one } else { several };
        format!("{self} {verb}")
    }

    fn put(&self, to: &mut Vec<u8>) {
        for number in [self.ranks.start, self.ranks.end, self.pid] {
            to.extend(number.to_le_bytes());
        }
        put_bytes(to, self.host.as_bytes());
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Process> {
        let [start, end, pid] = [read_u32(from)?, read_u32(from)?, read_u32(from)?];
        let host = read_bytes(from, MAX_HOST_BYTES)?;
        Ok(Process {
            ranks: start..end,
            pid,
            host: String::from_utf8_lossy(&host).into_owned(),
        })
    }
}

/// What a process hears beside its ranks.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The run is broken, for this reason.
    Broken(String),
    /// Somebody ended it.
    Ended(String),
    /// The hub is gone, and nobody can say more.
    Gone,
}

/// The hub's side, in a thread of the connection: tells the process when the run is over, and hears whether it is there.
pub(super) fn attend(hub: &Hub, stream: &TcpStream, process: &Process) {
    let meeting = &*hub.meeting;
    std::thread::scope(|s| {
        s.spawn(move || {
            // Who is gone by now needs to hear nothing.
            let _ = (&*stream).write_all(&over(meeting));
            meeting.wait_for_the_last();
            let _ = stream.shutdown(Shutdown::Read);
        });
        if listen_to(hub, stream, process).is_err() {
            meeting.goes_on(process);
        }
    });
}

/// Waits for the end of the run; what is to be told of it.
fn over(meeting: &Meeting) -> Vec<u8> {
    let why = meeting.over().unwrap_or_default();
    let mut told = u32::from(meeting.is_ended_from_outside())
        .to_le_bytes()
        .to_vec();
    put_bytes(&mut told, why.as_bytes());
    told
}

/// Fails where the process has gone.
fn listen_to(hub: &Hub, mut stream: &TcpStream, process: &Process) -> io::Result<()> {
    stream.set_read_timeout(Some(BEAT))?;
    let (mut heard, mut is_still) = (now(), false);
    let mut beats = [0; 64];
    loop {
        let asked = now();
        let read = stream.read(&mut beats);
        let own_pause = now().duration_since(asked).saturating_sub(BEAT);
        match read {
            Ok(0) if hub.meeting.is_over() => return Ok(()),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                let longest = beats[..count].iter().max().copied().unwrap_or(0);
                let said = Duration::from_secs(longest.into());
                if is_still {
                    let after = now().duration_since(heard).as_secs();
                    let goes_on = process.does("goes on", "go on");
                    (hub.say)(&format!("{goes_on} after {after} s"));
                    hub.meeting.goes_on(process);
                } else if said >= STILL_AFTER {
                    // This process stood still too, and has not missed it.
                    stood(hub, process, now().checked_sub(said).unwrap_or(heard), said);
                }
                (heard, is_still) = (now(), false);
            }
            Err(e) if is_timeout(&e) => {
                // What came while this process stood still itself is read next.
                heard += own_pause;
                if !is_still && now().duration_since(heard) >= STILL_AFTER {
                    is_still = true;
                    (hub.meeting).stands_still(process, heard, hub.clock.at(heard));
                    let after = STILL_AFTER.as_secs();
                    let still = process.does("stands still", "stand still");
                    (hub.say)(&format!(
                        "{still}: nothing was heard of the process for {after} s; the run goes on when it does"
                    ));
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// A process has stood still since then, so long, and goes on.
fn stood(hub: &Hub, process: &Process, since: Instant, time: Duration) {
    (hub.meeting).stands_still(process, since, hub.clock.at(since));
    hub.meeting.goes_on(process);
    let time = time.as_secs();
    (hub.say)(&format!("{process} stood still for {time} s"));
}

/// Sees until the end of the run where this process itself stood still, as a run that a terminal has stopped (Ctrl-Z): nobody else may
/// be there to notice. Runs in a thread of its own.
pub(super) fn attend_own(hub: &Hub, process: &Process) {
    let mut seen = now();
    while !hub.meeting.is_over_within(BEAT) {
        let last = std::mem::replace(&mut seen, now());
        let time = seen.duration_since(last);
        if time >= STILL_AFTER {
            stood(hub, process, last, time);
        }
    }
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The process's side: calls `heard` when the run at `address` is broken or the hub goes away, from a thread of its own.
pub(super) fn listen(
    address: &str,
    token: &str,
    process: &Process,
    heard: impl FnOnce(Heard) + Send + 'static,
) -> Result<(), Failed> {
    let why = |e: io::Error| Failed::Apart(format!("this process {CANNOT_JOIN} {address}: {e}"));
    let mut about = vec![];
    process.put(&mut about);
    let (mut stream, _) = greeted(address, token, LISTENER, &about).map_err(why)?;
    (stream.get_ref().set_read_timeout(Some(BEAT))).map_err(why)?;
    let listen = move || {
        let told = beat(&mut stream).and_then(|()| {
            stream.get_ref().set_read_timeout(None)?;
            let is_outside = read_u32(&mut stream)? > 0;
            let why = read_bytes(&mut stream, MAX_WHY_BYTES)?;
            Ok((is_outside, String::from_utf8_lossy(&why).into_owned()))
        });
        match told {
            // The run ends in order.
            Ok((_, why)) if why.is_empty() => return,
            Ok((true, why)) => heard(Heard::Ended(why)),
            Ok((false, why)) => heard(Heard::Broken(why)),
            Err(_) => return heard(Heard::Gone),
        }
        // Until this process has ended: it may be stopped before.
        let _ = stream.get_ref().set_read_timeout(Some(BEAT));
        let _ = beat(&mut stream);
    };
    spawn("listen", listen).map(drop).map_err(why)
}

/// Says every second that this process is there, until there is something to read: the seconds since it said so last, at most 255.
fn beat(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    let mut last = now();
    loop {
        match stream.fill_buf() {
            Ok(_) => return Ok(()),
            // Interrupted: as where the process was stopped and goes on.
            Err(e) if is_timeout(&e) || e.kind() == ErrorKind::Interrupted => {
                let since = now().duration_since(last).as_secs();
                stream.get_mut().write_all(&[since.min(255) as u8])?;
                last = now();
            }
            Err(e) => return Err(e),
        }
    }
}
