//! memlnd: nodes of one process reach each other by a function call.
//!
//! A message is delivered on the sender's stack and its payload handed over by reference: nothing is copied, no thread wakes.
//! The registry holds its nodes weakly; a node leaves it at shutdown or when it is dropped.
//! A pair of nodes can be given a [`LinkModel`]; then their messages take time, get lost or do not pass, by tokio's clock and a
//! seed and nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use coral_buffers::Payload;
use parking_lot::{Mutex, RwLock};

use crate::link::{Link, LinkModel, LinkStat};
use crate::msg::Msg;
use crate::{Nid, Node, SendError};
use coral_wire::lnet::LnetMsg;

/// A PUT or a REPLY on its way, as a [`Tamper`] sees it.
#[derive(Clone, Debug)]
pub struct Passing {
    /// Portal of a PUT; None: it is the REPLY to a GET.
    pub portal: Option<u32>,
    /// Match bits of a PUT: the xid of an RPC. 0 of a REPLY.
    pub match_bits: u64,
    /// What it carries.
    pub payload: Payload,
}

/// Gives what arrives instead of a message: nothing, one, several.
pub type Tamper = dyn Fn(Passing) -> Vec<Passing> + Send + Sync;

/// Registry of the nodes of one process, by NID.
#[derive(Default)]
pub struct MemNet {
    nodes: RwLock<BTreeMap<Nid, Weak<Node>>>,
    /// There is no other network.
    alone: bool,
    /// There are links.
    modelled: AtomicBool,
    /// By primary NIDs of sender and receiver.
    links: Mutex<BTreeMap<(Nid, Nid), Arc<Link>>>,
    /// By primary NID of the sender.
    tampers: RwLock<BTreeMap<Nid, Arc<Tamper>>>,
}

impl std::fmt::Debug for MemNet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.nodes.read().keys()).finish()
    }
}

impl MemNet {
    /// An empty registry.
    pub fn new() -> Arc<MemNet> {
        Arc::new(MemNet::default())
    }

    /// An empty registry of nodes that have no other network: a NID that is not in it cannot be reached, and nobody tries TCP.
    pub fn alone() -> Arc<MemNet> {
        Arc::new(MemNet {
            alone: true,
            ..MemNet::default()
        })
    }

    /// Made by [`MemNet::alone`].
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// The running node with this NID.
    pub fn node(&self, nid: Nid) -> Option<Arc<Node>> {
        self.nodes.read().get(&nid).and_then(Weak::upgrade)
    }

    /// Enters all NIDs or none; the error is the NID that is taken.
    pub(crate) fn register(&self, nids: &[Nid], node: &Arc<Node>) -> Result<(), Nid> {
        let mut nodes = self.nodes.write();
        if let Some(taken) = nids
            .iter()
            .find(|n| nodes.get(n).is_some_and(|w| w.strong_count() > 0))
        {
            return Err(*taken);
        }
        nodes.extend(nids.iter().map(|n| (*n, Arc::downgrade(node))));
        Ok(())
    }

    pub(crate) fn unregister(&self, nids: &[Nid], node: &Node) {
        let mut nodes = self.nodes.write();
        for nid in nids {
            if nodes
                .get(nid)
                .is_some_and(|w| std::ptr::eq(w.as_ptr(), node))
            {
                nodes.remove(nid);
            }
        }
        drop(nodes);
        let mut tampers = self.tampers.write();
        nids.iter().for_each(|nid| drop(tampers.remove(nid)));
    }

    /// Gives the pair of nodes with primary NIDs `a` and `b` a link model, both ways, each way with a `seed` of its own.
    /// A model that is there is replaced; what is under way on it arrives as it was to. The nodes need not exist yet.
    pub fn set_link(&self, a: Nid, b: Nid, model: LinkModel, seed: u64) {
        self.set_link_one_way(a, b, model, seed);
        self.set_link_one_way(b, a, model, seed ^ 0x5a5a_5a5a);
    }

