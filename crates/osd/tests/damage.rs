//! Damage to the files of the tables, at random: whatever file is cut short or has a bit flipped,
//! after a clean close or after `kill -9`, the store is refused by name, or reading it fails, or
//! everything that was synced is there. What is never allowed is silence.
//!
//! `CORAL_SEED=N cargo test -p coral-osd --test damage` repeats a run.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use coral_osd::{Batch, Kv, Label, OpenError, OsdFs, Table, TargetKind};

const DIR_VAR: &str = "CORAL_OSD_DAMAGE_DIR";
const BULK: Table = Table("bulk");
const ROWS: Table = Table("rows");
/// Enough for tables to be sorted to disk: a memtable is 4 MiB.
const BULK_ROWS: u64 = 3000;
const ROUNDS: u64 = 40;
/// The child syncs after so many commits.
const SYNC_EVERY: u64 = 50;

/// One test at a time: a process that one of them is starting holds the locks of the other's target
/// until it runs its program.
static ALONE: Mutex<()> = Mutex::new(());

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

fn row(n: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(n + 1);
    (0..len / 8)
        .flat_map(|_| rng.next().to_le_bytes())
        .collect()
}

fn bulk_row(n: u64) -> Vec<u8> {
    row(n, 8000)
}

fn small_row(n: u64) -> Vec<u8> {
    row(n, 8 + n as usize % 600)
}

fn formatted(dir: &Path) {
    let label = Label {
        kind: TargetKind::Mdt,
        fsname: "coral".into(),
        index: 0,
        uuid: "test".into(),
        mgs_nids: vec![],
    };
    OsdFs::format(dir, &label).unwrap();
}

fn fill(osd: &OsdFs, table: Table, from: u64, to: u64) {
    for n in from..to {
        let mut b = Batch::new();
        let value = if table == BULK {
            bulk_row(n)
        } else {
            small_row(n)
        };
        b.put(table, n.to_be_bytes().to_vec(), value);
        osd.commit(b).wait().unwrap();
    }
}

/// Rows are there from 0 on without a gap and as they were written; how many.
fn prefix(osd: &OsdFs, table: Table, what: &str) -> Result<u64, String> {
    let rows = osd
        .range(table, b"", None, usize::MAX)
        .map_err(|e| e.to_string())?;
    for ((k, v), n) in rows.iter().zip(0_u64..) {
        assert_eq!(k[..], n.to_be_bytes(), "{what}: a row is missing");
        let want = if table == BULK {
            bulk_row(n)
        } else {
            small_row(n)
        };
        assert!(v[..] == want, "{what}: row {n} was changed");
    }
    Ok(rows.len() as u64)
}

fn files_under(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(files_under(&path));
        } else if fs::metadata(&path).unwrap().len() > 0 {
            out.push(path);
        }
    }
    out.sort();
    out
}

/// Where the bytes of a file end; a journal is followed by a hole.
fn used(path: &Path) -> u64 {
    fs::read(path)
        .unwrap()
        .iter()
        .rposition(|b| *b != 0)
        .map_or(1, |n| n as u64 + 1)
}

/// Damages a random file of the tables, or `SYNCED`; says how.
fn damage(dir: &Path, rng: &mut Rng) -> String {
    let mut files = files_under(&dir.join("kv"));
    files.push(dir.join("SYNCED"));
    // Journals and file lists more often than the many blocks of a table.
    let special: Vec<_> = files
        .iter()
        .filter(|f| !f.to_string_lossy().contains("/tables/"))
        .cloned()
        .collect();
    let files = if rng.below(3) > 0 { special } else { files };
    let file = &files[rng.below(files.len() as u64) as usize];
    let at = rng.below(used(file));
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let name = file.strip_prefix(dir).unwrap().display();
    if rng.below(2) == 0 {
        let at = if rng.below(6) == 0 { 0 } else { at };
        f.set_len(at).unwrap();
        return format!("{name} cut at {at}");
    }
    let mut byte = [0];
    f.read_exact_at(&mut byte, at).unwrap();
    let bit = rng.below(8);
    f.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
    format!("{name} byte {at} bit {bit} flipped")
}

#[derive(Debug, PartialEq)]
enum Fate {
    Refused(String),
    Unreadable(String),
    /// So many small rows are there.
    Opened(u64),
}

/// A person can read it: nothing of Rust's debug output.
fn in_words(said: &str, what: &str) {
    for debug in ["{", "Some(", "Os ", "Error", "Mismatch"] {
        assert!(!said.contains(debug), "{what}: '{debug}' in: {said}");
    }
}

#[test]
fn a_damaged_file_of_a_table_is_named() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    formatted(dir.path());
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    fill(&osd, BULK, 0, BULK_ROWS);
    drop(osd);
    let files = files_under(&dir.path().join("kv"));
    let file = files
        .iter()
        .find(|f| f.to_string_lossy().contains("/tables/"))
        .expect("a file of a table");
    let good = fs::read(file).unwrap();
    for at in [100, good.len() / 2, good.len() - 10] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(file, &bad).unwrap();
        let said = match OsdFs::open(dir.path()) {
            Ok((osd, _)) => {
                assert_eq!(osd.trouble(), None);
                // who only reads is told the same, and so is who asks how the target is
                let read = osd.range(BULK, &[], None, usize::MAX);
                let read = read.unwrap_err().to_string();
                let trouble = osd.trouble().expect("trouble");
                for said in [&read, &trouble] {
                    assert!(said.contains(&file.display().to_string()), "{said}");
                    in_words(said, "flipped");
                }
                osd.verify_tables().unwrap_err().to_string()
            }
            Err(e) => e.to_string(),
        };
        assert!(
            said.contains(&file.display().to_string()),
            "byte {at}: {said}"
        );
        in_words(&said, "flipped");
    }
    fs::write(file, &good[..good.len() / 2]).unwrap();
    let said = OsdFs::open(dir.path()).err().unwrap().to_string();
    assert!(
        said.contains(&file.display().to_string()) && said.contains("from a copy"),
        "{said}"
    );
    in_words(&said, "cut");
}

