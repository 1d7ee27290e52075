//! Flock ranges: what granting a lock does to the other locks of its owner, and who waits for whom.
//!
//! Lustre: `ldlm_process_flock_lock` in `lustre/ldlm/ldlm_flock.c`. Client and server run the same arithmetic, so that
//! both keep the same locks under the same cookies without telling each other: a lock merged into an older one of the
//! same mode lives on under the older one's cookie.

use coral_wire::ldlm::LdlmMode;

/// A granted flock of the owner, named by `key`. `start` and `end` are both inside the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnLock<K> {
    /// Names the lock in the caller's table.
    pub key: K,
    /// Its mode: `PR` or `PW` in practice.
    pub mode: LdlmMode,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

/// One change to the owner's older locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit<K> {
    /// The lock now covers `start..=end`.
    Resize {
        /// Which.
        key: K,
        /// First byte.
        start: u64,
        /// Last byte.
        end: u64,
    },
    /// The lock is gone, replaced by the new one.
    Remove(K),
    /// The lock was cut in two: it keeps the upper part (a `Resize` follows or preceded), and a new lock of the same mode covers the
    /// lower part.
    Lower {
        /// The lock that was cut.
        of: K,
        /// First byte of the new lower lock.
        start: u64,
        /// Last byte of the new lower lock.
        end: u64,
    },
}

/// What granting a flock changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan<K> {
    /// Changes to older locks, in order.
    pub edits: Vec<Edit<K>>,
    /// The new lock became part of this older one and has no life of its own.
    pub merged_into: Option<K>,
}

/// Works out the changes when `mode` on `start..=end` is granted. `own`: the owner's granted locks on the resource,
/// any order. `NL` unlocks.
pub fn plan<K: Copy + PartialEq>(
    own: &[OwnLock<K>],
    mode: LdlmMode,
    mut start: u64,
    mut end: u64,
) -> Plan<K> {
    let mut own: Vec<_> = own.to_vec();
    own.sort_by_key(|l| l.start);
    let mut out = Plan {
        edits: Vec::new(),
        merged_into: None,
    };
    for l in own {
        if l.mode == mode {
            let touches = l.start <= end.saturating_add(1) && l.end.saturating_add(1) >= start;
            if touches {
                start = start.min(l.start);
                end = end.max(l.end);
                match out.merged_into {
                    None => out.merged_into = Some(l.key),
                    Some(_) => out.edits.push(Edit::Remove(l.key)),
                }
            }
            continue;
        }
        if l.end < start || l.start > end {
            continue;
        }
        if start <= l.start {
            out.edits.push(if end < l.end {
                Edit::Resize {
                    key: l.key,
                    start: end + 1,
                    end: l.end,
                }
            } else {
                Edit::Remove(l.key)
            });
        } else if end >= l.end {
            out.edits.push(Edit::Resize {
                key: l.key,
                start: l.start,
                end: start - 1,
            });
        } else {
            out.edits.push(Edit::Lower {
                of: l.key,
                start: l.start,
                end: start - 1,
            });
            out.edits.push(Edit::Resize {
                key: l.key,
                start: end + 1,
                end: l.end,
            });
        }
    }
    if let Some(key) = out.merged_into {
        out.edits.push(Edit::Resize { key, start, end });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    const NL: LdlmMode = LdlmMode::NL;
    const PR: LdlmMode = LdlmMode::PR;
    const PW: LdlmMode = LdlmMode::PW;
    use proptest::prelude::*;

    fn own(key: u32, mode: LdlmMode, start: u64, end: u64) -> OwnLock<u32> {
        OwnLock {
            key,
            mode,
            start,
            end,
        }
    }

    #[test]
    fn unlocking_the_middle_splits() {
        let p = plan(&[own(1, PW, 0, 99)], NL, 40, 59);
        assert_eq!(
            p.edits,
            [
                Edit::Lower {
                    of: 1,
                    start: 0,
                    end: 39
                },
                Edit::Resize {
                    key: 1,
                    start: 60,
                    end: 99
                }
            ]
        );
        assert_eq!(p.merged_into, None);
    }

    #[test]
    fn same_mode_neighbours_merge_into_the_oldest_range() {
        let p = plan(&[own(1, PR, 0, 9), own(2, PR, 20, 29)], PR, 10, 19);
        assert_eq!(p.merged_into, Some(1));
        assert_eq!(
            p.edits,
            [
                Edit::Remove(2),
                Edit::Resize {
                    key: 1,
                    start: 0,
                    end: 29
                }
            ]
        );
    }

    #[test]
    fn another_mode_does_not_merge_with_a_neighbour() {
        assert_eq!(
            plan(&[own(1, PR, 0, 9)], PW, 10, 19),
            Plan {
                edits: vec![],
                merged_into: None
            }
        );
    }

    #[test]
    fn whole_file_unlock_removes_all() {
        let p = plan(
            &[own(1, PR, 0, 9), own(2, PW, 20, u64::MAX)],
            NL,
            0,
            u64::MAX,
        );
        assert_eq!(p.edits, [Edit::Remove(1), Edit::Remove(2)]);
    }

    proptest! {
        /// The plan agrees with a map from byte to mode, and never leaves overlapping or unmerged locks behind.
        #[test]
        fn agrees_with_a_byte_map(ops in prop::collection::vec((0u64..32, 0u64..12, 0u8..3), 1..40)) {
            let mut map = [None::<LdlmMode>; 64];
            let mut locks: Vec<OwnLock<u32>> = Vec::new();
            let mut next = 0;
            for (start, len, m) in ops {
                let (mode, end) = ([NL, PR, PW][m as usize], start + len);
                for b in start..=end {
                    map[b as usize] = (mode != NL).then_some(mode);
                }
                let p = plan(&locks, mode, start, end);
                for e in p.edits {
                    match e {
                        Edit::Remove(k) => locks.retain(|l| l.key != k),
                        Edit::Resize { key, start, end } => {
                            let l = locks.iter_mut().find(|l| l.key == key).unwrap();
                            (l.start, l.end) = (start, end);
                        }
                        Edit::Lower { of, start, end } => {
                            let mode = locks.iter().find(|l| l.key == of).unwrap().mode;
                            next += 1;
                            locks.push(OwnLock { key: next, mode, start, end });
                        }
                    }
                }
                if mode != NL && p.merged_into.is_none() {
                    next += 1;
                    locks.push(OwnLock { key: next, mode, start, end });
                }
                let mut seen = [None::<LdlmMode>; 64];
                for l in &locks {
                    for b in l.start..=l.end {
                        prop_assert!(seen[b as usize].is_none(), "byte {b} is covered twice");
                        seen[b as usize] = Some(l.mode);
                    }
                }
                prop_assert_eq!(seen, map);
            }
        }
    }
}
