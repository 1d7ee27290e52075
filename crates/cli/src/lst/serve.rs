//! `lst serve`: a bare node that serves self-tests until it is told to stop.

use super::Failed;
use super::node::{self, Ways};
use super::options::{self, Spec};
use crate::control;
use crate::lnetctl::find::Found;
use coral_lnet::Nid;
use coral_lnet::selftest::Selftest;

const SPEC: Spec = Spec {
    with_value: &[
        ('n', "nid"),
        ('p', "port"),
        ('\0', "route"),
        ('\0', "routes"),
        ('\0', "accept"),
    ],
    flags: &[],
    words: (0, 0),
};

pub(crate) fn run(args: Vec<String>) -> Result<(), Failed> {
    let g = options::parse("serve", &SPEC, &args)?;
    let text = g.text("nid").ok_or_else(|| {
        Failed(
            "serve: --nid is missing: which address of this machine is it, as 10.0.0.1@tcp?".into(),
        )
    })?;
    let nid: Nid = text
        .parse()
        .map_err(|_| Failed(format!("--nid '{text}' is no NID")))?;
    let ways = Ways::of(&g, coral_node::net::DEFAULT_PORT)?;
    crate::start_log(crate::LOGGED);
    crate::runtime().map_err(Failed)?.block_on(serve(nid, ways))
}

async fn serve(nid: Nid, ways: Ways) -> Result<(), Failed> {
    let node = ways.start_node(nid).await?;
    let st = Selftest::serve(&node);
    let (found, mut asked) = Found::new(&node);
    println!("serving self-tests on {nid} port {}", ways.port);
    let reply = crate::run_until_stopped(&Ok(()), &mut asked, None, None, || {
        node::status(&node, "lst serve", ways.port)
    })
    .await;
    st.stop(&node);
    node.shutdown().await;
    if let Some(dir) = found.dir() {
        control::stopped(dir, reply).await;
    }
    Ok(())
}
