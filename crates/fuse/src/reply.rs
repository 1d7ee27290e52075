//! Answers: an errno or a body, written to the device with one writev and no copy of file data.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::llite::types::{Attr as FileAttr, Entry, Timespec};
use smallvec::SmallVec;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, OutHeader};
use crate::error::OpError;
use crate::listings::Receipt;
use crate::nodes::generation;

/// Longest body kept inline: that of CREATE.
const SMALL: usize = size_of::<abi::CreateOut>();

/// What follows the header. Most answers fit inline.
pub(crate) enum Body {
    Empty,
    Small {
        bytes: [u8; SMALL],
        len: usize,
    },
    Bytes(Bytes),
    Vec(Vec<u8>),
    /// Names of a directory, the last of which is the receipt.
    Listing(Vec<u8>, Receipt),
    Payload(Payload),
}

/// One answer.
pub(crate) type Reply = Result<Body, OpError>;

impl Body {
    /// A structure of the kernel interface.
    pub fn of<T: IntoBytes + Immutable>(v: &T) -> Body {
        let v = v.as_bytes();
        let mut bytes = [0; SMALL];
        match bytes.get_mut(..v.len()) {
            Some(room) => {
                room.copy_from_slice(v);
                Body::Small {
                    bytes,
                    len: v.len(),
                }
            }
            None => Body::Vec(v.to_vec()),
        }
    }
}

/// Writes the answer to request `unique`. ENOENT means the kernel gave the request up; other errors end the session anyway.
pub(crate) fn send(dev: BorrowedFd<'_>, unique: u64, reply: &Reply) -> rustix::io::Result<()> {
    let mut header = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: 0,
        unique,
    };
    let mut one = |len: usize| header.len += len as u32;
    match reply {
        Err(e) => {
            header.error = -e.errno().0;
            write(dev, &[IoSlice::new(header.as_bytes())])
        }
        Ok(Body::Empty) => write(dev, &[IoSlice::new(header.as_bytes())]),
        Ok(Body::Small { bytes, len }) => {
            one(*len);
            write(
                dev,
                &[
                    IoSlice::new(header.as_bytes()),
                    IoSlice::new(&bytes[..*len]),
                ],
            )
        }
        Ok(Body::Bytes(b)) => {
            one(b.len());
            write(dev, &[IoSlice::new(header.as_bytes()), IoSlice::new(b)])
        }
        Ok(Body::Vec(b)) => {
            one(b.len());
            write(dev, &[IoSlice::new(header.as_bytes()), IoSlice::new(b)])
        }
        Ok(Body::Listing(b, receipt)) => {
            one(b.len());
            write(dev, &[IoSlice::new(header.as_bytes()), IoSlice::new(b)])?;
            receipt.sent();
            Ok(())
        }
        Ok(Body::Payload(p)) => {
            one(p.len());
            let all;
            let mut parts: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
            parts.push(IoSlice::new(header.as_bytes()));
            // writev takes 1024 parts; a payload has one per stripe piece, far fewer. Should it not, copy.
            if p.iter().len() < 1000 {
                parts.extend(p.iter().map(|s| IoSlice::new(s)));
                return write(dev, &parts);
            }
            all = p.copy_to_bytes();
            parts.push(IoSlice::new(&all));
            write(dev, &parts)
        }
    }
}

/// One message in one system call: the device takes it whole or not at all.
pub(crate) fn write(dev: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::io::writev(dev, parts)).map(drop)
}

/// Seconds and nanoseconds of a validity time.
pub(crate) fn ttl(d: Duration) -> (u64, u32) {
    (d.as_secs(), d.subsec_nanos())
}

/// Attributes as the kernel wants them.
pub(crate) fn attr(a: &FileAttr) -> abi::Attr {
    abi::Attr {
        ino: a.fid.flatten(),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.secs as u64,
        mtime: a.mtime.secs as u64,
        ctime: a.ctime.secs as u64,
        atimensec: a.atime.nanos,
        mtimensec: a.mtime.nanos,
        ctimensec: a.ctime.nanos,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

/// An entry the kernel will remember as `nodeid`; `entry_ttl` false withholds the name's validity.
pub(crate) fn entry(e: &Entry, nodeid: u64, entry_ttl: bool) -> abi::EntryOut {
    let (entry_valid, entry_valid_nsec) = if entry_ttl { ttl(e.entry_ttl) } else { (0, 0) };
    let (attr_valid, attr_valid_nsec) = ttl(e.attr_ttl);
    abi::EntryOut {
        nodeid,
        generation: generation(e.attr.fid),
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(&e.attr),
    }
}

impl abi::EntryOut {
    /// Whether the kernel may keep the name.
    pub(crate) fn is_kept(&self) -> bool {
        (self.entry_valid, self.entry_valid_nsec) != (0, 0)
    }

    /// The kernel looks the name up when it is asked for.
    pub(crate) fn unkept(self) -> Self {
        Self {
            entry_valid: 0,
            entry_valid_nsec: 0,
            ..self
        }
    }

    /// Its attributes may have changed meanwhile: the kernel asks when it needs them.
    pub(crate) fn doubtful(self) -> Self {
        Self {
            attr_valid: 0,
            attr_valid_nsec: 0,
            ..self
        }
    }
}

impl abi::AttrOut {
    /// The attributes may have changed meanwhile: the kernel asks when it needs them.
    pub(crate) fn doubtful(self) -> Self {
        Self {
            attr_valid: 0,
            attr_valid_nsec: 0,
            ..self
        }
    }
}

/// The answer to GETATTR and SETATTR.
pub(crate) fn attr_out(e: &Entry) -> abi::AttrOut {
    let (attr_valid, attr_valid_nsec) = ttl(e.attr_ttl);
    abi::AttrOut {
        attr_valid,
        attr_valid_nsec,
        dummy: 0,
        attr: attr(&e.attr),
    }
}

/// The answer to STATX: as GETATTR, with the time of birth.
pub(crate) fn statx_out(e: &Entry) -> abi::StatxOut {
    const BASIC_AND_BTIME: u32 = 0x0fff;
    let a = &e.attr;
    let time = |t: Timespec| abi::SxTime {
        tv_sec: t.secs,
        tv_nsec: t.nanos,
        reserved: 0,
    };
    let (attr_valid, attr_valid_nsec) = ttl(e.attr_ttl);
    let dev = u64::from(a.rdev);
    abi::StatxOut {
        attr_valid,
        attr_valid_nsec,
        stat: abi::Statx {
            mask: BASIC_AND_BTIME,
            blksize: a.blksize,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            mode: a.mode as u16,
            ino: a.fid.flatten(),
            size: a.size,
            blocks: a.blocks,
            atime: time(a.atime),
            btime: time(a.btime),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: rustix::fs::major(dev),
            rdev_minor: rustix::fs::minor(dev),
            ..Default::default()
        },
        ..Default::default()
    }
}
