//! Sequences of name space operations agree with a plain tree in memory, also across crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use coral_osd::{Batch, Device, OsdMem, Time};
use coral_wire::layout::{LmvMdHead, hash_type};
use coral_wire::{Errno, Fid};
use proptest::prelude::*;

use super::attr;
use super::check::check;
use super::core::format;
use super::cred::Ucred;
use super::namespace::{self, At, NewObject, RenameMode};
use super::store::{MdtResult, Store, Txn};
use super::stripe::StripeDefaults;
use super::xattr::TRUSTED_LMV;
use super::{fld, striped, table, usage};
use crate::quota::Used;

#[derive(Clone, Debug)]
enum Op {
    Create {
        dir: usize,
        name: u8,
        is_dir: bool,
    },
    Link {
        from: (usize, u8),
        to: (usize, u8),
    },
    Unlink {
        dir: usize,
        name: u8,
        rmdir: bool,
    },
    Rename {
        from: (usize, u8),
        to: (usize, u8),
        mode: RenameMode,
    },
    OpenThenUnlink {
        dir: usize,
        name: u8,
    },
    Chown {
        dir: usize,
        name: u8,
        ids: (u32, u32, u32),
    },
    CloseAll,
    Sync,
    Kill,
    PowerLoss,
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0usize..8, 0u8..5);
    let mode = prop_oneof![
        Just(RenameMode::Replace),
        Just(RenameMode::NoReplace),
        Just(RenameMode::Exchange)
    ];
    prop_oneof![
        6 => (at(), any::<bool>()).prop_map(|((dir, name), is_dir)| Op::Create { dir, name, is_dir }),
        3 => (at(), at()).prop_map(|(from, to)| Op::Link { from, to }),
        3 => (at(), any::<bool>()).prop_map(|((dir, name), rmdir)| Op::Unlink { dir, name, rmdir }),
        6 => (at(), at(), mode).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        2 => at().prop_map(|(dir, name)| Op::OpenThenUnlink { dir, name }),
        3 => (at(), (0u32..3, 0u32..2, 0u32..2)).prop_map(|((dir, name), ids)| Op::Chown { dir, name, ids }),
        1 => Just(Op::CloseAll),
        1 => Just(Op::Sync),
        1 => Just(Op::Kill),
        1 => Just(Op::PowerLoss),
    ]
}

/// The tree: directories by FID with their entries. A FID that is no directory is a file.
#[derive(Clone, Default)]
struct Model {
    dirs: BTreeMap<Fid, BTreeMap<Vec<u8>, Fid>>,
}

impl Model {
    fn above(&self, above: &Fid, fid: &Fid) -> bool {
        if above == fid {
            return true;
        }
        let parent = self.dirs.iter().find(|(_, e)| e.values().any(|f| f == fid));
        parent.is_some_and(|(p, _)| self.above(above, p))
    }

    fn lookup(&self, d: &Fid, n: &[u8]) -> Option<Fid> {
        self.dirs[d].get(n).copied()
    }

    fn put(&mut self, d: &Fid, n: &[u8], f: Fid) {
        self.dirs
            .get_mut(d)
            .expect("a directory of the model")
            .insert(n.to_vec(), f);
    }

    fn del(&mut self, d: &Fid, n: &[u8]) {
        self.dirs
            .get_mut(d)
            .expect("a directory of the model")
            .remove(n);
    }

    fn rename(
        &mut self,
        (d1, n1): (Fid, &[u8]),
        (d2, n2): (Fid, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let child = self.lookup(&d1, n1).ok_or(Errno::ENOENT)?;
        let target = self.lookup(&d2, n2);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => (),
        }
        if self.dirs.contains_key(&child) && self.above(&child, &d2) {
            return Err(Errno::EINVAL);
        }
        let Some(target) = target else {
            self.del(&d1, n1);
            self.put(&d2, n2, child);
            return Ok(());
        };
        if target == child {
            return Ok(());
        }
        if mode == RenameMode::Exchange {
            if self.dirs.contains_key(&target) && self.above(&target, &d1) {
                return Err(Errno::EINVAL);
            }
            self.put(&d1, n1, target);
            self.put(&d2, n2, child);
            return Ok(());
        }
        if self.dirs.contains_key(&target) && self.above(&target, &d1) {
            return Err(Errno::ENOTEMPTY);
        }
        match (self.dirs.contains_key(&child), self.dirs.get(&target)) {
            (true, None) => return Err(Errno::ENOTDIR),
            (false, Some(_)) => return Err(Errno::EISDIR),
            (true, Some(e)) if !e.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => (),
        }
        self.dirs.remove(&target);
        self.del(&d1, n1);
        self.put(&d2, n2, child);
        Ok(())
    }
}

