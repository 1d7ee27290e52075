//! What two Coral ends agree on by [`ConnectFlags2::CORAL`](crate::connect::ConnectFlags2::CORAL),
//! a bit Lustre has not assigned. Without it in the connect reply nothing here is on the wire.
//!
//! On a connection to an OST the bit means:
//! * **bulk**: the bulk descriptors of a transfer end at multiples of 1 MiB of its data (with a stock end they also follow the
//!   pages of the object).
//! * **lock with a read**: an OST_READ of which the data comes in the reply, under a lock of the server's own, may have an
//!   `ldlm_request` in its buffer 6: of a PR lock on the whole object. The reply then has an `ldlm_reply` and an `ost_lvb` behind
//!   the data: the lock, and what the object is under it. Without a handle there is no lock and the value says nothing.
//! * **several glimpses in one**: an LDLM_ENQUEUE with `HAS_INTENT` may have further `ldlm_request`s in its buffer 2 ([`glimpses`]), of
//!   other objects. The reply has an `ldlm_reply` of each one after the other in its buffer 1, and the `ost_lvb`s in buffer 2. Nobody is
//!   asked for any of them: one that another client has locks on has the error EBUSY in its value, and is to be asked for alone. A
//!   [`glimpses::DataWanted`] in buffer 3 asks for the data of small objects. The reply then has in buffer 3 a checksum of all data and the
//!   length of each object's, both u32, and the data in buffer 4: of objects that were locked and that there was room for. One of which
//!   the client has a lock already is asked for with the mode NL, and no lock is given.
//! * **locks on blocks at one distance**: the fourth word of an extent's policy has [`blocks::Blocks`]. In an enqueue they are what the client
//!   writes of the object, the extent being one of them; where others have locks on it, or wait for some, the server may give a lock on
//!   these blocks, from the extent or one before it to the end of the object, or to where others' locks begin, in place of a longer extent. The policy of such a lock has
//!   them in every message.
//! * **first data written late**: a niobuf of an OST_WRITE with [`FIRST_WRITE`] brings the first data of a file that its client has made,
//!   some time after it was written. ESTALE where others have written to the object since; a replay is not asked about that.
//!
//! On a connection to an MGS a registration has the identity of the target's formatting (text, NUL) behind its list of
//! NIDs, and -EADDRINUSE comes with an `MgsTargetInfo` that has the NIDs of whoever has the index.
//!
//! On a connection to an MDT the bit means:
//! * **times with nanoseconds**: every time field of `MdtBody` (mtime, atime, ctime, btime) and of
//!   the reint records (time, mtime, atime, ctime) holds [`pack_time`] instead of seconds. On a
//!   connection to an OST the same holds for mtime, atime and ctime of an obdo.
//! * **own locks stay**: a reint or open of this client does not revoke the locks of this very
//!   client on parents and children (LAYOUT bits excepted). In exchange the reply says how the
//!   parents look now, so that the client's cache under those locks can follow: an `MdtBody` in the
//!   reply buffer CAPA1 for the parent (rename: of the source) and CAPA2 (rename: of the target
//!   directory, if another). A link reply has these buffers behind its body too. An unlink or
//!   rename says how the object that lost a name looks now in its main body (fid1 zero: nothing).
//! * **versions**: `MdtBody::version` counts the changes of the object; of two bodies of one object
//!   the one with the greater version is the newer.
//! * **access times**: the access time of a close counts only where it is later than the one before by more than
//!   [`ATIME_DIFF_S`]. A client that would tell one that does not count need not close.
//! * **attributes kept back**: an open that may make a file asks for it by [`KEPT_ATTRS`] in its bias. Its disposition says
//!   [`KEEPS_ATTRS`] when it made the file and the client may keep back what it sets of the file's attributes, while it has the file
//!   open so and holds the lock that came with the open. Before another client is told of the attributes, or they are relied on for
//!   it, the lock is called back, or its holder is asked by a glimpse and keeps it: either ends the right. What was kept comes in a
//!   setattr, or in the record of the close of that open, with [`KEPT_ATTRS`] in its bias; a setattr has the handle of the open. ESTALE
//!   when the right has ended, as with an eviction: nothing is set or closed. The reply to such a close is that of a setattr. A replay of
//!   such an open says `MDS_OPEN_CREATED`.
//! * **opens for reading that it is not told of**: a client reads a file without an open while it holds a lock on its names (LOOKUP) and
//!   everyone may read it by its mode, without an ACL, where the file's body says [`ANYONE`]. Before it gives that lock back it opens the
//!   file by its FID, for reading alone, with [`UNTOLD_OPEN`] in the bias. From who holds the lock that open waits for nobody, and needs no
//!   right: the file was open before. The access time of such a read comes in an MDS_CLOSE without a handle, with [`UNTOLD_OPEN`] in the
//!   bias of its record.
//! * **removals told late**: a client asks for the right to take names from a directory and tell of it later by the intent [`LEND`] in an
//!   LDLM_ENQUEUE, with the body of a getattr by FID, and behind it an `ldlm_request` of its own locks on the directory, which go for the
//!   new one. The answer is that of the getattr; its lock is EX on LOOKUP, UPDATE and PERM, and is the right. It is given when nobody else could notice: others' locks on
//!   the directory are called back first, and there must be none on anything that it names. As long as it is held, nobody
//!   else is told of the directory, of a name in it, or of an object whose only name is in it: the lock is called back before. Names go in
//!   an unlink with [`LENT`] in the bias, all or none: its name buffer has each with a NUL behind it, and buffer 6 the FIDs that they stand
//!   for, in that order ([`LENT_MAX`] at most). Buffer 7 may have as many handles, of opens that are closed with them, or 0; the reply's
//!   buffer 2 has the FIDs of the files of which one was. It needs no lock and waits for nobody; ESTALE when the right has ended, as with an eviction,
//!   or a name stands for something else.
//! * **creates told late**: the same right lets a client make files in the directory and tell of each later, by an open with [`LENT`] in
//!   its bias. That needs no lock and waits for nobody either; ESTALE when the right has ended, or the name is taken. The answer to an open
//!   that made a file in a directory that its client has so says [`MAY_MAKE`] in its disposition as long as none of the next files is
//!   refused for want of room. What they inherit the client has seen: the file is like one that it made there by asking first, for the
//!   same user and with the same mode.
//! * **rename flags**: `RecRename::padding_5` holds [`RENAME_NOREPLACE`] or [`RENAME_EXCHANGE`].
//! * **times of a setattr**: `attr::ATIME_SET` and `MTIME_SET` are set only for times the user chose
//!   (owner's right: EPERM), not for "now" (any writer's right: EACCES).
//!
//! Between two MDTs (`MDS_MDS` and `LIGHTWEIGHT` beside the bit) OUT_UPDATE holds an [`updates::Request`] in its first buffer
//! and the reply to it an [`updates::Seen`], or nothing.

