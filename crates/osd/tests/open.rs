//! Directories that must be refused, each with its own error, and what an operator is told.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use coral_osd::{
    Batch, Kv, Label, ObjectId, Objects, OpenError, Osd, OsdFs, OsdMem, SetAttr, Table, TargetKind,
    Time,
};

const T: Table = Table("rows");

fn label() -> Label {
    Label {
        kind: TargetKind::Mdt,
        fsname: "coral".into(),
        index: 0,
        uuid: "test".into(),
        mgs_nids: vec!["10.0.0.1@tcp".into()],
    }
}

fn formatted() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    OsdFs::format(dir.path(), &label()).unwrap();
    dir
}

fn open_error(dir: &Path) -> OpenError {
    match OsdFs::open(dir) {
        Ok(_) => panic!("opened"),
        Err(e) => e,
    }
}

#[test]
fn the_label_comes_back() {
    let dir = formatted();
    assert_eq!(OsdFs::open(dir.path()).unwrap().1, label());
    assert_eq!(OsdFs::label(dir.path()).unwrap(), label());
}

#[test]
fn foreign_directories_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(open_error(dir.path()), OpenError::NotOurs { .. }));
    assert!(matches!(
        open_error(Path::new("/nonexistent")),
        OpenError::NotOurs { .. }
    ));
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let e = open_error(dir.path());
    assert!(matches!(e, OpenError::NotOurs { .. }), "{e}");
    let e = OsdFs::format(dir.path(), &label()).unwrap_err();
    assert!(matches!(e, OpenError::NotOurs { .. }), "{e}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing was added"
    );
}

#[test]
fn a_new_target_is_fresh_until_it_is_registered() {
    use std::os::unix::fs::MetadataExt;
    let dir = formatted();
    let own = fs::metadata(dir.path()).unwrap();
    drop(OsdFs::open(dir.path()).unwrap());
    let fresh = OsdFs::fresh(dir.path())
        .unwrap()
        .expect("fresh, also after it was opened");
    assert_eq!(fresh.uid, own.uid());
    OsdFs::set_registered(dir.path()).unwrap();
    OsdFs::set_registered(dir.path()).unwrap();
    assert_eq!(OsdFs::fresh(dir.path()).unwrap(), None);
    let mgs = tempfile::tempdir().unwrap();
    OsdFs::format(
        mgs.path(),
        &Label {
            kind: TargetKind::Mgs,
            ..label()
        },
    )
    .unwrap();
    assert_eq!(
        OsdFs::fresh(mgs.path()).unwrap(),
        None,
        "an MGS registers nowhere"
    );
}

#[test]
fn a_target_is_not_formatted_twice() {
    let dir = formatted();
    let e = OsdFs::format(dir.path(), &label()).unwrap_err();
    assert!(matches!(e, OpenError::AlreadyFormatted { .. }), "{e}");
    assert!(e.to_string().contains("coral-MDT0000"), "{e}");
}

#[test]
fn a_format_that_was_interrupted_can_be_repeated() {
    let dir = formatted();
    fs::remove_file(dir.path().join("CORAL")).unwrap();
    OsdFs::format(dir.path(), &label()).unwrap();
    OsdFs::open(dir.path()).unwrap();
}

/// All files and directories below `dir`, the outer ones first.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        all.push(path.clone());
        if path.is_dir() {
            all.extend(below(&path));
        }
    }
    all
}

/// Whatever of its files is not there yet, or is empty: that a format was interrupted keeps nobody from formatting again.
#[tokio::test]
async fn a_format_can_be_repeated_wherever_it_was_interrupted() {
    let count = below(formatted().path()).len();
    for (n, is_cut) in (0..count).flat_map(|n| [(n, false), (n, true)]) {
        let dir = formatted();
        let mut all = below(dir.path());
        all.sort();
        let path = &all[n];
        match (path.is_dir(), is_cut) {
            (true, true) => continue,
            (true, false) => fs::remove_dir_all(path).unwrap(),
            (false, true) => fs::write(path, "").unwrap(),
            (false, false) => fs::remove_file(path).unwrap(),
        }
        let _ = fs::remove_file(dir.path().join("CORAL"));
        let done = OsdFs::format(dir.path(), &label()).and_then(|()| OsdFs::open(dir.path()));
        let (osd, _) = done.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut b = Batch::new();
        b.put(T, "key", "value");
        osd.commit(b).await.unwrap();
    }
}

