//! `lnetctl`: what a running Coral node shows of its LNet, and what can be changed in it (`lnet/utils/lnetctl.c` is the grammar).
//!
//! Also the commands of `lctl` that are LNet's own: `net_drop_*`, `net_delay_*`, `ping`, `list_nids`, and `get_param` of LNet's
//! tables. The node is asked through the control socket of its process. Before the command: `--dir DIR` (of `coral up`, `serve`,
//! `router`), `--socket PATH`, `--node NID` when a process has several.
//! Left out: `net add`, `net del`, `import`, `udsp`, `debug`, and `set` of what this node does not have.

pub(crate) mod agent;
mod fault;
pub(crate) mod find;
#[cfg(test)]
mod golden_tests;
mod show;
mod yaml;

use crate::control::Ask;
use agent::{Act, LnetAsk};
use fault::Verb;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use yaml::{Style, Yaml, map};

const USAGE: &str = "usage: lnetctl [--dir DIR | --socket PATH] [--node NID] COMMAND
  net show [--net NET] [--verbose|-v [LEVEL]]
  peer {add --prim_nid NID --nid NID[,NID...] | del --prim_nid NID [--nid NID[,NID...]] | show [--nid NID] [-v [LEVEL]] | list | set --nid NID --health N}
  route {add --net NET --gateway NID [--hop N] [--priority N] | del --net NET --gateway NID | show [--net NET] [--gateway NID] [-v]}
  routing show
  set {routing 0|1 | tiny_buffers N | small_buffers N | large_buffers N}
  ping NID[,NID...] [--timeout SECONDS]      discover NID[,NID...]
  stats show      global show      export
  fault {drop | delay} {add -s NID -d NID {-r RATE | -i SECONDS} [-l SECONDS] [-p PORTAL] [-m PUT|ACK|GET|REPLY] [-e HEALTH_ERROR] | del {-a | -s NID -d NID} | show | reset}";

const LCTL_USAGE: &str = "usage: lctl [--dir DIR] {net_drop_add | net_drop_del | net_drop_list | net_drop_reset | net_delay_... | ping NID | disconnect NID | list_nids | get_param NAME... | set_param NAME=VALUE...}";

/// How a command failed: what to print where, and the exit code.
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
    let args: Vec<String> = args.into_iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let done = Target::parse(args).and_then(|(t, rest)| if lctl { run_lctl(&t, &rest) } else { run(&t, &rest) });
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(f) => {
            eprint!("{}{}", f.text, if f.text.ends_with('\n') { "" } else { "\n" });
            ExitCode::from(f.code)
        }
    }
}

/// Whom to ask.
#[derive(Default)]
struct Target {
    dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    node: Option<String>,
}

