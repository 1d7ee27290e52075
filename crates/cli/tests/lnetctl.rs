//! lnetctl, lctl and `coral history` against a running `coral up`.

mod common;

use common::*;
use std::process::Command;

/// `coral lnetctl` (or lctl) with this test's own list of running processes.
fn tool(name: &str, place: &Place, line: &str) -> Command {
    let mut c = coral();
    c.env("XDG_RUNTIME_DIR", place.dir.path())
        .arg(name)
        .args(line.split_whitespace());
    c
}

fn up(place: &Place) -> Running {
    let (data, port) = (place.path("data"), place.port.to_string());
    let mut command = coral();
    command.env("XDG_RUNTIME_DIR", place.dir.path());
    Running::start_as(
        command,
        &["up", data.to_str().unwrap(), "--port", &port],
        &data,
        &[],
    )
}

#[test]
fn lnetctl_shows_and_changes_a_running_node() {
    in_network_namespace("lnetctl_shows_and_changes_a_running_node", || {
        let place = Place::new();
        let (_, said) = fails(&mut tool("lnetctl", &place, "net show"));
        assert!(
            said.contains("no Coral node of this user runs here"),
            "{said}"
        );
        let running = up(&place);
        let lnetctl = |line: &str| ok(&mut tool("lnetctl", &place, line));

        let head = "net:\n-     net type: lo\n      local NI(s):\n      -     nid: 0@lo\n            status: up\n-     net type: tcp\n      local NI(s):\n      -     nid: 127.0.0.1@tcp\n            status: up\n            interfaces:\n                  0: lo\n";
        assert_eq!(lnetctl("net show"), head);
        let verbose = lnetctl("net show --net tcp -v 2");
        for part in [
            "            statistics:\n                  send_count: ",
            "            health stats:\n                  fatal_error: 0\n                  health value: 1000\n",
            "                  peer_credits: 8\n",
            "            CPT: \"[0]\"\n",
        ] {
            assert!(verbose.contains(part), "{part} in\n{verbose}");
        }
        let (code, said) = fails(&mut tool("lnetctl", &place, "net show --net tcp9"));
        assert_eq!(
            (code, said.as_str()),
            (
                254,
                "show:\n    - net:\n          errno: -2\n          descr: \"No such network\"\n"
            )
        );
        assert!(lnetctl("stats show").starts_with("statistics:\n    msgs_alloc: 0\n"));
        assert!(lnetctl("global show").contains("    transaction_timeout: "));
        assert_eq!(
            lnetctl("routing show"),
            "routing:\n    - enable: 0\nbuffers:\n    tiny: 2048\n    small: 16384\n    large: 1024\n"
        );
        assert!(lnetctl("export").starts_with("net:\n-     net type: tcp\n"));

        assert_eq!(
            lnetctl("ping 127.0.0.1@tcp"),
            "ping:\n- primary nid: 127.0.0.1@tcp\n  Multi-Rail: true\n  peer_ni:\n  - nid: 127.0.0.1@tcp\n"
        );
        let (code, said) = fails(&mut tool("lnetctl", &place, "ping 127.0.0.77@tcp"));
        assert_eq!(
            (code, said.as_str()),
            (
                255,
                "ping:\n- errno: -113\n  descr: failed to ping 127.0.0.77@tcp: No route to host\n"
            )
        );
        assert_eq!(
            ok(&mut tool("lctl", &place, "ping 127.0.0.1@tcp")),
            "12345-0@lo\n127.0.0.1@tcp\n"
        );
        assert_eq!(
            ok(&mut tool("lctl", &place, "list_nids")),
            "127.0.0.1@tcp\n"
        );
        assert!(ok(&mut tool("lctl", &place, "get_param -n nis")).contains("127.0.0.1@tcp"));

        lnetctl("route add --net tcp9 --gateway 127.0.0.5@tcp --priority 3");
        assert_eq!(
            lnetctl("route show"),
            "route:\n-     net: tcp9\n      gateway: 127.0.0.5@tcp\n      hop: -1\n      priority: 3\n"
        );
        lnetctl("route del --net tcp9 --gateway 127.0.0.5@tcp");
        assert_eq!(lnetctl("route show"), "");
        let (code, said) = fails(&mut tool(
            "lnetctl",
            &place,
            "route add --net tcp9 --gateway 127.0.0.5@tcp7",
        ));
        assert!(
            code == 234 && said.starts_with("add:\n    - route:\n          errno: -22\n"),
            "{code} {said}"
        );
        let (code, said) = fails(&mut tool("lnetctl", &place, "peer show --nid 9.9.9.9@tcp"));
        assert!(
            code == 254 && said.starts_with("show:\n    - peer:\n          errno: -2\n"),
            "{code} {said}"
        );
        let (_, said) = fails(&mut tool("lctl", &place, "disconnect 9.9.9.9@tcp"));
        assert!(said.contains("no peer 9.9.9.9@tcp is known here"), "{said}");
        let (_, said) = fails(&mut tool(
            "lctl",
            &place,
            "net_drop_add -s * -d * -r 2 -o 9.9.9.9@tcp",
        ));
        assert!(
            said.contains("-o 9.9.9.9@tcp: no NID of this node (127.0.0.1@tcp)"),
            "{said}"
        );
        let (_, said) = fails(&mut tool("lnetctl", &place, "net dance"));
        assert!(said.contains("unknown command"), "{said}");

        let (_, said) = fails(&mut tool("lnetctl", &place, "--node 9.9.9.9@tcp net show"));
        assert!(said.contains("no such node in this process"), "{said}");
        running.stop();
        let left: Vec<_> = std::fs::read_dir(place.path("coral"))
            .unwrap()
            .flatten()
            .collect();
        assert!(
            left.is_empty(),
            "a process that ends leaves no trace: {left:?}"
        );
    });
}

