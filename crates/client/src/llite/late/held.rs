//! The beginning of a file that was just made, kept back until it is closed: with the times that are set meanwhile it is one request.
//!
//! # Invariants
//! - Data is kept back under the right to keep attributes back ([`super`]), from the file's first byte on and without a gap. It is sent
//!   before anything else of this client looks at the file's data or size, or changes them, before an fsync of any descriptor returns,
//!   before the lock is given back or the MDT is told that nothing is kept, at the latest with the attributes, and before the open is
//!   closed that made the file. As with all dirty data close(2) does not wait for it.
//! - It has room: its pages are taken from the OST's grant first.
//! - Who asks for the lock does not wait for an OST that is away for longer than [`OST_WAIT`]: its holder would be evicted.
//! - Its OST refuses it where others have written since ([`FIRST_WRITE`](coral_wire::coral::FIRST_WRITE)): it replaces nothing.
//! - After an eviction by the MDT, once that is known here, it is lost, and told as lost data is: others may have written there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::{LateAttrs, LateFile, MdtOpen, State};
use crate::error::Error;
use crate::grant::pages_bytes;
use crate::llite::covers::OpenInode;
use crate::llite::finish::finish;
use crate::osc::{ObjectAttr, ObjectRef, ObjectTimes, Osc, WriteAttr};

/// A file that is longer is written as others are, bytes. No stripe is shorter.
const MOST_BYTES: usize = 64 << 10;
/// Who asks for the lock waits so long for data to be at its OST.
const OST_WAIT: Duration = Duration::from_secs(5);
/// Unit of `st_blocks`, bytes.
const BLOCK_BYTES: u64 = 512;

/// What is kept back of a file's data.
#[derive(Default)]
pub(super) enum Data {
    #[default]
    Nothing,
    Held(Box<Held>),
    /// On its way.
    Sending,
}

/// All the data that a file has.
pub(super) struct Held {
    bytes: Vec<u8>,
    attr: WriteAttr,
    room: Room,
    object: ObjectRef,
    inode: Arc<OpenInode>,
    _counted: Counted,
    /// How often the file's data had changed with the last of it ([`OpenInode::data`]).
    stamp: u64,
    /// Of the MDT's import when it was begun.
    generation: u64,
}