impl Target {
    /// Takes the options before the command.
    fn parse(args: Vec<String>) -> Result<(Target, Vec<String>), Failed> {
        let mut t = Target::default();
        let mut rest = args.into_iter().peekable();
        while let Some(option) = rest.next_if(|a| a.starts_with("--")) {
            let (name, inline) = option.split_once('=').map_or((option.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            if name == "--help" {
                return Ok((t, vec![option]));
            }
            let value = inline.or_else(|| rest.next()).ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
            match name {
                "--dir" => t.dir = Some(value.into()),
                "--socket" => t.socket = Some(value.into()),
                "--node" => t.node = Some(value),
                _ => return Err(format!("unknown option {name}\n{USAGE}").into()),
            }
        }
        Ok((t, rest.collect()))
    }

    fn ask(&self, act: Act) -> Result<Value, Failed> {
        let socket = find::socket(self.dir.as_deref(), self.socket.as_deref(), "--dir DIR or --socket PATH")?;
        let ask = LnetAsk { node: self.node.clone(), act };
        Ok(find::ask(&socket, &json!({ "lnet": ask }))?)
    }

    /// Asks about the mount of the process.
    fn ask_client(&self, what: &Ask) -> Result<Value, Failed> {
        let socket = find::socket(self.dir.as_deref(), self.socket.as_deref(), "--dir DIR or --socket PATH")?;
        Ok(find::ask(&socket, &json!(what))?)
    }

    /// Asks; a refusal is printed as `lnetctl` prints it: `add:\n    - route:\n          errno: -22\n          descr: "..."`.
    fn change(&self, verb: &str, noun: &str, act: Act) -> Result<Value, Failed> {
        let answer = self.ask(act)?;
        match answer["error"].as_str() {
            None => Ok(answer),
            Some(why) => Err(refusal(verb, noun, answer["errno"].as_i64().unwrap_or(1), why)),
        }
    }

    fn picture(&self) -> Result<Value, Failed> {
        self.change("show", "net", Act::Show)
    }
}

fn refusal(verb: &str, noun: &str, errno: i64, why: &str) -> Failed {
    let error = map([("errno", (-errno).into()), ("descr", format!("\"{why}\"").into())]);
    let text = map([(verb, Yaml::List(vec![map([(noun, error)])]))]).print(Style::Own);
    Failed { text, code: (-errno) as u8 }
}

/// Options of one command: `--name value`, `--name=value`, with single-letter names. `-v` may stand alone.
struct Options(Vec<(String, Option<String>)>, Vec<String>);

impl Options {
    fn parse(args: &[String], short: &[(&str, &str)]) -> Options {
        let (mut named, mut free) = (Vec::new(), Vec::new());
        let mut it = args.iter().peekable();
        while let Some(a) = it.next() {
            let (name, inline) = a.split_once('=').map_or((a.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            let long = name.strip_prefix("--").or_else(|| short.iter().find(|(s, _)| *s == name).map(|(_, l)| *l));
            match long {
                Some(l) => named.push((l.to_owned(), inline.or_else(|| it.next_if(|v| !v.starts_with('-')).cloned()))),
                None => free.push(a.clone()),
            }
        }
        Options(named, free)
    }

    fn text(&self, names: &[&str]) -> Option<&str> {
        self.0.iter().rev().find(|(n, _)| names.contains(&n.as_str())).and_then(|(_, v)| v.as_deref())
    }

    fn must(&self, names: &[&str], what: &str) -> Result<String, Failed> {
        self.text(names).map(str::to_owned).ok_or_else(|| format!("missing mandatory parameters in {what}: '--{}'", names[0]).into())
    }

    fn number<T: std::str::FromStr>(&self, names: &[&str]) -> Result<Option<T>, Failed> {
        self.text(names).map(|t| t.parse().map_err(|_| Failed::from(format!("invalid value '{t}' of --{}", names[0])))).transpose()
    }

    /// 0 without `-v`, 1 with it, else the number given.
    fn verbose(&self) -> u32 {
        match self.0.iter().find(|(n, _)| n == "verbose") {
            None => 0,
            Some((_, v)) => v.as_deref().and_then(|v| v.parse().ok()).unwrap_or(1),
        }
    }
}

fn split(list: &str) -> Vec<String> {
    list.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

fn run(t: &Target, args: &[String]) -> Result<String, Failed> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let short = [("-n", "net"), ("-g", "gateway"), ("-c", "hop"), ("-p", "priority"), ("-v", "verbose"), ("-t", "timeout")];
    let options = |from: usize| Options::parse(args.get(from..).unwrap_or(&[]), &short);
    let kernel = |y: Option<Yaml>| y.map_or_else(String::new, |y| y.print(Style::Netlink(6)));
    let own = |y: Yaml| y.print(Style::Own);
    match words.as_slice() {
        ["net", "show", ..] => {
            let o = options(2);
            let picture = t.picture()?;
            match show::nets(&picture, o.text(&["net"]), o.verbose()) {
                Some(y) => Ok(kernel(Some(y))),
                None => Err(refusal("show", "net", libc::ENOENT as i64, "No such network")),
            }
        }
        ["peer", "show", ..] => {
            let o = options(2);
            Ok(kernel(show::peers(&t.picture()?, o.text(&["nid"]), o.verbose(), false)))
        }
        ["peer", "list"] => Ok(kernel(show::peer_list(&t.picture()?))),
        ["peer", verb @ ("add" | "del" | "set"), ..] => peer(t, verb, &options(2)),
        ["route", "show", ..] => {
            let o = options(2);
            let picture = t.picture()?;
            Ok(kernel(show::routes(&picture, o.text(&["net"]), o.text(&["gateway"]), o.verbose() > 0)))
        }
        ["route", verb @ ("add" | "del"), ..] => route(t, verb, &options(2)),
        ["routing", "show"] => Ok(own(show::routing(&t.picture()?))),
        ["set", what, value] => set(t, what, value),
        ["stats", "show"] => Ok(own(show::stats(&t.picture()?))),
        ["global", "show"] => Ok(own(show::global(&t.picture()?))),
        ["export", ..] => export(t, &options(1)),
        ["ping", ..] => {
            let o = options(1);
            ping(t, "ping", &o)
        }
        ["discover", ..] => ping(t, "discover", &options(1)),
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

fn peer(t: &Target, verb: &str, o: &Options) -> Result<String, Failed> {
    let nids = || o.text(&["nid"]).map(split).unwrap_or_default();
    let act = match verb {
        "set" => Act::Health { nid: o.must(&["nid"], "peer set")?, value: o.number(&["health"])?.ok_or_else(|| Failed::from("missing mandatory parameters in peer set: '--health'".to_owned()))? },
        "add" => Act::PeerAdd { primary: o.must(&["prim_nid"], "peer add")?, nids: nids() },
        _ => Act::PeerDel { primary: o.must(&["prim_nid"], "peer del")?, nids: nids() },
    };
    t.change(verb, "peer_ni", act).map(|_| String::new())
}

fn route(t: &Target, verb: &str, o: &Options) -> Result<String, Failed> {
    let (net, gateway) = (o.must(&["net"], "route")?, o.must(&["gateway"], "route")?);
    let act = match verb {
        "add" => Act::RouteAdd { net, gateway, hops: o.number(&["hop", "hop-count"])?, priority: o.number(&["priority"])?.unwrap_or(0) },
        _ => Act::RouteDel { net, gateway },
    };
    t.change(verb, "route", act).map(|_| String::new())
}

fn set(t: &Target, what: &str, value: &str) -> Result<String, Failed> {
    let n: usize = value.parse().map_err(|_| format!("invalid value '{value}'"))?;
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

fn export(t: &Target, o: &Options) -> Result<String, Failed> {
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

/// `ping` and `discover`: answers as YAML; the exit code is 255 when one did not answer.
fn ping(t: &Target, verb: &str, o: &Options) -> Result<String, Failed> {
    let nids: Vec<String> = o.1.iter().flat_map(|a| split(a)).collect();
    if nids.is_empty() {
        return Err(format!("missing nid argument: {verb} nid[,nid,...]").into());
    }
    let limit_ms = o.number::<u64>(&["timeout"])?.unwrap_or(if verb == "ping" { 1 } else { 10 }).saturating_mul(1000);
    let (mut rows, mut failed) = (Vec::new(), false);
    for nid in nids {
        let a = t.ask(Act::Ping { nid: nid.clone(), limit_ms: limit_ms.max(1000) })?;
        if a["error"].is_string() {
            failed = true;
            let errno = a["errno"].as_i64().unwrap_or(1);
            let why = std::io::Error::from_raw_os_error(errno as i32).to_string();
            let why = why.split(" (os error").next().unwrap_or("").to_owned();
            let descr = if errno == libc::EINVAL as i64 { a["error"].as_str().unwrap_or("").to_owned() } else { format!("failed to {verb} {nid}: {why}") };
            rows.push(map([("errno", (-errno).into()), ("descr", descr.into())]));
            continue;
        }
        rows.push(found(&a, &nid));
    }
    let text = map([(verb, Yaml::List(rows))]).print(Style::Netlink(2));
    if failed { Err(Failed { text, code: 255 }) } else { Ok(text) }
}

/// What `nid` answered.
fn found(a: &Value, nid: &str) -> Yaml {
    let nids: Vec<Yaml> = a["nids"].as_array().into_iter().flatten().map(|n| map([("nid", n.as_str().unwrap_or("").into())])).collect();
    let primary = a["nids"][0].as_str().unwrap_or(nid).to_owned();
    let multi_rail = if a["multi_rail"] == true { "true" } else { "false" };
    map([("primary nid", primary.into()), ("Multi-Rail", multi_rail.into()), ("peer_ni", Yaml::List(nids))])
}

#[cfg(test)]
fn answered(verb: &str, a: &Value, nid: &str) -> String {
    map([(verb, Yaml::List(vec![found(a, nid)]))]).print(Style::Netlink(2))
}

/// The LNet commands of `lctl`.
fn run_lctl(t: &Target, args: &[String]) -> Result<String, Failed> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (command, rest) = match words.as_slice() {
        [first @ ("net_drop" | "net_delay"), verb, ..] => (format!("{first}_{verb}"), &args[2..]),
        [first, ..] => ((*first).to_owned(), &args[1..]),
        [] => return Err(LCTL_USAGE.to_owned().into()),
    };
    if let Some((delay, verb)) = lctl_fault(&command) {
        let c = fault::parse(delay, verb, rest)?;
        let answer = t.change("fault", "rule", c.act.clone())?;
        return Ok(c.text(&answer));
    }
    match (command.as_str(), rest) {
        ("list_nids", []) => {
            let picture = t.picture()?;
            let nids = picture["nets"].as_array().into_iter().flatten().flat_map(|n| n["nis"].as_array().into_iter().flatten()).filter_map(|n| n["nid"].as_str());
            Ok(nids.filter(|n| *n != "0@lo").map(|n| format!("{n}\n")).collect())
        }
        ("ping", [nid, limit @ ..]) => {
            let limit_ms = limit.first().and_then(|l| l.parse::<u64>().ok()).unwrap_or(1).saturating_mul(1000);
            let a = t.ask(Act::Ping { nid: nid.clone(), limit_ms })?;
            if a["error"].is_string() {
                let why = std::io::Error::from_raw_os_error(a["errno"].as_i64().unwrap_or(1) as i32).to_string();
                return Err(format!("failed to ping {nid}: {}", why.split(" (os error").next().unwrap_or("")).into());
            }
            let nids = a["nids"].as_array().into_iter().flatten().filter_map(Value::as_str);
            Ok(std::iter::once("12345-0@lo").chain(nids).map(|n| format!("{n}\n")).collect())
        }
        ("disconnect", [nid]) => t.change("disconnect", "peer", Act::Disconnect { nid: nid.clone() }).map(|_| String::new()),
        ("get_param", names) => {
            let picture = t.picture()?;
            let wanted: Vec<&str> = names.iter().map(String::as_str).filter(|n| !n.starts_with('-')).collect();
            let bare = names.iter().any(|n| n == "-n");
            let table = |n: &str| show::proc_table(&picture, n).map(|text| if bare { text } else { format!("{n}={text}") });
            wanted.iter().map(|n| table(n).map_or_else(|| get_params(t, n, bare), Ok)).collect()
        }
        ("set_param", settings) => settings.iter().map(|s| set_params(t, s)).collect(),
        ("help" | "--help" | "-h", _) => Ok(format!("{LCTL_USAGE}\n")),
        _ => Err(format!("No such command '{command}', type help").into()),
    }
}

/// Parameters of the mount of the process.
fn get_params(t: &Target, pattern: &str, bare: bool) -> Result<String, Failed> {
    let answer = t.ask_client(&Ask::GetParam(pattern.to_owned()))?;
    let rows: Vec<(String, String)> = serde_json::from_value(answer["params"].clone()).unwrap_or_default();
    if rows.is_empty() {
        return Err(no_param("get_param", pattern));
    }
    let line = |(name, value): &(String, String)| match (bare, value.ends_with('\n')) {
        (true, true) => value.clone(),
        (true, false) => format!("{value}\n"),
        (false, true) => format!("{name}=\n{value}"),
        (false, false) => format!("{name}={value}\n"),
    };
    Ok(rows.iter().map(line).collect())
}

/// `NAME=VALUE`.
fn set_params(t: &Target, setting: &str) -> Result<String, Failed> {
    let Some((pattern, value)) = setting.split_once('=') else {
        return Err(format!("usage: lctl set_param NAME=VALUE; '{setting}' has no value").into());
    };
    let answer = t.ask_client(&Ask::SetParam(pattern.to_owned(), value.to_owned()))?;
    if let Some(why) = answer["error"].as_str() {
        return Err(format!("error: set_param: setting {setting}: {why}").into());
    }
    let done: Vec<String> = serde_json::from_value(answer["set"].clone()).unwrap_or_default();
    if done.is_empty() {
        return Err(no_param("set_param", pattern));
    }
    Ok(done.iter().map(|n| format!("{n}={value}\n")).collect())
}

fn no_param(verb: &str, pattern: &str) -> Failed {
    Failed { text: format!("error: {verb}: param_path '{pattern}': No such file or directory"), code: libc::ENOENT as u8 }
}

fn lctl_fault(command: &str) -> Option<(bool, Verb)> {
    let (kind, verb) = command.rsplit_once('_')?;
    let delay = match kind {
        "net_drop" => false,
        "net_delay" => true,
        _ => return None,
    };
    let verbs = [("add", Verb::Add), ("del", Verb::Del), ("list", Verb::Show), ("reset", Verb::Reset)];
    verbs.iter().find(|(n, _)| *n == verb).map(|(_, v)| (delay, *v))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_before_and_after_the_command() {
        let (t, rest) = Target::parse(args("--dir /d --node=1@lo net show --net tcp1 -v 2")).ok().unwrap();
        assert_eq!((t.dir, t.node.as_deref(), rest.len()), (Some("/d".into()), Some("1@lo"), 6));
        let o = Options::parse(&rest[2..], &[("-v", "verbose")]);
        assert_eq!((o.text(&["net"]), o.verbose()), (Some("tcp1"), 2));
        assert_eq!(Options::parse(&args("-v"), &[("-v", "verbose")]).verbose(), 1);
        assert!(Target::parse(args("--dir")).is_err() && Target::parse(args("--what x")).is_err());
    }

    #[test]
    fn refusals_look_as_the_originals() {
        let f = refusal("add", "route", 22, "no way");
        assert_eq!((f.text.as_str(), f.code), ("add:\n    - route:\n          errno: -22\n          descr: \"no way\"\n", 234));
        assert_eq!(lctl_fault("net_delay_list"), Some((true, Verb::Show)));
        assert_eq!(lctl_fault("net_drop_what"), None);
    }
}
