//! The reading half of a connection: one task, which delivers on its own stack.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use coral_buffers::Payload;
use coral_wire::lnet::{LNET_HDR_SIZE, LnetHdr};
use rustix::net::{RecvAncillaryBuffer, RecvFlags};
use tokio::io::Interest;
use tokio::time::Instant;

use super::{CloseOnDrop, CloseReason, Conn};
use crate::Node;
use crate::forward::{self, Transit, Verdict};
use crate::gateway::GwEvent;
use crate::msg::Msg;
use crate::sock::cork;
use crate::sock::frame::{Frame, FrameError, Framer, KEEPALIVE};
use crate::sock::tx::Credits;

/// The header of a message for somebody else, and its bytes.
type InTransit = (LnetHdr, Box<[u8; LNET_HDR_SIZE]>);

impl Conn {
    /// The reader task.
    pub(super) async fn read_all(&self, node: &Arc<Node>) {
        // A handler that panics ends this task: the connection must not stay open with nobody reading.
        let _guard = CloseOnDrop(self);
        let reason = match self.read_frames(node).await {
            Ok(()) => CloseReason::Reset,
            Err(e) => {
                self.peer.net.stats.bad_bytes.inc();
                tracing::warn!(node = %node.nid(), peer = %self.peer.nid, ctype = ?self.ctype, error = %e, "connection closed: bad bytes");
                CloseReason::BadBytes
            }
        };
        self.close(reason);
    }

