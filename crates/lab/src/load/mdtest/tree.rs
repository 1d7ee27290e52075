//! Where items are: the tree of directories, and the names in it.

use super::options::Options;
use crate::load::failed::Failed;
use crate::load::memory::fits;
use crate::load::random::{RAND_MAX, Rand};

/// Directory of one iteration.
const TEST_DIR: &str = "test-dir";
/// Most directories below each other: deeper ones come near PATH_MAX (4,096 bytes) by their own names alone.
pub(super) const MAX_DEPTH_COUNT: i64 = 200;
/// Most directories of a tree: a task holds the names of all of them.
pub(super) const MAX_DIRS_COUNT: u64 = 10_000_000;

/// Which items a task handles. Directories are numbered from the root breadth first; items by directory.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    branches: u64,
    depth: u32,
    /// Directories of a tree.
    pub dirs: u64,
    /// Items of a directory.
    pub per_dir: u64,
    /// Items that a task handles in one tree.
    pub items: u64,
    /// Trees, one beside the other.
    pub loops: u64,
    leaf_only: bool,
}

impl Tree {
    pub(super) fn new(o: &Options) -> Tree {
        let branches = o.number("branch_factor").max(0) as u64;
        let depth = o.number("depth").clamp(0, MAX_DEPTH_COUNT) as u32;
        let leaves = branches.saturating_pow(depth).max(1);
        let dirs = match (depth, branches) {
            (0, _) | (_, 0) => 1,
            (_, 1) => u64::from(depth) + 1,
            _ => (0..=depth).fold(0, |sum: u64, d| {
                sum.saturating_add(branches.saturating_pow(d))
            }),
        };
        let leaf_only = o.is("leaf_only");
        let with_items = if leaf_only { leaves } else { dirs };
        let (items, per_dir) = (o.number("items") as u64, o.number("items_per_dir") as u64);
        let loops = if items > 0 && per_dir > 0 {
            items / per_dir
        } else {
            1
        };
        let per_dir = match per_dir {
            0 => items / with_items,
            n => n,
        };
        Tree {
            branches,
            depth,
            dirs,
            per_dir,
            items: per_dir.saturating_mul(with_items),
            loops,
            leaf_only,
        }
    }

    /// Items of all trees of `tasks` tasks, if a number can hold them: then it holds also what one task has, and the number of every
    /// item. Inner directories have their numbers also where they have no items.
    pub(super) fn all(&self, tasks: u32) -> Option<u64> {
        self.per_dir.checked_mul(self.dirs)?;
        let of_task = self.items.checked_mul(self.loops)?;
        of_task.checked_mul(u64::from(tasks))
    }

    /// The number of the `i`th item: in leaves only, those of the directories above are left out.
    fn item_number(&self, i: u64) -> u64 {
        let leaves = self.branches.saturating_pow(self.depth).max(1);
        i + if self.leaf_only {
            self.per_dir * (self.dirs - leaves)
        } else {
            0
        }
    }

    /// The path of a directory below the root of a tree whose directories are called `base`; ends with a slash.
    fn directory(&self, base: &str, number: u64) -> String {
        let mut path = String::new();
        let mut number = number;
        while number > 0 {
            path = format!("{base}.{number}/{path}");
            number = (number - 1) / self.branches.max(1);
        }
        path
    }

    /// The directory and number of item `i`, below the root.
    pub(super) fn item(&self, base: &str, i: u64) -> (String, u64) {
        let number = self.item_number(i);
        (
            self.directory(base, number.checked_div(self.per_dir).unwrap_or(0)),
            number,
        )
    }

    /// Directories below the root, parents first.
    pub(super) fn directories(&self, base: &str) -> Vec<String> {
        (1..self.dirs).map(|d| self.directory(base, d)).collect()
    }
}

/// A task's view of names: whose items it handles in a phase.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// What stands between "file." or "dir." and the number.
    pub middle: String,
    /// What directories of the tree are called.
    pub base: String,
}

/// Phases in the order in which `-N` shifts tasks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Create,
    Stat,
    Read,
    Remove,
}

/// The names that `task` handles at its `turn`: those of another task where `-N` says so.
pub(super) fn names(o: &Options, task: u32, tasks: u32, stride: u64, turn: Turn) -> Names {
    let creator = (u64::from(task) + turn as u64 * stride) % u64::from(tasks);
    let owner = (creator + stride) % u64::from(tasks);
    Names {
        middle: match o.is("shared_file") {
            true => "mdtest.shared.".to_owned(),
            false => format!("mdtest.{creator}."),
        },
        base: base(o, owner),
    }
}

