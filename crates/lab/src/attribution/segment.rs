//! Where time can be.

use coral_stopwatch::Wait;

/// Where a part of an operation's time was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// On a processor of the client, outside RPCs.
    ClientCpu,
    /// Waiting for an RPC slot.
    ClientQueue,
    /// Waiting for a connection, or for the end of a recovery.
    Connection,
    /// Sendings that were not answered, and pauses before others.
    Resend,
    /// Waiting for a send credit of LNet.
    Credit,
    /// From the request to what the socket has taken.
    Send,
    /// On the way, there or back.
    Network,
    /// At a router, waiting for a credit and a buffer.
    RouterQueue,
    /// At a router otherwise.
    Router,
    /// In the queue of the service.
    ServerQueue,
    /// Waiting for a lock that others have.
    LockWait,
    /// On a processor of the server.
    ServerCpu,
    /// Waiting for storage.
    Storage,
    /// Waiting for bulk data.
    Bulk,
    /// Waiting for another server.
    OtherServer,
    /// From the reply to what the socket has taken.
    ReplyOut,
    /// The reply is at the client, and its caller is not awake yet.
    WakeUp,
    /// Sent and not answered yet, at a server whose stopwatch is not at hand: network and server together.
    Remote,
    /// Nobody stamped it.
    NotPlaced,
}

impl Segment {
    /// All, in the order of an RPC.
    pub const ALL: [Segment; 19] = {
        use Segment::*;
        [
            ClientCpu,
            ClientQueue,
            Connection,
            Resend,
            Credit,
            Send,
            Network,
            RouterQueue,
            Router,
            ServerQueue,
            LockWait,
            ServerCpu,
            Storage,
            Bulk,
            OtherServer,
            ReplyOut,
            WakeUp,
            Remote,
            NotPlaced,
        ]
    };

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Segment::ClientCpu => "client CPU",
            Segment::ClientQueue => "client queue",
            Segment::Connection => "connection",
            Segment::Resend => "resend",
            Segment::Credit => "LNet credit",
            Segment::Send => "send",
            Segment::Network => "network",
            Segment::RouterQueue => "router queue",
            Segment::Router => "router",
            Segment::ServerQueue => "server queue",
            Segment::LockWait => "lock wait",
            Segment::ServerCpu => "server CPU",
            Segment::Storage => "storage",
            Segment::Bulk => "bulk",
            Segment::OtherServer => "other server",
            Segment::ReplyOut => "reply out",
            Segment::WakeUp => "wake-up",
            Segment::Remote => "network and server",
            Segment::NotPlaced => "not placed",
        }
    }

    /// The segment of a wait.
    pub(crate) fn of(wait: Wait) -> Segment {
        match wait {
            Wait::Slot => Segment::ClientQueue,
            Wait::Connection => Segment::Connection,
            Wait::Pause => Segment::Resend,
            Wait::Credit => Segment::Credit,
            Wait::Lock => Segment::LockWait,
            Wait::Storage => Segment::Storage,
            Wait::Bulk => Segment::Bulk,
            Wait::Server => Segment::OtherServer,
        }
    }
}
