//! The process that holds a session: it listens on the session's socket and runs what commands ask.

use super::node;
use super::session::Wanted;
use super::socket::{self, Answer, COMMAND_MAX_BYTES, Out, Words};
use super::{Failed, commands};
use crate::daemon::Reporter;
use crate::lnetctl::find::Found;
use coral_lnet::selftest::Selftest;
use coral_lnet::selftest::console::Console;
use coral_lnet::{Nid, Node};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

/// How a session is used.
struct Used {
    /// Commands that run.
    running: usize,
    /// When the last one ended.
    at: Instant,
}

/// A session as commands see it.
pub(crate) struct Session {
    pub wanted: Wanted,
    pub console: Arc<Console>,
    node: OnceCell<Arc<Node>>,
    /// While it is here `lnetctl` finds the node.
    found: Mutex<Option<Found>>,
    used: Mutex<Used>,
    /// The session has been ended.
    pub ended: AtomicBool,
    /// Its socket has been removed.
    unbound: AtomicBool,
    /// Told when all about that is done.
    over: Notify,
}

impl Session {
    pub(crate) fn new(wanted: Wanted) -> Result<Arc<Session>, Failed> {
        let (secs, nanos) = wall_time();
        let console = Console::new(
            &wanted.name,
            wanted.force,
            wanted.feats,
            secs * 1000 + nanos as u64 / 1_000_000,
        )?;
        let used = Mutex::new(Used {
            running: 0,
            at: Instant::now(),
        });
        let (node, found, ended, unbound, over) = (
            OnceCell::new(),
            Mutex::default(),
            AtomicBool::new(false),
            AtomicBool::new(false),
            Notify::new(),
        );
        Ok(Arc::new(Session {
            wanted,
            console,
            node,
            found,
            used,
            ended,
            unbound,
            over,
        }))
    }

    /// Makes sure that the console can speak, and that there is a way to `first`. Its NID is the one asked for, else one from
    /// which `first` is reached.
    pub(crate) async fn voice(&self, first: Nid) -> Result<(), Failed> {
        let ways = &self.wanted.ways;
        let start = || async {
            self.start(self.wanted.nid.map_or_else(|| ways.local(first), Ok)?)
                .await
        };
        let node = self.node.get_or_try_init(start).await?;
        ways.check(node, first)
    }

    /// Starts the node on the NID that was asked for, if one was: an address that is not ours is known at once.
    async fn voice_as_asked(&self) -> Result<(), Failed> {
        let Some(nid) = self.wanted.nid else {
            return Ok(());
        };
        self.node
            .get_or_try_init(|| self.start(nid))
            .await
            .map(drop)
    }

    async fn start(&self, nid: Nid) -> Result<Arc<Node>, Failed> {
        let ways = &self.wanted.ways;
        let node = ways.start_node(nid).await?;
        self.console.attach(node.clone(), Selftest::serve(&node));
        let (found, asked) = Found::new(&node);
        tokio::spawn(node::answer_for_console(node.clone(), ways.port, asked));
        *self.found.lock() = Some(found);
        Ok(node)
    }

    /// The console's node is used for a test's sake by tests.
    #[cfg(test)]
    pub(crate) fn attach(&self, node: Arc<Node>) {
        self.console.attach(node.clone(), Selftest::serve(&node));
        let _ = self.node.set(node);
    }

    /// A command runs until what this gives is dropped, however that comes.
    fn begin_command(&self) -> Running<'_> {
        self.used.lock().running += 1;
        Running(self)
    }

    /// Resolves when nobody has used the session for so long as was asked for. A command that runs uses it.
    async fn idle(&self) {
        let limit = Duration::from_secs(self.wanted.timeout_s as u64);
        loop {
            let until = {
                let used = self.used.lock();
                if used.running > 0 {
                    Instant::now() + limit
                } else {
                    used.at + limit
                }
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Commands find no session any more. Once only: the socket may be another session's soon.
    fn unbind(&self, socket: &Path) {
        if !self.unbound.swap(true, Ordering::AcqRel) {
            let _ = std::fs::remove_file(socket);
        }
    }

    /// Takes away all by which others see the session: from now on another one with its key and its address can begin.
    async fn leave(&self, socket: &Path) {
        self.unbind(socket);
        self.found.lock().take();
        if let Some(node) = self.node.get() {
            node.shutdown().await;
        }
    }
}

/// A command of a session.
struct Running<'a>(&'a Session);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut used = self.0.used.lock();
        (used.running, used.at) = (used.running - 1, Instant::now());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a session's ID is the machine's time, and there is no node yet to ask"
)]
fn wall_time() -> (u64, u32) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    (now.as_secs(), now.subsec_nanos())
}

