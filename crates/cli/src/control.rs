//! The control socket of a running Coral process: `DIR/control.sock`, one JSON line each way.
//!
//! Only who may open the socket (its owner: mode 0600) can ask. Requests: `status`, `down`, parameters of the mount, and
//! `{"lnet": ...}` ([`LnetAsk`]), which the nodes of the process answer themselves.

use crate::lnetctl::agent::{Agent, LnetAsk};
use crate::lnetctl::find::{self, Registered};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// Longest request line, bytes.
const REQUEST_MAX_BYTES: u64 = 64 << 10;
/// How long is waited for an answer of a process that runs: on a full machine it may take long.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(90);
/// How long where a measurement goes on meanwhile, which can do without the answer.
pub(crate) const BESIDE_LIMIT: Duration = Duration::from_secs(5);
/// How long of a process that is stopped: it answers only when it is continued.
pub(crate) const STOPPED_LIMIT: Duration = Duration::from_secs(1);
/// How long for a connection. The kernel makes it without the process, unless very many wait already.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lets the last answer reach the socket before the process ends.
const LAST_ANSWER: Duration = Duration::from_millis(20);

/// What one may ask of a running process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ask {
    /// What runs, as JSON.
    Status,
    /// Stop cleanly.
    Down,
    /// Stop cleanly even when the mount is in use: it is detached.
    DownForced,
    /// Parameters of the mount, as `lctl get_param` knows them; a pattern.
    GetParam(String),
    /// Names of parameters: a pattern of their first components, and whether with all below.
    ListParam(String, bool),
    /// Sets those that match to a value.
    SetParam(String, String),
    /// Gives up the clients that targets with names of this pattern wait for.
    AbortRecovery(String),
    /// Nodemaps of the servers.
    Nodemap(NodemapAsk),
}

/// What `lctl nodemap_*` asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodemapAsk {
    /// A change, which the MGS makes.
    Change(coral_server::nodemap::Command),
    /// Name of the nodemap of a NID.
    TestNid(String),
    /// What an id of a NID's client is in the file system.
    TestId {
        nid: String,
        kind: coral_server::nodemap::IdType,
        id: u32,
    },
}

/// One request with the way to answer it.
pub(crate) type Asked = (Ask, oneshot::Sender<serde_json::Value>);

