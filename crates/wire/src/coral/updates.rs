//! What MDTs of Coral say to each other to change something on several of them at once: OUT_UPDATE between two Coral ends.
//!
//! One MDT coordinates an operation. It locks what the operation needs ([`Request::Lock`]) and sees how that looks, has each
//! other MDT keep its part on disk ([`Request::Prepare`]), decides by a transaction of its own, and tells the others to apply
//! their parts ([`Request::Commit`]). What was not decided when its coordinator ended is undone.
//!
//! Lustre sends other updates under this opcode (`lustre/include/lustre_update.h`). All numbers are little-endian.

mod parts;

use bytes::Bytes;

use self::parts::{Reader, Writer, bad};
use crate::DecodeError;
use crate::fid::Fid;

/// An operation over several MDTs. Never given twice by its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// Index of the MDT that coordinates it.
    pub coordinator: u32,
    /// Which start of that MDT.
    pub instance: u32,
    /// Number within that start.
    pub number: u32,
}

/// Bits of an object that are locked, for nobody else to hold or change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockNeed {
    /// The object.
    pub fid: Fid,
    /// Bits of an inode lock ([`crate::ldlm::Ibits`]).
    pub bits: u64,
}

/// A name to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The directory.
    pub dir: Fid,
    /// The name.
    pub name: Bytes,
}

/// A question or an order to another MDT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Locks objects until the operation ends, and says how they look then ([`Seen`]).
    Lock {
        /// The operation.
        id: OpId,
        /// What is locked, in this order.
        needs: Vec<LockNeed>,
        /// Looked up when all is locked.
        looks: Vec<Look>,
        /// So many FIDs for new objects there are wanted.
        fids: u32,
        /// The coordinator has been answered a Lock of this operation: without the part from then it cannot go on (ESTALE).
        again: bool,
    },
    /// Keeps these changes on disk until it is known whether they are to be made.
    Prepare {
        /// The operation.
        id: OpId,
        /// The changes.
        updates: Vec<Update>,
    },
    /// It is decided: the changes are made, and are on disk when this is answered.
    Commit(OpId),
    /// The operation will not be.
    Abort(OpId),
    /// To the coordinator: 0 when it is decided, ENOENT when it will not be, EAGAIN while neither is known.
    Ask(OpId),
    /// Which directories are above this one, itself first, as far as they lie there, and the first that does not ([`Seen::fids`]).
    Above(Fid),
    /// How this object looks, without a lock: to know what to lock ([`Seen::objects`]).
    Peek(Fid),
    /// Which names this shard of a directory that is split or merged has yet to give to others, from a hash on
    /// ([`Seen::strays`]).
    Strays {
        /// The shard.
        shard: Fid,
        /// From this hash on.
        from: u64,
    },
}

/// Times of an object that [`Update::Follow`] sets beside the time of its change.
pub mod follow {
    /// The time of the last access.
    pub const ATIME: u8 = 1;
    /// The time of the last change of contents.
    pub const MTIME: u8 = 2;
}

/// A time as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Seconds since 1970.
    pub secs: i64,
    /// Nanoseconds.
    pub nsecs: u32,
}

/// One change of an MDT's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Gives `child` the name `name` in `dir`.
    AddEntry {
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// What it names.
        child: Fid,
        /// Type bits of its mode.
        file_type: u32,
    },
    /// Takes the name away.
    DelEntry {
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
    },
    /// A directory got or lost subdirectories; its mtime and ctime follow.
    Touch {
        /// The directory.
        dir: Fid,
        /// So many more subdirectories.
        nlink: i32,
        /// When.
        time: Stamp,
    },
    /// An object got or lost names; with the last it goes.
    Object {
        /// The object.
        fid: Fid,
        /// So many more names.
        nlink: i32,
        /// When.
        time: Stamp,
        /// Names it lost: directory and name.
        dropped: Vec<Look>,
        /// Names it got.
        added: Vec<Look>,
    },
    /// A new object, as an MDT stores it.
    Insert {
        /// Its FID.
        fid: Fid,
        /// Its record.
        record: Bytes,
    },
    /// The object goes.
    Remove {
        /// Its FID.
        fid: Fid,
    },
    /// A shard takes on the owner, mode, layouts and extended attributes of its striped directory.
    Follow {
        /// The shard.
        fid: Fid,
        /// Which times it takes on, too ([`follow`]).
        times: u8,
        /// The directory's record, with all of its extended attributes in it.
        record: Bytes,
    },
    /// A file moves into another project, of which its OSTs are to be told.
    Project {
        /// The file.
        fid: Fid,
        /// The project.
        projid: u32,
    },
    /// A directory gets another place, its only one: it becomes a shard, or another shard.
    Place {
        /// The directory.
        fid: Fid,
        /// The striped directory it is a shard of.
        dir: Fid,
        /// Its name there.
        name: Bytes,
        /// The attribute that says which shard it is.
        lmv: Bytes,
    },
}

