//! `lnetctl`: what a running Coral node shows of its LNet, and what can be changed in it (`lnet/utils/lnetctl.c` is the grammar).
//!
//! Also the commands of `lctl` that are LNet's own: `net_drop_*`, `net_delay_*`, `ping`, `list_nids`, and `get_param` of LNet's
//! tables. The node is asked through the control socket of its process. Before the command: `--dir` (a directory of `coral up`,
//! `serve` or `router`, a mount point, or a pid), `--socket PATH`, `--node NID` when a process has several.
//! Left out: `net add`, `net del`, `import`, `udsp`, `debug`, and `set` of what this node does not have.

pub(crate) mod agent;
mod fault;
pub(crate) mod find;
#[cfg(test)]
mod golden_tests;
mod lctl;
mod nodemap;
mod options;
mod show;
mod yaml;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use agent::{Act, LnetAsk};
use fault::Verb;
use serde_json::{Value, json};
use yaml::{Style, Yaml, map};

use self::lctl::{LCTL_USAGE, run_lctl};
use self::options::{
    GATEWAY, HEALTH, HOP, Known, NET, NID, Options, PRIMARY, PRIORITY, TIMEOUT, VERBOSE,
};
use crate::control::Ask;

const USAGE: &str = "usage: lnetctl [--dir DIR|MNT|PID | --socket PATH] [--node NID] COMMAND
  net show [--net NET] [--verbose|-v [LEVEL]]
  peer {add --prim_nid NID --nid NID[,NID...] | del --prim_nid NID [--nid NID[,NID...]] | show [--nid NID] [-v [LEVEL]] | list | set --nid NID --health N}
  route {add --net NET --gateway NID [--hop N] [--priority N] | del --net NET --gateway NID | show [--net NET] [--gateway NID] [-v]}
  routing show
  set {routing 0|1 | tiny_buffers N | small_buffers N | large_buffers N}
  ping NID[,NID...] [--timeout SECONDS]      discover NID[,NID...]
  stats show      global show      export
  fault {drop | delay} {add -s NID -d NID {-r RATE | -i SECONDS} [-l SECONDS] [-p PORTAL] [-m PUT|ACK|GET|REPLY] [-e HEALTH_ERROR] | del {-a | -s NID -d NID} | show | reset}";

/// How a command failed: what to print where, and the exit code.
#[derive(Debug)]
struct Failed {
    text: String,
    code: u8,
}

impl From<String> for Failed {
    fn from(text: String) -> Failed {
        Failed { text, code: 1 }
    }
}

/// Entry of `lnetctl ARGS` and, with `lctl`, of `lctl ARGS`.
pub(crate) fn main(args: Vec<OsString>, lctl: bool) -> ExitCode {
    let args: Vec<String> = args
        .into_iter()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let done =
        AskedNode::parse(args, if lctl { LCTL_USAGE } else { USAGE }).and_then(|(t, rest)| {
            if lctl {
                run_lctl(&t, &rest)
            } else {
                run(&t, &rest)
            }
        });
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(f) => {
            eprint!(
                "{}{}",
                f.text,
                if f.text.ends_with('\n') { "" } else { "\n" }
            );
            ExitCode::from(f.code)
        }
    }
}

/// Whom to ask.
#[derive(Debug, Default)]
struct AskedNode {
    dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    node: Option<String>,
}

