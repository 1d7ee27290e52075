//! What a result depends on besides the experiment: the machine, the programs, the command line.

use super::process::{find_program, output};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|t| t.trim().to_owned())
}

/// The value of a `key : value` line.
fn field(text: &str, key: &str) -> Option<String> {
    text.lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(k, _)| k.trim() == key)
        .map(|(_, v)| v.trim().to_owned())
}

/// This machine now. `coral` is the program that is measured, `programs` are others whose versions matter.
pub fn environment(coral: &Path, programs: &[String], command_line: &[String]) -> Value {
    let cpu = read("/proc/cpuinfo").unwrap_or_default();
    let mem = read("/proc/meminfo").unwrap_or_default();
    let flags = field(&cpu, "flags").unwrap_or_default();
    let os = read("/etc/os-release").and_then(|t| {
        t.lines().find_map(|l| {
            l.strip_prefix("PRETTY_NAME=")
                .map(|v| v.trim_matches('"').to_owned())
        })
    });
    json!({
        "command_line": command_line,
        "host": read("/proc/sys/kernel/hostname"),
        "os": os,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "kernel_build": read("/proc/sys/kernel/version"),
        "cpu": field(&cpu, "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "virtual_machine": flags.split(' ').any(|f| f == "hypervisor"),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory": field(&mem, "MemTotal"),
        "load_average_before": read("/proc/loadavg"),
        "transparent_hugepages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "tcp_rmem": read("/proc/sys/net/ipv4/tcp_rmem"),
        "tcp_wmem": read("/proc/sys/net/ipv4/tcp_wmem"),
        "congestion_control": read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "coral": {
            "version": env!("CARGO_PKG_VERSION"),
            "build": if cfg!(debug_assertions) { "debug: slower than a release build" } else { "release" },
            "path": coral,
            "bytes": std::fs::metadata(coral).map(|m| m.len()).ok(),
            "commit": commit(coral),
        },
        "programs": programs.iter().map(|p| (p.clone(), json!(version(p)))).collect::<serde_json::Map<_, _>>(),
    })
}

/// The commit of the checkout that the program lies in, with a mark when files of it were changed; none outside of one.
fn commit(coral: &Path) -> Option<String> {
    let dir = coral.parent()?;
    let git = |args: &[&str]| output(Command::new("git").arg("-C").arg(dir).args(args)).ok();
    let head = git(&["rev-parse", "HEAD"])?.trim().to_owned();
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
    Some(if changed {
        head + " with changes"
    } else {
        head
    })
}

/// First line of `PROGRAM --version`.
fn version(program: &str) -> Option<String> {
    find_program(program)?;
    let said = output(Command::new(program).arg("--version")).ok()?;
    said.lines().next().map(str::to_owned)
}

/// What of two environments differs and may change a result: one line each.
pub(crate) fn differences(before: &Value, now: &Value) -> Vec<String> {
    let keys = [
        "host",
        "kernel",
        "kernel_build",
        "cpu",
        "cpus",
        "memory",
        "governor",
        "programs",
    ];
    let top = keys.iter().map(|k| (*k, &before[*k], &now[*k]));
    let coral = ["version", "build", "bytes", "commit"]
        .iter()
        .map(|k| (*k, &before["coral"][*k], &now["coral"][*k]));
    let line =
        |(k, a, b): (&str, &Value, &Value)| (a != b).then(|| format!("{k}: {a} before, {b} now"));
    // What an earlier version has written does not name the place.
    let place = [("place", &before["place"], &now["place"])];
    let place = place.into_iter().filter(|(_, before, _)| !before.is_null());
    let all = top.chain(place).chain(coral);
    all.filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_and_changes_are_named() {
        let e = environment(
            Path::new("/proc/self/exe"),
            &["sh".into(), "no-such-program".into()],
            &["coral".into()],
        );
        for key in ["kernel", "memory", "host"] {
            assert!(e[key].as_str().is_some_and(|v| !v.is_empty()), "{key}: {e}");
        }
        assert!(e["cpus"].as_u64() >= Some(1));
        assert!(e["programs"]["no-such-program"].is_null());
        assert_eq!(differences(&e, &e), Vec::<String>::new());
        let mut other = e.clone();
        other["kernel"] = json!("9.9");
        other["coral"]["commit"] = json!("abc");
        other["load_average_before"] = json!("another one");
        let d = differences(&e, &other);
        assert_eq!(d.len(), 2, "{d:?}");
        assert!(d[0].starts_with("kernel: ") && d[0].ends_with("\"9.9\" now"));
    }
}
