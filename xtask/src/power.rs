//! `cargo xtask power`: power cuts under the servers, in number: a half with a client that dies with them, a half with two that live on.

use crate::long;

pub(crate) fn run(cuts: u32, seed: u32) -> Result<(), String> {
    let settings = [
        long::release()?,
        ("CORAL_POWER_CUTS", cuts.div_ceil(2).to_string()),
        ("CORAL_POWER_SEED", seed.to_string()),
    ];
    let dies = long::one("coral-cli", "power", "power_loss_of_everything", &settings);
    let lives = long::one(
        "coral-cli",
        "power",
        "power_loss_under_clients_that_live_on",
        &settings,
    );
    dies.and(lives)
}