/// Rows or objects, and neither the label nor the note of the starts.
#[tokio::test]
async fn what_holds_something_is_not_formatted_again() {
    for has_rows in [true, false] {
        let dir = formatted();
        let (osd, _) = OsdFs::open(dir.path()).unwrap();
        if has_rows {
            let mut b = Batch::new();
            b.put(T, "key", "value");
            osd.commit(b).await.unwrap();
        }
        drop(osd);
        for entry in fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                fs::remove_file(path).unwrap();
            }
        }
        if !has_rows {
            fs::write(dir.path().join("objects/one"), "").unwrap();
        }
        let e = OsdFs::format(dir.path(), &label()).unwrap_err();
        assert!(e.to_string().contains("restore its file CORAL"), "{e}");
    }
}

#[test]
fn two_openers_are_kept_apart_and_the_first_is_named() {
    let dir = formatted();
    let first = OsdFs::open(dir.path()).unwrap();
    let OpenError::InUse { pid, .. } = open_error(dir.path()) else {
        panic!("wrong error")
    };
    assert_eq!(pid, std::process::id());
    drop(first);
    OsdFs::open(dir.path()).unwrap();
}

#[test]
fn what_nobody_wrote_has_no_mtime() {
    let dir = formatted();
    let (fs, _) = OsdFs::open(dir.path()).unwrap();
    let mem = OsdMem::new();
    let all: [(&str, &dyn Osd); 2] = [("OsdFs", &fs), ("OsdMem", &mem)];
    let (atime, ctime) = (Some(Time::from_secs(7)), Some(Time::from_secs(9)));
    for (name, osd) in all {
        let owner = SetAttr {
            uid: Some(5),
            ..SetAttr::default()
        };
        let times = SetAttr {
            atime,
            ctime,
            ..SetAttr::default()
        };
        for (oid, set) in [(1, owner), (2, times)] {
            let id = ObjectId { seq: 0, oid };
            let told = osd.set_attr(id, &set).unwrap();
            let now = osd.attr(id).unwrap().unwrap();
            assert_eq!(told, now, "{name}");
            assert_eq!(now.mtime, Time::default(), "{name}");
            assert_eq!(now.atime, set.atime.unwrap_or_default(), "{name}");
            assert_eq!(now.ctime, set.ctime.unwrap_or_default(), "{name}");
        }
    }
}

fn filled() -> tempfile::TempDir {
    let dir = formatted();
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    for n in 0..200u32 {
        let mut b = Batch::new();
        b.put(T, n.to_be_bytes().to_vec(), vec![n as u8; 100]);
        b.put(Table("count"), "n", n.to_be_bytes().to_vec());
        osd.commit(b).wait().unwrap();
    }
    osd.sync().wait().unwrap();
    osd.write(ObjectId { seq: 0, oid: 1 }, 0, &[Bytes::from_static(b"x")])
        .wait()
        .unwrap();
    dir
}

/// The journal with the rows in it, and how many of its bytes are written.
fn journal(dir: &Path) -> (std::path::PathBuf, usize) {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir.join("kv")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "jnl") {
            let used = fs::read(&path)
                .unwrap()
                .iter()
                .rposition(|b| *b != 0)
                .map_or(0, |n| n + 1);
            found.push((used, path));
        }
    }
    let (used, path) = found.into_iter().max().unwrap();
    (path, used)
}

/// All 200 rows, or an error that says what is wrong: never fewer rows and silence.
fn whole_or_refused(dir: &Path, what: &str) -> bool {
    match OsdFs::open(dir) {
        Ok((osd, _)) => match osd.range(T, b"", None, 1000) {
            Ok(rows) => {
                assert_eq!(rows.len(), 200, "{what}: rows were lost silently");
                for (n, (k, v)) in rows.iter().enumerate() {
                    assert_eq!(k[..], (n as u32).to_be_bytes(), "{what}");
                    assert!(v.iter().all(|b| *b == n as u8), "{what}");
                }
                true
            }
            Err(e) => {
                assert_eq!(e.errno(), libc::EIO, "{what}: {e}");
                false
            }
        },
        Err(e) => {
            assert!(matches!(e, OpenError::BadKv { .. }), "{what}: {e}");
            false
        }
    }
}

