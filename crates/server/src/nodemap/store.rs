//! Nodemaps in the MGS's tables: one row, a JSON object with a format number. The same text goes to Coral servers that ask the MGS.

use coral_osd::{Batch, Kv, OsdError, Table};
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};

use super::core::Nodemaps;
use crate::target::Membership;

/// Table of the MGS.
pub const MGS_NODEMAPS: Table = Table("mgs_nodemaps");
const KEY: &[u8] = b"nodemaps";
/// Format of the row; a greater one is refused.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct StoredNodemaps {
    format: u32,
    nodemaps: Nodemaps,
}

/// As text.
pub fn encode(maps: &Nodemaps) -> Result<Vec<u8>, OsdError> {
    let stored = StoredNodemaps {
        format: FORMAT,
        nodemaps: maps.clone(),
    };
    serde_json::to_vec(&stored)
        .map_err(|e| OsdError::Corrupt(format!("nodemaps do not go into JSON: {e}")))
}

/// From text.
pub fn decode(text: &[u8]) -> Result<Nodemaps, OsdError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let bad = |why: String| OsdError::Corrupt(format!("MGS nodemaps: {why}"));
    let head: Head = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
    if head.format > FORMAT {
        return Err(bad(format!(
            "written by a newer Coral (format {}, this one knows {FORMAT})",
            head.format
        )));
    }
    let stored: StoredNodemaps = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
    match stored.nodemaps.named(super::core::DEFAULT) {
        Some(_) => Ok(stored.nodemaps),
        None => Err(bad("the default nodemap is missing".into())),
    }
}

/// What a server of Coral reads of the MGS, as text.
pub fn encode_membership(now: &Membership) -> Result<Vec<u8>, OsdError> {
    let told = Told {
        format: FORMAT,
        nodemaps: now.maps.clone(),
        mdts: now.mdts.iter().map(Nid::to_string).collect(),
    };
    serde_json::to_vec(&told)
        .map_err(|e| OsdError::Corrupt(format!("nodemaps do not go into JSON: {e}")))
}

/// From such text.
pub fn decode_membership(text: &[u8]) -> Result<Membership, OsdError> {
    let maps = decode(text)?;
    let told: Told = serde_json::from_slice(text)
        .map_err(|e| OsdError::Corrupt(format!("nodemaps of the MGS: {e}")))?;
    Ok(Membership {
        maps,
        mdts: told.mdts.iter().filter_map(|n| n.parse().ok()).collect(),
    })
}

#[derive(Serialize, Deserialize)]
struct Told {
    format: u32,
    nodemaps: Nodemaps,
    /// NIDs of nodes with MDTs.
    mdts: Vec<String>,
}

/// What is stored; without a row nodemaps as they are at first.
pub fn load(kv: &dyn Kv) -> Result<Nodemaps, OsdError> {
    kv.get(MGS_NODEMAPS, KEY)?
        .map_or_else(|| Ok(Nodemaps::default()), |row| decode(&row))
}

/// The storing of `maps`.
pub fn put(maps: &Nodemaps) -> Result<Batch, OsdError> {
    let mut batch = Batch::new();
    batch.put(MGS_NODEMAPS, KEY, encode(maps)?);
    Ok(batch)
}
