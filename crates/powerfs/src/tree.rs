//! Names, attributes and contents, and the changes that a journal orders. The same change is applied to what programs see, at
//! once, and to what the disk has, when it is committed.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use coral_client::llite::types::Timespec;

use crate::content::Content;

pub(crate) type Ino = u32;
pub(crate) const ROOT: Ino = 1;

#[derive(Clone)]
pub(crate) struct Node {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub atime: Timespec,
    pub mtime: Timespec,
    pub ctime: Timespec,
    pub link: Bytes,
    pub xattrs: BTreeMap<Vec<u8>, Bytes>,
    pub parent: Ino,
    /// Of a directory: cookie and inode by name.
    pub names: BTreeMap<Vec<u8>, (u64, Ino)>,
    pub data: Content,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// What goes through the journal. `cookie`s are new, and what it names was checked before.
#[derive(Clone)]
pub(crate) enum Change {
    Make {
        parent: Ino,
        name: Vec<u8>,
        cookie: u64,
        ino: Ino,
        node: Box<Node>,
    },
    Link {
        parent: Ino,
        name: Vec<u8>,
        cookie: u64,
        ino: Ino,
    },
    Unlink {
        parent: Ino,
        name: Vec<u8>,
    },
    /// What `to` names before is unlinked.
    Rename {
        from: (Ino, Vec<u8>),
        to: (Ino, Vec<u8>),
        cookie: u64,
    },
    Attr {
        ino: Ino,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        atime: Option<Timespec>,
        mtime: Option<Timespec>,
    },
    Xattr {
        ino: Ino,
        name: Vec<u8>,
        value: Option<Bytes>,
    },
    Size {
        ino: Ino,
        size: u64,
    },
    Punch {
        ino: Ino,
        from: u64,
        to: u64,
    },
    Allocate {
        ino: Ino,
        from: u64,
        to: u64,
        size: u64,
    },
}

impl Change {
    /// The file whose blocks it frees.
    pub fn frees(&self) -> Option<Ino> {
        match self {
            Change::Size { ino, .. } | Change::Punch { ino, .. } => Some(*ino),
            _ => None,
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Tree {
    pub nodes: HashMap<Ino, Node>,
}

impl Tree {
    /// Applies a change; what it is about may be gone on this side, and then nothing happens. The inode whose last name went.
    pub fn apply(&mut self, c: &Change) -> Option<Ino> {
        match c {
            Change::Make {
                parent,
                name,
                cookie,
                ino,
                node,
            } => {
                self.nodes.insert(*ino, (**node).clone());
                self.enter(*parent, name, *cookie, *ino);
            }
            Change::Link {
                parent,
                name,
                cookie,
                ino,
            } => {
                self.nodes.get_mut(ino)?.nlink += 1;
                self.enter(*parent, name, *cookie, *ino);
            }
            Change::Unlink { parent, name } => return self.leave(*parent, name),
            Change::Rename { from, to, cookie } => {
                let gone = self.leave(to.0, &to.1);
                let (_, ino) = self.nodes.get_mut(&from.0)?.names.remove(&from.1)?;
                self.nodes
                    .get_mut(&to.0)?
                    .names
                    .insert(to.1.clone(), (*cookie, ino));
                let node = self.nodes.get_mut(&ino)?;
                node.parent = to.0;
                if node.is_dir() && from.0 != to.0 {
                    self.nodes.get_mut(&from.0)?.nlink -= 1;
                    self.nodes.get_mut(&to.0)?.nlink += 1;
                }
                return gone;
            }
            Change::Attr {
                ino,
                mode,
                uid,
                gid,
                atime,
                mtime,
            } => {
                let n = self.nodes.get_mut(ino)?;
                (n.mode, n.uid, n.gid) = (
                    mode.unwrap_or(n.mode),
                    uid.unwrap_or(n.uid),
                    gid.unwrap_or(n.gid),
                );
                (n.atime, n.mtime) = (atime.unwrap_or(n.atime), mtime.unwrap_or(n.mtime));
            }
            Change::Xattr { ino, name, value } => {
                let xattrs = &mut self.nodes.get_mut(ino)?.xattrs;
                match value {
                    Some(v) => drop(xattrs.insert(name.clone(), v.clone())),
                    None => drop(xattrs.remove(name)),
                }
            }
            Change::Size { ino, size } => self.nodes.get_mut(ino)?.data.resize(*size),
            Change::Punch { ino, from, to } => self.nodes.get_mut(ino)?.data.punch(*from, *to),
            Change::Allocate {
                ino,
                from,
                to,
                size,
            } => {
                let data = &mut self.nodes.get_mut(ino)?.data;
                data.allocate(*from, *to);
                data.size = data.size.max(*size);
            }
        }
        None
    }

    fn enter(&mut self, parent: Ino, name: &[u8], cookie: u64, ino: Ino) {
        let is_dir = self.nodes.get(&ino).is_some_and(Node::is_dir);
        if let Some(dir) = self.nodes.get_mut(&parent) {
            dir.names.insert(name.to_vec(), (cookie, ino));
            dir.nlink += u32::from(is_dir);
        }
    }

    fn leave(&mut self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let (_, ino) = self.nodes.get_mut(&parent)?.names.remove(name)?;
        let node = self.nodes.get_mut(&ino)?;
        let is_dir = node.is_dir();
        node.nlink = if is_dir { 0 } else { node.nlink - 1 };
        let last = node.nlink == 0;
        if is_dir {
            self.nodes.get_mut(&parent)?.nlink -= 1;
        }
        last.then_some(ino)
    }
}