/// The socket's path for a data directory.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Serves `dir`'s control socket until the receiver is dropped. `agent` has the nodes that lnetctl may ask.
pub(crate) fn serve(dir: &Path, agent: Arc<Agent>) -> std::io::Result<mpsc::Receiver<Asked>> {
    let path = path(dir);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let (tx, rx) = mpsc::channel(4);
    let registered = Registered::new(&path);
    tokio::spawn(async move {
        let _registered = registered;
        loop {
            tokio::select! {
                _ = tx.closed() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => { tokio::spawn(answer(stream, tx.clone(), agent.clone())); }
                    // no descriptors left, for instance: it passes
                    Err(error) => {
                        tracing::warn!(%error, "control socket");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    });
    Ok(rx)
}

/// All has stopped: takes `dir`'s socket away and tells whoever asked for it.
pub(crate) async fn stopped(dir: &Path, reply: Option<oneshot::Sender<serde_json::Value>>) {
    let _ = std::fs::remove_file(path(dir));
    if let Some(reply) = reply {
        let _ = reply.send(serde_json::json!({ "stopped": true }));
        tokio::time::sleep(LAST_ANSWER).await;
    }
}

/// A request for the process's LNet nodes.
#[derive(Deserialize)]
struct ForNodes {
    lnet: LnetAsk,
}

async fn answer(stream: tokio::net::UnixStream, tx: mpsc::Sender<Asked>, agent: Arc<Agent>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let limited = tokio::io::AsyncReadExt::take(read, REQUEST_MAX_BYTES);
    if tokio::io::BufReader::new(limited)
        .read_line(&mut line)
        .await
        .is_err()
    {
        return;
    }
    if line.len() as u64 == REQUEST_MAX_BYTES && !line.ends_with('\n') {
        let why = format!(
            "the request is longer than {} KiB: give fewer names at a time",
            REQUEST_MAX_BYTES >> 10
        );
        let _ = write
            .write_all(
                format!(
                    "{}\n",
                    serde_json::json!({ "error": why, "errno": libc::E2BIG })
                )
                .as_bytes(),
            )
            .await;
        return;
    }
    let for_nodes = if line.starts_with('{') {
        serde_json::from_str::<ForNodes>(line.trim()).ok()
    } else {
        None
    };
    let reply = if let Some(a) = for_nodes {
        agent.answer(a.lnet).await
    } else {
        match serde_json::from_str::<Ask>(line.trim()) {
            Err(e) => serde_json::json!({ "error": format!("unknown request: {e}") }),
            Ok(ask) => {
                let (reply_tx, reply_rx) = oneshot::channel();
                if tx.send((ask, reply_tx)).await.is_err() {
                    return;
                }
                reply_rx
                    .await
                    .unwrap_or_else(|_| serde_json::json!({ "error": "stopping" }))
            }
        }
    };
    let _ = write.write_all(format!("{reply}\n").as_bytes()).await;
}

/// Says a line to a process that may stop listening before its end, when it has heard enough: what it answers says why. Where a
/// closed pipe ends a command, this one does not.
pub(crate) fn say_line(stream: &StdStream, line: &str) -> std::io::Result<()> {
    use rustix::io::Errno;
    use rustix::net::{SendFlags, send};
    let line = format!("{line}\n");
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(n) => rest = &rest[n..],
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Connects to a process, each step of which, as every read and write later, takes no longer than `limit`: then it is
/// `WouldBlock`. A process that is stopped takes some connections, and no more when nobody has accepted these.
pub(crate) fn connect(socket: &Path, limit: Duration) -> std::io::Result<StdStream> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let stream = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    for way in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&stream, way, Some(limit))?;
    }
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// A connection to a process, on which nobody waits for one that is stopped.
pub(crate) struct Line {
    socket: PathBuf,
    stream: BufReader<StdStream>,
}

impl Line {
    /// `TimedOut`: somebody has the socket and does not answer; the error names it.
    pub(crate) fn open(socket: &Path) -> std::io::Result<Line> {
        let stream = connect(socket, CONNECT_LIMIT).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => silent(&find::who(socket), CONNECT_LIMIT),
            _ => e,
        })?;
        Ok(Line {
            socket: socket.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// Says a line.
    pub(crate) fn say(&self, line: &str) -> std::io::Result<()> {
        say_line(self.stream.get_ref(), line)
    }

    /// The next line; an empty one at the end. `TimedOut` when it does not come within `limit`, or within [`STOPPED_LIMIT`] from a
    /// process that is stopped.
    pub(crate) fn next(&mut self, limit: Duration) -> std::io::Result<String> {
        let step = limit.min(STOPPED_LIMIT);
        self.stream.get_ref().set_read_timeout(Some(step))?;
        let (mut line, mut waited) = (vec![], Duration::ZERO);
        loop {
            match self.stream.read_until(b'\n', &mut line) {
                Ok(_) => return String::from_utf8(line).map_err(std::io::Error::other),
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                Err(_) => waited += step,
            }
            let pid = peer(self.stream.get_ref());
            if waited >= limit || pid.is_some_and(find::is_stopped) {
                let who = pid.map_or_else(|| find::who(&self.socket), find::described);
                return Err(silent(&who, waited));
            }
        }
    }
}

fn silent(who: &str, waited: Duration) -> std::io::Error {
    let why = format!("{who} did not answer within {} s", waited.as_secs_f64());
    std::io::Error::new(ErrorKind::TimedOut, why)
}

/// The process at the other end, where it is of this PID namespace. Tokio is asked because `rustix` has no value for the others,
/// whose number is 0.
pub(crate) fn peer(stream: &StdStream) -> Option<u32> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().ok()?;
    let ask = || {
        let _inside = runtime.enter();
        stream.set_nonblocking(true)?;
        let same = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
        same.peer_cred()
    };
    let peer = ask();
    // The clone shares this with the stream.
    stream.set_nonblocking(false).ok()?;
    runtime.shutdown_background();
    let pid = u32::try_from(peer.ok()?.pid()?).ok()?;
    Some(pid).filter(|pid| *pid > 0)
}

/// Asks the process that serves `dir`. `Err` when none answers; `TimedOut` when one is there.
pub(crate) fn ask(dir: &Path, what: Ask) -> std::io::Result<serde_json::Value> {
    ask_within(dir, what, ANSWER_LIMIT)
}

/// The same, not waiting longer than `limit`.
pub(crate) fn ask_within(
    dir: &Path,
    what: Ask,
    limit: Duration,
) -> std::io::Result<serde_json::Value> {
    let mut line = Line::open(&path(dir))?;
    line.say(&serde_json::to_string(&what)?)?;
    serde_json::from_str(&line.next(limit)?).map_err(std::io::Error::other)
}

/// The status of what runs in `dir`; none where nothing does. An error names a process that is there and does not answer.
pub(crate) fn running_in(dir: &Path) -> Result<Option<serde_json::Value>, String> {
    match ask(dir, Ask::Status) {
        Ok(status) => Ok(Some(status)),
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            Err(format!("'{}' is in use: {e}", dir.display()))
        }
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a test: the other end of the socket blocks"
    )]
    async fn a_request_is_answered_and_nonsense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let config = coral_lnet::NodeConfig::in_memory("10.0.0.1@tcp".parse().unwrap(), 1);
        let node = coral_lnet::Node::start(config, None).await.unwrap();
        let mut asked = serve(dir.path(), Agent::new(&node)).unwrap();
        tokio::spawn(async move {
            while let Some((ask, reply)) = asked.recv().await {
                let _ = reply.send(serde_json::json!({ "got": ask }));
            }
        });
        let place = dir.path().to_owned();
        let reply = tokio::task::spawn_blocking(move || ask(&place, Ask::Status))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(reply["got"], "status");
        for (said, answered) in [
            ("\"dance\"".to_owned(), "unknown request"),
            ("x".repeat(REQUEST_MAX_BYTES as usize), "longer than 64 KiB"),
            ("x".repeat(4 << 20), "longer than 64 KiB"),
        ] {
            let place = path(dir.path());
            let line = tokio::task::spawn_blocking(move || {
                let s = StdStream::connect(place).unwrap();
                say_line(&s, &said).unwrap();
                let mut line = String::new();
                let _ = BufReader::new(s).read_line(&mut line);
                line
            });
            let line = line.await.unwrap();
            assert!(line.contains(answered), "{answered}: {line}");
        }
    }
}
