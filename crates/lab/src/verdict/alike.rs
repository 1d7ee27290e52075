//! Targets to which the way is slow, told as one cause: those whose shares of the time are alike.

use std::collections::BTreeSet;

use super::clients::who;
use super::rules::{Cause, CauseKind, SHARE_LEAST, TIMES_PEERS};

/// A target to which the way is slow.
pub(super) struct SlowTo<'a> {
    target: &'a str,
    /// Share of all operations' time.
    share: f64,
    /// NIDs of the clients from which it is slow; none: it is all of them.
    from: BTreeSet<&'a String>,
}

impl<'a> SlowTo<'a> {
    pub fn new(target: &'a str) -> Self {
        SlowTo {
            target,
            share: 0.0,
            from: BTreeSet::new(),
        }
    }

    /// The way from these clients is slow, which has so large a share of the time.
    pub fn add(&mut self, share: f64, from: &'a [String]) {
        self.share += share;
        self.from.extend(from);
    }
}

/// Those of them that are told.
pub(super) struct Alike<'a> {
    /// They, by name.
    pub targets: Vec<&'a str>,
    /// The one that has most of the time.
    pub most: &'a str,
    share: f64,
    from: BTreeSet<&'a String>,
}

impl<'a> Alike<'a> {
    /// None where there is none at all.
    pub fn of(mut all: Vec<SlowTo<'a>>) -> Option<Self> {
        let most = all.iter().max_by(|a, b| a.share.total_cmp(&b.share))?;
        let (most, least) = (most.target, most.share / TIMES_PEERS);
        all.retain(|t| t.share >= least);
        Some(Alike {
            targets: all.iter().map(|t| t.target).collect(),
            most,
            share: all.iter().map(|t| t.share).sum(),
            from: all.into_iter().flat_map(|t| t.from).collect(),
        })
    }

    /// As a cause, where they have so much of the time; the clients are added to the figure.
    pub fn cause(self, figure: String, change: String) -> Option<Cause> {
        (self.share >= SHARE_LEAST).then(|| Cause {
            kind: CauseKind::SlowLink,
            subject: self.targets.join(", "),
            fid: None,
            share: self.share.min(1.0),
            figure: match who(self.from) {
                Some(who) => format!("{figure}; from {who}"),
                None => figure,
            },
            ceiling: None,
            change,
        })
    }
}
