//! Experiments: a TOML file in, one append-only run directory out.
//!
//! ```text
//! spec (the file, checked) -> plan (points and steps in order) -> runner (one step after the other) -> store (the run directory)
//! ```
//!
//! Invariants: a plan is a function of the file and its seed; a record is on disk before the next step begins; nothing that was
//! measured is changed or dropped afterwards. A run that ended early is the same directory with fewer records.

mod begun_by;
mod check;
pub mod environment;
mod hosts;
mod measures;
mod nearest;
mod needs;
mod numbers;
pub mod parse;
mod plan;
mod process;
mod rig;
mod rig_spec;
mod runner;
mod sampling;
mod spec;
mod step;
mod stopwatches;
mod store;
mod tcp_watch;
mod template;
mod value;
mod words;

pub use begun_by::BegunBy;
pub use hosts::Host;
pub(crate) use measures::is_unit;
pub use nearest::nearest;
pub use plan::{Plan, Point, Step, StepKind};
pub(crate) use process::find_program;
pub use process::{Ended, Moment, Role, run_together};
pub use rig_spec::{RigSpec, System, needs_namespace};
pub use runner::{
    Ask, AskTcp, Outcome, Place, Presence, Settings, loopback_up, place_of_before, presence,
    resume, run,
};
pub(crate) use spec::applies;
pub use spec::{
    Cache, Command, Figure, FigureKind, Order, Profile, Published, Spec, SpecError, load,
    merge_profile,
};
pub(crate) use step::record_name;
pub use store::{Did, Event, Measure, Record, RoleRecord, RunDir, StoreError};
