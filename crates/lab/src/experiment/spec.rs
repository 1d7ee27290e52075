//! The experiment file: what is varied, what is run, how often, and what is drawn of it.
//!
//! Every key is checked by name before anything runs; a misspelt one names the nearest that exists.

use super::check::check;
use super::hosts::Host;
use super::nearest::unknown;
use super::numbers::check_whole;
use super::value::{scalar, text, time};
use super::words::{no_toml, type_error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use toml::{Table, Value};

/// Most points of an experiment.
pub const MAX_POINTS: usize = 10_000;
/// Most repeats of a point, and most rounds of warm-up.
pub const MAX_REPEATS: u32 = 1_000;
/// Most steps: their list is held in memory and written down before the first.
pub const MAX_STEPS: usize = 1_000_000;
/// Most free space that can be asked for, MiB: an exbibyte.
pub(super) const MAX_FREE_MIB: i64 = 1 << 40;
/// Most mounts of a file system that can be asked for.
pub(super) const MAX_MOUNTS: i64 = 4096;

/// Why an experiment file is refused.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// It cannot be read.
    #[error("cannot read the experiment '{}': {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is no TOML, or a value is of the wrong kind.
    #[error("the experiment is no valid TOML: {0}")]
    Toml(String),
    /// A key, parameter or word that nobody knows, or values that do not fit together.
    #[error("{0}")]
    Wrong(String),
}

pub(super) fn wrong<T>(text: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError::Wrong(text.into()))
}

/// What is done to caches before a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Nothing.
    #[default]
    AsIs,
    /// The same work is done once before, and its result discarded.
    Warm,
    /// The clients of the rig are unmounted and mounted again.
    Remount,
    /// The machine's page cache is written out and dropped.
    Drop,
    /// Both of them.
    Cold,
}

/// In which order repeats run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// All points once, in random order; then all again, in another one: what drifts meets all alike.
    #[default]
    Interleaved,
    /// All repeats of a point, then the next point.
    Blocked,
}

/// `[run]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// Measurements of each point.
    pub repeats: u32,
    /// Their order.
    pub order: Order,
    /// What the order, and every interval that is drawn, comes from.
    pub seed: u64,
    /// Rounds over all points that are recorded as warm-up and counted nowhere.
    pub warmup: u32,
    /// Cache state before each measurement.
    pub cache: Cache,
    /// No step begins after so much time.
    #[serde(with = "time")]
    pub budget: Duration,
    /// A step that takes longer is ended, and failed.
    #[serde(with = "time")]
    pub timeout: Duration,
    /// Distance between samples of the collectors.
    #[serde(with = "time")]
    pub sample: Duration,
}

const RUN_KEYS: &[&str] = &[
    "repeats", "order", "seed", "warmup", "cache", "budget", "timeout", "sample",
];

impl Default for Run {
    fn default() -> Run {
        Run {
            repeats: 3,
            order: Order::default(),
            seed: 1,
            warmup: 0,
            cache: Cache::default(),
            budget: Duration::from_secs(24 * 3600),
            timeout: Duration::from_secs(600),
            sample: Duration::from_secs(1),
        }
    }
}

/// A command: before, during or after a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Role, unique among those of one point; measures are called ROLE/MEASURE.
    #[serde(default)]
    pub name: String,
    /// Program and arguments, with `{parameter}` and `{file system}` filled in. `coral` is this program.
    pub command: Vec<String>,
    /// What reads its output: `ior`, `mdtest`, `mdsrate`, `mib`, `fio`, `json` or `none`.
    #[serde(default = "no_parser")]
    pub parser: String,
    /// For which points: values of parameters. Empty: for all.
    #[serde(default)]
    pub when: BTreeMap<String, OneOrMany>,
    /// On which of the experiment's hosts; empty: on this machine.
    #[serde(default)]
    pub host: String,
}

const COMMAND_KEYS: &[&str] = &["name", "command", "parser", "when", "host"];

fn no_parser() -> String {
    "none".into()
}

/// A value or a list of them, as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Vec<String>")]
pub struct OneOrMany(pub Vec<String>);