/// How locked objects look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Of each need: its record as stored, with its ACLs and defaults in it, if it is there; and whether it has entries.
    pub objects: Vec<(Option<Bytes>, bool)>,
    /// Of each look: what has the name, and its type bits.
    pub names: Vec<Option<(Fid, u32)>>,
    /// New FIDs, or those that were asked for.
    pub fids: Vec<Fid>,
    /// Names that belong to other shards, and the type bits of what they stand for.
    pub strays: Vec<(Bytes, u32)>,
    /// The hash from which on names were not looked at; 0: all were.
    pub next: u64,
}

impl OpId {
    /// As 12 big-endian bytes: the key of a table, in the order of the numbers.
    pub fn key(&self) -> [u8; 12] {
        let mut k = [0; 12];
        k[..4].copy_from_slice(&self.coordinator.to_be_bytes());
        k[4..8].copy_from_slice(&self.instance.to_be_bytes());
        k[8..].copy_from_slice(&self.number.to_be_bytes());
        k
    }

    /// The operation of such a key.
    pub fn of_key(key: &[u8]) -> Option<OpId> {
        let word = |at: usize| Some(u32::from_be_bytes(key.get(at..at + 4)?.try_into().ok()?));
        (key.len() == 12).then_some(OpId {
            coordinator: word(0)?,
            instance: word(4)?,
            number: word(8)?,
        })
    }
}

impl Look {
    fn get(r: &mut Reader<'_>) -> Result<Look, DecodeError> {
        Ok(Look {
            dir: r.fid()?,
            name: r.bytes()?,
        })
    }
}

impl Update {
    fn put(&self, w: &mut Writer) {
        match self {
            Update::AddEntry {
                dir,
                name,
                child,
                file_type,
            } => {
                w.u8(1);
                w.fid(dir);
                w.bytes(name);
                w.fid(child);
                w.u32(*file_type);
            }
            Update::DelEntry { dir, name } => {
                w.u8(2);
                w.fid(dir);
                w.bytes(name);
            }
            Update::Touch { dir, nlink, time } => {
                w.u8(3);
                w.fid(dir);
                w.u32(*nlink as u32);
                w.u64(time.secs as u64);
                w.u32(time.nsecs);
            }
            Update::Object {
                fid,
                nlink,
                time,
                dropped,
                added,
            } => {
                w.u8(6);
                w.fid(fid);
                w.u32(*nlink as u32);
                w.u64(time.secs as u64);
                w.u32(time.nsecs);
                for names in [dropped, added] {
                    w.list(names, |w, l| {
                        w.fid(&l.dir);
                        w.bytes(&l.name);
                    });
                }
            }
            Update::Insert { fid, record } => {
                w.u8(4);
                w.fid(fid);
                w.bytes(record);
            }
            Update::Remove { fid } => {
                w.u8(5);
                w.fid(fid);
            }
            Update::Follow { fid, times, record } => {
                w.u8(7);
                w.fid(fid);
                w.u8(*times);
                w.bytes(record);
            }
            Update::Project { fid, projid } => {
                w.u8(8);
                w.fid(fid);
                w.u32(*projid);
            }
            Update::Place {
                fid,
                dir,
                name,
                lmv,
            } => {
                w.u8(9);
                w.fid(fid);
                w.fid(dir);
                w.bytes(name);
                w.bytes(lmv);
            }
        }
    }

    fn get(r: &mut Reader<'_>) -> Result<Update, DecodeError> {
        Ok(match r.u8()? {
            1 => Update::AddEntry {
                dir: r.fid()?,
                name: r.bytes()?,
                child: r.fid()?,
                file_type: r.u32()?,
            },
            2 => Update::DelEntry {
                dir: r.fid()?,
                name: r.bytes()?,
            },
            3 => Update::Touch {
                dir: r.fid()?,
                nlink: r.u32()? as i32,
                time: Stamp {
                    secs: r.u64()? as i64,
                    nsecs: r.u32()?,
                },
            },
            4 => Update::Insert {
                fid: r.fid()?,
                record: r.bytes()?,
            },
            5 => Update::Remove { fid: r.fid()? },
            6 => Update::Object {
                fid: r.fid()?,
                nlink: r.u32()? as i32,
                time: Stamp {
                    secs: r.u64()? as i64,
                    nsecs: r.u32()?,
                },
                dropped: r.list(Look::get)?,
                added: r.list(Look::get)?,
            },
            7 => Update::Follow {
                fid: r.fid()?,
                times: r.u8()?,
                record: r.bytes()?,
            },
            8 => Update::Project {
                fid: r.fid()?,
                projid: r.u32()?,
            },
            9 => Update::Place {
                fid: r.fid()?,
                dir: r.fid()?,
                name: r.bytes()?,
                lmv: r.bytes()?,
            },
            _ => return Err(bad()),
        })
    }

