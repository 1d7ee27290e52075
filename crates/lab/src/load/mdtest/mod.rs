//! `mdtest`: the command line, output and rules of mdtest 4.1 (hpc/ior: `src/mdtest.c`).

mod grow;
mod options;
mod report;
mod run;
mod tree;
mod work;

use super::failed::Failed;
use super::launch::Tool;
use super::options as parser;
use super::out::Out;
use super::ranks::Rank;
use options::{Options, SPECS};

/// An mdtest command line that was read.
struct Mdtest {
    args: Vec<String>,
    options: Options,
    notes: Vec<String>,
}

/// Reads a command line, and says what is wrong with it as mdtest does.
pub(crate) fn prepare(args: &[String], out: &Out) -> Result<Box<dyn Tool>, Failed> {
    let (program, words) = args
        .split_first()
        .map_or(("mdtest", &[][..]), |(p, w)| (p, w));
    let mut options = Options::default();
    let parsed = parser::parse(words, &SPECS, &mut options);
    parsed.said.iter().for_each(|l| out.line(l));
    for note in &parsed.notes {
        eprintln!("{program}: note: {note}");
    }
    if parsed.help {
        out.print(parser::help(program, &SPECS, &mut Options::default()));
    }
    if parsed.fatal || parsed.help {
        return Err(Failed::Said(1));
    }
    if let Err(why) = options.settle() {
        out.line(format!("ERROR: {why}"));
        return Err(Failed::Said(1));
    }
    Ok(Box::new(Mdtest {
        args: args.to_vec(),
        options,
        notes: parsed.notes,
    }))
}

impl Tool for Mdtest {
    fn storage(&self) -> Option<&str> {
        Some(&self.options.api)
    }

    fn paths(&self) -> Vec<&str> {
        let o = &self.options;
        let mut paths = o.paths();
        // Those of a shell's words are not known.
        for path in [
            &o.status_file,
            &o.rank_csv,
            &o.per_op_csv,
            &o.prologue,
            &o.epilogue,
        ] {
            paths.push(path);
        }
        paths
    }

    fn parameters(&self) -> serde_json::Value {
        self.options.as_json()
    }

    fn notes(&self) -> Vec<String> {
        let o = &self.options;
        let reads = |kind| o.is("read") && o.is(kind);
        let empty = [
            (
                reads("dirs_only") && !o.is("shared_file"),
                "Directory read: no directory is read, as in mdtest: its printed rate is that of an empty loop",
            ),
            (
                reads("files_only") && o.number("read_bytes") == 0,
                "File read: files are opened and closed, and nothing is read (-e 0)",
            ),
        ];
        let said = empty.iter().filter(|(is, _)| *is);
        let said = said.map(|(_, note)| (*note).to_owned());
        self.notes.iter().cloned().chain(said).collect()
    }

    fn run(&self, rank: &mut Rank<'_>) -> Result<u8, Failed> {
        run::all(&self.args, &self.options, rank)
    }
}
