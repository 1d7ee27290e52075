//! Model tests: sequences of operations on each backend agree with plain maps and byte vectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coral_osd::{
    Batch, Device, FallocMode, Kv, Label, ObjectId, Objects, Osd, OsdFs, OsdMem, SeekWhence,
    SetAttr, Table, TargetKind, Time,
};
use proptest::prelude::*;

const PAGE: u64 = 4096;

fn label() -> Label {
    Label {
        kind: TargetKind::Ost,
        fsname: "coral".into(),
        index: 0,
        uuid: "test".into(),
        mgs_nids: vec![],
    }
}

fn fs_osd() -> (tempfile::TempDir, OsdFs) {
    let dir = tempfile::tempdir().unwrap();
    OsdFs::format(dir.path(), &label()).unwrap();
    let osd = OsdFs::open(dir.path()).unwrap().0;
    (dir, osd)
}

#[derive(Clone, Debug)]
enum ObjOp {
    Write {
        off: u64,
        lens: Vec<usize>,
        fill: u8,
    },
    Truncate(u64),
    Punch(u64, u64),
    Falloc(FallocMode, u64, u64),
    Destroy,
    Times(i64, i64),
    Owner(u32),
}

fn obj_op() -> impl Strategy<Value = ObjOp> {
    let off = || prop_oneof![0..40_000u64, (0..10u64).prop_map(|p| p * PAGE)];
    let mode = prop_oneof![
        Just(FallocMode::Allocate),
        Just(FallocMode::AllocateKeepSize),
        Just(FallocMode::PunchHole),
        Just(FallocMode::ZeroRange),
        Just(FallocMode::ZeroRangeKeepSize),
    ];
    prop_oneof![
        5 => (off(), prop::collection::vec(prop_oneof![1 => Just(0), 8 => 0..9000usize], 0..4), 1..=255u8)
            .prop_map(|(off, lens, fill)| ObjOp::Write { off, lens, fill }),
        1 => off().prop_map(ObjOp::Truncate),
        1 => (off(), off()).prop_map(|(a, b)| ObjOp::Punch(a.min(b), a.max(b))),
        2 => (mode, off(), 1..20_000u64).prop_map(|(m, o, l)| ObjOp::Falloc(m, o, o + l)),
        1 => Just(ObjOp::Destroy),
        1 => (0..1000i64, 0..1000i64).prop_map(|(m, c)| ObjOp::Times(m, c)),
        1 => (1..100u32).prop_map(ObjOp::Owner),
    ]
}

#[derive(Default)]
struct Model {
    exists: bool,
    data: Vec<u8>,
    times: Option<(i64, i64)>,
    uid: u32,
}

impl Model {
    fn grow(&mut self, end: u64) {
        self.exists = true;
        if self.data.len() < end as usize {
            self.data.resize(end as usize, 0);
        }
    }

    fn zero(&mut self, start: u64, end: u64) {
        let end = (end as usize).min(self.data.len());
        if (start as usize) < end {
            self.data[start as usize..end].fill(0);
        }
    }

    fn apply(&mut self, op: &ObjOp) {
        match op {
            ObjOp::Write { off, lens, fill } => {
                let len: usize = lens.iter().sum();
                self.exists = true;
                if len > 0 {
                    self.times = None;
                    self.grow(off + len as u64);
                    self.data[*off as usize..*off as usize + len].fill(*fill);
                }
            }
            ObjOp::Truncate(size) => {
                self.exists = true;
                self.times = None;
                self.data.resize(*size as usize, 0);
            }
            ObjOp::Punch(a, b) | ObjOp::Falloc(FallocMode::PunchHole, a, b) => {
                self.times = None;
                self.zero(*a, *b);
            }
            ObjOp::Falloc(mode, a, b) => {
                self.times = None;
                self.exists = true;
                if matches!(mode, FallocMode::ZeroRange | FallocMode::ZeroRangeKeepSize) {
                    self.zero(*a, *b);
                }
                if matches!(mode, FallocMode::Allocate | FallocMode::ZeroRange) {
                    self.grow(*b);
                }
            }
            ObjOp::Destroy => *self = Model::default(),
            ObjOp::Times(m, c) => {
                self.exists = true;
                self.times = Some((*m, *c));
            }
            ObjOp::Owner(uid) => {
                self.exists = true;
                self.uid = *uid;
            }
        }
    }
}

