//! What a new directory inherits from those above it: the default that says over which MDTs it lies, and how deep it is.
//!
//! A default is stored in the directory for which it was set. Those below have it too, as far as it is handed down, without
//! being told: who makes a directory looks upwards. The default of the root is not handed down; where nothing else is set it
//! says whether directories are spread over the MDTs, and how far from the root they are made round robin.
//!
//! Lustre: `ll_qos_mkdir_prep` in `lustre/llite/namei.c`, `ll_update_dir_depth_dmv` in `lustre/llite/llite_lib.c`.

use std::collections::BTreeMap;
use std::sync::Arc;

use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd, LmvUserMdHead, inherit};
use parking_lot::Mutex;

use super::cache::Cache;
use super::dir::Directories;
use super::servers::Servers;
use crate::error::Error;
use crate::mdc::Ids;

/// Directories whose parents are remembered. Beyond that all are forgotten, and asked for again where they are needed.
const PARENTS_MAX: usize = 65_536;
/// Levels that are looked at; what lies deeper counts as that deep.
const LEVELS_MAX: usize = 1024;

/// What a new directory gets from above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Heritage {
    /// The default of its parent, set there or handed down to it.
    pub default: Option<LmvUserMdHead>,
    /// It may lie on any MDT.
    pub spread: bool,
    /// And takes turns with others.
    pub round_robin: bool,
    /// How deep its parent is, below the root or where the default was set.
    pub depth: u32,
}

/// Finds out what is inherited.
pub(super) struct Heritages {
    pub servers: Arc<Servers>,
    pub cache: Arc<Cache>,
    pub dirs: Arc<Directories>,
    /// Where a directory is, as far as this client has seen.
    pub seen: Mutex<BTreeMap<Fid, Seen>>,
}

/// Where a directory was seen.
pub(super) struct Seen {
    parent: Fid,
    /// Its name there, where it was found by that.
    name: Option<Box<[u8]>>,
}

impl Heritages {
    /// The directory `fid` was seen in `parent`, by this name if it is known.
    pub fn seen(&self, fid: Fid, parent: Fid, name: Option<&[u8]>) {
        if self.servers.lmv.several() && fid != parent {
            let mut seen = self.seen.lock();
            if seen.len() >= PARENTS_MAX {
                seen.clear();
            }
            let name = name.map(Into::into);
            seen.insert(fid, Seen { parent, name });
        }
    }

    /// It is not known any more where `fid` is.
    pub fn moved(&self, fid: Fid) {
        self.seen.lock().remove(&fid);
    }

    /// The directory and the name in it by which `fid` was found.
    pub fn place_of(&self, fid: Fid) -> Option<(Fid, Box<[u8]>)> {
        let seen = self.seen.lock();
        let at = seen.get(&fid)?;
        Some((at.parent, at.name.clone()?))
    }

    /// What a new directory in `dir` gets.
    pub async fn of(&self, dir: Fid) -> Result<Heritage, Error> {
        let above = self.above(dir).await;
        let root = self.servers.root;
        let (mut default, mut levels) = (None, 0);
        for (n, at) in above.iter().enumerate() {
            if n > 0 && *at == root {
                break;
            }
            if let Some(set) = self.stored(*at).await? {
                (default, levels) = (set.below(n), n);
                break;
            }
        }
        let depth = above.len() - 1;
        Ok(match default {
            Some(d) => Heritage {
                default,
                spread: d.stripe_offset == LMV_OFFSET_DEFAULT,
                round_robin: d.max_inherit_rr != inherit::RR_NONE || dir == Fid::ROOT,
                depth: if levels > 0 { levels } else { depth } as u32,
            },
            None if dir == root => Heritage::default(),
            None => by_root(self.stored(root).await?, depth),
        })
    }

