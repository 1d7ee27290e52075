//! Reading directories.
//!
//! A cookie is the hash of the entry plus one: the listing goes on with the first entry of at least that hash, whatever came
//! and went meanwhile. Entries that share a hash with the next one get a cookie that the handle alone knows (hash and how
//! many to skip). 1 and 2 stand behind "." and "..", which are made up here so that they come first.
//!
//! Lustre: `lustre/llite/dir.c`, `lustre/mdc/mdc_request.c` (the page cache we do not have).

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::mds::DirEntry as WireEntry;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::ahead::AHEAD;
use super::attributes::Attributes;
use super::cache::{Cache, Mark};
use super::cred::permitted;
use super::ghosts::Ghosts;
use super::inode::MdInode;
use super::lost_dirs::LostDirs;
use super::orders::Orders;
use super::places::Places;
use super::servers::Servers;
use super::shards::is_shard;
use super::types::{Attr, Cred, DirEntry, Entry};
use crate::error::{Error, Refusal};
use crate::mdc::{DirChunk, Ids};

/// Cookie behind ".".
const DOT: u64 = 1;
/// Cookie behind "..".
const DOTDOT: u64 = 2;
/// Cookies from here on name a place inside a group of equal hashes, by index into the handle's list.
const COLLISION: u64 = 0x7fff_0000_0000_0000;
/// Entries handed out together.
const BATCH: usize = 256;
/// Attributes completed together for readdirplus; the MDT's part comes for [`AHEAD`] entries at once.
const PLUS_BATCH: usize = 16;

/// Chunks of a directory read to know all of it; a bigger one is asked name by name.
const WHOLE_CHUNKS: usize = 4;

/// An open directory.
pub struct DirHandle {
    /// As it was when it was opened.
    attr: Arc<Attr>,
    stream: Mutex<Stream>,
    /// Losses that this handle has heard of.
    seen_lost: AtomicU64,
}

impl DirHandle {
    /// FID of the directory.
    pub fn fid(&self) -> Fid {
        self.attr.fid
    }
}

/// "." or "..".
fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// What was read from the MDT last. It stays until what lies behind it is asked for, so that seekdir(3) costs no request; a
/// rewinddir(3) throws it away.
#[derive(Default)]
struct Stream {
    /// The cookie that leads to the first of `entries`.
    first: u64,
    /// Entries behind `first`, each with its own cookie.
    entries: Vec<(WireEntry, u64)>,
    /// How many of them were handed out.
    at: usize,
    /// When they were read: the caller may remember their names only as long as that holds.
    read: Option<Mark>,
    /// Where the MDT goes on; `None`: at the end.
    next: Option<Position>,
    /// Places inside groups of equal hashes.
    collisions: Vec<(u64, u32)>,
    /// Everything read since the beginning, for the cache to know the whole listing at the end.
    listing: Option<(Mark, Vec<(Bytes, Fid)>)>,
}

/// A place in hash order: entries of at least `hash`, but not the first `skip` of just that hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    hash: u64,
    skip: u32,
}

impl Stream {
    /// The cookie of the last entry handed out.
    fn cookie(&self) -> u64 {
        self.at
            .checked_sub(1)
            .map_or(self.first, |last| self.entries[last].1)
    }

    /// Goes to `cookie` if that is among the entries.
    fn seek(&mut self, cookie: u64) -> bool {
        if self.cookie() == cookie {
            return true;
        }
        let at = match cookie == self.first {
            true => Some(0),
            false => self
                .entries
                .iter()
                .position(|(_, c)| *c == cookie)
                .map(|i| i + 1),
        };
        self.at = at.unwrap_or(self.at);
        at.is_some()
    }

    /// Up to `max` entries that were not handed out.
    fn ahead(&self, max: usize) -> Vec<(WireEntry, u64)> {
        self.entries[self.at..].iter().take(max).cloned().collect()
    }

