//! The commands a console's process runs. Each says what the kernel's `lst` says, and gives whether all went well.

use super::console::Session;
use super::options::{self, Spec};
use super::socket::Out;
use super::{Failed, show, stat};
use coral_lnet::Nid;
use coral_lnet::selftest::console::{
    BatchInfo, ConsoleError, DEFAULT_BATCH, LOOPS, NodeError, NodeState, ROUND_TIMEOUT, TestInfo,
    TestSpec, Update, count_states,
};
use coral_lnet::selftest::{TestParams, nids};
use std::sync::Arc;
use std::time::Duration;

type Done = Result<bool, Failed>;

/// Runs a command.
pub(crate) async fn run(s: &Arc<Session>, command: &str, args: &[String], out: &mut Out) -> Done {
    match command {
        "end_session" => end_session(s, args, out).await,
        "show_session" => show_session(s, args, out).await,
        "ping" => ping(s, args, out).await,
        "add_group" => add_group(s, args, out).await,
        "del_group" => del_group(s, args, out).await,
        "update_group" => update_group(s, args, out).await,
        "list_group" => list_group(s, args, out).await,
        "stat" => stat::stat(s, args, out).await,
        "show_error" => stat::show_error(s, args, out).await,
        "add_batch" => {
            let g = options::parse(
                command,
                &Spec {
                    with_value: &[],
                    flags: &[],
                    words: (1, 1),
                },
                args,
            )?;
            s.console.add_batch(&g.words[0])?;
            Ok(true)
        }
        "run" => run_batch(s, args, out).await,
        "stop" => stop_batch(s, args, out).await,
        "list_batch" => list_batch(s, args, out).await,
        "query" => query(s, args, out).await,
        "add_test" => add_test(s, args, out).await,
        _ => Err(Failed(format!("there is no command '{command}'"))),
    }
}

const NOTHING: Spec = Spec {
    with_value: &[],
    flags: &[],
    words: (0, 0),
};

async fn end_session(s: &Session, args: &[String], out: &mut Out) -> Done {
    options::parse("end_session", &NOTHING, args)?;
    let results = s.console.end().await;
    s.ended.store(true, std::sync::atomic::Ordering::Release);
    show::failures(&results, "end session", out).await
}

async fn show_session(s: &Session, args: &[String], out: &mut Out) -> Done {
    options::parse("show_session", &NOTHING, args)?;
    let c = &s.console;
    let nid = c.nid().map_or("<?>".to_owned(), |n| n.to_string());
    let nodes = c.nodes().len();
    out.out(format!(
        "{} ID: {}@{nid}, KEY: {} FEATURES: {:x} NODES: {nodes}",
        c.name(),
        c.stamp_ms(),
        s.wanted.key,
        c.feats()
    ))
    .await?;
    Ok(true)
}

async fn ping(s: &Session, args: &[String], out: &mut Out) -> Done {
    const SPEC: Spec = Spec {
        with_value: &[
            ('b', "batch"),
            ('g', "group"),
            ('n', "nodes"),
            ('t', "timeout"),
        ],
        flags: &[('s', "session"), ('v', "server")],
        words: (0, 0),
    };
    let g = options::parse("ping", &SPEC, args)?;
    let limit = Duration::from_secs(g.positive("timeout", 5)? as u64);
    let only = |list: Vec<(Nid, NodeState)>| list.into_iter().map(|n| n.0).collect::<Vec<_>>();
    let to = match (g.text("group"), g.text("batch"), g.text("nodes")) {
        (Some(name), _, _) => only(s.console.group(name)?),
        (_, Some(name), _) => {
            let b = s.console.batch(name)?;
            only(if g.has("server") {
                b.servers
            } else {
                b.clients
            })
        }
        (_, _, Some(word)) => nids::expand(word)?,
        _ if g.has("session") => only(s.console.nodes()),
        _ => {
            return Err(Failed(
                "ping: whom? --session, --group, --batch or --nodes says it".into(),
            ));
        }
    };
    let Some(first) = to.first() else {
        out.out("Target is empty").await?;
        return Ok(true);
    };
    s.voice(*first).await?;
    for r in s.console.ping(&to, limit).await? {
        let (name, console) = match r.result {
            Ok((name, nid)) => (name, nid.to_string()),
            Err(_) => ("<NULL>".into(), "<?>".into()),
        };
        out.out(format!(
            "\t{}: {} [session: {name} id: {console}]",
            show::id(r.nid),
            r.state
        ))
        .await?;
    }
    Ok(true)
}

