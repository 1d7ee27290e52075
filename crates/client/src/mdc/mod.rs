//! MDC: one MDT as a client sees it. Packs metadata requests and reads their replies.
//!
//! Requests are what a stock MDT accepts (formats of `lustre/ptlrpc/layout.c`, packing as `lustre/mdc/mdc_lib.c`); the
//! portals are those of the kernel client. Nothing is remembered here except the FID sequence and open handles for replay.
//!
//! Lustre: `lustre/mdc/*.c`. Absent: batches of changes, HSM, quota, PCC.

mod batch;
mod device;
mod ids;
mod intent;
mod lend;
mod readdir;
mod reint;
mod seq;

pub use device::{Attrs, Changed, Mdc, Open};
pub use ids::Ids;
pub use intent::{Found, Opened};
pub use lend::{Leaving, Lent};
pub use readdir::DirChunk;
pub use reint::{CreateArgs, MigrateArgs, SetattrArgs};

pub(crate) use device::nul;
