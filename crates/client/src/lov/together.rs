//! What the objects of many files are, asked for together: the objects on one OST in few requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::LockRef;
use coral_wire::coral::glimpses::GLIMPSES_MAX;
use coral_wire::fid::Fid;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::pieces::sum;
use super::{FileLayout, Lov, ObjectLock, Stripe};
use crate::osc::{ObjectAttr, ObjectRef, Osc};

/// Files of more stripes are asked for alone.
const STRIPES_MAX: usize = 8;
/// An OST that takes longer is not waited for: meanwhile locks of others are held for the files that have objects there too.
const LIMIT: Duration = Duration::from_secs(5);

/// What the objects of a file are, and the locks that cover it.
pub(crate) struct Glimpsed {
    pub objects: ObjectAttr,
    pub locks: Vec<ObjectLock>,
    /// All of the data of a file with one object, if it came along.
    pub data: Option<Bytes>,
}

/// One object that is asked for: the file and the stripe, by their places.
type Asked = (usize, usize, ObjectRef);

/// What came of an object.
type Answer = (ObjectAttr, LockRef, Option<Bytes>);

/// What came of a stripe: the size that it gives the file, the object, its lock, and its data.
type Found = (u64, ObjectAttr, ObjectLock, Option<Bytes>);

/// What came of a file.
struct File<'a> {
    stripes: Vec<Stripe<'a>>,
    found: Vec<Option<Found>>,
}

impl File<'_> {
    fn of(layout: &FileLayout) -> File<'_> {
        let stripes: Vec<Stripe<'_>> = layout.stripes().collect();
        File {
            found: stripes.iter().map(|_| None).collect(),
            stripes,
        }
    }

    /// All of it, if it is there.
    fn whole(&mut self) -> Option<Glimpsed> {
        if self.found.iter().any(Option::is_none) {
            return None;
        }
        let mut found: Vec<Found> = self.found.drain(..).flatten().collect();
        let sizes: Vec<(u64, ObjectAttr)> = found.iter().map(|f| (f.0, f.1)).collect();
        let objects = sum(&sizes);
        let data = match &mut found[..] {
            [only] => only.3.take(),
            _ => None,
        };
        Some(Glimpsed {
            objects,
            locks: found.into_iter().map(|f| f.2).collect(),
            data: data.filter(|d| d.len() as u64 == objects.size),
        })
    }
}

impl Lov {
    /// Glimpses all objects of these files, and reads `with_data` small ones; `learn` is told each, by its place, as soon as all of it is
    /// there. The others are to be asked for alone, as somebody is changing them, or because one of their OSTs takes one glimpse at a
    /// time only or is away.
    pub(crate) async fn glimpse_together(
        &self,
        files: &[(Arc<FileLayout>, Fid)],
        with_data: bool,
        mut learn: impl FnMut(usize, Glimpsed),
    ) {
        let mut by_ost: BTreeMap<u32, (Arc<Osc>, Vec<Asked>)> = BTreeMap::new();
        let osc = |ost| self.osc(ost).ok().filter(|o| o.takes_glimpses_together());
        let takes = |s: &Stripe<'_>| !s.part.md.is_dom() && osc(s.ost()).is_some();
        let mut found: Vec<File<'_>> = files.iter().map(|(layout, _)| File::of(layout)).collect();
        for (file, (File { stripes, .. }, (_, fid))) in found.iter().zip(files).enumerate() {
            if stripes.len() > STRIPES_MAX || !stripes.iter().all(takes) {
                continue;
            }
            for (n, stripe) in stripes.iter().enumerate() {
                if let Some(osc) = osc(stripe.ost()) {
                    let of_ost = by_ost.entry(osc.index).or_insert_with(|| (osc, Vec::new()));
                    of_ost.1.push((file, n, stripe.object(*fid)));
                }
            }
        }
        let requests = by_ost.values().flat_map(|(osc, asked)| {
            let some = asked.chunks(GLIMPSES_MAX);
            some.map(move |some| ask(osc, some, with_data))
        });
        let mut requests: FuturesUnordered<_> = requests.collect();
        while let Some(answers) = requests.next().await {
            for ((n, stripe, object), (attr, lock, data)) in answers {
                let file = &mut found[n];
                let s = &file.stripes[stripe];
                let object = (s.ost(), object.oi.res_id());
                let size = s.file_size(attr.size);
                file.found[stripe] = Some((size, attr, (object, lock), data));
                if let Some(whole) = file.whole() {
                    learn(n, whole);
                }
            }
        }
    }
}

impl Lov {
    /// The data of these files, which are small and have one object, on which this client has locks. `learn` is told of each that came.
    pub(crate) async fn data_together(
        &self,
        files: &[(Arc<FileLayout>, Fid)],
        mut learn: impl FnMut(usize, Bytes),
    ) {
        let mut by_ost: BTreeMap<u32, (Arc<Osc>, Vec<(usize, ObjectRef)>)> = BTreeMap::new();
        for (file, (layout, fid)) in files.iter().enumerate() {
            let mut stripes = layout.stripes();
            let (Some(s), None) = (stripes.next(), stripes.next()) else {
                continue;
            };
            let osc = self.osc(s.ost()).ok();
            let takes = |o: &Arc<Osc>| !s.part.md.is_dom() && o.takes_glimpses_together();
            if let Some(osc) = osc.filter(takes).filter(|_| layout.parts().len() == 1) {
                let of_ost = by_ost.entry(osc.index).or_insert_with(|| (osc, Vec::new()));
                of_ost.1.push((file, s.object(*fid)));
            }
        }
        let requests = by_ost.values().flat_map(|(osc, asked)| {
            asked.chunks(GLIMPSES_MAX).map(move |some| async move {
                let objects: Vec<ObjectRef> = some.iter().map(|(_, object)| *object).collect();
                let data = timeout(LIMIT, osc.data_of(&objects)).await;
                // who reads it alone is told what is wrong
                let data = data.ok().and_then(Result::ok).unwrap_or_default();
                (some, data)
            })
        });
        let mut requests: FuturesUnordered<_> = requests.collect();
        while let Some((some, data)) = requests.next().await {
            for ((file, _), data) in some.iter().zip(data) {
                if let Some(data) = data {
                    learn(*file, data);
                }
            }
        }
    }
}

/// What one request brings.
async fn ask(osc: &Osc, asked: &[Asked], with_data: bool) -> Vec<(Asked, Answer)> {
    let objects: Vec<ObjectRef> = asked.iter().map(|(_, _, object)| *object).collect();
    let answers = match timeout(LIMIT, osc.glimpses(&objects, with_data)).await {
        Ok(Ok(answers)) => answers,
        // each is asked for alone, which says so
        Ok(Err(error)) => {
            tracing::debug!(%error, ost = osc.index, "glimpses of many objects at once");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let with_places = asked.iter().zip(answers);
    with_places
        .filter_map(|(asked, answer)| Some((*asked, answer?)))
        .collect()
}
