//! Ranks of other processes at the [`Meeting`]: one TCP connection each.
//!
//! Who connects shows the run's token. It then measures how far its clock is from the hub's, and exchanges frames.
//! A connection that ends without a farewell ends the run for everyone. A process has another one for itself ([`super::pulse`]). Both ends
//! are the same program, so the format has a version and no other compatibility.

use super::clock::Clock;
use super::done::Done;
use super::failed::Failed;
use super::meet::{Meeting, Shared};
use super::pulse::{self, Process};
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Opens each connection, with the version of the format.
const HELLO: [u8; 8] = *b"corallb6";
/// In the place of a rank: the connection of a process.
pub(super) const LISTENER: u32 = u32::MAX;
/// Longest token, bytes.
const MAX_TOKEN_BYTES: usize = 64;
/// Most bytes of one rank in one exchange, and of a record.
const MAX_SHARE_BYTES: usize = 64 << 20;
/// Round trips by which a joining rank measures its clock.
const CLOCK_TRIPS: usize = 32;
/// How often the hub looks whether another rank has come or the run is over.
const LOOK: Duration = Duration::from_millis(5);
/// A connection must say who it is in so long.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// A silent host is given up after this and [`KEEPALIVE_COUNT`] times [`KEEPALIVE_STEP`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_STEP: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 4;

/// What a rank says that has no connection.
pub(super) const CANNOT_JOIN: &str = "cannot join the run at";
const LOST_HUB: &str = "lost the run's hub";

const EXCHANGE: u8 = 1;
const RECORD: u8 = 2;
const FAREWELL: u8 = 3;
const BREAK: u8 = 4;

const FINE: u8 = 0;
const BROKEN: u8 = 1;

/// What the connections of a run share.
pub(crate) struct Hub {
    /// Where its ranks meet.
    pub meeting: Arc<Meeting>,
    /// What whoever connects must show.
    pub token: String,
    /// The common time.
    pub clock: Clock,
    /// Tells whoever started the run something.
    pub say: Box<dyn Fn(&str) + Send + Sync>,
}

/// Accepts the ranks of `expected` until all are there, the limit is over or the run ends; serves each in a thread of
/// `scope`. Runs in a thread of its own.
pub(crate) fn serve<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    listener: TcpListener,
    hub: Arc<Hub>,
    expected: std::ops::Range<u32>,
    limit: Duration,
) {
    let (meeting, clock) = (hub.meeting.clone(), hub.clock);
    let deadline = clock.now() + limit.as_nanos() as i64;
    if let Err(e) = listener.set_nonblocking(true) {
        return meeting.break_up(&format!("the ranks cannot meet: {e}"));
    }
    loop {
        let missing = meeting.missing(expected.clone());
        if missing.is_empty() || meeting.broken().is_some() {
            return;
        }
        if clock.now() > deadline {
            return meeting.break_up(&format!(
                "ranks {missing:?} did not come within {} s",
                limit.as_secs()
            ));
        }
        match listener.accept() {
            Ok((stream, from)) => {
                let hub = hub.clone();
                scope.spawn(move || serve_one(&hub, stream, from));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => super::clock::sleep(LOOK),
            Err(e) => return meeting.break_up(&format!("the ranks cannot meet: {e}")),
        }
    }
}

/// Who has connected.
enum Guest {
    Rank(u32),
    Process(Process),
}

/// One connection, from its greeting to its end. Strangers are turned away and change nothing.
fn serve_one(hub: &Hub, stream: TcpStream, from: SocketAddr) {
    let meeting = &*hub.meeting;
    let (rank, mut stream) = match greet(hub, stream) {
        Ok((Guest::Rank(rank), stream)) => (rank, stream),
        Ok((Guest::Process(p), stream)) => return pulse::attend(hub, stream.get_ref(), &p),
        Err(_) => return,
    };
    if let Err(e) = relay(meeting, rank, &mut stream) {
        let why = match e.kind() {
            io::ErrorKind::UnexpectedEof => "its connection has ended".to_owned(),
            _ => e.to_string(),
        };
        let who = match meeting.process_of(rank) {
            Some(p) if p.ranks.len() == 1 => p.to_string(),
            Some(p) => format!("rank {rank} (process {} on {})", p.pid, p.host),
            None => format!("rank {rank} at {}", from.ip()),
        };
        meeting.go_away(rank);
        meeting.break_up(&format!("{who} went away: {why}"));
    }
}

fn greet(hub: &Hub, stream: TcpStream) -> io::Result<(Guest, BufReader<TcpStream>)> {
    let (meeting, clock) = (&*hub.meeting, hub.clock);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_LIMIT))?;
    prepare(&stream)?;
    let mut stream = BufReader::new(stream);
    let mut hello = [0; HELLO.len()];
    stream.read_exact(&mut hello)?;
    let shown = read_bytes(&mut stream, MAX_TOKEN_BYTES)?;
    let rank = read_u32(&mut stream)?;
    let is_known = hello == HELLO && shown == hub.token.as_bytes();
    if !is_known || rank != LISTENER && !meeting.join(rank) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (guest, trips) = match rank {
        LISTENER => {
            let process = Process::read(&mut stream)?;
            if process.ranks.is_empty() || process.ranks.end > meeting.size() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            meeting.has(&process);
            (Guest::Process(process), 0)
        }
        rank => (Guest::Rank(rank), CLOCK_TRIPS),
    };
    stream.get_mut().write_all(&meeting.size().to_le_bytes())?;
    for _ in 0..trips {
        stream.read_exact(&mut [0])?;
        stream.get_mut().write_all(&clock.now().to_le_bytes())?;
    }
    stream.get_ref().set_read_timeout(None)?;
    Ok((guest, stream))
}

