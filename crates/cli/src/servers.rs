//! What the command line says of the servers of a process, and what it tells them.

use crate::absent::Absent;
use crate::args;
use crate::control::NodemapAsk;
use crate::params;
use coral_node::servers::NodemapError;
use coral_node::target_dir::Defaults;
use coral_node::{Servers, ServersConfig, TargetSpec, TargetStatus};
use coral_server::RecoveryStatus;
use coral_server::mdt::identity::System;
use coral_wire::Errno;
use coral_wire::nid::Nid;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often the MGS is told that a target goes on: a copy that is older than that is refused.
const COUNTS_EVERY: Duration = Duration::from_secs(300);

/// What servers of these directories are started with, as the command line has it.
pub(crate) fn config(
    dirs: &[PathBuf],
    default_stripes: Option<Defaults>,
    claim: Option<u32>,
    recovery: &args::Recovery,
) -> ServersConfig {
    let given = |secs: Option<u32>| secs.map(|s| Duration::from_secs(s.into()));
    ServersConfig {
        targets: dirs.iter().map(TargetSpec::dir).collect(),
        default_stripes: default_stripes.map(Into::into),
        claim,
        recovery_soft: given(recovery.recovery_time_soft),
        recovery_hard: given(recovery.recovery_time_hard),
        accept_older: false,
        counts_every: Some(COUNTS_EVERY),
        abort_recovery: recovery.abort_recovery,
        names: Some(Arc::new(System)),
        sync_interval: None,
    }
}

/// All NIDs, the primary first.
pub(crate) fn nids(servers: &Servers) -> Vec<String> {
    servers.node().nids().iter().map(Nid::to_string).collect()
}

/// Each target with its state, as JSON.
pub(crate) fn status(servers: &Servers) -> Value {
    servers.status().iter().map(target).collect()
}

fn target(t: &TargetStatus) -> Value {
    let mut mounts: Vec<String> = t.mounts.iter().map(Nid::to_string).collect();
    mounts.sort();
    json!({
        "name": t.name,
        "dir": t.dir,
        "state": if t.recovery.is_some() { "RECOVERING" } else { "UP" },
        "waits": t.recovery.as_ref().map(waits),
        "trouble": t.trouble,
        "exports": t.exports,
        "mounts": mounts,
        "transactions": t.stats.transactions.value(),
        "last_transno": t.last_transno,
        "last_committed": t.last_committed,
        "evictions": t.stats.evictions.value(),
        "resent_replies": t.stats.resent_replies.value(),
        "replayed_requests": t.stats.replayed_requests.value(),
    })
}

/// A target that is not served because it is not there, as JSON.
pub(crate) fn missing(a: &Absent) -> Value {
    json!({
        "name": a.name(),
        "dir": a.dir,
        "state": "MISSING",
        "trouble": a.why(),
        "exports": 0,
        "mounts": [],
    })
}

/// Whom targets wait for, a line each; empty when none does.
pub(crate) fn waiting(servers: &Servers) -> Vec<String> {
    let recovering = servers.recovering();
    let line = |(name, r): &(String, RecoveryStatus)| format!("{name} waits {}", waits(r));
    recovering.iter().map(line).collect()
}

/// What is said of file systems that have no MDT0000 yet.
pub(crate) async fn rootless_note(servers: &Servers) -> String {
    let mut text = String::new();
    let others = servers.mgs().map(|mgs| mgs.filesystems());
    for name in servers.without_root().await {
        text.push_str(&format!(
            "\nnote: the MGS knows no MDT0000 of the file system '{name}', which has its root: it can be mounted when that was served once. Is the name right?"
        ));
        let others = others.iter().flatten().filter(|other| **other != name);
        let others: Vec<&str> = others.map(String::as_str).collect();
        if !others.is_empty() {
            text.push_str(&format!(" The MGS also has {}", others.join(", ")));
        }
    }
    text
}

/// Ends the recovery of the targets whose names match, and names each with the clients it gave up.
pub(crate) fn abort_recovery(servers: &Servers, pattern: &str) -> Vec<String> {
    let aborted = servers.abort_recovery(|name| params::matches(pattern, name));
    let line =
        |(name, given_up): (String, usize)| format!("{name}: {} given up", clients(given_up));
    aborted.into_iter().map(line).collect()
}

fn clients(n: usize) -> String {
    if n == 1 {
        "1 client".into()
    } else {
        format!("{n} clients")
    }
}

/// Whom a recovery waits for, and how long.
fn waits(r: &RecoveryStatus) -> String {
    const NAMED: usize = 4;
    let mut who: Vec<String> = r
        .waited_for
        .iter()
        .take(NAMED)
        .map(|w| {
            let back = if w.back { ", which is back" } else { "" };
            format!("{} {}{back}", w.uuid, w.place())
        })
        .collect();
    if r.waited_for.len() > NAMED {
        who.push(format!("{} more", r.waited_for.len() - NAMED));
    }
    format!(
        "for {} of before, {} s at most: {}",
        clients(r.waited_for.len()),
        r.left.as_secs() + 1,
        who.join("; ")
    )
}

/// The answer about nodemaps of a process without servers.
pub(crate) fn no_nodemaps() -> Value {
    json!({ "error": "no servers run in this process", "errno": libc::ENODEV })
}

/// Answers `lctl nodemap_*`.
pub(crate) async fn nodemap(servers: &Servers, ask: &NodemapAsk) -> Value {
    let refused = |e: Errno| json!({ "error": e.to_string(), "errno": e.0 });
    let maps = || servers.nodemaps().maps.clone();
    match ask {
        NodemapAsk::Change(command) => match servers.change_nodemaps(command).await {
            Ok(()) => json!({}),
            Err(NodemapError::Elsewhere) => {
                json!({ "error": "the MGS does not run in this process; nodemaps are changed where it runs", "errno": libc::ENODEV })
            }
            Err(NodemapError::Refused(e)) => refused(e),
        },
        NodemapAsk::TestNid(nid) => match nid.parse() {
            Ok(nid) => json!({ "text": maps().of(nid).name }),
            Err(_) => refused(Errno::EINVAL),
        },
        NodemapAsk::TestId { nid, kind, id } => match nid.parse() {
            Ok(nid) if maps().active => {
                json!({ "text": maps().of(nid).to_fs(*kind, *id).0.to_string() })
            }
            Ok(_) => json!({ "text": id.to_string() }),
            Err(_) => refused(Errno::EINVAL),
        },
    }
}
