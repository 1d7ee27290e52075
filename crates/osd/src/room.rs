//! Space that writers are promised.
//!
//! A client that keeps back what it wrote relies on room for it: its grant. What is promised is nobody else's, whoever asks: another
//! target on the same disk, the tables, and as far as it can be had, another program. Lustre counts grants against free space too
//! (`lustre/target/tgt_grant.c`), but owns its disk.

use crate::{Io, OsdError};

/// Promises of space on a device, all in bytes.
pub trait Room: Send + Sync {
    /// What may still be promised.
    fn left(&self) -> Result<u64, OsdError>;

    /// Promises up to `most`; how much.
    fn promise(&self, most: u64) -> Result<u64, OsdError>;

    /// So much of what was promised has been written, or is wanted no more.
    fn unpromise(&self, bytes: u64);

    /// Room for a write that nobody was promised, until it is stored ([`Room::unclaim`]); [`OsdError::NoSpace`] when the rest is
    /// promised.
    fn claim(&self, bytes: u64) -> Result<(), OsdError>;

    /// That write is stored, or has failed.
    fn unclaim(&self, bytes: u64);

    /// Where free space lags behind what is written: waits until it does not. False where there is nothing to wait for. A promised
    /// write that found no room may find some then; storage waits so for none by itself.
    fn settle(&self) -> Io<bool> {
        Io::ready(Ok(false))
    }
}
