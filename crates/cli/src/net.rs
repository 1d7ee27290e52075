//! The LNet node of a command: its NIDs and routes from the command line or a file, and what to say when it does not start.

use crate::args::Net;
use crate::holder::Holder;
use coral_lnet::{Nid, Node, RouteSpec, StartError, net_name, parse_routes};
use coral_node::NetConfig;
use coral_node::net::{self, GatewayAnswer, Gateways, NetError, NidError};
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A node that ends keeps its address until it has said goodbye to its servers; it is waited for, so many looks long.
const END_LOOKS: u32 = 100;
/// Looks when nobody is seen to have it.
const GONE_LOOKS: u32 = 10;
/// Pause between two looks: 10 s and 1 s in all.
const END_PAUSE: Duration = Duration::from_millis(100);

/// The file of `--routes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoutesFile {
    /// Routes in the grammar of `--route`.
    routes: Vec<String>,
}

/// The routes of the command line and of its file.
pub(crate) fn routes(net: &Net) -> Result<Vec<RouteSpec>, String> {
    let mut texts = net.route.clone();
    if let Some(file) = &net.routes {
        texts.extend(read_routes(file)?);
    }
    let mut out = Vec::new();
    for text in &texts {
        out.extend(parse_routes(text).map_err(|e| e.to_string())?);
    }
    Ok(out)
}

fn read_routes(file: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| format!("cannot read the routes file '{}': {e}", file.display()))?;
    let parsed: RoutesFile = toml::from_str(&text).map_err(|e| {
        format!(
            "'{}' is no routes file ({}); expected: routes = [\"tcp1 10.0.0.4@tcp\"]",
            file.display(),
            e.message()
        )
    })?;
    Ok(parsed.routes)
}

/// Refuses NIDs that cannot be ours.
pub(crate) fn check_nids(nids: &[Nid]) -> Result<(), String> {
    net::check_nids(nids).map_err(|e| refused(&e))
}

fn refused(e: &NidError) -> String {
    match e {
        NidError::NotTcp(n) => format!("--nid {n}: only tcp networks are supported so far"),
        NidError::OneAddress(a, b) => format!(
            "--nid {a} and --nid {b}: one address on two networks is not supported so far (Lustre's kernel allows it); give {b} an address of its own"
        ),
    }
}

/// The NID to reach `peer` from when none is given: on the peer's network, or on that of the gateway on the way to it.
pub(crate) fn local_nid(peer: Nid, port: u16, routes: &[RouteSpec]) -> Result<Nid, String> {
    net::local_nid(peer, port, routes).map_err(|e| {
        let towards = net::next_hop(peer, routes);
        format!("no way to {towards}: {e}; give this node's NID with --nid")
    })
}

/// Starts the node, and says what to do when it does not start.
pub(crate) async fn start(config: &NetConfig) -> Result<Arc<Node>, String> {
    let mut looks = 0;
    loop {
        let e = match net::start(config).await {
            Ok(node) => return Ok(node),
            Err(NetError::Nids(e)) => return Err(refused(&e)),
            Err(NetError::Start(e)) => e,
        };
        let StartError::Listen { nid, addr, source } = &e else {
            return Err(format!("{e}{}", hint(&e)));
        };
        if source.kind() != ErrorKind::AddrInUse {
            return Err(format!("{e}{}", hint(&e)));
        }
        let patience = match Holder::of(*addr) {
            Some(holder) if holder.is_ending() => END_LOOKS,
            Some(_) => 0,
            // the kernel, or it has ended just now and the kernel still closes what it had
            None => GONE_LOOKS,
        };
        if looks >= patience {
            return Err(taken(*nid, addr.port()));
        }
        looks += 1;
        tokio::time::sleep(END_PAUSE).await;
    }
}

