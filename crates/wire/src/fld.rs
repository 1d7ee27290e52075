//! Sequence ranges: who owns which FIDs (`lustre_idl.h`: `lu_seq_range`; `lustre/fid`, `lustre/fld`).

use crate::raw::wire_struct;

wire_struct! {
    /// `lu_seq_range`: sequences `start..end` and the target that holds them.
    #[derive(Eq)]
    pub struct LuSeqRange : 24 {
        0 start: u64,
        /// Exclusive.
        8 end: u64,
        /// Index of the target.
        16 index: u32,
        /// [`RANGE_MDT`] or [`RANGE_OST`].
        20 flags: u32,
    }
}

/// Range of an MDT.
pub const RANGE_MDT: u32 = 0;
/// Range of an OST.
pub const RANGE_OST: u32 = 1;
/// Either.
pub const RANGE_ANY: u32 = 3;

/// SEQ_QUERY: a super-sequence (servers).
pub const SEQ_ALLOC_SUPER: u32 = 0;
/// SEQ_QUERY: a sequence for a client.
pub const SEQ_ALLOC_META: u32 = 1;

/// FLD_QUERY: look a sequence up.
pub const FLD_LOOKUP: u32 = 2;
