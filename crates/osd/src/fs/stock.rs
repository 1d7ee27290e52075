//! Space put by: the file `RESERVE` and the directory `SPARE` in a target directory.
//!
//! `RESERVE` has no content, only blocks: its first part (the ballast) lets a target start and remove files on a disk that
//! somebody else filled to the last byte; the rest backs what clients were promised while the disk is tight. `SPARE` holds empty
//! files, for the inodes that a start needs. What is wanted is taken off, and put by again when there is room.
//!
//! Nothing here is data: both may be removed while the target is closed. A file system that cannot allocate without writing
//! (`fallocate`) keeps no blocks; then promises rest on the account alone.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::private;

/// Name of the file with blocks.
pub(super) const RESERVE_FILE: &str = "RESERVE";
/// Name of the directory with inodes.
pub(super) const SPARE_DIR: &str = "SPARE";
/// Inodes put by: some tables' new files, lists and their temporary names.
const SPARE_INODES: usize = 16;
/// Blocks for promises come and go in steps of this part of the disk ...
const STEP_DIVISOR: u64 = 512;
/// ... within these bounds in bytes: what is put by beyond the promises is nobody's.
const STEP_MIN_BYTES: u64 = 512 << 10;
const STEP_MAX_BYTES: u64 = 4 << 20;
/// Size of the pieces in which btrfs gives and takes blocks here, bytes.
pub(super) const PIECE_BYTES: u64 = 512 << 10;

#[derive(Debug, Default)]
struct StockState {
    /// `None` while it could not be made.
    file: Option<File>,
    /// The file system allocates nothing without writing.
    cannot: bool,
    ballast: u64,
    promised: u64,
    /// Bytes of ballast that were wanted last.
    ballast_wanted: u64,
    inodes: usize,
}

/// What is put by in one target directory; `None` in one that is only read.
pub(super) struct Stock {
    dir: Option<PathBuf>,
    /// Blocks are allocated in pieces of so many bytes.
    piece: u64,
    /// Blocks for promises come and go in steps of so many bytes.
    step: u64,
    state: Mutex<StockState>,
}

impl Stock {
    pub(super) fn none() -> Stock {
        Stock {
            dir: None,
            piece: u64::MAX,
            step: STEP_MAX_BYTES,
            state: Mutex::default(),
        }
    }

    /// On a disk of `total` bytes. What an earlier process had put by for promises goes: they ended with it. In `pieces`: on btrfs, which frees what was allocated
    /// in one piece all at once or not at all, when none of it is in use any more.
    pub(super) fn open(dir: &Path, total: u64, pieces: bool) -> Stock {
        let step = (total / STEP_DIVISOR).clamp(STEP_MIN_BYTES, STEP_MAX_BYTES);
        let stock = Stock {
            step: step / STEP_MIN_BYTES * STEP_MIN_BYTES,
            dir: Some(dir.to_owned()),
            piece: if pieces { PIECE_BYTES } else { u64::MAX },
            state: Mutex::default(),
        };
        {
            let mut s = stock.state.lock();
            s.inodes = std::fs::read_dir(dir.join(SPARE_DIR)).map_or(0, Iterator::count);
            s.ballast_wanted = u64::MAX;
            if let Ok(file) = OpenOptions::new().write(true).open(dir.join(RESERVE_FILE)) {
                // A copy of the directory may have the length without the blocks.
                let has = file.metadata().map_or(0, |m| {
                    if m.blocks() * 512 >= m.len() {
                        m.len()
                    } else {
                        0
                    }
                });
                let keep = has.min(super::space::BALLAST_MAX_BYTES);
                if file.set_len(keep).is_ok() {
                    (s.ballast, s.file) = (keep, Some(file));
                }
            }
        }
        stock
    }

    /// Whether [`Stock::put_by`] has something to do.
    pub(super) fn wants_more(&self) -> bool {
        let s = self.state.lock();
        self.dir.is_some()
            && (s.inodes < SPARE_INODES || (!s.cannot && s.ballast < s.ballast_wanted))
    }

    /// Puts by `ballast` bytes (0: none now), and inodes if `inodes`.
    pub(super) fn put_by(&self, ballast: u64, inodes: bool) {
        if self.dir.is_none() {
            return;
        }
        let mut s = self.state.lock();
        if ballast > 0 {
            s.ballast_wanted = ballast;
            if s.ballast != ballast && self.resize(&mut s, ballast, None).is_ok() {
                s.ballast = ballast;
            }
        }
        if inodes && s.inodes < SPARE_INODES {
            self.make_inodes(&mut s);
        }
    }

    /// Whether a step of the ballast, at least, is put by.
    pub(super) fn has_ballast(&self) -> bool {
        self.state.lock().ballast >= super::space::BALLAST_MIN_BYTES
    }

    /// Lets `bytes` of the ballast go; false when there was none.
    pub(super) fn drop_ballast(&self, bytes: u64) -> bool {
        let mut s = self.state.lock();
        let keep = s.ballast.saturating_sub(bytes);
        if s.ballast == 0 || self.resize(&mut s, keep, None).is_err() {
            return false;
        }
        s.ballast = keep;
        true
    }

