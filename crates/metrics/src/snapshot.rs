//! Values of metrics at one moment, and how they are shown.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::{self, Write};
use std::ops::RangeInclusive;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

use crate::Registry;
use crate::desc::{Desc, Kind, Unit};
use crate::histogram::Recorded;

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// Of a counter or gauge.
    Count(u64),
    /// Of a histogram.
    Recorded(Recorded),
}

/// The values of one metric by their labels.
pub type Series = BTreeMap<Vec<(&'static str, String)>, Point>;

/// Values of metrics at one moment. Series of the same name and labels are one: their sum.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(BTreeMap<&'static str, (&'static Desc, Series)>);

/// The powers of two that bound the buckets Prometheus is shown: 1 us to 69 s, 512 bytes to 1 GiB.
fn bounds(unit: Unit) -> RangeInclusive<u32> {
    match unit {
        Unit::Seconds => 10..=36,
        Unit::Bytes => 9..=30,
        _ => 0..=20,
    }
}

impl Snapshot {
    /// Takes in the values of a registry, each with `labels` in front of its own.
    pub fn add(&mut self, registry: &Registry, labels: &[(&'static str, &str)]) {
        for (own, group) in registry.groups() {
            group.observe(&mut |desc, metric| {
                metric.points(&mut |value, point| {
                    let outer = labels.iter().map(|(k, v)| (*k, (*v).to_owned()));
                    let inner = desc.label.zip(value).map(|(k, v)| (k, v.to_owned()));
                    let all = outer.chain(own.iter().cloned()).chain(inner).collect();
                    self.put(desc, all, point);
                });
            });
        }
    }

    fn put(&mut self, desc: &'static Desc, labels: Vec<(&'static str, String)>, point: Point) {
        let (_, series) = self
            .0
            .entry(desc.name)
            .or_insert_with(|| (desc, Series::new()));
        match series.entry(labels) {
            Entry::Vacant(none) => drop(none.insert(point)),
            Entry::Occupied(mut there) => match (there.get_mut(), point) {
                (Point::Count(a), Point::Count(b)) => *a = a.wrapping_add(b),
                (Point::Recorded(a), Point::Recorded(b)) => a.add(&b),
                _ => debug_assert!(false, "{} is of two kinds", desc.name),
            },
        }
    }

    /// Each metric with its values, by name.
    pub fn metrics(&self) -> impl Iterator<Item = (&'static Desc, &Series)> {
        self.0.values().map(|(desc, series)| (*desc, series))
    }

    /// A metric's values.
    pub fn of(&self, name: &str) -> Option<&Series> {
        self.0.get(name).map(|(_, series)| series)
    }

    /// Prometheus's text, version 0.0.4.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        for (desc, series) in self.metrics() {
            let kind = match desc.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let help = desc.help.replace('\\', "\\\\");
            let _ = writeln!(out, "# HELP {0} {help}\n# TYPE {0} {kind}", desc.name);
            for (labels, point) in series {
                match point {
                    Point::Count(n) => {
                        let _ = writeln!(out, "{}{} {n}", desc.name, Shown(labels, None));
                    }
                    Point::Recorded(r) => histogram(&mut out, desc, labels, r),
                }
            }
        }
        out
    }
}

/// A recorded value in base units.
fn base(unit: Unit, value: u64) -> f64 {
    match unit {
        Unit::Seconds => value as f64 / 1e9,
        _ => value as f64,
    }
}

