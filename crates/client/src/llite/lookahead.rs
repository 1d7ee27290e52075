//! Asks for what names are that are going to be looked up ([`Rows`]), and how big their files are or what is in them, many in one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_stopwatch::{Wait, carried, waits};
use coral_wire::fid::Fid;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

use super::ahead::is_small;
use super::attributes::Attributes;
use super::cache::Lookup;
use super::identities::Identities;
use super::inode::MdInode;
use super::orders::Orders;
use super::places::Places;
use super::rows::{Ahead, Going, Next, Rows};
use super::types::Cred;
use crate::mdc::{Ids, Mdc};

/// A lookup waits so long for what was asked for ahead; then it asks by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Names to be asked for at one MDT, each in its directory object.
type AtMdt = (Arc<Mdc>, Vec<(Fid, Bytes)>);

/// Names of which nothing is remembered, what other names are known to be, and what is known of further ones.
type Unknown = (Vec<AtMdt>, Vec<Fid>, Vec<MdInode>);

/// What is asked for of the files behind the names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OfFiles {
    /// Who removes them needs nothing of it.
    Nothing,
    Sizes,
    /// They are going to be read.
    Data,
}

/// Looks names up before they are looked for.
pub(super) struct Lookahead {
    pub attributes: Arc<Attributes>,
    pub ids: Arc<Identities>,
    pub places: Arc<Places>,
    pub rows: Rows,
    pub orders: Arc<Orders>,
}

impl Lookahead {
    /// `cred` looked `name` up in `dir`, and it is a file. Of the next ones `files` is asked for too.
    pub async fn found(self: &Arc<Self>, cred: &Cred, dir: Fid, name: &[u8], files: OfFiles) {
        if !self.attributes.cache.enabled() {
            return;
        }
        if let Going::Ask(ahead) = self.rows.found(dir, name) {
            self.ask_soon(cred, dir, ahead, files).await;
        }
    }

    /// `cred` opens a file for reading that it may know from a listing: the data of those that are read next is asked for, and that of the
    /// file waited for, if it has been asked for.
    pub async fn opened(self: &Arc<Self>, cred: &Cred, fid: Fid) {
        let cache = &self.attributes.cache;
        let Some(listed) = self.orders.opened(fid).filter(|_| cache.enabled()) else {
            return;
        };
        let mut going = self.rows.found(listed.dir, &listed.name);
        for (order, place) in listed.places {
            if matches!(going, Going::No) {
                going = self.rows.opened(listed.dir, order, place);
            }
        }
        if let Going::Ask(ahead) = going {
            self.ask_soon(cred, listed.dir, ahead, OfFiles::Data).await;
        }
        if cache.known(fid).is_none() {
            let named = |(order, place)| self.rows.named_in(listed.dir, order, place);
            if let Some(named) = listed.places.into_iter().find_map(named) {
                told(named).await;
            }
        }
        let small = cache.known(fid).filter(|k| is_small(&k.md));
        let is_there = || {
            cache.wants_data(fid).is_none() && cache.known(fid).is_none_or(|k| k.objects.is_some())
        };
        if small.is_some() {
            self.there(listed.dir, &listed.name, fid, is_there).await;
        }
    }

    async fn ask_soon(self: &Arc<Self>, cred: &Cred, dir: Fid, ahead: Ahead, files: OfFiles) {
        // now, while the program is there
        let ids = self.ids.of(cred, &[dir]).await;
        let me = self.clone();
        let ask = async move { me.ask(&ids, dir, ahead, files).await };
        tokio::spawn(carried(ask));
    }

    /// Waits until it is known what `name` is, if that has been asked for. False: it has not been.
    pub async fn named(&self, dir: Fid, name: &[u8]) -> bool {
        let Some(named) = self.rows.named(dir, name) else {
            return false;
        };
        told(named).await;
        true
    }

    /// Waits until the size of `fid`, which is `name`, is known, and its data where these come along, if that has been asked for.
    pub async fn sized(&self, dir: Fid, name: &[u8], fid: Fid) {
        let known = || (self.attributes.cache.known(fid)).is_none_or(|k| k.objects.is_some());
        self.there(dir, name, fid, known).await;
    }

