//! Starting a run: which ranks are in this process, and how they find the others.
//!
//! Three ways, tried in this order: this process was started by another one of ours ([`place::Launched`]); it was started by a
//! foreign launcher, which says so in the environment ([`place::Foreign`]); or it starts the ranks itself, as threads,
//! as processes or on other hosts ([`own`]).

mod children;
mod force;
mod foreign;
mod mounted;
mod own;
mod place;
mod start;

pub use force::{END_LIMIT, end_by_force};
pub use mounted::Mounted;
pub use own::{HELP as OWN_HELP, Own, Ranks};
pub(crate) use place::RECORD;
pub use place::{Environment, Place};
pub(crate) use start::quoted;

use super::clock::{Clock, wall_s};
use super::done::Lost;
use super::ending::Ending;
use super::failed::Failed;
use super::hub::{self, Connection, Hub};
use super::meet::Meeting;
use super::out::Out;
use super::progress::Board;
use super::pulse::{self, Heard, Process, Stood};
use super::ranks::{Group, Rank};
use super::record::{FORMAT, Record};
use super::storage::{Dummy, Library, Posix, Storage, Until};
use crate::verdict::Seen;
use std::ffi::OsString;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The names of the engine.
pub const NAMES: [&str; 4] = ["ior", "mdtest", "mib", "mdsrate"];

/// A program of the engine, its command line read.
pub trait Tool: Send + Sync {
    /// Ranks that its own options ask for.
    fn ranks(&self) -> Option<u32> {
        None
    }

    /// "POSIX", "CORAL" or "DUMMY", where its options name one.
    fn storage(&self) -> Option<&str> {
        None
    }

    /// Files and directories that it names, as they stand on the command line.
    fn paths(&self) -> Vec<&str>;

    /// Its parameters, for the record.
    fn parameters(&self) -> serde_json::Value;

