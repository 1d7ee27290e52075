//! Transactions of a target: their numbers, and what is put into one batch with a change
//! (`tgt_txn_stop_cb` and `tgt_last_rcvd_update` in `lustre/target/tgt_lastrcvd.c`).
//!
//! Invariants: one Lustre transaction is one atomic batch, with its number inside; numbers follow the order of the batches, so a
//! crash leaves a prefix of them.

use std::sync::atomic::Ordering::Relaxed;

use coral_osd::{Batch, OsdError};
use coral_wire::ptlrpc::{Message, PtlrpcBody};

use super::{LuTarget, TargetKind, TargetRequest, last_rcvd};

/// Transaction numbers of a running target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Highest given.
    pub(super) last: u64,
    /// All that was ever acknowledged up to here is done: behind `last` while data on an MDT are still to be replayed.
    pub(super) done: u64,
    /// The tables say that `done` is behind ([`last_rcvd::put_behind`]).
    pub(super) behind: bool,
    /// A number was noted since the machine started.
    pub(super) noted: bool,
}

impl Numbers {
    /// Whether a start after the death of the process would take all to be done that the tables hold: then only what they do not
    /// hold has to be noted.
    fn tables_tell(&self, kind: TargetKind) -> bool {
        kind == TargetKind::Mdt && self.noted && !self.behind
    }
}

/// How a start after the death of the process finds out that a transaction was done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// By what the tables hold; or it stores nothing, so that it does not matter.
    InTables,
    /// Its data are in the page cache, and nothing else tells.
    IfNoted,
}

/// Transaction numbers in the tables. Data of objects are no part of these: an MDT's tables, which say of the transactions of
/// names which are on disk, may be there without the data that were written before. (The tables of an OST hold a number only
/// when its data are on disk: there both are one.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredTransnos {
    /// Changes of tables are on disk up to here.
    pub tables: u64,
    /// So are all others, those of data.
    pub data: u64,
}

impl StoredTransnos {
    /// What a start finds where `noted` was noted since the machine started (0: nothing): of a process that died nothing is lost
    /// that was done. `tell`: then all is done that the tables hold ([`Numbers::tables_tell`]).
    pub(super) fn with_noted(self, noted: u64, tell: bool) -> StoredTransnos {
        let tables = self.tables.max(noted);
        let data = match tell && noted > 0 {
            true => tables,
            false => self.data.max(noted),
        };
        StoredTransnos { tables, data }
    }
}

impl LuTarget {
    /// One transaction for a client's request: gives the transno (a replay keeps its own), puts it, the reply's bytes and
    /// `batch` into one atomic batch and commits it. `reply`'s body must have its status set; transno is filled in.
    /// The caller holds its own mutex around read-modify-commit, so transnos follow the order of changes.
    pub fn commit(
        &self,
        rq: &TargetRequest,
        batch: Batch,
        reply: &mut Message,
    ) -> Result<u64, OsdError> {
        self.commit_stamped(rq, batch, reply, |_, _| ())
    }

    /// The same of a batch to which `stamp` adds what holds the transaction's number.
    pub fn commit_stamped(
        &self,
        rq: &TargetRequest,
        mut batch: Batch,
        reply: &mut Message,
        stamp: impl FnOnce(&mut Batch, u64),
    ) -> Result<u64, OsdError> {
        let body = &rq.rq.body;
        self.numbered(rq, Found::InTables, |transno| {
            stamp(&mut batch, transno);
            set_transno(reply, body, transno);
            debug_assert!(
                reply.body().is_ok_and(|b| b.transno == transno),
                "the reply that is stored says its transaction's number"
            );
            // Whoever forgets the export holds the same lock: no row of it stays behind. The number is that of the reply, unless
            // it may take the place of one with a greater number.
            let kept = self.stored.lock().tables;
            if transno <= kept {
                last_rcvd::put_transno(&mut batch, kept);
            }
            if !rq.exp.local && !rq.exp.gone() && rq.exp.keeps(body.tag, rq.rq.xid) {
                last_rcvd::put_reply(
                    &mut batch,
                    &rq.exp.uuid,
                    body.tag,
                    transno,
                    rq.rq.xid,
                    &reply.encode(),
                );
            } else {
                self.put_transno(&mut batch, transno);
            }
            self.store(batch, transno)?;
            rq.exp.keep(body.tag, transno, rq.rq.xid, reply);
            Ok(())
        })
    }

