//! Bytes and calls as the kernel counts them for this process. Alone in its file: nothing else may run beside it.

mod common;

use common::{good, place};
use std::collections::BTreeMap;

/// `/proc/self/io`.
fn counted() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string("/proc/self/io").expect("the kernel counts");
    let lines = text.lines().filter_map(|l| l.split_once(": "));
    lines
        .map(|(k, v)| (k.to_owned(), v.parse().expect("a number")))
        .collect()
}

/// What a run adds to the counts.
fn added(dir: &tempfile::TempDir, line: &str) -> BTreeMap<String, u64> {
    let before = counted();
    good(dir, line);
    let after = counted();
    after
        .into_iter()
        .map(|(k, v)| (k.clone(), v - before[&k]))
        .collect()
}

#[test]
fn the_kernel_counts_the_bytes_and_calls_that_are_said() {
    let dir = place();
    let line =
        |api: &str, how: &str| format!("ior --np 4 -a {api} {how} -F -t 4k -b 1m -s 2 -k -o DIR/f");
    // the first run reads the time zone and other things once
    good(&dir, &line("POSIX", "-w -r"));
    for (how, bytes, calls) in [("-w", "wchar", "syscw"), ("-r", "rchar", "syscr")] {
        // the same run without files: what remains is the reading of the counts
        let idle = added(&dir, &line("DUMMY", how));
        let real = added(&dir, &line("POSIX", how));
        assert_eq!(
            real[bytes].abs_diff(idle[bytes]),
            8 << 20,
            "{how}: {real:?} {idle:?}"
        );
        assert_eq!(real[calls] - idle[calls], 2048, "{how}: {real:?} {idle:?}");
    }
}
