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