    /// What a reader of the record should know.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Runs one rank; the code to end with.
    fn run(&self, rank: &mut Rank<'_>) -> Result<u8, Failed>;
}

/// A run to start.
pub struct Run {
    /// One of [`NAMES`].
    pub tool: String,
    /// The command line, with the name it was called by first.
    pub args: Vec<String>,
    /// Where it prints.
    pub out: Out,
    /// The environment.
    pub env: Environment,
    /// Called with the board of this process's ranks before they start.
    pub watch: Option<Box<dyn Fn(Arc<Board>) + Send + Sync>>,
    /// A mount that is there, instead of one by `--coral-fs`.
    pub library: Option<Library>,
    /// Has the mounts by `--coral-fs`, for who has to end the process from outside.
    pub mounted: Mounted,
    /// Ends it from outside.
    pub ending: Ending,
}

impl Run {
    /// Of the program `tool` with these arguments, without an environment.
    pub fn new(tool: &str, args: &[&str], out: Out) -> Run {
        let words = std::iter::once(&tool).chain(args);
        Run {
            tool: tool.to_owned(),
            args: words.map(|w| (*w).to_owned()).collect(),
            out,
            env: Environment::default(),
            watch: None,
            library: None,
            mounted: Mounted::default(),
            ending: Ending::default(),
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// The code that the original would end with.
    pub code: u8,
    /// The record, where this process started the run.
    pub record: Option<serde_json::Value>,
}

/// The program of this name: runs it with the process's environment and prints to standard output. Whoever ends the process before
/// that asks `ending` for it, and where that takes longer than [`END_LIMIT`] ends it by force ([`end_by_force`]), as this does where
/// the run has failed. The run is in a thread of its own: a signal goes to the first thread, which must not be in an operation then.
pub fn main(tool: &str, args: Vec<OsString>, mounted: Mounted, ending: Ending) -> ExitCode {
    let mut texts = Vec::new();
    for arg in args {
        match arg.into_string() {
            Ok(text) => texts.push(text),
            Err(arg) => {
                eprintln!("{tool}: the argument {} is not UTF-8", arg.display());
                return ExitCode::FAILURE;
            }
        }
    }
    let (out, env) = (Out::stdout(), Environment::of_process());
    if let Err(why) = force::watch(tool, &env, &mounted, &ending) {
        eprintln!("{tool}: a thread cannot be started: {why}");
        return ExitCode::FAILURE;
    }
    let run = Run {
        tool: tool.to_owned(),
        args: texts,
        out: out.clone(),
        env,
        watch: None,
        library: None,
        mounted,
        ending,
    };
    let ended = match crate::clock::spawn("run", || self::run(run)) {
        Ok(thread) => thread.join(),
        Err(why) => {
            eprintln!("{tool}: a thread cannot be started: {why}");
            return ExitCode::FAILURE;
        }
    };
    match ended {
        Ok(Ok(Ended { code: 0, .. })) if out.failed() => {
            eprintln!("{tool}: what was printed could not be written");
            ExitCode::FAILURE
        }
        Ok(Ok(ended)) => ExitCode::from(ended.code),
        Ok(Err(Failed::Said(code))) => ExitCode::from(code),
        Ok(Err(why)) => {
            eprintln!("{tool}: {why}");
            ExitCode::FAILURE
        }
        // It has said where.
        Err(_panic) => ExitCode::FAILURE,
    }
}

/// Runs it.
pub fn run(run: Run) -> Result<Ended, Failed> {
    let (own, args) = Own::take(&run.args)?;
    let place = Place::of(&run.env, &own)?;
    let elsewhere = match &place {
        Place::Launched(p) => p.enter().err().map(|why| (p, why)),
        _ => None,
    };
    let first_here = place.first() == Some(0);
    // The ranks of a run read the same command line; one of them says what is wrong with it.
    let say = if first_here {
        run.out.clone()
    } else {
        Out::silent()
    };
    let tool = super::tool(&run.tool, &args, &say);
    if let Some((p, why)) = &elsewhere
        && !tool
            .as_ref()
            .is_ok_and(|tool| works_anywhere(&**tool, &own))
    {
        return Err(start::refused(p, why));
    }
    let tool = tool?;
    match place {
        Place::Alone => start::alone(&run, &own, &*tool),
        Place::Launched(p) => {
            let record = start::joined(&run, &own, &*tool, &p)?;
            Ok(Ended {
                code: record,
                record: None,
            })
        }
        Place::Foreign(p) => foreign::foreign(&run, &own, &*tool, &p),
    }
}

/// No path of the command line is meant from the working directory.
fn works_anywhere(tool: &dyn Tool, own: &Own) -> bool {
    let mut paths = tool.paths();
    paths.extend(own.stopwatches.as_deref());
    (paths.iter()).all(|path| path.is_empty() || path.starts_with('/'))
}

/// What the ranks of this process share.
struct Local<'r> {
    run: &'r Run,
    tool: &'r dyn Tool,
    /// Mounts of the library, or one storage that all ranks share.
    storage: Vec<Arc<dyn Storage>>,
    /// The mounts among these.
    libraries: Vec<Library>,
    ranks: std::ops::Range<u32>,
    board: Arc<Board>,
    host: String,
    clock: Clock,
}

impl<'r> Local<'r> {
    fn new(
        run: &'r Run,
        own: &'r Own,
        tool: &'r dyn Tool,
        ranks: std::ops::Range<u32>,
        host: Option<&str>,
    ) -> Result<Local<'r>, Failed> {
        let libraries = libraries(run, own, tool)?;
        let storage = match (tool.storage(), &libraries[..]) {
            (Some("DUMMY"), _) => vec![Arc::new(Dummy) as Arc<dyn Storage>],
            (Some("CORAL"), []) => {
                return Err(Failed::Refused(
                    "the interface CORAL needs --coral-fs NID:/fsname".into(),
                ));
            }
            (_, []) => vec![Arc::new(Posix) as Arc<dyn Storage>],
            (_, mounts) => mounts
                .iter()
                .map(|m| Arc::new(m.clone()) as Arc<dyn Storage>)
                .collect(),
        };
        let until = |storage| {
            let ending = run.ending.clone();
            Arc::new(Until { storage, ending }) as Arc<dyn Storage>
        };
        let storage = storage.into_iter().map(until).collect();
        let board = Arc::new(Board::new(ranks.start, ranks.len() as u32));
        if let Some(watch) = &run.watch {
            watch(board.clone());
        }
        let host = host.map_or_else(host_name, str::to_owned);
        Ok(Local {
            run,
            tool,
            storage,
            libraries,
            ranks,
            board,
            host,
            clock: Clock::start(),
        })
    }

