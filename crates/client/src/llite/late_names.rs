//! Names that are taken away, or given to new files, before their MDT hears of it: who removes a tree waits for no removal, and many of
//! them go in one request; who makes file after file waits for no create (`creating.rs`).
//!
//! # Invariants
//! - A name is taken away so only under the lock that the MDT gives for it ([`LEND`](coral_wire::coral::LEND)), which is held as long as one
//!   is under way: nobody else is told of the directory, of the name or of what it stands for meanwhile. Whoever asks waits for the lock, and
//!   so for these removals. A lock that nobody has used for [`IDLE`] is given back.
//! - Only what the MDT will grant by all that the lock covers: the name stands for a regular file with no other name, which nobody has open
//!   here, but for one that is kept beyond its close, and who asks may change the directory.
//! - Calls of this client that could tell the difference wait first for those that were under way when they came: those about the name or
//!   the file, listings of the directory, its own changes, syncs and statfs ([`LateNames::name_settled`] and its like, before the call is
//!   handed on). As long as the directory or the file is being changed, nothing more goes so ([`LateNames::hold`]). The directory's times are
//!   told as they will be ([`LateNames::beside`]).
//! - Names of one directory go in the order in which they were taken away, one request at a time, and at most [`MOST`] are under way.
//! - One that cannot be done, as after an eviction, is told as lost changes of a directory are (`lost_dirs.rs`), in the log too, and nothing is
//!   taken away so in that directory for a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::LockRef;
use coral_wire::coral::LENT_MAX;
use coral_wire::fid::Fid;
use coral_wire::ldlm::ResId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::changes::ChangingEntries;
use super::lost_dirs::LostDirs;
use super::types::{Attr, Entry};
use crate::mdc::{Ids, Mdc};
use crate::time::Timespec;

/// Names of a directory under way at most: who removes more waits.
const MOST: usize = 64;
/// Names of one request, bytes with a NUL behind each: any MDT takes a request of that size.
const NAMES_BYTES: usize = 2048;
/// A directory that nothing was taken from for so long is given back.
pub(super) const IDLE: Duration = Duration::from_secs(2);
/// A directory that was not lent is not asked for again so soon, the first time; then twice as long, and so on.
const REFUSED: Duration = Duration::from_secs(2);
/// At most; and one in which a removal was lost, or of an MDT that lends none.
const FAILED: Duration = Duration::from_secs(60);
/// Directories remembered that are not to be asked for.
const REMEMBERED: usize = 256;

/// Those of a mount.
#[derive(Default)]
pub(super) struct LateNames {
    /// Names under way.
    count: AtomicUsize,
    state: Mutex<State>,
    /// There are fewer.
    fewer: Notify,
}

#[derive(Default)]
struct State {
    /// Number of the last removal.
    last: u64,
    /// By directory object, which may be a shard.
    dirs: BTreeMap<Fid, Queue>,
    /// Directories and files that this client is changing otherwise.
    held: Vec<Fid>,
    /// Files that are being made, by directory object.
    making: BTreeMap<Fid, Makes>,
    /// What the caller was told of the file that was made last by asking first, by directory object.
    samples: BTreeMap<Fid, Sample>,
    /// Changes of the caller's, of what it makes nothing late in meanwhile, that have begun.
    holds: u64,
    /// When a name was last taken from a directory that is lent, or a file made in it.
    used: BTreeMap<Fid, Instant>,
    /// Directories that are not asked for; the one asked for longest ago comes first.
    asked: VecDeque<Asked>,
}

/// A directory that was asked for, and not lent, or given up.
struct Asked {
    dir: Fid,
    /// Not again before then.
    until: Instant,
    pause: Duration,
    /// Nor is anything taken from it that is told late.
    lost: bool,
}

/// A directory object that is lent, and who takes names from it.
pub(super) struct Borrowed {
    pub dir: Fid,
    /// The directory as the caller knows it.
    pub parent: Fid,
    /// In whose name.
    pub ids: Ids,
    pub mdc: Arc<Mdc>,
    /// The right to it.
    pub lock: LockRef,
}

