//! Whether this host has the memory that a command line asks for.
//!
//! An allocator promises memory long before it is there, and the kernel ends a program that uses what was promised: so what is asked
//! for is compared with what the host has before it is taken.

use super::failed::Failed;
use std::path::Path;

/// Refuses what no memory of this host can hold: `bytes` for `what`, as in "a buffer of 5 bytes", on each of `ranks` ranks here.
pub(crate) fn fits(what: &str, bytes: u64, ranks: u64) -> Result<(), Failed> {
    let read = |p: &Path| std::fs::read_to_string(p).ok();
    match room(&read) {
        Some(room) if bytes.saturating_mul(ranks) > room => {
            let all = bytes.saturating_mul(ranks);
            Err(Failed::Refused(format!(
                "there is no memory for {what} on each of {ranks} ranks here: that is {all} bytes, and this host has {room}; give a smaller size or fewer ranks"
            )))
        }
        _ => Ok(()),
    }
}

/// Bytes of memory that this process can have: those of the host, or less where a control group above it has less.
fn room(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let info = read(Path::new("/proc/meminfo"))?;
    let total = info.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|l| l.strip_prefix("0::/"));
    let own = Path::new("/sys/fs/cgroup").join(own.unwrap_or_default());
    let above = own.ancestors().map(|g| g.join("memory.max"));
    // Without a limit the file says "max".
    let limits = above.filter_map(|f| read(&f)?.trim().parse().ok());
    limits.chain([kib.saturating_mul(1024)]).min()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Bytes that this host has.
    pub(crate) fn has() -> u64 {
        room(&|p| std::fs::read_to_string(p).ok()).unwrap()
    }

    #[test]
    fn the_smallest_limit_counts() {
        let host = |limit: &'static str, group: &'static str| {
            room(&|p| match p.to_str()? {
                "/proc/meminfo" => Some("MemFree: 1 kB\nMemTotal:  4096 kB\n".into()),
                "/proc/self/cgroup" => Some(group.into()),
                "/sys/fs/cgroup/a/memory.max" => Some(limit.into()),
                "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".into()),
                _ => None,
            })
        };
        assert_eq!(host("1048576\n", "0::/a/b\n"), Some(1 << 20));
        assert_eq!(host("8388608\n", "0::/a/b\n"), Some(4 << 20));
        assert_eq!(host("1048576\n", "0::/\n"), Some(4 << 20));
        assert_eq!(host("1048576\n", "5:memory:/a\n"), Some(4 << 20));
        assert_eq!(room(&|_| None), None);
    }

    #[test]
    fn what_the_host_cannot_hold_is_refused_with_both_numbers() {
        let (has, more) = (has(), 1 << 30);
        let why = fits("it", has + more, 1).unwrap_err().to_string();
        let numbers = format!("{} bytes, and this host has {has};", has + more);
        assert!(why.contains(&numbers), "{why}");
        let why = fits("it", has / 2 + more, 2).unwrap_err().to_string();
        assert!(why.contains("for it on each of 2 ranks here"), "{why}");
        assert!(fits("it", has / 2, 2).is_ok());
        assert!(fits("it", u64::MAX, u64::MAX).is_err());
    }
}
