//! What a node looks after by itself, once a second: whether its gateways are alive, which NIDs its peers have, interfaces that
//! are to recover, and answers that do not come (`lnet_monitor_thread`, lnet/lnet/lib-move.c).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coral_buffers::Payload;
use coral_wire::lnet::{PingInfo, feat};

use crate::gateway::{GwEvent, GwTimers};
use crate::ni::{MAX_HEALTH, Ni};
use crate::peers::Word;
use crate::{Nid, Node, SendError, ping};

/// Longest wait for a peer that is asked about itself while nobody waits for it.
const DISCOVERY_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
/// Longest wait for the answer of a gateway that is not known to be alive.
const RETRY_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
/// Recovery pings begun in one second.
const RECOVERIES: usize = 64;

impl Node {
    fn gateway_timers(&self) -> GwTimers {
        GwTimers {
            interval: self.sock().limits.router_check,
        }
    }

    /// Once a second.
    pub(crate) fn look_after(self: &Arc<Self>) {
        self.ask_gateways();
        self.check_nis();
        self.recover_nis();
        let late = self
            .pending()
            .expire(self.sock().now_ms(), self.sock().limits.transaction);
        for hop in late {
            self.stats().response_timeouts.inc();
            self.hop_failed(None, hop, &SendError::Timeout);
        }
    }

    /// Looks which of our interfaces have lost their address, or got it back, and tells the peers (`lnet_update_ni_status`).
    fn check_nis(self: &Arc<Self>) {
        if self.nis().len() < 2 || !self.sock().bound {
            return;
        }
        let here = |ni: &Ni| ni.nid.ipv4().is_none_or(crate::sock::local::is_here);
        self.note_nis(self.nis().iter().map(|ni| here(ni)).collect());
    }

    /// Which of our interfaces are there, in their order.
    fn note_nis(self: &Arc<Self>, here: Vec<bool>) {
        let mut news = false;
        for (ni, here) in self.nis().iter().zip(here) {
            if ni.set_down(!here) {
                news = true;
                tracing::warn!(node = %self.nid(), interface = %ni.nid, up = here, "interface");
            }
        }
        if news {
            self.info_changed();
        }
    }

    /// Pings the gateways that are due.
    pub(crate) fn ask_gateways(self: &Arc<Self>) {
        if !self.has_routes() || self.is_down() {
            return;
        }
        let due = self.route_table().lock().ask_due(self.sock().now_ms());
        for gateway in due {
            let me = self.clone();
            // Of one that is not alive nothing is hoped for: a lost ping must not keep it out for long.
            let limit = me.sock().limits.router_ping;
            let limit = if me.gateway_is_up(gateway) == Some(true) {
                limit
            } else {
                limit.min(RETRY_LIMIT)
            };
            self.sock().spawn(async move {
                // Whether it is alive its answer says, and not what becomes of what it is told then.
                match tokio::time::timeout(limit, me.ping(gateway)).await {
                    Ok(Ok(info)) => {
                        drop(tokio::time::timeout(limit, me.introduce(gateway, &info)).await)
                    }
                    // Too many connects under way say nothing of it.
                    Ok(Err(SendError::Unreachable { source, .. }))
                        if source.kind() == std::io::ErrorKind::Other => {}
                    _ => me.gateway_event(gateway, GwEvent::Silent),
                }
            });
        }
    }

    /// Something happened to a NID that may be a gateway.
    pub(crate) fn gateway_event(&self, nid: Nid, ev: GwEvent) {
        if !self.has_routes() {
            return;
        }
        let changed = {
            let mut routes = self.route_table().lock();
            routes
                .handle(nid, ev, self.sock().now_ms(), self.gateway_timers())
                .then(|| routes.gateways().find(|(n, _)| *n == nid))
        };
        if let Some(Some((_, state))) = changed {
            tracing::info!(node = %self.nid(), gateway = %nid, ?state, "gateway");
        }
    }

    /// A peer told about itself.
    pub(crate) fn learn(self: &Arc<Self>, word: Word, nid: Nid, info: PingInfo) {
        let itself = !matches!(word, Word::Via(hop) if hop != nid);
        if itself && self.has_routes() {
            self.route_table().lock().answered(
                nid,
                &info,
                self.sock().now_ms(),
                self.gateway_timers(),
            );
        }
        let unsure = self.peer_table().learn(word, nid, info, self.nids());
        self.peers_changed();
        for ni in unsure
            .into_iter()
            .filter(|ni| self.sock().is_connected(ni.nid))
        {
            self.ask_where_it_belongs(ni);
        }
    }

    /// `nid` has a connection with us. When others have said where it belongs it is asked itself.
    pub(crate) fn check_hearsay(self: &Arc<Self>, nid: Nid) {
        let hearsay = self.peer_table().hearsay(nid);
        if let Some(ni) = hearsay {
            self.ask_where_it_belongs(ni);
        }
    }