    /// Lets the spare inodes go.
    pub(super) fn drop_inodes(&self) {
        let Some(dir) = &self.dir else { return };
        let mut s = self.state.lock();
        for entry in std::fs::read_dir(dir.join(SPARE_DIR))
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = std::fs::remove_file(entry.path());
        }
        s.inodes = 0;
    }

    /// Bytes put by for promises.
    pub(super) fn promised(&self) -> u64 {
        self.state.lock().promised
    }

    /// At least `bytes` are put by for promises, or an error and as many as before.
    pub(super) fn hold_promised(&self, bytes: u64) -> std::io::Result<()> {
        let mut s = self.state.lock();
        if s.cannot || self.dir.is_none() || s.promised >= bytes {
            return Ok(());
        }
        let wanted = bytes.next_multiple_of(self.step);
        // The step may be too much where what was asked for is not.
        let taken = match self.resize_promised(&mut s, wanted) {
            Ok(()) => wanted,
            Err(_) if s.cannot => return Ok(()),
            Err(_) => self.resize_promised(&mut s, bytes).map(|()| bytes)?,
        };
        s.promised = taken;
        Ok(())
    }

    fn resize_promised(&self, s: &mut StockState, promised: u64) -> std::io::Result<()> {
        let ballast = s.ballast;
        self.resize(s, ballast, Some(promised))
    }

    /// No more than `bytes`, and a step for the next promises, is put by for them.
    pub(super) fn let_go_beyond(&self, bytes: u64) {
        let mut s = self.state.lock();
        let keep = if bytes == 0 {
            0
        } else {
            bytes.next_multiple_of(self.step) + self.step
        };
        if s.promised > keep && self.resize_promised(&mut s, keep).is_ok() {
            s.promised = keep;
        }
    }

    /// Frees `bytes` and what the file system may need beside them.
    pub(super) fn spend(&self, bytes: u64) {
        let mut s = self.state.lock();
        let keep = s
            .promised
            .saturating_sub((bytes + (256 << 10)).next_multiple_of(1 << 20));
        if s.promised > keep && self.resize_promised(&mut s, keep).is_ok() {
            s.promised = keep;
        }
    }

    /// Makes the file one of `ballast` bytes and those for promises.
    fn resize(
        &self,
        s: &mut StockState,
        ballast: u64,
        promised: Option<u64>,
    ) -> std::io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let file = match s.file.take() {
            Some(file) => file,
            None => create(&dir.join(RESERVE_FILE))?,
        };
        let (old, new) = (
            s.ballast + s.promised,
            ballast + promised.unwrap_or(s.promised),
        );
        let done = match new > old {
            true => allocate(&file, old, new, self.piece),
            false => rustix::fs::ftruncate(&file, new),
        };
        if let Err(e) = done {
            s.cannot |= matches!(e, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL);
            // Blocks may have been taken before the room was out.
            let _ = rustix::fs::ftruncate(&file, old);
        }
        s.file = Some(file);
        done.map_err(Into::into)
    }

    fn make_inodes(&self, s: &mut StockState) {
        let Some(dir) = &self.dir else { return };
        let spare = dir.join(SPARE_DIR);
        let make = || -> std::io::Result<()> {
            if !spare.is_dir() {
                private::make_new_dir(&spare)?;
            }
            for n in 0..SPARE_INODES {
                create(&spare.join(n.to_string()))?;
            }
            Ok(())
        };
        if make().is_ok() {
            s.inodes = SPARE_INODES;
        }
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(private::FILE)
        .open(path)
}

/// Gives `start..end` of the file blocks, in pieces that end at multiples of `piece` bytes.
fn allocate(file: &File, start: u64, end: u64, piece: u64) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let next = (at / piece + 1).saturating_mul(piece).min(end);
        rustix::fs::fallocate(file, FallocateFlags::empty(), at, next - at)?;
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(dir: &Path) -> u64 {
        std::fs::metadata(dir.join(RESERVE_FILE)).map_or(0, |m| m.blocks() * 512)
    }

    #[test]
    fn blocks_are_taken_and_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let stock = Stock::open(dir.path(), 1 << 40, false);
        stock.put_by(1 << 20, true);
        assert_eq!(blocks(dir.path()), 1 << 20);
        assert_eq!(
            std::fs::read_dir(dir.path().join(SPARE_DIR))
                .unwrap()
                .count(),
            SPARE_INODES
        );
        assert!(!stock.wants_more());
        stock.hold_promised(5 << 20).unwrap();
        assert_eq!((stock.promised(), blocks(dir.path())), (8 << 20, 9 << 20));
        stock.let_go_beyond(4 << 20);
        assert_eq!(stock.promised(), 8 << 20, "a step is kept");
        stock.spend(3 << 20);
        assert_eq!((stock.promised(), blocks(dir.path())), (4 << 20, 5 << 20));
        assert!(stock.drop_ballast(512 << 10) && stock.wants_more());
        stock.let_go_beyond(0);
        assert_eq!(blocks(dir.path()), 512 << 10);
        assert!(stock.drop_ballast(u64::MAX) && !stock.drop_ballast(1));
        stock.drop_inodes();
        assert_eq!(
            (
                blocks(dir.path()),
                std::fs::read_dir(dir.path().join(SPARE_DIR))
                    .unwrap()
                    .count()
            ),
            (0, 0)
        );
        stock.put_by(1 << 20, true);
        stock.hold_promised(20 << 20).unwrap();
        drop(stock);
        let again = Stock::open(dir.path(), 1 << 40, false);
        assert_eq!(again.promised(), 0, "promises end with the process");
        assert!(blocks(dir.path()) <= super::super::space::BALLAST_MAX_BYTES);
    }

    #[test]
    fn pieces_end_where_space_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let stock = Stock::open(dir.path(), 1 << 40, true);
        stock.put_by(3 * PIECE_BYTES, false);
        stock.hold_promised(5 << 20).unwrap();
        let whole = blocks(dir.path());
        assert!(stock.drop_ballast(PIECE_BYTES));
        assert_eq!(blocks(dir.path()), whole - PIECE_BYTES);
    }

    #[test]
    fn a_directory_that_is_only_read_is_not_written() {
        let stock = Stock::none();
        stock.put_by(1 << 20, true);
        stock.hold_promised(1 << 20).unwrap();
        assert!(!stock.drop_ballast(1) && !stock.wants_more());
    }
}
