//! `cargo xtask fuzz`: one fuzz target for minutes, or one input again.

use crate::step;
use std::process::Command;

/// Property tests whose subject is hidden in its crate, and that run as targets from there: name, package, test.
const MODELS: &[(&str, &str, &str)] = &[
    (
        "dirty_map",
        "coral-client",
        "llite::writeback::map::tests::model",
    ),
    (
        "ost_brw",
        "coral-server",
        "ost::brw::tests::random_requests_are_refused_or_sane",
    ),
];

/// Cases of a property test in one go.
const CASES: &str = "20000";

/// What was asked for.
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// The target; without one all are listed.
    target: Option<String>,
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The one input with this seed, as a failure printed it.
    #[arg(long)]
    seed: Option<String>,
    /// With a seed: look for a smaller input that fails too.
    #[arg(long, requires = "seed")]
    minimize: bool,
}

pub(crate) fn run(asked: &Fuzz) -> Result<(), String> {
    let name = asked.target.as_deref();
    if let Some(model) = MODELS.iter().find(|m| Some(m.0) == name) {
        return repeat(model, asked.minutes);
    }
    let mut c = Command::new("cargo");
    c.args(["run", "--release", "--locked", "-p", "coral-fuzz", "--"])
        .args(name)
        .args(["--minutes", &asked.minutes.to_string()])
        .args(asked.seed.iter().flat_map(|s| ["--seed", s]))
        .args(asked.minimize.then_some("--minimize"))
        .current_dir(step::root());
    step::run_in(&mut c)?;
    if name.is_none() {
        MODELS.iter().for_each(|m| println!("{}", m.0));
    }
    Ok(())
}

/// Runs a property test again and again; a failing case is printed and kept in the regression file beside its source.
fn repeat((_, package, test): &(&str, &str, &str), minutes: f64) -> Result<(), String> {
    let begin = step::now();
    while begin.elapsed().as_secs_f64() < minutes * 60.0 {
        let mut c = Command::new("cargo");
        c.args(["test", "--locked", "-p", package, "--lib", test])
            .args(["--", "--exact"])
            .env("PROPTEST_CASES", CASES)
            .current_dir(step::root());
        step::run_in(&mut c)?;
    }
    Ok(())
}
