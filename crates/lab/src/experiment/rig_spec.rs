//! What a rig is made of, as an experiment file says it.

use super::spec::{SpecError, known_keys};
use super::value::{shown, text};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::{Table, Value};

/// Keys of `[rig]`.
pub(crate) const RIG_KEYS: &[&str] = &[
    "systems",
    "router",
    "router_buffers",
    "clients",
    "cache_mb",
    "rtt_ms",
    "rate",
    "stripe_count",
    "fresh",
    "slice_cores",
    "slice_rate",
];
const SYSTEM_KEYS: &[&str] = &["name", "mds", "oss"];
/// Most of each: addresses are numbered in one byte.
const MAX_SYSTEMS: usize = 8;
const MAX_OSS: usize = 64;
const MAX_OSTS: u64 = 64;
const MAX_MDS: usize = 32;
const MAX_MDTS: u64 = 32;
const MAX_CLIENTS: u64 = 200;
const MAX_RTT_MS: f64 = 10_000.0;
/// Most stripes of a file, as `coral format` takes them.
const MAX_STRIPES: f64 = 2000.0;

/// One file system of a rig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Its name.
    pub name: String,
    /// MDTs of each MDS; the first has the MGS too.
    pub mds: Vec<u32>,
    /// OSTs of each OSS.
    pub oss: Vec<u32>,
}

/// What a rig is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct RigSpec {
    /// The file systems; every client mounts all of them.
    pub systems: Vec<System>,
    /// Buffers of 1 MiB of the router between servers and clients; none: no router.
    pub router_buffers: Option<u64>,
    /// Clients, each a process with a mount of each file system.
    pub clients: u64,
    /// Memory for a mount's caches, MiB.
    pub cache_mb: u64,
    /// Round trip between clients and servers.
    pub rtt_ms: f64,
    /// Rate of all traffic together, as tc(8) takes it; empty: none.
    pub rate: String,
    /// Stripes of new files.
    pub stripe_count: i64,
    /// It is made anew for each measurement.
    pub fresh: bool,
    /// Each client has one core; they are dealt round where clients are more.
    pub slice_cores: bool,
    /// Rate of each client's traffic, as tc(8) takes it; empty: none.
    pub slice_rate: String,
}

impl System {
    /// MDTs of all its servers together.
    pub fn mdts(&self) -> u32 {
        self.mds.iter().sum()
    }
}

/// Names of a rig's file systems, as commands may use them.
pub(crate) fn system_names(rig: &Table) -> Vec<String> {
    rig.get("systems")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|s| s.get("name")?.as_str().map(str::to_owned))
        .collect()
}

/// Whether an experiment with this rig runs in namespaces of its own.
pub fn needs_namespace(rig: Option<&Table>) -> bool {
    rig.is_some()
}

/// A number that is right, also one that was filled into a text; `give` says which are.
fn number(
    t: &Table,
    key: &str,
    otherwise: f64,
    is_right: impl Fn(&f64) -> bool,
    give: &str,
) -> Result<f64, SpecError> {
    let Some(given) = t.get(key) else {
        return Ok(otherwise);
    };
    let v = match given {
        Value::Integer(n) => Some(*n as f64),
        Value::Float(f) => Some(*f),
        Value::String(s) => s.trim().parse().ok(),
        _ => None,
    };
    v.filter(is_right)
        .ok_or_else(|| SpecError::Wrong(format!("[rig] {key} = {}: give {give}", shown(given))))
}

