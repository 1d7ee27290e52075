//! Crash tests: a child process is killed with -9 while it commits and writes; what it had been
//! told was done must be there, and of the rest a prefix.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use coral_osd::{Batch, Kv, Label, ObjectId, Objects, OsdFs, SetAttr, Table, TargetKind, Time};

const DIR_VAR: &str = "CORAL_OSD_CRASH_DIR";
const ROWS: Table = Table("rows");
const COUNT: Table = Table("count");
const ROUNDS: u64 = 12;
const CHUNK: usize = 50_000;

fn object(n: u64) -> ObjectId {
    ObjectId { seq: 0, oid: n / 4 }
}

/// The place and contents of write `n`.
fn chunk(n: u64) -> (u64, Vec<u8>) {
    ((n % 4) * CHUNK as u64, vec![n as u8 | 1; CHUNK])
}

/// Not a test: what the child does. Writes the number of each finished step to its output.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR_VAR) else {
        return;
    };
    let (osd, _) = OsdFs::open(Path::new(&dir)).unwrap();
    let mut n = next_step(&osd);
    let mut out = std::io::stderr();
    if n > 0 {
        // Killed between the batch and the write that goes with it.
        let (off, data) = chunk(n - 1);
        osd.write(object(n - 1), off, &[Bytes::from(data)])
            .wait()
            .unwrap();
    }
    loop {
        let mut b = Batch::new();
        b.put(
            ROWS,
            n.to_be_bytes().to_vec(),
            vec![n as u8; 50 + n as usize % 3000],
        );
        b.put(COUNT, "n", (n + 1).to_be_bytes().to_vec());
        if n > 0 {
            b.del(ROWS, (n - 1).to_be_bytes().to_vec());
            b.put(ROWS, (n - 1).to_be_bytes().to_vec(), "old");
        }
        osd.commit(b).wait().unwrap();
        let (off, data) = chunk(n);
        osd.write(object(n), off, &[Bytes::from(data)])
            .wait()
            .unwrap();
        let set = SetAttr {
            uid: Some(n as u32),
            mtime: Some(Time::from_secs(n as i64)),
            ..Default::default()
        };
        osd.set_attr(object(n), &set).unwrap();
        writeln!(out, "{n}").unwrap();
        n += 1;
    }
}

fn next_step(osd: &OsdFs) -> u64 {
    osd.get(COUNT, b"n")
        .unwrap()
        .map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()))
}

/// Runs the child until it has done `steps`, kills it, and returns the last step it reported.
fn run_and_kill(dir: &Path, steps: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIR_VAR, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut last = None;
    for _ in 0..steps {
        let line = lines.next().unwrap().unwrap();
        last = Some(line.parse().unwrap_or_else(|_| panic!("child: {line}")));
    }
    child.kill().unwrap();
    // What it reported between the last line we waited for and the kill counts as well.
    let rest = lines.map_while(Result::ok).filter_map(|l| l.parse().ok());
    let last = rest.last().or(last).unwrap();
    child.wait().unwrap();
    last
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
    OsdFs::format(&target, &label()).unwrap();
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
        b.put(ROWS, key, "row");
    };
    let remove = |b: &mut Batch, key| {
        b.del(ROWS, key);
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
        b.put(COUNT, "junk", junk);
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
    assert!(osd.range(ROWS, b"", None, 1).unwrap().is_empty());
    osd.verify().unwrap();
}

fn label() -> Label {
    Label {
        kind: TargetKind::Ost,
        fsname: "coral".into(),
        index: 0,
        uuid: "test".into(),
        mgs_nids: vec![],
    }
}

#[test]
fn killed_at_any_time_it_comes_back_with_everything_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    OsdFs::format(dir.path(), &label()).unwrap();
    for round in 0..ROUNDS {
        let done = run_and_kill(dir.path(), 1 + round * round * 7);
        let (osd, _) = OsdFs::open(dir.path()).unwrap();
        let next = next_step(&osd);
        assert!(
            next > done,
            "round {round}: step {done} was acknowledged, {next} is next"
        );
        assert!(next <= done + 2, "round {round}: {next} steps of {done}");
        let rows = osd.range(ROWS, b"", None, usize::MAX).unwrap();
        assert_eq!(rows.len() as u64, next, "round {round}");
        for (i, (k, v)) in rows.iter().enumerate() {
            let i = i as u64;
            assert_eq!(k[..], i.to_be_bytes());
            if i + 1 < next {
                assert_eq!(&v[..], b"old", "round {round}: half of batch {}", i + 1);
            } else {
                assert_eq!(v.len(), 50 + i as usize % 3000);
            }
        }
        for n in 0..=done {
            let (off, data) = chunk(n);
            let got = osd.read(object(n), off, CHUNK).wait().unwrap();
            assert!(got == data, "round {round}: object write {n} was lost");
        }
        assert!(osd.attr(object(done)).unwrap().unwrap().owned);
        osd.verify().unwrap();
    }
}
