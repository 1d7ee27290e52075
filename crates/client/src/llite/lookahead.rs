//! Asks for what names are that are going to be looked up ([`Rows`]), and how big their files are, many in one request.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coral_wire::fid::Fid;
use futures_util::future::join_all;

use super::attributes::Attributes;
use super::cache::Lookup;
use super::identities::Identities;
use super::inode::MdInode;
use super::places::Places;
use super::rows::{Ahead, Rows};
use super::types::Cred;
use crate::mdc::Mdc;

/// Names to be asked for at one MDT, each in its directory object.
type AtMdt = (Arc<Mdc>, Vec<(Fid, Bytes)>);

/// Looks names up before they are looked for.
pub(super) struct Lookahead {
    pub attributes: Arc<Attributes>,
    pub ids: Arc<Identities>,
    pub places: Arc<Places>,
    pub rows: Rows,
}

impl Lookahead {
    /// `cred` looked `name` up in `dir`, and it is a file.
    pub fn found(self: &Arc<Self>, cred: &Cred, dir: Fid, name: &[u8]) {
        if !self.attributes.cache.enabled() {
            return;
        }
        if let Some(ahead) = self.rows.found(dir, name)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (me, cred) = (self.clone(), cred.clone());
            runtime.spawn(async move { me.ask(&cred, dir, ahead).await });
        }
    }

    async fn ask(&self, cred: &Cred, dir: Fid, ahead: Ahead) {
        let Some((by_mdt, fids, mut inodes)) = self.unknown(dir, &ahead.names).await else {
            return;
        };
        let ids = self.ids.of(cred, &[dir]).await;
        let named = join_all(
            by_mdt
                .iter()
                .map(|(mdc, names)| self.attributes.named(mdc, &ids, names)),
        );
        let (named, of_fids) = tokio::join!(named, self.attributes.md_inodes(fids));
        inodes.extend(named.into_iter().flatten());
        inodes.extend(of_fids.into_values());
        if inodes.is_empty() {
            return self.rows.nothing(&ahead);
        }
        if !self.attributes.removers.removes(cred.pid) {
            self.attributes.sizes(&inodes).await;
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
        for name in names {
            let places = self.places.all_of(dir, name).await.ok()?;
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
