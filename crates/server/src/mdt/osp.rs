//! The MDT's connections to its OSTs: free space, destruction of objects, change of owners
//! (`lustre/osp`).
//!
//! A file that goes leaves its objects in the table `destroy`, in the transaction that removed it; once that is on disk
//! ([`super::waiting`]), a background task sends OST_DESTROY, and forgets a row when the OST has committed that (`osp_sync.c`
//! sends what `last_committed` covers, and cancels a llog record then). Nothing is lost by a crash of either side: a row stays until its object is gone for good, and to destroy an
//! object twice is harmless. A file that gets another owner leaves its objects in the table `owner` likewise; the OST is told the
//! owner that the file has then, and a row stays until the OST has committed that.
//!
//! An OST that is not connected, or does not answer statfs, gets no new objects, as `lod` leaves out
//! inactive OSTs. The allocator learns of a lost or a new connection at once.

mod peers;
pub(super) mod queue;
mod sync;
mod todo;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_lnet::Node;
use coral_osd::{Batch, OsdError};
use coral_wire::ost::ObdStatfs;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use self::peers::OstTarget;

use self::peers::{OspPeer, STATFS_INTERVAL, STATFS_RETRY, STATFS_WAITING, show_spaces};
use self::sync::ToldOwner;
use self::todo::Todo;
use super::handler::MdtOps;
use super::stripe::StripeDefaults;
use super::table;
use super::waiting::low_space;
use crate::target::LuTarget;

/// After a file went, so long is waited for more to go with the same round.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Default)]
struct OspState {
    peers: BTreeMap<u32, OspPeer>,
    defaults: StripeDefaults,
    target: Option<Arc<LuTarget>>,
    ops: Weak<MdtOps>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// Connections to OSTs and the background task that uses them.
pub struct Osp {
    node: Arc<Node>,
    client_uuid: String,
    state: Mutex<OspState>,
    destroys: Todo,
    owners: Todo,
    /// What was told of the objects that OSTs have yet to commit, by OST and object.
    told: Mutex<BTreeMap<(u32, u64), ToldOwner>>,
    wake: Notify,
    /// The allocator's view of the OSTs may be another now.
    changed: Arc<Notify>,
    /// Counts the times that OSTs have told of their objects.
    numbered: watch::Sender<u64>,
}

impl Osp {
    /// For the MDT called `mdt_name`; [`Osp::start`] makes it work.
    pub fn new(node: Arc<Node>, mdt_name: &str) -> Arc<Osp> {
        // the same uuid after every start: OSTs know their MDT again
        let client_uuid = format!("{mdt_name}-mdtlov_UUID");
        let (wake, changed) = (Notify::new(), Arc::new(Notify::new()));
        let (destroys, owners) = (Todo::new(table::DESTROY), Todo::new(table::OWNER));
        let told = Mutex::default();
        Arc::new(Osp {
            node,
            client_uuid,
            state: Mutex::default(),
            destroys,
            owners,
            told,
            wake,
            changed,
            numbered: watch::Sender::default(),
        })
    }

    /// Starts the background tasks.
    pub fn start(self: &Arc<Self>, target: &Arc<LuTarget>, ops: &Arc<MdtOps>) {
        let defaults = ops.core.read().defaults;
        // Set before a task runs, which may be at once on another thread: a task that finds no target ends.
        let mut st = self.state.lock();
        st.defaults = defaults;
        st.target = Some(target.clone());
        st.ops = Arc::downgrade(ops);
        let work = tokio::spawn(run(
            Arc::downgrade(self),
            Arc::downgrade(ops),
            target.durable(),
        ));
        let show = tokio::spawn(show_spaces(
            Arc::downgrade(self),
            Arc::downgrade(ops),
            self.changed.clone(),
        ));
        st.tasks = vec![work, show];
    }

    /// Ends the background tasks and disconnects.
    pub async fn stop(&self) {
        for p in self.end().await.into_values() {
            p.import.disconnect().await;
        }
    }

    /// Ends the background tasks and lets go of the OSTs, who are told nothing.
    pub async fn abandon(&self) {
        drop(self.end().await);
    }

