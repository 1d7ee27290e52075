//! Wake-ups of a process.

/// How often the threads of a process went to sleep, and so were woken: their voluntary switches, as the kernel counts them.
/// Threads that have ended are not in it.
pub fn wakeups(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let of = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse::<u64>().ok()
    };
    threads.into_iter().flatten().flatten().filter_map(of).sum()
}
