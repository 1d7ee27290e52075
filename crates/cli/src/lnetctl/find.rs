//! Which running process is meant: every process with a node leaves the path of its control socket in a directory of its user.

use crate::control::{self, Ask, Asked, Line};
use crate::lfs;
use crate::lnetctl::agent::Agent;
use crate::rundir;
use coral_lab::entry::Owner;
use coral_lab::process_stat::ProcessStat;
use coral_lnet::Node;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a process that runs may take to say its name, which every one is asked for where a mount point is meant.
const NAME_LIMIT: Duration = Duration::from_secs(10);
/// A process has made its socket so long after its directory.
const STARTING: Duration = Duration::from_secs(60);

/// The directory of this user's running nodes: `$XDG_RUNTIME_DIR/coral`, else `/tmp/coral-UID`.
fn registry() -> PathBuf {
    rundir::named("coral", Path::new("/tmp"))
}

/// The same, made if it is not there; none when it cannot be.
fn made_registry() -> Option<PathBuf> {
    let dir = registry();
    rundir::private(&dir).ok().map(|()| dir)
}

/// Says where this process can be asked, until dropped.
pub(crate) struct Registered(PathBuf);

impl Registered {
    /// None when the directory cannot be written: then the process is found by its directory only.
    pub(crate) fn new(socket: &Path) -> Option<Registered> {
        let dir = made_registry()?;
        tidy(&dir);
        let link = dir.join(Owner::here(std::process::id()).socket());
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(std::path::absolute(socket).ok()?, &link).ok()?;
        Some(Registered(link))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Where this process may put a control socket that belongs to no directory of its own.
fn own_socket_dir() -> Option<PathBuf> {
    let dir = made_registry()?.join(Owner::here(std::process::id()).dir());
    rundir::private(&dir).ok()?;
    Some(dir)
}

/// Makes a node of a process without a directory of its own one that `lnetctl`, `coral history` and `coral status` find, until
/// this is dropped.
pub(crate) struct Found {
    dir: Option<PathBuf>,
    /// Without a socket nobody asks; the receiver waits all the same.
    _nobody: Option<mpsc::Sender<Asked>>,
}

impl Found {
    /// What is asked that is not LNet's own comes by the receiver. Nothing comes when the directory cannot be had: the node works
    /// without.
    pub(crate) fn new(node: &Arc<Node>) -> (Found, mpsc::Receiver<Asked>) {
        let dir = own_socket_dir();
        match dir
            .as_ref()
            .and_then(|d| control::serve(d, Agent::new(node)).ok())
        {
            Some(asked) => (Found { dir, _nobody: None }, asked),
            None => {
                let (nobody, asked) = mpsc::channel(1);
                (
                    Found {
                        dir,
                        _nobody: Some(nobody),
                    },
                    asked,
                )
            }
        }
    }

    /// Where its control socket is.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Where a mount on `mountpoint` logs when nothing else is said; none where nothing can be written.
pub(crate) fn mount_log(mountpoint: &Path) -> PathBuf {
    let name = mountpoint
        .display()
        .to_string()
        .trim_matches('/')
        .replace('/', "-");
    made_registry().map_or_else(
        || "/dev/null".into(),
        |d| d.join(format!("mount-{name}.log")),
    )
}

/// Whether a process is there that has not ended. Where that cannot be read, it is taken to be there.
pub(crate) fn alive(pid: u32) -> bool {
    match ProcessStat::of(pid) {
        Ok(stat) => !stat.has_ended(),
        Err(e) => e.kind() != ErrorKind::NotFound,
    }
}

/// The process answers on its control socket.
pub(crate) fn can_be_asked(pid: u32) -> bool {
    listens(&registry().join(Owner::here(pid).socket())) == Listens::Yes
}

/// Whether somebody listens at a socket.
#[derive(Debug, PartialEq)]
enum Listens {
    /// Also who is stopped.
    Yes,
    No,
    /// There is no socket that can be seen: it may lie on a mount of the process's own mount namespace, or be made just now.
    Unseen,
}

fn listens(socket: &Path) -> Listens {
    match control::connect(socket, control::CONNECT_LIMIT) {
        Ok(_) => Listens::Yes,
        Err(e) if e.kind() == ErrorKind::WouldBlock => Listens::Yes,
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Listens::No,
        Err(_) => Listens::Unseen,
    }
}

/// Nothing has changed there for so long that nobody is about to make a socket.
fn is_old(entry: &Path) -> bool {
    let changed = std::fs::symlink_metadata(entry).and_then(|m| m.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > STARTING))
}

/// Removes what processes left that were killed. A socket they were asked at may be another's by now, which was started in the
/// same place: so it is the pid that tells, where it is one of this PID namespace, and otherwise whether somebody answers.
fn tidy(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.map(|e| e.path()) {
        let Some(owner) = Owner::of(&entry) else {
            continue;
        };
        let is_dir = std::fs::symlink_metadata(&entry).is_ok_and(|m| m.is_dir());
        let is_left = match (owner.is_here(), is_dir) {
            (true, _) => !alive(owner.pid),
            (false, true) => match listens(&entry.join("control.sock")) {
                Listens::Yes => false,
                Listens::No => true,
                Listens::Unseen => is_old(&entry),
            },
            (false, false) => listens(&entry) == Listens::No,
        };
        if is_left {
            let _ = match is_dir {
                true => std::fs::remove_dir_all(&entry),
                false => std::fs::remove_file(&entry),
            };
        }
    }
}

/// A process of this user that can be asked.
#[derive(Debug, PartialEq)]
struct Running {
    /// `None`: it is of another PID namespace.
    pid: Option<u32>,
    socket: PathBuf,
}

impl Running {
    /// Where it is mounted, else its directory, else what it is, as far as it says; an error when it does not answer.
    fn place(&self) -> Result<Option<String>, String> {
        let status = ask_within(&self.socket, &json!(Ask::Status), NAME_LIMIT)?;
        let named = ["mount", "dir", "kind"]
            .iter()
            .find_map(|k| status[k].as_str());
        Ok(named.map(str::to_owned))
    }

    /// For the user to choose by.
    fn named(&self) -> String {
        let who = match self.pid {
            Some(pid) => format!("process {pid}"),
            None => "a process of another PID namespace".to_owned(),
        };
        match self.place() {
            Ok(Some(place)) => format!("{place} ({who})"),
            Ok(None) => who,
            Err(why) => why,
        }
    }
}

/// Who has this socket, for a user who has to end it or look after it.
pub(crate) fn who(socket: &Path) -> String {
    let is_same = |r: &Running| is_one(&r.socket, socket);
    match running().iter().find(|r| is_same(r)).and_then(|r| r.pid) {
        Some(pid) => described(pid),
        None => format!("the process at '{}'", socket.display()),
    }
}

fn is_one(a: &Path, b: &Path) -> bool {
    let inode = |p: &Path| std::fs::metadata(p).map(|m| (m.dev(), m.ino())).ok();
    a == b || inode(a).is_some_and(|a| inode(b) == Some(a))
}

/// `process 12 (coral serve /data), which is stopped,`
pub(crate) fn described(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words)
        .trim_end_matches('\0')
        .replace('\0', " ");
    match is_stopped(pid) {
        true => format!("process {pid} ({words}), which is stopped,"),
        false => format!("process {pid} ({words})"),
    }
}

/// A signal has stopped it. What a debugger holds counts as running: `strace` holds a process for moments, again and again.
pub(crate) fn is_stopped(pid: u32) -> bool {
    ProcessStat::of(pid).is_ok_and(|stat| stat.is_stopped())
}

/// Running processes of this user; what others left is removed.
fn running() -> Vec<Running> {
    running_in(&registry())
}

fn running_in(dir: &Path) -> Vec<Running> {
    tidy(dir);
    let mut out: Vec<Running> = Vec::new();
    for link in std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
    {
        let is_socket = link.extension().is_some_and(|e| e == "sock");
        let Some(owner) = Owner::of(&link).filter(|_| is_socket) else {
            continue;
        };
        match listens(&link) {
            Listens::Yes => out.push(Running {
                pid: owner.is_here().then_some(owner.pid),
                socket: std::fs::read_link(&link).unwrap_or(link),
            }),
            // A pid that was given to another process since.
            Listens::No => drop(std::fs::remove_file(&link)),
            Listens::Unseen => {}
        }
    }
    out.sort_by(|a, b| a.socket.cmp(&b.socket));
    out.dedup_by(|a, b| a.socket == b.socket);
    out
}

/// Processes that the user has named.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Named {
    pub sockets: Vec<PathBuf>,
    /// Of each name that is none of theirs who answer, and may be that of one who does not: why.
    pub silent: Vec<String>,
}

