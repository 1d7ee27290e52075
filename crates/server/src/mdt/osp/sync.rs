//! Telling OSTs which objects are gone and whose the others are (`lustre/osp/osp_sync.c`).
//!
//! A row of `destroy` or `owner` goes to its OST in a round, and is forgotten when the OST has committed what it did.

use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_osd::{Batch, Kv, OsdError};
use coral_ptlrpc::{Import, Reply, Request};
use coral_wire::ldlm::LdlmRequest;
use coral_wire::ost::{Obdo, md};
use coral_wire::{Errno, Fid, OstId, opc, portal};
use futures_util::future::join_all;

use super::Osp;
use super::todo::{ROUND_OBJECTS, Todo};
use crate::mdt::handler::MdtOps;
use crate::mdt::osp::queue::Answered;
use crate::mdt::store::{MdtResult, Store};
use crate::mdt::{table, usage};
use crate::quota::Owner;

/// Requests to one OST at a time.
const IN_FLIGHT: usize = 16;

/// Objects that one request destroys, of rows of their own. A row of more is a request by itself.
const TOGETHER: u32 = 32;

/// A background request gives up after this long and is tried again later.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);

/// The owner of an object's file, as its OST was told; `None`: there is no such file any more.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct ToldOwner {
    fid: Fid,
    owner: Option<Owner>,
}

impl Osp {
    /// Destroys what is due, at most one round of every OST that answers. Returns whether there may
    /// be more to do right away.
    async fn destroy_round(&self, ops: &Weak<MdtOps>) -> Result<bool, OsdError> {
        let (mut rounds, mut failed) = (Vec::new(), None);
        let Some(kv) = ops.upgrade().map(|ops| ops.core.read().store.kv().clone()) else {
            return Ok(false);
        };
        let Some(target) = self.target() else {
            return Ok(false);
        };
        for (ost, import) in self.connected() {
            match self.destroys.take(&target, &*kv, ost) {
                Ok(ids) => {
                    let kv = kv.clone();
                    rounds.push(async move {
                        (ost, ids.len(), destroy_some(&*kv, import, ost, ids).await)
                    });
                }
                // what was taken for other OSTs must not be forgotten
                Err(e) => failed = Some(e),
            }
        }
        let mut more = false;
        for (ost, asked, gone) in join_all(rounds).await {
            more |= gone.len() == ROUND_OBJECTS;
            let mut queues = self.destroys.queues.lock();
            if gone.len() < asked {
                queues.missed(ost);
            }
            gone.into_iter()
                .for_each(|(id, when)| queues.answered(ost, id, when));
        }
        for (ost, ids) in self.settled(&self.destroys) {
            more |= ids.len() == ROUND_OBJECTS;
            let mut done = Batch::new();
            for id in ids {
                done.del(table::DESTROY, table::destroy_key(ost, id));
            }
            self.commit_local(done)
                .inspect_err(|_| self.destroys.queues.lock().missed(ost))?;
        }
        failed.map_or(Ok(more), Err)
    }

    /// Takes out what OSTs have committed, one OST after another, a round's number of each.
    fn settled<'a>(&self, todo: &'a Todo) -> impl Iterator<Item = (u32, Vec<u64>)> + use<'a> {
        let settle = move |(ost, import): (u32, Arc<Import>)| {
            // In this order: what an earlier start of the OST has committed has smaller numbers than anything of a later one.
            let committed = import.last_committed();
            (
                ost,
                todo.queues
                    .lock()
                    .settle(ost, import.granted().instance, committed, ROUND_OBJECTS),
            )
        };
        self.connected()
            .into_iter()
            .map(settle)
            .filter(|(_, ids)| !ids.is_empty())
    }

    /// Tells owners, at most one round of every OST that answers. Returns whether there may be more to do right away.
    async fn owner_round(&self, ops: &Weak<MdtOps>) -> Result<bool, OsdError> {
        let Some(store) = ops.upgrade().map(|ops| ops.core.read().store.clone()) else {
            return Ok(false);
        };
        let Some(target) = self.target() else {
            return Ok(false);
        };
        let (mut rounds, mut failed) = (Vec::new(), None);
        for (ost, import) in self.connected() {
            match self.owners.take(&target, &**store.kv(), ost) {
                Ok(ids) => rounds.push(tell_some(&store, import, ost, ids)),
                Err(e) => failed = Some(e),
            }
        }
        let mut more = false;
        for (ost, all, answers) in join_all(rounds).await {
            more |= answers.len() == ROUND_OBJECTS;
            let mut queues = self.owners.queues.lock();
            if !all {
                queues.missed(ost);
            }
            for (id, told, when) in answers {
                self.told.lock().insert((ost, id), told);
                queues.answered(ost, id, when);
            }
        }
        for (ost, ids) in self.settled(&self.owners) {
            more |= ids.len() == ROUND_OBJECTS;
            let Some(ops) = ops.upgrade() else { break };
            self.forget_told(&ops, ost, &ids)
                .inspect_err(|_| self.owners.queues.lock().missed(ost))?;
        }
        failed.map_or(Ok(more), Err)
    }

    /// One round of all that OSTs have to do.
    pub(super) async fn rounds(&self, ops: &Weak<MdtOps>) -> Result<bool, OsdError> {
        let told = self.owner_round(ops).await;
        let destroyed = self.destroy_round(ops).await?;
        Ok(told? || destroyed)
    }

    /// Forgets the rows of what was told, but where the owner changed since.
    fn forget_told(&self, ops: &MdtOps, ost: u32, ids: &[u64]) -> Result<(), OsdError> {
        let core = ops.core.write();
        let mut done = Batch::new();
        for &id in ids {
            let Some(told) = self.told.lock().remove(&(ost, id)) else {
                continue;
            };
            let now =
                owner_of(&core.store, ost, id).map_err(|e| OsdError::Corrupt(e.to_string()))?;
            match now {
                Some(now) if now == told || now.owner.is_none() => {
                    done.del(table::OWNER, table::destroy_key(ost, id));
                }
                // passed over, if the table was read meanwhile
                Some(_) => self.owners.queues.lock().missed(ost),
                None => (),
            }
        }
        if done.is_empty() {
            Ok(())
        } else {
            self.commit_local(done).map(drop)
        }
    }
}