    /// Asks, in the background and not too often, an interface of a peer of which others have said something.
    fn ask_where_it_belongs(self: &Arc<Self>, ni: Arc<Ni>) {
        if self.is_down() || !ni.ask_now(self.sock().now_ms() / 1000) {
            return;
        }
        let me = self.clone();
        self.sock().spawn(async move {
            let _ = tokio::time::timeout(DISCOVERY_LIMIT, me.ping(ni.nid)).await;
        });
    }

    /// Asks a peer about itself and, when it takes that, tells it about us (`lnet_discover_peer_locked`).
    pub async fn discover(self: &Arc<Self>, nid: Nid) -> Result<PingInfo, SendError> {
        let info = self.ping(nid).await?;
        self.introduce(nid, &info).await?;
        Ok(info)
    }

    /// Tells a peer that said `info` of itself about us, when it takes that and was not told yet.
    async fn introduce(self: &Arc<Self>, nid: Nid, info: &PingInfo) -> Result<(), SendError> {
        let takes = feat::MULTI_RAIL | feat::DISCOVERY;
        if info.features & takes == takes && !self.told(nid) {
            self.push(nid).await?;
        }
        Ok(())
    }

    /// Tells a peer about us.
    pub(crate) async fn push(self: &Arc<Self>, nid: Nid) -> Result<(), SendError> {
        let info = Payload::from(self.ping_info().encode());
        self.put(nid, ping::PORTAL, ping::MBITS, 0, info, true)
            .await?;
        self.note_told(nid);
        Ok(())
    }

    /// Asks in the background a peer that we just connected to for the first time.
    pub(crate) fn discover_in_background(self: &Arc<Self>, nid: Nid) {
        if !self.sock().limits.discovery || self.is_down() || self.peer_table().told(nid).is_some()
        {
            return;
        }
        let me = self.clone();
        self.sock().spawn(async move {
            let _ = tokio::time::timeout(DISCOVERY_LIMIT, me.discover(nid)).await;
        });
    }

