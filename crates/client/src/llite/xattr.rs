//! Extended attributes: the user's, ACLs, and Lustre's own under names of their own.
//!
//! | name | get | set |
//! | --- | --- | --- |
//! | `lustre.lov` | layout of a file, default layout of a directory | layout of a file without one, default of a directory |
//! | `lustre.lov/NAME` | layout of the file NAME in a directory | - |
//! | `lustre.lma`, `lustre.link` | as stored on the MDT | - |
//! | `lustre.lmv` | layout of a striped directory, with the MDT of each shard | - |
//! | `lustre.dmv` | what new directories inherit | the same |
//! | `lustre.mkdir` | - | makes a directory on chosen MDTs ([`super::MkdirRequest`]) |
//! | `lustre.fid` | FID as text | - |
//! | `lustre.path:FID` | a path of that FID, from the mounted directory | - |
//! | `lustre.targets.json` | the targets and whether they answer, JSON; asks no server | - |
//! | `lustre.statfs.json` | the same with space and inodes, or the errno of a target that does not say | - |
//! | `lustre.pools.json` | OSTs of each pool, JSON | - |
//!
//! Lustre: `lustre/llite/xattr.c`; the text ones take the place of ioctls, which FUSE does not let through.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::{Layout, LovMd, SubLayout};
use coral_wire::mds::fl;
use coral_wire::ost::ObdStatfs;
use futures_util::future::{join, join_all};

use super::finish::finish;
use super::types::{Cred, SetAttr};
use super::{Llite, MkdirRequest};
use crate::lov::Form;
use crate::mdc::Ids;

/// Longest name, bytes (XATTR_NAME_MAX).
const NAME_MAX: usize = 255;
/// Longest value, bytes (XATTR_SIZE_MAX).
const VALUE_MAX: usize = 65536;
/// The access ACL; comes with the attributes.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// File capabilities: Linux asks for them before each chown and before the first write.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// Asked for again and again on machines without SELinux; there it is EOPNOTSUPP, as in Lustre (`ll_xattr_get_common`).
const SELINUX: &[u8] = b"security.selinux";
/// A layout, as tools that copy xattrs by name read and set it.
const LOV: &[u8] = b"trusted.lov";
/// What the MDT lists but is no attribute of the user's: never shown in a list, so that copies do not copy it.
const HIDDEN: [&[u8]; 8] = [
    LOV,
    b"trusted.lma",
    b"trusted.link",
    b"trusted.lmv",
    b"trusted.dmv",
    b"trusted.som",
    b"trusted.hsm",
    b"trusted.fid",
];

