//! The Lustre release a client claims is in its connect requests.

use std::sync::Arc;
use std::time::Duration;

use coral_client::{Llite, MountOptions};
use coral_lnet::{MemNet, Node, NodeConfig};
use coral_ptlrpc::{RequestHandler, ServerRequest, Service, ServiceConfig};
use coral_wire::connect::{CLAIMED, ObdConnectData, release};
use coral_wire::ptlrpc::portal;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

/// Tells what connects claim and answers none.
struct Claims(mpsc::UnboundedSender<u32>);

impl RequestHandler for Claims {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        let asked = ObdConnectData::decode_any(rq.msg.buf(4)).expect("connect data");
        let _ = self.0.send(asked.version);
        Box::pin(async {})
    }
}

#[tokio::test(start_paused = true)]
async fn a_connect_claims_the_release_it_is_told() {
    let mem = MemNet::new();
    let node = async |nid: &str, seed: u64| {
        let config = NodeConfig::in_memory(nid.parse().unwrap(), seed);
        Node::start(config, Some(mem.clone())).await.unwrap()
    };
    let server = node("10.0.0.1@tcp", 1).await;
    let (claims, mut claimed) = mpsc::unbounded_channel();
    let service = Service::start(
        &server,
        ServiceConfig::new("mgs", &[portal::MGS_REQUEST]),
        Arc::new(Claims(claims)),
    );
    let options = MountOptions::new("test", vec!["10.0.0.1@tcp".parse().unwrap()]);
    assert_eq!(options.version, CLAIMED);
    for (seed, version) in [(2, CLAIMED), (3, release(2, 15, 7, 0))] {
        let options = MountOptions {
            version,
            connect_timeout: Duration::from_secs(1),
            ..options.clone()
        };
        assert!(
            Llite::mount(node(&format!("10.0.0.{seed}@tcp"), seed).await, options)
                .await
                .is_err()
        );
        assert_eq!(claimed.recv().await, Some(version));
        while claimed.try_recv().is_ok() {}
    }
    service.stop().await;
}