/// The processes that are named, each as [`socket`] takes it; all of this user, when none is.
pub(crate) fn named(which: &[PathBuf], how: &str) -> Result<Named, String> {
    let mut all = Named::default();
    if which.is_empty() {
        all.sockets = running().into_iter().map(|r| r.socket).collect();
        return match all.sockets.is_empty() {
            true => Err(format!(
                "no Coral node of this user runs here; start one, or say which, with {how}"
            )),
            false => Ok(all),
        };
    }
    for w in which {
        match found(w) {
            Ok(socket) => all.sockets.push(socket),
            Err(NotFound::Silent(why)) => all.silent.push(why),
            Err(NotFound::Nobody(why)) => return Err(why),
        }
    }
    // A process may be named by its directory, by its mount point and by its pid: it is asked once.
    let mut seen = std::collections::BTreeSet::new();
    all.sockets
        .retain(|s| std::fs::metadata(s).map_or(true, |m| seen.insert((m.dev(), m.ino()))));
    Ok(all)
}

/// Why the process is not known that somebody names.
enum NotFound {
    /// It may be one of those that do not answer.
    Silent(String),
    Nobody(String),
}

impl NotFound {
    fn why(self) -> String {
        match self {
            NotFound::Silent(why) | NotFound::Nobody(why) => why,
        }
    }
}

