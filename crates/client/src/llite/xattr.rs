//! Extended attributes as the MDT has them: the user's, ACLs, capabilities. Lustre's own names: [`super::lustre_xattr`].
//!
//! Lustre: `lustre/llite/xattr.c`.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::{Layout, LovMd, SubLayout};

use super::cache::Cache;
use super::changes::Changes;
use super::finish::finish;
use super::identities::Identities;
use super::late::LateAttrs;
use super::servers::Servers;
use super::types::Cred;
use crate::error::{Error, Refusal};

/// Longest name, bytes (XATTR_NAME_MAX).
pub(super) const NAME_MAX: usize = 255;
/// The access ACL; comes with the attributes.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// File capabilities: Linux asks for them before each chown and before the first write.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// Asked for again and again on machines without SELinux; there it is EOPNOTSUPP, as in Lustre (`ll_xattr_get_common`).
const SELINUX: &[u8] = b"security.selinux";
/// A layout, as tools that copy xattrs by name read and set it.
pub(super) const LOV: &[u8] = b"trusted.lov";
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

/// Reads and sets extended attributes.
pub(super) struct Xattrs {
    servers: Arc<Servers>,
    ids: Arc<Identities>,
    cache: Arc<Cache>,
    changes: Arc<Changes>,
    late: Arc<LateAttrs>,
}

impl Xattrs {
    /// For the objects of one mount.
    pub fn new(
        servers: Arc<Servers>,
        ids: Arc<Identities>,
        cache: Arc<Cache>,
        changes: Arc<Changes>,
        late: Arc<LateAttrs>,
    ) -> Self {
        Self {
            servers,
            ids,
            cache,
            changes,
            late,
        }
    }

    /// Value of one xattr; ENODATA when there is none, ERANGE when the name is too long.
    pub async fn get(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Error> {
        if name.len() > NAME_MAX {
            return Err(Refusal::XattrNameTooLong.into());
        }
        if name.starts_with(b"user.") && !self.servers.opts.user_xattr {
            return Err(Refusal::XattrsOff.into());
        }
        if name == SELINUX && !self.servers.opts.selinux {
            return Err(Refusal::XattrsOff.into());
        }
        // `ls -l` asks for each file, and hardly any has one; the kernel asks whenever it looks at attributes anew to permit something
        if name == ACL_ACCESS
            && let Some(k) = self.cache.known(fid).filter(|k| !k.md.attr.is_symlink())
        {
            return if k.md.acl.is_empty() {
                Err(Refusal::NoXattr.into())
            } else {
                Ok(k.md.acl)
            };
        }
        if name == CAPABILITY && self.cache.is_uncapped(fid) {
            return Err(Refusal::NoXattr.into());
        }
        let ids = self.ids.of(cred, &[fid]).await;
        let mark = self.cache.begin_read(fid);
        let found = self
            .servers
            .lmv
            .of(fid)
            .await?
            .getxattr(&ids, fid, name)
            .await;
        if name == CAPABILITY && matches!(&found, Err(e) if e.is(Errno::ENODATA)) {
            self.cache.learn_uncapped(mark, fid, false);
        }
        let value = found?;
        Ok(if name == LOV { anywhere(value) } else { value })
    }

    /// Sets one, or takes it away; the name is one that the MDT knows.
    pub async fn change(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Option<Bytes>,
        flags: u32,
    ) -> Result<(), Error> {
        self.late.sent(fid).await;
        let ids = self.ids.of(cred, &[fid]).await;
        let mdc = self.servers.lmv.of(fid).await?;
        let (me, n) = (self.clone(), Bytes::copy_from_slice(name));
        finish(async move {
            let done = mdc
                .setxattr(&ids, fid, &n, value, flags, me.servers.now())
                .await;
            me.changes.forget_attrs(fid);
            Ok(done?)
        })
        .await
    }

    /// EOPNOTSUPP for names of a kind that was not asked for at mount.
    pub fn check(&self, name: &[u8]) -> Result<(), Error> {
        if name.starts_with(b"user.") && !self.servers.opts.user_xattr
            || name == SELINUX && !self.servers.opts.selinux
        {
            return Err(Refusal::XattrsOff.into());
        }
        Ok(())
    }

    /// All names, each ended by a NUL.
    pub async fn list(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        let ids = self.ids.of(cred, &[fid]).await;
        let all = match self.servers.lmv.of(fid).await?.listxattr(&ids, fid).await {
            Err(e) if e.is(Errno::ENODATA) => Bytes::new(),
            r => r?,
        };
        let mut out = Vec::with_capacity(all.len());
        for name in all.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            let trusted = name.starts_with(b"trusted.") && cred.uid != 0;
            let user = name.starts_with(b"user.") && !self.servers.opts.user_xattr;
            if !trusted && !user && !HIDDEN.contains(&name) && !name.starts_with(b"lustre.") {
                out.extend_from_slice(name);
                out.push(0);
            }
        }
        Ok(out.into())
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
}
