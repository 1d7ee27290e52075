//! `coral.json`: what `coral up` formatted in a directory, and the flags of its next start.

use crate::args::{self, Up};
use coral_lnet::Accept;
use coral_osd::TargetKind;
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// File in DIR that says what it is.
pub(super) const CONFIG_FILE: &str = "coral.json";
/// What is to become [`CONFIG_FILE`]; a start that was killed may leave it.
pub(super) const NEW_CONFIG_FILE: &str = "coral.json.new";
/// Version of [`CONFIG_FILE`]; a newer one is refused.
const CONFIG_VERSION: u32 = 1;
/// Most OSTs `coral up` makes: one process serves them all.
const OSTS_MAX: u32 = 256;

/// Most MDTs `coral up` makes.
const MDTS_MAX: u32 = 64;

/// What `coral up` keeps between runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UpConfig {
    /// Version of this file.
    pub version: u32,
    /// File system name.
    pub fsname: String,
    /// Number of MDTs.
    pub mdts: u32,
    /// Number of OSTs.
    pub osts: u32,
    /// NID of the servers, as text.
    pub nid: String,
    /// Further NIDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_nids: Vec<String>,
    /// Routes, each in the grammar of `--route`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// TCP port of the acceptor.
    pub port: u16,
    /// Whose connections are taken, as `--accept` names them; None: by privilege.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// Default stripes of a new file; -1 is all OSTs.
    pub stripe_count: i32,
    /// Default stripe size, bytes.
    pub stripe_size: u64,
    /// Targets that were formatted: directory name to the uuid in its label. One of them that is gone is never replaced by an
    /// empty one.
    #[serde(default)]
    pub targets: BTreeMap<String, String>,
}

impl UpConfig {
    pub(crate) fn fresh(up: &Up) -> UpConfig {
        UpConfig {
            version: CONFIG_VERSION,
            fsname: up.fsname.clone().unwrap_or_else(|| "coral".into()),
            mdts: up.mdts.unwrap_or(1),
            osts: up.osts.unwrap_or(4),
            nid: up
                .net
                .nid
                .first()
                .map_or_else(|| "127.0.0.1@tcp".into(), |n| n.to_string()),
            more_nids: up.net.nid.iter().skip(1).map(Nid::to_string).collect(),
            routes: up.net.route.clone(),
            port: up.net.port.unwrap_or(988),
            accept: up.net.accept.map(|a| a.to_string()),
            stripe_count: up.stripe_count.unwrap_or(1),
            stripe_size: up.stripe_size.unwrap_or(1 << 20),
            targets: BTreeMap::new(),
        }
    }

    /// The kept configuration with this command line's wishes on top.
    pub(super) fn with(mut self, up: &Up, dir: &Path) -> Result<UpConfig, String> {
        let differs = |what: &str, is: &dyn std::fmt::Display| {
            Err(format!(
                "'{}' was formatted with {what} {is}; that cannot be changed",
                dir.display()
            ))
        };
        if up.fsname.as_ref().is_some_and(|n| *n != self.fsname) {
            return differs("the file system name", &self.fsname);
        }
        let more = |is: u32, wanted: Option<u32>, name: &str| match wanted {
            // what no file system has is refused as such
            Some(n) if (1..is).contains(&n) => Err(format!(
                "'{}' has {is} {name}s: more can be added, none taken away",
                dir.display()
            )),
            _ => Ok(wanted.unwrap_or(is)),
        };
        self.mdts = more(self.mdts, up.mdts, "MDT")?;
        self.osts = more(self.osts, up.osts, "OST")?;
        if let Some((first, more)) = up.net.nid.split_first() {
            self.nid = first.to_string();
            self.more_nids = more.iter().map(Nid::to_string).collect();
        }
        if !up.net.route.is_empty() {
            self.routes = up.net.route.clone();
        }
        if let Some(port) = up.net.port {
            self.port = port;
        }
        if let Some(accept) = up.net.accept {
            self.accept = Some(accept.to_string());
        }
        if let Some(n) = up.stripe_count {
            self.stripe_count = n;
        }
        if let Some(n) = up.stripe_size {
            self.stripe_size = n;
        }
        Ok(self)
    }

