//! What is on the disk and what is not yet: the rules of a journaling local file system (ext4 with data=ordered, XFS).
//!
//! * Names, attributes, extended attributes, sizes set by truncate, holes punched and space allocated are changes in one journal.
//!   Any fsync commits all of it; every 5 s it is committed anyway; at the cut a random prefix of the rest is.
//! * Data of a file are on disk after its fsync. Of blocks written since then, at the cut each has its last content, one that it
//!   had in between, or that of the last fsync; a part of the files is also written back every 5 s. With `torn`, blocks are
//!   composed of 512-byte sectors of both.
//! * A size that grew by writing is as large as the blocks that made it to the disk say. What was written after a truncate or a
//!   punch is not on disk without it.
//! * Harsher than ext4: rename over a file does not flush the new one's data (`auto_da_alloc`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::content::{BLOCK, Block};
use crate::tree::{Change, Ino, Tree};

/// Time between two commits, as of jbd2.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of a sector: what a disk writes whole.
const SECTOR: usize = 512;

/// A content of a block that may be on disk.
#[derive(Clone)]
struct Image {
    block: Block,
    /// The file's size when it was written.
    size: u64,
    /// The journal must be committed up to here for it to be on disk.
    needs: u64,
}

/// A block written since its file's last fsync. The newest content is the one that programs see.
struct Dirty {
    size: u64,
    needs: u64,
    /// One of the contents before, each with equal chance.
    between: Option<Image>,
    images: u32,
}

/// What was done with the power cut.
#[derive(Debug, Clone, Copy, Default)]
pub struct CutReport {
    /// Changes in the journal that were lost.
    pub changes_lost: u64,
    /// Blocks whose last content was lost.
    pub blocks_lost: u64,
    /// Blocks that were not flushed and survived.
    pub blocks_kept: u64,
}

pub(crate) struct Disk {
    pub seen: Tree,
    durable: Tree,
    journal: VecDeque<Change>,
    committed: u64,
    dirty: BTreeMap<Ino, BTreeMap<u64, Dirty>>,
    /// Number of the last change that freed blocks of a file.
    freed: HashMap<Ino, u64>,
    rng: ChaCha8Rng,
    last_commit: Instant,
}

impl Disk {
    #[expect(clippy::disallowed_methods, reason = "a disk's timer is the machine's")]
    pub fn new(tree: Tree, seed: u64) -> Disk {
        Disk {
            seen: tree.clone(),
            durable: tree,
            journal: VecDeque::new(),
            committed: 0,
            dirty: BTreeMap::new(),
            freed: HashMap::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            last_commit: Instant::now(),
        }
    }

    /// Changes what programs see and notes it in the journal. The inode whose last name went.
    pub fn change(&mut self, c: Change) -> Option<Ino> {
        let gone = self.seen.apply(&c);
        self.journal.push_back(c.clone());
        if let Some(ino) = c.frees() {
            self.freed
                .insert(ino, self.committed + self.journal.len() as u64);
            self.trim(ino);
        }
        self.tick();
        gone
    }

    /// Blocks that are no longer there cannot be written any more; the last one was changed.
    fn trim(&mut self, ino: Ino) {
        let (Some(node), Some(dirty)) = (self.seen.nodes.get(&ino), self.dirty.get_mut(&ino))
        else {
            return;
        };
        let needs = self.freed[&ino];
        dirty.retain(|b, _| node.data.blocks.contains_key(b));
        for d in dirty.values_mut() {
            // what was in between may hold bytes that were cut off
            (d.size, d.needs, d.between) = (node.data.size, needs, None);
        }
    }

    pub fn write(&mut self, ino: Ino, off: u64, data: &[u8]) {
        let Some(node) = self.seen.nodes.get_mut(&ino) else {
            return;
        };
        if data.is_empty() {
            return;
        }
        let needs = self.freed.get(&ino).copied().unwrap_or(0);
        let dirty = self.dirty.entry(ino).or_default();
        let size = node.data.size.max(off + data.len() as u64);
        for b in off / BLOCK..(off + data.len() as u64).div_ceil(BLOCK) {
            match dirty.get_mut(&b) {
                None => drop(dirty.insert(
                    b,
                    Dirty {
                        size,
                        needs,
                        between: None,
                        images: 1,
                    },
                )),
                Some(d) => {
                    if self.rng.random_range(0..d.images) == 0
                        && let Some(block) = node.data.blocks.get(&b)
                    {
                        d.between = Some(Image {
                            block: block.clone(),
                            size: d.size,
                            needs: d.needs,
                        });
                    }
                    d.images += 1;
                    (d.size, d.needs) = (size, needs);
                }
            }
        }
        node.data.write(off, data);
        self.tick();
    }

