//! Where a file has data and holes.

use coral_wire::fid::Fid;
use futures_util::future::try_join_all;

use super::Lov;
use super::layout::{FileLayout, Stripe};
use crate::error::{Error, Refusal};

impl Lov {
    /// SEEK_DATA or SEEK_HOLE from `offset`; ENXIO at or behind the end, or when no data follows.
    pub async fn seek(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        hole: bool,
    ) -> Result<u64, Error> {
        let size = self.getattr(layout, fid).await?.size;
        if offset >= size {
            return Err(Refusal::NoData.into());
        }
        let mut best = if hole { Some(size) } else { None };
        for part in layout.overlapping(offset, size) {
            let from = offset.max(part.start);
            if !part.init {
                if hole {
                    best = best.map(|b| b.min(from));
                }
                continue;
            }
            let found = try_join_all((0..part.md.objects.len()).map(|index| {
                let s = Stripe { part, index };
                async move {
                    let at = s.object_size(from);
                    let hit = self
                        .store(&s, fid)
                        .await?
                        .seek(&s.object(fid), at, hole)
                        .await?;
                    // no hole found: the object ends before, all of it from here on is hole
                    let hit = if hole { Some(hit.unwrap_or(at)) } else { hit };
                    Ok::<_, Error>(hit.map(|h| s.file_offset(h)))
                }
            }))
            .await?;
            if let Some(f) = found.into_iter().flatten().filter(|f| *f < part.end).min() {
                best = Some(best.map_or(f, |b| b.min(f)));
                break;
            }
        }
        best.filter(|b| hole || *b < size)
            .ok_or(Refusal::NoData.into())
    }
}