    /// A transaction that changes nothing stored, such as an open: a transno so that it can be replayed, and the reply kept
    /// in memory for a resend.
    pub fn commit_empty(&self, rq: &TargetRequest, reply: &mut Message) -> Result<u64, OsdError> {
        self.numbered(rq, Found::InTables, |transno| {
            set_transno(reply, &rq.rq.body, transno);
            rq.exp.keep(rq.rq.body.tag, transno, rq.rq.xid, reply);
            Ok(())
        })
    }

    /// A transaction whose request may safely be executed twice (OST writes): no reply data is stored.
    pub fn commit_idempotent(
        &self,
        rq: &TargetRequest,
        mut batch: Batch,
        reply: &mut Message,
    ) -> Result<u64, OsdError> {
        let found = match batch.is_empty() {
            true => Found::IfNoted,
            false => Found::InTables,
        };
        self.numbered(rq, found, |transno| {
            set_transno(reply, &rq.rq.body, transno);
            if batch.is_empty() {
                return Ok(());
            }
            self.put_transno(&mut batch, transno);
            self.store(batch, transno)
        })
    }

    /// A transaction of the target itself; returns its mark ([`LuTarget::mark`]). It has no number: numbers are the clients', who
    /// during recovery have yet to replay the next ones, and drop what they are told to be committed.
    pub fn commit_local(&self, batch: Batch) -> Result<u64, OsdError> {
        let numbers = self.numbers.lock();
        self.store(batch, 0)?;
        drop(numbers);
        self.stats.transactions.inc();
        Ok(self.mark())
    }

    /// Puts the number on disk, unless a greater one is there: one that is replayed though it was committed.
    pub(super) fn put_transno(&self, batch: &mut Batch, transno: u64) {
        if transno > self.stored.lock().tables {
            last_rcvd::put_transno(batch, transno);
        }
    }

    /// Commits a batch that holds its number; the number's lock is held.
    pub(super) fn store(&self, batch: Batch, transno: u64) -> Result<(), OsdError> {
        self.kv.commit(batch)?;
        self.commits.fetch_add(1, Relaxed);
        let mut stored = self.stored.lock();
        stored.tables = stored.tables.max(transno);
        Ok(())
    }

    /// Gives the next number (a replay's own) to `commit`; a number whose commit failed is given again.
    fn numbered(
        &self,
        rq: &TargetRequest,
        found: Found,
        commit: impl FnOnce(u64) -> Result<(), OsdError>,
    ) -> Result<u64, OsdError> {
        let mut numbers = self.numbers.lock();
        let replayed = Some(rq.rq.body.transno).filter(|t| rq.is_replay() && *t != 0);
        let transno = replayed.unwrap_or(numbers.last + 1);
        commit(transno)?;
        // What was on disk is replayed in no order; all else in the order of the numbers.
        if !rq.replay_committed() {
            numbers.done = transno.max(numbers.done);
            if found == Found::IfNoted || !numbers.tables_tell(self.cfg.kind) {
                self.note(&mut numbers);
            }
        }
        if let Some(transno) = replayed {
            rq.exp.note_replayed(transno);
        }
        numbers.last = transno.max(numbers.last);
        self.stats.transactions.inc();
        Ok(transno)
    }

    fn note(&self, numbers: &mut Numbers) {
        self.kv.note(numbers.done);
        numbers.noted |= numbers.done > 0;
    }

    /// Nothing is replayed any more: what was not is gone.
    pub(super) fn all_is_done(&self) {
        let mut numbers = self.numbers.lock();
        numbers.done = numbers.last;
        if numbers.behind {
            let mut batch = Batch::new();
            last_rcvd::put_behind(&mut batch, false);
            match self.store(batch, 0) {
                Ok(()) => numbers.behind = false,
                Err(error) => {
                    tracing::error!(target = %self.cfg.name, %error, "noting that nothing is replayed any more");
                }
            }
        }
        self.note(&mut numbers);
    }

    /// Highest transno given.
    pub fn last_transno(&self) -> u64 {
        self.numbers.lock().last
    }

    /// Everything up to this transno is done, and nothing of it has yet to be replayed.
    pub(super) fn done_transno(&self) -> u64 {
        self.numbers.lock().done
    }
}

/// Puts the transno into the reply's body, which is made when there is none yet.
fn set_transno(reply: &mut Message, request: &PtlrpcBody, transno: u64) {
    let mut body = reply
        .body()
        .unwrap_or_else(|_| PtlrpcBody::reply(request, 0));
    body.transno = transno;
    reply.set_body(&body);
}
