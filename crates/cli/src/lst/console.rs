//! The process that holds a session: it listens on the session's socket and runs what commands ask.

use super::session::Wanted;
use super::socket::{self, Answer, COMMAND_MAX_BYTES, Out, Words};
use super::{Failed, commands};
use crate::daemon::Reporter;
use coral_lnet::selftest::Selftest;
use coral_lnet::selftest::console::Console;
use coral_lnet::{Nid, Node, NodeConfig, StartError, local_nid_on};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

/// A session as commands see it.
pub(crate) struct Session {
    pub wanted: Wanted,
    pub console: Arc<Console>,
    node: OnceCell<Arc<Node>>,
    used: Mutex<Instant>,
    /// Told when the session is to end.
    pub over: Notify,
}

impl Session {
    pub(crate) fn new(wanted: Wanted) -> Result<Arc<Session>, Failed> {
        let (secs, nanos) = wall_time();
        let console = Console::new(&wanted.name, wanted.force, wanted.feats, secs * 1000 + nanos as u64 / 1_000_000)?;
        let (node, used, over) = (OnceCell::new(), Mutex::new(Instant::now()), Notify::new());
        Ok(Arc::new(Session { wanted, console, node, used, over }))
    }

    /// Makes sure that the console can speak; its NID is the one asked for, else one from which `first` is reached.
    pub(crate) async fn voice(&self, first: Nid) -> Result<(), Failed> {
        let start = || async {
            let port = self.wanted.port;
            let nid = match self.wanted.nid {
                Some(nid) => nid,
                None => local_nid_on(first, port).map_err(|e| Failed(format!("{first} cannot be reached from here: {e}")))?,
            };
            let node = start_node(nid, port).await?;
            self.console.attach(node.clone(), Selftest::serve(&node));
            Ok::<_, Failed>(node)
        };
        self.node.get_or_try_init(start).await.map(drop)
    }

    /// The console's node is used for a test's sake by tests.
    #[cfg(test)]
    pub(crate) fn attach(&self, node: Arc<Node>) {
        self.console.attach(node.clone(), Selftest::serve(&node));
        let _ = self.node.set(node);
    }

    /// Puts the idle timeout off.
    pub(crate) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    async fn idle(&self) {
        let limit = Duration::from_secs(self.wanted.timeout_s as u64);
        loop {
            let until = *self.used.lock() + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a session's ID is the machine's time, and there is no node yet to ask")]
fn wall_time() -> (u64, u32) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs(), now.subsec_nanos())
}

/// A node with an acceptor. Without the privilege for its port it has none: others cannot open connections to it, but answer on its own.
pub(crate) async fn start_node(nid: Nid, port: u16) -> Result<Arc<Node>, Failed> {
    let cfg = |listen_port| NodeConfig { nids: vec![nid], listen_port, connect_port: port, seed: nid.0 ^ wall_time().1 as u64, ..NodeConfig::default() };
    match Node::start(cfg(Some(port)), None).await {
        Err(StartError::Listen { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => Ok(Node::start(cfg(None), None).await?),
        Err(StartError::Listen { nid, source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => {
            Err(Failed(format!("{nid} port {port} is taken by another process of this machine: give another address with --nid")))
        }
        started => Ok(started?),
    }
}

/// The background process.
pub(crate) fn run(args: Vec<String>) -> Result<(), Failed> {
    let mut reporter = Reporter::from_env();
    crate::start_log();
    let done = Wanted::parse(&args).and_then(|w| crate::runtime().map_err(Failed)?.block_on(serve(w, &mut reporter)));
    if let Err(Failed(why)) = &done {
        reporter.failed(why);
    }
    done
}

async fn serve(wanted: Wanted, reporter: &mut Reporter) -> Result<(), Failed> {
    let path = socket::path(wanted.key)?;
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|e| Failed(format!("'{}': {e}", path.display())))?;
    let line = wanted.line();
    let session = Session::new(wanted)?;
    reporter.ready(&line).map_err(Failed)?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { tokio::spawn(answer(session.clone(), stream)); }
                Err(e) => tracing::warn!(error = %e, "console socket"),
            },
            () = session.over.notified() => break,
            () = session.idle() => {
                tracing::warn!("nobody has used the session: it ends");
                session.console.end().await;
                break;
            }
        }
    }
    let _ = std::fs::remove_file(&path);
    if let Some(node) = session.node.get() {
        node.shutdown().await;
    }
    Ok(())
}

async fn answer(session: Arc<Session>, stream: UnixStream) {
    let (read, write) = stream.into_split();
    let mut line = String::new();
    let mut out = Out::to(write);
    if BufReader::new(read.take(COMMAND_MAX_BYTES)).read_line(&mut line).await.is_err() {
        return;
    }
    let code = match serde_json::from_str::<Words>(&line) {
        Ok(words) => run_words(&session, &words, &mut out).await,
        Err(e) => {
            let _ = out.err(format!("lst: the console did not understand: {e}")).await;
            1
        }
    };
    let _ = out.say(Answer::Exit(code)).await;
    if serde_json::from_str::<Words>(&line).is_ok_and(|w| w.command == "end_session") {
        session.over.notify_one();
    }
}

/// Runs a command and gives its exit code; what went wrong is said on `out`.
pub(crate) async fn run_words(session: &Arc<Session>, words: &Words, out: &mut Out) -> u8 {
    session.touch();
    let done = commands::run(session, &words.command, &words.args, out).await;
    session.touch();
    match done {
        Ok(all_well) => !all_well as u8,
        Err(Failed(why)) => {
            let _ = out.err(format!("lst: {why}")).await;
            1
        }
    }
}
