//! The state of one MDT behind its one lock: tables, open handles, allocators.
//!
//! Everything that changes the name space goes: lock the core, build a [`Txn`], commit its batch
//! through the target (which gives the transno), unlock. So transnos follow the order of changes.
//! What only reads shares the lock with others that do: no half of a change is seen. What a change is going to read may be read
//! before it has the lock ([`super::store::Early`]); nobody is answered with it.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use coral_metrics::Histogram;
use coral_osd::{Batch, Device, Kv, Time};
use coral_wire::fid::Fid;
#[cfg(doc)]
use coral_wire::fid::seq;
use coral_wire::fld::LuSeqRange;
use coral_wire::layout::LmvUserMd;
use parking_lot::RwLockWriteGuard;
use tokio::time::Instant;

use super::fld;
use super::object_ids::{ObjectIds, OstSpace};
use super::open_handles::OpenTable;
use super::record::{Inode, S_IFDIR, XattrValue};
use super::store::{MdtResult, Store};
use super::stripe::{Allocator, StripeDefaults};
use super::table::{self, fid_key};
use super::xattr::TRUSTED_DMV;

/// Version of the tables' format; a newer one is refused. 2: inode records may be of the second format. 3: there are other MDTs,
/// on which objects may lie that are named here. 4: directories may be in shards.
pub const FORMAT: u32 = 4;
/// The format of an MDT without others.
const FORMAT_ALONE: u32 = 2;
/// The formats, old and new, of an MDT that has others.
const FORMATS_OF_SEVERAL: [u32; 2] = [3, FORMAT];
const KEY_FORMAT: &[u8] = b"format";
const KEY_STRIPE: &[u8] = b"stripe";

/// Writes an empty name space into `kv`, that of the MDT `index`: the root directory, of `owner` (uid, gid), which MDT0000 has,
/// and the defaults.
pub fn format(
    kv: &Device,
    index: u32,
    now: Time,
    defaults: &StripeDefaults,
    owner: (u32, u32),
) -> MdtResult<()> {
    let root = Inode {
        mode: S_IFDIR | 0o755,
        uid: owner.0,
        gid: owner.1,
        nlink: 2,
        size: super::namespace::DIR_SIZE_BYTES,
        blocks: 8,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        // directories near the root go to all MDTs in turn
        xattrs: vec![(
            Bytes::from_static(TRUSTED_DMV),
            XattrValue::Inline(LmvUserMd::of_new_root().encode()),
        )],
        ..Inode::default()
    };
    let mut b = Batch::new();
    let format = match index {
        0 => FORMAT_ALONE,
        _ => FORMAT,
    };
    b.put(table::META, KEY_FORMAT, format.to_le_bytes().to_vec());
    b.put(table::META, KEY_STRIPE, encode_defaults(defaults));
    b.put(table::META, fld::KEY_INDEX, index.to_le_bytes().to_vec());
    if index == 0 {
        b.put(
            table::META,
            fld::KEY_SEQ,
            fld::FIRST.0.to_le_bytes().to_vec(),
        );
        b.put(table::INODE, fid_key(&Fid::ROOT).to_vec(), root.encode());
    }
    kv.commit(b)?;
    // counts the root directory
    Store::open(kv.clone()).map(drop)
}

/// Whether there is a name space in `kv`.
pub fn is_formatted(kv: &dyn Kv) -> Result<bool, coral_osd::OsdError> {
    Ok(kv.get(table::META, KEY_FORMAT)?.is_some())
}

/// Tables of an older format become this program's: what it writes from here on only it and later ones read. `alone`: no other
/// MDT is known.
pub fn raise_format(kv: &Device, alone: bool) -> MdtResult<()> {
    let wanted = if alone { FORMAT_ALONE } else { FORMAT };
    if format_of(&**kv)?.is_some_and(|found| found < wanted) {
        let mut b = Batch::new();
        b.put(table::META, KEY_FORMAT, wanted.to_le_bytes().to_vec());
        kv.commit(b)?;
        kv.sync_soon()?;
    }
    Ok(())
}

/// Whether there were other MDTs when the tables were last used.
pub fn has_others(kv: &dyn Kv) -> MdtResult<bool> {
    Ok(format_of(kv)?.is_some_and(|found| FORMATS_OF_SEVERAL.contains(&found)))
}

/// The format of the tables in `kv`, if there is a name space.
pub(super) fn format_of(kv: &dyn Kv) -> Result<Option<u32>, coral_osd::OsdError> {
    let raw = kv.get(table::META, KEY_FORMAT)?;
    Ok(raw.map(|raw| raw.as_ref().try_into().map_or(u32::MAX, u32::from_le_bytes)))
}

fn encode_defaults(d: &StripeDefaults) -> Vec<u8> {
    [
        d.stripe_size.to_le_bytes().as_slice(),
        &d.stripe_count.to_le_bytes(),
    ]
    .concat()
}

fn decode_defaults(raw: &Bytes) -> Option<StripeDefaults> {
    let stripe_size = u32::from_le_bytes(raw.get(..4)?.try_into().ok()?);
    let stripe_count = u16::from_le_bytes(raw.get(4..6)?.try_into().ok()?);
    Some(StripeDefaults {
        stripe_size,
        stripe_count,
    })
}