struct World {
    mem: OsdMem,
    store: Store,
    model: Model,
    synced: Model,
    open: BTreeSet<Fid>,
    next: u32,
    clock: i64,
}

impl World {
    fn new() -> World {
        let mem = OsdMem::new();
        let kv = Device::from(Arc::new(mem.clone()));
        format(&kv, 0, Time::default(), &StripeDefaults::default(), (0, 0)).expect("format");
        // the client whose FIDs these are was given its sequence
        let mut given = Batch::new();
        let next = fld::FIRST.0 + 1;
        given.put(table::META, fld::KEY_SEQ, next.to_le_bytes().to_vec());
        kv.commit(given).expect("a sequence");
        kv.sync().wait().expect("sync");
        let mut model = Model::default();
        model.dirs.insert(Fid::ROOT, BTreeMap::new());
        let synced = model.clone();
        World {
            mem,
            store: Store::open(kv).expect("open"),
            model,
            synced,
            open: BTreeSet::new(),
            next: 1,
            clock: 1,
        }
    }

    fn dir(&self, i: usize) -> Fid {
        *self
            .model
            .dirs
            .keys()
            .nth(i % self.model.dirs.len())
            .expect("the root at least")
    }

    fn change(
        &mut self,
        f: impl FnOnce(&mut Txn<'_>, Time, &dyn Fn(&Fid) -> bool) -> MdtResult<()>,
    ) -> Result<(), Errno> {
        self.clock += 1;
        let open = self.open.clone();
        let mut t = Txn::new(&self.store);
        f(&mut t, Time::from_secs(self.clock), &|fid| {
            open.contains(fid)
        })
        .map_err(|e| e.errno())?;
        let batch = t.finish();
        let sums = usage::of_batch(&batch);
        self.store.kv().commit(batch).map_err(|_| Errno::EIO)?;
        self.store.usage().committed(sums);
        Ok(())
    }

    fn step(&mut self, op: &Op) {
        let name = |n: u8| vec![b'a' + n];
        let root = Ucred::root();
        match *op {
            Op::Create {
                dir,
                name: n,
                is_dir,
            } => {
                let (dir, n) = (self.dir(dir), name(n));
                let fid = Fid::new(0x2_0000_0400, self.next);
                self.next += 1;
                let mode = if is_dir { 0o040755 } else { 0o100644 };
                let new = NewObject {
                    fid,
                    mode,
                    ..NewObject::default()
                };
                let got = self.change(|t, _, _| {
                    namespace::create(
                        t,
                        &root,
                        At {
                            parent: dir,
                            name: &n,
                            layout: 0,
                        },
                        &new,
                    )
                    .map(|_| ())
                });
                match self.model.lookup(&dir, &n) {
                    Some(_) => assert_eq!(got, Err(Errno::EEXIST)),
                    None => {
                        assert_eq!(got, Ok(()));
                        self.model.put(&dir, &n, fid);
                        if is_dir {
                            self.model.dirs.insert(fid, BTreeMap::new());
                        }
                    }
                }
            }
            Op::Link { from, to } => {
                let (d1, d2) = (self.dir(from.0), self.dir(to.0));
                let Some(fid) = self.model.lookup(&d1, &name(from.1)) else {
                    return;
                };
                let n = name(to.1);
                let got = self.change(|t, time, _| {
                    namespace::link(
                        t,
                        &root,
                        &fid,
                        At {
                            parent: d2,
                            name: &n,
                            layout: 0,
                        },
                        time,
                    )
                    .map(|_| ())
                });
                if self.model.lookup(&d2, &n).is_some() {
                    assert_eq!(got, Err(Errno::EEXIST));
                } else if self.model.dirs.contains_key(&fid) {
                    assert_eq!(got, Err(Errno::EPERM));
                } else {
                    assert_eq!(got, Ok(()));
                    self.model.put(&d2, &n, fid);
                }
            }
            Op::Unlink {
                dir,
                name: n,
                rmdir,
            } => self.unlink(dir, &name(n), rmdir),
            Op::OpenThenUnlink { dir, name: n } => {
                let d = self.dir(dir);
                let Some(fid) = self.model.lookup(&d, &name(n)) else {
                    return;
                };
                self.open.insert(fid);
                self.unlink(dir, &name(n), self.model.dirs.contains_key(&fid));
            }
            Op::Rename { from, to, mode } => {
                let (d1, d2) = (self.dir(from.0), self.dir(to.0));
                let (n1, n2) = (name(from.1), name(to.1));
                let got = self.change(|t, time, is_open| {
                    let (src, dst) = (
                        At {
                            parent: d1,
                            name: &n1,
                            layout: 0,
                        },
                        At {
                            parent: d2,
                            name: &n2,
                            layout: 0,
                        },
                    );
                    namespace::rename(t, &root, src, dst, mode, is_open, time).map(|_| ())
                });
                assert_eq!(got, self.model.rename((d1, &n1), (d2, &n2), mode));
            }
            Op::Chown {
                dir,
                name: n,
                ids: (uid, gid, projid),
            } => {
                let d = self.dir(dir);
                let Some(fid) = self.model.lookup(&d, &name(n)) else {
                    return;
                };
                let set = attr::MdAttr {
                    uid: Some(uid),
                    gid: Some(gid),
                    projid: Some(projid),
                    ..Default::default()
                };
                self.change(|t, _, _| attr::setattr(t, &root, &fid, &set).map(|_| ()))
                    .expect("root may");
            }
            Op::CloseAll => self.close_all(),
            Op::Sync => {
                self.store.kv().sync().wait().expect("sync");
                self.synced = self.model.clone();
            }
            // memory is lost, what was committed is not; opens are gone
            Op::Kill => {
                self.store = Store::open(Arc::new(self.mem.clone())).expect("open");
                self.reap_orphans();
            }
            Op::PowerLoss => {
                self.mem = self.mem.power_loss();
                self.store = Store::open(Arc::new(self.mem.clone())).expect("open");
                self.model = self.synced.clone();
                self.reap_orphans();
                self.synced = self.model.clone();
                self.store.kv().sync().wait().expect("sync");
            }
        }
    }

    fn unlink(&mut self, dir: usize, n: &[u8], rmdir: bool) {
        let d = self.dir(dir);
        let root = Ucred::root();
        let got = self.change(|t, time, is_open| {
            namespace::unlink(
                t,
                &root,
                At {
                    parent: d,
                    name: n,
                    layout: 0,
                },
                rmdir,
                is_open,
                time,
            )
            .map(|_| ())
        });
        let want = match self.model.lookup(&d, n) {
            None => Err(Errno::ENOENT),
            Some(f) => match (rmdir, self.model.dirs.get(&f)) {
                (true, None) => Err(Errno::ENOTDIR),
                (false, Some(_)) => Err(Errno::EISDIR),
                (true, Some(e)) if !e.is_empty() => Err(Errno::ENOTEMPTY),
                _ => {
                    self.model.dirs.remove(&f);
                    self.model.del(&d, n);
                    Ok(())
                }
            },
        };
        assert_eq!(got, want);
    }

    fn close_all(&mut self) {
        for fid in std::mem::take(&mut self.open) {
            if self
                .store
                .find(&fid)
                .expect("read")
                .is_some_and(|i| i.nlink == 0)
            {
                self.change(|t, _, _| namespace::reap(t, &fid))
                    .expect("reap");
            }
        }
    }

    fn reap_orphans(&mut self) {
        self.open.clear();
        let rows = self
            .store
            .kv()
            .range(table::ORPHAN, b"", None, 1000)
            .expect("read");
        for (k, _) in rows {
            let fid = table::fid_of_key(&k).expect("a FID");
            self.change(|t, _, _| namespace::reap(t, &fid))
                .expect("reap");
        }
    }

    /// The store holds the model's tree and nothing else, and the verifier finds nothing.
    fn verify(&self) {
        for (d, entries) in &self.model.dirs {
            let listed = self.store.entries(d, 0, 1000).expect("read");
            assert!(
                listed.is_sorted_by_key(|e| e.hash),
                "readdir is in hash order"
            );
            let got: BTreeMap<Vec<u8>, Fid> =
                listed.iter().map(|e| (e.name.to_vec(), e.fid)).collect();
            assert_eq!(&got, entries, "{d}");
        }
        let files: BTreeSet<Fid> = self
            .model
            .dirs
            .values()
            .flat_map(|e| e.values().copied())
            .collect();
        let report = check(&**self.store.kv()).expect("check");
        assert_eq!(report.problems, Vec::new());
        let all: u64 = (0..3)
            .map(|uid| self.store.usage().of_id(0, uid).inodes)
            .sum();
        assert_eq!(
            all,
            report.dirs + report.files,
            "what is in memory is what the table says"
        );
        let known = report.dirs + report.files - report.open_orphans;
        assert_eq!(known, files.len() as u64 + 1, "no inode beyond the names");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn name_space_agrees_with_a_tree(ops in prop::collection::vec(op(), 1..60)) {
        let mut w = World::new();
        for op in &ops {
            w.step(op);
        }
        w.verify();
        w.close_all();
        w.reap_orphans();
        w.verify();
        let report = check(&**w.store.kv()).expect("check");
        prop_assert_eq!(report.open_orphans, 0);
    }
}

#[test]
fn a_name_space_kept_without_sums_gets_them() {
    let mut w = World::new();
    w.step(&Op::Create {
        dir: 0,
        name: 0,
        is_dir: true,
    });
    w.step(&Op::Create {
        dir: 0,
        name: 1,
        is_dir: false,
    });
    w.step(&Op::Chown {
        dir: 0,
        name: 1,
        ids: (2, 1, 1),
    });
    let mut forget = Batch::new();
    for t in [table::USAGE, table::META] {
        for (k, _) in w.store.kv().range(t, b"", None, 100).unwrap() {
            forget.del(t, k);
        }
    }
    w.store.kv().commit(forget).unwrap();
    assert_eq!(
        check(&**w.store.kv()).unwrap().problems,
        Vec::new(),
        "nothing is recorded, and nothing wrong"
    );
    w.store = Store::open(Arc::new(w.mem.clone())).unwrap();
    w.verify();
    let of = |kind, id| w.store.usage().of_id(kind, id);
    let file = Used {
        inodes: 1,
        bytes: 0,
    };
    assert_eq!(
        [of(0, 0), of(0, 2), of(1, 1), of(2, 1), of(2, 7)],
        [
            Used {
                inodes: 2,
                bytes: 8192
            },
            file,
            file,
            file,
            Used::default()
        ]
    );
}

#[test]
fn a_wrong_sum_is_found() {
    let mut w = World::new();
    w.step(&Op::Create {
        dir: 0,
        name: 1,
        is_dir: false,
    });
    let (key, _) = w
        .store
        .kv()
        .range(table::USAGE, b"", None, 1)
        .unwrap()
        .remove(0);
    let mut wrong = Batch::new();
    wrong.put(
        table::USAGE,
        key,
        [9u64.to_le_bytes(), 4096u64.to_le_bytes()].concat(),
    );
    w.store.kv().commit(wrong).unwrap();
    let found = check(&**w.store.kv()).unwrap().problems;
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "wrong usage of user 0, group 0, project 0: 9 inodes and 4096 bytes recorded, 2 and 4096 found"
        ]
    );
}

