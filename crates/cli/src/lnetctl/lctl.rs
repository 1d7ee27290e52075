//! The commands of `lctl` that are LNet's own (`lnet/utils/portals.c`), and parameters by name.

use serde_json::Value;

use super::agent::Act;
use super::fault::{self, Verb};
use super::{AskedNode, Failed, PING_LIMIT_S, nodemap, show};
use crate::control::Ask;

pub(super) const LCTL_USAGE: &str = "usage: lctl [--dir DIR|MNT|PID | --socket PATH] [--node NID] COMMAND
  list_nids                                     NIDs of the node
  ping NID [SECONDS]                            asks a node for its NIDs
  disconnect NID                                breaks the connections with a peer
  get_param [-n | -N] NAME...                   values (-n: without names, -N: names alone); stats, peers, nis, routes, buffers of LNet
  list_param [-R] NAME...                       names of parameters (-R: and of those below)
  set_param [-n] NAME=VALUE...                  sets parameters of a mount until it is unmounted, of a server until it stops
  abort_recovery [TARGET]                       servers wait no longer for clients of before a restart; these lose what they have not replayed
  nodemap_activate, nodemap_add, nodemap_del, nodemap_add_range, nodemap_del_range, nodemap_add_idmap, nodemap_del_idmap,
  nodemap_modify, nodemap_set_fileset, nodemap_fileset_add, nodemap_fileset_del, nodemap_test_nid, nodemap_test_id, nodemap_info
                                                whose ids the servers believe; changed where the MGS runs
  net_drop_add, net_drop_del, net_drop_list, net_drop_reset      messages to lose
  net_delay_add, net_delay_del, net_delay_list, net_delay_reset  messages to delay
  help                                          this
Parameters have components between dots; * stands for any text within one. DIR is that of coral up, serve or router, MNT a
mount point; needed when several Coral processes of this user run.";

/// The LNet commands of `lctl`.
pub(super) fn run_lctl(t: &AskedNode, args: &[String]) -> Result<String, Failed> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (command, rest) = match words.as_slice() {
        [first @ ("net_drop" | "net_delay" | "nodemap"), verb, ..] => {
            (format!("{first}_{verb}"), &args[2..])
        }
        [first, ..] => ((*first).to_owned(), &args[1..]),
        [] => return Err(LCTL_USAGE.to_owned().into()),
    };
    if let Some(verb) = nodemap::verb(&command) {
        return nodemap::run(t, verb, rest);
    }
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
            if let Some(more) = limit.get(1) {
                return Err(format!("ping: '{more}' is too much; usage: lctl ping NID [SECONDS]").into());
            }
            let seconds = limit.first().map(|l| l.parse::<u64>().ok().filter(|n| (1..=PING_LIMIT_S).contains(n)).ok_or(l)).transpose();
            let limit_ms = 1000 * seconds.map_err(|l| format!("ping: '{l}' is no time: give 1 to {PING_LIMIT_S} seconds"))?.unwrap_or(1);
            let a = t.ask(Act::Ping { nid: nid.clone(), limit_ms })?;
            if a["error"].is_string() {
                let why = std::io::Error::from_raw_os_error(a["errno"].as_i64().unwrap_or(1) as i32).to_string();
                return Err(format!("failed to ping {nid}: {}", why.split(" (os error").next().unwrap_or("")).into());
            }
            let nids = a["nids"].as_array().into_iter().flatten().filter_map(Value::as_str);
            Ok(std::iter::once("12345-0@lo").chain(nids).map(|n| format!("{n}\n")).collect())
        }
        ("ping" | "disconnect", []) => Err(format!("{command}: which NID? usage: lctl {command} NID").into()),
        ("list_nids" | "disconnect", [_, more @ ..]) if command == "list_nids" || !more.is_empty() => {
            Err(format!("{command}: '{}' is too much", more.first().unwrap_or(&rest[0])).into())
        }
        ("disconnect", [nid]) => t.change("disconnect", "peer", Act::Disconnect { nid: nid.clone() }).map(|_| String::new()),
        ("get_param", words) => {
            let (flags, names) = flags("get_param", words, &["-n", "-N"])?;
            if flags.contains(&"-N") {
                return names.iter().map(|n| list_params(t, n, false)).collect();
            }
            let (picture, bare) = (t.picture()?, flags.contains(&"-n"));
            let table = |n: &str| show::proc_table(&picture, n).map(|text| if bare { text } else { format!("{n}={text}") });
            names.iter().map(|n| table(n).map_or_else(|| get_params(t, n, bare), Ok)).collect()
        }
        ("list_param", words) => {
            let (flags, names) = flags("list_param", words, &["-R"])?;
            names.iter().map(|n| list_params(t, n, flags.contains(&"-R"))).collect()
        }
        ("set_param", words) if words.iter().any(|w| w == "-P" || w == "-d") => {
            Err("set_param: settings that last (-P, and -d to undo them) are not there: without it a setting holds until the mount is unmounted".to_owned().into())
        }
        ("set_param", words) => {
            let (flags, settings) = flags("set_param", words, &["-n"])?;
            settings.iter().map(|s| set_params(t, s).map(|done| if flags.is_empty() { done } else { String::new() })).collect()
        }
        ("abort_recovery", [_, more, ..]) => Err(format!("abort_recovery: '{more}' is too much; usage: lctl abort_recovery [TARGET]").into()),
        ("abort_recovery", target) => {
            let pattern = target.first().map_or("*", String::as_str);
            let answer = t.ask_client(&Ask::AbortRecovery(pattern.to_owned()))?;
            let aborted: Vec<String> = serde_json::from_value(answer["aborted"].clone()).unwrap_or_default();
            match aborted.is_empty() {
                true => Err(format!("abort_recovery: no target '{pattern}' of this process is in recovery; see coral status").into()),
                false => Ok(aborted.iter().map(|line| format!("{line}\n")).collect()),
            }
        }
        ("help" | "--help" | "-h", _) => Ok(format!("{LCTL_USAGE}\n")),
        _ => Err(format!("No such command '{command}', type help").into()),
    }
}

