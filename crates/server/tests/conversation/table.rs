//! The table of known differences: `data/differences-*.txt`.
//!
//! A line is a pattern, ` | `, a reason. A pattern is what a difference is called, `*` standing for anything and `{A,B}` for
//! each of A and B; with `@OPERATION ` in front it counts for that operation of the session only.
//! Empty lines and lines that begin with `#` say nothing.

use super::compare::Difference;
use std::collections::BTreeMap;

pub struct Table {
    /// Operation or none, pattern.
    patterns: Vec<(Option<String>, String)>,
    used: Vec<usize>,
    unlisted: BTreeMap<String, Vec<String>>,
}

/// What a pattern with `{A,B}` stands for.
fn each(pattern: &str) -> Box<dyn Iterator<Item = String> + '_> {
    let braces = pattern
        .split_once('{')
        .and_then(|(head, rest)| rest.split_once('}').map(|(list, tail)| (head, list, tail)));
    match braces {
        None => Box::new(std::iter::once(pattern.to_string())),
        Some((head, list, tail)) => Box::new(list.split(',').flat_map(move |one| {
            each(tail)
                .map(move |t| format!("{head}{one}{t}"))
                .collect::<Vec<_>>()
        })),
    }
}

/// Whether `text` is what `pattern` says.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            (0..=text.len()).any(|i| text.is_char_boundary(i) && matches(rest, &text[i..]))
        }),
    }
}

impl Table {
    pub fn read(text: &str) -> Table {
        let mut t = Table {
            patterns: Vec::new(),
            used: Vec::new(),
            unlisted: BTreeMap::new(),
        };
        for line in text
            .lines()
            .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
        {
            let (pattern, _) = line
                .split_once(" | ")
                .unwrap_or_else(|| panic!("no reason in: {line}"));
            let pattern = pattern.trim();
            if let Some((op, what)) = pattern.strip_prefix('@').and_then(|p| p.split_once(' ')) {
                t.patterns
                    .extend(each(op).flat_map(|op| each(what).map(move |w| (Some(op.clone()), w))));
            } else {
                t.patterns.extend(each(pattern).map(|w| (None, w)));
            }
        }
        t.used = vec![0; t.patterns.len()];
        t
    }

    /// Takes one difference: listed, or to be told at the end.
    pub fn take(&mut self, operation: &str, d: &Difference) {
        let mut listed = false;
        for ((op, pattern), used) in self.patterns.iter().zip(&mut self.used) {
            if op.as_ref().is_none_or(|o| o == operation) && matches(pattern, &d.what) {
                *used += 1;
                listed = true;
            }
        }
        if !listed {
            let cut = |s: &str| s.chars().take(300).collect::<String>();
            self.unlisted
                .entry(format!("@{operation} {}", d.what))
                .or_default()
                .push(format!("{}  ->  {}", cut(&d.theirs), cut(&d.ours)));
        }
    }

    /// What fails the test: differences that are not listed, listed ones that do not occur.
    pub fn verdict(&self, operations: &[String]) -> Vec<String> {
        let mut out = Vec::new();
        for (what, seen) in &self.unlisted {
            out.push(format!(
                "not listed, {} times: {what}: {}",
                seen.len(),
                seen[0]
            ));
        }
        for ((op, pattern), _) in self
            .patterns
            .iter()
            .zip(&self.used)
            .filter(|(_, n)| **n == 0)
        {
            let at = op.as_ref().map(|o| format!("@{o} ")).unwrap_or_default();
            out.push(format!("listed and does not occur any more: {at}{pattern}"));
        }
        for op in self
            .patterns
            .iter()
            .filter_map(|(o, _)| o.as_ref())
            .filter(|o| !operations.contains(o))
        {
            out.push(format!("no such operation: {op}"));
        }
        out
    }

    /// Differences met that are listed.
    pub fn listed(&self) -> usize {
        self.used.iter().sum()
    }
}
