//! Data of sar(1), as `sadf -j FILE -- -A` prints it.
//!
//! Names of fields differ between versions of sysstat and its options, so all numbers are taken under the names they have.

use super::sampler::{MAX_SERIES_COUNT, Samples};
use super::series::Series;
use serde_json::Value;

/// Keys that name the member of a list.
const NAMES: &[&str] = &[
    "cpu",
    "disk-device",
    "iface",
    "intr",
    "line",
    "filesystem",
    "number",
    "bus_number",
    "name",
];

/// Reads what `sadf -j` printed: every number becomes a sample of `sar/GROUP/.../NAME`.
pub fn read_sadf(text: &str) -> Result<Samples, String> {
    let v: Value = serde_json::from_str(text)
        .map_err(|e| format!("this is not the output of `sadf -j`: {e}"))?;
    let host = v["sysstat"]["hosts"]
        .get(0)
        .ok_or("this is not the output of `sadf -j`: it has no sysstat.hosts")?;
    let statistics = host["statistics"]
        .as_array()
        .ok_or("sadf's output has no statistics")?;
    let mut out = Samples::default();
    for s in statistics {
        let Some(at) = seconds(&s["timestamp"]) else {
            continue;
        };
        let interval = s["timestamp"]["interval"].as_u64().unwrap_or(1).max(1);
        let interval = interval.saturating_mul(1000);
        if out.started_ms == 0 {
            // A line tells of the interval that ends with its time.
            out.started_ms = (at * 1000).saturating_sub(interval);
            out.interval_ms = interval;
        }
        let at_ms = (at * 1000)
            .saturating_sub(out.started_ms)
            .saturating_sub(out.interval_ms / 2);
        for (group, value) in s
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(k, _)| *k != "timestamp")
        {
            flatten(&format!("sar/{group}"), value, &mut |name, number| {
                if out.series.len() < MAX_SERIES_COUNT || out.series.contains_key(name) {
                    let width = out.interval_ms;
                    out.series
                        .entry(name.to_owned())
                        .or_insert_with(|| Series::new("as sar has it", width))
                        .add(at_ms, number);
                } else if out.missing.is_empty() {
                    out.missing
                        .push(format!("series beyond the first {MAX_SERIES_COUNT}"));
                }
            });
        }
    }
    if out.series.is_empty() {
        return Err("sadf's output has no numbers".into());
    }
    Ok(out)
}

fn flatten(path: &str, v: &Value, take: &mut dyn FnMut(&str, f64)) {
    match v {
        Value::Number(n) => take(path, n.as_f64().unwrap_or(f64::NAN)),
        Value::Object(o) => {
            for (k, v) in o.iter().filter(|(k, _)| !NAMES.contains(&k.as_str())) {
                flatten(&format!("{path}/{k}"), v, take);
            }
        }
        Value::Array(list) => {
            for (i, member) in list.iter().enumerate() {
                let name = NAMES.iter().find_map(|k| match &member[*k] {
                    Value::String(s) => Some(s.clone()),
                    Value::Number(n) => Some(n.to_string()),
                    _ => None,
                });
                flatten(
                    &format!("{path}/{}", name.unwrap_or_else(|| i.to_string())),
                    member,
                    take,
                );
            }
        }
        _ => {}
    }
}

/// Seconds since 1970 of `{"date": "2026-01-31", "time": "23:59:59"}`, taken as UTC.
fn seconds(t: &Value) -> Option<u64> {
    let text = format!("{}T{}Z", t["date"].as_str()?, t["time"].as_str()?);
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(time: &str, idle: f64) -> Value {
        json!({
            "timestamp": {"date": "2026-03-01", "time": time, "utc": 1, "interval": 10},
            "cpu-load": [{"cpu": "all", "user": 5.0, "idle": idle}, {"cpu": "0", "usr": 7.5, "idle": idle}],
            "network": {"net-dev": [{"iface": "eth0", "rxkB": 12.5, "speed": 10}]},
            "queue": {"runq-sz": 3, "ldavg-1": 0.5},
            "disk": [{"disk-device": "sda", "tps": 4.0}],
        })
    }

    #[test]
    fn numbers_get_the_names_they_have() {
        let text = json!({"sysstat": {"hosts": [{"nodename": "n", "statistics": [line("00:00:10", 90.0), line("00:00:20", 50.0)]}]}}).to_string();
        let s = read_sadf(&text).unwrap();
        assert_eq!((s.started_ms, s.interval_ms), (1_772_323_200_000, 10_000));
        assert_eq!(
            s.series["sar/cpu-load/all/idle"].points(),
            [(5.0, 90.0), (15.0, 50.0)]
        );
        for name in [
            "sar/cpu-load/0/usr",
            "sar/network/net-dev/eth0/rxkB",
            "sar/queue/runq-sz",
            "sar/disk/sda/tps",
        ] {
            assert!(s.series.contains_key(name), "{name}: {:?}", s.series.keys());
        }
        let mut beside = Samples {
            started_ms: s.started_ms + 10_000,
            interval_ms: 1000,
            ..Samples::default()
        };
        assert!(!beside.take("oss1", &s, s.started_ms + 12_000));
        assert!(beside.take("oss1", &s, s.started_ms + 20_000));
        let idle = &beside.series["oss1/sar/cpu-load/all/idle"];
        assert_eq!((idle.points().len(), idle.max()), (1, Some(50.0)));
        for bad in [
            "",
            "{}",
            r#"{"sysstat": {"hosts": [{"statistics": []}]}}"#,
            r#"{"sysstat": {"hosts": [{"statistics": [{"timestamp": {"date": "2026-03-01", "time": "00:00:10", "interval": 18446744073709551615}}]}]}}"#,
            r#"{"sysstat": {"hosts": [{"statistics": [{"timestamp": {"date": "x"}}]}]}}"#,
        ] {
            assert!(read_sadf(bad).is_err(), "{bad}");
        }
    }
}