/// What goes from one.
struct Queue {
    from: Borrowed,
    /// Time of the last.
    last: Timespec,
    names: Vec<Going>,
    /// Those of them that no request was made for.
    waiting: VecDeque<Removal>,
}

/// A name under way, and what it stands for.
struct Going {
    number: u64,
    /// The directory as the caller knows it.
    parent: Fid,
    name: Bytes,
    fid: Fid,
}

/// Files that are being made in one directory object.
struct Makes {
    /// Time of the last.
    last: Timespec,
    names: Vec<Going>,
}

/// What the caller was told of a file that was made in a directory which is lent. Nobody else changes the directory, so a file that is
/// made there in the same way gets the same.
#[derive(Clone)]
pub(super) struct Sample {
    /// In whose name.
    pub ids: Ids,
    /// Type and permissions that were asked for.
    pub mode: u32,
    /// Cookie of the lock that was held all the time.
    pub lock: u64,
    /// What was told.
    pub entry: Entry,
}

/// A file that is being made; it is there, or is not to be, when this is dropped.
pub(super) struct Making {
    pub from: Borrowed,
    pub name: Bytes,
    pub fid: Fid,
    pub now: Timespec,
    change: Option<ChangingEntries>,
    all: Arc<LateNames>,
}

impl Drop for Making {
    fn drop(&mut self) {
        drop(self.change.take());
        let mut state = self.all.state.lock();
        if let Some(makes) = state.making.get_mut(&self.from.dir) {
            makes.names.retain(|n| n.fid != self.fid);
            if makes.names.is_empty() {
                state.making.remove(&self.from.dir);
            }
        }
        drop(state);
        self.all.count.fetch_sub(1, Ordering::AcqRel);
        self.all.fewer.notify_waiters();
    }
}

/// One removal; over when dropped, whatever came of it.
pub(super) struct Removal {
    pub dir: Fid,
    pub parent: Fid,
    pub name: Bytes,
    pub fid: Fid,
    /// Its objects: {OST index, resource}.
    pub objects: Vec<(u32, ResId)>,
    pub now: Timespec,
    pub change: Option<ChangingEntries>,
    pub all: Arc<LateNames>,
}

impl Drop for Removal {
    fn drop(&mut self) {
        drop(self.change.take());
        if let Some(queue) = self.all.state.lock().dirs.get_mut(&self.dir) {
            queue.names.retain(|n| n.fid != self.fid);
        }
        self.all.count.fetch_sub(1, Ordering::AcqRel);
        self.all.fewer.notify_waiters();
    }
}

/// What came of one that was to be taken in.
pub(super) enum Added {
    /// It goes; with `begins` it is the first of its directory, of which a [`Teller`] is to tell.
    Goes { begins: bool },
    /// There is no room in its directory now.
    Full,
    /// The MDT is to be asked first: others' names go from the directory, this one does already, or it is being changed.
    Refused,
}

/// What is to go next from a directory.
pub(super) struct Batch {
    pub mdc: Arc<Mdc>,
    pub ids: Ids,
    pub names: Vec<Removal>,
    /// The right to it was lost.
    pub is_void: bool,
}

/// This client changes these otherwise: until it is dropped nothing is taken away late that this could meet.
pub(super) struct Held(Arc<LateNames>, smallvec::SmallVec<[Fid; 2]>);

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        for fid in &self.1 {
            if let Some(at) = state.held.iter().position(|f| f == fid) {
                state.held.swap_remove(at);
            }
        }
    }
}

impl LateNames {
    fn is_idle(&self) -> bool {
        self.count() == 0
    }

    /// Names under way.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Nothing is taken away late that has to do with these, until what is returned is dropped.
    pub fn hold(self: &Arc<Self>, fids: &[Fid]) -> Held {
        let mut state = self.state.lock();
        state.held.extend_from_slice(fids);
        state.holds += 1;
        // what is made there may come to be something else
        state.samples.retain(|dir, _| !fids.contains(dir));
        drop(state);
        Held(self.clone(), fids.into())
    }

