//! `lctl get_param` and `set_param` of a mount, on the side of the process that has it.

use coral_client::llite::Llite;
use serde_json::{Value, json};
use std::sync::Arc;

/// What a process without a mount answers.
pub(crate) fn none() -> Value {
    json!({ "params": [], "set": [] })
}

/// Names and values of what matches `pattern`.
pub(crate) fn get(llite: &Llite, pattern: &str) -> Value {
    let found: Vec<_> = llite.params().into_iter().filter(|(name, _)| matches(pattern, name)).collect();
    json!({ "params": found })
}

/// Sets what matches; the names, or the first error.
pub(crate) async fn set(llite: &Arc<Llite>, pattern: &str, value: &str) -> Value {
    let mut done = Vec::new();
    for (name, _) in llite.params().into_iter().filter(|(name, _)| matches(pattern, name)) {
        if let Err(e) = llite.set_param(&name, value).await {
            return json!({ "error": format!("{name}: {e}") });
        }
        done.push(name);
    }
    json!({ "set": done })
}

/// A name in components between dots (or slashes, as Lustre takes too); `*` stands for any text within one.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.replace('/', ".");
    let (p, n): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    p.len() == n.len() && p.iter().zip(n).all(|(p, n)| glob(p.as_bytes(), n.as_bytes()))
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
        for yes in [name, "ldlm.namespaces.*.lru_size", "*.*.*OST*.lru*", "ldlm/namespaces/*osc*/lru_size"] {
            assert!(matches(yes, name), "{yes}");
        }
        for no in ["*", "ldlm.*", "ldlm.namespaces.*mdc*.lru_size", "ldlm.namespaces.*.lru_size.x", ""] {
            assert!(!matches(no, name), "{no}");
        }
    }
}