/// Tells one OST whose objects are, until it fails to answer. Returns the OST, whether that was all, and what it took.
async fn tell_some(
    store: &Store,
    import: Arc<Import>,
    ost: u32,
    ids: Vec<u64>,
) -> (u32, bool, Vec<(u64, ToldOwner, Answered)>) {
    let (mut all, mut done) = (true, Vec::with_capacity(ids.len()));
    for part in ids.chunks(IN_FLIGHT) {
        let instance = import.granted().instance;
        let owners = part
            .iter()
            .filter_map(|&id| match owner_of(store, ost, id) {
                Ok(told) => Some((id, told?)),
                Err(e) => {
                    tracing::error!(error = %e, ost, id, "whose object is it");
                    all = false;
                    None
                }
            });
        let tell = owners.map(|(id, told)| {
            let import = &import;
            async move {
                let Some(owner) = told.owner else {
                    return (id, told, Some((0, 0)));
                };
                let valid = md::FLID | md::FLGROUP | md::FLUID | md::FLGID | md::FLPROJID;
                let Owner { uid, gid, projid } = owner;
                let body = Obdo {
                    oi: OstId::group0(id),
                    valid,
                    uid,
                    gid,
                    projid,
                    ..Obdo::default()
                };
                let rq = Request::new(portal::OST_REQUEST, opc::OST_SETATTR)
                    .push(&body)
                    .push_empty();
                let answer = call(import, rq).await.map(|r| (r.status, r.transno));
                (id, told, answer)
            }
        });
        let answers = join_all(tell).await;
        let silent = answers.iter().any(|(_, _, answer)| answer.is_none());
        let taken = |(id, told, answer): (u64, ToldOwner, Option<(i32, u64)>)| match answer {
            Some((0, transno)) => Some((id, told, Answered { instance, transno })),
            _ => None,
        };
        let (asked, before) = (answers.len(), done.len());
        done.extend(answers.into_iter().filter_map(taken));
        all &= done.len() - before == asked;
        if silent {
            return (ost, false, done);
        }
    }
    (ost, all, done)
}

/// The owner to be told of an object; `None`: the table `owner` has none for it.
fn owner_of(store: &Store, ost: u32, id: u64) -> MdtResult<Option<ToldOwner>> {
    let Some(row) = store.kv().get(table::OWNER, &table::destroy_key(ost, id))? else {
        return Ok(None);
    };
    let fid = table::fid_of_key(&row).unwrap_or(Fid::ZERO);
    let owner = store.find(&fid)?.map(|ino| usage::of_inode(&ino).0);
    Ok(Some(ToldOwner { fid, owner }))
}

