//! `lst` and its fellows by the names users call them, and self-tests and mounts across a router, with the mistakes people make
//! there.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process that is killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A place with links to `coral` by its other names, and with its own list of running processes.
struct Bench {
    place: Place,
    port: String,
}

impl Bench {
    fn new() -> Bench {
        let place = Place::new();
        let bin = place.make("bin");
        let coral = PathBuf::from(coral().get_program()).canonicalize().unwrap();
        for name in ["lst", "lnetctl", "lctl", "lfs", "mount.coral"] {
            std::os::unix::fs::symlink(&coral, bin.join(name)).unwrap();
        }
        let port = place.port.to_string();
        Bench { place, port }
    }

    /// A command by its own name; `{p}` in its arguments is the port.
    fn tool(&self, name: &str, line: &str) -> Command {
        let mut c = Command::new(self.place.path("bin").join(name));
        c.env("XDG_RUNTIME_DIR", self.place.dir.path())
            .env("LST_SESSION", "77");
        c.args(words(&line.replace("{p}", &self.port)));
        c
    }

    fn lst(&self, line: &str) -> String {
        ok(&mut self.tool("lst", line))
    }

    fn lst_fails(&self, line: &str) -> String {
        fails(&mut self.tool("lst", line)).1
    }

    fn serve(&self, line: &str) -> Started {
        let mut c = self.tool("lst", &format!("serve --port {{p}} {line}"));
        let mut child = c
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(child.stdout.take().unwrap()),
            &mut said,
        )
        .unwrap();
        assert!(said.starts_with("serving self-tests on "), "{line}: {said}");
        Started(child)
    }

    fn coral(&self) -> Command {
        let mut c = coral();
        c.env("XDG_RUNTIME_DIR", self.place.dir.path());
        c
    }

    /// Between 127.0.0.4@tcp and 127.1.0.4@tcp1.
    fn router(&self) -> Running {
        let dir = self.place.make("router");
        let args = [
            "router",
            "--port",
            &self.port,
            "--nid",
            "127.0.0.4@tcp",
            "--nid",
            "127.1.0.4@tcp1",
            "--dir",
            &dir.to_string_lossy(),
        ];
        Running::start_as(self.coral(), &args, &dir, &[])
    }

    fn socket(&self, pid: u32) -> String {
        self.place
            .path(&format!("coral/{}/control.sock", own_dir_of(pid)))
            .to_string_lossy()
            .into_owned()
    }
}

/// Splits at blanks outside of quotes.
fn words(line: &str) -> Vec<String> {
    let parts = line
        .split('\'')
        .enumerate()
        .flat_map(|(i, part)| match i % 2 {
            0 => part
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
            _ => vec![part.to_owned()],
        });
    parts.collect()
}

fn pid_of_console(bench: &Bench) -> u32 {
    let entries = std::fs::read_dir(bench.place.path("coral"))
        .unwrap()
        .flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|e| {
            let name = e.file_name().into_string().ok()?;
            name.strip_suffix(".sock")?.split_once('-')?.0.parse().ok()
        })
        .collect();
    pids.retain(|p| {
        std::fs::read_to_string(format!("/proc/{p}/cmdline"))
            .unwrap_or_default()
            .contains("console")
    });
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