impl TryFrom<Value> for OneOrMany {
    type Error = String;

    fn try_from(v: Value) -> Result<OneOrMany, String> {
        let all = match v {
            Value::Array(list) => list.iter().map(text).collect::<Result<_, _>>()?,
            one => vec![text(&one)?],
        };
        Ok(OneOrMany(all))
    }
}

impl From<OneOrMany> for Vec<String> {
    fn from(v: OneOrMany) -> Vec<String> {
        v.0
    }
}

/// Whether a point with these parameters is meant by `when`.
pub(crate) fn applies(when: &BTreeMap<String, OneOrMany>, params: &[(String, String)]) -> bool {
    when.iter().all(|(k, values)| {
        params
            .iter()
            .any(|(name, v)| name == k && values.0.contains(v))
    })
}

/// How a figure is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// Means with lines, over a parameter.
    Lines,
    /// Means as bars, grouped by a parameter.
    Bars,
    /// A sampled series over the time of each measurement.
    Time,
    /// How the latency of operations is distributed (`y`: ROLE/OPERATION), from the records of load generators.
    Cdf,
}

/// A figure of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its heading.
    pub title: String,
    /// How it is drawn.
    pub kind: FigureKind,
    /// Parameter along the x axis (not of `time` and `cdf`).
    #[serde(default)]
    pub x: String,
    /// Measures (ROLE/MEASURE), or sampled series (SOURCE/COUNTER) of `time`.
    pub y: Vec<String>,
    /// Unit of the y axis; of `time`, what the sampled values are multiplied into by `scale`.
    #[serde(default)]
    pub unit: String,
    /// Factor on sampled values.
    #[serde(default = "one")]
    pub scale: f64,
    /// Parameters whose every value makes a line of its own.
    #[serde(default)]
    pub series: Vec<String>,
    /// Which points are drawn.
    #[serde(default)]
    pub when: BTreeMap<String, OneOrMany>,
    /// The x axis doubles from tick to tick.
    #[serde(default)]
    pub log_x: bool,
    /// A line drawn across: a limit that is known.
    #[serde(default)]
    pub ceiling: Option<f64>,
    /// What the limit is.
    #[serde(default)]
    pub ceiling_label: String,
}

const FIGURE_KEYS: &[&str] = &[
    "title",
    "kind",
    "x",
    "y",
    "unit",
    "scale",
    "series",
    "when",
    "log_x",
    "ceiling",
    "ceiling_label",
];

fn one() -> f64 {
    1.0
}

/// A figure that a study published, to stand beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What was measured.
    pub what: String,
    /// Its value, as published: a text or a number.
    #[serde(deserialize_with = "scalar")]
    pub value: String,
    /// Our measure of the same thing; empty where there is none.
    #[serde(default)]
    pub measure: String,
    /// Which of our points it stands beside.
    #[serde(default)]
    pub when: BTreeMap<String, OneOrMany>,
}

const PUBLISHED_KEYS: &[&str] = &["what", "value", "measure", "when"];

/// `[ab]`: two values of a parameter against each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ab {
    /// The parameter; it has two values, A and B.
    pub parameter: String,
    /// Whether A is measured twice in each round, which gives the noise floor.
    #[serde(default = "yes")]
    pub noise_floor: bool,
}

const AB_KEYS: &[&str] = &["parameter", "noise_floor"];

fn yes() -> bool {
    true
}

/// `[needs]`: what has to be there before anything runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Programs on the path.
    pub programs: Vec<String>,
    /// Free space where the rig's targets, or the given mounts, are: MiB.
    pub free_mib: u64,
    /// Mounts of each file system, where they are given.
    pub mounts: usize,
    /// Whether given mounts must be of Lustre or Coral.
    pub lustre: bool,
}

const NEEDS_KEYS: &[&str] = &["programs", "free_mib", "mounts", "lustre"];

/// A smaller or larger form of an experiment: tables laid over it.
pub type Profile = Table;

