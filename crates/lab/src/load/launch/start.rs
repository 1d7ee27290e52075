//! The ranks are started, meet and are waited for.

use super::children::{BROKEN, Children, Start, There};
use super::force::say;
use super::foreign::HUB_GONE;
use super::own::{Own, Ranks};
use super::place::{DIR, HOST, Launched, MEET, RANKS, RECORD};
use super::{Clock, Connection, Duration, Group, Heard, Hub, Meeting, Process, Stood, hub, pulse};
use super::{Ended, Ending, Failed, Local, Mounted, Run, Tool};
use crate::load::record::StoodStill;
use rustix::fs::Access;
use std::fs;
use std::io::{BufRead, Read};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Ranks of other processes are to be there in so long.
pub(super) const MEET_LIMIT: Duration = Duration::from_secs(60);
/// What ranks that one of ours has started hear where nobody can say more.
const LEFT_ALONE: &str = "whoever started it is there no more";
/// Whoever started a process tells it in so long that the run is over.
const TOLD_WITHIN: Duration = Duration::from_millis(300);
/// Bytes of a token.
const TOKEN_BYTES: usize = 16;
/// Longest file that says where to meet, bytes.
pub(super) const MEET_FILE_MAX: u64 = 512;

/// This process starts the run.
pub(super) fn alone(run: &Run, own: &Own, tool: &dyn Tool) -> Result<Ended, Failed> {
    let size = own.np.or(tool.ranks()).unwrap_or(match own.hosts.len() {
        0 => 1,
        hosts => hosts as u32,
    });
    let size = size.min(super::own::MAX_RANKS);
    can_be_written(run, own)?;
    forget_earlier(run, own)?;
    let meeting = Meeting::new(size);
    run.ending.at(&meeting);
    if !own.hosts.is_empty() {
        let done = on_hosts(run, own, &meeting);
        return finish(run, own, &meeting, done);
    }
    let here = match own.ranks {
        Ranks::Threads => 0..size,
        Ranks::Processes => 0..1,
    };
    let local = Local::new(run, own, tool, here, None)?;
    let done = match own.ranks {
        Ranks::Threads => threads(&local, &meeting),
        Ranks::Processes => processes(&local, own, &meeting),
    };
    // After a failure it is written before the mounts end: their servers may not answer.
    finish(run, own, &meeting, local.end(own, done))
}

/// What is written at the end has a place, before anything is measured. The files themselves are not made: a run that is refused
/// leaves none.
pub(super) fn can_be_written(run: &Run, own: &Own) -> Result<(), Failed> {
    let record = own.json.iter().map(|path| ("--coral-json", path.as_str()));
    let stopwatches = (own.stopwatches.iter()).map(|path| ("--coral-stopwatches", path.as_str()));
    let of_lab = run.env.var(RECORD).map(|path| (RECORD, path));
    for (option, path) in record.chain(stopwatches).chain(of_lab) {
        let refused = |why: String| Failed::Refused(format!("{option} {path}: {why}"));
        if Path::new(path).is_dir() {
            return Err(refused("it is a directory: give a file".to_owned()));
        }
        let dir = match Path::new(path).parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let needed = Access::WRITE_OK | Access::EXEC_OK;
        if let Err(why) = rustix::fs::access(dir, needed) {
            let why = std::io::Error::from(why);
            return Err(refused(format!(
                "no file can be made in '{}': {why}",
                dir.display()
            )));
        }
    }
    Ok(())
}

/// Files of an earlier run of the same names go: where this one leaves none they would pass for its own.
pub(super) fn forget_earlier(run: &Run, own: &Own) -> Result<(), Failed> {
    let of_run = own.json.as_deref().into_iter().chain(run.env.var(RECORD));
    for path in of_run.chain(own.stopwatches.as_deref()) {
        // Where a link leads it leads to the new one too; not those that stand for what is open.
        let is_open = ["/dev", "/proc"]
            .iter()
            .any(|d| Path::new(path).starts_with(d));
        if !is_open
            && let Ok(file) = fs::canonicalize(path)
            && file.is_file()
        {
            fs::remove_file(&file)
                .or_else(|_| fs::File::create(&file).map(drop))
                .map_err(Failed::file(path))?;
        }
    }
    Ok(())
}