#[test]
fn many_links_leave_the_inode_record() {
    let mut w = World::new();
    let root = Ucred::root();
    let fid = Fid::new(0x2_0000_0400, 1);
    let new = NewObject {
        fid,
        mode: 0o100644,
        ..NewObject::default()
    };
    w.change(|t, _, _| {
        namespace::create(
            t,
            &root,
            At {
                parent: Fid::ROOT,
                name: b"a",
                layout: 0,
            },
            &new,
        )
        .map(|_| ())
    })
    .unwrap();
    for i in 0..40 {
        let name = format!("link{i}");
        w.change(|t, time, _| {
            namespace::link(
                t,
                &root,
                &fid,
                At {
                    parent: Fid::ROOT,
                    name: name.as_bytes(),
                    layout: 0,
                },
                time,
            )
            .map(|_| ())
        })
        .unwrap();
    }
    let ino = w.store.inode(&fid).unwrap();
    assert_eq!(
        (ino.nlink, ino.links.len()),
        (41, super::record::LINKS_INLINE)
    );
    assert_eq!(w.store.links(&fid, &ino, 100).unwrap().len(), 41);
    assert_eq!(check(&**w.store.kv()).unwrap().problems, Vec::new());
    for i in 0..40 {
        let name = Bytes::from(format!("link{i}"));
        w.change(|t, time, open| {
            namespace::unlink(
                t,
                &root,
                At {
                    parent: Fid::ROOT,
                    name: &name,
                    layout: 0,
                },
                false,
                open,
                time,
            )
            .map(|_| ())
        })
        .unwrap();
    }
    assert_eq!(w.store.inode(&fid).unwrap().nlink, 1);
    assert_eq!(check(&**w.store.kv()).unwrap().problems, Vec::new());
}