fn count(
    t: &Table,
    key: &str,
    otherwise: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, SpecError> {
    let give = format!("a number of {} to {}", range.start(), range.end());
    let is_right = |v: &f64| v.fract() == 0.0 && *v >= 0.0 && range.contains(&(*v as u64));
    number(t, key, otherwise as f64, is_right, &give).map(|v| v as u64)
}

impl RigSpec {
    /// As many mounts of each file system as there will be, without their places.
    pub(super) fn mounts(&self) -> BTreeMap<String, Vec<PathBuf>> {
        let all = vec![PathBuf::new(); self.clients as usize];
        let of = |s: &System| (s.name.clone(), all.clone());
        self.systems.iter().map(of).collect()
    }

    /// Of a `[rig]` whose texts are filled in.
    pub fn of(t: &Table) -> Result<RigSpec, SpecError> {
        known_keys("[rig]", t, RIG_KEYS)?;
        let systems = t.get("systems").and_then(Value::as_array).into_iter();
        let systems: Vec<System> = systems
            .flatten()
            .filter_map(|v| system(v).transpose())
            .collect::<Result<_, _>>()?;
        let names: std::collections::BTreeSet<&str> =
            systems.iter().map(|s| s.name.as_str()).collect();
        if systems.is_empty() || systems.len() > MAX_SYSTEMS || names.len() < systems.len() {
            return Err(SpecError::Wrong(format!(
                "[rig] systems: give 1 to {MAX_SYSTEMS} with different names"
            )));
        }
        let router = yes_or_no(t, "router")?;
        let rate_of = |key: &str| match t.get(key) {
            None => Ok(String::new()),
            Some(Value::String(rate)) if rate.is_empty() || is_rate(rate) => Ok(rate.clone()),
            Some(other) => Err(SpecError::Wrong(format!(
                "[rig] {key} = {}: give a text as tc(8) takes it, as in \"1gbit\"",
                shown(other)
            ))),
        };
        let (rate, slice_rate) = (rate_of("rate")?, rate_of("slice_rate")?);
        if !rate.is_empty() && !slice_rate.is_empty() {
            return Err(SpecError::Wrong(
                "[rig] rate and slice_rate: give one of them".into(),
            ));
        }
        Ok(RigSpec {
            systems,
            router_buffers: if router {
                Some(count(t, "router_buffers", 256, 1..=65_536)?)
            } else {
                None
            },
            clients: count(t, "clients", 1, 1..=MAX_CLIENTS)?,
            cache_mb: count(t, "cache_mb", 64, 1..=65_536)?,
            rtt_ms: number(
                t,
                "rtt_ms",
                0.0,
                |r| (0.0..=MAX_RTT_MS).contains(r),
                &format!("a number of 0 to {MAX_RTT_MS}"),
            )?,
            rate,
            slice_rate,
            slice_cores: yes_or_no(t, "slice_cores")?,
            stripe_count: number(
                t,
                "stripe_count",
                1.0,
                |n| *n == -1.0 || n.fract() == 0.0 && (1.0..=MAX_STRIPES).contains(n),
                &format!("a number of 1 to {MAX_STRIPES}, or -1 for all OSTs"),
            )? as i64,
            fresh: yes_or_no(t, "fresh")?,
        })
    }
}

/// Whether tc(8) takes it: a number, and bits or bytes ("bps") in a second, of which there may be thousands or 1024s.
fn is_rate(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(at.unwrap_or(text.len()));
    let of = unit
        .strip_suffix("bit")
        .or_else(|| unit.strip_suffix("bps"));
    let prefixes = ["", "k", "ki", "m", "mi", "g", "gi", "t", "ti"];
    let is_unit = unit.is_empty() || of.is_some_and(|p| prefixes.contains(&p));
    number.parse::<f64>().is_ok_and(|n| n > 0.0) && is_unit
}

/// True or false, also as a text that was filled in; false where there is nothing.
fn yes_or_no(t: &Table, key: &str) -> Result<bool, SpecError> {
    match t.get(key) {
        None => Ok(false),
        Some(Value::Boolean(yes)) => Ok(*yes),
        Some(Value::String(s)) if s == "true" || s == "false" => Ok(s == "true"),
        Some(v) => Err(SpecError::Wrong(format!(
            "[rig] {key} = {}: give true or false",
            shown(v)
        ))),
    }
}

/// One file system; None: it is left out of this point.
fn system(v: &Value) -> Result<Option<System>, SpecError> {
    let Value::Table(t) = v else {
        return Err(SpecError::Wrong(
            "[rig] systems: give tables with name, mds and oss".into(),
        ));
    };
    known_keys("[rig] systems", t, SYSTEM_KEYS)?;
    let name = t.get("name").and_then(Value::as_str).unwrap_or("");
    if name.is_empty() || name.len() > 8 || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(SpecError::Wrong(format!(
            "[rig] systems: name '{name}': give 1 to 8 letters or digits"
        )));
    }
    if t.get("mds").is_some_and(|v| shown(v) == "none") {
        return Ok(None);
    }
    Ok(Some(System {
        name: name.to_owned(),
        mds: targets(t, "mds", "MDTs of each MDS", (MAX_MDS, MAX_MDTS))?,
        oss: targets(t, "oss", "OSTs of each OSS", (MAX_OSS, MAX_OSTS))?,
    }))
}

