//! Our own options, beside those of the originals. They may stand anywhere on the command line and are taken out of it
//! before the original's rules apply to the rest.

use crate::load::Failed;

/// Ranks that one run may have.
pub const MAX_RANKS: u32 = 4096;

/// Where the ranks of a run are, when we start them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ranks {
    /// In this process.
    #[default]
    Threads,
    /// One process each, here.
    Processes,
}

/// What the options say.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// `--np N`: ranks.
    pub np: Option<u32>,
    /// `--processes`.
    pub ranks: Ranks,
    /// `--hosts a,b`: in blocks of neighbours.
    pub hosts: Vec<String>,
    /// `--ssh 'CMD ARG'`: starts a command on a host; "ssh -o BatchMode=yes" unless said.
    pub ssh: Option<String>,
    /// `--meet ADDRESS`: where ranks of other hosts reach this one.
    pub meet: Option<String>,
    /// `--program PATH`: of this program on the hosts.
    pub program: Option<String>,
    /// `--coral-json FILE`: the record.
    pub json: Option<String>,
    /// `--coral-fs NID:/fsname`: through the library, without a mount.
    pub fs: Option<String>,
}

/// The options that take a value, for help.
pub const HELP: &str = "\
Options of Coral's, before or between the others:
  --np N              ranks to start here, as threads
  --processes         as processes instead
  --hosts A,B         on these hosts over ssh, neighbours together
  --ssh CMD           the command that runs another on a host [ssh -o BatchMode=yes]
  --meet ADDRESS      where the hosts reach this machine
  --program PATH      this program on the hosts
  --coral-fs SOURCE   NID:/fsname through Coral's client library, without a mount
  --coral-json FILE   the record: raw points, deviations, latencies
";

impl Own {
    /// Takes them out of a command line, whose first word is the program's name; the rest is the original's.
    pub fn take(args: &[String]) -> Result<(Own, Vec<String>), Failed> {
        let mut own = Own::default();
        let mut rest: Vec<String> = args.first().cloned().into_iter().collect();
        let mut words = args.iter().skip(1);
        while let Some(word) = words.next() {
            let (name, glued) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let mut value = || {
                glued
                    .clone()
                    .or_else(|| words.next().cloned())
                    .filter(|v| !v.is_empty())
                    .ok_or_else(|| Failed::Refused(format!("{name} needs a value")))
            };
            match name {
                "--np" => own.np = Some(ranks(&value()?)?),
                "--processes" if glued.is_none() => own.ranks = Ranks::Processes,
                "--hosts" => own.hosts = value()?.split(',').map(str::to_owned).collect(),
                "--ssh" => own.ssh = Some(value()?),
                "--meet" => own.meet = Some(value()?),
                "--program" => own.program = Some(value()?),
                "--coral-json" => own.json = Some(value()?),
                "--coral-fs" => own.fs = Some(value()?),
                _ => rest.push(word.clone()),
            }
        }
        if own.hosts.iter().any(|h| h.is_empty() || h.starts_with('-')) {
            return Err(Failed::Refused(
                "--hosts takes names of hosts with commas between them".into(),
            ));
        }
        if !own.hosts.is_empty() && own.ranks == Ranks::Processes {
            return Err(Failed::Refused(
                "--processes is for this machine, --hosts for others".into(),
            ));
        }
        Ok((own, rest))
    }
}

fn ranks(text: &str) -> Result<u32, Failed> {
    match text.parse() {
        Ok(n) if (1..=MAX_RANKS).contains(&n) => Ok(n),
        _ => Err(Failed::Refused(format!(
            "--np is a number of ranks from 1 to {MAX_RANKS}, not '{text}'"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(line: &str) -> Result<(Own, Vec<String>), Failed> {
        Own::take(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn ours_are_taken_out_wherever_they_stand() {
        let (own, rest) =
            take("ior --np 4 -w --coral-json=/tmp/r.json -o f --hosts a,b -k").expect("fine");
        assert_eq!(own.np, Some(4));
        assert_eq!(own.json.as_deref(), Some("/tmp/r.json"));
        assert_eq!(own.hosts, ["a", "b"]);
        assert_eq!(rest, ["ior", "-w", "-o", "f", "-k"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "ior --np 0",
            "ior --np x",
            "ior --np",
            "ior --hosts a,,b",
            "ior --hosts -oProxyCommand=x",
        ] {
            assert!(take(line).is_err(), "{line}");
        }
        assert!(take("ior --hosts a --processes").is_err());
    }
}
