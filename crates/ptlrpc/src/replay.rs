//! Requests kept for replay, by transno (`lustre/ptlrpc/client.c`, `ptlrpc_retain_replayable_request`).
//!
//! A request is kept until the server's `last_committed` reaches its transno; an open until it was closed and everything the
//! server had done by then is committed. Pure.
//!
//! Changes of file data hold much memory, so they have a limit. Of a file that exceeds it nothing is kept any more until all is
//! committed: a truncate that is replayed without the writes that followed it would destroy them. Who then loses changes with
//! the server's memory is told ([`Lost`]).

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::ptlrpc::PtlrpcBody;

use crate::{Replay, Request};

/// A kept request.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) request: Request,
    /// The body as it was sent; its xid, tag and match bits are used again.
    pub(crate) body: PtlrpcBody,
    pub(crate) xid: u64,
    pub(crate) transno: u64,
    pub(crate) pre_versions: [u64; 4],
    /// An open that has not been closed.
    open: bool,
    /// A closed open goes when this is committed.
    until: u64,
}

/// Files with uncommitted changes that are told apart; when there are more, all are one.
const FILES_MAX: usize = 16384;

/// A file whose data was changed.
#[derive(Debug)]
struct Changed {
    /// Transno of the last change.
    last: u64,
    /// All its uncommitted changes are kept.
    kept: bool,
}

/// Files and directories whose acknowledged changes are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// These, in the order of their FIDs.
    pub files: Vec<Fid>,
    /// And others.
    pub more: bool,
}

impl Lost {
    pub(crate) fn add(&mut self, mut other: Lost) {
        self.files.append(&mut other.files);
        self.more |= other.more;
    }

    /// Nothing is.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.more
    }
}

/// The kept requests of an import.
#[derive(Debug, Default)]
pub(crate) struct ReplayList {
    kept: BTreeMap<u64, Kept>,
    last_committed: u64,
    /// Highest transno seen in any reply.
    last_seen: u64,
    /// Files with uncommitted changes.
    files: HashMap<Fid, Changed>,
    /// Transno of the last change of a file beyond [`FILES_MAX`].
    others: u64,
    /// What the kept changes of files cost, bytes.
    file_bytes: usize,
    /// Most of that.
    file_limit: usize,
}

impl ReplayList {
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// What the kept changes of files cost, bytes.
    pub(crate) fn file_bytes(&self) -> usize {
        self.file_bytes
    }

    /// Most of that, from now on.
    pub(crate) fn set_file_limit(&mut self, bytes: usize) {
        self.file_limit = bytes;
    }

    pub(crate) fn last_committed(&self) -> u64 {
        self.last_committed
    }

    /// Keeps a request that got `transno`.
    pub(crate) fn keep(
        &mut self,
        request: Request,
        body: PtlrpcBody,
        xid: u64,
        transno: u64,
        pre_versions: [u64; 4],
        open: bool,
    ) {
        self.last_seen = self.last_seen.max(transno);
        let uncommitted = transno > self.last_committed;
        let wanted = match request.file {
            Some(fid) if uncommitted => self.changed(fid, transno, &request),
            _ => open || uncommitted,
        };
        if wanted {
            self.file_bytes += file_cost(&request);
            let kept = Kept {
                request,
                body,
                xid,
                transno,
                pre_versions,
                open,
                until: transno,
            };
            if let Some(old) = self.kept.insert(transno, kept) {
                self.file_bytes -= file_cost(&old.request);
            }
        }
    }

    /// Data of `fid` was changed; whether the request is to be kept.
    fn changed(&mut self, fid: Fid, transno: u64, request: &Request) -> bool {
        let room =
            request.replay != Replay::No && self.file_bytes + file_cost(request) <= self.file_limit;
        if !self.files.contains_key(&fid) && self.files.len() >= FILES_MAX {
            self.others = self.others.max(transno);
            return false;
        }
        let c = self.files.entry(fid).or_insert(Changed {
            last: 0,
            kept: true,
        });
        c.last = c.last.max(transno);
        let gives_up = c.kept && !room;
        c.kept &= room;
        let keep = c.kept;
        if gives_up {
            self.sweep(|k| k.request.file != Some(fid));
        }
        keep
    }

