//! The rules of the cache for what this client changes itself: no lost lock tells of that.

use bytes::Bytes;
use coral_wire::fid::Fid;

use super::core::{Core, NAME_BYTES};
use crate::llite::types::Attr;

/// Objects that own changes took away of which that is remembered: more than are removed while one request is on its way.
const GONE: usize = 64;

impl Core {
    /// An own change of these entries begins: lookups of them beside it add no names until it ends.
    pub fn begin_change(&mut self, entries: &[(Fid, Option<Bytes>)]) {
        for (dir, name) in entries {
            self.node(*dir).changing.push(name.clone());
        }
    }

    /// The own change has ended.
    pub fn end_change(&mut self, entries: &[(Fid, Option<Bytes>)]) {
        self.epoch += 1;
        let (now, most) = (self.epoch, self.most_of_one());
        for (dir, name) in entries {
            let n = self.node(*dir);
            n.end_change(name, now);
            if !n.is_changing() {
                n.purge();
                if n.names.len() * NAME_BYTES > most {
                    n.untrack();
                }
            }
        }
        for (dir, name) in entries {
            if let Some(name) = name {
                self.ended.push(now, *dir, name.clone());
            }
        }
        self.shrink(self.limit_bytes);
    }

    /// The reply to an own change says how `dir` looks now (attributes and version), and that `name` in it is `fid` now
    /// (`None`: gone).
    pub fn changed_name(&mut self, dir: &Attr, version: u64, name: &[u8], fid: Option<Fid>) {
        let c = self;
        let n = c.node(dir.fid);
        n.step(version, true);
        n.update(dir, version);
        let old = n.names.get(name).copied();
        if !n.set_name(name, fid, version) {
            return;
        }
        if let Some(old) = old.and_then(|o| o.fid).filter(|o| Some(*o) != fid)
            && let Some(child) = c.nodes.get_mut(&old)
        {
            child.drop_link(dir.fid, name);
        }
        if let Some(child) = fid.and_then(|f| c.nodes.get_mut(&f)) {
            child.add_link(dir.fid, name);
        }
    }

    /// A name in `dir` changed in a way the reply did not tell: ask about all of them.
    pub fn doubt(&mut self, dir: Fid) {
        if let Some(n) = self.nodes.get_mut(&dir) {
            n.untrack();
        }
        self.forget(dir);
        let now = self.epoch;
        let n = self.node(dir);
        (n.changed_at, n.doubted_at) = (now, now);
    }

    /// A directory this client just made, with this version: empty until somebody changes it.
    pub fn made_dir(&mut self, fid: Fid, version: u64) {
        if version != 0 {
            let c = self;
            c.node(fid).tracked = Some(version);
            c.shrink(c.limit_bytes);
        }
    }

    /// The reply to an own change says how an object looks now (not its entries, if it is a directory). `ours`: the last
    /// change of it was this one.
    pub fn changed(&mut self, attr: &Attr, version: u64, ours: bool) {
        let c = self;
        let n = c.node(attr.fid);
        n.step(version, ours);
        n.update(attr, version);
    }

    /// An own change of the object's attributes whose outcome the reply did not tell.
    pub fn forget_attrs(&mut self, fid: Fid) {
        self.forget(fid);
    }

    /// An own change took the object's last name away.
    pub fn gone(&mut self, fid: Fid) {
        let c = self;
        if c.nodes.get(&fid).is_none_or(|n| !n.is_changing()) {
            c.epoch += 1;
            c.nodes.remove(&fid);
            if c.gone.len() == GONE
                && let Some((_, at)) = c.gone.pop_front()
            {
                c.changed_to = c.changed_to.max(at);
            }
            c.gone.push_back((fid, c.epoch));
        }
    }
}