    /// This, with what may be said anew at each `up` as it was, or as it is by default: flags are kept once the servers are up.
    pub(super) fn placed_as(&self, kept: Option<&UpConfig>) -> UpConfig {
        let other = kept
            .cloned()
            .unwrap_or_else(|| UpConfig::fresh(&Up::of(PathBuf::new())));
        UpConfig {
            nid: other.nid,
            more_nids: other.more_nids,
            routes: other.routes,
            port: other.port,
            accept: other.accept,
            stripe_count: other.stripe_count,
            stripe_size: other.stripe_size,
            ..self.clone()
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        args::check_fsname(&self.fsname)?;
        for route in &self.routes {
            coral_lnet::parse_routes(route).map_err(|e| e.to_string())?;
        }
        self.accept()?;
        if !(1..=MDTS_MAX).contains(&self.mdts) {
            return Err(format!("--mdts {}: give 1 to {MDTS_MAX}", self.mdts));
        }
        if !(1..=OSTS_MAX).contains(&self.osts) {
            return Err(format!("--osts {}: give 1 to {OSTS_MAX}", self.osts));
        }
        args::check_stripes(self.stripe_count, self.stripe_size)
    }

    pub(super) fn accept(&self) -> Result<Option<Accept>, String> {
        self.accept
            .as_deref()
            .map(|a| a.parse::<Accept>().map_err(|e| format!("--accept: {e}")))
            .transpose()
    }

    /// The name of a target that was formatted and is none of those that there are to be.
    fn uncounted(&self) -> Option<&String> {
        let is_one = |name: &str, kind: &str, count: u32| {
            let index = name.strip_prefix(kind);
            let index = index.and_then(|hex| u32::from_str_radix(hex, 16).ok());
            index.is_some_and(|i| i < count && name == format!("{kind}{i:04x}"))
        };
        let counted = |name: &str| {
            name == "mgs" || is_one(name, "mdt", self.mdts) || is_one(name, "ost", self.osts)
        };
        self.targets.keys().find(|name| !counted(name))
    }

    /// Whether the target of this directory was formatted.
    pub(crate) fn is_formatted(&self, target: &Path) -> bool {
        self.targets.contains_key(&super::name_of(target))
    }

    /// Without the targets in `go`, directories in `dir`.
    pub(super) fn without(&self, go: &[PathBuf], dir: &Path) -> UpConfig {
        let mut left = self.clone();
        for target in go {
            left.targets.remove(&super::name_of(target));
        }
        let mut stay = self.target_dirs(dir);
        stay.retain(|t| !go.contains(t));
        let count = |kind: TargetKind| {
            let labels = stay.iter().map(|t| super::label_of(self, t));
            let of_kind = labels.filter(|l| l.kind == kind);
            of_kind.map(|l| l.index + 1).max().unwrap_or(0)
        };
        left.mdts = count(TargetKind::Mdt);
        left.osts = count(TargetKind::Ost);
        left
    }

    /// The target directories, MGS first.
    pub(crate) fn target_dirs(&self, dir: &Path) -> Vec<PathBuf> {
        let mdts = (0..self.mdts).map(|i| dir.join(format!("mdt{i:04x}")));
        let osts = (0..self.osts).map(|i| dir.join(format!("ost{i:04x}")));
        std::iter::once(dir.join("mgs"))
            .chain(mdts)
            .chain(osts)
            .collect()
    }
}

/// Reads DIR's configuration; `Ok(None)` when there is none.
pub(crate) fn read_config(dir: &Path) -> Result<Option<UpConfig>, String> {
    let file = dir.join(CONFIG_FILE);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("cannot read '{}': {e}", file.display())),
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| {
        format!(
            "'{}' is damaged ({e}); restore it, or format anew in another directory",
            file.display()
        )
    })?;
    let version = value
        .get("version")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or(0);
    if version > CONFIG_VERSION as u64 {
        return Err(format!(
            "'{}' has format version {version}; this coral knows up to {CONFIG_VERSION}: use a newer coral",
            dir.display()
        ));
    }
    let config: UpConfig = serde_json::from_value(value).map_err(|e| {
        format!(
            "'{}' is damaged ({e}); restore it, or format anew in another directory",
            file.display()
        )
    })?;
    match config.uncounted() {
        None => Ok(Some(config)),
        Some(name) => Err(format!(
            "'{}' is damaged: it says {} MDTs and {} OSTs, and names the target '{name}', which is none of these; correct the numbers or the name in it",
            file.display(),
            config.mdts,
            config.osts
        )),
    }
}

