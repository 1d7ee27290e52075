//! Names of directory entries.

use coral_wire::Errno;

/// Longest name, bytes.
const NAME_MAX: usize = 255;
/// A name that may be made or looked up.
pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(check_name(b"ok"), Ok(()));
        assert_eq!(check_name(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        for bad in [&b""[..], b"a/b", b"a\0b"] {
            assert_eq!(check_name(bad), Err(Errno::EINVAL));
        }
    }
}
