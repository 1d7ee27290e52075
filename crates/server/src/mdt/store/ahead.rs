//! What a change reads before it has the MDT to itself, so that it needs that for a shorter time.
//!
//! A transaction that only reads ([`Txn::ahead`]) leaves what it found to one that changes ([`Txn::after`]), which takes over what
//! nobody has changed meanwhile, and reads the rest again. So reading ahead changes nothing but how long the lock is held.
//!
//! What is read ahead is right row by row, and not as a whole: others change rows between two reads. An error that it meets is
//! nothing to answer a client with.

use coral_osd::Mark;
use coral_wire::fid::Fid;

use super::{Looked, MdtResult, Store, Txn};
use crate::mdt::record::Inode;
use crate::mdt::table::{self, fid_key};

/// The marks of the rows that a transaction has read ahead, each taken before its row was read.
#[derive(Default)]
pub(super) struct MarksRead {
    inodes: Vec<(Fid, Mark)>,
    name: Option<Mark>,
}

/// What was read ahead. What could not be read is left out.
#[derive(Default)]
pub struct Early {
    inodes: Vec<(Fid, Mark, Option<Inode>)>,
    name: Option<(Mark, Looked)>,
}

impl<'s> Txn<'s> {
    /// A transaction that only reads, by one who has yet to lock the MDT.
    pub fn ahead(store: &'s Store) -> Txn<'s> {
        let mut t = Txn::new(store);
        t.marks = Some(MarksRead::default());
        t
    }

    /// Ends a transaction that only reads: what it has read.
    pub fn into_early(mut self) -> Early {
        let marks = self.marks.take().unwrap_or_default();
        let mut ino_of = |fid: &Fid| {
            let slot = self.slots.iter_mut().find(|s| s.fid == *fid);
            slot.map(|s| std::mem::take(&mut s.ino))
        };
        let inodes = marks.inodes.into_iter();
        Early {
            inodes: inodes.map(|(fid, m)| (fid, m, ino_of(&fid))).collect(),
            name: marks.name.zip(self.looked),
        }
    }

    /// An empty transaction of one who has locked the MDT and has read this before.
    pub fn after(store: &'s Store, early: Early) -> Txn<'s> {
        let mut t = Txn::new(store);
        let mut inodes = early.inodes;
        inodes.retain(|(_, mark, _)| store.kv.is_unchanged(mark));
        t.known = inodes;
        let name = early.name.filter(|(mark, _)| store.kv.is_unchanged(mark));
        t.looked = name.map(|(_, looked)| looked);
        t
    }

    /// The inode of `fid` in the tables, which is not held yet.
    pub(super) fn read_inode(&mut self, fid: &Fid) -> MdtResult<Option<Inode>> {
        if let Some((_, _, ino)) = self.known.iter_mut().find(|(f, ..)| f == fid) {
            // it is held from here on, and not asked for again
            return Ok(ino.take());
        }
        let mark = match &self.marks {
            Some(_) => self.store.kv.mark(table::INODE, &fid_key(fid)),
            None => None,
        };
        let found = self.store.find(fid)?;
        if let (Some(marks), Some(mark)) = (&mut self.marks, mark) {
            // an inode that was missing when it was looked for before
            marks.inodes.retain(|(f, _)| f != fid);
            marks.inodes.push((*fid, mark));
        }
        Ok(found)
    }

    /// What the tables have for `name` in `parent`.
    pub(super) fn read_name(&mut self, parent: &Fid, name: &[u8]) -> MdtResult<Option<Fid>> {
        if let Some((dir, known, found)) = &self.looked
            && (dir, &known[..]) == (parent, name)
        {
            return Ok(*found);
        }
        let mark = match &self.marks {
            Some(_) => {
                let key = table::dirent_key(parent, table::name_hash(name), name);
                self.store.kv.mark(table::DIRENT, &key)
            }
            None => None,
        };
        let found = self.store.lookup(parent, name)?;
        if let Some(marks) = &mut self.marks {
            marks.name = mark;
        }
        self.looked = Some((*parent, name.into(), found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coral_osd::{Device, OsdMem};
    use proptest::prelude::*;

    use super::*;
    use crate::mdt::record::S_IFREG;

    const DIR: Fid = Fid::ROOT;

    fn fid(n: u8) -> Fid {
        Fid::new(0x2_0000_0400, u32::from(n))
    }

    /// A change that others make.
    #[derive(Clone, Debug)]
    enum Step {
        /// The inode is made, or changed.
        Put(u8),
        Remove(u8),
        Name(u8, u8),
        Unname(u8),
        /// What was committed is written.
        Write,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..4).prop_map(Step::Put),
            (0u8..4).prop_map(Step::Remove),
            (0u8..3, 0u8..4).prop_map(|(name, n)| Step::Name(name, n)),
            (0u8..3).prop_map(Step::Unname),
            Just(Step::Write),
        ]
    }

    fn take(store: &Store, step: &Step) {
        let mut t = Txn::new(store);
        match step {
            Step::Put(n) => match t.find(&fid(*n)).unwrap() {
                Some(h) => t.change(h).size += 1,
                None => {
                    let mode = S_IFREG | 0o644;
                    let ino = Inode {
                        mode,
                        nlink: 1,
                        ..Inode::default()
                    };
                    t.insert(fid(*n), ino);
                }
            },
            Step::Remove(n) => {
                if let Some(h) = t.find(&fid(*n)).unwrap() {
                    t.remove(h).unwrap();
                }
            }
            Step::Name(name, n) => t.add_entry(&DIR, &[*name], &fid(*n), S_IFREG),
            Step::Unname(name) => t.del_entry(&DIR, &[*name]),
            Step::Write => assert!(store.kv().stored_now()),
        }
        store.kv().commit(t.finish()).unwrap();
    }

    fn read(t: &mut Txn<'_>, name: u8) -> (Vec<Option<Inode>>, Option<Fid>) {
        let inodes = (0..4).map(|n| {
            let held = t.find(&fid(n)).unwrap();
            held.map(|h| t.ino(h).clone())
        });
        let inodes = inodes.collect();
        (inodes, t.lookup(&DIR, &[name]).unwrap())
    }

    proptest! {
        /// Whatever others change between the two, a transaction finds what is there when it begins.
        #[test]
        fn what_was_changed_since_is_read_again(
            before in prop::collection::vec(step(), 0..12),
            since in prop::collection::vec(step(), 0..6),
            name in 0u8..3,
        ) {
            let store = Store::open(Device::from(Arc::new(OsdMem::new())).behind()).unwrap();
            before.iter().for_each(|s| take(&store, s));
            let mut t = Txn::ahead(&store);
            read(&mut t, name);
            let early = t.into_early();
            since.iter().for_each(|s| take(&store, s));
            let found = read(&mut Txn::after(&store, early), name);
            prop_assert_eq!(found, read(&mut Txn::new(&store), name));
        }
    }

    #[test]
    fn an_inode_that_comes_to_be_while_it_is_looked_for_is_found_whole() {
        let store = Store::open(Device::from(Arc::new(OsdMem::new())).behind()).unwrap();
        let mut t = Txn::ahead(&store);
        assert!(t.find(&fid(1)).unwrap().is_none());
        take(&store, &Step::Put(1));
        assert!(t.find(&fid(1)).unwrap().is_some());
        let mut t = Txn::after(&store, t.into_early());
        assert_eq!(read(&mut t, 0), read(&mut Txn::new(&store), 0));
    }

    #[test]
    fn what_nobody_changed_is_not_read_again() {
        let store = Store::open(Device::from(Arc::new(OsdMem::new())).behind()).unwrap();
        take(&store, &Step::Put(1));
        take(&store, &Step::Name(1, 1));
        let mut t = Txn::ahead(&store);
        read(&mut t, 1);
        let early = t.into_early();
        take(&store, &Step::Put(2));
        let t = Txn::after(&store, early);
        let kept: Vec<_> = t
            .known
            .iter()
            .map(|(fid, _, ino)| (*fid, ino.is_some()))
            .collect();
        let wanted = [(fid(0), false), (fid(1), true), (fid(3), false)];
        assert_eq!((kept, t.looked.is_some()), (wanted.to_vec(), true));
    }
}