    /// What a rank works on: mounts are dealt in blocks of neighbours, or spread where they are more than ranks.
    fn storage_of(&self, id: u32) -> Arc<dyn Storage> {
        let at = u64::from(id - self.ranks.start) * self.storage.len() as u64;
        self.storage[(at / self.ranks.len() as u64) as usize].clone()
    }

    /// Writes down where the time of the mounts went, if that is asked for, and ends the mounts.
    fn end(&self, own: &Own, done: Result<u8, Failed>) -> Result<u8, Failed> {
        let code = done?;
        let written = own.stopwatches.as_ref().map_or(Ok(()), |path| {
            let seen = Seen {
                dumps: Library::stopwatches(&self.libraries),
                ..Seen::default()
            };
            let text = serde_json::to_string(&seen).unwrap_or_default();
            start::write_whole(path, &text)
        });
        self.run.mounted.end();
        written.map(|()| code)
    }

    /// Runs one rank to its end. A rank that fails ends the run for the others.
    fn rank(&self, id: u32, size: u32, group: Group, clock: Clock) -> Result<u8, Failed> {
        let mut rank = Rank::join(
            id,
            size,
            group,
            clock,
            &self.host,
            self.run.out.clone(),
            self.board.line(id),
            self.storage_of(id),
        )?;
        rank.ending = self.run.ending.clone();
        if id == 0 {
            rank.record = Some(self.new_record(&rank));
        }
        let mut lost = Lost::default();
        // The others would wait for a rank that has panicked.
        let mut done = catch_unwind(AssertUnwindSafe(|| {
            let mut code = self.tool.run(&mut rank)?;
            rank.together()?;
            lost = rank.all_lost()?;
            // The original says nothing of some.
            if let Some(told) = lost.told().filter(|_| code == 0) {
                code = 1;
                if rank.is_first() {
                    force::say(&self.run.tool, &told);
                }
            }
            Ok(code)
        }))
        .unwrap_or_else(|_| Err(Failed::Apart(format!("rank {id} panicked"))));
        done = done.map_err(|why| self.why(why));
        if let Err(why) = &done {
            let ending = &self.run.ending;
            let of_this = || ending.of_this_alone(&self.process());
            let why = match (ending.why(), why) {
                (Some(first), _) => of_this().unwrap_or_else(|| first.to_owned()),
                (None, Failed::Apart(heard)) => heard.clone(),
                (None, own) if size == 1 => own.to_string(),
                (None, own) => of_rank(id, own),
            };
            // The other ranks of this process hear of it at once, those of others through the hub.
            self.run.ending.broken(&why);
            rank.break_up(&why);
        }
        let record = rank.record.take().map(|mut record| {
            record.ended_unix_s = wall_s();
            record.complete = done.is_ok() && lost.count == 0;
            let why = done.as_ref().err().map(ToString::to_string);
            record.why_incomplete = why.or_else(|| lost.told());
            record.failed_operations = lost.count;
            serde_json::to_vec(&record).unwrap_or_default()
        });
        rank.leave(record.as_deref());
        done
    }

