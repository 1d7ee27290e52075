//! Pairs of ids, one to one (`lustre/ptlrpc/nodemap_idmap.c`): what an id of a client is in the file system, and back.

use std::collections::BTreeMap;

use coral_wire::Errno;
use serde::{Deserialize, Serialize};

/// Most pairs of one nodemap and kind of id.
pub const PAIRS_MAX: usize = 65_536;

/// A table of pairs. Invariant: neither side has an id twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub struct IdMap {
    to_fs: BTreeMap<u32, u32>,
    to_client: BTreeMap<u32, u32>,
}

impl From<Vec<(u32, u32)>> for IdMap {
    fn from(pairs: Vec<(u32, u32)>) -> IdMap {
        let mut map = IdMap::default();
        for (client, fs) in pairs {
            // a pair that is there twice is there once
            let _ = map.add(client, fs);
        }
        map
    }
}

impl From<IdMap> for Vec<(u32, u32)> {
    fn from(map: IdMap) -> Vec<(u32, u32)> {
        map.to_fs.into_iter().collect()
    }
}

impl IdMap {
    /// What the client's id is in the file system.
    pub fn to_fs(&self, client: u32) -> Option<u32> {
        self.to_fs.get(&client).copied()
    }

    /// What the file system's id is for the client.
    pub fn to_client(&self, fs: u32) -> Option<u32> {
        self.to_client.get(&fs).copied()
    }

    /// Adds a pair. A pair that shares one of its ids goes; when both are taken already it is refused (`idmap_insert`).
    pub fn add(&mut self, client: u32, fs: u32) -> Result<(), Errno> {
        match (
            self.to_fs.get(&client).copied(),
            self.to_client.get(&fs).copied(),
        ) {
            (Some(_), Some(_)) => return Err(Errno::EEXIST),
            (None, None) if self.to_fs.len() >= PAIRS_MAX => return Err(Errno::ENOSPC),
            (Some(old), None) => drop(self.to_client.remove(&old)),
            (None, Some(old)) => drop(self.to_fs.remove(&old)),
            (None, None) => {}
        }
        self.to_fs.insert(client, fs);
        self.to_client.insert(fs, client);
        Ok(())
    }

    /// Takes the pair of a client's id away.
    pub fn del(&mut self, client: u32) -> Result<(), Errno> {
        let fs = self.to_fs.remove(&client).ok_or(Errno::EINVAL)?;
        self.to_client.remove(&fs);
        Ok(())
    }

    /// All pairs (client, file system), by the client's id.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.to_fs.iter().map(|(c, f)| (*c, *f))
    }
}

/// Pairs as a command names them: `C:F`, `C-C2:F` or `C-C2:F-F2` (`nodemap_parse_idmap`). The first ids, and how many.
pub fn parse(text: &str) -> Result<(u32, u32, u32), Errno> {
    let (client, fs) = text.split_once(':').ok_or(Errno::EINVAL)?;
    let ends = |t: &str| -> Result<(u32, Option<u32>), Errno> {
        let number = |n: &str| n.parse::<u32>().map_err(|_| Errno::EINVAL);
        match t.split_once('-') {
            Some((low, high)) => Ok((number(low)?, Some(number(high)?))),
            None => Ok((number(t)?, None)),
        }
    };
    let ((client, last), (fs, fs_last)) = (ends(client)?, ends(fs)?);
    let more = last.map_or(Ok(0), |l| l.checked_sub(client).ok_or(Errno::ERANGE))?;
    if fs_last.is_some_and(|l| l.checked_sub(fs) != Some(more)) || fs.checked_add(more).is_none() {
        return Err(Errno::EINVAL);
    }
    let count = more
        .checked_add(1)
        .filter(|n| *n as usize <= PAIRS_MAX)
        .ok_or(Errno::ENOSPC)?;
    Ok((client, fs, count))
}
