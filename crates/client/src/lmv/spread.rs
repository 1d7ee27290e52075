//! Which MDT gets a new directory that may lie on any: round robin, or by free space where the MDTs are uneven.
//!
//! Pure: space and wishes in, an index out. Lustre: `lmv_locate_tgt_qos`, `lmv_locate_tgt_rr` and `lmv_locate_tgt_by_space` in
//! `lustre/lmv/lmv_obd.c`, `lustre/obdclass/lu_tgt_descs.c`. Lustre draws lots with penalties for what was taken lately; here each
//! MDT earns its weight and pays when it is taken, which gives the same shares without luck.

use std::collections::BTreeMap;

/// Imbalance from which space weighs, of 256 (`qos_threshold_rr` of LMV, 5%).
const THRESHOLD: u128 = 5 * 256 / 100;

/// What an MDT has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MdtSpace {
    /// Its index.
    pub index: u32,
    /// Free space for ordinary writers, bytes.
    pub avail_bytes: u64,
    /// Inodes that can be made.
    pub free_inodes: u64,
}

impl MdtSpace {
    /// Bytes and inodes in the units that Lustre compares.
    fn parts(&self) -> (u128, u128) {
        (
            (self.avail_bytes >> 16).into(),
            (self.free_inodes >> 8).into(),
        )
    }

    fn weight(&self) -> u128 {
        let (bytes, inodes) = self.parts();
        bytes * inodes
    }
}

/// What is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// MDT of the parent directory.
    pub home: u32,
    /// How deep the parent lies below the root, or below the directory whose default it has.
    pub depth: u32,
    /// Its default says round robin, or it is the root.
    pub round_robin: bool,
    /// A user asked for any MDT (`lfs mkdir -i -1`), so that the parent's is no better than others.
    pub anywhere: bool,
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct Spread {
    next: u32,
    credit: BTreeMap<u32, i128>,
}

impl Spread {
    /// The MDT of a new directory. `mdts`: those that can be used, by index; with none it is the parent's.
    pub fn choose(&mut self, mdts: &[MdtSpace], wish: &Wish) -> u32 {
        let roomy: Vec<&MdtSpace> = mdts.iter().filter(|m| m.weight() > 0).collect();
        let home = roomy.iter().find(|m| m.index == wish.home);
        match (roomy.is_empty(), home) {
            (true, _) => wish.home,
            _ if even(&roomy) => match home {
                Some(_) if !wish.round_robin && !wish.anywhere => wish.home,
                _ => self.turn(&roomy),
            },
            // directories far down stay where they are unless that is rather full
            (_, Some(home)) if !wish.round_robin && home.weight() >= enough(&roomy, wish.depth) => {
                wish.home
            }
            _ => self.weighted(&roomy),
        }
    }

    /// The next one.
    fn turn(&mut self, mdts: &[&MdtSpace]) -> u32 {
        let later = mdts.iter().find(|m| m.index >= self.next);
        let taken = later.or(mdts.first()).map_or(0, |m| m.index);
        self.next = taken + 1;
        taken
    }

    /// Each MDT earns its weight; the richest is taken and pays for all.
    fn weighted(&mut self, mdts: &[&MdtSpace]) -> u32 {
        let total: u128 = mdts.iter().map(|m| m.weight()).sum();
        // shares of this many keep the sums small, whatever the sizes
        const SHARES: u128 = 1 << 32;
        let share = |m: &MdtSpace| (m.weight() / (total / SHARES + 1)) as i128;
        for m in mdts {
            *self.credit.entry(m.index).or_default() += share(m);
        }
        let all: i128 = mdts.iter().map(|m| share(m)).sum();
        let credit = |m: &MdtSpace| self.credit.get(&m.index).copied().unwrap_or(0);
        let richest = mdts
            .iter()
            .max_by_key(|m| (credit(m), std::cmp::Reverse(m.index)));
        let taken = richest.map_or(0, |m| m.index);
        *self.credit.entry(taken).or_default() -= all;
        taken
    }
}

/// All have about the same space and inodes.
fn even(mdts: &[&MdtSpace]) -> bool {
    let close = |of: fn(&(u128, u128)) -> u128| {
        let all = mdts.iter().map(|m| of(&m.parts()));
        let (least, most) = (all.clone().min().unwrap_or(0), all.max().unwrap_or(0));
        most * (256 - THRESHOLD) / 256 < least
    };
    close(|p| p.0) && close(|p| p.1)
}

