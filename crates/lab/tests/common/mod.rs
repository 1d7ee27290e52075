//! Runs of the generators within the test's process.

#![allow(dead_code, reason = "each test file uses its share")]

use coral_lab::load::out::Out;
use coral_lab::load::{Ended, Failed, Run, run};
use tempfile::TempDir;

/// A directory in memory where there is one.
pub fn place() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}

/// The record that a run left there, as `r.json`.
pub fn record(dir: &TempDir) -> serde_json::Value {
    let text = std::fs::read_to_string(dir.path().join("r.json")).expect("a record");
    serde_json::from_str(&text).expect("JSON")
}

/// Why that is incomplete.
pub fn why_incomplete(dir: &TempDir) -> String {
    let record = record(dir);
    assert_eq!(record["complete"], false);
    record["why_incomplete"]
        .as_str()
        .expect("a reason")
        .to_owned()
}

/// Runs a command line, of which `DIR` is the directory; what it printed.
pub fn start(dir: &TempDir, line: &str) -> (Result<Ended, Failed>, String) {
    let line = line.replace("DIR", &dir.path().to_string_lossy());
    let words: Vec<&str> = line.split_whitespace().collect();
    let (out, printed) = Out::memory();
    let ended = run(Run::new(words[0], &words[1..], out));
    (ended, printed.text())
}

/// The same, of a run that must succeed; its record too.
pub fn good(dir: &TempDir, line: &str) -> (serde_json::Value, String) {
    let (ended, printed) = start(dir, line);
    match ended {
        Ok(Ended {
            code: 0,
            record: Some(record),
        }) => (record, printed),
        other => panic!("{line}: {other:?}\n{printed}"),
    }
}
