//! What processes tell beside their records: how many operations they answered at once while they were watched, and rules of theirs that
//! delay or drop messages.

use crate::lnetctl::agent::{Act, Beside, LnetAsk};
use crate::lnetctl::find;
use crate::trace::HOW;
use coral_stopwatch::Dump;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// How long they may take to tell it.
const LIMIT: Duration = Duration::from_secs(1);
/// A shorter time tells of no rate, seconds.
const LEAST_S: f64 = 0.2;

/// What they told at a moment.
pub(super) struct Before {
    at: Instant,
    told: Vec<Beside>,
}

impl Before {
    /// Asks the processes at these places; one that does not answer tells nothing.
    pub(super) fn ask(places: &[PathBuf]) -> Before {
        let sockets = find::named(places, HOW).map_or_else(|_| vec![], |n| n.sockets);
        let what = json!({ "lnet": LnetAsk { node: None, act: Act::Beside } });
        let ask = &|socket: &PathBuf| {
            let answer = find::ask_within(socket, &what, LIMIT).ok()?;
            serde_json::from_value(answer).ok()
        };
        // All at once: one that is stopped holds up no other.
        let told = std::thread::scope(|s| {
            let asked: Vec<_> = sockets
                .iter()
                .map(|socket| s.spawn(move || ask(socket)))
                .collect();
            let told = asked.into_iter().filter_map(|t| t.join().ok().flatten());
            told.collect()
        });
        Before {
            told,
            at: Instant::now(),
        }
    }

    /// Operations in a second that were answered at once from then to these records. None: nobody has told, or it was just now.
    pub(super) fn at_once_per_s(&self, dumps: &[Dump]) -> Option<f64> {
        rate(&self.told, dumps, self.at.elapsed().as_secs_f64())
    }

    /// A note about each process with such rules.
    pub(super) fn notes(&self) -> Vec<String> {
        self.told.iter().flat_map(rules).collect()
    }
}

fn rate(told: &[Beside], dumps: &[Dump], seconds: f64) -> Option<f64> {
    let since = |b: &Beside| {
        let same = |d: &&Dump| d.names.first() == Some(&b.nid);
        let now = dumps.iter().find(same)?.brief;
        now.checked_sub(b.at_once)
    };
    let all: Vec<u64> = told.iter().filter_map(since).collect();
    (seconds >= LEAST_S && !all.is_empty()).then(|| all.iter().sum::<u64>() as f64 / seconds)
}

fn rules(b: &Beside) -> Vec<String> {
    let of = |count: usize, what: &str| {
        let rules = if count == 1 { "rule" } else { "rules" };
        let note = format!(
            "{} has {count} {what} {rules}: see `lctl net_{what}_list`",
            b.nid
        );
        (count > 0).then_some(note)
    };
    let all = [of(b.delay_rules, "delay"), of(b.drop_rules, "drop")];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(at_once: u64, delay_rules: usize, drop_rules: usize) -> Beside {
        Beside {
            nid: "1@tcp".into(),
            at_once,
            delay_rules,
            drop_rules,
        }
    }

    #[test]
    fn rules_of_a_process_are_told() {
        assert_eq!(rules(&told(0, 0, 0)), [""; 0]);
        let both = [
            "1@tcp has 1 delay rule: see `lctl net_delay_list`",
            "1@tcp has 2 drop rules: see `lctl net_drop_list`",
        ];
        assert_eq!(rules(&told(0, 1, 2)), both);
    }

    #[test]
    fn what_was_answered_at_once_while_it_was_watched_is_a_rate() {
        let dump = |name: &str, brief| Dump {
            names: vec![name.to_owned()],
            brief,
            ..Dump::default()
        };
        let of = |now: &[Dump], seconds| rate(&[told(1_000, 0, 0)], now, seconds);
        let now = [dump("1@tcp", 5_000), dump("2@tcp", 9_000)];
        assert_eq!(of(&now, 2.0), Some(2_000.0));
        assert_eq!(of(&now, 0.1), None, "that was just now");
        assert_eq!(of(&now[1..], 2.0), None, "another process");
    }
}