impl Llite {
    /// Value of one xattr; ENODATA when there is none.
    pub async fn getxattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> Result<Bytes, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ERANGE);
        }
        if let Some(own) = name.strip_prefix(b"lustre.") {
            return self.own_xattr(cred, fid, own).await;
        }
        if name.starts_with(b"user.") && !self.opts.user_xattr {
            return Err(Errno::EOPNOTSUPP);
        }
        if name == SELINUX && !self.opts.selinux {
            return Err(Errno::EOPNOTSUPP);
        }
        // `ls -l` asks for each file, and hardly any has one; the kernel asks whenever it looks at attributes anew to permit something
        if name == ACL_ACCESS
            && let Some(k) = self.cache.known(fid).filter(|k| !k.md.attr.is_symlink())
        {
            return if k.md.acl.is_empty() {
                Err(Errno::ENODATA)
            } else {
                Ok(k.md.acl)
            };
        }
        if name == CAPABILITY && self.cache.is_uncapped(fid) {
            return Err(Errno::ENODATA);
        }
        let ids = self.ids(cred, &[fid]).await;
        let mark = self.cache.begin_read(fid);
        let found = self.lmv.of(fid).await?.getxattr(&ids, fid, name).await;
        if name == CAPABILITY && matches!(found, Err(Errno::ENODATA)) {
            self.cache.learn_uncapped(mark, fid, false);
        }
        found.map(|value| if name == LOV { anywhere(value) } else { value })
    }

    async fn own_xattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> Result<Bytes, Errno> {
        let stored = |n: &'static [u8]| async move {
            self.lmv.of(fid).await?.getxattr(&Ids::root(), fid, n).await
        };
        match name {
            b"lov" => {
                let ids = self.ids(cred, &[fid]).await;
                let md = self.lmv.of(fid).await?.getattr(&ids, fid).await?.md;
                if md.is_empty() {
                    stored(b"trusted.lov").await
                } else {
                    Ok(md)
                }
            }
            b"lma" => stored(b"trusted.lma").await,
            // Names in directories that the caller may not search: as `trusted.link`, root's.
            b"link" if cred.uid != 0 => Err(Errno::ENODATA),
            b"link" => stored(b"trusted.link").await,
            b"lmv" => self.dirstripe(fid).await,
            b"dmv" => stored(b"trusted.dmv").await,
            b"fid" => Ok(Bytes::from(fid.to_string())),
            b"project" => self.project(cred, fid).await,
            b"mdt" => Ok(Bytes::from(self.lmv.of(fid).await?.index.to_string())),
            b"targets.json" => Ok(self.targets_json()),
            b"statfs.json" => Ok(self.statfs_json().await),
            b"pools.json" => Ok(self.pools_json()),
            // Asked of the file itself, the kernel wants its attributes first, and one whose OST is deactivated has no size.
            n if n.starts_with(b"lov/") => {
                let file = self
                    .resolve(cred, fid, &n[b"lov/".len()..])
                    .await?
                    .0
                    .attr
                    .fid;
                Box::pin(self.own_xattr(cred, file, b"lov")).await
            }
            n if n.starts_with(b"quota:") => self.quota_json(cred, &n[b"quota:".len()..]).await,
            n => match n.strip_prefix(b"path:") {
                Some(text) => {
                    let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
                    self.fid2path(cred, text.parse().map_err(|_| Errno::EINVAL)?)
                        .await
                }
                None => Err(Errno::ENODATA),
            },
        }
    }

    /// Sets one; `flags` XATTR_CREATE 1, XATTR_REPLACE 2.
    pub async fn setxattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> Result<(), Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ERANGE);
        }
        if value.len() > VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        self.change_xattr(cred, fid, name, Some(value), flags).await
    }

    /// Removes one; ENODATA when there is none.
    pub async fn removexattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.change_xattr(cred, fid, name, None, 0).await
    }

    async fn change_xattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Option<Bytes>,
        flags: u32,
    ) -> Result<(), Errno> {
        if name.starts_with(b"user.") && !self.opts.user_xattr
            || name == SELINUX && !self.opts.selinux
        {
            return Err(Errno::EOPNOTSUPP);
        }
        match (name, &value) {
            (b"lustre.mkdir", Some(v)) => {
                return self
                    .mkdir_striped(cred, fid, MkdirRequest::decode(v)?)
                    .await;
            }
            (b"lustre.project", Some(v)) => return self.set_project(cred, fid, v).await,
            (b"lustre.dmv", Some(v)) => {
                return self.set_default_dirstripe(cred, fid, v.clone()).await;
            }
            (b"lustre.lov", _) | (LOV, Some(_)) => {
                let md = self.md_inode(fid).await?;
                if name == b"lustre.lov" && md.attr.is_dir() {
                    return self.set_default_layout(cred, fid, value).await;
                }
                // a stock MDT trusts its clients in this, and panics
                if value.is_some() && md.attr.is_file() && md.layout.form != Form::None {
                    return Err(Errno::EEXIST);
                }
            }
            _ => {}
        }
        let ids = self.ids(cred, &[fid]).await;
        let mdc = self.lmv.of(fid).await?;
        let (me, n) = (self.clone(), Bytes::copy_from_slice(name));
        finish(async move {
            let done = mdc.setxattr(&ids, fid, &n, value, flags, me.now()).await;
            me.forget_attrs(fid);
            done
        })
        .await?;
        if name == b"lustre.lov"
            && let Some(open) = self.opened(fid)
        {
            open.set_layout(
                self.fetch_layout(fid, coral_wire::mds::layout_intent::ACCESS, 0, 0)
                    .await?,
            );
        }
        Ok(())
    }

    /// Project id, and "P" where new files inherit it, "-" elsewhere.
    async fn project(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        let a = self.getattr(cred, fid, None).await?.attr;
        let mark = if a.flags & fl::PROJINHERIT != 0 {
            'P'
        } else {
            '-'
        };
        Ok(Bytes::from(format!("{} {mark}", a.projid)))
    }

    /// Sets both from the same text.
    async fn set_project(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        text: &[u8],
    ) -> Result<(), Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let (id, mark) = text.split_once(' ').ok_or(Errno::EINVAL)?;
        let id: u32 = id.parse().map_err(|_| Errno::EINVAL)?;
        let a = self.getattr(cred, fid, None).await?.attr;
        let flags = match mark {
            "P" => a.flags | fl::PROJINHERIT,
            "-" => a.flags & !fl::PROJINHERIT,
            _ => return Err(Errno::EINVAL),
        };
        let set = SetAttr {
            projid: Some(id),
            flags: Some(flags),
            ..Default::default()
        }
        .beside(&a);
        if set != SetAttr::default() {
            self.setattr(cred, fid, set, None).await?;
        }
        Ok(())
    }

    /// All names, each ended by a NUL.
    pub async fn listxattr(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        let ids = self.ids(cred, &[fid]).await;
        let all = match self.lmv.of(fid).await?.listxattr(&ids, fid).await {
            Err(Errno::ENODATA) => Bytes::new(),
            r => r?,
        };
        let mut out = Vec::with_capacity(all.len());
        for name in all.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            let trusted = name.starts_with(b"trusted.") && cred.uid != 0;
            let user = name.starts_with(b"user.") && !self.opts.user_xattr;
            if !trusted && !user && !HIDDEN.contains(&name) && !name.starts_with(b"lustre.") {
                out.extend_from_slice(name);
                out.push(0);
            }
        }
        Ok(out.into())
    }

    /// Every target with what `lfs osts` and `lfs check` show.
    fn targets_json(&self) -> Bytes {
        let mdts = self
            .lmv
            .mdcs()
            .iter()
            .map(|m| target_json(m.index, m.uuid(), m.is_connected()))
            .collect();
        let osts = self
            .lov
            .oscs()
            .iter()
            .map(|o| (o.index, target_json(o.index, o.uuid(), o.is_connected())))
            .collect();
        self.all_json(mdts, osts)
    }

    /// Every target with what `lfs df` shows, all asked at once: those that do not answer take their time together. Sizes in
    /// bytes.
    async fn statfs_json(&self) -> Bytes {
        let (mdcs, oscs) = (self.lmv.mdcs(), self.lov.oscs());
        let mdts = join_all(
            mdcs.iter()
                .map(|m| async { space_json(m.index, m.uuid(), m.statfs(false).await) }),
        );
        let osts = join_all(
            oscs.iter()
                .map(|o| async { (o.index, space_json(o.index, o.uuid(), o.statfs().await)) }),
        );
        let (mdts, osts) = join(mdts, osts).await;
        self.all_json(mdts, osts.into_iter().collect())
    }

    /// OSTs by index; deactivated ones are added: they say nothing.
    fn all_json(&self, mdts: Vec<String>, mut osts: BTreeMap<u32, String>) -> Bytes {
        let config = self.config.borrow();
        let left = config
            .osts
            .iter()
            .filter(|(i, _)| self.lov.osc(**i).is_err());
        osts.extend(left.map(|(i, c)| (*i, space_json(*i, &c.uuid, Err(Errno::ENODATA)))));
        let osts: Vec<String> = osts.into_values().collect();
        let mgs = self.mgc.import().state() == coral_ptlrpc::ImportState::Full;
        let (mdts, osts) = (mdts.join(","), osts.join(","));
        format!(
            "{{\"fsname\":\"{}\",\"mdts\":[{mdts}],\"osts\":[{osts}],\"mgs_active\":{mgs}}}",
            self.opts.fsname
        )
        .into()
    }
}