async fn add_group(s: &Session, args: &[String], out: &mut Out) -> Done {
    let g = options::parse(
        "add_group",
        &Spec {
            with_value: &[],
            flags: &[],
            words: (2, usize::MAX),
        },
        args,
    )?;
    let (name, lists) = (&g.words[0], &g.words[1..]);
    // A wrong list is found before anything is done.
    let lists = lists
        .iter()
        .map(|w| Ok((w, nids::expand(w)?)))
        .collect::<Result<Vec<_>, Failed>>()?;
    for (_, nids) in &lists {
        let mut nets: Vec<Nid> = nids.clone();
        nets.dedup_by_key(|n| n.net());
        for one in nets {
            s.voice(one).await?;
        }
    }
    s.console.add_group(name)?;
    let mut well = true;
    for (word, nids) in lists {
        let results = s.console.add_nodes(name, &nids).await?;
        if show::failures(&results, "create session", out).await? {
            out.out(format!("{word} are added to session")).await?;
        } else {
            well = false;
        }
    }
    if s.console
        .group(name)?
        .iter()
        .all(|n| n.1 != NodeState::Active)
    {
        out.err(format!(
            "No nodes added successfully, deleting group {name}"
        ))
        .await?;
        s.console.del_group(name).await?;
    }
    Ok(well)
}

async fn del_group(s: &Session, args: &[String], out: &mut Out) -> Done {
    let g = options::parse(
        "del_group",
        &Spec {
            with_value: &[],
            flags: &[],
            words: (1, 1),
        },
        args,
    )?;
    let well = show::failures(&s.console.del_group(&g.words[0]).await?, "end session", out).await?;
    out.out(if well {
        "Group is deleted"
    } else {
        "Group is deleted with some errors"
    })
    .await?;
    Ok(well)
}

async fn update_group(s: &Session, args: &[String], out: &mut Out) -> Done {
    const SPEC: Spec = Spec {
        with_value: &[('c', "clean"), ('r', "remove")],
        flags: &[('f', "refresh")],
        words: (1, 1),
    };
    let g = options::parse("update_group", &SPEC, args)?;
    let update = match (g.has("refresh"), g.text("clean"), g.text("remove")) {
        (true, None, None) => Update::Refresh,
        (false, Some(state), None) => Update::Clean(show::state(state).ok_or_else(|| {
            Failed(format!(
                "--clean '{state}' is none of active, busy, down, unknown, invalid"
            ))
        })?),
        (false, None, Some(word)) => Update::Remove(nids::expand(word)?),
        _ => {
            return Err(Failed(
                "update_group: one of --refresh, --clean and --remove says what is to be done"
                    .into(),
            ));
        }
    };
    let results = s.console.update_group(&g.words[0], update).await?;
    show::failures(&results, "Updating group", out).await
}

async fn list_group(s: &Session, args: &[String], out: &mut Out) -> Done {
    const SPEC: Spec = Spec {
        with_value: &[],
        flags: &[
            ('a', "active"),
            ('b', "busy"),
            ('d', "down"),
            ('u', "unknown"),
            ('l', "all"),
        ],
        words: (0, usize::MAX),
    };
    let g = options::parse("list_group", &SPEC, args)?;
    if g.words.is_empty() {
        return list_names(&s.console.groups(), "groups", out).await;
    }
    let wanted = |st: NodeState| g.has("all") || g.has(&st.to_string().to_ascii_lowercase());
    let verbose = ["active", "busy", "down", "unknown", "all"]
        .iter()
        .any(|f| g.has(f));
    let groups = g
        .words
        .iter()
        .map(|name| Ok((name, s.console.group(name)?)))
        .collect::<Result<Vec<_>, Failed>>()?;
    if !verbose {
        out.out(show::NODES_TITLE).await?;
    }
    for (name, nodes) in groups {
        if !verbose {
            out.out(format!("\t{}\t{name}", show::counts(count_states(&nodes))))
                .await?;
            continue;
        }
        out.out(format!("Group [ {name} ]")).await?;
        if nodes.is_empty() {
            out.out(format!("No nodes found [ {name} ]")).await?;
            continue;
        }
        let shown: Vec<_> = nodes.into_iter().filter(|n| wanted(n.1)).collect();
        for (nid, state) in &shown {
            out.out(format!("\t{}: {state}", show::id(*nid))).await?;
        }
        out.out(format!("Total {} nodes [ {name} ]", shown.len()))
            .await?;
    }
    Ok(true)
}