    /// Waits for what was asked for of a file, until `known` says that it is there, or no more comes.
    async fn there(&self, dir: Fid, name: &[u8], fid: Fid, known: impl Fn() -> bool) {
        if known() {
            return;
        }
        let in_order = || {
            let listed = self.orders.of(fid)?;
            let sized = |(order, place)| self.rows.sized_in(listed.dir, order, place);
            listed.places.into_iter().find_map(sized)
        };
        if let Some(mut sized) = self.rows.sized(dir, name).or_else(in_order) {
            let told = async { while !known() && sized.changed().await.is_ok() {} };
            let _ = timeout(PATIENCE, waits(Wait::Server, told)).await;
        }
    }

    async fn ask(&self, ids: &Ids, dir: Fid, mut ahead: Ahead, files: OfFiles) {
        let asked = match &ahead.next {
            Next::Names(names) => self.unknown(dir, names).await,
            Next::Places(order, places) => {
                let files = self.orders.files(dir, *order, places.clone());
                Some(self.unknown_of(files))
            }
        };
        let Some((by_mdt, fids, mut inodes)) = asked else {
            return self.rows.nothing(&ahead);
        };
        let at_mdt = by_mdt.iter();
        let named = at_mdt.map(|(mdc, names)| self.attributes.named(mdc, ids, names));
        let named = join_all(named);
        let (named, of_fids) = tokio::join!(named, self.attributes.md_inodes(fids));
        inodes.extend(named.into_iter().flatten());
        inodes.extend(of_fids.into_values());
        ahead.names_are_known();
        if inodes.is_empty() {
            return self.rows.nothing(&ahead);
        }
        if ahead.sizes && files != OfFiles::Nothing {
            let known = || ahead.sizes_are_known();
            let to_read = files == OfFiles::Data;
            let sizes = self.attributes.sizes(&inodes, to_read, known);
            let ((wanted, told), ()) = tokio::join!(sizes, async {
                if to_read {
                    self.attributes.data(&inodes, known).await;
                }
            });
            if 2 * told < wanted {
                self.rows.no_sizes(&ahead);
            }
        }
    }

    /// The same of files by their FIDs.
    fn unknown_of(&self, files: Vec<Fid>) -> Unknown {
        let (mut fids, mut inodes) = (Vec::new(), Vec::new());
        for fid in files {
            match self.attributes.cache.known(fid) {
                Some(known) => inodes.push(known.md),
                None => fids.push(fid),
            }
        }
        (Vec::new(), fids, inodes)
    }

    /// What of these names nothing is remembered of, what is known to be these files, and what is known of these; `None`: nothing can
    /// be asked for ahead.
    async fn unknown(&self, dir: Fid, names: &[Bytes]) -> Option<Unknown> {
        let lmv = &self.attributes.servers.lmv;
        let mut by_mdt: BTreeMap<u32, AtMdt> = BTreeMap::new();
        let (mut fids, mut inodes) = (Vec::new(), Vec::new());
        let places = self.places.all_of_each(dir, names).await.ok()?;
        for (name, places) in names.iter().zip(places) {
            // a name that moves is looked for by who wants to know
            let [place] = places[..] else { return None };
            match self.attributes.cache.lookup(place.dir, name) {
                Lookup::Hit(known) => inodes.push(known.md),
                Lookup::Name(fid) => fids.push(fid),
                Lookup::Absent => {}
                Lookup::Unknown => {
                    if lmv.is_away(place.dir).await {
                        return None;
                    }
                    let mdc = lmv.of(place.dir).await.ok().filter(|m| m.batches())?;
                    let of_mdt = by_mdt.entry(mdc.index).or_insert_with(|| (mdc, Vec::new()));
                    of_mdt.1.push((place.dir, name.clone()));
                }
            }
        }
        Some((by_mdt.into_values().collect(), fids, inodes))
    }
}

/// Waits until what was asked for is there.
async fn told(mut asked: watch::Receiver<()>) {
    let told = async { while asked.changed().await.is_ok() {} };
    let _ = timeout(PATIENCE, waits(Wait::Server, told)).await;
}