/// One more file of which data is kept back, or on its way.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(all: &Arc<AtomicUsize>) -> Counted {
        all.fetch_add(1, Ordering::AcqRel);
        Counted(all.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Space at an OST that is taken from its grant.
struct Room {
    osc: Arc<Osc>,
    bytes: u64,
}

impl Room {
    /// For so many bytes more at the end of `held` that are there. False: there is none.
    fn grow(&mut self, held: usize, more: usize) -> bool {
        let cost = |len: usize| pages_bytes(0, len as u64);
        let bytes = cost(held + more) - cost(held);
        let taken = self.osc.grant().reserve(bytes).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// It was written to, whatever came of that.
    fn used(mut self) {
        self.osc.grant().used(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.osc.grant().unreserve(self.bytes);
        }
    }
}

impl Held {
    /// How the object is going to look.
    fn objects(&self) -> ObjectAttr {
        let (size, set) = (self.bytes.len() as u64, &self.attr.set);
        ObjectAttr {
            size,
            blocks: pages_bytes(0, size) / BLOCK_BYTES,
            mtime: set.mtime.unwrap_or(self.attr.time),
            atime: set.atime.unwrap_or_default(),
            ctime: set.ctime.unwrap_or(self.attr.time),
        }
    }

    /// Whether `offset` is its end, and nothing else has changed since.
    fn goes_on_at(&self, offset: u64) -> bool {
        offset == self.bytes.len() as u64 && self.inode.data.quiet() == Some(self.stamp)
    }

    /// False: there is no room.
    fn push(&mut self, data: &Payload, attr: &WriteAttr) -> bool {
        if !self.room.grow(self.bytes.len(), data.len()) {
            return false;
        }
        data.iter()
            .for_each(|part| self.bytes.extend_from_slice(part));
        self.attr = *attr;
        drop(self.inode.data.begin());
        // what changes it beside this goes on without it
        self.stamp = self.inode.data.quiet().unwrap_or(u64::MAX);
        true
    }

    /// The file counts until what this returns is dropped.
    async fn write(self, at_mdt: &MdtOpen) -> Counted {
        let Held {
            _counted: counted,
            bytes,
            attr,
            room,
            object,
            inode,
            stamp: _,
            generation,
        } = self;
        let _changing = inode.data.begin();
        let attr = WriteAttr {
            owner: inode.owner(),
            ..attr
        };
        let data = Payload::from(Bytes::from(bytes));
        let done = match at_mdt.mdc.import().generation() == generation {
            true => {
                let done = room.osc.write_first(&object, data, &attr).await;
                room.used();
                done.map_err(Error::from)
            }
            false => Err(Error::ChangesLost),
        };
        if let Err(error) = done {
            let error = match error {
                e if e.is(Errno::ESTALE) => Error::ChangesLost, // others have written there
                e => e,
            };
            tracing::error!(fid = %inode.fid, %error, "data that was written is lost");
            inode.lost.note(error);
        }
        counted
    }
}

impl LateAttrs {
    /// What is kept back of the data of `fid` is at its OST when this returns, or was told to be lost.
    pub async fn data_sent(&self, fid: Fid) {
        if let Some(file) = self.holder(fid) {
            file.data_sent().await;
        }
    }

    /// Data of `fid` is kept back, or on its way.
    pub fn holds(&self, fid: Fid) -> bool {
        self.holder(fid).is_some_and(|f| f.holds())
    }

    /// What may keep data of `fid` back. Nearly always nothing does of any file, and none is looked up.
    fn holder(&self, fid: Fid) -> Option<Arc<LateFile>> {
        match self.holding.load(Ordering::Acquire) {
            0 => None,
            _ => self.of(fid),
        }
    }

    /// Files of which data is kept back.
    pub fn unwritten(&self) -> Vec<Fid> {
        self.those(LateFile::holds).iter().map(|f| f.fid).collect()
    }

    /// The owner that is set goes to the OST with the data of `file`, if there is any.
    pub(super) fn goes_with_data(&self, file: &LateFile, state: &State) -> bool {
        match &state.data {
            Data::Held(_) => true,
            Data::Sending => false,
            Data::Nothing => {
                let quiet = self.open.of(file.fid).and_then(|o| o.data.quiet());
                quiet == Some(0)
            }
        }
    }

    /// How the objects of `fid` will look when its data is sent, which is kept back.
    pub fn held(&self, fid: Fid) -> Option<ObjectAttr> {
        match &self.of(fid)?.state.lock().data {
            Data::Held(held) => Some(held.objects()),
            Data::Nothing | Data::Sending => None,
        }
    }

    /// Sends these times with the data that is kept back. False: there is none, and what there was has been sent.
    pub async fn set_times(&self, fid: Fid, times: &ObjectTimes) -> bool {
        let Some(file) = self.of(fid) else {
            return false;
        };
        if let Data::Held(held) = &mut file.state.lock().data {
            let set = &mut held.attr.set;
            set.atime = times.atime.or(set.atime);
            set.mtime = times.mtime.or(set.mtime);
            set.ctime = times.ctime.or(set.ctime);
            return true;
        }
        file.data_sent().await;
        false
    }

    /// What is kept back of `fid` is sent for one who asks for the lock.
    pub async fn sent_for_others(&self, fid: Fid) {
        if let Some(file) = self.of(fid) {
            file.attributes_sent().await;
            let _ = tokio::time::timeout(OST_WAIT, file.data_sent()).await;
        }
    }
}

impl State {
    fn may_hold(&self, inode: &OpenInode, offset: u64, len: usize) -> bool {
        let fits = offset.saturating_add(len as u64) <= MOST_BYTES as u64;
        let goes_on = || match &self.data {
            Data::Held(held) => held.goes_on_at(offset),
            Data::Nothing => {
                let is_empty = |(stamp, o): &(u64, ObjectAttr)| {
                    o.is_empty() && inode.data.quiet() == Some(*stamp)
                };
                offset == 0 && self.objects.as_ref().is_some_and(is_empty)
            }
            Data::Sending => false,
        };
        fits && !self.ended && self.has_change_time_alone() && goes_on()
    }
}

impl LateFile {
    fn holds(&self) -> bool {
        !matches!(self.state.lock().data, Data::Nothing)
    }

    /// Whether so much may be kept back at `offset`, as far as can be told.
    pub fn may_hold(&self, inode: &OpenInode, offset: u64, len: usize) -> bool {
        self.at_mdt.get().is_some() && self.state.lock().may_hold(inode, offset, len)
    }

    /// Keeps `data` back that is written at `offset`, where the object of this OST is all the file's until there. False: it is to be
    /// written.
    pub fn hold(
        &self,
        inode: &Arc<OpenInode>,
        (osc, object): (Arc<Osc>, ObjectRef),
        offset: u64,
        data: &Payload,
        attr: &WriteAttr,
    ) -> bool {
        let Some(at_mdt) = self.at_mdt.get() else {
            return false;
        };
        let mut state = self.state.lock();
        if !state.may_hold(inode, offset, data.len()) {
            return false;
        }
        if let Data::Held(held) = &mut state.data {
            return held.push(data, attr);
        }
        let mut held = Held {
            bytes: Vec::with_capacity(data.len()),
            attr: *attr,
            room: Room { osc, bytes: 0 },
            object,
            inode: inode.clone(),
            _counted: Counted::new(&self.holding),
            stamp: 0,
            generation: at_mdt.mdc.import().generation(),
        };
        let room = held.push(data, attr);
        if room {
            state.data = Data::Held(Box::new(held));
        }
        room
    }

    /// What is kept back of the data is at its OST when this returns, or was told to be lost.
    pub async fn data_sent(self: &Arc<Self>) {
        if !self.holds() {
            return;
        }
        let me = self.clone();
        finish(async move {
            let _turn = me.data_turn.lock().await;
            let data = std::mem::replace(&mut me.state.lock().data, Data::Sending);
            let _counted = match (data, me.at_mdt.get()) {
                (Data::Held(held), Some(at_mdt)) => Some(held.write(at_mdt).await),
                _ => None,
            };
            me.state.lock().data = Data::Nothing;
        })
        .await
    }
}
