//! What OSTs have to do, one table of it: rows on their way to the disk, and rows that are due.

use coral_osd::{Kv, OsdError, Table};
use parking_lot::Mutex;

use crate::mdt::osp::queue::{Next, SyncQueues};
use crate::mdt::table;
use crate::mdt::waiting::Waiting;
use crate::target::LuTarget;

/// Objects of one OST destroyed in one round.
pub(super) const ROUND_OBJECTS: usize = 512;

/// What a table holds for OSTs to do.
pub(super) struct Todo {
    pub(super) table: Table,
    pub(super) queues: Mutex<SyncQueues>,
    /// Not on disk yet.
    pub(super) waiting: Mutex<Waiting<(u32, u64)>>,
}

impl Todo {
    pub(super) fn new(table: Table) -> Todo {
        Todo {
            table,
            queues: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// The next objects of `ost`.
    pub(super) fn take(
        &self,
        target: &LuTarget,
        kv: &dyn Kv,
        ost: u32,
    ) -> Result<Vec<u64>, OsdError> {
        let next = self.queues.lock().take(ost, ROUND_OBJECTS);
        let begin = match next {
            Next::Nothing => return Ok(Vec::new()),
            Next::Objects(ids) => return Ok(ids),
            Next::Read(begin) => begin,
        };
        let (from, end) = (
            table::destroy_key(ost, begin),
            table::prefix_end(&ost.to_be_bytes()),
        );
        let rows = kv
            .range(self.table, &from, end.as_deref(), ROUND_OBJECTS)
            .inspect_err(|_| self.queues.lock().missed(ost))?;
        let ids: Vec<u64> = rows
            .iter()
            .filter_map(|(k, _)| table::destroy_of_key(k))
            .map(|(_, id)| id)
            .collect();
        let ids = self
            .queues
            .lock()
            .read(ost, ids, rows.len() == ROUND_OBJECTS);
        // A row can be read before its transaction is on disk.
        let mark = target.mark();
        if ids.is_empty() || target.is_durable(mark) {
            return Ok(ids);
        }
        self.waiting
            .lock()
            .add(mark, &ids.iter().map(|id| (ost, *id)).collect::<Vec<_>>());
        target.sync_soon();
        Ok(Vec::new())
    }

    /// Makes due what is on disk.
    pub(super) fn ripen(&self, durable: u64) {
        let ripe = self.waiting.lock().ripe(durable);
        let mut queues = self.queues.lock();
        queues.add(&ripe.rows);
        if ripe.spilled {
            queues.missed_all();
        }
    }
}
