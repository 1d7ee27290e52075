//! Asks for what names are that are going to be looked up ([`Rows`]), or files opened ([`Orders`]), and how big the files are or what is in
//! them, many in one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_stopwatch::{Wait, carried, waits};
use coral_wire::fid::Fid;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

use super::attributes::Attributes;
use super::cache::Lookup;
use super::identities::Identities;
use super::inode::MdInode;
use super::orders::{Listing, Order, Orders};
use super::places::Places;
use super::rows::{self, Rows};
use super::track::{Asked, Going, Request, Track};
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

/// What is going to be looked up or opened.
enum Next {
    Names(rows::Names),
    /// What has these places in a listing.
    Files(Arc<Listing>, Order),
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
        if let Going::Ask((request, names)) = self.rows.found(dir, name) {
            let next = Next::Names(names);
            self.ask_soon(cred, dir, (request, next), files).await;
        }
    }

    /// `cred` opens a file for reading that it may know from a listing: the data of those that are read next is asked for, and that of the
    /// file waited for, if it has been asked for.
    pub async fn opened(self: &Arc<Self>, cred: &Cred, fid: Fid) {
        let cache = &self.attributes.cache;
        let Some(listed) = self.orders.opened(fid).filter(|_| cache.enabled()) else {
            return;
        };
        let (listing, dir) = (&listed.listing, listed.listing.dir);
        let by_number = || {
            let found = self.rows.found(dir, &listed.name);
            found.map(|(request, names)| (request, Next::Names(names)))
        };
        let mut going = match self.rows.goes_on(dir, &listed.name) {
            true => by_number(),
            false => Going::No,
        };
        for (order, place) in listed.places {
            if matches!(going, Going::No) {
                let found = listing.track(order).lock().found(place);
                going = found.map(|request| (request, Next::Files(listing.clone(), order)));
            }
        }
        if matches!(going, Going::No) {
            going = by_number();
        }
        if let Going::Ask(ahead) = going {
            self.ask_soon(cred, dir, ahead, OfFiles::Data).await;
        }
        let Some(asked) = self.asked(dir, &listed.name, fid) else {
            return;
        };
        if cache.known(fid).is_none() {
            told(asked.named.clone()).await;
        }
        let Some(known) = cache.known(fid) else {
            return;
        };
        if self.attributes.comes_with_data(&known.md) {
            let is_known = || cache.known(fid).is_none_or(|k| k.objects.is_some());
            wait_for(asked, || is_known() && cache.wants_data(fid).is_none()).await;
        }
    }

    async fn ask_soon(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Fid,
        ahead: (Request, Next),
        files: OfFiles,
    ) {
        // now, while the program is there
        let ids = self.ids.of(cred, &[dir]).await;
        let me = self.clone();
        let ask = async move { me.ask(&ids, dir, ahead, files).await };
        tokio::spawn(carried(ask));
    }

    /// Waits until it is known what `name` is, if that has been asked for. False: it has not been.
    pub async fn named(&self, dir: Fid, name: &[u8]) -> bool {
        let Some(asked) = self.rows.asked(dir, name) else {
            return false;
        };
        told(asked.named).await;
        true
    }

    /// Waits until the size of `fid`, which is `name`, is known, if that has been asked for; its data comes with it where it does.
    pub async fn sized(&self, dir: Fid, name: &[u8], fid: Fid) {
        let known = || (self.attributes.cache.known(fid)).is_none_or(|k| k.objects.is_some());
        if !known()
            && let Some(asked) = self.asked(dir, name, fid)
        {
            wait_for(asked, known).await;
        }
    }

    /// The request in which a file was asked for, by its name or by its place in a listing.
    fn asked(&self, dir: Fid, name: &[u8], fid: Fid) -> Option<Asked> {
        let in_order = || {
            let listed = self.orders.of(fid)?;
            let asked = |(order, place)| listed.listing.track(order).lock().asked(place);
            let under_way = |a: &Asked| !a.is_answered();
            listed.places.into_iter().filter_map(asked).find(under_way)
        };
        let by_number = self.rows.asked(dir, name).filter(|a| !a.is_answered());
        by_number.or_else(in_order)
    }

    async fn ask(&self, ids: &Ids, dir: Fid, (mut request, next): (Request, Next), files: OfFiles) {
        let asked = match &next {
            Next::Names(names) => self.unknown(dir, &names.names).await,
            Next::Files(listing, order) => {
                let files = listing.files(*order, request.numbers.clone());
                Some(self.unknown_of(files))
            }
        };
        let track = |what: &dyn Fn(&mut Track)| match &next {
            Next::Names(names) => self.rows.with(&names.row, what),
            Next::Files(listing, order) => what(&mut listing.track(*order).lock()),
        };
        let Some((by_mdt, fids, mut inodes)) = asked else {
            return track(&|t| t.nothing(&request));
        };
        let at_mdt = by_mdt.iter();
        let named = at_mdt.map(|(mdc, names)| self.attributes.named(mdc, ids, names));
        let named = join_all(named);
        let (named, of_fids) = tokio::join!(named, self.attributes.md_inodes(fids));
        inodes.extend(named.into_iter().flatten());
        inodes.extend(of_fids.into_values());
        request.names_are_known();
        if inodes.is_empty() {
            return track(&|t| t.nothing(&request));
        }
        if request.sizes && files != OfFiles::Nothing {
            let known = || request.sizes_are_known();
            let to_read = files == OfFiles::Data;
            let sizes = self.attributes.sizes(&inodes, to_read, known);
            let ((wanted, told), ()) = tokio::join!(sizes, async {
                if to_read {
                    self.attributes.data(&inodes, known).await;
                }
            });
            if 2 * told < wanted {
                track(&|t| t.no_sizes(&request));
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

/// Waits until it is told what was asked for.
async fn told(mut asked: watch::Receiver<()>) {
    let told = async { while asked.changed().await.is_ok() {} };
    let _ = timeout(PATIENCE, waits(Wait::Server, told)).await;
}

/// Waits until `known` says that it is, or no more comes.
async fn wait_for(mut asked: Asked, known: impl Fn() -> bool) {
    let told = async { while !known() && asked.sized.changed().await.is_ok() {} };
    let _ = timeout(PATIENCE, waits(Wait::Server, told)).await;
}
