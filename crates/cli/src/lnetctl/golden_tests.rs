//! What is printed, beside what Lustre's own tools (2.17.57) printed of a kernel client and a kernel router: `tests/golden`.
//!
//! The pictures hold the numbers of those nodes. Different by intent, and masked here: times of exchanges, `msgs_max`, `rst_alloc`
//! (not kept), names of interfaces (the machine's), and in the table `nis` the columns `alive` and `refs`.

use super::show;
use super::yaml::{Style, Yaml};
use serde_json::{Value, json};

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("../../tests/golden/", $name))
    };
}

/// The golden text without what this node does not keep.
fn masked(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() == "interfaces:" {
            lines.next();
            continue;
        }
        let unknown = ["_samples:", "_nsec:", "msgs_max:", "rst_alloc:"]
            .iter()
            .any(|k| line.contains(k));
        match line.rsplit_once(' ') {
            Some((key, _)) if unknown => out += &format!("{key} 0\n"),
            _ => out += &format!("{line}\n"),
        }
    }
    out
}

fn kernel(y: Option<Yaml>) -> String {
    y.expect("something to show").print(Style::Netlink(6))
}

fn counts(put: u64, get: u64, reply: u64, ack: u64) -> Value {
    json!({"put": put, "get": get, "reply": reply, "ack": ack})
}

fn traffic(sent: Value, received: Value) -> Value {
    json!({"sent": sent, "received": received, "dropped": counts(0, 0, 0, 0)})
}

fn health(value: u32) -> Value {
    json!({"value": value, "dropped": 0, "timeouts": 0, "errors": 0, "ping_count": 0, "next_ping": 0})
}

fn lo() -> Value {
    let none = || counts(0, 0, 0, 0);
    json!({"nid": "0@lo", "up": true, "traffic": traffic(none(), none()), "health": health(0), "tx_credits": 0, "min_tx_credits": 0,
        "tunables": {"peer_timeout": 0, "peer_credits": 0, "peer_buffer_credits": 0, "credits": 0}})
}

fn ni(nid: &str, traffic: Value, least: u64) -> Value {
    json!({"nid": nid, "up": true, "traffic": traffic, "health": health(1000), "tx_credits": 256, "min_tx_credits": least,
        "tunables": {"peer_timeout": 180, "peer_credits": 8, "peer_buffer_credits": 0, "credits": 256}})
}

fn peer(nid: &str, state: &str, traffic: Value, min_tx: u64, min_rtr: u64) -> Value {
    json!({"primary_nid": nid, "multi_rail": true, "router": false, "nis": [{
        "nid": nid, "state": state, "max_tx_credits": 8, "tx_credits": 8, "min_tx_credits": min_tx, "tx_queued_bytes": 0,
        "rtr_credits": 8, "min_rtr_credits": min_rtr, "conns": 3, "traffic": traffic, "health": health(1000)}]})
}

fn client() -> Value {
    let t = || traffic(counts(1, 3, 0, 0), counts(0, 0, 3, 1));
    json!({
        "nets": [{"net": "lo", "nis": [lo()]}, {"net": "tcp", "nis": [ni("10.77.0.3@tcp", t(), 255)]}],
        "peers": [peer("10.77.0.2@tcp", "NA", t(), 7, 8)],
        "routes": [{"net": "tcp", "gateway": "10.78.0.4@tcp1", "hops": -1, "priority": 0, "up": false, "multi_hop": true}],
        "routing": {"enabled": false},
        "stats": {"sent": 4, "received": 4, "sent_bytes": 48, "received_bytes": 144, "routed": 0, "routed_bytes": 0, "dropped": 0, "resent": 0, "response_timeouts": 0, "local_no_route": 0},
        "global": {"discovery": 1, "retry_count": 2, "transaction_timeout": 150, "recovery_interval": 1, "max_recovery_ping_interval": 900, "lnd_timeout": 49},
    })
}

