//! `coral trace` and `coral explain` on real processes: a client, a router and a server, each a process of its own, over TCP
//! between network namespaces.

mod common;

use common::net::Namespace;
use common::{Place, Running, coral, fails, in_network_namespace, ok, until};
use std::path::Path;

/// Numbers of the networks of the server and of the client: 10.N.0.0/24.
const NETS: [u8; 2] = [221, 222];

/// MGS, MDT and OST on one node, behind a router.
fn serve(place: &Place, net: &Namespace, port: &str) -> Running {
    let (mds, ost, nid) = (place.path("mds"), place.path("ost"), "10.221.0.2@tcp");
    ok(coral()
        .args(["format", "--mgs", "--mdt", "0", "--fsname", "fs"])
        .arg(&mds));
    ok(coral()
        .args(["format", "--ost", "0", "--fsname", "fs", "--mgsnode", nid])
        .arg(&ost));
    let (m, o) = (mds.to_string_lossy(), ost.to_string_lossy());
    let args = [
        "serve",
        &m,
        &o,
        "--nid",
        nid,
        "--port",
        port,
        "--route",
        "tcp1 10.221.0.1@tcp",
    ];
    net.coral(&args, &mds, &[])
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn trace(places: &[&Path], more: &[&str]) -> String {
    ok(coral().arg("trace").args(places).args(more))
}

#[test]
fn an_operation_is_taken_apart_over_a_router_and_three_processes() {
    in_network_namespace(
        "an_operation_is_taken_apart_over_a_router_and_three_processes",
        || {
            let place = Place::new();
            let port = place.port.to_string();
            let nets = NETS.map(|n| Namespace::joined(n, &[2]));
            let (router_dir, mnt) = (place.make("router"), place.make("mnt"));
            let d = router_dir.to_string_lossy();
            let args = [
                "router",
                "--dir",
                &d,
                "--port",
                &port,
                "--nid",
                "10.221.0.1@tcp",
                "--nid",
                "10.222.0.1@tcp1",
            ];
            let router = Running::start(&args, &router_dir, &[]);
            let server = serve(&place, &nets[0], &port);
            let m = mnt.to_string_lossy();
            let args = [
                "mount",
                "10.221.0.2@tcp:/fs",
                &m,
                "--nid",
                "10.222.0.2@tcp1",
                "--port",
                &port,
                "--route",
                "tcp 10.222.0.1@tcp1",
            ];
            let client = nets[1].coral(&args, &place.path("client"), &[&mnt]);

            for i in 0..20 {
                let file = mnt.join(format!("f{i}"));
                std::fs::write(&file, vec![7; 100_000]).expect("it is written");
                let open = std::fs::File::open(&file).expect("it is opened");
                open.sync_all().expect("it is synced");
            }
            let mds = place.path("mds");
            let all: [&Path; 3] = [&mnt, &mds, &router_dir];

            let seen: coral_lab::verdict::Seen =
                serde_json::from_value(json(&trace(&all, &["--json"]))).expect("records");
            assert_eq!((seen.dumps.len(), seen.routers.len()), (3, 1));
            let j = seen.joined();
            let of = |name: &'static str| j.ops.iter().filter(move |o| o.op.op == name);
            assert!(of("CREATE").count() >= 20 && of("FSYNC").count() >= 20);
            let mut rpcs = 0;
            for o in &j.ops {
                let parts: i64 = o.parts.iter().map(|p| p.ns()).sum();
                assert_eq!(
                    parts,
                    o.ns(),
                    "{}",
                    coral_lab::attribution::operation_text(&j, o)
                );
                rpcs += o.rpcs.len();
            }
            assert!(rpcs >= 40);
            let inside = || j.rpcs.iter().filter(|r| r.rpc.op != 0);
            assert!(
                inside().all(|r| r.is_served),
                "a server's record is missing"
            );
            use coral_lab::attribution::Segment::{NotPlaced, Router};
            let has_router = |r: &&coral_lab::attribution::JoinedRpc| {
                r.parts.iter().any(|p| p.segment == Router)
            };
            assert!(
                inside().filter(has_router).count() >= 40,
                "the router is missing"
            );
            // Three clocks, each with its uncertainty; they are the same machine's, so no lead may be beyond it.
            assert_eq!(j.clocks.len(), 2);
            assert_eq!(j.conflict_ns, 0, "stamps contradict each other");
            let total: i64 = of("CREATE").map(|o| o.ns()).sum();
            let missing: i64 = of("CREATE").map(|o| o.in_segment(NotPlaced)).sum();
            println!(
                "creates: {missing} of {total} ns not placed, conflict {} ns, {:?}",
                j.conflict_ns, j.clocks
            );

            let file = place.path("trace.json");
            let f = file.to_string_lossy();
            let text = trace(
                &all,
                &[
                    "--op",
                    "create",
                    "--slow",
                    "1us",
                    "--most",
                    "2",
                    "--perfetto",
                    &f,
                ],
            );
            assert!(text.contains("CREATE on 10.222.0.2@tcp1"), "{text}");
            assert!(
                text.contains("LDLM_ENQUEUE to fs-MDT0000") && text.contains("router"),
                "{text}"
            );
            let events = json(&std::fs::read_to_string(&file).expect("the file"));
            assert!(
                events["traceEvents"]
                    .as_array()
                    .is_some_and(|e| e.len() > 40)
            );
            let none = trace(&all, &["--slow", "1000s"]);
            assert!(none.contains("0 operations of"), "{none}");
            let (_, said) = fails(coral().args(["trace", "--slow", "10"]));
            assert!(said.contains("10ms"), "{said}");

            let verdict = ok(coral().arg("explain").args(all).args(["--watch", "0.1"]));
            println!("{verdict}");
            assert!(
                verdict.starts_with("operations of ")
                    && verdict.contains("\nLittle's law ")
                    && verdict.contains("\nverdict: ")
            );
            std::fs::write(&file, trace(&all, &["--json"])).expect("it is kept");
            let kept = json(&ok(coral().arg("explain").arg(&file).arg("--json")));
            assert!(kept["little"]["counted"].is_number(), "{kept}");

            client.stop();
            server.stop();
            router.stop();
        },
    );
}

/// One process has the servers and the mount: by whatever it is named, it is asked once. And asking is no operation of the mount.
#[test]
fn a_process_is_asked_once_and_asking_is_no_load() {
    in_network_namespace("a_process_is_asked_once_and_asking_is_no_load", || {
        let place = Place::new();
        let running = place.up(&[]);
        let (data, mnt) = (place.path("data"), place.path("mnt"));
        let ops = |places: &[&Path]| -> Vec<String> {
            let seen: coral_lab::verdict::Seen =
                serde_json::from_value(json(&trace(places, &["--json"]))).expect("records");
            let ops = seen.dumps.iter().flat_map(|d| &d.ops);
            ops.map(|o| format!("{} {}", o.id, o.op)).collect()
        };
        std::fs::write(mnt.join("f"), "x").expect("written");
        // The kernel releases a file after its close, whenever it likes.
        let ended = || ops(&[&mnt]).iter().any(|o| o.ends_with("RELEASE"));
        until("the file is released", ended);
        let pid = running.pid().to_string();
        let link = place.path("link");
        std::os::unix::fs::symlink(&data, &link).expect("a link");
        let around = ["mnt/../mnt", "data/../mnt", "mnt/../link"].map(|p| place.path(p));
        let mut all: Vec<&Path> = vec![&data, &mnt, Path::new(&pid), &link];
        all.extend(around.iter().map(|p| p.as_path()));
        // A way through the mount is the kernel's, which may look whether the root can be searched.
        let others = |mut ops: Vec<String>| {
            ops.retain(|o| !o.ends_with("GETATTR"));
            ops
        };
        let before = others(ops(&[&mnt]));
        assert!(before.iter().any(|o| o.contains("CREATE")), "{before:?}");
        assert_eq!(others(ops(&all)), before);
        let before = ops(&[&mnt]);
        let explain = || {
            coral()
                .arg("explain")
                .arg(&mnt)
                .args(["--watch", "0.5"])
                .output()
        };
        explain().expect("explained");
        assert_eq!(ops(&[&mnt]), before);
        running.stop();
    });
}

/// A router, and then a process with a mount, is stopped by a signal. Commands that ask several processes name it and tell what the
/// others know; those that ask it alone fail and name it. The processes are in a registry of their own, so that no other test asks
/// the one that is stopped.
#[test]
fn a_process_that_is_stopped_is_named_and_left_out() {
    in_network_namespace("a_process_that_is_stopped_is_named_and_left_out", || {
        let place = Place::new();
        let own = || {
            let mut command = coral();
            command.env("XDG_RUNTIME_DIR", place.dir.path());
            command
        };
        let (data, mnt, dir) = (place.path("data"), place.make("mnt"), place.make("router"));
        let text = |p: &Path| p.to_string_lossy().into_owned();
        let (data_s, mnt_s, d) = (text(&data), text(&mnt), text(&dir));
        let port = place.port.to_string();
        let up = ["up", &data_s, "--mount", &mnt_s, "--port", &port];
        let running = Running::start_as(own(), &up, &data, &[&mnt]);
        let nids = ["--nid", "127.0.0.8@tcp", "--nid", "127.0.0.9@tcp1"];
        let args = [&["router", "--dir", &d, "--port", &port][..], &nids].concat();
        let router = Running::start_as(own(), &args, &dir, &[]);
        std::fs::write(mnt.join("f"), "x").expect("written");
        let signal = |name: &str, to: &Running| {
            let mut kill = std::process::Command::new("kill");
            ok(kill.args([name, &to.pid().to_string()]));
        };
        let is_told = |said: &str, of: &Running| {
            said.contains(&format!("process {} (", of.pid()))
                && said.contains("), which is stopped, did not answer within 1 s")
        };
        let some = |command: &[&str], places: [&Path; 2], stopped: &Running| -> String {
            let out = own().args(command).args(places).output();
            let out = out.expect("it ends");
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(is_told(&said, stopped), "{command:?}: {said}");
            assert_eq!(out.status.code(), Some(3), "{command:?}: {said}");
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let refused = |command: &[&str], stopped: &Running| {
            let (code, said) = fails(own().args(command));
            assert!(code == 1 && is_told(&said, stopped), "{command:?}: {said}");
        };

        signal("-STOP", &router);
        for command in [&["trace"][..], &["explain", "--watch", "0.1"]] {
            let found = some(command, [&data, &dir], &router);
            assert!(found.contains("operations"), "{command:?}: {found}");
        }
        for command in ["status", "metrics", "history", "trace"] {
            refused(&[command, &d], &router);
        }
        refused(&["lnetctl", "--dir", &d, "net", "show"], &router);
        refused(&args, &router);
        signal("-CONT", &router);

        // Which process has the mount only that process can say.
        signal("-STOP", &running);
        some(&["trace"], [&mnt, &dir], &running);
        let found = some(
            &["explain", "--watch", "0.1", "--json"],
            [&mnt, &dir],
            &running,
        );
        assert!(
            is_told(&json(&found)["left_out"].to_string(), &running),
            "{found}"
        );
        refused(&["trace", &mnt_s], &running);
        refused(&["up", &data_s], &running);
        signal("-CONT", &running);
        router.stop();
        running.stop();
    });
}
