//! What `lnetctl ... show` prints, from the picture a node gives of itself. Names and order are those of the kernel's tool
//! (docs: `lnet/utils/lnetconfig`); numbers this node does not keep are 0.

use super::yaml::{Yaml, map};
use serde_json::Value;

fn n(v: &Value) -> Yaml {
    Yaml::Text(v.as_str().map_or_else(|| v.to_string(), str::to_owned))
}

fn total(counts: &Value) -> u64 {
    ["put", "get", "reply", "ack"]
        .iter()
        .filter_map(|k| counts[*k].as_u64())
        .sum()
}

fn list<'a>(v: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    v[key].as_array().into_iter().flatten()
}

fn by_type(counts: &Value) -> Yaml {
    map([
        ("put", n(&counts["put"])),
        ("get", n(&counts["get"])),
        ("reply", n(&counts["reply"])),
        ("ack", n(&counts["ack"])),
        ("hello", 0u64.into()),
    ])
}

/// The times of exchanges are not kept.
fn statistics(traffic: &Value) -> Yaml {
    let mut out = map([
        ("send_count", total(&traffic["sent"]).into()),
        ("recv_count", total(&traffic["received"]).into()),
        ("drop_count", total(&traffic["dropped"]).into()),
    ]);
    for kind in ["put_egress", "get_rtt", "put_ack"] {
        for (what, unit) in [
            ("samples", ""),
            ("min", "_nsec"),
            ("max", "_nsec"),
            ("avg", "_nsec"),
        ] {
            out = out.with(&format!("{kind}_{what}{unit}"), 0u64);
        }
    }
    out
}

fn with_types(out: Yaml, traffic: &Value) -> Yaml {
    ["sent", "received", "dropped"].iter().fold(out, |o, k| {
        o.with(&format!("{k}_stats"), by_type(&traffic[*k]))
    })
}

fn interface(nid: &str) -> Option<Yaml> {
    let name = super::find::interface_of(nid)?;
    Some(map([("0", name.into())]))
}

fn lnd_tunables(verbose: bool) -> Yaml {
    let out = map([("conns_per_peer", 1u64.into())]);
    let out = if verbose {
        out.with("timeout", 50u64)
    } else {
        out
    };
    out.with("tos", -1i64)
}

fn ni(v: &Value, verbose: u32) -> Yaml {
    let nid = v["nid"].as_str().unwrap_or("");
    let lo = nid.ends_with("@lo");
    let mut out = map([
        ("nid", nid.into()),
        ("status", if v["up"] == true { "up" } else { "down" }.into()),
    ]);
    if let Some(names) = interface(nid) {
        out = out.with("interfaces", names);
    }
    if verbose == 0 {
        return out;
    }
    out = out.with("statistics", statistics(&v["traffic"]));
    if verbose > 1 {
        let h = &v["health"];
        let zero = || Yaml::from(0u64);
        out = with_types(out, &v["traffic"]).with(
            "health stats",
            map([
                ("fatal_error", zero()),
                ("health value", n(&h["value"])),
                ("interrupts", zero()),
                ("dropped", n(&h["dropped"])),
                ("aborted", zero()),
                ("no route", zero()),
                ("timeouts", n(&h["timeouts"])),
                ("error", n(&h["errors"])),
                ("ping_count", n(&h["ping_count"])),
                ("next_ping", n(&h["next_ping"])),
            ]),
        );
    }
    out = out.with("tunables", tunables(v));
    if !lo {
        out = out.with("lnd tunables", lnd_tunables(true));
    }
    out.with("dev cpt", -1i64).with("CPT", "\"[0]\"")
}

fn tunables(ni: &Value) -> Yaml {
    let t = &ni["tunables"];
    map([
        ("peer_timeout", n(&t["peer_timeout"])),
        ("peer_credits", n(&t["peer_credits"])),
        ("peer_buffer_credits", n(&t["peer_buffer_credits"])),
        ("credits", n(&t["credits"])),
    ])
}

/// `net show`; None: no such network.
pub(crate) fn nets(picture: &Value, only: Option<&str>, verbose: u32) -> Option<Yaml> {
    let nets: Vec<Yaml> = list(picture, "nets")
        .filter(|net| only.is_none_or(|o| net["net"] == *o))
        .map(|net| {
            map([
                ("net type", n(&net["net"])),
                (
                    "local NI(s)",
                    Yaml::List(list(net, "nis").map(|v| ni(v, verbose)).collect()),
                ),
            ])
        })
        .collect();
    (!nets.is_empty()).then(|| map([("net", Yaml::List(nets))]))
}