/// The record is written whatever came of the run. Where that was ended, it has what all ranks had done: they have left.
pub(super) fn finish(
    run: &Run,
    own: &Own,
    meeting: &Meeting,
    done: Result<u8, Failed>,
) -> Result<Ended, Failed> {
    let is_told = run.ending.outside().is_some() || meeting.is_told();
    let with_told = |why: &str| format!("{why}; {}", meeting.told());
    let done = done.map_err(|why| match why {
        Failed::Apart(why) if run.ending.why().is_some() && is_told => {
            Failed::Apart(with_told(&why))
        }
        // Nothing was begun.
        Failed::Refused(why) if !meeting.has_worked() => Failed::Refused(why),
        // The first failure of all ranks, with the name of the rank.
        Failed::Storage { .. } | Failed::File { .. } | Failed::Refused(_) if is_told => {
            Failed::Apart(with_told(
                &meeting.broken().unwrap_or_else(|| why.to_string()),
            ))
        }
        why => why,
    });
    let mut record: Option<serde_json::Value> = match meeting.record() {
        Some(bytes) => serde_json::from_slice(&bytes).ok(),
        // Rank 0 went away with what it had.
        None => done.as_ref().err().map(|why| {
            serde_json::json!({
                "format": super::FORMAT,
                "tool": run.tool,
                "command": run.args,
                "complete": false,
                "why_incomplete": why.to_string(),
                "failed_operations": 0,
                "phases": [],
                "notes": [],
            })
        }),
    };
    if let Some(record) = &mut record {
        // Also of ranks that ended early.
        record["failed_operations"] = meeting.lost().count.into();
        say_who_stood_still(record, meeting);
        let of_record = record["why_incomplete"].as_str();
        let why = match &done {
            Err(Failed::Said(_)) => {
                let why = of_record.unwrap_or_default();
                Some(if is_told {
                    with_told(why)
                } else {
                    why.to_owned()
                })
            }
            Err(why) => Some(why.to_string()),
            // Ranks have left in order before their process fails.
            Ok(code) if *code > 0 && of_record.is_none() => {
                Some(format!("a process of the run ended with code {code}"))
            }
            Ok(_) => None,
        };
        if let Some(why) = why {
            record["complete"] = false.into();
            record["why_incomplete"] = why.into();
        }
    }
    let asked = own.json.as_deref();
    for path in asked.into_iter().chain(run.env.var(RECORD)) {
        if let Some(record) = record
            .as_ref()
            .filter(|_| !matches!(done, Err(Failed::Said(_))))
        {
            let text = serde_json::to_string_pretty(record).unwrap_or_default();
            let written = write_whole(path, &(text + "\n"));
            match (&done, written) {
                (Ok(_), written) => written?,
                // What ended the run says more, and may be why there is no record of it either.
                (Err(_), Err(why)) => eprintln!("{}: there is no record: {why}", run.tool),
                (Err(_), Ok(())) => {}
            }
        }
    }
    done.map(|code| Ended { code, record })
}

/// Figures suffer where a rank stood still.
fn say_who_stood_still(record: &mut serde_json::Value, meeting: &Meeting) {
    let stood: Vec<_> = meeting.stood().iter().map(Stood::as_record).collect();
    if let Some(notes) = record["notes"].as_array_mut() {
        let note = |s: &StoodStill| {
            format!(
                "{}, from {:.1} s on: that is in the figures of the phases of that time",
                s.told(),
                s.from_s
            )
        };
        notes.extend(stood.iter().map(|s| note(s).into()));
    }
    record["stood_still"] = serde_json::to_value(stood).unwrap_or_default();
}

/// Writes a file of the run's own; of one that cannot be written whole nothing is left.
pub(super) fn write_whole(path: &str, text: &str) -> Result<(), Failed> {
    fs::write(path, text).map_err(|why| {
        if fs::symlink_metadata(path).is_ok_and(|m| m.is_file()) {
            let _ = fs::remove_file(path);
        }
        Failed::file(path)(why)
    })
}

