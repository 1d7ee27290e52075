//! What the golden tests share: reading captures, splitting streams, recoding every buffer, the vector container.
#![allow(dead_code, missing_docs)]

pub mod conversation;
pub mod extract;
pub mod pcap;
pub mod recode;
pub mod stream;
pub mod vectors;
pub mod walk;

use std::path::PathBuf;

/// Where the captures are: `CORAL_CAPTURES`, else `shared/captures` beside the repository or a directory above it.
pub fn captures() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("CORAL_CAPTURES") {
        return Some(dir.into());
    }
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .skip(1)
        .take(6)
        .map(|d| d.join("shared/captures"))
        .find(|d| d.is_dir())
}

/// The pcap files there, in name order.
pub fn capture_files() -> Vec<PathBuf> {
    let Some(dir) = captures() else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .map(|d| {
            d.flatten()
                .map(|e| e.path())
                .filter(|p| p.extension().is_some_and(|e| e == "pcap"))
                .collect()
        })
        .unwrap_or_default();
    files.sort();
    files
}