#[test]
fn fault_rules_and_history_of_a_running_node() {
    in_network_namespace("fault_rules_and_history_of_a_running_node", || {
        let place = Place::new();
        let _running = up(&place);
        let lnetctl = |line: &str| ok(&mut tool("lnetctl", &place, line));
        let lctl = |line: &str| ok(&mut tool("lctl", &place, line));

        assert_eq!(
            lctl("net_drop_add -s *@tcp -d 127.0.0.1@tcp -r 1 -m GET"),
            "Added drop rule 255.255.255.255@tcp->127.0.0.1@tcp (1/1)\n"
        );
        let (_, said) = fails(&mut tool("lnetctl", &place, "ping 127.0.0.1@tcp"));
        assert!(said.contains("errno: -110"), "{said}");
        let list = lctl("net_drop_list");
        assert!(list.starts_with("LNet drop rules:\n255.255.255.255@tcp->127.0.0.1@tcp (1/1 | 0) ptl 0x0, msg 4, 1/1, PUT 0, ACK 0, GET 1, REP 0\n"), "{list}");
        assert!(lnetctl("fault drop show").contains("fa_src: 255.255.255.255@tcp"));
        assert_eq!(lnetctl("fault drop del -a"), "Removed 1 drop rules\n");
        assert_eq!(
            lctl("net_delay add -s * -d * -r 1 -l 0.2"),
            "Added delay rule <?>-><?> (1/1)\n"
        );
        assert_eq!(lctl("net_delay_del -a"), "Removed 1 delay rules\n");
        lnetctl("ping 127.0.0.1@tcp");
        let (_, said) = fails(&mut tool(
            "lctl",
            &place,
            "net_drop_add -s nonsense -d * -r 1",
        ));
        assert!(said.contains("Invalid NID: nonsense"), "{said}");

        let (data, plot) = (place.path("data"), place.path("plot.svg"));
        let history = |more: &[&str]| {
            ok(coral()
                .arg("history")
                .arg(&data)
                .args(["--since", "1h"])
                .args(more))
        };
        until("the pings are in the history", || {
            let v: serde_json::Value = serde_json::from_str(&history(&["--json"])).unwrap();
            let sum = |k: &str| {
                v["seconds"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|s| s[k].as_u64().unwrap())
                    .sum::<u64>()
            };
            sum("sent") > 0 && sum("faults") >= 1
        });
        let table = history(&["--svg", plot.to_str().unwrap()]);
        assert!(
            table.starts_with("node 127.0.0.1@tcp") && table.contains('#'),
            "{table}"
        );
        assert!(std::fs::read_to_string(plot).unwrap().contains("<polyline"));
    });
}

#[test]
fn of_several_processes_one_is_named() {
    in_network_namespace("of_several_processes_one_is_named", || {
        let place = Place::new();
        let mut running = vec![up(&place)];
        for (name, nid) in [("a", "127.0.0.8@tcp"), ("b", "127.0.0.9@tcp")] {
            let (mnt, port) = (place.make(name), place.port.to_string());
            let mut command = coral();
            command.env("XDG_RUNTIME_DIR", place.dir.path());
            running.push(Running::start_as(
                command,
                &[
                    "mount",
                    "127.0.0.1@tcp:/coral",
                    mnt.to_str().unwrap(),
                    "--port",
                    &port,
                    "--nid",
                    nid,
                ],
                &mnt,
                &[&mnt],
            ));
        }
        let registered = || {
            std::fs::read_dir(place.path("coral"))
                .unwrap()
                .flatten()
                .filter(|e| e.path().extension().is_some_and(|e| e == "sock"))
                .count()
        };
        until("all can be asked", || registered() == 3);
        let (a, data) = (place.make("a"), place.make("data"));
        let (_, said) = fails(&mut tool("lctl", &place, "list_nids"));
        let named =
            |p: &std::path::Path, r: &Running| format!("{} (process {})", p.display(), r.pid());
        for (p, r) in [
            (&data, &running[0]),
            (&a, &running[1]),
            (&place.make("b"), &running[2]),
        ] {
            assert!(said.contains(&named(p, r)), "{said}");
        }
        let nids = |which: &str| {
            ok(&mut tool(
                "lctl",
                &place,
                &format!("--dir {which} list_nids"),
            ))
        };
        assert_eq!(nids(a.to_str().unwrap()), "127.0.0.8@tcp\n");
        assert_eq!(nids(&running[2].pid().to_string()), "127.0.0.9@tcp\n");
        assert_eq!(nids(data.to_str().unwrap()), "127.0.0.1@tcp\n");
        let (_, said) = fails(&mut tool("lctl", &place, "--dir /nowhere list_nids"));
        assert!(
            said.contains("has '/nowhere' as its directory, mount point or pid"),
            "{said}"
        );
        let lctl = |line: &str| {
            ok(&mut tool(
                "lctl",
                &place,
                &format!("--dir {} {line}", a.display()),
            ))
        };
        assert!(lctl("list_param *").lines().any(|l| l == "osc"));
        assert_eq!(
            lctl("list_param osc.*.idle_timeout"),
            lctl("get_param -N osc.*.idle_timeout")
        );
        assert!(
            lctl("list_param -R osc")
                .lines()
                .any(|l| l.starts_with("osc.coral-OST0000") && l.ends_with(".idle_timeout"))
        );
        assert!(lctl("help").contains("\n  list_param"));
        running.drain(..).rev().for_each(Running::stop);
    });
}