/// The first failure that is a rank's own says more than what the others heard of it.
fn verdict(results: Vec<Result<u8, Failed>>) -> Result<u8, Failed> {
    let mut code = 0;
    let mut apart = None;
    for result in results {
        match result {
            Ok(c) => code = code.max(c),
            Err(Failed::Apart(why)) => apart = Some(Failed::Apart(why)),
            Err(own) => return Err(own),
        }
    }
    apart.map_or(Ok(code), Err)
}

fn threads(local: &Local<'_>, meeting: &Arc<Meeting>) -> Result<u8, Failed> {
    let size = meeting.size();
    std::thread::scope(|s| {
        let hub = hub(local.run, meeting, local.clock, String::new());
        s.spawn(move || pulse::attend_own(&hub, &local.process()));
        let ranks: Vec<_> = (0..size)
            .map(|id| {
                let group = Group::Here(meeting.clone());
                s.spawn(move || local.rank(id, size, group, local.clock))
            })
            .collect();
        verdict(ranks.into_iter().map(join).collect())
    })
}

fn join(thread: std::thread::ScopedJoinHandle<'_, Result<u8, Failed>>) -> Result<u8, Failed> {
    thread
        .join()
        .unwrap_or_else(|_| Err(Failed::Apart("a rank panicked".into())))
}

/// Rank 0 is a thread here, the others are processes.
fn processes(local: &Local<'_>, own: &Own, meeting: &Arc<Meeting>) -> Result<u8, Failed> {
    let (run, size) = (local.run, meeting.size());
    let listener = TcpListener::bind("127.0.0.1:0").map_err(cannot_meet)?;
    let address = listener.local_addr().map_err(cannot_meet)?.to_string();
    let token = token()?;
    let program = program(own)?;
    let mut starts = Vec::new();
    for rank in 1..size {
        let mut command = Command::new(&program);
        command
            .arg(&run.tool)
            .args(run.args.iter().skip(1))
            .env(RANKS, format!("{rank}:1:{size}"))
            .env(MEET, &address);
        starts.push(Start {
            command,
            ranks: rank..rank + 1,
            what: format!("the process of rank {rank}"),
            there: None,
        });
    }
    let children = &Children::start(starts, &token)?;
    let done = std::thread::scope(|s| {
        let hub = Arc::new(hub(run, meeting, local.clock, token.clone()));
        let own = hub.clone();
        s.spawn(move || pulse::attend_own(&own, &local.process()));
        s.spawn(move || hub::serve(s, listener, hub, 1..size, MEET_LIMIT));
        let others = s.spawn(move || children.wait(meeting, &run.ending));
        let done = local.rank(0, size, Group::Here(meeting.clone()), local.clock)?;
        let others = others.join();
        match meeting.broken() {
            // One was killed after its rank had left.
            Some(why) if run.ending.outside().is_none() => Err(Failed::Apart(why)),
            _ => Ok(done.max(others.unwrap_or(1))),
        }
    });
    // All of them have ended now.
    done.map_err(|why| children.why(why))
}

