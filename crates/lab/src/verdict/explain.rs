//! The verdict.

use std::fmt;

use crate::attribution::Segment;

use super::facts::Facts;
use super::rules::{Cause, causes, ms};

/// How far Little's law may be off before the stamps are not believed.
const LITTLE_OFF: f64 = 0.1;
/// Share of the time not placed, or in network and server together, from which on the verdict is 'unknown'.
const UNKNOWN_SHARE: f64 = 0.4;

/// Little's law: operations under way = rate x time of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Little {
    /// Operations in a second.
    pub rate: f64,
    /// Seconds of one.
    pub time_s: f64,
    /// Operations under way, counted.
    pub counted: f64,
}

impl Little {
    /// What should be under way.
    pub fn expected(&self) -> f64 {
        self.rate * self.time_s
    }

    /// Whether the two agree.
    pub fn holds(&self) -> bool {
        let off = (self.expected() - self.counted).abs();
        off <= (LITTLE_OFF * self.expected()).max(0.1)
    }
}

/// What limits a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Checked first.
    pub little: Little,
    /// Causes, the weightiest first.
    pub causes: Vec<Cause>,
    /// Segments with their share of the operations' time, the largest first.
    pub shares: Vec<(Segment, f64)>,
    /// Why nothing can be said.
    pub unknown: Option<String>,
    /// The one thing to do next.
    pub next: String,
}

/// Judges.
pub fn explain(f: &Facts) -> Verdict {
    let count = f.count();
    let little = Little {
        rate: count as f64 / f.window_s.max(1e-12),
        time_s: f.op_s() / count.max(1) as f64,
        counted: f.under_way,
    };
    let mut shares: Vec<(Segment, f64)> = (Segment::ALL.iter())
        .map(|s| (*s, f.share(*s, None)))
        .filter(|(_, share)| *share > 0.0)
        .collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut found = causes(f);
    found.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.kind.cmp(&b.kind)));
    let missing = f.share(Segment::NotPlaced, None) + f.share(Segment::Remote, None);
    let unknown = if count == 0 {
        Some("no operation was seen".to_owned())
    } else if !little.holds() {
        Some(format!(
            "{:.2} operations were under way, {:.1}/s x {} make {:.2}: clocks or counts are wrong",
            little.counted,
            little.rate,
            ms(little.time_s),
            little.expected()
        ))
    } else if found.is_empty() && missing >= UNKNOWN_SHARE {
        Some(format!(
            "{:.0}% of the time is placed nowhere, or in network and server together",
            100.0 * missing
        ))
    } else {
        None
    };
    if count == 0 || !little.holds() {
        found.clear();
    }
    let next = next(&found, &shares, unknown.as_deref());
    Verdict {
        little,
        causes: found,
        shares,
        unknown,
        next,
    }
}

/// What would tell the first two apart.
fn next(causes: &[Cause], shares: &[(Segment, f64)], unknown: Option<&str>) -> String {
    match (causes, shares.first()) {
        (_, None) => "put load on it, and ask again".to_owned(),
        ([], _) if unknown.is_some() => {
            "ask the servers and routers too: name their directories".to_owned()
        }
        ([], Some((s, share))) => format!(
            "nothing stands out: {} is the largest part with {:.0}%",
            s.name(),
            100.0 * share
        ),
        ([one], _) => format!(
            "{}; then the time should fall by up to {:.0}%",
            one.change,
            100.0 * one.share.min(1.0)
        ),
        ([one, two, ..], _) => format!(
            "{}; if the time does not fall by up to {:.0}%, it is {} ({})",
            one.change,
            100.0 * one.share.min(1.0),
            two.kind.name(),
            two.subject
        ),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = &self.little;
        writeln!(
            out,
            "Little's law {}: {:.1} operations/s x {} = {:.2} under way, {:.2} counted",
            if l.holds() { "holds" } else { "does not hold" },
            l.rate,
            ms(l.time_s),
            l.expected(),
            l.counted
        )?;
        match (&self.unknown, self.causes.first()) {
            (Some(why), _) => writeln!(out, "verdict: unknown: {why}")?,
            (None, Some(c)) => writeln!(out, "verdict: {} ({})", c.kind.name(), c.subject)?,
            (None, None) => writeln!(out, "verdict: nothing stands out")?,
        }
        for (i, c) in self.causes.iter().enumerate() {
            writeln!(
                out,
                "{}. {} ({}): {:.0}% of the time",
                i + 1,
                c.kind.name(),
                c.subject,
                100.0 * c.share.min(1.0)
            )?;
            writeln!(out, "   {}", c.figure)?;
            if let Some(ceiling) = &c.ceiling {
                writeln!(out, "   ceiling: {ceiling}")?;
            }
        }
        writeln!(out, "where the time is:")?;
        for (s, share) in &self.shares {
            writeln!(out, "  {:>18} {:>5.1}%", s.name(), 100.0 * share)?;
        }
        writeln!(out, "next: {}", self.next)
    }
}