    /// What `lfs getdirstripe -D` shows of a directory in which nothing is set.
    pub async fn shown(&self, dir: Fid) -> Result<Option<LmvUserMdHead>, Error> {
        let own = self.of(dir).await?.default;
        let root = self.servers.root;
        if own.is_some() || dir == root {
            return Ok(own);
        }
        let depth = self.above(dir).await.len() - 1;
        Ok(self.stored(root).await?.and_then(|d| d.below(depth)))
    }

    /// `dir` and the directories above it, the root last.
    async fn above(&self, dir: Fid) -> Vec<Fid> {
        let root = self.servers.root;
        let mut all = vec![dir];
        let mut at = dir;
        while at != root && all.len() < LEVELS_MAX {
            let known = self.seen.lock().get(&at).map(|seen| seen.parent);
            let parent = match known {
                Some(parent) => parent,
                None => self.dirs.parent_of(at).await,
            };
            if parent == at {
                // it is gone, or nobody says
                break;
            }
            if known.is_none() {
                self.seen(at, parent, None);
            }
            all.push(parent);
            at = parent;
        }
        all
    }

    /// The default that is set for `dir`.
    async fn stored(&self, dir: Fid) -> Result<Option<LmvUserMdHead>, Error> {
        if let Some(known) = self.cache.default_of(dir) {
            return Ok(known);
        }
        let mark = self.cache.begin_read(dir);
        let mdc = self.servers.lmv.of(dir).await?;
        let found = match mdc.getxattr(&Ids::root(), dir, b"trusted.dmv").await {
            Ok(raw) => LmvUserMd::decode(&raw).ok().map(|l| l.head),
            Err(e) if e.is(Errno::ENODATA) => None,
            // whoever makes the directory is told what is wrong with its parent
            Err(e) if e.is(Errno::ENOENT) || e.is(Errno::ESTALE) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        self.cache.learn_default(mark, dir, found);
        Ok(found)
    }
}

/// What the default of the root says of a directory to be made in one that is so deep, where nothing else is set.
fn by_root(root: Option<LmvUserMdHead>, depth: usize) -> Heritage {
    let reaches = |limit: u8| usize::from(limit) > depth && limit <= inherit::MAX;
    let d = root.filter(|d| d.stripe_offset == LMV_OFFSET_DEFAULT);
    let spread = d.is_some_and(|d| match d.max_inherit {
        inherit::UNLIMITED => true,
        limit => reaches(limit),
    });
    let round_robin = d.is_some_and(|d| match d.max_inherit_rr {
        inherit::RR_UNLIMITED => true,
        limit => reaches(limit),
    });
    Heritage {
        default: None,
        spread,
        round_robin: spread && round_robin,
        depth: depth as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(max_inherit: u8, max_inherit_rr: u8) -> Option<LmvUserMdHead> {
        let mut d = LmvUserMd::of_new_root().head;
        (d.max_inherit, d.max_inherit_rr) = (max_inherit, max_inherit_rr);
        Some(d)
    }

    #[test]
    fn the_root_says_how_far_directories_are_spread() {
        let says = |root: Option<LmvUserMdHead>, depth| {
            let h = by_root(root, depth);
            (h.spread, h.round_robin)
        };
        let new = root(inherit::UNLIMITED, inherit::RR_ROOT);
        assert_eq!(says(new, 1), (true, true));
        assert_eq!(says(new, 2), (true, true));
        assert_eq!(says(new, 3), (true, false));
        assert_eq!(says(root(2, inherit::RR_UNLIMITED), 1), (true, true));
        assert_eq!(says(root(2, inherit::RR_UNLIMITED), 2), (false, false));
        assert_eq!(says(root(inherit::NONE, 3), 1), (false, false));
        assert_eq!(says(root(251, 251), 1), (false, false));
        assert_eq!(says(None, 1), (false, false));
        let mut fixed = root(inherit::UNLIMITED, 3);
        fixed.as_mut().unwrap().stripe_offset = 2;
        assert_eq!(says(fixed, 1), (false, false));
    }
}
