//! `lst new_session`: starts the console's process.

use super::node::Ways;
use super::options::{self, Spec};
use super::{Failed, key, socket};
use coral_lnet::Nid;

/// Idle seconds after which a console ends its session (`LST_CONSOLE_TIMEOUT`).
const TIMEOUT_S: u32 = 300;
/// The features we ask for: bulk lengths in bytes.
const FEATS: u32 = coral_lnet::selftest::FEATS_MASK;

pub(crate) const SPEC: Spec = Spec {
    with_value: &[
        ('t', "timeout"),
        ('n', "nid"),
        ('p', "port"),
        ('\0', "route"),
        ('\0', "routes"),
        ('\0', "accept"),
    ],
    flags: &[('f', "force"), ('\0', "foreground")],
    words: (0, 1),
};

/// What a session is made with.
pub(crate) struct Wanted {
    pub key: u32,
    pub name: String,
    pub timeout_s: u32,
    pub force: bool,
    pub feats: u32,
    /// NID of the console; None: found when the first node is added.
    pub nid: Option<Nid>,
    /// Port of all nodes, and routes.
    pub ways: Ways,
}

impl Wanted {
    pub(crate) fn parse(args: &[String]) -> Result<Wanted, Failed> {
        Wanted::parse_with_key(key()?, args)
    }

    /// With a key that is not the environment's.
    pub(crate) fn parse_with_key(key: u32, args: &[String]) -> Result<Wanted, Failed> {
        let g = options::parse("new_session", &SPEC, args)?;
        let nid = g
            .text("nid")
            .map(|t| {
                t.parse()
                    .map_err(|_| Failed(format!("--nid '{t}' is no NID")))
            })
            .transpose()?;
        let name = g.words.first().cloned().unwrap_or_else(default_name);
        Ok(Wanted {
            key,
            name,
            timeout_s: g.positive("timeout", TIMEOUT_S)?,
            force: g.has("force"),
            feats: feats()?,
            nid,
            ways: Ways::of(&g, coral_node::net::DEFAULT_PORT)?,
        })
    }

    /// What `new_session` prints.
    pub(crate) fn line(&self) -> String {
        let force = if self.force { "Yes" } else { "No" };
        format!(
            "SESSION: {} FEATURES: {:x} TIMEOUT: {} FORCE: {force}",
            self.name, self.feats, self.timeout_s
        )
    }
}

/// LST_FEATURES, hexadecimal.
fn feats() -> Result<u32, Failed> {
    let Ok(text) = std::env::var("LST_FEATURES") else {
        return Ok(FEATS);
    };
    u32::from_str_radix(&text, 16)
        .ok()
        .filter(|f| f & !FEATS == 0)
        .ok_or_else(|| {
            Failed(format!(
                "LST_FEATURES '{text}' is not supported: {FEATS:x} is all there is"
            ))
        })
}

fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user =
        std::env::var("USER").unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string());
    cut(format!("{user}@{}", host.trim()))
}

/// As much of a name as a session's may have, in whole characters.
fn cut(mut name: String) -> String {
    let most = coral_lnet::selftest::NAME_SIZE - 1;
    let end = name
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= most)
        .last()
        .unwrap_or(0);
    name.truncate(end);
    name
}

/// Starts the console in the background and prints what it says.
pub(crate) fn new(args: Vec<String>) -> Result<(), Failed> {
    let wanted = Wanted::parse(&args)?;
    if socket::exists(wanted.key)? {
        if !wanted.force {
            return Err(Failed(format!(
                "a session with key {} exists: end it (lst end_session), or take it over with --force",
                wanted.key
            )));
        }
        socket::ask("end_session", Vec::new())?;
    }
    let log = socket::path(wanted.key)?.with_extension("log");
    let command = ["lst".into(), "console".into()]
        .into_iter()
        .chain(args.into_iter().map(Into::into));
    println!(
        "{}",
        crate::daemon::start_as(command, &log).map_err(Failed)?
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut_between_characters() {
        assert_eq!(cut("root@here".into()), "root@here");
        assert_eq!(cut("a".repeat(40)), "a".repeat(31));
        assert_eq!(cut(format!("{}\u{e4}x", "a".repeat(30))), "a".repeat(30));
        assert_eq!(
            cut(format!("{}\u{e4}x", "a".repeat(29))),
            format!("{}\u{e4}", "a".repeat(29))
        );
    }
}
