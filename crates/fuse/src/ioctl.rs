//! IOCTL: what `chattr`, `lsattr` and `lfs project` of any Linux ask of a file system (`FS_IOC_*` of `linux/fs.h`): inode
//! flags and project ids. Since Linux 5.13 the kernel checks the caller and sends these with their data; Lustre's own
//! ioctls are offered as xattrs instead (docs/semantics.md) and answered ENOTTY.

use coral_client::llite::types::{Attr, SetAttr};
use coral_wire::mds::fl;

use crate::abi::IoctlIn;
use crate::error::OpError;

/// `FS_IOC_GETFLAGS`: flags, 4 bytes as the kernel sends it.
pub(crate) const GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
pub(crate) const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`: a [`Fsxattr`].
pub(crate) const FSGETXATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub(crate) const FSSETXATTR: u32 = 0x401c_5820;

/// Flags as `chattr` has them (`FS_*_FL`, the same on the wire) beside those of `struct fsxattr` (`FS_XFLAG_*`).
const XFLAGS: [(u32, u32); 6] = [
    (fl::IMMUTABLE, 0x8),
    (fl::APPEND, 0x10),
    (fl::SYNC, 0x20),
    (fl::NOATIME, 0x40),
    (fl::NODUMP, 0x80),
    (fl::PROJINHERIT, 0x200),
];
/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;

/// What an ioctl asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Flags.
    Flags,
    /// Flags and project id.
    Fsxattr,
    /// To change them.
    Set(SetAttr),
}

fn word(data: &[u8], at: usize) -> Result<u32, OpError> {
    let raw = data.get(at..at + 4).and_then(|b| b.try_into().ok());
    raw.map(u32::from_ne_bytes).ok_or(OpError::BadValue)
}

/// What the request asks; ENOTTY for other ioctls.
pub(crate) fn parse(i: &IoctlIn, data: &[u8]) -> Result<Asked, OpError> {
    match i.cmd {
        GETFLAGS => Ok(Asked::Flags),
        FSGETXATTR => Ok(Asked::Fsxattr),
        SETFLAGS => Ok(Asked::Set(SetAttr {
            flags: Some(word(data, 0)?),
            ..Default::default()
        })),
        FSSETXATTR if data.len() >= FSXATTR_BYTES => {
            let x = word(data, 0)?;
            let flags = XFLAGS
                .iter()
                .filter(|(_, xf)| x & xf != 0)
                .map(|(f, _)| f)
                .sum();
            Ok(Asked::Set(SetAttr {
                flags: Some(flags),
                projid: Some(word(data, 12)?),
                ..Default::default()
            }))
        }
        _ => Err(OpError::NotAnIoctl),
    }
}

/// A change without what is as it is.
pub(crate) fn changed(set: SetAttr, now: &Attr) -> SetAttr {
    // what `struct fsxattr` cannot say stays
    let known: u32 = XFLAGS.iter().map(|(f, _)| f).sum();
    let flags = set.flags.map(|f| {
        if set.projid.is_some() {
            now.flags & !known | f
        } else {
            f
        }
    });
    SetAttr { flags, ..set }.beside(now)
}

/// The data of the answer.
pub(crate) fn answer(asked: &Asked, a: &Attr) -> Vec<u8> {
    match asked {
        Asked::Flags => a.flags.to_ne_bytes().to_vec(),
        Asked::Fsxattr => {
            let x: u32 = XFLAGS
                .iter()
                .filter(|(f, _)| a.flags & f != 0)
                .map(|(_, xf)| xf)
                .sum();
            let mut out = vec![0; FSXATTR_BYTES];
            out[..4].copy_from_slice(&x.to_ne_bytes());
            out[12..16].copy_from_slice(&a.projid.to_ne_bytes());
            out
        }
        Asked::Set(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(flags: u32, projid: u32) -> Attr {
        let t = Default::default();
        let fid = coral_wire::Fid::ROOT;
        Attr {
            fid,
            mode: 0,
            uid: 0,
            gid: 0,
            projid,
            size: 0,
            blocks: 0,
            nlink: 1,
            rdev: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            blksize: 1,
            flags,
        }
    }

    #[test]
    fn a_project_reads_back_as_it_was_set() {
        let i = |cmd| IoctlIn {
            fh: 0,
            flags: 0,
            cmd,
            arg: 0,
            in_size: 28,
            out_size: 28,
        };
        let a = attr(0x2000_0010, 1000);
        let raw = answer(&parse(&i(FSGETXATTR), &[]).unwrap(), &a);
        assert_eq!((word(&raw, 0), word(&raw, 12)), (Ok(0x208), Ok(1000)));
        let Asked::Set(set) = parse(&i(FSSETXATTR), &raw).unwrap() else {
            panic!()
        };
        assert_eq!((set.flags, set.projid), (Some(0x2000_0010), Some(1000)));
        assert_eq!(changed(set, &a), SetAttr::default());
        assert_eq!(
            changed(set, &attr(0x2000_0011, 7)).projid,
            Some(1000),
            "flags fsxattr does not know stay"
        );
        assert_eq!(changed(set, &attr(0x2000_0011, 7)).flags, None);
        assert_eq!(parse(&i(FSSETXATTR), &raw[..20]), Err(OpError::NotAnIoctl));
        assert_eq!(parse(&i(0x1234), &[]), Err(OpError::NotAnIoctl));
    }
}