/// The background process.
pub(crate) fn run(args: Vec<String>) -> Result<(), Failed> {
    let mut reporter = Reporter::from_env();
    crate::start_log(crate::LOGGED);
    let done = Wanted::parse(&args).and_then(|w| {
        crate::runtime()
            .map_err(Failed)?
            .block_on(serve(w, &mut reporter))
    });
    if let Err(Failed(why)) = &done {
        reporter.failed(why);
    }
    done
}

async fn serve(wanted: Wanted, reporter: &mut Reporter) -> Result<(), Failed> {
    let path = socket::path(wanted.key)?;
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).map_err(|e| Failed(format!("'{}': {e}", path.display())))?;
    let line = wanted.line();
    let session = Session::new(wanted)?;
    let begun = match session.voice_as_asked().await {
        Ok(()) => reporter.ready(&line).map_err(Failed),
        failed => failed,
    };
    if begun.is_err() {
        session.leave(&path).await;
        return begun;
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { tokio::spawn(answer(session.clone(), stream)); }
                // no descriptors left, for instance: it passes
                Err(e) => {
                    tracing::warn!(error = %e, "console socket");
                    tokio::time::sleep(crate::control::ACCEPT_PAUSE).await;
                }
            },
            () = session.over.notified() => return Ok(()),
            () = session.idle() => {
                tracing::warn!("nobody has used the session: it ends");
                session.unbind(&path);
                session.console.end().await;
                session.leave(&path).await;
                return Ok(());
            }
        }
    }
}

async fn answer(session: Arc<Session>, stream: UnixStream) {
    let (read, write) = stream.into_split();
    let mut line = String::new();
    let mut out = Out::to(write);
    if BufReader::new(read.take(COMMAND_MAX_BYTES))
        .read_line(&mut line)
        .await
        .is_err()
        || line.is_empty()
    {
        return;
    }
    let code = match serde_json::from_str::<Words>(&line) {
        Ok(words) => run_words(&session, &words, &mut out).await,
        Err(_) if !line.ends_with('\n') => {
            let _ = out.err(format!("lst: the command is longer than {COMMAND_MAX_BYTES} bytes: give ranges, or several commands")).await;
            1
        }
        Err(e) => {
            let _ = out
                .err(format!("lst: the console did not understand: {e}"))
                .await;
            1
        }
    };
    let ended = session.ended.load(Ordering::Acquire);
    // Who is told that the session has ended may begin another.
    if ended && let Ok(path) = socket::path(session.wanted.key) {
        session.leave(&path).await;
    }
    let _ = out.say(Answer::Exit(code)).await;
    if ended {
        session.over.notify_one();
    }
}

/// Runs a command and gives its exit code; what went wrong is said on `out`.
pub(crate) async fn run_words(session: &Arc<Session>, words: &Words, out: &mut Out) -> u8 {
    let running = session.begin_command();
    let done = commands::run(session, &words.command, &words.args, out).await;
    drop(running);
    match done {
        Ok(all_well) => !all_well as u8,
        Err(Failed(why)) => {
            let _ = out.err(format!("lst: {why}")).await;
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn a_command_that_runs_is_a_use_and_idle_begins_when_it_ends() {
        let wanted = Wanted::parse_with_key(7, &["--timeout".into(), "300".into()])
            .ok()
            .unwrap();
        let session = Session::new(wanted).ok().unwrap();
        let sleep = |s| tokio::time::sleep(Duration::from_secs(s));
        let mut idle = std::pin::pin!(session.idle());
        let (first, second) = (session.begin_command(), session.begin_command());
        sleep(200).await;
        drop(first);
        for _ in 0..5 {
            sleep(200).await;
            assert!((&mut idle).now_or_never().is_none(), "another command runs");
        }
        drop(second);
        sleep(299).await;
        assert!((&mut idle).now_or_never().is_none(), "idle begins at zero");
        let rest = Instant::now();
        idle.await;
        assert!(rest.elapsed() <= Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_given_up_is_no_use_any_more() {
        let session = Session::new(
            Wanted::parse_with_key(7, &["--timeout".into(), "300".into()])
                .ok()
                .unwrap(),
        )
        .ok()
        .unwrap();
        let begun = {
            let session = session.clone();
            tokio::spawn(async move {
                let _running = session.begin_command();
                std::future::pending::<()>().await;
            })
        };
        tokio::task::yield_now().await;
        assert_eq!(session.used.lock().running, 1);
        begun.abort();
        assert!(begun.await.is_err());
        session.idle().await;
    }
}
