//! Whose connections a node takes, tried by programs of another user (needs root to become one; without it those tests say so).

mod tcp_common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use coral_lnet::{Accept, KnownBy, Nid, Node, NodeConfig, PortalHandler, PutEvent, SendError};
use parking_lot::Mutex;
use tcp_common::*;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// Uid of the stranger: no account has it.
const STRANGER: &str = "4242";

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not root: there is no other user to try with");
    }
    root
}

/// A program of another user of this machine; ended when dropped.
struct Stranger(Child);

impl Stranger {
    fn run(program: &[&str]) -> Stranger {
        let mut c = Command::new("setpriv");
        c.args([
            "--reuid",
            STRANGER,
            "--regid",
            STRANGER,
            "--clear-groups",
            "--",
        ])
        .args(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
        Stranger(c.spawn().expect("setpriv(1) from util-linux"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        line.trim().to_owned()
    }

    fn said(mut self) -> String {
        let mut text = String::new();
        self.0
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects to ARGV[0]:ARGV[1] from ARGV[2], sends the bytes ARGV[3], and says what came back.
const CLIENT: &str = r#"use IO::Socket::INET;
my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], LocalAddr => $ARGV[2]) or die "connect: $!";
$SIG{PIPE} = 'IGNORE';
syswrite $s, pack('H*', $ARGV[3]);
my $n = sysread $s, my $b, 4096;
print $n ? "answered\n" : "closed\n";"#;

/// Listens at ARGV[0]:ARGV[1], says so, and answers a handshake with the bytes ARGV[2].
const SERVER: &str = r#"use IO::Socket::INET;
my $l = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 5, ReuseAddr => 1) or die "listen: $!";
$| = 1; print "listening\n";
while (my $s = $l->accept) { sysread $s, my $b, 72; syswrite $s, pack('H*', $ARGV[2]); push @all, $s; }"#;

/// Binds a port below 1024.
const BIND: &str = r#"use IO::Socket::INET;
print IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 1000 + $$ % 20, Listen => 1) ? "bound\n" : "refused: $!\n";"#;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What a stranger hears who begins a handshake with node 1 of a test as its node 2.
fn shakes_hands(test: u8, before: &[&str]) -> String {
    let (us, them) = (nid(test, 2), nid(test, 1));
    let bytes = hex(&[connreq(them), hello(us, them, 7, 1)].concat());
    let (to, from, port) = (
        ip(test, 1).to_string(),
        ip(test, 2).to_string(),
        PORT.to_string(),
    );
    Stranger::run(&[before, &["perl", "-e", CLIENT, &to, &port, &from, &bytes]].concat()).said()
}

async fn with(accept: Accept, test: u8) -> Arc<Node> {
    start(NodeConfig {
        accept,
        ..config(test, 1)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secure_takes_ports_below_1024_only() {
    let server = with(Accept::Secure, 1).await;
    let user = start(config(1, 2)).await;
    let err = timeout(LONG, user.ping(nid(1, 1)))
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("accept=secure") && err.contains("--accept all"),
        "{err}"
    );
    assert!(server.stats().refused.value() >= 1);
    assert_eq!(server.stats().conns.value(), 0);
    let privileged = Accept::of_this_process() == Accept::Secure;
    let root = start(NodeConfig {
        secure_ports: true,
        ..config(1, 3)
    })
    .await;
    assert_eq!(
        timeout(LONG, root.ping(nid(1, 1))).await.unwrap().is_ok(),
        privileged
    );
    stop(&[&server, &user, &root]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_listens_nowhere() {
    let server = with(Accept::None, 2).await;
    let client = start(config(2, 2)).await;
    let err = timeout(LONG, client.ping(nid(2, 1)))
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(err.to_lowercase().contains("refused"), "{err}");
    stop(&[&server, &client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::disallowed_methods,
    reason = "a peer with a socket that blocks"
)]
async fn another_user_of_this_machine_is_refused_unless_all_are_taken() {
    if !is_root() {
        return;
    }
    // `unshare -Ur`: root of a user namespace is the user still.
    for (test, accept) in [(3, Accept::User), (4, Accept::Secure)] {
        let server = with(accept, test).await;
        for before in [&[][..], &["unshare", "-Ur"]] {
            let (known, said) = (
                server.stats().refused.value(),
                tokio::task::spawn_blocking(move || shakes_hands(test, before))
                    .await
                    .unwrap(),
            );
            assert_eq!(
                (said.as_str(), server.stats().refused.value() - known),
                ("closed\n", 1),
                "{accept}, {before:?}"
            );
        }
        assert_eq!(server.stats().conns.value(), 0);
        stop(&[&server]).await;
    }
    let server = with(Accept::All, 5).await;
    let said = tokio::task::spawn_blocking(|| shakes_hands(5, &[]))
        .await
        .unwrap();
    assert_eq!(
        (said.as_str(), server.stats().refused.value()),
        ("answered\n", 0)
    );
    stop(&[&server]).await;
}

#[test]
fn root_of_an_ordinary_users_namespace_cannot_bind_ports_below_1024() {
    if !is_root() {
        return;
    }
    assert_eq!(
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
            .unwrap()
            .trim(),
        "1024",
        "for this test"
    );
    for before in [&[][..], &["unshare", "-Ur"]] {
        let said = Stranger::run(&[before, &["perl", "-e", BIND]].concat()).said();
        assert!(
            said.starts_with("refused: Permission denied"),
            "{before:?}: {said}"
        );
    }
    // In a network of its own it can, where nobody of ours is.
    assert_eq!(
        Stranger::run(&[
            "unshare",
            "-Urn",
            "perl",
            "-e",
            &BIND.replace("127.0.0.1", "0.0.0.0")
        ])
        .said(),
        "bound\n"
    );
}

/// An address where a server was, and another user listens now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_users_program_in_the_place_of_a_server_is_not_spoken_with() {
    if !is_root() {
        return;
    }
    let (us, place) = (nid(6, 1), nid(6, 2));
    let answer = hex(&hello(place, us, 7, 1));
    let mut stranger = Stranger::run(&[
        "perl",
        "-e",
        SERVER,
        &ip(6, 2).to_string(),
        &PORT.to_string(),
        &answer,
    ]);
    assert_eq!(stranger.line(), "listening");
    // Each with an address of its own: what other tests start may hold a listener that was closed for a moment longer.
    for (n, accept) in [(3, Accept::User), (4, Accept::Secure), (5, Accept::None)] {
        let node = start(NodeConfig {
            accept,
            ..config(6, n)
        })
        .await;
        let err = timeout(LONG, node.ping(place)).await.unwrap().unwrap_err();
        assert!(
            matches!(err, SendError::Unreachable { .. })
                && err.to_string().contains("another user's"),
            "{accept}: {err}"
        );
        assert_eq!(node.stats().conns.value(), 0);
        stop(&[&node]).await;
    }
    let node = with(Accept::All, 6).await;
    let pinging = tokio::spawn({
        let node = node.clone();
        async move { node.ping(place).await }
    });
    until("a connection is there", || node.stats().conns.value() > 0).await;
    stop(&[&node]).await;
    assert!(pinging.await.unwrap().is_err());
}

#[derive(Default)]
struct Heard(Mutex<Vec<(Nid, KnownBy)>>);

impl PortalHandler for Heard {
    fn on_put(&self, _: &Arc<Node>, ev: PutEvent) {
        self.0.lock().push((ev.from, ev.known_by));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_are_told_how_the_peer_is_known() {
    let (server, heard) = (with(Accept::User, 7).await, Arc::new(Heard::default()));
    server.serve_portal(12, heard.clone());
    let mut peer = raw_conn(nid(7, 2), nid(7, 1)).await;
    // What claims to be of a node inside the process is nobody's.
    peer.write_all(&frame(
        "1@lo".parse().unwrap(),
        nid(7, 1),
        put_to(12, 1),
        b"",
    ))
    .await
    .unwrap();
    peer.write_all(&frame(nid(7, 2), nid(7, 1), put_to(12, 2), b""))
        .await
        .unwrap();
    until("a message has come", || !heard.0.lock().is_empty()).await;
    assert_eq!(*heard.0.lock(), [(nid(7, 2), KnownBy::User)]);
    stop(&[&server]).await;
}
