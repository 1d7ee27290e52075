//! `cargo xtask fuzz`: runs a fuzz target for minutes, or the one input of a seed.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use coral_fuzz::{TARGETS, run};

#[derive(Parser)]
#[command(about = "Coral's fuzz targets")]
struct Cli {
    /// The target; without one all are listed.
    target: Option<String>,
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The one input with this seed, as a failure printed it.
    #[arg(long, value_parser = seed)]
    seed: Option<u64>,
    /// With a seed: looks for a smaller input that fails too.
    #[arg(long, requires = "seed")]
    minimize: bool,
}

fn seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Some(name) = &cli.target else {
        TARGETS.iter().for_each(|t| println!("{}", t.name));
        return ExitCode::SUCCESS;
    };
    let Some(target) = TARGETS.iter().find(|t| t.name == name) else {
        eprintln!("there is no target {name}; without a name, all are listed");
        return ExitCode::FAILURE;
    };
    let budget = Duration::from_secs_f64(cli.minutes.clamp(0.0, 1e6) * 60.0);
    match cli.seed {
        Some(seed) if cli.minimize => run::minimize(target, seed, budget),
        Some(seed) => run::one(target, seed),
        None => {
            let seed = run::fresh_seed();
            println!("{name}: {budget:?} from seed {seed}");
            println!("{name}: {} inputs", run::campaign(target, budget, seed));
        }
    }
    ExitCode::SUCCESS
}
