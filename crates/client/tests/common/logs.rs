//! Logs of a simulated run.

use tokio::time::Instant;

/// Log lines carry the simulated time, seconds since the run's start; `CORAL_LOG` sets what is shown (`CORAL_LOG=debug`).
struct Simulated(Instant);

impl tracing_subscriber::fmt::time::FormatTime for Simulated {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        write!(w, "{:.6}", self.0.elapsed().as_secs_f64())
    }
}

/// Logs of this thread, when they are asked for.
pub fn logs() -> Option<tracing::subscriber::DefaultGuard> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CORAL_LOG").ok()?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_timer(Simulated(Instant::now()));
    Some(tracing::subscriber::set_default(
        log.with_writer(std::io::stderr).finish(),
    ))
}