/// The networks as `export` writes them: without loopback, states and counts.
pub(crate) fn nets_backup(picture: &Value) -> Option<Yaml> {
    let one = |v: &Value| {
        let mut out = Yaml::Map(Vec::new());
        if let Some(names) = interface(v["nid"].as_str().unwrap_or("")) {
            out = out.with("interfaces", names);
        } else {
            out = out.with("nid", n(&v["nid"]));
        }
        out.with("tunables", tunables(v))
            .with("lnd tunables", lnd_tunables(false))
            .with("CPT", "\"[0]\"")
    };
    let nets: Vec<Yaml> = list(picture, "nets")
        .filter(|net| net["net"] != "lo")
        .map(|net| {
            map([
                ("net type", n(&net["net"])),
                (
                    "local NI(s)",
                    Yaml::List(list(net, "nis").map(one).collect()),
                ),
            ])
        })
        .collect();
    (!nets.is_empty()).then(|| map([("net", Yaml::List(nets))]))
}

fn peer_ni(v: &Value, verbose: u32) -> Yaml {
    let mut out = map([("nid", n(&v["nid"])), ("state", n(&v["state"]))]);
    if verbose == 0 {
        return out;
    }
    for (key, from) in [
        ("max_ni_tx_credits", "max_tx_credits"),
        ("available_tx_credits", "tx_credits"),
        ("min_tx_credits", "min_tx_credits"),
        ("tx_q_num_of_buf", "tx_queued_bytes"),
        ("available_rtr_credits", "rtr_credits"),
        ("min_rtr_credits", "min_rtr_credits"),
    ] {
        out = out.with(key, n(&v[from]));
    }
    out = out
        .with("refcount", 1u64)
        .with("statistics", statistics(&v["traffic"]));
    if verbose > 1 {
        let h = &v["health"];
        out = with_types(out, &v["traffic"]).with(
            "health stats",
            map([
                ("health value", n(&h["value"])),
                ("dropped", n(&h["dropped"])),
                ("timeout", n(&h["timeouts"])),
                ("error", n(&h["errors"])),
                ("network timeout", 0u64.into()),
                ("ping_count", n(&h["ping_count"])),
                ("next_ping", n(&h["next_ping"])),
            ]),
        );
    }
    out
}

/// `peer show`; with `backup` as `export` writes them. None: no such peer.
pub(crate) fn peers(
    picture: &Value,
    only: Option<&str>,
    verbose: u32,
    backup: bool,
) -> Option<Yaml> {
    let has =
        |p: &Value, nid: &str| p["primary_nid"] == *nid || list(p, "nis").any(|v| v["nid"] == *nid);
    let flag = |v: &Value| if *v == true { "true" } else { "false" };
    let nis = |p: &Value| {
        list(p, "nis")
            .map(|v| {
                if backup {
                    map([("nid", n(&v["nid"]))])
                } else {
                    peer_ni(v, verbose)
                }
            })
            .collect()
    };
    let peers: Vec<Yaml> = list(picture, "peers")
        .filter(|p| only.is_none_or(|o| has(p, o)))
        .map(|p| {
            map([
                ("primary nid", n(&p["primary_nid"])),
                ("Multi-Rail", flag(&p["multi_rail"]).into()),
                ("peer ni", Yaml::List(nis(p))),
            ])
        })
        .collect();
    (!peers.is_empty()).then(|| map([("peer", Yaml::List(peers))]))
}

/// `peer list`.
pub(crate) fn peer_list(picture: &Value) -> Option<Yaml> {
    let peers: Vec<Yaml> = list(picture, "peers")
        .map(|p| map([("nid", n(&p["primary_nid"]))]))
        .collect();
    (!peers.is_empty()).then(|| map([("peer list", Yaml::List(peers))]))
}

/// `route show`; None: no such route.
pub(crate) fn routes(
    picture: &Value,
    net: Option<&str>,
    gateway: Option<&str>,
    verbose: bool,
) -> Option<Yaml> {
    let one = |r: &Value| {
        let out = map([
            ("net", n(&r["net"])),
            ("gateway", n(&r["gateway"])),
            ("hop", n(&r["hops"])),
            ("priority", n(&r["priority"])),
        ]);
        if !verbose {
            return out;
        }
        let state = if r["up"] == true { "up" } else { "down" };
        let kind = if r["multi_hop"] == true {
            "multi-hop"
        } else {
            "single-hop"
        };
        out.with("state", state).with("type", kind)
    };
    let routes: Vec<Yaml> = list(picture, "routes")
        .filter(|r| {
            net.is_none_or(|x| r["net"] == *x) && gateway.is_none_or(|g| r["gateway"] == *g)
        })
        .map(one)
        .collect();
    (!routes.is_empty()).then(|| map([("route", Yaml::List(routes))]))
}