/// A client whose layout of a directory is an older one does not look where the name may lie still: what it makes would be a second
/// of that name.
#[test]
fn a_new_name_is_refused_to_who_knows_another_layout() {
    let mut w = World::new();
    let root = Ucred::root();
    let [shard, plain, file] = [1, 2, 3].map(|n| Fid::new(0x2_0000_0400, n));
    let object = |fid, mode| NewObject {
        fid,
        mode,
        ..NewObject::default()
    };
    let at = |parent, name: &'static [u8], layout| At {
        parent,
        name,
        layout,
    };
    let made = [
        (object(shard, 0o40755), b"shard" as &[u8]),
        (object(plain, 0o40755), b"plain"),
        (object(file, 0o100644), b"file"),
    ];
    for (new, name) in &made {
        let make = at(Fid::ROOT, name, 0);
        w.change(|t, _, _| namespace::create(t, &root, make, new).map(drop))
            .unwrap();
    }
    let head = LmvMdHead {
        stripe_count: 1,
        hash_type: hash_type::CRUSH,
        layout_version: 3,
        ..LmvMdHead::default()
    };
    w.change(|t, _, _| {
        let h = t.get(&shard)?;
        let own = striped::shard_attribute(&head, 0);
        t.put_xattr(h, TRUSTED_LMV, Some(own.encode()));
        Ok(())
    })
    .unwrap();
    for (dir, is) in [(shard, 3), (plain, 1)] {
        for said in [is + 1, is - 1, is] {
            let expected = match said == 0 || said == is {
                true => Ok(()),
                false => Err(Errno::ESTALE),
            };
            let there = |name| at(dir, name, said);
            let new = object(Fid::new(0x2_0000_0400, 4), 0o100644);
            let tried = [
                w.change(|t, _, _| namespace::create(t, &root, there(b"made"), &new).map(drop)),
                w.change(|t, time, _| {
                    namespace::link(t, &root, &file, there(b"link"), time).map(drop)
                }),
                w.change(|t, time, open| {
                    let from = at(Fid::ROOT, b"file", 0);
                    let how = RenameMode::Replace;
                    namespace::rename(t, &root, from, there(b"moved"), how, open, time).map(drop)
                }),
            ];
            for done in tried {
                assert_eq!(done, expected, "{dir} says {is}, told {said}");
            }
            if expected.is_ok() {
                for name in [b"made" as &'static [u8], b"link"] {
                    w.change(|t, time, open| {
                        namespace::unlink(t, &root, there(name), false, open, time).map(drop)
                    })
                    .unwrap();
                }
                w.change(|t, time, open| {
                    let (from, to) = (there(b"moved"), at(Fid::ROOT, b"file", 0));
                    let how = RenameMode::Replace;
                    namespace::rename(t, &root, from, to, how, open, time).map(drop)
                })
                .unwrap();
            }
        }
    }
}
