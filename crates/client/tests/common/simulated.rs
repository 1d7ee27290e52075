//! Runs on a simulated clock, which a seed repeats.

use tokio::time::Instant;

/// Log lines carry the simulated time, seconds since the run's start; `CORAL_LOG` sets what is shown (`CORAL_LOG=debug`).
struct Simulated(Instant);

impl tracing_subscriber::fmt::time::FormatTime for Simulated {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        write!(w, "{:.6}", self.0.elapsed().as_secs_f64())
    }
}

/// Logs of this thread, when they are asked for.
fn logs() -> Option<tracing::subscriber::DefaultGuard> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CORAL_LOG").ok()?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_timer(Simulated(Instant::now()));
    Some(tracing::subscriber::set_default(
        log.with_writer(std::io::stderr).finish(),
    ))
}

/// Runs a scenario on a thread and a paused clock of its own. `again` is the command that runs it again, should it fail.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread by itself: its panic ends it, and nothing else"
)]
pub fn on_own_clock<T, F>(scenario: impl FnOnce() -> F + Send + 'static, again: &str) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let on_thread = move || {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("runtime");
        rt.block_on(async {
            let _logs = logs();
            scenario().await
        })
    };
    std::thread::spawn(on_thread)
        .join()
        .unwrap_or_else(|panic| {
            eprintln!("failed; run it again: {again}");
            std::panic::resume_unwind(panic)
        })
}

/// A number that the environment sets.
pub fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|s| s.parse().ok());
    given.unwrap_or(otherwise)
}
