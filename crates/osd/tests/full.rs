//! A full disk: a tmpfs of 96 MiB in a mount namespace of its own, with the test itself run inside.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use coral_osd::{Batch, Kv, Label, ObjectId, Objects, OsdError, OsdFs, Table, TargetKind};

const DIR_VAR: &str = "CORAL_OSD_FULL_DIR";
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
    osd.commit(b)
}

fn del(osd: &OsdFs, n: u32) -> Result<(), OsdError> {
    let mut b = Batch::new();
    b.del(T, n.to_be_bytes().to_vec()).put(T, "note", "removed");
    osd.commit(b)
}

fn object(oid: u64) -> ObjectId {
    ObjectId { seq: 0, oid }
}

/// Writes whole MiBs to new objects until the disk is full; how many went in.
fn fill_objects(osd: &OsdFs) -> u64 {
    let data = Bytes::from(vec![7; MIB as usize]);
    for n in 0..1000 {
        match osd.write(object(n), 0, std::slice::from_ref(&data)) {
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
    let Ok(dir) = std::env::var(DIR_VAR) else { return };
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
    Kv::sync(&osd).unwrap();
    osd.write(object(0), 5, &[Bytes::from_static(b"over")]).unwrap();
    let more = osd.write(object(0), MIB, &[Bytes::from(vec![1; 2 * MIB as usize])]);
    assert!(matches!(more, Err(OsdError::NoSpace)));
    for n in 1..count {
        assert!(osd.read(object(n), 0, MIB as usize).unwrap().iter().all(|b| *b == 7), "object {n}");
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
        assert!(osd.destroy(object(n)).unwrap());
    }
    put(&osd, rows, 8000).unwrap();
    assert!(fill_objects(&osd) > 0);
    Kv::sync(&osd).unwrap();
    drop(osd);

    let (osd, _) = OsdFs::open(&dir).unwrap();
    osd.verify().unwrap();
    let kept = osd.range(T, b"", None, usize::MAX).unwrap();
    assert_eq!(kept.len() as u32, rows + 1 - 50 + 1, "rows, less the removed, and the note");
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
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if text.contains("unshare failed") || text.contains("Operation not permitted") {
        eprintln!("skipped: this machine allows no user namespaces: {text}");
        return;
    }
    assert!(out.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}
