//! The verdict as it is printed.

use std::fmt;

use super::explain::Verdict;
use super::rules::ms;
use super::slots::of_places;

/// Operations that were answered at once are told where they are so large a part of the others.
const AT_ONCE_PART: f64 = 0.05;

/// The parts of what is printed, each in lines of its own, or in none.
impl Verdict {
    /// Little's law, with its figures.
    fn write_little(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = &self.little;
        match self.is_idle {
            true => writeln!(
                out,
                "Little's law is not asked: there are too few operations, {} each",
                ms(l.time_s)
            ),
            false => writeln!(
                out,
                "Little's law {}: {:.1} operations/s x {} = {:.2} under way, {:.2} counted{}{}",
                if l.holds() { "holds" } else { "does not hold" },
                l.rate,
                ms(l.time_s),
                l.expected(),
                l.counted,
                match self.not_ended() {
                    0 => String::new(),
                    n => format!(", without {n} that have not ended"),
                },
                self.at_once_text()
            ),
        }
    }

    /// Operations that were answered at once, where they are more than a few beside the others.
    fn at_once_text(&self) -> String {
        match self.little.at_once_per_s {
            Some(n) if n >= AT_ONCE_PART * self.little.rate && n >= 1.0 => {
                format!(
                    "; and {n:.1}/s answered at once while it was watched, not in these figures"
                )
            }
            _ => String::new(),
        }
    }

    /// Operations that are told to be under way for long, or to wait in a queue.
    fn not_ended(&self) -> u64 {
        let going = self.going.as_ref().filter(|g| !g.in_background);
        let queued = self.queued.as_ref().map_or(0, |q| q.operations);
        going.map_or(0, |g| g.count) + queued
    }

    /// The verdict in one line.
    fn write_verdict(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.unknown, self.causes.first()) {
            (Some(why), _) => writeln!(out, "verdict: unknown: {why}"),
            (None, Some(c)) => writeln!(out, "verdict: {} ({})", c.kind.name(), c.subject),
            (None, None) => match (&self.nearly_full, &self.at_once) {
                (Some(why), _) => writeln!(
                    out,
                    "verdict: nobody is slow, and a machine is nearly full: {why}"
                ),
                (_, Some(why)) => {
                    writeln!(out, "verdict: nobody is slow and nothing is full: {why}")
                }
                (None, None) => writeln!(out, "verdict: nothing stands out"),
            },
        }
    }

    /// The causes, each with its figure and its ceiling.
    fn write_causes(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        Ok(())
    }

    /// RPCs with data.
    fn write_transfers(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(t) = &self.transfers {
            let ahead = match self.ahead {
                Some(why) => format!("; that is more than operations: {why}"),
                None => String::new(),
            };
            writeln!(
                out,
                "RPCs with data: {:.0} KiB each in the mean, {:.1} under way to {} target{}, {}; {} each{ahead}",
                t.mean_bytes / 1024.0,
                t.under_way,
                t.targets,
                if t.targets == 1 { "" } else { "s" },
                of_places(t.in_flight, t.places),
                ms(t.mean_s)
            )?;
        }
        Ok(())
    }

    /// What is left out, and what has not ended.
    fn write_apart(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (count @ 1.., seconds) = self.program_locks {
            let times = if count == 1 {
                "operation"
            } else {
                "operations"
            };
            writeln!(
                out,
                "left out: {count} {times}, {} in all, in which programs waited for locks that programs have",
                ms(seconds)
            )?;
        }
        if let Some(g) = &self.going {
            let of = match g.count {
                1 => "1 operation is under way, ".to_owned(),
                n => format!("{n} operations are under way, the oldest "),
            };
            let held = g.holder.as_ref().map(|h| format!("; {h}"));
            let held = match g.of_programs {
                true => "; a program has that lock, so it is no stall".to_owned(),
                false => held.unwrap_or_default(),
            };
            writeln!(
                out,
                "not ended: {of}for {}: {}{held}",
                ms(g.oldest_s),
                g.oldest
            )?;
        }
        if let Some(q) = &self.queued {
            writeln!(out, "not ended: {q}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_little(out)?;
        self.write_verdict(out)?;
        self.write_causes(out)?;
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        self.write_transfers(out)?;
        self.write_apart(out)?;
        if self.shares.is_empty() {
            return writeln!(out, "next: {}", self.next);
        }
        writeln!(out, "where the time is:")?;
        for (s, share) in &self.shares {
            writeln!(out, "  {:>18} {:>5.1}%", s.name(), 100.0 * share)?;
        }
        writeln!(out, "next: {}", self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::OpKind;
    use super::super::{Facts, explain};

    #[test]
    fn operations_that_were_answered_at_once_are_told_beside_the_others() {
        let told = |at_once_per_s| {
            let f = Facts {
                window_s: 1.0,
                under_way: 1.0,
                ops: vec![OpKind {
                    op: "WRITE".into(),
                    count: 1_000,
                    seconds: 1.0,
                }],
                at_once_per_s,
                ..Facts::default()
            };
            let text = explain(&f).to_string();
            text.lines().next().unwrap_or_default().to_owned()
        };
        let law =
            "Little's law holds: 1000.0 operations/s x 1.00 ms = 1.00 under way, 1.00 counted";
        let beside = "; and 17800.0/s answered at once while it was watched, not in these figures";
        assert_eq!(told(Some(17_800.0)), format!("{law}{beside}"));
        assert_eq!(told(Some(3.0)), law);
        assert_eq!(told(None), law);
    }
}
