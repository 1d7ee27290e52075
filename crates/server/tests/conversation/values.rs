//! Values that differ by nature, from the recorded servers' to ours: handles, cookies, sequences, objects, logs.
//!
//! They are learnt from pairs of replies and then replaced wherever they stand, at 4-byte steps: each is 64 bits that no
//! other value has, or 128 where one half alone would say too little.

use bytes::Bytes;
use coral_wire::fld::LuSeqRange;
use coral_wire::formats::{Field, Format};
use coral_wire::layout::{Layout, LmvMd, LovMd};
use coral_wire::ldlm::LdlmReply;
use coral_wire::llog::LlogdBody;
use coral_wire::mds::MdtBody;
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc};
use coral_wire::{Fid, Wire};
use std::collections::HashMap;
use zerocopy::IntoBytes;

/// What the recorded values are with us.
#[derive(Default)]
pub struct Values {
    words: HashMap<u64, u64>,
    pairs: HashMap<[u64; 2], [u64; 2]>,
    /// OST that our object is on, by the recorded object.
    homes: HashMap<[u64; 2], u32>,
    /// Versions of objects.
    versions: HashMap<u64, u64>,
}

/// Which buffer of a message holds `field`.
fn place(fields: &[Field], field: Field) -> Option<usize> {
    fields.iter().position(|f| *f == field)
}

impl Values {
    fn word(&mut self, theirs: u64, ours: u64) {
        if theirs != 0 && ours != 0 {
            self.words.insert(theirs, ours);
        }
    }

    /// What ours is for a recorded value.
    pub fn ours(&self, theirs: u64) -> u64 {
        self.words.get(&theirs).copied().unwrap_or(theirs)
    }

    pub fn knows(&self, theirs: u64) -> bool {
        self.words.contains_key(&theirs)
    }

    /// The OST that our object for a recorded one is on.
    pub fn home(&self, theirs: [u64; 2]) -> Option<u32> {
        self.homes.get(&theirs).copied()
    }

    /// The OSTs of the objects that a recorded reply is the first to name.
    pub fn new_homes(&self, format: &Format, theirs: &Message) -> Vec<u32> {
        let fields = [Field::MdtMd, Field::DlmLvb]
            .into_iter()
            .filter_map(|f| place(format.reply, f));
        let layouts: Vec<Layout> = fields
            .filter_map(|i| Layout::decode(theirs.buf(i)).ok())
            .collect();
        let objects = layouts.iter().flat_map(plain).flat_map(|l| &l.objects);
        objects
            .filter(|o| self.home([o.oi.id, o.oi.seq]).is_none())
            .map(|o| o.ost_idx)
            .collect()
    }

    /// The object of ours for a recorded one.
    pub fn object(&self, theirs: [u64; 2]) -> [u64; 2] {
        self.pairs.get(&theirs).copied().unwrap_or(theirs)
    }

    /// The buffer with every known value replaced.
    pub fn translate(&self, b: &Bytes) -> Bytes {
        let mut out = b.to_vec();
        let at = |v: &[u8], i: usize| u64::from_le_bytes(v[i..i + 8].try_into().unwrap());
        let mut i = 0;
        while i + 8 <= out.len() {
            let pair = (i + 16 <= out.len())
                .then(|| self.pairs.get(&[at(&out, i), at(&out, i + 8)]))
                .flatten();
            if let Some([a, b]) = pair {
                out[i..i + 8].copy_from_slice(&a.to_le_bytes());
                out[i + 8..i + 16].copy_from_slice(&b.to_le_bytes());
                i += 16;
            } else if let Some(w) = self.words.get(&at(&out, i)) {
                out[i..i + 8].copy_from_slice(&w.to_le_bytes());
                i += 8;
            } else {
                i += 4;
            }
        }
        out.into()
    }

