//! An error keeps its reason: who said it, at which NID, of which request; it is logged once, and not over and over.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use coral_client::{Error, FileSystem, Refusal, TargetError};
use coral_osd::{Fault, OsdSim};
use coral_ptlrpc::{Call, RpcError};
use coral_wire::layout::LovMd;
use coral_wire::ptlrpc::opc;
use coral_wire::{Errno, Fid};

const OST1: &str = "10.0.9.1@tcp";

/// What is logged in this thread, as text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Logs of level INFO and above from here on.
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let lines = Self::default();
        let to = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || to.clone())
            .finish();
        (lines, tracing::subscriber::set_default(log))
    }

    /// Those of failed operations.
    fn failed(&self) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        all.lines()
            .filter(|l| l.contains("operation failed"))
            .map(str::to_owned)
            .collect()
    }
}

fn assert_names(call: Option<&Call>, target: &str, at: &str, opcode: u32, fid: Fid) -> u64 {
    let call = call.expect("a request failed");
    assert_eq!(&*call.target, target);
    assert_eq!((call.nid, call.opc, call.fid), (nid(at), opcode, fid));
    assert_ne!(call.xid, 0);
    call.xid
}

/// Makes `name` with its object on that OST.
async fn on_ost(u: &User, dir: &str, name: &str, ost: u16) -> Fid {
    let d = u.mkdir(dir).await.unwrap();
    let layout = LovMd::request(65536, 1, ost, None).encode();
    u.fs.setxattr(&u.cred, d, b"lustre.lov", layout, 0)
        .await
        .unwrap();
    u.put(&format!("{dir}/{name}"), &[7; 1000]).await.unwrap()
}

/// A cluster with OST 1 on a node of its own, and the server of that.
async fn with_far_ost() -> (Cluster, coral_node::Servers) {
    let c = Cluster::start(1, 1, 65536).await;
    let far = c
        .serve_ost(1, &OsdSim::default(), OST1, "10.0.9.2@tcp")
        .await;
    c.knows_ost_at(1, OST1);
    (c, far)
}

#[tokio::test(start_paused = true)]
async fn a_read_of_a_dead_ost_says_which_and_where() {
    let (c, far) = with_far_ost().await;
    let u = User::root(&c.remote_client().await);
    let fid = on_ost(&u, "d", "f", 1).await;
    let fh = u.open("d/f", libc::O_RDONLY).await.unwrap();
    far.kill().await;
    let active = u.fs.params().into_iter();
    let active = active.map(|(n, _)| n);
    let active = active
        .filter(|n| n.contains("OST0001"))
        .find(|n| n.ends_with(".active"));
    let active = active.expect("there for each OST");
    let deactivate = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        u.fs.set_param(&active, "0").await.unwrap();
    };
    let (waited, ()) = tokio::join!(u.fs.read(&fh, 0, 10), deactivate);
    let e = waited.expect_err("its server is dead");
    assert!(
        matches!(
            &e,
            Error::Target(TargetError::NoReply(RpcError::Unreachable(_)))
        ),
        "{e:?}"
    );
    assert_names(e.call(), "test-OST0001_UUID", OST1, opc::OST_READ, fid);
    assert_eq!(e.errno(), Errno::EIO);
    let later = u.fs.read(&fh, 0, 10).await;
    assert_eq!(later.err(), Some(Error::NoOst(1)), "not even asked");
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_server_says_which_request_it_was() {
    let c = Cluster::start(1, 1, 65536).await;
    let u = User::root(&c.remote_client().await);
    let root = u.fs.root();
    let mut xids = Vec::new();
    for _ in 0..2 {
        let e = u.fs.rmdir(&u.cred, root, b"none").await.unwrap_err();
        assert_eq!(e.errno(), Errno::ENOENT);
        xids.push(assert_names(
            e.call(),
            "test-MDT0000_UUID",
            SERVER,
            opc::MDS_REINT,
            root,
        ));
    }
    assert_ne!(xids[0], xids[1], "each its own request");
    let e = u.fs.mkdir(&u.cred, root, b"a/b", 0o755).await;
    assert_eq!(e.err(), Some(Refusal::BadName.into()), "no server is asked");
    c.stop().await;
}