fn run_op(osd: &dyn Osd, id: ObjectId, op: &ObjOp) {
    match op {
        ObjOp::Write { off, lens, fill } => {
            let bufs: Vec<_> = lens.iter().map(|l| Bytes::from(vec![*fill; *l])).collect();
            osd.write(id, *off, &bufs).wait().unwrap();
        }
        ObjOp::Truncate(size) => osd.truncate(id, *size).wait().unwrap(),
        ObjOp::Punch(a, b) => osd.punch(id, *a, *b).wait().unwrap(),
        ObjOp::Falloc(mode, a, b) => osd.fallocate(id, *mode, *a, *b).wait().unwrap(),
        ObjOp::Destroy => {
            osd.destroy(id).wait().unwrap();
        }
        ObjOp::Times(m, c) => {
            let set = SetAttr {
                mtime: Some(Time::from_secs(*m)),
                ctime: Some(Time::from_secs(*c)),
                ..Default::default()
            };
            osd.set_attr(id, &set).unwrap();
        }
        ObjOp::Owner(uid) => {
            let set = SetAttr {
                uid: Some(*uid),
                ..Default::default()
            };
            osd.set_attr(id, &set).unwrap();
        }
    }
}

fn compare(osd: &dyn Osd, id: ObjectId, m: &Model) {
    let attr = osd.attr(id).unwrap();
    assert_eq!(attr.is_some(), m.exists);
    let a = attr.unwrap_or_default();
    assert_eq!(a.size, m.data.len() as u64);
    assert_eq!(a.uid, m.uid);
    if let Some((mtime, ctime)) = m.times {
        assert_eq!((a.mtime.secs, a.ctime.secs), (mtime, ctime));
    }
    assert_eq!(&osd.read(id, 0, 1 << 20).wait().unwrap()[..], &m.data[..]);
    let middle = m.data.len() / 3;
    let end = (middle + 5000).min(m.data.len());
    assert_eq!(
        &osd.read(id, middle as u64, 5000).wait().unwrap()[..],
        &m.data[middle..end]
    );
    check_seek(osd, id, &m.data);
}