fn histogram(out: &mut String, desc: &Desc, labels: &[(&'static str, String)], r: &Recorded) {
    let mut line = |end: &str, le: Option<&str>, value: &dyn fmt::Display| {
        let _ = writeln!(out, "{}{end}{} {value}", desc.name, Shown(labels, le));
    };
    for power in bounds(desc.unit) {
        let le = base(desc.unit, 1 << power).to_string();
        line("_bucket", Some(&le), &r.at_most(1 << power));
    }
    line("_bucket", Some("+Inf"), &r.count());
    line("_sum", None, &base(desc.unit, r.sum));
    line("_count", None, &r.count());
}

/// Labels in braces; nothing without any.
struct Shown<'a>(&'a [(&'static str, String)], Option<&'a str>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.0.iter().map(|(k, v)| (*k, v.as_str()));
        let mut sep = '{';
        for (k, v) in own.chain(self.1.map(|le| ("le", le))) {
            let v = v.replace('\\', "\\\\").replace('"', "\\\"");
            write!(f, "{sep}{k}=\"{}\"", v.replace('\n', "\\n"))?;
            sep = ',';
        }
        if sep == ',' {
            f.write_char('}')
        } else {
            Ok(())
        }
    }
}

// ---- JSON --------------------------------------------------------------------------------------------------------------

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut out = s.serialize_seq(Some(self.0.len()))?;
        for (desc, series) in self.metrics() {
            out.serialize_element(&JsonMetric {
                name: desc.name,
                r#type: desc.kind,
                unit: desc.unit,
                stability: desc.stability,
                help: desc.help,
                series: series.iter().map(|(l, p)| JsonSeries(desc, l, p)).collect(),
            })?;
        }
        out.end()
    }
}

#[derive(Serialize)]
struct JsonMetric<'a> {
    name: &'a str,
    r#type: Kind,
    unit: Unit,
    stability: crate::Stability,
    help: &'a str,
    series: Vec<JsonSeries<'a>>,
}

struct JsonSeries<'a>(&'a Desc, &'a [(&'static str, String)], &'a Point);