/// With that much a parent's MDT is good for what is made so deep down.
fn enough(mdts: &[&MdtSpace], depth: u32) -> u128 {
    let total: u128 = mdts.iter().map(|m| m.weight()).sum();
    total * 16 / (mdts.len() as u128 * (u128::from(depth) + 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn mdts(gib: &[u64]) -> Vec<MdtSpace> {
        let one = |(i, gib): (usize, &u64)| MdtSpace {
            index: i as u32,
            avail_bytes: gib * GIB,
            free_inodes: gib * 100_000,
        };
        gib.iter().enumerate().map(one).collect()
    }

    fn wish(home: u32, depth: u32, round_robin: bool, anywhere: bool) -> Wish {
        Wish {
            home,
            depth,
            round_robin,
            anywhere,
        }
    }

    fn taken(gib: &[u64], n: usize, wish: Wish) -> Vec<u32> {
        let (mut s, mdts) = (Spread::default(), mdts(gib));
        (0..n).map(|_| s.choose(&mdts, &wish)).collect()
    }

    fn shares(gib: &[u64], n: usize, wish: Wish) -> Vec<usize> {
        let all = taken(gib, n, wish);
        let of = |i: usize| all.iter().filter(|t| **t == i as u32).count();
        (0..gib.len()).map(of).collect()
    }

    #[test]
    fn even_mdts_take_turns_where_that_is_wanted() {
        assert_eq!(taken(&[9, 9, 9], 4, wish(1, 0, true, false)), [0, 1, 2, 0]);
        assert_eq!(taken(&[9, 9, 9], 4, wish(1, 4, false, true)), [0, 1, 2, 0]);
        assert_eq!(taken(&[9, 9, 9], 3, wish(1, 4, false, false)), [1; 3]);
        // some percent are no difference
        assert_eq!(taken(&[100, 97], 3, wish(1, 0, true, false)), [0, 1, 0]);
    }

    #[test]
    fn uneven_ones_take_shares() {
        // bytes and inodes count both: 4 to 1
        assert_eq!(shares(&[20, 10], 100, wish(1, 0, true, false)), [80, 20]);
        assert_eq!(shares(&[10, 10, 0], 10, wish(0, 0, true, false)), [5, 5, 0]);
        // never one of them for long
        let all = taken(&[20, 10], 10, wish(1, 0, true, false));
        assert!(all.iter().take(5).any(|t| *t == 1), "{all:?}");
    }

    #[test]
    fn deep_directories_stay_unless_their_mdt_is_rather_full() {
        assert_eq!(shares(&[20, 10], 9, wish(0, 6, false, false)), [9, 0]);
        assert!(shares(&[20, 10], 9, wish(1, 6, false, false))[1] < 9);
        // near the root even a little more than the others is not enough
        assert!(shares(&[20, 18], 9, wish(0, 0, false, false))[1] > 0);
        assert_eq!(shares(&[20, 18], 9, wish(1, 15, false, false)), [0, 9]);
        // who asked for any MDT gets the parent's if there is more room, as on Lustre
        assert_eq!(shares(&[20, 10], 9, wish(0, 6, false, true)), [9, 0]);
    }

    #[test]
    fn what_cannot_be_used_is_left_out() {
        assert_eq!(taken(&[0, 0], 2, wish(1, 0, true, false)), [1, 1]);
        assert_eq!(taken(&[], 2, wish(3, 0, true, false)), [3, 3]);
        assert_eq!(taken(&[9, 0], 2, wish(1, 9, false, false)), [0, 0]);
    }

    #[test]
    fn sums_do_not_overflow() {
        let huge = [u64::MAX, u64::MAX / 2].map(|n| MdtSpace {
            index: (n == u64::MAX) as u32,
            avail_bytes: n,
            free_inodes: n,
        });
        let mut s = Spread::default();
        for _ in 0..1000 {
            s.choose(&huge, &wish(0, 0, true, false));
        }
        assert!(s.credit.values().all(|c| c.abs() < 1 << 40), "{s:?}");
    }
}