/// Walking data and holes covers the object, and holes hold nothing but zeros.
fn check_seek(osd: &dyn Osd, id: ObjectId, data: &[u8]) {
    let size = data.len() as u64;
    let mut at = 0;
    while at < size {
        let hole = osd
            .seek(id, at, SeekWhence::Hole)
            .unwrap()
            .expect("within the size");
        assert!(at <= hole && hole <= size);
        let next = osd
            .seek(id, hole, SeekWhence::Data)
            .unwrap()
            .unwrap_or(size);
        assert!(
            data[hole as usize..next as usize].iter().all(|b| *b == 0),
            "{hole}..{next}"
        );
        assert!(next > at, "no progress at {at}");
        at = next;
    }
    assert_eq!(osd.seek(id, size, SeekWhence::Hole).unwrap(), None);
    assert_eq!(osd.seek(id, size, SeekWhence::Data).unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn objects_agree_with_bytes(ops in prop::collection::vec((0..2u64, obj_op()), 1..40)) {
        let (_dir, fs) = fs_osd();
        let mem = OsdMem::new();
        let mut models: BTreeMap<u64, Model> = BTreeMap::new();
        for (oid, op) in &ops {
            let id = ObjectId { seq: 0, oid: *oid };
            let model = models.entry(*oid).or_default();
            model.apply(op);
            for osd in [&fs as &dyn Osd, &mem] {
                run_op(osd, id, op);
                compare(osd, id, model);
            }
        }
        for osd in [&fs as &dyn Osd, &mem] {
            let (found, all) = std::sync::mpsc::channel();
            osd.iterate(Box::new(move |id, attr| found.send((id.oid, attr.size)).is_ok()))
                .wait()
                .unwrap();
            let all: Vec<_> = all.into_iter().collect();
            let seen: BTreeMap<_, _> = all.iter().copied().collect();
            prop_assert_eq!(seen.len(), all.len(), "each is visited once");
            let want: BTreeMap<_, _> = models.iter().filter(|(_, m)| m.exists)
                .map(|(oid, m)| (*oid, m.data.len() as u64)).collect();
            prop_assert_eq!(seen, want);
        }
    }

    #[test]
    fn tables_agree_with_a_map(
        batches in prop::collection::vec(
            prop::collection::vec(("[ab]{1,3}", prop::option::of(0..100u8)), 1..5), 1..20),
        from in "[abc]{0,2}", to in "[abc]{0,2}", limit in 0..10usize,
    ) {
        const T: [Table; 2] = [Table("one"), Table("two")];
        let (dir, fs) = fs_osd();
        let mem = OsdMem::new();
        let mut model: [BTreeMap<Vec<u8>, u8>; 2] = Default::default();
        for changes in &batches {
            let mut b = Batch::new();
            for (i, (key, val)) in changes.iter().enumerate() {
                match val {
                    Some(v) => {
                        b.put(T[i % 2], key.clone(), vec![*v]);
                        model[i % 2].insert(key.clone().into_bytes(), *v);
                    }
                    None => {
                        b.del(T[i % 2], key.clone());
                        model[i % 2].remove(key.as_bytes());
                    }
                }
            }
            fs.commit(b.clone()).wait().unwrap();
            mem.commit(b).wait().unwrap();
        }
        let check = |osd: &dyn Kv| {
            for (t, rows) in T.iter().zip(&model) {
                let got = osd.range(*t, from.as_bytes(), Some(to.as_bytes()), limit).unwrap();
                let want: Vec<_> = rows.iter()
                    .filter(|(k, _)| &k[..] >= from.as_bytes() && &k[..] < to.as_bytes())
                    .take(limit).map(|(k, v)| (k.clone(), vec![*v])).collect();
                let got: Vec<_> = got.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
                assert_eq!(got, want);
                assert_eq!(osd.range(*t, b"", None, 1000).unwrap().len(), rows.len());
                let last = osd.last(*t, from.as_bytes()).unwrap().map(|(k, _)| k.to_vec());
                let want = rows.keys().rev().find(|k| k.starts_with(from.as_bytes())).cloned();
                assert_eq!(last, want);
                for key in rows.keys() {
                    assert_eq!(osd.get(*t, key).unwrap().unwrap()[0], rows[key]);
                }
            }
        };
        check(&mem);
        check(&fs);
        drop(fs);
        check(&OsdFs::open(dir.path()).unwrap().0);
    }
}

/// Batches that are seen before they are written, as an MDT commits them: several written as one, whose rows are put and removed in
/// turn, the store opened again between. What is seen is what a map says, at once and later.
#[test]
fn what_is_written_as_one_agrees_with_a_map() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let (dir, osd) = fs_osd();
    let mut device = Device::from(Arc::new(osd)).behind();
    let tables = [Table("a"), Table("b")];
    let mut model: BTreeMap<(Table, u8), Bytes> = BTreeMap::new();
    for step in 0..3_000_u32 {
        let mut b = Batch::new();
        for _ in 0..rng.random_range(1..5) {
            let (t, key) = (tables[rng.random_range(0..2)], rng.random_range(0..20_u8));
            if rng.random_bool(0.3) {
                b.del(t, vec![key]);
                model.remove(&(t, key));
            } else {
                let val = Bytes::from(step.to_be_bytes().to_vec());
                b.put(t, vec![key], val.clone());
                model.insert((t, key), val);
            }
        }
        device.commit(b).unwrap();
        if rng.random_bool(0.2) {
            assert!(device.stored_now());
        }
        if rng.random_bool(0.005) {
            assert!(device.stored_now());
            drop(device);
            let osd = OsdFs::open(dir.path()).unwrap().0;
            device = Device::from(Arc::new(osd)).behind();
        }
        let (t, key) = (tables[rng.random_range(0..2)], rng.random_range(0..20_u8));
        let found = device.get(t, &[key]).unwrap();
        assert_eq!(found.as_ref(), model.get(&(t, key)), "step {step}");
    }
    assert!(device.stored_now());
    for t in tables {
        let rows = device.range(t, &[], None, usize::MAX).unwrap();
        let of_it = model.iter().filter(|((table, _), _)| *table == t);
        let wanted = of_it.map(|((_, key), val)| (Bytes::from(vec![*key]), val.clone()));
        assert_eq!(rows, wanted.collect::<Vec<_>>());
    }
}

