//! OSC: one OST as a client sees it. Turns object operations into RPCs.
//!
//! An MDT that holds data of files (data on MDT) is one too (`Osc::of_mdt`): the same requests on other portals, the object
//! is the file's own FID, its lock the DOM inode bit, and size and times come from a glimpse (`lustre/mdc/mdc_dev.c`).
//!
//! Objects are asked under server-side locks (`SRVLOCK`) unless the caller holds an extent lock and says so.
//! Data is never copied here: a write hands slices of the caller's payload to the bulk, a read returns what came.
//!
//! Changes are kept until the OST has them on disk, and replayed should it have lost them (`kept.rs`).
//!
//! Lustre: `lustre/osc/osc_request.c`. Absent: T10 checksums.

mod brw;
mod device;
mod kept;
mod object;

pub use brw::SHORT_IO_BYTES;
pub use device::{OBJECT_EOF, Osc};
pub use kept::COPY_BELOW;
pub use object::{
    BackedBy, IN_FLIGHT, IoLock, ObjectAttr, ObjectData, ObjectRef, ObjectTimes, Owner, WriteAttr,
};

pub(crate) use device::STATFS_LIMIT;
