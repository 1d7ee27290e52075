//! What is counted for users, groups and projects, and how targets answer for it (`lustre/quota`).
//!
//! An OST counts its objects and their space (`ost::usage`), an MDT its inodes (`mdt::usage`), both in tables and by all three of
//! an owner's ids at once: a change is one sum more, and a question adds few.
//!
//! Absent: limits. None can be set (EOPNOTSUPP), and whoever asks hears that none are.

use std::collections::BTreeMap;

use coral_osd::{Batch, Kv, OsdError, Table};
use coral_wire::Errno;
use coral_wire::quota::{ObdDqblk, ObdQuotactl, cmd, dqb};

use crate::nodemap::{IdType, View};

/// Seconds of grace as long as nobody sets others (`MAX_DQ_TIME`, `MAX_IQ_TIME`).
const GRACE_S: u64 = 604_800;

/// In the place of a time: this id has no limits of its own (`LQUOTA_FLAG_DEFAULT` above `LQUOTA_GRACE_BITS`).
const DEFAULT: u64 = 1 << 48;

/// Whose something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub projid: u32,
}

impl Owner {
    /// The id of one kind: 0 user, 1 group, 2 project.
    fn id(&self, kind: u32) -> Option<u32> {
        [self.uid, self.gid, self.projid]
            .get(kind as usize)
            .copied()
    }
}

/// What is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Inodes of an MDT, objects of an OST.
    pub inodes: u64,
    /// Space in bytes.
    pub bytes: u64,
}