impl Serialize for JsonSeries<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let JsonSeries(desc, labels, point) = *self;
        let mut out = s.serialize_map(None)?;
        let labels: BTreeMap<_, _> = labels.iter().map(|(k, v)| (*k, v)).collect();
        out.serialize_entry("labels", &labels)?;
        match point {
            Point::Count(n) => out.serialize_entry("value", n)?,
            Point::Recorded(r) => {
                let quantile = |share| base(desc.unit, r.quantile(share));
                out.serialize_entry("count", &r.count())?;
                out.serialize_entry("sum", &base(desc.unit, r.sum))?;
                for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
                    out.serialize_entry(name, &quantile(share))?;
                }
                out.serialize_entry("max", &quantile(1.0))?;
                let bounds = r.buckets.iter().map(|(u, n)| (base(desc.unit, *u), n));
                out.serialize_entry("buckets", &bounds.collect::<Vec<_>>())?;
            }
        }
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Counter, Family, Gauge, Histogram, LabelSet, Probe};

    const OPS: LabelSet = LabelSet {
        label: "opcode",
        count: 3,
        name: |i| ["READ", "WRITE", "other"][i],
    };

    crate::group! {
        /// All kinds.
        struct Stats {
            /// Things "done".
            done: Counter = "coral_test_done_total", Requests, Stable;
            /// Things under way.
            active: Gauge = "coral_test_active", Requests, Stable;
            /// What the owner holds.
            held: Probe = "coral_test_held", Locks, Experimental;
            /// Time it took.
            took: Family<Histogram> = "coral_test_took_seconds", Seconds, Stable, by OPS;
            /// Sizes.
            size: Histogram = "coral_test_size_bytes", Bytes, Stable;
        }
    }

    fn of(registry: &Registry) -> Snapshot {
        let mut s = Snapshot::default();
        s.add(registry, &[("node", "1@lo")]);
        s
    }

    #[test]
    fn text_is_what_prometheus_reads() {
        let (registry, stats) = (Registry::default(), Arc::new(Stats::default()));
        registry.attach(&[("target", "a\"b\\c\nd")], &stats);
        stats.done.add(3);
        stats.active.inc();
        stats.took.at(1).record(1025);
        stats.took.at(9).record(4096);
        stats.size.record(4096);
        let text = of(&registry).prometheus();
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        has("# HELP coral_test_done_total Things \"done\".");
        has("# TYPE coral_test_done_total counter");
        has(r#"coral_test_done_total{node="1@lo",target="a\"b\\c\nd"} 3"#);
        has(r#"coral_test_active{node="1@lo",target="a\"b\\c\nd"} 1"#);
        let took = |opcode, le, n| {
            let labels = format!(r#"node="1@lo",target="a\"b\\c\nd",opcode="{opcode}",le="{le}""#);
            has(&format!("coral_test_took_seconds_bucket{{{labels}}} {n}"));
        };
        took("WRITE", "0.000001024", 0);
        took("WRITE", "0.000002048", 1);
        took("other", "0.000004096", 1);
        took("other", "+Inf", 1);
        has(r#"coral_test_size_bytes_bucket{node="1@lo",target="a\"b\\c\nd",le="2048"} 0"#);
        has(r#"coral_test_size_bytes_bucket{node="1@lo",target="a\"b\\c\nd",le="4096"} 1"#);
        has(r#"coral_test_size_bytes_sum{node="1@lo",target="a\"b\\c\nd"} 4096"#);
        assert!(!text.contains("\"READ\""), "never used: {text}");
        assert!(!text.lines().any(|l| l.starts_with("coral_test_held{")));
    }

    #[test]
    fn owners_of_the_same_labels_are_added_up_and_the_gone_are_not_shown() {
        let registry = Registry::default();
        let [a, b] = [(); 2].map(|()| Arc::new(Stats::default()));
        for s in [&a, &b] {
            registry.attach(&[], s);
            s.done.inc();
            s.took.at(0).record(5);
            s.held.ask(|| Some(2));
        }
        let value = |name: &str| {
            of(&registry)
                .of(name)
                .and_then(|s| s.values().next().cloned())
        };
        assert_eq!(value("coral_test_done_total"), Some(Point::Count(2)));
        assert_eq!(value("coral_test_held"), Some(Point::Count(4)));
        let took = value("coral_test_took_seconds");
        assert!(matches!(took, Some(Point::Recorded(r)) if r.count() == 2 && r.sum == 10));
        drop(a);
        assert_eq!(value("coral_test_done_total"), Some(Point::Count(1)));
        drop(b);
        assert_eq!(of(&registry).metrics().count(), 0);
    }

    #[test]
    fn a_registry_forgets_the_gone() {
        let registry = Registry::default();
        for _ in 0..10_000 {
            registry.attach(&[], &Arc::new(Stats::default()));
        }
        assert!(format!("{registry:?}").len() <= "Registry(128 groups)".len());
    }

    #[test]
    fn json_has_quantiles_in_base_units() {
        let (registry, stats) = (Registry::default(), Arc::new(Stats::default()));
        registry.attach(&[("target", "t")], &stats);
        for _ in 0..99 {
            stats.took.at(0).record(1 << 20);
        }
        stats.took.at(0).record(1 << 30);
        let json = serde_json::to_value(of(&registry)).unwrap();
        let took = json.as_array().unwrap().iter();
        let took = took
            .clone()
            .find(|m| m["name"] == "coral_test_took_seconds")
            .unwrap();
        assert_eq!(
            (&took["type"], &took["unit"]),
            (&"histogram".into(), &"seconds".into())
        );
        let series = &took["series"][0];
        assert_eq!(series["labels"]["opcode"], "READ");
        assert_eq!(series["count"], 100);
        assert_eq!(series["p99"], (1u64 << 20) as f64 / 1e9);
        assert_eq!(series["max"], (1u64 << 30) as f64 / 1e9);
        assert_eq!(series["buckets"][1][1], 1);
    }

    #[test]
    fn names_are_held_to_the_rules() {
        assert_eq!(Stats::TABLE.iter().find_map(Desc::fault), None);
        let row = Stats::TABLE[0];
        for (name, kind, unit) in [
            ("coral_test_done", Kind::Counter, Unit::Requests),
            ("coral_test_total", Kind::Counter, Unit::Bytes),
            ("test_total", Kind::Counter, Unit::Requests),
            ("coral_Test_total", Kind::Counter, Unit::Requests),
            ("coral_test_total", Kind::Gauge, Unit::Requests),
            ("coral_test", Kind::Histogram, Unit::Seconds),
            ("coral_test_count", Kind::Gauge, Unit::Locks),
        ] {
            assert!(
                Desc {
                    name,
                    kind,
                    unit,
                    ..row
                }
                .fault()
                .is_some(),
                "{name}"
            );
        }
        assert!(Desc { help: "", ..row }.fault().is_some());
    }
}