/// `routing show`.
pub(crate) fn routing(picture: &Value) -> Yaml {
    let r = &picture["routing"];
    let pool = |p: &Value| {
        map([
            ("npages", n(&p["npages"])),
            ("nbuffers", n(&p["nbuffers"])),
            ("credits", n(&p["credits"])),
            ("mincredits", n(&p["mincredits"])),
        ])
    };
    let pools = map([
        ("tiny", pool(&r["tiny"])),
        ("small", pool(&r["small"])),
        ("large", pool(&r["large"])),
    ]);
    let enable = u64::from(r["enabled"] == true);
    let buffers = map([
        ("tiny", n(&r["tiny"]["nbuffers"])),
        ("small", n(&r["small"]["nbuffers"])),
        ("large", n(&r["large"]["nbuffers"])),
    ]);
    let rows = if enable == 1 {
        vec![map([("cpt[0]", pools)]), map([("enable", enable.into())])]
    } else {
        vec![map([("enable", enable.into())])]
    };
    map([("routing", Yaml::List(rows)), ("buffers", buffers)])
}

/// `stats show`.
pub(crate) fn stats(picture: &Value) -> Yaml {
    let s = &picture["stats"];
    let rows = [
        ("msgs_alloc", None),
        ("msgs_max", None),
        ("rst_alloc", None),
        ("errors", None),
        ("send_count", Some("sent")),
        ("resend_count", Some("resent")),
        ("response_timeout_count", Some("response_timeouts")),
        ("local_interrupt_count", None),
        ("local_dropped_count", None),
        ("local_aborted_count", None),
        ("local_no_route_count", Some("local_no_route")),
        ("local_timeout_count", None),
        ("local_error_count", None),
        ("remote_dropped_count", None),
        ("remote_error_count", None),
        ("remote_timeout_count", None),
        ("network_timeout_count", None),
        ("failed_resends", None),
        ("successful_resends", None),
        ("recv_count", Some("received")),
        ("route_count", Some("routed")),
        ("drop_count", Some("dropped")),
        ("send_length", Some("sent_bytes")),
        ("recv_length", Some("received_bytes")),
        ("route_length", Some("routed_bytes")),
        ("drop_length", None),
    ];
    let out = rows.iter().fold(Yaml::Map(Vec::new()), |o, (key, from)| {
        o.with(key, from.map_or(0u64.into(), |f| n(&s[f])))
    });
    map([("statistics", out)])
}

/// `global show`.
pub(crate) fn global(picture: &Value) -> Yaml {
    let g = &picture["global"];
    map([(
        "global",
        map([
            ("numa_range", 0u64.into()),
            ("max_interfaces", 4096u64.into()),
            ("discovery", n(&g["discovery"])),
            ("drop_asym_route", 0u64.into()),
            ("retry_count", n(&g["retry_count"])),
            ("transaction_timeout", n(&g["transaction_timeout"])),
            ("health_sensitivity", 100u64.into()),
            ("recovery_interval", n(&g["recovery_interval"])),
            ("router_sensitivity", 100u64.into()),
            ("lnd_timeout", n(&g["lnd_timeout"])),
            ("response_tracking", 3u64.into()),
            ("recovery_limit", 0u64.into()),
            (
                "max_recovery_ping_interval",
                n(&g["max_recovery_ping_interval"]),
            ),
        ]),
    )])
}