    /// Reads until the connection ends.
    async fn read_frames(&self, node: &Arc<Node>) -> Result<(), BadBytes> {
        let mut framer = Framer::new(self.peer.net.pool.clone(), Some(self.peer.local));
        let mut copied = 0;
        let mut transit = None;
        loop {
            if self.stream.readable().await.is_err() {
                return Ok(());
            }
            match self.read(&mut framer) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(e) => {
                    tracing::debug!(peer = %self.peer.nid, ctype = ?self.ctype, error = %e, "read failed");
                    return Ok(());
                }
            }
            self.last_rx
                .store(self.peer.net.now_ms(), Ordering::Relaxed);
            while let Some((hdr, raw)) =
                cork::together(|| self.take_frames(node, &mut framer, &mut transit))?
            {
                match self.admit(node, &hdr, raw).await? {
                    Some(t) => transit = Some(t),
                    None => return Ok(()),
                }
                if let Some(whole) = framer.begin() {
                    self.on_frame(node, whole, &mut transit)?;
                }
            }
            self.rx_partial
                .store(framer.is_partial(), Ordering::Relaxed);
            node.stats().copied_bytes.add(framer.copied() - copied);
            copied = framer.copied();
        }
    }

    /// Takes the complete frames there are, up to one in transit whose header has come.
    fn take_frames(
        &self,
        node: &Arc<Node>,
        framer: &mut Framer,
        transit: &mut Option<Transit>,
    ) -> Result<Option<InTransit>, BadBytes> {
        while let Some(frame) = framer.next_frame()? {
            match frame {
                Frame::Transit { hdr, raw } => return Ok(Some((hdr, raw))),
                frame => self.on_frame(node, frame, transit)?,
            }
        }
        Ok(None)
    }

    /// One read. When it got less than it had room for, the socket is empty: tokio is told so and saves the read that would
    /// find that out. (With edge triggering, bytes that come later wake us again.)
    fn read(&self, framer: &mut Framer) -> io::Result<usize> {
        let (mut spaces, room) = framer.spaces();
        let mut got = None;
        let result = self.stream.try_io(Interest::READABLE, || {
            let n = rustix::net::recvmsg(
                &self.stream,
                &mut spaces,
                &mut RecvAncillaryBuffer::default(),
                RecvFlags::DONTWAIT,
            )?
            .bytes;
            got = Some(n);
            if n > 0 && n < room {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(())
            }
        });
        match (got, result) {
            (Some(n), _) => {
                framer.filled(n);
                Ok(n)
            }
            (None, Err(e)) => Err(e),
            (None, Ok(())) => Ok(0),
        }
    }

    /// Judges a message for somebody else by its header, and waits for the buffer it needs: the connection is not read meanwhile.
    /// None: the node goes down.
    async fn admit(
        &self,
        node: &Arc<Node>,
        hdr: &LnetHdr,
        raw: Box<[u8; LNET_HDR_SIZE]>,
    ) -> Result<Option<Transit>, BadBytes> {
        let arrived = Instant::now();
        match forward::judge(
            self.peer.local,
            hdr.dest_nid,
            node.nids(),
            node.is_routing(),
        ) {
            // A router passes on what others wrote: for that its connection must not end.
            Verdict::Refuse if hdr.src_nid == self.peer.nid => {
                Err(BadBytes::NotForUs(hdr.dest_nid))
            }
            Verdict::Drop | Verdict::Refuse => Ok(Some(Transit {
                raw: *raw,
                credits: Credits::new(),
                stamps: (arrived, arrived),
                forward: false,
                origin: self.origin.clone(),
            })),
            Verdict::Forward => {
                let mut admitted = std::pin::pin!(node.admit_transit(&self.peer, hdr));
                let (credits, since) = match futures_util::poll!(&mut admitted) {
                    Poll::Ready(credits) => (credits, arrived),
                    Poll::Pending => {
                        node.stats().route_waits.inc();
                        // It is we who do not read: that is no reason to call the peer stuck.
                        self.rx_partial.store(false, Ordering::Relaxed);
                        let credits = admitted.await;
                        (credits, Instant::now())
                    }
                };
                self.last_rx
                    .store(self.peer.net.now_ms(), Ordering::Relaxed);
                Ok(credits.ok().map(|credits| Transit {
                    raw: *raw,
                    credits,
                    stamps: (arrived, since),
                    forward: true,
                    origin: self.origin.clone(),
                }))
            }
        }
    }

    fn on_frame(
        &self,
        node: &Arc<Node>,
        frame: Frame,
        transit: &mut Option<Transit>,
    ) -> Result<(), BadBytes> {
        match frame {
            Frame::Noop {
                cookies: [0, 0 | KEEPALIVE],
            } => Ok(()),
            // We ask for no zero-copy acknowledgement, so none can be right.
            Frame::Noop { cookies } => Err(BadBytes::Cookie(cookies)),
            Frame::Lnet {
                cookies: [_, ack], ..
            } if ack > KEEPALIVE => Err(BadBytes::Cookie([0, ack])),
            Frame::Lnet {
                cookies: [wants, _],
                hdr,
                payload,
            } => {
                if wants != 0 {
                    self.peer.send_noop([0, wants]);
                }
                self.last_used
                    .store(self.last_rx.load(Ordering::Relaxed), Ordering::Relaxed);
                self.peer.count_received(&hdr.msg);
                let transit = transit.take();
                if node.is_ours(hdr.src_nid) || hdr.src_nid.is_lo() {
                    // Whoever wrote that may be far behind the peer. Nodes of this process (N@lo) do not come by TCP.
                    node.stats().unmatched.inc();
                    return Ok(());
                }
                // A node with several NIDs may send with any of them by any connection: the source is not judged (`lnet_parse`).
                let from_afar = hdr.src_nid.net() != self.peer.nid.net();
                if transit.as_ref().is_some_and(|t| !t.forward) {
                    node.stats().not_routing.inc();
                    return Ok(());
                }
                let msg = Msg {
                    dest: hdr.dest_nid,
                    src: hdr.src_nid,
                    kind: hdr.msg,
                    payload: Payload::from(payload),
                    known_by: self.known_by,
                };
                if from_afar && transit.is_none() {
                    node.gateway_event(self.peer.nid, GwEvent::Forwarded);
                }
                node.arrive(self.peer.nid, self.peer.local, msg, transit);
                Ok(())
            }
            // Taken before.
            Frame::Transit { .. } => Ok(()),
        }
    }
}

/// What a peer must not send.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadBytes {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("acknowledges zero-copy messages {0:?} that were never sent")]
    Cookie([u64; 2]),
    #[error("message for {0}")]
    NotForUs(crate::Nid),
}
