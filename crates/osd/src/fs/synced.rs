//! What the journals must hold: the file `SYNCED`.
//!
//! A crash leaves a journal that breaks off, and so does somebody who truncates it. The journal
//! alone cannot tell the two apart; this file can. After every sync it is told how far the journals
//! were then, and the next start refuses tables that end before.
//!
//! Batches are numbered by fjall's sequence number, which every batch has, whatever is in it. We
//! note a number below which the last acknowledged batch was not (see [`Acked`]); the numbers have
//! gaps, which does not matter for a lower bound. Journals that will not grow any more are noted
//! with their length.
//!
//! The order makes it safe without a sync of its own:
//! * It is written after the sync of the journal, so it never promises what is not on disk.
//! * After `kill -9` the page cache has its newest content. After power loss an older one may be
//!   found: that promises less. It is one sector, so it is not found half written.
//! * A missing or damaged `SYNCED` promises nothing; then the journal is believed.
//! * It is written at close as well, after everything, and synced: after that every byte of the
//!   journals is promised.
//!
//! Batches after the last sync are not promised: power loss may take them, and clients replay
//! them. When only the process died they are all there; a tear among them loses what power loss
//! would have lost, and is logged.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::note::boot_tag;
use super::private;

pub(super) const NAME: &str = "SYNCED";
const MAGIC: u64 = u64::from_le_bytes(*b"CORALSY2");
/// Of the form without the tables, which is read.
const MAGIC_1: u64 = u64::from_le_bytes(*b"CORALSY1");
/// Size of the file in bytes: one sector.
const RECORD_BYTES: usize = 512;
const HEAD_WORDS: usize = 7;
const HEAD_WORDS_1: usize = 6;
/// Journals in one record, the newest ones. fjall keeps about five (64 MB each, 256 MiB in all).
const JOURNALS_MAX: usize = (RECORD_BYTES / 8 - HEAD_WORDS - 1) / 2;

/// A journal and how many bytes of batches it must have at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalLen {
    /// Number in its file name.
    pub(super) id: u64,
    pub(super) bytes: u64,
}

/// What was safe when it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Promise {
    /// The boot of the machine it was written in; 0 if unknown.
    pub(super) boot: u64,
    /// A batch with this sequence number or a greater one was synced; 0: none.
    pub(super) seqno: u64,
    /// The newest journal had a batch in it.
    pub(super) newest_began: bool,
    /// The target was closed, its objects synced: nothing was written after it.
    pub(super) closed: bool,
    /// Tables that were there, a bit for each number below 64.
    pub(super) tables: u64,
    /// Journals of that time, oldest first. Their lengths are lower bounds.
    pub(super) journals: Vec<JournalLen>,
}