    /// Lets go of all that do not stay.
    fn sweep(&mut self, stays: impl Fn(&Kept) -> bool) {
        let Self {
            kept, file_bytes, ..
        } = self;
        kept.retain(|_, k| {
            let stays = stays(k);
            *file_bytes -= if stays { 0 } else { file_cost(&k.request) };
            stays
        });
    }

    /// Takes note of a transno that needs no replay.
    pub(crate) fn seen(&mut self, transno: u64) {
        self.last_seen = self.last_seen.max(transno);
    }

    /// The server said that everything up to `transno` is committed.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether a file stays depends on itself alone"
    )]
    pub(crate) fn committed(&mut self, transno: u64) {
        if transno > self.last_committed {
            self.last_committed = transno;
            // Once per sync of the server, not per request.
            self.sweep(|k| k.open || k.until > transno);
            self.files.retain(|_, c| c.last > transno);
        }
    }

    /// The open with `transno` is closed by the request with transno `by`; 0: by one of those so far.
    pub(crate) fn close(&mut self, transno: u64, by: u64) {
        let until = if by == 0 { self.last_seen } else { by };
        if let Some(k) = self.kept.get_mut(&transno) {
            k.open = false;
            k.until = until;
            if until <= self.last_committed {
                self.kept.remove(&transno);
            }
        }
    }

    pub(crate) fn amend(&mut self, transno: u64, bufs: Vec<Bytes>) {
        self.edit(transno, |kept| *kept = bufs);
    }

    /// Changes buffers of a kept request.
    pub(crate) fn edit(&mut self, transno: u64, change: impl FnOnce(&mut Vec<Bytes>)) {
        if let Some(k) = self.kept.get_mut(&transno) {
            change(&mut k.request.bufs);
        }
    }

    /// What to replay, in transno order, to a server that has committed up to `committed`.
    /// A closed open is replayed as long as its close may have to be: the close needs its handle.
    pub(crate) fn replay_from(&mut self, committed: u64) -> Vec<Kept> {
        self.committed(committed);
        self.kept.values().cloned().collect()
    }

    /// Files with changes that a server which has committed up to `committed`, and lost the rest, cannot be brought again;
    /// once.
    #[expect(
        clippy::disallowed_methods,
        reason = "the files are sorted before they are told"
    )]
    pub(crate) fn lost(&mut self, committed: u64) -> Lost {
        self.committed(committed);
        let mut files: Vec<Fid> = self
            .files
            .extract_if(|_, c| !c.kept)
            .map(|(f, _)| f)
            .collect();
        files.sort_unstable();
        Lost {
            files,
            more: std::mem::take(&mut self.others) > committed,
        }
    }

    /// The server knows nothing of us any more. Files and directories with changes that may be gone with it.
    #[expect(
        clippy::disallowed_methods,
        reason = "the files are sorted before they are told"
    )]
    pub(crate) fn clear(&mut self) -> Lost {
        let gone = std::mem::replace(
            self,
            ReplayList {
                file_limit: self.file_limit,
                ..Default::default()
            },
        );
        let changes = gone
            .kept
            .range(gone.last_committed + 1..)
            .flat_map(|(_, k)| k.request.fids());
        let mut files: Vec<Fid> = gone.files.into_keys().chain(changes).collect();
        files.sort_unstable();
        files.dedup();
        Lost {
            files,
            more: gone.others > gone.last_committed,
        }
    }
}

