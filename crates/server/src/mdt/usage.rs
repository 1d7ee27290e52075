//! Inodes, and the space of directories, by owner: the table `usage`, changed in the batch of every change of an inode.
//!
//! Data on the MDT are counted by the service that holds them ([`super::dom`]).
//!
//! Invariant: what is in memory is what the table says, which is what the inodes say ([`count`]); `coral check` verifies it.

use bytes::Bytes;
use coral_osd::{Batch, Device, Kv, Op, OsdError};
use parking_lot::Mutex;

use super::record::Inode;
use super::store::MdtResult;
use super::table;
use crate::quota::{self, Owner, Sums, Used, owner_of};

pub use crate::quota::row_of;

/// Bytes of a key of the table.
const KEY_BYTES: usize = 12;
/// Bytes of a block that inodes are in.
const BLOCK_BYTES: u64 = 512;
/// Rows read at a time.
const CHUNK: usize = 4096;
/// In the table `meta`: the table `usage` is kept.
const KEY_KEPT: &[u8] = b"usage";

/// Whose an inode is, and what it counts for.
pub fn of_inode(ino: &Inode) -> (Owner, Used) {
    let owner = Owner {
        uid: ino.uid,
        gid: ino.gid,
        projid: ino.projid,
    };
    let bytes = if ino.is_dir() {
        ino.blocks * BLOCK_BYTES
    } else {
        0
    };
    (owner, Used { inodes: 1, bytes })
}

/// The sums of an MDT.
#[derive(Default)]
pub struct MdtUsage(Mutex<Sums>);

impl MdtUsage {
    /// Reads the table, or makes it, of a name space that was kept without, or when one of its rows is torn.
    pub fn open(kv: &Device) -> MdtResult<MdtUsage> {
        let rows = kv.range(table::USAGE, &[], None, usize::MAX)?;
        if is_kept(&**kv)?
            && let Some(sums) = read(&rows)
        {
            return Ok(MdtUsage(Mutex::new(sums)));
        }
        let sums = count(&**kv)?;
        let mut b = Batch::new();
        for (key, _) in rows {
            b.del(table::USAGE, key);
        }
        for (owner, used) in sums.iter() {
            quota::put_row(&mut b, table::USAGE, owner, *used);
        }
        b.put(table::META, KEY_KEPT, Bytes::new());
        kv.commit(b)?;
        Ok(MdtUsage(Mutex::new(sums)))
    }

    /// Adds to `batch` what an inode that was `was` and is `now` makes of the sums. Called for all inodes of a transaction.
    pub fn change(
        &self,
        batch: &mut Batch,
        inodes: impl Iterator<Item = (Option<(Owner, Used)>, Option<(Owner, Used)>)>,
    ) {
        let mut sums: Vec<(Owner, Used)> = Vec::new();
        let mut sum = |(owner, used): (Owner, Used), f: fn(Used, Used) -> Used| match sums
            .iter_mut()
            .find(|(o, _)| *o == owner)
        {
            Some((_, sum)) => *sum = f(*sum, used),
            None => sums.push((owner, f(self.0.lock().of(&owner), used))),
        };
        for (was, now) in inodes.filter(|(was, now)| was != now) {
            was.into_iter().for_each(|w| sum(w, Used::minus));
            now.into_iter().for_each(|n| sum(n, Used::plus));
        }
        for (owner, used) in sums {
            quota::put_row(batch, table::USAGE, &owner, used);
        }
    }

    /// These sums were committed.
    pub fn committed(&self, sums: Vec<(Owner, Used)>) {
        let mut mine = self.0.lock();
        sums.into_iter()
            .for_each(|(owner, used)| mine.set(owner, used));
    }

    /// What an id has in use.
    pub fn of_id(&self, kind: u32, id: u32) -> Used {
        self.0.lock().of_id(kind, id)
    }
}

/// The sums that `batch` sets.
pub fn of_batch(batch: &Batch) -> Vec<(Owner, Used)> {
    let row = |op: &Op| match op {
        Op::Put {
            table: table::USAGE,
            key,
            val,
        } => row_of(key, val),
        Op::Del {
            table: table::USAGE,
            key,
        } => Some((owner_of(key)?, Used::default())),
        _ => None,
    };
    batch.ops().iter().filter_map(row).collect()
}

/// What the rows say; `None` when one of them is torn.
fn read(rows: &[(Bytes, Bytes)]) -> Option<Sums> {
    let mut sums = Sums::default();
    for (k, v) in rows {
        let (owner, used) = row_of(k, v).filter(|_| k.len() == KEY_BYTES)?;
        sums.set(owner, used);
    }
    Some(sums)
}

/// Whether the table is kept.
pub fn is_kept(kv: &dyn Kv) -> Result<bool, OsdError> {
    Ok(kv.get(table::META, KEY_KEPT)?.is_some())
}

/// What the inodes say. One that does not parse counts for nobody: it does not keep the others from being served.
fn count(kv: &dyn Kv) -> MdtResult<Sums> {
    let mut sums = Sums::default();
    let mut from = Vec::new();
    loop {
        let rows = kv.range(table::INODE, &from, None, CHUNK)?;
        for (k, v) in &rows {
            match Inode::decode(v) {
                Ok(ino) => {
                    let (owner, used) = of_inode(&ino);
                    sums.add(owner, used);
                }
                Err(error) => {
                    let fid = table::fid_of_key(k).unwrap_or_default();
                    tracing::error!(%fid, %error, "counting inodes; see `coral check`");
                }
            }
        }
        match rows.last() {
            Some((k, _)) if rows.len() == CHUNK => from = [k, &[0][..]].concat(),
            _ => return Ok(sums),
        }
    }
}