impl Promise {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let skip = self.journals.len().saturating_sub(JOURNALS_MAX);
        let journals = &self.journals[skip..];
        let head = [
            MAGIC,
            self.boot,
            self.seqno,
            self.newest_began as u64,
            journals.len() as u64,
            self.closed as u64,
            self.tables,
        ];
        let body = journals.iter().flat_map(|j| [j.id, j.bytes]);
        let mut b = [0; RECORD_BYTES];
        for (word, at) in head.into_iter().chain(body).zip((0..).step_by(8)) {
            b[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c::crc32c(&b[..RECORD_BYTES - 8]) as u64;
        b[RECORD_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        debug_assert!(
            Promise::decode(&b).is_some_and(|p| p.seqno == self.seqno && p.journals == journals),
            "a promise that nobody could read back"
        );
        b
    }

    pub(super) fn decode(b: &[u8; RECORD_BYTES]) -> Option<Promise> {
        let word = |n: usize| {
            b[8 * n..8 * n + 8]
                .iter()
                .rev()
                .fold(0, |v, b| v << 8 | *b as u64)
        };
        let whole = word(RECORD_BYTES / 8 - 1) == crc32c::crc32c(&b[..RECORD_BYTES - 8]) as u64;
        let count = word(4).min(RECORD_BYTES as u64) as usize;
        let head = match word(0) {
            MAGIC => HEAD_WORDS,
            MAGIC_1 => HEAD_WORDS_1,
            _ => return None,
        };
        if !whole || head + 2 * count >= RECORD_BYTES / 8 {
            return None;
        }
        let journal = |n| JournalLen {
            id: word(head + 2 * n),
            bytes: word(head + 2 * n + 1),
        };
        Some(Promise {
            boot: word(1),
            seqno: word(2),
            newest_began: word(3) != 0,
            closed: word(5) != 0,
            tables: if head == HEAD_WORDS { word(6) } else { 0 },
            journals: (0..count).map(journal).collect(),
        })
    }

    /// Whether the machine has been up since: then nothing that was written is missing.
    pub(super) fn is_of_this_boot(&self) -> bool {
        self.boot != 0 && self.boot == boot_tag()
    }

    /// Whether a process that died may have left object data in the page cache that nobody synced.
    pub(super) fn may_leave_unsynced(&self) -> bool {
        let rebooted = self.boot != 0 && self.boot != boot_tag();
        !self.closed && !rebooted
    }

    /// The bytes that must be in journal `id`.
    pub(super) fn bytes_of(&self, id: u64) -> u64 {
        self.journals
            .iter()
            .find(|j| j.id == id)
            .map_or(0, |j| j.bytes)
    }
}

/// The last acknowledged batch, from below: before each commit we ask for the next number, and the
/// batch gets that or a greater one.
#[derive(Debug, Default)]
pub(super) struct Acked(AtomicU64);

impl Acked {
    pub(super) fn new(seqno: u64) -> Acked {
        Acked(AtomicU64::new(seqno))
    }

    /// A batch was committed; `before` was the next number when it began.
    pub(super) fn committed(&self, before: u64) {
        self.0.fetch_max(before, Ordering::AcqRel);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The open file.
pub(super) struct SyncedFile {
    file: File,
    boot: u64,
}

impl SyncedFile {
    /// Opens it in the target directory `dir`, with what it promises.
    pub(super) fn open(dir: &Path) -> io::Result<(SyncedFile, Option<Promise>)> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(private::FILE);
        let path = dir.join(NAME);
        let file = options.open(&path)?;
        let mut b = [0; RECORD_BYTES];
        let promise = match file.read_exact_at(&mut b, 0) {
            Ok(()) => Promise::decode(&b),
            Err(_) => None,
        };
        if promise.is_none() && file.metadata()?.len() > 0 {
            tracing::warn!(file = %path.display(), "damaged; the journals are believed as they are");
        }
        Ok((
            SyncedFile {
                file,
                boot: boot_tag(),
            },
            promise,
        ))
    }

    /// What is wrong with the file in the target directory `dir`, if anything. Changes nothing.
    pub(super) fn damage(dir: &Path) -> Option<String> {
        let path = dir.join(NAME);
        let said = match std::fs::read(&path) {
            Ok(b)
                if b.first_chunk()
                    .is_some_and(|b| b.len() == RECORD_BYTES && Promise::decode(b).is_some()) =>
            {
                return None;
            }
            Ok(_) => "is damaged".to_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => "is missing".to_owned(),
            Err(e) => format!("cannot be read: {e}"),
        };
        Some(format!(
            "{} {said}: whether the journals of the tables are whole cannot be told",
            path.display()
        ))
    }

    /// Replaces the promise. Everything in it is on disk.
    pub(super) fn write(&self, mut promise: Promise) -> io::Result<()> {
        promise.boot = self.boot;
        self.file.write_all_at(&promise.encode(), 0)
    }

    /// Makes the last promise survive power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(journals: u64) -> Promise {
        let journals = (0..journals)
            .map(|id| JournalLen {
                id,
                bytes: 1000 + id,
            })
            .collect();
        Promise {
            boot: 3,
            seqno: 77,
            newest_began: true,
            closed: true,
            tables: 0b1011,
            journals,
        }
    }

    #[test]
    fn a_promise_comes_back_and_nothing_else_is_one() {
        for n in [0, 1, 5, JOURNALS_MAX as u64] {
            assert_eq!(Promise::decode(&promise(n).encode()), Some(promise(n)));
        }
        let good = promise(2).encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Promise::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(Promise::decode(&[0; RECORD_BYTES]), None);
    }

    #[test]
    fn of_too_many_journals_the_newest_are_promised() {
        let many = promise(JOURNALS_MAX as u64 + 3);
        let got = Promise::decode(&many.encode()).unwrap();
        assert_eq!(got.journals[..], many.journals[3..]);
    }

    #[test]
    fn the_file_keeps_the_last_promise_and_a_short_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (file, none) = SyncedFile::open(dir.path()).unwrap();
        assert_eq!(none, None);
        file.write(promise(1)).unwrap();
        file.write(promise(2)).unwrap();
        let (_, got) = SyncedFile::open(dir.path()).unwrap();
        let got = got.unwrap();
        assert_eq!(
            (got.seqno, &got.journals[..]),
            (77, &promise(2).journals[..])
        );
        assert!(got.is_of_this_boot() && !got.may_leave_unsynced());
        assert!(
            Promise {
                closed: false,
                ..got.clone()
            }
            .may_leave_unsynced()
        );
        assert!(
            !Promise {
                closed: false,
                boot: 1,
                ..got
            }
            .may_leave_unsynced()
        );
        assert!(Promise::default().may_leave_unsynced());
        file.file.set_len(RECORD_BYTES as u64 - 1).unwrap();
        assert_eq!(SyncedFile::open(dir.path()).unwrap().1, None);
    }

    #[test]
    fn acknowledged_only_grows() {
        let acked = Acked::new(5);
        acked.committed(9);
        acked.committed(7);
        assert_eq!(acked.get(), 9);
    }
}
