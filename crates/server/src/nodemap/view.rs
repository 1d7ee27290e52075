//! What the nodemap of one client says. Without one, which is so while nodemaps are not active and for servers of this file
//! system, every id is believed.

use std::sync::Arc;

use bytes::Bytes;
use coral_osd::SetAttr;

use super::core::{IdType, Nodemap};
use crate::mdt::acl;

/// "None", in place of an id.
const NO_ID: u32 = u32::MAX;

/// The nodemap of one client, if one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View(Option<Arc<Nodemap>>);

impl View {
    /// Of a client in that nodemap.
    pub fn new(map: Option<Arc<Nodemap>>) -> View {
        View(map)
    }

    /// The nodemap.
    pub fn map(&self) -> Option<&Nodemap> {
        self.0.as_deref()
    }

    /// An id of the client, as it counts here.
    pub fn to_fs(&self, kind: IdType, id: u32) -> u32 {
        self.0.as_ref().map_or(id, |m| m.to_fs(kind, id).0)
    }

    /// The same where -1 names nobody: in a setattr an owner that stays, else a group that is not there.
    pub fn named_to_fs(&self, kind: IdType, id: u32) -> u32 {
        if id == NO_ID {
            id
        } else {
            self.to_fs(kind, id)
        }
    }

    /// An id of ours, as the client knows it.
    pub fn to_client(&self, kind: IdType, id: u32) -> u32 {
        self.0.as_ref().map_or(id, |m| m.to_client(kind, id).0)
    }

    /// Whether an id of the client is unknown here.
    pub fn squashes(&self, kind: IdType, id: u32) -> bool {
        self.0.as_ref().is_some_and(|m| m.to_fs(kind, id).1)
    }

    /// Whether its unknown users are refused, and `uid` is one.
    pub fn denies(&self, uid: u32) -> bool {
        self.0.as_ref().is_some_and(|m| m.deny_unknown) && self.squashes(IdType::Uid, uid)
    }

    /// Whether none of its users is refused for being unknown.
    pub fn denies_nobody(&self) -> bool {
        self.0.as_ref().is_none_or(|m| !m.deny_unknown)
    }

    /// Whether the client is not believed that its users may reach the files whose FIDs it names.
    pub fn guards_links(&self) -> bool {
        self.0.as_ref().is_some_and(|m| !m.trusted)
    }

    /// Owners that a request gives to an object.
    pub fn owners_to_fs(&self, set: SetAttr) -> SetAttr {
        SetAttr {
            uid: set.uid.map(|id| self.to_fs(IdType::Uid, id)),
            gid: set.gid.map(|id| self.to_fs(IdType::Gid, id)),
            projid: set.projid.map(|id| self.to_fs(IdType::Projid, id)),
            ..set
        }
    }

    /// The value of attribute `name` as the client is to see it: ids in ACLs are mapped, entries of nobody it knows are left out.
    pub fn xattr_to_client(&self, name: &[u8], value: Bytes) -> Bytes {
        match &self.0 {
            Some(m) if is_acl(name) => acl::map_ids(&value, |group, id| {
                let kind = if group { IdType::Gid } else { IdType::Uid };
                let (id, _) = m.to_client(kind, id);
                (id != m.squash[kind as usize]).then_some(id)
            }),
            _ => value,
        }
    }

    /// The value of attribute `name` that the client gives. `None`: it names somebody who is unknown here (EPERM).
    pub fn xattr_to_fs(&self, name: &[u8], value: Bytes) -> Option<Bytes> {
        let Some(m) = self.0.as_ref().filter(|_| is_acl(name)) else {
            return Some(value);
        };
        let mapped = acl::map_ids(&value, |group, id| {
            let kind = if group { IdType::Gid } else { IdType::Uid };
            let (id, _) = m.to_fs(kind, id);
            (id != m.squash[kind as usize]).then_some(id)
        });
        (mapped.len() == value.len()).then_some(mapped)
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodemap::{Command, Nodemaps};

    #[test]
    fn no_id_is_left_only_where_it_says_so() {
        let maps = Nodemaps::default()
            .with(&Command::Add { name: "far".into() })
            .unwrap();
        let view = View::new(maps.named("far").cloned());
        let said = SetAttr {
            uid: Some(NO_ID),
            gid: Some(NO_ID),
            projid: None,
            ..SetAttr::default()
        };
        let owners = view.owners_to_fs(said);
        assert_eq!(
            (owners.uid, owners.gid, owners.projid),
            (Some(65534), Some(65534), None)
        );
        assert!(view.squashes(IdType::Uid, NO_ID));
        assert_eq!(
            (
                view.named_to_fs(IdType::Uid, NO_ID),
                view.named_to_fs(IdType::Uid, 7)
            ),
            (NO_ID, 65534)
        );
    }
}
