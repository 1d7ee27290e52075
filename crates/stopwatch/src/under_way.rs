//! What has begun and not ended. Records in the rings are made at the end: of an operation that hangs they know nothing.
//!
//! # Invariants
//! - Only what waits is here: an operation, and an RPC, enters when its first poll did not end it.
//! - At most [`UNDER_WAY_MAX`] are kept at once; what begins beyond is not.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Weak};

use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::record::Begun;
use crate::stopwatch::Name;
use crate::watch::Watch;

/// Most operations and RPCs of a node that are kept while they are under way; some 100 bytes each.
pub const UNDER_WAY_MAX: usize = 65_536;

/// What it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// An operation of this name.
    Op(&'static str),
    /// An RPC with this opcode to a target.
    Rpc(u32, Name),
}

/// Something under way.
#[derive(Clone, Debug)]
pub(crate) struct Going {
    pub(crate) what: What,
    pub(crate) fid: Fid,
    pub(crate) begun: Instant,
    pub(crate) watch: Arc<Watch>,
}

impl Going {
    /// As a dump has it, with its moments and names.
    pub(crate) fn told(
        &self,
        at: impl Fn(Instant) -> i64,
        name: impl Fn(Name) -> Cow<'static, str>,
    ) -> Begun {
        let (what, opc, target) = match self.what {
            What::Op(op) => (op, None, Cow::Borrowed("")),
            What::Rpc(opc, target) => ("", Some(opc), name(target)),
        };
        Begun {
            op: self.watch.id().max(self.watch.parent()),
            name: Cow::Borrowed(what),
            opc,
            target,
            fid: (self.fid.seq, self.fid.oid, self.fid.ver),
            begun: at(self.begun),
            waits: self.watch.waiting().map(|(wait, since)| (wait, at(since))),
        }
    }
}

/// All of a node, with the places that are free.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<(Vec<Option<Going>>, Vec<usize>)>);

impl UnderWay {
    /// The place where it is now.
    fn enter(&self, going: Going) -> Option<usize> {
        let mut all = self.0.lock();
        let (places, free) = &mut *all;
        if let Some(at) = free.pop() {
            places[at] = Some(going);
            return Some(at);
        }
        (places.len() < UNDER_WAY_MAX).then(|| {
            places.push(Some(going));
            places.len() - 1
        })
    }

    fn leave(&self, at: usize) {
        let gone = {
            let mut all = self.0.lock();
            all.1.push(at);
            all.0[at].take()
        };
        // Not under the lock: this may be the last of its watch.
        drop(gone);
    }

    pub(crate) fn all(&self) -> Vec<Going> {
        self.0.lock().0.iter().flatten().cloned().collect()
    }
}

/// Who knows of more that is under way at a node than what enters itself: it is asked when a dump is made.
pub trait Teller: Send + Sync {
    /// All of it.
    fn under_way(&self) -> Vec<Asked>;
}

/// What somebody was asked for and has not done, as a [`Teller`] knows it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Opcode of the request.
    pub opc: u32,
    /// Who was asked, as a NID.
    pub whom: String,
    /// The file; zeros: unknown.
    pub fid: Fid,
    /// Since when.
    pub since: Instant,
}

impl Asked {
    pub(crate) fn told(self, at: impl Fn(Instant) -> i64) -> Begun {
        Begun {
            op: 0,
            name: Cow::Borrowed(""),
            opc: Some(self.opc),
            target: Cow::Owned(self.whom),
            fid: (self.fid.seq, self.fid.oid, self.fid.ver),
            begun: at(self.since),
            waits: None,
        }
    }
}

/// Those who are asked.
#[derive(Default)]
pub(crate) struct Tellers(Mutex<Vec<Weak<dyn Teller>>>);

impl fmt::Debug for Tellers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tellers", self.0.lock().len())
    }
}

impl Tellers {
    pub(crate) fn add(&self, teller: Weak<dyn Teller>) {
        let mut all = self.0.lock();
        all.retain(|t| t.strong_count() > 0);
        all.push(teller);
    }

    /// Nothing is locked while they tell.
    pub(crate) fn told(&self) -> Vec<Asked> {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().flat_map(|t| t.under_way()).collect()
    }
}

/// Keeps something under way until it is dropped.
#[derive(Debug)]
pub struct Entry {
    all: Arc<UnderWay>,
    at: Option<usize>,
}

impl Entry {
    pub(crate) fn new(all: &Arc<UnderWay>, going: Going) -> Entry {
        Entry {
            all: all.clone(),
            at: all.enter(going),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.all.leave(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::next_op;
    use crate::{Stopwatch, Wait, waits, watched};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn what_has_begun_is_told_with_what_it_waits_for() {
        let s = Arc::new(Stopwatch::default());
        let base = Instant::now();
        let watch = Watch::new(next_op(), 0);
        let op = s.goes_on(&watch, "WRITE", Fid::ZERO, base);
        let rpc = s.clone();
        let call = async move {
            let watch = rpc.part(Instant::now()).unwrap().watch();
            let _entry = rpc.rpc_begins(&watch, 4, rpc.name("t"), Fid::ZERO, Instant::now());
            let call = async {
                waits(Wait::Slot, tokio::time::sleep(Duration::from_millis(3))).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            watched(Some(watch.clone()), call).await;
        };
        let task = tokio::spawn(watched(Some(watch.clone()), call));
        tokio::time::sleep(Duration::from_millis(2)).await;
        let dump = s.dump("here", base);
        let told: Vec<_> = (dump.under_way.iter())
            .map(|u| (u.op, &*u.name, u.opc, &*u.target, u.begun, u.waits))
            .collect();
        assert_eq!(
            told,
            [
                (watch.id(), "WRITE", None, "", 0, None),
                (watch.id(), "", Some(4), "t", 0, Some((Wait::Slot, 0)))
            ]
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(s.dump("here", base).under_way[1].waits, None, "it is sent");
        task.await.unwrap();
        assert_eq!(s.dump("here", base).under_way.len(), 1);
        drop(op);
        assert_eq!(s.dump("here", base).under_way, []);
        let text = serde_json::to_string(&dump).unwrap();
        assert_eq!(serde_json::from_str::<crate::Dump>(&text).unwrap(), dump);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_of_the_library_is_kept_while_it_waits() {
        let s = Arc::new(Stopwatch::default());
        let of = s.clone();
        let wait = tokio::time::sleep(Duration::from_millis(5));
        let task = tokio::spawn(async move { of.operation("read", Fid::ZERO, wait).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let names = || -> Vec<String> {
            let all = s.dump("here", Instant::now()).under_way;
            all.iter().map(|u| u.name.to_string()).collect()
        };
        assert_eq!(names(), ["read"]);
        task.await.unwrap();
        assert!(names().is_empty());
        s.operation("read", Fid::ZERO, async {}).await;
        assert!(
            s.under_way.0.lock().0.len() == 1,
            "what ends at once does not enter"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_an_end_to_what_is_kept() {
        let s = Arc::new(Stopwatch::default());
        let watch = Watch::new(next_op(), 0);
        let one = || s.goes_on(&watch, "read", Fid::ZERO, Instant::now());
        let mut all: Vec<Entry> = (0..UNDER_WAY_MAX + 1).map(|_| one()).collect();
        assert_eq!(s.under_way.all().len(), UNDER_WAY_MAX);
        all.truncate(10);
        all.push(one());
        assert_eq!(s.under_way.all().len(), 11);
        drop(all);
        assert!(s.under_way.all().is_empty());
    }
}
