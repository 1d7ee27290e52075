//! A foreign launcher has started the ranks, each as a process: they find rank 0 by a file or an address.

use super::place::{Foreign, MEET};
use super::start::{
    MEET_FILE_MAX, MEET_LIMIT, can_be_written, cannot_meet, finish, forget_earlier, hear, hub,
    token,
};
use super::{
    Connection, Duration, Ended, Failed, Group, Local, Meeting, Own, Run, Tool, hub, pulse,
};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

/// What ranks of a foreign launcher hear where nobody can say more: the hub is in rank 0's process.
pub(super) const HUB_GONE: &str = "rank 0 is gone";
/// How often a rank looks whether rank 0 has said where to meet.
const MEET_LOOK: Duration = Duration::from_millis(20);

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
        let ranks = place.rank..place.rank + 1;
        hear(run, &address, &token, &ranks, &super::host_name())?;
        let (c, size, clock) = Connection::join(&address, &token, place.rank, local.clock)?;
        let code = local.rank(place.rank, size, Group::There(c), clock);
        let code = local.end(own, code.map_err(|why| of_foreign(run, place.rank, why)))?;
        return Ok(Ended { code, record: None });
    }
    can_be_written(run, own)?;
    forget_earlier(run, own)?;
    let meeting = Meeting::new(place.size);
    run.ending.at(&meeting);
    let (listener, token, said) = say_where(place)?;
    let done = std::thread::scope(|s| {
        let hub = Arc::new(hub(run, &meeting, local.clock, token));
        let (own, local) = (hub.clone(), &local);
        s.spawn(move || pulse::attend_own(&own, &local.process()));
        s.spawn(move || {
            hub::serve(s, listener, hub, 1..place.size, MEET_LIMIT);
            // All are there. A process that ends by force later leaves no file.
            drop(said);
        });
        local.rank(0, place.size, Group::Here(meeting.clone()), local.clock)
    });
    let done = local.end(own, done);
    finish(run, own, &meeting, done)
}

/// What a rank of a foreign launcher says of a failure: its own, with its name. Rank 0 says what all have heard.
fn of_foreign(run: &Run, rank: u32, why: Failed) -> Failed {
    match why {
        Failed::Said(code) => Failed::Said(code),
        Failed::Apart(why) => {
            let is_own = why == HUB_GONE || Connection::is_own(&why);
            match is_own || run.ending.outside().is_some() {
                true => Failed::Apart(why),
                false => Failed::Said(1),
            }
        }
        own => Failed::Apart(super::of_rank(rank, &own)),
    }
}

/// Removes the file that says where to meet, when it is needed no longer.
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