/// All ranks are on other hosts, in blocks.
fn on_hosts(run: &Run, own: &Own, meeting: &Arc<Meeting>) -> Result<u8, Failed> {
    let size = meeting.size();
    let listener = TcpListener::bind("0.0.0.0:0").map_err(cannot_meet)?;
    let port = listener.local_addr().map_err(cannot_meet)?.port();
    let token = token()?;
    let (program, dir) = (program(own)?, directory(run)?);
    let (each, more) = (size / own.hosts.len() as u32, size % own.hosts.len() as u32);
    let mut first = 0;
    let mut starts = Vec::new();
    for (i, host) in own.hosts.iter().enumerate() {
        let count = each + u32::from((i as u32) < more);
        if count == 0 {
            break;
        }
        let meet = match &own.meet {
            Some(address) => format!("{address}:{port}"),
            None => format!("{}:{port}", address_towards(host)?),
        };
        let mut words = vec![
            "env".to_owned(),
            format!("{RANKS}={first}:{count}:{size}"),
            format!("{MEET}={meet}"),
            format!("{HOST}={host}"),
            format!("{DIR}={dir}"),
            program.clone(),
            run.tool.clone(),
        ];
        words.extend(run.args.iter().skip(1).cloned());
        let line: Vec<String> = words.iter().map(|w| quoted(w)).collect();
        // A shell stays there to say by which signal the process ends: ssh does not.
        let line = quoted(&format!("{}; exit $?", line.join(" ")));
        let ssh = own.ssh.as_deref().unwrap_or("ssh -o BatchMode=yes");
        let there = There {
            host: host.clone(),
            ssh: ssh.split_whitespace().map(str::to_owned).collect(),
        };
        let ranks = first..first + count;
        starts.push(Start {
            command: there.command(&format!("sh -c {line}")),
            what: format!("{} on {host}", pulse::ranks_text(&ranks)),
            ranks,
            there: Some(there),
        });
        first += count;
    }
    let clock = Clock::start();
    let children = &Children::start(starts, &token)?;
    std::thread::scope(|s| {
        let hub = Arc::new(hub(run, meeting, clock, token.clone()));
        let (own, host) = (hub.clone(), super::host_name());
        s.spawn(move || pulse::attend_own(&own, &Process::own(0..0, &host)));
        s.spawn(move || hub::serve(s, listener, hub, 0..size, MEET_LIMIT));
        let code = children.wait(meeting, &run.ending);
        match meeting.broken() {
            Some(why) => Err(match run.ending.failed(clock) {
                Some(ended) if run.ending.outside().is_some() => ended,
                _ => children.why(Failed::Apart(why)),
            }),
            None => Ok(code),
        }
    })
}

pub(super) fn hub(run: &Run, meeting: &Arc<Meeting>, clock: Clock, token: String) -> Hub {
    let tool = run.tool.clone();
    Hub {
        meeting: meeting.clone(),
        token,
        clock,
        say: Box::new(move |what: &str| say(&tool, what)),
    }
}

/// What runs a rank of another process: `PROGRAM ior ...`.
fn program(own: &Own) -> Result<String, Failed> {
    match &own.program {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe()
            .map(|p| p.to_string_lossy().into_owned())
            .map_err(Failed::file("this program")),
    }
}

/// The directory of the command. By the name that the shell has for it, where that leads to it: behind links other hosts may have
/// other directories.
fn directory(run: &Run) -> Result<String, Failed> {
    let here = std::env::current_dir().map_err(Failed::file("the working directory"))?;
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let named = (run.env.var("PWD"))
        .filter(|pwd| Path::new(pwd).is_absolute() && id(Path::new(pwd)) == id(&here));
    match named.or(here.to_str()) {
        Some(dir) => Ok(dir.to_owned()),
        None => Err(Failed::Refused(format!(
            "the name of the working directory, '{}', is not UTF-8: it cannot be told to hosts",
            here.display()
        ))),
    }
}

/// For the shell of another host.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The address of this machine by which it reaches a host, so that the host reaches it.
fn address_towards(host: &str) -> Result<String, Failed> {
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    let local = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((name, 22))?;
        socket.local_addr()
    };
    local()
        .map(|a: SocketAddr| a.ip().to_string())
        .map_err(|e| {
            Failed::Refused(format!(
                "{host} cannot be found ({e}); --meet says where hosts reach this machine"
            ))
        })
}

pub(super) fn cannot_meet(e: std::io::Error) -> Failed {
    Failed::Apart(format!("the ranks have no place to meet: {e}"))
}

/// What whoever started this process says first.
fn told_token() -> Result<String, Failed> {
    let mut token = String::new();
    let stdin = std::io::stdin();
    let read = stdin.lock().take(MEET_FILE_MAX).read_line(&mut token);
    read.map_err(Failed::file("standard input"))?;
    Ok(token.trim().to_owned())
}

/// The ranks cannot work here: whoever started them hears why.
pub(super) fn refused(place: &Launched, why: &str) -> Failed {
    match told_token() {
        Ok(token) => cannot_begin(place, &token, Failed::Apart(why.to_owned())),
        Err(_) => Failed::Apart(why.to_owned()),
    }
}

