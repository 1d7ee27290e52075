//! Who opens the connections of a peer: one task at a time, which holds a permit no longer than for a handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Peer;
use crate::sock::For;
use crate::sock::conn::Conn;
use crate::sock::dialer::{DialAct, DialEvent};
use crate::sock::hello::{ConnType, Dial, HandshakeError};
use crate::sock::tx::Tx;

/// Pause after a lost connection race; the winner needs a few round trips.
const RACE_PAUSE: Duration = Duration::from_millis(20);

/// What kind of failure it is: who has no descriptor or memory left is itself at fault.
pub(super) fn kind_of(e: &io::Error) -> io::ErrorKind {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    if ours
        .iter()
        .any(|n| e.raw_os_error() == Some(n.raw_os_error()))
    {
        io::ErrorKind::Other
    } else {
        e.kind()
    }
}

/// What a connector holds while it runs.
type HeldPermits = SmallVec<[OwnedSemaphorePermit; 2]>;

/// By what right a connector connects.
#[derive(Default)]
pub(super) struct Ticket {
    /// Taken already, for an answer.
    permit: Option<OwnedSemaphorePermit>,
    /// Where it takes a share first, for the sake of a message in transit.
    origin: Option<Arc<Semaphore>>,
}

impl Ticket {
    /// What `dial` needs for the sake of `tx`.
    pub(super) fn to(dial: &DialAct, tx: &Tx, permit: Option<OwnedSemaphorePermit>) -> Ticket {
        let origin = if matches!(dial, DialAct::Connect(_)) {
            tx.origin.clone()
        } else {
            None
        };
        Ticket { permit, origin }
    }
}

impl Peer {
    /// Waits for what a connector holds, no longer than for a handshake. None: the node goes down.
    async fn connector(
        &self,
        origin: Option<Arc<Semaphore>>,
    ) -> Result<Option<HeldPermits>, io::Error> {
        let for_others = async {
            let mut held = HeldPermits::new();
            if let Some(origin) = origin {
                held.push(origin.acquire_owned().await.ok()?);
            }
            held.push(self.net.connector(For::Others).await?);
            Some(held)
        };
        let permit = async {
            if !self.is_ours() {
                tokio::select! {
                    biased;
                    held = for_others => return held,
                    () = self.became_ours.notified() => {}
                }
            }
            self.net
                .connector(For::Us)
                .await
                .map(|permit| HeldPermits::from_iter([permit]))
        };
        // Our own side's fault, as its kind says.
        let late = |_| io::Error::other("too many connects are under way");
        tokio::time::timeout(self.net.limits.handshake_timeout, permit)
            .await
            .map_err(late)
    }

    /// Opens connections until none is missing. The dialer has said so.
    pub(super) fn spawn_connector(self: &Arc<Self>, after: Duration, ticket: Ticket) {
        let me = self.clone();
        self.net.spawn(async move {
            tokio::time::sleep(after).await;
            let held = match ticket.permit {
                Some(permit) => Ok(Some(HeldPermits::from_iter([permit]))),
                None => me.connector(ticket.origin).await,
            };
            let (done, _held) = match held {
                Ok(Some(held)) => {
                    me.st.lock().dialing = true;
                    let done = me.open_in_time().await.map_err(HandshakeError::into_io);
                    me.st.lock().dialing = false;
                    (done, Some(held))
                }
                Ok(None) => return,
                Err(e) => (Err(e), None),
            };
            if let Err(e) = done {
                tracing::info!(us = %me.local, peer = %me.nid, error = %e, "cannot connect");
                me.connect_failed(e);
            }
        });
    }

    /// For the sake of others not for ever: who answers "later" again and again keeps what the connector holds.
    async fn open_in_time(self: &Arc<Self>) -> Result<(), HandshakeError> {
        if self.is_ours() {
            return self.open_missing().await;
        }
        let limit = self.net.limits.handshake_timeout * ConnType::ALL.len() as u32;
        let opened = tokio::time::timeout(limit, self.open_missing()).await;
        opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    async fn open_missing(self: &Arc<Self>) -> Result<(), HandshakeError> {
        let mut races = 0;
        while let Some(ctype) = self.next_missing() {
            let limit = self.net.limits.handshake_timeout;
            let opened = tokio::time::timeout(limit, self.dial().connect(ctype)).await;
            match opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
                Ok((stream, incarnation)) => {
                    races = 0;
                    let known_by = self.net.known_of_dialed(&stream)?;
                    self.add_conn(
                        Conn::new(self.clone(), ctype, None, known_by, stream),
                        incarnation,
                    );
                }
                Err(HandshakeError::Race) if races < self.net.limits.race_retries => {
                    races += 1;
                    tokio::time::sleep(RACE_PAUSE * races.min(10)).await;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(super) fn dial(&self) -> Dial {
        let net = &self.net;
        Dial {
            local: self.local,
            peer: self.nid,
            port: net.connect_port,
            secure: net.secure_ports,
            incarnation: net.incarnation,
        }
    }

    /// The type to open next; None ends the connector.
    fn next_missing(&self) -> Option<ConnType> {
        let mut st = self.st.lock();
        let next = if st.dialer.is_down() {
            None
        } else {
            st.missing()
        };
        if next.is_none() {
            st.dial(DialEvent::Complete, &self.net.limits);
        }
        next
    }

    fn connect_failed(self: &Arc<Self>, e: io::Error) {
        let (waiting, dial) = {
            let mut st = self.st.lock();
            st.error = Some((kind_of(&e), e.to_string()));
            let dial = st.dial(DialEvent::Failed, &self.net.limits);
            (std::mem::take(&mut st.waiting), dial)
        };
        for tx in waiting {
            let err = self.st.lock().unreachable(self.nid);
            tx.finish(Err(err), self);
        }
        self.follow(dial, Ticket::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_our_own() {
        let of = |n: rustix::io::Errno| kind_of(&io::Error::from_raw_os_error(n.raw_os_error()));
        assert_eq!(of(rustix::io::Errno::MFILE), io::ErrorKind::Other);
        assert_eq!(
            of(rustix::io::Errno::CONNREFUSED),
            io::ErrorKind::ConnectionRefused
        );
    }
}
