//! What the recorded servers made and ours refused to make: requests that speak of it would be about nothing, and are not sent.

use coral_wire::formats::{Field, Format};
use coral_wire::layout::{Layout, LmvMd};
use coral_wire::ldlm::{LdlmReply, LdlmRequest};
use coral_wire::mds::MdtBody;
use coral_wire::ptlrpc::{Message, opc};
use coral_wire::{Fid, Wire};
use std::collections::HashSet;

use super::values::plain;

#[derive(Default)]
pub struct Lost {
    /// FIDs of objects that are there.
    there: HashSet<[u64; 2]>,
    fids: HashSet<[u64; 2]>,
    /// Handles of locks and opens.
    handles: HashSet<u64>,
}

fn two(f: &Fid) -> [u64; 2] {
    [f.seq, f.oid as u64 | (f.ver as u64) << 32]
}

/// Values a recorded reply reveals: FIDs and OST objects, handles.
fn revealed(format: &Format, reply: &Message) -> (Vec<[u64; 2]>, Vec<u64>) {
    let (mut fids, mut handles) = (Vec::new(), Vec::new());
    for (i, f) in format.reply.iter().enumerate() {
        let b = reply.buf(i);
        match f {
            Field::MdtBody => {
                if let Ok(body) = MdtBody::decode(b) {
                    fids.push(two(&body.fid1));
                    handles.push(body.open_handle);
                }
            }
            Field::DlmRep => handles.extend(LdlmReply::decode(b).map(|r| r.handle)),
            Field::MdtMd | Field::DlmLvb => {
                if let Ok(l) = LmvMd::decode(b) {
                    fids.extend(l.stripe_fids.iter().map(two));
                } else if let Ok(l) = Layout::decode(b) {
                    fids.extend(
                        plain(&l)
                            .iter()
                            .flat_map(|l| &l.objects)
                            .map(|o| [o.oi.id, o.oi.seq]),
                    );
                }
            }
            _ => {}
        }
    }
    fids.retain(|f| *f != [0, 0]);
    handles.retain(|h| *h != 0);
    (fids, handles)
}

/// FIDs of the shards of the directory in a reply.
fn shards(format: &Format, reply: &Message) -> Vec<[u64; 2]> {
    let at = format.reply.iter().position(|f| *f == Field::MdtMd);
    at.and_then(|i| LmvMd::decode(reply.buf(i)).ok())
        .map_or(vec![], |l| l.stripe_fids.iter().map(two).collect())
}

impl Lost {
    /// The recorded reply is one of ours too; a striped directory may be a plain one with us.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether an entry stays depends on itself alone"
    )]
    pub fn given(&mut self, format: &Format, theirs: &Message, ours: &Message) {
        let (fids, handles) = revealed(format, theirs);
        let plain = shards(format, ours).is_empty();
        let lost: Vec<[u64; 2]> = shards(format, theirs)
            .into_iter()
            .filter(|s| plain && !self.there.contains(s))
            .collect();
        self.there
            .extend(fids.iter().filter(|f| !lost.contains(*f)));
        self.fids.retain(|f| !fids.contains(f));
        self.fids.extend(lost);
        self.handles.retain(|h| !handles.contains(h));
    }

    /// There was no such reply of ours.
    pub fn refused(&mut self, format: &Format, theirs: &Message) {
        let (fids, handles) = revealed(format, theirs);
        self.fids
            .extend(fids.iter().filter(|f| !self.there.contains(*f)));
        self.handles.extend(handles);
    }

    /// Whether a recorded request speaks of it. Handles count where they are what the request is about: one that is given back
    /// along with something else is no reason to leave that out.
    pub fn concerns(&self, opcode: u32, m: &Message) -> bool {
        if opcode == opc::LDLM_CANCEL {
            return LdlmRequest::decode(m.buf(1))
                .is_ok_and(|r| r.cancels().iter().all(|h| self.handles.contains(h)));
        }
        m.bufs.iter().skip(1).any(|b| {
            let word = |i: usize| {
                b.get(i..i + 8)
                    .map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")))
            };
            (0..b.len()).step_by(4).any(|i| {
                let Some(w) = word(i) else { return false };
                opcode == opc::MDS_CLOSE && self.handles.contains(&w)
                    || word(i + 8).is_some_and(|next| self.fids.contains(&[w, next]))
            })
        })
    }

    /// Whether a recorded callback is about such a lock.
    pub fn called_back(&self, lock: u64) -> bool {
        self.handles.contains(&lock)
    }
}
