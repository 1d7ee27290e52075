//! Caches and CPU time of the machine.

use std::process::Command;

/// Writes back and drops the page cache; without the right to, rows called cold are warm, and it says so.
pub(super) fn drop_caches() {
    let _ = Command::new("sync").status();
    if let Err(e) = std::fs::write("/proc/sys/vm/drop_caches", "3") {
        eprintln!("xtask: cannot drop caches ({e}): the rows called cold are warm");
    }
}

/// Drops the page cache and puts free memory together. In what builds and removed files leave of it, a cache with pages of
/// 4 KiB lies scattered, and is read more slowly, whichever file system it belongs to.
pub(super) fn compact_memory() {
    drop_caches();
    if let Err(e) = std::fs::write("/proc/sys/vm/compact_memory", "1") {
        eprintln!("xtask: cannot compact memory ({e}): files read again may lie scattered");
    }
}

/// Has the host back so much free memory, MiB. A virtual machine may have told its host of free pages, and the first touch of one then
/// costs several times the copy into it: who writes a file first would pay for what who comes next is given.
pub(super) fn warm_memory(mib: usize) {
    let mut memory = Vec::new();
    if memory.try_reserve_exact(mib << 20).is_ok() {
        memory.resize(mib << 20, 1u8);
        std::hint::black_box(&memory);
    }
}

/// Clock ticks a second in /proc/PID/stat (USER_HZ is 100 on every Linux port we build for).
pub(super) const USER_HZ: f64 = 100.0;

/// CPU seconds a process has used.
pub(crate) fn process_cpu(pid: u32) -> f64 {
    stat_fields(&format!("/proc/{pid}/stat"), 11..13)
}

/// CPU seconds of the children this process has waited for.
pub(super) fn children_cpu() -> f64 {
    stat_fields("/proc/self/stat", 13..15)
}

/// Sum of fields counted from the one after the command name (state is 0), in seconds.
fn stat_fields(path: &str, fields: std::ops::Range<usize>) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let rest = text.rsplit_once(") ").map_or("", |(_, r)| r);
    let all: Vec<f64> = rest.split(' ').map(|f| f.parse().unwrap_or(0.0)).collect();
    all.get(fields)
        .map_or(0.0, |f| f.iter().sum::<f64>() / USER_HZ)
}
