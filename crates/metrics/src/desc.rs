//! What a metric is, apart from its value.

use serde::Serialize;

use crate::snapshot::Point;

/// One row of a layer's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// As it is shown: `coral_LAYER_WHAT`, with Lustre's word where it has one.
    pub name: &'static str,
    /// What its value does.
    pub kind: Kind,
    /// What its value is a number of.
    pub unit: Unit,
    /// Whether it may change from release to release.
    pub stability: Stability,
    /// The label it has beside those of its owner.
    pub label: Option<&'static str>,
    /// One line.
    pub help: &'static str,
}

/// What a metric's value does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often values of which size occurred.
    Histogram,
}

/// What a metric's value is a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Seconds; histograms record nanoseconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// LNet messages.
    Messages,
    /// Requests, of whatever layer.
    Requests,
    /// TCP connections, or connects of imports.
    Connections,
    /// DLM locks.
    Locks,
    /// Clients of a target.
    Clients,
    /// Transactions of a target, or batches of its tables.
    Transactions,
    /// Syncs of a device.
    Syncs,
    /// Futures polled on a stack.
    Futures,
    /// Anything else that is looked up, such as names.
    Lookups,
}

/// Whether a metric may change from release to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stability {
    /// Name, unit and meaning stay.
    Stable,
    /// It may change, and the changelog says so.
    Experimental,
}

/// A type of metric, as tables name it.
pub trait OfKind {
    /// What its value does.
    const KIND: Kind;
}

/// A counter, gauge, histogram, or a family of them.
pub trait Metric {
    /// Shows its values now, each with the value of the metric's own label, if it has one.
    fn points(&self, show: &mut dyn FnMut(Option<&'static str>, Point));
}

impl Desc {
    /// A line of documentation without the blank in front.
    pub const fn line(doc: &'static str) -> &'static str {
        match doc.as_bytes() {
            [b' ', ..] => doc.split_at(1).1,
            _ => doc,
        }
    }

    /// What is wrong with its name or help: base units and endings as Prometheus wants them, and a row that fits into a table.
    pub fn fault(&self) -> Option<String> {
        let ends = match (self.kind, self.unit) {
            (Kind::Counter, Unit::Bytes) => "_bytes_total",
            (Kind::Counter, Unit::Seconds) => "_seconds_total",
            (Kind::Counter, _) => "_total",
            (_, Unit::Bytes) => "_bytes",
            (_, Unit::Seconds) => "_seconds",
            _ => "",
        };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let reserved = ["_count", "_sum", "_bucket"];
        let why = if !self.name.starts_with("coral_") || !self.name.chars().all(plain) {
            "is no name of the form coral_layer_what".to_owned()
        } else if !self.name.ends_with(ends) {
            format!("does not end in {ends}")
        } else if self.kind != Kind::Counter && self.name.ends_with("_total") {
            "ends as a counter and is none".to_owned()
        } else if reserved.iter().any(|r| self.name.ends_with(r)) {
            "ends as a part of a histogram".to_owned()
        } else if self.help.is_empty() || self.help.len() >= 200 || self.help.contains('\n') {
            "has no line of help of less than 200 characters".to_owned()
        } else {
            return None;
        };
        Some(format!("{} {why}", self.name))
    }
}