    /// Where a cookie leads.
    fn position(&self, cookie: u64) -> Position {
        match cookie {
            0..=DOTDOT => Position { hash: 0, skip: 0 },
            c if c >= COLLISION => match self.collisions.get((c - COLLISION) as usize) {
                Some((hash, skip)) => Position {
                    hash: *hash,
                    skip: *skip,
                },
                None => Position { hash: c, skip: 0 },
            },
            c => Position { hash: c, skip: 0 },
        }
    }

    fn collision(&mut self, hash: u64, skip: u32) -> u64 {
        let at = self
            .collisions
            .iter()
            .position(|c| *c == (hash, skip))
            .unwrap_or_else(|| {
                self.collisions.push((hash, skip));
                self.collisions.len() - 1
            });
        COLLISION + at as u64
    }

    /// Takes a chunk in that was asked for at `from`. True: entries or the end were reached.
    fn take(&mut self, from: Position, chunk: DirChunk) {
        let mut entries: VecDeque<WireEntry> = chunk.entries.into();
        entries.retain(|e| e.hash >= from.hash);
        // the group the cookie stands in: what was handed out already
        for _ in 0..from.skip {
            if entries.front().is_some_and(|e| e.hash == from.hash) {
                entries.pop_front();
            }
        }
        // a group that may go on in the next chunk is left for that, unless it is all there is
        if let Some(next) = chunk.next {
            let whole: HashSet<u64> = entries.iter().map(|e| e.hash).collect();
            if whole.len() > 1 {
                entries.retain(|e| e.hash != next);
            }
            let taken = entries.iter().filter(|e| e.hash == next).count() as u32;
            let before = if next == from.hash { from.skip } else { 0 };
            self.next = Some(Position {
                hash: next,
                skip: taken + before,
            });
        } else {
            self.next = None;
        }
        let mut index = from.skip;
        let mut last = from.hash;
        for i in 0..entries.len() {
            let hash = entries[i].hash;
            index = if hash == last { index + 1 } else { 1 };
            last = hash;
            let group_goes_on = match entries.get(i + 1) {
                Some(n) => n.hash == hash,
                None => self.next.is_some_and(|n| n.hash == hash),
            };
            let cookie = if group_goes_on {
                self.collision(hash, index)
            } else {
                hash.saturating_add(1).max(DOTDOT + 1)
            };
            if !is_dot(&entries[i].name) {
                self.entries.push((entries[i].clone(), cookie));
            }
        }
    }
}

/// Lists directories.
pub(super) struct Directories {
    pub servers: Arc<Servers>,
    pub cache: Arc<Cache>,
    pub ghosts: Arc<Ghosts>,
    pub lost: Arc<LostDirs>,
    pub attributes: Arc<Attributes>,
    pub places: Arc<Places>,
    pub orders: Arc<Orders>,
}

impl Directories {
    /// Opens a directory for reading.
    pub async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Arc<DirHandle>, Error> {
        let (attr, acl) = match self.attributes.md_inode(fid).await {
            Ok(md) => (md.attr, md.acl),
            // whoever works in it may open it still, as on a local file system, and finds that it is gone
            Err(e) => match self.ghosts.of(fid).filter(|_| e.is_gone()) {
                Some(attr) => (attr, Default::default()),
                None => return Err(e),
            },
        };
        if !attr.is_dir() {
            return Err(Refusal::NotADirectory.into());
        }
        permitted(cred, &attr, &acl, 4)?;
        let seen_lost = AtomicU64::new(self.lost.count());
        Ok(Arc::new(DirHandle {
            attr: self.ghosts.opened(&attr),
            stream: Default::default(),
            seen_lost,
        }))
    }

