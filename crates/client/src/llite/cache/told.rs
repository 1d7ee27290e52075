//! What the caller is told: when a lock goes, what it may not remember any more; and of striped directories, of whose shards it
//! knows nothing.

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{Ibits, ResId};

use super::core::Core;
use super::known::{ATTR_BITS, Forget};
use crate::llite::shards::merge_attrs;
use crate::llite::types::Attr;

/// Bits whose loss is told: the attributes are not known any more.
const TOLD_BITS: u64 = ATTR_BITS | Ibits::LAYOUT.bits();

impl Core {
    /// The attributes of a striped directory, if those of all its shards are covered. The caller, who knows no shards, will be told
    /// of the directory when one of their locks goes.
    pub fn striped(&mut self, fid: Fid) -> Option<Attr> {
        let md = self.nodes.get(&fid)?.covered()?;
        let lmv = md.striped.clone()?;
        let shards = lmv.stripe_fids.iter().filter(|f| !f.is_zero());
        let attrs: Option<Vec<&Attr>> = shards
            .clone()
            .map(|f| Some(&self.nodes.get(f)?.covered()?.attr))
            .collect();
        let merged = merge_attrs(&md.attr, attrs?.into_iter());
        for shard in shards {
            self.shard_of.insert(*shard, fid);
        }
        Some(merged)
    }

    /// The striped directory of which this is a shard, if the caller may remember its attributes.
    pub fn directory_of(&self, shard: Fid) -> Option<Fid> {
        self.shard_of.get(&shard).copied()
    }

    /// An inode-bit lock on `bits` is called back or given up.
    pub fn lock_lost(&mut self, fid: Fid, cookie: u64, bits: u64) -> Forget {
        let mut out = self.lock_of_object_lost(fid, cookie, bits);
        if bits & TOLD_BITS != 0 {
            out.inodes.extend(self.shard_of.remove(&fid));
        }
        out
    }

    fn lock_of_object_lost(&mut self, fid: Fid, cookie: u64, bits: u64) -> Forget {
        let c = self;
        let elsewhere = c
            .nodes
            .get_mut(&fid)
            .map(|n| n.drop_links_elsewhere(cookie));
        if let Some(entries) = elsewhere.filter(|names| !names.is_empty()) {
            return Forget {
                inodes: Vec::new(),
                entries: entries.into_vec(),
            };
        }
        let Some(n) = c.nodes.get_mut(&fid).filter(|n| n.has_lock(cookie)) else {
            // what it covered went from here for want of room, or already; above us it may still be remembered
            let mut out = Forget::default();
            if bits & TOLD_BITS != 0 {
                out.inodes.push(fid);
            }
            if bits & ATTR_BITS != 0 {
                out.entries.push((fid, Bytes::new()));
            }
            return out;
        };
        let (lost, links) = n.drop_lock(cookie);
        let mut out = Forget::default();
        if lost & TOLD_BITS != 0 {
            out.inodes.push(fid);
        }
        out.entries = links.into_vec();
        if lost & Ibits::LOOKUP.bits() != 0 && out.entries.is_empty() {
            // names that a listing brought are not kept here, but may be remembered above us
            out.entries.push((fid, Bytes::new()));
        }
        out
    }

    /// An extent lock goes: the size and times it covered are not known any more. Above us they may be remembered also where they
    /// went from here before, for want of room or with another lock.
    pub fn extent_lost(&mut self, ost: u32, res: ResId) -> Forget {
        let fid = self.objects.remove(&(ost, res));
        if let Some(n) = fid.and_then(|f| self.nodes.get_mut(&f)) {
            n.objects = None;
            n.data = None;
        }
        Forget {
            inodes: fid.into_iter().collect(),
            entries: Vec::new(),
        }
    }

    /// Everything is void (eviction).
    pub fn clear(&mut self) -> Forget {
        let c = self;
        let mut out = Forget::default();
        c.begin_anew();
        c.objects.clear();
        c.contents.clear();
        out.inodes
            .extend(std::mem::take(&mut c.shard_of).into_values());
        let nodes = std::mem::take(&mut c.nodes);
        for (fid, mut n) in nodes {
            out.entries.extend(n.all_links());
            out.inodes.push(fid);
            if n.is_changing() {
                c.node(fid).changing = std::mem::take(&mut n.changing);
            }
        }
        out
    }
}
