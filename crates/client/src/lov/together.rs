//! What the objects of many files are, asked for together: the objects on one OST in few requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::LockRef;
use coral_wire::coral::glimpses::{DATA_BYTES_MAX, GLIMPSES_MAX};
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

/// A file that is asked for.
pub(crate) struct AskedFile {
    pub layout: Arc<FileLayout>,
    pub fid: Fid,
    /// Roughly, bytes.
    pub size: u64,
}

/// One object that is asked for.
#[derive(Clone, Copy)]
struct Asked {
    /// The file and the stripe, by their places.
    file: usize,
    stripe: usize,
    object: ObjectRef,
    /// What its data takes in the answer.
    bytes: u64,
}

/// As many from the front as one request asks for.
fn in_one_request(asked: &[Asked]) -> usize {
    let mut room = DATA_BYTES_MAX as u64;
    let fits = asked.iter().take_while(|a| {
        let fits = a.bytes <= room;
        room = room.saturating_sub(a.bytes);
        fits
    });
    fits.take(GLIMPSES_MAX).count().max(1)
}

/// The requests that ask for all of these.
fn requests(mut asked: &[Asked]) -> impl Iterator<Item = &[Asked]> {
    std::iter::from_fn(move || {
        let (some, rest) = asked.split_at(in_one_request(asked).min(asked.len()));
        asked = rest;
        (!some.is_empty()).then_some(some)
    })
}

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
        files: &[AskedFile],
        with_data: bool,
        mut learn: impl FnMut(usize, Glimpsed),
    ) {
        let mut by_ost: BTreeMap<u32, (Arc<Osc>, Vec<Asked>)> = BTreeMap::new();
        let osc = |ost| self.osc(ost).ok().filter(|o| o.takes_glimpses_together());
        let takes = |s: &Stripe<'_>| !s.part.md.is_dom() && osc(s.ost()).is_some();
        let mut found: Vec<File<'_>> = files.iter().map(|f| File::of(&f.layout)).collect();
        for (file, (File { stripes, .. }, asked)) in found.iter().zip(files).enumerate() {
            if stripes.len() > STRIPES_MAX || !stripes.iter().all(takes) {
                continue;
            }
            for (n, stripe) in stripes.iter().enumerate() {
                if let Some(osc) = osc(stripe.ost()) {
                    let of_ost = by_ost.entry(osc.index).or_insert_with(|| (osc, Vec::new()));
                    of_ost.1.push(Asked {
                        file,
                        stripe: n,
                        object: stripe.object(asked.fid),
                        bytes: if with_data { asked.size } else { 0 },
                    });
                }
            }
        }
        let requests = by_ost
            .values()
            .flat_map(|(osc, asked)| requests(asked).map(move |some| ask(osc, some, with_data)));
        let mut requests: FuturesUnordered<_> = requests.collect();
        while let Some(answers) = requests.next().await {
            for (asked, (attr, lock, data)) in answers {
                let (n, object) = (asked.file, asked.object);
                let file = &mut found[n];
                let s = &file.stripes[asked.stripe];
                let object = (s.ost(), object.oi.res_id());
                let size = s.file_size(attr.size);
                file.found[asked.stripe] = Some((size, attr, (object, lock), data));
                if let Some(whole) = file.whole() {
                    learn(n, whole);
                }
            }
        }
    }

    /// The data of these files, which are small and have one object, on which this client has locks. `learn` is told of each that came.
    pub(crate) async fn data_together(
        &self,
        files: &[AskedFile],
        mut learn: impl FnMut(usize, Bytes),
    ) {
        let mut by_ost: BTreeMap<u32, (Arc<Osc>, Vec<Asked>)> = BTreeMap::new();
        for (file, asked) in files.iter().enumerate() {
            let Some(s) = asked.layout.stripes().next() else {
                continue;
            };
            let osc = self.osc(s.ost()).ok();
            if let Some(osc) = osc.filter(|o| o.takes_glimpses_together()) {
                let of_ost = by_ost.entry(osc.index).or_insert_with(|| (osc, Vec::new()));
                of_ost.1.push(Asked {
                    file,
                    stripe: 0,
                    object: s.object(asked.fid),
                    bytes: asked.size,
                });
            }
        }
        let requests = by_ost.values().flat_map(|(osc, asked)| {
            requests(asked).map(move |some| async move {
                let objects: Vec<ObjectRef> = some.iter().map(|a| a.object).collect();
                let data = timeout(LIMIT, osc.data_of(&objects)).await;
                // who reads it alone is told what is wrong
                let data = data.ok().and_then(Result::ok).unwrap_or_default();
                (some, data)
            })
        });
        let mut requests: FuturesUnordered<_> = requests.collect();
        while let Some((some, data)) = requests.next().await {
            for (asked, data) in some.iter().zip(data) {
                if let Some(data) = data {
                    learn(asked.file, data);
                }
            }
        }
    }
}

/// What one request brings.
async fn ask(osc: &Osc, asked: &[Asked], with_data: bool) -> Vec<(Asked, Answer)> {
    let objects: Vec<ObjectRef> = asked.iter().map(|a| a.object).collect();
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
