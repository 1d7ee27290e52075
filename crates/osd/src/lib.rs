//! Object storage devices: how Coral's bytes reach a disk.
//!
//! An OSD is two things side by side, as in Lustre (`lustre/osd-ldiskfs`, `lustre/osd-zfs`):
//! * [`Kv`]: ordered tables of small records with atomic batches. One Lustre transaction is one
//!   [`Batch`], so a crash leaves a prefix of the transactions and never half of one.
//! * [`Objects`]: the data objects of an OST, addressed by [`ObjectId`], created at first use.
//!
//! Three backends: [`OsdFs`] (fjall and sparse files in a local directory), [`OsdMem`] (ordered
//! maps, with faults on demand, for tests), and [`OsdSim`] (the same behind a disk that takes time and loses power).
//!
//! Invariants:
//! * [`Kv::commit`] is answered only when the batch survives `kill -9`; [`Kv::sync`] and
//!   [`Objects::sync_object`] only when what was acknowledged before survives power loss.
//! * What may wait for a disk is submitted by the call and answered by its [`Io`], at once where nothing has to be waited for.
//!   A server commits through a [`Device`], which awaits late answers in order.
//! * An object that was never written is empty, not an error.
//!
//! Deliberately absent: transactions that span [`Kv`] and [`Objects`], quotas.

mod batch;
mod behind;
mod device;
mod error;
mod fs;
mod io;
mod label;
mod marks;
mod mem;
mod objects;
mod room;
mod sim;
mod stats;

pub use batch::{Batch, Op, Table};
pub use device::{Device, Storing, SyncAhead};
pub use error::{OpenError, OsdError};
#[doc(hidden)]
pub use fs::fuzzing;
pub use fs::{Disk, Fresh, Inspection, OsdFs, OsdFsOptions};
pub use io::Io;
pub use label::{FORMAT_VERSION, Label, TargetKind};
pub use marks::Mark;
pub use mem::{Fault, OsdMem};
pub use objects::{FallocMode, ObjAttr, ObjectId, Objects, SeekWhence, SetAttr, Time, Visit};
pub use room::Room;
pub use sim::{DiskModel, OsdSim};
pub use stats::{DeviceStats, METRICS};

use std::sync::Arc;

use bytes::Bytes;

/// A batch in the form of a backend ([`Kv::ready`]).
pub type Ready = Box<dyn std::any::Any + Send>;

/// A batch that others see already, though it has yet to be written.
pub struct Seen {
    /// The batch.
    pub batch: Arc<Batch>,
    /// What [`Kv::ready`] made of it, if that was asked.
    pub ready: Option<Ready>,
}

/// Ordered tables of small records. Keys order as byte strings.
pub trait Kv: Send + Sync {
    /// The value of `key` in `t`, if there is one.
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError>;

    /// Records with `from <= key < to` in key order, at most `limit`; `to = None` is no bound.
    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError>;

    /// The record with the greatest key that begins with `prefix`.
    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError>;

    /// Applies `b` whole or not at all, after every batch committed before it. On return it is visible, unless it failed at once;
    /// when the answer is there it survives `kill -9` of the process (not yet power loss: see [`Kv::sync`]), and so does every
    /// batch committed before it.
    fn commit(&self, b: Batch) -> Io<()>;

    /// Whether `b` may be seen before it is written, because it will be: there is room for it, and more is put by for
    /// [`Kv::commit_seen`]. It may be asked of batches that are not committed then.
    fn may_wait(&self, _b: &Batch) -> bool {
        false
    }

    /// What [`Kv::commit_seen`] needs of `b` in a form of its own, so that this is made while another batch is committed.
    fn ready(&self, _b: &Batch) -> Option<Ready> {
        None
    }

    /// [`Kv::commit`] of batches that were seen before they are written, all as one and each after those before it. They must not
    /// fail for want of room: they may have what is put by.
    fn commit_seen(&self, seen: Vec<Seen>) -> Io<()> {
        self.commit(batch::merged(&seen))
    }

    /// Makes every batch committed before this call survive power loss. May take milliseconds.
    fn sync(&self) -> Io<()>;

    /// Notes a number that only grows, behind the batches committed before. Costs next to nothing, survives `kill -9`, and is forgotten
    /// when the machine stops: for the transno of what is in the page cache alone.
    fn note(&self, number: u64);

    /// The number noted last, if the machine has been up since. (0 was never noted.)
    fn noted(&self) -> u64;

    /// Space under the tables.
    fn statfs(&self) -> Result<StatFs, OsdError>;
}

/// A whole device: tables and objects.
pub trait Osd: Kv + Objects {}
impl<T: Kv + Objects> Osd for T {}

/// Space of the file system under an OSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of a block in bytes; all block counts are in this unit.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks not used.
    pub blocks_free: u64,
    /// Blocks an ordinary writer may still use (free less the reserve).
    pub blocks_avail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes not used.
    pub files_free: u64,
}
