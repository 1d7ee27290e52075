//! Extended attributes: the user's, ACLs, and Lustre's own under names of their own.
//!
//! | name | get | set |
//! | --- | --- | --- |
//! | `lustre.lov` | layout of a file, default layout of a directory | layout of a file without one, default of a directory |
//! | `lustre.lov/NAME` | layout of the file NAME in a directory | - |
//! | `lustre.lma`, `lustre.link` | as stored on the MDT | - |
//! | `lustre.lmv` | layout of a striped directory, with the MDT of each shard | ends the migration of a directory to that layout |
//! | `lustre.dmv` | what new directories inherit | the same |
//! | `lustre.mkdir` | - | makes a directory on chosen MDTs ([`super::MkdirRequest`]) |
//! | `lustre.restripe` | - | lays a directory that is there out over more or fewer shards ([`super::MkdirRequest`]) |
//! | `lustre.migrate` | - | moves a name of the directory to another MDT ([`super::MigrateRequest`]) |
//! | `lustre.rmfid` | - | removes the object of that FID, as text, with all of its names |
//! | `lustre.fid` | FID as text | - |
//! | `lustre.path:FID` | a path of that FID, from the mounted directory | - |
//! | `lustre.targets.json` | the targets and whether they answer, JSON; asks no server | - |
//! | `lustre.statfs.json` | the same with space and inodes, or the errno of a target that does not say | - |
//! | `lustre.pools.json` | OSTs of each pool, JSON | - |
//!
//! Lustre: `lustre/llite/xattr.c`; the text ones take the place of ioctls, which FUSE does not let through.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::mds::fl;

use super::attributes::Attributes;
use super::covers::OpenFiles;
use super::dirstripe::{DirStripes, MkdirRequest};
use super::identities::Identities;
use super::layouts::Layouts;
use super::migrate::{MigrateRequest, Migrations};
use super::names::Names;
use super::reports::Reports;
use super::servers::Servers;
use super::setattr::SetAttrs;
use super::shards::striped;
use super::types::{Cred, SetAttr};
use super::untold::UntoldOpens;
use super::xattr::{LOV, NAME_MAX, Xattrs};
use crate::error::{Error, Refusal};
use crate::lov::Form;
use crate::mdc::Ids;

/// Longest value, bytes (XATTR_SIZE_MAX).
const VALUE_MAX: usize = 65536;
/// Extended attributes, Lustre's own among them.
pub(super) struct LustreXattrs {
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub open: Arc<OpenFiles>,
    pub layouts: Arc<Layouts>,
    pub attributes: Arc<Attributes>,
    pub xattrs: Arc<Xattrs>,
    pub setattrs: Arc<SetAttrs>,
    pub dir_stripes: Arc<DirStripes>,
    pub migrations: Arc<Migrations>,
    pub names: Arc<Names>,
    pub untold: Arc<UntoldOpens>,
    pub reports: Arc<Reports>,
}

impl LustreXattrs {
    /// Value of one xattr; ENODATA when there is none.
    pub async fn get(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Error> {
        match name.strip_prefix(b"lustre.") {
            Some(own) if name.len() <= NAME_MAX => self.own_xattr(cred, fid, own).await,
            _ => self.xattrs.get(cred, fid, name).await,
        }
    }

    /// All names, each ended by a NUL.
    pub async fn list(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        self.xattrs.list(cred, fid).await
    }

    async fn own_xattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Error> {
        let stored = |n: &'static [u8]| async move {
            let mdc = self.servers.lmv.of(fid).await?;
            Ok::<_, Error>(mdc.getxattr(&Ids::root(), fid, n).await?)
        };
        match name {
            b"lov" => {
                let ids = self.ids.of(cred, &[fid]).await;
                let md = self.servers.lmv.of(fid).await?.getattr(&ids, fid).await?.md;
                // of a directory in shards the MDT says those
                if md.is_empty() || striped(&md).is_some() {
                    stored(b"trusted.lov").await
                } else {
                    Ok(md)
                }
            }
            b"lma" => stored(b"trusted.lma").await,
            // Names in directories that the caller may not search: as `trusted.link`, root's.
            b"link" if cred.uid != 0 => Err(Refusal::NoXattr.into()),
            b"link" => stored(b"trusted.link").await,
            b"lmv" => self.dir_stripes.layout_of(fid).await,
            b"dmv" => self.dir_stripes.default_of(fid).await,
            b"fid" => Ok(Bytes::from(fid.to_string())),
            b"project" => self.project(cred, fid).await,
            b"mdt" => Ok(Bytes::from(
                self.servers.lmv.of(fid).await?.index.to_string(),
            )),
            b"targets.json" => Ok(self.reports.targets()),
            b"statfs.json" => Ok(self.reports.statfs_json().await),
            b"pools.json" => Ok(self.reports.pools()),
            // Asked of the file itself, the kernel wants its attributes first, and one whose OST is deactivated has no size.
            n if n.starts_with(b"lov/") => {
                let file = self
                    .names
                    .resolve(cred, fid, &n[b"lov/".len()..])
                    .await?
                    .0
                    .attr
                    .fid;
                Box::pin(self.own_xattr(cred, file, b"lov")).await
            }
            n if n.starts_with(b"quota:") => self.reports.quota(cred, &n[b"quota:".len()..]).await,
            n => match n.strip_prefix(b"path:") {
                Some(text) => {
                    let text = std::str::from_utf8(text).map_err(|_| Refusal::BadXattr)?;
                    self.names
                        .fid2path(cred, text.parse().map_err(|_| Refusal::BadXattr)?)
                        .await
                }
                None => Err(Refusal::NoXattr.into()),
            },
        }
    }

