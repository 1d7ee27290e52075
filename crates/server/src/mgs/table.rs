//! Registered targets as they are stored.
//!
//! Table [`MGS_TARGETS`]: key `<fsname>\0<order, 4 bytes big endian>`, value one JSON object with a format number.
//! `order` is the order of registration within the file system, from 0; it is never reused.

use coral_osd::{Batch, Kv, OsdError, Table};
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};

/// Registered targets.
pub const MGS_TARGETS: Table = Table("mgs_targets");

/// Format of the values; a greater one is refused.
const FORMAT: u32 = 1;

/// Most targets of all file systems together.
const TARGETS_MAX: usize = 65_536;

/// Kind of a registered target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredKind {
    /// Metadata.
    Mdt,
    /// Objects.
    Ost,
}

impl StoredKind {
    /// As Lustre writes it in names.
    pub fn text(self) -> &'static str {
        match self {
            StoredKind::Mdt => "MDT",
            StoredKind::Ost => "OST",
        }
    }
}

/// A registered target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTarget {
    format: u32,
    /// MDT or OST.
    pub kind: StoredKind,
    /// Index within the file system.
    pub index: u32,
    /// NIDs of its node, primary first, as text.
    pub nids: Vec<String>,
    /// Seconds since 1970 at its first registration.
    pub registered: i64,
    /// Parameters it was formatted with, `key=value`.
    pub params: Vec<String>,
    /// Identity of its formatting, when it told one: of a Coral target its label's uuid; else empty.
    #[serde(default)]
    pub identity: String,
    /// Its last registration: a later one has a greater number. Only Coral targets count them.
    #[serde(default)]
    pub registration: Option<StoredRegistration>,
}

/// One registration of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRegistration {
    /// Its number, kept by the target.
    pub number: u32,
    /// Tells it from any other with this number.
    pub cookie: u64,
}

impl StoredTarget {
    /// A new target.
    pub fn new(
        kind: StoredKind,
        index: u32,
        nids: &[Nid],
        registered: i64,
        params: Vec<String>,
    ) -> StoredTarget {
        let mut s = StoredTarget {
            format: FORMAT,
            kind,
            index,
            nids: Vec::new(),
            registered,
            params,
            identity: String::new(),
            registration: None,
        };
        s.set_nids(nids);
        s
    }

    /// Its NIDs.
    pub fn nids(&self) -> Vec<Nid> {
        self.nids.iter().filter_map(|n| n.parse().ok()).collect()
    }

    /// Replaces its NIDs.
    pub fn set_nids(&mut self, nids: &[Nid]) {
        self.nids = nids.iter().map(Nid::to_string).collect();
    }

    /// One NID of each of its failover nodes, as its parameters name them.
    pub fn failover(&self) -> Vec<Nid> {
        let named = self
            .params
            .iter()
            .filter_map(|p| p.strip_prefix("failover.node="));
        named
            .flat_map(|v| v.split([':', ',']))
            .filter_map(|n| n.parse().ok())
            .collect()
    }

    /// Value of the last parameter `key`.
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params
            .iter()
            .rev()
            .find_map(|p| p.strip_prefix(key)?.strip_prefix('='))
    }
}

fn key(fsname: &str, order: u32) -> Vec<u8> {
    let mut k = fsname.as_bytes().to_vec();
    k.push(0);
    k.extend_from_slice(&order.to_be_bytes());
    k
}

/// Adds the storing of a target to a batch.
pub fn put(batch: &mut Batch, fsname: &str, order: u32, s: &StoredTarget) -> Result<(), OsdError> {
    let value = serde_json::to_vec(s)
        .map_err(|e| OsdError::Corrupt(format!("a target does not go into JSON: {e}")))?;
    batch.put(MGS_TARGETS, key(fsname, order), value);
    Ok(())
}

/// Everything registered: (file system, order, target), by file system and order.
pub fn load(kv: &dyn Kv) -> Result<Vec<(String, u32, StoredTarget)>, OsdError> {
    let mut out = Vec::new();
    for (k, v) in kv.range(MGS_TARGETS, &[], None, TARGETS_MAX)? {
        let bad = |what: &str| {
            OsdError::Corrupt(format!(
                "MGS target record {:?}: {what}",
                k.escape_ascii().to_string()
            ))
        };
        let (name, order) = k
            .len()
            .checked_sub(5)
            .map(|n| k.split_at(n))
            .ok_or_else(|| bad("key too short"))?;
        let name = std::str::from_utf8(name).map_err(|_| bad("name is not text"))?;
        let order = u32::from_be_bytes(order[1..5].try_into().map_err(|_| bad("no order"))?);
        let s: StoredTarget = serde_json::from_slice(&v).map_err(|e| bad(&e.to_string()))?;
        if s.format > FORMAT {
            return Err(bad(&format!(
                "written by a newer Coral (format {}, this one knows {FORMAT})",
                s.format
            )));
        }
        out.push((name.to_owned(), order, s));
    }
    Ok(out)
}