    /// The objects it changes.
    pub fn fid(&self) -> Fid {
        match self {
            Update::AddEntry { dir, .. }
            | Update::DelEntry { dir, .. }
            | Update::Touch { dir, .. } => *dir,
            Update::Object { fid, .. }
            | Update::Insert { fid, .. }
            | Update::Remove { fid }
            | Update::Follow { fid, .. }
            | Update::Project { fid, .. }
            | Update::Place { fid, .. } => *fid,
        }
    }

    /// A list of changes as it is stored.
    pub fn encode_all(updates: &[Update]) -> Bytes {
        let mut w = Writer::default();
        w.list(updates, |w, u| u.put(w));
        w.0.into()
    }

    /// That list.
    pub fn decode_all(raw: &Bytes) -> Result<Vec<Update>, DecodeError> {
        let mut r = Reader { raw, at: 0 };
        let updates = r.list(Update::get)?;
        r.end(updates)
    }
}

impl Request {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        match self {
            Request::Lock {
                id,
                needs,
                looks,
                fids,
                again,
            } => {
                w.u8(1);
                w.id(id);
                w.list(needs, |w, n| {
                    w.fid(&n.fid);
                    w.u64(n.bits);
                });
                w.list(looks, |w, l| {
                    w.fid(&l.dir);
                    w.bytes(&l.name);
                });
                w.u32(*fids);
                w.u8(u8::from(*again));
            }
            Request::Prepare { id, updates } => {
                w.u8(2);
                w.id(id);
                w.list(updates, |w, u| u.put(w));
            }
            Request::Commit(id) => {
                w.u8(3);
                w.id(id);
            }
            Request::Abort(id) => {
                w.u8(4);
                w.id(id);
            }
            Request::Ask(id) => {
                w.u8(5);
                w.id(id);
            }
            Request::Above(fid) => {
                w.u8(6);
                w.fid(fid);
            }
            Request::Peek(fid) => {
                w.u8(7);
                w.fid(fid);
            }
            Request::Strays { shard, from } => {
                w.u8(8);
                w.fid(shard);
                w.u64(*from);
            }
        }
        w.0.into()
    }

    /// From bytes.
    pub fn decode(raw: &Bytes) -> Result<Request, DecodeError> {
        let mut r = Reader { raw, at: 0 };
        let request = match r.u8()? {
            1 => Request::Lock {
                id: r.id()?,
                needs: r.list(|r| {
                    Ok(LockNeed {
                        fid: r.fid()?,
                        bits: r.u64()?,
                    })
                })?,
                looks: r.list(Look::get)?,
                fids: r.u32()?,
                again: r.u8()? != 0,
            },
            2 => Request::Prepare {
                id: r.id()?,
                updates: r.list(Update::get)?,
            },
            3 => Request::Commit(r.id()?),
            4 => Request::Abort(r.id()?),
            5 => Request::Ask(r.id()?),
            6 => Request::Above(r.fid()?),
            7 => Request::Peek(r.fid()?),
            8 => Request::Strays {
                shard: r.fid()?,
                from: r.u64()?,
            },
            _ => return Err(bad()),
        };
        r.end(request)
    }
}

