//! A look at the list of files of each table before fjall uses it.
//!
//! fjall keeps the list of a table's files in `v<N>` and names the current one, with its checksum,
//! in `current`. It does not verify that checksum when it opens (lsm-tree 3.1,
//! `version/recovery.rs`), and deletes files that are not in the list: a flipped bit could cost
//! whole tables. So we verify it first. The format is read here and never written.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

/// Directory of the tables within the store.
const KEYSPACES: &str = "keyspaces";
/// `current`: number (u64), checksum (u128), kind of checksum (u8, 0 is XXH3).
const CURRENT_BYTES: usize = 25;

/// Verifies the file list of every table of the store in `kv`. The message says what is wrong.
pub(super) fn check(kv: &Path) -> Result<(), String> {
    let keyspaces = kv.join(KEYSPACES);
    if !keyspaces.exists() {
        return Ok(());
    }
    let fail = |e| format!("list {}: {e}", keyspaces.display());
    for entry in std::fs::read_dir(&keyspaces).map_err(fail)? {
        let dir = entry.map_err(fail)?.path();
        if dir.is_dir() {
            check_table(&dir)?;
        }
    }
    Ok(())
}

fn check_table(dir: &Path) -> Result<(), String> {
    let current = dir.join("current");
    if !current.exists() {
        // A table that was being made when the process died has no files yet.
        let files = std::fs::read_dir(dir.join("tables")).map_or(0, Iterator::count);
        return match files {
            0 => Ok(()),
            n => Err(format!("{} is missing, but the table has {n} files", current.display())),
        };
    }
    let read = |path: &Path| std::fs::read(path).map_err(|e| format!("read {}: {e}", path.display()));
    let bytes = read(&current)?;
    let damaged = || format!("{} was changed", current.display());
    let bytes: [u8; CURRENT_BYTES] = bytes.try_into().map_err(|_| damaged())?;
    let (id, rest) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (sum, kind) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
    if kind != [0] {
        return Err(damaged());
    }
    let list = dir.join(format!("v{}", u64::from_le_bytes(*id)));
    if xxh3_128(&read(&list)?) != u128::from_le_bytes(*sum) {
        return Err(format!("{} or {} was changed", list.display(), current.display()));
    }
    Ok(())
}
