//! Mending MDTs that are not served: `coral check --repair` (Lustre's is `lustre/lfsck`).
//!
//! All rows are read into an [`Image`], which is mended in memory, step by step; then what has changed is written.
//! What is believed: inode records, then the names in directories, then what objects remember of their names. Everything else
//! follows from these: link counts, `..`, positions of names, sums.
//!
//! | step | mends |
//! | --- | --- |
//! | `sequences` | which MDT holds which sequence, and which comes next |
//! | `homes` | objects on the wrong MDT or on two; records that do not parse |
//! | `parts` | operations over several MDTs: made or dropped, as at a start |
//! | `shards` | striped directories |
//! | `names` | names that lead nowhere or are where nobody looks; objects without a name |
//! | `counts` | link counts, remembered names, extended attributes, sums |
//!
//! Invariants:
//! * Nothing is destroyed that is not written elsewhere: a row that goes and cannot be made anew is kept in the table `aside`.
//! * What is put is on disk on all MDTs before anything goes. So what an interrupted repair leaves is a name space with everything
//!   in it, which a second one mends.
//! * A client replays nothing into a name space that was mended: the MDTs forget their clients first.
//!
//! Absent: data of OST objects. Two files with one object are told apart, and one of them loses its layout.

mod counts;
mod homes;
mod image;
mod names;
mod parts;
mod sequences;
mod shards;

use std::fmt;

use coral_osd::{Batch, Kv, OsdError, Table, Time};

use self::image::Image;
use super::{core, orphans, table};
use crate::target;

/// Most changes of one batch.
const BATCH_MAX: usize = 4096;

/// Something that was mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// Index of the MDT.
    pub mdt: u32,
    /// What was wrong, and what was done.
    pub what: String,
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MDT{:04x}: {}", self.mdt, self.what)
    }
}

/// Why nothing was mended.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// An MDT of the file system is not given.
    #[error("MDT{0:04x} belongs to this file system and was not given: a repair needs all MDTs")]
    Missing(u32),
    /// Two of them say that they are the same.
    #[error("two of the MDTs are MDT{0:04x}")]
    Twice(u32),
    /// Written by a newer Coral.
    #[error("the tables of MDT{mdt:04x} have format {found}, this program knows {known}", known = core::FORMAT)]
    Newer {
        /// Index of the MDT.
        mdt: u32,
        /// The format found.
        found: u32,
    },
    /// An MDT has no sequence left for a new directory.
    #[error("MDT{0:04x} has no sequence for a new directory")]
    NoSequence(u32),
    /// The device failed.
    #[error(transparent)]
    Osd(#[from] OsdError),
}

type Result<T> = std::result::Result<T, RepairError>;

/// Mends these MDTs, which are all MDTs of one file system and are not served; what was done. New directories have the time
/// `now`. Nothing is changed where nothing is wrong.
pub fn repair(kvs: &[&dyn Kv], now: Time) -> Result<Vec<Mended>> {
    let mut image = Image::open(kvs, now)?;
    let copies = homes::read(&mut image)?;
    sequences::mend(&mut image, &copies)?;
    homes::mend(&mut image, copies)?;
    image.read_names()?;
    parts::mend(&mut image)?;
    image.make_lost_directories()?;
    shards::mend(&mut image)?;
    counts::part_shared(&mut image)?;
    names::mend(&mut image)?;
    counts::mend(&mut image)?;
    write(image)
}

/// Puts come before removals, and each is in the order of its list: what is named is there before its name.
const PUTS: [Table; 13] = [
    table::META,
    table::FLD,
    table::ASIDE,
    table::INODE,
    table::XATTR,
    table::DIRENT,
    table::LINK,
    table::ORPHAN,
    table::OWNER,
    table::DESTROY,
    table::USAGE,
    table::PREPARED,
    table::DECIDED,
];

/// Removals in rounds, each on disk before the next: an object goes after its names, a part of an operation when it is made, and the
/// operation when its parts are gone.
const REMOVALS: [&[Table]; 4] = [
    &[table::DIRENT, table::LINK, table::FLD],
    &[
        table::XATTR,
        table::INODE,
        table::ORPHAN,
        table::OWNER,
        table::DESTROY,
        table::USAGE,
    ],
    &[table::PREPARED],
    &[table::DECIDED, table::META, table::ASIDE],
];

fn write(mut image: Image<'_>) -> Result<Vec<Mended>> {
    image.encode_changed();
    if image.is_unchanged() {
        return Ok(image.mended);
    }
    forget_clients(&mut image)?;
    let changes = std::mem::take(&mut image.staged);
    let late = std::mem::take(&mut image.late);
    for t in PUTS {
        commit_round(&image, &changes, &[t], true)?;
    }
    sync(&image)?;
    for round in REMOVALS {
        commit_round(&image, &changes, round, false)?;
        sync(&image)?;
    }
    commit_round(&image, &late, &[table::INODE], true)?;
    sync(&image)?;
    Ok(image.mended)
}

/// No client replays anything, and no start looks for objects of files whose records are kept aside.
fn forget_clients(image: &mut Image<'_>) -> Result<()> {
    for i in 0..image.parts.len() {
        let kv = image.parts[i].kv;
        let (mut batch, clients) = target::forget_clients(kv)?;
        orphans::put_unsearched(kv, &mut batch)?;
        kv.commit(batch).wait()?;
        if clients > 0 {
            image.say(i, format!("{clients} clients are forgotten: they replay nothing, and what they had open is closed"));
        }
    }
    sync(image)
}

fn sync(image: &Image<'_>) -> Result<()> {
    for p in &image.parts {
        p.kv.sync().wait()?;
    }
    Ok(())
}

/// Commits the changes of these tables on every MDT: those that put rows, or those that remove some.
fn commit_round(
    image: &Image<'_>,
    changes: &[image::Staged],
    tables: &[Table],
    puts: bool,
) -> Result<()> {
    for (p, staged) in image.parts.iter().zip(changes) {
        let of_round = |((t, _), v): &(&(Table, bytes::Bytes), &Option<bytes::Bytes>)| {
            tables.contains(t) && v.is_some() == puts
        };
        let mut batch = Batch::new();
        for ((t, key), value) in staged.iter().filter(of_round) {
            match value {
                Some(value) => batch.put(*t, key.clone(), value.clone()),
                None => batch.del(*t, key.clone()),
            };
            if batch.len() == BATCH_MAX {
                p.kv.commit(std::mem::take(&mut batch)).wait()?;
            }
        }
        if !batch.is_empty() {
            p.kv.commit(batch).wait()?;
        }
    }
    Ok(())
}
