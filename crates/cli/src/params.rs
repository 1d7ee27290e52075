//! `lctl get_param` and `set_param` of a mount and of servers, on the side of the process that has them.

use coral_client::llite::Llite;
use coral_node::Servers;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What has parameters in a process: its mount, its servers, or neither.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub llite: Option<&'a Arc<Llite>>,
    pub servers: Option<&'a Servers>,
}

/// What a process without any answers.
pub(crate) fn none() -> Value {
    json!({ "params": [], "names": [], "set": [] })
}

impl Of<'_> {
    fn all(&self) -> Vec<(String, String)> {
        let mut all = self.llite.map_or_else(Vec::new, |l| l.params());
        all.extend(self.servers.map_or_else(Vec::new, Servers::params));
        all.sort();
        all
    }

    async fn set_one(&self, name: &str, value: &str) -> Result<(), String> {
        match self
            .servers
            .filter(|s| s.params().iter().any(|(n, _)| n == name))
        {
            Some(servers) => servers
                .set_param(name, value)
                .await
                .map_err(|e| e.to_string()),
            None => match self.llite {
                Some(llite) => llite
                    .set_param(name, value)
                    .await
                    .map_err(|e| e.to_string()),
                None => Err("no such parameter".into()),
            },
        }
    }
}

/// Names and values of what matches `pattern`.
pub(crate) fn get(of: Of<'_>, pattern: &str) -> Value {
    let found: Vec<_> = of
        .all()
        .into_iter()
        .filter(|(name, _)| matches(pattern, name))
        .collect();
    json!({ "params": found })
}

/// Names whose first components match `pattern`, cut to as many; with `below` those below them too.
pub(crate) fn list(of: Of<'_>, pattern: &str, below: bool) -> Value {
    let all = of.all();
    json!({ "names": heads(pattern, below, all.iter().map(|(name, _)| name.as_str())) })
}

fn heads<'a>(pattern: &str, below: bool, names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let least = pattern.split(['.', '/']).count();
    let mut out = BTreeSet::new();
    for name in names {
        let parts: Vec<&str> = name.split('.').collect();
        let most = if below { parts.len() } else { least };
        if parts.len() >= least && matches(pattern, &parts[..least].join(".")) {
            out.extend((least..=most).map(|n| parts[..n].join(".")));
        }
    }
    out
}

/// Sets what matches; the names, or the first error.
pub(crate) async fn set(of: Of<'_>, pattern: &str, value: &str) -> Value {
    let mut done = Vec::new();
    for (name, _) in of
        .all()
        .into_iter()
        .filter(|(name, _)| matches(pattern, name))
    {
        if let Err(e) = of.set_one(&name, value).await {
            return json!({ "error": format!("{name}: {e}") });
        }
        done.push(name);
    }
    json!({ "set": done })
}

/// A name in components between dots (or slashes, as Lustre takes too); `*` stands for any text within one.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.replace('/', ".");
    let (p, n): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    p.len() == n.len()
        && p.iter()
            .zip(n)
            .all(|(p, n)| glob(p.as_bytes(), n.as_bytes()))
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // behind the last star, and how much text it stands for so far
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((after, taken)) = star {
            star = Some((after, taken + 1));
            (p, t) = (after, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_in_its_component() {
        let name = "ldlm.namespaces.coral-OST0000-osc-12.lru_size";
        for yes in [
            name,
            "ldlm.namespaces.*.lru_size",
            "*.*.*OST*.lru*",
            "ldlm/namespaces/*osc*/lru_size",
        ] {
            assert!(matches(yes, name), "{yes}");
        }
        for no in [
            "*",
            "ldlm.*",
            "ldlm.namespaces.*mdc*.lru_size",
            "ldlm.namespaces.*.lru_size.x",
            "",
        ] {
            assert!(!matches(no, name), "{no}");
        }
    }

    #[test]
    fn a_list_has_names_as_far_as_the_pattern_goes() {
        let names = [
            "osc.a-OST0000.idle_timeout",
            "osc.a-OST0000.max_dirty_mb",
            "osc.a-OST0001.idle_timeout",
            "ldlm.namespaces.x.lru_size",
        ];
        let list =
            |pattern: &str, below: bool| Vec::from_iter(heads(pattern, below, names.into_iter()));
        assert_eq!(list("*", false), ["ldlm", "osc"]);
        assert_eq!(list("osc.*", false), ["osc.a-OST0000", "osc.a-OST0001"]);
        assert_eq!(
            list("osc/*/idle*", false),
            ["osc.a-OST0000.idle_timeout", "osc.a-OST0001.idle_timeout"]
        );
        assert_eq!(
            list("osc.*1", true),
            ["osc.a-OST0001", "osc.a-OST0001.idle_timeout"]
        );
        assert!(list("osc.*.*.*", true).is_empty() && list("nothing", true).is_empty());
    }
}
