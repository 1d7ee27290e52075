//! What tests do with the file system from the inside.

#![allow(dead_code, reason = "for tests")]

use std::sync::atomic::Ordering;

use coral_wire::fid::Fid;

use super::MemFs;

impl MemFs {
    /// From now on reads are answered, or are not.
    pub fn answer_reads(&self, answer: bool) {
        self.answers.send_replace(answer);
    }

    /// Reads that have come so far.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// `f` runs once: when the next lookup, listing with attributes or change of attributes has made its answer and not given it
    /// yet.
    pub fn beside(&self, f: impl FnOnce() + Send + 'static) {
        *self.beside.lock() = Some(Box::new(f));
    }

    /// `f` runs once: when the next answer to GETATTR of `fid` is made and not given yet.
    pub fn beside_getattr(&self, fid: Fid, f: impl FnOnce() + Send + 'static) {
        *self.late.lock() = Some((fid, Box::new(f)));
    }

    /// How often the attributes of `fid` were asked for.
    pub fn asked(&self, fid: Fid) -> usize {
        self.asked.lock().iter().filter(|f| **f == fid).count()
    }
}
