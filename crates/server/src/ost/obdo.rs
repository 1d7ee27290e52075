//! Between the attributes of stored objects and the obdo of the wire (`lustre/obdclass/obdo.c`).

use coral_osd::{ObjAttr, SetAttr, Time};
use coral_wire::coral::{pack_time, unpack_time};
use coral_wire::ost::{Obdo, OstLvb, md};

use crate::nodemap::{IdType, View};

/// Type and mode of every object, as a client sees it (`S_IFREG | 0666`).
const MODE: u32 = 0o100_666;

/// How times travel on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    /// Whole seconds, as in Lustre.
    Seconds,
    /// With nanoseconds: both ends are Coral.
    Packed,
}

impl Times {
    fn encode(self, t: Time) -> i64 {
        match self {
            Times::Seconds => t.secs,
            Times::Packed => pack_time(t.secs, t.nsecs),
        }
    }

    fn decode(self, t: i64) -> Time {
        match self {
            Times::Seconds => Time::from_secs(t),
            Times::Packed => {
                let (secs, nsecs) = unpack_time(t);
                Time { secs, nsecs }
            }
        }
    }
}

/// Times, owner and parent that a request brings, by its valid bits.
pub(super) fn set_attr(oa: &Obdo, times: Times) -> SetAttr {
    let has = |bit| oa.valid & bit != 0;
    SetAttr {
        mtime: has(md::FLMTIME).then(|| times.decode(oa.mtime)),
        atime: has(md::FLATIME).then(|| times.decode(oa.atime)),
        ctime: has(md::FLCTIME).then(|| times.decode(oa.ctime)),
        uid: has(md::FLUID).then_some(oa.uid),
        gid: has(md::FLGID).then_some(oa.gid),
        projid: has(md::FLPROJID).then_some(oa.projid),
        parent: has(md::FLFID).then(|| {
            let (fid, stripe) = oa.parent();
            (fid.seq, fid.oid, stripe)
        }),
        if_unowned: false,
    }
}

/// Fills size, blocks, times, mode and type of an object into a reply, with their valid bits
/// (`OFD_VALID_FLAGS` as session.pcap shows it).
pub(super) fn fill(oa: &mut Obdo, a: &ObjAttr, times: Times) {
    oa.valid |= md::FLSIZE | md::FLBLOCKS | md::FLMODE | md::FLTYPE;
    oa.valid |= md::FLMTIME | md::FLATIME | md::FLCTIME;
    oa.size = a.size;
    oa.blocks = a.blocks;
    oa.mode = MODE;
    oa.mtime = times.encode(a.mtime);
    oa.atime = times.encode(a.atime);
    oa.ctime = times.encode(a.ctime);
}

/// Fills owner and project as well, as the client knows them.
pub(super) fn fill_owner(oa: &mut Obdo, a: &ObjAttr, view: &View) {
    oa.valid |= md::FLUID | md::FLGID | md::FLPROJID;
    (oa.uid, oa.gid) = (
        view.to_client(IdType::Uid, a.uid),
        view.to_client(IdType::Gid, a.gid),
    );
    oa.projid = view.to_client(IdType::Projid, a.projid);
}

/// The attributes as a lock carries them.
pub(super) fn lvb(a: &ObjAttr) -> OstLvb {
    OstLvb {
        size: a.size,
        blocks: a.blocks,
        mtime: a.mtime.secs,
        mtime_ns: a.mtime.nsecs,
        atime: a.atime.secs,
        atime_ns: a.atime.nsecs,
        ctime: a.ctime.secs,
        ctime_ns: a.ctime.nsecs,
        padding: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> ObjAttr {
        ObjAttr {
            size: 5,
            blocks: 8,
            mtime: Time { secs: 10, nsecs: 7 },
            atime: Time { secs: -1, nsecs: 0 },
            ctime: Time {
                secs: 1 << 32,
                nsecs: 999_999_999,
            },
            ..Default::default()
        }
    }

    #[test]
    fn the_valid_bits_are_a_real_servers() {
        let mut oa = Obdo {
            valid: md::FLID | md::FLGROUP,
            ..Default::default()
        };
        fill(&mut oa, &attr(), Times::Seconds);
        assert_eq!(oa.valid, 0x0100_01bf, "OST_SYNC reply of session.pcap");
        fill_owner(&mut oa, &attr(), &View::default());
        assert_eq!(
            oa.valid, 0x0100_0000_0100_07bf,
            "OST_SETATTR reply of session.pcap"
        );
    }

    #[test]
    fn times_come_back_whole_between_coral_ends() {
        let mut oa = Obdo::default();
        fill(&mut oa, &attr(), Times::Packed);
        let set = set_attr(&oa, Times::Packed);
        assert_eq!(
            (set.mtime, set.atime),
            (Some(attr().mtime), Some(attr().atime))
        );
        assert_eq!(
            (set.ctime, set.uid, set.parent),
            (Some(attr().ctime), None, None)
        );
        fill(&mut oa, &attr(), Times::Seconds);
        assert_eq!((oa.mtime, oa.atime, oa.ctime), (10, -1, 1 << 32));
    }
}
