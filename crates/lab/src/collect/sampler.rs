//! The thread that samples.

use super::series::Series;
use crate::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

/// Most series of one sampler; what is more is said to be missing.
pub const MAX_SERIES_COUNT: usize = 2000;

/// One number that a source read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Its name within the source.
    pub name: String,
    /// Its unit; of a counter, the unit of what is counted, and the series is that per second.
    pub unit: Cow<'static, str>,
    /// Its value.
    pub value: f64,
    /// It only grows: the series is its rate.
    pub counter: bool,
}

impl Reading {
    /// A value as it is.
    pub fn gauge(name: impl Into<String>, unit: &'static str, value: f64) -> Reading {
        Reading {
            name: name.into(),
            unit: unit.into(),
            value,
            counter: false,
        }
    }

    /// A count that only grows.
    pub fn counter(name: impl Into<String>, unit: &'static str, value: f64) -> Reading {
        Reading {
            name: name.into(),
            unit: unit.into(),
            value,
            counter: true,
        }
    }
}

/// What can be sampled.
pub trait Source: Send {
    /// Name before its series: NAME/READING.
    fn name(&self) -> String;
    /// Reads now. `missing` takes what is not there, each once.
    fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading>;
    /// What it knows besides numbers over time, at the end.
    fn notes(&mut self) -> Vec<String> {
        vec![]
    }
}

/// What was sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Milliseconds since 1970 of time 0.
    pub started_ms: u64,
    /// Distance between samples, milliseconds.
    pub interval_ms: u64,
    /// By SOURCE/READING.
    pub series: BTreeMap<String, Series>,
    /// What could not be read.
    pub missing: Vec<String>,
    /// What else was seen.
    pub notes: Vec<String>,
    /// CPU time of the sampling thread, seconds: its cost.
    pub own_cpu_s: f64,
}

impl Samples {
    /// Takes in what another collector saw from the beginning of these samples up to `until_ms` (since 1970), each series under
    /// `name`. Whether any of it was in that time.
    pub fn take(&mut self, name: &str, other: &Samples, until_ms: u64) -> bool {
        let (from, width) = (self.started_ms, self.interval_ms);
        let mut any = false;
        for (series, data) in &other.series {
            let at = |s: f64| other.started_ms + (s * 1000.0) as u64;
            let weights = data.bins.iter().filter(|b| b.mean().is_some());
            for ((second, value), bin) in data.points().into_iter().zip(weights) {
                let at_ms = at(second);
                if (from..=until_ms).contains(&at_ms) && self.series.len() < MAX_SERIES_COUNT {
                    let to = self.series.entry(format!("{name}/{series}"));
                    to.or_insert_with(|| Series::new(&data.unit, width))
                        .add_part(at_ms - from, value, bin.weight());
                    any = true;
                }
            }
        }
        any
    }
}

/// How often it is looked whether a wait for sources is over.
const LOOK: Duration = Duration::from_millis(50);
/// Looks at a sampler that has to end, until it is left to itself: 1 s.
const END_LOOKS: u32 = 20;

/// A running sampler.
#[derive(Debug)]
pub struct Sampler {
    stop: mpsc::Sender<()>,
    done: mpsc::Receiver<Samples>,
}

impl Sampler {
    /// Starts to sample `sources`, now and at every `interval`. Returns when all have been read once: what is counted from then on is
    /// in the series. It returns sooner when `ends` says that all has to end.
    pub fn start(
        sources: Vec<Box<dyn Source>>,
        interval: Duration,
        ends: &dyn Fn() -> bool,
    ) -> std::io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel();
        let (read, was_read) = mpsc::channel();
        let (give, done) = mpsc::channel();
        let work = move || give.send(sample(sources, interval, read, &stopped));
        clock::spawn("lab-sampler", work)?;
        // A thread that has failed says nothing, and has no samples.
        while was_read.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) && !ends() {}
        Ok(Sampler { stop, done })
    }

    /// Takes a last sample and ends. Sources are not waited for long when `ends` says that all has to end.
    pub fn stop(self, ends: &dyn Fn() -> bool) -> Samples {
        let _ = self.stop.send(());
        let mut looks = 0;
        loop {
            match self.done.recv_timeout(LOOK) {
                Ok(samples) => return samples,
                Err(mpsc::RecvTimeoutError::Timeout) if looks < END_LOOKS => {
                    looks += u32::from(ends());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Samples {
                        started_ms: clock::unix_ms(),
                        missing: vec!["all samples: a source did not answer at the end".into()],
                        ..Samples::default()
                    };
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Samples::default(),
            }
        }
    }
}

