//! What a check of MDTs finds, and how it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use coral_osd::ObjectId;
use coral_wire::fid::Fid;

use crate::quota::{Owner, Used};

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A row that does not parse.
    BadRow {
        /// The table.
        table: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// There is no root directory.
    NoRoot,
    /// An entry names an object that is not there.
    Dangling {
        /// The directory.
        parent: Fid,
        /// The name.
        name: Bytes,
        /// What it names.
        child: Fid,
    },
    /// Entries in something that is no directory, or is not there.
    NotInDirectory {
        /// What they are in.
        parent: Fid,
        /// One of the names.
        name: Bytes,
    },
    /// An entry whose type or position is not its object's.
    WrongEntry {
        /// The directory.
        parent: Fid,
        /// The name.
        name: Bytes,
        /// What is wrong with it.
        what: &'static str,
    },
    /// An object without a name that nobody has open.
    OrphanInode {
        /// The object.
        fid: Fid,
    },
    /// A link count that is not the number of names.
    LinkCount {
        /// The object.
        fid: Fid,
        /// As recorded.
        recorded: u32,
        /// As counted.
        counted: u32,
    },
    /// The names an object remembers are not those it has.
    Links {
        /// The object.
        fid: Fid,
    },
    /// An OST object that belongs to two files, or to a file and the list of the dead.
    SharedObject {
        /// The OST's index.
        ost: u32,
        /// The object.
        id: u64,
        /// One file.
        first: Fid,
        /// The other, or none if the object is to be destroyed.
        second: Option<Fid>,
    },
    /// What an owner is said to have in use is not what the inodes say.
    Usage {
        /// The owner.
        owner: Owner,
        /// As recorded.
        recorded: Used,
        /// As counted.
        counted: Used,
    },
    /// An object lies on an MDT that does not hold its sequence.
    WrongMdt {
        /// The object.
        fid: Fid,
        /// Index of the MDT.
        mdt: u32,
    },
    /// An object lies on two MDTs.
    Doubled {
        /// The object.
        fid: Fid,
    },
    /// Two MDTs hold one sequence, or MDT0000 does not know that an MDT holds it.
    Sequence {
        /// Index of the MDT.
        mdt: u32,
        /// The first sequence of the range.
        start: u64,
    },
    /// A sequence that is in use would be given again.
    NextSequence {
        /// Index of the MDT.
        mdt: u32,
        /// The sequence.
        next: u64,
    },
    /// A directory that has a name and is not below the root.
    Apart {
        /// The directory.
        fid: Fid,
    },
    /// A shard of a striped directory and the directory do not agree.
    Shard {
        /// The directory.
        dir: Fid,
        /// The shard.
        shard: Fid,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A name in a shard that its hash does not say, where nobody looks for it.
    WrongShard {
        /// The shard, or the striped directory itself.
        shard: Fid,
        /// The name.
        name: Bytes,
    },
    /// An extended attribute's value is missing, or one without an object is there.
    Xattr {
        /// The object.
        fid: Fid,
        /// The attribute.
        name: Bytes,
    },
}

impl Problem {
    /// What it says something about, where that may be settled by another MDT.
    pub(super) fn concerns(&self) -> Vec<Fid> {
        match self {
            Problem::Dangling { parent, child, .. } => vec![*parent, *child],
            Problem::NotInDirectory { parent, .. } | Problem::WrongEntry { parent, .. } => {
                vec![*parent]
            }
            Problem::OrphanInode { fid }
            | Problem::LinkCount { fid, .. }
            | Problem::Links { fid }
            | Problem::Apart { fid } => vec![*fid],
            Problem::Shard { dir, shard, .. } => vec![*dir, *shard],
            Problem::WrongShard { shard, .. } => vec![*shard],
            Problem::BadRow { .. }
            | Problem::NoRoot
            | Problem::SharedObject { .. }
            | Problem::Usage { .. }
            | Problem::WrongMdt { .. }
            | Problem::Doubled { .. }
            | Problem::Sequence { .. }
            | Problem::NextSequence { .. }
            | Problem::Xattr { .. } => Vec::new(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |n: &Bytes| String::from_utf8_lossy(n).into_owned();
        match self {
            Problem::BadRow { table, what } => write!(f, "table {table}: {what}"),
            Problem::NoRoot => write!(f, "there is no root directory"),
            Problem::Dangling {
                parent,
                name,
                child,
            } => {
                write!(
                    f,
                    "dangling entry {:?} in {parent}: {child} does not exist",
                    text(name)
                )
            }
            Problem::NotInDirectory { parent, name } => {
                write!(
                    f,
                    "entry {:?} in {parent}, which is no directory",
                    text(name)
                )
            }
            Problem::WrongEntry { parent, name, what } => {
                write!(f, "entry {:?} in {parent}: wrong {what}", text(name))
            }
            Problem::OrphanInode { fid } => write!(f, "orphan inode {fid}: no name leads to it"),
            Problem::LinkCount {
                fid,
                recorded,
                counted,
            } => {
                write!(
                    f,
                    "wrong link count of {fid}: {recorded} recorded, {counted} found"
                )
            }
            Problem::Links { fid } => write!(f, "{fid} remembers other names than it has"),
            Problem::SharedObject {
                ost,
                id,
                first,
                second,
            } => {
                write!(f, "object {id} of OST {ost} belongs to {first} and ")?;
                match second {
                    Some(second) => write!(f, "{second}"),
                    None => write!(f, "is to be destroyed"),
                }
            }
            Problem::Usage {
                owner: o,
                recorded: r,
                counted: c,
            } => write!(
                f,
                "wrong usage of user {}, group {}, project {}: {} inodes and {} bytes recorded, {} and {} found",
                o.uid, o.gid, o.projid, r.inodes, r.bytes, c.inodes, c.bytes
            ),
            Problem::WrongMdt { fid, mdt } => {
                write!(
                    f,
                    "{fid} lies on MDT{mdt:04x}, which does not hold its sequence"
                )
            }
            Problem::Doubled { fid } => write!(f, "{fid} lies on two MDTs"),
            Problem::Sequence { mdt, start } => write!(
                f,
                "MDT{mdt:04x} holds the sequences from {start:#x} on, which are not its own as MDT0000 has it"
            ),
            Problem::NextSequence { mdt, next } => write!(
                f,
                "MDT{mdt:04x} would give sequences again that are in use, from {next:#x} on"
            ),
            Problem::Apart { fid } => {
                write!(
                    f,
                    "directory {fid} is in a circle of directories, not below the root"
                )
            }
            Problem::Shard { dir, shard, what } => {
                write!(f, "shard {shard} of striped directory {dir}: {what}")
            }
            Problem::WrongShard { shard, name } => write!(
                f,
                "entry {:?} in shard {shard}: its hash says another shard",
                text(name)
            ),
            Problem::Xattr { fid, name } => {
                write!(f, "extended attribute {:?} of {fid} is torn", text(name))
            }
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// Formatted, but never served: there is nothing yet, not even the root directory.
    pub never_served: bool,
    /// OST objects in use: (OST index, object id) to their file.
    pub objects: BTreeMap<(u32, u64), Fid>,
    /// OST objects waiting to be destroyed.
    pub destroy_pending: ToDestroy,
    /// Objects of this MDT that hold data of files, or of files that are gone and wait to be destroyed.
    pub data: BTreeSet<ObjectId>,
    /// Objects that were open without a name when the target stopped; they go at the next start.
    pub open_orphans: u64,
    /// MDTs of the file system that were not looked at, as far as the others know them: their files may have any of the objects.
    pub missing: BTreeSet<u32>,
    /// Names of objects on MDTs that were not looked at, and objects here that have their names there.
    pub elsewhere: u64,
    /// Parts of operations over several MDTs whose end the MDTs will find out when they are served.
    pub unfinished: u64,
    /// Objects of each MDT that was looked at, by its index.
    pub items: BTreeMap<u32, u64>,
    /// Directories.
    pub dirs: u64,
    /// Everything else with an inode.
    pub files: u64,
}

/// OST objects waiting to be destroyed, as they are recorded.
#[derive(Clone, Debug, Default)]
pub struct ToDestroy {
    /// Those recorded one by one: OST index and object id.
    pub objects: BTreeSet<(u32, u64)>,
    /// Records of a range of ids: what exists of them is to be destroyed, which may be nothing.
    pub ranges: u64,
    /// What the ranges cover: OST index and first id, to the id after the last.
    covered: BTreeMap<(u32, u64), u64>,
}

impl ToDestroy {
    /// Whether the object is to be destroyed if it exists.
    pub fn contains(&self, ost: u32, id: u64) -> bool {
        let before = self.covered.range((ost, 0)..=(ost, id)).next_back();
        before.is_some_and(|(_, end)| id < *end) || self.objects.contains(&(ost, id))
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.ranges == 0
    }

    /// Adds a record; those of one OST come in the order of their first ids.
    pub(super) fn add(&mut self, ost: u32, id: u64, count: u32) {
        if count == 1 {
            self.objects.insert((ost, id));
            return;
        }
        self.ranges += 1;
        let end = id.saturating_add(u64::from(count));
        match self.covered.range_mut((ost, 0)..=(ost, id)).next_back() {
            Some((_, covered)) if id <= *covered => *covered = end.max(*covered),
            _ => drop(self.covered.insert((ost, id), end)),
        }
    }
}

impl fmt::Display for ToDestroy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects to destroy", self.objects.len())?;
        match self.ranges {
            0 => Ok(()),
            1 => write!(f, " and what exists of a range of ids"),
            n => write!(f, " and what exists of {n} ranges of ids"),
        }
    }
}
