//! Fuzz targets: no bytes from the network or a disk make a panic, a hang or unbounded memory, and no order of events breaks a
//! state machine.
//!
//! A target is a function of some random bytes ([`Unstructured`]), which come from a seed: the seed repeats it. Decoders
//! are given real samples with changes ([`mutate`]), state machines a sequence of operations, after each of which the invariants
//! hold. `cargo xtask fuzz` runs one for minutes; the test `short` runs all for a moment.
//!
//! Deliberately absent: guidance by coverage, for which the stable toolchain has no engine. The functions have the form that
//! `cargo fuzz` takes.

mod mutate;
pub mod run;
mod targets;

pub use arbitrary::Unstructured;
pub use mutate::mutate;

/// What a target does with its random bytes. `Err`: there were too few of them, which is no failure.
pub type Property = fn(&mut Unstructured<'_>) -> arbitrary::Result<()>;

/// A decoder or a state machine.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As `cargo xtask fuzz` names it.
    pub name: &'static str,
    /// Most random bytes of one input.
    pub size_max: u32,
    /// Runs one input.
    pub property: Property,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("wire_samples", 512, targets::wire::samples),
    target("wire_fields", 2048, targets::wire::fields),
    target("wire_layouts", 512, targets::wire::layouts),
    target("wire_logs", 1024, targets::wire::logs),
    target("wire_directories", 6000, targets::wire::directories),
    target("wire_lnet", 256, targets::wire::lnet),
    target("wire_locks", 512, targets::wire::locks),
    target("texts", 256, targets::texts::all),
    target("sock_frames", 512, targets::lnet::frames),
    target("lnet_routes", 1024, targets::lnet::routes),
    target("lnet_peers", 2048, targets::lnet::peers),
    target("import_states", 256, targets::states::import),
    target("ldlm_core", 1024, targets::states::locks),
    target("osd_journal", 512, targets::disk::journal),
    target("osd_label", 256, targets::disk::label),
    target("osd_records", 1024, targets::disk::records),
    target("mdt_records", 1024, targets::disk::inodes),
    target("last_rcvd", 1024, targets::disk::last_rcvd),
    target("nodemaps", 512, targets::disk::nodemaps),
];

const fn target(name: &'static str, size_max: u32, property: Property) -> Target {
    Target {
        name,
        size_max,
        property,
    }
}