/// A NID whose address and port another process has.
pub(crate) fn taken(nid: Nid, port: u16) -> String {
    let holder = nid.ipv4().and_then(|ip| Holder::of((ip, port).into()));
    let holder = holder.map_or_else(
        || "a Coral process, or a kernel Lustre".to_owned(),
        |h| h.to_string(),
    );
    format!(
        "{nid} port {port} is another node's on this machine ({holder}): a NID is one node's, and all nodes share the port; \
         give this one another address of this machine with --nid (`ip addr` lists them), a new file system another --port"
    )
}

/// Nothing leads from `own` to the network of `to`.
pub(crate) fn no_way(own: Nid, to: Nid) -> String {
    let net = net_name(to.net());
    format!(
        "no way to {to}: this node ({own}) has no NID on {net} and no route to it; give --route '{net} GATEWAY'"
    )
}

/// The only gateway on the way, or the first of several that all are none.
pub(crate) fn does_not_route(gateway: Nid) -> String {
    format!(
        "the gateway {gateway} answers, but does not route: run `coral router` there, or name another with --route"
    )
}

/// What to add to a failure that is silence: what is wrong on the way.
pub(crate) async fn hint_of(gateways: &Gateways) -> String {
    let answers = gateways.answers().await;
    let mut out = String::new();
    for (gw, answer) in &answers {
        match answer {
            GatewayAnswer::Routes => {}
            GatewayAnswer::DoesNotRoute => out += &format!("; the gateway {gw} does not route"),
            GatewayAnswer::Silent => out += &format!("; the gateway {gw} does not answer"),
        }
    }
    if out.is_empty() && !answers.is_empty() {
        let ours: Vec<&str> = gateways.own_nets().iter().map(String::as_str).collect();
        out = format!(
            "; or the way back is missing: the servers need a route to {} (--route), and their log says so",
            ours.join(", ")
        );
    }
    out
}

fn hint(e: &StartError) -> &'static str {
    match e {
        StartError::Listen { source, .. } => match source.kind() {
            ErrorKind::PermissionDenied => "; ports below 1024 need root: use --port 9988",
            ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
            _ => "",
        },
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(route: &[&str], routes: Option<&Path>) -> Net {
        Net {
            nid: Vec::new(),
            port: None,
            accept: None,
            route: route.iter().map(|r| r.to_string()).collect(),
            routes: routes.map(Into::into),
        }
    }

    #[test]
    fn routes_come_from_flags_and_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("routes.toml");
        std::fs::write(
            &file,
            "# the way out\nroutes = [\"tcp1 10.0.0.4@tcp\", \"tcp2 10.0.0.[4-5]@tcp\"]\n",
        )
        .unwrap();
        assert_eq!(
            routes(&net(&["tcp3 10.0.0.9@tcp"], Some(&file)))
                .unwrap()
                .len(),
            4
        );
        for bad in [
            "routes = 1",
            "route = []",
            "routes = [",
            "routes = []\nmore = 1",
        ] {
            std::fs::write(&file, bad).unwrap();
            let why = routes(&net(&[], Some(&file))).unwrap_err();
            assert!(
                why.contains("is no routes file") && !why.contains('\n'),
                "{bad}: {why}"
            );
        }
        assert!(
            routes(&net(&[], Some(&dir.path().join("none"))))
                .unwrap_err()
                .contains("cannot read")
        );
        assert!(
            routes(&net(&["tcp1"], None))
                .unwrap_err()
                .contains("has no gateway")
        );
    }

    #[test]
    fn only_tcp() {
        assert!(check_nids(&["10.0.0.1@tcp7".parse().unwrap()]).is_ok());
        let two = |a: &str, b: &str| check_nids(&[a.parse().unwrap(), b.parse().unwrap()]);
        assert!(
            two("10.0.0.1@tcp", "10.0.0.1@tcp2")
                .unwrap_err()
                .contains("one address on two networks")
        );
        assert!(two("10.0.0.1@tcp", "10.0.0.2@tcp2").is_ok());
        assert!(
            check_nids(&["10.0.0.1@o2ib".parse().unwrap()])
                .unwrap_err()
                .contains("only tcp")
        );
    }
}
