//! Other machines of an experiment, reached by ssh: commands run there, and an agent on each is asked for samples.

use super::nearest::unknown;
use super::process::output_within;
use super::spec::{Command as SpecCommand, Spec, SpecError};
use crate::collect::Agent;
use crate::load::launch::quoted;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a host may take to say which Coral it has.
const REACHED: Duration = Duration::from_secs(30);

/// Keys of `[[hosts]]`.
pub(super) const HOST_KEYS: &[&str] = &["name", "ssh", "coral"];

/// Another machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name in commands and before its series.
    pub name: String,
    /// What runs a command there, which comes as one more argument; empty: `ssh -o BatchMode=yes NAME`.
    #[serde(default)]
    pub ssh: Vec<String>,
    /// The path of `coral` there; empty: that of this program here.
    #[serde(default)]
    pub coral: String,
}

impl Host {
    /// The path of `coral` there.
    pub(super) fn coral(&self, here: &Path) -> String {
        match self.coral.is_empty() {
            true => here.display().to_string(),
            false => self.coral.clone(),
        }
    }

    /// The words that run `command` there.
    pub(super) fn wrap(&self, command: &[String]) -> Vec<String> {
        let mut words = match self.ssh.is_empty() {
            true => ["ssh", "-o", "BatchMode=yes", &self.name]
                .map(str::to_owned)
                .to_vec(),
            false => self.ssh.clone(),
        };
        let line: Vec<String> = command.iter().map(|w| quoted(w)).collect();
        words.push(line.join(" "));
        words
    }

    fn command(&self, words: &[String]) -> Command {
        let words = self.wrap(words);
        let mut c = Command::new(&words[0]);
        c.args(&words[1..]);
        c
    }

    /// It can be reached and has Coral.
    pub(super) fn check(&self, here: &Path, stop: &dyn Fn() -> bool) -> Result<(), String> {
        let coral = self.coral(here);
        let mut ask = self.command(&[coral.clone(), "--version".into()]);
        let asked = output_within(&mut ask, REACHED, stop);
        asked.map(drop).map_err(|why| match stop() {
            true => "interrupted".to_owned(),
            false => format!(
                "the host '{}' cannot be reached, or has no '{coral}' (say `coral = PATH` in [[hosts]]): {why}",
                self.name
            ),
        })
    }

    /// Its collectors; `errors`: where goes what ssh and they say.
    pub(super) fn agent(
        &self,
        here: &Path,
        errors: &Path,
        gone: &Arc<OnceLock<String>>,
    ) -> io::Result<Agent> {
        let words = [self.coral(here), "lab".into(), "agent".into()];
        let mut c = self.command(&words);
        Agent::start(&self.name, c.stderr(File::create(errors)?), gone.clone())
    }
}

/// Names of hosts are words, and every command's host is one of them.
pub(super) fn check_hosts(spec: &Spec) -> Result<(), SpecError> {
    let names: Vec<&str> = spec.hosts.iter().map(|h| h.name.as_str()).collect();
    let word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if let Some(n) = names.iter().find(|n| n.is_empty() || !n.chars().all(word)) {
        let why = format!("[[hosts]] name '{n}': give letters, digits, '-', '_' or '.'");
        return Err(SpecError::Wrong(why));
    }
    let is_odd = |c: &&SpecCommand| !c.host.is_empty() && !names.contains(&c.host.as_str());
    match spec.commands().find(is_odd) {
        Some(c) => Err(SpecError::Wrong(unknown("host", &c.host, &names))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::load;
    use super::*;

    #[test]
    fn commands_go_to_hosts_in_one_word() {
        let text = "name='x'\n[[hosts]]\nname='anna'\n[[hosts]]\nname='bert'\nssh=['rsh','-l','me','b']\ncoral='/opt/coral'\n[[roles]]\nname='r'\nhost='anna'\ncommand=['true']\n";
        let spec = load(text, None).unwrap();
        let words = ["echo", "it's"].map(str::to_owned);
        assert_eq!(
            spec.hosts[0].wrap(&words),
            ["ssh", "-o", "BatchMode=yes", "anna", r"'echo' 'it'\''s'"]
        );
        assert_eq!(spec.hosts[1].wrap(&words)[..4], ["rsh", "-l", "me", "b"]);
        let here = Path::new("/here/coral");
        assert_eq!(
            (spec.hosts[0].coral(here), spec.hosts[1].coral(here)),
            ("/here/coral".into(), "/opt/coral".into())
        );
        let refused =
            |from: &str, to: &str| load(&text.replace(from, to), None).unwrap_err().to_string();
        assert!(
            refused("host='anna'", "host='ana'")
                .contains("unknown host 'ana'; did you mean 'anna'?")
        );
        assert!(refused("name='bert'", "name='b t'").contains("name 'b t'"));
        assert!(
            refused("ssh=", "shh=").contains("[[hosts]]: unknown key 'shh'; did you mean 'ssh'?")
        );
    }
}
