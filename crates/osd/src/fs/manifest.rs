//! A look at the list of files of each table before fjall uses it.
//!
//! fjall keeps the list of a table's files in `v<N>` and names the current one, with its checksum,
//! in `current`. It does not verify that checksum when it opens (lsm-tree 3.1,
//! `version/recovery.rs`), and deletes files that are not in the list: a flipped bit could cost
//! whole tables. So we verify it first. The format is read here and never written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

/// Directory of the tables within the store.
const KEYSPACES: &str = "keyspaces";
/// `current`: number (u64), checksum (u128), kind of checksum (u8, 0 is XXH3).
const CURRENT_BYTES: usize = 25;

/// Number of the table of tables. Without it fjall would take all others for leftovers and remove them.
const META: u64 = 0;

/// Verifies the file list of every table of the store in `kv`; tables that are `promised` (a bit each) must be there. The message
/// says what is wrong.
pub(super) fn check(kv: &Path, promised: u64) -> Result<(), String> {
    let keyspaces = kv.join(KEYSPACES);
    if let Some(id) = (0..u64::BITS as u64).find(|id| promised >> id & 1 == 1 && !is_made(kv, *id))
    {
        return Err(missing(kv, id, "the table was there at the last sync"));
    }
    if !keyspaces.exists() {
        return Ok(());
    }
    let fail = |e| format!("list {}: {e}", keyspaces.display());
    for entry in std::fs::read_dir(&keyspaces).map_err(fail)? {
        let dir = entry.map_err(fail)?.path();
        if dir.is_dir() {
            check_table(&dir)?;
            if dir.join("current").exists() && !is_made(kv, META) {
                return Err(missing(kv, META, "it names the other tables"));
            }
        }
    }
    Ok(())
}

fn table_dir(kv: &Path, id: u64) -> PathBuf {
    kv.join(KEYSPACES).join(id.to_string())
}

/// Whether table `id` is there. One without a list of files is taken by fjall for one that was being made, and removed.
pub(super) fn is_made(kv: &Path, id: u64) -> bool {
    table_dir(kv, id).join("current").exists()
}

/// Whether the store in `kv` has a table beside [`META`].
pub(super) fn has_tables(kv: &Path) -> bool {
    (1..u64::BITS as u64).any(|id| is_made(kv, id))
}

/// Says that table `id` is not there.
pub(super) fn missing(kv: &Path, id: u64, why: &str) -> String {
    format!(
        "{} is missing, but {why}",
        table_dir(kv, id).join("current").display()
    )
}

/// The tables of the store in `kv`, a bit for each number below 64.
pub(super) fn present(kv: &Path) -> u64 {
    (0..u64::BITS as u64)
        .filter(|id| is_made(kv, *id))
        .fold(0, |bits, id| bits | 1 << id)
}

/// Files of tables in the store `kv` whose bytes are not those that the table's list has the checksum of. Reads whole files.
pub(super) fn damaged_files(kv: &Path) -> Vec<PathBuf> {
    let tables = std::fs::read_dir(kv.join(KEYSPACES))
        .into_iter()
        .flatten()
        .flatten();
    tables.flat_map(|t| all_damaged_in(&t.path())).collect()
}

/// The first file of a table in the store `kv` whose bytes are not those that the table's list has the checksum of. To name
/// what an error came from; reads whole files.
pub(super) fn damaged_file(kv: &Path) -> Option<PathBuf> {
    let tables = std::fs::read_dir(kv.join(KEYSPACES)).ok()?.flatten();
    tables.filter_map(|t| damaged_in(&t.path())).next()
}

fn damaged_in(dir: &Path) -> Option<PathBuf> {
    let list = list_of(dir)?;
    files_of(dir).find(|f| is_listed_otherwise(f, &list))
}

fn all_damaged_in(dir: &Path) -> Vec<PathBuf> {
    let Some(list) = list_of(dir) else {
        return Vec::new();
    };
    files_of(dir)
        .filter(|f| is_listed_otherwise(f, &list))
        .collect()
}

/// Files of the table in `dir`, with their checksums; `None`: its list cannot be read.
fn list_of(dir: &Path) -> Option<BTreeMap<u64, u128>> {
    let current = std::fs::read(dir.join("current")).ok()?;
    let id = u64::from_le_bytes(*current.first_chunk()?);
    listed(&std::fs::read(dir.join(format!("v{id}"))).ok()?)
}

fn files_of(dir: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir.join("tables"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|f| f.path())
}

/// Files of a list, with their checksums (XXH3 of the whole file); `None`: the list has another form.
///
/// A list has the form (u8), the version of lsm-tree as text, kind of table, number of levels and kind of hash (u8 each), and then
/// again the number of levels; for each level the number of runs (u8), for each run the number of files (u32), and for each file its
/// number (u64), kind of checksum (u8, 0 is XXH3), checksum (u128) and greatest batch (u64).
fn listed(list: &[u8]) -> Option<BTreeMap<u64, u128>> {
    let version = list.get(1..)?;
    let is_text = |b: &u8| b.is_ascii_graphic();
    let after = version.iter().position(|b| !is_text(b))?;
    let mut rest = version.get(after + 3..)?;
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at_checked(n)?;
        rest = tail;
        Some(
            head.iter()
                .rev()
                .fold(0u128, |n, b| n << 8 | u128::from(*b)),
        )
    };
    let mut files = BTreeMap::new();
    for _level in 0..take(1)? {
        for _run in 0..take(1)? {
            for _file in 0..take(4)? {
                let (number, kind, sum) = (take(8)? as u64, take(1)?, take(16)?);
                take(8)?;
                if kind == 0 {
                    files.insert(number, sum);
                }
            }
        }
    }
    Some(files)
}

