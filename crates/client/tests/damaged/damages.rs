//! The ways in which tables are damaged.

use bytes::Bytes;
use coral_server::mdt::table;
use coral_wire::Fid;
use coral_wire::coral::updates::{OpId, Stamp, Update};

use super::Hurt;

const DIR: u32 = 0o040755;
const REG: u32 = 0o100644;

/// One way.
pub struct Damage {
    pub name: &'static str,
    pub hurt: fn(&Hurt<'_>),
    /// Paths that are gone for good afterwards, with what is below.
    pub gone: &'static [&'static str],
    /// Paths that are in `lost+found` afterwards, by their FIDs, with what is below.
    pub lost: &'static [&'static str],
    /// Such paths whose data is lost.
    pub empty: &'static [&'static str],
    /// A target does not start with it, or nobody can mount.
    pub refused: bool,
}

const fn same(name: &'static str, hurt: fn(&Hurt<'_>)) -> Damage {
    Damage {
        name,
        hurt,
        gone: &[],
        lost: &[],
        empty: &[],
        refused: false,
    }
}

const fn gone(name: &'static str, gone: &'static [&'static str], hurt: fn(&Hurt<'_>)) -> Damage {
    Damage {
        gone,
        ..same(name, hurt)
    }
}

const fn lost(name: &'static str, lost: &'static [&'static str], hurt: fn(&Hurt<'_>)) -> Damage {
    Damage {
        lost,
        ..same(name, hurt)
    }
}

fn key(fid: &Fid) -> Vec<u8> {
    table::fid_key(fid).to_vec()
}

/// A record that nothing can be read of.
fn unreadable(h: &Hurt<'_>, fid: &Fid) {
    h.put(h.home(fid), table::INODE, key(fid), &b"\x09nonsense"[..]);
}

fn link_row(h: &Hurt<'_>) -> Bytes {
    let fid = h.fid("d/many");
    let mut rows = h.rows(0, table::LINK).into_iter();
    rows.find(|(k, _)| table::fid_of_key(k) == Some(fid))
        .expect("links behind the record")
        .0
}

/// A name in a striped directory with the shard it is in and another.
fn in_shard(h: &Hurt<'_>, name: &str) -> (Fid, Fid) {
    let lmv = h.lmv(&h.fid("s"));
    let at = lmv.shard_of(name.as_bytes()).unwrap();
    (lmv.stripe_fids[at], lmv.stripe_fids[(at + 1) % 3])
}

fn prepared(h: &Hurt<'_>, number: u32, decided: bool) {
    let id = OpId {
        coordinator: 1,
        instance: 900,
        number,
    };
    let (dir, child) = (Fid::ROOT, h.fid("f4"));
    let time = Stamp::default();
    let name = Bytes::from_static(b"f5");
    let updates = [
        Update::DelEntry { dir, name },
        Update::Touch {
            dir,
            nlink: 0,
            time,
        },
        Update::AddEntry {
            dir,
            name: Bytes::from_static(b"f4"),
            child,
            file_type: 0o100000,
        },
        Update::Object {
            fid: h.fid("f5"),
            nlink: -1,
            time,
            dropped: vec![coral_wire::coral::updates::Look {
                dir,
                name: Bytes::from_static(b"f5"),
            }],
            added: vec![],
        },
    ];
    h.put(
        0,
        table::PREPARED,
        id.key().to_vec(),
        Update::encode_all(&updates),
    );
    if decided {
        h.put(
            1,
            table::DECIDED,
            id.key().to_vec(),
            0u32.to_le_bytes().to_vec(),
        );
    }
    // something for the check to name: of operations alone it says that a start ends them
    h.change(&h.fid("f0"), |i| i.nlink = 3);
}