fn sample(
    mut sources: Vec<Box<dyn Source>>,
    interval: Duration,
    read: mpsc::Sender<()>,
    stopped: &mpsc::Receiver<()>,
) -> Samples {
    let begin = clock::now();
    let mut out = Samples {
        started_ms: clock::unix_ms(),
        interval_ms: interval.as_millis() as u64,
        ..Samples::default()
    };
    let mut before: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    let mut next = begin;
    loop {
        for s in &mut sources {
            let mut missing = vec![];
            // Before the reading: what is counted comes first in every source, and naming threads and asking others may take long.
            let at_us = begin.elapsed().as_micros() as u64;
            let readings = s.read(&mut missing);
            let name = s.name();
            out.missing
                .extend(missing.iter().map(|m| format!("{name}: {m}")));
            for r in readings {
                let key = format!("{name}/{}", r.name);
                let sample = if r.counter {
                    rate(&mut before, &key, at_us, r.value)
                } else {
                    Some((r.value, interval.as_secs_f64()))
                };
                if let Some(sample) = sample {
                    add(&mut out, key, &r, at_us / 1000, sample);
                }
            }
        }
        let _ = read.send(());
        out.missing.sort();
        out.missing.dedup();
        // Times that were missed, because reading took longer than the interval, are left out.
        while next <= clock::now() {
            next += interval;
        }
        match stopped.recv_timeout(next.saturating_duration_since(clock::now())) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            // The end is sampled too: a short run would have no rate otherwise.
            _ => {
                finish(&mut out, &mut sources, &mut before, begin);
                out.missing.sort();
                out.missing.dedup();
                break;
            }
        }
    }
    out.notes.extend(sources.iter_mut().flat_map(|s| s.notes()));
    out.own_cpu_s = own_cpu();
    out
}

/// The last sample: rates since the one before.
fn finish(
    out: &mut Samples,
    sources: &mut [Box<dyn Source>],
    before: &mut BTreeMap<String, (u64, f64)>,
    begin: std::time::Instant,
) {
    for s in sources {
        let at_us = begin.elapsed().as_micros() as u64;
        let mut missing = vec![];
        let readings = s.read(&mut missing);
        let name = s.name();
        let missing = missing.iter().map(|m| format!("{name}: {m}"));
        out.missing.extend(missing);
        for r in readings.into_iter().filter(|r| r.counter) {
            let key = format!("{name}/{}", r.name);
            if let Some(sample) = rate(before, &key, at_us, r.value) {
                add(out, key, &r, at_us / 1000, sample);
            }
        }
    }
}

/// Growth per second since the last reading, and how many seconds that are; none at the first, and when the counter began anew.
fn rate(
    before: &mut BTreeMap<String, (u64, f64)>,
    key: &str,
    at_us: u64,
    value: f64,
) -> Option<(f64, f64)> {
    let (then, old) = before.insert(key.to_owned(), (at_us, value))?;
    let seconds = at_us.saturating_sub(then) as f64 / 1e6;
    (value >= old && seconds > 0.0).then(|| ((value - old) / seconds, seconds))
}

/// Adds a value that tells of so many seconds.
fn add(out: &mut Samples, key: String, r: &Reading, at_ms: u64, (value, seconds): (f64, f64)) {
    if !out.series.contains_key(&key) && out.series.len() >= MAX_SERIES_COUNT {
        let what = format!("series beyond the first {MAX_SERIES_COUNT}");
        if !out.missing.contains(&what) {
            out.missing.push(what);
        }
        return;
    }
    let (counter, unit, width) = (r.counter, &r.unit, out.interval_ms);
    out.series
        .entry(key)
        .or_insert_with(|| match counter {
            true => Series::new(&format!("{unit}/s"), width),
            false => Series::new(unit, width),
        })
        .add_part(at_ms, value, seconds * 1000.0 / width.max(1) as f64);
}

/// CPU time of the calling thread, seconds.
fn own_cpu() -> f64 {
    // The first number is the time on a CPU in nanoseconds.
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|t| t.split(' ').next()?.parse::<f64>().ok())
        .map_or(0.0, |ns| ns / 1e9)
}

/// A function that asks a Coral process for its status.
pub type FromStatus = Box<dyn FnMut() -> Result<Value, String> + Send>;

/// A failure that took so long is silence: the others are not made to wait for it again.
const SILENT: Duration = Duration::from_millis(500);

/// A Coral process: every number at the top of its status, as a counter.
pub(crate) struct Node {
    name: String,
    ask: FromStatus,
    is_silent: bool,
}

impl Node {
    pub(crate) fn new(name: &str, ask: FromStatus) -> Node {
        Node {
            name: name.to_owned(),
            ask,
            is_silent: false,
        }
    }
}

/// Numbers of a status that are no counters.
const NO_COUNTERS: &[&str] = &["pid", "port"];