#[test]
fn a_missing_object_reads_as_empty() {
    let (_dir, fs) = fs_osd();
    for osd in [&fs as &dyn Osd, &OsdMem::new()] {
        let id = ObjectId { seq: 5, oid: 99 };
        assert!(osd.read(id, 10, 100).wait().unwrap().is_empty());
        assert_eq!(osd.attr(id).unwrap(), None);
        assert_eq!(osd.seek(id, 0, SeekWhence::Data).unwrap(), None);
        osd.punch(id, 0, u64::MAX).wait().unwrap();
        osd.sync_object(id).wait().unwrap();
        assert!(!osd.destroy(id).wait().unwrap());
        assert_eq!(osd.attr(id).unwrap(), None, "nothing of this creates it");
        assert_eq!(
            osd.write(id, u64::MAX, &[Bytes::from_static(b"x")])
                .wait()
                .unwrap_err()
                .errno(),
            27
        );
        assert_eq!(
            osd.fallocate(id, FallocMode::Allocate, 5, 5)
                .wait()
                .unwrap_err()
                .errno(),
            22
        );
    }
}

#[test]
fn objects_survive_a_reopen_with_all_attributes() {
    let (dir, fs) = fs_osd();
    let id = ObjectId {
        seq: 0x2_0000_0401,
        oid: 0xabcdef,
    };
    let set = SetAttr {
        mtime: Some(Time {
            secs: 100,
            nsecs: 7,
        }),
        atime: Some(Time { secs: -5, nsecs: 0 }),
        ctime: Some(Time {
            secs: 3_000_000_000,
            nsecs: 9,
        }),
        uid: Some(1000),
        gid: Some(1001),
        projid: Some(7),
        parent: Some((0x2_0000_0400, 5, 1)),
        if_unowned: true,
    };
    fs.write(id, 5 * PAGE, &[Bytes::from_static(b"tail")])
        .wait()
        .unwrap();
    fs.set_attr(id, &set).unwrap();
    let second = SetAttr {
        uid: Some(9),
        parent: Some((9, 9, 9)),
        ..set
    };
    let before = fs.set_attr(id, &second).unwrap();
    assert_eq!(fs.attr(id).unwrap(), Some(before), "the first owner stays");
    fs.sync_object(id).wait().unwrap();
    drop(fs);
    let (fs, _) = OsdFs::open(dir.path()).unwrap();
    let attr = fs.attr(id).unwrap().unwrap();
    assert_eq!(attr, before);
    assert_eq!(attr.ctime, set.ctime.unwrap());
    assert_eq!(
        (attr.uid, attr.gid, attr.projid, attr.owned),
        (1000, 1001, 7, true)
    );
    assert_eq!(attr.parent, set.parent.unwrap());
    assert_eq!(fs.seek(id, 0, SeekWhence::Data).unwrap(), Some(5 * PAGE));
    assert_eq!(fs.verify().unwrap().1, 1);
}
