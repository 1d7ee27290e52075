//! A full disk: a tmpfs of 96 MiB in a mount namespace of its own, with the test itself run inside.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use coral_osd::{Batch, Kv, Label, ObjectId, Objects, OsdError, OsdFs, Table, TargetKind};

const DIR_VAR: &str = "CORAL_OSD_FULL_DIR";
const LIMIT_VAR: &str = "CORAL_OSD_LIMIT_DIR";
const T: Table = Table("rows");
const MIB: u64 = 1 << 20;

fn label() -> Label {
    Label {
        kind: TargetKind::Ost,
        fsname: "coral".into(),
        index: 0,
        uuid: "test".into(),
        mgs_nids: vec![],
    }
}

fn put(osd: &OsdFs, n: u32, len: usize) -> Result<(), OsdError> {
    let mut b = Batch::new();
    b.put(T, n.to_be_bytes().to_vec(), vec![n as u8; len]);
    osd.commit(b).wait()
}

fn del(osd: &OsdFs, n: u32) -> Result<(), OsdError> {
    let mut b = Batch::new();
    b.del(T, n.to_be_bytes().to_vec()).put(T, "note", "removed");
    osd.commit(b).wait()
}

fn object(oid: u64) -> ObjectId {
    ObjectId { seq: 0, oid }
}

/// Writes whole MiBs to new objects until the disk is full; how many went in.
fn fill_objects(osd: &OsdFs) -> u64 {
    let data = Bytes::from(vec![7; MIB as usize]);
    for n in 0..1000 {
        match osd.write(object(n), 0, std::slice::from_ref(&data)).wait() {
            Ok(()) => {}
            Err(OsdError::NoSpace) => return n,
            Err(e) => panic!("object {n}: {e}"),
        }
    }
    panic!("never full");
}

/// Runs inside the namespace; does nothing outside of it.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR_VAR) else {
        return;
    };
    let dir = Path::new(&dir).join("ost");
    OsdFs::format(&dir, &label()).unwrap();
    let (osd, _) = OsdFs::open(&dir).unwrap();

    // Objects fill it; the tables still work, and so do overwrites.
    let count = fill_objects(&osd);
    assert!(count > 40, "only {count} MiB of 96 used");
    assert_eq!(osd.space().unwrap().blocks_avail * 4096 / MIB, 0);
    for n in 0..100 {
        put(&osd, n, 1000).unwrap();
    }
    Kv::sync(&osd).wait().unwrap();
    osd.write(object(0), 5, &[Bytes::from_static(b"over")])
        .wait()
        .unwrap();
    let more = osd.write(object(0), MIB, &[Bytes::from(vec![1; 2 * MIB as usize])]);
    assert!(matches!(more.wait(), Err(OsdError::NoSpace)));
    for n in 1..count {
        assert!(
            osd.read(object(n), 0, MIB as usize)
                .wait()
                .unwrap()
                .iter()
                .all(|b| *b == 7),
            "object {n}"
        );
    }

    // Tables fill the rest; what removes still goes, and nothing is poisoned by it.
    let mut rows = 100;
    let full = loop {
        match put(&osd, rows, 8000) {
            Ok(()) => rows += 1,
            Err(e) => break e,
        }
        assert!(rows < 100_000, "never full");
    };
    assert!(matches!(full, OsdError::NoSpace), "{full}");
    for n in 0..50 {
        del(&osd, n).unwrap();
    }

    // Space comes back when objects go.
    for n in 0..count / 2 {
        assert!(osd.destroy(object(n)).wait().unwrap());
    }
    put(&osd, rows, 8000).unwrap();
    assert!(fill_objects(&osd) > 0);
    Kv::sync(&osd).wait().unwrap();
    drop(osd);

    let (osd, _) = OsdFs::open(&dir).unwrap();
    osd.verify().unwrap();
    let kept = osd.range(T, b"", None, usize::MAX).unwrap();
    assert_eq!(
        kept.len() as u32,
        rows + 1 - 50 + 1,
        "rows, less the removed, and the note"
    );
}

/// Runs where a file that grows too large is an error and no signal; does nothing outside of it.
#[test]
fn child_with_a_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Ok(dir) = std::env::var(LIMIT_VAR) else {
        return;
    };
    let dir = Path::new(&dir).join("ost");
    OsdFs::format(&dir, &label()).unwrap();
    let mut rows = 0;
    for round in 0..4 {
        let (osd, _) = OsdFs::open(&dir).unwrap();
        assert_eq!(
            osd.range(T, b"", None, usize::MAX).unwrap().len() as u32,
            rows,
            "round {round}"
        );
        for _ in 0..10 {
            put(&osd, rows, 1000).unwrap();
            rows += 1;
        }
        let journals = std::fs::read_dir(dir.join("kv"))
            .unwrap()
            .map(|e| e.unwrap().path());
        let newest = journals
            .filter(|p| p.extension().is_some_and(|e| e == "jnl"))
            .max()
            .unwrap();
        let bytes = std::fs::read(newest).unwrap();
        let end = bytes.iter().rposition(|b| *b != 0).unwrap() as u64 + 1;
        // A batch breaks off after some bytes.
        let free = getrlimit(Resource::Fsize);
        setrlimit(
            Resource::Fsize,
            Rlimit {
                current: Some(end + 30 * (round + 1)),
                ..free
            },
        )
        .unwrap();
        let mut last = Ok(());
        for _ in 0..100 {
            last = last.and_then(|()| put(&osd, rows, 1000));
            rows += u32::from(last.is_ok());
        }
        setrlimit(Resource::Fsize, free).unwrap();
        assert!(last.is_err(), "it was to fail");
        assert!(osd.trouble().is_some());
        let _ = Kv::sync(&osd).wait();
        if round % 2 == 1 {
            // it goes on by itself as well
            #[expect(clippy::disallowed_methods, reason = "a test without a runtime")]
            std::thread::sleep(std::time::Duration::from_millis(300));
            put(&osd, rows, 1000).unwrap();
            rows += 1;
            Kv::sync(&osd).wait().unwrap();
        }
    }
}

/// A part of a batch, which a write that failed has left at the end of a journal, was never promised to be there: the target
/// starts again without it.
#[test]
fn a_write_that_breaks_off_keeps_nobody_from_starting_again() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; exec \"$0\" --exact child_with_a_limit --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(LIMIT_VAR, dir.path())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_full_disk_says_so_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=96m tmpfs \"$CORAL_OSD_FULL_DIR\" && exec \"$0\" --exact child --nocapture";
    let out = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(DIR_VAR, dir.path())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if text.contains("unshare failed") || text.contains("Operation not permitted") {
        eprintln!("skipped: this machine allows no user namespaces: {text}");
        return;
    }
    assert!(out.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}