/// Writes of an evicted client: dirty data is lost, and fsync says whose lock is void.
#[tokio::test(start_paused = true)]
async fn an_evicted_client_is_told_by_whom() {
    let (c, far) = with_far_ost().await;
    let u = User::root(&c.remote_client().await);
    let fid = on_ost(&u, "d", "f", 1).await;
    let fh = u.open("d/f", libc::O_RDWR).await.unwrap();
    for at in 0..4 {
        u.write(&fh, at * 1000, &[8; 1000]).await.unwrap();
    }
    let target = far.targets().next().expect("it serves OST 1");
    for e in target.exports() {
        target.evict(e.cookie, "test");
    }
    let told = async {
        loop {
            match u.fs.fsync(&fh, false).await {
                Ok(()) => tokio::time::sleep(Duration::from_secs(1)).await,
                Err(e) => return e,
            }
        }
    };
    let e = tokio::time::timeout(Duration::from_secs(600), told)
        .await
        .expect("it is told");
    assert!(matches!(&e, Error::Lost(_)), "{e:?}");
    let call = e
        .call()
        .expect("the request, or the one there could not be");
    assert_eq!(&*call.target, "test-OST0001_UUID");
    assert_eq!((call.nid, call.fid), (nid(OST1), fid));
    assert!(e.to_string().contains("evicted"), "{e}");
    assert_eq!(e.errno(), Errno::EIO);
    c.stop().await;
    far.stop().await;
}

/// Of errors that are trouble there is one line at the top, with all that is known, and no line below; then silence for a while.
#[tokio::test(start_paused = true)]
async fn an_error_is_logged_once() {
    let c = Cluster::start(1, 1, 65536).await;
    let node = c.remote_node().await.expect("a node");
    let fs = FileSystem::mount_on(node, c.mount_options()).await.unwrap();
    let fs = fs.as_user(coral_client::Cred::root());
    let file = fs.create("f").await.unwrap();
    file.write_at(&[1; 1000], 0).await.unwrap();
    file.sync().await.unwrap();
    let fid = file.handle().fid();

    let (lines, _logs) = Lines::begin();
    assert_eq!(fs.stat("none").await.unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(
        lines.failed(),
        [""; 0],
        "what programs expect is no trouble"
    );

    let cut = async || {
        c.disks.osts[0].inject(Fault::FailWrite(1));
        file.set_len(10).await.expect_err("the disk fails")
    };
    let e = cut().await;
    assert_eq!((e.op(), e.path()), ("set_attr", &b"f"[..]));
    let of = e.reason().call();
    let xid = assert_names(of, "test-OST0000_UUID", SERVER, opc::OST_PUNCH, fid);
    let [line] = &lines.failed()[..] else {
        panic!("one line: {:?}", lines.failed());
    };
    for part in [
        "WARN",
        "op=\"set_attr\"",
        "on=f",
        "errno=EIO",
        &format!("OST_PUNCH (xid {xid}) to test-OST0000_UUID at {SERVER} for {fid}"),
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let all = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let by = |whom| {
        let lines = all.lines().filter(|l| l.contains(whom));
        lines.filter(|l| l.contains(&xid.to_string())).count()
    };
    let both = (by(" coral_client"), by(" coral_server"));
    assert_eq!(
        both,
        (1, 1),
        "each says it once, and no layer between: {all}"
    );

    for _ in 0..50 {
        cut().await;
    }
    assert_eq!(lines.failed().len(), 1, "no flood");
    tokio::time::sleep(coral_client::error::QUIET).await;
    cut().await;
    let again = lines.failed();
    assert!(
        again.len() == 2 && again[1].contains("hidden=50"),
        "{again:?}"
    );
    fs.unmount().await;
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_program_prints() {
    let c = Cluster::start(1, 1, 65536).await;
    let node = c.remote_node().await.expect("a node");
    let fs = FileSystem::mount_on(node, c.mount_options()).await.unwrap();
    let e = fs.stat("some/where").await.unwrap_err();
    assert_eq!(
        e.to_string(),
        "stat some/where: No such file or directory (ENOENT)"
    );
    let io = std::io::Error::from(e);
    assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    assert!(io.to_string().starts_with("stat some/where: "));
    fs.unmount().await;
    c.stop().await;
}