impl Used {
    /// With `other` added.
    pub fn plus(self, other: Used) -> Used {
        Used {
            inodes: self.inodes.wrapping_add(other.inodes),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }

    /// With `other` taken away.
    pub fn minus(self, other: Used) -> Used {
        Used {
            inodes: self.inodes.wrapping_sub(other.inodes),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }
}

/// What each owner has in use. An owner of nothing is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(BTreeMap<Owner, Used>);

impl Sums {
    /// What `owner` has.
    pub fn of(&self, owner: &Owner) -> Used {
        self.0.get(owner).copied().unwrap_or_default()
    }

    /// `owner` has `used`.
    pub fn set(&mut self, owner: Owner, used: Used) {
        match used == Used::default() {
            true => self.0.remove(&owner),
            false => self.0.insert(owner, used),
        };
    }

    /// `owner` has `used` more.
    pub fn add(&mut self, owner: Owner, used: Used) {
        self.set(owner, self.of(&owner).plus(used));
    }

    /// `owner` has `used` less.
    pub fn take(&mut self, owner: Owner, used: Used) {
        self.set(owner, self.of(&owner).minus(used));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Owner, &Used)> {
        self.0.iter()
    }

    /// What a user (`kind` 0), group (1) or project (2) has in use.
    pub fn of_id(&self, kind: u32, id: u32) -> Used {
        let mine = self
            .0
            .iter()
            .filter(|(owner, _)| owner.id(kind) == Some(id));
        mine.fold(Used::default(), |sum, (_, used)| sum.plus(*used))
    }
}

/// Rows of sums read at a time.
const CHUNK: usize = 4096;

/// Key of the row of an owner in a table of sums.
pub fn owner_key(owner: &Owner) -> Vec<u8> {
    let ids = [owner.uid, owner.gid, owner.projid];
    ids.iter().flat_map(|id| id.to_be_bytes()).collect()
}

/// The owner whose row has this key.
pub fn owner_of(key: &[u8]) -> Option<Owner> {
    let id = |i: usize| {
        Some(u32::from_be_bytes(
            key.get(4 * i..4 * i + 4)?.try_into().ok()?,
        ))
    };
    Some(Owner {
        uid: id(0)?,
        gid: id(1)?,
        projid: id(2)?,
    })
}

/// The owner and the sum in a row.
pub fn row_of(key: &[u8], val: &[u8]) -> Option<(Owner, Used)> {
    let word = |i: usize| {
        Some(u64::from_le_bytes(
            val.get(8 * i..8 * i + 8)?.try_into().ok()?,
        ))
    };
    Some((
        owner_of(key)?,
        Used {
            inodes: word(0)?,
            bytes: word(1)?,
        },
    ))
}

/// Changes the row of an owner in a table of sums.
pub fn put_row(batch: &mut Batch, table: Table, owner: &Owner, used: Used) {
    let key = owner_key(owner);
    match used == Used::default() {
        true => batch.del(table, key),
        false => {
            let value = [used.inodes.to_le_bytes(), used.bytes.to_le_bytes()].concat();
            debug_assert_eq!(row_of(&key, &value), Some((*owner, used)));
            batch.put(table, key, value)
        }
    };
}

/// What a user (`kind` 0), group (1) or project (2) has in use by a table of sums.
pub fn used_in(kv: &dyn Kv, table: Table, kind: u32, id: u32) -> Result<Used, OsdError> {
    let mut used = Used::default();
    // rows of one user follow each other
    let (mut from, to) = match kind {
        0 => (id.to_be_bytes().to_vec(), id.checked_add(1)),
        _ => (Vec::new(), None),
    };
    let to = to.map(u32::to_be_bytes);
    loop {
        let rows = kv.range(table, &from, to.as_ref().map(|to| &to[..]), CHUNK)?;
        for (k, v) in &rows {
            let (owner, sum) = row_of(k, v)
                .ok_or_else(|| OsdError::Corrupt(format!("a row of the table {}", table.0)))?;
            if owner.id(kind) == Some(id) {
                used = used.plus(sum);
            }
        }
        match rows.last() {
            Some((k, _)) if rows.len() == CHUNK => from = [k, &[0][..]].concat(),
            _ => return Ok(used),
        }
    }
}

/// What a target is asked.
pub enum Question {
    /// What an id has in use.
    Usage,
    /// What limits there are: for the MDT that knows them.
    Limits,
}

/// The command in `asked`. EOPNOTSUPP: what is not there, an unknown kind of id, and what no slave answers (`lquotactl_slv`).
pub fn question(asked: &ObdQuotactl) -> Result<Question, Errno> {
    if asked.r#type > 2 {
        return Err(Errno::EOPNOTSUPP);
    }
    match asked.cmd {
        cmd::GETOQUOTA => Ok(Question::Usage),
        cmd::GETINFO | cmd::GETQUOTA | cmd::GETDEFAULT => Ok(Question::Limits),
        // a pool nobody made (`qmt_pool_lookup`)
        cmd::GETQUOTAPOOL | cmd::GETINFOPOOL | cmd::GETDEFAULT_POOL => Err(Errno::ENOENT),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// The id that is asked about, as it counts here.
pub fn id_here(view: &View, asked: &ObdQuotactl) -> u32 {
    IdType::ALL
        .get(asked.r#type as usize)
        .map_or(asked.id, |kind| view.to_fs(*kind, asked.id))
}

/// The answer to [`Question::Usage`]; no limit is given to this target.
pub fn usage(asked: &ObdQuotactl, used: Used) -> ObdQuotactl {
    let valid = dqb::SPACE | dqb::INODES | dqb::BLIMITS | dqb::ILIMITS;
    let dqblk = ObdDqblk {
        curspace: used.bytes,
        curinodes: used.inodes,
        valid,
        ..ObdDqblk::default()
    };
    ObdQuotactl { dqblk, ..*asked }
}

/// The answer to [`Question::Limits`]: none are set. What is in use clients add up themselves (`qmt_quotactl`).
pub fn limits(asked: &ObdQuotactl) -> ObdQuotactl {
    let mut answer = *asked;
    if asked.cmd == cmd::GETINFO {
        (answer.dqinfo.bgrace, answer.dqinfo.igrace) = (GRACE_S, GRACE_S);
        return answer;
    }
    let valid = asked.dqblk.valid | dqb::BLIMITS | dqb::BTIME | dqb::ILIMITS | dqb::ITIME;
    // of id 0 it is everybody's time of grace, of another what says that the defaults count for it
    let time = if asked.id == 0 { GRACE_S } else { DEFAULT };
    answer.dqblk = ObdDqblk {
        btime: time,
        itime: time,
        valid,
        ..ObdDqblk::default()
    };
    answer
}
