//! What is read back from a disk: journals and records of an OSD, records of an MDT, tables of a target.

use std::sync::OnceLock;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use coral_osd::{Batch, Kv, Label, OsdFs, OsdMem, Table, TargetKind, fuzzing};
use coral_server::mdt::record::{Inode, Link, XattrValue};
use coral_server::nodemap::{Command, IdType, Nodemaps, store};
use coral_server::target::LAST_RCVD;
use coral_wire::{Fid, ObdConnectData, Wire};

use crate::mutate;

/// A target that was served: its label, and the journal of its tables.
struct Served {
    label: String,
    journal: Vec<u8>,
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let label = Label {
            kind: TargetKind::Mdt,
            fsname: "coral".into(),
            index: 0,
            uuid: "u-1".into(),
            mgs_nids: vec!["10.0.0.1@tcp".into()],
        };
        OsdFs::format(dir.path(), &label).expect("formatted");
        let (osd, _) = OsdFs::open(dir.path()).expect("opened");
        for i in 0..6u8 {
            let mut batch = Batch::new();
            for k in 0..=i {
                batch.put(Table("inode"), vec![i, k], vec![k; 20 * usize::from(i)]);
            }
            osd.commit(batch).wait().expect("committed");
        }
        osd.sync().wait().expect("synced");
        let journal = std::fs::read_dir(dir.path().join("kv"))
            .expect("tables")
            .flatten()
            .find(|e| e.path().extension().is_some_and(|x| x == "jnl"))
            .expect("a journal");
        let mut journal = std::fs::read(journal.path()).expect("read");
        let end = journal.iter().rposition(|b| *b != 0).map_or(0, |p| p + 1);
        journal.truncate(end);
        Served {
            label: std::fs::read_to_string(dir.path().join("CORAL")).expect("label"),
            journal,
        }
    })
}

/// A journal with changes: whole batches are found up to some place in it.
pub(crate) fn journal(u: &mut Unstructured<'_>) -> Result<()> {
    let whole = &served().journal;
    let changed = mutate(u, whole)?;
    let bytes = fuzzing::journal(&changed);
    assert!(bytes <= changed.len() as u64);
    // a batch that is taken is as it was written: what comes before the first change is
    let same = whole
        .iter()
        .zip(&changed)
        .take_while(|(a, b)| a == b)
        .count();
    assert!(bytes <= same as u64 || bytes <= fuzzing::journal(whole) || same == 0);
    Ok(())
}

/// Labels with changes are refused, unless the change was to blanks alone.
pub(crate) fn label(u: &mut Unstructured<'_>) -> Result<()> {
    let text = mutate(u, served().label.as_bytes())?;
    let text = String::from_utf8_lossy(&text);
    let dense = |t: &str| t.split_whitespace().collect::<String>();
    if dense(&text) == dense(&served().label) && text.is_ascii() {
        return Ok(());
    }
    fuzzing::label(&text);
    Ok(())
}

/// Small records with checksums: what decodes encodes back.
pub(crate) fn records(u: &mut Unstructured<'_>) -> Result<()> {
    let len = u.int_in_range(0..=128usize)?.min(u.len());
    let bytes = u.bytes(len)?;
    if let Some(again) = fuzzing::object_record(bytes) {
        assert_eq!(fuzzing::object_record(&again).as_deref(), Some(&again[..]));
    }
    let mut sector = [0; 512];
    u.fill_buffer(&mut sector)?;
    if u.ratio(3, 4)? {
        sector[..8].copy_from_slice(*u.choose(&[b"CORALSY1", b"CORALSY2"])?);
        sum(&mut sector);
    }
    if let Some(journals) = fuzzing::promise(&sector) {
        assert!(journals * 16 <= sector.len());
    }
    let mut note = [0; 24];
    u.fill_buffer(&mut note)?;
    sum(&mut note);
    let boot = u64::from_le_bytes(*note.first_chunk().expect("8 bytes"));
    assert_eq!(fuzzing::note(&note, boot).is_some(), boot != 0);
    Ok(())
}

/// Puts the checksum that these records have in their last 8 bytes.
fn sum(record: &mut [u8]) {
    let at = record.len() - 8;
    let sum = u64::from(crc32c::crc32c(&record[..at]));
    record[at..].copy_from_slice(&sum.to_le_bytes());
}