/// An experiment, checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Short name; the run directory has it.
    pub name: String,
    /// One line.
    #[serde(default)]
    pub title: String,
    /// What it asks.
    #[serde(default)]
    pub question: String,
    /// What it is smaller than: follows "scaled down from".
    #[serde(default)]
    pub scaled_from: String,
    /// What of the original is not done here, a sentence each.
    #[serde(default)]
    pub differs: Vec<String>,
    /// Values by parameter.
    #[serde(default)]
    pub parameters: BTreeMap<String, OneOrMany>,
    /// Lists that step together instead of each with each.
    #[serde(default)]
    pub zip: Vec<Vec<String>>,
    /// Points that are left out.
    #[serde(default)]
    pub exclude: Vec<BTreeMap<String, OneOrMany>>,
    /// Sums of measures, under a name of their own.
    #[serde(default)]
    pub sums: BTreeMap<String, Vec<String>>,
    /// Repeats, order, caches, budget.
    #[serde(default)]
    pub run: Run,
    /// A/B.
    #[serde(default)]
    pub ab: Option<Ab>,
    /// What must be there.
    #[serde(default)]
    pub needs: Needs,
    /// Other machines: commands can run there, and each is sampled.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// File systems that the laboratory starts itself; its fields may hold `{parameter}`.
    #[serde(default)]
    pub rig: Option<Table>,
    /// Before each measurement, one after the other, not timed.
    #[serde(default)]
    pub prepare: Vec<Command>,
    /// What is measured: all that apply start at one instant.
    pub roles: Vec<Command>,
    /// After each measurement.
    #[serde(default)]
    pub cleanup: Vec<Command>,
    /// After each measurement: commands that print sar's data as `sadf -j` does. What is of its time stands beside our samples.
    #[serde(default)]
    pub sar: Vec<Command>,
    /// Figures of the report.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Published figures.
    #[serde(default)]
    pub published: Vec<Published>,
}

impl Spec {
    /// All commands.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &Command> {
        let around = self.prepare.iter().chain(&self.cleanup);
        around.chain(&self.roles).chain(&self.sar)
    }
}

const SPEC_KEYS: &[&str] = &[
    "name",
    "title",
    "question",
    "scaled_from",
    "differs",
    "parameters",
    "zip",
    "exclude",
    "sums",
    "run",
    "ab",
    "needs",
    "hosts",
    "rig",
    "prepare",
    "roles",
    "cleanup",
    "sar",
    "figures",
    "published",
    "profile",
];

/// Reads and checks an experiment's text; `profile` names one of its profiles.
pub fn load(text: &str, profile: Option<&str>) -> Result<Spec, SpecError> {
    let table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| SpecError::Toml(no_toml(&e)))?;
    let table = merge_profile(table, profile)?;
    check_keys(&table)?;
    check_whole(&table)?;
    let spec: Spec = Value::Table(table)
        .try_into()
        .map_err(|e: toml::de::Error| SpecError::Wrong(type_error(&e)))?;
    check(&spec)?;
    Ok(spec)
}

/// Lays the tables of a profile over an experiment, and takes the profiles out.
pub fn merge_profile(mut table: Table, profile: Option<&str>) -> Result<Table, SpecError> {
    let profiles = match table.remove("profile") {
        Some(Value::Table(t)) => t,
        None => Table::new(),
        Some(_) => return wrong("'profile' is no table: give [profile.quick] and so on"),
    };
    let Some(name) = profile else {
        return Ok(table);
    };
    let Some(Value::Table(over)) = profiles.get(name) else {
        let known: Vec<&str> = profiles.keys().map(String::as_str).collect();
        return wrong(if known.is_empty() {
            format!("this experiment has no profiles, so no '{name}' either")
        } else {
            unknown("profile", name, &known)
        });
    };
    lay_over(&mut table, over);
    Ok(table)
}

/// Tables are merged, everything else is replaced.
fn lay_over(under: &mut Table, over: &Table) {
    for (k, v) in over {
        match (under.get_mut(k), v) {
            (Some(Value::Table(u)), Value::Table(o)) => lay_over(u, o),
            _ => {
                under.insert(k.clone(), v.clone());
            }
        }
    }
}

