//! What is gone from the MDT and still in use here: directories that were removed while somebody has them open or works in
//! them, and removed pipes, sockets and devices, which the kernel opens without telling anybody. Their attributes can still be
//! asked for. (Removed regular files that are open stay at the MDT until their last close.)
//!
//! Kept as they were last known: when the name went, if it went by this client, else when the directory was opened. Bounded by
//! what the kernel knows: it forgets what nobody uses ([`super::Llite::forget`]).
//!
//! Lustre opens directories at the MDT, which keeps removed ones until they are closed (`mdt_mfd_close`), at the price of two
//! requests a listing.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use super::cred::permitted;
use super::types::{Attr, Cred, SetAttr, SetTime};
use crate::error::{Error, Refusal};
use crate::time::Timespec;

/// Removed objects remembered at once; more are forgotten at once.
const GONE_MAX: usize = 1 << 16;

/// Open directories, and what was removed.
#[derive(Default)]
pub(super) struct Ghosts {
    /// Each shared by all handles of the directory.
    dirs: Mutex<HashMap<Fid, Weak<Attr>>>,
    gone: Mutex<HashMap<Fid, Attr>>,
}

impl Ghosts {
    /// A directory is opened: what its handle holds as long as it is open.
    pub fn opened(&self, attr: &Attr) -> Arc<Attr> {
        let mut dirs = self.dirs.lock();
        dirs.get(&attr.fid)
            .and_then(Weak::upgrade)
            .unwrap_or_else(|| {
                let kept = Arc::new(*attr);
                dirs.insert(attr.fid, Arc::downgrade(&kept));
                kept
            })
    }

    /// A handle is being closed that holds `kept`.
    pub fn closed(&self, kept: &Arc<Attr>) {
        let mut dirs = self.dirs.lock();
        if Arc::strong_count(kept) == 1 {
            dirs.remove(&kept.fid);
        }
    }

    /// This client took the last name of an object.
    pub fn removed(&self, attr: Attr) {
        let mut gone = self.gone.lock();
        if has_room(&gone, attr.fid) {
            gone.insert(attr.fid, attr);
        }
    }

    /// The kernel does not know it any more.
    pub fn forget(&self, fid: Fid) {
        self.gone.lock().remove(&fid);
        let mut dirs = self.dirs.lock();
        // of handles that nobody closed, as their caller was interrupted
        if dirs.get(&fid).is_some_and(|d| d.strong_count() == 0) {
            dirs.remove(&fid);
        }
    }

    /// Changes what the MDT no longer has, for those who use it here; the new attributes. ENOENT: it is not remembered.
    pub fn change(
        &self,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        now: Timespec,
    ) -> Result<Attr, Error> {
        let mut gone = self.gone.lock();
        let mut a = self
            .remembered(&gone, fid)
            .filter(|_| has_room(&gone, fid))
            .ok_or(Refusal::NoName)?;
        let gives = set.uid.is_some_and(|u| u != a.uid)
            || set.gid.is_some_and(|g| g != a.gid && !cred.in_group(g));
        let is_now = |t: Option<SetTime>| matches!(t, Some(SetTime::Now));
        let is_touch = is_now(set.atime) && is_now(set.mtime);
        let others = set.uid.is_some()
            || set.gid.is_some()
            || set.mode.is_some()
            || set.flags.is_some()
            || set.projid.is_some();
        if is_touch && !others {
            // as of any file: its owner may, and who may write it
            if cred.uid != a.uid {
                permitted(cred, &a, &[], libc::W_OK as u32)?;
            }
        } else if cred.uid != 0
            && (cred.uid != a.uid || gives || set.flags.is_some() || set.projid.is_some())
        {
            return Err(Refusal::NotOwner.into());
        }
        if set.size.is_some() {
            return Err(if a.mode & libc::S_IFMT == libc::S_IFDIR {
                Refusal::Directory.into()
            } else {
                Refusal::NoSize.into()
            });
        }
        if let Some(mode) = set.mode {
            let lost = if cred.uid == 0 || cred.in_group(a.gid) {
                0
            } else {
                libc::S_ISGID
            };
            a.mode = a.mode & libc::S_IFMT | mode & 0o7777 & !lost;
        }
        let time = |old: &mut Timespec, new: Option<SetTime>| match new {
            Some(SetTime::Now) => *old = now,
            Some(SetTime::At(t)) => *old = t,
            None => {}
        };
        time(&mut a.atime, set.atime);
        time(&mut a.mtime, set.mtime);
        a.ctime = set.ctime.unwrap_or(now);
        (a.uid, a.gid) = (set.uid.unwrap_or(a.uid), set.gid.unwrap_or(a.gid));
        (a.flags, a.projid) = (set.flags.unwrap_or(a.flags), set.projid.unwrap_or(a.projid));
        gone.insert(fid, a);
        Ok(a)
    }

