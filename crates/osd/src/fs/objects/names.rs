//! Where an object lies, and its key where attributes are in a table.

use crate::ObjectId;

/// Directories of an object, relative to the root: `xx` and `xx/yy`.
pub(super) fn dir_names(id: ObjectId) -> (String, String) {
    let (x, y) = ((id.oid >> 16) as u8, (id.oid >> 8) as u8);
    (format!("{x:02x}"), format!("{x:02x}/{y:02x}"))
}

pub(super) fn file_name(id: ObjectId) -> String {
    let (x, y) = ((id.oid >> 16) as u8, (id.oid >> 8) as u8);
    format!("{x:02x}/{y:02x}/{:x}-{:x}", id.seq, id.oid)
}

pub(super) fn parse_name(name: &str) -> Option<ObjectId> {
    let (seq, oid) = name.split_once('-')?;
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    Some(ObjectId {
        seq: hex(seq)?,
        oid: hex(oid)?,
    })
}

pub(super) fn record_key(id: ObjectId) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.seq.to_be_bytes());
    key[8..].copy_from_slice(&id.oid.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_neighbours_share_a_directory() {
        for oid in [0, 1, 255, 256, 0xdead_beef_0123, u64::MAX] {
            let id = ObjectId { seq: oid ^ 7, oid };
            let name = file_name(id);
            let (dir, file) = name.rsplit_once('/').unwrap();
            assert_eq!(parse_name(file), Some(id));
            assert_eq!(dir, dir_names(id).1);
        }
        let dir = |oid| dir_names(ObjectId { seq: 0, oid }).1;
        assert_eq!(dir(0x1_2300), "01/23");
        assert_eq!(dir(0x1_2300), dir(0x1_23ff));
    }
}