fn check_keys(table: &Table) -> Result<(), SpecError> {
    known_keys("the experiment", table, SPEC_KEYS)?;
    for (section, keys) in [
        ("run", RUN_KEYS),
        ("ab", AB_KEYS),
        ("needs", NEEDS_KEYS),
        ("rig", super::rig_spec::RIG_KEYS),
    ] {
        if let Some(Value::Table(t)) = table.get(section) {
            known_keys(&format!("[{section}]"), t, keys)?;
        }
    }
    for (section, keys) in [
        ("hosts", super::hosts::HOST_KEYS),
        ("prepare", COMMAND_KEYS),
        ("roles", COMMAND_KEYS),
        ("cleanup", COMMAND_KEYS),
        ("sar", COMMAND_KEYS),
        ("figures", FIGURE_KEYS),
        ("published", PUBLISHED_KEYS),
    ] {
        for t in table
            .get(section)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            if let Value::Table(t) = t {
                known_keys(&format!("[[{section}]]"), t, keys)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn known_keys(place: &str, table: &Table, keys: &[&str]) -> Result<(), SpecError> {
    match table.keys().find(|k| !keys.contains(&k.as_str())) {
        Some(k) => wrong(format!("{place}: {}", unknown("key", k, keys))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::parse_time;
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        [parameters]
        size = ["4k", "1m"]
        op = ["write", "read"]
        n = [1, 2]
        [run]
        repeats = 2
        budget = "10m"
        [[roles]]
        name = "load"
        command = ["true", "{size}"]
        [profile.quick.run]
        repeats = 1
    "#;

    fn refused(text: &str) -> String {
        load(text, None).expect_err("refused").to_string()
    }

    #[test]
    fn a_file_is_read_and_a_profile_is_laid_over_it() {
        let spec = load(SMALL, None).unwrap();
        assert_eq!(
            (spec.run.repeats, spec.run.budget),
            (2, Duration::from_secs(600))
        );
        assert_eq!(spec.parameters["n"].0, ["1", "2"]);
        assert_eq!(load(SMALL, Some("quick")).unwrap().run.repeats, 1);
        assert!(
            load(SMALL, Some("quikc"))
                .unwrap_err()
                .to_string()
                .contains("did you mean 'quick'")
        );
        let again: Spec = serde_json::from_value(serde_json::to_value(&spec).unwrap()).unwrap();
        assert_eq!(
            again, spec,
            "what a run directory keeps is the same experiment"
        );
    }

    #[test]
    fn what_is_misspelt_names_the_nearest() {
        for (from, to, says) in [
            (
                "repeats = 2",
                "repaets = 2",
                "[run]: unknown key 'repaets'; did you mean 'repeats'?",
            ),
            (
                "[parameters]",
                "[paramters]",
                "the experiment: unknown key 'paramters'; did you mean 'parameters'?",
            ),
            (
                "command = [\"true\"",
                "comand = [\"true\"",
                "[[roles]]: unknown key 'comand'; did you mean 'command'?",
            ),
            (
                "name = \"load\"",
                "name = \"load\"\nwhen = { opp = \"read\" }",
                "unknown parameter 'opp'; did you mean 'op'?",
            ),
            (
                "name = \"load\"",
                "name = \"load\"\nwhen = { op = \"raed\" }",
                "unknown value of 'op' 'raed'; did you mean 'read'?",
            ),
            (
                "name = \"load\"",
                "name = \"load\"\nparser = \"oir\"",
                "unknown parser 'oir'; did you mean 'ior'?",
            ),
            (
                "[profile.quick.run]",
                "[[published]]\nwhat=\"x\"\nvalue=\"1\"\nmeasure=\"laod/write\"\n[profile.quick.run]",
                "[[published]] measure: unknown role 'laod'; did you mean 'load'?",
            ),
            (
                "\"{size}\"",
                "\"{szie}\"",
                "unknown name '{szie}' in a command; did you mean 'size'?",
            ),
        ] {
            assert!(SMALL.contains(from));
            let text = SMALL.replace(from, to);
            let said = match load(&text, None) {
                Err(e) => e.to_string(),
                Ok(spec) => crate::experiment::Plan::of(&spec)
                    .expect_err("refused")
                    .to_string(),
            };
            assert!(said.contains(says), "{to}: {said}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named_by_its_key() {
        for (from, to, says) in [
            (
                "repeats = 2",
                "repeats = \"two\"",
                "run.repeats: the text \"two\" is given, and a whole number",
            ),
            (
                "name = \"load\"",
                "name = -1",
                "roles.name: the number -1 is given, and a text",
            ),
            (
                "n = [1, 2]",
                "n = [[1], 2]",
                "parameters.n: a list or table within a list",
            ),
            (
                "[profile.quick.run]",
                "[[published]]\nwhat=\"x\"\nvalue=[1]\n[profile.quick.run]",
                "published.value: a list or table",
            ),
            ("budget = \"10m\"", "budget = \"soon\"", "run.budget: "),
            (
                "budget = \"10m\"",
                "sample = 200",
                "run.sample: '200' has no unit: give a text as \"200ms\", \"90s\", \"10m\" or \"2h\"",
            ),
            (
                "budget = \"10m\"",
                "budget = \"5\"",
                "run.budget: '5' has no unit: give ",
            ),
            (
                "budget = \"10m\"",
                "order = \"any\"",
                "run.order: unknown word 'any'; known: interleaved, blocked",
            ),
            (
                "command = [\"true\", \"{size}\"]",
                "command = \"true\"",
                "roles.command: the text \"true\" is given, and a list in [ ] is expected",
            ),
            (
                "command = [\"true\", \"{size}\"]",
                "",
                "roles: there is no `command`",
            ),
            (
                "[run]",
                "[needs]\nfree_mib = \"all\"\n[run]",
                "needs.free_mib: ",
            ),
            (
                "name = \"small\"",
                "name = 5",
                "name: the number 5 is given, and a text in quotes is expected",
            ),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let said = refused(&SMALL.replace(from, to));
            assert!(said.starts_with(says), "{to}: {said}");
        }
        let number = format!("{SMALL}\n[[published]]\nwhat=\"x\"\nvalue=1.5");
        assert_eq!(load(&number, None).unwrap().published[0].value, "1.5");
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let zip =
            |z: &str| SMALL.replace("name = \"small\"", &format!("name = \"small\"\nzip = {z}"));
        assert!(load(&zip("[[\"size\", \"op\"]]"), None).is_ok());
        assert!(refused(&zip("[[\"size\", \"opp\"]]")).contains("did you mean 'op'"));
        assert!(refused(&zip("[[\"size\", \"op\"], [\"op\", \"n\"]]")).contains("twice"));
        assert!(
            refused(&zip("[[\"size\", \"n\"]]").replace("[1, 2]", "[1, 2, 3]"))
                .contains("equally long")
        );
        assert!(refused(&SMALL.replace("[1, 2]", "[]")).contains("'n' has no values"));
        for list in ["[1, 2, 1]", "[1, \"1\"]"] {
            let said = refused(&SMALL.replace("[1, 2]", list));
            assert!(
                said.starts_with("parameter 'n' has the value '1' twice"),
                "{said}"
            );
        }
        let twice = |n: &str| {
            let text = zip("[[\"size\", \"n\"]]").replace("[1, 2]", n);
            text.replace("[\"4k\", \"1m\"]", "[\"4k\", \"1m\", \"4k\"]")
        };
        assert!(load(&twice("[1, 2, 2]"), None).is_ok());
        let said = refused(&twice("[1, 2, 1]"));
        assert!(
            said.starts_with("zip: the values size=4k, n=1 are there twice"),
            "{said}"
        );
        assert!(refused(&SMALL.replace("\"10m\"", "\"soon\"")).contains("no time"));
        assert!(refused(&SMALL.replace("repeats = 2", "repeats = 0")).contains("1 to 1000"));
        for (given, says) in [
            (
                "repeats = 999999999999",
                "[run] repeats = 999999999999: give a whole number of 1 to 1000",
            ),
            (
                "repeats = -1",
                "[run] repeats = -1: give a whole number of 1 to 1000",
            ),
            (
                "repeats = 2.5",
                "[run] repeats = 2.5: give a whole number of 1 to 1000",
            ),
            (
                "warmup = 4000000000",
                "[run] warmup = 4000000000: give a whole number of 0 to 1000",
            ),
            (
                "seed = -1",
                "[run] seed = -1: give a whole number of 0 to 9223372036854775807",
            ),
            (
                "seed = 99999999999999999999",
                "the experiment is no valid TOML: TOML parse error at line 8",
            ),
            (
                "budget = \"99999999999999999999h\"",
                "run.budget: '99999999999999999999h' is too long: give a text as \"200ms\", \"90s\", \"10m\" or \"2h\", at most \"8760h\"",
            ),
            (
                "budget = \"9999h\"",
                "[run] budget = 9999h: give 0ms to 8760h",
            ),
            ("timeout = \"0s\"", "[run] timeout = 0ms: give 1ms to 8760h"),
            (
                "timeout = \"-1s\"",
                "run.timeout: '-1s' is less than nothing: ",
            ),
            (
                "sample = \"1.5s\"",
                "run.sample: '1.5s' is not a whole number: ",
            ),
            ("sample = \"2h\"", "[run] sample = 2h: give 50ms to 1h"),
        ] {
            let key = given.split(' ').next().unwrap_or_default();
            let text = match key {
                "repeats" => SMALL.replace("repeats = 2", given),
                "budget" => SMALL.replace("budget = \"10m\"", given),
                _ => SMALL.replace("[run]", &format!("[run]\n{given}")),
            };
            let said = refused(&text);
            assert!(said.starts_with(says), "{given}: {said}");
        }
        let large = SMALL.replace("[run]", "[run]\nseed = 99999999999999999999");
        let told = "a whole number is from -9223372036854775808 to 9223372036854775807, and this one is not";
        assert!(refused(&large).ends_with(told), "{}", refused(&large));
        let more = |end: &str| refused(&format!("{SMALL}\n{end}"));
        assert_eq!(
            more("[needs]\nfree_mib = -1"),
            "[needs] free_mib = -1: give a whole number of 0 to 1099511627776"
        );
        let figure = "[[figures]]\ntitle = \"t\"\nkind = \"time\"\ny = [\"host/cpu_busy\"]\n";
        for (given, says) in [
            (
                "scale = nan",
                "[[figures]] 't': scale = NaN: give a number other than 0",
            ),
            (
                "scale = 0",
                "[[figures]] 't': scale = 0: give a number other than 0",
            ),
            (
                "ceiling = inf",
                "[[figures]] 't': ceiling = inf: give a number",
            ),
        ] {
            assert_eq!(more(&format!("{figure}{given}")), says);
        }
        for key in ["timeout", "sample"] {
            let said = refused(&SMALL.replace("budget = \"10m\"", &format!("{key} = \"0s\"")));
            assert!(said.starts_with(&format!("[run] {key}")), "{said}");
        }
        assert!(refused("name = 'x'\nroles = []").contains("nothing would be measured"));
        assert!(refused("name = ").contains("TOML"));
        assert!(
            refused(&format!("{SMALL}\n[ab]\nparameter = \"m\"")).contains("unknown parameter 'm'")
        );
        assert!(
            refused(
                &SMALL
                    .replace("[1, 2]", "[1, 2, 3]")
                    .replace("[run]", "[ab]\nparameter = \"n\"\n[run]")
            )
            .contains("3 values, and needs two")
        );
    }

    #[test]
    fn times() {
        for (text, ms) in [
            ("5s", 5000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse_time(text), Some(Duration::from_millis(ms)));
        }
        for text in [
            "",
            "s",
            "5",
            "5d",
            "-1s",
            "99999999999999999999h",
            "18446744073709551615h",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
