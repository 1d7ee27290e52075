//! Names of directory entries.

use crate::error::{Error, Refusal};

/// Longest name, bytes.
const NAME_MAX: usize = 255;
/// A name that may be made or looked up.
pub(super) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        return Err(Refusal::NameTooLong.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Refusal::BadName.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(check_name(b"ok"), Ok(()));
        assert_eq!(check_name(&[b'x'; 256]), Err(Refusal::NameTooLong.into()));
        for bad in [&b""[..], b"a/b", b"a\0b"] {
            assert_eq!(check_name(bad), Err(Refusal::BadName.into()));
        }
    }
}