pub mod blocks;
pub mod glimpses;
pub mod updates;

use crate::ldlm::Ibits;

/// Seconds between updates of a file's access time by closes (`mdd.*.atime_diff`).
pub const ATIME_DIFF_S: i64 = 60;

/// Disposition: the client may keep back attributes of the file that this open made.
pub const KEEPS_ATTRS: u64 = 1 << 62;
/// Bias of a setattr or of the record of a close: it brings attributes that were kept back, and needs no lock. Of an open: the client
/// would keep them back.
pub const KEPT_ATTRS: u32 = 1 << 31;

/// Bias of an open by FID: the file has been read under a lock of the client's, which others may be waiting for; no lock is wanted. Of
/// the record of a close: there was no open, and the access time is all that it brings.
pub const UNTOLD_OPEN: u32 = 1 << 30;
/// Mode of what everyone may read, for [`UNTOLD_OPEN`].
pub const READABLE: u32 = 0o444;
/// Valid bit of the body of a file: no user of this client is refused for being unknown.
pub const ANYONE: u64 = 1 << 62;

/// Flag of a niobuf: the data is the object's first, or is refused.
pub const FIRST_WRITE: u32 = 1 << 30;

/// Intent: the right to take names from a directory and tell of it later.
pub const LEND: u64 = 1 << 62;
/// Disposition of an open that made a file: the client has the directory to itself by [`LEND`], and there is room for more files.
pub const MAY_MAKE: u64 = 1 << 61;
/// Bias of an unlink, or of an open that makes a file: it is done under the right that [`LEND`] gives.
pub const LENT: u32 = 1 << 29;
/// What the lock covers that is the right.
pub const LENT_BITS: Ibits = Ibits::ATTRIBUTES;
/// Names of one such unlink.
pub const LENT_MAX: usize = 64;

/// The rename fails with EEXIST when the target exists.
pub const RENAME_NOREPLACE: u32 = 1;
/// The rename swaps source and target.
pub const RENAME_EXCHANGE: u32 = 2;

/// Bits of [`pack_time`] that hold nanoseconds.
const NSEC_BITS: u32 = 30;

/// Seconds since 1970 (within ±2^33, that is 272 years) and nanoseconds (0..1e9) in one word.
pub const fn pack_time(secs: i64, nsecs: u32) -> i64 {
    let limit = (1i64 << (63 - NSEC_BITS)) - 1;
    let secs = if secs > limit {
        limit
    } else if secs < -limit {
        -limit
    } else {
        secs
    };
    (secs << NSEC_BITS) | nsecs as i64
}

/// Seconds and nanoseconds of a packed time; nanoseconds beyond 999,999,999 are cut to that.
pub const fn unpack_time(packed: i64) -> (i64, u32) {
    let nsecs = (packed & ((1 << NSEC_BITS) - 1)) as u32;
    (
        packed >> NSEC_BITS,
        if nsecs > 999_999_999 {
            999_999_999
        } else {
            nsecs
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_packing() {
        for (s, n) in [
            (0, 0),
            (1, 999_999_999),
            (-1, 5),
            (1 << 32, 7),
            (-(1 << 32), 0),
        ] {
            assert_eq!(unpack_time(pack_time(s, n)), (s, n));
        }
        assert!(pack_time(i64::MAX, 0) > 0);
    }
}
