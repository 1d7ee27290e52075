//! The processes of `cargo xtask bench lnet`: nodes that serve the self-test, and a console that measures between them.
//! What `coral lst serve` and `coral lst quick` do, without the rest of Coral to build.
//!
//! - `lst-bench serve NID PORT ROUTE`
//! - `lst-bench router NID NID PORT`
//! - `lst-bench quick CLIENT SERVER CONSOLE PORT ROUTE TEST CONCURRENCY SECONDS`: prints one line of JSON
//! - `lst-bench memory SECONDS`: two nodes of this process, with the bytes copied

use std::sync::Arc;
use std::time::Duration;

use coral_lnet::selftest::console::Console;
use coral_lnet::selftest::{Check, FEATS_MASK, Selftest, quick};
use coral_lnet::{MemNet, Nid, Node, NodeConfig, PoolSizes, parse_routes};

type Failure = Box<dyn std::error::Error>;

fn config(nids: Vec<Nid>, port: u16) -> NodeConfig {
    let listen_port = nids[0].ipv4().map(|_| port);
    NodeConfig {
        nids,
        listen_port,
        connect_port: port,
        secure_ports: false,
        ..NodeConfig::default()
    }
}

async fn routed(nid: Nid, port: u16, route: &str) -> Result<Arc<Node>, Failure> {
    let cfg = NodeConfig {
        routes: parse_routes(route)?,
        ..config(vec![nid], port)
    };
    Ok(Node::start(cfg, None).await?)
}

async fn in_memory(nid: &str, mem: Arc<MemNet>) -> Result<Arc<Node>, Failure> {
    Ok(Node::start(config(vec![nid.parse()?], 0), Some(mem)).await?)
}

fn options(test: &str, concurrency: u32, secs: u64) -> Result<quick::QuickOptions, Failure> {
    let only = quick::TESTS
        .into_iter()
        .find(|t| t.split(' ').next_back() == Some(test))
        .ok_or("TEST is ping, read or write")?;
    Ok(quick::QuickOptions {
        time: Duration::from_secs(secs),
        size_bytes: 1 << 20,
        concurrency,
        check: Check::None,
        only: Some(only),
    })
}

async fn console(node: &Arc<Node>) -> Result<Arc<Console>, Failure> {
    let (secs, nanos) = node.wall_time();
    let c = Console::new(
        "bench",
        true,
        FEATS_MASK,
        secs as u64 * 1000 + nanos as u64 / 1_000_000,
    )?;
    c.attach(node.clone(), Selftest::serve(node));
    Ok(c)
}

async fn run(args: &[String]) -> Result<(), Failure> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["router", a, b, port] => {
            let cfg = NodeConfig { routing: Some(PoolSizes::default()), ..config(vec![a.parse()?, b.parse()?], port.parse()?) };
            let _router = Node::start(cfg, None).await?;
            tokio::signal::ctrl_c().await?;
        }
        ["serve", nid, port, route] => {
            let node = routed(nid.parse()?, port.parse()?, route).await?;
            let _st = Selftest::serve(&node);
            tokio::signal::ctrl_c().await?;
        }
        ["quick", a, b, own, port, route, test, concurrency, secs] => {
            let node = routed(own.parse()?, port.parse()?, route).await?;
            let c = console(&node).await?;
            let done = quick::run(&c, a.parse()?, b.parse()?, options(test, concurrency.parse()?, secs.parse()?)?, |r| {
                println!(
                    "{{\"mb_per_s\": {}, \"rpcs_per_s\": {}, \"errors\": {}, \"total_rpcs\": {}, \"total_bytes\": {}}}",
                    r.mb_per_s, r.rpcs_per_s, r.errors, r.total_rpcs, r.total_bytes
                );
            });
            let done = done.await;
            c.end().await;
            done?;
        }
        ["memory", secs] => {
            for test in ["read", "write", "ping"] {
                let mem = MemNet::new();
                let (a, b) = (in_memory("1@lo", mem.clone()).await?, in_memory("2@lo", mem).await?);
                let _st = Selftest::serve(&b);
                let c = console(&a).await?;
                let row = |r: quick::QuickRow| println!("memlnd {:<10} {:>10.0} MB/s {:>10.0} RPC/s, {} errors", r.name, r.mb_per_s, r.rpcs_per_s, r.errors);
                quick::run(&c, a.nid(), b.nid(), options(test, 4, secs.parse()?)?, row).await?;
                c.end().await;
                let sum = |f: fn(&coral_lnet::NodeStats) -> u64| f(a.stats()) + f(b.stats());
                println!("  {} of {} bytes copied between buffers", sum(|s| s.copied_bytes.value()), sum(|s| s.received_bytes.value()));
            }
        }
        _ => return Err("serve NID PORT ROUTE | router NID NID PORT | quick CLIENT SERVER CONSOLE PORT ROUTE TEST CONCURRENCY SECONDS | memory SECONDS".into()),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run(&std::env::args().skip(1).collect::<Vec<_>>()).await
}