#[test]
fn a_store_that_is_closed_leaves_the_next_start_little_to_read() {
    const ROWS: u32 = 6000;
    let dir = formatted();
    let key = |n: u32| n.to_be_bytes().to_vec();
    let there = |osd: &OsdFs| -> Vec<u32> {
        let rows = osd.range(T, b"", None, 2 * ROWS as usize).unwrap();
        let number = |k: &Bytes| u32::from_be_bytes(k[..].try_into().unwrap());
        rows.iter().map(|(k, _)| number(k)).collect()
    };
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    for n in 0..ROWS {
        let mut b = Batch::new();
        b.put(T, key(n), vec![n as u8; 1000]);
        osd.commit(b).wait().unwrap();
    }
    drop(osd);
    let used = journal(dir.path()).1;
    assert!((1..5000).contains(&used), "{used} bytes are left");
    let mut left: Vec<u32> = (0..ROWS).collect();
    // What removes a row leaves nothing in the tables that would tell its number.
    for removed in [ROWS - 1, 0, 77] {
        let (osd, _) = OsdFs::open(dir.path()).unwrap();
        assert_eq!(there(&osd), left);
        for n in 0..ROWS {
            let mut b = Batch::new();
            b.put(T, key(n), vec![n as u8; 1000]);
            osd.commit(b).wait().unwrap();
        }
        left = (0..ROWS).filter(|n| *n != removed).collect();
        let mut b = Batch::new();
        b.del(T, key(removed));
        osd.commit(b).wait().unwrap();
        drop(osd);
        assert!(journal(dir.path()).1 < 5000);
    }
    assert_eq!(there(&OsdFs::open(dir.path()).unwrap().0), left);
    // What is left of the journal is as much missed as a whole one.
    let (path, used) = journal(dir.path());
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[..used - 1]).unwrap();
    assert!(matches!(open_error(dir.path()), OpenError::BadKv { .. }));
    fs::remove_file(&path).unwrap();
    assert!(matches!(open_error(dir.path()), OpenError::BadKv { .. }));
    fs::write(&path, &good).unwrap();
    assert_eq!(there(&OsdFs::open(dir.path()).unwrap().0), left);
}

#[test]
fn a_flipped_bit_in_the_journal_is_reported() {
    let dir = filled();
    let (path, used) = journal(dir.path());
    let good = fs::read(&path).unwrap();
    let mut refused = 0;
    // Every part of a record in the middle, and samples of all the rest.
    let middle = used / 2;
    for at in (middle..middle + 400)
        .step_by(7)
        .chain((0..used - 400).step_by(used / 40))
    {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).unwrap();
        refused += !whole_or_refused(dir.path(), &format!("byte {at} of {used}")) as u32;
        fs::write(&path, &good).unwrap();
    }
    assert!(refused > 20, "only {refused} refused");
    assert!(whole_or_refused(dir.path(), "restored"));
}

#[test]
fn a_journal_cut_short_in_the_last_batch_loses_that_batch_only_and_only_if_it_was_not_synced() {
    let dir = filled();
    let (path, used) = journal(dir.path());
    let good = fs::read(&path).unwrap();
    for cut in [1, 5, 40, 100] {
        fs::write(&path, &good[..used - cut]).unwrap();
        if cut == 1 {
            assert!(!whole_or_refused(dir.path(), "closed, then cut"));
        }
        // As if the last batch had not been synced.
        let _ = fs::remove_file(dir.path().join("SYNCED"));
        let (osd, _) = OsdFs::open(dir.path()).unwrap();
        let rows = osd.range(T, b"", None, 1000).unwrap();
        let count = osd.get(Table("count"), b"n").unwrap().unwrap();
        assert_eq!(rows.len(), 199, "cut {cut}");
        assert_eq!(count[..], 198u32.to_be_bytes(), "both tables of the batch");
    }
}

const BULK: Table = Table("bulk");
const BULK_ROWS: u32 = 3000;

fn bulk_row(n: u32) -> Vec<u8> {
    // Not compressible, so that the tables on disk are as large as they look.
    let mut x = n as u64 + 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    (0..1000).flat_map(|_| next().to_le_bytes()).collect()
}

/// Files of the store with something in them.
fn files(dir: &Path, out: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else if fs::metadata(&path).unwrap().len() > 0 {
            out.push(path);
        }
    }
}

/// Every row as it was written, or an error.
fn bulk_whole(dir: &Path) -> Result<(), String> {
    let (osd, _) = OsdFs::open(dir).map_err(|e| e.to_string())?;
    osd.verify().map_err(|e| e.to_string())?;
    let rows = osd
        .range(BULK, b"", None, usize::MAX)
        .map_err(|e| e.to_string())?;
    assert_eq!(rows.len(), BULK_ROWS as usize, "rows were lost silently");
    for (n, (k, v)) in rows.iter().enumerate() {
        assert_eq!(k[..], (n as u32).to_be_bytes());
        assert!(v[..] == bulk_row(n as u32), "row {n} was changed silently");
    }
    Ok(())
}

