//! Directories in which this mount makes names, and whether the kernel has to be told of that.
//!
//! The kernel forgets a directory's attributes by itself when it takes in the answer to a request that changed it (`fuse_dir_changed` in
//! `fs/fuse/dir.c`). It does not look at answers of before that are still on their way to another thread, and would remember those over
//! it; being told does (`attr_version`). So it need not be told where no other thread may be about to take one in.
//!
//! # Invariants
//! - Who may be about to take attributes of a directory in is noted before it is looked whether they are old ([`crate::told`]); who
//!   changes the directory says so there before looking here. One of the two sees the other.
//! - A thread that asks for something has taken in what it asked for before.
//! - A request that failed has changed nothing as far as the kernel knows, whatever came of it at the server: then it is told.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use crate::notify::Notifier;

/// Directories looked after at once; the kernel is told of the changes of others.
const MOST: usize = 64;

tokio::task_local! {
    /// The request whose future is polled here makes a name.
    static NAMING: Arc<Naming>;
}

/// Who may be about to take in attributes of a directory, which were asked for since the kernel was told to forget them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nobody,
    One(u32),
    Many,
}

/// The directories in which names were made lately.
#[derive(Default)]
pub(crate) struct Askers(Mutex<HashMap<Fid, Asked>>);

impl Askers {
    /// An answer to `thread` (0: it is not known) may bring attributes of `fid`.
    pub fn note(&self, fid: Fid, thread: u32) {
        if let Some(asked) = self.0.lock().get_mut(&fid) {
            *asked = match *asked {
                Asked::Nobody if thread != 0 => Asked::One(thread),
                Asked::One(one) if one == thread => Asked::One(one),
                _ => Asked::Many,
            };
        }
    }

    /// Nobody but `thread` may be about to take attributes of `fid` in.
    fn only(&self, fid: Fid, thread: u32) -> bool {
        match self.0.lock().get(&fid) {
            Some(Asked::Nobody) => true,
            Some(Asked::One(one)) => *one == thread,
            Some(Asked::Many) | None => false,
        }
    }

    /// The kernel is about to be told of `fid`: what was asked for until now does not count.
    fn told(&self, fid: Fid) {
        let mut all = self.0.lock();
        if all.len() >= MOST && !all.contains_key(&fid) {
            all.clear();
        }
        all.insert(fid, Asked::Nobody);
    }
}

/// A request of `thread` that makes a name in `dir`.
pub(crate) struct Naming {
    dir: Fid,
    thread: u32,
    /// It has changed the directory.
    changed: AtomicBool,
}

/// Ends with the request.
struct Ends {
    naming: Arc<Naming>,
    notifier: Arc<Notifier>,
    done: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let n = &self.naming;
        if n.changed.load(Ordering::Acquire)
            && !(self.done && self.notifier.askers.only(n.dir, n.thread))
        {
            self.notifier.askers.told(n.dir);
            self.notifier.forget_changed(n.dir);
        }
    }
}

/// Does what makes a name in `dir` for `thread`, which waits for it, and has the kernel told of the change if it has to be.
pub(crate) async fn naming<T, E>(
    notifier: &Arc<Notifier>,
    dir: Fid,
    thread: u32,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let naming = Arc::new(Naming {
        dir,
        thread,
        changed: AtomicBool::new(false),
    });
    let mut ends = Ends {
        naming: naming.clone(),
        notifier: notifier.clone(),
        done: false,
    };
    let done = NAMING.scope(naming, work).await;
    ends.done = done.is_ok();
    done
}

/// `fid` was changed; true: by the request whose future this is called from, which sees to it that the kernel forgets.
pub(crate) fn is_of_request(fid: Fid) -> bool {
    let by_request = NAMING.try_with(|n| {
        let its = n.dir == fid;
        if its {
            n.changed.store(true, Ordering::Release);
        }
        its
    });
    by_request.unwrap_or(false)
}
