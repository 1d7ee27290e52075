//! The services of one node and the way of a request to its target (`lustre/target/tgt_handler.c`).

use std::sync::Arc;

use coral_lnet::Node;

use crate::target::Target;

/// All services of one node. CONNECT is routed by target uuid, everything else by the export cookie in `pb_handle`.
pub struct ServerNode {
    _todo: (),
}

impl ServerNode {
    /// Starts the services on all server portals of `node`.
    pub fn start(node: Arc<Node>) -> Arc<ServerNode> {
        let _ = node;
        todo!()
    }

    /// Makes a target reachable; clients may connect from now on. Call [`Target::start`] first.
    pub fn add_target(&self, t: Arc<Target>) {
        let _ = t;
        todo!()
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        todo!()
    }

    /// Stops the services, then every target.
    pub async fn stop(&self) {
        todo!()
    }
}
