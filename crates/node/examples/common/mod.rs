//! What the examples share.

use std::path::Path;

use coral_node::TargetSpec;
use coral_node::target_dir::label;
use coral_osd::{OsdFs, TargetKind};

pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// An MGS, an MDT and an OST of a new file system, formatted in `dir`.
pub fn targets(dir: &Path, fsname: &str) -> Result<Vec<TargetSpec>, Failed> {
    let mut targets = Vec::new();
    for (name, kind) in [
        ("mgs", TargetKind::Mgs),
        ("mdt", TargetKind::Mdt),
        ("ost", TargetKind::Ost),
    ] {
        let place = dir.join(name);
        OsdFs::format(&place, &label(kind, fsname, 0, &[]))?;
        targets.push(TargetSpec::dir(place));
    }
    Ok(targets)
}