    async fn end(&self) -> BTreeMap<u32, OspPeer> {
        let (tasks, peers) = {
            let mut st = self.state.lock();
            st.target = None;
            (std::mem::take(&mut st.tasks), std::mem::take(&mut st.peers))
        };
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        peers
    }

    /// These rows of the table `destroy` were committed before `mark` was taken.
    pub(super) fn destroy(&self, rows: &[(u32, u64)], mark: u64) {
        self.add(&self.destroys, rows, mark);
    }

    /// These rows of the table `owner` were committed before `mark` was taken.
    pub(super) fn tell_owners(&self, rows: &[(u32, u64)], mark: u64) {
        self.add(&self.owners, rows, mark);
    }

    fn add(&self, todo: &Todo, rows: &[(u32, u64)], mark: u64) {
        if !rows.is_empty() {
            todo.waiting.lock().add(mark, rows);
            self.wake.notify_one();
        }
    }

    /// Makes due what is on disk, and asks for a sync where much waits for one, or an OST has little space left.
    fn ripen(&self, target: &LuTarget) {
        let durable = *target.durable().borrow();
        [&self.owners, &self.destroys]
            .into_iter()
            .for_each(|todo| todo.ripen(durable));
        let waiting = self.destroys.waiting.lock();
        let osts: BTreeSet<u32> = if waiting.many() {
            BTreeSet::new()
        } else {
            waiting.rows().map(|(ost, _)| *ost).collect()
        };
        let many = waiting.many();
        drop(waiting);
        let low = |s: &ObdStatfs| low_space(s.bavail, s.blocks, s.bsize);
        let peers = &self.state.lock().peers;
        if many
            || osts.iter().any(|ost| {
                peers
                    .get(ost)
                    .is_some_and(|p| p.space.as_ref().is_some_and(low))
            })
        {
            target.sync_soon();
        }
    }

    /// The pause until OSTs are asked for their space again: while objects wait to be destroyed it is a short one, since an OST that has
    /// been filled meanwhile needs their space now.
    fn soon(&self, pause: Duration) -> Duration {
        let none = self.destroys.waiting.lock().rows().next().is_none();
        if none {
            pause
        } else {
            pause.min(STATFS_WAITING)
        }
    }

    /// A transaction of the MDT itself; returns its mark.
    pub fn commit_local(&self, batch: Batch) -> Result<u64, OsdError> {
        match self.target() {
            Some(t) => t.commit_local(batch),
            None => Err(OsdError::Invalid("the target is stopping")),
        }
    }

    /// `None` when it is stopping.
    fn target(&self) -> Option<Arc<LuTarget>> {
        self.state.lock().target.clone()
    }

    /// The file system's default layout.
    pub fn defaults(&self) -> StripeDefaults {
        self.state.lock().defaults
    }

    /// Changes the copy of the default layout.
    pub fn set_defaults(&self, d: StripeDefaults) {
        self.state.lock().defaults = d;
    }
}

/// The background task: ends with the MDT.
async fn run(osp: Weak<Osp>, ops: Weak<MdtOps>, mut durable: watch::Receiver<u64>) {
    let mut asked: Option<Instant> = None;
    let mut pause = STATFS_INTERVAL;
    loop {
        let Some(me) = osp.upgrade() else { return };
        if asked.is_none_or(|at| at + me.soon(pause) <= Instant::now()) && me.count() > 0 {
            pause = if me.refresh().await {
                STATFS_INTERVAL
            } else {
                STATFS_RETRY
            };
            asked = Some(Instant::now());
        }
        loop {
            let Some(target) = me.target() else { return };
            me.ripen(&target);
            drop(target);
            // an owner first: told to an object that is gone, it would make it anew
            match me.rounds(&ops).await {
                Ok(true) => continue,
                Ok(false) => break,
                Err(_) if me.target().is_none() => return,
                Err(e) => {
                    tracing::error!(error = %e, "telling OSTs of owners and of objects that are gone");
                    break;
                }
            }
        }
        let next = asked.unwrap_or_else(Instant::now) + me.soon(pause);
        tokio::select! {
            biased;
            () = me.wake.notified() => tokio::time::sleep(GATHER).await,
            Ok(()) = durable.changed() => (),
            () = tokio::time::sleep_until(next), if me.count() > 0 => (),
        }
        if ops.strong_count() == 0 {
            return;
        }
    }
}
