//! The label of a target directory: the JSON file `CORAL`.
//!
//! The file is an envelope `{"checksum": "crc32c:...", "label": {...}}`; the checksum covers the
//! label with its keys sorted and without blanks, so a person may re-indent the file but not
//! change it. It is written last by `format` and never again, always by rename.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::OpenError;

/// Version of the on-disk format this program writes; it reads all versions up to it.
pub const FORMAT_VERSION: u32 = 1;

/// Name of the label file in a target directory.
pub(crate) const LABEL_FILE: &str = "CORAL";

/// Longest label file we read, in bytes.
const LABEL_MAX_BYTES: u64 = 64 << 10;

/// What a target serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// Management server: configuration logs.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object storage target.
    Ost,
}

/// Who a target is. Written once by `format`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// What it serves.
    pub kind: TargetKind,
    /// File system name, at most 8 characters; empty for a stand-alone MGS.
    pub fsname: String,
    /// Index among the targets of its kind.
    pub index: u32,
    /// Identity of this formatting, to tell a re-formatted target from the one it replaced.
    pub uuid: String,
    /// NIDs of the MGS, as text ("10.0.0.1@tcp"); empty when it is in the same process.
    #[serde(default)]
    pub mgs_nids: Vec<String>,
}

impl Label {
    /// Target name as Lustre writes it: `coral-OST0001`, `coral-MDT0000`, `MGS`.
    pub fn target_name(&self) -> String {
        match self.kind {
            TargetKind::Mgs => "MGS".into(),
            TargetKind::Mdt => format!("{}-MDT{:04x}", self.fsname, self.index),
            TargetKind::Ost => format!("{}-OST{:04x}", self.fsname, self.index),
        }
    }

    /// Writes the label of `dir` so that it is there whole or not at all, also after power loss.
    pub(crate) fn store(&self, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(LABEL_FILE);
        let tmp = dir.join("CORAL.new");
        let text = self.encode();
        let write = || -> io::Result<()> {
            let mut f = crate::fs::private::create(&tmp)?;
            f.write_all(text.as_bytes())?;
            f.sync_all()?;
            fs::rename(&tmp, &path)?;
            fs::File::open(dir)?.sync_all()
        };
        write().map_err(|source| OpenError::Io {
            what: format!("write {}", path.display()),
            source,
        })
    }

    /// Reads and verifies the label of `dir`.
    pub(crate) fn load(dir: &Path) -> Result<Label, OpenError> {
        let path = dir.join(LABEL_FILE);
        let text = match read_limited(&path) {
            Ok(t) => t,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(not_ours(dir)),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(OpenError::BadLabel {
                    path,
                    why: e.to_string(),
                });
            }
            Err(source) => {
                return Err(OpenError::Io {
                    what: format!("read {}", path.display()),
                    source,
                });
            }
        };
        match decode(&text) {
            Ok(label) => Ok(label),
            Err(Bad::Newer(found)) => Err(OpenError::Newer {
                dir: dir.to_owned(),
                found,
                known: FORMAT_VERSION,
            }),
            Err(Bad::Damaged(why)) => Err(OpenError::BadLabel { path, why }),
        }
    }

    fn encode(&self) -> String {
        let mut label = serde_json::to_value(self).unwrap_or(Value::Null);
        label["format_version"] = json!(FORMAT_VERSION);
        let envelope = json!({ "checksum": checksum(&label), "label": label });
        let mut text = serde_json::to_string_pretty(&envelope).unwrap_or_default();
        text.push('\n');
        text
    }
}

pub(crate) enum Bad {
    Newer(u32),
    Damaged(String),
}

/// Reads and verifies the text of a label.
pub(crate) fn decode(text: &str) -> Result<Label, Bad> {
    let damaged = |why: &str| Bad::Damaged(why.into());
    let envelope: Value =
        serde_json::from_str(text).map_err(|e| Bad::Damaged(format!("not JSON: {e}")))?;
    let label = envelope
        .get("label")
        .ok_or_else(|| damaged("no \"label\" in it"))?;
    if envelope.get("checksum").and_then(Value::as_str) != Some(checksum(label).as_str()) {
        return Err(damaged("its checksum does not match"));
    }
    let version = label.get("format_version").and_then(Value::as_u64);
    let version = version.ok_or_else(|| damaged("no format version"))?;
    if version > FORMAT_VERSION as u64 {
        return Err(Bad::Newer(u32::try_from(version).unwrap_or(u32::MAX)));
    }
    serde_json::from_value(label.clone()).map_err(|e| Bad::Damaged(e.to_string()))
}

fn checksum(label: &Value) -> String {
    let canonical = serde_json::to_vec(label).unwrap_or_default();
    format!("crc32c:{:08x}", crc32c::crc32c(&canonical))
}

fn read_limited(path: &Path) -> io::Result<String> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    if fs::metadata(path)?.len() > LABEL_MAX_BYTES {
        return Err(bad("too long"));
    }
    String::from_utf8(fs::read(path)?).map_err(|_| bad("not text"))
}

fn not_ours(dir: &Path) -> OpenError {
    let why = match fs::read_dir(dir).map(|mut d| d.next().is_none()) {
        Err(_) => "no such directory",
        Ok(true) => "it is empty",
        Ok(false) => "it has no CORAL file",
    };
    OpenError::NotOurs {
        dir: dir.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            kind: TargetKind::Ost,
            fsname: "coral".into(),
            index: 17,
            uuid: "u-1".into(),
            mgs_nids: vec!["10.0.0.1@tcp".into()],
        }
    }

    #[test]
    fn names_are_lustres() {
        assert_eq!(label().target_name(), "coral-OST0011");
        assert_eq!(
            Label {
                kind: TargetKind::Mgs,
                ..label()
            }
            .target_name(),
            "MGS"
        );
    }

    #[test]
    fn comes_back_as_stored() {
        let dir = tempfile::tempdir().unwrap();
        label().store(dir.path()).unwrap();
        assert_eq!(Label::load(dir.path()).unwrap(), label());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LABEL_FILE);
        let good = label().encode().into_bytes();
        for byte in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                fs::write(&path, &bad).unwrap();
                match Label::load(dir.path()) {
                    Err(OpenError::BadLabel { .. }) => {}
                    // A blank that became another blank changes nothing.
                    Ok(l) => assert_eq!(l, label(), "byte {byte} bit {bit}"),
                    Err(e) => panic!("byte {byte} bit {bit}: {e}"),
                }
            }
        }
        for len in 0..good.len() - 1 {
            fs::write(&path, &good[..len]).unwrap();
            let got = Label::load(dir.path());
            assert!(
                matches!(got, Err(OpenError::BadLabel { .. })),
                "{len} bytes: {got:?}"
            );
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut l = serde_json::to_value(label()).unwrap();
        l["format_version"] = json!(FORMAT_VERSION + 1);
        l["something_new"] = json!(true);
        let text = json!({ "checksum": checksum(&l), "label": l }).to_string();
        fs::write(dir.path().join(LABEL_FILE), text).unwrap();
        let e = Label::load(dir.path()).unwrap_err();
        assert!(
            matches!(
                e,
                OpenError::Newer {
                    found: 2,
                    known: 1,
                    ..
                }
            ),
            "{e}"
        );
    }
}
