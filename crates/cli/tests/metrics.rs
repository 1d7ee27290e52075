//! `coral metrics` of a running process: text that Prometheus reads, and JSON.

mod common;

use common::*;
use std::collections::{BTreeMap, BTreeSet};

/// Series of the text by name and labels. Whatever Prometheus would refuse fails the test.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let (mut types, mut name) = (BTreeSet::new(), "");
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            name = typed.split(' ').next().unwrap();
            assert!(types.insert(name), "{name} is declared twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (what, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(what.starts_with(name), "{what} is not of {name}");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let twice = series.insert(what.to_owned(), value);
        assert_eq!(twice, None, "{what} is there twice");
    }
    series
}

fn sum(series: &BTreeMap<String, f64>, name: &str, label: &str) -> f64 {
    let of =
        |(what, _): &(&String, &f64)| what.split('{').next() == Some(name) && what.contains(label);
    series.iter().filter(of).map(|(_, v)| v).sum()
}

#[test]
fn metrics_of_a_file_system_and_its_mount() {
    in_namespace("metrics_of_a_file_system_and_its_mount", || {
        let place = Place::new();
        let _running = place.up(&[]);
        let (data, mnt) = (place.path("data"), place.path("mnt"));
        let metrics =
            |of: &std::path::Path, more: &[&str]| ok(coral().arg("metrics").arg(of).args(more));
        for i in 0..20 {
            std::fs::write(mnt.join(format!("f{i}")), vec![i; 8192]).unwrap();
        }
        std::fs::File::open(mnt.join("f0"))
            .unwrap()
            .sync_all()
            .unwrap();
        let seen = parse(&metrics(&data, &[]));
        let creates = sum(&seen, "coral_fuse_requests_total", "opcode=\"CREATE\"");
        assert_eq!(creates, 20.0);
        let answered = sum(&seen, "coral_fuse_request_seconds_count", "\"CREATE\"");
        assert_eq!(answered, creates);
        assert_eq!(sum(&seen, "coral_llite_write_bytes_sum", ""), 20.0 * 8192.0);
        let written = sum(&seen, "coral_target_write_bytes_sum", "coral-OST");
        assert!((8192.0..=20.0 * 8192.0).contains(&written), "{written}");
        assert!(sum(&seen, "coral_osd_sync_seconds_count", "") > 0.0);
        assert!(sum(&seen, "coral_target_transactions_total", "MDT0000") >= 20.0);
        let nodes: BTreeSet<_> = seen
            .keys()
            .filter_map(|k| k.split("node=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(
            nodes,
            BTreeSet::from(["127.0.0.1@tcp"]),
            "one of servers and mount"
        );

        // the same process, by its mount; JSON
        let by_mount = parse(&metrics(&mnt, &["--node", "127.0.0.1@tcp"]));
        assert!(sum(&by_mount, "coral_target_exports", "") > 0.0);
        assert!(sum(&by_mount, "coral_fuse_requests_total", "") > 0.0);
        let json: serde_json::Value = serde_json::from_str(&metrics(&data, &["--json"])).unwrap();
        let took = json
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["name"] == "coral_ptlrpc_service_request_seconds");
        let took = took.expect("requests were served");
        assert_eq!(
            (&took["type"], &took["unit"]),
            (&"histogram".into(), &"seconds".into())
        );
        let series = took["series"].as_array().unwrap();
        for s in series {
            let (p50, p99) = (s["p50"].as_f64().unwrap(), s["p99"].as_f64().unwrap());
            assert!(
                0.0 < p50 && p50 <= p99 && p99 <= s["max"].as_f64().unwrap(),
                "{s}"
            );
        }

        let bad = |more: &[&str]| fails(coral().arg("metrics").arg(&data).args(more)).1;
        let said = bad(&["--node", "10.9.9.9@tcp"]);
        assert!(
            said.contains("no such node in this process; it has: 127.0.0.1@tcp"),
            "{said}"
        );
        let said = fails(coral().arg("metrics").arg(place.path("nothing"))).1;
        assert!(said.contains("nothing"), "{said}");
        // whoever stops reading ends it without a panic
        let said = ok(std::process::Command::new("sh").arg("-c").arg(format!(
            "{} metrics {} 2>&1 | head -1",
            coral().get_program().display(),
            data.display()
        )));
        assert!(said.starts_with("# HELP coral_"), "{said}");
        assert!(!said.contains("panicked"));
    });
}
