//! Layouts that opens give to files.

use bytes::Bytes;
use coral_wire::mds::open as flag;
use coral_wire::{Errno, Fid};

use super::{Open, is_lmv_space};
use crate::mdt::core::MdtCore;
use crate::mdt::ctx::Ctx;
use crate::mdt::record::Inode;
use crate::mdt::reint::inherited_layout;
use crate::mdt::store::{MdtResult, Txn};
use crate::mdt::stripe;

impl Ctx {
    /// The layout of the file an open creates: what came with the request, what is inherited, or
    /// none if it shall be made later.
    pub(super) fn new_layout(
        &self,
        core: &mut MdtCore,
        t: &mut Txn<'_>,
        o: &Open<'_>,
    ) -> MdtResult<Bytes> {
        // a kernel client replays with the layout it was given, and says HAS_EA only if it had asked for one (`mdt_open_unpack`)
        if o.replay && stripe::has_objects(o.ea) {
            return Ok(o.ea.clone());
        }
        let wanted = if o.has(flag::HAS_EA) && !o.ea.is_empty() && !is_lmv_space(o.ea) {
            Some(stripe::request_of(o.ea)?)
        } else if o.has(flag::DELAY_CREATE) {
            return Ok(Bytes::new());
        } else {
            inherited_layout(t, Some(&o.rec.fid1))?
        };
        let (mut alloc, store) = core.allocator();
        alloc.layout(store, &o.rec.fid2, wanted.as_ref())
    }

    /// Whether opening gives the file a layout: it has none and is to be written, or one is asked for.
    pub(super) fn wants_layout(&self, o: &Open<'_>, ino: &Inode) -> bool {
        // a replay that finds the layout it brings is done with it
        let asked = o.asks_layout() && (!o.replay || ino.lov.is_empty());
        ino.is_reg()
            && (asked
                || (ino.lov.is_empty()
                    && o.has(flag::WRITE)
                    && !o.has(flag::DELAY_CREATE | flag::LEASE)))
    }

    pub(super) fn late_layout(
        &self,
        core: &mut MdtCore,
        o: &Open<'_>,
        fid: &Fid,
    ) -> MdtResult<Option<Bytes>> {
        if !o.asks_layout() {
            return self.missing_layout(core, fid);
        }
        if !core.store.inode(fid)?.lov.is_empty() {
            // setting a layout on a file that has objects
            return if o.replay {
                Ok(None)
            } else {
                Err(Errno::EEXIST.into())
            };
        }
        if o.replay && stripe::has_objects(o.ea) {
            return Ok(Some(o.ea.clone()));
        }
        let wanted = stripe::request_of(o.ea)?;
        let (mut alloc, store) = core.allocator();
        Ok(Some(alloc.layout(store, fid, Some(&wanted))?))
    }
}