/// Opens a damaged store; panics when something was lost in silence.
fn open_damaged(dir: &Path, what: &str) -> Fate {
    let osd = match OsdFs::open(dir) {
        Ok((osd, _)) => osd,
        Err(e) => {
            assert!(matches!(e, OpenError::BadKv { .. }), "{what}: {e}");
            let said = e.to_string();
            assert!(
                said.contains(&dir.display().to_string()),
                "{what}: the message names no directory: {said}"
            );
            in_words(&said, what);
            return Fate::Refused(said);
        }
    };
    let read = prefix(&osd, BULK, what).and_then(|bulk| {
        assert_eq!(bulk, BULK_ROWS, "{what}: rows were lost silently");
        prefix(&osd, ROWS, what)
    });
    match read {
        Ok(rows) => Fate::Opened(rows),
        Err(e) => Fate::Unreadable(e),
    }
}

/// Damages copies of `dir` in turn; every small row below `safe` must be there or the loss be told.
fn all_kinds_of_damage(dir: &Path, safe: u64, rng: &mut Rng) {
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("copy");
    let (mut refused, mut unreadable, mut fine) = (0, 0, 0);
    for _ in 0..ROUNDS {
        let _ = fs::remove_dir_all(&copy);
        let done = Command::new("cp")
            .args(["-a", "--sparse=always"])
            .arg(dir)
            .arg(&copy)
            .status()
            .unwrap();
        assert!(done.success());
        let what = damage(&copy, rng);
        let fate = open_damaged(&copy, &what);
        println!("{what}: {fate:?}");
        match fate {
            Fate::Refused(_) => refused += 1,
            Fate::Unreadable(_) => unreadable += 1,
            Fate::Opened(rows) => {
                assert!(rows >= safe, "{what}: {rows} rows, {safe} were synced");
                fine += 1;
            }
        }
    }
    println!("{refused} refused, {unreadable} not readable, {fine} whole");
    assert!(refused > 0);
}

#[test]
fn after_a_clean_close() {
    let _alone = ALONE.lock();
    let mut rng = Rng::from_env();
    let dir = tempfile::tempdir().unwrap();
    formatted(dir.path());
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    fill(&osd, BULK, 0, BULK_ROWS);
    drop(osd);
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    fill(&osd, ROWS, 0, 500);
    // No sync: closing is one.
    drop(osd);
    all_kinds_of_damage(dir.path(), 500, &mut rng);
    assert_eq!(
        open_damaged(dir.path(), "the undamaged one"),
        Fate::Opened(500)
    );
}

/// The way out that docs/guide.md tells whoever has no copy.
#[test]
fn without_the_promise_a_cut_journal_is_read_as_far_as_it_goes() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    formatted(dir.path());
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    fill(&osd, ROWS, 0, 200);
    drop(osd);
    let journal = dir.path().join("kv/0.jnl");
    let f = OpenOptions::new().write(true).open(&journal).unwrap();
    f.set_len(used(&journal) / 2).unwrap();
    let said = OsdFs::open(dir.path()).err().unwrap().to_string();
    for part in [
        "0.jnl",
        "transactions are missing",
        "from a copy",
        "docs/guide.md",
    ] {
        assert!(said.contains(part), "no '{part}' in: {said}");
    }
    fs::remove_file(dir.path().join("SYNCED")).unwrap();
    let (osd, _) = OsdFs::open(dir.path()).unwrap();
    let rows = prefix(&osd, ROWS, "cut").unwrap();
    assert!((50..150).contains(&rows), "{rows}");
}

/// Not a test: what the child does.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR_VAR) else {
        return;
    };
    let (osd, _) = OsdFs::open(Path::new(&dir)).unwrap();
    fill(&osd, BULK, 0, BULK_ROWS);
    let mut out = std::io::stderr();
    for n in 0.. {
        fill(&osd, ROWS, n, n + 1);
        if n % SYNC_EVERY == 0 {
            osd.sync().wait().unwrap();
        }
        writeln!(out, "{n}").unwrap();
    }
}

#[test]
fn after_kill_9() {
    let _alone = ALONE.lock();
    let mut rng = Rng::from_env();
    let dir = tempfile::tempdir().unwrap();
    formatted(dir.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIR_VAR, dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut last: u64 = 0;
    for _ in 0..500 + rng.below(200) {
        last = lines.next().unwrap().unwrap().parse().unwrap();
    }
    child.kill().unwrap();
    last = lines
        .map_while(Result::ok)
        .filter_map(|l| l.parse().ok())
        .last()
        .unwrap_or(last);
    child.wait().unwrap();
    all_kinds_of_damage(dir.path(), last / SYNC_EVERY * SYNC_EVERY + 1, &mut rng);
    let Fate::Opened(rows) = open_damaged(dir.path(), "the undamaged one") else {
        panic!("not opened")
    };
    assert!(rows > last, "{rows} rows, {last} was acknowledged");
}