    /// Commits the first `count` changes of the journal.
    fn commit(&mut self, count: usize) {
        for c in self.journal.drain(..count) {
            if let Some(gone) = self.durable.apply(&c) {
                self.durable.nodes.remove(&gone);
            }
        }
        self.committed += count as u64;
    }

    pub fn commit_all(&mut self) {
        self.commit(self.journal.len());
    }

    /// fsync of one file.
    pub fn sync(&mut self, ino: Ino) {
        self.commit_all();
        self.flush(ino);
    }

    /// sync of everything.
    pub fn sync_all(&mut self) {
        self.commit_all();
        let all: Vec<Ino> = self.dirty.keys().copied().collect();
        all.into_iter().for_each(|ino| self.flush(ino));
    }

    fn flush(&mut self, ino: Ino) {
        let Some(dirty) = self.dirty.remove(&ino) else {
            return;
        };
        let (Some(seen), Some(disk)) =
            (self.seen.nodes.get(&ino), self.durable.nodes.get_mut(&ino))
        else {
            return;
        };
        for b in dirty.keys() {
            if let Some(block) = seen.data.blocks.get(b) {
                disk.data.blocks.insert(*b, block.clone());
            }
        }
        disk.data.size = seen.data.size;
    }

    /// No program has the file open and it has no name.
    pub fn forget(&mut self, ino: Ino) {
        self.seen.nodes.remove(&ino);
        self.dirty.remove(&ino);
        self.freed.remove(&ino);
    }

    /// Commits what is due by time, and writes some files back.
    #[expect(clippy::disallowed_methods, reason = "a disk's timer is the machine's")]
    fn tick(&mut self) {
        if self.last_commit.elapsed() < COMMIT_INTERVAL {
            return;
        }
        self.last_commit = Instant::now();
        self.commit_all();
        let all: Vec<Ino> = self.dirty.keys().copied().collect();
        all.into_iter().for_each(|ino| {
            if self.rng.random_bool(0.3) {
                self.flush(ino)
            }
        });
    }

