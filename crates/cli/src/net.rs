//! The LNet node of a command: its NIDs and routes from the command line or a file, and what to say when it does not start.

use crate::args::Net;
use coral_lnet::{MemNet, Nid, Node, NodeConfig, PoolSizes, RouteSpec, StartError, parse_routes};
use coral_wire::nid::NET_TCP;
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Lustre's own acceptor port.
pub(crate) const DEFAULT_PORT: u16 = 988;

/// What a node is started with.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetConfig {
    /// Our NIDs, primary first.
    pub nids: Vec<Nid>,
    /// TCP port of every node.
    pub port: u16,
    /// Routes to other networks.
    pub routes: Vec<RouteSpec>,
}

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
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read the routes file '{}': {e}", file.display()))?;
    let parsed: RoutesFile = toml::from_str(&text).map_err(|e| format!("'{}' is no routes file ({}); expected: routes = [\"tcp1 10.0.0.4@tcp\"]", file.display(), e.message()))?;
    Ok(parsed.routes)
}

/// Refuses NIDs that cannot be ours.
pub(crate) fn check_nids(nids: &[Nid]) -> Result<(), String> {
    match nids.iter().find(|n| n.net() & 0xffff_0000 != NET_TCP) {
        Some(n) => Err(format!("--nid {n}: only tcp networks are supported so far")),
        None => Ok(()),
    }
}

/// The NID to reach `peer` from when none is given: on the peer's network, or on that of the gateway on the way to it.
pub(crate) fn local_nid(peer: Nid, port: u16, routes: &[RouteSpec]) -> Result<Nid, String> {
    let towards = routes.iter().find(|r| r.net == peer.net()).map_or(peer, |r| r.gateway);
    coral_lnet::local_nid_on(towards, port).map_err(|e| format!("no way to {towards}: {e}; give this node's NID with --nid"))
}

/// Starts the node, and says what to do when it does not start.
pub(crate) async fn start(net: &NetConfig, mem: Option<Arc<MemNet>>, routing: Option<PoolSizes>) -> Result<Arc<Node>, String> {
    check_nids(&net.nids)?;
    let config = NodeConfig {
        nids: net.nids.clone(),
        listen_port: Some(net.port),
        connect_port: net.port,
        seed: crate::client::seed(),
        routes: net.routes.clone(),
        routing,
        ..NodeConfig::default()
    };
    Node::start(config, mem).await.map_err(|e| format!("{e}{}", hint(&e)))
}

fn hint(e: &StartError) -> &'static str {
    match e {
        StartError::Listen { source, .. } => match source.kind() {
            ErrorKind::PermissionDenied => "; ports below 1024 need root: use --port 9988",
            ErrorKind::AddrInUse => "; another node (or a kernel Lustre) on this machine has it: use another --port or --nid",
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
        Net { nid: Vec::new(), port: None, route: route.iter().map(|r| r.to_string()).collect(), routes: routes.map(Into::into) }
    }

    #[test]
    fn routes_come_from_flags_and_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("routes.toml");
        std::fs::write(&file, "# the way out\nroutes = [\"tcp1 10.0.0.4@tcp\", \"tcp2 10.0.0.[4-5]@tcp\"]\n").unwrap();
        assert_eq!(routes(&net(&["tcp3 10.0.0.9@tcp"], Some(&file))).unwrap().len(), 4);
        for bad in ["routes = 1", "route = []", "routes = [", "routes = []\nmore = 1"] {
            std::fs::write(&file, bad).unwrap();
            let why = routes(&net(&[], Some(&file))).unwrap_err();
            assert!(why.contains("is no routes file") && !why.contains('\n'), "{bad}: {why}");
        }
        assert!(routes(&net(&[], Some(&dir.path().join("none")))).unwrap_err().contains("cannot read"));
        assert!(routes(&net(&["tcp1"], None)).unwrap_err().contains("has no gateway"));
    }

    #[test]
    fn only_tcp() {
        assert!(check_nids(&["10.0.0.1@tcp7".parse().unwrap()]).is_ok());
        assert!(check_nids(&["10.0.0.1@o2ib".parse().unwrap()]).unwrap_err().contains("only tcp"));
    }
}