    /// [`MemNet::set_link`] for what `from` sends to `to` only.
    pub fn set_link_one_way(&self, from: Nid, to: Nid, model: LinkModel, seed: u64) {
        let mut links = self.links.lock();
        match links.get(&(from, to)) {
            Some(link) => link.set(model),
            None => drop(links.insert((from, to), Arc::new(Link::new(model, seed)))),
        }
        self.modelled.store(true, Ordering::Release);
    }

    /// Cuts the pair's links or joins them again, both ways. What is under way is lost by a cut.
    /// A cut link without a model is made ideal otherwise.
    pub fn cut(&self, a: Nid, b: Nid, cut: bool) {
        for (from, to) in [(a, b), (b, a)] {
            let model = self
                .links
                .lock()
                .get(&(from, to))
                .map(|l| l.model())
                .unwrap_or_default();
            self.set_link_one_way(from, to, LinkModel { cut, ..model }, 0);
        }
    }

    /// From now on every PUT and REPLY of the node with primary NID `from` arrives as `tamper` makes it: a node that lies to others.
    pub fn tamper(&self, from: Nid, tamper: Arc<Tamper>) {
        self.tampers.write().insert(from, tamper);
        self.modelled.store(true, Ordering::Release);
    }

    /// Takes all models away: delivery is inline again. What is under way arrives as it was to.
    pub fn clear_links(&self) {
        self.links.lock().clear();
        self.tampers.write().clear();
        self.modelled.store(false, Ordering::Release);
    }

    /// Breaks the connection of two nodes, as a TCP connection breaks: what is under way is lost, and whoever waits for an
    /// answer of the other side is told [`SendError::PeerReset`].
    pub fn reset(&self, a: Nid, b: Nid) {
        for (from, to) in [(a, b), (b, a)] {
            let link = self.links.lock().get(&(from, to)).cloned();
            if let Some(link) = link {
                link.lose_all();
            }
        }
        for (us, peer) in [(a, b), (b, a)] {
            if let (Some(us), Some(peer)) = (self.node(us), self.node(peer)) {
                for nid in peer.nids() {
                    us.connection_lost(*nid, || SendError::PeerReset);
                }
            }
        }
    }

    /// What the link from `from` to `to` has done; None: it has no model.
    pub fn link_stat(&self, from: Nid, to: Nid) -> Option<LinkStat> {
        self.links.lock().get(&(from, to)).map(|l| l.stat())
    }

    /// Delivers `msg` of `from` to `to`: inline, unless their link has a model.
    pub(crate) fn carry(&self, from: &Node, to: &Arc<Node>, msg: Msg) {
        if !self.modelled.load(Ordering::Acquire) {
            return to.arrive(from.nid(), to.facing(&msg, from.nids()), msg, None);
        }
        let tamper = self.tampers.read().get(&from.nid()).cloned();
        let instead = tamper
            .and_then(|t| tampered(&*t, &msg))
            .unwrap_or_else(|| vec![msg]);
        let link = self.links.lock().get(&(from.nid(), to.nid())).cloned();
        for msg in instead {
            let local = to.facing(&msg, from.nids());
            match &link {
                Some(link) => link.send(from.nid(), (to, local), msg),
                None => to.arrive(from.nid(), local, msg, None),
            }
        }
    }
}

/// What goes instead of `msg`; None: itself.
fn tampered(tamper: &Tamper, msg: &Msg) -> Option<Vec<Msg>> {
    let payload = msg.payload.clone();
    let passing = match msg.kind {
        LnetMsg::Put {
            ptl_index,
            match_bits,
            ..
        } => Passing {
            portal: Some(ptl_index),
            match_bits,
            payload,
        },
        LnetMsg::Reply { .. } => Passing {
            portal: None,
            match_bits: 0,
            payload,
        },
        _ => return None,
    };
    let instead = tamper(passing).into_iter().map(|p| {
        let mut kind = msg.kind;
        if let LnetMsg::Put {
            ptl_index,
            match_bits,
            ..
        } = &mut kind
        {
            (*ptl_index, *match_bits) = (p.portal.unwrap_or(*ptl_index), p.match_bits);
        }
        Msg {
            kind,
            payload: p.payload,
            ..msg.clone()
        }
    });
    Some(instead.collect())
}
