//! A number that survives the death of the process but not of the machine: the file `NOTED`.
//!
//! It lies in the page cache and is never synced, like the object data it speaks of. After power
//! loss it might be newer than those data; so it is written with the identity of the machine's
//! boot and means nothing after another.

use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::private;

/// Name of the file. It is made when the target is first opened, not by format.
pub(super) const FILE: &str = "NOTED";
/// Where Linux tells one boot from another.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const RECORD_BYTES: usize = 24;

/// The open file.
pub(super) struct NoteFile {
    file: File,
    boot: u64,
    number: Mutex<u64>,
}

impl NoteFile {
    pub(super) fn open(dir: &Path) -> io::Result<NoteFile> {
        Self::open_in_boot(dir, boot_tag())
    }

    /// `boot` 0: the machine does not tell, nothing is remembered.
    fn open_in_boot(dir: &Path, boot: u64) -> io::Result<NoteFile> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(private::FILE);
        let file = options.open(dir.join(FILE))?;
        let mut b = [0; RECORD_BYTES];
        let whole = file.read_exact_at(&mut b, 0).is_ok();
        let number = if whole { decode(&b, boot) } else { None };
        Ok(NoteFile {
            file,
            boot,
            number: Mutex::new(number.unwrap_or(0)),
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn get(&self) -> u64 {
        *self.number.lock()
    }

    /// Notes `number` if it is the greatest so far. A failure is as if the machine had stopped: the
    /// number is not found again, which costs a replay.
    pub(super) fn set(&self, number: u64) {
        let mut greatest = self.number.lock();
        if *greatest >= number {
            return;
        }
        *greatest = number;
        if self.boot != 0 {
            let _ = self.file.write_at(&encode(number, self.boot), 0);
        }
    }
}

fn encode(number: u64, boot: u64) -> [u8; RECORD_BYTES] {
    let mut b = [0; RECORD_BYTES];
    b[..8].copy_from_slice(&boot.to_le_bytes());
    b[8..16].copy_from_slice(&number.to_le_bytes());
    let sum = crc32c::crc32c(&b[..16]) as u64;
    b[16..].copy_from_slice(&sum.to_le_bytes());
    debug_assert!(boot == 0 || decode(&b, boot) == Some(number));
    b
}

pub(super) fn decode(b: &[u8; RECORD_BYTES], boot: u64) -> Option<u64> {
    let word = |i: usize| b[i..i + 8].iter().rev().fold(0, |n, b| n << 8 | *b as u64);
    let whole = word(16) == crc32c::crc32c(&b[..16]) as u64;
    (whole && boot != 0 && word(0) == boot).then(|| word(8))
}

/// Stands for this boot of the machine; 0 when the machine does not tell.
pub(super) fn boot_tag() -> u64 {
    let id = std::fs::read(BOOT_ID).unwrap_or_default();
    if id.is_empty() {
        return 0;
    }
    xxhash_rust::xxh3::xxh3_64(&id).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_remembered_within_a_boot_and_not_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let open = |boot| NoteFile::open_in_boot(dir.path(), boot).unwrap();
        assert_eq!(open(5).get(), 0);
        open(5).set(77);
        assert_eq!(open(5).get(), 77);
        assert_eq!(open(6).get(), 0, "another boot");
        assert_eq!(open(0).get(), 0);
        assert_eq!(open(5).get(), 77);
        let note = open(6);
        note.set(3);
        note.set(2);
        assert_eq!((note.get(), open(5).get(), open(6).get()), (3, 0, 3));
    }

    #[test]
    fn a_damaged_note_is_no_note() {
        let good = encode(9, 4);
        assert_eq!(decode(&good, 4), Some(9));
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad, 4), None, "bit {bit}");
        }
    }

    #[test]
    fn this_machine_tells_its_boots_apart() {
        assert_ne!(boot_tag(), 0);
        assert_eq!(boot_tag(), boot_tag());
    }
}
