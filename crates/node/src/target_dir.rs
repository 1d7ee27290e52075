//! What a target's directory holds beside its label and its data: the default layout of an MDT and the NIDs of failover nodes.
//!
//! ```text
//! DIR/defaults.json   {"stripe_count": 1, "stripe_size": 1048576}
//! DIR/failover.json   ["10.0.0.2@tcp"]
//! ```
//!
//! Lustre keeps both in the configuration data of a target (`lustre_disk.h`, `struct lustre_disk_data`).

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use coral_osd::{Label, TargetKind};
use coral_server::mdt::StripeDefaults;
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};

/// What an MDT gives new files when neither they nor their directory say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defaults {
    /// Stripes; -1 is all OSTs.
    pub stripe_count: i32,
    /// Bytes.
    pub stripe_size: u64,
}

impl From<Defaults> for StripeDefaults {
    fn from(d: Defaults) -> StripeDefaults {
        StripeDefaults {
            stripe_count: d.stripe_count as u16,
            stripe_size: d.stripe_size as u32,
        }
    }
}

/// File that holds [`Defaults`].
const DEFAULTS_FILE: &str = "defaults.json";
/// File that holds the NIDs of failover nodes.
const FAILOVER_FILE: &str = "failover.json";

/// Why such a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses to read or write it.
    #[error("{what}'{path}': {source}", path = path.display())]
    Io {
        /// What was being done: "read ", "write " or nothing.
        what: &'static str,
        /// The file or its directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The default layout does not parse.
    #[error(
        "'{path}' is damaged ({source}); restore it, or remove it to go back to 1 stripe of 1 MiB",
        path = path.display()
    )]
    BadDefaults {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The list of failover nodes does not parse.
    #[error("'{path}': {source}", path = path.display())]
    BadFailover {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A failover node is named by something else than a NID.
    #[error("'{path}': '{text}' is no NID", path = path.display())]
    NoNid {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
}

/// A new label. Its uuid tells this formatting from any other of the same target.
pub fn label(kind: TargetKind, fsname: &str, index: u32, mgs: &[Nid]) -> Label {
    Label {
        kind,
        fsname: fsname.to_owned(),
        index,
        uuid: fresh_uuid(),
        mgs_nids: mgs.iter().map(Nid::to_string).collect(),
    }
}

/// 128 random bits from the kernel, as a uuid: identities must differ between runs, so no seed makes them.
pub fn fresh_uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|s| s.trim().to_owned())
        .unwrap_or_else(|_| format!("pid-{}", std::process::id()))
}

/// Keeps the default layout with the MDT in `dir`, also after power loss.
pub fn write_defaults(dir: &Path, d: Defaults) -> Result<(), FileError> {
    let path = dir.join(DEFAULTS_FILE);
    let text = to_json(&d);
    let write = || -> io::Result<()> {
        let mut file = std::fs::File::create(&path)?;
        file.write_all(text?.as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|source| FileError::Io {
        what: "",
        path: dir.to_owned(),
        source,
    })
}

/// The default layout kept with the MDT in `dir`, if any.
pub fn read_defaults(dir: &Path) -> Result<Option<Defaults>, FileError> {
    let path = dir.join(DEFAULTS_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|source| FileError::BadDefaults { path, source }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Io {
            what: "",
            path,
            source,
        }),
    }
}

/// Keeps the NIDs of the failover nodes of the target in `dir`. No file is made of none.
pub fn write_failover(dir: &Path, nids: &[Nid]) -> Result<(), FileError> {
    if nids.is_empty() {
        return Ok(());
    }
    let path = dir.join(FAILOVER_FILE);
    let texts: Vec<String> = nids.iter().map(Nid::to_string).collect();
    to_json(&texts)
        .and_then(|text| std::fs::write(&path, text + "\n"))
        .map_err(|source| FileError::Io {
            what: "write ",
            path,
            source,
        })
}

/// The failover nodes of the target in `dir`.
pub fn read_failover(dir: &Path) -> Result<Vec<Nid>, FileError> {
    let path = dir.join(FAILOVER_FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(t) => t,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(FileError::Io {
                what: "read ",
                path,
                source,
            });
        }
    };
    let texts: Vec<String> =
        serde_json::from_str(&text).map_err(|source| FileError::BadFailover {
            path: path.clone(),
            source,
        })?;
    let nid = |text: String| {
        text.parse().map_err(|_| FileError::NoNid {
            path: path.clone(),
            text,
        })
    };
    texts.into_iter().map(nid).collect()
}

fn to_json(value: &impl Serialize) -> io::Result<String> {
    serde_json::to_string(value).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        assert!(read_defaults(at).unwrap().is_none() && read_failover(at).unwrap().is_empty());
        let d = Defaults {
            stripe_count: -1,
            stripe_size: 1 << 20,
        };
        write_defaults(at, d).unwrap();
        assert_eq!(read_defaults(at).unwrap(), Some(d));
        assert_eq!(StripeDefaults::from(d).stripe_count, u16::MAX, "all OSTs");
        write_failover(at, &[]).unwrap();
        assert!(!at.join(FAILOVER_FILE).exists());
        let nids: Vec<Nid> = vec!["10.0.0.2@tcp".parse().unwrap()];
        write_failover(at, &nids).unwrap();
        assert_eq!(read_failover(at).unwrap(), nids);

        std::fs::write(at.join(DEFAULTS_FILE), "{").unwrap();
        let why = read_defaults(at).unwrap_err().to_string();
        assert!(why.contains("defaults.json' is damaged"), "{why}");
        std::fs::write(at.join(FAILOVER_FILE), r#"["here"]"#).unwrap();
        let why = read_failover(at).unwrap_err().to_string();
        assert!(why.ends_with("failover.json': 'here' is no NID"), "{why}");
    }
}
