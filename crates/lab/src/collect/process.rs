//! Single processes, each with those that it has started: CPU time, memory, bytes.

use super::sampler::{Reading, Source};
use std::collections::{BTreeMap, BTreeSet};

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
        let mut out: Vec<Reading> = vec![];
        let children = children();
        for (name, pid) in &self.named {
            let all: Vec<Reading> = (family(*pid, &children).into_iter())
                .flat_map(|pid| of_process(name, pid))
                .collect();
            if all.is_empty() {
                if !self.met.contains(pid) {
                    missing.push(format!("{name} (pid {pid}) has ended"));
                }
                continue;
            }
            self.met.insert(*pid);
            for r in all {
                match out.iter_mut().find(|o| o.name == r.name) {
                    Some(same) => same.value += r.value,
                    None => out.push(r),
                }
            }
        }
        out
    }
}

/// Processes by who started them.
fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut all: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()) {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let parent = stat.ok().and_then(|s| {
            let (_, rest) = s.rsplit_once(") ")?;
            rest.split(' ').nth(1)?.parse().ok()
        });
        all.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    all
}

/// A process, and the processes that it and those have started and that go on.
fn family(pid: u32, children: &BTreeMap<u32, Vec<u32>>) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let own = children.get(pid).map_or(&[][..], Vec::as_slice);
        // a number may have been given anew while they were listed
        let new: Vec<u32> = own.iter().copied().filter(|p| !all.contains(p)).collect();
        all.extend(new);
        next += 1;
    }
    all
}

/// What one process has used; nothing of one that has ended.
fn of_process(name: &str, pid: u32) -> Vec<Reading> {
    let file = |f: &str| std::fs::read_to_string(format!("/proc/{pid}/{f}")).ok();
    let Some(cpu) = file("stat").and_then(|s| cpu(name, &s)) else {
        return vec![];
    };
    let mut out = vec![cpu];
    out.extend(file("status").and_then(|s| memory(name, &s)));
    // Only the owner and root may read what a process read and wrote.
    out.extend(file("io").into_iter().flat_map(|t| io(name, &t)));
    out
}

/// With what those used that it has waited for; so has `io`.
fn cpu(name: &str, stat: &str) -> Option<Reading> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let f: Vec<&str> = rest.split(' ').collect();
    let n = |i: usize| f.get(i)?.parse::<f64>().ok();
    Some(Reading::counter(
        format!("{name}_cpu"),
        "core-s",
        (n(11)? + n(12)? + n(13)? + n(14)?) / USER_HZ,
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

    /// A shell that has had a child read, and has one that goes on whose child has read as much.
    #[test]
    fn what_children_read_counts() {
        const READ: f64 = 4e6;
        let body = "exec 3<&0; head -c 4000000 /dev/zero > /dev/null; head -c 4000000 /dev/zero | (cat > /dev/null; echo; read x <&3)";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", body]);
        let piped = std::process::Stdio::piped;
        let mut shell = shell.stdin(piped()).stdout(piped()).spawn().unwrap();
        let mut said = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
        let all = Processes::new(vec![("sh".into(), shell.id())]).read(&mut vec![]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        let read = all.iter().find(|r| r.name == "sh_read").unwrap().value;
        assert!(read >= 2.0 * READ, "head, and cat: {read}");
    }

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
