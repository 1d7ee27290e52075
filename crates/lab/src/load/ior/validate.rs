//! What IOR refuses before it starts, in its words.

use super::params::Params;

/// The first thing that is wrong, and warnings before it. Resets what the original resets.
pub(super) fn validate(p: &mut Params) -> (Vec<String>, Option<&'static str>) {
    let mut warnings = Vec::new();
    if p.repetitions <= 0 {
        p.repetitions = 1;
        warnings.push("too few test repetitions. Using value of 1.".to_owned());
    }
    if p.delay_s < 0 {
        p.delay_s = 0;
        warnings.push("inter-test delay must be nonnegative value. Using value of 0.".to_owned());
    }
    if p.read == 0 && p.write == 0 && p.check_read == 0 && p.check_write == 0 {
        (p.read, p.write) = (1, 1);
    }
    (warnings, first_wrong(p))
}

#[rustfmt::skip]
fn first_wrong(p: &Params) -> Option<&'static str> {
    let status = !p.status_file.is_empty();
    let shared = p.file_per_proc == 0;
    let rules: [(bool, &str); 21] = [
        (status && p.keep == 0, "a StoneWallingStatusFile is only sensible when splitting write/read into multiple executions of ior, please use -k"),
        (status && p.wear_out == 0 && p.write != 0, "the StoneWallingStatusFile is only sensible for a write test when using  stoneWallingWearOut"),
        (p.deadline_s == 0 && p.wear_out > 0, "the stoneWallingWearOut is only sensible when setting a stonewall deadline with -D"),
        (p.num_tasks <= 0, "too few tasks for testing"),
        (p.signature == 0 && p.write == 0 && p.check_read != 0, "using readCheck only requires to write a timeStampSignature -- use -G"),
        (p.segments < 0, "segment count must be positive value"),
        (p.block_size % 8 != 0, "block size must be a multiple of access size"),
        (p.block_size < 0, "block size must be non-negative integer"),
        (p.transfer_size % 8 != 0, "transfer size must be a multiple of access size"),
        (p.transfer_size < 0, "transfer size must be non-negative integer"),
        (p.transfer_size == 0, "test will not complete with zero transfer size"),
        (p.transfer_size > 0 && p.block_size % p.transfer_size != 0, "block size must be a multiple of transfer size"),
        (p.block_size < p.transfer_size, "block size must not be smaller than transfer size"),
        (p.random_offset == 1 && p.block_size == p.transfer_size, "IOR will randomize access within a block and repeats the same pattern for all segments, therefore choose blocksize > transferSize"),
        (p.random_offset == 0 && p.prefill != 0, "Setting the randomPrefill option without using random is not useful"),
        (p.prefill != 0 && (p.prefill < 0 || p.block_size % p.prefill != 0), "The randomPrefill option must divide the blockSize"),
        (p.reorder == 1 && p.reorder_random == 1, "Both Constant and Random task re-ordering specified. Choose one and resubmit"),
        (p.random_offset != 0 && p.reorder_random != 0 && shared, "random offset and random reorder tasks specified with single-shared-file. Choose one and resubmit"),
        (p.random_offset != 0 && p.reorder != 0 && shared, "random offset and constant reorder tasks specified with single-shared-file. Choose one and resubmit"),
        (p.random_offset != 0 && p.check_read != 0 && p.random_seed == -1, "random offset with read check option requires to set the random seed"),
        (p.deadline_s < 0 || p.min_time_s < 0, "times must be non-negative"),
    ];
    rules.into_iter().find(|(wrong, _)| *wrong).map(|(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut Params)) -> Option<&'static str> {
        let mut p = Params {
            num_tasks: 1,
            ..Params::default()
        };
        change(&mut p);
        validate(&mut p).1
    }

    #[test]
    fn the_traps_of_the_studies_are_refused() {
        assert_eq!(wrong(|_| {}), None);
        // a block of 2 KB with the transfers that are the default
        let why = wrong(|p| p.block_size = 2048).expect("refused");
        assert_eq!(why, "block size must be a multiple of transfer size");
        assert!(wrong(|p| p.wear_out = 1).is_some());
        assert!(wrong(|p| (p.reorder, p.reorder_random) = (1, 1)).is_some());
        assert!(wrong(|p| p.check_read = 1).is_some());
        assert!(wrong(|p| p.transfer_size = 0).is_some());
        assert!(wrong(|p| (p.random_offset, p.block_size) = (1, 1 << 18)).is_some());
        assert!(wrong(|p| p.status_file = "x".into()).is_some());
    }

    #[test]
    fn without_a_phase_both_are_run() {
        let mut p = Params {
            num_tasks: 1,
            repetitions: 0,
            ..Params::default()
        };
        let (warnings, wrong) = validate(&mut p);
        assert_eq!((p.read, p.write, p.repetitions), (1, 1, 1));
        assert_eq!((warnings.len(), wrong), (1, None));
    }
}
