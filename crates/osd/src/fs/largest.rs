//! The largest file that a file system can hold.
//!
//! Asked by seeking: the kernel refuses a position beyond the limit of the file system (`s_maxbytes`), the same that writing and
//! truncating are held to, and a seek changes nothing. ext4 says 16 TiB less a block, xfs 8 EiB, tmpfs and btrfs what an offset can
//! name.

use std::fs::File;
use std::io::{Seek, SeekFrom};

/// Every file system can hold so much, bytes.
const LEAST_BYTES: u64 = i32::MAX as u64;
/// What a file offset can name.
pub(super) const MOST_BYTES: u64 = i64::MAX as u64;

/// The largest size in bytes of files on the file system of `file`, a regular one.
pub(super) fn largest(file: &File) -> u64 {
    let mut file = file;
    let mut fits = |at: u64| file.seek(SeekFrom::Start(at)).is_ok();
    if fits(MOST_BYTES) {
        return MOST_BYTES;
    }
    let (mut yes, mut no) = (LEAST_BYTES, MOST_BYTES);
    while no - yes > 1 {
        let at = yes + (no - yes) / 2;
        if fits(at) { yes = at } else { no = at }
    }
    yes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_can_be_made_so_large_and_no_larger() {
        let mut f = tempfile::tempfile().unwrap();
        let most = largest(&f);
        assert_eq!(
            f.stream_position().is_ok(),
            f.seek(SeekFrom::Start(0)).is_ok()
        );
        f.set_len(most).unwrap();
        assert_eq!(f.metadata().unwrap().len(), most);
        if most < MOST_BYTES {
            assert_eq!(
                f.set_len(most + 1).unwrap_err().raw_os_error(),
                Some(libc::EFBIG)
            );
        }
    }
}