/// Whether the list has another checksum of this file. A file that is not listed is a leftover.
fn is_listed_otherwise(file: &Path, list: &BTreeMap<u64, u128>) -> bool {
    let name = file.file_name().and_then(|n| n.to_str());
    let number = name.and_then(|n| n.parse().ok());
    let Some(sum) = number.and_then(|n: u64| list.get(&n)) else {
        return false;
    };
    std::fs::read(file).is_ok_and(|bytes| xxh3_128(&bytes) != *sum)
}

fn check_table(dir: &Path) -> Result<(), String> {
    let current = dir.join("current");
    if !current.exists() {
        // A table that was being made when the process died has no files yet.
        let files = std::fs::read_dir(dir.join("tables")).map_or(0, Iterator::count);
        return match files {
            0 => Ok(()),
            n => Err(format!(
                "{} is missing, but the table has {n} files",
                current.display()
            )),
        };
    }
    let read =
        |path: &Path| std::fs::read(path).map_err(|e| format!("read {}: {e}", path.display()));
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
        return Err(format!(
            "{} or {} was changed",
            list.display(),
            current.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn store(list: &[u8]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for n in [0, 7] {
            let table = dir.path().join(format!("keyspaces/{n}"));
            fs::create_dir_all(table.join("tables")).unwrap();
            fs::write(table.join("v513"), list).unwrap();
            let current = [
                &513_u64.to_le_bytes()[..],
                &xxh3_128(list).to_le_bytes(),
                &[0],
            ]
            .concat();
            fs::write(table.join("current"), current).unwrap();
        }
        dir
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let dir = store(b"table 1, table 2");
        assert_eq!(check(dir.path(), 0), Ok(()));
        // What an older list says does not matter; but it must not be taken for the current one.
        let table = dir.path().join("keyspaces/7");
        fs::write(table.join("v512"), "table 1").unwrap();
        assert_eq!(check(dir.path(), 0), Ok(()));
        for name in ["current", "v513"] {
            let path = table.join(name);
            let good = fs::read(&path).unwrap();
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, &bad).unwrap();
                assert!(check(dir.path(), 0).is_err(), "{name} bit {bit}");
            }
            for len in 0..good.len() {
                fs::write(&path, &good[..len]).unwrap();
                assert!(
                    check(dir.path(), 0).unwrap_err().contains("keyspaces/7"),
                    "{name} cut at {len}"
                );
            }
            fs::write(&path, &good).unwrap();
        }
    }

    /// A list of files in as many runs of the first of seven levels.
    fn list(files: &[(u64, u128)]) -> Vec<u8> {
        let mut list = b"\x033.1.10\x00\x07\x00\x07".to_vec();
        list.push(files.len() as u8);
        for (number, sum) in files {
            list.extend(1u32.to_le_bytes());
            list.extend(number.to_le_bytes());
            list.push(0);
            list.extend(sum.to_le_bytes());
            list.extend(99u64.to_le_bytes());
        }
        // the other levels, and what is said of files that are none of a level
        list.extend([0; 6 + 8]);
        list.extend(b"TOC!");
        list
    }

    #[test]
    fn a_file_is_damaged_whose_checksum_is_another_and_a_leftover_is_not() {
        let all = [(7, xxh3_128(b"seven")), (8, xxh3_128(b"eight"))];
        for listed in [&all[..0], &all[..1], &all[1..], &all[..]] {
            let dir = store(&list(listed));
            let tables = dir.path().join("keyspaces/0/tables");
            // numbers as there are of levels, of runs and of batches too
            for number in [0, 1, 2, 7, 8, 99] {
                fs::write(tables.join(number.to_string()), "another").unwrap();
            }
            let mut damaged = damaged_files(dir.path());
            damaged.sort();
            let numbers = listed.iter().map(|(n, _)| tables.join(n.to_string()));
            assert_eq!(damaged, numbers.collect::<Vec<_>>());
            fs::write(tables.join("7"), "seven").unwrap();
            fs::write(tables.join("8"), "eight").unwrap();
            assert_eq!(damaged_files(dir.path()), [] as [PathBuf; 0]);
        }
    }

    #[test]
    fn a_table_without_a_list_may_not_have_files() {
        let dir = store(b"list");
        let table = dir.path().join("keyspaces/7");
        fs::remove_file(table.join("current")).unwrap();
        assert_eq!(check(dir.path(), 0), Ok(()), "it was being made");
        fs::write(table.join("tables/0"), "rows").unwrap();
        assert!(
            check(dir.path(), 0)
                .unwrap_err()
                .contains("current is missing")
        );
        fs::remove_file(table.join("tables/0")).unwrap();
        assert_eq!(present(dir.path()), 1);
        assert!(
            check(dir.path(), 1 << 7)
                .unwrap_err()
                .contains("keyspaces/7/current is missing"),
            "it was promised"
        );
        fs::remove_dir_all(&table).unwrap();
        assert!(check(dir.path(), 1 << 7).is_err());
        assert_eq!(check(dir.path(), 1), Ok(()));
        let dir = store(b"list");
        fs::remove_file(dir.path().join("keyspaces/0/current")).unwrap();
        assert!(
            check(dir.path(), 0)
                .unwrap_err()
                .contains("keyspaces/0/current"),
            "without it all others would be removed"
        );
        assert_eq!(check(&dir.path().join("none"), 0), Ok(()));
    }
}
