//! Every fuzz target for a moment: other inputs in each run, unless `CORAL_SEED` is given.

use coral_fuzz::{TARGETS, run};
use std::time::Duration;

/// For each target.
const MOMENT: Duration = Duration::from_millis(300);

#[test]
fn every_target_for_a_moment() {
    let seed = std::env::var("CORAL_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(run::fresh_seed);
    for target in TARGETS {
        let count = run::campaign(target, MOMENT, seed);
        println!("{}: {count} inputs; CORAL_SEED={seed}", target.name);
        assert!(count > 0);
    }
}

#[test]
fn an_input_is_repeated_by_its_seed() {
    use std::sync::Mutex;
    static SEEN: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    let target = coral_fuzz::Target {
        name: "bytes",
        size_max: 64,
        property: |u| {
            let all = u.peek_bytes(u.len()).unwrap_or_default().to_vec();
            SEEN.lock().unwrap().push(all);
            Ok(())
        },
    };
    run::one(&target, 0x1234_0000_0020);
    run::one(&target, 0x1234_0000_0020);
    run::one(&target, 0x1235_0000_0020);
    let seen = SEEN.lock().unwrap();
    assert!(seen[0] == seen[1] && seen[0] != seen[2] && seen[0].len() == 0x20);
}

#[test]
fn what_fails_hangs_or_grows_is_found() {
    let found = |property| {
        let target = coral_fuzz::Target {
            name: "bad",
            size_max: 64,
            property,
        };
        let panic = std::panic::catch_unwind(|| run::one(&target, 0x40)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    assert_eq!(
        found(|_| panic!("oh")),
        "bad failed; run it again: cargo xtask fuzz bad --seed 0x0000000000000040"
    );
    let grown = found(|_| {
        std::hint::black_box(vec![1u8; 2 * run::MEMORY_MAX_BYTES]);
        Ok(())
    });
    assert!(grown.starts_with("bad held 134"), "{grown}");
}
