//! Asks for what names are that are going to be looked up ([`Rows`]), and how big their files are or what is in them, many in one request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_stopwatch::{Wait, carried, waits};
use coral_wire::fid::Fid;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::attributes::Attributes;
use super::cache::Lookup;
use super::identities::Identities;
use super::inode::MdInode;
use super::places::Places;
use super::rows::{Ahead, Rows};
use super::types::Cred;
use crate::mdc::{Ids, Mdc};

/// A lookup waits so long for what was asked for ahead; then it asks by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Names to be asked for at one MDT, each in its directory object.
type AtMdt = (Arc<Mdc>, Vec<(Fid, Bytes)>);

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
}

impl Lookahead {
    /// `cred` looked `name` up in `dir`, and it is a file. Of the next ones `files` is asked for too.
    pub async fn found(self: &Arc<Self>, cred: &Cred, dir: Fid, name: &[u8], files: OfFiles) {
        if !self.attributes.cache.enabled() {
            return;
        }
        let Some(ahead) = self.rows.found(dir, name) else {
            return;
        };
        // now, while the program is there
        let ids = self.ids.of(cred, &[dir]).await;
        let me = self.clone();
        let ask = async move { me.ask(&ids, dir, ahead, files).await };
        tokio::spawn(carried(ask));
    }

    /// Waits until it is known what `name` is, if that has been asked for. False: it has not been.
    pub async fn named(&self, dir: Fid, name: &[u8]) -> bool {
        let Some(mut named) = self.rows.named(dir, name) else {
            return false;
        };
        let told = async { while named.changed().await.is_ok() {} };
        let _ = timeout(PATIENCE, waits(Wait::Server, told)).await;
        true
    }

    /// Waits until the size of `fid`, which is `name`, is known, and its data where these come along, if that has been asked for.
    pub async fn sized(&self, dir: Fid, name: &[u8], fid: Fid) {
        let known = || (self.attributes.cache.known(fid)).is_none_or(|k| k.objects.is_some());
        if known() {
            return;
        }
        if let Some(mut sized) = self.rows.sized(dir, name) {
            let told = async { while !known() && sized.changed().await.is_ok() {} };
            let _ = timeout(PATIENCE, waits(Wait::Server, told)).await;
        }
    }

    async fn ask(&self, ids: &Ids, dir: Fid, mut ahead: Ahead, files: OfFiles) {
        let Some((by_mdt, fids, mut inodes)) = self.unknown(dir, &ahead.names).await else {
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
            let (wanted, told) = self.attributes.sizes(&inodes, to_read, known).await;
            if 2 * told < wanted {
                self.rows.no_sizes(&ahead);
            }
        }
    }

    /// What of these names nothing is remembered of, what is known to be these files, and what is known of these; `None`: nothing can
    /// be asked for ahead.
    async fn unknown(
        &self,
        dir: Fid,
        names: &[Bytes],
    ) -> Option<(Vec<AtMdt>, Vec<Fid>, Vec<MdInode>)> {
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
