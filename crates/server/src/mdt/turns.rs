//! Whose turn it is among targets of unequal room (`lustre/lod/lod_qos.c`).
//!
//! Lustre draws lots with penalties for what was taken lately; here each target earns its weight and pays when it is taken, which
//! gives the same shares without luck.

use std::collections::BTreeMap;

/// Who was taken how often.
#[derive(Debug, Default)]
pub(super) struct Turns {
    credit: BTreeMap<u32, i128>,
    turn: usize,
}

impl Turns {
    /// Takes `count` of these targets, which are in order, each with its weight: smooth weighted round robin. The richest are
    /// taken, and follow each other in the order of targets from the first one.
    pub fn take(&mut self, targets: &[(u32, i128)], count: usize) -> Vec<u32> {
        let count = count.min(targets.len());
        if count == 0 {
            return Vec::new();
        }
        let total: i128 = targets.iter().map(|(_, weight)| weight).sum();
        for (index, weight) in targets {
            *self.credit.entry(*index).or_default() += weight * count as i128;
        }
        let mut order: Vec<usize> = (0..targets.len()).collect();
        order.sort_by_key(|&i| (-self.credit[&targets[i].0], i));
        let start = if count == targets.len() {
            self.turn % count
        } else {
            order[0]
        };
        self.turn = self.turn.wrapping_add(1);
        order.truncate(count);
        order.sort_by_key(|&i| (i + targets.len() - start) % targets.len());
        for &i in &order {
            *self.credit.entry(targets[i].0).or_default() -= total;
        }
        order.into_iter().map(|i| targets[i].0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_weights() {
        let (mut turns, targets) = (Turns::default(), [(1, 3), (4, 1), (7, 0)]);
        let mut taken = BTreeMap::new();
        for _ in 0..40 {
            for t in turns.take(&targets, 1) {
                *taken.entry(t).or_insert(0) += 1;
            }
        }
        assert_eq!(taken, BTreeMap::from([(1, 30), (4, 10)]));
    }

    #[test]
    fn equals_take_turns_in_order() {
        let (mut turns, targets) = (Turns::default(), [(1, 1), (2, 1), (3, 1)]);
        let all: Vec<_> = (0..3).map(|_| turns.take(&targets, 2)).collect();
        assert_eq!(all, [vec![1, 2], vec![3, 1], vec![2, 3]]);
        assert_eq!(turns.take(&targets, 9).len(), 3);
        assert!(turns.take(&[], 2).is_empty());
    }
}