/// What directories of a task's tree are called.
pub(super) fn base(o: &Options, owner: u64) -> String {
    match o.is("unique_dir") {
        true => format!("mdtest_tree.{owner}"),
        false => "mdtest_tree".to_owned(),
    }
}

/// The directory of an iteration.
pub(super) fn test_dir(path: &str, iteration: u32, nth: u64) -> String {
    format!(
        "{}/{TEST_DIR}.{iteration}-{nth}",
        path.trim_end_matches('/')
    )
}

/// The order in which items are looked at, shuffled as the original does with this seed. Without one there is nothing to hold;
/// with one it is held on each of the `ranks` ranks here.
pub(super) fn order(items: u64, seed: Option<u32>, ranks: u64) -> Result<Vec<u64>, Failed> {
    let mut order: Vec<u64> = vec![];
    let Some(seed) = seed else { return Ok(order) };
    let bytes = items.saturating_mul(size_of::<u64>() as u64);
    fits(&format!("the order of {items} items"), bytes, ranks)?;
    let room = usize::try_from(items).map(|n| order.try_reserve_exact(n));
    if !matches!(room, Ok(Ok(()))) {
        return Err(Failed::Refused(format!(
            "there is no memory for the order of {items} items: give fewer, or leave the random order out"
        )));
    }
    order.extend(0..items);
    let mut rand = Rand::new(seed);
    for n in (1..order.len()).rev() {
        let k = f64::from(rand.next()) / f64::from(RAND_MAX) * n as f64;
        order.swap(k as usize, n);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::memory::tests::has;

    fn tree(branches: i64, depth: i64, items: i64, leaf: bool) -> Tree {
        let mut o = Options::default();
        use crate::load::options::{Slot, Target};
        for (k, v) in [
            ("branch_factor", branches),
            ("depth", depth),
            ("items", items),
            ("leaf_only", i64::from(leaf)),
        ] {
            if let Slot::Number(n) = o.slot(k) {
                *n = v;
            }
        }
        Tree::new(&o)
    }

    #[test]
    fn items_are_spread_over_the_tree() {
        let t = tree(2, 2, 14, false);
        assert_eq!((t.dirs, t.per_dir, t.items), (7, 2, 14));
        assert_eq!(t.item("t", 0), (String::new(), 0));
        assert_eq!(t.item("t", 3), ("t.1/".into(), 3));
        assert_eq!(t.item("t", 13), ("t.2/t.6/".into(), 13));
        let t = tree(2, 2, 8, true);
        assert_eq!((t.per_dir, t.items), (2, 8));
        assert_eq!(t.item("t", 0), ("t.1/t.3/".into(), 6));
        let t = tree(1, 3, 8, false);
        assert_eq!(t.directories("t"), ["t.1/", "t.1/t.2/", "t.1/t.2/t.3/"]);
        assert_eq!(tree(1, 0, 5, false).item("t", 4), (String::new(), 4));
    }

    #[test]
    fn a_shifted_task_finds_what_another_one_made() {
        let mut o = Options::default();
        use crate::load::options::{Slot, Target};
        if let Slot::Number(n) = o.slot("unique_dir") {
            *n = 1;
        }
        // task 1 stats what task 2 made
        let made = names(&o, 2, 4, 1, Turn::Create);
        let seen = names(&o, 1, 4, 1, Turn::Stat);
        assert_eq!((made.middle, made.base), (seen.middle, seen.base));
    }

    #[test]
    fn a_shuffle_keeps_every_item_once() {
        let mut shuffled = order(100, Some(3), 1).unwrap();
        let by_number: Vec<u64> = (0..100).collect();
        assert_ne!(shuffled, by_number);
        shuffled.sort_unstable();
        assert_eq!(shuffled, by_number);
    }

    #[test]
    fn only_a_shuffle_takes_memory() {
        assert!(order(u64::MAX, None, 1).unwrap().is_empty());
        let items = has() / 8 + (1 << 27);
        let why = order(items, Some(3), 1).unwrap_err().to_string();
        let said = format!("there is no memory for the order of {items} items on each of 1 ranks");
        assert!(why.starts_with(&said), "{why}");
        assert!(order(u64::MAX, Some(3), 2).is_err());
    }
}
