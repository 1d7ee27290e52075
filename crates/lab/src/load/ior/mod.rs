//! `ior`: the command line, output and rules of IOR 4.1 (hpc/ior).
//!
//! Interfaces: POSIX, CORAL (the client library) and DUMMY (nothing). What needs another one is refused.

mod offsets;
mod params;
mod report;
mod run;
mod script;
mod transfer;
mod validate;

use super::failed::Failed;
use super::launch::Tool;
use super::options;
use super::out::Out;
use super::ranks::Rank;
use params::{Params, SPECS};
pub(crate) use report::space_lines;

/// The version whose output this is.
pub(crate) const VERSION: &str = "4.1.0+dev";

/// An IOR command line that was read.
struct Ior {
    args: Vec<String>,
    tests: Vec<Params>,
    notes: Vec<String>,
}

/// Reads a command line, and says what is wrong with it as IOR does.
pub(crate) fn prepare(args: &[String], out: &Out) -> Result<Box<dyn Tool>, Failed> {
    let (program, words) = args.split_first().map_or(("ior", &[][..]), |(p, w)| (p, w));
    let (words, mut notes) = modern(words);
    let mut first = Params {
        out: Some(out.clone()),
        ..Params::default()
    };
    let parsed = options::parse(&words, &SPECS, &mut first);
    out_lines(out, &parsed.said);
    notes.extend(parsed.notes);
    for note in &notes {
        eprintln!("{program}: note: {note}");
    }
    if parsed.help {
        out.print(options::help(program, &SPECS, &mut Params::default()));
    }
    if parsed.fatal || parsed.help {
        return Err(Failed::Said(1));
    }
    first.settle(out)?;
    let tests = match first.script.is_empty() {
        true => vec![first],
        false => script::read(&first, out)?,
    };
    Ok(Box::new(Ior {
        args: args.to_vec(),
        tests,
        notes,
    }))
}

fn out_lines(out: &Out, lines: &[String]) {
    lines.iter().for_each(|l| out.line(l));
}

/// Options of older versions that real command lines carry, as today's.
fn modern(words: &[String]) -> (Vec<String>, Vec<String>) {
    let mut notes = Vec::new();
    let mut new = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let bare = words.get(i + 1).is_none_or(|next| next.starts_with('-'));
        match word.as_str() {
            "-B" => {
                notes.push("-B is --posix.odirect today".to_owned());
                new.push("--posix.odirect".to_owned());
            }
            "-l" if bare => {
                notes.push("-l without a value is -l offset today".to_owned());
                new.push("-l=offset".to_owned());
            }
            _ => new.push(word.clone()),
        }
    }
    (new, notes)
}

impl Tool for Ior {
    fn ranks(&self) -> Option<u32> {
        self.tests
            .iter()
            .filter_map(|t| u32::try_from(t.num_tasks).ok())
            .max()
            .filter(|n| *n > 0)
    }

    fn storage(&self) -> Option<&str> {
        self.tests.first().map(Params::interface)
    }

    fn paths(&self) -> Vec<&str> {
        self.tests.iter().flat_map(Params::paths).collect()
    }

    fn parameters(&self) -> serde_json::Value {
        self.tests.iter().map(Params::as_json).collect()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn run(&self, rank: &mut Rank<'_>) -> Result<u8, Failed> {
        run::all(&self.args, &self.tests, rank)
    }
}
