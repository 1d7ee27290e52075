//! What tests do with the file system from the inside.

#![allow(dead_code, reason = "for tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use coral_client::llite::types::Invalidate;
use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::MemFs;

/// Runs in the middle of an operation.
type Beside = Box<dyn FnOnce() + Send>;

pub struct Hooks {
    pub beside: Mutex<Option<Beside>>,
    /// Files whose attributes were asked for, once for each time.
    pub asked: Mutex<Vec<Fid>>,
    pub late: Mutex<Option<(Fid, Beside)>>,
    /// Is told of the directories in which files are made.
    told: Mutex<Option<Arc<dyn Invalidate>>>,
    /// Reads that have come.
    pub reads: AtomicUsize,
    /// They are answered.
    pub answers: watch::Sender<bool>,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks {
            beside: Mutex::default(),
            asked: Mutex::default(),
            late: Mutex::default(),
            told: Mutex::default(),
            reads: AtomicUsize::default(),
            answers: watch::Sender::new(true),
        }
    }
}

impl Hooks {
    /// A file was made in `dir`.
    pub fn tell(&self, dir: Fid) {
        if let Some(told) = &*self.told.lock() {
            told.own_change(dir);
        }
    }
}

impl MemFs {
    /// From now on reads are answered, or are not.
    pub fn answer_reads(&self, answer: bool) {
        self.hooks.answers.send_replace(answer);
    }

    /// Reads that have come so far.
    pub fn reads(&self) -> usize {
        self.hooks.reads.load(Ordering::SeqCst)
    }

    /// `f` runs once: when the next lookup, listing with attributes or change of attributes has made its answer and not given it
    /// yet.
    pub fn beside(&self, f: impl FnOnce() + Send + 'static) {
        *self.hooks.beside.lock() = Some(Box::new(f));
    }

    /// `f` runs once: when the next answer to GETATTR of `fid` is made and not given yet.
    pub fn beside_getattr(&self, fid: Fid, f: impl FnOnce() + Send + 'static) {
        *self.hooks.late.lock() = Some((fid, Box::new(f)));
    }

    /// From now on this is told of the directories in which files are made.
    pub fn tells(&self, told: Arc<dyn Invalidate>) {
        *self.hooks.told.lock() = Some(told);
    }

    /// How often the attributes of `fid` were asked for.
    pub fn asked(&self, fid: Fid) -> usize {
        self.hooks
            .asked
            .lock()
            .iter()
            .filter(|f| **f == fid)
            .count()
    }
}
