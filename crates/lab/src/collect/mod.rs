//! Collectors: what a machine, its Lustre and Coral's nodes did while something ran.
//!
//! One thread reads counters at a fixed interval into series of bounded length, and says what it could not read.

mod agent;
mod host;
mod lustre;
mod process;
mod sadf;
mod sampler;
mod series;
mod text;

pub(crate) use agent::Agent;
pub use agent::{answer, of_machine};
pub(crate) use host::Cores;
pub use host::Host;
pub use lustre::{CLAIMED, KernelLustre};
pub use process::Processes;
pub use sadf::read_sadf;
pub(crate) use sampler::Node;
pub use sampler::{FromStatus, MAX_SERIES_COUNT, Reading, Sampler, Samples, Source};
pub use series::{Bin, MAX_BINS, Series};
pub use text::{
    Histogram, StatsLine, arcstats, histograms, job_stats, lnet_stats, stats_file, yaml_number,
};