#[test]
fn a_flipped_bit_in_any_file_of_the_store_is_reported_or_harmless() {
    let dir = formatted();
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    for n in 0..BULK_ROWS {
        let mut b = Batch::new();
        b.put(BULK, n.to_be_bytes().to_vec(), bulk_row(n));
        osd.commit(b).wait().unwrap();
    }
    osd.sync().wait().unwrap();
    drop(osd);
    bulk_whole(dir.path()).unwrap();
    let mut all = Vec::new();
    files(&dir.path().join("kv"), &mut all);
    assert!(
        all.iter()
            .any(|p| p.components().any(|c| c.as_os_str() == "tables")),
        "{all:?}"
    );
    let mut tables = 0;
    // a journal's number that was changed is believed, and promised from then on
    let promise = dir.path().join("SYNCED");
    let promised = fs::read(&promise).unwrap();
    for path in all {
        let good = match fs::read(&path) {
            Ok(good) => good,
            // opening the store has tidied it up
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => panic!("{}: {e}", path.display()),
        };
        tables += u32::from(path.components().any(|c| c.as_os_str() == "tables"));
        for part in [0, 1, 5, 9] {
            let at = ((good.len() - 1) * part / 9).min(good.len() - 1);
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&path, &bad).unwrap();
            let got = std::panic::catch_unwind(|| bulk_whole(dir.path()));
            let name = path.strip_prefix(dir.path()).unwrap().display();
            println!("{name} byte {at} of {}: {got:?}", good.len());
            assert!(got.is_ok(), "{name} byte {at} of {}", good.len());
            fs::write(&path, &good).unwrap();
            fs::write(&promise, &promised).unwrap();
        }
    }
    assert_ne!(tables, 0, "no table was left to be changed");
    bulk_whole(dir.path()).unwrap();
}

/// All below `from`, as it is on the disk.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = (
            entry.as_ref().unwrap().path(),
            to.join(entry.unwrap().file_name()),
        );
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(std::fs::copy(&path, &to).unwrap()),
        }
    }
}

/// The newest batches only remove, their table is written anew with nothing left in it, and every other table is sorted to disk, so that the
/// journal may go: then only what is written beside removals has the number of the newest batch.
#[tokio::test(flavor = "multi_thread")]
async fn what_removed_much_at_last_and_was_sorted_opens_again_after_a_kill() {
    // whether the journal goes before the table has nothing left is chance
    let tries: Vec<_> = (0..4).map(|_| tokio::spawn(remove_and_sort())).collect();
    for one in tries {
        one.await.unwrap();
    }
}

async fn remove_and_sort() {
    const ROWS_IN_ALL: u64 = 120_000;
    const REMOVED_LAST: u64 = 5_000;
    const STEP: usize = 1000;
    /// A longer journal is closed when a table is sorted (fjall).
    const JOURNAL_BYTES: u64 = 64_000_000;
    let dir = tempfile::tempdir().unwrap();
    let (target, killed) = (dir.path().join("target"), dir.path().join("killed"));
    std::fs::create_dir(&target).unwrap();
    let of_ost = Label {
        kind: TargetKind::Ost,
        ..label()
    };
    OsdFs::format(&target, &of_ost).unwrap();
    let (osd, _) = OsdFs::open(&target).unwrap();
    let first = target.join("kv/0.jnl");
    let journal = || first.metadata().map_or(0, |m| m.len());
    let all = |change: fn(&mut Batch, Vec<u8>), begin: u64, end: u64| {
        let keys: Vec<_> = (begin..end).map(|n| n.to_be_bytes().to_vec()).collect();
        let batch = |keys: &[Vec<u8>]| {
            let mut b = Batch::new();
            keys.iter().for_each(|key| change(&mut b, key.clone()));
            b
        };
        keys.chunks(STEP).map(batch).collect::<Vec<_>>()
    };
    let add = |b: &mut Batch, key| {
        b.put(T, key, "row");
    };
    let remove = |b: &mut Batch, key| {
        b.del(T, key);
    };
    let kept_until_last = ROWS_IN_ALL - REMOVED_LAST;
    let before = all(add, 0, ROWS_IN_ALL).into_iter();
    for b in before.chain(all(remove, 0, kept_until_last)) {
        osd.commit(b).await.unwrap();
    }
    while journal() < JOURNAL_BYTES - 90_000 {
        let is_near = JOURNAL_BYTES - journal() < 1_000_000;
        let mut junk = vec![0; if is_near { 10_000 } else { 500_000 }];
        rand::fill(&mut junk[..]);
        let mut b = Batch::new();
        b.put(Table("count"), "junk", junk);
        osd.commit(b).await.unwrap();
    }
    for b in all(remove, kept_until_last, ROWS_IN_ALL) {
        osd.commit(b).await.unwrap();
    }
    osd.sync().await.unwrap();
    // the table is written anew, with nothing in it; the others are sorted, and the journal may go
    for _ in 0..60 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        if journal() == 0 {
            break;
        }
    }
    copy(&target, &killed);
    let (osd, _) = OsdFs::open(&killed).unwrap();
    assert!(osd.range(T, b"", None, 1).unwrap().is_empty());
    osd.verify().unwrap();
}