fn relay(meeting: &Meeting, rank: u32, stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    loop {
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        let members = read_u32(stream)?;
        let given = read_bytes(stream, MAX_SHARE_BYTES)?;
        match kind[0] {
            EXCHANGE if rank < members && members <= meeting.size() => {
                let answer = match meeting.exchange(rank, members, given) {
                    Ok(all) => {
                        let mut answer = vec![FINE];
                        answer.extend((all.len() as u32).to_le_bytes());
                        all.iter().for_each(|b| put_bytes(&mut answer, b));
                        answer
                    }
                    Err(why) => {
                        let mut answer = vec![BROKEN];
                        put_bytes(&mut answer, why.as_bytes());
                        answer
                    }
                };
                stream.get_mut().write_all(&answer)?;
            }
            RECORD => meeting.keep_record(given),
            BREAK => meeting.break_up(&String::from_utf8_lossy(&given)),
            FAREWELL => {
                let done = Done::from_bytes(&given).ok_or(io::ErrorKind::InvalidData)?;
                meeting.leave(rank, done);
                return Ok(());
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A connection on which the hub knows who this is, and the number of ranks. `about` is what a process says of itself.
pub(super) fn greeted(
    address: &str,
    token: &str,
    rank: u32,
    about: &[u8],
) -> io::Result<(BufReader<TcpStream>, u32)> {
    let mut stream = connect(address)?;
    prepare(&stream)?;
    let mut hello = HELLO.to_vec();
    put_bytes(&mut hello, token.as_bytes());
    hello.extend(rank.to_le_bytes());
    hello.extend(about);
    stream.write_all(&hello)?;
    let mut stream = BufReader::new(stream);
    let size = read_u32(&mut stream)?;
    Ok((stream, size))
}

/// A rank's side of the connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    rank: u32,
}

impl Connection {
    /// Joins the run at `address` as `rank`: the connection, the number of ranks, and `clock` at the hub's time.
    pub fn join(
        address: &str,
        token: &str,
        rank: u32,
        clock: Clock,
    ) -> Result<(Connection, u32, Clock), Failed> {
        let why = |e: io::Error| Failed::Apart(format!("rank {rank} {CANNOT_JOIN} {address}: {e}"));
        let (mut stream, size) = greeted(address, token, rank, &[]).map_err(why)?;
        let clock = measure(&mut stream, clock).map_err(why)?;
        Ok((Connection { stream, rank }, size, clock))
    }

    /// Gives and gets as [`Meeting::exchange`].
    pub fn exchange(&mut self, members: u32, mine: &[u8]) -> Result<Shared, String> {
        self.try_exchange(members, mine)
            .unwrap_or_else(|e| Err(format!("rank {} {LOST_HUB}: {e}", self.rank)))
    }

    /// Whether a rank noticed this itself; all else it was told by the hub.
    pub(super) fn is_own(why: &str) -> bool {
        why.contains(CANNOT_JOIN) || why.contains(LOST_HUB)
    }

    fn try_exchange(&mut self, members: u32, mine: &[u8]) -> io::Result<Result<Shared, String>> {
        self.send(EXCHANGE, members, mine)?;
        let mut fine = [0];
        self.stream.read_exact(&mut fine)?;
        if fine[0] != FINE {
            let why = read_bytes(&mut self.stream, MAX_SHARE_BYTES)?;
            return Ok(Err(String::from_utf8_lossy(&why).into_owned()));
        }
        let count = read_u32(&mut self.stream)?;
        if count != members {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let all = (0..count).map(|_| read_bytes(&mut self.stream, MAX_SHARE_BYTES));
        Ok(Ok(Arc::new(all.collect::<io::Result<_>>()?)))
    }

    fn send(&mut self, kind: u8, members: u32, bytes: &[u8]) -> io::Result<()> {
        let mut frame = vec![kind];
        frame.extend(members.to_le_bytes());
        put_bytes(&mut frame, bytes);
        self.stream.get_mut().write_all(&frame)
    }

    /// Hands the run's record to whoever started it.
    pub fn keep_record(&mut self, record: &[u8]) {
        // Where the hub is gone, the next exchange says so.
        let _ = self.send(RECORD, 0, record);
    }

    /// Ends the run for everyone.
    pub fn break_up(&mut self, why: &str) {
        let _ = self.send(BREAK, 0, why.as_bytes());
    }

    /// Leaves, and says what it has done; the run goes on.
    pub fn leave(&mut self, done: &Done) {
        let _ = self.send(FAREWELL, 0, &done.to_bytes());
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, HELLO_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The trip that took least bounds the offset best: the hub read its clock somewhere within it.
fn measure(stream: &mut BufReader<TcpStream>, clock: Clock) -> io::Result<Clock> {
    let (mut least, mut offset) = (i64::MAX, 0);
    for _ in 0..CLOCK_TRIPS {
        let sent = clock.now();
        stream.get_mut().write_all(&[0])?;
        let mut there = [0; 8];
        stream.read_exact(&mut there)?;
        let trip = clock.now() - sent;
        if trip < least {
            least = trip;
            offset = i64::from_le_bytes(there) - (sent + trip / 2);
        }
    }
    Ok(clock.moved(offset, (least as u64).div_ceil(2)))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_STEP)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    Ok(())
}

pub(super) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend(bytes);
}

pub(super) fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

pub(super) fn read_bytes(from: &mut impl Read, max: usize) -> io::Result<Vec<u8>> {
    let len = read_u32(from)? as usize;
    if len > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Grows as data comes: a length alone makes no memory be taken.
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() != len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::pulse::{Heard, listen};
    use super::*;

    fn hub(meeting: Arc<Meeting>, clock: Clock, say: impl Fn(&str) + Send + Sync + 'static) -> Hub {
        Hub {
            meeting,
            token: "secret".into(),
            clock,
            say: Box::new(say),
        }
    }

    fn process(ranks: std::ops::Range<u32>) -> Process {
        Process {
            ranks,
            pid: 77,
            host: "anna".into(),
        }
    }

    fn run(
        size: u32,
        limit: Duration,
        ranks: impl FnOnce(&str, Clock) + Send,
    ) -> (Arc<Meeting>, Option<String>) {
        let meeting = Meeting::new(size);
        let clock = Clock::start();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        std::thread::scope(|s| {
            let m = meeting.clone();
            let hub = Arc::new(hub(m, clock, |_| ()));
            s.spawn(move || serve(s, listener, hub, 0..size, limit));
            s.spawn(move || ranks(&address, clock));
        });
        let broken = meeting.broken();
        (meeting, broken)
    }

    #[test]
    fn ranks_meet_over_tcp_and_their_clocks_agree() {
        let (meeting, broken) = run(3, Duration::from_secs(60), |address, hub_clock| {
            std::thread::scope(|s| {
                for rank in 0..3_u32 {
                    s.spawn(move || {
                        // a clock that is off by about a second for each rank
                        let mine = Clock::start().moved(i64::from(rank) * 1_000_000_000, 0);
                        let (mut c, size, clock) =
                            Connection::join(address, "secret", rank, mine).expect("joins");
                        assert_eq!(size, 3);
                        let apart = (hub_clock.now() - clock.now()).unsigned_abs();
                        // the bound holds at the measurement; two reads of the clock take a while as well
                        assert!(
                            apart < clock.uncertainty_ns() + 200_000_000,
                            "{apart} ns apart"
                        );
                        for turn in 0..100_u8 {
                            let all = c.exchange(3, &[rank as u8, turn]).expect("unbroken");
                            assert_eq!(*all, [vec![0, turn], vec![1, turn], vec![2, turn]]);
                        }
                        if rank == 0 {
                            c.keep_record(b"{}");
                        }
                        c.leave(&Done {
                            operations: 10,
                            bytes: u64::from(rank),
                            ..Done::default()
                        });
                    });
                }
            });
        });
        assert_eq!(broken, None);
        assert_eq!(meeting.record().as_deref(), Some(&b"{}"[..]));
        let told = meeting.told();
        assert!(
            told.starts_with("ranks 0 to 2 had done 30 operations with 3 bytes"),
            "{told}"
        );
    }

    #[test]
    fn a_rank_that_vanishes_ends_the_run_for_the_others() {
        let (_, broken) = run(2, Duration::from_secs(60), |address, clock| {
            let (mut stays, ..) = Connection::join(address, "secret", 0, clock).expect("joins");
            let (gone, ..) = Connection::join(address, "secret", 1, clock).expect("joins");
            drop(gone);
            let why = stays.exchange(2, &[]).expect_err("rank 1 is gone");
            assert!(why.contains("rank 1 at 127.0.0.1 went away"), "{why}");
            stays.leave(&Done::default());
        });
        assert!(broken.is_some());
    }

    #[test]
    fn a_rank_that_vanishes_is_named_by_its_process_and_host() {
        let (_, broken) = run(2, Duration::from_secs(60), |address, clock| {
            listen(address, "secret", &process(1..2), |_| ()).expect("listens");
            let (mut stays, ..) = Connection::join(address, "secret", 0, clock).expect("joins");
            drop(Connection::join(address, "secret", 1, clock).expect("joins"));
            stays.exchange(2, &[]).expect_err("rank 1 is gone");
            stays.leave(&Done::default());
        });
        let told = "rank 1 (process 77 on anna) went away: its connection has ended";
        assert_eq!(broken.as_deref(), Some(told));
    }

    /// The rank that listens is in no exchange; one whose run ends in order hears nothing.
    #[test]
    fn a_process_hears_in_the_middle_of_its_work_that_the_run_is_broken() {
        for is_broken in [true, false] {
            let (heard, hears) = std::sync::mpsc::channel();
            let (_, broken) = run(2, Duration::from_secs(60), move |address, clock| {
                let heard = move |what| heard.send(what).expect("waited for");
                listen(address, "secret", &process(0..1), heard).expect("listens");
                let [mut one, mut other] = [0, 1].map(|rank| {
                    let (c, ..) = Connection::join(address, "secret", rank, clock).expect("joins");
                    c
                });
                match is_broken {
                    true => one.break_up("rank 0: no disk"),
                    false => one.leave(&Done::default()),
                }
                if is_broken {
                    assert_eq!(hears.recv(), Ok(Heard::Broken("rank 0: no disk".into())));
                    one.leave(&Done::default());
                }
                other.leave(&Done::default());
                assert!(hears.recv().is_err(), "it hears no more");
            });
            assert_eq!(broken.is_some(), is_broken);
        }
    }

    #[test]
    fn a_process_hears_in_the_middle_of_its_work_that_the_hub_is_gone() {
        let meeting = Meeting::new(2);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let (heard, hears) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(move || {
                let (stream, _) = listener.accept().expect("it connects");
                // As where the process is killed: the connection ends, and nothing was said.
                let hub = hub(meeting, Clock::start(), |_| ());
                assert!(greet(&hub, stream).is_ok(), "it is known");
            });
            let heard = move |what| heard.send(what).expect("waited for");
            listen(&address, "secret", &process(0..1), heard).expect("listens");
        });
        assert_eq!(hears.recv(), Ok(Heard::Gone));
    }

    #[test]
    fn strangers_and_doubles_are_turned_away_and_who_is_missing_is_named() {
        let (_, broken) = run(2, Duration::from_millis(600), |address, clock| {
            let refused = |token, rank| Connection::join(address, token, rank, clock).is_err();
            assert!(refused("guess", 0));
            assert!(refused("secret", 7));
            let (_zero, ..) = Connection::join(address, "secret", 0, clock).expect("joins");
            assert!(refused("secret", 0));
            let mut noise = TcpStream::connect(address).expect("connects");
            let _ = noise.write_all(&[0xff; 64]);
            super::super::clock::sleep(Duration::from_millis(800));
        });
        let why = broken.expect("rank 1 is missing");
        assert!(why.contains("ranks [1]"), "{why}");
    }
}
