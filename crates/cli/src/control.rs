//! The control socket of a running Coral process: `DIR/control.sock`, one JSON line each way.
//!
//! Only who may open the socket (its owner: mode 0600) can ask. Requests: `status`, `down`, parameters of the mount, and
//! `{"lnet": ...}` ([`LnetAsk`]), which the nodes of the process answer themselves.

use crate::lnetctl::agent::{Agent, LnetAsk};
use crate::lnetctl::find::Registered;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// Longest request line, bytes.
const REQUEST_MAX_BYTES: u64 = 64 << 10;
/// How long a client of the socket waits for an answer to anything else.
pub(crate) const ANSWER_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// How long a process may take that is asked for what it knows. One that is stopped, or hangs, does not answer at all.
pub(crate) const LOOK_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
/// Pause after a connection that could not be accepted.
pub(crate) const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Lets the last answer reach the socket before the process ends.
const LAST_ANSWER: std::time::Duration = std::time::Duration::from_millis(20);

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
pub(crate) fn connect(socket: &Path, limit: std::time::Duration) -> std::io::Result<StdStream> {
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

/// Asks the process that serves `dir`. `Err` when none answers.
pub(crate) fn ask(dir: &Path, what: Ask) -> std::io::Result<serde_json::Value> {
    ask_within(dir, what, ANSWER_LIMIT)
}

/// The same of what takes it no longer than `limit`.
pub(crate) fn ask_within(
    dir: &Path,
    what: Ask,
    limit: std::time::Duration,
) -> std::io::Result<serde_json::Value> {
    let stream = connect(&path(dir), limit)?;
    say_line(&stream, &serde_json::to_string(&what)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(std::io::Error::other)
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