/// A layout without its generations: set on a copy, they would be taken for the OST that the first stripe is wanted on
/// (`ll_sanitize_xattr`).
fn anywhere(md: Bytes) -> Bytes {
    let clear = |l: &mut LovMd| l.layout_gen = u16::MAX;
    let Ok(mut layout) = Layout::decode(&md) else {
        return md;
    };
    match &mut layout {
        Layout::Plain(l) => clear(l),
        Layout::Composite(c) => c.entries.iter_mut().for_each(|e| match &mut e.md {
            SubLayout::Plain(l) => clear(l),
            SubLayout::Foreign(_) => (),
        }),
        Layout::Foreign(_) => (),
    }
    layout.encode()
}

fn target_json(index: u32, uuid: &str, active: bool) -> String {
    format!("{{\"index\":{index},\"uuid\":\"{uuid}\",\"active\":{active}}}")
}

fn space_json(index: u32, uuid: &str, s: Result<ObdStatfs, Errno>) -> String {
    match s {
        Ok(s) => format!(
            "{{\"index\":{index},\"uuid\":\"{uuid}\",\"active\":true,\"bsize\":{},\"blocks\":{},\"bfree\":{},\"bavail\":{},\"files\":{},\"ffree\":{}}}",
            s.bsize, s.blocks, s.bfree, s.bavail, s.files, s.ffree
        ),
        Err(e) => format!(
            "{{\"index\":{index},\"uuid\":\"{uuid}\",\"active\":false,\"errno\":{}}}",
            e.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::{CompEntry, CompMd};

    #[test]
    fn a_layout_read_by_name_may_be_set_on_a_copy() {
        let md = |generation| LovMd {
            layout_gen: generation,
            ..LovMd::request(65536, 1, 0, None)
        };
        let comp = |generation| {
            let entries = [(1, 0, 1 << 20), (2, 1 << 20, u64::MAX)]
                .map(|(id, start, end)| CompEntry::new(id, 0, start, end, md(generation)));
            CompMd::new(9, 0, 0, entries.to_vec()).encode()
        };
        assert_eq!(anywhere(md(3).encode()), md(u16::MAX).encode());
        assert_eq!(anywhere(comp(3)), comp(u16::MAX));
        let other = Bytes::from_static(b"no layout");
        assert_eq!(anywhere(other.clone()), other);
    }

    #[test]
    fn statfs_json_is_json() {
        let there = space_json(
            0,
            "c-OST0000_UUID",
            Ok(ObdStatfs {
                bsize: 4096,
                blocks: 7,
                ..Default::default()
            }),
        );
        assert_eq!(
            there,
            "{\"index\":0,\"uuid\":\"c-OST0000_UUID\",\"active\":true,\"bsize\":4096,\"blocks\":7,\"bfree\":0,\"bavail\":0,\"files\":0,\"ffree\":0}"
        );
        assert_eq!(
            space_json(1, "c-OST0001_UUID", Err(Errno::EIO)),
            "{\"index\":1,\"uuid\":\"c-OST0001_UUID\",\"active\":false,\"errno\":5}"
        );
        assert_eq!(
            target_json(1, "c-OST0001_UUID", true),
            "{\"index\":1,\"uuid\":\"c-OST0001_UUID\",\"active\":true}"
        );
    }
}
