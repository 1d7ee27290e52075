//! Load: one engine under the names `ior`, `mdtest`, `mib` and `mdsrate`.
//!
//! The four read the command lines of the programs they are named after and print what those print. What is measured
//! besides, and what the originals show in a way that misleads, is in a record of our own ([`record`]).
//!
//! Ranks are threads or processes that meet ([`meet`], [`hub`], `pulse`), here, on other hosts, or under a foreign `mpirun`
//! ([`launch`]). A rank works on a [`storage::Storage`]: system calls on a path, Coral's client library, or nothing.
//! It counts with a [`meter::Meter`]; anyone may read the counts while it runs ([`progress`]).
//!
//! Invariants: an operation is counted after it was done, with the bytes it moved; a rank that fails ends the others;
//! no rank prints a figure that another rank's failure made incomplete.
//!
//! Deliberately absent: MPI-IO, HDF5 and the other interfaces of the originals. They are refused by name.

pub mod clock;
pub mod done;
pub mod ending;
pub mod failed;
mod getopt;
pub mod hub;
mod ior;
pub mod launch;
mod mdsrate;
mod mdtest;
pub mod meet;
mod memory;
pub mod meter;
mod mib;
pub(crate) mod nearest;
mod options;
pub mod out;
pub mod pattern;
pub mod progress;
pub(crate) mod pulse;
pub mod random;
pub mod ranks;
pub mod record;
pub mod storage;
pub mod text;

pub use ending::Ending;
pub use failed::Failed;
pub use launch::{END_LIMIT, Ended, Environment, Mounted, NAMES, Run, end_by_force, main, run};

/// Reads the command line of the program of this name.
fn tool(name: &str, args: &[String], out: &out::Out) -> Result<Box<dyn launch::Tool>, Failed> {
    match name {
        "ior" => ior::prepare(args, out),
        "mdtest" => mdtest::prepare(args, out),
        "mib" => mib::prepare(args, out),
        "mdsrate" => mdsrate::prepare(args, out),
        _ => Err(Failed::Refused(format!(
            "there is no generator '{name}': {}",
            launch::NAMES.join(", ")
        ))),
    }
}