/// All of them.
pub const ALL: &[Damage] = &[
    gone("a record is gone", &["d/a"], |h| h.del_inode(&h.fid("d/a"))),
    same("an entry is gone", |h| h.del_entry(&h.fid("d"), "a")),
    lost(
        "an entry is gone, and its object does not remember it",
        &["d/a"],
        |h| {
            h.del_entry(&h.fid("d"), "a");
            h.change(&h.fid("d/a"), |i| i.links.clear());
        },
    ),
    lost("an object without a name counts none", &["f1"], |h| {
        h.del_entry(&Fid::ROOT, "f1");
        h.change(&h.fid("f1"), |i| {
            i.links.clear();
            i.nlink = 0;
        });
    }),
    same("a record is torn", |h| {
        let fid = h.fid("f2");
        let raw = h.raw(&fid);
        h.put(
            h.home(&fid),
            table::INODE,
            key(&fid),
            raw.slice(..raw.len() - 1),
        );
    }),
    gone("a record cannot be read", &["f2"], |h| {
        unreadable(h, &h.fid("f2"))
    }),
    same("a directory's record cannot be read", |h| {
        unreadable(h, &h.fid("d"))
    }),
    Damage {
        refused: true,
        ..same("the root's record is gone", |h| h.del_inode(&Fid::ROOT))
    },
    same("an inode key is short", |h| {
        h.put(0, table::INODE, &b"short"[..], &b"x"[..])
    }),
    same("a wrong link count", |h| {
        h.change(&h.fid("f0"), |i| i.nlink = 7)
    }),
    same("a wrong link count of a directory", |h| {
        h.change(&h.fid("d"), |i| i.nlink = 0)
    }),
    same("a directory has two names", |h| {
        h.entry(&Fid::ROOT, "again", &h.fid("d/e"), DIR);
    }),
    same("\"..\" leads elsewhere", |h| {
        let one = h.fid("one");
        h.change(&h.fid("d/e"), |i| i.links[0].parent = one);
    }),
    same("a wrong type", |h| {
        h.entry(&Fid::ROOT, "f0", &h.fid("f0"), DIR)
    }),
    same("a wrong hash", |h| {
        h.del_entry(&Fid::ROOT, "f0");
        let at = table::dirent_key(&Fid::ROOT, 77, b"f0");
        h.put(0, table::DIRENT, at, table::dirent_value(&h.fid("f0"), REG));
    }),
    same("an entry that does not parse", |h| {
        let at = table::dirent_key(&Fid::ROOT, table::name_hash(b"f0"), b"f0");
        h.put(0, table::DIRENT, at, &b"torn"[..]);
    }),
    same("an entry on another MDT than its directory", |h| {
        h.del_entry(&Fid::ROOT, "f0");
        let at = table::dirent_key(&Fid::ROOT, table::name_hash(b"f0"), b"f0");
        h.put(2, table::DIRENT, at, table::dirent_value(&h.fid("f0"), REG));
    }),
    same("an impossible name", |h| {
        h.entry(&Fid::ROOT, "x/y", &h.fid("f0"), REG)
    }),
    same("an entry in a file", |h| {
        h.entry(&h.fid("f0"), "in", &h.fid("f1"), REG)
    }),
    same("an entry in nothing", |h| {
        let nothing = Fid::new(h.fid("f0").seq, 99_999);
        let at = table::dirent_key(&nothing, table::name_hash(b"n"), b"n");
        h.put(
            0,
            table::DIRENT,
            at,
            table::dirent_value(&Fid::new(nothing.seq, 88_888), REG),
        );
    }),
    same("a name of the root", |h| {
        h.entry(&h.fid("d"), "up", &Fid::ROOT, DIR)
    }),
    lost("a circle of directories", &["d"], |h| {
        let (d, e) = (h.fid("d"), h.fid("d/e"));
        h.del_entry(&Fid::ROOT, "d");
        h.entry(&e, "loop", &d, DIR);
        h.change(&d, |i| {
            i.links[0].parent = e;
            i.links[0].name = Bytes::from_static(b"loop");
        });
    }),
    same("a live file in the list of open ones", |h| {
        h.put(0, table::ORPHAN, key(&h.fid("f0")), Bytes::new());
        h.change(&h.fid("f0"), |i| i.nlink = 0);
    }),
    gone("a name over MDTs leads to nothing", &["one/far"], |h| {
        h.del_inode(&h.fid("one/far"))
    }),
    same("an entry over MDTs is gone", |h| {
        h.del_entry(&Fid::ROOT, "one")
    }),
    lost("a directory over MDTs has lost its name", &["one"], |h| {
        h.del_entry(&Fid::ROOT, "one");
        h.change(&h.fid("one"), |i| i.links.clear());
    }),
    same("a directory on another MDT has lost its record", |h| {
        h.del_inode(&h.fid("one"))
    }),
    same("a shard has lost its record", |h| {
        h.del_inode(&in_shard(h, "g1").0)
    }),
    same("a master has lost its record", |h| h.del_inode(&h.fid("s"))),
    same("a master does not list a shard", |h| {
        let mut lmv = h.lmv(&h.fid("s"));
        lmv.stripe_fids.pop();
        h.set_lmv(&h.fid("s"), Some(lmv.encode()));
    }),
    same("a master lists a shard that is none", |h| {
        let mut lmv = h.lmv(&h.fid("s"));
        lmv.stripe_fids[1] = Fid::new(lmv.stripe_fids[1].seq, 77_777);
        h.set_lmv(&h.fid("s"), Some(lmv.encode()));
    }),
    same("a master has lost its attribute", |h| {
        h.set_lmv(&h.fid("s"), None)
    }),
    same("a master's attribute does not parse", |h| {
        h.set_lmv(&h.fid("s"), Some(Bytes::from_static(b"torn")));
    }),
    same("a shard has lost its attribute", |h| {
        h.set_lmv(&in_shard(h, "g1").0, None)
    }),
    same("a shard's attribute does not parse", |h| {
        h.set_lmv(&in_shard(h, "g1").0, Some(Bytes::from_static(b"torn")));
    }),
    same("a shard says another number", |h| {
        let shard = in_shard(h, "g1").0;
        let mut lmv = h.lmv(&shard);
        lmv.head.master_mdt_index = 9;
        h.set_lmv(&shard, Some(lmv.encode()));
    }),
    same("a master does not name a shard", |h| {
        let fids = h.lmv(&h.fid("s")).stripe_fids;
        h.del_entry(&h.fid("s"), &format!("{}:2", fids[2]));
    }),
    same("a shard has another owner", |h| {
        h.change(&in_shard(h, "g1").0, |i| i.uid = 5)
    }),
    same("a name in the wrong shard", |h| {
        let (right, wrong) = in_shard(h, "g1");
        h.del_entry(&right, "g1");
        h.entry(&wrong, "g1", &h.fid("s/g1"), REG);
    }),
    same("a name in the wrong shard and in the right one", |h| {
        h.entry(&in_shard(h, "g1").1, "g1", &h.fid("s/g1"), REG);
    }),
    same("a name in a master", |h| {
        h.del_entry(&in_shard(h, "g1").0, "g1");
        h.entry(&h.fid("s"), "g1", &h.fid("s/g1"), REG);
    }),
    same("MDT0000 does not know a range", |h| {
        h.del(0, table::FLD, h.rows(1, table::FLD)[0].0.clone())
    }),
    same("an MDT does not know its range", |h| {
        h.del(1, table::FLD, h.rows(1, table::FLD)[0].0.clone())
    }),
    same("two MDTs hold a range", |h| {
        let (k, v) = h.rows(1, table::FLD)[0].clone();
        h.put(2, table::FLD, k, [&v[..8], &2u32.to_le_bytes()].concat());
    }),
    same("a range that overlaps", |h| {
        let (k, v) = h.rows(1, table::FLD)[0].clone();
        let start = u64::from_be_bytes(k[..].try_into().unwrap()) + 5;
        h.put(0, table::FLD, start.to_be_bytes().to_vec(), v);
        h.change(&h.fid("f0"), |i| i.nlink = 3);
    }),
    same("a range that does not parse", |h| {
        h.put(0, table::FLD, &b"torn"[..], &b"x"[..])
    }),
    same("sequences in use would be given again", |h| {
        let (k, _) = h.rows(1, table::FLD)[0].clone();
        let start = u64::from_be_bytes(k[..].try_into().unwrap());
        h.put(1, table::META, &b"seq"[..], start.to_le_bytes().to_vec());
    }),
    same("a record lies on two MDTs", |h| {
        let fid = h.fid("d/a");
        h.put(2, table::INODE, key(&fid), h.raw(&fid));
    }),
    same("another record lies on a second MDT", |h| {
        let fid = h.fid("d/a");
        h.put(2, table::INODE, key(&fid), h.raw(&h.fid("f0")));
    }),
    same("a record lies on the wrong MDT", |h| {
        let fid = h.fid("d/e");
        h.put(2, table::INODE, key(&fid), h.raw(&fid));
        h.del_inode(&fid);
    }),
    Damage {
        empty: &["f4"],
        ..lost("two files have one object", &["f4"], |h| {
            let lov = coral_server::mdt::record::Inode::decode(&h.raw(&h.fid("f3")))
                .unwrap()
                .lov;
            h.change(&h.fid("f4"), |i| i.lov = lov);
        })
    },
    same("a file's object is to be destroyed", |h| {
        let ino = coral_server::mdt::record::Inode::decode(&h.raw(&h.fid("f3"))).unwrap();
        let (ost, id) = coral_server::mdt::stripe::objects(&ino.lov)[0];
        h.put(
            0,
            table::DESTROY,
            table::destroy_key(ost, id - 1),
            3u32.to_le_bytes().to_vec(),
        );
    }),
    same("a wrong sum", |h| {
        let (k, _) = h.rows(0, table::USAGE)[0].clone();
        h.put(0, table::USAGE, k, [9u8; 16].to_vec());
    }),
    same("a sum that does not parse", |h| {
        h.put(0, table::USAGE, &b"torn"[..], &b"x"[..])
    }),
    same("the value of an extended attribute is gone", |h| {
        h.del(
            h.home(&h.fid("d/a")),
            table::XATTR,
            table::xattr_key(&h.fid("d/a"), b"user.big"),
        );
    }),
    same(
        "the value of an extended attribute is of another length",
        |h| {
            h.put(
                h.home(&h.fid("d/a")),
                table::XATTR,
                table::xattr_key(&h.fid("d/a"), b"user.big"),
                &b"small"[..],
            );
        },
    ),
    same("a value of nobody's extended attribute", |h| {
        h.put(
            0,
            table::XATTR,
            table::xattr_key(&h.fid("f0"), b"user.none"),
            &b"x"[..],
        );
    }),
    same("a link behind a record is gone", |h| {
        h.del(0, table::LINK, link_row(h))
    }),
    same("a link that does not parse", |h| {
        h.put(0, table::LINK, &b"torn"[..], Bytes::new())
    }),
    Damage {
        refused: true,
        ..same("a part of an operation does not parse", |h| {
            let id = OpId {
                coordinator: 1,
                instance: 900,
                number: 1,
            };
            h.put(
                0,
                table::PREPARED,
                id.key().to_vec(),
                &b"\xff\xff\xff\xfftorn"[..],
            );
        })
    },
    same("a part of an operation that was not decided", |h| {
        prepared(h, 2, false)
    }),
    gone("a part of an operation that was decided", &["f5"], |h| {
        prepared(h, 3, true)
    }),
];