/// Destroys objects of one OST, until it fails to answer. Returns those that are gone.
async fn destroy_some(
    kv: &dyn Kv,
    import: Arc<Import>,
    ost: u32,
    ids: Vec<u64>,
) -> Vec<(u64, Answered)> {
    let count = |id: u64| {
        let row = kv.get(table::DESTROY, &table::destroy_key(ost, id));
        row.ok()
            .flatten()
            .map_or(1, |v| table::destroy_count_of(&v))
    };
    let mut ranges = ranges(ids.into_iter().map(|id| (id, count(id))));
    let mut gone = Vec::new();
    while !ranges.is_empty() {
        let rest = ranges.split_off(IN_FLIGHT.min(ranges.len()));
        let part = std::mem::replace(&mut ranges, rest);
        // Before it is asked: what a later start answers is at worst destroyed once more.
        let instance = import.granted().instance;
        let tell = part.iter().map(|range| {
            let count = range.objects;
            let valid = md::FLID | md::FLGROUP | if count > 1 { md::FLOBJCOUNT } else { 0 };
            let body = Obdo {
                oi: OstId::group0(range.rows[0]),
                valid,
                misc: if count > 1 { count } else { 0 },
                ..Obdo::default()
            };
            let rq = Request::new(portal::OST_REQUEST, opc::OST_DESTROY).push(&body);
            call(
                &import,
                rq.push_bytes(LdlmRequest::default().to_bytes())
                    .push_empty(),
            )
        });
        let answers = join_all(tell).await;
        let silent = answers.iter().any(Option::is_none);
        for (range, r) in part.into_iter().zip(answers) {
            match r {
                // an OST that knows no such object has nothing to commit
                Some(r) if r.status == 0 || r.status == -Errno::ENOENT.0 => {
                    let transno = r.transno;
                    let when = Answered { instance, transno };
                    gone.extend(range.rows.into_iter().map(|id| (id, when)));
                }
                // which of them cannot go is seen where each is asked for by itself
                Some(_) => ranges.extend(range.apart(count)),
                None => {}
            }
        }
        if silent {
            break;
        }
    }
    gone
}

/// Objects of one OST whose ids follow each other, which one request destroys.
#[derive(Debug, PartialEq, Eq)]
struct Together {
    /// First ids of their rows, ascending.
    rows: Vec<u64>,
    objects: u32,
}

impl Together {
    /// Each of its rows by itself; none where it is one.
    fn apart(self, count: impl Fn(u64) -> u32) -> impl Iterator<Item = Together> {
        let several = self.rows.len() > 1;
        let rows = self.rows.into_iter().filter(move |_| several);
        rows.map(move |id| Together {
            rows: vec![id],
            objects: count(id),
        })
    }
}

/// Puts rows together, {first id, objects} in ascending order, as far as a request takes them.
fn ranges(rows: impl Iterator<Item = (u64, u32)>) -> Vec<Together> {
    let mut all: Vec<Together> = Vec::new();
    for (id, count) in rows {
        let follows = |last: &&mut Together| {
            let next = last.rows[0].checked_add(u64::from(last.objects));
            next == Some(id) && last.objects.saturating_add(count) <= TOGETHER
        };
        match all.last_mut().filter(follows) {
            Some(last) => {
                last.rows.push(id);
                last.objects += count;
            }
            None => all.push(Together {
                rows: vec![id],
                objects: count,
            }),
        }
    }
    all
}

/// The reply to a request; `None` if it found no answer.
async fn call(import: &Arc<Import>, rq: Request) -> Option<Reply> {
    tokio::time::timeout(REQUEST_LIMIT, import.call(rq))
        .await
        .ok()
        .and_then(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_follow_each_other_go_with_one_request() {
        let all = |rows: &[(u64, u32)]| {
            let all = ranges(rows.iter().copied()).into_iter();
            all.map(|t| (t.rows, t.objects)).collect::<Vec<_>>()
        };
        assert_eq!(all(&[]), []);
        let rows = [
            (3, 1),
            (4, 1),
            (6, 1),
            (7, 20),
            (27, 1),
            (29, 4096),
            (4125, 1),
        ];
        let want = [
            (vec![3, 4], 2),
            (vec![6, 7, 27], 22),
            (vec![29], 4096),
            (vec![4125], 1),
        ];
        assert_eq!(all(&rows), want);
        let many: Vec<_> = (1..=2 * u64::from(TOGETHER) + 1)
            .map(|id| (id, 1))
            .collect();
        let sizes: Vec<u32> = all(&many).iter().map(|(_, n)| *n).collect();
        assert_eq!(sizes, [TOGETHER, TOGETHER, 1]);
        assert_eq!(all(&[(u64::MAX, 1), (0, 1)]).len(), 2);
    }

    #[test]
    fn each_is_asked_for_by_itself_where_one_cannot_go() {
        let of = |rows: Vec<u64>| Together { rows, objects: 0 };
        let apart: Vec<Together> = of(vec![3, 4]).apart(|id| id as u32).collect();
        let want = [(3, 3), (4, 4)].map(|(id, objects)| Together {
            rows: vec![id],
            objects,
        });
        assert_eq!(apart, want);
        assert_eq!(of(vec![3]).apart(|_| 1).count(), 0, "it was by itself");
    }
}
