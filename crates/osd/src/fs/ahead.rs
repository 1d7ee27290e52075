//! Reading ahead of reads of an object that follow each other.
//!
//! The kernel does so by itself, but makes folios as large as what it reads ahead, up to 2 MiB. Free memory of 2 MiB and more is what
//! some virtual machines give back to their host ("free page reporting"), and its first touch costs far more than the copy of the data.
//! There the kernel is asked to leave it, and what comes next is asked for here, which it reads into single pages.
//!
//! Linux: `page_cache_ra_order` and `force_page_cache_ra` in `mm/readahead.c`, `mm/page_reporting.c`.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};

use super::page_cache;

/// Bytes that are read ahead at most.
const WINDOW: u64 = 2 << 20;
/// A read follows another if it begins so many times its length from where that ended at most: several are under way at once, and come
/// in any order.
const NEAR: u64 = 4;
/// The kernel's page, bytes.
const PAGE: u64 = 4096;

/// Where the kernel lists the devices of a virtual machine.
const DEVICES: &str = "/sys/bus/virtio/devices";
/// The device that gives memory back, and its feature of doing so with what is free (`VIRTIO_ID_BALLOON`, `VIRTIO_BALLOON_F_REPORTING`).
const BALLOON: &str = "0x0005";
const REPORTING: usize = 5;

/// This machine gives free memory back to its host.
static GIVES_BACK: LazyLock<bool> = LazyLock::new(|| gives_back(Path::new(DEVICES)));

fn gives_back(devices: &Path) -> bool {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let all = std::fs::read_dir(devices).into_iter().flatten().flatten();
    all.map(|d| d.path()).any(|d| {
        read(d.join("device")).trim() == BALLOON
            && read(d.join("features")).as_bytes().get(REPORTING) == Some(&b'1')
    })
}

/// What is read ahead of one object.
#[derive(Default)]
pub(super) struct Ahead {
    /// The kernel was asked to leave it.
    begun: AtomicBool,
    place: Mutex<Place>,
}

/// Where reads of an object are.
#[derive(Default)]
struct Place {
    /// The end of the furthest.
    end: u64,
    /// What was asked for ahead ends here.
    asked_to: u64,
    /// How often something was asked for since they have followed each other.
    run: u32,
}

impl Place {
    /// What to ask for, after `len` bytes at `off` were read.
    fn next(&mut self, off: u64, len: u64) -> Option<Range<u64>> {
        let end = off.saturating_add(len);
        if off.abs_diff(self.end) > NEAR.saturating_mul(len) {
            *self = Place {
                end,
                asked_to: end,
                run: 0,
            };
            return None;
        }
        self.end = self.end.max(end);
        self.asked_to = self.asked_to.max(self.end);
        let window = |times: u32| len.saturating_mul(1 << times.min(16)).min(WINDOW);
        if self.asked_to - self.end > window(self.run) / 2 {
            return None;
        }
        self.run = self.run.saturating_add(1);
        let to = self.end.saturating_add(window(self.run));
        Some(std::mem::replace(&mut self.asked_to, to)..to)
    }
}

impl Ahead {
    /// `file` is going to be read.
    pub(super) fn begin(&self, file: impl AsFd) {
        if *GIVES_BACK && !self.begun.swap(true, Ordering::Relaxed) {
            // where it cannot be asked it reads ahead as well
            let _ = fadvise(file, 0, None, Advice::Random);
        }
    }

    /// `len` bytes at `off` of it were read, which is not all of it.
    pub(super) fn was_read(&self, file: impl AsFd, off: u64, len: u64) {
        if !*GIVES_BACK {
            return;
        }
        let Some(next) = self.place.lock().next(off, len) else {
            return;
        };
        let last = next.end / PAGE * PAGE;
        if !page_cache::holds(file.as_fd(), last.saturating_sub(PAGE), PAGE) {
            let len = NonZeroU64::new(next.end - next.start);
            let _ = fadvise(file, next.start, len, Advice::WillNeed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What was asked for after these reads of so many bytes each.
    fn asked(len: u64, reads: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let mut place = Place::default();
        let next = |off| place.next(off, len);
        reads.into_iter().filter_map(next).collect()
    }

    #[test]
    fn what_follows_is_asked_for_once_and_no_more_than_the_window() {
        for len in [4096, 64 << 10, MIB, 4 * MIB] {
            let all = asked(len, (0..64).map(|i| i * len));
            assert_eq!(all[0].start, len);
            assert!(all.windows(2).all(|w| w[0].end <= w[1].start));
            let over = |r: &Range<u64>| r.end - r.start > WINDOW;
            assert!(!all.iter().any(over), "{len}");
            assert!(all.last().unwrap().end >= 64 * len);
        }
    }

    #[test]
    fn a_machine_that_gives_memory_back_is_known() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!gives_back(dir.path()));
        let device = |name: &str, id: &str, features: &str| {
            let device = dir.path().join(name);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("device"), id).unwrap();
            std::fs::write(device.join("features"), features).unwrap();
        };
        device("virtio0", "0x0002\n", "1111111111\n");
        device("virtio1", "0x0005\n", "0110\n");
        assert!(!gives_back(dir.path()));
        device("virtio1", "0x0005\n", "0110010000\n");
        assert!(gives_back(dir.path()));
    }

    #[test]
    fn a_run_begins_small() {
        assert_eq!(asked(4096, [0]), vec![4096..3 * 4096]);
        let ten = asked(4096, (0..10).map(|i| i * 4096));
        assert!(ten.last().unwrap().end < 64 * 4096, "{ten:?}");
    }

    #[test]
    fn reads_under_way_at_once_may_come_in_any_order() {
        let order = [1, 0, 3, 2, 5, 6, 4, 7, 9, 8, 11, 10];
        let all = asked(MIB, order.map(|i| i * MIB));
        assert!(all.last().unwrap().end >= 13 * MIB, "{all:?}");
        assert!(all.windows(2).all(|w| w[0].end <= w[1].start), "{all:?}");
    }

    #[test]
    fn reads_that_do_not_follow_each_other_are_left_alone() {
        let far = |i: u64| (i * 7 % 13 + 1) * 64 * MIB;
        assert_eq!(asked(4096, (0..13).map(far)), []);
        assert_eq!(asked(4096, (0..99).map(|i| (i + 1) * MIB)), [], "a stride");
        assert_eq!(asked(4096, [u64::MAX - 5, 3 * MIB]), []);
    }
}