/// Why an MDT cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MdtOpenError {
    /// Nothing was ever formatted here.
    #[error("the metadata tables are not formatted")]
    NotFormatted,
    /// Written by a newer Coral.
    #[error("the metadata tables have format {found}, this program knows {FORMAT}")]
    Newer {
        /// The format found.
        found: u32,
    },
    /// A parameter that was kept and decides whom the MDT believes cannot be set.
    #[error("the kept parameter '{name}': {why}")]
    Param {
        /// Its name.
        name: &'static str,
        /// Why not.
        why: String,
    },
    /// The device failed.
    #[error(transparent)]
    Store(#[from] super::store::MdtError),
    /// The device failed.
    #[error(transparent)]
    Osd(#[from] coral_osd::OsdError),
}

/// The state of one MDT.
pub struct MdtCore {
    /// The tables.
    pub store: Store,
    /// Open handles.
    pub opens: OpenTable,
    /// OST object ids.
    pub ids: ObjectIds,
    /// The OSTs, in index order.
    pub osts: Vec<OstSpace>,
    /// Layout of files nobody said anything about.
    pub defaults: StripeDefaults,
    /// Clients that had files open before the restart may yet come back to them.
    pub recovering: bool,
    /// The next FID for an object that a server makes here, out of a sequence of this start's own.
    pub(super) server_fid: Option<Fid>,
}

/// The state of an MDT while it is changed; how long that takes is counted.
pub struct Changing<'a> {
    core: RwLockWriteGuard<'a, MdtCore>,
    begun: Instant,
    locked: &'a Histogram,
}

impl<'a> Changing<'a> {
    pub(super) fn new(core: RwLockWriteGuard<'a, MdtCore>, locked: &'a Histogram) -> Changing<'a> {
        Changing {
            core,
            begun: Instant::now(),
            locked,
        }
    }
}

impl Deref for Changing<'_> {
    type Target = MdtCore;
    fn deref(&self) -> &MdtCore {
        &self.core
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut MdtCore {
        &mut self.core
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.locked.record_time(self.begun.elapsed());
    }
}

impl MdtCore {
    /// Opens formatted tables.
    pub fn open(kv: Device) -> Result<MdtCore, MdtOpenError> {
        let found = format_of(&*kv)?.ok_or(MdtOpenError::NotFormatted)?;
        if found > FORMAT {
            return Err(MdtOpenError::Newer { found });
        }
        let defaults = kv
            .get(table::META, KEY_STRIPE)?
            .and_then(|r| decode_defaults(&r))
            .unwrap_or_default();
        let store = Store::open(kv)?;
        Ok(MdtCore {
            store,
            opens: OpenTable::default(),
            ids: ObjectIds::default(),
            osts: Vec::new(),
            defaults,
            recovering: false,
            server_fid: None,
        })
    }

    /// Changes the file system's default layout for good.
    pub fn set_defaults(&mut self, d: StripeDefaults) -> MdtResult<()> {
        if self.defaults != d {
            let mut b = Batch::new();
            b.put(table::META, KEY_STRIPE, encode_defaults(&d));
            self.store.kv().commit(b)?;
            self.defaults = d;
        }
        Ok(())
    }

    /// The allocator of OST objects for one transaction, beside the tables.
    pub fn allocator(&mut self) -> (Allocator<'_>, &Store) {
        self.ids.begin();
        (
            Allocator {
                ids: &mut self.ids,
                osts: &self.osts,
                defaults: self.defaults,
            },
            &self.store,
        )
    }

    /// Gives a client a sequence of [`seq::WIDTH`] object ids to name new files with; `None`: this MDT needs a super-sequence
    /// first. On disk before the client is told: a sequence is never given twice, also after power loss.
    pub fn take_sequence(&mut self) -> MdtResult<Option<LuSeqRange>> {
        let kv = self.store.kv();
        let Some((start, b)) = fld::next_sequence(&**kv)? else {
            return Ok(None);
        };
        kv.commit(b)?;
        kv.sync_soon()?;
        Ok(Some(LuSeqRange {
            start,
            end: start + 1,
            index: self.store.fld().index(),
            flags: 0,
        }))
    }

    /// Gives the MDT `index` a super-sequence; of MDT0000. On disk before it is told.
    pub fn give_super(&mut self, index: u32) -> MdtResult<LuSeqRange> {
        let (kv, fld) = (self.store.kv(), self.store.fld());
        let (range, b) = fld.next_super(index);
        kv.commit(b)?;
        kv.sync_soon()?;
        fld.add(&range);
        Ok(range)
    }

    /// This MDT was given a super-sequence.
    pub fn own(&mut self, range: &LuSeqRange) -> MdtResult<()> {
        let (kv, fld) = (self.store.kv(), self.store.fld());
        kv.commit(fld.own(range))?;
        kv.sync_soon()?;
        fld.add(range);
        Ok(())
    }

    /// At most `limit` FIDs of objects without a name that were open when the target stopped, behind `last`.
    pub fn orphans_after(&self, last: Option<Fid>, limit: usize) -> MdtResult<Vec<Fid>> {
        let from = last.map_or(Vec::new(), |f| [fid_key(&f).as_slice(), &[0]].concat());
        let rows = self.store.kv().range(table::ORPHAN, &from, None, limit)?;
        Ok(rows
            .iter()
            .filter_map(|(k, _)| table::fid_of_key(k))
            .collect())
    }
}