/// What a kept change of a file costs, bytes; other requests are not counted.
fn file_cost(request: &Request) -> usize {
    if request.file.is_some() {
        request.kept_bytes()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(l: &mut ReplayList, transno: u64, open: bool) {
        l.keep(
            Request::new(12, 36),
            PtlrpcBody::default(),
            transno * 128,
            transno,
            [0; 4],
            open,
        );
    }

    fn transnos(l: &mut ReplayList) -> Vec<u64> {
        l.replay_from(0).iter().map(|k| k.transno).collect()
    }

    #[test]
    fn committed_requests_go_opens_stay() {
        let mut l = ReplayList::default();
        add(&mut l, 3, false);
        add(&mut l, 1, true);
        add(&mut l, 2, false);
        assert_eq!(transnos(&mut l), [1, 2, 3]);
        l.committed(2);
        assert_eq!(transnos(&mut l), [1, 3]);
        l.committed(1);
        assert_eq!(l.last_committed(), 2, "never backwards");
        l.committed(9);
        assert_eq!(transnos(&mut l), [1]);
    }

    #[test]
    fn a_closed_open_goes_when_its_close_is_committed() {
        let mut l = ReplayList::default();
        add(&mut l, 1, true);
        add(&mut l, 2, false);
        l.committed(1);
        l.close(1, 0);
        assert_eq!(transnos(&mut l), [1, 2], "the close has transno 2");
        l.committed(2);
        assert_eq!(transnos(&mut l), Vec::<u64>::new());
        l.close(1, 0);
        // never without its close, whatever came after that
        add(&mut l, 3, true);
        (4..7).for_each(|transno| add(&mut l, transno, false));
        l.close(3, 4);
        assert_eq!(transnos(&mut l), [3, 4, 5, 6]);
        l.committed(4);
        assert_eq!(transnos(&mut l), [5, 6]);
    }

    const FILE: fn(u32) -> Fid = |oid| Fid::new(0x2_0000_0400, oid);

    /// A change of file `oid` with `len` bytes.
    fn change(l: &mut ReplayList, transno: u64, oid: u32, len: usize) {
        let mut rq = Request::new(6, 4).push_bytes(Bytes::from(vec![0; len]));
        (rq.file, rq.replay) = (Some(FILE(oid)), Replay::UntilCommitted);
        l.keep(
            rq,
            PtlrpcBody::default(),
            transno * 128,
            transno,
            [0; 4],
            false,
        );
    }

    #[test]
    fn changes_of_a_file_are_kept_all_or_none() {
        let mut l = ReplayList::default();
        l.set_file_limit(100_000);
        add(&mut l, 1, false);
        change(&mut l, 2, 1, 40_000);
        change(&mut l, 3, 2, 40_000);
        assert!(l.file_bytes() >= 80_000 && l.lost(0).is_empty());
        // too much: of this file nothing is kept any more, whatever room there is
        change(&mut l, 4, 1, 40_000);
        change(&mut l, 5, 1, 1);
        assert_eq!(transnos(&mut l), [1, 3]);
        change(&mut l, 6, 3, 40_000);
        assert_eq!(transnos(&mut l), [1, 3, 6]);
        l.committed(5);
        assert!(l.lost(0).is_empty());
        change(&mut l, 7, 1, 10);
        assert_eq!(
            transnos(&mut l),
            [6, 7],
            "all before is committed: kept again"
        );
        change(&mut l, 8, 3, 90_000);
        assert_eq!(transnos(&mut l), [7]);
        assert_eq!(
            l.lost(7),
            Lost {
                files: vec![FILE(3)],
                more: false
            }
        );
        assert!(l.lost(7).is_empty(), "once");
        l.committed(9);
        assert_eq!((l.file_bytes(), l.len()), (0, 0));
        change(&mut l, 8, 1, 10);
        assert_eq!(l.len(), 0, "committed already");
    }

    #[test]
    fn who_is_forgotten_may_have_lost_all() {
        let mut l = ReplayList::default();
        l.set_file_limit(100_000);
        for (transno, oid) in [(1, 1), (2, 3), (3, 2), (4, 2)] {
            change(&mut l, transno, oid, 10);
        }
        l.committed(1);
        assert_eq!(
            l.clear(),
            Lost {
                files: vec![FILE(2), FILE(3)],
                more: false
            }
        );
        assert_eq!((l.file_bytes(), l.len()), (0, 0));
        // more files than are told apart
        for n in 0..FILES_MAX as u32 + 2 {
            change(&mut l, n as u64 + 1, n, 1_000_000);
        }
        let all = FILES_MAX as u64;
        assert_eq!(
            l.lost(all),
            Lost {
                files: vec![],
                more: true
            }
        );
        assert!(l.lost(all + 2).is_empty());
    }

    #[test]
    fn amended_buffers_are_replayed() {
        let mut l = ReplayList::default();
        add(&mut l, 5, true);
        l.amend(5, vec![Bytes::from_static(b"x")]);
        l.amend(6, vec![]);
        assert_eq!(l.replay_from(0)[0].request.bufs, [Bytes::from_static(b"x")]);
    }
}
