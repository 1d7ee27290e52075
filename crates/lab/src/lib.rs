//! Coral's laboratory: what puts load on a file system, measures it and says what was seen.
//!
//! It runs beside real time and real systems, so the clock here is the machine's and ranks are threads and processes.

pub mod attribution;
mod clock;
pub mod collect;
pub mod entry;
pub mod experiment;
pub mod load;
pub mod process_stat;
pub mod report;
pub mod stats;
pub mod study;
pub mod verdict;
