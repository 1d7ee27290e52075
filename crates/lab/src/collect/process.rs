//! Single processes: CPU time, memory, bytes.

use super::sampler::{Reading, Source};
use std::collections::BTreeSet;

const USER_HZ: f64 = 100.0;

/// Named processes, whose pids are known.
#[derive(Debug)]
pub struct Processes {
    named: Vec<(String, u32)>,
    /// Those that were there once: a command that ends is nothing that is missing.
    met: BTreeSet<u32>,
}

impl Processes {
    /// These.
    pub fn new(named: Vec<(String, u32)>) -> Processes {
        Processes {
            named,
            met: BTreeSet::new(),
        }
    }
}

impl Source for Processes {
    fn name(&self) -> String {
        "proc".into()
    }

    fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
        let mut out = vec![];
        for (name, pid) in &self.named {
            let file = |f: &str| std::fs::read_to_string(format!("/proc/{pid}/{f}")).ok();
            let Some(cpu) = file("stat").and_then(|s| cpu(name, &s)) else {
                if !self.met.contains(pid) {
                    missing.push(format!("{name} (pid {pid}) has ended"));
                }
                continue;
            };
            self.met.insert(*pid);
            out.push(cpu);
            out.extend(file("status").and_then(|s| memory(name, &s)));
            // Only the owner and root may read what a process read and wrote.
            out.extend(file("io").into_iter().flat_map(|t| io(name, &t)));
        }
        out
    }
}

fn cpu(name: &str, stat: &str) -> Option<Reading> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let f: Vec<&str> = rest.split(' ').collect();
    let n = |i: usize| f.get(i)?.parse::<f64>().ok();
    Some(Reading::counter(
        format!("{name}_cpu"),
        "core-s",
        (n(11)? + n(12)?) / USER_HZ,
    ))
}

fn memory(name: &str, status: &str) -> Option<Reading> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Reading::gauge(format!("{name}_rss"), "MiB", kib / 1024.0))
}

fn io(name: &str, text: &str) -> Vec<Reading> {
    let value = |key: &str| {
        text.lines().find_map(|l| {
            l.strip_prefix(key)?
                .strip_prefix(':')?
                .trim()
                .parse::<f64>()
                .ok()
        })
    };
    [
        ("rchar", "read", "bytes"),
        ("wchar", "written", "bytes"),
        ("syscr", "read_calls", "1"),
        ("syscw", "write_calls", "1"),
    ]
    .iter()
    .filter_map(|(key, what, unit)| {
        Some(Reading::counter(
            format!("{name}_{what}"),
            unit,
            value(key)?,
        ))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read_and_one_that_ended_is_missing() {
        let mut ends = std::process::Command::new("true").spawn().unwrap();
        let mut p = Processes::new(vec![
            ("me".into(), std::process::id()),
            ("gone".into(), u32::MAX - 1),
            ("ends".into(), ends.id()),
        ]);
        let mut missing = vec![];
        let r = p.read(&mut missing);
        let v = |n: &str| r.iter().find(|r| r.name == n).unwrap().value;
        assert!(v("me_rss") > 0.5 && v("me_cpu") >= 0.0 && v("me_read") > 0.0);
        assert_eq!(missing.len(), 1);
        assert!(missing[0].starts_with("gone"));
        ends.wait().unwrap();
        missing.clear();
        p.read(&mut missing);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].starts_with("gone"));
    }
}