impl AskedNode {
    /// Takes the options before the command.
    fn parse(args: Vec<String>, usage: &str) -> Result<(AskedNode, Vec<String>), Failed> {
        let mut t = AskedNode::default();
        let mut rest = args.into_iter().peekable();
        while let Some(option) = rest.next_if(|a| a.starts_with("--")) {
            let (name, inline) = option
                .split_once('=')
                .map_or((option.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            if name == "--help" {
                return Ok((t, vec![option]));
            }
            let value = inline
                .or_else(|| rest.next())
                .ok_or_else(|| format!("{name} needs a value\n{usage}"))?;
            match name {
                "--dir" => t.dir = Some(value.into()),
                "--socket" => t.socket = Some(value.into()),
                "--node" => t.node = Some(value),
                _ => return Err(format!("unknown option {name}\n{usage}").into()),
            }
        }
        Ok((t, rest.collect()))
    }

    fn ask(&self, act: Act) -> Result<Value, Failed> {
        let socket = find::socket(
            self.dir.as_deref(),
            self.socket.as_deref(),
            "--dir and a directory, mount point or pid",
        )?;
        let ask = LnetAsk {
            node: self.node.clone(),
            act,
        };
        Ok(find::ask(&socket, &json!({ "lnet": ask }))?)
    }

    /// Asks about the mount of the process.
    fn ask_client(&self, what: &Ask) -> Result<Value, Failed> {
        let socket = find::socket(
            self.dir.as_deref(),
            self.socket.as_deref(),
            "--dir and a directory, mount point or pid",
        )?;
        Ok(find::ask(&socket, &json!(what))?)
    }

    /// Asks; a refusal is printed as `lnetctl` prints it: `add:\n    - route:\n          errno: -22\n          descr: "..."`.
    fn change(&self, verb: &str, noun: &str, act: Act) -> Result<Value, Failed> {
        let answer = self.ask(act)?;
        match answer["error"].as_str() {
            None => Ok(answer),
            Some(why) => Err(refusal(
                verb,
                noun,
                answer["errno"].as_i64().unwrap_or(1),
                why,
            )),
        }
    }

    fn picture(&self) -> Result<Value, Failed> {
        self.change("show", "net", Act::Show)
    }
}

fn refusal(verb: &str, noun: &str, errno: i64, why: &str) -> Failed {
    let error = map([
        ("errno", (-errno).into()),
        ("descr", format!("\"{why}\"").into()),
    ]);
    let text = map([(verb, Yaml::List(vec![map([(noun, error)])]))]).print(Style::Own);
    Failed {
        text,
        code: (-errno) as u8,
    }
}

fn split(list: &str) -> Vec<String> {
    list.split(',')
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
        .collect()
}

fn run(t: &AskedNode, args: &[String]) -> Result<String, Failed> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let command = words.iter().take(2).copied().collect::<Vec<_>>().join(" ");
    let options = |from: usize, known: &[Known], free: usize| {
        Options::parse(&command, args.get(from..).unwrap_or(&[]), known, free)
    };
    let kernel = |y: Option<Yaml>| y.map_or_else(String::new, |y| y.print(Style::Netlink(6)));
    let own = |y: Yaml| y.print(Style::Own);
    match words.as_slice() {
        ["net", "show", ..] => {
            let o = options(2, &[NET, VERBOSE], 0)?;
            let level = o.verbose()?;
            match show::nets(&t.picture()?, o.text(NET), level) {
                Some(y) => Ok(kernel(Some(y))),
                None => Err(refusal("show", "net", libc::ENOENT as i64, "No such network")),
            }
        }
        ["peer", "show", ..] => {
            let o = options(2, &[NID, VERBOSE], 0)?;
            let level = o.verbose()?;
            match (show::peers(&t.picture()?, o.text(NID), level, false), o.text(NID)) {
                (None, Some(_)) => Err(refusal("show", "peer", libc::ENOENT as i64, "No such file or directory")),
                (peers, _) => Ok(kernel(peers)),
            }
        }
        ["peer", "list", ..] => options(2, &[], 0).and_then(|_| Ok(kernel(show::peer_list(&t.picture()?)))),
        ["peer", "add", ..] => peer(t, "add", &options(2, &[PRIMARY, NID], 0)?),
        ["peer", "del", ..] => peer(t, "del", &options(2, &[PRIMARY, NID], 0)?),
        ["peer", "set", ..] => peer(t, "set", &options(2, &[NID, HEALTH], 0)?),
        ["route", "show", ..] => {
            let o = options(2, &[NET, GATEWAY, VERBOSE], 0)?;
            let level = o.verbose()?;
            Ok(kernel(show::routes(&t.picture()?, o.text(NET), o.text(GATEWAY), level > 0)))
        }
        ["route", "add", ..] => route(t, "add", &options(2, &[NET, GATEWAY, HOP, PRIORITY], 0)?),
        ["route", "del", ..] => route(t, "del", &options(2, &[NET, GATEWAY], 0)?),
        ["routing", "show", ..] => options(2, &[], 0).and_then(|_| Ok(own(show::routing(&t.picture()?)))),
        ["set", what, value] => set(t, what, value),
        ["set", ..] => Err("usage: lnetctl set {routing 0|1 | tiny_buffers N | small_buffers N | large_buffers N}".to_owned().into()),
        ["stats", "show", ..] => options(2, &[], 0).and_then(|_| Ok(own(show::stats(&t.picture()?)))),
        ["global", "show", ..] => options(2, &[], 0).and_then(|_| Ok(own(show::global(&t.picture()?)))),
        ["export", ..] => export(t, &options(1, &[], 1)?),
        ["ping", ..] => ping(t, "ping", &options(1, &[TIMEOUT], usize::MAX)?),
        ["discover", ..] => ping(t, "discover", &options(1, &[TIMEOUT], usize::MAX)?),
        ["net", "add" | "del" | "set", ..] | ["import" | "udsp" | "debug" | "lnet", ..] => {
            Err(format!("lnetctl {command} is not there: the NIDs of a Coral node are given when it is started (--nid), routes also by `lnetctl route add`").into())
        }
        ["fault", kind @ ("drop" | "delay"), verb @ ("add" | "del" | "show" | "reset"), ..] => {
            let verb = [("add", Verb::Add), ("del", Verb::Del), ("show", Verb::Show), ("reset", Verb::Reset)].iter().find(|(n, _)| n == verb).map_or(Verb::Show, |(_, v)| *v);
            let c = fault::parse(*kind == "delay", verb, &args[3..])?;
            let answer = t.change("fault", kind, c.act.clone())?;
            Ok(c.yaml(&answer).map_or_else(|| c.text(&answer), |y| y.print(Style::Netlink(2))))
        }
        [] | ["help"] => Err(USAGE.to_owned().into()),
        _ => Err(format!("unknown command: lnetctl {}\n{USAGE}", words.join(" ")).into()),
    }
}

fn peer(t: &AskedNode, verb: &str, o: &Options) -> Result<String, Failed> {
    let nids = || o.text(NID).map(split).unwrap_or_default();
    let missing =
        || Failed::from("missing mandatory parameters in peer set: '--health'".to_owned());
    let act = match verb {
        "set" => Act::Health {
            nid: o.must(NID, "peer set")?,
            value: o.number(HEALTH, 0, 1000)?.ok_or_else(missing)? as u32,
        },
        "add" => Act::PeerAdd {
            primary: o.must(PRIMARY, "peer add")?,
            nids: nids(),
        },
        _ => Act::PeerDel {
            primary: o.must(PRIMARY, "peer del")?,
            nids: nids(),
        },
    };
    t.change(verb, "peer_ni", act).map(|_| String::new())
}

fn route(t: &AskedNode, verb: &str, o: &Options) -> Result<String, Failed> {
    let (net, gateway) = (o.must(NET, "route")?, o.must(GATEWAY, "route")?);
    let act = match verb {
        "add" => Act::RouteAdd {
            net,
            gateway,
            hops: o.number(HOP, 1, 255)?.map(|n| n as u8),
            priority: o.number(PRIORITY, 0, u32::MAX as u64)?.unwrap_or(0) as u32,
        },
        _ => Act::RouteDel { net, gateway },
    };
    t.change(verb, "route", act).map(|_| String::new())
}

fn set(t: &AskedNode, what: &str, value: &str) -> Result<String, Failed> {
    let n: usize = value
        .parse()
        .map_err(|_| format!("invalid value '{value}'"))?;
    let pools = |tiny, small, large| Act::Pools { tiny, small, large };
    let act = match what {
        "routing" if n <= 1 => Act::Routing { on: n == 1 },
        "routing" => return Err(format!("set routing {value}: give 0 or 1").into()),
        "tiny_buffers" => pools(Some(n), None, None),
        "small_buffers" => pools(None, Some(n), None),
        "large_buffers" => pools(None, None, Some(n)),
        _ => return Err(format!("'{what}' cannot be set on a Coral node; what can: routing, tiny_buffers, small_buffers, large_buffers").into()),
    };
    t.change("set", what, act).map(|_| String::new())
}

fn export(t: &AskedNode, o: &Options) -> Result<String, Failed> {
    let picture = t.picture()?;
    let kernel = |y: Option<Yaml>| y.map_or_else(String::new, |y| y.print(Style::Netlink(6)));
    let mut out = kernel(show::nets_backup(&picture));
    out += &kernel(show::routes(&picture, None, None, false));
    if picture["routing"]["enabled"] == true {
        out += &show::routing(&picture).print(Style::Own);
    }
    out += &kernel(show::peers(&picture, None, 0, true));
    out += &show::global(&picture).print(Style::Own);
    match o.1.first() {
        None => Ok(out),
        Some(file) => {
            std::fs::write(file, out).map_err(|e| format!("cannot write '{file}': {e}"))?;
            Ok(String::new())
        }
    }
}

/// Longest a ping may take, seconds.
const PING_LIMIT_S: u64 = 60;

/// `ping` and `discover`: answers as YAML; the exit code is 255 when one did not answer.
fn ping(t: &AskedNode, verb: &str, o: &Options) -> Result<String, Failed> {
    let nids: Vec<String> = o.1.iter().flat_map(|a| split(a)).collect();
    if nids.is_empty() {
        return Err(format!("missing nid argument: {verb} nid[,nid,...]").into());
    }
    let limit_ms = 1000
        * o.number(TIMEOUT, 1, PING_LIMIT_S)?
            .unwrap_or(if verb == "ping" { 1 } else { 10 });
    let (mut rows, mut failed) = (Vec::new(), false);
    for nid in nids {
        let a = t.ask(Act::Ping {
            nid: nid.clone(),
            limit_ms,
        })?;
        if a["error"].is_string() {
            failed = true;
            let errno = a["errno"].as_i64().unwrap_or(1);
            let why = std::io::Error::from_raw_os_error(errno as i32).to_string();
            let why = why.split(" (os error").next().unwrap_or("").to_owned();
            let descr = if errno == libc::EINVAL as i64 {
                a["error"].as_str().unwrap_or("").to_owned()
            } else {
                format!("failed to {verb} {nid}: {why}")
            };
            rows.push(map([("errno", (-errno).into()), ("descr", descr.into())]));
            continue;
        }
        rows.push(found(&a, &nid));
    }
    let text = map([(verb, Yaml::List(rows))]).print(Style::Netlink(2));
    if failed {
        Err(Failed { text, code: 255 })
    } else {
        Ok(text)
    }
}

/// What `nid` answered.
fn found(a: &Value, nid: &str) -> Yaml {
    let nids: Vec<Yaml> = a["nids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|n| map([("nid", n.as_str().unwrap_or("").into())]))
        .collect();
    let primary = a["nids"][0].as_str().unwrap_or(nid).to_owned();
    let multi_rail = if a["multi_rail"] == true {
        "true"
    } else {
        "false"
    };
    map([
        ("primary nid", primary.into()),
        ("Multi-Rail", multi_rail.into()),
        ("peer_ni", Yaml::List(nids)),
    ])
}

#[cfg(test)]
fn answered(verb: &str, a: &Value, nid: &str) -> String {
    map([(verb, Yaml::List(vec![found(a, nid)]))]).print(Style::Netlink(2))
}

#[cfg(test)]
mod tests {
    use super::lctl::lctl_fault;
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_before_and_after_the_command() {
        let (t, rest) =
            AskedNode::parse(args("--dir /d --node=1@lo net show --net tcp1 -v 2"), USAGE)
                .ok()
                .unwrap();
        assert_eq!(
            (t.dir, t.node.as_deref(), rest.len()),
            (Some("/d".into()), Some("1@lo"), 6)
        );
        let o = Options::parse("net show", &args("--net tcp1 -v 2"), &[NET, VERBOSE], 0)
            .ok()
            .unwrap();
        assert_eq!((o.text(NET), o.verbose().ok()), (Some("tcp1"), Some(2)));
        for (line, level) in [("-v", 1), ("-v 4", 4), ("--verbose=2", 2)] {
            assert_eq!(
                Options::parse("net show", &args(line), &[VERBOSE], 0)
                    .ok()
                    .unwrap()
                    .verbose()
                    .ok(),
                Some(level),
                "{line}"
            );
        }
        assert!(
            AskedNode::parse(args("--dir"), USAGE).is_err()
                && AskedNode::parse(args("--what x"), USAGE).is_err()
        );
    }

    #[test]
    fn what_a_command_does_not_know_is_refused_by_name() {
        let t = AskedNode {
            socket: Some("/nonexistent/coral.sock".into()),
            ..AskedNode::default()
        };
        for (line, says) in [
            (
                "net show --nonsense",
                "net show: there is no option --nonsense",
            ),
            ("net show -v x", "invalid value 'x' of --verbose"),
            ("net show tcp", "net show: 'tcp' is too much"),
            (
                "route add --net tcp9 --gateway 1.2.3.4@tcp --prioritty 7",
                "route add: there is no option --prioritty",
            ),
            (
                "route add --net tcp9 --gateway 1.2.3.4@tcp --hops 3",
                "route add: there is no option --hops",
            ),
            (
                "route add --net tcp9 --gateway 1.2.3.4@tcp --hop 300",
                "invalid value '300' of --hop: give 1 to 255",
            ),
            (
                "route add --net tcp9 --gateway",
                "route add: --gateway needs a value",
            ),
            (
                "route add --net tcp9 --net tcp8 --gateway 1.2.3.4@tcp",
                "--net is given twice",
            ),
            (
                "route add --net tcp9",
                "missing mandatory parameters in route: '--gateway'",
            ),
            (
                "peer set --nid 1.2.3.4@tcp --health 2000",
                "invalid value '2000' of --health: give 0 to 1000",
            ),
            (
                "peer set --nid 1.2.3.4@tcp --health -5",
                "invalid value '-5' of --health: give 0 to 1000",
            ),
            (
                "peer set --nid 1.2.3.4@tcp",
                "missing mandatory parameters in peer set: '--health'",
            ),
            ("set tiny_buffers", "usage: lnetctl set"),
            (
                "ping 1.2.3.4@tcp --timeout abc",
                "invalid value 'abc' of --timeout",
            ),
            (
                "net add --net tcp9 --if eth0",
                "lnetctl net add is not there",
            ),
            ("import file", "lnetctl import file is not there"),
            ("stats show now", "'now' is too much"),
        ] {
            let said = run(&t, &args(line)).unwrap_err().text;
            assert!(said.contains(says), "{line}: {said}");
        }
        for (line, says) in [
            ("ping", "ping: which NID?"),
            ("ping 1.2.3.4@tcp abc", "'abc' is no time"),
            ("ping 1.2.3.4@tcp 5 6", "'6' is too much"),
            ("disconnect", "disconnect: which NID?"),
            ("disconnect 1.2.3.4@tcp x", "'x' is too much"),
            ("list_nids x", "'x' is too much"),
            (
                "set_param -P osc.*.max_dirty_mb=1",
                "settings that last (-P",
            ),
            ("set_param", "which parameter?"),
            (
                "get_param -z stats",
                "there is no option -z; there are: -n, -N",
            ),
            ("list_param -D osc", "there is no option -D; there are: -R"),
        ] {
            let said = run_lctl(&t, &args(line)).unwrap_err().text;
            assert!(said.contains(says), "{line}: {said}");
        }
    }

    #[test]
    fn refusals_look_as_the_originals() {
        let f = refusal("add", "route", 22, "no way");
        assert_eq!(
            (f.text.as_str(), f.code),
            (
                "add:\n    - route:\n          errno: -22\n          descr: \"no way\"\n",
                234
            )
        );
        assert_eq!(lctl_fault("net_delay_list"), Some((true, Verb::Show)));
        assert_eq!(lctl_fault("net_drop_what"), None);
    }
}