    /// Sets one; `flags` XATTR_CREATE 1, XATTR_REPLACE 2.
    pub async fn set(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> Result<(), Error> {
        if name.len() > NAME_MAX {
            return Err(Refusal::XattrNameTooLong.into());
        }
        if value.len() > VALUE_MAX {
            return Err(Refusal::XattrTooLong.into());
        }
        self.change(cred, fid, name, Some(value), flags).await
    }

    /// Removes one; ENODATA when there is none.
    pub async fn remove(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), Error> {
        self.change(cred, fid, name, None, 0).await
    }

    async fn change(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Option<Bytes>,
        flags: u32,
    ) -> Result<(), Error> {
        self.xattrs.check(name)?;
        match (name, &value) {
            (b"lustre.mkdir", Some(v)) => {
                return self
                    .dir_stripes
                    .mkdir(cred, fid, MkdirRequest::decode(v)?)
                    .await;
            }
            (b"lustre.restripe", Some(v)) => {
                return self
                    .dir_stripes
                    .restripe(cred, fid, MkdirRequest::decode(v)?)
                    .await;
            }
            (b"lustre.migrate", Some(v)) => {
                return self
                    .migrations
                    .migrate(cred, fid, MigrateRequest::decode(v)?)
                    .await;
            }
            (b"lustre.rmfid", Some(v)) => return self.rmfid(cred, v).await,
            (b"lustre.lmv", Some(v)) => return self.migrations.end(cred, fid, v.clone()).await,
            (b"lustre.project", Some(v)) => return self.set_project(cred, fid, v).await,
            (b"lustre.dmv", Some(v)) => {
                return self
                    .dir_stripes
                    .set_default_dirs(cred, fid, v.clone())
                    .await;
            }
            (b"lustre.lov", _) | (LOV, Some(_)) => {
                let md = self.attributes.md_inode(fid).await?;
                if name == b"lustre.lov" && md.attr.is_dir() {
                    return self.dir_stripes.set_default_layout(cred, fid, value).await;
                }
                // a stock MDT trusts its clients in this, and panics
                if value.is_some() && md.attr.is_file() && md.layout.form != Form::None {
                    return Err(Refusal::HasLayout.into());
                }
            }
            _ => {}
        }
        self.xattrs.change(cred, fid, name, value, flags).await?;
        if name == b"lustre.lov"
            && let Some(open) = self.open.of(fid)
        {
            open.set_layout(
                self.layouts
                    .fetch(fid, coral_wire::mds::layout_intent::ACCESS, 0, 0)
                    .await?,
            );
        }
        Ok(())
    }

    /// Removes an object by its FID: for root alone, who need not search the directories above it (`ll_rmfid`).
    async fn rmfid(&self, cred: &Cred, text: &[u8]) -> Result<(), Error> {
        if cred.uid != 0 {
            return Err(Refusal::NotOwner.into());
        }
        let text = std::str::from_utf8(text).map_err(|_| Refusal::BadXattr)?;
        let fid: Fid = text
            .trim_end_matches('\0')
            .parse()
            .map_err(|_| Refusal::BadXattr)?;
        let ids = self.ids.of(cred, &[]).await;
        let mdc = self.servers.lmv.of(fid).await?;
        let now = self.servers.now();
        let _taking = self.untold.taking(fid, now).await;
        Ok(mdc.rmfid(&ids, fid, now).await?)
    }

    /// Project id, and "P" where new files inherit it, "-" elsewhere.
    async fn project(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        let a = self.attributes.getattr(cred, fid).await?.attr;
        let mark = if a.flags & fl::PROJINHERIT != 0 {
            'P'
        } else {
            '-'
        };
        Ok(Bytes::from(format!("{} {mark}", a.projid)))
    }

    /// Sets both from the same text.
    async fn set_project(&self, cred: &Cred, fid: Fid, text: &[u8]) -> Result<(), Error> {
        let text = std::str::from_utf8(text).map_err(|_| Refusal::BadXattr)?;
        let (id, mark) = text.split_once(' ').ok_or(Refusal::BadXattr)?;
        let id: u32 = id.parse().map_err(|_| Refusal::BadXattr)?;
        let a = self.attributes.getattr(cred, fid).await?.attr;
        let flags = match mark {
            "P" => a.flags | fl::PROJINHERIT,
            "-" => a.flags & !fl::PROJINHERIT,
            _ => return Err(Refusal::BadXattr.into()),
        };
        let set = SetAttr {
            projid: Some(id),
            flags: Some(flags),
            ..Default::default()
        }
        .beside(&a);
        if set != SetAttr::default() {
            self.setattrs.set(cred, fid, set, None).await?;
        }
        Ok(())
    }
}
