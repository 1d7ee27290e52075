//! Offline verification of MDTs: `coral check` (Lustre's is `lustre/lfsck`).
//!
//! Reads every table once and reports what contradicts the invariants of [`super::namespace`];
//! it changes nothing. The targets must not be running. All MDTs of a file system are looked at together: a name on one may stand
//! for an object on another. Parts of operations that their coordinator has decided count as made, and the others as not.
//! Where an MDT is not given, nothing is said of what it may settle: names and objects there, link counts that names there
//! are part of, and what a part of its operations changes. One that was never served counts as not given: its tables are empty,
//! and do not even say which MDT it is.

mod parts;
mod report;
mod sequences;
mod shards;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_osd::{Kv, OsdError, Table};
use coral_wire::fid::Fid;

pub(super) use self::parts::changed;
pub use self::report::{Problem, Report, ToDestroy};

use super::core;
use super::fld::{self, Fld};
use super::namespace::check_name;
use super::record::{Inode, XattrValue};
use super::{stripe, table, usage};
use crate::quota::{Owner, Sums};

/// Rows read at a time.
const CHUNK: usize = 4096;

/// One MDT that is looked at.
struct Part<'a> {
    kv: &'a dyn Kv,
    fld: Fld,
}

#[derive(Default)]
struct Seen {
    /// Which of the MDTs it lies on.
    part: usize,
    ino: Inode,
    names: u32,
    subdirs: u32,
    links: BTreeSet<(Fid, Bytes)>,
    named: BTreeSet<(Fid, Bytes)>,
}

