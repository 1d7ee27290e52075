//! Times on the command line. What is none is told with which are, also a negative one, which begins like an option.

/// Longest that a machine is watched, and longest window of a trial, seconds.
const WATCH_MAX_S: f64 = 3600.0;
/// Shortest window of a trial, seconds: ten operations should be in it.
const WINDOW_LEAST_S: f64 = 0.5;

/// Seconds of `--watch`.
pub(super) fn watch(text: &str) -> Result<f64, String> {
    within(text, 0.0)
}

/// Seconds of `--for`.
pub(super) fn window(text: &str) -> Result<f64, String> {
    within(text, WINDOW_LEAST_S)
}

/// Seconds, at least so many, and at most [`WATCH_MAX_S`]. What is no number is in no range.
fn within(text: &str, least_s: f64) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|s| (least_s..=WATCH_MAX_S).contains(s));
    seconds.ok_or_else(|| format!("give {least_s} to {WATCH_MAX_S} seconds"))
}

/// A time such as 10ms, as nanoseconds.
pub(super) fn nanoseconds(text: &str) -> Result<i64, String> {
    let end = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "ns" => Some(1.0),
        "us" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        _ => None,
    };
    let number = number.parse::<f64>().ok();
    let number = number.filter(|n| (0.0..1e9).contains(n));
    match (number, unit) {
        (Some(n), Some(unit)) => Ok((n * unit) as i64),
        _ => Err("give a number of 0 to 999999999 with ns, us, ms or s, as in 10ms".to_owned()),
    }
}

/// A time such as 10m, as seconds.
pub(super) fn seconds(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(n) => (
            n,
            match text.as_bytes()[text.len() - 1] {
                b'm' => 60,
                b'h' => 3600,
                _ => 1,
            },
        ),
        None => (text, 1),
    };
    let n = number
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|n| (1..=3600).contains(n));
    n.ok_or_else(|| format!("'{text}' is no time of 1 s to 1 h; give 60, 60s, 10m or 1h"))
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::Parser;

    #[test]
    fn a_time_that_is_none_is_told_with_which_are() {
        let nano = "give a number of 0 to 999999999 with ns, us, ms or s, as in 10ms";
        for (line, says) in [
            (
                "explain --watch -1",
                "invalid value '-1' for '--watch <SECONDS>': give 0 to 3600 seconds",
            ),
            (
                "explain --watch -1s",
                "'--watch <SECONDS>': give 0 to 3600 seconds",
            ),
            (
                "explain --watch 3600.5",
                "'--watch <SECONDS>': give 0 to 3600 seconds",
            ),
            (
                "explain --watch nan",
                "'--watch <SECONDS>': give 0 to 3600 seconds",
            ),
            (
                "explain --watch --json",
                "'--watch <SECONDS>': give 0 to 3600 seconds",
            ),
            (
                "explain --try --for -1",
                "'--for <SECONDS>': give 0.5 to 3600 seconds",
            ),
            (
                "explain --try --for 0.4",
                "'--for <SECONDS>': give 0.5 to 3600 seconds",
            ),
            (
                "explain --try --for inf",
                "'--for <SECONDS>': give 0.5 to 3600 seconds",
            ),
            ("trace --slow -1ms", nano),
            ("trace --slow 10", nano),
            (
                "history --since -1",
                "'-1' is no time of 1 s to 1 h; give 60, 60s, 10m or 1h",
            ),
            (
                "up /d --recovery-time-soft -1",
                "'--recovery-time-soft <SECONDS>': -1 is not in 1..=86400",
            ),
            (
                "up /d --recovery-time-hard 0",
                "'--recovery-time-hard <SECONDS>': 0 is not in 1..=86400",
            ),
        ] {
            let words = std::iter::once("coral").chain(line.split(' '));
            let said = Cli::try_parse_from(words).expect_err(line).to_string();
            assert!(
                said.contains(says) && !said.contains("tip:"),
                "{line}: {said}"
            );
        }
        for (text, s) in [("0", 0.0), ("0.5", 0.5), ("5", 5.0), ("3600", 3600.0)] {
            assert_eq!(watch(text), Ok(s));
        }
        assert_eq!((nanoseconds("1.5us"), seconds("2m")), (Ok(1500), Ok(120)));
    }
}