#[test]
fn every_name_starts_what_runs_in_the_background() {
    in_network_namespace("every_name_starts_what_runs_in_the_background", || {
        let b = Bench::new();
        assert_eq!(
            b.lst("new_session --port {p} --nid 127.0.0.6@tcp trial"),
            "SESSION: trial FEATURES: 1 TIMEOUT: 300 FORCE: No\n"
        );
        assert!(
            b.lst_fails("new_session --port {p}")
                .contains("a session with key 77 exists")
        );
        let served = b.serve("--nid 127.0.0.5@tcp");
        assert_eq!(
            b.lst("add_group g 127.0.0.5@tcp"),
            "127.0.0.5@tcp are added to session\n"
        );
        let console = pid_of_console(&b).to_string();
        ok(Command::new("kill").args(["-STOP", &console]));
        let said = b.lst_fails("show_session");
        assert!(
            said.contains(&format!("process {console} ("))
                && said.contains("), which is stopped, did not answer within 1 s"),
            "{said}"
        );
        ok(Command::new("kill").args(["-CONT", &console]));
        // Both are nodes that lnetctl finds.
        let (_, said) = fails(&mut b.tool("lnetctl", "net show"));
        assert!(said.contains("2 Coral processes run here"), "{said}");
        for (pid, nid) in [
            (served.0.id(), "127.0.0.5@tcp"),
            (pid_of_console(&b), "127.0.0.6@tcp"),
        ] {
            let shown = ok(&mut b.tool("lnetctl", &format!("--socket {} net show", b.socket(pid))));
            assert!(shown.contains(nid), "{shown}");
            assert_eq!(
                ok(&mut b.tool("lctl", &format!("--socket {} list_nids", b.socket(pid)))),
                format!("{nid}\n")
            );
        }
        drop(served); // killed: what it left is not taken for a process
        assert!(ok(&mut b.tool("lnetctl", "net show")).contains("127.0.0.6@tcp"));

        // Ended means that key and address are free.
        assert!(
            b.lst_fails("end_session")
                .contains("end session RPC failed on 12345-127.0.0.5@tcp")
        );
        for _ in 0..8 {
            b.lst("new_session --port {p} --nid 127.0.0.6@tcp again");
            b.lst("end_session");
        }
        b.lst("new_session --port {p} --nid 127.0.0.6@tcp again");
        assert!(b.lst_fails("end_session now").contains("'now' is too much"));
        b.lst("show_session");
        // Longer than what the console reads, and than what a socket takes before it is read: the sentence still comes.
        let (_, said) = fails(
            b.tool("lst", "add_group g")
                .args(vec!["127.0.0.5@tcp,".repeat(8000); 12]),
        );
        assert!(
            said.contains(
                "the command is longer than 1048576 bytes: give ranges, or several commands"
            ),
            "{said}"
        );
        b.lst("new_session --force --port {p} --nid 127.0.0.6@tcp forced");
        let foreign = b.lst_fails("new_session --force --port {p} --nid 10.99.0.1@tcp foreign");
        assert!(
            foreign.contains("no interface of this machine has that address"),
            "{foreign}"
        );
        assert!(b.lst_fails("show_session").contains("No session exists"));
        assert!(
            b.lst("quick --help").starts_with("usage: lst quick")
                && b.lst("serve -h").starts_with("usage: lst serve")
        );

        // A file system, mounted by the helper of mount(8), which starts itself again.
        let data = b.place.path("data");
        let up = Running::start_as(
            b.coral(),
            &["up", data.to_str().unwrap(), "--port", &b.port],
            &data,
            &[],
        );
        let mnt = b.place.make("mnt");
        let mount = format!("127.0.0.1@tcp:/coral {} -o port={{p}}", mnt.display());
        ok(&mut b.tool("mount.coral", &mount));
        assert!(is_mounted(&mnt));
        assert!(ok(&mut b.tool("lfs", &format!("df {}", mnt.display()))).contains("OST0000"));
        ok(Command::new("umount").arg(&mnt));

        // Such a node answers pings and no self-tests, which is said.
        let said = b.lst_fails("quick 127.0.0.9@tcp 127.0.0.1@tcp --port {p} --time 1");
        assert!(
            said.contains("127.0.0.1@tcp answers LNet pings but no self-tests"),
            "{said}"
        );
        // Its NID is taken.
        let (_, said) = fails(b.coral().args([
            "mount",
            "127.0.0.1@tcp:/coral",
            mnt.to_str().unwrap(),
            "--port",
            &b.port,
            "--nid",
            "127.0.0.1@tcp",
        ]));
        assert!(
            said.contains("is another node's on this machine")
                && said.contains("another address of this machine with --nid"),
            "{said}"
        );
        let (_, said) = fails(
            b.coral()
                .args(["serve", data.to_str().unwrap(), "--port", &b.port]),
        );
        assert!(
            said.contains(&format!("is served already, by process {}", up.pid())),
            "{said}"
        );
        up.stop();
    });
}