    /// What a disk has after its power went now.
    pub fn cut(mut self, torn: bool) -> (Tree, CutReport) {
        let pending = self.journal.len();
        let kept = match self.rng.random_range(0..4) {
            0 => 0,
            1 => pending,
            _ => self.rng.random_range(0..=pending),
        };
        self.commit(kept);
        let mut report = CutReport {
            changes_lost: (pending - kept) as u64,
            ..CutReport::default()
        };
        let mut dirty: Vec<_> = std::mem::take(&mut self.dirty).into_iter().collect();
        dirty.sort_unstable_by_key(|(ino, _)| *ino);
        for (ino, blocks) in dirty {
            let share = [0.0, 1.0, 0.5, self.rng.random()][self.rng.random_range(0..4)];
            let (Some(seen), Some(disk)) =
                (self.seen.nodes.get(&ino), self.durable.nodes.get_mut(&ino))
            else {
                continue;
            };
            for (b, d) in blocks {
                let newest = seen.data.blocks.get(&b).map(|block| Image {
                    block: block.clone(),
                    size: d.size,
                    needs: d.needs,
                });
                let image = if d.between.is_some() && self.rng.random_bool(0.3) {
                    d.between
                } else {
                    newest
                };
                let image =
                    image.filter(|i| i.needs <= self.committed && self.rng.random_bool(share));
                let Some(Image {
                    mut block, size, ..
                }) = image
                else {
                    report.blocks_lost += 1;
                    continue;
                };
                report.blocks_kept += 1;
                if torn && self.rng.random_bool(0.3) {
                    let old = disk
                        .data
                        .blocks
                        .get(&b)
                        .cloned()
                        .unwrap_or_else(|| Arc::new([0; BLOCK as usize]));
                    let new = Arc::make_mut(&mut block);
                    for s in (0..BLOCK as usize).step_by(SECTOR) {
                        if self.rng.random_bool(0.5) {
                            new[s..s + SECTOR].copy_from_slice(&old[s..s + SECTOR]);
                        }
                    }
                }
                disk.data.blocks.insert(b, block);
                disk.data.size = disk.data.size.max(size.min((b + 1) * BLOCK));
            }
        }
        (self.durable, report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::node;
    use crate::tree::ROOT;

    fn disk(seed: u64) -> Disk {
        let mut tree = Tree::default();
        tree.nodes
            .insert(ROOT, node(libc::S_IFDIR | 0o755, 0, 0, ROOT));
        Disk::new(tree, seed)
    }

    fn make(d: &mut Disk, ino: Ino, name: &str) {
        let node = Box::new(node(libc::S_IFREG | 0o644, 0, 0, ROOT));
        d.change(Change::Make {
            parent: ROOT,
            name: name.into(),
            cookie: u64::from(ino),
            ino,
            node,
        });
    }

    fn names(t: &Tree) -> Vec<(String, Ino)> {
        t.nodes[&ROOT]
            .names
            .iter()
            .map(|(n, (_, i))| (String::from_utf8_lossy(n).into_owned(), *i))
            .collect()
    }

    fn content(t: &Tree, ino: Ino) -> Vec<u8> {
        t.nodes[&ino].data.read(0, 1 << 20)
    }

    /// `b` is renamed over `a`, both synced before.
    fn renamed(seed: u64) -> Disk {
        let mut d = disk(seed);
        for (ino, name) in [(2, "a"), (3, "b")] {
            make(&mut d, ino, name);
            d.write(ino, 0, &[ino as u8; 5000]);
            d.sync(ino);
        }
        d.change(Change::Rename {
            from: (ROOT, b"b".to_vec()),
            to: (ROOT, b"a".to_vec()),
            cookie: 9,
        });
        d.forget(2);
        d
    }

    #[test]
    fn a_rename_is_there_or_not_and_both_contents_are_whole() {
        let mut seen = [false; 2];
        for seed in 0..40 {
            let t = renamed(seed).cut(true).0;
            let done = t.nodes[&ROOT].names.len() == 1;
            let want = if done {
                vec![("a".to_owned(), 3)]
            } else {
                vec![("a".to_owned(), 2), ("b".to_owned(), 3)]
            };
            assert_eq!(names(&t), want);
            names(&t)
                .iter()
                .for_each(|(_, ino)| assert!(content(&t, *ino) == [*ino as u8; 5000]));
            assert_eq!(t.nodes.contains_key(&2), !done);
            seen[usize::from(done)] = true;
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn any_fsync_commits_every_change_of_names_and_no_data() {
        let mut lost = 0;
        for seed in 0..40 {
            let mut d = renamed(seed);
            make(&mut d, 4, "foreign");
            d.write(3, 0, &[7; 5000]);
            d.sync(4);
            let t = d.cut(false).0;
            assert_eq!(names(&t), [("a".to_owned(), 3), ("foreign".to_owned(), 4)]);
            lost += usize::from(content(&t, 3) != [7; 5000]);
        }
        assert!(lost > 0, "data that nobody synced are not safe");
    }

    #[test]
    fn what_was_written_after_a_truncate_is_not_there_without_it() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut d = disk(seed);
            make(&mut d, 2, "f");
            d.write(2, 0, &[1; 8192]);
            d.sync(2);
            d.change(Change::Size { ino: 2, size: 0 });
            d.write(2, 0, &[2; 8192]);
            let got = content(&d.cut(false).0, 2);
            let old = got.contains(&1);
            assert!(!old || got == [1; 8192], "old and new are mixed");
            kinds.insert((got.len(), got.first().copied()));
        }
        assert!(
            kinds.contains(&(8192, Some(1)))
                && kinds.contains(&(0, None))
                && kinds.contains(&(8192, Some(2))),
            "{kinds:?}"
        );
    }

    #[test]
    fn the_same_seed_loses_the_same() {
        let of = |seed| {
            let mut d = renamed(seed);
            d.write(3, 0, &[7; 100_000]);
            let (t, report) = d.cut(true);
            (names(&t), content(&t, 3), report.blocks_lost)
        };
        assert!((0..20).all(|s| of(s) == of(s)));
    }
}
