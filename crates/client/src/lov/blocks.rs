//! Reading many blocks of a file at once: what of them is in one object comes with one request, whatever lies between.
//!
//! Lustre: an RPC of pages that do not follow one another has a niobuf for each run of them (`osc_build_rpc` in
//! `lustre/osc/osc_request.c`).

use std::ops::Range;
use std::sync::Arc;

use coral_buffers::Payload;
use coral_wire::fid::Fid;
use futures_util::future::try_join_all;

use super::{FileLayout, Locks, Lov, ObjectRange};
use crate::error::Error;
use crate::osc::{ObjectRef, Osc};

/// One request.
struct Job {
    osc: Arc<Osc>,
    object: ObjectRef,
    ranges: Vec<(u64, usize)>,
    bytes: usize,
}

/// Where a part of a block is found: in the block, in the answer to which job, and bytes.
struct Place {
    at: u64,
    job: usize,
    from: usize,
    len: usize,
}

/// The requests, and the parts of each block.
#[derive(Default)]
struct Plan {
    jobs: Vec<Job>,
    blocks: Vec<Vec<Place>>,
}

impl Plan {
    /// A block of these ranges comes next.
    fn add(&mut self, ranges: Vec<ObjectRange>) {
        let mut places = Vec::with_capacity(1);
        for r in ranges {
            let (mut offset, most) = (r.offset, r.osc.rpc_bytes());
            for (start, bytes) in r.pieces {
                for done in (0..bytes).step_by(most) {
                    let (at, len) = (start + done, most.min((bytes - done) as usize));
                    let (job, from) = self.put(&r.osc, r.object, (offset, len));
                    offset += len as u64;
                    places.push(Place { at, job, from, len });
                }
            }
        }
        places.sort_by_key(|p| p.at);
        self.blocks.push(places);
    }

    /// The job that reads a range of an object, and where it is in the answer.
    fn put(&mut self, osc: &Arc<Osc>, object: ObjectRef, range: (u64, usize)) -> (usize, usize) {
        let open = (self.jobs.iter_mut().enumerate().rev()).find(|(_, j)| j.object == object);
        if let Some((i, job)) = open.filter(|(_, j)| j.bytes + range.1 <= osc.rpc_bytes()) {
            let from = job.bytes;
            job.ranges.push(range);
            job.bytes += range.1;
            return (i, from);
        }
        let osc = osc.clone();
        let (ranges, bytes) = (vec![range], range.1);
        self.jobs.push(Job {
            osc,
            object,
            ranges,
            bytes,
        });
        (self.jobs.len() - 1, 0)
    }

    /// The blocks that came whole, up to the first that did not.
    fn whole(&self, answers: &[Payload]) -> Vec<Payload> {
        let mut out = Vec::with_capacity(self.blocks.len());
        for places in &self.blocks {
            let mut block = Payload::new();
            for p in places {
                let Some(answer) = answers.get(p.job).filter(|a| p.from + p.len <= a.len()) else {
                    return out;
                };
                block.append(answer.slice(p.from..p.from + p.len));
            }
            out.push(block);
        }
        out
    }
}

impl Lov {
    /// Reads blocks of whole pages, ascending; those before the first that does not lie in the file with
    /// all its bytes, or in part in a hole behind all data of an object. `lock`: on all of every object.
    pub async fn read_blocks(
        &self,
        layout: &FileLayout,
        fid: Fid,
        blocks: impl Iterator<Item = Range<u64>>,
        lock: &Locks,
    ) -> Result<Vec<Payload>, Error> {
        let mut plan = Plan::default();
        for block in blocks {
            let len = block.end - block.start;
            let ranges = self.ranges(layout, fid, block.start, len).await?;
            // a component to come
            if ranges.iter().map(|r| r.len).sum::<u64>() != len {
                break;
            }
            plan.add(ranges);
        }
        let reads = plan.jobs.iter().map(|job| async move {
            let (lock, _pin) = lock.of(&job.object);
            job.osc.read_ranges(&job.object, &job.ranges, lock).await
        });
        let answers = try_join_all(reads).await?;
        Ok(plan.whole(&answers))
    }
}