    /// Waits for those under way now that `concerns` says.
    async fn settled(&self, concerns: impl Fn(&Going) -> bool) {
        if self.is_idle() {
            return;
        }
        let now = self.state.lock().last;
        let concerns = |n: &Going| n.number <= now && concerns(n);
        self.until(|s| !s.names().any(concerns)).await;
    }

    async fn until(&self, done: impl Fn(&State) -> bool) {
        loop {
            let mut fewer = std::pin::pin!(self.fewer.notified());
            fewer.as_mut().enable();
            if done(&self.state.lock()) {
                return;
            }
            fewer.await;
        }
    }

    /// Waits for all.
    pub async fn all_settled(&self) {
        self.settled(|_| true).await;
    }

    /// For those in this directory.
    pub async fn dir_settled(&self, dir: Fid) {
        self.settled(|n| n.parent == dir).await;
    }

    /// For those in this directory, or for this file: whichever it is.
    pub async fn object_settled(&self, fid: Fid) {
        self.settled(|n| n.parent == fid || n.fid == fid).await;
    }

    /// For that of this name in this directory.
    pub async fn name_settled(&self, dir: Fid, name: &[u8]) {
        self.settled(|n| n.parent == dir && n.name == name).await;
    }

    /// For that of this file.
    pub async fn file_settled(&self, fid: Fid) {
        self.settled(|n| n.fid == fid).await;
    }

    /// There is room for one more of this directory.
    pub async fn room(&self, dir: Fid) {
        let full = |s: &State| {
            let (going, made) = (s.dirs.get(&dir), s.making.get(&dir));
            let most = going
                .map_or(0, |q| q.names.len())
                .max(made.map_or(0, |m| m.names.len()));
            most >= MOST
        };
        self.until(|s| !full(s)).await;
    }

    /// Of what was told so far; see [`LateNames::told`].
    pub fn mark(&self) -> u64 {
        self.state.lock().holds
    }

    /// A file was made in the directory object `dir`, which is lent, by a request that began at `mark`; more may be made there late.
    pub fn told(&self, mark: u64, dir: Fid, sample: Sample) {
        let mut state = self.state.lock();
        if state.holds == mark {
            if state.samples.len() >= REMEMBERED {
                state.samples.clear();
            }
            state.samples.insert(dir, sample);
        }
    }

    /// The next file in `dir` is to be asked for first.
    pub fn no_more(&self, dir: Fid) {
        self.state.lock().samples.remove(&dir);
    }

    /// What the caller is to be told of a file that `ids` make in `dir` with this mode. `None`: the MDT is to be asked.
    pub fn sample(&self, dir: Fid, ids: &Ids, mode: u32, lock: &LockRef) -> Option<Entry> {
        let state = self.state.lock();
        let sample = state.samples.get(&dir)?;
        let same = sample.ids == *ids && sample.mode == mode && sample.lock == lock.cookie();
        same.then_some(sample.entry)
    }

    /// Takes in that `fid` is being made; `begin`: an own change of its name begins.
    pub fn make(
        self: &Arc<Self>,
        from: Borrowed,
        (name, fid): (Bytes, Fid),
        now: Timespec,
        begin: impl FnOnce(&Bytes) -> ChangingEntries,
    ) -> Result<Making, Added> {
        let mut state = self.state.lock();
        let is_held = |f: &Fid| *f == from.dir || *f == from.parent;
        if from.lock.is_dead() || state.held.iter().any(is_held) {
            return Err(Added::Refused);
        }
        let number = state.last + 1;
        let makes = state.making.entry(from.dir).or_insert_with(|| Makes {
            last: now,
            names: Vec::new(),
        });
        if makes.names.len() >= MOST {
            return Err(Added::Full);
        }
        if makes.names.iter().any(|n| n.name == name) {
            return Err(Added::Refused);
        }
        makes.last = makes.last.max(now);
        makes.names.push(Going {
            number,
            parent: from.parent,
            name: name.clone(),
            fid,
        });
        state.last = number;
        state.used.insert(from.dir, Instant::now());
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(Making {
            change: Some(begin(&name)),
            from,
            name,
            fid,
            now,
            all: self.clone(),
        })
    }

