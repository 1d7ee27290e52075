//! The ranks are started, meet and are waited for.

use super::children::{BROKEN, Children};
use super::own::{Own, Ranks};
use super::place::{DIR, Foreign, HOST, Launched, MEET, RANKS, RECORD};
use super::{Clock, Connection, Duration, Group, Meeting, hub};
use super::{Ended, Ending, Failed, Local, Mounted, Run, Tool};
use rustix::fs::Access;
use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Ranks of other processes are to be there in so long.
const MEET_LIMIT: Duration = Duration::from_secs(60);
/// How often a rank looks whether rank 0 has said where to meet.
const MEET_LOOK: Duration = Duration::from_millis(20);
/// Bytes of a token.
const TOKEN_BYTES: usize = 16;
/// Longest file that says where to meet, bytes.
const MEET_FILE_MAX: u64 = 512;

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
fn can_be_written(run: &Run, own: &Own) -> Result<(), Failed> {
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
fn forget_earlier(run: &Run, own: &Own) -> Result<(), Failed> {
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
fn finish(
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
                "phases": [],
            })
        }),
    };
    if let Some(record) = &mut record {
        let of_record = record["why_incomplete"].as_str();
        let why = match &done {
            Err(Failed::Apart(why)) => Some(why.clone()),
            Err(why) => {
                let why = of_record.map_or_else(|| why.to_string(), str::to_owned);
                Some(if is_told { with_told(&why) } else { why })
            }
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
        starts.push((
            command,
            rank..rank + 1,
            format!("the process of rank {rank}"),
        ));
    }
    let children = &Children::start(starts, &token)?;
    let done = std::thread::scope(|s| {
        let (m, clock, token) = (meeting.clone(), local.clock, token.clone());
        s.spawn(move || hub::serve(s, listener, m, token, clock, 1..size, MEET_LIMIT));
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
        let ssh = own.ssh.as_deref().unwrap_or("ssh -o BatchMode=yes");
        let mut ssh = ssh.split_whitespace();
        let mut command = Command::new(ssh.next().unwrap_or("ssh"));
        command.args(ssh).arg(host).arg(line.join(" "));
        let what = match count {
            1 => format!("rank {first} on {host}"),
            _ => format!("ranks {first} to {} on {host}", first + count - 1),
        };
        starts.push((command, first..first + count, what));
        first += count;
    }
    let clock = Clock::start();
    let children = &Children::start(starts, &token)?;
    std::thread::scope(|s| {
        let (m, token) = (meeting.clone(), token.clone());
        s.spawn(move || hub::serve(s, listener, m, token, clock, 0..size, MEET_LIMIT));
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

fn cannot_meet(e: std::io::Error) -> Failed {
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
    let told = told_token().and_then(|token| {
        let clock = Clock::start();
        let (mut c, size, _) = Connection::join(&place.address, &token, place.first, clock)?;
        c.break_up(why);
        // It is heard before this process is seen to end.
        let _ = c.exchange(size, &[]);
        Ok(())
    });
    match told {
        Ok(()) => Failed::Said(1),
        Err(_) => Failed::Apart(why.to_owned()),
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
    let local = Local::new(run, own, tool, ranks.clone(), place.host.as_deref())?;
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
    local.end(own, done).map_err(|why| match why {
        // Who started this process says it for all.
        Failed::Apart(why) if !Connection::is_own(&why) => Failed::Said(1),
        why => why,
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
        for why in std::io::stdin().lock().lines().map_while(Result::ok) {
            match why.strip_prefix(BROKEN) {
                Some(why) => ending.broken(why),
                None => ending.end(&why),
            }
        }
        // Those that were told why have had their time.
        if ending.why().is_none() {
            ending.end("whoever started it is there no more");
            // Ranks that are about to end by themselves may say why.
            crate::load::clock::sleep(Duration::from_secs(2));
        }
        mounted.abandon();
        std::process::exit(1);
    });
}

/// A foreign launcher started this process as one rank.
pub(super) fn foreign(
    run: &Run,
    own: &Own,
    tool: &dyn Tool,
    place: &Foreign,
) -> Result<Ended, Failed> {
    let local = Local::new(run, own, tool, place.rank..place.rank + 1, None)?;
    if place.rank > 0 {
        let (address, token) = find(place)?;
        let ending = run.ending.clone();
        hub::listen(&address, &token, move |why| ending.broken(why))?;
        let (c, size, clock) = Connection::join(&address, &token, place.rank, local.clock)?;
        let code = local.rank(place.rank, size, Group::There(c), clock);
        let code = local.end(own, code)?;
        return Ok(Ended { code, record: None });
    }
    can_be_written(run, own)?;
    forget_earlier(run, own)?;
    let meeting = Meeting::new(place.size);
    run.ending.at(&meeting);
    let (listener, token, said) = say_where(place)?;
    let done = std::thread::scope(|s| {
        let (m, clock) = (meeting.clone(), local.clock);
        s.spawn(move || hub::serve(s, listener, m, token, clock, 1..place.size, MEET_LIMIT));
        local.rank(0, place.size, Group::Here(meeting.clone()), local.clock)
    });
    drop(said);
    let done = local.end(own, done);
    finish(run, own, &meeting, done)
}

/// Removes the file that says where to meet, at the end of the run.
struct Said(Option<String>);

impl Drop for Said {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

fn meet_file(place: &Foreign) -> Option<(String, bool)> {
    let user = rustix::process::getuid().as_raw();
    let name = format!("coral-lab-{user}-{}.meet", place.job);
    match &place.meet {
        Some(meet) if !meet.contains(':') => Some((format!("{meet}/{name}"), true)),
        Some(_) => None,
        None => Some((
            std::env::temp_dir()
                .join(name)
                .to_string_lossy()
                .into_owned(),
            false,
        )),
    }
}

/// Rank 0 listens, and says where in a file that only its user can read, unless the others know the address.
fn say_where(place: &Foreign) -> Result<(TcpListener, String, Said), Failed> {
    let Some((path, hosts)) = meet_file(place) else {
        let address = place.meet.as_deref().unwrap_or_default();
        let port = address.rsplit_once(':').map_or("", |(_, port)| port);
        let listener = TcpListener::bind(format!("0.0.0.0:{port}")).map_err(cannot_meet)?;
        return Ok((listener, place.job.clone(), Said(None)));
    };
    let listener = TcpListener::bind(if hosts { "0.0.0.0:0" } else { "127.0.0.1:0" });
    let listener = listener.map_err(cannot_meet)?;
    let port = listener.local_addr().map_err(cannot_meet)?.port();
    let host = if hosts {
        super::host_name()
    } else {
        "127.0.0.1".to_owned()
    };
    let token = token()?;
    // A file of an earlier run that was killed; whoever read it finds nobody and reads again.
    let _ = fs::remove_file(&path);
    let new = format!("{path}.new");
    let _ = fs::remove_file(&new);
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut f| f.write_all(format!("{host}:{port} {token}\n").as_bytes()))
        .and_then(|()| fs::rename(&new, &path));
    written.map_err(Failed::file(&path))?;
    Ok((listener, token, Said(Some(path))))
}

/// Waits for what rank 0 says, and for somebody to listen there.
fn find(place: &Foreign) -> Result<(String, String), Failed> {
    let mut waited = Duration::ZERO;
    loop {
        let found = match meet_file(place) {
            None => Some((place.meet.clone().unwrap_or_default(), place.job.clone())),
            Some((path, _)) => read_where(&path)?,
        };
        if let Some((address, token)) = found
            && std::net::TcpStream::connect(&address).is_ok()
        {
            return Ok((address, token));
        }
        if waited > MEET_LIMIT {
            return Err(Failed::Apart(format!(
                "rank {} found no rank 0 within {} s; {MEET} names an address or a directory that all hosts see",
                place.rank,
                MEET_LIMIT.as_secs()
            )));
        }
        crate::load::clock::sleep(MEET_LOOK);
        waited += MEET_LOOK;
    }
}

/// None where there is no such file yet. A file of another user is not believed.
fn read_where(path: &str) -> Result<Option<(String, String)>, Failed> {
    let flags = libc::O_NOFOLLOW;
    let file = match fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
    {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failed::file(path)(e)),
    };
    let owner = file.metadata().map_err(Failed::file(path))?.uid();
    if owner != rustix::process::getuid().as_raw() {
        return Err(Failed::Apart(format!("{path} is of user {owner}")));
    }
    let mut text = String::new();
    let mut file = file.take(MEET_FILE_MAX);
    file.read_to_string(&mut text).map_err(Failed::file(path))?;
    Ok(text
        .trim()
        .split_once(' ')
        .map(|(a, t)| (a.to_owned(), t.to_owned())))
}

/// What a rank of another process shows to be let in.
fn token() -> Result<String, Failed> {
    let mut bytes = [0; TOKEN_BYTES];
    fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(Failed::file("/dev/urandom"))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