/// The same, where whoever started them has said what to show.
fn cannot_begin(place: &Launched, token: &str, why: Failed) -> Failed {
    if let Failed::Said(_) = why {
        return why;
    }
    match Connection::join(&place.address, token, place.first, Clock::start()) {
        Ok((mut c, size, _)) => {
            c.break_up(&why.to_string());
            // It is heard before this process is seen to end.
            let _ = c.exchange(size, &[]);
            Failed::Said(1)
        }
        Err(_) => why,
    }
}

/// Another one of ours started this process.
pub(super) fn joined(
    run: &Run,
    own: &Own,
    tool: &dyn Tool,
    place: &Launched,
) -> Result<u8, Failed> {
    let token = told_token()?;
    end_with_standard_input(run.mounted.clone(), run.ending.clone());
    let ranks = place.first..place.first + place.count;
    let host = place.host.clone().unwrap_or_else(super::host_name);
    let heard = hear(run, &place.address, &token, &ranks, &host);
    heard.map_err(|why| of_joined(run, why))?;
    let local = Local::new(run, own, tool, ranks.clone(), Some(&host));
    let local = local.map_err(|why| {
        let why = format!("{} on {host}: {why}", pulse::ranks_text(&ranks));
        cannot_begin(place, &token, Failed::Apart(why))
    })?;
    let done = std::thread::scope(|s| {
        let ranks: Vec<_> = ranks
            .map(|id| {
                let (local, token) = (&local, &token);
                s.spawn(move || {
                    let (c, size, clock) =
                        Connection::join(&place.address, token, id, local.clock)?;
                    local.rank(id, size, Group::There(c), clock)
                })
            })
            .collect();
        verdict(ranks.into_iter().map(join).collect())
    });
    local.end(own, done.map_err(|why| of_joined(run, why)))
}

/// What a process of ours says of a failure: who started it says for all ranks why the run failed, unless it cannot be reached.
fn of_joined(run: &Run, why: Failed) -> Failed {
    match why {
        Failed::Apart(why) if Connection::is_own(&why) => {
            // It may have ended the run before this process was there.
            run.ending.wait(TOLD_WITHIN);
            match run.ending.why() {
                Some(told) if told != LEFT_ALONE => Failed::Said(1),
                _ => Failed::Apart(why),
            }
        }
        Failed::Said(code) => Failed::Said(code),
        _ => Failed::Said(1),
    }
}

/// Hears beside the ranks of this process that the run is over.
pub(super) fn hear(
    run: &Run,
    address: &str,
    token: &str,
    ranks: &std::ops::Range<u32>,
    host: &str,
) -> Result<(), Failed> {
    let process = Process::own(ranks.clone(), host);
    let ending = run.ending.clone();
    // Who has started a process of ours may end it for somebody; a foreign launcher ends its processes itself.
    let is_ours = run.env.var(RANKS).is_some();
    pulse::listen(address, token, &process, move |what| match what {
        Heard::Ended(why) if is_ours => ending.told(&why),
        Heard::Ended(why) | Heard::Broken(why) => ending.broken(&why),
        Heard::Gone if is_ours => ending.broken(LEFT_ALONE),
        Heard::Gone => ending.broken(HUB_GONE),
    })
}

/// Ends the run here for the reason that whoever started it says, and this process when that one has gone or gives it up: nobody would
/// hear of it any more.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for the end of a pipe beside the ranks"
)]
fn end_with_standard_input(mounted: Mounted, ending: Ending) {
    std::thread::spawn(move || {
        let mut is_told = false;
        for why in std::io::stdin().lock().lines().map_while(Result::ok) {
            is_told = true;
            match why.strip_prefix(BROKEN) {
                Some(why) => ending.broken(why),
                None => ending.told(&why),
            }
        }
        // Those that were told why have had their time.
        if !is_told {
            ending.told(LEFT_ALONE);
            // Ranks that are about to end by themselves may say why.
            crate::load::clock::sleep(Duration::from_secs(2));
        }
        mounted.abandon();
        std::process::exit(1);
    });
}

/// What a rank of another process shows to be let in.
pub(super) fn token() -> Result<String, Failed> {
    let mut bytes = [0; TOKEN_BYTES];
    fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(Failed::file("/dev/urandom"))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
