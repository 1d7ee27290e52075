//! What the fuzz targets of `fuzz/` reach of the inside: thin functions over what is read back from a disk. Nothing else uses it.

use std::collections::BTreeSet;

use super::{attr, journal, note, synced};

/// Bytes of whole batches at the start of a journal of the tables.
pub fn journal(bytes: &[u8]) -> u64 {
    journal::walk_with(bytes, &mut BTreeSet::new()).bytes
}

/// Whether the text is a label.
pub fn label(text: &str) -> bool {
    crate::label::decode(text).is_ok()
}

/// A record of an object's attributes, encoded once more.
pub fn object_record(bytes: &[u8]) -> Option<Vec<u8>> {
    attr::Record::decode(bytes).map(|r| r.encode().to_vec())
}

/// How many journals the file `SYNCED` promises.
pub fn promise(bytes: &[u8; 512]) -> Option<usize> {
    synced::Promise::decode(bytes).map(|p| p.journals.len())
}

/// The number in the file `NOTED`, written in this boot.
pub fn note(bytes: &[u8; 24], boot: u64) -> Option<u64> {
    note::decode(bytes, boot)
}