    /// The attributes of what the MDT no longer has, as far as it is remembered.
    pub fn of(&self, fid: Fid) -> Option<Attr> {
        self.remembered(&self.gone.lock(), fid)
    }

    fn remembered(&self, gone: &HashMap<Fid, Attr>, fid: Fid) -> Option<Attr> {
        let removed = gone.get(&fid).copied();
        let attr = removed.or_else(|| {
            self.dirs
                .lock()
                .get(&fid)
                .and_then(Weak::upgrade)
                .map(|d| *d)
        })?;
        Some(Attr { nlink: 0, ..attr })
    }
}

fn has_room(gone: &HashMap<Fid, Attr>, fid: Fid) -> bool {
    gone.len() < GONE_MAX || gone.contains_key(&fid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_can_be_changed_by_its_owner() {
        let (fid, now) = (Fid::new(0x2_0000_0400, 7), Timespec { secs: 9, nanos: 0 });
        let g = Ghosts::default();
        let set = SetAttr {
            mode: Some(0o2700),
            mtime: Some(SetTime::Now),
            ..Default::default()
        };
        assert_eq!(
            g.change(&Cred::root(), fid, &set, now),
            Err(Refusal::NoName.into())
        );
        g.removed(Attr {
            uid: 5,
            gid: 6,
            mode: libc::S_IFDIR | 0o755,
            ..Attr::empty(fid)
        });
        assert_eq!(
            g.change(&Cred::user(7, 6), fid, &set, now),
            Err(Refusal::NotOwner.into())
        );
        let touch = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
            ..Default::default()
        };
        assert_eq!(
            g.change(&Cred::user(7, 6), fid, &touch, now),
            Err(Refusal::Permission.into())
        );
        g.change(
            &Cred::root(),
            fid,
            &SetAttr {
                mode: Some(0o775),
                ..Default::default()
            },
            now,
        )
        .expect("root may");
        g.change(&Cred::user(7, 6), fid, &touch, now)
            .expect("who may write it may touch it");
        let chosen = SetAttr {
            mtime: Some(SetTime::At(now)),
            ..Default::default()
        };
        assert_eq!(
            g.change(&Cred::user(7, 6), fid, &chosen, now),
            Err(Refusal::NotOwner.into())
        );
        assert_eq!(
            g.change(
                &Cred::user(5, 6),
                fid,
                &SetAttr {
                    uid: Some(7),
                    ..set
                },
                now
            ),
            Err(Refusal::NotOwner.into())
        );
        assert_eq!(
            g.change(
                &Cred::root(),
                fid,
                &SetAttr {
                    size: Some(0),
                    ..set
                },
                now
            ),
            Err(Refusal::Directory.into())
        );
        g.change(&Cred::user(5, 7), fid, &set, now)
            .expect("its owner may");
        let is = |mode| {
            g.of(fid).map(|a| (a.mode, a.mtime, a.ctime, a.uid))
                == Some((libc::S_IFDIR | mode, now, now, 5))
        };
        assert!(
            is(0o700),
            "setgid is for members of the group: {:?}",
            g.of(fid)
        );
        g.change(&Cred::root(), fid, &set, now).expect("root may");
        assert!(is(0o2700));
    }

    #[test]
    fn what_was_removed_has_no_link_and_is_forgotten() {
        let fid = Fid::new(0x2_0000_0400, 7);
        let g = Ghosts::default();
        assert_eq!(g.of(fid), None);
        g.removed(Attr {
            nlink: 2,
            mode: libc::S_IFDIR | 0o755,
            ..Attr::empty(fid)
        });
        assert_eq!(
            g.of(fid).map(|a| (a.nlink, a.mode)),
            Some((0, libc::S_IFDIR | 0o755))
        );
        g.forget(fid);
        assert_eq!(g.of(fid), None);
        let attr = Attr {
            mode: libc::S_IFDIR | 0o700,
            ..Attr::empty(fid)
        };
        let (a, b) = (g.opened(&attr), g.opened(&attr));
        g.closed(&b);
        drop(b);
        assert_eq!(
            g.of(fid).map(|a| (a.nlink, a.mode)),
            Some((0, libc::S_IFDIR | 0o700)),
            "open once more"
        );
        g.closed(&a);
        assert!(g.of(fid).is_none() && g.dirs.lock().is_empty());
    }
}
