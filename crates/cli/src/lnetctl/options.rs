//! Options of a command as `lnetctl` takes them.

use super::{Failed, USAGE};

/// Options of one command: `--name value`, `--name=value`, with single-letter names. The value of `-v` may be missing.
#[derive(Debug)]
pub(super) struct Options(Vec<(&'static str, Option<String>)>, pub(super) Vec<String>);

/// An option a command takes: its names, the first of which it goes by here.
pub(super) type Known = &'static [&'static str];

pub(super) const NET: Known = &["net", "-n"];
pub(super) const NID: Known = &["nid"];
pub(super) const PRIMARY: Known = &["prim_nid"];
pub(super) const HEALTH: Known = &["health"];
pub(super) const GATEWAY: Known = &["gateway", "-g"];
pub(super) const HOP: Known = &["hop", "hop-count", "-c"];
pub(super) const PRIORITY: Known = &["priority", "-p"];
pub(super) const VERBOSE: Known = &["verbose", "-v"];
pub(super) const TIMEOUT: Known = &["timeout", "-t"];

impl Options {
    /// Sorts the words after `command`, which takes the options `known` and so many other words.
    pub(super) fn parse(
        command: &str,
        args: &[String],
        known: &[Known],
        words: usize,
    ) -> Result<Options, Failed> {
        let (mut named, mut free) = (Vec::new(), Vec::new());
        let mut it = args.iter().peekable();
        while let Some(a) = it.next() {
            if !a.starts_with('-') || a == "-" {
                free.push(a.clone());
                continue;
            }
            let (name, inline) = a
                .split_once('=')
                .map_or((a.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            let is = |k: &&Known| {
                k.iter()
                    .any(|n| *n == name || name.strip_prefix("--") == Some(n))
            };
            let Some(option) = known.iter().find(is) else {
                return Err(format!("{command}: there is no option {name}\n{USAGE}").into());
            };
            let negative = |v: &str| {
                v.strip_prefix('-')
                    .is_some_and(|d| d.starts_with(|c: char| c.is_ascii_digit()))
            };
            let value =
                inline.or_else(|| it.next_if(|v| !v.starts_with('-') || negative(v)).cloned());
            if value.is_none() && *option != VERBOSE {
                return Err(format!("{command}: {name} needs a value").into());
            }
            if named.iter().any(|(n, _)| *n == option[0]) {
                return Err(format!("{command}: {name} is given twice").into());
            }
            named.push((option[0], value));
        }
        match free.get(words) {
            Some(w) => Err(format!("{command}: '{w}' is too much\n{USAGE}").into()),
            None => Ok(Options(named, free)),
        }
    }

    pub(super) fn text(&self, option: Known) -> Option<&str> {
        self.0
            .iter()
            .find(|(n, _)| *n == option[0])
            .and_then(|(_, v)| v.as_deref())
    }

    pub(super) fn must(&self, option: Known, what: &str) -> Result<String, Failed> {
        self.text(option).map(str::to_owned).ok_or_else(|| {
            format!("missing mandatory parameters in {what}: '--{}'", option[0]).into()
        })
    }

    /// A number of `least` to `most`.
    pub(super) fn number(
        &self,
        option: Known,
        least: u64,
        most: u64,
    ) -> Result<Option<u64>, Failed> {
        let wrong = |t: &str| {
            Failed::from(format!(
                "invalid value '{t}' of --{}: give {least} to {most}",
                option[0]
            ))
        };
        self.text(option)
            .map(|t| {
                t.parse()
                    .ok()
                    .filter(|n| (least..=most).contains(n))
                    .ok_or_else(|| wrong(t))
            })
            .transpose()
    }

    /// 0 without `-v`, 1 with it, else the number given; Lustre's own goes to 4, more is as much as there is.
    pub(super) fn verbose(&self) -> Result<u32, Failed> {
        let given = self.0.iter().any(|(n, _)| *n == VERBOSE[0]);
        Ok(self
            .number(VERBOSE, 0, u8::MAX.into())?
            .map_or(u32::from(given), |n| n as u32))
    }
}
