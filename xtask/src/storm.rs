//! `cargo xtask storm`: kills and partitions of two clients, two servers and a router, for minutes.

use crate::long;

pub(crate) fn run(minutes: u32, seed: u32) -> Result<(), String> {
    let settings = [
        long::release()?,
        ("CORAL_STORM_S", (minutes * 60).to_string()),
        ("CORAL_SEED", seed.to_string()),
    ];
    long::one(
        "coral-cli",
        "storm",
        "kills_and_partitions_lose_nothing",
        &settings,
    )
}
