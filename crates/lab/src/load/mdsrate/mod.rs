//! `mdsrate`: the command line, output and rules of Lustre's metadata benchmark (lustre/tests/mpi/mdsrate.c).
//!
//! Two things differ. `--lookup` is a stat of the path: the original asks a lookup of the MDT alone. `--time` is looked at
//! after each operation, where the original interrupts one with a signal.

mod run;
mod settings;

use super::failed::Failed;
use super::getopt::{self, Opt, Takes};
use super::launch::Tool;
use super::out::Out;
use super::ranks::Rank;
use settings::{Settings, Wrong};

const NO: Takes = Takes::Nothing;
const VALUE: Takes = Takes::Value;

/// Names, letters as the original has them, and whether a value follows.
#[rustfmt::skip]
const OPTS: [Opt; 29] = [
    ("create", 'c', NO), ("lookup", 'l', NO), ("mknod", 'm', NO), ("open", 'o', NO), ("stat", 's', NO), ("unlink", 'u', NO),
    ("begin", 'b', VALUE), ("iters", 'i', VALUE), ("time", 't', VALUE), ("dirfmt", 'd', VALUE), ("ndirs", 'D', VALUE),
    ("filefmt", 'f', VALUE), ("nfiles", 'F', VALUE), ("noexcl", 'X', NO), ("stripes", 'S', VALUE), ("seed", 'r', VALUE),
    ("seedfile", 'R', VALUE), ("random_order", 'A', NO), ("readdir_order", 'B', NO), ("recreate", 'C', NO),
    ("setxattr", 'x', NO), ("smallwrite", 'w', NO), ("ignore", 'E', NO), ("verbose", 'V', NO), ("debug", 'v', NO),
    ("help", 'h', NO), ("mdtcount", 'T', VALUE), ("mntcount", 'N', VALUE), ("mntfmt", 'M', VALUE),
];

const USAGE: &str = "
    { --create [ --noexcl | --setxattr | --smallwrite ] |
      --lookup | --mknod [ --setxattr ] | --open |
      --stat | --unlink [ --recreate ] [ --ignore ] |
      --setxattr }
    [ --help ] [ --verbose ] [ --debug ]
    { [ --begin <num> ] --nfiles <num> }
    [ --iters <num> ] [ --time <secs> ]
    [ --dirfmt <str> ] [ --ndirs  <num> ]
    [ --filefmt <str> ] [ --stripes <num> ]
    [ --random_order [--seed <num> | --seedfile <file>] ]
    [ --readdir_order ] [ --mntfmt <str> ]
    [ --mntcount <num> ] [ --mdtcount <num> ]
    [ --setxattr ] }
";

/// A command line that was read, as far as that goes without the number of ranks.
struct Mdsrate {
    program: String,
    options: Vec<(char, Option<String>)>,
}

/// Reads a command line.
pub(crate) fn prepare(args: &[String], out: &Out) -> Result<Box<dyn Tool>, Failed> {
    let (program, words) = args
        .split_first()
        .map_or(("mdsrate", &[][..]), |(p, w)| (p, w));
    let program = program.rsplit('/').next().unwrap_or(program).to_owned();
    let found = getopt::parse(words, &OPTS);
    let mut options = Vec::new();
    for option in found.options {
        match option {
            Ok(('h', _)) => {
                out.print(format_args!(
                    "usage: {program}{USAGE}{}",
                    super::launch::OWN_HELP
                ));
                return Err(Failed::Said(0));
            }
            Ok(option) => options.push(option),
            Err(why) => return Err(usage(&program, &why)),
        }
    }
    if let Some(word) = found.words.first() {
        return Err(usage(&program, &format!("too many arguments: {word}")));
    }
    Ok(Box::new(Mdsrate { program, options }))
}

fn usage(program: &str, why: &str) -> Failed {
    eprint!("{program}: {why}\nusage: {program}{USAGE}");
    Failed::Said(1)
}

impl Tool for Mdsrate {
    fn paths(&self) -> Vec<&str> {
        let of = |letter| {
            let found = self.options.iter().rfind(|(l, _)| *l == letter);
            found.and_then(|(_, value)| value.as_deref())
        };
        // The directory stands below the mount, where that is named.
        let mount = of('M').filter(|_| of('N').is_some());
        let dir = mount.or(of('d')).unwrap_or(".");
        std::iter::once(dir).chain(of('R')).collect()
    }

    fn parameters(&self) -> serde_json::Value {
        let named = self.options.iter().map(|(letter, value)| {
            let name = OPTS.iter().find(|o| o.1 == *letter).map_or("", |o| o.0);
            (
                name.to_owned(),
                serde_json::json!(value.clone().unwrap_or_default()),
            )
        });
        named.collect::<serde_json::Map<_, _>>().into()
    }

    fn notes(&self) -> Vec<String> {
        let lookup = self.options.iter().any(|o| o.0 == 'l');
        let stripes = self.options.iter().any(|o| o.0 == 'S');
        let notes = [
            (lookup, "a lookup is a stat of the path here"),
            (
                stripes,
                "--stripes 0 has no effect: objects come with the first write",
            ),
        ];
        notes
            .iter()
            .filter(|n| n.0)
            .map(|n| n.1.to_owned())
            .collect()
    }

    fn run(&self, rank: &mut Rank<'_>) -> Result<u8, Failed> {
        let settings = match Settings::of(&self.options, rank.id, rank.size) {
            Ok(settings) => settings,
            Err(wrong) => {
                // What holds for all ranks is said by the first.
                return Err(match wrong {
                    Wrong::Usage(why) if rank.is_first() => usage(&self.program, &why),
                    Wrong::Fatal(why) if rank.is_first() => Failed::Refused(why),
                    Wrong::Mine(why) => Failed::Refused(format!("rank {}: {why}", rank.id)),
                    Wrong::Usage(_) | Wrong::Fatal(_) => Failed::Said(1),
                });
            }
        };
        if rank.is_first() {
            self.notes()
                .iter()
                .for_each(|n| eprintln!("{}: note: {n}", self.program));
        }
        run::run(&settings, rank)
    }
}
