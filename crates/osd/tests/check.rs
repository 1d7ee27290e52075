//! A look at a closed target ([`Inspection`]): it changes no byte, and whatever file of the tables, the label or a list is cut,
//! removed or has bytes flipped, it says so, or all is readable as it was.
//!
//! `CORAL_SEED=N cargo test -p coral-osd --test check` repeats a run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use coral_osd::{Batch, Inspection, Kv, Label, ObjectId, Objects, OsdFs, Table, TargetKind};

const TABLES: [Table; 3] = [Table("inode"), Table("dirent"), Table("xattr")];
const DAMAGES: u64 = 200;

struct Rng(u64);

impl Rng {
    #[expect(clippy::disallowed_methods, reason = "the seed is printed")]
    fn from_env() -> Rng {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let seed =
            std::env::var("CORAL_SEED").map_or(now.as_nanos() as u64, |s| s.parse().unwrap());
        println!("CORAL_SEED={seed}");
        Rng(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// A closed target with rows in files of tables, rows in a journal only, and objects.
fn target(dir: &Path) {
    let label = Label {
        kind: TargetKind::Mdt,
        fsname: "coral".into(),
        index: 0,
        uuid: "u".into(),
        mgs_nids: vec![],
    };
    OsdFs::format(dir, &label).unwrap();
    let (osd, _) = OsdFs::open(dir).unwrap();
    let mut rng = Rng(77);
    // More than a memtable, so that some are sorted to files; the last table lives in the journal alone.
    for n in 0..3000_u64 {
        let mut b = Batch::new();
        let value: Vec<u8> = (0..1000).flat_map(|_| rng.next().to_le_bytes()).collect();
        b.put(TABLES[0], n.to_be_bytes().to_vec(), value);
        b.put(TABLES[1], n.to_be_bytes().to_vec(), vec![n as u8; 50]);
        osd.commit(b).wait().unwrap();
    }
    for n in 0..700_u64 {
        let mut b = Batch::new();
        b.put(TABLES[2], n.to_be_bytes().to_vec(), vec![n as u8; 100]);
        osd.commit(b).wait().unwrap();
    }
    for oid in 1..20 {
        osd.write(
            ObjectId { seq: 0, oid },
            0,
            &[Bytes::from(vec![oid as u8; 5000])],
        )
        .wait()
        .unwrap();
    }
}

/// Every file: its bytes, times and length; and every directory.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, i64, i64, u64)> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let m = fs::symlink_metadata(&path).unwrap();
        let bytes = if m.is_dir() {
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        if m.is_dir() {
            out.extend(picture(&path));
        }
        out.insert(
            path,
            (
                bytes,
                m.mtime_nsec() + m.mtime() * 1_000_000_000,
                m.ctime_nsec() + m.ctime() * 1_000_000_000,
                m.len(),
            ),
        );
    }
    out
}

type Rows = Vec<Vec<(Bytes, Bytes)>>;

/// What a look finds: all rows, or what it says.
fn look(dir: &Path) -> Result<Rows, String> {
    let looked = Inspection::open(dir).map_err(|e| e.to_string())?;
    if let Some(problem) = looked.problems().first() {
        return Err(problem.clone());
    }
    looked.verify_tables().map_err(|e| e.to_string())?;
    let mut objects = 0;
    looked
        .iterate(&mut |_, a| {
            objects += u64::from(a.size == 5000);
            true
        })
        .map_err(|e| e.to_string())?;
    assert_eq!(objects, 19, "objects were not damaged");
    TABLES
        .iter()
        .map(|t| {
            looked
                .range(*t, b"", None, usize::MAX)
                .map_err(|e| e.to_string())
        })
        .collect()
}

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(done.success());
}

/// The same with hard links: a look changes nothing.
fn linked(from: &Path, to: &Path) {
    assert!(
        std::process::Command::new("cp")
            .arg("-al")
            .arg(from)
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_look_changes_no_byte() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("mdt");
    target(&dir);
    let before = picture(&dir);
    let rows = look(&dir).unwrap();
    assert_eq!(
        rows.iter().map(Vec::len).collect::<Vec<_>>(),
        [3000, 3000, 700]
    );
    let after = picture(&dir);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>()
    );
    for (path, was) in &before {
        assert!(after[path] == *was, "{} was changed", path.display());
    }
    // While it is served, it says so.
    let (osd, _) = OsdFs::open(&dir).unwrap();
    assert!(Inspection::open(&dir).is_err_and(|e| e.to_string().contains("in use by process")));
    drop(osd);
    assert_eq!(look(&dir).unwrap(), rows);
}

#[test]
fn a_damaged_journal_is_not_cut_by_a_look() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("mdt");
    target(&dir);
    // As a killed process may leave it: half a batch behind the last whole one.
    fs::remove_file(dir.join("SYNCED")).unwrap();
    let journal = fs::read_dir(dir.join("kv"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "jnl"))
        .max()
        .unwrap();
    let end = fs::read(&journal)
        .unwrap()
        .iter()
        .rposition(|b| *b != 0)
        .unwrap() as u64
        + 1;
    fs::OpenOptions::new()
        .write(true)
        .open(&journal)
        .unwrap()
        .write_all_at(&[1, 1, 0, 0, 0, 9], end)
        .unwrap();
    let before = picture(&dir);
    assert!(look(&dir).unwrap_err().contains("SYNCED is missing"));
    assert!(picture(&dir) == before, "something was changed");
}