    /// Every buffer but the body translated; of the body, the handle.
    pub fn translate_message(&self, m: &Message) -> Message {
        let mut out = m.clone();
        for (i, b) in m.bufs.iter().enumerate().skip(1) {
            out.bufs[i] = self.translate(b);
        }
        if let Ok(body) = m.body() {
            let pre_versions = body
                .pre_versions
                .map(|v| self.versions.get(&v).copied().unwrap_or(v));
            out.set_body(&PtlrpcBody {
                handle: self.ours(body.handle),
                pre_versions,
                ..body
            });
        }
        out
    }

    /// Takes what a pair of replies says.
    pub fn learn(&mut self, format: &Format, opcode: u32, theirs: &Message, ours: &Message) {
        let (Ok(t), Ok(o)) = (theirs.body(), ours.body()) else {
            return;
        };
        if t.status < 0 || o.status < 0 {
            return;
        }
        self.word(t.handle, o.handle);
        // 1 says that there is no object; 0 is the version of objects of before, unless all are: then none is told
        if o.pre_versions != [0; 4] {
            for (t, o) in t
                .pre_versions
                .iter()
                .zip(o.pre_versions)
                .filter(|(t, o)| **t > 1 && *o != 1)
            {
                self.versions.entry(*t).or_insert(o);
            }
        }
        let both = |f: Field| place(format.reply, f).map(|i| (theirs.buf(i), ours.buf(i)));
        if let Some((t, o)) = both(Field::DlmRep)
            && let (Ok(t), Ok(o)) = (LdlmReply::decode(t), LdlmReply::decode(o))
        {
            self.word(t.handle, o.handle);
        }
        if let Some((t, o)) = both(Field::MdtBody)
            && let (Ok(t), Ok(o)) = (MdtBody::decode(t), MdtBody::decode(o))
        {
            self.word(t.open_handle, o.open_handle);
        }
        if opcode == opc::SEQ_QUERY
            && let Some((t, o)) = both(Field::SeqRange)
            && let (Ok(t), Ok(o)) = (LuSeqRange::decode(t), LuSeqRange::decode(o))
        {
            self.word(t.start, o.start);
            self.word(t.end, o.end);
        }
        if let Some((t, o)) = both(Field::LlogdBody)
            && let (Ok(t), Ok(o)) = (LlogdBody::decode(t), LlogdBody::decode(o))
        {
            self.log(t.logid.as_bytes(), o.logid.as_bytes());
        }
        for f in [Field::MdtMd, Field::DlmLvb] {
            if let Some((t, o)) = both(f) {
                self.layout(t, o);
            }
        }
    }

    fn log(&mut self, theirs: &[u8], ours: &[u8]) {
        let two = |b: &[u8]| [0, 8].map(|i| u64::from_le_bytes(b[i..i + 8].try_into().unwrap()));
        if two(theirs) != [0, 0] {
            self.pairs.insert(two(theirs), two(ours));
        }
    }

    fn layout(&mut self, theirs: &Bytes, ours: &Bytes) {
        if let (Ok(t), Ok(o)) = (LmvMd::decode(theirs), LmvMd::decode(ours)) {
            let two = |f: &Fid| [f.seq, u64::from(f.oid) | u64::from(f.ver) << 32];
            for (t, o) in t.stripe_fids.iter().zip(&o.stripe_fids) {
                self.pairs.insert(two(t), two(o));
            }
        }
        let (Ok(t), Ok(o)) = (Layout::decode(theirs), Layout::decode(ours)) else {
            return;
        };
        for (t, o) in plain(&t).iter().zip(plain(&o)) {
            for (t, o) in t.objects.iter().zip(&o.objects) {
                self.pairs.insert([t.oi.id, t.oi.seq], [o.oi.id, o.oi.seq]);
                self.homes.insert([t.oi.id, t.oi.seq], o.ost_idx);
            }
        }
    }
}

/// The plain layouts in a layout: itself, or its components.
pub fn plain(l: &Layout) -> Vec<&LovMd> {
    match l {
        Layout::Plain(l) => vec![l],
        Layout::Composite(c) => c.entries.iter().filter_map(|e| e.plain()).collect(),
        Layout::Foreign(_) => vec![],
    }
}
