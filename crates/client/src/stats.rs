//! What a mount counts. Lustre's words are those of `llite.*.stats` and `osc.*` (`lustre/llite/lproc_llite.c`).

use coral_buffers::Payload;
use coral_metrics::{Counter, Desc, Histogram, Probe};

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[LliteStats::TABLE, OscStats::TABLE];

coral_metrics::group! {
    /// What a mount has done.
    pub struct LliteStats {
        /// Sizes of reads, those for the kernel's page cache included (`read_bytes`).
        pub read: Histogram = "coral_llite_read_bytes", Bytes, Stable;
        /// Sizes of writes, those of the kernel's page cache included (`write_bytes`).
        pub written: Histogram = "coral_llite_write_bytes", Bytes, Stable;
        /// Questions for an object's attributes that a lock covered: no request.
        pub attr_hits: Counter = "coral_llite_attr_cache_hits_total", Lookups, Stable;
        /// Questions for an object's attributes that went to an MDT.
        pub attr_misses: Counter = "coral_llite_attr_cache_misses_total", Lookups, Stable;
        /// Names that the cache answered, absent ones included; what the kernel remembers is not asked.
        pub name_hits: Counter = "coral_llite_name_cache_hits_total", Lookups, Stable;
        /// Names that the cache did not know.
        pub name_misses: Counter = "coral_llite_name_cache_misses_total", Lookups, Stable;
        /// Reads of pages under locks that the file had; pages that the kernel has are not asked for.
        pub page_hits: Counter = "coral_llite_page_lock_hits_total", Lookups, Experimental;
        /// Reads of pages that waited for locks on the file.
        pub page_misses: Counter = "coral_llite_page_lock_misses_total", Lookups, Experimental;
        /// Pieces of files that sequential read-ahead has asked for.
        pub stream_reads: Counter = "coral_llite_stream_reads_ahead_total", Requests, Experimental;
        /// Reads of pages that were answered from sequential read-ahead.
        pub stream_hits: Counter = "coral_llite_stream_read_hits_total", Lookups, Experimental;
        /// Reads of pages, of blocks at one distance, that were read ahead.
        pub strided_hits: Counter = "coral_llite_strided_read_hits_total", Lookups, Experimental;
        /// Blocks of those that were stored into the kernel's page cache: it need not ask for them.
        pub strided_stores: Counter = "coral_llite_strided_read_stores_total", Lookups, Experimental;
        /// Names taken away that were told as gone before the MDT heard of it.
        pub removed_late: Counter = "coral_llite_names_removed_late_total", Lookups, Experimental;
        /// Files made that were told as made before the MDT heard of it.
        pub created_late: Counter = "coral_llite_files_created_late_total", Lookups, Experimental;
        /// Objects remembered.
        pub inodes: Probe = "coral_llite_inodes", Lookups, Stable;
        /// Memory of objects and names that are remembered.
        pub inode_bytes: Probe = "coral_llite_inode_bytes", Bytes, Stable;
        /// Files whose pages the kernel may keep.
        pub covered: Probe = "coral_llite_files_with_pages", Lookups, Experimental;
    }
}

impl LliteStats {
    /// Counts a read that has ended.
    pub(crate) fn reading<E>(&self, done: Result<Payload, E>) -> Result<Payload, E> {
        done.inspect(|data| self.read.record(data.len() as u64))
    }

    /// Counts a write that has ended.
    pub(crate) fn writing<E>(&self, done: Result<usize, E>) -> Result<usize, E> {
        done.inspect(|len_bytes| self.written.record(*len_bytes as u64))
    }
}

coral_metrics::group! {
    /// What is on its way to one OST, or to an MDT that holds data.
    pub struct OscStats {
        /// Dirty data, with what is on its way (`cur_dirty_bytes`).
        pub dirty: Probe = "coral_osc_dirty_bytes", Bytes, Stable;
        /// Space the OST has promised, dirty data included (`cur_grant_bytes`).
        pub grant: Probe = "coral_osc_grant_bytes", Bytes, Stable;
        /// Written data that may not be on the OST's disk yet (`unstable_stats`).
        pub unstable: Probe = "coral_osc_unstable_bytes", Bytes, Stable;
    }
}