/// Numbers of targets of each server: a list, or a text with commas; one of one unless said.
fn targets(
    t: &Table,
    key: &str,
    what: &str,
    (most, most_targets): (usize, u64),
) -> Result<Vec<u32>, SpecError> {
    let texts: Result<Vec<String>, String> = match t.get(key) {
        None => Ok(vec!["1".into()]),
        Some(Value::Array(a)) => a.iter().map(text).collect(),
        Some(Value::String(s)) => Ok(s.split(',').map(|w| w.trim().to_owned()).collect()),
        Some(v) => text(v).map(|one| vec![one]),
    };
    let texts = texts.map_err(|why| SpecError::Wrong(format!("[rig] systems: {key}: {why}")))?;
    let numbers = texts.iter().filter_map(|w| w.parse().ok());
    let all: Vec<u32> = numbers.filter(|n| *n > 0).collect();
    let together: u64 = all.iter().map(|n| u64::from(*n)).sum();
    if all.len() != texts.len() || all.is_empty() || all.len() > most || together > most_targets {
        return Err(SpecError::Wrong(format!(
            "[rig] systems: {key} = {texts:?}: give the number of {what}, together 1 to {most_targets}"
        )));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rig(text: &str) -> Result<RigSpec, String> {
        RigSpec::of(&text.parse::<Table>().unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_rig_is_read_also_where_numbers_were_filled_in() {
        let r = rig("systems = [{name='fs1', oss=[2, 1]}, {name='fs2'}]\nrouter = true\nclients = '4'\nrtt_ms = 19").unwrap();
        assert_eq!(
            r.systems,
            [
                System {
                    name: "fs1".into(),
                    mds: vec![1],
                    oss: vec![2, 1]
                },
                System {
                    name: "fs2".into(),
                    mds: vec![1],
                    oss: vec![1]
                }
            ]
        );
        assert_eq!(
            (r.router_buffers, r.clients, r.rtt_ms),
            (Some(256), 4, 19.0)
        );
        assert_eq!(
            rig("systems = [{name='a', oss='1,1'}]").unwrap().systems[0].oss,
            [1, 1]
        );
        let several =
            rig("systems = [{name='a', mds='2,2'}, {name='b', mds='none'}]\nfresh = true").unwrap();
        assert_eq!((several.systems.len(), several.systems[0].mdts()), (1, 4));
        assert!(several.fresh);
        for (text, says) in [
            ("systems = [{name='a', mds='none'}]", "different names"),
            ("systems = [{name='a', mds=[33]}]", "MDTs of each MDS"),
            ("systems = [{name='a'}]\nfresh = 3", "true or false"),
            (
                "systems = [{name='a'}]\nrate = '1gbit'\nslice_rate = '1gbit'",
                "one of them",
            ),
            ("systems = [{name='a'}]\nrate = 5", "rate = 5: give a text"),
            (
                "systems = [{name='a', oss=[[1]]}]",
                "oss: a list or table within a list",
            ),
            ("systems = []", "different names"),
            ("systems = [{name='a'}, {name='a'}]", "different names"),
            ("systems = [{name='a', ost=1}]", "did you mean 'oss'"),
            ("systems = [{name='a'}]\nclients = 0", "1 to 200"),
            (
                "systems = [{name='a'}]\nclients = 'many'",
                "clients = many: give a number of 1 to 200",
            ),
            (
                "systems = [{name='a'}]\nclients = 1e300",
                "give a number of 1 to 200",
            ),
            (
                "systems = [{name='a'}]\ncache_mb = '64MiB'",
                "cache_mb = 64MiB: give a number of 1 to 65536",
            ),
            (
                "systems = [{name='a'}]\nrtt_ms = -1",
                "rtt_ms = -1: give a number of 0 to 10000",
            ),
            (
                "systems = [{name='a'}]\nrtt_ms = nan",
                "give a number of 0 to 10000",
            ),
            (
                "systems = [{name='a'}]\nstripe_count = -5",
                "give a number of 1 to 2000, or -1 for all OSTs",
            ),
            (
                "systems = [{name='a'}]\nstripe_count = 1.5",
                "give a number of 1 to 2000, or -1 for all OSTs",
            ),
            (
                "systems = [{name='a'}]\nstripe_count = 999999999999",
                "give a number of 1 to 2000, or -1 for all OSTs",
            ),
            ("systems = [{name='a', oss=[0]}]", "number of OSTs"),
            ("systems = [{name='a b'}]", "letters or digits"),
            (
                "systems = [{name='a'}]\nruter = true",
                "did you mean 'router'",
            ),
        ] {
            let e = rig(text).expect_err(text);
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    #[test]
    fn rates_are_those_of_tc() {
        for rate in ["5mbit", "1.5Gbit", "300kibit", "10000", "2mbps", "8bit"] {
            assert!(is_rate(rate), "{rate}");
        }
        for rate in [
            "5xbit",
            "mbit",
            "5 mbit",
            "-1mbit",
            "0mbit",
            "1.5.2gbit",
            "3mb",
        ] {
            assert!(!is_rate(rate), "{rate}");
            let rig = format!("systems = [{{ name = 'fs1' }}]\nslice_rate = '{rate}'");
            let why = RigSpec::of(&rig.parse().unwrap()).unwrap_err().to_string();
            let says = format!("[rig] slice_rate = {rate}: give a text as tc(8) takes it");
            assert!(why.starts_with(&says), "{why}");
        }
    }
}