    /// A message could not be sent to the next hop `hop`, or no answer came from there.
    pub(crate) fn hop_failed(self: &Arc<Self>, local: Option<Nid>, hop: Nid, err: &SendError) {
        let (theirs, beside_others) = {
            let mut peers = self.peer_table();
            (peers.ni(hop), peers.is_one_of_several(hop))
        };
        let ours = self.nis().iter().find(|n| Some(n.nid) == local);
        for ni in [Some(&theirs), ours].into_iter().flatten() {
            let f = &ni.failures;
            let counter = match err {
                SendError::Timeout => &f.timeouts,
                SendError::Unreachable { .. } => &f.errors,
                SendError::PeerReset | SendError::Shutdown => &f.dropped,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        // As in Lustre (`lnet_health_check`): a fault on our side is our interface's, one of the network is both sides'. It says
        // something only beside other interfaces.
        let local_fault = is_local(err);
        if let Some(ours) = ours
            .filter(|_| self.nis().len() > 1 && (local_fault || matches!(err, SendError::Timeout)))
        {
            ours.failed();
            self.recovering().store(true, Ordering::Relaxed);
        }
        // As in Lustre: the health of a peer's only interface says nothing, unless it routes.
        let counts =
            beside_others || self.has_routes() && self.route_table().lock().is_gateway(hop);
        if counts && !local_fault {
            theirs.failed();
            self.recovering().store(true, Ordering::Relaxed);
        }
        // What our own side could not do says nothing of the gateway.
        if matches!(err, SendError::Unreachable { .. }) && !local_fault {
            self.gateway_event(hop, GwEvent::Silent);
        }
    }

    /// Pings peers' interfaces that failed, until their health is back (`lnet_recover_peer_nis`). Our own recover while their
    /// address is there (`lnet_recover_local_nis`, which pings itself).
    fn recover_nis(self: &Arc<Self>) {
        if !self.recovering().load(Ordering::Relaxed) {
            return;
        }
        let now = self.sock().now_ms() / 1000;
        let sick: Vec<Arc<Ni>> = self
            .peer_table()
            .nis()
            .filter(|n| n.health() < MAX_HEALTH)
            .cloned()
            .collect();
        let ours: Vec<&Arc<Ni>> = self
            .nis()
            .iter()
            .filter(|n| n.health() < MAX_HEALTH)
            .collect();
        self.recovering()
            .store(!sick.is_empty() || !ours.is_empty(), Ordering::Relaxed);
        ours.into_iter()
            .filter(|n| !n.is_down())
            .for_each(|n| n.succeeded());
        let limits = &self.sock().limits;
        for ni in sick
            .into_iter()
            .filter(|n| n.next_ping.load(Ordering::Relaxed) <= now)
            .take(RECOVERIES)
        {
            let count = ni.ping_count.fetch_add(1, Ordering::Relaxed);
            let pause = limits.recovery.as_secs().max(1) << count.min(16);
            ni.next_ping.store(
                now + pause.min(limits.max_recovery.as_secs()),
                Ordering::Relaxed,
            );
            let me = self.clone();
            self.sock().spawn(async move {
                let limit = me.sock().limits.router_ping;
                if let Ok(Ok(_)) = tokio::time::timeout(limit, me.ping_ni(ni.nid)).await {
                    ni.succeeded();
                }
            });
        }
    }
}

/// Whether a failed send was our own side's fault.
fn is_local(err: &SendError) -> bool {
    use std::io::ErrorKind as K;
    let ours = [
        K::AddrNotAvailable,
        K::NetworkDown,
        K::NetworkUnreachable,
        K::Interrupted,
        K::ConnectionAborted,
        K::Other,
    ];
    matches!(err, SendError::Unreachable { source, .. } if ours.contains(&source.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemNet, NodeConfig, PoolSizes, parse_routes};
    use std::time::Duration;

    async fn start(net: &Arc<MemNet>, nids: &[&str], routes: &str, routing: bool) -> Arc<Node> {
        let routes = if routes.is_empty() {
            Vec::new()
        } else {
            parse_routes(routes).unwrap()
        };
        let nids = nids.iter().map(|n| n.parse().unwrap()).collect();
        let cfg = NodeConfig {
            nids,
            routes,
            routing: routing.then(PoolSizes::default),
            ..NodeConfig::default()
        };
        Node::start(cfg, Some(net.clone())).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_router_tells_that_its_far_interface_is_gone_and_is_left_out() {
        let net = MemNet::alone();
        let router = start(&net, &["10.0.0.4@tcp", "10.1.0.4@tcp1"], "", true).await;
        let client = start(&net, &["10.0.0.1@tcp"], "tcp1 10.0.0.4@tcp", false).await;
        let up = async |want: bool| {
            while client.routes()[0].up != want {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        up(true).await;
        router.note_nis(vec![true, false]);
        up(false).await;
        assert_eq!(
            router
                .nets()
                .iter()
                .flat_map(|n| &n.nis)
                .map(|n| n.up)
                .collect::<Vec<_>>(),
            [true, true, false]
        );
        router.note_nis(vec![true, true]);
        up(true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_our_side_could_not_do_says_nothing_of_a_gateway() {
        let net = MemNet::alone();
        let _router = start(&net, &["10.0.0.4@tcp", "10.1.0.4@tcp1"], "", true).await;
        let client = start(&net, &["10.0.0.1@tcp"], "tcp1 10.0.0.4@tcp", false).await;
        while !client.routes()[0].up {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let gateway: Nid = "10.0.0.4@tcp".parse().unwrap();
        let err = |kind: std::io::ErrorKind| SendError::Unreachable {
            nid: gateway,
            source: kind.into(),
        };
        client.hop_failed(None, gateway, &err(std::io::ErrorKind::AddrNotAvailable));
        assert!(client.routes()[0].up);
        client.hop_failed(None, gateway, &err(std::io::ErrorKind::ConnectionRefused));
        assert!(!client.routes()[0].up);
    }

    /// A rule takes every push of others away; all pings are answered.
    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_answers_pings_and_takes_no_push_is_alive() {
        let net = MemNet::alone();
        let router = start(&net, &["10.0.0.3@tcp", "10.1.0.3@tcp1"], "", true).await;
        let push = crate::FaultRule::all(crate::FaultAction::Drop)
            .kind(crate::MsgType::Put)
            .portal(ping::PORTAL);
        router.faults().add(push.at(crate::faults::Side::Receive));
        let client = start(&net, &["10.0.0.1@tcp"], "tcp1 10.0.0.3@tcp", false).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        for second in 0..600 {
            assert!(
                client.routes()[0].up,
                "second {second}, {} pings answered",
                router.stats().pings.value()
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(router.stats().pings.value() >= 5);
    }

    #[tokio::test(start_paused = true)]
    async fn faults_of_our_side_are_our_interfaces() {
        let net = MemNet::alone();
        let node = start(&net, &["10.0.0.1@tcp", "10.0.0.2@tcp"], "", false).await;
        let (us, peer): (Nid, Nid) = (
            "10.0.0.2@tcp".parse().unwrap(),
            "10.0.0.9@tcp".parse().unwrap(),
        );
        let err = |kind: std::io::ErrorKind| SendError::Unreachable {
            nid: peer,
            source: kind.into(),
        };
        node.hop_failed(Some(us), peer, &err(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(node.nis()[1].health(), MAX_HEALTH, "the peer's");
        node.hop_failed(Some(us), peer, &err(std::io::ErrorKind::NetworkUnreachable));
        assert_eq!(
            (node.nis()[0].health(), node.nis()[1].health()),
            (MAX_HEALTH, MAX_HEALTH - 100)
        );
        node.nis()[1].set_down(true);
        node.look_after();
        assert_eq!(
            node.nis()[1].health(),
            MAX_HEALTH - 100,
            "not while its address is gone"
        );
        node.nis()[1].set_down(false);
        node.look_after();
        assert_eq!(node.nis()[1].health(), MAX_HEALTH);
    }
}
