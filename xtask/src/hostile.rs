//! `cargo xtask hostile`: a connected client that sends nonsense, for minutes of CPU time.

use crate::long;

pub(crate) fn run(minutes: u32, seed: u32) -> Result<(), String> {
    let settings = [
        ("CORAL_HOSTILE_S", (minutes * 60).to_string()),
        ("CORAL_SEED", seed.to_string()),
    ];
    long::one(
        "coral-client",
        "hostile",
        "a_hostile_client_harms_nobody",
        &settings,
    )
}
