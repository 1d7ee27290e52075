//! A line of parts, from left to right, without gaps and overlaps.

use coral_stopwatch::Waited;

use super::Segment;

/// A part of a time, on the clock of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it was.
    pub segment: Segment,
    /// From when, nanoseconds.
    pub from: i64,
    /// To when.
    pub to: i64,
    /// At which target, router or client: a place in [`super::Joined::names`].
    pub at: usize,
}

impl Part {
    /// Nanoseconds.
    pub fn ns(&self) -> i64 {
        self.to - self.from
    }
}

/// The parts so far.
pub(super) struct Line {
    pub(super) parts: Vec<Part>,
    now: i64,
    /// How far `now` may be wrong.
    now_sure: i64,
    end: i64,
    /// By how much stamps lay before those that should come first.
    pub(super) conflict: i64,
}

impl Line {
    pub(super) fn new(from: i64, end: i64) -> Line {
        Line {
            parts: Vec::new(),
            now: from,
            now_sure: 0,
            end,
            conflict: 0,
        }
    }

    /// All up to `to` was in `segment`. `sure`: how far `to` may be wrong, nanoseconds.
    pub(super) fn until(&mut self, segment: Segment, at: usize, to: i64, sure: i64) {
        self.conflict = self.conflict.max(self.now - to - sure - self.now_sure);
        self.conflict = self.conflict.max(to - self.end - sure);
        let to = to.clamp(self.now, self.end);
        if to > self.now {
            self.push(segment, at, to);
            self.now_sure = sure;
        }
    }

    fn push(&mut self, segment: Segment, at: usize, to: i64) {
        let from = self.now;
        self.now = to;
        match self.parts.last_mut() {
            Some(last) if last.segment == segment && last.at == at => last.to = to,
            _ => self.parts.push(Part {
                segment,
                from,
                to,
                at,
            }),
        }
    }

    /// All up to `to`: the waits where they were, and `between` them at most `budget` nanoseconds of `run`, the rest not placed.
    /// Overlapping waits count for the one that began first. `shift` takes the waits to this line's clock.
    pub(super) fn waits_until(
        &mut self,
        waits: &[Waited],
        shift: i64,
        (run, mut budget): (Segment, i64),
        at: usize,
        (to, sure): (i64, i64),
    ) {
        let mut sorted: Vec<Waited> = waits.to_vec();
        sorted.sort_by_key(|w| (w.1, w.2));
        let mut gap = |line: &mut Line, to: i64| {
            let to = to.clamp(line.now, line.end);
            let ran = budget.min(to - line.now);
            if ran > 0 {
                budget -= ran;
                line.push(run, at, line.now + ran);
            }
            if to > line.now {
                line.push(Segment::NotPlaced, at, to);
            }
        };
        let bound = to.clamp(self.now, self.end);
        for (wait, from, until) in sorted {
            let (from, until) = (from - shift, until - shift);
            if until <= self.now || from >= bound {
                continue;
            }
            if from > self.now {
                gap(self, from);
            }
            let until = until.min(bound);
            if until > self.now {
                self.push(Segment::of(wait), at, until);
            }
        }
        self.conflict = self.conflict.max(self.now - to - sure - self.now_sure);
        let before = self.now;
        gap(self, bound);
        if self.now > before {
            self.now_sure = sure;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_stopwatch::Wait;

    #[test]
    fn parts_fill_the_line_and_contradictions_are_told() {
        let mut line = Line::new(0, 100);
        line.until(Segment::Send, 0, 10, 0);
        let waits = [(Wait::Lock, 20, 40), (Wait::Storage, 30, 50)];
        line.waits_until(&waits, 0, (Segment::ServerCpu, 15), 0, (60, 0));
        line.until(Segment::Network, 0, 55, 2);
        line.until(Segment::WakeUp, 0, 100, 0);
        let told: Vec<_> = line.parts.iter().map(|p| (p.segment, p.ns())).collect();
        let want = [
            (Segment::Send, 10),
            (Segment::ServerCpu, 10),
            (Segment::LockWait, 20),
            (Segment::Storage, 10),
            (Segment::ServerCpu, 5),
            (Segment::NotPlaced, 5),
            (Segment::WakeUp, 40),
        ];
        assert_eq!(told, want);
        assert_eq!(
            line.conflict, 3,
            "5 too early, of which 2 may be the clock's"
        );
    }

    /// Two clocks between which no message passes, as of a router and of a server.
    #[test]
    fn both_clocks_may_be_wrong() {
        let passed = |router_sure, server_sure| {
            let mut line = Line::new(0, 100);
            line.until(Segment::Router, 1, 50, router_sure);
            line.until(Segment::Network, 0, 43, server_sure);
            line.conflict
        };
        assert_eq!(passed(0, 0), 7);
        assert_eq!(passed(4, 2), 1);
        assert_eq!(passed(4, 3), 0);
    }
}
