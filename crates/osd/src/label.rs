//! The label of a target directory: the JSON file `CORAL`.

use serde::{Deserialize, Serialize};

/// Version of the on-disk format this program writes; it reads all versions up to it.
pub const FORMAT_VERSION: u32 = 1;

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
}