/// Calls `f` for every row of `t`.
pub(super) fn each(
    kv: &dyn Kv,
    t: Table,
    mut f: impl FnMut(&Bytes, &Bytes),
) -> Result<(), OsdError> {
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

/// Verifies the MDT kept in `kv`, as far as it can be without others.
pub fn check(kv: &dyn Kv) -> Result<Report, OsdError> {
    check_all(&[kv])
}

/// Verifies these MDTs of one file system together.
pub fn check_all(kvs: &[&dyn Kv]) -> Result<Report, OsdError> {
    let mut report = Report::default();
    let mut parts = Vec::new();
    for kv in kvs {
        if !is_never_served(*kv)? {
            let fld = Fld::open(*kv)?;
            parts.push(Part { kv: *kv, fld });
        }
    }
    if parts.is_empty() {
        report.never_served = !kvs.is_empty();
        return Ok(report);
    }
    sequences::check(&parts, &mut report)?;
    let mut seen = BTreeMap::new();
    for part in 0..parts.len() {
        read_inodes(&parts, part, &mut seen, &mut report)?;
    }
    for p in &parts {
        read_links(p.kv, &mut seen, &mut report)?;
    }
    let mut names = Names {
        parts: &parts,
        seen: &mut seen,
        gone: BTreeSet::new(),
        unsettled: BTreeSet::new(),
        report: &mut report,
    };
    let added = names.read_parts()?;
    for part in 0..parts.len() {
        names.read_entries(part)?;
    }
    for (parent, name, child, ty) in added {
        names.entry(parent, name, child, ty);
    }
    let unsettled = std::mem::take(&mut names.unsettled);
    let mut orphans = BTreeSet::new();
    for p in &parts {
        orphans.extend(read_fids(p.kv, table::ORPHAN)?);
    }
    for (fid, s) in &seen {
        check_counts(&parts, fid, s, orphans.contains(fid), &mut report);
    }
    check_below_root(&parts, &seen, &mut report);
    shards::check(&parts, &seen, &mut report)?;
    sequences::check_next(&parts, &seen, &mut report)?;
    if !seen.contains_key(&Fid::ROOT) && is_given(&parts, &Fid::ROOT) {
        report.problems.push(Problem::NoRoot);
    }
    for (i, p) in parts.iter().enumerate() {
        read_xattrs(p.kv, i, &seen, &mut report)?;
        read_usage(p.kv, i, &seen, &mut report)?;
        read_destroys(p.kv, &mut report)?;
    }
    let is_settled = |p: &Problem| !p.concerns().iter().any(|fid| unsettled.contains(fid));
    report.problems.retain(is_settled);
    Ok(report)
}

/// Whether MDT0000, which is `first`, has given to `other` all ranges of sequences that it holds.
/// If not, they do not belong to one file system, or one of them is an older copy.
pub fn belongs(first: &dyn Kv, other: &dyn Kv) -> Result<bool, OsdError> {
    let (given, held) = (fld::stored(first)?, fld::stored(other)?);
    let is_given = |(start, range): (&u64, &(u64, u32))| given.get(start) == Some(range);
    Ok(held.iter().all(is_given))
}

/// Whether one of the MDTs that are looked at holds the object.
fn is_given(parts: &[Part<'_>], fid: &Fid) -> bool {
    parts.iter().any(|p| p.fld.is_here(fid))
}

/// Whether there is nothing in the tables of an MDT: what they have from the beginning, and the root directory, its first start
/// makes.
pub fn is_never_served(kv: &dyn Kv) -> Result<bool, OsdError> {
    if core::is_formatted(kv)? {
        return Ok(false);
    }
    for t in [
        table::INODE,
        table::DIRENT,
        table::LINK,
        table::DESTROY,
        table::FLD,
    ] {
        if !kv.range(t, &[], None, 1)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(crate::target::stored_transno(kv)?.is_none())
}

fn read_inodes(
    parts: &[Part<'_>],
    part: usize,
    seen: &mut BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    let Part { kv, fld } = &parts[part];
    report.items.insert(fld.index(), 0);
    each(*kv, table::INODE, |k, v| {
        let Some(fid) = table::fid_of_key(k).filter(|_| k.len() == 16) else {
            let what = "inode key is of another length".to_string();
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
        if !fld.is_here(&fid) {
            let mdt = fld.index();
            report.problems.push(Problem::WrongMdt { fid, mdt });
        }
        *report.items.entry(fld.index()).or_default() += 1;
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
        let found = Seen {
            part,
            ino,
            links,
            ..Seen::default()
        };
        if seen.insert(fid, found).is_some() {
            report.problems.push(Problem::Doubled { fid });
        }
    })
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

/// Entries, and the objects they name.
struct Names<'a> {
    parts: &'a [Part<'a>],
    seen: &'a mut BTreeMap<Fid, Seen>,
    /// Entries that a decided operation takes away.
    gone: BTreeSet<(Fid, Bytes)>,
    /// What parts of operations change of which the coordinator is not given: nobody knows whether they are made.
    unsettled: BTreeSet<Fid>,
    report: &'a mut Report,
}

/// An entry: its directory, name, what it names, and the type.
type Entry = (Fid, Bytes, Fid, u32);

impl Names<'_> {
    fn read_entries(&mut self, part: usize) -> Result<(), OsdError> {
        let kv = self.parts[part].kv;
        each(kv, table::DIRENT, |k, v| {
            let (Some((parent, hash, name)), Some((child, ty))) =
                (table::dirent_of_key(k), table::dirent_of_value(v))
            else {
                let what = "entry does not parse".to_string();
                return self.report.problems.push(Problem::BadRow {
                    table: table::DIRENT.0,
                    what,
                });
            };
            if self.gone.contains(&(parent, name.clone())) {
                return;
            }
            let lies_there = self.seen.get(&parent).is_none_or(|s| s.part == part);
            for (what, wrong) in [
                ("hash", hash != table::name_hash(&name)),
                ("name", check_name(&name).is_err()),
                ("MDT", !lies_there),
            ] {
                if wrong {
                    let name = name.clone();
                    let problem = Problem::WrongEntry { parent, name, what };
                    self.report.problems.push(problem);
                }
            }
            self.entry(parent, name, child, ty);
        })
    }

    fn entry(&mut self, parent: Fid, name: Bytes, child: Fid, ty: u32) {
        let problems = &mut self.report.problems;
        if !self.seen.get(&parent).is_some_and(|s| s.ino.is_dir()) {
            problems.push(Problem::NotInDirectory {
                parent,
                name: name.clone(),
            });
        }
        let is_dir = match self.seen.get_mut(&child) {
            None if is_given(self.parts, &child) => {
                return problems.push(Problem::Dangling {
                    parent,
                    name,
                    child,
                });
            }
            None => {
                self.report.elsewhere += 1;
                ty == super::record::S_IFDIR
            }
            Some(c) => {
                if c.ino.mode & super::record::S_IFMT != ty {
                    problems.push(Problem::WrongEntry {
                        parent,
                        name: name.clone(),
                        what: "type",
                    });
                }
                c.names += 1;
                c.named.insert((parent, name));
                c.ino.is_dir()
            }
        };
        if is_dir && let Some(p) = self.seen.get_mut(&parent) {
            p.subdirs += 1;
        }
    }
}

fn read_fids(kv: &dyn Kv, t: Table) -> Result<BTreeSet<Fid>, OsdError> {
    let mut fids = BTreeSet::new();
    each(kv, t, |k, _| fids.extend(table::fid_of_key(k)))?;
    Ok(fids)
}

/// Every directory with a name is below the root, as far as the MDTs above it are given.
fn check_below_root(parts: &[Part<'_>], seen: &BTreeMap<Fid, Seen>, report: &mut Report) {
    let mut sound = BTreeSet::from([Fid::ROOT]);
    for (fid, s) in seen.iter().filter(|(_, s)| s.ino.is_dir()) {
        let (mut way, mut at) = (BTreeSet::new(), *fid);
        let in_circle = loop {
            if sound.contains(&at) {
                break false;
            }
            if !way.insert(at) {
                break true;
            }
            // what is there without a name, or not at all, is told of by itself
            match seen.get(&at).and_then(|s| s.named.first()) {
                Some((parent, _)) if is_given(parts, parent) => at = *parent,
                _ => break false,
            }
        };
        match in_circle {
            true if !s.named.is_empty() => report.problems.push(Problem::Apart { fid: *fid }),
            true => {}
            false => sound.extend(way),
        }
    }
    if seen.get(&Fid::ROOT).is_some_and(|s| s.names > 0) {
        report.problems.push(Problem::Links { fid: Fid::ROOT });
    }
}

fn check_counts(parts: &[Part<'_>], fid: &Fid, s: &Seen, orphan: bool, report: &mut Report) {
    let named_elsewhere = s.links.iter().any(|(parent, _)| !is_given(parts, parent));
    if named_elsewhere && *fid != Fid::ROOT {
        report.elsewhere += 1;
        return;
    }
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
    part: usize,
    seen: &BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    let mut stored = BTreeMap::new();
    each(kv, table::XATTR, |k, v| {
        if let Some(fid) = table::fid_of_key(k) {
            stored.insert((fid, k.slice(16..)), v.len() as u32);
        }
    })?;
    for (fid, s) in seen.iter().filter(|(_, s)| s.part == part) {
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
    part: usize,
    seen: &BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    // the next start will count what was never counted
    if !usage::is_kept(kv)? {
        return Ok(());
    }
    let mut counted = Sums::default();
    for s in seen.values().filter(|s| s.part == part) {
        let (owner, used) = usage::of_inode(&s.ino);
        counted.add(owner, used);
    }
    let mut recorded = Sums::default();
    each(kv, table::USAGE, |k, v| {
        match usage::row_of(k, v).filter(|_| k.len() == 12) {
            Some((owner, used)) => recorded.set(owner, used),
            None => report.problems.push(Problem::BadRow {
                table: table::USAGE.0,
                what: "sum does not parse".into(),
            }),
        }
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