#[test]
fn each_of_200_damages_is_found_or_all_is_readable() {
    let mut rng = Rng::from_env();
    let tmp = tempfile::tempdir().unwrap();
    let good = tmp.path().join("good");
    target(&good);
    let rows = look(&good).unwrap();
    let mut files: Vec<PathBuf> = picture(&good)
        .into_iter()
        .filter(|(_, (b, ..))| !b.is_empty())
        .map(|(p, _)| p)
        .collect();
    let objects = good.join("objects");
    files.retain(|f| !f.starts_with(&objects));
    let is_block = |f: &PathBuf| f.parent().is_some_and(|d| d.ends_with("tables"));
    assert!(files.iter().any(is_block), "nothing was sorted to a file");
    let (blocks, lists): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(is_block);
    let bad = tmp.path().join("bad");
    let (mut said, mut harmless) = (0, BTreeMap::<String, u32>::new());
    for round in 0..DAMAGES {
        let _ = fs::remove_dir_all(&bad);
        linked(&good, &bad);
        let from = if rng.below(3) == 0 { &blocks } else { &lists };
        let name = from[rng.below(from.len() as u64) as usize]
            .strip_prefix(&good)
            .unwrap();
        let file = bad.join(name);
        let bytes = fs::read(&file).unwrap();
        // Linked to the good one until here.
        fs::remove_file(&file).unwrap();
        fs::write(&file, &bytes).unwrap();
        let used = bytes
            .iter()
            .rposition(|b| *b != 0)
            .map_or(1, |n| n as u64 + 1);
        let how = match rng.below(3) {
            0 => {
                fs::remove_file(&file).unwrap();
                "removed".to_owned()
            }
            1 => {
                let at = rng.below(used);
                fs::OpenOptions::new()
                    .write(true)
                    .open(&file)
                    .unwrap()
                    .set_len(at)
                    .unwrap();
                format!("cut at {at}")
            }
            _ => {
                let at = rng.below(used);
                let bit = rng.below(8);
                fs::OpenOptions::new()
                    .write(true)
                    .open(&file)
                    .unwrap()
                    .write_all_at(&[bytes[at as usize] ^ 1 << bit], at)
                    .unwrap();
                format!("byte {at} bit {bit} flipped")
            }
        };
        let what = format!("round {round}: {} {how}", name.display());
        match look(&bad) {
            Err(why) => {
                assert!(
                    !why.contains("coral-check-"),
                    "{what}: it names the temporary copy: {why}"
                );
                said += 1;
            }
            Ok(found) => {
                assert!(
                    found == rows,
                    "{what}: not found, and rows are missing or others"
                );
                *harmless.entry(name.display().to_string()).or_default() += 1;
            }
        }
    }
    println!("{said} of {DAMAGES} damages named; of files that hold no data: {harmless:?}");
    assert!(said > DAMAGES / 2, "{said}");
}

#[test]
fn a_table_without_its_list_is_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let good = tmp.path().join("good");
    target(&good);
    let tables = fs::read_dir(good.join("kv/keyspaces"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect::<Vec<_>>();
    assert!(tables.len() > TABLES.len());
    for table in tables {
        for whole in [false, true] {
            let bad = tmp.path().join("bad");
            let _ = fs::remove_dir_all(&bad);
            copy(&good, &bad);
            let dir = bad.join("kv/keyspaces").join(&table);
            match whole {
                false => fs::remove_file(dir.join("current")).unwrap(),
                true => fs::remove_dir_all(&dir).unwrap(),
            }
            let what = format!("table {} (all of it: {whole})", table.display());
            assert!(look(&bad).is_err(), "{what}: not found");
            assert!(OsdFs::open(&bad).is_err(), "{what}: opened");
            // Without the note of the last sync the journals tell of most.
            fs::remove_file(bad.join("SYNCED")).unwrap();
            assert!(look(&bad).is_err(), "{what}: not found");
        }
    }
}