/// The socket of the process with this directory, mount point or pid.
fn found(which: &Path) -> Result<PathBuf, NotFound> {
    // What lies on a mount is not looked at: that would be an operation of the file system, which may be measured just then.
    let own = (!lfs::is_on_mount(which)).then(|| control::path(which));
    match own.filter(|s| s.exists()) {
        Some(own) => Ok(own),
        None => among(&running(), which),
    }
}

fn among(all: &[Running], which: &Path) -> Result<PathBuf, NotFound> {
    let pid: Option<u32> = which.to_str().and_then(|w| w.parse().ok());
    if let Some(r) = all.iter().find(|r| pid.is_some() && r.pid == pid) {
        return Ok(r.socket.clone());
    }
    let full = lfs::resolved(which);
    let mut silent = vec![];
    for r in all {
        match r.place() {
            Ok(Some(p)) if lfs::resolved(Path::new(&p)) == full => return Ok(r.socket.clone()),
            Ok(_) => {}
            Err(why) => silent.push(why),
        }
    }
    let which = which.display();
    Err(match silent.is_empty() {
        true => NotFound::Nobody(format!(
            "no Coral process of this user that runs here has '{which}' as its directory, mount point or pid{}",
            listed(all)
        )),
        false => NotFound::Silent(format!(
            "'{which}' is no directory, mount point or pid of a Coral process of this user that answers; {}",
            silent.join("; ")
        )),
    })
}

/// The socket to ask: that given, that of the process which `which` names (by its directory, its mount point or its pid), else
/// the only one there is. `how`: how the user says which.
pub(crate) fn socket(
    which: Option<&Path>,
    socket: Option<&Path>,
    how: &str,
) -> Result<PathBuf, String> {
    if let Some(s) = socket {
        return Ok(s.to_owned());
    }
    if let Some(which) = which {
        return found(which).map_err(NotFound::why);
    }
    let mut all = running();
    match all.len() {
        0 => Err(format!(
            "no Coral node of this user runs here; start one, or say which, with {how}"
        )),
        1 => Ok(all.remove(0).socket),
        n => Err(format!(
            "{n} Coral processes run here; say which, with {how}{}",
            listed(&all)
        )),
    }
}

fn listed(all: &[Running]) -> String {
    let names: Vec<String> = all.iter().map(Running::named).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(": {}", names.join(", "))
    }
}

/// Asks a process for what it knows, or has it do something; an error when it does not answer.
pub(crate) fn ask(socket: &Path, what: &Value) -> Result<Value, String> {
    ask_within(socket, what, control::ANSWER_LIMIT)
}

/// The same, not waiting longer than `limit`.
pub(crate) fn ask_within(socket: &Path, what: &Value, limit: Duration) -> Result<Value, String> {
    let asked = || {
        let mut line = Line::open(socket)?;
        line.say(&what.to_string())?;
        line.next(limit)
    };
    let answer = asked().map_err(|e| no_answer(socket, &e))?;
    serde_json::from_str(&answer).map_err(|e| format!("odd answer on '{}': {e}", socket.display()))
}

