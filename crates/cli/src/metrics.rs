//! `coral metrics`: what the nodes of a running process have counted, as text for Prometheus or JSON.

use crate::args::Metrics;
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use serde_json::json;
use std::io::Write;

/// Entry of `coral metrics`.
pub(crate) fn run(m: Metrics) -> Result<(), String> {
    let socket = find::socket(
        m.dir.as_deref(),
        None,
        "`coral metrics DIR`, a mount point or a pid",
    )?;
    let ask = LnetAsk {
        node: m.node,
        act: Act::Metrics { json: m.json },
    };
    let answer = find::ask(&socket, &json!({ "lnet": ask }))?;
    if let Some(why) = answer["error"].as_str() {
        return Err(why.to_owned());
    }
    let text = match answer["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("{:#}\n", answer["metrics"]),
    };
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|e| format!("cannot print: {e}"))
}

#[cfg(test)]
mod tests {
    use coral_metrics::{Desc, Kind, Stability};
    use std::collections::BTreeSet;

    /// The tables of all layers.
    fn tables() -> Vec<&'static Desc> {
        [
            coral_lnet::METRICS,
            coral_ptlrpc::METRICS,
            coral_ldlm::METRICS,
            coral_osd::METRICS,
            coral_server::METRICS,
            coral_client::METRICS,
            coral_fuse::METRICS,
        ]
        .into_iter()
        .flatten()
        .flat_map(|table| table.iter())
        .collect()
    }

    /// A row as the reference has it.
    fn row(d: &Desc) -> String {
        let kind = match d.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let stability = match d.stability {
            Stability::Stable => "",
            Stability::Experimental => ", experimental",
        };
        let unit = format!("{:?}", d.unit).to_lowercase();
        format!("| `{}` | {kind}{stability} | {unit} | {} |", d.name, d.help)
    }

    #[test]
    fn names_are_unique_and_follow_the_rules() {
        let all = tables();
        let faults: Vec<String> = all.iter().filter_map(|d| d.fault()).collect();
        assert_eq!(faults, Vec::<String>::new());
        let names: BTreeSet<_> = all.iter().map(|d| d.name).collect();
        assert_eq!(names.len(), all.len(), "a name is there twice");
    }

    /// `CORAL_PRINT=1 cargo test -p coral-cli --bin coral the_reference -- --nocapture` prints the rows that belong there.
    #[test]
    fn the_reference_has_every_metric_and_no_other() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
        let text = std::fs::read_to_string(path).unwrap();
        let there: BTreeSet<&str> = text
            .lines()
            .filter(|l| l.starts_with("| `coral_"))
            .collect();
        let rows: Vec<String> = tables().into_iter().map(row).collect();
        if std::env::var_os("CORAL_PRINT").is_some() {
            println!("{}", rows.join("\n"));
        }
        let declared: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
        let missing: Vec<_> = declared.difference(&there).collect();
        let wrong: Vec<_> = there.difference(&declared).collect();
        assert!(
            missing.is_empty() && wrong.is_empty(),
            "docs/reference.md lacks {missing:#?}\nand has {wrong:#?}"
        );
    }
}