/// Replaces DIR's configuration, whole or not at all.
pub(super) fn write_config(dir: &Path, config: &UpConfig) -> Result<(), String> {
    let (file, tmp) = (dir.join(CONFIG_FILE), dir.join(NEW_CONFIG_FILE));
    let text = serde_json::to_string_pretty(config).map_err(|e| e.to_string())?;
    let write = || -> std::io::Result<()> {
        std::fs::write(&tmp, text + "\n")?;
        std::fs::File::open(&tmp)?.sync_all()?;
        std::fs::rename(&tmp, &file)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&tmp);
        format!("cannot write '{}': {e}", file.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(dir: &Path) -> Up {
        Up::of(dir.into())
    }

    #[test]
    fn a_newer_format_is_refused_and_a_torn_one_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(CONFIG_FILE), r#"{"version": 99}"#).unwrap();
        assert!(read_config(dir.path()).unwrap_err().contains("newer coral"));
        std::fs::write(dir.path().join(CONFIG_FILE), r#"{"versi"#).unwrap();
        assert!(read_config(dir.path()).unwrap_err().contains("damaged"));
    }

    #[test]
    fn a_target_that_is_named_and_not_counted_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = UpConfig::fresh(&up(dir.path()));
        config.mdts = 2;
        for name in ["mgs", "mdt0000", "mdt0001", "ost0003"] {
            config.targets.insert(name.into(), String::new());
        }
        write_config(dir.path(), &config).unwrap();
        assert_eq!(read_config(dir.path()), Ok(Some(config.clone())));
        for (mdts, osts, name) in [(1, 4, "mdt0001"), (2, 3, "ost0003")] {
            let edited = UpConfig {
                mdts,
                osts,
                ..config.clone()
            };
            write_config(dir.path(), &edited).unwrap();
            let why = read_config(dir.path()).unwrap_err();
            let file = dir.path().join(CONFIG_FILE);
            assert!(why.contains(file.to_str().unwrap()), "{why}");
            assert!(why.contains(&format!("names the target '{name}'")), "{why}");
        }
    }

    #[test]
    fn kept_configuration_wins_where_it_must() {
        let dir = tempfile::tempdir().unwrap();
        let kept = UpConfig::fresh(&up(dir.path()));
        write_config(dir.path(), &kept).unwrap();
        assert_eq!(read_config(dir.path()).unwrap().unwrap(), kept);
        let more = Up {
            osts: Some(6),
            ..up(dir.path())
        };
        assert_eq!(kept.clone().with(&more, dir.path()).unwrap().osts, 6);
        let fewer = Up {
            osts: Some(2),
            ..up(dir.path())
        };
        assert!(
            kept.clone()
                .with(&fewer, dir.path())
                .unwrap_err()
                .contains("none taken away")
        );
        let none = Up {
            mdts: Some(0),
            ..up(dir.path())
        };
        let none = kept.clone().with(&none, dir.path()).unwrap();
        assert_eq!(none.check().unwrap_err(), "--mdts 0: give 1 to 64");
        for count in [-2, 0, 2001, 65_536, 70_000] {
            let bad = UpConfig {
                stripe_count: count,
                ..kept.clone()
            };
            assert!(bad.check().unwrap_err().contains("1 to 2000"), "{count}");
        }
        let bad = UpConfig {
            stripe_size: 5,
            ..kept
        };
        assert!(bad.check().unwrap_err().contains("multiple of 64K"));
    }
}