    /// Takes that of the file `fid` in.
    pub fn add(&self, from: Borrowed, fid: Fid, removal: impl FnOnce() -> Removal) -> Added {
        let mut state = self.state.lock();
        let is_held = |f: &Fid| *f == fid || *f == from.dir || *f == from.parent;
        let other = |q: &Queue| {
            let same = q.from.ids == from.ids && q.from.parent == from.parent;
            !same || q.from.lock.cookie() != from.lock.cookie()
        };
        let goes = |q: &Queue| q.names.iter().any(|n| n.fid == fid);
        let queue = state.dirs.get(&from.dir);
        if from.lock.is_dead() || state.held.iter().any(is_held) {
            return Added::Refused;
        }
        match queue {
            Some(q) if other(q) || goes(q) => return Added::Refused,
            Some(q) if q.names.len() >= MOST => return Added::Full,
            _ => {}
        }
        let begins = queue.is_none();
        self.count.fetch_add(1, Ordering::AcqRel);
        let removal = removal();
        state.last += 1;
        let number = state.last;
        state.used.insert(from.dir, Instant::now());
        let parent = from.parent;
        let queue = state.dirs.entry(from.dir).or_insert_with(|| Queue {
            from,
            last: removal.now,
            names: Vec::new(),
            waiting: VecDeque::new(),
        });
        queue.last = queue.last.max(removal.now);
        queue.names.push(Going {
            number,
            parent,
            name: removal.name.clone(),
            fid,
        });
        queue.waiting.push_back(removal);
        Added::Goes { begins }
    }

    /// A directory as it will be.
    pub fn beside(&self, mut attr: Attr) -> Attr {
        if !self.is_idle() {
            let state = self.state.lock();
            let is_it = |dir: &Fid, names: &[Going]| {
                *dir == attr.fid || names.first().is_some_and(|n| n.parent == attr.fid)
            };
            let going = state.dirs.iter().map(|(dir, q)| (dir, &q.names, q.last));
            let made = state.making.iter().map(|(dir, m)| (dir, &m.names, m.last));
            let of_it = going
                .chain(made)
                .filter(|(dir, names, _)| is_it(dir, names));
            if let Some(last) = of_it.map(|(.., last)| last).max() {
                (attr.mtime, attr.ctime) = (attr.mtime.max(last), attr.ctime.max(last));
            }
        }
        attr
    }

    /// Takes what is to go next from a directory: all of it together. `None`: no more, and the directory's lock is let go of.
    pub fn next(&self, dir: Fid) -> Option<Batch> {
        let mut state = self.state.lock();
        let queue = state.dirs.get_mut(&dir)?;
        // one name fits always
        let mut bytes = 0;
        let fits = |r: &&Removal| {
            bytes += r.name.len() + 1;
            bytes <= NAMES_BYTES
        };
        let count = queue.waiting.iter().take(LENT_MAX).take_while(fits).count();
        let names: Vec<Removal> = queue.waiting.drain(..count).collect();
        if names.is_empty() {
            state.dirs.remove(&dir);
            return None;
        }
        Some(Batch {
            mdc: queue.from.mdc.clone(),
            ids: queue.from.ids,
            names,
            is_void: queue.from.lock.is_dead(),
        })
    }

    /// Whether a directory may be asked for now; then it is not for a while.
    pub fn ask_for(&self, dir: Fid) -> bool {
        let (now, mut state) = (Instant::now(), self.state.lock());
        let all = &mut state.asked;
        let known = all.iter().position(|a| a.dir == dir);
        if known.is_some_and(|at| all[at].until > now) {
            return false;
        }
        let pause = known
            .and_then(|at| all.remove(at))
            .map_or(REFUSED, |a| (2 * a.pause).min(FAILED));
        State::remember(all, dir, now + pause, (pause, false));
        true
    }