#[test]
fn self_tests_cross_a_router() {
    in_network_namespace("self_tests_cross_a_router", || {
        let b = Bench::new();
        let router = b.router();
        let file = b.place.path("routes.toml");
        std::fs::write(&file, "routes = [\"tcp 127.1.0.4@tcp1\"]\n").unwrap();
        let _far = b.serve(&format!("--nid 127.1.0.9@tcp1 --routes {}", file.display()));
        let _lost = b.serve("--nid 127.1.0.8@tcp1");

        let quick = "quick 127.0.0.9@tcp 127.1.0.9@tcp1 --port {p} --time 1 --only read --size 64K";
        let rows = b.lst(&format!("{quick} --json --route 'tcp1 127.0.0.4@tcp'"));
        let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
        assert!(
            rows[0]["total_bytes"].as_u64().unwrap() > 0 && rows[0]["errors"] == 0,
            "{rows}"
        );
        let status: serde_json::Value = serde_json::from_str(&ok(coral()
            .args(["status", "--json"])
            .arg(b.place.path("router"))))
        .unwrap();
        assert!(
            status["routed_bytes"].as_u64() >= rows[0]["total_bytes"].as_u64(),
            "{status}"
        );

        b.lst("new_session --port {p} --route 'tcp1 127.0.0.4@tcp' --nid 127.0.0.7@tcp far");
        assert_eq!(
            b.lst("add_group far 127.1.0.9@tcp1"),
            "127.1.0.9@tcp1 are added to session\n"
        );
        let said = b.lst_fails("add_group farther 127.9.0.1@tcp9");
        assert!(
            said.contains("no NID on tcp9 and no route to it; give --route 'tcp9 GATEWAY'"),
            "{said}"
        );
        b.lst("end_session");

        let said = b.lst_fails(quick);
        assert!(said.contains("no NID on tcp1 and no route to it"), "{said}");
        let said = b.lst_fails(&format!("{quick} --route 'tcp1 127.2.0.4@tcp2'"));
        assert!(
            said.contains("the gateway 127.2.0.4@tcp2 is on tcp2"),
            "{said}"
        );
        let said = b.lst_fails(
            "quick 127.0.0.9@tcp 127.1.0.8@tcp1 --port {p} --route 'tcp1 127.0.0.4@tcp'",
        );
        assert!(
            said.contains("127.1.0.8@tcp1 does not answer an LNet ping")
                && said.contains("no route back"),
            "{said}"
        );
        let said = b.lst_fails("serve --nid 127.1.0.9@tcp1 --port {p}");
        assert!(said.contains("is another node's on this machine"), "{said}");
        router.stop();
    });
}

#[test]
fn routing_mistakes_are_named_on_both_sides() {
    in_network_namespace("routing_mistakes_are_named_on_both_sides", || {
        let b = Bench::new();
        let (data, mnt) = (b.place.path("mds"), b.place.make("mnt"));
        ok(coral()
            .args(["format", "--mgs", "--mdt", "0", "--fsname", "far"])
            .arg(&data));
        let args = [
            "serve",
            data.to_str().unwrap(),
            "--nid",
            "127.0.0.2@tcp",
            "--port",
            &b.port,
        ];
        let server = Running::start_as(b.coral(), &args, &data, &[]);
        let _no_router = b.serve("--nid 127.1.0.8@tcp1");
        let mount = |more: &[&str]| {
            let source = "127.0.0.2@tcp:/far";
            let (_, said) = fails(
                b.coral()
                    .args([
                        "mount",
                        source,
                        mnt.to_str().unwrap(),
                        "--port",
                        &b.port,
                        "--nid",
                        "127.1.0.9@tcp1",
                    ])
                    .args(more),
            );
            said
        };
        let said = mount(&[]);
        assert!(
            said.contains("no way to 127.0.0.2@tcp")
                && said.contains("no NID on tcp and no route to it; give --route 'tcp GATEWAY'"),
            "{said}"
        );
        let said = mount(&["--route", "tcp 127.1.0.8@tcp1"]);
        assert!(
            said.contains("the gateway 127.1.0.8@tcp1 answers, but does not route"),
            "{said}"
        );

        // A route there and none back.
        let router = b.router();
        let said = mount(&["--route", "tcp 127.1.0.4@tcp1"]);
        assert!(
            said.contains("the way back is missing: the servers need a route to tcp1"),
            "{said}"
        );
        let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
        let warned: Vec<&str> = log
            .lines()
            .filter(|l| l.contains("no route to tcp1: what is sent to 127.1.0.9@tcp1 is dropped"))
            .collect();
        assert!(
            warned.len() == 1 && warned[0].contains("add --route 'tcp1 GATEWAY'"),
            "{log}"
        );
        let stats = ok(&mut b.tool("lnetctl", &format!("--dir {} stats show", data.display())));
        let count = stats
            .lines()
            .find_map(|l| l.trim().strip_prefix("local_no_route_count: "))
            .unwrap();
        assert!(count.parse::<u64>().unwrap() > 0, "{stats}");
        server.stop();
        drop(_no_router);

        // A router that was killed and is back is one process.
        router.kill();
        let (_, said) = fails(coral().arg("status").arg(b.place.path("router")));
        assert!(
            said.contains("what ran there was killed") && !said.contains("coral up"),
            "{said}"
        );
        let again = b.router();
        assert!(ok(&mut b.tool("lnetctl", "routing show")).contains("enable: 1"));
        assert!(ok(b.coral().arg("history")).starts_with("node 127.0.0.4@tcp"));
        let entries = std::fs::read_dir(b.place.path("coral"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = entries.filter(|n| !n.ends_with(".log")).collect();
        let own = format!("{}-", again.pid());
        assert!(
            matches!(&left[..], [one] if one.starts_with(&own)),
            "{left:?}"
        );
        again.stop();
        assert!(Path::new(&data).exists());
    });
}