impl Source for Node {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
        if self.is_silent {
            return vec![];
        }
        let asked = clock::now();
        match (self.ask)() {
            Ok(Value::Object(status)) => status
                .iter()
                .filter(|(k, _)| !NO_COUNTERS.contains(&k.as_str()))
                .filter_map(|(k, v)| {
                    Some(Reading::counter(
                        k.clone(),
                        if k.ends_with("bytes") { "bytes" } else { "1" },
                        v.as_f64()?,
                    ))
                })
                .collect(),
            Ok(_) => vec![],
            Err(e) => {
                self.is_silent = clock::now().duration_since(asked) >= SILENT;
                missing.push(match self.is_silent {
                    true => format!("{e}, and was not asked again"),
                    false => e,
                });
                vec![]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(f64);

    impl Source for Fake {
        fn name(&self) -> String {
            "fake".into()
        }

        fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
            self.0 += 1.0;
            missing.push("a file".into());
            vec![
                Reading::gauge("level", "x", self.0),
                Reading::counter(
                    "count",
                    "bytes",
                    if self.0 == 3.0 { 0.0 } else { self.0 * 100.0 },
                ),
            ]
        }

        fn notes(&mut self) -> Vec<String> {
            vec![format!("{} readings", self.0)]
        }
    }

    #[test]
    fn gauges_are_kept_and_counters_become_rates() {
        let sources: Vec<Box<dyn Source>> = vec![Box::new(Fake(0.0))];
        let s = Sampler::start(sources, Duration::from_millis(50), &|| false).unwrap();
        clock::pause(Duration::from_millis(420));
        let got = s.stop(&|| false);
        let level = &got.series["fake/level"];
        let n: u32 = level.bins.iter().map(|b| b.count).sum();
        assert!(n >= 2 && level.max() == Some(f64::from(n)), "{got:?}");
        let count = &got.series["fake/count"];
        // Each rate times its time is what was counted: 100 a reading, and 400 from the one where it began anew.
        let counted = count.bins.iter().map(|b| b.sum).sum::<f64>() * 0.05;
        let rates: u32 = count.bins.iter().map(|b| b.count).sum();
        let want = if rates > 1 { 300 } else { 0 } + 100 * rates;
        assert!(
            (counted - f64::from(want)).abs() < 0.001,
            "{counted}: {count:?}"
        );
        assert_eq!((count.unit.as_str(), level.unit.as_str()), ("bytes/s", "x"));
        assert!(
            count.bins.iter().all(|b| b.count == 0 || b.min > 0.0),
            "a counter that began anew has no rate: {count:?}"
        );
        assert_eq!(got.missing, ["fake: a file"]);
        assert!(got.notes[0].ends_with("readings"));
        let again: Samples = serde_json::from_str(&serde_json::to_string(&got).unwrap()).unwrap();
        assert_eq!(again.series.len(), 2);
    }

    #[test]
    fn rates_are_differences_by_time() {
        let mut b = BTreeMap::new();
        assert_eq!(rate(&mut b, "k", 0, 10.0), None);
        assert_eq!(rate(&mut b, "k", 500_000, 20.0), Some((20.0, 0.5)));
        assert_eq!(rate(&mut b, "k", 600_000, 5.0), None);
        assert_eq!(rate(&mut b, "k", 1_600_000, 6.0), Some((1.0, 1.0)));
        assert_eq!(rate(&mut b, "k", 1_600_000, 7.0), None);
    }

    #[test]
    fn a_status_gives_its_numbers_and_a_silent_node_is_missing() {
        let status = serde_json::json!({"pid": 7, "routed": 3, "routed_bytes": 4096, "kind": "router", "nids": ["x"]});
        let mut n = Node::new("router", Box::new(move || Ok(status.clone())));
        let r = n.read(&mut vec![]);
        assert_eq!(
            r,
            [
                Reading::counter("routed", "1", 3.0),
                Reading::counter("routed_bytes", "bytes", 4096.0)
            ]
        );
        n.ask = Box::new(|| Err("no answer".into()));
        let mut missing = vec![];
        assert!(n.read(&mut missing).is_empty());
        assert_eq!(missing, ["no answer"]);
        n.ask = Box::new(|| {
            clock::pause(SILENT);
            Err("no answer".into())
        });
        n.read(&mut missing);
        n.ask = Box::new(|| panic!("it is asked again"));
        n.read(&mut missing);
        assert_eq!(missing[1..], ["no answer, and was not asked again"]);
    }

    /// A source that does not answer for a minute.
    struct Hangs;

    impl Source for Hangs {
        fn name(&self) -> String {
            "host".into()
        }

        fn read(&mut self, _: &mut Vec<String>) -> Vec<Reading> {
            clock::pause(Duration::from_secs(60));
            vec![]
        }
    }

    #[test]
    fn a_source_that_hangs_is_not_waited_for_when_all_has_to_end() {
        let begun = clock::now();
        let asked = std::cell::Cell::new(0);
        let ends = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let s = Sampler::start(vec![Box::new(Hangs)], Duration::from_secs(1), &ends).unwrap();
        assert_eq!(asked.get(), 3);
        let got = s.stop(&ends);
        assert!(got.missing[0].contains("did not answer"), "{got:?}");
        assert!(clock::now().duration_since(begun) < Duration::from_secs(30));
    }
}