impl Seen {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        w.list(&self.objects, |w, (record, empty)| {
            w.u8(u8::from(record.is_some()) | u8::from(*empty) << 1);
            w.bytes(record.as_deref().unwrap_or(&[]));
        });
        w.list(&self.names, |w, found| {
            let (fid, ty) = found.unwrap_or_default();
            w.u8(u8::from(found.is_some()));
            w.fid(&fid);
            w.u32(ty);
        });
        w.list(&self.fids, |w, f| w.fid(f));
        w.list(&self.strays, |w, (name, ty)| {
            w.bytes(name);
            w.u32(*ty);
        });
        w.u64(self.next);
        w.0.into()
    }

    /// From bytes.
    pub fn decode(raw: &Bytes) -> Result<Seen, DecodeError> {
        let mut r = Reader { raw, at: 0 };
        let seen = Seen {
            objects: r.list(|r| {
                let (flags, record) = (r.u8()?, r.bytes()?);
                Ok(((flags & 1 != 0).then_some(record), flags & 2 != 0))
            })?,
            names: r.list(|r| {
                let (there, fid, ty) = (r.u8()?, r.fid()?, r.u32()?);
                Ok((there != 0).then_some((fid, ty)))
            })?,
            fids: r.list(Reader::fid)?,
            strays: r.list(|r| Ok((r.bytes()?, r.u32()?)))?,
            next: r.u64()?,
        };
        r.end(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: OpId = OpId {
        coordinator: 1,
        instance: 7,
        number: 0x1_0002,
    };

    fn updates() -> Vec<Update> {
        let (dir, fid) = (Fid::ROOT, Fid::new(0x2_4000_0400, 3));
        let name = Bytes::from_static(b"a name");
        let time = Stamp {
            secs: -5,
            nsecs: 999_999_999,
        };
        vec![
            Update::AddEntry {
                dir,
                name: name.clone(),
                child: fid,
                file_type: 0o040000,
            },
            Update::DelEntry { dir, name },
            Update::Touch {
                dir,
                nlink: -1,
                time,
            },
            Update::Insert {
                fid,
                record: Bytes::from_static(&[2, 0, 1]),
            },
            Update::Remove { fid },
            Update::Follow {
                fid,
                times: follow::ATIME | follow::MTIME,
                record: Bytes::from_static(&[2, 0, 1]),
            },
            Update::Project { fid, projid: 7 },
            Update::Place {
                fid,
                dir,
                name: Bytes::from_static(b"shard"),
                lmv: Bytes::from_static(&[1, 2]),
            },
            Update::Object {
                fid,
                nlink: -1,
                time,
                dropped: vec![Look {
                    dir,
                    name: Bytes::from_static(b"old"),
                }],
                added: Vec::new(),
            },
        ]
    }

    fn requests() -> Vec<Request> {
        let needs = vec![LockNeed {
            fid: Fid::ROOT,
            bits: 3,
        }];
        let looks = vec![Look {
            dir: Fid::ROOT,
            name: Bytes::from_static(b"x"),
        }];
        vec![
            Request::Lock {
                id: ID,
                needs,
                looks,
                fids: 2,
                again: true,
            },
            Request::Prepare {
                id: ID,
                updates: updates(),
            },
            Request::Commit(ID),
            Request::Abort(ID),
            Request::Ask(ID),
            Request::Above(Fid::ROOT),
            Request::Peek(Fid::ROOT),
            Request::Strays {
                shard: Fid::ROOT,
                from: 7,
            },
        ]
    }

    #[test]
    fn messages_survive_the_way_and_cut_ones_are_refused() {
        for rq in requests() {
            let raw = rq.encode();
            assert_eq!(Request::decode(&raw), Ok(rq.clone()));
            for cut in 0..raw.len() {
                assert!(
                    Request::decode(&raw.slice(..cut)).is_err(),
                    "{rq:?} cut at {cut}"
                );
            }
            assert!(Request::decode(&[&raw[..], &[0]].concat().into()).is_err());
        }
        let seen = Seen {
            objects: vec![(Some(Bytes::from_static(b"record")), true), (None, false)],
            names: vec![None, Some((Fid::ROOT, 0o040000))],
            fids: vec![Fid::new(9, 9)],
            strays: vec![(Bytes::from_static(b"x"), 0o100000)],
            next: 5,
        };
        let raw = seen.encode();
        assert_eq!(Seen::decode(&raw), Ok(seen));
        assert!((0..raw.len()).all(|cut| Seen::decode(&raw.slice(..cut)).is_err()));
        let all = Update::encode_all(&updates());
        assert_eq!(Update::decode_all(&all), Ok(updates()));
    }

    #[test]
    fn a_list_that_claims_to_be_long_takes_no_memory() {
        let mut raw = Request::Prepare {
            id: ID,
            updates: Vec::new(),
        }
        .encode()
        .to_vec();
        raw[13..17].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Request::decode(&raw.into()).is_err());
    }

    #[test]
    fn keys_are_in_the_order_of_the_numbers() {
        assert_eq!(OpId::of_key(&ID.key()), Some(ID));
        let next = OpId {
            number: ID.number + 1,
            ..ID
        };
        assert!(ID.key() < next.key());
        assert_eq!(OpId::of_key(&ID.key()[1..]), None);
    }
}