    /// It was lent: it may be asked for again as soon as it is given back.
    pub fn lent(&self, dir: Fid) {
        let mut state = self.state.lock();
        state.asked.retain(|a| a.dir != dir);
        state.used.insert(dir, Instant::now());
    }

    /// It is not to be asked for.
    pub fn not_soon(&self, dir: Fid) {
        let mut state = self.state.lock();
        let all = &mut state.asked;
        all.retain(|a| a.dir != dir);
        State::remember(all, dir, Instant::now() + FAILED, (FAILED, true));
    }

    /// Nothing is to be taken from it and told late.
    pub fn is_barred(&self, dir: Fid) -> bool {
        let state = self.state.lock();
        let is_it = |a: &Asked| a.dir == dir && a.lost && a.until > Instant::now();
        state.asked.iter().any(is_it)
    }

    /// Whether nothing was taken from a directory for [`IDLE`]; then no more is known of its use.
    pub fn is_unused(&self, dir: Fid) -> bool {
        let mut state = self.state.lock();
        let recent = |at: &Instant| at.elapsed() < IDLE;
        let busy = state.dirs.contains_key(&dir) || state.making.contains_key(&dir);
        if busy || state.used.get(&dir).is_some_and(recent) {
            return false;
        }
        state.used.remove(&dir);
        state.samples.remove(&dir);
        true
    }
}

/// Who tells of what goes from a directory. If that ends too early, by a panic, nobody waits for ever.
pub(super) struct Teller {
    pub all: Arc<LateNames>,
    pub lost_dirs: Arc<LostDirs>,
    pub dir: Fid,
    pub done: bool,
}

impl Drop for Teller {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let left = self.all.state.lock().dirs.remove(&self.dir);
        if let Some(queue) = &left {
            let (dir, names) = (queue.from.parent, queue.names.len());
            tracing::error!(%dir, names, "files that were removed are there still: a task of this client has failed");
            self.lost_dirs.note(dir);
        }
        // each of them takes the mutex when it is dropped
        drop(left);
    }
}

impl State {
    /// All that are under way.
    fn names(&self) -> impl Iterator<Item = &Going> {
        let going = self.dirs.values().flat_map(|q| &q.names);
        going.chain(self.making.values().flat_map(|m| &m.names))
    }

    fn remember(
        all: &mut VecDeque<Asked>,
        dir: Fid,
        until: Instant,
        (pause, lost): (Duration, bool),
    ) {
        if all.len() == REMEMBERED {
            all.pop_front();
        }
        all.push_back(Asked {
            dir,
            until,
            pause,
            lost,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Fid = Fid::new(5, 6);

    #[tokio::test(start_paused = true)]
    async fn a_directory_is_asked_for_less_and_less() {
        let all = LateNames::default();
        assert!(all.ask_for(DIR) && !all.ask_for(DIR) && !all.is_barred(DIR));
        tokio::time::advance(REFUSED).await;
        assert!(all.ask_for(DIR));
        tokio::time::advance(REFUSED).await;
        assert!(!all.ask_for(DIR));
        tokio::time::advance(REFUSED).await;
        assert!(all.ask_for(DIR));
        // lent, and given back
        all.lent(DIR);
        assert!(all.ask_for(DIR) && !all.is_unused(DIR));
        all.not_soon(DIR);
        tokio::time::advance(REFUSED).await;
        assert!(!all.ask_for(DIR) && all.is_barred(DIR) && all.is_unused(DIR));
        tokio::time::advance(FAILED).await;
        assert!(!all.is_barred(DIR) && all.ask_for(DIR));
        for n in 0..REMEMBERED as u32 {
            all.ask_for(Fid::new(7, n));
        }
        assert!(all.ask_for(DIR));
    }

    #[test]
    fn what_is_held_is_let_go_of_once() {
        let all = Arc::<LateNames>::default();
        let (a, b) = (all.hold(&[DIR]), all.hold(&[DIR, Fid::new(5, 7)]));
        drop(a);
        assert_eq!(all.state.lock().held.len(), 2);
        drop(b);
        assert!(all.state.lock().held.is_empty());
    }
}
