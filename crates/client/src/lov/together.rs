//! What the objects of many files are, asked for together: the objects on one OST in few requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use coral_ldlm::LockRef;
use coral_wire::coral::glimpses::GLIMPSES_MAX;
use coral_wire::fid::Fid;
use futures_util::future::join_all;

use super::pieces::sum;
use super::{FileLayout, Lov, ObjectLock};
use crate::osc::{ObjectAttr, ObjectRef, Osc};

/// What the objects of a file are, and the locks that cover it.
pub type Glimpsed = (ObjectAttr, Vec<ObjectLock>);

/// One object that is asked for: the file and the stripe, by their places.
type Asked = (usize, usize, ObjectRef);

/// What came of a stripe: the size that it gives the file, the object, and its lock.
type Found = (u64, ObjectAttr, ObjectLock);

impl Lov {
    /// Glimpses all objects of these files. `None`: that file is to be asked for alone, as somebody is changing it, or because one of
    /// its OSTs takes one glimpse at a time only or is away.
    pub async fn glimpse_together(
        &self,
        files: &[(Arc<FileLayout>, Fid)],
    ) -> Vec<Option<Glimpsed>> {
        let mut by_ost: BTreeMap<u32, (Arc<Osc>, Vec<Asked>)> = BTreeMap::new();
        let mut found: Vec<Vec<Option<Found>>> = Vec::with_capacity(files.len());
        for (file, (layout, fid)) in files.iter().enumerate() {
            let stripes = layout.stripes();
            found.push((0..stripes.len()).map(|_| None).collect());
            let osc = |ost| self.osc(ost).ok().filter(|o| o.takes_glimpses_together());
            let takes = |s: &super::Stripe<'_>| !s.part.md.is_dom() && osc(s.ost()).is_some();
            if !layout.stripes().all(|s| takes(&s)) {
                continue;
            }
            for (n, stripe) in stripes.enumerate() {
                if let Some(osc) = osc(stripe.ost()) {
                    let of_ost = by_ost.entry(osc.index).or_insert_with(|| (osc, Vec::new()));
                    of_ost.1.push((file, n, stripe.object(*fid)));
                }
            }
        }
        let requests = by_ost
            .values()
            .flat_map(|(osc, asked)| asked.chunks(GLIMPSES_MAX).map(move |some| (osc, some)));
        let answers = join_all(requests.map(|(osc, some)| ask(osc, some))).await;
        for (file, stripe, (attr, lock)) in answers.into_iter().flatten() {
            let (layout, fid) = &files[file];
            if let Some(s) = layout.stripes().nth(stripe) {
                let object = (s.ost(), s.object(*fid).oi.res_id());
                found[file][stripe] = Some((s.file_size(attr.size), attr, (object, lock)));
            }
        }
        let whole = |stripes: Vec<Option<Found>>| {
            let stripes: Vec<Found> = stripes.into_iter().collect::<Option<_>>()?;
            let sizes: Vec<(u64, ObjectAttr)> = stripes.iter().map(|s| (s.0, s.1)).collect();
            let locks = stripes.into_iter().map(|(_, _, lock)| lock).collect();
            (!sizes.is_empty()).then(|| (sum(&sizes), locks))
        };
        found.into_iter().map(whole).collect()
    }
}

/// What one request brings.
async fn ask(osc: &Osc, asked: &[Asked]) -> Vec<(usize, usize, (ObjectAttr, LockRef))> {
    let objects: Vec<ObjectRef> = asked.iter().map(|(_, _, object)| *object).collect();
    let answers = osc.glimpses(&objects).await.unwrap_or_else(|error| {
        // each is asked for alone, which says so
        tracing::debug!(%error, ost = osc.index, "glimpses of many objects at once");
        Vec::new()
    });
    let with_places = asked.iter().zip(answers);
    with_places
        .filter_map(|((file, stripe, _), answer)| Some((*file, *stripe, answer?)))
        .collect()
}
