//! Bytes of a file: 4 KiB blocks, shared between what programs see and what the disk has. A block that is not there is a hole.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;

pub(crate) type Block = Arc<[u8; BLOCK as usize]>;

static ZEROS: LazyLock<Block> = LazyLock::new(|| Arc::new([0; BLOCK as usize]));

/// Size and blocks. Bytes of a block behind the size are zeros.
#[derive(Clone, Default)]
pub(crate) struct Content {
    pub size: u64,
    pub blocks: BTreeMap<u64, Block>,
}

impl Content {
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.blocks.split_off(&size.div_ceil(BLOCK));
            self.zero_inside(size, size.next_multiple_of(BLOCK));
        }
        self.size = size;
    }

    /// Makes a hole of [from, to); the size stays.
    pub fn punch(&mut self, from: u64, to: u64) {
        let (first, last) = (from.div_ceil(BLOCK), to / BLOCK);
        if first > last {
            return self.zero_inside(from, to);
        }
        let gone: Vec<u64> = self.blocks.range(first..last).map(|(b, _)| *b).collect();
        gone.iter().for_each(|b| drop(self.blocks.remove(b)));
        self.zero_inside(from, first * BLOCK);
        self.zero_inside(last * BLOCK, to);
    }

    /// Zeros [from, to) of one block, if it is there.
    fn zero_inside(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let at = (from % BLOCK) as usize;
        if let Some(b) = self.blocks.get_mut(&(from / BLOCK)) {
            Arc::make_mut(b)[at..at + (to - from) as usize].fill(0);
        }
    }

    /// Gives [from, to) blocks.
    pub fn allocate(&mut self, from: u64, to: u64) {
        for b in from / BLOCK..to.div_ceil(BLOCK) {
            self.blocks.entry(b).or_insert_with(|| ZEROS.clone());
        }
    }

    pub fn write(&mut self, mut off: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let at = (off % BLOCK) as usize;
            let n = data.len().min(BLOCK as usize - at);
            let block = self
                .blocks
                .entry(off / BLOCK)
                .or_insert_with(|| ZEROS.clone());
            Arc::make_mut(block)[at..at + n].copy_from_slice(&data[..n]);
            (off, data) = (off + n as u64, &data[n..]);
        }
        self.size = self.size.max(off);
    }

    pub fn read(&self, off: u64, len: usize) -> Vec<u8> {
        let end = (off + len as u64).min(self.size);
        let mut out = vec![0; end.saturating_sub(off) as usize];
        let mut done = 0;
        while done < out.len() {
            let (b, at) = (
                (off + done as u64) / BLOCK,
                ((off + done as u64) % BLOCK) as usize,
            );
            let n = (out.len() - done).min(BLOCK as usize - at);
            if let Some(block) = self.blocks.get(&b) {
                out[done..done + n].copy_from_slice(&block[at..at + n]);
            }
            done += n;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_and_punched_bytes_are_zeros() {
        let mut c = Content::default();
        c.write(100, &[7; 10_000]);
        c.resize(5000);
        c.resize(20_000);
        assert!(
            c.read(5000, 15_000).iter().all(|b| *b == 0)
                && c.read(100, 4900).iter().all(|b| *b == 7)
        );
        c.punch(200, 300);
        assert_eq!(c.read(199, 3), [7, 0, 0]);
        c.write(0, &[9; 20_000]);
        c.punch(1000, 9000);
        let got = c.read(0, 20_000);
        assert!((0..20_000).all(|i| got[i] == if (1000..9000).contains(&i) { 0 } else { 9 }));
        assert!(!c.blocks.contains_key(&1) && c.blocks.contains_key(&2));
    }
}
