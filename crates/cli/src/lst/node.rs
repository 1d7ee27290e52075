//! The LNet node of an `lst` process: its port and routes from the command line, its start, and what it answers.

use super::Failed;
use super::options::Given;
use crate::args;
use crate::control::{Ask, Asked};
use crate::net;
use coral_lnet::{Accept, Nid, Node, NodeConfig, RouteSpec, StartError};
use serde_json::json;
use std::io::ErrorKind;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What the nodes of a command are started with.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    /// TCP port of all nodes.
    pub port: u16,
    /// Routes to other networks.
    pub routes: Vec<RouteSpec>,
    /// Whose connections they take.
    pub accept: Accept,
}

impl Ways {
    /// From `--port`, `--route`, `--routes` and `--accept`.
    pub(crate) fn of(g: &Given, port: u16) -> Result<Ways, Failed> {
        let port = match g.number("port")? {
            Some(0) => return Err(Failed("--port has to be 1 or more".into())),
            given => given.unwrap_or(port),
        };
        let flags = args::Net {
            nid: Vec::new(),
            port: None,
            accept: None,
            route: g.all("route"),
            routes: g.text("routes").map(Into::into),
        };
        let accept = g
            .text("accept")
            .map(|a| a.parse().map_err(|e| Failed(format!("--accept: {e}"))))
            .transpose()?;
        Ok(Ways {
            port,
            routes: net::routes(&flags).map_err(Failed)?,
            accept: accept.unwrap_or_else(Accept::of_this_process),
        })
    }

    /// The NID from which `peer` is reached.
    pub(crate) fn local(&self, peer: Nid) -> Result<Nid, Failed> {
        net::local_nid(peer, self.port, &self.routes).map_err(Failed)
    }

    /// Those that are of use to a node `nid`: of several nodes in one process each takes its own.
    pub(crate) fn of_node(&self, nid: Nid) -> Ways {
        let fits =
            |r: &&RouteSpec| r.gateway.net() == nid.net() && r.gateway != nid && r.net != nid.net();
        Ways {
            port: self.port,
            routes: self.routes.iter().filter(fits).copied().collect(),
            accept: self.accept,
        }
    }

    /// A node without an acceptor, or with one.
    pub(crate) async fn start(&self, nid: Nid, listen: bool) -> Result<Arc<Node>, StartError> {
        let listen_port = listen.then_some(self.port);
        let config = NodeConfig {
            nids: vec![nid],
            listen_port,
            connect_port: self.port,
            accept: self.accept,
            seed: coral_node::net::fresh_seed(),
            routes: self.routes.clone(),
            ..NodeConfig::default()
        };
        Node::start(config, None).await
    }

    /// A node with an acceptor. Without the privilege for its port it has none: others cannot open connections to it, but answer
    /// on its own.
    pub(crate) async fn start_node(&self, nid: Nid) -> Result<Arc<Node>, Failed> {
        net::check_nids(&[nid]).map_err(Failed)?;
        match self.start(nid, true).await {
            Err(StartError::Listen { source, .. })
                if source.kind() == ErrorKind::PermissionDenied =>
            {
                Ok(self.start(nid, false).await?)
            }
            Err(StartError::Listen { nid, source, .. })
                if source.kind() == ErrorKind::AddrInUse =>
            {
                Err(Failed(net::taken(nid, self.port)))
            }
            Err(StartError::Listen { nid, source, .. })
                if source.kind() == ErrorKind::AddrNotAvailable =>
            {
                Err(Failed(format!(
                    "--nid {nid}: no interface of this machine has that address"
                )))
            }
            started => Ok(started?),
        }
    }

    /// Says at once that nothing leads from `node` to the network of `to`.
    pub(crate) fn check(&self, node: &Node, to: Nid) -> Result<(), Failed> {
        match node.nids().iter().any(|n| n.net() == to.net())
            || self.routes.iter().any(|r| r.net == to.net())
        {
            true => Ok(()),
            false => Err(Failed(net::no_way(node.nid(), to))),
        }
    }
}

/// What `coral status` shows of it.
pub(crate) fn status(node: &Node, kind: &str, port: u16) -> serde_json::Value {
    json!({ "pid": std::process::id(), "kind": kind, "nid": node.nid().to_string(), "nids": node.nids().iter().map(ToString::to_string).collect::<Vec<_>>(), "port": port, "routes": node.routes() })
}

/// Answers for a console until the receiver ends: it is stopped by `lst end_session`.
pub(crate) async fn answer_for_console(
    node: Arc<Node>,
    port: u16,
    mut asked: mpsc::Receiver<Asked>,
) {
    while let Some((ask, reply)) = asked.recv().await {
        let _ = reply.send(match ask {
            Ask::Status => status(&node, "lst console", port),
            Ask::GetParam(_) | Ask::ListParam(..) | Ask::SetParam(..) | Ask::Nodemap(_) => {
                crate::params::none()
            }
            Ask::AbortRecovery(_) => json!({ "aborted": [] }),
            Ask::Down | Ask::DownForced => {
                json!({ "error": "a console of lst runs here: lst end_session ends it" })
            }
        });
    }
}
