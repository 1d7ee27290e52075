//! `coral router`: a node that forwards between LNet networks.
//!
//! It has no targets and no mount; `coral status DIR` and `coral down DIR` reach it through the control socket in its state
//! directory.

use crate::args::Router;
use crate::control;
use crate::daemon::{self, Reporter};
use crate::lnetctl::agent::Agent;
use crate::net;
use coral_lnet::{Node, PoolSizes};
use coral_node::NetConfig;
use coral_node::net::DEFAULT_PORT;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Entry of `coral router`.
pub(crate) fn run(r: Router) -> Result<(), String> {
    let config = check(&r)?;
    let dir = r.dir.clone().unwrap_or_else(default_dir);
    std::fs::create_dir_all(&dir)
        .map_err(|e| format!("cannot make the state directory '{}': {e}", dir.display()))?;
    if control::running_in(&dir)?.is_some() {
        return Err(format!(
            "a router runs in '{}' already; see `coral status {0}`, or give another --dir",
            dir.display()
        ));
    }
    if !r.foreground {
        println!("{}", daemon::start(&dir.join("coral.log"))?.text);
        return Ok(());
    }
    let mut reporter = Reporter::from_env();
    if let Err(why) = crate::runtime()?.block_on(serve(&config, &dir, &mut reporter)) {
        reporter.failed(&why);
        std::process::exit(1);
    }
    Ok(())
}

/// Where a router keeps its control socket and log when nothing else is said.
fn default_dir() -> PathBuf {
    crate::rundir::xdg()
        .unwrap_or_else(|| "/run".into())
        .join("coral-router")
}

fn check(r: &Router) -> Result<NetConfig, String> {
    net::check_nids(&r.net.nid)?;
    let nets: BTreeSet<u32> = r.net.nid.iter().map(|n| n.net()).collect();
    if nets.len() < 2 {
        return Err(
            "a router needs NIDs on two networks or more: --nid 10.0.0.4@tcp --nid 10.1.0.4@tcp1"
                .into(),
        );
    }
    Ok(NetConfig {
        nids: r.net.nid.clone(),
        port: r.net.port.unwrap_or(DEFAULT_PORT),
        routes: net::routes(&r.net)?,
        accept: r.net.accept,
        routing: Some(pools(r)?),
    })
}

fn pools(r: &Router) -> Result<PoolSizes, String> {
    let sizes = PoolSizes {
        tiny: r.tiny,
        small: r.small,
        large: r.large,
    };
    for (name, n) in [("tiny", r.tiny), ("small", r.small), ("large", r.large)] {
        if !(1..=PoolSizes::MAX).contains(&n) {
            return Err(format!("--{name} {n}: give 1 to {}", PoolSizes::MAX));
        }
    }
    Ok(sizes)
}

async fn serve(config: &NetConfig, dir: &Path, reporter: &mut Reporter) -> Result<(), String> {
    let node = net::start(config).await?;
    let mut asked = control::serve(dir, Agent::new(&node))
        .map_err(|e| format!("control socket in '{}': {e}", dir.display()))?;
    let nids: Vec<String> = config.nids.iter().map(ToString::to_string).collect();
    let ready = reporter.ready(&format!(
        "coral: routing between {} on port {}\nstop: coral down {}",
        nids.join(" and "),
        config.port,
        dir.display()
    ));
    let reply = crate::run_until_stopped(&ready, &mut asked, None, None, || {
        status(&node, config, dir)
    })
    .await;
    node.shutdown().await;
    control::stopped(dir, reply).await;
    ready
}

/// What `coral status --json` prints of a router.
fn status(node: &Arc<Node>, config: &NetConfig, dir: &Path) -> Value {
    let s = node.stats();
    json!({
        "pid": std::process::id(),
        "kind": "router",
        "dir": dir,
        "nids": config.nids.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "port": config.port,
        "accept": node.accept().name(),
        "routing": node.routing(),
        "routes": node.routes(),
        "peers": node.peers(),
        "routed": s.routed.value(),
        "routed_bytes": s.routed_bytes.value(),
        "no_route": s.no_route.value(),
        "route_failed": s.route_failed.value(),
        "route_waits": s.route_waits.value(),
    })
}

/// What `coral status` prints of a router.
pub(crate) fn print(v: &Value) {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let nids: Vec<String> = v["nids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .collect();
    println!(
        "router (pid {}), {} port {}, accept {}",
        v["pid"],
        nids.join(" "),
        v["port"],
        text(&v["accept"])
    );
    for r in v["routes"].as_array().into_iter().flatten() {
        println!(
            "route to {:<8} through {:<24} {}",
            text(&r["net"]),
            text(&r["gateway"]),
            if r["up"] == true { "up" } else { "down" }
        );
    }
    for pool in ["tiny", "small", "large"] {
        let p = &v["routing"][pool];
        let n = |key: &str| p[key].as_u64().unwrap_or(0);
        println!(
            "{pool:<6} buffers {:>6}, free {:>6}, least free {:>6}",
            n("nbuffers"),
            n("credits"),
            n("mincredits")
        );
    }
    println!(
        "{} messages, {} bytes forwarded; dropped: {} without route, {} not delivered; waited for buffers {} times",
        v["routed"], v["routed_bytes"], v["no_route"], v["route_failed"], v["route_waits"]
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parse(args: &[&str]) -> Router {
        match Cli::parse_from(["coral", "router"].iter().chain(args)).command {
            Command::Router(r) => r,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_router_needs() {
        let good = parse(&[
            "--nid",
            "10.0.0.4@tcp",
            "--nid",
            "10.1.0.4@tcp1",
            "--route",
            "tcp2 10.1.0.5@tcp1",
            "--large",
            "64",
        ]);
        assert_eq!(check(&good).unwrap().routes.len(), 1);
        assert_eq!(
            pools(&good).unwrap(),
            PoolSizes {
                large: 64,
                ..PoolSizes::default()
            }
        );
        assert!(
            check(&parse(&["--nid", "10.0.0.4@tcp"]))
                .unwrap_err()
                .contains("two networks")
        );
        assert!(
            check(&parse(&["--nid", "10.0.0.4@tcp", "--nid", "10.0.0.5@tcp"]))
                .unwrap_err()
                .contains("two networks")
        );
        assert!(
            pools(&parse(&["--tiny", "0"]))
                .unwrap_err()
                .contains("--tiny 0")
        );
        assert!(Cli::try_parse_from(["coral", "router", "--nid", "10.0.0.4@nonet"]).is_err());
        assert!(Cli::try_parse_from(["coral", "router", "--port", "70000"]).is_err());
    }
}
