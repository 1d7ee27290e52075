//! Files just created, whose creator is still in the system call that made them.
//!
//! After CREATE the kernel checks whether the file may be opened (`may_open` in `fs/namei.c`), and asks for its attributes again when
//! CREATE gave them no validity. A size has no validity without a lock of the file's objects, so each create would ask an OST about
//! a file that is empty. The thread cannot have asked for anything else before that check, so what CREATE answered is good enough
//! for it: until the thread is back, nobody can know that the file is there. The answer has no validity either.
//!
//! Invariant: a note is gone at the first request that names the file, and counts for nothing once the kernel was told to forget the
//! file's attributes. So if another answer has given it valid ones, which spares it the check, none of the thread's later questions
//! is taken for it: they come after those were forgotten.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use coral_wire::fid::Fid;
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::abi::{self, InHeader, op};
use crate::told::{Mark, Told};

/// Notes kept at once. Each is used within moments; beyond this the kernel asks the file system.
const MOST: usize = 1024;

/// What CREATE answered.
#[derive(Debug)]
struct Note {
    thread: u32,
    fid: Fid,
    began: Mark,
    attr: abi::Attr,
}

/// The files just created, by the kernel's number.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    /// Whether there may be any: most requests look no further.
    any: AtomicBool,
    notes: Mutex<HashMap<u64, Note>>,
}

impl Fresh {
    /// The request `h`, which began at `began`, creates `fid`, and its answer gives `e` without validity.
    pub fn created(&self, h: &InHeader, e: &abi::EntryOut, fid: Fid, began: Mark) {
        // Threads of a pid namespace that we do not see have no number.
        if h.pid == 0 || e.attr_valid != 0 || e.attr_valid_nsec != 0 {
            return;
        }
        let mut notes = self.notes.lock();
        if notes.len() < MOST {
            notes.insert(
                e.nodeid,
                Note {
                    thread: h.pid,
                    fid,
                    began,
                    attr: e.attr,
                },
            );
            self.any.store(true, Ordering::Release);
        }
    }

    /// The answer to `h` if it is the check after a create. It came with `body`.
    pub fn check(&self, h: &InHeader, body: &[u8], told: &Told) -> Option<abi::AttrOut> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let note = {
            let mut notes = self.notes.lock();
            let note = notes.remove(&h.nodeid);
            self.any.store(!notes.is_empty(), Ordering::Release);
            note?
        };
        let by_name = |(g, _): (abi::GetattrIn, &[u8])| g.getattr_flags & abi::GETATTR_FH == 0;
        let asks = h.opcode == op::GETATTR
            && h.pid == note.thread
            && abi::GetattrIn::read_from_prefix(body).is_ok_and(by_name);
        let good = asks && !told.since(note.began).has(note.fid);
        good.then_some(abi::AttrOut {
            attr_valid: 0,
            attr_valid_nsec: 0,
            dummy: 0,
            attr: note.attr,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    const FILE: Fid = Fid {
        seq: 0x200000400,
        oid: 1,
        ver: 0,
    };

    fn by(pid: u32, opcode: u32, nodeid: u64) -> InHeader {
        InHeader {
            pid,
            opcode,
            nodeid,
            ..InHeader::new_zeroed()
        }
    }

    fn create(f: &Fresh, told: &Told, pid: u32, nodeid: u64, attr_valid: u64) {
        let e = abi::EntryOut {
            nodeid,
            attr_valid,
            ..abi::EntryOut::new_zeroed()
        };
        f.created(&by(pid, op::CREATE, 1), &e, FILE, told.mark());
    }

    #[test]
    fn only_the_creators_first_question_is_answered() {
        let (f, told) = (Fresh::default(), Told::default());
        let ask = |pid, opcode, getattr_flags| {
            let body = abi::GetattrIn {
                getattr_flags,
                ..abi::GetattrIn::new_zeroed()
            };
            f.check(&by(pid, opcode, 7), body.as_bytes(), &told)
                .is_some()
        };
        create(&f, &told, 5, 7, 0);
        assert!(ask(5, op::GETATTR, 0));
        assert!(!ask(5, op::GETATTR, 0), "the next is a stat");
        for (pid, opcode, flags) in [
            (6, op::GETATTR, 0),
            (5, op::WRITE, 0),
            (5, op::GETATTR, abi::GETATTR_FH),
        ] {
            create(&f, &told, 5, 7, 0);
            assert!(!ask(pid, opcode, flags));
            assert!(!ask(5, op::GETATTR, 0), "somebody else was first");
        }
        create(&f, &told, 5, 7, 1);
        assert!(
            !ask(5, op::GETATTR, 0),
            "the kernel has valid attributes and does not ask for the check"
        );
        create(&f, &told, 0, 7, 0);
        assert!(
            !ask(0, op::GETATTR, 0),
            "threads without a number are not told apart"
        );
        create(&f, &told, 5, 7, 0);
        told.note(FILE);
        assert!(!ask(5, op::GETATTR, 0), "changed meanwhile");
    }

    #[test]
    fn notes_that_nobody_takes_are_bounded() {
        let (f, told) = (Fresh::default(), Told::default());
        for id in 0..3 * MOST as u64 {
            create(&f, &told, 5, id, 0);
        }
        assert_eq!(f.notes.lock().len(), MOST);
    }
}