    /// Lists from `cookie` (0: the beginning) until `fill` says true (full: that entry was NOT taken) or the end.
    /// With `plus` each entry carries its attributes.
    pub async fn readdir(
        &self,
        cred: &Cred,
        dh: &DirHandle,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> Result<(), Error> {
        let mut at = cookie;
        if at < DOT && fill(self.dot(b".", dh.fid(), DOT)) {
            return Ok(());
        }
        if at < DOTDOT {
            let parent = self.parent_of(dh.fid()).await;
            if fill(self.dot(b"..", parent, DOTDOT)) {
                return Ok(());
            }
            at = DOTDOT;
        }
        let keep = self.cache.enabled() && self.places.in_one_piece(dh.fid()).await;
        if cookie == 0 {
            // rewinddir: what changed since is to be seen
            *dh.stream.lock() = Stream::default();
        }
        let sizes = !self.attributes.removers.does(cred.pid);
        let mut ahead = BTreeMap::new();
        loop {
            let batch = self
                .next_entries(dh, at, if plus { PLUS_BATCH } else { BATCH }, keep)
                .await?;
            if batch.is_empty() {
                return Ok(());
            }
            let attrs = match plus {
                true => self.entries_of(dh, &batch, &mut ahead, sizes).await,
                false => vec![None; batch.len()],
            };
            // a name may be another's by now, though its file is covered
            let stand = plus
                && dh
                    .stream
                    .lock()
                    .read
                    .is_some_and(|mark| self.cache.names_stand(mark, dh.fid()));
            for ((e, next), entry) in batch.into_iter().zip(attrs) {
                let entry = entry.map(|known| {
                    if stand {
                        known
                    } else {
                        Entry {
                            entry_ttl: Duration::ZERO,
                            ..known
                        }
                    }
                });
                let kind = e.mode_type as u32 & libc::S_IFMT;
                if fill(DirEntry {
                    fid: e.fid,
                    name: e.name,
                    kind,
                    next,
                    entry,
                }) {
                    return Ok(());
                }
                at = next;
                self.consumed(dh, next);
            }
        }
    }

    fn dot(&self, name: &'static [u8], fid: Fid, next: u64) -> DirEntry {
        DirEntry {
            fid,
            name: Bytes::from_static(name),
            kind: libc::S_IFDIR,
            next,
            entry: None,
        }
    }

    pub async fn parent_of(&self, dir: Fid) -> Fid {
        if dir == self.servers.root {
            return dir;
        }
        let mut at = dir;
        // the parent of what is in a striped directory is a shard, whose parent is the directory
        for _ in 0..2 {
            let found = async {
                let mdc = self.servers.lmv.of(at).await?;
                Ok::<_, Error>(mdc.getattr_name(&Ids::root(), at, b"..").await?)
            };
            let Ok(a) = found.await else { return dir };
            if !is_shard(&a) {
                return a.body.fid1;
            }
            at = a.body.fid1;
        }
        dir
    }

    /// Attributes for readdirplus of the next entries. `ahead`: what the MDTs said of entries further on. Without `sizes` no OST is asked.
    async fn entries_of(
        &self,
        dh: &DirHandle,
        next: &[(WireEntry, u64)],
        ahead: &mut BTreeMap<Fid, MdInode>,
        sizes: bool,
    ) -> Vec<Option<Entry>> {
        let unknown = |f: Fid| !ahead.contains_key(&f) && self.cache.known(f).is_none();
        if next.iter().any(|(e, _)| unknown(e.fid)) {
            let entries = dh.stream.lock().ahead(AHEAD);
            let fids = entries.into_iter().map(|(e, _)| e.fid);
            let found = self.attributes.md_inodes(fids).await;
            if sizes {
                self.attributes.sizes(found.values(), false, || {}).await;
            }
            ahead.extend(found);
        }
        let all_up = self.servers.lov.oscs().iter().all(|o| o.is_connected());
        let entry = |e: &WireEntry| self.entry_of(e.fid, ahead.remove(&e.fid), all_up, sizes);
        join_all(next.iter().map(|(e, _)| e).map(entry)).await
    }

    /// Whether an object that is not remembered lies on an MDT that does not answer.
    async fn mdt_is_away(&self, fid: Fid) -> bool {
        self.cache.known(fid).is_none() && self.servers.lmv.is_away(fid).await
    }

    /// The same of one, of which the MDT has said `told` just now. `all_up`: no OST is away. What is on a target that is away is
    /// listed by its name, without attributes.
    async fn entry_of(
        &self,
        fid: Fid,
        told: Option<MdInode>,
        all_up: bool,
        sizes: bool,
    ) -> Option<Entry> {
        // what is covered by now counts more
        let md = match told.filter(|_| self.cache.known(fid).is_none()) {
            Some(md) => self.attributes.beside_late(md),
            None if self.mdt_is_away(fid).await => return None,
            None => self.attributes.md_inode(fid).await.ok()?,
        };
        if md.needs_osts() && !all_up {
            return None;
        }
        if !sizes && let Some(entry) = self.attributes.without_size(&md) {
            return Some(entry);
        }
        let shards = md.striped.iter().flat_map(|lmv| &lmv.stripe_fids);
        for shard in shards.filter(|f| !f.is_zero()) {
            if self.mdt_is_away(*shard).await {
                return None;
            }
        }
        Some(self.attributes.entry(self.attributes.full(&md).await.ok()?))
    }

    /// Up to `max` entries behind `cookie`; empty at the end. `keep`: for the cache to know the listing.
    async fn next_entries(
        &self,
        dh: &DirHandle,
        cookie: u64,
        max: usize,
        keep: bool,
    ) -> Result<Vec<(WireEntry, u64)>, Error> {
        loop {
            let from = {
                let mut s = dh.stream.lock();
                let here = s.seek(cookie);
                if here && s.at < s.entries.len() {
                    return Ok(s.ahead(max));
                }
                match s.next {
                    // read on where the last chunk ended
                    Some(p) if here => p,
                    None if here && cookie > DOTDOT => return Ok(Vec::new()),
                    _ => {
                        let p = s.position(cookie);
                        let collisions = std::mem::take(&mut s.collisions);
                        let listing = (p.hash == 0 && keep)
                            .then(|| (self.cache.begin_read(dh.fid()), Vec::new()));
                        *s = Stream {
                            first: cookie,
                            collisions,
                            listing,
                            ..Default::default()
                        };
                        p
                    }
                }
            };
            let mark = self.cache.begin_read(dh.fid());
            let chunk = self.places.read_chunk(dh.fid(), from.hash).await?;
            let mut s = dh.stream.lock();
            (s.first, s.at) = (cookie, 0);
            s.read = Some(mark);
            s.entries.clear();
            if let Some((mark, mut all)) = s.listing.take() {
                all.extend(
                    chunk
                        .entries
                        .iter()
                        .filter(|e| !is_dot(&e.name))
                        .map(|e| (e.name.clone(), e.fid)),
                );
                match chunk.next {
                    Some(_) => s.listing = Some((mark, all)),
                    None => {
                        self.orders.listed(dh.fid(), &all);
                        self.cache.learn_listing(mark, dh.fid(), all);
                    }
                }
            }
            s.take(from, chunk);
            if s.entries.is_empty() && s.next.is_none() {
                return Ok(Vec::new());
            }
        }
    }

    /// The entry with this cookie was handed out.
    fn consumed(&self, dh: &DirHandle, cookie: u64) {
        let mut s = dh.stream.lock();
        if s.entries.get(s.at).is_some_and(|(_, c)| *c == cookie) {
            s.at += 1;
        }
    }

    /// Reads a whole directory so that its listing is known; true: it is. Gives up on big ones.
    pub async fn read_whole(&self, dir: Fid) -> bool {
        let mark = self.cache.begin_read(dir);
        let mut all = Vec::new();
        let mut at = Some(0);
        for _ in 0..WHOLE_CHUNKS {
            let Some(from) = at else { break };
            let Ok(chunk) = self.places.read_piece(dir, from).await else {
                return false;
            };
            // entries of the hash where the last chunk ended come again: the map they end up in takes them once
            all.extend(
                chunk
                    .entries
                    .into_iter()
                    .filter(|e| !is_dot(&e.name))
                    .map(|e| (e.name, e.fid)),
            );
            if chunk.next == Some(from) {
                return false;
            }
            at = chunk.next;
        }
        at.is_none() && self.cache.learn_listing(mark, dir, all)
    }

    /// Ends reading.
    pub async fn releasedir(&self, dh: &DirHandle) -> Result<(), Error> {
        self.ghosts.closed(&dh.attr);
        Ok(())
    }

    /// The directory's entries are on disk when this returns. EIO, once, when some were lost with a server's memory.
    pub async fn fsyncdir(&self, dh: &DirHandle) -> Result<(), Error> {
        let done = self.sync_dir(dh.fid()).await;
        self.lost.take(dh.fid(), &dh.seen_lost).and(done)
    }

    /// The entries of the directory `fid` are on disk when this returns.
    pub async fn sync_dir(&self, fid: Fid) -> Result<(), Error> {
        Ok(self.servers.lmv.of(fid).await?.sync(fid).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(hash: u64, name: &str) -> WireEntry {
        WireEntry {
            fid: Fid::ROOT,
            hash,
            attrs: 0,
            name: Bytes::copy_from_slice(name.as_bytes()),
            mode_type: 0,
        }
    }

    /// What the MDT answers from a hash on: like it, a chunk never holds less than the whole first group.
    fn chunk(dir: &[WireEntry], from: u64, per: usize) -> DirChunk {
        let all: Vec<_> = dir.iter().filter(|e| e.hash >= from).cloned().collect();
        let mut end = per.min(all.len());
        while end < all.len() && all[end].hash == all[0].hash {
            end += 1;
        }
        DirChunk {
            entries: all[..end].to_vec(),
            next: all.get(end).map(|e| e.hash),
        }
    }

    /// Hands out a directory through chunks of `per` entries, in reads of `take`; `restart`: each read knows its cookie only.
    fn walk(dir: &[WireEntry], per: usize, take: usize, restart: bool) -> Vec<String> {
        let (mut s, mut at, mut out) = (Stream::default(), 0, Vec::new());
        for _ in 0..1000 {
            if restart {
                s = Stream {
                    first: at,
                    collisions: std::mem::take(&mut s.collisions),
                    ..Default::default()
                };
            }
            let mut from = s.next.unwrap_or(s.position(at));
            while s.at == s.entries.len() {
                (s.first, s.at) = (at, 0);
                s.entries.clear();
                s.take(from, chunk(dir, from.hash, per));
                match s.next {
                    Some(n) => from = n,
                    None if s.entries.is_empty() => return out,
                    None => {}
                }
            }
            for _ in 0..take {
                let Some((e, c)) = s.ahead(1).pop() else {
                    break;
                };
                out.push(String::from_utf8(e.name.to_vec()).unwrap());
                at = c;
                s.at += 1;
            }
        }
        panic!("no end");
    }

    #[test]
    fn every_entry_comes_once_whatever_the_cuts() {
        let dir: Vec<_> = [
            (3, "."),
            (4, ".."),
            (10, "a"),
            (10, "b"),
            (10, "c"),
            (11, "d"),
            (500, "e"),
            (500, "f"),
            (501, "g"),
        ]
        .map(|(h, n)| entry(h, n))
        .to_vec();
        for per in 1..10 {
            for take in 1..10 {
                for restart in [false, true] {
                    assert_eq!(
                        walk(&dir, per, take, restart),
                        ["a", "b", "c", "d", "e", "f", "g"],
                        "{per} {take} {restart}"
                    );
                }
            }
        }
    }

    #[test]
    fn cookies_are_stable_and_grow() {
        let mut s = Stream::default();
        s.take(
            Position { hash: 0, skip: 0 },
            DirChunk {
                entries: vec![entry(10, "a"), entry(20, "b")],
                next: None,
            },
        );
        assert_eq!(
            s.entries.iter().map(|(_, c)| *c).collect::<Vec<_>>(),
            [11, 21]
        );
    }
}
