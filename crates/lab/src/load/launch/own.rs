//! Our own options, beside those of the originals. They may stand anywhere on the command line and are taken out of it
//! before the original's rules apply to the rest.

use crate::load::Failed;
use coral_wire::nid::Nid;

/// Ranks that one run may have.
pub const MAX_RANKS: u32 = 4096;

/// Mounts that one process may have.
pub const MAX_MOUNTS: u32 = 4096;

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
    /// `--coral-port N`: TCP port of its servers.
    pub port: Option<u16>,
    /// `--coral-mounts N`: mounts of it in this process.
    pub mounts: Option<u32>,
    /// `--coral-nid NID`: of the first of them; the others count upwards.
    pub nid: Option<Nid>,
    /// `--coral-stopwatches FILE`: what the stopwatches of the mounts have seen.
    pub stopwatches: Option<String>,
}

/// TCP port of a Lustre's servers.
const PORT: u16 = 988;

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
  --coral-port N      TCP port of its servers [988]
  --coral-mounts N    mounts of it, each a client of its own, dealt to the ranks
  --coral-nid NID     of the first of them; the others count upwards
  --coral-stopwatches FILE  where their time went, for coral explain
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
                "--np" => own.np = Some(number(name, &value()?, MAX_RANKS)?),
                "--processes" if glued.is_none() => own.ranks = Ranks::Processes,
                "--hosts" => own.hosts = value()?.split(',').map(str::to_owned).collect(),
                "--ssh" => own.ssh = Some(value()?),
                "--meet" => own.meet = Some(value()?),
                "--program" => own.program = Some(value()?),
                "--coral-json" => own.json = Some(value()?),
                "--coral-fs" => own.fs = Some(value()?),
                "--coral-port" => own.port = Some(number(name, &value()?, u16::MAX.into())? as u16),
                "--coral-mounts" => own.mounts = Some(number(name, &value()?, MAX_MOUNTS)?),
                "--coral-nid" => own.nid = Some(nid(&value()?)?),
                "--coral-stopwatches" => own.stopwatches = Some(value()?),
                _ => rest.push(word.clone()),
            }
        }
        own.mounts_make_sense()?;
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

    fn mounts_make_sense(&self) -> Result<(), Failed> {
        let refused = |why: &str| Err(Failed::Refused(why.to_owned()));
        let several = self.mounts.is_some_and(|n| n > 1);
        let of_mounts = self.mounts.is_some() || self.nid.is_some() || self.port.is_some();
        if (of_mounts || self.stopwatches.is_some()) && self.fs.is_none() {
            return refused(
                "--coral-mounts, --coral-nid, --coral-port and --coral-stopwatches need --coral-fs",
            );
        }
        if several && (self.ranks == Ranks::Processes || !self.hosts.is_empty()) {
            return refused("--coral-mounts is for ranks that are threads of this process");
        }
        if several && self.nid.is_none() {
            return refused(
                "several mounts need a NID each: give the first with --coral-nid, as in 10.0.0.9@tcp",
            );
        }
        Ok(())
    }

    /// The TCP port of the servers.
    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(PORT)
    }

    /// The NIDs of the mounts; none is given: the one by which the servers are reached.
    pub(super) fn nids(&self) -> Vec<Nid> {
        let count = self.mounts.unwrap_or(1);
        let of = |first: Nid| {
            (0..count).map(move |i| Nid::new(first.net(), first.addr().wrapping_add(i)))
        };
        self.nid.into_iter().flat_map(of).collect()
    }
}

fn number(name: &str, text: &str, most: u32) -> Result<u32, Failed> {
    match text.parse() {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        _ => Err(Failed::Refused(format!(
            "{name} is a number from 1 to {most}, not '{text}'"
        ))),
    }
}

fn nid(text: &str) -> Result<Nid, Failed> {
    text.parse().map_err(|_| {
        Failed::Refused(format!(
            "--coral-nid {text}: give a NID, as in 10.0.0.9@tcp"
        ))
    })
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
            "ior --coral-mounts 2",
            "ior --coral-port 9988",
            "ior --coral-fs 10.0.0.1@tcp:/fs --coral-port 0",
            "ior --coral-fs 10.0.0.1@tcp:/fs --coral-port 65536",
            "ior --coral-fs 10.0.0.1@tcp:/fs --coral-mounts 2",
            "ior --coral-fs 10.0.0.1@tcp:/fs --coral-nid here",
            "ior --hosts a,,b",
            "ior --hosts -oProxyCommand=x",
        ] {
            assert!(take(line).is_err(), "{line}");
        }
        assert!(take("ior --hosts a --processes").is_err());
    }
}