/// Records of an MDT with changes: what decodes encodes and decodes to the same.
pub(crate) fn inodes(u: &mut Unstructured<'_>) -> Result<()> {
    let fid = Fid {
        seq: 0x2_0000_0401,
        oid: 7,
        ver: 0,
    };
    let inode = Inode {
        mode: 0o100_644,
        lov: Bytes::from_static(&[7; 60]),
        links: vec![Link {
            parent: fid,
            name: Bytes::from_static(b"name"),
        }],
        xattrs: vec![
            (
                Bytes::from_static(b"user.a"),
                XattrValue::Inline(Bytes::from_static(b"value")),
            ),
            (Bytes::from_static(b"user.b"), XattrValue::External(70_000)),
        ],
        ..Inode::default()
    };
    let raw = Bytes::from(mutate(u, &inode.encode())?);
    if let Ok(inode) = Inode::decode(&raw) {
        assert_eq!(Inode::decode(&inode.encode()).ok(), Some(inode));
    }
    Ok(())
}

/// A table `last_rcvd` with any rows: it loads, or is refused.
pub(crate) fn last_rcvd(u: &mut Unstructured<'_>) -> Result<()> {
    let osd = OsdMem::new();
    let mut batch = Batch::new();
    let connect = ObdConnectData::default().to_bytes();
    while !u.is_empty() {
        let kind = *u.choose(b"cpritgdn\0")?;
        let uuid = *u.choose(&[&b"a"[..], b"client-1", b"", b"client-1\0"])?;
        let rest = u.int_in_range(0..=4usize)?.min(u.len());
        let key = [&[kind][..], uuid, u.bytes(rest)?].concat();
        let value = match u.ratio(1, 3)? {
            true => mutate(u, &connect)?,
            false => {
                let len = u.int_in_range(0..=40usize)?.min(u.len());
                u.bytes(len)?.to_vec()
            }
        };
        batch.put(LAST_RCVD, key, value);
    }
    if osd.commit(batch).wait().is_ok() {
        let _ = coral_server::fuzzing::last_rcvd(&osd);
    }
    Ok(())
}

/// Stored nodemaps with changes; and commands with such names and values, after each of which the maps are stored and read
/// back the same.
pub(crate) fn nodemaps(u: &mut Unstructured<'_>) -> Result<()> {
    let mut maps = Nodemaps::default();
    for _ in 0..u.int_in_range(0..=6u8)? {
        if let Ok(next) = maps.with(&command(u)?) {
            maps = next;
        }
        let text = store::encode(&maps).expect("nodemaps go into JSON");
        assert_eq!(store::decode(&text).ok().as_ref(), Some(&maps));
    }
    let text = store::encode(&maps).expect("nodemaps go into JSON");
    let text = mutate(u, &text)?;
    let _ = (store::decode(&text), store::decode_membership(&text));
    Ok(())
}

fn command(u: &mut Unstructured<'_>) -> Result<Command> {
    fn text(u: &mut Unstructured<'_>, of: &[&str]) -> Result<String> {
        let sample = *u.choose(of)?;
        match u.ratio(1, 4)? {
            true => Ok(String::from_utf8_lossy(&mutate(u, sample.as_bytes())?).into_owned()),
            false => Ok(sample.to_owned()),
        }
    }
    let name = text(u, &["a", "b", "default"])?;
    let kind = *u.choose(&[IdType::Uid, IdType::Gid])?;
    let range = &["10.0.0.[1-9]@tcp", "10.0.0.*@tcp", "*@tcp1"];
    let map = &["1:2", "100:0", "7-9:17-19"];
    Ok(match u.int_in_range(0..=8u8)? {
        0 => Command::Activate(u.arbitrary()?),
        1 | 2 => Command::Add { name },
        3 => Command::Del { name },
        4 => Command::AddRange {
            name,
            range: text(u, range)?,
        },
        5 => Command::DelRange {
            name,
            range: text(u, range)?,
        },
        6 => Command::AddIdmap {
            name,
            kind,
            map: text(u, map)?,
        },
        7 => Command::Modify {
            name,
            property: text(u, &["admin", "trusted", "squash_uid", "map_mode", "rbac"])?,
            value: text(u, &["0", "1", "99", "uid,gid", "all"])?,
        },
        _ => Command::SetFileset {
            name,
            fileset: text(u, &["", "/a", "/a/../b"])?,
        },
    })
}