/// LNet's own tables as `lctl get_param -n stats peers nis routes buffers` prints them (`lnet/lnet/router_proc.c`).
pub(crate) fn proc_table(picture: &Value, which: &str) -> Option<String> {
    let int = |v: &Value| v.as_i64().unwrap_or(0);
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    let mut out = String::new();
    match which {
        "stats" => {
            let s = &picture["stats"];
            let cells = [
                0,
                0,
                0,
                int(&s["sent"]),
                int(&s["received"]),
                int(&s["routed"]),
                int(&s["dropped"]),
                int(&s["sent_bytes"]),
                int(&s["received_bytes"]),
                int(&s["routed_bytes"]),
                0,
            ];
            out = cells.map(|c| c.to_string()).join(" ") + "\n";
        }
        "routes" => {
            out += if picture["routing"]["enabled"] == true {
                "Routing enabled\n"
            } else {
                "Routing disabled\n"
            };
            out += &format!(
                "{:<8} {:>4} {:>8} {:>7} {}\n",
                "net", "hops", "priority", "state", "router"
            );
            for r in list(picture, "routes") {
                let state = if r["up"] == true { "up" } else { "down" };
                out += &format!(
                    "{:<8} {:>4} {:>8} {:>7} {}\n",
                    text(&r["net"]),
                    int(&r["hops"]),
                    int(&r["priority"]),
                    state,
                    text(&r["gateway"])
                );
            }
        }
        "buffers" => {
            out += &format!(
                "{:>5} {:>5} {:>7} {:>7}\n",
                "pages", "count", "credits", "min"
            );
            if picture["routing"]["enabled"] == true {
                for pool in ["tiny", "small", "large"] {
                    let p = &picture["routing"][pool];
                    out += &format!(
                        "{:>5} {:>5} {:>7} {:>7}\n",
                        int(&p["npages"]),
                        int(&p["nbuffers"]),
                        int(&p["credits"]),
                        int(&p["mincredits"])
                    );
                }
            }
        }
        "peers" => {
            out += &format!(
                "{:<24} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {}\n",
                "nid", "refs", "state", "last", "max", "rtr", "min", "tx", "min", "queue"
            );
            for v in list(picture, "peers").flat_map(|p| list(p, "nis")) {
                let c = |k: &str| int(&v[k]);
                out += &format!(
                    "{:<24} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {}\n",
                    text(&v["nid"]),
                    1,
                    text(&v["state"]),
                    -1,
                    c("max_tx_credits"),
                    c("rtr_credits"),
                    c("min_rtr_credits"),
                    c("tx_credits"),
                    c("min_tx_credits"),
                    c("tx_queued_bytes")
                );
            }
        }
        "nis" => {
            out += &format!(
                "{:<24} {:>6} {:>5} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5}\n",
                "nid", "status", "alive", "refs", "peer", "rtr", "max", "tx", "min"
            );
            for v in list(picture, "nets").flat_map(|p| list(p, "nis")) {
                let t = &v["tunables"];
                let status = if v["up"] == true { "up" } else { "down" };
                out += &format!(
                    "{:<24} {:>6} {:>5} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5}\n",
                    text(&v["nid"]),
                    status,
                    0,
                    1,
                    int(&t["peer_credits"]),
                    int(&t["peer_buffer_credits"]),
                    int(&t["credits"]),
                    int(&v["tx_credits"]),
                    int(&v["min_tx_credits"])
                );
            }
        }
        _ => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::yaml::Style;
    use super::*;
    use serde_json::json;

    /// The shape of golden output of the kernel's lnetctl 2.17 (numbers ours).
    #[test]
    fn routing_and_routes_have_the_original_shape() {
        let pool = |p, c| json!({"npages": p, "nbuffers": c, "credits": c, "mincredits": c - 4});
        let picture = json!({
            "routing": {"enabled": true, "tiny": pool(0, 2048), "small": pool(1, 16384), "large": pool(256, 1024)},
            "routes": [{"net": "tcp", "gateway": "10.78.0.4@tcp1", "hops": -1, "priority": 0, "up": false, "multi_hop": true}],
        });
        let text = routing(&picture).print(Style::Own);
        assert!(text.starts_with("routing:\n    - cpt[0]:\n          tiny:\n              npages: 0\n              nbuffers: 2048\n              credits: 2048\n              mincredits: 2044\n          small:\n"), "{text}");
        assert!(
            text.ends_with(
                "    - enable: 1\nbuffers:\n    tiny: 2048\n    small: 16384\n    large: 1024\n"
            ),
            "{text}"
        );
        let text = routes(&picture, None, None, true)
            .unwrap()
            .print(Style::Netlink(6));
        assert_eq!(
            text,
            "route:\n-     net: tcp\n      gateway: 10.78.0.4@tcp1\n      hop: -1\n      priority: 0\n      state: down\n      type: multi-hop\n"
        );
        assert!(routes(&picture, Some("tcp9"), None, true).is_none());
        assert_eq!(
            proc_table(&picture, "buffers").unwrap(),
            "pages count credits     min\n    0  2048    2048    2044\n    1 16384   16384   16380\n  256  1024    1024    1020\n"
        );
    }
}
