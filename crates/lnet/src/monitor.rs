//! What a node looks after by itself, once a second: whether its gateways are alive, which NIDs its peers have, interfaces that
//! are to recover, and answers that do not come (`lnet_monitor_thread`, lnet/lnet/lib-move.c).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coral_wire::lnet::{PingInfo, feat};

use crate::gateway::{GwEvent, GwTimers};
use crate::ni::{MAX_HEALTH, Ni};
use crate::{Nid, Node, Payload, SendError, ping};

/// Longest wait for a peer that is asked about itself while nobody waits for it.
const DISCOVERY_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
/// Recovery pings begun in one second.
const RECOVERIES: usize = 64;

impl Node {
    fn gateway_timers(&self) -> GwTimers {
        GwTimers { interval: self.sock().limits.router_check }
    }

    /// Once a second.
    pub(crate) fn look_after(self: &Arc<Self>) {
        self.ask_gateways();
        self.recover_nis();
        let late = self.pending().expire(self.sock().now_ms(), self.sock().limits.transaction);
        for hop in late {
            self.stats().response_timeouts.inc();
            self.hop_failed(None, hop, &SendError::Timeout);
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
            self.sock().spawn(async move {
                let answer = tokio::time::timeout(me.sock().limits.router_ping, me.discover(gateway)).await;
                if !matches!(answer, Ok(Ok(_))) {
                    me.gateway_event(gateway, GwEvent::Silent);
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
            routes.handle(nid, ev, self.sock().now_ms(), self.gateway_timers()).then(|| routes.gateways().find(|(n, _)| *n == nid))
        };
        if let Some(Some((_, state))) = changed {
            tracing::info!(node = %self.nid(), gateway = %nid, ?state, "gateway");
        }
    }

    /// A peer told about itself.
    pub(crate) fn learn(&self, nid: Nid, info: PingInfo) {
        if self.has_routes() {
            self.route_table().lock().answered(nid, &info, self.sock().now_ms(), self.gateway_timers());
        }
        self.peer_table().lock().learn(nid, info, self.nids());
        self.peers_changed();
    }

    /// Asks a peer about itself and, when it takes that, tells it about us (`lnet_discover_peer_locked`).
    pub async fn discover(self: &Arc<Self>, nid: Nid) -> Result<PingInfo, SendError> {
        let info = self.ping(nid).await?;
        if info.features & (feat::MULTI_RAIL | feat::DISCOVERY) == feat::MULTI_RAIL | feat::DISCOVERY && !self.told(nid) {
            self.push(nid).await?;
        }
        Ok(info)
    }

    /// Tells a peer about us.
    pub(crate) async fn push(self: &Arc<Self>, nid: Nid) -> Result<(), SendError> {
        let info = Payload::from(self.ping_info().encode());
        self.put(nid, ping::PORTAL, ping::MBITS, 0, info, true).await?;
        self.note_told(nid);
        Ok(())
    }

    /// Asks in the background a peer that we just connected to for the first time.
    pub(crate) fn discover_in_background(self: &Arc<Self>, nid: Nid) {
        if !self.sock().limits.discovery || self.is_down() || self.peer_table().lock().told(nid).is_some() {
            return;
        }
        let me = self.clone();
        self.sock().spawn(async move {
            let _ = tokio::time::timeout(DISCOVERY_LIMIT, me.discover(nid)).await;
        });
    }

    /// A message could not be sent to the next hop `hop`, or no answer came from there.
    pub(crate) fn hop_failed(self: &Arc<Self>, local: Option<Nid>, hop: Nid, err: &SendError) {
        let (theirs, has_rails) = {
            let mut peers = self.peer_table().lock();
            (peers.ni(hop), !peers.rails(hop).is_empty())
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
        // As in Lustre: the health of a peer's only interface says nothing, unless it routes.
        if has_rails || self.has_routes() && self.route_table().lock().is_gateway(hop) {
            theirs.failed();
            self.recovering().store(true, Ordering::Relaxed);
        }
        if matches!(err, SendError::Unreachable { .. }) {
            self.gateway_event(hop, GwEvent::Silent);
        }
    }

    /// Pings peers' interfaces that failed, until their health is back (`lnet_recover_peer_nis`).
    fn recover_nis(self: &Arc<Self>) {
        if !self.recovering().load(Ordering::Relaxed) {
            return;
        }
        let now = self.sock().now_ms() / 1000;
        let sick: Vec<Arc<Ni>> = self.peer_table().lock().nis().filter(|n| n.health() < MAX_HEALTH).cloned().collect();
        self.recovering().store(!sick.is_empty(), Ordering::Relaxed);
        let limits = &self.sock().limits;
        for ni in sick.into_iter().filter(|n| n.next_ping.load(Ordering::Relaxed) <= now).take(RECOVERIES) {
            let count = ni.ping_count.fetch_add(1, Ordering::Relaxed);
            let pause = limits.recovery.as_secs().max(1) << count.min(16);
            ni.next_ping.store(now + pause.min(limits.max_recovery.as_secs()), Ordering::Relaxed);
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