/// Why there is no answer; who has a socket and does not answer is named.
pub(crate) fn no_answer(socket: &Path, why: &std::io::Error) -> String {
    match why.kind() {
        ErrorKind::TimedOut => why.to_string(),
        _ => format!("no Coral node answers on '{}': {why}", socket.display()),
    }
}

/// Name of the interface with a NID's address, as `ip` tells it.
pub(crate) fn interface_of(nid: &str) -> Option<String> {
    let nid: coral_wire::nid::Nid = nid.parse().ok()?;
    let ip = nid.ipv4()?;
    if ip.is_loopback() {
        return Some("lo".into());
    }
    let out = std::process::Command::new("ip")
        .args(["-o", "-4", "addr", "show"])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let wanted = format!("{ip}/");
    text.lines()
        .find(|l| l.split_whitespace().any(|w| w.starts_with(&wanted)))
        .and_then(|l| l.split_whitespace().nth(1))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn what_dead_processes_left_is_removed_although_their_socket_answers() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (dead, own) = (child.id(), std::process::id());
        child.wait().unwrap();
        // Started again in the same directory after a kill -9: both links lead to the socket that is there now.
        let socket = at("control.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let entry = |pid: u32, kind: &str| match kind {
            "d" => Owner::here(pid).dir(),
            _ => Owner::here(pid).socket(),
        };
        for pid in [dead, own] {
            symlink(&socket, at(&entry(pid, "sock"))).unwrap();
            let made = at(&entry(pid, "d"));
            std::fs::create_dir(&made).unwrap();
            std::fs::write(made.join("control.sock"), "").unwrap();
        }
        std::fs::write(at("mount-mnt.log"), "").unwrap();
        let running = Running {
            pid: Some(own),
            socket,
        };
        assert_eq!(running_in(dir.path()), [running]);
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut want = vec![
            entry(own, "d"),
            entry(own, "sock"),
            "control.sock".into(),
            "mount-mnt.log".into(),
        ];
        want.sort();
        assert_eq!(left, want);
    }

    /// A process in another mount namespace has its socket where it cannot be seen from here, and one that starts has none yet: what
    /// they are found by stays.
    #[test]
    fn who_cannot_be_seen_from_here_keeps_its_entries() {
        let dir = tempfile::tempdir().unwrap();
        let own = Owner::here(std::process::id());
        let elsewhere = Owner {
            inode: own.inode + 1,
            ..own
        };
        for owner in [own, elsewhere] {
            symlink("/nowhere/at/all.sock", dir.path().join(owner.socket())).unwrap();
            std::fs::create_dir(dir.path().join(owner.dir())).unwrap();
        }
        assert_eq!(running_in(dir.path()), []);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    /// A process that is stopped takes connections until nobody has accepted so many, and answers none.
    #[test]
    fn who_does_not_answer_is_there_and_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let link = dir.path().join(Owner::here(std::process::id()).socket());
        symlink(&socket, &link).unwrap();
        let limit = Duration::from_millis(20);
        let why = ask_within(&socket, &json!(Ask::Status), limit).unwrap_err();
        assert!(why.contains("did not answer within"), "{why}");
        let mut waiting = vec![];
        let full = loop {
            match control::connect(&socket, limit) {
                Ok(stream) => waiting.push(stream),
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let running = Running {
            pid: Some(std::process::id()),
            socket,
        };
        assert_eq!(running_in(dir.path()), [running]);
        assert!(link.symlink_metadata().is_ok());
    }

    /// The directory is shared with a container: who answers is left alone, also where its number is nobody's here.
    #[test]
    fn processes_of_other_pid_namespaces_are_found_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (answers, silent) = (at("a.socket"), at("s.socket"));
        let _listener = UnixListener::bind(&answers).unwrap();
        // its process was killed
        drop(UnixListener::bind(&silent).unwrap());
        let inode = Owner::here(1).inode + 1;
        let other = |pid| Owner { pid, inode }.socket();
        symlink(&answers, at(&other(u32::MAX))).unwrap();
        symlink(&silent, at(&other(std::process::id()))).unwrap();
        let running = Running {
            pid: None,
            socket: answers,
        };
        assert_eq!(running_in(dir.path()), [running]);
        assert!(at(&other(u32::MAX)).symlink_metadata().is_ok());
        assert!(at(&other(std::process::id())).symlink_metadata().is_err());
    }
}
