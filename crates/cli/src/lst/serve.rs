//! `lst serve`: a bare node that serves self-tests until it is told to stop.

use super::Failed;
use super::console::start_node;
use super::options::{self, Spec};
use coral_lnet::Nid;
use coral_lnet::selftest::Selftest;
use tokio::signal::unix::{SignalKind, signal};

const SPEC: Spec = Spec { with_value: &[('n', "nid"), ('p', "port")], flags: &[], words: (0, 0) };

pub(crate) fn run(args: Vec<String>) -> Result<(), Failed> {
    let g = options::parse("serve", &SPEC, &args)?;
    let text = g.text("nid").ok_or_else(|| Failed("serve: --nid is missing: which address of this machine is it, as 10.0.0.1@tcp?".into()))?;
    let nid: Nid = text.parse().map_err(|_| Failed(format!("--nid '{text}' is no NID")))?;
    let port = g.number("port")?.unwrap_or(988);
    crate::start_log();
    crate::runtime().map_err(Failed)?.block_on(serve(nid, port))
}

async fn serve(nid: Nid, port: u16) -> Result<(), Failed> {
    let node = start_node(nid, port).await?;
    let st = Selftest::serve(&node);
    println!("serving self-tests on {nid} port {port}");
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    st.stop(&node);
    node.shutdown().await;
    Ok(())
}