async fn list_names(names: &[String], what: &str, out: &mut Out) -> Done {
    for (i, name) in names.iter().enumerate() {
        out.out(format!("{}) {name}", i + 1)).await?;
    }
    out.out(format!("Total {} {what}", names.len())).await?;
    Ok(true)
}

/// The batch a command names, or the default one.
fn batch_name(words: &[String]) -> &str {
    words.first().map_or(DEFAULT_BATCH, String::as_str)
}

async fn run_batch(s: &Session, args: &[String], out: &mut Out) -> Done {
    let g = options::parse(
        "run",
        &Spec {
            with_value: &[('t', "timeout")],
            flags: &[],
            words: (0, 1),
        },
        args,
    )?;
    if g.text("timeout").is_some() {
        return Err(Failed("run: nodes know no time limit of a batch (the kernel's do not either): stop it with lst stop".into()));
    }
    let name = batch_name(&g.words);
    let well = show::failures(&s.console.run(name).await?, "Run batch", out).await?;
    if well {
        out.out(format!("{name} is running now")).await?;
    }
    Ok(well)
}

async fn stop_batch(s: &Session, args: &[String], out: &mut Out) -> Done {
    let g = options::parse(
        "stop",
        &Spec {
            with_value: &[],
            flags: &[('f', "force")],
            words: (0, 1),
        },
        args,
    )?;
    let name = batch_name(&g.words);
    if !show::failures(
        &s.console.stop(name, g.has("force")).await?,
        "stop batch",
        out,
    )
    .await?
    {
        return Ok(false);
    }
    loop {
        let results = s.console.query(name, 0, false, ROUND_TIMEOUT).await?;
        if !show::failures(&results, "stop batch", out).await? {
            return Ok(false);
        }
        let running = results.iter().filter(|r| r.result != Ok(0)).count();
        if running == 0 {
            out.out("Batch is stopped").await?;
            return Ok(true);
        }
        out.out(format!("{running} batch in stopping")).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn list_batch(s: &Session, args: &[String], out: &mut Out) -> Done {
    const SPEC: Spec = Spec {
        with_value: &[('t', "test")],
        flags: &[
            ('i', "invalid"),
            ('a', "active"),
            ('l', "all"),
            ('s', "server"),
        ],
        words: (0, 1),
    };
    let g = options::parse("list_batch", &SPEC, args)?;
    let Some(name) = g.words.first() else {
        return list_names(&s.console.batches(), "batches", out).await;
    };
    let info = s.console.batch(name)?;
    let test = match g.number::<usize>("test")? {
        Some(0) => return Err(Failed("Invalid test id, test id starts from 1".into())),
        Some(n) => Some((
            n,
            info.tests
                .get(n - 1)
                .ok_or_else(|| Failed(format!("batch '{name}' has no test {n}")))?,
        )),
        None => None,
    };
    if g.has("invalid") || g.has("active") || g.has("all") {
        let (clients, servers) = test.map_or((&info.clients, &info.servers), |(_, t)| {
            (&t.clients, &t.servers)
        });
        let (active, invalid) = (
            g.has("active") || g.has("all"),
            g.has("invalid") || g.has("all"),
        );
        let nodes = if g.has("server") { servers } else { clients };
        let shown: Vec<_> = nodes
            .iter()
            .filter(|n| {
                if n.1 == NodeState::Active {
                    active
                } else {
                    invalid
                }
            })
            .collect();
        for (nid, state) in &shown {
            out.out(format!("\t{}: {state}", show::id(*nid))).await?;
        }
        out.out(format!("Total {} nodes", shown.len())).await?;
        return Ok(true);
    }
    match test {
        Some((n, t)) => show_test(n, t, out).await?,
        None => show_batch(name, &info, out).await?,
    }
    Ok(true)
}

async fn show_batch(name: &str, info: &BatchInfo, out: &mut Out) -> Result<(), Failed> {
    // The kernel's numbers of the two states.
    let state = if info.running { 0xb1 } else { 0xb0 };
    out.out(format!(
        "Batch: {name} Tests: {} State: {state}",
        info.tests.len()
    ))
    .await?;
    show_nodes(&info.clients, &info.servers, out).await?;
    for (i, t) in info.tests.iter().enumerate() {
        show_test(i + 1, t, out).await?;
    }
    Ok(())
}

async fn show_test(n: usize, t: &TestInfo, out: &mut Out) -> Result<(), Failed> {
    let name = if t.params == TestParams::Ping {
        "ping"
    } else {
        "brw"
    };
    let count = t.count.map_or(-1, i64::from);
    out.out(format!(
        "\tTest {n}({name}) (loop: {count}, concurrency: {})",
        t.concurrency
    ))
    .await?;
    show_nodes(&t.clients, &t.servers, out).await
}

async fn show_nodes(
    clients: &[(Nid, NodeState)],
    servers: &[(Nid, NodeState)],
    out: &mut Out,
) -> Result<(), Failed> {
    out.out(show::NODES_TITLE).await?;
    out.out(format!("client\t{}", show::counts(count_states(clients))))
        .await?;
    out.out(format!("server\t{}", show::counts(count_states(servers))))
        .await
}

async fn query(s: &Session, args: &[String], out: &mut Out) -> Done {
    const SPEC: Spec = Spec {
        with_value: &[
            ('o', "timeout"),
            ('d', "delay"),
            ('c', "loop"),
            ('t', "test"),
        ],
        flags: &[
            ('s', "server"),
            ('a', "active"),
            ('i', "idle"),
            ('e', "error"),
            ('l', "all"),
        ],
        words: (0, 1),
    };
    let g = options::parse("query", &SPEC, args)?;
    let (limit, delay) = (
        Duration::from_secs(g.positive("timeout", 5)? as u64),
        Duration::from_secs(g.positive("delay", 5)? as u64),
    );
    let (rounds, test) = (g.positive("loop", 1)?, g.number("test")?.unwrap_or(0));
    let name = batch_name(&g.words);
    let verbose = ["active", "idle", "error", "all"].iter().any(|f| g.has(f));
    for round in 0..rounds {
        if round > 0 {
            tokio::time::sleep(delay).await;
        }
        let results = s.console.query(name, test, g.has("server"), limit).await?;
        if verbose {
            for r in &results {
                let running = matches!(r.result, Ok(n) if n > 0);
                if g.has("active") && !running
                    || g.has("idle") && running
                    || g.has("error") && r.result.is_ok()
                {
                    continue;
                }
                let what = match r.result {
                    Err(NodeError::Rpc(e) | NodeError::Remote(e)) => show::strerror(e),
                    Ok(_) => if running { "Running" } else { "Idle" }.into(),
                };
                out.out(format!("{} [{}]: {what}", show::id(r.nid), r.state))
                    .await?;
            }
            continue;
        }
        let count = |f: &dyn Fn(&Result<u32, NodeError>) -> bool| {
            results.iter().filter(|r| f(&r.result)).count()
        };
        let silent = count(&|r| matches!(r, Err(NodeError::Rpc(_))));
        let (idle, running) = (
            count(&|r| *r == Ok(0)),
            count(&|r| matches!(r, Ok(n) if *n > 0)),
        );
        let failed = results.len() - silent - idle - running;
        let mut line = format!("{name} [{test}] ");
        if silent > 0 {
            line += &format!("{silent} of {} nodes are unknown, ", results.len());
        }
        line += &match (silent + failed, idle, running) {
            (0, _, 0) => "is stopped".to_owned(),
            (0, 0, _) => "is running".to_owned(),
            _ => format!("stopped: {idle} , running: {running}, failed: {failed}"),
        };
        out.out(line).await?;
    }
    Ok(true)
}

async fn add_test(s: &Session, args: &[String], out: &mut Out) -> Done {
    const SPEC: Spec = Spec {
        with_value: &[
            ('b', "batch"),
            ('c', "concurrency"),
            ('d', "distribute"),
            ('f', "from"),
            ('t', "to"),
            ('l', "loop"),
        ],
        flags: &[],
        words: (1, usize::MAX),
    };
    let g = options::parse("add_test", &SPEC, args)?;
    let group = |name: &str| {
        g.text(name)
            .map(str::to_owned)
            .ok_or_else(|| Failed(format!("add_test: --{name} is missing: a group's name")))
    };
    let (dist, span) = g
        .text("distribute")
        .map_or(Ok((1, 1)), options::distribution)?;
    let count = match g.number::<i64>("loop")?.unwrap_or(-1) {
        -1 => None,
        n => Some(u32::try_from(n).map_err(|_| ConsoleError::Range("loop", n, LOOPS))?),
    };
    let spec = TestSpec {
        from: group("from")?,
        to: group("to")?,
        count,
        concurrency: g.positive("concurrency", 1)?,
        dist,
        span,
        params: options::test(&g.words)?,
    };
    let well = show::failures(
        &s.console
            .add_test(g.text("batch").unwrap_or(DEFAULT_BATCH), spec)
            .await?,
        "add test",
        out,
    )
    .await?;
    if well {
        out.out("Test was added successfully").await?;
    }
    Ok(well)
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