    /// This process.
    fn process(&self) -> Process {
        Process::own(self.ranks.clone(), &self.host)
    }

    /// Why a rank failed: because the run was ended, or by itself.
    fn why(&self, failed: Failed) -> Failed {
        let ending = &self.run.ending;
        let is_ended = match &failed {
            _ if ending.outside().is_some() => true,
            Failed::Apart(_) => true,
            Failed::Storage { why, .. } => why.kind() == io::ErrorKind::Interrupted,
            _ => false,
        };
        let ended = is_ended.then(|| ending.failed(self.clock)).flatten();
        ended.unwrap_or(failed)
    }

    fn new_record(&self, rank: &Rank<'_>) -> Record {
        Record {
            format: FORMAT,
            tool: self.run.tool.clone(),
            version: env!("CARGO_PKG_VERSION"),
            command: self.run.args.clone(),
            began_unix_s: wall_s(),
            ended_unix_s: 0,
            complete: false,
            why_incomplete: None,
            failed_operations: 0,
            interface: self.storage[0].name(),
            ranks: rank.size,
            hosts: rank.nodes.hosts.clone(),
            clock_uncertainty_ns: rank.uncertainty_ns.clone(),
            parameters: self.tool.parameters(),
            stood_still: Vec::new(),
            phases: Vec::new(),
            summary: serde_json::Map::new(),
            notes: self.tool.notes(),
        }
    }
}

/// Why a rank ended the run, for the others. Some ranks name themselves.
fn of_rank(id: u32, why: &Failed) -> String {
    let own = format!("rank {id}: ");
    match why {
        Failed::Said(_) => format!("rank {id} ended the run"),
        why if why.to_string().starts_with(&own) => why.to_string(),
        why => format!("{own}{why}"),
    }
}

/// The mounts of the library that a run works on.
fn libraries(run: &Run, own: &Own, tool: &dyn Tool) -> Result<Vec<Library>, Failed> {
    match (&run.library, &own.fs) {
        _ if tool.storage() == Some("DUMMY") => Ok(Vec::new()),
        (Some(library), _) => Ok(vec![library.clone()]),
        (None, None) => Ok(Vec::new()),
        (None, Some(source)) => run.mounted.add(|| match &own.nids()[..] {
            [] => Ok(vec![Library::mount(source, own.port())?]),
            nids => Library::mount_many(source, nids, own.port()),
        }),
    }
}

/// A way out that has not ended the mounts: something failed.
impl Drop for Local<'_> {
    fn drop(&mut self) {
        self.run.mounted.give_up();
    }
}

/// This machine's name.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panics;

    impl Tool for Panics {
        fn paths(&self) -> Vec<&str> {
            Vec::new()
        }

        fn parameters(&self) -> serde_json::Value {
            serde_json::Value::Null
        }

        fn run(&self, rank: &mut Rank<'_>) -> Result<u8, Failed> {
            assert_ne!(rank.id, 1, "this rank panics");
            rank.barrier().map(|()| 0)
        }
    }

    #[test]
    fn a_rank_that_panics_ends_the_others() {
        let run = Run::new("ior", &[], Out::silent());
        let own = Own {
            np: Some(3),
            ..Own::default()
        };
        let why = start::alone(&run, &own, &Panics).expect_err("a rank panicked");
        let told = "rank 1 panicked; ranks 0 to 2 had done 0 operations with 0 bytes by then, in all phases";
        assert_eq!(why.to_string(), told);
    }

    #[test]
    fn a_rank_is_named_once() {
        let of = |why: &str| of_rank(1, &Failed::Refused(why.to_owned()));
        assert_eq!(of("no seed"), "rank 1: no seed");
        assert_eq!(of("rank 1: no seed"), "rank 1: no seed");
        assert_eq!(of_rank(1, &Failed::Said(1)), "rank 1 ended the run");
    }
}