/// The flags among the words of a command, and the others, of which there must be some.
fn flags<'a>(
    command: &str,
    words: &'a [String],
    known: &[&str],
) -> Result<(Vec<&'a str>, Vec<&'a str>), Failed> {
    let (flags, names): (Vec<&str>, Vec<&str>) = words
        .iter()
        .map(String::as_str)
        .partition(|w| w.starts_with('-'));
    if let Some(f) = flags.iter().find(|f| !known.contains(f)) {
        return Err(format!(
            "{command}: there is no option {f}; there are: {}",
            known.join(", ")
        )
        .into());
    }
    match names.is_empty() {
        true => Err(format!("{command}: which parameter?\n{LCTL_USAGE}").into()),
        false => Ok((flags, names)),
    }
}

/// Names of parameters of the mount of the process.
pub(super) fn list_params(t: &AskedNode, pattern: &str, below: bool) -> Result<String, Failed> {
    let answer = t.ask_client(&Ask::ListParam(pattern.to_owned(), below))?;
    let names: Vec<String> = serde_json::from_value(answer["names"].clone()).unwrap_or_default();
    if names.is_empty() {
        return Err(no_param("list_param", pattern));
    }
    Ok(names.iter().map(|n| format!("{n}\n")).collect())
}

/// Parameters of the mount of the process.
pub(super) fn get_params(t: &AskedNode, pattern: &str, bare: bool) -> Result<String, Failed> {
    let answer = t.ask_client(&Ask::GetParam(pattern.to_owned()))?;
    let rows: Vec<(String, String)> =
        serde_json::from_value(answer["params"].clone()).unwrap_or_default();
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
fn set_params(t: &AskedNode, setting: &str) -> Result<String, Failed> {
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
    Failed {
        text: format!("error: {verb}: param_path '{pattern}': No such file or directory"),
        code: libc::ENOENT as u8,
    }
}

pub(super) fn lctl_fault(command: &str) -> Option<(bool, Verb)> {
    let (kind, verb) = command.rsplit_once('_')?;
    let delay = match kind {
        "net_drop" => false,
        "net_delay" => true,
        _ => return None,
    };
    let verbs = [
        ("add", Verb::Add),
        ("del", Verb::Del),
        ("list", Verb::Show),
        ("reset", Verb::Reset),
    ];
    verbs
        .iter()
        .find(|(n, _)| *n == verb)
        .map(|(_, v)| (delay, *v))
}