fn router() -> Value {
    let t = || traffic(counts(101, 0, 0, 0), counts(101, 0, 0, 0));
    let pool = |pages: u64, all: u64, least: u64| json!({"npages": pages, "nbuffers": all, "credits": all, "mincredits": least});
    json!({
        "nets": [{"net": "lo", "nis": [lo()]}, {"net": "tcp", "nis": [ni("10.77.0.4@tcp", t(), 253)]}, {"net": "tcp1", "nis": [ni("10.78.0.4@tcp1", t(), 252)]}],
        "peers": [peer("10.78.0.3@tcp1", "up", t(), 4, 5), peer("10.77.0.2@tcp", "up", t(), 5, 4)],
        "routes": [],
        "routing": {"enabled": true, "tiny": pool(0, 2048, 2044), "small": pool(1, 16384, 16381), "large": pool(256, 1024, 1022)},
        "stats": {"sent": 12, "received": 12, "sent_bytes": 512, "received_bytes": 192, "routed": 190, "routed_bytes": 8_499_920, "dropped": 0, "resent": 0, "response_timeouts": 0, "local_no_route": 0},
    })
}

#[test]
fn a_client_is_shown_as_the_kernel_tool_shows_it() {
    let p = client();
    assert_eq!(
        kernel(show::nets(&p, None, 2)),
        masked(golden!("net-v2.yaml"))
    );
    assert_eq!(
        kernel(show::peers(&p, None, 2, false)),
        masked(golden!("peer-v2.yaml"))
    );
    assert_eq!(
        show::stats(&p).print(Style::Own),
        masked(golden!("stats.yaml"))
    );
    assert_eq!(show::global(&p).print(Style::Own), golden!("global.yaml"));
    assert_eq!(
        kernel(show::routes(&p, None, None, true)),
        golden!("route-v.yaml")
    );
    let mut p = p;
    p["routes"][0]["up"] = true.into();
    let table = show::proc_table(&p, "routes").unwrap();
    assert!(
        table.starts_with("Routing disabled\n") && table.ends_with(golden!("client-routes.txt")),
        "{table}"
    );
}

#[test]
fn export_is_what_the_kernel_tool_exports() {
    let p = client();
    let ours = kernel(show::nets_backup(&p))
        + &kernel(show::peers(&p, None, 0, true))
        + &show::global(&p).print(Style::Own);
    // Without an interface of that address here, the NID stands for it.
    let theirs = golden!("export.yaml").replace(
        "interfaces:\n                  0: eth0\n",
        "nid: 10.77.0.3@tcp\n",
    );
    assert_eq!(ours, theirs);
}

#[test]
fn a_router_is_shown_as_the_kernel_tool_shows_it() {
    let p = router();
    assert_eq!(
        show::routing(&p).print(Style::Own),
        golden!("router-routing.yaml")
    );
    assert_eq!(
        kernel(show::nets(&p, None, 1)),
        masked(golden!("router-net-v1.yaml"))
    );
    assert_eq!(
        kernel(show::peers(&p, None, 1, false)),
        masked(golden!("router-peer-v1.yaml"))
    );
    assert_eq!(
        show::stats(&p).print(Style::Own),
        masked(golden!("router-stats.yaml"))
    );
}

/// LNet's own tables, as `lctl get_param` prints them.
#[test]
fn tables_are_the_kernels() {
    let (p, mut theirs) = (router(), golden!("router-tables.txt").lines().peekable());
    let columns = |text: &str, mask: &[usize]| -> Vec<String> {
        let mask_one = |(i, word): (usize, &str)| {
            if mask.contains(&i) {
                "-".to_owned()
            } else {
                word.to_owned()
            }
        };
        text.split_whitespace().enumerate().map(mask_one).collect()
    };
    for which in ["routes", "buffers", "peers", "nis"] {
        assert_eq!(theirs.next(), Some(format!("{which}=").as_str()));
        for ours in show::proc_table(&p, which).unwrap().lines() {
            let line = theirs.next().unwrap_or_default();
            if which == "nis" && line.contains('@') {
                assert_eq!(columns(ours, &[2, 3]), columns(line, &[2, 3]), "{which}");
                assert_eq!(ours.len(), line.len(), "{which}: {ours}");
            } else {
                assert_eq!(ours, line, "{which}");
            }
        }
    }
    let stats = show::proc_table(&p, "stats").unwrap();
    assert_eq!(
        columns(&stats, &[1]),
        columns(theirs.next().unwrap().trim_start_matches("stats="), &[1])
    );
}

#[test]
fn answers_of_ping_and_discover() {
    let found = |verb: &str| {
        super::answered(
            verb,
            &json!({"nids": ["10.77.0.2@tcp"], "multi_rail": true}),
            "10.77.0.2@tcp",
        )
    };
    assert_eq!(found("ping"), golden!("ping.yaml"));
    assert_eq!(found("discover"), golden!("discover.yaml"));
}
