//! Offline verification of an MDT: `coral check` (Lustre's is `lustre/lfsck`).
//!
//! Reads every table once and reports what contradicts the invariants of [`super::namespace`];
//! it changes nothing. The target must not be running.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use coral_osd::{Kv, ObjectId, OsdError, Table};
use coral_wire::fid::Fid;

use super::record::{Inode, XattrValue};
use super::{stripe, table, usage};
use crate::quota::{Owner, Sums, Used};

/// Rows read at a time.
const CHUNK: usize = 4096;

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
    /// An extended attribute's value is missing, or one without an object is there.
    Xattr {
        /// The object.
        fid: Fid,
        /// The attribute.
        name: Bytes,
    },
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
                second: Some(second),
            } => {
                write!(
                    f,
                    "object {id} of OST {ost} belongs to {first} and {second}"
                )
            }
            Problem::SharedObject {
                ost,
                id,
                first,
                second: None,
            } => {
                write!(
                    f,
                    "object {id} of OST {ost} belongs to {first} and is to be destroyed"
                )
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

    /// Adds a record; they come in the order of their first ids.
    fn add(&mut self, ost: u32, id: u64, count: u32) {
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

#[derive(Default)]
struct Seen {
    ino: Inode,
    names: u32,
    subdirs: u32,
    links: BTreeSet<(Fid, Bytes)>,
    named: BTreeSet<(Fid, Bytes)>,
}

/// Calls `f` for every row of `t`.
fn each(kv: &dyn Kv, t: Table, mut f: impl FnMut(&Bytes, &Bytes)) -> Result<(), OsdError> {
    let mut from: Vec<u8> = Vec::new();
    loop {
        let rows = kv.range(t, &from, None, CHUNK)?;
        for (k, v) in &rows {
            f(k, v);
        }
        match rows.last() {
            Some((k, _)) if rows.len() == CHUNK => {
                from = k.to_vec();
                from.push(0);
            }
            _ => return Ok(()),
        }
    }
}

/// Verifies the MDT kept in `kv`.
pub fn check(kv: &dyn Kv) -> Result<Report, OsdError> {
    let mut report = Report::default();
    let mut seen = read_inodes(kv, &mut report)?;
    read_links(kv, &mut seen, &mut report)?;
    read_entries(kv, &mut seen, &mut report)?;
    let orphans = read_fids(kv, table::ORPHAN)?;
    for (fid, s) in &seen {
        check_counts(fid, s, orphans.contains(fid), &mut report);
    }
    report.never_served = is_never_served(kv)?;
    if !seen.contains_key(&Fid::ROOT) && !report.never_served {
        report.problems.push(Problem::NoRoot);
    }
    read_xattrs(kv, &seen, &mut report)?;
    read_usage(kv, &seen, &mut report)?;
    read_destroys(kv, &mut report)?;
    Ok(report)
}

/// The root directory is made by the first start.
fn is_never_served(kv: &dyn Kv) -> Result<bool, OsdError> {
    for t in [table::INODE, table::DIRENT, table::LINK] {
        if !kv.range(t, &[], None, 1)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(crate::target::stored_transno(kv)?.is_none())
}

fn read_inodes(kv: &dyn Kv, report: &mut Report) -> Result<BTreeMap<Fid, Seen>, OsdError> {
    let mut seen = BTreeMap::new();
    each(kv, table::INODE, |k, v| {
        let Some(fid) = table::fid_of_key(k) else {
            let what = "inode key is too short".to_string();
            return report.problems.push(Problem::BadRow {
                table: table::INODE.0,
                what,
            });
        };
        let ino = match Inode::decode(v) {
            Ok(ino) => ino,
            Err(e) => {
                return report.problems.push(Problem::BadRow {
                    table: table::INODE.0,
                    what: format!("{fid}: {e}"),
                });
            }
        };
        if ino.is_dir() {
            report.dirs += 1;
        } else {
            report.files += 1;
        }
        if ino.is_reg() {
            if super::dom::is_dom(&ino.lov) {
                report.data.insert(super::dom::object(&fid));
            }
            for (ost, id) in stripe::objects(&ino.lov) {
                if let Some(first) = report.objects.insert((ost, id), fid) {
                    report.problems.push(Problem::SharedObject {
                        ost,
                        id,
                        first,
                        second: Some(fid),
                    });
                }
            }
        }
        let links = ino
            .links
            .iter()
            .map(|l| (l.parent, l.name.clone()))
            .collect();
        seen.insert(
            fid,
            Seen {
                ino,
                links,
                ..Seen::default()
            },
        );
    })?;
    Ok(seen)
}

fn read_links(
    kv: &dyn Kv,
    seen: &mut BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    each(kv, table::LINK, |k, _| {
        let child = table::fid_of_key(k);
        let parent = table::fid_of_key(k.get(16..).unwrap_or(&[]));
        let link = parent.filter(|_| k.len() > 32).map(|p| (p, k.slice(32..)));
        match (child.and_then(|c| seen.get_mut(&c)), link) {
            (Some(s), Some(link)) => {
                s.links.insert(link);
            }
            _ => report.problems.push(Problem::BadRow {
                table: table::LINK.0,
                what: "link of nothing".into(),
            }),
        }
    })
}

fn read_entries(
    kv: &dyn Kv,
    seen: &mut BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    each(kv, table::DIRENT, |k, v| {
        let (Some((parent, hash, name)), Some((child, ty))) =
            (table::dirent_of_key(k), table::dirent_of_value(v))
        else {
            let what = "entry does not parse".to_string();
            return report.problems.push(Problem::BadRow {
                table: table::DIRENT.0,
                what,
            });
        };
        if !seen.get(&parent).is_some_and(|s| s.ino.is_dir()) {
            report.problems.push(Problem::NotInDirectory {
                parent,
                name: name.clone(),
            });
        }
        if hash != table::name_hash(&name) {
            report.problems.push(Problem::WrongEntry {
                parent,
                name: name.clone(),
                what: "hash",
            });
        }
        let Some(c) = seen.get_mut(&child) else {
            return report.problems.push(Problem::Dangling {
                parent,
                name,
                child,
            });
        };
        if c.ino.mode & super::record::S_IFMT != ty {
            report.problems.push(Problem::WrongEntry {
                parent,
                name: name.clone(),
                what: "type",
            });
        }
        c.names += 1;
        c.named.insert((parent, name));
        if c.ino.is_dir()
            && let Some(p) = seen.get_mut(&parent)
        {
            p.subdirs += 1;
        }
    })
}

fn read_fids(kv: &dyn Kv, t: Table) -> Result<BTreeSet<Fid>, OsdError> {
    let mut fids = BTreeSet::new();
    each(kv, t, |k, _| fids.extend(table::fid_of_key(k)))?;
    Ok(fids)
}

fn check_counts(fid: &Fid, s: &Seen, orphan: bool, report: &mut Report) {
    if s.names == 0 && *fid != Fid::ROOT {
        if orphan && s.ino.nlink == 0 {
            report.open_orphans += 1;
        } else {
            report.problems.push(Problem::OrphanInode { fid: *fid });
        }
        return;
    }
    let counted = if s.ino.is_dir() {
        2 + s.subdirs
    } else {
        s.names
    };
    if counted != s.ino.nlink || (s.ino.is_dir() && s.names > 1) {
        report.problems.push(Problem::LinkCount {
            fid: *fid,
            recorded: s.ino.nlink,
            counted,
        });
    }
    if s.links != s.named && *fid != Fid::ROOT {
        report.problems.push(Problem::Links { fid: *fid });
    }
}

fn read_xattrs(
    kv: &dyn Kv,
    seen: &BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    let mut stored = BTreeMap::new();
    each(kv, table::XATTR, |k, v| {
        if let Some(fid) = table::fid_of_key(k) {
            stored.insert((fid, k.slice(16..)), v.len() as u32);
        }
    })?;
    for (fid, s) in seen {
        for (name, value) in &s.ino.xattrs {
            if let XattrValue::External(len) = value
                && stored.remove(&(*fid, name.clone())) != Some(*len)
            {
                report.problems.push(Problem::Xattr {
                    fid: *fid,
                    name: name.clone(),
                });
            }
        }
    }
    report.problems.extend(
        stored
            .into_keys()
            .map(|(fid, name)| Problem::Xattr { fid, name }),
    );
    Ok(())
}

fn read_usage(
    kv: &dyn Kv,
    seen: &BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    // the next start will count what was never counted
    if !usage::is_kept(kv)? {
        return Ok(());
    }
    let mut counted = Sums::default();
    for s in seen.values() {
        let (owner, used) = usage::of_inode(&s.ino);
        counted.add(owner, used);
    }
    let mut recorded = Sums::default();
    each(kv, table::USAGE, |k, v| match usage::row_of(k, v) {
        Some((owner, used)) => recorded.set(owner, used),
        None => report.problems.push(Problem::BadRow {
            table: table::USAGE.0,
            what: "sum does not parse".into(),
        }),
    })?;
    let owners: BTreeSet<Owner> = counted
        .iter()
        .chain(recorded.iter())
        .map(|(owner, _)| *owner)
        .collect();
    for owner in owners {
        let (recorded, counted) = (recorded.of(&owner), counted.of(&owner));
        if recorded != counted {
            report.problems.push(Problem::Usage {
                owner,
                recorded,
                counted,
            });
        }
    }
    Ok(())
}

fn read_destroys(kv: &dyn Kv, report: &mut Report) -> Result<(), OsdError> {
    each(kv, table::DESTROY, |k, v| {
        if let Some(fid) = table::data_of_key(k) {
            report.data.insert(super::dom::object(&fid));
        }
        let Some((ost, id)) = table::destroy_of_key(k) else {
            return;
        };
        let count = table::destroy_count_of(v);
        report.destroy_pending.add(ost, id, count);
        let end = id.saturating_add(u64::from(count));
        let used = report.objects.range((ost, id)..(ost, end));
        report
            .problems
            .extend(used.map(|(&(ost, id), first)| Problem::SharedObject {
                ost,
                id,
                first: *first,
                second: None,
            }));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_osd::{Batch, OsdMem};

    #[test]
    fn what_is_to_be_destroyed_is_told_as_it_is_recorded() {
        let osd = OsdMem::new();
        let mut b = Batch::new();
        for (ost, id, count) in [
            (0, 7, 1),
            (1, 5, 3),
            (1, 7, 8000),
            (1, 9, 1),
            (2, 1, u32::MAX),
        ] {
            let value = table::destroy_count(count);
            b.put(table::DESTROY, table::destroy_key(ost, id), value);
        }
        osd.commit(b).wait().unwrap();
        let report = check(&osd).unwrap();
        let pending = report.destroy_pending;
        assert_eq!(
            pending.to_string(),
            "2 objects to destroy and what exists of 3 ranges of ids"
        );
        let is = |ost, id| pending.contains(ost, id);
        assert!(is(0, 7) && is(1, 5) && is(1, 9) && is(1, 8006) && is(2, 1 << 31));
        assert!(!is(0, 8) && !is(1, 4) && !is(1, 8007) && !is(2, 0) && !is(3, 7));
    }
}
