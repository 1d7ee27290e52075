//! `mib`: the command line, output and rules of LLNL's bandwidth benchmark, version 1.9.8.
//!
//! It differs where the original cannot be right: `-b` seeks all over the file, where the original computes
//! the offset zero for most files; a wrong option ends with code 1; and the record has a read rate up to the last read that
//! brought data. What is printed counts the time of the empty reads after it, as the original does.

mod options;
mod run;

use super::failed::Failed;
use super::getopt::{self, Opt, Takes};
use super::launch::Tool;
use super::out::Out;
use super::ranks::Rank;
use options::Options;

/// The version whose output this is.
const VERSION: &str = "1.9.8";
const NO: Takes = Takes::Nothing;
const VALUE: Takes = Takes::Value;

#[rustfmt::skip]
const OPTS: [Opt; 20] = [
    ("random_reads", 'b', Takes::Perhaps), ("show_environment", 'E', NO), ("force", 'F', NO),
    ("show_intermediate_values", 'I', NO), ("show_headers", 'H', NO), ("call_limit", 'l', VALUE), ("time_limit", 'L', VALUE),
    ("new", 'n', NO), ("profiles", 'p', VALUE), ("show_progress", 'P', NO), ("remove", 'r', NO), ("read_only", 'R', NO),
    ("call_size", 's', VALUE), ("show_signon", 'S', NO), ("test_dir", 't', VALUE), ("version", 'V', NO),
    ("write_only", 'W', NO), ("help", 'h', NO), ("directio", 'd', NO), ("no_mpi", 'M', NO),
];

const USAGE: &str = "\
usage: mib -t <test_dir> [options]
    -b[<gran>]      seek to a random multiple of <gran> before each read
    -E              show the options
    -F              also on file systems that are not Lustre's
    -h              this
    -H              headers over the result
    -I              intermediate values
    -l <calls>      at most so many calls a phase [4096]
    -L <seconds>    no further call after so many seconds [60]
    -n              remove files that are there
    -p <base>       times of all calls to <base>.write and <base>.read
    -P              progress
    -r              remove the files when they have been read; with -W they stay
    -R              only read
    -s <size>       bytes of a call, with k or m [512k]
    -S              sign on
    -t <dir>        directory to work in
    -V              version
    -W              only write
    -d              past the page cache (O_DIRECT)
";

/// A command line that was read.
struct Mib {
    options: Options,
}

fn arch() -> String {
    rustix::system::uname()
        .machine()
        .to_string_lossy()
        .into_owned()
}

/// Reads a command line.
pub(crate) fn prepare(args: &[String], out: &Out) -> Result<Box<dyn Tool>, Failed> {
    let words = args.get(1..).unwrap_or(&[]);
    let mut options = Options::default();
    for option in getopt::parse(words, &OPTS).options {
        match option {
            Ok(('V', _)) => {
                out.line(format!("mib-{VERSION}-{}", arch()));
                return Err(Failed::Said(0));
            }
            Ok(('h', _)) => {
                out.print(format_args!("{USAGE}{}", super::launch::OWN_HELP));
                return Err(Failed::Said(0));
            }
            Ok((letter, value)) => options.set(letter, value.as_deref())?,
            Err(why) => {
                eprint!("mib: {why}\n{USAGE}");
                return Err(Failed::Said(1));
            }
        }
    }
    if options.dir.is_empty() {
        out.line("Mib requires a \"-t <test_dir>\" argument.");
        return Err(Failed::Said(1));
    }
    if options.write_only && options.read_only {
        (options.write_only, options.read_only) = (false, false);
    }
    Ok(Box::new(Mib { options }))
}

impl Tool for Mib {
    fn paths(&self) -> Vec<&str> {
        let profiles = self.options.profiles.as_deref();
        std::iter::once(self.options.dir.as_str())
            .chain(profiles)
            .collect()
    }

    fn parameters(&self) -> serde_json::Value {
        self.options.as_json()
    }

    fn run(&self, rank: &mut Rank<'_>) -> Result<u8, Failed> {
        run::run(&self.options, rank)
    }
}
